//! Volumes of the configuration (`KubernetesVolumeUtils`, `MountVolumesFeatureStep`).

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::basic::pod_name;
use crate::draft::{Draft, SubmitContext};
use crate::error::{Result, SubmitError, require};
use usher_spark::labels;

/// A claim of this name stands for one that is made for the pod.
const ON_DEMAND: &str = "OnDemand";
const DRIVER: &str = "spark.kubernetes.driver.volumes.";
const EXECUTOR: &str = "spark.kubernetes.executor.volumes.";

pub(super) fn configure(context: &SubmitContext<'_>, draft: &mut Draft) -> Result<()> {
    let is_new = context.is_since(4, 0);
    let volumes = parse(context, DRIVER, is_new)?;
    // The driver would fail by them.
    parse(context, EXECUTOR, is_new)?;
    let mut paths: BTreeMap<&str, usize> = BTreeMap::new();
    volumes.iter().for_each(|volume| *paths.entry(&volume.mount_path).or_default() += 1);
    let twice: Vec<&str> = paths.into_iter().filter(|(_, count)| *count > 1).map(|(path, _)| path).collect();
    require(twice.is_empty(), || format!("Found duplicated mountPath: '{}'", twice.join(", ")))?;
    for (at, volume) in volumes.into_iter().enumerate() {
        let mut mount = json!({
            "name": volume.name, "mountPath": volume.mount_path, "readOnly": volume.read_only, "subPath": volume.sub_path,
        });
        // Since 4.0.
        if let (true, Some(mount)) = (context.is_since(4, 0), mount.as_object_mut()) {
            mount.insert("subPathExpr".into(), json!(volume.sub_path_expr));
        }
        draft.mount(mount);
        let source = match volume.source {
            Source::Claim { name, storage_class, size, labels, annotations } => {
                let claim_name = format!("{}-pvc-{at}", pod_of_claims(context));
                let name = name.replace(ON_DEMAND, &claim_name);
                if let (Some(class), Some(size)) = (storage_class, size) {
                    draft.resources.push(claim(context, &name, (&class, &size), labels, annotations)?);
                }
                json!({"persistentVolumeClaim": {"claimName": name, "readOnly": volume.read_only}})
            }
            Source::Other(source) => source,
        };
        let mut entry = json!({"name": volume.name});
        if let (Some(entry), Value::Object(source)) = (entry.as_object_mut(), source) {
            entry.extend(source);
        }
        draft.volume(entry);
    }
    Ok(())
}

/// The beginning of the names of claims that are made for the driver.
fn pod_of_claims(context: &SubmitContext<'_>) -> String {
    if context.conf().get("spark.kubernetes.driver.pod.name").is_some() {
        return format!("{}-driver", context.prefix);
    }
    pod_name(context)
}

fn claim(
    context: &SubmitContext<'_>,
    name: &str,
    (class, size): (&str, &str),
    labels: Map<String, Value>,
    annotations: Map<String, Value>,
) -> Result<Value> {
    let mut metadata = Map::new();
    metadata.insert("name".into(), json!(name));
    let mut all = labels;
    all.insert(labels::APP_SELECTOR.into(), json!(context.app_id));
    metadata.insert("labels".into(), Value::Object(all));
    if !annotations.is_empty() {
        metadata.insert("annotations".into(), Value::Object(annotations));
    }
    // Since 4.0.
    let legacy = context.is_since(4, 0)
        && context.conf().boolean("spark.kubernetes.legacy.useReadWriteOnceAccessMode")?.unwrap_or(false);
    let mode = if context.is_since(4, 0) && !legacy { "ReadWriteOncePod" } else { "ReadWriteOnce" };
    Ok(json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": {
        "storageClassName": class, "accessModes": [mode], "resources": {"requests": {"storage": size}}}}))
}

#[derive(Debug)]
struct Volume {
    name: String,
    mount_path: String,
    sub_path: String,
    sub_path_expr: String,
    read_only: bool,
    source: Source,
}

#[derive(Debug)]
enum Source {
    Claim {
        name: String,
        storage_class: Option<String>,
        size: Option<String>,
        labels: Map<String, Value>,
        annotations: Map<String, Value>,
    },
    Other(Value),
}

/// `PREFIX TYPE.NAME.{mount.path, mount.readOnly, mount.subPath, mount.subPathExpr, options.*, label.*, annotation.*}`
///
/// `is_new`: since 4.0, with the type of a hostPath, labels and annotations of claims, and checks of sizes and of paths that exclude each
/// other.
fn parse(context: &SubmitContext<'_>, prefix: &str, is_new: bool) -> Result<Vec<Volume>> {
    let settings = context.prefixed(prefix);
    let mut names: Vec<(&str, &str)> = Vec::new();
    for (key, _) in &settings {
        let name = key.split_once('.').and_then(|(kind, rest)| Some((kind, rest.split('.').next()?)));
        names.extend(name.filter(|name| !names.contains(name)));
    }
    let all: BTreeMap<&str, &str> = settings.iter().copied().collect();
    names.into_iter().map(|(kind, name)| volume(&all, kind, name, is_new)).collect()
}

fn volume(all: &BTreeMap<&str, &str>, kind: &str, name: &str, is_new: bool) -> Result<Volume> {
    let base = format!("{kind}.{name}.");
    let get = |key: &str| all.get(format!("{base}{key}").as_str()).copied();
    let both: Vec<String> = ["mount.subPath", "mount.subPathExpr"]
        .iter()
        .filter(|key| get(key).is_some())
        .map(|key| format!("{base}{key}"))
        .collect();
    require(both.len() < 2 || !is_new, || format!("These config options are mutually exclusive: {}", both.join(", ")))?;
    let mount_path = get("mount.path").ok_or_else(|| SubmitError::new(format!("key not found: {base}mount.path")))?;
    let read_only = match get("mount.readOnly") {
        None => false,
        Some(text) if text.eq_ignore_ascii_case("true") => true,
        Some(text) if text.eq_ignore_ascii_case("false") => false,
        Some(text) => {
            return Err(SubmitError::new(format!(
                "For input string: \"{text}\" ({base}mount.readOnly): expected true or false"
            )));
        }
    };
    Ok(Volume {
        name: name.to_owned(),
        mount_path: mount_path.to_owned(),
        sub_path: get("mount.subPath").unwrap_or_default().to_owned(),
        sub_path_expr: get("mount.subPathExpr").unwrap_or_default().to_owned(),
        read_only,
        source: source(all, kind, &base, &get, is_new)?,
    })
}

fn source<'c>(
    all: &BTreeMap<&str, &str>,
    kind: &str,
    base: &str,
    get: &dyn Fn(&str) -> Option<&'c str>,
    is_new: bool,
) -> Result<Source> {
    let required = |key: &str| get(key).ok_or_else(|| SubmitError::new(format!("{base}{key} is required for {kind}")));
    let size = || {
        let size = get("options.sizeLimit");
        require(is_new || size != Some(""), || "Invalid quantity string format passed.".to_owned())?;
        let digits = size.filter(|size| is_new && size.bytes().all(|digit| digit.is_ascii_digit()));
        if let Some(digits) = digits {
            let number =
                digits.parse::<i64>().map_err(|_| SubmitError::new(format!("For input string: \"{digits}\"")))?;
            require(number >= 1024, || format!("Volume size `{digits}` is smaller than 1KiB. Missing units?"))?;
        }
        Ok(size)
    };
    let prefixed = |what: &str| -> Map<String, Value> {
        if !is_new {
            return Map::new();
        }
        let prefix = format!("{base}{what}.");
        let volumes =
            all.iter().filter_map(|(key, value)| Some((key.strip_prefix(prefix.as_str())?.to_owned(), json!(value))));
        volumes.collect()
    };
    Ok(match kind {
        "hostPath" => Source::Other(json!({"hostPath": {
            "path": required("options.path")?, "type": get("options.type").filter(|_| is_new).unwrap_or_default()}})),
        "emptyDir" => {
            let mut dir = json!({"medium": get("options.medium").unwrap_or_default()});
            if let (Some(size), Some(dir)) = (size()?, dir.as_object_mut()) {
                dir.insert("sizeLimit".into(), json!(size));
            }
            Source::Other(json!({"emptyDir": dir}))
        }
        "nfs" => {
            Source::Other(json!({"nfs": {"path": required("options.path")?, "server": required("options.server")?}}))
        }
        "persistentVolumeClaim" => Source::Claim {
            name: required("options.claimName")?.to_owned(),
            storage_class: get("options.storageClass").map(str::to_owned),
            size: size()?.map(str::to_owned),
            labels: prefixed("label"),
            annotations: prefixed("annotation"),
        },
        _ => return Err(SubmitError::new(format!("Kubernetes Volume type `{kind}` is not supported"))),
    })
}
