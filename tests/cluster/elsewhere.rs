//! A notebook in one namespace whose executors run in another: who created them is proven, and they do not outlive it.

use crate::support::cluster::{Cluster, eventually};
use crate::support::*;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams};
use serde_json::json;

const ACTS: &str = "recovery: {act: true, budget: 3600/h, orphans: {after: 5s, budget: 3600/h}}\npolicies: [{name: batch, scheduler: {type: volcano}}]";

#[tokio::test(flavor = "multi_thread")]
async fn pending_executor_of_a_notebook_in_another_namespace_is_deleted_after_it() {
    let cluster = Cluster::start().await;
    let hub = format!("{}-hub", cluster.namespace);
    cluster.add_namespace(&hub).await;
    cluster
        .create(json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
            "metadata": {"name": "hub", "namespace": cluster.namespace},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"kind": "ServiceAccount", "name": "spark", "namespace": hub}]}))
        .await;
    let mut app = cluster.usher(ACTS).await;
    app.has_synced().await;
    let account = |name: &str| pod(name).spec("serviceAccountName", "spark");
    let notebook = cluster.pod_in(&cluster.client, &hub, &account("nb-0")).await;
    let copier = cluster.pod_in(&cluster.client, &hub, &account("copier")).await;
    // The second creates executors for a driver that is somewhere else.
    let of_notebook = (1, &notebook, APP, format!("nb-0.{hub}.svc"));
    for (id, creator, selector, host) in [of_notebook, (2, &copier, "spark-copied", "driver.example.org".to_owned())] {
        let client = cluster.client_bound_in(&hub, "spark", Some(creator)).await;
        let sent = executor(id).label("spark-app-selector", selector).driver_url(&host);
        let created = cluster.pod_by(&client, &sent).await;
        let uid = creator.uid().unwrap();
        let expected = format!("elsewhere/{}/{uid}/system:serviceaccount:{hub}:spark", creator.name_any());
        assert_eq!(created.annotations()["spark-usher.io/creator"], expected, "the creator policy vouches for it");
        assert!(created.owner_references().is_empty());
    }
    eventually("the pods that created them were read", async || {
        let snapshot = app.snapshot();
        ["nb-0", "copier"].iter().all(|name| snapshot.driver_pod(&hub, name).is_some())
    })
    .await;
    app.stop().await.unwrap();
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), &hub);
    for name in ["nb-0", "copier"] {
        pods.delete(name, &DeleteParams::default().grace_period(0)).await.unwrap();
    }
    let app = cluster.usher_named(ACTS, "two").await;
    let exists = async |name: &str| cluster.pods().get_opt(name).await.unwrap().is_some();
    eventually("the executor of the notebook is deleted", async || !exists("nb-exec-1").await).await;
    assert!(exists("nb-exec-2").await);
    app.stop().await.unwrap();
}
