//! The creator policy: fixed ValidatingAdmissionPolicies (`admissionregistration.k8s.io/v1`, Kubernetes 1.30 and newer) by which the
//! API server itself vouches for the annotations [`CREATOR`] and [`SIGNATURE`](annotations::SIGNATURE).
//!
//! The webhook signs what a review states, and any client that reaches its port can post one. So a signature is worth what the API server
//! makes of it: no pod is stored whose stated creator is not the requester that the API server authenticated, and only
//! spark-usher changes these annotations later. No scheduler is exempt, nor is an account in `trustedWriters`. Only `system:masters`
//! is, to repair pods.
//!
//! The policies do not depend on the policy file, and no replica has to run for them. They judge every pod that has one of our
//! annotations, and no other: any account that may change a pod can remove its role and add it again. The `failurePolicy` is `Fail`, and every
//! expression is total (see [`validating_policy`]).

use serde_json::{Value, json};

use super::cel::{self, Variables};
use super::object::{self, Refused, SUFFIX, VALIDATING, VALIDATING_BINDING};
use super::validating_policy;
use crate::annotations::{self, CREATOR};
use crate::ownership::resolve::WORKLOAD_CONTROLLERS;
use crate::signature::{ACCOUNT, POD, POD_ELSEWHERE, WORKLOAD};
use usher_spark::labels;

/// The first part of the names, unless another is given.
pub const NAME: &str = "spark-usher";

/// The names of the policies of one installation: of pods, and of the metadata that a binding copies onto a pod.
pub fn names(name: &str) -> [String; 2] {
    [format!("{name}.creator{SUFFIX}"), format!("{name}.creator-binding{SUFFIX}")]
}

/// The manifests, each policy with its binding. `account` is the user name of spark-usher.
pub fn manifests(name: &str, account: &str) -> Result<Vec<Value>, Refused> {
    if !validating_policy::is_account(account) {
        return Err(Refused::Account(account.to_owned()));
    }
    object::check_name(name)?;
    let object = |kind: &str, name: &str, spec: Value| json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": name}, "spec": spec});
    let policies = names(name).into_iter().zip([pods(account), bindings(account)]);
    Ok(policies
        .flat_map(|(name, spec)| {
            let binding = json!({"policyName": name, "validationActions": ["Deny", "Audit"]});
            [object(VALIDATING, &name, spec), object(VALIDATING_BINDING, &name, binding)]
        })
        .collect())
}

/// Creations and changes of pods.
fn pods(account: &str) -> Value {
    let controllers = json!(WORKLOAD_CONTROLLERS);
    let mut variables = Variables::of_request();
    let mut add = |name: &str, expression: String| variables.add(name, expression);
    add("creator", format!(r#""{CREATOR}" in variables.annotations ? variables.annotations["{CREATOR}"] : """#));
    add("byAccount", format!(r#"variables.creator == "{ACCOUNT}" + variables.username"#));
    // `false` and not an error where there is no such pod: `&&` evaluates the left side first.
    let by_pod = |is_account: &str, text: String| {
        format!(
            "variables.podNames.size() == 1 && variables.podUids.size() == 1 && {is_account} && variables.creator == {text}"
        )
    };
    let of_namespace = r#"variables.username.startsWith("system:serviceaccount:" + request.namespace + ":")"#;
    let pod = r#"variables.podNames[0] + "/" + variables.podUids[0]"#;
    add(
        "byPod",
        by_pod(
            &format!(r#"{of_namespace} && variables.username != "system:serviceaccount:" + request.namespace + ":""#),
            format!(r#""{POD}" + {pod}"#),
        ),
    );
    add(
        "byPodElsewhere",
        by_pod(
            &format!(r#"variables.username.matches("^system:serviceaccount:[^:]+:.+$") && !{of_namespace}"#),
            format!(r#""{POD_ELSEWHERE}" + {pod} + "/" + variables.username"#),
        ),
    );
    add(
        "byWorkload",
        format!(
            r#"variables.username in {controllers} && has(object.metadata.ownerReferences) && object.metadata.ownerReferences.exists(owner, has(owner.controller) && owner.controller && variables.creator == "{WORKLOAD}" + owner.name + "/" + owner.uid)"#
        ),
    );
    add("stated", stated(&[CREATOR, annotations::SIGNATURE], "variables.annotations"));
    add("changed", cel::changed(&annotations::PROTECTED, "annotations", "oldAnnotations"));
    add("who", who());
    let new = r#"request.operation != "CREATE" || variables.stated.size() == 0 || variables.byAccount || variables.byPod || variables.byPodElsewhere || variables.byWorkload"#;
    let unchanged = r#"request.operation != "UPDATE" || variables.changed.size() == 0"#;
    let validations = [
        validation(
            new,
            r#""the pod has " + variables.stated.join(", ") + ", and " + variables.who + " is not the creator that it states: remove it from the pod template""#,
        ),
        validation(
            unchanged,
            r#"variables.who + " changed " + variables.changed.join(", ") + ", which only spark-usher may change: leave it as it is""#,
        ),
    ];
    let present = |object: &str| {
        format!(
            "has({object}.metadata.annotations) && {}.exists(key, key in {object}.metadata.annotations)",
            json!(annotations::PROTECTED)
        )
    };
    let of_ours = format!(r#"{} || request.operation == "UPDATE" && {}"#, present("object"), present("oldObject"));
    let rules = json!([
        {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE", "UPDATE"], "scope": "Namespaced"},
        {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods/status"], "operations": ["UPDATE"], "scope": "Namespaced"},
    ]);
    spec(rules, account, &of_ours, variables, &validations)
}

/// Bindings, whose annotations and labels the API server copies onto the pod (`pkg/registry/core/pod/storage/storage.go`,
/// `setPodNodeAndMetadata`).
///
/// Volcano sends the annotations that the pod has (`pkg/scheduler/cache/cache.go`, `DefaultBinder`), and a policy cannot read the pod
/// to compare. So annotations may come from schedulers: from kube-scheduler, and from service accounts of other namespaces than the
/// pod's. No scheduler sets the label of the role.
fn bindings(account: &str) -> Value {
    let mut variables = Variables::of_request();
    let mut add = |name: &str, expression: String| variables.add(name, expression);
    add("stated", stated(&annotations::PROTECTED, "variables.annotations"));
    add("labelled", stated(&[labels::APP_SELECTOR, labels::ROLE], "variables.labels"));
    add(
        "byScheduler",
        r#"variables.username == "system:kube-scheduler" || variables.username.startsWith("system:serviceaccount:") && !variables.username.startsWith("system:serviceaccount:" + request.namespace + ":")"#.to_owned(),
    );
    add("who", who());
    let validations = [
        validation(
            "variables.stated.size() == 0 || variables.byScheduler",
            r#"variables.who + " binds a pod with " + variables.stated.join(", ") + ", which only spark-usher may change: bind it without metadata""#,
        ),
        validation(
            "variables.labelled.size() == 0",
            r#"variables.who + " binds a pod with the label " + variables.labelled.join(", ") + ": bind it without metadata""#,
        ),
    ];
    let rules = json!([
        {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods/binding", "bindings"], "operations": ["CREATE"], "scope": "Namespaced"},
    ]);
    let with_metadata = "has(object.metadata.annotations) || has(object.metadata.labels)";
    spec(rules, account, with_metadata, variables, &validations)
}

/// Those of a constant list of keys that a map has.
fn stated(keys: &[&str], map: &str) -> String {
    format!("{}.filter(key, key in {map})", json!(keys))
}

fn who() -> String {
    cel::shown("variables.username", "true", "this account")
}

fn validation(expression: &str, message: &str) -> Value {
    json!({
        "expression": expression, "message": "the annotations of spark-usher are protected", "messageExpression": message,
        "reason": "Forbidden",
    })
}

fn spec(rules: Value, account: &str, of_ours: &str, variables: Variables, validations: &[Value]) -> Value {
    json!({
        "failurePolicy": "Fail",
        "matchConstraints": {"matchPolicy": "Equivalent", "resourceRules": rules},
        "matchConditions": [
            {"name": "with-metadata-of-spark-usher", "expression": of_ours},
            {
                "name": "not-by-spark-usher",
                "expression": format!("!has(request.userInfo.username) || request.userInfo.username != {}", cel::quote(account)),
            },
            {
                "name": "not-by-system-masters",
                "expression": r#"!has(request.userInfo.groups) || !("system:masters" in request.userInfo.groups)"#,
            },
        ],
        "variables": variables.used_by(validations),
        "validations": validations,
    })
}
