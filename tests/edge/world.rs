//! The cluster, the replicas in it, and what really happened.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::ArcSwap;
use axum::Router;
use kube::Client;
use serde_json::{Value, json};
use spark_usher::cluster::lease::{self, Election, Leadership, Reported, Ties};
use spark_usher::cluster::limit::Rate;
use spark_usher::cluster::reconcile::{self, Inputs};
use spark_usher::lifecycle::Settings;
use spark_usher::policy::{Finished, Lifecycle, Policies};
use spark_usher::runtime::supervise::Supervisor;
use spark_usher::sandbox::{InProcess, Options};
use spark_usher::snapshot::Snapshot;
use spark_usher::telemetry::metrics::Metrics;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::line::{Dice, Line, State, Write, get};
use super::told::Told;
use crate::support::{PodBuilder, pod};

/// A replica of spark-usher: its own watches, election and loop, on its own way to the API server.
pub struct Replica {
    pub line: Arc<Line>,
    pub snapshot: Arc<ArcSwap<Snapshot>>,
    pub leading: watch::Receiver<Option<Arc<Leadership>>>,
    leaving: CancellationToken,
    supervisor: Supervisor,
}

impl Replica {
    fn start(number: usize, line: Arc<Line>, routes: &Router, policies: &Policies) -> Replica {
        let client = line.client(routes.clone());
        let (snapshot, metrics) =
            (Arc::new(ArcSwap::from_pointee(Snapshot::default())), Arc::new(Metrics::new().unwrap()));
        let mut supervisor = Supervisor::default();
        let identity = format!("replica-{number}");
        let (elected, leading) = watch::channel(None);
        let (led, led_seen) = watch::channel(false);
        let (contact, contact_seen) = watch::channel(None);
        let (reported, reported_seen) = watch::channel(Reported::default());
        let leaving = CancellationToken::new();
        let election = Election {
            namespace: "default".into(),
            name: "spark-usher".into(),
            identity: identity.clone(),
            duration: Duration::from_secs(15),
            period: Duration::from_secs(2),
        };
        let ties = Ties { leading: elected, led, contact, reported: reported_seen };
        let electing = lease::run(client.clone(), election, ties, metrics.clone(), leaving.clone());
        let until = supervisor.token().clone();
        supervisor.spawn("lease", async move {
            electing.await;
            until.cancelled().await;
            Ok(())
        });
        let inputs = Inputs {
            lists: client.clone(),
            client,
            instance: identity,
            snapshot: snapshot.clone(),
            policies: Arc::new(ArcSwap::from_pointee(policies.clone())),
            dry_run: watch::channel(false).1,
            leading: leading.clone(),
            led: led_seen,
            contact: contact_seen,
            reported,
            leaving: leaving.clone(),
            rate: Rate::default(),
            complete: watch::channel(false).0,
            exits: Arc::default(),
            signing: None,
            settings: Settings { seed: number as u64, takeover: Duration::from_secs(37), ..Settings::default() },
            metrics,
        };
        reconcile::spawn(inputs, &mut supervisor);
        Replica { line, snapshot, leading, leaving, supervisor }
    }

    pub fn leads(&self) -> bool {
        self.leading.borrow().as_ref().is_some_and(|leadership| leadership.holds())
    }

    fn knows(&self, uid: &str) -> bool {
        self.snapshot.load().apps.values().any(|app| app.executors().values().any(|executor| &*executor.uid == uid))
    }
}

/// What really became of an executor.
#[derive(Clone, Debug)]
pub struct Life {
    pub name: String,
    pub app: usize,
    pub owned: bool,
    pub began: Instant,
    pub ended: Option<Instant>,
    pub gone: Option<Instant>,
    pub code: i32,
    /// Replicas that had it in their picture while it lived.
    pub known_by: Vec<usize>,
}

/// A driver's pod, by the number of its application.
#[derive(Clone, Debug)]
pub struct Driver {
    pub uid: String,
    pub ended: Option<Instant>,
}

pub struct World {
    pub seed: u64,
    pub dice: Dice,
    api: InProcess,
    pub routes: Router,
    admin: Client,
    pub policies: Policies,
    pub replicas: BTreeMap<usize, Replica>,
    started: usize,
    /// Replicas that are to be started at a time.
    coming: Vec<Instant>,
    /// Ways that are to be good again at a time.
    mending: Vec<(Instant, Arc<Line>)>,
    pub drivers: Vec<Driver>,
    pub lives: BTreeMap<String, Life>,
    next_executor: u32,
    pub writes: Arc<Mutex<Vec<Write>>>,
    pub told: Told,
    pub history: Vec<String>,
    pub began: Instant,
    pub lines: Vec<Arc<Line>>,
    pub kills: usize,
}

pub fn selector(app: usize) -> String {
    format!("spark-{app:032x}")
}

impl World {
    pub fn new(seed: u64, told: Told) -> World {
        let mut dice = Dice::new(seed);
        let finished = [Finished::Label, Finished::Delete, Finished::Report][dice.below(3) as usize];
        let poll = Duration::from_secs([5, 30][dice.below(2) as usize]);
        let lifecycle = Lifecycle { finished, poll, ..Lifecycle::default() };
        let policies = Policies::default().with_lifecycle(lifecycle);
        let api = InProcess::start(&Options { run_pods: false, nodes: 1, ..Options::default() });
        let routes = api.routes();
        let writes = Arc::new(Mutex::new(Vec::new()));
        let admin = super::line::direct(routes.clone());
        World {
            seed,
            dice,
            api,
            routes,
            admin,
            policies,
            replicas: BTreeMap::new(),
            started: 0,
            coming: Vec::new(),
            mending: Vec::new(),
            drivers: Vec::new(),
            lives: BTreeMap::new(),
            next_executor: 1,
            writes,
            told,
            history: Vec::new(),
            began: Instant::now(),
            lines: Vec::new(),
            kills: 0,
        }
    }

    pub fn note(&mut self, what: String) {
        let at = self.began.elapsed().as_secs_f64();
        self.history.push(format!("{at:8.2} {what}"));
    }

    pub fn start_replica(&mut self) {
        let number = self.started;
        self.started += 1;
        let line = Line::new(number, self.seed ^ (number as u64 + 1), self.writes.clone());
        self.lines.push(line.clone());
        let replica = Replica::start(number, line, &self.routes, &self.policies);
        self.replicas.insert(number, replica);
        self.note(format!("replica {number} starts"));
    }

    /// Some replica.
    fn some(&mut self) -> Option<usize> {
        let at = self.dice.below(self.replicas.len().max(1) as u64) as usize;
        self.replicas.keys().nth(at).copied()
    }

    async fn request(&self, method: &str, path: &str, body: Value) -> Value {
        let request = axum::http::Request::builder().method(method).uri(path);
        let content = if method == "PATCH" { "application/strategic-merge-patch+json" } else { "application/json" };
        let request = request.header("content-type", content).body(body.to_string().into_bytes()).unwrap();
        match self.admin.request::<Value>(request).await {
            Ok(answer) => answer,
            // It went meanwhile.
            Err(kube::Error::Api(status)) if status.code == 404 => Value::Null,
            Err(error) => panic!("{method} {path}: {error}"),
        }
    }

    /// What is there before anything happens.
    pub async fn furnish(&self) {
        let account = json!({"metadata": {"name": "spark", "namespace": "default"}});
        self.request("POST", "/api/v1/namespaces/default/serviceaccounts", account).await;
    }

    fn path(name: &str) -> String {
        format!("/api/v1/namespaces/default/pods/{name}")
    }

    async fn create(&self, pod: PodBuilder) -> String {
        let mut pod = pod.0;
        pod.as_object_mut().unwrap().remove("status");
        for key in ["uid", "resourceVersion"] {
            pod["metadata"].as_object_mut().unwrap().remove(key);
        }
        for key in ["priority", "preemptionPolicy"] {
            pod["spec"].as_object_mut().unwrap().remove(key);
        }
        let made = self.request("POST", "/api/v1/namespaces/default/pods", pod).await;
        made["metadata"]["uid"].as_str().unwrap().to_owned()
    }

    async fn status(&self, name: &str, status: Value) {
        self.request("PATCH", &format!("{}/status", World::path(name)), json!({"status": status})).await;
    }

    /// Deletes a pod, and it is gone at once.
    async fn delete(&self, name: &str) {
        self.request("DELETE", &format!("{}?gracePeriodSeconds=0", World::path(name)), json!({})).await;
    }

    async fn new_app(&mut self) {
        let app = self.drivers.len();
        let name = format!("driver-{app}");
        let uid = self.create(pod(&name).driver_of(&selector(app))).await;
        self.status(&name, json!({"phase": "Running", "podIP": format!("10.0.0.{app}")})).await;
        self.drivers.push(Driver { uid, ended: None });
        self.note(format!("{name} runs"));
    }

    async fn new_executor(&mut self) {
        if self.drivers.is_empty() {
            return;
        }
        let app = self.dice.below(self.drivers.len() as u64) as usize;
        if self.drivers[app].ended.is_some() {
            return;
        }
        let (id, owned) = (self.next_executor, !self.dice.once_in(5));
        self.next_executor += 1;
        let name = format!("exec-{id}");
        let mut executor = pod(&name).executor_of(&selector(app), id).label("spark-version", "4.3.0");
        if owned {
            executor = executor.owned_by("Pod", &format!("driver-{app}"), &self.drivers[app].uid);
        }
        let uid = self.create(executor).await;
        if !self.dice.once_in(10) {
            self.status(&name, json!({"phase": "Running"})).await;
        }
        let began = Instant::now();
        self.note(format!("{name} of driver-{app} begins, uid {uid}"));
        self.lives
            .insert(uid, Life { name, app, owned, began, ended: None, gone: None, code: 0, known_by: Vec::new() });
    }

    /// An executor that is still there; one that lives, or one that ended.
    fn some_executor(&mut self, lives: bool) -> Option<String> {
        let there = self.lives.iter().filter(|(_, life)| life.gone.is_none() && life.ended.is_none() == lives);
        let there: Vec<String> = there.map(|(uid, _)| uid.clone()).collect();
        let at = self.dice.below(there.len().max(1) as u64) as usize;
        there.get(at).cloned()
    }

    async fn end_executor(&mut self) {
        let Some(uid) = self.some_executor(true) else { return };
        let code = [137, 1, 0][self.dice.below(3) as usize];
        let name = self.lives[&uid].name.clone();
        let phase = if code == 0 { "Succeeded" } else { "Failed" };
        self.status(
            &name,
            json!({"phase": phase, "containerStatuses": [{"name": "main", "image": "spark",
            "imageID": "", "ready": false, "restartCount": 0, "state": {"terminated": {"exitCode": code}}}]}),
        )
        .await;
        self.note(format!("{name} ends with {code}"));
        let life = self.lives.get_mut(&uid).unwrap();
        (life.ended, life.code) = (Some(Instant::now()), code);
    }

    async fn delete_executor(&mut self, lives: bool) {
        let Some(uid) = self.some_executor(lives) else { return };
        let name = self.lives[&uid].name.clone();
        self.delete(&name).await;
        self.note(format!("{name} is deleted"));
    }

    async fn end_driver(&mut self, delete: bool) {
        let Some(app) = self.drivers.iter().position(|driver| driver.ended.is_none()) else { return };
        let name = format!("driver-{app}");
        if delete {
            self.delete(&name).await;
        } else {
            self.status(&name, json!({"phase": "Failed"})).await;
        }
        self.note(format!("{name} {}", if delete { "is deleted" } else { "ends" }));
        self.drivers[app].ended = Some(Instant::now());
    }

    fn trouble(&mut self) {
        let state =
            [State::Refusing(500), State::Refusing(429), State::Silent, State::Cut][self.dice.below(4) as usize];
        let until = Instant::now() + Duration::from_secs(1 + self.dice.below(40));
        let all = self.dice.once_in(3);
        let one = self.some();
        self.note(format!(
            "{state:?} for {} until {:.1}",
            if all { "all".into() } else { format!("{one:?}") },
            (until - self.began).as_secs_f64()
        ));
        for (number, replica) in &self.replicas {
            if all || Some(*number) == one {
                replica.line.set(state);
                self.mending.push((until, replica.line.clone()));
            }
        }
    }

    fn be_late(&mut self) {
        let Some(one) = self.some() else { return };
        let (late, until) = (1 + self.dice.below(20), Instant::now() + Duration::from_secs(5 + self.dice.below(60)));
        let line = self.replicas[&one].line.clone();
        line.set_late(Duration::from_secs(late));
        line.cut();
        self.mending.push((until, line));
        self.note(format!("watches of {one} are {late} s late"));
    }

    fn kill(&mut self) {
        let Some(one) = self.some() else { return };
        drop(self.replicas.remove(&one)); // Its tasks are aborted where they are.
        self.kills += 1;
        self.note(format!("replica {one} is killed"));
        self.coming.push(Instant::now() + Duration::from_secs(self.dice.below(20)));
    }

    async fn restart(&mut self) {
        let Some(one) = self.some() else { return };
        self.note(format!("replica {one} is stopped"));
        let replica = self.replicas.remove(&one).unwrap();
        replica.leaving.cancel();
        tokio::time::sleep(Duration::from_secs(5)).await;
        replica.supervisor.stop().await.unwrap();
        self.coming.push(Instant::now() + Duration::from_secs(self.dice.below(5)));
    }

    fn cut(&mut self, compact: bool) {
        if compact {
            self.api.compact();
        }
        for replica in self.replicas.values() {
            replica.line.cut();
        }
        self.note(format!("watches are cut{}", if compact { ", and what they missed is forgotten" } else { "" }));
    }

    /// What goes on by itself: kubelets let go of pods, replicas come, ways are mended; and who knows whom is noted.
    pub async fn tick(&mut self) {
        let now = Instant::now();
        while let Some(at) = self.coming.iter().position(|at| *at <= now) {
            self.coming.remove(at);
            self.start_replica();
        }
        self.mending.retain(|(until, line)| {
            let over = *until <= now;
            if over {
                line.set(State::Good);
                line.set_late(Duration::ZERO);
                line.cut();
            }
            !over
        });
        let pods = get(&self.routes, "/api/v1/namespaces/default/pods").await;
        let mut there = BTreeMap::new();
        for pod in pods["items"].as_array().into_iter().flatten() {
            let name = pod["metadata"]["name"].as_str().unwrap();
            if pod["metadata"]["deletionTimestamp"].is_string() {
                self.delete(name).await;
            } else {
                there.insert(pod["metadata"]["uid"].as_str().unwrap().to_owned(), ());
            }
        }
        for (uid, life) in &mut self.lives {
            if !there.contains_key(uid) {
                life.gone.get_or_insert(now);
            }
            if life.ended.is_none() && life.gone.is_none() {
                for (number, replica) in &self.replicas {
                    if !life.known_by.contains(number) && replica.knows(uid) {
                        life.known_by.push(*number);
                    }
                }
            }
        }
    }

    /// Something happens.
    pub async fn step(&mut self) {
        match self.dice.below(80) {
            0..28 => self.new_executor().await,
            28..44 => self.end_executor().await,
            44..49 => self.delete_executor(true).await,
            49..53 => self.delete_executor(false).await,
            53..55 => self.end_driver(false).await,
            55 => self.end_driver(true).await,
            56..60 => self.new_app().await,
            60..64 => self.trouble(),
            64..66 => self.be_late(),
            66..68 => self.cut(false),
            68..70 => self.cut(true),
            70 => self.kill(),
            71 => self.restart().await,
            _ => {}
        }
    }

    /// Everything is mended, and there are two replicas.
    pub fn calm(&mut self) {
        self.note("calm".into());
        for (_, line) in std::mem::take(&mut self.mending) {
            line.set(State::Good);
            line.set_late(Duration::ZERO);
            line.cut();
        }
        self.coming.clear();
        while self.replicas.len() < 2 {
            self.start_replica();
        }
    }

    pub async fn stop(self) {
        drop(self.replicas);
        self.api.stop().await.unwrap();
    }
}
