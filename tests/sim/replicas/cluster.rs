//! The cluster, its replicas, and the true history.

use crate::support::{only, policy};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::ArcSwap;
use axum::Router;
use kube::Client;
use kube::core::Status;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;
use usher_core::policy::{Finished, Lifecycle, Policies};
use usher_sandbox::{InProcess, Options, Pods};

use super::apps::{App, ExecutorHistory, GRACE, Later};
use super::connection::{Connection, Unstreamed, Write, get};
use super::invariants::counted;
use super::log::ExitLog;
use super::replica::Replica;
use crate::support::rng::Rng;

/// The interval of ticks while nothing else happens.
const TICK: Duration = Duration::from_secs(3);
pub const NAMESPACES: [&str; 2] = ["default", "team"];

/// The beginning of the time without faults, and the counts at that time.
#[derive(Clone, Copy, Debug)]
pub struct FaultFreePhase {
    pub since: Instant,
    /// Exits that Events count.
    pub events: u64,
    /// Exits that logs report.
    pub reports: usize,
}

pub struct SimCluster {
    pub seed: u64,
    pub rng: Rng,
    pub api: InProcess,
    pub routes: Router,
    admin: Client,
    pub policies: Arc<ArcSwap<Policies>>,
    /// The lifecycle settings, and since when they apply.
    pub valid: Vec<(Instant, Lifecycle)>,
    /// Violations that were detected during the history.
    pub wrong: Vec<String>,
    pub dry_run: watch::Sender<bool>,
    /// The times of dry runs, in which the product must not write.
    pub dry_runs: Vec<(Instant, Option<Instant>)>,
    pub replicas: BTreeMap<usize, Replica>,
    started: usize,
    /// Replicas whose watches lost events, with begin and end.
    pub lossy: Vec<(usize, Instant, Instant)>,
    /// When watches were cut.
    pub cuts: Vec<Instant>,
    /// When replicas began to stop.
    pub stopped: BTreeMap<usize, Instant>,
    /// Replicas that are stopping, and when they exit.
    pub stopping: Vec<(Instant, Replica)>,
    /// When new replicas start.
    pub starting: Vec<Instant>,
    /// Connections with faults, and when these end.
    pub faulty: Vec<(Instant, Arc<Connection>)>,
    /// Events that are due later.
    pub later: Vec<(Instant, Later)>,
    pub apps: Vec<App>,
    /// Executors by uid.
    pub executors: BTreeMap<String, ExecutorHistory>,
    pub next_executor: u32,
    pub writes: Arc<Mutex<Vec<Write>>>,
    pub log: ExitLog,
    pub history: Vec<String>,
    pub began: Instant,
    pub connections: Vec<Arc<Connection>>,
    pub kills: usize,
    /// The times of faults and changes that may prevent a replica from detecting or reporting an exit.
    pub disturbed: Vec<(Instant, Instant)>,
    pub fault_free_phase: Option<FaultFreePhase>,
    /// A history without faults: only rolling updates of the replicas, and the events of applications.
    pub is_fault_free: bool,
}

impl SimCluster {
    pub fn new(seed: u64, log: ExitLog) -> SimCluster {
        let mut rng = Rng::new(seed);
        let is_fault_free = rng.once_in(2);
        let policies = policies(&mut rng);
        let valid = vec![(Instant::now(), policies.lifecycle)];
        let policies = Arc::new(ArcSwap::from_pointee(policies));
        let api = InProcess::start(&Options { pods: Pods::Placed, node_size: (4000, 16_000), ..Options::default() });
        let routes = api.routes();
        SimCluster {
            seed,
            rng,
            admin: super::connection::direct(routes.clone()),
            api,
            routes,
            policies,
            valid,
            wrong: Vec::new(),
            dry_run: watch::Sender::new(false),
            dry_runs: Vec::new(),
            replicas: BTreeMap::new(),
            started: 0,
            lossy: Vec::new(),
            cuts: Vec::new(),
            stopped: BTreeMap::new(),
            stopping: Vec::new(),
            starting: Vec::new(),
            faulty: Vec::new(),
            later: Vec::new(),
            apps: Vec::new(),
            executors: BTreeMap::new(),
            next_executor: 1,
            writes: Arc::default(),
            log,
            history: Vec::new(),
            began: Instant::now(),
            connections: Vec::new(),
            kills: 0,
            disturbed: Vec::new(),
            fault_free_phase: None,
            is_fault_free,
        }
    }

    pub fn note(&mut self, what: String) {
        let at = self.began.elapsed().as_secs_f64();
        self.history.push(format!("{at:8.2} {what}"));
    }

    pub fn start_replica(&mut self) {
        let number = self.started;
        self.started += 1;
        // One API server of the histories in two cannot stream lists.
        let unstreamed = [Unstreamed::Status(500), Unstreamed::Event, Unstreamed::Empty].get((self.seed % 6) as usize);
        let seed = self.seed ^ (number as u64 + 1);
        let connection = Connection::new(number, seed, self.is_fault_free, unstreamed.copied(), self.writes.clone());
        self.connections.push(connection.clone());
        let replica = Replica::start(number, connection, &self.routes, &self.policies, self.dry_run.subscribe());
        self.replicas.insert(number, replica);
        self.note(format!("replica {number} starts"));
    }

    /// A random replica.
    pub fn pick_replica(&mut self) -> Option<usize> {
        let at = self.rng.below(self.replicas.len().max(1) as u64) as usize;
        self.replicas.keys().nth(at).copied()
    }

    /// Sends a request on a connection without faults; null for 404.
    pub async fn request(&self, method: &str, path: &str, body: Value) -> Value {
        match self.try_request(method, path, body).await {
            Ok(answer) => answer,
            Err(status) if status.code == 404 => Value::Null,
            Err(status) => panic!("{method} {path}: {status:?}"),
        }
    }

    /// Sends a request that the API server may reject.
    pub async fn try_request(&self, method: &str, path: &str, body: Value) -> Result<Value, Box<Status>> {
        let request = axum::http::Request::builder().method(method).uri(path);
        let content = if method == "PATCH" { "application/strategic-merge-patch+json" } else { "application/json" };
        let request = request.header("content-type", content).body(body.to_string().into_bytes()).unwrap();
        match self.admin.request::<Value>(request).await {
            Ok(answer) => Ok(answer),
            Err(kube::Error::Api(status)) => Err(status),
            Err(error) => panic!("{method} {path}: {error}"),
        }
    }

    /// Creates the objects that exist before the history begins.
    pub async fn create_objects(&mut self) {
        self.request("POST", "/api/v1/namespaces", json!({"metadata": {"name": "team"}})).await;
        for namespace in NAMESPACES {
            let account = json!({"metadata": {"name": "spark", "namespace": namespace}});
            self.request("POST", &format!("/api/v1/namespaces/{namespace}/serviceaccounts"), account).await;
        }
        // Sometimes so many applications that the product works in batches.
        if self.rng.once_in(16) {
            for _ in 0..100 {
                self.new_app().await;
                let app = self.apps.len() - 1;
                self.new_executor_of(app).await;
            }
        }
    }

    /// The periodic events: kubelets run scheduled pods and remove deleted ones, replicas start and stop, faults end. Also
    /// records which replica knows which executor.
    pub async fn tick(&mut self) {
        let now = Instant::now();
        while let Some(at) = self.starting.iter().position(|at| *at <= now) {
            self.starting.remove(at);
            self.start_replica();
        }
        while let Some(at) = self.stopping.iter().position(|(at, _)| *at <= now) {
            self.stopping.remove(at).1.stop().await;
        }
        self.faulty.retain(|(until, connection)| {
            let over = *until <= now;
            if over {
                connection.clear_faults();
            }
            !over
        });
        while let Some(at) = self.later.iter().position(|(at, _)| *at <= now) {
            let (_, what) = self.later.remove(at);
            self.run_event(what).await;
        }
        let mut there = BTreeSet::new();
        for pod in self.pods().await {
            let text = |pointer: &str| pod.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
            let (namespace, name, uid) = (text("/metadata/namespace"), text("/metadata/name"), text("/metadata/uid"));
            let pending = matches!(text("/status/phase"), "" | "Pending");
            if pod["metadata"]["deletionTimestamp"].is_string() {
                self.delete(namespace, name).await;
                continue;
            }
            if pending
                && !text("/spec/nodeName").is_empty()
                && !self.executors.get(uid).is_some_and(|executor| executor.waits)
            {
                self.status(namespace, name, json!({"phase": "Running"})).await;
            }
            there.insert(uid.to_owned());
        }
        for (uid, executor) in &mut self.executors {
            if !there.contains(uid) && executor.removed.is_none() {
                executor.removed = Some(now);
                // The garbage collector deletes the executors of a deleted driver.
                let is_expected = executor.deleted || executor.unlabelled || self.apps[executor.app].exited.is_some();
                if executor.exited.is_none() && !is_expected {
                    self.wrong.push(format!("{} was running and no longer exists: {executor:?}", executor.name));
                }
            }
            if executor.exited.is_none() && executor.removed.is_none() && !executor.unlabelled {
                for (number, replica) in &self.replicas {
                    if !executor.known_by.contains(number) && replica.knows(uid) {
                        executor.known_by.push(*number);
                    }
                }
            }
        }
    }

    /// Lets time pass.
    pub async fn wait(&mut self, long: Duration) {
        let until = Instant::now() + long;
        while Instant::now() < until {
            tokio::time::sleep_until(until.min(Instant::now() + TICK)).await;
            self.tick().await;
        }
    }

    /// Records a fault from now until then.
    pub fn disturb(&mut self, until: Instant) {
        self.disturbed.push((Instant::now(), until));
    }

    /// Begins the time without faults: from now on, every abnormal exit must have its Event.
    pub async fn begin_fault_free_phase(&mut self) {
        let events = counted(&self.routes).await.values().sum();
        self.fault_free_phase =
            Some(FaultFreePhase { since: Instant::now(), events, reports: self.log.reports.lock().unwrap().len() });
        self.note("the time without faults begins".into());
    }

    /// All pods of the API server.
    pub async fn pods(&self) -> Vec<Value> {
        let mut pods = get(&self.routes, "/api/v1/pods").await;
        pods["items"].as_array_mut().map(std::mem::take).unwrap_or_default()
    }

    /// A random event, including faults.
    pub async fn step(&mut self) {
        match self.rng.below(82) {
            0..28 => self.new_executor().await,
            28..44 => self.exit_executor().await,
            44..48 => self.delete_executor(true).await,
            48..51 => self.delete_executor(false).await,
            51 => self.label_executor().await,
            52 => self.remove_label().await,
            53..55 => self.exit_driver(false).await,
            55 => self.exit_driver(true).await,
            56..60 => self.new_app().await,
            60..64 if !self.is_fault_free => self.inject_fault(),
            64..67 if !self.is_fault_free => self.delay_watches(),
            67 => self.cut_watches(false),
            68..70 if !self.is_fault_free => self.cut_watches(true),
            70 if !self.is_fault_free => self.kill(),
            71 => self.restart(),
            72 => self.reload(),
            73 => self.forge().await,
            _ => {}
        }
    }

    /// A random event without a fault.
    pub async fn fault_free_step(&mut self) {
        match self.rng.below(32) {
            0..12 => self.new_executor().await,
            12..24 => self.exit_executor().await,
            24..26 => self.delete_executor(true).await,
            26..28 => self.delete_executor(false).await,
            28 => self.exit_driver(false).await,
            29 => self.exit_driver(true).await,
            30 => self.new_app().await,
            _ => self.cut_watches(false),
        }
    }

    /// Removes all faults and starts replicas until there are two.
    pub async fn remove_faults(&mut self) {
        self.note("all faults are removed".into());
        for (_, connection) in std::mem::take(&mut self.faulty) {
            connection.clear_faults();
        }
        self.set_dry_run(false);
        self.starting.clear();
        while self.replicas.len() < 2 {
            self.start_replica();
        }
        self.fill_gangs().await;
    }

    /// Creates the executors that waiting gangs lack.
    pub async fn fill_gangs(&mut self) {
        for app in 0..self.apps.len() {
            // Those that were created without the webhook are no members.
            let is_member =
                |executor: &&ExecutorHistory| executor.app == app && executor.is_active() && executor.admitted;
            let live = self.executors.values().filter(is_member).count();
            if self.apps[app].exited.is_none() && live > 0 {
                for _ in live..self.apps[app].gang.unwrap_or_default() {
                    self.new_executor_of(app).await;
                }
            }
        }
    }

    pub fn set_dry_run(&mut self, is_dry: bool) {
        if self.dry_run.send_replace(is_dry) == is_dry {
            return;
        }
        self.note(format!("dry run: {is_dry}"));
        let now = Instant::now();
        match self.dry_runs.last_mut() {
            Some((_, end @ None)) if !is_dry => *end = Some(now),
            _ => self.dry_runs.push((now, None)),
        }
    }

    pub async fn stop(self) {
        drop(self.replicas);
        self.api.stop().await.unwrap();
    }
}

/// Random policies: with or without gangs, and each kind of cleanup.
pub fn policies(rng: &mut Rng) -> Policies {
    let finished = *rng.pick(&[Finished::Label, Finished::Delete, Finished::Report]);
    let poll = Duration::from_secs(*rng.pick(&[5, 30]));
    let kind = *rng.pick(&["native", "none"]);
    let keep_failed = Duration::from_secs(*rng.pick(&[60, 3600]));
    only(policy(kind)).with_lifecycle(Lifecycle { finished, poll, grace: GRACE, keep_failed, ..Lifecycle::default() })
}
