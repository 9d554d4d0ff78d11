//! Recovery rules of a running replica: executors that never register, orphans, and pods that terminate forever.

use crate::support::cluster::{Cluster, eventually};
use crate::support::driver::{Driver, row};
use crate::support::process::{Process, program};
use crate::support::*;
use k8s_openapi::api::coordination::v1::Lease;
use kube::ResourceExt;
use kube::api::{Api, Patch, PatchParams};
use serde_json::{Value, json};
use usher_server::cluster::lease::WITHHELD_ANNOTATION;

/// Rules that act soon, with a budget that grows by one deletion a second.
const ACTS: &str = "recovery:
  act: true
  budget: 3600/h
  driverView: {interval: 5s}
  stuck: {mode: act, after: 10s, budget: 3600/h}
  unregistered: {mode: act, after: 10s, budget: 3600/h}
  orphans: {after: 10s, budget: 3600/h}
  refused: {after: 10s, budget: 3600/h}
  terminating: {mode: act, after: 10s, budget: 3600/h}
";

async fn report(replica: &Process) -> Value {
    replica.debug("/debug/apps").await[0].clone()
}

async fn exists(cluster: &Cluster, name: &str) -> bool {
    cluster.pods().get_opt(name).await.unwrap().is_some()
}

/// What `why NAME` prints.
fn why(replica: &Process, name: &str) -> String {
    let debug = format!("http://{}", replica.debug);
    let why = std::process::Command::new(program()).args(["why", name, "--replica", &debug]).output().unwrap();
    String::from_utf8(why.stdout).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn executor_that_never_registers_is_deleted_and_its_driver_keeps_the_others() {
    let cluster = Cluster::start().await;
    let driver = Driver::start().await;
    driver.show(json!([row(1, true)]));
    driver.create_application(&cluster).await;
    let quota = cluster
        .create(json!({"apiVersion": "v1", "kind": "ResourceQuota",
            "metadata": {"name": "full", "namespace": cluster.namespace}, "spec": {"hard": {"pods": "2"}}}))
        .await;
    let status = json!({"status": {"hard": {"pods": "2"}, "used": {"pods": "2"}}});
    let quotas = cluster.objects("", "v1", "ResourceQuota");
    quotas.patch_status(&quota.name_any(), &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
    let replica = Process::start(&cluster, "r0", ACTS, &cluster.kubeconfig());
    eventually("the unregistered executor is deleted", async || !exists(&cluster, "nb-exec-2").await).await;
    assert!(exists(&cluster, "nb-exec-1").await && exists(&cluster, "nb-driver").await);
    eventually("the deletion is shown", async || report(&replica).await["deletions"][0]["pod"] == "nb-exec-2").await;
    eventually("an Event reports it", async || cluster.has_event("nb-exec-2", "ExecutorNotRegistered").await).await;
    let names_rule =
        |text: &str| text.contains("recovery  deleted by spark-usher at") && text.contains("(unregistered)");
    eventually("its exit names the rule", async || names_rule(&why(&replica, "nb-exec-2"))).await;
    let report = report(&replica).await;
    let shortage = &report["shortage"];
    assert_eq!((&shortage["target"], &shortage["running"]), (&json!(7), &json!(1)), "{report}");
    let cause = &shortage["causes"][0];
    assert_eq!((&cause["cause"], &cause["count"]), (&json!("quota"), &json!(6)), "{report}");
    assert_eq!(cause["message"], "ResourceQuota full: 2 of 2 pods in use");
    let text = why(&replica, APP);
    assert!(text.contains("lacks     6 of 7 executors (the target of its dynamic allocation)"), "{text}");
    let metrics = crate::support::process::get(replica.metrics, "/metrics").await;
    assert!(metrics.contains(r#"spark_usher_recovery_deletions_total{rule="unregistered"} 1"#), "{metrics}");
    // A rule deletes nothing of a driver that no longer answers.
    driver.show(json!([]));
    drop(driver);
    tokio::time::sleep(std::time::Duration::from_secs(15)).await;
    assert!(exists(&cluster, "nb-exec-1").await);
}

/// What `cost` prints.
fn cost(args: &[&str]) -> (Option<i32>, String) {
    let cost = std::process::Command::new(program()).arg("cost").args(args).output().unwrap();
    let text = String::from_utf8_lossy(&cost.stdout).into_owned() + &String::from_utf8_lossy(&cost.stderr);
    (cost.status.code(), text)
}

#[tokio::test(flavor = "multi_thread")]
async fn cost_of_executors_that_do_no_work_is_measured() {
    let cluster = Cluster::start().await;
    let driver = cluster.pod_by(&cluster.client, &pod("nb-driver").driver_of(APP)).await;
    cluster.phase("nb-driver", "Running").await;
    // The nodes of these pods do not exist: nothing else changes them.
    for id in 1..=2 {
        let owned = executor(id).owned_by("Pod", "nb-driver", &driver.uid().unwrap()).spec("nodeName", "no-such-node");
        cluster.pod_by(&cluster.client, &owned).await;
        cluster.phase(&format!("nb-exec-{id}"), "Running").await;
    }
    let replica = Process::start(&cluster, "r0", "recovery: {act: false}", &cluster.kubeconfig());
    eventually("the replica leads", async || replica.leads()).await;
    let debug = format!("http://{}", replica.debug);
    let (code, text) = cost(&["--replica", &debug]);
    assert!(code == Some(0) && text.starts_with("nothing measured: "), "{text}");
    cluster.phase("nb-driver", "Failed").await;
    // Rounds follow changes, at most every five seconds.
    for id in 3..=4 {
        tokio::time::sleep(std::time::Duration::from_secs(6)).await;
        let owned = executor(id).owned_by("Pod", "nb-driver", &driver.uid().unwrap());
        cluster.pod_by(&cluster.client, &owned).await;
    }
    let measured = async || replica.debug("/debug/cost").await["namespaces"][0]["coreSeconds"].as_f64().is_some();
    eventually("the orphans are measured", measured).await;
    for (by, head) in [("namespace", "NAMESPACE"), ("application", "NAMESPACE"), ("cause", "CAUSE")] {
        let (code, text) = cost(&["--replica", &debug, "--by", by]);
        let lines: Vec<&str> = text.lines().collect();
        assert!(code == Some(0) && lines[0].starts_with("requested by executors that did no work, since "), "{text}");
        assert!(lines[1].starts_with(head) && lines[1].ends_with("CORE-HOURS  GIB-HOURS"), "{text}");
        assert!(lines[2].contains("orphaned") && lines.len() == 3, "{text}");
    }
    let (_, other) = cost(&["--replica", &debug, "-n", "elsewhere", "-o", "json"]);
    assert_eq!(serde_json::from_str::<Value>(&other).unwrap()["namespaces"], json!([]));
    let metrics = crate::support::process::get(replica.metrics, "/metrics").await;
    assert!(metrics.contains(r#"spark_usher_wasted_core_seconds_total{cause="orphaned""#), "{metrics}");
    let (code, text) = cost(&["--no-leader"]);
    let expected =
        "only the leader of a running spark-usher knows this: --no-leader, or SPARK_USHER_NO_LEADER, does not ask it";
    assert!(code == Some(1) && text.contains(expected), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn executors_of_a_driver_that_is_gone_are_deleted_if_the_garbage_collector_keeps_them() {
    let cluster = Cluster::start().await;
    let driver = Driver::start().await;
    driver.show(json!([row(1, true), row(2, true)]));
    driver.create_application(&cluster).await;
    let replica = Process::start(&cluster, "r0", ACTS, &cluster.kubeconfig());
    eventually("the application is shown", async || report(&replica).await["executors"]["running"] == 2).await;
    cluster.phase("nb-driver", "Failed").await;
    eventually("orphans are found", async || {
        report(&replica).await["findings"][0]["rule"] == "orphans" || !exists(&cluster, "nb-exec-1").await
    })
    .await;
    eventually("orphans are deleted", async || {
        !exists(&cluster, "nb-exec-1").await && !exists(&cluster, "nb-exec-2").await
    })
    .await;
    assert!(exists(&cluster, "nb-driver").await, "the driver's pod is left to the submitter");
}

#[tokio::test(flavor = "multi_thread")]
async fn executors_whose_owner_has_ended_are_kept_while_another_pod_that_may_be_their_driver_runs() {
    let cluster = Cluster::start().await;
    // The pod that launched the driver controls the executors.
    let launcher = cluster.pod_by(&cluster.client, &pod("launcher")).await;
    cluster.pod_by(&cluster.client, &pod("nb-driver").driver_of(APP)).await;
    cluster.phase("nb-driver", "Running").await;
    for id in 1..=2 {
        let owned = executor(id).owned_by("Pod", "launcher", &launcher.uid().unwrap());
        cluster.pod_by(&cluster.client, &owned).await;
        cluster.phase(&format!("nb-exec-{id}"), "Running").await;
    }
    cluster.phase("launcher", "Succeeded").await;
    let replica = Process::start(&cluster, "r0", ACTS, &cluster.kubeconfig());
    eventually("the finding names what contradicts", async || {
        let finding = report(&replica).await["findings"][0].clone();
        let message = finding["message"].as_str().unwrap_or_default();
        finding["outcome"] == "not deleted, because its driver may be alive"
            && message.ends_with("; pod nb-driver runs and is labelled as its driver")
    })
    .await;
    tokio::time::sleep(std::time::Duration::from_secs(12)).await;
    assert!(exists(&cluster, "nb-exec-1").await && exists(&cluster, "nb-exec-2").await);
    cluster.phase("nb-driver", "Failed").await;
    eventually("orphans are deleted", async || {
        !exists(&cluster, "nb-exec-1").await && !exists(&cluster, "nb-exec-2").await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn mode_warn_and_the_setting_that_stops_all_deletions_report_only() {
    let cluster = Cluster::start().await;
    let driver = Driver::start().await;
    driver.show(json!([row(1, true)]));
    driver.create_application(&cluster).await;
    let stopped = ACTS.replace("  act: true\n", "");
    let replica = Process::start(&cluster, "r0", &stopped, &cluster.kubeconfig());
    let outcome = async || report(&replica).await["findings"][0]["outcome"].clone();
    eventually("the finding is shown", async || outcome().await == "would be deleted, but recovery.act is false").await;
    eventually("an Event reports it", async || cluster.has_event("nb-exec-2", "ExecutorNotRegistered").await).await;
    assert!(exists(&cluster, "nb-exec-2").await);
    let text = why(&replica, "nb-exec-2");
    assert!(text.contains("recovery  would be deleted, but recovery.act is false (unregistered): has run"), "{text}");
    let metrics = crate::support::process::get(replica.metrics, "/metrics").await;
    assert!(metrics.contains(r#"spark_usher_recovery_findings{rule="unregistered"} 1"#), "{metrics}");
    // What would have been deleted, for Prometheus and for doctor.
    assert!(metrics.contains(r#"spark_usher_recovery_withheld_total{rule="unregistered"} 1"#), "{metrics}");
    let leases: Api<Lease> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    eventually("the Lease says so", async || {
        let lease = leases.get("spark-usher").await.unwrap();
        lease.annotations().get(WITHHELD_ANNOTATION).is_some_and(|withheld| withheld == "1 by unregistered")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn terminating_executor_is_deleted_by_force_only_if_its_node_no_longer_exists() {
    let cluster = Cluster::start().await;
    if cluster.is_real() {
        return println!("skipped: a real API server deletes pods that no kubelet runs immediately");
    }
    let driver = Driver::start().await;
    driver.show(json!([]));
    driver.create_application(&cluster).await;
    let uid = cluster.pods().get("nb-driver").await.unwrap().uid().unwrap();
    let nodes: kube::Api<k8s_openapi::api::core::v1::Node> = kube::Api::all(cluster.client.clone());
    let node = nodes.list(&Default::default()).await.unwrap().items.remove(0).name_any();
    for (id, node) in [(3, "no-such-node"), (4, &*node)] {
        let down = executor(id).owned_by("Pod", "nb-driver", &uid).spec("nodeName", node);
        cluster.pod_by(&cluster.client, &down.annotation("sandbox.spark-usher.io/node", "down")).await;
        let params = kube::api::DeleteParams { grace_period_seconds: Some(1), ..Default::default() };
        cluster.pods().delete(&format!("nb-exec-{id}"), &params).await.unwrap();
    }
    let replica = Process::start(&cluster, "r0", ACTS, &cluster.kubeconfig());
    eventually("the pod on no node is deleted", async || !exists(&cluster, "nb-exec-3").await).await;
    assert!(exists(&cluster, "nb-exec-4").await);
    eventually("the other one is found", async || {
        let findings = report(&replica).await["findings"].clone();
        findings
            .as_array()
            .unwrap()
            .iter()
            .any(|finding| finding["pod"] == "nb-exec-4" && finding["rule"] == "terminating")
    })
    .await;
}
