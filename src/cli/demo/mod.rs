//! `spark-usher demo`: the main features on a machine without a cluster. An in-memory Kubernetes API, the real webhook over
//! HTTPS, the real controller, and pods that real Spark created; each scenario runs once without spark-usher and once with it.

mod report;
mod run;
mod scenario;
mod story;

use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::{Value, json};

use super::trial::{self, make};
use crate::cli::output::{FAILED, OK, block_on, failed};
use report::{CheckOutcome, Side};
use run::Stage;
use scenario::Scenario;
use usher_core::ownership::resolve::DriverSource;
use usher_net::telemetry::log;
use usher_runtime::clock;
use usher_runtime::shutdown::Signals;
use usher_sandbox::Sandbox;
use usher_server::app::{App, ConfigSource};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
    /// Continue to run with applications that come and go, serve the web page, and write a kubeconfig.
    #[arg(long)]
    keep: bool,
    /// File to which --keep writes the kubeconfig.
    #[arg(long, value_name = "FILE", default_value = "demo.kubeconfig", requires = "keep")]
    kubeconfig: PathBuf,
    /// Log level, or directives such as info,spark_usher=debug.
    #[arg(long, default_value = "error", env = "SPARK_USHER_LOG")]
    log: String,
}

/// The policy that the demo runs with.
const POLICY: &str = include_str!("policy.yaml");
/// How long executors without an owner are observed before the demo reports that they are not deleted.
const LEFT_BEHIND_WAIT: Duration = Duration::from_millis(1500);
/// Maximum time for a step: until spark-usher is ready, until executors with an owner are deleted.
const STEP_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) fn run(args: &Args, out: &mut dyn Write, err: &mut dyn Write) -> io::Result<u8> {
    let outcome = log::init(&args.log, log::Format::Text).and_then(|()| block_on(demo(args, out)));
    match outcome {
        Ok(true) => Ok(OK),
        Ok(false) => {
            writeln!(err, "error: a check failed; see above")?;
            Ok(FAILED)
        }
        Err(error) => failed(err, &error),
    }
}

async fn demo(args: &Args, out: &mut dyn Write) -> anyhow::Result<bool> {
    let start = clock::instant();
    let sandbox = Sandbox::start(&usher_sandbox::Options::default())?;
    let scenarios = scenario::all()?;
    let admin = sandbox.client(sandbox.admin_token())?;
    create_objects(&admin, &scenarios).await?;
    let mut app = start_usher(&sandbox, &admin, &scenarios).await?;
    tokio::time::timeout(STEP_TIMEOUT, app.has_synced()).await.context("spark-usher did not become ready")?;
    if !args.json {
        report::print_header(out, &sandbox, &app, POLICY)?;
    }
    let mut all = Vec::new();
    for scenario in &scenarios {
        let outcome = run_scenario(&sandbox, &admin, &app, scenario).await?;
        if !args.json {
            outcome.print(out, all.len() + 1)?;
            out.flush()?;
        }
        all.push(outcome);
    }
    let took = clock::instant().saturating_duration_since(start);
    let held = all.iter().all(CheckOutcome::held);
    if args.json {
        let scenarios: Vec<Value> = all.iter().map(CheckOutcome::to_json).collect();
        writeln!(out, "{:#}", json!({"ok": held, "seconds": took.as_secs_f64(), "stories": scenarios}))?;
    } else {
        report::print_summary(out, &all, took)?;
    }
    if args.keep {
        keep(args, out, &sandbox, &admin, &mut app, &scenarios).await?;
    }
    app.stop().await?;
    sandbox.stop().await?;
    Ok(held)
}

/// The namespace of a scenario, without or with spark-usher.
fn namespace(scenario: &str, side: Side) -> String {
    match side {
        Side::Without => format!("{scenario}-without"),
        Side::With => scenario.to_owned(),
    }
}

/// Namespace of the application that --keep leaves running.
const KEPT: &str = "kept";

async fn create_objects(admin: &kube::Client, scenarios: &[Scenario]) -> anyhow::Result<()> {
    let namespaces = scenarios
        .iter()
        .flat_map(|scenario| [namespace(scenario.name, Side::With), namespace(scenario.name, Side::Without)])
        .chain([KEPT.to_owned()])
        .chain(story::NAMESPACES.map(str::to_owned));
    for name in namespaces {
        make(admin, json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}), "namespaces").await?;
    }
    for (name, value) in [("spark-driver", 1000), ("spark-batch", 100)] {
        let class = json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
            "metadata": {"name": name}, "value": value});
        make(admin, class, "priorityclasses").await?;
    }
    Ok(())
}

/// Starts spark-usher, for the namespaces with it.
async fn start_usher(sandbox: &Sandbox, admin: &kube::Client, scenarios: &[Scenario]) -> anyhow::Result<App> {
    let config = usher_config::from_text(POLICY).context("the demo's policy")?;
    trial::serve_groups(admin, &config.policies).await?;
    let namespaces: Vec<String> = scenarios.iter().map(|scenario| namespace(scenario.name, Side::With)).collect();
    let kept = story::NAMESPACES.into_iter().chain([KEPT]);
    let namespaces: Vec<&str> = namespaces.iter().map(String::as_str).chain(kept).collect();
    let free = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0);
    trial::start(sandbox, ConfigSource::Given(Box::new(config)), free, &namespaces).await
}

/// Runs a scenario on both sides concurrently.
async fn run_scenario(
    sandbox: &Sandbox,
    admin: &kube::Client,
    app: &App,
    scenario: &Scenario,
) -> anyhow::Result<CheckOutcome> {
    let stage = |side| Stage { sandbox, admin: admin.clone(), namespace: namespace(scenario.name, side) };
    let (without, with) = (stage(Side::Without), stage(Side::With));
    let (one, two) = tokio::try_join!(without.start_driver(scenario), with.start_driver(scenario))?;
    let found = |how: &DriverSource| app.counters().http.driver_found.with_label_values(&[how.as_str()]).get();
    let before = DriverSource::ALL.map(|how| found(&how));
    let (one, two) = tokio::try_join!(without.start_executors(scenario, &one), with.start_executors(scenario, &two))?;
    let how = DriverSource::ALL.iter().zip(before).find(|(how, before)| found(how) > *before).map(|(how, _)| *how);
    let patience = if scenario.owned_by_spark { STEP_TIMEOUT } else { LEFT_BEHIND_WAIT };
    let (one_after, two_after) =
        tokio::try_join!(without.delete_driver(scenario, patience), with.delete_driver(scenario, STEP_TIMEOUT))?;
    Ok(CheckOutcome::new(scenario, (one, one_after), (two, two_after), how))
}

/// Leaves one application running, and plays the story, until a signal.
async fn keep(
    args: &Args,
    out: &mut dyn Write,
    sandbox: &Sandbox,
    admin: &kube::Client,
    app: &mut App,
    scenarios: &[Scenario],
) -> anyhow::Result<()> {
    let mut signals = Signals::listen()?;
    let scenario = scenarios
        .iter()
        .find(|scenario| scenario.name == "cluster-mode")
        .context("expected the scenario cluster-mode")?;
    let stage = Stage { sandbox, admin: admin.clone(), namespace: KEPT.to_owned() };
    let driver = stage.start_driver(scenario).await?;
    stage.start_executors(scenario, &driver).await?;
    super::sandbox::write_kubeconfig(&args.kubeconfig, &sandbox.kubeconfig())?;
    if !args.json {
        report::print_kept(out, &args.kubeconfig, KEPT, scenario.driver_name(), app.debug())?;
    }
    out.flush()?;
    let stage = |namespace: &str| Stage { sandbox, admin: admin.clone(), namespace: namespace.to_owned() };
    let ended = tokio::select! {
        error = app.failed() => Err(error),
        () = story::play(stage, scenario) => Ok(()),
        _ = signals.next() => Ok(()),
    };
    let _ = std::fs::remove_file(&args.kubeconfig);
    if let Err(error) = ended {
        bail!(error);
    }
    Ok(())
}
