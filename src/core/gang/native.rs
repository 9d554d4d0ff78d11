//! Kubernetes' own gangs: `spec.schedulingGroup` names a PodGroup of `scheduling.k8s.io` (KEP-4671, KEP-5832).
//!
//! Kubernetes 1.36 serves v1alpha2, whose schedulingPolicy is immutable; 1.37 serves v1beta1, where gang.minCount can change.
//! A PodGroup without a Workload suffices (tested on a real 1.36.2). The pod's field is immutable, so it can only be set at
//! creation; a server without the feature drops it and the pod is scheduled alone.

use serde_json::{Value, json};

use super::group::GroupSpec;
use super::scheduler::{BASE, GangScheduler, GroupKeyField, Shape};
use crate::snapshot::GroupApi;

pub(super) static NATIVE: GangScheduler = GangScheduler {
    kind: "native",
    shapes: &[Shape::Executors],
    group_key: GroupKeyField::SchedulingGroup,
    apis: &[api("v1beta1", true), api("v1alpha2", false)],
    spec,
    ..BASE
};

const fn api(version: &'static str, count_mutable: bool) -> GroupApi {
    GroupApi { group: "scheduling.k8s.io", version, plural: "podgroups", kind: "PodGroup", count_mutable }
}

fn spec(want: &GroupSpec, _: &GroupApi) -> Value {
    let mut spec = json!({"schedulingPolicy": {"gang": {"minCount": want.min_member}}});
    if let (Some(class), Some(spec)) = (&want.priority_class, spec.as_object_mut()) {
        spec.insert("priorityClassName".into(), (**class).into());
    }
    spec
}
