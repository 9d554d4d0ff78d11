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
    /// Uids of pods that a read found gone before the watch has shown that: it may be minutes late, and shows all of it then.
    unshown: BTreeMap<u64, Instant>,
    /// Those of them that had gone before the list began that is coming in.
    unlisted: BTreeMap<u64, Instant>,
    /// Pods that left a watch by label, at this version, and may be there, and may come back.
    left_now: BTreeMap<u64, SmolStr>,
    left_before: BTreeMap<u64, SmolStr>,
    /// Pods that match the watch's selector and are no drivers or executors, or cannot be read. Polls have them too.
    strange: BTreeSet<u64>,
}

/// So many strange pods are remembered. Beyond that they make the watch start again, as rarely as it does.
const MOST_STRANGE: usize = 65_536;
/// So many pods are remembered of which the watch owes the deletion. Those beyond are forgotten like others.
const MOST_UNSHOWN: usize = 65_536;
/// And for so long: where a read was wrong, as from another API server, the pod comes back with the next poll.
const LATEST: Duration = Duration::from_secs(600);

impl Tombstones {
    /// What has this uid is gone.
    pub(super) fn bury(&mut self, uid: &str) {
        self.now.insert(hash(uid));
    }

    /// A read found out that what has this uid is gone.
    pub(super) fn bury_unshown(&mut self, uid: &str, now: Instant) {
        self.bury(uid);
        if self.unshown.len() < MOST_UNSHOWN {
            self.unshown.insert(hash(uid), now);
        }
    }

    /// The watch shows that what has this uid is gone, which was known.
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

    /// A new list, which shows all that there are, begins.
    pub(super) fn list_begins(&mut self) {
        self.strange.clear();
        self.unlisted.append(&mut self.unshown);
    }

    /// The list has what has this uid. Where that is gone, the list is from the past, and the watch will show it to go.
    pub(super) fn is_listed(&mut self, uid: &str) {
        if let Some((uid, at)) = self.unlisted.remove_entry(&hash(uid)) {
            self.unshown.insert(uid, at);
        }
    }

    /// The list is complete: what it does not have the watch will not show any more.
    pub(super) fn list_ends(&mut self) {
        self.now.extend(std::mem::take(&mut self.unlisted).into_keys());
    }

    /// Forgets what went before the last sweep.
    pub(super) fn sweep(&mut self, now: Instant) {
        self.unshown.retain(|_, at| now.saturating_duration_since(*at) < LATEST);
        self.before = std::mem::take(&mut self.now);
        self.left_before = std::mem::take(&mut self.left_now);
    }
}

fn hash(uid: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    uid.hash(&mut hasher);
    hasher.finish()
}
