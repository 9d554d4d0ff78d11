//! Recovery: executors that never start, hang, or are given up; drivers that answer polls with what they know; and the checks of
//! what the recovery rules delete and report.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use usher_core::controller::{DriverAnswer, PollError};
use usher_core::drivers::DriverPoll;
use usher_core::ownership::contradiction::{self, Contradiction, Reads, ToRead};
use usher_core::planning::Check;
use usher_core::planning::{Action, Recover};
use usher_core::policy::{Budget, DriverAccess, DriverViews, Finished, Mode, Recovery, RecoveryRule, RuleSettings};
use usher_core::reason::Reason;
use usher_spark::ids::PodIdentity;
use usher_spark::rest::{DriverMetrics, ExecutorSummary};

use super::cluster::{App, Kind};
use super::replica::Write;
use super::truth::{NAMESPACE, Pod, Role};
use super::{CHANGES_END, Event, FAULTS_END, Process, Sim};
use crate::support::rng::Rng;

/// What is wrong with an executor from its creation on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    None,
    /// No scheduler binds it.
    Unscheduled,
    /// It is bound and never starts.
    Stuck,
    /// It runs and never registers.
    Hung,
    /// It registers late.
    Late,
    /// Its node is lost when it is to be deleted: it terminates forever.
    NodeLost,
    /// The same, and a finalizer blocks its deletion.
    Held,
}

/// What a driver knows about an executor.
#[derive(Clone, Debug, PartialEq)]
pub struct Registered {
    pub app: usize,
    pub id: u32,
    pub at: Duration,
    /// When the driver removed it although its pod runs, and whether the application caused that.
    pub given_up: Option<(Duration, bool)>,
}

const VIEW_INTERVAL: Duration = Duration::from_secs(5);
const VIEWS: u32 = 3;
/// The time of the budgets.
const PER: Duration = Duration::from_secs(60);
const APPLICATION_BUDGET: u32 = 3;
const CLUSTER_BUDGET: u32 = 5;
/// How late an action may be executed after it was planned.
const LATENCY: Duration = Duration::from_secs(15);

/// The waits of every eighth history are this many times as long: long enough for evidence to come and go.
const LONGER: u32 = 4;

fn after(rule: RecoveryRule) -> Duration {
    Duration::from_secs(match rule {
        RecoveryRule::Stuck | RecoveryRule::Unregistered | RecoveryRule::ZombieDriver | RecoveryRule::Refused => 20,
        RecoveryRule::Hopeless => 40,
        RecoveryRule::Orphans => 15,
        RecoveryRule::Terminating => 10,
        RecoveryRule::GivenUp | RecoveryRule::Vanished | RecoveryRule::Groups => 0,
    })
}

/// The settings of a history: most rules act.
pub fn settings(seed: u64, rng: &mut Rng) -> Recovery {
    let times = if seed % 8 == 7 { LONGER } else { 1 };
    let budget = |count| Budget { count, per: PER };
    let recovery = Recovery {
        driver_view: DriverViews { access: DriverAccess::Pod, interval: VIEW_INTERVAL },
        acts: !rng.chance(10),
        budget: budget(CLUSTER_BUDGET),
        given_up_views: VIEWS,
        ..Recovery::default()
    };
    RecoveryRule::ALL.into_iter().fold(recovery, |recovery, rule| {
        let mode = match rng.below(10) {
            0 => Mode::Off,
            1..3 => Mode::Warn,
            _ if rule.can_act() => Mode::Act,
            _ => Mode::Warn,
        };
        recovery.with_rule(rule, RuleSettings { mode, after: times * after(rule), budget: budget(APPLICATION_BUDGET) })
    })
}

impl Sim {
    /// The fault of an executor that is created now.
    pub(super) fn pick_fault(&mut self) -> Fault {
        if self.now >= CHANGES_END {
            return Fault::None;
        }
        match self.rng.below(100) {
            0..4 => Fault::Unscheduled,
            4..14 => Fault::Stuck,
            14..24 => Fault::Hung,
            24..32 => Fault::Late,
            32..36 => Fault::NodeLost,
            36..39 => Fault::Held,
            _ => Fault::None,
        }
    }

    /// The next steps of a new executor.
    pub(super) fn begin(&mut self, pod: &Pod) {
        if pod.fault == Fault::Unscheduled {
            return;
        }
        let (name, uid) = (pod.name.clone(), pod.uid.clone());
        let bound = self.rng.millis(10, 15_000);
        self.after(bound, Event::Bind(name.clone(), uid.clone()));
        if pod.fault != Fault::Stuck {
            let wait = bound + self.rng.millis(10, 15_000);
            self.after(wait, Event::StartExecutor(name, uid));
        }
    }

    pub(super) fn bind(&mut self, name: &str, uid: &str) {
        let now = self.now;
        if self.truth.pods.get(name).is_some_and(|pod| pod.uid == uid && pod.bound.is_none() && !pod.is_finished()) {
            self.change(name, |pod| pod.bound = Some(now));
        }
    }

    /// An executor starts, and registers soon, late, or never.
    pub(super) fn start_executor(&mut self, name: &str, uid: &str) {
        let now = self.now;
        let Some(pod) = self.truth.pods.get(name).filter(|pod| pod.uid == uid && pod.phase == "Pending") else {
            return;
        };
        if pod.deleting.is_some() || matches!(pod.fault, Fault::Unscheduled | Fault::Stuck) {
            return;
        }
        let fault = pod.fault;
        self.change(name, |pod| {
            (pod.phase, pod.running) = ("Running", Some(now));
            pod.bound.get_or_insert(now);
        });
        let wait = match fault {
            Fault::Hung => return,
            Fault::Late => self.rng.millis(12_000, 40_000),
            _ => self.rng.millis(50, 4000),
        };
        self.after(wait, Event::Register(name.to_owned(), uid.to_owned()));
    }

    pub(super) fn register(&mut self, name: &str, uid: &str) {
        let Some(pod) = self.truth.pods.get(name).filter(|pod| pod.uid == uid && pod.phase == "Running") else {
            return;
        };
        let pod = pod.clone();
        if pod.deleting.is_none() && self.driver_is_running(&self.apps[pod.app].clone()) == Some(true) {
            self.record(|| format!("{name} registers"));
            let known = Registered { app: pod.app, id: pod.id, at: self.now, given_up: None };
            self.registered.insert(uid.to_owned(), known);
        }
    }

    /// A driver removes an executor that runs on.
    pub(super) fn give_up(&mut self, by_app: bool) {
        let candidates = self.registered.iter().filter(|(uid, known)| {
            known.given_up.is_none() && self.truth.pods.values().any(|pod| pod.uid == **uid && pod.phase == "Running")
        });
        let candidates: Vec<String> = candidates.map(|(uid, _)| uid.clone()).collect();
        if candidates.is_empty() {
            return;
        }
        let uid = self.rng.pick(&candidates).clone();
        self.record(|| {
            format!("its driver gives {uid} up{}", if by_app { ", as a failure of the application" } else { "" })
        });
        let now = self.now;
        if let Some(known) = self.registered.get_mut(&uid) {
            known.given_up = Some((now, by_app));
        }
    }

    /// The allocator of a driver: it replaces what is missing.
    pub(super) fn allocate(&mut self, number: usize) {
        self.after(Duration::from_secs(5), Event::Allocate(number));
        let app = self.apps[number].clone();
        if self.driver_is_running(&app) != Some(true) || app.is_starved || app.lingers {
            return;
        }
        let live = self.truth.pods.values().filter(|pod| pod.app == number && pod.is_live()).count();
        for _ in live..app.target.min(live + 2) {
            self.create(number);
        }
    }

    /// Whether a driver counts an executor as registered: until it notices its exit.
    fn is_active(&self, uid: &str, known: &Registered) -> bool {
        if known.given_up.is_some() {
            return false;
        }
        let Some(exited) = self.truth.exits.get(uid) else { return true };
        let app = &self.apps[known.app];
        if app.is_deaf {
            return true;
        }
        let notices = Duration::from_secs(2 * app.interval) * (uid.len() as u32 % 3) / 2;
        let out = self.outages.iter().filter(|(_, to)| to > exited).map(|(from, to)| *to - (*from).max(*exited));
        self.now < *exited + notices + out.sum::<Duration>()
    }

    /// What a driver answers to a poll.
    pub(super) fn driver_answer(&mut self, poll: &DriverPoll) -> DriverAnswer {
        let number: usize = poll.key.app.selector().trim_start_matches("spark-").parse().unwrap();
        let app = self.apps[number].clone();
        let pod = self.truth.pods.get(poll.pod.name());
        let is_running = pod.is_some_and(|pod| pod.uid == app.driver_uid && pod.phase == "Running" && !app.lingers);
        if !is_running {
            return DriverAnswer::Failed(PollError::Refused);
        }
        if self.faults_enabled() && self.rng.chance(8) {
            return DriverAnswer::Failed(PollError::Timeout);
        }
        if app.is_stopped.is_some_and(|at| at <= self.now) {
            return DriverAnswer::Failed(PollError::Refused);
        }
        let own = self.registered.iter().filter(|(_, known)| known.app == number);
        // By id: the last one counts, as the driver does not reuse ids.
        let mut rows: BTreeMap<u32, ExecutorSummary> = BTreeMap::new();
        for (uid, known) in own {
            let is_active = self.is_active(uid, known);
            let by_app = known.given_up.is_some_and(|(_, by_app)| by_app);
            let reason = if by_app { "The executor with id 1 exited with exit code 52(JVM OOM)." } else { "lost" };
            let row = ExecutorSummary {
                id: Some(u64::from(known.id)),
                is_active,
                is_excluded: false,
                registered: None,
                removed: None,
                remove_reason: (!is_active).then(|| reason.into()),
            };
            let dropped = app.drops_events && uid.len() % 2 == 0;
            if !dropped && rows.get(&known.id).is_none_or(|row| !row.is_active) {
                rows.insert(known.id, row);
            }
        }
        let metrics =
            DriverMetrics { dropped_events: Some(u64::from(app.drops_events)), queued_events: Some(0), target: None };
        DriverAnswer::View { port: 4040, executors: rows.into_values().collect(), metrics, conf: None }
    }

    /// The pod with this address.
    pub(super) fn pod_at(&self, address: &str) -> Option<&Pod> {
        let mut pods = self.truth.pods.values().filter(|pod| !pod.is_finished());
        pods.find(|pod| pod.address().as_deref() == Some(address))
    }

    /// What contradicts that the driver of an executor is gone, as the edge of a replica reads it.
    pub(super) fn contradicts_end(
        &self,
        number: usize,
        executor: (&str, &str),
        driver: &PodIdentity,
    ) -> Option<Contradiction> {
        // A replica that has crashed meanwhile reads nothing.
        let Some(controller) = &self.replicas[number].controller else { return Some(Contradiction::Changed) };
        let snapshot = controller.snapshot();
        let Some((app, known)) = snapshot.executor(NAMESPACE, executor.0) else { return Some(Contradiction::Changed) };
        let read = |pod: &Pod| Arc::new(pod.driver_pod(&self.truth.selectors[pod.app]));
        let labelled = self.truth.pods.values().filter(|pod| pod.role == Role::Driver && pod.is_shown());
        let labelled = labelled.filter(|pod| self.truth.selectors[pod.app] == app.selector());
        let labelled = labelled.map(|pod| (*read(pod)).clone());
        let labelled = labelled.map(|pod| Arc::new(snapshot.verified(app, pod))).collect();
        let ToRead { pods, address } = contradiction::to_read(snapshot, app, known, &driver.key);
        let pods = pods.into_iter().map(|pod| {
            let found = self.truth.pods.get(pod.name()).map(read);
            (pod, found)
        });
        let at_address = address.map(|at| (at.clone(), self.pod_at(&at).map(read).into_iter().collect()));
        let (pods, at_address) = (pods.collect(), at_address.into_iter().collect());
        let reads = Reads { labelled, is_unreadable: false, pods, at_address };
        contradiction::of_end(snapshot, app, executor, driver, &reads)
    }

    /// The deletion by a recovery rule, if what the edge verifies immediately before allows it.
    pub(super) fn recovery_of(&mut self, number: usize, deletion: &Recover) -> Option<Write> {
        let pod = &deletion.event.pod;
        let mut is_forced = false;
        match &deletion.check {
            Check::Version => {}
            Check::NoExecutors(poll) => {
                if !matches!(self.driver_answer(&poll.clone()), DriverAnswer::View { .. }) {
                    return None;
                }
                let number = self.truth.pods.get(pod.name())?.app;
                let mut all = self.truth.pods.values().filter(|pod| pod.app == number && pod.role == Role::Executor);
                if all.any(|pod| !pod.is_finished()) {
                    return None;
                }
            }
            Check::DriverGone(driver) => {
                if self.contradicts_end(number, (pod.name(), &deletion.seen.uid), driver).is_some() {
                    return None;
                }
            }
            Check::NotRegistered(poll, id) => {
                let DriverAnswer::View { executors, metrics, .. } = self.driver_answer(&poll.clone()) else {
                    return None;
                };
                let row = executors.iter().find(|row| row.id == Some(*id));
                if !row.map_or(metrics.dropped_events == Some(0), |row| !row.is_active) {
                    return None;
                }
            }
            Check::NodeGone(_) => {
                if !self.truth.pods.get(pod.name()).is_some_and(Pod::terminates_forever) {
                    return None;
                }
                is_forced = true;
            }
        }
        self.record(|| {
            format!("{} {pod} {} {}", deletion.rule.as_str(), deletion.seen.uid, deletion.seen.resource_version)
        });
        Some(Write {
            kind: super::replica::Kind::Recover(deletion.rule, is_forced),
            name: pod.name().to_owned(),
            uid: deletion.seen.uid.to_string(),
            version: deletion.seen.resource_version.to_string(),
            driver: None,
            driver_uid: None,
        })
    }

    /// Checks a deletion by a recovery rule before the API server executes it.
    pub(super) fn check_recovery(&mut self, process: Process, pod: &Pod, rule: RecoveryRule, is_forced: bool) {
        let app = self.apps[pod.app].clone();
        let who = format!("{} deletes {} ({})", rule.as_str(), pod.name, pod.uid);
        let recovery = self.policies.recovery.clone();
        if !recovery.may_act(rule) {
            return self.violate("only rules in mode act delete", who);
        }
        if pod.skip {
            return self.violate("an executor with the annotation skip is never changed", who);
        }
        let running = self.driver_is_running(&app);
        if running.is_none() {
            return self.violate("executors of an unknown driver are never changed", who);
        }
        let since = |at: Option<Duration>| at.map_or(Duration::ZERO, |at| self.now.saturating_sub(at));
        let wait = recovery.rule(rule).after;
        let known = self.registered.get(&pod.uid).cloned();
        let is_wanted = known.as_ref().is_some_and(|known| self.is_active(&pod.uid, known));
        if pod.phase == "Running" && pod.role == Role::Executor && is_wanted && running == Some(true) && !is_forced {
            return self.violate("no registered, running executor of a running driver is deleted", who);
        }
        // A driver's configuration is forgotten with its pod.
        let is_there = self.truth.pods.get(&app.driver).is_some_and(|pod| pod.uid == app.driver_uid);
        let is_kept = !app.deletes && app.kind == Kind::Cluster && is_there;
        let fine = match rule {
            RecoveryRule::Stuck => pod.phase == "Pending" && since(pod.bound) >= wait,
            RecoveryRule::Unregistered => pod.phase == "Running" && since(pod.running) >= wait && !app.drops_events,
            RecoveryRule::GivenUp => {
                let given_up = known.as_ref().and_then(|known| known.given_up);
                let views = VIEW_INTERVAL.mul_f64(0.85) * (VIEWS - 1);
                pod.phase == "Running" && given_up.is_some_and(|(at, by_app)| !by_app && since(Some(at)) >= views)
            }
            RecoveryRule::Orphans => {
                // A driver that does not control its executors may have run when nobody knew of it.
                let is_late = since(app.driver_exited) >= wait || app.launcher.is_some();
                running == Some(false) && !pod.is_finished() && !is_kept && is_late
            }
            RecoveryRule::Refused => pod.is_finished() && pod.reason.is_some() && !is_kept && since(pod.exited) >= wait,
            RecoveryRule::Terminating => {
                is_forced && pod.fault == Fault::NodeLost && pod.deleting.is_some_and(|until| self.now >= until + wait)
            }
            RecoveryRule::Hopeless => app.in_driver && pod.role == Role::Driver && running == Some(true),
            RecoveryRule::ZombieDriver => app.lingers && since(app.driver_exited) >= wait,
            RecoveryRule::Vanished | RecoveryRule::Groups => false,
        };
        if !fine {
            let what = format!("{who}: {pod:?} {app:?} {known:?}");
            return self.violate("a rule deletes only what it is about, after its time", what);
        }
        self.check_budgets(process, pod, rule, &who);
    }

    fn check_budgets(&mut self, process: Process, pod: &Pod, rule: RecoveryRule, who: &str) {
        let lately = |at: &Duration| self.now.saturating_sub(*at) < PER - LATENCY;
        let all: Vec<_> = self.recovered.iter().filter(|(_, _, _, at)| lately(at)).cloned().collect();
        let own = |of: &&(Process, usize, RecoveryRule, Duration)| of.0 == process;
        let same = |of: &&(Process, usize, RecoveryRule, Duration)| (of.1, of.2) == (pod.app, rule);
        let max = |count: u32| usize::try_from(count).unwrap();
        if all.iter().filter(own).filter(same).count() >= max(APPLICATION_BUDGET)
            || all.iter().filter(own).count() >= max(CLUSTER_BUDGET)
            || all.iter().filter(same).count() >= max(2 * APPLICATION_BUDGET)
            || all.len() >= max(2 * CLUSTER_BUDGET)
        {
            return self.violate("budgets hold", format!("{who}: {all:?}"));
        }
        let last = all.iter().filter(own).filter(same).map(|(.., at)| *at).next_back();
        if rule.needs_view() && last.is_some_and(|at| self.now - at > LATENCY) {
            return self.violate("a rule waits longer before it deletes a replacement", format!("{who}: {all:?}"));
        }
        self.recovered.push((process, pod.app, rule, self.now));
    }

    /// Deletes a pod for a recovery rule.
    pub(super) fn recover(&mut self, pod: &Pod, is_forced: bool) {
        if pod.role == Role::Executor {
            let grace = if is_forced { Duration::ZERO } else { Duration::from_secs(30) };
            return self.delete(&pod.name, grace);
        }
        self.apps[pod.app].driver_exited.get_or_insert(self.now);
        self.orphan(pod.app);
        self.remove(&pod.name);
    }

    /// Checks Events of rules that delete nothing.
    pub(super) fn check_event(&mut self, number: usize, action: &Action) {
        let Action::RecordEvent(event) = action else { return };
        // A replica that has lost events does not know what it has lost.
        if self.is_behind(number) {
            return;
        }
        let Some(pod) = self.truth.pods.get(event.pod.name()).filter(|pod| pod.uid == *event.uid).cloned() else {
            return;
        };
        match event.reason {
            Reason::ExecutorVanished => {
                let app = self.apps[pod.app].clone();
                let lost = self.registered.iter().filter(|(uid, known)| {
                    let exited = self.truth.exits.get(*uid);
                    // Spark does not see a pod without its labels either.
                    let is_hidden = self.truth.removed_unlabelled.contains(*uid)
                        || self.truth.pods.values().any(|pod| pod.uid == **uid && pod.unlabelled);
                    known.app == pod.app
                        && (is_hidden
                            || exited.is_some_and(|at| {
                                self.now.saturating_sub(*at) >= Duration::from_secs(4 * app.interval)
                            }))
                });
                if lost.count() == 0 {
                    self.violate("an executor vanishes only once its driver could notice that", event.message.clone());
                }
            }
            Reason::ExecutorNotRegistered => {
                let at = self.registered.get(&pod.uid).filter(|known| known.given_up.is_none()).map(|known| known.at);
                if at.is_some_and(|at| self.now.saturating_sub(at) > 2 * LATENCY) {
                    self.violate("a registered executor is not reported as unregistered", event.message.clone());
                }
            }
            Reason::NoExecutors => {
                let app = &self.apps[pod.app];
                let is_empty = app.live_until.is_some_and(|at| {
                    self.now.saturating_sub(at) + LATENCY >= self.policies.recovery.rule(RecoveryRule::Hopeless).after
                });
                // Only the driver knows executors whose labels were removed.
                let pods = || self.truth.pods.values().filter(|other| other.app == pod.app && other.is_live());
                let is_hidden = pods().count() > 0 && pods().all(|other| other.unlabelled);
                if !is_empty && !is_hidden {
                    self.violate(
                        "a driver with pending executors is not hopeless",
                        format!("{} {app:?}", event.message),
                    );
                }
            }
            _ => {}
        }
    }

    /// Whether a replica may lack events.
    fn is_behind(&self, number: usize) -> bool {
        let replica = &self.replicas[number];
        replica.has_lost_event
            || replica.silent_until + Duration::from_secs(60) > self.now && replica.silent_until > Duration::ZERO
    }

    /// Observes since when an application has had no live executor.
    pub(super) fn observe_live(&mut self) {
        for number in 0..self.apps.len() {
            let is_live = self.truth.pods.values().any(|pod| pod.app == number && pod.is_live());
            let until = &mut self.apps[number].live_until;
            *until = if is_live { None } else { Some(until.unwrap_or(self.now)) };
        }
    }

    /// In the end, each executor of a running driver is healthy, or is named by a rule that is on; and so is each driver without
    /// executors.
    pub(super) fn check_recovered(&mut self, leader: usize) {
        let controller = self.replicas[leader].controller.as_ref().unwrap();
        let mut unnamed = None;
        for app in &self.apps {
            let key = usher_spark::ids::AppKey::new(super::truth::NAMESPACE, &format!("spark-{}", app.number));
            let report = controller.recovery().of(&key).cloned().unwrap_or_default();
            let is_named = |rule, uid: &str| {
                self.policies.recovery.rule(rule).mode == Mode::Off
                    || report.findings.iter().any(|finding| finding.rule == rule && *finding.uid == *uid)
            };
            let old = |at: Option<Duration>| at.is_some_and(|at| at + Duration::from_secs(150) < super::END);
            // A pod that controls executors may hide whether their driver is gone, and answers no polls.
            if app.launcher.is_some() {
                continue;
            }
            let running = self.driver_is_running(app);
            for pod in self.truth.pods.values().filter(|pod| pod.app == app.number && pod.is_shown()) {
                if pod.role != Role::Executor || pod.skip || pod.deleting.is_some() || running.is_none() {
                    continue;
                }
                let is_orphan = running == Some(false) && old(app.driver_exited) && !pod.is_finished() && !pod.inactive;
                let rule = match () {
                    () if pod.is_finished() && old(pod.exited) && pod.reason.is_some() => RecoveryRule::Refused,
                    () if is_orphan && old(Some(pod.created)) => RecoveryRule::Orphans,
                    () => continue,
                };
                // Those are deleted sooner.
                let is_cleaned_up = rule == RecoveryRule::Refused
                    && !pod.inactive
                    && self.policies.lifecycle.finished == Finished::Delete;
                if !is_named(rule, &pod.uid) && !is_cleaned_up {
                    unnamed = Some(format!("{} {pod:?} {app:?} {report:?}", rule.as_str()));
                }
            }
            if running != Some(true) || app.is_stopped.is_some() {
                continue;
            }
            for pod in self.truth.pods.values().filter(|pod| pod.app == app.number && pod.is_shown()) {
                if pod.role != Role::Executor || pod.skip || pod.inactive || pod.deleting.is_some() {
                    continue;
                }
                let known = self.registered.get(&pod.uid);
                let rule = match pod.phase {
                    "Pending" if old(pod.bound) => RecoveryRule::Stuck,
                    "Running" if old(pod.running) && known.is_none() && !app.drops_events => RecoveryRule::Unregistered,
                    "Running"
                        if known.is_some_and(|known| known.given_up.is_some_and(|(at, _)| old(Some(at))))
                            && !app.drops_events =>
                    {
                        RecoveryRule::GivenUp
                    }
                    _ => continue,
                };
                if !is_named(rule, &pod.uid) {
                    unnamed = Some(format!("{} {pod:?} {known:?} {report:?}", rule.as_str()));
                }
            }
            // Nothing is known of an unlabelled driver without executors.
            if app.is_deaf && !app.drops_events && app.kind == Kind::Cluster {
                let lost = |(uid, known): &(&String, &Registered)| {
                    known.app == app.number
                        && known.given_up.is_none()
                        && self.truth.exits.get(*uid).is_some_and(|at| old(Some(*at)))
                        && !self.truth.pods.values().any(|pod| pod.id == known.id && pod.app == app.number)
                };
                if self.registered.iter().any(|entry| lost(&entry))
                    && !is_named(RecoveryRule::Vanished, &app.driver_uid)
                {
                    unnamed = Some(format!("vanished {app:?} {report:?}"));
                }
            }
            if app.kind == Kind::Cluster
                && app.live_until.is_some_and(|at| old(Some(at)))
                && !is_named(RecoveryRule::Hopeless, &app.driver_uid)
            {
                unnamed = Some(format!("hopeless {app:?} {report:?}"));
            }
        }
        if let Some(unnamed) = unnamed {
            return self.violate("every executor is healthy or is named by a rule", unnamed);
        }
        for app in self.apps.clone() {
            let live = |pod: &&Pod| pod.app == app.number && pod.is_live();
            let live = self.truth.pods.values().filter(live).count();
            let is_its = |uid: &str| uid.starts_with(&format!("exec-{}-", app.number));
            let lately = |at: Duration| at + super::SETTLED_WITHIN >= super::END;
            let replaced_soon = self.truth.exits.iter().filter(|(uid, at)| is_its(uid) && lately(**at)).count();
            let is_stopping =
                |pod: &&Pod| pod.app == app.number && pod.deleting.is_some_and(lately) && !pod.is_finished();
            let replaced_soon = replaced_soon + self.truth.pods.values().filter(is_stopping).count();
            let is_running = self.driver_is_running(&app) == Some(true) && !app.is_starved && app.launcher.is_none();
            if is_running && live + replaced_soon < app.target {
                self.violate("an application gets its executors", format!("{live} of {app:?}"));
            }
        }
    }
}

/// The end of the faults of drivers.
pub fn has_driver_faults(now: Duration) -> bool {
    now < FAULTS_END
}

impl App {
    /// What differs between the drivers of a history.
    pub(super) fn with_faults(mut self, rng: &mut Rng) -> App {
        self.target = 1 + rng.below(3) as usize;
        self.in_driver = !rng.chance(20);
        self.drops_events = rng.chance(10);
        self.is_deaf = rng.chance(15);
        self.is_starved = rng.chance(12);
        self.is_stopped = rng.chance(16).then(|| rng.millis(20_000, 200_000));
        self
    }
}
