//! The index of labelled pods, by a hash of namespace and name.

use std::num::NonZeroU64;

use usher_spark::hash::hash_of;
use usher_spark::ids::AppHash;

/// The location of a labelled pod: its application and, for an executor, its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PodEntry {
    pub(super) app: AppHash,
    /// The executor's number plus one, or the largest value for an executor without a number.
    executor: Option<NonZeroU64>,
}

impl PodEntry {
    pub(super) fn of(app: AppHash, executor: Option<u64>) -> PodEntry {
        PodEntry { app, executor: executor.and_then(|id| NonZeroU64::new(id.saturating_add(1))) }
    }

    pub(super) fn id(&self) -> Option<u64> {
        self.executor.map(|number| if number == NonZeroU64::MAX { u64::MAX } else { number.get() - 1 })
    }
}

/// The key of a pod in the index. A collision would hide one of the two pods from lookups by name; with a hash of 64 bits, and a
/// key that only this process knows, that is negligible.
pub(super) fn pod_hash(namespace: &str, name: &str) -> u64 {
    hash_of(&(namespace, name))
}
