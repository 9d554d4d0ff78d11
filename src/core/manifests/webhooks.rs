//! Our webhook configurations, as the demo and the tests register them. (The chart has its own, with more settings.)

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use usher_spark::labels;

/// The name of the mutating configuration: API servers call webhooks in the order of these names, and those of Kueue and
/// YuniKorn should see the fields that we set.
pub const NAME: &str = "00-spark-usher";
/// The name of the validating configuration. Validating webhooks are called in parallel.
pub const VALIDATING_NAME: &str = "spark-usher";

/// A configuration that sends creations of Spark's pods to this URL, in these namespaces; none means all.
pub fn mutating(url: &str, ca_pem: &str, namespaces: &[&str]) -> Value {
    let mut webhook = webhook("mutate.spark-usher.io", url, ca_pem, namespaces, &["CREATE"]);
    // So that the webhook is called again after webhooks that run later changed the pod.
    usher_spark::json::set(&mut webhook, &["reinvocationPolicy"], "IfNeeded");
    configuration("MutatingWebhookConfiguration", NAME, webhook)
}

/// A configuration that sends the final state of Spark's new pods, and their updates, to this URL for validation.
pub fn validating(url: &str, ca_pem: &str, namespaces: &[&str]) -> Value {
    let mut webhook = webhook("validate.spark-usher.io", url, ca_pem, namespaces, &["CREATE", "UPDATE"]);
    // An update of the status can change labels and annotations, too.
    if let Some(rules) = webhook.get_mut("rules").and_then(Value::as_array_mut) {
        rules.push(json!({"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods/status"],
            "operations": ["UPDATE"], "scope": "Namespaced"}));
    }
    configuration("ValidatingWebhookConfiguration", VALIDATING_NAME, webhook)
}

fn configuration(kind: &str, name: &str, webhook: Value) -> Value {
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": name},
        "webhooks": [webhook],
    })
}

fn webhook(name: &str, url: &str, ca_pem: &str, namespaces: &[&str], operations: &[&str]) -> Value {
    let mut selector = vec![json!({
        "key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system"],
    })];
    if !namespaces.is_empty() {
        selector.push(json!({"key": "kubernetes.io/metadata.name", "operator": "In", "values": namespaces}));
    }
    json!({
        "name": name,
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": "Ignore",
        "timeoutSeconds": 2,
        "matchPolicy": "Equivalent",
        "objectSelector": {"matchExpressions": [{
            "key": labels::ROLE, "operator": "In", "values": [labels::ROLE_DRIVER, labels::ROLE_EXECUTOR],
        }]},
        "namespaceSelector": {"matchExpressions": selector},
        "rules": [{
            "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": operations, "scope": "Namespaced",
        }],
        "clientConfig": {"url": url, "caBundle": STANDARD.encode(ca_pem)},
    })
}
