//! When actions may be done: those for the executors of one creator one batch after another, ever more slowly where they
//! fail or are undone, and never because of what is done, or fails, for the executors of another.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::action::Action;
use super::plan::Plan;
use crate::driver::life;
use crate::plant::{self, Bug};
use crate::signature::Creator;
use crate::snapshot::Snapshot;
use crate::spark::ids::AppKey;

/// How many batches of actions are on the way at once.
const AT_ONCE: usize = 16;
/// The first pause after a failure; each further one is twice as long, up to [`LONGEST_PAUSE`].
pub(super) const PAUSE: Duration = Duration::from_millis(500);
/// The longest pause after a failure.
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// So many batches are done without a pause.
const UNPACED: u32 = 5;
/// The longest pause between batches that were done.
const SLOWEST: Duration = Duration::from_secs(10);
/// After so long without an action the count starts anew.
const QUIET: Duration = Duration::from_secs(30);

/// The executors of one creator in an application.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CrewKey {
    /// The application.
    pub app: AppKey,
    /// Who made them, as in [`Crew`](crate::driver::life::Crew).
    pub creator: Option<Creator>,
}

/// How often something happened in a row, and until when it is paused for.
type Pause = (u32, Instant);

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct Pace {
    acting: BTreeSet<CrewKey>,
    failures: BTreeMap<CrewKey, Pause>,
    writes: BTreeMap<CrewKey, Pause>,
    /// Those whose application is to be planned again as soon as they may.
    waiting: BTreeSet<CrewKey>,
}

impl Pace {
    pub(super) fn has_room(&self) -> bool {
        self.acting.len() < AT_ONCE
    }

    /// Whether an application has to wait, which is then planned again in time: where one creator made all its executors, a
    /// plan before it may act is wasted.
    pub(super) fn holds(&mut self, app: &AppKey, now: Instant, snapshot: &Snapshot) -> bool {
        let first = CrewKey { app: app.clone(), creator: None };
        let of_app = |key: &&CrewKey| key.app == *app;
        let acting = self.acting.range(&first..).take_while(of_app);
        let paused = [&self.failures, &self.writes].into_iter().flat_map(|pauses| {
            let pauses = pauses.range(&first..).take_while(|(key, _)| of_app(key));
            pauses.filter(|(_, (_, until))| *until > now).map(|(key, _)| key)
        });
        let Some(held) = acting.chain(paused).next().cloned() else { return false };
        if snapshot.apps.get(app).is_some_and(|app| life::has_several_creators(app)) {
            return false;
        }
        self.waiting.insert(held);
        true
    }

    /// Takes out of a plan what may be done now. The others wait; whoever acted last comes last.
    pub(super) fn begin(&mut self, app: &AppKey, plan: Plan, now: Instant) -> Vec<(CrewKey, Vec<Action>)> {
        let first = CrewKey { app: app.clone(), creator: None };
        let idle = |key: &CrewKey| key.app == *app && !plan.crews.contains_key(&key.creator);
        let over = self.failures.range(&first..).take_while(|(key, _)| key.app == *app);
        let over: Vec<CrewKey> = over.map(|(key, _)| key).filter(|key| idle(key)).cloned().collect();
        for key in over {
            self.failures.remove(&key);
        }
        let crews = plan.crews.into_iter().map(|(creator, actions)| (CrewKey { app: app.clone(), creator }, actions));
        let mut crews: Vec<_> = crews.collect();
        crews.sort_by_key(|(key, _)| self.writes.get(key).map(|(_, until)| *until));
        let mut begun = Vec::new();
        for (key, actions) in crews {
            if self.has_room() && !self.acting.contains(&key) && !self.is_paused(&key, now) {
                self.acting.insert(key.clone());
                begun.push((key, actions));
            } else {
                self.waiting.insert(key);
            }
        }
        begun
    }

    fn is_paused(&self, key: &CrewKey, now: Instant) -> bool {
        [&self.failures, &self.writes].iter().any(|pauses| pauses.get(key).is_some_and(|(_, until)| *until > now))
    }

    /// A batch was done, or a part of it failed.
    pub(super) fn done(&mut self, key: &CrewKey, failed: bool, wrote: bool, now: Instant) {
        self.acting.remove(key);
        if failed {
            let count = self.failures.get(key).map_or(0, |(count, _)| *count).saturating_add(1);
            self.failures.insert(key.clone(), (count, now + pause(count)));
            if !plant::is(Bug::ActionNotRetried) {
                self.waiting.insert(key.clone());
            }
        } else {
            self.failures.remove(key);
        }
        if wrote {
            self.slow_down(key, now);
        }
    }

    /// Somebody may undo what we do. Who acts again and again upon the same executors does so ever more slowly.
    fn slow_down(&mut self, key: &CrewKey, now: Instant) {
        let recent = self.writes.get(key).filter(|(_, until)| now.saturating_duration_since(*until) < QUIET);
        let count = recent.map_or(0, |(count, _)| *count).saturating_add(1);
        let pause = if count > UNPACED { pause(count - UNPACED).min(SLOWEST) } else { Duration::ZERO };
        self.writes.insert(key.clone(), (count, now + pause));
        self.writes.retain(|_, (_, until)| now.saturating_duration_since(*until) < QUIET);
    }

    /// Applications that are to be planned again, for whom they waited may act.
    pub(super) fn freed(&mut self, now: Instant) -> BTreeSet<AppKey> {
        if !self.has_room() {
            return BTreeSet::new();
        }
        let waiting = std::mem::take(&mut self.waiting).into_iter();
        let (held, free): (_, BTreeSet<CrewKey>) =
            waiting.partition(|key| self.acting.contains(key) || self.is_paused(key, now));
        self.waiting = held;
        free.into_iter().map(|key| key.app).collect()
    }

    /// Nothing is to be planned any more.
    pub(super) fn give_up(&mut self) {
        self.waiting.clear();
    }

    /// When somebody may act whom a plan waits for. What waits for actions that are on the way is looked at when those are
    /// done.
    pub(super) fn next(&self) -> Option<Instant> {
        let waiting = self.waiting.iter().filter(|key| self.has_room() && !self.acting.contains(*key));
        let until =
            |key: &CrewKey| [&self.failures, &self.writes].iter().filter_map(|pauses| Some(pauses.get(key)?.1)).max();
        waiting.filter_map(until).min()
    }
}

/// A pause that grows, for what is tried again and again.
pub(crate) fn pause(failures: u32) -> Duration {
    PAUSE.saturating_mul(1 << failures.saturating_sub(1).min(10)).min(LONGEST_PAUSE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_minute() {
        assert_eq!(pause(1), PAUSE);
        assert_eq!(pause(3), PAUSE * 4);
        assert_eq!(pause(u32::MAX), LONGEST_PAUSE);
    }
}
