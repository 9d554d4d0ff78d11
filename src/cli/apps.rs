//! `spark-usher apps`: every application, its driver, its executors by state, and how the last of them ended.

use std::io::{self, Write};

use super::look::Source;
use crate::lifecycle::report::{self, AppReport};
use crate::spark::state::ExecutorPodState;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    source: Source,
    /// How the answer looks.
    #[arg(long, short, value_enum, default_value = "text")]
    output: super::Output,
}

pub(super) fn run(args: &Args, out: &mut dyn Write, err: &mut dyn Write) -> io::Result<u8> {
    let namespace = args.source.namespace.as_deref();
    let query = format!("/debug/apps?{}", args.source.namespace_query().trim_start_matches('&'));
    let asked = super::block_on(args.source.ask(&query, |snapshot, exits| report::apps(snapshot, exits, namespace)));
    match asked {
        Ok(apps) => {
            match args.output {
                super::Output::Json => writeln!(out, "{}", serde_json::to_string_pretty(&apps)?)?,
                super::Output::Text => table(&apps, out)?,
            }
            Ok(super::OK)
        }
        Err(error) => super::failed(err, &error),
    }
}

const HEAD: [&str; 9] =
    ["NAMESPACE", "APP", "DRIVER", "PENDING", "RUNNING", "ENDING", "FAILED", "SUCCEEDED", "LAST END"];

fn table(apps: &[AppReport], out: &mut dyn Write) -> io::Result<()> {
    if apps.is_empty() {
        return writeln!(out, "no Spark applications");
    }
    let count = |app: &AppReport, states: &[ExecutorPodState]| {
        states
            .iter()
            .map(|state| app.executors.get(state.as_str()).copied().unwrap_or_default())
            .sum::<usize>()
            .to_string()
    };
    let rows = apps.iter().map(|app| {
        let driver = match &app.driver.pod {
            Some(pod) => format!("{pod} ({})", app.driver.life),
            None => app.driver.life.clone(),
        };
        let last =
            app.exits.first().map_or_else(String::new, |exit| format!("{} {} {}", exit.at, exit.pod, exit.cause));
        use ExecutorPodState::{Deleted, Failed, Pending, Running, Succeeded, Terminating};
        [
            app.namespace.clone(),
            app.app.clone(),
            driver,
            count(app, &[Pending]),
            count(app, &[Running]),
            count(app, &[Terminating, Deleted]),
            count(app, &[Failed]),
            count(app, &[Succeeded]),
            last,
        ]
    });
    let rows: Vec<[String; 9]> = [HEAD.map(str::to_owned)].into_iter().chain(rows).collect();
    let mut widths = [0; 9];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    for row in &rows {
        let line: Vec<String> = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        writeln!(out, "{}", super::plain(line.join("  ").trim_end()))?;
    }
    Ok(())
}
