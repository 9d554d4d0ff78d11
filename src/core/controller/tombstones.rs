//! Objects that the snapshot lacks for a reason: those deleted recently, which late events and answers must not bring back, and
//! those that do not belong in it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use smol_str::SmolStr;

use usher_spark::hash::hash_of;
use usher_spark::ids::is_newer;

/// Uids of pods and PodGroups that were deleted since the last prune but one. Each is stored as a hash: a collision of a new
/// object with one that was just deleted is too unlikely to matter. Trees grow and are dropped without long pauses.
#[derive(Debug, Default)]
pub(super) struct Tombstones {
    current: BTreeSet<u64>,
    previous: BTreeSet<u64>,
    /// Uids of pods that a GET found deleted before the watch delivered the deletion, and when. A watch that is minutes late
    /// still delivers all their events, which must not bring them back.
    undelivered: BTreeMap<u64, Instant>,
    /// Those of them whose tombstone is older than the current list.
    unlisted: BTreeMap<u64, Instant>,
    /// Pods that left a watch by label, at this version; they may still exist, and may come back.
    unselected_current: BTreeMap<u64, SmolStr>,
    unselected_previous: BTreeMap<u64, SmolStr>,
    /// Pods that match the watch's selector and are neither drivers nor executors, or cannot be parsed. Polls contain them too.
    unclassified: BTreeSet<u64>,
}

/// At most this many unclassified pods are kept. Further ones cause restarts of the watch, whose rate is limited.
const MAX_UNCLASSIFIED: usize = 65_536;
/// At most this many pods wait for their deletion to be delivered. Further ones are pruned like others.
const MAX_UNDELIVERED: usize = 65_536;
/// They wait at most this long: if the GET was wrong, for example from another API server, the next poll finds the pod.
const MAX_AGE: Duration = Duration::from_secs(600);

impl Tombstones {
    /// The object with this uid was deleted.
    pub(super) fn add(&mut self, uid: &str) {
        self.current.insert(hash_of(uid));
    }

    /// A GET found that the pod with this uid is deleted.
    pub(super) fn add_undelivered(&mut self, uid: &str, now: Instant) {
        self.add(uid);
        if self.undelivered.len() < MAX_UNDELIVERED {
            self.undelivered.insert(hash_of(uid), now);
        }
    }

    /// The watch delivers the deletion of the pod with this uid, which has a tombstone.
    pub(super) fn deliver(&mut self, uid: &str) {
        if !self.undelivered.is_empty() && self.undelivered.remove(&hash_of(uid)).is_some() {
            self.add(uid);
        }
    }

    /// Whether the object with this uid was deleted recently, or the watch has not delivered its deletion yet.
    pub(super) fn contains(&self, uid: &str) -> bool {
        let uid = hash_of(uid);
        let of_watch = || self.undelivered.contains_key(&uid) || self.unlisted.contains_key(&uid);
        self.current.contains(&uid) || self.previous.contains(&uid) || of_watch()
    }

    /// The pod with this uid left the watch by label, at this version.
    pub(super) fn add_unselected(&mut self, uid: &str, version: SmolStr) {
        self.unselected_current.insert(hash_of(uid), version);
    }

    /// At which version the pod with this uid left the watch by label.
    fn left(&self, uid: &str) -> Option<&SmolStr> {
        let uid = hash_of(uid);
        self.unselected_current.get(&uid).or_else(|| self.unselected_previous.get(&uid))
    }

    /// Whether this version of an object is stale: the object was deleted, or left the watch at a newer version.
    pub(super) fn is_stale(&self, uid: &str, version: &str) -> bool {
        self.contains(uid) || self.left(uid).is_some_and(|left| is_newer(left, version))
    }

    /// Whether the watch has shown the pod with this uid, and the snapshot lacks it: it was deleted or left recently, and a list
    /// may still contain it, or it does not belong in the snapshot.
    pub(super) fn was_shown(&self, uid: &str) -> bool {
        self.contains(uid) || self.left(uid).is_some() || self.unclassified.contains(&hash_of(uid))
    }

    /// The pod with this uid was shown, and does not belong in the snapshot.
    pub(super) fn add_unclassified(&mut self, uid: &str) {
        if self.unclassified.len() < MAX_UNCLASSIFIED {
            self.unclassified.insert(hash_of(uid));
        }
    }

    /// The pod with this uid belongs in the snapshot.
    pub(super) fn remove_unclassified(&mut self, uid: &str) {
        if !self.unclassified.is_empty() {
            self.unclassified.remove(&hash_of(uid));
        }
    }

    /// A list of all pods begins.
    pub(super) fn list_started(&mut self) {
        self.unclassified.clear();
        self.unlisted.append(&mut self.undelivered);
    }

    /// The list contains the pod with this uid. If that has a tombstone, the list is stale, and the watch will show the deletion.
    pub(super) fn remove_listed(&mut self, uid: &str) {
        if let Some((uid, at)) = self.unlisted.remove_entry(&hash_of(uid)) {
            self.undelivered.insert(uid, at);
        }
    }

    /// The list is complete: the watch delivers no more events of pods that it lacks.
    pub(super) fn list_finished(&mut self) {
        self.current.extend(std::mem::take(&mut self.unlisted).into_keys());
    }

    /// Forgets objects that were deleted before the last prune.
    pub(super) fn prune(&mut self, now: Instant) {
        for waiting in [&mut self.undelivered, &mut self.unlisted] {
            waiting.retain(|_, at| now.saturating_duration_since(*at) < MAX_AGE);
        }
        self.previous = std::mem::take(&mut self.current);
        self.unselected_previous = std::mem::take(&mut self.unselected_current);
    }
}
