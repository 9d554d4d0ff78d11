//! What spark-usher's policies will do with a submission, before it is sent: the decisions for its driver and for an executor, with the
//! code that answers the real reviews, and the size of its gang.

use serde_json::{Value, json};

use crate::Submission;
use usher_core::admission::{self, ValidationContext};
use usher_core::annotations::Overrides;
use usher_core::gang::size::SizeFacts;
use usher_core::gang::{self, QueueObject};
use usher_core::policy::Policies;
use usher_core::policy::overrides::{self, Source};
use usher_core::snapshot::{Conf, Namespace, ObservedPod, PodChange, RelatedChange, Snapshot, Watched};
use usher_spark::ids::PodKey;
use usher_spark::json::{self, text};
use usher_spark::labels;
use usher_spark::pod::Pod;
use usher_spark::resources::{self, ResourceList};

/// A uid for the driver, which has none yet.
const UID: &str = "00000000-0000-0000-0000-000000000000";

/// What the policies do with a submission.
#[derive(Clone, Debug, PartialEq)]
pub struct Preview {
    /// The policy of its executors.
    pub policy: Option<String>,
    /// The scheduler that places its executors.
    pub scheduler: String,
    /// The type of that scheduler.
    pub kind: &'static str,
    pub queue: Option<String>,
    /// How many executors are placed together; `None` if they do not wait for each other.
    pub members: Option<u32>,
    /// What one executor requests.
    pub executor: ResourceList,
    /// Why the webhook will deny its pods.
    pub denials: Vec<String>,
    /// What the decisions note besides.
    pub notes: Vec<String>,
}

impl Preview {
    /// What the gang requests together, at least one executor.
    pub fn together(&self) -> ResourceList {
        self.executor.times(self.members.unwrap_or(1))
    }

    /// The object that limits its queue, if its scheduler has one.
    pub fn queue_object(&self) -> Option<(&'static QueueObject, &str)> {
        let object = gang::GangScheduler::of_kind(self.kind)?.queue_object.as_ref()?;
        Some((object, self.queue.as_deref()?))
    }

    /// Why the gang will never fit a queue with this limit; `None` if it fits, as far as the limit says.
    pub fn never_fits(&self, max: &ResourceList) -> Option<String> {
        let together = self.together();
        let over: Vec<String> = together
            .iter()
            .filter_map(|(name, amount)| {
                let limit = max.get(name).filter(|limit| amount > *limit)?;
                Some(format!("{amount} {name}, and the queue has at most {limit}"))
            })
            .collect();
        let what = match self.members {
            Some(members) if members > 1 => format!("a gang of {members} executors"),
            _ => "an executor".to_owned(),
        };
        let queue = self.queue.as_deref().unwrap_or_default();
        (!over.is_empty()).then(|| format!("{what} will never fit queue {queue}: it requests {}", over.join("; ")))
    }

    /// The decision in a line.
    pub fn summary(&self) -> String {
        let policy = self.policy.as_deref().map_or("no policy matches".to_owned(), |name| format!("policy {name}"));
        let queue = self.queue.as_ref().map_or_else(String::new, |queue| format!(", queue {queue}"));
        let gang = match self.members {
            Some(members) => format!("a gang of {members} executors, {} in all", self.together()),
            None => "no gang".to_owned(),
        };
        format!("{policy}: scheduler {}{queue}, {gang}", self.scheduler)
    }
}

/// Computes it. `namespace`: its labels and annotations, if they are known. An error says what cannot be read.
pub fn preview(submission: &Submission, policies: &Policies, namespace: Option<&Namespace>) -> Result<Preview, String> {
    let mut snapshot = Snapshot::default();
    if let Some(namespace) = namespace {
        let name = submission.namespace.as_str().into();
        snapshot.apply(RelatedChange::Namespaces(Watched::Upserted(name, namespace.clone())));
    }
    let conf = submission.conf.clone();

    let mut driver = submission.pod.clone();
    json::set(&mut driver, &["metadata", "namespace"], submission.namespace.clone());
    let (mut driver, first) = decided(&driver, &json!({"username": "submitter"}), &snapshot, policies)?;
    json::set(&mut driver, &["metadata", "uid"], UID);
    let name = text(&driver, &["metadata", "name"]).to_owned();
    let overrides = {
        let (json, annotations) = (driver.to_string(), driver.pointer("/metadata/annotations").cloned());
        let pod = Pod::read_whole(json.as_bytes()).map_err(|error| format!("the driver's pod: {error}"))?;
        let observed = ObservedPod::of(&pod, gang::scheduling_keys()).ok_or("the driver's pod has no name")?;
        snapshot.apply(PodChange::Observed(observed));
        Overrides::read(|key| annotations.as_ref()?.get(key)?.as_str())
    };
    let key = PodKey::new(&submission.namespace, &name);
    let known = Conf::Known(conf.clone().into());
    snapshot.apply(RelatedChange::Conf(key, UID.into(), known, Vec::new()));

    let account = match text(&driver, &["spec", "serviceAccountName"]) {
        "" => "default",
        account => account,
    };
    let creator = json!({"username": format!("system:serviceaccount:{}:{account}", submission.namespace), "extra": {
        "authentication.kubernetes.io/pod-name": [name], "authentication.kubernetes.io/pod-uid": [UID]}});
    let (executor, second) = decided(&executor(submission)?, &creator, &snapshot, policies)?;

    let policy = second.policy.as_deref().and_then(|name| policies.named(name));
    let json = executor.to_string();
    let pod = Pod::read_whole(json.as_bytes()).map_err(|error| format!("an executor's pod: {error}"))?;
    let requests = pod.body.read().map(|workload| resources::of_pod(&workload)).unwrap_or_default();
    let none = Overrides::default();
    let of_namespace = namespace.map_or(&none, |namespace| &namespace.overrides);
    let effective = policy.map(|policy| {
        overrides::resolve(
            policy,
            [(Source::Pod, &none), (Source::Driver, &overrides), (Source::Namespace, of_namespace)],
        )
    });
    let scheduler = effective.as_ref().map_or(&gang::NONE, |effective| effective.scheduler.gang_scheduler);
    let queue_key = effective.as_ref().and_then(|effective| effective.scheduler.queue_key);
    let on_pod = queue_key.and_then(|(place, key)| place.value(&pod, key)).map(str::to_owned);
    let facts = SizeFacts {
        conf: Some(&conf),
        requested: effective.as_ref().and_then(|effective| effective.min_member),
        ..SizeFacts::default()
    };
    let has_gang = scheduler.group_key.of_pod(&pod).is_some();
    Ok(Preview {
        scheduler: Some(text(&executor, &["spec", "schedulerName"]))
            .filter(|name| !name.is_empty())
            .unwrap_or("default-scheduler")
            .to_owned(),
        kind: scheduler.kind,
        queue: on_pod.or_else(|| effective.as_ref()?.queue.as_deref().map(str::to_owned)),
        members: facts.sizes().filter(|_| has_gang).map(|sizes| sizes.wanted),
        executor: requests,
        policy: second.policy,
        denials: first.denials.into_iter().chain(second.denials).collect(),
        notes: first.notes.into_iter().chain(second.notes).collect(),
    })
}

/// What was decided about a pod.
struct Decided {
    policy: Option<String>,
    denials: Vec<String>,
    notes: Vec<String>,
}

/// The pod as the webhook admits it.
fn decided(pod: &Value, user: &Value, snapshot: &Snapshot, policies: &Policies) -> Result<(Value, Decided), String> {
    let mut review = json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": {
        "uid": "preview", "operation": "CREATE", "resource": {"group": "", "version": "v1", "resource": "pods"},
        "name": pod.pointer("/metadata/name"), "namespace": pod.pointer("/metadata/namespace"), "userInfo": user, "object": pod}});
    let body = review.to_string();
    let pruned = admission::prune(body.as_bytes());
    let read = admission::parse(&pruned).map_err(|error| error.to_string())?;
    let decision = admission::mutate(&read, snapshot, policies);
    let (_, admitted) = admission::patch::apply(read.pod.as_ref(), decision.mutations(), pod)?;
    let mut decided = Decided {
        policy: decision.policy.map(str::to_owned),
        denials: Vec::new(),
        notes: decision.notes.iter().map(|(reason, text)| format!("{reason}: {text}")).collect(),
    };
    if !decision.is_allowed() {
        decided.denials.append(&mut decided.notes);
        return Ok((admitted, decided));
    }
    json::set(&mut review, &["request", "object"], admitted.clone());
    let body = review.to_string();
    let pruned = admission::prune_for_validation(body.as_bytes());
    let read = admission::parse(&pruned).map_err(|error| error.to_string())?;
    let context = ValidationContext { snapshot, own_account: None, settled: true };
    let validation = admission::validate(&read, policies, context);
    let findings = validation.findings.iter().map(|(reason, text)| format!("{reason}: {text}"));
    if validation.is_allowed() {
        decided.notes.extend(findings)
    } else {
        decided.denials.extend(findings)
    }
    Ok((admitted, decided))
}

/// An executor, as far as the webhook reads it (`BasicExecutorFeatureStep`).
fn executor(submission: &Submission) -> Result<Value, String> {
    let name = text(&submission.pod, &["metadata", "name"]);
    let prefix = name.strip_suffix("-driver").unwrap_or(name);
    let mut metadata = json!({"name": format!("{prefix}-exec-1"), "namespace": submission.namespace,
        "labels": {labels::ROLE: labels::ROLE_EXECUTOR, labels::APP_SELECTOR: submission.app_id, labels::EXEC_ID: "1",
            labels::PROFILE_ID: "0"}});
    for (kind, map) in [("label", "labels"), ("annotation", "annotations")] {
        let prefix = format!("spark.kubernetes.executor.{kind}.");
        for (key, value) in submission.settings(&prefix) {
            json::set(&mut metadata, &[map, &key], value);
        }
    }
    let mut spec = json!({"restartPolicy": "Never", "containers": [{"name": labels::EXECUTOR_CONTAINER, "image": "spark",
        "env": [{"name": labels::ENV_DRIVER_URL, "value": format!("spark://CoarseGrainedScheduler@{name}.{}:7078", submission.namespace)}],
        "resources": {"requests": submission.executor_requests().map_err(|error| error.to_string())?.to_json()}}]});
    let named =
        |key: &str| submission.settings(key).into_iter().find(|(rest, _)| rest.is_empty()).map(|(_, value)| value);
    let scheduler =
        named("spark.kubernetes.executor.scheduler.name").or_else(|| named("spark.kubernetes.scheduler.name"));
    if let Some(scheduler) = scheduler {
        json::set(&mut spec, &["schedulerName"], scheduler);
    }
    Ok(json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}))
}
