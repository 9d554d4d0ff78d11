//! The report about nodes on which executors failed: `/debug/nodes` and `spark-usher nodes`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::{History, Names};
use usher_core::drivers;
use usher_core::nodes::{NodeFault, NodeRecord, Suspicion};
use usher_core::recovery::cost;
use usher_core::snapshot::Snapshot;
use usher_spark::time::{Now, in_seconds};

/// At most this many faults are listed per node, the newest first.
const MAX_FAULTS: usize = 10;

/// The nodes on which executors failed, or that applications exclude.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodesReport {
    /// How many Nodes the cluster has; 0 if they are not watched.
    pub total: usize,
    /// How many are suspect.
    pub suspect: usize,
    /// How many new executors avoid.
    pub avoided: usize,
    /// The nodes: suspect ones first, then those with the most faults.
    pub nodes: Vec<NodeReport>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeReport {
    pub name: String,
    /// Whether the Node exists: `None` if Nodes are not watched.
    pub exists: Option<bool>,
    /// The version of its kubelet.
    pub kubelet: Option<String>,
    /// Whether its kubelet reports that it is ready.
    pub ready: Option<bool>,
    /// Whether it is cordoned.
    pub cordoned: bool,
    /// Why it is suspect.
    pub suspicion: Option<SuspicionReport>,
    /// Whether new executors avoid it.
    pub avoided: bool,
    /// How many faults of each kind are remembered.
    pub faults: BTreeMap<String, usize>,
    /// The last ones, at most 10, the newest first.
    pub recent: Vec<FaultReport>,
    /// How many pods on it each scheduler has placed, without pods of DaemonSets and static pods; of a node that is not suspect, how many
    /// Spark pods. More than one scheduler is a usual cause of refusals.
    pub schedulers: BTreeMap<String, usize>,
    /// How many Spark pods are on it.
    pub pods: usize,
    /// How many executors on it their own drivers exclude (`spark.excludeOnFailure`); only the leader knows.
    pub excluded: usize,
}

/// Why a node is suspect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SuspicionReport {
    /// Since when.
    pub since: String,
    /// When it ends, unless executors fail again.
    pub until: String,
    /// How many different executors failed within the window.
    pub executors: usize,
    /// Of how many applications.
    pub applications: usize,
    /// What happened most often.
    pub kind: String,
    /// The same in words.
    pub text: String,
    /// What to do about it.
    pub cure: String,
}

/// What happened to an executor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FaultReport {
    /// When.
    pub at: String,
    pub namespace: String,
    /// The application.
    pub app: String,
    /// The name of the application, `spark.app.name`.
    #[serde(default)]
    pub name: String,
    /// The executor's pod.
    pub pod: String,
    pub kind: String,
    /// The resource that the node lacked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource: Option<String>,
    /// The words of the kubelet or the runtime.
    pub message: String,
    /// Whether it counts against the node.
    pub counts: bool,
}

/// What the pods on a node are.
#[derive(Default)]
struct Placed {
    schedulers: BTreeMap<String, usize>,
    pods: usize,
    excluded: usize,
}

/// The nodes on which executors failed, or which drivers exclude; all of them, or one.
pub fn nodes(snapshot: &Snapshot, history: &History, name: Option<&str>, now: Now) -> NodesReport {
    let names = &Names::of(snapshot, history);
    let mut placed = placed(snapshot);
    let is_wanted = |node: &str| name.is_none_or(|name| name == node);
    let mut nodes: Vec<NodeReport> = history
        .nodes
        .nodes()
        .filter(|(node, _)| is_wanted(node))
        .map(|(node, record)| report(names, node, record, placed.remove(node).unwrap_or_default(), now))
        .collect();
    let nothing = NodeRecord::default();
    for (node, placed) in placed {
        if is_wanted(&node) && (placed.excluded > 0 || name.is_some()) {
            nodes.push(report(names, &node, &nothing, placed, now));
        }
    }
    if let Some(name) = name.filter(|_| nodes.is_empty())
        && snapshot.nodes.contains_key(name)
    {
        nodes.push(report(names, &name.into(), &nothing, Placed::default(), now));
    }
    nodes.sort_by_cached_key(|node| {
        let faults: usize = node.faults.values().sum();
        (node.suspicion.is_none(), std::cmp::Reverse((faults, node.excluded)), node.name.clone())
    });
    NodesReport {
        total: snapshot.nodes.len(),
        suspect: history.nodes.suspects().count(),
        avoided: snapshot.avoided_nodes.len(),
        nodes,
    }
}

/// The Spark pods on each node.
fn placed(snapshot: &Snapshot) -> BTreeMap<Arc<str>, Placed> {
    let mut all: BTreeMap<Arc<str>, Placed> = BTreeMap::new();
    for (key, app) in &snapshot.apps {
        for executor in app.executors().values() {
            let Some(node) = executor.node.as_ref().filter(|_| cost::holds_resources(executor)) else { continue };
            let placed = all.entry(node.clone()).or_default();
            placed.pods += 1;
            *placed.schedulers.entry(executor.template.scheduling.scheduler_name.to_string()).or_default() += 1;
            placed.excluded += usize::from(drivers::is_excluded(snapshot, key, executor));
        }
        for driver in &app.drivers {
            let Some(node) = driver.node.as_ref().filter(|_| driver.is_live()) else { continue };
            let placed = all.entry(node.clone()).or_default();
            placed.pods += 1;
            *placed.schedulers.entry(driver.scheduling.scheduler_name.to_string()).or_default() += 1;
        }
    }
    all
}

fn report(names: &Names<'_>, name: &Arc<str>, record: &NodeRecord, placed: Placed, now: Now) -> NodeReport {
    let Names { snapshot, history, .. } = names;
    let known = snapshot.nodes.get(name);
    let is_watched = !snapshot.nodes.is_empty();
    let faults = record.kinds().into_iter().map(|(kind, count)| (kind.as_str().to_owned(), count));
    NodeReport {
        name: name.to_string(),
        exists: is_watched.then_some(known.is_some()),
        kubelet: known.map(|node| node.kubelet.to_string()).filter(|version| !version.is_empty()),
        ready: known.map(|node| node.ready),
        cordoned: known.is_some_and(|node| node.cordoned),
        suspicion: record.suspicion.as_ref().map(|suspicion| suspected(suspicion, now)),
        avoided: snapshot.avoided_nodes.contains(name),
        faults: faults.collect(),
        recent: record
            .faults
            .iter()
            .rev()
            .take(MAX_FAULTS)
            .map(|known| fault(known, names.name(&known.app), history.nodes.counts(known)))
            .collect(),
        schedulers: match &record.schedulers {
            Some(all) => all.iter().map(|(name, count)| (name.to_string(), *count)).collect(),
            None => placed.schedulers,
        },
        pods: placed.pods,
        excluded: placed.excluded,
    }
}

fn suspected(suspicion: &Suspicion, now: Now) -> SuspicionReport {
    let Suspicion { since, until, executors, apps, kind } = suspicion;
    SuspicionReport {
        since: in_seconds(wall(*since, now)),
        until: in_seconds(wall(*until, now)),
        executors: *executors,
        applications: *apps,
        kind: kind.as_str().to_owned(),
        text: kind.text().to_owned(),
        cure: kind.cure().to_owned(),
    }
}

/// A time of the monotonic clock, for display.
fn wall(at: Instant, now: Now) -> Timestamp {
    let ago = SignedDuration::try_from(now.at.saturating_duration_since(at)).unwrap_or(SignedDuration::MAX);
    let ahead = SignedDuration::try_from(at.saturating_duration_since(now.at)).unwrap_or(SignedDuration::MAX);
    now.wall.saturating_sub(ago).and_then(|time| time.saturating_add(ahead)).unwrap_or(now.wall)
}

fn fault(fault: &NodeFault, name: &str, counts: bool) -> FaultReport {
    FaultReport {
        at: in_seconds(fault.time),
        namespace: fault.app.namespace().to_owned(),
        app: fault.app.selector().to_owned(),
        name: name.to_owned(),
        pod: fault.pod.to_string(),
        kind: fault.kind.as_str().to_owned(),
        resource: fault.resource.as_deref().map(str::to_owned),
        message: fault.message.to_string(),
        counts,
    }
}
