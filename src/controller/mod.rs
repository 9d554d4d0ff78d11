//! The cluster-wide controller: it processes what watches, lookups and polls return, and returns what to do next.
//!
//! Pure: [`Controller`] owns the only mutable [`Snapshot`] and takes the time as an argument. The edge (`cluster::controller`)
//! passes events in and carries out the [`Effects`] of the next [`step`](Controller::step). Nothing in it is persistent: after a
//! restart it lists, reads and plans again.
//!
//! Its parts are separate types:
//!
//! | part | what it does |
//! |---|---|
//! | `inbox` | keeps watch events in order, and splits long lists into parts |
//! | [`queue`] | a work queue of applications with the semantics of client-go's |
//! | [`lookup`], `lookups` | which objects plans need that the watches do not cover, and when each is read again |
//! | `confirm` | confirms by a GET what a list lacks; decides whether the watch lost an event |
//! | `poll` | when the leader lists all labelled pods |
//! | `driver_polls` | when the leader polls each running driver for its view |
//! | `progress` | up to which resourceVersion the watch has shown pods, and exits are recorded |
//! | `tombstones` | what was deleted recently, so that late events do not bring it back |
//! | `resync` | enqueues all applications again, in parts |
//! | [`rate_limit`] | when actions may begin: batches, slots, backoff |
//!
//! * Whatever grows with the number of pods is done in parts, one per step, so that no step is long.
//! * An application is planned when it changed, and once a minute. A step plans a bounded number; the next step continues.
//! * Only the leader plans, and only after pods and namespaces were listed. PodGroups of a scheduler also wait for their own
//!   list: an empty snapshot is no reason to act.
//! * The [`Store`] passes changes on in batches. Every replica tracks exits ([`Exits`]); the leader reports them.
//! * An application is not planned while its earlier actions are in flight, nor before each object that its plan needs was
//!   read once, or three reads failed: a restart must not lower a gang's size.

mod answers;
pub mod backoff;
mod confirm;
mod driver_polls;
pub mod effects;
mod inbox;
mod intake;
pub mod lookup;
mod lookups;
mod nodes;
mod poll;
mod progress;
pub mod queue;
pub mod rate_limit;
mod resync;
mod tombstones;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use smol_str::SmolStr;

use crate::leader::LeaderState;
use crate::lifecycle::checkpoint::{self, Checkpoint};
use crate::lifecycle::exit::Exit;
use crate::lifecycle::exits::Exits;
use crate::nodes::NodeLedger;
use crate::policy::{DriverAccess, Policies, RecoveryRule};
use crate::reconcile::{Action, ApplicationState, plan};
use crate::recovery::RecoveryFindings;
use crate::recovery::budget::{Attempt, DeletionBudget};
use crate::recovery::cost::{self, Amount, CostLedger, GivenBack, WasteCause};
use crate::recovery::report::DeletedPod;
use crate::snapshot::{
    Absence, Change, Notify, ObservedPod, PodChange, RelatedChange, Replaced, Snapshot, Store, SubscriberId, may_exist,
};
use crate::spark::ids::{AppKey, PodKey, is_newer};
use crate::time::Now;
use confirm::{Confirmations, Confirmed};
use driver_polls::DriverPolls;
use inbox::{Inbox, MAX_OBJECTS_PER_STEP, PodList};
use lookups::Lookups;
use nodes::Nodes;
use poll::PollSchedule;
use progress::Progress;
use queue::WorkQueue;
use rate_limit::{Hold, RateLimit};
use resync::{MAX_ENQUEUED_PER_STEP, Resync};
use tombstones::Tombstones;

pub use confirm::PollResult;
pub use effects::{DriverAnswer, Effects, LookupResult, NodeReport, PollError, Settings};
pub use lookup::{Lookup, missing, required};
pub use rate_limit::ExecutorSetKey;

/// Minimum time between two batches of changed applications: a burst of pods is one plan.
const PLAN_INTERVAL: Duration = Duration::from_millis(250);
/// How often exits are processed (`spark.kubernetes.executor.eventProcessingInterval`).
const EXIT_INTERVAL: Duration = Duration::from_secs(1);
/// The first poll of a new leader begins within this time.
const FIRST_POLL: Duration = Duration::from_secs(30);
/// How often an unchanged application is planned again.
const RESYNC_INTERVAL: Duration = Duration::from_secs(60);
/// How often tombstones and unused interned values are dropped.
const PRUNE_INTERVAL: Duration = Duration::from_secs(15);
/// A step plans at most this many applications,
const MAX_APPS_PER_STEP: usize = 64;
/// and stops earlier after plans for this many executors.
const MAX_EXECUTORS_PER_STEP: usize = 2048;
/// A step records at most this many exits, and reports at most twice as many.
const MAX_EXITS_PER_STEP: usize = 128;

/// See the module's text.
#[derive(Debug)]
pub struct Controller {
    settings: Settings,
    store: Store,
    /// The store's subscribers: for plans, and for exits.
    plan_subscriber: SubscriberId,
    exit_subscriber: SubscriberId,
    inbox: Inbox,
    /// The list of pods that is being received.
    incoming_list: Option<PodList>,
    /// Changed applications that are not enqueued yet.
    changed_apps: Option<indexmap::set::IntoIter<AppKey>>,
    exits: Exits,
    confirmations: Confirmations,
    /// Applications whose lookups and plans are due.
    queue: WorkQueue<AppKey>,
    resync: Option<Resync>,
    polls: PollSchedule,
    newest_version: Option<SmolStr>,
    progress: Progress,
    lookups: Lookups,
    driver_polls: DriverPolls,
    states: BTreeMap<AppKey, ApplicationState>,
    deletion_budget: DeletionBudget,
    recovery: RecoveryFindings,
    costs: CostLedger,
    given_back: GivenBack,
    nodes: Nodes,
    /// What was added to the costs since the last step.
    waste: Vec<(AppKey, WasteCause, Amount)>,
    withheld: BTreeMap<RecoveryRule, u32>,
    rate_limit: RateLimit,
    synced: BTreeSet<&'static str>,
    is_leader: bool,
    /// Whether another replica has led since this one did.
    has_followed: bool,
    closed: bool,
    last_checkpoint: Option<Checkpoint>,
    /// A list of pods is complete, and its resourceVersion follows.
    list_completed: bool,
    next_prune: Instant,
    tombstones: Tombstones,
}

const PODS: &str = "pods";
const NAMESPACES: &str = "namespaces";
const NODES: &str = "nodes";

impl Controller {
    /// A controller without state.
    pub fn new(now: Instant, settings: Settings) -> Controller {
        let mut store = Store::default();
        let plans = store.subscribe(PLAN_INTERVAL, Notify::OnChange, now);
        let ends = store.subscribe(EXIT_INTERVAL, Notify::Always, now);
        Controller {
            settings,
            store,
            plan_subscriber: plans,
            exit_subscriber: ends,
            inbox: Inbox::default(),
            incoming_list: None,
            changed_apps: None,
            exits: Exits::new(settings.driver_exit_window, settings.contact_timeout),
            confirmations: Confirmations::new(settings.settle_time, settings.watch_silence),
            queue: WorkQueue::default(),
            resync: None,
            polls: PollSchedule::new(settings.seed),
            newest_version: None,
            progress: Progress::default(),
            lookups: Lookups::default(),
            driver_polls: DriverPolls::default(),
            states: BTreeMap::new(),
            deletion_budget: DeletionBudget::new(now),
            recovery: RecoveryFindings::default(),
            costs: CostLedger::default(),
            given_back: GivenBack::default(),
            nodes: Nodes::default(),
            waste: Vec::new(),
            withheld: BTreeMap::new(),
            rate_limit: RateLimit::default(),
            synced: BTreeSet::new(),
            is_leader: false,
            has_followed: true,
            closed: false,
            last_checkpoint: None,
            list_completed: false,
            next_prune: now + PRUNE_INTERVAL,
            tombstones: Tombstones::default(),
        }
    }

    /// The current snapshot.
    pub fn snapshot(&self) -> &Snapshot {
        self.store.snapshot()
    }

    /// What the recovery rules found, and which pods they deleted.
    pub fn recovery(&self) -> &RecoveryFindings {
        &self.recovery
    }

    /// The nodes on which executors failed.
    pub fn nodes(&self) -> &NodeLedger {
        &self.nodes.ledger
    }

    /// What executors cost that did no work.
    pub fn costs(&self) -> &CostLedger {
        &self.costs
    }

    /// A recovery rule deleted a pod.
    pub fn recovered(&mut self, deleted: DeletedPod, now: Instant) {
        let known = self.snapshot().executor(deleted.app.namespace(), deleted.pod.name()).map(|(_, known)| known);
        let known = known.filter(|known| known.uid == deleted.uid && cost::holds_resources(known));
        if let Some(requests) = known.map(|executor| executor.template.requests.clone()) {
            self.given_back.deleted(deleted.app.namespace(), deleted.rule, &requests, now);
        }
        self.recovery.deleted(deleted);
    }

    /// The deletion of a pod of an application by a recovery rule ended.
    pub fn deletion_ended(&mut self, app: &AppKey, attempt: &Attempt, now: Now) {
        self.deletion_budget.ended(app, attempt, now.at);
        self.recovery.ended(app, attempt, now.wall);
        if attempt.not_deleted.is_some() {
            self.exits.rule_deletes(&attempt.uid, None);
        }
    }

    /// The exits that are tracked.
    pub fn exits(&self) -> &Exits {
        &self.exits
    }

    /// The newest resourceVersion of any labelled pod that was observed: a list must not be older.
    pub fn newest_version(&self) -> Option<&str> {
        self.newest_version.as_deref()
    }

    /// Which exits are reported, for the next leader; `None` before pods were listed.
    pub fn checkpoint(&self, now: Now) -> Option<Checkpoint> {
        if self.closed {
            return self.last_checkpoint;
        }
        let unsure = self.confirmations.oldest_version().into_iter().chain(self.progress.oldest_confirmed()).min();
        Some(self.exits.checkpoint(self.progress.recorded()?, unsure, now))
    }

    fn observe_version(&mut self, seen: &ObservedPod) {
        let version = seen.version();
        if self.newest_version.as_ref().is_none_or(|newest| is_newer(version, newest)) {
            self.newest_version = Some(version.clone());
        }
    }

    fn watch_alive(&mut self, now: Instant) {
        if self.exits.outages.watch_alive(now) {
            self.requeue_all(); // An outage defers what was due during it.
        }
    }

    /// The API server answered a request of the leader election.
    pub fn contact(&mut self, at: Instant) {
        if self.exits.outages.contact(at) {
            self.requeue_all();
        }
    }

    /// This replica became leader, and found this checkpoint in the Lease.
    pub fn leadership_acquired(&mut self, found: checkpoint::FoundCheckpoint, now: Instant) {
        self.exits.leadership_acquired(found, now);
    }

    /// Stops tracking exits. Returns the last exits to report if this replica leads; the next leader continues from the
    /// checkpoint.
    pub fn close(&mut self, now: Now, leader_state: LeaderState) -> Vec<Exit> {
        self.record_exits(now, usize::MAX);
        self.store.notify();
        self.begin_exits(now);
        self.record_exits(now, usize::MAX);
        self.exits.close(self.store.snapshot(), now);
        let last = match leader_state {
            LeaderState::Leader => self.exits.due_reports(leader_state, self.settings.takeover, now.at, usize::MAX),
            LeaderState::Follower | LeaderState::NoLeader => Vec::new(),
        };
        // A replica that does not lead does not know what the others have reported, and leaves their checkpoint as it is. What
        // this replica learns from now on is not reported.
        self.last_checkpoint = self.checkpoint(now).filter(|_| leader_state == LeaderState::Leader);
        self.closed = true;
        last
    }

    /// Applies a change to the snapshot.
    fn apply_change(&mut self, mut change: Change, now: Now) {
        let mut driver_gone = None;
        match &mut change {
            // Stale events.
            Change::Pods(PodChange::Observed(seen)) if self.tombstones.is_stale(seen.uid(), seen.version()) => return,
            Change::Pods(PodChange::Deleted(seen)) if self.is_tombstoned(seen.uid()) => {
                return self.tombstones.deliver(seen.uid());
            }
            Change::Pods(PodChange::Observed(seen)) => {
                seen.observed_at(now.at);
                self.observe_version(seen);
            }
            // Plans wait for the list of namespaces.
            Change::Related(RelatedChange::Replaced(Replaced::Namespaces(_))) if self.synced.insert(NAMESPACES) => {
                self.requeue_all()
            }
            Change::Related(RelatedChange::Replaced(Replaced::Nodes(_))) => {
                self.synced.insert(NODES);
            }
            Change::Pods(PodChange::Gone(pod, uid)) => {
                // It left the watch before, and the snapshot, and waits for this proof.
                if let Some(removed) = self.confirmations.proven_gone(pod, uid) {
                    self.apply_confirmed(Confirmed::Gone(removed), now);
                }
                self.tombstones.add(uid);
                driver_gone = self.labelled_driver(pod, uid);
            }
            Change::Pods(PodChange::Deleted(seen)) => {
                seen.observed_at(now.at);
                self.observe_version(seen);
                match seen {
                    ObservedPod::Executor(_, executor) if may_exist(executor) => {}
                    _ => self.tombstones.add(seen.uid()),
                }
                driver_gone = self.labelled_driver(&seen.key(), seen.uid());
            }
            Change::Related(RelatedChange::GroupGone(key)) => {
                if let Some(uid) = self.snapshot().groups.get(key).map(|group| group.uid.clone()) {
                    self.tombstones.add(&uid);
                }
            }
            Change::Related(RelatedChange::GroupsListed(kind)) if !self.snapshot().listed.contains(kind) => {
                self.requeue_all(); // Gangs wait for this list, and an empty one changes no application.
            }
            Change::Related(RelatedChange::Apis(apis)) => {
                // The list of an API that is no longer served, or is served in another version, is void.
                let changed = |kind: &&'static str| {
                    let had = self.store.snapshot().apis.as_ref().and_then(|had| had.get(kind));
                    had.is_some() && had != apis.get(kind)
                };
                let kinds: Vec<&'static str> = self.snapshot().listed.iter().copied().filter(changed).collect();
                for kind in kinds {
                    self.store.apply(Change::Related(RelatedChange::Unlisted(kind)), now.wall);
                }
            }
            _ => {}
        }
        for removed in self.store.apply(change, now.wall) {
            self.tombstones.add_unselected(&removed.executor.uid, removed.executor.version.clone());
            // The deletion of an exited executor needs no confirmation; a live one may still exist.
            if removed.executor.state.is_final() {
                self.store.executor_removed(removed);
            } else if removed.absence == Absence::Unselected && self.confirmations.is_full() {
                // Without a deletionTimestamp only a label was removed, and the executor is alive: if very many are relabelled,
                // not each is confirmed with a GET.
            } else if let Some(before) = self.confirmations.confirm_absence(removed, now.at) {
                self.apply_confirmed(Confirmed::Gone(before), now);
            }
        }
        // The snapshot records the deletion of the driver, and follows the pod by name from now on.
        if let Some((app, pod, uid)) = driver_gone.filter(|(_, pod, _)| self.snapshot().referenced.contains_key(pod)) {
            self.lookups.mark_known(Lookup::Pod(pod), uid, std::slice::from_ref(&app), now.at);
        }
    }

    /// The application of the labelled driver of that uid, if it still has executors.
    fn labelled_driver(&self, pod: &PodKey, uid: &Arc<str>) -> Option<(AppKey, PodKey, Arc<str>)> {
        let (key, _) =
            self.snapshot().labelled_driver(pod.namespace(), pod.name()).filter(|(_, driver)| driver.uid == *uid)?;
        let app = self.snapshot().apps.get(key)?;
        (!app.executors().is_empty()).then(|| (key.clone(), pod.clone(), uid.clone()))
    }

    /// Whether the object of this uid was deleted recently.
    fn is_tombstoned(&self, uid: &str) -> bool {
        self.tombstones.contains(uid)
    }

    /// Applies the object in the answer to a write or a read, so that the next plan need not wait for the watch, unless the watch
    /// has shown a newer version. Versions of one object grow as numbers.
    pub fn apply_written(&mut self, change: Change, now: Now) {
        let is_new = match &change {
            Change::Related(RelatedChange::Group(key, group)) => match self.snapshot().groups.get(key) {
                Some(known) if known.uid == group.uid => is_newer(&group.version, &known.version),
                _ => !self.is_tombstoned(&group.uid),
            },
            // A list that is not older lacks the pod: it is deleted, and its late answer must not bring it back.
            Change::Pods(PodChange::Observed(seen)) => {
                let key = seen.key();
                let is_known = self.snapshot().labelled(key.namespace(), key.name()).is_some();
                is_known || !self.confirmations.list_covers(seen.version())
            }
            _ => true,
        };
        if is_new {
            self.apply_change(change, now);
        }
    }

    /// Whether pods and namespaces were listed. PodGroups also wait for API discovery and for their own list.
    pub fn has_synced(&self) -> bool {
        self.synced.contains(PODS) && self.synced.contains(NAMESPACES)
    }

    /// Whether nodes were listed, or need not be: [`nodes.enabled`](crate::policy::NodeSettings::enabled) is off.
    pub fn has_nodes(&self) -> bool {
        self.synced.contains(NODES)
    }

    /// Enqueues every application: the policies changed, or something else that every plan depends on.
    pub fn requeue_all(&mut self) {
        self.resync = Some(Resync::default());
    }

    /// Processes what is due, as much as one step may, and returns what the edge has to do.
    pub fn step(&mut self, now: Now, policies: &Policies, leader_state: LeaderState) -> Effects {
        let leading = leader_state == LeaderState::Leader;
        if leading && !self.is_leader {
            self.requeue_all();
            self.polls.schedule(policies.lifecycle.poll.min(FIRST_POLL), now.at);
            self.deletion_budget.leads_since(now.at);
            // A leader that could not renew its Lease in time for a while, and whose place no other replica took, goes on counting.
            if std::mem::take(&mut self.has_followed) {
                self.costs = CostLedger::since(now.wall);
                self.given_back = GivenBack::default();
                self.nodes.forget_reports();
            }
        }
        self.has_followed |= leader_state == LeaderState::Follower;
        if self.is_leader && !leading {
            self.lookups.forget_addresses();
        }
        self.is_leader = leading;
        let mut effects = Effects::default();
        self.inbox.begin_step();
        if self.next_prune <= now.at {
            self.next_prune = now.at + PRUNE_INTERVAL;
            // The list of a poll that is in flight, or is being compared, may contain pods that were deleted since.
            if !self.polls.is_in_flight() && !self.confirmations.is_comparing() {
                self.tombstones.prune(now.at);
            }
            self.store.prune_unused();
            self.nodes.expire(self.store.snapshot(), &policies.nodes, now.at);
            self.deletion_budget.prune(&policies.recovery, now.at);
            for (namespace, rule, amount) in self.given_back.count(now.at) {
                self.costs.add_given_back(&namespace, rule, amount);
                effects.given_back.push((namespace, rule, amount));
            }
        }
        self.rate_limit.prune(now.at, MAX_OBJECTS_PER_STEP);
        if !self.inbox.is_empty() {
            self.process_inbox(now);
        }
        if self.confirmations.has_proven() {
            self.apply_proven(now);
        }
        if self.confirmations.is_comparing() {
            self.continue_comparison();
        }
        self.enqueue_changed(now.at);
        if !self.closed {
            self.begin_exits(now);
            self.record_exits(now, MAX_EXITS_PER_STEP);
            self.nodes.record(&self.exits, self.store.snapshot(), &policies.nodes, now);
            // The most that a step records, plus the most that it decides.
            effects.exits =
                self.exits.due_reports(leader_state, self.settings.takeover, now.at, 2 * MAX_EXITS_PER_STEP);
            for exit in effects.exits.iter().filter(|exit| leading && !exit.possibly_reported) {
                if let Some(amount) = cost::of_exit(exit) {
                    self.costs.add(&exit.app, WasteCause::Refused, amount);
                    self.waste.push((exit.app.clone(), WasteCause::Refused, amount));
                }
            }
        }
        if !leading {
            self.rate_limit.clear_planned();
            self.states.clear();
            self.lookups.release_all();
            self.polls.stop();
            self.recovery.clear_findings();
        }
        if !leading || policies.recovery.driver_view.access == DriverAccess::None {
            let drivers = self.driver_polls.clear();
            self.forget_views(drivers, now);
        }
        if self.inbox.is_empty() {
            if let Some(walk) = &mut self.resync
                && walk.enqueue_next(self.store.snapshot(), &mut self.queue)
            {
                self.resync = None;
            }
            effects.plans = self.process_queue(now, policies);
        }
        effects.suspects_changed = self.nodes.is_changed();
        if let Some(avoided) = self.nodes.newly_avoided(self.store.snapshot(), &policies.nodes) {
            self.apply_change(Change::Related(RelatedChange::AvoidedNodes(avoided)), now);
        }
        self.due_lookups(now.at, &mut effects);
        if !self.closed {
            effects.driver_polls = self.driver_polls.due(now.at);
        }
        if leading && self.has_synced() {
            effects.actions = self.rate_limit.start_ready();
            effects.node_reports = self.nodes.reports(self.store.snapshot(), &policies.nodes, now.at);
            let budget = &mut self.deletion_budget;
            for (set, actions) in &mut effects.actions {
                actions.retain(|action| match action {
                    Action::Recover(of) => budget.begin(&policies.recovery, (&set.app, of.rule), &of.seen.uid, now.at),
                    _ => true,
                });
                for action in actions {
                    if let Action::Recover(of) = action
                        && !matches!(of.rule, RecoveryRule::Hopeless | RecoveryRule::ZombieDriver)
                    {
                        self.exits.rule_deletes(&of.seen.uid, Some(of.rule.as_str()));
                    }
                }
            }
            effects.poll = self.polls.begin(now.at);
        }
        effects.waste = std::mem::take(&mut self.waste);
        effects.withheld = std::mem::take(&mut self.withheld);
        effects.restart_watch = self.confirmations.restart_watch(now.at);
        effects.wake_at = self.wake_at(now.at);
        effects
    }

    /// Plans applications from the queue, as many as one step may. Returns how many.
    fn process_queue(&mut self, now: Now, policies: &Policies) -> usize {
        let (mut executors, mut plans) = (0, 0);
        for _ in 0..MAX_APPS_PER_STEP {
            if executors >= MAX_EXECUTORS_PER_STEP {
                break;
            }
            let Some(app) = self.queue.get(now.at) else { break };
            let (known, state) = (self.snapshot().apps.get(&app).cloned(), self.states.get(&app));
            executors += known.as_ref().map_or(0, |known| known.visits_per_plan());
            let sets = state.into_iter().flat_map(|state| state.sets.values());
            let learned = sets.filter_map(|set| Some(set.driver.as_ref()?.pod.key.clone())).collect();
            self.require_lookups((&app, known.as_deref()), learned, policies, now);
            let of = (&app, known.as_deref());
            let (examined, rest) = self.nodes.observe(of, self.store.snapshot(), &policies.nodes, now);
            executors += examined;
            if let Some(at) = rest {
                self.queue.add_after(app.clone(), at);
            }
            let is_known = known.is_some();
            drop(known); // A shared application would be copied when it changes.
            if self.is_leader
                && self.has_synced()
                && let Some(visited) = self.plan_application(&app, is_known, now, policies)
            {
                plans += 1;
                executors += visited;
            }
            self.queue.done(&app);
        }
        plans
    }

    /// Plans an application, unless that has to wait. Returns how many executors a round of the recovery rules visited if it did.
    fn plan_application(&mut self, app: &AppKey, is_known: bool, now: Now, policies: &Policies) -> Option<usize> {
        match self.rate_limit.hold(app, now.at, self.store.snapshot()) {
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
        let mut plan = plan(self.store.snapshot(), app, now, policies, state, &self.exits, budget);
        let is_left = is_known || !state.is_empty() || !plan.sets.is_empty();
        if state.is_empty() {
            self.states.remove(app);
            self.recovery.forget(app);
        }
        let (later, visited) = (plan.requeue_at, plan.visited);
        let left = self.driver_polls.require(app, std::mem::take(&mut plan.drivers), now.at);
        self.forget_views(left, now);
        if let Some(found) = plan.recovery.take() {
            self.recovery.found(app, found);
        }
        for (cause, amount) in std::mem::take(&mut plan.waste) {
            self.costs.add(app, cause, amount);
            self.waste.push((app.clone(), cause, amount));
        }
        for (rule, count) in std::mem::take(&mut plan.withheld) {
            *self.withheld.entry(rule).or_default() += count;
        }
        let paused = self.rate_limit.submit(app, plan, now.at);
        let resync = is_left.then(|| now.at + RESYNC_INTERVAL);
        if let Some(at) = later.into_iter().chain(paused).chain(resync).min() {
            self.queue.add_after(app.clone(), at);
        }
        Some(visited)
    }

    /// Enqueues applications that changed.
    fn enqueue_changed(&mut self, now: Instant) {
        if self.changed_apps.is_none() {
            self.changed_apps = self.store.take(self.plan_subscriber, now).map(|batch| batch.touched.into_iter());
        }
        if let Some(touched) = &mut self.changed_apps {
            touched.by_ref().take(MAX_ENQUEUED_PER_STEP).for_each(|app| self.queue.add(app));
            if touched.len() == 0 {
                self.changed_apps = None;
                self.store.done(self.plan_subscriber, now);
            }
        }
    }

    /// Begins the next batch of exits when the previous one is recorded, and only after a complete list: the rest of a list may
    /// contain the pods of their drivers.
    fn begin_exits(&mut self, now: Now) {
        if self.synced.contains(PODS)
            && let Some(batch) = self.store.take(self.exit_subscriber, now.at)
        {
            self.exits.set_position(self.progress.begin(), now.at);
            self.exits.begin_batch(batch);
        }
    }

    /// Notes exits, decides the causes of those that waited for their driver, and forgets expired ones.
    fn record_exits(&mut self, now: Now, most: usize) {
        let was_recording = self.exits.has_batch();
        self.exits.decide(self.store.snapshot(), now, most);
        let ended = self.exits.continue_batch(self.store.snapshot(), now, most);
        // A burst of exits is one plan, too.
        ended.into_iter().for_each(|app| self.queue.add_after(app, now.at + PLAN_INTERVAL));
        for driver in self.exits.explaining_drivers() {
            self.lookups.refresh(Lookup::Pod(driver), now.at);
        }
        self.exits.expire(self.store.snapshot(), now.at, most);
        if was_recording && !self.exits.has_batch() {
            self.progress.end();
            self.store.done(self.exit_subscriber, now.at);
        }
    }

    /// Whether work that is done in parts is left for the next step.
    fn has_pending_parts(&self) -> bool {
        let leader_state = if self.is_leader { LeaderState::Leader } else { LeaderState::Follower };
        !self.inbox.is_empty()
            || self.changed_apps.is_some()
            || self.confirmations.has_proven()
            || self.confirmations.is_comparing()
            || self.exits.is_busy(leader_state)
    }

    /// Actions for a creator's executors finished, or some of them failed. Either way the next plan finds what is still missing.
    pub fn actions_finished(&mut self, set: &ExecutorSetKey, failed: bool, wrote: bool, now: Instant) {
        if let Some(at) = self.rate_limit.finished(set, failed, wrote, now) {
            self.queue.add_after(set.app.clone(), at);
        }
    }

    fn wake_at(&self, now: Instant) -> Option<Instant> {
        if self.closed {
            return Some(now + EXIT_INTERVAL);
        }
        let plans = self.is_leader && self.has_synced();
        let poll = self.polls.next().filter(|_| plans);
        let walk = (self.resync.is_some() || self.has_pending_parts()).then_some(now);
        let reads = self.lookups.next_due(now).into_iter().chain(self.confirmations.next_due(now));
        let reads = reads.chain(self.driver_polls.next_due(now));
        let ends = self.store.next_of(self.exit_subscriber, now).filter(|_| self.synced.contains(PODS));
        let subscribers = self.store.next_of(self.plan_subscriber, now).into_iter().chain(ends);
        let work = self.queue.next(now).into_iter().chain(walk).chain(poll).chain(subscribers);
        reads.chain(work).chain([self.next_prune]).min()
    }
}
