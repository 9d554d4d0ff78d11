//! The exit of an executor.

use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::cause::{Cause, Removal, by_whom};
use super::driver_at_exit::DriverAtExit;
use crate::snapshot::Executor;
use usher_spark::diagnostics::PodDiagnostics;
use usher_spark::exit::{self, SparkExit};
use usher_spark::ids::{AppKey, PodKey};
use usher_spark::state::ExecutorPodState;

#[derive(Clone, Debug, PartialEq)]
pub struct Exit {
    /// The executor's application.
    pub app: AppKey,
    /// The executor as last observed.
    pub executor: Arc<Executor>,
    /// Why it exited.
    pub cause: Cause,
    /// How it left the snapshot.
    pub removal: Removal,
    /// When it was recorded.
    pub at: Timestamp,
    /// The state of its driver by then.
    pub driver: DriverAtExit,
    /// For an executor that a poll did not find: the time of that poll, and after how long an executor counts as missing.
    pub missing: Option<(Timestamp, Duration)>,
    /// It had exited before this process first listed pods.
    pub was_over: bool,
    /// The newest observed resourceVersion as of which it had not exited.
    pub after: Option<u64>,
    /// When it was first to be confirmed, if the confirmation took long.
    pub asked: Option<Instant>,
    /// The recovery rule of spark-usher that deleted the pod.
    pub rule: Option<&'static str>,
    /// The previous leader may have reported it, and cannot be queried.
    pub possibly_reported: bool,
}

impl Exit {
    pub fn pod(&self) -> PodKey {
        PodKey::new(self.app.namespace(), &self.executor.name)
    }

    /// The pod's diagnostics.
    pub fn evidence(&self) -> Option<&PodDiagnostics> {
        self.executor.diagnostics.as_deref()
    }

    /// What Spark's driver reports about it.
    pub fn spark(&self) -> SparkExit {
        let id = self.executor.exec_id.unwrap_or_default().into();
        let nothing = PodDiagnostics::default();
        let diagnostics = self.evidence().unwrap_or(&nothing);
        match (self.executor.state, self.removal) {
            (ExecutorPodState::Failed | ExecutorPodState::Succeeded, _) => exit::ended(id, diagnostics),
            (_, Removal::Vanished) => {
                let (polled, delta) = self.missing.unwrap_or((self.at, Duration::ZERO));
                let registered = self.executor.created.map_or(0, |created| i64::from(created.get())) * 1000;
                let delta = i64::try_from(delta.as_millis()).unwrap_or(i64::MAX);
                exit::missing(id, registered, polled.as_millisecond(), delta)
            }
            _ => exit::deleted(id, diagnostics),
        }
    }

    /// When it exited, by the pod's own status; if that has no time, when the exit was recorded.
    pub fn ended_at(&self) -> Timestamp {
        self.evidence().and_then(PodDiagnostics::ended_at).map_or(self.at, |ended| ended.min(self.at))
    }

    /// The resourceVersion with which it exited; `None` if the watch has not shown its exit.
    pub(crate) fn version(&self) -> Option<u64> {
        let is_shown = match self.removal {
            Removal::Present | Removal::Deleted => true,
            Removal::Unobserved => self.executor.state.is_final(),
            Removal::Vanished => false,
        };
        is_shown.then(|| self.executor.version.parse().ok()).flatten()
    }

    /// The resourceVersion that it holds the checkpoint back to while it is open: the last one that was observed, if that of the exit
    /// was not.
    pub(super) fn held_version(&self) -> Option<u64> {
        self.version().or_else(|| self.executor.version.parse().ok())
    }

    /// The exit code, if a container reported one.
    pub fn exit_code(&self) -> Option<i32> {
        self.evidence()?.exit_code
    }

    /// What is known beyond the cause, in one line.
    pub fn detail(&self) -> String {
        let nothing = PodDiagnostics::default();
        let diagnostics = self.evidence().unwrap_or(&nothing);
        let mut parts = diagnostics.exit_message();
        if self.cause == Cause::Vanished {
            parts.push("its pod no longer exists, and the watch did not show the deletion".to_owned());
        }
        parts.extend(self.rule.map(|rule| format!("by the recovery rule {rule}")));
        if self.cause == Cause::Deleted {
            let whom =
                by_whom(diagnostics).map(|who| format!("by {who}")).or_else(|| self.driver.deleted_with_driver());
            parts.push(whom.unwrap_or_else(|| "by an unknown client".to_owned()));
        } else {
            parts.extend(diagnostics.disruption.as_ref().map(|words| format!("{}: {}", words.reason, words.message)));
        }
        if let Some(words) = diagnostics.unscheduled.as_ref().filter(|_| self.executor.node.is_none()) {
            parts.push(format!("never scheduled: {}", words.message));
        }
        parts.join("; ")
    }
}
