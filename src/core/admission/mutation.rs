//! The changes that admission makes to a pod, and whether the pod has them already.

use crate::annotations::MetadataField;
use usher_spark::pod::{OwnerReference, Pod};

/// One change. The variants are everything that admission may ever change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// `spec.schedulerName`.
    SchedulerName(String),
    /// `spec.priorityClassName`. The old class's `spec.priority` and `spec.preemptionPolicy` are removed, because the API
    /// server would reject the pod with them; the Priority plugin computes them again.
    PriorityClass(String),
    /// `spec.schedulingGroup.podGroupName`.
    SchedulingGroup(String),
    /// `spec.affinity`, as JSON: what the pod has, with more in it.
    Affinity(String),
    /// A label or an annotation.
    SetMetadata(MetadataField, &'static str, String),
    /// Removes an annotation.
    RemoveMetadata(&'static str),
    /// The controlling owner: a pod of this name and uid.
    Owner {
        /// The pod's name.
        name: String,
        /// The pod's uid.
        uid: String,
    },
}

impl Mutation {
    /// Whether the pod has this change already. Such changes are left out, so that a reinvocation returns an empty patch.
    pub fn is_done(&self, pod: &Pod<'_>) -> bool {
        match self {
            Mutation::SchedulerName(name) => pod.spec.scheduler_name.as_deref() == Some(name),
            Mutation::PriorityClass(class) => pod.spec.priority_class_name.as_deref() == Some(class),
            Mutation::SchedulingGroup(group) => pod.spec.scheduling_group.as_deref() == Some(group),
            Mutation::Affinity(affinity) => pod.spec.affinity.as_deref() == Some(affinity),
            Mutation::SetMetadata(MetadataField::Label, key, value) => pod.label(key) == Some(value),
            Mutation::SetMetadata(MetadataField::Annotation, key, value) => pod.annotation(key) == Some(value),
            Mutation::RemoveMetadata(key) => pod.annotation(key).is_none(),
            Mutation::Owner { uid, .. } => pod.controller().is_some_and(|owner| *owner.uid == **uid),
        }
    }

    /// Applies the change to a parsed pod, as [`patch`](super::patch) does to the document.
    pub(super) fn apply(&self, pod: &mut Pod<'_>) {
        let metadata = &mut pod.metadata;
        match self {
            Mutation::SchedulerName(name) => pod.spec.scheduler_name = Some(name.clone().into()),
            Mutation::PriorityClass(class) => {
                pod.spec.priority_class_name = Some(class.clone().into());
                (pod.spec.has_priority, pod.spec.has_preemption_policy) = (false, false);
            }
            Mutation::SchedulingGroup(group) => pod.spec.scheduling_group = Some(group.clone().into()),
            Mutation::Affinity(affinity) => pod.spec.affinity = Some(affinity.clone().into()),
            Mutation::SetMetadata(place, key, value) => {
                place.of_mut(metadata).get_or_insert_default().set(key, value.clone());
            }
            Mutation::RemoveMetadata(key) => {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mutation_is_done_once_applied() {
        let all = [
            Mutation::SchedulerName("volcano".into()),
            Mutation::PriorityClass("batch".into()),
            Mutation::SchedulingGroup("g".into()),
            Mutation::SetMetadata(MetadataField::Label, "queue", "a".into()),
            Mutation::SetMetadata(MetadataField::Annotation, "queue", "a".into()),
            Mutation::RemoveMetadata("gone"),
            Mutation::Owner { name: "nb-driver".into(), uid: "1-1".into() },
        ];
        let mut pod: Pod<'_> = serde_json::from_str(
            r#"{"metadata":{"labels":{"queue":"b"},"annotations":{"queue":"b","gone":""},"ownerReferences":[
                {"apiVersion":"apps/v1","kind":"StatefulSet","name":"s","uid":"2-2"}]},"spec":{"schedulerName":"other"}}"#,
        )
        .unwrap();
        for mutation in &all {
            assert!(!mutation.is_done(&pod), "{mutation:?}");
            mutation.apply(&mut pod);
            assert!(mutation.is_done(&pod), "{mutation:?}");
        }
    }
}
