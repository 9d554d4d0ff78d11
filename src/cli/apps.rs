//! `spark-usher apps`: every application, its driver, its executors by state, and the latest exits.

use std::cmp::Reverse;
use std::io::{self, Write};
use std::time::Duration;

use super::live::{self, View};
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
    /// Show the table until Ctrl-C: in place on a terminal; in a pipe again whenever something has changed, as one line with -o json.
    #[arg(long, short)]
    watch: bool,
}

pub(super) fn run(args: &Args, out: &mut dyn Write, err: &mut dyn Write) -> io::Result<u8> {
    if args.watch {
        return watch(args, out, err);
    }
    match block_on(read(&args.source)) {
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

async fn read(source: &Source) -> anyhow::Result<Found<Vec<AppReport>>> {
    let namespace = source.namespace.as_deref();
    let query = format!("/debug/apps?{}", source.namespace_query().trim_start_matches('&'));
    source.query(&query, |snapshot, history| views::apps(snapshot, history, namespace, clock::now())).await
}

/// How often the table is read from a running spark-usher, and by lists of all pods.
const PERIOD: Duration = Duration::from_secs(2);
const PERIOD_OF_LISTS: Duration = Duration::from_secs(10);

/// The table until Ctrl-C: applications that lack the most executors first, because a terminal has little room.
fn watch(args: &Args, out: &mut dyn Write, err: &mut dyn Write) -> io::Result<u8> {
    let period = if args.source.debug.is_some() { PERIOD } else { PERIOD_OF_LISTS };
    let view = async || {
        let Found { answer: mut apps, caution } = read(&args.source).await?;
        let content = serde_json::to_string(&apps)?;
        apps.sort_by_key(|app| Reverse(app.shortage.as_ref().map_or(0, ShortageReport::lacking)));
        let mut lines: Vec<String> = caution.map(|caution| format!("warning: {caution}")).into_iter().collect();
        match args.output {
            Output::Json => lines = vec![content.clone()],
            Output::Text if apps.is_empty() => lines.push(format!("no Spark applications{}", args.source.place())),
            Output::Text => {
                let mut text = Vec::new();
                table(&apps, &mut text)?;
                lines.extend(String::from_utf8_lossy(&text).lines().map(str::to_owned));
            }
        }
        Ok(View { content, lines })
    };
    block_on(async { Ok(live::show(period, args.output == Output::Text, view, out, err).await) })
        .unwrap_or_else(|error| Err(io::Error::other(error)))
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
