//! KAI: scheduler and queue only. Its podgrouper groups Spark pods by `spark-app-name` and `spark-app-selector`
//! (`pkg/podgrouper/podgrouper/plugins/spark/spark.go`) and writes the group and subgroup onto the pods, except onto a pod without
//! owner that names a group itself.

use super::scheduler::{BASE, GangScheduler};
use crate::annotations::MetadataField;

const GROUP_KEYS: &[(MetadataField, &str)] =
    &[(MetadataField::Annotation, "pod-group-name"), (MetadataField::Label, "kai.scheduler/subgroup-name")];

pub(super) static KAI: GangScheduler = GangScheduler {
    kind: "kai",
    default_name: Some("kai-scheduler"),
    queue_key: Some((MetadataField::Label, "kai.scheduler/queue")),
    more_queue_keys: &[(MetadataField::Label, "runai/queue")],
    // `plugins/defaultgrouper/default_grouper.go`, calculateQueueName.
    fallback_queue_keys: &[(MetadataField::Label, "project")],
    queue_suffix: Some("kai.scheduler/node-pool"),
    gang_keys: GROUP_KEYS,
    // Its podgrouper writes them.
    own_keys: GROUP_KEYS,
    accounts: &["system:serviceaccount:kai-scheduler:*"],
    groups_by_top_owner: true,
    ..BASE
};
