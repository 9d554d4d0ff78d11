//! The command line: parse, install the crypto provider, run, exit code.

use std::hash::RandomState;
use std::process::ExitCode;

use spark_usher::{cli, hash, tls};

fn main() -> ExitCode {
    hash::set_key(RandomState::new());
    tls::install_provider();
    cli::Cli::of_process().run()
}
