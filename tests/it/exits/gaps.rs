//! Gaps in what a leader observed: they stay apart, age on with each leader, and end.

use super::*;

#[test]
fn interrupted_watch_leaves_gap_in_checkpoint_for_a_limited_time() {
    let mut harness = ControllerHarness::new(Finished::Report);
    harness.observe(&version(driver(), 2));
    harness.step_after(1);
    // Executor 1 was created and deleted while the watch was interrupted, so this replica has not seen it.
    harness.apply(Change::Pods(PodChange::Listed(vec![version(driver(), 2).observation()])));
    let now = harness.now();
    harness.controller.bookmark("30", now);
    harness.step_after(2);
    let now = harness.now();
    let checkpoint = harness.controller.checkpoint(now).unwrap();
    assert_eq!((checkpoint.through, gaps(&checkpoint)), (30, vec![(2, 30)]));
    let mut next = follower();
    take_over(
        &mut next,
        FoundCheckpoint { checkpoint: Some(checkpoint), was_held: true, is_released: true, taken: Some(40) },
    );
    assert_eq!(reported_exits(&mut next), [(1, true), (2, true)]);
    // After a long time, no other replica knows more.
    harness.step_after(661);
    let now = harness.now();
    assert_eq!(gaps(&harness.controller.checkpoint(now).unwrap()), []);
}

/// A leader whose watch had shown everything up to `through`, was interrupted, and continued after a list as of another version.
fn interrupt(harness: &mut ControllerHarness, as_of: u64) {
    harness.apply(Change::Pods(PodChange::Listed(vec![version(driver(), 2).observation()])));
    let now = harness.now();
    harness.controller.bookmark(&as_of.to_string(), now);
    harness.step_after(2);
}

#[test]
fn gaps_stay_apart_and_exits_between_them_are_not_reported_again() {
    let mut leader = ControllerHarness::new(Finished::Report);
    leader.observe(&version(driver(), 2));
    leader.step_after(1);
    interrupt(&mut leader, 4);
    // The exits of the follower, at versions 5 and 9, are between the two.
    let now = leader.now();
    leader.controller.bookmark("20", now);
    leader.step_after(60);
    interrupt(&mut leader, 30);
    let now = leader.now();
    let checkpoint = leader.controller.checkpoint(now).unwrap();
    assert_eq!((checkpoint.through, gaps(&checkpoint)), (30, vec![(2, 4), (20, 30)]));
    let mut next = follower();
    take_over(
        &mut next,
        FoundCheckpoint { checkpoint: Some(checkpoint), was_held: true, is_released: false, taken: Some(31) },
    );
    assert_eq!(reported_exits(&mut next), []);
}

#[test]
fn gap_of_an_earlier_leader_ages_on_and_ends_when_no_replica_knows_more() {
    let found = |age| {
        let gap = Gap { from: 4, to: 8, age: Duration::from_secs(age) };
        let checkpoint =
            checkpoint(10).map(|checkpoint| Checkpoint { gaps: [gap].into_iter().collect(), ..checkpoint });
        FoundCheckpoint { checkpoint, was_held: true, is_released: true, taken: Some(20) }
    };
    // Each leader starts after the gap, and hands it on at once.
    let mut age = 0;
    for holder in 0..12 {
        let mut harness = restarted_with(&[version(driver(), 2)]);
        take_over(&mut harness, found(age));
        harness.step_after(60);
        let now = harness.now();
        let last = harness.controller.checkpoint(now).unwrap();
        let Some(gap) = last.gaps.iter().find(|gap| gap.has(5)) else {
            assert_eq!(holder, 10, "eleven minutes after it was opened");
            return;
        };
        age = gap.age.as_secs();
        assert_eq!(age, 60 * (holder + 1));
    }
    panic!("a gap that begins anew with each leader");
}

#[test]
fn gap_of_an_earlier_leader_ends_with_a_leader_that_has_observed_it() {
    let mut harness = follower();
    harness.delete_pod("nb-exec-1", "e1");
    harness.step_after(1);
    let gaps = gap_of(Some((4, 8)));
    let checkpoint = checkpoint(10).map(|checkpoint| Checkpoint { gaps, ..checkpoint });
    take_over(&mut harness, FoundCheckpoint { checkpoint, was_held: true, is_released: true, taken: Some(20) });
    let now = harness.now();
    let before = harness.controller.checkpoint(now).unwrap();
    assert!(before.gaps.of(5).is_some(), "it has not reported the exit in the gap yet");
    assert_eq!(reported_exits(&mut harness), [(1, true)]);
    harness.controller.bookmark("21", now);
    harness.step_after(2);
    let now = harness.now();
    assert_eq!(self::gaps(&harness.controller.checkpoint(now).unwrap()), []);
}
