//! Secrets as files and as variables (`MountSecretsFeatureStep`, `EnvSecretsFeatureStep`).

use serde_json::json;

use crate::draft::{Draft, SubmitContext};
use crate::error::{Result, SubmitError};

pub(super) fn mount(context: &SubmitContext<'_>, draft: &mut Draft) -> Result<()> {
    for (secret, path) in context.prefixed("spark.kubernetes.driver.secrets.") {
        let volume = format!("{secret}-volume");
        draft.volume(json!({"name": volume, "secret": {"secretName": secret}}));
        draft.mount(json!({"name": volume, "mountPath": path}));
    }
    Ok(())
}

pub(super) fn env(context: &SubmitContext<'_>, draft: &mut Draft) -> Result<()> {
    for (variable, reference) in context.prefixed("spark.kubernetes.driver.secretKeyRef.") {
        // As the JVM splits: without what is empty at the end.
        let parts: Vec<&str> = reference.trim_end_matches(':').split(':').collect();
        let [name, key] = parts.as_slice() else {
            return Err(SubmitError::new("SecretKeyRef must be in the form name:key."));
        };
        draft.env_from(variable, json!({"secretKeyRef": {"name": name, "key": key}}));
    }
    Ok(())
}
