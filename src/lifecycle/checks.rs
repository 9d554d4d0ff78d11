//! Looking by name: what a list did not have, and what a poll had in another version.
//!
//! A list may be older than what was seen, and a watch may have stopped without a word. So nothing is believed gone
//! because it is absent from a list, and nothing is believed present because the watch once showed it: one GET decides.

use std::collections::{BTreeMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Now;
use super::pace::pause;
use crate::plant::{self, Bug};
use crate::snapshot::{Departed, Snapshot};
use crate::spark::ids::{PodKey, is_newer};

/// How long the watch may take to show what a poll has seen already.
const SETTLE: Duration = Duration::from_secs(2);

/// The full truth, as one poll reads it: which labelled pods there are, and what differs from the picture.
#[derive(Clone, Debug, Default)]
pub struct Polled {
    /// The list's own resourceVersion.
    version: String,
    /// Hashes of name and uid of every pod: all that is needed to miss one.
    present: HashSet<u64>,
    /// Pods that the picture does not have, or not in this version: name, uid, version.
    differing: Vec<(PodKey, Arc<str>, Arc<str>)>,
}

impl Polled {
    /// Takes one pod in, as the picture is while the list is read.
    pub fn see(&mut self, snapshot: &Snapshot, namespace: &str, name: &str, uid: &str, version: &str) {
        self.present.insert(hash(namespace, name, uid));
        if is_behind(snapshot, namespace, name, uid, version) {
            self.differing.push((PodKey::new(namespace, name), uid.into(), version.into()));
        }
    }

    /// The list is complete; this is its resourceVersion.
    pub fn complete(mut self, version: &str) -> Polled {
        self.version = version.to_owned();
        self
    }

    /// How many pods there are.
    pub fn len(&self) -> usize {
        self.present.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.present.is_empty()
    }

    /// Whether it had this pod.
    pub fn has(&self, namespace: &str, name: &str, uid: &str) -> bool {
        self.present.contains(&hash(namespace, name, uid))
    }
}

fn hash(namespace: &str, name: &str, uid: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    (namespace, name, uid).hash(&mut hasher);
    hasher.finish()
}

/// Why a pod is looked at.
#[derive(Clone, Debug)]
enum Why {
    /// A list did not have it.
    Absent(Departed),
    /// A poll did not have this labelled driver, by its uid.
    NoDriver(Arc<str>),
    /// A poll had it in a version that the watch has not shown.
    Behind { uid: Arc<str>, version: Arc<str> },
}

#[derive(Debug)]
struct Check {
    why: Why,
    due: Instant,
    failures: u32,
    in_flight: bool,
}

/// What a look found out.
#[derive(Debug, PartialEq)]
pub(super) enum Found {
    /// That executor's pod is gone.
    Gone(Departed),
    /// That driver's pod, by its uid, is gone.
    DriverGone(Arc<str>),
    /// The watch has missed something about a pod that is there.
    Missed,
    /// Nothing that was not known.
    Nothing,
}

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct Checks {
    open: BTreeMap<PodKey, Check>,
    in_flight: usize,
}

impl Checks {
    /// A list did not have an executor that was seen before.
    pub(super) fn absent(&mut self, departed: Departed, now: Instant) {
        let pod = PodKey::new(departed.app.namespace(), &departed.executor.name);
        self.open(pod, Why::Absent(departed), now);
    }

    fn open(&mut self, pod: PodKey, why: Why, due: Instant) {
        let before = self.open.insert(pod, Check { why, due, failures: 0, in_flight: false });
        self.in_flight -= usize::from(before.is_some_and(|check| check.in_flight));
    }

    /// Compares a poll with the picture. `delta` is how long an executor must have been there to count as missing: a
    /// younger one may be newer than the list (`missingPodDetectDelta`).
    pub(super) fn judge(&mut self, snapshot: &Snapshot, polled: &Polled, delta: Duration, now: Now) {
        for (key, app) in &snapshot.apps {
            for executor in app.executors.values() {
                // By our own clock: the day's may be wrong by hours, and then nobody would ever be missed.
                let young = executor.first_seen.is_some_and(|seen| now.at.saturating_duration_since(seen) <= delta);
                if young || !self.misses(polled, key.namespace(), &executor.name, &executor.uid, &executor.version) {
                    continue;
                }
                let (app, executor) = (key.clone(), executor.clone());
                self.absent(Departed { app, executor, told: false, missing: Some((now.wall, delta)) }, now.at);
            }
            // One that is believed to live would be waited for, for ever.
            for driver in &app.drivers {
                if self.misses(polled, key.namespace(), &driver.name, &driver.uid, &driver.version) {
                    self.open(PodKey::new(key.namespace(), &driver.name), Why::NoDriver(driver.uid.clone()), now.at);
                }
            }
        }
        for (pod, uid, version) in &polled.differing {
            if plant::is(Bug::PollJudgesPresenceOnly)
                || !is_behind(snapshot, pod.namespace(), pod.name(), uid, version)
                || self.open.contains_key(pod)
            {
                continue;
            }
            let why = Why::Behind { uid: uid.clone(), version: version.clone() };
            self.open(pod.clone(), why, now.at + SETTLE);
        }
    }

    /// Whether a poll should have had a pod, did not, and nobody looks at it yet.
    fn misses(&self, polled: &Polled, namespace: &str, name: &str, uid: &str, version: &str) -> bool {
        !polled.has(namespace, name, uid)
            && !is_newer(version, &polled.version)
            && !self.open.contains_key(&PodKey::new(namespace, name))
    }

    /// Pods to look at now, at most so many. What the watch has shown meanwhile needs no look.
    pub(super) fn due(&mut self, snapshot: &Snapshot, now: Instant, most: usize) -> Vec<PodKey> {
        self.open.retain(|pod, check| match &check.why {
            _ if check.in_flight || check.due > now => true,
            Why::Behind { uid, version } => is_behind(snapshot, pod.namespace(), pod.name(), uid, version),
            Why::Absent(_) | Why::NoDriver(_) => true,
        });
        let due = self.open.iter_mut().filter(|(_, check)| !check.in_flight && check.due <= now).take(most);
        let due = due.map(|(pod, check)| {
            check.in_flight = true;
            pod.clone()
        });
        let due: Vec<PodKey> = due.collect();
        self.in_flight += due.len();
        due
    }

    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// When something is due next.
    pub(super) fn next(&self) -> Option<Instant> {
        self.open.values().filter(|check| !check.in_flight).map(|check| check.due).min()
    }

    /// Nobody could be asked: again after a pause.
    pub(super) fn failed(&mut self, pod: &PodKey, now: Instant) {
        if plant::is(Bug::CheckNotRetried) {
            self.answered(&Snapshot::default(), pod, None);
        }
        if let Some(check) = self.open.get_mut(pod) {
            self.in_flight -= usize::from(check.in_flight);
            check.in_flight = false;
            check.failures = check.failures.saturating_add(1);
            check.due = now + pause(check.failures);
        }
    }

    /// A look answered: the uid of the labelled pod that is there under that name, if one is.
    pub(super) fn answered(&mut self, snapshot: &Snapshot, pod: &PodKey, there: Option<&str>) -> Found {
        let check = self.open.remove(pod);
        self.in_flight -= usize::from(check.as_ref().is_some_and(|check| check.in_flight));
        match check.map(|check| check.why) {
            // The watch has shown it while we looked.
            Some(Why::Behind { uid, version }) if !is_behind(snapshot, pod.namespace(), pod.name(), &uid, &version) => {
                Found::Nothing
            }
            Some(Why::Absent(departed)) if there != Some(&*departed.executor.uid) => Found::Gone(departed),
            Some(Why::NoDriver(uid)) if there != Some(&*uid) => Found::DriverGone(uid),
            Some(_) if there.is_some() => Found::Missed,
            _ => Found::Nothing,
        }
    }
}

/// Whether the picture of a pod is older than what a poll had.
fn is_behind(snapshot: &Snapshot, namespace: &str, name: &str, uid: &str, version: &str) -> bool {
    let differs = |known_uid: &str, known: &str| known_uid != uid || (known != version && !is_newer(known, version));
    match snapshot.executor(namespace, name) {
        Some((_, known)) => differs(&known.uid, &known.version),
        None => snapshot.driver_pod(namespace, name).is_none_or(|known| differs(&known.uid, &known.version)),
    }
}
