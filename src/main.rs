//! The command line: parse, install the crypto provider, run, exit code.

use std::process::ExitCode;

use clap::Parser;
use spark_usher::{cli, tls};

fn main() -> ExitCode {
    tls::install_provider();
    cli::Cli::parse().run()
}
