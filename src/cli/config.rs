//! `spark-usher config`: checks a policy file, prints its schema.

use std::io::{self, Write};
use std::path::PathBuf;

use super::output::{FAILED, OK, UNREADABLE};
use crate::config;
use crate::policy::{Finished, Mode, Policies, RecoveryRule};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Check a policy file. The exit code is 0 if it is valid, 1 if not, 2 if it cannot be read.
    Check {
        /// Policy file; - reads standard input.
        file: PathBuf,
    },
    /// Print the JSON Schema of the policy file.
    Schema,
}

/// Which pods would be deleted: what a reader must know before a rollout.
fn deleting(Policies { recovery, lifecycle, .. }: &Policies) -> String {
    let rules = RecoveryRule::ALL.into_iter().filter(|rule| rule.can_act() && recovery.rule(*rule).mode == Mode::Act);
    let rules = rules.filter(|_| recovery.acts && !recovery.dry_run);
    let mut all: Vec<&str> = rules.map(RecoveryRule::as_str).collect();
    if lifecycle.finished == Finished::Delete && !recovery.dry_run {
        all.push("lifecycle.finished");
    }
    match all.is_empty() {
        true => "no pods are deleted".to_owned(),
        false => format!("pods are deleted by: {}", all.join(", ")),
    }
}

pub(super) fn run(args: &Args, out: &mut dyn Write, err: &mut dyn Write) -> io::Result<u8> {
    match &args.command {
        Command::Schema => {
            writeln!(out, "{:#}", config::schema())?;
            Ok(OK)
        }
        Command::Check { file } => {
            let text = match super::input::read(file) {
                Ok(text) => text,
                Err(error) => {
                    writeln!(err, "error: {error}")?;
                    return Ok(UNREADABLE);
                }
            };
            match config::from_text(&text) {
                Ok(config) => {
                    for warning in &config.warnings {
                        writeln!(err, "warning: {warning}")?;
                    }
                    for policy in config.policies.iter() {
                        writeln!(
                            out,
                            "{:<20} {:<14} gang: {}",
                            policy.name,
                            policy.scheduler.gang_scheduler.kind,
                            policy.gang.shape.as_str()
                        )?;
                    }
                    writeln!(out, "{}", deleting(&config.policies))?;
                    Ok(OK)
                }
                Err(error) => {
                    writeln!(err, "error: {}: {error}", file.display())?;
                    Ok(FAILED)
                }
            }
        }
    }
}
