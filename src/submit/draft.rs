//! What the steps of a submission have made so far (`KubernetesDriverSpec`, `SparkPod`).

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::conf::SparkConf;
use super::error::{Result, SubmitError};
use super::files::{Files, Upload};
use super::names::Unique;
use super::options::{Application, Environment};
use usher_spark::version::SparkVersion;

/// What every step reads.
pub(super) struct SubmitContext<'s> {
    pub(super) app: &'s Application,
    pub(super) env: &'s Environment,
    pub(super) files: &'s dyn Files,
    pub(super) unique: &'s Unique,
    pub(super) version: SparkVersion,
    pub(super) app_id: String,
    pub(super) prefix: String,
    /// The labels of the driver's pod.
    pub(super) labels: Map<String, Value>,
}

impl SubmitContext<'_> {
    pub(super) fn conf(&self) -> &SparkConf {
        &self.app.conf
    }

    /// The settings with this prefix, without it, in the order in which Spark iterates them.
    pub(super) fn prefixed<'c>(&'c self, prefix: &'c str) -> Vec<(&'c str, &'c str)> {
        self.conf().in_sparks_order(prefix, self.version)
    }

    /// The namespace of everything.
    pub(super) fn namespace(&self) -> &str {
        self.conf().get("spark.kubernetes.namespace").unwrap_or("default")
    }

    /// Whether the Spark of this version, or a newer one, is submitted for.
    pub(super) fn is_since(&self, major: u16, minor: u16) -> bool {
        self.version >= SparkVersion::new(major, minor, 0)
    }

    /// Placeholders in the values of labels, annotations and variables (`Utils.substituteAppNExecIds`): the driver has no exec id.
    pub(super) fn substituted(&self, text: &str) -> String {
        text.replace("{{APP_ID}}", &self.app_id).replace("{{EXECUTOR_ID}}", "")
    }

    /// A file's content as text, for a step with this purpose.
    pub(super) fn text(&self, path: &str, what: &str) -> Result<String> {
        let content = self.bytes(path, what)?;
        String::from_utf8(content).map_err(|_| SubmitError::new(format!("{what} {path}: expected UTF-8")))
    }

    pub(super) fn bytes(&self, path: &str, what: &str) -> Result<Vec<u8>> {
        self.files.read(path).map_err(|error| SubmitError::new(format!("{what} {path}: {error}")))
    }
}

/// The driver's pod, its container, and all else that is created.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Draft {
    pub(super) metadata: Map<String, Value>,
    /// Without the container.
    pub(super) spec: Map<String, Value>,
    pub(super) container: Map<String, Value>,
    /// Properties that the driver gets beside those of the user.
    pub(super) properties: BTreeMap<String, String>,
    /// Objects that the pod owns, in the order in which they are created.
    pub(super) resources: Vec<Value>,
    pub(super) uploads: Vec<Upload>,
    pub(super) warnings: Vec<String>,
}

impl Draft {
    /// Sets a property of the driver's configuration.
    pub(super) fn property(&mut self, key: &str, value: impl Into<String>) {
        self.properties.insert(key.to_owned(), value.into());
    }

    /// Adds a variable with a value.
    pub(super) fn env(&mut self, name: &str, value: &str) {
        push(&mut self.container, "env", json!({"name": name, "value": value}));
    }

    pub(super) fn env_from(&mut self, name: &str, source: Value) {
        push(&mut self.container, "env", json!({"name": name, "valueFrom": source}));
    }

    pub(super) fn volume(&mut self, volume: Value) {
        push(&mut self.spec, "volumes", volume);
    }

    pub(super) fn mount(&mut self, mount: Value) {
        push(&mut self.container, "volumeMounts", mount);
    }
}

/// Changes the object under a key, which is made if it is missing.
pub(super) fn edit(map: &mut Map<String, Value>, key: &str, change: impl FnOnce(&mut Map<String, Value>)) {
    let mut inner = match map.remove(key) {
        Some(Value::Object(inner)) => inner,
        _ => Map::new(),
    };
    change(&mut inner);
    map.insert(key.to_owned(), Value::Object(inner));
}

/// Appends to a list.
pub(super) fn push(map: &mut Map<String, Value>, key: &str, item: Value) {
    let entry = map.entry(key).or_insert(Value::Null);
    match entry.as_array_mut() {
        Some(list) => list.push(item),
        None => *entry = json!([item]),
    }
}
