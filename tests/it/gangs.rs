//! The controller's plans: PodGroups are created, updated to a size that can start, and deleted; executors are adopted; objects
//! are looked up.
//!
//! The tests apply each plan to the snapshot as the watch would show it, so each test is a short history.

use std::sync::Arc;

use crate::support::planned::*;
use crate::support::*;
use jiff::SignedDuration;
use serde_json::json;
use usher_core::controller::{Lookup, missing, required};
use usher_core::gang::{GangScheduler, Shape};
use usher_core::reason::Reason;
use usher_core::reconcile::ApplicationState;
use usher_core::snapshot::{
    Conf, DriverPod, Group, GroupApi, GroupKey, PodChange, ReferencedPod, RelatedChange, ServedApis, Snapshot, Watched,
};
use usher_spark::conf::{Allocation, AppConf};
use usher_spark::ids::{AppKey, PodKey};

// ---- creation ----

/// The pod `notebook` is read by name.
fn reference(cluster: &mut GangCluster, pod: &PodBuilder) {
    let key = PodKey::new("default", "notebook");
    cluster.snapshot.apply(RelatedChange::Referenced(key, referenced_pod(pod), vec![]));
}

#[test]
fn pod_group_is_created_for_executors_that_name_it() {
    let mut policy = policy("volcano");
    policy.queue = Some("analytics".into());
    policy.executor_class = Some("batch".into());
    let mut cluster = GangCluster::new(policy);
    cluster.driver("spark.executor.instances=3").executor(1, "Pending").settle();
    let groups = cluster.groups();
    assert_eq!(
        groups[&format!("nb-driver-{APP8}")],
        json!({"minMember": 3, "queue": "analytics", "priorityClassName": "batch",
               "minResources": {"cpu": "3", "memory": "4224Mi"}})
    );
    let group = cluster.snapshot.groups.values().next().unwrap();
    assert_eq!(group.owner.as_ref().map(|owner| &*owner.uid), Some(DRIVER_UID));
    assert!(cluster.has_reason(Reason::GroupCreated));
}

#[test]
fn kube_batch_pod_group_contains_queue() {
    let mut policy = policy("kube-batch");
    policy.queue = Some("analytics".into());
    let mut cluster = GangCluster::new(policy);
    cluster.driver("spark.executor.instances=3").executor(1, "Pending").settle();
    assert_eq!(cluster.groups()[&format!("nb-driver-{APP8}")], json!({"minMember": 3, "queue": "analytics"}));
}

#[test]
fn min_resources_sum_requests_including_sidecars_and_devices() {
    let mut cluster = GangCluster::volcano();
    cluster.driver("spark.executor.instances=2");
    let mut pod = executor(1).requests(json!({"cpu": "500m", "memory": "2Gi"}));
    pod.0["spec"]["containers"]
        .as_array_mut()
        .unwrap()
        .push(json!({"name": "log", "resources": {"requests": {"cpu": "100m"}, "limits": {"nvidia.com/gpu": "1"}}}));
    let admitted = by_driver(&pod, &cluster.snapshot, &cluster.policies).object.into_pod();
    cluster.observe(&admitted.stored("e1").phase("Pending")).settle();
    let spec = cluster.groups().into_values().next().unwrap();
    assert_eq!(spec["minResources"], json!({"cpu": "1200m", "memory": "4Gi", "nvidia.com/gpu": "2"}));
}

#[test]
fn every_pod_group_api_version_gets_requested_member_count() {
    for row in usher_core::gang::TABLE.iter().filter(|row| !row.apis.is_empty()) {
        for version in 0..row.apis.len() {
            let mut cluster = GangCluster::new(policy(row.kind));
            cluster.snapshot.apply(RelatedChange::Apis(serving(row, version)));
            cluster.driver("spark.executor.instances=3").executor(1, "Pending").executor(2, "Pending").settle();
            assert_eq!(cluster.count(), 3, "{} {}", row.kind, row.apis[version].api_version());
        }
    }
}

#[test]
fn schedulers_without_pod_groups_get_none() {
    for kind in ["none", "yunikorn", "kueue", "kai"] {
        let mut cluster = GangCluster::new(policy(kind));
        cluster.driver("spark.executor.instances=3").executor(1, "Pending").settle();
        assert!(cluster.groups().is_empty(), "{kind}");
    }
}

#[test]
fn app_shape_creates_pod_group_with_all_resources_before_executors_exist() {
    let mut policy = policy("volcano");
    policy.gang.shape = Shape::App;
    let mut cluster = GangCluster::new(policy);
    cluster.driver("spark.executor.instances=3").settle();
    let spec = cluster.groups().into_values().next().unwrap();
    assert_eq!(spec["minMember"], 1);
    assert_eq!(spec["minResources"], json!({"cpu": "4", "memory": "5632Mi"}), "the driver and three executors");
    cluster.executor(1, "Pending").settle();
    assert_eq!(cluster.count(), 1);
}

#[test]
fn volcano_that_denies_early_pods_yields_warning_and_event() {
    let mut cluster = GangCluster::volcano();
    cluster.snapshot.apply(RelatedChange::EarlyPods(Some("v1.11.0".into())));
    let admitted = by_driver(&driver(), &cluster.snapshot, &cluster.policies);
    assert!(admitted.decision.allowed);
    let warning = admitted.response["warnings"][0].as_str().unwrap();
    assert!(warning.starts_with("spark-usher: Volcano v1.11.0 denies pods whose PodGroup"), "{warning}");
    let reasons = by_driver(&executor(1), &cluster.snapshot, &cluster.policies).decision.reasons;
    assert!(reasons.contains(&Reason::EarlyPodsRefused), "{reasons:?}");
    // No executor can be created; an Event on the driver says why.
    cluster.driver("spark.executor.instances=3").settle();
    assert!(cluster.has_reason(Reason::EarlyPodsRefused));
    // Neither other schedulers nor policies without gangs are affected.
    for (kind, shape) in [("native", Shape::Executors), ("volcano", Shape::Pods)] {
        let mut policy = policy(kind);
        policy.gang.shape = shape;
        let mut cluster = GangCluster::new(policy);
        cluster.snapshot.apply(RelatedChange::EarlyPods(Some("v1.11.0".into())));
        cluster.driver("spark.executor.instances=3").settle();
        assert!(!cluster.has_reason(Reason::EarlyPodsRefused), "{kind}");
        let reasons = by_driver(&driver(), &cluster.snapshot, &cluster.policies).decision.reasons;
        assert!(!reasons.contains(&Reason::EarlyPodsRefused), "{kind}");
    }
}

#[test]
fn no_pod_group_without_discovery_and_unserved_api_is_reported() {
    let mut cluster = GangCluster::volcano();
    cluster.snapshot.apis = None;
    cluster.driver("").executor(1, "Pending").settle();
    assert!(cluster.groups().is_empty() && cluster.reasons.is_empty());
    cluster.snapshot.apply(RelatedChange::Apis(ServedApis::default()));
    cluster.settle();
    assert!(cluster.groups().is_empty() && cluster.has_reason(Reason::GroupApiNotServed));
    assert!(cluster.messages[0].contains("scheduling.volcano.sh/v1beta1"), "{:?}", cluster.messages);
}

// ---- sizes ----

#[test]
fn dynamic_application_lowers_started_gang_to_one_without_resources() {
    let mut cluster = GangCluster::volcano();
    cluster.driver("spark.dynamicAllocation.enabled=true\nspark.dynamicAllocation.initialExecutors=3");
    cluster.executor(1, "Pending").settle();
    assert_eq!(cluster.count(), 3);
    for id in 1..=3 {
        cluster.executor(id, "Running");
    }
    cluster.settle();
    assert!(
        cluster.snapshot.groups.values().all(|group| group.started),
        "stored in the PodGroup, so it survives a restart of spark-usher"
    );
    for id in 1..=3 {
        cluster.delete_pod(id);
    }
    cluster.settle();
    assert_eq!(
        cluster.groups().into_values().next().unwrap(),
        json!({"minMember": 1, "minResources": {}}),
        "asks for no room"
    );
    cluster.memory = ApplicationState::default();
    cluster.executor(4, "Pending").settle();
    assert_eq!(cluster.count(), 1, "also after a restart of spark-usher");
    assert!(cluster.has_reason(Reason::GangLowered));
}

#[test]
fn lowered_min_member_is_raised_and_unmutated_executors_lower_it() {
    let mut cluster = GangCluster::volcano();
    cluster.driver("spark.executor.instances=5").executor(1, "Pending").settle();
    assert_eq!(cluster.count(), 5);
    // A client lowered it.
    let mut group = (**cluster.snapshot.groups.values().next().unwrap()).clone();
    group.spec["minMember"] = json!(1);
    let key = cluster.snapshot.groups.keys().next().unwrap().clone();
    cluster.snapshot.apply(RelatedChange::Groups(key.scheduler, Watched::Upserted(key, group)));
    cluster.settle();
    assert!(cluster.count() == 5 && cluster.has_reason(Reason::GangRaised));
    for id in 2..=4 {
        cluster.unmutated_executor(id, "Pending");
    }
    cluster.executor(5, "Pending").settle();
    assert_eq!(cluster.count(), 2, "two of five are members of the gang");
    assert!(cluster.has_reason(Reason::GangLowered));
    let message = cluster.messages.last().unwrap();
    assert!(
        message.contains("the application requests 5 executors, 5 are pending or running, 2 of them in this gang"),
        "{message}"
    );
}

#[test]
fn spark_3_0_gang_has_size_of_allocation_batch() {
    let mut cluster = GangCluster::volcano();
    cluster.driver("spark.executor.instances=12\nspark.kubernetes.allocation.batch.size=5");
    for id in 1..=5 {
        let mut pod = executor(id);
        pod.0["metadata"]["labels"].as_object_mut().unwrap().remove("spark-exec-resourceprofile-id");
        let admitted = by_driver(&pod, &cluster.snapshot, &cluster.policies).object.into_pod();
        cluster.observe(&admitted.stored(&format!("e{id}")).phase("Pending")).settle();
    }
    assert_eq!(cluster.count(), 5);
}

#[test]
fn two_applications_of_one_driver_pod_get_separate_pod_groups() {
    let mut cluster = GangCluster::volcano();
    let notebook = pod("nb-driver").stored(DRIVER_UID).phase("Running").annotation("spark-usher.io/min-member", "2");
    cluster.snapshot.apply(RelatedChange::Referenced(
        PodKey::new("default", "nb-driver"),
        referenced_pod(&notebook),
        vec![],
    ));
    cluster.executor(1, "Pending").settle();
    let second = pod("b-exec-1").executor_of("spark-b", 1);
    let admitted = by_driver(&second, &cluster.snapshot, &cluster.policies).object.into_pod();
    cluster.observe(&admitted.stored("b1").phase("Pending"));
    cluster.app = AppKey::new("default", "spark-b");
    cluster.memory = ApplicationState::default();
    cluster.settle();
    let groups = cluster.groups();
    assert_eq!(groups.len(), 2, "{groups:?}");
    assert!(groups.values().all(|spec| spec["minMember"] == 2));
    assert!(
        cluster
            .snapshot
            .groups
            .values()
            .all(|group| group.owner.as_ref().is_some_and(|owner| &*owner.uid == DRIVER_UID))
    );
}

#[test]
fn resubmitted_driver_name_recreates_pod_group() {
    let mut cluster = GangCluster::volcano();
    cluster.driver("spark.executor.instances=3").executor(1, "Running").settle();
    // The same name and the same application id, as with a configured spark.app.id.
    cluster.delete_pod(1);
    let again = driver().stored("uid-2").conf_map("c").phase("Running");
    cluster.observe(&again).conf("uid-2", "spark.executor.instances=2");
    let admitted = answer(&executor(1).created_by_pod("nb-driver", "uid-2"), &cluster.snapshot, &cluster.policies);
    cluster.observe(&admitted.object.into_pod().stored("f1").phase("Pending")).settle();
    assert!(cluster.has_reason(Reason::GroupRemade));
    assert_eq!(cluster.count(), 2);
    assert_eq!(cluster.snapshot.groups.values().next().unwrap().owner.as_ref().map(|owner| &*owner.uid), Some("uid-2"));
}

#[test]
fn unknown_gang_size_sets_min_member_one_and_is_reported() {
    let mut cluster = GangCluster::volcano();
    for id in 1..=4 {
        cluster.executor(id, "Pending").settle();
    }
    assert_eq!(cluster.count(), 1, "the number of admitted executors is never the size");
    assert!(cluster.has_reason(Reason::GangSizeUnknown));
    assert!(cluster.messages[0].contains("spark-usher.io/min-member"));
}

/// Spark's defaults would be a gang of two, and 1408Mi for each executor.
#[test]
fn settings_that_cannot_be_read_make_size_unknown_and_are_reported() {
    let mut cluster = GangCluster::volcano();
    cluster.driver("spark.executor.instances=${spark.x}").executor(1, "Pending").settle();
    assert_eq!(cluster.count(), 1);
    assert!(cluster.has_reason(Reason::GangSizeUnknown));
    assert!(cluster.messages[0].contains("spark.executor.instances"), "{:?}", cluster.messages);

    let spec_of = |settings: &str| {
        let mut policy = policy("volcano");
        policy.gang.shape = Shape::App;
        let mut cluster = GangCluster::new(policy);
        cluster.driver(settings).settle();
        let spec = cluster.groups().into_values().next().unwrap();
        (spec["minResources"]["memory"].as_str().unwrap().to_owned(), cluster.messages)
    };
    let (memory, messages) = spec_of("spark.executor.memory=4 GB");
    assert_eq!(memory, "1408Mi", "only the driver's own");
    assert!(messages[0].contains("spark.executor.memory in the driver"), "{messages:?}");
    let (memory, messages) = spec_of("spark.executor.memory=4Gi\nspark.executor.memoryOverhead=1Gi");
    assert_eq!((memory.as_str(), messages.len()), ("11648Mi", 0), "1408Mi and twice 5Gi");
}

#[test]
fn min_member_above_target_is_clamped_and_reported() {
    let mut cluster = GangCluster::volcano();
    cluster.observe(&driver().conf_map("c").annotation("spark-usher.io/min-member", "50"));
    cluster.conf(DRIVER_UID, "spark.executor.instances=3").executor(1, "Pending").settle();
    assert_eq!(cluster.count(), 3);
    assert!(cluster.has_reason(Reason::MinMemberClamped));
}

#[test]
fn other_resource_profiles_are_not_counted() {
    let mut cluster = GangCluster::volcano();
    cluster.driver("spark.executor.instances=2").executor(1, "Pending");
    let gpu = executor(2).label("spark-exec-resourceprofile-id", "1").requests(json!({"cpu": "64"}));
    let admitted = by_driver(&gpu, &cluster.snapshot, &cluster.policies).object.into_pod();
    cluster.observe(&admitted.stored("e2").phase("Pending")).settle();
    let spec = cluster.groups().into_values().next().unwrap();
    assert_eq!(spec["minMember"], 2);
    assert_eq!(spec["minResources"]["cpu"], "2");
}

#[test]
fn immutable_min_count_uses_minimum_executors_and_stuck_gang_is_reported() {
    let native = |conf: &str| {
        let mut cluster = GangCluster::new(policy("native"));
        let row = GangScheduler::of_kind("native").unwrap();
        cluster.snapshot.apply(RelatedChange::Apis(serving(row, 1)));
        assert!(!row.apis[1].count_mutable);
        cluster.driver(conf);
        cluster
    };
    let mut dynamic = native(
        "spark.dynamicAllocation.enabled=true\nspark.dynamicAllocation.minExecutors=2\nspark.dynamicAllocation.initialExecutors=9",
    );
    assert_eq!(dynamic.executor(1, "Pending").settle().count(), 2);
    let mut fixed = native("spark.executor.instances=3");
    for id in 1..=3 {
        fixed.executor(id, "Pending");
    }
    assert_eq!(fixed.settle().count(), 3);
    assert!(!fixed.has_reason(Reason::GangCannotStart));
    // Two are replaced by executors that the webhook did not mutate.
    fixed.delete_pod(2).delete_pod(3).unmutated_executor(4, "Pending").unmutated_executor(5, "Pending").settle();
    assert_eq!(fixed.count(), 3, "it cannot be lowered");
    assert!(fixed.has_reason(Reason::GangCannotStart));
}

#[test]
fn explicit_min_member_is_applied_to_immutable_count() {
    let mut cluster = GangCluster::new(policy("native"));
    let row = GangScheduler::of_kind("native").unwrap();
    let fixed = row.apis.iter().position(|api| !api.count_mutable).unwrap();
    cluster.snapshot.apply(RelatedChange::Apis(serving(row, fixed)));
    // A client-mode driver: its configuration is unknown.
    cluster.observe(&driver().annotation("spark-usher.io/min-member", "3"));
    cluster.executor(1, "Pending").settle();
    assert_eq!(cluster.count(), 3);
    cluster.executor(2, "Running").executor(3, "Running").executor(1, "Running").settle();
    cluster.delete_pod(1).delete_pod(2).executor(3, "Failed").executor(4, "Pending").settle();
    assert!(!cluster.has_reason(Reason::GangCannotStart), "the replacement does not join the gang");
}

#[test]
fn group_name_of_volcano_controller_creates_no_pod_group() {
    let mut cluster = GangCluster::volcano();
    let uid = DRIVER_UID;
    // As Volcano's controller changes it.
    let driver = driver()
        .annotation("spark-usher.io/by", "batch/volcano")
        .annotation("scheduling.k8s.io/group-name", &format!("podgroup-{uid}"))
        .spec("schedulerName", "volcano");
    cluster.observe(&driver).settle();
    assert!(cluster.groups().is_empty() && cluster.reasons.is_empty(), "{:?}", cluster.reasons);
    let executor = executor(1)
        .owned_by("Pod", "nb-driver", uid)
        .annotation("spark-usher.io/by", "batch/volcano")
        .annotation("scheduling.k8s.io/group-name", &format!("podgroup-{uid}"))
        .spec("schedulerName", "volcano");
    cluster.observe(&executor.stored("e1").phase("Pending")).settle();
    assert!(cluster.groups().is_empty());
}

#[test]
fn foreign_driver_claiming_application_does_not_change_pod_group() {
    let mut cluster = GangCluster::volcano();
    cluster.snapshot.apply(RelatedChange::SigningKey(Some(signing_key())));
    cluster.driver("spark.executor.instances=3");
    cluster.executor(1, "Pending").settle();
    assert_eq!(cluster.count(), 3);
    let group = cluster.groups();
    // An attacker's driver with the victim's application id, and executors that claim to belong to the victim.
    let foreign = pod("evil").driver_of(APP).stored("evil-uid").spec("serviceAccountName", "evil").phase("Running");
    cluster.observe(&foreign);
    for id in 0..3 {
        let forged = pod(&format!("evil-{id}")).executor_of(APP, 60 + id).owned_by("Pod", "evil", "evil-uid");
        let forged = forged
            .annotation("spark-usher.io/by", "batch/volcano")
            .annotation("scheduling.k8s.io/group-name", &format!("nb-driver-{APP8}"))
            .spec("schedulerName", "volcano");
        cluster.observe(&forged.stored(&format!("x{id}")).phase("Running"));
    }
    cluster.settle();
    assert_eq!(cluster.groups(), group);
    // It exits, and so do its executors; the victim's are unchanged.
    cluster.observe(&foreign.phase("Failed")).settle();
    assert_eq!(cluster.groups(), group);
}

// ---- deletion ----

#[test]
fn pod_group_is_deleted_after_driver_and_executors_finish() {
    let mut cluster = GangCluster::volcano();
    cluster.driver("spark.executor.instances=1").executor(1, "Running").settle();
    cluster.observe(&driver().phase("Succeeded")).settle();
    assert_eq!(cluster.groups().len(), 1, "an executor still names it");
    cluster.executor(1, "Succeeded").settle();
    assert!(cluster.groups().is_empty());
    assert!(cluster.has_reason(Reason::GroupDeleted));
}

#[test]
fn pod_group_with_unknown_driver_is_deleted_after_delay() {
    let mut cluster = GangCluster::volcano();
    cluster.observe(&{
        let legacy = answer(
            &executor(1).created_by("system:serviceaccount:default:spark"),
            &cluster.snapshot,
            &cluster.policies,
        );
        legacy.object.into_pod().stored("e1").phase("Running")
    });
    assert_eq!(cluster.settle().groups().len(), 1);
    assert!(
        cluster.snapshot.groups.values().all(|group| group.owner.is_none()),
        "no owner, because the driver is unknown"
    );
    cluster.delete_pod(1).settle();
    assert_eq!(cluster.groups().len(), 1);
    cluster.now += SignedDuration::from_mins(11);
    cluster.settle();
    assert!(cluster.groups().is_empty());
}

#[test]
fn executor_with_existing_group_name_gets_no_pod_group() {
    let mut cluster = GangCluster::volcano();
    cluster.driver("spark.executor.instances=3");
    let in_group = executor(1).annotation("scheduling.k8s.io/group-name", "theirs");
    let admitted = by_driver(&in_group, &cluster.snapshot, &cluster.policies).object.into_pod();
    cluster.observe(&admitted.stored("e1").phase("Pending")).settle();
    assert!(cluster.groups().is_empty() && cluster.reasons.is_empty());
}

#[test]
fn pod_groups_of_other_applications_are_not_changed() {
    let mut cluster = GangCluster::volcano();
    let key = GroupKey { namespace: "default".into(), name: "other".into(), scheduler: "volcano" };
    let other = Group { uid: "o".into(), selector: Some("spark-other".into()), ..pod_group(7) };
    cluster.snapshot.apply(RelatedChange::Groups(key.scheduler, Watched::Upserted(key.clone(), other)));
    cluster.driver("spark.executor.instances=2").executor(1, "Running").settle();
    cluster.delete_pod(1).observe(&driver().phase("Failed")).settle();
    assert!(cluster.snapshot.groups.contains_key(&key));
    assert_eq!(cluster.groups().len(), 1);
}

#[test]
fn relist_of_pod_groups_keeps_those_of_other_schedulers() {
    let mut snapshot = Snapshot::default();
    let key = |name: &str, scheduler| GroupKey { namespace: "default".into(), name: name.into(), scheduler };
    let group = || pod_group(1);
    let stored = |name, scheduler| RelatedChange::Groups(scheduler, Watched::Upserted(key(name, scheduler), group()));
    snapshot.apply(stored("a", "volcano"));
    snapshot.apply(stored("b", "native"));
    let listed = Watched::Listed(vec![(key("c", "volcano"), group())]);
    let touched = snapshot.apply(RelatedChange::Groups("volcano", listed));
    assert_eq!(snapshot.groups.keys().map(|key| &*key.name).collect::<Vec<_>>(), ["b", "c"]);
    assert!(touched.touched.contains(&AppKey::new("default", APP)));
}

// ---- adoption ----

#[test]
fn orphan_is_adopted_by_driver_at_its_driver_url() {
    let mut cluster = GangCluster::new(policy("none"));
    let orphan = executor(1).driver_url("10.0.0.7").stored("e1").phase("Running");
    cluster.observe(&driver().ip("10.0.0.7")).observe(&orphan).settle();
    let (_, adopted) = cluster.snapshot.executor("default", "nb-exec-1").unwrap();
    assert_eq!(adopted.template.owner.as_ref().unwrap().uid.as_ref(), DRIVER_UID);
    assert!(cluster.has_reason(Reason::Adopted));
}

#[test]
fn orphan_is_not_adopted_by_driver_with_matching_label_only() {
    let mut cluster = GangCluster::new(policy("none"));
    let orphan = executor(1).driver_url("10.0.0.9").stored("e1").phase("Running");
    cluster.observe(&driver().ip("10.0.0.7")).observe(&orphan).settle();
    assert!(!cluster.has_reason(Reason::Adopted));
}

#[test]
fn orphan_is_not_adopted_by_pending_deleting_or_replaced_driver_or_with_volcano_or_skip() {
    let orphan = executor(1).driver_url("10.0.0.7").stored("e1").phase("Pending");
    let is_refused = |driver: &PodBuilder, orphan: &PodBuilder| {
        let mut cluster = GangCluster::new(policy("none"));
        cluster.observe(&driver.clone().ip("10.0.0.7")).observe(orphan).settle();
        assert!(!cluster.has_reason(Reason::Adopted));
        cluster.has_reason(Reason::AdoptionRefused)
    };
    assert!(!is_refused(&driver().phase("Pending"), &orphan));
    assert!(!is_refused(&driver().deleting(), &orphan));
    assert!(!is_refused(&driver(), &orphan.clone().spec("schedulerName", "volcano")));
    assert!(!is_refused(&driver(), &orphan.clone().annotation("spark-usher.io/skip", "true")));
    let annotated = executor(1).annotation("spark-usher.io/driver", "driver-url/nb-driver/old-uid").stored("e1");
    assert!(
        is_refused(&pod("nb-driver").driver_of("spark-other").stored("new-uid").phase("Running"), &annotated),
        "the name has another uid meanwhile"
    );
}

#[test]
fn executor_is_adopted_after_lookup_of_annotated_driver_unless_driver_is_foreign() {
    let mut cluster = GangCluster::new(policy("none"));
    let annotated =
        executor(1).annotation("spark-usher.io/driver", "driver-url/notebook/n1").stored("e1").phase("Running");
    cluster.observe(&annotated).settle();
    assert!(cluster.reasons.is_empty(), "nothing happens before the pod was read");
    let lookups = missing(&cluster.snapshot, &cluster.app, &cluster.policies, &[]);
    assert_eq!(lookups, [Lookup::Pod(PodKey::new("default", "notebook"))]);
    let notebook = pod("notebook").stored("n1").phase("Running");
    reference(&mut cluster, &notebook);
    assert!(missing(&cluster.snapshot, &cluster.app, &cluster.policies, &[]).is_empty());
    cluster.settle();
    assert!(cluster.has_reason(Reason::Adopted));
    let foreign = pod("notebook").label("spark-app-selector", "spark-x").stored("n1").phase("Running");
    let mut cluster = GangCluster::new(policy("none"));
    cluster.observe(&annotated);
    reference(&mut cluster, &foreign);
    cluster.settle();
    assert!(cluster.has_reason(Reason::AdoptionRefused), "that pod is the driver of another application");
}

#[test]
fn orphan_is_not_adopted_by_pod_that_has_the_address_of_its_deleted_driver() {
    let created = |pod: PodBuilder, at: &str| {
        let mut pod = pod;
        pod.0["metadata"]["creationTimestamp"] = at.into();
        pod
    };
    let orphan = created(executor(1).driver_url("10.0.0.7").stored("e1").phase("Running"), "2026-11-20T12:00:00Z");
    for (at, is_adopted) in [("2026-11-20T11:59:59Z", true), ("2026-11-20T12:00:01Z", false)] {
        let mut cluster = GangCluster::new(policy("none"));
        cluster.observe(&orphan);
        reference(&mut cluster, &created(pod("notebook").stored("n1").phase("Running").ip("10.0.0.7"), at));
        cluster.settle();
        assert_eq!(
            (cluster.has_reason(Reason::Adopted), cluster.has_reason(Reason::AdoptionRefused)),
            (is_adopted, !is_adopted)
        );
    }
}

#[test]
fn deleted_driver_adopts_no_executor() {
    let mut cluster = GangCluster::new(policy("none"));
    cluster.observe(
        &executor(1).annotation("spark-usher.io/driver", "app-selector/notebook/n1").stored("e1").phase("Running"),
    );
    cluster.snapshot.apply(RelatedChange::Referenced(
        PodKey::new("default", "notebook"),
        ReferencedPod::Absent,
        vec![],
    ));
    cluster.settle();
    assert!(cluster.has_reason(Reason::AdoptionRefused) && !cluster.has_reason(Reason::Adopted));
}

// ---- lookups ----

#[test]
fn driver_configuration_is_read_once_and_only_if_enabled() {
    let mut cluster = GangCluster::volcano();
    cluster.observe(
        &by_driver(&driver().conf_map("the-map"), &cluster.snapshot, &cluster.policies)
            .object
            .into_pod()
            .stored(DRIVER_UID)
            .phase("Running"),
    );
    let pod_key = PodKey::new("default", "nb-driver");
    let lookups = missing(&cluster.snapshot, &cluster.app, &cluster.policies, &[]);
    assert_eq!(lookups, [Lookup::Conf(pod_key.clone(), DRIVER_UID.into(), "the-map".into())]);
    cluster.snapshot.apply(RelatedChange::Conf(pod_key, DRIVER_UID.into(), Conf::Unreadable, vec![]));
    assert!(missing(&cluster.snapshot, &cluster.app, &cluster.policies, &[]).is_empty());
    let mut off = policy("volcano");
    off.gang.read_spark_conf = false;
    let mut cluster = GangCluster::new(off);
    cluster.observe(
        &by_driver(&driver().conf_map("m"), &cluster.snapshot, &cluster.policies)
            .object
            .into_pod()
            .stored(DRIVER_UID)
            .phase("Running"),
    );
    assert!(missing(&cluster.snapshot, &cluster.app, &cluster.policies, &[]).is_empty());
}

#[test]
fn driver_url_address_is_looked_up_without_other_evidence() {
    let mut cluster = GangCluster::new(policy("none"));
    cluster.observe(&executor(1).driver_url("10.1.2.3").stored("e1").phase("Running"));
    let lookups = missing(&cluster.snapshot, &cluster.app, &cluster.policies, &[]);
    assert_eq!(lookups, [Lookup::Address("default".into(), "10.1.2.3".into())]);
    let notebook = pod("notebook").stored("n1").phase("Running").ip("10.1.2.3");
    reference(&mut cluster, &notebook);
    assert!(missing(&cluster.snapshot, &cluster.app, &cluster.policies, &[]).is_empty());
    cluster.settle();
    assert!(cluster.has_reason(Reason::Adopted));
    let lookups = required(&cluster.snapshot, &cluster.app, &cluster.policies, &[]);
    assert_eq!(lookups, [Lookup::Pod(PodKey::new("default", "notebook"))], "as long as an executor names it");
}

#[test]
fn configuration_is_removed_with_its_driver() {
    let mut cluster = GangCluster::volcano();
    cluster.driver("spark.executor.instances=3");
    assert_eq!(cluster.snapshot.confs.len(), 1);
    cluster.snapshot.apply(PodChange::Gone(PodKey::new("default", "nb-driver"), DRIVER_UID.into()));
    assert!(cluster.snapshot.confs.is_empty() && cluster.snapshot.apps.is_empty());
    cluster.conf(DRIVER_UID, "late");
    assert!(cluster.snapshot.confs.is_empty(), "a late result is not stored");
}

#[test]
fn each_application_of_a_pod_has_its_own_configuration() {
    let mut cluster = GangCluster::volcano();
    let pod = PodKey::new("default", "nb-driver");
    cluster.observe(&driver().ip("10.0.0.5"));
    let states = |cluster: &mut GangCluster, app: &str, conf: &str| {
        let conf = Arc::new(AppConf::parse(conf));
        let key = AppKey::new("default", app);
        cluster.snapshot.apply(RelatedChange::StatedConf(pod.clone(), DRIVER_UID.into(), key, conf));
    };
    let instances = |cluster: &GangCluster, app: &str| {
        let driver = cluster.snapshot.driver_pod("default", "nb-driver").unwrap();
        cluster.snapshot.conf(&AppKey::new("default", app), driver).map(|conf| conf.allocation)
    };
    states(&mut cluster, "spark-a", "spark.executor.instances=10");
    assert_eq!(instances(&cluster, "spark-a"), Some(Ok(Allocation::Static { instances: 10 })));
    // Its kernel restarts: nothing is known of the next application until the driver states it.
    assert_eq!(instances(&cluster, "spark-b"), None);
    states(&mut cluster, "spark-b", "spark.executor.instances=2");
    assert_eq!(instances(&cluster, "spark-b"), Some(Ok(Allocation::Static { instances: 2 })));
    // A notebook runs many applications in its life.
    for number in 0..100 {
        states(&mut cluster, &format!("spark-{number:03}"), "");
    }
    // The latest are kept: an application without executors may have some again.
    for (number, known) in [(0, false), (90, false), (91, true), (99, true)] {
        let conf = instances(&cluster, &format!("spark-{number:03}"));
        assert_eq!(conf, known.then_some(Ok(Allocation::Static { instances: 2 })), "{number}");
    }
    cluster.snapshot.apply(PodChange::Gone(pod.clone(), DRIVER_UID.into()));
    assert!(cluster.snapshot.stated_confs.is_empty());
    states(&mut cluster, "spark-a", "");
    assert!(cluster.snapshot.stated_confs.is_empty(), "a late result is not stored");
}

#[test]
fn snapshot_types_are_send_and_sync() {
    // A driver's pod and a PodGroup's API are plain data, which threads can share.
    fn shared<T: Send + Sync + 'static>() {}
    shared::<DriverPod>();
    shared::<GroupApi>();
    shared::<Snapshot>();
}
