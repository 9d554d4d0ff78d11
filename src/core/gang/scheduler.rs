//! One scheduler's row: its fields on pods, and in PodGroups.

use std::borrow::Cow;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::group::GroupSpec;
use super::size::Numbers;
use crate::annotations::MetadataField;
use crate::snapshot::{GroupApi, SchedulingFields};
use usher_spark::pod::Pod;
use usher_spark::resources::ResourceList;
use usher_spark::text::vocabulary;

/// One scheduler's wire format.
#[derive(Debug)]
pub struct GangScheduler {
    /// Value of `scheduler.type`.
    pub kind: &'static str,
    /// `schedulerName` unless the policy names another; `None` keeps the pod's.
    pub default_name: Option<&'static str>,
    /// Shapes that can start, the default first.
    pub shapes: &'static [Shape],
    /// The field by which a pod names its gang.
    pub group_key: GroupKeyField,
    /// Other keys by which a pod names its gang; all of them are [`GangScheduler::gang_keys`].
    pub more_group_keys: &'static [(MetadataField, &'static str)],
    /// The key by which a pod names its queue.
    pub queue_key: Option<(MetadataField, &'static str)>,
    /// Other keys from which the scheduler reads the queue.
    pub more_queue_keys: &'static [(MetadataField, &'static str)],
    /// Keys from which the scheduler reads the queue of a pod without [`GangScheduler::queue_key`]. They are common words, so only
    /// their effect is validated: a change of them is not refused.
    pub fallback_queue_keys: &'static [(MetadataField, &'static str)],
    /// The label whose value the scheduler appends, after a `-`, to the queue of such a key.
    pub queue_suffix: Option<&'static str>,
    /// Whether it reserves room with placeholders, which must be like the pods that replace them.
    pub has_placeholders: bool,
    /// Whether a queue is required.
    pub queue_required: bool,
    /// Every other key that [`GangScheduler::executor`] or [`GangScheduler::driver`] may set. Only these are signed, kept in the
    /// snapshot, and protected from changes by other accounts.
    pub more_keys: &'static [(MetadataField, &'static str)],
    /// The keys by which a pod names its application, if the scheduler reads that from the pod, in every namespace alike: they get
    /// [`application_id`](super::application_id), whatever the pod has.
    pub app_keys: &'static [(MetadataField, &'static str)],
    /// Other keys from which the scheduler reads the application of a pod without [`GangScheduler::app_keys`].
    pub more_app_keys: &'static [(MetadataField, &'static str)],
    /// Besides the group key, the keys that make a pod a member of a gang, or state its size. A pod that has one of them with
    /// another value than ours is in a gang that its creator manages.
    pub gang_keys: &'static [(MetadataField, &'static str)],
    /// Those of [`GangScheduler::gang_keys`] that the scheduler itself writes onto every pod of its own, whatever the policies say: a
    /// change of them is not refused.
    pub own_keys: &'static [(MetadataField, &'static str)],
    /// The name prefix, followed by a uid, of groups that the scheduler itself creates and sets on pods.
    pub auto_group_prefix: Option<&'static str>,
    /// Accounts of its controllers, with * and ?, as its own manifests install them.
    pub accounts: &'static [&'static str],
    /// The label that replaces `schedulerName` inside the scheduler.
    pub scheduler_label: Option<&'static str>,
    /// Annotations of its PodGroups.
    pub group_annotations: &'static [(&'static str, &'static str)],
    /// If it groups pods by their topmost owner: the kinds of owners of a driver that do not become the group of its executors.
    pub harmless_owners: Option<&'static [&'static str]>,
    /// Whether an owner without a gang key would put an executor into its driver's group.
    pub groups_by_owner: bool,
    /// Keys of pods whose affinity must stay equal to that of others: the members of a group, or placeholders that copy it.
    pub keeps_affinity: &'static [(MetadataField, &'static str)],
    /// PodGroup APIs, the preferred first; empty if the scheduler has none or creates its own groups.
    pub apis: &'static [GroupApi],
    /// Where it states why pods wait.
    pub messages_on: MessagesOn,
    /// The objects that describe its queues.
    pub queue_object: Option<QueueObject>,
    /// Sets the other labels and annotations of an executor.
    pub executor: fn(&MemberRequest<'_>, &mut MemberMetadata),
    /// Sets the other labels and annotations of a driver.
    pub driver: fn(&MemberRequest<'_>, &mut MemberMetadata),
    /// A PodGroup's `spec`.
    pub spec: fn(&GroupSpec, &GroupApi) -> Value,
}

/// A scheduler that requires nothing on pods and has no gangs. Each row names what differs.
pub(super) const BASE: GangScheduler = GangScheduler {
    kind: "",
    default_name: None,
    shapes: &[Shape::Pods],
    group_key: GroupKeyField::None,
    more_group_keys: &[],
    queue_key: None,
    more_queue_keys: &[],
    fallback_queue_keys: &[],
    queue_suffix: None,
    has_placeholders: false,
    queue_required: false,
    more_keys: &[],
    app_keys: &[],
    more_app_keys: &[],
    gang_keys: &[],
    own_keys: &[],
    auto_group_prefix: None,
    accounts: &[],
    scheduler_label: None,
    group_annotations: &[],
    harmless_owners: None,
    groups_by_owner: false,
    keeps_affinity: &[],
    apis: &[],
    messages_on: MessagesOn::Pods,
    queue_object: None,
    executor: nothing,
    driver: nothing,
    spec: no_spec,
};

/// The objects on which a scheduler states why pods wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessagesOn {
    /// The pods themselves, and its PodGroups.
    Pods,
    /// Events on its PodGroups.
    GroupEvents,
    /// Kueue's Workloads, which the pods own.
    Workloads,
    /// Placeholders of the application.
    Placeholders,
}

/// The kind of objects, in no namespace, that describe the queues of a scheduler.
#[derive(Debug)]
pub struct QueueObject {
    /// API group.
    pub group: &'static str,
    /// API version.
    pub version: &'static str,
    pub kind: &'static str,
    /// Resource.
    pub plural: &'static str,
    /// What all pods of a queue together can never exceed; resources without a limit are missing.
    pub max: fn(&Value) -> ResourceList,
}

vocabulary! {
    /// The members of a gang.
    #[derive(Deserialize, JsonSchema)]
    #[serde(rename_all = "lowercase")]
    Shape
    /// No gang: each pod is scheduled alone.
    Pods = "pods";
    /// The executors wait for each other; the driver is not a member.
    Executors = "executors";
    /// One group with the driver, minMember 1 and minResources of all: a gate at the queue, not all-or-nothing.
    App = "app";
}

/// How a pod declares its gang, if a scheduler has two ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Membership {
    /// It names a PodGroup.
    #[default]
    PodGroup,
    /// By annotations that contain the numbers too.
    Annotations,
}

/// The field by which a pod names its gang.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupKeyField {
    /// None.
    None,
    /// A label or an annotation.
    Metadata(MetadataField, &'static str),
    /// `spec.schedulingGroup.podGroupName`.
    SchedulingGroup,
}

impl GroupKeyField {
    /// The gang that a pod under review names.
    pub fn of_pod<'p>(&self, pod: &'p Pod<'_>) -> Option<&'p str> {
        let value = match self {
            GroupKeyField::None => None,
            GroupKeyField::Metadata(place, key) => place.value(pod, key),
            GroupKeyField::SchedulingGroup => pod.spec.scheduling_group.as_deref(),
        };
        value.filter(|name| !name.is_empty())
    }

    /// The gang that a pod of the snapshot names.
    pub fn of_fields<'s>(&self, scheduling: &'s SchedulingFields) -> Option<&'s str> {
        let value = match self {
            GroupKeyField::None => None,
            GroupKeyField::Metadata(place, key) => scheduling.entry(*place, key),
            GroupKeyField::SchedulingGroup => scheduling.scheduling_group.as_deref(),
        };
        value.filter(|name| !name.is_empty())
    }
}

/// The input of a scheduler's row for one pod.
#[derive(Debug)]
pub struct MemberRequest<'a> {
    /// The gang's shape; [`Shape::Pods`] if gangs are disabled.
    pub shape: Shape,
    /// How members declare their gang.
    pub membership: Membership,
    /// The gang's name.
    pub group: &'a str,
    /// Number of executors and the size of each; `None` if unknown.
    pub numbers: Option<&'a Numbers>,
    /// Whether the gang counts this pod: an executor of the default resource profile.
    pub counted: bool,
    /// Whether the driver is scheduled by the same scheduler, in the same application. A driver without a name yet
    /// (`generateName`) is not.
    pub with_driver: bool,
    /// The pod itself, if the scheduler [reserves room](GangScheduler::has_placeholders) for pods like it.
    pub pod: Option<&'a MemberPod>,
}

/// A pod as a scheduler reserves room for it.
#[derive(Clone, Debug, Default)]
pub struct MemberPod {
    pub requests: ResourceList,
    /// Those of its fields `nodeSelector`, `tolerations` and `affinity` that are set, as in its `spec`.
    pub placement: Map<String, Value>,
}

/// Labels and annotations for one pod, and whether numbers were missing.
#[derive(Debug, Default)]
pub struct MemberMetadata {
    /// The entries: label or annotation, key, value.
    pub set: Vec<(MetadataField, &'static str, String)>,
    /// Whether the gang key itself must be left out, as on a pod that the gang does not count if an extra member would harm it.
    pub no_group_key: bool,
    /// The annotations that would state numbers which are required and unknown; empty if none is.
    pub unknown: &'static [&'static str],
    /// Whether a fixed number is required and the application's number changes.
    pub not_fixed: bool,
    /// Whether placeholders lack the placement of the pod, because that is too long.
    pub no_placement: bool,
}

impl MemberMetadata {
    pub(super) fn label(&mut self, key: &'static str, value: impl Into<String>) {
        self.set.push((MetadataField::Label, key, value.into()));
    }

    pub(super) fn annotation(&mut self, key: &'static str, value: impl Into<String>) {
        self.set.push((MetadataField::Annotation, key, value.into()));
    }
}

impl GangScheduler {
    pub fn default_shape(&self) -> Shape {
        self.shapes.first().copied().unwrap_or(Shape::Pods)
    }

    /// Every label and annotation by which a pod names its gang, its queue or its application to this scheduler, or their numbers,
    /// except [`GangScheduler::own_keys`].
    pub fn keys(&self) -> impl Iterator<Item = (MetadataField, &'static str)> {
        let more = [self.more_app_keys, self.gang_keys].into_iter().flatten();
        self.written_keys().chain(more.copied()).filter(|key| !self.own_keys.contains(key))
    }

    /// Every label and annotation that we may write for this scheduler.
    pub(super) fn written_keys(&self) -> impl Iterator<Item = (MetadataField, &'static str)> {
        let group = match self.group_key {
            GroupKeyField::Metadata(place, key) => Some((place, key)),
            GroupKeyField::None | GroupKeyField::SchedulingGroup => None,
        };
        let more = [self.app_keys, self.more_keys];
        group.into_iter().chain(self.own_queue_keys()).chain(more.into_iter().flatten().copied())
    }

    /// Its own keys by which pods name their queue.
    pub fn own_queue_keys(&self) -> impl Iterator<Item = (MetadataField, &'static str)> {
        self.queue_key.iter().chain(self.more_queue_keys).copied()
    }

    /// Every key from which this scheduler reads a queue; those that it reads only without a queue key have `true`.
    pub fn queue_keys(&self) -> impl Iterator<Item = (MetadataField, &'static str, bool)> {
        let keys = self.own_queue_keys().map(|(place, key)| (place, key, false));
        keys.chain(self.fallback_queue_keys.iter().map(|(place, key)| (*place, *key, true)))
    }

    /// The queue that a pod names by one of the [`GangScheduler::queue_keys`].
    pub fn queue_by<'p>(
        &self,
        pod: &'p Pod<'_>,
        (place, key, is_fallback): (MetadataField, &str, bool),
    ) -> Option<Cow<'p, str>> {
        let queue = place.value(pod, key).filter(|queue| !queue.is_empty())?;
        let suffix = self.queue_suffix.filter(|_| is_fallback).and_then(|key| pod.label(key));
        Some(suffix.map_or(Cow::Borrowed(queue), |suffix| Cow::Owned([queue, "-", suffix].concat())))
    }

    /// Whether this scheduler gets the queue of a gang of this shape: from a key on the pods, or from their PodGroup.
    pub fn takes_queue(&self, shape: Shape) -> bool {
        let probe = GroupSpec {
            name: "group".into(),
            min_member: 1,
            min_resources: ResourceList::default(),
            queue: Some("queue".into()),
            priority_class: None,
        };
        let in_group = |api: &GroupApi| (self.spec)(&probe, api).get("queue").is_some();
        self.queue_key.is_some() || (shape != Shape::Pods && self.apis.iter().any(in_group))
    }
}

/// For rows that add nothing.
pub(super) fn nothing(_: &MemberRequest<'_>, _: &mut MemberMetadata) {}

/// For rows without a group object.
pub(super) fn no_spec(_: &GroupSpec, _: &GroupApi) -> Value {
    Value::Null
}
