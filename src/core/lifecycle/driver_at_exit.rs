//! The state of a driver when one of its executors exited.
//!
//! A driver's exit stops its executors: `SparkContext.stop` deletes them before the driver's process exits, the garbage collector
//! deletes them after the driver's pod was deleted, and an executor that loses its connection exits with code 1
//! (`CoarseGrainedExecutorBackend`, "Driver disassociated"). The executor's exit is often observed before the driver's, because
//! the kubelets of two nodes report them.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::cause::{Cause, by_whom};
use crate::ownership::workload::{self, OwningPod};
use crate::snapshot::{DriverPhase, Executor, ReferencedPod, Snapshot};
use usher_spark::diagnostics::PodDiagnostics;
use usher_spark::ids::{AppKey, PodKey};
use usher_spark::text::is_dns_subdomain;

/// Within this time, a driver that is deleted or being deleted and whose exit time is unknown explains an executor's exit.
pub(crate) const TOGETHER: Duration = Duration::from_secs(2);
/// An executor whose exit is at most this old counts as just exited where the time of its driver's exit is unknown.
const RECENT: SignedDuration = SignedDuration::from_secs(10);
/// The clocks of nodes differ, and the times of containers are in whole seconds.
const CLOCK_SKEW: SignedDuration = SignedDuration::from_secs(2);

/// What is known about the driver's pod of an executor that exited.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DriverAtExit {
    /// No driver pod is known.
    #[default]
    Unknown,
    /// The pod that owned the executor has not been read.
    Unread(Arc<str>),
    /// It existed, and no exit was known.
    Alive(Arc<str>),
    /// It existed, and its deletion was requested.
    Deleting(Arc<str>),
    /// Its container had exited, at this time if known.
    Ended(Arc<str>, Option<Timestamp>),
    /// Its pod no longer existed.
    Gone(Arc<str>),
}

impl DriverAtExit {
    /// The driver of an executor, as the snapshot contains it: the pod that owns the executor or its workload, else the labelled
    /// driver of the same creator.
    pub(crate) fn of(snapshot: &Snapshot, app: &AppKey, executor: &Executor) -> DriverAtExit {
        let namespace = app.namespace();
        let owner = executor.template.owner.as_ref().map(|owner| workload::owning_pod(snapshot, namespace, owner));
        let pod = match owner {
            Some(OwningPod::Pod(owner)) => match snapshot.driver_pod(namespace, &owner.name) {
                Some(pod) if pod.uid == owner.uid => pod,
                Some(_) => return DriverAtExit::Gone(owner.name.clone()),
                None => match snapshot.referenced.get(&PodKey::new(namespace, &owner.name)) {
                    Some(ReferencedPod::Absent) => return DriverAtExit::Gone(owner.name.clone()),
                    _ if is_dns_subdomain(&owner.name) => return DriverAtExit::Unread(owner.name.clone()),
                    _ => return DriverAtExit::Unknown,
                },
            },
            Some(OwningPod::Unread | OwningPod::None) | None => {
                let creator = executor.counted_creator();
                let drivers = snapshot.apps.get(app).into_iter().flat_map(|app| &app.drivers);
                match drivers.into_iter().find(|driver| Some(driver.creator) == creator) {
                    Some(pod) => pod,
                    None => return DriverAtExit::Unknown,
                }
            }
        };
        let name = pod.name.clone();
        if pod.phase == DriverPhase::Ended {
            return DriverAtExit::Ended(name, pod.diagnostics.as_deref().and_then(PodDiagnostics::ended_at));
        }
        if pod.deleting { DriverAtExit::Deleting(name) } else { DriverAtExit::Alive(name) }
    }

    /// The name of the driver's pod, if no exit of it is known yet.
    pub(crate) fn open(&self) -> Option<&str> {
        match self {
            DriverAtExit::Alive(name) | DriverAtExit::Unread(name) => Some(name),
            _ => None,
        }
    }

    /// Whether it had exited, was deleted, or was being deleted.
    pub fn is_over(&self) -> bool {
        matches!(self, DriverAtExit::Gone(_) | DriverAtExit::Deleting(_) | DriverAtExit::Ended(..))
    }

    /// Whether it is deleted, being deleted or exited, at an unknown time.
    pub(crate) fn is_untimed(&self) -> bool {
        matches!(self, DriverAtExit::Gone(_) | DriverAtExit::Deleting(_) | DriverAtExit::Ended(_, None))
    }

    /// A later observation replaces the earlier one, unless it is `Unknown`.
    pub(crate) fn observe(&mut self, later: DriverAtExit) {
        if later != DriverAtExit::Unknown {
            *self = later;
        }
    }

    /// Whether the driver had exited, or was about to, when an executor exited at `at` by its own status. That exit was
    /// recorded at `recorded`.
    fn had_ended(&self, at: Option<Timestamp>, recorded: Timestamp) -> bool {
        match self {
            DriverAtExit::Unknown | DriverAtExit::Unread(_) | DriverAtExit::Alive(_) => false,
            DriverAtExit::Ended(_, Some(ended)) => at.is_none_or(|at| at.duration_since(*ended) >= -CLOCK_SKEW),
            // The time is unknown: it explains only an exit that has just happened.
            DriverAtExit::Deleting(_) | DriverAtExit::Ended(_, None) | DriverAtExit::Gone(_) => {
                at.is_none_or(|at| recorded.duration_since(at).abs() <= RECENT)
            }
        }
    }

    /// Whether the driver's exit, if it is observed, would change what is reported about an executor's exit.
    pub(crate) fn would_explain(cause: Cause, diagnostics: Option<&PodDiagnostics>) -> bool {
        match cause {
            Cause::Error => diagnostics.is_some_and(|diagnostics| diagnostics.exit_code == Some(1)),
            Cause::Deleted => diagnostics.and_then(by_whom).is_none(),
            _ => false,
        }
    }

    /// The cause of an exit that was recorded at `recorded`, given what is known about the driver.
    pub(crate) fn explain(&self, cause: Cause, diagnostics: Option<&PodDiagnostics>, recorded: Timestamp) -> Cause {
        let at = diagnostics.and_then(PodDiagnostics::ended_at);
        let lost =
            cause == Cause::Error && DriverAtExit::would_explain(cause, diagnostics) && self.had_ended(at, recorded);
        if lost { Cause::DriverLost } else { cause }
    }

    /// By whom an executor was deleted, if it was deleted together with its driver.
    pub(crate) fn deleted_with_driver(&self) -> Option<String> {
        let (name, how) = match self {
            DriverAtExit::Unknown | DriverAtExit::Unread(_) | DriverAtExit::Alive(_) => return None,
            DriverAtExit::Deleting(name) => (name, "was being deleted"),
            DriverAtExit::Ended(name, _) => (name, "had exited"),
            DriverAtExit::Gone(name) => (name, "no longer existed"),
        };
        Some(format!("with its driver {name}, which {how}"))
    }
}
