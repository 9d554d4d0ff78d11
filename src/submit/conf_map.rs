//! The ConfigMap with the driver's configuration (`KubernetesClientUtils`).

use serde_json::{Map, Value, json};

use super::draft::{Draft, SubmitContext, push};
use super::error::{Result, SubmitError};
use super::options;
use usher_spark::{labels, properties};

const FOLDER: &str = "/opt/spark/conf";
/// Its name since Spark 3.1.
const VOLUME: &str = labels::DRIVER_CONF_VOLUMES[0];
const NAMESPACE: &str = "spark.kubernetes.namespace";
/// The most that an API server takes.
const MAX_BYTES: u64 = 1_048_576;

/// Adds the ConfigMap, and the container to the pod.
pub(super) fn finish(context: &SubmitContext<'_>, draft: &mut Draft) -> Result<()> {
    let name = format!("spark-drv-{}-conf-map", context.unique.id(2));
    let mut files = conf_files(context, draft)?;
    let mut all = context.conf().clone();
    for (key, value) in &draft.properties {
        all.set(key, value.clone());
    }
    let mut text = format!("#Java properties built from Kubernetes config map with name: {name}\n");
    all.iter().for_each(|(key, value)| properties::write(key, value, &mut text));
    files.insert(labels::PROPERTIES_KEY.to_owned(), json!(text));
    let items: Vec<Value> = files.keys().map(|key| json!({"key": key, "path": key, "mode": 420})).collect();
    draft.env("SPARK_CONF_DIR", FOLDER);
    draft.mount(json!({"name": VOLUME, "mountPath": FOLDER}));
    draft.volume(json!({"name": VOLUME, "configMap": {"name": name, "items": items}}));
    files.insert(NAMESPACE.to_owned(), json!(context.namespace()));
    draft.resources.push(json!({"apiVersion": "v1", "kind": "ConfigMap", "immutable": true, "data": files,
        "metadata": {"name": name, "namespace": context.namespace()}}));
    let container = std::mem::take(&mut draft.container);
    push(&mut draft.spec, "containers", Value::Object(container));
    Ok(())
}

/// The files of the configuration's folder, the smallest first as long as they fit.
fn conf_files(context: &SubmitContext<'_>, draft: &mut Draft) -> Result<Map<String, Value>> {
    let mut files = Map::new();
    let key = "spark.kubernetes.configMap.maxSize";
    let max = match context.conf().get(key) {
        Some(size) => {
            let max = size.trim().parse::<i64>().map_err(|_| SubmitError::mismatch(key, size, "long"))?;
            let max = max.max(0).unsigned_abs();
            if max > MAX_BYTES {
                return Err(SubmitError::requirement(key, size, &format!("Must have at most {MAX_BYTES} bytes")));
            }
            max
        }
        None => MAX_BYTES,
    };
    let Some(folder) = options::conf_dir(context.env) else { return Ok(files) };
    // By the sum of both lengths.
    let mut found: Vec<(usize, String, Vec<u8>)> = Vec::new();
    for name in context.files.list(&folder) {
        let is_archive = [".gz", ".zip", ".jar", ".tar", ".template"].iter().any(|end| name.ends_with(end));
        // `spark.*(conf|properties)`, in full.
        let is_spark = name.starts_with("spark") && (name.ends_with("conf") || name.ends_with("properties"));
        if is_archive || is_spark {
            continue;
        }
        if let Ok(content) = context.files.read(&format!("{folder}/{name}")) {
            found.push((content.len() + name.len(), name, content));
        }
    }
    found.sort_unstable();
    let mut size = 0_u64;
    for (length, name, content) in found {
        let Ok(text) = String::from_utf8(content) else {
            draft.warnings.push(format!("{folder}/{name} is no UTF-8 text, and is not mounted"));
            continue;
        };
        let entry_size = u64::try_from(length).unwrap_or(u64::MAX);
        if size.saturating_add(entry_size) >= max {
            draft
                .warnings
                .push(format!("{folder}/{name} is not mounted: with it, the files would exceed {key} ({max} bytes)"));
            continue;
        }
        size += entry_size;
        files.insert(name, json!(text));
    }
    Ok(files)
}
