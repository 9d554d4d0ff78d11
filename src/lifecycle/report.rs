//! What people are told about applications and executors: `/debug/apps`, `/debug/why`, `spark-usher apps` and `why`.
//!
//! The same shapes on the wire and at both ends; times are RFC 3339.

use std::collections::BTreeMap;
use std::sync::Arc;

use imbl::Vector;
use jiff::{Timestamp, Unit};
use serde::{Deserialize, Serialize};

use super::exit::Exit;
use crate::driver::life::{self, DriverLife};
use crate::snapshot::{App, DriverPod, Executor, Life, Snapshot};
use crate::spark::evidence::{Evidence, Words};
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
    /// How many of its executors ended why, as far as it is remembered.
    pub ended: BTreeMap<String, usize>,
    /// How its last executors ended, at most 10, the newest first: abnormal ends before ordinary ones, if there are more.
    pub exits: Vec<ExitReport>,
}

/// A driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DriverReport {
    /// `alive`, `gone` or `unknown`: whether anybody drives.
    pub life: String,
    /// Its pod, if one is known.
    pub pod: Option<String>,
    /// How far that pod is: `pending`, `running`, `succeeded`, `failed`, `terminating`; nothing when it is not there.
    pub state: Option<String>,
    /// Its node.
    pub node: Option<String>,
    /// Why it is as it is, where anything says so.
    pub why: Option<String>,
}

/// An executor that is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExecutorReport {
    /// Its pod.
    pub pod: String,
    /// Its uid.
    pub uid: String,
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
    /// When it ended, as far as its pod told; else when that was noticed.
    pub at: String,
    /// When it was noticed.
    pub noticed: String,
    /// Our cause.
    pub cause: String,
    /// The cause in a sentence.
    pub text: String,
    /// What is known beyond the cause.
    pub detail: String,
    /// Whether it is more than the ordinary end of an executor.
    pub is_abnormal: bool,
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
    /// Executors of that name that are there.
    pub executors: Vec<Of<ExecutorReport>>,
    /// Ends of executors of that name, the newest first.
    pub exits: Vec<Of<ExitReport>>,
}

/// Something of an application.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Of<T> {
    /// Its namespace and app selector, `namespace/selector`.
    pub app: String,
    /// What it is.
    #[serde(flatten)]
    pub what: T,
}

impl WhyReport {
    /// Whether nothing is known by that name.
    pub fn is_empty(&self) -> bool {
        self.apps.is_empty() && self.executors.is_empty() && self.exits.is_empty()
    }
}

/// Every application, or those of one namespace.
pub fn apps(snapshot: &Snapshot, exits: &Vector<Exit>, namespace: Option<&str>, now: Timestamp) -> Vec<AppReport> {
    reports(snapshot, exits, now, |key, _, _| namespace.is_none_or(|namespace| key.namespace() == namespace))
}

/// What a name stands for: a pod, an application, or a driver.
pub fn why(
    snapshot: &Snapshot,
    exits: &Vector<Exit>,
    name: &str,
    namespace: Option<&str>,
    now: Timestamp,
) -> WhyReport {
    let wanted = |key: &AppKey| namespace.is_none_or(|namespace| key.namespace() == namespace);
    let executors = snapshot.apps.iter().filter(|(key, _)| wanted(key)).flat_map(|(key, app)| {
        let named = app.executors().values().filter(|executor| &*executor.name == name);
        let gone = life::of(key, app, snapshot) == DriverLife::Gone;
        named.map(move |executor| Of { app: key.to_string(), what: executor_report(executor, gone, now) })
    });
    let mut ended: Vec<&Exit> = exits.iter().filter(|exit| wanted(&exit.app) && &*exit.executor.name == name).collect();
    ended.sort_by_key(|exit| std::cmp::Reverse(exit.ended_at()));
    WhyReport {
        executors: executors.collect(),
        exits: ended.into_iter().map(|exit| Of { app: exit.app.to_string(), what: exit_report(exit) }).collect(),
        apps: reports(snapshot, exits, now, |key, app, ends| {
            wanted(key) && (key.selector() == name || driver_names(app, ends).any(|driver| driver == name))
        }),
    }
}

/// Reports of the applications that are wanted, those of which only ends are left among them.
fn reports(
    snapshot: &Snapshot,
    exits: &Vector<Exit>,
    now: Timestamp,
    wanted: impl Fn(&AppKey, &App, &[&Exit]) -> bool,
) -> Vec<AppReport> {
    let mut ends: BTreeMap<&AppKey, Vec<&Exit>> = BTreeMap::new();
    for exit in exits {
        ends.entry(&exit.app).or_default().push(exit);
    }
    let nothing = App::default();
    let there = snapshot.apps.iter().map(|(key, app)| (key, &**app));
    let left = ends.keys().filter(|key| !snapshot.apps.contains_key(**key)).map(|key| (*key, &nothing));
    let all = there.chain(left).map(|(key, app)| (key, app, ends.get(key).map_or(&[][..], Vec::as_slice)));
    let mut all: Vec<_> = all.filter(|(key, app, ends)| wanted(key, app, ends)).collect();
    all.sort_by_key(|(key, ..)| *key);
    all.into_iter().map(|(key, app, ends)| report(snapshot, key, app, ends, now)).collect()
}

fn report(snapshot: &Snapshot, key: &AppKey, app: &App, exits: &[&Exit], now: Timestamp) -> AppReport {
    let mut executors = BTreeMap::new();
    for executor in app.executors().values() {
        *executors.entry(executor.shown_state().as_str().to_owned()).or_default() += 1;
    }
    let mut ended = BTreeMap::new();
    for exit in exits {
        *ended.entry(exit.cause.as_str().to_owned()).or_default() += 1;
    }
    let life = life::of(key, app, snapshot);
    let gone = life == DriverLife::Gone;
    let in_trouble = |executor: &&Arc<Executor>| {
        let left_alone = gone && executor.is_live();
        !executor.state.is_final()
            && (executor.evidence.is_some() || left_alone || executor.state == ExecutorPodState::Unknown)
    };
    let troubled = app.executors().values().filter(in_trouble).take(TROUBLED);
    let mut last = exits.to_vec();
    last.sort_by_key(|exit| std::cmp::Reverse((exit.cause.is_abnormal(), exit.ended_at())));
    last.truncate(LAST);
    last.sort_by_key(|exit| std::cmp::Reverse(exit.ended_at()));
    AppReport {
        namespace: key.namespace().to_owned(),
        app: key.selector().to_owned(),
        driver: driver(snapshot, key, app, exits, &life),
        executors,
        troubled: troubled.map(|executor| executor_report(executor, gone, now)).collect(),
        ended,
        exits: last.into_iter().map(exit_report).collect(),
    }
}

/// Drivers' pods, by their label or as executors name them, also those that are gone; the likeliest first.
fn driver_names<'a>(app: &'a App, exits: &'a [&'a Exit]) -> impl Iterator<Item = &'a str> {
    fn owner(executor: &Executor) -> Option<&str> {
        executor.template.owner.as_ref().filter(|owner| owner.is_pod).map(|owner| &*owner.name)
    }
    let labelled = app.live_driver().into_iter().chain(&app.drivers).map(|driver| &*driver.name);
    let named = app.executors().values().filter_map(|executor| owner(executor));
    labelled.chain(named).chain(exits.iter().rev().filter_map(|exit| owner(&exit.executor)))
}

fn driver(snapshot: &Snapshot, key: &AppKey, app: &App, exits: &[&Exit], life: &DriverLife) -> DriverReport {
    let name = match life {
        DriverLife::Alive(pod) => Some(pod.name.to_string()),
        DriverLife::Gone | DriverLife::Unknown => driver_names(app, exits).next().map(str::to_owned),
    };
    let pod = name.as_ref().and_then(|name| snapshot.driver_pod(key.namespace(), name));
    let life = match life {
        DriverLife::Alive(_) => "alive",
        DriverLife::Gone => "gone",
        DriverLife::Unknown => "unknown",
    };
    DriverReport {
        life: life.to_owned(),
        state: pod.map(|pod| driver_state(pod).to_owned()),
        node: pod.and_then(|pod| pod.node.as_deref()).map(str::to_owned),
        why: pod.and_then(|pod| driver_why(pod)),
        pod: name,
    }
}

fn driver_state(pod: &DriverPod) -> &'static str {
    match pod.life {
        Life::Ended if pod.has_failed => "failed",
        Life::Ended => "succeeded",
        _ if pod.deleting => "terminating",
        Life::Pending => "pending",
        Life::Running => "running",
    }
}

fn driver_why(pod: &DriverPod) -> Option<String> {
    let evidence = pod.evidence.as_deref()?;
    let mut parts = if pod.life == Life::Ended { evidence.words_of_end() } else { Vec::new() };
    if pod.life != Life::Ended {
        parts.extend(evidence.words_of_wait("waits"));
        parts.extend(evidence.unscheduled.as_ref().filter(|_| pod.node.is_none()).map(no_node));
    }
    parts.extend(evidence.disruption.as_ref().map(|words| format!("{}: {}", words.reason, words.message)));
    let at = evidence.ended_at().filter(|_| pod.life == Life::Ended && !parts.is_empty());
    parts.extend(at.map(|at| format!("at {}", shown(at))));
    (!parts.is_empty()).then(|| parts.join("; "))
}

fn no_node(words: &Words) -> String {
    format!("has no node: {}", words.message)
}

/// A time for people: seconds are enough.
fn shown(time: Timestamp) -> String {
    time.round(Unit::Second).unwrap_or(time).to_string()
}

fn executor_report(executor: &Executor, driver_gone: bool, now: Timestamp) -> ExecutorReport {
    ExecutorReport {
        pod: executor.name.to_string(),
        uid: executor.uid.to_string(),
        id: executor.exec_id,
        state: executor.shown_state().as_str().to_owned(),
        node: executor.node.as_deref().map(str::to_owned),
        why: why_so(executor, driver_gone, now),
    }
}

/// Why an executor that is there is as it is.
fn why_so(executor: &Executor, driver_gone: bool, now: Timestamp) -> Option<String> {
    let nothing = Evidence::default();
    let evidence = executor.evidence.as_deref().unwrap_or(&nothing);
    let mut parts = Vec::new();
    if driver_gone && executor.is_live() {
        parts.push("is left alone: its driver is gone".to_owned());
    }
    if let Some(deletion) = &evidence.deletion {
        let until = deletion.until.map_or_else(String::new, |until| {
            let tense = if until < now { "was" } else { "is" };
            format!(" and {tense} to be gone by {}", shown(until))
        });
        parts.push(format!("is being deleted{until}"));
        if !deletion.finalizers.is_empty() {
            parts.push(format!("held by {}", deletion.finalizers.join(", ")));
        }
        parts.extend(super::cause::by_whom(evidence).map(|who| format!("by {who}")));
    }
    if !executor.state.is_final() {
        parts.extend(evidence.words_of_wait("waits"));
        parts.extend(evidence.unscheduled.as_ref().filter(|_| executor.node.is_none()).map(no_node));
    }
    if executor.inactive {
        let who = if executor.inactive_by_us { "spark-usher" } else { "its driver" };
        parts.push(format!("was labelled inactive by {who}"));
    }
    if executor.state == ExecutorPodState::Unknown {
        parts.push("its phase is Unknown: its node does not answer".to_owned());
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
        at: shown(exit.ended_at()),
        noticed: shown(exit.at),
        cause: exit.cause.as_str().to_owned(),
        text: exit.cause.text().to_owned(),
        detail: exit.detail(),
        is_abnormal: exit.cause.is_abnormal(),
        by_app: exit.cause.by_app(),
        exit_code: exit.exit_code(),
        spark: SparkReport { exit_code: spark.exit_code, caused_by_app: spark.caused_by_app, message: spark.message },
    }
}
