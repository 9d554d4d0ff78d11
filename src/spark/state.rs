//! The state of an executor, as Spark's `ExecutorPodsSnapshot` derives it from a pod (`docs/spark.md#pod-states`).

use super::pod::Pod;
use super::status::ContainerStatus;
use super::version::SparkVersion;
use crate::text::vocabulary;

vocabulary! {
    /// Spark's `ExecutorPodState`.
    ExecutorPodState
    /// Not started, for whatever reason: unscheduled, pulling, ImagePullBackOff.
    Pending = "pending";
    /// The Spark container runs, as far as the status reports.
    Running = "running";
    /// Exited with code 0.
    Succeeded = "succeeded";
    /// Exited otherwise, or a sidecar did.
    Failed = "failed";
    /// Phase `terminating`, which no API server writes.
    Terminating = "terminating";
    /// Deletion was requested and the pod does not run any more.
    Deleted = "deleted";
    /// A phase that Spark does not know.
    Unknown = "unknown";
}

impl ExecutorPodState {
    /// Whether this state is final: only the pod's deletion follows.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Deleted)
    }

    /// Whether it counts towards the application's size: pending or running.
    pub fn is_live(self) -> bool {
        matches!(self, Self::Pending | Self::Running)
    }

    /// Reads the state as the Spark that created the pod would; first match wins (`ExecutorPodsSnapshot.toState`).
    pub fn of_pod(pod: &Pod<'_>) -> ExecutorPodState {
        let version = SparkVersion::of(pod);
        let phase = pod.status.phase.as_deref().unwrap_or_default();
        let is = |name: &str| phase.eq_ignore_ascii_case(name);
        let stays = version >= DELETION_HAS_A_GRACE && (is("running") || is("terminating"));
        if pod.metadata.deletion_timestamp.is_some() && !stays {
            return Self::Deleted;
        }
        if is("pending") {
            return Self::Pending;
        }
        if is("running") {
            return Self::of_running(pod, version);
        }
        if is("failed") {
            return Self::Failed;
        }
        if is("succeeded") {
            return Self::Succeeded;
        }
        if is("terminating") && version >= DELETION_HAS_A_GRACE {
            return Self::Terminating;
        }
        // On some servers a pod that was just created has no phase, because it was not processed yet; Spark would warn.
        if phase.is_empty() { Self::Pending } else { Self::Unknown }
    }

    fn of_running(pod: &Pod<'_>, version: SparkVersion) -> ExecutorPodState {
        let statuses = &pod.status.container_statuses;
        let exit = |status: &ContainerStatus<'_>| status.terminated().map(|terminated| terminated.exit_code);
        let never_restarts = pod.spec.restart_policy.as_deref() == Some("Never");
        if version >= ALL_CONTAINERS_COUNT
            && never_restarts
            && statuses.iter().any(|status| exit(status).is_some_and(|code| code != 0))
        {
            return Self::Failed;
        }
        if version < CONTAINER_BY_NAME {
            return Self::Running;
        }
        let name = pod.spark_container();
        match statuses.iter().find(|status| status.name == name).and_then(exit) {
            Some(0) => Self::Succeeded,
            Some(_) => Self::Failed,
            None => Self::Running,
        }
    }
}

/// Before this version, any deletionTimestamp made the state final.
const DELETION_HAS_A_GRACE: SparkVersion = SparkVersion::new(3, 1, 0);
/// Since SPARK-33874 the executor's own container is checked, by its name.
const CONTAINER_BY_NAME: SparkVersion = SparkVersion::new(3, 1, 0);
/// Since this version `spark.kubernetes.executor.checkAllContainers` is on by default.
const ALL_CONTAINERS_COUNT: SparkVersion = SparkVersion::new(4, 0, 0);

#[cfg(test)]
mod tests {
    use super::*;

    fn state(json: &str) -> ExecutorPodState {
        ExecutorPodState::of_pod(&Pod::read_whole(json.as_bytes()).unwrap())
    }

    /// The same for a pod that Spark 4.3 created.
    fn state_4(json: &str) -> ExecutorPodState {
        let labels = r#"{"metadata":{"labels":{"spark-version":"4.3.0"},"#;
        state(&json.replacen(r#"{"metadata":{"#, labels, 1))
    }

    #[test]
    fn phase_determines_state() {
        assert_eq!(state(r#"{"status":{"phase":"Pending"}}"#), ExecutorPodState::Pending);
        assert_eq!(state(r#"{"status":{}}"#), ExecutorPodState::Pending);
        assert_eq!(state(r#"{"status":{"phase":"Running"}}"#), ExecutorPodState::Running);
        assert_eq!(state(r#"{"status":{"phase":"Succeeded"}}"#), ExecutorPodState::Succeeded);
        assert_eq!(state(r#"{"status":{"phase":"Failed"}}"#), ExecutorPodState::Failed);
        assert_eq!(state(r#"{"status":{"phase":"terminating"}}"#), ExecutorPodState::Unknown, "before 3.1");
        let labels = r#"{"metadata":{"labels":{"spark-version":"4.3.0"}},"status":{"phase":"Terminating"}}"#;
        assert_eq!(state(labels), ExecutorPodState::Terminating);
        assert_eq!(state(r#"{"status":{"phase":"Lost"}}"#), ExecutorPodState::Unknown);
    }

    #[test]
    fn deleting_pod_is_running_only_in_phase_running() {
        let with = |phase: &str| {
            state_4(&format!(r#"{{"metadata":{{"deletionTimestamp":"t"}},"status":{{"phase":"{phase}"}}}}"#))
        };
        assert_eq!(with("Running"), ExecutorPodState::Running);
        assert_eq!(with("Pending"), ExecutorPodState::Deleted);
        assert_eq!(with("Failed"), ExecutorPodState::Deleted);
    }

    fn running(version: &str, policy: &str, name: &str, code: i32) -> ExecutorPodState {
        state(&format!(
            r#"{{"metadata":{{"labels":{{"spark-version":"{version}"}}}},"spec":{{"restartPolicy":"{policy}"}},"status":{{"phase":"Running",
                "initContainerStatuses":[{{"name":"init","state":{{"terminated":{{"exitCode":9}}}}}}],
                "containerStatuses":[{{"name":"{name}","state":{{"terminated":{{"exitCode":{code}}}}}}}]}}}}"#
        ))
    }

    #[test]
    fn exited_container_determines_state_of_running_pod() {
        let with = |policy: &str, name: &str, code: i32| running("4.3.0", policy, name, code);
        assert_eq!(with("Never", "sidecar", 0), ExecutorPodState::Running);
        assert_eq!(with("Never", "sidecar", 3), ExecutorPodState::Failed);
        assert_eq!(with("Always", "sidecar", 3), ExecutorPodState::Running);
        assert_eq!(with("Never", "spark-kubernetes-executor", 0), ExecutorPodState::Succeeded);
        assert_eq!(with("Always", "spark-kubernetes-executor", 137), ExecutorPodState::Failed);
    }

    #[test]
    fn state_of_same_pod_depends_on_spark_version() {
        assert_eq!(running("3.5.9", "Never", "sidecar", 3), ExecutorPodState::Running, "checkAllContainers is off");
        assert_eq!(running("3.5.9", "Never", "spark-kubernetes-executor", 3), ExecutorPodState::Failed);
        assert_eq!(running("3.0.3", "Never", "spark-kubernetes-executor", 3), ExecutorPodState::Running);
        let deleting = |container: &str| {
            state(&format!(
                r#"{{"metadata":{{"deletionTimestamp":"t"}},"spec":{{"containers":[{{"name":"{container}"}}]}},"status":{{"phase":"Running"}}}}"#
            ))
        };
        assert_eq!(deleting("executor"), ExecutorPodState::Deleted, "Spark 2.4");
        assert_eq!(deleting("spark-kubernetes-executor"), ExecutorPodState::Deleted, "Spark 3.0");
    }

    #[test]
    fn driver_url_identifies_spark_container_of_pod_template() {
        let pod = |code: i32| {
            state(&format!(
                r#"{{"metadata":{{"labels":{{"spark-version":"3.5.0"}}}},"spec":{{"containers":[{{"name":"a"}},{{"name":"b","env":[
                {{"name":"SPARK_DRIVER_URL","value":"spark://CoarseGrainedScheduler@d:1"}}]}}]}},"status":{{"phase":"Running",
                "containerStatuses":[{{"name":"a","state":{{"terminated":{{"exitCode":1}}}}}},{{"name":"b","state":{{"terminated":{{"exitCode":{code}}}}}}}]}}}}"#
            ))
        };
        assert_eq!(pod(0), ExecutorPodState::Succeeded);
        assert_eq!(pod(1), ExecutorPodState::Failed);
    }

    #[test]
    fn failed_is_final_pending_is_live_and_unknown_is_neither() {
        assert!(ExecutorPodState::Failed.is_final() && !ExecutorPodState::Failed.is_live());
        assert!(ExecutorPodState::Pending.is_live() && !ExecutorPodState::Unknown.is_live());
        assert!(!ExecutorPodState::Unknown.is_final());
    }
}
