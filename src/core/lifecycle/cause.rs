//! Why an executor exited. The causes are finer than Spark's view, which blames the application for every failed pod (also for
//! evictions) and the framework for every deleted pod.

use super::cause_group::CauseGroup;
use crate::snapshot::Executor;
use usher_spark::diagnostics::{ContainerKind, ContainerStateKind, Ended, PodDiagnostics, ReasonAndMessage};
use usher_spark::state::ExecutorPodState;
use usher_spark::text::vocabulary;

/// How an executor left the snapshot, or `Present` if it has not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// Its pod still exists, in a final state.
    Present,
    /// The watch reported that its pod was deleted.
    Deleted,
    /// Its pod was deleted, and the watch did not show as of which version: another pod has its name.
    Unobserved,
    /// Its pod was deleted and the watch did not show it: a list did not contain it, and that was confirmed.
    Vanished,
}

vocabulary! {
    /// Who caused an exit.
    Blame
    /// The application: its code, its settings, or what it requests.
    Application = "application";
    /// Another party: the node, the cluster, the driver, or the client that deleted the pod.
    Others = "others";
    /// The pod does not show who caused the exit.
    Unknown = "unknown";
}

vocabulary! {
    /// Why an executor exited: a closed set, used as a metric label, in Events and by `why`.
    Cause {
        /// What happened to the executor, in a few words for people.
        phrase: &'static str,
        /// Who caused the exit. Spark's own view is a separate part of an exit.
        blame: Blame,
        /// Where to look for the remedy.
        group: CauseGroup,
    }
    /// The executor exited with code 0.
    Completed = "completed" { phrase: "completed", blame: Blame::Application, group: CauseGroup::Expected };
    /// The executor exited with a code other than 0.
    Error = "error" { phrase: "failed with an error", blame: Blame::Application, group: CauseGroup::Application };
    /// The driver exited, and the executor exited with code 1 when it lost the connection.
    DriverLost = "driver-lost" { phrase: "lost its driver", blame: Blame::Others, group: CauseGroup::Expected };
    /// The JVM ran out of memory and exited (exit code 52).
    JvmOom = "jvm-oom" { phrase: "out of memory (JVM)", blame: Blame::Application, group: CauseGroup::Memory };
    /// The kernel killed the executor for exceeding the memory limit of its container.
    OomKilled = "oom-killed" { phrase: "out of memory (container)", blame: Blame::Application, group: CauseGroup::Memory };
    /// A signal of unknown origin killed the executor: no OOM kill, eviction or deletion is reported. Raise
    /// spark.executor.memoryOverhead, and check the node's kernel log (dmesg).
    Killed = "killed" { phrase: "killed, sender unknown", blame: Blame::Unknown, group: CauseGroup::Unexplained };
    /// Another container of the pod failed.
    CompanionFailed = "companion-failed" { phrase: "another container failed", blame: Blame::Others, group: CauseGroup::Application };
    /// An init container of the pod failed.
    InitFailed = "init-failed" { phrase: "init container failed", blame: Blame::Application, group: CauseGroup::Application };
    /// The container could not be started: its command, its configuration or a mount is invalid.
    NeverStarted = "never-started" { phrase: "container could not start", blame: Blame::Application, group: CauseGroup::Application };
    /// The node's container runtime failed to start the container: a device, a hook, or the runtime itself.
    RuntimeError = "runtime-error" { phrase: "container runtime failed", blame: Blame::Others, group: CauseGroup::Cluster };
    /// The image was never pulled.
    ImageNeverPulled = "image-never-pulled" { phrase: "image was not pulled", blame: Blame::Application, group: CauseGroup::Application };
    /// The executor was evicted: its node ran short of a resource, or a client used the eviction API.
    Evicted = "evicted" { phrase: "evicted", blame: Blame::Others, group: CauseGroup::Cluster };
    /// The executor used more local storage than its pod allows: an emptyDir volume or its ephemeral storage reached its limit.
    StorageExceeded = "storage-exceeded" { phrase: "local storage exceeded", blame: Blame::Application, group: CauseGroup::Application };
    /// The executor's node got a NoExecute taint: it was not ready, or it is being drained.
    NodeTainted = "node-tainted" { phrase: "node drained or not ready", blame: Blame::Others, group: CauseGroup::Cluster };
    /// A pod of higher priority preempted the executor.
    Preempted = "preempted" { phrase: "preempted", blame: Blame::Others, group: CauseGroup::Cluster };
    /// The executor's node was lost.
    NodeLost = "node-lost" { phrase: "node lost", blame: Blame::Others, group: CauseGroup::Cluster };
    /// The executor's node was shut down.
    NodeShutdown = "node-shutdown" { phrase: "node shut down", blame: Blame::Others, group: CauseGroup::Cluster };
    /// The kubelet rejected the pod: the scheduler and the node disagreed about what fits.
    AdmissionRefused = "admission-refused" { phrase: "rejected by a kubelet", blame: Blame::Others, group: CauseGroup::Cluster };
    /// The pod ran longer than its activeDeadlineSeconds.
    DeadlineExceeded = "deadline-exceeded" { phrase: "deadline exceeded", blame: Blame::Application, group: CauseGroup::Application };
    /// The pod was deleted.
    Deleted = "deleted" { phrase: "deleted", blame: Blame::Others, group: CauseGroup::Expected };
    /// A recovery rule of spark-usher deleted the pod.
    DeletedByRule = "deleted-by-rule" { phrase: "deleted by a recovery rule", blame: Blame::Others, group: CauseGroup::Cluster };
    /// The pod no longer exists, and the watch did not show its deletion.
    Vanished = "vanished" { phrase: "vanished", blame: Blame::Unknown, group: CauseGroup::Unexplained };
    /// The executor failed, and its pod does not show why.
    Unexplained = "unexplained" { phrase: "failed for an unknown reason", blame: Blame::Unknown, group: CauseGroup::Unexplained };
}

impl Cause {
    /// Whether the application caused the exit.
    pub fn by_app(self) -> bool {
        self.blame() == Blame::Application
    }

    /// Whether the exit is abnormal: such exits cause Events.
    pub fn is_abnormal(self) -> bool {
        self.group() != CauseGroup::Expected
    }
}

impl std::fmt::Display for Cause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The kubelet's reasons for rejecting a pod (`pkg/kubelet/lifecycle`, `pkg/kubelet/cm`), except `OutOf…`.
const REFUSALS: &[&str] = &[
    "UnexpectedAdmissionError",
    "NodeAffinity",
    "NodeName",
    "NodePorts",
    "TopologyAffinityError",
    "ResourceAlignmentError",
    "SMTAlignmentError",
    "AppArmor",
    "SysctlForbidden",
    "PodOSNotSupported",
    "PodOSSelectorNodeLabelDoesNotMatch",
    "InvalidNodeInfo",
    "PodFeatureUnsupported",
    "PodLevelResourcesNotSupported",
];

/// Reasons of a container that could not be started.
const NO_START: &[&str] = &[
    "StartError",
    "ContainerCannotRun",
    "RunContainerError",
    "CreateContainerError",
    "CreateContainerConfigError",
    "PostStartHookError",
    "PreCreateHookError",
];

/// Reasons of a container whose image is not available.
const NO_IMAGE: &[&str] = &[
    "ErrImagePull",
    "ImagePullBackOff",
    "ErrImageNeverPull",
    "InvalidImageName",
    "ImageInspectError",
    "RegistryUnavailable",
    "SignatureValidationFailed",
];

/// The cause of an exit. What the node or the control plane did to the pod takes precedence over what its containers report,
/// because an evicted executor exits with 137 or 143 too.
pub fn cause(executor: &Executor, left: Removal) -> Cause {
    let nothing = PodDiagnostics::default();
    let diagnostics = executor.diagnostics.as_deref().unwrap_or(&nothing);
    if let Some(cause) = by_others(diagnostics) {
        return cause;
    }
    match executor.state {
        ExecutorPodState::Succeeded => Cause::Completed,
        // Its container exited because the pod was deleted.
        ExecutorPodState::Failed if diagnostics.deletion.is_some() && !diagnostics.ended_before_deletion() => {
            Cause::Deleted
        }
        ExecutorPodState::Failed => failed(diagnostics),
        // The pod was deleted because the executor had exited.
        _ if diagnostics.ended_before_deletion() => match diagnostics.spark().map(|container| &container.state) {
            Some(ContainerStateKind::Ended(ended)) if ended.code == 0 => Cause::Completed,
            _ => failed(diagnostics),
        },
        _ if never_pulled(diagnostics) => Cause::ImageNeverPulled,
        _ if left == Removal::Vanished => Cause::Vanished,
        _ => Cause::Deleted,
    }
}

/// Whether an executor has never run: it has not started, or a kubelet rejected it.
pub fn never_ran(executor: &Executor) -> bool {
    let is_waiting = executor.state == ExecutorPodState::Pending;
    // A kubelet that restarts may reject a pod that ran.
    executor.started.is_none() && (is_waiting || cause(executor, Removal::Present) == Cause::AdmissionRefused)
}

/// What the node or the control plane did to the pod.
fn by_others(diagnostics: &PodDiagnostics) -> Option<Cause> {
    let reason = diagnostics.reason.as_deref().unwrap_or_default();
    let cause = match reason {
        "Preempting" => Cause::Preempted,
        "NodeLost" => Cause::NodeLost,
        "NodeShutdown" | "Shutdown" => Cause::NodeShutdown,
        "Terminated" if message_contains(diagnostics, "shutdown") => Cause::NodeShutdown,
        "DeadlineExceeded" => Cause::DeadlineExceeded,
        _ if reason.starts_with("OutOf") || REFUSALS.contains(&reason) => Cause::AdmissionRefused,
        _ => match diagnostics.disruption.as_ref().map(|words| &*words.reason) {
            Some("PreemptionByScheduler") => Cause::Preempted,
            // A kubelet that reports how the container exited is not lost.
            Some("DeletionByTaintManager") if diagnostics.ended().next().is_some() => Cause::NodeTainted,
            Some("DeletionByTaintManager" | "DeletionByPodGC") => Cause::NodeLost,
            Some("TerminationByKubelet") if message_contains(diagnostics, "shutdown") => Cause::NodeShutdown,
            Some("EvictionByEvictionAPI") => Cause::Evicted,
            Some("TerminationByKubelet") => evicted(diagnostics),
            _ if reason == "Evicted" => evicted(diagnostics),
            _ => return None,
        },
    };
    Some(cause)
}

/// The kubelet's words about a pod that used more local storage than its own limits allow (`pkg/kubelet/eviction/eviction_manager.go`).
const OVER_OWN_LIMIT: &[&str] =
    &["Usage of EmptyDir volume", "Pod ephemeral local storage usage", "exceeded its local ephemeral storage limit"];

/// An eviction by the kubelet: for what the pod used, or because its node ran short.
fn evicted(diagnostics: &PodDiagnostics) -> Cause {
    let is_over_own_limit = OVER_OWN_LIMIT.iter().any(|words| message_contains(diagnostics, words));
    if is_over_own_limit { Cause::StorageExceeded } else { Cause::Evicted }
}

fn message_contains(diagnostics: &PodDiagnostics, word: &str) -> bool {
    let disruption = diagnostics.disruption.as_ref().map(|words| &words.message);
    diagnostics.message.iter().chain(disruption).any(|message| message.contains(word))
}

fn failed(diagnostics: &PodDiagnostics) -> Cause {
    if let Some((container, ended)) = diagnostics.ended().find(|(_, ended)| ended.code != 0) {
        return match of_container(ended) {
            // Its own error; what killed it, or did not start it, is another matter.
            Cause::Error | Cause::JvmOom if container.kind == ContainerKind::Init => Cause::InitFailed,
            cause if container.kind == ContainerKind::Init => cause,
            _ if container.name != diagnostics.spark_container => Cause::CompanionFailed,
            cause => cause,
        };
    }
    if never_pulled(diagnostics) {
        return Cause::ImageNeverPulled;
    }
    match diagnostics.stuck().filter(|(_, words)| NO_START.contains(&&*words.reason)) {
        Some((_, words)) => never_started(&words.message),
        None => Cause::Unexplained,
    }
}

/// Words of container runtimes about a container that did not start although nothing is wrong with its command.
const BY_RUNTIME: &[&str] = &[
    "nvidia-container-cli",
    "nvidia-container-runtime",
    "error running hook",
    "error running prestart hook",
    "error running createRuntime hook",
    "error running createContainer hook",
    "error running startContainer hook",
    "error executing hook",
    "unresolvable CDI devices",
    "no space left on device",
    "resource temporarily unavailable",
    "too many open files",
    "failed to start shim",
    "context deadline exceeded",
];

/// A container that did not start: by its own command, configuration or mounts, or by the runtime.
fn never_started(message: &str) -> Cause {
    // The image asks for another driver.
    let by_image = message.contains("requirement error: unsatisfied condition");
    let by_runtime = !by_image && BY_RUNTIME.iter().any(|words| message.contains(words));
    if by_runtime { Cause::RuntimeError } else { Cause::NeverStarted }
}

/// How the container itself exited: the runtime's reason first, then the exit code.
fn of_container(ended: &Ended) -> Cause {
    match ended.reason.as_deref() {
        Some("OOMKilled") => Cause::OomKilled,
        Some("ContainerStatusUnknown") => Cause::NodeLost,
        Some(reason) if NO_START.contains(&reason) => never_started(ended.message.as_deref().unwrap_or_default()),
        _ => match ended.code {
            52 => Cause::JvmOom,
            126 | 127 => Cause::NeverStarted,
            // 128 plus a signal: SIGINT, SIGKILL and SIGTERM are sent from outside; SIGSEGV and SIGABRT are its own.
            130 | 137 | 143 => Cause::Killed,
            _ => Cause::Error,
        },
    }
}

fn never_pulled(diagnostics: &PodDiagnostics) -> bool {
    diagnostics.stuck().is_some_and(|(_, words)| NO_IMAGE.contains(&&*words.reason))
}

/// Who deleted the pod, as far as its diagnostics show.
pub fn by_whom(diagnostics: &PodDiagnostics) -> Option<String> {
    if let Some(ReasonAndMessage { reason, message }) = &diagnostics.disruption {
        let colon = if message.is_empty() { "" } else { ": " };
        return Some(format!("{reason}{colon}{message}"));
    }
    let writer = diagnostics.deletion.as_ref()?.writer.as_deref()?;
    Some(format!("{writer} (uncertain: it wrote to the pod when the deletion was requested)"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::{ObservedPod, SchedulingKeys};
    use usher_spark::pod::Pod;

    fn executor(extra: &str, status: &str) -> Executor {
        let json = format!(
            r#"{{"metadata":{{"name":"e","namespace":"n","uid":"u","labels":{{"spark-role":"executor","spark-app-selector":"a",
            "spark-version":"4.3.0"}}{extra}}},"spec":{{"restartPolicy":"Never"}},"status":{status}}}"#
        );
        match ObservedPod::of(&Pod::read_whole(json.as_bytes()).unwrap(), &SchedulingKeys::default()) {
            Some(ObservedPod::Executor(_, executor)) => executor,
            other => panic!("{other:?}"),
        }
    }

    fn failed_status(name: &str, code: i32, reason: &str) -> String {
        format!(
            r#"{{"phase":"Failed","containerStatuses":[{{"name":"{name}","state":{{"terminated":{{"exitCode":{code},"reason":"{reason}"}}}}}}]}}"#
        )
    }

    fn of(status: &str) -> Cause {
        let executor = executor("", status);
        let cause = cause(&executor, Removal::Present);
        let diagnostics = executor.diagnostics.as_deref();
        assert!(
            cause.group() != CauseGroup::Cluster || diagnostics.is_some_and(PodDiagnostics::may_be_ended_by_cluster),
            "{status}"
        );
        cause
    }

    #[test]
    fn cause_follows_container_exit_code_and_reason() {
        let spark = "spark-kubernetes-executor";
        assert_eq!(of(r#"{"phase":"Succeeded"}"#), Cause::Completed);
        assert_eq!(of(&failed_status(spark, 1, "Error")), Cause::Error);
        assert_eq!(of(&failed_status(spark, 52, "Error")), Cause::JvmOom);
        assert_eq!(of(&failed_status(spark, 137, "OOMKilled")), Cause::OomKilled);
        assert_eq!(of(&failed_status(spark, 137, "Error")), Cause::Killed, "137 alone does not prove an OOM kill");
        assert_eq!(of(&failed_status(spark, 143, "Error")), Cause::Killed);
        assert_eq!(of(&failed_status(spark, 139, "Error")), Cause::Error);
        assert_eq!(of(&failed_status(spark, 128, "StartError")), Cause::NeverStarted);
        assert_eq!(of(&failed_status(spark, 127, "Error")), Cause::NeverStarted);
        let message = "failed to create shim task: OCI runtime create failed: runc create failed: unable to start container process: \
            error during container init: error running hook #0: exit status 1, stderr: nvidia-container-cli: initialization error: \
            nvml error: driver not loaded: unknown";
        let start = |message: &str| {
            of(&format!(
                r#"{{"phase":"Failed","containerStatuses":[{{"name":"{spark}","state":{{"terminated":{{"exitCode":128,"reason":"StartError",
                "message":"{message}"}}}}}}]}}"#
            ))
        };
        assert_eq!(start(message), Cause::RuntimeError);
        let newer = "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.4";
        assert_eq!(start(newer), Cause::NeverStarted, "the image asks for it");
        assert_eq!(start(r#"exec: \"spark\": executable file not found in $PATH: unknown"#), Cause::NeverStarted);
        assert_eq!(of(&failed_status(spark, 137, "ContainerStatusUnknown")), Cause::NodeLost);
        assert_eq!(of(&failed_status("istio-proxy", 1, "Error")), Cause::CompanionFailed);
        assert_eq!(of(r#"{"phase":"Failed"}"#), Cause::Unexplained);
    }

    #[test]
    fn cause_follows_pod_reason_and_disruption_condition() {
        let failed = |reason: &str, message: &str| {
            of(&format!(r#"{{"phase":"Failed","reason":"{reason}","message":"{message}"}}"#))
        };
        assert_eq!(failed("Evicted", "The node was low on resource: memory."), Cause::Evicted);
        for message in [
            r#"Usage of EmptyDir volume \"spark-local-dir-1\" exceeds the limit \"10Gi\". "#,
            "Pod ephemeral local storage usage exceeds the total limit of containers 2Gi. ",
            r#"Container spark-kubernetes-executor exceeded its local ephemeral storage limit \"1Gi\". "#,
        ] {
            assert_eq!(failed("Evicted", message), Cause::StorageExceeded, "{message}");
        }
        assert_eq!(failed("OutOfcpu", ""), Cause::AdmissionRefused);
        assert_eq!(failed("NodeAffinity", ""), Cause::AdmissionRefused);
        assert_eq!(failed("Preempting", ""), Cause::Preempted);
        assert_eq!(failed("NodeLost", ""), Cause::NodeLost);
        assert_eq!(
            failed("Terminated", "Pod was terminated in response to imminent node shutdown."),
            Cause::NodeShutdown
        );
        assert_eq!(failed("DeadlineExceeded", ""), Cause::DeadlineExceeded);
        let disrupted = |reason: &str, message: &str| {
            of(&format!(
                r#"{{"phase":"Failed","conditions":[{{"type":"DisruptionTarget","status":"True","reason":"{reason}","message":"{message}"}}],
                "containerStatuses":[{{"name":"spark-kubernetes-executor","state":{{"terminated":{{"exitCode":143}}}}}}]}}"#
            ))
        };
        assert_eq!(disrupted("PreemptionByScheduler", "preempted by x"), Cause::Preempted);
        // Its kubelet says how the container exited: the node is not lost.
        assert_eq!(disrupted("DeletionByTaintManager", ""), Cause::NodeTainted);
        let silent = r#"{"phase":"Running","conditions":[{"type":"DisruptionTarget","status":"True","reason":"DeletionByTaintManager"}],
            "initContainerStatuses":[{"name":"fetch","state":{"terminated":{"exitCode":0,"finishedAt":"2026-11-27T10:00:00Z"}}}]}"#;
        assert_eq!(of(silent), Cause::NodeLost);
        assert_eq!(disrupted("DeletionByPodGC", ""), Cause::NodeLost);
        assert_eq!(disrupted("EvictionByEvictionAPI", ""), Cause::Evicted);
        assert_eq!(disrupted("TerminationByKubelet", "imminent node shutdown"), Cause::NodeShutdown);
        assert_eq!(disrupted("TerminationByKubelet", "low on memory"), Cause::Evicted);
    }

    #[test]
    fn cause_of_removed_executor_follows_removal_unless_its_status_explains_it() {
        let running = executor("", r#"{"phase":"Running"}"#);
        assert_eq!(cause(&running, Removal::Deleted), Cause::Deleted);
        assert_eq!(cause(&running, Removal::Vanished), Cause::Vanished);
        let pulling = executor(
            r#","deletionTimestamp":"2026-11-21T00:00:00Z""#,
            r#"{"phase":"Pending","containerStatuses":[{"name":"spark-kubernetes-executor","state":{"waiting":{"reason":"ImagePullBackOff"}}}]}"#,
        );
        assert_eq!(cause(&pulling, Removal::Deleted), Cause::ImageNeverPulled);
        assert_eq!(
            cause(&executor("", &failed_status("spark-kubernetes-executor", 1, "Error")), Removal::Deleted),
            Cause::Error
        );
    }

    #[test]
    fn deleted_pod_keeps_cause_of_exit_before_deletion() {
        let deleted = |code: i32, finished: &str| {
            let executor = executor(
                r#","deletionTimestamp":"2026-11-21T00:01:00Z","deletionGracePeriodSeconds":30"#,
                &format!(
                    r#"{{"phase":"Failed","containerStatuses":[{{"name":"spark-kubernetes-executor",
                    "state":{{"terminated":{{"exitCode":{code},"finishedAt":"{finished}"}}}}}}]}}"#
                ),
            );
            assert_eq!(executor.state, ExecutorPodState::Deleted);
            cause(&executor, Removal::Present)
        };
        assert_eq!(deleted(1, "2026-11-21T00:00:29Z"), Cause::Error);
        assert_eq!(deleted(0, "2026-11-21T00:00:29Z"), Cause::Completed);
        assert_eq!(deleted(143, "2026-11-21T00:00:31Z"), Cause::Deleted, "it exited because of the deletion");
    }

    #[test]
    fn by_whom_returns_disruption_condition_or_none() {
        let disrupted = executor(
            r#","deletionTimestamp":"2026-11-21T00:00:00Z""#,
            r#"{"phase":"Running","conditions":[{"type":"DisruptionTarget","status":"True","reason":"EvictionByEvictionAPI","message":"by api"}]}"#,
        );
        assert_eq!(by_whom(disrupted.diagnostics.as_ref().unwrap()).unwrap(), "EvictionByEvictionAPI: by api");
        let unknown = executor(r#","deletionTimestamp":"2026-11-21T00:00:00Z""#, r#"{"phase":"Running"}"#);
        assert_eq!(by_whom(unknown.diagnostics.as_ref().unwrap()), None);
    }

    #[test]
    fn failed_init_container_is_not_the_executors_error() {
        let status = |name: &str, code: i32| {
            format!(
                r#"{{"phase":"Failed","initContainerStatuses":[{{"name":"{name}","state":{{"terminated":{{"exitCode":{code},"reason":"Error"}}}}}}],
                "containerStatuses":[{{"name":"spark-kubernetes-executor","state":{{"waiting":{{"reason":"PodInitializing"}}}}}}]}}"#
            )
        };
        assert_eq!(of(&status("fetch", 1)), Cause::InitFailed);
        assert_eq!(of(&status("fetch", 137)), Cause::Killed);
        assert_eq!(of(&status("fetch", 1).replace(r#""Error""#, r#""OOMKilled""#)), Cause::OomKilled);
        let json = format!(
            r#"{{"metadata":{{"name":"e","namespace":"n","uid":"u","labels":{{"spark-role":"executor","spark-app-selector":"a"}}}},
            "spec":{{"restartPolicy":"Never","initContainers":[{{"name":"proxy","restartPolicy":"Always"}}]}},"status":{}}}"#,
            status("proxy", 1)
        );
        let pod = Pod::read_whole(json.as_bytes()).unwrap();
        let Some(ObservedPod::Executor(_, executor)) = ObservedPod::of(&pod, &SchedulingKeys::default()) else {
            panic!()
        };
        assert_eq!(cause(&executor, Removal::Present), Cause::CompanionFailed, "a sidecar");
    }

    #[test]
    fn blame_is_unknown_where_the_pod_does_not_show_it() {
        let unknown: Vec<Cause> = Cause::ALL.iter().copied().filter(|cause| cause.blame() == Blame::Unknown).collect();
        assert_eq!(unknown, [Cause::Killed, Cause::Vanished, Cause::Unexplained]);
        assert!(Cause::ALL.iter().all(|cause| !cause.by_app() || cause.group() != CauseGroup::Cluster));
    }

    #[test]
    fn cause_names_are_unique_and_have_text() {
        let names: std::collections::BTreeSet<_> = Cause::ALL.iter().map(|cause| cause.as_str()).collect();
        assert_eq!(names.len(), Cause::ALL.len());
        assert!(Cause::ALL.iter().all(|cause| cause.text().ends_with('.')));
    }
}
