//! Finished executors in the controller: left to their driver first, then labelled or deleted. Also pods that hang in
//! Terminating, which are reported.

use std::collections::HashSet;
use std::time::Duration;

use crate::support::controller_harness::*;
use crate::support::*;
use usher_core::controller::{Controller, Lookup, LookupResult};
use usher_core::event_aggregator::EventAggregator;
use usher_core::leader::LeaderState;
use usher_core::lifecycle::Exit;
use usher_core::lifecycle::cause::Cause;
use usher_core::lifecycle::exits::REMEMBERED_FOR;
use usher_core::planning::{Action, Cleanup};
use usher_core::policy::{Finished, Keep, Lifecycle};
use usher_core::reason::Reason;
use usher_core::signature::Creator;
use usher_core::snapshot::{Change, DriverPod, ObservedPod, PodChange};
use usher_spark::ids::{AppKey, PodKey};
use usher_spark::time::Now;

#[test]
fn finished_executor_is_labelled_after_grace_of_running_driver() {
    let mut harness = ControllerHarness::new(Finished::Label);
    harness.observe(&driver());
    harness.observe(&running(1));
    harness.step_after(1);
    harness.observe(&failed(1, 1));
    let actions = harness.actions_within(200);
    assert_eq!(
        first_of(&actions, Reason::ExecutorLabelled),
        Some(181),
        "detected after one second, then the grace period"
    );
    assert!(
        actions
            .iter()
            .all(|(_, action)| matches!(action, Action::CleanUp { how: Cleanup::Label, gone_driver: None, .. }))
    );
}

#[test]
fn polling_interval_of_application_lengthens_grace_but_never_shortens_it() {
    for (conf, at) in [
        ("spark.kubernetes.executor.apiPollingInterval=5min\nspark.kubernetes.executor.missingPodDetectDelta=0", 601),
        ("spark.kubernetes.executor.apiPollingInterval=1s\nspark.kubernetes.executor.missingPodDetectDelta=1s", 181),
    ] {
        let mut harness = ControllerHarness::new(Finished::Label);
        harness.observe(&driver());
        harness.conf(conf);
        harness.observe(&failed(1, 1));
        let actions = harness.actions_within(700);
        assert_eq!(first_of(&actions, Reason::ExecutorLabelled), Some(at));
    }
}

#[test]
fn executors_of_finished_driver_are_deleted_immediately_and_failed_ones_after_keep_failed() {
    let mut harness = ControllerHarness::new(Finished::Delete);
    harness.observe(&driver().phase("Failed"));
    harness.observe(&failed(1, 1));
    harness.observe(&version(running(2), 5).phase("Succeeded"));
    let actions = harness.actions_within(4000);
    let deleted = |name: &str| {
        actions
            .iter()
            .find(|(_, action)| matches!(action, Action::CleanUp { executor, .. } if executor.name() == name))
            .map(|(at, _)| *at)
    };
    assert_eq!(deleted("nb-exec-2"), Some(1), "its driver no longer can");
    assert_eq!(
        deleted("nb-exec-1"),
        Some(3601),
        "retained for an hour (keepFailed), because the application caused the failure"
    );
    let (_, action) = actions.iter().find(|(_, action)| action.reason() == Some(Reason::ExecutorDeleted)).unwrap();
    let Action::CleanUp { gone_driver: Some(driver), cause: Cause::Completed, .. } = action else {
        panic!("{action:?}")
    };
    assert_eq!(&*driver.uid, DRIVER_UID, "which is read again before the deletion");
}

#[test]
fn executor_is_deleted_if_lookup_of_its_owner_returns_absent() {
    let mut harness = ControllerHarness::new(Finished::Delete);
    harness.observe(&failed(1, 137));
    let actions = harness.actions_within(10);
    assert!(first_of(&actions, Reason::ExecutorDeleted).is_some_and(|at| at <= 3), "{actions:?}");
}

#[test]
fn executor_with_unknown_driver_is_reported_but_not_cleaned_up() {
    let mut harness = ControllerHarness::new(Finished::Delete);
    let mut orphan = failed(1, 137);
    orphan.0["metadata"].as_object_mut().unwrap().remove("ownerReferences");
    harness.observe(&orphan);
    let mut reported = 0;
    for _ in 0..1000 {
        let effects = harness.step_after(1);
        reported += effects.exits.len();
        assert!(effects.actions.is_empty());
    }
    assert_eq!(reported, 1, "its exit is reported nevertheless");
}

#[test]
fn finished_executors_are_only_labelled_if_driver_retains_them() {
    // Its configuration says so, or it has labelled an executor.
    for by_conf in [true, false] {
        let mut harness = ControllerHarness::new(Finished::Delete);
        harness.observe(&driver());
        if by_conf {
            harness.conf("spark.kubernetes.executor.deleteOnTermination=false");
        } else {
            harness.observe(&failed(9, 0).label("spark-exec-inactive", "true"));
        }
        harness.observe(&failed(1, 137));
        let actions = harness.actions_within(300);
        assert_eq!(first_of(&actions, Reason::ExecutorDeleted), None);
        assert_eq!(first_of(&actions, Reason::ExecutorLabelled), Some(181));
    }
}

#[test]
fn no_cleanup_in_report_mode_or_of_inactive_skipped_or_running_executors() {
    let mut harness = ControllerHarness::new(Finished::Report);
    harness.observe(&driver().phase("Failed"));
    harness.observe(&failed(1, 137));
    assert!(harness.actions_within(300).is_empty());
    let mut harness = ControllerHarness::new(Finished::Delete);
    harness.observe(&driver().phase("Failed"));
    harness.observe(&failed(1, 137).label("spark-exec-inactive", "true"));
    harness.observe(&failed(2, 137).annotation("spark-usher.io/skip", "true"));
    harness.observe(&running(3));
    assert!(harness.actions_within(300).is_empty());
}

#[test]
fn each_pod_uid_is_reported_once_and_failures_are_forgotten_with_application() {
    let mut harness = ControllerHarness::new(Finished::Report);
    harness.observe(&driver());
    harness.observe(&failed(1, 137));
    let mut reported = 0;
    for second in 0..1000 {
        reported += harness.step_after(1).exits.len();
        if second % 100 == 0 {
            harness.observe(&version(failed(1, 137), 6 + second));
        }
    }
    assert_eq!(reported, 1);
    harness.delete_pod("nb-exec-1", "e1");
    assert_eq!(harness.step_after(1).exits.len(), 0);
    let mut another = version(running(1), 2000);
    another.0["metadata"]["uid"] = "other".into();
    harness.observe(&another);
    harness.delete_pod("nb-exec-1", "other");
    assert!(
        harness.step_after(1).exits.is_empty(),
        "its driver may be about to exit, which would explain the deletion"
    );
    let exits = harness.step_after(5).exits;
    assert_eq!(exits.iter().map(|exit| exit.cause).collect::<Vec<_>>(), [Cause::Deleted]);
    // Long after the exit, the same uid would be reported again. No such pod exists, and the history is bounded.
    harness.step_after(REMEMBERED_FOR.as_secs() + 2);
    assert_eq!(
        harness.controller.exits().failures(&AppKey::new("default", APP), creator(), None, harness.now().at),
        1,
        "the failure counts as long as the application exists"
    );
    harness.delete_pod("nb-driver", DRIVER_UID);
    harness.step_after(REMEMBERED_FOR.as_secs() + 2);
    assert_eq!(harness.controller.exits().failures(&AppKey::new("default", APP), creator(), None, harness.now().at), 0);
}

#[test]
fn pod_that_hangs_in_terminating_is_reported_with_finalizers_and_node() {
    let mut harness = ControllerHarness::new(Finished::Label);
    harness.observe(&driver());
    let mut pod = running(1).spec("nodeName", "node-7");
    pod.0["metadata"]["deletionTimestamp"] = harness.now().wall.to_string().into();
    pod.0["metadata"]["finalizers"] = serde_json::json!(["example.com/hold"]);
    harness.observe(&pod);
    let actions = harness.actions_within(130);
    let at = first_of(&actions, Reason::TerminationHangs).unwrap();
    assert!((60..=121).contains(&at), "{at}");
    let message = actions.iter().find_map(|(_, action)| match action {
        Action::RecordEvent(event) if event.reason == Reason::TerminationHangs => Some(event.message.clone()),
        _ => None,
    });
    assert!(message.unwrap().contains("blocked by finalizers: example.com/hold (on node-7)"));
}

#[test]
fn failures_beyond_limit_are_reported_with_one_message() {
    let mut harness = ControllerHarness::new(Finished::Label);
    harness.observe(&driver());
    harness.conf("spark.executor.instances=1\nspark.executor.failuresValidityInterval=1h");
    for id in 1..=5 {
        harness.observe(&failed(id, 1));
    }
    let actions = harness.actions_within(200);
    let messages = actions.iter().filter_map(|(_, action)| match action {
        Action::RecordEvent(event) if event.reason == Reason::ExecutorFailuresExceeded => Some(&event.message),
        _ => None,
    });
    // The writer does not repeat an Event with the same message.
    assert_eq!(messages.collect::<HashSet<_>>().len(), 1, "five failures, and three are allowed");
    let app = AppKey::new("default", APP);
    assert_eq!(
        harness.controller.exits().failures(&app, creator(), Some(Duration::from_secs(3600)), harness.now().at),
        5
    );
    assert_eq!(
        harness.controller.exits().failures(&app, creator(), Some(Duration::from_secs(10)), harness.now().at),
        0
    );
}

#[test]
fn failures_are_counted_per_creator_and_dropped_with_its_executors() {
    let mut harness = ControllerHarness::new(Finished::Report);
    harness.observe(&driver());
    harness.observe(&failed(100, 1));
    let stranger = |id: u32| (format!("eve-{id}"), format!("u-{id}"));
    for id in 1..=20 {
        let (name, uid) = stranger(id);
        harness.observe(&failed(id, 1).owned_by("Pod", &name, &uid));
    }
    harness.step_after(1);
    let app = AppKey::new("default", APP);
    let count = |harness: &ControllerHarness, creator| {
        harness.controller.exits().failures(&app, creator, None, harness.now().at)
    };
    let (name, uid) = stranger(1);
    let eve = Some(Creator::of_pod(&name, &uid));
    assert_eq!((count(&harness, eve), count(&harness, creator())), (1, 1));
    for id in 1..=20 {
        harness.delete_pod(&format!("nb-exec-{id}"), &format!("e{id}"));
    }
    harness.step_after(1);
    harness.observe(&failed(101, 1));
    harness.step_after(1);
    assert_eq!((count(&harness, eve), count(&harness, creator())), (0, 2));
}

#[test]
fn failures_of_other_creators_do_not_count_against_driver() {
    let mut harness = ControllerHarness::new(Finished::Label);
    harness.observe(&driver());
    harness.conf("spark.executor.instances=1");
    for id in 1..=9 {
        harness.observe(&failed(id, 1).owned_by("Pod", "eve", "9-9"));
    }
    let actions = harness.actions_within(200);
    assert_eq!(first_of(&actions, Reason::ExecutorFailuresExceeded), None);
}

#[test]
fn grace_does_not_elapse_while_watch_is_interrupted() {
    let mut harness = ControllerHarness::new(Finished::Label);
    harness.observe(&driver());
    harness.observe(&failed(1, 137));
    assert!(harness.actions_within(170).is_empty());
    let now = harness.now().at;
    harness.controller.watch_interrupted(now);
    assert!(harness.actions_within(60).is_empty(), "the API server is unavailable, for the driver, too");
    let now = harness.now();
    harness.controller.bookmark("50", now);
    let actions = harness.actions_within(300);
    // The driver needs time to reconnect and to poll.
    let at = first_of(&actions, Reason::ExecutorLabelled).unwrap();
    assert!((100..=125).contains(&at), "{at}");
}

#[test]
fn exit_events_are_aggregated_and_rate_limited() {
    let mut harness = ControllerHarness::new(Finished::Report);
    harness.observe(&driver());
    let mut exits: Vec<Exit> = Vec::new();
    for id in 1..=30 {
        harness.observe(&failed(id, 137));
    }
    harness.observe(&version(running(40), 5).phase("Succeeded"));
    exits.extend(harness.step_after(1).exits);
    let (mut aggregator, mut now) = (EventAggregator::default(), harness.now().at);
    for exit in &exits {
        aggregator.add(exit, harness.controller.snapshot(), now);
    }
    let first = aggregator.due(now);
    assert_eq!(first.len(), 1, "one driver, one cause; a normal exit has no Event");
    assert_eq!((first[0].count, first[0].subject.pod.name()), (30, "nb-driver"));
    assert!(aggregator.due(now).is_empty(), "its write is in flight");
    aggregator.written(&first[0], true, now);
    assert!(aggregator.due(now).is_empty() && aggregator.next(now).is_none());
    aggregator.add(&exits[0], harness.controller.snapshot(), now);
    assert!(aggregator.due(now).is_empty(), "not every exit is a write");
    now += Duration::from_secs(6);
    assert_eq!(aggregator.due(now)[0].count, 31);
    // The lease is lost while that write is in flight, and is acquired again: the Event is written again, with later exits.
    aggregator.add(&exits[0], harness.controller.snapshot(), now);
    aggregator.interrupt();
    assert_eq!(aggregator.due(now)[0].count, 32);
    // Another replica leads: unwritten exits are lost, and `clear` returns their number.
    assert_eq!((aggregator.clear(), aggregator.clear()), (2, 0));
    aggregator.add(&exits[0], harness.controller.snapshot(), now);
    assert_eq!(aggregator.flush(10).len(), 1, "the final write");
    assert!(aggregator.flush(10).is_empty());
    // Executors with unknown drivers: an Event each, up to a limit.
    let mut aggregator = EventAggregator::default();
    for exit in &exits {
        let mut without_owner = (*exit.executor).clone();
        std::sync::Arc::make_mut(&mut without_owner.template).owner = None;
        let exit = Exit { executor: without_owner.into(), app: AppKey::new("default", "another"), ..exit.clone() };
        aggregator.add(&exit, harness.controller.snapshot(), now);
    }
    assert_eq!(aggregator.due(now).len(), 10);
    assert_eq!(aggregator.due(now + Duration::from_secs(10)).len(), 2);
}

#[test]
fn late_event_of_deleted_pod_neither_restores_it_nor_ends_its_successor() {
    let mut harness = ControllerHarness::new(Finished::Report);
    harness.observe(&running(1));
    harness.delete_pod("nb-exec-1", "e1");
    harness.observe(&version(running(1), 9));
    assert!(harness.controller.snapshot().executor("default", "nb-exec-1").is_none());
    // Late events of the first pod do not end the next pod of the same name.
    let mut next = version(running(1), 12);
    next.0["metadata"]["uid"] = "next".into();
    harness.observe(&next);
    harness.observe(&version(failed(1, 1), 10));
    harness.delete_pod("nb-exec-1", "e1");
    assert_eq!(&*harness.controller.snapshot().executor("default", "nb-exec-1").unwrap().1.uid, "next");
    assert!(harness.step_after(1).exits.is_empty(), "its driver is not known yet");
    assert_eq!(harness.step_after(5).exits.len(), 1);
}

#[test]
fn driver_without_labels_found_running_by_lookup_gets_grace() {
    let mut harness = ControllerHarness::new(Finished::Delete);
    harness.observe(&failed(1, 137));
    let answer_running = |lookup: &Lookup, controller: &mut Controller, now: Now| {
        let pod = pod("nb-driver").stored(DRIVER_UID).phase("Running").observation();
        let ObservedPod::Other(_, pod) = pod else { panic!() };
        let pod: DriverPod = pod;
        controller.lookup_answered(lookup, LookupResult::Pod(pod), now);
    };
    let mut first_action = None;
    for second in 1..300 {
        harness.since += Duration::from_secs(1);
        let now = harness.now();
        let effects = harness.controller.step(now, &harness.policies, LeaderState::Leader);
        for lookup in &effects.lookups {
            answer_running(lookup, &mut harness.controller, now);
        }
        if !effects.actions.is_empty() {
            first_action.get_or_insert(second);
        }
    }
    assert_eq!(first_action, Some(181));
}

/// For Spark 4, an executor fails if a companion container fails; its own container may continue (`checkAllContainers=false`).
#[test]
fn executor_with_failed_companion_is_reported_and_deleted_only_after_it_exits() {
    let mut harness = ControllerHarness::new(Finished::Delete);
    harness.observe(&driver().phase("Failed"));
    let mut pod = version(running(1).driver_url("d"), 5);
    pod.0["spec"]["containers"].as_array_mut().unwrap().push(serde_json::json!({"name": "sidecar"}));
    pod.0["status"]["containerStatuses"] = serde_json::json!([{"name": "sidecar", "state": {"terminated": {"exitCode": 1}}}, {"name": "main", "state": {"running": {}}}]);
    harness.observe(&pod);
    assert_eq!(harness.step_after(1).exits.iter().map(|exit| exit.cause).collect::<Vec<_>>(), [Cause::CompanionFailed]);
    assert!(harness.actions_within(4000).is_empty(), "its own container runs");
    harness.observe(&version(pod, 6).phase("Failed"));
    assert!(first_of(&harness.actions_within(10), Reason::ExecutorDeleted).is_some());
}

/// Executors of the statefulset and deployment allocators restart in place.
#[test]
fn restarting_executor_is_not_cleaned_up_and_each_exit_is_reported() {
    let mut harness = ControllerHarness::new(Finished::Delete);
    harness.observe(&driver());
    let mut reported = 0;
    for round in 0..5 {
        harness.observe(&crashed(1, 10 + 2 * round));
        reported += harness.step_after(1).exits.len();
        assert!(harness.actions_within(100).is_empty());
        harness.observe(&version(running(1), 11 + 2 * round).spec("restartPolicy", "Always"));
        assert!(harness.actions_within(400).is_empty());
    }
    assert_eq!(reported, 5);
}

/// A watch that resumes after an outage shows all events in one batch.
#[test]
fn two_exits_and_deletion_in_one_batch_are_reported_as_two_exits() {
    let mut harness = ControllerHarness::new(Finished::Label);
    harness.observe(&driver());
    harness.observe(&version(running(1), 9).spec("restartPolicy", "Always"));
    harness.observe(&crashed(1, 10));
    harness.observe(&version(running(1), 11).spec("restartPolicy", "Always"));
    harness.observe(&crashed(1, 12));
    harness.apply(PodChange::Deleted(crashed(1, 13).deleting().observation()));
    assert_eq!(harness.step_after(2).exits.len(), 2);
    assert_eq!(harness.step_after(60).exits.len(), 0);
}

#[test]
fn huge_polling_interval_does_not_overflow_grace() {
    let mut harness = ControllerHarness::new(Finished::Label);
    harness.observe(&driver());
    harness.conf("spark.kubernetes.executor.apiPollingInterval=100000000000000d\nspark.kubernetes.executor.missingPodDetectDelta=1d");
    harness.observe(&failed(1, 1));
    assert!(harness.actions_within(100).is_empty());
}

#[test]
fn driver_name_with_new_uid_is_looked_up_again_and_each_executor_uses_its_own_driver() {
    let mut harness = ControllerHarness::new(Finished::Delete);
    harness.observe(&failed(1, 137).owned_by("Pod", "nb-0", "a"));
    harness.step_after(1);
    harness.step_after(1);
    // The driver's name was free for a moment; now another pod has it, and one of its own executors has failed.
    harness.observe(&version(failed(2, 137), 9).owned_by("Pod", "nb-0", "b"));
    harness.since += Duration::from_secs(1);
    let now = harness.now();
    let effects = harness.controller.step(now, &harness.policies, LeaderState::Leader);
    assert!(effects.lookups.contains(&Lookup::Pod(PodKey::new("default", "nb-0"))), "{:?}", effects.lookups);
    let touched = effects.actions.iter().flat_map(|(_, actions)| actions);
    for action in touched {
        let Action::CleanUp { executor, gone_driver, .. } = action else { continue };
        assert_eq!(executor.name(), "nb-exec-1");
        assert_eq!(gone_driver.as_ref().map(|driver| &*driver.uid), Some("a"), "each executor's own driver decides");
    }
}

#[test]
fn unreadable_configuration_labels_instead_of_deleting() {
    let mut harness = ControllerHarness::new(Finished::Delete);
    harness.observe(&driver().conf_map("conf").phase("Failed"));
    harness.observe(&failed(1, 137));
    let actions = harness.actions_within(300);
    assert_eq!(first_of(&actions, Reason::ExecutorDeleted), None);
    assert!(first_of(&actions, Reason::ExecutorLabelled).is_some());
}

#[test]
fn older_resource_version_does_not_revive_finished_driver() {
    let mut harness = ControllerHarness::new(Finished::Delete);
    harness.observe(&version(driver(), 9).phase("Failed"));
    harness.observe(&version(driver(), 5));
    let app = harness.controller.snapshot().app("default", APP).unwrap().clone();
    assert!(app.live_driver().is_none());
    harness.apply(PodChange::Listed(vec![version(driver(), 7).observation()]));
    assert!(harness.controller.snapshot().app("default", APP).unwrap().live_driver().is_none());
}

#[test]
fn deletion_event_reports_exit_that_watch_missed() {
    let mut harness = ControllerHarness::new(Finished::Label);
    harness.observe(&driver());
    harness.observe(&running(1));
    harness.step_after(1);
    // The watch missed the exit of the first and all events of the second; the deletions contain their last state.
    harness.apply(PodChange::Deleted(version(failed(1, 52), 8).observation()));
    harness.apply(PodChange::Deleted(version(failed(2, 137), 9).observation()));
    let exits = harness.step_after(2).exits;
    let reported: Vec<(String, Cause, Option<i32>)> =
        exits.iter().map(|exit| (exit.executor.name.to_string(), exit.cause, exit.exit_code())).collect();
    assert_eq!(reported.len(), 2, "{reported:?}");
    assert!(reported.contains(&("nb-exec-1".into(), Cause::JvmOom, Some(52))), "{reported:?}");
    assert!(reported.contains(&("nb-exec-2".into(), Cause::Killed, Some(137))), "{reported:?}");
    let app = harness.controller.snapshot().app("default", APP).unwrap().clone();
    assert!(app.executors().is_empty());
    // A late event does not restore it, and the deletion of another pod with that name does not remove the executor.
    harness.observe(&version(running(1), 7));
    harness.observe(&version(running(3), 12));
    harness.apply(PodChange::Deleted(version(executor(3).stored("another"), 11).observation()));
    assert!(harness.step_after(2).exits.is_empty());
    assert_eq!(harness.controller.snapshot().app("default", APP).unwrap().executors().len(), 1);
}

#[test]
fn stale_list_does_not_restore_deleted_executor() {
    let mut harness = ControllerHarness::new(Finished::Label);
    harness.observe(&driver());
    harness.observe(&failed(1, 137));
    harness.step_after(1);
    harness.delete_pod("nb-exec-1", "e1");
    harness.apply(PodChange::Listed(vec![driver().observation(), running(1).observation()]));
    assert!(harness.controller.snapshot().app("default", APP).unwrap().executors().is_empty());
}

/// The pod left the watch, and its absence waits for a GET. Meanwhile the deletion by a rule finds no pod.
#[test]
fn exit_whose_confirmation_is_overtaken_by_a_deletion_that_finds_no_pod_is_reported() {
    let mut harness = ControllerHarness::new(Finished::Label);
    harness.observe(&driver());
    harness.observe(&version(running(1), 8));
    harness.step_after(1);
    harness.apply(PodChange::Deleted(version(running(1), 9).observation()));
    let reads = harness.step_after(1).lookups;
    let read = reads.into_iter().find(|read| matches!(read, Lookup::Labelled(_))).unwrap();
    harness.delete_pod("nb-exec-1", "e1");
    let now = harness.now();
    harness.controller.lookup_answered(&read, LookupResult::Absent, now);
    let reported: usize = (0..400).map(|_| harness.step_after(1).exits.len()).sum();
    assert_eq!(reported, 1);
}

/// The answer to the label's PATCH arrives after the executor's deletion, and after a list that lacks it.
#[test]
fn answer_older_than_the_last_list_does_not_restore_deleted_executor() {
    let mut harness = ControllerHarness::new(Finished::Label);
    harness.observe(&driver());
    harness.observe(&version(failed(1, 1), 10));
    assert_eq!(harness.step_after(1).exits.len(), 1);
    let now = harness.now();
    harness.apply(PodChange::Listed(vec![driver().observation()]));
    harness.controller.bookmark("15", now);
    let labelled = |at| Change::Pods(PodChange::Observed(version(failed(1, 1), at).observation()));
    let (late, newer) = (labelled(12), labelled(16));
    harness.controller.apply_written(late, now);
    assert!(harness.controller.snapshot().executor("default", "nb-exec-1").is_none());
    harness.controller.apply_written(newer, now);
    assert!(
        harness.controller.snapshot().executor("default", "nb-exec-1").is_some(),
        "the list is older than the answer"
    );
}

/// An executor without an owner and without a signature; only its address identifies its driver.
fn unowned(mut pod: PodBuilder, host: &str) -> PodBuilder {
    pod.0["metadata"].as_object_mut().unwrap().remove("ownerReferences");
    pod.driver_url(host)
}

/// Two drivers share a configured `spark.app.id`, or a tenant claims the application of another.
#[test]
fn exit_of_driver_cleans_up_no_executor_with_another_driver_url() {
    for others_come_later in [false, true] {
        let mut harness = ControllerHarness::new(Finished::Delete);
        harness.observe(&driver().ip("10.0.0.1"));
        harness.observe(&unowned(running(1), "10.0.0.1"));
        harness.step_after(1);
        if others_come_later {
            harness.delete_pod("nb-exec-1", "e1");
            harness.step_after(1);
        }
        harness.observe(&unowned(failed(2, 137), "192.168.0.9"));
        harness.step_after(1);
        harness.observe(&driver().ip("10.0.0.1").phase("Failed"));
        assert_eq!(harness.actions_within(400), [], "later: {others_come_later}");
    }
}

#[test]
fn executors_with_driver_url_of_finished_driver_are_cleaned_up() {
    let mut harness = ControllerHarness::new(Finished::Delete);
    harness.observe(&driver().ip("10.0.0.1"));
    for id in 1..4 {
        harness.observe(&unowned(failed(id, 137), "10.0.0.1"));
    }
    harness.step_after(1);
    harness.observe(&driver().ip("10.0.0.1").phase("Failed"));
    // The harness executes nothing, so that each plan repeats them.
    let actions = harness.actions_within(10);
    let different: std::collections::BTreeSet<String> =
        actions.iter().map(|(_, action)| format!("{action:?}")).collect();
    assert_eq!(different.len(), 3);
}

#[test]
fn executors_of_a_driver_that_retains_them_are_labelled_or_deleted_as_the_policy_says() {
    for (keep, expected) in [
        (Keep::Respect, [Reason::ExecutorLabelled; 2]),
        (Keep::UntilDriverEnds, [Reason::ExecutorDeleted; 2]),
        // The second one was rejected by its kubelet.
        (Keep::NeverRan, [Reason::ExecutorLabelled, Reason::ExecutorDeleted]),
    ] {
        let mut harness = ControllerHarness::new(Finished::Delete);
        let lifecycle = Lifecycle { keep, ..harness.policies.lifecycle };
        harness.policies = harness.policies.clone().with_lifecycle(lifecycle);
        harness.observe(&driver().ip("10.0.0.1"));
        harness.conf("spark.kubernetes.executor.deleteOnTermination=false");
        harness.observe(&unowned(failed(1, 137), "10.0.0.1"));
        let mut refused = unowned(failed(2, 137), "10.0.0.1");
        refused.0["status"] = serde_json::json!({"phase": "Failed", "reason": "OutOfcpu"});
        harness.observe(&refused);
        harness.step_after(1);
        harness.observe(&driver().ip("10.0.0.1").phase("Failed"));
        let actions = harness.actions_within(300);
        let reason_of = |name: &str| {
            let of = |action: &Action| match action {
                Action::CleanUp { executor, .. } if executor.name() == name => action.reason(),
                _ => None,
            };
            actions.iter().find_map(|(_, action)| of(action)).unwrap()
        };
        assert_eq!([reason_of("nb-exec-1"), reason_of("nb-exec-2")], expected, "{keep:?}: {actions:?}");
    }
}
