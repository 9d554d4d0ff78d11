//! The leader polls a driver for its view of its executors, and the reports show what it says.

use std::sync::{Arc, Mutex};

use crate::support::cluster::{Cluster, eventually};
use crate::support::process::{Process, get as get_from, program};
use crate::support::*;
use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use kube::ResourceExt;
use serde_json::{Value, json};
use tokio::task::JoinSet;

/// A driver's REST API on loopback, whose executors the test sets.
struct Driver {
    port: u16,
    rows: Arc<Mutex<Value>>,
    tasks: JoinSet<()>,
}

impl Driver {
    async fn start() -> Driver {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let rows = Arc::new(Mutex::new(json!([])));
        let shown = rows.clone();
        let metrics = json!({
            "counters": {format!("{APP}.driver.LiveListenerBus.queue.appStatus.numDroppedEvents"): {"count": 0}},
            "gauges": {format!("{APP}.driver.ExecutorAllocationManager.executors.numberTargetExecutors"): {"value": 7}},
        });
        let routes = Router::new()
            .route(
                &format!("/api/v1/applications/{APP}/allexecutors"),
                get(move || async move { shown.lock().unwrap().to_string() }),
            )
            .route("/metrics/json/", get(move || async move { metrics.to_string() }))
            .fallback(|| async { (StatusCode::NOT_FOUND, "no such app") });
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { axum::serve(listener, routes).await.unwrap() });
        Driver { port, rows, tasks }
    }

    fn show(&self, rows: Value) {
        *self.rows.lock().unwrap() = rows;
    }
}

fn row(id: u32, is_active: bool) -> Value {
    json!({"id": id.to_string(), "isActive": is_active, "addTime": "2026-11-21T02:13:42.022GMT", "removeReason": if is_active { None } else { Some("lost") }})
}

/// A driver's pod at this address, its configuration, and two executors that run.
async fn create_application(cluster: &Cluster, port: u16) {
    let properties = format!("spark.executor.instances=2\nspark.ui.port={port}");
    cluster
        .create(json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "nb-conf", "namespace": cluster.namespace}, "data": {"spark.properties": properties}}))
        .await;
    let driver = cluster.pod_by(&cluster.client, &pod("nb-driver").driver_of(APP).conf_map("nb-conf")).await;
    for id in 1..=2 {
        let owned = executor(id).owned_by("Pod", "nb-driver", &driver.uid().unwrap());
        cluster.pod_by(&cluster.client, &owned).await;
        cluster.phase(&format!("nb-exec-{id}"), "Running").await;
    }
    cluster.run_at("nb-driver", "127.0.0.1").await;
}

async fn report(replica: &Process) -> Value {
    replica.debug("/debug/apps").await[0].clone()
}

async fn metrics(replica: &Process) -> String {
    get_from(replica.metrics, "/metrics").await
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_show_what_a_driver_says_about_its_executors() {
    let cluster = Cluster::start().await;
    let mut driver = Driver::start().await;
    driver.show(json!([row(1, true), {"id": "driver", "isActive": true}]));
    create_application(&cluster, driver.port).await;
    let config = "recovery: {driverView: {interval: 5s}}";
    let replica = Process::start(&cluster, "r0", config, &cluster.kubeconfig());
    eventually("the driver's view is shown", async || report(&replica).await["driverView"]["registered"] == 1).await;
    let view = report(&replica).await["driverView"].clone();
    assert_eq!((&view["target"], &view["complete"], &view["vanished"]), (&json!(7), &json!(true), &json!([])));
    // The driver removes an executor whose pod runs on, and counts on one without a pod.
    driver.show(json!([row(1, true), row(2, false), row(9, true)]));
    eventually("the next view is shown", async || report(&replica).await["driverView"]["vanished"] == json!([9])).await;
    let troubled = report(&replica).await["troubled"].clone();
    let why = troubled[0]["why"].as_str().unwrap();
    assert!(troubled[0]["pod"] == "nb-exec-2" && why.contains("runs, but its driver removed it: lost"), "{troubled}");
    let metrics = metrics(&replica).await;
    assert!(!metrics.contains(r#"spark_usher_driver_polls_total{outcome="view"} 0"#), "{metrics}");
    assert!(metrics.contains(r#"spark_usher_driver_polls_total{outcome="forbidden"} 0"#), "{metrics}");
    let debug = format!("http://{}", replica.debug);
    let why = std::process::Command::new(program()).args(["why", APP, "--debug", &debug]).output().unwrap();
    let why = String::from_utf8(why.stdout).unwrap();
    assert!(why.contains("view      its driver has 2 executors registered") && why.contains("it wants 7"), "{why}");
    assert!(why.contains("it counts on executors that have no live pod: 9"), "{why}");
    assert!(why.contains("runs, but its driver removed it: lost"), "{why}");
    // Two polls without an answer.
    driver.tasks.shutdown().await;
    eventually("the view of a silent driver is void", async || report(&replica).await["driverView"] == Value::Null)
        .await;
}

/// A real API server refuses to connect to addresses of the loopback network, so its proxy cannot be tested with a fake driver.
#[tokio::test(flavor = "multi_thread")]
async fn driver_is_polled_through_the_proxy_of_the_api_server() {
    let cluster = Cluster::start().await;
    if cluster.is_real() {
        return println!("skipped: a real API server's proxy does not connect to loopback addresses");
    }
    let driver = Driver::start().await;
    driver.show(json!([row(1, true)]));
    create_application(&cluster, driver.port).await;
    let config = "recovery: {driverView: {access: proxy, interval: 5s}}";
    let replica = Process::start(&cluster, "r0", config, &cluster.kubeconfig());
    eventually("the driver's view is shown", async || report(&replica).await["driverView"]["registered"] == 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn drivers_are_not_polled_if_that_is_turned_off() {
    let cluster = Cluster::start().await;
    let driver = Driver::start().await;
    driver.show(json!([row(1, true)]));
    create_application(&cluster, driver.port).await;
    let replica = Process::start(&cluster, "r0", "recovery: {driverView: {access: none}}", &cluster.kubeconfig());
    eventually("the application is shown", async || report(&replica).await["executors"]["running"] == 2).await;
    eventually("the replica leads", async || replica.leads()).await;
    tokio::time::sleep(std::time::Duration::from_secs(3)).await;
    assert_eq!(report(&replica).await["driverView"], Value::Null);
}
