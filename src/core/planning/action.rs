//! The actions of a plan. Every write names the object by uid, and by resourceVersion where it matters, so that the API server
//! rejects a stale plan.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::check::Check;
use crate::lifecycle::cause::Cause;
use crate::ownership::resolve::DriverSource;
use crate::policy::RecoveryRule;
use crate::reason::Reason;
use crate::snapshot::{Executor, Group, GroupApi, GroupKey};
use usher_spark::ids::{AppKey, PodIdentity, PodKey};

/// The longest description of an action in the log.
const MAX_DESCRIPTION: usize = 1024;

/// The state of an object on which a plan is based: the precondition of its write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectVersion {
    /// The object's uid.
    pub uid: Arc<str>,
    pub resource_version: Arc<str>,
}

impl From<&Executor> for ObjectVersion {
    fn from(executor: &Executor) -> ObjectVersion {
        ObjectVersion { uid: executor.uid.clone(), resource_version: executor.version.as_str().into() }
    }
}

impl From<&Group> for ObjectVersion {
    fn from(group: &Group) -> ObjectVersion {
        ObjectVersion { uid: group.uid.clone(), resource_version: group.version.clone() }
    }
}

/// One action of a plan.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Create a PodGroup.
    CreateGroup {
        /// Its namespace, name and scheduler.
        key: GroupKey,
        /// The API that serves it.
        api: &'static GroupApi,
        /// Its application.
        app: AppKey,
        spec: Value,
        /// Its owner, a pod of the same namespace that is known to be alive.
        owner: Option<PodIdentity>,
        /// Whether the gang has run once already.
        started: bool,
    },
    /// Patch one of our PodGroups.
    PatchGroup {
        /// The PodGroup.
        key: GroupKey,
        /// The API that serves it.
        api: &'static GroupApi,
        /// Its state on which the plan is based.
        seen: ObjectVersion,
        /// A merge patch of the object, without the preconditions.
        patch: Value,
        /// Why: raised or lowered; `None` for a correction that is not reported.
        reason: Option<Reason>,
    },
    /// Delete one of our PodGroups.
    DeleteGroup {
        /// The PodGroup.
        key: GroupKey,
        /// The API that serves it.
        api: &'static GroupApi,
        /// Its state on which the plan is based.
        seen: ObjectVersion,
        /// Why: no longer needed, or owned by an earlier driver.
        reason: Reason,
    },
    /// Make the driver the owner of an executor, after a live GET of the driver's pod.
    Adopt {
        executor: PodKey,
        /// Its state on which the plan is based.
        seen: ObjectVersion,
        driver: PodIdentity,
        /// The evidence.
        how: DriverSource,
    },
    /// Label or delete an executor that exited.
    CleanUp {
        executor: PodKey,
        /// Its state on which the plan is based.
        seen: ObjectVersion,
        /// Label or delete.
        how: Cleanup,
        /// The cause of its exit.
        cause: Cause,
        /// The driver whose exit is the reason not to wait; its pod is read again before the write.
        gone_driver: Option<PodIdentity>,
    },
    /// Delete a pod by a recovery rule, after a check.
    Recover(Box<Recover>),
    /// Record an Event, and log it.
    RecordEvent(PodEvent),
}

/// The deletion of a pod by a recovery rule.
#[derive(Clone, Debug, PartialEq)]
pub struct Recover {
    pub rule: RecoveryRule,
    /// The pod's state on which the plan is based.
    pub seen: ObjectVersion,
    /// What is verified immediately before.
    pub check: Check,
    /// The Event that is recorded once the pod is deleted: it names the pod.
    pub event: PodEvent,
}

/// What is done to an executor that exited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cleanup {
    /// The label `spark-exec-inactive`, which Spark itself would write.
    Label,
    /// Deletion of the pod.
    Delete,
}

/// An Event about a pod.
#[derive(Clone, Debug, PartialEq)]
pub struct PodEvent {
    pub pod: PodKey,
    pub uid: Arc<str>,
    pub reason: Reason,
    /// The message, for people.
    pub message: String,
}

impl Action {
    /// Why it is done; `None` for a correction that is not reported.
    pub fn reason(&self) -> Option<Reason> {
        match self {
            Action::CreateGroup { .. } => Some(Reason::GroupCreated),
            Action::PatchGroup { reason, .. } => *reason,
            Action::DeleteGroup { reason, .. } => Some(*reason),
            Action::Adopt { .. } => Some(Reason::Adopted),
            Action::CleanUp { how: Cleanup::Label, .. } => Some(Reason::ExecutorLabelled),
            Action::CleanUp { how: Cleanup::Delete, .. } => Some(Reason::ExecutorDeleted),
            Action::Recover(deletion) => Some(deletion.event.reason),
            Action::RecordEvent(event) => Some(event.reason),
        }
    }

    /// The action's name in logs and metrics.
    pub fn name(&self) -> &'static str {
        match self {
            Action::CreateGroup { .. } => "create-group",
            Action::PatchGroup { .. } => "patch-group",
            Action::DeleteGroup { .. } => "delete-group",
            Action::Adopt { .. } => "adopt",
            Action::CleanUp { how: Cleanup::Label, .. } => "label-executor",
            Action::CleanUp { how: Cleanup::Delete, .. } => "delete-executor",
            Action::Recover(_) => "recover",
            Action::RecordEvent(_) => "record-event",
        }
    }

    /// The object that an action is about.
    pub fn object(&self) -> String {
        match self {
            Action::CreateGroup { key, .. } | Action::PatchGroup { key, .. } | Action::DeleteGroup { key, .. } => {
                format!("{}/{}", key.namespace, key.name)
            }
            Action::Adopt { executor, .. } | Action::CleanUp { executor, .. } => executor.to_string(),
            Action::Recover(deletion) => deletion.event.pod.to_string(),
            Action::RecordEvent(pod_event) => pod_event.pod.to_string(),
        }
    }

    /// An action in one line, for the log.
    pub fn describe(&self) -> String {
        let mut out = Map::new();
        match self {
            Action::CreateGroup { key, spec, .. } => {
                out.insert("group".into(), (*key.name).into());
                out.insert("spec".into(), spec.clone());
            }
            Action::PatchGroup { key, patch, .. } => {
                out.insert("group".into(), (*key.name).into());
                out.insert("patch".into(), patch.clone());
            }
            Action::DeleteGroup { key, .. } => {
                out.insert("group".into(), (*key.name).into());
            }
            Action::Adopt { executor, driver, how, .. } => {
                out.insert("executor".into(), executor.name().into());
                out.insert("driver".into(), driver.key.name().into());
                out.insert("how".into(), how.as_str().into());
            }
            Action::CleanUp { executor, cause, gone_driver, .. } => {
                out.insert("executor".into(), executor.name().into());
                out.insert("cause".into(), cause.as_str().into());
                if let Some(driver) = gone_driver {
                    out.insert("driverGone".into(), driver.key.name().into());
                }
            }
            Action::Recover(deletion) => {
                out.insert("rule".into(), deletion.rule.as_str().into());
                out.insert("pod".into(), deletion.event.pod.name().into());
                out.insert("message".into(), deletion.event.message.clone().into());
            }
            Action::RecordEvent(pod_event) => {
                out.insert("pod".into(), pod_event.pod.name().into());
                out.insert("message".into(), pod_event.message.clone().into());
            }
        }
        let text = Value::Object(out).to_string();
        text.chars().take(MAX_DESCRIPTION).collect()
    }
}
