//! The input of a decision about one pod.

use super::request::Review;
use crate::annotations;
use crate::policy::Policy;
use crate::snapshot::Snapshot;
use usher_spark::pod::Pod;

/// Everything that a decision about one pod reads.
pub(super) struct MutationContext<'q, 'a> {
    pub(super) review: &'q Review<'a>,
    pub(super) pod: &'q Pod<'a>,
    pub(super) policy: &'a Policy,
    pub(super) snapshot: &'q Snapshot,
}

impl MutationContext<'_, '_> {
    /// Whether the fallback policy placed this pod.
    pub(super) fn is_fallback(&self) -> bool {
        self.pod.annotation(annotations::BY) == Some(annotations::BY_FALLBACK)
    }

    /// The schedulerName that the pod's creator set; the fallback policy sets it only where the creator set none.
    pub(super) fn scheduler_name(&self) -> Option<&str> {
        if self.is_fallback() { None } else { self.pod.spec.scheduler_name.as_deref() }
    }
}
