//! KAI: scheduler and queue only. Its podgrouper groups Spark pods by `spark-app-name` and `spark-app-selector`
//! (`pkg/podgrouper/podgrouper/plugins/spark/spark.go`).

use super::scheduler::{GangScheduler, GroupKeyField, Shape, no_spec, nothing};
use crate::annotations::MetadataField;

pub(super) static KAI: GangScheduler = GangScheduler {
    kind: "kai",
    default_name: Some("kai-scheduler"),
    shapes: &[Shape::Pods],
    group_key: GroupKeyField::None,
    queue_key: Some((MetadataField::Label, "kai.scheduler/queue")),
    more_queue_keys: &[(MetadataField::Label, "runai/queue")],
    queue_required: false,
    more_keys: &[],
    gang_keys: &[],
    extra_member_harmless: true,
    auto_group_prefix: None,
    accounts: &["system:serviceaccount:kai-scheduler:*"],
    groups_by_top_owner: true,
    groups_by_owner: false,
    apis: &[],
    executor: nothing,
    driver: nothing,
    spec: no_spec,
};
