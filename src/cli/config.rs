//! `spark-usher config`: check a policy file, print its schema.

use std::io::{self, Write};
use std::path::PathBuf;

use crate::config;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Check a policy file; exit 0 when it can be used, 1 when not.
    Check {
        /// The file, or - for standard input.
        file: PathBuf,
    },
    /// Print the JSON Schema of the policy file.
    Schema,
}

pub(super) fn run(args: &Args, out: &mut dyn Write, err: &mut dyn Write) -> io::Result<u8> {
    match &args.command {
        Command::Schema => {
            writeln!(out, "{:#}", config::schema())?;
            Ok(super::OK)
        }
        Command::Check { file } => {
            let text = match super::input::read(file) {
                Ok(text) => text,
                Err(error) => {
                    writeln!(err, "error: {error}")?;
                    return Ok(super::UNREADABLE);
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
                            policy.scheduler.row.kind,
                            policy.gang.shape.as_str()
                        )?;
                    }
                    Ok(super::OK)
                }
                Err(error) => {
                    writeln!(err, "error: {}: {error}", file.display())?;
                    Ok(super::FAILED)
                }
            }
        }
    }
}
