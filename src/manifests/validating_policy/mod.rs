//! ValidatingAdmissionPolicies (`admissionregistration.k8s.io/v1`, Kubernetes 1.30 and newer): the API server evaluates
//! them itself, so `validate: Enforce` also holds while no replica runs.
//!
//! They cover the findings of [`validate`](crate::admission::validate()) that the request alone proves: a Pod owner that is not
//! the creating pod; owners, gang keys, role and application changed by an account that is not trusted; queues outside
//! `queues`. They never deny a pod because an owner or a gang is missing: the webhook sets both, and may be unavailable.
//! `tests/cluster/validating_policy.rs` compares the two; the chart has the same texts as templates (`tests/chart.py` compares).
//!
//! The `failurePolicy` is `Fail`. With `Ignore`, a tenant could pass by making an expression fail. Every expression is total:
//! each optional field is tested, loops run over constant lists of keys, and patterns are matched against bounded text only.
//! The one exception is a pod with more than a hundred thousand owners, which exceeds the cost limit. In a binding with
//! `[Warn, Audit]` an error warns, too.

mod choice;
mod compare;
mod parameters;
mod variables;

use ring::digest::{SHA256, digest};
use serde_json::{Value, json};

pub use compare::differences;
pub use parameters::Parameters;

use super::cel::quote;
use crate::annotations;
use crate::json::list;
use crate::policy::{Policies, Policy, Validate};
use crate::spark::labels;
use crate::text::is_dns_part;
use choice::{either, first, reachable, restricting};
use variables::variables;

/// Why no such objects are possible.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The name of an object would be invalid.
    #[error("{0:?} is not a valid object name: expected a-z, 0-9 and -, with a letter or digit at both ends")]
    Name(String),
    /// Not a user name.
    #[error(
        "invalid account {0:?}: expected a user name of the API server, such as system:serviceaccount:NAMESPACE:NAME"
    )]
    Account(String),
}

/// The manifests: a policy and its binding for each policy of the file that can match a pod, including the implicit last.
pub fn manifests(policies: &Policies, parameters: &Parameters) -> Result<Vec<Value>, Refused> {
    if !is_account(&parameters.account) {
        return Err(Refused::Account(parameters.account.clone()));
    }
    let all = reachable(policies);
    let mut out = Vec::new();
    for (index, policy) in all.iter().enumerate() {
        let name = format!("{}-{}", parameters.name, policy.name);
        if !(name.len() <= 200 && is_dns_part(&name)) {
            return Err(Refused::Name(name));
        }
        let name = format!("{name}{SUFFIX}");
        let actions = match policy.validate {
            Validate::Audit => json!(["Audit"]),
            Validate::Warn => json!(["Warn", "Audit"]),
            Validate::Enforce => json!(["Deny", "Audit"]),
        };
        let spec = spec(policies, &all, index, parameters);
        let binding = json!({"policyName": name, "validationActions": actions});
        let hash = hash(&json!({"binding": binding, "policy": spec}));
        for (kind, spec) in [(KIND, spec), (BINDING, binding)] {
            out.push(json!({
                "apiVersion": "admissionregistration.k8s.io/v1", "kind": kind,
                "metadata": {"name": name, "annotations": {annotations::POLICY_HASH: hash, annotations::POLICY_SET: parameters.name}}, "spec": spec,
            }));
        }
    }
    Ok(out)
}

/// The kind of a policy.
pub const KIND: &str = "ValidatingAdmissionPolicy";
/// The kind of a binding.
pub const BINDING: &str = "ValidatingAdmissionPolicyBinding";
/// The last part of the objects' names, by which alerts and the dashboard select them.
pub const SUFFIX: &str = ".spark-usher.io";

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

/// The first 16 hex digits of the SHA-256 of a document in Go's JSON format, so that the chart computes the same.
fn hash(document: &Value) -> String {
    let mut text = String::new();
    for c in document.to_string().chars() {
        match c {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => text.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => text.push(c),
        }
    }
    digest(&SHA256, text.as_bytes()).as_ref().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

fn spec(policies: &Policies, all: &[&Policy], index: usize, parameters: &Parameters) -> Value {
    let mut conditions = vec![json!({
        "name": "not-by-a-node",
        "expression": r#"!has(request.userInfo.username) || !request.userInfo.username.startsWith("system:node:")"#,
    })];
    // A request does not contain namespace labels; the variable `chosen` adds their conditions.
    let terms = |pod: &str| first(all, index, pod, false);
    if !terms("object").is_empty() {
        conditions.push(json!({"name": "of-this-policy", "expression": either(&terms)}));
    }
    let variables = variables(policies, all, index, parameters).into_iter();
    let variables: Vec<Value> =
        variables.map(|(name, expression)| json!({"name": name, "expression": expression})).collect();
    let queues = !restricting(all, index).is_empty();
    let validations: Vec<Value> = VALIDATIONS
        .iter()
        .filter(|validation| queues || validation.reason != "QueueNotAllowed")
        .map(|Validation { reason, expression, message }| {
            json!({
                "expression": format!("!variables.chosen || {expression}"),
                "message": format!("policy {} does not allow this creation or update of a Spark pod ({reason})", all.get(index).map_or("", |policy| &policy.name)),
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
        "matchConditions": conditions,
        "variables": variables,
        "validations": validations,
        "auditAnnotations": [{"key": "policy", "valueExpression": quote(all.get(index).map_or("", |policy| &policy.name))}],
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

/// The requirement that excludes these namespaces.
pub fn without(excluded: &[String]) -> Vec<Value> {
    vec![json!({"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": excluded})]
}

/// The requirements on namespace labels of a policy in the cluster.
pub fn namespaces_of(policy: &Value) -> Vec<Value> {
    list(policy, &["spec", "matchConstraints", "namespaceSelector", "matchExpressions"]).to_vec()
}

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
