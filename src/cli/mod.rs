//! The command line, one file per subcommand. Each prints to a writer and returns an exit code.

mod api_server;
mod apps;
mod bash;
mod candidates;
mod completion;
mod config;
mod cost;
#[cfg(feature = "sandbox")]
mod demo;
mod diff;
mod doctor;
mod driver_table;
mod drivers;
mod environment;
mod explain;
mod follow;
mod input;
mod kill;
mod live;
mod local_files;
mod nodes;
mod output;
mod pod_history;
mod policy;
mod program;
mod query;
#[cfg(feature = "s3")]
mod s3;
#[cfg(feature = "sandbox")]
mod sandbox;
mod serve;
mod spark_compatible;
mod status;
mod submit;
mod submit_help;
mod submit_options;
mod timeline;
#[cfg(feature = "sandbox")]
mod trial;
mod upload;
mod version;
mod watch;
mod why;

use output::{FAILED, OK};
use std::io::{self, Write};
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

/// Admission webhook and controller for Apache Spark on Kubernetes: gang scheduling, ownerReferences and exit causes of
/// executors.
#[derive(Debug, Parser)]
#[command(version, about, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run recorded Spark pods through the real webhook and controller on an in-memory Kubernetes API, with and without
    /// spark-usher.
    #[cfg(feature = "sandbox")]
    Demo(demo::Args),
    /// Run the webhook and the controller for a cluster until SIGTERM.
    Serve(Box<serve::Args>),
    /// Print the decision for a pod. Offline: reads a Pod or an AdmissionReview.
    Explain(explain::Args),
    /// Submit an application as spark-submit does in cluster mode, without a JVM.
    Submit(submit::Args),
    /// Show applications by their drivers: a row for each, by name, submission id, executor or label. `apps` shows executors.
    Status(status::Args),
    /// Stop applications: delete their drivers' pods, after a question.
    Kill(kill::Args),
    /// Show what happens to applications until they have ended: changes of state, and the driver's log. Patterns and labels are watched
    /// until Ctrl-C.
    Watch(watch::Args),
    /// List Spark applications by their executors: what each lacks, and why. `status` shows drivers.
    Apps(apps::Args),
    /// Explain why an executor exited or does not start. For an application, list all of its anomalies.
    Why(why::Args),
    /// What executors cost that did no work: orphans, waiting gangs, executors that hang; by namespace, application or cause.
    Cost(cost::Args),
    /// Nodes that refuse or break executors: which are suspect, since when, why, and what to do.
    Nodes(nodes::Args),
    /// Check an installation: webhook, certificate, permissions, schedulers and selectors, with a fix for each problem.
    Doctor(doctor::Args),
    /// Check a policy file, or print its JSON Schema.
    Config(config::Args),
    /// Print admission policies that the API server evaluates itself: one that sets the ownerReferences of executors while
    /// the webhook is unavailable, or (--validating) policies that deny pods without the webhook.
    Policy(policy::Args),
    /// Print the version.
    Version(version::Args),
    /// Print a script that completes commands and options in a shell.
    Completion(completion::Args),
    /// Write the manual pages.
    Man(completion::ManArgs),
    /// Run an in-memory Kubernetes API on loopback, for trials with real tools. It is not a cluster.
    #[cfg(feature = "sandbox")]
    Sandbox(sandbox::Args),
}

impl Cli {
    /// Parses the arguments of this process. Help, errors, and completions for kubectl end it.
    pub(crate) fn of_process() -> Cli {
        completion::for_shell(Cli::of_program);
        let mut command = Cli::of_program();
        if program::completes_for_kubectl() {
            completion::for_kubectl(command);
        }
        if std::env::args_os().nth(1).is_some_and(|first| first == "help") {
            command = submit_help::with_options(command);
        }
        let matches = command.get_matches_mut();
        Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.format(&mut command).exit())
    }

    fn of_program() -> clap::Command {
        program::named(Cli::command(), program::program())
    }

    /// Runs the command.
    pub(crate) fn run(self) -> ExitCode {
        // Not locked: other threads write the log to standard error, too.
        let (mut out, mut err) = (io::stdout(), io::stderr());
        let code = match self.command {
            #[cfg(feature = "sandbox")]
            Command::Demo(args) => demo::run(&args, &mut out, &mut err),
            Command::Serve(args) => serve::run(&args, &mut err),
            Command::Explain(args) => explain::run(&args, &mut out, &mut err),
            Command::Submit(args) => submit::run(&args, Cli::of_program, &mut out, &mut err),
            Command::Status(args) => status::run(args, &mut out, &mut err),
            Command::Kill(args) => kill::run(&args, &mut out, &mut err),
            Command::Watch(args) => watch::run(args, &mut out, &mut err),
            Command::Version(args) => version::run(&args, &mut out, &mut err),
            Command::Completion(args) => completion::run(&args, &Cli::of_program(), &mut out),
            Command::Man(args) => completion::man(&args, Cli::of_program(), &mut err),
            Command::Apps(args) => apps::run(args, &mut out, &mut err),
            Command::Why(args) => why::run(args, &mut out, &mut err),
            Command::Cost(args) => cost::run(args, &mut out, &mut err),
            Command::Nodes(args) => nodes::run(args, &mut out, &mut err),
            Command::Config(args) => config::run(&args, &mut out, &mut err),
            Command::Doctor(args) => doctor::run(&args, &mut out, &mut err),
            Command::Policy(args) => policy::run(&args, &mut out, &mut err),
            #[cfg(feature = "sandbox")]
            Command::Sandbox(args) => sandbox::run(&args, &mut out, &mut err),
        };
        // What could not be written is no reason to hide how the command ended.
        match code.and_then(|code| if code == OK { out.flush().map(|()| code) } else { Ok(code) }) {
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
