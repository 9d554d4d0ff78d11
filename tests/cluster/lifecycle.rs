//! The lifecycle manager end to end: spark-usher as processes that are killed, whose watches fall silent, and with three
//! replicas.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::support::cluster::{Cluster, eventually};
use crate::support::process::{Process, Relay, get};
use crate::support::*;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::events::v1::Event;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams};
use serde_json::{Value, json};

/// Writes the status of an exited executor, as a kubelet does.
async fn write_exit_status(cluster: &Cluster, pod: &str, code: i32, reason: &str) {
    let terminated = json!({"exitCode": code, "reason": reason, "finishedAt": whole_seconds()});
    let status = json!({"status": {"phase": if code == 0 { "Succeeded" } else { "Failed" }, "containerStatuses": [{
        "name": "main", "image": "spark", "imageID": "", "ready": false, "restartCount": 0,
        "state": {"terminated": terminated}}]}});
    cluster.pods().patch_status(pod, &PatchParams::default(), &Patch::Strategic(&status)).await.unwrap();
}

/// Executors of an application whose driver's pod has failed, so that it cannot clean them up.
async fn create_finished_executors(cluster: &Cluster, count: u32) {
    let driver = cluster.pod_by(&cluster.client, &pod("nb-driver").driver_of(APP)).await;
    cluster.phase("nb-driver", "Running").await;
    for id in 1..=count {
        let owned = executor(id).owned_by("Pod", "nb-driver", &driver.uid().unwrap());
        cluster.pod_by(&cluster.client, &owned).await;
        write_exit_status(cluster, &format!("nb-exec-{id}"), 137, "Error").await;
    }
    cluster.phase("nb-driver", "Failed").await;
}

async fn executors(cluster: &Cluster) -> Vec<Pod> {
    cluster.pods().list(&ListParams::default().labels("spark-role=executor")).await.unwrap().items
}

/// Completes deletions as the pod garbage collector of Kubernetes does for pods without a node
/// (`gcUnscheduledTerminating` in `pkg/controller/podgc/gc_controller.go`). An API server deletes in two writes,
/// `deletionTimestamp` first, and omits the second one if the client has disconnected meanwhile. No controller runs here.
async fn collect_terminating(cluster: &Cluster) {
    for pod in executors(cluster).await {
        if pod.metadata.deletion_timestamp.is_some() {
            let now = DeleteParams::default().grace_period(0);
            cluster.pods().delete(&pod.name_any(), &now).await.map_or_else(|error| assert_not_found(&error), |_| ());
        }
    }
}

/// Another client may have deleted it meanwhile.
fn assert_not_found(error: &kube::Error) {
    assert!(matches!(error, kube::Error::Api(status) if status.code == 404), "{error}");
}

async fn exits(replica: &Process) -> Vec<Value> {
    let apps = replica.debug("/debug/apps").await;
    apps.as_array().unwrap().iter().flat_map(|app| app["exits"].as_array().unwrap().clone()).collect()
}

async fn holder(cluster: &Cluster) -> Option<String> {
    let leases: Api<Lease> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    leases.get_opt("spark-usher").await.unwrap()?.spec?.holder_identity
}

fn leader(replicas: &[Process]) -> Option<usize> {
    replicas.iter().position(Process::leads)
}

const DELETE: &str = "lifecycle: {finished: delete, poll: 5s}";

#[tokio::test(flavor = "multi_thread")]
async fn leader_killed_during_cleanup_is_replaced_and_every_exit_is_reported() {
    let cluster = Cluster::start().await;
    let kubeconfig = cluster.kubeconfig();
    let mut replicas: Vec<Process> =
        (0..3).map(|n| Process::start(&cluster, &format!("r{n}"), DELETE, &kubeconfig)).collect();
    eventually("a replica leads", async || leader(&replicas).is_some()).await;
    let first = leader(&replicas).unwrap();
    create_finished_executors(&cluster, 60).await;
    eventually("some executors are deleted", async || executors(&cluster).await.len() < 58).await;
    let before = holder(&cluster).await;
    let killed = Instant::now();
    let mut dead = replicas.remove(first);
    dead.kill();
    let remaining = executors(&cluster).await.len();
    let mut took_over = None;
    eventually("another replica deletes the rest", async || {
        if took_over.is_none() && holder(&cluster).await != before {
            took_over = Some(killed.elapsed());
        }
        collect_terminating(&cluster).await;
        executors(&cluster).await.is_empty()
    })
    .await;
    let took_over = took_over.unwrap_or_else(|| killed.elapsed());
    println!(
        "killed with {remaining} of 60 left; another replica leads after {took_over:?} (limit 5 s), all are deleted after {:?}",
        killed.elapsed()
    );
    // Every exit was reported, and no replica reported one twice.
    eventually("every exit is reported", async || {
        let mut reported = std::collections::BTreeSet::new();
        for replica in replicas.iter().chain([&dead]) {
            let lines = replica.log_lines("executor exited");
            let pods: std::collections::BTreeSet<String> = lines.iter().map(|line| line["pod"].to_string()).collect();
            assert_eq!(lines.len(), pods.len(), "one replica reported an exit twice");
            reported.extend(pods);
        }
        reported.len() == 60
    })
    .await;
    // A graceful stop hands over immediately.
    let first = leader(&replicas).unwrap();
    let before = holder(&cluster).await;
    let begin = Instant::now();
    replicas[first].terminate();
    while holder(&cluster).await.is_none_or(|holder| Some(&holder) == before.as_ref()) {
        assert!(begin.elapsed() < Duration::from_secs(60), "{}", replicas[1 - first].log());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    println!("after SIGTERM another replica leads within {:?} (limit 300 ms)", begin.elapsed());
}

/// A replica behind a relay, which requires the sandbox: the relay forwards plain HTTP.
async fn behind_a_relay(cluster: &Cluster, config: &str) -> Option<(Relay, Process)> {
    behind_a_relay_with(cluster, config, &[]).await
}

/// The same with additional arguments.
async fn behind_a_relay_with(cluster: &Cluster, config: &str, more: &[&str]) -> Option<(Relay, Process)> {
    let Some(sandbox) = cluster.sandbox() else {
        eprintln!("SKIPPED: requires the sandbox: a relay cannot silence the encrypted watches of a real API server");
        return None;
    };
    let to = sandbox.http_url().trim_start_matches("http://").trim_end_matches('/').parse().unwrap();
    let relay = Relay::start(to).await;
    let ca = cluster.folder().join("one.ca").display().to_string();
    let certificate = ["--self-signed-for", "localhost", "--ca-out", &ca];
    let arguments = [&certificate, more].concat();
    let replica = Process::start_serving(&arguments, &[], cluster, "one", config, &relay.kubeconfig());
    eventually("the replica leads", async || replica.leads()).await;
    Some((relay, replica))
}

#[tokio::test(flavor = "multi_thread")]
async fn deletion_missed_by_watch_is_detected_by_poll() {
    let cluster = Cluster::start().await;
    let Some((relay, replica)) = behind_a_relay(&cluster, DELETE).await else { return };
    cluster.pod_by(&cluster.client, &executor(1)).await;
    cluster.phase("nb-exec-1", "Running").await;
    eventually("the snapshot contains the executor", async || {
        replica.debug("/debug/apps").await[0]["executors"]["running"] == 1
    })
    .await;
    relay.swallow(true);
    cluster.kill("nb-exec-1").await;
    let deleted_at = Instant::now();
    eventually("its absence is detected", async || !exits(&replica).await.is_empty()).await;
    let after = deleted_at.elapsed();
    assert!(relay.swallowed.load(Ordering::SeqCst), "the relay swallowed no deletion");
    let exit = exits(&replica).await.remove(0);
    assert_eq!(exit["cause"], "vanished", "{exit}");
    assert_eq!(exit["spark"]["causedByApp"], false);
    assert!(exit["spark"]["message"].as_str().unwrap().contains("was not found in the cluster at the polling time"));
    println!("vanished, reported after {after:?} (limit: poll 5 s + delta 5 s + 10 s for the watch to show it)");
    let metrics = get(replica.metrics, "/metrics").await;
    assert!(metrics.contains("spark_usher_executor_exits_total{cause=\"vanished\",exit_code=\"none\"} 1"), "{metrics}");
    assert!(metrics.contains("spark_usher_watch_desyncs_total 0"), "a watch that is late has lost nothing");
    let polled = metrics.lines().find(|line| line.starts_with("spark_usher_poll_bytes_total")).unwrap();
    assert!(!polled.ends_with(" 0"), "{polled}");
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_that_lost_an_event_is_restarted() {
    let cluster = Cluster::start().await;
    let Some((relay, replica)) = behind_a_relay(&cluster, DELETE).await else { return };
    for id in [1, 2] {
        cluster.pod_by(&cluster.client, &executor(id)).await;
        cluster.phase(&format!("nb-exec-{id}"), "Running").await;
    }
    eventually("the snapshot contains the executors", async || {
        replica.debug("/debug/apps").await[0]["executors"]["running"] == 2
    })
    .await;
    tokio::time::sleep(Duration::from_secs(6)).await; // Older than the delta, so that an absence counts.
    relay.swallow(true);
    cluster.kill("nb-exec-1").await;
    let mut count = 0;
    eventually("later events prove the loss", async || {
        count += 1;
        let patch = json!({"metadata": {"annotations": {"count": count.to_string()}}});
        cluster.pods().patch("nb-exec-2", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
        tokio::time::sleep(Duration::from_millis(300)).await;
        get(replica.metrics, "/metrics").await.contains("spark_usher_watch_desyncs_total 1")
    })
    .await;
    eventually("its exit is reported", async || !exits(&replica).await.is_empty()).await;
    assert_eq!(exits(&replica).await[0]["cause"], "vanished");
    assert_eq!(replica.log_lines("the watch of pods is silent or has lost a change; restarting it").len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_watch_is_detected_and_restarted() {
    let cluster = Cluster::start().await;
    let silence = ["--watch-silence-seconds", "15"];
    let Some((relay, replica)) = behind_a_relay_with(&cluster, DELETE, &silence).await else { return };
    cluster.pod_by(&cluster.client, &executor(1)).await;
    cluster.phase("nb-exec-1", "Running").await;
    eventually("the snapshot contains the executor", async || {
        replica.debug("/debug/apps").await[0]["executors"]["running"] == 1
    })
    .await;
    relay.silence();
    write_exit_status(&cluster, "nb-exec-1", 1, "Error").await;
    let begin = Instant::now();
    eventually("its exit is detected nevertheless", async || !exits(&replica).await.is_empty()).await;
    println!("a silent watch: an exit is reported after {:?} (poll 5 s)", begin.elapsed());
    assert_eq!(exits(&replica).await[0]["cause"], "error");
    // A new watch shows changes within a second.
    eventually("the watch is restarted", async || {
        !replica.log_lines("the watch of pods is silent or has lost a change; restarting it").is_empty()
    })
    .await;
    tokio::time::sleep(Duration::from_millis(1500)).await;
    cluster.pod_by(&cluster.client, &executor(2)).await;
    let begin = Instant::now();
    eventually("a new executor is in the snapshot", async || {
        replica.debug("/debug/apps").await[0]["executors"]["pending"] == 1
    })
    .await;
    let visible = begin.elapsed();
    println!("an event is visible in /debug/apps after {visible:?} (limit 1 s)");
}

#[tokio::test(flavor = "multi_thread")]
async fn exits_reach_log_metrics_event_and_cli_and_labels_wait_for_driver_grace() {
    let cluster = Cluster::start().await;
    let config = "lifecycle: {finished: label, grace: 1s, poll: 5s}";
    let replica = Process::start(&cluster, "one", config, &cluster.kubeconfig());
    let driver = cluster.pod_by(&cluster.client, &pod("nb-driver").driver_of(APP).conf_map("conf")).await;
    let conf =
        "spark.kubernetes.executor.apiPollingInterval=1s\nspark.kubernetes.executor.missingPodDetectDelta=500ms\n";
    cluster
        .create(json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "conf", "namespace": cluster.namespace}, "data": {"spark.properties": conf}}))
        .await;
    cluster.phase("nb-driver", "Running").await;
    for id in 1..=4 {
        let owned = executor(id).owned_by("Pod", "nb-driver", &driver.uid().unwrap());
        cluster.pod_by(&cluster.client, &owned.label("spark-version", "4.3.0").driver_url("d")).await;
        cluster.phase(&format!("nb-exec-{id}"), "Running").await;
    }
    eventually("the executors run", async || replica.debug("/debug/apps").await[0]["executors"]["running"] == 4).await;
    let begin = Instant::now();
    write_exit_status(&cluster, "nb-exec-1", 137, "OOMKilled").await;
    write_exit_status(&cluster, "nb-exec-2", 137, "OOMKilled").await;
    write_exit_status(&cluster, "nb-exec-3", 0, "Completed").await;
    cluster.kill("nb-exec-4").await;
    eventually("the four exits are detected", async || exits(&replica).await.len() == 4).await;
    let causes: Vec<String> = exits(&replica)
        .await
        .iter()
        .map(|exit| format!("{} {}", exit["pod"], exit["cause"]).replace('"', ""))
        .collect();
    for wanted in ["nb-exec-1 oom-killed", "nb-exec-2 oom-killed", "nb-exec-3 completed", "nb-exec-4 deleted"] {
        assert!(causes.contains(&wanted.to_owned()), "{causes:?}");
    }
    let metrics = get(replica.metrics, "/metrics").await;
    assert!(
        metrics.contains("spark_usher_executor_exits_total{cause=\"oom-killed\",exit_code=\"137\"} 2"),
        "{metrics}"
    );

    // The driver goes first: it detects exits within 1 s + 500 ms, and the grace period is twice that.
    let label = async |name: &str| {
        let pod = cluster.pods().get(name).await.unwrap();
        (pod.labels().get("spark-exec-inactive").cloned(), pod.annotations().get("spark-usher.io/ended").cloned())
    };
    assert_eq!(label("nb-exec-1").await, (None, None));
    eventually("the executors are labelled", async || {
        label("nb-exec-3").await.0.is_some() && label("nb-exec-2").await.0.is_some()
    })
    .await;
    assert!(begin.elapsed() >= Duration::from_secs(3), "{:?}", begin.elapsed());
    assert_eq!(label("nb-exec-1").await, (Some("true".into()), Some("oom-killed".into())));

    // The report of the deletion waits for an exit of the driver, which would explain it.
    eventually("the exits are reported", async || replica.log_lines("executor exited").len() == 4).await;
    // One Event per driver and cause, with a count; none for normal exits.
    let events: Api<Event> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    eventually("the Event counts two", async || {
        let all = events.list(&ListParams::default()).await.unwrap().items;
        let exit_events: Vec<_> = all.iter().filter(|event| event.reason.as_deref() == Some("ExecutorEnded")).collect();
        assert!(exit_events.len() <= 1, "{exit_events:?}");
        exit_events.first().is_some_and(|event| {
            assert_eq!(event.regarding.as_ref().unwrap().name.as_deref(), Some("nb-driver"));
            assert_eq!(event.action.as_deref(), Some("oom-killed"));
            event.series.as_ref().is_some_and(|series| series.count == 2)
        })
    })
    .await;

    // The same with the command line: through the debug listener, and from the API server only.
    let ask = |args: &[&str]| {
        let out = std::process::Command::new(env!("CARGO_BIN_EXE_spark-usher")).args(args).output().unwrap();
        (out.status.code(), String::from_utf8(out.stdout).unwrap(), String::from_utf8(out.stderr).unwrap())
    };
    let debug = format!("http://{}", replica.debug);
    let (code, text, error) = ask(&["why", "nb-exec-4", "--replica", &debug]);
    assert_eq!(code, Some(0), "{error}");
    assert!(text.contains("cause     deleted: The pod was deleted."), "{text}");
    let kubeconfig = cluster.folder().join("one.kubeconfig").display().to_string();
    let (code, text, error) = ask(&["why", "nb-exec-1", "-A", "--kubeconfig", &kubeconfig]);
    assert_eq!(code, Some(0), "{error}");
    assert!(text.contains("labelled inactive by spark-usher"), "{text}");
    let (code, _, error) = ask(&["why", "nb-exec-4", "-A", "--kubeconfig", &kubeconfig]);
    assert_eq!(code, Some(1));
    assert!(error.contains("no information about nb-exec-4"), "{error}");
    let (_, text, error) = ask(&["apps", "--kubeconfig", &kubeconfig, "--namespace", &cluster.namespace]);
    assert!(text.contains("nb-driver (running)") && text.contains(APP), "{text}{error}");
    let (_, text, _) = ask(&["apps", "-A", "-o", "json", "--replica", &debug]);
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap()[0]["driver"]["liveness"], "alive");
    let (_, text, error) = ask(&["why", APP, "--replica", &debug]);
    assert!(text.contains("  driver    nb-driver (running)"), "{text}{error}");
    assert!(text.contains("  exits     1 completed, 1 deleted, 2 oom-killed"), "{text}");
    // A finished executor whose pod still exists is printed once.
    let (_, text, _) = ask(&["why", "pod/nb-exec-1", "--replica", &debug]);
    assert_eq!(text.matches("nb-exec-1  executor 1 of").count(), 1, "{text}");
    assert!(text.contains("cause     oom-killed") && text.contains("state     failed"), "{text}");

    // Every error says what was expected.
    let assert_error = |args: &[&str], words: &[&str]| {
        let (code, text, error) = ask(args);
        assert_ne!(code, Some(0), "{args:?}: {text}");
        for word in words {
            assert!(error.contains(word), "{args:?}: {error}");
        }
        assert!(!error.contains("Status {"), "{args:?}: {error}");
    };
    let mut stray = pod("stray").label("spark-role", "driver");
    stray.0["metadata"]["namespace"] = cluster.namespace.clone().into();
    cluster.pod_by(&cluster.client, &stray).await;
    let of = ["--kubeconfig", &kubeconfig];
    assert_error(&["why", "stray", "-A", of[0], of[1]], &["exists, but it has no label spark-app-selector"]);
    assert_error(&["why", "nb-exec-4", "-n", "other", "--replica", &debug], &["in namespace other"]);
    assert_error(&["apps", "-n", "No Such", "--replica", &debug], &["expected a namespace"]);
    let metrics = format!("http://{}", replica.metrics);
    assert_error(&["apps", "--replica", &metrics], &["404", "expected spark-usher's debug listener (port 6060"]);
    assert_error(&["apps", "--replica", "http://127.0.0.1:1"], &["refused", "is kubectl port-forward running?"]);
    let unreachable = cluster.folder().join("unreachable.kubeconfig").display().to_string();
    std::fs::write(
        &unreachable,
        cluster.kubeconfig().replace("admin-token", "wrong").replace("127.0.0.1", "127.0.0.2"),
    )
    .unwrap();
    assert_error(&["apps", "--kubeconfig", &unreachable], &["127.0.0.2"]);
    let (code, text, error) = ask(&["apps", "-n", "other", "--replica", &debug]);
    assert_eq!(
        (code, &*text, &*error),
        (Some(0), "", "no Spark applications in namespace other; -A shows all namespaces\n")
    );
    // Names are what other commands accept.
    let (_, names, _) = ask(&["apps", "-A", "-o", "name", "--replica", &debug]);
    assert_eq!(names, format!("{}:{APP}\n", cluster.namespace));
    let (code, yaml, error) = ask(&["why", names.trim(), "-o", "yaml", "--replica", &debug]);
    assert!(code == Some(0) && yaml.contains(&format!("  app: {APP}\n")), "{yaml}{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn restarted_replica_reports_exits_once_and_after_kill_as_possibly_reported() {
    let cluster = Cluster::start().await;
    let config = "lifecycle: {finished: report}";
    cluster.pod_by(&cluster.client, &pod("nb-driver").driver_of(APP)).await;
    cluster.phase("nb-driver", "Running").await;
    for id in 1..=9 {
        cluster.pod_by(&cluster.client, &executor(id)).await;
        cluster.phase(&format!("nb-exec-{id}"), "Running").await;
    }
    // Exits before the first installation are history.
    write_exit_status(&cluster, "nb-exec-9", 137, "OOMKilled").await;
    let reported = |replica: &Process| -> Vec<(String, bool)> {
        let pod = |line: &Value| line["pod"].as_str().unwrap().rsplit('-').next().unwrap().to_owned();
        let lines = replica.log_lines("executor exited");
        lines.iter().map(|line| (pod(line), line["possibly_reported"] == true)).collect()
    };
    let kubeconfig = cluster.kubeconfig();
    let mut replica = Process::start(&cluster, "first", config, &kubeconfig);
    eventually("the first list is in the snapshot", async || !exits(&replica).await.is_empty()).await;
    for id in 1..=3 {
        write_exit_status(&cluster, &format!("nb-exec-{id}"), 137, "OOMKilled").await;
    }
    eventually("three exits are reported", async || reported(&replica).len() == 3).await;
    assert!(
        reported(&replica).iter().all(|(pod, possibly_reported)| pod != "9" && !possibly_reported),
        "{:?}",
        reported(&replica)
    );
    // While no replica runs, another executor exits.
    replica.terminate();
    assert!(replica.wait());
    tokio::time::sleep(Duration::from_secs(1)).await; // A kubelet's times are whole seconds.
    write_exit_status(&cluster, "nb-exec-4", 137, "OOMKilled").await;
    let mut replica = Process::start(&cluster, "second", config, &kubeconfig);
    eventually("the exit meanwhile is reported", async || !reported(&replica).is_empty()).await;
    write_exit_status(&cluster, "nb-exec-5", 137, "OOMKilled").await;
    eventually("a later exit is reported", async || reported(&replica).len() == 2).await;
    assert_eq!(reported(&replica), [("4".to_owned(), false), ("5".to_owned(), false)]);
    tokio::time::sleep(Duration::from_secs(3)).await; // The checkpoint is written with the next renewal.
    replica.kill();
    write_exit_status(&cluster, "nb-exec-6", 137, "OOMKilled").await;
    let replica = Process::start(&cluster, "third", config, &kubeconfig);
    eventually("the exit is reported as possibly reported", async || {
        reported(&replica).iter().any(|(pod, _)| pod == "6")
    })
    .await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    // The killed replica was not running when 4 exited, and its first list contained that: only the exit of 6 is uncertain.
    assert_eq!(reported(&replica), [("6".to_owned(), true)]);
    let metrics = get(replica.metrics, "/metrics").await;
    let possibly_reported =
        r#"spark_usher_executor_exits_possibly_repeated_total{cause="oom-killed",exit_code="137"} 1"#;
    assert!(metrics.contains(possibly_reported), "{metrics}");
    assert!(!metrics.contains(r#"spark_usher_executor_exits_total{cause="oom-killed",exit_code="137"}"#));
}

#[tokio::test(flavor = "multi_thread")]
async fn dry_run_logs_actions_and_deletes_nothing() {
    let cluster = Cluster::start().await;
    let config = "lifecycle: {finished: delete, dryRun: true}";
    let replica = Process::start(&cluster, "one", config, &cluster.kubeconfig());
    create_finished_executors(&cluster, 2).await;
    eventually("the log says so", async || {
        replica.log_lines("dry run: action not executed").iter().any(|line| line["action"] == "delete-executor")
    })
    .await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(executors(&cluster).await.len(), 2);
}
