//! The leader polls a driver for its view of its executors, and the reports show what it says.

use crate::support::cluster::{Cluster, eventually};
use crate::support::driver::{Driver, row};
use crate::support::process::{Process, get as get_from, program};
use crate::support::*;
use serde_json::{Value, json};

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
    driver.create_application(&cluster).await;
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
    let why = std::process::Command::new(program()).args(["why", APP, "--replica", &debug]).output().unwrap();
    let why = String::from_utf8(why.stdout).unwrap();
    assert!(why.contains("view      its driver has 2 executors registered") && why.contains("it wants 7"), "{why}");
    assert!(why.contains("it counts on executors that have no live pod: 9"), "{why}");
    assert!(why.contains("runs, but its driver removed it: lost"), "{why}");
    // Two polls without an answer.
    driver.stop().await;
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
    driver.create_application(&cluster).await;
    let config = "recovery: {driverView: {access: proxy, interval: 5s}}";
    let replica = Process::start(&cluster, "r0", config, &cluster.kubeconfig());
    eventually("the driver's view is shown", async || report(&replica).await["driverView"]["registered"] == 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn drivers_are_not_polled_if_that_is_turned_off() {
    let cluster = Cluster::start().await;
    let driver = Driver::start().await;
    driver.show(json!([row(1, true)]));
    driver.create_application(&cluster).await;
    let replica = Process::start(&cluster, "r0", "recovery: {driverView: {access: none}}", &cluster.kubeconfig());
    eventually("the application is shown", async || report(&replica).await["executors"]["running"] == 2).await;
    eventually("the replica leads", async || replica.leads()).await;
    tokio::time::sleep(std::time::Duration::from_secs(3)).await;
    assert_eq!(report(&replica).await["driverView"], Value::Null);
}

const VOLCANO: (&str, &str) = ("scheduling.volcano.sh", "v1beta1");

#[tokio::test(flavor = "multi_thread")]
async fn gang_of_a_driver_without_configuration_waits_until_its_web_ui_states_the_size() {
    const ADDRESS: &str = "127.0.7.1";
    let cluster = Cluster::start().await;
    cluster.serve_groups(VOLCANO.0, VOLCANO.1).await;
    let app = cluster.usher("policies: [{name: p, scheduler: {type: volcano}}]").await;
    let notebook = cluster.pod_by(&cluster.client, &pod("notebook")).await;
    cluster.phase("notebook", "Running").await;
    cluster.run_at("notebook", ADDRESS).await;
    let by_notebook = cluster.client_of_pod(&notebook).await;
    cluster.pod_by(&by_notebook, &executor(1)).await;
    let groups = cluster.objects(VOLCANO.0, VOLCANO.1, "PodGroup");
    let sizes = async || -> Vec<Value> {
        let all = groups.list(&Default::default()).await.unwrap().items;
        all.iter().map(|group| group.data["spec"]["minMember"].clone()).collect()
    };
    tokio::time::sleep(std::time::Duration::from_secs(3)).await;
    assert_eq!(sizes().await, [Value::Null; 0], "no executor may start alone");
    let _driver = Driver::start_at(&format!("{ADDRESS}:4040")).await;
    eventually("the PodGroup is created", async || !sizes().await.is_empty()).await;
    assert_eq!(sizes().await, [json!(3)]);
    app.stop().await.unwrap();
}
