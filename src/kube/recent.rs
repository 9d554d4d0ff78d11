//! Remembers recent keys in bounded memory: in two generations, so that at most the older half is forgotten in one step.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// See the module's documentation.
#[derive(Debug)]
pub struct Recent<K, V> {
    now: HashMap<K, V>,
    before: HashMap<K, V>,
    generation: usize,
}

impl<K: Eq + Hash, V> Recent<K, V> {
    /// Remembers at least the last `generation` keys, and at most twice as many.
    pub fn new(generation: usize) -> Self {
        Recent { now: HashMap::new(), before: HashMap::new(), generation }
    }

    /// The value of a key, which is then remembered longer.
    pub fn get(&mut self, key: &K) -> Option<&V>
    where
        K: Clone,
    {
        if let Some(value) = self.before.remove(key) {
            self.insert(key.clone(), value);
        }
        self.now.get(key)
    }

    /// Remembers a key and its value.
    pub fn insert(&mut self, key: K, value: V) {
        if self.now.len() >= self.generation {
            self.before = std::mem::take(&mut self.now);
        }
        self.now.insert(key, value);
    }

    /// Forgets a key.
    pub fn remove(&mut self, key: &K) {
        self.now.remove(key);
        self.before.remove(key);
    }
}

impl<K: Eq + Hash + Clone> Recent<K, ()> {
    /// Remembers a key. Returns whether it is new.
    pub fn insert_new(&mut self, key: K) -> bool {
        let known = self.get(&key).is_some();
        if !known {
            self.insert(key, ());
        }
        !known
    }
}

/// Lets through one message a minute about each object: a tenant can change an object as often as it wants.
#[derive(Debug)]
pub struct OncePerMinute(Mutex<Recent<String, Instant>>);

/// At least this many objects are remembered, and at most twice as many.
const MAX_OBJECTS: usize = 1024;
const MINUTE: Duration = Duration::from_secs(60);

impl Default for OncePerMinute {
    fn default() -> OncePerMinute {
        OncePerMinute(Mutex::new(Recent::new(MAX_OBJECTS)))
    }
}

impl OncePerMinute {
    /// Whether a message about the object of this uid is due now.
    pub fn is_due(&self, uid: &str, now: Instant) -> bool {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let uid = uid.to_owned();
        if last.get(&uid).is_some_and(|last| now.saturating_duration_since(*last) < MINUTE) {
            return false;
        }
        last.insert(uid, now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_about_an_object_is_due_once_a_minute() {
        let (messages, now) = (OncePerMinute::default(), usher_runtime::clock::instant());
        let due: Vec<u64> = (0..180).filter(|at| messages.is_due("a", now + Duration::from_secs(*at))).collect();
        assert_eq!(due, [0, 60, 120]);
        assert!(messages.is_due("b", now));
    }

    #[test]
    fn repeated_key_is_remembered_within_bounded_memory() {
        let mut recent = Recent::new(10);
        assert!(recent.insert_new(0) && !recent.insert_new(0));
        for n in 1..1000 {
            assert!(recent.insert_new(n));
            assert!(!recent.insert_new(0), "{n}");
            assert!(recent.now.len() + recent.before.len() <= 20);
        }
        assert!(recent.insert_new(1), "long ago");
        recent.remove(&0);
        assert!(recent.insert_new(0));
    }
}
