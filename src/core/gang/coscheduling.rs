//! coscheduling (kubernetes-sigs/scheduler-plugins): a label on every member, a PodGroup with a count and minResources.
//!
//! Sources: `apis/scheduling/v1alpha1/types.go`, `pkg/coscheduling/core/core.go`. Permit rejects members of a group that
//! does not exist yet; a group that is created up to 2 s later starts (`docs/gang.md#coscheduling`). coscheduling has no
//! queues. Members should have the same priority.

use serde_json::{Map, Value};

use super::group::GroupSpec;
use super::scheduler::{BASE, GangScheduler, GroupKeyField, Shape};
use crate::annotations::MetadataField;
use crate::snapshot::GroupApi;

pub(super) static COSCHEDULING: GangScheduler = GangScheduler {
    kind: "coscheduling",
    default_name: Some("scheduler-plugins-scheduler"),
    shapes: &[Shape::Executors],
    group_key: GroupKeyField::Metadata(MetadataField::Label, "scheduling.x-k8s.io/pod-group"),
    accounts: &["system:serviceaccount:scheduler-plugins:*"],
    apis: &[GroupApi {
        group: "scheduling.x-k8s.io",
        version: "v1alpha1",
        plural: "podgroups",
        kind: "PodGroup",
        count_mutable: true,
    }],
    spec,
    ..BASE
};

pub(super) fn spec(want: &GroupSpec, _: &GroupApi) -> Value {
    let mut spec = Map::new();
    spec.insert("minMember".into(), want.min_member.into());
    spec.insert("minResources".into(), want.min_resources.to_json());
    Value::Object(spec)
}
