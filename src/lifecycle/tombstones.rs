//! What went a moment ago: an event or an answer may come after the end of what it is about, and brings nothing back.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use smol_str::SmolStr;

use crate::spark::ids::is_newer;

/// Uids of pods and groups that went since the last sweep but one.
#[derive(Debug, Default)]
pub(super) struct Tombstones {
    now: HashSet<Arc<str>>,
    before: HashSet<Arc<str>>,
    /// Pods that left a watch by label, at this version, and may be there, and may come back.
    left_now: HashMap<Arc<str>, SmolStr>,
    left_before: HashMap<Arc<str>, SmolStr>,
}

impl Tombstones {
    /// What has this uid is gone.
    pub(super) fn bury(&mut self, uid: Arc<str>) {
        self.now.insert(uid);
    }

    /// Whether what has this uid went a moment ago.
    pub(super) fn has(&self, uid: &str) -> bool {
        self.now.contains(uid) || self.before.contains(uid)
    }

    /// What has this uid was shown to leave, at this version.
    pub(super) fn leave(&mut self, uid: Arc<str>, version: SmolStr) {
        self.left_now.insert(uid, version);
    }

    /// Whether news of what has this uid was overtaken by its end, or by its leaving.
    pub(super) fn has_overtaken(&self, uid: &str, version: &str) -> bool {
        let left = self.left_now.get(uid).or_else(|| self.left_before.get(uid));
        self.has(uid) || left.is_some_and(|left| is_newer(left, version))
    }

    /// Whether what has this uid was shown to go or to leave a moment ago: a list may still have it.
    pub(super) fn was_shown(&self, uid: &str) -> bool {
        self.has(uid) || self.left_now.contains_key(uid) || self.left_before.contains_key(uid)
    }

    /// Forgets what went before the last sweep.
    pub(super) fn sweep(&mut self) {
        self.before = std::mem::take(&mut self.now);
        self.left_before = std::mem::take(&mut self.left_now);
    }
}
