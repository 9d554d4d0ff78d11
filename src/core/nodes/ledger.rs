//! The faults of each node, and which nodes are suspect because of them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;
use std::time::{Duration, Instant};

use imbl::{HashMap, OrdMap, Vector};

use super::fault::{self, FaultKind, Found, NodeFault};
use crate::lifecycle::exit::Exit;
use crate::policy::NodeSettings;
use crate::snapshot::{Application, Executor, Snapshot, Stage};
use usher_spark::ids::AppKey;
use usher_spark::time::Now;

/// At most this many faults of one node are kept,
pub const MAX_FAULTS: usize = 64;
/// and of one application on it this many: one that fails again and again must not displace the others.
const MAX_OF_APP: usize = 16;
/// An application whose executors fail on more nodes than this, and run on none, is broken itself.
const MAX_SPREAD: usize = 3;
/// At most this many nodes are kept.
const MAX_NODES: usize = 5000;
/// An executor that is bound to a node and reports nothing counts as not started after this time.
const NOT_STARTED_AFTER: Duration = Duration::from_secs(300);
/// A pending executor counts against its node only if it has not started after this time: a container that could not be created, or an
/// image that could not be pulled, is tried again.
const PENDING_FAULT_AFTER: Duration = Duration::from_secs(60);
/// At most this many of the oldest executors of an application, and of the newest, are asked whether they run elsewhere.
const MAX_ASKED: usize = 2048;
/// [`NodeLedger::expire`] judges at most this many suspect nodes again,
const MAX_JUDGED: usize = 256;
/// and forgets no further node after this many faults.
const MAX_FORGOTTEN: usize = 1024;

/// What is known against a node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeRecord {
    /// Its last faults, the oldest first.
    pub faults: Vector<Arc<NodeFault>>,
    /// The suspicion, if it is suspect.
    pub suspicion: Option<Suspicion>,
    /// How many pods on it each scheduler has placed, if that was read.
    pub schedulers: Option<BTreeMap<Arc<str>, usize>>,
}

/// Why a node is suspect, and how long.
#[derive(Clone, Debug, PartialEq)]
pub struct Suspicion {
    /// Since when.
    pub since: Instant,
    /// When it ends, unless executors fail on the node again.
    pub until: Instant,
    /// How many different executors failed within the window.
    pub executors: usize,
    /// Of how many applications.
    pub apps: usize,
    /// What happened most often.
    pub kind: FaultKind,
}

impl NodeRecord {
    /// How often each kind of fault happened, as far as faults are kept; the most frequent first.
    pub fn kinds(&self) -> Vec<(FaultKind, usize)> {
        let mut counts: BTreeMap<FaultKind, usize> = BTreeMap::new();
        for fault in &self.faults {
            *counts.entry(fault.kind).or_default() += 1;
        }
        let mut counts: Vec<(FaultKind, usize)> = counts.into_iter().collect();
        counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        counts
    }

    /// When something happened last.
    fn last(&self) -> Option<Instant> {
        self.faults.iter().map(|fault| fault.at).max()
    }

    fn knows(&self, uid: &str) -> bool {
        self.faults.iter().any(|fault| *fault.uid == *uid)
    }

    /// Whether the record is full of faults of this application, and the oldest is of a pending executor. One more would replace it, be
    /// replaced in turn, and add no evidence.
    fn is_full_of(&self, app: &AppKey, window: Duration, now: Instant) -> bool {
        let mut of_app = self.faults.iter().filter(|fault| fault.app == *app);
        let is_oldest_pending =
            of_app.next().is_some_and(|oldest| oldest.is_pending && now.saturating_duration_since(oldest.at) <= window);
        is_oldest_pending && of_app.count() + 1 >= MAX_OF_APP
    }

    /// Adds a fault. Returns the one that it displaces.
    fn add(&mut self, fault: NodeFault) -> Option<Arc<NodeFault>> {
        let of_app = self.faults.iter().filter(|known| known.app == fault.app).count();
        let oldest = match of_app >= MAX_OF_APP {
            true => self.faults.iter().position(|known| known.app == fault.app),
            false => (self.faults.len() >= MAX_FAULTS).then_some(0),
        };
        let displaced = oldest.map(|at| self.faults.remove(at));
        self.faults.push_back(Arc::new(fault));
        displaced
    }

    /// The suspicion that its faults within a time justify.
    fn judge(&self, settings: &NodeSettings, within: Duration, spread: &Spread, now: Instant) -> Option<Suspicion> {
        let is_recent = |fault: &&Arc<NodeFault>| {
            let age = now.saturating_duration_since(fault.at);
            spread.counts(fault) && age <= within
        };
        let recent: Vec<&Arc<NodeFault>> = self.faults.iter().filter(is_recent).collect();
        // One job that is submitted again and again must not condemn a node either.
        let apps: BTreeSet<(&str, &str)> = recent.iter().map(|fault| fault.job()).collect();
        let namespaces: BTreeSet<&str> = apps.iter().map(|(namespace, _)| *namespace).collect();
        let is_enough = recent.len() >= settings.executors
            && apps.len() >= settings.applications
            && namespaces.len() >= settings.namespaces;
        let last = recent.iter().map(|fault| fault.at).max().filter(|_| is_enough)?;
        let kind = self.kinds().into_iter().find(|(kind, _)| recent.iter().any(|fault| fault.kind == *kind))?.0;
        let until = last.checked_add(settings.expires).unwrap_or(last);
        Some(Suspicion { since: now, until, executors: recent.len(), apps: apps.len(), kind })
    }
}

/// On which nodes the executors of each application failed.
#[derive(Clone, Debug, Default)]
struct Spread(HashMap<AppKey, FaultsOfApp>);

#[derive(Clone, Debug, Default)]
struct FaultsOfApp {
    /// How many faults each node has.
    nodes: OrdMap<Arc<str>, usize>,
    /// How many of all are of pending executors.
    pending: usize,
}

impl Spread {
    fn add(&mut self, fault: &NodeFault, node: &Arc<str>) {
        let of_app = self.0.entry(fault.app.clone()).or_default();
        *of_app.nodes.entry(node.clone()).or_default() += 1;
        of_app.pending += usize::from(fault.is_pending);
    }

    fn remove(&mut self, fault: &NodeFault, node: &str) {
        let Some(of_app) = self.0.get_mut(&fault.app) else { return };
        if let Some(count) = of_app.nodes.get_mut(node) {
            *count -= 1;
            of_app.pending -= usize::from(fault.is_pending);
            if *count == 0 {
                of_app.nodes.remove(node);
            }
        }
        if of_app.nodes.is_empty() {
            self.0.remove(&fault.app);
        }
    }

    /// Whether a fault counts against its node. An application that fails on many nodes and runs on none is broken itself.
    fn counts(&self, fault: &NodeFault) -> bool {
        let nodes = self.0.get(&fault.app).map_or(0, |of_app| of_app.nodes.len());
        // Where a registry fails, images cannot be pulled on any node.
        let ran_elsewhere = fault.ran_elsewhere && (fault.kind != FaultKind::ImageError || nodes <= MAX_SPREAD);
        ran_elsewhere || (!fault.kind.may_be_by_pod() && nodes <= MAX_SPREAD)
    }
}

/// See the [module's text](super). Cloning it is cheap.
#[derive(Clone, Debug, Default)]
pub struct NodeLedger {
    spread: Spread,
    nodes: HashMap<Arc<str>, NodeRecord>,
    /// The names of the suspect ones.
    suspects: imbl::OrdSet<Arc<str>>,
    /// Nodes by the time of their last fault, for what is forgotten first.
    by_last: imbl::OrdSet<(Instant, Arc<str>)>,
    /// The suspect node that was judged again last; the next turn begins behind it.
    last_judged: Option<Arc<str>>,
}

impl NodeLedger {
    /// Every node with a fault.
    pub fn nodes(&self) -> impl Iterator<Item = (&Arc<str>, &NodeRecord)> {
        self.nodes.iter()
    }

    /// What is known against a node.
    pub fn of(&self, node: &str) -> Option<&NodeRecord> {
        self.nodes.get(node)
    }

    /// Whether a fault counts against its node.
    pub fn counts(&self, fault: &NodeFault) -> bool {
        self.spread.counts(fault)
    }

    /// The suspect nodes, by name.
    pub fn suspects(&self) -> impl Iterator<Item = (&Arc<str>, &Suspicion)> {
        self.suspects.iter().filter_map(|name| Some((name, self.nodes.get(name)?.suspicion.as_ref()?)))
    }

    /// Records an exit, if its node caused it. Returns whether its node became suspect.
    pub fn record(&mut self, exit: &Exit, running: &mut Running<'_>, settings: &NodeSettings, now: Now) -> bool {
        let Some(found) = fault::of_exit(exit) else { return false };
        // One that had exited before this process listed pods failed when its status states, as far as that is plausible.
        let age = match exit.was_over {
            true => now.wall.duration_since(exit.ended_at()).unsigned_abs(),
            false => Duration::ZERO,
        };
        let seen = Seen { app: &exit.app, executor: &exit.executor, age, is_pending: false };
        self.add(seen, found, running, settings, now)
    }

    /// Records what nodes do to those of these executors of an application that are bound and have not started. Returns whether a
    /// node became suspect.
    pub fn observe<'e>(
        &mut self,
        app: &AppKey,
        executors: impl Iterator<Item = &'e Arc<Executor>>,
        running: &mut Running<'_>,
        settings: &NodeSettings,
        now: Now,
    ) -> bool {
        let mut is_news = false;
        for executor in executors.filter(|executor| executor.stage() == Stage::Starting) {
            let late =
                executor.stage_seen().is_some_and(|seen| now.at.saturating_duration_since(seen) >= NOT_STARTED_AFTER);
            let has_tried =
                executor.stage_seen().is_some_and(|seen| now.at.saturating_duration_since(seen) >= PENDING_FAULT_AFTER);
            let of_pending = has_tried.then(|| fault::of_pending(executor)).flatten();
            let found = of_pending.or_else(|| late.then(|| fault::not_started(executor)).flatten());
            if let Some(found) = found {
                let seen = Seen { app, executor, age: Duration::ZERO, is_pending: true };
                is_news |= self.add(seen, found, running, settings, now);
            }
        }
        is_news
    }

    fn add(
        &mut self,
        seen: Seen<'_>,
        found: Found,
        running: &mut Running<'_>,
        settings: &NodeSettings,
        now: Now,
    ) -> bool {
        let Seen { app, executor, age, is_pending } = seen;
        let Some(node) = executor.node.clone().filter(|_| settings.enabled) else { return false };
        let snapshot = running.snapshot;
        let Some(at) = now.at.checked_sub(age).filter(|_| age <= settings.window) else { return false };
        // Any name can be written into a pod. The executors of a Node that was deleted are lost; nothing is wrong with it any more.
        if !exists(snapshot, &node) && !self.nodes.contains_key(&node) {
            return false;
        }
        let is_known = |record: &NodeRecord| {
            record.knows(&executor.uid) || (is_pending && record.is_full_of(app, settings.window, now.at))
        };
        if self.nodes.get(&node).is_some_and(is_known) {
            return false;
        }
        let Found { kind, resource, message } = found;
        let fault = NodeFault {
            at,
            time: now.wall.checked_sub(age).unwrap_or(now.wall),
            app: app.clone(),
            pod: executor.name.clone(),
            uid: executor.uid.clone(),
            kind,
            resource,
            message,
            is_pending,
            ran_elsewhere: running.is_elsewhere(app, &node),
        };
        self.spread.add(&fault, &node);
        let record = self.nodes.entry(node.clone()).or_default();
        if let Some(last) = record.last() {
            self.by_last.remove(&(last, node.clone()));
        }
        if let Some(displaced) = record.add(fault) {
            self.spread.remove(&displaced, &node);
        }
        let last = record.last().unwrap_or(at);
        let was_suspect = record.suspicion.is_some();
        // The executors of a node that was deleted are lost; no executor can avoid it, and nothing is wrong with it any more.
        let judged = Some(&*record).filter(|_| exists(snapshot, &node));
        if let Some(judged) = judged.and_then(|record| record.judge(settings, settings.window, &self.spread, now.at)) {
            let since = record.suspicion.as_ref().map_or(now.at, |known| known.since);
            record.suspicion = Some(Suspicion { since, ..judged });
        }
        let is_news = !was_suspect && record.suspicion.is_some();
        if is_news {
            self.suspects.insert(node.clone());
        }
        self.by_last.insert((last, node));
        let mut forgot_suspect = false;
        while self.nodes.len() > MAX_NODES
            && let Some(oldest) = self.forgotten_first()
        {
            self.by_last.remove(&oldest);
            forgot_suspect |= self.forget(&oldest.1);
        }
        is_news || forgot_suspect
    }

    /// The node whose last fault is the longest ago, preferably one that is not suspect.
    fn forgotten_first(&self) -> Option<(Instant, Arc<str>)> {
        let spare = self.by_last.iter().take(MAX_FAULTS).find(|(_, name)| !self.suspects.contains(name));
        spare.or_else(|| self.by_last.get_min()).cloned()
    }

    /// Faults of pending executors that have started since are void. Returns whether there were any.
    pub fn retract_started(&mut self, app: &AppKey, snapshot: &Snapshot) -> bool {
        let Some(of_app) = self.spread.0.get(app).filter(|of_app| of_app.pending > 0) else { return false };
        let runs = |fault: &NodeFault| {
            let known = snapshot.executor(app.namespace(), &fault.pod).filter(|(known_app, _)| *known_app == app);
            known.is_some_and(|(_, executor)| executor.uid == fault.uid && executor.stage() == Stage::Running)
        };
        let started: Vec<(Arc<str>, Arc<str>)> = of_app
            .nodes
            .keys()
            .filter_map(|node| self.nodes.get(node).map(|record| (node, record)))
            .flat_map(|(node, record)| record.faults.iter().map(move |fault| (node, fault)))
            .filter(|(_, fault)| fault.is_pending && fault.app == *app && runs(fault))
            .map(|(node, fault)| (node.clone(), fault.uid.clone()))
            .collect();
        let mut is_any = false;
        for (node, uid) in &started {
            let Some(record) = self.nodes.get_mut(node) else { continue };
            let Some(at) = record.faults.iter().position(|fault| fault.uid == *uid) else { continue };
            let last = record.last();
            let fault = record.faults.remove(at);
            if let Some(last) = last {
                self.by_last.remove(&(last, node.clone()));
            }
            self.spread.remove(&fault, node);
            match record.last() {
                Some(last) => _ = self.by_last.insert((last, node.clone())),
                None => _ = self.forget(node),
            }
            is_any = true;
        }
        is_any
    }

    /// The schedulers that placed the pods of a node were read.
    pub fn schedulers_read(&mut self, node: &str, schedulers: BTreeMap<Arc<str>, usize>) {
        if let Some(record) = self.nodes.get_mut(node) {
            record.schedulers = Some(schedulers);
        }
    }

    /// Ends suspicions whose time is over, or whose Node no longer exists, and forgets old faults. One call judges a bounded number of
    /// suspect nodes again, and forgets a bounded number of faults. Returns the nodes that are no longer suspect.
    pub fn expire(&mut self, snapshot: &Snapshot, settings: &NodeSettings, now: Instant) -> Vec<Arc<str>> {
        if !settings.enabled {
            return std::mem::take(self).suspects.into_iter().collect();
        }
        let is_over = |name: &Arc<str>, suspicion: &Suspicion| now >= suspicion.until || !exists(snapshot, name);
        let over = self.suspects().filter(|(name, suspicion)| is_over(name, suspicion));
        let mut ended: BTreeSet<Arc<str>> = over.map(|(name, _)| name.clone()).collect();
        // It may have become known since that an application is broken itself.
        let is_justified = |name: &Arc<str>| {
            let record = self.nodes.get(name);
            record.is_some_and(|record| record.judge(settings, Duration::MAX, &self.spread, now).is_some())
        };
        let behind = self.last_judged.take().map_or(Bound::Unbounded, Bound::Excluded);
        let following = self.suspects.range((behind, Bound::Unbounded)).chain(&self.suspects);
        for name in following.take(MAX_JUDGED.min(self.suspects.len())) {
            if !is_justified(name) {
                ended.insert(name.clone());
            }
            self.last_judged = Some(name.clone());
        }
        for name in &ended {
            if let Some(record) = self.nodes.get_mut(name) {
                record.suspicion = None;
                self.suspects.remove(name);
            }
        }
        // A fault is shown until it could no longer matter.
        let keep = settings.window.max(settings.expires);
        let mut forgotten = 0;
        while let Some((last, name)) = self.by_last.get_min().cloned()
            && now.saturating_duration_since(last) > keep
            && forgotten < MAX_FORGOTTEN
        {
            forgotten += self.nodes.get(&name).map_or(0, |record| record.faults.len());
            self.by_last.remove(&(last, name.clone()));
            if self.forget(&name) {
                ended.insert(name);
            }
        }
        ended.into_iter().collect()
    }

    /// Forgets a node. Returns whether it was suspect.
    fn forget(&mut self, name: &Arc<str>) -> bool {
        for fault in self.nodes.remove(name).iter().flat_map(|record| &record.faults) {
            self.spread.remove(fault, name);
        }
        self.suspects.remove(name).is_some()
    }
}

/// Whether a Node exists, as far as Nodes are known.
fn exists(snapshot: &Snapshot, node: &str) -> bool {
    snapshot.nodes.is_empty() || snapshot.nodes.contains_key(node)
}

/// Where executors of an application run.
enum RunsOn {
    Nowhere,
    One(Arc<str>),
    Several,
}

impl RunsOn {
    fn of(snapshot: &Snapshot, app: &AppKey) -> RunsOn {
        let ran = |app: &&Arc<Application>| app.counts().any(|counts| counts.ran > 0);
        let Some(app) = snapshot.apps.get(app).filter(ran) else { return RunsOn::Nowhere };
        let executors = || app.executors().values();
        // Those that run stand before the ones that start, and behind the ones that have ended.
        let asked = executors().take(MAX_ASKED).chain(executors().rev().take(MAX_ASKED));
        let mut nodes =
            asked.filter(|executor| executor.stage() == Stage::Running).filter_map(|executor| executor.node.as_ref());
        match nodes.next() {
            None => RunsOn::Nowhere,
            Some(one) if nodes.any(|node| node != one) => RunsOn::Several,
            Some(one) => RunsOn::One(one.clone()),
        }
    }

    /// Whether one runs on another node than this: then what fails here is not the application's own doing.
    fn is_elsewhere(&self, node: &str) -> bool {
        match self {
            RunsOn::Nowhere => false,
            RunsOn::One(one) => **one != *node,
            RunsOn::Several => true,
        }
    }
}

/// An executor in which a fault of its node was found.
#[derive(Clone, Copy)]
struct Seen<'v> {
    app: &'v AppKey,
    executor: &'v Executor,
    /// How long ago that was.
    age: Duration,
    /// Whether it has not started.
    is_pending: bool,
}

/// Where the executors of applications run in a snapshot, computed once for each of them.
pub struct Running<'s> {
    snapshot: &'s Snapshot,
    apps: BTreeMap<AppKey, RunsOn>,
}

impl<'s> Running<'s> {
    /// Nothing is computed yet.
    pub fn new(snapshot: &'s Snapshot) -> Self {
        Running { snapshot, apps: BTreeMap::new() }
    }

    fn is_elsewhere(&mut self, app: &AppKey, node: &str) -> bool {
        let snapshot = self.snapshot;
        self.apps.entry(app.clone()).or_insert_with(|| RunsOn::of(snapshot, app)).is_elsewhere(node)
    }
}
