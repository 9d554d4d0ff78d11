//! Whether an ownerReference would move an executor into another group: some schedulers group pods by their owners.

use crate::gang::{GangScheduler, GroupKeyField, TABLE};
use crate::snapshot::{DriverPod, SchedulingFields};

/// Whether an ownerReference to the driver would move an executor into the driver's own group, as on Volcano an executor without
/// a group key. `name` is the executor's `schedulerName`, `kind` the scheduler type that its policy gives it, `has_key` whether
/// it names a group there.
pub fn by_owner(name: &str, kind: Option<&str>, has_key: impl Fn(GroupKeyField) -> bool) -> bool {
    schedulers(name, kind).any(|scheduler| scheduler.groups_by_owner && !has_key(scheduler.group_key))
}

/// [`by_owner`] for an executor of the snapshot.
pub fn by_owner_of(scheduling: &SchedulingFields) -> bool {
    let kind = scheduling.set_by().map(|(_, kind)| kind);
    by_owner(&scheduling.scheduler_name, kind, |key| key.of_fields(scheduling).is_some())
}

/// Whether an ownerReference to this driver would move an executor out of its application's group, on a scheduler that groups pods by
/// their topmost owner, as KAI does: a workload that owns the driver would become the group, a driver with several owners has none, and
/// KAI does not find a driver of another scheduler (`pkg/podgrouper/podgrouper/podgrouper.go`, getResourceOwners). `name` and `kind`
/// are those of the executor, as in [`by_owner`].
pub fn by_driver(driver: &DriverPod, name: &str, kind: Option<&str>) -> bool {
    schedulers(name, kind).filter_map(|scheduler| scheduler.harmless_owners).any(|harmless| {
        let decides = |owner: &str| !harmless.contains(&owner);
        driver.owner_kinds.len() > 1
            || driver.owner_kinds.iter().any(|owner| decides(owner))
            || *driver.scheduling.scheduler_name != *name
    })
}

/// [`by_driver`] for an executor of the snapshot.
pub fn by_driver_of(driver: &DriverPod, scheduling: &SchedulingFields) -> bool {
    by_driver(driver, &scheduling.scheduler_name, scheduling.set_by().map(|(_, kind)| kind))
}

/// The schedulers that may read a pod: by its `schedulerName`, or by the type that its policy gives it.
pub(crate) fn schedulers(name: &str, kind: Option<&str>) -> impl Iterator<Item = &'static GangScheduler> {
    TABLE.iter().copied().filter(move |scheduler| scheduler.default_name == Some(name) || kind == Some(scheduler.kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owner_regroups_volcano_pods_without_group_key() {
        assert!(by_owner("volcano", None, |_| false));
        assert!(!by_owner("volcano", None, |_| true));
        assert!(by_owner("volcano-batch", Some("volcano"), |_| false), "under another name, by the policy");
        assert!(
            !by_owner("volcano-batch", None, |_| false) && !by_owner("default-scheduler", Some("kueue"), |_| false)
        );
    }

    fn driver(json: &str) -> DriverPod {
        let pod = usher_spark::pod::Pod::read_whole(json.as_bytes()).expect("a pod");
        DriverPod::of(&pod, crate::gang::scheduling_keys())
    }

    /// A driver of this scheduler, with owners of these kinds.
    fn owned(scheduler: &str, kinds: &[&str]) -> DriverPod {
        let owner = |kind: &&str| serde_json::json!({"apiVersion": "v1", "kind": kind, "name": "o", "uid": "u", "controller": true});
        let owners: Vec<serde_json::Value> = kinds.iter().map(owner).collect();
        driver(
            &serde_json::json!({"metadata": {"name": "d", "namespace": "n", "uid": "u", "ownerReferences": owners},
                "spec": {"schedulerName": scheduler}})
            .to_string(),
        )
    }

    #[test]
    fn kai_groups_executors_by_the_workload_of_their_driver() {
        let kai = |driver: &DriverPod| by_driver(driver, "kai-scheduler", None);
        assert!(!kai(&owned("kai-scheduler", &[])));
        for kind in
            ["Job", "CronJob", "StatefulSet", "Deployment", "ReplicaSet", "JobSet", "Notebook", "RunaiJob", "PodClique"]
        {
            assert!(kai(&owned("kai-scheduler", &[kind])), "{kind}");
        }
        // Its podgrouper may not read a SparkApplication, and skips the others.
        for kind in ["SparkApplication", "Workflow", "TrainJob", "Pod"] {
            assert!(!kai(&owned("kai-scheduler", &[kind])), "{kind}");
        }
        assert!(kai(&owned("kai-scheduler", &["SparkApplication", "Tenant"])), "it refuses several owners");
        assert!(kai(&owned("default-scheduler", &[])), "it does not find a driver of another scheduler");
        assert!(by_driver(&owned("kai-2", &["Job"]), "kai-2", Some("kai")), "under another name, by the policy");
        let others = TABLE.iter().filter(|scheduler| scheduler.kind != "kai").filter_map(|row| row.default_name);
        for name in others {
            assert!(!by_driver(&owned("default-scheduler", &["Job", "x"]), name, None), "{name}");
        }
    }
}
