//! A simulated scheduler that supports gangs: a group's members are placed once at least as many as it requests exist
//! and all of those fit together, whichever scheduler the pods name. It implements the schedulers' keys from their
//! documentation, not from our own table, so that tests can detect errors in the table.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::outline::Outline;
use super::resource::Collection;
use super::special::bind;
use super::state::Api;
use super::store::{Key, Stored};
use usher_core::snapshot::group_size;
use usher_runtime::clock;
use usher_spark::json::{at, entries, list, list_mut, text};
use usher_spark::node_terms::{Term, Work};
use usher_spark::quantity::Quantity;
use usher_spark::resources::ResourceList;

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
    /// Reports whether the node has the labels of the pod's nodeSelector, and matches its required nodeAffinity.
    fn is_selected(&self, name: &str, pod: &Value) -> bool {
        let label = |key: &str| self.labels.iter().find(|(known, _)| known == key).map(|(_, value)| value.as_str());
        let required = ["spec", "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution"];
        let is_required = at(pod, &required).is_some();
        let mut work = Work::new(usize::MAX);
        let terms = list(pod, &[&required[..], &["nodeSelectorTerms"]].concat());
        let mut matches = |term: Term<'_>| term.understood().is_some_and(|term| term.matches(name, label, &mut work));
        entries(pod, &["spec", "nodeSelector"]).all(|(key, value)| label(key) == Some(value))
            && (!is_required || terms.iter().any(|term| Term::deserialize(term).is_ok_and(&mut matches)))
    }
}

/// Gang of a pod.
enum Gang {
    /// No gang: the pod is scheduled alone.
    Alone,
    /// The pod waits for an object that does not exist.
    Waits(String),
    /// A named group that requires this many members, and these resources before the first is placed. `once`: only for the start.
    Of { name: String, min: usize, min_resources: ResourceList, once: bool },
}

/// The pods of a gang that are not bound.
struct WaitingGang {
    min: usize,
    min_resources: ResourceList,
    once: bool,
    pods: Vec<Arc<Stored>>,
}

/// One scheduling pass over all pods.
fn pass(api: &Api) {
    let (pods, _) = api.store.list(&Collection::core("pods"), None, None);
    let (mut nodes, mut bound, mut pending) = (nodes_of(api), Vec::new(), Vec::new());
    for stored in pods {
        let Outline { pod, requests } = stored.outline();
        let ended = matches!(text(pod, &["status", "phase"]), "Succeeded" | "Failed");
        if ended {
            continue;
        }
        let node = text(pod, &["spec", "nodeName"]);
        let deleting = at(pod, &["metadata", "deletionTimestamp"]).is_some();
        if !node.is_empty() {
            if let Some(node) = nodes.get_mut(node) {
                take(&mut node.free, requests);
            }
            if !deleting {
                bound.push(stored);
            }
        } else if !deleting && list(pod, &["spec", "schedulingGates"]).is_empty() {
            pending.push(stored);
        }
    }
    let mut gangs: BTreeMap<Key, WaitingGang> = BTreeMap::new();
    for stored in pending {
        match gang(api, &stored.outline().pod) {
            Gang::Alone => place(api, &mut nodes, vec![stored], 1),
            Gang::Waits(why) => write_condition(api, &stored, &why),
            Gang::Of { name, min, min_resources, once } => {
                let key = (stored.key.0.clone(), name);
                gangs
                    .entry(key)
                    .or_insert_with(|| WaitingGang { min, min_resources, once, pods: Vec::new() })
                    .pods
                    .push(stored);
            }
        }
    }
    let mut bound_of: BTreeMap<Key, usize> = BTreeMap::new();
    let namespaces: BTreeSet<&str> = gangs.keys().map(|(namespace, _)| namespace.as_str()).collect();
    for stored in bound.iter().filter(|stored| namespaces.contains(stored.key.0.as_str())) {
        if let Gang::Of { name, .. } = gang(api, &stored.outline().pod) {
            *bound_of.entry((stored.key.0.clone(), name)).or_default() += 1;
        }
    }
    for (key, WaitingGang { min, min_resources, once, pods: waiting }) in gangs {
        let bound_count = bound_of.get(&key).copied().unwrap_or_default();
        let name = key.1;
        let min = if once && bound_count > 0 { 1 } else { min };
        if bound_count + waiting.len() < min {
            let why = format!("gang {name} waits: {} of {min} members exist", bound_count + waiting.len());
            waiting.iter().for_each(|stored| write_condition(api, stored, &why));
        } else if bound_count == 0 && !fits_somewhere(&nodes, &min_resources) {
            let why = format!("gang {name} waits for {min_resources}");
            waiting.iter().for_each(|stored| write_condition(api, stored, &why));
        } else {
            place(api, &mut nodes, waiting, min.saturating_sub(bound_count).max(1));
        }
    }
}

/// Places pods: at least this many together or none, the others as they fit.
fn place(api: &Api, nodes: &mut BTreeMap<String, Node>, pods: Vec<Arc<Stored>>, at_once: usize) {
    let (mut trial, mut plan) = (nodes.clone(), Vec::new());
    for stored in &pods {
        let Outline { pod, requests } = stored.outline();
        let mut selected = trial.iter_mut().filter(|(name, node)| node.is_selected(name, pod));
        if let Some((name, node)) = selected.find(|(_, node)| fits(&node.free, requests)) {
            take(&mut node.free, requests);
            plan.push((stored.clone(), name.clone()));
        } else {
            let why = format!("0/{} nodes are available: insufficient resources, or other labels", nodes.len());
            write_condition(api, stored, &why);
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
        let min = at(&found, &["spec"]).and_then(group_size).unwrap_or(1) as usize;
        let mut min_resources = ResourceList::default();
        for (name, amount) in entries(&found, &["spec", "minResources"]) {
            min_resources.set(name, amount.parse().unwrap_or(Quantity::ZERO));
        }
        // Koordinator ignores minResources; with its match-policy once-satisfied, a gang that has started waits no more.
        let once = find(&found, "annotations", "gang.scheduling.koordinator.sh/match-policy") == Some("once-satisfied");
        if groups == ["scheduling.sigs.k8s.io"] {
            min_resources = ResourceList::default();
        }
        Gang::Of { name: name.to_owned(), min, min_resources, once }
    };
    // Koordinator's annotations with match-policy once-satisfied, and Kueue's admission.
    let counted = |name: &str, count: &str| Gang::Of {
        name: name.to_owned(),
        min: count.parse().unwrap_or(1),
        min_resources: ResourceList::default(),
        once: true,
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
    let is_same =
        |condition: &Value| text(condition, &["type"]) == "PodScheduled" && text(condition, &["message"]) == why;
    if list(&stored.outline().pod, &["status", "conditions"]).iter().any(is_same) {
        return;
    }
    let mut pod = stored.value();
    let conditions = list_mut(&mut pod, &["status", "conditions"]);
    conditions.retain(|condition| text(condition, &["type"]) != "PodScheduled");
    conditions.push(json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": why,
        "lastTransitionTime": clock::now().to_string()}));
    let _ = api.store.replace(&pods, stored, pod);
}
