//! `spark-usher cost`: what executors cost that did no work, by namespace, application or cause.

use std::collections::BTreeMap;
use std::io::{self, Write};

use super::output::{self, OK, Output, block_on, failed, narrowed};
use super::query::{Found, Source};
use usher_report::views::{CostReport, CostRow, core_hours, gib_hours};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    source: Source,
    /// What each line is about.
    #[arg(long, value_enum, default_value = "namespace")]
    by: By,
    /// Output format.
    #[arg(long, short, value_enum, default_value = "text")]
    output: Output,
}

/// What a line of costs is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum By {
    /// A namespace and a cause.
    Namespace,
    /// An application and a cause.
    Application,
    /// A cause.
    Cause,
}

pub(super) fn run(args: Args, out: &mut dyn Write, err: &mut dyn Write) -> io::Result<u8> {
    let args = &Args { source: args.source.in_namespace(), ..args };
    let query = format!("/debug/cost?{}", args.source.namespace_query().trim_start_matches('&'));
    match block_on(args.source.ask::<CostReport>(&query)) {
        Ok(Found { answer: report, caution, .. }) => {
            if let Some(caution) = caution {
                writeln!(err, "warning: {caution}")?;
            }
            let mut names: Vec<String> = report.applications.iter().filter_map(CostRow::id).collect();
            names.dedup();
            args.output.write(&report, names, out, |out| print(&report, args, out))?;
            Ok(OK)
        }
        Err(error) => failed(err, &error),
    }
}

fn print(report: &CostReport, args: &Args, out: &mut dyn Write) -> io::Result<()> {
    let is_empty = report.namespaces.is_empty() && report.given_back.is_empty();
    let Some(since) = report.since.as_ref().filter(|_| !is_empty) else {
        return writeln!(
            out,
            "nothing measured{}: no executor without work was observed by this replica as leader",
            args.source.place()
        );
    };
    let key = |row: &CostRow| match args.by {
        By::Namespace => vec![row.namespace.clone(), row.cause.clone()],
        By::Application => vec![
            row.namespace.clone(),
            row.name.clone().unwrap_or_default(),
            row.app.clone().unwrap_or_default(),
            row.cause.clone(),
        ],
        By::Cause => vec![row.cause.clone()],
    };
    let head: &[&str] = match args.by {
        By::Namespace => &["NAMESPACE", "CAUSE"],
        By::Application => &["NAMESPACE", "NAME", "ID", "CAUSE"],
        By::Cause => &["CAUSE"],
    };
    let rows = if args.by == By::Application { &report.applications } else { &report.namespaces };
    let mut sums: BTreeMap<Vec<String>, (f64, f64)> = BTreeMap::new();
    for row in rows {
        let sum = sums.entry(key(row)).or_default();
        sum.0 += row.core_seconds;
        sum.1 += row.byte_seconds;
    }
    let mut sums: Vec<(Vec<String>, (f64, f64))> = sums.into_iter().collect();
    sums.sort_by(|(_, (one, _)), (_, (other, _))| other.total_cmp(one));
    writeln!(out, "requested by executors that did no work, since {since}")?;
    table(head, &sums, args.output.columns(), out)?;
    let given: Vec<(Vec<String>, (f64, f64))> = report
        .given_back
        .iter()
        .map(|row| (vec![row.namespace.clone(), row.cause.clone()], (row.core_seconds, row.byte_seconds)))
        .collect();
    if !given.is_empty() {
        writeln!(out, "\ngiven back by recovery rules, at most an hour for each deleted executor")?;
        table(&["NAMESPACE", "RULE"], &given, args.output.columns(), out)?;
    }
    Ok(())
}

fn table(head: &[&str], rows: &[(Vec<String>, (f64, f64))], columns: usize, out: &mut dyn Write) -> io::Result<()> {
    // The name says which application it is.
    let left_out: Vec<usize> = head.iter().position(|title| *title == "ID").into_iter().collect();
    let head = head.iter().copied().chain(["CORE-HOURS", "GIB-HOURS"]).map(str::to_owned).collect::<Vec<_>>();
    let cells = rows.iter().map(|(key, (cores, bytes))| {
        let amounts = [core_hours(*cores), gib_hours(*bytes)];
        key.iter().cloned().chain(amounts).collect::<Vec<_>>()
    });
    let all: Vec<Vec<String>> = std::iter::once(head).chain(cells).collect();
    output::table(&narrowed(all, columns, &left_out), 2, out)
}
