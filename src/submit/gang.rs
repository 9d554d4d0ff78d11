//! `--gang`: the size of the application on the driver, so that its gang has the right size from the first executor on, with every
//! scheduler: the webhook sees the driver before the ConfigMap that has the size.

use serde_json::{Map, Value, json};

use super::Submission;
use super::error::{Result, SubmitError};
use super::pod_template;
use super::steps::TEMPLATE_KEY;
use usher_core::annotations::{EXECUTOR_RESOURCES, MIN_MEMBER};
use usher_core::gang::size::SizeFacts;
use usher_spark::conf::Setting;
use usher_spark::json::{list, list_mut, map_mut, set, text};
use usher_spark::labels::PROPERTIES_KEY;
use usher_spark::pod::Pod;
use usher_spark::resources::{self, ResourceList};

impl Submission {
    /// What the ConfigMaps have under a key.
    pub(super) fn data(&self, key: &str) -> Option<&str> {
        let maps = self.resources.iter().filter(|object| text(object, &["kind"]) == "ConfigMap");
        maps.map(|map| text(map, &["data", key])).find(|content| !content.is_empty())
    }

    /// The settings that the driver gets with this prefix: what follows it in the key, and the value.
    pub fn settings(&self, prefix: &str) -> Vec<(String, String)> {
        let mut found = Vec::new();
        usher_spark::properties::each(self.data(PROPERTIES_KEY).unwrap_or_default(), |key, value| {
            found.extend(key.strip_prefix(prefix).map(|rest| (rest.to_owned(), value.to_owned())));
        });
        found
    }

    /// What one executor requests, with the other containers of its template.
    pub(crate) fn executor_requests(&self) -> Result<ResourceList> {
        let of_conf = read(self.conf.executor.clone())?;
        let Some(template) = self.data(TEMPLATE_KEY) else { return Ok(of_conf) };
        let named = self.settings("spark.kubernetes.executor.podTemplateContainerName").pop().map(|(_, name)| name);
        of_template(template, named.as_deref(), &of_conf)
    }

    /// Writes the number of executors of the gang, and what one of them requests, on the driver.
    pub fn add_gang(&mut self) -> Result<()> {
        read(self.conf.allocation)?;
        let facts = SizeFacts { conf: Some(&self.conf), ..SizeFacts::default() };
        let members = facts.sizes().map_or(1, |sizes| sizes.wanted);
        let requests = self.executor_requests()?;
        let annotations = map_mut(&mut self.pod, &["metadata", "annotations"]);
        for (key, value) in [(MIN_MEMBER, members.to_string()), (EXECUTOR_RESOURCES, requests.to_json().to_string())] {
            // An annotation of the driver in the configuration wins.
            annotations.entry(key).or_insert_with(|| json!(value));
        }
        Ok(())
    }
}

fn read<T>(setting: Setting<T>) -> Result<T> {
    setting.map_err(|key| SubmitError::new(format!("what executors request is unknown: Spark cannot read {key}")))
}

/// What an executor from this template requests: Spark's own container as the configuration says, and all others.
fn of_template(template: &str, container: Option<&str>, executor: &ResourceList) -> Result<ResourceList> {
    let bad = |why: &str| SubmitError::new(format!("--gang: spark.kubernetes.executor.podTemplateFile: {why}"));
    let mut pod = Value::Object(pod_template::read(template, true).map_err(|error| bad(&error))?.pod);
    let all = list(&pod, &["spec", "containers"]);
    let named = container.and_then(|name| all.iter().position(|one| text(one, &["name"]) == name));
    let containers = list_mut(&mut pod, &["spec", "containers"]);
    if containers.is_empty() {
        containers.push(Value::Object(Map::new()));
    }
    if let Some(container) = containers.get_mut(named.unwrap_or(0)) {
        for kind in ["requests", "limits"] {
            let amounts = map_mut(container, &["resources", kind]);
            amounts.retain(|name, _| !matches!(name.as_str(), "cpu" | "memory"));
        }
        if let Value::Object(requests) = executor.to_json() {
            map_mut(container, &["resources", "requests"]).extend(requests);
        }
        if text(container, &["name"]).is_empty() {
            set(container, &["name"], "executor");
        }
    }
    let json = pod.to_string();
    let read = Pod::read_whole(json.as_bytes()).map_err(|error| bad(&error.to_string()))?;
    let workload = read.body.read().ok_or_else(|| bad("expected a list of containers"))?;
    Ok(resources::of_pod(&workload))
}

#[cfg(test)]
mod tests {
    use super::*;
    use usher_spark::conf::AppConf;

    fn submission(properties: &str, template: Option<&str>) -> Submission {
        let mut resources = vec![json!({"kind": "Service"})];
        resources.extend(template.map(|text| json!({"kind": "ConfigMap", "data": {TEMPLATE_KEY: text}})));
        resources.push(json!({"kind": "ConfigMap", "data": {PROPERTIES_KEY: properties}}));
        Submission {
            namespace: "n".into(),
            app_id: "spark-1".into(),
            uploads: vec![],
            pod: json!({"metadata": {"annotations": {"a": "b"}}}),
            resources,
            conf: AppConf::parse(properties),
            warnings: vec![],
        }
    }

    fn annotations(properties: &str, template: Option<&str>) -> Value {
        let mut submission = submission(properties, template);
        submission.add_gang().unwrap();
        submission.pod["metadata"]["annotations"].take()
    }

    #[test]
    fn gang_has_the_size_and_the_requests_of_the_configuration() {
        let properties = "spark.executor.instances=40\nspark.executor.memory=4g\nspark.executor.cores=2\n";
        assert_eq!(
            annotations(properties, None),
            json!({"a": "b", MIN_MEMBER: "40", EXECUTOR_RESOURCES: r#"{"cpu":"2","memory":"4505Mi"}"#})
        );
        let dynamic = "spark.dynamicAllocation.enabled=true\nspark.dynamicAllocation.minExecutors=3\n";
        assert_eq!(annotations(dynamic, None)[MIN_MEMBER], "3");
        assert_eq!(
            annotations("spark.kubernetes.allocation.maxPendingPods=4\nspark.executor.instances=9\n", None)[MIN_MEMBER],
            "4"
        );
    }

    #[test]
    fn containers_of_the_executors_template_count() {
        let template = "spec:\n  containers:\n  - {name: log, resources: {requests: {cpu: 100m, memory: 92Mi}}}\n  \
                        - {name: mine, resources: {requests: {cpu: 7, ephemeral-storage: 1Gi}, limits: {memory: 9Gi}}}\n";
        let properties = "spark.executor.instances=2\nspark.kubernetes.executor.podTemplateContainerName=mine\n";
        let found: Value =
            serde_json::from_str(annotations(properties, Some(template))[EXECUTOR_RESOURCES].as_str().unwrap())
                .unwrap();
        assert_eq!(found, json!({"cpu": "1100m", "memory": "1500Mi", "ephemeral-storage": "1Gi"}));
        let found = annotations("spark.executor.instances=2\n", Some("metadata: {labels: {a: b}}\n"));
        assert_eq!(found[EXECUTOR_RESOURCES], r#"{"cpu":"1","memory":"1408Mi"}"#);
        let error = submission("", Some("spec: {containers: 3")).add_gang().unwrap_err().to_string();
        assert!(error.contains("podTemplateFile"), "{error}");
    }

    #[test]
    fn annotation_of_the_user_stays() {
        let mut submission = submission("spark.executor.instances=40\n", None);
        set(&mut submission.pod, &["metadata", "annotations", MIN_MEMBER], "10");
        submission.add_gang().unwrap();
        assert_eq!(submission.pod["metadata"]["annotations"][MIN_MEMBER], "10");
    }
}
