//! Executors that a StatefulSet or a Deployment creates (`spark.kubernetes.allocation.pods.allocator`) belong to the driver that
//! owns it.

use crate::support::cluster::{Cluster, eventually};
use crate::support::process::program;
use crate::support::*;
use kube::ResourceExt;
use kube::core::DynamicObject;
use serde_json::{Value, json};

const POLICY: &str = "policies:
- {name: p, scheduler: {type: volcano}}
";
const VOLCANO: (&str, &str) = ("scheduling.volcano.sh", "v1beta1");

/// A workload of three executors with this controlling owner: kind, apiVersion, name and uid.
async fn workload(cluster: &Cluster, kind: &str, name: &str, owner: (&str, &str, &DynamicObject)) -> DynamicObject {
    let (owner_kind, version, owner) = owner;
    let labels = json!({"spark-role": "executor", "spark-app-selector": APP});
    let template = json!({"metadata": {"labels": labels}, "spec": {"containers": [{"name": "main", "image": "i"}]}});
    let mut spec = json!({"replicas": 3, "selector": {"matchLabels": labels}, "template": template});
    if kind == "StatefulSet" {
        spec["serviceName"] = name.into();
        spec["podManagementPolicy"] = "Parallel".into();
    }
    let owner = json!({"apiVersion": version, "kind": owner_kind, "name": owner.name_any(),
        "uid": owner.metadata.uid, "controller": true});
    let metadata = json!({"name": name, "namespace": cluster.namespace, "ownerReferences": [owner]});
    cluster.create(json!({"apiVersion": "apps/v1", "kind": kind, "metadata": metadata, "spec": spec})).await
}

/// A notebook without Spark's labels, in which a driver runs in client mode.
async fn notebook(cluster: &Cluster) -> DynamicObject {
    let pod = pod("notebook").namespace(&cluster.namespace);
    let created = cluster.pod_by(&cluster.client, &pod).await;
    serde_json::from_value(serde_json::to_value(created).unwrap()).unwrap()
}

/// What `spark-usher why NAME` prints, from the API server alone.
fn why(cluster: &Cluster, name: &str) -> String {
    let kubeconfig = cluster.folder().join("why.kubeconfig");
    std::fs::write(&kubeconfig, cluster.kubeconfig()).unwrap();
    let kubeconfig = kubeconfig.to_str().unwrap();
    let args = ["why", name, "-n", &cluster.namespace, "--kubeconfig", kubeconfig];
    let why = std::process::Command::new(program()).args(args).output().unwrap();
    String::from_utf8_lossy(&why.stdout).into_owned() + &String::from_utf8_lossy(&why.stderr)
}

async fn check(create: impl AsyncFn(&Cluster, &DynamicObject) -> (&'static str, DynamicObject)) {
    let cluster = Cluster::start().await;
    cluster.serve_groups(VOLCANO.0, VOLCANO.1).await;
    let app = cluster.usher(POLICY).await;
    let driver = notebook(&cluster).await;
    let (kind, owner) = create(&cluster, &driver).await;
    let uid = owner.metadata.uid.clone().unwrap();
    for id in 0..2 {
        // The allocators write this literal; the driver replaces it when the executor registers.
        let executor = executor(id).label("spark-exec-id", "EXECID").named(&format!("spark-x-{id}"));
        cluster.pod_by(&cluster.client, &executor.owned_by(kind, &owner.name_any(), &uid)).await;
    }
    let groups = cluster.objects(VOLCANO.0, VOLCANO.1, "PodGroup");
    let found = async || groups.list(&Default::default()).await.unwrap().items.pop();
    let is_whole = async || found().await.is_some_and(|group| group.data["spec"]["minMember"] == 3);
    eventually("the gang has the size of the workload", is_whole).await;
    let group = found().await.unwrap();
    let owners: Vec<Value> = group.owner_references().iter().map(|owner| json!([owner.kind, owner.name])).collect();
    assert_eq!(owners, [json!(["Pod", "notebook"])], "the driver owns the PodGroup");
    let text = why(&cluster, "notebook");
    assert!(text.contains("driver    notebook (pending)") && text.contains("executors 2 pending"), "{text}");
    assert!(
        text.contains("lacks     3 of 3 executors (spec.replicas of the workloads that its driver owns)"),
        "{text}"
    );
    app.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn executors_of_a_stateful_set_belong_to_the_driver_that_owns_it() {
    check(async |cluster, driver| {
        ("StatefulSet", workload(cluster, "StatefulSet", "spark-s-x-0", ("Pod", "v1", driver)).await)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn executors_of_a_deployment_belong_to_the_driver_that_owns_it() {
    check(async |cluster, driver| {
        let deployment = workload(cluster, "Deployment", "spark-d-x-0", ("Pod", "v1", driver)).await;
        let above = ("Deployment", "apps/v1", &deployment);
        ("ReplicaSet", workload(cluster, "ReplicaSet", "spark-d-x-0-abc", above).await)
    })
    .await;
}
