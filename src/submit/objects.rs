//! The objects of a submission, from an application's settings.

use serde_json::{Map, Value, json};

use crate::draft::{Draft, SubmitContext};
use crate::error::{Result, SubmitError};
use crate::files::{Files, Upload};
use crate::names::{self, Unique};
use crate::options::{self, Application, Environment};
use crate::{conf_map, steps};
use usher_spark::conf::AppConf;
use usher_spark::labels;
use usher_spark::version::SparkVersion;

/// What is created, in this order: first the pod, and then the objects that it owns, each by an apply patch.
#[derive(Clone, Debug, PartialEq)]
pub struct Submission {
    pub namespace: String,
    /// The application's id, the value of the label `spark-app-selector`.
    pub app_id: String,
    /// Files to copy before anything is created.
    pub uploads: Vec<Upload>,
    /// The driver's pod.
    pub pod: Value,
    /// The objects that the pod owns. Their ownerReferences need the pod's uid: [`Submission::owned`] adds them.
    pub resources: Vec<Value>,
    /// What its configuration says of executors, as the driver will read it.
    pub conf: AppConf,
    /// What is ignored or replaced, for people.
    pub warnings: Vec<String>,
}

/// Builds what the submission of an application creates.
pub fn build(
    app: &Application,
    env: &Environment,
    files: &dyn Files,
    version: SparkVersion,
    unique: &Unique,
) -> Result<Submission> {
    let name = app.conf.get("spark.app.name").unwrap_or("spark");
    // A configured id is not used.
    let (prefix, app_id) = (names::prefix(name, &unique.id(0)), unique.app_id());
    let context = SubmitContext { app, env, files, unique, version, app_id, prefix, labels: Map::new() };
    submission(context, name).map_err(|error| error.of_major(version.major))
}

fn submission(mut context: SubmitContext<'_>, name: &str) -> Result<Submission> {
    let (app, version) = (context.app, context.version);
    options::refuse_units(&app.conf, version)?;
    refuse_shells(&app.main_class, version)?;
    let key = "spark.kubernetes.pyspark.pythonVersion";
    if let Some(python) = app.conf.get(key).filter(|python| *python != "3" && version.major < 4) {
        let words = "Python 2 was dropped from Spark 3.1, and only 3 is allowed in this configuration. Note that this configuration was \
                     deprecated in Spark 3.1.";
        return Err(SubmitError::requirement(key, python, words));
    }
    context.labels = labels(&context, name)?;
    let mut draft = steps::load(&context)?;
    steps::run(&context, &mut draft)?;
    conf_map::finish(&context, &mut draft)?;
    let Draft { metadata, spec, resources, uploads, warnings, .. } = draft;
    let mut submission = Submission {
        namespace: context.namespace().to_owned(),
        pod: json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}),
        app_id: context.app_id,
        uploads,
        resources,
        conf: AppConf::default(),
        warnings: app.warnings.iter().cloned().chain(warnings).collect(),
    };
    let properties = submission.data(labels::PROPERTIES_KEY).unwrap_or_default();
    submission.conf = AppConf::parse_as(properties, version, |key| app.conf.get(key));
    // spark-submit does not read them.
    let AppConf { allocation, executor, .. } = &submission.conf;
    for key in allocation.err().into_iter().chain(executor.as_ref().err().copied()) {
        let value = app.conf.get(key).map_or_else(String::new, |value| format!(", which is {value:?}"));
        submission.warnings.push(format!("Spark {version} cannot read {key}{value}: it will create no executors"));
    }
    Ok(submission)
}

/// What runs only where the user is (`SparkSubmit.prepareSubmitEnvironment`).
fn refuse_shells(class: &str, version: SparkVersion) -> Result<()> {
    let refused = match class {
        "org.apache.spark.sql.hive.thriftserver.SparkSQLCLIDriver" => {
            "Cluster deploy mode is not applicable to Spark SQL shell."
        }
        "org.apache.spark.sql.hive.thriftserver.HiveThriftServer2" => {
            "Cluster deploy mode is not applicable to Spark Thrift server."
        }
        "org.apache.spark.sql.connect.service.SparkConnectServer" if version.major < 4 => {
            "Cluster deploy mode is not applicable to Spark Connect server."
        }
        "org.apache.spark.sql.connect.service.SparkConnectServer" => {
            "Launching Spark Connect server in cluster deploy mode is supported only for YARN"
        }
        _ => return Ok(()),
    };
    Err(SubmitError::new(refused))
}

/// The labels of the driver's pod: those of the user, and Spark's own.
fn labels(context: &SubmitContext<'_>, name: &str) -> Result<Map<String, Value>> {
    let spark_labels = [
        (labels::VERSION, context.version.to_string()),
        (labels::APP_SELECTOR, context.app_id.clone()),
        (labels::APP_NAME, names::label(name)),
        (labels::ROLE, labels::ROLE_DRIVER.to_owned()),
    ];
    let mut labels = Map::new();
    for (key, value) in context.conf().with_prefix("spark.kubernetes.driver.label.") {
        if spark_labels.iter().any(|(reserved, _)| *reserved == key) {
            return Err(SubmitError::new(format!(
                "Label with key {key} is not allowed as it is reserved for Spark bookkeeping operations."
            )));
        }
        // Placeholders since 4.0.
        let value = if context.is_since(4, 0) { context.substituted(value) } else { value.to_owned() };
        labels.insert(key.to_owned(), json!(value));
    }
    labels.extend(spark_labels.map(|(key, value)| (key.to_owned(), json!(value))));
    Ok(labels)
}

impl Submission {
    /// The objects that the pod owns, now that its uid is known.
    pub fn owned(&self, uid: &str) -> Vec<Value> {
        let name = self.pod.pointer("/metadata/name").cloned().unwrap_or_default();
        let owner = json!([{"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid, "controller": true}]);
        let with_owner = |mut object: Value| {
            if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
                metadata.insert("ownerReferences".into(), owner.clone());
            }
            object
        };
        self.resources.iter().cloned().map(with_owner).collect()
    }
}
