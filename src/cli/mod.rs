//! The command line, one file a subcommand. Each prints to a writer and returns an exit code.

mod apps;
mod config;
mod demo;
mod diff;
mod doctor;
mod explain;
mod input;
mod look;
mod policy;
mod sandbox;
mod serve;
mod why;

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
    /// Every Spark application: its driver, its executors by state, how the last of them ended.
    Apps(apps::Args),
    /// Why did this executor end, or why does it not start? Of an application: all that is odd about it.
    Why(why::Args),
    /// Is the installation well? Webhook, certificate, rights, schedulers, selectors, each with what to do.
    Doctor(doctor::Args),
    /// Check a policy file, or print its schema.
    Config(config::Args),
    /// Print admission policies that the API server evaluates itself: one that gives executors their owner while the webhook
    /// is away, or (--validating) those that deny without it.
    Policy(policy::Args),
    /// An in-memory Kubernetes API on loopback, to point real tools at. It is no cluster.
    Sandbox(sandbox::Args),
}

/// How an answer looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Output {
    /// For people.
    Text,
    /// For programs.
    Json,
}

/// What pods say is a tenant's text: nothing of it may steer a terminal.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' && c != '\t' { '\u{fffd}' } else { c }).collect()
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
            Command::Apps(args) => apps::run(&args, &mut out, &mut err),
            Command::Why(args) => why::run(&args, &mut out, &mut err),
            Command::Config(args) => config::run(&args, &mut out, &mut err),
            Command::Doctor(args) => doctor::run(&args, &mut out, &mut err),
            Command::Policy(args) => policy::run(&args, &mut out, &mut err),
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
