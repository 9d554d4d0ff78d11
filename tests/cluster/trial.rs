//! `spark-usher sandbox --with-usher POLICY`, as a separate process.

use std::process::Stdio;
use std::time::Duration;

use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::api::{Api, DynamicObject, ListParams, PostParams};
use kube::core::ApiResource;
use kube::{Client, ResourceExt};
use serde_json::json;
use tokio::io::{AsyncBufReadExt, BufReader};
use usher_sandbox::NODE_ANNOTATION;

use crate::support::cluster::eventually;
use crate::support::operator::finished;
use crate::support::process::program;
use crate::support::{pod, policy_file};

#[tokio::test(flavor = "multi_thread")]
async fn one_command_gives_a_cluster_in_which_webhook_and_controller_follow_a_policy() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    std::fs::write(
        at("policy.yaml"),
        policy_file("policies: [{name: batch, scheduler: {type: volcano}, queue: analytics, overrides: [min-member]}]"),
    )
    .unwrap();
    let mut command = tokio::process::Command::new(program());
    command.args(["sandbox", "--with-usher", &at("policy.yaml"), "--kubeconfig", &at("kubeconfig"), "--rbac"]);
    command.args(["--http-port", "0", "--https-port", "0", "--debug-port", "0"]);
    let mut child = command.stdout(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let (mut api, mut page) = (String::new(), String::new());
    while page.is_empty() {
        let line = tokio::time::timeout(Duration::from_secs(30), lines.next_line()).await.expect("it starts in 30 s");
        let line = line.unwrap().expect("it goes on");
        let word =
            |key: &str| line.trim().strip_prefix(key).map(|rest| rest.split_whitespace().next().unwrap().to_owned());
        api = word("http ").unwrap_or(api);
        page = word("web page").unwrap_or(page);
    }
    let client = Client::try_from(kube::Config::new(api.parse().unwrap())).unwrap();
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    let create = async |pod: crate::support::PodBuilder| {
        pods.create(&PostParams::default(), &serde_json::from_value(pod.0).unwrap()).await.unwrap()
    };
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), "default");
    let spark = serde_json::from_value(json!({"metadata": {"name": "spark"}})).unwrap();
    accounts.create(&PostParams::default(), &spark).await.unwrap();
    // RBAC is enforced: Spark's account needs its rights.
    let (group, metadata) = ("rbac.authorization.k8s.io", json!({"name": "spark"}));
    let role =
        json!({"metadata": metadata, "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["create"]}]});
    let role: Role = serde_json::from_value(role).unwrap();
    Api::namespaced(client.clone(), "default").create(&PostParams::default(), &role).await.unwrap();
    let binding = json!({"metadata": metadata, "roleRef": {"apiGroup": group, "kind": "Role", "name": "spark"},
        "subjects": [{"kind": "ServiceAccount", "name": "spark", "namespace": "default"}]});
    let binding: RoleBinding = serde_json::from_value(binding).unwrap();
    Api::namespaced(client.clone(), "default").create(&PostParams::default(), &binding).await.unwrap();
    // As Spark creates them: the driver, and executors that it owns. Two of three start together.
    let driver = create(pod("pi-driver").driver_of("spark-1").annotation("spark-usher.io/min-member", "2")).await;
    let uid = driver.uid().unwrap();
    let request = json!({"spec": {"expirationSeconds": 3600, "audiences": [],
        "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "pi-driver", "uid": uid}}});
    let request: TokenRequest = serde_json::from_value(request).unwrap();
    let issued = accounts.create_token_request("spark", &PostParams::default(), &request).await.unwrap();
    let mut of_driver = kube::Config::new(api.parse().unwrap());
    of_driver.auth_info.token = issued.status.unwrap().token.map(Into::into);
    let by_driver: Api<Pod> = Api::namespaced(Client::try_from(of_driver).unwrap(), "default");
    for id in [1, 2] {
        let executor = pod(&format!("pi-exec-{id}")).executor_of("spark-1", id).owned_by("Pod", "pi-driver", &uid);
        by_driver.create(&PostParams::default(), &serde_json::from_value(executor.0).unwrap()).await.unwrap();
    }
    eventually("the gang starts", async || {
        let all = pods.list(&ListParams::default().labels("spark-role=executor")).await.unwrap();
        let runs = |pod: &Pod| pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running");
        all.items.len() == 2 && all.items.iter().all(runs)
    })
    .await;
    // One that its node rejects.
    let refused = pod("pi-exec-3")
        .executor_of("spark-1", 3)
        .owned_by("Pod", "pi-driver", &uid)
        .annotation(NODE_ANNOTATION, "refuses");
    by_driver.create(&PostParams::default(), &serde_json::from_value(refused.0).unwrap()).await.unwrap();
    eventually("it is rejected", async || {
        let status = pods.get("pi-exec-3").await.unwrap().status.unwrap_or_default();
        status.phase.as_deref() == Some("Failed") && status.reason.as_deref() == Some("OutOfcpu")
    })
    .await;
    let executor = pods.get("pi-exec-1").await.unwrap();
    assert_eq!(executor.spec.as_ref().unwrap().scheduler_name.as_deref(), Some("volcano"));
    let group = executor.annotations().get("scheduling.k8s.io/group-name").cloned().expect("a gang");
    let kind = ApiResource {
        group: "scheduling.volcano.sh".to_owned(),
        version: "v1beta1".to_owned(),
        api_version: "scheduling.volcano.sh/v1beta1".to_owned(),
        kind: "PodGroup".to_owned(),
        plural: "podgroups".to_owned(),
    };
    let groups: Api<DynamicObject> = Api::namespaced_with(client, "default", &kind);
    assert_eq!(groups.get(&group).await.unwrap().data["spec"]["queue"], json!("analytics"));
    let mut apps = std::process::Command::new(program());
    apps.args(["apps", "-o", "name", "--replica", page.trim_end_matches('/')]);
    let (code, out, err) = finished(apps).await;
    assert_eq!((code, out.as_str()), (Some(0), "default:spark-1\n"), "{err}");
    // The leader is found as in a cluster.
    let mut cost = std::process::Command::new(program());
    cost.args(["cost", "-A", "--kubeconfig", &at("kubeconfig")]);
    let (code, _, err) = finished(cost).await;
    assert_eq!((code, err.as_str()), (Some(0), ""));
    // A file that is no policy is an error before anything is served.
    std::fs::write(at("policy.yaml"), "policies: 7").unwrap();
    let mut wrong = std::process::Command::new(program());
    wrong.args(["sandbox", "--with-usher", &at("policy.yaml"), "--kubeconfig", &at("other")]);
    wrong.args(["--http-port", "0", "--https-port", "0", "--debug-port", "0"]);
    let (code, _, err) = finished(wrong).await;
    assert!(code == Some(1) && err.contains("--with-usher") && err.contains("policy.yaml"), "{err}");
    assert!(!folder.path().join("other").exists());
}
