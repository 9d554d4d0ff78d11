//! All-or-nothing is a condition of the start: a replacement in a gang that has started waits for room only.

use crate::support::planned::*;
use crate::support::*;
use usher_core::gang::GangScheduler;
use usher_core::reason::Reason;
use usher_core::snapshot::RelatedChange;

/// Four executors that run, in a cluster that serves one version of a scheduler's PodGroups.
fn started(row: &'static GangScheduler, version: usize) -> GangCluster {
    let mut cluster = GangCluster::new(policy(row.kind));
    cluster.snapshot.apply(RelatedChange::Apis(serving(row, version)));
    cluster.driver("spark.executor.instances=4");
    for id in 1..=4 {
        cluster.executor(id, "Running").settle();
    }
    assert_eq!(cluster.count(), 4, "{}", row.kind);
    cluster
}

fn apis(count_mutable: bool) -> impl Iterator<Item = (&'static GangScheduler, usize)> {
    let all = usher_core::gang::TABLE.iter().flat_map(|row| (0..row.apis.len()).map(move |version| (*row, version)));
    all.filter(move |(row, version)| row.apis[*version].count_mutable == count_mutable)
}

#[test]
fn replacement_in_a_gang_that_has_started_waits_for_no_other() {
    assert!(apis(true).count() >= 5);
    for (row, version) in apis(true) {
        let mut cluster = started(row, version);
        // Two are lost, and the driver has created one of two replacements.
        cluster.delete_pod(1).delete_pod(2).executor(5, "Pending").settle();
        assert_eq!(cluster.count(), 2, "{}", row.kind);
        assert_eq!(cluster.messages, [""; 0], "nobody needs an Event");
        cluster.executor(5, "Running").settle();
        assert_eq!(cluster.count(), 3, "{}", row.kind);
        cluster.executor(6, "Running").settle();
        assert_eq!(cluster.count(), 4, "what runs is not reclaimed in part");
        (3..=6).for_each(|id| _ = cluster.delete_pod(id));
        cluster.executor(7, "Pending").settle();
        assert_eq!(cluster.count(), 1, "all are lost");
    }
}

/// The count of `scheduling.k8s.io/v1alpha2` can never change (Kubernetes 1.36).
#[test]
fn replacement_does_not_join_a_started_gang_of_fixed_size() {
    assert_eq!(apis(false).count(), 1);
    for (row, version) in apis(false) {
        let mut cluster = started(row, version);
        cluster.delete_pod(1).settle();
        let outcome = by_driver(&executor(5), &cluster.snapshot, &cluster.policies);
        assert_eq!(outcome.object["spec"].get("schedulingGroup"), None);
        assert_eq!(outcome.decision.reason, Reason::GangStarted);
        cluster.observe(&outcome.object.into_pod().stored("e5").phase("Pending")).settle();
        assert_eq!(cluster.count(), 4);
        assert!(!cluster.has_reason(Reason::GangCannotStart), "nobody waits: {:?}", cluster.messages);
    }
}

/// It was created before any replica knew that the gang has started.
#[test]
fn pending_member_of_a_started_gang_of_fixed_size_is_reported() {
    let (row, version) = apis(false).next().unwrap();
    let mut cluster = GangCluster::new(policy(row.kind));
    cluster.snapshot.apply(RelatedChange::Apis(serving(row, version)));
    cluster.driver("spark.executor.instances=4");
    let late = by_driver(&executor(5), &cluster.snapshot, &cluster.policies).object.into_pod();
    (1..=4).for_each(|id| _ = cluster.executor(id, "Running").settle());
    cluster.delete_pod(1).observe(&late.stored("e5").phase("Pending")).settle();
    assert!(cluster.has_reason(Reason::GangCannotStart));
    assert!(cluster.messages.iter().any(|message| message.contains("Delete them")), "{:?}", cluster.messages);
}

/// The same name and the same application id, as with a configured spark.app.id.
#[test]
fn start_of_the_last_driver_is_not_that_of_the_next() {
    for (row, version) in apis(true) {
        let mut cluster = started(row, version);
        (1..=4).for_each(|id| _ = cluster.delete_pod(id));
        cluster.observe(&driver().stored("uid-2").conf_map("c").phase("Running"));
        cluster.conf("uid-2", "spark.executor.instances=4");
        let created = executor(5).created_by_pod("nb-driver", "uid-2");
        let admitted = answer(&created, &cluster.snapshot, &cluster.policies).object.into_pod();
        cluster.observe(&admitted.stored("f5").phase("Pending")).settle();
        assert!(cluster.has_reason(Reason::GroupRemade));
        assert_eq!(cluster.count(), 4, "{}", row.kind);
    }
}

#[test]
fn executors_of_the_next_application_join_their_gang_although_that_of_the_last_is_left() {
    let (row, version) = apis(false).next().unwrap();
    let mut cluster = started(row, version);
    (1..=4).for_each(|id| _ = cluster.delete_pod(id));
    // The same name and the same application id, as with a configured spark.app.id.
    cluster.observe(&driver().stored("uid-2").conf_map("c").phase("Running"));
    let created = executor(1).created_by_pod("nb-driver", "uid-2");
    let outcome = answer(&created, &cluster.snapshot, &cluster.policies);
    assert!(outcome.object["spec"].get("schedulingGroup").is_some(), "{}", outcome.object);
}
