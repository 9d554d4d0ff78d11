//! Members of a gang avoid suspect nodes only while the others have room for the gang: the affinity of pods that wait cannot be changed.

use crate::support::planned::*;
use crate::support::*;
use serde_json::{Value, json};
use usher_core::gang::{GangScheduler, Shape};
use usher_core::reason::Reason;
use usher_core::snapshot::{Group, Node, RelatedChange, Watched};

/// Nodes n0, n1 … with this many cores; the first is suspect.
fn nodes(cluster: &mut GangCluster, cores: &[u32]) {
    let node = |cores: &u32| {
        let json = json!({"metadata": {"uid": "n", "labels": {"cores": cores.to_string()}},
            "status": {"allocatable": {"cpu": cores.to_string(), "memory": "640Gi", "pods": "110"},
                "conditions": [{"type": "Ready", "status": "True"}]}});
        Node::read(&json.to_string()).unwrap()
    };
    let all = cores.iter().enumerate().map(|(i, cores)| (format!("n{i}").into(), node(cores))).collect();
    cluster.snapshot.apply(RelatedChange::Nodes(Watched::Listed(all)));
    cluster.snapshot.apply(RelatedChange::AvoidedNodes(vec!["n0".into()]));
}

/// An executor of two cores.
fn sized(id: u32) -> PodBuilder {
    let mut pod = executor(id);
    pod.0["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "2", "memory": "1Gi"}});
    pod
}

fn avoids(object: &Value) -> bool {
    object["spec"]["affinity"].to_string().contains("n0")
}

/// Schedulers whose executors wait for each other in a PodGroup.
fn all_or_nothing() -> impl Iterator<Item = &'static GangScheduler> {
    let all = usher_core::gang::TABLE.iter().copied();
    all.filter(|row| row.shapes.contains(&Shape::Executors) && !row.apis.is_empty())
}

fn cluster(row: &GangScheduler, instances: u32) -> GangCluster {
    let mut policy = policy(row.kind);
    policy.gang.shape = Shape::Executors;
    let mut cluster = GangCluster::new(policy);
    cluster.driver(&format!("spark.executor.instances={instances}"));
    cluster
}

#[test]
fn gang_that_needs_a_suspect_node_does_not_avoid_it_and_an_event_says_so() {
    assert!(all_or_nothing().count() >= 5);
    for row in all_or_nothing() {
        // Two nodes are left; nine tenths of ten cores have room for four executors.
        for (cores, instances, expected) in
            [(&[16, 10, 10][..], 8, true), (&[16, 10, 10], 9, false), (&[16, 4, 4], 4, false), (&[16, 1, 1], 1, false)]
        {
            let mut cluster = cluster(row, instances);
            nodes(&mut cluster, cores);
            let outcome = by_driver(&sized(1), &cluster.snapshot, &cluster.policies);
            assert_eq!(avoids(&outcome.object), expected, "{} {cores:?} {instances}", row.kind);
            let reasons = &outcome.decision.reasons;
            assert_eq!(reasons.contains(&Reason::NodesAvoided), expected, "{reasons:?}");
            assert_eq!(reasons.contains(&Reason::NodesNotAvoided), !expected, "{reasons:?}");
            let again = by_driver(&PodBuilder(outcome.object.clone()), &cluster.snapshot, &cluster.policies);
            assert_eq!(again.object, outcome.object, "a second call changes nothing");
            cluster.observe(&outcome.object.into_pod().stored("e1").phase("Pending")).settle();
            assert_eq!(cluster.reasons.contains(&Reason::NodesNotAvoided), !expected, "the Event on the driver");
            // The PodGroup exists now, and says the same.
            let second = by_driver(&sized(2), &cluster.snapshot, &cluster.policies);
            assert_eq!(avoids(&second.object), expected, "{} {cores:?} {instances}", row.kind);
        }
    }
}

#[test]
fn only_nodes_that_the_pod_may_use_count_as_room() {
    let mut cluster = cluster(GangScheduler::of_kind("native").unwrap(), 4);
    nodes(&mut cluster, &[8, 8, 16, 8]);
    let with = |selector: Value| {
        let mut pod = sized(1);
        pod.0["spec"]["nodeSelector"] = selector;
        avoids(&by_driver(&pod, &cluster.snapshot, &cluster.policies).object)
    };
    assert!(with(json!({})));
    assert!(with(json!({"cores": "8"})), "two others have room for three each");
    nodes(&mut cluster, &[8, 8, 16]);
    let with = |selector: Value| {
        let mut pod = sized(1);
        pod.0["spec"]["nodeSelector"] = selector;
        avoids(&by_driver(&pod, &cluster.snapshot, &cluster.policies).object)
    };
    assert!(!with(json!({"cores": "8"})), "the other has room for three");
}

#[test]
fn replacement_in_a_started_gang_avoids_the_node() {
    for row in all_or_nothing() {
        let mut cluster = cluster(row, 4);
        for id in 1..=4 {
            cluster.executor(id, "Running").settle();
        }
        nodes(&mut cluster, &[16, 4, 4]);
        cluster.delete_pod(1).settle();
        assert!(avoids(&by_driver(&sized(5), &cluster.snapshot, &cluster.policies).object), "{}", row.kind);
    }
}

#[test]
fn executor_without_a_gang_needs_no_room_for_others() {
    let mut policy = policy("none");
    policy.gang.shape = Shape::Pods;
    let mut cluster = GangCluster::new(policy);
    cluster.driver("spark.executor.instances=40");
    nodes(&mut cluster, &[16, 4, 4]);
    assert!(avoids(&by_driver(&sized(1), &cluster.snapshot, &cluster.policies).object));
}

/// Nothing is known about the nodes' resources, or about the size: as for any other executor.
#[test]
fn unknown_room_or_size_is_no_reason_to_use_a_suspect_node() {
    let mut small = cluster(GangScheduler::of_kind("volcano").unwrap(), 4);
    list_nodes(&mut small.snapshot, &["n0", "n1", "n2"].map(|name| (name.to_owned(), vec![])));
    small.snapshot.apply(RelatedChange::AvoidedNodes(vec!["n0".into()]));
    assert!(avoids(&by_driver(&sized(1), &small.snapshot, &small.policies).object));
    let mut unknown = GangCluster::new(policy("volcano"));
    unknown.observe(&driver().stored(DRIVER_UID).phase("Running"));
    nodes(&mut unknown, &[16, 1, 1]);
    assert!(avoids(&by_driver(&sized(1), &unknown.snapshot, &unknown.policies).object));
}

fn gpu_nodes(cluster: &mut GangCluster, count: usize) {
    let json = json!({"metadata": {"uid": "n"}, "status": {"allocatable": {"cpu": "16", "nvidia.com/gpu": "1", "pods": "110"},
        "conditions": [{"type": "Ready", "status": "True"}]}});
    let all = (0..count).map(|i| (format!("n{i}").into(), Node::read(&json.to_string()).unwrap())).collect();
    cluster.snapshot.apply(RelatedChange::Nodes(Watched::Listed(all)));
    cluster.snapshot.apply(RelatedChange::AvoidedNodes(vec!["n0".into()]));
}

/// Daemons use no devices, and an executor that fills a node is placed on it.
#[test]
fn devices_and_whole_nodes_count_as_room() {
    let mut cluster = cluster(GangScheduler::of_kind("volcano").unwrap(), 4);
    for (nodes, expected) in [(5, true), (4, false)] {
        gpu_nodes(&mut cluster, nodes);
        for requests in [json!({"cpu": "1", "nvidia.com/gpu": "1"}), json!({"cpu": "15500m"})] {
            let mut pod = executor(1);
            pod.0["spec"]["containers"][0]["resources"] = json!({"requests": requests});
            assert_eq!(avoids(&by_driver(&pod, &cluster.snapshot, &cluster.policies).object), expected, "{requests}");
        }
    }
}

#[test]
fn gang_by_annotations_needs_room_until_it_has_run() {
    let mut koordinator = policy("koordinator");
    koordinator.gang.membership = usher_core::gang::Membership::Annotations;
    let mut cluster = GangCluster::new(koordinator);
    cluster.driver("spark.executor.instances=9");
    nodes(&mut cluster, &[16, 9, 9]);
    let check = |cluster: &GangCluster| avoids(&by_driver(&sized(20), &cluster.snapshot, &cluster.policies).object);
    assert!(!check(&cluster));
    for id in 1..=9 {
        cluster.executor(id, "Running");
    }
    assert!(check(&cluster), "all have run");
}

#[test]
fn pod_group_of_an_earlier_application_says_nothing_about_this_gang() {
    let row = GangScheduler::of_kind("volcano").unwrap();
    let mut cluster = cluster(row, 4);
    for id in 1..=4 {
        cluster.executor(id, "Running").settle();
    }
    assert!(cluster.snapshot.groups.values().all(|group| group.started));
    nodes(&mut cluster, &[16, 4, 4]);
    let (key, group) =
        cluster.snapshot.groups.iter().next().map(|(key, group)| (key.clone(), (**group).clone())).unwrap();
    let old = usher_core::snapshot::Owner::of_pod("nb-driver".into(), "an-earlier-uid".into());
    for left in [Group { owner: Some(old), ..group.clone() }, Group { deleting: true, ..group }] {
        cluster.snapshot.apply(RelatedChange::Groups(key.scheduler, Watched::Upserted(key.clone(), left)));
        assert!(!avoids(&by_driver(&sized(9), &cluster.snapshot, &cluster.policies).object));
    }
}

/// The annotation depends on nodes, which change between two reviews, and a tenant may write it.
#[test]
fn annotation_of_another_decision_is_removed_and_not_held_against_the_pod() {
    let mut cluster = cluster(GangScheduler::of_kind("volcano").unwrap(), 4);
    nodes(&mut cluster, &[16, 4, 4]);
    let first = by_driver(&sized(1), &cluster.snapshot, &cluster.policies).object;
    let key = "spark-usher.io/avoids-nodes";
    assert_eq!(first["metadata"]["annotations"][key], "false");
    nodes(&mut cluster, &[16, 14, 14]);
    let second = by_driver(&PodBuilder(first), &cluster.snapshot, &cluster.policies);
    assert!(avoids(&second.object) && second.object["metadata"]["annotations"].get(key).is_none());
    // No node is suspect.
    cluster.snapshot.apply(RelatedChange::AvoidedNodes(vec![]));
    let forged = by_driver(&sized(2).annotation(key, "false"), &cluster.snapshot, &cluster.policies);
    assert!(forged.object["metadata"]["annotations"].get(key).is_none());
}

#[test]
fn requirements_that_are_too_many_to_count_leave_the_node_in_use() {
    let mut cluster = cluster(GangScheduler::of_kind("volcano").unwrap(), 30_000);
    nodes(&mut cluster, &vec![16; 3000]);
    let mut pod = sized(1);
    let terms = json!([{"matchExpressions": vec![json!({"key": "cores", "operator": "Exists"}); 20]}]);
    pod.0["spec"]["affinity"] =
        json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}});
    let outcome = by_driver(&pod, &cluster.snapshot, &cluster.policies);
    assert!(!avoids(&outcome.object) && outcome.decision.reasons.contains(&Reason::NodesNotAvoided));
}
