//! What is kept about applications and nodes beyond their plans: exits, nodes that break executors, costs, and findings.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use super::effects::{Effects, Settings, StepContext};
use super::nodes::Nodes;
use super::observation::Observation;
use crate::leader::LeaderState;
use crate::lifecycle::checkpoint::Checkpoint;
use crate::lifecycle::exit::Exit;
use crate::lifecycle::exits::Exits;
use crate::policy::{Policies, RecoveryRule};
use crate::recovery::RecoveryFindings;
use crate::recovery::budget::Attempt;
use crate::recovery::cost::{self, Amount, CostLedger, GivenBack, WasteCause};
use crate::recovery::report::DeletedPod;
use crate::snapshot::Snapshot;
use usher_spark::ids::{AppKey, PodKey};
use usher_spark::time::Now;

/// A step records at most this many exits, and reports at most twice as many.
const MAX_EXITS_PER_STEP: usize = 128;

/// What the planner has to know of exits that were recorded.
#[derive(Debug, Default)]
pub(super) struct Recorded {
    /// The applications of executors that exited.
    pub(super) ended: Vec<AppKey>,
    /// Drivers whose pods would explain an exit.
    pub(super) explaining: BTreeSet<PodKey>,
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct Ledgers {
    pub(super) exits: Exits,
    pub(super) nodes: Nodes,
    /// What the recovery rules found, and which pods they deleted.
    pub(super) recovery: RecoveryFindings,
    pub(super) costs: CostLedger,
    given_back: GivenBack,
    /// What was added to the costs since the last step.
    waste: Vec<(AppKey, WasteCause, Amount)>,
    /// Whether another replica has led since this one did.
    has_followed: bool,
}

impl Ledgers {
    pub(super) fn new(settings: Settings) -> Ledgers {
        Ledgers {
            exits: Exits::new(settings.driver_exit_window, settings.contact_timeout),
            nodes: Nodes::default(),
            recovery: RecoveryFindings::default(),
            costs: CostLedger::default(),
            given_back: GivenBack::default(),
            waste: Vec::new(),
            has_followed: true,
        }
    }

    /// Another replica leads.
    pub(super) fn follow(&mut self) {
        self.has_followed = true;
    }

    /// This replica begins to lead. One that could not renew its Lease in time for a while, and whose place no other replica took,
    /// goes on counting.
    pub(super) fn begin_leading(&mut self, now: Now) {
        if std::mem::take(&mut self.has_followed) {
            self.costs = CostLedger::since(now.wall);
            self.given_back = GivenBack::default();
            self.nodes.forget_reports();
        }
    }

    /// Forgets what no longer matters, and counts what deletions gave back.
    pub(super) fn prune(&mut self, snapshot: &Snapshot, policies: &Policies, now: Instant, effects: &mut Effects) {
        self.nodes.expire(snapshot, &policies.nodes, now);
        for (namespace, rule, amount) in self.given_back.count(now) {
            self.costs.add_given_back(&namespace, rule, amount);
            effects.given_back.push((namespace, rule, amount));
        }
    }

    /// Records exits, and reports them if this replica leads.
    pub(super) fn step(
        &mut self,
        observed: &mut Observation,
        context: StepContext<'_>,
        effects: &mut Effects,
    ) -> Recorded {
        let StepContext { settings, policies, leader_state, now } = context;
        self.begin_exits(observed, now);
        let recorded = self.record(observed, now, MAX_EXITS_PER_STEP);
        self.nodes.record(&self.exits, observed.snapshot(), &policies.nodes, now);
        // The most that a step records, plus the most that it decides.
        effects.exits = self.exits.due_reports(leader_state, settings.takeover, now.at, 2 * MAX_EXITS_PER_STEP);
        for exit in effects.exits.iter().filter(|exit| context.leads() && !exit.possibly_reported) {
            if let Some(amount) = cost::of_exit(exit) {
                self.add_waste(&exit.app, WasteCause::Refused, amount);
            }
        }
        recorded
    }

    /// Begins the next batch of exits, unless one is being recorded.
    fn begin_exits(&mut self, observed: &mut Observation, now: Now) {
        if let Some(batch) = observed.take_exits(now.at) {
            self.exits.record_position(observed.progress.begin(), now.at);
            self.exits.begin_batch(batch);
        }
    }

    /// Notes exits, decides the causes of those that waited for their driver, and forgets expired ones.
    fn record(&mut self, observed: &mut Observation, now: Now, max: usize) -> Recorded {
        let was_recording = self.exits.has_batch();
        self.exits.decide(observed.snapshot(), now, max);
        let ended = self.exits.continue_batch(observed.snapshot(), now, max);
        let explaining = self.exits.explaining_drivers();
        self.exits.expire(observed.snapshot(), now.at, max);
        if was_recording && !self.exits.has_batch() {
            observed.exits_recorded(now.at);
        }
        Recorded { ended, explaining }
    }

    /// Records every exit, and returns those to report if this replica leads.
    pub(super) fn close(
        &mut self,
        observed: &mut Observation,
        leader_state: LeaderState,
        settings: Settings,
        now: Now,
    ) -> (Vec<Exit>, Recorded) {
        let mut recorded = self.record(observed, now, usize::MAX);
        observed.store.notify();
        self.begin_exits(observed, now);
        let last = self.record(observed, now, usize::MAX);
        recorded.ended.extend(last.ended);
        recorded.explaining.extend(last.explaining);
        self.exits.close(observed.snapshot(), now);
        let exits = match leader_state {
            LeaderState::Leader => self.exits.due_reports(leader_state, settings.takeover, now.at, usize::MAX),
            LeaderState::Follower | LeaderState::NoLeader => Vec::new(),
        };
        (exits, recorded)
    }

    /// When the next step has exits to record or to report.
    pub(super) fn next_due(&self, is_leader: bool, now: Instant) -> Option<Instant> {
        let leader_state = if is_leader { LeaderState::Leader } else { LeaderState::Follower };
        self.exits.is_busy(leader_state).then_some(now)
    }

    /// Which exits are reported, for the next leader; `None` before pods were listed.
    pub(super) fn checkpoint(&self, observed: &Observation, now: Now) -> Option<Checkpoint> {
        Some(self.exits.checkpoint(observed.progress.recorded()?, observed.oldest_unsure(), now))
    }

    /// Executors of an application did no work.
    pub(super) fn add_waste(&mut self, app: &AppKey, cause: WasteCause, amount: Amount) {
        self.costs.add(app, cause, amount);
        self.waste.push((app.clone(), cause, amount));
    }

    /// What was added to the costs since the last call.
    pub(super) fn take_waste(&mut self) -> Vec<(AppKey, WasteCause, Amount)> {
        std::mem::take(&mut self.waste)
    }

    /// A recovery rule deleted a pod.
    pub(super) fn recovered(&mut self, snapshot: &Snapshot, deleted: DeletedPod, now: Instant) {
        let known = snapshot.executor(deleted.app.namespace(), deleted.pod.name()).map(|(_, known)| known);
        let known = known.filter(|known| known.uid == deleted.uid && cost::holds_resources(known));
        if let Some(executor) = known {
            self.given_back.deleted(deleted.app.namespace(), deleted.rule, &executor.template.requests, now);
        }
        self.recovery.deleted(deleted);
    }

    /// The deletion of a pod of an application by a recovery rule ended.
    pub(super) fn deletion_ended(&mut self, app: &AppKey, attempt: &Attempt, now: Now) {
        self.recovery.ended(app, attempt, now.wall);
        if attempt.not_deleted.is_some() {
            self.exits.rule_deletes(&attempt.uid, None);
        }
    }

    /// A recovery rule deletes the pod of that uid. The exits of drivers are not tracked.
    pub(super) fn rule_deletes(&mut self, uid: &Arc<str>, rule: RecoveryRule) {
        if !matches!(rule, RecoveryRule::Hopeless | RecoveryRule::ZombieDriver) {
            self.exits.rule_deletes(uid, Some(rule.as_str()));
        }
    }
}
