//! `spark-usher version`.

use std::io::{self, Write};

use serde_json::json;

use super::output::{OK, Output, no_names};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Output format.
    #[arg(long, short, value_enum, default_value = "text")]
    output: Output,
}

pub(super) fn run(args: &Args, out: &mut dyn Write, err: &mut dyn Write) -> io::Result<u8> {
    if args.output == Output::Name {
        return no_names(err);
    }
    let version = env!("CARGO_PKG_VERSION");
    args.output.write(&json!({"version": version}), [], out, |out| writeln!(out, "spark-usher {version}"))?;
    Ok(OK)
}
