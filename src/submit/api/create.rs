//! Creates what a submission consists of, and takes it back if that fails.

use std::time::Duration;

use anyhow::{anyhow, bail};
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams, Preconditions, PropagationPolicy};
use kube::core::ApiResource;
use kube::{Api, Client};
use serde_json::Value;

use crate::Submission;
use crate::submission::DriverStatus;
use usher_core::gang::QueueObject;
use usher_core::snapshot::Namespace;
use usher_kube::request::{Attempts, Error, call, retried};
use usher_kube::view::{Viewed, pods, resource};
use usher_runtime::shutdown::Interrupt;
use usher_spark::labels::APP_SELECTOR;

/// Timeout of a request.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The field manager of the objects that the driver's pod owns.
const FIELD_MANAGER: &str = "spark-usher-submit";

/// Why a submission failed.
#[derive(Debug)]
pub struct Failure {
    /// What failed.
    pub error: anyhow::Error,
    /// What became of the driver's pod, if it had been created.
    pub pod: Option<String>,
}

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Failure {
        Failure { error: error.into(), pod: None }
    }
}

/// Creates the driver's pod and what it owns. If an object cannot be created, or a signal comes, the pod is deleted, and with it what it
/// owns. Returns the pod as the API server created it.
pub async fn create(
    client: &Client,
    submission: &Submission,
    interrupt: &mut Interrupt,
) -> Result<DriverStatus, Failure> {
    let namespace = &submission.namespace;
    let pods: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &pods());
    let pod: DynamicObject = serde_json::from_value(submission.pod.clone())?;
    let name = pod.metadata.name.clone().unwrap_or_default();
    let what = format!("pod {namespace}/{name}");
    let created = create_pod(&pods, &pod, &submission.app_id, &what, interrupt).await;
    let created = created.map_err(|error| if interrupt.has_come() { error.context(Interrupted) } else { error })?;
    let uid = created.metadata.uid.clone().unwrap_or_default();
    let all = async {
        for object in submission.owned(&uid) {
            apply(client, namespace, &object, &PatchParams::apply(FIELD_MANAGER).force()).await?;
        }
        let driver = DriverStatus::read(&serde_json::to_string(&created)?);
        driver.ok_or_else(|| anyhow!("the API server's answer to the creation of {what} cannot be read"))
    };
    let done = tokio::select! {
        biased;
        () = interrupt.wait() => Err(Interrupted.into()),
        done = all => done,
    };
    let error = match done {
        Ok(driver) => return Ok(driver),
        Err(error) => error,
    };
    let params = DeleteParams {
        preconditions: Some(Preconditions { uid: Some(uid), resource_version: None }),
        propagation_policy: Some(PropagationPolicy::Background),
        ..DeleteParams::default()
    };
    let pod = match retried(TIMEOUT, async || pods.delete(&name, &params).await).await {
        Ok(_) | Err(Error::NotFound(_)) => format!("{what} was deleted again"),
        Err(failed) => format!(
            "{what} is left behind, `kubectl delete pod -n {namespace} {name}` deletes it and what it owns: it could not be deleted: {failed}"
        ),
    };
    Err(Failure { error, pod: Some(pod) })
}

/// A signal ended the submission.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("interrupted")]
pub struct Interrupted;

/// The pod could not be created, as far as is known; but it may exist.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct MayExist(String);

/// Creates the pod. Where an answer is lost, the pod is looked for: it is ours if it has the id of the application.
async fn create_pod(
    pods: &Api<DynamicObject>,
    pod: &DynamicObject,
    app_id: &str,
    what: &str,
    interrupt: &mut Interrupt,
) -> anyhow::Result<DynamicObject> {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let mut attempts = Attempts::default();
    let mut may_exist = false;
    loop {
        if interrupt.has_come() {
            return Err(if may_exist {
                MayExist(format!("{what} may exist")).into()
            } else {
                anyhow!("nothing was created")
            });
        }
        let params = PostParams::default();
        let sent = call(TIMEOUT, async { pods.create(&params, pod).await.map_err(Error::from) }).await;
        let error = match sent {
            Ok(created) if created.metadata.uid.as_ref().is_some_and(|uid| !uid.is_empty()) => return Ok(created),
            // A proxy may have sent this answer after it passed the request on.
            Ok(_) => Error::Malformed("the answer: it is not a pod".to_owned()),
            Err(error) => error,
        };
        may_exist |= error.may_be_done();
        if may_exist {
            match retried(TIMEOUT, async || pods.get_opt(name).await).await {
                Ok(Some(found))
                    if found.metadata.labels.as_ref().and_then(|all| all.get(APP_SELECTOR)).map(String::as_str)
                        == Some(app_id) =>
                {
                    return Ok(found);
                }
                Ok(_) => {}
                Err(unknown) => {
                    return Err(MayExist(format!(
                        "cannot create {what}: {error}; it may exist all the same: it cannot be looked for: {unknown}"
                    ))
                    .into());
                }
            }
        }
        match attempts.pause(&error) {
            Some(pause) => {
                tokio::select! {
                    () = tokio::time::sleep(pause) => {}
                    () = interrupt.wait() => {}
                }
            }
            // A request that was not answered may still be processed.
            None if matches!(error, Error::Timeout(_)) => {
                return Err(MayExist(format!(
                    "cannot create {what}: {error}; it does not exist yet, but the API server may still create it"
                ))
                .into());
            }
            None => return Err(anyhow::Error::from(error).context(format!("cannot create {what}"))),
        }
    }
}

/// The labels and annotations of a namespace; `None` if they cannot be read.
pub async fn namespace(client: &Client, name: &str) -> Option<Namespace> {
    let kind = resource("", "v1", "Namespace", "namespaces");
    let namespaces: Api<Viewed<Namespace>> = Api::all_with(client.clone(), &kind);
    retried(TIMEOUT, async || namespaces.get(name).await).await.ok()?.view
}

/// A queue of a scheduler; `None` if it does not exist.
pub async fn queue(client: &Client, object: &QueueObject, name: &str) -> Result<Option<Value>, Error> {
    let kind = resource(object.group, object.version, object.kind, object.plural);
    let queues: Api<DynamicObject> = Api::all_with(client.clone(), &kind);
    match retried(TIMEOUT, async || queues.get(name).await).await {
        Ok(found) => Ok(serde_json::to_value(found).ok()),
        // Otherwise the API is missing.
        Err(Error::NotFound(status)) if status.details.as_ref().is_some_and(|details| details.name == name) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Sends everything without storing it, and returns what the API server would store.
pub async fn dry_run(client: &Client, submission: &Submission) -> anyhow::Result<Vec<Value>> {
    let namespace = &submission.namespace;
    let pods: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &pods());
    let pod: DynamicObject = serde_json::from_value(submission.pod.clone())?;
    let what = format!("pod {namespace}/{}", pod.metadata.name.as_deref().unwrap_or_default());
    let params = PostParams { dry_run: true, ..PostParams::default() };
    let created = retried(TIMEOUT, async || pods.create(&params, &pod).await).await;
    let created = created.map_err(|error| anyhow!("cannot create {what}: {error}"))?;
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
    let Some(resource) = api(kind) else { bail!("{kind} is no kind that a submission creates") };
    let name = object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
    let objects: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
    let what = format!("{kind} {namespace}/{name}");
    let patched = retried(TIMEOUT, async || objects.patch(name, params, &Patch::Apply(object)).await).await;
    patched.map_err(|error| anyhow!("cannot patch {what}: {error}"))
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
