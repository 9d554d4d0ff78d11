//! Which polls run at the same time, and how much memory views occupy: bounded for all, and for each namespace, so that the drivers
//! of one tenant do not keep those of the others waiting.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

use crate::snapshot::DriverViewKey;

/// Number of concurrent polls. A poll of a driver that has answered before ends after 3 seconds, and an earlier one after 15.
pub(super) const MAX_IN_FLIGHT: usize = 64;
/// The same within one namespace.
pub(super) const MAX_OF_NAMESPACE: usize = 16;
/// Number of bytes of all views: about 600,000 executors.
const MAX_MEMORY: usize = 64 << 20;
/// The same within one namespace: about 300,000 executors.
const MAX_MEMORY_OF_NAMESPACE: usize = 32 << 20;

/// Running polls, and drivers that wait for one of their namespace to finish.
#[derive(Debug, Default)]
pub(super) struct Slots {
    running: usize,
    namespaces: BTreeMap<String, Namespace>,
    /// The namespace whose waiting driver was polled last.
    last: Option<String>,
}

#[derive(Debug, Default)]
struct Namespace {
    running: usize,
    waiting: VecDeque<DriverViewKey>,
}

impl Slots {
    /// Whether another poll may begin.
    pub(super) fn has_free(&self) -> bool {
        self.running < MAX_IN_FLIGHT
    }

    /// Begins a poll of this driver, or lets it wait until one of its namespace finishes.
    pub(super) fn begin(&mut self, key: DriverViewKey) -> Option<DriverViewKey> {
        let namespace = self.namespaces.entry(key.app.namespace().to_owned()).or_default();
        if namespace.running >= MAX_OF_NAMESPACE {
            namespace.waiting.push_back(key);
            return None;
        }
        namespace.running += 1;
        self.running += 1;
        Some(key)
    }

    /// Begins a poll of a driver that has waited.
    pub(super) fn begin_waiting(&mut self) -> Option<DriverViewKey> {
        // The namespaces take turns.
        let last = self.last.take().unwrap_or_default();
        let is_ready = |namespace: &Namespace| !namespace.waiting.is_empty() && namespace.running < MAX_OF_NAMESPACE;
        let after = (Bound::Excluded(last.as_str()), Bound::Unbounded);
        let next = self
            .namespaces
            .range::<str, _>(after)
            .chain(self.namespaces.iter())
            .find(|(_, namespace)| is_ready(namespace));
        let name = next.map(|(name, _)| name.clone());
        self.last = name.clone().or(Some(last));
        let namespace = self.namespaces.get_mut(&name?)?;
        let key = namespace.waiting.pop_front()?;
        namespace.running += 1;
        self.running += 1;
        Some(key)
    }

    /// Whether a driver that has waited can be polled.
    pub(super) fn is_next_ready(&self) -> bool {
        self.has_free()
            && self
                .namespaces
                .values()
                .any(|namespace| !namespace.waiting.is_empty() && namespace.running < MAX_OF_NAMESPACE)
    }

    /// A poll finished.
    pub(super) fn finished(&mut self, key: &DriverViewKey) {
        self.running = self.running.saturating_sub(1);
        if let Some(namespace) = self.namespaces.get_mut(key.app.namespace()) {
            namespace.running = namespace.running.saturating_sub(1);
            if namespace.running == 0 && namespace.waiting.is_empty() {
                self.namespaces.remove(key.app.namespace());
            }
        }
    }
}

/// Memory of the views that are kept.
#[derive(Debug, Default)]
pub(super) struct ViewMemory {
    total: usize,
    views: BTreeMap<DriverViewKey, usize>,
    namespaces: BTreeMap<String, usize>,
}

impl ViewMemory {
    /// Keeps a view of this many bytes instead of an earlier one. False if there is no memory for it: then neither is kept.
    pub(super) fn keep(&mut self, key: &DriverViewKey, bytes: usize) -> bool {
        self.release(key);
        let taken = self.namespaces.get(key.app.namespace()).copied().unwrap_or_default();
        if self.total + bytes > MAX_MEMORY || taken + bytes > MAX_MEMORY_OF_NAMESPACE {
            return false;
        }
        self.total += bytes;
        self.views.insert(key.clone(), bytes);
        self.namespaces.insert(key.app.namespace().to_owned(), taken + bytes);
        true
    }

    /// A view is no longer kept.
    pub(super) fn release(&mut self, key: &DriverViewKey) {
        let Some(bytes) = self.views.remove(key) else { return };
        self.total = self.total.saturating_sub(bytes);
        if let Some(taken) = self.namespaces.get_mut(key.app.namespace()) {
            *taken = taken.saturating_sub(bytes);
            if *taken == 0 {
                self.namespaces.remove(key.app.namespace());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::signature::Creator;
    use usher_spark::ids::AppKey;

    fn key(namespace: &str, number: usize) -> DriverViewKey {
        let app = AppKey::new(namespace, &format!("spark-{number}"));
        DriverViewKey { app, driver: Creator::of_pod("d", "u") }
    }

    #[test]
    fn one_namespace_never_has_all_slots_and_its_drivers_wait_in_order() {
        let mut slots = Slots::default();
        let begun: Vec<_> = (0..100).filter_map(|number| slots.begin(key("a", number))).collect();
        assert_eq!(begun.len(), MAX_OF_NAMESPACE);
        assert!(slots.has_free() && slots.begin(key("b", 0)).is_some() && slots.begin_waiting().is_none());
        assert!(!slots.is_next_ready());
        slots.finished(&begun[3]);
        assert!(slots.is_next_ready());
        assert_eq!(slots.begin_waiting(), Some(key("a", MAX_OF_NAMESPACE)));
        assert_eq!(slots.begin_waiting(), None);
        for number in 1..MAX_IN_FLIGHT - MAX_OF_NAMESPACE {
            assert!(slots.has_free() && slots.begin(key(&format!("c{number}"), 0)).is_some());
        }
        assert!(!slots.has_free());
    }

    #[test]
    fn namespaces_with_waiting_drivers_take_turns() {
        let mut slots = Slots::default();
        let begun: Vec<_> = ["a", "b", "c", "d"]
            .iter()
            .flat_map(|name| (0..40).map(|number| key(name, number)))
            .filter_map(|key| slots.begin(key))
            .collect();
        assert!(begun.len() == MAX_IN_FLIGHT && !slots.has_free());
        // As each of them finishes, a waiting driver of each namespace begins in turn, whatever their names.
        begun.iter().for_each(|key| slots.finished(key));
        let next: Vec<String> =
            (0..8).filter_map(|_| slots.begin_waiting()).map(|key| key.app.namespace().to_owned()).collect();
        assert_eq!(next, ["a", "b", "c", "d", "a", "b", "c", "d"]);
    }

    #[test]
    fn slots_and_namespaces_are_free_again() {
        let mut slots = Slots::default();
        for number in 0..1000 {
            let begun = slots.begin(key(&format!("n{number}"), 0)).unwrap();
            slots.finished(&begun);
        }
        assert!(slots.running == 0 && slots.namespaces.is_empty());
    }

    #[test]
    fn memory_of_views_is_bounded_for_a_namespace_and_for_all() {
        let (mut memory, mebibyte) = (ViewMemory::default(), 1 << 20);
        let kept = (0..100).filter(|number| memory.keep(&key("a", *number), mebibyte)).count();
        assert_eq!(kept, 32);
        assert!(memory.keep(&key("b", 0), mebibyte), "another namespace has its own part");
        assert!(memory.keep(&key("a", 0), mebibyte), "a view replaces the earlier one");
        assert!(!memory.keep(&key("a", 0), 2 * mebibyte) && memory.keep(&key("a", 1000), mebibyte));
        let kept = (0..100).filter(|number| memory.keep(&key(&format!("c{number}"), 0), mebibyte)).count();
        assert_eq!(kept, 31);
        let all: Vec<DriverViewKey> = memory.views.keys().cloned().collect();
        all.iter().for_each(|key| memory.release(key));
        assert!(memory.total == 0 && memory.namespaces.is_empty());
    }
}
