//! Runs a scenario in one namespace, and records the observations.

use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, PostParams};
use serde_json::{Value, json};

use super::scenario::{Scenario, with_owner};
use usher_kube::view::resource;
use usher_runtime::clock;
use usher_sandbox::Sandbox;
use usher_spark::json::{controller, set, text};
use usher_spark::labels;

/// Maximum duration of a step in a scenario.
const CONDITION_TIMEOUT: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(30);

/// One namespace of the sandbox.
pub(super) struct Stage<'s> {
    pub(super) sandbox: &'s Sandbox,
    pub(super) admin: kube::Client,
    pub(super) namespace: String,
}

/// Observations of a scenario in one namespace.
#[derive(Debug, Default)]
pub(super) struct Observed {
    pub(super) driver: Value,
    pub(super) executors: Vec<Value>,
    /// The PodGroup that the first executor names.
    pub(super) group: Option<Value>,
    /// Time from the last creation until all executors ran.
    pub(super) started_in: Option<Duration>,
}

/// Observations after the driver's deletion.
#[derive(Debug)]
pub(super) struct AfterDriver {
    /// Executors that still exist.
    pub(super) left: Vec<String>,
    /// Time until the last executor was deleted.
    pub(super) gone_in: Option<Duration>,
}

impl Stage<'_> {
    fn api(
        &self,
        client: &kube::Client,
        (group, version, kind, plural): (&str, &str, &str, &str),
    ) -> Api<DynamicObject> {
        let resource = resource(group, version, kind, plural);
        Api::namespaced_with(client.clone(), &self.namespace, &resource)
    }

    fn pods(&self, client: &kube::Client) -> Api<DynamicObject> {
        self.api(client, ("", "v1", "Pod", "pods"))
    }

    async fn create(&self, api: &Api<DynamicObject>, object: Value) -> anyhow::Result<Value> {
        let kind = text(&object, &["kind"]).to_owned();
        let object: DynamicObject = serde_json::from_value(object)?;
        let made = api.create(&PostParams::default(), &object).await;
        Ok(serde_json::to_value(made.with_context(|| format!("cannot create a {kind}"))?)?)
    }

    /// Creates an object that applications of one namespace share.
    async fn create_unless_it_exists(&self, api: &Api<DynamicObject>, object: Value) -> anyhow::Result<()> {
        match self.create(api, object).await {
            Err(error) if matches!(error.downcast_ref(), Some(kube::Error::Api(status)) if status.code == 409) => {
                Ok(())
            }
            made => made.map(drop),
        }
    }

    /// Creates some of a scenario's executors by its driver, and does not wait until they run.
    pub(super) async fn create_executors(
        &self,
        scenario: &Scenario,
        driver: &Value,
        which: Range<usize>,
    ) -> anyhow::Result<()> {
        let client = self.as_driver(driver).await?;
        for executor in scenario.executors.get(which).unwrap_or_default() {
            let uid = text(driver, &["metadata", "uid"]);
            let executor = with_owner(executor.clone(), "Pod", scenario.driver_name(), uid);
            self.create(&self.pods(&client), executor).await?;
        }
        Ok(())
    }

    /// Deletes a scenario's driver, if it exists, with its configuration. The executors follow by their ownerReference.
    pub(super) async fn clean_up(&self, scenario: &Scenario) -> anyhow::Result<()> {
        let maps = self.api(&self.admin, ("", "v1", "ConfigMap", "configmaps"));
        let deletions = [(self.pods(&self.admin), Some(scenario.driver_name())), (maps, scenario.driver_config_map())];
        for (api, name) in deletions {
            let Some(name) = name else { continue };
            match api.delete(name, &DeleteParams::default()).await {
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                deleted => _ = deleted?,
            }
        }
        Ok(())
    }

    /// Creates the driver, the objects that it mounts, and its account.
    pub(super) async fn start_driver(&self, scenario: &Scenario) -> anyhow::Result<Value> {
        let account = text(&scenario.driver, &["spec", "serviceAccountName"]).to_owned();
        let accounts = self.api(&self.admin, ("", "v1", "ServiceAccount", "serviceaccounts"));
        if account != "default" {
            let object = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account}});
            self.create_unless_it_exists(&accounts, object).await?;
        }
        let driver = self.create(&self.pods(&self.admin), scenario.driver.clone()).await?;
        let maps = self.api(&self.admin, ("", "v1", "ConfigMap", "configmaps"));
        for name in scenario.config_maps() {
            let mut map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
            if let Some(properties) =
                scenario.properties.as_ref().filter(|_| scenario.driver_config_map() == Some(&name))
            {
                set(&mut map, &["data", labels::PROPERTIES_KEY], &**properties);
            }
            self.create_unless_it_exists(&maps, map).await?;
        }
        self.until("the driver runs", async || {
            let pod = self.pods(&self.admin).get_opt(scenario.driver_name()).await?;
            Ok(pod.is_some_and(|pod| pod.data.pointer("/status/phase") == Some(&"Running".into())))
        })
        .await?;
        Ok(driver)
    }

    /// Creates the executors as Spark does: by the driver with the token that is bound to its pod.
    pub(super) async fn start_executors(&self, scenario: &Scenario, driver: &Value) -> anyhow::Result<Observed> {
        let uid = text(driver, &["metadata", "uid"]);
        let (client, kind, name, uid) = match &scenario.stateful_set {
            None => (self.as_driver(driver).await?, "Pod", scenario.driver_name().to_owned(), uid.to_owned()),
            Some(set) => {
                let sets = self.api(&self.admin, ("apps", "v1", "StatefulSet", "statefulsets"));
                let owner = json!([{"apiVersion": "v1", "kind": "Pod", "name": scenario.driver_name(), "uid": uid, "controller": true}]);
                let labels = json!({"app": "executors"});
                let made = self.create(&sets, json!({"apiVersion": "apps/v1", "kind": "StatefulSet",
                    "metadata": {"name": set, "ownerReferences": owner},
                    "spec": {"selector": {"matchLabels": labels}, "serviceName": "executors",
                        "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "spark"}]}}}}));
                let uid = text(&made.await?, &["metadata", "uid"]).to_owned();
                (self.as_controller("statefulset-controller")?, "StatefulSet", set.clone(), uid)
            }
        };
        let running = serde_json::to_value(self.pods(&self.admin).get(scenario.driver_name()).await?)?;
        let address = text(&running, &["status", "podIP"]);
        for executor in &scenario.executors {
            // For executors that a StatefulSet owns, only the driver's address identifies the driver.
            let set = scenario.stateful_set.is_some();
            let executor = if set { calling(executor.clone(), address) } else { executor.clone() };
            self.create(&self.pods(&client), with_owner(executor, kind, &name, &uid)).await?;
        }
        let created = clock::instant();
        let mut seen = Observed { driver: driver.clone(), ..Observed::default() };
        let started = self
            .until("the executors run", async || {
                seen.executors = self.executors().await?;
                if seen.group.is_none() {
                    seen.group = self.group_of(&seen.executors).await?;
                }
                Ok(seen.executors.iter().all(|pod| text(pod, &["status", "phase"]) == "Running"))
            })
            .await;
        seen.started_in = started.is_ok().then(|| clock::instant().saturating_duration_since(created));
        Ok(seen)
    }

    /// The PodGroup that the first executor names, if it exists.
    async fn group_of(&self, executors: &[Value]) -> anyhow::Result<Option<Value>> {
        let Some(name) = executors.first().and_then(group_name) else { return Ok(None) };
        let groups = self.api(&self.admin, ("scheduling.volcano.sh", "v1beta1", "PodGroup", "podgroups"));
        Ok(groups.get_opt(&name).await?.map(serde_json::to_value).transpose()?)
    }

    /// Deletes the driver and waits until its executors are deleted, at most this long.
    pub(super) async fn delete_driver(&self, scenario: &Scenario, patience: Duration) -> anyhow::Result<AfterDriver> {
        self.pods(&self.admin).delete(scenario.driver_name(), &DeleteParams::default()).await?;
        let start = clock::instant();
        loop {
            let left = self.executors().await?;
            let passed = clock::instant().saturating_duration_since(start);
            if left.is_empty() || passed >= patience {
                let left: Vec<String> = left.iter().map(|pod| text(pod, &["metadata", "name"]).to_owned()).collect();
                return Ok(AfterDriver { gone_in: left.is_empty().then_some(passed), left });
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    async fn executors(&self) -> anyhow::Result<Vec<Value>> {
        let params = ListParams::default().labels(&format!("{}={}", labels::ROLE, labels::ROLE_EXECUTOR));
        let found = self.pods(&self.admin).list(&params).await?;
        Ok(found.items.into_iter().map(serde_json::to_value).collect::<Result<_, _>>()?)
    }

    /// A client with the token that kubelet mounts into the driver's pod.
    async fn as_driver(&self, driver: &Value) -> anyhow::Result<kube::Client> {
        let bound = json!({"apiVersion": "v1", "kind": "Pod",
            "name": text(driver, &["metadata", "name"]), "uid": text(driver, &["metadata", "uid"])});
        let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
            "spec": {"boundObjectRef": bound, "expirationSeconds": 3600}});
        let account = text(driver, &["spec", "serviceAccountName"]);
        let accounts = self.api(&self.admin, ("", "v1", "ServiceAccount", "serviceaccounts"));
        let token: Value = accounts
            .create_subresource("token", account, &PostParams::default(), &request)
            .await
            .context("cannot create the driver's token")?;
        self.sandbox.client(text(&token, &["status", "token"]))
    }

    /// A client that acts as a controller of kube-system.
    fn as_controller(&self, name: &str) -> anyhow::Result<kube::Client> {
        self.sandbox.client_as(&format!("system:serviceaccount:kube-system:{name}"))
    }

    async fn until(&self, what: &str, mut holds: impl AsyncFnMut() -> anyhow::Result<bool>) -> anyhow::Result<()> {
        let end: Instant = clock::instant() + CONDITION_TIMEOUT;
        while !holds().await? {
            if clock::instant() >= end {
                bail!("timed out after {CONDITION_TIMEOUT:?} in namespace {}: waiting until {what}", self.namespace);
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }
}

/// The executor with the driver's address in this cluster instead of the recorded one.
fn calling(mut executor: Value, address: &str) -> Value {
    let containers = executor.pointer_mut("/spec/containers").and_then(Value::as_array_mut);
    let variables = containers.into_iter().flatten().filter_map(|one| one.get_mut("env")?.as_array_mut()).flatten();
    for variable in variables.filter(|variable| text(variable, &["name"]) == labels::ENV_DRIVER_URL) {
        set(variable, &["value"], format!("spark://CoarseGrainedScheduler@{address}:7078"));
    }
    executor
}

/// The Volcano group that a pod names.
pub(super) fn group_name(pod: &Value) -> Option<String> {
    let name = text(pod, &["metadata", "annotations", "scheduling.k8s.io/group-name"]);
    (!name.is_empty()).then(|| name.to_owned())
}

/// The controlling owner: kind, name, uid.
pub(super) fn owner(pod: &Value) -> Option<(&str, &str, &str)> {
    let owner = controller(pod)?;
    Some((text(owner, &["kind"]), text(owner, &["name"]), text(owner, &["uid"])))
}
