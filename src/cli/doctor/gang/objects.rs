//! The objects that the doctor creates: pause pods with Spark's labels. Every object carries the labels of its run, by
//! which it is found and removed again.

use serde_json::{Value, json};

use super::plan::MEMBERS;
use usher_core::annotations;
use usher_spark::json::{map_mut, set};
use usher_spark::labels;

/// Label: created by the doctor.
pub(super) const MADE_BY: &str = "spark-usher-doctor";
/// Label: the run that created the object.
pub(super) const RUN: &str = "app.kubernetes.io/instance";

/// CPU request of an executor where capacity does not matter, in millicores.
pub(super) const TINY_CPU: u64 = 10;

/// One test application.
#[derive(Clone, Debug)]
pub(super) struct App {
    pub(super) run: String,
    pub(super) namespace: String,
    /// Its selector, and the prefix of its objects' names.
    pub(super) name: String,
    pub(super) image: String,
    pub(super) account: String,
    /// CPU request of each executor, in millicores.
    pub(super) cpu: u64,
    /// The node that the executors must run on.
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
            annotations::MANAGED_BY: MADE_BY, RUN: self.run, labels::APP_SELECTOR: self.name,
        }})
    }

    /// The driver's configuration, as Spark writes it.
    pub(super) fn config_map(&self) -> Value {
        json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": self.metadata(&self.config_name()),
            "data": {labels::PROPERTIES_KEY: format!("spark.app.id={}\nspark.executor.instances={MEMBERS}\n", self.name)},
        })
    }

    /// The driver: its annotations, too, state how many executors there will be, and their size.
    pub(super) fn driver(&self) -> Value {
        let mut pod = self.pod(&self.driver_name(), labels::ROLE_DRIVER, labels::DRIVER_CONTAINER, TINY_CPU);
        let resources = json!({"cpu": milli(self.cpu), "memory": MEMORY}).to_string();
        set(
            &mut pod,
            &["metadata", "annotations"],
            json!({annotations::MIN_MEMBER: MEMBERS.to_string(), annotations::EXECUTOR_RESOURCES: resources}),
        );
        set(
            &mut pod,
            &["spec", "volumes"],
            json!([{"name": labels::DRIVER_CONF_VOLUMES[0], "configMap": {"name": self.config_name()}}]),
        );
        pod
    }

    pub(super) fn executor(&self, id: u32) -> Value {
        let name = format!("{}-exec-{id}", self.name);
        let mut pod = self.pod(&name, labels::ROLE_EXECUTOR, labels::EXECUTOR_CONTAINER, self.cpu);
        set(&mut pod, &["metadata", "labels", labels::EXEC_ID], id.to_string());
        set(&mut pod, &["metadata", "labels", labels::PROFILE_ID], "0");
        if let Some(node) = &self.node {
            set(&mut pod, &["spec", "nodeSelector"], json!({super::capacity::HOSTNAME: node}));
        }
        pod
    }

    /// The name of [`App::creator`].
    pub(super) fn creator_name(&self) -> String {
        format!("{}-creator", self.name)
    }

    /// A pod that no scheduler's gang concerns, in whose name an executor can be created.
    pub(super) fn creator(&self) -> Value {
        let mut pod = self.pod(&self.creator_name(), labels::ROLE_DRIVER, labels::DRIVER_CONTAINER, TINY_CPU);
        for label in [labels::ROLE, labels::APP_SELECTOR] {
            map_mut(&mut pod, &["metadata", "labels"]).remove(label);
        }
        pod
    }

    fn pod(&self, name: &str, role: &str, container: &str, cpu: u64) -> Value {
        let mut metadata = self.metadata(name);
        set(&mut metadata, &["labels", labels::ROLE], role);
        let resources = json!({"cpu": milli(cpu), "memory": MEMORY});
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": metadata,
            "spec": {
                "restartPolicy": "Never",
                "serviceAccountName": self.account,
                "automountServiceAccountToken": false,
                "terminationGracePeriodSeconds": 1,
                // Required by the restricted Pod Security Standard.
                "securityContext": {"runAsNonRoot": true, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
                "containers": [{
                    "name": container, "image": self.image,
                    // Quotas may require limits, too.
                    "resources": {"requests": resources, "limits": resources},
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

/// Selects all objects of the doctor, or of one run.
pub(super) fn selector(run: Option<&str>) -> String {
    match run {
        Some(run) => format!("{}={MADE_BY},{RUN}={run}", annotations::MANAGED_BY),
        None => format!("{}={MADE_BY}", annotations::MANAGED_BY),
    }
}

/// The command that removes these objects.
pub(super) fn removal(namespace: &str, run: Option<&str>) -> String {
    format!("kubectl -n {namespace} delete pods,configmaps -l {}", selector(run))
}
