//! What is planned: which applications are due, what their plans need, and which actions may begin.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::driver_poll_schedule::{DriverPolls, FinishedPoll, PollOutcome};
use super::effects::{DriverAnswer, Effects, LookupResult, PollError, StepContext};
use super::inbox::MAX_OBJECTS_PER_STEP;
use super::ledgers::{Ledgers, Recorded};
use super::lookup::{Lookup, is_unknown, required_by};
use super::lookup_schedule::{LookupOutcome, Lookups};
use super::observation::{News, Observation, PLAN_INTERVAL};
use super::queue::WorkQueue;
use super::rate_limit::{ExecutorSetKey, Hold, RateLimit};
use super::resync::{MAX_ENQUEUED_PER_STEP, Resync};
use crate::planning::{Action, PlanInput};
use crate::policy::{DriverAccess, Policies, RecoveryRule};
use crate::reconcile::{ApplicationState, Silence, plan};
use crate::recovery::budget::{Attempt, DeletionBudget};
use crate::snapshot::{Application, DriverPhase, DriverView, DriverViewKey, RelatedChange};
use usher_spark::ids::{AppKey, PodKey};
use usher_spark::rest::ExecutorSummary;
use usher_spark::time::Now;

/// How often an unchanged application is planned again.
const RESYNC_INTERVAL: Duration = Duration::from_secs(60);
/// A step plans at most this many applications,
const MAX_APPS_PER_STEP: usize = 64;
/// and stops earlier after plans for this many executors.
const MAX_EXECUTORS_PER_STEP: usize = 2048;

/// See the module's text.
#[derive(Debug)]
pub(super) struct Planner {
    /// Applications whose lookups and plans are due.
    queue: WorkQueue<AppKey>,
    /// Changed applications that are not enqueued yet.
    changed_apps: Option<indexmap::set::IntoIter<AppKey>>,
    resync: Option<Resync>,
    states: BTreeMap<AppKey, ApplicationState>,
    lookups: Lookups,
    driver_polls: DriverPolls,
    rate_limit: RateLimit,
    deletion_budget: DeletionBudget,
    withheld: BTreeMap<RecoveryRule, u32>,
}

impl Planner {
    pub(super) fn new(now: Instant) -> Planner {
        Planner {
            queue: WorkQueue::default(),
            changed_apps: None,
            resync: None,
            states: BTreeMap::new(),
            lookups: Lookups::default(),
            driver_polls: DriverPolls::default(),
            rate_limit: RateLimit::default(),
            deletion_budget: DeletionBudget::new(now),
            withheld: BTreeMap::new(),
        }
    }

    /// Enqueues every application.
    pub(super) fn requeue_all(&mut self) {
        self.resync = Some(Resync::default());
    }

    /// This replica begins to lead.
    pub(super) fn begin_leading(&mut self, now: Instant) {
        self.requeue_all();
        self.deletion_budget.leads_since(now);
    }

    /// This replica no longer leads.
    pub(super) fn end_leading(&mut self) {
        self.lookups.forget_addresses();
    }

    /// Takes up what was observed.
    pub(super) fn learn(&mut self, news: News, now: Instant) {
        if news.requeue {
            self.requeue_all();
        }
        for (app, pod, uid) in news.gone_drivers {
            self.lookups.mark_known(Lookup::Pod(pod), uid, std::slice::from_ref(&app), now);
        }
    }

    /// Takes up exits that were recorded. A burst of them is one plan, too.
    pub(super) fn ended(&mut self, recorded: Recorded, now: Instant) {
        recorded.ended.into_iter().for_each(|app| self.queue.add_after(app, now + PLAN_INTERVAL));
        recorded.explaining.into_iter().for_each(|driver| self.lookups.refresh(Lookup::Pod(driver), now));
    }

    /// Enqueues applications that changed.
    pub(super) fn enqueue_changed(&mut self, observed: &mut Observation, now: Instant) {
        if self.changed_apps.is_none() {
            self.changed_apps = observed.take_changed(now).map(|batch| batch.touched.into_iter());
        }
        if let Some(touched) = &mut self.changed_apps {
            touched.by_ref().take(MAX_ENQUEUED_PER_STEP).for_each(|app| self.queue.add(app));
            if touched.len() == 0 {
                self.changed_apps = None;
                observed.planned(now);
            }
        }
    }

    /// Forgets deletions that no longer count in a budget.
    pub(super) fn prune(&mut self, policies: &Policies, now: Instant) {
        self.deletion_budget.prune(&policies.recovery, now);
    }

    /// Plans what is due, as much as one step may. Returns how many applications were planned; only a leader plans.
    pub(super) fn step(
        &mut self,
        observed: &mut Observation,
        ledgers: &mut Ledgers,
        context: StepContext<'_>,
    ) -> usize {
        let (policies, leads, now) = (context.policies, context.leads(), context.now);
        self.rate_limit.prune(now.at, MAX_OBJECTS_PER_STEP);
        if !leads {
            self.rate_limit.clear_planned();
            self.states.clear();
            self.lookups.release_all();
        }
        if !leads || policies.recovery.driver_view.access == DriverAccess::None {
            let drivers = self.driver_polls.clear();
            self.forget_views(drivers, observed, now);
        }
        // What is received may change what is planned.
        if !observed.inbox.is_empty() {
            return 0;
        }
        if let Some(walk) = &mut self.resync
            && walk.enqueue_next(observed.snapshot(), &mut self.queue)
        {
            self.resync = None;
        }
        let (mut executors, mut plans) = (0, 0);
        for _ in 0..MAX_APPS_PER_STEP {
            if executors >= MAX_EXECUTORS_PER_STEP {
                break;
            }
            let Some(app) = self.queue.get(now.at) else { break };
            let (known, state) = (observed.snapshot().apps.get(&app).cloned(), self.states.get(&app));
            executors += known.as_ref().map_or(0, |known| known.visits_per_plan());
            let sets = state.into_iter().flat_map(|state| state.sets.values());
            let learned: Vec<PodKey> = sets.filter_map(|set| Some(set.driver.as_ref()?.pod.key.clone())).collect();
            self.require_lookups(&app, known.as_deref(), &learned, observed, context);
            let (examined, rest) =
                ledgers.nodes.observe(&app, known.as_deref(), observed.snapshot(), &policies.nodes, now);
            executors += examined;
            if let Some(at) = rest {
                self.queue.add_after(app.clone(), at);
            }
            let is_known = known.is_some();
            drop(known); // A shared application would be copied when it changes.
            if leads
                && observed.has_synced()
                && let Some(visited) = self.plan_application(&app, is_known, observed, ledgers, context)
            {
                plans += 1;
                executors += visited;
            }
            self.queue.done(&app);
        }
        plans
    }

    /// Plans an application, unless that has to wait. Returns how many executors a round of the recovery rules visited if it did.
    fn plan_application(
        &mut self,
        app: &AppKey,
        is_known: bool,
        observed: &mut Observation,
        ledgers: &mut Ledgers,
        StepContext { policies, now, .. }: StepContext<'_>,
    ) -> Option<usize> {
        match self.rate_limit.hold(app, now.at, observed.snapshot()) {
            Hold::Free => {}
            Hold::Until(at) => {
                self.queue.add_after(app.clone(), at);
                return None;
            }
            Hold::InFlight => return None,
        }
        if let Some(until) = self.lookups.hold_until(app, now.at) {
            // The answer enqueues it sooner.
            self.queue.add_after(app.clone(), until);
            return None;
        }
        let state = self.states.entry(app.clone()).or_default();
        let budget = &mut self.deletion_budget;
        let input = PlanInput { snapshot: observed.snapshot(), key: app, policies, exits: &ledgers.exits, now };
        let mut plan = plan(input, state, budget);
        let is_left = is_known || !state.is_empty() || !plan.sets.is_empty();
        if state.is_empty() {
            self.states.remove(app);
            ledgers.recovery.forget(app);
        }
        let (later, visited) = (plan.requeue_at, plan.recovery.visited);
        let left = self.driver_polls.require(app, std::mem::take(&mut plan.drivers), now.at);
        self.forget_views(left, observed, now);
        if let Some(found) = plan.recovery.report.take() {
            ledgers.recovery.found(app, found);
        }
        for (cause, amount) in std::mem::take(&mut plan.recovery.waste) {
            ledgers.add_waste(app, cause, amount);
        }
        for (rule, count) in std::mem::take(&mut plan.recovery.withheld) {
            *self.withheld.entry(rule).or_default() += count;
        }
        let paused = self.rate_limit.submit(app, plan, now.at);
        let resync = is_left.then(|| now.at + RESYNC_INTERVAL);
        if let Some(at) = later.into_iter().chain(paused).chain(resync).min() {
            self.queue.add_after(app.clone(), at);
        }
        Some(visited)
    }

    /// The actions that may begin now. Deletions by recovery rules are charged.
    pub(super) fn start_actions(
        &mut self,
        ledgers: &mut Ledgers,
        policies: &Policies,
        now: Instant,
    ) -> Vec<(ExecutorSetKey, Vec<Action>)> {
        let mut ready = self.rate_limit.start_ready();
        let budget = &mut self.deletion_budget;
        for (set, actions) in &mut ready {
            actions.retain(|action| match action {
                Action::Recover(recover) => {
                    budget.begin(&policies.recovery, &set.app, recover.rule, &recover.seen.uid, now)
                }
                _ => true,
            });
            for action in actions {
                if let Action::Recover(recover) = action {
                    ledgers.rule_deletes(&recover.seen.uid, recover.rule);
                }
            }
        }
        ready
    }

    /// How many more pods rules would have deleted since the last call, were deletions not off.
    pub(super) fn take_withheld(&mut self) -> BTreeMap<RecoveryRule, u32> {
        std::mem::take(&mut self.withheld)
    }

    /// The objects and drivers to read now.
    pub(super) fn due_reads(&mut self, is_closed: bool, now: Instant, effects: &mut Effects) {
        effects.lookups = self.lookups.due(now);
        if !is_closed {
            effects.driver_polls = self.driver_polls.due(now);
        }
    }

    /// When the next step has something to do.
    pub(super) fn next_due(&self, now: Instant) -> Option<Instant> {
        let parts = (self.resync.is_some() || self.changed_apps.is_some()).then_some(now);
        let reads = self.lookups.next_due(now).into_iter().chain(self.driver_polls.next_due(now));
        self.queue.next(now).into_iter().chain(parts).chain(reads).min()
    }

    /// Actions for a creator's executors finished, or some of them failed. Either way the next plan finds what is still missing.
    pub(super) fn actions_finished(&mut self, set: &ExecutorSetKey, failed: bool, wrote: bool, now: Instant) {
        if let Some(at) = self.rate_limit.finished(set, failed, wrote, now) {
            self.queue.add_after(set.app.clone(), at);
        }
    }

    /// The deletion of a pod of an application by a recovery rule ended.
    pub(super) fn deletion_ended(&mut self, app: &AppKey, attempt: &Attempt, now: Instant) {
        self.deletion_budget.ended(app, attempt, now);
    }

    /// Registers the lookups that an application's plan requires.
    /// `learned` are its drivers' pods as they were last known.
    fn require_lookups(
        &mut self,
        app: &AppKey,
        known: Option<&Application>,
        learned: &[PodKey],
        observed: &mut Observation,
        context: StepContext<'_>,
    ) {
        let (snapshot, now) = (observed.snapshot(), context.now);
        let (wanted, outdated) = required_by(snapshot, app, known, context.policies, learned, context.leads());
        let unfollowed = self.lookups.require(app, wanted, now.at, |read| is_unknown(snapshot, read));
        for (pod, uid) in outdated {
            self.lookups.mark_outdated(pod, uid);
        }
        for read in unfollowed {
            let change = match read {
                Lookup::Pod(pod) => RelatedChange::Unreferenced(pod),
                Lookup::Workload(key) => RelatedChange::WorkloadUnreferenced(key),
                Lookup::Quotas(namespace) => RelatedChange::QuotasUnreferenced(namespace),
                Lookup::Messages(namespace, kind) => RelatedChange::MessagesUnreferenced(namespace, kind),
                _ => continue,
            };
            observed.apply_change(change, now);
        }
    }

    /// Processes the answer to a lookup that plans require.
    pub(super) fn lookup_answered(
        &mut self,
        read: &Lookup,
        answer: LookupResult,
        observed: &mut Observation,
        now: Now,
    ) {
        if !self.lookups.is_required(read) {
            self.lookups.finished(read, LookupOutcome::Absent, now.at);
            return;
        }
        // A driver's ConfigMap is created after its pod, possibly after the driver runs. A driver that has exited gets none.
        let awaited = matches!(read, Lookup::Conf(pod, ..) if observed.snapshot().driver_pod(pod.namespace(), pod.name())
            .is_some_and(|driver| driver.phase != DriverPhase::Ended));
        let outcome = match &answer {
            LookupResult::Failed => LookupOutcome::Failed,
            LookupResult::Absent if awaited => LookupOutcome::Awaited,
            LookupResult::Absent => LookupOutcome::Absent,
            _ => LookupOutcome::Answered,
        };
        let waiters = self.lookups.waiters(read);
        let planned_again = self.lookups.finished(read, outcome, now.at);
        if matches!(outcome, LookupOutcome::Answered | LookupOutcome::Absent) {
            match (read, &answer) {
                // From now on the pod is read by name.
                (Lookup::Address(namespace, _), LookupResult::Pod(driver)) => {
                    let pod = Lookup::Pod(PodKey::new(namespace, &driver.name));
                    self.lookups.mark_known(pod, driver.uid.clone(), &waiters, now.at);
                }
                (Lookup::Conf(..), _) => self.lookups.forget(read),
                _ => {}
            }
            if let Some(change) = answer.learned(read, waiters) {
                observed.apply_change(change, now);
            }
        }
        planned_again.into_iter().for_each(|app| self.queue.add(app));
    }

    /// Forgets the views of drivers that are no longer polled.
    fn forget_views(&mut self, drivers: Vec<DriverViewKey>, observed: &mut Observation, now: Now) {
        for key in drivers {
            self.driver_polls.release_view(&key);
            observed.apply_change(RelatedChange::DriverViewGone(key), now);
        }
    }

    /// Processes a driver's answer to a poll for its view. Returns the outcome: there may be no memory for a view.
    pub(super) fn driver_answered(
        &mut self,
        key: &DriverViewKey,
        answer: DriverAnswer,
        observed: &mut Observation,
        policies: &Policies,
        now: Now,
    ) -> Result<(), PollError> {
        let answer = match answer {
            DriverAnswer::View { ref executors, .. } => {
                let bytes = executors.iter().map(ExecutorSummary::memory).sum();
                if self.driver_polls.keep_view(key, bytes) {
                    answer
                } else {
                    self.forget_views(vec![key.clone()], observed, now);
                    DriverAnswer::Failed(PollError::TooLarge)
                }
            }
            answer => answer,
        };
        let result = if let DriverAnswer::Failed(error) = answer { Err(error) } else { Ok(()) };
        let outcome = match &answer {
            DriverAnswer::View { port, .. } => PollOutcome::Answered(*port),
            DriverAnswer::Starting => PollOutcome::Starting,
            DriverAnswer::Failed(_) => PollOutcome::Failed,
        };
        let silence = match &answer {
            DriverAnswer::Starting | DriverAnswer::Failed(PollError::Timeout) => Silence::Starting,
            DriverAnswer::Failed(PollError::Refused | PollError::Unreachable) => Silence::Refused,
            DriverAnswer::View { .. } | DriverAnswer::Failed(_) => Silence::None,
        };
        if let Some(set) = self.states.get_mut(&key.app).and_then(|state| state.sets.get_mut(&Some(key.driver))) {
            set.silence = silence;
        }
        let finished = self.driver_polls.finished(key, outcome, policies.recovery.driver_view.interval, now.at);
        let Some(FinishedPoll { began, view_counts, retained_dead, pod, uid }) = finished else { return result };
        if let DriverAnswer::View { executors, metrics, conf, .. } = answer {
            if let Some(conf) = conf {
                let change = RelatedChange::StatedConf(pod, uid, key.app.clone(), conf);
                observed.apply_change(change, now);
            }
            let at = Now { at: began, wall: now.wall - now.at.saturating_duration_since(began) };
            let view = Arc::new(DriverView::new(at, executors, metrics, retained_dead));
            observed.apply_change(RelatedChange::DriverView(key.clone(), view), now);
        } else if !view_counts {
            let closed = observed.snapshot().closed_drivers.get(key).copied();
            let had_view = closed.is_some() || observed.snapshot().driver_views.contains_key(key);
            match answer {
                DriverAnswer::Failed(PollError::Refused) if had_view => {
                    self.driver_polls.release_view(key);
                    let change = RelatedChange::DriverClosed(key.clone(), closed.unwrap_or(now.at));
                    observed.apply_change(change, now);
                }
                // Once it has refused connections, a lost response says nothing more.
                DriverAnswer::Failed(PollError::Timeout) if closed.is_some() => {}
                _ => self.forget_views(vec![key.clone()], observed, now),
            }
        }
        result
    }
}
