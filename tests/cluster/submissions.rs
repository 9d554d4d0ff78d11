//! `status`, `kill`, `watch`, and `submit` while it waits, as a separate process.

use std::process::{Command, Stdio};

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams};
use serde_json::{Value, json};
use usher_sandbox::{EXIT_ANNOTATION, LOG_ANNOTATION};

use crate::support::cluster::{Cluster, eventually};
use crate::support::operator::{Running, driver, run, status, terminated};
use crate::support::pod;
use crate::support::process::program;

#[tokio::test(flavor = "multi_thread")]
async fn status_finds_drivers_by_name_pattern_application_and_label() {
    let cluster = Cluster::start().await;
    for (name, app) in [("etl-1-driver", "spark-1"), ("etl-2-driver", "spark-2"), ("ml-driver", "spark-3")] {
        cluster.pod_by(&cluster.client, &driver(name, app).label("team", &name[..2])).await;
    }
    cluster.pod_by(&cluster.client, &pod("etl-web")).await;
    status(&cluster, "ml-driver", terminated(137)).await;
    let id = |name: &str| format!("{}:{name}", cluster.namespace);
    let own = id("etl-2-driver");
    for (arguments, expected) in [
        (vec![], vec!["etl-1-driver", "etl-2-driver", "ml-driver"]),
        (vec!["ml-driver"], vec!["ml-driver"]),
        (vec![own.as_str()], vec!["etl-2-driver"]),
        (vec!["pod/ml-driver", "spark-1"], vec!["etl-1-driver", "ml-driver"]),
        (vec!["etl-*"], vec!["etl-1-driver", "etl-2-driver"]),
        (vec!["*-[12]-driver"], vec!["etl-1-driver", "etl-2-driver"]),
        (vec!["spark-?"], vec!["etl-1-driver", "etl-2-driver", "ml-driver"]),
        (vec!["-l", "team=ml"], vec!["ml-driver"]),
    ] {
        let (code, out, err) = run(&cluster, &[&["status", "-o", "name"], arguments.as_slice()].concat()).await;
        let expected: String = expected.iter().map(|name| id(name) + "\n").collect();
        assert_eq!((code, out.as_str(), err.as_str()), (Some(0), expected.as_str(), ""), "{arguments:?}");
    }
    for (arguments, words) in [
        (["status", "nope"], "nope: no driver in namespace"),
        (["status", "no*"], "no*: no driver in namespace"),
        (["status", "etl-web"], "it has no label spark-role=driver"),
    ] {
        let (code, out, err) = run(&cluster, &arguments).await;
        assert_eq!((code, out.as_str()), (Some(1), ""), "{arguments:?} {err}");
        assert!(err.contains(words), "{arguments:?} {err}");
    }
    let (_, out, _) = run(&cluster, &["status", "ml-driver", "-o", "json"]).await;
    let found: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(
        (&found[0]["state"], &found[0]["exitCode"], &found[0]["appId"]),
        (&json!("failed"), &json!(137), &json!("spark-3"))
    );
    let (_, out, _) = run(&cluster, &["status"]).await;
    assert!(out.contains("OOMKilled") && out.starts_with("ID  "), "{out}");
    let (code, _, err) = run(&cluster, &["status", "te*m:x"]).await;
    assert!(code == Some(2) && err.contains("--all-namespaces"), "{err}");
}

#[tokio::test(flavor = "multi_thread")]
async fn status_and_kill_for_scripts_print_what_spark_submit_prints() {
    let cluster = Cluster::start().await;
    cluster.pod_by(&cluster.client, &driver("pi-driver", "spark-1")).await;
    cluster.pod_by(&cluster.client, &pod("web")).await;
    let namespace = &cluster.namespace;
    let (code, out, err) = run(&cluster, &["status", "--spark-compatible", &format!("{namespace}:pi-driver")]).await;
    assert_eq!((code, out.as_str()), (Some(0), ""));
    let lines: Vec<&str> = err.lines().collect();
    assert!(
        lines[0].starts_with(&format!(
            "Submitting a request for the status of submission {namespace}:pi-driver in k8s://http"
        )),
        "{err}"
    );
    assert_eq!(
        lines[1..4],
        ["Application status (driver): ", "\t pod name: pi-driver", &format!("\t namespace: {namespace}")],
        "{err}"
    );
    assert!(lines.contains(&"\t phase: Pending") && lines.contains(&"\t start time: N/A"), "{err}");
    let (_, _, err) = run(&cluster, &["status", "--spark-compatible", "nope"]).await;
    assert!(err.ends_with("\nApplication not found.\n"), "{err}");
    // A pod that is no driver stays, whatever spark-submit does.
    let kill =
        |id: &'static str| vec!["submit", "--conf", "spark.kubernetes.appKillPodDeletionGracePeriod=7", "--kill", id];
    let (code, _, err) = run(&cluster, &kill("web")).await;
    assert!(
        code == Some(0) && err.contains("Grace period in secs: 7\n") && err.ends_with("Application not found.\n"),
        "{err}"
    );
    let (code, _, err) = run(&cluster, &["kill", "--spark-compatible", "p*"]).await;
    assert_eq!(code, Some(0));
    assert!(err.contains("Grace period in secs: not set.\nDeleting driver pod: pi-driver.\n"), "{err}");
    let (_, _, err) = run(&cluster, &["kill", "--spark-compatible", "p*"]).await;
    assert!(err.ends_with("\nNo applications found.\n"), "{err}");
    assert!(cluster.pods().get("web").await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn kill_deletes_drivers_only_and_says_what_it_did() {
    let cluster = Cluster::start().await;
    for name in ["etl-1-driver", "etl-2-driver", "etl-3-driver", "ml-driver"] {
        cluster.pod_by(&cluster.client, &driver(name, &format!("spark-{name}"))).await;
    }
    cluster.pod_by(&cluster.client, &pod("etl-web")).await;
    status(&cluster, "etl-3-driver", terminated(0)).await;
    let names = async || -> Vec<String> {
        let mut all: Vec<String> = cluster
            .pods()
            .list(&ListParams::default())
            .await
            .unwrap()
            .items
            .into_iter()
            .map(|pod| pod.metadata.name.unwrap())
            .collect();
        all.sort();
        all
    };
    // Without a terminal a pattern needs --yes.
    let (code, _, err) = run(&cluster, &["kill", "etl-*"]).await;
    assert!(code == Some(2) && err.contains("--yes"), "{err}");
    let (code, out, err) = run(&cluster, &["kill", "etl-*", "--dry-run"]).await;
    assert!(code == Some(0) && out.lines().count() == 2 && err.contains("2 drivers would be deleted"), "{out} {err}");
    let (code, _, err) = run(&cluster, &["kill"]).await;
    assert!(code == Some(2) && err.contains("expected the ids"), "{err}");
    assert_eq!(names().await.len(), 5);
    let (code, out, err) = run(&cluster, &["kill", "etl-*", "--yes", "--wait", "--timeout", "30"]).await;
    assert_eq!(code, Some(0), "{out} {err}");
    assert!(out.contains("etl-1-driver deleted") && out.contains("(2 of 2)"), "{out}");
    assert!(err.contains("1 driver that has ended is left out"), "{err}");
    assert_eq!(names().await, ["etl-3-driver", "etl-web", "ml-driver"]);
    // An exact name needs no question, and names a driver that has ended, too.
    let (code, out, err) = run(&cluster, &["kill", "etl-3-driver", "gone-driver", "etl-web"]).await;
    assert_eq!(code, Some(1), "not everything was found");
    assert!(out.contains("etl-3-driver deleted"), "{out}");
    assert!(err.contains("gone-driver: no driver") && err.contains("etl-web: a pod"), "{err}");
    assert_eq!(names().await, ["etl-web", "ml-driver"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn kill_says_which_permission_is_missing() {
    let cluster = Cluster::start_enforcing().await;
    cluster.create(json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "reader", "namespace": cluster.namespace},
        "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}]})).await;
    cluster.create(json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "reader", "namespace": cluster.namespace}})).await;
    cluster.create(json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "reader", "namespace": cluster.namespace},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"},
        "subjects": [{"kind": "ServiceAccount", "name": "reader", "namespace": cluster.namespace}]})).await;
    cluster.pod_by(&cluster.client, &driver("pi-driver", "spark-1")).await;
    let token = cluster.token(&cluster.namespace, "reader", None).await;
    let mut config: Value = serde_saphyr::from_str(&cluster.kubeconfig()).unwrap();
    config["users"][0]["user"] = json!({ "token": token });
    let path = cluster.folder().join("reader.kubeconfig").display().to_string();
    std::fs::write(&path, config.to_string()).unwrap();
    let done = |arguments: Vec<String>| {
        let mut command = Command::new(program());
        command.args(&arguments).stdin(Stdio::null());
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let arguments = ["kill", "--kubeconfig", &path, "-n", &cluster.namespace, "pi-driver"].map(str::to_owned).to_vec();
    let (code, err) = tokio::task::spawn_blocking(move || done(arguments)).await.unwrap();
    assert_eq!(code, Some(1));
    assert!(err.contains("cannot delete pod") && err.contains("cannot delete resource \"pods\""), "{err}");
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_shows_changes_until_the_named_drivers_have_ended() {
    let cluster = Cluster::start().await;
    for name in ["a-driver", "b-driver"] {
        cluster.pod_by(&cluster.client, &driver(name, &format!("spark-{name}"))).await;
    }
    let mut one = Running::start(&cluster, &["watch", "a-driver"]);
    let mut both = Running::start(&cluster, &["watch", "spark-a-driver", "b-driver", "-o", "json"]);
    let mut pattern = Running::start(&cluster, &["watch", "*-driver"]);
    for running in [&one, &both, &pattern] {
        running.says("a-driver").await;
    }
    pattern.says("b-driver").await;
    both.says("b-driver").await;
    cluster.phase("a-driver", "Running").await;
    for running in [&one, &both, &pattern] {
        running.says("running").await;
    }
    status(&cluster, "a-driver", terminated(137)).await;
    assert_eq!(one.ended().await, Some(3), "{}", one.all());
    let states: Vec<String> = one.out().iter().map(|line| line.split_whitespace().nth(2).unwrap().to_owned()).collect();
    assert_eq!(states, ["pending", "running", "failed"], "{}", one.all());
    assert!(one.out()[2].contains("after 60s") && one.out()[2].contains("OOMKilled"), "{}", one.all());
    // Deleted before it ended.
    cluster.kill("b-driver").await;
    assert_eq!(both.ended().await, Some(4), "{}", both.all());
    let last: Value = serde_json::from_str(both.out().last().unwrap()).unwrap();
    assert_eq!(
        (&last["event"], &last["name"], &last["phase"]),
        (&json!("deleted"), &json!("b-driver"), &json!("Pending"))
    );
    // A driver that comes later matches, too, and Ctrl-C ends it.
    cluster.pod_by(&cluster.client, &driver("c-driver", "spark-c")).await;
    pattern.says("c-driver").await;
    pattern.interrupt();
    assert_eq!(pattern.ended().await, Some(0), "{}", pattern.all());
    let (code, _, err) = run(&cluster, &["watch", "b-driver"]).await;
    assert!(code == Some(1) && err.contains("no driver"), "{err}");
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_for_scripts_prints_what_spark_submit_logs() {
    let cluster = Cluster::start().await;
    cluster.pod_by(&cluster.client, &driver("pi-driver", "spark-1").label("spark-app-name", "pi")).await;
    let mut watch = Running::start(&cluster, &["watch", "--spark-compatible", "pi-driver"]);
    watch.says("Application status for spark-1 (phase: Pending)").await;
    status(&cluster, "pi-driver", terminated(1)).await;
    assert_eq!(watch.ended().await, Some(0), "{}", watch.all());
    let err = watch.err.lock().unwrap().clone();
    let id = format!("{}:pi-driver", cluster.namespace);
    assert_eq!(
        err[0],
        format!("Waiting for application pi with application ID spark-1 and submission ID {id} to finish...")
    );
    assert_eq!(err[1], "State changed, new state: ");
    assert!(
        err.contains(&"\t\t exit code: 1".to_owned()) && err.contains(&"Container final statuses:".to_owned()),
        "{err:?}"
    );
    assert_eq!(
        err.last().unwrap(),
        &format!("Application pi with application ID spark-1 and submission ID {id} finished")
    );
}

const PI: [&str; 9] = [
    "submit",
    "--name",
    "pi",
    "--class",
    "org.apache.spark.examples.SparkPi",
    "--conf",
    "spark.kubernetes.container.image=reg.example/spark:4.3.0",
    "--num-executors",
    "3",
];

async fn only_driver(cluster: &Cluster) -> Pod {
    let pods: Api<Pod> = cluster.pods();
    let mut found = None;
    eventually("the driver exists", async || {
        found = pods.list(&ListParams::default().labels("spark-role=driver")).await.unwrap().items.into_iter().next();
        found.is_some()
    })
    .await;
    found.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn submit_waits_and_its_exit_code_is_the_drivers_end() {
    for (end, options, expected) in
        [(Some(0), &[][..], 0), (Some(1), &[], 3), (Some(1), &["--spark-exit-codes"], 0), (None, &[], 4)]
    {
        let cluster = Cluster::start().await;
        let mut submit = Running::start(&cluster, &[&PI[..], options, &["local:///opt/pi.jar"]].concat());
        let name = only_driver(&cluster).await.metadata.name.unwrap();
        submit.says("pending").await;
        match end {
            Some(code) => status(&cluster, &name, terminated(code)).await,
            None => cluster.kill(&name).await,
        }
        assert_eq!(submit.ended().await, Some(expected), "{end:?} {}", submit.all());
        assert!(
            submit.out()[0].starts_with("Deployed Spark application pi with application ID spark-"),
            "{}",
            submit.all()
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn interrupted_submit_leaves_the_application_and_says_how_to_stop_it() {
    let cluster = Cluster::start().await;
    let mut submit = Running::start(&cluster, &[&PI[..], &["-o", "json", "local:///opt/pi.jar"]].concat());
    submit.says("\"event\":\"state\"").await;
    submit.interrupt();
    assert_eq!(submit.ended().await, Some(130), "{}", submit.all());
    let name = only_driver(&cluster).await.metadata.name.unwrap();
    let said = submit.err.lock().unwrap().join("\n");
    assert!(
        said.contains("`spark-usher kill --kubeconfig /")
            && said.contains(&format!(" {}:{name}` stops it", cluster.namespace)),
        "{said}"
    );
    let first: Value = serde_json::from_str(&submit.out()[0]).unwrap();
    assert_eq!(
        (&first["event"], &first["name"], &first["application"], &first["appName"]),
        (&json!("submitted"), &json!(name), &json!("pi"), &json!("pi"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn submit_follows_the_drivers_log_to_its_end() {
    let Some(cluster) = Cluster::start_running().await else { return };
    let lines: Vec<String> = (1..=40).map(|number| format!("line {number}")).collect();
    let log = format!("--conf=spark.kubernetes.driver.annotation.{LOG_ANNOTATION}={}", lines.join("\n"));
    let exit = format!("--conf=spark.kubernetes.driver.annotation.{EXIT_ANNOTATION}=1@1s");
    let (code, out, err) = run(&cluster, &[&PI[..], &["--follow", &log, &exit, "local:///opt/pi.jar"]].concat()).await;
    assert_eq!(code, Some(3), "{err}");
    assert_eq!(out.lines().collect::<Vec<_>>(), lines, "only the log, whole");
    assert!(err.contains("Deployed Spark application pi") && err.contains("running") && err.contains("exit"), "{err}");
}

#[tokio::test(flavor = "multi_thread")]
async fn gang_is_written_on_the_driver_and_a_server_dry_run_stores_nothing() {
    let cluster = Cluster::start().await;
    let arguments = [&PI[..], &["--gang", "--dry-run=server", "-o", "json", "local:///opt/pi.jar"]].concat();
    let (code, out, err) = run(&cluster, &arguments).await;
    assert_eq!(code, Some(0), "{err}");
    let list: Value = serde_json::from_str(&out).unwrap();
    let pod = &list["items"][0];
    assert_eq!(pod["metadata"]["annotations"]["spark-usher.io/min-member"], "3");
    assert_eq!(pod["metadata"]["annotations"]["spark-usher.io/executor-resources"], r#"{"cpu":"1","memory":"1408Mi"}"#);
    // The API server's defaults, and the owner's uid.
    assert_eq!(pod["spec"]["dnsPolicy"], "ClusterFirst");
    assert!(pod["metadata"]["managedFields"].is_null());
    let items = list["items"].as_array().unwrap();
    assert!(
        items.len() == 4
            && items[1..].iter().all(|item| item["metadata"]["ownerReferences"][0]["uid"] == pod["metadata"]["uid"])
    );
    assert!(cluster.pods().list(&ListParams::default()).await.unwrap().items.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn why_shows_the_history_of_a_driver_that_never_started_and_of_an_executor_that_exited() {
    let cluster = Cluster::start().await;
    let created = cluster.pod_by(&cluster.client, &driver("pi-driver", "spark-1")).await;
    let (uid, namespace) = (created.metadata.uid.unwrap(), cluster.namespace.clone());
    status(
        &cluster,
        "pi-driver",
        json!({"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
            "message": "0/3 nodes are available", "lastTransitionTime": "2026-11-25T00:00:00Z"}]}),
    )
    .await;
    for (name, uid, message) in
        [("one", uid.as_str(), "ConfigMap not found"), ("two", "another-pod", "of an earlier pod")]
    {
        cluster
            .create(json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": name, "namespace": namespace}, "type": "Warning",
                "reason": "FailedMount", "message": message, "count": 3, "lastTimestamp": "2026-11-25T00:00:09Z",
                "source": {"component": "kubelet"},
                "involvedObject": {"apiVersion": "v1", "kind": "Pod", "name": "pi-driver", "namespace": namespace, "uid": uid}}))
            .await;
    }
    let id = format!("{namespace}:pi-driver");
    let (code, out, err) = run(&cluster, &["why", &id, "--no-leader"]).await;
    assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
    let history: Vec<&str> = out.lines().skip_while(|line| !line.starts_with("history of")).collect();
    assert_eq!(history[0], format!("history of {namespace}/pi (spark-1)"), "{out}");
    assert!(history[1].contains("not scheduled since then: Unschedulable: 0/3 nodes are available"), "{out}");
    assert!(history[2].contains("kubelet: FailedMount: ConfigMap not found (3 times)"), "{out}");
    assert!(history[3].contains("the pod was created; no policy of spark-usher"), "{out}");
    assert_eq!(history.len(), 4, "an Event of an earlier pod with that name is not shown: {out}");
    // An executor, as JSON.
    cluster.pod_by(&cluster.client, &pod("pi-exec-1").executor_of("spark-1", 1)).await;
    status(
        &cluster,
        "pi-exec-1",
        json!({"phase": "Failed", "reason": "OutOfcpu", "message": "Node didn't have enough cpu"}),
    )
    .await;
    let (_, out, _) = run(&cluster, &["why", "pi-exec-1", "-o", "json", "--no-leader"]).await;
    let report: Value = serde_json::from_str(&out).unwrap();
    let entries = report["histories"][0]["entries"].as_array().unwrap();
    assert!(
        entries.iter().any(|entry| entry["what"].as_str().unwrap().contains("its driver created the pod")),
        "{out}"
    );
    assert!(
        entries
            .iter()
            .any(|entry| entry["by"] == "spark-usher" && entry["what"].as_str().unwrap().contains("exited, ")),
        "{out}"
    );
    let (code, _, err) = run(&cluster, &["why", "other:pi-driver"]).await;
    assert!(code == Some(2) && err.contains("expected one namespace"), "{err}");
}
