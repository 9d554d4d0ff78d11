//! `spark-usher explain`: shows the decision for a pod. Offline, with the code path of a real review.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::PathBuf;

use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};

use super::output::{FAILED, OK, Output, UNREADABLE, no_names, plain};
use usher_config::Config;
use usher_core::admission::{self, Decision, Operation, ValidationContext};
use usher_core::annotations::Overrides;
use usher_core::gang;
use usher_core::policy::Validate;
use usher_core::snapshot::{
    Conf, Namespace, Node, ObservedPod, OwnerKind, PodChange, RelatedChange, ServiceOwner, Snapshot, Watched, Workload,
    WorkloadKey,
};
use usher_server::http::limits::MAX_BODY;
use usher_spark::conf::AppConf;
use usher_spark::ids::PodKey;
use usher_spark::json;
use usher_spark::labels;
use usher_spark::pod::Pod;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// AdmissionReview or Pod, JSON or YAML; - reads standard input.
    #[arg(short = 'f', long = "filename", value_name = "FILE")]
    file: PathBuf,
    /// Policy file; without it every executor gets its ownerReference and nothing else changes.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Other objects of the cluster: Pods, Namespaces, ConfigMaps of drivers, Services, PriorityClasses.
    #[arg(long, value_name = "FILE")]
    pods: Option<PathBuf>,
    /// Output format.
    #[arg(short, long, value_enum, default_value = "text")]
    output: Output,
    /// User that creates a bare Pod. The default is the pod of the application's driver in --pods, as with Spark, else admin.
    #[arg(long = "as", value_name = "USER")]
    user: Option<String>,
    /// Extra field of that user. A token that is bound to a pod has two: authentication.kubernetes.io/pod-name=NAME and
    /// authentication.kubernetes.io/pod-uid=UID.
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value, requires = "user")]
    as_extra: Vec<(String, String)>,
}

fn key_value(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("expected KEY=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
}

pub(super) fn run(args: &Args, out: &mut dyn Write, err: &mut dyn Write) -> io::Result<u8> {
    if args.output == Output::Name {
        return no_names(err);
    }
    match explain(args) {
        Ok(explained) => {
            args.output.write(&explained.to_json(), [], out, |out| explained.print(out))?;
            Ok(if explained.allowed { OK } else { FAILED })
        }
        Err(error) => {
            writeln!(err, "error: {error}")?;
            Ok(UNREADABLE)
        }
    }
}

/// A decision, independent of the review's lifetime.
struct Explained {
    allowed: bool,
    reason: usher_core::reason::Reason,
    policy: Option<String>,
    driver: Option<(String, String, String)>,
    namespace: String,
    notes: Vec<(String, String)>,
    warnings: Vec<String>,
    patch: Value,
    before: Value,
    object: Value,
    /// The assumed creator of a bare Pod.
    creator: Option<String>,
    /// Violations that validation finds in the result, and the action for each.
    violations: Vec<(String, String)>,
    mode: Option<Validate>,
}

fn explain(args: &Args) -> Result<Explained, String> {
    let text = super::input::read(&args.file)?;
    let config = match &args.config {
        Some(path) => super::input::policy_file(path).map_err(|error| format!("{}: {error}", path.display()))?,
        None => Config::default(),
    };
    let snapshot = match &args.pods {
        Some(path) => {
            other_objects(&super::input::read(path)?).map_err(|error| format!("{}: {error}", path.display()))?
        }
        None => Snapshot::default(),
    };
    let (review, creator) =
        review(args, &text, &snapshot).map_err(|error| format!("{}: {error}", args.file.display()))?;
    let body = bytes(&review)?;
    let pruned = admission::prune(&body);
    let (read, whole) = read(&body, &pruned).map_err(|error| format!("{}: {error}", args.file.display()))?;
    let decision = if whole {
        admission::mutate(&read, &snapshot, &config.policies)
    } else {
        admission::head::mutate_head(&read, &config.policies, validation_context(&snapshot))
    };
    let object = review.pointer("/request/object").cloned().unwrap_or(Value::Null);
    let mut explained = Explained::new(&decision, &read, object, creator)?;
    explained.validate(review, &snapshot, &config)?;
    Ok(explained)
}

/// Context of the validation: no account of our own, and not every namespace.
fn validation_context(snapshot: &Snapshot) -> ValidationContext<'_> {
    ValidationContext { snapshot, own_account: None, settled: true }
}

/// The review with its objects last, as API servers send it: of a large one, only the fields before them are read.
fn bytes(review: &Value) -> Result<Vec<u8>, String> {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Ordered<'v> {
        kind: &'v Value,
        api_version: &'v Value,
        request: ObjectsLast<'v>,
    }
    struct ObjectsLast<'v>(&'v Map<String, Value>);
    impl Serialize for ObjectsLast<'_> {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            let is_object = |key: &str| matches!(key, "object" | "oldObject");
            let (objects, head): (Vec<_>, Vec<_>) = self.0.iter().partition(|(key, _)| is_object(key));
            serializer.collect_map(head.into_iter().chain(objects))
        }
    }
    let member = |key: &str| review.get(key).unwrap_or(&Value::Null);
    let bytes = match member("request").as_object() {
        Some(request) => serde_json::to_vec(&Ordered {
            kind: member("kind"),
            api_version: member("apiVersion"),
            request: ObjectsLast(request),
        }),
        None => serde_json::to_vec(review),
    };
    bytes.map_err(|error| error.to_string())
}

/// Reads a review as the webhook does: whole, or only its head if it is too large.
fn read<'a>(body: &'a [u8], pruned: &'a json::Pruned<'a>) -> Result<(admission::Review<'a>, bool), String> {
    let whole = (body.len() <= MAX_BODY).then(|| admission::parse(pruned));
    match whole {
        Some(Ok(review)) => Ok((review, true)),
        None | Some(Err(admission::BadReview::TooMany)) => {
            admission::head::parse(body).map(|review| (review, false)).map_err(|error| error.to_string())
        }
        Some(Err(error)) => Err(error.to_string()),
    }
}

impl Explained {
    fn new(
        decision: &Decision<'_>,
        review: &admission::Review<'_>,
        before: Value,
        creator: Option<String>,
    ) -> Result<Explained, String> {
        let (patch, object) = admission::patch::apply(review.pod.as_ref(), decision.mutations(), &before)?;
        Ok(Explained {
            allowed: decision.is_allowed(),
            reason: decision.reason,
            policy: decision.policy.map(str::to_owned),
            driver: decision
                .driver
                .as_ref()
                .map(|found| (found.source.as_str().to_owned(), found.name.to_string(), found.uid.to_string())),
            namespace: review.namespace.to_string(),
            notes: decision.notes.iter().map(|(reason, text)| (reason.to_string(), text.clone())).collect(),
            warnings: decision.warnings().collect(),
            patch: serde_json::to_value(&patch).map_err(|error| error.to_string())?,
            before,
            object,
            creator,
            violations: Vec::new(),
            mode: None,
        })
    }

    /// Validates the result: the pod after the patch, or the change.
    fn validate(&mut self, mut review: Value, snapshot: &Snapshot, config: &Config) -> Result<(), String> {
        if !self.allowed {
            return Ok(());
        }
        json::set(&mut review, &["request", "object"], self.object.clone());
        let body = bytes(&review)?;
        let pruned = admission::prune_for_validation(&body);
        let (read, whole) = read(&body, &pruned)?;
        let validation = if whole {
            admission::validate(&read, &config.policies, validation_context(snapshot))
        } else {
            admission::head::validate_head(&read, &config.policies, validation_context(snapshot))
        };
        self.violations = validation.findings.iter().map(|(reason, text)| (reason.to_string(), text.clone())).collect();
        self.mode = validation.validated.filter(|_| !validation.findings.is_empty());
        self.warnings.extend(validation.warnings().filter(|_| validation.is_allowed()));
        if !validation.is_allowed() || read.operation == Operation::Update {
            (self.allowed, self.reason) = (validation.is_allowed(), validation.reason);
        }
        if self.policy.is_none() {
            self.policy = validation.policy.map(str::to_owned);
        }
        Ok(())
    }

    /// All keys are always present.
    fn to_json(&self) -> Value {
        let driver = self
            .driver
            .as_ref()
            .map(|(how, name, uid)| json!({"how": how, "name": name, "uid": uid, "namespace": self.namespace}));
        json!({
            "allowed": self.allowed, "reason": self.reason.as_str(), "policy": self.policy, "driver": driver,
            "patch": self.patch, "warnings": self.warnings, "object": self.object,
            "violations": self.violations.iter().map(|(reason, message)| json!({"reason": reason, "message": message})).collect::<Vec<_>>(),
        })
    }

    /// Why the output shows no driver.
    fn no_driver(&self) -> &'static str {
        match json::text(&self.before, &["metadata", "labels", labels::ROLE]) {
            labels::ROLE_DRIVER => "the pod is the driver",
            labels::ROLE_EXECUTOR => "not found",
            _ => "not looked up",
        }
    }

    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let name = self.before.pointer("/metadata/name").and_then(Value::as_str).unwrap_or("(no name yet)");
        let kind = self.before.get("kind").and_then(Value::as_str).unwrap_or("object");
        writeln!(out, "{:<9}{}/{name}", kind.to_lowercase(), self.namespace)?;
        if let Some(creator) = &self.creator {
            writeln!(out, "{:<9}{creator}", "creator")?;
        }
        writeln!(out, "{:<9}{}", "answer", if self.allowed { "allowed" } else { "denied" })?;
        writeln!(out, "{:<9}{}: {}", "reason", self.reason, self.reason.text())?;
        writeln!(out, "{:<9}{}", "policy", self.policy.as_deref().unwrap_or("not evaluated"))?;
        match &self.driver {
            Some((how, name, uid)) => writeln!(out, "{:<9}{name} (uid {uid}), identified by {how}", "driver")?,
            None => writeln!(out, "{:<9}{}", "driver", self.no_driver())?,
        }
        for (reason, text) in &self.notes {
            writeln!(out, "{:<9}{reason}: {}", "note", plain(text))?;
        }
        let mode = match self.mode {
            Some(Validate::Enforce) => "denied",
            Some(Validate::Warn) => "warned",
            _ => "audited",
        };
        for (reason, text) in &self.violations {
            writeln!(out, "{mode:<9}{reason}: {}", plain(text))?;
        }
        let changes = super::diff::changes(&self.before, &self.patch);
        if changes.is_empty() {
            writeln!(out, "{:<9}none", "changes")?;
        }
        for (i, change) in changes.iter().enumerate() {
            writeln!(out, "{:<9}{}", if i == 0 { "changes" } else { "" }, plain(&change.to_string()))?;
        }
        Ok(())
    }
}

/// The review to answer: the given one, or one for the creation of the given Pod.
fn review(args: &Args, text: &str, snapshot: &Snapshot) -> Result<(Value, Option<String>), String> {
    let mut documents = super::input::documents(text)?;
    let document = match (documents.pop(), documents.is_empty()) {
        (Some(document), true) => document,
        (None, _) => return Err("expected an AdmissionReview or a Pod, found nothing".to_owned()),
        (Some(_), false) => return Err("expected one AdmissionReview or Pod, found several documents".to_owned()),
    };
    match json::at(&document, &["kind"]).and_then(Value::as_str) {
        Some("AdmissionReview") if args.user.is_some() => {
            Err("--as applies to a bare Pod only: an AdmissionReview contains its user".to_owned())
        }
        Some("AdmissionReview") => Ok((document, None)),
        Some("Pod") => {
            let namespace = document.pointer("/metadata/namespace").and_then(Value::as_str).unwrap_or("default");
            let (user, shown) = match &args.user {
                Some(user) => {
                    let mut extra: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
                    for (key, value) in &args.as_extra {
                        extra.entry(key).or_default().push(value);
                    }
                    (json!({"username": user, "extra": extra}), user.clone())
                }
                None => assumed_creator(&document, namespace, snapshot),
            };
            let review = json!({
                "kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1",
                "request": {
                    "uid": "explain", "operation": "CREATE",
                    "resource": {"group": "", "version": "v1", "resource": "pods"},
                    "name": document.pointer("/metadata/name"), "namespace": namespace,
                    "userInfo": user,
                    "object": document,
                }
            });
            Ok((review, Some(shown)))
        }
        Some(other) => Err(format!("expected an AdmissionReview or a Pod, found kind {other}")),
        None => Err("expected an AdmissionReview or a Pod, found no kind".to_owned()),
    }
}

/// Creator of a bare Pod without `--as`: for an executor its driver, if that is known, as Spark does.
fn assumed_creator(pod: &Value, namespace: &str, snapshot: &Snapshot) -> (Value, String) {
    let label = |key: &str| json::text(pod, &["metadata", "labels", key]);
    let driver = (label(labels::ROLE) == labels::ROLE_EXECUTOR)
        .then(|| snapshot.app(namespace, label(labels::APP_SELECTOR))?.live_driver())
        .flatten();
    let Some(driver) = driver else {
        return (json!({"username": "admin"}), "admin (default; --as sets another)".to_owned());
    };
    let account = driver.service_account.as_deref().unwrap_or("default");
    let extra = json!({
        "authentication.kubernetes.io/pod-name": [&*driver.name],
        "authentication.kubernetes.io/pod-uid": [&*driver.uid],
    });
    let user = json!({"username": format!("system:serviceaccount:{namespace}:{account}"), "extra": extra});
    (user, format!("the driver's pod {} (default; --as sets another)", driver.name))
}

/// Builds a snapshot of the other objects in the cluster.
fn other_objects(text: &str) -> Result<Snapshot, String> {
    let mut snapshot = Snapshot::default();
    let (mut drivers, mut properties, mut nodes) = (Vec::new(), BTreeMap::new(), Vec::new());
    for object in super::input::documents(text)? {
        let name = json::text(&object, &["metadata", "name"]).to_owned();
        let namespace = json::text(&object, &["metadata", "namespace"]).to_owned();
        let namespace = if namespace.is_empty() { "default".to_owned() } else { namespace };
        match json::text(&object, &["kind"]) {
            "Pod" | "" => {
                let pod = observed_pod(&object, &namespace)?;
                if let ObservedPod::Driver(_, driver) | ObservedPod::Other(_, driver) = &pod {
                    drivers.push((PodKey::new(&namespace, &driver.name), driver.clone()));
                }
                match pod {
                    ObservedPod::Other(key, pod) => {
                        snapshot.apply(RelatedChange::Referenced(
                            key,
                            usher_core::snapshot::ReferencedPod::Present(pod.into()),
                            Vec::new(),
                        ));
                    }
                    labelled => {
                        snapshot.apply(PodChange::Observed(labelled));
                    }
                }
            }
            "Namespace" => {
                let map = |key: &str| {
                    let entries = json::entries(&object, &["metadata", key]);
                    entries.map(|(key, value)| (key.to_owned(), value.to_owned())).collect::<BTreeMap<_, _>>()
                };
                let annotations = map("annotations");
                let overrides = Overrides::read(|key| annotations.get(key).map(String::as_str));
                let namespace = Namespace { labels: map("labels"), overrides };
                snapshot.apply(RelatedChange::Namespaces(Watched::Upserted(name.into(), namespace)));
            }
            kind @ ("StatefulSet" | "ReplicaSet" | "Deployment") => {
                let kind = match kind {
                    "StatefulSet" => OwnerKind::StatefulSet,
                    "ReplicaSet" => OwnerKind::ReplicaSet,
                    _ => OwnerKind::Deployment,
                };
                let key = WorkloadKey { kind, object: PodKey::new(&namespace, &name) };
                if let Some(workload) = Workload::read(&object.to_string()) {
                    snapshot.apply(RelatedChange::Workload(key, Some(workload), Vec::new()));
                }
            }
            "ConfigMap" => {
                let text = json::text(&object, &["data", labels::PROPERTIES_KEY]);
                properties.insert((namespace, name), AppConf::parse(text));
            }
            "Service" => {
                let owner = json::controller(&object);
                let is = |owner: &&Value, key, value| json::text(owner, &[key]) == value;
                if let Some(owner) = owner.filter(|owner| is(owner, "apiVersion", "v1") && is(owner, "kind", "Pod")) {
                    let field = |key: &str| json::text(owner, &[key]);
                    let owner = ServiceOwner { name: field("name").into(), uid: field("uid").into() };
                    let key = PodKey::new(&namespace, &name);
                    snapshot.apply(RelatedChange::Services(Watched::Upserted(key, owner)));
                }
            }
            "PriorityClass" => {
                snapshot.apply(RelatedChange::PriorityClasses(Watched::Upserted(name.into(), ())));
            }
            "Node" => {
                if let Some(node) = Node::read(&object.to_string()) {
                    nodes.push((name.into(), node));
                }
            }
            // Nothing that is explained depends on quotas, but a dump of a namespace has them.
            "ResourceQuota" => {}
            other => {
                return Err(format!(
                    "expected Pods, Namespaces, ConfigMaps, Services, Nodes, PriorityClasses, StatefulSets, ReplicaSets and \
                     Deployments, found kind {other}"
                ));
            }
        }
    }
    snapshot.apply(RelatedChange::Nodes(Watched::Listed(nodes)));
    for (key, driver) in drivers {
        let conf = driver.conf_map.and_then(|map| properties.get(&(key.namespace().to_owned(), map.to_string())));
        if let Some(conf) = conf {
            snapshot.apply(RelatedChange::Conf(key, driver.uid, Conf::Known(conf.clone().into()), Vec::new()));
        }
    }
    Ok(snapshot)
}

fn observed_pod(object: &Value, namespace: &str) -> Result<ObservedPod, String> {
    let mut object = object.clone();
    json::set(&mut object, &["metadata", "namespace"], namespace);
    let text = object.to_string();
    let pod = Pod::read_whole(text.as_bytes()).map_err(|error| format!("cannot parse a Pod: {error}"))?;
    let name = pod.metadata.name.as_deref().unwrap_or("(no name)");
    ObservedPod::of(&pod, gang::scheduling_keys())
        .ok_or_else(|| format!("Pod {name} is incomplete: expected metadata.name and metadata.uid"))
}
