//! What became of a driver when one of its executors ended.
//!
//! A driver takes its executors along: `SparkContext.stop` deletes them before the driver's process ends, the garbage
//! collector deletes them after its pod is gone, and an executor that loses its connection ends with exit code 1
//! (`CoarseGrainedExecutorBackend`, "Driver disassociated"). The executor's end is often seen before the driver's: the
//! kubelets of two nodes report them.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::cause::{Cause, by_whom};
use crate::driver::resolve;
use crate::plant::{self, Bug};
use crate::snapshot::{Executor, Followed, Life, Snapshot};
use crate::spark::evidence::Evidence;
use crate::spark::ids::{AppKey, PodKey};

/// Within so long a driver that is gone, or going, and of whose end no time is known, explains an executor's end.
pub(super) const TOGETHER: Duration = Duration::from_secs(2);
/// An executor that ended no longer ago has ended just now, for whom nobody knows when its driver did.
const LATELY: SignedDuration = SignedDuration::from_secs(10);
/// Clocks of nodes differ, and times of containers are in whole seconds.
const SKEW: SignedDuration = SignedDuration::from_secs(2);

/// What is known of the driver's pod of an executor that ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DriverAtEnd {
    /// No driver's pod is known.
    #[default]
    Unknown,
    /// Nobody has looked at the pod that owned the executor.
    Unread(Arc<str>),
    /// It was there, and nothing was known of an end.
    Alive(Arc<str>),
    /// It was there, and was asked to go.
    Deleting(Arc<str>),
    /// Its container had ended, at this time where that is known.
    Ended(Arc<str>, Option<Timestamp>),
    /// Its pod was gone.
    Gone(Arc<str>),
}

impl DriverAtEnd {
    /// The driver of an executor, as it is in the snapshot: the pod that owns the executor, else the labelled driver of the
    /// same creator.
    pub(super) fn of(snapshot: &Snapshot, app: &AppKey, executor: &Executor) -> DriverAtEnd {
        let namespace = app.namespace();
        let pod = match executor.template.owner.as_ref().filter(|owner| owner.is_pod) {
            Some(owner) => match snapshot.driver_pod(namespace, &owner.name) {
                Some(pod) if pod.uid == owner.uid => pod,
                Some(_) => return DriverAtEnd::Gone(owner.name.clone()),
                None => match snapshot.followed.get(&PodKey::new(namespace, &owner.name)) {
                    Some(Followed::Absent) => return DriverAtEnd::Gone(owner.name.clone()),
                    _ if resolve::is_pod_name(&owner.name) => return DriverAtEnd::Unread(owner.name.clone()),
                    _ => return DriverAtEnd::Unknown,
                },
            },
            None => {
                let creator = executor.counts_to();
                let drivers = snapshot.apps.get(app).into_iter().flat_map(|app| &app.drivers);
                match drivers.into_iter().find(|driver| Some(driver.creator) == creator) {
                    Some(pod) => pod,
                    None => return DriverAtEnd::Unknown,
                }
            }
        };
        let name = pod.name.clone();
        if pod.life == Life::Ended {
            return DriverAtEnd::Ended(name, pod.evidence.as_deref().and_then(Evidence::ended_at));
        }
        if pod.deleting { DriverAtEnd::Deleting(name) } else { DriverAtEnd::Alive(name) }
    }

    /// The driver's pod of whose end nothing is known yet.
    pub(super) fn open(&self) -> Option<&str> {
        match self {
            DriverAtEnd::Alive(name) | DriverAtEnd::Unread(name) => Some(name),
            _ => None,
        }
    }

    /// Whether it is gone, or going, and nobody knows since when.
    pub(super) fn is_untimed(&self) -> bool {
        matches!(self, DriverAtEnd::Gone(_) | DriverAtEnd::Deleting(_) | DriverAtEnd::Ended(_, None))
    }

    /// What is known later replaces what was known, unless it is nothing.
    pub(super) fn learn(&mut self, later: DriverAtEnd) {
        if later != DriverAtEnd::Unknown {
            *self = later;
        }
    }

    /// Whether the driver had ended, or was about to, when an executor ended at `at` by its own account, which was noted
    /// at `noted`.
    fn had_ended(&self, at: Option<Timestamp>, noted: Timestamp) -> bool {
        match self {
            DriverAtEnd::Unknown | DriverAtEnd::Unread(_) | DriverAtEnd::Alive(_) => false,
            DriverAtEnd::Ended(_, Some(ended)) => at.is_none_or(|at| at.duration_since(*ended) >= -SKEW),
            // Nobody knows since when it is gone: it explains only what has just happened.
            DriverAtEnd::Deleting(_) | DriverAtEnd::Ended(_, None) | DriverAtEnd::Gone(_) => {
                at.is_none_or(|at| noted.duration_since(at).abs() <= LATELY)
            }
        }
    }

    /// Whether the driver's end, should it be seen, would change what is said of an executor's end.
    pub(super) fn would_explain(cause: Cause, evidence: Option<&Evidence>) -> bool {
        match cause {
            Cause::Error => evidence.is_some_and(|evidence| evidence.exit_code == Some(1)),
            Cause::Deleted => evidence.and_then(by_whom).is_none(),
            _ => false,
        }
    }

    /// The cause of an end that was noted at `noted`, with what is known of the driver.
    pub(super) fn explain(&self, cause: Cause, evidence: Option<&Evidence>, noted: Timestamp) -> Cause {
        let at = evidence.and_then(Evidence::ended_at);
        let lost = cause == Cause::Error && DriverAtEnd::would_explain(cause, evidence) && self.had_ended(at, noted);
        if lost && !plant::is(Bug::DriverLostIsError) { Cause::DriverLost } else { cause }
    }

    /// By whom an executor was deleted, where it went with its driver.
    pub(super) fn took_along(&self) -> Option<String> {
        let (name, how) = match self {
            DriverAtEnd::Unknown | DriverAtEnd::Unread(_) | DriverAtEnd::Alive(_) => return None,
            DriverAtEnd::Deleting(name) => (name, "was being deleted"),
            DriverAtEnd::Ended(name, _) => (name, "had ended"),
            DriverAtEnd::Gone(name) => (name, "was gone"),
        };
        Some(format!("with its driver {name}, which {how}"))
    }
}
