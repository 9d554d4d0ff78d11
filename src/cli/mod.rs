//! The command line, one file a subcommand. Each prints to a writer and returns an exit code.

mod config;
mod demo;
mod diff;
mod explain;
mod input;
mod sandbox;
mod serve;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Checks Apache Spark's executors in on Kubernetes, seats them in their gang, and gives them to their driver.
#[derive(Debug, Parser)]
#[command(version, about, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// The main job on a bare machine: recorded Spark pods through the real webhook, with and without us.
    Demo(demo::Args),
    /// Run the webhook and the loop for a cluster, until SIGTERM.
    Serve(Box<serve::Args>),
    /// What would be done with this pod? Offline: reads a Pod or an AdmissionReview and prints the decision.
    Explain(explain::Args),
    /// Check a policy file, or print its schema.
    Config(config::Args),
    /// An in-memory Kubernetes API on loopback, to point real tools at. It is no cluster.
    Sandbox(sandbox::Args),
}

/// A command did what it was asked.
pub(crate) const OK: u8 = 0;
/// The answer is no, or something failed on the way.
pub(crate) const FAILED: u8 = 1;
/// The input cannot be read.
pub(crate) const UNREADABLE: u8 = 2;

impl Cli {
    /// Runs the command.
    pub fn run(self) -> ExitCode {
        // Not locked: the log writes to standard error too, from other threads.
        let (mut out, mut err) = (io::stdout(), io::stderr());
        let code = match self.command {
            Command::Demo(args) => demo::run(&args, &mut out, &mut err),
            Command::Serve(args) => serve::run(&args, &mut err),
            Command::Explain(args) => explain::run(&args, &mut out, &mut err),
            Command::Config(args) => config::run(&args, &mut out, &mut err),
            Command::Sandbox(args) => sandbox::run(&args, &mut out, &mut err),
        };
        match code.and_then(|code| out.flush().map(|()| code)) {
            Ok(code) => ExitCode::from(code),
            // The reader has had enough (`| head`).
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::from(OK),
            Err(error) => {
                let _ = writeln!(err, "error: {error}");
                ExitCode::from(FAILED)
            }
        }
    }
}

/// A runtime for commands that talk to the network; `work` runs until it is done.
fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(work)
}

/// Prints what went wrong, with its causes.
fn failed(err: &mut dyn Write, error: &anyhow::Error) -> io::Result<u8> {
    writeln!(err, "error: {error:#}")?;
    Ok(FAILED)
}
