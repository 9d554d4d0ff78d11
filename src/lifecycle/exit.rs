//! The end of an executor.

use std::num::NonZeroI64;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::cause::{Cause, Left, by_whom};
use super::driver_at_end::DriverAtEnd;
use crate::snapshot::Executor;
use crate::spark::evidence::Evidence;
use crate::spark::exit::{self, SparkView};
use crate::spark::ids::{AppKey, PodKey};
use crate::spark::state::ExecutorPodState;

/// An end.
#[derive(Clone, Debug, PartialEq)]
pub struct Exit {
    /// Whose executor.
    pub app: AppKey,
    /// As it was seen last.
    pub executor: Arc<Executor>,
    /// Why.
    pub cause: Cause,
    /// How it left the picture.
    pub left: Left,
    /// When it was noted.
    pub at: Timestamp,
    /// What had become of its driver by then.
    pub driver: DriverAtEnd,
    /// For one that a poll did not find: when that was, and after how long an executor counts as missing.
    pub missing: Option<(Timestamp, Duration)>,
    /// It had ended before this process first listed pods.
    pub was_over: bool,
    /// The newest resourceVersion as of which it had not ended, as far as was seen.
    pub after: Option<u64>,
    /// When it was first in question, where the answer took long.
    pub asked: Option<Instant>,
    /// The replica that led before may have reported it, and cannot be asked.
    pub perhaps_told: bool,
}

impl Exit {
    /// The pod.
    pub fn pod(&self) -> PodKey {
        PodKey::new(self.app.namespace(), &self.executor.name)
    }

    /// What the pod said.
    pub fn evidence(&self) -> Option<&Evidence> {
        self.executor.evidence.as_deref()
    }

    /// What Spark's driver says about it.
    pub fn spark(&self) -> SparkView {
        let id = self.executor.exec_id.unwrap_or_default();
        let nothing = Evidence::default();
        let evidence = self.evidence().unwrap_or(&nothing);
        match (self.executor.state, self.left) {
            (ExecutorPodState::Failed | ExecutorPodState::Succeeded, _) => exit::ended(id, evidence),
            (_, Left::Vanished) => {
                let (polled, delta) = self.missing.unwrap_or((self.at, Duration::ZERO));
                let registered = self.executor.created.map_or(0, NonZeroI64::get).saturating_mul(1000);
                let delta = i64::try_from(delta.as_millis()).unwrap_or(i64::MAX);
                exit::missing(id, registered, polled.as_millisecond(), delta)
            }
            _ => exit::deleted(id, evidence),
        }
    }

    /// When it ended, by the pod's own status; where that has no time, when it was noted.
    pub fn ended_at(&self) -> Timestamp {
        self.evidence().and_then(Evidence::ended_at).map_or(self.at, |ended| ended.min(self.at))
    }

    /// The resourceVersion with which it ended; `None` where the watch has not shown its end.
    pub(super) fn version(&self) -> Option<u64> {
        let is_shown = match self.left {
            Left::Stays | Left::Deleted => true,
            Left::Unshown => self.executor.state.is_final(),
            Left::Vanished => false,
        };
        is_shown.then(|| self.executor.version.parse().ok()).flatten()
    }

    /// The exit code, if a container told one.
    pub fn exit_code(&self) -> Option<i32> {
        self.evidence()?.exit_code
    }

    /// What is known beyond the cause, in a line.
    pub fn detail(&self) -> String {
        let nothing = Evidence::default();
        let evidence = self.evidence().unwrap_or(&nothing);
        let mut parts = evidence.words_of_end();
        if self.cause == Cause::Vanished {
            parts.push("its pod is gone, and the watch did not show it".to_owned());
        }
        if self.cause == Cause::Deleted {
            let whom = by_whom(evidence).map(|who| format!("by {who}")).or_else(|| self.driver.took_along());
            parts.push(whom.unwrap_or_else(|| "by somebody unknown".to_owned()));
        } else {
            parts.extend(evidence.disruption.as_ref().map(|words| format!("{}: {}", words.reason, words.message)));
        }
        if let Some(words) = evidence.unscheduled.as_ref().filter(|_| self.executor.node.is_none()) {
            parts.push(format!("never placed: {}", words.message));
        }
        parts.join("; ")
    }
}
