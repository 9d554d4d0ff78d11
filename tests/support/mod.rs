//! Builders for tests: pods, reviews, snapshots, policies.

#![allow(
    dead_code,
    unreachable_pub,
    clippy::disallowed_methods,
    reason = "each test binary uses its part of it, with the real clock and tasks of its own"
)]

#[cfg(feature = "sandbox")]
pub mod admission_policy;
pub mod attackers;
pub mod caller;
pub mod cert_manager;
#[cfg(feature = "sandbox")]
pub mod cluster;
pub mod controller_harness;
pub mod crafted;
#[cfg(feature = "sandbox")]
pub mod driver;
#[cfg(feature = "sandbox")]
pub mod faulty;
pub mod generated;
pub mod https;
pub mod module_graph;
pub mod mounted;
#[cfg(feature = "sandbox")]
pub mod operator;
pub mod planned;
#[cfg(feature = "sandbox")]
pub mod process;
pub mod rng;
#[cfg(feature = "sandbox")]
pub mod s3;

use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde_json::{Value, json};
use usher_core::admission::{self, Decision};
use usher_core::annotations::Overrides;
use usher_core::gang;
use usher_core::policy::{Match, Pattern, Policies, Policy, SchedulerChoice};
use usher_core::signature::{Key, SECRET_LEN};
use usher_core::snapshot::{Group, Namespace, Node, ObservedPod, PodChange, RelatedChange, Snapshot, Watched};
use usher_runtime::clock;
use usher_spark::pod::Pod;

pub const APP: &str = "spark-5ce218ea51d24d51bcb1500360dfa682";
/// First eight hex digits of the SHA-256 of [`APP`].
pub const APP8: &str = "f33e32ff";
pub const DRIVER_UID: &str = "97f9289d-6793-4b51-9af9-6ecaba99803d";

/// A pod under construction.
#[derive(Clone, Debug)]
pub struct PodBuilder(pub Value);

/// A pod as webhooks receive it: with the API server's defaults and the fields of the Priority plugin.
pub fn pod(name: &str) -> PodBuilder {
    PodBuilder(json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "containers": [{"name": "main", "image": "spark", "resources": {"requests": {"cpu": "1", "memory": "1408Mi"}}}],
            "schedulerName": "default-scheduler", "priority": 0, "preemptionPolicy": "PreemptLowerPriority",
            "serviceAccountName": "spark", "restartPolicy": "Never"
        },
        "status": {}
    }))
}

/// An executor of [`APP`].
pub fn executor(id: u32) -> PodBuilder {
    pod(&format!("nb-exec-{id}")).executor_of(APP, id)
}

/// The labelled, running driver of [`APP`], as the API server stores it.
pub fn driver() -> PodBuilder {
    pod("nb-driver").driver_of(APP).stored(DRIVER_UID).phase("Running")
}

impl PodBuilder {
    pub fn label(mut self, key: &str, value: &str) -> Self {
        self.0["metadata"]["labels"][key] = value.into();
        self
    }

    pub fn without_label(mut self, key: &str) -> Self {
        self.0["metadata"]["labels"].as_object_mut().unwrap().remove(key);
        self
    }

    pub fn annotation(mut self, key: &str, value: &str) -> Self {
        self.0["metadata"]["annotations"][key] = value.into();
        self
    }

    pub fn named(mut self, name: &str) -> Self {
        self.0["metadata"]["name"] = name.into();
        self
    }

    pub fn namespace(mut self, namespace: &str) -> Self {
        self.0["metadata"]["namespace"] = namespace.into();
        self
    }

    pub fn executor_of(self, app: &str, id: u32) -> Self {
        self.label("spark-role", "executor")
            .label("spark-app-selector", app)
            .label("spark-exec-id", &id.to_string())
            .label("spark-exec-resourceprofile-id", "0")
    }

    pub fn driver_of(self, app: &str) -> Self {
        self.label("spark-role", "driver").label("spark-app-selector", app)
    }

    pub fn stored(mut self, uid: &str) -> Self {
        self.0["metadata"]["uid"] = uid.into();
        self.0["metadata"]["resourceVersion"] = "1".into();
        self
    }

    pub fn phase(mut self, phase: &str) -> Self {
        self.0["status"]["phase"] = phase.into();
        self
    }

    pub fn ip(mut self, ip: &str) -> Self {
        self.0["status"]["podIP"] = ip.into();
        self
    }

    pub fn deleting(mut self) -> Self {
        self.0["metadata"]["deletionTimestamp"] = "2026-11-21T00:00:00Z".into();
        self
    }

    pub fn owned_by(mut self, kind: &str, name: &str, uid: &str) -> Self {
        let version = if kind == "Pod" { "v1" } else { "apps/v1" };
        self.0["metadata"]["ownerReferences"] =
            json!([{"apiVersion": version, "kind": kind, "name": name, "uid": uid, "controller": true}]);
        self
    }

    pub fn spec(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.0["spec"][key] = value.into();
        self
    }

    pub fn requests(mut self, requests: Value) -> Self {
        self.0["spec"]["containers"][0]["resources"]["requests"] = requests;
        self
    }

    pub fn driver_url(mut self, host: &str) -> Self {
        self.0["spec"]["containers"][0]["env"] =
            json!([{"name": "SPARK_DRIVER_URL", "value": format!("spark://CoarseGrainedScheduler@{host}:7078")}]);
        self
    }

    pub fn conf_map(mut self, name: &str) -> Self {
        self.0["spec"]["volumes"] = json!([{"name": "spark-conf-volume-driver", "configMap": {"name": name}}]);
        self
    }

    /// The pod as a client sends it: without the fields that the API server sets.
    pub fn into_request(self) -> Value {
        let mut pod = self.0;
        pod.as_object_mut().unwrap().remove("status");
        for key in ["uid", "resourceVersion"] {
            pod["metadata"].as_object_mut().unwrap().remove(key);
        }
        for key in ["priority", "preemptionPolicy"] {
            pod["spec"].as_object_mut().unwrap().remove(key);
        }
        pod
    }

    /// The review of this pod's creation by a pod that runs under `default/spark`.
    pub fn created_by_pod(&self, name: &str, uid: &str) -> Value {
        review(&self.0, by_pod("default", "spark", name, uid))
    }

    /// The review of this pod's creation by a user.
    pub fn created_by(&self, username: &str) -> Value {
        review(&self.0, json!({"username": username, "groups": ["system:authenticated"]}))
    }

    pub fn observation(&self) -> ObservedPod {
        let text = self.0.to_string();
        ObservedPod::of(&Pod::read_whole(text.as_bytes()).unwrap(), gang::scheduling_keys()).unwrap()
    }
}

/// The current time in whole seconds, as kubelets write it.
pub fn whole_seconds() -> Timestamp {
    Timestamp::from_second(clock::now().as_second()).unwrap()
}

/// The `userInfo` of a pod's bound token.
pub fn by_pod(namespace: &str, account: &str, name: &str, uid: &str) -> Value {
    json!({
        "username": format!("system:serviceaccount:{namespace}:{account}"),
        "groups": ["system:serviceaccounts", "system:authenticated"],
        "extra": {
            "authentication.kubernetes.io/credential-id": ["JTI=1"],
            "authentication.kubernetes.io/pod-name": [name],
            "authentication.kubernetes.io/pod-uid": [uid],
        }
    })
}

/// The review of a pod's creation.
/// A policy file with this content. The keys that every file needs come last, so that the lines of errors are those of the text.
pub fn policy_file(text: &str) -> String {
    format!("{text}\napiVersion: spark-usher.io/v1alpha1\nkind: PolicyFile\n")
}

/// Lists nodes with these labels.
pub fn list_nodes(snapshot: &mut Snapshot, nodes: &[(String, Vec<(&str, String)>)]) {
    let node = |(name, labels): &(String, Vec<(&str, String)>)| {
        let labels = labels.iter().map(|(key, value)| ((*key).into(), value.as_str().into())).collect();
        let node = Node {
            uid: name.as_str().into(),
            kubelet: "v1".into(),
            ready: true,
            cordoned: false,
            allocatable: Default::default(),
            labels,
        };
        (name.as_str().into(), node)
    };
    snapshot.apply(RelatedChange::Nodes(Watched::Listed(nodes.iter().map(node).collect())));
}

pub fn review(object: &Value, user_info: Value) -> Value {
    json!({
        "kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1",
        "request": {
            "uid": "f919e5e7-6096-40cc-89b1-921febd7ae50",
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "name": object["metadata"]["name"], "namespace": object["metadata"]["namespace"],
            "operation": "CREATE", "userInfo": user_info, "object": object, "oldObject": null, "dryRun": false,
            "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"}
        }
    })
}

/// The signing key of the tests.
pub fn signing_key() -> Key {
    Key::new(&[7; SECRET_LEN])
}

/// An empty snapshot of a replica that signs its decisions.
pub fn signing() -> Snapshot {
    let mut snapshot = Snapshot::default();
    snapshot.apply(RelatedChange::SigningKey(Some(signing_key())));
    snapshot
}

/// A snapshot with these pods.
pub fn snapshot_with(pods: &[PodBuilder]) -> Snapshot {
    let mut snapshot = Snapshot::default();
    for pod in pods {
        observe(&mut snapshot, pod);
    }
    snapshot
}

pub fn observe(snapshot: &mut Snapshot, pod: &PodBuilder) {
    snapshot.apply(PodChange::Observed(pod.observation()));
}

/// Adds a namespace with these labels and annotations to a snapshot.
pub fn observe_namespace(snapshot: &mut Snapshot, name: &str, labels: &[(&str, &str)], annotations: &[(&str, &str)]) {
    let labels = labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    let overrides = Overrides::read(|key| annotations.iter().find(|(k, _)| *k == key).map(|(_, v)| *v));
    snapshot.apply(RelatedChange::Namespaces(Watched::Upserted(name.into(), Namespace { labels, overrides })));
}

/// A policy that matches all pods, for this scheduler type, with its default shape.
pub fn policy(kind: &str) -> Policy {
    let row = gang::GangScheduler::of_kind(kind).unwrap();
    let mut policy = Policy { name: "batch".into(), scheduler: SchedulerChoice::of(row), ..Policy::fallback() };
    policy.gang.shape = row.default_shape();
    if row.queue_required {
        policy.queue = Some("lq".into());
    }
    policy
}

/// Policies with this one only.
pub fn only(policy: Policy) -> Policies {
    Policies::new(vec![policy], Vec::new())
}

/// Like [`only`], with accounts in `creators.never`.
pub fn only_never(policy: Policy, never: &[&str]) -> Policies {
    Policies::new(vec![policy], never.iter().map(|text| Pattern::new(text)).collect())
}

/// A match on namespace labels.
pub fn namespaces_with(key: &str, value: &str) -> Match {
    Match {
        namespace_selector: Some([(key.to_owned(), value.to_owned())].into_iter().collect()),
        ..Match::everything()
    }
}

/// A decision and its results.
#[derive(Debug)]
pub struct Outcome {
    pub decision: OwnedDecision,
    /// The response of the AdmissionReview.
    pub response: Value,
    /// The patch, decoded.
    pub patch: Value,
    /// The object after the patch.
    pub object: Value,
}

/// The parts of a decision that tests check, without lifetimes.
#[derive(Debug)]
pub struct OwnedDecision {
    pub allowed: bool,
    pub reason: usher_core::reason::Reason,
    pub reasons: Vec<usher_core::reason::Reason>,
    pub how: Option<&'static str>,
    pub driver: Option<(String, String)>,
}

impl From<&Decision<'_>> for OwnedDecision {
    fn from(decision: &Decision<'_>) -> Self {
        let mut reasons: Vec<_> = decision.notes.iter().chain(&decision.findings).map(|(reason, _)| *reason).collect();
        reasons.push(decision.reason);
        OwnedDecision {
            allowed: decision.is_allowed(),
            reason: decision.reason,
            reasons,
            how: decision.driver.as_ref().map(|driver| driver.source.as_str()),
            driver: decision.driver.as_ref().map(|driver| (driver.name.to_string(), driver.uid.to_string())),
        }
    }
}

/// Answers a review and applies the patch to its object.
pub fn answer(review: &Value, snapshot: &Snapshot, policies: &Policies) -> Outcome {
    let body = serde_json::to_vec(review).unwrap();
    let pruned = admission::prune(&body);
    let (decision, bytes) = admission::answer(&pruned, snapshot, policies).unwrap();
    let answer: Value = serde_json::from_slice(&bytes).unwrap();
    assert_eq!(answer["apiVersion"], "admission.k8s.io/v1");
    assert_eq!(answer["kind"], "AdmissionReview");
    let response = answer["response"].clone();
    assert_eq!(response["uid"], review["request"]["uid"]);
    assert_eq!(response["allowed"], decision.is_allowed());
    assert_eq!(
        response.get("patch").is_some(),
        response.get("patchType").is_some(),
        "patch and patchType are set together"
    );
    let patch = decode_patch(&response);
    let mut object = review["request"]["object"].clone();
    json_patch::patch(&mut object, &serde_json::from_value::<json_patch::Patch>(patch.clone()).unwrap())
        .expect("the patch applies to the object of the review");
    let outcome = Outcome { decision: (&decision).into(), response, patch, object };
    if review["request"]["operation"] == "CREATE" {
        check_mutate_and_validate(review, snapshot, policies, &outcome);
    }
    outcome
}

/// Checks that `/mutate-and-validate` answers as `/mutate` does, and denies the result if `/validate` does.
fn check_mutate_and_validate(review: &Value, snapshot: &Snapshot, policies: &Policies, mutated: &Outcome) {
    let mut result = review.clone();
    result["request"]["object"] = mutated.object.clone();
    let validated = validate_review(&result, snapshot, policies);
    let body = serde_json::to_vec(review).unwrap();
    let pruned = admission::prune_for_validation(&body);
    let parsed = admission::parse(&pruned).unwrap();
    let decision = admission::admit(&parsed, policies, validation_context(snapshot));
    let answer: Value = serde_json::from_slice(&admission::response::write(&parsed, &decision)).unwrap();
    let response = &answer["response"];
    assert_eq!(decision.is_allowed(), mutated.decision.allowed && validated.decision.allowed);
    if !decision.is_allowed() {
        let refusal = if mutated.decision.allowed { &validated } else { mutated };
        assert_eq!(response["status"], refusal.response["status"]);
        assert!(response.get("patch").is_none());
        return;
    }
    assert_eq!(decode_patch(response), mutated.patch);
    let warnings = |response: &Value| response["warnings"].as_array().cloned().unwrap_or_default();
    let both: Vec<Value> = [warnings(&mutated.response), warnings(&validated.response)].concat();
    assert!(warnings(response).iter().all(|warning| both.contains(warning)), "{response} {both:?}");
    let admitted = OwnedDecision::from(&decision);
    assert!(
        validated
            .decision
            .reasons
            .iter()
            .all(|reason| { *reason == validated.decision.reason || admitted.reasons.contains(reason) })
    );
}

/// The decoded patch of a response, `[]` if it has none.
pub fn decode_patch(response: &Value) -> Value {
    use base64::Engine;
    match response.get("patch").and_then(Value::as_str) {
        None => json!([]),
        Some(text) => {
            assert_eq!(response["patchType"], "JSONPatch");
            let bytes = base64::engine::general_purpose::STANDARD.decode(text).unwrap();
            serde_json::from_slice(&bytes).unwrap()
        }
    }
}

/// The outcome of creating a pod by the driver's pod `nb-driver`.
pub fn by_driver(pod: &PodBuilder, snapshot: &Snapshot, policies: &Policies) -> Outcome {
    answer(&pod.created_by_pod("nb-driver", DRIVER_UID), snapshot, policies)
}

/// A file under tests/fixtures.
pub fn fixture_path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// A recorded review, e.g. `client-mode/exec-1.mutate.create`.
pub fn recorded(name: &str) -> Value {
    let path = fixture_path(&format!("reviews/spark-4.3.0/{name}.json"));
    let text = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_slice(&text).unwrap()
}

/// Every recorded review by name.
pub fn all_recorded() -> Vec<(String, Value)> {
    let root = fixture_path("reviews/spark-4.3.0");
    let mut all = Vec::new();
    for folder in std::fs::read_dir(root).unwrap() {
        let folder = folder.unwrap();
        for file in std::fs::read_dir(folder.path()).unwrap() {
            let file = file.unwrap().path();
            let stem = file.file_stem().unwrap().to_str().unwrap().to_owned();
            let name = format!("{}/{stem}", folder.file_name().to_str().unwrap());
            all.push((name.clone(), recorded(&name)));
        }
    }
    all.sort_by(|a, b| a.0.cmp(&b.0));
    assert!(all.len() >= 19, "recorded reviews are missing");
    all
}

/// The account of spark-usher in tests.
pub const OWN: &str = "system:serviceaccount:spark-usher:spark-usher";

/// The context of a validation.
pub fn validation_context(snapshot: &Snapshot) -> admission::ValidationContext<'_> {
    admission::ValidationContext { snapshot, own_account: Some(OWN), settled: true }
}

/// Validates a review as `/validate` does.
pub fn validate_review(review: &Value, snapshot: &Snapshot, policies: &Policies) -> Outcome {
    let body = serde_json::to_vec(review).unwrap();
    let pruned = admission::prune_for_validation(&body);
    let review = admission::parse(&pruned).unwrap();
    let decision = admission::validate(&review, policies, validation_context(snapshot));
    let answer: Value = serde_json::from_slice(&admission::response::write(&review, &decision)).unwrap();
    let response = answer["response"].clone();
    assert!(response.get("patch").is_none(), "a validating webhook must not patch");
    assert_eq!(response["allowed"], decision.is_allowed());
    Outcome { decision: (&decision).into(), response, patch: json!([]), object: Value::Null }
}

/// The review of a change from `old` to `new`.
pub fn update(old: &PodBuilder, new: &PodBuilder, user_info: Value) -> Value {
    let mut review = review(&new.0, user_info);
    review["request"]["operation"] = "UPDATE".into();
    review["request"]["oldObject"] = old.0.clone();
    review
}

/// A PodGroup of [`APP`] with this minimum of members, which nobody owns.
pub fn pod_group(min_member: u32) -> Group {
    Group {
        uid: "g".into(),
        version: "1".into(),
        selector: Some(APP.into()),
        owner: None,
        started: false,
        created: None,
        deleting: false,
        phase: None,
        waits: None,
        spec: json!({"minMember": min_member}),
    }
}
