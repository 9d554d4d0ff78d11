//! The exits that are remembered for `why`, `apps` and the web page: the latest, but no application crowds out the others.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use imbl::OrdMap;

use super::exit::Exit;
use usher_spark::ids::AppKey;

/// The exits that are remembered. Cloning it is cheap.
#[derive(Clone, Debug, Default)]
pub struct RememberedExits {
    by_number: OrdMap<u64, Exit>,
    /// How many exits of an application that has others here are forgotten.
    forgotten: OrdMap<AppKey, u64>,
}

impl RememberedExits {
    /// In the order in which they were recorded.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Exit> {
        self.by_number.iter().map(|(_, exit)| exit)
    }

    /// Those that were recorded from this number on, counted from 0.
    pub(crate) fn from(&self, number: u64) -> impl Iterator<Item = &Exit> {
        self.by_number.range(number..).map(|(_, exit)| exit)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.by_number.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.by_number.is_empty()
    }

    /// How many earlier exits of an application are forgotten; 0 if none of its exits is remembered.
    pub fn forgotten(&self, app: &AppKey) -> u64 {
        self.forgotten.get(app).copied().unwrap_or_default()
    }
}

/// Remembers a number of exits. A new one takes the place of the oldest of the namespace that has the most, and there of the
/// application that has the most: whatever one tenant's executors do, the exits of others are remembered.
#[derive(Debug, Default)]
pub(super) struct Memory {
    exits: RememberedExits,
    namespaces: BTreeMap<String, Namespace>,
    /// Namespaces by their number of exits.
    by_count: BTreeSet<(usize, String)>,
}

#[derive(Debug, Default)]
struct Namespace {
    count: usize,
    /// The numbers of each application's exits.
    apps: BTreeMap<AppKey, VecDeque<u64>>,
    /// Applications by their number of exits.
    by_count: BTreeSet<(usize, AppKey)>,
}

impl Memory {
    /// Remembers an exit by its number, which is higher than any before; at most `max` in all.
    pub(super) fn push(&mut self, number: u64, exit: Exit, max: usize) {
        while self.exits.len() >= max.max(1) {
            self.forget_one();
        }
        let name = exit.app.namespace();
        let namespace = match self.namespaces.get_mut(name) {
            Some(namespace) => namespace,
            None => self.namespaces.entry(name.to_owned()).or_default(),
        };
        self.by_count.remove(&(namespace.count, name.to_owned()));
        namespace.count += 1;
        self.by_count.insert((namespace.count, name.to_owned()));
        let numbers = namespace.apps.entry(exit.app.clone()).or_default();
        namespace.by_count.remove(&(numbers.len(), exit.app.clone()));
        numbers.push_back(number);
        namespace.by_count.insert((numbers.len(), exit.app.clone()));
        self.exits.by_number.insert(number, exit);
    }

    /// Replaces an exit, if it is still remembered.
    pub(super) fn update(&mut self, number: u64, exit: &Exit) {
        if let Some(remembered) = self.exits.by_number.get_mut(&number) {
            *remembered = exit.clone();
        }
    }

    pub(super) fn exits(&self) -> &RememberedExits {
        &self.exits
    }

    fn forget_one(&mut self) {
        let Some((count, name)) = self.by_count.pop_last() else { return };
        let Some(namespace) = self.namespaces.get_mut(&name) else { return };
        if let Some((length, app)) = namespace.by_count.pop_last()
            && let Some(numbers) = namespace.apps.get_mut(&app)
            && let Some(number) = numbers.pop_front()
        {
            self.exits.by_number.remove(&number);
            if numbers.is_empty() {
                namespace.apps.remove(&app);
                self.exits.forgotten.remove(&app);
            } else {
                namespace.by_count.insert((length - 1, app.clone()));
                *self.exits.forgotten.entry(app).or_default() += 1;
            }
        }
        namespace.count -= 1;
        if namespace.count == 0 {
            self.namespaces.remove(&name);
        } else {
            self.by_count.insert((count - 1, name));
        }
    }
}
