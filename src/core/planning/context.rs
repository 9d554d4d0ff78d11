//! The input of every rule of a plan.

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::lifecycle::exits::Exits;
use crate::ownership::contradiction::Witnesses;
use crate::ownership::liveness::{DriverLiveness, ExecutorSet};
use crate::policy::Policies;
use crate::signature::Creator;
use crate::snapshot::{Application, DriverPod, Group, GroupKey, Snapshot};
use usher_spark::ids::AppKey;
use usher_spark::time::Now;

/// What a plan is made of, beside the state of its application.
#[derive(Clone, Copy)]
pub struct PlanInput<'v> {
    pub snapshot: &'v Snapshot,
    /// The application's key.
    pub key: &'v AppKey,
    /// Settings.
    pub policies: &'v Policies,
    /// The exits that are tracked.
    pub exits: &'v Exits,
    /// The time.
    pub now: Now,
}

/// The input that all rules of a plan share.
pub struct PlanContext<'v> {
    pub snapshot: &'v Snapshot,
    /// The application's key.
    pub key: &'v AppKey,
    pub app: &'v Application,
    /// Its executors by their creator, sorted by that.
    pub sets: &'v [ExecutorSet<'v>],
    /// Settings.
    pub policies: &'v Policies,
    /// The exits that are tracked.
    pub exits: &'v Exits,
    /// The time.
    pub now: Now,
    /// The sets with a live driver, by its uid, sorted.
    by_driver: Vec<(&'v str, &'v ExecutorSet<'v>)>,
    /// Collected once for all rules that need them.
    witnesses: OnceCell<Witnesses>,
    certainly_gone: RefCell<BTreeMap<Option<Creator>, bool>>,
}

impl<'v> PlanContext<'v> {
    /// The input for an application whose executors are these. `sets` are sorted by their creator.
    pub fn new(input: PlanInput<'v>, app: &'v Application, sets: &'v [ExecutorSet<'v>]) -> PlanContext<'v> {
        let PlanInput { snapshot, key, policies, exits, now } = input;
        let mut by_driver: Vec<_> = sets.iter().filter_map(|set| Some((&*set.driver.pod()?.uid, set))).collect();
        by_driver.sort_by_key(|(driver, _)| *driver);
        let (witnesses, certainly_gone) = (OnceCell::new(), RefCell::default());
        PlanContext { snapshot, key, app, sets, policies, exits, now, by_driver, witnesses, certainly_gone }
    }

    /// Executors without a known creator: neither a signature nor an owner names one.
    pub fn unclaimed(&self) -> Option<&'v ExecutorSet<'v>> {
        self.sets.first().filter(|set| set.creator.is_none())
    }

    /// The sets of executors with this driver: any tenant can label any number of pods.
    pub fn of_driver(&self, uid: &str) -> impl Iterator<Item = &'v ExecutorSet<'v>> + Clone + use<'_, 'v> {
        let begin = self.by_driver.partition_point(|(driver, _)| *driver < uid);
        let end = begin + self.by_driver.iter().skip(begin).take_while(|(driver, _)| *driver == uid).count();
        self.by_driver.get(begin..end).unwrap_or_default().iter().map(|(_, set)| *set)
    }

    /// The drivers of the application's executors, each once: many sets may have one driver.
    pub fn own_drivers(&self) -> impl Iterator<Item = &'v Arc<DriverPod>> + use<'_, 'v> {
        let of_one = self.by_driver.chunk_by(|(a, _), (b, _)| a == b);
        of_one.filter_map(|sets| sets.iter().find_map(|(_, set)| set.own_driver()))
    }

    /// The other sets of executors with the same driver: executors created while the webhook was down have no signature.
    pub fn with_driver_of(
        &self,
        set: &ExecutorSet<'v>,
    ) -> impl Iterator<Item = &'v ExecutorSet<'v>> + Clone + use<'_, 'v> {
        let creator = set.creator;
        let same = set.driver.pod().map(|driver| self.of_driver(&driver.uid)).into_iter().flatten();
        same.filter(move |other| other.creator != creator)
    }

    /// Whether the driver of executors is gone, and nothing contradicts that.
    pub fn is_certainly_gone(&self, set: &ExecutorSet<'v>) -> bool {
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
    pub fn witnesses(&self) -> &Witnesses {
        self.witnesses.get_or_init(|| Witnesses::of(self.snapshot, self.key, self.app, self.sets))
    }

    /// Our PodGroups that were created for this application.
    pub fn groups(&self) -> impl Iterator<Item = (&'v GroupKey, &'v Arc<Group>)> {
        self.snapshot.groups_of(self.key)
    }
}
