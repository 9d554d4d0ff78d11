//! Pod templates: the driver's is where its pod begins (`KubernetesUtils.loadPodFromTemplate`), the executors' travels in a ConfigMap
//! (`PodTemplateConfigMapStep`).

use serde_json::{Value, json};

use crate::draft::{Draft, SubmitContext};
use crate::error::{Result, SubmitError};
use crate::options::local_path;
use crate::pod_template::{self, Template};

const DRIVER_FILE: &str = "spark.kubernetes.driver.podTemplateFile";
const DRIVER_CONTAINER: &str = "spark.kubernetes.driver.podTemplateContainerName";
const EXECUTOR_FILE: &str = "spark.kubernetes.executor.podTemplateFile";
const FOLDER: &str = "/opt/spark/pod-template";
const FILE: &str = "pod-spec-template.yml";
/// The key of the executors' template in its ConfigMap.
pub(crate) const KEY: &str = "podspec-configmap-key";
const VOLUME: &str = "pod-template-volume";

/// Where the driver's pod begins: with the template, or empty.
pub(crate) fn load(context: &SubmitContext<'_>) -> Result<Draft> {
    let mut draft = Draft::default();
    let Some(path) = context.conf().get(DRIVER_FILE) else { return Ok(draft) };
    let unloaded =
        |why: String| SubmitError::new(format!("Could not load pod from template file. ({DRIVER_FILE} {path}: {why})"));
    let content = context.files.read(&local_path(path)).map_err(&unloaded)?;
    let text = String::from_utf8(content).map_err(|_| unloaded("expected UTF-8".to_owned()))?;
    let Template { mut pod, unknown } = pod_template::read(&text, context.is_since(4, 0)).map_err(&unloaded)?;
    if !unknown.is_empty() {
        let fields = unknown.join(", ");
        draft.warnings.push(format!("{path}: sent as it is, although it is not known as a field of a Pod: {fields}"));
    }
    let mut object = |key: &str| match pod.remove(key) {
        Some(Value::Object(found)) => Some(found),
        _ => None,
    };
    draft.metadata = object("metadata").unwrap_or_default();
    if let Some(namespace) = draft.metadata.get_mut("namespace") {
        *namespace = json!(context.namespace());
    }
    // What else a template states is not sent.
    draft.spec = object("spec").ok_or_else(|| unloaded("expected a spec".to_owned()))?;
    let containers = match draft.spec.remove("containers") {
        Some(Value::Array(containers)) => containers,
        _ => Vec::new(),
    };
    let wanted = context.conf().get(DRIVER_CONTAINER);
    let name = |container: &Value| container.get("name").and_then(Value::as_str).map(str::to_owned);
    let mut named =
        containers.iter().enumerate().filter(|(_, container)| wanted.is_some() && name(container).as_deref() == wanted);
    // A name that several have counts as none.
    let named = named.next().filter(|_| named.next().is_none()).map(|(at, _)| at);
    if let (Some(wanted), None) = (wanted, named) {
        draft.warnings.push(format!(
            "specified container {wanted} not found on pod template, falling back to taking the first container"
        ));
    }
    let at = named.unwrap_or(0);
    for (number, container) in containers.into_iter().enumerate() {
        match container {
            Value::Object(container) if number == at => draft.container = container,
            other => crate::draft::push(&mut draft.spec, "containers", other),
        }
    }
    Ok(draft)
}

pub(super) fn configure(context: &SubmitContext<'_>, draft: &mut Draft) -> Result<()> {
    let Some(path) = context.conf().get(EXECUTOR_FILE) else { return Ok(()) };
    let content = context.text(&local_path(path), EXECUTOR_FILE)?;
    let name = format!("{}-driver-podspec-conf-map", context.prefix);
    draft.volume(json!({"name": VOLUME, "configMap": {"name": name, "items": [{"key": KEY, "path": FILE}]}}));
    draft.mount(json!({"name": VOLUME, "mountPath": FOLDER}));
    draft.property(EXECUTOR_FILE, format!("{FOLDER}/{FILE}"));
    draft.resources.push(json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "immutable": true, "data": {KEY: content}}));
    Ok(())
}
