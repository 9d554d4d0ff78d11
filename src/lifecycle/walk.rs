//! A walk over all applications, when all are to be planned again: a part in each turn, so that no turn is long.

use std::ops::Bound;

use super::queue::WorkQueue;
use crate::snapshot::{GroupKey, Snapshot};
use crate::spark::ids::AppKey;

/// So many applications or groups are walked over in a turn.
const AT_ONCE: usize = 1024;

/// Where the walk is.
#[derive(Clone, Debug)]
pub(super) enum Walk {
    /// Among the applications, after this one.
    Apps(Option<AppKey>),
    /// Among the groups, after this one: of some applications nothing else is left.
    Groups(Option<GroupKey>),
}

impl Default for Walk {
    fn default() -> Self {
        Walk::Apps(None)
    }
}

impl Walk {
    /// Lines up the next applications. Returns whether the walk is over.
    pub(super) fn line_up(&mut self, snapshot: &Snapshot, work: &mut WorkQueue<AppKey>) -> bool {
        match self {
            Walk::Apps(after) => {
                let from = after.take().map_or(Bound::Unbounded, Bound::Excluded);
                let (mut last, mut count) = (None, 0);
                for (key, _) in snapshot.apps.range((from, Bound::Unbounded)).take(AT_ONCE) {
                    work.add(key.clone());
                    (last, count) = (Some(key), count + 1);
                }
                let more = last.filter(|_| count == AT_ONCE).cloned();
                *self = more.map_or(Walk::Groups(None), |last| Walk::Apps(Some(last)));
                matches!(self, Walk::Groups(_)) && snapshot.groups.is_empty()
            }
            Walk::Groups(after) => {
                let from = after.take().map_or(Bound::Unbounded, Bound::Excluded);
                let (mut last, mut count) = (None, 0);
                for (key, group) in snapshot.groups.range((from, Bound::Unbounded)).take(AT_ONCE) {
                    let app = group.selector.as_ref().map(|selector| AppKey::new(&key.namespace, selector));
                    if let Some(app) = app.filter(|app| !snapshot.apps.contains_key(app)) {
                        work.add(app);
                    }
                    (last, count) = (Some(key), count + 1);
                }
                *after = last.filter(|_| count == AT_ONCE).cloned();
                after.is_none()
            }
        }
    }
}
