//! The metrics of a large cluster: 10,000 namespaces, each with an application of ten executors that lacks three and a gang that waits, and
//! with exits and costs by every cause. Prints the number of series beside the most that 201 names of namespaces allow, and what a scrape
//! takes. The exit code is 1 above a limit.
//!
//! ```text
//! cargo bench --bench metrics
//! ```

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a benchmark prints its results"
)]

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use prometheus::TextEncoder;
use serde_json::{Value, json};
use usher_core::controller::Effects;
use usher_core::gang;
use usher_core::lifecycle::cause::{Cause, Removal};
use usher_core::lifecycle::driver_at_exit::DriverAtExit;
use usher_core::lifecycle::exit::Exit;
use usher_core::policy::RecoveryRule;
use usher_core::recovery::cost::{Amount, WasteCause};
use usher_core::recovery::namespaces::MAX_NAMESPACES;
use usher_core::recovery::shortage_cause::ShortageCause;
use usher_core::snapshot::{Conf, Group, GroupKey, ObservedPod, PodChange, RelatedChange, Snapshot, Watched};
use usher_report::views::History;
use usher_server::app::metrics::Metrics;
use usher_server::cluster::namespace_metrics::NamespaceMetrics;
use usher_server::cluster::replica::Replica;
use usher_spark::conf::AppConf;
use usher_spark::ids::{AppKey, PodKey};
use usher_spark::pod::Pod;

const NAMESPACES: usize = 10_000;
const EXECUTORS: usize = 10;
const LACKING: usize = 3;
const NOW: Timestamp = Timestamp::constant(1_790_000_000, 0);
/// The limit of the time of a scrape: with one every 15 seconds, less than 2 % of a core.
const LIMIT: Duration = Duration::from_millis(250);

fn main() -> ExitCode {
    // `cargo test --benches` also runs this program, without a test.
    if !std::env::args().any(|arg| arg == "--bench") {
        return ExitCode::SUCCESS;
    }
    let snapshot = snapshot();
    let metrics = Metrics::new(&Replica::default()).unwrap();
    count(&metrics, &snapshot);
    let begin = Instant::now();
    let mut needs = String::new();
    let families = NamespaceMetrics::observe(&snapshot, Some(&History::default()), NOW);
    TextEncoder::new().encode_utf8(&families, &mut needs).unwrap();
    let took = begin.elapsed();
    let text = metrics.registry.render().unwrap() + &needs;

    let names = MAX_NAMESPACES + 1;
    let mut is_within = true;
    for (name, max) in [
        ("spark_usher_executors_lacking", names * ShortageCause::ALL.len()),
        ("spark_usher_shortage_seconds", names),
        ("spark_usher_gang_waiting_seconds", names),
        ("spark_usher_namespace_executor_exits_total", names * Cause::ALL.len()),
        ("spark_usher_wasted_core_seconds_total", names * WasteCause::ALL.len()),
        ("spark_usher_wasted_byte_seconds_total", names * WasteCause::ALL.len()),
        ("spark_usher_recovered_core_seconds_total", names * RecoveryRule::ALL.len()),
        ("spark_usher_recovered_byte_seconds_total", names * RecoveryRule::ALL.len()),
    ] {
        let series = text.lines().filter(|line| line.starts_with(&format!("{name}{{"))).count();
        assert!(series > 0, "{name}");
        is_within &= series <= max;
        println!("{name:<45} {series:>6} series (limit {max})");
    }
    let all = text.lines().filter(|line| !line.starts_with('#')).count();
    is_within &= took <= LIMIT;
    let verdict = if took <= LIMIT { "" } else { "  ABOVE THE LIMIT" };
    println!("all metrics: {all} series, {} kB", text.len() / 1000);
    println!("what {NAMESPACES} namespaces need: {took:.2?} for each scrape (limit {LIMIT:?}){verdict}");
    if is_within { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn namespace(number: usize) -> String {
    format!("team-{number:05}")
}

fn observed(pod: &Value) -> ObservedPod {
    ObservedPod::of(&Pod::read_whole(pod.to_string().as_bytes()).unwrap(), gang::scheduling_keys()).unwrap()
}

fn snapshot() -> Snapshot {
    let mut snapshot = Snapshot::default();
    let conf = Conf::Known(Arc::new(AppConf::parse(&format!("spark.executor.instances={}\n", EXECUTORS + LACKING))));
    for number in 0..NAMESPACES {
        let (namespace, uid) = (namespace(number), format!("uid-{number}"));
        let labels =
            |role: &str, id: &str| json!({"spark-role": role, "spark-app-selector": "spark-1", "spark-exec-id": id});
        let pod = |name: &str, uid: &str, labels: Value| {
            json!({"metadata": {"name": name, "namespace": namespace, "uid": uid, "resourceVersion": "1000", "labels": labels,
                    "creationTimestamp": (NOW - jiff::SignedDuration::from_mins(20)).to_string()},
                "spec": {"nodeName": "node-1", "containers": [{"name": "spark"}]}, "status": {"phase": "Running"}})
        };
        let mut pods = vec![pod("driver", &uid, json!({"spark-role": "driver", "spark-app-selector": "spark-1"}))];
        pods.extend((1..=EXECUTORS).map(|id| {
            let id = id.to_string();
            let mut executor = pod(&format!("exec-{id}"), &format!("{uid}-{id}"), labels("executor", &id));
            executor["metadata"]["ownerReferences"] =
                json!([{"apiVersion": "v1", "kind": "Pod", "name": "driver", "uid": uid, "controller": true}]);
            executor
        }));
        for pod in pods {
            snapshot.apply(PodChange::Observed(observed(&pod)));
        }
        let key = PodKey::new(&namespace, "driver");
        snapshot.apply(RelatedChange::Conf(key, uid.as_str().into(), conf.clone(), Vec::new()));
        let key = GroupKey { namespace: namespace.as_str().into(), name: "g".into(), scheduler: "volcano" };
        let group = Group {
            uid: "g".into(),
            version: "1".into(),
            selector: Some("spark-1".into()),
            owner: None,
            started: false,
            created: Some(NOW.as_second() - 90),
            deleting: false,
            phase: None,
            waits: None,
            spec: json!({}),
        };
        snapshot.apply(RelatedChange::Groups(key.scheduler, Watched::Upserted(key, group)));
    }
    snapshot
}

/// Counts exits and costs by every cause in every namespace.
fn count(metrics: &Metrics, snapshot: &Snapshot) {
    let amount = Amount { core_seconds: 1.0, byte_seconds: 1.0 };
    for number in 0..NAMESPACES {
        let namespace = namespace(number);
        let app = AppKey::new(&namespace, "spark-1");
        let executor = snapshot.apps[&app].executors().values().next().unwrap();
        for cause in Cause::ALL.iter().copied() {
            metrics.cluster.count_exit(&Exit {
                app: app.clone(),
                executor: executor.clone(),
                cause,
                removal: Removal::Deleted,
                at: NOW,
                driver: DriverAtExit::Unknown,
                missing: None,
                was_over: false,
                after: None,
                asked: None,
                rule: None,
                possibly_reported: false,
            });
        }
        metrics.cluster.count_costs(&Effects {
            waste: WasteCause::ALL.iter().map(|cause| (app.clone(), *cause, amount)).collect(),
            given_back: RecoveryRule::ALL.map(|rule| (namespace.as_str().into(), rule, amount)).to_vec(),
            ..Effects::default()
        });
    }
}
