//! A part of many executors for each plan: what a plan costs is bounded, and none of them is passed over for ever.

use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;

use imbl::OrdMap;

use crate::snapshot::{Executor, ExecutorKey};

/// A plan goes through so many executors,
const EXECUTORS: usize = 4096;
/// and no further once it has so many actions for them.
const ACTIONS: usize = 512;

/// The last executor that a plan went through, where more come after it.
pub(super) type Last = Option<ExecutorKey>;

/// Where the plans for one creator's executors go on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Among those that ended.
    pub(super) uncleared: Last,
    /// Among those that are on their way out.
    pub(super) leaving: Last,
    /// Among those that have no owner.
    pub(super) orphans: Last,
}

/// Goes through the executors that come after `last`, from the first again after the end. `each` returns whether it planned
/// an action. Returns whether these were all.
pub(super) fn go_through<'v>(
    all: &'v OrdMap<ExecutorKey, Arc<Executor>>,
    last: &mut Last,
    mut each: impl FnMut(&'v Arc<Executor>) -> bool,
) -> bool {
    let from = last.take();
    let is_whole = from.is_none();
    let (mut executors, mut actions) = (0, 0);
    let mut before: Option<&ExecutorKey> = None;
    for (key, executor) in all.range((from.map_or(Unbounded, Excluded), Unbounded)) {
        if executors == EXECUTORS || actions == ACTIONS {
            *last = before.cloned();
            return false;
        }
        before = Some(key);
        executors += 1;
        actions += usize::from(each(executor));
    }
    is_whole
}
