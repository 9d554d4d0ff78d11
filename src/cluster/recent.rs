//! Remembers recent keys in bounded memory: in two generations, so that at most the older half is forgotten at once.

use std::collections::HashMap;
use std::hash::Hash;

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Recent<K, V> {
    now: HashMap<K, V>,
    before: HashMap<K, V>,
    generation: usize,
}

impl<K: Eq + Hash, V> Recent<K, V> {
    /// Remembers at least the last `generation` keys, and at most twice as many.
    pub(super) fn new(generation: usize) -> Self {
        Recent { now: HashMap::new(), before: HashMap::new(), generation }
    }

    /// The value of a key, which is then remembered longer.
    pub(super) fn get(&mut self, key: &K) -> Option<&V>
    where
        K: Clone,
    {
        if let Some(value) = self.before.remove(key) {
            self.insert(key.clone(), value);
        }
        self.now.get(key)
    }

    /// Remembers a key and its value.
    pub(super) fn insert(&mut self, key: K, value: V) {
        if self.now.len() >= self.generation {
            self.before = std::mem::take(&mut self.now);
        }
        self.now.insert(key, value);
    }

    /// Forgets a key.
    pub(super) fn remove(&mut self, key: &K) {
        self.now.remove(key);
        self.before.remove(key);
    }
}

impl<K: Eq + Hash + Clone> Recent<K, ()> {
    /// Remembers a key. Returns whether it is new.
    pub(super) fn insert_new(&mut self, key: K) -> bool {
        let known = self.get(&key).is_some();
        if !known {
            self.insert(key, ());
        }
        !known
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
