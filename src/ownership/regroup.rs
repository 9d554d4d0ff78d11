//! Whether an ownerReference would move an executor into another group: some schedulers group pods by their owners.

use crate::gang::{GangScheduler, GroupKeyField, TABLE};
use crate::snapshot::SchedulingFields;

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

/// Whether an executor's scheduler groups pods by their topmost owner, as KAI does: the workload that owns a driver would
/// become the group of its executors too.
pub fn by_top_owner_of(scheduling: &SchedulingFields) -> bool {
    let kind = scheduling.set_by().map(|(_, kind)| kind);
    schedulers(&scheduling.scheduler_name, kind).any(|scheduler| scheduler.groups_by_top_owner)
}

/// The schedulers that may read a pod: by its `schedulerName`, or by the type that its policy gives it.
fn schedulers(name: &str, kind: Option<&str>) -> impl Iterator<Item = &'static GangScheduler> {
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

    #[test]
    fn only_kai_groups_by_top_owner() {
        let by_name = |name: &str| SchedulingFields { scheduler_name: name.into(), ..SchedulingFields::default() };
        let schedulers: Vec<&str> = TABLE
            .iter()
            .filter_map(|scheduler| scheduler.default_name)
            .filter(|name| by_top_owner_of(&by_name(name)))
            .collect();
        assert_eq!(schedulers, ["kai-scheduler"]);
        let by_policy = SchedulingFields { by: Some("batch/kai".into()), ..by_name("kai-2") };
        assert!(by_top_owner_of(&by_policy));
    }
}
