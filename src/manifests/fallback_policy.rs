//! The fallback: MutatingAdmissionPolicies (`admissionregistration.k8s.io/v1`, Kubernetes 1.36 and newer) that the API
//! server itself evaluates, so that executors get their owner also while the webhook is unavailable.
//!
//! They run *before* every webhook, also when the webhook is available. So the owner policy applies exactly the rule of
//! [`resolve::creator`](crate::ownership::resolve::creator). The scheduler policy (which never sets a gang) marks the pods
//! that it changes, and the webhook decides about a marked pod again.

use serde_json::{Value, json};

use super::cel::{self, any_of, quote};
use super::object::{self, MUTATING, MUTATING_BINDING, SUFFIX};
use crate::annotations::{self, MetadataField, Override};
use crate::gang::{self, GroupKeyField, Shape};
use crate::policy::{DEFAULT_SCHEDULER, Pattern, Policies, Policy};
use crate::spark::labels;

/// Parameters of the manifests.
#[derive(Clone, Debug)]
pub struct Parameters {
    /// The first part of the objects' names.
    pub name: String,
    /// Requirements on the namespace's labels, as `matchExpressions`.
    pub namespaces: Vec<Value>,
    /// Whether schedulerName is set too.
    pub scheduler: bool,
}

/// Why no fallback is possible that agrees with the webhook.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// No such objects are possible for any file.
    #[error(transparent)]
    Object(#[from] object::Refused),
    /// Volcano without gangs.
    #[error(
        "Volcano schedules executors of policy {0} without a gang, or an annotation can select that: an ownerReference would then add them to the PodGroup of their driver; expected a gang (gang.enabled, gang.shape), or neither Volcano nor the override scheduler"
    )]
    NoGang(String),
    /// A scheduler that groups by the topmost owner.
    #[error(
        "policy {0} uses a scheduler that groups pods by their topmost owner: if a workload owns the driver, the webhook sets no ownerReference, and the fallback policy cannot check this"
    )]
    TopOwner(String),
    /// `scheduler` is set, with several policies or none.
    #[error(
        "found {0} policies: expected exactly one policy, because the fallback policy cannot choose the one that sets schedulerName"
    )]
    Policies(usize),
    /// `scheduler` is set, with a policy that names no scheduler.
    #[error("policy {0} sets no schedulerName: expected a scheduler.type that has one, or scheduler.name")]
    NoScheduler(String),
    /// `scheduler` is set, with Volcano.
    #[error(
        "policy {0} uses Volcano, which would add an executor without a gang to the PodGroup of its driver: expected another scheduler"
    )]
    Volcano(String),
}

/// The names of both policies and their bindings: that of the owner, and that of the scheduler.
pub fn names(name: &str) -> [String; 2] {
    [format!("{name}.fallback-owner{SUFFIX}"), format!("{name}.fallback-scheduler{SUFFIX}")]
}

/// The manifests: each policy with its binding.
pub fn manifests(policies: &Policies, parameters: &Parameters) -> Result<Vec<Value>, Refused> {
    let all: Vec<&Policy> = policies.listed().iter().collect();
    // By the policy's type, or by an annotation that may choose the type.
    let regroups = |policy: &&&Policy| {
        policy.scheduler.gang_scheduler.groups_by_owner || policy.overrides.contains(&Override::Scheduler)
    };
    if let Some(policy) = all.iter().filter(regroups).find(|policy| policy.gang.shape == Shape::Pods) {
        return Err(Refused::NoGang(policy.name.to_string()));
    }
    if let Some(policy) = all.iter().find(|policy| policy.scheduler.gang_scheduler.harmless_owners.is_some()) {
        return Err(Refused::TopOwner(policy.name.to_string()));
    }
    object::check_name(&parameters.name)?;
    let [owner, scheduler] = names(&parameters.name);
    let mut specs = vec![(
        owner,
        spec(parameters, &[labels::ROLE_EXECUTOR], &owner_conditions(policies), &[OWNER_PATCH.to_owned()]),
    )];
    if parameters.scheduler {
        let [one] = all.as_slice() else { return Err(Refused::Policies(all.len())) };
        let name = one.scheduler.name.as_deref().ok_or_else(|| Refused::NoScheduler(one.name.to_string()))?;
        if one.scheduler.gang_scheduler.groups_by_owner {
            return Err(Refused::Volcano(one.name.to_string()));
        }
        let roles = [labels::ROLE_DRIVER, labels::ROLE_EXECUTOR];
        let mut second = spec(parameters, &roles, &scheduler_conditions(one), &scheduler_patches(name));
        let namespaces = cel::requirements(&one.matches.namespace_selector);
        let pods = cel::requirements(&one.matches.selector_of_pods());
        for (path, more) in [("namespaceSelector", namespaces), ("objectSelector", pods)] {
            let pointer = format!("/matchConstraints/{path}/matchExpressions");
            if let Some(Value::Array(there)) = second.pointer_mut(&pointer) {
                there.extend(more);
            }
        }
        specs.push((scheduler, second));
    }
    let mut out = Vec::new();
    for (name, spec) in specs {
        object::check_size(&name, &spec)?;
        let hash = object::hash(&spec);
        out.push(object::object(MUTATING, &name, &hash, spec));
        out.push(object::object(MUTATING_BINDING, &name, &hash, json!({"policyName": name})));
    }
    Ok(out)
}

/// The owner of an executor: the pod that created it.
const OWNER: &str = r#"{"apiVersion": dyn("v1"), "kind": dyn("Pod"), "name": dyn(request.userInfo.extra["authentication.kubernetes.io/pod-name"][0]), "uid": dyn(request.userInfo.extra["authentication.kubernetes.io/pod-uid"][0]), "controller": dyn(true)}"#;
const OWNER_PATCH: &str = r#"has(object.metadata.ownerReferences) ? [JSONPatch{op: "add", path: "/metadata/ownerReferences/-", value: variables.owner}] : [JSONPatch{op: "add", path: "/metadata/ownerReferences", value: [variables.owner]}]"#;

/// The match conditions for setting an owner: name and expression.
fn owner_conditions(policies: &Policies) -> Vec<(String, String)> {
    let condition = |name: &str, expression: &str| (name.to_owned(), expression.to_owned());
    let mut out = vec![
        condition(
            "executor-of-an-application",
            r#"has(object.metadata.labels) && "spark-app-selector" in object.metadata.labels && object.metadata.labels["spark-app-selector"] != """#,
        ),
        condition(
            "without-a-controller",
            "!has(object.metadata.ownerReferences) || object.metadata.ownerReferences.all(owner, !has(owner.controller) || !owner.controller)",
        ),
        condition(
            "by-an-account-of-the-namespace",
            r#"request.userInfo.username.startsWith("system:serviceaccount:" + request.namespace + ":") && request.userInfo.username != "system:serviceaccount:" + request.namespace + ":""#,
        ),
        condition(
            "by-one-pod",
            r#"has(request.userInfo.extra) && ["authentication.kubernetes.io/pod-name", "authentication.kubernetes.io/pod-uid"].all(key, key in request.userInfo.extra && request.userInfo.extra[key].size() == 1) && request.userInfo.extra["authentication.kubernetes.io/pod-name"][0].matches("^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$") && request.userInfo.extra["authentication.kubernetes.io/pod-uid"][0].matches("^[A-Za-z0-9-]{1,128}$")"#,
        ),
    ];
    // Volcano groups a pod without a key by its owner: an executor would join its driver's own group.
    for scheduler in gang::TABLE.iter().filter(|scheduler| scheduler.groups_by_owner) {
        let own = policies.listed().iter().filter(|policy| policy.scheduler.gang_scheduler.kind == scheduler.kind);
        let mut names: Vec<&str> = scheduler
            .default_name
            .into_iter()
            .chain(own.filter_map(|policy| policy.scheduler.name.as_deref()))
            .collect();
        names.sort_unstable();
        names.dedup();
        if let GroupKeyField::Metadata(MetadataField::Annotation, key) = scheduler.group_key {
            out.push((
                format!("no-{}-without-a-gang", scheduler.kind),
                format!(
                    r#"!has(object.spec.schedulerName) || !(object.spec.schedulerName in {}) || (has(object.metadata.annotations) && "{key}" in object.metadata.annotations && object.metadata.annotations["{key}"] != "")"#,
                    json!(names)
                ),
            ));
        }
    }
    out.extend(not_skipped(policies.listed()));
    // One condition for all patterns: an API server accepts 64 conditions.
    if policies.creators_never().next().is_some() {
        let regex = quote(&any_of(policies.creators_never()));
        out.push(("creators-never".to_owned(), format!("!request.userInfo.username.matches({regex})")));
    }
    out
}

/// Excludes pods with the skip annotation, if any policy allows it.
fn not_skipped(policies: &[Policy]) -> Option<(String, String)> {
    let skips = policies.iter().any(|policy| policy.overrides.contains(&Override::Skip));
    let condition =
        format!(r#"!has(object.metadata.annotations) || !("{0}" in object.metadata.annotations)"#, annotations::SKIP);
    skips.then(|| ("not-to-be-skipped".to_owned(), condition))
}

/// The match conditions for setting the scheduler.
fn scheduler_conditions(policy: &Policy) -> Vec<(String, String)> {
    // Also if the policy replaces any scheduler name: the webhook could not revert that.
    let mut out = vec![(
        "not-placed-by-another".to_owned(),
        format!(r#"!has(object.spec.schedulerName) || object.spec.schedulerName in ["", "{DEFAULT_SCHEDULER}"]"#),
    )];
    out.extend(not_skipped(std::slice::from_ref(policy)));
    if !policy.matches.namespaces.is_empty() {
        let regex = quote(&any_of(policy.matches.namespaces.iter().map(Pattern::text)));
        out.push(("in-a-namespace-of-the-policy".to_owned(), format!("request.namespace.matches({regex})")));
    }
    out
}

fn scheduler_patches(name: &str) -> [String; 2] {
    [
        format!(r#"[JSONPatch{{op: "add", path: "/spec/schedulerName", value: {}}}]"#, json!(name)),
        format!(
            r#"has(object.metadata.annotations) ? [JSONPatch{{op: "add", path: "/metadata/annotations/" + jsonpatch.escapeKey("{by}"), value: "{fallback}"}}] : [JSONPatch{{op: "add", path: "/metadata/annotations", value: {{"{by}": "{fallback}"}}}}]"#,
            by = annotations::BY,
            fallback = annotations::BY_FALLBACK
        ),
    ]
}

/// One policy.
fn spec(parameters: &Parameters, roles: &[&str], conditions: &[(String, String)], patches: &[String]) -> Value {
    let conditions: Vec<Value> =
        conditions.iter().map(|(name, expression)| json!({"name": name, "expression": expression})).collect();
    let mutations: Vec<Value> = patches
        .iter()
        .map(|expression| json!({"patchType": "JSONPatch", "jsonPatch": {"expression": expression}}))
        .collect();
    let mut spec = json!({
        // An evaluation error changes nothing.
        "failurePolicy": "Ignore",
        "reinvocationPolicy": "Never",
        "matchConstraints": {
            "matchPolicy": "Equivalent",
            "namespaceSelector": {"matchExpressions": parameters.namespaces},
            "objectSelector": {"matchExpressions": [{"key": labels::ROLE, "operator": "In", "values": roles}]},
            "resourceRules": [
                {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"], "scope": "Namespaced"},
            ],
        },
        "matchConditions": conditions,
        "mutations": mutations,
    });
    if patches.iter().any(|patch| patch.contains("variables.owner")) {
        crate::json::set(&mut spec, &["variables"], json!([{"name": "owner", "expression": OWNER}]));
    }
    spec
}
