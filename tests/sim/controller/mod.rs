//! A simulated cluster around the pure core: one seed is one history, which replays exactly.
//!
//! The API server loses, duplicates, delays and reorders events, serves outdated lists, rejects requests, and times out after it
//! has committed. Replicas crash between any two actions and pause, and two of them may believe that they lead. Drivers clean up
//! their executors, or do not, or die. The simulation checks the rules after every step; when the faults end, the cluster must
//! reach a stable state that matches the policy.

#![allow(dead_code, unreachable_pub, reason = "a module of one test")]

mod cluster;
mod lease;
mod recovery;
mod replica;
pub mod run;
pub mod truth;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::time::{Duration, Instant};

use crate::support::rng::Rng;
use cluster::{App, Kind};
use replica::{Replica, Request};
use truth::{Answered, NAMESPACE, Pod, Role, Truth, wall};
use usher_core::lifecycle::Exit;
use usher_core::lifecycle::cause::Cause;
use usher_core::policy::{Finished, Lifecycle, Policies, RecoveryRule};
use usher_spark::time::Now;

/// Applications change until this time.
const CHANGES_END: Duration = Duration::from_secs(240);
/// Faults happen until this time.
const FAULTS_END: Duration = Duration::from_secs(300);
/// The end of a history, at which its state is stable.
const END: Duration = Duration::from_secs(540);
/// By this time a replica has led and has written a checkpoint, if the API server was available.
const FIRST_LEADER: Duration = Duration::from_secs(30);
/// From this time on, no replica writes.
const STABLE_FROM: Duration = Duration::from_secs(500);
/// How long it takes without faults to report an executor's exit, whose absence may have to be confirmed with a GET, and to replace it.
const SETTLED_WITHIN: Duration = Duration::from_secs(15);
/// The maximum number of steps: a correct history of this length needs fewer.
const MAX_STEPS: u32 = 200_000;
/// The settings of a history.
pub const GRACE: Duration = Duration::from_secs(10);
const KEEP_FAILED: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_secs(20);

/// The violation of a rule.
#[derive(Debug)]
pub struct Violation {
    pub rule: &'static str,
    pub at: Duration,
    pub what: String,
}

/// An event with a time.
pub(crate) enum Event {
    /// The next random change of the cluster.
    RandomChange,
    /// A driver reacts to the exit of an executor, by pod and uid.
    React(String, String),
    /// The removal of a deleted pod, by name and uid.
    Remove(String, String),
    /// An executor, by pod and uid, detects that its driver no longer exists.
    LosesDriver(String, String),
    /// An executor, by pod and uid, is bound to a node, starts, or registers with its driver.
    Bind(String, String),
    StartExecutor(String, String),
    Register(String, String),
    /// The driver of an application creates the executors that it lacks.
    Allocate(usize),
    /// The launcher of an application exits.
    ExitLauncher(usize),
    /// The watches retry while the API server is unavailable, and continue when it is available.
    RetryWatches,
    /// A message for a replica, unless it was restarted meanwhile.
    Replica(usize, u32, Box<Request>),
    Crash(usize),
    Start(usize),
}

/// A replica and its incarnation.
type Process = (usize, u32);

pub struct Sim {
    pub seed: u64,
    pub(crate) rng: Rng,
    /// For what only some histories have.
    pub(crate) launchers: Rng,
    pub now: Duration,
    began: Instant,
    queue: BinaryHeap<Reverse<(Duration, u64)>>,
    events: BTreeMap<u64, (Duration, Event)>,
    sequence: u64,
    pub truth: Truth,
    pub(crate) apps: Vec<App>,
    replicas: Vec<Replica>,
    pub policies: Policies,
    violation: Option<Violation>,
    /// The reports of each executor, by uid: the process and the time.
    reports: BTreeMap<String, Vec<(Process, Duration)>>,
    /// Executors of which a watch has silently lost an event, and those that a replica reported which only believed that it led:
    /// the next leader cannot know.
    excused: BTreeSet<String>,
    /// The times when the API server was unavailable.
    pub(crate) outages: Vec<(Duration, Duration)>,
    /// The times when replicas were paused.
    pub(crate) pauses: Vec<(Duration, Duration)>,
    /// When a checkpoint was first written.
    first_checkpoint: Option<Duration>,
    last_write: Duration,
    /// What drivers know about executors, by uid.
    pub(crate) registered: BTreeMap<String, recovery::Registered>,
    /// The deletions by recovery rules.
    pub(crate) recovered: Vec<(Process, usize, RecoveryRule, Duration)>,
    pub trace: Option<Vec<String>>,
}

impl Sim {
    pub fn new(seed: u64, traced: bool) -> Sim {
        let mut rng = Rng::new(seed);
        let finished = *rng.pick(&[Finished::Label, Finished::Delete, Finished::Delete, Finished::Report]);
        let lifecycle =
            Lifecycle { grace: GRACE, finished, keep_failed: KEEP_FAILED, poll: POLL, ..Lifecycle::default() };
        let replicas = 1 + rng.below(3) as usize;
        let recovery = recovery::settings(seed, &mut rng);
        let mut sim = Sim {
            seed,
            launchers: Rng::new(seed.wrapping_add(1 << 40)),
            rng,
            now: Duration::ZERO,
            began: Instant::now(),
            queue: BinaryHeap::new(),
            events: BTreeMap::new(),
            sequence: 0,
            truth: Truth { version: 100, ..Truth::default() },
            apps: Vec::new(),
            replicas: Vec::new(),
            policies: Policies::default().with_lifecycle(lifecycle).with_recovery(recovery),
            violation: None,
            reports: BTreeMap::new(),
            excused: BTreeSet::new(),
            outages: Vec::new(),
            pauses: Vec::new(),
            first_checkpoint: None,
            last_write: Duration::ZERO,
            registered: BTreeMap::new(),
            recovered: Vec::new(),
            trace: traced.then(Vec::new),
        };
        sim.record(|| format!("{replicas} replicas, {finished:?}"));
        sim.populate();
        for number in 0..replicas {
            sim.replicas.push(Replica::new(number));
            sim.after(Duration::ZERO, Event::Start(number));
        }
        sim.after(Duration::from_millis(500), Event::RandomChange);
        sim
    }

    pub(crate) fn record(&mut self, what: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{:>9.3} {}", self.now.as_secs_f64(), what()));
        }
    }

    pub(crate) fn after(&mut self, wait: Duration, event: Event) {
        self.sequence += 1;
        let at = self.now + wait;
        self.queue.push(Reverse((at, self.sequence)));
        self.events.insert(self.sequence, (at, event));
    }

    pub(crate) fn faults_enabled(&self) -> bool {
        self.now < FAULTS_END
    }

    /// The end of the current outage, if there is one.
    pub(crate) fn outage_end(&self) -> Option<Duration> {
        self.outages.last().map(|(_, until)| *until).filter(|until| self.now < *until)
    }

    pub(crate) fn instant(&self) -> Instant {
        self.began + self.now
    }

    /// The time of a replica: its wall clock may be wrong.
    pub(crate) fn moment(&self, replica: usize) -> Now {
        let skew = self.replicas[replica].skew;
        Now { at: self.instant(), wall: wall(self.now) + skew }
    }

    pub(crate) fn violate(&mut self, rule: &'static str, what: String) {
        self.record(|| format!("VIOLATION {rule}: {what}"));
        if self.violation.is_none() {
            self.violation = Some(Violation { rule, at: self.now, what });
        }
    }

    /// Runs to the end, or to the first violation.
    pub fn run(mut self) -> (Option<Violation>, Vec<String>) {
        let mut steps = 0;
        while let Some(Reverse((at, sequence))) = self.queue.pop() {
            steps += 1;
            if steps > MAX_STEPS {
                self.violate("the controller reaches a stable state", format!("{steps} steps"));
            }
            if at >= END || self.violation.is_some() {
                break;
            }
            let Some((_, event)) = self.events.remove(&sequence) else { continue };
            self.now = at;
            if let Some(until) = self.outage_end()
                && matches!(
                    event,
                    Event::RandomChange
                        | Event::React(..)
                        | Event::Remove(..)
                        | Event::LosesDriver(..)
                        | Event::Allocate(_)
                        | Event::ExitLauncher(_)
                        | Event::Bind(..)
                        | Event::StartExecutor(..)
                )
            {
                // No client reads or writes; drivers need time to reconnect.
                let wait = until - self.now + self.rng.millis(10, 3000);
                self.after(wait, event);
                continue;
            }
            match event {
                Event::RandomChange => self.random_change(),
                Event::LosesDriver(name, uid) => self.loses_driver(&name, &uid),
                Event::RetryWatches => self.retry_watches(),
                Event::Bind(name, uid) => self.bind(&name, &uid),
                Event::StartExecutor(name, uid) => self.start_executor(&name, &uid),
                Event::Register(name, uid) => self.register(&name, &uid),
                Event::Allocate(number) => self.allocate(number),
                Event::ExitLauncher(number) => self.exit_launcher(number),
                Event::React(name, uid) => self.react(&name, &uid),
                Event::Remove(name, uid) => {
                    if self.truth.pods.get(&name).is_some_and(|pod| pod.uid == uid) {
                        self.remove(&name);
                    }
                }
                Event::Replica(number, incarnation, request) => self.serve(number, incarnation, *request),
                Event::Crash(number) => self.crash(number),
                Event::Start(number) => self.start(number),
            }
            self.observe_live();
            self.check_leaders();
        }
        if self.violation.is_none() {
            self.now = END;
            self.check_final_state();
        }
        (self.violation, self.trace.unwrap_or_default())
    }

    // ---- rules ----

    /// Two replicas may lead only while one of them was made to believe so.
    fn check_leaders(&mut self) {
        let at = self.instant();
        let leaders: Vec<usize> = self
            .replicas
            .iter()
            .filter(|replica| replica.holds(at) && !replica.falsely_leads)
            .map(|r| r.number)
            .collect();
        if leaders.len() > 1 {
            self.violate("one leader", format!("{leaders:?} lead"));
        }
    }

    /// Checks a label or a deletion by the controller before the API server executes it.
    pub(crate) fn check_write(&mut self, pod: &Pod, what: &'static str) {
        self.last_write = self.now;
        let app = self.apps[pod.app].clone();
        let who = format!("{what} {} ({})", pod.name, pod.uid);
        if !pod.is_finished() {
            return self.violate("a running executor is never changed", who);
        }
        if pod.skip {
            return self.violate("an executor with the annotation skip is never changed", who);
        }
        if pod.inactive {
            return self.violate("an inactive executor is not changed again", who);
        }
        let running = self.driver_is_running(&app);
        let exited = pod.exited.unwrap_or(self.now);
        let out = self.outages.iter().filter(|(_, to)| *to > exited).map(|(from, to)| *to - (*from).max(exited));
        let age = self.now.saturating_sub(exited).saturating_sub(out.sum());
        // A paused replica detects an outage late.
        let overlap = |(from, to): &(Duration, Duration)| {
            let both = self.outages.iter().map(|(begin, end)| (*to.min(end)).saturating_sub(*from.max(begin)));
            both.max().unwrap_or_default()
        };
        let lately = self.pauses.iter().filter(|(_, to)| *to > exited);
        let late = lately.map(overlap).max().unwrap_or_default();
        match running {
            None => return self.violate("executors of an unknown driver are never changed", who),
            Some(true) if age + late + Duration::from_millis(1) < app.grace() => {
                return self.violate("the driver goes first", format!("{who} after {age:?} of {:?}", app.grace()));
            }
            Some(_) => {}
        }
        if what == "delete" {
            if !app.deletes && running == Some(true) && app.kind == Kind::Cluster {
                return self.violate("executors that their driver retains are not deleted", who);
            }
            // An executor that lost its driver has not failed on its own.
            let lost_driver =
                app.driver_exited.is_some_and(|driver_exited| exited + Duration::from_secs(60) >= driver_exited);
            // The retention for inspection includes outages.
            let retained = self.now.saturating_sub(exited) + Duration::from_millis(1);
            if pod.code == Some(1) && !lost_driver && retained < KEEP_FAILED {
                return self.violate("failed executors are retained for keepFailed", who);
            }
            if self.policies.lifecycle.finished != Finished::Delete {
                self.violate("a write matches lifecycle.finished", who);
            }
        } else if self.policies.lifecycle.finished == Finished::Report {
            self.violate("a write matches lifecycle.finished", who);
        }
    }

    /// Whether a driver is running; `None` if no replica can know.
    pub(crate) fn driver_is_running(&self, app: &App) -> Option<bool> {
        if app.kind == Kind::Loose {
            return None;
        }
        let pod = self.truth.pods.get(&app.driver);
        Some(pod.is_some_and(|pod| pod.uid == app.driver_uid && !pod.is_finished() && !app.lingers))
    }

    pub(crate) fn record_report(&mut self, process: Process, exit: &Exit) {
        let uid = exit.executor.uid.to_string();
        if !self.truth.exits.contains_key(&uid) && !self.truth.removed_unlabelled.contains(&uid) {
            return self.violate("only exited executors are reported", uid);
        }
        if self.replicas[process.0].falsely_leads {
            self.excused.insert(uid.clone());
        }
        if exit.cause == Cause::Error && !self.excused.contains(&uid) {
            self.check_error(exit);
        }
        let now = self.now;
        let excused = exit.possibly_reported || self.excused.contains(&uid);
        let times = self.reports.entry(uid.clone()).or_default();
        // An outdated list may show a long deleted executor again to a replica that has forgotten it.
        let again = times.iter().any(|(who, at)| now - *at < Duration::from_secs(180) && (*who == process || !excused));
        times.push((process, now));
        self.record(|| {
            format!("r{} reports {uid}{}", process.0, if exit.possibly_reported { " as possibly reported" } else { "" })
        });
        if again {
            self.violate("an exit is reported once", uid);
        }
    }

    /// The exit of an executor after its driver's container is not a failure of the application.
    fn check_error(&mut self, exit: &Exit) {
        let uid = &*exit.executor.uid;
        let last = self.truth.log.iter().rev().find_map(|entry| entry.pod.as_ref().filter(|_| entry.uid == uid));
        // The exit of a driver without labels is read by a lookup, which may fail or take longer than the controller waits.
        let Some(pod) = last.cloned().filter(|pod| {
            let app = &self.apps[pod.app];
            app.kind == Kind::Cluster && app.launcher.is_none()
        }) else {
            return;
        };
        let driver = self.truth.pods.get(&self.apps[pod.app].driver).filter(|driver| driver.is_finished());
        let exited = driver.filter(|driver| !self.excused.contains(&driver.uid)).and_then(|driver| driver.finished);
        if exited.is_some_and(|exited| pod.finished.is_some_and(|finished| exited <= finished)) {
            self.violate("an executor that loses its driver has not failed", uid.to_owned());
        }
    }

    /// Checks the final state: it matches the policy, and the snapshot is complete.
    fn check_final_state(&mut self) {
        if self.last_write >= STABLE_FROM {
            let at = self.last_write;
            return self.violate("the controller reaches a stable state", format!("a write at {at:?}"));
        }
        let at = self.instant();
        let Some(leader) = self.replicas.iter().position(|replica| replica.holds(at)) else {
            return self.violate("a replica leads", String::new());
        };
        let mut known = BTreeMap::new();
        let controller = self.replicas[leader].controller.as_ref().unwrap();
        for app in controller.snapshot().apps.values() {
            for executor in app.executors().values() {
                known.insert(executor.name.to_string(), (executor.uid.to_string(), executor.version.to_string()));
            }
            for driver in &app.drivers {
                known.insert(driver.name.to_string(), (driver.uid.to_string(), driver.version.to_string()));
            }
        }
        let expected = self.truth.pods.values().filter(|pod| pod.is_shown());
        let expected: BTreeMap<String, (String, String)> =
            expected.map(|pod| (pod.name.clone(), (pod.uid.clone(), pod.version.to_string()))).collect();
        if known != expected {
            return self.violate("the snapshot equals the cluster", format!("{known:?}, expected {expected:?}"));
        }
        let overdue: Vec<Pod> = self.truth.pods.values().filter(|pod| self.cleanup_is_overdue(pod)).cloned().collect();
        if let Some(pod) = overdue.first() {
            return self.violate("finished executors are cleaned up", format!("{pod:?}"));
        }
        self.check_recovered(leader);
        let seen = self.replicas[leader].seen.clone();
        for uid in seen {
            let by_driver = self
                .truth
                .log
                .iter()
                .any(|entry| entry.uid == uid && entry.pod.as_ref().is_some_and(|pod| pod.by_driver));
            // Exits before the first leader are history.
            let is_late = self.outages.first().is_some_and(|(from, _)| *from < FIRST_LEADER);
            let led = self.first_checkpoint.filter(|first| is_late && *first > FIRST_LEADER).unwrap_or(FIRST_LEADER);
            let is_due = |at: &Duration| *at > led && *at < END - SETTLED_WITHIN;
            let is_reportable = self.truth.exits.get(&uid).is_some_and(is_due) && !self.excused.contains(&uid);
            if is_reportable && !self.reports.contains_key(&uid) && !by_driver {
                return self.violate("every exit is reported", uid);
            }
        }
    }

    /// Whether an executor should already have been labelled or deleted.
    fn cleanup_is_overdue(&self, pod: &Pod) -> bool {
        let app = &self.apps[pod.app];
        let done = !pod.is_finished()
            || pod.unlabelled
            || pod.skip
            || pod.inactive
            || pod.role != Role::Executor
            || pod.deleting.is_some();
        if done || self.policies.lifecycle.finished == Finished::Report {
            return false;
        }
        let retained = pod.code == Some(1) && self.policies.lifecycle.finished == Finished::Delete;
        let wait = match self.driver_is_running(app) {
            None => return false,
            // Nothing is known of a driver that does not control its executors, whose controller is gone.
            Some(_) if app.launcher.is_some() => return false,
            Some(true) => app.grace(),
            Some(false) => Duration::ZERO,
        };
        let wait = if retained { wait.max(KEEP_FAILED) } else { wait };
        let known = app.driver_exited.unwrap_or_default().max(pod.exited.unwrap_or_default());
        self.now.saturating_sub(known) > wait + Duration::from_secs(150)
    }

    // ---- changes of pods ----

    pub(crate) fn put(&mut self, pod: Pod) {
        self.truth.put(pod, self.now);
        self.publish();
    }

    pub(crate) fn change(&mut self, name: &str, change: impl FnOnce(&mut Pod)) {
        self.truth.change(name, self.now, change);
        self.publish();
    }

    pub(crate) fn remove(&mut self, name: &str) {
        self.record(|| format!("{name} is removed"));
        self.truth.remove(name, self.now);
        self.publish();
    }

    pub(crate) fn delete(&mut self, name: &str, grace: Duration) {
        let uid = self.truth.pods.get(name).map(|pod| pod.uid.clone()).unwrap_or_default();
        self.record(|| format!("{name} ({uid}) is deleted, grace {grace:?}"));
        self.truth.delete(name, grace, self.now);
        let lasts = self.truth.pods.get(name).is_some_and(|pod| pod.terminates_forever());
        if self.truth.pods.contains_key(name) && !lasts {
            self.after(grace, Event::Remove(name.to_owned(), uid));
        }
        self.publish();
    }

    /// Executes a write of the controller at the API server.
    pub(crate) fn commit(&mut self, process: Process, write: &replica::Write) -> Answered {
        let uid = Some(write.uid.as_str());
        let version = Some(write.version.as_str());
        let answered = self.truth.check(&write.name, uid, version);
        if answered != Answered::Done {
            return answered;
        }
        let pod = self.truth.pods[&write.name].clone();
        match write.kind {
            replica::Kind::Label => {
                self.check_write(&pod, "label");
                self.change(&write.name, |pod| {
                    pod.inactive = true;
                    pod.by_usher = true;
                });
            }
            replica::Kind::Delete => {
                self.check_write(&pod, "delete");
                self.delete(&write.name, Duration::from_secs(30));
            }
            replica::Kind::Recover(rule, is_forced) => {
                self.check_recovery(process, &pod, rule, is_forced);
                self.recover(&pod, is_forced);
            }
            replica::Kind::Adopt => {
                let (driver, uid) =
                    (write.driver.clone().unwrap_or_default(), write.driver_uid.clone().unwrap_or_default());
                self.change(&write.name, |pod| pod.owner = Some((driver, uid)));
            }
        }
        Answered::Done
    }

    pub(crate) fn namespace() -> &'static str {
        NAMESPACE
    }
}
