//! The headless Service of the driver (`DriverServiceFeatureStep`).

use serde_json::{Map, Value, json};

use super::basic;
use crate::draft::{Draft, SubmitContext, push};
use crate::error::{Result, require};
use usher_spark::labels;

const MAX_NAME: usize = 63;
const SUFFIX: &str = "-driver-svc";

pub(super) fn configure(context: &SubmitContext<'_>, draft: &mut Draft) -> Result<()> {
    let conf = context.conf();
    require(conf.get("spark.driver.bindAddress").is_none(), || {
        "spark.driver.bindAddress is not supported in Kubernetes mode, as the driver's bind address is managed and set to the driver \
         pod's IP address."
            .to_owned()
    })?;
    require(conf.get("spark.driver.host").is_none(), || {
        "spark.driver.host is not supported in Kubernetes mode, as the driver's hostname will be managed via a Kubernetes service."
            .to_owned()
    })?;
    let preferred = format!("{}{SUFFIX}", context.prefix);
    let name = if preferred.len() <= MAX_NAME {
        preferred
    } else {
        let short = format!("spark-{}{SUFFIX}", context.unique.id(1));
        draft.warnings.push(format!(
            "Driver's hostname would preferably be {preferred}, but this is too long (must be <= {MAX_NAME} characters). Falling back \
             to use {short} as the driver service's name."
        ));
        short
    };
    let driver = conf.port("spark.driver.port")?.unwrap_or(basic::DRIVER_PORT);
    // Unlike the container's, it does not follow `spark.blockManager.port`.
    let blocks = conf.port("spark.driver.blockManager.port")?.unwrap_or(basic::BLOCK_MANAGER_PORT);
    draft.property("spark.driver.host", format!("{name}.{}.svc", context.namespace()));
    draft.property("spark.driver.port", driver.to_string());
    draft.property("spark.driver.blockManager.port", blocks.to_string());

    let prefixed = |prefix: &str| -> Map<String, Value> {
        conf.with_prefix(prefix).map(|(key, value)| (key.to_owned(), json!(value))).collect()
    };
    let mut labels = prefixed("spark.kubernetes.driver.service.label.");
    labels.entry(labels::APP_SELECTOR).or_insert_with(|| json!(context.app_id));
    let mut metadata = json!({"name": name, "labels": labels});
    let annotations = prefixed("spark.kubernetes.driver.service.annotation.");
    if let (false, Some(metadata)) = (annotations.is_empty(), metadata.as_object_mut()) {
        metadata.insert("annotations".into(), Value::Object(annotations));
    }
    let policies = ["SingleStack", "PreferDualStack", "RequireDualStack"];
    let policy = conf.one_of("spark.kubernetes.driver.service.ipFamilyPolicy", &policies)?.unwrap_or("SingleStack");
    let families = ["IPv4", "IPv6", "IPv4,IPv6", "IPv6,IPv4"];
    let families = conf.one_of("spark.kubernetes.driver.service.ipFamilies", &families)?.unwrap_or("IPv4");
    let families: Vec<&str> = families.split(',').collect();
    let mut spec = Map::new();
    spec.insert("clusterIP".into(), json!("None"));
    spec.insert("ipFamilyPolicy".into(), json!(policy));
    spec.insert("ipFamilies".into(), json!(families));
    spec.insert("selector".into(), Value::Object(context.labels.clone()));
    for (name, port) in [("driver-rpc-port", driver), ("blockmanager", blocks), ("spark-ui", basic::ui_port(context)?)]
    {
        push(&mut spec, "ports", json!({"name": name, "port": port, "targetPort": port}));
    }
    if let Some(port) = basic::connect_port(context)? {
        push(
            &mut spec,
            "ports",
            json!({"name": "spark-connect", "port": port, "targetPort": port, "appProtocol": "grpc"}),
        );
    }
    if context.is_since(4, 3) {
        let publishes = conf.boolean("spark.kubernetes.driver.service.publishNotReadyAddresses")?.unwrap_or(false);
        spec.insert("publishNotReadyAddresses".into(), json!(publishes));
    }
    draft.resources.push(json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}));
    Ok(())
}
