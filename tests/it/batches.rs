//! Work in batches: the controller preserves the order of changes, and omits none.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::support::controller_harness::*;
use crate::support::*;
use usher_core::controller::{Controller, Effects, Lookup, LookupResult, PollResult, Settings};
use usher_core::leader::LeaderState;
use usher_core::lifecycle::Exits;
use usher_core::lifecycle::cause::Cause;
use usher_core::lifecycle::checkpoint::FoundCheckpoint;
use usher_core::planning::Action;
use usher_core::policy::Finished;
use usher_core::snapshot::{Batch, Ended, ObservedPod, PodChange, RelatedChange, ServedApis, Watched};
use usher_spark::ids::PodKey;

const MANY: u32 = 5000;

/// Steps until no step is due, at most 200 times.
fn settle(harness: &mut ControllerHarness) -> Vec<Effects> {
    let mut steps = Vec::new();
    for _ in 0..200 {
        let effects = harness.step_after(0);
        let is_idle = effects.wake_at.is_none_or(|wake| wake > harness.now().at) && effects.actions.is_empty();
        steps.push(effects);
        if is_idle {
            return steps;
        }
    }
    panic!("a step is still due after 200 steps");
}

fn observations(pod: impl Fn(u32) -> PodBuilder) -> Vec<ObservedPod> {
    (1..=MANY).map(|id| pod(id).observation()).collect()
}

fn apply_list(harness: &mut ControllerHarness, pods: Vec<ObservedPod>, version: &str) {
    harness.apply(PodChange::Listed(pods));
    let now = harness.now();
    harness.controller.bookmark(version, now);
}

fn executor_count(harness: &ControllerHarness) -> usize {
    harness.controller.snapshot().app("default", APP).map_or(0, |app| app.executors().len())
}

#[test]
fn watch_events_wait_until_preceding_list_is_applied() {
    let mut harness = ControllerHarness::new(Finished::Report);
    apply_list(&mut harness, observations(|id| version(running(id), 7)), "10");
    // The last pod of the list is deleted before the controller has applied the list.
    harness.apply(PodChange::Deleted(version(failed(MANY, 143), 11).observation()));
    harness.apply(PodChange::Observed(version(failed(MANY - 1, 137), 12).observation()));
    assert!(executor_count(&harness) < MANY as usize, "the rest of the list is queued");
    let steps = settle(&mut harness);
    assert!(steps.len() > 3, "the list is applied in batches");
    assert_eq!(executor_count(&harness), MANY as usize - 1);
    assert!(harness.controller.snapshot().executor("default", &format!("nb-exec-{MANY}")).is_none());
    harness.step_after(1);
    let exits: Vec<_> = settle(&mut harness).into_iter().flat_map(|effects| effects.exits).collect();
    assert!(exits.is_empty(), "the exits were reported in the previous step");
    let history = harness.controller.exits().history().iter().map(|exit| exit.cause).collect::<Vec<_>>();
    assert_eq!(history.len(), 2, "{history:?}");
}

#[test]
fn incomplete_list_removes_no_executor() {
    let mut harness = ControllerHarness::new(Finished::Report);
    apply_list(&mut harness, observations(|id| version(running(id), 7)), "10");
    settle(&mut harness);
    let now = harness.now();
    harness.controller.list_started(now);
    harness.controller.list_page(vec![version(running(1), 8).observation()], now);
    // The list breaks off here, and another one begins.
    harness.controller.list_started(now);
    harness.controller.list_page(observations(|id| version(running(id), 9)), now);
    settle(&mut harness);
    assert_eq!(executor_count(&harness), MANY as usize);
    let now = harness.now();
    harness.controller.list_finished(now);
    harness.controller.bookmark("20", now);
    settle(&mut harness);
    assert_eq!(executor_count(&harness), MANY as usize);
    assert!(harness.controller.exits().history().is_empty());
}

#[test]
fn each_executor_missing_from_relist_is_reported_once() {
    let mut harness = ControllerHarness::new(Finished::Report);
    apply_list(&mut harness, observations(|id| version(running(id), 7)), "10");
    settle(&mut harness);
    apply_list(&mut harness, vec![version(running(1), 7).observation()], "20");
    let mut reports = BTreeMap::new();
    for _ in 0..60 {
        harness.since += Duration::from_secs(1);
        for exit in settle(&mut harness).into_iter().flat_map(|effects| effects.exits) {
            assert_eq!(exit.cause, Cause::Vanished);
            *reports.entry(exit.executor.exec_id).or_insert(0) += 1;
        }
    }
    assert_eq!((reports.len(), reports.values().max()), (MANY as usize - 1, Some(&1)));
    assert_eq!(executor_count(&harness), 1);
}

#[test]
fn executor_missing_from_poll_is_reported_after_lookup() {
    let mut harness = ControllerHarness::new(Finished::Report);
    apply_list(&mut harness, observations(|id| version(running(id), 7)), "10");
    settle(&mut harness);
    harness.since += Duration::from_secs(60);
    settle(&mut harness);
    let mut polled = PollResult::default();
    for id in (1..=MANY).filter(|id| *id != 4711) {
        polled.add(harness.controller.snapshot(), "default", &format!("nb-exec-{id}"), &format!("e{id}"), "7");
    }
    let now = harness.now();
    harness.controller.poll_finished(Some(polled.finish("30")), now, &harness.policies.clone());
    settle(&mut harness);
    harness.since += Duration::from_secs(10);
    let lookups: Vec<Lookup> = settle(&mut harness).into_iter().flat_map(|effects| effects.lookups).collect();
    assert_eq!(lookups, [Lookup::Labelled(PodKey::new("default", "nb-exec-4711"))]);
    let now = harness.now();
    harness.controller.lookup_answered(&lookups[0], LookupResult::Absent, now);
    harness.since += Duration::from_secs(1);
    let exits: Vec<_> = settle(&mut harness).into_iter().flat_map(|effects| effects.exits).collect();
    assert_eq!(exits.iter().map(|exit| exit.executor.exec_id).collect::<Vec<_>>(), [Some(4711)]);
}

#[test]
fn each_finished_executor_is_cleaned_up_once() {
    let mut harness = ControllerHarness::new(Finished::Label);
    // They exited with their driver before the replica started.
    let exited = |id| version(failed(id, 137), 7);
    let mut pods = observations(exited);
    pods.push(version(driver(), 8).phase("Failed").observation());
    apply_list(&mut harness, pods, "10");
    let mut remaining: BTreeMap<String, u32> = (1..=MANY).map(|id| (format!("nb-exec-{id}"), id)).collect();
    for step in 0..1000u32 {
        harness.since += Duration::from_secs(1);
        let effects = harness.step_after(0);
        for action in effects.actions.into_iter().flat_map(|(_, actions)| actions) {
            let Action::CleanUp { executor, .. } = action else { panic!("{action:?}") };
            let id = remaining.remove(executor.name()).unwrap_or_else(|| panic!("{executor} is cleaned up twice"));
            harness.observe(&version(failed(id, 137), 100 + step).label("spark-exec-inactive", "true"));
        }
        if remaining.is_empty() {
            return;
        }
    }
    panic!("{} are not cleaned up: {:?}", remaining.len(), remaining.keys().next());
}

#[test]
fn exits_before_interrupted_first_list_are_history_and_not_reported() {
    let mut harness = before_first_list();
    let now = harness.now();
    harness.controller.list_started(now);
    harness.controller.list_page(vec![failed(1, 137).observation()], now);
    assert!(harness.step_after(3).exits.is_empty());
    // The list breaks off, and is read again.
    let now = harness.now();
    harness.controller.list_started(now);
    harness.controller.list_page(vec![failed(1, 137).observation(), failed(2, 137).observation()], now);
    harness.controller.list_finished(now);
    harness.controller.bookmark("10", now);
    harness.controller.leadership_acquired(FoundCheckpoint::default(), now.at);
    assert!(harness.step_after(3).exits.is_empty(), "a first installation");
    assert_eq!(harness.controller.exits().history().len(), 2);
}

#[test]
fn exits_wait_until_first_list_is_complete() {
    let mut harness = before_first_list();
    let now = harness.now();
    harness.controller.list_started(now);
    harness.controller.list_page(vec![failed(1, 1).observation()], now);
    harness.step_after(3);
    settle(&mut harness); // No step is due for them.
    assert!(harness.controller.exits().history().is_empty(), "its driver may be in the rest of the list");
    let now = harness.now();
    harness.controller.list_page(vec![driver().phase("Failed").observation()], now);
    harness.controller.list_finished(now);
    harness.controller.bookmark("10", now);
    harness.step_after(3);
    assert_eq!(harness.controller.exits().history().len(), 1);
}

#[test]
fn list_queued_before_interruption_does_not_end_outage() {
    let mut harness = ControllerHarness::new(Finished::Label);
    harness.observe(&driver());
    harness.observe(&failed(1, 137));
    harness.step_after(5);
    let mut pods = observations(|id| version(running(id + 1), 7));
    pods.extend([driver().observation(), failed(1, 137).observation()]);
    apply_list(&mut harness, pods, "10");
    let now = harness.now();
    harness.controller.watch_interrupted(now.at);
    settle(&mut harness);
    assert_eq!(executor_count(&harness), MANY as usize + 1);
    assert!(harness.actions_within(300).is_empty(), "the driver's watch is interrupted, too");
    let now = harness.now();
    harness.controller.bookmark("11", now);
    assert!(!harness.actions_within(300).is_empty());
}

/// A replica that has not listed pods yet.
fn before_first_list() -> ControllerHarness {
    let mut harness = ControllerHarness::new(Finished::Report);
    harness.controller = Controller::new(harness.at, Settings::default());
    harness.apply(RelatedChange::Apis(ServedApis::default()));
    harness.apply(RelatedChange::Namespaces(Watched::Listed(Vec::new())));
    harness
}

#[test]
fn executor_observed_again_before_its_exit_is_processed_is_not_reported() {
    let mut harness = ControllerHarness::new(Finished::Report);
    apply_list(&mut harness, observations(|id| version(running(id), 7)), "10");
    settle(&mut harness);
    let now = harness.now();
    harness.controller.watch_event(PodChange::Listed(Vec::new()), now);
    while executor_count(&harness) > 0 {
        harness.step_after(0);
    }
    // The list proves that all are deleted, which the controller concludes in batches. Meanwhile one gets its labels back.
    let now = harness.now();
    harness.controller.bookmark("20", now);
    let mut reported = (0..5).map(|_| harness.step_after(0).exits.len()).sum::<usize>();
    harness.observe(&version(running(999), 30));
    for _ in 0..60 {
        harness.since += Duration::from_secs(1);
        reported += settle(&mut harness).into_iter().flat_map(|effects| effects.exits).count();
    }
    assert_eq!((reported, executor_count(&harness)), (MANY as usize - 1, 1));
}

#[test]
fn second_exit_during_batch_processing_is_reported() {
    let mut harness = ControllerHarness::new(Finished::Report);
    harness.observe(&driver());
    harness.observe(&crashed(1, 5));
    harness.since += Duration::from_secs(2);
    assert_eq!(settle(&mut harness).into_iter().flat_map(|effects| effects.exits).count(), 1);
    // It runs again, and many others exit with it: their batch takes several steps.
    harness.observe(&version(running(1), 6).spec("restartPolicy", "Always"));
    for id in 2..=MANY / 5 {
        harness.observe(&version(failed(id, 137), 7));
    }
    harness.since += Duration::from_secs(2);
    let mut count = harness.step_after(0).exits.len();
    harness.observe(&crashed(1, 8));
    for _ in 0..5 {
        harness.since += Duration::from_secs(2);
        count += settle(&mut harness).into_iter().flat_map(|effects| effects.exits).count();
    }
    assert_eq!(count, MANY as usize / 5, "the others, and its second exit");
}

#[test]
fn leader_reports_all_exits_and_follower_keeps_at_most_20000() {
    let ObservedPod::Executor(app, one) = failed(1, 137).observation() else { unreachable!() };
    let batch = || {
        let mut batch = Batch::default();
        for id in 0..20_100u64 {
            let uid: std::sync::Arc<str> = format!("u{id}").into();
            let mut executor = one.clone();
            (executor.uid, executor.exec_id) = (uid.clone(), Some(id.try_into().unwrap()));
            batch.ended.insert(
                uid,
                Ended { app: app.clone(), executor: executor.into(), was_live: true, after: Some("1".into()) },
            );
        }
        batch
    };
    let now = ControllerHarness::new(Finished::Report).now();
    let reported = |leader_state: LeaderState| {
        let mut exits = Exits::default();
        exits.due_reports(leader_state, Duration::ZERO, now.at, 0);
        exits.record(batch(), now);
        exits.due_reports(LeaderState::Leader, Duration::ZERO, now.at, usize::MAX).len()
    };
    assert_eq!((reported(LeaderState::Leader), reported(LeaderState::Follower)), (20_100, 20_000));
}

/// A tenant's executors may name any number of pods as their owners.
#[test]
fn lookups_of_absent_owner_pods_back_off() {
    let mut harness = ControllerHarness::new(Finished::Report);
    for id in 1..=3000 {
        let pod = executor(id).stored(&format!("e{id}")).phase("Pending");
        harness.observe(&pod.owned_by("Pod", &format!("owner-{id}"), &format!("o{id}")));
    }
    let mut lookups = 0;
    let mut pause = Duration::ZERO;
    while harness.since < Duration::from_secs(30 * 60) {
        harness.since += pause.max(Duration::from_millis(200));
        let now = harness.now();
        let effects = harness.controller.step(now, &harness.policies, harness.leader_state);
        pause = effects.wake_at.unwrap().saturating_duration_since(now.at);
        for lookup in effects.lookups {
            lookups += 1;
            harness.controller.lookup_answered(&lookup, LookupResult::Absent, now);
        }
        for (set, _) in &effects.actions {
            harness.controller.actions_finished(set, false, false, now.at);
        }
    }
    assert!((3000..=4 * 3000).contains(&lookups), "{lookups} lookups in half an hour");
}

#[test]
fn poll_detects_a_missed_deletion_while_many_absences_cannot_be_confirmed() {
    let mut harness = ControllerHarness::new(Finished::Report);
    harness.observe(&driver());
    let other = pod("other-driver").driver_of("spark-other").stored("o1").phase("Running");
    harness.observe(&other);
    for id in 1..=1100 {
        harness.observe(&running(id));
    }
    harness.step_after(60);
    harness.lists_fail = true;
    harness.apply(PodChange::Listed(vec![driver().observation(), other.observation()]));
    let now = harness.now();
    harness.controller.bookmark("50", now);
    harness.step_after(60);
    // The watch lost the deletion of the other driver.
    let mut polled = PollResult::default();
    polled.add(harness.controller.snapshot(), "default", "nb-driver", DRIVER_UID, "1");
    let now = harness.now();
    harness.controller.poll_finished(Some(polled.finish("60")), now, &harness.policies.clone());
    let mut reads = Vec::new();
    for _ in 0..10 {
        reads.extend(harness.step_after(1).lookups);
    }
    assert_eq!(reads, [Lookup::Labelled(PodKey::new("default", "other-driver"))]);
}
