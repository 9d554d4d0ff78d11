//! When nothing could be observed: the watch was interrupted, or the API server did not answer.
//!
//! A driver acts first, and it needs the API server as the controller does: a grace counts only time in which both could act.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// After a shorter outage, a driver needs no extra time.
const MIN_DURATION: Duration = Duration::from_secs(5);
/// At most this many outages are kept: with more, the two oldest become one, with the time between them.
const MAX_OUTAGES: usize = 64;

/// See the module's documentation.
#[derive(Debug)]
pub struct Outages {
    /// An API server that sent nothing for this long counts as unavailable.
    quiet: Duration,
    /// Past outages in order, without overlaps.
    past: VecDeque<(Instant, Instant)>,
    /// Since when the watch is interrupted.
    interrupted: Option<Instant>,
    /// When the API server last answered.
    contact: Option<Instant>,
}

impl Default for Outages {
    fn default() -> Self {
        Outages::new(Duration::from_secs(15))
    }
}

impl Outages {
    /// An API server that sent nothing for `quiet` counts as unavailable.
    pub fn new(quiet: Duration) -> Outages {
        Outages { quiet, past: VecDeque::new(), interrupted: None, contact: None }
    }

    /// The watch is interrupted.
    pub fn interrupted(&mut self, now: Instant) {
        self.interrupted.get_or_insert(now);
    }

    /// The watch delivered something. Returns whether an outage is over.
    pub fn watch_alive(&mut self, now: Instant) -> bool {
        match self.interrupted.take() {
            Some(since) => {
                self.keep(since, now);
                true
            }
            None => false,
        }
    }

    /// The API server answered. Returns whether it had been unavailable.
    pub fn contact(&mut self, at: Instant) -> bool {
        let before = self.contact.replace(at);
        match before.filter(|before| at.saturating_duration_since(*before) > self.quiet) {
            Some(before) => {
                self.keep(before, at);
                true
            }
            None => false,
        }
    }

    fn keep(&mut self, from: Instant, to: Instant) {
        let (mut from, mut to) = (from, to);
        self.past.retain(|(begin, end)| {
            let apart = *end < from || to < *begin;
            if !apart {
                (from, to) = (from.min(*begin), to.max(*end));
            }
            apart
        });
        let at = self.past.partition_point(|(begin, _)| *begin < from);
        self.past.insert(at, (from, to));
        if self.past.len() > MAX_OUTAGES
            && let (Some((begin, _)), Some((_, end))) = (self.past.pop_front(), self.past.pop_front())
        {
            self.past.push_front((begin, end));
        }
    }

    /// Whether nothing can be observed now.
    pub fn is_out(&self, now: Instant) -> bool {
        self.interrupted.is_some() || self.contact.is_some_and(|at| now.saturating_duration_since(at) > self.quiet)
    }

    /// When `wait` has passed since `since`, not counting outages; if an outage ended since then, no sooner than `after` its end.
    pub fn due(&self, since: Instant, wait: Duration, after: Duration) -> Option<Instant> {
        let mut at = since.checked_add(wait)?;
        for (from, to) in self.past.iter().filter(|(_, to)| *to > since) {
            if *from < at {
                at = at.checked_add(to.saturating_duration_since((*from).max(since)))?;
            }
            // A very short outage has not prevented any action.
            if to.saturating_duration_since(*from) >= MIN_DURATION {
                at = at.max(to.checked_add(after)?);
            }
        }
        Some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_time::instant;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn outage_extends_due_time_and_leaves_minimum_time_afterwards() {
        let start = instant();
        let at = |seconds: u32| start + SECOND * seconds;
        let mut outages = Outages::default();
        let due = |outages: &Outages| outages.due(at(10), SECOND * 100, SECOND * 30);
        assert_eq!(due(&outages), Some(at(110)));
        outages.interrupted(at(0));
        assert!(outages.is_out(at(5)) && outages.watch_alive(at(20)) && !outages.watch_alive(at(21)));
        assert_eq!(due(&outages), Some(at(120)), "the outage lasts ten seconds of the wait");
        outages.interrupted(at(100));
        outages.watch_alive(at(160));
        assert_eq!(due(&outages), Some(at(190)), "thirty seconds after the outage: more than the twenty that remained");
        // An outage that began after the due time changes nothing but the time after it.
        outages.interrupted(at(300));
        outages.watch_alive(at(310));
        assert_eq!(due(&outages), Some(at(340)));
    }

    #[test]
    fn unresponsive_api_server_is_an_outage_and_overlaps_count_once() {
        let start = instant();
        let at = |seconds: u32| start + SECOND * seconds;
        let mut outages = Outages::default();
        for second in (0..=60).step_by(5) {
            assert!(!outages.contact(at(second)));
        }
        assert!(!outages.is_out(at(70)) && outages.is_out(at(76)));
        outages.interrupted(at(80));
        assert!(outages.contact(at(120)));
        assert!(outages.is_out(at(121)), "the watch is still interrupted");
        assert!(outages.watch_alive(at(130)));
        assert_eq!(outages.due(at(0), SECOND * 100, Duration::ZERO), Some(at(170)));
    }

    #[test]
    fn stored_outages_are_bounded() {
        let start = instant();
        let mut outages = Outages::default();
        for n in 0..1000 {
            outages.interrupted(start + SECOND * 10 * n);
            outages.watch_alive(start + SECOND * (10 * n + 1));
        }
        assert!(outages.past.len() <= MAX_OUTAGES);
        assert!(outages.due(start, SECOND * 100, Duration::ZERO).is_some_and(|due| due > start + SECOND * 1000));
    }
}
