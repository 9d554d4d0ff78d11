//! `spark-usher kill`: stops applications by deleting their drivers' pods; the garbage collector deletes what those own.

use std::collections::BTreeMap;
use std::io::{self, BufRead, IsTerminal, Write};
use std::pin::pin;
use std::time::Duration;

use futures::StreamExt;

use super::api_server::Connection;
use super::drivers::{Which, candidate, find, missing};
use super::output::{FAILED, INTERRUPTED, OK, UNREADABLE, block_on, failed, one_line, plain, unreadable, wrong};
use super::spark_compatible;
use usher_runtime::clock;
use usher_runtime::shutdown::Interrupt;
use usher_submit::api::drivers::{Seen, Selection, delete_all};
use usher_submit::submission::{DriverStatus, SubmissionId, Tracker};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    which: Which,
    /// Delete without a question. Needed where there is no terminal for patterns, for labels, and for the name of an application that runs
    /// more than once.
    #[arg(long, short)]
    yes: bool,
    /// Seconds that a driver has to stop; the default is its pod's own.
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true)]
    grace_period: Option<u32>,
    /// With a pattern, labels or an application's name: also delete drivers that have ended, and with them their logs.
    #[arg(long)]
    include_ended: bool,
    /// Print what would be deleted, and delete nothing.
    #[arg(long)]
    dry_run: bool,
    /// Wait until the pods are gone.
    #[arg(long)]
    wait: bool,
    /// With --wait: fail after this many seconds.
    #[arg(long, value_name = "SECONDS", requires = "wait")]
    timeout: Option<u64>,
    /// Do and print exactly what `spark-submit --kill` does, without a question, and exit with 0: a name that ends with * and has no
    /// namespace stands for drivers of all namespaces, if the context of the kubeconfig names none. Pods that are no drivers are not deleted.
    #[arg(long, conflicts_with_all = ["yes", "include_ended", "dry_run", "wait", "timeout", "selector", "all_namespaces"])]
    spark_compatible: bool,
}

pub(super) fn run(args: &Args, out: &mut dyn Write, err: &mut dyn Write) -> io::Result<u8> {
    if args.spark_compatible {
        return spark_compatible::kill(&args.which, args.grace_period, err);
    }
    let ids = match args.which.parse() {
        Ok(ids) => ids,
        Err(error) => return unreadable(err, &error),
    };
    if ids.is_empty() && args.which.selector.is_none() {
        return wrong(err, "the ids of applications, or --selector LABELS; '*' stands for all of a namespace");
    }
    let is_exact = !ids.is_empty() && ids.iter().all(|id| !id.is_pattern());
    let may_ask = io::stdin().is_terminal() && io::stderr().is_terminal();
    if !args.yes && !args.dry_run && !is_exact && !may_ask {
        let without = "--yes with a pattern or labels where there is no terminal; --dry-run prints what they select";
        return wrong(err, without);
    }
    match block_on(kill(args, ids, may_ask && !args.yes, out, err)) {
        Ok(code) => Ok(code),
        Err(error) => failed(err, &error),
    }
}

async fn kill(
    args: &Args,
    ids: Vec<SubmissionId>,
    asks: bool,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> anyhow::Result<u8> {
    let connection = args.which.server.connect().await?;
    let selection = args.which.selection(ids, &connection);
    let found = find(&selection, &connection).await?;
    for (id, why) in &found.missing {
        writeln!(err, "error: {}", one_line(&missing(&selection, id, *why)))?;
    }
    for (id, driver) in &found.of_executors {
        let driver = candidate(driver, clock::now());
        writeln!(
            err,
            "error: {} is an executor, and only drivers are deleted: its driver is {}",
            plain(&id.text),
            one_line(&driver)
        )?;
    }
    let mut code = if found.missing.is_empty() && found.of_executors.is_empty() { OK } else { FAILED };
    let is_named = |driver: &DriverStatus| {
        selection.ids.iter().filter(|id| !id.is_pattern()).any(|id| selection.names(id, driver))
    };
    let wanted = |driver: &DriverStatus| !driver.is_over || args.include_ended || is_named(driver);
    // Several drivers may have one name, and the user may mean one of them. Those that are being deleted do not count.
    let is_meant = |run: &&DriverStatus| wanted(run) && run.state != "terminating";
    let ambiguous = found.runs.iter().find(|(_, runs)| runs.iter().filter(is_meant).count() > 1);
    if let Some((id, runs)) = ambiguous.filter(|_| !args.yes && !args.dry_run && !asks) {
        let all: Vec<String> = runs.iter().filter(is_meant).map(|run| candidate(run, clock::now())).collect();
        writeln!(
            err,
            "error: {} is the name of {} applications: {}; expected the submission id of one, or --yes, which deletes all of them",
            plain(&id.text),
            all.len(),
            one_line(&all.join(", "))
        )?;
        return Ok(UNREADABLE);
    }
    let all = found.runs.into_iter().flat_map(|(_, runs)| runs).chain(found.drivers);
    // A driver may be named twice, by its application and by its own name.
    let all: BTreeMap<(String, String), DriverStatus> =
        all.map(|driver| ((driver.namespace.clone(), driver.name.clone()), driver)).collect();
    let (drivers, ended): (Vec<DriverStatus>, Vec<_>) = all.into_values().partition(wanted);
    if !ended.is_empty() {
        let (left, them) = if ended.len() == 1 { ("has ended is", "it") } else { ("have ended are", "them") };
        writeln!(err, "{} that {left} left out; --include-ended deletes {them}, too", count(ended.len()))?;
    }
    if drivers.is_empty() {
        if found.missing.is_empty() {
            writeln!(err, "no driver to delete")?;
        }
        return Ok(code);
    }
    if args.dry_run || asks {
        // The list belongs to the question.
        let to: &mut dyn Write = if asks { err } else { out };
        for driver in &drivers {
            let line = format!("{}  {}  {}", driver.submission_id, driver.state, driver.detail());
            writeln!(to, "{}", one_line(line.trim_end()))?;
        }
        to.flush()?;
    }
    if args.dry_run {
        writeln!(err, "{} would be deleted", count(drivers.len()))?;
        return Ok(code);
    }
    if asks && !is_confirmed(&format!("Delete {}? [y/N] ", count(drivers.len())), err)? {
        writeln!(err, "nothing was deleted")?;
        return Ok(FAILED);
    }
    let mut interrupt = Interrupt::listen(INTERRUPTED)?;
    let mut gone: Vec<DriverStatus> = Vec::new();
    let mut deletions = pin!(delete_all(&connection.client, &drivers, args.grace_period));
    loop {
        let next = tokio::select! {
            biased;
            () = interrupt.wait() => {
                writeln!(err, "interrupted: {} of {} were deleted", gone.len(), count(drivers.len()))?;
                return Ok(INTERRUPTED);
            }
            next = deletions.next() => next,
        };
        let Some((driver, deleted)) = next else { break };
        let id = plain(&driver.submission_id);
        // The reader of the output may have closed it: the deletions continue, and the exit code says how they ended.
        let _ = match deleted {
            Ok(true) => writeln!(out, "{id} deleted"),
            Ok(false) => writeln!(out, "{id} was gone already"),
            Err(error) => {
                code = FAILED;
                let error = one_line(&error.to_string());
                let _ = writeln!(err, "error: cannot delete pod {}/{}: {error}", driver.namespace, plain(&driver.name));
                continue;
            }
        };
        gone.push(driver.clone());
    }
    if args.wait && !gone.is_empty() {
        return Ok(code.max(wait(args, &connection, &gone, interrupt, out, err).await?));
    }
    Ok(code)
}

fn count(drivers: usize) -> String {
    if drivers == 1 { "1 driver".to_owned() } else { format!("{drivers} drivers") }
}

fn is_confirmed(question: &str, err: &mut dyn Write) -> io::Result<bool> {
    write!(err, "{question}")?;
    err.flush()?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}

/// Waits until the pods are gone.
async fn wait(
    args: &Args,
    connection: &Connection,
    drivers: &[DriverStatus],
    mut interrupt: Interrupt,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> anyhow::Result<u8> {
    // A pod that was created anew has the same name: only uids count.
    let ids = drivers.iter().filter_map(|driver| SubmissionId::parse_as_spark(&driver.submission_id).ok()).collect();
    let selection = Selection { ids, namespace: None, labels: None };
    let mut tracker = Tracker::default();
    for driver in drivers {
        tracker.observe(driver.clone().without_pod());
    }
    let mut seen = pin!(selection.watch(&connection.client));
    let mut deadline = pin!(async {
        match args.timeout {
            Some(seconds) => tokio::time::sleep(Duration::from_secs(seconds)).await,
            None => std::future::pending().await,
        }
    });
    let mut left: Vec<&DriverStatus> = drivers.iter().collect();
    let all = left.len();
    let mut is_old = false;
    while !left.is_empty() {
        let event = tokio::select! {
            biased;
            () = interrupt.wait() => {
                writeln!(err, "{} of {all} are still there", left.len())?;
                return Ok(INTERRUPTED);
            }
            () = &mut deadline => {
                let ids: Vec<String> = left.iter().take(MAX_NAMED).map(|driver| plain(&driver.submission_id)).collect();
                let seconds = args.timeout.unwrap_or_default();
                writeln!(err, "error: {} of {all} are still there after {seconds} s: {}", left.len(), ids.join(", "))?;
                return Ok(FAILED);
            }
            event = seen.next() => event,
        };
        let was_old = std::mem::replace(&mut is_old, false);
        match event {
            None => break,
            Some(Seen::Listing(namespace)) => tracker.begin_list(namespace.as_deref()),
            Some(Seen::Listed(namespace)) => drop(tracker.end_list(namespace.as_deref())),
            Some(Seen::Driver(driver)) => drop(tracker.observe(driver.without_pod())),
            Some(Seen::Deleted(uid)) => drop(tracker.delete(&uid)),
            Some(Seen::UpToDate) => {}
            Some(Seen::Interrupted { message, is_denied: true }) => anyhow::bail!("cannot wait: {message}"),
            Some(Seen::Interrupted { message, .. }) => {
                is_old = true;
                if !was_old {
                    writeln!(err, "warning: not up to date, trying again: {}", one_line(&message))?;
                }
            }
        }
        let (gone, rest): (Vec<_>, Vec<_>) = left.into_iter().partition(|driver| tracker.is_gone(&driver.uid));
        for (at, driver) in gone.iter().enumerate() {
            let done = all - rest.len() - gone.len() + at + 1;
            let _ = writeln!(out, "{} is gone ({done} of {all})", plain(&driver.submission_id));
        }
        left = rest;
        let _ = out.flush();
    }
    Ok(OK)
}

/// At most this many drivers are named in a message.
const MAX_NAMED: usize = 20;
