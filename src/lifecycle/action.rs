//! What the loop wants done. Every write names the object by uid, and by resourceVersion where it matters, so that a
//! stale plan is refused by the API server.

use std::sync::Arc;

use serde_json::Value;

use super::cause::Cause;
use crate::driver::resolve::How;
use crate::reason::Reason;
use crate::snapshot::{GroupApi, GroupKey};
use crate::spark::ids::{AppKey, PodKey};

/// A driver's pod by name and uid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverRef {
    /// Pod name.
    pub name: Arc<str>,
    /// Pod uid.
    pub uid: Arc<str>,
}

/// One thing to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Make a PodGroup.
    CreateGroup {
        /// Where, and what it is called.
        key: GroupKey,
        /// By which API.
        api: &'static GroupApi,
        /// For which application.
        app: AppKey,
        /// Its `spec`.
        spec: Value,
        /// Its owner, a pod of the same namespace that is known to live.
        owner: Option<DriverRef>,
        /// Whether the gang has run once already.
        started: bool,
    },
    /// Correct a PodGroup of ours.
    PatchGroup {
        /// Which.
        key: GroupKey,
        /// By which API.
        api: &'static GroupApi,
        /// Its uid.
        uid: Arc<str>,
        /// The resourceVersion that the plan was made of.
        version: Arc<str>,
        /// A merge patch of the object, without the preconditions.
        patch: Value,
        /// Why: raised, lowered, or something that needs no word.
        reason: Option<Reason>,
    },
    /// Delete a PodGroup of ours.
    DeleteGroup {
        /// Which.
        key: GroupKey,
        /// By which API.
        api: &'static GroupApi,
        /// Its uid.
        uid: Arc<str>,
        /// The resourceVersion that the plan was made of.
        version: Arc<str>,
        /// Why: not needed any more, or of an earlier driver.
        reason: Reason,
    },
    /// Give an executor its driver as owner, after a live look at the driver's pod.
    Adopt {
        /// The executor.
        executor: PodKey,
        /// Its uid.
        uid: Arc<str>,
        /// The resourceVersion that the plan was made of.
        version: Arc<str>,
        /// The driver.
        driver: DriverRef,
        /// The evidence.
        how: How,
    },
    /// Label or delete an executor that ended.
    Finish {
        /// The executor.
        executor: PodKey,
        /// Its uid.
        uid: Arc<str>,
        /// The resourceVersion that the plan was made of.
        version: Arc<str>,
        /// Which of the two.
        how: Finish,
        /// Why it ended.
        cause: Cause,
        /// The driver whose end is the reason not to wait; it is looked at again before anything is done.
        gone: Option<DriverRef>,
    },
    /// Say something, as an Event and in the log.
    Tell(Told),
}

/// What becomes of an executor that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The label `spark-exec-inactive`, which Spark itself would write.
    Label,
    /// Its end.
    Delete,
}

/// Something to be said about an object.
#[derive(Clone, Debug, PartialEq)]
pub struct Told {
    /// About a pod of this name and uid.
    pub pod: PodKey,
    /// Its uid.
    pub uid: Arc<str>,
    /// Why.
    pub reason: Reason,
    /// For people.
    pub message: String,
}

impl Action {
    /// Why it is done; `None` for a correction that needs no word.
    pub fn reason(&self) -> Option<Reason> {
        match self {
            Action::CreateGroup { .. } => Some(Reason::GroupCreated),
            Action::PatchGroup { reason, .. } => *reason,
            Action::DeleteGroup { reason, .. } => Some(*reason),
            Action::Adopt { .. } => Some(Reason::Adopted),
            Action::Finish { how: Finish::Label, .. } => Some(Reason::ExecutorLabelled),
            Action::Finish { how: Finish::Delete, .. } => Some(Reason::ExecutorDeleted),
            Action::Tell(told) => Some(told.reason),
        }
    }

    /// The word for logs and metrics.
    pub fn name(&self) -> &'static str {
        match self {
            Action::CreateGroup { .. } => "create-group",
            Action::PatchGroup { .. } => "patch-group",
            Action::DeleteGroup { .. } => "delete-group",
            Action::Adopt { .. } => "adopt",
            Action::Finish { how: Finish::Label, .. } => "label-executor",
            Action::Finish { how: Finish::Delete, .. } => "delete-executor",
            Action::Tell(_) => "tell",
        }
    }
}
