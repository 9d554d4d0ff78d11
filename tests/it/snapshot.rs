//! The snapshot: the same objects give the same snapshot, in whatever order and from whatever source they arrived.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::support::*;
use proptest::prelude::*;
use usher_core::snapshot::{ObservedPod, PodChange, ReferencedPod, RelatedChange, Snapshot};
use usher_spark::ids::{AppKey, PodKey};
use usher_spark::state::ExecutorPodState;

/// The content of a snapshot in a comparable form.
fn content(snapshot: &Snapshot) -> BTreeMap<String, (Vec<String>, Vec<String>)> {
    let app = |app: &usher_core::snapshot::Application| {
        let drivers = app.drivers.iter().map(|d| format!("{} {} {:?}", d.name, d.uid, d.phase)).collect();
        let executors = app
            .executors()
            .values()
            .map(|e| format!("{} {} {:?} {:?}", e.name, e.uid, e.state, e.template.owner))
            .collect();
        (drivers, executors)
    };
    snapshot.apps.iter().map(|(key, value)| (key.to_string(), app(value))).collect()
}

fn some_pod(n: u8, app: u8, version: u8) -> PodBuilder {
    let selector = format!("spark-{}", app % 3);
    let phase = ["Pending", "Running", "Succeeded", "Failed"][usize::from(version % 4)];
    let name = format!("p{}", n % 12);
    let pod = if n.is_multiple_of(12) {
        pod(&name).driver_of(&selector)
    } else {
        pod(&name).executor_of(&selector, u32::from(n % 12))
    };
    let pod = pod.stored(&format!("u{}", n % 12)).phase(phase);
    // The properties that the indexes count: another owner, a deletion, a label, another template, a note.
    match version / 4 % 8 {
        1 => pod.owned_by("Pod", "p0", "u0"),
        2 => pod.owned_by("Pod", "p0", "another").deleting(),
        3 => pod.label("spark-exec-inactive", "true"),
        4 => pod.owned_by("StatefulSet", "s", "s").requests(serde_json::json!({"cpu": "2"})),
        5 => pod.deleting(),
        6 => pod.driver_url("10.0.0.1"),
        _ => pod,
    }
}

/// The counts of executor sets and templates in a comparable form.
type Counts = BTreeMap<String, [usize; 8]>;

/// The counts that the snapshot maintains while its executors change.
fn maintained_counts(snapshot: &Snapshot) -> Counts {
    let mut counts = Counts::new();
    for (key, app) in &snapshot.apps {
        let unsettled = app.executors().iter().filter(|(_, executor)| !executor.is_settled());
        assert!(app.unsettled().iter().eq(unsettled), "{key}");
        for index in app.indexes() {
            assert!(index.total > 0 && app.creator_index(index.creator).is_some_and(|same| std::ptr::eq(same, index)));
            let set = format!("{key} {:?}", index.creator);
            counts.insert(set.clone(), [index.total, index.uncleared.len(), 0, 0, 0, 0, 0, 0]);
            for template in index.counts() {
                assert!(template.total > 0 && app.by_template().iter().any(|same| std::ptr::eq(*same, template)));
                let one = app.one_of(template);
                assert_eq!(one.is_some(), template.live > 0);
                let row = [
                    template.total,
                    template.live,
                    template.pending,
                    template.ran,
                    template.uncleared,
                    template.orphans,
                    template.labelled,
                    usize::from(template.is_proven),
                ];
                let twice = counts.insert(format!("{set} {:?}", template.template), row);
                assert!(twice.is_none(), "equal templates are stored once");
            }
        }
    }
    counts
}

/// The same counts, computed from all executors.
fn recomputed_counts(snapshot: &Snapshot) -> Counts {
    let mut counts = Counts::new();
    for (key, app) in &snapshot.apps {
        for executor in app.executors().values() {
            let (live, final_) = (executor.is_live(), executor.needs_cleanup());
            let set = format!("{key} {:?}", executor.counted_creator());
            let index = counts.entry(set.clone()).or_default();
            index[0] += 1;
            index[1] += usize::from(final_);
            let counts = counts.entry(format!("{set} {:?}", executor.template)).or_default();
            counts[0] += 1;
            counts[1] += usize::from(live);
            counts[2] += usize::from(live && executor.state == ExecutorPodState::Pending);
            let ran = [ExecutorPodState::Running, ExecutorPodState::Succeeded, ExecutorPodState::Failed];
            counts[3] += usize::from(ran.contains(&executor.state));
            counts[4] += usize::from(final_);
            counts[5] += usize::from(live && !executor.deleting && executor.template.owner.is_none());
            counts[6] += usize::from(executor.inactive && !executor.inactive_by_usher);
            counts[7] = usize::from(executor.is_proven);
        }
    }
    counts
}

#[derive(Clone, Debug)]
enum Event {
    Observe(u8, u8, u8),
    Delete(u8),
    DeleteOtherUid(u8),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => (any::<u8>(), any::<u8>(), any::<u8>()).prop_map(|(n, app, v)| Event::Observe(n, app, v)),
        2 => any::<u8>().prop_map(Event::Delete),
        1 => any::<u8>().prop_map(Event::DeleteOtherUid),
    ]
}

proptest! {
    /// A list of the existing pods gives the same snapshot as their history, and no history leaves entries behind.
    #[test]
    fn history_equals_relist_of_its_final_state(events in proptest::collection::vec(event(), 0..60)) {
        let (mut snapshot, mut present) = (Snapshot::default(), BTreeMap::<String, PodBuilder>::new());
        for event in events {
            match event {
                Event::Observe(n, app, version) => {
                    let pod = some_pod(n, app, version);
                    present.insert(pod.0["metadata"]["name"].as_str().unwrap().to_owned(), pod.clone());
                    observe(&mut snapshot, &pod);
                }
                Event::Delete(n) => {
                    let name = format!("p{}", n % 12);
                    snapshot.apply(PodChange::Gone(PodKey::new("default", &name), format!("u{}", n % 12).into()));
                    present.remove(&name);
                }
                Event::DeleteOtherUid(n) => {
                    let key = PodKey::new("default", &format!("p{}", n % 12));
                    let applied = snapshot.apply(PodChange::Gone(key, "another".into()));
                    prop_assert!(applied.touched.is_empty(), "the deletion of another pod has no effect");
                }
            }
            prop_assert_eq!(maintained_counts(&snapshot), recomputed_counts(&snapshot));
        }
        let mut relisted = Snapshot::default();
        relisted.apply(PodChange::Listed(present.values().rev().map(PodBuilder::observation).collect()));
        prop_assert_eq!(content(&snapshot), content(&relisted));
        prop_assert_eq!(maintained_counts(&snapshot), maintained_counts(&relisted));
        // A relist after the history changes nothing.
        snapshot.apply(PodChange::Listed(present.values().map(PodBuilder::observation).collect()));
        prop_assert_eq!(content(&snapshot), content(&relisted));
        for (name, pod) in &present {
            let ObservedPod::Executor(app, _) = pod.observation() else { continue };
            let (found, _) = snapshot.executor("default", name).unwrap();
            prop_assert_eq!(found, &app);
        }
        for name in present.keys() {
            snapshot.apply(PodChange::Gone(PodKey::new("default", name), format!("u{}", &name[1..]).into()));
        }
        prop_assert!(snapshot.apps.is_empty());
    }
}

#[test]
fn pod_with_changed_app_selector_leaves_old_application() {
    let mut snapshot = Snapshot::default();
    observe(&mut snapshot, &pod("e").executor_of("spark-a", 1).stored("u"));
    let touched = snapshot.apply(PodChange::Observed(pod("e").executor_of("spark-b", 1).stored("u").observation()));
    assert_eq!(touched.touched, [AppKey::new("default", "spark-b"), AppKey::new("default", "spark-a")]);
    assert_eq!(snapshot.apps.keys().map(AppKey::selector).collect::<Vec<_>>(), ["spark-b"]);
    snapshot.apply(PodChange::Observed(pod("e").stored("u").observation()));
    assert!(snapshot.apps.is_empty(), "a pod without Spark labels belongs to no application");
}

#[test]
fn watched_driver_replaces_referenced_pod() {
    let mut snapshot = Snapshot::default();
    let key = PodKey::new("default", "nb-driver");
    let read = |pod: &PodBuilder| match pod.observation() {
        ObservedPod::Driver(_, pod) | ObservedPod::Other(_, pod) => ReferencedPod::Present(Arc::new(pod)),
        ObservedPod::Executor(..) => unreachable!(),
    };
    snapshot.apply(RelatedChange::Referenced(key.clone(), read(&pod("nb-driver").stored("n").ip("10.0.0.1")), vec![]));
    assert_eq!(&*snapshot.driver_at("default", "10.0.0.1").unwrap().uid, "n");
    observe(&mut snapshot, &driver().ip("10.0.0.2"));
    assert_eq!(&*snapshot.driver_pod("default", "nb-driver").unwrap().uid, DRIVER_UID);
    assert!(snapshot.referenced.is_empty() && snapshot.driver_at("default", "10.0.0.1").is_none());
    assert!(snapshot.driver_at("default", "10.0.0.2").is_some());
    snapshot.apply(RelatedChange::Referenced(key, read(&pod("nb-driver").stored("old")), vec![]));
    assert_eq!(&*snapshot.driver_pod("default", "nb-driver").unwrap().uid, DRIVER_UID, "a late lookup changes nothing");
    snapshot.apply(PodChange::Gone(PodKey::new("default", "nb-driver"), DRIVER_UID.into()));
    assert!(snapshot.driver_at("default", "10.0.0.2").is_none());
}

#[test]
fn executors_of_one_application_share_template() {
    let snapshot = snapshot_with(&[executor(1).stored("a"), executor(2).stored("b")]);
    let app = snapshot.app("default", APP).unwrap();
    let all: Vec<_> = app.executors().values().collect();
    assert!(Arc::ptr_eq(&all[0].template, &all[1].template));
}

#[test]
fn cloned_snapshot_is_unaffected_by_later_changes() {
    let mut snapshot = snapshot_with(&[executor(1).stored("a")]);
    let held = snapshot.clone();
    observe(&mut snapshot, &executor(2).stored("b"));
    assert_eq!(held.app("default", APP).unwrap().executors().len(), 1);
    assert_eq!(snapshot.app("default", APP).unwrap().executors().len(), 2);
}

#[test]
fn live_driver_is_running_or_else_pending_driver() {
    let old = pod("a-driver").driver_of(APP).stored("old").phase("Failed");
    let pending = pod("b-driver").driver_of(APP).stored("pending").phase("Pending");
    let snapshot =
        snapshot_with(&[old.clone(), pending.clone(), pod("c-driver").driver_of(APP).stored("run").phase("Running")]);
    assert_eq!(&*snapshot.app("default", APP).unwrap().live_driver().unwrap().uid, "run");
    let snapshot = snapshot_with(&[old.clone(), pending]);
    assert_eq!(&*snapshot.app("default", APP).unwrap().live_driver().unwrap().uid, "pending");
    assert!(snapshot_with(&[old]).app("default", APP).unwrap().live_driver().is_none());
}

#[test]
fn stored_texts_of_pods_are_limited_in_length() {
    let long = "x".repeat(200_000);
    let mut pod = executor(1).stored("e1").phase("Failed").driver_url(&long);
    for key in ["by", "driver", "signature", "queue", "scheduler", "min-member", "skip", "executor-resources", "ended"]
    {
        pod = pod.annotation(&format!("spark-usher.io/{key}"), &long);
    }
    for row in usher_core::gang::TABLE {
        for (_, key) in row.keys() {
            pod = pod.annotation(key, &long).label(key, &long);
        }
    }
    for key in ["schedulerName", "priorityClassName", "nodeName", "serviceAccountName"] {
        pod = pod.spec(key, long.as_str());
    }
    pod = pod.spec("schedulingGroup", serde_json::json!({"podGroupName": long}));
    pod = pod.owned_by("Pod", &long, &long).conf_map(&long).ip(&long);
    pod.0["metadata"]["finalizers"] = vec![long.clone(); 100].into();
    pod.0["metadata"]["deletionTimestamp"] = "2026-11-21T00:00:00Z".into();
    pod.0["status"]["message"] = long.as_str().into();
    pod.0["status"]["reason"] = long.as_str().into();
    pod.0["status"]["containerStatuses"] = serde_json::json!([{"name": long, "image": long,
        "state": {"terminated": {"exitCode": 1, "message": long, "reason": long}}}]);
    let mut as_driver = pod.clone().driver_of(APP);
    as_driver.0["metadata"]["name"] = "d".into();
    for pod in [pod, as_driver] {
        let stored = format!("{:?}", pod.observation());
        assert!(stored.len() < 24_000, "{} bytes are stored of {}", stored.len(), pod.0.to_string().len());
    }
}

#[test]
fn node_names_are_removed_with_their_executors() {
    let mut snapshot = Snapshot::default();
    for id in 0..2000 {
        let name = format!("e{id}");
        let pod = executor(id).stored(&name).phase("Running").spec("nodeName", format!("node-{id}").as_str());
        snapshot.apply(PodChange::Observed(pod.observation()));
        if id >= 10 {
            snapshot.apply(PodChange::Gone(
                PodKey::new("default", &format!("nb-exec-{}", id - 10)),
                format!("e{}", id - 10).into(),
            ));
        }
        snapshot.forget_nodes();
        assert!(snapshot.node_names() <= 257, "{}", snapshot.node_names());
    }
    let executor = snapshot.executor("default", "nb-exec-1999").unwrap().1;
    assert_eq!(executor.node.as_deref(), Some("node-1999"));
}

#[test]
fn executor_counts_follow_creators_and_signing_key() {
    let (mut snapshot, policies) = (signing(), only(policy("yunikorn")));
    for (id, user) in [(1, "eve"), (2, "adam"), (3, "eve")] {
        let placed = answer(&executor(id).created_by(user), &snapshot, &policies);
        observe(&mut snapshot, &PodBuilder(placed.object).stored(&format!("e{id}")));
        assert_eq!(maintained_counts(&snapshot), recomputed_counts(&snapshot));
    }
    assert_eq!(snapshot.app("default", APP).unwrap().indexes().len(), 2);
    // With another key no signature is valid, and with the right one all are.
    for key in [usher_core::signature::Key::new(&[8; 32]), signing_key()] {
        snapshot.apply(RelatedChange::SigningKey(Some(key)));
        assert_eq!(maintained_counts(&snapshot), recomputed_counts(&snapshot));
    }
    assert_eq!(snapshot.app("default", APP).unwrap().indexes().len(), 2);
}
