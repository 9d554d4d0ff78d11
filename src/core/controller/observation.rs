//! What this replica has observed: the store of applications, what the watches and lists deliver, and what polls and GETs confirm.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use smol_str::SmolStr;

use super::confirm::{Confirmations, Confirmed, PollResult};
use super::effects::{LookupResult, Settings};
use super::inbox::{Inbox, Incoming, MAX_OBJECTS_PER_STEP, PodList};
use super::lookup::Lookup;
use super::poll_schedule::PollSchedule;
use super::progress::Progress;
use super::tombstones::Tombstones;
use crate::lifecycle::exits::Exits;
use crate::snapshot::{
    Absence, Batch, Change, Notify, ObservedPod, PodChange, RelatedChange, Snapshot, Store, SubscriberId, Watched,
    may_exist,
};
use usher_spark::ids::{AppKey, PodKey, is_newer};
use usher_spark::lifecycle_conf::LifecycleConf;
use usher_spark::time::Now;

/// Minimum time between two batches of changed applications: a burst of pods is one plan.
pub(super) const PLAN_INTERVAL: Duration = Duration::from_millis(250);
/// How often exits are processed (`spark.kubernetes.executor.eventProcessingInterval`).
pub(super) const EXIT_INTERVAL: Duration = Duration::from_secs(1);
pub(super) const PODS: &str = "pods";
const NAMESPACES: &str = "namespaces";
const NODES: &str = "nodes";

/// What the planner has to know of what was observed.
#[derive(Debug, Default)]
pub(super) struct News {
    /// Every application is to be planned again.
    pub(super) requeue: bool,
    /// Labelled drivers that are gone, whose applications still have executors: their pods are followed by name from now on.
    pub(super) gone_drivers: Vec<(AppKey, PodKey, Arc<str>)>,
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct Observation {
    pub(super) store: Store,
    /// The store's subscribers: for plans, and for exits.
    plan_subscriber: SubscriberId,
    exit_subscriber: SubscriberId,
    pub(super) inbox: Inbox,
    /// The list of pods that is being received.
    pub(super) incoming_list: Option<PodList>,
    /// A list of pods is complete, and its resourceVersion follows.
    pub(super) list_completed: bool,
    pub(super) confirmations: Confirmations,
    pub(super) polls: PollSchedule,
    pub(super) progress: Progress,
    pub(super) newest_version: Option<SmolStr>,
    pub(super) tombstones: Tombstones,
    /// Which kinds of objects were listed.
    pub(super) synced: BTreeSet<&'static str>,
    pub(super) news: News,
}

impl Observation {
    pub(super) fn new(now: Instant, settings: Settings) -> Observation {
        let mut store = Store::default();
        let plan_subscriber = store.subscribe(PLAN_INTERVAL, Notify::OnChange, now);
        let exit_subscriber = store.subscribe(EXIT_INTERVAL, Notify::Always, now);
        Observation {
            store,
            plan_subscriber,
            exit_subscriber,
            inbox: Inbox::default(),
            incoming_list: None,
            list_completed: false,
            confirmations: Confirmations::new(settings.settle_time, settings.watch_silence),
            polls: PollSchedule::new(settings.seed),
            progress: Progress::default(),
            newest_version: None,
            tombstones: Tombstones::default(),
            synced: BTreeSet::new(),
            news: News::default(),
        }
    }

    pub(super) fn snapshot(&self) -> &Snapshot {
        self.store.snapshot()
    }

    /// Whether pods and namespaces were listed.
    pub(super) fn has_synced(&self) -> bool {
        self.synced.contains(PODS) && self.synced.contains(NAMESPACES)
    }

    /// Whether nodes were listed.
    pub(super) fn has_nodes(&self) -> bool {
        self.synced.contains(NODES)
    }

    /// The oldest version of an executor whose exit may not be recorded yet.
    pub(super) fn oldest_unsure(&self) -> Option<u64> {
        self.confirmations.oldest_version().into_iter().chain(self.progress.oldest_confirmed()).min()
    }

    /// Processes what was received and what lists prove, as much as one step may.
    pub(super) fn step(&mut self, exits: &mut Exits, now: Now) {
        if !self.inbox.is_empty() {
            self.process_inbox(exits, now);
        }
        if self.confirmations.has_proven() {
            self.apply_proven(now);
        }
        if self.confirmations.is_comparing() {
            self.continue_comparison();
        }
    }

    /// Drops tombstones and values that are no longer used.
    pub(super) fn prune(&mut self, now: Instant) {
        // The list of a poll that is in flight, or is being compared, may contain pods that were deleted since.
        if !self.polls.is_in_flight() && !self.confirmations.is_comparing() {
            self.tombstones.prune(now);
        }
        self.store.prune_unused();
    }

    /// When the next step has something to do. `polls` is whether this replica polls.
    pub(super) fn next_due(&self, polls: bool, now: Instant) -> Option<Instant> {
        let has_parts = !self.inbox.is_empty() || self.confirmations.has_proven() || self.confirmations.is_comparing();
        let parts = has_parts.then_some(now);
        let exits = self.store.next(self.exit_subscriber, now).filter(|_| self.synced.contains(PODS));
        let subscribers = self.store.next(self.plan_subscriber, now).into_iter().chain(exits);
        let poll = self.polls.next().filter(|_| polls);
        self.confirmations.next_due(now).into_iter().chain(parts).chain(subscribers).chain(poll).min()
    }

    /// The applications that changed since the last batch, if the next one is due; [`Observation::planned`] ends it.
    pub(super) fn take_changed(&mut self, now: Instant) -> Option<Batch> {
        self.store.take(self.plan_subscriber, now)
    }

    /// The batch of changed applications is enqueued.
    pub(super) fn planned(&mut self, now: Instant) {
        self.store.done(self.plan_subscriber, now);
    }

    /// The next batch of exits, if it is due; [`Observation::exits_recorded`] ends it. Only after a complete list: the rest of a list
    /// may contain the pods of their drivers.
    pub(super) fn take_exits(&mut self, now: Instant) -> Option<Batch> {
        if !self.synced.contains(PODS) {
            return None;
        }
        self.store.take(self.exit_subscriber, now)
    }

    /// The batch of exits is recorded.
    pub(super) fn exits_recorded(&mut self, now: Instant) {
        self.progress.end();
        self.store.done(self.exit_subscriber, now);
    }

    /// Compares a poll with the snapshot.
    pub(super) fn polled(&mut self, polled: PollResult, interval: Duration, exits: &mut Exits, now: Now) {
        let delta = LifecycleConf::default().missing_pod_delta.min(interval);
        exits.list_at(polled.version());
        self.confirmations.begin_comparison(polled, delta, now);
        self.continue_comparison();
    }

    /// The watch of pods is interrupted.
    pub(super) fn watch_interrupted(&mut self, now: Instant) {
        self.confirmations.watch_interrupted(now);
        // Events that were received before the interruption, and are not processed yet, must not end it.
        if !self.inbox.is_empty() {
            self.inbox.push(Incoming::Interrupted(now));
        }
    }

    /// The objects to read that confirm an absence.
    pub(super) fn due_reads(&mut self, now: Instant) -> Vec<Lookup> {
        let pods = self.confirmations.due_pods(self.store.snapshot(), now).into_iter().map(Lookup::Labelled);
        let namespaces = self.confirmations.due_namespaces(now).into_iter().map(Lookup::All);
        pods.chain(namespaces).collect()
    }

    /// Processes the answer to a list of all pods of a namespace.
    pub(super) fn namespace_listed(&mut self, namespace: &Arc<str>, answer: &LookupResult, now: Now) {
        let all = if let LookupResult::All(all) = answer { Some(all) } else { None };
        self.confirmations.namespace_listed(namespace, all, now.at);
        self.apply_proven(now);
    }

    fn observe_version(&mut self, seen: &ObservedPod) {
        let version = seen.version();
        if self.newest_version.as_ref().is_none_or(|newest| is_newer(version, newest)) {
            self.newest_version = Some(version.clone());
        }
    }

    /// Applies a change to the snapshot.
    pub(super) fn apply_change(&mut self, change: impl Into<Change>, now: Now) {
        let mut change = change.into();
        let mut driver_gone = None;
        match &mut change {
            // Stale events.
            Change::Pods(PodChange::Observed(seen)) if self.tombstones.is_stale(seen.uid(), seen.version()) => return,
            Change::Pods(PodChange::Deleted(seen)) if self.is_tombstoned(seen.uid()) => {
                return self.tombstones.deliver(seen.uid());
            }
            Change::Pods(PodChange::Observed(seen)) => {
                seen.observed_at(now.at);
                self.observe_version(seen);
            }
            // Plans wait for the list of namespaces.
            Change::Related(RelatedChange::Namespaces(Watched::Listed(_))) if self.synced.insert(NAMESPACES) => {
                self.news.requeue = true;
            }
            Change::Related(RelatedChange::Nodes(Watched::Listed(_))) => {
                self.synced.insert(NODES);
            }
            Change::Pods(PodChange::Gone(pod, uid)) => {
                // It left the watch before, and the snapshot, and waits for this proof.
                if let Some(removed) = self.confirmations.proven_gone(pod, uid) {
                    self.apply_confirmed(Confirmed::Gone(removed), now);
                }
                self.tombstones.add(uid);
                driver_gone = self.labelled_driver(pod, uid);
            }
            Change::Pods(PodChange::Deleted(seen)) => {
                seen.observed_at(now.at);
                self.observe_version(seen);
                match seen {
                    ObservedPod::Executor(_, executor) if may_exist(executor) => {}
                    _ => self.tombstones.add(seen.uid()),
                }
                driver_gone = self.labelled_driver(&seen.key(), seen.uid());
            }
            Change::Related(RelatedChange::Groups(_, Watched::Removed(key))) => {
                if let Some(uid) = self.snapshot().groups.get(key).map(|group| group.uid.clone()) {
                    self.tombstones.add(&uid);
                }
            }
            Change::Related(RelatedChange::GroupsListed(kind)) if !self.snapshot().listed.contains(kind) => {
                self.news.requeue = true; // Gangs wait for this list, and an empty one changes no application.
            }
            Change::Related(RelatedChange::Apis(apis)) => {
                // The list of an API that is no longer served, or is served in another version, is void.
                let changed = |kind: &&'static str| {
                    let had = self.store.snapshot().apis.as_ref().and_then(|had| had.get(kind));
                    had.is_some() && had != apis.get(kind)
                };
                let kinds: Vec<&'static str> = self.snapshot().listed.iter().copied().filter(changed).collect();
                for kind in kinds {
                    self.store.apply(RelatedChange::Unlisted(kind));
                }
            }
            _ => {}
        }
        for removed in self.store.apply(change) {
            self.tombstones.add_unselected(&removed.executor.uid, removed.executor.version.clone());
            // The deletion of an exited executor needs no confirmation; a live one may still exist.
            if removed.executor.state.is_final() {
                self.store.executor_removed(removed);
            } else if removed.absence == Absence::Unselected && self.confirmations.is_full() {
                // Without a deletionTimestamp only a label was removed, and the executor is alive: if very many are relabelled,
                // not each is confirmed with a GET.
            } else if let Some(before) = self.confirmations.confirm_absence(removed, now.at) {
                self.apply_confirmed(Confirmed::Gone(before), now);
            }
        }
        // The snapshot records the deletion of the driver, and follows the pod by name from now on.
        if let Some((app, pod, uid)) = driver_gone.filter(|(_, pod, _)| self.snapshot().referenced.contains_key(pod)) {
            self.news.gone_drivers.push((app, pod, uid));
        }
    }

    /// The application of the labelled driver of that uid, if it still has executors.
    fn labelled_driver(&self, pod: &PodKey, uid: &Arc<str>) -> Option<(AppKey, PodKey, Arc<str>)> {
        let (key, _) =
            self.snapshot().labelled_driver(pod.namespace(), pod.name()).filter(|(_, driver)| driver.uid == *uid)?;
        let app = self.snapshot().apps.get(key)?;
        (!app.executors().is_empty()).then(|| (key.clone(), pod.clone(), uid.clone()))
    }

    /// Whether the object of this uid was deleted recently.
    fn is_tombstoned(&self, uid: &str) -> bool {
        self.tombstones.contains(uid)
    }

    /// Applies the object in the answer to a write or a read, so that the next plan need not wait for the watch, unless the watch
    /// has shown a newer version. Versions of one object grow as numbers.
    pub(super) fn apply_written(&mut self, change: impl Into<Change>, now: Now) {
        let change = change.into();
        let is_new = match &change {
            Change::Related(RelatedChange::Groups(_, Watched::Upserted(key, group))) => {
                match self.snapshot().groups.get(key) {
                    Some(known) if known.uid == group.uid => is_newer(&group.version, &known.version),
                    _ => !self.is_tombstoned(&group.uid),
                }
            }
            // A list that is not older lacks the pod: it is deleted, and its late answer must not bring it back.
            Change::Pods(PodChange::Observed(seen)) => {
                let key = seen.key();
                let is_known = self.snapshot().labelled(key.namespace(), key.name()).is_some();
                is_known || !self.confirmations.list_covers(seen.version())
            }
            _ => true,
        };
        if is_new {
            self.apply_change(change, now);
        }
    }

    /// Compares a part of a poll with the snapshot.
    pub(super) fn continue_comparison(&mut self) {
        self.confirmations.continue_comparison(
            self.store.snapshot(),
            &self.tombstones,
            MAX_OBJECTS_PER_STEP,
            self.progress.position(),
        );
    }

    /// Processes the answer to a GET of a labelled pod.
    pub(super) fn confirmation_answered(&mut self, pod: &PodKey, answer: LookupResult, now: Now) {
        let seen = match answer {
            LookupResult::Labelled(seen) => Some(seen),
            LookupResult::Absent => None,
            _ => return self.confirmations.lookup_failed(pod, now.at),
        };
        let found = self.confirmations.lookup_answered(pod, seen.as_ref().map(|seen| &**seen.uid()));
        self.apply_confirmed(found, now);
        if let Some(seen) = seen {
            self.apply_written(PodChange::Observed(seen), now);
        }
    }

    pub(super) fn apply_confirmed(&mut self, found: Confirmed, now: Now) {
        match found {
            Confirmed::Gone(mut removed) => {
                let pod = PodKey::new(removed.app.namespace(), &removed.executor.name);
                let uid = removed.executor.uid.clone();
                if self.is_tombstoned(&uid) {
                    return; // The watch has shown the deletion meanwhile.
                }
                let known = self.snapshot().executor(pod.namespace(), pod.name());
                if let Some((_, known)) = known.filter(|(_, known)| known.uid == uid) {
                    // The watch may have shown a newer version since the poll.
                    if is_newer(&known.version, &removed.executor.version) {
                        removed.executor = known.clone();
                    }
                    self.store.forget(&pod, &uid);
                }
                self.tombstones.add_undelivered(&uid, now.at);
                self.progress.confirmed(&removed.executor.version);
                self.store.executor_removed(removed);
            }
            Confirmed::DriverGone(pod, uid) => {
                self.tombstones.add_undelivered(&uid, now.at);
                self.apply_change(PodChange::Gone(pod, uid), now);
            }
            Confirmed::Nothing => {}
        }
    }
}
