//! The driver's container and pod (`BasicDriverFeatureStep`).

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::draft::{Draft, SubmitContext, edit, push};
use crate::error::{Result, SubmitError, require};
use crate::files::Upload;
use crate::java;
use crate::options::{NO_RESOURCE, Resource, local_path, resolved, scheme};
use usher_spark::labels;

/// Ports that Spark uses if none is configured.
pub(super) const DRIVER_PORT: i32 = 7078;
pub(super) const BLOCK_MANAGER_PORT: i32 = 7079;
const UI_PORT: i32 = 4040;
const CONNECT_PORT: i32 = 15002;
/// The memory overhead of applications that are not of the JVM.
const NON_JVM_FACTOR: f64 = 0.4;
const JVM_FACTOR: f64 = 0.1;
const LEAST_OVERHEAD: u64 = 384;

pub(super) fn configure(context: &SubmitContext<'_>, draft: &mut Draft) -> Result<()> {
    let conf = context.conf();
    let pod_name = pod_name(context);
    let image = image(context)?;
    let policy = pull_policy(context)?;
    let memory = Memory::of(context)?;

    draft.container.entry("name").or_insert_with(|| json!(labels::DRIVER_CONTAINER));
    draft.container.insert("image".into(), json!(image));
    draft.container.insert("imagePullPolicy".into(), json!(policy));
    let ports = [
        ("driver-rpc-port", conf.port("spark.driver.port")?.unwrap_or(DRIVER_PORT)),
        ("blockmanager", block_manager_port(context)?),
        ("spark-ui", ui_port(context)?),
    ];
    let connect = connect_port(context)?.map(|port| ("spark-connect", port));
    for (name, port) in ports.into_iter().chain(connect) {
        push(&mut draft.container, "ports", json!({"name": name, "containerPort": port, "protocol": "TCP"}));
    }
    // Spark 3 reads the variable even where another user is impersonated.
    let spark_user = context.env.variables.get("SPARK_USER").filter(|_| !context.is_since(4, 0));
    let user = spark_user.or(context.app.proxy_user.as_deref()).unwrap_or_else(|| context.env.current_user());
    draft.env("SPARK_USER", user);
    draft.env("SPARK_APPLICATION_ID", &context.app_id);
    for (name, value) in context.prefixed("spark.kubernetes.driverEnv.") {
        draft.env(name, value);
    }
    draft.env_from("SPARK_DRIVER_BIND_ADDRESS", json!({"fieldRef": {"apiVersion": "v1", "fieldPath": "status.podIP"}}));

    let (request, limit) = ("spark.kubernetes.driver.request.cores", "spark.kubernetes.driver.limit.cores");
    for key in [request, limit] {
        require(conf.get(key) != Some(""), || format!("Invalid quantity string format passed. ({key} is empty)"))?;
    }
    let cores = conf.get(request).or_else(|| conf.get("spark.driver.cores")).unwrap_or("1");
    let total = format!("{}Mi", memory.total);
    let devices = devices(context)?;
    edit(&mut draft.container, "resources", |resources| {
        edit(resources, "requests", |requests| {
            requests.insert("cpu".into(), json!(cores));
            requests.insert("memory".into(), json!(total));
        });
        edit(resources, "limits", |limits| {
            if let Some(limit) = conf.get(limit) {
                limits.insert("cpu".into(), json!(limit));
            }
            limits.insert("memory".into(), json!(total));
            for (name, amount) in devices {
                limits.insert(name, json!(amount));
            }
        });
    });
    if context.is_since(4, 3) {
        let key = "securityContext.allowPrivilegeEscalation";
        let may = conf.boolean(&format!("spark.kubernetes.driver.{key}"))?;
        let may = may.or(conf.boolean(&format!("spark.kubernetes.{key}"))?).unwrap_or(false);
        edit(&mut draft.container, "securityContext", |security| {
            security.insert("allowPrivilegeEscalation".into(), json!(may));
        });
    }
    metadata(context, &pod_name, draft);
    spec(context, draft);

    draft.property("spark.kubernetes.driver.pod.name", pod_name);
    draft.property("spark.app.id", context.app_id.clone());
    draft.property("spark.kubernetes.submitInDriver", "true");
    draft.property("spark.kubernetes.memoryOverheadFactor", java::double(memory.default_factor));
    for key in ["spark.jars", "spark.files", "spark.archives", "spark.submit.pyFiles"] {
        uploaded_list(context, key, draft)?;
    }
    Ok(())
}

/// The name of the driver's pod.
pub(super) fn pod_name(context: &SubmitContext<'_>) -> String {
    let named = context.conf().get("spark.kubernetes.driver.pod.name");
    named.map_or_else(|| format!("{}-driver", context.prefix), str::to_owned)
}

fn image(context: &SubmitContext<'_>) -> Result<String> {
    let conf = context.conf();
    let image =
        conf.get("spark.kubernetes.driver.container.image").or_else(|| conf.get("spark.kubernetes.container.image"));
    let image = image.ok_or_else(|| {
        SubmitError::new(
            "Must specify the driver container image (expected --conf spark.kubernetes.container.image=IMAGE)",
        )
    })?;
    if !context.is_since(4, 0) {
        return Ok(image.to_owned());
    }
    Ok(image.replace("{{SPARK_VERSION}}", &context.version.to_string()))
}

fn pull_policy<'c>(context: &'c SubmitContext<'_>) -> Result<&'c str> {
    let key = "spark.kubernetes.container.image.pullPolicy";
    let policy = context.conf().one_of(key, &["Always", "Never", "IfNotPresent"])?;
    Ok(policy.unwrap_or("IfNotPresent"))
}

struct Memory {
    /// In mebibytes.
    total: u64,
    /// The factor that executors get, too.
    default_factor: f64,
}

impl Memory {
    fn of(context: &SubmitContext<'_>) -> Result<Memory> {
        let conf = context.conf();
        let mebibytes = |key| conf.mebibytes(key, context.version);
        let memory = mebibytes("spark.driver.memory")?.unwrap_or(1024);
        let is_jvm = matches!(context.app.resource, Resource::Java(_) | Resource::None);
        let given = conf.factor("spark.kubernetes.memoryOverheadFactor", false)?;
        let default_factor = given.unwrap_or(if is_jvm { JVM_FACTOR } else { NON_JVM_FACTOR });
        let factor = conf.factor("spark.driver.memoryOverheadFactor", true)?.unwrap_or(default_factor);
        let least = match context.is_since(4, 0) {
            true => mebibytes("spark.driver.minMemoryOverhead")?.unwrap_or(LEAST_OVERHEAD),
            false => LEAST_OVERHEAD,
        };
        // The JVM's whole numbers end there.
        let by_factor = (factor * memory as f64).clamp(0.0, f64::from(i32::MAX)) as u64;
        let given = mebibytes("spark.driver.memoryOverhead")?;
        // Its name before Spark 2.3.
        let given = given.or(mebibytes("spark.yarn.driver.memoryOverhead")?);
        let overhead = given.unwrap_or(by_factor.max(least));
        Ok(Memory { total: memory.saturating_add(overhead), default_factor })
    }
}

/// `spark.driver.resource.NAME.amount` of a vendor's device plugin (`ResourceUtils.parseAllResourceRequests`).
fn devices(context: &SubmitContext<'_>) -> Result<Vec<(String, String)>> {
    let conf = context.conf();
    let prefix = "spark.driver.resource.";
    let mut names = BTreeSet::new();
    for (key, _) in conf.with_prefix(prefix) {
        let (name, _) = key.split_once('.').ok_or_else(|| {
            SubmitError::new(format!("You must specify an amount config for resource: {key} config: {prefix}{key}"))
        })?;
        names.insert(name);
    }
    let mut devices = Vec::new();
    for name in names {
        let amount = conf.get(&format!("{prefix}{name}.amount"));
        let amount = amount.ok_or_else(|| SubmitError::new(format!("You must specify an amount for {name}")))?;
        let count: i32 = amount
            .parse()
            .map_err(|_| SubmitError::new(format!("For input string: \"{amount}\" ({prefix}{name}.amount)")))?;
        if count <= 0 {
            continue;
        }
        let vendor = conf.get(&format!("{prefix}{name}.vendor")).filter(|vendor| !vendor.is_empty());
        let vendor = vendor.ok_or_else(|| {
            SubmitError::new(format!("Resource: {name} was requested, but vendor was not specified."))
        })?;
        devices.push((format!("{vendor}/{name}"), count.to_string()));
    }
    Ok(devices)
}

pub(super) fn block_manager_port(context: &SubmitContext<'_>) -> Result<i32> {
    let conf = context.conf();
    let port = conf.port("spark.driver.blockManager.port")?.or(conf.port("spark.blockManager.port")?);
    Ok(port.unwrap_or(BLOCK_MANAGER_PORT))
}

pub(super) fn ui_port(context: &SubmitContext<'_>) -> Result<i32> {
    Ok(context.conf().port("spark.ui.port")?.unwrap_or(UI_PORT))
}

/// The port of Spark Connect, since 4.1.
pub(super) fn connect_port(context: &SubmitContext<'_>) -> Result<Option<i32>> {
    if !context.is_since(4, 1) {
        return Ok(None);
    }
    Ok(Some(context.conf().port("spark.connect.grpc.binding.port")?.unwrap_or(CONNECT_PORT)))
}

fn metadata(context: &SubmitContext<'_>, pod_name: &str, draft: &mut Draft) {
    draft.metadata.insert("name".into(), json!(pod_name));
    edit(&mut draft.metadata, "labels", |labels| labels.extend(context.labels.clone()));
    let annotations: Vec<(String, Value)> = context
        .conf()
        .with_prefix("spark.kubernetes.driver.annotation.")
        .map(|(key, value)| (key.to_owned(), json!(context.substituted(value))))
        .collect();
    if !annotations.is_empty() {
        edit(&mut draft.metadata, "annotations", |all| all.extend(annotations));
    }
}

fn spec(context: &SubmitContext<'_>, draft: &mut Draft) {
    let conf = context.conf();
    draft.spec.insert("restartPolicy".into(), json!("Never"));
    let selectors = ["spark.kubernetes.node.selector.", "spark.kubernetes.driver.node.selector."];
    let selector: Vec<(String, Value)> = selectors
        .iter()
        .flat_map(|prefix| conf.with_prefix(prefix))
        .map(|(key, value)| (key.to_owned(), json!(value)))
        .collect();
    if !selector.is_empty() {
        edit(&mut draft.spec, "nodeSelector", |all| all.extend(selector));
    }
    for secret in conf.list("spark.kubernetes.container.image.pullSecrets") {
        push(&mut draft.spec, "imagePullSecrets", json!({"name": secret}));
    }
    let scheduler =
        conf.get("spark.kubernetes.driver.scheduler.name").or_else(|| conf.get("spark.kubernetes.scheduler.name"));
    if let Some(scheduler) = scheduler {
        draft.spec.insert("schedulerName".into(), json!(scheduler));
    }
}

/// Whether a resource is a file of this machine (`KubernetesUtils.isLocalAndResolvable`).
pub(super) fn is_local(resource: &str) -> bool {
    resource != NO_RESOURCE && matches!(scheme(resource), None | Some("file"))
}

/// Uploads the local files of a list, which the driver reads from there: they come first.
fn uploaded_list(context: &SubmitContext<'_>, key: &str, draft: &mut Draft) -> Result<()> {
    let all: Vec<String> = context.conf().list(key).into_iter().map(str::to_owned).collect();
    let (local, remote): (Vec<String>, Vec<String>) = all.into_iter().partition(|uri| is_local(uri));
    if local.is_empty() {
        return Ok(());
    }
    let mut list = Vec::new();
    for uri in local {
        let (path, fragment) = uri.split_once('#').map_or((uri.as_str(), None), |(path, rest)| (path, Some(rest)));
        let mut to = upload(context, path, draft)?;
        if key == "spark.archives" {
            // Spark builds these anew, which drops an empty authority (`Utils.getUriBuilder`).
            if let Some(path) = to.strip_prefix("file:///") {
                to = format!("file:/{path}");
            }
            to.extend(fragment.into_iter().flat_map(|fragment| ["#", fragment]));
        }
        list.push(to);
    }
    list.extend(remote);
    draft.property(key, list.join(","));
    Ok(())
}

/// Uploads a file (`KubernetesUtils.uploadFileUri`). Returns where it goes.
pub(super) fn upload(context: &SubmitContext<'_>, uri: &str, draft: &mut Draft) -> Result<String> {
    let key = "spark.kubernetes.file.upload.path";
    let folder = context.conf().get(key).ok_or_else(|| {
        SubmitError::new(format!(
            "Please specify {key} property. ({uri} is a local file; local://PATH names a file in the image)"
        ))
    })?;
    let uri = resolved(uri, context.files);
    let from = local_path(&uri).into_owned();
    let is_there = context.files.matching(&from).is_ok_and(|found| found.is_some_and(|found| found == [from.as_str()]));
    require(is_there, || format!("Uploading file {from} failed... (expected a file at {from})"))?;
    let name = from.rsplit('/').next().unwrap_or_default();
    let uuid = context.unique.uuid(1 + draft.uploads.len());
    let to = format!("{folder}/spark-upload-{uuid}/{name}");
    draft.uploads.push(Upload { from, to: to.clone() });
    Ok(to)
}
