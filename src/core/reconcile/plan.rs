//! A plan for one application: its actions, and when to plan again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::drivers::DriverPoll;
use crate::planning::Action;
use crate::recovery::round::RoundPart;
use crate::signature::Creator;

/// What is to be done about an application now, and when to plan again.
#[derive(Debug, Default, PartialEq)]
pub struct Plan {
    /// The actions in order, by the creator of their executors: those for one creator do not wait for those for another.
    pub sets: BTreeMap<Option<Creator>, Vec<Action>>,
    /// The application's drivers, to poll for their view.
    pub drivers: Vec<DriverPoll>,
    /// What the part of a round of the recovery rules results in; its actions are in `sets`.
    pub recovery: RoundPart,
    /// When the next grace is over.
    pub requeue_at: Option<Instant>,
    /// Creators with too many executors for one plan: this plan contains only a part of their actions.
    pub partial: BTreeSet<Option<Creator>>,
}

/// Delay of the next part of a plan if the last part had actions,
const NEXT_PART: Duration = Duration::from_millis(250);
/// and if it had none.
const NEXT_IDLE_PART: Duration = Duration::from_secs(2);

impl Plan {
    /// There is more to plan for a creator's executors than this plan contains.
    pub(super) fn continue_later(&mut self, creator: Option<Creator>, now: Instant) {
        self.partial.insert(creator);
        self.requeue(now + if self.sets.contains_key(&creator) { NEXT_PART } else { NEXT_IDLE_PART });
    }

    /// Requests another plan at that time.
    pub(super) fn requeue(&mut self, at: Instant) {
        self.requeue_at = Some(self.requeue_at.map_or(at, |later| later.min(at)));
    }

    /// Adds actions for a creator's executors.
    pub(crate) fn add(&mut self, creator: Option<Creator>, actions: impl IntoIterator<Item = Action>) {
        let mut actions = actions.into_iter().peekable();
        if actions.peek().is_some() {
            self.sets.entry(creator).or_default().extend(actions);
        }
    }

    pub fn into_actions(self) -> impl Iterator<Item = Action> {
        self.sets.into_values().flatten()
    }
}
