//! Differences between a poll or a new list and the watch: is the watch late, or did it lose an event?
//!
//! A list may be older than what was observed, and a watch may have stopped silently. Absence from a list alone does not prove
//! a deletion, and an earlier watch event does not prove presence.
//!
//! * The watch decides first: once it has passed the resourceVersion of the poll's list, it has shown every change in that list,
//!   or has lost it. A watch without events for two bookmark intervals has lost what it did not show.
//! * A few differing pods are confirmed by a GET while the watch is late, so that exits are reported in time.
//! * If a pod leaves a watch by label without a deletionTimestamp, a GET decides whether it is deleted.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;
use std::time::{Duration, Instant};

use imbl::Vector;
use smol_str::SmolStr;

use super::backoff::backoff_delay;
use super::queue::WorkQueue;
use super::tombstones::Tombstones;
use crate::snapshot::{Absence, Cursor, Labelled, Listed, RemovedExecutor, Snapshot};
use usher_spark::ids::{PodKey, is_newer};
use usher_spark::time::Now;

/// Number of concurrent GETs of pods.
const MAX_IN_FLIGHT: usize = 8;
/// Number of concurrent LISTs of all pods of a namespace.
const MAX_LISTS_IN_FLIGHT: usize = 2;
/// GETs per poll. If more pods differ, the watch is late or is restarted, and shows them.
const MAX_LOOKUPS: usize = 64;
/// After restarts of the watch that did not help, at most this many polls pass before the next restart.
const MAX_RESTART_INTERVAL: u32 = 32;

/// The result of one poll: which labelled pods exist, and which differ from the snapshot.
#[derive(Clone, Debug, Default)]
pub struct PollResult {
    /// The list's own resourceVersion.
    version: String,
    /// A hash of each pod.
    present: Listed,
    /// Pods that the snapshot lacks, or has in another version: name, uid, version.
    differing: Vector<(PodKey, Arc<str>, Arc<str>)>,
}

impl PollResult {
    /// Adds one pod, and compares it with the snapshot.
    pub fn add(&mut self, snapshot: &Snapshot, namespace: &str, name: &str, uid: &str, version: &str) {
        self.present.insert(namespace, name, uid);
        if is_behind(snapshot, namespace, name, uid, version) {
            self.differing.push_back((PodKey::new(namespace, name), uid.into(), version.into()));
        }
    }

    /// The list is complete; this is its resourceVersion.
    pub fn finish(mut self, version: &str) -> PollResult {
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

    /// Whether the poll contains this pod.
    pub fn has(&self, namespace: &str, name: &str, uid: &str) -> bool {
        self.present.contains(namespace, name, uid)
    }
}

/// A poll that is being compared with the snapshot, in parts.
#[derive(Debug)]
struct PollComparison {
    version: String,
    present: Listed,
    delta: Duration,
    /// When the poll's result was received.
    now: Now,
    /// How far the snapshot's pods were looked up in the poll,
    cursor: Cursor,
    is_walked: bool,
    /// and the differing pods of the poll that have not been compared. There may be very many: a Vector gives its memory back in parts.
    differing: Vector<(PodKey, Arc<str>, Arc<str>)>,
}

/// What a new list proves, in parts.
#[derive(Debug)]
struct Listing {
    version: SmolStr,
    /// The last open confirmation that was compared with the list.
    last: Option<PodKey>,
    proven: Vec<PodKey>,
}

/// How many differences of one poll are open. The next poll finds further ones again.
const MAX_OPEN: usize = 1024;

/// What has to be confirmed.
#[derive(Clone, Debug)]
enum Confirmation {
    /// The absence of an executor that a new list lacks, or that left the watch: the snapshot no longer contains it, so no poll
    /// would find it again.
    Absent(RemovedExecutor),
    /// The absence of an executor that the snapshot has and a poll lacks.
    Desynced(RemovedExecutor),
    /// The absence of a labelled driver, by its uid, that a poll lacks.
    NoDriver(Arc<str>),
    /// A version that a poll has and the watch has not shown.
    Behind { uid: Arc<str>, version: Arc<str> },
}

impl Confirmation {
    /// Whether a poll found it, and not a new list or the watch.
    fn is_of_poll(&self) -> bool {
        match self {
            Confirmation::Absent(_) => false,
            Confirmation::Desynced(_) | Confirmation::NoDriver(_) | Confirmation::Behind { .. } => true,
        }
    }

    /// From this version on an exit may have been missed.
    fn version(&self) -> Option<u64> {
        match self {
            Confirmation::Absent(removed) | Confirmation::Desynced(removed) => removed.executor.version.parse().ok(),
            Confirmation::Behind { version, .. } => version.parse().ok(),
            Confirmation::NoDriver(_) => None,
        }
    }
}

/// The outcome of a confirmation.
#[derive(Debug, PartialEq)]
pub(super) enum Confirmed {
    /// The executor's pod is deleted.
    Gone(RemovedExecutor),
    /// The driver's pod, by its name and uid, is deleted.
    DriverGone(PodKey, Arc<str>),
    /// Nothing new, or only what the answer itself contains.
    Nothing,
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct Confirmations {
    /// How long the watch has to show a difference before pods are read by name.
    settle: Duration,
    /// A watch without an event for longer is dead.
    silence: Duration,
    open: BTreeMap<PodKey, Confirmation>,
    lookups: WorkQueue<PodKey>,
    /// Executors missing from the last list, by namespace, if they are too many for one GET each.
    unlisted: BTreeMap<Arc<str>, Vec<PodKey>>,
    /// Namespaces whose pods are all to be listed, regardless of labels.
    namespaces: WorkQueue<Arc<str>>,
    /// The resourceVersion of the last poll that differed, until the watch has passed it, and since when polls have differed.
    until: Option<(SmolStr, Instant)>,
    /// When the watch last delivered anything.
    last_event: Option<Instant>,
    /// Number of consecutive restarts of the watch after which the next poll still differed.
    restarts: u32,
    /// Number of polls until the next restart is allowed.
    rests: u32,
    is_desynced: bool,
    comparison: Option<PollComparison>,
    listing: Option<Listing>,
    /// The resourceVersion of the last new list.
    listed_version: Option<SmolStr>,
    /// Executors whose deletion the LIST of their namespace proves.
    proven_absent: VecDeque<PodKey>,
    /// How many more differences of the current poll may be opened. Absences that a list or the watch shows do not count.
    room: usize,
    /// The oldest version of the differences beyond [`MAX_OPEN`], which are not kept.
    oldest_beyond: Option<u64>,
    /// If a poll leaves more pods to confirm than [`MAX_LOOKUPS`], the next poll continues after this one.
    last_lookup: Option<PodKey>,
}

impl Confirmations {
    pub(super) fn new(settle: Duration, silence: Duration) -> Confirmations {
        Confirmations {
            settle,
            silence,
            open: BTreeMap::new(),
            lookups: WorkQueue::default(),
            unlisted: BTreeMap::new(),
            namespaces: WorkQueue::default(),
            until: None,
            last_event: None,
            restarts: 0,
            rests: 0,
            is_desynced: false,
            comparison: None,
            listing: None,
            listed_version: None,
            proven_absent: VecDeque::new(),
            room: MAX_OPEN,
            oldest_beyond: None,
            last_lookup: None,
        }
    }

    /// An observed executor has left the list or the watch. If the absence of another executor of the same name is open, the
    /// older of the two is certainly deleted, and returned.
    pub(super) fn confirm_absence(&mut self, mut removed: RemovedExecutor, now: Instant) -> Option<RemovedExecutor> {
        let pod = PodKey::new(removed.app.namespace(), &removed.executor.name);
        // A poll has lacked it before.
        if let Some(Confirmation::Absent(before) | Confirmation::Desynced(before)) =
            self.open.get(&pod).filter(|_| removed.missing.is_none())
            && before.executor.uid == removed.executor.uid
        {
            (removed.missing, removed.asked) = (before.missing, before.asked);
        }
        removed.asked.get_or_insert(now);
        let wait = if removed.absence == Absence::Unselected { Duration::ZERO } else { self.settle };
        let uid = removed.executor.uid.clone();
        let other = match self.open.get(&pod) {
            Some(Confirmation::Absent(before)) if before.executor.uid != uid => Some(before),
            _ => None,
        };
        if other.is_some_and(|other| is_newer(&other.executor.version, &removed.executor.version)) {
            return Some(removed); // A stale list had put it back into the snapshot.
        }
        let other = other.cloned();
        self.open.insert(pod.clone(), Confirmation::Absent(removed));
        self.lookups.add_after(pod, now + wait);
        other
    }

    /// Another request found that the pod with this uid is deleted. If a GET was to confirm that, cancels the GET and returns the
    /// executor.
    pub(super) fn proven_gone(&mut self, pod: &PodKey, uid: &str) -> Option<RemovedExecutor> {
        let removed = match self.open.get(pod)? {
            Confirmation::Absent(removed) if *removed.executor.uid == *uid => removed.clone(),
            _ => return None,
        };
        self.open.remove(pod);
        self.lookups.remove(pod);
        Some(removed)
    }

    /// Whether too many confirmations are open to confirm each further pod with a GET.
    pub(super) fn is_full(&self) -> bool {
        self.open.len() >= MAX_LOOKUPS
    }

    /// Whether the last new list is not older than this version.
    pub(super) fn list_covers(&self, version: &str) -> bool {
        self.listed_version.as_ref().is_some_and(|listed| is_not_newer(version, listed))
    }

    /// Begins to compare a poll with the snapshot, in parts. An executor counts as missing only if it was first observed more
    /// than `delta` ago: a younger one may be newer than the list (`missingPodDetectDelta`).
    pub(super) fn begin_comparison(&mut self, polled: PollResult, delta: Duration, now: Now) {
        if self.list_covers(&polled.version) {
            return; // The snapshot already contains a newer list.
        }
        self.rests = self.rests.saturating_sub(1);
        // Closes the differences of the previous poll: this poll finds again what still differs.
        self.open.retain(|pod, check| !check.is_of_poll() || self.lookups.is_in_flight(pod));
        (self.room, self.oldest_beyond) = (MAX_OPEN, None);
        let cursor = Cursor::default();
        let PollResult { version, present, differing } = polled;
        self.comparison = Some(PollComparison { version, present, delta, now, cursor, is_walked: false, differing });
    }

    /// Whether the comparison of a poll is in progress.
    pub(super) fn is_comparing(&self) -> bool {
        self.comparison.is_some()
    }

    /// Compares about `max` more pods. `position` is the resourceVersion that the watch has reached.
    pub(super) fn continue_comparison(
        &mut self,
        snapshot: &Snapshot,
        tombstones: &Tombstones,
        max: usize,
        position: Option<&str>,
    ) {
        let Some(mut comparison) = self.comparison.take() else { return };
        let mut left = max;
        if !comparison.is_walked {
            comparison.is_walked = self.desync(snapshot, &mut comparison, &mut left);
        }
        while comparison.is_walked
            && left > 0
            && let Some((pod, uid, version)) = comparison.differing.pop_front()
        {
            left -= 1;
            if is_behind(snapshot, pod.namespace(), pod.name(), &uid, &version) && !tombstones.was_shown(&uid) {
                self.open_confirmation(pod, Confirmation::Behind { uid, version });
            }
        }
        if !comparison.is_walked || !comparison.differing.is_empty() {
            self.comparison = Some(comparison);
            return;
        }
        self.conclude(&comparison);
        if let Some(position) = position {
            // The watch may already have passed the poll's list.
            self.compare(snapshot, tombstones, position);
        }
    }

    /// Looks up the next pods of the snapshot in the poll. Returns whether these were the last.
    fn desync(&mut self, snapshot: &Snapshot, comparison: &mut PollComparison, left: &mut usize) -> bool {
        let PollComparison { version, present, delta, now, cursor, .. } = comparison;
        let mut missed = Vec::new();
        let is_walked = snapshot.walk(cursor, *left, |key, pod| {
            *left = left.saturating_sub(1);
            let young = match pod {
                // By the monotonic clock: the wall clock may be wrong by hours, and then no executor would count as missing.
                Labelled::Executor(executor) => {
                    executor.first_seen.is_some_and(|seen| now.at.saturating_duration_since(seen) <= *delta)
                }
                // A deleted driver that counts as alive would be waited for forever.
                Labelled::Driver(_) => false,
            };
            if young || present.has(key, &pod) || is_newer(pod.version(), version) {
                return;
            }
            let check = match pod {
                Labelled::Executor(executor) => {
                    let (app, executor, absence) = (key.clone(), executor.clone(), Absence::NotListed);
                    Confirmation::Desynced(RemovedExecutor {
                        app,
                        executor,
                        absence,
                        missing: Some((now.wall, *delta)),
                        asked: Some(now.at),
                    })
                }
                Labelled::Driver(driver) => Confirmation::NoDriver(driver.uid.clone()),
            };
            missed.push((PodKey::new(key.namespace(), pod.name()), check));
        });
        for (pod, check) in missed {
            self.open_confirmation(pod, check);
        }
        is_walked
    }

    /// Opens a confirmation of a difference, unless one is open for this pod.
    fn open_confirmation(&mut self, pod: PodKey, check: Confirmation) {
        if self.open.contains_key(&pod) {
            return;
        }
        if let Some(room) = self.room.checked_sub(1) {
            self.room = room;
            self.open.insert(pod, check);
        } else {
            self.oldest_beyond = self.oldest_beyond.into_iter().chain(check.version()).min();
        }
    }

    /// The comparison is complete: schedules GETs of the pods that differ.
    fn conclude(&mut self, comparison: &PollComparison) {
        if !self.open.values().any(Confirmation::is_of_poll) && self.oldest_beyond.is_none() {
            // The watch may not have shown yet what GETs returned.
            if self.until.is_none() {
                (self.restarts, self.rests, self.is_desynced) = (0, 0, false);
            }
            return;
        }
        let since = self.until.take().map_or(comparison.now.at, |(_, since)| since);
        self.until = Some((comparison.version.as_str().into(), since));
        let settled = comparison.now.at + self.settle;
        let from = self.last_lookup.take().map_or(Unbounded, Excluded);
        let after = self.open.range((from, Unbounded));
        let asked = after.chain(&self.open).filter(|(_, check)| check.is_of_poll()).map(|(pod, _)| pod);
        let asked: Vec<PodKey> = asked.take(MAX_LOOKUPS).cloned().collect();
        self.last_lookup = asked.last().cloned();
        for pod in asked {
            self.lookups.add_after(pod, settled);
        }
    }

    /// The watch delivered something, and has shown everything up to `version`. Once it passes the last poll's list, it has lost
    /// the changes in that list that it has not shown.
    pub(super) fn watch_passed(&mut self, snapshot: &Snapshot, tombstones: &Tombstones, version: &str, now: Instant) {
        self.last_event = Some(now);
        self.compare(snapshot, tombstones, version);
    }

    /// The watch is interrupted, and is being restarted: it is not silent.
    pub(super) fn watch_interrupted(&mut self, now: Instant) {
        self.last_event = self.last_event.max(Some(now));
    }

    /// If the last poll's list is not newer than `version`, the watch's position, the watch has lost the differences still open.
    pub(super) fn compare(&mut self, snapshot: &Snapshot, tombstones: &Tombstones, version: &str) {
        if self.until.as_ref().is_none_or(|(until, _)| !is_not_newer(until, version)) {
            return;
        }
        self.until = None;
        let lookups = &self.lookups;
        let mut lost = false;
        self.open.retain(|pod, check| {
            let there = snapshot.executor(pod.namespace(), pod.name()).map(|(_, executor)| &executor.uid);
            let there =
                there.or_else(|| snapshot.labelled_driver(pod.namespace(), pod.name()).map(|(_, driver)| &driver.uid));
            let unshown = match check {
                Confirmation::Desynced(removed) => there == Some(&removed.executor.uid),
                Confirmation::NoDriver(uid) => there == Some(uid),
                Confirmation::Behind { uid, version } => {
                    !tombstones.was_shown(uid) && is_behind(snapshot, pod.namespace(), pod.name(), uid, version)
                }
                Confirmation::Absent(_) => return true,
            };
            lost |= unshown;
            unshown || lookups.is_in_flight(pod)
        });
        self.is_desynced |= lost;
    }

    /// All pods were relisted, as of `version`. This settles every difference of the last poll.
    pub(super) fn list_completed(&mut self, version: &str, now: Instant) {
        self.last_event = Some(now);
        self.until = None;
        self.is_desynced = false;
        self.comparison = None;
        self.oldest_beyond = None;
        self.listed_version = Some(version.into());
        self.unlisted.clear();
        self.listing = Some(Listing { version: version.into(), last: None, proven: Vec::new() });
    }

    /// Whether there is more to conclude from the last list.
    pub(super) fn has_proven(&self) -> bool {
        self.listing.is_some() || !self.proven_absent.is_empty()
    }

    /// Concludes from the last list, for about `max` pods. A pod that the list lacks, and that is not newer than it, is deleted
    /// unless its labels changed: if there are few, each is confirmed with a GET, else all pods of their namespaces are listed.
    pub(super) fn take_proven(&mut self, snapshot: &Snapshot, max: usize) -> Vec<Confirmed> {
        if let Some(mut listing) = self.listing.take() {
            let from = listing.last.take().map_or(Unbounded, Excluded);
            let next: Vec<PodKey> = self.open.range((from, Unbounded)).map(|(pod, _)| pod.clone()).take(max).collect();
            for pod in &next {
                if let Some(Confirmation::Absent(removed)) = self.open.get(pod)
                    && removed.absence == Absence::NotListed
                {
                    let there = snapshot.executor(pod.namespace(), pod.name());
                    if there.is_some_and(|(_, there)| there.uid == removed.executor.uid) {
                        self.open.remove(pod);
                    } else if is_not_newer(&removed.executor.version, &listing.version) {
                        listing.proven.push(pod.clone());
                    }
                } else if self.open.get(pod).is_some_and(Confirmation::is_of_poll) && !self.lookups.is_in_flight(pod) {
                    self.open.remove(pod);
                }
            }
            if next.len() == max {
                listing.last = next.into_iter().next_back();
                self.listing = Some(listing);
                return Vec::new();
            }
            if listing.proven.len() <= MAX_LOOKUPS {
                listing.proven.into_iter().for_each(|pod| self.lookups.add(pod));
            } else {
                for pod in listing.proven {
                    self.lookups.remove(&pod);
                    let namespace: Arc<str> = pod.namespace().into();
                    self.namespaces.add(namespace.clone());
                    self.unlisted.entry(namespace).or_default().push(pod);
                }
            }
        }
        let some = self.proven_absent.len().min(max);
        let removed = self.proven_absent.drain(..some).collect::<Vec<_>>().into_iter().filter_map(|pod| {
            let there = snapshot.executor(pod.namespace(), pod.name()).map(|(_, there)| there.uid.clone());
            match self.open.get(&pod)? {
                Confirmation::Absent(removed) if removed.absence == Absence::NotListed => {}
                _ => return None, // The watch has settled it since.
            }
            match self.open.remove(&pod)? {
                // The pod may have returned to the snapshot since.
                Confirmation::Absent(removed) if there.as_ref() != Some(&removed.executor.uid) => {
                    Some(Confirmed::Gone(removed))
                }
                _ => None,
            }
        });
        removed.collect()
    }

    /// When the watch counts as silent, if polls differ: it has shown nothing for a while. What has just changed is on its way.
    fn silent_at(&self) -> Option<Instant> {
        let (_, since) = self.until.as_ref()?;
        Some((self.last_event? + self.silence).max(*since + self.settle))
    }

    /// Whether the watch of pods lost an event and is to be restarted: at most once per poll, and less and less often if restarts
    /// do not help.
    pub(super) fn restart_watch(&mut self, now: Instant) -> bool {
        let silent = self.silent_at().is_some_and(|at| at <= now);
        if !(self.is_desynced || silent) || self.rests > 0 {
            return false;
        }
        self.is_desynced = false;
        self.last_event = Some(now);
        self.rests = (1 << self.restarts.min(5)).min(MAX_RESTART_INTERVAL);
        self.restarts = self.restarts.saturating_add(1);
        true
    }

    /// Pods to GET now. Versions that the watch has shown meanwhile need no GET.
    pub(super) fn due_pods(&mut self, snapshot: &Snapshot, now: Instant) -> Vec<PodKey> {
        let mut due = Vec::new();
        while self.lookups.in_flight() < MAX_IN_FLIGHT
            && let Some(pod) = self.lookups.get(now)
        {
            let is_open = match self.open.get(&pod) {
                Some(Confirmation::Behind { uid, version }) => {
                    is_behind(snapshot, pod.namespace(), pod.name(), uid, version)
                }
                other => other.is_some(),
            };
            if is_open {
                due.push(pod);
            } else {
                self.open.remove(&pod);
                self.lookups.done(&pod);
                self.lookups.forget(&pod);
            }
        }
        due
    }

    /// Namespaces whose pods are all to be listed now.
    pub(super) fn due_namespaces(&mut self, now: Instant) -> Vec<Arc<str>> {
        let mut due = Vec::new();
        while self.namespaces.in_flight() < MAX_LISTS_IN_FLIGHT
            && let Some(namespace) = self.namespaces.get(now)
        {
            due.push(namespace);
        }
        due
    }

    /// Processes the list of all pods of a namespace, regardless of labels; `None` if the LIST failed.
    /// [`Confirmations::take_proven`] returns the executors whose pods are deleted.
    pub(super) fn namespace_listed(&mut self, namespace: &Arc<str>, all: Option<&Listed>, now: Instant) {
        let is_asked_again = self.namespaces.is_waiting(namespace);
        self.namespaces.done(namespace);
        if is_asked_again {
            return;
        }
        let Some(all) = all else {
            if self.unlisted.contains_key(namespace) {
                self.namespaces.add_rate_limited(namespace.clone(), now, backoff_delay);
            }
            return;
        };
        self.namespaces.forget(namespace);
        for pod in self.unlisted.remove(namespace).unwrap_or_default() {
            let Some(Confirmation::Absent(removed)) = self.open.get(&pod) else { continue };
            if all.contains(pod.namespace(), pod.name(), &removed.executor.uid) {
                self.open.remove(&pod); // Only its labels were removed.
            } else {
                self.proven_absent.push_back(pod);
            }
        }
    }

    /// When something is due next.
    pub(super) fn next_due(&self, now: Instant) -> Option<Instant> {
        let lookup_due = self.lookups.next(now).filter(|_| self.lookups.in_flight() < MAX_IN_FLIGHT);
        let names = self.namespaces.next(now).filter(|_| self.namespaces.in_flight() < MAX_LISTS_IN_FLIGHT);
        let silent = self.silent_at().filter(|_| self.rests == 0);
        lookup_due.into_iter().chain(names).chain(silent).min()
    }

    /// The oldest unconfirmed version: from there on an exit may have been missed.
    pub(super) fn oldest_version(&self) -> Option<u64> {
        self.open.values().filter_map(Confirmation::version).chain(self.oldest_beyond).min()
    }

    /// The GET failed: it is retried after a backoff.
    pub(super) fn lookup_failed(&mut self, pod: &PodKey, now: Instant) {
        self.lookups.done(pod);
        if self.open.contains_key(pod) {
            self.lookups.add_rate_limited(pod.clone(), now, backoff_delay);
        }
    }

    /// A GET was answered with the uid of the pod of that name, or `None` if there is no such pod.
    pub(super) fn lookup_answered(&mut self, pod: &PodKey, there: Option<&str>) -> Confirmed {
        let is_asked_again = self.lookups.is_waiting(pod);
        self.lookups.done(pod);
        if is_asked_again {
            return Confirmed::Nothing; // The pod changed since, and the answer may be older.
        }
        self.lookups.remove(pod);
        match self.open.remove(pod) {
            Some(Confirmation::Absent(removed) | Confirmation::Desynced(removed))
                if there != Some(&*removed.executor.uid) =>
            {
                Confirmed::Gone(removed)
            }
            Some(Confirmation::NoDriver(uid)) if there != Some(&*uid) => Confirmed::DriverGone(pod.clone(), uid),
            _ => Confirmed::Nothing,
        }
    }
}

/// Whether a version is known not to be newer than another: both are numbers, and the first is not greater.
fn is_not_newer(version: &str, than: &str) -> bool {
    version == than || is_newer(than, version)
}

/// Whether the snapshot's version of a pod is older than the poll's.
fn is_behind(snapshot: &Snapshot, namespace: &str, name: &str, uid: &str, version: &str) -> bool {
    let differs = |known_uid: &str, known: &str| known_uid != uid || (known != version && !is_newer(known, version));
    match snapshot.executor(namespace, name) {
        Some((_, known)) => differs(&known.uid, &known.version),
        // Only labelled drivers: a poll contains no others, and the watch does not show a driver that is only followed by name.
        None => snapshot.labelled_driver(namespace, name).is_none_or(|(_, known)| differs(&known.uid, &known.version)),
    }
}
