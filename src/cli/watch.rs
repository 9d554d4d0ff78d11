//! `spark-usher watch`: what happens to applications, by their drivers' pods.

use std::io::{self, Write};

use super::drivers::{Which, candidate, find, missing};
use super::follow::{Ended, Follow, Form};
use super::output::{FAILED, INTERRUPTED, Output, block_on, failed, is_screen, one_line, unreadable, wrong};
use usher_runtime::clock;
use usher_runtime::shutdown::Interrupt;
use usher_submit::api::drivers::Found;
use usher_submit::submission::{DriverStatus, SubmissionId};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    which: Which,
    /// text: a table on a terminal, otherwise a line for each change; wide, json, name: a line for each change; yaml: a document.
    #[arg(long, short, value_enum, default_value = "text")]
    output: Output,
    /// Also print the driver's log, of one application.
    #[arg(long, short)]
    follow: bool,
    /// Print to standard error what spark-submit logs while it waits for an application, and exit with 0.
    #[arg(long, conflicts_with_all = ["follow", "output", "selector", "all_namespaces"])]
    spark_compatible: bool,
    /// With --spark-compatible: the interval of the short form, in seconds (spark.kubernetes.report.interval).
    #[arg(long, value_name = "SECONDS", default_value_t = 1, requires = "spark_compatible", value_parser = clap::value_parser!(u32).range(1..))]
    report_interval: u32,
}

impl Args {
    /// Those of `status --watch`.
    pub(super) fn of(which: Which, output: Output) -> Args {
        Args { which, output, follow: false, spark_compatible: false, report_interval: 1 }
    }
}

pub(super) fn run(args: Args, out: &mut dyn Write, err: &mut dyn Write) -> io::Result<u8> {
    let ids = match args.which.parse() {
        Ok(ids) => ids,
        Err(error) => return unreadable(err, &error),
    };
    let is_exact = !ids.is_empty() && ids.iter().all(|id| !id.is_pattern());
    if (args.follow || args.spark_compatible) && (!is_exact || ids.len() != 1) {
        let option = if args.follow { "--follow" } else { "--spark-compatible" };
        return wrong(err, &format!("one submission id or application id, without a pattern, with {option}"));
    }
    match block_on(watch(&args, ids, is_exact, out, err)) {
        Ok(code) => Ok(code),
        Err(error) => match error.downcast::<io::Error>() {
            Ok(error) => Err(error),
            Err(error) => failed(err, &error),
        },
    }
}

async fn watch(
    args: &Args,
    ids: Vec<SubmissionId>,
    is_exact: bool,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> anyhow::Result<u8> {
    let connection = args.which.server.connect().await?;
    let mut selection = args.which.selection(ids, &connection);
    let until = if is_exact {
        let found = find(&selection, &connection).await?;
        for (id, why) in &found.missing {
            writeln!(err, "error: {}", one_line(&missing(&selection, id, *why)))?;
        }
        if !found.missing.is_empty() {
            return Ok(FAILED);
        }
        let drivers = awaited(found);
        if let [_, _, ..] = &*drivers
            && (args.follow || args.spark_compatible)
        {
            let now = clock::now();
            let all: Vec<String> = drivers.iter().map(|driver| candidate(driver, now)).collect();
            anyhow::bail!("expected one application, but the name belongs to several: {}", all.join(", "));
        }
        // Application ids become names, which one watch can select.
        selection.ids = drivers.iter().filter_map(|driver| SubmissionId::parse(&driver.submission_id).ok()).collect();
        Some(drivers)
    } else {
        // A watch retries for ever: what it can never do is reported before it begins.
        find(&selection, &connection).await?;
        None
    };
    let form = match args.output {
        _ if args.spark_compatible => {
            Form::Spark { interval: std::time::Duration::from_secs(args.report_interval.into()) }
        }
        Output::Text if is_screen() && !args.follow => Form::Table,
        Output::Text | Output::Wide => Form::Lines,
        output => Form::Data(output),
    };
    let is_spark = args.spark_compatible;
    let follow = Follow { client: &connection.client, selection, until, form, log: args.follow };
    let ended = super::follow::follow(follow, Interrupt::listen(INTERRUPTED)?, out, err).await?;
    Ok(match ended {
        // Patterns are watched until Ctrl-C.
        Ended::Interrupted if !is_exact => super::output::OK,
        ended => ended.code(is_spark),
    })
}

/// The drivers that are watched until they have ended: of the runs of an application those that have not, else the last.
fn awaited(mut found: Found) -> Vec<DriverStatus> {
    for (_, runs) in &mut found.runs {
        if runs.iter().any(|run| !run.is_over) {
            runs.retain(|run| !run.is_over);
        } else {
            runs.truncate(1);
        }
    }
    found.into_all().0
}
