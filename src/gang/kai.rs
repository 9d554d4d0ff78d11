//! KAI: scheduler and queue only. Its podgrouper groups Spark pods by `spark-app-name` and `spark-app-selector`
//! (`pkg/podgrouper/podgrouper/plugins/spark/spark.go`).

use super::scheduler::{BASE, GangScheduler};
use crate::annotations::MetadataField;

pub(super) static KAI: GangScheduler = GangScheduler {
    kind: "kai",
    default_name: Some("kai-scheduler"),
    queue_key: Some((MetadataField::Label, "kai.scheduler/queue")),
    more_queue_keys: &[(MetadataField::Label, "runai/queue")],
    accounts: &["system:serviceaccount:kai-scheduler:*"],
    groups_by_top_owner: true,
    ..BASE
};
