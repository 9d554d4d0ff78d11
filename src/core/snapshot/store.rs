//! The snapshot store: Spark's `ExecutorPodsSnapshotsStoreImpl` for all applications of a cluster
//! (`docs/spark.md#snapshot-store`).
//!
//! Pure: the time is an argument, and nothing runs here. A subscriber receives a [`Batch`] when it is due
//! ([`Store::take`]) and says when it has processed it ([`Store::done`]); the owner of the store makes the calls.
//!
//! One difference from Spark is deliberate. There every update appends a whole snapshot to every subscriber's queue, so a
//! subscriber that stalls makes the queue grow with the events. Here a batch is coalesced: the newest snapshot, the
//! applications that changed, and separately each executor's first observed final state and its removal.
//! Memory is bounded by pods, and no transition into a final state is ever lost, however long a subscriber stalls.

use std::sync::Arc;
use std::time::{Duration, Instant};

use indexmap::{IndexMap, IndexSet};
use smol_str::SmolStr;

use super::change::{Change, Delta, Ended, PodChange, RemovedExecutor};
use super::facts::Executor;
use super::state::Snapshot;
use usher_spark::ids::{AppKey, PodKey, is_newer};

/// The changes that a subscriber has not received yet.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// The newest snapshot.
    pub snapshot: Snapshot,
    /// Applications that changed.
    pub touched: IndexSet<AppKey>,
    /// Executors, by uid, as they were first observed in a final state.
    pub ended: IndexMap<Arc<str>, Ended>,
    /// The later exits of executors that exited, ran again, and exited again since, by uid, in order.
    pub ended_again: IndexMap<Arc<str>, Vec<Ended>>,
    /// Executors, by uid, that run again after a final state.
    pub revived: IndexMap<Arc<str>, (AppKey, Arc<Executor>)>,
    /// Executors, by uid, whose pods were deleted.
    pub removed: IndexMap<Arc<str>, RemovedExecutor>,
}

impl Batch {
    /// Whether the batch contains no change.
    pub fn is_empty(&self) -> bool {
        self.touched.is_empty() && self.ended.is_empty() && self.removed.is_empty()
    }

    /// The earlier event wins: the first observed final state shows the cause, and later ones show the cleanup.
    fn add(&mut self, delta: &Delta) {
        self.touched.extend(delta.touched.iter().cloned());
        for ended in &delta.ended {
            let uid = &ended.executor.uid;
            if self.ended.contains_key(uid) && self.revived.contains_key(uid) {
                self.ended_again.entry(uid.clone()).or_default().push(ended.clone());
            } else {
                self.ended.entry(uid.clone()).or_insert_with(|| ended.clone());
            }
        }
        let revived = delta.revived.iter();
        self.revived.extend(revived.map(|(app, executor)| (executor.uid.clone(), (app.clone(), executor.clone()))));
        for removed in &delta.removed {
            self.removed.insert(removed.executor.uid.clone(), removed.clone());
        }
    }
}

/// A batch of at least this many exits and removals is due immediately.
const LARGE: usize = 1024;

/// When a subscriber is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notify {
    /// In every interval, also without changes, as in Spark: for a subscriber with timers of its own.
    Always,
    /// Only if something changed.
    OnChange,
}

/// A subscriber's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubscriberId(usize);

#[derive(Debug)]
struct Subscriber {
    interval: Duration,
    calls: Notify,
    next: Instant,
    notified: bool,
    running: bool,
    /// The changes since its last batch; [`Store::take`] adds the snapshot.
    pending: Batch,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct Store {
    snapshot: Snapshot,
    /// The resourceVersion up to which the watch of pods has delivered everything.
    shown_version: Option<SmolStr>,
    subscribers: Vec<Subscriber>,
}

impl Store {
    /// The current snapshot.
    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// Adds a subscriber. Its first batch is due immediately and contains the current snapshot.
    pub fn subscribe(&mut self, interval: Duration, calls: Notify, now: Instant) -> SubscriberId {
        let all = Delta {
            touched: self.snapshot.apps.keys().cloned().collect(),
            ended: self.snapshot.finals().collect(),
            ..Delta::default()
        };
        let mut pending = Batch::default();
        pending.add(&all);
        self.subscribers.push(Subscriber { interval, calls, next: now, notified: true, running: false, pending });
        SubscriberId(self.subscribers.len() - 1)
    }

    /// Applies a change. Returns executors that may still exist; their removal is not published yet: a list may be older than
    /// what was observed, and a pod whose labels changed leaves a watch by label. After a GET: [`Store::executor_removed`].
    pub fn apply(&mut self, change: impl Into<Change>) -> Vec<RemovedExecutor> {
        let mut delta = self.snapshot.apply(change);
        for ended in &mut delta.ended {
            // The watch would have delivered an earlier exit.
            if let Some(shown) = &self.shown_version
                && ended.after.as_ref().is_none_or(|after| is_newer(shown, after))
            {
                ended.after = Some(shown.clone());
            }
        }
        let (unsure, sure) =
            std::mem::take(&mut delta.removed).into_iter().partition(|removed| !removed.absence.is_certain());
        delta.removed = sure;
        self.record(&delta);
        unsure
    }

    /// The watch of pods has delivered everything up to this resourceVersion.
    pub fn shown(&mut self, version: &str) {
        self.shown_version = Some(version.into());
    }

    /// Prunes what the snapshot does not use any more.
    pub fn prune_unused(&mut self) {
        self.snapshot.forget_nodes();
    }

    /// Removes a pod that was certainly deleted, although no event reported it. The caller publishes the removal of an executor
    /// with [`Store::executor_removed`].
    pub fn forget(&mut self, pod: &PodKey, uid: &Arc<str>) {
        let delta = self.snapshot.apply(PodChange::Gone(pod.clone(), uid.clone()));
        self.record(&Delta { removed: Vec::new(), ..delta });
    }

    /// Publishes that an executor's pod was certainly deleted.
    pub fn executor_removed(&mut self, removed: RemovedExecutor) {
        let touched = vec![removed.app.clone()];
        self.record(&Delta { touched, removed: vec![removed], ..Delta::default() });
    }

    fn record(&mut self, delta: &Delta) {
        for subscriber in &mut self.subscribers {
            subscriber.pending.add(delta);
            // A batch is processed in parts, and must not grow meanwhile.
            subscriber.notified |= subscriber.pending.ended.len() + subscriber.pending.removed.len() >= LARGE;
        }
    }

    /// Makes every subscriber due immediately (`notifySubscribers`).
    pub fn notify(&mut self) {
        for subscriber in &mut self.subscribers {
            subscriber.notified = true;
        }
    }

    /// The batch of a subscriber, if it is due and is not being called already.
    pub fn take(&mut self, SubscriberId(at): SubscriberId, now: Instant) -> Option<Batch> {
        let subscriber = self.subscribers.get_mut(at).filter(|subscriber| !subscriber.running)?;
        let expects_call = subscriber.calls == Notify::Always || !subscriber.pending.is_empty();
        if !(subscriber.notified || (subscriber.next <= now && expects_call)) {
            return None;
        }
        subscriber.running = true;
        // A notification during the call counts for the next batch: none is lost.
        subscriber.notified = false;
        let pending = std::mem::take(&mut subscriber.pending);
        Some(Batch { snapshot: self.snapshot.clone(), ..pending })
    }

    /// A subscriber has processed its batch. The next is due one interval later.
    pub fn done(&mut self, SubscriberId(at): SubscriberId, now: Instant) {
        if let Some(subscriber) = self.subscribers.get_mut(at) {
            subscriber.running = false;
            subscriber.next = now + subscriber.interval;
        }
    }

    /// When this subscriber is due; `None` if only a change can make it due.
    pub fn next(&self, SubscriberId(at): SubscriberId, now: Instant) -> Option<Instant> {
        let subscriber = self.subscribers.get(at).filter(|subscriber| !subscriber.running)?;
        let expects_call = subscriber.calls == Notify::Always || !subscriber.pending.is_empty();
        if subscriber.notified { Some(now) } else { expects_call.then_some(subscriber.next) }
    }
}
