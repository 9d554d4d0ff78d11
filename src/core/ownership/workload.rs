//! The pod that owns executors through a workload: with the statefulset and deployment allocators the driver owns a StatefulSet or
//! a Deployment, whose controller creates the executors.

use std::sync::Arc;

use crate::snapshot::{Owner, Snapshot, WorkloadKey};

/// A Deployment owns a ReplicaSet, which owns pods.
const MAX_DEPTH: usize = 2;

/// The pod at the end of a chain of owners.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwningPod<'s> {
    /// This pod.
    Pod(&'s Owner),
    /// A workload of the chain has not been read.
    Unread,
    /// No pod owns it.
    None,
}

/// The pod that owns an object of which `owner` is the controlling owner, directly or as the owner of a workload.
pub fn owning_pod<'s>(snapshot: &'s Snapshot, namespace: &str, owner: &'s Owner) -> OwningPod<'s> {
    chain(snapshot, namespace, owner).1
}

/// The workloads between an object and the pod that owns it, as far as they are known, for which they are read.
pub fn workloads_of(snapshot: &Snapshot, namespace: &str, owner: &Owner) -> Vec<WorkloadKey> {
    chain(snapshot, namespace, owner).0
}

/// The topmost known workload above an object, by its uid, and how many pods it has.
pub fn replicas(snapshot: &Snapshot, namespace: &str, owner: &Owner) -> Option<(Arc<str>, u32)> {
    let (workloads, _) = chain(snapshot, namespace, owner);
    workloads.iter().rev().find_map(|key| {
        let workload = snapshot.workloads.get(key)?.as_ref()?;
        Some((workload.uid.clone(), workload.replicas?))
    })
}

fn chain<'s>(snapshot: &'s Snapshot, namespace: &str, owner: &'s Owner) -> (Vec<WorkloadKey>, OwningPod<'s>) {
    let mut keys = Vec::new();
    let mut owner = owner;
    loop {
        if owner.is_pod() {
            return (keys, OwningPod::Pod(owner));
        }
        let Some(key) = owner.workload(namespace).filter(|_| keys.len() < MAX_DEPTH) else {
            return (keys, OwningPod::None);
        };
        let known = snapshot.workloads.get(&key);
        keys.push(key);
        match known {
            None => return (keys, OwningPod::Unread),
            Some(Some(workload)) if workload.uid == owner.uid => match &workload.owner {
                Some(next) => owner = next,
                None => return (keys, OwningPod::None),
            },
            // It was deleted, and perhaps created again.
            Some(_) => return (keys, OwningPod::None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::{OwnerKind, Workload};
    use usher_spark::ids::PodKey;

    fn owner(kind: OwnerKind, name: &str) -> Owner {
        Owner::new(kind, name.into(), format!("{name}-uid").into())
    }

    fn snapshot(workloads: &[(OwnerKind, &str, Option<Owner>)]) -> Snapshot {
        let mut snapshot = Snapshot::default();
        for (kind, name, owner) in workloads {
            let key = WorkloadKey { kind: *kind, object: PodKey::new("n", name) };
            let workload = Workload { uid: format!("{name}-uid").into(), owner: owner.clone(), replicas: Some(3) };
            snapshot.workloads.insert(key, Some(Arc::new(workload)));
        }
        snapshot
    }

    #[test]
    fn chain_of_owners_ends_at_a_pod() {
        let driver = owner(OwnerKind::Pod, "driver");
        let set = owner(OwnerKind::StatefulSet, "set");
        let replica_set = owner(OwnerKind::ReplicaSet, "rs");
        let known = snapshot(&[
            (OwnerKind::StatefulSet, "set", Some(driver.clone())),
            (OwnerKind::ReplicaSet, "rs", Some(owner(OwnerKind::Deployment, "dep"))),
            (OwnerKind::Deployment, "dep", Some(driver.clone())),
        ]);
        assert_eq!(owning_pod(&known, "n", &driver), OwningPod::Pod(&driver));
        assert_eq!(owning_pod(&known, "n", &set), OwningPod::Pod(&driver));
        assert_eq!(owning_pod(&known, "n", &replica_set), OwningPod::Pod(&driver));
        assert_eq!(
            (replicas(&known, "n", &replica_set), replicas(&known, "n", &driver)),
            (Some(("dep-uid".into(), 3)), None)
        );
        assert_eq!(workloads_of(&known, "n", &replica_set).len(), 2);
        // Another namespace, another uid, another kind of the same name.
        assert_eq!(owning_pod(&known, "other", &set), OwningPod::Unread);
        assert_eq!(owning_pod(&known, "n", &Owner::new(set.kind, set.name.clone(), "x".into())), OwningPod::None);
        assert_eq!(owning_pod(&known, "n", &owner(OwnerKind::Deployment, "set")), OwningPod::Unread);
    }

    #[test]
    fn chains_that_are_too_long_or_end_elsewhere_have_no_pod() {
        let set = owner(OwnerKind::StatefulSet, "set");
        // It owns itself.
        let known = snapshot(&[(OwnerKind::StatefulSet, "set", Some(set.clone()))]);
        assert_eq!(owning_pod(&known, "n", &set), OwningPod::None);
        assert_eq!(owning_pod(&snapshot(&[(OwnerKind::StatefulSet, "set", None)]), "n", &set), OwningPod::None);
        let odd = |kind, name: &str| workloads_of(&Snapshot::default(), "n", &owner(kind, name)).len();
        assert_eq!((odd(OwnerKind::StatefulSet, "../x"), odd(OwnerKind::Other, "x")), (0, 0));
    }
}
