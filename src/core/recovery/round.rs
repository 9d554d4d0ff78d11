//! Rounds of the recovery rules over one application: what each finding leads to, by the rule's mode and the budgets.
//!
//! A round visits the executors that a rule can concern (see the module `settled`), in parts if there are many, and then the drivers
//! and PodGroups. What a rule deletes is verified again by the edge immediately before.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};

use super::budget::{DeletionBudget, Exhausted};
use super::cost::{self, Amount, WasteCause};
use super::finding::{Finding, FindingVerdict, Remedy};
use super::report::{FindingOutcome, RecoveryReport};
use super::rules::{self, RuleContext, SetContext, waits_again};
use super::settled::{Scope, scope};
use super::state::RecoveryState;
use crate::drivers::view_of;
use crate::ownership::liveness::{DriverLiveness, ExecutorSet};
use crate::planning::{Action, ObjectVersion, PlanContext, PodEvent, Recover, batch};
use crate::policy::{Mode, RecoveryRule};
use crate::reason::Reason;
use crate::signature::Creator;
use crate::snapshot::{DriverPod, Executor, GroupKey};
use usher_spark::time::Now;

/// At most this many Events are recorded for one rule in one part of a round: the report contains all findings.
const MAX_EVENTS: usize = 3;
/// The time between two parts of a round.
const NEXT_PART: Duration = Duration::from_millis(500);

/// What a part of a round results in.
#[derive(Debug, Default, PartialEq)]
pub struct RoundPart {
    /// Deletions and Events in order, each with the creator of the executors that it is about.
    pub actions: Vec<(Option<Creator>, Action)>,
    /// What the rules found, if the round has ended, or none is needed.
    pub report: Option<RecoveryReport>,
    /// What executors that do no work have cost since the last round.
    pub waste: BTreeMap<WasteCause, Amount>,
    /// How many more pods rules would have deleted, were deletions not off.
    pub withheld: BTreeMap<RecoveryRule, u32>,
    /// How many executors it visited.
    pub visited: usize,
    /// When the next part or round begins at the latest.
    pub next: Option<Instant>,
    /// A round continues, or the next one is not due yet: deletions that the last part planned, and that have not begun, stay due.
    pub continues_round: bool,
}

/// Plans the next part of a round, if one is due. `keeps` is whether the driver of executors keeps those that finished.
pub(crate) fn next_part(
    input: &PlanContext<'_>,
    keeps: impl Fn(&ExecutorSet<'_>) -> bool,
    state: &mut RecoveryState,
    budget: &mut DeletionBudget,
) -> RoundPart {
    let now = input.now.at;
    let ended = || Some(RecoveryReport::default());
    if input.policies.recovery.is_off() {
        *state = RecoveryState::default();
        budget.rules_are_off(now);
        budget.begin_round(input.key);
        return RoundPart { report: ended(), ..RoundPart::default() };
    }
    let scope = if state.remembers_views() { Scope::All } else { scope(input) };
    let is_out = input.exits.outages.is_out(now);
    if scope == Scope::Nothing && !is_out {
        budget.begin_round(input.key);
        let report = ended().filter(|_| state.has_findings());
        state.rest(now);
        return RoundPart { report, ..RoundPart::default() };
    }
    observe(input, state);
    // What was counted of executors that no longer exist is forgotten once all are visited.
    let visits_all = scope == Scope::All || state.counted() > input.app.executors().len();
    let visited = if visits_all { input.app.executors() } else { input.app.unsettled() };
    let newest_view = newest_view(input);
    let pause = state.pause(visited.len(), input.policies.recovery.shortest_wait(), newest_view);
    if !state.is_due(pause, now) {
        let next = state.round_after_change(pause);
        return RoundPart { next, continues_round: true, ..RoundPart::default() };
    }
    // What was found before the outage stays; the end of the outage enqueues every application.
    if is_out {
        return RoundPart::default();
    }
    let is_new = state.begin_part(visits_all, newest_view, now);
    if is_new {
        budget.begin_round(input.key);
    }
    let context = RuleContext::of(input);
    let sets: Vec<SetContext<'_>> = input.sets.iter().map(|set| context.of_set(set, state, keeps(set))).collect();
    let part = RoundPart { continues_round: !is_new, ..RoundPart::default() };
    let mut round = Round { context, sets: &sets, state, budget, part, events: Vec::new() };
    let mut position = round.state.position.take();
    batch::visit(visited, &mut position, |executor| round.executor(executor));
    round.state.position = position;
    if round.state.position.is_none() {
        round.drivers();
        round.finish();
    } else {
        round.part.next = Some(now + NEXT_PART);
    }
    round.part.actions.append(&mut round.events);
    round.part
}

/// Observes what may end between two rounds: an executor may live for less than that time, and a PodGroup may be well for less.
fn observe(input: &PlanContext<'_>, state: &mut RecoveryState) {
    let is_gone = |set: &&ExecutorSet<'_>| set.driver == DriverLiveness::Gone;
    let gone: BTreeSet<Option<Creator>> = input.sets.iter().filter(is_gone).map(|set| set.creator).collect();
    state.observe_gone(&gone, input.now.at);
    let is_empty = |driver: &str| input.of_driver(driver).all(|set| set.undeleted() == 0);
    let waits = |group: &GroupKey| input.snapshot.groups.get(group).is_some_and(|group| waits_again(group));
    state.end_conditions(is_empty, waits);
}

/// When the newest view of the application's drivers was read.
fn newest_view(input: &PlanContext<'_>) -> Option<Instant> {
    let views = input.sets.iter().filter_map(|set| view_of(input.snapshot, input.key, set.own_driver()?.creator));
    views.map(|view| view.at).max()
}

/// A round, while a part of it is planned.
struct Round<'r, 'v> {
    context: RuleContext<'v>,
    /// Sorted by their creator.
    sets: &'r [SetContext<'v>],
    state: &'r mut RecoveryState,
    budget: &'r mut DeletionBudget,
    part: RoundPart,
    events: Vec<(Option<Creator>, Action)>,
}

impl Round<'_, '_> {
    /// Applies the rules about an executor. Returns whether that causes an action.
    fn executor(&mut self, executor: &Executor) -> bool {
        let creator = executor.counted_creator();
        let at = self.sets.binary_search_by_key(&creator, |set_context| set_context.set.creator).ok();
        let Some(set_context) = at.and_then(|at| self.sets.get(at)) else { return false };
        self.part.visited += 1;
        self.measure(set_context, executor);
        let verdict = rules::of_executor(&self.context, set_context, executor, self.state);
        self.take(verdict, creator)
    }

    /// Counts what an executor that does no work has cost since the last round.
    fn measure(&mut self, set_context: &SetContext<'_>, executor: &Executor) {
        let now = self.context.now.at;
        let Some((cause, since)) = cost::of_executor(&self.context, set_context, executor, self.state) else {
            return self.state.keep_counted(&executor.uid, now);
        };
        let time = cost::uncounted(since, self.state.count(&executor.uid, now), self.budget.measured_since(), now);
        let amount = Amount::of(&executor.template.requests, time);
        self.part.waste.entry(cause).or_default().add(amount);
    }

    /// Applies the rules about drivers, their views and their PodGroups.
    fn drivers(&mut self) {
        let mut seen: BTreeSet<&str> = BTreeSet::new();
        for set_context in self.sets {
            // An executor's driver is its creator, or owns its workload; an unlabelled driver may drive other applications.
            let labelled = set_context
                .set
                .labelled
                .iter()
                .copied()
                .filter(|driver| set_context.set.creator == Some(driver.creator));
            for driver in labelled.chain(set_context.set.own_driver()) {
                if seen.insert(&driver.uid) {
                    self.driver(set_context, driver);
                }
            }
        }
    }

    fn driver(&mut self, set_context: &SetContext<'_>, driver: &Arc<DriverPod>) {
        let creator = Some(driver.creator);
        let verdict = rules::of_driver(&self.context, set_context, driver, self.state);
        self.take(verdict, creator);
        let verdict = rules::of_view(&self.context, set_context, driver, self.state);
        self.take(verdict, creator);
        for (key, group) in self.context.input.groups() {
            if group.owner.as_ref().is_some_and(|owner| owner.creator() == driver.creator) {
                let verdict = rules::of_group(&self.context, set_context, key, group, driver, self.state);
                self.take(verdict, creator);
            }
        }
    }

    /// Takes a rule's verdict on a pod. Returns whether that causes an action.
    fn take(&mut self, verdict: FindingVerdict, creator: Option<Creator>) -> bool {
        match verdict {
            FindingVerdict::Nothing => false,
            FindingVerdict::At(at) => {
                self.state.due_in_round(at);
                false
            }
            FindingVerdict::Found(finding) => self.found(&finding, creator),
        }
    }

    fn found(&mut self, finding: &Finding, creator: Option<Creator>) -> bool {
        let now = self.context.now;
        let outcome = self.outcome(finding);
        if matches!(outcome, FindingOutcome::NotActing(_) | FindingOutcome::DryRun(_))
            && self.state.withhold(finding.rule, &finding.uid)
        {
            *self.part.withheld.entry(finding.rule).or_default() += 1;
        }
        self.state.round.add(finding, at_wall(now, finding.since), outcome);
        if let (FindingOutcome::Deleting, Ok(remedy)) = (outcome, &finding.remedy) {
            self.part.actions.push((creator, deletion(finding, remedy)));
            return true;
        }
        let reason = reason(finding.rule);
        let recorded = self.events.iter().filter(|(_, event)| event.reason() == Some(reason)).count();
        if recorded >= MAX_EVENTS || !self.state.report(finding.rule, &finding.uid, now.at) {
            return false;
        }
        self.events.push((creator, Action::RecordEvent(event(finding, &outcome.text()))));
        true
    }

    /// What is done about a finding.
    fn outcome(&mut self, finding: &Finding) -> FindingOutcome {
        let (recovery, now) = (self.context.recovery, self.context.now);
        let remedy = match &finding.remedy {
            Ok(remedy) => remedy,
            Err(why) => return FindingOutcome::Kept(*why),
        };
        let condition = remedy.check.condition();
        if recovery.rule(finding.rule).mode != Mode::Act {
            return FindingOutcome::Warned(condition);
        }
        if !recovery.acts {
            return FindingOutcome::NotActing(condition);
        }
        if recovery.dry_run {
            return FindingOutcome::DryRun(condition);
        }
        let Err(exhausted) = self.budget.reserve(recovery, self.context.key, finding.rule, &finding.uid, now.at) else {
            return FindingOutcome::Deleting;
        };
        self.state.due_in_round(exhausted.until());
        let until = at_wall(now, exhausted.until());
        match exhausted {
            Exhausted::Held(why, _) => FindingOutcome::NotDeleted(why, until),
            _ => FindingOutcome::Later(exhausted.text(), until),
        }
    }

    /// Ends a round.
    fn finish(&mut self) {
        let (input, now) = (self.context.input, self.context.now.at);
        let alive = input.sets.iter().filter_map(|set| set.driver.pod());
        let drivers: BTreeSet<&str> = input.app.drivers.iter().chain(alive).map(|driver| &*driver.uid).collect();
        let creators: BTreeSet<Creator> = input.sets.iter().filter_map(|set| set.creator).collect();
        self.state.retain(&drivers, &creators, |group| input.snapshot.groups.contains_key(group), now);
        self.part.report = Some(self.state.end_round());
        self.part.next = self.state.next_round();
    }
}

fn deletion(finding: &Finding, remedy: &Remedy) -> Action {
    Action::Recover(Box::new(Recover {
        rule: finding.rule,
        seen: ObjectVersion { uid: finding.uid.clone(), resource_version: finding.version.as_str().into() },
        check: remedy.check.clone(),
        event: event(finding, &format!("deleted, so that {}", remedy.effect)),
    }))
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
