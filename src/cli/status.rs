//! `spark-usher status`: the state of applications, by their drivers.

use std::io::{self, Write};

use super::driver_table::lines;
use super::drivers::{Which, find, missing};
use super::output::{FAILED, OK, Output, block_on, failed, has_colors, one_line, unreadable};
use super::{spark_compatible, watch};
use usher_submit::api::drivers::{Found, Selection};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    which: Which,
    /// Output format.
    #[arg(long, short, value_enum, default_value = "text")]
    output: Output,
    /// Show changes until Ctrl-C, or until every named application has ended: the same as the command watch.
    #[arg(long, short)]
    watch: bool,
    /// Print to standard error exactly what `spark-submit --status` prints, and exit with 0: a name that ends with * and has no namespace
    /// stands for drivers of all namespaces, if the context of the kubeconfig names none.
    #[arg(long, conflicts_with_all = ["watch", "output", "selector", "all_namespaces"])]
    spark_compatible: bool,
}

pub(super) fn run(args: Args, out: &mut dyn Write, err: &mut dyn Write) -> io::Result<u8> {
    if args.spark_compatible {
        return spark_compatible::status(&args.which, err);
    }
    if args.watch {
        return watch::run(watch::Args::of(args.which, args.output), out, err);
    }
    let ids = match args.which.parse() {
        Ok(ids) => ids,
        Err(error) => return unreadable(err, &error),
    };
    let found = block_on(async {
        let connection = args.which.server.connect().await?;
        let selection = args.which.selection(ids, &connection);
        Ok((find(&selection, &connection).await?, selection))
    });
    match found {
        Ok((found, selection)) => print(args.output, found, &selection, out, err),
        Err(error) => failed(err, &error),
    }
}

fn print(
    output: Output,
    found: Found,
    selection: &Selection,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> io::Result<u8> {
    let (drivers, unfound) = found.into_all();
    let names = drivers.iter().map(|driver| driver.submission_id.clone());
    output.write(&drivers, names, out, |out| {
        let states = drivers.iter().map(|driver| (driver, driver.state));
        let table = if drivers.is_empty() { Vec::new() } else { lines(states, output.columns(), has_colors()) };
        table.iter().try_for_each(|line| writeln!(out, "{line}"))
    })?;
    for (id, why) in &unfound {
        writeln!(err, "error: {}", one_line(&missing(selection, id, *why)))?;
    }
    if drivers.is_empty() && unfound.is_empty() && output.is_text() {
        let place = selection.namespace.as_ref();
        let place = place.map_or_else(String::new, |name| format!(" in namespace {name}; -A shows all namespaces"));
        writeln!(err, "no drivers{place}")?;
    }
    Ok(if unfound.is_empty() { OK } else { FAILED })
}
