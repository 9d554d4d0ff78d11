//! A work queue with the semantics of client-go's (`util/workqueue`): a key waits in it at most once, is processed by one worker
//! at a time, and is queued again if it was added while it was processed.
//!
//! Pure: the time is an argument. A step costs what is due, and nothing for what waits.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

/// See the module's text.
#[derive(Debug)]
pub struct WorkQueue<K> {
    /// Due keys, in the order in which they became due. May contain keys that were removed since.
    ready: VecDeque<K>,
    /// The keys in `ready` that were not removed.
    queued: BTreeSet<K>,
    /// Keys that are being processed, and whether each was added again meanwhile.
    in_flight: BTreeMap<K, bool>,
    delayed: BTreeSet<(Instant, K)>,
    /// When a delayed key is due.
    due: BTreeMap<K, Instant>,
    /// Failures in a row.
    failures: BTreeMap<K, u32>,
}

impl<K> Default for WorkQueue<K> {
    fn default() -> Self {
        WorkQueue {
            ready: VecDeque::new(),
            queued: BTreeSet::new(),
            in_flight: BTreeMap::new(),
            delayed: BTreeSet::new(),
            due: BTreeMap::new(),
            failures: BTreeMap::new(),
        }
    }
}

impl<K: Clone + Ord> WorkQueue<K> {
    /// Makes a key due now, unless it already is. A key that is being processed is queued again afterwards.
    pub fn add(&mut self, key: K) {
        if let Some(at) = self.due.remove(&key) {
            self.delayed.remove(&(at, key.clone()));
        }
        self.make_ready(key);
    }

    /// The same for a key that is not delayed.
    fn make_ready(&mut self, key: K) {
        if let Some(again) = self.in_flight.get_mut(&key) {
            *again = true;
        } else if self.queued.insert(key.clone()) {
            self.ready.push_back(key);
        }
    }

    /// Makes a key due at a time, unless it is due sooner.
    pub fn add_after(&mut self, key: K, at: Instant) {
        if self.queued.contains(&key) {
            return;
        }
        match self.due.entry(key.clone()) {
            Entry::Vacant(entry) => _ = entry.insert(at),
            Entry::Occupied(entry) if *entry.get() <= at => return,
            Entry::Occupied(mut entry) => {
                let later = entry.insert(at);
                self.delayed.remove(&(later, key.clone()));
            }
        }
        self.delayed.insert((at, key));
    }

    /// Makes a key due after a pause that grows with its failures in a row. Returns their number.
    pub fn add_rate_limited(&mut self, key: K, now: Instant, pause: impl Fn(u32) -> Duration) -> u32 {
        let failures = self.failures.entry(key.clone()).or_default();
        *failures = failures.saturating_add(1);
        let count = *failures;
        self.add_after(key, now + pause(count));
        count
    }

    /// Forgets a key's failures.
    pub fn forget(&mut self, key: &K) {
        self.failures.remove(key);
    }

    /// Removes a key. A key that is being processed is not queued again.
    pub fn remove(&mut self, key: &K) {
        self.queued.remove(key);
        if let Some(at) = self.due.remove(key) {
            self.delayed.remove(&(at, key.clone()));
        }
        if let Some(again) = self.in_flight.get_mut(key) {
            *again = false;
        }
        self.failures.remove(key);
    }

    /// Takes the key that has been due longest; [`WorkQueue::done`] has to follow.
    pub fn get(&mut self, now: Instant) -> Option<K> {
        while self.delayed.first().is_some_and(|(at, _)| *at <= now) {
            if let Some((_, key)) = self.delayed.pop_first() {
                self.due.remove(&key);
                self.make_ready(key);
            }
        }
        while let Some(key) = self.ready.pop_front() {
            if self.queued.remove(&key) {
                self.in_flight.insert(key.clone(), false);
                return Some(key);
            }
        }
        None
    }

    /// The key was processed.
    pub fn done(&mut self, key: &K) {
        if self.in_flight.remove(key) == Some(true) {
            self.add(key.clone());
        }
    }

    /// When the next key is due: now, or later.
    pub fn next(&self, now: Instant) -> Option<Instant> {
        if !self.queued.is_empty() {
            return Some(now);
        }
        self.delayed.first().map(|(at, _)| *at)
    }

    /// Whether a key is being processed.
    pub fn is_in_flight(&self, key: &K) -> bool {
        self.in_flight.contains_key(key)
    }

    /// Whether a key is due, or will be, apart from being processed.
    pub fn is_waiting(&self, key: &K) -> bool {
        self.queued.contains(key) || self.due.contains_key(key) || self.in_flight.get(key) == Some(&true)
    }

    /// How many keys are being processed.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// How many keys are due.
    pub fn len(&self) -> usize {
        self.queued.len()
    }

    /// Whether nothing is due.
    pub fn is_empty(&self) -> bool {
        self.queued.is_empty()
    }

    /// Removes all keys.
    pub fn clear(&mut self) {
        *self = WorkQueue::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_time::instant;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn key_is_queued_once_in_insertion_order() {
        let now = instant();
        let mut queue = WorkQueue::default();
        for key in ["b", "a", "b", "c"] {
            queue.add(key);
        }
        assert_eq!(queue.len(), 3);
        let got: Vec<_> = std::iter::from_fn(|| queue.get(now)).collect();
        assert_eq!(got, ["b", "a", "c"]);
        assert_eq!(queue.in_flight(), 3);
    }

    #[test]
    fn key_added_while_in_flight_is_requeued_when_done() {
        let now = instant();
        let mut queue = WorkQueue::default();
        queue.add("a");
        assert_eq!(queue.get(now), Some("a"));
        queue.add("a");
        assert_eq!(queue.get(now), None, "one worker at a time");
        queue.done(&"a");
        assert_eq!(queue.get(now), Some("a"));
        queue.done(&"a");
        assert_eq!((queue.get(now), queue.next(now)), (None, None));
    }

    #[test]
    fn earliest_add_after_time_wins() {
        let now = instant();
        let mut queue = WorkQueue::default();
        queue.add_after("a", now + SECOND * 5);
        queue.add_after("a", now + SECOND * 9);
        queue.add_after("b", now + SECOND * 4);
        assert_eq!(queue.next(now), Some(now + SECOND * 4));
        queue.add_after("a", now + SECOND);
        assert_eq!((queue.get(now), queue.get(now + SECOND)), (None, Some("a")));
        queue.done(&"a");
        assert_eq!(queue.get(now + SECOND * 3), None);
        // Now is sooner than any time.
        queue.add("b");
        assert_eq!(queue.get(now), Some("b"));
        queue.add_after("b", now);
        assert_eq!(queue.get(now), None, "it is being processed");
        queue.done(&"b");
        assert_eq!(queue.get(now), Some("b"));
    }

    #[test]
    fn rate_limited_delay_grows_with_failures_until_forget() {
        let now = instant();
        let mut queue = WorkQueue::default();
        let delay = |failures: u32| SECOND * failures;
        assert_eq!(queue.add_rate_limited("a", now, delay), 1);
        assert_eq!(queue.next(now), Some(now + SECOND));
        assert_eq!(queue.get(now + SECOND), Some("a"));
        queue.done(&"a");
        assert_eq!(queue.add_rate_limited("a", now, delay), 2);
        assert_eq!(queue.next(now), Some(now + SECOND * 2));
        queue.forget(&"a");
        queue.remove(&"a");
        assert_eq!(queue.next(now), None);
        assert_eq!(queue.add_rate_limited("a", now, delay), 1);
    }

    #[test]
    fn removed_key_is_not_returned() {
        let now = instant();
        let mut queue = WorkQueue::default();
        queue.add("a");
        queue.add("b");
        queue.remove(&"a");
        assert_eq!(queue.get(now), Some("b"));
        queue.add("b");
        queue.remove(&"b");
        queue.done(&"b");
        assert_eq!(queue.get(now), None);
        queue.add("a");
        assert_eq!(queue.get(now), Some("a"));
    }
}
