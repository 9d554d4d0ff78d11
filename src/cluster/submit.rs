//! Creates what a submission consists of, and takes it back if that fails.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams, Preconditions, PropagationPolicy};
use kube::core::ApiResource;
use kube::{Api, Client};
use serde_json::Value;

use super::client::Brief;
use super::view::resource;
use crate::submission::DriverStatus;
use crate::submit::{Submission, Upload};

/// Requests that an API server answers with an error of its own are tried again this often, as Spark's client does.
const RETRIES: u32 = 3;
/// The pause before the first retry; it doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
/// Timeout of a request.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The field manager of the objects that the driver's pod owns.
const FIELD_MANAGER: &str = "spark-usher-submit";

/// Copies the local files. Only folders that this machine mounts can be their destination.
pub fn upload(uploads: &[Upload]) -> anyhow::Result<()> {
    for Upload { from, to } in uploads {
        let path = match to.split_once(':') {
            None => to.as_str(),
            Some(("file", path)) => path.strip_prefix("//").unwrap_or(path),
            Some((scheme, _)) => bail!(
                "cannot upload {from} to {to}: {scheme} is not supported; expected spark.kubernetes.file.upload.path to be a folder or \
                 file:///FOLDER that the driver mounts too, or files at addresses that the driver can read (local://, https://, s3a:// …)"
            ),
        };
        let copy = || -> std::io::Result<()> {
            if let Some(folder) = Path::new(path).parent() {
                std::fs::create_dir_all(folder)?;
            }
            std::fs::copy(from, path).map(|_| ())
        };
        copy().with_context(|| format!("cannot upload {from} to {to}"))?;
    }
    Ok(())
}

/// Creates the driver's pod and what it owns. If an object cannot be created, the pod is deleted, and with it what it owns.
/// Returns the pod as the API server created it.
pub async fn create(client: &Client, submission: &Submission) -> anyhow::Result<DriverStatus> {
    let namespace = &submission.namespace;
    let pods: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource("", "v1", "Pod", "pods"));
    let pod: DynamicObject = serde_json::from_value(submission.pod.clone())?;
    let name = pod.metadata.name.clone().unwrap_or_default();
    let what = format!("pod {namespace}/{name}");
    let created = retried(&what, "create", async || pods.create(&PostParams::default(), &pod).await).await?;
    let uid = created.metadata.uid.clone().unwrap_or_default();
    for object in submission.owned(&uid) {
        if let Err(error) = apply(client, namespace, &object, &PatchParams::apply(FIELD_MANAGER).force()).await {
            let precondition = Preconditions { uid: Some(uid.clone()), resource_version: None };
            let params = DeleteParams {
                preconditions: Some(precondition),
                propagation_policy: Some(PropagationPolicy::Background),
                ..DeleteParams::default()
            };
            return Err(match pods.delete(&name, &params).await {
                Ok(_) => error.context(format!("{what} was deleted again")),
                Err(failed) => {
                    error.context(format!("{what} is left behind: it could not be deleted: {}", Brief(&failed)))
                }
            });
        }
    }
    let driver = serde_json::to_string(&created)?;
    DriverStatus::read(&driver).ok_or_else(|| anyhow!("{what} was created, but the API server's answer cannot be read"))
}

/// Sends everything without storing it, and returns what the API server would store.
pub async fn dry_run(client: &Client, submission: &Submission) -> anyhow::Result<Vec<Value>> {
    let namespace = &submission.namespace;
    let pods: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource("", "v1", "Pod", "pods"));
    let pod: DynamicObject = serde_json::from_value(submission.pod.clone())?;
    let what = format!("pod {namespace}/{}", pod.metadata.name.as_deref().unwrap_or_default());
    let params = PostParams { dry_run: true, ..PostParams::default() };
    let created = retried(&what, "create", async || pods.create(&params, &pod).await).await?;
    let uid = created.metadata.uid.clone().unwrap_or_default();
    let mut all = vec![shown(created)?];
    for object in submission.owned(&uid) {
        let params = PatchParams { dry_run: true, ..PatchParams::apply(FIELD_MANAGER).force() };
        all.push(shown(apply(client, namespace, &object, &params).await?)?);
    }
    Ok(all)
}

/// Without what only the API server needs.
fn shown(mut object: DynamicObject) -> anyhow::Result<Value> {
    object.metadata.managed_fields = None;
    Ok(serde_json::to_value(object)?)
}

async fn apply(
    client: &Client,
    namespace: &str,
    object: &Value,
    params: &PatchParams,
) -> anyhow::Result<DynamicObject> {
    let kind = object.get("kind").and_then(Value::as_str).unwrap_or_default();
    let Some(of) = api(kind) else { bail!("{kind} is no kind that a submission creates") };
    let name = object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
    let objects: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &of);
    let what = format!("{kind} {namespace}/{name}");
    retried(&what, "patch", async || objects.patch(name, params, &Patch::Apply(object)).await).await
}

fn api(kind: &str) -> Option<ApiResource> {
    Some(match kind {
        "Service" => resource("", "v1", "Service", "services"),
        "ConfigMap" => resource("", "v1", "ConfigMap", "configmaps"),
        "Secret" => resource("", "v1", "Secret", "secrets"),
        "PersistentVolumeClaim" => resource("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims"),
        "NetworkPolicy" => resource("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies"),
        _ => return None,
    })
}

/// Tries again if the API server, or the way to it, fails.
async fn retried<T>(what: &str, verb: &str, request: impl AsyncFn() -> kube::Result<T>) -> anyhow::Result<T> {
    let mut pause = FIRST_PAUSE;
    let mut left = RETRIES;
    loop {
        let error = match tokio::time::timeout(TIMEOUT, request()).await {
            Ok(Ok(done)) => return Ok(done),
            Ok(Err(error)) => error,
            Err(_) => bail!("cannot {verb} {what}: no answer within {TIMEOUT:?}"),
        };
        let is_servers = matches!(&error, kube::Error::Api(status) if status.code >= 500);
        if left == 0 || !is_servers {
            return Err(anyhow!("cannot {verb} {what}: {}", Brief(&error)));
        }
        left -= 1;
        tokio::time::sleep(pause).await;
        pause *= 2;
    }
}
