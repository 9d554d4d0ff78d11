//! The PodGroups in the cluster, and the APIs that serve them.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::owner::Owner;

/// One version of a scheduler's PodGroup API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupApi {
    /// API group, e.g. `scheduling.volcano.sh`.
    pub group: &'static str,
    /// Version, e.g. `v1beta1`.
    pub version: &'static str,
    /// Plural, `podgroups`.
    pub plural: &'static str,
    /// Kind, `PodGroup`.
    pub kind: &'static str,
    /// Whether a group's count can be changed after its creation.
    pub count_mutable: bool,
}

impl GroupApi {
    /// `group/version`.
    pub fn api_version(&self) -> String {
        format!("{}/{}", self.group, self.version)
    }
}

/// The PodGroup API to use for each scheduler type, found by discovery. A type that is not in it is not served.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServedApis(pub BTreeMap<&'static str, &'static GroupApi>);

impl ServedApis {
    /// The API for a scheduler type.
    pub fn get(&self, scheduler: &str) -> Option<&'static GroupApi> {
        self.0.get(scheduler).copied()
    }
}

/// A PodGroup by scheduler type, namespace and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupKey {
    pub namespace: Arc<str>,
    pub name: Arc<str>,
    /// The scheduler type that reads it.
    pub scheduler: &'static str,
}

/// One of our PodGroups.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    pub uid: Arc<str>,
    /// The observed resourceVersion.
    pub version: Arc<str>,
    /// Label `spark-app-selector`: the application for which it was created.
    pub selector: Option<Arc<str>>,
    /// The driver pod that owns it; `None` when unowned.
    pub owner: Option<Owner>,
    /// Whether the whole gang has run once (annotation [`crate::annotations::STARTED`]).
    pub started: bool,
    /// When it was created, in seconds since 1970.
    pub created: Option<i64>,
    /// Whether its deletion was requested.
    pub deleting: bool,
    /// `status.phase`, if it has one.
    pub phase: Option<Arc<str>>,
    /// Why it has not started, as its scheduler states it in `status.conditions`.
    pub waits: Option<Arc<str>>,
    /// `spec`, unchanged.
    pub spec: serde_json::Value,
}

impl Group {
    /// The number of members that it waits for.
    pub fn size(&self) -> Option<u64> {
        group_size(&self.spec)
    }
}

/// The number of members in the spec of a PodGroup, whichever scheduler's field contains it.
pub fn group_size(spec: &serde_json::Value) -> Option<u64> {
    // `pointer` allocates, and each plan asks.
    spec.get("minMember").or_else(|| spec.pointer("/schedulingPolicy/gang/minCount"))?.as_u64()
}
