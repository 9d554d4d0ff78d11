//! KAI: scheduler and queue only. Its podgrouper groups Spark pods by `spark-app-name` and `spark-app-selector`
//! (`pkg/podgrouper/podgrouper/plugins/spark/spark.go`) and writes the group and subgroup onto the pods, except onto a pod without
//! owner that names a group itself.

use super::scheduler::{BASE, GangScheduler};
use crate::annotations::MetadataField;

const GROUP: (MetadataField, &str) = (MetadataField::Annotation, "pod-group-name");
const SUBGROUP: (MetadataField, &str) = (MetadataField::Label, "kai.scheduler/subgroup-name");

/// A pod with this annotation keeps the group that it names (`pkg/podgrouper/pod_controller.go`).
const SKIP: (MetadataField, &str) = (MetadataField::Annotation, "kai.scheduler/skip-podgrouper");

pub(super) static KAI: GangScheduler = GangScheduler {
    kind: "kai",
    default_name: Some("kai-scheduler"),
    queue_key: Some((MetadataField::Label, "kai.scheduler/queue")),
    more_queue_keys: &[(MetadataField::Label, "runai/queue")],
    // `plugins/defaultgrouper/default_grouper.go`, calculateQueueName.
    fallback_queue_keys: &[(MetadataField::Label, "project")],
    queue_suffix: Some("kai.scheduler/node-pool"),
    gang_keys: &[GROUP, SUBGROUP, SKIP],
    // Its podgrouper writes them.
    own_keys: &[GROUP, SUBGROUP],
    accounts: &["system:serviceaccount:kai-scheduler:*"],
    // A SparkApplication its role may not read, so the driver is the topmost owner (`pkg/podgrouper/podgrouper/podgrouper.go`,
    // handleGetOwnerError); a Workflow and a TrainJob its grouper skips (`podgrouper/hub/hub.go`).
    harmless_owners: Some(&["Pod", "SparkApplication", "TrainJob", "Workflow"]),
    ..BASE
};
