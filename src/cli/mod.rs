//! The command line, one file per subcommand. Each prints to a writer and returns an exit code.

mod apps;
mod config;
#[cfg(feature = "sandbox")]
mod demo;
mod diff;
mod doctor;
mod explain;
mod input;
mod output;
mod policy;
mod query;
#[cfg(feature = "sandbox")]
mod sandbox;
mod serve;
mod why;

use output::{FAILED, OK};
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
    #[cfg(feature = "sandbox")]
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
    #[cfg(feature = "sandbox")]
    Sandbox(sandbox::Args),
}

impl Cli {
    /// Runs the command.
    pub fn run(self) -> ExitCode {
        // Not locked: other threads write the log to standard error, too.
        let (mut out, mut err) = (io::stdout(), io::stderr());
        let code = match self.command {
            #[cfg(feature = "sandbox")]
            Command::Demo(args) => demo::run(&args, &mut out, &mut err),
            Command::Serve(args) => serve::run(&args, &mut err),
            Command::Explain(args) => explain::run(&args, &mut out, &mut err),
            Command::Apps(args) => apps::run(&args, &mut out, &mut err),
            Command::Why(args) => why::run(&args, &mut out, &mut err),
            Command::Config(args) => config::run(&args, &mut out, &mut err),
            Command::Doctor(args) => doctor::run(&args, &mut out, &mut err),
            Command::Policy(args) => policy::run(&args, &mut out, &mut err),
            #[cfg(feature = "sandbox")]
            Command::Sandbox(args) => sandbox::run(&args, &mut out, &mut err),
        };
        match code.and_then(|code| out.flush().map(|()| code)) {
            Ok(code) => ExitCode::from(code),
            // The reader closed the pipe (`| head`).
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::from(OK),
            Err(error) => {
                let _ = writeln!(err, "error: {error}");
                ExitCode::from(FAILED)
            }
        }
    }
}
