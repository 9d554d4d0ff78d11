//! What is kept of exits: tracked while their pods exist, undecided, removed, and the batch in progress.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Instant;

use indexmap::IndexMap;

use super::cause::Cause;
use super::checkpoint::FoundCheckpoint;
use super::exit::Exit;
use crate::signature::Creator;
use crate::snapshot::{Ended, Executor, RemovedExecutor, Snapshot};
use usher_spark::ids::AppKey;

/// An executor's exit, for as long as it is remembered.
#[derive(Clone, Debug)]
pub(crate) struct TrackedExit {
    /// When we first observed it in a final state, by our own clock.
    pub(crate) since: Instant,
    /// The resourceVersion of that state.
    pub(super) version: Option<NonZeroU64>,
    /// Why it exited.
    pub(crate) cause: Cause,
    /// Whether its cause is undecided or its exit unreported: until then nothing is done to its pod.
    pub(crate) is_open: bool,
    /// When its pod was deleted, by our own clock.
    pub(super) gone: Option<Instant>,
    /// Before this version its pod was not deleted yet.
    pub(super) until: Option<NonZeroU64>,
}

/// The exits and failures of an application.
#[derive(Debug, Default)]
pub(super) struct AppExits {
    pub(super) exits: BTreeMap<Arc<str>, TrackedExit>,
    /// When executors failed, by their creator.
    pub(super) failures: HashMap<Option<Creator>, VecDeque<Instant>>,
}

/// An exit that the driver's exit may still explain.
#[derive(Debug)]
pub(super) struct Undecided {
    pub(super) since: Instant,
    pub(super) exit: Exit,
    /// Its position in the history, counted from the first exit.
    pub(super) number: u64,
}

/// An executor whose pod was deleted.
#[derive(Debug)]
pub(super) struct RecentRemoval {
    pub(super) at: Instant,
    pub(super) app: AppKey,
    pub(super) uid: Arc<str>,
    /// If the watch has not shown the deletion: the resourceVersion of the watch once it has.
    pub(super) as_of: Option<u64>,
}

/// A batch that is processed in parts.
#[derive(Debug)]
pub(super) struct BatchInProgress {
    /// The snapshot when the batch was started; empty if nothing is revived.
    pub(super) snapshot: Snapshot,
    pub(super) ended: indexmap::map::IntoIter<Arc<str>, Ended>,
    pub(super) ended_again: IndexMap<Arc<str>, Vec<Ended>>,
    pub(super) revived: IndexMap<Arc<str>, (AppKey, Arc<Executor>)>,
    /// How many of `revived` are processed.
    pub(super) revived_done: usize,
    pub(super) removed: IndexMap<Arc<str>, RemovedExecutor>,
    /// The removed, one by one, once the revived are processed: a hundred thousand must not be dropped in one step.
    pub(super) remaining_removals: Option<indexmap::map::IntoIter<Arc<str>, RemovedExecutor>>,
    pub(super) touched: indexmap::set::IntoIter<AppKey>,
}

/// What was found when this replica began to lead.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leadership {
    pub(super) at: Instant,
    pub(super) found: FoundCheckpoint,
    /// When our watch had delivered every change that the previous leader may have reported.
    pub(super) caught_up: Option<Instant>,
}

impl Leadership {
    /// The newest resourceVersion of exits that the previous leader may have reported.
    pub(super) fn before(&self) -> u64 {
        let taken = self.found.taken.filter(|_| !self.found.is_released);
        self.found.checkpoint.map_or(0, |checkpoint| checkpoint.through).max(taken.unwrap_or_default())
    }
}
