//! The controller's plans for an application while pods of other clients claim to belong to it: PodGroups, owners, the exit of a
//! driver.

use crate::support::planned::*;
use crate::support::*;
use proptest::prelude::*;
use serde_json::{Value, json};
use usher_core::reason::Reason;
use usher_core::signature::Key;
use usher_core::snapshot::RelatedChange;

const GROUP: &str = "nb-driver-f33e32ff";

/// A victim on Volcano with a labelled driver, which wants three executors and has this many, and replicas that sign.
fn victim(executors: u32) -> GangCluster {
    let mut cluster = GangCluster::volcano();
    cluster.snapshot.apply(RelatedChange::SigningKey(Some(signing_key())));
    cluster.driver("spark.executor.instances=3");
    for id in 1..=executors {
        cluster.executor(id, "Pending");
    }
    cluster.settle();
    cluster
}

/// A pod of another client with forged annotations, in the victim's PodGroup.
fn forged(name: &str, id: u32) -> PodBuilder {
    pod(name)
        .executor_of(APP, id)
        .annotation("spark-usher.io/by", "batch/volcano")
        .annotation("scheduling.k8s.io/group-name", GROUP)
        .annotation("scheduling.volcano.sh/queue-name", "vip")
        .spec("schedulerName", "volcano")
        .requests(json!({"cpu": "100000"}))
        .stored(name)
        .phase("Running")
}

fn spec(cluster: &GangCluster) -> Value {
    cluster.groups()[GROUP].clone()
}

#[test]
fn copied_signature_is_not_proven_and_adds_no_resources_to_podgroup() {
    let mut cluster = victim(2);
    let before = spec(&cluster);
    let (_, first) = cluster.snapshot.executor("default", "nb-exec-1").unwrap();
    let signature = first.signature.unwrap().to_string();
    assert!(first.is_proven);
    let copy = forged("copy", 0).annotation("spark-usher.io/signature", &signature);
    cluster.observe(&copy.owned_by("Pod", "nb-driver", DRIVER_UID)).settle();
    assert!(!cluster.snapshot.executor("default", "copy").unwrap().1.is_proven);
    let after = spec(&cluster);
    let cpu = after["minResources"]["cpu"].as_str().unwrap().parse::<u64>().unwrap();
    assert_eq!(Some(cpu), after["minMember"].as_u64(), "one CPU for each member: the copy adds no resources");
    assert_eq!(after.get("queue"), before.get("queue"));
}

#[test]
fn forged_owner_with_driver_name_does_not_prevent_podgroup() {
    // No executor of the victim exists yet. Executors whose owner has the driver's name and another uid come first.
    let mut cluster = victim(0);
    for (n, uid) in ["0", "zzzz"].iter().enumerate() {
        cluster.observe(&forged(&format!("evil-{n}"), 0).owned_by("Pod", "nb-driver", uid));
    }
    cluster.settle();
    cluster.executor(1, "Pending").executor(2, "Pending").settle();
    assert_eq!(spec(&cluster)["minMember"], 3, "the victim's PodGroup is created, with its own size");
    let owner = cluster.snapshot.groups.values().next().unwrap().owner.clone().unwrap();
    assert_eq!(&*owner.uid, DRIVER_UID);
}

#[test]
fn recreated_driver_owns_podgroup_while_old_executor_terminates() {
    let mut cluster = victim(3);
    for id in 1..=3 {
        cluster.executor(id, "Running");
    }
    cluster.settle();
    // The node is lost: the pod runs and is being deleted, and another driver has its driver's name.
    let lost = forged("nb-exec-3", 3).owned_by("Pod", "nb-driver", DRIVER_UID).stored("uid-3").deleting();
    cluster.delete_pod(1).delete_pod(2).observe(&lost);
    cluster.observe(&driver().stored("another-uid"));
    let next = answer(&executor(4).created_by_pod("nb-driver", "another-uid"), &cluster.snapshot, &cluster.policies);
    cluster.observe(&PodBuilder(next.object).stored("e4").phase("Pending")).settle();
    let owner = cluster.snapshot.groups.values().next().unwrap().owner.clone().unwrap();
    assert_eq!(&*owner.uid, "another-uid", "{:?}", cluster.reasons);
}

#[test]
fn forged_statefulset_owner_does_not_change_podgroup() {
    let mut cluster = GangCluster::volcano();
    cluster.snapshot.apply(RelatedChange::SigningKey(Some(signing_key())));
    cluster.observe(&driver().ip("10.0.0.1"));
    let controller = "system:serviceaccount:kube-system:statefulset-controller";
    let admitted = |name: &str, host: &str, by: &str, cluster: &GangCluster| {
        let pod = pod(name).executor_of(APP, 0).label("spark-exec-id", "EXECID").driver_url(host);
        let pod = pod.owned_by("StatefulSet", "set", "set-uid");
        let outcome = answer(&pod.created_by(by), &cluster.snapshot, &cluster.policies);
        PodBuilder(outcome.object).stored(name).phase("Pending")
    };
    let first = admitted("set-0", "10.0.0.1", controller, &cluster);
    let group = first.0["metadata"]["annotations"]["scheduling.k8s.io/group-name"].as_str().unwrap().to_owned();
    cluster.observe(&first).settle();
    let owner = |cluster: &GangCluster| {
        cluster.snapshot.groups.values().map(|g| g.owner.clone().unwrap().uid).collect::<Vec<_>>()
    };
    assert_eq!(owner(&cluster).iter().map(|uid| &**uid).collect::<Vec<_>>(), [DRIVER_UID]);
    let before = cluster.groups()[&group].clone();
    // The same owner, claimed by a user whose executor connects to the user's own driver.
    cluster.observe(&pod("evil").stored("evil-uid").driver_of("spark-evil").ip("10.0.0.66").phase("Running"));
    let claims = admitted("evil-0", "10.0.0.66", "eve", &cluster).label("spark-exec-id", "0");
    assert_ne!(claims.0["metadata"]["annotations"]["scheduling.k8s.io/group-name"], group);
    cluster.observe(&claims).settle();
    assert_eq!(cluster.groups()[&group], before);
    // An owner of another kind with the same uid, which no longer exists: the driver of the executors still exists.
    let other_kind = forged("evil-1", 0).owned_by("Pod", "deleted", "set-uid");
    cluster.observe(&other_kind).settle();
    assert_eq!(cluster.groups()[&group], before);
}

#[test]
fn executors_without_valid_signature_keep_their_podgroup() {
    // Unsigned, under a policy whose gang names contain no driver: no replica can compute the name again.
    let mut cluster = GangCluster::volcano();
    let unsigned = answer(&executor(1).created_by("edge"), &cluster.snapshot, &cluster.policies);
    cluster.snapshot.apply(RelatedChange::SigningKey(Some(signing_key())));
    let pod = PodBuilder(unsigned.object).stored("e1").phase("Pending");
    let group = pod.0["metadata"]["annotations"]["scheduling.k8s.io/group-name"].as_str().unwrap().to_owned();
    cluster.observe(&pod).settle();
    assert!(cluster.groups().contains_key(&group));
    // A new key proves nothing about earlier executors; their PodGroup stays as long as they name it.
    let mut cluster = victim(2);
    cluster.snapshot.apply(RelatedChange::SigningKey(Some(Key::new(&[9; 32]))));
    cluster.settle();
    assert_eq!(spec(&cluster)["minMember"], 3);
    assert!(!cluster.has_reason(Reason::GroupDeleted));
}

#[test]
fn foreign_driver_label_does_not_hide_driver_of_same_creator() {
    let mut cluster = GangCluster::volcano();
    cluster.snapshot.apply(RelatedChange::SigningKey(Some(signing_key())));
    // An account that creates the driver and its executors for another client.
    let policies = only_never(policy("volcano"), &["syncer"]);
    let driver_outcome = answer(&pod("nb-driver").driver_of(APP).created_by("syncer"), &cluster.snapshot, &policies);
    cluster.observe(
        &PodBuilder(driver_outcome.object)
            .annotation("spark-usher.io/min-member", "3")
            .stored(DRIVER_UID)
            .phase("Running"),
    );
    cluster.observe(&pod("aaa").driver_of(APP).stored("evil-uid").phase("Running"));
    let executor_outcome = answer(&executor(1).created_by("syncer"), &cluster.snapshot, &policies);
    cluster.observe(&PodBuilder(executor_outcome.object).stored("e1").phase("Pending")).settle();
    let group = cluster.snapshot.groups.values().next().unwrap();
    assert_eq!(group.owner.as_ref().map(|owner| &*owner.uid), Some(DRIVER_UID));
    assert_eq!(group.spec["minMember"], 3);
}

#[test]
fn executors_of_two_creators_form_two_executor_sets() {
    let (mut snapshot, policies) = (signing(), only(policy("yunikorn")));
    for (id, user) in [(1, "eve"), (2, "adam"), (3, "eve")] {
        let outcome = answer(&executor(id).created_by(user), &snapshot, &policies);
        observe(&mut snapshot, &PodBuilder(outcome.object).stored(&format!("e{id}")));
    }
    let key = usher_spark::ids::AppKey::new("default", APP);
    let app = snapshot.app("default", APP).unwrap();
    let sets = usher_core::ownership::liveness::executor_sets(&key, app, &snapshot, std::iter::empty(), |_| None);
    let mut sizes: Vec<usize> = sets.iter().map(|set| set.index.unwrap().total).collect();
    sizes.sort_unstable();
    assert_eq!(sizes, [1, 2]);
}

#[test]
fn drivers_with_similar_names_get_distinct_gangs() {
    let policies = only(policy("volcano"));
    let group = |name: &str, uid: &str| {
        let outcome = answer(&executor(1).created_by_pod(name, uid), &signing(), &policies);
        outcome.object["metadata"]["annotations"]["scheduling.k8s.io/group-name"].clone()
    };
    assert_ne!(group("nb-driver", "a"), group("nb.driver", "b"));
    let long = "d".repeat(60);
    assert_ne!(group(&format!("{long}-1"), "a"), group(&format!("{long}-2"), "b"));
}

fn claim() -> impl Strategy<Value = PodBuilder> {
    let owners = prop_oneof![
        Just(None),
        Just(Some(("nb-driver", DRIVER_UID))),
        Just(Some(("nb-driver", "0"))),
        Just(Some(("evil", "evil-uid"))),
        Just(Some(("absent", "absent"))),
    ];
    let phase = prop_oneof![Just("Pending"), Just("Running"), Just("Succeeded"), Just("Failed")];
    (0u32..60, owners, phase, any::<[bool; 4]>()).prop_map(|(id, owner, phase, [is_driver, copies, inactive, url])| {
        let name = format!("evil-{id}");
        let mut pod = if copies { forged(&name, id) } else { pod(&name).executor_of(APP, id).stored(&name) };
        if is_driver {
            pod = pod.driver_of(APP).ip("10.0.0.66").annotation("spark-usher.io/min-member", "1000");
        }
        if let Some((name, uid)) = owner {
            pod = pod.owned_by("Pod", name, uid);
        }
        if inactive {
            pod = pod.label("spark-exec-inactive", "true");
        }
        if url {
            pod = pod.driver_url("10.0.0.66");
        }
        pod.phase(phase)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Whatever other pods claim, the victim's PodGroup is created and belongs to its driver, requests the same resources for
    /// each member, and names the same queue. At most its size is smaller.
    #[test]
    fn forged_pods_change_neither_owner_queue_nor_member_resources_of_podgroup(
        claims in proptest::collection::vec(claim(), 1..8), executors in 1u32..4, early: bool,
    ) {
        let baseline = victim(executors);
        let mut attacked = victim(if early { 0 } else { executors });
        for pod in &claims {
            attacked.observe(pod);
        }
        attacked.settle();
        for id in 1..=executors {
            attacked.executor(id, "Pending");
        }
        attacked.settle();
        let (baseline, attacked_spec) = (spec(&baseline), spec(&attacked));
        let expected = baseline["minMember"].as_u64().unwrap();
        let actual = attacked_spec["minMember"].as_u64().unwrap();
        prop_assert!((1..=expected).contains(&actual), "{} {}", actual, expected);
        prop_assert!(actual >= u64::from(executors).min(expected), "the victim's own executors count: {}", actual);
        prop_assert_eq!(attacked_spec.get("queue"), baseline.get("queue"));
        let cpu = attacked_spec["minResources"]["cpu"].as_str().unwrap().parse::<u64>().unwrap();
        prop_assert_eq!(cpu, actual, "one CPU for each member");
        let group = attacked.snapshot.groups.iter().find(|(key, _)| &*key.name == GROUP).unwrap().1;
        prop_assert_eq!(group.owner.as_ref().map(|owner| &*owner.uid), Some(DRIVER_UID));
        // No executor of the victim got another owner.
        for id in 1..=executors {
            let name = format!("nb-exec-{id}");
            let (_, executor) = attacked.snapshot.executor("default", &name).unwrap();
            prop_assert_eq!(executor.template.owner.as_ref().map(|owner| &*owner.uid), Some(DRIVER_UID));
        }
    }
}
