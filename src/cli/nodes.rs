//! `spark-usher nodes`: nodes that refuse or break executors.

use std::io::{self, Write};

use super::output::{self, FAILED, OK, Output, block_on, failed, narrowed, plain, report_line};
use super::query::{Found, Source};
use usher_report::views::{self, NodeReport, NodesReport};
use usher_runtime::clock;
use usher_spark::time::Now;
use usher_spark::time::ago;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// A node: prints what happened on it.
    name: Option<String>,
    #[command(flatten)]
    source: Source,
    /// Output format.
    #[arg(long, short, value_enum, default_value = "text")]
    output: Output,
}

pub(super) fn run(args: Args, out: &mut dyn Write, err: &mut dyn Write) -> io::Result<u8> {
    let args = &Args { source: args.source.in_namespace(), ..args };
    let name = args.name.as_deref();
    let now = || Now { at: clock::instant(), wall: clock::now() };
    let local = |snapshot: &_, history: &_| views::nodes(snapshot, history, None, now());
    match block_on(args.source.query("/debug/nodes", local)) {
        Ok(Found { answer: mut report, caution, by_replica, .. }) => {
            if let Some(caution) = caution {
                writeln!(err, "warning: {caution}")?;
            }
            if !by_replica {
                writeln!(
                    err,
                    "note: nodes are judged by the default settings and by existing pods only; the leader knows more"
                )?;
            }
            if let Some(name) = name {
                report.nodes.retain(|node| node.name == name);
            }
            let place = if by_replica { String::new() } else { args.source.place() };
            if let Some(name) = name.filter(|_| report.nodes.is_empty() && args.output.is_text()) {
                writeln!(err, "nothing is known against node {name}{place}")?;
                return Ok(FAILED);
            }
            let names = report.nodes.iter().map(|node| node.name.clone());
            args.output.write(&report, names, out, |out| match report.nodes.first().filter(|_| name.is_some()) {
                Some(node) => one(node, out),
                None => all(&report, &place, args.output.columns(), out),
            })?;
            Ok(OK)
        }
        Err(error) => failed(err, &error),
    }
}

/// Columns of the table that a narrow terminal has no room for: KUBELET, SCHEDULERS and LAST, which `nodes NODE` shows.
const LEFT_OUT: [usize; 3] = [2, 5, 4];

fn all(report: &NodesReport, place: &str, columns: usize, out: &mut dyn Write) -> io::Result<()> {
    if report.nodes.is_empty() {
        let total = if report.total > 0 { format!(" on any of {} nodes", report.total) } else { String::new() };
        return writeln!(out, "no executor failed by the fault of a node{total}{place}");
    }
    let now = clock::now();
    let head = ["NODE", "STATE", "KUBELET", "FAULTS", "LAST", "SCHEDULERS", "EXCLUDED"].map(str::to_owned);
    let rows = report.nodes.iter().map(|node| {
        vec![
            node.name.clone(),
            state(node),
            node.kubelet.clone().unwrap_or_else(|| "-".to_owned()),
            counted(node.faults.iter()),
            node.recent.first().map_or_else(|| "-".to_owned(), |fault| ago(&fault.at, now)),
            counted(node.schedulers.iter()),
            node.excluded.to_string(),
        ]
    });
    let rows: Vec<Vec<String>> = std::iter::once(Vec::from(head)).chain(rows).collect();
    output::table(&narrowed(rows, columns, &LEFT_OUT), 1, out)?;
    for node in report.nodes.iter().filter(|node| node.suspicion.is_some()) {
        let Some(suspicion) = &node.suspicion else { continue };
        let what = format!("\n{}: {}\n  {}", node.name, suspicion.text, suspicion.cure);
        writeln!(out, "{}", plain(&what))?;
    }
    Ok(())
}

/// What a node is, in a few words.
fn state(node: &NodeReport) -> String {
    let mut words = Vec::new();
    if node.suspicion.is_some() {
        words.push("suspect");
    }
    if node.avoided {
        words.push("avoided");
    }
    if node.exists == Some(false) {
        words.push("deleted");
    } else if node.ready == Some(false) {
        words.push("not ready");
    }
    if node.cordoned {
        words.push("cordoned");
    }
    if words.is_empty() { "-".to_owned() } else { words.join(", ") }
}

fn counted<'c>(counts: impl Iterator<Item = (&'c String, &'c usize)>) -> String {
    let all: Vec<String> = counts.map(|(word, count)| format!("{count} {word}")).collect();
    if all.is_empty() { "-".to_owned() } else { all.join(", ") }
}

fn one(node: &NodeReport, out: &mut dyn Write) -> io::Result<()> {
    let now = clock::now();
    let mut line = |key: &str, text: String| report_line!(out, "  {key:<10}  {text}");
    line("node", node.name.clone())?;
    line("state", state(node))?;
    if let Some(kubelet) = &node.kubelet {
        line("kubelet", kubelet.clone())?;
    }
    if let Some(suspicion) = &node.suspicion {
        let views::SuspicionReport { since, until, executors, applications, kind, text, cure } = suspicion;
        line("suspect", format!("since {since}, until {until} unless executors fail again"))?;
        line("because", format!("{executors} executors of {applications} applications failed, most by {kind}"))?;
        line("", text.clone())?;
        line("cure", cure.clone())?;
    }
    line("faults", counted(node.faults.iter()))?;
    line("pods", format!("{} Spark pods; by scheduler: {}", node.pods, counted(node.schedulers.iter())))?;
    if node.schedulers.len() > 1 {
        line("", "more than one scheduler places pods here: they allocate the same resources twice".to_owned())?;
    }
    if node.excluded > 0 {
        line("excluded", format!("{} executors by their own drivers (spark.excludeOnFailure)", node.excluded))?;
    }
    for fault in &node.recent {
        let resource = fault.resource.as_ref().map_or_else(String::new, |resource| format!(" ({resource})"));
        let counts = if fault.counts { "" } else { "; does not count: the application may have caused it itself" };
        let text = format!(
            "{} {}/{} {}{resource}: {}{counts}",
            ago(&fault.at, now),
            fault.namespace,
            fault.pod,
            fault.kind,
            fault.message
        );
        line("fault", text)?;
    }
    Ok(())
}
