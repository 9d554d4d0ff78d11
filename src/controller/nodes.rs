//! Nodes that refuse or break executors: what every replica records of them, which its webhook avoids, and what the leader
//! reports.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::fault_injection::{self, Bug};
use crate::lifecycle::exits::Exits;
use crate::nodes::{NodeLedger, Suspicion};
use crate::policy::NodeSettings;
use crate::snapshot::Snapshot;
use crate::spark::ids::AppKey;
use crate::time::Now;

/// A node that stays suspect is reported again after this time.
const REPORT_INTERVAL: Duration = Duration::from_secs(3600);
/// At most this many suspect nodes are reported at once: more are a fault of the cluster, which the metric shows.
const MAX_REPORTS: usize = 50;

/// A suspect node, to be reported by an Event on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeReport {
    /// The Node.
    pub node: Arc<str>,
    /// Its uid.
    pub uid: Arc<str>,
    /// Why it is suspect, and what to do, for people.
    pub message: String,
}

/// The ledger, and what was made known of it.
#[derive(Debug, Default)]
pub(super) struct Nodes {
    pub(super) ledger: NodeLedger,
    /// The number of exits that the ledger has seen.
    seen: u64,
    /// Whether suspicions, or the settings about them, may have changed.
    is_changed: bool,
    settings: Option<NodeSettings>,
    reported: BTreeMap<Arc<str>, Instant>,
}

impl Nodes {
    /// Records the exits since the last call.
    pub(super) fn record(&mut self, exits: &Exits, snapshot: &Snapshot, settings: &NodeSettings, now: Now) {
        let recorded = exits.recorded();
        if fault_injection::injected(Bug::FaultsNotSeen) {
            self.seen = recorded;
        }
        for exit in exits.newest(recorded.saturating_sub(self.seen)) {
            self.is_changed |= self.ledger.record(exit, snapshot, settings, now);
        }
        self.seen = recorded;
    }

    /// Records what nodes do to executors of an application that have not started.
    pub(super) fn observe(&mut self, app: &AppKey, snapshot: &Snapshot, settings: &NodeSettings, now: Now) {
        self.is_changed |= self.ledger.observe(app, snapshot, settings, now);
    }

    /// Ends suspicions whose time is over.
    pub(super) fn expire(&mut self, settings: &NodeSettings, now: Instant) {
        let ended = self.ledger.expire(settings, now);
        for node in &ended {
            self.reported.remove(node);
        }
        // The number of nodes, and with it the cap, may have changed.
        self.is_changed |= !ended.is_empty() || self.ledger.suspects().next().is_some();
    }

    /// Whether suspicions may have changed since [`Nodes::newly_avoided`] was called.
    pub(super) fn is_changed(&self) -> bool {
        self.is_changed
    }

    /// The nodes to avoid from now on, if they have changed.
    pub(super) fn newly_avoided(&mut self, snapshot: &Snapshot, settings: &NodeSettings) -> Option<Vec<Arc<str>>> {
        let is_set = self.settings.replace(*settings) != Some(*settings);
        if !std::mem::take(&mut self.is_changed) && !is_set {
            return None;
        }
        let avoided = avoided(&self.ledger, snapshot, settings);
        (!avoided.iter().eq(snapshot.avoided_nodes.iter())).then_some(avoided)
    }

    /// The suspect nodes that are to be reported now.
    pub(super) fn reports(&mut self, snapshot: &Snapshot, settings: &NodeSettings, now: Instant) -> Vec<NodeReport> {
        let Nodes { ledger, reported, .. } = self;
        let mut due: Vec<(&Arc<str>, &Suspicion)> = ledger.suspects().collect();
        due.retain(|(name, _)| {
            let at = reported.get(&**name);
            at.is_none_or(|at| now.saturating_duration_since(*at) >= REPORT_INTERVAL)
        });
        due.sort_by_key(|(name, suspicion)| (std::cmp::Reverse(suspicion.executors), (*name).clone()));
        let mut reports = Vec::new();
        for (name, suspicion) in due.into_iter().take(MAX_REPORTS) {
            let Some(node) = snapshot.nodes.get(name) else { continue };
            reported.insert(name.clone(), now);
            let message = message(suspicion, &node.kubelet, settings, snapshot.avoided_nodes.contains(name));
            reports.push(NodeReport { node: name.clone(), uid: node.uid.clone(), message });
        }
        reports
    }

    /// This replica no longer leads: the next leader reports.
    pub(super) fn forget_reports(&mut self) {
        self.reported.clear();
    }
}

/// The suspect nodes that new executors avoid: the longest suspect first, up to the cap, so that the choice changes rarely.
fn avoided(ledger: &NodeLedger, snapshot: &Snapshot, settings: &NodeSettings) -> Vec<Arc<str>> {
    if !settings.avoid || !settings.enabled {
        return Vec::new();
    }
    let existing = ledger.suspects().filter(|(name, _)| snapshot.nodes.contains_key(*name));
    let mut suspects: Vec<(Instant, &Arc<str>)> = existing.map(|(name, suspicion)| (suspicion.since, name)).collect();
    suspects.sort_unstable();
    if !fault_injection::injected(Bug::CapIgnored) {
        suspects.truncate(settings.most_avoided(snapshot.nodes.len()));
    }
    let mut names: Vec<Arc<str>> = suspects.into_iter().map(|(_, name)| name.clone()).collect();
    names.sort_unstable();
    names
}

/// What an Event on the Node states.
fn message(suspicion: &Suspicion, kubelet: &str, settings: &NodeSettings, is_avoided: bool) -> String {
    let Suspicion { executors, apps, kind, .. } = suspicion;
    let minutes = settings.window.as_secs() / 60;
    let kubelet = if kubelet.is_empty() { String::new() } else { format!(" (kubelet {kubelet})") };
    let avoided = if is_avoided { "; new executors avoid the node" } else { "" };
    format!(
        "{executors} Spark executors of {apps} applications failed here within {minutes} minutes, most by {kind}{kubelet}: {}{avoided}",
        kind.cure()
    )
}
