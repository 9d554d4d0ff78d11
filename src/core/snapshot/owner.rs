//! Who controls a pod: another pod, or a workload (StatefulSet, ReplicaSet, Deployment) that a pod may own in turn.
//!
//! With `spark.kubernetes.allocation.pods.allocator=statefulset` or `deployment` the driver creates one workload per resource
//! profile, owned by the driver's pod, and its controller creates the executors
//! (`StatefulSetPodsAllocator.scala`, `DeploymentPodsAllocator.scala`).

use std::sync::Arc;

use serde::Deserialize;

use crate::signature::Creator;
use usher_spark::ids::PodKey;
use usher_spark::pod::{OwnerReference, Pod};
use usher_spark::text::{is_dns_subdomain, truncated};

/// The longest name of an object.
pub(super) const MAX_NAME: usize = 253;
/// The longest uid that is kept: the API server's have 36 characters.
pub(super) const MAX_UID: usize = 128;

/// A controlling owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    pub kind: OwnerKind,
    pub name: Arc<str>,
    pub uid: Arc<str>,
    /// The same as a creator: every plan compares it, and a digest takes longer than the comparison.
    creator: Creator,
}

/// The kind of a controlling owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OwnerKind {
    Pod,
    /// A StatefulSet of the group `apps`.
    StatefulSet,
    /// A ReplicaSet of the group `apps`.
    ReplicaSet,
    /// A Deployment of the group `apps`.
    Deployment,
    /// Anything else.
    Other,
}

impl OwnerKind {
    pub fn of(reference: &OwnerReference<'_>) -> OwnerKind {
        match &*reference.kind {
            _ if reference.is_pod() => OwnerKind::Pod,
            _ if !reference.api_version.starts_with("apps/") => OwnerKind::Other,
            "StatefulSet" => OwnerKind::StatefulSet,
            "ReplicaSet" => OwnerKind::ReplicaSet,
            "Deployment" => OwnerKind::Deployment,
            _ => OwnerKind::Other,
        }
    }

    /// Kind and resource of a workload that is read, in the group `apps`, version `v1`; `None` for other owners.
    pub fn resource(self) -> Option<(&'static str, &'static str)> {
        match self {
            OwnerKind::StatefulSet => Some(("StatefulSet", "statefulsets")),
            OwnerKind::ReplicaSet => Some(("ReplicaSet", "replicasets")),
            OwnerKind::Deployment => Some(("Deployment", "deployments")),
            OwnerKind::Pod | OwnerKind::Other => None,
        }
    }
}

impl Owner {
    /// The object that an ownerReference names, its texts cut to the longest that Kubernetes allows.
    pub fn of(reference: &OwnerReference<'_>) -> Owner {
        let (name, uid) = (bounded(&reference.name, MAX_NAME + 1), bounded(&reference.uid, MAX_UID + 1));
        Owner::new(OwnerKind::of(reference), name, uid)
    }

    /// The object of this kind, name and uid.
    pub fn new(kind: OwnerKind, name: Arc<str>, uid: Arc<str>) -> Owner {
        let creator = match kind {
            OwnerKind::Pod => Creator::of_pod(&name, &uid),
            _ => Creator::of_workload(&name, &uid),
        };
        Owner { kind, name, uid, creator }
    }

    pub fn of_pod(name: Arc<str>, uid: Arc<str>) -> Owner {
        Owner::new(OwnerKind::Pod, name, uid)
    }

    /// Whether it is a pod.
    pub fn is_pod(&self) -> bool {
        self.kind == OwnerKind::Pod
    }

    /// This owner as a creator.
    pub fn creator(&self) -> Creator {
        self.creator
    }

    /// Name and uid of a pod that can be read by its name. Tenants write owners: a name that no pod can have must not become part
    /// of a URL.
    pub fn pod(&self) -> Option<(Arc<str>, Arc<str>)> {
        (self.is_pod() && is_dns_subdomain(&self.name)).then(|| (self.name.clone(), self.uid.clone()))
    }

    /// The key of a workload that can be read by its name.
    pub fn workload(&self, namespace: &str) -> Option<WorkloadKey> {
        let is_readable = self.kind.resource().is_some() && is_dns_subdomain(&self.name);
        is_readable.then(|| WorkloadKey { kind: self.kind, object: PodKey::new(namespace, &self.name) })
    }
}

/// Kind, namespace and name of a workload.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkloadKey {
    pub kind: OwnerKind,
    /// Namespace and name.
    pub object: PodKey,
}

/// What is known of a workload that creates executors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    pub uid: Arc<str>,
    /// Its controlling owner: the driver's pod (`KubernetesUtils.addOwnerReference`), or a Deployment.
    pub owner: Option<Owner>,
    /// `spec.replicas`.
    pub replicas: Option<u32>,
}

impl Workload {
    /// Reads a StatefulSet, ReplicaSet or Deployment.
    pub fn read(json: &str) -> Option<Workload> {
        #[derive(Deserialize)]
        struct Whole<'a> {
            #[serde(borrow)]
            metadata: Metadata<'a>,
            #[serde(default)]
            spec: Spec,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Metadata<'a> {
            uid: String,
            #[serde(borrow, default)]
            owner_references: Option<Vec<OwnerReference<'a>>>,
        }
        #[derive(Default, Deserialize)]
        struct Spec {
            #[serde(default)]
            replicas: Option<u32>,
        }
        let Whole { metadata, spec } = serde_json::from_str(json).ok()?;
        let owners = metadata.owner_references.unwrap_or_default();
        let owner = owners.iter().find(|owner| owner.controller == Some(true)).map(Owner::of);
        Some(Workload { uid: metadata.uid.into(), owner, replicas: spec.replicas })
    }
}

/// At most `max` bytes of a tenant's text. A truncated text equals no real name and no real uid.
pub(crate) fn bounded(text: &str, max: usize) -> Arc<str> {
    truncated(text, max).into()
}
/// At most this many owners of a pod are kept beside the controlling one.
const MAX_OTHER_OWNERS: usize = 8;

/// The owners of a pod that are pods, beside the controlling one.
pub(super) fn other_owners(pod: &Pod<'_>) -> Box<[Owner]> {
    let owners = pod.metadata.owner_references.iter().flatten();
    owners
        .filter(|owner| owner.is_pod() && owner.controller != Some(true))
        .take(MAX_OTHER_OWNERS)
        .map(Owner::of)
        .collect()
}

/// The kinds of a pod's owners.
pub(super) fn owner_kinds(pod: &Pod<'_>) -> Box<[Arc<str>]> {
    let owners = pod.metadata.owner_references.iter().flatten();
    owners.take(MAX_OTHER_OWNERS).map(|owner| bounded(&owner.kind, MAX_NAME)).collect()
}
