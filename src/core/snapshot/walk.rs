//! A walk over all labelled pods, in parts: there may be a hundred thousand.

use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;

use super::facts::{DriverPod, Executor, ExecutorKey, ObservedPod};
use super::state::Snapshot;
use usher_spark::hash::hash_of;
use usher_spark::ids::AppKey;

/// A labelled pod.
#[derive(Clone, Copy, Debug)]
pub enum Labelled<'s> {
    Driver(&'s Arc<DriverPod>),
    Executor(&'s Arc<Executor>),
}

impl<'s> Labelled<'s> {
    pub fn name(&self) -> &'s Arc<str> {
        match self {
            Labelled::Driver(driver) => &driver.name,
            Labelled::Executor(executor) => &executor.name,
        }
    }

    pub fn uid(&self) -> &'s Arc<str> {
        match self {
            Labelled::Driver(driver) => &driver.uid,
            Labelled::Executor(executor) => &executor.uid,
        }
    }

    /// The observed resourceVersion.
    pub fn version(&self) -> &'s str {
        match self {
            Labelled::Driver(driver) => &driver.version,
            Labelled::Executor(executor) => &executor.version,
        }
    }
}

/// The position of a walk. Pods before it are not visited any more; pods after it are, also those that were added since.
#[derive(Clone, Debug, Default)]
pub struct Cursor {
    /// The current application; `None` at the beginning.
    app: Option<AppKey>,
    /// The last visited executor, if that application is not done.
    after: Option<ExecutorKey>,
    /// Whether that application is done.
    is_done: bool,
}

impl Snapshot {
    /// The labelled pod of that name, and its application.
    pub(crate) fn labelled(&self, namespace: &str, name: &str) -> Option<(&AppKey, Labelled<'_>)> {
        let (key, app, id) = self.place(namespace, name)?;
        let pod = match id {
            Some(id) => Labelled::Executor(app.executors().get(&ExecutorKey { id, name: name.into() })?),
            None => Labelled::Driver(app.driver(name)?),
        };
        Some((key, pod))
    }

    /// Visits the next labelled pods, about `max`. Returns whether these were the last.
    pub fn walk<'s>(
        &'s self,
        cursor: &mut Cursor,
        max: usize,
        mut visit: impl FnMut(&'s AppKey, Labelled<'s>),
    ) -> bool {
        let mut visited = 0;
        if let Some(key) = cursor.app.clone().filter(|_| !cursor.is_done)
            && let Some((key, app)) = self.apps.get_key_value(&key)
            && !visit_executors(app.executors(), key, cursor, max, &mut visited, &mut visit)
        {
            return false;
        }
        let next = cursor.app.clone().map_or(Unbounded, Excluded);
        for (key, app) in self.apps.range((next, Unbounded)) {
            if visited >= max {
                return false;
            }
            *cursor = Cursor { app: Some(key.clone()), after: None, is_done: false };
            for driver in &app.drivers {
                visited += 1;
                visit(key, Labelled::Driver(driver));
            }
            if !visit_executors(app.executors(), key, cursor, max, &mut visited, &mut visit) {
                return false;
            }
            cursor.is_done = true;
        }
        true
    }
}

/// Visits the next executors of an application. Returns whether these were the last.
fn visit_executors<'s>(
    executors: &'s imbl::OrdMap<ExecutorKey, Arc<Executor>>,
    key: &'s AppKey,
    cursor: &mut Cursor,
    max: usize,
    visited: &mut usize,
    visit: &mut impl FnMut(&'s AppKey, Labelled<'s>),
) -> bool {
    let from = cursor.after.take().map_or(Unbounded, Excluded);
    let mut last = None;
    for (at, executor) in executors.range((from, Unbounded)) {
        *visited += 1;
        visit(key, Labelled::Executor(executor));
        last = Some(at);
        if *visited >= max {
            break;
        }
    }
    cursor.after = last.filter(|_| *visited >= max).cloned();
    cursor.after.is_none()
}

/// The pods that a list contains: a hash of each, so that a hundred thousand names and uids are not stored twice. A collision
/// matters only if one of the two pods was deleted and only the list shows that, which is negligible.
#[derive(Clone, Debug, Default)]
pub struct Listed {
    /// Sorted when it is sealed. A set would be rebuilt repeatedly while it grows.
    hashes: Vec<u64>,
    is_sealed: bool,
}

impl Listed {
    /// Adds a pod of the list.
    pub fn add(&mut self, pod: &ObservedPod) {
        let key = pod.key();
        self.insert(key.namespace(), key.name(), pod.uid());
    }

    /// The same by namespace, name and uid.
    pub fn insert(&mut self, namespace: &str, name: &str, uid: &str) {
        self.hashes.push(hash_of(&(namespace, name, uid)));
        self.is_sealed = false;
    }

    /// The list is complete and can be queried from now on.
    pub fn seal(&mut self) {
        if !std::mem::replace(&mut self.is_sealed, true) {
            self.hashes.sort_unstable();
            self.hashes.dedup();
        }
    }

    /// Whether the sealed list contains this pod.
    pub fn has(&self, app: &AppKey, pod: &Labelled<'_>) -> bool {
        self.contains(app.namespace(), pod.name(), pod.uid())
    }

    /// The same by namespace, name and uid.
    pub fn contains(&self, namespace: &str, name: &str, uid: &str) -> bool {
        self.hashes.binary_search(&hash_of(&(namespace, name, uid))).is_ok()
    }

    /// How many pods it contains.
    pub fn len(&self) -> usize {
        self.hashes.len()
    }

    /// Whether it contains no pod.
    pub fn is_empty(&self) -> bool {
        self.hashes.is_empty()
    }
}
