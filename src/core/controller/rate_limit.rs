//! When actions may begin: those for the executors of one creator run one batch after another, and less and less often if they
//! fail or are undone. What is done, or fails, for the executors of another creator does not slow them down.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::backoff::backoff_delay;
use crate::ownership::liveness;
use crate::planning::Action;
use crate::reconcile::Plan;
use crate::signature::Creator;
use crate::snapshot::Snapshot;
use usher_spark::ids::AppKey;

/// Number of concurrent batches that create or change PodGroups, in total and per namespace. Pods wait for them, so they have
/// their own slots, however much cleanup is pending.
const GROUPS: Slots = Slots { at_once: 8, of_one_namespace: 6 };
/// Number of other concurrent batches, in total and per namespace: a tenant may have any number of applications.
const OTHERS: Slots = Slots { at_once: 16, of_one_namespace: 12 };
/// Number of concurrent batches of one application in each lane.
const MAX_PER_APP: usize = 4;
/// Number of actions of each kind in a batch: the rest waits until other batches have run, and no kind waits for another.
const MAX_BATCH: usize = 50;
/// This many batches run without a pause.
const UNTHROTTLED_BATCHES: u32 = 5;
/// The longest pause after a batch that wrote something.
const MAX_THROTTLE: Duration = Duration::from_secs(10);
/// After this long without a write the count starts again.
const THROTTLE_RESET_AFTER: Duration = Duration::from_secs(30);

/// The executors of one creator in an application.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExecutorSetKey {
    /// The application.
    pub app: AppKey,
    /// Their creator, as in [`ExecutorSet`](crate::ownership::liveness::ExecutorSet).
    pub creator: Option<Creator>,
}

/// How often something happened in a row, and when the pause after it is over.
type Pause = (u32, Instant);

/// Why a whole application has to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hold {
    /// It need not wait.
    Free,
    /// Until this time.
    Until(Instant),
    /// Until [`RateLimit::finished`] returns when to plan it again.
    InFlight,
}

/// How many batches may be in flight.
#[derive(Clone, Copy, Debug)]
struct Slots {
    at_once: usize,
    of_one_namespace: usize,
}

/// Which slots a batch takes.
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

/// Whether pods may wait for an action: for a PodGroup, or for its size. The deletion of a PodGroup is cleanup.
fn is_of_group(action: &Action) -> bool {
    matches!(action, Action::CreateGroup { .. } | Action::PatchGroup { .. })
}

/// Whether the rest after a batch of this lane takes a slot of the other lane.
fn changes_lane(lane: Lane, rest: &[Action]) -> bool {
    lane == Lane::Groups && Lane::of(rest) == Lane::Others
}

/// A batch in flight.
#[derive(Debug)]
struct InFlight {
    lane: Lane,
    batch: Vec<Action>,
    /// The actions that follow, as last planned.
    rest: Vec<Action>,
    /// At most this many batches follow as parts of the same plan.
    budget: usize,
    /// An earlier batch of the plan wrote something.
    wrote: bool,
    /// The application is to be planned again when the batch finishes.
    again: bool,
}

impl InFlight {
    fn is(&self, actions: &[Action]) -> bool {
        self.batch.len() + self.rest.len() == actions.len() && self.batch.iter().chain(&self.rest).eq(actions)
    }
}

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct RateLimit {
    /// Batches in flight.
    in_flight: BTreeMap<ExecutorSetKey, InFlight>,
    /// Planned actions that have no slot yet.
    planned: BTreeMap<ExecutorSetKey, Planned>,
    groups: LaneQueue,
    others: LaneQueue,
    backoff: BTreeMap<ExecutorSetKey, Pause>,
    writes: BTreeMap<ExecutorSetKey, Pause>,
    /// When each entry of `writes` may be forgotten.
    written: VecDeque<(Instant, ExecutorSetKey)>,
}

#[derive(Debug)]
struct Planned {
    actions: Vec<Action>,
    wrote: bool,
    budget: usize,
}

/// Sets of executors that wait for a slot. In B-trees: a hash table of a hundred thousand applications takes milliseconds to grow.
#[derive(Debug, Default)]
struct LaneQueue {
    /// Namespaces with planned actions, and then their applications, in turn: neither an application that is planned again
    /// and again nor a namespace with a thousand applications precedes others.
    round_robin: VecDeque<Arc<str>>,
    ready: BTreeMap<Arc<str>, NamespaceQueue>,
    /// Number of batches in flight, in total and by namespace.
    in_flight: usize,
    of_namespace: BTreeMap<Arc<str>, usize>,
}

/// What is planned in a namespace.
#[derive(Debug, Default)]
struct NamespaceQueue {
    round_robin: VecDeque<AppKey>,
    /// Each application's sets of executors in the order in which they were planned. May contain sets without planned actions.
    sets: BTreeMap<AppKey, VecDeque<ExecutorSetKey>>,
}

impl RateLimit {
    /// Whether a whole application has to wait: if all its executors are of one creator, a plan that may not act yet is wasted.
    pub(super) fn hold(&mut self, app: &AppKey, now: Instant, snapshot: &Snapshot) -> Hold {
        let is_alone = |creator| snapshot.apps.get(app).is_some_and(|app| liveness::is_all_of(app, creator));
        let acting = self.in_flight.range_mut(first(app)..).next().filter(|(key, _)| key.app == *app);
        if let Some((key, acting)) = acting {
            if acting.rest.is_empty() && is_alone(key.creator) {
                acting.again = true;
                return Hold::InFlight;
            }
            return Hold::Free;
        }
        let paused = [&self.backoff, &self.writes].into_iter().flat_map(|pauses| {
            let pauses = pauses.range(first(app)..).take_while(|(key, _)| key.app == *app);
            pauses.filter(|(_, (_, until))| *until > now).map(|(key, (_, until))| (key, *until))
        });
        match paused.max_by_key(|(_, until)| *until) {
            Some((key, until)) if is_alone(key.creator) => Hold::Until(until),
            _ => Hold::Free,
        }
    }

    /// Accepts a plan: its actions begin when they have a slot. Returns when to plan the application again for the actions that
    /// are paused.
    pub(super) fn submit(&mut self, app: &AppKey, mut plan: Plan, now: Instant) -> Option<Instant> {
        let continues_round = plan.recovery.continues_round;
        if continues_round {
            self.keep_deletions(app, &mut plan);
        }
        let failed = self.backoff.range(first(app)..).map(|(key, _)| key).take_while(|key| key.app == *app);
        let planned = self.planned.range(first(app)..).map(|(key, _)| key).take_while(|key| key.app == *app);
        let has_nothing =
            |key: &&ExecutorSetKey| !plan.sets.contains_key(&key.creator) && !plan.partial.contains(&key.creator);
        let idle = failed.chain(planned).filter(has_nothing);
        for key in idle.cloned().collect::<Vec<_>>() {
            self.backoff.remove(&key);
            if self.planned.remove(&key).is_some() {
                self.dequeue(&key);
            }
        }
        // Actions that are no longer planned do not begin, not even as the rest of a batch that began.
        let acting = self.in_flight.range_mut(first(app)..).take_while(|(key, _)| key.app == *app);
        for (_, acting) in acting.filter(|(key, _)| has_nothing(key)) {
            acting.rest.clear();
        }
        let mut again: Option<Instant> = None;
        for (creator, actions) in plan.sets {
            let key = ExecutorSetKey { app: app.clone(), creator };
            if let Some(acting) = self.in_flight.get_mut(&key) {
                // If the same actions were planned again, many creators would cause endless plans.
                if !acting.is(&actions) {
                    acting.again |= acting.rest.is_empty();
                    if !acting.again {
                        acting.rest = actions.into_iter().filter(|action| !acting.batch.contains(action)).collect();
                        if continues_round {
                            acting.budget = acting.budget.max(acting.rest.len().div_ceil(MAX_BATCH));
                        }
                    }
                }
                continue;
            }
            if let Some(until) = self.paused_until(&key, now) {
                if self.planned.remove(&key).is_some() {
                    self.dequeue(&key);
                }
                again = Some(again.map_or(until, |again| again.min(until)));
                continue;
            }
            match self.planned.get_mut(&key) {
                Some(planned) if Lane::of(&planned.actions) == Lane::of(&actions) => planned.actions = actions,
                before => {
                    let wrote = before.is_some_and(|planned| planned.wrote);
                    self.dequeue(&key);
                    let budget = actions.len().div_ceil(MAX_BATCH);
                    self.enqueue(key, Planned { actions, wrote, budget });
                }
            }
        }
        again
    }

    /// Adds the deletions of recovery rules that have not begun: plans between two rounds contain none, and each part of a round only
    /// its own.
    fn keep_deletions(&self, app: &AppKey, plan: &mut Plan) {
        let is_its = |key: &ExecutorSetKey| key.app == *app;
        let begun = self.in_flight.range(first(app)..).take_while(|(key, _)| is_its(key));
        let begun = begun.map(|(key, acting)| (key, &acting.rest, Some(&acting.batch)));
        let waiting = self.planned.range(first(app)..).take_while(|(key, _)| is_its(key));
        let waiting = waiting.map(|(key, planned)| (key, &planned.actions, None));
        for (key, actions, batch) in begun.chain(waiting) {
            let mut deletions = actions.iter().filter(|action| matches!(action, Action::Recover(_))).peekable();
            if deletions.peek().is_none() {
                continue;
            }
            let known: HashSet<&Arc<str>> =
                plan.sets.get(&key.creator).into_iter().flatten().filter_map(deleted_uid).collect();
            let is_kept = |action: &&Action| {
                deleted_uid(action).is_some_and(|uid| !known.contains(uid))
                    && batch.is_none_or(|batch| !batch.contains(action))
            };
            let kept: Vec<Action> = deletions.filter(is_kept).cloned().collect();
            if !kept.is_empty() {
                plan.sets.entry(key.creator).or_default().extend(kept);
            }
        }
    }

    fn lane_queue(&mut self, lane: Lane) -> (&mut LaneQueue, Slots) {
        match lane {
            Lane::Groups => (&mut self.groups, GROUPS),
            Lane::Others => (&mut self.others, OTHERS),
        }
    }

    /// Enqueues a set of executors after those of its application, and a new application after those of its namespace.
    fn enqueue(&mut self, key: ExecutorSetKey, planned: Planned) {
        let (line, _) = self.lane_queue(Lane::of(&planned.actions));
        let namespace: Arc<str> = key.app.namespace().into();
        let ready = line.ready.entry(namespace.clone()).or_insert_with(|| {
            line.round_robin.push_back(namespace);
            NamespaceQueue::default()
        });
        let sets = ready.sets.entry(key.app.clone()).or_insert_with(|| {
            ready.round_robin.push_back(key.app.clone());
            VecDeque::new()
        });
        sets.push_back(key.clone());
        self.planned.insert(key, planned);
    }

    /// Removes a set of executors from the queues.
    fn dequeue(&mut self, key: &ExecutorSetKey) {
        for line in [&mut self.groups, &mut self.others] {
            let ready = line.ready.get_mut(key.app.namespace());
            if let Some(sets) = ready.and_then(|ready| ready.sets.get_mut(&key.app)) {
                sets.retain(|waiting| waiting != key);
            }
        }
    }

    /// Batches that begin now: namespaces in turn, and in each its applications in turn; neither takes all slots.
    pub(super) fn start_ready(&mut self) -> Vec<(ExecutorSetKey, Vec<Action>)> {
        let mut begun = Vec::new();
        for lane in [Lane::Groups, Lane::Others] {
            let (line, places) = self.lane_queue(lane);
            let mut line = std::mem::take(line);
            // Namespaces in a row that cannot begin a batch: they or all their planned applications are at a limit.
            let mut passed = 0;
            while line.in_flight < places.at_once
                && passed < line.round_robin.len()
                && let Some(namespace) = line.round_robin.pop_front()
            {
                match self.next_of(&mut line, lane, places, &namespace) {
                    Some(key) => {
                        passed = 0;
                        if let Some(batch) = self.start(key, lane) {
                            line.in_flight += 1;
                            *line.of_namespace.entry(namespace.clone()).or_default() += 1;
                            begun.push(batch);
                        }
                    }
                    None => passed += 1,
                }
                if line.ready.get(&namespace).is_some_and(|ready| ready.round_robin.is_empty()) {
                    line.ready.remove(&namespace);
                } else {
                    line.round_robin.push_back(namespace);
                }
            }
            *self.lane_queue(lane).0 = line;
        }
        begun
    }

    fn next_of(&self, line: &mut LaneQueue, lane: Lane, places: Slots, namespace: &Arc<str>) -> Option<ExecutorSetKey> {
        if line.of_namespace.get(namespace).is_some_and(|acting| *acting >= places.of_one_namespace) {
            return None;
        }
        let ready = line.ready.get_mut(namespace)?;
        // An application at its limit is skipped; there are no more of those than slots.
        for _ in 0..ready.round_robin.len() {
            let app = ready.round_robin.pop_front()?;
            let acting = self.in_flight.range(first(&app)..).take_while(|(key, _)| key.app == app);
            let acting = acting.filter(|(_, acting)| acting.lane == lane).count();
            let sets = ready.sets.get_mut(&app)?;
            // A later plan left some sets without actions.
            while sets.front().is_some_and(|key| !self.planned.contains_key(key)) {
                sets.pop_front();
            }
            let next = if acting < MAX_PER_APP { sets.pop_front() } else { None };
            if sets.is_empty() {
                ready.sets.remove(&app);
            } else {
                ready.round_robin.push_back(app);
            }
            if next.is_some() {
                return next;
            }
        }
        None
    }

    /// Begins a batch: only of actions that create or change PodGroups, or of the others.
    fn start(&mut self, key: ExecutorSetKey, lane: Lane) -> Option<(ExecutorSetKey, Vec<Action>)> {
        let Planned { actions, wrote, budget } = self.planned.remove(&key)?;
        let mut of_kind: HashMap<&'static str, usize> = HashMap::new();
        let (actions, rest): (Vec<Action>, Vec<Action>) = actions.into_iter().partition(|action| {
            let count = of_kind.entry(action.name()).or_default();
            *count += 1;
            *count <= MAX_BATCH && (lane == Lane::Others || is_of_group(action))
        });
        // The budget counts batches of the lane in which the rest continues.
        let budget = if changes_lane(lane, &rest) { budget.max(1) } else { budget.saturating_sub(1) };
        let acting = InFlight { lane, batch: actions.clone(), rest, budget, wrote, again: false };
        self.in_flight.insert(key.clone(), acting);
        Some((key, actions))
    }

    /// The time before which no actions for a creator's executors begin.
    fn paused_until(&self, key: &ExecutorSetKey, now: Instant) -> Option<Instant> {
        let until = [&self.backoff, &self.writes].into_iter().filter_map(|pauses| Some(pauses.get(key)?.1)).max();
        until.filter(|until| *until > now)
    }

    /// A batch finished, or a part of it failed. Returns when to plan its application again, if that is necessary.
    pub(super) fn finished(
        &mut self,
        key: &ExecutorSetKey,
        failed: bool,
        wrote: bool,
        now: Instant,
    ) -> Option<Instant> {
        let InFlight { lane, rest, budget, wrote: wrote_before, mut again, .. } = self.in_flight.remove(key)?;
        let (line, _) = self.lane_queue(lane);
        line.in_flight -= 1;
        if let Some(count) = line.of_namespace.get_mut(key.app.namespace()) {
            *count -= 1;
            if *count == 0 {
                line.of_namespace.remove(key.app.namespace());
            }
        }
        let wrote = wrote || wrote_before;
        if failed {
            let count = self.backoff.get(key).map_or(0, |(count, _)| *count).saturating_add(1);
            self.backoff.insert(key.clone(), (count, now + backoff_delay(count)));
        } else {
            self.backoff.remove(key);
        }
        // Writes of PodGroups are throttled separately: the rest continues however often PodGroups are written.
        let changes_lane = changes_lane(lane, &rest);
        if changes_lane && wrote {
            self.throttle(key, now);
        }
        let wrote = wrote && !changes_lane;
        if !rest.is_empty() && !failed && budget > 0 {
            self.enqueue(key.clone(), Planned { actions: rest, wrote, budget });
            return None;
        }
        again |= !rest.is_empty();
        if wrote {
            self.throttle(key, now);
        }
        (again || failed).then(|| self.paused_until(key, now).unwrap_or(now))
    }

    /// Another controller may undo the writes: repeated writes for the same executors get longer and longer pauses.
    fn throttle(&mut self, key: &ExecutorSetKey, now: Instant) {
        let recent =
            self.writes.get(key).filter(|(_, until)| now.saturating_duration_since(*until) < THROTTLE_RESET_AFTER);
        let count = recent.map_or(0, |(count, _)| *count).saturating_add(1);
        let pause = if count > UNTHROTTLED_BATCHES {
            backoff_delay(count - UNTHROTTLED_BATCHES).min(MAX_THROTTLE)
        } else {
            Duration::ZERO
        };
        self.writes.insert(key.clone(), (count, now + pause));
        self.written.push_back((now + pause + THROTTLE_RESET_AFTER, key.clone()));
    }

    /// Forgets writes older than [`THROTTLE_RESET_AFTER`], at most `max` at a time.
    pub(super) fn prune(&mut self, now: Instant, max: usize) {
        for _ in 0..max {
            // A later write has its own entry.
            let Some((_, key)) = self.written.pop_front_if(|(until, _)| *until <= now) else { return };
            let is_quiet = |(_, until): &Pause| now.saturating_duration_since(*until) >= THROTTLE_RESET_AFTER;
            if self.writes.get(&key).is_some_and(is_quiet) {
                self.writes.remove(&key);
            }
        }
    }

    /// This replica does not lead: drops all planned actions.
    pub(super) fn clear_planned(&mut self) {
        self.planned.clear();
        for line in [&mut self.groups, &mut self.others] {
            line.ready.clear();
            line.round_robin.clear();
        }
        for acting in self.in_flight.values_mut() {
            acting.rest.clear();
        }
    }
}

/// The lower bound of an application's keys.
fn first(app: &AppKey) -> ExecutorSetKey {
    ExecutorSetKey { app: app.clone(), creator: None }
}

/// The uid of the pod that a recovery rule deletes.
fn deleted_uid(action: &Action) -> Option<&Arc<str>> {
    match action {
        Action::Recover(deletion) => Some(&deletion.seen.uid),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
