//! Our MutatingWebhookConfiguration, as the demo and the tests register it. (The chart has its own, with more knobs.)

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::spark::labels;

/// The name of the configuration and of its webhook: API servers call them in the order of names, and Kueue and YuniKorn
/// should see what we set.
pub const NAME: &str = "00-spark-usher";

/// A configuration that sends the creation of Spark's pods to this URL. `namespaces` bounds it to those; empty means all.
pub fn mutating(url: &str, ca_pem: &str, namespaces: &[&str]) -> Value {
    let mut selector = vec![json!({
        "key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system"],
    })];
    if !namespaces.is_empty() {
        selector.push(json!({"key": "kubernetes.io/metadata.name", "operator": "In", "values": namespaces}));
    }
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": NAME},
        "webhooks": [{
            "name": "mutate.spark-usher.io",
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "failurePolicy": "Ignore",
            "timeoutSeconds": 2,
            // So that we see what others changed after us.
            "reinvocationPolicy": "IfNeeded",
            "matchPolicy": "Equivalent",
            "objectSelector": {"matchExpressions": [{
                "key": labels::ROLE, "operator": "In", "values": [labels::ROLE_DRIVER, labels::ROLE_EXECUTOR],
            }]},
            "namespaceSelector": {"matchExpressions": selector},
            "rules": [{
                "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"], "scope": "Namespaced",
            }],
            "clientConfig": {"url": url, "caBundle": STANDARD.encode(ca_pem)},
        }],
    })
}
