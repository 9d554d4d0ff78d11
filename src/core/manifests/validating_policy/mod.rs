//! ValidatingAdmissionPolicies (`admissionregistration.k8s.io/v1`, Kubernetes 1.30 and newer): the API server evaluates
//! them itself, so `validate: Enforce` also holds while no replica runs.
//!
//! They cover the findings of [`validate`](crate::admission::validate()) that the request alone proves: a Pod owner that is not
//! the creating pod; owners, gang keys, role and application changed by an account that is not trusted; queues outside
//! `queues`. They never deny a pod because an owner or a gang is missing: the webhook sets both, and may be unavailable.
//! `tests/cluster/validating_policy.rs` compares the two.
//!
//! There is one policy object for each `validate` mode that a policy of the file has, because the mode is an action of the binding.
//! Each knows all policies of the file, and judges the pods whose policies have its mode. If an update moves a pod to a policy of
//! another mode, the stricter of both judges it.
//!
//! Several objects cannot be written in one step. So a new policy file becomes a new set of objects beside the old one, in the other of
//! two [slots](Slot); the old set is deleted when the new one is in force ([`converge`](super::converge)).
//!
//! The `failurePolicy` is `Fail`. With `Ignore`, a tenant could pass by making an expression fail. Every expression is total:
//! each optional field is tested, loops run over constant lists of keys, and patterns are matched against bounded text only.
//! What can exceed the cost limit is a pod with more than a hundred thousand owners, and an account with hundreds of groups where
//! the file has a long list of `trustedWriters`. In a binding with
//! `[Warn, Audit]` an error warns, too.

mod choice;
mod variables;

use serde_json::{Value, json};

use super::object::{self, Refused, SUFFIX, VALIDATING, VALIDATING_BINDING};
use crate::policy::{Policies, Policy, Validate};
use choice::reachable;
use usher_spark::labels;
use usher_spark::text::{is_dns_part, vocabulary};
use variables::variables;

/// The parameters of the manifests.
#[derive(Clone, Debug)]
pub struct Parameters {
    /// The first part of the objects' names.
    pub name: String,
    /// Requirements on the namespace's labels, as `matchExpressions`.
    pub namespaces: Vec<Value>,
    /// The user name of spark-usher's own account, which may change owners and gang keys.
    pub account: String,
}

vocabulary! {
    /// One of two sets of names.
    Slot
    /// The first set, and that of `spark-usher policy`.
    A = "a";
    /// The second set.
    B = "b";
}

impl Slot {
    /// The names of all policies and bindings that this slot can have.
    pub fn names(self, name: &str) -> [String; 3] {
        MODES.map(|mode| object_name(name, mode, self))
    }
}

const MODES: [Validate; 3] = [Validate::Audit, Validate::Warn, Validate::Enforce];

fn object_name(name: &str, mode: Validate, slot: Slot) -> String {
    let mode = match mode {
        Validate::Audit => "audit",
        Validate::Warn => "warn",
        Validate::Enforce => "enforce",
    };
    format!("{name}.{mode}-{}{SUFFIX}", slot.as_str())
}

/// The manifests of both slots, which differ only in their names: a policy and its binding for each mode that a policy of the file
/// has, including the implicit last.
pub fn manifests(policies: &Policies, parameters: &Parameters) -> Result<[Vec<Value>; 2], Refused> {
    if !is_account(&parameters.account) {
        return Err(Refused::Account(parameters.account.clone()));
    }
    object::check_name(&parameters.name)?;
    let all = reachable(policies);
    let modes = MODES.into_iter().filter(|mode| all.iter().any(|policy| policy.validate == *mode));
    let specs: Vec<(Validate, Value)> = modes.map(|mode| (mode, spec(policies, &all, mode, parameters))).collect();
    let hash = object::hash(&specs.iter().map(|(mode, spec)| json!([format!("{mode:?}"), spec])).collect());
    for (mode, spec) in &specs {
        object::check_size(&object_name(&parameters.name, *mode, Slot::A), spec)?;
    }
    let pair = |slot: Slot, mode: Validate, spec: &Value| {
        let name = object_name(&parameters.name, mode, slot);
        let actions = match mode {
            Validate::Audit => json!(["Audit"]),
            Validate::Warn => json!(["Warn", "Audit"]),
            Validate::Enforce => json!(["Deny", "Audit"]),
        };
        let binding = json!({"policyName": name, "validationActions": actions});
        [
            object::object(VALIDATING, &name, &hash, spec.clone()),
            object::object(VALIDATING_BINDING, &name, &hash, binding),
        ]
    };
    Ok(Slot::ALL.map(|slot| specs.iter().flat_map(|(mode, spec)| pair(slot, *mode, spec)).collect()))
}

/// Whether a text is a plausible user name. A service account's name is often given without its prefix.
pub(super) fn is_account(name: &str) -> bool {
    let odd = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '*' | '?');
    let parts: Vec<&str> = name.split(':').collect();
    let sound = match parts.as_slice() {
        ["system", "serviceaccount", rest @ ..] => {
            rest.len() == 2 && rest.iter().all(|part| !part.is_empty() && !part.contains('/'))
        }
        ["system", "serviceaccounts", ..] => false,
        // NAMESPACE:NAME and NAMESPACE/NAME.
        [namespace, name] => !(is_dns_part(namespace) && is_dns_part(name)),
        [one] => one.split_once('/').is_none_or(|(namespace, name)| !(is_dns_part(namespace) && is_dns_part(name))),
        _ => true,
    };
    !name.is_empty() && !name.contains(odd) && sound
}

fn spec(policies: &Policies, all: &[&Policy], mode: Validate, parameters: &Parameters) -> Value {
    let variables = variables(policies, all, mode, &parameters.account);
    let queues = variables.has("foreignQueues");
    let validations: Vec<Value> = VALIDATIONS
        .iter()
        .filter(|validation| queues || validation.reason != "QueueNotAllowed")
        .map(|Validation { reason, expression, message }| {
            json!({
                "expression": format!("!variables.applies || {expression}"),
                "message": format!("the policy of this Spark pod does not allow its creation or update ({reason})"),
                "messageExpression": format!("{message} + \" ({reason})\""),
                "reason": "Forbidden",
            })
        })
        .collect();
    json!({
        "failurePolicy": "Fail",
        "matchConstraints": {
            "matchPolicy": "Equivalent",
            "namespaceSelector": {"matchExpressions": parameters.namespaces},
            "objectSelector": {"matchExpressions": [
                {"key": labels::ROLE, "operator": "In", "values": [labels::ROLE_DRIVER, labels::ROLE_EXECUTOR]},
            ]},
            "resourceRules": [
                {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE", "UPDATE"], "scope": "Namespaced"},
                {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods/status"], "operations": ["UPDATE"], "scope": "Namespaced"},
            ],
        },
        "matchConditions": [{
            "name": "not-by-a-node",
            "expression": r#"!has(request.userInfo.username) || !request.userInfo.username.startsWith("system:node:")"#,
        }],
        "variables": variables.into_manifest(),
        "validations": validations,
        // An API server leaves an empty one out.
        "auditAnnotations": [{"key": "policy", "valueExpression": r#"variables.applies ? variables.policyName : """#}],
    })
}

/// A finding: its reason as in [`Reason`](crate::reason::Reason), the expression that holds without it, and its message.
struct Validation {
    reason: &'static str,
    expression: &'static str,
    message: &'static str,
}

const VALIDATIONS: [Validation; 5] = [
    Validation {
        reason: "OwnerNotCreator",
        expression: r#"request.operation != "CREATE" || !variables.namesDriver || variables.never || variables.createdByOwner || variables.trusted"#,
        message: r#""the executor names " + variables.driver + " as its driver, but another pod created it, with the account " + variables.who + ": let Spark or spark-usher set the ownerReference""#,
    },
    Validation {
        reason: "ApplicationChanged",
        expression: r#"request.operation != "UPDATE" || variables.changedIdentity.size() == 0 || variables.trusted"#,
        message: r#"variables.who + " changed " + variables.changedIdentity.join(", ") + " (the role and application of the pod): to allow this, list the account in trustedWriters""#,
    },
    Validation {
        reason: "OwnerChanged",
        expression: r#"request.operation != "UPDATE" || variables.sameOwners || variables.trusted"#,
        message: r#"variables.who + " changed the ownerReferences, through which the pod is deleted with its driver: to allow this, list the account in trustedWriters""#,
    },
    Validation {
        reason: "SchedulingChanged",
        expression: r#"request.operation != "UPDATE" || variables.changedKeys.size() == 0 || variables.trusted"#,
        message: r#"variables.who + " changed " + variables.changedKeys.join(", ") + ", on which scheduling depends: to allow this, list the account in trustedWriters""#,
    },
    Validation {
        reason: "QueueNotAllowed",
        expression: r#"variables.foreignQueues.size() == 0 || request.operation == "UPDATE" && variables.trusted"#,
        message: r#""namespace " + request.namespace + " may not use " + variables.queue + ": use another queue, or add it to the policy's queues""#,
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn account_without_the_prefix_of_service_accounts_is_not_a_user_name() {
        for name in ["system:serviceaccount:a:b", "alice", "oidc:spark.usher", "x/y.z", "CN=admin", "a:b:c"] {
            assert!(is_account(name), "{name}");
        }
        for name in ["", "a:b", "a/b", "system:serviceaccount:a", "system:serviceaccounts:a", "a b", "a*"] {
            assert!(!is_account(name), "{name}");
        }
    }
}
