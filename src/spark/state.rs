//! The state of an executor, as Spark's `ExecutorPodsSnapshot` tells it from a pod.

use super::labels;
use super::pod::Pod;

/// Spark's `ExecutorPodState`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExecutorPodState {
    /// Not started, for whatever reason: unscheduled, pulling, ImagePullBackOff.
    Pending,
    /// The Spark container runs, as far as anybody has said.
    Running,
    /// Ended with exit code 0.
    Succeeded,
    /// Ended otherwise, or a companion did.
    Failed,
    /// Deletion was asked for and the pod does not run any more.
    Deleted,
    /// A phase that Spark does not know.
    Unknown,
}

impl ExecutorPodState {
    /// All states, in their order.
    pub const ALL: [ExecutorPodState; 6] =
        [Self::Pending, Self::Running, Self::Succeeded, Self::Failed, Self::Deleted, Self::Unknown];

    /// The word for metrics and people.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Running => "running",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Deleted => "deleted",
            Self::Unknown => "unknown",
        }
    }

    /// Whether this is an end: nothing follows but the pod's removal.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Deleted)
    }

    /// Whether it counts towards the application's size: pending or running.
    pub fn is_live(self) -> bool {
        matches!(self, Self::Pending | Self::Running)
    }

    /// Reads the state; first match wins (Spark 4.3, `ExecutorPodsSnapshot.toState`).
    pub fn of(pod: &Pod<'_>) -> ExecutorPodState {
        let phase = pod.status.phase.as_deref().unwrap_or_default();
        let is = |name: &str| phase.eq_ignore_ascii_case(name);
        if pod.metadata.deletion_timestamp.is_some() && !is("running") && !is("terminating") {
            return Self::Deleted;
        }
        if is("pending") {
            return Self::Pending;
        }
        if is("running") {
            return Self::of_running(pod);
        }
        if is("failed") {
            return Self::Failed;
        }
        if is("succeeded") {
            return Self::Succeeded;
        }
        // A pod that was just created has no phase on some servers; Spark would warn, nobody has looked at it yet.
        if phase.is_empty() { Self::Pending } else { Self::Unknown }
    }

    fn of_running(pod: &Pod<'_>) -> ExecutorPodState {
        let statuses = &pod.status.container_statuses;
        let exit = |status: &super::pod::ContainerStatus<'_>| status.state.terminated.map(|t| t.exit_code);
        let never_restarts = pod.spec.restart_policy.as_deref() == Some("Never");
        if never_restarts && statuses.iter().any(|status| exit(status).is_some_and(|code| code != 0)) {
            return Self::Failed;
        }
        match statuses.iter().find(|status| status.name == labels::EXECUTOR_CONTAINER).and_then(exit) {
            Some(0) => Self::Succeeded,
            Some(_) => Self::Failed,
            None => Self::Running,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(json: &str) -> ExecutorPodState {
        ExecutorPodState::of(&Pod::read_whole(json.as_bytes()).unwrap())
    }

    #[test]
    fn phases() {
        assert_eq!(state(r#"{"status":{"phase":"Pending"}}"#), ExecutorPodState::Pending);
        assert_eq!(state(r#"{"status":{}}"#), ExecutorPodState::Pending);
        assert_eq!(state(r#"{"status":{"phase":"Running"}}"#), ExecutorPodState::Running);
        assert_eq!(state(r#"{"status":{"phase":"Succeeded"}}"#), ExecutorPodState::Succeeded);
        assert_eq!(state(r#"{"status":{"phase":"Failed"}}"#), ExecutorPodState::Failed);
        assert_eq!(state(r#"{"status":{"phase":"Lost"}}"#), ExecutorPodState::Unknown);
    }

    #[test]
    fn deletion_of_a_running_pod_keeps_it_running_through_its_grace_period() {
        let with = |phase: &str| {
            state(&format!(r#"{{"metadata":{{"deletionTimestamp":"t"}},"status":{{"phase":"{phase}"}}}}"#))
        };
        assert_eq!(with("Running"), ExecutorPodState::Running);
        assert_eq!(with("Pending"), ExecutorPodState::Deleted);
        assert_eq!(with("Failed"), ExecutorPodState::Deleted);
    }

    #[test]
    fn containers_of_a_running_pod() {
        let with = |policy: &str, name: &str, code: i32| {
            state(&format!(
                r#"{{"spec":{{"restartPolicy":"{policy}"}},"status":{{"phase":"Running","containerStatuses":[
                    {{"name":"{name}","state":{{"terminated":{{"exitCode":{code}}}}}}}]}}}}"#
            ))
        };
        assert_eq!(with("Never", "sidecar", 0), ExecutorPodState::Running);
        assert_eq!(with("Never", "sidecar", 3), ExecutorPodState::Failed);
        assert_eq!(with("Always", "sidecar", 3), ExecutorPodState::Running);
        assert_eq!(with("Never", "spark-kubernetes-executor", 0), ExecutorPodState::Succeeded);
        assert_eq!(with("Always", "spark-kubernetes-executor", 137), ExecutorPodState::Failed);
    }

    #[test]
    fn what_is_final_and_what_is_live() {
        assert!(ExecutorPodState::Failed.is_final() && !ExecutorPodState::Failed.is_live());
        assert!(ExecutorPodState::Pending.is_live() && !ExecutorPodState::Unknown.is_live());
        assert!(!ExecutorPodState::Unknown.is_final());
    }
}
