//! Kueue, plain pods: a queue label that gates each pod; a group of a fixed size only on request.
//!
//! Sources: `pkg/controller/jobs/pod/{constants,pod_webhook}.go`, `site/…/external_workloads/spark_submit_plain_pod.md`.
//! Kueue skips executors, which are owned by a pod that Kueue manages, unless they state that their parent is suspended.
//! Kueue's webhook must see our labels, so the name of our configuration sorts before Kueue's.

use super::scheduler::{BASE, GangScheduler, GroupKeyField, MemberMetadata, MemberRequest, MessagesOn, Shape};
use crate::annotations::{self, MetadataField};

const MANAGED: &str = "kueue.x-k8s.io/managed";
const PARENT: &str = "kueue.x-k8s.io/pod-suspending-parent";
const GROUP: &str = "kueue.x-k8s.io/pod-group-name";
/// The name of an existing Workload that the pod is admitted with (`pkg/controller/jobframework/utils.go`).
const PREBUILT: &str = "kueue.x-k8s.io/prebuilt-workload-name";
const TOTAL: &str = "kueue.x-k8s.io/pod-group-total-count";

pub(super) static KUEUE: GangScheduler = GangScheduler {
    kind: "kueue",
    shapes: &[Shape::Pods, Shape::Executors],
    group_key: GroupKeyField::Metadata(MetadataField::Label, GROUP),
    queue_key: Some((MetadataField::Label, "kueue.x-k8s.io/queue-name")),
    // Kueue before 0.4.
    more_queue_keys: &[(MetadataField::Annotation, "kueue.x-k8s.io/queue-name")],
    queue_required: true,
    more_keys: &[
        (MetadataField::Label, MANAGED),
        (MetadataField::Annotation, PARENT),
        (MetadataField::Annotation, TOTAL),
    ],
    gang_keys: &[
        (MetadataField::Annotation, TOTAL),
        // With the feature gate WorkloadIdentifierAnnotations, Kueue reads it before the label.
        (MetadataField::Annotation, GROUP),
        (MetadataField::Label, PREBUILT),
        (MetadataField::Annotation, PREBUILT),
    ],
    accounts: &["system:serviceaccount:kueue-system:*"],
    messages_on: MessagesOn::Workloads,
    // The role hash of a group's members includes the affinity (`pkg/controller/jobs/pod/pod_controller.go`).
    keeps_affinity: &[(MetadataField::Annotation, TOTAL)],
    executor,
    ..BASE
};

fn executor(request: &MemberRequest<'_>, metadata: &mut MemberMetadata) {
    metadata.label(MANAGED, "true");
    metadata.annotation(PARENT, "spark-driver");
    if request.shape != Shape::Executors || !request.counted {
        metadata.no_group_key = true;
        return;
    }
    match request.numbers {
        Some(numbers) if numbers.fixed => metadata.annotation(TOTAL, numbers.members.to_string()),
        Some(_) => {
            metadata.no_group_key = true;
            metadata.not_fixed = true;
        }
        None => {
            metadata.no_group_key = true;
            metadata.unknown = &[annotations::MIN_MEMBER];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gang::{Membership, Numbers};

    fn metadata(shape: Shape, numbers: Option<&Numbers>, counted: bool) -> MemberMetadata {
        let request = MemberRequest {
            shape,
            membership: Membership::PodGroup,
            group: "g",
            numbers,
            counted,
            with_driver: true,
            pod: None,
        };
        let mut metadata = MemberMetadata::default();
        executor(&request, &mut metadata);
        metadata
    }

    #[test]
    fn pods_shape_sets_no_group_key() {
        let pods = metadata(Shape::Pods, None, true);
        assert!(pods.no_group_key && pods.unknown.is_empty());
        assert_eq!(pods.set.len(), 2);
    }

    #[test]
    fn group_requires_fixed_known_size_and_counted_pod() {
        let numbers = |fixed| Numbers { members: 3, least: 3, resources: None, fixed };
        let fixed = metadata(Shape::Executors, Some(&numbers(true)), true);
        assert!(!fixed.no_group_key && fixed.set.contains(&(MetadataField::Annotation, TOTAL, "3".to_owned())));
        assert!(metadata(Shape::Executors, Some(&numbers(false)), true).not_fixed);
        assert_eq!(metadata(Shape::Executors, None, true).unknown, [annotations::MIN_MEMBER]);
        assert!(metadata(Shape::Executors, Some(&numbers(true)), false).no_group_key);
    }
}
