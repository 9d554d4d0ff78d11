//! Faults around the replicas.

use std::time::Duration;

use tokio::time::Instant;

use super::cluster::{SimCluster, policies};
use super::connection::{Flow, State};

const STATES: [State; 5] = [State::Rejecting(500), State::Rejecting(429), State::Silent, State::Cut, State::NoStorage];

impl SimCluster {
    pub fn inject_fault(&mut self) {
        let state = *self.rng.pick(&STATES);
        let until = Instant::now() + Duration::from_secs(1 + self.rng.below(40));
        let all = self.rng.once_in(3);
        let one = self.pick_replica();
        let whom = if all { "all".to_owned() } else { format!("{one:?}") };
        self.disturb(until);
        self.note(format!("{state:?} for {whom} until {:.1}", (until - self.began).as_secs_f64()));
        for (number, replica) in &self.replicas {
            if all || Some(*number) == one {
                replica.connection.set(state);
                self.faulty.push((until, replica.connection.clone()));
            }
        }
    }

    pub fn delay_watches(&mut self) {
        let Some(one) = self.pick_replica() else { return };
        // Sometimes longer than a new leader waits before it trusts its watch.
        let max = if self.rng.once_in(4) { 120 } else { 20 };
        let late = Duration::from_secs(1 + self.rng.below(max));
        let flow = *self.rng.pick(&[Flow::Late(late), Flow::Late(late), Flow::Hung, Flow::Lossy]);
        let until = Instant::now() + Duration::from_secs(5 + self.rng.below(60));
        let connection = self.replicas[&one].connection.clone();
        self.disturb(until + late);
        connection.set_flow(flow);
        if flow == Flow::Lossy {
            self.lossy.push((one, Instant::now(), until));
        }
        self.faulty.push((until, connection));
        self.note(format!("watches of {one} are {flow:?} until {:.1}", (until - self.began).as_secs_f64()));
    }

    pub fn kill(&mut self) {
        let Some(one) = self.pick_replica() else { return };
        drop(self.replicas.remove(&one)); // Its tasks are aborted where they are.
        self.kills += 1;
        self.disturb(Instant::now());
        self.note(format!("replica {one} is killed"));
        self.starting.push(Instant::now() + Duration::from_secs(self.rng.below(20)));
    }

    pub fn restart(&mut self) {
        let Some(one) = self.pick_replica() else { return };
        // A rolling update stops no replica before another one is ready.
        let others = self.replicas.iter().filter(|(number, _)| **number != one);
        if self.is_fault_free && !others.map(|(_, other)| other).any(super::replica::Replica::is_complete) {
            return;
        }
        self.note(format!("replica {one} is stopped"));
        self.disturb(Instant::now());
        let replica = self.replicas.remove(&one).unwrap();
        replica.begin_shutdown();
        self.stopped.insert(one, Instant::now());
        self.stopping.push((Instant::now() + Duration::from_secs(5), replica));
        self.starting.push(Instant::now() + Duration::from_secs(self.rng.below(5)));
    }

    pub fn cut_watches(&mut self, compact: bool) {
        self.disturb(Instant::now());
        self.cuts.push(Instant::now());
        if compact {
            self.api.compact();
        }
        for replica in self.replicas.values() {
            replica.connection.cut();
        }
        self.note(format!("watches are cut{}", if compact { ", and missed events are compacted" } else { "" }));
    }

    /// An operator changes the policy file.
    pub fn reload(&mut self) {
        self.disturb(Instant::now());
        let reloaded = policies(&mut self.rng);
        self.note(format!("other policies: {:?}", reloaded.lifecycle));
        self.valid.push((Instant::now(), reloaded.lifecycle));
        self.policies.store(std::sync::Arc::new(reloaded));
        let (was, is_dry) = (*self.dry_run.borrow(), self.rng.once_in(3));
        if was == is_dry {
            self.dry_run.send_replace(is_dry); // Announces the changed policies.
        }
        self.set_dry_run(is_dry);
    }
}
