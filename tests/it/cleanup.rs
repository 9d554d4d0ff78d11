//! Finished executors in the controller: left to their driver first, then labelled or deleted. Also pods that hang in Terminating,
//! which are reported.

use std::collections::HashSet;
use std::time::Duration;

use crate::support::controller_harness::*;
use crate::support::*;
use spark_usher::controller::{Controller, Lookup, LookupResult};
use spark_usher::leader::LeaderState;
use spark_usher::lifecycle::Exit;
use spark_usher::lifecycle::cause::Cause;
use spark_usher::lifecycle::exits::REMEMBERED_FOR;
use spark_usher::policy::Finished;
use spark_usher::reason::Reason;
use spark_usher::reconcile::{Action, Cleanup};
use spark_usher::recorder::EventAggregator;
use spark_usher::signature::Creator;
use spark_usher::snapshot::{Change, DriverPod, ObservedPod, PodChange};
use spark_usher::spark::ids::{AppKey, PodKey};
use spark_usher::time::Now;

#[test]
fn the_driver_goes_first_and_then_they_are_labelled() {
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
        actions.iter().all(|(_, action)| matches!(action, Action::CleanUp { how: Cleanup::Label, gone: None, .. }))
    );
}

#[test]
fn the_applications_own_intervals_lengthen_the_grace_and_never_shorten_it() {
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
fn when_the_driver_is_gone_it_is_done_at_once_and_failures_are_kept_for_people() {
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
    let Action::CleanUp { gone: Some(driver), cause: Cause::Completed, .. } = action else { panic!("{action:?}") };
    assert_eq!(&*driver.uid, DRIVER_UID, "which is read again before the deletion");
}

#[test]
fn an_unlabelled_driver_that_is_gone_is_known_by_the_owner_of_what_ended() {
    let mut harness = ControllerHarness::new(Finished::Delete);
    harness.observe(&failed(1, 137));
    let actions = harness.actions_within(10);
    assert!(first_of(&actions, Reason::ExecutorDeleted).is_some_and(|at| at <= 3), "{actions:?}");
}

#[test]
fn where_nothing_is_known_of_a_driver_nothing_is_done() {
    let mut harness = ControllerHarness::new(Finished::Delete);
    let mut orphan = failed(1, 137);
    orphan.0["metadata"].as_object_mut().unwrap().remove("ownerReferences");
    harness.observe(&orphan);
    let mut told = 0;
    for _ in 0..1000 {
        let effects = harness.step_after(1);
        told += effects.exits.len();
        assert!(effects.actions.is_empty());
    }
    assert_eq!(told, 1, "its exit is reported nevertheless");
}

#[test]
fn who_keeps_its_executors_keeps_them() {
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
fn reported_labelled_skipped_and_dying_executors_are_left_alone() {
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
fn an_end_is_told_once_however_long_its_pod_stays_and_again_when_another_has_the_name() {
    let mut harness = ControllerHarness::new(Finished::Report);
    harness.observe(&driver());
    harness.observe(&failed(1, 137));
    let mut told = 0;
    for second in 0..1000 {
        told += harness.step_after(1).exits.len();
        if second % 100 == 0 {
            harness.observe(&version(failed(1, 137), 6 + second));
        }
    }
    assert_eq!(told, 1);
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
fn a_pod_that_hangs_in_terminating_is_told_with_its_finalizers() {
    let mut harness = ControllerHarness::new(Finished::Label);
    harness.observe(&driver());
    let mut pod = running(1).spec("nodeName", "node-7");
    pod.0["metadata"]["deletionTimestamp"] = harness.now().wall.to_string().into();
    pod.0["metadata"]["finalizers"] = serde_json::json!(["example.com/hold"]);
    harness.observe(&pod);
    let actions = harness.actions_within(130);
    let at = first_of(&actions, Reason::TerminationHangs).unwrap();
    assert!((60..=121).contains(&at), "{at}");
    let told = actions.iter().find_map(|(_, action)| match action {
        Action::RecordEvent(told) if told.reason == Reason::TerminationHangs => Some(told.message.clone()),
        _ => None,
    });
    assert!(told.unwrap().contains("blocked by finalizers: example.com/hold (on node-7)"));
}

#[test]
fn too_many_failures_are_told_in_the_same_words() {
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
fn failures_of_many_creators_are_forgotten_with_them() {
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
fn failures_of_others_are_not_the_drivers_to_count() {
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
fn a_grace_does_not_go_on_while_nothing_can_be_seen() {
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
fn events_count_and_are_not_more_than_a_namespace_can_bear() {
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
        let mut lonely = (*exit.executor).clone();
        std::sync::Arc::make_mut(&mut lonely.template).owner = None;
        let exit = Exit { executor: lonely.into(), app: AppKey::new("default", "another"), ..exit.clone() };
        aggregator.add(&exit, harness.controller.snapshot(), now);
    }
    assert_eq!(aggregator.due(now).len(), 10);
    assert_eq!(aggregator.due(now + Duration::from_secs(10)).len(), 2);
}

#[test]
fn an_answer_that_was_overtaken_by_the_end_raises_nobody() {
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
fn a_driver_without_labels_that_lives_is_alive() {
    let mut harness = ControllerHarness::new(Finished::Delete);
    harness.observe(&failed(1, 137));
    let lives = |read: &Lookup, controller: &mut Controller, now: Now| {
        let pod = pod("nb-driver").stored(DRIVER_UID).phase("Running").observation();
        let ObservedPod::Other(_, pod) = pod else { panic!() };
        let pod: DriverPod = pod;
        controller.lookup_answered(read, LookupResult::Pod(pod), now);
    };
    let mut acted = None;
    for second in 1..300 {
        harness.since += Duration::from_secs(1);
        let now = harness.now();
        let effects = harness.controller.step(now, &harness.policies, LeaderState::Leader);
        for read in &effects.lookups {
            lives(read, &mut harness.controller, now);
        }
        if !effects.actions.is_empty() {
            acted.get_or_insert(second);
        }
    }
    assert_eq!(acted, Some(181));
}

/// For Spark 4, an executor fails if a companion container fails; its own container may continue (`checkAllContainers=false`).
#[test]
fn an_executor_whose_companion_failed_is_told_and_left_alone_while_it_runs() {
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
fn a_container_that_is_started_again_is_no_leftover_and_its_next_end_is_news() {
    let mut harness = ControllerHarness::new(Finished::Delete);
    harness.observe(&driver());
    let mut told = 0;
    for round in 0..5 {
        harness.observe(&crashed(1, 10 + 2 * round));
        told += harness.step_after(1).exits.len();
        assert!(harness.actions_within(100).is_empty());
        harness.observe(&version(running(1), 11 + 2 * round).spec("restartPolicy", "Always"));
        assert!(harness.actions_within(400).is_empty());
    }
    assert_eq!(told, 5);
}

/// A watch that resumes after an outage shows all events in one batch.
#[test]
fn two_ends_and_the_deletion_in_one_batch_are_two_ends() {
    let mut harness = ControllerHarness::new(Finished::Label);
    harness.observe(&driver());
    harness.observe(&version(running(1), 9).spec("restartPolicy", "Always"));
    harness.observe(&crashed(1, 10));
    harness.observe(&version(running(1), 11).spec("restartPolicy", "Always"));
    harness.observe(&crashed(1, 12));
    harness.apply(Change::Pods(PodChange::Deleted(crashed(1, 13).deleting().observation())));
    assert_eq!(harness.step_after(2).exits.len(), 2);
    assert_eq!(harness.step_after(60).exits.len(), 0);
}

#[test]
fn a_tenants_numbers_cannot_break_the_clock() {
    let mut harness = ControllerHarness::new(Finished::Label);
    harness.observe(&driver());
    harness.conf("spark.kubernetes.executor.apiPollingInterval=100000000000000d\nspark.kubernetes.executor.missingPodDetectDelta=1d");
    harness.observe(&failed(1, 1));
    assert!(harness.actions_within(100).is_empty());
}

#[test]
fn executors_of_a_driver_that_came_back_under_its_name_are_looked_at_anew() {
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
        let Action::CleanUp { executor, gone, .. } = action else { continue };
        assert_eq!(executor.name(), "nb-exec-1");
        assert_eq!(gone.as_ref().map(|driver| &*driver.uid), Some("a"), "each executor's own driver decides");
    }
}

#[test]
fn a_configuration_that_cannot_be_read_deletes_nobody() {
    let mut harness = ControllerHarness::new(Finished::Delete);
    harness.observe(&driver().conf_map("conf").phase("Failed"));
    harness.observe(&failed(1, 137));
    let actions = harness.actions_within(300);
    assert_eq!(first_of(&actions, Reason::ExecutorDeleted), None);
    assert!(first_of(&actions, Reason::ExecutorLabelled).is_some());
}

#[test]
fn an_older_sighting_of_a_driver_brings_nobody_back_to_life() {
    let mut harness = ControllerHarness::new(Finished::Delete);
    harness.observe(&version(driver(), 9).phase("Failed"));
    harness.observe(&version(driver(), 5));
    let app = harness.controller.snapshot().app("default", APP).unwrap().clone();
    assert!(app.live_driver().is_none());
    harness.apply(Change::Pods(PodChange::Listed(vec![version(driver(), 7).observation()])));
    assert!(harness.controller.snapshot().app("default", APP).unwrap().live_driver().is_none());
}

#[test]
fn a_deletion_tells_how_a_pod_was_that_nobody_had_seen_end() {
    let mut harness = ControllerHarness::new(Finished::Label);
    harness.observe(&driver());
    harness.observe(&running(1));
    harness.step_after(1);
    // The watch missed the exit of the first and all events of the second; the deletions contain their last state.
    harness.apply(Change::Pods(PodChange::Deleted(version(failed(1, 52), 8).observation())));
    harness.apply(Change::Pods(PodChange::Deleted(version(failed(2, 137), 9).observation())));
    let exits = harness.step_after(2).exits;
    let told: Vec<(String, Cause, Option<i32>)> =
        exits.iter().map(|exit| (exit.executor.name.to_string(), exit.cause, exit.exit_code())).collect();
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(told.contains(&("nb-exec-1".into(), Cause::JvmOom, Some(52))), "{told:?}");
    assert!(told.contains(&("nb-exec-2".into(), Cause::Killed, Some(137))), "{told:?}");
    let app = harness.controller.snapshot().app("default", APP).unwrap().clone();
    assert!(app.executors().is_empty());
    // A late event does not restore it, and the deletion of another pod with that name does not remove the executor.
    harness.observe(&version(running(1), 7));
    harness.observe(&version(running(3), 12));
    harness.apply(Change::Pods(PodChange::Deleted(version(executor(3).stored("another"), 11).observation())));
    assert!(harness.step_after(2).exits.is_empty());
    assert_eq!(harness.controller.snapshot().app("default", APP).unwrap().executors().len(), 1);
}

#[test]
fn a_list_from_the_past_brings_nobody_back() {
    let mut harness = ControllerHarness::new(Finished::Label);
    harness.observe(&driver());
    harness.observe(&failed(1, 137));
    harness.step_after(1);
    harness.delete_pod("nb-exec-1", "e1");
    harness.apply(Change::Pods(PodChange::Listed(vec![driver().observation(), running(1).observation()])));
    assert!(harness.controller.snapshot().app("default", APP).unwrap().executors().is_empty());
}

/// An executor without an owner and without a signature; only its address identifies its driver.
fn unowned(mut pod: PodBuilder, host: &str) -> PodBuilder {
    pod.0["metadata"].as_object_mut().unwrap().remove("ownerReferences");
    pod.driver_url(host)
}

/// Two drivers share a configured `spark.app.id`, or a tenant claims the application of another.
#[test]
fn the_end_of_a_driver_touches_no_executor_that_gave_another_address() {
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
fn executors_that_all_gave_the_address_of_one_driver_end_with_it() {
    let mut harness = ControllerHarness::new(Finished::Delete);
    harness.observe(&driver().ip("10.0.0.1"));
    for id in 1..4 {
        harness.observe(&unowned(failed(id, 137), "10.0.0.1"));
    }
    harness.step_after(1);
    harness.observe(&driver().ip("10.0.0.1").phase("Failed"));
    assert_eq!(harness.actions_within(10).len(), 3);
}

#[test]
fn a_driver_that_keeps_its_executors_keeps_those_that_only_gave_its_address_too() {
    let mut harness = ControllerHarness::new(Finished::Delete);
    harness.observe(&driver().ip("10.0.0.1"));
    harness.conf("spark.kubernetes.executor.deleteOnTermination=false");
    harness.observe(&unowned(failed(1, 137), "10.0.0.1"));
    harness.step_after(1);
    harness.observe(&driver().ip("10.0.0.1").phase("Failed"));
    let actions = harness.actions_within(300);
    let reasons: HashSet<Option<Reason>> = actions.iter().map(|(_, action)| action.reason()).collect();
    assert_eq!(reasons, HashSet::from([Some(Reason::ExecutorLabelled)]));
}
