//! API servers that cannot stream the list of pods, or serve no watch: what a replica sees then, and says.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client};
use serde_json::json;

use crate::support::cluster::{Cluster, eventually};
use crate::support::faulty::{End, Fault, Faulty};
use crate::support::process::{Process, get, program};
use crate::support::*;

fn is_streamed_list(path: &str) -> bool {
    path.starts_with("/api/v1/pods?") && path.contains("sendInitialEvents=true")
}

/// Pages of the list of pods.
fn pages(faulty: &Faulty) -> usize {
    let is_page = |request: &&String| request.starts_with("GET /api/v1/pods?") && request.contains("limit=500");
    faulty.requests.lock().unwrap().iter().filter(is_page).count()
}

fn client(faulty: &Faulty) -> Client {
    Client::try_from(kube::Config::new(faulty.url.parse().unwrap())).unwrap()
}

/// A line of a watch.
fn event(kind: &str, object: &serde_json::Value) -> String {
    format!("{}\n", json!({"type": kind, "object": object}))
}

/// What an API server answers whose etcd cannot report its progress.
fn unsupported() -> String {
    event(
        "ERROR",
        &json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": 500,
        "message": "storage is (re)initializing", "reason": "InternalError"}),
    )
}

#[tokio::test]
async fn list_of_pods_is_read_in_pages_where_it_cannot_be_streamed() {
    let cluster = Cluster::start().await;
    cluster.pod_by(&cluster.client, &driver()).await;
    let pod = driver().namespace(&cluster.namespace).stored("u-1").0;
    for (shape, fault) in [
        ("rejected", Fault::Status(422)),
        ("fails", Fault::Status(500)),
        ("status 501", Fault::Status(501)),
        ("ERROR", Fault::Body(vec![unsupported()], End::Clean)),
        ("empty", Fault::Body(vec![], End::Clean)),
        ("cut", Fault::Body(vec![event("ADDED", &pod)], End::Clean)),
        ("broken", Fault::Body(vec![event("ADDED", &pod)], End::Broken)),
    ] {
        let answered = fault.clone();
        let faulty = Faulty::start(&cluster.client, move |_, path| match is_streamed_list(path) {
            true => answered.clone(),
            false => Fault::None,
        })
        .await;
        let mut app = cluster.usher_by(&client(&faulty), "policies: []", shape).await;
        tokio::time::timeout(Duration::from_secs(15), app.has_synced()).await.expect(shape);
        assert!(app.snapshot().driver_pod(&cluster.namespace, "nb-driver").is_some(), "{shape}");
        let streamed = faulty.count("sendInitialEvents=true");
        assert_eq!(streamed, if shape == "rejected" { 1 } else { 2 }, "{shape}");
        assert!(pages(&faulty) >= 1, "{shape}");
        app.stop().await.unwrap();
    }
}

/// One interruption says nothing about the server.
#[tokio::test]
async fn list_that_was_cut_once_is_streamed_again() {
    let cluster = Cluster::start().await;
    let sound = Faulty::start(&cluster.client, |_, _| Fault::None).await;
    let mut app = cluster.usher_by(&client(&sound), "policies: []", "zero").await;
    app.has_synced().await;
    app.stop().await.unwrap();
    if pages(&sound) > 0 {
        eprintln!(
            "SKIPPED: requires an API server that streams lists: the etcd of this one cannot report its progress"
        );
        return;
    }
    let cut = AtomicUsize::new(0);
    let faulty = Faulty::start(&cluster.client, move |_, path| {
        match is_streamed_list(path) && cut.fetch_add(1, Ordering::SeqCst) == 0 {
            true => Fault::Body(vec![], End::Clean),
            false => Fault::None,
        }
    })
    .await;
    let mut app = cluster.usher_by(&client(&faulty), "policies: []", "one").await;
    tokio::time::timeout(Duration::from_secs(15), app.has_synced()).await.unwrap();
    assert_eq!((faulty.count("sendInitialEvents=true"), pages(&faulty)), (2, 0));
    app.stop().await.unwrap();
}

/// A watch that is answered by an empty 200 is opened again with growing pauses.
#[tokio::test]
async fn watch_that_ends_at_once_backs_off() {
    let cluster = Cluster::start().await;
    let is_ended = Arc::new(AtomicBool::new(true));
    let ended = is_ended.clone();
    let faulty = Faulty::start(&cluster.client, move |_, path| {
        match path.starts_with("/api/v1/namespaces?") && path.contains("watch=") && ended.load(Ordering::SeqCst) {
            true => Fault::Body(vec![], End::Clean),
            false => Fault::None,
        }
    })
    .await;
    let mut app = cluster.usher_by(&client(&faulty), "policies: []", "one").await;
    app.has_synced().await;
    tokio::time::sleep(Duration::from_secs(8)).await;
    let is_watch = |request: &&String| request.contains("/api/v1/namespaces?") && request.contains("watch=");
    // At 0 s, 0.8 to 1.6 s, 2.4 to 4.8 s, 5.6 s at the earliest.
    let count = faulty.requests.lock().unwrap().iter().filter(is_watch).count();
    assert!((2..=4).contains(&count), "{count}");
    is_ended.store(false, Ordering::SeqCst);
    let new = format!("{}-new", cluster.namespace);
    cluster.create(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": new}})).await;
    eventually("it is watched", async || app.snapshot().namespace(&new).is_some()).await;
    app.stop().await.unwrap();
}

/// Every list of pods fails: within a minute a replica says so wherever its users look.
#[tokio::test(flavor = "multi_thread")]
async fn replica_that_does_not_see_pods_says_so_within_a_minute() {
    let cluster = Cluster::start().await;
    let is_down = Arc::new(AtomicBool::new(true));
    let down = is_down.clone();
    let faulty = Faulty::start(&cluster.client, move |_, path| {
        match path.starts_with("/api/v1/pods?") && down.load(Ordering::SeqCst) {
            true if path.contains("watch=") => Fault::Body(vec![unsupported()], End::Clean),
            true => Fault::Status(500),
            false => Fault::None,
        }
    })
    .await;
    let kubeconfig = json!({"apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": faulty.url}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}], "users": [{"name": "u", "user": {}}]});
    let replica = Process::start(&cluster, "one", "policies: []", &kubeconfig.to_string());
    let gauge = async || {
        let metrics = get(replica.metrics, "/metrics").await;
        let line =
            metrics.lines().find(|line| line.starts_with("spark_usher_watch_unseen_since_seconds{resource=\"pods\"}"));
        line.map_or(-1.0, |line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap())
    };
    eventually("the metric shows it", async || gauge().await > 1e9).await;
    let apps = || {
        let debug = format!("http://{}", replica.debug);
        let output = std::process::Command::new(program()).args(["apps", "--replica", &debug]).output().unwrap();
        String::from_utf8(output.stderr).unwrap()
    };
    tokio::time::timeout(Duration::from_secs(75), async {
        while !apps().contains("this replica does not see pods since") {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    })
    .await
    .expect("within a minute");
    let said = "the API server does not complete the list of a resource, or does not open its watch: decisions are made without what is not seen";
    eventually("the log says it", async || replica.log_lines(said).iter().any(|line| line["resource"] == "pods")).await;
    let leases: Api<Lease> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let unseen = async || {
        let lease = leases.get_opt("spark-usher").await.unwrap();
        lease.and_then(|lease| lease.metadata.annotations?.remove("spark-usher.io/unseen")).unwrap_or_default()
    };
    eventually("doctor finds it in the Lease", async || unseen().await.starts_with("pods since ")).await;
    assert!(get(replica.debug, "/").await.contains("This replica does not see "));
    is_down.store(false, Ordering::SeqCst);
    tokio::time::timeout(Duration::from_secs(60), async {
        while gauge().await != 0.0 || !unseen().await.is_empty() || apps().contains("does not see") {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    })
    .await
    .expect("the list is complete");
}
