//! Executors accept connections of their own application only (`NetworkPolicyFeatureStep`, since 4.2).

use serde_json::json;

use crate::draft::{Draft, SubmitContext};
use crate::error::Result;
use usher_spark::labels;

pub(super) fn configure(context: &SubmitContext<'_>, draft: &mut Draft) -> Result<()> {
    if !context.is_since(4, 2) {
        return Ok(());
    }
    let selector = json!({labels::APP_SELECTOR: context.app_id});
    draft.resources.push(json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"name": format!("{}-policy", context.prefix), "namespace": context.namespace(), "labels": selector},
        "spec": {
            "podSelector": {"matchLabels": {labels::ROLE: labels::ROLE_EXECUTOR, labels::APP_SELECTOR: context.app_id}},
            "ingress": [{"from": [{"podSelector": {"matchLabels": selector}}]}],
        },
    }));
    Ok(())
}
