//! `spark-usher config`: checks a policy file, prints its schema.

use std::io::{self, Write};
use std::path::PathBuf;

use super::output::{FAILED, OK, UNREADABLE};
use crate::config;
use crate::policy::deletions;

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
            match config::every_error(&text) {
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
                    writeln!(out, "{}", deletions(&config.policies))?;
                    Ok(OK)
                }
                Err(all) => {
                    for wrong in &all {
                        writeln!(err, "error: {}: {wrong}", file.display())?;
                    }
                    if all.len() > 1 {
                        writeln!(err, "{} errors", all.len())?;
                    }
                    Ok(FAILED)
                }
            }
        }
    }
}
