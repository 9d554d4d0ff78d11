//! The fallback: MutatingAdmissionPolicies (`admissionregistration.k8s.io/v1`, Kubernetes 1.36 and newer) that the API
//! server itself evaluates, so that executors get their owner also while the webhook is unavailable.
//!
//! They run *before* every webhook, also when the webhook is available. So the owner policy applies the rule of
//! [`resolve::creator`](crate::ownership::resolve::creator), and sets no owner that the webhook could withhold
//! ([`regroup`]). The scheduler policy (which never sets a gang) marks the pods that it changes, and the webhook decides about a
//! marked pod again.

use serde_json::{Value, json};

use super::cel::{self, any_of, quote};
use super::object::{self, MUTATING, MUTATING_BINDING, SUFFIX};
use crate::annotations::{self, MetadataField, Override};
use crate::gang::{self, GangScheduler, GroupKeyField, Shape};
use crate::ownership::regroup;
use crate::policy::{DEFAULT_SCHEDULER, Pattern, Policies, Policy};
use usher_spark::labels;

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
        "Volcano schedules executors of policy {0} without a gang: an ownerReference would add them to the PodGroup of their driver; expected a gang (gang.enabled, gang.shape), or another scheduler"
    )]
    NoGang(String),
    /// A scheduler that groups by the topmost owner.
    #[error(
        "policy {0} uses a scheduler that groups pods by their topmost owner, or allows the override scheduler, which can select it: if a workload owns the driver, the webhook sets no ownerReference, and the fallback policy cannot check this; expected another scheduler, and no override scheduler"
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

/// The manifests, each policy with its binding: that of the owner, and if asked for that of the scheduler. With it, why there is none of
/// both, or only the first.
pub fn manifests(policies: &Policies, parameters: &Parameters) -> (Vec<Value>, Option<Refused>) {
    let owner = match owner_policy(policies, parameters) {
        Ok(owner) => owner,
        Err(refused) => return (Vec::new(), Some(refused)),
    };
    match parameters.scheduler.then(|| scheduler_policy(policies, parameters)) {
        None => (owner.into(), None),
        Some(Ok(scheduler)) => (owner.into_iter().chain(scheduler).collect(), None),
        Some(Err(refused)) => (owner.into(), Some(refused)),
    }
}

/// The policy that sets the owner.
fn owner_policy(policies: &Policies, parameters: &Parameters) -> Result<[Value; 2], Refused> {
    for policy in policies.listed() {
        let name = policy.scheduler.name.as_deref().unwrap_or(DEFAULT_SCHEDULER);
        for scheduler in regroup::schedulers(name, Some(policy.scheduler.gang_scheduler.kind)) {
            let is_gang = policy.gang.shape != Shape::Pods && policy.scheduler.gang_scheduler.kind == scheduler.kind;
            if scheduler.groups_by_owner && !is_gang {
                return Err(Refused::NoGang(policy.name.to_string()));
            }
            if scheduler.harmless_owners.is_some() {
                return Err(Refused::TopOwner(policy.name.to_string()));
            }
        }
        if policy.overrides.contains(&Override::Scheduler) {
            return Err(Refused::TopOwner(policy.name.to_string()));
        }
    }
    object::check_name(&parameters.name)?;
    let [name, _] = names(&parameters.name);
    with_binding(
        &name,
        spec(parameters, &[labels::ROLE_EXECUTOR], &owner_conditions(policies), &[OWNER_PATCH.to_owned()]),
    )
}

/// The policy that sets the scheduler.
fn scheduler_policy(policies: &Policies, parameters: &Parameters) -> Result<[Value; 2], Refused> {
    let [one] = policies.listed() else { return Err(Refused::Policies(policies.listed().len())) };
    let scheduler = one.scheduler.name.as_deref().ok_or_else(|| Refused::NoScheduler(one.name.to_string()))?;
    if one.scheduler.gang_scheduler.groups_by_owner {
        return Err(Refused::Volcano(one.name.to_string()));
    }
    let roles = [labels::ROLE_DRIVER, labels::ROLE_EXECUTOR];
    let mut spec = spec(parameters, &roles, &scheduler_conditions(one), &scheduler_patches(scheduler));
    let namespaces = cel::requirements(&one.matches.namespace_selector);
    let pods = cel::requirements(&one.matches.selector_of_pods());
    for (path, more) in [("namespaceSelector", namespaces), ("objectSelector", pods)] {
        let pointer = format!("/matchConstraints/{path}/matchExpressions");
        if let Some(Value::Array(there)) = spec.pointer_mut(&pointer) {
            there.extend(more);
        }
    }
    let [_, name] = names(&parameters.name);
    with_binding(&name, spec)
}

/// A policy and its binding.
fn with_binding(name: &str, spec: Value) -> Result<[Value; 2], Refused> {
    object::check_size(name, &spec)?;
    let hash = object::hash(&spec);
    let binding = object::object(MUTATING_BINDING, name, &hash, json!({"policyName": name}));
    Ok([object::object(MUTATING, name, &hash, spec), binding])
}

/// The owner of an executor: the pod that created it.
const OWNER: &str = r#"{"apiVersion": dyn("v1"), "kind": dyn("Pod"), "name": dyn(request.userInfo.extra["authentication.kubernetes.io/pod-name"][0]), "uid": dyn(request.userInfo.extra["authentication.kubernetes.io/pod-uid"][0]), "controller": dyn(true)}"#;
const OWNER_PATCH: &str = r#"has(object.metadata.ownerReferences) ? [JSONPatch{op: "add", path: "/metadata/ownerReferences/-", value: variables.owner}] : [JSONPatch{op: "add", path: "/metadata/ownerReferences", value: [variables.owner]}]"#;

/// The match conditions for setting an owner: name and expression.
fn owner_conditions(policies: &Policies) -> Vec<(String, String)> {
    let condition = |name: &str, expression: &str| (name.to_owned(), expression.to_owned());
    let mut out = vec![
        condition("executor-of-an-application", &has_entry(MetadataField::Label, labels::APP_SELECTOR)),
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
            &[
                r#"has(request.userInfo.extra) && ["authentication.kubernetes.io/pod-name", "authentication.kubernetes.io/pod-uid"].all(key, key in request.userInfo.extra && request.userInfo.extra[key].size() == 1) && "#,
                &cel::is_pod(
                    r#"request.userInfo.extra["authentication.kubernetes.io/pod-name"][0]"#,
                    r#"request.userInfo.extra["authentication.kubernetes.io/pod-uid"][0]"#,
                ),
            ]
            .concat(),
        ),
    ];
    out.extend(gang::TABLE.iter().flat_map(|scheduler| not_regrouped(scheduler, policies)));
    out.extend(not_skipped(policies.listed()));
    // One condition for all patterns: an API server accepts 64 conditions.
    if policies.creators_never().next().is_some() {
        let regex = quote(&any_of(policies.creators_never()));
        out.push(("creators-never".to_owned(), format!("!request.userInfo.username.matches({regex})")));
    }
    out
}

/// Excludes pods that an owner would move into another group of this scheduler.
fn not_regrouped(scheduler: &GangScheduler, policies: &Policies) -> Vec<(String, String)> {
    let names = json!(policies.scheduler_names(scheduler));
    let placed_by_another = format!("!has(object.spec.schedulerName) || !(object.spec.schedulerName in {names})");
    if scheduler.harmless_owners.is_some() {
        // The owners of the driver are not known.
        return vec![(format!("not-placed-by-{}", scheduler.kind), placed_by_another)];
    }
    let GroupKeyField::Metadata(place, key) = scheduler.group_key else { return Vec::new() };
    if !scheduler.groups_by_owner {
        return Vec::new();
    }
    // Volcano groups a pod without a key by its owner: an executor would join its driver's own group.
    let names_one = has_entry(place, key);
    let mut out =
        vec![(format!("no-{}-without-a-gang", scheduler.kind), format!("{placed_by_another} || {names_one}"))];
    if policies.iter().any(|policy| policy.scheduler.gang_scheduler.kind == scheduler.kind) {
        // The webhook adds no key to a pod of another gang.
        let of_another = scheduler.gang_keys.iter().map(|(place, key)| format!("!{}", has_entry(*place, key)));
        let of_no_other = of_another.collect::<Vec<_>>().join(" && ");
        out.push((format!("in-no-other-gang-of-{}", scheduler.kind), format!("{names_one} || {of_no_other}")));
    }
    out
}

/// Whether a pod has a label or annotation that is not empty.
fn has_entry(place: MetadataField, key: &str) -> String {
    let map = format!("object.metadata.{}", place.as_str());
    format!(r#"(has({map}) && "{key}" in {map} && {map}["{key}"] != "")"#)
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
        usher_spark::json::set(&mut spec, &["variables"], json!([{"name": "owner", "expression": OWNER}]));
    }
    spec
}
