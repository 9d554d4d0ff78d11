//! Gang sizes on a scheduler that supports gangs: the sandbox's, which implements the schedulers' documented keys. Whatever
//! happens to an application, its pods must start. Each scenario runs concurrently under every scheduler that has PodGroups.

use crate::support::cluster::{Cluster, POD_GROUP_KINDS, eventually};
use crate::support::*;
use futures::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams};
use kube::{Client, ResourceExt};
use serde_json::json;
use usher_server::app::App;

/// One namespace under one scheduler.
struct ScenarioContext<'c> {
    cluster: &'c Cluster,
    kind: &'static str,
    namespace: String,
}

/// A driver and its client.
struct Driver {
    pod: Pod,
    client: Client,
}

/// Runs a scenario in one namespace for each scheduler. Returns without a test if the cluster has no scheduler.
async fn under_every_scheduler(scenario: impl AsyncFn(&ScenarioContext<'_>)) {
    let Some(cluster) = Cluster::start_running().await else { return };
    let mut policies = String::from("policies:\n");
    for (kind, api) in POD_GROUP_KINDS {
        if let Some((group, version)) = api {
            cluster.serve_groups(group, version).await;
        }
        cluster.add_namespace(&namespace(&cluster, kind)).await;
        policies += &format!(
            "- {{name: {kind}, match: {{namespaces: [{}]}}, scheduler: {{type: {kind}}}}}\n",
            namespace(&cluster, kind)
        );
    }
    // The probe for the webhook's registration needs a policy that mutates pods.
    policies += "- {name: rest, scheduler: {type: volcano}}\n";
    let mut app: App = cluster.usher(&policies).await;
    app.has_synced().await;
    let contexts = POD_GROUP_KINDS.map(|(kind, _)| ScenarioContext {
        cluster: &cluster,
        kind,
        namespace: namespace(&cluster, kind),
    });
    join_all(contexts.iter().map(async |context| scenario(context).await)).await;
    app.stop().await.unwrap();
}

fn namespace(cluster: &Cluster, kind: &str) -> String {
    format!("{}-{kind}", cluster.namespace)
}

impl ScenarioContext<'_> {
    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.cluster.client.clone(), &self.namespace)
    }

    /// A running driver with this configuration.
    async fn driver(&self, conf: &str) -> Driver {
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "conf", "namespace": self.namespace}, "data": {"spark.properties": conf}});
        let _ = self.cluster.create_as(&self.cluster.client, map).await;
        let pod = driver().namespace(&self.namespace).conf_map("conf");
        let pod = self.cluster.pod_in(&self.cluster.client, &self.namespace, &pod).await;
        self.wait_until_running(&["nb-driver"]).await;
        let client = self.cluster.client_bound_in(&self.namespace, "spark", Some(&pod)).await;
        Driver { pod, client }
    }

    async fn create(&self, driver: &Driver, executor: &PodBuilder) {
        self.cluster.pod_in(&driver.client, &self.namespace, executor).await;
    }

    /// Waits until these pods run.
    async fn wait_until_running(&self, names: &[&str]) {
        let what = format!("{names:?} run under {}", self.kind);
        let holds = async || {
            let pods = self.pods().list(&ListParams::default()).await.unwrap().items;
            names.iter().all(|name| pods.iter().any(|pod| pod.name_any() == *name && phase(pod) == "Running"))
        };
        eventually(&what, holds).await;
    }

    /// Waits until the PodGroup says that its gang has started.
    async fn wait_until_started(&self) {
        let of_kind = POD_GROUP_KINDS.into_iter().find(|(kind, _)| *kind == self.kind);
        let native = [("scheduling.k8s.io", "v1beta1"), ("scheduling.k8s.io", "v1alpha2")];
        let apis = of_kind.and_then(|(_, api)| api).map_or(native.to_vec(), |api| vec![api]);
        let has_started =
            |group: &DynamicObject| group.annotations().get("spark-usher.io/started").is_some_and(|is| is == "true");
        let holds = async || {
            for (group, version) in &apis {
                let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, "PodGroup"));
                let client = self.cluster.client.clone();
                let groups: Api<DynamicObject> = Api::namespaced_with(client, &self.namespace, &resource);
                // A server of Kubernetes has one of the native versions.
                let found = groups.list(&ListParams::default()).await.map(|list| list.items).unwrap_or_default();
                if found.iter().any(has_started) {
                    return true;
                }
            }
            false
        };
        eventually(&format!("the gang has started under {}", self.kind), holds).await;
    }

    /// Checks that these pods are still pending after a while.
    async fn assert_pending(&self, names: &[&str]) {
        tokio::time::sleep(std::time::Duration::from_millis(700)).await;
        for name in names {
            let pod = self.pods().get(name).await.unwrap();
            assert_eq!(phase(&pod), "Pending", "{name} under {}", self.kind);
        }
    }

    async fn kill(&self, name: &str) {
        self.pods().delete(name, &DeleteParams::default().grace_period(0)).await.unwrap();
        eventually(&format!("{name} is deleted"), async || self.pods().get_opt(name).await.unwrap().is_none()).await;
    }
}

fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn static_application_waits_for_whole_gang_and_starts_replacement() {
    under_every_scheduler(async |context| {
        let driver = context.driver("spark.executor.instances=3\n").await;
        context.create(&driver, &executor(1)).await;
        context.create(&driver, &executor(2)).await;
        context.assert_pending(&["nb-exec-1", "nb-exec-2"]).await;
        context.create(&driver, &executor(3)).await;
        context.wait_until_running(&["nb-exec-1", "nb-exec-2", "nb-exec-3"]).await;
        context.wait_until_started().await;
        context.kill("nb-exec-2").await;
        context.create(&driver, &executor(4)).await;
        context.wait_until_running(&["nb-exec-1", "nb-exec-3", "nb-exec-4"]).await;
        // Two are lost, and one of them is replaced: it does not wait for the other.
        context.kill("nb-exec-1").await;
        context.kill("nb-exec-3").await;
        context.create(&driver, &executor(5)).await;
        context.wait_until_running(&["nb-exec-4", "nb-exec-5"]).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dynamic_application_without_executors_starts_one_new_executor() {
    let conf = "spark.dynamicAllocation.enabled=true\nspark.dynamicAllocation.initialExecutors=3\n\
                spark.dynamicAllocation.minExecutors=0\nspark.dynamicAllocation.maxExecutors=9\n";
    under_every_scheduler(async |context| {
        let driver = context.driver(conf).await;
        for id in 1..=3 {
            context.create(&driver, &executor(id)).await;
        }
        context.wait_until_running(&["nb-exec-1", "nb-exec-2", "nb-exec-3"]).await;
        for id in 1..=3 {
            context.kill(&format!("nb-exec-{id}")).await;
        }
        context.create(&driver, &executor(4)).await;
        context.wait_until_running(&["nb-exec-4"]).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn remaining_executors_start_after_others_bypassed_unavailable_webhook() {
    let Some(cluster) = Cluster::start_running().await else { return };
    cluster.serve_groups("scheduling.volcano.sh", "v1beta1").await;
    let mut app = cluster.usher("policies: [{name: a, scheduler: {type: volcano}}]").await;
    app.has_synced().await;
    let context = ScenarioContext { cluster: &cluster, kind: "volcano", namespace: cluster.namespace.clone() };
    let driver = context.driver("spark.executor.instances=5\n").await;
    cluster.unregister().await;
    for id in 1..=3 {
        context.create(&driver, &executor(id)).await;
    }
    context.wait_until_running(&["nb-exec-1", "nb-exec-2", "nb-exec-3"]).await;
    cluster.register("one", &app).await;
    context.create(&driver, &executor(4)).await;
    context.create(&driver, &executor(5)).await;
    context.wait_until_running(&["nb-exec-4", "nb-exec-5"]).await;
    app.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spark_3_0_gang_starts_with_first_allocation_batch() {
    under_every_scheduler(async |context| {
        let driver = context.driver("spark.executor.instances=8\n").await;
        // Spark 3.0 sets no resource profile, and creates five executors at the same time.
        let old = |id: u32| executor(id).without_label("spark-exec-resourceprofile-id");
        for id in 1..=5 {
            context.create(&driver, &old(id)).await;
        }
        context.wait_until_running(&["nb-exec-1", "nb-exec-2", "nb-exec-3", "nb-exec-4", "nb-exec-5"]).await;
        for id in 6..=8 {
            context.create(&driver, &old(id)).await;
        }
        context.wait_until_running(&["nb-exec-6", "nb-exec-7", "nb-exec-8"]).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_applications_of_one_driver_pod_both_start() {
    under_every_scheduler(async |context| {
        let driver = context.driver("spark.executor.instances=2\n").await;
        let of = |app: &str, id: u32| pod(&format!("{app}-exec-{id}")).executor_of(app, id);
        for app in [APP, "spark-second"] {
            context.create(&driver, &of(app, 1)).await;
            context.create(&driver, &of(app, 2)).await;
        }
        let names = [APP, "spark-second"].map(|app| [1, 2].map(|id| format!("{app}-exec-{id}")));
        let names: Vec<&str> = names.iter().flatten().map(String::as_str).collect();
        context.wait_until_running(&names).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resubmitted_driver_name_starts_new_gang() {
    under_every_scheduler(async |context| {
        for round in 0..2 {
            let driver = context.driver("spark.executor.instances=2\n").await;
            context.create(&driver, &executor(1)).await;
            context.create(&driver, &executor(2)).await;
            context.wait_until_running(&["nb-exec-1", "nb-exec-2"]).await;
            if round == 0 {
                context.kill("nb-driver").await;
                eventually("the executors are deleted", async || {
                    context.pods().list(&ListParams::default()).await.unwrap().items.is_empty()
                })
                .await;
                assert!(driver.pod.uid().is_some());
            }
        }
    })
    .await;
}
