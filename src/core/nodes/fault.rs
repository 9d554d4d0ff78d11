//! What nodes do to executors: one closed set of faults, read from the words of kubelets and container runtimes
//! (`tests/fixtures/kubelet`).

use std::sync::Arc;
use std::time::Instant;

use jiff::Timestamp;

use crate::lifecycle::cause::Cause;
use crate::lifecycle::exit::Exit;
use crate::snapshot::Executor;
use usher_spark::diagnostics::{PodDiagnostics, ReasonAndMessage};
use usher_spark::ids::AppKey;
use usher_spark::text::{truncated, vocabulary};

/// The words of a kubelet whose CPU manager has no free CPUs although the scheduler saw some: in a `PreStartContainer` hook
/// (kubelets before 1.18, kubernetes#63018), later in the refusal of a pod (kubernetes#92436).
const NO_CPUS: &str = "not enough cpus available to satisfy request";
/// The kubelet's reasons for refusing a pod that does not fit the machine's topology (`pkg/kubelet/cm`).
const TOPOLOGY: &[&str] = &["TopologyAffinityError", "ResourceAlignmentError", "SMTAlignmentError"];
/// Reasons of a container that the node could not create or start.
const NOT_CREATED: &[&str] = &[
    "CreateContainerError",
    "RunContainerError",
    "PreStartHookError",
    "PreCreateHookError",
    "StartError",
    "ContainerCannotRun",
];
/// Reasons of an image that the node could not pull.
const NOT_PULLED: &[&str] = &["ErrImagePull", "ImagePullBackOff", "ImageInspectError", "RegistryUnavailable"];
/// Words in a message by which the pod itself, and not its node, is to blame for a container or an image.
const BY_POD: &[&str] = &[
    "not found",
    "no such file",
    "no command specified",
    "permission denied",
    "manifest unknown",
    "unauthorized",
    "denied",
    "authentication required",
    "invalid reference",
    "is a directory",
    "not a directory",
    "exec format error",
    // The image asks for a newer driver.
    "unsatisfied condition",
    // The registry limits the rate: for all nodes alike.
    "toomanyrequests",
    "too many requests",
];
/// A kubelet's words when it evicts pods because its node lacks a resource (`pkg/kubelet/eviction`).
const LOW: &str = "The node was low on resource";
/// A kubelet's words about a container that used more of that resource than it requests: then the pod is to blame.
const ABOVE_REQUEST: &str = "has larger consumption of";
/// The exit code after SIGKILL.
const SIGKILL: i32 = 137;
/// The unique part of a name is six hexadecimal digits and the time in milliseconds (`KubernetesUtils.uniqueID`).
const MIN_UNIQUE: usize = 12;
/// The longest text of a fault that is kept.
const MAX_WORDS: usize = 300;

vocabulary! {
    /// What a node did to an executor.
    FaultKind {
        /// Whether a pod often causes it itself, by what it requests or mounts: then it counts against a node only if the application has
        /// executors that run elsewhere.
        may_be_by_pod: bool,
        /// What to do about it.
        cure: &'static str,
    }
    /// Its kubelet refused executors because it lacks a resource that their scheduler had seen free.
    OutOfResource = "out-of-resource" { may_be_by_pod: false, cure: "usually two schedulers place pods on one node: give the batch pods of a node to one scheduler, or separate nodes by taints or node pools" };
    /// Its CPU manager has no free CPUs although the scheduler saw some.
    CpuManager = "cpu-manager" { may_be_by_pod: false, cure: "the state of the CPU manager is stale: drain the node, stop the kubelet, delete /var/lib/kubelet/cpu_manager_state, start the kubelet; init containers with whole CPUs leak theirs (kubernetes#112228)" };
    /// Its topology manager refused executors.
    Topology = "topology" { may_be_by_pod: true, cure: "the scheduler does not know the node's NUMA topology: use a topology-aware scheduler, requests that fit one NUMA node, or the policy best-effort" };
    /// A device plugin of its kubelet failed, or has no healthy device.
    Device = "device" { may_be_by_pod: true, cure: "restart the device plugin, and check the devices (for GPUs: nvidia-smi)" };
    /// Its kubelet refused executors for another reason.
    Refused = "refused" { may_be_by_pod: true, cure: "see the kubelet's message: labels, ports or features of the node differ from what the scheduler saw" };
    /// It did not create the containers of executors that are bound to it: no pod sandbox, no network, or a volume that is not mounted.
    NotStarted = "not-started" { may_be_by_pod: true, cure: "kubectl describe pod names the step: network plugin, volume, or container runtime; restart the runtime if it does not answer" };
    /// Its container runtime cannot create or start containers.
    ContainerError = "container-error" { may_be_by_pod: true, cure: "check the container runtime and its disk (journalctl -u containerd or crio)" };
    /// It cannot pull images.
    ImageError = "image-error" { may_be_by_pod: true, cure: "check the node's disk, its registry credentials and its way to the registry" };
    /// It evicted executors because it ran short of a resource of its own.
    Pressure = "pressure" { may_be_by_pod: false, cure: "kubectl describe node shows the condition; check what uses the resource beside pods, and the reserved resources of the kubelet" };
    /// A signal killed executors on it, and it is unknown who sent it: no OOM kill, eviction or deletion is reported.
    Killed = "killed" { may_be_by_pod: true, cure: "raise spark.executor.memoryOverhead, and look into the kernel log of the node (dmesg): if the kernel ran out of memory, reserve memory for the system (kubelet systemReserved), or let pods request what they use" };
    /// It was lost: its kubelet stopped answering.
    Lost = "lost" { may_be_by_pod: false, cure: "check the machine and its kubelet" };
}

impl std::fmt::Display for FaultKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What happened to one executor on a node.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeFault {
    /// When, by the monotonic clock.
    pub at: Instant,
    /// When, by the wall clock.
    pub time: Timestamp,
    /// The executor's application.
    pub app: AppKey,
    /// The executor's pod.
    pub pod: Arc<str>,
    pub uid: Arc<str>,
    pub kind: FaultKind,
    /// The resource that the node lacked, if the kubelet names one.
    pub resource: Option<Box<str>>,
    /// The words of the kubelet or the runtime.
    pub message: Box<str>,
    /// Whether the executor had not exited: the fault is void if it starts after all.
    pub is_pending: bool,
    /// Whether the application had an executor that ran on another node then: the fault is not its own doing.
    pub ran_elsewhere: bool,
}

/// A kind of fault, the resource that it names, and its words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) kind: FaultKind,
    pub(super) resource: Option<Box<str>>,
    pub(super) message: Box<str>,
}

impl NodeFault {
    /// The job: executors of an application that was submitted again have the same names but for the unique part
    /// (`KubernetesConf.getResourceNamePrefix`), or the same application.
    pub(super) fn job(&self) -> (&str, &str) {
        let namespace = self.app.namespace();
        let Some((prefix, id)) = self.pod.rsplit_once("-exec-") else { return (namespace, self.app.selector()) };
        if id.is_empty() || !id.bytes().all(|digit| digit.is_ascii_digit()) {
            return (namespace, self.app.selector());
        }
        let is_unique = |part: &str| part.len() >= MIN_UNIQUE && part.bytes().all(|digit| digit.is_ascii_hexdigit());
        (namespace, prefix.rsplit_once('-').filter(|(_, part)| is_unique(part)).map_or(prefix, |(name, _)| name))
    }
}

impl Found {
    fn new(kind: FaultKind, message: &str) -> Found {
        Found { kind, resource: None, message: truncated(message, MAX_WORDS).into() }
    }
}

/// What its node did to an executor that exited; `None` if the node is not to blame.
pub(super) fn of_exit(exit: &Exit) -> Option<Found> {
    let nothing = PodDiagnostics::default();
    let diagnostics = exit.evidence().unwrap_or(&nothing);
    let message = diagnostics.message.as_deref().unwrap_or_default();
    match exit.cause {
        Cause::AdmissionRefused => Some(of_refusal(diagnostics.reason.as_deref().unwrap_or_default(), message)),
        Cause::Evicted => (message.contains(LOW) && !message.contains(ABOVE_REQUEST)).then(|| Found {
            // "The node was low on resource: memory. Threshold …"
            resource: message.split_once(": ").and_then(|(_, rest)| rest.split(['.', ',']).next()).map(word),
            ..Found::new(FaultKind::Pressure, message)
        }),
        Cause::NodeLost => Some(Found::new(FaultKind::Lost, message)),
        Cause::Killed => diagnostics.ended().find(|(_, ended)| ended.code == SIGKILL).map(|(container, _)| {
            Found::new(FaultKind::Killed, &format!("container {} exited with code {SIGKILL}", container.name))
        }),
        _ => of_waiting(diagnostics).or_else(|| of_ended(diagnostics)),
    }
}

/// What its node does to an executor that is bound to it and has not started; `None` if nothing is known against the node.
pub(super) fn of_pending(executor: &Executor) -> Option<Found> {
    of_waiting(executor.diagnostics.as_deref()?)
}

/// An executor that has been bound to a node for long, and of which no container reports why it does not start. A node that has made
/// its sandbox and pulls its image, or runs its init container, does its work.
pub(super) fn not_started(executor: &Executor) -> Option<Found> {
    let is_explained = executor.diagnostics.as_ref().is_some_and(|diagnostics| diagnostics.stuck().is_some());
    (!is_explained && !executor.is_set_up)
        .then(|| Found::new(FaultKind::NotStarted, "bound, and no container was created"))
}

fn of_refusal(reason: &str, message: &str) -> Found {
    let kind = if message.contains(NO_CPUS) {
        FaultKind::CpuManager
    } else if let Some(resource) = reason.strip_prefix("OutOf") {
        let all = Found::new(FaultKind::OutOfResource, message);
        return Found { resource: Some(word(resource)), ..all };
    } else if TOPOLOGY.contains(&reason) || message.contains("[memorymanager]") {
        FaultKind::Topology
    } else if message.contains("device") || message.contains("rpc error") {
        FaultKind::Device
    } else {
        FaultKind::Refused
    };
    Found::new(kind, if message.is_empty() { reason } else { message })
}

fn of_waiting(diagnostics: &PodDiagnostics) -> Option<Found> {
    let (_, ReasonAndMessage { reason, message }) = diagnostics.stuck()?;
    of_words(reason, message)
}

/// A container that exited because it could not be started.
fn of_ended(diagnostics: &PodDiagnostics) -> Option<Found> {
    let mut ended = diagnostics.containers.iter().filter_map(|container| container.ended());
    ended.find_map(|ended| of_words(ended.reason.as_deref()?, ended.message.as_deref()?))
}

/// The reason decides: an application writes the message of a container that exited (`terminationMessagePath`).
fn of_words(reason: &str, message: &str) -> Option<Found> {
    let kind = if NOT_PULLED.contains(&reason) {
        FaultKind::ImageError
    } else if !NOT_CREATED.contains(&reason) {
        return None;
    } else if message.contains(NO_CPUS) {
        FaultKind::CpuManager
    } else {
        FaultKind::ContainerError
    };
    let lower = message.to_ascii_lowercase();
    let is_by_pod = BY_POD.iter().any(|words| lower.contains(words));
    // "Back-off pulling image" alone does not state why.
    let is_vague = kind == FaultKind::ImageError && reason == "ImagePullBackOff" && !message.contains(": ");
    (!is_by_pod && !is_vague).then(|| Found::new(kind, &format!("{reason}: {message}")))
}

fn word(text: &str) -> Box<str> {
    truncated(text.trim(), 63).into()
}
