//! Each exit is reported once, with its cause, also when the leader changes.

mod gaps;

use std::collections::HashSet;
use std::time::Duration;

use crate::support::controller_harness::*;
use crate::support::*;
use jiff::Timestamp;
use usher_core::controller::{Controller, Lookup, LookupResult, PollResult, Settings};
use usher_core::leader::LeaderState;
use usher_core::lifecycle::Exit;
use usher_core::lifecycle::cause::Cause;
use usher_core::lifecycle::checkpoint::{Checkpoint, FoundCheckpoint, Gap, Gaps};
use usher_core::planning::Action;
use usher_core::policy::Finished;
use usher_core::snapshot::{PodChange, RelatedChange, ServedApis, Watched};
use usher_spark::ids::PodKey;
use usher_spark::time::Now;

/// A follower whose watch has shown the exits of two executors, at versions 5 and 9, a minute apart.
fn follower() -> ControllerHarness {
    let mut harness = ControllerHarness::new(Finished::Report);
    harness.leader_state = LeaderState::Follower;
    harness.observe(&driver());
    harness.observe(&running(1));
    harness.observe(&running(2));
    harness.step_after(10);
    harness.observe(&failed(1, 137));
    assert!(harness.step_after(1).exits.is_empty());
    harness.step_after(60);
    harness.observe(&version(failed(2, 137), 9));
    assert!(harness.step_after(1).exits.is_empty());
    harness
}

fn take_over(harness: &mut ControllerHarness, found: FoundCheckpoint) {
    harness.leader_state = LeaderState::Leader;
    let now = harness.now().at;
    harness.controller.leadership_acquired(found, now);
}

fn gap_of(versions: Option<(u64, u64)>) -> Gaps {
    versions.into_iter().map(|(from, to)| Gap { from, to, age: Duration::ZERO }).collect()
}

/// The resourceVersions of the gaps of a checkpoint.
fn gaps(checkpoint: &Checkpoint) -> Vec<(u64, u64)> {
    checkpoint.gaps.iter().map(|gap| (gap.from, gap.to)).collect()
}

fn checkpoint(through: u64) -> Option<Checkpoint> {
    Some(Checkpoint { through, at: Timestamp::from_second(1_800_000_000).unwrap(), gaps: Gaps::default() })
}

/// The previous leader stopped gracefully: its checkpoint is final. `taken` is the resourceVersion with which this one took the
/// Lease.
fn after_stop(through: u64, taken: u64) -> FoundCheckpoint {
    FoundCheckpoint { checkpoint: checkpoint(through), was_held: true, is_released: true, taken: Some(taken) }
}

/// The previous leader was killed.
fn after_kill(through: u64, taken: u64) -> FoundCheckpoint {
    FoundCheckpoint { is_released: false, ..after_stop(through, taken) }
}

#[test]
fn new_leader_skips_exits_before_checkpoint_and_flags_possibly_reported_ones() {
    // After a graceful stop, the checkpoint is final.
    let mut harness = follower();
    take_over(&mut harness, after_stop(5, 20));
    assert_eq!(reported_exits(&mut harness), [(2, false)]);
    // After a kill, exits between the checkpoint and the takeover may have been reported.
    let mut harness = follower();
    take_over(&mut harness, after_kill(5, 20));
    assert_eq!(reported_exits(&mut harness), [(2, true)]);
    // The killed leader did not run any longer at that time.
    let mut harness = follower();
    take_over(&mut harness, after_kill(5, 8));
    assert_eq!(reported_exits(&mut harness), [(2, false)]);
    // A late watch shows an exit that was reported before.
    harness.observe(&version(running(3), 4));
    harness.observe(&version(failed(3, 137), 5));
    assert_eq!(reported_exits(&mut harness), []);
    harness.observe(&version(failed(4, 137), 30));
    assert_eq!(reported_exits(&mut harness), [(4, false)]);
}

#[test]
fn exit_in_gap_of_checkpoint_is_reported_unless_leaders_list_contained_it() {
    let gap = Some((4, 8));
    let found = |through| {
        let checkpoint = checkpoint(through).map(|checkpoint| Checkpoint { gaps: gap_of(gap), ..checkpoint });
        FoundCheckpoint { checkpoint, was_held: true, is_released: true, taken: Some(20) }
    };
    // Executor 1 exited at 5, and its pod still exists as of 9: the leader's own list has shown it.
    let mut harness = follower();
    take_over(&mut harness, found(15));
    assert_eq!(reported_exits(&mut harness), []);
    // The leader's progress had not reached that list yet.
    let mut harness = follower();
    take_over(&mut harness, found(7));
    assert_eq!(reported_exits(&mut harness), [(1, true), (2, true)]);
    // Executor 1 was deleted since, and it is unknown whether the list contained it.
    let mut harness = follower();
    harness.delete_pod("nb-exec-1", "e1");
    harness.step_after(1);
    take_over(&mut harness, found(15));
    assert_eq!(reported_exits(&mut harness), [(1, true)]);
    // The version of its deletion shows that the list contained it.
    let mut harness = follower();
    harness.apply(PodChange::Deleted(version(failed(1, 137), 10).deleting().observation()));
    harness.step_after(1);
    take_over(&mut harness, found(15));
    assert_eq!(reported_exits(&mut harness), []);
    // The new leader's watch has not reached the checkpoint.
    let mut harness = ControllerHarness::new(Finished::Report);
    harness.leader_state = LeaderState::Follower;
    harness.observe(&driver());
    harness.observe(&running(1));
    harness.observe(&failed(1, 137));
    harness.step_after(1);
    take_over(&mut harness, found(15));
    assert_eq!(reported_exits(&mut harness), [(1, true)]);
}

#[test]
fn without_checkpoint_exits_that_aged_under_a_leader_are_not_reported() {
    let mut harness = follower();
    take_over(&mut harness, FoundCheckpoint::default());
    assert_eq!(reported_exits(&mut harness), [(2, true)]);
    // The earlier leader may have reported an exit immediately before it released the Lease, which is tracked here a moment
    // later.
    let held = FoundCheckpoint { was_held: true, is_released: true, taken: Some(20), checkpoint: None };
    let mut harness = follower();
    take_over(&mut harness, held);
    assert_eq!(reported_exits(&mut harness), [(2, true)]);
    harness.observe(&running(3));
    harness.observe(&version(failed(3, 137), 19));
    harness.observe(&running(4));
    harness.observe(&version(failed(4, 137), 21));
    assert_eq!(reported_exits(&mut harness), [(3, true), (4, false)]);
    // In the first list, the earlier leader may have reported recent exits, and older exits are history.
    let (now, long_ago) =
        (finished(failed(1, 137), "2027-01-15T07:59:55Z"), finished(failed(2, 137), "2027-01-15T07:50:00Z"));
    let mut harness = restarted_with(&[driver(), now, long_ago]);
    take_over(&mut harness, held);
    assert_eq!(reported_exits(&mut harness), [(1, true)]);
    // Without a leader, exits do not age.
    let mut harness = ControllerHarness::new(Finished::Report);
    harness.leader_state = LeaderState::NoLeader;
    harness.observe(&driver());
    harness.observe(&running(1));
    harness.step_after(1);
    harness.observe(&failed(1, 137));
    harness.step_after(500);
    take_over(&mut harness, FoundCheckpoint::default());
    assert_eq!(reported_exits(&mut harness), [(1, false)]);
}

/// An executor that exited at this time, by the kubelet's clock.
fn finished(mut pod: PodBuilder, at: &str) -> PodBuilder {
    pod.0["status"]["containerStatuses"][0]["state"]["terminated"]["finishedAt"] = at.into();
    pod
}

/// A new process whose first list contains these pods.
fn restarted_with(pods: &[PodBuilder]) -> ControllerHarness {
    restarted_at(pods, 50)
}

/// The same, whose first list is as of this version.
fn restarted_at(pods: &[PodBuilder], as_of: u32) -> ControllerHarness {
    let mut harness = ControllerHarness::new(Finished::Report);
    harness.controller = Controller::new(harness.at, Settings::default());
    harness.apply(RelatedChange::Apis(ServedApis::default()));
    harness.apply(RelatedChange::Namespaces(Watched::Listed(Vec::new())));
    harness.apply(PodChange::Listed(pods.iter().map(PodBuilder::observation).collect()));
    let now = harness.now();
    harness.controller.bookmark(&as_of.to_string(), now);
    harness
}

#[test]
fn exits_in_first_list_are_history_unless_they_follow_the_checkpoint() {
    let pods = [driver(), failed(1, 137), version(finished(failed(2, 137), "2027-01-15T08:00:01Z"), 9)];
    let mut harness = restarted_with(&pods);
    take_over(&mut harness, FoundCheckpoint::default());
    assert_eq!(reported_exits(&mut harness), [], "a first installation");
    assert_eq!(harness.controller.exits().history().len(), 2, "`why` shows them");
    // The first list came late: exits after this replica had taken the Lease are no history, unless only their pods have changed.
    let old = version(finished(failed(3, 137), "2027-01-15T07:50:00Z"), 9);
    let mut harness = restarted_with(&[&pods[..], &[old]].concat());
    take_over(&mut harness, FoundCheckpoint { taken: Some(8), ..FoundCheckpoint::default() });
    assert_eq!(reported_exits(&mut harness), [(2, false)]);
    // After a restart of all replicas, exactly the exits meanwhile are reported.
    let mut harness = restarted_with(&pods);
    take_over(&mut harness, after_stop(5, 51));
    assert_eq!(reported_exits(&mut harness), [(2, false)]);
    // Its own checkpoint has a gap: others may know executors that were deleted before it started.
    let now = harness.now();
    let own_checkpoint = harness.controller.checkpoint(now).unwrap();
    assert_eq!((own_checkpoint.through, gaps(&own_checkpoint)), (50, vec![(5, 50)]));
    let mut harness = restarted_with(&pods);
    take_over(&mut harness, after_kill(5, 51));
    assert_eq!(reported_exits(&mut harness), [(2, true)]);
    // It exited long before the checkpoint and its pod was changed since; or the time is unknown, because the pod has none.
    for old in [finished(failed(3, 137), "2027-01-15T07:00:00Z"), failed(3, 137)] {
        let mut harness = restarted_with(&[driver(), version(old, 12)]);
        take_over(&mut harness, after_stop(9, 51));
        assert_eq!(reported_exits(&mut harness), [(3, true)]);
    }
}

/// The leader reported an exit that another replica's late watch did not show. Its driver labelled the pod since: the version
/// that this replica's watch shows at last is newer than the checkpoint, although the exit was reported.
#[test]
fn exit_first_observed_after_pod_was_labelled_is_possibly_reported() {
    let labelled = |pod: PodBuilder| version(pod, 30).label("spark-exec-inactive", "true");
    let led = |shown: u32| {
        let mut harness = ControllerHarness::new(Finished::Report);
        harness.leader_state = LeaderState::Follower;
        harness.observe(&driver());
        harness.observe(&running(1));
        harness.observe(&version(running(2), shown));
        harness.step_after(60);
        take_over(&mut harness, after_stop(9, 20));
        harness
    };
    let mut harness = led(4);
    harness.observe(&labelled(failed(1, 137)));
    assert_eq!(reported_exits(&mut harness), [(1, true)]);
    // The time of its exit decides.
    let mut harness = led(4);
    harness.observe(&labelled(finished(failed(1, 137), "2027-01-15T08:00:30Z")));
    assert_eq!(reported_exits(&mut harness), [(1, false)]);
    // The watch had shown everything up to the checkpoint, and the executor was running.
    let mut harness = led(9);
    harness.observe(&labelled(failed(1, 137)));
    assert_eq!(reported_exits(&mut harness), [(1, false)]);
}

/// The leader's clock was set back by an hour after it had reported an exit, and the pod has changed since.
#[test]
fn exit_that_a_leader_with_a_wrong_clock_reported_is_possibly_reported() {
    let timed = finished(failed(1, 137), "2027-01-15T08:00:30Z");
    // A kubelet's refusal has no time, and is deleted later.
    let mut refused = version(running(1), 5).phase("Failed");
    refused.0["status"]["reason"] = "OutOfcpu".into();
    let mut deleted = version(refused.clone(), 30);
    deleted.0["metadata"]["deletionTimestamp"] = "2027-01-15T08:01:10Z".into();
    for (exited, later) in [(timed.clone(), version(timed, 30)), (refused, deleted)] {
        let mut harness = ControllerHarness::new(Finished::Report);
        harness.observe(&driver());
        harness.observe(&running(1));
        harness.step_after(40);
        harness.observe(&exited);
        assert_eq!(reported_exits(&mut harness), [(1, false)]);
        let Now { at, wall } = harness.now();
        let checkpoint = harness.controller.checkpoint(Now { at, wall: wall - jiff::SignedDuration::from_hours(1) });
        let mut harness = restarted_with(&[driver(), later]);
        take_over(&mut harness, FoundCheckpoint { checkpoint, was_held: true, is_released: true, taken: Some(51) });
        assert_eq!(reported_exits(&mut harness), [(1, true)]);
    }
}

#[test]
fn graceful_stop_reports_pending_exits_and_advances_checkpoint() {
    let mut harness = ControllerHarness::new(Finished::Report);
    harness.observe(&driver());
    harness.observe(&running(1));
    harness.observe(&running(2));
    harness.step_after(1);
    harness.observe(&version(failed(1, 1), 30));
    assert!(harness.step_after(1).exits.is_empty(), "its driver may have exited");
    harness.observe(&version(failed(2, 137), 31));
    let now = harness.now();
    assert_eq!(harness.controller.checkpoint(now).unwrap().through, 29, "before the exit that is held back");
    let last: HashSet<_> =
        harness.controller.close(now, harness.leader_state).iter().map(|exit| exit.executor.exec_id.unwrap()).collect();
    assert_eq!(last, HashSet::from([1, 2]));
    assert_eq!(harness.controller.checkpoint(now).unwrap().through, 31);
    harness.observe(&version(failed(3, 137), 32));
    assert!(harness.step_after(5).exits.is_empty(), "the next leader reports this exit");
    let now = harness.now();
    assert_eq!(harness.controller.checkpoint(now).unwrap().through, 31);
}

#[test]
fn labelled_exit_is_reported_only_if_executor_was_observed_running() {
    let mut harness = ControllerHarness::new(Finished::Label);
    harness.observe(&driver());
    harness.observe(&running(1));
    harness.step_after(1);
    harness.observe(&failed(1, 137).label("spark-exec-inactive", "true"));
    harness.observe(&failed(2, 137).label("spark-exec-inactive", "true"));
    assert_eq!(reported_exits(&mut harness), [(1, false)], "the time of the other exit is unknown");
    assert!(harness.actions_within(300).is_empty());
}

#[test]
fn restarts_in_one_batch_are_reported_as_separate_exits() {
    let mut harness = ControllerHarness::new(Finished::Report);
    harness.observe(&driver());
    let at = |version_: u32, exited: bool| {
        let mut pod = version(running(1), version_).spec("restartPolicy", "Always");
        if exited {
            let state = serde_json::json!({"terminated": {"exitCode": 137, "reason": "Error"}});
            pod.0["status"]["containerStatuses"] = serde_json::json!([{"name": "main", "state": state}]);
        }
        pod
    };
    harness.observe(&at(1, false));
    harness.step_after(1);
    // Two exits in one batch, then a restart and a third exit in the next.
    for version in 2..=4 {
        harness.observe(&at(version, version % 2 == 0));
    }
    assert_eq!(reported_exits(&mut harness), [(1, false), (1, false)]);
    harness.observe(&at(5, false));
    harness.observe(&at(6, true));
    assert_eq!(reported_exits(&mut harness), [(1, false)]);
    harness.observe(&at(7, false));
    assert_eq!(reported_exits(&mut harness), []);
    harness.observe(&at(8, true));
    assert_eq!(reported_exits(&mut harness), [(1, false)]);
    // A late watch shows more of them in one batch.
    for version in 9..=16 {
        harness.observe(&at(version, version % 2 == 0));
    }
    assert_eq!(reported_exits(&mut harness), [(1, false); 4]);
}

/// All exits reported within this time: the report of a deletion waits a while for the driver's exit.
fn reported_within(harness: &mut ControllerHarness, seconds: u32) -> Vec<(u64, bool)> {
    (0..seconds).flat_map(|_| reported_exits(harness)).collect()
}

/// A follower whose watch has shown one running executor, at version 3.
fn follower_with_executor() -> ControllerHarness {
    let mut harness = ControllerHarness::new(Finished::Report);
    harness.leader_state = LeaderState::Follower;
    harness.observe(&version(driver(), 2));
    harness.observe(&version(running(1), 3));
    harness.step_after(5);
    harness
}

#[test]
fn checkpoint_applies_to_exits_that_a_late_watch_shows() {
    for late in [30, 59, 61, 120, 500] {
        let mut harness = follower_with_executor();
        take_over(&mut harness, after_stop(20, 21));
        harness.step_after(late);
        // It catches up in one batch.
        harness.observe(&version(failed(1, 137), 9));
        harness.observe(&version(running(9), 25));
        assert_eq!(reported_exits(&mut harness), [], "{late} s late");
    }
    // Exits that a killed leader may have reported after its checkpoint.
    for late in [30, 61, 500] {
        let mut harness = follower_with_executor();
        harness.observe(&version(running(8), 20));
        take_over(&mut harness, after_kill(20, 40));
        harness.step_after(late);
        harness.observe(&version(failed(1, 137), 30));
        assert_eq!(reported_exits(&mut harness), [(1, true)], "{late} s late");
    }
}

/// A GET finds that executor 1 does not exist: its exit is reported.
fn confirm_absence(harness: &mut ControllerHarness) {
    let (executor, now) = (Lookup::Labelled(PodKey::new("default", "nb-exec-1")), harness.now());
    harness.controller.lookup_answered(&executor, LookupResult::Absent, now);
    assert_eq!(reported_exits(harness), [(1, false)]);
}

#[test]
fn exit_reported_after_lookup_is_not_repeated_by_late_watch() {
    let mut harness = poll_ahead_of_watch("400", None);
    confirm_absence(&mut harness);
    for second in 0..380 {
        harness.observe(&version(running(9), 10 + second));
        assert!(harness.step_after(1).exits.is_empty());
    }
    harness.apply(PodChange::Deleted(version(failed(1, 137), 395).observation()));
    assert_eq!(reported_exits(&mut harness), []);
}

/// As with an executor of a StatefulSet, whose successor has the same name.
#[test]
fn exit_is_reported_if_another_pod_has_its_name() {
    let replaced = |harness: &mut ControllerHarness| {
        let again = version(running(1).stored("again"), 31);
        let all = [version(driver(), 2), again, version(running(9), 25)];
        harness.apply(PodChange::Listed(all.iter().map(PodBuilder::observation).collect()));
        let now = harness.now();
        harness.controller.bookmark("40", now);
    };
    // With a new leader, with a follower whose leader is killed, and with an old leader.
    let mut harness = follower_with_executor();
    take_over(&mut harness, after_stop(20, 21));
    harness.observe(&version(running(9), 25));
    harness.step_after(10);
    replaced(&mut harness);
    assert_eq!(reported_within(&mut harness, 10), [(1, true)], "the time of its exit is unknown");
    let mut harness = follower_with_executor();
    replaced(&mut harness);
    harness.step_after(1);
    take_over(&mut harness, after_kill(20, 45));
    assert_eq!(reported_within(&mut harness, 10), [(1, true)]);
    let mut harness = follower_with_executor();
    harness.leader_state = LeaderState::Leader;
    harness.observe(&version(running(9), 25));
    harness.step_after(10);
    replaced(&mut harness);
    assert_eq!(reported_within(&mut harness, 10), [(1, false)]);
}

#[test]
fn exit_labelled_by_driver_while_no_replica_ran_is_reported() {
    let started = |pod: PodBuilder| {
        let mut harness = ControllerHarness::new(Finished::Label);
        harness.controller = Controller::new(harness.at, Settings::default());
        harness.apply(RelatedChange::Apis(ServedApis::default()));
        harness.apply(RelatedChange::Namespaces(Watched::Listed(Vec::new())));
        harness.apply(PodChange::Listed(vec![driver().observation(), pod.observation()]));
        let now = harness.now();
        harness.controller.bookmark("50", now);
        take_over(&mut harness, after_kill(20, 51));
        reported_exits(&mut harness)
    };
    let labelled = |at| version(failed(1, 137), at).label("spark-exec-inactive", "true");
    assert_eq!(started(labelled(30)), [(1, true)]);
    assert_eq!(started(labelled(15)), [], "before the checkpoint");
    let at = |mut pod: PodBuilder, finished: &str| {
        pod.0["status"]["containerStatuses"][0]["state"]["terminated"]["finishedAt"] = finished.into();
        pod
    };
    // By the clock of its node, it exited a day after the checkpoint.
    assert_eq!(started(at(labelled(30), "2027-01-16T08:00:00Z")), [(1, true)]);
    assert_eq!(
        started(labelled(30).annotation("spark-usher.io/ended", "killed")),
        [],
        "spark-usher labelled it, after it had reported the exit"
    );
}

#[test]
fn executor_exit_after_driver_failure_has_cause_driver_lost() {
    let exited = |mut pod: PodBuilder, at: &str| {
        pod.0["status"]["containerStatuses"][0]["state"]["terminated"]["finishedAt"] = at.into();
        pod
    };
    let failed_driver = |at: &str| {
        let mut pod = version(driver(), 20).phase("Failed");
        pod.0["status"]["containerStatuses"] = serde_json::json!([{"name": "spark-kubernetes-driver",
            "state": {"terminated": {"exitCode": 137, "finishedAt": at}}}]);
        pod
    };
    // The executor's exit is detected first.
    let mut harness = ControllerHarness::new(Finished::Report);
    harness.observe(&driver());
    harness.step_after(1);
    harness.observe(&exited(failed(1, 1), "2027-01-15T08:00:01Z"));
    harness.observe(&exited(failed(2, 1), "2027-01-15T07:59:00Z"));
    harness.observe(&exited(failed(3, 137), "2027-01-15T08:00:01Z"));
    assert_eq!(reported_exits(&mut harness), [(3, false)]);
    harness.observe(&failed_driver("2027-01-15T08:00:00Z"));
    let causes: Vec<_> =
        harness.step_after(1).exits.iter().map(|exit| (exit.executor.exec_id.unwrap(), exit.cause)).collect();
    assert_eq!(causes, [(1, Cause::DriverLost), (2, Cause::Error)], "the other one had failed before");
    let history = harness.controller.exits().history().iter().map(|exit| exit.cause).collect::<Vec<_>>();
    assert_eq!(history, [Cause::DriverLost, Cause::Error, Cause::Killed]);
    // A driver that continues to run.
    let mut harness = ControllerHarness::new(Finished::Report);
    harness.observe(&driver());
    harness.step_after(1);
    harness.observe(&failed(1, 1));
    let causes: Vec<_> = (0..10)
        .flat_map(|second| harness.step_after(1).exits.into_iter().map(move |exit| (second, exit.cause)))
        .collect();
    assert_eq!(causes, [(5, Cause::Error)]);
}

#[test]
fn detail_of_deleted_executor_names_finished_or_deleted_driver() {
    // A driver that stops deletes its executors, and then exits.
    let mut harness = ControllerHarness::new(Finished::Report);
    harness.observe(&driver());
    harness.observe(&running(1));
    harness.observe(&running(2));
    harness.step_after(1);
    harness.delete_pod("nb-exec-1", "e1");
    harness.step_after(1);
    harness.observe(&version(driver(), 20).phase("Succeeded"));
    let exits = harness.step_after(1).exits;
    assert_eq!(exits[0].detail(), "with its driver nb-driver, which had exited");
    // The garbage collector deletes the executors of a deleted driver; no lookup of that driver is necessary.
    harness.delete_pod("nb-driver", DRIVER_UID);
    harness.delete_pod("nb-exec-2", "e2");
    assert_eq!(harness.step_after(1).exits[0].detail(), "with its driver nb-driver, which no longer existed");
    // An executor is deleted while its driver runs.
    let mut harness = ControllerHarness::new(Finished::Report);
    harness.observe(&driver());
    harness.observe(&running(1));
    harness.step_after(1);
    harness.delete_pod("nb-exec-1", "e1");
    let exits: Vec<Exit> = (0..10).flat_map(|_| harness.step_after(1).exits).collect();
    assert_eq!(exits[0].detail(), "by an unknown client");
}

#[test]
fn observed_driver_deletion_triggers_cleanup_without_lookup() {
    let mut harness = ControllerHarness::new(Finished::Delete);
    harness.observe(&driver());
    harness.observe(&failed(1, 137));
    harness.step_after(1);
    harness.delete_pod("nb-driver", DRIVER_UID);
    harness.since += Duration::from_secs(1);
    let now = harness.now();
    let effects = harness.controller.step(now, &harness.policies, LeaderState::Leader);
    let actions: Vec<_> = effects.actions.iter().flat_map(|(_, actions)| actions).collect();
    assert!(matches!(actions[..], [Action::CleanUp { gone_driver: Some(_), .. }]), "{actions:?}");
}

#[test]
fn new_leader_cleans_up_executors_that_previous_leader_reported() {
    let mut harness = ControllerHarness::new(Finished::Label);
    harness.leader_state = LeaderState::Follower;
    harness.observe(&driver());
    harness.observe(&running(1));
    harness.step_after(1);
    harness.observe(&failed(1, 137));
    for _ in 0..700 {
        harness.step_after(1);
    }
    take_over(&mut harness, after_stop(5, 20));
    let effects = harness.step_after(1);
    assert!(effects.exits.is_empty());
    let actions: Vec<_> = effects.actions.iter().flat_map(|(_, actions)| actions).collect();
    assert!(matches!(actions[..], [Action::CleanUp { .. }]), "{actions:?}");
}

#[test]
fn lookup_result_after_close_changes_neither_exits_nor_checkpoint() {
    let mut harness = ControllerHarness::new(Finished::Report);
    harness.observe(&driver());
    harness.observe(&running(1).spec("nodeName", "n"));
    harness.step_after(1);
    harness.apply(PodChange::Deleted(version(running(1), 8).spec("nodeName", "n").observation()));
    let lookup = harness.step_after(1).lookups.remove(0);
    let now = harness.now();
    assert!(harness.controller.close(now, harness.leader_state).is_empty());
    let last = harness.controller.checkpoint(now).unwrap();
    assert_eq!((last.through, gaps(&last)), (8, vec![(7, 9)]), "it is not confirmed whether it exited");
    harness.controller.lookup_answered(&lookup, LookupResult::Absent, now);
    assert!(harness.step_after(1).exits.is_empty());
    assert_eq!(harness.controller.checkpoint(now), Some(last));
}

/// A leader whose watch is at version 3, and whose poll contains executor 1 in this version, or does not contain it.
fn poll_ahead_of_watch(as_of: &str, executor: Option<&str>) -> ControllerHarness {
    let mut harness = ControllerHarness::new(Finished::Report);
    harness.observe(&version(driver(), 2));
    harness.observe(&version(running(1), 3));
    harness.step_after(60);
    let mut polled = PollResult::default();
    polled.add(harness.controller.snapshot(), "default", "nb-driver", DRIVER_UID, "2");
    if let Some(version) = executor {
        polled.add(harness.controller.snapshot(), "default", "nb-exec-1", "e1", version);
    }
    let now = harness.now();
    harness.controller.poll_finished(Some(polled.finish(as_of)), now, &harness.policies.clone());
    harness.step_after(10);
    harness
}

#[test]
fn exit_reported_from_lookup_ahead_of_watch_is_possibly_reported_for_next_leader() {
    let mut harness = poll_ahead_of_watch("40", Some("9"));
    let now = harness.now();
    let lookup = Lookup::Labelled(PodKey::new("default", "nb-exec-1"));
    harness.controller.lookup_answered(&lookup, LookupResult::Labelled(version(failed(1, 137), 9).observation()), now);
    assert_eq!(reported_exits(&mut harness), [(1, false)]);
    // The watch has reached only version 3, and the exit is reported.
    let now = harness.now();
    let checkpoint = harness.controller.checkpoint(now).unwrap();
    assert_eq!((checkpoint.through, checkpoint.covers(9), checkpoint.covers(10)), (3, None, Some(false)));
    let mut next = restarted_with(&[driver(), version(failed(1, 137), 9)]);
    take_over(
        &mut next,
        FoundCheckpoint { checkpoint: Some(checkpoint), was_held: true, is_released: true, taken: Some(51) },
    );
    assert_eq!(reported_exits(&mut next), [(1, true)]);
}

/// The leader's watch has lost the exit and continued, a poll shows a difference, and the leader stops before the GET.
#[test]
fn exit_pending_confirmation_at_stop_is_reported_by_next_leader() {
    let mut harness = ControllerHarness::new(Finished::Report);
    harness.observe(&version(driver(), 2));
    harness.observe(&version(running(1), 3));
    harness.observe(&version(running(2), 20));
    harness.step_after(60);
    let mut polled = PollResult::default();
    polled.add(harness.controller.snapshot(), "default", "nb-driver", DRIVER_UID, "2");
    polled.add(harness.controller.snapshot(), "default", "nb-exec-1", "e1", "9");
    polled.add(harness.controller.snapshot(), "default", "nb-exec-2", "e2", "20");
    let now = harness.now();
    harness.controller.poll_finished(Some(polled.finish("40")), now, &harness.policies.clone());
    harness.step_after(1);
    let now = harness.now();
    assert!(harness.controller.close(now, harness.leader_state).is_empty());
    let checkpoint = harness.controller.checkpoint(now).unwrap();
    assert_eq!((checkpoint.through, checkpoint.covers(9)), (20, None));
    let mut next = ControllerHarness::new(Finished::Report);
    next.leader_state = LeaderState::Follower;
    next.observe(&version(driver(), 2));
    next.observe(&version(running(1), 3));
    next.observe(&version(failed(1, 137), 9));
    next.observe(&version(running(3), 30));
    next.step_after(1);
    take_over(
        &mut next,
        FoundCheckpoint { checkpoint: Some(checkpoint), was_held: true, is_released: true, taken: Some(41) },
    );
    assert_eq!(reported_exits(&mut next), [(1, true)]);
}

/// The executor was created, exited and was labelled while the watch was interrupted.
#[test]
fn exit_labelled_by_driver_during_watch_interruption_is_reported() {
    let mut harness = ControllerHarness::new(Finished::Report);
    harness.observe(&version(driver(), 2));
    harness.step_after(1);
    let labelled = version(failed(1, 137), 20).label("spark-exec-inactive", "true");
    let labelled_by_usher = version(failed(2, 137), 21).label("spark-exec-inactive", "true");
    let labelled_by_usher = labelled_by_usher.annotation("spark-usher.io/ended", "killed");
    let pods = [version(driver(), 2), labelled, labelled_by_usher];
    let now = harness.now();
    harness.controller.list_started(now);
    harness.controller.list_page(pods.iter().map(PodBuilder::observation).collect(), now);
    harness.controller.list_finished(now);
    harness.controller.bookmark("30", now);
    assert_eq!(reported_exits(&mut harness), [(1, false)]);
}

#[test]
fn possibly_reported_range_stays_until_watch_passes_it() {
    let mut harness = ControllerHarness::new(Finished::Report);
    harness.leader_state = LeaderState::Follower;
    harness.observe(&version(driver(), 2));
    harness.observe(&version(running(1), 7));
    harness.step_after(5);
    // It takes over, and its watch is late: it has not shown the exit of executor 1 at version 9.
    take_over(&mut harness, after_kill(5, 20));
    harness.step_after(3);
    let now = harness.now();
    let own_checkpoint = harness.controller.checkpoint(now).unwrap();
    assert_eq!((own_checkpoint.through, own_checkpoint.covers(9), own_checkpoint.covers(21)), (7, None, Some(false)));
    let mut next = restarted_with(&[driver(), version(failed(1, 137), 9)]);
    take_over(
        &mut next,
        FoundCheckpoint { checkpoint: Some(own_checkpoint), was_held: true, is_released: true, taken: Some(51) },
    );
    assert_eq!(reported_exits(&mut next), [(1, true)]);
    // Once its watch has passed that version, it has reported everything up to there.
    harness.observe(&version(failed(1, 137), 9));
    let now = harness.now();
    harness.controller.bookmark("20", now);
    assert_eq!(reported_exits(&mut harness), [(1, true)]);
    let now = harness.now();
    assert_eq!(harness.controller.checkpoint(now).unwrap().covers(9), Some(true));
}

#[test]
fn replica_that_stops_without_having_led_has_no_checkpoint() {
    let mut harness = follower();
    let now = harness.now();
    assert!(harness.controller.close(now, harness.leader_state).is_empty());
    assert_eq!(harness.controller.checkpoint(now), None);
    let mut harness = follower();
    take_over(&mut harness, after_stop(5, 20));
    harness.step_after(1);
    let now = harness.now();
    harness.controller.close(now, harness.leader_state);
    assert_eq!(harness.controller.checkpoint(now).map(|checkpoint| checkpoint.through), Some(9));
}

#[test]
fn exit_found_by_poll_only_is_uncertain_in_checkpoint_up_to_poll_version() {
    let mut harness = poll_ahead_of_watch("40", None);
    confirm_absence(&mut harness);
    // Other replicas will see its deletion with a version up to the poll's.
    let now = harness.now();
    let checkpoint = harness.controller.checkpoint(now).unwrap();
    assert_eq!((checkpoint.through, checkpoint.covers(40), checkpoint.covers(41)), (3, None, Some(false)));
}
