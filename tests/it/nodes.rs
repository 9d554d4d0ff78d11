//! Nodes that refuse or break executors: when they are suspect, for how long, and who avoids them.

use std::time::Duration;

use crate::support::controller_harness::*;
use crate::support::*;
use serde_json::{Value, json};
use usher_core::controller::{Lookup, LookupResult, NodeReport};
use usher_core::leader::LeaderState;
use usher_core::nodes::FaultKind;
use usher_core::policy::{Finished, NodeSettings};
use usher_core::reason::Reason;
use usher_core::snapshot::{Node, PodChange, RelatedChange, Watched};
use usher_report::views;

struct NodeCluster {
    harness: ControllerHarness,
    version: u32,
    reports: Vec<NodeReport>,
    /// How often the pods of a node were read, and whether that succeeds.
    reads: usize,
    answers: bool,
    schedulers: Vec<(String, usize)>,
}

fn node_name(number: usize) -> String {
    format!("node-{number}")
}

impl NodeCluster {
    fn new(nodes: usize, settings: NodeSettings) -> NodeCluster {
        let mut harness = ControllerHarness::new(Finished::Report);
        harness.policies = harness.policies.clone().with_nodes(settings);
        let node = |uid: String| Node {
            uid: uid.into(),
            kubelet: "v1.31.4".into(),
            ready: true,
            cordoned: false,
            allocatable: Default::default(),
            labels: [].into(),
        };
        let all = (1..=nodes).map(|number| (node_name(number).into(), node(format!("uid-{number}")))).collect();
        harness.apply(RelatedChange::Nodes(Watched::Listed(all)));
        harness.step_after(1);
        let schedulers =
            [("default-scheduler", 12), ("yunikorn", 9)].map(|(name, count)| (name.to_owned(), count)).into();
        NodeCluster { harness, version: 100, reports: Vec::new(), reads: 0, answers: true, schedulers }
    }

    /// An executor of this application on this node, with this status.
    fn executor(&mut self, app: &str, number: u32, node: usize, status: &Value) -> PodBuilder {
        self.version += 1;
        let name = format!("{app}-exec-{number}");
        let mut pod =
            pod(&name).executor_of(app, number).stored(&format!("uid-{name}")).spec("nodeName", node_name(node));
        pod.0["status"] = status.clone();
        version(pod, self.version)
    }

    fn observe(&mut self, app: &str, number: u32, node: usize, status: &Value) {
        let pod = self.executor(app, number, node, status);
        self.harness.observe(&pod);
    }

    /// It runs, and then exits in this way.
    fn fails(&mut self, app: &str, number: u32, node: usize, status: &Value) {
        self.observe(app, number, node, &json!({"phase": "Pending"}));
        self.observe(app, number, node, status);
        self.run(2);
    }

    fn run(&mut self, seconds: u64) {
        for _ in 0..seconds {
            let effects = self.harness.step_after(1);
            self.reports.extend(effects.node_reports);
            for read in effects.lookups.iter().filter(|read| matches!(read, Lookup::NodePods(_))) {
                self.reads += 1;
                let schedulers = self.schedulers.iter().map(|(name, count)| (name.as_str().into(), *count)).collect();
                let answer = if self.answers { LookupResult::NodePods(schedulers) } else { LookupResult::Failed };
                let now = self.harness.now();
                self.harness.controller.lookup_answered(read, answer, now);
            }
        }
    }

    fn suspects(&self) -> Vec<String> {
        self.harness.controller.nodes().suspects().map(|(name, _)| name.to_string()).collect()
    }

    fn avoided(&self) -> Vec<String> {
        self.harness.controller.snapshot().avoided_nodes.iter().map(|name| name.to_string()).collect()
    }

    fn kinds(&self, node: usize) -> Vec<FaultKind> {
        let record = self.harness.controller.nodes().of(&node_name(node)).cloned().unwrap_or_default();
        record.faults.iter().map(|fault| fault.kind).collect()
    }
}

fn out_of_cpu() -> Value {
    json!({"phase": "Failed", "reason": "OutOfcpu",
        "message": "Pod was rejected: Node didn't have enough resource: cpu, requested: 150, used: 11388, capacity: 11500"})
}

fn waiting(reason: &str, message: &str) -> Value {
    json!({"phase": "Pending", "containerStatuses": [{"name": "main", "image": "i",
        "state": {"waiting": {"reason": reason, "message": message}}}]})
}

fn avoiding() -> NodeSettings {
    NodeSettings { avoid: true, ..NodeSettings::default() }
}

#[test]
fn node_is_suspect_after_executors_of_two_applications_failed_and_is_reported_with_the_cure() {
    let mut cluster = NodeCluster::new(50, avoiding());
    cluster.fails("a", 1, 7, &out_of_cpu());
    cluster.fails("a", 2, 7, &out_of_cpu());
    assert_eq!(cluster.suspects(), [""; 0]);
    cluster.fails("b", 1, 7, &out_of_cpu());
    assert_eq!((cluster.suspects(), cluster.avoided()), (vec![node_name(7)], vec![node_name(7)]));
    let NodeReport { node, uid, message } = cluster.reports.remove(0);
    assert_eq!((&*node, &*uid), ("node-7", "uid-7"));
    let expected = "3 Spark executors of 2 applications failed here within 30 minutes, most by out-of-resource (kubelet v1.31.4): \
        usually two schedulers";
    let ending = "; more than one scheduler places pods here: default-scheduler (12), yunikorn (9); new executors avoid the node";
    assert!(message.starts_with(expected) && message.ends_with(ending), "{message}");
    let now = cluster.harness.now();
    let report = views::nodes(cluster.harness.controller.snapshot(), &cluster.harness.history(), None, now);
    assert_eq!((report.total, report.suspect, report.avoided, report.nodes.len()), (50, 1, 1, 1));
    let node = &report.nodes[0];
    assert_eq!(
        (node.kubelet.as_deref(), node.schedulers["yunikorn"], node.faults["out-of-resource"]),
        (Some("v1.31.4"), 9, 3)
    );
    assert!(node.recent.iter().all(|fault| fault.counts) && node.suspicion.as_ref().unwrap().applications == 2);
    let record = cluster.harness.controller.nodes().of("node-7").unwrap().clone();
    assert!(record.faults.iter().all(|fault| fault.resource.as_deref() == Some("cpu")));
    // It is reported again after an hour of suspicion, and then only if executors failed again.
    cluster.run(3500);
    assert!(cluster.reports.is_empty());
    for app in ["c", "d", "e"] {
        cluster.fails(app, 1, 7, &out_of_cpu());
    }
    cluster.run(200);
    assert_eq!(cluster.reports.len(), 1);
    // One application alone prolongs nothing.
    cluster.run(1800);
    cluster.fails("e", 2, 7, &out_of_cpu());
    // Suspicion ends an hour after the failures of several applications.
    cluster.run(1450);
    assert_eq!(cluster.suspects(), [node_name(7)]);
    cluster.run(200);
    assert_eq!((cluster.suspects(), cluster.avoided()), (vec![], vec![]));
    cluster.run(3600);
    assert!(cluster.harness.controller.nodes().of("node-7").is_none(), "it is forgotten");
}

#[test]
fn broken_application_condemns_no_node_and_old_failures_do_not_count() {
    let mut cluster = NodeCluster::new(50, avoiding());
    for number in 1..=200 {
        cluster.fails("broken", number, 1 + (number as usize % 5), &out_of_cpu());
    }
    assert_eq!(cluster.suspects(), [""; 0]);
    // The failures of others, one by one, over hours.
    for number in 1..=6 {
        cluster.run(1801);
        cluster.fails(&format!("other-{number}"), 1, 9, &out_of_cpu());
    }
    assert_eq!(cluster.suspects(), [""; 0]);
    // The broken application does not displace what others report.
    cluster.fails("x", 1, 9, &out_of_cpu());
    for number in 300..=400 {
        cluster.fails("broken", number, 9, &out_of_cpu());
    }
    assert_eq!(cluster.suspects(), [node_name(9)]);
    let record = cluster.harness.controller.nodes().of("node-9").unwrap().clone();
    assert!(record.faults.iter().any(|fault| fault.app.selector() == "x"));
}

#[test]
fn what_a_pod_can_cause_itself_counts_only_if_its_application_runs_elsewhere() {
    let failing = [
        waiting("CreateContainerError", "failed to reserve container name \"x\""),
        waiting("ErrImagePull", "failed to pull image: dial tcp 10.0.0.1:443: i/o timeout"),
        json!({"phase": "Failed", "reason": "TopologyAffinityError", "message": "Resources cannot be allocated with Topology locality"}),
        json!({"phase": "Failed", "containerStatuses": [{"name": "main",
            "state": {"terminated": {"exitCode": 137, "reason": "Error"}}}]}),
    ];
    for status in failing {
        let mut cluster = NodeCluster::new(10, NodeSettings::default());
        for app in ["a", "b", "c"] {
            cluster.fails(app, 1, 3, &status);
        }
        cluster.run(70);
        assert_eq!((cluster.suspects().len(), cluster.kinds(3).len()), (0, 3), "{status}");
        for app in ["d", "e", "f"] {
            cluster.observe(app, 2, 4, &json!({"phase": "Running"}));
            cluster.fails(app, 1, 3, &status);
        }
        cluster.run(70);
        assert_eq!(cluster.suspects(), [node_name(3)], "{status}");
        assert!(cluster.avoided().is_empty(), "avoid is off");
    }
}

#[test]
fn suspects_of_a_large_outage_are_judged_and_forgotten_in_turn() {
    let mut cluster = NodeCluster::new(400, NodeSettings::default());
    // Three applications on three nodes each: all 300 nodes are suspect.
    let apps = |of: usize| ["a", "b", "c", "d"].map(|app| format!("{app}{of}"));
    for (of, app) in (0..100).flat_map(|of| apps(of).map(|app| (of, app))) {
        (1..=3).for_each(|node| cluster.observe(&app, node, of * 3 + node as usize, &out_of_cpu()));
    }
    cluster.run(20);
    assert_eq!(cluster.suspects().len(), 300);
    // Some fail on a fourth node and run on none: they are broken themselves. By name, their nodes are the first, in the middle, and the
    // last.
    for of in [0, 32] {
        apps(of).iter().for_each(|app| cluster.observe(app, 4, 301 + of, &out_of_cpu()));
        cluster.run(31);
        assert!(!cluster.suspects().iter().any(|node| (1..=3).any(|number| *node == node_name(of * 3 + number))));
    }
    assert_eq!(cluster.suspects().len(), 294);
    let known = |cluster: &NodeCluster| cluster.harness.controller.nodes().nodes().count();
    let mut counts = vec![known(&cluster)];
    for seconds in [3540].into_iter().chain([15; 12]) {
        cluster.harness.step_after(seconds);
        counts.push(known(&cluster));
    }
    counts.dedup();
    // The last one failed later.
    assert_eq!(counts, [302, 46, 1, 0], "1,024 faults are forgotten every 15 seconds");
    assert!(cluster.suspects().is_empty());
}

#[test]
fn nothing_is_left_when_the_watch_of_nodes_is_turned_off() {
    let mut cluster = NodeCluster::new(400, avoiding());
    for (node, app) in (1..=400).flat_map(|node| ["a", "b", "c"].map(|app| (node, format!("{app}{node}")))) {
        cluster.observe(&app, 1, node, &out_of_cpu());
    }
    cluster.run(20);
    assert_eq!(cluster.suspects().len(), 400);
    cluster.harness.policies =
        cluster.harness.policies.clone().with_nodes(NodeSettings { enabled: false, ..avoiding() });
    cluster.run(16);
    assert_eq!((cluster.suspects().len(), cluster.harness.controller.nodes().nodes().count()), (0, 0));
    assert!(cluster.avoided().is_empty());
}

#[test]
fn executor_that_is_bound_and_not_started_counts_after_five_minutes() {
    for leader_state in [LeaderState::Leader, LeaderState::Follower] {
        let mut cluster = NodeCluster::new(10, NodeSettings::default());
        cluster.harness.leader_state = leader_state;
        for app in ["a", "b", "c"] {
            cluster.observe(app, 2, 4, &json!({"phase": "Running"}));
            cluster.observe(app, 1, 3, &waiting("ContainerCreating", ""));
        }
        cluster.run(290);
        assert!(cluster.kinds(3).is_empty());
        cluster.run(80);
        assert_eq!((cluster.kinds(3), cluster.suspects()), (vec![FaultKind::NotStarted; 3], vec![node_name(3)]));
    }
}

#[test]
fn faults_of_pods_and_of_applications_are_no_faults_of_nodes() {
    let mut cluster = NodeCluster::new(10, NodeSettings::default());
    let terminated = |code: i32, reason: &str, message: &str| {
        json!({"phase": "Failed", "containerStatuses": [{"name": "main",
            "state": {"terminated": {"exitCode": code, "reason": reason, "message": message}}}]})
    };
    let harmless = [
        terminated(1, "Error", ""),
        terminated(137, "OOMKilled", ""),
        terminated(52, "Error", ""),
        terminated(127, "StartError", "exec: \"sparkk\": executable file not found in $PATH"),
        // An application can write this (terminationMessagePath).
        terminated(1, "Error", "not enough cpus available to satisfy request"),
        json!({"phase": "Failed", "reason": "Evicted",
            "message": "Container spark-kubernetes-executor exceeded its local ephemeral storage limit \"20Mi\"."}),
        json!({"phase": "Failed", "reason": "NodeShutdown", "message": "Pod was rejected as node is shutting down."}),
        json!({"phase": "Failed", "reason": "DeadlineExceeded"}),
        waiting("ErrImagePull", "rpc error: code = NotFound desc = docker.io/no/such:1: not found"),
        waiting("ImagePullBackOff", "Back-off pulling image \"no/such\""),
        waiting("CreateContainerConfigError", "secret \"x\" not found"),
        waiting("CrashLoopBackOff", "back-off 5m0s restarting failed container"),
    ];
    for (number, status) in harmless.iter().enumerate() {
        let app = format!("app-{number}");
        cluster.observe(&app, 2, 4, &json!({"phase": "Running"}));
        cluster.fails(&app, 1, 3, status);
        cluster.run(70);
        assert!(cluster.kinds(3).is_empty(), "{status}");
    }
}

#[test]
fn kubelets_words_name_the_kind_of_fault() {
    let faults: Vec<Value> = serde_json::from_str(include_str!("../fixtures/kubelet/faults.json")).unwrap();
    let mut named = std::collections::BTreeSet::new();
    for fault in faults {
        let mut cluster = NodeCluster::new(10, NodeSettings::default());
        cluster.fails("a", 1, 3, &fault["status"]);
        cluster.run(70);
        let found: Vec<&str> = cluster.kinds(3).iter().map(|kind| kind.as_str()).collect();
        let expected: Vec<&str> = fault["node"].as_str().into_iter().collect();
        assert_eq!(found, expected, "{fault}");
        named.extend(found.iter().map(|kind| kind.to_string()));
    }
    for kind in ["out-of-resource", "cpu-manager", "topology", "device", "container-error", "pressure"] {
        assert!(named.contains(kind), "no fixture has {kind}");
    }
}

#[test]
fn share_of_the_cluster_bounds_how_many_nodes_are_avoided() {
    let mut cluster = NodeCluster::new(40, avoiding());
    for node in [30, 10, 20] {
        for app in ["a", "b", "c"] {
            cluster.fails(app, u32::try_from(node).unwrap(), node, &out_of_cpu());
        }
    }
    assert_eq!(cluster.suspects().len(), 3);
    // The first ones stay, so that the choice changes rarely.
    assert_eq!(cluster.avoided(), [node_name(10), node_name(30)]);
    // A node that is deleted is no longer suspect, and frees its place.
    cluster.harness.apply(RelatedChange::Nodes(Watched::Removed(node_name(30).into())));
    cluster.run(20);
    assert_eq!((cluster.suspects().len(), cluster.avoided()), (2, vec![node_name(10)]), "39 nodes: 5 % is one");
    // Turned off, nothing is avoided.
    cluster.harness.policies = cluster.harness.policies.clone().with_nodes(NodeSettings::default());
    cluster.run(1);
    assert!(cluster.avoided().is_empty() && cluster.suspects().len() == 2);
    let off = NodeSettings { enabled: false, ..NodeSettings::default() };
    cluster.harness.policies = cluster.harness.policies.clone().with_nodes(off);
    cluster.run(20);
    assert!(cluster.suspects().is_empty());
    cluster.fails("d", 1, 5, &out_of_cpu());
    assert!(cluster.kinds(5).is_empty());
}

#[test]
fn executors_that_a_deleted_node_lost_make_nothing_suspect() {
    // An autoscaler, or a tenant who binds pods to a node that never existed.
    let mut cluster = NodeCluster::new(50, avoiding());
    let lost = json!({"phase": "Failed", "reason": "NodeLost", "message": "Node node-77 which was running the pod is unresponsive"});
    for app in ["a", "b", "c", "d"] {
        cluster.fails(app, 1, 77, &lost);
    }
    cluster.run(60);
    assert_eq!((cluster.kinds(77), cluster.suspects().len(), cluster.reports.len()), (vec![], 0, 0));
}

#[test]
fn made_up_nodes_displace_nothing() {
    let mut cluster = NodeCluster::new(50, avoiding());
    for app in ["a", "b", "c"] {
        cluster.fails(app, 1, 7, &out_of_cpu());
    }
    // A tenant binds pods to nodes that do not exist; the garbage collector of pods fails them.
    let lost = json!({"phase": "Failed", "conditions": [
        {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC", "message": "PodGC: node no longer exists"}]});
    for number in 0..5100 {
        cluster.observe("evil", number, 1000 + number as usize, &lost);
    }
    cluster.run(120);
    assert_eq!((cluster.suspects(), cluster.avoided()), (vec![node_name(7)], vec![node_name(7)]));
    assert_eq!(cluster.harness.controller.nodes().nodes().count(), 1);
}

#[test]
fn job_that_is_submitted_again_is_one_application() {
    let mut cluster = NodeCluster::new(50, avoiding());
    for attempt in ["nightly-1f2e3d9a8b7c6d5e", "nightly-9a8b7c6d5e4f3a2b", "nightly-0011223344556677"] {
        cluster.fails(attempt, 1, 3, &out_of_cpu());
    }
    assert_eq!((cluster.kinds(3).len(), cluster.suspects().len()), (3, 0));
    cluster.fails("hourly-0011223344556677", 1, 3, &out_of_cpu());
    assert_eq!(cluster.suspects(), [node_name(3)]);
}

#[test]
fn pod_that_exceeds_its_request_is_no_pressure_of_the_node() {
    let mut cluster = NodeCluster::new(50, avoiding());
    let status = json!({"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: ephemeral-storage. Threshold \
        quantity: 10Gi, available: 1Gi. Container main was using 400Gi, request is 0, has larger consumption of ephemeral-storage. "});
    for app in ["a", "b", "c"] {
        cluster.fails(app, 1, 3, &status);
    }
    assert_eq!(cluster.kinds(3), []);
}

#[test]
fn drained_node_is_not_lost() {
    let drained = |containers: &Value| {
        json!({"phase": "Failed", "containerStatuses": containers, "conditions": [{"type": "DisruptionTarget", "status": "True",
            "reason": "DeletionByTaintManager", "message": "Taint manager: deleting due to NoExecute taint"}]})
    };
    let mut cluster = NodeCluster::new(50, avoiding());
    // Its kubelet reports how the container ended.
    let ended = drained(&json!([{"name": "main", "state": {"terminated": {"exitCode": 143, "reason": "Error"}}}]));
    for app in ["a", "b", "c"] {
        cluster.fails(app, 1, 3, &ended);
    }
    assert_eq!(cluster.kinds(3), []);
    for app in ["a", "b", "c"] {
        cluster.fails(app, 2, 4, &drained(&json!([])));
    }
    assert_eq!(cluster.kinds(4), [FaultKind::Lost; 3]);
}

#[test]
fn fault_of_an_executor_that_starts_after_all_is_void() {
    let mut cluster = NodeCluster::new(50, avoiding());
    let failing = waiting("ErrImagePull", "failed to pull image: dial tcp 10.0.0.1:443: i/o timeout");
    for app in ["a", "b", "c"] {
        cluster.observe(app, 2, 4, &json!({"phase": "Running"}));
        cluster.fails(app, 1, 3, &failing);
    }
    cluster.run(30);
    assert_eq!(cluster.kinds(3), [], "it is tried again");
    cluster.run(60);
    assert_eq!(cluster.suspects(), [node_name(3)]);
    for app in ["a", "b", "c"] {
        cluster.observe(app, 1, 3, &json!({"phase": "Running"}));
    }
    cluster.run(60);
    assert_eq!((cluster.kinds(3).len(), cluster.suspects().len(), cluster.avoided().len()), (0, 0, 0));
}

#[test]
fn registry_that_fails_condemns_no_node() {
    let mut cluster = NodeCluster::new(50, avoiding());
    for (node, app) in (1..=10).flat_map(|node| ["a", "b", "c"].map(|app| (node, app))) {
        cluster.observe(app, 100, 40, &json!({"phase": "Running"}));
        let failing = waiting("ErrImagePull", "failed to pull image: dial tcp 10.0.0.1:443: i/o timeout");
        cluster.observe(app, u32::try_from(node).unwrap(), node, &failing);
    }
    cluster.run(100);
    assert_eq!((cluster.kinds(3).len(), cluster.suspects().len()), (3, 0));
    // A limit of the rate says nothing about a node.
    let limited = waiting("ErrImagePull", "unexpected status from HEAD request: 429 Too Many Requests");
    cluster.fails("d", 1, 20, &limited);
    cluster.run(70);
    assert_eq!(cluster.kinds(20), []);
}

#[test]
fn node_that_made_the_sandbox_or_started_a_container_does_its_work() {
    let mut cluster = NodeCluster::new(50, NodeSettings::default());
    let pulling = json!({"phase": "Pending", "conditions": [{"type": "PodReadyToStartContainers", "status": "True"}],
        "containerStatuses": [{"name": "main", "image": "i", "state": {"waiting": {"reason": "ContainerCreating"}}}]});
    let initializing = json!({"phase": "Pending",
        "initContainerStatuses": [{"name": "init", "state": {"running": {"startedAt": "2026-11-24T10:00:00Z"}}}],
        "containerStatuses": [{"name": "main", "image": "i", "state": {"waiting": {"reason": "PodInitializing"}}}]});
    for (app, status) in [("a", &pulling), ("b", &initializing), ("c", &pulling)] {
        cluster.observe(app, 2, 4, &json!({"phase": "Running"}));
        cluster.observe(app, 1, 3, status);
    }
    cluster.run(400);
    assert_eq!(cluster.kinds(3), []);
}

#[test]
fn pending_executor_counts_wherever_it_stands_among_many_others() {
    let mut cluster = NodeCluster::new(50, NodeSettings::default());
    let pulling = json!({"phase": "Pending", "conditions": [{"type": "PodReadyToStartContainers", "status": "True"}]});
    for (app, last, others) in [("a", 2_200, json!({"phase": "Running"})), ("b", 2_200, pulling.clone())] {
        cluster.observe(app, 1, 3, &waiting("ContainerCreating", ""));
        for number in 2..last {
            cluster.observe(app, number, 4, &others);
        }
        cluster.observe(app, last, 5, &waiting("ContainerCreating", ""));
    }
    cluster.run(290);
    assert_eq!((cluster.kinds(3), cluster.kinds(5)), (vec![], vec![]));
    cluster.run(80);
    assert_eq!((cluster.kinds(3), cluster.kinds(5)), (vec![FaultKind::NotStarted; 2], vec![FaultKind::NotStarted; 2]));
}

#[test]
fn report_names_few_schedulers_without_control_characters() {
    let mut cluster = NodeCluster::new(50, avoiding());
    cluster.schedulers = (0..50).map(|number| (format!("\u{1b}[31mscheduler-{number}"), number)).collect();
    for app in ["a", "b", "c"] {
        cluster.fails(app, 1, 7, &out_of_cpu());
    }
    let message = &cluster.reports[0].message;
    let expected = "places pods here: \u{fffd}[31mscheduler-49 (49), \u{fffd}[31mscheduler-48 (48), \u{fffd}[31mscheduler-47 (47) and 47 more;";
    assert!(message.contains(expected), "{message}");
}

#[test]
fn report_does_not_wait_long_for_the_schedulers() {
    let mut cluster = NodeCluster::new(50, avoiding());
    cluster.answers = false;
    for app in ["a", "b", "c"] {
        cluster.fails(app, 1, 7, &out_of_cpu());
    }
    cluster.run(5);
    assert_eq!((cluster.reports.len(), cluster.reads), (1, 1), "the read failed");
    assert!(!cluster.reports[0].message.contains("scheduler places"), "{}", cluster.reports[0].message);
    cluster.run(1300);
    assert_eq!(cluster.reads, 3, "it is read again every ten minutes");
}

#[test]
fn follower_knows_the_same_and_reports_nothing() {
    let mut cluster = NodeCluster::new(50, avoiding());
    cluster.harness.leader_state = LeaderState::Follower;
    for app in ["a", "b", "c"] {
        cluster.fails(app, 1, 7, &out_of_cpu());
    }
    assert_eq!((cluster.avoided(), cluster.reports.len()), (vec![node_name(7)], 0));
    cluster.harness.leader_state = LeaderState::Leader;
    cluster.run(2);
    assert_eq!(cluster.reports.len(), 1, "the new leader reports it");
}

#[test]
fn executors_that_hang_on_one_node_do_not_displace_one_another() {
    let mut cluster = NodeCluster::new(50, NodeSettings::default());
    cluster.observe("a", 100, 4, &json!({"phase": "Running"}));
    for number in 1..=40 {
        cluster.observe("a", number, 3, &waiting("ContainerCreating", ""));
    }
    let faults = |cluster: &NodeCluster| cluster.harness.controller.nodes().of(&node_name(3)).cloned().unwrap().faults;
    cluster.run(370);
    let first = faults(&cluster);
    assert_eq!(first.len(), 16);
    cluster.run(300);
    assert_eq!(faults(&cluster), first);
    // Later faults displace those that are too old to count.
    cluster.run(1800);
    assert_ne!(faults(&cluster), first);
}

#[test]
fn follower_sees_a_fault_that_comes_while_a_large_application_is_examined() {
    // One part, examined again two seconds later; twenty parts, of which the first is over when the fault comes.
    for (executors, wait) in [(100, 2), (5_000, 62)] {
        let mut cluster = NodeCluster::new(50, avoiding());
        cluster.harness.leader_state = LeaderState::Follower;
        let pulling =
            json!({"phase": "Pending", "conditions": [{"type": "PodReadyToStartContainers", "status": "True"}]});
        cluster.observe("a", 1, 4, &json!({"phase": "Running"}));
        for number in 2..executors {
            cluster.observe("a", number, 3, &pulling);
        }
        cluster.run(90);
        cluster.observe("a", 50, 3, &waiting("ContainerCreating", ""));
        for step in 0..8 {
            cluster.harness.since += Duration::from_millis(300);
            cluster.harness.step_after(0);
            if step == 6 {
                cluster.observe("a", 60, 3, &waiting("CreateContainerError", "context deadline exceeded"));
            }
        }
        cluster.run(wait);
        assert_eq!(cluster.kinds(3), [FaultKind::ContainerError], "{executors}");
    }
}

#[test]
fn new_replica_learns_from_the_pods_that_are_left() {
    let mut cluster = NodeCluster::new(50, avoiding());
    let left: Vec<_> = ["a", "b", "c", "d"]
        .iter()
        .map(|app| {
            // Two of them exited long ago.
            let long_ago = ["c", "d"].contains(app);
            let finished =
                cluster.harness.now().wall - std::time::Duration::from_secs(if long_ago { 7200 } else { 60 });
            let status = json!({"phase": "Failed", "reason": "OutOfcpu", "containerStatuses": [{
                "name": "main",
                "state": {"terminated": {"exitCode": 137, "finishedAt": finished.to_string()}}}]});
            cluster.executor(app, 1, 7, &status).observation()
        })
        .collect();
    let mut harness = ControllerHarness::new(Finished::Report);
    harness.apply(PodChange::Listed(left));
    for _ in 0..3 {
        harness.step_after(1);
    }
    let record = harness.controller.nodes().of("node-7").cloned().unwrap_or_default();
    let apps: Vec<&str> = record.faults.iter().map(|fault| fault.app.selector()).collect();
    assert_eq!(apps.len(), 2, "{apps:?}");
    assert!(apps.contains(&"a") && apps.contains(&"b"));
}

#[test]
fn executor_avoids_suspect_nodes_unless_its_gang_must_be_uniform() {
    let mut snapshot = snapshot_with(&[driver()]);
    let nodes = ["bad", "worse", "good", "better"].map(|name| (name.to_owned(), vec![]));
    list_nodes(&mut snapshot, &nodes);
    snapshot.apply(RelatedChange::AvoidedNodes(vec!["bad".into(), "worse".into()]));
    let path =
        "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms/0/matchFields";
    let avoids = |outcome: &Outcome| outcome.object.pointer(path).and_then(Value::as_array).map_or(0, Vec::len);
    let outcome = by_driver(&executor(1), &snapshot, &crate::mutation::none());
    assert_eq!(avoids(&outcome), 2, "{}", outcome.patch);
    assert!(outcome.decision.reasons.contains(&Reason::NodesAvoided));
    assert!(outcome.response.get("warnings").is_none(), "a note, not a warning");
    // The webhook may be called again.
    let again = by_driver(&PodBuilder(outcome.object), &snapshot, &crate::mutation::none());
    assert!(
        again.patch.as_array().is_none_or(|ops| ops.iter().all(|op| op["path"] != "/spec/affinity")),
        "{}",
        again.patch
    );
    // A pod that is bound already, or pinned to a node.
    for pod in [
        executor(1).spec("nodeName", "bad"),
        with_node_selector(executor(1), "bad"),
        executor(1).annotation("kueue.x-k8s.io/pod-group-total-count", "3"),
        executor(1).annotation("yunikorn.apache.org/task-groups", "[]"),
    ] {
        assert_eq!(avoids(&by_driver(&pod, &snapshot, &crate::mutation::none())), 0, "{}", pod.0);
    }
    // The placeholders that the driver announced do not avoid them; without any the name of a group means nothing.
    for (groups, avoided) in [(None, 2), (Some("[]"), 0)] {
        let driver = groups.map_or(driver(), |groups| driver().annotation("yunikorn.apache.org/task-groups", groups));
        observe(&mut snapshot, &driver);
        let member = executor(1).annotation("yunikorn.apache.org/task-group-name", "spark-executor");
        assert_eq!(avoids(&by_driver(&member, &snapshot, &crate::mutation::none())), avoided, "{groups:?}");
    }
    observe(&mut snapshot, &driver());
    // One that may use a certain node only has nothing to avoid.
    assert_eq!(avoids(&by_driver(&with_node_selector(executor(1), "good"), &snapshot, &crate::mutation::none())), 0);
    let mut claims = executor(1);
    claims.0["spec"]["volumes"] = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "nb-exec-7-pvc-0"}}]);
    assert_eq!(avoids(&by_driver(&claims, &snapshot, &crate::mutation::none())), 0);
    // Drivers are placed as before.
    assert_eq!(avoids(&answer(&driver().created_by("admin"), &snapshot, &crate::mutation::none())), 0);
}

/// A tenant's terms times our nodes would be a product.
#[test]
fn affinity_grows_by_a_bounded_number_of_bytes() {
    let mut snapshot = snapshot_with(&[driver()]);
    let nodes: Vec<String> = (0..100).map(|n| format!("ip-10-0-0-{n}.eu-central-1.compute.internal")).collect();
    let good = (0..100).map(|n| format!("good-{n}"));
    let all = nodes.iter().cloned().chain(good).map(|name| (name.clone(), vec![("kubernetes.io/hostname", name)]));
    list_nodes(&mut snapshot, &all.collect::<Vec<_>>());
    snapshot.apply(RelatedChange::AvoidedNodes(nodes.iter().map(|name| name.as_str().into()).collect()));
    let with = |terms: usize, term: Value| {
        let required =
            json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": vec![term; terms]}});
        executor(1).spec("affinity", json!({"nodeAffinity": required}))
    };
    let grown = |pod: &PodBuilder| {
        let outcome = by_driver(pod, &snapshot, &crate::mutation::none());
        (outcome.object["spec"]["affinity"].to_string().len() - pod.0["spec"]["affinity"].to_string().len(), outcome)
    };
    let hostname = json!({"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "Exists"}]});
    let (few, outcome) = grown(&with(2, hostname.clone()));
    assert!((10_000..=16 << 10).contains(&few) && outcome.decision.reasons.contains(&Reason::NodesAvoided), "{few}");
    let (many, outcome) = grown(&with(20, hostname.clone()));
    assert!((10_000..=16 << 10).contains(&many), "{many}: some nodes fit");
    let again = by_driver(&PodBuilder(outcome.object.clone()), &snapshot, &crate::mutation::none());
    assert_eq!(again.object["spec"]["affinity"], outcome.object["spec"]["affinity"], "a second call changes nothing");
    for pod in
        [with(1000, hostname), with(1000, json!({"matchFields": [{"key": "x", "operator": "In", "values": ["y"]}]}))]
    {
        let (none, outcome) = grown(&pod);
        assert_eq!(none, 0);
        assert!(outcome.decision.reasons.contains(&Reason::NodesNotAvoided), "{:?}", outcome.decision.reasons);
    }
}

fn with_node_selector(mut pod: PodBuilder, host: &str) -> PodBuilder {
    pod.0["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": host});
    pod
}
