//! The metrics of the snapshot: waiting gangs, drivers without executors, pods that only the fallback policy mutated.

use std::sync::Arc;

use crate::support::*;
use jiff::{SignedDuration, Timestamp};
use prometheus::TextEncoder;
use serde_json::json;
use usher_core::snapshot::{Conf, Group, GroupKey, RelatedChange, Snapshot, Watched};
use usher_net::telemetry::registry::Registry;
use usher_report::views::History;
use usher_server::cluster::namespace_metrics::NamespaceMetrics;
use usher_server::cluster::snapshot_metrics::SnapshotMetrics;
use usher_spark::conf::AppConf;
use usher_spark::ids::PodKey;

const NOW: Timestamp = Timestamp::constant(1_790_000_000, 0);

fn metric_value(snapshot: &Snapshot, line: &str) -> String {
    let metrics = SnapshotMetrics::new().unwrap();
    metrics.observe(snapshot);
    let registry = Registry::default();
    registry.register(metrics).unwrap();
    let text = registry.render().unwrap();
    let found = text.lines().find_map(|text| text.strip_prefix(line)?.strip_prefix(' '));
    found.unwrap_or_else(|| panic!("{line} is not in\n{text}")).to_owned()
}

/// The series of what namespaces need, without `spark_usher_`; on a leader with a history.
fn needs(snapshot: &Snapshot, history: Option<&History>) -> Vec<String> {
    let mut text = String::new();
    TextEncoder::new().encode_utf8(&NamespaceMetrics::observe(snapshot, history, NOW), &mut text).unwrap();
    text.lines().filter_map(|line| line.strip_prefix("spark_usher_")).map(str::to_owned).collect()
}

fn group(started: bool, age: i64) -> Group {
    Group {
        uid: "g".into(),
        version: "1".into(),
        selector: Some(APP.into()),
        owner: None,
        started,
        created: Some(NOW.as_second() - age),
        deleting: false,
        phase: None,
        waits: None,
        spec: json!({}),
    }
}

#[test]
fn gangs_count_as_waiting_until_started() {
    let mut snapshot = Snapshot::default();
    assert!(needs(&snapshot, None).is_empty());
    for (name, started, age) in [("a", false, 90), ("b", false, 30), ("c", true, 5000)] {
        let key = GroupKey { namespace: "default".into(), name: name.into(), scheduler: "volcano" };
        snapshot.apply(RelatedChange::Groups(key.scheduler, Watched::Upserted(key, group(started, age))));
    }
    assert_eq!(metric_value(&snapshot, "spark_usher_gangs{state=\"waiting\"}"), "2");
    assert_eq!(metric_value(&snapshot, "spark_usher_gangs{state=\"started\"}"), "1");
    assert_eq!(needs(&snapshot, None), ["gang_waiting_seconds{namespace=\"default\"} 90"]);
    assert_eq!(metric_value(&snapshot, "spark_usher_groups{scheduler=\"volcano\"}"), "3");
}

#[test]
fn driver_without_requested_executors_is_counted() {
    let none: [&str; 0] = [];
    let count = |snapshot: &Snapshot| needs(snapshot, None);
    let with = |conf: &str| {
        let mut snapshot = snapshot_with(&[driver()]);
        let conf = Conf::Known(Arc::new(AppConf::parse(conf)));
        let key = PodKey::new("default", "nb-driver");
        snapshot.apply(RelatedChange::Conf(key, DRIVER_UID.into(), conf, Vec::new()));
        snapshot
    };
    assert_eq!(count(&snapshot_with(&[driver()])), none, "the requested number is unknown");
    let dynamic = "spark.dynamicAllocation.enabled=true\nspark.dynamicAllocation.minExecutors=0\n";
    assert_eq!(count(&with(dynamic)), none, "the application may have no executors");
    let mut snapshot = with("spark.executor.instances=2\n");
    let one = ["drivers_without_executors{namespace=\"default\"} 1"];
    assert_eq!(count(&snapshot), one);
    observe(&mut snapshot, &executor(1).stored("e-1").phase("Pending"));
    assert_eq!(count(&snapshot), none);
    observe(&mut snapshot, &executor(1).stored("e-1").phase("Failed"));
    assert_eq!(count(&snapshot), one);
    observe(&mut snapshot, &driver().phase("Succeeded"));
    assert_eq!(count(&snapshot), none, "the driver has exited");
}

#[test]
fn leader_counts_what_applications_lack_by_namespace_and_cause() {
    let mut began = driver();
    began.0["metadata"]["creationTimestamp"] = (NOW - SignedDuration::from_mins(20)).to_string().into();
    let mut snapshot = snapshot_with(&[began]);
    let conf = Conf::Known(Arc::new(AppConf::parse("spark.executor.instances=3\n")));
    let key = PodKey::new("default", "nb-driver");
    snapshot.apply(RelatedChange::Conf(key, DRIVER_UID.into(), conf, Vec::new()));
    observe(&mut snapshot, &executor(1).stored("e-1").phase("Pending"));
    let history = History::default();
    let mut found = needs(&snapshot, Some(&history));
    found.sort();
    let expected = [
        "executors_lacking{cause=\"not-requested\",namespace=\"default\"} 2",
        "executors_lacking{cause=\"unscheduled\",namespace=\"default\"} 1",
        "shortage_seconds{namespace=\"default\"} 1200",
    ];
    assert_eq!(found, expected);
    assert!(needs(&snapshot, None).is_empty(), "a follower does not know it");
    observe(&mut snapshot, &driver().stored(DRIVER_UID).deleting());
    assert!(needs(&snapshot, Some(&history)).is_empty(), "a driver that is being deleted needs no executors");
}

#[test]
fn pods_mutated_only_by_fallback_policy_are_counted() {
    let snapshot = snapshot_with(&[
        executor(1).stored("e-1").annotation("spark-usher.io/by", "fallback"),
        executor(2).stored("e-2").annotation("spark-usher.io/by", "batch/volcano"),
    ]);
    assert_eq!(metric_value(&snapshot, "spark_usher_fallback_pods"), "1");
}
