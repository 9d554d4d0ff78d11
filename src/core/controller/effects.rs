//! The controller's settings, the results of its lookups, and its effects: what the edge has to do.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::lookup::Lookup;
use super::rate_limit::ExecutorSetKey;
use crate::drivers::DriverPoll;
use crate::leader::LeaderState;
use crate::lifecycle::exit::Exit;
use crate::planning::Action;
use crate::policy::{Policies, RecoveryRule};
use crate::recovery::cost::{Amount, WasteCause};
use crate::snapshot::{
    Conf, DriverPod, Listed, ObservedPod, Quota, ReferencedPod, RelatedChange, SchedulerMessages, Workload,
};
use usher_spark::conf::AppConf;
use usher_spark::ids::{AppKey, PodKey};
use usher_spark::rest::{DriverMetrics, ExecutorSummary};
use usher_spark::text::vocabulary;
use usher_spark::time::Now;

/// Settings that do not change while the process runs.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Seed of the jitter, so that replicas do not poll at the same time.
    pub seed: u64,
    /// If the Lease has no checkpoint, exits that a replica has tracked for this long count as reported by the previous leader.
    pub takeover: Duration,
    /// How long after an executor's exit the exit of its driver is awaited, if that would explain it.
    pub driver_exit_window: Duration,
    /// How long the watch of pods has to show a difference that a poll found, before pods are read by name.
    pub settle_time: Duration,
    /// The API server counts as unavailable when it has not answered the leader election for this long: longer than the time
    /// between two renewals.
    pub contact_timeout: Duration,
    /// A watch of pods without an event for this long is dead if a poll shows that pods changed. API servers send a bookmark a
    /// minute.
    pub watch_silence: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            seed: 0,
            takeover: Duration::from_secs(15),
            driver_exit_window: Duration::from_secs(5),
            settle_time: Duration::from_secs(10),
            contact_timeout: Duration::from_secs(15),
            watch_silence: Duration::from_secs(130),
        }
    }
}

/// What holds during one step.
#[derive(Clone, Copy, Debug)]
pub(super) struct StepContext<'p> {
    pub(super) settings: Settings,
    pub(super) policies: &'p Policies,
    pub(super) leader_state: LeaderState,
    pub(super) now: Now,
}

impl StepContext<'_> {
    /// Whether this replica leads.
    pub(super) fn leads(&self) -> bool {
        self.leader_state == LeaderState::Leader
    }
}

#[derive(Clone, Debug)]
pub enum LookupResult {
    /// The labelled pod of that name.
    Labelled(ObservedPod),
    /// The pod of that name or address.
    Pod(DriverPod),
    /// The workload of that name.
    Workload(Workload),
    /// The driver's configuration, from its ConfigMap.
    Conf(Conf),
    /// The ResourceQuotas of that namespace.
    Quotas(Vec<Quota>),
    /// What that scheduler states about pods of that namespace.
    Messages(SchedulerMessages),
    /// How many pods on that node each scheduler has placed.
    NodePods(BTreeMap<Arc<str>, usize>),
    /// All pods of that namespace.
    All(Listed),
    /// The API server has no such object.
    Absent,
    /// The request failed; try again.
    Failed,
}

impl LookupResult {
    /// What the snapshot learns from this answer; `None` if it says nothing for the snapshot. `waiters` are the applications that need it.
    pub fn learned(self, read: &Lookup, waiters: Vec<AppKey>) -> Option<RelatedChange> {
        Some(match (read, self) {
            (Lookup::Pod(pod), LookupResult::Absent) => {
                RelatedChange::Referenced(pod.clone(), ReferencedPod::Absent, waiters)
            }
            (Lookup::Pod(pod), LookupResult::Pod(driver)) => {
                RelatedChange::Referenced(pod.clone(), ReferencedPod::Present(Arc::new(driver)), waiters)
            }
            (Lookup::Address(namespace, _), LookupResult::Pod(driver)) => {
                let pod = PodKey::new(namespace, &driver.name);
                RelatedChange::Referenced(pod, ReferencedPod::Present(Arc::new(driver)), waiters)
            }
            (Lookup::Workload(key), LookupResult::Absent) => RelatedChange::Workload(key.clone(), None, waiters),
            (Lookup::Workload(key), LookupResult::Workload(workload)) => {
                RelatedChange::Workload(key.clone(), Some(workload), waiters)
            }
            (Lookup::Quotas(namespace), LookupResult::Quotas(quotas)) => {
                RelatedChange::Quotas(namespace.clone(), quotas)
            }
            (Lookup::Messages(namespace, kind), LookupResult::Messages(messages)) => {
                RelatedChange::Messages(namespace.clone(), kind, messages)
            }
            // The cluster no longer serves the scheduler's objects.
            (Lookup::Messages(namespace, kind), LookupResult::Absent) => {
                RelatedChange::Messages(namespace.clone(), kind, SchedulerMessages::new())
            }
            (Lookup::Conf(pod, uid, _), answer) => {
                let conf = if let LookupResult::Conf(conf) = answer { conf } else { Conf::Unreadable };
                RelatedChange::Conf(pod.clone(), uid.clone(), conf, waiters)
            }
            _ => return None,
        })
    }
}

/// The answer of a driver to a poll.
#[derive(Clone, Debug, PartialEq)]
pub enum DriverAnswer {
    /// Its view of the application's executors.
    View {
        /// The port on which the application was found.
        port: u16,
        /// The rows, in any order.
        executors: Vec<ExecutorSummary>,
        /// What its metrics say.
        metrics: DriverMetrics,
        /// Its configuration, if the poll asks for it and the driver shows it.
        conf: Option<Arc<AppConf>>,
    },
    /// It is not ready yet.
    Starting,
    /// It did not return a view.
    Failed(PollError),
}

vocabulary! {
    /// Why a driver returned no view.
    PollError {
        /// The sentence that follows the driver's name.
        message: &'static str,
    }
    /// Nothing listens on its ports.
    Refused = "refused" { message: "it does not listen on the ports of its web UI" };
    /// There is no way to it: no route, no proxy, or no file descriptor.
    Unreachable = "unreachable" { message: "there is no connection to it" };
    /// It did not answer in time.
    Timeout = "timeout" { message: "it did not answer in time" };
    /// It requires authentication (`spark.ui.filters`, `spark.acls.enable`).
    Forbidden = "forbidden" { message: "it requires authentication" };
    /// It redirects, to HTTPS or a login.
    Redirected = "redirected" { message: "it redirects" };
    /// Another application answers.
    OtherApplication = "other-application" { message: "it does not run this application" };
    /// What answers is not Spark's REST API.
    NotSpark = "not-spark" { message: "its answer is not of Spark's REST API" };
    /// The answer exceeds a limit, or there is no memory for it.
    TooLarge = "too-large" { message: "its answer is too large" };
}

impl fmt::Display for PollError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.message())
    }
}

impl std::error::Error for PollError {}

/// A suspect node, to be reported by an Event on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeReport {
    pub node: Arc<str>,
    pub uid: Arc<str>,
    /// Why it is suspect, and what to do, for people.
    pub message: String,
}

/// What the edge has to do after a step.
#[derive(Debug, Default)]
pub struct Effects {
    /// How many plans were made.
    pub plans: usize,
    /// What executors of applications that did no work have cost.
    pub waste: Vec<(AppKey, WasteCause, Amount)>,
    /// What deletions by recovery rules gave back, by namespace.
    pub given_back: Vec<(Arc<str>, RecoveryRule, Amount)>,
    /// How many more pods rules would have deleted, were deletions not off.
    pub withheld: BTreeMap<RecoveryRule, u32>,
    /// Objects to read.
    pub lookups: Vec<Lookup>,
    /// Actions in their order, by the set of executors that they are for.
    pub actions: Vec<(ExecutorSetKey, Vec<Action>)>,
    /// Exits to report; empty unless this replica is the leader.
    pub exits: Vec<Exit>,
    /// Suspect nodes to report; only a leader has any.
    pub node_reports: Vec<NodeReport>,
    /// Whether other nodes are suspect than before, or for another reason.
    pub suspects_changed: bool,
    /// Whether to list all labelled pods now; [`Controller::poll_finished`](super::Controller::poll_finished) takes the result.
    pub poll: bool,
    /// Drivers to poll for their view; [`Controller::driver_answered`](super::Controller::driver_answered) takes the answers.
    pub driver_polls: Vec<DriverPoll>,
    /// Whether to restart the watch of pods, which lost an event.
    pub restart_watch: bool,
    /// When to step again if no event arrives before.
    pub wake_at: Option<Instant>,
}
