//! Validation of what a pod requires of its node, against the node pools of the policies.

use std::sync::Arc;

use crate::support::*;
use crate::validation::*;
use serde_json::{Value, json};
use usher_core::policy::{Policies, Policy, Validate};
use usher_core::reason::Reason;
use usher_core::snapshot::Snapshot;

#[test]
fn pod_of_other_scheduler_on_node_pool_is_a_violation() {
    let elsewhere = |pod: PodBuilder| violations(&review(&pod.0, person()), &Snapshot::default());
    let other = || {
        // With another scheduler, which the policy retains.
        executor(1).spec("schedulerName", "yunikorn")
    };
    assert_eq!(elsewhere(other()), [], "it may run anywhere");
    let on_pool = other().spec("nodeSelector", json!({"pool": "spark", "disk": "ssd"}));
    assert_eq!(elsewhere(on_pool), [Reason::OtherScheduler]);
    assert_eq!(elsewhere(other().spec("nodeSelector", json!({"pool": "web"}))), []);
    let affinity = |terms: Value| {
        other().spec(
            "affinity",
            json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}),
        )
    };
    let term = |values: Value| json!({"matchExpressions": [{"key": "pool", "operator": "In", "values": values}]});
    assert_eq!(elsewhere(affinity(json!([term(json!(["spark"]))]))), [Reason::OtherScheduler]);
    assert_eq!(elsewhere(affinity(json!([term(json!(["web", "spark"]))]))), [Reason::OtherScheduler], "among others");
    let exists = json!([{"matchExpressions": [{"key": "pool", "operator": "Exists"}]}]);
    assert_eq!(elsewhere(affinity(exists)), [Reason::OtherScheduler]);
    assert_eq!(elsewhere(affinity(json!([term(json!(["web"])), term(json!(["spark"]))]))), [Reason::OtherScheduler]);
    assert_eq!(elsewhere(affinity(json!([term(json!(["web"]))]))), []);
    // A pod with a scheduling gate may still get another node selector.
    let (old, new) = (other().stored("e-1"), other().stored("e-1").spec("nodeSelector", json!({"pool": "spark"})));
    assert_eq!(violations(&update(&old, &new, tenant()), &Snapshot::default()), [Reason::OtherScheduler]);
    assert_eq!(
        violations(&update(&new, &new.clone().label("a", "b"), tenant()), &Snapshot::default()),
        [],
        "the node selector is unchanged"
    );
    let on_own_pool = mutated(1).spec("nodeSelector", json!({"pool": "spark"}));
    assert_eq!(violations(&created(&on_own_pool), &Snapshot::default()), []);
    let message = validate_review(
        &review(&other().spec("nodeSelector", json!({"pool": "spark"})).0, person()),
        &Snapshot::default(),
        &policies(Validate::Warn),
    );
    let message = message.response["warnings"][0].as_str().unwrap().to_owned();
    assert!(message.contains("pool=spark") && message.contains("volcano") && message.contains("yunikorn"), "{message}");
    assert!(message.chars().count() <= 256);
}

/// Nodes s-0 to s-2 of the pool, which also have accelerators, w-0 and the cordoned w-1 without them.
fn with_nodes() -> Snapshot {
    let node = |name: String, pool: &str| {
        let labels = vec![("pool", pool.to_owned()), ("kubernetes.io/hostname", format!("host-{name}"))];
        (name, labels)
    };
    let mut nodes: Vec<_> = (0..3).map(|n| node(format!("s-{n}"), "spark")).collect();
    nodes.iter_mut().for_each(|(_, labels)| labels.push(("gpu", "1".to_owned())));
    nodes.extend((0..2).map(|n| node(format!("w-{n}"), "web")));
    let mut snapshot = Snapshot::default();
    list_nodes(&mut snapshot, &nodes);
    for name in ["w-1", "s-2"] {
        let mut node = (*snapshot.nodes[name]).clone();
        node.cordoned = name == "w-1";
        node.labels.insert("zone".into(), "x".into());
        snapshot.nodes.insert(name.into(), node.into());
    }
    snapshot
}

#[test]
fn pod_that_can_only_run_on_a_node_pool_is_a_violation_however_it_says_so() {
    let snapshot = with_nodes();
    let found = |pod: PodBuilder| violations(&review(&pod.0, person()), &snapshot);
    let other = || executor(1).spec("schedulerName", "yunikorn");
    let requires = |terms: Value| {
        other().spec(
            "affinity",
            json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}),
        )
    };
    let expression = |key: &str, operator: &str, values: &[&str]| json!([{"matchExpressions": [{"key": key, "operator": operator, "values": values}]}]);
    let field = |operator: &str, name: &str| json!([{"matchFields": [{"key": "metadata.name", "operator": operator, "values": [name]}]}]);
    for pod in [
        requires(expression("pool", "NotIn", &["web"])),
        requires(expression("gpu", "Exists", &[])),
        requires(expression("gpu", "Gt", &["0"])),
        requires(expression("kubernetes.io/hostname", "In", &["host-s-0", "host-s-1"])),
        requires(field("In", "s-2")),
        other().spec("nodeName", "s-0"),
        other().spec("nodeSelector", json!({"kubernetes.io/hostname": "host-s-1"})),
        other().spec("nodeSelector", json!({"gpu": "1"})),
        requires(json!([field("In", "s-2")[0], expression("gpu", "Exists", &[])[0]])),
        // Each alternative counts for itself: the scheduler may choose that of the pool.
        requires(json!([field("In", "s-2")[0], field("In", "w-0")[0]])),
        requires(json!([expression("pool", "NotIn", &["web"])[0], expression("pool", "NotIn", &["no label!"])[0]])),
        // A cordoned node is none that a pod may use which names certain nodes.
        requires(expression("kubernetes.io/hostname", "In", &["host-s-0", "host-w-1"])),
        requires(json!([field("In", "w-1")[0], field("In", "s-1")[0]])),
    ] {
        assert_eq!(found(pod.clone()), [Reason::OtherScheduler], "{}", pod.0["spec"]);
    }
    for pod in [
        other(),
        other().spec("nodeName", "w-0"),
        other().spec("nodeName", "unknown"),
        requires(expression("pool", "In", &["web"])),
        requires(expression("gpu", "DoesNotExist", &[])),
        requires(expression("kubernetes.io/hostname", "Exists", &[])),
        requires(expression("kubernetes.io/hostname", "In", &["host-s-0", "host-w-0"])),
        requires(expression("kubernetes.io/hostname", "In", &["host-of-another-cluster"])),
        requires(field("NotIn", "s-2")),
        // All other nodes of the zone are cordoned, as in an upgrade.
        requires(expression("zone", "Exists", &[])),
        // Requirements that schedulers do not understand: they skip the term.
        requires(expression("pool", "NotIn", &["web", "no label!"])),
        requires(expression("pool", "In", &["spark", "no label!"])),
        requires(expression("gpu", "Gt", &["0", "1"])),
        requires(expression("gpu", "Exists", &["1"])),
    ] {
        assert_eq!(found(pod.clone()), [], "{}", pod.0["spec"]);
    }
    // With the scheduler of the pool, each of them is allowed.
    let own = mutated(1).spec("nodeSelector", json!({"gpu": "1"}));
    assert_eq!(violations(&created(&own), &snapshot), []);
    // A pod whose requirements are too many to be compared is one of the pool: nothing else could be enforced.
    let mut large = Snapshot::default();
    list_nodes(&mut large, &(0..500).map(|n| (format!("n-{n}"), Vec::new())).collect::<Vec<_>>());
    let many = requires(vec![expression("x", "Exists", &[])[0].clone(); 500].into());
    assert_eq!(violations(&review(&many.0, person()), &large), [Reason::OtherScheduler]);
    // Also where the comparison ends at a node outside of the pool.
    let names: Vec<String> = (0..1000).map(|n| format!("no-{n}")).chain(["s-0".to_owned()]).collect();
    let node = |name: String, pool: &str| (name.clone(), vec![("pool", pool.to_owned()), ("host", name)]);
    let nodes = (0..500).map(|n| node(format!("n-{n}"), "web")).chain([node("s-0".to_owned(), "spark")]);
    list_nodes(&mut large, &nodes.collect::<Vec<_>>());
    let only_there = requires(json!([{"matchExpressions": [{"key": "host", "operator": "In", "values": names}]}]));
    assert_eq!(violations(&review(&only_there.0, person()), &large), [Reason::OtherScheduler]);
    // Each value is not a step, nor is each policy.
    let elsewhere =
        requires(json!([{"matchExpressions": [{"key": "host", "operator": "In", "values": &names[..1000]}]}]));
    assert_eq!(violations(&review(&elsewhere.0, person()), &large), []);
    let few = requires(vec![expression("x", "Exists", &[])[0].clone(); 40].into());
    let list: Vec<Policy> = (0..9).map(|n| with_pool(&format!("pool-{n}"))).collect();
    let decision = validate_review(&review(&few.0, person()), &large, &Policies::new(list, vec![])).decision;
    assert!(!decision.reasons.contains(&Reason::OtherScheduler), "40,000 steps for all policies together");
}

/// Otherwise the webhook itself would restrict the executor to the pool: it has 40 nodes, and both of the others are suspect.
#[test]
fn nodes_of_a_pool_do_not_count_as_those_that_remain_for_a_pod_of_another_scheduler() {
    let policies = Policies::new(vec![Policy { matches: namespaces_with("env", "pool"), ..with_pool("pool") }], vec![]);
    let node = |name: String, pool: &str| (name.clone(), vec![("pool", pool.to_owned()), ("host", name)]);
    let nodes: Vec<_> =
        (0..40).map(|n| node(format!("s-{n}"), "spark")).chain((0..2).map(|n| node(format!("w-{n}"), "web"))).collect();
    let mut snapshot = signing();
    observe_namespace(&mut snapshot, "default", &[], &[]);
    list_nodes(&mut snapshot, &nodes);
    snapshot.avoided_nodes = ["w-0", "w-1"].into_iter().map(Arc::from).collect();
    let outcome = by_driver(&executor(1), &snapshot, &policies);
    assert!(outcome.object["spec"].get("affinity").is_none(), "{}", outcome.object["spec"]);
    // One that may be used remains.
    snapshot.avoided_nodes = [Arc::from("w-0")].into_iter().collect();
    let outcome = by_driver(&executor(1), &snapshot, &policies);
    assert!(outcome.object["spec"]["affinity"].to_string().contains("w-0"), "{}", outcome.object["spec"]);
    let again =
        validate_review(&PodBuilder(outcome.object).created_by_pod("nb-driver", DRIVER_UID), &snapshot, &policies);
    assert_eq!(again.decision.reasons, [Reason::Valid]);
}

fn with_pool(name: &str) -> Policy {
    Policy { name: name.into(), node_pool: [("pool".to_owned(), "spark".to_owned())].into(), ..policy("volcano") }
}
