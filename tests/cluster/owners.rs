//! Adoption with an API server that lets an account change the owners of a pod only if the account may delete the pod
//! (`OwnerReferencesPermissionEnforcement`, always enabled on OpenShift).

use std::time::Duration;

use crate::support::cluster::{Cluster, eventually};
use crate::support::process::{Process, get};
use crate::support::*;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::{Api, ListParams, PostParams};
use serde_json::{Value, json};
use usher_core::manifests::rbac::{self, When};

/// A kubeconfig of an account with the permissions of the chart, with or without `delete` on pods.
async fn account(cluster: &Cluster, name: &str, deletes: bool) -> String {
    let namespace = &cluster.namespace;
    cluster
        .create(
            json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": namespace}}),
        )
        .await;
    let rules = rbac::all().into_iter().filter(|right| deletes || right.when != When::Deleting);
    let rules: Vec<Value> = rules
        .map(|right| json!({"apiGroups": [right.group], "resources": [right.resource], "verbs": right.verbs}))
        .collect();
    let role = format!("{name}-{namespace}");
    let group = "rbac.authorization.k8s.io";
    let version = format!("{group}/v1");
    cluster
        .create(json!({"apiVersion": version, "kind": "ClusterRole", "metadata": {"name": role}, "rules": rules}))
        .await;
    cluster
        .create(json!({"apiVersion": version, "kind": "ClusterRoleBinding", "metadata": {"name": role},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": role},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}]}))
        .await;
    let accounts: Api<ServiceAccount> = Api::namespaced(cluster.client.clone(), namespace);
    let spec = Some(TokenRequestSpec { expiration_seconds: Some(3600), ..TokenRequestSpec::default() });
    let request = TokenRequest { spec, ..TokenRequest::default() };
    let token = accounts.create_token_request(name, &PostParams::default(), &request).await.unwrap();
    let admin = cluster.sandbox().map_or("admin-token", |sandbox| sandbox.admin_token());
    cluster.kubeconfig().replace(admin, &token.status.unwrap().token.unwrap())
}

async fn count(replica: &Process, action: &str, result: &str) -> u32 {
    let metrics = get(replica.metrics, "/metrics").await;
    let name = format!("spark_usher_actions_total{{action=\"{action}\",result=\"{result}\"}} ");
    metrics.lines().find_map(|line| line.strip_prefix(&name)).map_or(0, |count| count.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn forbidden_adoption_is_tried_once_and_reported_and_cleanup_continues() {
    let cluster = Cluster::start_enforcing().await;
    let kubeconfig = account(&cluster, "without", false).await;
    let config = "lifecycle: {finished: label, grace: 1s}";
    cluster.pod_by(&cluster.client, &pod("nb-driver").driver_of(APP)).await;
    cluster.run_at("nb-driver", "10.200.7.7").await;
    for id in 1..=14 {
        cluster.pod_by(&cluster.client, &executor(id).driver_url("10.200.7.7")).await;
        cluster.phase(&format!("nb-exec-{id}"), "Running").await;
    }
    // An executor of another application, whose driver has failed, must be labelled.
    let other = cluster.pod_by(&cluster.client, &pod("dead-driver").driver_of("spark-dead")).await;
    cluster.phase("dead-driver", "Failed").await;
    let leftover = executor(99).label("spark-app-selector", "spark-dead").label("spark-exec-id", "99");
    let leftover = leftover.owned_by("Pod", "dead-driver", other.metadata.uid.as_ref().unwrap());
    cluster.pod_by(&cluster.client, &leftover).await;
    cluster.phase("nb-exec-99", "Failed").await;
    let mut replica = Process::start(&cluster, "without", config, &kubeconfig);
    eventually("an adoption is forbidden", async || count(&replica, "adopt", "refused").await > 0).await;
    eventually("other actions are executed", async || count(&replica, "label-executor", "ok").await == 1).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(count(&replica, "adopt", "refused").await, 1, "one attempt for all executors");
    assert_eq!(count(&replica, "adopt", "ok").await, 0);
    let events: Api<k8s_openapi::api::core::v1::Event> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    eventually("an Event reports it", async || {
        let all = events.list(&ListParams::default()).await.unwrap().items;
        let messages = all.iter().filter(|event| event.reason.as_deref() == Some("AdoptionRefused"));
        let messages: Vec<_> = messages.filter_map(|event| event.message.clone()).collect();
        messages.iter().any(|message| message.contains("cannot set an ownerRef on a resource you can't delete"))
    })
    .await;
    replica.terminate();
    assert!(replica.wait());
    // With the permission that the chart grants if the plugin is enabled.
    let kubeconfig = account(&cluster, "with", true).await;
    let replica = Process::start(&cluster, "with", config, &kubeconfig);
    eventually("all executors are adopted", async || count(&replica, "adopt", "ok").await == 14).await;
    let owned = cluster.pods().get("nb-exec-7").await.unwrap().metadata.owner_references.unwrap();
    assert_eq!(owned[0].name, "nb-driver");
}
