//! Applications: their drivers and executors, and what happens to them.

use crate::support::{PodBuilder, answer, by_pod, pod, review, whole_seconds};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::cluster::{NAMESPACES, SimCluster};

/// Where a driver runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// In a labelled pod, as in cluster mode.
    Labelled,
    /// In a pod without Spark's labels, as in client mode.
    Notebook,
    /// Outside the cluster.
    Elsewhere,
}

#[derive(Clone, Debug)]
pub struct App {
    pub kind: Kind,
    pub namespace: &'static str,
    /// The name of the driver's pod.
    pub name: String,
    pub uid: String,
    /// The application's id contains this number. Two drivers with the same configured `spark.app.id` share it.
    pub id: usize,
    /// When its driver exited or was deleted.
    pub exited: Option<Instant>,
    /// Spark 3.0 and older label neither the version nor the resource profile.
    pub old: bool,
    /// The size of its gang, if it has one.
    pub gang: Option<usize>,
    /// Its driver retains its finished executors (`deleteOnTermination=false`), and labels them.
    pub retains: bool,
    /// Within how many seconds its driver detects the exit of an executor and cleans it up; `None`: never.
    pub detection_seconds: Option<u64>,
}

impl App {
    /// How long the product leaves finished executors to the driver.
    pub fn grace(&self) -> Duration {
        // Twice the driver's poll interval plus twice its `missingPodDetectDelta`, from its configuration; 30 s each without one.
        let detection = Duration::from_secs(4 * self.detection_seconds.unwrap_or(30));
        detection.max(GRACE)
    }
}

/// The grace period of the policies.
pub const GRACE: Duration = Duration::from_secs(10);

/// The true history of an executor.
#[derive(Clone, Debug)]
pub struct ExecutorHistory {
    pub name: String,
    pub id: u32,
    pub app: usize,
    pub began: Instant,
    /// Its pod never starts.
    pub waits: bool,
    /// Its container restarts after it exits (`restartPolicy: Always`).
    pub restarts: bool,
    /// The exits that were followed by a restart.
    pub former: Vec<Former>,
    /// When it exited, unless it runs again.
    pub exited: Option<Instant>,
    pub removed: Option<Instant>,
    /// The cause of its exit, from its pod.
    pub cause: Option<&'static str>,
    /// It was being deleted when it exited.
    pub was_terminating: bool,
    /// Another client than the product deleted its pod.
    pub deleted: bool,
    /// It has the annotation `spark-usher.io/skip`.
    pub skip: bool,
    /// Its labels were removed.
    pub unlabelled: bool,
    /// Its driver labelled it as inactive.
    pub by_driver: bool,
    /// The API server called the webhook when it was created.
    pub admitted: bool,
    /// Replicas whose snapshot contained it while it was running.
    pub known_by: Vec<usize>,
}

/// An exit after which the container restarted.
#[derive(Clone, Copy, Debug)]
pub struct Former {
    pub exited: Instant,
    pub restarted: Instant,
    pub cause: &'static str,
}

impl ExecutorHistory {
    /// The number of its exits.
    pub fn exit_count(&self) -> usize {
        self.former.len() + usize::from(self.exited.is_some() || self.removed.is_some())
    }

    /// Whether it exited and its container will restart.
    pub fn will_restart(&self) -> bool {
        self.restarts && self.cause.is_some_and(|cause| EXITS.iter().any(|exit| exit.3 == cause && exit.2.is_none()))
    }

    pub fn is_active(&self) -> bool {
        self.exited.is_none() && self.removed.is_none() && !self.waits && !self.unlabelled
    }
}

/// An event that is due later.
#[derive(Clone, Debug)]
pub enum Later {
    /// The executor with this uid exits because its driver no longer exists.
    LosesDriver(String),
    /// The driver detects the exit of the executor with this uid, and deletes or labels it.
    Detected(String),
    /// The kubelet restarts the container of the executor with this uid.
    Restarts(String),
    /// The restarted container of the executor with this uid fails.
    Crashes(String),
}

/// Exits: phase, exit code, the pod's reason, and the cause.
const EXITS: [(&str, Option<i32>, Option<&str>, &str); 7] = [
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

impl SimCluster {
    async fn create(&self, namespace: &str, pod: PodBuilder) -> String {
        let made = self.request("POST", &format!("/api/v1/namespaces/{namespace}/pods"), pod.into_request()).await;
        made["metadata"]["uid"].as_str().unwrap().to_owned()
    }

    /// Writes the status of a pod; returns whether the pod exists.
    pub async fn status(&self, namespace: &str, name: &str, status: Value) -> bool {
        let body = json!({"status": status});
        !self.request("PATCH", &format!("{}/status", path(namespace, name)), body).await.is_null()
    }

    /// Deletes a pod immediately, with a grace period of 0.
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
        let detection_seconds = (kind == Kind::Labelled && self.rng.once_in(2)).then(|| 1 + self.rng.below(5));
        if kind == Kind::Labelled {
            driver = driver.driver_of(&selector(id));
        }
        let retains = detection_seconds.is_some() && self.rng.once_in(4);
        if let Some(seconds) = detection_seconds {
            let conf_map = format!("conf-{number}");
            let text = format!(
                "spark.kubernetes.executor.apiPollingInterval={seconds}s\n\
                 spark.kubernetes.executor.missingPodDetectDelta={seconds}s\n\
                 spark.kubernetes.executor.deleteOnTermination={}\n",
                !retains
            );
            let object = json!({"metadata": {"name": conf_map}, "data": {"spark.properties": text}});
            self.request("POST", &format!("/api/v1/namespaces/{namespace}/configmaps"), object).await;
            driver = driver.conf_map(&conf_map);
        }
        // The driver has a node: only executors are scheduled in gangs here.
        driver = driver.spec("nodeName", "node-1");
        // With a known configuration, the size is Spark's default of two executors.
        let gang = gang.or(detection_seconds.map(|_| 2));
        if let Some(gang) = gang.filter(|_| detection_seconds.is_none()) {
            driver = driver.annotation("spark-usher.io/min-member", &gang.to_string());
        }
        let uid = if kind == Kind::Elsewhere { String::new() } else { self.create(namespace, driver).await };
        let app = App { kind, namespace, name, uid, id, exited: None, old, gang, retains, detection_seconds };
        if kind != Kind::Elsewhere {
            let address = format!("10.0.{}.{}", number / 200, number % 200);
            self.status(namespace, &app.name, json!({"phase": "Running", "podIP": address})).await;
        }
        self.note(format!("{app:?}"));
        self.apps.push(app);
    }

    pub async fn new_executor(&mut self) {
        let app = self.rng.below(self.apps.len().max(1) as u64) as usize;
        if self.apps.get(app).is_some_and(|app| app.exited.is_none()) {
            self.new_executor_of(app).await;
        }
    }

    /// A driver creates an executor; the API server calls the webhook of a replica, if there is one.
    pub async fn new_executor_of(&mut self, number: usize) {
        let app = self.apps[number].clone();
        // Sometimes with the name of an earlier executor, as after a restart of the driver.
        let reused = self.rng.once_in(6).then(|| self.reusable_executor_id(number)).flatten();
        let id = reused.unwrap_or(self.next_executor);
        let restarts = self.rng.once_in(8);
        self.next_executor += 1;
        let name = format!("exec-{id}");
        let address = match app.kind {
            Kind::Elsewhere => format!("192.168.{}.{}", number % 200, id % 8),
            _ => format!("10.0.{}.{}", number / 200, number % 200),
        };
        let mut builder = pod(&name).namespace(app.namespace).executor_of(&selector(app.id), id).driver_url(&address);
        if app.old {
            builder = builder.without_label("spark-exec-resourceprofile-id");
        } else {
            builder = builder.label("spark-version", "4.3.0");
        }
        if restarts {
            builder = builder.spec("restartPolicy", "Always");
        }
        // In cluster mode, Spark sets the owner; in client mode only if the driver's pod name is configured.
        if app.kind == Kind::Labelled && !self.rng.once_in(5) || app.kind == Kind::Notebook && self.rng.once_in(2) {
            builder = builder.owned_by("Pod", &app.name, &app.uid);
        }
        let admitted = self.admit(&app, &mut builder);
        let (waits, skip) = (self.rng.once_in(15), self.rng.once_in(15));
        if skip {
            builder = builder.annotation("spark-usher.io/skip", "true");
        }
        let uid = self.create(app.namespace, builder).await;
        self.note(format!("{name} of {} begins, uid {uid}{}", app.name, if admitted { "" } else { ", not admitted" }));
        let executor = ExecutorHistory {
            name,
            id,
            app: number,
            began: Instant::now(),
            waits,
            restarts,
            former: Vec::new(),
            exited: None,
            removed: None,
            cause: None,
            was_terminating: false,
            deleted: false,
            skip,
            unlabelled: false,
            by_driver: false,
            admitted,
            known_by: Vec::new(),
        };
        self.executors.insert(uid, executor);
    }

    /// The number of an executor of this application whose pod no longer exists and whose name no other pod has.
    fn reusable_executor_id(&self, app: usize) -> Option<u32> {
        let of_app = || self.executors.values().filter(|executor| executor.app == app);
        let there: Vec<u32> =
            of_app().filter(|executor| executor.removed.is_none()).map(|executor| executor.id).collect();
        of_app().map(|executor| executor.id).filter(|id| !there.contains(id)).min()
    }

    /// Calls the webhook of a replica, as an API server with `failurePolicy: Ignore` does.
    fn admit(&mut self, app: &App, builder: &mut PodBuilder) -> bool {
        let Some(one) = self.pick_replica().filter(|_| !self.rng.once_in(10)) else { return false };
        let replica = &self.replicas[&one];
        if !replica.is_complete() || *self.dry_run.borrow() {
            return false;
        }
        let user = match app.kind {
            Kind::Elsewhere => json!({"username": "somebody", "groups": ["system:authenticated"]}),
            _ => by_pod(app.namespace, "spark", &app.name, &app.uid),
        };
        let asked = review(&builder.0, user);
        let outcome = answer(&asked, &replica.snapshot.load(), &self.policies.load());
        assert!(outcome.decision.allowed, "{outcome:?}");
        builder.0 = outcome.object;
        true
    }

    /// An executor whose pod exists: a running or pending one, or one that exited.
    fn pick_executor(&mut self, is_running: bool) -> Option<String> {
        let there = self
            .executors
            .iter()
            .filter(|(_, executor)| executor.removed.is_none() && executor.exited.is_none() == is_running);
        let there: Vec<String> =
            there.filter(|(_, executor)| !executor.unlabelled).map(|(uid, _)| uid.clone()).collect();
        let at = self.rng.below(there.len().max(1) as u64) as usize;
        there.get(at).cloned()
    }

    pub async fn exit_executor(&mut self) {
        let Some(uid) = self.pick_executor(true) else { return };
        let exit = *self.rng.pick(&EXITS);
        self.exit(&uid, exit).await;
    }

    async fn exit(&mut self, uid: &str, (phase, code, reason, cause): (&str, Option<i32>, Option<&str>, &'static str)) {
        let (name, namespace) = self.name_and_namespace(uid);
        let executor = &self.executors[uid];
        let pod = self.request("GET", &path(namespace, &name), json!({})).await;
        if pod.is_null() {
            return; // The garbage collector has deleted it.
        }
        // Whatever its containers report then, it exits because it is being deleted.
        let is_terminating = pod["metadata"]["deletionTimestamp"].is_string();
        // A kubelet restarts containers, unless the pod was evicted, rejected or exceeded its deadline, or is being deleted.
        let restarts = executor.restarts && reason.is_none() && !is_terminating;
        let mut status = json!({"phase": if restarts { "Running" } else { phase }});
        if let Some(code) = code {
            let terminated = json!({"exitCode": code, "finishedAt": whole_seconds()});
            status["containerStatuses"] = json!([{"name": "main", "image": "spark", "imageID": "", "ready": false,
                "restartCount": executor.former.len(), "state": {"running": null, "terminated": terminated}}]);
        }
        if let Some(reason) = reason {
            status["reason"] = reason.into();
        }
        self.status(namespace, &name, status).await;
        self.note(format!("{name} exits: {cause}"));
        let executor = self.executors.get_mut(uid).unwrap();
        (executor.exited, executor.cause, executor.was_terminating) =
            (Some(Instant::now()), Some(cause), is_terminating);
        let detection_seconds = self.apps[executor.app].detection_seconds;
        if restarts {
            // Ten seconds after the first exit, then twice as long each time.
            let at = Instant::now() + Duration::from_secs(10 << executor.former.len().min(5));
            self.later.push((at, Later::Restarts(uid.to_owned())));
        }
        if let Some(seconds) = detection_seconds.filter(|_| self.rng.once_in(2)) {
            let at = Instant::now() + Duration::from_millis(self.rng.below(seconds * 4000));
            self.later.push((at, Later::Detected(uid.to_owned())));
        }
    }

    fn name_and_namespace(&self, uid: &str) -> (String, &'static str) {
        let executor = &self.executors[uid];
        (executor.name.clone(), self.apps[executor.app].namespace)
    }

    pub async fn delete_executor(&mut self, is_running: bool) {
        let Some(uid) = self.pick_executor(is_running) else { return };
        let (name, namespace) = self.name_and_namespace(&uid);
        self.executors.get_mut(&uid).unwrap().deleted = true;
        self.delete(namespace, &name).await;
        self.note(format!("{name} is deleted"));
    }

    /// A driver labels one of its finished executors.
    pub async fn label_executor(&mut self) {
        let Some(uid) = self.pick_executor(false) else { return };
        let (name, namespace) = self.name_and_namespace(&uid);
        self.label(&uid, namespace, &name).await;
    }

    async fn label(&mut self, uid: &str, namespace: &str, name: &str) {
        let labels = json!({"metadata": {"uid": uid, "labels": {"spark-exec-inactive": "true"}}});
        if self.try_request("PATCH", &path(namespace, name), labels).await.is_ok() {
            self.note(format!("its driver labels {name}"));
            self.executors.get_mut(uid).unwrap().by_driver = true;
        }
    }

    /// A client removes the labels of a running executor: no watch shows it any longer.
    pub async fn remove_label(&mut self) {
        let Some(uid) = self.pick_executor(true) else { return };
        let (name, namespace) = self.name_and_namespace(&uid);
        let labels = json!({"metadata": {"labels": {"spark-role": null}}});
        self.request("PATCH", &path(namespace, &name), labels).await;
        self.note(format!("the label of {name} is removed"));
        self.executors.get_mut(&uid).unwrap().unlabelled = true;
    }

    pub async fn exit_driver(&mut self, delete: bool) {
        let Some(number) = self.apps.iter().position(|app| app.exited.is_none() && app.kind != Kind::Elsewhere) else {
            return;
        };
        let App { name, namespace, .. } = self.apps[number].clone();
        if delete {
            self.delete(namespace, &name).await;
        } else {
            self.status(namespace, &name, json!({"phase": "Failed"})).await;
        }
        self.note(format!("{name} {}", if delete { "is deleted" } else { "exits" }));
        self.apps[number].exited = Some(Instant::now());
        let orphans: Vec<String> = self
            .executors
            .iter()
            .filter(|(_, executor)| executor.app == number && executor.is_active())
            .map(|(uid, _)| uid.clone())
            .collect();
        for uid in orphans {
            let at = Instant::now() + Duration::from_millis(self.rng.below(3000));
            self.later.push((at, Later::LosesDriver(uid)));
        }
    }

    pub async fn run_event(&mut self, what: Later) {
        match what {
            Later::LosesDriver(uid) if self.executors[&uid].is_active() => self.exit(&uid, EXITS[1]).await,
            Later::Detected(uid) => {
                let executor = &self.executors[&uid];
                let app = &self.apps[executor.app];
                if executor.removed.is_none() && app.exited.is_none() && app.retains {
                    let (name, namespace) = (executor.name.clone(), app.namespace);
                    self.label(&uid, namespace, &name).await;
                } else if executor.removed.is_none() && app.exited.is_none() {
                    let (name, namespace) = (executor.name.clone(), app.namespace);
                    self.executors.get_mut(&uid).unwrap().deleted = true;
                    // By its uid: another pod may have the name meanwhile.
                    let options = json!({"preconditions": {"uid": uid}, "gracePeriodSeconds": 0});
                    let _ = self.try_request("DELETE", &path(namespace, &name), options).await;
                    self.note(format!("its driver deletes {name}"));
                }
            }
            Later::Restarts(uid) => self.restart_executor(&uid).await,
            Later::Crashes(uid) if self.executors[&uid].is_active() => self.exit(&uid, EXITS[0]).await,
            Later::LosesDriver(_) | Later::Crashes(_) => {}
        }
    }

    async fn restart_executor(&mut self, uid: &str) {
        let (name, namespace) = self.name_and_namespace(uid);
        let executor = &self.executors[uid];
        let (None, Some(exited), Some(cause)) = (executor.removed, executor.exited, executor.cause) else { return };
        let running = json!({"startedAt": whole_seconds()});
        let status = json!({"phase": "Running", "containerStatuses": [{"name": "main", "image": "spark", "imageID": "",
            "ready": true, "restartCount": executor.former.len() + 1, "state": {"running": running, "terminated": null}}]});
        if !self.status(namespace, &name, status).await {
            return;
        }
        let executor = self.executors.get_mut(uid).unwrap();
        executor.former.push(Former { exited, restarted: Instant::now(), cause });
        (executor.exited, executor.cause, executor.by_driver) = (None, None, false);
        self.note(format!("{name} runs again"));
        if self.rng.once_in(2) {
            let at = Instant::now() + Duration::from_millis(self.rng.below(20_000));
            self.later.push((at, Later::Crashes(uid.to_owned())));
        }
    }

    /// A tenant creates a pod that claims to be the driver of another application.
    pub async fn forge(&mut self) {
        let number = self.rng.below(self.apps.len().max(1) as u64) as usize;
        let Some(App { namespace, .. }) = self.apps.get(number).cloned() else { return };
        let name = format!("forged-{}", self.next_executor);
        self.next_executor += 1;
        if self.rng.once_in(2) {
            // The watch's selector matches it, but it belongs to no application.
            self.create(namespace, pod(&name).namespace(namespace).executor_of("", number as u32)).await;
            self.note(format!("{name} is an executor of nothing"));
            return;
        }
        let forged = pod(&name).namespace(namespace).spec("nodeName", "node-1").driver_of(&selector(number));
        self.create(namespace, forged).await;
        self.status(namespace, &name, json!({"phase": "Running", "podIP": "10.9.9.9"})).await;
        self.note(format!("{name} claims to drive application {number}"));
    }
}
