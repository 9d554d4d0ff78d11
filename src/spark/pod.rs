//! The parser of pods from a review, a watch, a list or a file.
//!
//! A pod is 10 kB of JSON of which a few hundred bytes matter. [`Pod`] holds those and borrows them where the source
//! allows it. The same document is read in two ways:
//! * [`Pod`] as part of a review leaves the workload (containers, init containers, overhead) as raw text and skips
//!   volumes and status: the answer to a review rarely needs them (see `admission::request`);
//! * [`Pod::read_whole`] and [`WholePod`] read all of it, for the snapshot.
//!
//! Everything that is not named here (probes, mounts …) is dropped.

use serde::de::{Deserialize, Deserializer, IgnoredAny, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::labels;
use super::role::Role;
pub use super::status::{ContainerStatus, Status};
use super::wire_text::{Entries, FEW, FewEntries, Text, bounded, bounded_to, first_of, null_is_empty};

/// The facts of a pod.
#[derive(Clone, Debug, Default)]
pub struct Pod<'a> {
    pub metadata: Metadata<'a>,
    /// `spec`, without the workload.
    pub spec: Spec<'a>,
    /// `spec.containers` and what belongs to them.
    pub body: Body<'a>,
    /// `status`; empty when read from a review.
    pub status: Status<'a>,
}

/// One entry of `metadata.managedFields`, without the fields.
#[derive(Clone, Debug, Default, serde::Deserialize)]
pub struct Writer<'a> {
    /// The field manager.
    #[serde(borrow, default)]
    pub manager: Text<'a>,
    /// When it wrote last.
    #[serde(default)]
    pub time: Option<Text<'a>>,
}

/// `metadata` of a pod.
#[derive(Clone, Debug, Default, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Metadata<'a> {
    /// Absent until the API server generates it from `generateName`.
    #[serde(borrow)]
    pub name: Option<Text<'a>>,
    /// The base from which the API server generated, or will generate, the name.
    pub generate_name: Option<Text<'a>>,
    /// The pod's namespace.
    pub namespace: Option<Text<'a>>,
    /// Absent before the object is stored.
    pub uid: Option<Text<'a>>,
    /// Absent before the object is stored.
    pub resource_version: Option<Text<'a>>,
    /// When it was created.
    pub creation_timestamp: Option<Text<'a>>,
    /// Set once the deletion is requested: when its grace period ends.
    pub deletion_timestamp: Option<Text<'a>>,
    pub deletion_grace_period_seconds: Option<i64>,
    /// The finalizers that must be removed before the object is deleted.
    #[serde(default, deserialize_with = "bounded")]
    pub finalizers: Option<Vec<Text<'a>>>,
    /// Labels; `None` when the document has no such map (a patch then has to add the whole).
    pub labels: Option<Entries<'a>>,
    /// Annotations; `None` when the document has no such map.
    pub annotations: Option<Entries<'a>>,
    /// Owners; `None` when the document has no such list.
    #[serde(default, deserialize_with = "bounded")]
    pub owner_references: Option<Vec<OwnerReference<'a>>>,
    /// The field managers and when they wrote; absent from a review.
    #[serde(default, deserialize_with = "bounded")]
    pub managed_fields: Option<Vec<Writer<'a>>>,
}

/// One entry of `metadata.ownerReferences`.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OwnerReference<'a> {
    /// `v1` for a pod.
    #[serde(borrow, default)]
    pub api_version: Text<'a>,
    /// `Pod`, `StatefulSet` …
    #[serde(default)]
    pub kind: Text<'a>,
    /// The owner's name.
    #[serde(default)]
    pub name: Text<'a>,
    /// The owner's uid: what the garbage collector compares.
    #[serde(default)]
    pub uid: Text<'a>,
    /// Whether this is the one controlling owner.
    #[serde(default)]
    pub controller: Option<bool>,
}

impl OwnerReference<'_> {
    /// Whether this reference names a pod.
    pub fn is_pod(&self) -> bool {
        self.kind == "Pod" && self.api_version == "v1"
    }
}

/// The parts of `spec` that scheduling needs.
#[derive(Clone, Debug, Default)]
pub struct Spec<'a> {
    /// `spec.schedulerName`.
    pub scheduler_name: Option<Text<'a>>,
    /// `spec.priorityClassName`.
    pub priority_class_name: Option<Text<'a>>,
    /// Whether `spec.priority` is set: the Priority plugin writes it before any webhook runs.
    pub has_priority: bool,
    /// Whether `spec.preemptionPolicy` is set.
    pub has_preemption_policy: bool,
    /// `spec.schedulingGroup.podGroupName` (Kubernetes 1.36 and newer). `Some("")` when only the outer field is set.
    pub scheduling_group: Option<Text<'a>>,
    /// `spec.serviceAccountName`.
    pub service_account_name: Option<Text<'a>>,
    /// `spec.nodeName`.
    pub node_name: Option<Text<'a>>,
    /// `spec.nodeSelector`.
    pub node_selector: Option<Entries<'a>>,
    /// `spec.affinity` as raw JSON; only from a review.
    pub affinity: Option<Text<'a>>,
    /// `spec.tolerations` as raw JSON; only from a review.
    pub tolerations: Option<&'a str>,
    /// `spec.volumes` as raw JSON; only from a review.
    pub volumes: Option<&'a str>,
    /// `spec.hostNetwork`: the pod's IP is its node's.
    pub host_network: bool,
    /// `spec.restartPolicy`.
    pub restart_policy: Option<Text<'a>>,
    /// Names in `spec.schedulingGates`; only from a whole reading.
    pub scheduling_gates: Vec<Text<'a>>,
    /// Name of the ConfigMap behind the driver's configuration volume; only from a whole reading.
    pub conf_map: Option<Text<'a>>,
}

/// `spec.containers` and related fields, parsed or not yet.
#[derive(Clone, Debug)]
pub enum Body<'a> {
    /// Raw JSON of `containers`, `initContainers`, `overhead`, `resources`, in this order.
    Raw([Option<&'a str>; 4]),
    /// Parsed.
    Read(Workload<'a>),
}

impl Default for Body<'_> {
    fn default() -> Self {
        Body::Read(Workload::default())
    }
}

impl<'a> Body<'a> {
    /// The workload, parsed now if it was left raw. `None` when the raw text is not a list of containers.
    pub fn read(&self) -> Option<Workload<'a>> {
        match self {
            Body::Read(workload) => Some(workload.clone()),
            Body::Raw([containers, init_containers, overhead, resources]) => Some(Workload {
                containers: parse::<Containers<'a>>(*containers)?.0,
                init_containers: parse::<Containers<'a>>(*init_containers)?.0,
                overhead: parse::<Option<FewEntries<'a>>>(*overhead)?.map(|entries| entries.0),
                requests: parse::<Option<PodResources<'a>>>(*resources)?.and_then(|r| r.requests).map(|few| few.0),
            }),
        }
    }
}

/// A list of containers alone.
#[derive(Default)]
struct Containers<'a>(Vec<Container<'a>>);

impl<'de: 'a, 'a> Deserialize<'de> for Containers<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        few(deserializer).map(Containers)
    }
}

fn parse<'a, T: Deserialize<'a> + Default>(raw: Option<&'a str>) -> Option<T> {
    raw.map_or(Some(T::default()), |text| serde_json::from_str(text).ok())
}

/// Containers and everything else that counts towards the pod's requests.
#[derive(Clone, Debug, Default, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Workload<'a> {
    /// `spec.containers`.
    #[serde(borrow, default, deserialize_with = "few")]
    pub containers: Vec<Container<'a>>,
    /// `spec.initContainers`, native sidecars included.
    #[serde(default, deserialize_with = "few")]
    pub init_containers: Vec<Container<'a>>,
    /// `spec.overhead`.
    #[serde(default)]
    pub overhead: Option<Entries<'a>>,
    /// `spec.resources.requests` (pod-level).
    #[serde(rename = "resources", default, deserialize_with = "pod_requests")]
    pub requests: Option<Entries<'a>>,
}

/// The facts of a container.
#[derive(Clone, Debug, Default)]
pub struct Container<'a> {
    /// The container's name.
    pub name: Text<'a>,
    /// `resources.requests`.
    pub requests: Option<Entries<'a>>,
    /// `resources.limits`.
    pub limits: Option<Entries<'a>>,
    /// Whether `restartPolicy` is `Always`: a native sidecar, when an init container.
    pub restarts_always: bool,
    /// Value of `SPARK_DRIVER_URL`, the one environment variable that is read.
    pub driver_url: Option<Text<'a>>,
    /// Whether the first argument is `driver` (`DriverCommandFeatureStep`).
    pub runs_driver: bool,
}

impl<'a> Pod<'a> {
    /// A label's value.
    pub fn label(&self, key: &str) -> Option<&str> {
        self.metadata.labels.as_ref()?.get(key)
    }

    /// An annotation's value.
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.metadata.annotations.as_ref()?.get(key)
    }

    /// The role of this pod in Spark.
    pub fn role(&self) -> Role {
        Role::from_label(self.label(labels::ROLE))
    }

    /// The application id; an empty label counts as none.
    pub fn app_selector(&self) -> Option<&str> {
        self.label(labels::APP_SELECTOR).filter(|selector| !selector.is_empty())
    }

    /// The one controlling owner, if any.
    pub fn controller(&self) -> Option<&OwnerReference<'a>> {
        self.metadata.owner_references.as_ref()?.iter().find(|owner| owner.controller == Some(true))
    }

    /// Whether the pod runs the default resource profile, whose executors are all of one size.
    pub fn default_profile(&self) -> bool {
        self.label(labels::PROFILE_ID).is_none_or(|id| id == "0")
    }

    /// Names of its containers; none if the workload was left raw.
    pub fn container_names(&self) -> impl Iterator<Item = &str> {
        self.containers().iter().map(|container| container.name.as_str())
    }

    /// Names of its sidecars: init containers that run as long as the pod (KEP-753); none if the workload was left raw.
    pub fn sidecars(&self) -> impl Iterator<Item = &str> {
        let init = match &self.body {
            Body::Read(workload) => workload.init_containers.as_slice(),
            Body::Raw(_) => &[],
        };
        init.iter().filter(|container| container.restarts_always).map(|container| container.name.as_str())
    }

    fn containers(&self) -> &[Container<'a>] {
        match &self.body {
            Body::Read(workload) => &workload.containers,
            Body::Raw(_) => &[],
        }
    }

    /// Name of the container that runs the executor or the driver, and that decides the state of both. Spark names it itself, unless
    /// the pod template does (`podTemplateContainerName`, else the template's first container): then what Spark sets on this
    /// container alone identifies it, `SPARK_DRIVER_URL` or the first argument `driver`. Without either, Spark's own name.
    pub fn spark_container(&self) -> &str {
        // A pod without labels may be either.
        let (may_drive, may_execute) = (self.role() != Role::Executor, self.role() != Role::Driver);
        let all = self.containers();
        let is_usual = |one: &&Container<'a>| {
            may_drive && one.name == labels::DRIVER_CONTAINER || may_execute && one.name == labels::EXECUTOR_CONTAINER
        };
        let is_sparks = |one: &&Container<'a>| may_drive && one.runs_driver || may_execute && one.driver_url.is_some();
        let found = all.iter().find(is_usual).or_else(|| all.iter().find(is_sparks));
        let usual = if may_execute { labels::EXECUTOR_CONTAINER } else { labels::DRIVER_CONTAINER };
        found.or(all.first().filter(|_| all.len() == 1)).map_or(usual, |container| container.name.as_str())
    }

    /// The same pod with the placeholders of its lists (containers, tolerations, volumes) replaced by the lists.
    pub fn with_parts(mut self, part: impl Fn(&str) -> Option<&'a str>) -> Pod<'a> {
        let whole = |raw: &'a str| part(raw).unwrap_or(raw);
        if let Body::Raw([containers, init_containers, ..]) = &mut self.body {
            for raw in [containers, init_containers] {
                *raw = raw.map(whole);
            }
        }
        self.spec.volumes = self.spec.volumes.map(whole);
        self.spec.tolerations = self.spec.tolerations.map(whole);
        self
    }

    /// Reads a whole pod (workload, configuration volume, status) from JSON.
    pub fn read_whole(json: &'a [u8]) -> serde_json::Result<Pod<'a>> {
        serde_json::from_slice::<WholePod<'a>>(json).map(|whole| whole.0)
    }
}

/// The first reading: what a review needs. See the module's documentation.
impl<'de: 'a, 'a> Deserialize<'de> for Pod<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let ReviewedPod { metadata, spec } = ReviewedPod::deserialize(deserializer)?;
        let raw = |value: Option<&'a RawValue>| value.map(RawValue::get);
        let body =
            Body::Raw([raw(spec.containers), raw(spec.init_containers), raw(spec.overhead), raw(spec.resources)]);
        let (affinity, volumes) = (raw(spec.affinity).map(Text::from), raw(spec.volumes));
        let tolerations = raw(spec.tolerations);
        let spec = Spec { affinity, tolerations, volumes, ..spec.common(None) };
        Ok(Pod { metadata, spec, body, status: Status::default() })
    }
}

/// A pod by the second reading: all of it.
#[derive(Clone, Debug, Default)]
pub struct WholePod<'a>(pub Pod<'a>);

impl<'de: 'a, 'a> Deserialize<'de> for WholePod<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let WholePodWire { metadata, mut spec, status } = WholePodWire::deserialize(deserializer)?;
        let workload = Workload {
            containers: std::mem::take(&mut spec.containers),
            init_containers: std::mem::take(&mut spec.init_containers),
            overhead: spec.overhead.take(),
            requests: spec.resources.take().and_then(|resources| resources.requests).map(|few| few.0),
        };
        let conf_map = std::mem::take(&mut spec.volumes)
            .into_iter()
            .find(|volume| labels::DRIVER_CONF_VOLUMES.contains(&volume.name.as_str()))
            .and_then(|volume| volume.config_map?.name);
        let gates = std::mem::take(&mut spec.scheduling_gates).into_iter().map(|gate| gate.name).collect();
        let spec = Spec { scheduling_gates: gates, ..spec.common(conf_map) };
        Ok(WholePod(Pod { metadata, spec, body: Body::Read(workload), status: status.unwrap_or_default() }))
    }
}

#[derive(serde::Deserialize)]
struct ReviewedPod<'a> {
    #[serde(borrow, default)]
    metadata: Metadata<'a>,
    #[serde(default)]
    spec: ReviewedSpec<'a>,
}

#[derive(serde::Deserialize)]
struct WholePodWire<'a> {
    #[serde(borrow, default)]
    metadata: Metadata<'a>,
    #[serde(default)]
    spec: WholeSpec<'a>,
    #[serde(default)]
    status: Option<Status<'a>>,
}

#[derive(serde::Deserialize)]
struct SchedulingGate<'a> {
    #[serde(borrow, default)]
    name: Text<'a>,
}

/// The same `spec` twice, with different types for the parts that only one reading parses.
/// (serde's `flatten` would copy every field into a buffer first.)
macro_rules! spec_wire {
    ($name:ident { $($field:ident : $kind:ty $(, via $with:literal)?;)* }) => {
        #[derive(Default, serde::Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        struct $name<'a> {
            #[serde(borrow)]
            scheduler_name: Option<Text<'a>>,
            priority_class_name: Option<Text<'a>>,
            priority: Option<IgnoredAny>,
            preemption_policy: Option<IgnoredAny>,
            scheduling_group: Option<SchedulingGroup<'a>>,
            service_account_name: Option<Text<'a>>,
            node_name: Option<Text<'a>>,
            node_selector: Option<Entries<'a>>,
            host_network: Option<bool>,
            restart_policy: Option<Text<'a>>,
            $($(#[serde(deserialize_with = $with)])? $field: $kind,)*
        }

        impl<'a> $name<'a> {
            fn common(self, conf_map: Option<Text<'a>>) -> Spec<'a> {
                Spec {
                    scheduler_name: self.scheduler_name,
                    priority_class_name: self.priority_class_name,
                    has_priority: self.priority.is_some(),
                    has_preemption_policy: self.preemption_policy.is_some(),
                    scheduling_group: self.scheduling_group.map(|group| group.pod_group_name.unwrap_or_default()),
                    service_account_name: self.service_account_name,
                    node_name: self.node_name,
                    node_selector: self.node_selector,
                    affinity: None,
                    tolerations: None,
                    volumes: None,
                    host_network: self.host_network.unwrap_or_default(),
                    restart_policy: self.restart_policy,
                    scheduling_gates: Vec::new(),
                    conf_map,
                }
            }
        }
    };
}

spec_wire!(ReviewedSpec {
    affinity: Option<&'a RawValue>;
    tolerations: Option<&'a RawValue>;
    volumes: Option<&'a RawValue>;
    containers: Option<&'a RawValue>;
    init_containers: Option<&'a RawValue>;
    overhead: Option<&'a RawValue>;
    resources: Option<&'a RawValue>;
});

spec_wire!(WholeSpec {
    containers: Vec<Container<'a>>, via "few";
    init_containers: Vec<Container<'a>>, via "few";
    overhead: Option<Entries<'a>>;
    resources: Option<PodResources<'a>>;
    volumes: Vec<Volume<'a>>, via "null_is_empty";
    scheduling_gates: Vec<SchedulingGate<'a>>, via "null_is_empty";
});

#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct SchedulingGroup<'a> {
    #[serde(borrow)]
    pod_group_name: Option<Text<'a>>,
}

#[derive(Default, serde::Deserialize)]
struct PodResources<'a> {
    #[serde(borrow)]
    requests: Option<FewEntries<'a>>,
    limits: Option<FewEntries<'a>>,
}

#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct Volume<'a> {
    #[serde(borrow, default)]
    name: Text<'a>,
    #[serde(default)]
    config_map: Option<ConfigMapVolume<'a>>,
}

#[derive(serde::Deserialize)]
struct ConfigMapVolume<'a> {
    #[serde(borrow)]
    name: Option<Text<'a>>,
}

#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct ContainerWire<'a> {
    #[serde(borrow, default)]
    name: Text<'a>,
    #[serde(default)]
    resources: Option<PodResources<'a>>,
    #[serde(default)]
    restart_policy: Option<Text<'a>>,
    #[serde(default)]
    env: DriverUrl<'a>,
    #[serde(default, deserialize_with = "first_of")]
    args: Option<Vec<Text<'a>>>,
}

impl<'de: 'a, 'a> Deserialize<'de> for Container<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let wire = ContainerWire::deserialize(deserializer)?;
        let PodResources { requests, limits } = wire.resources.unwrap_or_default();
        let restarts_always = wire.restart_policy.is_some_and(|policy| policy == "Always");
        let (requests, limits) = (requests.map(|few| few.0), limits.map(|few| few.0));
        let runs_driver = wire.args.as_ref().and_then(|args| args.first()).is_some_and(|first| *first == "driver");
        Ok(Container { name: wire.name, requests, limits, restarts_always, driver_url: wire.env.0, runs_driver })
    }
}

/// `env`, of which one variable is kept.
#[derive(Default)]
struct DriverUrl<'a>(Option<Text<'a>>);

impl<'de: 'a, 'a> Deserialize<'de> for DriverUrl<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(serde::Deserialize)]
        struct Variable<'a> {
            #[serde(borrow, default)]
            name: Option<Text<'a>>,
            #[serde(default)]
            value: Option<Text<'a>>,
        }
        struct EnvVisitor;
        impl<'de> Visitor<'de> for EnvVisitor {
            type Value = DriverUrl<'de>;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a list of environment variables")
            }
            fn visit_unit<E>(self) -> Result<DriverUrl<'de>, E> {
                Ok(DriverUrl(None))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<DriverUrl<'de>, A::Error> {
                let mut url = DriverUrl(None);
                while let Some(variable) = seq.next_element::<Variable<'de>>()? {
                    if variable.name.is_some_and(|name| name == labels::ENV_DRIVER_URL) {
                        url.0 = variable.value;
                    }
                }
                Ok(url)
            }
        }
        deserializer.deserialize_any(EnvVisitor)
    }
}

/// A list of containers.
fn few<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
    Ok(bounded_to::<FEW, D, T>(deserializer)?.unwrap_or_default())
}

fn pod_requests<'de: 'a, 'a, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Entries<'a>>, D::Error> {
    Ok(Option::<PodResources<'a>>::deserialize(deserializer)?.and_then(|resources| resources.requests).map(|few| few.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const POD: &str = r#"{
        "metadata": {"name": "nb-exec-1", "namespace": "default", "uid": "u1", "managedFields": [{"a": "b"}],
            "labels": {"spark-role": "executor", "spark-app-selector": "spark-1", "spark-exec-id": "1"},
            "ownerReferences": [{"apiVersion":"v1","kind":"Pod","name":"d","uid":"u0","controller":true}]},
        "spec": {"schedulerName": "default-scheduler", "priority": 0, "preemptionPolicy": "PreemptLowerPriority",
            "schedulingGroup": {"podGroupName": "g"}, "hostNetwork": true,
            "volumes": [{"name": "x", "emptyDir": {}},
                        {"name": "spark-conf-volume-driver", "configMap": {"name": "spark-drv-1-conf-map"}}],
            "containers": [{"name": "spark-kubernetes-executor",
                "env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                        {"name": "SPARK_DRIVER_URL", "value": "spark://CoarseGrainedScheduler@10.0.0.1:7078"}],
                "resources": {"requests": {"cpu": "1"}}}]},
        "status": {"phase": "Running", "podIP": "10.0.0.2",
            "containerStatuses": [{"name": "c", "state": {"terminated": {"exitCode": 137}}}]}
    }"#;

    #[test]
    fn whole_reading_agrees_with_review_reading_and_adds_status() {
        let reviewed: Pod<'_> = serde_json::from_str(POD).unwrap();
        let whole = Pod::read_whole(POD.as_bytes()).unwrap();
        for pod in [&reviewed, &whole] {
            assert_eq!(pod.role(), Role::Executor);
            assert_eq!(pod.app_selector(), Some("spark-1"));
            assert!(pod.controller().unwrap().is_pod());
            assert!(pod.default_profile());
            assert!(pod.spec.has_priority && pod.spec.has_preemption_policy && pod.spec.host_network);
            assert_eq!(pod.spec.scheduling_group.as_deref(), Some("g"));
            let workload = pod.body.read().unwrap();
            let container = &workload.containers[0];
            assert_eq!(container.driver_url.as_deref(), Some("spark://CoarseGrainedScheduler@10.0.0.1:7078"));
            assert_eq!(container.requests.as_ref().unwrap().get("cpu"), Some("1"));
        }
        assert!(matches!(reviewed.body, Body::Raw(_)));
        assert_eq!(whole.spec.conf_map.as_deref(), Some("spark-drv-1-conf-map"));
        assert_eq!(whole.status.phase.as_deref(), Some("Running"));
        assert_eq!(whole.status.container_statuses[0].terminated().unwrap().exit_code, 137);
    }

    #[test]
    fn container_of_spark_is_found_whatever_its_name_is() {
        let container_of = |role: &str, containers: &str| {
            let json = format!(
                r#"{{"metadata":{{"labels":{{"spark-role":"{role}"}}}},"spec":{{"containers":[{containers}]}}}}"#
            );
            Pod::read_whole(json.as_bytes()).unwrap().spark_container().to_owned()
        };
        let sidecar = r#"{"name":"proxy","args":["sidecar","driver"]}"#;
        let drives = r#"{"name":"main","args":["driver","--class","A"]}"#;
        let executes = r#"{"name":"main","env":[{"name":"SPARK_DRIVER_URL","value":"spark://x"}],"args":["executor"]}"#;
        assert_eq!(container_of("driver", &format!("{sidecar},{drives}")), "main");
        assert_eq!(container_of("executor", &format!("{sidecar},{executes}")), "main");
        assert_eq!(container_of("", &format!("{sidecar},{drives}")), "main", "a driver without labels");
        assert_eq!(
            container_of("driver", &format!(r#"{drives},{{"name":"spark-kubernetes-driver"}}"#)),
            "spark-kubernetes-driver"
        );
        assert_eq!(container_of("driver", r#"{"name":"notebook"}"#), "notebook");
        assert_eq!(container_of("driver", &format!("{sidecar},{executes}")), "spark-kubernetes-driver", "unknown");
        assert_eq!(container_of("executor", &format!("{sidecar},{drives}")), "spark-kubernetes-executor", "unknown");
    }

    #[test]
    fn null_annotations_are_absent_and_empty_ones_present() {
        let none: Pod<'_> = serde_json::from_str(r#"{"metadata":{"annotations":null},"spec":{}}"#).unwrap();
        assert!(none.metadata.annotations.is_none());
        assert!(!none.spec.has_priority);
        let empty: Pod<'_> =
            serde_json::from_str(r#"{"metadata":{"annotations":{}},"spec":{"containers":null}}"#).unwrap();
        assert!(empty.metadata.annotations.is_some());
        assert!(empty.body.read().unwrap().containers.is_empty());
    }

    #[test]
    fn containers_that_are_not_a_list_are_rejected() {
        let pod: Pod<'_> = serde_json::from_str(r#"{"spec":{"containers":"x"}}"#).unwrap();
        assert!(pod.body.read().is_none());
        assert!(Pod::read_whole(br#"{"spec":{"containers":"x"}}"#).is_err());
    }
}
