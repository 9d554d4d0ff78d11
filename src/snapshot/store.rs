//! The snapshot store: Spark's `ExecutorPodsSnapshotsStoreImpl` for all applications of a cluster at once (SPARK.md §3).
//!
//! Pure: the time is an argument, and nothing runs here. A subscriber is handed a [`Batch`] when it is due
//! ([`Store::take`]) and says how it went ([`Store::done`], [`Store::failed`]); whoever owns the store does the calling.
//!
//! One difference from Spark is deliberate. There every update appends a whole snapshot to every subscriber's queue, so a
//! subscriber that stalls makes the queue grow with the events. Here a batch is coalesced: the newest picture, the
//! applications that changed, and apart from that each executor's first sighting in a final state and its departure.
//! Memory is bounded by pods, and no transition into a final state is ever lost, however long a subscriber sleeps.

use std::sync::Arc;
use std::time::{Duration, Instant};

use indexmap::{IndexMap, IndexSet};
use jiff::Timestamp;
use smol_str::SmolStr;

use super::change::{Change, Departed, Effect, Ended};
use super::facts::Executor;
use super::{Replaced, Snapshot};
use crate::plant::{self, Bug};
use crate::spark::ids::{AppKey, PodKey, is_newer};

/// What a subscriber has not been told yet.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// The newest picture.
    pub snapshot: Snapshot,
    /// When the newest full list was read; `None` before the first.
    pub full: Option<Timestamp>,
    /// Applications that changed.
    pub touched: IndexSet<AppKey>,
    /// Executors, by uid, as they were when they were first seen in a final state.
    pub ended: IndexMap<Arc<str>, Ended>,
    /// The further ends of those that ended, ran again, and ended again since, by uid, in their order.
    pub ended_again: IndexMap<Arc<str>, Vec<Ended>>,
    /// Executors, by uid, that run again after a final state.
    pub revived: IndexMap<Arc<str>, (AppKey, Arc<Executor>)>,
    /// Executors, by uid, whose pods are gone.
    pub departed: IndexMap<Arc<str>, Departed>,
}

impl Batch {
    /// Whether nothing happened.
    pub fn is_empty(&self) -> bool {
        self.touched.is_empty() && self.ended.is_empty() && self.departed.is_empty()
    }

    /// Earlier news wins: the first final sighting tells why, what follows is the cleaning up.
    fn add(&mut self, effect: &Effect) {
        self.touched.extend(effect.touched.iter().cloned());
        for ended in effect.ended.iter().filter(|_| !plant::is(Bug::EndLostInBatch)) {
            let uid = &ended.executor.uid;
            if self.ended.contains_key(uid) && self.revived.contains_key(uid) {
                self.ended_again.entry(uid.clone()).or_default().push(ended.clone());
            } else {
                self.ended.entry(uid.clone()).or_insert_with(|| ended.clone());
            }
        }
        let revived = effect.revived.iter();
        self.revived.extend(revived.map(|(app, executor)| (executor.uid.clone(), (app.clone(), executor.clone()))));
        for departed in effect.departed.iter().filter(|_| !plant::is(Bug::DepartureIgnored)) {
            self.departed.insert(departed.executor.uid.clone(), departed.clone());
        }
    }
}

/// A batch of so many ends is due at once.
const LARGE: usize = 1024;

/// When a subscriber is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Calls {
    /// In every interval, also when nothing happened: Spark's way, for whoever has clocks of his own to look at.
    Always,
    /// Only when something happened.
    WithNews,
}

/// A subscriber's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubscriberId(usize);

#[derive(Debug)]
struct Subscriber {
    interval: Duration,
    calls: Calls,
    next: Instant,
    notified: bool,
    running: bool,
    /// What came since its last batch; the picture is put in when it is taken.
    pending: Batch,
}

/// See the module's text.
#[derive(Debug, Default)]
pub struct Store {
    snapshot: Snapshot,
    full: Option<Timestamp>,
    /// Up to where the watch of pods has shown everything.
    shown: Option<SmolStr>,
    subscribers: Vec<Subscriber>,
    stopped: bool,
}

impl Store {
    /// The picture as it is now.
    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// When the newest full list was read.
    pub fn full(&self) -> Option<Timestamp> {
        self.full
    }

    /// Adds a subscriber. Its first batch is due at once and holds the present picture.
    pub fn subscribe(&mut self, interval: Duration, calls: Calls, now: Instant) -> SubscriberId {
        let all = Effect {
            touched: self.snapshot.apps.keys().cloned().collect(),
            ended: self.snapshot.finals().collect(),
            ..Effect::default()
        };
        let mut pending = Batch::default();
        pending.add(&all);
        self.subscribers.push(Subscriber { interval, calls, next: now, notified: true, running: false, pending });
        SubscriberId(self.subscribers.len() - 1)
    }

    /// Takes a change in. Executors that may still be there are returned and are not news yet: a list may be older than what
    /// was seen, and a pod whose labels changed leaves a watch by label. Who has looked by name tells by [`Store::gone`].
    pub fn apply(&mut self, change: Change, now: Timestamp) -> Vec<Departed> {
        if matches!(change, Change::Replaced(Replaced::Pods(_))) {
            self.full = Some(now);
        }
        let mut effect = self.snapshot.apply(change);
        for ended in &mut effect.ended {
            // The watch would have shown an earlier end.
            if let Some(shown) = &self.shown
                && ended.after.as_ref().is_none_or(|after| is_newer(shown, after))
            {
                ended.after = Some(shown.clone());
            }
        }
        let (unsure, sure) =
            std::mem::take(&mut effect.departed).into_iter().partition(|departed| !departed.absence.is_certain());
        effect.departed = sure;
        self.tell(&effect);
        unsure
    }

    /// The watch of pods has shown everything up to this resourceVersion.
    pub fn shown(&mut self, version: &str) {
        self.shown = Some(version.into());
    }

    /// A poll read the full truth.
    pub fn refreshed(&mut self, at: Timestamp) {
        self.full = Some(at);
    }

    /// Forgets what nothing in the picture names any more.
    pub fn tidy(&mut self) {
        self.snapshot.forget_nodes();
    }

    /// Takes a pod out of the picture that is gone for certain, although nobody told: who has looked tells by
    /// [`Store::gone`] what became of it.
    pub fn forget(&mut self, pod: &PodKey, uid: &Arc<str>) {
        let effect = self.snapshot.apply(Change::PodGone(pod.clone(), uid.clone()));
        self.tell(&Effect { departed: Vec::new(), ..effect });
    }

    /// An executor's pod is gone for certain.
    pub fn gone(&mut self, departed: Departed) {
        let touched = vec![departed.app.clone()];
        self.tell(&Effect { touched, departed: vec![departed], ..Effect::default() });
    }

    fn tell(&mut self, effect: &Effect) {
        for subscriber in self.subscribers.iter_mut().filter(|_| !self.stopped) {
            subscriber.pending.add(effect);
            // A batch is worked off in parts, and is not to grow meanwhile.
            subscriber.notified |= subscriber.pending.ended.len() + subscriber.pending.departed.len() >= LARGE;
        }
    }

    /// Everybody is due at once (`notifySubscribers`).
    pub fn notify(&mut self) {
        for subscriber in &mut self.subscribers {
            subscriber.notified = true;
        }
    }

    /// The batch of a subscriber that is due, and is not being called already.
    pub fn take(&mut self, SubscriberId(at): SubscriberId, now: Instant) -> Option<Batch> {
        let subscriber = self.subscribers.get_mut(at).filter(|subscriber| !self.stopped && !subscriber.running)?;
        let news = subscriber.calls == Calls::Always || !subscriber.pending.is_empty();
        if !(subscriber.notified || (subscriber.next <= now && news)) {
            return None;
        }
        subscriber.running = true;
        // A notification that comes while it runs counts for the next time: none is lost.
        subscriber.notified = false;
        let news = std::mem::take(&mut subscriber.pending);
        Some(Batch { snapshot: self.snapshot.clone(), full: self.full, ..news })
    }

    /// A subscriber has worked its batch off. The next is due an interval later.
    pub fn done(&mut self, SubscriberId(at): SubscriberId, now: Instant) {
        if let Some(subscriber) = self.subscribers.get_mut(at) {
            subscriber.running = false;
            subscriber.next = now + subscriber.interval;
        }
    }

    /// A subscriber has failed: it gets the same again an interval later, with what came since. Spark drops the batch.
    pub fn failed(&mut self, id: SubscriberId, batch: Batch, now: Instant) {
        self.done(id, now);
        let Some(subscriber) = self.subscribers.get_mut(id.0) else { return };
        let later = std::mem::replace(&mut subscriber.pending, Batch { snapshot: Snapshot::default(), ..batch });
        let before = &mut subscriber.pending;
        before.touched.extend(later.touched);
        for (uid, end) in later.ended {
            if before.ended.contains_key(&uid) {
                before.ended_again.entry(uid).or_default().push(end);
            } else {
                before.ended.insert(uid, end);
            }
        }
        before.revived.extend(later.revived);
        for (uid, ends) in later.ended_again {
            before.ended_again.entry(uid).or_default().extend(ends);
        }
        before.departed.extend(later.departed);
    }

    /// When somebody is due next; `None` when only news can make it so.
    pub fn next(&self, now: Instant) -> Option<Instant> {
        (0..self.subscribers.len()).filter_map(|at| self.next_of(SubscriberId(at), now)).min()
    }

    /// When this subscriber is due next; `None` when only news can make it so.
    pub fn next_of(&self, SubscriberId(at): SubscriberId, now: Instant) -> Option<Instant> {
        let subscriber = self.subscribers.get(at).filter(|subscriber| !self.stopped && !subscriber.running)?;
        let news = subscriber.calls == Calls::Always || !subscriber.pending.is_empty();
        if subscriber.notified { Some(now) } else { news.then_some(subscriber.next) }
    }

    /// Nobody is called any more, and nothing is kept for anybody.
    pub fn stop(&mut self) {
        self.stopped = true;
        for subscriber in &mut self.subscribers {
            subscriber.pending = Batch::default();
        }
    }
}
