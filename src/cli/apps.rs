//! `spark-usher apps`: every application, its driver, its executors by state, and the latest exits.

use std::io::{self, Write};

use super::output::{self, OK, Output, block_on, failed};
use super::query::{Found, Source};
use crate::runtime::clock;
use crate::spark::state::ExecutorPodState;
use crate::views::{self, AppReport, ShortageReport};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    source: Source,
    /// Output format.
    #[arg(long, short, value_enum, default_value = "text")]
    output: Output,
}

pub(super) fn run(args: &Args, out: &mut dyn Write, err: &mut dyn Write) -> io::Result<u8> {
    let namespace = args.source.namespace.as_deref();
    let query = format!("/debug/apps?{}", args.source.namespace_query().trim_start_matches('&'));
    let own = |snapshot: &_, history: &_| views::apps(snapshot, history, namespace, clock::now());
    match block_on(args.source.query(&query, own)) {
        Ok(Found { answer: apps, caution }) => {
            if let Some(caution) = caution {
                writeln!(err, "warning: {caution}")?;
            }
            match args.output {
                Output::Json => writeln!(out, "{}", serde_json::to_string_pretty(&apps)?)?,
                Output::Text if apps.is_empty() => writeln!(out, "no Spark applications{}", args.source.place())?,
                Output::Text => table(&apps, out)?,
            }
            Ok(OK)
        }
        Err(error) => failed(err, &error),
    }
}

const HEAD: [&str; 12] = [
    "NAMESPACE",
    "APP",
    "DRIVER",
    "TARGET",
    "PENDING",
    "RUNNING",
    "TERMINATING",
    "FAILED",
    "SUCCEEDED",
    "UNKNOWN",
    "LACKS",
    "LAST EXIT",
];
/// Columns that are shown only if a row has something in them, and what they have otherwise.
const RARE: [(&str, &str); 3] = [("TARGET", ""), ("UNKNOWN", "0"), ("LACKS", "")];

fn table(apps: &[AppReport], out: &mut dyn Write) -> io::Result<()> {
    let now = clock::now();
    let rows = apps.iter().map(|app| {
        let count = |states: &[ExecutorPodState]| {
            let counts = states.iter().map(|state| app.executors.get(state.as_str()).copied().unwrap_or_default());
            counts.sum::<usize>().to_string()
        };
        let driver = match &app.driver.pod {
            Some(pod) => format!("{pod} ({})", super::why::driver_state(&app.driver)),
            None => app.driver.liveness.clone(),
        };
        let last = app.exits.first().map(|exit| format!("{} {} {}", views::ago(&exit.at, now), exit.pod, exit.cause));
        use ExecutorPodState::{Deleted, Failed, Pending, Running, Succeeded, Terminating, Unknown};
        [
            app.namespace.clone(),
            app.app.clone(),
            driver,
            app.shortage.as_ref().map_or_else(String::new, |shortage| shortage.target.to_string()),
            count(&[Pending]),
            count(&[Running]),
            count(&[Terminating, Deleted]),
            count(&[Failed]),
            count(&[Succeeded]),
            count(&[Unknown]),
            app.shortage.as_ref().map_or_else(String::new, lacks),
            last.unwrap_or_default(),
        ]
    });
    let mut rows: Vec<Vec<String>> = [HEAD.map(str::to_owned)].into_iter().chain(rows).map(Vec::from).collect();
    for (name, nothing) in RARE {
        let at = rows.first().and_then(|head| head.iter().position(|cell| cell == name));
        if let Some(at) =
            at.filter(|at| rows.iter().skip(1).all(|row| row.get(*at).is_some_and(|cell| cell == nothing)))
        {
            rows.iter_mut().for_each(|row| _ = row.remove(at));
        }
    }
    output::table(&rows, 0, out)
}

/// Why executors do not run, in a few words: `3 unschedulable, 1 starting`.
fn lacks(shortage: &ShortageReport) -> String {
    shortage.causes.iter().map(|cause| format!("{} {}", cause.count, cause.cause)).collect::<Vec<_>>().join(", ")
}
