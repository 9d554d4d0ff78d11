//! What the driver authenticates with (`DriverKubernetesCredentialsFeatureStep`).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, json};

use crate::draft::{Draft, SubmitContext};
use crate::error::{Result, SubmitError};

const PREFIX: &str = "spark.kubernetes.authenticate.driver.";
const MOUNT: &str = "/mnt/secrets/spark-kubernetes-credentials";
const VOLUME: &str = "kubernetes-credentials";
const REDACTED: &str = "<present_but_redacted>";

pub(super) fn configure(context: &SubmitContext<'_>, draft: &mut Draft) -> Result<()> {
    let conf = context.conf();
    let key = |name: &str| format!("{PREFIX}{name}");
    let mut data = Map::new();
    let mut mounted = Vec::new();
    if let Some(token) = conf.get(&key("oauthToken")) {
        data.insert("oauth-token".into(), json!(STANDARD.encode(token)));
        mounted.push(("oauthTokenFile", "oauth-token"));
    }
    for (name, entry, what) in [
        ("caCertFile", "ca-cert", "CA cert"),
        ("clientKeyFile", "client-key", "client key"),
        ("clientCertFile", "client-cert", "client cert"),
    ] {
        if let Some(path) = conf.get(&key(name)) {
            let absolute = context.files.absolute(path);
            let content = context.files.read(path).map_err(|why| {
                SubmitError::new(format!(
                    "Driver {what} file provided at {absolute} does not exist or is not a file. ({}: {why})",
                    key(name)
                ))
            })?;
            data.insert(entry.into(), json!(STANDARD.encode(content)));
            mounted.push((name, entry));
        }
    }
    let service_account = conf.get(&key("serviceAccountName"));
    if data.is_empty() {
        if let Some(account) = service_account {
            draft.spec.insert("serviceAccount".into(), json!(account));
            draft.spec.insert("serviceAccountName".into(), json!(account));
        }
    } else {
        if service_account.is_some() {
            draft.warnings.push(format!(
                "{PREFIX}serviceAccountName is ignored, because other credentials of the driver are given"
            ));
        }
        let name = format!("{}-kubernetes-credentials", context.prefix);
        draft.volume(json!({"name": VOLUME, "secret": {"secretName": name}}));
        draft.mount(json!({"name": VOLUME, "mountPath": MOUNT}));
        draft.resources.push(
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": data, "immutable": true}),
        );
    }
    let redacted: Vec<String> =
        conf.iter().map(|(key, _)| key).filter(|key| key.ends_with("oauthToken")).map(str::to_owned).collect();
    for key in redacted {
        draft.property(&key, REDACTED);
    }
    for (name, entry) in mounted {
        let key = key(&format!("mounted.{name}"));
        if conf.get(&key).is_none() {
            draft.property(&key, format!("{MOUNT}/{entry}"));
        }
    }
    Ok(())
}
