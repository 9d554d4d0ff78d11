//! When actions may be done: those for the executors of one creator one batch after another, ever more slowly where they
//! fail or are undone, and never because of what is done, or fails, for the executors of another.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
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
/// And how many of those of one application.
const OF_ONE_APP: usize = 4;
/// And how many of those of one namespace: a tenant may have any number of applications.
const OF_ONE_NAMESPACE: usize = 12;
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
    /// What is on the way.
    acting: BTreeMap<CrewKey, Vec<Action>>,
    /// What was planned and has no place yet, in the order in which it was first planned: whoever is planned again and again
    /// is not before others.
    ready: VecDeque<CrewKey>,
    planned: BTreeMap<CrewKey, Vec<Action>>,
    failures: BTreeMap<CrewKey, Pause>,
    writes: BTreeMap<CrewKey, Pause>,
    /// Those whose application is to be planned again as soon as they may act.
    waiting: BTreeSet<CrewKey>,
}

impl Pace {
    /// Whether a whole application has to wait, which is then planned again in time: where all its executors are of one
    /// creator, a plan before it may act is wasted.
    pub(super) fn holds(&mut self, app: &AppKey, now: Instant, snapshot: &Snapshot) -> bool {
        let acting = of_app(self.acting.range(&first(app)..), app, |(key, _)| *key).map(|(key, _)| key);
        let paused = [&self.failures, &self.writes].into_iter().flat_map(|pauses| {
            let pauses = of_app(pauses.range(&first(app)..), app, |(key, _)| *key);
            pauses.filter(|(_, (_, until))| *until > now).map(|(key, _)| key)
        });
        let Some(held) = acting.chain(paused).next().cloned() else { return false };
        if !snapshot.apps.get(app).is_some_and(|app| life::is_all_of(app, held.creator)) {
            return false;
        }
        self.waiting.insert(held);
        true
    }

    /// Takes a plan over: what may be done is done when there is a place for it, the rest is planned again when it may be.
    pub(super) fn plan(&mut self, app: &AppKey, plan: Plan, now: Instant) {
        let failed = of_app(self.failures.range(&first(app)..), app, |(key, _)| *key).map(|(key, _)| key);
        let planned = of_app(self.planned.range(&first(app)..), app, |(key, _)| *key).map(|(key, _)| key);
        let idle = failed.chain(planned).filter(|key| !plan.crews.contains_key(&key.creator));
        for key in idle.cloned().collect::<Vec<_>>() {
            self.failures.remove(&key);
            self.planned.remove(&key);
        }
        for (creator, actions) in plan.crews {
            let key = CrewKey { app: app.clone(), creator };
            if self.acting.get(&key) == Some(&actions) {
                // The same actions are being done. If they were planned again, many creators would cause endless plans.
                continue;
            }
            if self.acting.contains_key(&key) || self.is_paused(&key, now) {
                self.planned.remove(&key);
                self.waiting.insert(key);
            } else if self.planned.insert(key.clone(), actions).is_none() {
                self.ready.push_back(key);
            }
        }
    }

    /// What begins now: the oldest first, and neither an application nor a namespace takes all places.
    pub(super) fn begin(&mut self) -> Vec<(CrewKey, Vec<Action>)> {
        let mut begun = Vec::new();
        let mut passed = VecDeque::new();
        while self.acting.len() < AT_ONCE
            && let Some(key) = self.ready.pop_front()
        {
            // It was planned again since, with nothing to do.
            if !self.planned.contains_key(&key) {
                continue;
            }
            let of_namespace = self.acting.keys().filter(|acting| acting.app.namespace() == key.app.namespace());
            if of_app(self.acting.range(&first(&key.app)..), &key.app, |(key, _)| *key).count() >= OF_ONE_APP
                || of_namespace.count() >= OF_ONE_NAMESPACE
            {
                passed.push_back(key);
            } else if let Some(actions) = self.planned.remove(&key) {
                self.acting.insert(key.clone(), actions.clone());
                begun.push((key, actions));
            }
        }
        passed.append(&mut self.ready);
        self.ready = passed;
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
        let waiting = std::mem::take(&mut self.waiting).into_iter();
        let (held, free): (_, BTreeSet<CrewKey>) =
            waiting.partition(|key| self.acting.contains_key(key) || self.is_paused(key, now));
        self.waiting = held;
        free.into_iter().map(|key| key.app).collect()
    }

    /// Another replica leads: nothing is to be done any more.
    pub(super) fn give_up(&mut self) {
        self.waiting.clear();
        self.ready.clear();
        self.planned.clear();
    }

    /// When the first pause of a waiting creator ends. The end of running actions needs no time: `done` is called then.
    pub(super) fn next(&self) -> Option<Instant> {
        let waiting = self.waiting.iter().filter(|key| !self.acting.contains_key(*key));
        let until =
            |key: &CrewKey| [&self.failures, &self.writes].iter().filter_map(|pauses| Some(pauses.get(key)?.1)).max();
        waiting.filter_map(until).min()
    }
}

/// Where the keys of an application begin.
fn first(app: &AppKey) -> CrewKey {
    CrewKey { app: app.clone(), creator: None }
}

/// Those of an application, of what begins with it.
fn of_app<'a, T: 'a>(
    all: impl Iterator<Item = T> + 'a,
    app: &'a AppKey,
    key: impl Fn(&T) -> &CrewKey + 'a,
) -> impl Iterator<Item = T> + 'a {
    all.take_while(move |one| key(one).app == *app)
}

/// A pause that grows, for what is tried again and again.
pub(crate) fn pause(failures: u32) -> Duration {
    PAUSE.saturating_mul(1 << failures.saturating_sub(1).min(10)).min(LONGEST_PAUSE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lifecycle::action::Told;
    use crate::reason::Reason;
    use crate::runtime::clock;
    use crate::spark::ids::PodKey;

    fn app(name: &str) -> AppKey {
        AppKey::new("default", name)
    }

    fn creator(n: usize) -> Option<Creator> {
        Some(Creator::of_pod("p", &n.to_string()))
    }

    /// A plan that says something for so many creators.
    fn says(creators: usize) -> Plan {
        let mut plan = Plan::default();
        for n in 0..creators {
            let pod = PodKey::new("default", "p");
            let (reason, message) = (Reason::GangSizeUnknown, String::new());
            plan.add(creator(n), [Action::Tell(Told { pod, uid: "u".into(), reason, message })]);
        }
        plan
    }

    #[test]
    fn many_creators_of_one_application_neither_take_all_places_nor_act_for_ever() {
        let now = clock::instant();
        let mut pace = Pace::default();
        pace.plan(&app("a"), says(100), now);
        let mut begun = pace.begin();
        assert_eq!(begun.len(), OF_ONE_APP);
        pace.plan(&app("z"), says(1), now);
        let other = pace.begin();
        assert!(other.len() == 1 && other[0].0.app == app("z"), "there is a place for another application");
        pace.done(&other[0].0, false, false, now);
        // Planned again before all had their turn: nobody has a second one before all had one.
        pace.plan(&app("a"), says(100), now);
        let mut seen: BTreeSet<CrewKey> = begun.iter().map(|(key, _)| key.clone()).collect();
        while let Some((key, _)) = begun.pop() {
            pace.done(&key, false, false, now);
            for (key, actions) in pace.begin() {
                assert!(actions.len() == 1 && (seen.insert(key.clone()) || seen.len() == 100));
                begun.push((key, actions));
            }
        }
        assert_eq!(seen.len(), 100);
        assert!(pace.freed(now).is_empty() && pace.begin().is_empty() && pace.next().is_none());
    }

    #[test]
    fn a_namespace_with_many_applications_leaves_places_for_others() {
        let now = clock::instant();
        let mut pace = Pace::default();
        for n in 0..20 {
            pace.plan(&app(&format!("a{n}")), says(1), now);
        }
        assert_eq!(pace.begin().len(), OF_ONE_NAMESPACE);
        pace.plan(&AppKey::new("other", "z"), says(1), now);
        assert_eq!(pace.begin().len(), 1);
    }

    #[test]
    fn plans_that_say_the_same_come_to_rest() {
        let now = clock::instant();
        let mut pace = Pace::default();
        pace.plan(&app("a"), says(100), now);
        let (mut begun, mut batches) = (pace.begin(), 0);
        // Planned anew while others act, as long as somebody waits.
        for _ in 0..1000 {
            let Some((key, _)) = begun.pop() else { break };
            batches += 1;
            pace.done(&key, false, false, now);
            if !pace.freed(now).is_empty() {
                pace.plan(&app("a"), says(100), now);
            }
            begun.extend(pace.begin());
        }
        assert!(begun.is_empty() && batches == 100, "{batches}");
        assert!(pace.freed(now).is_empty());
        // What differs from what is on the way is planned again.
        pace.plan(&app("a"), says(1), now);
        let (key, _) = pace.begin().pop().unwrap();
        let mut other = says(1);
        other.add(creator(0), says(1).into_actions());
        pace.plan(&app("a"), other, now);
        pace.done(&key, false, false, now);
        assert_eq!(pace.freed(now), BTreeSet::from([app("a")]));
    }

    #[test]
    fn what_is_not_wanted_any_more_does_not_begin() {
        let now = clock::instant();
        let mut pace = Pace::default();
        pace.plan(&app("a"), says(100), now);
        assert_eq!(pace.begin().len(), OF_ONE_APP);
        pace.plan(&app("a"), says(0), now);
        for n in 0..OF_ONE_APP {
            pace.done(&CrewKey { app: app("a"), creator: creator(n) }, false, false, now);
        }
        assert!(pace.begin().is_empty());
        pace.plan(&app("a"), says(1), now);
        pace.give_up();
        assert!(pace.begin().is_empty() && pace.freed(now).is_empty());
    }

    #[test]
    fn pauses_grow_to_a_minute() {
        assert_eq!(pause(1), PAUSE);
        assert_eq!(pause(3), PAUSE * 4);
        assert_eq!(pause(u32::MAX), LONGEST_PAUSE);
    }
}
