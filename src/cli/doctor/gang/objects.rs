//! The objects that the doctor creates: pause pods under Spark's labels. Every one carries the labels by which its run is found
//! and removed again.

use serde_json::{Value, json};

use super::plan::MEMBERS;
use crate::json::set;
use crate::spark::labels;

/// Label: what the doctor made.
pub(super) const MADE_BY: &str = "spark-usher-doctor";
/// Label: in which run.
pub(super) const RUN: &str = "app.kubernetes.io/instance";

/// What an executor requests where room does not matter.
pub(super) const TINY_CPU: u64 = 10;

/// One pretended application.
#[derive(Clone, Debug)]
pub(super) struct App {
    pub(super) run: String,
    pub(super) namespace: String,
    /// Its selector, and the beginning of its objects' names.
    pub(super) name: String,
    pub(super) image: String,
    pub(super) account: String,
    /// Processor of each executor, in thousandths.
    pub(super) cpu: u64,
    /// The node that executors must go to.
    pub(super) node: Option<String>,
}

impl App {
    pub(super) fn driver_name(&self) -> String {
        format!("{}-driver", self.name)
    }

    fn config_name(&self) -> String {
        format!("{}-driver-conf-map", self.name)
    }

    fn metadata(&self, name: &str) -> Value {
        json!({"name": name, "namespace": self.namespace, "labels": {
            labels::MANAGED_BY: MADE_BY, RUN: self.run, labels::APP_SELECTOR: self.name,
        }})
    }

    /// The driver's configuration, as Spark writes it.
    pub(super) fn config_map(&self) -> Value {
        json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": self.metadata(&self.config_name()),
            "data": {labels::PROPERTIES_KEY: format!("spark.app.id={}\nspark.executor.instances={MEMBERS}\n", self.name)},
        })
    }

    /// The driver: it says by annotation, too, how many executors there will be and how large.
    pub(super) fn driver(&self) -> Value {
        let mut pod = self.pod(&self.driver_name(), labels::ROLE_DRIVER, labels::DRIVER_CONTAINER, TINY_CPU);
        let resources = json!({"cpu": milli(self.cpu), "memory": MEMORY}).to_string();
        set(
            &mut pod,
            &["metadata", "annotations"],
            json!({labels::MIN_MEMBER: MEMBERS.to_string(), labels::EXECUTOR_RESOURCES: resources}),
        );
        set(
            &mut pod,
            &["spec", "volumes"],
            json!([{"name": labels::DRIVER_CONF_VOLUMES[0], "configMap": {"name": self.config_name()}}]),
        );
        pod
    }

    /// An executor.
    pub(super) fn executor(&self, id: u32) -> Value {
        let name = format!("{}-exec-{id}", self.name);
        let mut pod = self.pod(&name, labels::ROLE_EXECUTOR, labels::EXECUTOR_CONTAINER, self.cpu);
        set(&mut pod, &["metadata", "labels", labels::EXEC_ID], id.to_string());
        set(&mut pod, &["metadata", "labels", labels::PROFILE_ID], "0");
        if let Some(node) = &self.node {
            set(&mut pod, &["spec", "nodeSelector"], json!({super::room::HOSTNAME: node}));
        }
        pod
    }

    fn pod(&self, name: &str, role: &str, container: &str, cpu: u64) -> Value {
        let mut metadata = self.metadata(name);
        set(&mut metadata, &["labels", labels::ROLE], role);
        let room = json!({"cpu": milli(cpu), "memory": MEMORY});
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": metadata,
            "spec": {
                "restartPolicy": "Never",
                "serviceAccountName": self.account,
                "automountServiceAccountToken": false,
                "terminationGracePeriodSeconds": 1,
                // As a namespace of the restricted standard wants it.
                "securityContext": {"runAsNonRoot": true, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
                "containers": [{
                    "name": container, "image": self.image,
                    // Quotas may want limits, too.
                    "resources": {"requests": room, "limits": room},
                    "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
                }],
            },
        })
    }
}

const MEMORY: &str = "16Mi";

fn milli(cpu: u64) -> String {
    format!("{cpu}m")
}

/// What finds everything of the doctor, or of one run of it.
pub(super) fn selector(run: Option<&str>) -> String {
    match run {
        Some(run) => format!("{}={MADE_BY},{RUN}={run}", labels::MANAGED_BY),
        None => format!("{}={MADE_BY}", labels::MANAGED_BY),
    }
}

/// The command that removes it.
pub(super) fn removal(namespace: &str, run: Option<&str>) -> String {
    format!("kubectl -n {namespace} delete pods,configmaps -l {}", selector(run))
}
