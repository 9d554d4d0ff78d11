//! What is not in the picture for a reason: what went a moment ago, of which an event or an answer may still come and brings
//! nothing back, and what cannot be in it.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, Instant};

use smol_str::SmolStr;

use crate::spark::ids::is_newer;

/// Uids of pods and groups that went since the last sweep but one. A hash stands for each: that two of them have the same,
/// and one comes while the other has just gone, nobody will see. In trees, which grow and go without long pauses.
#[derive(Debug, Default)]
pub(super) struct Tombstones {
    now: BTreeSet<u64>,
    before: BTreeSet<u64>,
    /// Uids of pods that a GET found deleted before the watch delivered the deletion, and when. A watch that is minutes late
    /// delivers every event of them, which must not bring them back.
    unshown: BTreeMap<u64, Instant>,
    /// Those of them that were buried before the current list began.
    unlisted: BTreeMap<u64, Instant>,
    /// Pods that left a watch by label, at this version, and may be there, and may come back.
    left_now: BTreeMap<u64, SmolStr>,
    left_before: BTreeMap<u64, SmolStr>,
    /// Pods that match the watch's selector and are no drivers or executors, or cannot be read. Polls have them too.
    strange: BTreeSet<u64>,
}

/// So many strange pods are remembered. Beyond that they make the watch start again, as rarely as it does.
const MOST_STRANGE: usize = 65_536;
/// At most so many pods wait for their deletion to be delivered. Those beyond are forgotten like others.
const MOST_UNSHOWN: usize = 65_536;
/// They wait at most so long: where the GET was wrong, for example from another API server, the next poll finds the pod.
const LATEST: Duration = Duration::from_secs(600);

impl Tombstones {
    /// What has this uid is gone.
    pub(super) fn bury(&mut self, uid: &str) {
        self.now.insert(hash(uid));
    }

    /// A GET found that the pod of this uid is deleted.
    pub(super) fn bury_unshown(&mut self, uid: &str, now: Instant) {
        self.bury(uid);
        if self.unshown.len() < MOST_UNSHOWN {
            self.unshown.insert(hash(uid), now);
        }
    }

    /// The watch delivers the deletion of the pod of this uid, which is buried.
    pub(super) fn is_shown(&mut self, uid: &str) {
        if !self.unshown.is_empty() && self.unshown.remove(&hash(uid)).is_some() {
            self.bury(uid);
        }
    }

    /// Whether what has this uid went a moment ago, or the watch has not shown yet that it went.
    pub(super) fn has(&self, uid: &str) -> bool {
        let uid = hash(uid);
        let of_watch = || self.unshown.contains_key(&uid) || self.unlisted.contains_key(&uid);
        self.now.contains(&uid) || self.before.contains(&uid) || of_watch()
    }

    /// What has this uid was shown to leave, at this version.
    pub(super) fn leave(&mut self, uid: &str, version: SmolStr) {
        self.left_now.insert(hash(uid), version);
    }

    /// When what has this uid was shown to leave.
    fn left(&self, uid: &str) -> Option<&SmolStr> {
        let uid = hash(uid);
        self.left_now.get(&uid).or_else(|| self.left_before.get(&uid))
    }

    /// Whether news of what has this uid was overtaken by its end, or by its leaving.
    pub(super) fn has_overtaken(&self, uid: &str, version: &str) -> bool {
        self.has(uid) || self.left(uid).is_some_and(|left| is_newer(left, version))
    }

    /// Whether what has this uid was shown, and the picture does not have it: it went or left a moment ago, and a list may still
    /// have it, or it is nothing for the picture.
    pub(super) fn was_shown(&self, uid: &str) -> bool {
        self.has(uid) || self.left(uid).is_some() || self.strange.contains(&hash(uid))
    }

    /// What has this uid was shown, and is nothing for the picture.
    pub(super) fn is_strange(&mut self, uid: &str) {
        if self.strange.len() < MOST_STRANGE {
            self.strange.insert(hash(uid));
        }
    }

    /// What has this uid is in the picture.
    pub(super) fn is_known(&mut self, uid: &str) {
        if !self.strange.is_empty() {
            self.strange.remove(&hash(uid));
        }
    }

    /// A list of all pods begins.
    pub(super) fn list_begins(&mut self) {
        self.strange.clear();
        self.unlisted.append(&mut self.unshown);
    }

    /// The list contains the pod of this uid. If that is buried, the list is stale, and the watch will deliver the deletion.
    pub(super) fn is_listed(&mut self, uid: &str) {
        if let Some((uid, at)) = self.unlisted.remove_entry(&hash(uid)) {
            self.unshown.insert(uid, at);
        }
    }

    /// The list is complete: of pods that it lacks the watch delivers nothing more.
    pub(super) fn list_ends(&mut self) {
        self.now.extend(std::mem::take(&mut self.unlisted).into_keys());
    }

    /// Forgets what went before the last sweep.
    pub(super) fn sweep(&mut self, now: Instant) {
        for waiting in [&mut self.unshown, &mut self.unlisted] {
            waiting.retain(|_, at| now.saturating_duration_since(*at) < LATEST);
        }
        self.before = std::mem::take(&mut self.now);
        self.left_before = std::mem::take(&mut self.left_now);
    }
}

fn hash(uid: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    uid.hash(&mut hasher);
    hasher.finish()
}
