//! A simulated scheduler that supports gangs: a group's members are placed once at least as many as it requests exist
//! and all of those fit at once, whichever scheduler the pods name. It implements the schedulers' keys from their
//! documentation, not from our own table, so that tests can detect errors in the table.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::resource::Collection;
use super::special::bind;
use super::state::Api;
use super::store::Stored;
use crate::json::{at, entries, list, list_mut, text};
use crate::runtime::clock;
use crate::spark::pod::{Body, Pod};
use crate::spark::quantity::Quantity;
use crate::spark::resources::{self, ResourceList};

/// How long changes are collected before a scheduling pass.
const PAUSE: Duration = Duration::from_millis(30);

/// Runs the scheduler until stopped.
pub(super) async fn run(api: Arc<Api>, stop: CancellationToken) {
    let mut seen = 0;
    loop {
        let more = async {
            api.store.newer_than(seen).await;
            tokio::time::sleep(PAUSE).await;
        };
        if stop.run_until_cancelled(more).await.is_none() {
            return;
        }
        seen = api.store.revision();
        pass(&api);
    }
}

/// A node's free resources and its labels.
#[derive(Clone)]
struct Node {
    free: ResourceList,
    labels: Vec<(String, String)>,
}

impl Node {
    /// Reports whether the node has the labels of the pod's nodeSelector.
    fn is_selected(&self, pod: &Value) -> bool {
        let has = |(key, value)| self.labels.iter().any(|(k, v)| (k.as_str(), v.as_str()) == (key, value));
        entries(pod, &["spec", "nodeSelector"]).all(has)
    }
}

struct Candidate {
    stored: Arc<Stored>,
    pod: Value,
    requests: ResourceList,
}

/// Gang of a pod.
enum Gang {
    /// No gang: the pod is scheduled alone.
    Alone,
    /// The pod waits for an object that does not exist.
    Waits(String),
    /// A named group that requires this many members, and these resources before the first is placed.
    Of { name: String, min: usize, min_resources: ResourceList },
}

/// One scheduling pass over all pods.
fn pass(api: &Api) {
    let (pods, _) = api.store.list(&Collection::core("pods"), None, None);
    let (mut nodes, mut bound, mut pending) = (nodes_of(api), Vec::new(), Vec::new());
    for stored in pods {
        let pod = stored.value();
        let ended = matches!(text(&pod, &["status", "phase"]), "Succeeded" | "Failed");
        if ended {
            continue;
        }
        let requests = requests(&stored);
        let node = text(&pod, &["spec", "nodeName"]).to_owned();
        let deleting = at(&pod, &["metadata", "deletionTimestamp"]).is_some();
        let candidate = Candidate { stored, pod, requests };
        if !node.is_empty() {
            if let Some(node) = nodes.get_mut(&node) {
                take(&mut node.free, &candidate.requests);
            }
            if !deleting {
                bound.push(candidate);
            }
        } else if !deleting && list(&candidate.pod, &["spec", "schedulingGates"]).is_empty() {
            pending.push(candidate);
        }
    }
    let mut gangs: BTreeMap<(String, String), (usize, ResourceList, Vec<Candidate>)> = BTreeMap::new();
    for candidate in pending {
        match gang(api, &candidate.pod) {
            Gang::Alone => place(api, &mut nodes, vec![candidate], 1),
            Gang::Waits(why) => write_condition(api, &candidate.stored, &why),
            Gang::Of { name, min, min_resources } => {
                let key = (candidate.stored.key.0.clone(), name);
                let entry = gangs.entry(key).or_insert_with(|| (min, min_resources, Vec::new()));
                entry.2.push(candidate);
            }
        }
    }
    for ((namespace, name), (min, min_resources, waiting)) in gangs {
        let bound_count = bound
            .iter()
            .filter(|candidate| candidate.stored.key.0 == namespace)
            .filter(|candidate| matches!(gang(api, &candidate.pod), Gang::Of { name: of, .. } if of == name));
        let bound_count = bound_count.count();
        if bound_count + waiting.len() < min {
            let why = format!("gang {name} waits: {} of {min} members exist", bound_count + waiting.len());
            waiting.iter().for_each(|candidate| write_condition(api, &candidate.stored, &why));
        } else if bound_count == 0 && !fits_somewhere(&nodes, &min_resources) {
            waiting.iter().for_each(|candidate| {
                write_condition(api, &candidate.stored, &format!("gang {name} waits for {min_resources}"))
            });
        } else {
            place(api, &mut nodes, waiting, min.saturating_sub(bound_count).max(1));
        }
    }
}

/// Places pods: at least this many at once or none, the others as they fit.
fn place(api: &Api, nodes: &mut BTreeMap<String, Node>, pods: Vec<Candidate>, at_once: usize) {
    let (mut trial, mut plan) = (nodes.clone(), Vec::new());
    for candidate in &pods {
        let mut selected = trial.iter_mut().filter(|(_, node)| node.is_selected(&candidate.pod));
        if let Some((name, node)) = selected.find(|(_, node)| fits(&node.free, &candidate.requests)) {
            take(&mut node.free, &candidate.requests);
            plan.push((candidate.stored.clone(), name.clone()));
        } else {
            let why = format!("0/{} nodes are available: insufficient resources, or other labels", nodes.len());
            write_condition(api, &candidate.stored, &why);
        }
    }
    if plan.len() < at_once {
        return;
    }
    *nodes = trial;
    for (stored, node) in plan {
        // On a conflict the other write wins; the next pass sees it.
        let _ = bind(api, &stored.key, &node);
    }
}

/// The gang of a pod, by the key of any scheduler.
fn gang(api: &Api, pod: &Value) -> Gang {
    let namespace = text(pod, &["metadata", "namespace"]);
    let label = |key: &str| find(pod, "labels", key);
    let annotation = |key: &str| find(pod, "annotations", key);
    let by_object = |groups: &[&str], name: &str| {
        let found = groups.iter().find_map(|group| {
            let collection = Collection { group: (*group).to_owned(), plural: "podgroups".to_owned() };
            api.store.get(&collection, &(namespace.to_owned(), name.to_owned()))
        });
        let Some(found) = found.map(|found| found.value()) else {
            return Gang::Waits(format!("PodGroup {name} does not exist"));
        };
        let min = at(&found, &["spec", "minMember"]).or_else(|| found.pointer("/spec/schedulingPolicy/gang/minCount"));
        let min = min.and_then(Value::as_u64).unwrap_or(1) as usize;
        let mut min_resources = ResourceList::default();
        for (name, amount) in entries(&found, &["spec", "minResources"]) {
            min_resources.set(name, amount.parse().unwrap_or(Quantity::ZERO));
        }
        Gang::Of { name: name.to_owned(), min, min_resources }
    };
    let counted = |name: &str, count: &str| Gang::Of {
        name: name.to_owned(),
        min: count.parse().unwrap_or(1),
        min_resources: ResourceList::default(),
    };
    if let Some(name) = annotation("scheduling.k8s.io/group-name") {
        return by_object(&["scheduling.volcano.sh", "scheduling.sigs.dev", "scheduling.incubator.k8s.io"], name);
    }
    if let Some(name) = label("scheduling.x-k8s.io/pod-group") {
        return by_object(&["scheduling.x-k8s.io"], name);
    }
    if let Some(name) = label("pod-group.scheduling.sigs.k8s.io") {
        return by_object(&["scheduling.sigs.k8s.io"], name);
    }
    let native = text(pod, &["spec", "schedulingGroup", "podGroupName"]);
    if !native.is_empty() {
        return by_object(&["scheduling.k8s.io"], native);
    }
    if let Some(name) = annotation("gang.scheduling.koordinator.sh/name") {
        return counted(name, annotation("gang.scheduling.koordinator.sh/min-available").unwrap_or("1"));
    }
    if let (Some(name), Some(count)) =
        (label("kueue.x-k8s.io/pod-group-name"), annotation("kueue.x-k8s.io/pod-group-total-count"))
    {
        return counted(name, count);
    }
    Gang::Alone
}

fn find<'v>(pod: &'v Value, map: &str, key: &str) -> Option<&'v str> {
    at(pod, &["metadata", map, key]).and_then(Value::as_str).filter(|value| !value.is_empty())
}

/// A pod's requests, counted as kube-scheduler counts them, plus one of the resource `pods`.
fn requests(stored: &Stored) -> ResourceList {
    let pod = Pod::read_whole(stored.text.as_bytes()).unwrap_or_default();
    let mut list = match &pod.body {
        Body::Read(workload) => resources::of_pod(workload),
        Body::Raw(_) => ResourceList::default(),
    };
    list.set("pods", Quantity::units(1));
    list
}

fn nodes_of(api: &Api) -> BTreeMap<String, Node> {
    let (nodes, _) = api.store.list(&Collection::core("nodes"), None, None);
    let schedulable = nodes.iter().map(|node| (node.key.1.clone(), node.value()));
    let schedulable = schedulable.filter(|(_, node)| at(node, &["spec", "unschedulable"]) != Some(&Value::Bool(true)));
    schedulable
        .map(|(name, node)| {
            let mut free = ResourceList::default();
            for (resource, amount) in entries(&node, &["status", "allocatable"]) {
                free.set(resource, amount.parse().unwrap_or(Quantity::ZERO));
            }
            let labels = entries(&node, &["metadata", "labels"]).map(|(key, value)| (key.to_owned(), value.to_owned()));
            let labels = labels.collect();
            (name, Node { free, labels })
        })
        .collect()
}

fn fits(free: &ResourceList, wanted: &ResourceList) -> bool {
    wanted.iter().all(|(name, amount)| amount.is_zero() || free.get(name).is_some_and(|free| amount <= free))
}

fn take(free: &mut ResourceList, taken: &ResourceList) {
    for (name, amount) in taken.iter() {
        if let Some(left) = free.get(name) {
            free.set(name, left.minus(amount));
        }
    }
}

/// Reports whether the nodes together have these resources, as a queue's admission check does.
fn fits_somewhere(nodes: &BTreeMap<String, Node>, min_resources: &ResourceList) -> bool {
    let mut all = ResourceList::default();
    nodes.values().for_each(|node| all.add(&node.free));
    fits(&all, min_resources)
}

/// Writes into the pod's condition why it waits.
fn write_condition(api: &Api, stored: &Arc<Stored>, why: &str) {
    let Some(pods) = api.registry.find("", "v1", "pods") else { return };
    let mut pod = stored.value();
    let conditions = list_mut(&mut pod, &["status", "conditions"]);
    if conditions
        .iter()
        .any(|condition| text(condition, &["type"]) == "PodScheduled" && text(condition, &["message"]) == why)
    {
        return;
    }
    conditions.retain(|condition| text(condition, &["type"]) != "PodScheduled");
    conditions.push(json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": why,
        "lastTransitionTime": clock::now().to_string()}));
    let _ = api.store.replace(&pods, stored, pod);
}
