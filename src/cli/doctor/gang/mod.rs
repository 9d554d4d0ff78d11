//! `spark-usher doctor --gang NAMESPACE`: creates pause pods and their PodGroup on the live cluster, through the real
//! webhook, and reports how the scheduler treats them.
//!
//! The doctor's user creates a driver's pod, and executors are created with a token that is bound to that pod, as Spark
//! does: the webhook determines an executor's driver from its creator. Every object carries the labels of its run and
//! is deleted at the end, also after an error or a signal.

mod access;
mod capacity;
mod objects;
mod observation;
mod plan;
mod prepare;
mod scenarios;
mod stage;
mod table;

use std::cell::RefCell;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use jiff::SignedDuration;
use serde_json::{Value, json};

use super::finding::{Finding, Grade};
use crate::cli::output::{FAILED, OK, Output, block_on, failed};
use usher_core::gang::GangScheduler;
use usher_kube::client;
use usher_runtime::random;
use usher_runtime::shutdown::Signals;

use super::finding;
use super::target::Target;
use plan::{Scenario, Setup};
use prepare::{Asked, prepare};
use stage::Stage;
use table::{CheckVerdict, Row};

#[derive(Debug, clap::Args)]
#[group(skip)]
pub(super) struct Args {
    /// Test gang scheduling: create pause pods in this namespace under its policy, through the webhook, print how the
    /// scheduler treats them, and delete them.
    #[arg(long, value_name = "NAMESPACE", conflicts_with = "print_rbac")]
    gang: Option<String>,
    /// With --gang: image of the pods.
    #[arg(long, value_name = "IMAGE", default_value = "registry.k8s.io/pause:3.10", requires = "gang")]
    image: String,
    /// With --gang: timeout of each step.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = time, requires = "gang")]
    timeout: Duration,
    /// With --gang: how long executors must stay pending.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = time, requires = "gang")]
    wait: Duration,
    /// With --gang: service account of Spark's drivers in that namespace; it must be allowed to create pods.
    #[arg(long, value_name = "NAME", default_value = "spark", requires = "gang")]
    service_account: String,
    /// With --gang: policy file to use instead of the installation's.
    #[arg(long, value_name = "FILE", requires = "gang")]
    config: Option<PathBuf>,
}

impl Args {
    pub(super) fn namespace(&self) -> Option<&str> {
        self.gang.as_deref()
    }
}

/// System namespaces, where no scenario runs.
const SYSTEM: [&str; 3] = ["kube-system", "kube-public", "kube-node-lease"];

fn time(text: &str) -> Result<Duration, String> {
    let parsed = text.parse::<SignedDuration>().ok().and_then(|time| Duration::try_from(time).ok());
    parsed.filter(|time| !time.is_zero()).ok_or_else(|| "expected a duration such as 60s or 2m".to_owned())
}

/// Result of a run.
#[derive(Default)]
struct Report {
    findings: Vec<Finding>,
    rows: Vec<Row>,
    setup: Option<Value>,
    /// Result of the cleanup: everything was removed, or the objects that remain.
    end: Vec<Finding>,
}

pub(super) fn run(
    args: &Args,
    target: &Target,
    output: Output,
    namespace: &str,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> io::Result<u8> {
    if SYSTEM.contains(&namespace) || namespace == target.namespace {
        let why =
            if namespace == target.namespace { "spark-usher itself runs there" } else { "it is a system namespace" };
        let error = anyhow::anyhow!("--gang {namespace}: {why}; expected a namespace in which Spark runs");
        return failed(err, &error);
    }
    let mut report = Report::default();
    // Text is printed row by row, everything else at the end.
    let done = if output.is_text() {
        block_on(examine(args, target, namespace, &mut report, out))
    } else {
        block_on(examine(args, target, namespace, &mut report, &mut io::sink()))
    };
    output.write(&report.to_json(namespace), [], out, |_| Ok(()))?;
    if let Err(error) = done {
        return failed(err, &error);
    }
    let failed = report.findings.iter().chain(&report.end).any(|finding| finding.grade == Grade::Failed)
        || report.rows.iter().any(|row| row.verdict == CheckVerdict::Failed);
    Ok(if failed { FAILED } else { OK })
}

async fn examine(
    args: &Args,
    target: &Target,
    namespace: &str,
    report: &mut Report,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let mut signals = Signals::listen()?;
    let config = target.config().await?;
    let mut stage = Stage {
        client: client::of(config.clone())?.client,
        config,
        setup: Setup::of("", &usher_core::gang::NONE, None, &[]),
        namespace: namespace.to_owned(),
        run: random::hex(4),
        image: args.image.clone(),
        account: args.service_account.clone(),
        timeout: args.timeout,
        wait: args.wait,
        groups: RefCell::default(),
    };
    let asked = Asked {
        client: &stage.client,
        namespace,
        installed: &target.namespace,
        config: args.config.as_deref(),
        app: &stage.app(0, None),
    };
    let prepared = tokio::select! {
        prepared = prepare(&asked, async |pod: &Value| stage.dry_run(pod).await) => prepared,
        signal = signals.next() => anyhow::bail!("interrupted by {signal}; nothing was created"),
    };
    report.findings = prepared.findings;
    finding::print(&report.findings, out)?;
    let Some(setup) = prepared.setup else { return Ok(()) };
    stage.setup = setup;
    report.setup = Some(stage.described());
    writeln!(out, "run {}: pods of ServiceAccount {} in namespace {namespace}\n", stage.run, stage.account)?;
    let started = tokio::select! {
        started = run_scenarios(&stage, &mut report.rows, out) => started.map(|()| None),
        signal = signals.next() => Ok(Some(signal)),
    };
    if let Ok(Some(signal)) = &started {
        let during = Scenario::ALL.get(report.rows.len()).map_or("cleanup", |scenario| scenario.name());
        report.end.push(Finding::failed(format!("interrupted by {signal} during: {during}"), ""));
    }
    // However the run ends, also on a closed pipe, its objects are deleted.
    let left = tokio::select! {
        left = stage.clear(None) => left,
        signal = signals.next() => vec![format!("objects that were not deleted before {signal}")],
    };
    report.end.push(if left.is_empty() {
        Finding::ok("all created objects are deleted")
    } else {
        let what = format!("not deleted in namespace {namespace}: {}", left.join(", "));
        Finding::failed(what, objects::removal(namespace, Some(&stage.run)))
    });
    started?;
    writeln!(out)?;
    finding::print(&report.end, out)?;
    Ok(())
}

/// Runs all scenarios in sequence.
async fn run_scenarios(stage: &Stage, rows: &mut Vec<Row>, out: &mut dyn Write) -> io::Result<()> {
    table::head(out)?;
    let mut others = true;
    for (number, scenario) in Scenario::ALL.into_iter().enumerate() {
        let row = if others {
            let (row, more) = stage.run_scenario(scenario, number + 1).await;
            others = more;
            row
        } else {
            let why = "the driver of an earlier scenario was not scheduled".to_owned();
            Row { scenario: scenario.name(), verdict: CheckVerdict::Skipped, seen: Vec::new(), why, fix: String::new() }
        };
        row.print(out)?;
        rows.push(row);
    }
    Ok(())
}

impl Stage {
    fn described(&self) -> Value {
        let Setup { policy, scheduler, api, shape, .. } = &self.setup;
        let GangScheduler { kind, .. } = scheduler;
        json!({"run": self.run, "policy": policy, "scheduler": kind, "shape": shape.as_str(),
            "podGroups": api.map(|api| api.api_version())})
    }
}

impl Report {
    fn to_json(&self, namespace: &str) -> Value {
        json!({
            "namespace": namespace, "setup": self.setup,
            "checks": self.findings.iter().chain(&self.end).map(Finding::to_json).collect::<Vec<_>>(),
            "scenarios": self.rows.iter().map(Row::to_json).collect::<Vec<_>>(),
        })
    }
}
