//! The diagnostics of a pod: kept only of pods that exited, are terminating, are disrupted, cannot start, run init containers, or
//! have restarted, so that a hundred thousand healthy executors cost nothing.

use crate::text::{harmless, truncated};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::exit_code;
use super::pod::Pod;
use super::status::{ContainerStatus, Status, Terminated, Waiting};
use super::version::SparkVersion;
use super::wire_text::Text;

/// Longest message that is kept: the API server's own bound on Events.
const MAX_MESSAGE: usize = 1024;
/// Longest word or name that is kept.
const MAX_WORD: usize = 253;
/// Most containers and finalizers that are kept of one pod.
const MAX_LISTED: usize = 16;
/// A field manager that wrote this shortly before a deletion was requested may have requested it.
const SAME_TIME: SignedDuration = SignedDuration::from_secs(2);

/// See the module's documentation. Shared, because it never changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodDiagnostics {
    /// `status.reason`.
    pub reason: Option<Box<str>>,
    /// `status.message`.
    pub message: Option<Box<str>>,
    /// The condition `DisruptionTarget`, if it is true: what disrupts the pod.
    pub disruption: Option<ReasonAndMessage>,
    /// The condition `PodScheduled`, if it is false: why no node was found.
    pub unscheduled: Option<ReasonAndMessage>,
    /// The containers, in the kubelet's order; init containers first.
    pub containers: Vec<ContainerDiagnostics>,
    /// Name of the container that runs the executor, or the driver.
    pub spark_container: Box<str>,
    /// Exit code as Spark reports it (`ExecutorPodsLifecycleManager.findExitCode`); `None` where Spark reports -1.
    pub exit_code: Option<i32>,
    /// The requested deletion.
    pub deletion: Option<Deletion>,
    /// Whether its phase is final.
    pub is_over: bool,
    /// Of such a pod: the newest time that its status states apart from its containers'. A kubelet that rejects a pod reports
    /// no container.
    pub changed: Option<Timestamp>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReasonAndMessage {
    /// One word.
    pub reason: Box<str>,
    /// For people.
    pub message: Box<str>,
}

/// The requested deletion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deletion {
    /// When its grace period ends (`metadata.deletionTimestamp`).
    pub until: Option<Timestamp>,
    /// When it was requested.
    pub asked: Option<Timestamp>,
    /// The finalizers that still block it.
    pub finalizers: Vec<Box<str>>,
    /// The field manager, other than the kubelet, that wrote last, if it wrote when the deletion was requested. A hint:
    /// a deletion itself leaves no trace in `managedFields`.
    pub writer: Option<Box<str>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerDiagnostics {
    pub name: Box<str>,
    pub image: Box<str>,
    /// What it is.
    pub kind: ContainerKind,
    pub state: ContainerStateKind,
    /// How often it was restarted.
    pub restarts: u32,
    /// How it exited before the last restart.
    pub last: Option<Ended>,
}

/// What a container is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContainerKind {
    /// It has to exit before the others start.
    Init,
    /// An init container with `restartPolicy: Always`: the others start when it has started.
    Sidecar,
    /// Any other.
    Main,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ContainerStateKind {
    /// The kubelet reports no state.
    #[default]
    Unknown,
    /// It has not started.
    Waiting(ReasonAndMessage),
    /// It runs.
    Running {
        /// Since when, as the kubelet wrote it.
        since: Box<str>,
        /// Whether its startup probe still fails.
        is_probed: bool,
    },
    /// It exited.
    Ended(Ended),
}

/// How a container exited.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ended {
    /// Its exit code.
    pub code: i32,
    /// `Completed`, `Error`, `OOMKilled` …
    pub reason: Option<Box<str>>,
    /// For people.
    pub message: Option<Box<str>>,
    /// When it started, as the kubelet wrote it.
    pub started: Option<Box<str>>,
    /// When it exited, as the kubelet wrote it.
    pub finished: Option<Box<str>>,
}

impl ContainerDiagnostics {
    /// How it exited, if it has.
    pub fn ended(&self) -> Option<&Ended> {
        match &self.state {
            ContainerStateKind::Ended(ended) => Some(ended),
            _ => None,
        }
    }

    /// Whether it runs.
    pub fn is_running(&self) -> bool {
        matches!(self.state, ContainerStateKind::Running { .. })
    }
}

impl Ended {
    /// When it exited.
    fn finished_at(&self) -> Option<Timestamp> {
        self.finished.as_deref()?.parse().ok()
    }

    fn code_and_reason(&self) -> String {
        let reason = self.reason.as_deref().map_or_else(String::new, |reason| format!(", {reason}"));
        format!("code {}{}{reason}", self.code, exit_code::explain(self.code))
    }
}

/// The newest time that a status states apart from its containers'.
fn changed(status: &Status<'_>) -> Option<Timestamp> {
    let conditions = status.conditions.iter().map(|condition| condition.last_transition_time.as_deref());
    let times = conditions.chain([status.start_time.as_deref()]).flatten();
    times.filter_map(|time| time.parse().ok()).max()
}

impl PodDiagnostics {
    /// The diagnostics of a pod, if they are worth keeping.
    pub fn of(pod: &Pod<'_>, is_final: bool) -> Option<Arc<PodDiagnostics>> {
        let status = &pod.status;
        let deleting = pod.metadata.deletion_timestamp.is_some();
        let condition = |kind: &str, value: &str| {
            let found =
                status.conditions.iter().find(|condition| condition.kind == kind && condition.status == value)?;
            Some(words(found.reason.as_ref(), found.message.as_ref()))
        };
        let disruption = condition("DisruptionTarget", "True");
        let mut unscheduled = condition("PodScheduled", "False");
        if let Some(words) = unscheduled.as_mut().filter(|_| !pod.spec.scheduling_gates.is_empty()) {
            let gates: Vec<&str> =
                pod.spec.scheduling_gates.iter().take(MAX_LISTED).map(|gate| gate.as_str()).collect();
            words.message = cut(&format!("{} ({})", words.message, gates.join(", ")), MAX_MESSAGE);
        }
        let all = || status.init_container_statuses.iter().chain(&status.container_statuses);
        let stuck = all().any(|container| waits(container).is_some_and(|waiting| !is_usual(waiting)));
        let has_restarted = all().any(|container| container.restart_count > 0);
        let is_sidecar = |container: &ContainerStatus<'_>| pod.sidecars().any(|name| container.name == name);
        let is_running =
            |container: &ContainerStatus<'_>| container.state.as_ref().is_some_and(|state| state.running.is_some());
        let holds_up = |container: &ContainerStatus<'_>| {
            is_running(container) && (container.started != Some(true) || !is_sidecar(container))
        };
        let is_pending = status.phase.as_deref() == Some("Pending");
        let initializes = is_pending && status.init_container_statuses.iter().any(holds_up);
        let is_remarkable = stuck || has_restarted || initializes || disruption.is_some() || unscheduled.is_some();
        if !(is_final || deleting || is_remarkable || status.reason.is_some()) {
            return None;
        }
        let kind = |container| if is_sidecar(container) { ContainerKind::Sidecar } else { ContainerKind::Init };
        let is_over = matches!(status.phase.as_deref(), Some("Failed" | "Succeeded"));
        let init = status.init_container_statuses.iter().map(|container| (kind(container), container));
        let main = status.container_statuses.iter().map(|container| (ContainerKind::Main, container));
        Some(Arc::new(PodDiagnostics {
            reason: status.reason.as_deref().map(|text| cut(text, MAX_WORD)),
            message: status.message.as_deref().map(|text| cut(text, MAX_MESSAGE)),
            disruption,
            unscheduled,
            containers: init.chain(main).take(MAX_LISTED).map(|(kind, status)| container(kind, status)).collect(),
            spark_container: cut(pod.spark_container(), MAX_WORD),
            exit_code: exit_code(pod),
            deletion: deleting.then(|| deletion(pod)),
            is_over,
            changed: if is_over { changed(status) } else { None },
        }))
    }

    /// The container that runs the executor, or the driver.
    pub fn spark(&self) -> Option<&ContainerDiagnostics> {
        self.containers
            .iter()
            .find(|container| container.kind != ContainerKind::Init && container.name == self.spark_container)
    }

    /// The containers that exited, the executor's own first. An init container that did its work is none of them.
    pub fn ended(&self) -> impl Iterator<Item = (&ContainerDiagnostics, &Ended)> {
        let others = self.containers.iter().filter(|container| container.name != self.spark_container);
        let all = self.spark().into_iter().chain(others);
        let ended = all.filter_map(|container| Some((container, container.ended()?)));
        ended.filter(|(container, ended)| container.kind != ContainerKind::Init || ended.code != 0)
    }

    /// Whether its node or the control plane may have ended the pod; `lifecycle::cause` decides.
    pub fn may_be_ended_by_cluster(&self) -> bool {
        // ContainerStatusUnknown, or a runtime that could not start the container.
        let is_odd =
            |ended: &Ended| !matches!(ended.reason.as_deref(), None | Some("Completed" | "Error" | "OOMKilled"));
        self.reason.is_some() || self.disruption.is_some() || self.ended().any(|(_, ended)| is_odd(ended))
    }

    /// Whether the executor's container had exited before the deletion was requested.
    pub fn ended_before_deletion(&self) -> bool {
        let finished = self.spark().and_then(|container| container.ended()?.finished_at());
        let asked = self.deletion.as_ref().and_then(|deletion| deletion.asked);
        matches!((finished, asked), (Some(finished), Some(asked)) if finished < asked)
    }

    /// When the pod exited, as far as it reports: when the executor's container did, else the last that did, else when the status of
    /// a pod in a final phase changed last, and for another pod when its deletion was requested.
    pub fn ended_at(&self) -> Option<Timestamp> {
        let ended = self.spark().and_then(|container| container.ended()?.finished_at());
        let last = || self.ended().filter_map(|(_, ended)| ended.finished_at()).max();
        ended.or_else(last).or_else(|| if self.is_over { self.changed } else { self.deletion.as_ref()?.asked })
    }

    /// What the containers and the node report of an exit, one part each.
    pub fn exit_message(&self) -> Vec<String> {
        let mut parts = Vec::new();
        if let Some((container, ended)) = self.ended().find(|(_, ended)| ended.code != 0) {
            parts.push(format!("container {} exited with {}", container.name, ended.code_and_reason()));
            parts.extend(ended.message.as_deref().map(str::to_owned));
        } else {
            parts.extend(self.waiting_message("waited"));
        }
        match (&self.reason, &self.message) {
            (Some(reason), Some(message)) => parts.push(format!("{reason}: {message}")),
            (Some(text), None) | (None, Some(text)) => parts.push(text.to_string()),
            (None, None) => {}
        }
        parts.extend(self.restarts());
        parts
    }

    /// Why a container `waits`, or `waited`, if it may wait forever.
    pub(crate) fn waiting_message(&self, verb: &str) -> Option<String> {
        let (container, words) = self.stuck()?;
        Some(format!("container {} {verb}: {} {}", container.name, words.reason, words.message).trim_end().to_owned())
    }

    /// Of a pod that has not started: its init container that works, and has not failed before, unless another container waits.
    pub fn initializing(&self) -> Option<&ContainerDiagnostics> {
        let works = |container: &&ContainerDiagnostics| {
            container.kind == ContainerKind::Init && container.is_running() && container.restarts == 0
        };
        self.containers.iter().find(works).filter(|_| self.stuck().is_none())
    }

    /// Whether something is wrong with the pod, or it is being deleted.
    pub fn is_trouble(&self) -> bool {
        let is_disturbed = self.disruption.is_some() || self.unscheduled.is_some() || self.reason.is_some();
        is_disturbed || self.deletion.is_some() || self.stuck().is_some()
    }

    /// What a pod waits for that has not started: a container that may wait forever, an init container that works, or a sidecar whose
    /// startup probe fails.
    pub fn starting_message(&self) -> Option<String> {
        let since = |since: &str| if since.is_empty() { String::new() } else { format!(" since {since}") };
        self.waiting_message("waits").or_else(|| {
            self.containers.iter().find_map(|ContainerDiagnostics { name, kind, state, .. }| match (kind, state) {
                (ContainerKind::Init, ContainerStateKind::Running { since: at, .. }) => {
                    Some(format!("init container {name} has been running{}", since(at)))
                }
                (ContainerKind::Sidecar, ContainerStateKind::Running { since: at, is_probed: true }) => {
                    Some(format!("sidecar {name} has been running{}, and its startup probe fails", since(at)))
                }
                _ => None,
            })
        })
    }

    /// The containers that were restarted, and how each exited before.
    pub fn restarts(&self) -> impl Iterator<Item = String> {
        let restarted = self.containers.iter().filter(|container| container.restarts > 0);
        restarted.map(|ContainerDiagnostics { name, restarts, last, .. }| {
            let times = if *restarts == 1 { "once".to_owned() } else { format!("{restarts} times") };
            let last = last.as_ref().map_or_else(String::new, |ended| {
                let at = ended.finished.as_deref().map_or_else(String::new, |at| format!(" at {at}"));
                format!(": it had exited with {}{at}", ended.code_and_reason())
            });
            format!("container {name} was restarted {times}{last}")
        })
    }

    /// The containers that run although the executor's, or the driver's, has exited.
    pub fn running_on(&self) -> impl Iterator<Item = &str> {
        self.containers.iter().filter(|container| container.is_running()).map(|container| &*container.name)
    }

    /// A container that may wait forever, and why.
    pub fn stuck(&self) -> Option<(&ContainerDiagnostics, &ReasonAndMessage)> {
        self.containers.iter().find_map(|container| match &container.state {
            ContainerStateKind::Waiting(words) if !is_usual_word(&words.reason) => Some((container, words)),
            _ => None,
        })
    }
}

fn waits<'s, 'a>(status: &'s ContainerStatus<'a>) -> Option<&'s Waiting<'a>> {
    status.state.as_ref()?.waiting.as_ref()
}

/// Whether every container reports this reason while it starts.
fn is_usual(waiting: &Waiting<'_>) -> bool {
    waiting.reason.as_deref().is_none_or(is_usual_word)
}

fn is_usual_word(reason: &str) -> bool {
    matches!(reason, "" | "ContainerCreating" | "PodInitializing")
}

fn word(text: Option<&Text<'_>>) -> Option<Box<str>> {
    text.map(|text| cut(text, MAX_WORD))
}

fn ended(ended: &Terminated<'_>) -> Ended {
    Ended {
        code: ended.exit_code,
        reason: word(ended.reason.as_ref()),
        message: ended.message.as_deref().map(|text| cut(text, MAX_MESSAGE)),
        started: word(ended.started_at.as_ref()),
        finished: word(ended.finished_at.as_ref()),
    }
}

fn container(kind: ContainerKind, status: &ContainerStatus<'_>) -> ContainerDiagnostics {
    let state = status.state.as_ref();
    // Spark's own order: running, terminated, waiting (`KubernetesUtils.containersDescription`).
    let state = match state.map(|state| (&state.running, &state.terminated, &state.waiting)) {
        Some((Some(running), ..)) => ContainerStateKind::Running {
            since: word(running.started_at.as_ref()).unwrap_or_default(),
            is_probed: status.started == Some(false),
        },
        Some((_, Some(terminated), _)) => ContainerStateKind::Ended(ended(terminated)),
        Some((.., Some(waiting))) => {
            ContainerStateKind::Waiting(words(waiting.reason.as_ref(), waiting.message.as_ref()))
        }
        _ => ContainerStateKind::Unknown,
    };
    ContainerDiagnostics {
        name: cut(&status.name, MAX_WORD),
        image: cut(status.image.as_deref().unwrap_or_default(), MAX_MESSAGE),
        kind,
        state,
        restarts: u32::try_from(status.restart_count).unwrap_or_default(),
        last: status.last_state.as_ref().and_then(|state| state.terminated.as_ref()).map(ended),
    }
}

/// The exit code of the executor's container; before 3.4.4 and 3.5.4 that of the first that exited (SPARK-49804).
fn exit_code(pod: &Pod<'_>) -> Option<i32> {
    let version = SparkVersion::of(pod);
    let by_name = version >= SparkVersion::new(3, 5, 4)
        || (SparkVersion::new(3, 4, 4)..SparkVersion::new(3, 5, 0)).contains(&version);
    let name = pod.spark_container();
    let mut ended = pod.status.container_statuses.iter().filter(|status| !by_name || status.name == name);
    ended.find_map(|status| status.terminated()).map(|terminated| terminated.exit_code)
}

fn deletion(pod: &Pod<'_>) -> Deletion {
    let metadata = &pod.metadata;
    let until: Option<Timestamp> = metadata.deletion_timestamp.as_deref().and_then(|text| text.parse().ok());
    let grace = SignedDuration::from_secs(metadata.deletion_grace_period_seconds.unwrap_or_default().max(0));
    let asked = until.and_then(|until| until.checked_sub(grace).ok());
    let writers = metadata.managed_fields.iter().flatten().filter(|writer| writer.manager != "kubelet");
    let dated =
        writers.filter_map(|writer| Some((writer.time.as_deref()?.parse::<Timestamp>().ok()?, &writer.manager)));
    let last = dated.max_by_key(|(time, _)| *time);
    let near = last.filter(|(time, _)| {
        asked.and_then(|asked| asked.checked_sub(SAME_TIME).ok()).is_some_and(|from| *time >= from)
    });
    let finalizers = metadata.finalizers.iter().flatten().take(MAX_LISTED).map(|name| cut(name, MAX_WORD)).collect();
    Deletion { until, asked, finalizers, writer: near.map(|(_, manager)| cut(manager, MAX_WORD)) }
}

fn words(reason: Option<&Text<'_>>, message: Option<&Text<'_>>) -> ReasonAndMessage {
    let text = |text: Option<&Text<'_>>, max| cut(text.map_or("", |text| text.as_str()), max);
    ReasonAndMessage { reason: text(reason, MAX_WORD), message: text(message, MAX_MESSAGE) }
}

/// At most `max` bytes, cut at a character boundary, that control no terminal: Events and logs show them.
fn cut(text: &str, max: usize) -> Box<str> {
    truncated(&harmless(truncated(text, max)), max).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn diagnostics(json: &str, is_final: bool) -> Option<Arc<PodDiagnostics>> {
        PodDiagnostics::of(&Pod::read_whole(json.as_bytes()).unwrap(), is_final)
    }

    #[test]
    fn healthy_pod_has_no_diagnostics_unless_final() {
        let starting = r#"{"status":{"phase":"Pending","containerStatuses":[{"name":"spark-kubernetes-executor",
            "state":{"waiting":{"reason":"ContainerCreating"}}}]}}"#;
        assert_eq!(diagnostics(starting, false), None);
        assert!(diagnostics(starting, true).is_some());
        assert_eq!(
            diagnostics(r#"{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}}"#, false),
            None
        );
    }

    #[test]
    fn diagnostics_show_why_pod_cannot_start() {
        let pulling = r#"{"status":{"phase":"Pending","containerStatuses":[{"name":"spark-kubernetes-executor","image":"no/such",
            "state":{"waiting":{"reason":"ImagePullBackOff","message":"Back-off pulling image"}}}]}}"#;
        let found = diagnostics(pulling, false).unwrap();
        let (container, waiting) = found.stuck().unwrap();
        assert_eq!((&*container.image, &*waiting.reason), ("no/such", "ImagePullBackOff"));
        let unschedulable = r#"{"status":{"conditions":[{"type":"PodScheduled","status":"False","reason":"Unschedulable","message":"0/3"}]}}"#;
        assert_eq!(&*diagnostics(unschedulable, false).unwrap().unscheduled.clone().unwrap().message, "0/3");
    }

    #[test]
    fn exit_code_is_read_from_the_container_that_the_spark_version_uses() {
        let pod = |version: &str| {
            format!(
                r#"{{"metadata":{{"labels":{{"spark-version":"{version}"}}}},"spec":{{"containers":[{{"name":"sidecar"}},{{"name":"mine",
                "env":[{{"name":"SPARK_DRIVER_URL","value":"spark://CoarseGrainedScheduler@d:1"}}]}}]}},
                "status":{{"containerStatuses":[{{"name":"sidecar","state":{{"terminated":{{"exitCode":3}}}}}},
                {{"name":"mine","state":{{"terminated":{{"exitCode":52}}}}}}]}}}}"#
            )
        };
        assert_eq!(diagnostics(&pod("3.5.3"), true).unwrap().exit_code, Some(3));
        assert_eq!(diagnostics(&pod("3.5.4"), true).unwrap().exit_code, Some(52));
        assert_eq!(diagnostics(&pod("3.4.4"), true).unwrap().exit_code, Some(52));
        assert_eq!(diagnostics(&pod("3.4.3"), true).unwrap().exit_code, Some(3));
        assert_eq!(diagnostics("{}", true).unwrap().exit_code, None);
    }

    #[test]
    fn writer_at_deletion_time_and_finalizers_are_read() {
        let pod = |time: &str| {
            format!(
                r#"{{"metadata":{{"deletionTimestamp":"2026-11-21T00:01:00Z","deletionGracePeriodSeconds":30,"finalizers":["a/b"],
                "managedFields":[{{"manager":"fabric8-kubernetes-client","time":"{time}"}},
                {{"manager":"kubelet","time":"2026-11-21T00:00:59Z"}}]}}}}"#
            )
        };
        let deletion = |time| diagnostics(&pod(time), false).unwrap().deletion.clone().unwrap();
        assert_eq!(deletion("2026-11-21T00:00:29Z").writer.as_deref(), Some("fabric8-kubernetes-client"));
        assert_eq!(deletion("2026-11-21T00:00:20Z").writer, None, "long before");
        assert_eq!(deletion("x").finalizers, ["a/b".into()]);
    }

    #[test]
    fn deleted_pending_pod_ended_when_its_deletion_was_requested() {
        let pod = |phase: &str| {
            format!(
                r#"{{"metadata":{{"deletionTimestamp":"2026-11-21T00:21:00Z","deletionGracePeriodSeconds":30}},"status":{{"phase":"{phase}",
                "conditions":[{{"type":"PodScheduled","status":"True","lastTransitionTime":"2026-11-21T00:00:00Z"}}],
                "initContainerStatuses":[{{"name":"i","state":{{"terminated":{{"exitCode":0,"finishedAt":"2026-11-21T00:00:05Z"}}}}}}]}}}}"#
            )
        };
        let ended = |phase: &str| diagnostics(&pod(phase), true).unwrap().ended_at().unwrap().to_string();
        assert_eq!(ended("Pending"), "2026-11-21T00:20:30Z");
        assert_eq!(ended("Failed"), "2026-11-21T00:00:00Z", "its status changed last then");
        let silent = pod("Failed").replace("lastTransitionTime", "lastProbeTime");
        assert_eq!(diagnostics(&silent, true).unwrap().ended_at(), None, "its deletion says nothing of its exit");
    }

    #[test]
    fn starting_pod_says_which_init_container_works_or_which_sidecar_does_not_start() {
        let pod = |phase: &str, init: &str| {
            format!(
                r#"{{"spec":{{"initContainers":[{{"name":"fetch"}},{{"name":"istio-proxy","restartPolicy":"Always"}}]}},
                "status":{{"phase":"{phase}","initContainerStatuses":[{init}]}}}}"#
            )
        };
        let runs = |name: &str, started: bool| {
            format!(
                r#"{{"name":"{name}","started":{started},"state":{{"running":{{"startedAt":"2026-11-21T00:00:00Z"}}}}}}"#
            )
        };
        let says = |init: &str| diagnostics(&pod("Pending", init), false).and_then(|found| found.starting_message());
        let since = "has been running since 2026-11-21T00:00:00Z";
        // The kubelet calls an init container without a startup probe started.
        assert_eq!(says(&runs("fetch", true)), Some(format!("init container fetch {since}")));
        let probed = says(&runs("istio-proxy", false));
        assert_eq!(probed, Some(format!("sidecar istio-proxy {since}, and its startup probe fails")));
        assert_eq!(says(&runs("istio-proxy", true)), None);
        assert_eq!(diagnostics(&pod("Running", &runs("istio-proxy", true)), false), None, "it costs nothing");
        let found = |init: &str| diagnostics(&pod("Pending", init), false).unwrap();
        assert!(found(&runs("fetch", true)).initializing().is_some());
        assert!(found(&runs("istio-proxy", false)).initializing().is_none(), "the application waits");
    }

    #[test]
    fn reason_and_message_are_truncated() {
        let long = "é".repeat(2000);
        let found = diagnostics(&format!(r#"{{"status":{{"reason":"{long}","message":"{long}"}}}}"#), true).unwrap();
        assert_eq!(found.message.as_ref().unwrap().len(), 1024);
        assert_eq!(found.reason.as_ref().unwrap().len(), 252);
    }
}
