//! End-to-end tests over real HTTPS: an API server calls the webhook, and the controller watches and writes. Against the sandbox,
//! or a real kube-apiserver if `KUBEBUILDER_ASSETS` is set (see `support/cluster.rs`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::support::cluster::{Cluster, eventually};
use crate::support::faulty::{Fault, Faulty};
use crate::support::*;
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};

const VOLCANO: &str = "policies: [{name: batch, scheduler: {type: volcano}, queue: analytics, overrides: [queue]}]";

fn value(pod: &Pod) -> Value {
    serde_json::to_value(pod).unwrap()
}

fn owner(pod: &Pod) -> Option<(String, String)> {
    let owner = pod.owner_references().iter().find(|owner| owner.controller == Some(true))?;
    assert_eq!((owner.kind.as_str(), owner.api_version.as_str()), ("Pod", "v1"));
    assert_eq!(owner.block_owner_deletion, None);
    Some((owner.name.clone(), owner.uid.clone()))
}

/// The PodGroup, if it exists.
async fn group(cluster: &Cluster, version: (&str, &str), name: &str) -> Option<Value> {
    let groups = cluster.objects(version.0, version.1, "PodGroup");
    groups.get_opt(name).await.unwrap().map(|group| serde_json::to_value(group).unwrap())
}

const VOLCANO_API: (&str, &str) = ("scheduling.volcano.sh", "v1beta1");

async fn events_with_reason(cluster: &Cluster, reason: &str) -> Vec<Event> {
    let events: Api<Event> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let all = events.list(&ListParams::default()).await.unwrap();
    all.items.into_iter().filter(|event| event.reason.as_deref() == Some(reason)).collect()
}

/// A driver of [`APP`] in cluster mode, with this `spark.properties` in its ConfigMap.
async fn driver_with(cluster: &Cluster, conf: &str) -> Pod {
    let pod = cluster.pod_by(&cluster.client, &running_driver().conf_map("conf")).await;
    cluster
        .create(json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "conf", "namespace": cluster.namespace}, "data": {"spark.properties": conf}}))
        .await;
    cluster.phase("nb-driver", "Running").await;
    pod
}

fn running_driver() -> PodBuilder {
    pod("nb-driver").driver_of(APP)
}

#[tokio::test]
async fn executors_get_owner_and_gang_and_are_deleted_with_driver() {
    let cluster = Cluster::start().await;
    cluster.serve_groups(VOLCANO_API.0, VOLCANO_API.1).await;
    let mut app = cluster.usher(VOLCANO).await;
    app.has_synced().await;
    let driver = driver_with(&cluster, "spark.executor.instances=3\n").await;
    assert_eq!(value(&driver)["spec"]["schedulerName"], "volcano");
    assert_eq!(owner(&driver), None);
    assert_eq!(driver.annotations().get("scheduling.k8s.io/group-name"), None, "the driver is not a member");

    let by_driver = cluster.client_of_pod(&driver).await;
    let name = format!("nb-driver-{APP8}");
    for id in 1..=3 {
        let created = cluster.pod_by(&by_driver, &executor(id)).await;
        let uid = driver.uid().unwrap();
        assert_eq!(owner(&created), Some(("nb-driver".into(), uid)), "from the creator's token alone");
        assert_eq!(created.annotations()["scheduling.k8s.io/group-name"], name);
        assert_eq!(created.annotations()["scheduling.volcano.sh/queue-name"], "analytics");
        let read = cluster.pods().get(&created.name_any()).await.unwrap();
        assert_eq!(value(&read)["spec"]["schedulerName"], "volcano");
        assert_eq!(owner(&read), owner(&created));
    }
    eventually("the PodGroup has the application's size", async || {
        group(&cluster, VOLCANO_API, &name).await.is_some_and(|group| group["spec"]["minMember"] == 3)
    })
    .await;
    let created = group(&cluster, VOLCANO_API, &name).await.unwrap();
    assert_eq!(created["spec"]["queue"], "analytics");
    assert_eq!(created["spec"]["minResources"]["memory"], "4224Mi");
    assert_eq!(created["metadata"]["labels"]["app.kubernetes.io/managed-by"], "spark-usher");
    assert_eq!(created["metadata"]["ownerReferences"][0]["uid"], driver.uid().unwrap());

    // An executor fails: the remaining ones must be able to start.
    for id in 1..=3 {
        cluster.phase(&format!("nb-exec-{id}"), "Running").await;
    }
    cluster.phase("nb-exec-2", "Failed").await;
    cluster.pod_by(&by_driver, &executor(4)).await;
    eventually("the PodGroup can start with the replacement", async || {
        let now = group(&cluster, VOLCANO_API, &name).await.unwrap();
        now["spec"]["minMember"].as_u64().unwrap() <= 3
            && now["metadata"]["annotations"]["spark-usher.io/started"] == "true"
    })
    .await;

    cluster.kill("nb-driver").await;
    if cluster.has_garbage_collector {
        eventually("the executors are deleted with their driver", async || {
            cluster
                .pods()
                .list(&ListParams::default())
                .await
                .unwrap()
                .items
                .iter()
                .all(|pod| pod.metadata.deletion_timestamp.is_some())
        })
        .await;
        eventually("the PodGroup is deleted with its driver", async || {
            group(&cluster, VOLCANO_API, &name).await.is_none()
        })
        .await;
    } else {
        eprintln!("SKIPPED: the deletion of dependents requires kube-controller-manager in KUBEBUILDER_ASSETS");
    }
    app.stop().await.unwrap();
}

#[tokio::test]
async fn executor_created_with_unbound_token_is_adopted_by_driver_at_its_url() {
    let cluster = Cluster::start().await;
    cluster.serve_groups(VOLCANO_API.0, VOLCANO_API.1).await;
    let mut app = cluster.usher(VOLCANO).await;
    app.has_synced().await;
    let driver = driver_with(&cluster, "spark.executor.instances=2\n").await;
    cluster.run_at("nb-driver", "10.200.7.7").await;
    eventually("the driver's address is known", async || {
        app.snapshot().driver_at(&cluster.namespace, "10.200.7.7").is_some()
    })
    .await;
    // A token of the driver's account that is not bound to a pod, such as one from a Secret.
    let unbound = cluster.client_bound("spark", None).await;
    let created = cluster.pod_by(&unbound, &executor(1).driver_url("10.200.7.7")).await;
    assert_eq!(owner(&created), None);
    let note = created.annotations()["spark-usher.io/driver"].clone();
    assert_eq!(note, format!("driver-url/nb-driver/{}", driver.uid().unwrap()));
    assert_eq!(value(&created)["spec"]["schedulerName"], "volcano");
    eventually("the executor is adopted", async || {
        let pod = cluster.pods().get("nb-exec-1").await.unwrap();
        owner(&pod) == Some(("nb-driver".into(), driver.uid().unwrap()))
    })
    .await;
    app.stop().await.unwrap();
}

#[tokio::test]
async fn executors_created_without_webhook_are_adopted() {
    let cluster = Cluster::start().await;
    let driver = driver_with(&cluster, "").await;
    cluster.run_at("nb-driver", "10.200.7.7").await;
    let by_driver = cluster.client_of_pod(&driver).await;
    for id in 1..=2 {
        assert_eq!(owner(&cluster.pod_by(&by_driver, &executor(id).driver_url("10.200.7.7")).await), None);
    }
    let app = cluster.usher_named("policies: [{name: own, scheduler: {type: none}}]", "one").await;
    eventually("both executors are adopted", async || {
        let pods = cluster.pods().list(&ListParams::default().labels("spark-role=executor")).await.unwrap();
        pods.items.len() == 2 && pods.items.iter().all(|pod| owner(pod).is_some_and(|(name, _)| name == "nb-driver"))
    })
    .await;
    app.stop().await.unwrap();
}

#[tokio::test]
async fn unlabelled_notebook_owns_its_executors_and_pod_group() {
    let cluster = Cluster::start().await;
    cluster.serve_groups(VOLCANO_API.0, VOLCANO_API.1).await;
    let mut app = cluster.usher(VOLCANO).await;
    app.has_synced().await;
    let notebook = cluster.pod_by(&cluster.client, &pod("jupyter")).await;
    cluster.phase("jupyter", "Running").await;
    assert_eq!(
        value(&notebook)["spec"]["schedulerName"],
        "default-scheduler",
        "the webhook does not mutate the notebook"
    );
    let by_notebook = cluster.client_of_pod(&notebook).await;
    let created = cluster.pod_by(&by_notebook, &executor(1)).await;
    assert_eq!(owner(&created), Some(("jupyter".into(), notebook.uid().unwrap())));
    let name = format!("jupyter-{APP8}");
    eventually("the notebook is read and owns the PodGroup", async || {
        let known = app.snapshot().driver_pod(&cluster.namespace, "jupyter").is_some();
        let owner = group(&cluster, VOLCANO_API, &name)
            .await
            .map(|group| group["metadata"]["ownerReferences"][0]["uid"].clone());
        known && owner == Some(notebook.uid().unwrap().into())
    })
    .await;
    // The number of its executors is unknown.
    let group = group(&cluster, VOLCANO_API, &name).await.unwrap();
    assert_eq!(group["spec"]["minMember"], 1);
    eventually("an Event on the notebook reports the unknown size", async || {
        let events = events_with_reason(&cluster, "GangSizeUnknown").await;
        events.iter().any(|event| event.involved_object.name.as_deref() == Some("jupyter"))
    })
    .await;
    app.stop().await.unwrap();
}

#[tokio::test]
async fn unmanaged_pod_group_is_reported_by_event_and_not_changed() {
    let cluster = Cluster::start().await;
    cluster.serve_groups(VOLCANO_API.0, VOLCANO_API.1).await;
    let name = format!("nb-driver-{APP8}");
    cluster
        .create(json!({"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup",
            "metadata": {"name": name, "namespace": cluster.namespace}, "spec": {"minMember": 9}}))
        .await;
    let mut app = cluster.usher(VOLCANO).await;
    app.has_synced().await;
    let driver = driver_with(&cluster, "spark.executor.instances=2\n").await;
    let by_driver = cluster.client_of_pod(&driver).await;
    cluster.pod_by(&by_driver, &executor(1)).await;
    eventually("an Event reports it", async || !events_with_reason(&cluster, "GroupNotOurs").await.is_empty()).await;
    let unchanged = group(&cluster, VOLCANO_API, &name).await.unwrap();
    assert_eq!(unchanged["spec"], json!({"minMember": 9}));
    assert_eq!(unchanged["metadata"]["labels"], Value::Null);
    app.stop().await.unwrap();
}

#[tokio::test]
async fn volcano_that_denies_early_pods_is_detected_by_image_and_reported() {
    let cluster = Cluster::start().await;
    cluster.serve_groups(VOLCANO_API.0, VOLCANO_API.1).await;
    let admission = |namespace: &str, version: &str| {
        json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "volcano-admission", "namespace": namespace, "labels": {"app": "volcano-admission"}},
            "spec": {"containers": [{"name": "admission", "image": format!("docker.io/volcanosh/vc-webhook-manager:{version}"),
                "args": ["--enabled-admission=/jobs/mutate,/pods/validate"]}]}})
    };
    cluster.create(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "volcano-system"}})).await;
    // One in another namespace is ignored.
    cluster.create(admission(&cluster.namespace, "v1.9.1")).await;
    cluster.create(admission("volcano-system", "v1.11.0")).await;
    let mut app = cluster.usher(VOLCANO).await;
    app.has_synced().await;
    driver_with(&cluster, "spark.executor.instances=2\n").await;
    eventually("the Event exists", async || !events_with_reason(&cluster, "EarlyPodsRefused").await.is_empty()).await;
    let events = events_with_reason(&cluster, "EarlyPodsRefused").await;
    assert!(format!("{events:?}").contains("Volcano v1.11.0 denies"), "{events:?}");
    app.stop().await.unwrap();
}

#[tokio::test]
async fn second_replica_leads_only_after_first_one_drains() {
    let cluster = Cluster::start().await;
    cluster.serve_groups(VOLCANO_API.0, VOLCANO_API.1).await;
    let mut one = cluster.usher(VOLCANO).await;
    one.has_synced().await;
    let mut two = cluster.usher_named(VOLCANO, "two").await;
    let mut synced = Box::pin(two.has_synced());
    let early = tokio::time::timeout(std::time::Duration::from_secs(4), &mut synced).await;
    assert!(early.is_err(), "two leaders");
    drop(synced);
    one.drain();
    two.has_synced().await;
    // The first replica's webhook continues to serve; the second replica writes.
    let driver = driver_with(&cluster, "spark.executor.instances=2\n").await;
    let by_driver = cluster.client_of_pod(&driver).await;
    cluster.pod_by(&by_driver, &executor(1)).await;
    let name = format!("nb-driver-{APP8}");
    eventually("the second replica creates the PodGroup", async || group(&cluster, VOLCANO_API, &name).await.is_some())
        .await;
    one.stop().await.unwrap();
    two.stop().await.unwrap();
}

#[tokio::test]
async fn changed_policy_file_is_reloaded_and_invalid_one_is_ignored() {
    let cluster = Cluster::start().await;
    let app = cluster.usher(VOLCANO).await;
    // An application keeps the scheduling fields of its first executor, so each try is a new application.
    let dry = async |name: &str| {
        let pod = cluster.pod_by(&cluster.client, &pod(name).executor_of(name, 1)).await;
        value(&pod)["spec"]["schedulerName"].as_str().unwrap().to_owned()
    };
    assert_eq!(dry("a").await, "volcano");
    cluster.reconfigure("one", "policies: [{name: other, scheduler: {type: volcano, name: my-volcano}}]");
    let mut n = 0;
    eventually("the new policy applies", async || {
        n += 1;
        dry(&format!("b{n}")).await == "my-volcano"
    })
    .await;
    cluster.reconfigure("one", "policies: [{name: other, scheduler: {type: nonsense}}]");
    let refused = app.counters().files.config_reloads.with_label_values(&["refused"]);
    eventually("the invalid file is refused", async || refused.get() == 1).await;
    assert_eq!(dry("c").await, "my-volcano", "the last valid policy stays");
    // What is left of a file that is being written, or was lost, is no file without policies.
    for (count, text) in
        [(2, ""), (3, "null\n"), (4, "# spark-usher\npolicies:\n"), (5, "apiVersion: spark-usher.io/v1alpha1\n")]
    {
        std::fs::write(cluster.folder().join("one.yaml"), text).unwrap();
        eventually("the rest of the file is refused", async || refused.get() == count).await;
    }
    assert_eq!(dry("d").await, "my-volcano", "the last valid policy stays");
    let removed = |what: &str| app.counters().files.config_removed.with_label_values(&[what]).get();
    assert_eq!((removed("policy"), removed("enforce")), (1, 0), "the first change removed policy batch");
    cluster.reconfigure("one", "policies: [{name: other, validate: Enforce}]");
    let ok = app.counters().files.config_reloads.with_label_values(&["ok"]);
    eventually("a policy that enforces applies", async || ok.get() == 2).await;
    cluster.reconfigure("one", "policies: [{name: other}]");
    eventually("the file without Enforce applies", async || ok.get() == 3).await;
    assert_eq!((removed("policy"), removed("enforce")), (1, 1));
    app.stop().await.unwrap();
}

/// A tenant that creates its first pod together with the namespace gets the namespace's policy, whatever the watch has shown.
#[tokio::test]
async fn namespace_that_the_watch_has_not_shown_is_asked_for_and_the_strictest_policy_decides_without_answer() {
    let cluster = Cluster::start().await;
    let is_down = Arc::new(AtomicBool::new(false));
    let is_slow = Arc::new(AtomicBool::new(false));
    let (down, slow) = (is_down.clone(), is_slow.clone());
    let faulty = Faulty::start(&cluster.client, move |_, path| {
        let path = path.split_once("/api/v1/namespaces").map_or("", |(_, rest)| rest);
        match path.chars().next() {
            Some('?') => Fault::Hangs,
            Some('/') if path[1..].contains('/') => Fault::None,
            Some('/') if down.load(Ordering::SeqCst) => Fault::Status(500),
            Some('/') if slow.load(Ordering::SeqCst) => Fault::Hangs,
            _ => Fault::None,
        }
    })
    .await;
    let client = Client::try_from(kube::Config::new(faulty.url.parse().unwrap())).unwrap();
    let config = format!(
        "policies:\n\
         - {{name: mild, match: {{namespaceSelector: {{matchLabels: {{kubernetes.io/metadata.name: {0}}}}}}}, scheduler: {{type: volcano}}}}\n\
         - {{name: strict, match: {{namespaceSelector: {{matchLabels: {{strict: really}}}}}}, strict: true}}\n",
        cluster.namespace
    );
    let app = cluster.usher_by(&client, &config, "one").await;
    // It waits until a pod gets the scheduler of the policy.
    cluster.register("one", &app).await;
    assert!(app.snapshot().namespace(&cluster.namespace).is_none());
    is_down.store(true, Ordering::SeqCst);
    let mut request = executor(1).namespace(&cluster.namespace).into_request();
    request["spec"]["schedulerName"] = "default-scheduler".into();
    let pod: Pod = serde_json::from_value(request).unwrap();
    let params = PostParams { dry_run: true, ..PostParams::default() };
    let path = format!("/api/v1/namespaces/{}", cluster.namespace);
    let asked = || faulty.requests.lock().unwrap().iter().filter(|request| request.ends_with(&path)).count();
    let denied = cluster.pods().create(&params, &pod).await.unwrap_err().to_string();
    assert!(denied.contains("is strict") && denied.contains("policy strict"), "{denied}");
    // Reviews of one namespace share a request, here one that takes as long as they may wait.
    is_down.store(false, Ordering::SeqCst);
    is_slow.store(true, Ordering::SeqCst);
    let before = asked();
    let pods = cluster.pods();
    let together = (0..10).map(|_| pods.create(&params, &pod));
    assert!(futures::future::join_all(together).await.iter().all(Result::is_err));
    assert_eq!(asked() - before, 1);
    is_slow.store(false, Ordering::SeqCst);
    assert_eq!(
        value(&cluster.pod_by(&cluster.client, &executor(1)).await)["spec"]["schedulerName"],
        "volcano",
        "the next attempt"
    );
    app.stop().await.unwrap();
}

#[tokio::test]
async fn executors_of_foreign_creator_do_not_join_gang_of_claimed_application() {
    let cluster = Cluster::start().await;
    let mut app = cluster.usher(VOLCANO).await;
    app.has_synced().await;
    driver_with(&cluster, "").await;
    cluster
        .create(json!({"apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": {"name": "mallory", "namespace": cluster.namespace}}))
        .await;
    eventually("the snapshot contains the driver", async || {
        app.snapshot().app(&cluster.namespace, APP).is_some_and(|app| app.live_driver().is_some())
    })
    .await;
    let stranger = cluster.pod_by(&cluster.client, &pod("stranger").spec("serviceAccountName", "mallory")).await;
    let seen = app.snapshot();
    assert!(seen.driver_pod(&cluster.namespace, "stranger").is_none());
    cluster.allow("mallory").await;
    let by_stranger = cluster.client_of_account("mallory", &stranger).await;
    let created = cluster.pod_by(&by_stranger, &executor(1)).await;
    assert_eq!(owner(&created), Some(("stranger".into(), stranger.uid().unwrap())));
    assert_eq!(created.annotations()["scheduling.k8s.io/group-name"], format!("stranger-{APP8}"));
    // An executor of a creator without a pod, which names the driver as its owner, gets no gang.
    let unbound = cluster.client_bound("mallory", None).await;
    let driver = cluster.pods().get("nb-driver").await.unwrap();
    let claims = executor(2).owned_by("Pod", "nb-driver", &driver.uid().unwrap());
    let created = cluster.pod_by(&unbound, &claims).await;
    assert_eq!(created.annotations()["spark-usher.io/driver"], "foreign-creator");
    assert_eq!(value(&created)["spec"]["schedulerName"], "default-scheduler");
    app.stop().await.unwrap();
}

#[tokio::test]
async fn managed_pod_group_is_restored_after_change_and_deletion() {
    let cluster = Cluster::start().await;
    cluster.serve_groups(VOLCANO_API.0, VOLCANO_API.1).await;
    let mut app = cluster.usher(VOLCANO).await;
    app.has_synced().await;
    let driver = driver_with(&cluster, "spark.executor.instances=2\n").await;
    let by_driver = cluster.client_of_pod(&driver).await;
    cluster.pod_by(&by_driver, &executor(1)).await;
    let name = format!("nb-driver-{APP8}");
    let size = async |wanted: u64| {
        group(&cluster, VOLCANO_API, &name).await.is_some_and(|group| group["spec"]["minMember"] == wanted)
    };
    eventually("the PodGroup exists", async || size(2).await).await;
    let groups = cluster.objects(VOLCANO_API.0, VOLCANO_API.1, "PodGroup");
    let spoil = Patch::Merge(json!({"spec": {"minMember": 99}}));
    groups.patch(&name, &PatchParams::default(), &spoil).await.unwrap();
    eventually("a change by another client is reverted", async || size(2).await).await;
    groups.delete(&name, &Default::default()).await.unwrap();
    eventually("the deleted PodGroup is created again", async || size(2).await).await;
    app.stop().await.unwrap();
}

#[tokio::test]
async fn replica_without_api_server_stays_ready_and_stops_leading() {
    let Some((cluster, sandbox)) = Cluster::start_with_sandbox().await else { return };
    let mut app = cluster.usher_named(VOLCANO, "one").await;
    app.has_synced().await;
    let metrics = app.metrics();
    let get = async |path: &str| {
        let mut stream = tokio::net::TcpStream::connect(metrics).await.unwrap();
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    };
    let is_ready = async || get("/readyz").await.starts_with("HTTP/1.1 200");
    eventually("the replica is ready", is_ready).await;
    sandbox.stop().await.unwrap();
    let failed = tokio::time::timeout(std::time::Duration::from_secs(6), app.failed()).await;
    assert!(failed.is_err(), "{failed:?}");
    // It lost the lease, but it is ready and answers every review.
    assert!(is_ready().await, "{}", get("/readyz").await);
    assert!(get("/metrics").await.contains("spark_usher_leader 0"));
    // The command line warns that the data may be stale.
    let debug = format!("http://{}", app.debug().unwrap());
    let command = tokio::task::spawn_blocking(move || {
        std::process::Command::new(env!("CARGO_BIN_EXE_spark-usher")).args(["apps", "--replica", &debug]).output()
    });
    let out = command.await.unwrap().unwrap();
    let (output, error) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert_eq!(output, "", "{error}");
    assert!(error.starts_with("warning: this replica knows no leader"), "{error}");
    assert!(error.ends_with("no Spark applications\n"), "{error}");
    app.stop().await.unwrap();
}

#[tokio::test]
async fn validation_denies_unmutated_executors_and_forbidden_changes() {
    let cluster = Cluster::start().await;
    let app = cluster
        .usher("policies: [{name: batch, scheduler: {type: volcano}, validate: Enforce, queues: [team-a]}]")
        .await;
    let driver = cluster.pod_by(&cluster.client, &running_driver()).await;
    cluster.phase("nb-driver", "Running").await;
    let by_driver = cluster.client_of_pod(&driver).await;
    let pods: Api<Pod> = Api::namespaced(by_driver.clone(), &cluster.namespace);
    let created = cluster.pod_by(&by_driver, &executor(1)).await;
    assert_eq!(owner(&created), Some(("nb-driver".into(), driver.uid().unwrap())));

    let change = async |patch: Value| {
        let patched = pods.patch("nb-exec-1", &PatchParams::default(), &Patch::Merge(&patch)).await;
        patched.map(|_| ()).map_err(|error| error.to_string())
    };
    let denied = change(json!({"metadata": {"ownerReferences": null}})).await.unwrap_err();
    assert!(denied.contains("OwnerChanged") && denied.contains("denied the request"), "{denied}");
    let other_gang = json!({"metadata": {"annotations": {"scheduling.k8s.io/group-name": "theirs"}}});
    assert!(change(other_gang.clone()).await.unwrap_err().contains("SchedulingChanged"));
    let queue = json!({"metadata": {"annotations": {"scheduling.volcano.sh/queue-name": "gold"}}});
    assert!(change(queue).await.unwrap_err().contains("QueueNotAllowed"));
    assert_eq!(change(json!({"metadata": {"labels": {"spark-exec-inactive": "true"}}})).await, Ok(()), "Spark's own");
    // An administrator may change it, and so may a status update.
    cluster.pods().patch("nb-exec-1", &PatchParams::default(), &Patch::Merge(&other_gang)).await.unwrap();
    cluster.phase("nb-exec-1", "Running").await;

    // While the mutating webhook is unavailable, validation denies pods that it should have mutated.
    cluster.unregister().await;
    eventually("an executor that was not mutated is denied", async || {
        let mut pod = executor(2).namespace(&cluster.namespace).0;
        for key in ["priority", "preemptionPolicy"] {
            pod["spec"].as_object_mut().unwrap().remove(key);
        }
        let pod = serde_json::from_value(pod).unwrap();
        let params = kube::api::PostParams { dry_run: true, ..Default::default() };
        pods.create(&params, &pod).await.is_err_and(|error| error.to_string().contains("NotMutated"))
    })
    .await;
    let count = app.counters().registry.render().unwrap();
    assert!(count.contains(r#"outcome="denied",reason="NotMutated",webhook="validate""#), "{count}");
    app.stop().await.unwrap();
}
