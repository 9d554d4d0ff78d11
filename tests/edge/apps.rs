//! Applications: what their drivers and executors are, and what becomes of them.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::world::{NAMESPACES, World};
use crate::support::{PodBuilder, answer, by_pod, pod, review, whole_seconds};

/// Where a driver runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// In a labelled pod, as in cluster mode.
    Labelled,
    /// In somebody's pod without labels, as in client mode.
    Notebook,
    /// Outside the cluster.
    Elsewhere,
}

#[derive(Clone, Debug)]
pub struct App {
    pub kind: Kind,
    pub namespace: &'static str,
    /// Of the driver's pod.
    pub name: String,
    pub uid: String,
    /// The application's id is made of this number. Two drivers with one configured `spark.app.id` share it.
    pub id: usize,
    pub ended: Option<Instant>,
    /// Spark 3.0 and older label neither the version nor the resource profile.
    pub old: bool,
    /// How many executors wait for each other, where it says so.
    pub gang: Option<usize>,
    /// Its driver keeps its finished executors (`deleteOnTermination=false`), and labels them.
    pub keeps: bool,
    /// Its driver notices the end of an executor within so many seconds, and looks after it; others never do.
    pub notices: Option<u64>,
}

impl App {
    /// How long its driver goes first.
    pub fn grace(&self) -> Duration {
        // Four times the interval of its polls and its patience, as its configuration says; 30 s each without one.
        let notices = Duration::from_secs(4 * self.notices.unwrap_or(30));
        notices.max(GRACE)
    }
}

/// What the policies say.
pub const GRACE: Duration = Duration::from_secs(10);

/// What really became of an executor.
#[derive(Clone, Debug)]
pub struct Life {
    pub name: String,
    pub id: u32,
    pub app: usize,
    pub began: Instant,
    /// Its pod never starts.
    pub waits: bool,
    /// Its container is started again after it ends (`restartPolicy: Always`).
    pub restarts: bool,
    /// The ends that were followed by a restart, and when that was.
    pub former: Vec<Former>,
    /// Since when it has ended, unless it runs again.
    pub ended: Option<Instant>,
    pub gone: Option<Instant>,
    /// How it ended, as its pod says it.
    pub cause: Option<&'static str>,
    /// It was being deleted when it ended.
    pub was_dying: bool,
    /// Somebody deleted its pod, and not the product.
    pub deleted: bool,
    /// It asks to be left alone.
    pub skip: bool,
    /// Its labels were taken off.
    pub unlabelled: bool,
    /// Its driver labelled it as inactive.
    pub by_driver: bool,
    /// The webhook was asked when it was created.
    pub admitted: bool,
    /// Replicas that had it in their picture while it lived.
    pub known_by: Vec<usize>,
}

/// An end after which the container was started again.
#[derive(Clone, Copy, Debug)]
pub struct Former {
    pub ended: Instant,
    pub restarted: Instant,
    pub cause: &'static str,
}

impl Life {
    /// How often it has ended.
    pub fn ends(&self) -> usize {
        self.former.len() + usize::from(self.ended.is_some() || self.gone.is_some())
    }

    /// Whether it has ended, and its container will be started again.
    pub fn comes_again(&self) -> bool {
        self.restarts && self.cause.is_some_and(|cause| ENDS.iter().any(|end| end.3 == cause && end.2.is_none()))
    }

    pub fn is_live(&self) -> bool {
        self.ended.is_none() && self.gone.is_none() && !self.waits && !self.unlabelled
    }
}

/// What is to happen at a time.
#[derive(Clone, Debug)]
pub enum Later {
    /// An executor, by uid, ends itself because its driver is gone.
    LosesDriver(String),
    /// Its driver deletes an executor, by uid, that has ended.
    Noticed(String),
    /// The kubelet starts the container of an executor, by uid, again.
    Restarts(String),
    /// The container of an executor, by uid, that was started again ends like before.
    Crashes(String),
}

/// Ways to end: phase, exit code, the pod's reason, and the cause.
const ENDS: [(&str, Option<i32>, Option<&str>, &str); 7] = [
    ("Failed", Some(137), None, "killed"),
    ("Failed", Some(1), None, "error"),
    ("Succeeded", Some(0), None, "completed"),
    ("Failed", Some(52), None, "jvm-oom"),
    ("Failed", Some(143), Some("Evicted"), "evicted"),
    ("Failed", None, Some("OutOfcpu"), "admission-refused"),
    ("Failed", None, Some("DeadlineExceeded"), "deadline-exceeded"),
];

pub fn selector(app: usize) -> String {
    format!("spark-{app:032x}")
}

fn path(namespace: &str, name: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/pods/{name}")
}

impl World {
    async fn create(&self, namespace: &str, pod: PodBuilder) -> String {
        let made = self.request("POST", &format!("/api/v1/namespaces/{namespace}/pods"), pod.into_request()).await;
        made["metadata"]["uid"].as_str().unwrap().to_owned()
    }

    /// Says what became of a pod. Whether it is there.
    pub async fn status(&self, namespace: &str, name: &str, status: Value) -> bool {
        let body = json!({"status": status});
        !self.request("PATCH", &format!("{}/status", path(namespace, name)), body).await.is_null()
    }

    /// Deletes a pod, and it is gone at once.
    pub async fn delete(&self, namespace: &str, name: &str) {
        self.request("DELETE", &format!("{}?gracePeriodSeconds=0", path(namespace, name)), json!({})).await;
    }

    pub async fn new_app(&mut self) {
        let number = self.apps.len();
        let kind = *self.rng.pick(&[Kind::Labelled, Kind::Labelled, Kind::Notebook, Kind::Elsewhere]);
        let namespace = *self.rng.pick(&NAMESPACES);
        let (old, gang) = (self.rng.once_in(4), self.rng.once_in(2).then_some(2));
        let name = format!("driver-{number}");
        let other = self.apps.iter().rfind(|app| app.namespace == namespace).map(|app| app.id);
        let id = other.filter(|_| self.rng.once_in(8)).unwrap_or(number);
        let mut driver = pod(&name).namespace(namespace);
        let notices = (kind == Kind::Labelled && self.rng.once_in(2)).then(|| 1 + self.rng.below(5));
        if kind == Kind::Labelled {
            driver = driver.driver_of(&selector(id));
        }
        let keeps = notices.is_some() && self.rng.once_in(4);
        if let Some(seconds) = notices {
            let conf_map = format!("conf-{number}");
            let text = format!(
                "spark.kubernetes.executor.apiPollingInterval={seconds}s\n\
                 spark.kubernetes.executor.missingPodDetectDelta={seconds}s\n\
                 spark.kubernetes.executor.deleteOnTermination={}\n",
                !keeps
            );
            let object = json!({"metadata": {"name": conf_map}, "data": {"spark.properties": text}});
            self.request("POST", &format!("/api/v1/namespaces/{namespace}/configmaps"), object).await;
            driver = driver.conf_map(&conf_map);
        }
        // Its node is given: gangs are of executors here.
        driver = driver.spec("nodeName", "node-1");
        // Of one whose configuration is known it is the two that Spark starts with.
        let gang = gang.or(notices.map(|_| 2));
        if let Some(gang) = gang.filter(|_| notices.is_none()) {
            driver = driver.annotation("spark-usher.io/min-member", &gang.to_string());
        }
        let uid = if kind == Kind::Elsewhere { String::new() } else { self.create(namespace, driver).await };
        let app = App { kind, namespace, name, uid, id, ended: None, old, gang, keeps, notices };
        if kind != Kind::Elsewhere {
            let address = format!("10.0.{}.{}", number / 200, number % 200);
            self.status(namespace, &app.name, json!({"phase": "Running", "podIP": address})).await;
        }
        self.note(format!("{app:?}"));
        self.apps.push(app);
    }

    pub async fn new_executor(&mut self) {
        let app = self.rng.below(self.apps.len().max(1) as u64) as usize;
        if self.apps.get(app).is_some_and(|app| app.ended.is_none()) {
            self.new_executor_of(app).await;
        }
    }

    /// A driver creates an executor; the webhook of some replica is asked, if one is there.
    pub async fn new_executor_of(&mut self, number: usize) {
        let app = self.apps[number].clone();
        // Now and then under a name that was there before, as after a restart of the driver.
        let gone = self.rng.once_in(6).then(|| self.gone_executor(number)).flatten();
        let id = gone.unwrap_or(self.next_executor);
        let restarts = self.rng.once_in(8);
        self.next_executor += 1;
        let name = format!("exec-{id}");
        let address = match app.kind {
            Kind::Elsewhere => format!("192.168.{}.{}", number % 200, id % 8),
            _ => format!("10.0.{}.{}", number / 200, number % 200),
        };
        let mut executor = pod(&name).namespace(app.namespace).executor_of(&selector(app.id), id).driver_url(&address);
        if app.old {
            executor = executor.without_label("spark-exec-resourceprofile-id");
        } else {
            executor = executor.label("spark-version", "4.3.0");
        }
        if restarts {
            executor = executor.spec("restartPolicy", "Always");
        }
        // In cluster mode the owner is there; of client mode it is there where the driver's pod is configured.
        if app.kind == Kind::Labelled && !self.rng.once_in(5) || app.kind == Kind::Notebook && self.rng.once_in(2) {
            executor = executor.owned_by("Pod", &app.name, &app.uid);
        }
        let admitted = self.admit(&app, &mut executor);
        let (waits, skip) = (self.rng.once_in(15), self.rng.once_in(15));
        if skip {
            executor = executor.annotation("spark-usher.io/skip", "true");
        }
        let uid = self.create(app.namespace, executor).await;
        self.note(format!("{name} of {} begins, uid {uid}{}", app.name, if admitted { "" } else { ", not admitted" }));
        let life = Life {
            name,
            id,
            app: number,
            began: Instant::now(),
            waits,
            restarts,
            former: Vec::new(),
            ended: None,
            gone: None,
            cause: None,
            was_dying: false,
            deleted: false,
            skip,
            unlabelled: false,
            by_driver: false,
            admitted,
            known_by: Vec::new(),
        };
        self.lives.insert(uid, life);
    }

    /// The number of an executor of this application whose pod is gone, and no other has its name.
    fn gone_executor(&self, app: usize) -> Option<u32> {
        let of_app = || self.lives.values().filter(|life| life.app == app);
        let there: Vec<u32> = of_app().filter(|life| life.gone.is_none()).map(|life| life.id).collect();
        of_app().map(|life| life.id).filter(|id| !there.contains(id)).min()
    }

    /// Asks the webhook of a replica, as an API server with `failurePolicy: Ignore` does.
    fn admit(&mut self, app: &App, executor: &mut PodBuilder) -> bool {
        let Some(one) = self.some().filter(|_| !self.rng.once_in(10)) else { return false };
        let replica = &self.replicas[&one];
        if !replica.is_complete() || *self.dry_run.borrow() {
            return false;
        }
        let user = match app.kind {
            Kind::Elsewhere => json!({"username": "somebody", "groups": ["system:authenticated"]}),
            _ => by_pod(app.namespace, "spark", &app.name, &app.uid),
        };
        let asked = review(&executor.0, user);
        let outcome = answer(&asked, &replica.snapshot.load(), &self.policies.load());
        assert!(outcome.decision.allowed, "{outcome:?}");
        executor.0 = outcome.object;
        true
    }

    /// An executor that is still there; one that lives, or one that ended.
    fn some_executor(&mut self, lives: bool) -> Option<String> {
        let there = self.lives.iter().filter(|(_, life)| life.gone.is_none() && life.ended.is_none() == lives);
        let there: Vec<String> = there.filter(|(_, life)| !life.unlabelled).map(|(uid, _)| uid.clone()).collect();
        let at = self.rng.below(there.len().max(1) as u64) as usize;
        there.get(at).cloned()
    }

    pub async fn end_executor(&mut self) {
        let Some(uid) = self.some_executor(true) else { return };
        let end = *self.rng.pick(&ENDS);
        self.end(&uid, end).await;
    }

    /// All is quiet, and some executors end.
    pub async fn end_some(&mut self) {
        for _ in 0..3 {
            self.end_executor().await;
        }
    }

    async fn end(&mut self, uid: &str, (phase, code, reason, cause): (&str, Option<i32>, Option<&str>, &'static str)) {
        let (name, namespace) = self.place(uid);
        let life = &self.lives[uid];
        let pod = self.request("GET", &path(namespace, &name), json!({})).await;
        if pod.is_null() {
            return; // The garbage collector has taken it.
        }
        // Whatever its containers say then, it ends because it is deleted.
        let is_dying = pod["metadata"]["deletionTimestamp"].is_string();
        // A kubelet starts a container again, and no pod that was evicted, refused or ran too long, or is being deleted.
        let restarts = life.restarts && reason.is_none() && !is_dying;
        let mut status = json!({"phase": if restarts { "Running" } else { phase }});
        if let Some(code) = code {
            let terminated = json!({"exitCode": code, "finishedAt": whole_seconds()});
            status["containerStatuses"] = json!([{"name": "main", "image": "spark", "imageID": "", "ready": false,
                "restartCount": life.former.len(), "state": {"running": null, "terminated": terminated}}]);
        }
        if let Some(reason) = reason {
            status["reason"] = reason.into();
        }
        self.status(namespace, &name, status).await;
        self.note(format!("{name} ends: {cause}"));
        let life = self.lives.get_mut(uid).unwrap();
        (life.ended, life.cause, life.was_dying) = (Some(Instant::now()), Some(cause), is_dying);
        let notices = self.apps[life.app].notices;
        if restarts {
            // Ten seconds after the first end, then twice as long each time.
            let at = Instant::now() + Duration::from_secs(10 << life.former.len().min(5));
            self.later.push((at, Later::Restarts(uid.to_owned())));
        }
        if let Some(seconds) = notices.filter(|_| self.rng.once_in(2)) {
            let at = Instant::now() + Duration::from_millis(self.rng.below(seconds * 4000));
            self.later.push((at, Later::Noticed(uid.to_owned())));
        }
    }

    fn place(&self, uid: &str) -> (String, &'static str) {
        let life = &self.lives[uid];
        (life.name.clone(), self.apps[life.app].namespace)
    }

    pub async fn delete_executor(&mut self, lives: bool) {
        let Some(uid) = self.some_executor(lives) else { return };
        let (name, namespace) = self.place(&uid);
        self.lives.get_mut(&uid).unwrap().deleted = true;
        self.delete(namespace, &name).await;
        self.note(format!("{name} is deleted"));
    }

    /// A driver labels an executor of its own that ended.
    pub async fn label_executor(&mut self) {
        let Some(uid) = self.some_executor(false) else { return };
        let (name, namespace) = self.place(&uid);
        self.label(&uid, namespace, &name).await;
    }

    async fn label(&mut self, uid: &str, namespace: &str, name: &str) {
        let labels = json!({"metadata": {"uid": uid, "labels": {"spark-exec-inactive": "true"}}});
        if self.try_request("PATCH", &path(namespace, name), labels).await.is_ok() {
            self.note(format!("its driver labels {name}"));
            self.lives.get_mut(uid).unwrap().by_driver = true;
        }
    }

    /// Somebody takes the labels of an executor off that lives: no watch shows it any more.
    pub async fn take_label_off(&mut self) {
        let Some(uid) = self.some_executor(true) else { return };
        let (name, namespace) = self.place(&uid);
        let labels = json!({"metadata": {"labels": {"spark-role": null}}});
        self.request("PATCH", &path(namespace, &name), labels).await;
        self.note(format!("the label of {name} is taken off"));
        self.lives.get_mut(&uid).unwrap().unlabelled = true;
    }

    pub async fn end_driver(&mut self, delete: bool) {
        let Some(number) = self.apps.iter().position(|app| app.ended.is_none() && app.kind != Kind::Elsewhere) else {
            return;
        };
        let App { name, namespace, .. } = self.apps[number].clone();
        if delete {
            self.delete(namespace, &name).await;
        } else {
            self.status(namespace, &name, json!({"phase": "Failed"})).await;
        }
        self.note(format!("{name} {}", if delete { "is deleted" } else { "ends" }));
        self.apps[number].ended = Some(Instant::now());
        let orphans: Vec<String> = self
            .lives
            .iter()
            .filter(|(_, life)| life.app == number && life.is_live())
            .map(|(uid, _)| uid.clone())
            .collect();
        for uid in orphans {
            let at = Instant::now() + Duration::from_millis(self.rng.below(3000));
            self.later.push((at, Later::LosesDriver(uid)));
        }
    }

    pub async fn happen(&mut self, what: Later) {
        match what {
            Later::LosesDriver(uid) if self.lives[&uid].is_live() => self.end(&uid, ENDS[1]).await,
            Later::Noticed(uid) => {
                let life = &self.lives[&uid];
                let app = &self.apps[life.app];
                if life.gone.is_none() && app.ended.is_none() && app.keeps {
                    let (name, namespace) = (life.name.clone(), app.namespace);
                    self.label(&uid, namespace, &name).await;
                } else if life.gone.is_none() && app.ended.is_none() {
                    let (name, namespace) = (life.name.clone(), app.namespace);
                    self.lives.get_mut(&uid).unwrap().deleted = true;
                    // By its uid: another may have the name by now.
                    let options = json!({"preconditions": {"uid": uid}, "gracePeriodSeconds": 0});
                    let _ = self.try_request("DELETE", &path(namespace, &name), options).await;
                    self.note(format!("its driver deletes {name}"));
                }
            }
            Later::Restarts(uid) => self.restart_executor(&uid).await,
            Later::Crashes(uid) if self.lives[&uid].is_live() => self.end(&uid, ENDS[0]).await,
            Later::LosesDriver(_) | Later::Crashes(_) => {}
        }
    }

    async fn restart_executor(&mut self, uid: &str) {
        let (name, namespace) = self.place(uid);
        let life = &self.lives[uid];
        let (None, Some(ended), Some(cause)) = (life.gone, life.ended, life.cause) else { return };
        let running = json!({"startedAt": whole_seconds()});
        let status = json!({"phase": "Running", "containerStatuses": [{"name": "main", "image": "spark", "imageID": "",
            "ready": true, "restartCount": life.former.len() + 1, "state": {"running": running, "terminated": null}}]});
        if !self.status(namespace, &name, status).await {
            return;
        }
        let life = self.lives.get_mut(uid).unwrap();
        life.former.push(Former { ended, restarted: Instant::now(), cause });
        (life.ended, life.cause, life.by_driver) = (None, None, false);
        self.note(format!("{name} runs again"));
        if self.rng.once_in(2) {
            let at = Instant::now() + Duration::from_millis(self.rng.below(20_000));
            self.later.push((at, Later::Crashes(uid.to_owned())));
        }
    }

    /// A tenant makes a pod that says it is the driver of somebody else's application.
    pub async fn forge(&mut self) {
        let number = self.rng.below(self.apps.len().max(1) as u64) as usize;
        let Some(App { namespace, .. }) = self.apps.get(number).cloned() else { return };
        let name = format!("forged-{}", self.next_executor);
        self.next_executor += 1;
        if self.rng.once_in(2) {
            // The watch's selector has it, and it is no executor of anything.
            self.create(namespace, pod(&name).namespace(namespace).executor_of("", number as u32)).await;
            self.note(format!("{name} is an executor of nothing"));
            return;
        }
        let forged = pod(&name).namespace(namespace).spec("nodeName", "node-1").driver_of(&selector(number));
        self.create(namespace, forged).await;
        self.status(namespace, &name, json!({"phase": "Running", "podIP": "10.9.9.9"})).await;
        self.note(format!("{name} says that it drives application {number}"));
    }
}
