//! The command line: parse, install the crypto provider, run, exit code.

use std::process::ExitCode;

use spark_usher::{cli, tls};

fn main() -> ExitCode {
    tls::install_provider();
    cli::Cli::of_process().run()
}
