//! The cluster-wide controller: it processes what watches, lookups and polls return, and returns what to do next.
//!
//! Pure: [`Controller`] owns the only mutable [`Snapshot`] and takes the time as an argument. The edge (`cluster::event_loop`)
//! passes events in and carries out the [`Effects`] of the next [`step`](Controller::step). Nothing in it is persistent: after a
//! restart it lists, reads and plans again.
//!
//! It has three parts, each with its own step. [`Controller::step`] is the order of the steps, and the controller wakes when the first
//! of them has work:
//!
//! | part | what it holds |
//! |---|---|
//! | `observation` | what was observed: the store, and below it |
//! | | `inbox`: watch events in order; splits long lists into parts (`intake` processes them) |
//! | | `confirm`: confirms by a GET what a list lacks; decides whether the watch lost an event |
//! | | `poll`: when the leader lists all labelled pods |
//! | | `progress`: up to which resourceVersion the watch has shown pods, and exits are recorded |
//! | | `tombstones`: what was deleted recently, so that late events do not bring it back |
//! | `planner` | what is planned: the states of applications, the budget of deletions, and below it |
//! | | [`queue`]: a work queue of applications with the semantics of client-go's; `resync` enqueues all of them again, in parts |
//! | | [`lookup`], `lookup_schedule`: which objects plans need that the watches do not cover, and when each is read again |
//! | | `driver_poll_schedule`: when the leader polls each running driver for its view |
//! | | [`rate_limit`]: when actions may begin: batches, slots, backoff |
//! | `ledgers` | what is kept: exits, `nodes` that break executors, costs, findings |
//!
//! * Whatever grows with the number of pods is done in parts, one per step, so that no step is long.
//! * An application is planned when it changed, and once a minute. A step plans a bounded number; the next step continues.
//! * Only the leader plans, and only after pods and namespaces were listed. PodGroups of a scheduler also wait for their own
//!   list: an empty snapshot is no reason to act.
//! * The [`Store`](crate::snapshot::Store) passes changes on in batches. Every replica tracks exits ([`Exits`]); the leader reports them.
//! * An application is not planned while its earlier actions are in flight, nor before each object that its plan needs was
//!   read once, or three reads failed: a restart must not lower a gang's size.

pub mod backoff;
mod confirm;
mod driver_poll_schedule;
pub mod effects;
mod inbox;
mod intake;
mod ledgers;
pub mod lookup;
mod lookup_schedule;
mod nodes;
mod observation;
mod planner;
mod poll_schedule;
mod progress;
pub mod queue;
pub mod rate_limit;
mod resync;
mod tombstones;

use std::collections::HashSet;
use std::time::{Duration, Instant};

use crate::leader::LeaderState;
use crate::lifecycle::checkpoint::{self, Checkpoint};
use crate::lifecycle::exit::Exit;
use crate::lifecycle::exits::Exits;
use crate::nodes::NodeLedger;
use crate::policy::Policies;
use crate::recovery::RecoveryFindings;
use crate::recovery::budget::Attempt;
use crate::recovery::cost::CostLedger;
use crate::recovery::report::DeletedPod;
use crate::snapshot::{Change, Cursor, DriverViewKey, ObservedPod, PodChange, RelatedChange, Snapshot, Watched};
use effects::StepContext;
use inbox::{GroupList, Incoming};
use ledgers::Ledgers;
use observation::{EXIT_INTERVAL, Observation};
use planner::Planner;
use usher_spark::ids::AppKey;
use usher_spark::time::Now;

pub use confirm::PollResult;
pub use effects::{DriverAnswer, Effects, LookupResult, NodeReport, PollError, Settings};
pub use lookup::{Lookup, missing, required};
pub use rate_limit::ExecutorSetKey;

/// The first poll of a new leader begins within this time.
const FIRST_POLL: Duration = Duration::from_secs(30);
/// How often tombstones and unused interned values are dropped.
const PRUNE_INTERVAL: Duration = Duration::from_secs(15);

/// See the module's text.
#[derive(Debug)]
pub struct Controller {
    settings: Settings,
    observed: Observation,
    planner: Planner,
    ledgers: Ledgers,
    is_leader: bool,
    /// The checkpoint that the closing left, once exits are no longer tracked.
    closed: Option<Option<Checkpoint>>,
    next_prune: Instant,
}

impl Controller {
    /// A controller without state.
    pub fn new(now: Instant, settings: Settings) -> Controller {
        Controller {
            settings,
            observed: Observation::new(now, settings),
            planner: Planner::new(now),
            ledgers: Ledgers::new(settings),
            is_leader: false,
            closed: None,
            next_prune: now + PRUNE_INTERVAL,
        }
    }

    /// The current snapshot.
    pub fn snapshot(&self) -> &Snapshot {
        self.observed.snapshot()
    }

    /// What the recovery rules found, and which pods they deleted.
    pub fn recovery(&self) -> &RecoveryFindings {
        &self.ledgers.recovery
    }

    /// The nodes on which executors failed.
    pub fn nodes(&self) -> &NodeLedger {
        &self.ledgers.nodes.ledger
    }

    /// What executors cost that did no work.
    pub fn costs(&self) -> &CostLedger {
        &self.ledgers.costs
    }

    /// The exits that are tracked.
    pub fn exits(&self) -> &Exits {
        &self.ledgers.exits
    }

    /// The newest resourceVersion of any labelled pod that was observed: a list must not be older.
    pub fn newest_version(&self) -> Option<&str> {
        self.observed.newest_version.as_deref()
    }

    /// Whether pods and namespaces were listed. PodGroups also wait for API discovery and for their own list.
    pub fn has_synced(&self) -> bool {
        self.observed.has_synced()
    }

    /// Whether nodes were listed, or need not be: [`nodes.enabled`](crate::policy::NodeSettings::enabled) is off.
    pub fn has_nodes(&self) -> bool {
        self.observed.has_nodes()
    }

    /// Whether too many events wait to receive more.
    pub fn is_behind(&self) -> bool {
        self.observed.inbox.is_behind()
    }

    /// Which exits are reported, for the next leader; `None` before pods were listed.
    pub fn checkpoint(&self, now: Now) -> Option<Checkpoint> {
        self.closed.unwrap_or_else(|| self.ledgers.checkpoint(&self.observed, now))
    }

    /// Receives a change from a watch.
    pub fn watch_event(&mut self, change: impl Into<Change>, now: Now) {
        let incoming = match change.into() {
            Change::Pods(PodChange::Listed(all)) => {
                self.list_started(now);
                self.list_page(all, now);
                return self.list_finished(now);
            }
            Change::Related(RelatedChange::Groups(scheduler, Watched::Listed(all))) => {
                Incoming::Groups(GroupList { scheduler, rest: all.into_iter(), listed: HashSet::new(), last: None })
            }
            other => Incoming::Change(other),
        };
        self.receive(incoming, now);
    }

    /// The watch, or a list, has shown a pod that cannot be parsed.
    pub fn unreadable_pod(&mut self, uid: &str, now: Now) {
        self.receive(Incoming::Unreadable(uid.into()), now);
    }

    /// A list of all labelled pods begins. It replaces an incomplete one.
    pub fn list_started(&mut self, now: Now) {
        self.receive(Incoming::ListStarted(now), now);
    }

    /// Receives a part of the list.
    pub fn list_page(&mut self, pods: Vec<ObservedPod>, now: Now) {
        self.receive(Incoming::ListPage(pods.into_iter()), now);
    }

    /// The list is complete; [`Controller::bookmark`] passes its resourceVersion.
    pub fn list_finished(&mut self, now: Now) {
        self.receive(Incoming::ListFinished(Cursor::default()), now);
    }

    /// The watch of pods has shown everything up to this resourceVersion: a list is complete, or a bookmark was received.
    pub fn bookmark(&mut self, version: &str, now: Now) {
        self.receive(Incoming::Bookmark(version.to_owned()), now);
    }

    /// The watch of pods is interrupted.
    pub fn watch_interrupted(&mut self, now: Instant) {
        self.ledgers.exits.outages.interrupted(now);
        self.observed.watch_interrupted(now);
    }

    fn receive(&mut self, incoming: Incoming, now: Now) {
        self.observed.receive(incoming, &mut self.ledgers.exits, now);
        self.learn(now.at);
    }

    /// The planner takes up what was observed.
    fn learn(&mut self, now: Instant) {
        self.planner.learn(std::mem::take(&mut self.observed.news), now);
    }

    /// Applies the object in the answer to a write or a read, so that the next plan need not wait for the watch.
    pub fn apply_written(&mut self, change: impl Into<Change>, now: Now) {
        self.observed.apply_written(change, now);
        self.learn(now.at);
    }

    /// Processes a poll's result; `None` if the poll failed. A poll that began before the Lease was lost for a moment counts.
    pub fn poll_finished(&mut self, polled: Option<PollResult>, now: Now, policies: &Policies) {
        let interval = policies.lifecycle.poll;
        self.observed.polls.ended();
        if self.is_leader {
            let next = if polled.is_some() { interval } else { interval.min(FIRST_POLL) };
            self.observed.polls.schedule(next, now.at);
        }
        if let Some(polled) = polled.filter(|_| self.has_synced()) {
            self.observed.polled(polled, interval, &mut self.ledgers.exits, now);
        }
    }

    /// Processes the answer to a lookup.
    pub fn lookup_answered(&mut self, read: &Lookup, answer: LookupResult, now: Now) {
        match read {
            Lookup::Labelled(pod) => self.observed.confirmation_answered(pod, answer, now),
            Lookup::All(namespace) => self.observed.namespace_listed(namespace, &answer, now),
            Lookup::NodePods(node) => self.ledgers.nodes.schedulers_read(node, answer),
            _ => self.planner.lookup_answered(read, answer, &mut self.observed, now),
        }
        self.learn(now.at);
    }

    /// Processes a driver's answer to a poll for its view. Returns the outcome: there may be no memory for a view.
    pub fn driver_answered(
        &mut self,
        key: &DriverViewKey,
        answer: DriverAnswer,
        now: Now,
        policies: &Policies,
    ) -> Result<(), PollError> {
        self.planner.driver_answered(key, answer, &mut self.observed, policies, now)
    }

    /// Actions for a creator's executors finished, or some of them failed. Either way the next plan finds what is still missing.
    pub fn actions_finished(&mut self, set: &ExecutorSetKey, failed: bool, wrote: bool, now: Instant) {
        self.planner.actions_finished(set, failed, wrote, now);
    }

    /// A recovery rule deleted a pod.
    pub fn recovered(&mut self, deleted: DeletedPod, now: Instant) {
        self.ledgers.recovered(self.observed.snapshot(), deleted, now);
    }

    /// The deletion of a pod of an application by a recovery rule ended.
    pub fn deletion_ended(&mut self, app: &AppKey, attempt: &Attempt, now: Now) {
        self.planner.deletion_ended(app, attempt, now.at);
        self.ledgers.deletion_ended(app, attempt, now);
    }

    /// The API server answered a request of the leader election.
    pub fn contact(&mut self, at: Instant) {
        if self.ledgers.exits.outages.contact(at) {
            self.requeue_all(); // An outage defers what was due during it.
        }
    }

    /// This replica became leader, and found this checkpoint in the Lease.
    pub fn leadership_acquired(&mut self, found: checkpoint::FoundCheckpoint, now: Instant) {
        self.ledgers.exits.leadership_acquired(found, now);
    }

    /// Enqueues every application: the policies changed, or something else that every plan depends on.
    pub fn requeue_all(&mut self) {
        self.planner.requeue_all();
    }

    /// Stops tracking exits. Returns the last exits to report if this replica leads; the next leader continues from the
    /// checkpoint.
    pub fn close(&mut self, now: Now, leader_state: LeaderState) -> Vec<Exit> {
        let (last, recorded) = self.ledgers.close(&mut self.observed, leader_state, self.settings, now);
        self.planner.ended(recorded, now.at);
        // A replica that does not lead does not know what the others have reported, and leaves their checkpoint as it is. What
        // this replica learns from now on is not reported.
        self.closed = Some(self.checkpoint(now).filter(|_| leader_state == LeaderState::Leader));
        last
    }

    /// Processes what is due, as much as one step may, and returns what the edge has to do.
    pub fn step(&mut self, now: Now, policies: &Policies, leader_state: LeaderState) -> Effects {
        let context = StepContext { settings: self.settings, policies, leader_state, now };
        let mut effects = Effects::default();
        self.note_leadership(context);
        self.observed.inbox.begin_step();
        if self.next_prune <= now.at {
            self.prune(policies, now, &mut effects);
        }
        self.observed.step(&mut self.ledgers.exits, now);
        self.learn(now.at);
        self.planner.enqueue_changed(&mut self.observed, now.at);
        if self.closed.is_none() {
            let recorded = self.ledgers.step(&mut self.observed, context, &mut effects);
            self.planner.ended(recorded, now.at);
        }
        effects.plans = self.planner.step(&mut self.observed, &mut self.ledgers, context);
        effects.suspects_changed = self.ledgers.nodes.is_changed();
        if let Some(avoided) = self.ledgers.nodes.newly_avoided(self.observed.snapshot(), &policies.nodes) {
            self.observed.apply_change(RelatedChange::AvoidedNodes(avoided), now);
        }
        self.planner.due_reads(self.closed.is_some(), now.at, &mut effects);
        effects.lookups.extend(self.observed.due_reads(now.at));
        effects.lookups.extend(self.ledgers.nodes.due_reads(now.at).into_iter().map(Lookup::NodePods));
        if self.acts() {
            effects.actions = self.planner.start_actions(&mut self.ledgers, policies, now.at);
            effects.node_reports = self.ledgers.nodes.reports(self.observed.snapshot(), &policies.nodes, now.at);
            effects.poll = self.observed.polls.begin(now.at);
        }
        effects.waste = self.ledgers.take_waste();
        effects.withheld = self.planner.take_withheld();
        effects.restart_watch = self.observed.confirmations.restart_watch(now.at);
        effects.wake_at = self.wake_at(now.at);
        effects
    }

    /// Whether this replica leads, and has listed what plans need.
    fn acts(&self) -> bool {
        self.is_leader && self.has_synced()
    }

    /// Notes whether this replica leads: what only a leader keeps begins and ends with that.
    fn note_leadership(&mut self, context: StepContext<'_>) {
        let (leads, now) = (context.leads(), context.now);
        if leads && !self.is_leader {
            self.planner.begin_leading(now.at);
            self.observed.polls.schedule(context.policies.lifecycle.poll.min(FIRST_POLL), now.at);
            self.ledgers.begin_leading(now);
        }
        if context.leader_state == LeaderState::Follower {
            self.ledgers.follow();
        }
        if self.is_leader && !leads {
            self.planner.end_leading();
        }
        if !leads {
            self.observed.polls.stop();
            self.ledgers.recovery.clear_findings();
        }
        self.is_leader = leads;
    }

    /// Drops what no longer matters, until the next time after [`PRUNE_INTERVAL`].
    fn prune(&mut self, policies: &Policies, now: Now, effects: &mut Effects) {
        self.next_prune = now.at + PRUNE_INTERVAL;
        self.observed.prune(now.at);
        self.ledgers.prune(self.observed.snapshot(), policies, now.at, effects);
        self.planner.prune(policies, now.at);
    }

    fn wake_at(&self, now: Instant) -> Option<Instant> {
        if self.closed.is_some() {
            return Some(now + EXIT_INTERVAL);
        }
        let parts = [
            self.observed.next_due(self.acts(), now),
            self.planner.next_due(now),
            self.ledgers.next_due(self.is_leader, now),
        ];
        parts.into_iter().flatten().chain([self.next_prune]).min()
    }
}
