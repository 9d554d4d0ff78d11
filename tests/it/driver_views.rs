//! The leader's polls of drivers, and what the reports conclude from the views that they return.

use std::time::Duration;

use crate::support::controller_harness::*;
use crate::support::*;
use jiff::SignedDuration;
use serde_json::json;
use usher_core::controller::{DriverAnswer, PollError};
use usher_core::drivers::DriverPoll;
use usher_core::leader::LeaderState;
use usher_core::policy::{DriverAccess, DriverViews, Finished, Recovery};
use usher_report::views::{self, AppReport};
use usher_spark::rest::{DriverMetrics, ExecutorSummary};

/// Executors of a running driver.
fn harness(ids: &[u32]) -> ControllerHarness {
    let mut harness = ControllerHarness::new(Finished::Report);
    harness.observe(&driver().ip("10.0.0.5"));
    for id in ids {
        harness.observe(&running(*id, &harness));
    }
    harness
}

/// An executor that is created now, and runs.
fn running(id: u32, harness: &ControllerHarness) -> PodBuilder {
    let mut pod = executor(id).owned_by("Pod", "nb-driver", DRIVER_UID).stored(&format!("e{id}")).phase("Running");
    pod.0["metadata"]["creationTimestamp"] = json!(harness.now().wall.to_string());
    pod
}

fn next_poll(harness: &mut ControllerHarness) -> DriverPoll {
    for _ in 0..700 {
        if let Some(poll) = harness.step_after(1).driver_polls.pop() {
            return poll;
        }
    }
    panic!("the driver is not polled");
}

fn answer(harness: &mut ControllerHarness, poll: &DriverPoll, answer: DriverAnswer) {
    let (now, policies) = (harness.now(), harness.policies.clone());
    _ = harness.controller.driver_answered(&poll.key, answer, now, &policies);
    harness.step_after(1);
}

/// The driver's view of these registered executors.
fn registered(ids: &[u64]) -> DriverAnswer {
    let row = |id: &u64| ExecutorSummary {
        id: Some(*id),
        is_active: true,
        is_excluded: false,
        registered: None,
        removed: None,
        remove_reason: None,
    };
    DriverAnswer::View {
        port: 4040,
        conf: None,
        executors: ids.iter().map(row).collect(),
        metrics: DriverMetrics { dropped_events: Some(0), queued_events: Some(0), target: None },
    }
}

fn report(harness: &ControllerHarness) -> AppReport {
    views::apps(harness.controller.snapshot(), &harness.history(), None, harness.now().wall).remove(0)
}

fn troubled(harness: &ControllerHarness) -> Vec<String> {
    report(harness).troubled.into_iter().map(|executor| executor.pod).collect()
}

#[test]
fn view_for_which_there_is_no_memory_is_void_immediately_and_counted_as_too_large() {
    let mut harness = harness(&[1]);
    let poll = next_poll(&mut harness);
    answer(&mut harness, &poll, registered(&[1]));
    assert!(report(&harness).driver_view.is_some());
    let mut large = registered(&[1]);
    if let DriverAnswer::View { executors, .. } = &mut large {
        executors[0].remove_reason = Some("x".repeat(33 << 20).into());
    }
    let poll = next_poll(&mut harness);
    let (now, policies) = (harness.now(), harness.policies.clone());
    let result = harness.controller.driver_answered(&poll.key, large, now, &policies);
    assert_eq!(result, Err(PollError::TooLarge));
    harness.step_after(1);
    assert!(report(&harness).driver_view.is_none());
    let poll = next_poll(&mut harness);
    answer(&mut harness, &poll, registered(&[1]));
    assert!(report(&harness).driver_view.is_some());
}

#[test]
fn view_is_void_after_two_failed_polls_in_a_row() {
    let mut harness = harness(&[1]);
    let poll = next_poll(&mut harness);
    answer(&mut harness, &poll, registered(&[1]));
    let failed = || DriverAnswer::Failed(PollError::Timeout);
    for _ in 0..3 {
        // A failure now and then is none.
        for each in [failed(), registered(&[1])] {
            let poll = next_poll(&mut harness);
            answer(&mut harness, &poll, each);
            assert_eq!(report(&harness).driver_view.unwrap().registered, 1);
        }
    }
    for is_left in [true, false] {
        let poll = next_poll(&mut harness);
        answer(&mut harness, &poll, failed());
        assert_eq!(report(&harness).driver_view.is_some(), is_left);
    }
    let poll = next_poll(&mut harness);
    answer(&mut harness, &poll, registered(&[1]));
    assert!(report(&harness).driver_view.is_some());
}

#[test]
fn polls_end_and_views_are_void_when_turned_off_or_without_the_lease() {
    let turned_off = |harness: &mut ControllerHarness| {
        let driver_view = DriverViews { access: DriverAccess::None, ..DriverViews::default() };
        harness.policies = harness.policies.clone().with_recovery(Recovery { driver_view, ..Recovery::default() });
    };
    let lost = |harness: &mut ControllerHarness| harness.leader_state = LeaderState::Follower;
    for end in [turned_off as fn(&mut ControllerHarness), lost] {
        let mut harness = harness(&[1]);
        let poll = next_poll(&mut harness);
        answer(&mut harness, &poll, registered(&[1]));
        assert!(report(&harness).driver_view.is_some());
        let in_flight = next_poll(&mut harness);
        end(&mut harness);
        harness.step_after(1);
        assert!(report(&harness).driver_view.is_none(), "at once");
        answer(&mut harness, &in_flight, registered(&[1]));
        assert!(report(&harness).driver_view.is_none(), "the answer to an earlier poll is void");
        for _ in 0..120 {
            assert_eq!(harness.step_after(1).driver_polls, []);
        }
    }
}

#[test]
fn executor_is_unregistered_only_by_a_view_that_is_two_minutes_younger() {
    let mut harness = harness(&[1]);
    let poll = next_poll(&mut harness);
    answer(&mut harness, &poll, registered(&[]));
    assert_eq!(troubled(&harness), [""; 0], "it has just started");
    harness.since += Duration::from_secs(300);
    assert_eq!(troubled(&harness), [""; 0], "it may have registered since the view");
    let poll = next_poll(&mut harness);
    answer(&mut harness, &poll, registered(&[]));
    assert_eq!(troubled(&harness), ["nb-exec-1"]);
}

#[test]
fn executor_has_vanished_only_if_the_driver_had_time_to_notice_its_exit() {
    let mut harness = harness(&[1, 2]);
    let poll = next_poll(&mut harness);
    answer(&mut harness, &poll, registered(&[1, 2]));
    harness.delete_pod("nb-exec-2", "e2");
    for _ in 0..3 {
        harness.step_after(1);
    }
    let vanished = |harness: &ControllerHarness| report(harness).driver_view.unwrap().vanished;
    assert_eq!(vanished(&harness), [0; 0], "it exited after the view");
    loop {
        let poll = next_poll(&mut harness);
        answer(&mut harness, &poll, registered(&[1, 2]));
        let exited = report(&harness).exits[0].noticed.parse::<jiff::Timestamp>().unwrap();
        let since = harness.now().wall.duration_since(exited);
        if since > SignedDuration::from_secs(130) {
            break assert_eq!(vanished(&harness), [2]);
        }
        if since < SignedDuration::from_secs(110) {
            assert_eq!(vanished(&harness), [0; 0], "{since:?} after the exit its driver may not have noticed it");
        }
    }
}
