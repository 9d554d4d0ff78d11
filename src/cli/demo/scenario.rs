//! The scenarios: pods that real Spark 4.3.0 sent to a real API server (`tests/fixtures/reviews`), adapted to a new
//! cluster: namespace names and uids are the sandbox's own, everything else is as recorded.

use std::borrow::Cow;

use anyhow::Context;
use serde_json::{Value, json};

use usher_core::annotations;
use usher_spark::json::{at, list, list_mut, remove, set, text};
use usher_spark::labels;

macro_rules! recorded {
    ($name:literal) => {
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/reviews/spark-4.3.0/", $name, ".json"))
    };
}

#[derive(Debug)]
pub(super) struct Scenario {
    /// The key in JSON and in namespace names.
    pub(super) name: &'static str,
    /// Title, for people.
    pub(super) title: &'static str,
    /// What distinguishes this scenario.
    pub(super) about: &'static str,
    /// The driver's pod.
    pub(super) driver: Value,
    /// The `spark.properties` of the driver's ConfigMap.
    pub(super) properties: Option<Cow<'static, str>>,
    /// A StatefulSet that the driver creates and that owns the executors.
    pub(super) stateful_set: Option<String>,
    /// The executors, in the order of their creation.
    pub(super) executors: Vec<Value>,
    /// Whether Spark itself sets the owner of its executors.
    pub(super) owned_by_spark: bool,
}

impl Scenario {
    /// The driver's name.
    pub(super) fn driver_name(&self) -> &str {
        text(&self.driver, &["metadata", "name"])
    }

    /// Names of ConfigMaps that the scenario's pods mount: pods do not start without them.
    pub(super) fn config_maps(&self) -> Vec<String> {
        let pods = self.executors.iter().chain([&self.driver]);
        let volumes = pods.flat_map(|pod| list(pod, &["spec", "volumes"]));
        let names = volumes.map(|volume| text(volume, &["configMap", "name"]).to_owned());
        let mut names: Vec<String> = names.filter(|name| !name.is_empty()).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// The ConfigMap with the driver's configuration.
    pub(super) fn driver_config_map(&self) -> Option<&str> {
        let volumes = list(&self.driver, &["spec", "volumes"]).iter();
        let mut ours = volumes.filter(|volume| labels::DRIVER_CONF_VOLUMES.contains(&text(volume, &["name"])));
        ours.next().map(|volume| text(volume, &["configMap", "name"]))
    }
}

/// Returns all scenarios.
pub(super) fn all() -> anyhow::Result<Vec<Scenario>> {
    Ok(vec![client_mode()?, cluster_mode()?, stateful_set()?])
}

fn client_mode() -> anyhow::Result<Scenario> {
    let mut driver = pod(recorded!("client-mode-driver-pod-named/driver.mutate.create"))?;
    remove(&mut driver, &["metadata", "annotations"]);
    set(&mut driver, &["metadata", "annotations", annotations::MIN_MEMBER], "2");
    Ok(Scenario {
        name: "client-mode",
        title: "Client mode: a notebook requests two executors",
        about: "Spark sets no ownerReference in this mode, and the notebook's pod has no Spark label. Its annotation \
                spark-usher.io/min-member: \"2\" sets how many executors start together.",
        driver,
        properties: None,
        stateful_set: None,
        executors: vec![
            pod(recorded!("client-mode/exec-1.mutate.create"))?,
            pod(recorded!("client-mode/exec-2.mutate.create"))?,
        ],
        owned_by_spark: false,
    })
}

fn cluster_mode() -> anyhow::Result<Scenario> {
    let driver = pod(recorded!("cluster-mode/driver.mutate.create"))?;
    let selector = text(&driver, &["metadata", "labels", labels::APP_SELECTOR]).to_owned();
    let executors = [
        recorded!("client-mode-driver-pod-named/exec-1.mutate.create"),
        recorded!("client-mode-driver-pod-named/exec-2.mutate.create"),
        recorded!("client-mode-driver-pod-named/exec-3.mutate.create"),
    ];
    let executors = executors.into_iter().map(|recorded| {
        let mut executor = pod(recorded)?;
        let name = text(&executor, &["metadata", "name"]).replacen("nb-", "spark-pi-", 1);
        set(&mut executor, &["metadata", "name"], name);
        set(&mut executor, &["metadata", "labels", labels::APP_SELECTOR], selector.clone());
        set(&mut executor, &["metadata", "labels", "spark-app-name"], "spark-pi");
        Ok(executor)
    });
    Ok(Scenario {
        name: "cluster-mode",
        title: "Cluster mode: spark-submit, three executors",
        about: "Spark sets the driver's pod as owner. spark-usher reads the number of executors from the driver's \
                ConfigMap: spark.executor.instances=3.",
        driver,
        properties: Some("spark.executor.instances=3\n".into()),
        stateful_set: None,
        executors: executors.collect::<anyhow::Result<_>>()?,
        owned_by_spark: true,
    })
}

fn stateful_set() -> anyhow::Result<Scenario> {
    let executors = vec![
        pod(recorded!("statefulset-allocator/exec-a.mutate.create"))?,
        pod(recorded!("statefulset-allocator/exec-b.mutate.create"))?,
    ];
    let owner = executors.first().map(|pod| list(pod, &["metadata", "ownerReferences"])).unwrap_or_default();
    let name = owner.first().map(|owner| text(owner, &["name"]).to_owned()).context("a recorded StatefulSet pod")?;
    let selector = executors.first().map(|pod| text(pod, &["metadata", "labels", labels::APP_SELECTOR]).to_owned());
    let mut driver = pod(recorded!("cluster-mode/driver.mutate.create"))?;
    set(&mut driver, &["metadata", "labels", labels::APP_SELECTOR], selector);
    set(&mut driver, &["metadata", "name"], "nb-driver");
    Ok(Scenario {
        name: "statefulset-allocator",
        title: "StatefulSet allocator: a StatefulSet creates the executors",
        about: "The StatefulSet controller creates the executors. Their owner is the StatefulSet, which the driver \
                owns, and remains so. The webhook adds only the scheduling fields.",
        driver,
        properties: Some("spark.executor.instances=2\nspark.kubernetes.allocation.pods.allocator=statefulset\n".into()),
        stateful_set: Some(name),
        executors,
        owned_by_spark: true,
    })
}

/// The pod of a recorded review, as far as possible as its creator sent it: without what an API server adds.
fn pod(review: &str) -> anyhow::Result<Value> {
    let mut review: Value = serde_json::from_str(review).context("a recorded review")?;
    let mut pod = remove(&mut review, &["request", "object"]).context("a recorded review has an object")?;
    for key in ["managedFields", "namespace"] {
        remove(&mut pod, &["metadata", key]);
    }
    for key in ["priority", "preemptionPolicy"] {
        remove(&mut pod, &["spec", key]);
    }
    without_token(&mut pod);
    Ok(pod)
}

/// Removes the token's mount: the ServiceAccount plugin adds it, with a different name each time.
pub(super) fn without_token(pod: &mut Value) {
    let is_token = |mount: &Value| text(mount, &["name"]).starts_with("kube-api-access-");
    list_mut(pod, &["spec", "volumes"]).retain(|volume| !is_token(volume));
    for container in list_mut(pod, &["spec", "containers"]) {
        list_mut(container, &["volumeMounts"]).retain(|mount| !is_token(mount));
    }
}

/// An executor as it is created: if Spark sets its owner, the reference is to the owner that exists here.
pub(super) fn with_owner(mut executor: Value, kind: &str, name: &str, uid: &str) -> Value {
    if at(&executor, &["metadata", "ownerReferences"]).is_some() {
        let version = if kind == "Pod" { "v1" } else { "apps/v1" };
        let owner = json!([{"apiVersion": version, "kind": kind, "name": name, "uid": uid, "controller": true}]);
        set(&mut executor, &["metadata", "ownerReferences"], owner);
    }
    executor
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_scenario_contains_recorded_executors_of_one_application() {
        let scenarios = all().unwrap();
        assert_eq!(scenarios.iter().map(|scenario| scenario.executors.len()).collect::<Vec<_>>(), [2, 3, 2]);
        for scenario in &scenarios {
            let selectors =
                scenario.executors.iter().map(|pod| text(pod, &["metadata", "labels", labels::APP_SELECTOR]));
            let mut selectors: Vec<_> = selectors.collect();
            selectors.dedup();
            assert_eq!(selectors.len(), 1, "{}", scenario.name);
            let owned = scenario.executors.iter().all(|pod| at(pod, &["metadata", "ownerReferences"]).is_some());
            assert_eq!(owned, scenario.owned_by_spark, "{}", scenario.name);
            assert_eq!(scenario.properties.is_some(), scenario.driver_config_map().is_some(), "{}", scenario.name);
        }
    }
}
