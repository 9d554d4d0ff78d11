//! Volcano: an annotation on every member, a PodGroup with a count, a queue and minResources.
//!
//! The scheduler maps pods by `scheduling.k8s.io/group-name` alone (`pkg/scheduler/api/job_info.go`, getJobID). A pod
//! without it joins an automatic group named after its controlling owner: an executor with its driver as owner would join
//! the driver's own group. So we never set an owner without the key.
//!
//! Two shapes: `executors` is all-or-nothing among executors; `app` includes the driver, with minMember 1 and minResources
//! of all, a gate at the queue (`actions/enqueue`).

use serde_json::Value;

use super::group::GroupSpec;
use super::kube_batch;
use super::scheduler::{
    BASE, GangScheduler, GroupKeyField, MemberMetadata, MemberRequest, MessagesOn, QueueObject, Shape,
};
use crate::annotations::MetadataField;
use crate::snapshot::GroupApi;
use usher_spark::resources::ResourceList;

/// The queue of automatic groups: those of drivers, and of executors without a PodGroup of spark-usher.
const QUEUE: &str = "scheduling.volcano.sh/queue-name";
/// The member's role within its group.
const TASK_SPEC: &str = "volcano.sh/task-spec";

pub(super) static VOLCANO: GangScheduler = GangScheduler {
    kind: "volcano",
    default_name: Some("volcano"),
    shapes: &[Shape::Executors, Shape::App],
    group_key: GroupKeyField::Metadata(MetadataField::Annotation, "scheduling.k8s.io/group-name"),
    queue_key: Some((MetadataField::Annotation, QUEUE)),
    more_keys: &[(MetadataField::Annotation, TASK_SPEC)],
    gang_keys: &[(MetadataField::Annotation, TASK_SPEC)],
    auto_group_prefix: Some("podgroup-"),
    accounts: &["system:serviceaccount:volcano-system:*"],
    groups_by_owner: true,
    apis: &[GroupApi {
        group: "scheduling.volcano.sh",
        version: "v1beta1",
        plural: "podgroups",
        kind: "PodGroup",
        count_mutable: true,
    }],
    messages_on: MessagesOn::GroupEvents,
    queue_object: Some(QueueObject {
        group: "scheduling.volcano.sh",
        version: "v1beta1",
        kind: "Queue",
        plural: "queues",
        max: capability,
    }),
    executor,
    spec,
    ..BASE
};

/// `spec.capability` of a Queue (`pkg/scheduler/plugins/proportion`, `capacity`).
fn capability(queue: &Value) -> ResourceList {
    let mut max = ResourceList::default();
    for (name, amount) in queue.pointer("/spec/capability").and_then(Value::as_object).into_iter().flatten() {
        // A quantity may be a number.
        let text = amount.as_str().map_or_else(|| amount.to_string(), str::to_owned);
        if let Ok(amount) = text.parse() {
            max.set(name, amount);
        }
    }
    max
}

fn executor(request: &MemberRequest<'_>, metadata: &mut MemberMetadata) {
    if request.shape != Shape::Pods {
        metadata.annotation(TASK_SPEC, "executor");
    }
}

fn spec(want: &GroupSpec, _: &GroupApi) -> Value {
    let mut spec = kube_batch::fields(want);
    spec.insert("minResources".into(), want.min_resources.to_json());
    Value::Object(spec)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn capability_of_a_queue_is_its_limit() {
        let max = capability(&json!({"spec": {"capability": {"cpu": 64, "memory": "1Ti", "bad": "x", "null": null}}}));
        assert_eq!((max.get("cpu"), max.get("nvidia.com/gpu")), (Some("64".parse().unwrap()), None));
        assert_eq!((max.get("memory"), max.get("bad")), (Some("1Ti".parse().unwrap()), None));
        assert!(capability(&json!({"spec": {"weight": 1}})).is_empty());
    }

    #[test]
    fn spec_contains_queue_and_min_resources() {
        let mut want = GroupSpec {
            name: "g".into(),
            min_member: 3,
            min_resources: Default::default(),
            queue: Some("q".into()),
            priority_class: None,
        };
        want.min_resources.set("memory", "4224Mi".parse().unwrap());
        assert_eq!(
            spec(&want, &VOLCANO.apis[0]),
            json!({"minMember": 3, "queue": "q", "minResources": {"memory": "4224Mi"}})
        );
    }
}
