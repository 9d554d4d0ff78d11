//! What a recovery rule finds, and what may be done about it.

use std::sync::Arc;
use std::time::Instant;

use smol_str::SmolStr;

use crate::planning::Check;
use crate::policy::RecoveryRule;
use usher_spark::ids::PodKey;

/// What a rule found about one pod.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    pub rule: RecoveryRule,
    pub pod: PodKey,
    pub uid: Arc<str>,
    /// Its resourceVersion, the precondition of a deletion.
    pub version: SmolStr,
    /// Since when the rule's condition has held, by our own clock.
    pub since: Instant,
    /// What is wrong, for people: a clause whose subject is the pod.
    pub message: String,
    /// What the rule does in mode `act`, or why it does nothing.
    pub remedy: Result<Remedy, NoRemedy>,
}

/// What a rule does in mode `act`: it deletes the pod.
#[derive(Clone, Debug, PartialEq)]
pub struct Remedy {
    /// What is verified again immediately before the deletion.
    pub check: Check,
    /// What follows from the deletion, for people: a clause after "deleted, so that".
    pub effect: &'static str,
}

/// Why nothing is done about a finding in mode `act`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoRemedy {
    /// The rule only reports.
    ReportOnly,
    /// The driver has not answered one of its last two polls.
    NoView,
    /// Drivers are not polled.
    NotPolled,
    /// The driver is unknown, or only a label names it.
    UnknownDriver,
    /// A StatefulSet or Deployment creates the pod.
    Workload,
    /// The executor has no id by which its driver knows it.
    NoExecId,
    /// No ownerReference of the executor and no proven signature names the driver that is gone.
    Unproven,
    /// Something contradicts that the driver is gone; the finding names it.
    Contradicted,
    /// The driver keeps its executors (`deleteOnTermination=false`), or its configuration cannot be read.
    Kept,
    /// The application caused the failure: the pod is kept for inspection.
    ForInspection,
    /// The driver counts on executors that have no pod: they vanished, or have lost their labels.
    Registered,
    /// The driver does not run in cluster mode: nothing would start it again.
    NotInCluster,
    /// Finalizers block the deletion.
    Finalizers,
}

impl NoRemedy {
    /// The reason, for people.
    pub fn text(self) -> &'static str {
        match self {
            NoRemedy::ReportOnly => "only reported",
            NoRemedy::NoView => "not deleted, because its driver has not answered one of its last two polls",
            NoRemedy::NotPolled => "not deleted, because drivers are not polled (recovery.driverView.access is none)",
            NoRemedy::UnknownDriver => "not deleted, because its driver is unknown",
            NoRemedy::Workload => "not deleted, because a StatefulSet or Deployment creates it",
            NoRemedy::NoExecId => {
                "not deleted, because its label spark-exec-id is no number, so its driver cannot confirm it"
            }
            NoRemedy::Unproven => "not deleted, because nothing proves that the driver that is gone created it",
            NoRemedy::Contradicted => "not deleted, because its driver may be alive",
            NoRemedy::Kept => {
                "not deleted, because its driver keeps executors (deleteOnTermination=false), or its configuration cannot be read"
            }
            NoRemedy::ForInspection => "not deleted, so that the failure can be inspected",
            NoRemedy::Registered => {
                "not deleted, because executors are registered with it: their pods vanished, or have lost their labels"
            }
            NoRemedy::NotInCluster => "not deleted, because the driver does not run in cluster mode",
            NoRemedy::Finalizers => "not deleted by force, because finalizers block the deletion",
        }
    }
}

/// The result of a rule for one pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum FindingVerdict {
    /// Its condition does not hold.
    #[default]
    Nothing,
    /// Its condition holds, and has held long enough at this time.
    At(Instant),
    /// Its condition has held long enough.
    Found(Box<Finding>),
}

impl From<Finding> for FindingVerdict {
    fn from(finding: Finding) -> FindingVerdict {
        FindingVerdict::Found(Box::new(finding))
    }
}
