//! Why pods wait, as their schedulers state it on other objects: `why` says it, from a replica and from the API server alone.

use crate::support::cluster::{Cluster, eventually};
use crate::support::faulty::{Fault, Faulty};
use crate::support::process::{Process, program};
use crate::support::*;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};

const QUOTA: &str = "couldn't assign flavors to pod set main: insufficient quota for cpu in flavor default, previously considered \
    podsets requests (0) + current podset request (200) > maximum capacity (6)";

/// Kueue's Workloads, as far as they matter here.
async fn serve_workloads(cluster: &Cluster) {
    let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let crd = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "workloads.kueue.x-k8s.io", "annotations": {"api-approved.kubernetes.io": "unapproved, a test's"}},
        "spec": {"group": "kueue.x-k8s.io", "scope": "Namespaced",
            "names": {"kind": "Workload", "plural": "workloads", "singular": "workload", "listKind": "WorkloadList"},
            "versions": [{"name": "v1beta1", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": open, "status": open}}}}]}});
    let crds: Api<CustomResourceDefinition> = Api::all(cluster.client.clone());
    crds.create(&PostParams::default(), &serde_json::from_value(crd).unwrap()).await.unwrap();
    let workloads = cluster.objects("kueue.x-k8s.io", "v1beta1", "Workload");
    eventually("Workloads are served", async || workloads.list(&Default::default()).await.is_ok()).await;
}

/// A driver that runs, and an executor that waits.
async fn application(cluster: &Cluster, waiting: PodBuilder) -> k8s_openapi::api::core::v1::Pod {
    let driver = cluster.pod_by(&cluster.client, &pod("nb-driver").driver_of(APP)).await;
    cluster.phase("nb-driver", "Running").await;
    cluster.pod_by(&cluster.client, &waiting.owned_by("Pod", "nb-driver", &driver.uid().unwrap())).await
}

/// What `why NAME` prints with these arguments.
fn why(name: &str, args: &[&str]) -> String {
    let why = std::process::Command::new(program()).args(["why", name]).args(args).output().unwrap();
    String::from_utf8_lossy(&why.stdout).into_owned() + &String::from_utf8_lossy(&why.stderr)
}

/// The same from the API server alone.
fn why_of_cluster(cluster: &Cluster, name: &str) -> String {
    let kubeconfig = cluster.folder().join("why.kubeconfig");
    std::fs::write(&kubeconfig, cluster.kubeconfig()).unwrap();
    why(name, &["-n", &cluster.namespace, "--kubeconfig", kubeconfig.to_str().unwrap()])
}

#[tokio::test(flavor = "multi_thread")]
async fn pod_behind_a_gate_is_explained_by_its_workload() {
    let cluster = Cluster::start().await;
    serve_workloads(&cluster).await;
    let gated = executor(1).label("kueue.x-k8s.io/queue-name", "q");
    let executor =
        application(&cluster, gated.spec("schedulingGates", json!([{"name": "kueue.x-k8s.io/admission"}]))).await;
    let held = "is held by a scheduling gate: Scheduling is blocked due to non-empty scheduling gates (kueue.x-k8s.io/admission)";
    assert!(why_of_cluster(&cluster, "nb-exec-1").contains(held), "{}", why_of_cluster(&cluster, "nb-exec-1"));
    let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": "nb-exec-1", "uid": executor.uid()});
    cluster
        .create(json!({"apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "Workload",
            "metadata": {"name": "pod-nb-exec-1", "namespace": cluster.namespace, "ownerReferences": [owner]},
            "spec": {"queueName": "q"}}))
        .await;
    let status = json!({"status": {"conditions": [{"type": "QuotaReserved", "status": "False", "reason": "ExceedsMaxQuota",
        "message": QUOTA, "lastTransitionTime": "2026-11-28T10:00:00Z"}]}});
    let workloads = cluster.objects("kueue.x-k8s.io", "v1beta1", "Workload");
    workloads.patch_status("pod-nb-exec-1", &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
    let decides = format!("is held by a scheduling gate: Workload pod-nb-exec-1: ExceedsMaxQuota: {QUOTA}");
    let text = why_of_cluster(&cluster, "nb-exec-1");
    assert!(text.contains(&decides), "{text}");
    // A replica reads it ten seconds after the pod waits.
    let replica = Process::start(&cluster, "r0", "policies: []", &cluster.kubeconfig());
    let debug = format!("http://{}", replica.debug);
    eventually("a replica says it too", async || why("nb-exec-1", &["--replica", &debug]).contains(&decides)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn gang_that_volcano_does_not_enqueue_is_explained_by_the_event_on_its_pod_group() {
    let cluster = Cluster::start().await;
    let member =
        executor(1).annotation("spark-usher.io/by", "batch/volcano").annotation("scheduling.k8s.io/group-name", "g");
    application(&cluster, member).await;
    let refused = "resource in cluster is overused: overused cpu";
    let now = usher_spark::time::whole_second(usher_runtime::clock::now()).to_string();
    for (name, message) in [
        ("g.1", "1/3 tasks in gang unschedulable: pod group is not ready, 1 Pending, 3 minAvailable"),
        ("g.2", refused),
    ] {
        cluster
            .create(
                json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": name, "namespace": cluster.namespace},
                "involvedObject": {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup", "name": "g",
                    "namespace": cluster.namespace, "uid": "g"},
                "reason": "Unschedulable", "message": message, "type": "Normal", "source": {"component": "volcano"},
                "firstTimestamp": now, "lastTimestamp": now, "count": 1}),
            )
            .await;
    }
    let text = why_of_cluster(&cluster, "nb-exec-1");
    assert!(text.contains(&format!("why       is not scheduled: PodGroup g: {refused}")), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn pod_group_that_is_refused_is_an_event_on_the_driver_and_a_line_of_why() {
    let cluster = Cluster::start().await;
    cluster.serve_groups("scheduling.volcano.sh", "v1beta1").await;
    let faulty = Faulty::start(&cluster.client, |method, path| match method == "POST" && path.contains("/podgroups") {
        true => Fault::Status(400),
        false => Fault::None,
    })
    .await;
    let client = Client::try_from(kube::Config::new(faulty.url.parse().unwrap())).unwrap();
    let app =
        cluster.usher_by(&client, "policies: [{name: batch, scheduler: {type: volcano}, queue: none}]", "one").await;
    cluster.register("one", &app).await;
    let driver = cluster
        .pod_by(&cluster.client, &pod("nb-driver").driver_of(APP).annotation("spark-usher.io/min-member", "2"))
        .await;
    cluster.phase("nb-driver", "Running").await;
    let by_driver = cluster.client_of_pod(&driver).await;
    cluster.pod_by(&by_driver, &executor(1)).await;
    eventually("an Event on the driver says it", async || cluster.has_event("nb-driver", "GroupRefused").await).await;
    let report = || -> Value {
        let history = usher_report::views::History::default();
        let now = usher_runtime::clock::now();
        serde_json::to_value(usher_report::views::apps(&app.snapshot(), &history, None, now)).unwrap()
    };
    let says = |text: &str| text.contains("the API server refused PodGroup") && text.contains("injected fault");
    eventually("the shortage says it", async || says(&report().to_string())).await;
    app.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn pod_group_of_koordinator_lets_replacements_start() {
    let cluster = Cluster::start().await;
    cluster.serve_groups("scheduling.sigs.k8s.io", "v1alpha1").await;
    let app = cluster.usher("policies: [{name: batch, scheduler: {type: koordinator}}]").await;
    let driver = pod("nb-driver").driver_of(APP).annotation("spark-usher.io/min-member", "2");
    let driver = cluster.pod_by(&cluster.client, &driver).await;
    cluster.phase("nb-driver", "Running").await;
    cluster.pod_by(&cluster.client_of_pod(&driver).await, &executor(1)).await;
    let groups = cluster.objects("scheduling.sigs.k8s.io", "v1alpha1", "PodGroup");
    let found = async || groups.list(&Default::default()).await.unwrap().items.pop();
    eventually("the PodGroup exists", async || found().await.is_some()).await;
    let policy = "gang.scheduling.koordinator.sh/match-policy";
    assert_eq!(found().await.unwrap().annotations()[policy], "once-satisfied");
    app.stop().await.unwrap();
}
