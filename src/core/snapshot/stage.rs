//! The stage of an executor's pod, and since when it has been in it.

use std::time::{Duration, Instant};

use super::facts::Executor;
use usher_spark::diagnostics::PodDiagnostics;
use usher_spark::state::ExecutorPodState;

/// The unit of [`Executor::stage_seen`].
const TENTH: Duration = Duration::from_millis(100);

/// The stages of an executor's pod; how long it has been in one decides whether it is in trouble.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// No scheduler has bound it to a node.
    Unscheduled,
    /// It is bound to a node, and an init container works.
    Initializing,
    /// It is bound to a node and does not run yet.
    Starting,
    /// It runs.
    Running,
    /// It is in a final state.
    Final,
    /// The same, and another container keeps it on its node ([`Executor::lingers`]).
    Lingering,
    /// Its deletion was requested.
    Terminating,
    /// Its node does not respond.
    Unknown,
}

impl Executor {
    pub fn stage(&self) -> Stage {
        match self.state {
            _ if self.deleting => Stage::Terminating,
            ExecutorPodState::Pending if self.node.is_none() => Stage::Unscheduled,
            ExecutorPodState::Pending if self.init_container().is_some() => Stage::Initializing,
            ExecutorPodState::Pending => Stage::Starting,
            ExecutorPodState::Running => Stage::Running,
            ExecutorPodState::Unknown => Stage::Unknown,
            state if state.is_final() && self.lingers => Stage::Lingering,
            state if state.is_final() => Stage::Final,
            _ => Stage::Terminating,
        }
    }

    /// Its init container that works.
    fn init_container(&self) -> Option<&str> {
        Some(&*self.diagnostics.as_ref()?.initializing()?.name)
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
            Some((first, now)) if known.stage() != self.stage() || known.init_container() != self.init_container() => {
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
            Stage::Unscheduled => {
                // Nothing but a rule deletes what a pod of another namespace leaves.
                self.template.creator.as_ref().is_none_or(|by| by.pod_elsewhere().is_none())
            }
            Stage::Running => true,
            Stage::Starting | Stage::Initializing => self.inactive,
            Stage::Final => {
                let is_by_cluster = |diagnostics: &PodDiagnostics| diagnostics.may_be_ended_by_cluster();
                !self.is_over || !self.diagnostics.as_deref().is_some_and(is_by_cluster)
            }
            Stage::Lingering | Stage::Terminating | Stage::Unknown => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::{ObservedPod, PodChange, SchedulingKeys, Snapshot};
    use usher_spark::pod::Pod;

    fn executor(version: u32, status: &str, at: Instant) -> ObservedPod {
        let json = format!(
            r#"{{"metadata":{{"name":"e","namespace":"n","uid":"u","resourceVersion":"{version}","labels":
            {{"spark-role":"executor","spark-app-selector":"a","spark-exec-id":"1"}}}},
            "spec":{{"nodeName":"w","restartPolicy":"Never","containers":[]}},"status":{status}}}"#
        );
        let mut seen = ObservedPod::of(&Pod::read_whole(json.as_bytes()).unwrap(), &SchedulingKeys::default()).unwrap();
        seen.observed_at(at);
        seen
    }

    #[test]
    fn stage_begins_when_it_was_first_observed_and_never_sooner() {
        let (mut snapshot, first) = (Snapshot::default(), crate::test_time::instant());
        let at = |millis| first + Duration::from_millis(millis);
        let mut seen = |version, status, millis| {
            snapshot.apply(PodChange::Observed(executor(version, status, at(millis))));
            let (_, executor) = snapshot.executor("n", "e").unwrap();
            (executor.first_seen, executor.stage(), executor.stage_seen())
        };
        let (pending, running) = (r#"{"phase":"Pending"}"#, r#"{"phase":"Running"}"#);
        assert_eq!(seen(1, pending, 0), (Some(first), Stage::Starting, Some(first)));
        assert_eq!(seen(2, pending, 4000), (Some(first), Stage::Starting, Some(first)));
        assert_eq!(seen(3, running, 5001), (Some(first), Stage::Running, Some(at(5100))));
        assert_eq!(seen(4, running, 9000), (Some(first), Stage::Running, Some(at(5100))));
        assert_eq!(seen(5, pending, 9000), (Some(first), Stage::Starting, Some(at(9000))));
    }

    #[test]
    fn executor_is_settled_if_only_its_driver_can_make_it_concern_a_rule() {
        let is_settled = |status: &str| match executor(1, status, crate::test_time::instant()) {
            ObservedPod::Executor(_, executor) => executor.is_settled(),
            other => panic!("{other:?}"),
        };
        assert!(is_settled(r#"{"phase":"Running"}"#));
        assert!(is_settled(r#"{"phase":"Succeeded"}"#) && is_settled(r#"{"phase":"Failed"}"#));
        assert!(!is_settled(r#"{"phase":"Pending"}"#), "it is bound to a node and may be stuck");
        assert!(!is_settled(r#"{"phase":"Unknown"}"#));
        assert!(!is_settled(r#"{"phase":"Failed","reason":"Evicted"}"#), "its pod may be left behind");
    }
}
