//! The snapshot store, in the points by which `docs/spark.md#snapshot-store` describes Spark's own; each difference is stated.
//! It has no time of the newest list, no failing subscriber and no end (points 2, 9, 10 and 12).

use std::time::{Duration, Instant};

use crate::support::*;
use usher_core::snapshot::{Absence, Batch, Notify, PodChange, Store};
use usher_spark::ids::PodKey;
use usher_spark::state::ExecutorPodState;

const SECOND: Duration = Duration::from_secs(1);

fn executor_in(id: u32, phase: &str, version: u32) -> PodBuilder {
    let mut pod = executor(id).stored(&format!("e{id}")).phase(phase);
    pod.0["metadata"]["resourceVersion"] = version.to_string().into();
    pod
}

fn update(store: &mut Store, pod: &PodBuilder) {
    store.apply(PodChange::Observed(pod.observation()));
}

fn replace(store: &mut Store, pods: &[PodBuilder]) -> usize {
    let all = pods.iter().map(PodBuilder::observation).collect();
    store.apply(PodChange::Listed(all)).len()
}

fn states(batch: &Batch) -> Vec<(u64, ExecutorPodState)> {
    let executors = batch.snapshot.apps.values().flat_map(|app| app.executors().values());
    executors.map(|executor| (executor.exec_id.unwrap().into(), executor.state)).collect()
}

#[test]
fn point_1_first_snapshot_is_empty_and_immutable() {
    let now = Instant::now();
    let mut store = Store::default();
    let id = store.subscribe(SECOND, Notify::OnChange, now);
    let first = store.take(id, now).unwrap();
    assert!(first.is_empty() && states(&first).is_empty());
    store.done(id, now);
    update(&mut store, &executor_in(1, "Running", 1));
    let then = now + SECOND;
    assert_eq!(states(&store.take(id, then).unwrap()), [(1, ExecutorPodState::Running)]);
    assert!(states(&first).is_empty(), "a snapshot never changes");
}

#[test]
fn point_3_replacement_drops_missing_ids_without_reporting_removal() {
    let now = Instant::now();
    let mut store = Store::default();
    let id = store.subscribe(SECOND, Notify::OnChange, now);
    update(&mut store, &executor_in(1, "Running", 1));
    update(&mut store, &executor_in(2, "Running", 2));
    let unconfirmed = replace(&mut store, &[executor_in(2, "Failed", 5), executor_in(3, "Pending", 4)]);
    assert_eq!(unconfirmed, 1, "executor 1 is not in the list; the owner of the store confirms that with a GET");
    let batch = store.take(id, now).unwrap();
    assert_eq!(states(&batch), [(2, ExecutorPodState::Failed), (3, ExecutorPodState::Pending)]);
    assert_eq!(batch.ended.keys().map(|uid| &**uid).collect::<Vec<_>>(), ["e2"]);
    assert!(batch.removed.is_empty(), "a list alone proves nothing");
}

#[test]
fn point_3_stale_list_reverts_no_state() {
    let now = Instant::now();
    let mut store = Store::default();
    let id = store.subscribe(SECOND, Notify::OnChange, now);
    update(&mut store, &executor_in(1, "Failed", 9));
    replace(&mut store, &[executor_in(1, "Running", 5)]);
    update(&mut store, &executor_in(1, "Running", 6));
    let batch = store.take(id, now).unwrap();
    assert_eq!(states(&batch), [(1, ExecutorPodState::Failed)]);
    assert_eq!(batch.ended.len(), 1);
}

/// A deliberate difference: in Spark, N updates are N snapshots in an unbounded queue.
#[test]
fn point_4_updates_are_coalesced_without_losing_exits() {
    let now = Instant::now();
    let mut store = Store::default();
    let id = store.subscribe(SECOND, Notify::OnChange, now);
    for version in 1..=1000 {
        update(&mut store, &executor_in(1, if version % 2 == 0 { "Pending" } else { "Running" }, version));
    }
    update(&mut store, &executor_in(1, "Failed", 1001));
    update(&mut store, &executor_in(1, "Failed", 1002).deleting());
    store.apply(PodChange::Gone(PodKey::new("default", "nb-exec-1"), "e1".into()));
    let batch = store.take(id, now).unwrap();
    assert!(states(&batch).is_empty());
    assert_eq!((batch.touched.len(), batch.ended.len(), batch.removed.len()), (1, 1, 1));
    assert_eq!(batch.ended["e1"].executor.state, ExecutorPodState::Failed, "the exit, not the cleanup");
}

#[test]
fn point_5_subscriber_starts_with_current_snapshot() {
    let now = Instant::now();
    let mut store = Store::default();
    replace(&mut store, &[executor_in(1, "Succeeded", 1), executor_in(2, "Running", 2)]);
    let id = store.subscribe(SECOND, Notify::OnChange, now);
    // In Spark, a change between the first snapshot and the registration is lost until the next change.
    update(&mut store, &executor_in(2, "Failed", 3));
    let batch = store.take(id, now).unwrap();
    assert_eq!(states(&batch), [(1, ExecutorPodState::Succeeded), (2, ExecutorPodState::Failed)]);
    assert_eq!(batch.ended.len(), 2);
}

#[test]
fn point_6_notify_always_calls_without_changes() {
    let now = Instant::now();
    let mut store = Store::default();
    let always = store.subscribe(SECOND, Notify::Always, now);
    let on_change = store.subscribe(SECOND * 5, Notify::OnChange, now);
    for id in [always, on_change] {
        assert!(store.take(id, now).is_some());
        store.done(id, now);
    }
    let early = now + SECOND / 2;
    assert!(store.take(always, early).is_none() && store.next(always, early) == Some(now + SECOND));
    let then = now + SECOND;
    assert!(store.take(always, then).unwrap().is_empty());
    store.done(always, then);
    assert_eq!(store.next(always, then), Some(then + SECOND), "a fixed delay, from the end of the call");
    assert!(store.take(on_change, now + SECOND * 10).is_none(), "no other subscriber is called");
    update(&mut store, &executor_in(1, "Running", 1));
    assert!(store.take(on_change, now + SECOND * 4).is_none(), "each has its own interval");
    assert!(store.take(on_change, now + SECOND * 5).is_some());
}

#[test]
fn point_7_notify_calls_subscriber_immediately() {
    let now = Instant::now();
    let mut store = Store::default();
    let id = store.subscribe(SECOND * 60, Notify::OnChange, now);
    store.take(id, now);
    store.done(id, now);
    assert!(store.take(id, now).is_none());
    store.notify();
    assert_eq!(store.next(id, now), Some(now));
    assert!(store.take(id, now).is_some());
}

#[test]
fn point_8_subscriber_has_one_call_at_a_time_and_no_lost_notification() {
    let now = Instant::now();
    let mut store = Store::default();
    let (slow, quick) =
        (store.subscribe(SECOND, Notify::OnChange, now), store.subscribe(SECOND, Notify::OnChange, now));
    let running = store.take(slow, now).unwrap();
    update(&mut store, &executor_in(1, "Running", 1));
    store.notify();
    assert!(store.take(slow, now + SECOND * 60).is_none(), "its call is in progress");
    assert!(store.take(quick, now).is_some(), "other subscribers do not wait");
    drop(running);
    store.done(slow, now);
    assert!(store.take(slow, now).is_some(), "the notification during the call is not lost");
}

/// In Spark, a deletion has no effect of its own: an executor that was deleted by force counts as running until the next poll.
#[test]
fn point_11_deletion_of_running_executor_is_a_removal() {
    let now = Instant::now();
    let mut store = Store::default();
    let id = store.subscribe(SECOND, Notify::OnChange, now);
    update(&mut store, &executor_in(1, "Running", 1));
    store.apply(PodChange::Gone(PodKey::new("default", "nb-exec-1"), "another".into()));
    assert!(store.snapshot().executor("default", "nb-exec-1").is_some(), "the deletion of another pod has no effect");
    store.apply(PodChange::Gone(PodKey::new("default", "nb-exec-1"), "e1".into()));
    let batch = store.take(id, now).unwrap();
    assert!(batch.removed["e1"].absence == Absence::Unversioned && batch.ended.is_empty());
    assert_eq!(batch.removed["e1"].executor.state, ExecutorPodState::Running);
}
