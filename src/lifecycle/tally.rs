//! Kubernetes Events about ends: one a driver and cause, which counts, and at most so many writes a namespace.
//!
//! An application whose executors are evicted by the hundred is one Event with a count of some hundreds, not hundreds of
//! Events that push everything else out of `kubectl describe`.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::cause::Cause;
use super::exit::Exit;
use crate::driver::resolve;
use crate::snapshot::Snapshot;
use crate::spark::ids::PodKey;

/// So many Events may be written at once in one namespace,
const BURST: u32 = 10;
/// and then one in so long.
const REFILL: Duration = Duration::from_secs(5);
/// A cause that nobody has met for so long is forgotten; the next is a new Event.
const FORGOTTEN: Duration = Duration::from_secs(1800);
/// More than so many are not kept.
const MOST: usize = 10_000;

/// What an Event is about: a pod by uid, and a cause.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Subject {
    /// The driver's pod; the executor's own where there is none.
    pub pod: PodKey,
    /// Its uid.
    pub uid: Arc<str>,
    /// Why executors ended.
    pub cause: Cause,
    /// Whether these ends may have been counted by the replica that led before.
    pub perhaps_told: bool,
}

/// An Event to be written.
#[derive(Clone, Debug, PartialEq)]
pub struct Notice {
    /// About what.
    pub subject: Subject,
    /// How many so far.
    pub count: u32,
    /// The first of them, for people. It stays, because the API lets only the count of an Event change.
    pub message: String,
}

#[derive(Debug)]
struct Entry {
    count: u32,
    written: u32,
    in_flight: bool,
    message: String,
    last: Instant,
    /// Not before.
    due: Instant,
}

/// See the module's text.
#[derive(Debug, Default)]
pub struct Tally {
    entries: BTreeMap<Subject, Entry>,
    buckets: HashMap<Arc<str>, (u32, Instant)>,
}

impl Tally {
    /// Counts an end, if it is one that somebody should hear of.
    pub fn count(&mut self, exit: &Exit, snapshot: &Snapshot, now: Instant) {
        if !exit.cause.is_abnormal() {
            return;
        }
        let subject = subject(exit, snapshot);
        if self.entries.len() >= MOST && !self.entries.contains_key(&subject) {
            return; // The metric and the log have it.
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

    /// What is to be written now.
    pub fn due(&mut self, now: Instant) -> Vec<Notice> {
        self.entries.retain(|_, entry| entry.in_flight || now.saturating_duration_since(entry.last) < FORGOTTEN);
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
            due.push(Notice { subject: subject.clone(), count: entry.count, message: entry.message.clone() });
        }
        due
    }

    /// A write went well, or did not. Either way the next about the same waits a little: counts come in bursts.
    pub fn written(&mut self, notice: &Notice, ok: bool, now: Instant) {
        if let Some(entry) = self.entries.get_mut(&notice.subject) {
            entry.in_flight = false;
            entry.due = now + REFILL;
            if ok {
                entry.written = notice.count;
            }
        }
    }

    /// When to ask again.
    pub fn next(&self, now: Instant) -> Option<Instant> {
        let waiting = self.entries.values().filter(|entry| !entry.in_flight && entry.written != entry.count);
        waiting.map(|entry| if entry.due > now { entry.due } else { now + REFILL }).min()
    }

    /// What was on the way is not, and is tried again: the lease was lost, perhaps for a moment only.
    pub fn interrupt(&mut self) {
        self.entries.values_mut().for_each(|entry| entry.in_flight = false);
    }

    /// Another replica leads: nothing is written any more. Returns how many ends were counted and never written.
    pub fn give_up(&mut self) -> u64 {
        let entries = std::mem::take(self).entries;
        entries.values().map(|entry| u64::from(entry.count.saturating_sub(entry.written))).sum()
    }

    /// Everything that is not written yet, at most so many: nothing is written after this.
    pub fn flush(&mut self, most: usize) -> Vec<Notice> {
        let open = self.entries.iter_mut().filter(|(_, entry)| !entry.in_flight && entry.written != entry.count);
        let notices = open.take(most).map(|(subject, entry)| {
            entry.in_flight = true;
            Notice { subject: subject.clone(), count: entry.count, message: entry.message.clone() }
        });
        notices.collect()
    }
}

/// The pod that owns it, else the labelled driver's, else the executor's own.
fn subject(exit: &Exit, snapshot: &Snapshot) -> Subject {
    let labelled = snapshot.apps.get(&exit.app).and_then(|app| app.live_driver().or_else(|| app.drivers.first()));
    let labelled = labelled.map(|driver| (driver.name.clone(), driver.uid.clone()));
    let owner = exit.executor.template.owner.as_ref().filter(|owner| owner.is_pod && resolve::is_pod_name(&owner.name));
    let owner = || owner.map(|owner| (owner.name.clone(), owner.uid.clone()));
    let own = || (exit.executor.name.clone(), exit.executor.uid.clone());
    let (name, uid) = owner().or(labelled).unwrap_or_else(own);
    let pod = PodKey::new(exit.app.namespace(), &name);
    Subject { pod, uid, cause: exit.cause, perhaps_told: exit.perhaps_told }
}

fn message(exit: &Exit) -> String {
    let node = exit.executor.node.as_deref().map_or_else(String::new, |node| format!(" on {node}"));
    let detail = exit.detail();
    let colon = if detail.is_empty() { "" } else { ": " };
    let perhaps = if exit.perhaps_told { " (may have been counted before)" } else { "" };
    format!("{} ({}{node}): {}{colon}{detail}{perhaps}", exit.cause, exit.executor.name, exit.cause.text())
}
