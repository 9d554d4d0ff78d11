//! State that the controller keeps between two plans of one application. All of it can be lost: a restart costs a delay, never
//! a wrong action.

use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

use jiff::Timestamp;

use crate::drivers::kept;
use crate::ownership::liveness::{ExecutorSet, KnownDriver};
use crate::planning::batch::Position;
use crate::recovery::state::RecoveryState;
use crate::signature::Creator;
use crate::snapshot::{GroupKey, Snapshot};
use usher_spark::ids::AppKey;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApplicationState {
    /// The state of each creator's executors.
    pub sets: BTreeMap<Option<Creator>, SetState>,
    /// Since when a PodGroup has had no member while nothing is known of its driver.
    pub idle_since: HashMap<GroupKey, Timestamp>,
    /// The state of the recovery rules.
    pub recovery: RecoveryState,
}

/// Why a driver has not stated its configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Silence {
    /// Its first poll has not ended.
    #[default]
    Unpolled,
    /// It answered, with or without its configuration.
    None,
    /// Nothing accepts connections at its port: its web server has not started, or is turned off.
    Refused,
    /// It is starting, or is too busy to answer.
    Starting,
}

/// The state of one creator's executors.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SetState {
    /// The driver as it was last known, with the uid that was learned once.
    pub driver: Option<KnownDriver>,
    /// As many executors as it started with have run once. Also kept on the PodGroup, which survives restarts.
    pub started: bool,
    /// The driver keeps its finished executors, or its configuration could not be read, when it was last known.
    pub keeps: bool,
    /// Since when their PodGroup has waited for the driver's configuration.
    pub(super) conf_awaited_since: Option<Instant>,
    /// What the last poll of the driver that has this key says about its configuration.
    pub(crate) silence: Silence,
    /// Where the next plan continues, if there are too many executors for one.
    pub(super) progress: Progress,
}

/// Where the next plan for one creator's executors continues.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Progress {
    /// Among those that exited and are not cleaned up.
    pub(super) uncleared: Position,
    /// Among those that have no owner.
    pub(super) orphans: Position,
}

impl ApplicationState {
    /// Whether there is no state.
    pub fn is_empty(&self) -> bool {
        self.sets.is_empty() && self.idle_since.is_empty() && self.recovery.is_empty()
    }

    /// The driver of a creator's executors as it was last known.
    pub fn last_driver(&self, creator: Option<Creator>) -> Option<KnownDriver> {
        self.sets.get(&creator)?.driver.clone()
    }

    /// Where the next plan for a creator's executors continues.
    pub(super) fn progress(&self, creator: Option<Creator>) -> Progress {
        self.sets.get(&creator).map(|set| set.progress.clone()).unwrap_or_default()
    }

    /// Sets where the next plan for a creator's executors continues.
    pub(super) fn set_progress(&mut self, creator: Option<Creator>, progress: Progress) {
        match self.sets.get_mut(&creator) {
            Some(set) => set.progress = progress,
            None if progress == Progress::default() => {}
            None => self.sets.entry(creator).or_default().progress = progress,
        }
    }

    /// Records the live drivers, and forgets creators of which nothing is left.
    pub(super) fn observe_drivers(&mut self, sets: &[ExecutorSet<'_>], snapshot: &Snapshot, key: &AppKey) {
        // The sets are sorted by creator.
        self.sets.retain(|creator, _| sets.binary_search_by_key(creator, |set| set.creator).is_ok());
        for set in sets {
            if let Some(pod) = set.driver.pod().filter(|_| set.is_certain) {
                let state = self.sets.entry(set.creator).or_default();
                let same = state.driver.take().map(|known| known.pod).filter(|known| known.uid == pod.uid);
                let known = same.unwrap_or_else(|| pod.identity(key.namespace()));
                state.driver = Some(KnownDriver { pod: known, host: set.host().cloned() });
                state.keeps = kept::keeps(snapshot, key, pod);
            }
        }
    }
}
