//! Nodes that refuse or break executors: what every replica records of them, which its webhook avoids, and what the leader
//! reports.

use std::collections::BTreeMap;
use std::ops::{Bound, RangeInclusive};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::effects::{LookupResult, NodeReport};
use crate::lifecycle::exits::Exits;
use crate::nodes::{NodeLedger, Running, Suspicion};
use crate::policy::NodeSettings;
use crate::snapshot::{Application, ExecutorKey, Snapshot};
use usher_spark::ids::AppKey;
use usher_spark::text::shown;
use usher_spark::time::Now;

/// How often the schedulers of a suspect node's pods are read,
const READ_INTERVAL: Duration = Duration::from_secs(600);
/// how many nodes at the same time,
const MAX_READS: usize = 4;
/// and how long a report waits for that.
const READ_LIMIT: Duration = Duration::from_secs(30);
/// Executors that have not started are examined in this time, although nothing changes: they become late without an event.
const EXAMINE_ALL: Duration = Duration::from_secs(60);
/// Of an application with more than a few executors that are not settled, a part is examined at most once in this time: each of its
/// events is a plan.
const EXAMINE_INTERVAL: Duration = Duration::from_secs(2);
const FEW: usize = 64;
/// In how many parts its executors are examined, and how many a part has at least and at most.
const PARTS: usize = 30;
const PART: RangeInclusive<usize> = 256..=4096;
/// At most this many schedulers are named.
const MAX_NAMED: usize = 3;
/// Which suspect nodes are to be reported is determined this often, and when suspicions change.
const REPORTS_INTERVAL: Duration = Duration::from_secs(1);
/// A node that stays suspect is reported again after this time.
const REPORT_INTERVAL: Duration = Duration::from_secs(3600);
/// At most this many suspect nodes are reported at the same time: more are a fault of the cluster, which the metric shows.
const MAX_REPORTS: usize = 50;

/// The ledger, and what was made known of it.
#[derive(Debug, Default)]
pub(super) struct Nodes {
    pub(super) ledger: NodeLedger,
    /// The number of exits that the ledger has seen.
    seen: u64,
    /// Whether suspicions, or the settings about them, may have changed.
    is_changed: bool,
    settings: Option<NodeSettings>,
    /// Applications with many executors that are not settled.
    examined: BTreeMap<AppKey, Examined>,
    reported: BTreeMap<Arc<str>, Instant>,
    /// When it is next determined which suspect nodes are to be reported, unless suspicions change before.
    next_reports: Option<Instant>,
    /// When the pods of a suspect node were last asked for, and whether that is answered.
    reads: BTreeMap<Arc<str>, (Instant, bool)>,
}

/// Which executors of an application were examined.
#[derive(Debug)]
struct Examined {
    /// When the next ones are.
    due: Instant,
    /// When the first part was examined, the last executor of those that were, and the last at that time: if others are added without
    /// end, the first are examined again nevertheless. `None` if all were.
    rest: Option<(Instant, ExecutorKey, ExecutorKey)>,
}

impl Nodes {
    /// Records the exits since the last call.
    pub(super) fn record(&mut self, exits: &Exits, snapshot: &Snapshot, settings: &NodeSettings, now: Now) {
        let recorded = exits.recorded();
        let mut running = Running::new(snapshot);
        for exit in exits.history().from(self.seen) {
            self.is_changed |= self.ledger.record(exit, &mut running, settings, now);
        }
        self.seen = recorded;
    }

    /// Records what nodes do to executors of an application that have not started. Returns how many executors that examined, and
    /// when they are to be examined again, or the rest of them.
    pub(super) fn observe(
        &mut self,
        app: &AppKey,
        known: Option<&Application>,
        snapshot: &Snapshot,
        settings: &NodeSettings,
        now: Now,
    ) -> (usize, Option<Instant>) {
        self.is_changed |= self.ledger.retract_started(app, snapshot);
        let is_pending = |known: &&Application| known.counts().any(|counts| counts.pending > 0);
        let pending = known.filter(|known| settings.enabled && is_pending(known));
        let Some(unsettled) = pending.map(Application::unsettled) else {
            self.examined.remove(app);
            return (0, None);
        };
        if let Some(examined) = self.examined.get(app)
            && examined.due > now.at
        {
            return (0, Some(examined.due));
        }
        let rest = self.examined.remove(app).and_then(|examined| examined.rest);
        let Some((newest, _)) = unsettled.get_max() else { return (0, None) };
        let (began, behind, until) = match rest {
            Some((began, behind, until)) => (began, Bound::Excluded(behind), until),
            None => (now.at, Bound::Unbounded, newest.clone()),
        };
        let part = unsettled.len().div_ceil(PARTS).clamp(*PART.start(), *PART.end());
        let mut following = unsettled.range((behind, Bound::Included(until.clone()))).peekable();
        let (mut last, mut count) = (None, 0);
        let executors = following.by_ref().take(part).map(|(key, executor)| {
            (last, count) = (Some(key), count + 1);
            executor
        });
        self.is_changed |= self.ledger.observe(app, executors, &mut Running::new(snapshot), settings, now);
        let last = last.filter(|_| following.peek().is_some());
        let due = now.at + EXAMINE_INTERVAL;
        // One may change in a part that was examined, and followers have no other plans.
        let next = if last.is_some() { due } else { due.max(began + EXAMINE_ALL) };
        if unsettled.len() > FEW {
            let rest = last.map(|last| (began, last.clone(), until));
            self.examined.insert(app.clone(), Examined { due, rest });
        }
        (count, Some(next))
    }

    /// Ends suspicions whose time is over.
    pub(super) fn expire(&mut self, snapshot: &Snapshot, settings: &NodeSettings, now: Instant) {
        let ended = self.ledger.expire(snapshot, settings, now);
        for node in &ended {
            self.reported.remove(node);
            self.reads.remove(node);
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
        self.next_reports = None;
        let avoided = avoided(&self.ledger, snapshot, settings);
        (!avoided.iter().eq(snapshot.avoided_nodes.iter())).then_some(avoided)
    }

    /// Suspect nodes of which it is unknown, or known only from long ago, which schedulers placed their pods.
    pub(super) fn due_reads(&mut self, now: Instant) -> Vec<Arc<str>> {
        let mut in_flight = self.reads.values().filter(|(_, is_answered)| !is_answered).count();
        let mut due = Vec::new();
        for (name, _) in self.ledger.suspects().take(MAX_REPORTS) {
            let is_due = self
                .reads
                .get(name)
                .is_none_or(|(at, is_answered)| *is_answered && now.saturating_duration_since(*at) >= READ_INTERVAL);
            if is_due && in_flight < MAX_READS {
                in_flight += 1;
                due.push(name.clone());
            }
        }
        self.reads.extend(due.iter().map(|name| (name.clone(), (now, false))));
        due
    }

    /// Processes the answer to such a read.
    pub(super) fn schedulers_read(&mut self, node: &Arc<str>, answer: LookupResult) {
        if let Some((_, is_answered)) = self.reads.get_mut(node) {
            *is_answered = true;
            self.next_reports = None;
        }
        if let LookupResult::NodePods(schedulers) = answer {
            self.ledger.schedulers_read(node, schedulers);
        }
    }

    /// The suspect nodes that are to be reported now.
    pub(super) fn reports(&mut self, snapshot: &Snapshot, settings: &NodeSettings, now: Instant) -> Vec<NodeReport> {
        // `READ_LIMIT` and `REPORT_INTERVAL` pass, and Nodes appear, without a notice. Nothing wakes the controller for them: the next step
        // comes within `PRUNE_INTERVAL`.
        if self.next_reports.is_some_and(|next| now < next) {
            return Vec::new();
        }
        self.next_reports = Some(now + REPORTS_INTERVAL);
        let Nodes { ledger, reported, reads, .. } = self;
        let mut due: Vec<(&Arc<str>, &Suspicion)> = ledger.suspects().collect();
        due.retain(|(name, suspicion)| {
            if !snapshot.nodes.contains_key(*name) {
                return false;
            }
            // The message names the schedulers, if they become known soon.
            let is_read = reads.get(&**name).is_some_and(|(_, is_answered)| *is_answered);
            let at = reported.get(&**name);
            (is_read || now.saturating_duration_since(suspicion.since) >= READ_LIMIT)
                && at.is_none_or(|at| now.saturating_duration_since(*at) >= REPORT_INTERVAL)
        });
        due.sort_unstable_by(|(a, of_a), (b, of_b)| of_b.executors.cmp(&of_a.executors).then_with(|| a.cmp(b)));
        let mut reports = Vec::new();
        for (name, suspicion) in due.into_iter().take(MAX_REPORTS) {
            let Some(node) = snapshot.nodes.get(name) else { continue };
            reported.insert(name.clone(), now);
            let schedulers = ledger.of(name).and_then(|record| record.schedulers.as_ref());
            let is_avoided = snapshot.avoided_nodes.contains(name);
            let message = message(suspicion, &node.kubelet, schedulers, settings, is_avoided);
            reports.push(NodeReport { node: name.clone(), uid: node.uid.clone(), message });
        }
        reports
    }

    /// This replica no longer leads: the next leader reports.
    pub(super) fn forget_reports(&mut self) {
        self.reported.clear();
        self.next_reports = None;
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
    suspects.truncate(settings.max_avoided(snapshot.nodes.len()));
    let mut names: Vec<Arc<str>> = suspects.into_iter().map(|(_, name)| name.clone()).collect();
    names.sort_unstable();
    names
}

/// What an Event on the Node states.
fn message(
    suspicion: &Suspicion,
    kubelet: &str,
    schedulers: Option<&BTreeMap<Arc<str>, usize>>,
    settings: &NodeSettings,
    is_avoided: bool,
) -> String {
    let Suspicion { executors, apps, kind, .. } = suspicion;
    let minutes = settings.window.as_secs() / 60;
    let kubelet = if kubelet.is_empty() { String::new() } else { format!(" (kubelet {kubelet})") };
    let schedulers = schedulers.filter(|schedulers| schedulers.len() > 1).map_or_else(String::new, |schedulers| {
        let mut all: Vec<(&Arc<str>, &usize)> = schedulers.iter().collect();
        all.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        // Tenants write the names.
        let named = all.iter().take(MAX_NAMED).map(|(name, count)| format!("{} ({count})", shown(name)));
        let more = if all.len() > MAX_NAMED { format!(" and {} more", all.len() - MAX_NAMED) } else { String::new() };
        let named = named.collect::<Vec<_>>().join(", ");
        format!("; more than one scheduler places pods here: {named}{more}")
    });
    let avoided = if is_avoided { "; new executors avoid the node" } else { "" };
    format!(
        "{executors} Spark executors of {apps} applications failed here within {minutes} minutes, most by {kind}{kubelet}: {}{schedulers}{avoided}",
        kind.cure()
    )
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use serde_json::json;

    use super::*;
    use crate::snapshot::{ObservedPod, PodChange, SchedulingKeys};
    use usher_spark::pod::Pod;

    fn pending(number: usize) -> ObservedPod {
        let pod = json!({
            "metadata": {"namespace": "default", "name": format!("e{number}"), "uid": format!("u{number}"),
                "labels": {"spark-role": "executor", "spark-app-selector": "spark-1", "spark-exec-id": number.to_string()}},
            "spec": {"nodeName": "w", "containers": []}, "status": {"phase": "Pending"}})
        .to_string();
        ObservedPod::of(&Pod::read_whole(pod.as_bytes()).unwrap(), &SchedulingKeys::default()).unwrap()
    }

    /// An application with this many pending executors, which is planned only when that is due.
    struct Cluster {
        app: AppKey,
        snapshot: Snapshot,
        nodes: Nodes,
        begin: Instant,
        at: Instant,
    }

    impl Cluster {
        fn new(executors: usize) -> Cluster {
            let begin = crate::test_time::instant();
            let (app, snapshot, nodes) = (AppKey::new("default", "spark-1"), Snapshot::default(), Nodes::default());
            let mut cluster = Cluster { app, snapshot, nodes, begin, at: begin };
            (1..=executors).for_each(|number| cluster.add(number));
            cluster
        }

        fn add(&mut self, number: usize) {
            self.snapshot.apply(PodChange::Observed(pending(number)));
        }

        fn remove(&mut self, number: usize) {
            self.snapshot.apply(PodChange::Deleted(pending(number)));
        }

        fn seconds(&self) -> u64 {
            self.at.duration_since(self.begin).as_secs()
        }

        /// How many executors a plan examines.
        fn plan(&mut self) -> usize {
            let now = Now { at: self.at, wall: Timestamp::UNIX_EPOCH };
            let known = self.snapshot.apps.get(&self.app).map(|known| &**known);
            let (count, next) = self.nodes.observe(&self.app, known, &self.snapshot, &NodeSettings::default(), now);
            self.at = next.unwrap();
            count
        }
    }

    #[test]
    fn each_pending_executor_of_a_large_application_is_examined_once_a_minute() {
        for executors in [1, 256, 300, 7_681, 12_000] {
            let mut cluster = Cluster::new(executors);
            let (mut examined, mut max) = (0, 0);
            while cluster.seconds() < 60 {
                let count = cluster.plan();
                (examined, max) = (examined + count, max.max(count));
            }
            assert_eq!((examined, cluster.seconds()), (executors, 60), "{executors}");
            assert!(max <= executors.div_ceil(PARTS).max(256), "{max} of {executors} at once");
        }
    }

    #[test]
    fn first_executors_are_examined_a_minute_later_although_most_have_started_meanwhile() {
        let mut cluster = Cluster::new(7_680);
        while cluster.seconds() < 40 {
            assert_eq!(cluster.plan(), 256);
        }
        (101..=7_680).for_each(|number| cluster.remove(number));
        assert_eq!((cluster.plan(), cluster.seconds()), (0, 60));
        assert_eq!(cluster.plan(), 100);
    }

    #[test]
    fn first_executors_are_examined_again_although_others_are_created_without_end() {
        let mut cluster = Cluster::new(1_000);
        let mut last = 1_000;
        let mut examined = 0;
        while cluster.seconds() < 60 {
            examined += cluster.plan();
            (last + 1..=last + 600).for_each(|number| cluster.add(number));
            // All but the first few have started soon.
            (last - 800..=last - 200).filter(|number| *number > 10).for_each(|number| cluster.remove(number));
            last += 600;
        }
        // A round ends with the executors that existed when it began.
        assert!((1..=1_000).contains(&examined), "{examined}");
    }
}
