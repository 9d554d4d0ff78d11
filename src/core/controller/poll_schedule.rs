//! When the leader polls: one list of all labelled pods at a time, at intervals that differ between replicas.
//!
//! Pure: the time is an argument, and the edge sends the requests.

use std::time::{Duration, Instant};

/// See the module's text.
#[derive(Debug)]
pub(super) struct PollSchedule {
    /// When the next poll is due; `None` while this replica does not lead.
    due: Option<Instant>,
    in_flight: bool,
    /// How many polls were scheduled: part of the jitter.
    scheduled: u64,
    seed: u64,
}

impl PollSchedule {
    /// A schedule without a poll.
    pub(super) fn new(seed: u64) -> PollSchedule {
        PollSchedule { due: None, in_flight: false, scheduled: 0, seed }
    }

    /// Schedules the next poll after an interval with a jitter of a tenth.
    pub(super) fn schedule(&mut self, interval: Duration, now: Instant) {
        self.due = Some(now + self.jitter(interval));
    }

    /// Unschedules the next poll. A poll in flight still finishes.
    pub(super) fn stop(&mut self) {
        self.due = None;
    }

    /// Begins a poll if one is due. Returns whether it did.
    pub(super) fn begin(&mut self, now: Instant) -> bool {
        let begins = self.due.is_some_and(|due| due <= now) && !self.in_flight;
        if begins {
            self.due = None;
            self.in_flight = true;
        }
        begins
    }

    /// The poll in flight finished.
    pub(super) fn ended(&mut self) {
        self.in_flight = false;
    }

    /// Whether a poll is in flight.
    pub(super) fn is_in_flight(&self) -> bool {
        self.in_flight
    }

    /// When the next poll begins, unless one is in flight.
    pub(super) fn next(&self) -> Option<Instant> {
        self.due.filter(|_| !self.in_flight)
    }

    /// Deterministic: the jitter need not be random.
    fn jitter(&mut self, span: Duration) -> Duration {
        self.scheduled = self.scheduled.wrapping_add(1);
        let mixed = (self.seed ^ self.scheduled).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        let share = u32::try_from(mixed % 200).unwrap_or_default();
        span.saturating_mul(900 + share) / 1000
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_time::instant;

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn no_poll_begins_while_one_is_in_flight() {
        let now = instant();
        let mut polls = PollSchedule::new(0);
        assert_eq!((polls.begin(now), polls.next()), (false, None), "no poll is scheduled");
        polls.schedule(MINUTE, now);
        assert!(!polls.begin(now) && polls.begin(now + MINUTE * 2));
        assert!(polls.is_in_flight());
        polls.schedule(MINUTE, now);
        assert_eq!((polls.begin(now + MINUTE * 2), polls.next()), (false, None), "one is in flight");
        polls.ended();
        assert!(polls.next().is_some() && polls.begin(now + MINUTE * 2));
    }

    #[test]
    fn stopped_schedule_begins_no_poll() {
        let now = instant();
        let mut polls = PollSchedule::new(0);
        polls.schedule(MINUTE, now);
        polls.stop();
        assert_eq!((polls.begin(now + MINUTE * 2), polls.next()), (false, None));
    }

    #[test]
    fn interval_jitter_is_at_most_ten_percent() {
        let now = instant();
        let mut intervals = std::collections::BTreeSet::new();
        for seed in 0..50 {
            let mut polls = PollSchedule::new(seed);
            for _ in 0..4 {
                polls.schedule(MINUTE, now);
                intervals.insert(polls.next().unwrap() - now);
            }
        }
        assert!(*intervals.first().unwrap() >= MINUTE * 9 / 10 && *intervals.last().unwrap() <= MINUTE * 11 / 10);
        assert!(intervals.len() > 30, "replicas do not poll at the same time: {intervals:?}");
    }
}
