//! `spark-usher status`: the state of applications, by their drivers.

use std::io::{self, Write};

use super::driver_table::lines;
use super::drivers::{Which, find, missing};
use super::output::{self, FAILED, OK, block_on, failed, one_line, plain};
use super::{spark_compatible, watch};
use crate::cluster::drivers::{Found, Selection};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    which: Which,
    /// Output format.
    #[arg(long, short, value_enum, default_value = "text")]
    output: Format,
    /// Show changes until Ctrl-C, or until every named application has ended: the same as the command watch.
    #[arg(long, short)]
    watch: bool,
    /// Print to standard error exactly what `spark-submit --status` prints, and exit with 0: a name that ends with * and has no namespace
    /// stands for drivers of all namespaces, if the context of the kubeconfig names none.
    #[arg(long, conflicts_with_all = ["watch", "output", "selector", "all_namespaces"])]
    spark_compatible: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// A table.
    Text,
    /// JSON.
    Json,
    /// YAML.
    Yaml,
    /// Submission ids.
    Name,
}

pub(super) fn run(args: Args, out: &mut dyn Write, err: &mut dyn Write) -> io::Result<u8> {
    if args.spark_compatible {
        return spark_compatible::status(&args.which, err);
    }
    if args.watch {
        let is_json = match args.output {
            Format::Text => false,
            Format::Json => true,
            Format::Yaml | Format::Name => {
                return output::wrong(err, "-o text or -o json with --watch");
            }
        };
        return watch::run(watch::Args::of(args.which, is_json), out, err);
    }
    let ids = match args.which.parse() {
        Ok(ids) => ids,
        Err(error) => return output::unreadable(err, &error),
    };
    let found = block_on(async {
        let connection = args.which.server.connect().await?;
        let selection = args.which.selection(ids, &connection);
        Ok((find(&selection, &connection).await?, selection))
    });
    match found {
        Ok((found, selection)) => print(args.output, &found, &selection, out, err),
        Err(error) => failed(err, &error),
    }
}

fn print(
    format: Format,
    found: &Found,
    selection: &Selection,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> io::Result<u8> {
    let drivers = &found.drivers;
    match format {
        Format::Json => writeln!(out, "{}", serde_json::to_string_pretty(drivers)?)?,
        Format::Yaml => write!(out, "{}", serde_saphyr::to_string(drivers).map_err(io::Error::other)?)?,
        Format::Name => drivers.iter().try_for_each(|driver| writeln!(out, "{}", plain(&driver.submission_id)))?,
        Format::Text if drivers.is_empty() => {}
        Format::Text => {
            let states = drivers.iter().map(|driver| (driver, driver.state));
            lines(states, usize::MAX, output::has_colors()).iter().try_for_each(|line| writeln!(out, "{line}"))?;
        }
    }
    for (id, why) in &found.missing {
        writeln!(err, "error: {}", one_line(&missing(selection, id, *why)))?;
    }
    if drivers.is_empty() && found.missing.is_empty() && format == Format::Text {
        let place = selection.namespace.as_ref().map_or_else(String::new, |name| format!(" in namespace {name}"));
        writeln!(err, "no drivers{place}")?;
    }
    Ok(if found.missing.is_empty() { OK } else { FAILED })
}
