//! The stage of an executor's pod, and since when it has been in it.

use std::time::{Duration, Instant};

use super::facts::Executor;
use crate::fault_injection::{self, Bug};
use crate::spark::diagnostics::PodDiagnostics;
use crate::spark::state::ExecutorPodState;

/// The unit of [`Executor::stage_seen`].
const TENTH: Duration = Duration::from_millis(100);

/// The stages of an executor's pod; how long it has been in one decides whether it is in trouble.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// No scheduler has bound it to a node.
    Unscheduled,
    /// It is bound to a node and does not run yet.
    Starting,
    /// It runs.
    Running,
    /// It is in a final state.
    Final,
    /// Its deletion was requested.
    Terminating,
    /// Its node does not respond.
    Unknown,
}

impl Executor {
    /// Its stage.
    pub fn stage(&self) -> Stage {
        match self.state {
            _ if self.deleting => Stage::Terminating,
            ExecutorPodState::Pending if self.node.is_none() => Stage::Unscheduled,
            ExecutorPodState::Pending => Stage::Starting,
            ExecutorPodState::Running => Stage::Running,
            ExecutorPodState::Unknown => Stage::Unknown,
            state if state.is_final() => Stage::Final,
            _ => Stage::Terminating,
        }
    }

    /// When it was first observed in its stage, by our own clock; at most a tenth of a second later.
    pub fn stage_seen(&self) -> Option<Instant> {
        Some(self.first_seen? + TENTH * self.stage_after)
    }

    /// This is a newer state of an executor that is known.
    pub(super) fn continues(&mut self, known: &Executor) {
        let observed = self.first_seen;
        self.first_seen = known.first_seen.or(observed);
        self.stage_after = match self.first_seen.zip(observed) {
            Some((first, now)) if known.stage() != self.stage() => {
                let tenths = now.saturating_duration_since(first).as_millis().div_ceil(TENTH.as_millis());
                u32::try_from(tenths).unwrap_or(u32::MAX)
            }
            _ => known.stage_after,
        };
    }

    /// The grace period of its deletion, as the API server wrote it; zero if it is not being deleted.
    pub fn termination_grace(&self) -> Duration {
        let deletion = self.diagnostics.as_ref().and_then(|diagnostics| diagnostics.deletion.as_ref());
        let times = deletion.and_then(|deletion| deletion.until.zip(deletion.asked));
        times.map_or(Duration::ZERO, |(until, asked)| until.duration_since(asked).unsigned_abs())
    }

    /// Whether no recovery rule, and no cost, can concern it while its driver is alive and no view of its driver says otherwise.
    pub fn is_settled(&self) -> bool {
        match self.stage() {
            Stage::Unscheduled => !fault_injection::injected(Bug::UnscheduledIsStuck),
            Stage::Running => true,
            Stage::Starting => self.inactive,
            Stage::Final => {
                let is_by_cluster = |diagnostics: &PodDiagnostics| diagnostics.may_be_ended_by_cluster();
                !self.is_over || !self.diagnostics.as_deref().is_some_and(is_by_cluster)
            }
            Stage::Terminating | Stage::Unknown => false,
        }
    }
}
