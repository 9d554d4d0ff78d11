//! The controller's task: processes watch events and lookups, publishes the snapshot, and executes the leader's plans.
//!
//! One task owns the [`Controller`], and with it the snapshot; reads and writes run concurrently within that task. When the
//! Lease is lost, writes in flight are cancelled.

use std::future::{Future, pending};
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use futures::FutureExt;
use futures::stream::{FuturesUnordered, StreamExt};
use tokio::sync::{mpsc, watch as channel};
use tokio_util::sync::CancellationToken;

use super::apply::{Applied, Writer};
use super::driver_api::DriverApi;
use super::lease::{Election, Leadership, LeadershipReceiver, Reported};
use super::metrics::Metrics;
use super::signing::{self, Outputs, Signing};
use super::vouching::Account;
use super::watch::{self, Groups, Sink, WatchMessage};
use super::{discovery, lookup_reads, pod_poll, report};
use usher_core::controller::{Controller, DriverAnswer, ExecutorSetKey, Lookup, LookupResult, PollResult, Settings};
use usher_core::event_aggregator::{AggregatedEvent, EventAggregator};
use usher_core::gang;
use usher_core::leader::LeaderState;
use usher_core::lifecycle::Exit;
use usher_core::policy::{DriverAccess, Policies, RecoveryRule};
use usher_core::snapshot::{
    Change, DriverViewKey, ObservedPod, PodChange, RelatedChange, ServedApis, Snapshot, Watched,
};
use usher_kube::client::Cluster;
use usher_kube::limit::{Limiter, Priority, Rate};
use usher_net::telemetry::registry::to_gauge;
use usher_report::views::History;
use usher_runtime::clock;
use usher_runtime::ready::Latch;
use usher_runtime::supervise::Supervisor;
use usher_spark::state::ExecutorPodState;
use usher_spark::time::Now;

/// At most this many changes are queued: a watch that is faster waits, and the API server's buffer with it.
const QUEUE: usize = 4096;
/// At most this many changes are processed per step, before other inputs.
const MAX_CHANGES_PER_STEP: usize = 128;

/// The configuration of a replica.
pub struct ReplicaConfig {
    pub cluster: Cluster,
    /// The leader election.
    pub election: Election,
    pub policies: Arc<ArcSwap<Policies>>,
    /// A new value whenever the policies change: whether nothing may be written.
    pub dry_run: channel::Receiver<bool>,
    /// How decisions are signed, and the latch that waits for the key; without it nothing is signed.
    pub signing: Option<(Signing, Latch)>,
    /// Our own user name, once it is known.
    pub account: Account,
    /// The rate limit of the controller's requests.
    pub rate: Rate,
    /// How drivers are polled.
    pub driver_api: DriverApi,
    /// A watch of pods that is silent for this long is dead, if a poll shows that something changed.
    pub watch_silence: Duration,
    /// Cancelled when the replica is about to stop: it reports pending exits before it releases the Lease.
    pub shutdown: CancellationToken,
    /// Counters.
    pub metrics: Arc<Metrics>,
}

/// What a replica publishes.
#[derive(Debug)]
pub struct Published {
    /// The snapshot of the cluster.
    pub snapshot: Arc<ArcSwap<Snapshot>>,
    /// The last exits, and what the recovery found and did.
    pub history: Arc<ArcSwap<History>>,
    /// Set once the first full snapshot is complete.
    pub complete: channel::Sender<bool>,
}

/// The inputs and outputs of the controller's task.
pub struct Inputs {
    /// The configuration.
    pub config: ReplicaConfig,
    /// What it publishes.
    pub published: Published,
    /// This replica's leadership.
    pub leadership: LeadershipReceiver,
    /// When the API server last answered the election.
    pub contact: channel::Receiver<Option<Instant>>,
    /// What we have reported, for the Lease.
    pub reported: channel::Sender<Reported>,
    /// The controller's settings.
    pub settings: Settings,
}

/// Starts the watches and the controller.
pub fn spawn(inputs: Inputs, supervisor: &mut Supervisor) {
    let (changes, received) = mpsc::channel(QUEUE);
    let config = &inputs.config;
    let sink = Sink { changes, metrics: config.metrics.clone() };
    let client = &config.cluster.client;
    let stop = supervisor.token().clone();
    macro_rules! watch {
        ($name:literal, $source:expr) => {
            let watching = watch::run(client.clone(), $source, sink.clone(), stop.clone());
            supervisor.run($name, watching);
        };
    }
    if let Some((signing, ready)) = config.signing.clone() {
        let outputs = Outputs { changes: sink.changes.clone(), ready, metrics: config.metrics.clone() };
        let (account, leading) = (config.account.clone(), inputs.leadership.clone());
        let keeping = signing::run(client.clone(), signing, account, leading, outputs, stop.clone());
        supervisor.run("signing key", keeping);
    }
    let (restart_watch, restarts) = channel::channel(0);
    let watching = watch::run_pods(client.clone(), restarts, sink.clone(), stop.clone());
    supervisor.run("watch pods", watching);
    watch!("watch namespaces", watch::Namespaces);
    let following =
        watch_nodes(client.clone(), config.policies.clone(), config.dry_run.clone(), sink.clone(), stop.clone());
    supervisor.run("watch nodes", following);
    watch!("watch services", watch::Services);
    watch!("watch priority classes", watch::PriorityClasses);
    let (apis, served) = channel::channel(None);
    for scheduler in gang::TABLE.iter().filter(|scheduler| !scheduler.apis.is_empty()) {
        let watching = watch_groups(client.clone(), scheduler.kind, served.clone(), sink.clone(), stop.clone());
        supervisor.run("watch podgroups", watching);
    }
    let discovering = discovery::run(client.clone(), sink.changes, apis, stop.clone());
    supervisor.run("discovery", discovering);
    supervisor.run("reconcile", async move {
        Box::pin(EventLoop::new(inputs, restart_watch).run(received, stop)).await;
    });
}

/// Watches Nodes while the policy file wants their faults recorded.
async fn watch_nodes(
    client: kube::Client,
    policies: Arc<ArcSwap<Policies>>,
    changed: channel::Receiver<bool>,
    sink: Sink,
    stop: CancellationToken,
) {
    let (client, sink, stop) = (&client, &sink, &stop);
    let watching = |is_enabled: bool| async move {
        if is_enabled {
            return watch::run(client.clone(), watch::Nodes, sink.clone(), stop.clone()).await;
        }
        let none = RelatedChange::Nodes(Watched::Listed(Vec::new()));
        let _ = sink.changes.send(WatchMessage::Change(none.into())).await.is_ok();
    };
    let is_enabled = |_: &bool| policies.load().nodes.enabled;
    stop.run_until_cancelled(run_anew_on_change(changed, is_enabled, watching)).await;
}

/// Watches the PodGroups of one scheduler type, in the version that is served now.
async fn watch_groups(
    client: kube::Client,
    kind: &'static str,
    served: channel::Receiver<Option<ServedApis>>,
    sink: Sink,
    stop: CancellationToken,
) {
    let (client, sink, stop) = (&client, &sink, &stop);
    let watching = |api: Option<_>| async move {
        if let Some(api) = api {
            watch::run(client.clone(), Groups { scheduler: kind, api }, sink.clone(), stop.clone()).await;
        }
    };
    let api = |served: &Option<ServedApis>| served.as_ref().and_then(|apis| apis.get(kind));
    stop.run_until_cancelled(run_anew_on_change(served, api, watching)).await;
}

/// Runs a task with a setting, and never returns. Whenever the setting differs, drops the task, or what is left of it, and runs it
/// again; without a sender the last setting stays.
async fn run_anew_on_change<T, S: Copy + PartialEq, F: Future<Output = ()>>(
    mut changed: channel::Receiver<T>,
    setting: impl Fn(&T) -> S,
    run: impl Fn(S) -> F,
) {
    loop {
        let now = setting(&changed.borrow_and_update());
        let running = async {
            run(now).await;
            pending::<()>().await;
        };
        tokio::select! {
            biased;
            () = running => {}
            Ok(_) = changed.wait_for(|new| setting(new) != now) => {}
        }
    }
}

type LookupTask = Pin<Box<dyn Future<Output = (Lookup, LookupResult)> + Send>>;
type WriteTask = Pin<Box<dyn Future<Output = (ExecutorSetKey, Applied)> + Send>>;
type EventTask = Pin<Box<dyn Future<Output = (AggregatedEvent, bool)> + Send>>;
type NodeEventTask = Pin<Box<dyn Future<Output = ()> + Send>>;
type DriverPollTask = Pin<Box<dyn Future<Output = (DriverViewKey, DriverAnswer)> + Send>>;
type PollTask = Pin<Box<dyn Future<Output = Option<PollResult>> + Send>>;

struct EventLoop {
    config: ReplicaConfig,
    published: Published,
    leadership: LeadershipReceiver,
    contact: channel::Receiver<Option<Instant>>,
    reported: channel::Sender<Reported>,
    writer: Writer,
    limiter: Limiter,
    controller: Controller,
    lookups: FuturesUnordered<LookupTask>,
    writes: FuturesUnordered<WriteTask>,
    event_writes: FuturesUnordered<EventTask>,
    node_events: FuturesUnordered<NodeEventTask>,
    driver_polls: FuturesUnordered<DriverPollTask>,
    poll: FuturesUnordered<PollTask>,
    /// Consecutive failed polls.
    failed_polls: u32,
    aggregator: EventAggregator,
    restart_watch: channel::Sender<u64>,
    /// The sets of executors whose actions are in flight.
    busy: Vec<ExecutorSetKey>,
    /// Until when the last Events are written, once the replica is about to stop.
    closing: Option<Instant>,
    /// Until when the first full snapshot waits for nodes.
    nodes_until: Instant,
}

/// How long the first full snapshot waits for the list of nodes if a policy has a node pool. Without nodes, only the labels that a pod
/// names are compared with those of the pool, and everything else is decided as usual.
const NODES_WAIT: Duration = Duration::from_secs(30);

/// How long the last Events may take, and how many of them are written.
const LAST_EVENTS: Duration = Duration::from_millis(800);
const MAX_LAST_EVENTS: usize = 50;

impl EventLoop {
    fn new(inputs: Inputs, restart_watch: channel::Sender<u64>) -> EventLoop {
        let Inputs { config, published, leadership, contact, reported, settings } = inputs;
        let limiter = Limiter::new(config.rate);
        let writer = Writer::new(
            config.cluster.client.clone(),
            &config.election.identity,
            config.metrics.clone(),
            limiter.clone(),
            config.driver_api.clone(),
            published.snapshot.clone(),
        );
        let controller = Controller::new(clock::instant(), settings);
        EventLoop {
            config,
            published,
            leadership,
            contact,
            reported,
            writer,
            limiter,
            controller,
            lookups: FuturesUnordered::new(),
            writes: FuturesUnordered::new(),
            event_writes: FuturesUnordered::new(),
            node_events: FuturesUnordered::new(),
            driver_polls: FuturesUnordered::new(),
            poll: FuturesUnordered::new(),
            failed_polls: 0,
            aggregator: EventAggregator::default(),
            restart_watch,
            busy: Vec::new(),
            closing: None,
            nodes_until: clock::instant() + NODES_WAIT,
        }
    }

    async fn run(mut self, mut changes: mpsc::Receiver<WatchMessage>, stop: CancellationToken) {
        let mut batch = Vec::new();
        let mut wake = None;
        let shutdown = self.config.shutdown.clone();
        loop {
            // In this order, so that a simulation replays: first what decides which writes are allowed, then answers, which are
            // bounded by our requests, and last the unbounded events of the watches.
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                true = self.leadership.changed() => self.leadership_changed(),
                () = shutdown.cancelled(), if self.closing.is_none() => self.close(),
                Ok(()) = self.config.dry_run.changed() => self.controller.requeue_all(),
                Ok(()) = self.contact.changed() => self.contact(),
                Some(polled) = self.poll.next() => self.polled(polled),
                Some((set, applied)) = self.writes.next() => self.applied(&set, applied),
                Some((read, answer)) = self.lookups.next() => self.controller.lookup_answered(&read, answer, now()),
                Some((driver, answer)) = self.driver_polls.next() => self.driver_answered(&driver, answer),
                Some(()) = self.node_events.next() => {}
                Some((notice, ok)) = self.event_writes.next() => self.aggregator.written(&notice, ok, clock::instant()),
                count = changes.recv_many(&mut batch, MAX_CHANGES_PER_STEP), if !self.controller.is_behind() => {
                    if count == 0 {
                        return stop.cancelled().await;
                    }
                    let now = now();
                    for message in batch.drain(..) {
                        self.handle_watch_message(message, now);
                    }
                }
                () = clock::until(wake) => {}
            }
            // One step for all answers that have arrived.
            while let Some(Some((read, answer))) = self.lookups.next().now_or_never() {
                self.controller.lookup_answered(&read, answer, now());
            }
            wake = self.step();
            // Inputs that are always ready must not starve other tasks of this thread.
            tokio::task::yield_now().await;
        }
    }

    fn handle_watch_message(&mut self, message: WatchMessage, now: Now) {
        match message {
            WatchMessage::Change(change) => {
                self.watch_lag(&change, now);
                self.controller.watch_event(change, now);
            }
            WatchMessage::PodListStarted => self.controller.list_started(now),
            WatchMessage::PodListPage(pods) => self.controller.list_page(pods, now),
            WatchMessage::PodUnreadable(uid) => self.controller.unreadable_pod(&uid, now),
            WatchMessage::PodListFinished => self.controller.list_finished(now),
            WatchMessage::PodBookmark(version) => self.controller.bookmark(&version, now),
            WatchMessage::PodWatchInterrupted => self.controller.watch_interrupted(now.at),
        }
    }

    fn contact(&mut self) {
        let at = *self.contact.borrow_and_update();
        if let Some(at) = at {
            self.controller.contact(at);
        }
    }

    /// The leadership as of the last change that this task has processed, while it holds: what the Lease contained when it began
    /// decides what is reported.
    fn leadership(&self) -> Option<Arc<Leadership>> {
        self.leadership.received().filter(|leadership| leadership.holds()).cloned()
    }

    /// Reports what is still pending; [`EventLoop::publish_checkpoint`] decides when that is done.
    fn close(&mut self) {
        // A leadership that has just begun, or ended, decides what is reported.
        if self.leadership.receive() {
            self.leadership_changed();
        }
        let (now, leadership) = (now(), self.leadership());
        self.closing = Some(now.at + LAST_EVENTS);
        let exits = self.controller.close(now, self.leadership.leader_state(leadership.as_ref()));
        let Some(leadership) = leadership else { return };
        self.report_exits(&exits, now);
        for notice in self.aggregator.flush(MAX_LAST_EVENTS) {
            self.write_events(notice, &leadership);
        }
    }

    /// Reports exits: in the log, as a metric, and as Events with a count.
    fn report_exits(&mut self, exits: &[Exit], now: Now) {
        for exit in exits {
            report::report(exit, &self.config.metrics);
            self.aggregator.add(exit, self.controller.snapshot(), now.at);
        }
    }

    fn write_events(&mut self, notice: AggregatedEvent, leadership: &Arc<Leadership>) {
        let (writer, leadership, dry_run) = (self.writer.clone(), leadership.clone(), *self.config.dry_run.borrow());
        self.event_writes.push(Box::pin(async move {
            let ok = writer.write_event(&leadership, &notice, dry_run).await;
            (notice, ok)
        }));
    }

    /// Observes how late the watch shows an executor that was created just now.
    fn watch_lag(&self, change: &Change, now: Now) {
        let Change::Pods(PodChange::Observed(ObservedPod::Executor(app, executor))) = change else { return };
        let age = executor.created.map(|created| now.wall.as_second() - i64::from(created.get()));
        let Some(age) = age.filter(|_| executor.state == ExecutorPodState::Pending) else { return };
        if self.controller.snapshot().executor(app.namespace(), &executor.name).is_none() {
            #[expect(clippy::cast_precision_loss, reason = "an age in seconds fits a float's 53 bits")]
            self.config.metrics.watch_lag.observe(age.max(0) as f64);
        }
    }

    fn applied(&mut self, set: &ExecutorSetKey, applied: Applied) {
        for change in applied.changes {
            self.controller.apply_written(change, now());
        }
        for deleted in applied.recovered {
            self.config.metrics.recovery_deletions.with_label_values(&[deleted.rule.as_str()]).inc();
            self.controller.recovered(deleted, clock::instant());
        }
        for attempt in &applied.attempts {
            self.controller.deletion_ended(&set.app, attempt, now());
        }
        self.busy.retain(|busy| busy != set);
        self.controller.actions_finished(set, applied.failed, applied.wrote, clock::instant());
    }

    fn leadership_changed(&mut self) {
        match self.leadership.received() {
            // A poll in flight continues: this replica may lead again in a moment.
            None => {
                // Another leader may report more than our checkpoint covers.
                self.reported.send_if_modified(|reported| !reported.is_final && reported.checkpoint.take().is_some());
                self.writes.clear();
                self.event_writes.clear();
                self.node_events.clear();
                self.aggregator.interrupt();
                for set in std::mem::take(&mut self.busy) {
                    self.controller.actions_finished(&set, false, false, clock::instant());
                }
            }
            Some(leadership) => {
                if let Some(found) = leadership.found() {
                    self.controller.leadership_acquired(found, clock::instant());
                }
                if self.config.policies.load().recovery.acts {
                    tracing::info!(
                        "the budgets of the recovery rules begin with nothing: it is not known what another leader has deleted"
                    );
                }
            }
        }
    }

    fn polled(&mut self, polled: Option<PollResult>) {
        self.failed_polls = match polled {
            // If only polls in pages succeed, they are used from now on, and the whole list is tried now and then.
            Some(_) if self.failed_polls >= PAGES_AFTER && self.failed_polls < PAGES_UNTIL => self.failed_polls + 1,
            Some(_) => 0,
            None if self.failed_polls >= PAGES_UNTIL => PAGES_AFTER,
            None => self.failed_polls + 1,
        };
        let policies = self.config.policies.load_full();
        self.controller.poll_finished(polled, now(), &policies);
    }

    fn driver_answered(&mut self, driver: &DriverViewKey, answer: DriverAnswer) {
        let has_view = matches!(answer, DriverAnswer::View { .. });
        let policies = self.config.policies.load();
        let outcome = match self.controller.driver_answered(driver, answer, now(), &policies) {
            Ok(()) if has_view => "view",
            Ok(()) => "starting",
            Err(error) => {
                tracing::debug!(app = %driver.app, %error, "cannot read the driver's view of its executors; retrying");
                error.as_str()
            }
        };
        self.config.metrics.driver_polls.with_label_values(&[outcome]).inc();
    }

    /// Publishes the snapshot and starts what is due.
    fn step(&mut self) -> Option<Instant> {
        let leadership = self.leadership();
        let policies = self.config.policies.load_full();
        let now = now();
        // What the controller returns to a leader must be done, so the leadership is read once for a step.
        let leader_state = self.leadership.leader_state(leadership.as_ref());
        if leader_state == LeaderState::Follower {
            self.config.metrics.events_lost.inc_by(self.aggregator.clear());
        }
        let effects = self.controller.step(now, &policies, leader_state);
        self.published.snapshot.store(Arc::new(self.controller.snapshot().clone()));
        let exits = self.controller.exits().history().clone();
        self.published.history.store(Arc::new(History {
            exits,
            recovery: self.controller.recovery().clone(),
            costs: self.controller.costs().clone(),
            nodes: self.controller.nodes().clone(),
        }));
        self.config.metrics.count_costs(&effects);
        if effects.suspects_changed {
            self.config.metrics.show_suspects(self.controller.nodes());
        }
        for rule in RecoveryRule::ALL {
            let found = to_gauge(self.controller.recovery().count(rule));
            self.config.metrics.recovery_findings.with_label_values(&[rule.as_str()]).set(found);
        }
        let waits = policies.iter().any(|policy| !policy.node_pool.is_empty()) && !self.controller.has_nodes();
        let nodes_until = Some(self.nodes_until).filter(|until| waits && now.at < *until);
        let is_complete =
            self.controller.has_synced() && self.controller.snapshot().apis.is_some() && nodes_until.is_none();
        if is_complete {
            self.nodes_until = now.at; // It waits once.
        }
        self.published.complete.send_if_modified(|complete| !std::mem::replace(complete, is_complete) && *complete);
        for read in effects.lookups {
            // A list of a namespace may be large, and is requested compressed.
            let client =
                if matches!(read, Lookup::All(_)) { &self.config.cluster.lists } else { &self.config.cluster.client };
            let (client, limiter, metrics) = (client.clone(), self.limiter.clone(), self.config.metrics.clone());
            self.lookups.push(Box::pin(async move {
                limiter.acquire(lookup_reads::priority(&read)).await;
                let answer = match &read {
                    Lookup::All(namespace) => lookup_reads::list_namespace(&client, namespace, &metrics).await,
                    read => lookup_reads::run(client, read).await,
                };
                (read, answer)
            }));
        }
        for poll in effects.driver_polls {
            let (api, limiter) = (self.config.driver_api.clone(), self.limiter.clone());
            self.driver_polls.push(Box::pin(async move {
                if poll.access == DriverAccess::Proxy {
                    limiter.acquire(Priority::DriverView).await;
                }
                let key = poll.key.clone();
                (key, api.poll(poll).await)
            }));
        }
        if effects.restart_watch {
            self.config.metrics.watch_desyncs.inc();
            self.restart_watch.send_modify(|count| *count += 1);
        }
        let wake_at = effects.wake_at.into_iter().chain(nodes_until).min();
        let observed_since = self.controller.exits().observed_since();
        self.reported.send_if_modified(|reported| {
            reported.observed_since = observed_since;
            false // The election reads it before each of its attempts.
        });
        let Some(leadership) = leadership else { return wake_at };
        self.report_exits(&effects.exits, now);
        let dry_run = *self.config.dry_run.borrow();
        for (set, actions) in effects.actions {
            let (writer, leadership) = (self.writer.clone(), leadership.clone());
            self.busy.push(set.clone());
            self.writes.push(Box::pin(async move {
                let applied = writer.apply(&leadership, &set.app, actions, dry_run).await;
                (set, applied)
            }));
        }
        for report in effects.node_reports {
            let (writer, leadership) = (self.writer.clone(), leadership.clone());
            self.node_events.push(Box::pin(async move {
                writer.write_node_event(&leadership, &report, dry_run).await;
            }));
        }
        for notice in self.aggregator.due(now.at) {
            self.write_events(notice, &leadership);
        }
        self.publish_checkpoint(now);
        if effects.poll {
            let (client, snapshot) = (self.config.cluster.lists.clone(), self.published.snapshot.clone());
            let (newest, metrics) = (self.controller.newest_version().map(str::to_owned), self.config.metrics.clone());
            let paged = (PAGES_AFTER..PAGES_UNTIL).contains(&self.failed_polls);
            let limiter = self.limiter.clone();
            self.poll.push(Box::pin(async move {
                limiter.acquire(Priority::Confirmation).await;
                pod_poll::poll(&client, &snapshot, newest, paged, &metrics).await
            }));
        }
        let closing = self.closing.filter(|_| !self.reported.borrow().is_final);
        wake_at.into_iter().chain(self.aggregator.next(now.at)).chain(closing).min()
    }

    /// Publishes the checkpoint for the Lease. It is final once every Event is written, or that has taken too long.
    fn publish_checkpoint(&mut self, now: Now) {
        let is_final = self.closing.is_some_and(|until| until <= now.at || self.event_writes.is_empty());
        let checkpoint = self.controller.checkpoint(now);
        self.reported.send_if_modified(|reported| {
            let is_same = match (&reported.checkpoint, &checkpoint) {
                (Some(old), Some(new)) => old.through == new.through && old.gaps.cover_same(&new.gaps),
                (old, new) => old.is_none() && new.is_none(),
            };
            let is_changed = reported.is_final != is_final || !is_same;
            if is_changed && !reported.is_final {
                reported.checkpoint = checkpoint.or(reported.checkpoint);
                reported.is_final = is_final;
            }
            is_changed
        });
    }
}

/// After this many consecutive failed polls, the list is read in pages.
const PAGES_AFTER: u32 = 2;
/// At this count, the whole list is tried again.
const PAGES_UNTIL: u32 = 14;

fn now() -> Now {
    Now { at: clock::instant(), wall: clock::now() }
}
