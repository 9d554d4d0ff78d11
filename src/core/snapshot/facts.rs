//! The facts that the snapshot keeps of each object; equal ones are shared.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Instant;

use smol_str::SmolStr;

use super::generated::{is_automatic, kept_signed_name};
use super::owner::{MAX_NAME, MAX_UID, Owner, bounded, other_owners, owner_kinds};
use crate::annotations::{self, MetadataField, Overrides};
use crate::signature::{Creator, Signature, StatedCreator};
use usher_spark::diagnostics::PodDiagnostics;
use usher_spark::ids::{AppKey, PodIdentity, PodKey};
use usher_spark::labels;
use usher_spark::pod::{Pod, Workload};
use usher_spark::resources::{self, ResourceList};
use usher_spark::role::Role;
use usher_spark::state::ExecutorPodState;
use usher_spark::status::{Condition, ContainerStatus};
use usher_spark::wire_text::Text;

/// An observed pod, in the form in which the snapshot stores it.
#[derive(Clone, Debug)]
pub enum ObservedPod {
    /// A labelled driver of an application.
    Driver(AppKey, DriverPod),
    /// An executor of an application.
    Executor(AppKey, Executor),
    /// Any other pod, by name.
    Other(PodKey, DriverPod),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Executor {
    /// Pod name.
    pub name: Arc<str>,
    /// Pod uid.
    pub uid: Arc<str>,
    /// The observed resourceVersion.
    pub version: SmolStr,
    /// The number in `spark-exec-id`; `None` for statefulset and deployment allocators.
    pub exec_id: Option<u32>,
    /// Its state as Spark derives it.
    pub state: ExecutorPodState,
    /// Whether its deletion was requested.
    pub deleting: bool,
    /// Whether it is labelled inactive; then it does not count.
    pub inactive: bool,
    /// What it shares with other executors of its application.
    pub template: Arc<Template>,
    /// Whether it has exited for good: its phase is terminal, or its own container has exited and never restarts.
    /// Spark calls an executor failed also if only a sidecar has failed, or if its container is about to restart.
    pub is_over: bool,
    /// Whether its Spark container has exited for good while another container keeps the pod, and all that it requests, on its node.
    pub lingers: bool,
    /// Whether spark-usher labelled it inactive.
    pub inactive_by_usher: bool,
    /// The signature over creator and placement, as the pod carries it.
    pub signature: Option<Signature>,
    /// The name that the signature covers: `None` for the pod's own, else its base when it was signed (`generateName`).
    pub signed_name: Option<Arc<str>>,
    /// Whether our webhook's signature proves its creator and its placement. The snapshot, which has the key, decides.
    pub is_proven: bool,
    /// When the pod was created, in seconds since 1970.
    pub created: Option<NonZeroU32>,
    /// When its container started, as the kubelet states, in seconds since 1970.
    pub started: Option<NonZeroU32>,
    /// Whether its node has done its part: the pod's sandbox is ready (condition `PodReadyToStartContainers`), or an init container has
    /// started.
    pub is_set_up: bool,
    /// The node to which it is bound.
    pub node: Option<Arc<str>>,
    /// When it was first observed, by our own clock; kept while its uid is the same. Not read from the pod.
    pub first_seen: Option<Instant>,
    /// How long after that it was first observed in its current [stage](super::Stage), in tenths of a second, rounded up: another
    /// instant for each of 100,000 executors takes 1 MB. Not read from the pod.
    pub(super) stage_after: u32,
    /// Its diagnostics, if it reports a problem.
    pub diagnostics: Option<Arc<PodDiagnostics>>,
}

/// Orders executors as Spark created them: by number, then by name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExecutorKey {
    /// `spark-exec-id`, or the largest number if that is not a number.
    pub id: u64,
    /// The pod's name.
    pub name: Arc<str>,
}

impl ExecutorKey {
    /// The key of an executor.
    pub fn of(executor: &Executor) -> Self {
        Self { id: executor.exec_id.map_or(u64::MAX, u64::from), name: executor.name.clone() }
    }
}

/// What executors of one application and resource profile share, stored once for all of them.
#[derive(Clone, Debug, PartialEq)]
pub struct Template {
    /// The application's name as its label states it, since Spark 3.3.
    pub app_name: Option<Arc<str>>,
    /// Whether they run the default resource profile.
    pub default_profile: bool,
    /// Whether the resource profile label exists: Spark 3.0 and older do not write it.
    pub knows_profiles: bool,
    /// Whether the skip annotation excludes them.
    pub skip: bool,
    /// Whether they do not avoid suspect nodes, because their gang needs them.
    pub needs_suspect_nodes: bool,
    /// The controlling owner.
    pub owner: Option<Owner>,
    /// The other owners that are pods, at most 8.
    pub other_owners: Box<[Owner]>,
    /// Host of `SPARK_DRIVER_URL`: a Service's name or an address.
    pub driver_host: Option<Arc<str>>,
    /// Our annotation with weaker evidence of the driver, `how/name/uid`; a tenant can write it too.
    pub note: Option<Arc<str>>,
    /// The creator that they state. It is proven only with a signature ([`Executor::creator`]).
    pub creator: Option<StatedCreator>,
    /// Their scheduling fields.
    pub scheduling: Arc<SchedulingFields>,
    pub requests: ResourceList,
}

impl DriverPod {
    /// The pod by its key, in its namespace.
    pub fn identity(&self, namespace: &str) -> PodIdentity {
        PodIdentity { key: PodKey::new(namespace, &self.name), uid: self.uid.clone() }
    }

    /// Whether it is live: it has not exited and is not being deleted.
    pub fn is_live(&self) -> bool {
        self.phase != DriverPhase::Ended && !self.deleting
    }
}

impl Executor {
    /// The state for people: an executor that is being deleted is not shown as running, however long the deletion takes.
    pub fn shown_state(&self) -> ExecutorPodState {
        if self.deleting && self.state.is_live() { ExecutorPodState::Terminating } else { self.state }
    }

    /// Whether it is in a final state, and neither labelled inactive nor being deleted.
    pub fn needs_cleanup(&self) -> bool {
        self.state.is_final() && !self.inactive && !self.deleting
    }

    /// Whether it is pending or running, not labelled inactive, and not deleted before it started.
    pub fn is_live(&self) -> bool {
        self.state.is_live() && !self.inactive && !(self.deleting && self.state == ExecutorPodState::Pending)
    }
}

/// The phase of a driver's pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriverPhase {
    /// Not running yet.
    Pending,
    Running,
    /// Its phase is terminal, or the Spark container has exited: it drives no application any more.
    Ended,
}

/// The pod in which a driver runs. It may have no Spark label, and may run several applications.
#[derive(Clone, Debug, PartialEq)]
pub struct DriverPod {
    /// Pod name.
    pub name: Arc<str>,
    /// Pod uid.
    pub uid: Arc<str>,
    /// The observed resourceVersion.
    pub version: SmolStr,
    /// The app selector in its labels, if any.
    pub selector: Option<Arc<str>>,
    /// The application's name in its labels, if any.
    pub app_name: Option<Arc<str>>,
    /// Whether the pod is an executor itself (and so drives no application).
    pub is_executor: bool,
    pub phase: DriverPhase,
    /// When the pod was created, in seconds since 1970.
    pub created: Option<NonZeroU32>,
    /// When its container started, else when the pod was created, in seconds since 1970.
    pub began: Option<NonZeroU32>,
    /// Whether its phase is Failed, or its own container exited with a code other than 0.
    pub has_failed: bool,
    /// The node to which it is bound.
    pub node: Option<Arc<str>>,
    /// Its diagnostics, if it reports a problem or has exited.
    pub diagnostics: Option<Arc<PodDiagnostics>>,
    /// Whether its Spark container has exited while another container keeps the pod running.
    pub lingers: bool,
    /// Whether the skip annotation excludes it.
    pub skip: bool,
    /// Whether its deletion was requested.
    pub deleting: bool,
    pub service_account: Option<Arc<str>>,
    /// Its IP address, unless that is its node's.
    pub address: Option<Arc<str>>,
    /// The ConfigMap with its `spark.properties`.
    pub conf_map: Option<Arc<str>>,
    /// Our annotations on it.
    pub overrides: Overrides,
    /// Whether its controlling owner is a workload: a StatefulSet, a Job …
    pub has_workload: bool,
    pub owner_kinds: Box<[Arc<str>]>,
    /// This pod as a creator of executors.
    pub creator: Creator,
    /// Its own creator, as the pod states it.
    pub stated_creator: Option<StatedCreator>,
    /// The signature over its creator, as the pod carries it.
    pub signature: Option<Signature>,
    /// The name that the signature covers, as in [`Executor::signed_name`].
    pub signed_name: Option<Arc<str>>,
    /// Whether that signature is ours. The snapshot, which has the key, decides; false for a pod that was read by name.
    pub is_proven: bool,
    pub requests: ResourceList,
    pub scheduling: Arc<SchedulingFields>,
}

/// The scheduling fields of a pod: scheduler, priority class, queue and gang.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SchedulingFields {
    /// `spec.schedulerName`.
    pub scheduler_name: Arc<str>,
    /// `spec.priorityClassName`.
    pub priority_class: Option<Arc<str>>,
    /// `spec.schedulingGroup.podGroupName`.
    pub scheduling_group: Option<Arc<str>>,
    /// Our annotation `policy/scheduler-type` on a pod that our webhook placed. A tenant can write it too: see
    /// [`Executor::is_proven`].
    pub by: Option<Arc<str>>,
    /// Labels and annotations that a gang scheduler reads.
    pub entries: Vec<MetadataEntry>,
}

impl SchedulingFields {
    /// The value of a label or annotation that a gang scheduler reads.
    pub fn entry(&self, place: MetadataField, key: &str) -> Option<&str> {
        self.entries.iter().find(|entry| entry.place == place && entry.key == key).map(|entry| &*entry.value)
    }

    /// The scheduler of `spec.schedulerName`, for people.
    pub fn shown_scheduler(&self) -> &str {
        if self.scheduler_name.is_empty() { "the scheduler" } else { &self.scheduler_name }
    }

    /// What a pod on this node, or on none, waits for before it starts, as long as nothing is wrong with it.
    pub fn awaited(&self, node: Option<&str>) -> String {
        match node {
            Some(node) => format!("is starting on {node}"),
            None => format!("waits for {} to assign a node", self.shown_scheduler()),
        }
    }

    /// The policy and the scheduler type in [`SchedulingFields::by`].
    pub fn set_by(&self) -> Option<(&str, &str)> {
        self.by.as_deref()?.split_once('/')
    }
}

/// One key that a gang scheduler reads, and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetadataEntry {
    /// Whether it is a label or an annotation.
    pub place: MetadataField,
    /// The key; all of them are known at build time.
    pub key: &'static str,
    pub value: Arc<str>,
}

/// The keys that gang schedulers read; the snapshot keeps no others. Built from the schedulers' table.
#[derive(Clone, Debug, Default)]
pub struct SchedulingKeys(pub(super) Vec<SchedulingKey>);

/// One key, and the prefix of the values that its scheduler generates; a uid follows the prefix.
pub(super) type SchedulingKey = (MetadataField, &'static str, Option<&'static str>);

impl SchedulingKeys {
    /// The keys of all schedulers, without duplicates.
    pub fn new(keys: impl IntoIterator<Item = (MetadataField, &'static str, Option<&'static str>)>) -> Self {
        let mut all: Vec<_> = keys.into_iter().collect();
        all.sort_unstable();
        all.dedup();
        SchedulingKeys(all)
    }

    /// A pod's scheduling fields.
    pub fn fields_of(&self, pod: &Pod<'_>) -> SchedulingFields {
        let shared = |text: &str| Arc::<str>::from(text);
        let owner = pod.controller().map(|owner| owner.uid.as_str());
        let entries = self.0.iter().filter_map(|(place, key, automatic)| {
            let value = place.value(pod, key).filter(|value| value.len() <= MAX_ENTRY)?;
            (!is_automatic(pod, owner, *automatic, value)).then(|| MetadataEntry {
                place: *place,
                key,
                value: shared(value),
            })
        });
        let name = |name: Option<&str>| name.filter(|name| name.len() <= MAX_NAME).map(shared);
        SchedulingFields {
            scheduler_name: name(pod.spec.scheduler_name.as_deref()).unwrap_or_default(),
            priority_class: name(pod.spec.priority_class_name.as_deref()),
            scheduling_group: name(pod.spec.scheduling_group.as_deref().filter(|name| !name.is_empty())),
            by: pod.annotation(annotations::BY).filter(|by| by.len() <= MAX_BY).map(shared),
            entries: entries.collect(),
        }
    }
}

/// Longest value of a scheduler's key that is kept: task groups are the longest.
pub const MAX_ENTRY: usize = 2048;
/// Longest value of a label.
const MAX_LABEL: usize = 63;
/// Longest address that is kept: IPv6 has 39 characters, and 45 with an IPv4 address in it.
const MAX_ADDRESS: usize = 45;
/// Longest `policy/scheduler-type`: a policy's name has at most 40 characters.
const MAX_BY: usize = 64;
/// Longest note `how/name/uid` that is kept.
const MAX_NOTE: usize = MAX_NAME + MAX_UID + 32;
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Namespace {
    /// All its labels: policies select by them.
    pub labels: BTreeMap<String, String>,
    /// Our annotations on it.
    pub overrides: Overrides,
}

/// The pod that owns a driver's Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceOwner {
    /// The driver pod's name.
    pub name: Arc<str>,
    pub uid: Arc<str>,
}

impl ObservedPod {
    /// Reads the facts of a pod. `None` if it has no name, namespace or uid, which only an object that was never stored lacks.
    pub fn of(pod: &Pod<'_>, keys: &SchedulingKeys) -> Option<ObservedPod> {
        let namespace = pod.metadata.namespace.as_deref()?;
        let name = pod.metadata.name.as_deref()?;
        pod.metadata.uid.as_deref()?;
        let app = pod.app_selector().map(|selector| AppKey::new(namespace, selector));
        match (pod.role(), app) {
            (Role::Executor, Some(app)) => Some(ObservedPod::Executor(app, Executor::of(pod, keys))),
            (Role::Driver, Some(app)) => Some(ObservedPod::Driver(app, DriverPod::of(pod, keys))),
            _ => Some(ObservedPod::Other(PodKey::new(namespace, name), DriverPod::of(pod, keys))),
        }
    }

    /// Sets when an executor was first observed, and in its stage, unless that is set.
    pub fn observed_at(&mut self, now: Instant) {
        if let ObservedPod::Executor(_, executor) = self {
            executor.first_seen.get_or_insert(now);
        }
    }

    /// The pod's uid.
    pub fn uid(&self) -> &Arc<str> {
        match self {
            ObservedPod::Driver(_, pod) | ObservedPod::Other(_, pod) => &pod.uid,
            ObservedPod::Executor(_, pod) => &pod.uid,
        }
    }

    /// Its resourceVersion.
    pub fn version(&self) -> &SmolStr {
        match self {
            ObservedPod::Driver(_, pod) | ObservedPod::Other(_, pod) => &pod.version,
            ObservedPod::Executor(_, pod) => &pod.version,
        }
    }

    /// Namespace and name of the pod.
    pub fn key(&self) -> PodKey {
        match self {
            ObservedPod::Driver(app, pod) => PodKey::new(app.namespace(), &pod.name),
            ObservedPod::Executor(app, pod) => PodKey::new(app.namespace(), &pod.name),
            ObservedPod::Other(key, _) => key.clone(),
        }
    }
}

fn shared(text: Option<&str>) -> Arc<str> {
    text.unwrap_or_default().into()
}

/// See [`Executor::is_over`].
fn is_over(pod: &Pod<'_>) -> bool {
    matches!(pod.status.phase.as_deref(), Some("Succeeded" | "Failed")) || has_exited(pod)
}

/// Whether the Spark container has exited, and is never restarted.
fn has_exited(pod: &Pod<'_>) -> bool {
    let is_restarted = pod.spec.restart_policy.as_deref() != Some("Never");
    !is_restarted && spark_status(pod).is_some_and(|status| status.terminated().is_some())
}

/// See [`Executor::lingers`] and [`DriverPod::lingers`].
fn lingers(pod: &Pod<'_>) -> bool {
    pod.status.phase.as_deref() == Some("Running") && has_exited(pod)
}

/// Whether the node has made the pod's sandbox.
fn is_set_up(pod: &Pod<'_>) -> bool {
    let is_ready =
        |condition: &Condition<'_>| condition.kind == "PodReadyToStartContainers" && condition.status == "True";
    let has_started = |status: &ContainerStatus<'_>| {
        status.state.as_ref().is_some_and(|state| state.running.is_some() || state.terminated.is_some())
    };
    pod.status.conditions.iter().any(is_ready) || pod.status.init_container_statuses.iter().any(has_started)
}

/// When a driver's container started, else when its pod was created.
fn began<'p>(pod: &'p Pod<'_>) -> Option<&'p str> {
    started(pod).or(pod.metadata.creation_timestamp.as_deref())
}

/// When the executor's or the driver's container started.
fn started<'p>(pod: &'p Pod<'_>) -> Option<&'p str> {
    let state = spark_status(pod)?.state.as_ref()?;
    let running = state.running.as_ref().and_then(|running| running.started_at.as_deref());
    running.or_else(|| state.terminated.as_ref()?.started_at.as_deref())
}

/// The application's name, of the characters that a label may have: the API server admits no others, and no more than 63.
fn app_name(pod: &Pod<'_>) -> Option<Arc<str>> {
    let name = pod.label(labels::APP_NAME)?;
    (!name.is_empty()).then(|| bounded(name, MAX_LABEL))
}

/// The seconds since 1970; `None` for a time before that, or after 2106.
fn seconds(time: &str) -> Option<NonZeroU32> {
    let time = time.parse::<jiff::Timestamp>().ok()?;
    u32::try_from(time.as_second()).ok().and_then(NonZeroU32::new)
}

fn workload(pod: &Pod<'_>) -> ResourceList {
    resources::of_pod(&pod.body.read().unwrap_or_default())
}

impl Template {
    fn of(pod: &Pod<'_>, keys: &SchedulingKeys) -> Template {
        let body: Workload<'_> = pod.body.read().unwrap_or_default();
        let driver_url = body.containers.iter().find_map(|container| container.driver_url.as_deref());
        Template {
            app_name: app_name(pod),
            default_profile: pod.default_profile(),
            knows_profiles: pod.label(labels::PROFILE_ID).is_some(),
            skip: pod.annotation(annotations::SKIP) == Some("true"),
            needs_suspect_nodes: pod.annotation(annotations::AVOIDS_NODES) == Some("false"),
            owner: pod.controller().map(Owner::of),
            other_owners: other_owners(pod),
            driver_host: driver_url.and_then(driver_host).map(Arc::from),
            note: pod.annotation(annotations::DRIVER).filter(|note| note.len() <= MAX_NOTE).map(Arc::from),
            creator: pod.annotation(annotations::CREATOR).and_then(StatedCreator::parse),
            scheduling: Arc::new(keys.fields_of(pod)),
            requests: resources::of_pod(&body),
        }
    }
}

impl Executor {
    fn of(pod: &Pod<'_>, keys: &SchedulingKeys) -> Executor {
        let state = ExecutorPodState::of_pod(pod);
        Executor {
            name: shared(pod.metadata.name.as_deref()),
            uid: shared(pod.metadata.uid.as_deref()),
            version: pod.metadata.resource_version.as_deref().unwrap_or_default().into(),
            exec_id: pod.label(labels::EXEC_ID).and_then(|id| id.parse().ok()),
            state,
            deleting: pod.metadata.deletion_timestamp.is_some(),
            inactive: pod.label(labels::INACTIVE) == Some("true"),
            template: Arc::new(Template::of(pod, keys)),
            is_over: is_over(pod),
            lingers: lingers(pod),
            inactive_by_usher: pod.annotation(annotations::ENDED).is_some(),
            signature: pod.annotation(annotations::SIGNATURE).and_then(Signature::parse),
            signed_name: kept_signed_name(pod),
            is_proven: false,
            created: pod.metadata.creation_timestamp.as_deref().and_then(seconds),
            started: started(pod).and_then(seconds),
            is_set_up: is_set_up(pod),
            node: pod.spec.node_name.as_deref().map(|name| bounded(name, MAX_NAME)),
            first_seen: None,
            stage_after: 0,
            diagnostics: PodDiagnostics::of(pod, state.is_final()),
        }
    }
}

impl DriverPod {
    /// Reads the facts of any pod that may drive an application.
    pub fn of(pod: &Pod<'_>, keys: &SchedulingKeys) -> DriverPod {
        DriverPod {
            name: shared(pod.metadata.name.as_deref()),
            uid: shared(pod.metadata.uid.as_deref()),
            version: pod.metadata.resource_version.as_deref().unwrap_or_default().into(),
            selector: pod.app_selector().map(Arc::from),
            app_name: app_name(pod),
            is_executor: pod.role() == Role::Executor,
            phase: driver_phase(pod),
            created: pod.metadata.creation_timestamp.as_deref().and_then(seconds),
            began: began(pod).and_then(seconds),
            has_failed: has_failed(pod),
            node: pod.spec.node_name.as_deref().map(|name| bounded(name, MAX_NAME)),
            diagnostics: PodDiagnostics::of(pod, driver_phase(pod) == DriverPhase::Ended),
            lingers: lingers(pod),
            skip: pod.annotation(annotations::SKIP) == Some("true"),
            deleting: pod.metadata.deletion_timestamp.is_some(),
            service_account: pod.spec.service_account_name.as_deref().map(|name| bounded(name, MAX_NAME)),
            address: pod
                .status
                .pod_ip
                .as_deref()
                .filter(|ip| !pod.spec.host_network && ip.len() <= MAX_ADDRESS)
                .map(Arc::from),
            conf_map: pod.spec.conf_map.as_deref().map(|name| bounded(name, MAX_NAME + 1)),
            overrides: Overrides::read(|key| pod.annotation(key)),
            has_workload: pod.controller().is_some_and(|owner| !owner.is_pod()),
            owner_kinds: owner_kinds(pod),
            creator: Creator::of_pod(
                pod.metadata.name.as_deref().unwrap_or_default(),
                pod.metadata.uid.as_deref().unwrap_or_default(),
            ),
            stated_creator: pod.annotation(annotations::CREATOR).and_then(StatedCreator::parse),
            signature: pod.annotation(annotations::SIGNATURE).and_then(Signature::parse),
            signed_name: kept_signed_name(pod),
            is_proven: false,
            requests: workload(pod),
            scheduling: Arc::new(keys.fields_of(pod)),
        }
    }
}

/// A driver has exited if its pod's phase is terminal, or if its own container exited for good while a sidecar keeps the pod running.
fn driver_phase(pod: &Pod<'_>) -> DriverPhase {
    match pod.status.phase.as_deref() {
        Some("Succeeded" | "Failed") => DriverPhase::Ended,
        Some("Running") if has_exited(pod) => DriverPhase::Ended,
        Some("Running") => DriverPhase::Running,
        _ => DriverPhase::Pending,
    }
}

/// Its own container decides: a sidecar that fails later changes nothing of what the driver did. A driver that was disrupted has not
/// succeeded, whatever code it exits with.
fn has_failed(pod: &Pod<'_>) -> bool {
    let is_failed = pod.status.phase.as_deref() == Some("Failed");
    let Some(ended) = spark_status(pod).and_then(ContainerStatus::terminated) else { return is_failed };
    let time = |text: Option<&Text<'_>>| text?.parse::<jiff::Timestamp>().ok();
    let is_disruption = |condition: &&Condition<'_>| condition.kind == "DisruptionTarget" && condition.status == "True";
    let disruption = pod.status.conditions.iter().find(is_disruption);
    let disrupted = disruption.and_then(|condition| time(condition.last_transition_time.as_ref()));
    let had_ended = disrupted.zip(time(ended.finished_at.as_ref())).is_some_and(|(at, finished)| finished < at);
    // Older kubelets evict without the condition. A deadline is that of the whole pod.
    let was_disrupted = disruption.is_some() || pod.status.reason.as_deref() == Some("Evicted");
    ended.exit_code != 0 || (is_failed && was_disrupted && !had_ended)
}

/// The status of the container that runs the executor or the driver.
fn spark_status<'p, 'a>(pod: &'p Pod<'a>) -> Option<&'p ContainerStatus<'a>> {
    let name = pod.spark_container();
    pod.status.container_statuses.iter().find(|status| status.name == name)
}

/// The host of `spark://CoarseGrainedScheduler@HOST:PORT`, without the brackets of an IPv6 address.
pub fn driver_host(url: &str) -> Option<&str> {
    let authority = url.strip_prefix("spark://CoarseGrainedScheduler@")?;
    let (host, port) = authority.rsplit_once(':')?;
    let host = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
    (!host.is_empty() && host.len() <= 253 && port.bytes().all(|b| b.is_ascii_digit())).then_some(host)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::annotations::Override;

    #[test]
    fn driver_host_is_read_from_valid_driver_urls_only() {
        assert_eq!(driver_host("spark://CoarseGrainedScheduler@10.0.0.1:7078"), Some("10.0.0.1"));
        assert_eq!(driver_host("spark://CoarseGrainedScheduler@a-svc.ns.svc:7078"), Some("a-svc.ns.svc"));
        assert_eq!(driver_host("spark://CoarseGrainedScheduler@[fd00::1]:7078"), Some("fd00::1"));
        for bad in [
            "",
            "http://x:1",
            "spark://CoarseGrainedScheduler@x",
            "spark://CoarseGrainedScheduler@:1",
            "spark://CoarseGrainedScheduler@x:y",
        ] {
            assert_eq!(driver_host(bad), None, "{bad}");
        }
    }

    #[test]
    fn driver_phase_follows_driver_container_and_not_sidecar() {
        let pod = |container: &str, ended: &str, restarts: &str| {
            let json = format!(
                r#"{{"metadata":{{"labels":{{"spark-role":"driver"}}}},"spec":{{"restartPolicy":"{restarts}","containers":[
                {{"name":"istio-proxy"}},{{"name":"{container}","args":["driver"]}}]}},"status":{{"phase":"Running","containerStatuses":[
                {{"name":"{ended}","state":{{"terminated":{{"exitCode":0}}}}}}]}}}}"#
            );
            driver_phase(&Pod::read_whole(json.as_bytes()).unwrap())
        };
        // A container of a pod template keeps its name (spark#39563).
        for container in ["spark-kubernetes-driver", "main"] {
            assert_eq!(pod(container, container, "Never"), DriverPhase::Ended);
            assert_eq!(pod(container, "istio-proxy", "Never"), DriverPhase::Running);
            for restarts in ["Always", "OnFailure"] {
                assert_eq!(pod(container, container, restarts), DriverPhase::Running, "it restarts");
            }
        }
    }

    #[test]
    fn driver_that_succeeded_has_not_failed_when_its_sidecar_does() {
        let pod = |exit_code: i32| {
            let json = format!(
                r#"{{"metadata":{{"labels":{{"spark-role":"driver"}}}},"spec":{{"containers":[{{"name":"istio-proxy"}},
                {{"name":"spark-kubernetes-driver"}}]}},"status":{{"phase":"Failed","containerStatuses":[
                {{"name":"istio-proxy","state":{{"terminated":{{"exitCode":137}}}}}},
                {{"name":"spark-kubernetes-driver","state":{{"terminated":{{"exitCode":{exit_code}}}}}}}]}}}}"#
            );
            has_failed(&Pod::read_whole(json.as_bytes()).unwrap())
        };
        assert!(!pod(0) && pod(1));
        assert!(has_failed(&Pod::read_whole(br#"{"status":{"phase":"Failed","reason":"Evicted"}}"#).unwrap()));
        // It ends with 0 on SIGTERM.
        let disrupted = |finished: &str| {
            let json = format!(
                r#"{{"metadata":{{"labels":{{"spark-role":"driver"}}}},"spec":{{"containers":[{{"name":"main","args":["driver"]}}]}},
                "status":{{"phase":"Failed","reason":"Evicted","conditions":[{{"type":"DisruptionTarget","status":"True",
                "lastTransitionTime":"2026-11-27T10:00:00Z"}}],"containerStatuses":[{{"name":"main","state":{{"terminated":
                {{"exitCode":0,"finishedAt":"{finished}"}}}}}}]}}}}"#
            );
            has_failed(&Pod::read_whole(json.as_bytes()).unwrap())
        };
        assert!(disrupted("2026-11-27T10:00:20Z") && !disrupted("2026-11-27T09:00:00Z"));
    }

    #[test]
    fn override_beyond_size_limit_is_ignored() {
        let long = "x".repeat(2000);
        let overrides = Overrides::read(|key| match key {
            annotations::QUEUE => Some("q"),
            annotations::EXECUTOR_RESOURCES => Some(long.as_str()),
            _ => None,
        });
        assert_eq!(overrides.get(Override::Queue), Some("q"));
        assert_eq!(overrides.get(Override::ExecutorResources), None);
        assert_eq!(Overrides::read(|_| None), Overrides::default());
        assert_eq!(Override::MinMember.name(), "min-member");
    }

    #[test]
    fn pod_ip_of_host_network_driver_is_ignored() {
        let read = |host_network: bool| {
            let json = format!(r#"{{"spec":{{"hostNetwork":{host_network}}},"status":{{"podIP":"10.0.0.1"}}}}"#);
            DriverPod::of(&Pod::read_whole(json.as_bytes()).unwrap(), &SchedulingKeys::default()).address
        };
        assert_eq!(read(false).as_deref(), Some("10.0.0.1"));
        assert_eq!(read(true), None);
    }
}
