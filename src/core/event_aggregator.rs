//! Kubernetes Events about exits: one per driver and cause, with a count, and a bounded rate of writes per namespace.
//!
//! An application with hundreds of evicted executors has one Event with a count of some hundreds, not hundreds of Events that
//! push everything else out of `kubectl describe`.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::lifecycle::cause::Cause;
use crate::lifecycle::exit::Exit;
use crate::snapshot::{Owner, Snapshot};
use usher_spark::ids::{PodIdentity, PodKey};

/// At most this many Events may be written in a burst in one namespace,
const BURST: u32 = 10;
/// and then one per this interval.
const REFILL: Duration = Duration::from_secs(5);
/// A subject without an exit for this long is forgotten; the next exit creates a new Event.
const FORGET_AFTER: Duration = Duration::from_secs(1800);
/// At most this many subjects are kept.
const MAX_SUBJECTS: usize = 10_000;

/// What an Event is about: a pod by uid, and a cause.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Subject {
    /// The driver's pod; the executor's own if there is none.
    pub pod: PodKey,
    pub uid: Arc<str>,
    /// Why executors exited.
    pub cause: Cause,
    /// Whether the previous leader may have reported these exits.
    pub possibly_reported: bool,
}

/// An Event to be written.
#[derive(Clone, Debug, PartialEq)]
pub struct AggregatedEvent {
    /// What it is about.
    pub subject: Subject,
    /// How many exits so far.
    pub count: u32,
    /// Describes the first of them. It stays, because the API lets only the count of an Event change.
    pub message: String,
}

#[derive(Debug)]
struct Entry {
    count: u32,
    written: u32,
    in_flight: bool,
    message: String,
    last: Instant,
    /// The next write is not before this time.
    due: Instant,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct EventAggregator {
    entries: BTreeMap<Subject, Entry>,
    buckets: HashMap<Arc<str>, (u32, Instant)>,
}

impl EventAggregator {
    /// Counts an exit, if its cause is abnormal.
    pub fn add(&mut self, exit: &Exit, snapshot: &Snapshot, now: Instant) {
        if !exit.cause.is_abnormal() {
            return;
        }
        let subject = subject(exit, snapshot);
        if self.entries.len() >= MAX_SUBJECTS && !self.entries.contains_key(&subject) {
            return; // The metric and the log contain it.
        }
        let entry = self.entries.entry(subject).or_insert_with(|| Entry {
            count: 0,
            written: 0,
            in_flight: false,
            message: message(exit),
            last: now,
            due: now,
        });
        entry.count = entry.count.saturating_add(1);
        entry.last = now;
    }

    /// The Events to write now.
    pub fn due(&mut self, now: Instant) -> Vec<AggregatedEvent> {
        self.entries.retain(|_, entry| entry.in_flight || now.saturating_duration_since(entry.last) < FORGET_AFTER);
        self.buckets.retain(|_, (_, filled)| now.saturating_duration_since(*filled) < REFILL * BURST);
        let mut due = Vec::new();
        for (subject, entry) in &mut self.entries {
            if entry.in_flight || entry.written == entry.count || entry.due > now {
                continue;
            }
            let namespace: Arc<str> = subject.pod.namespace().into();
            let (tokens, filled) = self.buckets.entry(namespace).or_insert((BURST, now));
            let fresh = now.saturating_duration_since(*filled).as_millis() / REFILL.as_millis();
            let fresh = u32::try_from(fresh).unwrap_or(u32::MAX);
            if fresh > 0 {
                *tokens = tokens.saturating_add(fresh).min(BURST);
                *filled = now;
            }
            if *tokens == 0 {
                continue;
            }
            *tokens -= 1;
            entry.in_flight = true;
            due.push(AggregatedEvent { subject: subject.clone(), count: entry.count, message: entry.message.clone() });
        }
        due
    }

    /// A write succeeded or failed. Either way the next one about the same subject waits a little: exits come in bursts.
    pub fn written(&mut self, notice: &AggregatedEvent, ok: bool, now: Instant) {
        if let Some(entry) = self.entries.get_mut(&notice.subject) {
            entry.in_flight = false;
            entry.due = now + REFILL;
            if ok {
                entry.written = notice.count;
            }
        }
    }

    /// When to call [`EventAggregator::due`] again.
    pub fn next(&self, now: Instant) -> Option<Instant> {
        let waiting = self.entries.values().filter(|entry| !entry.in_flight && entry.written != entry.count);
        waiting.map(|entry| if entry.due > now { entry.due } else { now + REFILL }).min()
    }

    /// Writes in flight are interrupted and retried: the Lease was lost, perhaps for a moment only.
    pub fn interrupt(&mut self) {
        self.entries.values_mut().for_each(|entry| entry.in_flight = false);
    }

    /// Another replica leads: nothing is written any more. Returns how many exits were counted and never written.
    pub fn clear(&mut self) -> u64 {
        let entries = std::mem::take(self).entries;
        entries.values().map(|entry| u64::from(entry.count.saturating_sub(entry.written))).sum()
    }

    /// The Events that are not written yet, at most `max`: nothing is written after this.
    pub fn flush(&mut self, max: usize) -> Vec<AggregatedEvent> {
        let open = self.entries.iter_mut().filter(|(_, entry)| !entry.in_flight && entry.written != entry.count);
        let notices = open.take(max).map(|(subject, entry)| {
            entry.in_flight = true;
            AggregatedEvent { subject: subject.clone(), count: entry.count, message: entry.message.clone() }
        });
        notices.collect()
    }
}

/// The pod that owns the executor, else the labelled driver's, else the executor's own.
fn subject(exit: &Exit, snapshot: &Snapshot) -> Subject {
    let labelled = snapshot.apps.get(&exit.app).and_then(|app| app.live_driver().or_else(|| app.drivers.first()));
    let namespace = exit.app.namespace();
    let owner = exit.executor.template.owner.as_ref().and_then(Owner::pod);
    let executor = || PodIdentity::new(namespace, &exit.executor.name, &exit.executor.uid);
    let owner = owner.map(|(name, uid)| PodIdentity { key: PodKey::new(namespace, &name), uid });
    let subject = owner.or_else(|| labelled.map(|driver| driver.identity(namespace))).unwrap_or_else(executor);
    Subject { pod: subject.key, uid: subject.uid, cause: exit.cause, possibly_reported: exit.possibly_reported }
}

fn message(exit: &Exit) -> String {
    let node = exit.executor.node.as_deref().map_or_else(String::new, |node| format!(" on {node}"));
    let detail = exit.detail();
    // The text is a sentence.
    let space = if detail.is_empty() { "" } else { " " };
    let perhaps = if exit.possibly_reported { " (may have been reported before)" } else { "" };
    format!("{} ({}{node}): {}{space}{detail}{perhaps}", exit.cause, exit.executor.name, exit.cause.text())
}
