//! The changes by Spark, kubelets and users.

use std::time::Duration;

use super::recovery::Fault;
use super::truth::{Pod, Role};
use super::{CHANGES_END, Event, GRACE, Sim};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A labelled driver pod with a configuration.
    Cluster,
    /// A driver in a notebook's pod, which the executors name as owner.
    Client,
    /// A driver outside the cluster, which is unknown.
    Loose,
}

#[derive(Clone, Debug)]
pub struct App {
    pub number: usize,
    pub kind: Kind,
    pub driver: String,
    pub driver_uid: String,
    /// When its driver exited or was deleted.
    pub driver_exited: Option<Duration>,
    /// `deleteOnTermination`.
    pub deletes: bool,
    /// `apiPollingInterval` and `missingPodDetectDelta`, seconds each.
    pub interval: u64,
    /// Whether its driver cleans up finished executors.
    pub reacts: bool,
    pub next_id: u32,
    /// `spark.kubernetes.submitInDriver`.
    pub in_driver: bool,
    /// `spark.executor.instances`.
    pub target: usize,
    /// The driver has dropped listener events.
    pub drops_events: bool,
    /// The driver notices no exits.
    pub is_deaf: bool,
    /// The driver creates no executors.
    pub is_starved: bool,
    /// When its SparkContext is stopped while its process runs on.
    pub is_stopped: Option<Duration>,
    /// Its Spark container exited, and its pod runs on.
    pub lingers: bool,
    /// When it last had a live executor, if it has none.
    pub live_until: Option<Duration>,
    /// The pod that launched its driver, and that controls its executors.
    pub launcher: Option<Launcher>,
}

/// How the driver of executors is known that name their launcher as their owner.
#[derive(Clone, Debug)]
pub struct Launcher {
    pub name: String,
    pub uid: String,
    pub names: Names,
}

/// How executors name the driver that does not control them. A labelled driver is known by its label, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Names {
    SecondOwner,
    Address,
    Nothing,
}

impl App {
    pub fn conf(&self) -> String {
        format!(
            "spark.kubernetes.executor.apiPollingInterval={0}s\nspark.kubernetes.executor.missingPodDetectDelta={0}s\n\
             spark.kubernetes.executor.deleteOnTermination={1}\nspark.kubernetes.submitInDriver={3}\n\
             spark.executor.instances={2}\n",
            self.interval, self.deletes, self.target, self.in_driver
        )
    }

    /// How long the controller leaves finished executors to the driver.
    pub fn grace(&self) -> Duration {
        let seconds = if self.kind == Kind::Cluster { self.interval } else { 30 };
        GRACE.max(Duration::from_secs(4 * seconds))
    }
}

impl Sim {
    pub(super) fn populate(&mut self) {
        for number in 0..1 + self.rng.below(3) as usize {
            let kind = *self.rng.pick(&[Kind::Cluster, Kind::Cluster, Kind::Client, Kind::Loose]);
            let app = App {
                number,
                kind,
                driver: format!("driver-{number}"),
                driver_uid: format!("d{number}"),
                driver_exited: None,
                deletes: self.rng.chance(70),
                interval: 1 + self.rng.below(6),
                reacts: self.rng.chance(50),
                next_id: 1,
                in_driver: true,
                target: 0,
                drops_events: false,
                is_deaf: false,
                is_starved: false,
                is_stopped: None,
                lingers: false,
                live_until: None,
                launcher: None,
            }
            .with_faults(&mut self.rng);
            let app = App { launcher: self.pick_launcher(&app), ..app };
            self.record(|| format!("{app:?}"));
            self.truth.selectors.push(format!("spark-{number}"));
            if kind != Kind::Loose {
                let role = if kind == Kind::Cluster { Role::Driver } else { Role::Notebook };
                let pod = self.pod(&app, app.driver.clone(), app.driver_uid.clone(), role, 0);
                let restarts = app.launcher.is_some() && role == Role::Notebook;
                self.put(Pod { phase: "Running", restarts, ..pod });
            }
            if let Some(Launcher { name, uid, .. }) = app.launcher.clone() {
                let pod = self.pod(&app, name, uid, Role::Launcher, 0);
                self.put(Pod { phase: "Running", ..pod });
                let wait = self.launchers.millis(5000, 100_000);
                self.after(wait, Event::ExitLauncher(number));
            }
            self.apps.push(app);
            if kind != Kind::Loose {
                self.after(Duration::from_secs(5), Event::Allocate(number));
            }
            for _ in 0..1 + self.rng.below(4) {
                self.create(number);
            }
        }
    }

    /// In some histories executors name another pod than their driver as their controller. The choice does not change the others.
    fn pick_launcher(&mut self, app: &App) -> Option<Launcher> {
        if !matches!(self.seed % 16, 6 | 10 | 14) || app.kind == Kind::Loose {
            return None;
        }
        let unlabelled = [Names::SecondOwner, Names::Address];
        let names = match app.kind {
            Kind::Client => *self.launchers.pick(&unlabelled),
            Kind::Cluster | Kind::Loose => *self.launchers.pick(&[Names::SecondOwner, Names::Address, Names::Nothing]),
        };
        Some(Launcher { name: format!("launcher-{}", app.number), uid: format!("l{}", app.number), names })
    }

    /// A launcher has done its work.
    pub(super) fn exit_launcher(&mut self, number: usize) {
        let Some(launcher) = self.apps[number].launcher.clone() else { return };
        let is_kept = self.launchers.chance(70);
        self.record(|| format!("{} exits", launcher.name));
        if is_kept {
            self.change(&launcher.name, |pod| pod.phase = "Succeeded");
        } else {
            self.remove(&launcher.name);
        }
    }

    fn pod(&self, app: &App, name: String, uid: String, role: Role, id: u32) -> Pod {
        Pod {
            name,
            uid,
            version: 0,
            role,
            app: app.number,
            id,
            phase: "Pending",
            code: None,
            reason: None,
            finished: None,
            deleting: None,
            inactive: false,
            by_usher: false,
            skip: false,
            owner: None,
            second_owner: None,
            has_address: false,
            restarts: false,
            created: self.now,
            exited: None,
            by_driver: false,
            unlabelled: false,
            fault: Fault::None,
            bound: None,
            running: None,
            lingers: false,
        }
    }

    /// A driver creates an executor, sometimes with the name of an earlier one.
    pub(super) fn create(&mut self, number: usize) {
        let app = self.apps[number].clone();
        let reused = self.rng.chance(45) && app.next_id > 1;
        let id = if reused { 1 + self.rng.below(u64::from(app.next_id) - 1) as u32 } else { app.next_id };
        // Drivers join by id, which Spark does not use again.
        if self.registered.values().any(|known| (known.app, known.id) == (number, id)) {
            return;
        }
        let name = format!("exec-{number}-{id}");
        if self.truth.pods.contains_key(&name) {
            return;
        }
        self.apps[number].next_id = app.next_id.max(id + 1);
        let uid = format!("{name}@{}", self.truth.version);
        let skip = self.rng.chance(5);
        let fault = self.pick_fault();
        let mut pod = Pod { skip, fault, ..self.pod(&app, name.clone(), uid, Role::Executor, id) };
        if app.kind != Kind::Loose {
            pod.owner = Some((app.driver.clone(), app.driver_uid.clone()));
        }
        if let Some(launcher) = &app.launcher {
            pod.second_owner = pod.owner.take().filter(|_| launcher.names == Names::SecondOwner);
            pod.has_address = launcher.names == Names::Address;
            pod.owner = Some((launcher.name.clone(), launcher.uid.clone()));
        }
        self.record(|| format!("{name} is created: {fault:?}"));
        self.put(pod.clone());
        self.begin(&pod);
    }

    fn pick_pod(&mut self, wanted: impl Fn(&Pod) -> bool) -> Option<String> {
        let all: Vec<String> = self.truth.pods.values().filter(|pod| wanted(pod)).map(|pod| pod.name.clone()).collect();
        (!all.is_empty()).then(|| self.rng.pick(&all).clone())
    }

    pub(super) fn random_change(&mut self) {
        if self.now >= CHANGES_END {
            return;
        }
        let executor = |pod: &Pod| pod.role == Role::Executor;
        match self.rng.below(100) {
            0..25 => {
                let number = self.rng.below(self.apps.len() as u64) as usize;
                if self.driver_is_running(&self.apps[number]) != Some(false) {
                    self.create(number);
                }
            }
            25..55 => {
                if let Some(name) =
                    self.pick_pod(|pod| executor(pod) && pod.phase == "Pending" && pod.deleting.is_none())
                {
                    let uid = self.truth.pods[&name].uid.clone();
                    self.start_executor(&name, &uid);
                }
            }
            55..80 => {
                if let Some(name) = self.pick_pod(|pod| executor(pod) && pod.phase == "Running") {
                    self.exit_executor(&name);
                }
            }
            80..86 => {
                let forced = self.rng.chance(40);
                if let Some(name) = self.pick_pod(|pod| executor(pod) && pod.deleting.is_none()) {
                    let grace = if forced { Duration::ZERO } else { self.rng.millis(500, 8000) };
                    self.delete(&name, grace);
                }
            }
            86..89 => self.exit_driver(),
            89..90 => {
                if let Some(name) =
                    self.pick_pod(|pod| executor(pod) && pod.phase == "Running" && pod.deleting.is_none())
                {
                    self.record(|| format!("the label of {name} is removed"));
                    self.change(&name, |pod| pod.unlabelled = true);
                }
            }
            90..92 => {
                let number = self.rng.below(self.replicas.len() as u64) as usize;
                self.after(Duration::ZERO, Event::Crash(number));
            }
            92..93 => {
                let number = self.rng.below(self.replicas.len() as u64) as usize;
                let skew = jiff::SignedDuration::from_secs(self.rng.below(7200) as i64 - 3600);
                self.record(|| format!("the clock of r{number} is wrong by {skew}"));
                self.replicas[number].skew = skew;
            }
            93..95 => self.inject_false_leader(),
            95..96 => self.begin_outage(),
            96..99 => {
                let by_app = self.rng.chance(40);
                self.give_up(by_app);
            }
            _ => {
                let number = self.rng.below(self.replicas.len() as u64) as usize;
                let how_long = self.rng.millis(2000, 30_000);
                self.record(|| format!("the watch of r{number} is silent for {how_long:?}"));
                self.replicas[number].silent_until = self.now + how_long;
            }
        }
        let wait = self.rng.millis(200, 4000);
        self.after(wait, Event::RandomChange);
    }

    /// An executor exits.
    fn exit_executor(&mut self, name: &str) {
        let (phase, code, reason) = *self.rng.pick(&[
            ("Failed", Some(1), None),
            ("Failed", Some(137), None),
            ("Failed", Some(143), Some("Evicted")),
            ("Failed", None, Some("OutOfcpu")),
            ("Succeeded", Some(0), None),
        ]);
        let now = self.now;
        self.record(|| format!("{name} exits: {phase} {code:?} {reason:?}"));
        self.change(name, |pod| {
            if pod.deleting.is_none() {
                (pod.phase, pod.code, pod.reason, pod.finished) = (phase, code, reason, Some(now));
            }
        });
        let Some(pod) = self.truth.pods.get(name).cloned() else { return };
        let app = self.apps[pod.app].clone();
        if app.reacts && app.kind != Kind::Loose {
            // The driver detects it soon by its watch, or later by its poll.
            let within = u64::try_from(app.grace().as_millis()).unwrap() / 2;
            let wait = self.rng.millis(10, within.max(20));
            self.after(wait, Event::React(name.to_owned(), pod.uid));
        }
    }

    /// The API server is unavailable for all clients.
    fn begin_outage(&mut self) {
        let until = self.now + self.rng.millis(5000, 60_000);
        self.record(|| format!("the API server is unavailable until {until:?}"));
        self.outages.push((self.now, until));
        self.retry_watches();
    }

    /// Retries of the watches while the API server is unavailable.
    pub(super) fn retry_watches(&mut self) {
        let Some(until) = self.outage_end() else { return self.publish() };
        let at = self.instant();
        for replica in &mut self.replicas {
            if let Some(controller) = &mut replica.controller {
                controller.watch_interrupted(at);
            }
        }
        self.after((until - self.now).min(Duration::from_secs(1)), Event::RetryWatches);
    }

    /// An executor exits because its driver no longer exists.
    pub(super) fn loses_driver(&mut self, name: &str, uid: &str) {
        let there = self.truth.pods.get(name);
        if there.is_some_and(|pod| pod.uid == uid && pod.phase == "Running" && pod.deleting.is_none()) {
            let now = self.now;
            self.record(|| format!("{name} loses its driver"));
            self.change(name, |pod| (pod.phase, pod.code, pod.finished) = ("Failed", Some(1), Some(now)));
        }
    }

    /// A driver deletes or labels its executor.
    pub(super) fn react(&mut self, name: &str, uid: &str) {
        let Some(pod) = self.truth.pods.get(name).filter(|pod| pod.uid == uid && pod.is_finished()).cloned() else {
            return;
        };
        let app = self.apps[pod.app].clone();
        if self.driver_is_running(&app) != Some(true) {
            return;
        }
        if app.deletes || app.kind == Kind::Client {
            self.record(|| format!("its driver deletes {name}"));
            self.remove(name);
        } else {
            self.record(|| format!("its driver labels {name}"));
            self.change(name, |pod| {
                pod.inactive = true;
                pod.by_driver = true;
            });
        }
    }

    fn exit_driver(&mut self) {
        let number = self.rng.below(self.apps.len() as u64) as usize;
        let app = self.apps[number].clone();
        if self.driver_is_running(&app) != Some(true) {
            return;
        }
        self.apps[number].driver_exited = Some(self.now);
        if app.kind == Kind::Cluster && self.rng.chance(25) {
            self.record(|| format!("{} exits, and its sidecar runs on", app.driver));
            self.apps[number].lingers = true;
            self.orphan(number);
            return self.change(&app.driver, |pod| pod.lingers = true);
        }
        self.orphan(number);
        if self.rng.chance(50) {
            self.record(|| format!("{} fails", app.driver));
            let now = self.now;
            self.change(&app.driver, |pod| (pod.phase, pod.code, pod.finished) = ("Failed", Some(1), Some(now)));
            return;
        }
        self.remove(&app.driver);
        if self.rng.chance(30) {
            // Another pod gets the name: one of a StatefulSet, or a user's next notebook.
            let role = if app.kind == Kind::Cluster { Role::Driver } else { Role::Notebook };
            let pod = self.pod(&app, app.driver.clone(), format!("{}-new", app.driver_uid), role, 0);
            if role == Role::Notebook {
                self.put(Pod { phase: "Running", ..pod });
            }
        }
        // The garbage collector deletes the objects that the driver's pod owned after some time.
        let owned: Vec<(String, String)> = self
            .truth
            .pods
            .values()
            .filter(|pod| pod.owner.as_ref().is_some_and(|(_, uid)| *uid == app.driver_uid))
            .map(|pod| (pod.name.clone(), pod.uid.clone()))
            .collect();
        let broken = self.rng.chance(40);
        for (name, uid) in owned.into_iter().filter(|_| !broken) {
            let wait = self.rng.millis(500, 20_000);
            self.after(wait, Event::Remove(name, uid));
        }
    }

    /// The executors of a driver that exits notice that, most of them.
    pub(super) fn orphan(&mut self, number: usize) {
        let executors = self.truth.pods.values().filter(|pod| pod.app == number && pod.role == Role::Executor);
        let executors: Vec<(String, String)> = executors.map(|pod| (pod.name.clone(), pod.uid.clone())).collect();
        for (name, uid) in executors {
            let wait = self.rng.millis(100, 3000);
            if !self.rng.chance(20) {
                self.after(wait, Event::LosesDriver(name, uid));
            }
        }
    }

    /// Makes a replica believe for a while that it leads, regardless of the lease.
    fn inject_false_leader(&mut self) {
        let number = self.rng.below(self.replicas.len() as u64) as usize;
        let until = self.instant() + self.rng.millis(2000, 15_000);
        if self.replicas[number].controller.is_some() {
            self.record(|| format!("r{number} believes that it leads"));
            self.replicas[number].falsely_leads = true;
            self.replicas[number].until = Some(until);
        }
    }
}
