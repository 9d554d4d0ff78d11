//! Gaps in what a leader observed: they stay apart, age on with each leader, and end.

use super::*;

#[test]
fn interrupted_watch_leaves_gap_in_checkpoint_for_a_limited_time() {
    let mut harness = ControllerHarness::new(Finished::Report);
    harness.observe(&version(driver(), 2));
    harness.step_after(1);
    // Executor 1 was created and deleted while the watch was interrupted, so this replica has not seen it.
    harness.apply(PodChange::Listed(vec![version(driver(), 2).observation()]));
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
    harness.step_after(1001);
    let now = harness.now();
    assert_eq!(gaps(&harness.controller.checkpoint(now).unwrap()), []);
}

/// A leader whose watch had shown everything up to `through`, was interrupted, and continued after a list as of another version.
fn interrupt(harness: &mut ControllerHarness, as_of: u64) {
    harness.apply(PodChange::Listed(vec![version(driver(), 2).observation()]));
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
    for holder in 0..20 {
        let mut harness = restarted_with(&[version(driver(), 2)]);
        take_over(&mut harness, found(age));
        harness.step_after(60);
        let now = harness.now();
        let last = harness.controller.checkpoint(now).unwrap();
        let Some(gap) = last.gaps.iter().find(|gap| gap.has(5)) else {
            assert_eq!(holder, 16, "a thousand seconds after it was opened");
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

/// Three replicas, and an API server whose versions they observe.
struct Replicas {
    replicas: Vec<ControllerHarness>,
    leader: usize,
    version: u32,
    /// The executors that were reported, and whether as possibly reported.
    reports: Vec<(u64, bool)>,
}

impl Replicas {
    fn new() -> Replicas {
        let replica = |_| {
            let mut harness = ControllerHarness::new(Finished::Report);
            harness.leader_state = LeaderState::Follower;
            harness.observe(&version(driver(), 2));
            harness
        };
        let mut cluster =
            Replicas { replicas: (0..3).map(replica).collect(), leader: 0, version: 10, reports: Vec::new() };
        take_over(&mut cluster.replicas[0], FoundCheckpoint::default());
        cluster.step(5);
        cluster
    }

    /// The watch of every replica shows everything, and time passes.
    fn step(&mut self, seconds: u64) {
        for (number, replica) in self.replicas.iter_mut().enumerate() {
            let now = replica.now();
            replica.controller.bookmark(&self.version.to_string(), now);
            for second in 0..seconds {
                let exits = replica.step_after(1).exits;
                assert!(exits.is_empty() || number == self.leader, "only the leader reports, second {second}");
                self.reports
                    .extend(exits.iter().map(|exit| (exit.executor.exec_id.unwrap().into(), exit.possibly_reported)));
            }
        }
    }

    /// An executor runs, fails and is deleted.
    fn exit(&mut self, id: u32) {
        let states = [running(id), failed(id, 137)].map(|pod| {
            self.version += 1;
            version(pod, self.version)
        });
        self.version += 1;
        let last = version(failed(id, 137), self.version).deleting();
        for replica in &mut self.replicas {
            states.iter().for_each(|pod| replica.observe(pod));
            replica.apply(PodChange::Deleted(last.observation()));
        }
    }

    /// The API server does not answer for 40 s: every watch expires, and goes on with a list.
    fn stall(&mut self) {
        self.version += 5;
        for replica in &mut self.replicas {
            let at = replica.now().at;
            replica.controller.watch_interrupted(at);
            replica.step_after(40);
            replica.apply(PodChange::Listed(vec![version(driver(), 2).observation()]));
        }
        self.step(5);
    }

    /// The leader is killed, the next replica leads, and the killed one starts again.
    fn kill(&mut self) {
        let now = self.replicas[self.leader].now();
        let checkpoint = self.replicas[self.leader].controller.checkpoint(now);
        self.version += 1;
        let mut fresh = restarted_at(&[version(driver(), 2)], self.version);
        fresh.leader_state = LeaderState::Follower;
        fresh.since = self.replicas[self.leader].since;
        self.replicas[self.leader] = fresh;
        self.leader = (self.leader + 1) % 3;
        let taken = Some(u64::from(self.version));
        take_over(
            &mut self.replicas[self.leader],
            FoundCheckpoint { checkpoint, was_held: true, is_released: false, taken },
        );
        self.step(5);
    }
}

#[test]
fn ten_kills_in_a_row_and_three_stalls_repeat_no_exit_that_a_checkpoint_covers() {
    let mut cluster = Replicas::new();
    cluster.version = 100;
    for round in 0..10 {
        cluster.exit(2 * round + 1);
        cluster.step(20);
        if matches!(round, 2 | 5 | 8) {
            cluster.stall();
        }
        // The last checkpoint covers all exits but this one, which the leader never reports.
        cluster.kill();
        cluster.exit(2 * round + 2);
        cluster.step(20);
    }
    let mut reported: Vec<u64> = cluster.reports.iter().map(|(id, _)| *id).collect();
    reported.sort_unstable();
    let repeated = reported.len() - 20;
    reported.dedup();
    assert_eq!(reported, (1..=20).collect::<Vec<u64>>(), "none is lost: {:?}", cluster.reports);
    assert_eq!(repeated, 0, "{:?}", cluster.reports);
}

#[test]
fn gap_of_a_follower_does_not_put_in_doubt_what_the_leader_had_reported() {
    let mut harness = ControllerHarness::new(Finished::Report);
    harness.leader_state = LeaderState::Follower;
    harness.observe(&version(driver(), 2));
    harness.step_after(1);
    interrupt(&mut harness, 30);
    take_over(&mut harness, after_stop(28, 31));
    let now = harness.now();
    harness.controller.bookmark("31", now);
    harness.step_after(2);
    let now = harness.now();
    assert_eq!(super::gaps(&harness.controller.checkpoint(now).unwrap()), [(28, 30)]);
}

#[test]
fn follower_keeps_exits_for_ten_minutes_after_a_time_without_a_leader() {
    let mut harness = follower();
    harness.leader_state = LeaderState::NoLeader;
    harness.step_after(660);
    // A replica that has just started leads for a moment, and knows nothing of them.
    harness.leader_state = LeaderState::Follower;
    harness.step_after(20);
    take_over(&mut harness, after_kill(3, 20));
    assert_eq!(reported_exits(&mut harness), [(1, true), (2, true)]);
}
