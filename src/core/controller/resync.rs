//! A walk over all applications, when all are to be planned again: a part in each step, so that no step is long.

use std::ops::Bound;

use super::queue::WorkQueue;
use crate::snapshot::{GroupKey, Snapshot};
use usher_spark::ids::AppKey;

/// A step enqueues at most this many applications.
pub(super) const MAX_ENQUEUED_PER_STEP: usize = 256;

/// The position of the walk.
#[derive(Clone, Debug)]
pub(super) enum Resync {
    /// Among the applications, after this one.
    Apps(Option<AppKey>),
    /// Among the PodGroups, after this one: of some applications nothing else is left.
    Groups(Option<GroupKey>),
}

impl Default for Resync {
    fn default() -> Self {
        Resync::Apps(None)
    }
}

impl Resync {
    /// Enqueues the next applications. Returns whether the walk is complete.
    pub(super) fn enqueue_next(&mut self, snapshot: &Snapshot, work: &mut WorkQueue<AppKey>) -> bool {
        match self {
            Resync::Apps(after) => {
                let from = after.take().map_or(Bound::Unbounded, Bound::Excluded);
                let (mut last, mut count) = (None, 0);
                for (key, _) in snapshot.apps.range((from, Bound::Unbounded)).take(MAX_ENQUEUED_PER_STEP) {
                    work.add(key.clone());
                    (last, count) = (Some(key), count + 1);
                }
                let more = last.filter(|_| count == MAX_ENQUEUED_PER_STEP).cloned();
                *self = more.map_or(Resync::Groups(None), |last| Resync::Apps(Some(last)));
                matches!(self, Resync::Groups(_)) && snapshot.groups.is_empty()
            }
            Resync::Groups(after) => {
                let from = after.take().map_or(Bound::Unbounded, Bound::Excluded);
                let (mut last, mut count) = (None, 0);
                for (key, group) in snapshot.groups.range((from, Bound::Unbounded)).take(MAX_ENQUEUED_PER_STEP) {
                    let app = group.selector.as_ref().map(|selector| AppKey::new(&key.namespace, selector));
                    if let Some(app) = app.filter(|app| !snapshot.apps.contains_key(app)) {
                        work.add(app);
                    }
                    (last, count) = (Some(key), count + 1);
                }
                *after = last.filter(|_| count == MAX_ENQUEUED_PER_STEP).cloned();
                after.is_none()
            }
        }
    }
}
