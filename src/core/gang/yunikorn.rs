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

use serde_json::{Map, Value, json};

use super::scheduler::{BASE, GangScheduler, MemberMetadata, MemberPod, MemberRequest, MessagesOn, Shape};
use crate::annotations::{self, MetadataField};

const QUEUE: &str = "yunikorn.apache.org/queue";
const APP_ID: &str = "yunikorn.apache.org/app-id";
const TASK_GROUP: &str = "yunikorn.apache.org/task-group-name";
const TASK_GROUPS: &str = "yunikorn.apache.org/task-groups";
const EXECUTORS: &str = "spark-executor";
const DRIVER: &str = "spark-driver";
/// Longer task groups are not kept for the later executors of an application ([`crate::snapshot::MAX_ENTRY`]).
const MAX_TASK_GROUPS: usize = crate::snapshot::MAX_ENTRY;

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
    messages_on: MessagesOn::Placeholders,
    has_placeholders: true,
    // Placeholders have the affinity of the task group.
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
    match (request.numbers, request.pod) {
        (Some(numbers), Some(pod)) => state(&[(EXECUTORS, numbers.members, pod)], metadata),
        _ => metadata.unknown = &[annotations::MIN_MEMBER],
    }
}

fn driver(request: &MemberRequest<'_>, metadata: &mut MemberMetadata) {
    // The executors of a driver without a name are another application, which states its own task groups.
    if request.shape == Shape::Pods || !request.with_driver {
        return;
    }
    let executors = request.numbers.and_then(|numbers| Some((numbers.members, numbers.resources.clone()?)));
    match (executors, request.pod) {
        (Some((members, requests)), Some(driver)) => {
            // Where its executors may run is known only when they are created.
            let executor = MemberPod { requests, placement: Map::new() };
            metadata.annotation(TASK_GROUP, DRIVER);
            state(&[(DRIVER, 1, driver), (EXECUTORS, members, &executor)], metadata);
        }
        _ => metadata.unknown = &[annotations::MIN_MEMBER, annotations::EXECUTOR_RESOURCES],
    }
}

/// States task groups: of each the name, the number of members, and a pod like them (`pkg/cache/amprotocol.go`, `TaskGroup`).
fn state(groups: &[(&str, u32, &MemberPod)], metadata: &mut MemberMetadata) {
    let text = |without: &[&str]| {
        let all = groups.iter().map(|(name, members, pod)| {
            let mut group = json!({"name": name, "minMember": members, "minResource": pod.requests.to_json()});
            if let Some(group) = group.as_object_mut() {
                let placement = pod.placement.iter().filter(|(key, _)| !without.contains(&key.as_str()));
                group.extend(placement.map(|(key, value)| (key.clone(), value.clone())));
            }
            group
        });
        Value::Array(all.collect()).to_string()
    };
    // The affinity is the longest.
    let shortened = [&[][..], &["affinity"], &["affinity", "tolerations", "nodeSelector"]].map(text);
    let fits = shortened.iter().position(|text| text.len() <= MAX_TASK_GROUPS);
    let at = fits.unwrap_or(shortened.len() - 1);
    metadata.no_placement = at > 0;
    metadata.set.extend(shortened.into_iter().nth(at).map(|text| (MetadataField::Annotation, TASK_GROUPS, text)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gang::{Membership, Numbers};
    use usher_spark::resources::ResourceList;

    fn request<'a>(numbers: Option<&'a Numbers>, pod: Option<&'a MemberPod>) -> MemberRequest<'a> {
        MemberRequest {
            shape: Shape::Executors,
            membership: Membership::PodGroup,
            group: "g",
            numbers,
            counted: true,
            with_driver: false,
            pod,
        }
    }

    fn numbers() -> Numbers {
        Numbers {
            members: 3,
            least: 3,
            resources: Some(ResourceList::from_json(r#"{"cpu":"1","memory":"1408Mi"}"#).unwrap()),
            fixed: true,
        }
    }

    fn pod(cpu: &str, placement: &str) -> MemberPod {
        let requests = ResourceList::from_json(&json!({"cpu": cpu}).to_string()).unwrap();
        MemberPod { requests, placement: serde_json::from_str(placement).unwrap() }
    }

    #[test]
    fn task_group_of_executors_equals_the_executor() {
        let numbers = numbers();
        let placement =
            r#"{"nodeSelector":{"pool":"spark"},"tolerations":[{"key":"spot"}],"affinity":{"nodeAffinity":{}}}"#;
        let stated = |pod: &MemberPod| {
            let metadata = metadata(executor, &request(Some(&numbers), Some(pod)));
            let groups: Value = serde_json::from_str(&metadata.set[1].2).unwrap();
            (groups[0].clone(), metadata.no_placement)
        };
        let (group, no_placement) = stated(&pod("7", placement));
        let expected = json!({"name": "spark-executor", "minMember": 3, "minResource": {"cpu": "7"}, "nodeSelector": {"pool": "spark"},
            "tolerations": [{"key": "spot"}], "affinity": {"nodeAffinity": {}}});
        assert_eq!((group, no_placement), (expected, false));
        let long = json!({"affinity": "x".repeat(MAX_TASK_GROUPS), "tolerations": []}).to_string();
        let (group, no_placement) = stated(&pod("7", &long));
        assert!(no_placement && group.get("affinity").is_none() && group["minResource"]["cpu"] == "7", "{group}");
        assert_eq!(group["tolerations"], json!([]), "what fits remains");
        let longer = json!({"affinity": "x".repeat(MAX_TASK_GROUPS), "tolerations": "x".repeat(MAX_TASK_GROUPS)});
        assert_eq!(stated(&pod("7", &longer.to_string())).0.get("tolerations"), None);
    }

    fn metadata(run: fn(&MemberRequest<'_>, &mut MemberMetadata), request: &MemberRequest<'_>) -> MemberMetadata {
        let mut metadata = MemberMetadata::default();
        run(request, &mut metadata);
        metadata
    }

    #[test]
    fn driver_has_task_groups_of_driver_and_executors() {
        let numbers = numbers();
        let pod = pod("1", r#"{"nodeSelector":{"pool":"spark"}}"#);
        let request_with = |with_driver| MemberRequest { with_driver, ..request(Some(&numbers), Some(&pod)) };
        assert!(
            metadata(driver, &request_with(false)).set.is_empty(),
            "a driver without a name is in no application of executors"
        );
        let metadata = metadata(driver, &request_with(true));
        let (_, _, groups) = metadata.set.iter().find(|(_, key, _)| *key == TASK_GROUPS).unwrap();
        let groups: Value = serde_json::from_str(groups).unwrap();
        assert_eq!(
            groups,
            json!([{"name": "spark-driver", "minMember": 1, "minResource": {"cpu": "1"}, "nodeSelector": {"pool": "spark"}},
                   {"name": "spark-executor", "minMember": 3, "minResource": {"cpu": "1", "memory": "1408Mi"}}])
        );
    }

    #[test]
    fn executors_have_task_groups_only_without_driver() {
        let (numbers, pod) = (numbers(), pod("2", "{}"));
        let keys = |request: &MemberRequest<'_>| {
            metadata(executor, request).set.iter().map(|(_, key, _)| *key).collect::<Vec<_>>()
        };
        assert_eq!(keys(&request(Some(&numbers), Some(&pod))), [TASK_GROUP, TASK_GROUPS]);
        assert_eq!(keys(&MemberRequest { with_driver: true, ..request(Some(&numbers), None) }), [TASK_GROUP]);
        assert_eq!(keys(&MemberRequest { counted: false, ..request(Some(&numbers), None) }), [""; 0]);
        let unknown = metadata(executor, &request(None, Some(&pod)));
        assert_eq!(unknown.unknown, [annotations::MIN_MEMBER]);
        assert_eq!(unknown.set.len(), 1, "a task-group-name alone means ordinary scheduling");
    }
}
