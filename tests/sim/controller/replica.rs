//! A replica: the real controller, and a simulation of `cluster` around it: watches, lookups, writes, polls, the lease. All
//! messages have delays.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use jiff::SignedDuration;
use usher_core::controller::{Controller, DriverAnswer, ExecutorSetKey, Lookup, LookupResult, PollResult, Settings};
use usher_core::drivers::DriverPoll;
use usher_core::leader::{LeaderState, Observed, may_act_until};
use usher_core::lifecycle::checkpoint::{Checkpoint, FoundCheckpoint};
use usher_core::planning::{Action, Cleanup};
use usher_core::policy::RecoveryRule;
use usher_core::recovery::budget::Attempt;
use usher_core::snapshot::{
    Change, Conf, DriverViewKey, Listed, ObservedPod, PodChange, RelatedChange, ServedApis, Watched,
};
use usher_spark::conf::AppConf;
use usher_spark::ids::{PodKey, is_newer};

use super::truth::{Answered, Lease, NAMESPACE};
use super::{Event, Sim};

pub const LEASE: Duration = Duration::from_secs(4);
/// The interval of bookmarks.
const BOOKMARKS: Duration = Duration::from_secs(60);

pub struct Replica {
    pub number: usize,
    pub incarnation: u32,
    pub controller: Option<Controller>,
    pub skew: SignedDuration,
    /// Until this time its watch is silent.
    pub silent_until: Duration,
    /// The current watch, and its position in the log.
    stream: u32,
    position: u64,
    /// Its watch has lost an event since its list.
    pub has_lost_event: bool,
    last_delivery: Duration,
    pub lease: Option<Observed>,
    /// The checkpoint that it found when it took the Lease, until the write is confirmed.
    pub found: Option<FoundCheckpoint>,
    pub until: Option<Instant>,
    /// An injected fault makes it believe that it leads.
    pub falsely_leads: bool,
    paused_until: Duration,
    woken: Option<Duration>,
    /// Executors that it has seen, by uid.
    pub seen: BTreeSet<String>,
    /// Executors in its snapshot, and their versions.
    snapshot_versions: BTreeMap<String, u64>,
}

/// A message to a replica, or to the API server on its behalf.
pub enum Request {
    /// The watch's list.
    Listed(u32, u64, Vec<ObservedPod>),
    /// An event of the watch, and the same once more.
    Watched(u32, Change),
    Repeated(u32, Change),
    /// The request for the list with which a watch begins.
    List(u32),
    Wake(Duration),
    /// A lookup reaches the API server.
    Read(Lookup),
    Answered(Lookup, Box<LookupResult>),
    /// The next action of an application reaches the API server.
    Act(ExecutorSetKey, VecDeque<Action>, Applied),
    Acted(ExecutorSetKey, VecDeque<Action>, Applied),
    Poll,
    Polled(Option<PollResult>),
    /// A poll reaches a driver, and its answer arrives.
    DriverPoll(Box<DriverPoll>),
    DriverAnswered(DriverViewKey, Box<DriverAnswer>),
    /// A round of the election begins; its read and its write reach the API server.
    Round,
    LeaseRead(Instant),
    LeaseWrite(Instant, Option<u64>, i32, Option<Checkpoint>),
    LeaseWritten(Instant, bool),
    /// The API server sends a bookmark.
    Bookmark(u32),
    Bookmarked(u32, u64),
}

#[derive(Default)]
pub struct Applied {
    changes: Vec<Change>,
    failed: bool,
    wrote: bool,
    attempts: Vec<Attempt>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Label,
    Delete,
    Adopt,
    /// A deletion by a recovery rule, and whether it is without a grace period.
    Recover(RecoveryRule, bool),
}

/// A write with its preconditions.
pub struct Write {
    pub kind: Kind,
    pub name: String,
    pub uid: String,
    pub version: String,
    pub driver: Option<String>,
    pub driver_uid: Option<String>,
}

impl Replica {
    pub fn new(number: usize) -> Replica {
        Replica {
            number,
            incarnation: 0,
            controller: None,
            skew: SignedDuration::ZERO,
            silent_until: Duration::ZERO,
            stream: 0,
            position: 0,
            has_lost_event: false,
            last_delivery: Duration::ZERO,
            lease: None,
            found: None,
            until: None,
            falsely_leads: false,
            paused_until: Duration::ZERO,
            woken: None,
            seen: BTreeSet::new(),
            snapshot_versions: BTreeMap::new(),
        }
    }

    pub fn holds(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| now < until)
    }
}

impl Sim {
    pub(super) fn send(&mut self, number: usize, wait: Duration, request: Request) {
        let incarnation = self.replicas[number].incarnation;
        self.after(wait, Event::Replica(number, incarnation, Box::new(request)));
    }

    /// The delay of a message.
    pub(super) fn message_delay(&mut self) -> Duration {
        if self.faults_enabled() && self.rng.chance(5) { self.rng.millis(500, 6000) } else { self.rng.millis(1, 40) }
    }

    pub(super) fn fault(&mut self, percent: u64) -> bool {
        self.faults_enabled() && self.rng.chance(percent)
    }

    pub(super) fn start(&mut self, number: usize) {
        let settings = Settings { seed: self.seed, ..Settings::default() };
        let controller = Controller::new(self.instant(), settings);
        let replica = &mut self.replicas[number];
        let (incarnation, skew, silent_until) = (replica.incarnation + 1, replica.skew, replica.silent_until);
        *replica = Replica { incarnation, controller: Some(controller), skew, silent_until, ..Replica::new(number) };
        self.record(|| format!("r{number} starts"));
        let moment = self.moment(number);
        let controller = self.replicas[number].controller.as_mut().unwrap();
        controller.watch_event(RelatedChange::Apis(ServedApis::default()), moment);
        controller.watch_event(RelatedChange::Namespaces(Watched::Listed(Vec::new())), moment);
        self.restart_watch(number);
        self.send(number, Duration::ZERO, Request::Round);
    }

    pub(super) fn crash(&mut self, number: usize) {
        if self.replicas[number].controller.is_none() {
            return;
        }
        let gracefully = self.rng.chance(30);
        self.record(|| format!("r{number} {}", if gracefully { "stops" } else { "is killed" }));
        let me = self.identity(number);
        let (at, moment) = (self.instant(), self.moment(number));
        let held = self.truth.lease.clone().filter(|lease| lease.holder.as_ref() == Some(&me));
        if let Some(lease) = held.filter(|_| gracefully && self.replicas[number].holds(at)) {
            let process = (number, self.replicas[number].incarnation);
            for exit in self.replicas[number].controller.as_mut().unwrap().close(moment, LeaderState::Leader) {
                self.record_report(process, &exit);
            }
            let version = self.truth.next_version();
            let checkpoint = self.replicas[number].controller.as_ref().unwrap().checkpoint(moment).or(lease.checkpoint);
            self.truth.lease = Some(Lease { version, holder: None, checkpoint, ..lease });
        }
        let replica = &mut self.replicas[number];
        replica.controller = None;
        replica.until = None;
        replica.incarnation += 1;
        let wait = self.rng.millis(100, 20_000);
        self.after(wait, Event::Start(number));
    }

    pub(super) fn identity(&self, number: usize) -> String {
        format!("r{number}.{}", self.replicas[number].incarnation)
    }

    // ---- the watch ----

    fn restart_watch(&mut self, number: usize) {
        self.replicas[number].stream += 1;
        // A watch begins where its list ended, and shows nothing before.
        self.replicas[number].position = 0;
        let stream = self.replicas[number].stream;
        let wait = self.message_delay();
        self.send(number, wait, Request::List(stream));
    }

    /// Sends new entries of the log to all watches.
    pub(super) fn publish(&mut self) {
        for number in 0..self.replicas.len() {
            self.deliver(number);
        }
    }

    fn deliver(&mut self, number: usize) {
        let Replica { position, stream, silent_until, .. } = self.replicas[number];
        if self.replicas[number].controller.is_none() || position == 0 || self.outage_end().is_some() {
            return;
        }
        let from = self.truth.log.partition_point(|entry| entry.version <= position);
        let entries: Vec<_> = self.truth.log[from..].to_vec();
        for entry in entries {
            self.replicas[number].position = entry.version;
            let Some(observation) = entry.observation else { continue };
            let change = match entry.pod {
                Some(_) => Change::Pods(PodChange::Observed(observation)),
                None => Change::Pods(PodChange::Deleted(observation)),
            };
            if self.faults_enabled() && (self.now < silent_until || self.rng.chance(2)) {
                self.record(|| format!("r{number} misses {} {}", entry.name, entry.version));
                self.excused.insert(entry.uid);
                self.replicas[number].has_lost_event = true;
                continue;
            }
            let wait = self.delivery_delay(number);
            if self.fault(5) {
                let again = wait + self.rng.millis(1, 12_000);
                self.send(number, again, Request::Repeated(stream, change.clone()));
            }
            self.send(number, wait, Request::Watched(stream, change));
        }
        if self.fault(1) {
            self.record(|| format!("the watch of r{number} breaks off (410)"));
            let at = self.instant();
            self.replicas[number].controller.as_mut().unwrap().watch_interrupted(at);
            self.restart_watch(number);
        }
    }

    /// The delay of the watch's next event, which arrives after all earlier ones.
    fn delivery_delay(&mut self, number: usize) -> Duration {
        let at = (self.now + self.message_delay()).max(self.replicas[number].last_delivery);
        self.replicas[number].last_delivery = at;
        at - self.now
    }

    // ---- the controller ----

    fn step_controller(&mut self, number: usize) {
        let (moment, at) = (self.moment(number), self.instant());
        let me = self.identity(number);
        let replica = &self.replicas[number];
        let by_another = |holder: &String| *holder != me;
        let led = replica.lease.as_ref().filter(|seen| !seen.is_over(at));
        let led = led.is_some_and(|seen| seen.record.holder.as_ref().is_some_and(by_another));
        let leader_state = match (replica.holds(at), led) {
            (true, _) => LeaderState::Leader,
            (false, true) => LeaderState::Follower,
            (false, false) => LeaderState::NoLeader,
        };
        let Some(controller) = self.replicas[number].controller.as_mut() else { return };
        let effects = controller.step(moment, &self.policies, leader_state);
        let process = (number, self.replicas[number].incarnation);
        for exit in effects.exits {
            self.record_report(process, &exit);
        }
        for read in effects.lookups {
            if matches!(read, Lookup::Address(..)) && leader_state != LeaderState::Leader {
                self.violate("only the leader looks up addresses", format!("r{number}: {read:?}"));
            }
            let wait = self.message_delay();
            self.send(number, wait, Request::Read(read));
        }
        for (set, actions) in effects.actions {
            actions.iter().for_each(|action| self.check_event(number, action));
            self.act_next(number, set, actions.into(), Applied::default());
        }
        for poll in effects.driver_polls {
            let wait = self.message_delay();
            self.send(number, wait, Request::DriverPoll(Box::new(poll)));
        }
        if effects.poll {
            let wait = self.message_delay();
            self.send(number, wait, Request::Poll);
        }
        if effects.restart_watch {
            self.record(|| format!("r{number} restarts its watch"));
            if !self.replicas[number].has_lost_event {
                self.violate("a watch that lost nothing is not restarted", format!("r{number}"));
            }
            self.restart_watch(number);
        }
        if let Some(wake) = effects.wake_at {
            let wait = wake.saturating_duration_since(at).max(Duration::from_millis(1));
            let due = self.now + wait;
            if self.replicas[number].woken.is_none_or(|woken| woken > due || woken <= self.now) {
                self.replicas[number].woken = Some(due);
                self.send(number, wait, Request::Wake(due));
            }
        }
    }

    fn record_seen(&mut self, number: usize, change: &Change) {
        let replica = &mut self.replicas[number];
        let snapshot = replica.controller.as_ref().map(|controller| controller.snapshot().clone()).unwrap_or_default();
        let mut record_seen = |observation: &ObservedPod| {
            let ObservedPod::Executor(_, executor) = observation else { return };
            // An outdated list or event, after the next pod with that name is known: the exit may have been long ago, while no
            // replica watched.
            let next = snapshot.executor(NAMESPACE, &executor.name).map(|(_, next)| next);
            if !next.is_some_and(|next| next.uid != executor.uid && is_newer(&next.version, &executor.version)) {
                replica.seen.insert(executor.uid.to_string());
            }
        };
        match change {
            Change::Pods(PodChange::Observed(observation)) | Change::Pods(PodChange::Deleted(observation)) => {
                record_seen(observation)
            }
            Change::Pods(PodChange::Listed(all)) => all.iter().for_each(record_seen),
            _ => {}
        }
    }

    /// A pod in the snapshot is never replaced by an older version.
    fn check_snapshot_versions(&mut self, number: usize) {
        let replica = &mut self.replicas[number];
        let Some(controller) = &replica.controller else { return };
        let (mut regression, mut snapshot_versions) = (None, BTreeMap::new());
        for executor in controller.snapshot().apps.values().flat_map(|app| app.executors().values()) {
            let version: u64 = executor.version.parse().unwrap();
            if let Some(newest) = replica.snapshot_versions.get(&*executor.uid).filter(|newest| version < **newest) {
                regression = Some(format!("r{number}: {} from {newest} to {version}", executor.name));
            }
            snapshot_versions.insert(executor.uid.to_string(), version);
        }
        replica.snapshot_versions = snapshot_versions;
        if let Some(regression) = regression {
            self.violate("the snapshot never goes back", regression);
        }
    }

    pub(super) fn serve(&mut self, number: usize, incarnation: u32, request: Request) {
        let alive = self.replicas[number].incarnation == incarnation && self.replicas[number].controller.is_some();
        let paused = self.replicas[number].paused_until;
        if alive && paused > self.now {
            // Repeated events are not older than tombstones.
            if matches!(request, Request::Repeated(..)) {
                return;
            }
            let wait = paused - self.now;
            return self.after(wait, Event::Replica(number, incarnation, Box::new(request)));
        }
        // A request in flight reaches the API server, also after its sender's death.
        let in_flight = matches!(request, Request::Act(..) | Request::LeaseWrite(..));
        if !alive && !in_flight {
            return;
        }
        let moment = self.moment(number);
        match request {
            Request::List(stream) if stream == self.replicas[number].stream && self.outage_end().is_some() => {
                self.send(number, Duration::from_secs(1), Request::List(stream));
            }
            Request::List(stream) if stream == self.replicas[number].stream => {
                let past = if self.fault(10) { self.rng.below(12) } else { 0 };
                let version = self.truth.version.saturating_sub(past).max(1);
                let list = self.truth.list_at(version).into_iter().map(|(_, observation)| observation).collect();
                let wait = self.message_delay();
                self.send(number, wait, Request::Listed(stream, version, list));
            }
            // The connection is broken: what was on its way is sent again after the outage, in the same order.
            request @ (Request::Listed(stream, ..) | Request::Watched(stream, _) | Request::Bookmarked(stream, _))
                if stream == self.replicas[number].stream && self.outage_end().is_some() =>
            {
                let wait = self.outage_end().map(|until| until - self.now);
                self.send(number, wait.unwrap_or_default(), request);
            }
            Request::Listed(stream, version, list) if stream == self.replicas[number].stream => {
                self.record(|| format!("r{number} has listed {} pods at {version}", list.len()));
                let change = Change::Pods(PodChange::Listed(list));
                self.record_seen(number, &change);
                let controller = self.replicas[number].controller.as_mut().unwrap();
                controller.watch_event(change, moment);
                controller.bookmark(&version.to_string(), moment);
                self.check_snapshot_versions(number);
                self.replicas[number].position = version;
                self.replicas[number].has_lost_event = false;
                self.replicas[number].last_delivery = self.now;
                self.deliver(number);
                self.send(number, BOOKMARKS, Request::Bookmark(stream));
                self.step_controller(number);
            }
            Request::Bookmark(stream) if stream == self.replicas[number].stream => {
                if self.now < self.replicas[number].silent_until {
                    self.replicas[number].has_lost_event = true;
                } else if self.outage_end().is_none() {
                    let (wait, version) = (self.delivery_delay(number), self.truth.version);
                    self.send(number, wait, Request::Bookmarked(stream, version));
                }
                self.send(number, BOOKMARKS, Request::Bookmark(stream));
            }
            Request::Bookmarked(stream, version) if stream == self.replicas[number].stream => {
                self.replicas[number].controller.as_mut().unwrap().bookmark(&version.to_string(), moment);
                self.step_controller(number);
            }
            Request::Bookmark(_) | Request::Bookmarked(..) => {}
            Request::Repeated(..) if self.outage_end().is_some() => {}
            Request::Watched(stream, change) | Request::Repeated(stream, change)
                if stream == self.replicas[number].stream =>
            {
                self.record_seen(number, &change);
                self.replicas[number].controller.as_mut().unwrap().watch_event(change, moment);
                self.check_snapshot_versions(number);
                self.step_controller(number);
            }
            Request::List(_) | Request::Listed(..) | Request::Watched(..) | Request::Repeated(..) => {}
            // A wake-up is ignored if an earlier one replaced it.
            Request::Wake(due) => {
                if self.replicas[number].woken.take_if(|woken| *woken == due).is_some() || due == self.now {
                    self.step_controller(number);
                }
            }
            Request::Read(read) => {
                let answer = self.answer(&read);
                let wait = self.message_delay();
                self.send(number, wait, Request::Answered(read, Box::new(answer)));
            }
            Request::Answered(read, answer) => {
                if let LookupResult::Labelled(observation) = &*answer {
                    self.record_seen(number, &Change::Pods(PodChange::Observed(observation.clone())));
                }
                self.replicas[number].controller.as_mut().unwrap().lookup_answered(&read, *answer, moment);
                self.step_controller(number);
            }
            Request::Act(set, actions, applied) => self.act(number, incarnation, set, actions, applied),
            Request::Acted(set, actions, applied) => self.act_next(number, set, actions, applied),
            Request::Poll => self.poll(number),
            Request::DriverPoll(poll) => {
                let answer = self.driver_answer(&poll);
                let wait = self.message_delay();
                self.send(number, wait, Request::DriverAnswered(poll.key, Box::new(answer)));
            }
            Request::DriverAnswered(key, answer) => {
                let controller = self.replicas[number].controller.as_mut().unwrap();
                _ = controller.driver_answered(&key, *answer, moment, &self.policies);
                self.step_controller(number);
            }
            Request::Polled(polled) => {
                self.replicas[number].controller.as_mut().unwrap().poll_finished(polled, moment, &self.policies);
                self.step_controller(number);
            }
            Request::Round => {
                if self.fault(1) {
                    let how_long = self.rng.millis(1000, 10_000);
                    self.record(|| format!("r{number} is paused for {how_long:?}"));
                    self.replicas[number].paused_until = self.now + how_long;
                    self.pauses.push((self.now, self.now + how_long));
                }
                let (wait, began) = (self.message_delay(), self.instant());
                self.send(number, wait, Request::LeaseRead(began));
                let next = self.rng.millis(800, 1200);
                self.send(number, next, Request::Round);
            }
            Request::LeaseRead(began) => self.lease_read(number, began),
            Request::LeaseWrite(began, version, transitions, checkpoint) => {
                self.lease_write(number, incarnation, began, version, transitions, checkpoint);
            }
            Request::LeaseWritten(began, ok) => {
                let taken = self.truth.lease.as_ref().map(|lease| lease.version);
                let at = moment.at;
                let replica = &mut self.replicas[number];
                let controller = replica.controller.as_mut().unwrap();
                controller.contact(at);
                if let Some(found) = replica.found.take_if(|_| ok) {
                    controller.leadership_acquired(FoundCheckpoint { taken, ..found }, at);
                }
                if ok {
                    replica.until = Some(may_act_until(began, LEASE));
                    replica.falsely_leads = false;
                } else if !replica.falsely_leads {
                    replica.until = None;
                }
                self.step_controller(number);
            }
        }
    }

    // ---- lookups ----

    fn answer(&mut self, read: &Lookup) -> LookupResult {
        if self.fault(15) || self.outage_end().is_some() {
            return LookupResult::Failed;
        }
        match read {
            Lookup::Pod(key) => match self.truth.pods.get(key.name()) {
                Some(pod) => LookupResult::Pod(pod.driver_pod(&self.truth.selectors[pod.app])),
                None => LookupResult::Absent,
            },
            Lookup::Labelled(key) => match self.truth.pods.get(key.name()) {
                Some(pod) => LookupResult::Labelled(pod.observation(&self.truth.selectors[pod.app])),
                None => LookupResult::Absent,
            },
            Lookup::Conf(_, _, map) => {
                let number: usize = map.trim_start_matches("conf-").parse().unwrap();
                LookupResult::Conf(Conf::Known(AppConf::parse(&self.apps[number].conf()).into()))
            }
            Lookup::Address(_, address) => match self.pod_at(address) {
                Some(pod) => LookupResult::Pod(pod.driver_pod(&self.truth.selectors[pod.app])),
                None => LookupResult::Absent,
            },
            Lookup::Workload(_) => LookupResult::Absent,
            Lookup::Quotas(_) => LookupResult::Quotas(Vec::new()),
            Lookup::Messages(..) => LookupResult::Absent,
            Lookup::NodePods(_) => LookupResult::NodePods(Default::default()),
            Lookup::All(_) => {
                let mut all = Listed::default();
                self.truth.pods.values().for_each(|pod| all.insert(NAMESPACE, &pod.name, &pod.uid));
                all.seal();
                LookupResult::All(all)
            }
        }
    }

    fn poll(&mut self, number: usize) {
        let wait = self.message_delay();
        if self.fault(10) || self.outage_end().is_some() {
            return self.send(number, wait, Request::Polled(None));
        }
        let controller = self.replicas[number].controller.as_ref().unwrap();
        let newest = controller.newest_version().and_then(|newest| newest.parse::<u64>().ok()).unwrap_or_default();
        // From the watch cache: not older than what the replica has seen, but possibly outdated.
        let past = if self.rng.chance(30) { self.rng.below(8) } else { 0 };
        let version = self.truth.version.saturating_sub(past).max(newest);
        let mut polled = PollResult::default();
        for (pod, _) in self.truth.list_at(version) {
            let snapshot = self.replicas[number].controller.as_ref().unwrap().snapshot();
            polled.add(snapshot, NAMESPACE, &pod.name, &pod.uid, &pod.version.to_string());
        }
        self.send(number, wait, Request::Polled(Some(polled.finish(&version.to_string()))));
    }

    // ---- writes ----

    fn act_next(&mut self, number: usize, set: ExecutorSetKey, actions: VecDeque<Action>, mut applied: Applied) {
        let at = self.instant();
        let holds = self.replicas[number].holds(at);
        if actions.is_empty() || !holds {
            applied.failed |= !actions.is_empty();
            let moment = self.moment(number);
            let controller = self.replicas[number].controller.as_mut().unwrap();
            for change in applied.changes {
                controller.apply_written(change, moment);
            }
            for attempt in &applied.attempts {
                controller.deletion_ended(&set.app, attempt, moment);
            }
            controller.actions_finished(&set, applied.failed, applied.wrote, moment.at);
            return self.step_later(number);
        }
        if !self.replicas[number].holds(at) {
            return self.violate("only the leader writes", format!("r{number}"));
        }
        let wait = self.message_delay();
        self.send(number, wait, Request::Act(set, actions, applied));
    }

    fn step_later(&mut self, number: usize) {
        let now = self.now;
        self.send(number, Duration::ZERO, Request::Wake(now));
    }

    /// The API server executes an action, or rejects it, or executes it and its response is lost.
    fn act(
        &mut self,
        number: usize,
        incarnation: u32,
        set: ExecutorSetKey,
        mut actions: VecDeque<Action>,
        mut applied: Applied,
    ) {
        let Some(action) = actions.pop_front() else { return };
        let rejected = self.fault(30) || self.outage_end().is_some();
        let response_lost = self.fault(5);
        if rejected {
            applied.failed = true;
            deletion_ended(&mut applied, &action, false);
        } else if let Some(write) = self.write_of(number, &action) {
            match self.commit((number, incarnation), &write) {
                Answered::Done if response_lost => {
                    applied.failed = true;
                    deletion_ended(&mut applied, &action, false);
                }
                Answered::Done => {
                    applied.wrote = true;
                    deletion_ended(&mut applied, &action, false);
                    if let Some(pod) =
                        self.truth.pods.get(&write.name).filter(|_| matches!(write.kind, Kind::Label | Kind::Adopt))
                    {
                        applied
                            .changes
                            .push(Change::Pods(PodChange::Observed(pod.observation(&self.truth.selectors[pod.app]))));
                    }
                }
                Answered::NotFound => {
                    let pod = PodKey::new(NAMESPACE, &write.name);
                    applied.changes.push(Change::Pods(PodChange::Gone(pod, write.uid.as_str().into())));
                    deletion_ended(&mut applied, &action, true);
                }
                Answered::Conflict => deletion_ended(&mut applied, &action, true),
            }
        } else {
            deletion_ended(&mut applied, &action, true);
        }
        let wait = self.message_delay();
        self.after(wait, Event::Replica(number, incarnation, Box::new(Request::Acted(set, actions, applied))));
    }

    /// The write of an action; none if the check of the driver forbids it.
    fn write_of(&mut self, number: usize, action: &Action) -> Option<Write> {
        match action {
            Action::CleanUp { executor, seen, how, gone_driver, .. } => {
                if let Some(driver) = gone_driver {
                    self.contradicts_end(number, (executor.name(), &seen.uid), driver).is_none().then_some(())?;
                }
                let kind = if *how == Cleanup::Label { Kind::Label } else { Kind::Delete };
                self.record(|| format!("{kind:?} {} {} {}", executor.name(), seen.uid, seen.resource_version));
                Some(Write {
                    kind,
                    name: executor.name().to_owned(),
                    uid: seen.uid.to_string(),
                    version: seen.resource_version.to_string(),
                    driver: None,
                    driver_uid: None,
                })
            }
            Action::Recover(deletion) => self.recovery_of(number, deletion),
            Action::Adopt { executor, seen, driver, .. } => Some(Write {
                kind: Kind::Adopt,
                name: executor.name().to_owned(),
                uid: seen.uid.to_string(),
                version: seen.resource_version.to_string(),
                driver: Some(driver.key.name().to_owned()),
                driver_uid: Some(driver.uid.to_string()),
            }),
            _ => None,
        }
    }
}

/// A deletion by a recovery rule ended: it did not happen, or did, or may have.
fn deletion_ended(applied: &mut Applied, action: &Action, is_not_deleted: bool) {
    if let Action::Recover(deletion) = action {
        let not_deleted = is_not_deleted.then(|| deletion.check.failure());
        applied.attempts.push(Attempt { rule: deletion.rule, uid: deletion.seen.uid.clone(), not_deleted });
    }
}
