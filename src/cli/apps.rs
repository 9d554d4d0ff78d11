//! `spark-usher apps`: every application: how it is, its executors, and why it lacks some.

use std::collections::HashMap;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use jiff::Timestamp;

use super::driver_table::painted;
use super::live::{self, LiveView};
use super::output::{OK, Output, aligned, block_on, failed, has_colors, one_line, size};
use super::query::{Found, Source};
use usher_report::views::{self, AppReport, AppStatus};
use usher_runtime::clock;
use usher_spark::text::{first_line, squeezed};
use usher_spark::time::{self, ago};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    source: Source,
    /// Output format. text fits a terminal; in a pipe, and with wide, every column is complete.
    #[arg(long, short, value_enum, default_value = "text")]
    output: Output,
    /// On a terminal, also show applications that have ended.
    #[arg(long, short)]
    ended: bool,
    /// Show the table until Ctrl-C: in place on a terminal; in a pipe again whenever something has changed, as one line with -o json.
    #[arg(long, short)]
    watch: bool,
}

pub(super) fn run(args: Args, out: &mut dyn Write, err: &mut dyn Write) -> io::Result<u8> {
    let args = &Args { source: args.source.in_namespace(), ..args };
    if args.watch {
        return watch(args, out, err);
    }
    match block_on(read(&args.source)) {
        Ok(Found { answer: apps, caution, .. }) => {
            if let Some(caution) = caution {
                writeln!(err, "warning: {caution}")?;
            }
            args.output.write(&apps, names(&apps), out, |out| match apps.is_empty() {
                true => writeln!(err, "no Spark applications{}", args.source.place_and_hint()),
                false => lines(&apps, args).iter().try_for_each(|line| writeln!(out, "{line}")),
            })?;
            Ok(OK)
        }
        Err(error) => failed(err, &error),
    }
}

/// What other commands accept.
fn names(apps: &[AppReport]) -> impl Iterator<Item = String> {
    apps.iter().map(AppReport::id)
}

async fn read(source: &Source) -> anyhow::Result<Found<Vec<AppReport>>> {
    let namespace = source.namespace.as_deref();
    let query = format!("/debug/apps?{}", source.namespace_query().trim_start_matches('&'));
    source.query(&query, |snapshot, history| views::apps(snapshot, history, namespace, clock::now())).await
}

/// How often the table is read from a running spark-usher, and by lists of all pods.
const PERIOD: Duration = Duration::from_secs(2);
const PERIOD_OF_LISTS: Duration = Duration::from_secs(10);

/// The table until Ctrl-C.
fn watch(args: &Args, out: &mut dyn Write, err: &mut dyn Write) -> io::Result<u8> {
    let period = if args.source.replica.is_some() { PERIOD } else { PERIOD_OF_LISTS };
    let view = async || {
        let Found { answer: apps, caution, .. } = read(&args.source).await?;
        let content = serde_json::to_string(&apps)?;
        let mut shown: Vec<String> = caution.map(|caution| format!("warning: {caution}")).into_iter().collect();
        match args.output {
            Output::Json => shown = vec![content.clone()],
            Output::Yaml => shown = vec![format!("---\n{}", serde_saphyr::to_string(&apps)?.trim_end())],
            Output::Name => shown = names(&apps).collect(),
            Output::Text | Output::Wide if apps.is_empty() => {
                shown.push(format!("no Spark applications{}", args.source.place_and_hint()));
            }
            Output::Text | Output::Wide => shown.extend(lines(&apps, args)),
        }
        Ok(LiveView { content, lines: shown })
    };
    block_on(async { Ok(live::show(period, args.output.is_text(), view, out, err).await) })
        .unwrap_or_else(|error| Err(io::Error::other(error)))
}

/// The table: what needs attention first. A terminal has no room for what has ended.
fn lines(apps: &[AppReport], args: &Args) -> Vec<String> {
    let mut apps: Vec<&AppReport> = apps.iter().collect();
    apps.sort_by_key(|app| app.urgency());
    let now = clock::now();
    if args.output == Output::Text && io::stdout().is_terminal() {
        let is_shown = |app: &&AppReport| args.ended || app.status() != AppStatus::Ended;
        let (shown, left_out): (Vec<_>, Vec<_>) = apps.into_iter().partition(is_shown);
        return for_terminal(&shown, &left_out, now);
    }
    wide(&apps, now)
}

fn for_terminal(shown: &[&AppReport], left_out: &[&AppReport], now: Timestamp) -> Vec<String> {
    let table = if shown.is_empty() { Vec::new() } else { narrow(shown, usize::from(size().0), has_colors(), now) };
    let ended = match left_out.len() {
        0 => None,
        1 => Some("1 application has ended: --ended shows it".to_owned()),
        count => Some(format!("{count} applications have ended: --ended shows them")),
    };
    table.into_iter().chain(ended).collect()
}

/// All columns. An empty cell is `-`, so that a column is never missing.
fn wide(apps: &[&AppReport], now: Timestamp) -> Vec<String> {
    let head = [
        "NAMESPACE",
        "NAME",
        "STATUS",
        "RUNNING",
        "TARGET",
        "LACKS",
        "STATES",
        "AGE",
        "SINCE",
        "ID",
        "DRIVER",
        "LAST EXIT",
        "WHY",
    ];
    let rows = apps.iter().map(|app| {
        let target = app.target.as_ref();
        let target = target.map(|target| format!("{}{}", if target.at_least { "≥" } else { "" }, target.count));
        let driver = app.driver.pod.as_ref().map(|pod| format!("{pod} ({})", super::why::driver_state(app)));
        let last = app.exits.first().map(|exit| format!("{} {} {}", ago(&exit.at, now), exit.pod, exit.cause));
        let cells = [
            app.namespace.clone(),
            app.shown_name().to_owned(),
            app.status().as_str().to_owned(),
            app.running().to_string(),
            target.unwrap_or_default(),
            app.lacking().text(),
            app.states_text(),
            age(app.started.as_deref(), now),
            age(app.since(), now),
            app.app.clone(),
            driver.unwrap_or_else(|| app.driver_state().to_owned()),
            last.unwrap_or_default(),
            one_line(&app.remark()),
        ];
        cells.map(|cell| if cell.is_empty() { "-".to_owned() } else { cell }).to_vec()
    });
    aligned(&std::iter::once(head.map(str::to_owned).to_vec()).chain(rows).collect::<Vec<_>>(), 0)
}

fn age(time: Option<&str>, now: Timestamp) -> String {
    let time = time.and_then(|time| time.parse::<Timestamp>().ok());
    time.map_or_else(String::new, |since| time::age(now.duration_since(since).as_secs()))
}

/// The longest reason in a row.
const MAX_WHY: usize = 160;
/// How much of a terminal's width the reason has at least, in per cent; names are cut for it.
const WHY_PER_CENT: usize = 40;
/// How much of an id is shown beside a name.
const SHORT_ID: usize = 14;
/// The shortest name to which names are cut.
const MIN_NAME: usize = 16;
/// From this width on, the numbers of executors have a column beside the status, which has what is lacking.
const WITH_NUMBERS: usize = 76;

/// The first cell of each row: `NAMESPACE:NAME`, followed by the shortened id where several applications have that name.
fn titles(apps: &[&AppReport]) -> Vec<String> {
    let names = || apps.iter().map(|app| format!("{}:{}", app.namespace, app.shown_name()));
    let mut counts: HashMap<String, usize> = HashMap::new();
    names().for_each(|name| *counts.entry(name).or_default() += 1);
    let title = |(name, app): (String, &&AppReport)| match counts.get(&name) {
        Some(2..) => format!("{name} {}", squeezed(&app.app, SHORT_ID)),
        _ => name,
    };
    names().zip(apps).map(title).collect()
}

/// For a terminal of this width: what matters most comes first, and each line fits.
fn narrow(apps: &[&AppReport], width: usize, has_colors: bool, now: Timestamp) -> Vec<String> {
    let has_numbers = width >= WITH_NUMBERS;
    let row = |name: String, status: String, numbers: String, since: String, why: String| {
        let numbers = has_numbers.then_some(numbers);
        [name, status].into_iter().chain(numbers).chain([since, why]).collect::<Vec<_>>()
    };
    let head = ["APPLICATION", "STATUS", "EXECUTORS", "SINCE", "WHY"].map(str::to_owned);
    let [a, b, c, d, e] = head;
    let mut rows = vec![row(a, b, c, d, e)];
    rows.extend(apps.iter().zip(titles(apps)).map(|(app, title)| {
        let since = age(app.since().or(app.started.as_deref()), now);
        let why = first_line(&app.remark(), MAX_WHY);
        row(title, app.status_text(), app.running_text(), since, why)
    }));
    let widest = |rows: &[Vec<String>], column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or_default()
    };
    let why = if has_numbers { 4 } else { 3 };
    let others: usize = (1..why).map(|column| widest(&rows, column) + 2).sum();
    let max = width.saturating_sub(others + 2 + width * WHY_PER_CENT / 100).max(MIN_NAME);
    rows.iter_mut().filter_map(|row| row.first_mut()).for_each(|name| *name = squeezed(name, max));
    let begin = widest(&rows, 0) + 2;
    let states = std::iter::once(String::new()).chain(apps.iter().map(|app| app.status_text()));
    let fitted = aligned(&rows, 0).into_iter().map(|line| first_line(&line, width));
    fitted.zip(states).map(|(line, state)| if has_colors { painted(&line, begin, &state) } else { line }).collect()
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

    fn now() -> Timestamp {
        "2026-11-24T10:00:00Z".parse().unwrap()
    }

    #[test]
    fn each_line_fits_the_terminal_and_shows_what_an_application_lacks_and_why() {
        let hash = app("spark-0123456789abcdef0123456789abcdef");
        let named = AppReport { name: "nightly-etl".to_owned(), ..app("spark-0123456789abcdef0123456789abcdef") };
        for width in [60, 80, 200] {
            let lines = narrow(&[&hash, &named], width, false, now());
            assert!(lines.iter().all(|line| line.chars().count() <= width), "{width}: {lines:?}");
            assert!(lines[0].contains("STATUS") && lines[0].contains("WHY"), "{lines:?}");
            assert_eq!(lines[0].contains("EXECUTORS"), width > 60, "{lines:?}");
            assert!(lines[1].starts_with("team-a:spa") && lines[1].contains("  lacks 11  "), "{lines:?}");
            assert!(lines[1].contains("No node has room (10"), "{lines:?}");
            assert!(lines[2].starts_with("team-a:nig") && !lines[2].contains("abcdef"), "{lines:?}");
        }
        let other = AppReport { app: "spark-fedcba9876543210".to_owned(), ..named.clone() };
        let twins = narrow(&[&named, &other], 120, false, now());
        assert!(twins[1].starts_with("team-a:nightly-etl spark-012…cdef  lacks"), "{twins:?}");
        assert!(twins[2].starts_with("team-a:nightly-etl spark-fed…3210  lacks"), "{twins:?}");
        let colored = narrow(&[&named], 80, true, now());
        assert!(colored[1].contains("\x1b[31mlacks 11\x1b[0m") && !colored[0].contains('\x1b'), "{colored:?}");
    }

    #[test]
    fn a_terminal_leaves_out_what_has_ended_and_says_so() {
        let named = AppReport { name: "nightly-etl".to_owned(), ..app("spark-1") };
        let lines = for_terminal(&[&named], &[&named, &named], now());
        assert_eq!((lines.len(), lines[2].as_str()), (3, "2 applications have ended: --ended shows them"));
        assert_eq!(for_terminal(&[], &[&named], now()), ["1 application has ended: --ended shows it"]);
        assert_eq!(for_terminal(&[&named], &[], now()).len(), 2);
    }

    #[test]
    fn wide_table_has_every_column_whatever_the_applications_are() {
        let named = AppReport { name: "nightly-etl".to_owned(), ..app("spark-0123456789abcdef0123456789abcdef") };
        let lines = wide(&[&named], now());
        let cells: Vec<&str> = lines[1].split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
        assert_eq!(
            cells,
            [
                "team-a",
                "nightly-etl",
                "lacks",
                "1",
                "12",
                "11",
                "1 failed, 1 running",
                "-",
                "-",
                "spark-0123456789abcdef0123456789abcdef",
                "etl-driver (running)",
                "-",
                "No node has room (10): lacks cpu; starting (1)"
            ]
        );
        let head: Vec<&str> = lines[0].split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
        assert_eq!(head.len(), cells.len());
        assert_eq!(head[..8], ["NAMESPACE", "NAME", "STATUS", "RUNNING", "TARGET", "LACKS", "STATES", "AGE"]);
        assert_eq!(wide(&[], now())[0].split_whitespace().count(), head.len() + 1, "LAST EXIT has two words");
    }
}
