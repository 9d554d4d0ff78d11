//! Gangs: each scheduler's wire format, a gang's size, and its name.
//!
//! Every scheduler is one file with one row, and [`TABLE`] lists the rows. Admission, plans and signatures know a scheduler's
//! keys by its row only. `docs/architecture.md#where-things-go` lists what a new scheduler needs beside its row.
//!
//! ## Why executors only
//! All PodGroup schedulers but YuniKorn place no pod until `minMember` pods exist. The driver creates the executors, so a
//! group of driver + N with minMember N+1 never starts (`docs/gang.md#executors-only`).

mod application;
mod coscheduling;
pub mod early_pods;
pub mod group;
mod kai;
mod koordinator;
mod kube_batch;
mod kueue;
pub mod messages;
pub mod name;
mod native;
mod none;
mod scheduler;
pub mod size;
mod volcano;
mod yunikorn;

use std::sync::LazyLock;

pub use application::{application_id, is_application_id};
use early_pods::FIX;
pub use group::GroupSpec;
pub use name::NameTemplate;
pub use none::NONE;
pub use scheduler::{
    GangScheduler, GroupKeyField, MemberMetadata, MemberPod, MemberRequest, Membership, MessagesOn, QueueObject, Shape,
};
pub use size::Numbers;

use crate::annotations::MetadataField;
use crate::snapshot::{GroupKey, SchedulingFields, SchedulingKeys};
use usher_spark::ids::AppKey;

/// Every scheduler, one line each.
pub static TABLE: &[&GangScheduler] = &[
    &none::NONE,
    &kube_batch::KUBE_BATCH,
    &volcano::VOLCANO,
    &yunikorn::YUNIKORN,
    &coscheduling::COSCHEDULING,
    &koordinator::KOORDINATOR,
    &kueue::KUEUE,
    &kai::KAI,
    &native::NATIVE,
];

impl GangScheduler {
    /// The message if the webhook of the installed version of this scheduler denies pods that are created before their PodGroup.
    pub fn refuses_early_pods(&self, refusing: Option<&str>) -> Option<String> {
        let version = refusing.filter(|_| self.kind == volcano::VOLCANO.kind)?;
        Some(format!(
            "Volcano {version} denies pods whose PodGroup does not exist yet, so the driver cannot create executors: {FIX}"
        ))
    }

    /// The row of a scheduler type.
    pub fn of_kind(kind: &str) -> Option<&'static GangScheduler> {
        TABLE.iter().copied().find(|scheduler| scheduler.kind == kind)
    }

    /// The scheduler of the policy that set a pod's scheduling fields, and the gang that they name.
    pub fn named_by(scheduling: &SchedulingFields) -> Option<(&'static GangScheduler, &str)> {
        let scheduler = GangScheduler::of_kind(scheduling.set_by()?.1)?;
        Some((scheduler, scheduler.group_key.of_fields(scheduling)?))
    }

    /// The PodGroup of a gang.
    pub fn group(&self, namespace: &str, name: &str) -> GroupKey {
        GroupKey { namespace: namespace.into(), name: name.into(), scheduler: self.kind }
    }
}

/// The PodGroup of its namespace that an executor of an application names. Every round calls this for each executor, so the key's
/// namespace is read only for executors that name a PodGroup.
pub fn group_of(app: &AppKey, scheduling: &SchedulingFields) -> Option<GroupKey> {
    GangScheduler::named_by(scheduling).map(|(scheduler, name)| scheduler.group(app.namespace(), name))
}

/// Whether executors with these fields name a PodGroup of their namespace: [`group_of`] without allocations, for each round.
pub fn is_named(key: &GroupKey, scheduling: &SchedulingFields) -> bool {
    GangScheduler::named_by(scheduling)
        .is_some_and(|(scheduler, name)| (scheduler.kind, name) == (key.scheduler, &*key.name))
}

/// The keys of all schedulers.
pub fn keys() -> impl Iterator<Item = (MetadataField, &'static str)> {
    TABLE.iter().flat_map(|scheduler| scheduler.keys())
}

/// The keys that we may write for any scheduler: the snapshot keeps them of a pod, and a signature covers them.
pub fn scheduling_keys() -> &'static SchedulingKeys {
    static KEYS: LazyLock<SchedulingKeys> = LazyLock::new(|| {
        let keys = TABLE.iter().flat_map(|scheduler| {
            scheduler.written_keys().map(|(place, key)| {
                let is_group = scheduler.group_key == GroupKeyField::Metadata(place, key);
                (place, key, scheduler.auto_group_prefix.filter(|_| is_group))
            })
        });
        // If two schedulers share a key, the one that writes it itself takes precedence.
        let mut keys: Vec<_> = keys.collect();
        keys.sort_unstable_by_key(|(place, key, prefix)| (*place, *key, prefix.is_none()));
        keys.dedup_by_key(|(place, key, _)| (*place, *key));
        SchedulingKeys::new(keys)
    });
    &KEYS
}

#[cfg(test)]
mod tests {
    use super::size::SizeFacts;
    use super::*;
    use usher_spark::resources::ResourceList;

    #[test]
    fn scheduler_rows_are_unique_and_consistent() {
        let mut kinds = std::collections::BTreeSet::new();
        for scheduler in TABLE {
            assert!(kinds.insert(scheduler.kind), "{} is not unique", scheduler.kind);
            assert!(!scheduler.shapes.is_empty(), "{}", scheduler.kind);
            let gang = scheduler.shapes.iter().any(|shape| *shape != Shape::Pods);
            assert_eq!(
                gang,
                scheduler.group_key != GroupKeyField::None || scheduler.kind == "yunikorn",
                "{}: a gang needs a key by which pods name it, and the key a shape",
                scheduler.kind
            );
            for (_, key) in scheduler.keys() {
                let (prefix, name) = key.rsplit_once('/').unwrap_or(("", key));
                assert!(name.len() <= 63 && prefix.len() <= 253, "{key}");
            }
            for api in scheduler.apis {
                let spec = (scheduler.spec)(
                    &GroupSpec {
                        name: "g".into(),
                        min_member: 3,
                        min_resources: Default::default(),
                        queue: None,
                        priority_class: None,
                    },
                    api,
                );
                assert!(spec.is_object(), "{}: {spec}", scheduler.kind);
            }
        }
        assert!(std::ptr::eq(GangScheduler::of_kind("volcano").unwrap(), &volcano::VOLCANO));
        assert!(GangScheduler::of_kind("Volcano").is_none());
    }

    /// Every key of a pod that decides its gang, queue or application, or their size, in the sources of the schedulers, read in November
    /// 2026 at the head of each; a key that the table does not have needs a reason. A key that a row has is in this list too, so
    /// a new one needs a source.
    const KEYS_IN_SOURCES: &[(&str, &str, &str, &str)] = &[
        // Type, place/key, source, and why the table does not have it.
        ("kube-batch", "annotations/scheduling.k8s.io/group-name", "pkg/apis/scheduling/v1alpha2/labels.go", ""),
        (
            "kube-batch",
            "annotations/scheduling.k8s.io/group-min-member",
            "pkg/scheduler/cache/util.go",
            "read without group-name only, for a group of the pod's controller",
        ),
        ("volcano", "annotations/scheduling.k8s.io/group-name", "pkg/scheduler/api/job_info.go", ""),
        ("volcano", "annotations/volcano.sh/task-spec", "pkg/scheduler/api/job_info.go", ""),
        (
            "volcano",
            "labels/volcano.sh/task-spec",
            "pkg/scheduler/api/job_info.go",
            "read without the annotation only, as a role within the group",
        ),
        (
            "volcano",
            "annotations/scheduling.volcano.sh/queue-name",
            "pkg/controllers/podgroup/pg_controller_handler.go",
            "",
        ),
        (
            "volcano",
            "annotations/scheduling.volcano.sh/group-name",
            "pkg/scheduler/api/devices/nvidia/vgpu/utils.go",
            "spreads GPUs, decides no group",
        ),
        (
            "volcano",
            "annotations/volcano.sh/job-name",
            "pkg/controllers/job/job_controller_handler.go",
            "read of pods that a Job of Volcano controls",
        ),
        ("yunikorn", "labels/yunikorn.apache.org/app-id", "pkg/common/utils/utils.go", ""),
        ("yunikorn", "annotations/yunikorn.apache.org/app-id", "pkg/common/utils/utils.go", ""),
        ("yunikorn", "labels/applicationId", "pkg/common/utils/utils.go", ""),
        (
            "yunikorn",
            "labels/spark-app-selector",
            "pkg/common/utils/utils.go",
            "Spark's own: read without the others only",
        ),
        ("yunikorn", "labels/yunikorn.apache.org/queue", "pkg/common/utils/utils.go", ""),
        ("yunikorn", "annotations/yunikorn.apache.org/queue", "pkg/common/utils/utils.go", ""),
        ("yunikorn", "labels/queue", "pkg/common/utils/utils.go", ""),
        ("yunikorn", "annotations/yunikorn.apache.org/task-group-name", "pkg/cache/metadata.go", ""),
        ("yunikorn", "annotations/yunikorn.apache.org/task-groups", "pkg/cache/metadata.go", ""),
        (
            "yunikorn",
            "annotations/yunikorn.apache.org/schedulingPolicyParameters",
            "pkg/cache/gang_utils.go",
            "the user's: timeout and style of the application's placeholders",
        ),
        ("coscheduling", "labels/scheduling.x-k8s.io/pod-group", "pkg/util/podgroup.go", ""),
        ("koordinator", "labels/pod-group.scheduling.sigs.k8s.io", "apis/extension/coscheduling.go", ""),
        ("koordinator", "labels/pod-group.scheduling.sigs.k8s.io/name", "apis/extension/coscheduling.go", ""),
        (
            "koordinator",
            "labels/pod-group.scheduling.sigs.k8s.io/min-available",
            "pkg/scheduler/plugins/coscheduling/util/gang_helper.go",
            "",
        ),
        ("koordinator", "annotations/gang.scheduling.koordinator.sh/name", "apis/extension/coscheduling.go", ""),
        (
            "koordinator",
            "annotations/gang.scheduling.koordinator.sh/min-available",
            "apis/extension/coscheduling.go",
            "",
        ),
        (
            "koordinator",
            "annotations/gang.scheduling.koordinator.sh/total-number",
            "apis/extension/coscheduling.go",
            "",
        ),
        ("koordinator", "annotations/gang.scheduling.koordinator.sh/groups", "apis/extension/coscheduling.go", ""),
        ("koordinator", "labels/quota.scheduling.koordinator.sh/name", "apis/extension/elastic_quota.go", ""),
        (
            "koordinator",
            "labels/quota.scheduling.koordinator.sh/preemptible",
            "apis/extension/elastic_quota.go",
            "whether the pod counts towards the minimum of its quota, decides no quota",
        ),
        (
            "koordinator",
            "annotations/gang.scheduling.koordinator.sh/match-policy",
            "apis/extension/coscheduling.go",
            "",
        ),
        (
            "koordinator",
            "annotations/pod-group.scheduling.sigs.k8s.io/match-policy",
            "apis/extension/coscheduling.go",
            "read without the other key only, which is set",
        ),
        (
            "koordinator",
            "annotations/gang.scheduling.koordinator.sh/mode",
            "apis/extension/coscheduling.go",
            "what the failure of one member does to the others, decides no membership",
        ),
        (
            "koordinator",
            "annotations/gang.scheduling.koordinator.sh/waiting-time",
            "apis/extension/coscheduling.go",
            "how long bound members hold their nodes, decides no membership",
        ),
        (
            "koordinator",
            "annotations/gang.scheduling.koordinator.sh/network-topology-spec",
            "apis/extension/coscheduling.go",
            "places the members of a gang beside each other, decides no membership",
        ),
        (
            "koordinator",
            "annotations/gang.scheduling.koordinator.sh/network-topology-index",
            "apis/extension/coscheduling.go",
            "the order of a member within the gang's placement",
        ),
        (
            "koordinator",
            "labels/scheduling.koordinator.sh/scheduler-name",
            "apis/extension/multi_scheduler.go",
            "the scheduler's name (scheduler_label)",
        ),
        ("kueue", "labels/kueue.x-k8s.io/pod-group-name", "pkg/util/pod/pod.go", ""),
        ("kueue", "annotations/kueue.x-k8s.io/pod-group-name", "pkg/util/pod/pod.go", ""),
        ("kueue", "annotations/kueue.x-k8s.io/pod-group-total-count", "pkg/controller/jobs/pod/pod_controller.go", ""),
        ("kueue", "labels/kueue.x-k8s.io/queue-name", "pkg/controller/jobframework/utils.go", ""),
        ("kueue", "annotations/kueue.x-k8s.io/queue-name", "pkg/queue of 0.3", ""),
        ("kueue", "labels/kueue.x-k8s.io/managed", "pkg/controller/jobs/pod/pod_webhook.go", ""),
        ("kueue", "annotations/kueue.x-k8s.io/pod-suspending-parent", "pkg/controller/jobs/pod/pod_webhook.go", ""),
        ("kueue", "labels/kueue.x-k8s.io/prebuilt-workload-name", "pkg/controller/jobframework/utils.go", ""),
        ("kueue", "annotations/kueue.x-k8s.io/prebuilt-workload-name", "pkg/controller/jobframework/utils.go", ""),
        (
            "kueue",
            "annotations/kueue.x-k8s.io/podset-group-name",
            "pkg/controller/jobframework/tas.go",
            "places the members of a group beside each other, decides no membership",
        ),
        (
            "kueue",
            "labels/kueue.x-k8s.io/priority-class",
            "pkg/controller/jobframework/utils.go",
            "a priority within the queue",
        ),
        (
            "kai",
            "labels/kai.scheduler/queue",
            "pkg/podgrouper/podgrouper/plugins/defaultgrouper/default_grouper.go",
            "",
        ),
        ("kai", "labels/runai/queue", "deployments/kai-scheduler/tests/enabled_test.yaml", ""),
        ("kai", "labels/project", "pkg/podgrouper/podgrouper/plugins/defaultgrouper/default_grouper.go", ""),
        (
            "kai",
            "labels/kai.scheduler/node-pool",
            "pkg/podgrouper/podgrouper/plugins/defaultgrouper/default_grouper.go",
            "",
        ),
        ("kai", "annotations/pod-group-name", "pkg/podgrouper/pod_controller.go", ""),
        ("kai", "labels/kai.scheduler/subgroup-name", "pkg/scheduler/api/pod_info/pod_info.go", ""),
        ("kai", "annotations/kai.scheduler/skip-podgrouper", "pkg/podgrouper/pod_controller.go", ""),
        (
            "kai",
            "labels/priorityClassName",
            "pkg/podgrouper/podgrouper/plugins/constants/constants.go",
            "a priority within the queue",
        ),
        (
            "kai",
            "labels/spark-app-selector",
            "pkg/podgrouper/podgrouper/plugins/spark/spark.go",
            "Spark's own, within a namespace",
        ),
    ];

    #[test]
    fn table_has_every_key_by_which_a_scheduler_decides() {
        for scheduler in TABLE {
            let more = [scheduler.fallback_queue_keys, scheduler.own_keys];
            let suffix = scheduler.queue_suffix.map(|key| (MetadataField::Label, key));
            let keys = scheduler.keys().chain(more.into_iter().flatten().copied()).chain(suffix);
            let mut row: Vec<String> = keys.map(|(place, key)| format!("{}/{key}", place.as_str())).collect();
            row.sort_unstable();
            row.dedup();
            let of_kind = KEYS_IN_SOURCES.iter().filter(|(kind, ..)| *kind == scheduler.kind);
            let mut in_sources: Vec<&str> =
                of_kind.filter(|(_, _, _, left_out)| left_out.is_empty()).map(|(_, key, ..)| *key).collect();
            in_sources.sort_unstable();
            assert_eq!(row, in_sources, "{}", scheduler.kind);
        }
        assert!(
            KEYS_IN_SOURCES
                .iter()
                .all(|(kind, _, source, _)| GangScheduler::of_kind(kind).is_some() && !source.is_empty())
        );
    }

    /// A key that a row sets and does not list would be neither signed, kept nor protected.
    #[test]
    fn rows_set_listed_keys_only() {
        let member = MemberPod::default();
        let mut executor = ResourceList::default();
        executor.set("cpu", "1".parse().unwrap());
        let facts = SizeFacts { requested: Some(3), ..SizeFacts::default() };
        let numbers = facts.numbers(Some(executor));
        assert!(numbers.is_some());
        let mut count = 0;
        for (scheduler, shape) in TABLE.iter().flat_map(|row| Shape::ALL.map(|shape| (row, shape))) {
            for membership in [Membership::PodGroup, Membership::Annotations] {
                for (numbers, counted) in [(numbers.as_ref(), true), (numbers.as_ref(), false), (None, true)] {
                    let request =
                        |pod| MemberRequest { shape, membership, group: "g", numbers, counted, with_driver: true, pod };
                    let mut metadata = MemberMetadata::default();
                    (scheduler.executor)(&request(Some(&member)), &mut metadata);
                    (scheduler.driver)(&request(Some(&member)), &mut metadata);
                    for (field, key, _) in metadata.set {
                        let is_listed = scheduler.written_keys().any(|listed| listed == (field, key));
                        assert!(is_listed, "{}: {key} is not in more_keys", scheduler.kind);
                        count += 1;
                    }
                }
            }
        }
        assert!(count > 20, "{count}");
    }

    #[test]
    fn takes_queue_depends_on_scheduler_and_shape() {
        let with =
            |shape| TABLE.iter().filter(move |scheduler| scheduler.takes_queue(shape)).map(|scheduler| scheduler.kind);
        let executors: Vec<&str> = with(Shape::Executors).collect();
        assert_eq!(executors, ["kube-batch", "volcano", "yunikorn", "koordinator", "kueue", "kai"]);
        assert!(
            !with(Shape::Pods).any(|kind| kind == "kube-batch"),
            "kube-batch reads the queue from the PodGroup only"
        );
    }
}
