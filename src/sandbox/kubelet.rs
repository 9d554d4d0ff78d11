//! A simulated kubelet: bound pods start, get an address, exit as their annotation states, and are removed when they
//! are deleted. No container ever runs.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::resource::{Collection, Resource};
use super::state::Api;
use super::store::Stored;
use usher_runtime::clock;
use usher_spark::json::{at, list, set, text};

/// Annotation: the pod's containers exit with this code after this time, `CODE@AFTER`, such as `0@5s` or `137@200ms`.
pub const EXIT: &str = "sandbox.spark-usher.io/exit";

/// Annotation of a pod or a Node: with the value `down`, the node does not respond: pods neither start nor terminate; with
/// `starts-nothing`, pods do not start, as on a node that cannot pull images; with `refuses`, the kubelet rejects them, as on a node whose
/// CPUs another scheduler has given away.
pub const NODE: &str = "sandbox.spark-usher.io/node";

/// How long a pod takes to start, and to terminate.
const TAKES: Duration = Duration::from_millis(80);
const TICK: Duration = Duration::from_millis(40);

/// The action that is due for a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Due {
    Start,
    Refuse,
    Exit(i64),
    Remove,
}

/// Runs the simulated kubelet until stopped.
pub(super) async fn run(api: Arc<Api>, stop: CancellationToken) {
    let Some(pods) = api.registry.find("", "v1", "pods") else { return };
    let mut due: HashMap<String, (Due, Instant)> = HashMap::new();
    let (mut addresses, mut seen) = (0u32, 0);
    while stop.run_until_cancelled(tokio::time::sleep(TICK)).await.is_some() {
        let revision = api.store.revision();
        if revision == seen && due.is_empty() {
            continue;
        }
        seen = revision;
        let now = clock::instant();
        let (all, _) = api.store.list(&pods.collection(), None, None);
        let uids: HashSet<&str> = all.iter().map(|pod| pod.uid.as_str()).collect();
        due.retain(|uid, _| uids.contains(uid.as_str()));
        let nodes = annotated_nodes(&api);
        for stored in &all {
            let Some((what, takes)) = next(&api, &nodes, &stored.outline().pod) else {
                due.remove(&stored.uid);
                continue;
            };
            let entry = due.entry(stored.uid.clone()).or_insert_with(|| (what.clone(), now + takes));
            if entry.0 != what {
                *entry = (what, now + takes);
            }
            if entry.1 <= now {
                let (what, _) = entry.clone();
                due.remove(&stored.uid);
                act(&api, &pods, stored, &what, &mut addresses);
            }
        }
    }
}

/// Returns the pod's next action, and its delay.
fn next(api: &Api, nodes: &HashMap<String, String>, pod: &Value) -> Option<(Due, Duration)> {
    let name = text(pod, &["spec", "nodeName"]);
    let node = nodes.get(name).map(String::as_str);
    let says = |value: &str| text(pod, &["metadata", "annotations", NODE]) == value || node == Some(value);
    if name.is_empty() || says("down") {
        return None;
    }
    if at(pod, &["metadata", "deletionTimestamp"]).is_some() {
        return Some((Due::Remove, TAKES));
    }
    match text(pod, &["status", "phase"]) {
        "Pending" if says("refuses") => Some((Due::Refuse, TAKES)),
        "Pending" if !says("starts-nothing") && mounts_are_there(api, pod) => Some((Due::Start, TAKES)),
        "Running" => {
            let (code, after) = text(pod, &["metadata", "annotations", EXIT]).split_once('@')?;
            let after: jiff::SignedDuration = after.parse().ok()?;
            Some((Due::Exit(code.parse().ok()?), Duration::try_from(after).ok()?))
        }
        _ => None,
    }
}

/// The Nodes that have [`NODE`], and its value.
fn annotated_nodes(api: &Api) -> HashMap<String, String> {
    let (nodes, _) = api.store.list(&Collection::core("nodes"), None, None);
    let annotated = nodes.iter().filter(|node| node.text.contains(NODE));
    annotated
        .map(|node| (node.key.1.clone(), text(&node.value(), &["metadata", "annotations", NODE]).to_owned()))
        .collect()
}

/// A pod waits for the ConfigMaps and Secrets of its volumes: Spark creates a driver's after the driver.
fn mounts_are_there(api: &Api, pod: &Value) -> bool {
    let namespace = text(pod, &["metadata", "namespace"]);
    let exists = |plural: &str, name: &str| {
        api.store.get(&Collection::core(plural), &(namespace.to_owned(), name.to_owned())).is_some()
    };
    list(pod, &["spec", "volumes"]).iter().all(|volume| {
        let optional = |kind: &str| at(volume, &[kind, "optional"]) == Some(&Value::Bool(true));
        let (map, secret) = (text(volume, &["configMap", "name"]), text(volume, &["secret", "secretName"]));
        (map.is_empty() || optional("configMap") || exists("configmaps", map))
            && (secret.is_empty() || optional("secret") || exists("secrets", secret))
    })
}

fn act(api: &Api, pods: &Arc<Resource>, stored: &Arc<Stored>, what: &Due, addresses: &mut u32) {
    let mut pod = stored.value();
    let now = clock::now().to_string();
    match what {
        Due::Remove => {
            // Finalizers still hold it.
            if list(&pod, &["metadata", "finalizers"]).is_empty() {
                let _ = super::delete::finish(api, pods, stored);
            }
            return;
        }
        Due::Start => {
            *addresses += 1;
            let host = at(&pod, &["spec", "hostNetwork"]) == Some(&Value::Bool(true));
            let ip = if host {
                "10.0.0.1".to_owned()
            } else {
                // Of the loopback network: a process on this machine can serve as the pod, and nothing else is reached.
                format!("127.1.{}.{}", *addresses >> 8 & 0xff, *addresses & 0xff)
            };
            set(&mut pod, &["status", "phase"], "Running");
            set(&mut pod, &["status", "hostIP"], "10.0.0.1");
            set(&mut pod, &["status", "podIP"], ip.clone());
            set(&mut pod, &["status", "podIPs"], json!([{ "ip": ip }]));
            set(&mut pod, &["status", "startTime"], now.clone());
            let conditions = ["Initialized", "PodScheduled", "ContainersReady", "Ready"]
                .map(|kind| json!({"type": kind, "status": "True", "lastTransitionTime": now}));
            set(&mut pod, &["status", "conditions"], json!(conditions));
            statuses(&mut pod, true, &json!({"running": {"startedAt": now}}));
        }
        // As kubelets since 1.27 do (`pkg/kubelet/lifecycle/predicate.go`).
        Due::Refuse => {
            let why = "Pod was rejected: Node didn't have enough resource: cpu, requested: 1000, used: 31500, capacity: 32000";
            set(&mut pod, &["status", "phase"], "Failed");
            set(&mut pod, &["status", "reason"], "OutOfcpu");
            set(&mut pod, &["status", "message"], why);
            set(&mut pod, &["status", "startTime"], now);
        }
        Due::Exit(code) => {
            set(&mut pod, &["status", "phase"], if *code == 0 { "Succeeded" } else { "Failed" });
            let started = text(&pod, &["status", "startTime"]).to_owned();
            let reason = if *code == 0 { "Completed" } else { "Error" };
            let state =
                json!({"terminated": {"exitCode": code, "reason": reason, "startedAt": started, "finishedAt": now}});
            statuses(&mut pod, false, &state);
        }
    }
    let _ = api.store.replace(pods, stored, pod);
}

fn statuses(pod: &mut Value, ready: bool, state: &Value) {
    let containers = list(pod, &["spec", "containers"]).iter().map(|container| {
        let image = text(container, &["image"]);
        json!({"name": text(container, &["name"]), "image": image, "imageID": image, "ready": ready, "started": ready,
            "restartCount": 0, "state": state, "lastState": {}})
    });
    let containers: Vec<Value> = containers.collect();
    set(pod, &["status", "containerStatuses"], containers);
}
