//! `spark-usher why POD|APP`: why an executor ended, hangs or does not start; of an application, all that is odd about it.

use std::io::{self, Write};

use super::look::Source;
use crate::lifecycle::report::{self, AppReport, ExecutorReport, ExitReport, WhyReport};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// A pod, or an application by its app selector or its driver's pod.
    #[arg(value_parser = name)]
    name: String,
    #[command(flatten)]
    source: Source,
    /// How the answer looks.
    #[arg(long, short, value_enum, default_value = "text")]
    output: super::Output,
}

fn name(text: &str) -> Result<String, String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    if !text.is_empty() && text.len() <= 253 && text.chars().all(plain) {
        return Ok(text.to_owned());
    }
    Err("expected the name of a pod, or the app selector (label spark-app-selector) of an application".to_owned())
}

pub(super) fn run(args: &Args, out: &mut dyn Write, err: &mut dyn Write) -> io::Result<u8> {
    let namespace = args.source.namespace.as_deref();
    let query = format!("/debug/why?name={}{}", args.name, args.source.namespace_query());
    let asked = args.source.ask(&query, |snapshot, exits| report::why(snapshot, exits, &args.name, namespace));
    let found = match super::block_on(asked) {
        Ok(found) => found,
        Err(error) => return super::failed(err, &error),
    };
    if args.output == super::Output::Json {
        writeln!(out, "{}", serde_json::to_string_pretty(&found)?)?;
    } else if found.is_empty() {
        let hint = if args.source.debug.is_some() {
            "it may have ended too long ago, or another replica leads"
        } else {
            "its pod may be gone: ask a running spark-usher by --debug"
        };
        writeln!(err, "nothing is known of {}: no Spark pod and no application has that name; {hint}", args.name)?;
    } else {
        let mut text = Vec::new();
        tell(&found, &mut text)?;
        out.write_all(super::plain(&String::from_utf8_lossy(&text)).as_bytes())?;
    }
    Ok(if found.is_empty() { super::FAILED } else { super::OK })
}

fn tell(found: &WhyReport, out: &mut dyn Write) -> io::Result<()> {
    for (app, executor) in &found.executors {
        writeln!(out, "{}  executor {} of {app}", executor.pod, number(executor.id))?;
        present(executor, out)?;
    }
    for (app, exit) in &found.exits {
        writeln!(out, "{}  executor {} of {app}, ended {}", exit.pod, number(exit.id), exit.at)?;
        ended(exit, out)?;
    }
    for app in &found.apps {
        application(app, out)?;
    }
    Ok(())
}

fn number(id: Option<u64>) -> String {
    id.map_or_else(|| "without a number".to_owned(), |id| id.to_string())
}

fn present(executor: &ExecutorReport, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "  state     {}", executor.state)?;
    if let Some(node) = &executor.node {
        writeln!(out, "  node      {node}")?;
    }
    if let Some(why) = &executor.why {
        writeln!(out, "  why       {why}")?;
    }
    Ok(())
}

fn ended(exit: &ExitReport, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "  cause     {}: {}", exit.cause, exit.text)?;
    if !exit.detail.is_empty() {
        writeln!(out, "  detail    {}", exit.detail)?;
    }
    if let Some(node) = &exit.node {
        writeln!(out, "  node      {node}")?;
    }
    let blame = |by_app: bool| if by_app { "the application's own doing" } else { "not the application's doing" };
    writeln!(out, "  blame     {}; Spark says: {}", blame(exit.by_app), blame(exit.spark.caused_by_app))?;
    writeln!(out, "  Spark     {}", exit.spark.message.trim().replace('\n', "\n            "))
}

fn application(app: &AppReport, out: &mut dyn Write) -> io::Result<()> {
    let driver = app.driver.pod.as_deref().unwrap_or("no pod is known");
    writeln!(out, "{}/{}", app.namespace, app.app)?;
    writeln!(out, "  driver    {driver} ({})", app.driver.life)?;
    let counts: Vec<String> = app.executors.iter().map(|(state, count)| format!("{count} {state}")).collect();
    writeln!(out, "  executors {}", if counts.is_empty() { "none".to_owned() } else { counts.join(", ") })?;
    for executor in &app.troubled {
        writeln!(out, "  {}  {}: {}", executor.pod, executor.state, executor.why.as_deref().unwrap_or_default())?;
    }
    for exit in &app.exits {
        writeln!(out, "  {}  {}  {}: {}", exit.at, exit.pod, exit.cause, exit.detail)?;
    }
    Ok(())
}
