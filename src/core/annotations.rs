//! The annotations that spark-usher reads and writes, and the labels of the objects that it creates.

use schemars::JsonSchema;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::Arc;

use usher_spark::pod::{Metadata, Pod};
use usher_spark::wire_text::Entries;

/// The prefix of all our annotations.
pub const PREFIX: &str = "spark-usher.io/";
/// Annotation read: do not change this pod.
pub const SKIP: &str = "spark-usher.io/skip";
/// Annotation read: a scheduler type instead of the policy's.
pub const SCHEDULER: &str = "spark-usher.io/scheduler";
/// Annotation read: a queue instead of the policy's.
pub const QUEUE: &str = "spark-usher.io/queue";
/// Annotation read: the minimum number of executors of the gang. Clamped to the application's target.
pub const MIN_MEMBER: &str = "spark-usher.io/min-member";
/// Annotation read: what one executor requests, as a JSON object of resource name to quantity.
pub const EXECUTOR_RESOURCES: &str = "spark-usher.io/executor-resources";
/// Annotation written: weaker evidence of the executor's driver, `how/name/uid`.
pub const DRIVER: &str = "spark-usher.io/driver";
/// Value of [`DRIVER`] on an executor that a foreign creator created: it is not adopted later.
pub const FOREIGN_CREATOR: &str = "foreign-creator";
/// Annotation written on a pod whose scheduling fields we set: `policy/scheduler-type`.
pub const BY: &str = "spark-usher.io/by";
/// Value of [`BY`] on a pod that the fallback policy placed; the webhook decides it again.
pub const BY_FALLBACK: &str = "fallback";
/// Annotation written on drivers and executors: who created them, in plain text ([`crate::signature::StatedCreator`]).
pub const CREATOR: &str = "spark-usher.io/creator";
/// Annotation written with [`CREATOR`]: proves the creator and how our webhook placed the pod ([`crate::signature`]).
pub const SIGNATURE: &str = "spark-usher.io/signature";
/// Annotation written on our PodGroups once the whole gang has run: from then on a dynamic application may shrink.
pub const STARTED: &str = "spark-usher.io/started";
/// Annotation written with [`INACTIVE`](usher_spark::labels::INACTIVE) on an executor that we labelled: the cause of its exit.
/// An executor with the label but without the annotation was labelled by its driver, which keeps its finished executors.
pub const ENDED: &str = "spark-usher.io/ended";
/// Annotation written, with `false`, on an executor whose gang needs the nodes on which executors fail: it does not avoid them.
pub const AVOIDS_NODES: &str = "spark-usher.io/avoids-nodes";
/// Our annotations on pods, which only spark-usher changes: the creator policy
/// ([`crate::manifests::creator_policy`]) refuses a change by any other account, and validation finds one.
pub const PROTECTED: [&str; 6] = [BY, CREATOR, DRIVER, ENDED, SIGNATURE, STARTED];
/// Annotation on our admission policies and bindings: the hash of their content, of all policies of a validating set, as the policy file generates it.
pub const POLICY_HASH: &str = "spark-usher.io/policy-hash";
/// Annotation on the same: the version of spark-usher that generated them. An older one does not change them.
pub const VERSION: &str = "spark-usher.io/version";
/// Label on objects that we created. We change and delete only those, and admission policies by their fixed names.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Our value of [`MANAGED_BY`], the field manager of our writes, and the component of our Events.
pub const USHER: &str = "spark-usher";

/// A label or an annotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MetadataField {
    /// `metadata.labels`.
    Label,
    /// `metadata.annotations`.
    Annotation,
}

impl MetadataField {
    /// The field's name.
    pub fn as_str(self) -> &'static str {
        match self {
            MetadataField::Label => "labels",
            MetadataField::Annotation => "annotations",
        }
    }

    /// The value of a pod's label or annotation.
    pub fn value<'p>(self, pod: &'p Pod<'_>, key: &str) -> Option<&'p str> {
        self.of(&pod.metadata).as_ref()?.get(key)
    }

    /// The field of a pod's metadata; `None` if the pod lacks it.
    pub fn of<'m, 'a>(self, metadata: &'m Metadata<'a>) -> &'m Option<Entries<'a>> {
        match self {
            MetadataField::Label => &metadata.labels,
            MetadataField::Annotation => &metadata.annotations,
        }
    }

    /// The field, to change it.
    pub fn of_mut<'m, 'a>(self, metadata: &'m mut Metadata<'a>) -> &'m mut Option<Entries<'a>> {
        match self {
            MetadataField::Label => &mut metadata.labels,
            MetadataField::Annotation => &mut metadata.annotations,
        }
    }
}

/// One of our annotations that may change a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Override {
    /// spark-usher.io/skip
    Skip,
    /// spark-usher.io/scheduler
    Scheduler,
    /// spark-usher.io/queue
    Queue,
    /// spark-usher.io/min-member
    MinMember,
    /// spark-usher.io/executor-resources
    ExecutorResources,
}

impl Override {
    /// All of them.
    pub const ALL: [Override; 5] =
        [Override::Skip, Override::Scheduler, Override::Queue, Override::MinMember, Override::ExecutorResources];

    /// The annotation's key.
    pub fn key(self) -> &'static str {
        match self {
            Override::Skip => SKIP,
            Override::Scheduler => SCHEDULER,
            Override::Queue => QUEUE,
            Override::MinMember => MIN_MEMBER,
            Override::ExecutorResources => EXECUTOR_RESOURCES,
        }
    }

    /// The name in a policy's `overrides`.
    pub fn name(self) -> &'static str {
        self.key().strip_prefix(PREFIX).unwrap_or_default()
    }
}

/// Longest annotation value that is kept: long enough for a resource list, short enough for a hundred thousand pods.
const MAX_OVERRIDE: usize = 1024;

/// Our annotations on one object. Empty on nearly all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides(Option<Arc<BTreeMap<Override, Arc<str>>>>);

impl Overrides {
    /// Reads them from an object's annotations.
    pub fn read<'v>(annotation: impl Fn(&str) -> Option<&'v str>) -> Overrides {
        let found: BTreeMap<Override, Arc<str>> = Override::ALL
            .into_iter()
            .filter_map(|which| Some((which, annotation(which.key())?)))
            .filter(|(_, value)| value.len() <= MAX_OVERRIDE)
            .map(|(which, value)| (which, value.into()))
            .collect();
        Overrides((!found.is_empty()).then(|| Arc::new(found)))
    }

    /// The value of one.
    pub fn get(&self, which: Override) -> Option<&str> {
        self.0.as_ref()?.get(&which).map(|value| &**value)
    }
}
