//! What people are told about applications and executors: `/debug/apps`, `/debug/why`, `spark-usher apps` and `why`.
//!
//! The same shapes on the wire and at both ends; times are RFC 3339.

use std::collections::BTreeMap;

use imbl::Vector;
use serde::{Deserialize, Serialize};

use super::exits::Exit;
use crate::driver::life::{self, DriverLife};
use crate::snapshot::{App, Executor, Life, Snapshot};
use crate::spark::evidence::Evidence;
use crate::spark::ids::AppKey;
use crate::spark::state::ExecutorPodState;

/// So many ends are listed of an application.
const LAST: usize = 10;
/// So many executors in trouble are listed of an application.
const TROUBLED: usize = 20;

/// An application.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AppReport {
    /// Its namespace.
    pub namespace: String,
    /// Its app selector.
    pub app: String,
    /// Its driver.
    pub driver: DriverReport,
    /// How many executors are in which state; what is on its way out counts as terminating.
    pub executors: BTreeMap<String, usize>,
    /// Executors that are there and in trouble, at most 20.
    pub troubled: Vec<ExecutorReport>,
    /// How its last executors ended, the newest first, at most 10.
    pub exits: Vec<ExitReport>,
}

/// A driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DriverReport {
    /// `alive`, `gone` or `unknown`.
    pub life: String,
    /// Its pod, if one is known.
    pub pod: Option<String>,
}

/// An executor that is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExecutorReport {
    /// Its pod.
    pub pod: String,
    /// `spark-exec-id`.
    pub id: Option<u64>,
    /// Its state.
    pub state: String,
    /// Its node.
    pub node: Option<String>,
    /// Why it is as it is, where anything says so.
    pub why: Option<String>,
}

/// How an executor ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExitReport {
    /// Its pod.
    pub pod: String,
    /// Its uid.
    pub uid: String,
    /// `spark-exec-id`.
    pub id: Option<u64>,
    /// Its node.
    pub node: Option<String>,
    /// When it was noted.
    pub at: String,
    /// Our cause.
    pub cause: String,
    /// The cause in a sentence.
    pub text: String,
    /// What is known beyond the cause.
    pub detail: String,
    /// Whether the application brought it upon itself.
    pub by_app: bool,
    /// The exit code, if a container told one.
    pub exit_code: Option<i32>,
    /// What Spark's driver says about it.
    pub spark: SparkReport,
}

/// Spark's view of an end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SparkReport {
    /// Its exit code, -1 where there is none.
    pub exit_code: i32,
    /// Whether it blames the application.
    pub caused_by_app: bool,
    /// Its text, byte for byte.
    pub message: String,
}

/// The answer to `why`: what a name stands for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WhyReport {
    /// Applications of that selector, or with a driver's pod of that name.
    pub apps: Vec<AppReport>,
    /// Executors of that name that are there, with their application.
    pub executors: Vec<(String, ExecutorReport)>,
    /// Ends of executors of that name, with their application, the newest first.
    pub exits: Vec<(String, ExitReport)>,
}

impl WhyReport {
    /// Whether nothing is known by that name.
    pub fn is_empty(&self) -> bool {
        self.apps.is_empty() && self.executors.is_empty() && self.exits.is_empty()
    }
}

/// Every application, or those of one namespace.
pub fn apps(snapshot: &Snapshot, exits: &Vector<Exit>, namespace: Option<&str>) -> Vec<AppReport> {
    let mut ends: BTreeMap<&AppKey, Vec<&Exit>> = BTreeMap::new();
    for exit in exits {
        ends.entry(&exit.app).or_default().push(exit);
    }
    let wanted = |key: &AppKey| namespace.is_none_or(|namespace| key.namespace() == namespace);
    let nothing = App::default();
    let there = snapshot.apps.iter().map(|(key, app)| (key, &**app));
    // Applications of which only ends are left.
    let left = ends.keys().filter(|key| !snapshot.apps.contains_key(**key)).map(|key| (*key, &nothing));
    let mut all: Vec<_> = there.chain(left).filter(|(key, _)| wanted(key)).collect();
    all.sort_by_key(|(key, _)| *key);
    all.into_iter().map(|(key, app)| report(snapshot, key, app, ends.get(key).map_or(&[], Vec::as_slice))).collect()
}

/// What a name stands for: a pod, an application, or a driver.
pub fn why(snapshot: &Snapshot, exits: &Vector<Exit>, name: &str, namespace: Option<&str>) -> WhyReport {
    let wanted = |key: &AppKey| namespace.is_none_or(|namespace| key.namespace() == namespace);
    let ours = |app: &AppReport| app.app == name || app.driver.pod.as_deref() == Some(name);
    let executors = snapshot.apps.iter().filter(|(key, _)| wanted(key)).flat_map(|(key, app)| {
        let named = app.executors.values().filter(|executor| &*executor.name == name);
        named.map(|executor| (key.to_string(), executor_report(executor)))
    });
    let ended = exits.iter().rev().filter(|exit| wanted(&exit.app) && &*exit.executor.name == name);
    WhyReport {
        executors: executors.collect(),
        exits: ended.map(|exit| (exit.app.to_string(), exit_report(exit))).collect(),
        apps: apps(snapshot, exits, namespace).into_iter().filter(ours).collect(),
    }
}

fn report(snapshot: &Snapshot, key: &AppKey, app: &App, exits: &[&Exit]) -> AppReport {
    let mut executors = BTreeMap::new();
    for executor in app.executors.values() {
        *executors.entry(executor.shown_state().as_str().to_owned()).or_default() += 1;
    }
    let in_trouble = |executor: &&std::sync::Arc<Executor>| !executor.state.is_final() && executor.evidence.is_some();
    let troubled = app.executors.values().filter(in_trouble).take(TROUBLED);
    AppReport {
        namespace: key.namespace().to_owned(),
        app: key.selector().to_owned(),
        driver: driver(snapshot, key, app),
        executors,
        troubled: troubled.map(|executor| executor_report(executor)).collect(),
        exits: exits.iter().rev().take(LAST).map(|exit| exit_report(exit)).collect(),
    }
}

fn driver(snapshot: &Snapshot, key: &AppKey, app: &App) -> DriverReport {
    let owner =
        || app.executors.values().find_map(|executor| executor.template.owner.as_ref().filter(|owner| owner.is_pod));
    let named =
        || app.drivers.first().map(|driver| driver.name.to_string()).or_else(|| Some(owner()?.name.to_string()));
    match life::of(key, app, snapshot, None) {
        DriverLife::Alive(pod) => {
            let life = if pod.life == Life::Pending { "pending" } else { "alive" };
            DriverReport { life: life.to_owned(), pod: Some(pod.name.to_string()) }
        }
        DriverLife::Gone => DriverReport { life: "gone".to_owned(), pod: named() },
        DriverLife::Unknown => DriverReport { life: "unknown".to_owned(), pod: named() },
    }
}

fn executor_report(executor: &Executor) -> ExecutorReport {
    ExecutorReport {
        pod: executor.name.to_string(),
        id: executor.exec_id,
        state: executor.shown_state().as_str().to_owned(),
        node: executor.node.as_deref().map(str::to_owned),
        why: why_so(executor),
    }
}

/// Why an executor that is there is as it is.
fn why_so(executor: &Executor) -> Option<String> {
    let nothing = Evidence::default();
    let evidence = executor.evidence.as_deref().unwrap_or(&nothing);
    let mut parts = Vec::new();
    if let Some(deletion) = &evidence.deletion {
        let until = deletion.until.map_or_else(String::new, |until| format!(" and was to be gone at {until}"));
        parts.push(format!("is being deleted{until}"));
        if !deletion.finalizers.is_empty() {
            parts.push(format!("held by {}", deletion.finalizers.join(", ")));
        }
        parts.extend(super::cause::by_whom(evidence).map(|who| format!("by {who}")));
    }
    if let Some((container, words)) = evidence.stuck() {
        parts.push(format!("container {} waits: {} {}", container.name, words.reason, words.message));
    }
    if let Some(words) = evidence.unscheduled.as_ref().filter(|_| executor.node.is_none()) {
        parts.push(format!("has no node: {}", words.message));
    }
    if executor.inactive {
        let who = if executor.inactive_by_us { "spark-usher" } else { "its driver" };
        parts.push(format!("was labelled inactive by {who}"));
    }
    if parts.is_empty() && executor.state == ExecutorPodState::Pending {
        parts.push(match &executor.node {
            Some(node) => format!("is starting on {node}"),
            None => format!("waits for {} to find it a node", scheduler(executor)),
        });
    }
    (!parts.is_empty()).then(|| parts.join("; "))
}

fn scheduler(executor: &Executor) -> &str {
    if executor.template.seat.scheduler_name.is_empty() {
        "the scheduler"
    } else {
        &executor.template.seat.scheduler_name
    }
}

fn exit_report(exit: &Exit) -> ExitReport {
    let spark = exit.spark();
    ExitReport {
        pod: exit.executor.name.to_string(),
        uid: exit.executor.uid.to_string(),
        id: exit.executor.exec_id,
        node: exit.executor.node.as_deref().map(str::to_owned),
        at: exit.at.to_string(),
        cause: exit.cause.as_str().to_owned(),
        text: exit.cause.text().to_owned(),
        detail: exit.detail(),
        by_app: exit.cause.by_app(),
        exit_code: exit.exit_code(),
        spark: SparkReport { exit_code: spark.exit_code, caused_by_app: spark.caused_by_app, message: spark.message },
    }
}
