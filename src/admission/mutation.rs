//! What is to change on a pod, and whether it is so already.

use crate::snapshot::MarkPlace;
use crate::spark::pod::{OwnerReference, Pod};

/// One change. The list of variants is the list of everything that admission may ever touch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// `spec.schedulerName`.
    SchedulerName(String),
    /// `spec.priorityClassName`; `spec.priority` and `spec.preemptionPolicy` of the old class go, the Priority plugin
    /// computes them anew. With them the API server would refuse the pod.
    PriorityClass(String),
    /// `spec.schedulingGroup.podGroupName`.
    SchedulingGroup(String),
    /// A label or an annotation.
    Mark(MarkPlace, &'static str, String),
    /// Takes an annotation off.
    Unmark(&'static str),
    /// The controlling owner: a pod of this name and uid.
    Owner {
        /// The pod's name.
        name: String,
        /// The pod's uid.
        uid: String,
    },
}

impl Mutation {
    /// Whether the pod says so already; such a change is left out, which makes a second pass empty.
    pub fn is_done(&self, pod: &Pod<'_>) -> bool {
        match self {
            Mutation::SchedulerName(name) => pod.spec.scheduler_name.as_deref() == Some(name),
            Mutation::PriorityClass(class) => pod.spec.priority_class_name.as_deref() == Some(class),
            Mutation::SchedulingGroup(group) => pod.spec.scheduling_group.as_deref() == Some(group),
            Mutation::Mark(MarkPlace::Label, key, value) => pod.label(key) == Some(value),
            Mutation::Mark(MarkPlace::Annotation, key, value) => pod.annotation(key) == Some(value),
            Mutation::Unmark(key) => pod.annotation(key).is_none(),
            Mutation::Owner { uid, .. } => pod.controller().is_some_and(|owner| *owner.uid == **uid),
        }
    }

    /// Makes the change on a pod that was read, as [`patch`](super::patch) says it of the document.
    pub(super) fn apply(&self, pod: &mut Pod<'_>) {
        let metadata = &mut pod.metadata;
        match self {
            Mutation::SchedulerName(name) => pod.spec.scheduler_name = Some(name.clone().into()),
            Mutation::PriorityClass(class) => {
                pod.spec.priority_class_name = Some(class.clone().into());
                (pod.spec.has_priority, pod.spec.has_preemption_policy) = (false, false);
            }
            Mutation::SchedulingGroup(group) => pod.spec.scheduling_group = Some(group.clone().into()),
            Mutation::Mark(MarkPlace::Label, key, value) => {
                metadata.labels.get_or_insert_default().set(key, value.clone());
            }
            Mutation::Mark(MarkPlace::Annotation, key, value) => {
                metadata.annotations.get_or_insert_default().set(key, value.clone());
            }
            Mutation::Unmark(key) => {
                if let Some(annotations) = &mut metadata.annotations {
                    annotations.remove(key);
                }
            }
            Mutation::Owner { name, uid } => metadata.owner_references.get_or_insert_default().push(OwnerReference {
                api_version: "v1".into(),
                kind: "Pod".into(),
                name: name.clone().into(),
                uid: uid.clone().into(),
                controller: Some(true),
            }),
        }
    }
}
