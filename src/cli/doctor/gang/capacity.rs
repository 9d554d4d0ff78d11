//! Finds capacity for two executors but not for a third: one node, and a request computed from its free CPU.

use std::collections::BTreeMap;

use serde_json::Value;

use usher_spark::json::{at, list, text};
use usher_spark::pod::{Body, Pod};
use usher_spark::quantity::Quantity;
use usher_spark::resources;

/// Label by which a pod selects one node.
pub(super) const HOSTNAME: &str = "kubernetes.io/hostname";

/// Minimum free CPU of a node, in millicores: with less, a request would be negligible among other pods'.
const MIN_FREE_CPU: u64 = 240;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NodeRequest {
    pub(super) node: String,
    /// CPU request of each executor, in millicores.
    pub(super) cpu: u64,
}

/// Picks the node with most free CPU. `priority` is that of the executors; `None` if they never preempt. Pods of a
/// lower priority would be preempted, so a node that has such pods is skipped.
pub(super) fn pick(
    nodes: &[Value],
    pods: &[Value],
    pool: &BTreeMap<String, String>,
    priority: Option<i64>,
) -> Result<NodeRequest, String> {
    let (mut best, mut evicting) = (None::<(u64, String)>, 0);
    let usable = nodes.iter().filter(|node| is_usable(node, pool));
    for node in usable {
        let name = text(node, &["metadata", "name"]);
        let here = || pods.iter().filter(move |pod| text(pod, &["spec", "nodeName"]) == name && !is_over(pod));
        let priority_of = |pod: &Value| at(pod, &["spec", "priority"]).and_then(Value::as_i64).unwrap_or(0);
        if priority.is_some_and(|priority| here().any(|pod| priority_of(pod) < priority)) {
            evicting += 1;
            continue;
        }
        let allocatable = text(node, &["status", "allocatable", "cpu"]).parse().unwrap_or(Quantity::ZERO);
        let free = here().fold(allocatable, |free, pod| free.minus(cpu_of(pod)));
        let free = u64::try_from(free.times(1000).whole_units()).unwrap_or(0);
        if best.as_ref().is_none_or(|(max, _)| free > *max) {
            best = Some((free, text(node, &["metadata", "labels", HOSTNAME]).to_owned()));
        }
    }
    match best {
        // Two executors use five sixths of the free CPU, three would need a quarter more than is free.
        Some((free, node)) if free >= MIN_FREE_CPU => Ok(NodeRequest { node, cpu: free * 5 / 12 }),
        Some((free, _)) => Err(format!("no node has more than {free}m CPU free: expected at least {MIN_FREE_CPU}m")),
        None if evicting > 0 => Err(format!(
            "{evicting} nodes run pods of a lower priority than the executors, which the scheduler could preempt: expected a node without such pods"
        )),
        None => Err(format!(
            "expected a ready node without taints, with the labels of the policy's nodePool and with the label {HOSTNAME}"
        )),
    }
}

fn is_usable(node: &Value, pool: &BTreeMap<String, String>) -> bool {
    let label = |key: &str| text(node, &["metadata", "labels", key]);
    let repels = |taint: &&Value| matches!(text(taint, &["effect"]), "NoSchedule" | "NoExecute");
    let mut conditions = list(node, &["status", "conditions"]).iter();
    !label(HOSTNAME).is_empty()
        && pool.iter().all(|(key, value)| label(key) == value)
        && at(node, &["spec", "unschedulable"]) != Some(&Value::Bool(true))
        && !list(node, &["spec", "taints"]).iter().any(|taint| repels(&taint))
        && conditions.all(|one| text(one, &["type"]) != "Ready" || text(one, &["status"]) == "True")
}

fn is_over(pod: &Value) -> bool {
    matches!(text(pod, &["status", "phase"]), "Succeeded" | "Failed")
}

fn cpu_of(pod: &Value) -> Quantity {
    let text = pod.to_string();
    let Ok(pod) = Pod::read_whole(text.as_bytes()) else { return Quantity::ZERO };
    match &pod.body {
        Body::Read(workload) => resources::of_pod(workload).get("cpu").unwrap_or(Quantity::ZERO),
        Body::Raw(_) => Quantity::ZERO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn node(name: &str, cpu: &str) -> Value {
        json!({"metadata": {"name": name, "labels": {HOSTNAME: format!("{name}.local"), "pool": "spark"}},
            "status": {"allocatable": {"cpu": cpu}, "conditions": [{"type": "Ready", "status": "True"}]}})
    }

    fn pod(node: &str, cpu: &str, priority: i64) -> Value {
        json!({"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "status": {"phase": "Running"},
            "spec": {"nodeName": node, "priority": priority, "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]}})
    }

    fn none() -> BTreeMap<String, String> {
        BTreeMap::new()
    }

    #[test]
    fn picked_cpu_fits_two_pods_but_not_three() {
        let nodes = [node("a", "4"), node("b", "3")];
        let pods = [pod("a", "2", 0), pod("b", "600m", 0)];
        let capacity = pick(&nodes, &pods, &none(), Some(0)).unwrap();
        assert_eq!(capacity, NodeRequest { node: "b.local".into(), cpu: 1000 });
        assert!(2 * capacity.cpu < 2400 && 3 * capacity.cpu > 2400);
    }

    #[test]
    fn finished_pods_use_no_cpu() {
        let mut finished = pod("a", "3", 0);
        finished["status"]["phase"] = "Succeeded".into();
        assert_eq!(pick(&[node("a", "2400m")], &[finished], &none(), Some(0)).unwrap().cpu, 1000);
    }

    #[test]
    fn unusable_nodes_yield_error() {
        let pool = BTreeMap::from([("pool".to_owned(), "gpu".to_owned())]);
        assert!(pick(&[node("a", "4")], &[], &pool, None).unwrap_err().contains("nodePool"));
        let mut tainted = node("a", "4");
        tainted["spec"]["taints"] = json!([{"key": "x", "effect": "NoSchedule"}]);
        let mut not_ready = node("b", "4");
        not_ready["status"]["conditions"][0]["status"] = "Unknown".into();
        let mut unschedulable = node("c", "4");
        unschedulable["spec"]["unschedulable"] = true.into();
        assert!(pick(&[tainted, not_ready, unschedulable], &[], &none(), None).is_err());
        assert!(pick(&[node("a", "200m")], &[], &none(), None).unwrap_err().contains("at least 240m"));
    }

    #[test]
    fn node_with_preemptible_pods_is_not_picked() {
        let pods = [pod("a", "1", -10)];
        assert!(pick(&[node("a", "4")], &pods, &none(), Some(0)).unwrap_err().contains("preempt"));
        assert!(pick(&[node("a", "4")], &pods, &none(), None).is_ok(), "preemptionPolicy: Never");
        assert!(pick(&[node("a", "4")], &pods, &none(), Some(-10)).is_ok());
    }
}
