//! What a poll or a new list shows and the watch does not: is the watch late, or has it lost something?
//!
//! A list may be older than what was seen, and a watch may have stopped without a word. So nothing is believed gone
//! because it is absent from a list, and nothing is believed present because the watch once showed it.
//!
//! * The watch decides first: once it has passed the resourceVersion of the poll's list, it has shown every change that the
//!   list shows, or has lost it. Lost is also what a silent watch has not shown for two bookmark intervals.
//! * A few pods are looked at by name when the watch takes its time: an end is news, also while the watch is late.
//! * Of a pod that left a watch by label without having been asked to go, a look by name tells whether it is gone.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;
use std::time::{Duration, Instant};

use smol_str::SmolStr;

use super::Now;
use super::pace::pause;
use super::queue::WorkQueue;
use super::tombstones::Tombstones;
use crate::plant::{self, Bug};
use crate::snapshot::{Absence, Cursor, Departed, Labelled, Listed, Snapshot};
use crate::spark::ids::{PodKey, is_newer};

/// Number of concurrent GETs of pods, whatever else is read.
const AT_ONCE: usize = 8;
/// Number of concurrent LISTs of all pods of a namespace.
const LISTS_AT_ONCE: usize = 2;
/// So many looks are for one poll. Where more differs the watch is late, or is started again and tells.
const MOST_LOOKS: usize = 64;
/// After restarts that did not help so many times as many polls pass until the next, at most.
const RAREST: u32 = 32;

/// The full truth, as one poll reads it: which labelled pods there are, and what differs from the picture.
#[derive(Clone, Debug, Default)]
pub struct Polled {
    /// The list's own resourceVersion.
    version: String,
    /// Every pod, as far as that is needed to miss one.
    present: Listed,
    /// Pods that the picture does not have, or not in this version: name, uid, version.
    differing: Vec<(PodKey, Arc<str>, Arc<str>)>,
}

impl Polled {
    /// Takes one pod in, as the picture is while the list is read.
    pub fn see(&mut self, snapshot: &Snapshot, namespace: &str, name: &str, uid: &str, version: &str) {
        self.present.insert(namespace, name, uid);
        if is_behind(snapshot, namespace, name, uid, version) {
            self.differing.push((PodKey::new(namespace, name), uid.into(), version.into()));
        }
    }

    /// The list is complete; this is its resourceVersion.
    pub fn complete(mut self, version: &str) -> Polled {
        self.version = version.to_owned();
        self.present.seal();
        self
    }

    /// The list's own resourceVersion.
    pub(super) fn version(&self) -> &str {
        &self.version
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
        self.present.contains(namespace, name, uid)
    }
}

/// A poll that is compared with the picture, in parts.
#[derive(Debug)]
struct Judging {
    polled: Polled,
    delta: Duration,
    /// When the poll was taken in.
    now: Now,
    /// Which pods of the picture were looked for in the poll,
    cursor: Cursor,
    is_walked: bool,
    /// and how many of the poll's in the picture.
    compared: usize,
}

/// What a new list proves, in parts.
#[derive(Debug)]
struct Listing {
    version: SmolStr,
    /// The last pod of which was asked whether it is in question.
    last: Option<PodKey>,
    proven: Vec<PodKey>,
}

/// More than so many open questions are not kept: they are found again by the next poll.
const MOST_OPEN: usize = 4096;

/// What is in question.
#[derive(Clone, Debug)]
enum Check {
    /// Whether an executor is gone that a new list did not have, or that the watch shows no more: the picture has lost it, and
    /// no poll would ask again.
    Absent(Departed),
    /// Whether an executor is gone that a poll did not have, and the picture has.
    Missed(Departed),
    /// Whether this labelled driver, by its uid, is gone that a poll did not have.
    NoDriver(Arc<str>),
    /// Whether the watch has lost this version, which a poll had.
    Behind { uid: Arc<str>, version: Arc<str> },
}

impl Check {
    /// Whether a poll asked; otherwise a new list does, or the watch itself.
    fn is_of_poll(&self) -> bool {
        match self {
            Check::Absent(_) => false,
            Check::Missed(_) | Check::NoDriver(_) | Check::Behind { .. } => true,
        }
    }

    /// From this version on an end may have been missed.
    fn version(&self) -> Option<u64> {
        match self {
            Check::Absent(departed) | Check::Missed(departed) => departed.executor.version.parse().ok(),
            Check::Behind { version, .. } => version.parse().ok(),
            Check::NoDriver(_) => None,
        }
    }
}

/// What was found out.
#[derive(Debug, PartialEq)]
pub(super) enum Found {
    /// That executor's pod is gone.
    Gone(Departed),
    /// That driver's pod, by its name and uid, is gone.
    DriverGone(PodKey, Arc<str>),
    /// Nothing that was not known, or that the look did not bring itself.
    Nothing,
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct Checks {
    /// How long the watch may take to show what a poll has seen already, before somebody looks.
    settle: Duration,
    /// A watch that is silent for longer is dead.
    silence: Duration,
    open: BTreeMap<PodKey, Check>,
    looks: WorkQueue<PodKey>,
    /// Executors missing from the last list, by namespace, if they are too many for one GET each.
    unlisted: BTreeMap<Arc<str>, Vec<PodKey>>,
    /// Namespaces of which all pods are to be listed, whatever their labels.
    names: WorkQueue<Arc<str>>,
    /// The watch has not passed this version yet, of a poll that differed.
    until: Option<SmolStr>,
    /// When the watch last brought anything.
    heard: Option<Instant>,
    /// How often in a row the watch was started again and the next poll found the same.
    restarts: u32,
    /// Polls until it may be started again.
    rests: u32,
    is_lost: bool,
    judging: Option<Judging>,
    listing: Option<Listing>,
    /// The resourceVersion of the last new list.
    listed: Option<SmolStr>,
    /// Executors that are gone, as the last list proves.
    proven: VecDeque<PodKey>,
    /// The oldest version of what is in question and not kept.
    oldest_beyond: Option<u64>,
    /// If a poll leaves more pods to confirm than [`MOST_LOOKS`], the next poll continues after this one.
    last_look: Option<PodKey>,
}

impl Checks {
    pub(super) fn new(settle: Duration, silence: Duration) -> Checks {
        Checks {
            settle,
            silence,
            open: BTreeMap::new(),
            looks: WorkQueue::default(),
            unlisted: BTreeMap::new(),
            names: WorkQueue::default(),
            until: None,
            heard: None,
            restarts: 0,
            rests: 0,
            is_lost: false,
            judging: None,
            listing: None,
            listed: None,
            proven: VecDeque::new(),
            oldest_beyond: None,
            last_look: None,
        }
    }

    /// An executor was seen before, and is shown no more. If another of its name is in question, the older of the two is
    /// gone for certain, and returned.
    pub(super) fn absent(&mut self, mut departed: Departed, now: Instant) -> Option<Departed> {
        let pod = PodKey::new(departed.app.namespace(), &departed.executor.name);
        // A poll has missed it before.
        if let Some(Check::Absent(before) | Check::Missed(before)) =
            self.open.get(&pod).filter(|_| departed.missing.is_none())
            && before.executor.uid == departed.executor.uid
        {
            (departed.missing, departed.asked) = (before.missing, before.asked);
        }
        departed.asked.get_or_insert(now);
        let wait = if departed.absence == Absence::Unselected { Duration::ZERO } else { self.settle };
        let uid = departed.executor.uid.clone();
        let other = match self.open.get(&pod) {
            Some(Check::Absent(before)) if before.executor.uid != uid => Some(before),
            _ => None,
        };
        if other.is_some_and(|other| is_newer(&other.executor.version, &departed.executor.version)) {
            return Some(departed); // An older list had returned it to the snapshot.
        }
        let other = other.cloned();
        self.open.insert(pod.clone(), Check::Absent(departed));
        self.looks.add_after(pod, now + wait);
        other
    }

    /// Whether so many checks are open that further pods are not each confirmed with a GET.
    pub(super) fn is_crowded(&self) -> bool {
        self.open.len() >= MOST_LOOKS
    }

    /// Takes a poll over, to be compared with the picture in parts. `delta` is how long an executor must have been there to
    /// count as missing: a younger one may be newer than the list (`missingPodDetectDelta`).
    pub(super) fn judge(&mut self, polled: Polled, delta: Duration, now: Now) {
        if self.listed.as_ref().is_some_and(|listed| is_not_newer(&polled.version, listed)) {
            return; // The snapshot has a newer list already.
        }
        self.rests = self.rests.saturating_sub(1);
        // Those of the poll before: what still differs is found again.
        self.open.retain(|pod, check| !check.is_of_poll() || self.looks.is_in_flight(pod));
        self.oldest_beyond = None;
        let cursor = Cursor::default();
        self.judging = Some(Judging { polled, delta, now, cursor, is_walked: false, compared: 0 });
    }

    /// Whether a poll is not compared as a whole yet.
    pub(super) fn is_judging(&self) -> bool {
        self.judging.is_some()
    }

    /// Compares about `most` pods more. `position` is how far the watch is.
    pub(super) fn go_on(&mut self, snapshot: &Snapshot, gone: &Tombstones, most: usize, position: Option<&str>) {
        let Some(mut judging) = self.judging.take() else { return };
        let mut left = most;
        if !judging.is_walked {
            judging.is_walked = self.miss(snapshot, &mut judging, &mut left);
        }
        let differing = judging.polled.differing.get(judging.compared..).filter(|_| judging.is_walked);
        for (pod, uid, version) in differing.unwrap_or_default().iter().take(left) {
            judging.compared += 1;
            if !plant::is(Bug::PollJudgesPresenceOnly)
                && is_behind(snapshot, pod.namespace(), pod.name(), uid, version)
                && !gone.was_shown(uid)
            {
                self.ask(pod.clone(), Check::Behind { uid: uid.clone(), version: version.clone() });
            }
        }
        if !judging.is_walked || judging.compared < judging.polled.differing.len() {
            self.judging = Some(judging);
            return;
        }
        self.conclude(&judging);
        if let Some(position) = position {
            // It may be further than the poll's list already.
            self.compare(snapshot, gone, position);
        }
    }

    /// Looks for the next pods of the picture in the poll. Returns whether these were the last.
    fn miss(&mut self, snapshot: &Snapshot, judging: &mut Judging, left: &mut usize) -> bool {
        let Judging { polled, delta, now, cursor, .. } = judging;
        let mut missed = Vec::new();
        let is_walked = snapshot.walk(cursor, *left, |key, pod| {
            *left = left.saturating_sub(1);
            let young = match pod {
                // By our own clock: the day's may be wrong by hours, and then nobody would ever be missed.
                Labelled::Executor(executor) => {
                    executor.first_seen.is_some_and(|seen| now.at.saturating_duration_since(seen) <= *delta)
                }
                // One that is believed to live would be waited for, for ever.
                Labelled::Driver(_) => false,
            };
            if young || polled.present.has(key, &pod) || is_newer(pod.version(), &polled.version) {
                return;
            }
            let check = match pod {
                Labelled::Executor(executor) => {
                    let (app, executor, absence) = (key.clone(), executor.clone(), Absence::NotListed);
                    Check::Missed(Departed {
                        app,
                        executor,
                        absence,
                        missing: Some((now.wall, *delta)),
                        asked: Some(now.at),
                    })
                }
                Labelled::Driver(driver) => Check::NoDriver(driver.uid.clone()),
            };
            missed.push((PodKey::new(key.namespace(), pod.name()), check));
        });
        for (pod, check) in missed {
            self.ask(pod, check);
        }
        is_walked
    }

    /// Something differs. Of what somebody looks at already nothing more is asked.
    fn ask(&mut self, pod: PodKey, check: Check) {
        if self.open.len() < MOST_OPEN {
            self.open.entry(pod).or_insert(check);
        } else if !self.open.contains_key(&pod) {
            self.oldest_beyond = self.oldest_beyond.into_iter().chain(check.version()).min();
        }
    }

    /// The poll is compared as a whole.
    fn conclude(&mut self, judging: &Judging) {
        if !self.open.values().any(Check::is_of_poll) && self.oldest_beyond.is_none() {
            // What was looked at by name may still be unshown.
            if self.until.is_none() {
                (self.restarts, self.rests, self.is_lost) = (0, 0, false);
            }
            return;
        }
        self.until = Some(judging.polled.version.as_str().into());
        self.is_lost |= plant::is(Bug::LateIsLost);
        let settled = judging.now.at + self.settle;
        let from = self.last_look.take().map_or(Unbounded, Excluded);
        let after = self.open.range((from, Unbounded));
        let asked = after.chain(&self.open).filter(|(_, check)| check.is_of_poll()).map(|(pod, _)| pod);
        let asked: Vec<PodKey> = asked.take(MOST_LOOKS).cloned().collect();
        self.last_look = asked.last().cloned();
        for pod in asked {
            self.looks.add_after(pod, settled);
        }
    }

    /// The watch brought something, and has shown everything up to `version`. When it passes the last poll's list, what it
    /// has not shown of that is lost.
    pub(super) fn passed(&mut self, snapshot: &Snapshot, gone: &Tombstones, version: &str, now: Instant) {
        self.heard = Some(now);
        self.compare(snapshot, gone, version);
    }

    /// What the watch, which is at `version`, has not shown of the last poll is lost if that poll's list is no newer.
    pub(super) fn compare(&mut self, snapshot: &Snapshot, gone: &Tombstones, version: &str) {
        if self.until.as_ref().is_none_or(|until| !is_not_newer(until, version)) {
            return;
        }
        self.until = None;
        let looks = &self.looks;
        let mut lost = false;
        self.open.retain(|pod, check| {
            let there = snapshot.executor(pod.namespace(), pod.name()).map(|(_, executor)| &executor.uid);
            let there =
                there.or_else(|| snapshot.labelled_driver(pod.namespace(), pod.name()).map(|(_, driver)| &driver.uid));
            let unshown = match check {
                Check::Missed(departed) => there == Some(&departed.executor.uid),
                Check::NoDriver(uid) => there == Some(uid),
                Check::Behind { uid, version } => {
                    !gone.was_shown(uid) && is_behind(snapshot, pod.namespace(), pod.name(), uid, version)
                }
                Check::Absent(_) => return true,
            };
            lost |= unshown;
            unshown || looks.is_in_flight(pod)
        });
        self.is_lost |= lost;
    }

    /// All pods were listed anew, as of `version`, and every question of the last poll is answered.
    pub(super) fn listed(&mut self, version: &str, now: Instant) {
        self.heard = Some(now);
        self.until = None;
        self.is_lost = false;
        self.judging = None;
        self.oldest_beyond = None;
        self.listed = Some(version.into());
        self.unlisted.clear();
        self.listing = Some(Listing { version: version.into(), last: None, proven: Vec::new() });
    }

    /// Whether there is more to conclude from the last list.
    pub(super) fn is_concluding(&self) -> bool {
        self.listing.is_some() || !self.proven.is_empty()
    }

    /// What the last list proves: of about `most` pods. What it does not have, and is not newer than it, is gone, unless its
    /// labels have changed: where those are few, each is read by name, else all pods of their namespaces are listed.
    pub(super) fn proven(&mut self, snapshot: &Snapshot, most: usize) -> Vec<Found> {
        if let Some(mut listing) = self.listing.take() {
            let from = listing.last.take().map_or(Unbounded, Excluded);
            let next: Vec<PodKey> = self.open.range((from, Unbounded)).map(|(pod, _)| pod.clone()).take(most).collect();
            for pod in &next {
                if let Some(Check::Absent(departed)) = self.open.get(pod)
                    && departed.absence == Absence::NotListed
                {
                    let there = snapshot.executor(pod.namespace(), pod.name());
                    if there.is_some_and(|(_, there)| there.uid == departed.executor.uid) {
                        self.open.remove(pod);
                    } else if is_not_newer(&departed.executor.version, &listing.version) {
                        listing.proven.push(pod.clone());
                    }
                } else if self.open.get(pod).is_some_and(Check::is_of_poll) && !self.looks.is_in_flight(pod) {
                    self.open.remove(pod);
                }
            }
            if next.len() == most {
                listing.last = next.into_iter().next_back();
                self.listing = Some(listing);
                return Vec::new();
            }
            if listing.proven.len() <= MOST_LOOKS {
                listing.proven.into_iter().for_each(|pod| self.looks.add(pod));
            } else {
                for pod in listing.proven {
                    self.looks.remove(&pod);
                    let namespace: Arc<str> = pod.namespace().into();
                    self.names.add(namespace.clone());
                    self.unlisted.entry(namespace).or_default().push(pod);
                }
            }
        }
        let some = self.proven.len().min(most);
        let gone = self.proven.drain(..some).collect::<Vec<_>>().into_iter().filter_map(|pod| {
            let there = snapshot.executor(pod.namespace(), pod.name()).map(|(_, there)| there.uid.clone());
            match self.open.get(&pod)? {
                Check::Absent(departed) if departed.absence == Absence::NotListed => {}
                _ => return None, // The watch has answered it since.
            }
            match self.open.remove(&pod)? {
                // It may have come back since.
                Check::Absent(departed) if there.as_ref() != Some(&departed.executor.uid) => {
                    Some(Found::Gone(departed))
                }
                _ => None,
            }
        });
        gone.collect()
    }

    /// Whether the watch of pods has lost something and is to be started again: at most once a poll, and ever more rarely
    /// where that does not help.
    pub(super) fn restart(&mut self, now: Instant) -> bool {
        let silent = self.until.is_some()
            && self.heard.is_some_and(|heard| now.saturating_duration_since(heard) >= self.silence);
        if !(self.is_lost || silent) || (self.rests > 0 && !plant::is(Bug::LateIsLost)) {
            return false;
        }
        self.is_lost = false;
        self.heard = Some(now);
        self.rests = (1 << self.restarts.min(5)).min(RAREST);
        self.restarts = self.restarts.saturating_add(1);
        true
    }

    /// Pods to look at now. What the watch has shown meanwhile needs no look.
    pub(super) fn due(&mut self, snapshot: &Snapshot, now: Instant) -> Vec<PodKey> {
        let mut due = Vec::new();
        while self.looks.in_flight() < AT_ONCE
            && let Some(pod) = self.looks.get(now)
        {
            let is_open = match self.open.get(&pod) {
                Some(Check::Behind { uid, version }) => is_behind(snapshot, pod.namespace(), pod.name(), uid, version),
                other => other.is_some(),
            };
            if is_open {
                due.push(pod);
            } else {
                self.open.remove(&pod);
                self.looks.done(&pod);
                self.looks.forget(&pod);
            }
        }
        due
    }

    /// Namespaces of which all pods are to be listed now.
    pub(super) fn due_names(&mut self, now: Instant) -> Vec<Arc<str>> {
        let mut due = Vec::new();
        while self.names.in_flight() < LISTS_AT_ONCE
            && let Some(namespace) = self.names.get(now)
        {
            due.push(namespace);
        }
        due
    }

    /// Takes the list of all pods of a namespace, whatever their labels; `None` if the LIST failed. [`Checks::proven`]
    /// returns the executors whose pods are gone.
    pub(super) fn all_of(&mut self, namespace: &Arc<str>, all: Option<&Listed>, now: Instant) {
        let is_asked_again = self.names.is_waiting(namespace);
        self.names.done(namespace);
        if is_asked_again {
            return;
        }
        let Some(all) = all else {
            if self.unlisted.contains_key(namespace) {
                self.names.add_rate_limited(namespace.clone(), now, pause);
            }
            return;
        };
        self.names.forget(namespace);
        for pod in self.unlisted.remove(namespace).unwrap_or_default() {
            let Some(Check::Absent(departed)) = self.open.get(&pod) else { continue };
            if all.contains(pod.namespace(), pod.name(), &departed.executor.uid) {
                self.open.remove(&pod); // Its labels were taken off.
            } else {
                self.proven.push_back(pod);
            }
        }
    }

    /// When something is due next.
    pub(super) fn next(&self, now: Instant) -> Option<Instant> {
        let look = self.looks.next(now).filter(|_| self.looks.in_flight() < AT_ONCE);
        let names = self.names.next(now).filter(|_| self.names.in_flight() < LISTS_AT_ONCE);
        let waits = self.rests == 0 && self.until.is_some();
        let silent = self.heard.map(|heard| heard + self.silence).filter(|_| waits);
        look.into_iter().chain(names).chain(silent).min()
    }

    /// The oldest version that is in question: from there on an end may have been missed.
    pub(super) fn oldest(&self) -> Option<u64> {
        self.open.values().filter_map(Check::version).chain(self.oldest_beyond).min()
    }

    /// Nobody could be asked: again after a pause.
    pub(super) fn failed(&mut self, pod: &PodKey, now: Instant) {
        self.looks.done(pod);
        if plant::is(Bug::CheckNotRetried) {
            self.open.remove(pod);
        } else if self.open.contains_key(pod) {
            self.looks.add_rate_limited(pod.clone(), now, pause);
        }
    }

    /// A look answered: the uid of the pod that is there under that name, if one is.
    pub(super) fn answered(&mut self, pod: &PodKey, there: Option<&str>) -> Found {
        let is_asked_again = self.looks.is_waiting(pod);
        self.looks.done(pod);
        if is_asked_again {
            return Found::Nothing; // Something happened since that the answer does not know of.
        }
        self.looks.remove(pod);
        match self.open.remove(pod) {
            Some(Check::Absent(departed) | Check::Missed(departed)) if there != Some(&*departed.executor.uid) => {
                Found::Gone(departed)
            }
            Some(Check::NoDriver(uid)) if there != Some(&*uid) => Found::DriverGone(pod.clone(), uid),
            _ => Found::Nothing,
        }
    }
}

/// Whether a version is known to be no newer than another: both are numbers, and the first is not greater.
fn is_not_newer(version: &str, than: &str) -> bool {
    version == than || is_newer(than, version)
}

/// Whether the picture of a pod is older than what a poll had.
fn is_behind(snapshot: &Snapshot, namespace: &str, name: &str, uid: &str, version: &str) -> bool {
    let differs = |known_uid: &str, known: &str| known_uid != uid || (known != version && !is_newer(known, version));
    match snapshot.executor(namespace, name) {
        Some((_, known)) => differs(&known.uid, &known.version),
        // As a labelled one: a poll has no others, and one that is only followed is not what the watch would show.
        None => snapshot.labelled_driver(namespace, name).is_none_or(|(_, known)| differs(&known.uid, &known.version)),
    }
}
