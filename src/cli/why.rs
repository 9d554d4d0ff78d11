//! `spark-usher why POD|APP`: why an executor exited, hangs or does not start; for an application, all its anomalies.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};

use anstream::{AutoStream, ColorChoice};
use jiff::Timestamp;

use super::output::{FAILED, OK, Output, UNREADABLE, block_on, failed, plain, report_line};
use super::query::{Found, Source};
use super::timeline::{self, Screen};
use usher_report::views::{
    self, AppReport, DriverViewReport, ExecutorReport, ExitReport, HistoryEntry, HistoryReport, Lacking, Of, Timeline,
    WhyReport,
};
use usher_runtime::clock;
use usher_spark::text::capitalized;
use usher_spark::time::ago;
use usher_submit::submission::{Names, SubmissionId};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// `[NAMESPACE:]NAME`: an application by its name or id, a driver's pod, or an executor's.
    #[arg(value_parser = name)]
    name: Name,
    #[command(flatten)]
    source: Source,
    /// Output format.
    #[arg(long, short, value_enum, default_value = "text")]
    output: Output,
}

/// A name, and the namespace that a submission id has.
#[derive(Clone, Debug)]
struct Name {
    namespace: Option<String>,
    name: String,
}

fn name(text: &str) -> Result<Name, String> {
    match SubmissionId::parse(text) {
        Ok(SubmissionId { namespace, names: Names::Exact(name), .. }) => Ok(Name { namespace, name }),
        Ok(_) => Err("expected one name, without a pattern".to_owned()),
        Err(_) => Err(
            "expected [NAMESPACE:]NAME, the name or the id of an application (label spark-app-selector), or of a pod"
                .to_owned(),
        ),
    }
}

pub(super) fn run(mut args: Args, out: &mut dyn Write, err: &mut dyn Write) -> io::Result<u8> {
    match (&args.name.namespace, &args.source.namespace) {
        (Some(named), Some(other)) if named != other => {
            writeln!(err, "error: expected one namespace: the id says {named}, --namespace says {other}")?;
            return Ok(UNREADABLE);
        }
        (Some(named), _) => args.source.namespace = Some(named.clone()),
        _ => {}
    }
    args.source = args.source.in_namespace();
    let (args, name) = (&args, args.name.name.as_str());
    let namespace = args.source.namespace.as_deref();
    let query = format!("/debug/why?name={name}{}", args.source.namespace_query());
    let local = |snapshot: &_, history: &_| views::why(snapshot, history, name, namespace, clock::now());
    let read = async {
        let mut found = args.source.query(&query, local).await?;
        let problem = if found.answer.is_empty() {
            None
        } else {
            super::pod_history::add(&args.source, &mut found.answer, !found.by_replica).await
        };
        Ok((found, problem))
    };
    let (Found { answer: found, caution, by_replica, since }, problem) = match block_on(read) {
        Ok(found) => found,
        Err(error) => return failed(err, &error),
    };
    if let Some(problem) = problem {
        writeln!(err, "warning: the history is not complete: it lacks {}", plain(&problem))?;
    }
    if let Some(caution) = caution {
        writeln!(err, "warning: {caution}")?;
    }
    if found.is_empty() && !matches!(args.output, Output::Json | Output::Yaml) {
        writeln!(err, "{}", plain(&nothing(args, by_replica, since.as_deref())))?;
        return Ok(FAILED);
    }
    args.output.write(&found, names(&found), out, |out| {
        // Not in a pipe, and not with NO_COLOR.
        let color = AutoStream::choice(&io::stdout()) != ColorChoice::Never;
        print_report(&found, clock::now(), Screen { columns: args.output.columns(), color }, out)
    })?;
    Ok(if found.is_empty() { FAILED } else { OK })
}

/// The applications, and the pods with the namespaces of theirs.
fn names(found: &WhyReport) -> impl Iterator<Item = String> {
    let shown = |app: &str, pod: &str| format!("{}:{pod}", app.split('/').next().unwrap_or_default());
    let executors = found.executors.iter().map(move |executor| shown(&executor.app, &executor.what.pod));
    let exits = found.exits.iter().map(move |exit| shown(&exit.app, &exit.what.pod));
    let pods: BTreeSet<String> = executors.chain(exits).collect();
    found.apps.iter().map(AppReport::id).chain(pods)
}

/// Why there is no result.
fn nothing(args: &Args, by_replica: bool, since: Option<&str>) -> String {
    let (name, place) = (&args.name.name, args.source.place());
    // With --replica, the API server may be unreachable.
    let unselected = if args.source.replica.is_none() { block_on(args.source.unselected_pod(name)) } else { Ok(None) };
    let hint = match (unselected, since) {
        (Ok(Some(unselected)), _) => return format!("no information about {name}: {unselected}"),
        (_, Some(since)) => {
            format!("it may have exited before {since}, since when this replica remembers exits, or too long ago")
        }
        (Err(error), None) if !by_replica => format!("{error:#}"),
        _ => "its pod may be deleted: the leader of a running spark-usher still reports its exit".to_owned(),
    };
    let everywhere = if place.is_empty() { "" } else { "; -A looks everywhere" };
    format!("no information about {name}: no Spark pod and no application{place} has that name; {hint}{everywhere}")
}

fn print_report(found: &WhyReport, now: Timestamp, screen: Screen, out: &mut dyn Write) -> io::Result<()> {
    for row @ Of { what: executor, .. } in &found.executors {
        report_line!(out, "{}  executor {} of {}", executor.pod, number(executor.id), row.title())?;
        present(executor, out)?;
        // An executor that exited and whose pod still exists is shown once.
        for exit in found.exits.iter().filter(|exit| exit.what.uid == executor.uid) {
            report_line!(out, "  exited    {}", when(&exit.what.at, now))?;
            ended(&exit.what, false, out)?;
        }
    }
    let is_there = |uid: &str| found.executors.iter().any(|executor| executor.what.uid == uid);
    for row @ Of { what: exit, .. } in found.exits.iter().filter(|exit| !is_there(&exit.what.uid)) {
        let app = row.title();
        report_line!(out, "{}  executor {} of {app}; its pod no longer exists", exit.pod, number(exit.id))?;
        report_line!(out, "  exited    {}", when(&exit.at, now))?;
        ended(exit, true, out)?;
    }
    let mut apps: Vec<&AppReport> = found.apps.iter().collect();
    apps.sort_by_key(|app| app.urgency());
    for app in apps {
        application(app, now, out)?;
        let is_its = |timeline: &&Timeline| timeline.namespace == app.namespace && timeline.app == app.app;
        for timeline in found.timelines.iter().filter(is_its) {
            timeline::draw(timeline, now, screen, out)?;
        }
    }
    found.histories.iter().try_for_each(|history| print_history(history, out))
}

/// A history, a line for each entry.
fn print_history(history: &HistoryReport, out: &mut dyn Write) -> io::Result<()> {
    report_line!(out, "history of {}", history.of)?;
    for HistoryEntry { at, by, what } in &history.entries {
        report_line!(out, "  {at}  {by}: {what}")?;
    }
    Ok(())
}

fn number(id: Option<u64>) -> String {
    id.map_or_else(|| "without an id".to_owned(), |id| id.to_string())
}

fn when(time: &str, now: Timestamp) -> String {
    format!("{time}, {}", ago(time, now))
}

fn present(executor: &ExecutorReport, out: &mut dyn Write) -> io::Result<()> {
    report_line!(out, "  state     {}", executor.state)?;
    if let Some(node) = &executor.node {
        report_line!(out, "  node      {node}")?;
    }
    if let Some(why) = &executor.why {
        report_line!(out, "  why       {why}")?;
    }
    if let Some(done) = &executor.done {
        report_line!(out, "  done      {done}")?;
    }
    if let Some(recovery) = &executor.recovery {
        report_line!(out, "  recovery  {recovery}")?;
    }
    Ok(())
}

fn ended(exit: &ExitReport, with_node: bool, out: &mut dyn Write) -> io::Result<()> {
    report_line!(out, "  cause     {}: {}", exit.cause, exit.text)?;
    if !exit.detail.is_empty() {
        report_line!(out, "  detail    {}", exit.detail)?;
    }
    if let Some(node) = exit.node.as_ref().filter(|_| with_node) {
        report_line!(out, "  node      {node}")?;
    }
    if let Some(recovery) = &exit.recovery {
        report_line!(out, "  recovery  {recovery}")?;
    }
    let (blame, by_app) = match &*exit.blame {
        "application" => ("the application", true),
        "unknown" => ("unknown", false),
        _ => ("not the application", false),
    };
    let counts = if exit.spark.caused_by_app { "counts" } else { "does not count" };
    let but = if by_app == exit.spark.caused_by_app { "and" } else { "but" };
    report_line!(out, "  blame     {blame}, {but} Spark {counts} the exit as caused by the application")?;
    report_line!(out, "  Spark     {}", exit.spark.message)
}

/// The driver's state, in a word or two.
pub(super) fn driver_state(app: &AppReport) -> &str {
    match app.driver_state() {
        "gone" if app.driver.state.is_none() => "pod not found",
        state => state,
    }
}

fn application(app: &AppReport, now: Timestamp, out: &mut dyn Write) -> io::Result<()> {
    let driver = app.driver.pod.as_deref().unwrap_or("unknown pod");
    let node = app.driver.node.as_ref().map_or_else(String::new, |node| format!(" on {node}"));
    let why = app.driver.why.as_ref().map_or_else(String::new, |why| format!(": {why}"));
    report_line!(out, "{}/{}", app.namespace, app.shown_name())?;
    if app.shown_name() != app.app {
        report_line!(out, "  id        {}", app.app)?;
    }
    report_line!(out, "  driver    {driver} ({}){node}{why}", driver_state(app))?;
    let counts = |counts: &BTreeMap<String, usize>| {
        let all: Vec<String> = counts.iter().map(|(what, count)| format!("{count} {what}")).collect();
        if all.is_empty() { "none".to_owned() } else { all.join(", ") }
    };
    report_line!(out, "  executors {}", counts(&app.executors))?;
    if let Some(view) = &app.driver_view {
        report_line!(out, "  view      {}", driver_view(view, now))?;
    }
    if let Some(shortage) = &app.shortage {
        let since = shortage.since.as_ref().map_or_else(String::new, |time| format!(", since {}", when(time, now)));
        let (lacking, source) = (app.lacking().text(), &shortage.source);
        report_line!(out, "  lacks     {lacking} of {} executors ({source}){since}", shortage.target)?;
        for cause in &shortage.causes {
            let phrase = capitalized(cause.phrase());
            report_line!(out, "    {phrase} ({}){}", cause.count, colon(&cause.message))?;
            if !cause.remedy().is_empty() {
                report_line!(out, "      what to do: {}", cause.remedy())?;
            }
        }
        if !shortage.exits.is_empty() {
            report_line!(out, "    exits within 10 minutes: {}", shortage.exits)?;
        }
    } else if app.lacking() == Lacking::Unknown {
        let least = app.target.as_ref().map(|target| format!(", but at least {} ({})", target.count, target.source));
        report_line!(out, "  target    not known{}", least.unwrap_or_default())?;
    }
    if app.unowned > 0 {
        let cure = "nothing deletes them when it ends, unless it runs outside the cluster and deletes them itself";
        report_line!(
            out,
            "  owner     {} executors have no ownerReference to a driver, and their driver is not known: {cure}",
            app.unowned
        )?;
    }
    for finding in &app.findings {
        let since = ago(&finding.since, now);
        report_line!(out, "  recovery  {}: {} (since {since}); {}", finding.pod, finding.message, finding.outcome)?;
    }
    for deletion in &app.deletions {
        report_line!(
            out,
            "  deleted   {}  {} ({}){}",
            when(&deletion.at, now),
            deletion.pod,
            deletion.rule,
            colon(&deletion.message)
        )?;
    }
    for executor in &app.troubled {
        report_line!(
            out,
            "    {}  {}{}",
            executor.pod,
            executor.state,
            colon(executor.why.as_ref().or(executor.done.as_ref()).map_or("", String::as_str))
        )?;
    }
    let all: usize = app.ended.values().sum();
    if all > 0 {
        report_line!(out, "  exits     {}", counts(&app.ended))?;
    }
    for exit in &app.exits {
        report_line!(out, "    {}  {}  {}{}", when(&exit.at, now), exit.pod, exit.cause, colon(&exit.detail))?;
    }
    if all > app.exits.len() {
        report_line!(out, "    … and {} more", all - app.exits.len())?;
    }
    if app.forgotten > 0 {
        report_line!(out, "    … and {} earlier ones, which are forgotten", app.forgotten)?;
    }
    Ok(())
}

/// What a driver says about its executors, in a line.
fn driver_view(view: &DriverViewReport, now: Timestamp) -> String {
    let mut parts = vec![format!("its driver has {} executors registered ({})", view.registered, ago(&view.at, now))];
    parts.extend(view.target.map(|target| format!("it wants {target}")));
    if !view.vanished.is_empty() {
        let ids: Vec<String> = view.vanished.iter().map(u64::to_string).collect();
        parts.push(format!("it counts on executors that have no live pod: {}", ids.join(", ")));
    }
    if !view.complete {
        parts.push("its view is incomplete: it dropped events, or shows no metrics".to_owned());
    }
    parts.join("; ")
}

fn colon(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!(": {text}") }
}
