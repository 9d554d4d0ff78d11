//! What is reported about applications, drivers, executors and exits. Times are RFC 3339.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::groups::GroupReport;
use super::recovery_reports::{DeletionReport, FindingReport, ShortageReport, TargetReport};
use super::timeline::Timeline;

/// An application.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AppReport {
    pub namespace: String,
    /// Its app selector.
    pub app: String,
    /// What a person calls it: the name that its pods' labels state, else its driver's pod without the unique part. Several have one
    /// name, such as the runs of one job.
    #[serde(default)]
    pub name: String,
    /// When its driver's pod was created, or else its first known executor. It distinguishes the runs of one job.
    #[serde(default)]
    pub started: Option<String>,
    pub driver: DriverReport,
    /// How many executors are in which state; one that is being deleted counts as terminating.
    pub executors: BTreeMap<String, usize>,
    /// What its driver says about its executors; `None` if the driver was not polled or does not answer. Only the leader polls.
    #[serde(default)]
    pub driver_view: Option<DriverViewReport>,
    /// How many executors it wants; `None` if that is not known, or if no driver is alive.
    #[serde(default)]
    pub target: Option<TargetReport>,
    /// How many executors it lacks, and why; `None` if it lacks none, or if the number that it wants is not known.
    #[serde(default)]
    pub shortage: Option<ShortageReport>,
    /// How many live executors have no ownerReference to a driver and no driver that is known: nothing deletes them when their driver
    /// ends, which may run outside the cluster.
    #[serde(default)]
    pub unowned: usize,
    /// Its PodGroups, at most 20.
    #[serde(default)]
    pub groups: Vec<GroupReport>,
    /// What the recovery rules found, at most 100. Only the leader applies them.
    #[serde(default)]
    pub findings: Vec<FindingReport>,
    /// The last pods that recovery rules deleted, at most 10, the newest first.
    #[serde(default)]
    pub deletions: Vec<DeletionReport>,
    /// Existing executors that are in trouble, at most 20.
    pub troubled: Vec<ExecutorReport>,
    /// How many of its executors exited for each cause, as far as they are remembered.
    pub ended: BTreeMap<String, usize>,
    /// How many earlier exits of it are forgotten.
    #[serde(default)]
    pub forgotten: u64,
    /// Its last exits, at most 10, the newest first: if there are more, abnormal exits are preferred.
    pub exits: Vec<ExitReport>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DriverReport {
    /// `alive`, `gone` or `unknown`: whether a driver is alive.
    pub liveness: String,
    /// Its pod, if one is known.
    pub pod: Option<String>,
    /// The state of that pod: `pending`, `running`, `succeeded`, `failed`, `terminating`; `None` if it does not exist.
    pub state: Option<String>,
    pub node: Option<String>,
    /// Why it is in this state, if known.
    pub why: Option<String>,
    /// When its pod was created, if that exists.
    #[serde(default)]
    pub created: Option<String>,
    /// When it exited, if it did and its pod still exists.
    #[serde(default)]
    pub ended: Option<String>,
}

impl DriverReport {
    /// The state of its pod, else whether it is alive.
    pub fn shown_state(&self) -> &str {
        self.state.as_deref().unwrap_or(&self.liveness)
    }
}

/// A driver's view of its executors, by Spark's REST API.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DriverViewReport {
    /// When the driver was polled last, and answered.
    pub at: String,
    /// How many executors are registered.
    pub registered: usize,
    /// How many executors dynamic allocation wants; `None` with static allocation.
    pub target: Option<u32>,
    /// Exec ids of registered executors that have no live pod, at most 20: the driver had the time to notice that, and has not.
    pub vanished: Vec<u64>,
    /// Whether every executor that registered is in it. After the driver has dropped events, it is not.
    pub complete: bool,
}

/// An existing executor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExecutorReport {
    pub pod: String,
    pub uid: String,
    /// `spark-exec-id`.
    pub id: Option<u64>,
    pub state: String,
    pub node: Option<String>,
    /// Why it is in this state, if known.
    pub why: Option<String>,
    /// What was done with it, if anything: its deletion, its label.
    #[serde(default)]
    pub done: Option<String>,
    /// What the recovery does about it, and why.
    #[serde(default)]
    pub recovery: Option<String>,
    /// What its driver's REST API says about it; `None` if it says nothing, or was not polled.
    #[serde(default)]
    pub driver_row: Option<DriverRowReport>,
}

/// A row of the executors in a driver's REST API. Times are RFC 3339.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DriverRowReport {
    /// When the executor registered.
    pub registered: Option<String>,
    /// When the driver removed it.
    pub removed: Option<String>,
    /// Why the driver removed it (`removeReason`).
    pub reason: Option<String>,
}

/// How an executor exited.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExitReport {
    pub pod: String,
    pub uid: String,
    /// `spark-exec-id`.
    pub id: Option<u64>,
    pub node: Option<String>,
    /// When it exited: by its pod's status, else when the exit was detected.
    pub at: String,
    /// When the exit was detected.
    pub noticed: String,
    pub cause: String,
    /// The cause in a sentence.
    pub text: String,
    /// What is known beyond the cause.
    pub detail: String,
    /// Whether the exit is abnormal.
    pub is_abnormal: bool,
    /// Who caused it: `application`, `others` or `unknown`.
    #[serde(default)]
    pub blame: String,
    /// The exit code, if a container reported one.
    pub exit_code: Option<i32>,
    /// That a recovery rule deleted its pod, and why.
    #[serde(default)]
    pub recovery: Option<String>,
    /// What Spark's driver reports about it.
    pub spark: SparkReport,
    /// What its driver's REST API says about it; `None` if it says nothing, or was not polled.
    #[serde(default)]
    pub driver_row: Option<DriverRowReport>,
}

/// Spark's view of an exit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SparkReport {
    /// Its exit code, -1 if there is none.
    pub exit_code: i32,
    /// Whether it blames the application.
    pub caused_by_app: bool,
    /// Its text, byte for byte.
    pub message: String,
}

/// The answer to `why`: what a name refers to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WhyReport {
    /// Applications with that selector, or with a driver pod of that name.
    pub apps: Vec<AppReport>,
    /// Existing executors of that name.
    pub executors: Vec<Of<ExecutorReport>>,
    /// Exits of executors of that name, the newest first.
    pub exits: Vec<Of<ExitReport>>,
    /// The lives of the executors of those applications.
    #[serde(default)]
    pub timelines: Vec<Timeline>,
    /// What happened to those pods and applications, in order: the command line adds it, from pods and Events.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub histories: Vec<HistoryReport>,
}

/// What happened to a pod or to an application.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HistoryReport {
    /// The pod, or the application, that it is about.
    pub of: String,
    /// What happened, the oldest first.
    pub entries: Vec<HistoryEntry>,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HistoryEntry {
    /// When, RFC 3339.
    pub at: String,
    /// `pod`, `spark-usher`, `driver`, or the component that reported an Event.
    pub by: String,
    /// What, in words.
    pub what: String,
}

/// An item of an application.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Of<T> {
    /// Its namespace and app selector, `namespace/selector`.
    pub app: String,
    /// The name of the application, `spark.app.name`.
    #[serde(default)]
    pub name: String,
    /// The item.
    #[serde(flatten)]
    pub what: T,
}

impl WhyReport {
    /// Whether nothing is known by that name.
    pub fn is_empty(&self) -> bool {
        self.apps.is_empty() && self.executors.is_empty() && self.exits.is_empty()
    }
}

/// How many executors an application lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lacking {
    /// None, or it has no driver that could want any.
    None,
    /// Not known: its driver is alive, and how many it wants is not known.
    Unknown,
    /// This many.
    Some(usize),
    /// At least this many.
    AtLeast(usize),
}

impl Lacking {
    /// The number that is known.
    pub fn count(self) -> usize {
        match self {
            Lacking::None | Lacking::Unknown => 0,
            Lacking::Some(count) | Lacking::AtLeast(count) => count,
        }
    }

    /// For people: `0`, `?`, `3`, `≥3`.
    pub fn text(self) -> String {
        match self {
            Lacking::None => "0".to_owned(),
            Lacking::Unknown => "?".to_owned(),
            Lacking::Some(count) => count.to_string(),
            Lacking::AtLeast(count) => format!("≥{count}"),
        }
    }
}

impl AppReport {
    /// Its name, else its app selector: a replica of an earlier version states no name.
    pub fn shown_name(&self) -> &str {
        if self.name.is_empty() { &self.app } else { &self.name }
    }

    /// How many executors it lacks.
    pub fn lacking(&self) -> Lacking {
        let at_least = self.target.as_ref().is_some_and(|target| target.at_least);
        match &self.shortage {
            Some(shortage) if at_least => Lacking::AtLeast(shortage.lacking()),
            Some(shortage) => Lacking::Some(shortage.lacking()),
            None if self.driver.liveness == "alive" && (at_least || self.target.is_none()) => Lacking::Unknown,
            None => Lacking::None,
        }
    }

    /// The state of its driver: of its pod, else whether it is alive; `no pods` if nothing is left of the application but exits.
    pub fn driver_state(&self) -> &str {
        let state = self.driver.shown_state();
        if state == "unknown" && self.executors.is_empty() { "no pods" } else { state }
    }
}
