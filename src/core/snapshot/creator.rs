//! Who created the pods of the snapshot: what they state counts only if our signature proves it.

use super::facts::{DriverPod, Executor, Template};
use super::owner::Owner;
use crate::signature::{Creator, StatedCreator};
use usher_spark::ids::PodIdentity;

impl Template {
    /// The creator of the executors as they state it, if our signature proves it.
    pub fn proven_creator(&self, is_proven: bool) -> Option<&StatedCreator> {
        self.creator.as_ref().filter(|_| is_proven)
    }

    /// The pod of the executors' namespace that created them, if that is proven, else the pod that controls them: never a pod that only
    /// has the labels.
    pub fn named_driver(&self, namespace: &str, is_proven: bool) -> Option<PodIdentity> {
        let pod = |(name, uid): (&str, &str)| PodIdentity::new(namespace, name, uid);
        match self.proven_creator(is_proven) {
            Some(creator) => creator.pod().map(pod),
            None => self.owner.as_ref()?.pod().map(|(name, uid)| pod((&name, &uid))),
        }
    }

    /// Whether a StatefulSet, a Deployment or another object that is not a pod creates the executors.
    pub fn has_workload(&self) -> bool {
        self.owner.as_ref().is_some_and(|owner| !owner.is_pod())
    }

    /// The pod of another namespace that created the executors, if that is proven.
    pub fn pod_elsewhere(&self, is_proven: bool) -> Option<PodIdentity> {
        let (namespace, name, uid) = self.proven_creator(is_proven)?.pod_elsewhere()?;
        Some(PodIdentity::new(namespace, name, uid))
    }
}

impl DriverPod {
    /// Its creator, if that is proven.
    pub fn creator_of(&self) -> Option<Creator> {
        self.stated_creator.as_ref().filter(|_| self.is_proven).map(StatedCreator::key)
    }
}

impl Executor {
    /// Its creator, if that is proven.
    pub fn creator(&self) -> Option<Creator> {
        self.template.proven_creator(self.is_proven).map(StatedCreator::key)
    }

    /// The creator for whose gang it counts: the proven one, else the object that it names as its controlling owner.
    pub fn counted_creator(&self) -> Option<Creator> {
        self.creator().or_else(|| self.template.owner.as_ref().map(Owner::creator))
    }

    /// The pod that drives it: its proven creator, unless that is an account, else the object that it names as its controlling owner.
    pub fn driver_creator(&self) -> Option<Creator> {
        let owner = || self.template.owner.as_ref().map(Owner::creator);
        self.creator().filter(|creator| creator.is_object()).or_else(owner)
    }
}
