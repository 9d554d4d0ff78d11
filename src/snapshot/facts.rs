//! What the snapshot keeps of each object: a few facts, shared where they repeat.

use std::collections::BTreeMap;
use std::num::NonZeroI64;
use std::sync::Arc;
use std::time::Instant;

use smol_str::SmolStr;

use super::proof::{is_automatic, kept_signed_name};
use crate::signature::{Creator, Signature};
use crate::spark::evidence::Evidence;
use crate::spark::ids::{AppKey, PodKey};
use crate::spark::labels;
use crate::spark::pod::{Pod, Workload};
use crate::spark::resources::{self, ResourceList};
use crate::spark::role::Role;
use crate::spark::state::ExecutorPodState;

/// A pod as it was seen, in the shape in which it is kept.
#[derive(Clone, Debug)]
pub enum Sighting {
    /// A labelled driver of an application.
    Driver(AppKey, DriverPod),
    /// An executor of an application.
    Executor(AppKey, Executor),
    /// A pod that is neither, by name.
    Other(PodKey, DriverPod),
}

/// An executor.
#[derive(Clone, Debug, PartialEq)]
pub struct Executor {
    /// Pod name.
    pub name: Arc<str>,
    /// Pod uid.
    pub uid: Arc<str>,
    /// resourceVersion of this sighting.
    pub version: SmolStr,
    /// The number behind `spark-exec-id`; `None` for statefulset and deployment allocators.
    pub exec_id: Option<u64>,
    /// Spark's state of it.
    pub state: ExecutorPodState,
    /// Whether a deletion was asked for.
    pub deleting: bool,
    /// Labelled inactive: counted nowhere.
    pub inactive: bool,
    /// What it has in common with its application's others.
    pub template: Arc<Template>,
    /// Whether it has ended for good: its phase says so, or its own container has ended and is never started again.
    /// Spark calls an executor failed also when only a companion has, or when its container is about to start again.
    pub is_over: bool,
    /// Labelled inactive by us.
    pub inactive_by_us: bool,
    /// The signature over creator and placement, as the pod carries it.
    pub signature: Option<Signature>,
    /// What of its name the signature covers: all of it, or what was there when it was signed (`generateName`).
    pub signed_name: Option<Arc<str>>,
    /// Whether our webhook's signature proves its creator and its placement. The snapshot, which has the key, decides.
    pub is_proven: bool,
    /// When the pod was created, in seconds since 1970.
    pub created: Option<NonZeroI64>,
    /// The node that it was placed on.
    pub node: Option<Arc<str>>,
    /// Since when we know of it, by our own clock; kept while its uid is the same. Not read from the pod.
    pub first_seen: Option<Instant>,
    /// What it says about its own trouble, if it has any.
    pub evidence: Option<Arc<Evidence>>,
}

/// What executors of one application and resource profile have in common, so that it is kept once for all of them.
#[derive(Clone, Debug, PartialEq)]
pub struct Template {
    /// Whether they run the default resource profile.
    pub default_profile: bool,
    /// Whether the resource profile label is there at all: Spark 3.0 and older do not write it.
    pub knows_profiles: bool,
    /// Asked to be left alone.
    pub skip: bool,
    /// The controlling owner.
    pub owner: Option<Owner>,
    /// Host of `SPARK_DRIVER_URL`: a Service's name or an address.
    pub driver_host: Option<Arc<str>>,
    /// Our note of weaker evidence, `how/name/uid`; a tenant can write it too.
    pub note: Option<Arc<str>>,
    /// How they are scheduled and grouped.
    pub seat: Arc<Seat>,
    /// What each requests.
    pub requests: ResourceList,
}

impl DriverPod {
    /// Who created it, if that is proven.
    pub fn maker(&self) -> Option<Creator> {
        self.signature.filter(|_| self.is_proven).map(|signature| signature.creator())
    }

    /// Whether it still drives: it has not ended and is not on its way out.
    pub fn is_live(&self) -> bool {
        self.life != Life::Ended && !self.deleting
    }
}

impl Executor {
    /// Who created it, if that is proven.
    pub fn creator(&self) -> Option<Creator> {
        self.signature.filter(|_| self.is_proven).map(|signature| signature.creator())
    }

    /// The creator by which it counts to a gang: the proven one, else the object that it names as its controlling owner.
    pub fn counts_to(&self) -> Option<Creator> {
        self.creator().or_else(|| self.template.owner.as_ref().map(Owner::creator))
    }

    /// The state as people are told it: what is on its way out does not count as running, however long that takes.
    pub fn shown_state(&self) -> ExecutorPodState {
        if self.deleting && self.state.is_live() { ExecutorPodState::Terminating } else { self.state }
    }

    /// In a final state, and nobody has dealt with it yet.
    pub fn is_uncleared(&self) -> bool {
        self.state.is_final() && !self.inactive && !self.deleting
    }

    /// Pending or running, and not on its way out.
    pub fn is_live(&self) -> bool {
        self.state.is_live() && !self.inactive && !(self.deleting && self.state == ExecutorPodState::Pending)
    }
}

/// A controlling owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Whether it is a pod; otherwise a StatefulSet, a Deployment's ReplicaSet …
    pub is_pod: bool,
    /// Its name.
    pub name: Arc<str>,
    /// Its uid.
    pub uid: Arc<str>,
}

impl Owner {
    /// The same object as a creator.
    pub fn creator(&self) -> Creator {
        match self.is_pod {
            true => Creator::of_pod(&self.name, &self.uid),
            false => Creator::of_workload(&self.name, &self.uid),
        }
    }
}

/// How far a pod is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// Not running yet.
    Pending,
    /// Running.
    Running,
    /// Its phase is terminal, or the Spark container has ended: nothing drives any more.
    Ended,
}

/// The pod that a driver runs in. It may carry no Spark label, and may hold several applications.
#[derive(Clone, Debug, PartialEq)]
pub struct DriverPod {
    /// Pod name.
    pub name: Arc<str>,
    /// Pod uid.
    pub uid: Arc<str>,
    /// resourceVersion of this sighting.
    pub version: SmolStr,
    /// The app selector on its labels, if any.
    pub selector: Option<Arc<str>>,
    /// Whether the pod is an executor itself (and so drives nothing).
    pub is_executor: bool,
    /// How far it is.
    pub life: Life,
    /// Whether its phase is Failed, or its own container ended with another code than 0.
    pub has_failed: bool,
    /// The node that it was placed on.
    pub node: Option<Arc<str>>,
    /// What it says about its own trouble, if it has any, or about its end.
    pub evidence: Option<Arc<Evidence>>,
    /// Whether a deletion was asked for.
    pub deleting: bool,
    /// Its service account.
    pub service_account: Option<Arc<str>>,
    /// Its address, unless it is its node's.
    pub address: Option<Arc<str>>,
    /// The ConfigMap with its `spark.properties`.
    pub conf_map: Option<Arc<str>>,
    /// Annotations of ours.
    pub overrides: Overrides,
    /// Whether a controller of workloads owns it: a StatefulSet, a Job …
    pub has_workload: bool,
    /// The same pod as a creator of executors.
    pub creator: Creator,
    /// Who created it, as our webhook's signature claims.
    pub signature: Option<Signature>,
    /// What of its name the signature covers.
    pub signed_name: Option<Arc<str>>,
    /// Whether that signature is ours. The snapshot, which has the key, decides; a pod that was read by name has none.
    pub is_proven: bool,
    /// What it requests.
    pub requests: ResourceList,
    /// How it is scheduled and grouped.
    pub seat: Arc<Seat>,
}

/// How a pod is scheduled and grouped, as its own fields say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seat {
    /// `spec.schedulerName`.
    pub scheduler_name: Arc<str>,
    /// `spec.priorityClassName`.
    pub priority_class: Option<Arc<str>>,
    /// `spec.schedulingGroup.podGroupName`.
    pub scheduling_group: Option<Arc<str>>,
    /// The mark `policy/scheduler-type` of what our webhook placed. A tenant can write it too: see
    /// [`Executor::is_proven`].
    pub by: Option<Arc<str>>,
    /// Labels and annotations that some gang scheduler reads.
    pub marks: Vec<Mark>,
}

impl Seat {
    /// The value of a label or annotation that some gang scheduler reads.
    pub fn mark(&self, place: MarkPlace, key: &str) -> Option<&str> {
        self.marks.iter().find(|mark| mark.place == place && mark.key == key).map(|mark| &*mark.value)
    }

    /// The policy and the scheduler type of our mark.
    pub fn given_by(&self) -> Option<(&str, &str)> {
        self.by.as_deref()?.split_once('/')
    }
}

/// A label or an annotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MarkPlace {
    /// `metadata.labels`.
    Label,
    /// `metadata.annotations`.
    Annotation,
}

impl MarkPlace {
    /// The value of a pod's label or annotation.
    pub fn value<'p>(self, pod: &'p Pod<'_>, key: &str) -> Option<&'p str> {
        match self {
            MarkPlace::Label => pod.label(key),
            MarkPlace::Annotation => pod.annotation(key),
        }
    }
}

/// One key that a gang scheduler reads, and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Where it stands.
    pub place: MarkPlace,
    /// The key; all of them are known at build time.
    pub key: &'static str,
    /// The value.
    pub value: Arc<str>,
}

/// The keys that gang schedulers read, so that the snapshot keeps those and no others. Made from the schedulers' table.
#[derive(Clone, Debug, Default)]
pub struct SeatKeys(pub(super) Vec<SeatKey>);

/// One key, and how the values begin that its scheduler writes by itself; a uid follows.
pub(super) type SeatKey = (MarkPlace, &'static str, Option<&'static str>);

impl SeatKeys {
    /// The keys of all schedulers together; doubles are dropped.
    pub fn new(keys: impl IntoIterator<Item = (MarkPlace, &'static str, Option<&'static str>)>) -> Self {
        let mut all: Vec<_> = keys.into_iter().collect();
        all.sort_unstable();
        all.dedup();
        SeatKeys(all)
    }

    /// A pod's seat.
    pub fn seat_of(&self, pod: &Pod<'_>) -> Seat {
        let shared = |text: &str| Arc::<str>::from(text);
        let marks = self.0.iter().filter_map(|(place, key, automatic)| {
            let value = place.value(pod, key).filter(|value| value.len() <= MAX_MARK)?;
            (!is_automatic(pod, *automatic, value)).then(|| Mark { place: *place, key, value: shared(value) })
        });
        let name = |name: Option<&str>| name.filter(|name| name.len() <= MAX_NAME).map(shared);
        Seat {
            scheduler_name: name(pod.spec.scheduler_name.as_deref()).unwrap_or_default(),
            priority_class: name(pod.spec.priority_class_name.as_deref()),
            scheduling_group: name(pod.spec.scheduling_group.as_deref().filter(|name| !name.is_empty())),
            by: pod.annotation(labels::BY).filter(|by| by.len() <= MAX_BY).map(shared),
            marks: marks.collect(),
        }
    }
}

/// An annotation of ours that may change a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Override {
    /// [`labels::SKIP`].
    Skip,
    /// [`labels::SCHEDULER`].
    Scheduler,
    /// [`labels::QUEUE`].
    Queue,
    /// [`labels::MIN_MEMBER`].
    MinMember,
    /// [`labels::EXECUTOR_RESOURCES`].
    ExecutorResources,
}

impl Override {
    /// All of them.
    pub const ALL: [Override; 5] =
        [Override::Skip, Override::Scheduler, Override::Queue, Override::MinMember, Override::ExecutorResources];

    /// The annotation's key.
    pub fn key(self) -> &'static str {
        match self {
            Override::Skip => labels::SKIP,
            Override::Scheduler => labels::SCHEDULER,
            Override::Queue => labels::QUEUE,
            Override::MinMember => labels::MIN_MEMBER,
            Override::ExecutorResources => labels::EXECUTOR_RESOURCES,
        }
    }

    /// The name in a policy's `overrides`.
    pub fn name(self) -> &'static str {
        self.key().strip_prefix(labels::PREFIX).unwrap_or_default()
    }
}

/// Longest value of a scheduler's key that is kept: task groups are the longest.
pub(super) const MAX_MARK: usize = 2048;
/// Longest name that is kept: a DNS subdomain. What is longer names no object.
pub(super) const MAX_NAME: usize = 253;
/// Longest address that is kept: IPv6 has 39 characters, and 45 with an IPv4 address in it.
const MAX_ADDRESS: usize = 45;
/// Longest uid that is kept.
const MAX_UID: usize = 128;
/// Longest `policy/scheduler-type`: a policy's name has at most 40 characters.
const MAX_BY: usize = 64;
/// Longest note `how/name/uid` that is kept.
const MAX_NOTE: usize = MAX_NAME + MAX_UID + 32;
/// Longest annotation value that is kept: long enough for a resource list, short enough for a hundred thousand pods.
const MAX_OVERRIDE: usize = 1024;

/// Annotations of ours on one object. Empty on nearly all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides(Option<Arc<BTreeMap<Override, Arc<str>>>>);

impl Overrides {
    /// Reads them from an object's annotations.
    pub fn read<'v>(annotation: impl Fn(&str) -> Option<&'v str>) -> Overrides {
        let found: BTreeMap<Override, Arc<str>> = Override::ALL
            .into_iter()
            .filter_map(|which| Some((which, annotation(which.key())?)))
            .filter(|(_, value)| value.len() <= MAX_OVERRIDE)
            .map(|(which, value)| (which, value.into()))
            .collect();
        Overrides((!found.is_empty()).then(|| Arc::new(found)))
    }

    /// The value of one.
    pub fn get(&self, which: Override) -> Option<&str> {
        self.0.as_ref()?.get(&which).map(|value| &**value)
    }
}

/// A namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Namespace {
    /// All its labels: policies select by them.
    pub labels: BTreeMap<String, String>,
    /// Annotations of ours.
    pub overrides: Overrides,
}

/// The pod that owns a driver's Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceOwner {
    /// The driver pod's name.
    pub name: Arc<str>,
    /// Its uid.
    pub uid: Arc<str>,
}

impl Sighting {
    /// Turns a pod into facts. `None` when it has no name, namespace or uid, as only an object that was never stored.
    pub fn of(pod: &Pod<'_>, keys: &SeatKeys) -> Option<Sighting> {
        let namespace = pod.metadata.namespace.as_deref()?;
        let name = pod.metadata.name.as_deref()?;
        pod.metadata.uid.as_deref()?;
        let app = pod.app_selector().map(|selector| AppKey::new(namespace, selector));
        match (pod.role(), app) {
            (Role::Executor, Some(app)) => Some(Sighting::Executor(app, Executor::of(pod, keys))),
            (Role::Driver, Some(app)) => Some(Sighting::Driver(app, DriverPod::of(pod, keys))),
            _ => Some(Sighting::Other(PodKey::new(namespace, name), DriverPod::of(pod, keys))),
        }
    }

    /// Notes when it was seen, for whom it is the first time.
    pub fn seen_at(&mut self, now: Instant) {
        if let Sighting::Executor(_, executor) = self {
            executor.first_seen.get_or_insert(now);
        }
    }

    /// The pod's uid.
    pub fn uid(&self) -> &Arc<str> {
        match self {
            Sighting::Driver(_, pod) | Sighting::Other(_, pod) => &pod.uid,
            Sighting::Executor(_, pod) => &pod.uid,
        }
    }

    /// Its resourceVersion.
    pub fn version(&self) -> &SmolStr {
        match self {
            Sighting::Driver(_, pod) | Sighting::Other(_, pod) => &pod.version,
            Sighting::Executor(_, pod) => &pod.version,
        }
    }

    /// Where the pod is.
    pub fn key(&self) -> PodKey {
        match self {
            Sighting::Driver(app, pod) => PodKey::new(app.namespace(), &pod.name),
            Sighting::Executor(app, pod) => PodKey::new(app.namespace(), &pod.name),
            Sighting::Other(key, _) => key.clone(),
        }
    }
}

/// At most so many bytes of a tenant's text. What is cut equals no real name and no real uid.
pub(super) fn bounded(text: &str, most: usize) -> Arc<str> {
    text.get(..text.floor_char_boundary(most)).unwrap_or_default().into()
}

fn shared(text: Option<&str>) -> Arc<str> {
    text.unwrap_or_default().into()
}

/// See [`Executor::is_over`].
fn is_over(pod: &Pod<'_>) -> bool {
    let phase = pod.status.phase.as_deref().unwrap_or_default();
    let name = pod.executor_container();
    let ended =
        || pod.status.container_statuses.iter().any(|status| status.name == name && status.terminated().is_some());
    matches!(phase, "Succeeded" | "Failed") || (pod.spec.restart_policy.as_deref() == Some("Never") && ended())
}

fn seconds(time: &str) -> Option<i64> {
    time.parse::<jiff::Timestamp>().ok().map(jiff::Timestamp::as_second)
}

fn workload(pod: &Pod<'_>) -> ResourceList {
    resources::of_pod(&pod.body.read().unwrap_or_default())
}

impl Template {
    fn of(pod: &Pod<'_>, keys: &SeatKeys) -> Template {
        let body: Workload<'_> = pod.body.read().unwrap_or_default();
        let driver_url = body.containers.iter().find_map(|container| container.driver_url.as_deref());
        Template {
            default_profile: pod.default_profile(),
            knows_profiles: pod.label(labels::PROFILE_ID).is_some(),
            skip: pod.annotation(labels::SKIP) == Some("true"),
            owner: pod.controller().map(|owner| Owner {
                is_pod: owner.is_pod(),
                name: bounded(&owner.name, MAX_NAME + 1),
                uid: bounded(&owner.uid, MAX_UID + 1),
            }),
            driver_host: driver_url.and_then(driver_host).map(Arc::from),
            note: pod.annotation(labels::DRIVER).filter(|note| note.len() <= MAX_NOTE).map(Arc::from),
            seat: Arc::new(keys.seat_of(pod)),
            requests: resources::of_pod(&body),
        }
    }
}

impl Executor {
    fn of(pod: &Pod<'_>, keys: &SeatKeys) -> Executor {
        let state = ExecutorPodState::of(pod);
        Executor {
            name: shared(pod.metadata.name.as_deref()),
            uid: shared(pod.metadata.uid.as_deref()),
            version: pod.metadata.resource_version.as_deref().unwrap_or_default().into(),
            exec_id: pod.label(labels::EXEC_ID).and_then(|id| id.parse::<u32>().ok()).map(u64::from),
            state,
            deleting: pod.metadata.deletion_timestamp.is_some(),
            inactive: pod.label(labels::INACTIVE) == Some("true"),
            template: Arc::new(Template::of(pod, keys)),
            is_over: is_over(pod),
            inactive_by_us: pod.annotation(labels::ENDED).is_some(),
            signature: pod.annotation(labels::SIGNATURE).and_then(Signature::parse),
            signed_name: kept_signed_name(pod),
            is_proven: false,
            created: pod.metadata.creation_timestamp.as_deref().and_then(seconds).and_then(NonZeroI64::new),
            node: pod.spec.node_name.as_deref().map(|name| bounded(name, MAX_NAME)),
            first_seen: None,
            evidence: Evidence::of(pod, state.is_final()),
        }
    }
}

impl DriverPod {
    /// Reads the facts of any pod that may drive an application.
    pub fn of(pod: &Pod<'_>, keys: &SeatKeys) -> DriverPod {
        DriverPod {
            name: shared(pod.metadata.name.as_deref()),
            uid: shared(pod.metadata.uid.as_deref()),
            version: pod.metadata.resource_version.as_deref().unwrap_or_default().into(),
            selector: pod.app_selector().map(Arc::from),
            is_executor: pod.role() == Role::Executor,
            life: life(pod),
            has_failed: has_failed(pod),
            node: pod.spec.node_name.as_deref().map(|name| bounded(name, MAX_NAME)),
            evidence: Evidence::of(pod, life(pod) == Life::Ended),
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
            creator: Creator::of_pod(
                pod.metadata.name.as_deref().unwrap_or_default(),
                pod.metadata.uid.as_deref().unwrap_or_default(),
            ),
            signature: pod.annotation(labels::SIGNATURE).and_then(Signature::parse),
            signed_name: kept_signed_name(pod),
            is_proven: false,
            requests: workload(pod),
            seat: Arc::new(keys.seat_of(pod)),
        }
    }
}

/// A driver ends with its pod's phase, or with its own container while a sidecar keeps the pod running.
fn life(pod: &Pod<'_>) -> Life {
    match pod.status.phase.as_deref() {
        Some("Succeeded" | "Failed") => Life::Ended,
        Some("Running") => {
            let ended = pod
                .status
                .container_statuses
                .iter()
                .any(|status| status.name == labels::DRIVER_CONTAINER && status.terminated().is_some());
            // Spark drivers never restart; a worker or notebook whose policy restarts it has no such container.
            if ended { Life::Ended } else { Life::Running }
        }
        _ => Life::Pending,
    }
}

fn has_failed(pod: &Pod<'_>) -> bool {
    let own = pod.status.container_statuses.iter().find(|status| status.name == labels::DRIVER_CONTAINER);
    let code = own.and_then(|status| status.terminated()).map(|ended| ended.exit_code);
    pod.status.phase.as_deref() == Some("Failed") || code.is_some_and(|code| code != 0)
}

/// The host of `spark://CoarseGrainedScheduler@HOST:PORT`; brackets of an IPv6 address are taken off.
pub fn driver_host(url: &str) -> Option<&str> {
    let authority = url.strip_prefix("spark://CoarseGrainedScheduler@")?;
    let (host, port) = authority.rsplit_once(':')?;
    let host = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
    (!host.is_empty() && host.len() <= 253 && port.bytes().all(|b| b.is_ascii_digit())).then_some(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_of_driver_urls() {
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
    fn a_driver_whose_container_ended_has_ended_though_a_sidecar_runs() {
        let pod = |name: &str| {
            let json = format!(
                r#"{{"status":{{"phase":"Running","containerStatuses":[{{"name":"{name}","state":{{"terminated":{{"exitCode":0}}}}}}]}}}}"#
            );
            life(&Pod::read_whole(json.as_bytes()).unwrap())
        };
        assert_eq!(pod("spark-kubernetes-driver"), Life::Ended);
        assert_eq!(pod("istio-proxy"), Life::Running);
    }

    #[test]
    fn overrides_keep_ours_only_and_within_bounds() {
        let long = "x".repeat(2000);
        let overrides = Overrides::read(|key| match key {
            labels::QUEUE => Some("q"),
            labels::EXECUTOR_RESOURCES => Some(long.as_str()),
            _ => None,
        });
        assert_eq!(overrides.get(Override::Queue), Some("q"));
        assert_eq!(overrides.get(Override::ExecutorResources), None);
        assert_eq!(Overrides::read(|_| None), Overrides::default());
        assert_eq!(Override::MinMember.name(), "min-member");
    }

    #[test]
    fn an_address_of_the_host_is_no_address() {
        let read = |host_network: bool| {
            let json = format!(r#"{{"spec":{{"hostNetwork":{host_network}}},"status":{{"podIP":"10.0.0.1"}}}}"#);
            DriverPod::of(&Pod::read_whole(json.as_bytes()).unwrap(), &SeatKeys::default()).address
        };
        assert_eq!(read(false).as_deref(), Some("10.0.0.1"));
        assert_eq!(read(true), None);
    }
}
