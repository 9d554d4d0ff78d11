//! When actions may be done: those for the executors of one creator one batch after another, ever more slowly where they
//! fail or are undone, and never because of what is done, or fails, for the executors of another.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::action::Action;
use super::plan::Plan;
use crate::driver::life;
use crate::plant::{self, Bug};
use crate::signature::Creator;
use crate::snapshot::Snapshot;
use crate::spark::ids::AppKey;

/// How many batches that create or change PodGroups are on the way at once, and how many of those of one namespace. Pods wait for
/// them: they have places of their own, however much is to be cleared up.
const GROUPS: Places = Places { at_once: 8, of_one_namespace: 6 };
/// How many other batches are on the way at once, and how many of those of one namespace: a tenant may have any number of
/// applications.
const OTHERS: Places = Places { at_once: 16, of_one_namespace: 12 };
/// How many of all those are of one application.
const OF_ONE_APP: usize = 4;
/// How many actions of each kind a batch has: the rest waits until others had their turn, and no kind waits for another.
const BATCH: usize = 50;
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

/// Why a whole application has to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Held {
    /// It need not.
    No,
    /// Until this time.
    Until(Instant),
    /// Until [`Pace::done`] says that it is to be planned again.
    Acting,
}

/// How many batches may be on the way.
#[derive(Clone, Copy, Debug)]
struct Places {
    at_once: usize,
    of_one_namespace: usize,
}

/// Which places a batch takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lane {
    Groups,
    Others,
}

impl Lane {
    fn of(actions: &[Action]) -> Lane {
        if actions.iter().any(is_of_group) { Lane::Groups } else { Lane::Others }
    }
}

/// Whether pods may wait for an action: for a group, or for its size. The deletion of a group is clearing up.
fn is_of_group(action: &Action) -> bool {
    matches!(action, Action::CreateGroup { .. } | Action::PatchGroup { .. })
}

/// Whether what follows a batch of this lane takes a place of the other one.
fn changes_lane(lane: Lane, rest: &[Action]) -> bool {
    lane == Lane::Groups && Lane::of(rest) == Lane::Others
}

/// Actions that are on the way.
#[derive(Debug)]
struct Acting {
    lane: Lane,
    batch: Vec<Action>,
    /// What comes after, as it was planned last.
    rest: Vec<Action>,
    /// So many batches may follow as parts of the same plan.
    budget: usize,
    /// Something of the plan was written before this batch.
    wrote: bool,
    /// The application is to be planned again when it is done.
    again: bool,
}

impl Acting {
    fn is(&self, actions: &[Action]) -> bool {
        self.batch.len() + self.rest.len() == actions.len() && self.batch.iter().chain(&self.rest).eq(actions)
    }
}

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// What is on the way.
    acting: BTreeMap<CrewKey, Acting>,
    /// What was planned and has no place yet.
    planned: BTreeMap<CrewKey, Planned>,
    groups: Line,
    others: Line,
    failures: BTreeMap<CrewKey, Pause>,
    writes: BTreeMap<CrewKey, Pause>,
    /// When each of those may be forgotten.
    written: VecDeque<(Instant, CrewKey)>,
}

#[derive(Debug)]
struct Planned {
    actions: Vec<Action>,
    wrote: bool,
    budget: usize,
}

/// Who waits for a place.
#[derive(Debug, Default)]
struct Line {
    /// Namespaces with something planned, and then their applications, in turn: whoever plans again and again, or has a
    /// thousand applications, is not before others.
    turns: VecDeque<Arc<str>>,
    ready: HashMap<Arc<str>, Ready>,
    /// How many batches are on the way, and of which namespace.
    acting: usize,
    of_namespace: HashMap<Arc<str>, usize>,
}

/// What is planned in a namespace.
#[derive(Debug, Default)]
struct Ready {
    turns: VecDeque<AppKey>,
    /// The crews of each application in the order in which they were planned. May hold some of which nothing is planned now.
    crews: HashMap<AppKey, VecDeque<CrewKey>>,
}

impl Pace {
    /// Whether a whole application has to wait: where all its executors are of one creator, a plan before it may act is
    /// wasted.
    pub(super) fn holds(&mut self, app: &AppKey, now: Instant, snapshot: &Snapshot) -> Held {
        let is_alone = |creator| snapshot.apps.get(app).is_some_and(|app| life::is_all_of(app, creator));
        let acting = self.acting.range_mut(first(app)..).next().filter(|(key, _)| key.app == *app);
        if let Some((key, acting)) = acting {
            if acting.rest.is_empty() && is_alone(key.creator) {
                acting.again = true;
                return Held::Acting;
            }
            return Held::No;
        }
        let paused = [&self.failures, &self.writes].into_iter().flat_map(|pauses| {
            let pauses = pauses.range(first(app)..).take_while(|(key, _)| key.app == *app);
            pauses.filter(|(_, (_, until))| *until > now).map(|(key, (_, until))| (key, *until))
        });
        match paused.max_by_key(|(_, until)| *until) {
            Some((key, until)) if is_alone(key.creator) => Held::Until(until),
            _ => Held::No,
        }
    }

    /// Takes a plan over: what may be done is done when there is a place for it. Returns when the application is to be planned
    /// again for what may not be done yet.
    pub(super) fn plan(&mut self, app: &AppKey, plan: Plan, now: Instant) -> Option<Instant> {
        let failed = self.failures.range(first(app)..).map(|(key, _)| key).take_while(|key| key.app == *app);
        let planned = self.planned.range(first(app)..).map(|(key, _)| key).take_while(|key| key.app == *app);
        let has_nothing =
            |key: &&CrewKey| !plan.crews.contains_key(&key.creator) && !plan.partial.contains(&key.creator);
        let idle = failed.chain(planned).filter(has_nothing);
        for key in idle.cloned().collect::<Vec<_>>() {
            self.failures.remove(&key);
            if self.planned.remove(&key).is_some() {
                self.step_out(&key);
            }
        }
        // What is not wanted any more does not begin, also as the rest of what has.
        let acting = self.acting.range_mut(first(app)..).take_while(|(key, _)| key.app == *app);
        for (_, acting) in acting.filter(|(key, _)| has_nothing(key)) {
            acting.rest.clear();
        }
        let mut again: Option<Instant> = None;
        for (creator, actions) in plan.crews {
            let key = CrewKey { app: app.clone(), creator };
            if let Some(acting) = self.acting.get_mut(&key) {
                // If the same actions were planned again, many creators would cause endless plans.
                if !acting.is(&actions) {
                    acting.again |= acting.rest.is_empty();
                    if !acting.again {
                        acting.rest = actions.into_iter().filter(|action| !acting.batch.contains(action)).collect();
                    }
                }
                continue;
            }
            if let Some(until) = self.paused_until(&key, now) {
                if self.planned.remove(&key).is_some() {
                    self.step_out(&key);
                }
                again = Some(again.map_or(until, |again| again.min(until)));
                continue;
            }
            match self.planned.get_mut(&key) {
                Some(planned) if Lane::of(&planned.actions) == Lane::of(&actions) => planned.actions = actions,
                before => {
                    let wrote = before.is_some_and(|planned| planned.wrote);
                    self.step_out(&key);
                    let budget = actions.len().div_ceil(BATCH);
                    self.line_up(key, Planned { actions, wrote, budget });
                }
            }
        }
        again
    }

    fn line(&mut self, lane: Lane) -> (&mut Line, Places) {
        match lane {
            Lane::Groups => (&mut self.groups, GROUPS),
            Lane::Others => (&mut self.others, OTHERS),
        }
    }

    /// Puts a crew at the end of its application's, and that at the end of its namespace's.
    fn line_up(&mut self, key: CrewKey, planned: Planned) {
        let (line, _) = self.line(Lane::of(&planned.actions));
        let namespace: Arc<str> = key.app.namespace().into();
        let ready = line.ready.entry(namespace.clone()).or_insert_with(|| {
            line.turns.push_back(namespace);
            Ready::default()
        });
        let crews = ready.crews.entry(key.app.clone()).or_insert_with(|| {
            ready.turns.push_back(key.app.clone());
            VecDeque::new()
        });
        crews.push_back(key.clone());
        self.planned.insert(key, planned);
    }

    /// Takes a crew out of its line.
    fn step_out(&mut self, key: &CrewKey) {
        for line in [&mut self.groups, &mut self.others] {
            let ready = line.ready.get_mut(key.app.namespace());
            if let Some(crews) = ready.and_then(|ready| ready.crews.get_mut(&key.app)) {
                crews.retain(|waiting| waiting != key);
            }
        }
    }

    /// What begins now: namespaces in turn, and in each its applications in turn; neither takes all places.
    pub(super) fn begin(&mut self) -> Vec<(CrewKey, Vec<Action>)> {
        let mut begun = Vec::new();
        for lane in [Lane::Groups, Lane::Others] {
            let (line, places) = self.line(lane);
            let mut line = std::mem::take(line);
            // Namespaces that cannot begin anything now: all their applications that have something planned are at their limit.
            let mut passed = 0;
            while line.acting < places.at_once
                && passed < line.turns.len()
                && let Some(namespace) = line.turns.pop_front()
            {
                match self.next_of(&mut line, lane, places, &namespace) {
                    Some(key) => {
                        passed = 0;
                        if let Some(batch) = self.start(key, lane) {
                            line.acting += 1;
                            *line.of_namespace.entry(namespace.clone()).or_default() += 1;
                            begun.push(batch);
                        }
                    }
                    None => passed += 1,
                }
                if line.ready.get(&namespace).is_some_and(|ready| ready.turns.is_empty()) {
                    line.ready.remove(&namespace);
                } else {
                    line.turns.push_back(namespace);
                }
            }
            *self.line(lane).0 = line;
        }
        begun
    }

    /// The crew of a namespace whose turn it is.
    fn next_of(&self, line: &mut Line, lane: Lane, places: Places, namespace: &Arc<str>) -> Option<CrewKey> {
        if line.of_namespace.get(namespace).is_some_and(|acting| *acting >= places.of_one_namespace) {
            return None;
        }
        let ready = line.ready.get_mut(namespace)?;
        // An application at its limit is passed over; of those there are no more than there are places.
        for _ in 0..ready.turns.len() {
            let app = ready.turns.pop_front()?;
            let acting = self.acting.range(first(&app)..).take_while(|(key, _)| key.app == app);
            let acting = acting.filter(|(_, acting)| acting.lane == lane).count();
            let crews = ready.crews.get_mut(&app)?;
            // Some were planned again since, with nothing to do.
            while crews.front().is_some_and(|key| !self.planned.contains_key(key)) {
                crews.pop_front();
            }
            let next = if acting < OF_ONE_APP { crews.pop_front() } else { None };
            if crews.is_empty() {
                ready.crews.remove(&app);
            } else {
                ready.turns.push_back(app);
            }
            if next.is_some() {
                return next;
            }
        }
        None
    }

    /// Begins a batch: of actions on PodGroups alone, or of the others.
    fn start(&mut self, key: CrewKey, lane: Lane) -> Option<(CrewKey, Vec<Action>)> {
        let Planned { actions, wrote, budget } = self.planned.remove(&key)?;
        let mut of_kind: HashMap<&'static str, usize> = HashMap::new();
        let (actions, rest): (Vec<Action>, Vec<Action>) = actions.into_iter().partition(|action| {
            let count = of_kind.entry(action.name()).or_default();
            *count += 1;
            *count <= BATCH && (lane == Lane::Others || is_of_group(action))
        });
        // The budget counts batches of the lane in which the rest goes on.
        let budget = if changes_lane(lane, &rest) { budget.max(1) } else { budget.saturating_sub(1) };
        let acting = Acting { lane, batch: actions.clone(), rest, budget, wrote, again: false };
        self.acting.insert(key.clone(), acting);
        Some((key, actions))
    }

    /// Until when no actions for a creator's executors begin.
    fn paused_until(&self, key: &CrewKey, now: Instant) -> Option<Instant> {
        let until = [&self.failures, &self.writes].into_iter().filter_map(|pauses| Some(pauses.get(key)?.1)).max();
        until.filter(|until| *until > now)
    }

    /// A batch was done, or a part of it failed. Returns when its application is to be planned again, if it is.
    pub(super) fn done(&mut self, key: &CrewKey, failed: bool, wrote: bool, now: Instant) -> Option<Instant> {
        let Acting { lane, rest, budget, wrote: wrote_before, mut again, .. } = self.acting.remove(key)?;
        let (line, _) = self.line(lane);
        line.acting -= 1;
        if let Some(count) = line.of_namespace.get_mut(key.app.namespace()) {
            *count -= 1;
            if *count == 0 {
                line.of_namespace.remove(key.app.namespace());
            }
        }
        let wrote = wrote || wrote_before;
        if failed {
            let count = self.failures.get(key).map_or(0, |(count, _)| *count).saturating_add(1);
            let never = plant::is(Bug::ActionNotRetried);
            let wait = if never { Duration::from_secs(3600) } else { pause(count) };
            self.failures.insert(key.clone(), (count, now + wait));
        } else {
            self.failures.remove(key);
        }
        // Writes of PodGroups have their own pace: the rest goes on however often those are written.
        let changes_lane = changes_lane(lane, &rest);
        if changes_lane && wrote {
            self.slow_down(key, now);
        }
        let wrote = wrote && !changes_lane;
        if !rest.is_empty() && !failed && budget > 0 {
            self.line_up(key.clone(), Planned { actions: rest, wrote, budget });
            return None;
        }
        again |= !rest.is_empty();
        if wrote {
            self.slow_down(key, now);
        }
        let retried = failed && !plant::is(Bug::ActionNotRetried);
        (again || retried).then(|| self.paused_until(key, now).unwrap_or(now))
    }

    /// Somebody may undo what we do. Who acts again and again upon the same executors does so ever more slowly.
    fn slow_down(&mut self, key: &CrewKey, now: Instant) {
        let recent = self.writes.get(key).filter(|(_, until)| now.saturating_duration_since(*until) < QUIET);
        let count = recent.map_or(0, |(count, _)| *count).saturating_add(1);
        let pause = if count > UNPACED { pause(count - UNPACED).min(SLOWEST) } else { Duration::ZERO };
        self.writes.insert(key.clone(), (count, now + pause));
        self.written.push_back((now + pause + QUIET, key.clone()));
    }

    /// Forgets writes that are long past, about `most` at a time.
    pub(super) fn sweep(&mut self, now: Instant, most: usize) {
        for _ in 0..most {
            // A later write has an entry of its own.
            let Some((_, key)) = self.written.pop_front_if(|(until, _)| *until <= now) else { return };
            let is_quiet = |(_, until): &Pause| now.saturating_duration_since(*until) >= QUIET;
            if self.writes.get(&key).is_some_and(is_quiet) {
                self.writes.remove(&key);
            }
        }
    }

    /// Another replica leads: nothing is to be done any more.
    pub(super) fn give_up(&mut self) {
        self.planned.clear();
        for line in [&mut self.groups, &mut self.others] {
            line.ready.clear();
            line.turns.clear();
        }
        for acting in self.acting.values_mut() {
            acting.rest.clear();
        }
    }
}

/// Where the keys of an application begin.
fn first(app: &AppKey) -> CrewKey {
    CrewKey { app: app.clone(), creator: None }
}

/// A pause that grows, for what is tried again and again.
pub(crate) fn pause(failures: u32) -> Duration {
    PAUSE.saturating_mul(1 << failures.saturating_sub(1).min(10)).min(LONGEST_PAUSE)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

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
            assert_eq!(pace.done(&key, false, false, now), None);
            for (key, actions) in pace.begin() {
                assert!(actions.len() == 1 && (seen.insert(key.clone()) || seen.len() == 100));
                begun.push((key, actions));
            }
        }
        assert_eq!(seen.len(), 100);
        assert!(pace.begin().is_empty() && pace.others.turns.is_empty() && pace.others.ready.is_empty());
    }

    #[test]
    fn a_part_of_a_plan_without_actions_takes_none_away() {
        let now = clock::instant();
        let mut pace = Pace::default();
        pace.plan(&app("a"), says(1), now);
        let part = Plan { partial: BTreeSet::from([creator(0)]), ..Plan::default() };
        pace.plan(&app("a"), part, now);
        assert_eq!(pace.begin().len(), 1);
        pace.plan(&app("b"), says(1), now);
        pace.plan(&app("b"), Plan::default(), now);
        assert!(pace.begin().is_empty(), "a whole plan does");
    }

    #[test]
    fn a_namespace_with_many_applications_leaves_places_for_others() {
        let now = clock::instant();
        let mut pace = Pace::default();
        for n in 0..20 {
            pace.plan(&app(&format!("a{n}")), says(1), now);
        }
        assert_eq!(pace.begin().len(), OTHERS.of_one_namespace);
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
            if pace.done(&key, false, false, now).is_some() {
                pace.plan(&app("a"), says(100), now);
            }
            begun.extend(pace.begin());
        }
        assert!(begun.is_empty() && batches == 100, "{batches}");
        // What differs from what is on the way is planned again.
        pace.plan(&app("a"), says(1), now);
        let (key, _) = pace.begin().pop().unwrap();
        let mut other = says(1);
        other.add(creator(0), says(1).into_actions());
        pace.plan(&app("a"), other, now);
        assert_eq!(pace.done(&key, false, false, now), Some(now));
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
        assert!(pace.begin().is_empty());
    }

    /// A plan of so many actions for one creator.
    fn long(actions: usize) -> Plan {
        let mut plan = Plan::default();
        (0..actions).for_each(|_| plan.add(creator(0), says(1).into_actions()));
        plan
    }

    #[test]
    fn a_long_plan_lets_others_in_between_and_is_no_ones_undoing() {
        let now = clock::instant();
        let mut pace = Pace::default();
        for n in 0..OTHERS.of_one_namespace {
            pace.plan(&app(&format!("a{n}")), long(1500), now);
        }
        let mut begun = pace.begin();
        assert!(begun.len() == OTHERS.of_one_namespace && begun.iter().all(|(_, actions)| actions.len() == BATCH));
        pace.plan(&app("z"), says(1), now);
        assert!(pace.begin().is_empty(), "the namespace has all its places");
        assert_eq!(pace.done(&begun.pop().unwrap().0, false, true, now), None);
        let next = pace.begin();
        assert_eq!((next.len(), &next[0].0.app), (1, &app("z")), "it has waited longer than the rest of the other");
        // Thirty batches are one plan, and no reason to be slow.
        let mut pace = Pace::default();
        pace.plan(&app("a"), long(1500), now);
        let mut count = 0;
        while let Some((key, actions)) = pace.begin().pop() {
            count += actions.len();
            pace.done(&key, false, true, now);
        }
        assert_eq!(count, 1500);
        assert_eq!(pace.holds(&app("a"), now, &Snapshot::default()), Held::No);
        assert_eq!(pace.writes.values().map(|(count, _)| *count).collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn the_rest_of_what_is_not_wanted_any_more_does_not_begin() {
        let now = clock::instant();
        let mut pace = Pace::default();
        pace.plan(&app("a"), long(1500), now);
        let (key, _) = pace.begin().pop().unwrap();
        pace.plan(&app("a"), Plan::default(), now);
        pace.done(&key, false, true, now);
        assert!(pace.begin().is_empty());
        // Somebody who wants something now and then is in the line once.
        for n in 0..OTHERS.of_one_namespace {
            pace.plan(&app(&format!("b{n}")), says(1), now);
        }
        pace.begin();
        for _ in 0..100 {
            pace.plan(&app("a"), says(1), now);
            pace.plan(&app("a"), says(0), now);
        }
        let waiting: usize = pace.others.ready.values().flat_map(|ready| ready.crews.values()).map(VecDeque::len).sum();
        assert!(waiting <= 1, "{waiting}");
    }

    #[test]
    fn what_fails_is_not_gone_on_with() {
        let now = clock::instant();
        let mut pace = Pace::default();
        pace.plan(&app("a"), long(100), now);
        let (key, _) = pace.begin().pop().unwrap();
        assert_eq!(pace.done(&key, true, true, now), Some(now + PAUSE));
        assert!(pace.begin().is_empty());
        assert_eq!(pace.plan(&app("a"), long(100), now), Some(now + PAUSE));
        assert!(pace.begin().is_empty());
        assert_eq!(pace.plan(&app("a"), long(100), now + PAUSE), None);
        assert_eq!(pace.begin().len(), 1);
    }

    #[test]
    fn pauses_grow_to_a_minute() {
        assert_eq!(pause(1), PAUSE);
        assert_eq!(pause(3), PAUSE * 4);
        assert_eq!(pause(u32::MAX), LONGEST_PAUSE);
    }

    /// A plan that patches the group of one creator, and says something, so often.
    fn patches(says: usize) -> Plan {
        let mut plan = Plan::default();
        let api = &crate::gang::GangScheduler::of_kind("volcano").unwrap().apis[0];
        let key = crate::snapshot::GroupKey { namespace: "default".into(), name: "g".into(), scheduler: "volcano" };
        let patch = serde_json::json!({});
        let group = Action::PatchGroup {
            key,
            api,
            uid: "g".into(),
            version: "1".into(),
            patch,
            reason: Some(Reason::GangLowered),
        };
        plan.add(creator(0), [group]);
        for n in 0..says {
            let pod = PodKey::new("default", &format!("p-{n}"));
            let (reason, message) = (Reason::GangSizeUnknown, String::new());
            plan.add(creator(0), [Action::Tell(Told { pod, uid: "u".into(), reason, message })]);
        }
        plan
    }

    #[test]
    fn groups_wait_for_no_clearing_up() {
        let now = clock::instant();
        let mut pace = Pace::default();
        for n in 0..1000 {
            pace.plan(&AppKey::new(&format!("ns-{}", n % 4), &format!("old-{n}")), says(1), now);
        }
        assert_eq!(pace.begin().len(), OTHERS.at_once);
        pace.plan(&app("new"), patches(2), now);
        let begun = pace.begin();
        assert!(begun.len() == 1 && begun[0].0.app == app("new"), "{begun:?}");
        assert!(begun[0].1.len() == 1 && is_of_group(&begun[0].1[0]), "the rest has no place of theirs");
        pace.done(&begun[0].0, false, true, now);
        assert!(pace.begin().is_empty());
        // The rest comes in its turn.
        pace.plan(&app("new"), patches(0), now);
        assert_eq!(pace.begin().len(), 1, "another change of the group goes before it again");
    }
}
