//! `spark-usher apps`: every application, its driver, its executors by state, and the latest exits.

use std::cmp::Reverse;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use jiff::Timestamp;

use super::live::{self, View};
use super::output::{self, OK, Output, block_on, failed};
use super::query::{Found, Source};
use crate::runtime::clock;
use crate::spark::state::ExecutorPodState;
use crate::text::first_line;
use crate::views::{self, AppReport, TargetReport};

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
        apps.sort_by_key(|app| Reverse((app.lacking().count(), !app.trouble().is_empty())));
        let mut lines: Vec<String> = caution.map(|caution| format!("warning: {caution}")).into_iter().collect();
        match args.output {
            Output::Json => lines = vec![content.clone()],
            Output::Text if apps.is_empty() => lines.push(format!("no Spark applications{}", args.source.place())),
            Output::Text => {
                let mut text = Vec::new();
                let table = if io::stdout().is_terminal() { narrow_table } else { table };
                table(&apps, &mut text)?;
                lines.extend(String::from_utf8_lossy(&text).lines().map(str::to_owned));
            }
        }
        Ok(View { content, lines })
    };
    block_on(async { Ok(live::show(period, args.output == Output::Text, view, out, err).await) })
        .unwrap_or_else(|error| Err(io::Error::other(error)))
}

/// Columns that are shown only if a row has something in them, and what they have otherwise.
const RARE: [(&str, &str); 7] = [
    ("TERMINATING", "0"),
    ("FAILED", "0"),
    ("SUCCEEDED", "0"),
    ("UNKNOWN", "0"),
    ("TARGET", ""),
    ("LACKS", "0"),
    ("WHY", ""),
];

/// A row of the table: the name and the content of each cell.
type Row = Vec<(&'static str, String)>;

fn table(apps: &[AppReport], out: &mut dyn Write) -> io::Result<()> {
    let now = clock::now();
    let rows: Vec<Row> = apps.iter().map(|app| row(app, now)).collect();
    print(rows, out)
}

fn row(app: &AppReport, now: Timestamp) -> Row {
    use ExecutorPodState::{Deleted, Failed, Pending, Running, Succeeded, Terminating, Unknown};
    let driver = match &app.driver.pod {
        Some(pod) => format!("{pod} ({})", super::why::driver_state(app)),
        None => app.driver_state().to_owned(),
    };
    let at_least = |target: &TargetReport| if target.at_least { "≥" } else { "" };
    let last = app.exits.first().map(|exit| format!("{} {} {}", views::ago(&exit.at, now), exit.pod, exit.cause));
    vec![
        ("NAMESPACE", app.namespace.clone()),
        ("NAME", app.shown_name().to_owned()),
        ("APP", app.app.clone()),
        ("DRIVER", driver),
        ("RUNNING", count(app, &[Running])),
        ("PENDING", count(app, &[Pending])),
        ("TERMINATING", count(app, &[Terminating, Deleted])),
        ("FAILED", count(app, &[Failed])),
        ("SUCCEEDED", count(app, &[Succeeded])),
        ("UNKNOWN", count(app, &[Unknown])),
        (
            "TARGET",
            app.target.as_ref().map_or_else(String::new, |target| format!("{}{}", at_least(target), target.count)),
        ),
        ("LACKS", app.lacking().text()),
        ("WHY", first_line(&app.trouble(), MAX_WHY)),
        ("LAST EXIT", last.unwrap_or_default()),
    ]
}

/// The longest reason in a row.
const MAX_WHY: usize = 100;
/// The longest name in a row that has to fit on a terminal.
const MAX_APP: usize = 32;

/// For a terminal, which cuts what does not fit: what matters most comes first.
fn narrow_table(apps: &[AppReport], out: &mut dyn Write) -> io::Result<()> {
    use ExecutorPodState::{Pending, Running};
    let now = clock::now();
    let rows = apps.iter().map(|app| {
        let last = app.exits.first().map(|exit| format!("{} {}", views::ago(&exit.at, now), exit.cause));
        vec![
            ("APP", squeezed(&format!("{}/{}", app.namespace, app.shown_name()), MAX_APP)),
            ("LACKS", app.lacking().text()),
            ("RUN", count(app, &[Running])),
            ("PEND", count(app, &[Pending])),
            ("DRIVER", app.driver_state().to_owned()),
            ("WHY", first_line(&app.trouble(), MAX_WHY)),
            ("LAST EXIT", last.unwrap_or_default()),
        ]
    });
    print(rows.collect(), out)
}

fn print(rows: Vec<Row>, out: &mut dyn Write) -> io::Result<()> {
    let is_shown = |at: usize, name: &str| {
        let nothing = RARE.iter().find(|(rare, _)| *rare == name).map(|(_, nothing)| *nothing);
        nothing.is_none_or(|nothing| rows.iter().any(|row| row.get(at).is_some_and(|(_, cell)| cell != nothing)))
    };
    let head = rows.first().into_iter().flatten().enumerate();
    let shown: Vec<(usize, &str)> =
        head.map(|(at, (name, _))| (at, *name)).filter(|(at, name)| is_shown(*at, name)).collect();
    let cells = |row: &Row| shown.iter().filter_map(|(at, _)| Some(row.get(*at)?.1.clone())).collect();
    let head = shown.iter().map(|(_, name)| (*name).to_owned()).collect();
    let all: Vec<Vec<String>> = std::iter::once(head).chain(rows.iter().map(cells)).collect();
    output::table(&all, 0, out)
}

fn count(app: &AppReport, states: &[ExecutorPodState]) -> String {
    let counts = states.iter().map(|state| app.executors.get(state.as_str()).copied().unwrap_or_default());
    counts.sum::<usize>().to_string()
}

/// A name, cut in its middle: applications often differ at the end of their names.
fn squeezed(name: &str, most: usize) -> String {
    let length = name.chars().count();
    if length <= most {
        return name.to_owned();
    }
    let end = most / 3;
    name.chars().take(most - 1 - end).chain(['…']).chain(name.chars().skip(length - end)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn app(name: &str) -> AppReport {
        serde_json::from_value(json!({"namespace": "team-a", "app": name, "executors": {"running": 1, "failed": 1}, "troubled": [],
            "driver": {"liveness": "alive", "pod": "etl-driver", "state": "running", "node": null, "why": null}, "ended": {}, "exits": [],
            "target": {"count": 12, "atLeast": false, "source": "spark.executor.instances"},
            "shortage": {"target": 12, "source": "spark.executor.instances", "running": 1, "pending": 0, "since": null, "causes": [
                {"cause": "unschedulable", "count": 10, "message": "lacks cpu"}, {"cause": "starting", "count": 1, "message": ""}]}}))
        .unwrap()
    }

    #[test]
    fn terminal_of_80_columns_shows_what_an_application_lacks_and_why() {
        let mut out = Vec::new();
        narrow_table(&[app("spark-0123456789abcdef0123456789abcdef")], &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<String> = text.lines().map(|line| line.chars().take(80).collect()).collect();
        assert!(lines[0].contains("LACKS") && lines[0].contains("WHY"), "{text}");
        assert!(lines[1].starts_with("team-a/spark-0123456"), "{text}");
        assert!(lines[1].contains("789abcdef  11 ") && lines[1].contains("10 unschedulable"), "{text}");
    }

    #[test]
    fn application_is_shown_by_its_name() {
        let named = AppReport { name: "nightly-etl".to_owned(), ..app("spark-0123456789abcdef0123456789abcdef") };
        let (mut narrow, mut wide) = (Vec::new(), Vec::new());
        narrow_table(std::slice::from_ref(&named), &mut narrow).unwrap();
        table(&[named], &mut wide).unwrap();
        let (narrow, wide) = (String::from_utf8(narrow).unwrap(), String::from_utf8(wide).unwrap());
        assert!(narrow.contains("team-a/nightly-etl  11 ") && !narrow.contains("abcdef"), "{narrow}");
        assert!(wide.contains("team-a     nightly-etl  spark-0123456789abcdef0123456789abcdef"), "{wide}");
    }

    #[test]
    fn table_shows_why_and_leaves_out_columns_without_content() {
        let mut out = Vec::new();
        table(&[app("spark-1")], &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("10 unschedulable, 1 starting: lacks cpu") && text.contains("FAILED"), "{text}");
        assert!(!text.contains("UNKNOWN") && !text.contains("SUCCEEDED"), "{text}");
        assert_eq!(text.lines().next().unwrap().split_whitespace().last(), Some("EXIT"));
    }
}
