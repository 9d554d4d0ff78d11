//! Koordinator: a PodGroup named by a label, or annotations that contain everything.
//!
//! Sources: `apis/extension/coscheduling.go`, `apis/thirdparty/scheduler-plugins`. The label's key is literally
//! `pod-group.scheduling.sigs.k8s.io`. A PodGroup's numbers replace those of annotations. With
//! the default match policy, once-satisfied, replacements can start.

use super::scheduler::{BASE, GangScheduler, GroupKeyField, MemberMetadata, MemberRequest, Membership, Shape};
use crate::annotations::{self, MetadataField};
use crate::snapshot::GroupApi;

const NAME: &str = "gang.scheduling.koordinator.sh/name";
const MIN_AVAILABLE: &str = "gang.scheduling.koordinator.sh/min-available";
/// Only users set these.
const TOTAL_NUMBER: &str = "gang.scheduling.koordinator.sh/total-number";
const GROUPS: &str = "gang.scheduling.koordinator.sh/groups";
/// Deprecated, and read after the label of the PodGroup and before the annotations.
const LIGHTWEIGHT_NAME: &str = "pod-group.scheduling.sigs.k8s.io/name";
const LIGHTWEIGHT_MIN_AVAILABLE: &str = "pod-group.scheduling.sigs.k8s.io/min-available";

/// Whether a replacement waits for all others again: with `once-satisfied`, the default unless `CoschedulingArgs.defaultMatchPolicy` says
/// otherwise, it does not. Read of a PodGroup, too (`pkg/scheduler/plugins/coscheduling/core/gang.go`).
const MATCH_POLICY: &str = "gang.scheduling.koordinator.sh/match-policy";
const ONCE_SATISFIED: &str = "once-satisfied";
/// Replaces schedulerName inside koord-scheduler (`apis/extension/multi_scheduler.go`, since 1.7).
const SCHEDULER_NAME: &str = "scheduling.koordinator.sh/scheduler-name";

pub(super) static KOORDINATOR: GangScheduler = GangScheduler {
    kind: "koordinator",
    default_name: Some("koord-scheduler"),
    shapes: &[Shape::Executors],
    group_key: GroupKeyField::Metadata(MetadataField::Label, "pod-group.scheduling.sigs.k8s.io"),
    more_group_keys: &[(MetadataField::Label, LIGHTWEIGHT_NAME), (MetadataField::Annotation, NAME)],
    queue_key: Some((MetadataField::Label, "quota.scheduling.koordinator.sh/name")),
    scheduler_label: Some(SCHEDULER_NAME),
    group_annotations: &[(MATCH_POLICY, ONCE_SATISFIED)],
    more_keys: &[
        (MetadataField::Annotation, NAME),
        (MetadataField::Annotation, MIN_AVAILABLE),
        (MetadataField::Annotation, MATCH_POLICY),
    ],
    gang_keys: &[
        (MetadataField::Annotation, NAME),
        (MetadataField::Annotation, MIN_AVAILABLE),
        (MetadataField::Annotation, TOTAL_NUMBER),
        (MetadataField::Annotation, GROUPS),
        (MetadataField::Label, LIGHTWEIGHT_NAME),
        (MetadataField::Label, LIGHTWEIGHT_MIN_AVAILABLE),
    ],
    accounts: &["system:serviceaccount:koordinator-system:*"],
    apis: &[GroupApi {
        group: "scheduling.sigs.k8s.io",
        version: "v1alpha1",
        plural: "podgroups",
        kind: "PodGroup",
        count_mutable: true,
    }],
    executor,
    spec: super::coscheduling::spec,
    ..BASE
};

fn executor(request: &MemberRequest<'_>, metadata: &mut MemberMetadata) {
    if request.shape == Shape::Pods || request.membership != Membership::Annotations {
        return;
    }
    metadata.no_group_key = true;
    if !request.counted {
        return;
    }
    match request.numbers {
        Some(numbers) => {
            metadata.annotation(NAME, request.group);
            // The numbers of the first pod hold until the last member is deleted, and the application may shrink.
            metadata.annotation(MIN_AVAILABLE, numbers.least.to_string());
            metadata.annotation(MATCH_POLICY, ONCE_SATISFIED);
        }
        // Name and number must be set together.
        None => metadata.unknown = &[annotations::MIN_MEMBER],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gang::Numbers;

    #[test]
    fn annotations_contain_gang_name_and_min_available_or_nothing() {
        let numbers = Numbers { members: 5, least: 3, resources: None, fixed: false };
        let request = |membership, numbers| MemberRequest {
            shape: Shape::Executors,
            membership,
            group: "g",
            numbers,
            counted: true,
            with_driver: false,
            pod: None,
        };
        let metadata = |request: MemberRequest<'_>| {
            let mut metadata = MemberMetadata::default();
            executor(&request, &mut metadata);
            metadata
        };
        let both = metadata(request(Membership::Annotations, Some(&numbers)));
        assert_eq!(
            both.set,
            [
                (MetadataField::Annotation, NAME, "g".to_owned()),
                (MetadataField::Annotation, MIN_AVAILABLE, "3".to_owned()),
                (MetadataField::Annotation, MATCH_POLICY, ONCE_SATISFIED.to_owned()),
            ]
        );
        assert!(both.no_group_key);
        let unknown = metadata(request(Membership::Annotations, None));
        assert!(unknown.set.is_empty() && !unknown.unknown.is_empty());
        assert!(metadata(request(Membership::PodGroup, Some(&numbers))).set.is_empty());
    }
}
