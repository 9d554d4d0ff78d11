//! The Lease in the simulation: rounds of the election, and the writes.

use std::time::{Duration, Instant};

use usher_core::leader::{DEFERENCE, LeaseRecord, Observed, Step, step};
use usher_core::lifecycle::checkpoint::{Checkpoint, FoundCheckpoint};

use super::replica::{LEASE, Request};
use super::truth::Lease;
use super::{Event, Sim};

impl Sim {
    pub(super) fn lease_read(&mut self, number: usize, began: Instant) {
        if self.fault(5) || self.outage_end().is_some() {
            return;
        }
        let at = self.instant();
        let identity = self.identity(number);
        let held = self.truth.lease.as_ref().map(|lease| LeaseRecord {
            version: lease.version.to_string(),
            holder: lease.holder.clone(),
            duration: LEASE,
            transitions: lease.transitions,
        });
        let replica = &mut self.replicas[number];
        replica.lease = held.map(|held| Observed::observe(replica.lease.take(), held, at));
        let there = self.truth.lease.clone();
        let since = replica.controller.as_ref().and_then(|controller| controller.exits().observed_since());
        let is_continued = |last: Checkpoint| since.is_some_and(|since| last.is_continued_since(since));
        let loses_exits = there.as_ref().and_then(|lease| lease.checkpoint).is_some_and(|last| !is_continued(last));
        let deference = if loses_exits { DEFERENCE } else { Duration::ZERO };
        let step = step(replica.lease.as_ref(), &identity, deference, at);
        let found = FoundCheckpoint {
            checkpoint: there.as_ref().and_then(|lease| lease.checkpoint),
            was_held: there.is_some(),
            is_released: there.as_ref().is_some_and(|lease| lease.holder.is_none()),
            taken: None,
        };
        let moment = self.moment(number);
        let replica = &mut self.replicas[number];
        let own = replica.controller.as_ref().and_then(|controller| controller.checkpoint(moment));
        let version = replica.lease.as_ref().and_then(|seen| seen.record.version.parse().ok());
        let wait = self.message_delay();
        match step {
            Step::Wait => self.send(number, wait, Request::LeaseWritten(began, false)),
            Step::Create => {
                self.replicas[number].found = Some(found);
                self.send(number, wait, Request::LeaseWrite(began, None, 0, None));
            }
            Step::AcquireOrRenew { transitions, is_renewal } => {
                if !is_renewal {
                    self.replicas[number].found = Some(found);
                }
                let checkpoint = own.filter(|_| is_renewal).or(found.checkpoint);
                self.send(number, wait, Request::LeaseWrite(began, version, transitions, checkpoint));
            }
        }
    }

    pub(super) fn lease_write(
        &mut self,
        number: usize,
        incarnation: u32,
        began: Instant,
        version: Option<u64>,
        transitions: i32,
        checkpoint: Option<Checkpoint>,
    ) {
        let identity = format!("r{number}.{incarnation}");
        let same = self.truth.lease.as_ref().map(|lease| lease.version) == version;
        if self.outage_end().is_some() {
            return;
        }
        let ok = same;
        if ok {
            let version = self.truth.next_version();
            if checkpoint.is_some() {
                self.first_checkpoint.get_or_insert(self.now);
            }
            self.truth.lease = Some(Lease { version, holder: Some(identity), transitions, checkpoint });
        }
        let response_lost = self.fault(4);
        let wait = self.message_delay();
        if !response_lost {
            self.after(wait, Event::Replica(number, incarnation, Box::new(Request::LeaseWritten(began, ok))));
        }
    }
}
