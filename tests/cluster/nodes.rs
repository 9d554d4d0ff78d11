//! A node that refuses executors: reported on its Node, shown by the command line, and avoided by new executors.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::support::cluster::{Cluster, eventually};
use crate::support::faulty::{Fault, Faulty};
use crate::support::process::program;
use crate::support::*;
use kube::Client;
use kube::api::{Api, ApiResource, Patch, PatchParams, PostParams};
use kube::core::DynamicObject;
use serde_json::{Value, json};

const POLICY: &str = "policies:
- {name: p, scheduler: {type: volcano}}
nodes:
  avoid: true
  maxShare: 100%
";
const TERMS: &str = "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms";

fn cluster_scoped(cluster: &Cluster, kind: &str, plural: &str) -> Api<DynamicObject> {
    let resource = ApiResource {
        group: String::new(),
        version: "v1".into(),
        api_version: "v1".into(),
        kind: kind.into(),
        plural: plural.into(),
    };
    Api::all_with(cluster.client.clone(), &resource)
}

/// Creates a Node of this name; another test's cluster may be the same.
async fn create_node(cluster: &Cluster, name: &str) -> String {
    let nodes = cluster_scoped(cluster, "Node", "nodes");
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name,
        "labels": {"zone": "x", "kubernetes.io/hostname": format!("host-of-{name}")}}});
    let created = nodes.create(&PostParams::default(), &serde_json::from_value(node).unwrap()).await.unwrap();
    let status = json!({"status": {"nodeInfo": {"kubeletVersion": "v1.31.4", "architecture": "", "bootID": "",
        "containerRuntimeVersion": "", "kernelVersion": "", "kubeProxyVersion": "", "machineID": "",
        "operatingSystem": "", "osImage": "", "systemUUID": ""}}});
    nodes.patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
    created.metadata.uid.unwrap()
}

/// What `spark-usher nodes ARGS` prints.
fn nodes(app_debug: &str, args: &[&str]) -> (bool, String) {
    let done =
        std::process::Command::new(program()).arg("nodes").args(args).args(["--replica", app_debug]).output().unwrap();
    let text = String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr);
    (done.status.success(), text)
}

#[tokio::test(flavor = "multi_thread")]
async fn node_that_refuses_executors_of_two_applications_is_reported_and_avoided() {
    let cluster = Cluster::start().await;
    let placed = |name: &str, scheduler: &str| pod(name).spec("schedulerName", scheduler);
    let (bad, good) = (format!("{}-bad", cluster.namespace), format!("{}-good", cluster.namespace));
    let uid = create_node(&cluster, &bad).await;
    create_node(&cluster, &good).await;
    cluster.serve_groups("scheduling.volcano.sh", "v1beta1").await;
    let app = cluster.usher(POLICY).await;
    let debug = format!("http://{}", app.debug().unwrap());
    let before = cluster.dry_run(&cluster.client, &executor(1)).await.unwrap();
    assert_eq!(before.pointer(TERMS), None);
    for (name, scheduler) in [("service", "default-scheduler"), ("batch", "yunikorn")] {
        cluster.pod_by(&cluster.client, &placed(name, scheduler).spec("nodeName", bad.as_str())).await;
    }
    // It is on every node, whichever scheduler places the others.
    let agent = placed("agent", "other").owned_by("DaemonSet", "agents", "d1").spec("nodeName", bad.as_str());
    cluster.pod_by(&cluster.client, &agent).await;
    let status = json!({"status": {"phase": "Failed", "reason": "OutOfcpu",
        "message": "Pod was rejected: Node didn't have enough resource: cpu, requested: 1, used: 4, capacity: 4"}});
    for (number, app) in ["spark-a", "spark-a", "spark-b"].iter().enumerate() {
        let number = u32::try_from(number).unwrap();
        let name = format!("refused-{number}");
        let refused = pod(&name).executor_of(app, number).spec("nodeName", bad.as_str());
        cluster.pod_by(&cluster.client, &refused).await;
        cluster.pods().patch_status(&name, &PatchParams::default(), &Patch::Merge(&status)).await.unwrap();
    }
    eventually("the Node has an Event", async || {
        let events = Api::<DynamicObject>::namespaced_with(cluster.client.clone(), "default", &event_resource());
        let events = events.list(&Default::default()).await.unwrap();
        events.items.iter().any(|event| {
            let regarding = &event.data["regarding"];
            let is_ours =
                event.data["reason"] == "NodeSuspect" && regarding["kind"] == "Node" && regarding["uid"] == uid;
            is_ours
                && event.data["note"].as_str().unwrap().contains("(kubelet v1.31.4): usually two schedulers")
                && event.data["note"]
                    .as_str()
                    .unwrap()
                    .contains("places pods here: default-scheduler (1), yunikorn (1)")
        })
    })
    .await;
    eventually("new executors avoid it", async || {
        let created = cluster.dry_run(&cluster.client, &executor(1)).await.unwrap();
        let avoids = json!([{"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": [bad]}]}]);
        created.pointer(TERMS) == Some(&avoids)
    })
    .await;
    // What the pod has stays, and each alternative is restricted.
    let mut chosen = executor(2);
    let zones: Vec<Value> = ["x", "y"]
        .iter()
        .map(|zone| json!({"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]}))
        .collect();
    chosen.0["spec"]["affinity"] =
        json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": zones}}});
    let created = cluster.dry_run(&cluster.client, &chosen).await.unwrap();
    let terms = created.pointer(TERMS).and_then(Value::as_array).unwrap();
    assert_eq!(terms.len(), 2);
    for (term, zone) in terms.iter().zip(zones) {
        assert_eq!(term["matchExpressions"], zone["matchExpressions"]);
        assert_eq!(term["matchFields"][0]["values"], json!([bad]));
    }
    let pinned = cluster.dry_run(&cluster.client, &executor(3).spec("nodeName", bad.as_str())).await.unwrap();
    assert_eq!(pinned.pointer(TERMS), None);
    // One that may use that node only would wait forever.
    let selector = json!({"kubernetes.io/hostname": format!("host-of-{bad}")});
    let pinned = cluster.dry_run(&cluster.client, &executor(4).spec("nodeSelector", selector)).await.unwrap();
    assert_eq!(pinned.pointer(TERMS), None);
    let (ok, text) = nodes(&debug, &[]);
    assert!(
        ok && text.contains("suspect, avoided") && text.contains("3 out-of-resource") && text.contains("v1.31.4"),
        "{text}"
    );
    let (ok, text) = nodes(&debug, &[&bad]);
    assert!(
        ok && text.contains("refused-2 out-of-resource (cpu): Pod was rejected: Node didn't have enough"),
        "{text}"
    );
    assert_eq!(nodes(&debug, &[&bad, "-o", "name"]), (true, format!("{bad}\n")));
    let (ok, text) = nodes(&debug, &["no-such-node"]);
    assert!(!ok && text.contains("nothing is known against node no-such-node"), "{text}");
    let metrics = crate::support::process::get(app.metrics(), "/metrics").await;
    let expected = format!(r#"spark_usher_suspect_node_executors{{kind="out-of-resource",node="{bad}"}} 3"#);
    assert!(metrics.contains(&expected) && metrics.contains("spark_usher_suspect_nodes 1"), "{metrics}");
    // Turned off, nothing is avoided any more.
    cluster.reconfigure("one", &POLICY.replace("avoid: true", "enabled: false"));
    eventually("new executors avoid nothing", async || {
        cluster.dry_run(&cluster.client, &executor(1)).await.unwrap().pointer(TERMS).is_none()
    })
    .await;
    let api = cluster_scoped(&cluster, "Node", "nodes");
    for name in [bad, good] {
        api.delete(&name, &Default::default()).await.unwrap();
    }
}

/// Gives a Node room for pods. The API server taints a new Node until its kubelet is ready.
async fn make_room(cluster: &Cluster, name: &str) {
    let nodes = cluster_scoped(cluster, "Node", "nodes");
    let untainted = json!({"spec": {"taints": null}});
    nodes.patch(name, &PatchParams::default(), &Patch::Merge(untainted)).await.unwrap();
    let room = json!({"cpu": "8", "memory": "32Gi", "pods": "110"});
    let status = json!({"status": {"capacity": room, "allocatable": room,
        "conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": null, "lastTransitionTime": null}]}});
    nodes.patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn scheduler_places_executors_elsewhere_and_those_that_can_run_there_only_still_start() {
    let Some(cluster) = Cluster::start_scheduling().await else { return };
    let (bad, good) = (format!("{}-bad", cluster.namespace), format!("{}-good", cluster.namespace));
    for name in [&bad, &good] {
        create_node(&cluster, name).await;
        make_room(&cluster, name).await;
    }
    // A type without PodGroups, whose pods the cluster's own scheduler places.
    let policy = "policies:\n- {name: p, scheduler: {type: kai, name: default-scheduler}, queue: q}\nnodes: {avoid: true, maxShare: 100%}\n";
    let app = cluster.usher(policy).await;
    let status = json!({"status": {"phase": "Failed", "reason": "OutOfcpu",
        "message": "Pod was rejected: Node didn't have enough resource: cpu, requested: 1, used: 8, capacity: 8"}});
    for (number, app) in (0_u32..).zip(["spark-a", "spark-a", "spark-b"]) {
        let name = format!("refused-{number}");
        let refused = pod(&name).executor_of(app, number).spec("nodeName", bad.as_str());
        cluster.pod_by(&cluster.client, &refused).await;
        cluster.pods().patch_status(&name, &PatchParams::default(), &Patch::Merge(&status)).await.unwrap();
    }
    // In this zone are both nodes, and no other.
    let in_zone = |name: &str, number| {
        let mut executor = pod(name).executor_of("spark-c", number).spec("nodeSelector", json!({"zone": "x"}));
        executor.0["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "1", "memory": "1Gi"}});
        executor
    };
    eventually("new executors avoid the node", async || {
        cluster.dry_run(&cluster.client, &in_zone("trial", 9)).await.unwrap().pointer(TERMS).is_some()
    })
    .await;
    let placed = async |name: &str| {
        let found = cluster.pods().get(name).await.unwrap();
        found.spec.and_then(|spec| spec.node_name)
    };
    // More than would be placed on one node by chance.
    for number in 0..6 {
        let name = format!("elsewhere-{number}");
        cluster.pod_by(&cluster.client, &in_zone(&name, number)).await;
        eventually("it is placed on the other node", async || placed(&name).await.as_deref() == Some(good.as_str()))
            .await;
    }
    let only = json!({"kubernetes.io/hostname": format!("host-of-{bad}")});
    cluster.pod_by(&cluster.client, &in_zone("only", 20).spec("nodeSelector", only)).await;
    eventually("it starts there", async || placed("only").await.as_deref() == Some(bad.as_str())).await;
    app.stop().await.unwrap();
    let api = cluster_scoped(&cluster, "Node", "nodes");
    for name in [bad, good] {
        api.delete(&name, &Default::default()).await.unwrap();
    }
}

fn event_resource() -> ApiResource {
    ApiResource {
        group: "events.k8s.io".into(),
        version: "v1".into(),
        api_version: "events.k8s.io/v1".into(),
        kind: "Event".into(),
        plural: "events".into(),
    }
}

/// Without the list of nodes, a pod that is restricted to the pool by other labels would pass.
#[tokio::test]
async fn replica_with_node_pools_is_not_ready_before_nodes_are_listed() {
    let cluster = Cluster::start().await;
    let is_down = Arc::new(AtomicBool::new(true));
    let down = is_down.clone();
    let faulty = Faulty::start(&cluster.client, move |_, path| match path.starts_with("/api/v1/nodes") {
        true if down.load(Ordering::SeqCst) => Fault::Status(503),
        _ => Fault::None,
    })
    .await;
    let client = Client::try_from(kube::Config::new(faulty.url.parse().unwrap())).unwrap();
    let pool = "policies: [{name: p, scheduler: {type: volcano}, nodePool: {pool: spark}}]";
    let mut others = cluster.usher_by(&client, "policies: []", "one").await;
    tokio::time::timeout(Duration::from_secs(20), others.has_synced()).await.expect("it needs no nodes");
    others.stop().await.unwrap();
    let mut app = cluster.usher_by(&client, pool, "two").await;
    assert!(tokio::time::timeout(Duration::from_secs(3), app.has_synced()).await.is_err());
    is_down.store(false, Ordering::SeqCst);
    tokio::time::timeout(Duration::from_secs(20), app.has_synced()).await.expect("nodes were listed");
    app.stop().await.unwrap();
}
