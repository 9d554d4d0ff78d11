//! kube-batch: an annotation on every member, a PodGroup with a count and a queue, no minResources. Pods name no queue.
//!
//! Sources: kube-batch `pkg/apis/scheduling/v1alpha{1,2}`; v1alpha2 has an API group of its own.

use serde_json::{Map, Value};

use super::group::GroupSpec;
use super::scheduler::{BASE, GangScheduler, GroupKeyField, Shape};
use crate::annotations::MetadataField;
use crate::snapshot::GroupApi;

pub(super) static KUBE_BATCH: GangScheduler = GangScheduler {
    kind: "kube-batch",
    default_name: Some("kube-batch"),
    shapes: &[Shape::Executors],
    group_key: GroupKeyField::Metadata(MetadataField::Annotation, "scheduling.k8s.io/group-name"),
    apis: &[api("scheduling.sigs.dev", "v1alpha2"), api("scheduling.incubator.k8s.io", "v1alpha1")],
    spec,
    ..BASE
};

const fn api(group: &'static str, version: &'static str) -> GroupApi {
    GroupApi { group, version, plural: "podgroups", kind: "PodGroup", count_mutable: true }
}

fn spec(want: &GroupSpec, _: &GroupApi) -> Value {
    Value::Object(fields(want))
}

/// The fields that Volcano, which began as kube-batch, has too.
pub(super) fn fields(want: &GroupSpec) -> Map<String, Value> {
    let mut spec = Map::new();
    spec.insert("minMember".into(), want.min_member.into());
    if let Some(queue) = &want.queue {
        spec.insert("queue".into(), (**queue).into());
    }
    if let Some(class) = &want.priority_class {
        spec.insert("priorityClassName".into(), (**class).into());
    }
    spec
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn spec_has_no_min_resources() {
        let mut want = GroupSpec {
            name: "g".into(),
            min_member: 3,
            min_resources: Default::default(),
            queue: Some("q".into()),
            priority_class: Some("high".into()),
        };
        want.min_resources.set("cpu", "1".parse().unwrap());
        assert_eq!(
            spec(&want, &KUBE_BATCH.apis[0]),
            json!({"minMember": 3, "queue": "q", "priorityClassName": "high"})
        );
    }
}
