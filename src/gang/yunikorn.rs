//! YuniKorn: no group object. The first pod of an application states the task groups, and placeholders reserve the capacity.
//!
//! Sources: k8shim `pkg/cache/{metadata,gang_utils,placeholder}.go`, `pkg/common/{constants,utils}`. In cluster mode the driver is
//! the first pod, so the numbers must be known when the driver is admitted, which only annotations make possible. In client mode
//! any executor may be first, so each states them. A task-group-name that no task group defines means ordinary scheduling.
//!
//! An application is its id, in all namespaces together, and a pod that states the id runs in the application's queue and takes its
//! placeholders. Since 1.6 YuniKorn reads the label `yunikorn.apache.org/app-id`, then the annotation, then the label
//! `applicationId`, then Spark's `spark-app-selector`; before, the annotation came first. So both first keys are set.
//! YuniKorn's admission controller copies the id and the queue to the labels `applicationId` and `queue`.

use serde_json::{Value, json};

use super::scheduler::{BASE, GangScheduler, MemberMetadata, MemberRequest, Shape};
use crate::annotations::{self, MetadataField};

const QUEUE: &str = "yunikorn.apache.org/queue";
const APP_ID: &str = "yunikorn.apache.org/app-id";
const TASK_GROUP: &str = "yunikorn.apache.org/task-group-name";
const TASK_GROUPS: &str = "yunikorn.apache.org/task-groups";
const EXECUTORS: &str = "spark-executor";
const DRIVER: &str = "spark-driver";

pub(super) static YUNIKORN: GangScheduler = GangScheduler {
    kind: "yunikorn",
    default_name: Some("yunikorn"),
    shapes: &[Shape::Executors],
    queue_key: Some((MetadataField::Label, QUEUE)),
    more_queue_keys: &[(MetadataField::Annotation, QUEUE), (MetadataField::Label, "queue")],
    app_keys: &[(MetadataField::Label, APP_ID), (MetadataField::Annotation, APP_ID)],
    more_app_keys: &[(MetadataField::Label, "applicationId")],
    more_keys: &[(MetadataField::Annotation, TASK_GROUP), (MetadataField::Annotation, TASK_GROUPS)],
    gang_keys: &[(MetadataField::Annotation, TASK_GROUP), (MetadataField::Annotation, TASK_GROUPS)],
    accounts: &["system:serviceaccount:yunikorn:*"],
    // Placeholders copy the affinity of the pod that states the task groups (`pkg/cache/placeholder.go`).
    keeps_affinity: &[(MetadataField::Annotation, TASK_GROUPS)],
    executor,
    driver,
    ..BASE
};

fn executor(request: &MemberRequest<'_>, metadata: &mut MemberMetadata) {
    // A pod of another size must not replace a placeholder.
    if request.shape == Shape::Pods || !request.counted {
        return;
    }
    metadata.annotation(TASK_GROUP, EXECUTORS);
    if request.with_driver {
        return; // The driver came first: its task groups apply.
    }
    match executor_group(request) {
        Some(group) => metadata.annotation(TASK_GROUPS, json!([group]).to_string()),
        None => metadata.unknown = &[annotations::MIN_MEMBER, annotations::EXECUTOR_RESOURCES],
    }
}

fn driver(request: &MemberRequest<'_>, metadata: &mut MemberMetadata) {
    // The executors of a driver without a name are another application, which states its own task groups.
    if request.shape == Shape::Pods || !request.with_driver {
        return;
    }
    match (executor_group(request), request.driver_requests) {
        (Some(executors), Some(requests)) => {
            let own = json!({"name": DRIVER, "minMember": 1, "minResource": requests.to_json()});
            metadata.annotation(TASK_GROUP, DRIVER);
            metadata.annotation(TASK_GROUPS, json!([own, executors]).to_string());
        }
        _ => metadata.unknown = &[annotations::MIN_MEMBER, annotations::EXECUTOR_RESOURCES],
    }
}

fn executor_group(request: &MemberRequest<'_>) -> Option<Value> {
    let numbers = request.numbers?;
    let resources = numbers.resources.as_ref()?;
    Some(json!({"name": EXECUTORS, "minMember": numbers.members, "minResource": resources.to_json()}))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gang::{Membership, Numbers};
    use crate::spark::resources::ResourceList;

    fn request<'a>(numbers: Option<&'a Numbers>, requests: Option<&'a ResourceList>) -> MemberRequest<'a> {
        MemberRequest {
            shape: Shape::Executors,
            membership: Membership::PodGroup,
            group: "g",
            numbers,
            counted: true,
            with_driver: false,
            driver_requests: requests,
        }
    }

    fn numbers() -> Numbers {
        Numbers {
            members: 3,
            resources: Some(ResourceList::from_json(r#"{"cpu":"1","memory":"1408Mi"}"#).unwrap()),
            fixed: true,
        }
    }

    fn metadata(run: fn(&MemberRequest<'_>, &mut MemberMetadata), request: &MemberRequest<'_>) -> MemberMetadata {
        let mut metadata = MemberMetadata::default();
        run(request, &mut metadata);
        metadata
    }

    #[test]
    fn driver_has_task_groups_of_driver_and_executors() {
        let numbers = numbers();
        let requests = ResourceList::from_json(r#"{"cpu":"1"}"#).unwrap();
        let of = |with_driver| MemberRequest { with_driver, ..request(Some(&numbers), Some(&requests)) };
        assert!(
            metadata(driver, &of(false)).set.is_empty(),
            "a driver without a name is in no application of executors"
        );
        let metadata = metadata(driver, &of(true));
        let (_, _, groups) = metadata.set.iter().find(|(_, key, _)| *key == TASK_GROUPS).unwrap();
        let groups: Value = serde_json::from_str(groups).unwrap();
        assert_eq!(
            groups,
            json!([{"name": "spark-driver", "minMember": 1, "minResource": {"cpu": "1"}},
                   {"name": "spark-executor", "minMember": 3, "minResource": {"cpu": "1", "memory": "1408Mi"}}])
        );
    }

    #[test]
    fn executors_have_task_groups_only_without_driver() {
        let numbers = numbers();
        let keys = |request: &MemberRequest<'_>| {
            metadata(executor, request).set.iter().map(|(_, key, _)| *key).collect::<Vec<_>>()
        };
        assert_eq!(keys(&request(Some(&numbers), None)), [TASK_GROUP, TASK_GROUPS]);
        assert_eq!(keys(&MemberRequest { with_driver: true, ..request(Some(&numbers), None) }), [TASK_GROUP]);
        assert_eq!(keys(&MemberRequest { counted: false, ..request(Some(&numbers), None) }), [""; 0]);
        let unknown = metadata(executor, &request(None, None));
        assert_eq!(unknown.unknown, [annotations::MIN_MEMBER, annotations::EXECUTOR_RESOURCES]);
        assert_eq!(unknown.set.len(), 1, "a task-group-name alone means ordinary scheduling");
    }
}
