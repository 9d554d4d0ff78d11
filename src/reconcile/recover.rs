//! Recovery: applies the rules of [`crate::recovery::rules`] to an application in rounds, and decides what is done about each
//! finding: the rule's mode, and the budgets.
//!
//! A round visits the executors that a rule can concern (see the module `settled`), in parts if there are many, and then the drivers
//! and PodGroups. What a rule deletes is verified again by the edge immediately before.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};

use super::action::{Action, ObjectVersion, PodEvent, Recover};
use super::batch;
use super::context::PlanContext;
use super::kept;
use super::plan::Plan;
use super::settled::{Scope, scope};
use super::state::ApplicationState;
use crate::lifecycle::exits::Exits;
use crate::ownership::contradiction::{is_related, may_drive};
use crate::ownership::liveness::{DriverLiveness, ExecutorSet};
use crate::policy::{Mode, RecoveryRule};
use crate::reason::Reason;
use crate::recovery::budget::{DeletionBudget, Exhausted};
use crate::recovery::cost::{self, Amount};
use crate::recovery::finding::{Finding, Verdict};
use crate::recovery::registration::view_of;
use crate::recovery::report::{Outcome, RecoveryReport};
use crate::recovery::rules::{self, RuleContext, SetContext, waits_again};
use crate::recovery::state::RecoveryState;
use crate::recovery::target;
use crate::recovery::waiting::is_named;
use crate::signature::Creator;
use crate::snapshot::{DriverPhase, DriverPod, Executor, GroupKey, TemplateCounts, is_undeleted};
use crate::time::Now;

/// At most this many Events are recorded for one rule in one part of a round: the report contains all findings.
const MAX_EVENTS: usize = 3;

/// Plans the next part of a round, if one is due.
pub(super) fn plan(
    plan_context: &PlanContext<'_>,
    now: Now,
    state: &mut ApplicationState,
    exits: &Exits,
    budget: &mut DeletionBudget,
    plan: &mut Plan,
) {
    let recovery = &plan_context.policies.recovery;
    if recovery.is_off() {
        state.recovery = RecoveryState::default();
        budget.rules_are_off(now.at);
        budget.begin_round(plan_context.key);
        plan.recovery = Some(RecoveryReport::default());
        return;
    }
    let app = plan_context.app;
    let mut scope = scope(plan_context);
    if state.recovery.remembers_views() {
        scope = Scope::All;
    }
    if scope == Scope::Nothing && !exits.outages.is_out(now.at) {
        if state.recovery.has_findings {
            plan.recovery = Some(RecoveryReport::default());
        }
        state.recovery.rest(now.at);
        budget.begin_round(plan_context.key);
        return;
    }
    let is_gone = |set: &&ExecutorSet<'_>| set.driver == DriverLiveness::Gone;
    let gone: BTreeSet<Option<Creator>> = plan_context.sets.iter().filter(is_gone).map(|set| set.creator).collect();
    state.recovery.observe_gone(&gone, now.at);
    // An executor may live for less than the time between two rounds, and a PodGroup may be well for less.
    let is_empty = |driver: &str| plan_context.of_driver(driver).all(|set| set.undeleted() == 0);
    let waits = |group: &GroupKey| plan_context.snapshot.groups.get(group).is_some_and(|group| waits_again(group));
    state.recovery.end_conditions(is_empty, waits);
    // What was counted of executors that no longer exist is forgotten once all are visited.
    let visits_all = scope == Scope::All || state.recovery.counted() > app.executors().len();
    let visited = if visits_all { app.executors() } else { app.unsettled() };
    let newest_view = newest_view(plan_context);
    let pause = state.recovery.pause(visited.len(), recovery.shortest_wait(), newest_view);
    if !state.recovery.is_due(pause, now.at) {
        plan.continues_round = true;
        let next = state.recovery.round_after_change(pause);
        return next.into_iter().for_each(|next| plan.requeue(next));
    }
    // What was found before the outage stays; the end of the outage enqueues every application.
    if exits.outages.is_out(now.at) {
        return;
    }
    let is_new = state.recovery.position.is_none();
    plan.continues_round = !is_new;
    let context = RuleContext {
        witnesses: plan_context.witnesses(),
        snapshot: plan_context.snapshot,
        key: plan_context.key,
        app,
        recovery,
        lifecycle: plan_context.policies.lifecycle,
        exits,
        now,
    };
    let sets: Vec<SetContext<'_>> = plan_context.sets.iter().map(|set| of_set(&context, set, state)).collect();
    if is_new {
        budget.begin_round(plan_context.key);
        state.round = RecoveryReport::default();
        state.round_due = None;
        (state.recovery.last_round, state.recovery.judged_view) = (Some(now.at), newest_view);
        state.recovery.has_visited_all = true;
    }
    state.recovery.has_visited_all &= visits_all;
    let mut round = Round { context, state, budget, plan, events: Vec::new() };
    let mut position = round.state.recovery.position.take();
    batch::visit(visited, &mut position, |executor| {
        let creator = executor.counted_creator();
        // The sets are sorted by their creator.
        let Ok(at) = sets.binary_search_by_key(&creator, |of| of.set.creator) else { return false };
        let Some(of) = sets.get(at) else { return false };
        round.plan.visited += 1;
        round.measure(of, executor);
        let verdict = rules::of_executor(&round.context, of, executor, &mut round.state.recovery);
        round.take(verdict, creator)
    });
    round.state.recovery.position = position;
    if round.state.recovery.position.is_none() {
        round.drivers(plan_context, &sets);
        round.finish(plan_context);
    }
    round.flush();
    // The next part. It is no part of the creators' own plans, which it would repeat.
    if state.recovery.position.is_some() {
        plan.requeue(now.at + NEXT_PART);
    }
}

/// When the newest view of the application's drivers was read.
fn newest_view(context: &PlanContext<'_>) -> Option<Instant> {
    let views = context.sets.iter().filter_map(|set| view_of(context.snapshot, context.key, set.own_driver()?.creator));
    views.map(|view| view.at).max()
}

/// The time between two parts of a round.
const NEXT_PART: Duration = Duration::from_millis(500);

/// What the rules need to know about one creator's executors.
fn of_set<'v>(context: &RuleContext<'v>, set: &'v ExecutorSet<'v>, state: &ApplicationState) -> SetContext<'v> {
    let last_driver = state.last_driver(set.creator).map(|driver| driver.pod);
    SetContext {
        set,
        view: context.view(set),
        gone_since: state.recovery.gone_since(set.creator),
        keeps: kept::driver_keeps(context.snapshot, context.key, context.app, set, last_driver.as_ref())
            || state.sets.get(&set.creator).is_some_and(|set| set.keeps),
    }
}

/// A round, while a part of it is planned.
struct Round<'r, 'v> {
    context: RuleContext<'v>,
    state: &'r mut ApplicationState,
    budget: &'r mut DeletionBudget,
    plan: &'r mut Plan,
    events: Vec<(RecoveryRule, Option<Creator>, Action)>,
}

impl<'v> Round<'_, 'v> {
    /// Takes a rule's verdict on a pod. Returns whether that causes an action.
    fn take(&mut self, verdict: Verdict, creator: Option<Creator>) -> bool {
        match verdict {
            Verdict::Nothing => false,
            Verdict::At(at) => {
                self.due(at);
                false
            }
            Verdict::Found(finding) => self.found(*finding, creator),
        }
    }

    /// Counts what an executor that does no work has cost since the last round.
    fn measure(&mut self, of: &SetContext<'_>, executor: &Executor) {
        let recovery = &mut self.state.recovery;
        let now = self.context.now.at;
        let Some((cause, since)) = cost::of_executor(&self.context, of, executor, recovery) else {
            return recovery.keep_counted(&executor.uid, now);
        };
        let time = cost::uncounted(since, recovery.count(&executor.uid, now), self.budget.measured_since(), now);
        let amount = Amount::of(&executor.template.requests, time);
        self.plan.waste.entry(cause).or_default().add(amount);
    }

    fn due(&mut self, at: Instant) {
        self.state.round_due = Some(self.state.round_due.map_or(at, |due| due.min(at)));
    }

    fn found(&mut self, finding: Finding, creator: Option<Creator>) -> bool {
        let now = self.context.now;
        let rule = finding.rule;
        let recovery = self.context.recovery;
        let is_mode_act = recovery.rule(rule).mode == Mode::Act;
        let outcome = match &finding.remedy {
            Err(why) => Outcome::Kept(*why),
            Ok(remedy) if !is_mode_act => Outcome::Warned(remedy.check.condition()),
            Ok(remedy) if !recovery.acts => Outcome::NotActing(remedy.check.condition()),
            Ok(remedy) if recovery.dry_run => Outcome::DryRun(remedy.check.condition()),
            Ok(_) => match self.budget.reserve(recovery, (self.context.key, rule), &finding.uid, now.at) {
                Ok(()) => Outcome::Deleting,
                Err(exhausted) => {
                    self.due(exhausted.until());
                    let until = at_wall(now, exhausted.until());
                    match exhausted {
                        Exhausted::Held(why, _) => Outcome::NotDeleted(why, until),
                        _ => Outcome::Later(exhausted.text(), until),
                    }
                }
            },
        };
        if matches!(outcome, Outcome::NotActing(_) | Outcome::DryRun(_))
            && self.state.recovery.withhold(rule, &finding.uid)
        {
            *self.plan.withheld.entry(rule).or_default() += 1;
        }
        self.state.round.add(&finding, at_wall(now, finding.since), outcome);
        if let (Outcome::Deleting, Ok(remedy)) = (outcome, &finding.remedy) {
            let deletion = Recover {
                rule,
                seen: ObjectVersion { uid: finding.uid.clone(), resource_version: finding.version.as_str().into() },
                check: remedy.check.clone(),
                event: event(&finding, &format!("deleted, so that {}", remedy.effect)),
            };
            self.plan.add(creator, [Action::Recover(Box::new(deletion))]);
            return true;
        }
        let recorded = self.events.iter().filter(|(of, ..)| *of == rule).count();
        if recorded >= MAX_EVENTS || !self.state.recovery.report(rule, &finding.uid, now.at) {
            return false;
        }
        let event = event(&finding, &outcome.text());
        self.events.push((rule, creator, Action::RecordEvent(event)));
        true
    }

    /// The rules about drivers, their views and their PodGroups.
    fn drivers(&mut self, plan_context: &PlanContext<'v>, sets: &[SetContext<'v>]) {
        let mut seen: BTreeSet<&str> = BTreeSet::new();
        for of in sets {
            // An executor's driver is its creator, or owns its workload; an unlabelled driver may drive other applications.
            let labelled = of.set.labelled.iter().copied().filter(|driver| of.set.creator == Some(driver.creator));
            for driver in labelled.chain(of.set.own_driver()) {
                if seen.insert(&driver.uid) {
                    self.driver(plan_context, of, driver);
                }
            }
        }
    }

    fn driver(&mut self, plan_context: &PlanContext<'v>, of: &SetContext<'v>, driver: &Arc<DriverPod>) {
        let creator = Some(driver.creator);
        let all = || std::iter::once(of.set).chain(plan_context.with_driver_of(of.set));
        let counts = || all().flat_map(|set| set.counts.iter());
        let view = of.view.as_ref().map(|(view, _)| *view);
        // Any tenant can label any number of pods as the driver: only one that may have executors looks at them.
        let may_have = |set: &ExecutorSet<'_>| {
            let is_related = |counts: &TemplateCounts| counts.undeleted > 0 && is_related(driver, counts.creator());
            set.counts.iter().any(|counts| is_related(counts))
        };
        let may_have_one = |executor: &Arc<Executor>| is_undeleted(executor) && may_drive(driver, executor);
        // An executor that is being deleted does not count, however long that takes. The pod that controls one may not be its driver.
        let has_executors = driver.phase == DriverPhase::Running
            && (all().any(|set| set.undeleted() > 0)
                || plan_context.sets.iter().any(may_have) && plan_context.app.executors().values().any(may_have_one));
        let sets = plan_context.of_driver(&driver.uid);
        let replicas = target::replicas(self.context.snapshot, self.context.key, driver, sets);
        let target = target::target(self.context.snapshot, self.context.key, driver, view, replicas);
        let verdict = rules::of_driver(&self.context, of, driver, (has_executors, target), &mut self.state.recovery);
        self.take(verdict, creator);
        let verdict = rules::of_view(&self.context, of, driver, &mut self.state.recovery);
        self.take(verdict, creator);
        let owned = plan_context
            .groups()
            .filter(|(_, group)| group.owner.as_ref().is_some_and(|owner| owner.creator() == driver.creator));
        for (key, group) in owned {
            let own = || counts().filter(|counts| is_named(key, &counts.template.scheduling));
            let members: usize = own().map(|counts| counts.undeleted).sum();
            let pending: usize = own().map(|counts| counts.pending).sum();
            let verdict =
                rules::of_group(&self.context, (key, group), (members, pending), driver, &mut self.state.recovery);
            self.take(verdict, creator);
        }
    }

    /// Ends a round.
    fn finish(&mut self, plan_context: &PlanContext<'v>) {
        let (app, snapshot) = (plan_context.app, plan_context.snapshot);
        let alive = plan_context.sets.iter().filter_map(|set| set.driver.pod());
        let drivers: BTreeSet<&str> = app.drivers.iter().chain(alive).map(|driver| &*driver.uid).collect();
        let creators: BTreeSet<Creator> = plan_context.sets.iter().filter_map(|set| set.creator).collect();
        let now = self.context.now.at;
        let recovery = &mut self.state.recovery;
        recovery.retain((&drivers, &creators), |group| snapshot.groups.contains_key(group), now);
        self.state.recovery.due = self.state.round_due;
        self.state.recovery.has_findings = !self.state.round.counts.is_empty();
        self.state.recovery.next_round().into_iter().for_each(|next| self.plan.requeue(next));
        self.plan.recovery = Some(std::mem::take(&mut self.state.round));
    }

    /// Adds the Events to the plan.
    fn flush(self) {
        for (_, creator, action) in self.events {
            self.plan.add(creator, [action]);
        }
    }
}

fn event(finding: &Finding, outcome: &str) -> PodEvent {
    PodEvent {
        pod: finding.pod.clone(),
        uid: finding.uid.clone(),
        reason: reason(finding.rule),
        message: format!("{}; {outcome}", finding.message),
    }
}

/// The reason of a rule's Events.
fn reason(rule: RecoveryRule) -> Reason {
    match rule {
        RecoveryRule::Stuck => Reason::ExecutorStuck,
        RecoveryRule::Unregistered => Reason::ExecutorNotRegistered,
        RecoveryRule::GivenUp => Reason::ExecutorGivenUp,
        RecoveryRule::Vanished => Reason::ExecutorVanished,
        RecoveryRule::Hopeless => Reason::NoExecutors,
        RecoveryRule::ZombieDriver => Reason::DriverLingers,
        RecoveryRule::Orphans => Reason::ExecutorOrphaned,
        RecoveryRule::Refused => Reason::ExecutorLeftBehind,
        RecoveryRule::Terminating => Reason::TerminationHangs,
        RecoveryRule::Groups => Reason::GroupWaitsAgain,
    }
}

/// The wall time of an instant.
fn at_wall(now: Now, at: Instant) -> Timestamp {
    let distance =
        |from: Instant, to: Instant| SignedDuration::try_from(to.saturating_duration_since(from)).unwrap_or_default();
    now.wall
        .saturating_add(distance(now.at, at))
        .and_then(|wall| wall.saturating_sub(distance(at, now.at)))
        .unwrap_or(now.wall)
}
