//! Polls, relists and interrupted watches: which differences the controller believes, which ones it confirms with a GET, and when
//! it restarts the watch.

use crate::support::controller_harness::*;
use crate::support::*;
use usher_core::controller::{Controller, Lookup, LookupResult, PollResult, Settings};
use usher_core::leader::LeaderState;
use usher_core::lifecycle::cause::Cause;
use usher_core::policy::Finished;
use usher_core::reason::Reason;
use usher_core::snapshot::{Change, PodChange, RelatedChange, Watched};
use usher_spark::ids::PodKey;

/// A poll as of version 40 with the driver and with executor 2 in version 7, without executor 1.
fn poll_without_executor_1(harness: &mut ControllerHarness) {
    harness.observe(&driver());
    harness.observe(&running(1));
    harness.observe(&running(2));
    harness.step_after(60);
    let mut polled = PollResult::default();
    polled.add(harness.controller.snapshot(), "default", "nb-driver", DRIVER_UID, "1");
    polled.add(harness.controller.snapshot(), "default", "nb-exec-2", "e2", "7");
    let now = harness.now();
    harness.controller.poll_finished(Some(polled.finish("40")), now, &harness.policies.clone());
}

fn labelled(name: &str) -> Lookup {
    Lookup::Labelled(PodKey::new("default", name))
}

/// The next GET of an executor.
fn next_lookup(harness: &mut ControllerHarness) -> Lookup {
    let read = (0..60).find_map(|_| harness.step_after(1).lookups.into_iter().next());
    read.expect("a GET within a minute")
}

/// Answers a GET with 404.
fn answer_absent(harness: &mut ControllerHarness, read: &Lookup) {
    let now = harness.now();
    harness.controller.lookup_answered(read, LookupResult::Absent, now);
}

/// A poll as of version 40 with the driver only.
fn poll_with_driver_only(harness: &mut ControllerHarness) {
    let mut polled = PollResult::default();
    polled.add(harness.controller.snapshot(), "default", "nb-driver", DRIVER_UID, "1");
    let now = harness.now();
    harness.controller.poll_finished(Some(polled.finish("40")), now, &harness.policies.clone());
}

/// Lets time pass in which polls fail. Returns whether no exit is reported.
fn step_without_exits(harness: &mut ControllerHarness, seconds: u64) -> bool {
    let effects = harness.step_after(seconds);
    let now = harness.now();
    if effects.poll {
        harness.controller.poll_finished(None, now, &harness.policies.clone());
    }
    effects.exits.is_empty()
}

#[test]
fn poll_differences_are_confirmed_by_get_and_reported() {
    let mut harness = ControllerHarness::new(Finished::Report);
    poll_without_executor_1(&mut harness);
    assert!(harness.step_after(5).lookups.is_empty(), "the watch may still show it");
    assert_eq!(harness.step_after(5).lookups, [labelled("nb-exec-1"), labelled("nb-exec-2")]);
    let now = harness.now();
    harness.controller.lookup_answered(
        &labelled("nb-exec-2"),
        LookupResult::Labelled(version(failed(2, 137), 7).observation()),
        now,
    );
    harness.controller.lookup_answered(&labelled("nb-exec-1"), LookupResult::Failed, now);
    let effects = harness.step_after(1);
    assert!(!effects.restart_watch, "a watch that is late has lost nothing");
    assert_eq!(effects.exits.iter().map(|exit| exit.cause).collect::<Vec<_>>(), [Cause::Killed]);
    assert_eq!(effects.lookups, [labelled("nb-exec-1")], "tried again");
    let now = harness.now();
    harness.controller.lookup_answered(&labelled("nb-exec-1"), LookupResult::Absent, now);
    let exits = harness.step_after(1).exits;
    assert_eq!(exits.iter().map(|exit| exit.cause).collect::<Vec<_>>(), [Cause::Vanished]);
    assert!(harness.controller.snapshot().executor("default", "nb-exec-1").is_none());
    assert!(exits[0].spark().message.contains("(30000 ms)"), "{}", exits[0].spark().message);
    // The watch shows it at last: the exit is already reported.
    let now = harness.now();
    harness.controller.bookmark("41", now);
    let effects = harness.step_after(20);
    assert!(!effects.restart_watch && effects.exits.is_empty() && effects.lookups.is_empty());
}

/// The watch hangs for minutes, meanwhile GETs confirm the absence of an executor, and then the watch shows all its events.
#[test]
fn late_watch_events_do_not_restore_executor_confirmed_absent() {
    let mut harness = ControllerHarness::new(Finished::Report);
    harness.observe(&driver());
    harness.observe(&version(running(1), 9).spec("restartPolicy", "Always"));
    harness.step_after(60);
    poll_with_driver_only(&mut harness);
    let read = next_lookup(&mut harness);
    answer_absent(&mut harness, &read);
    assert_eq!(harness.step_after(10).exits.len(), 1);
    assert!((0..10).all(|_| step_without_exits(&mut harness, 30)));
    harness.observe(&crashed(1, 10));
    harness.observe(&version(running(1), 11).spec("restartPolicy", "Always"));
    harness.observe(&crashed(1, 12));
    harness.apply(PodChange::Deleted(crashed(1, 13).deleting().observation()));
    assert_eq!(harness.step_after(10).exits.len(), 0);
    assert!(harness.controller.snapshot().executor("default", "nb-exec-1").is_none());
}

/// The executor exits, then its container restarts, and then it is deleted.
#[test]
fn restarted_executor_is_reported_again_when_get_confirms_deletion() {
    let mut harness = ControllerHarness::new(Finished::Report);
    harness.observe(&driver());
    harness.observe(&crashed(1, 10));
    assert_eq!(harness.step_after(60).exits.len(), 1);
    poll_with_driver_only(&mut harness);
    let read = next_lookup(&mut harness);
    harness.observe(&version(running(1), 11).spec("restartPolicy", "Always"));
    answer_absent(&mut harness, &read);
    let reported: usize = (0..10).map(|_| harness.step_after(1).exits.len()).sum();
    assert_eq!(reported, 1);
}

/// A GET was answered by another API server, or with the state before a restore.
#[test]
fn late_list_restores_executor_confirmed_absent() {
    let mut harness = ControllerHarness::new(Finished::Report);
    poll_without_executor_1(&mut harness);
    let read = next_lookup(&mut harness);
    answer_absent(&mut harness, &read);
    harness.step_after(1);
    (0..50).for_each(|_| _ = step_without_exits(&mut harness, 16));
    harness.apply(PodChange::Listed(vec![driver().observation(), running(1).observation()]));
    assert!(harness.controller.snapshot().executor("default", "nb-exec-1").is_some());
}

/// The watch restarts with lists from a stale cache.
#[test]
fn stale_lists_do_not_restore_executor_confirmed_absent() {
    let mut harness = ControllerHarness::new(Finished::Report);
    poll_without_executor_1(&mut harness);
    let read = next_lookup(&mut harness);
    answer_absent(&mut harness, &read);
    harness.step_after(1);
    for round in 0..3 {
        harness.apply(PodChange::Listed(vec![driver().observation(), running(1).observation()]));
        let now = harness.now();
        harness.controller.bookmark("39", now);
        assert!(harness.controller.snapshot().executor("default", "nb-exec-1").is_none(), "{round}");
        assert!((0..4).all(|_| step_without_exits(&mut harness, 40)));
    }
    // After a list without it, another pod may have its name.
    harness.apply(PodChange::Listed(vec![driver().observation()]));
    harness.observe(&version(executor(1).stored("another"), 41));
    assert!(harness.controller.snapshot().executor("default", "nb-exec-1").is_some());
}

/// A poll cannot find again what the snapshot has lost: the confirmation stays open until a GET answers it.
#[test]
fn open_confirmation_survives_next_poll_until_get_answers() {
    let mut harness = ControllerHarness::new(Finished::Report);
    poll_without_executor_1(&mut harness);
    // It leaves the watch: its label may have been removed, so a GET must confirm its absence.
    harness.apply(PodChange::Deleted(version(running(1), 39).spec("nodeName", "n").observation()));
    let now = harness.now();
    harness.controller.bookmark("40", now); // As far as the poll, which needs no further confirmation.
    let mut polled = PollResult::default();
    polled.add(harness.controller.snapshot(), "default", "nb-driver", DRIVER_UID, "1");
    polled.add(harness.controller.snapshot(), "default", "nb-exec-2", "e2", "1");
    let now = harness.now();
    harness.controller.poll_finished(Some(polled.finish("41")), now, &harness.policies.clone());
    let effects = harness.step_after(1);
    assert_eq!(effects.lookups, [labelled("nb-exec-1")]);
    let now = harness.now();
    harness.controller.lookup_answered(&effects.lookups[0], LookupResult::Absent, now);
    harness.step_after(1);
    let exits = harness.step_after(5).exits; // Its driver's exit might explain it.
    assert_eq!(exits.iter().map(|exit| exit.cause).collect::<Vec<_>>(), [Cause::Deleted]);
}

/// A confirmed absence is no longer an open confirmation, and its exit is tracked in the next step. If a leader dies between the
/// two, its checkpoint must not cover that exit.
#[test]
fn checkpoint_covers_no_exit_between_confirmation_and_tracking() {
    let mut harness = ControllerHarness::new(Finished::Report);
    harness.observe(&driver());
    // Many others exit at the same time, so that the batch takes several steps.
    for id in 1..=400 {
        harness.observe(&running(id));
    }
    harness.step_after(10);
    harness.apply(PodChange::Deleted(version(running(1).spec("nodeName", "n"), 8).observation()));
    assert_eq!(harness.step_after(1).lookups, [labelled("nb-exec-1")]);
    let covers = |harness: &ControllerHarness| harness.controller.checkpoint(harness.now()).unwrap().covers(8);
    assert_ne!(covers(&harness), Some(true), "the confirmation is open");
    let now = harness.now();
    harness.controller.lookup_answered(&labelled("nb-exec-1"), LookupResult::Absent, now);
    assert_ne!(covers(&harness), Some(true), "the exit is not tracked yet");
    for id in 2..=400 {
        harness.observe(&version(failed(id, 137), 9 + id));
    }
    let mut reported: Vec<u64> = Vec::new();
    while !reported.contains(&1) {
        assert_ne!(covers(&harness), Some(true), "{} others are reported, executor 1 is not", reported.len());
        reported.extend(harness.step_after(1).exits.iter().filter_map(|exit| exit.executor.exec_id.map(u64::from)));
    }
    harness.step_after(6);
    assert_eq!((reported.len(), covers(&harness)), (400, Some(true)));
}

/// A poll that was in flight during a relist is ignored.
#[test]
fn poll_older_than_last_list_is_ignored() {
    let mut harness = ControllerHarness::new(Finished::Report);
    harness.observe(&driver());
    harness.apply(PodChange::Listed(vec![driver().observation()]));
    let now = harness.now();
    harness.controller.bookmark("50", now);
    harness.step_after(1);
    // The executor was created after the watch broke off, and deleted before the new list.
    let mut polled = PollResult::default();
    polled.add(harness.controller.snapshot(), "default", "nb-driver", DRIVER_UID, "1");
    polled.add(harness.controller.snapshot(), "default", "nb-exec-1", "e1", "30");
    let now = harness.now();
    harness.controller.poll_finished(Some(polled.finish("40")), now, &harness.policies.clone());
    for _ in 0..20 {
        let effects = harness.step_after(1);
        assert!(!effects.restart_watch && effects.lookups.is_empty(), "{effects:?}");
    }
}

/// Confirmations are stored by pod name, which a second pod may have meanwhile.
#[test]
fn two_pods_with_same_name_that_leave_watch_are_two_exits() {
    let mut harness = ControllerHarness::new(Finished::Report);
    harness.observe(&driver());
    for (uid, at) in [("first", 5), ("second", 9)] {
        let pod = running(1).stored(uid).phase("Running").spec("nodeName", "n");
        harness.observe(&version(pod.clone(), at));
        harness.apply(PodChange::Deleted(version(pod, at + 1).observation()));
    }
    let reads = harness.step_after(1).lookups;
    assert_eq!(reads, [labelled("nb-exec-1")]);
    let now = harness.now();
    harness.controller.lookup_answered(&reads[0], LookupResult::Absent, now);
    let mut uids: Vec<String> = Vec::new();
    for _ in 0..8 {
        uids.extend(harness.step_after(1).exits.iter().map(|exit| exit.executor.uid.to_string()));
    }
    assert_eq!(uids, ["first", "second"]);
}

/// The list contains the first pod of a name, the snapshot the second one, and the watch continues from the list.
#[test]
fn stale_list_reports_no_exit_of_newer_pod_with_same_name() {
    let mut harness = ControllerHarness::new(Finished::Report);
    harness.observe(&version(driver(), 1));
    let first = running(1).stored("first").phase("Running").spec("nodeName", "n");
    let second = version(running(1).stored("second").phase("Running").spec("nodeName", "n"), 9);
    harness.observe(&version(first.clone(), 3));
    harness.step_after(1);
    harness.observe(&second);
    harness.step_after(20);
    harness.apply(PodChange::Listed(vec![version(driver(), 1).observation(), version(first.clone(), 3).observation()]));
    let now = harness.now();
    harness.controller.bookmark("5", now);
    harness.apply(PodChange::Deleted(version(first, 7).observation()));
    harness.observe(&second);
    let mut reported = Vec::new();
    for _ in 0..30 {
        let effects = harness.step_after(1);
        reported.extend(effects.exits.iter().map(|exit| exit.executor.uid.to_string()));
        for read in effects.lookups {
            let now = harness.now();
            harness.controller.lookup_answered(&read, LookupResult::Labelled(second.observation()), now);
        }
    }
    assert_eq!(reported, ["first"], "the second pod is running");
    assert!(harness.controller.snapshot().executor("default", "nb-exec-1").is_some());
}

#[test]
fn late_watch_events_resolve_poll_differences_without_get() {
    let mut harness = ControllerHarness::new(Finished::Report);
    poll_without_executor_1(&mut harness);
    harness.step_after(6);
    harness.observe(&version(failed(2, 137), 7));
    harness.apply(PodChange::Deleted(version(failed(1, 143), 39).observation()));
    let now = harness.now();
    harness.controller.bookmark("40", now);
    let effects = harness.step_after(1);
    assert!(!effects.restart_watch && effects.lookups.is_empty());
    let causes: Vec<_> = effects.exits.iter().map(|exit| (exit.executor.exec_id.unwrap(), exit.cause)).collect();
    assert_eq!(causes, [(2, Cause::Killed), (1, Cause::Killed)], "with their causes");
    assert!(harness.step_after(300).lookups.iter().all(|read| !matches!(read, Lookup::Labelled(_))));
}

#[test]
fn watch_past_poll_without_its_changes_is_restarted_once() {
    let mut harness = ControllerHarness::new(Finished::Report);
    poll_without_executor_1(&mut harness);
    let now = harness.now();
    harness.controller.bookmark("39", now);
    assert!(!harness.step_after(1).restart_watch, "not yet");
    // An event of another pod has the effect of a bookmark.
    harness.observe(&version(running(9), 41));
    assert!(harness.step_after(1).restart_watch);
    harness.observe(&version(running(9), 42));
    assert!(!harness.step_after(1).restart_watch, "once per poll");
    // The new list closes all confirmations but one: a GET decides whether the missing executor or only its label was removed.
    let pods = [driver(), version(failed(2, 137), 7), version(running(9), 42)];
    harness.apply(PodChange::Listed(pods.iter().map(PodBuilder::observation).collect()));
    let now = harness.now();
    harness.controller.bookmark("50", now);
    let effects = harness.step_after(1);
    let causes: Vec<_> = effects.exits.iter().map(|exit| (exit.executor.exec_id.unwrap(), exit.cause)).collect();
    assert_eq!(causes, [(2, Cause::Killed)]);
    assert_eq!(effects.lookups, [labelled("nb-exec-1")]);
    let now = harness.now();
    harness.controller.lookup_answered(&effects.lookups[0], LookupResult::Absent, now);
    let effects = harness.step_after(1);
    assert_eq!(effects.exits[0].cause, Cause::Vanished);
    assert!(effects.exits[0].spark().message.contains("(30000 ms)"), "a poll did not contain it");
    assert!(harness.step_after(15).lookups.is_empty());
}

#[test]
fn watch_silent_for_two_bookmark_intervals_is_restarted() {
    let mut harness = ControllerHarness::new(Finished::Report);
    poll_without_executor_1(&mut harness);
    let now = harness.now();
    harness.controller.bookmark("8", now);
    let rewatched: Vec<u64> = (1..=140).filter(|_| harness.step_after(1).restart_watch).collect();
    assert_eq!(rewatched, [130]);
    // What has just changed is on its way to a watch that has been silent for longer.
    let mut harness = ControllerHarness::new(Finished::Report);
    harness.observe(&driver());
    harness.observe(&running(1));
    harness.step_after(200);
    poll_with_driver_only(&mut harness);
    let rewatched: Vec<u64> = (1..=20).filter(|_| harness.step_after(1).restart_watch).collect();
    assert_eq!(rewatched, [10]);
}

#[test]
fn many_missing_executors_are_confirmed_by_one_namespace_list() {
    let mut harness = ControllerHarness::new(Finished::Report);
    harness.observe(&driver());
    for id in 1..=100 {
        harness.observe(&running(id));
    }
    harness.step_after(60);
    // Three have lost their labels.
    harness.unlabelled = (1..=3).map(|id| (format!("nb-exec-{id}"), format!("e{id}"))).collect();
    harness.apply(PodChange::Listed(vec![driver().observation()]));
    let now = harness.now();
    harness.controller.bookmark("50", now);
    let (mut reads, mut exits) = (Vec::new(), Vec::new());
    for _ in 0..30 {
        let effects = harness.step_after(1);
        reads.extend(effects.lookups);
        exits.extend(effects.exits.iter().map(|exit| (exit.executor.exec_id, exit.cause)));
    }
    assert_eq!((harness.lists, reads), (1, Vec::new()), "one LIST instead of a hundred GETs");
    let expected: Vec<_> = (4..=100).map(|id| (Some(id), Cause::Vanished)).collect();
    exits.sort_unstable();
    assert_eq!(exits, expected, "running executors are not reported");
    // An old list proves nothing about newer pods.
    harness.observe(&version(running(200), 90));
    harness.step_after(60);
    harness.apply(PodChange::Listed(vec![driver().observation()]));
    let now = harness.now();
    harness.controller.bookmark("60", now);
    assert!(harness.step_after(1).exits.is_empty());
    assert_eq!(harness.step_after(10).lookups, [labelled("nb-exec-200")]);
}

#[test]
fn ineffective_watch_restarts_back_off() {
    let mut harness = ControllerHarness::new(Finished::Report);
    let mut restarts = Vec::new();
    harness.observe(&driver());
    harness.observe(&running(1));
    harness.step_after(60);
    for poll in 0..100u32 {
        let mut polled = PollResult::default();
        // The lists and watches of this API server never agree.
        polled.add(harness.controller.snapshot(), "default", "nb-driver", DRIVER_UID, "1");
        polled.add(harness.controller.snapshot(), "default", "nb-exec-1", "e1", "7");
        let now = harness.now();
        harness.controller.poll_finished(Some(polled.finish("40")), now, &harness.policies.clone());
        harness.controller.bookmark(&(41 + poll).to_string(), now);
        if harness.step_after(1).restart_watch {
            restarts.push(poll);
        }
    }
    assert_eq!(restarts, [0, 1, 3, 7, 15, 31, 63, 95]);
}

#[test]
fn four_thousand_differences_cause_limited_gets_and_one_watch_restart() {
    let mut harness = ControllerHarness::new(Finished::Report);
    harness.observe(&driver());
    for id in 1..=4000 {
        harness.observe(&running(id));
    }
    harness.step_after(60);
    let mut polled = PollResult::default();
    polled.add(harness.controller.snapshot(), "default", "nb-driver", DRIVER_UID, "1");
    for id in 1..=4000 {
        polled.add(harness.controller.snapshot(), "default", &format!("nb-exec-{id}"), &format!("e{id}"), "7");
    }
    let now = harness.now();
    harness.controller.poll_finished(Some(polled.finish("40")), now, &harness.policies.clone());
    let (mut reads, mut restarts) = (0, 0);
    for _ in 0..200 {
        let effects = harness.step_after(1);
        restarts += u32::from(effects.restart_watch);
        for read in effects.lookups {
            reads += 1;
            let now = harness.now();
            harness.controller.lookup_answered(&read, LookupResult::Failed, now);
        }
    }
    // Sixty-four pods, retried after growing pauses, and a watch that is silent for two bookmark intervals.
    assert!(reads <= 64 * 9, "{reads}");
    assert_eq!(restarts, 1);
}

#[test]
fn only_leader_polls_at_default_interval() {
    let mut harness = ControllerHarness::new(Finished::Report);
    let polls = |harness: &mut ControllerHarness, seconds: u64| {
        let mut at = Vec::new();
        for _ in 0..seconds {
            if harness.step_after(1).poll {
                at.push(harness.since.as_secs());
                let now = harness.now();
                harness.controller.poll_finished(Some(PollResult::default()), now, &harness.policies.clone());
            }
        }
        at
    };
    let at = polls(&mut harness, 1000);
    assert!(at[0] <= 34 && (at[1] - at[0]).abs_diff(300) <= 31 && (at[2] - at[1]).abs_diff(300) <= 31, "{at:?}");
    harness.leader_state = LeaderState::Follower;
    assert!(polls(&mut harness, 1000).is_empty());
}

#[test]
fn poll_detects_missed_driver_deletion_and_cleanup_proceeds() {
    let mut harness = ControllerHarness::new(Finished::Delete);
    harness.observe(&driver());
    harness.observe(&failed(1, 137));
    harness.step_after(1);
    let mut polled = PollResult::default();
    polled.add(harness.controller.snapshot(), "default", "nb-exec-1", "e1", "5");
    let now = harness.now();
    harness.controller.poll_finished(Some(polled.finish("40")), now, &harness.policies.clone());
    let lookup = Lookup::Labelled(PodKey::new("default", "nb-driver"));
    assert_eq!(harness.step_after(10).lookups, std::slice::from_ref(&lookup));
    let now = harness.now();
    harness.controller.lookup_answered(&lookup, LookupResult::Absent, now);
    assert!(
        harness.controller.snapshot().driver_pod("default", "nb-driver").is_none_or(|pod| pod.uid != DRIVER_UID.into())
    );
    // The executor's owner no longer exists: there is no driver to wait for.
    assert!(first_of(&harness.actions_within(5), Reason::ExecutorDeleted).is_some());
}

#[test]
fn executor_with_removed_label_is_not_reported_as_exited() {
    let mut harness = ControllerHarness::new(Finished::Report);
    harness.observe(&driver());
    harness.observe(&running(1).spec("nodeName", "n"));
    harness.observe(&running(2).spec("nodeName", "n"));
    harness.step_after(1);
    // One leaves the watch by its label, the other by a forced deletion.
    for id in [1, 2] {
        harness.apply(PodChange::Deleted(version(running(id), 8).spec("nodeName", "n").observation()));
    }
    let effects = harness.step_after(0);
    assert_eq!(effects.lookups, [labelled("nb-exec-1"), labelled("nb-exec-2")], "a GET distinguishes the two");
    let unlabelled = version(pod("nb-exec-1").stored("e1").phase("Running"), 8);
    let now = harness.now();
    harness.controller.lookup_answered(&effects.lookups[0], LookupResult::Labelled(unlabelled.observation()), now);
    harness.controller.lookup_answered(&effects.lookups[1], LookupResult::Absent, now);
    harness.step_after(1);
    let exits = harness.step_after(5).exits;
    let causes: Vec<_> = exits.iter().map(|exit| (exit.executor.exec_id.unwrap(), exit.cause)).collect();
    assert_eq!(causes, [(2, Cause::Deleted)]);
    assert!(harness.controller.snapshot().app("default", APP).unwrap().executors().is_empty());
    // It gets its label back.
    harness.observe(&version(running(1), 9).spec("nodeName", "n"));
    assert_eq!(harness.controller.snapshot().app("default", APP).unwrap().executors().len(), 1);
}

/// A thousand executors leave the watch at the same time. Returns how many are read by name, and how many are reported.
fn remove_1000_from_watch(
    change: impl Fn(PodBuilder) -> PodBuilder,
    answer: impl Fn(&PodKey) -> LookupResult,
) -> (usize, usize) {
    let mut harness = ControllerHarness::new(Finished::Report);
    harness.observe(&driver());
    for id in 1..=1000 {
        harness.observe(&running(id).phase("Pending"));
    }
    harness.step_after(60);
    for id in 1..=1000 {
        harness.apply(PodChange::Deleted(change(version(running(id).phase("Pending"), 100)).observation()));
    }
    let (mut gets, mut exits) = (0, 0);
    for _ in 0..60 {
        let effects = harness.step_after(1);
        exits += effects.exits.len();
        let now = harness.now();
        for read in &effects.lookups {
            let Lookup::Labelled(pod) = read else { continue };
            gets += 1;
            harness.controller.lookup_answered(read, answer(pod), now);
        }
    }
    (gets, exits)
}

/// A deleted pod has a deletionTimestamp, also one without a node, which is removed immediately.
#[test]
fn deleted_pending_executors_are_reported_without_get() {
    assert_eq!(remove_1000_from_watch(PodBuilder::deleting, |_| LookupResult::Absent), (0, 1000));
}

/// A pod that loses its label has none. A limited number is read by name, and the others are taken as running.
#[test]
fn executors_with_removed_labels_are_not_reported_and_gets_are_limited() {
    let unlabelled = |name: &PodKey| {
        let uid = name.name().replace("nb-exec-", "e");
        LookupResult::Labelled(version(pod(name.name()).stored(&uid).phase("Pending"), 101).observation())
    };
    assert_eq!(remove_1000_from_watch(|pod| pod, unlabelled), (64, 0));
    assert_eq!(remove_1000_from_watch(|pod| pod, |_| LookupResult::Absent), (64, 64), "the GET decides");
}

/// A pod that matches the watch's selector and is not an executor: its `spark-app-selector` is empty, or it is malformed.
#[test]
fn pods_outside_snapshot_do_not_restart_watch() {
    for unreadable in [false, true] {
        let mut harness = ControllerHarness::new(Finished::Report);
        harness.observe(&driver());
        let strange = |n: u32| {
            version(pod(&format!("aa-{n:03}")).executor_of("", n).stored(&format!("x{n}")).phase("Pending"), 3)
        };
        let show = |harness: &mut ControllerHarness, n: u32| {
            let now = harness.now();
            if unreadable {
                harness.controller.unreadable_pod(&format!("x{n}"), now);
            } else {
                harness.observe(&strange(n));
            }
        };
        (0..200).for_each(|n| show(&mut harness, n));
        let mut position = 40;
        for poll in 0..50 {
            let mut polled = PollResult::default();
            polled.add(harness.controller.snapshot(), "default", "nb-driver", DRIVER_UID, "1");
            (0..200).for_each(|n| {
                polled.add(harness.controller.snapshot(), "default", &format!("aa-{n:03}"), &format!("x{n}"), "3");
            });
            let now = harness.now();
            harness.controller.poll_finished(
                Some(polled.finish(&position.to_string())),
                now,
                &harness.policies.clone(),
            );
            position += 10;
            harness.controller.bookmark(&position.to_string(), now);
            for _ in 0..300 {
                let effects = harness.step_after(1);
                assert!(!effects.restart_watch && effects.lookups.is_empty(), "poll {poll}: {effects:?}");
            }
            let now = harness.now();
            assert!(
                harness.controller.checkpoint(now).unwrap().gaps.iter().next().is_none() || poll > 25,
                "a relist is a gap"
            );
            if poll == 25 {
                // A relist shows them again.
                harness.controller.list_started(now);
                harness.controller.list_page(vec![driver().observation()], now);
                (0..200).for_each(|n| {
                    if unreadable {
                        harness.controller.unreadable_pod(&format!("x{n}"), now);
                    } else {
                        harness.controller.list_page(vec![strange(n).observation()], now);
                    }
                });
                harness.controller.list_finished(now);
                position += 10;
                harness.controller.bookmark(&position.to_string(), now);
            }
        }
    }
}

/// Pods whose names sort first get no more GETs than others.
#[test]
fn all_differing_pods_are_read_in_turn() {
    let mut harness = ControllerHarness::new(Finished::Report);
    harness.observe(&driver());
    for id in 1..=300 {
        harness.observe(&running(id));
    }
    harness.step_after(60);
    let mut read_pods = std::collections::HashSet::new();
    for poll in 0..6 {
        let mut polled = PollResult::default();
        polled.add(harness.controller.snapshot(), "default", "nb-driver", DRIVER_UID, "1");
        for id in 1..=300 {
            polled.add(harness.controller.snapshot(), "default", &format!("nb-exec-{id}"), &format!("e{id}"), "39");
        }
        let now = harness.now();
        harness.controller.poll_finished(Some(polled.finish(&(40 + poll).to_string())), now, &harness.policies.clone());
        for _ in 0..60 {
            for read in harness.step_after(1).lookups {
                let now = harness.now();
                harness.controller.lookup_answered(&read, LookupResult::Failed, now);
                read_pods.insert(read);
            }
        }
    }
    assert_eq!(read_pods.len(), 300);
}

#[test]
fn lookup_result_older_than_watch_removes_no_executor() {
    let mut harness = ControllerHarness::new(Finished::Report);
    harness.observe(&driver());
    harness.observe(&running(1).spec("nodeName", "n"));
    harness.step_after(1);
    harness.apply(PodChange::Deleted(version(running(1), 8).spec("nodeName", "n").observation()));
    let reads = harness.step_after(0).lookups;
    // The pod gets its label back while the GET is in flight.
    harness.observe(&version(running(1), 9).spec("nodeName", "n"));
    let now = harness.now();
    harness.controller.lookup_answered(
        &reads[0],
        LookupResult::Labelled(version(pod("nb-exec-1").stored("e1"), 8).observation()),
        now,
    );
    harness.step_after(1);
    assert!(harness.controller.snapshot().executor("default", "nb-exec-1").is_some());
}

#[test]
fn lookup_result_older_than_deletion_repeats_get() {
    let mut harness = ControllerHarness::new(Finished::Report);
    poll_without_executor_1(&mut harness);
    harness.step_after(5);
    let reads = harness.step_after(5).lookups;
    assert!(reads.contains(&labelled("nb-exec-2")));
    // It is deleted by force while the GET is in flight, whose response still contains it.
    harness.apply(PodChange::Deleted(version(running(2), 11).spec("nodeName", "n").observation()));
    let now = harness.now();
    harness.controller.lookup_answered(
        &labelled("nb-exec-2"),
        LookupResult::Labelled(version(running(2), 7).observation()),
        now,
    );
    assert!(harness.step_after(1).lookups.contains(&labelled("nb-exec-2")), "it is read again");
    let now = harness.now();
    harness.controller.lookup_answered(&labelled("nb-exec-2"), LookupResult::Absent, now);
    harness.step_after(1);
    let exited: Vec<_> = harness.step_after(6).exits.iter().map(|exit| exit.executor.exec_id.unwrap()).collect();
    assert_eq!(exited, [2]);
}

#[test]
fn cleanup_is_planned_after_last_list_in_any_order() {
    for namespaces_last in [true, false] {
        let mut harness = ControllerHarness::new(Finished::Label);
        harness.controller = Controller::new(harness.at, Settings::default());
        let pods = PodChange::Listed(vec![driver().phase("Failed").observation(), failed(1, 137).observation()]);
        let namespaces = RelatedChange::Namespaces(Watched::Listed(Vec::new()));
        let mut lists = vec![Change::Pods(pods), Change::Related(namespaces)];
        if !namespaces_last {
            lists.reverse();
        }
        harness.apply(lists.remove(0));
        assert!(harness.actions_within(10).is_empty());
        harness.apply(lists.remove(0));
        assert!(first_of(&harness.actions_within(5), Reason::ExecutorLabelled).is_some(), "{namespaces_last}");
    }
}
