//! The cluster, the replicas in it, and what really happened.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::ArcSwap;
use axum::Router;
use kube::Client;
use kube::core::Status;
use serde_json::{Value, json};
use spark_usher::policy::{Finished, Lifecycle, Policies};
use spark_usher::sandbox::{InProcess, Options, Pods};
use tokio::sync::watch;
use tokio::time::Instant;

use super::apps::{App, GRACE, Later, Life};
use super::judge::counted;
use super::line::{Line, Write, get};
use super::replica::Replica;
use super::rng::Rng;
use super::told::Told;
use crate::support::{only, policy};

/// How often the world goes on by itself while nothing else happens.
const TICK: Duration = Duration::from_secs(3);
pub const NAMESPACES: [&str; 2] = ["default", "team"];

/// From when on nothing is wrong any more, and what was counted by then.
#[derive(Clone, Copy, Debug)]
pub struct Quiet {
    pub since: Instant,
    /// Ends that Events counted,
    pub events: u64,
    /// and the lines that told of ends.
    pub told: usize,
}

pub struct World {
    pub seed: u64,
    pub rng: Rng,
    pub api: InProcess,
    pub routes: Router,
    admin: Client,
    pub policies: Arc<ArcSwap<Policies>>,
    /// What they said, and since when.
    pub valid: Vec<(Instant, Lifecycle)>,
    /// What must not happen, seen when it did.
    pub wrong: Vec<String>,
    pub dry_run: watch::Sender<bool>,
    /// When nothing was to be written.
    pub dry_runs: Vec<(Instant, Option<Instant>)>,
    pub replicas: BTreeMap<usize, Replica>,
    started: usize,
    /// Replicas whose watches lost events, and from when to when.
    pub lossy: Vec<(usize, Instant, Instant)>,
    /// When watches were cut.
    pub cuts: Vec<Instant>,
    /// When replicas were told to stop.
    pub stopped: BTreeMap<usize, Instant>,
    /// Replicas that were told to stop, and when they end.
    pub closing: Vec<(Instant, Replica)>,
    /// Replicas that are to be started at a time.
    pub coming: Vec<Instant>,
    /// Ways that are to be good again at a time.
    pub mending: Vec<(Instant, Arc<Line>)>,
    /// What is to happen at a time.
    pub later: Vec<(Instant, Later)>,
    pub apps: Vec<App>,
    /// Executors by uid.
    pub lives: BTreeMap<String, Life>,
    pub next_executor: u32,
    pub writes: Arc<Mutex<Vec<Write>>>,
    pub told: Told,
    pub history: Vec<String>,
    pub began: Instant,
    pub lines: Vec<Arc<Line>>,
    pub kills: usize,
    /// When something was wrong, or changed, that may keep a replica from seeing or telling an end.
    pub disturbed: Vec<(Instant, Instant)>,
    pub quiet: Option<Quiet>,
    /// Nothing goes wrong in this history: replicas come and go, as in rolling updates, and applications do what they do.
    pub is_gentle: bool,
}

impl World {
    pub fn new(seed: u64, told: Told) -> World {
        let mut rng = Rng::new(seed);
        let is_gentle = rng.once_in(2);
        let policies = policies(&mut rng);
        let valid = vec![(Instant::now(), policies.lifecycle)];
        let policies = Arc::new(ArcSwap::from_pointee(policies));
        let api = InProcess::start(&Options { pods: Pods::Placed, node_size: (4000, 16_000), ..Options::default() });
        let routes = api.routes();
        World {
            seed,
            rng,
            admin: super::line::direct(routes.clone()),
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
            closing: Vec::new(),
            coming: Vec::new(),
            mending: Vec::new(),
            later: Vec::new(),
            apps: Vec::new(),
            lives: BTreeMap::new(),
            next_executor: 1,
            writes: Arc::default(),
            told,
            history: Vec::new(),
            began: Instant::now(),
            lines: Vec::new(),
            kills: 0,
            disturbed: Vec::new(),
            quiet: None,
            is_gentle,
        }
    }

    pub fn note(&mut self, what: String) {
        let at = self.began.elapsed().as_secs_f64();
        self.history.push(format!("{at:8.2} {what}"));
    }

    pub fn start_replica(&mut self) {
        let number = self.started;
        self.started += 1;
        let line = Line::new(number, self.seed ^ (number as u64 + 1), self.is_gentle, self.writes.clone());
        self.lines.push(line.clone());
        let replica = Replica::start(number, line, &self.routes, &self.policies, self.dry_run.subscribe());
        self.replicas.insert(number, replica);
        self.note(format!("replica {number} starts"));
    }

    /// Some replica.
    pub fn some(&mut self) -> Option<usize> {
        let at = self.rng.below(self.replicas.len().max(1) as u64) as usize;
        self.replicas.keys().nth(at).copied()
    }

    /// Asks the API server, which always answers people; null for what is not there.
    pub async fn request(&self, method: &str, path: &str, body: Value) -> Value {
        match self.try_request(method, path, body).await {
            Ok(answer) => answer,
            Err(status) if status.code == 404 => Value::Null,
            Err(status) => panic!("{method} {path}: {status:?}"),
        }
    }

    /// Asks the API server for what it may refuse.
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

    /// What is there before anything happens.
    pub async fn furnish(&mut self) {
        self.request("POST", "/api/v1/namespaces", json!({"metadata": {"name": "team"}})).await;
        for namespace in NAMESPACES {
            let account = json!({"metadata": {"name": "spark", "namespace": namespace}});
            self.request("POST", &format!("/api/v1/namespaces/{namespace}/serviceaccounts"), account).await;
        }
        // Now and then so many applications that what is done in parts is.
        if self.rng.once_in(16) {
            for _ in 0..100 {
                self.new_app().await;
                let app = self.apps.len() - 1;
                self.new_executor_of(app).await;
            }
        }
    }

    /// What goes on by itself: kubelets run what is placed and let go of what is deleted, replicas come, ways are mended; and
    /// who knows whom is noted.
    pub async fn tick(&mut self) {
        let now = Instant::now();
        while let Some(at) = self.coming.iter().position(|at| *at <= now) {
            self.coming.remove(at);
            self.start_replica();
        }
        while let Some(at) = self.closing.iter().position(|(at, _)| *at <= now) {
            self.closing.remove(at).1.stop().await;
        }
        self.mending.retain(|(until, line)| {
            let over = *until <= now;
            if over {
                line.mend();
            }
            !over
        });
        while let Some(at) = self.later.iter().position(|(at, _)| *at <= now) {
            let (_, what) = self.later.remove(at);
            self.happen(what).await;
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
            if pending && !text("/spec/nodeName").is_empty() && !self.lives.get(uid).is_some_and(|life| life.waits) {
                self.status(namespace, name, json!({"phase": "Running"})).await;
            }
            there.insert(uid.to_owned());
        }
        for (uid, life) in &mut self.lives {
            if !there.contains(uid) && life.gone.is_none() {
                life.gone = Some(now);
                // The garbage collector takes what a deleted driver owned.
                let is_expected = life.deleted || life.unlabelled || self.apps[life.app].ended.is_some();
                if life.ended.is_none() && !is_expected {
                    self.wrong.push(format!("{} lived and is gone: {life:?}", life.name));
                }
            }
            if life.ended.is_none() && life.gone.is_none() && !life.unlabelled {
                for (number, replica) in &self.replicas {
                    if !life.known_by.contains(number) && replica.knows(uid) {
                        life.known_by.push(*number);
                    }
                }
            }
        }
    }

    /// Time passes.
    pub async fn wait(&mut self, long: Duration) {
        let until = Instant::now() + long;
        while Instant::now() < until {
            tokio::time::sleep_until(until.min(Instant::now() + TICK)).await;
            self.tick().await;
        }
    }

    /// Something is wrong until then, from now on.
    pub fn disturb(&mut self, until: Instant) {
        self.disturbed.push((Instant::now(), until));
    }

    /// From here on every end has its Event.
    pub async fn begin_to_count(&mut self) {
        let events = counted(&self.routes).await.values().sum();
        self.quiet = Some(Quiet { since: Instant::now(), events, told: self.told.lines.lock().unwrap().len() });
        self.note("quiet".into());
    }

    /// All pods, as the API server has them.
    pub async fn pods(&self) -> Vec<Value> {
        let mut pods = get(&self.routes, "/api/v1/pods").await;
        pods["items"].as_array_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Something happens.
    pub async fn step(&mut self) {
        match self.rng.below(82) {
            0..28 => self.new_executor().await,
            28..44 => self.end_executor().await,
            44..48 => self.delete_executor(true).await,
            48..51 => self.delete_executor(false).await,
            51 => self.label_executor().await,
            52 => self.take_label_off().await,
            53..55 => self.end_driver(false).await,
            55 => self.end_driver(true).await,
            56..60 => self.new_app().await,
            60..64 if !self.is_gentle => self.trouble(),
            64..67 if !self.is_gentle => self.be_late(),
            67 => self.cut(false),
            68..70 if !self.is_gentle => self.cut(true),
            70 if !self.is_gentle => self.kill(),
            71 => self.restart(),
            72 => self.reload(),
            73 => self.forge().await,
            _ => {}
        }
    }

    /// Something happens that is no trouble to anybody.
    pub async fn peaceful_step(&mut self) {
        match self.rng.below(32) {
            0..12 => self.new_executor().await,
            12..24 => self.end_executor().await,
            24..26 => self.delete_executor(true).await,
            26..28 => self.delete_executor(false).await,
            28 => self.end_driver(false).await,
            29 => self.end_driver(true).await,
            30 => self.new_app().await,
            _ => self.cut(false),
        }
    }

    /// Everything is mended, and there are two replicas.
    pub async fn calm(&mut self) {
        self.note("calm".into());
        for (_, line) in std::mem::take(&mut self.mending) {
            line.mend();
        }
        self.set_dry_run(false);
        self.coming.clear();
        while self.replicas.len() < 2 {
            self.start_replica();
        }
        self.fill_gangs().await;
    }

    /// Applications whose gang waits get what it waits for.
    pub async fn fill_gangs(&mut self) {
        for app in 0..self.apps.len() {
            let live = self.lives.values().filter(|life| life.app == app && life.is_live()).count();
            if self.apps[app].ended.is_none() && live > 0 {
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

/// Policies as an operator might have them: with or without gangs, and any way of clearing up.
pub fn policies(rng: &mut Rng) -> Policies {
    let finished = *rng.pick(&[Finished::Label, Finished::Delete, Finished::Report]);
    let poll = Duration::from_secs(*rng.pick(&[5, 30]));
    let kind = *rng.pick(&["native", "none"]);
    let keep_failed = Duration::from_secs(*rng.pick(&[60, 3600]));
    only(policy(kind)).with_lifecycle(Lifecycle { finished, poll, grace: GRACE, keep_failed })
}
