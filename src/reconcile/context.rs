//! The input of every rule of a plan.

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;

use crate::ownership::contradiction::Witnesses;
use crate::ownership::liveness::{DriverLiveness, ExecutorSet};
use crate::policy::Policies;
use crate::signature::Creator;
use crate::snapshot::{Application, Group, GroupKey, Snapshot};
use crate::spark::ids::AppKey;

/// The input that all rules of a plan share.
pub(super) struct PlanContext<'v> {
    pub(super) snapshot: &'v Snapshot,
    pub(super) key: &'v AppKey,
    pub(super) app: &'v Application,
    /// Sorted by their creator.
    pub(super) sets: &'v [ExecutorSet<'v>],
    /// Those with a live driver, by its uid, sorted.
    pub(super) by_driver: Vec<(&'v str, &'v ExecutorSet<'v>)>,
    pub(super) policies: &'v Policies,
    pub(super) now: Timestamp,
    /// Collected once for all rules that need them.
    pub(super) witnesses: OnceCell<Witnesses>,
    /// By creator.
    pub(super) certainly_gone: RefCell<BTreeMap<Option<Creator>, bool>>,
}

impl<'v> PlanContext<'v> {
    /// Executors without a known creator: neither a signature nor an owner names one.
    pub(super) fn unclaimed(&self) -> Option<&'v ExecutorSet<'v>> {
        self.sets.first().filter(|set| set.creator.is_none())
    }

    /// The sets of executors with this driver: any tenant can label any number of pods.
    pub(super) fn of_driver(&self, uid: &str) -> impl Iterator<Item = &'v ExecutorSet<'v>> + Clone + use<'_, 'v> {
        let begin = self.by_driver.partition_point(|(driver, _)| *driver < uid);
        let end = begin + self.by_driver.iter().skip(begin).take_while(|(driver, _)| *driver == uid).count();
        self.by_driver.get(begin..end).unwrap_or_default().iter().map(|(_, set)| *set)
    }

    /// The other sets of executors with the same driver: executors created while the webhook was down have no signature.
    pub(super) fn with_driver_of(
        &self,
        set: &ExecutorSet<'v>,
    ) -> impl Iterator<Item = &'v ExecutorSet<'v>> + Clone + use<'_, 'v> {
        let creator = set.creator;
        let same = set.driver.pod().map(|driver| self.of_driver(&driver.uid)).into_iter().flatten();
        same.filter(move |other| other.creator != creator)
    }

    /// Whether the driver of executors is gone, and nothing contradicts that.
    pub(super) fn is_certainly_gone(&self, set: &ExecutorSet<'v>) -> bool {
        if set.driver != DriverLiveness::Gone {
            return false;
        }
        let mut known = self.certainly_gone.borrow_mut();
        *known.entry(set.creator).or_insert_with(|| {
            let mut samples = set.counts.iter().filter_map(|counts| self.app.one_of(counts));
            !samples.any(|executor| self.witnesses().of_end(self.snapshot, self.key.namespace(), executor).is_some())
        })
    }

    /// The pods that may be drivers of the application's executors.
    pub(super) fn witnesses(&self) -> &Witnesses {
        self.witnesses.get_or_init(|| Witnesses::of(self.snapshot, self.key, self.app, self.sets))
    }

    /// Our PodGroups that were created for this application.
    pub(super) fn groups(&self) -> impl Iterator<Item = (&'v GroupKey, &'v Arc<Group>)> {
        self.snapshot.groups_of(self.key)
    }
}
