//! `status`, `kill`, `watch` and `why` where the API server, the connection or the reader of the output fails.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;

use crate::submission_faults::{PI, drivers, first, forget, is_creation};
use crate::support::cluster::{Cluster, eventually};
use crate::support::faulty::{End, Fault, Faulty};
use crate::support::operator::{Running, command, driver, finished, run, status, terminated};
use crate::support::process::program;

#[tokio::test(flavor = "multi_thread")]
async fn kill_with_closed_stdout_deletes_all_drivers() {
    let cluster = Cluster::start().await;
    for number in 0..40 {
        cluster.pod_by(&cluster.client, &driver(&format!("etl-{number}-driver"), &format!("spark-{number}"))).await;
    }
    // The API server is overloaded, too.
    let sent = AtomicUsize::new(0);
    let faulty = Faulty::start(&cluster.client, move |method, _| {
        let fails = method == "DELETE" && sent.fetch_add(1, Ordering::Relaxed).is_multiple_of(7);
        if fails { Fault::Status(429) } else { Fault::None }
    })
    .await;
    let mut kill = command(&cluster, &["kill", "--yes", "--master", &faulty.master(), "etl-*"]);
    let mut child = kill.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    drop(child.stdout.take());
    let code = tokio::task::spawn_blocking(move || child.wait().unwrap().code()).await.unwrap();
    assert_eq!((code, drivers(&cluster).await.len()), (Some(0), 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn log_is_complete_and_in_order_whatever_interrupts_it() {
    let cluster = Cluster::start().await;
    cluster.pod_by(&cluster.client, &driver("pi-driver", "spark-1")).await;
    status(&cluster, "pi-driver", json!({"phase": "Running", "containerStatuses": [{"name": "spark-kubernetes-driver", "image": "i",
        "imageID": "", "ready": true, "restartCount": 0, "state": {"running": {"startedAt": "2026-11-25T00:00:00Z"}}}]}))
    .await;
    let line = |time: &str, text: &str| format!("2026-11-25T00:00:0{time}Z {text}\n");
    let log = [
        line("0.7", "one"),
        line("0.2", "set back"),
        line("0.9", "three"),
        line("1", "bytes \u{1b}[31m"),
        line("1.5", "last"),
    ];
    let mut answers = vec![
        Fault::Status(500),
        Fault::Closed,
        // Within a line, and broken.
        Fault::Body(vec![log[0].clone(), log[1].clone(), "2026-11-25T00:00:00.9Z th".to_owned()], End::Broken),
        Fault::Status(503),
        // Closed by the kubelet.
        Fault::Body(log[..4].to_vec(), End::Clean),
        // Silent, also after the driver has ended.
        Fault::Body(log[3..4].to_vec(), End::Hangs),
        Fault::Body(log[3..].to_vec(), End::Clean),
    ]
    .into_iter();
    let whole = Fault::Body(log[3..].to_vec(), End::Clean);
    let faulty = Faulty::start(&cluster.client, move |_, path| {
        if path.contains("/log?") { answers.next().unwrap_or(whole.clone()) } else { Fault::None }
    })
    .await;
    let mut watch = Running::start(&cluster, &["watch", "--follow", "--master", &faulty.master(), "pi-driver"]);
    watch.says("bytes").await;
    eventually("the silent log is open", async || faulty.count("/log?") == 6).await;
    status(&cluster, "pi-driver", terminated(0)).await;
    assert_eq!(watch.ended().await, Some(0), "{}", watch.all());
    assert_eq!(watch.out(), ["one", "set back", "three", "bytes \u{1b}[31m", "last"], "{}", watch.all());
    let said = watch.err.lock().unwrap().join("\n");
    assert!(said.contains("log is interrupted, trying again") && !said.contains("incomplete"), "{said}");
    let times: Vec<String> =
        faulty.requests.lock().unwrap().iter().filter(|path| path.contains("sinceTime")).cloned().collect();
    assert!(times[0].contains("sinceTime=2026-11-25T00%3A00%3A00Z"), "{times:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn log_that_cannot_be_read_is_said() {
    let cluster = Cluster::start().await;
    cluster.pod_by(&cluster.client, &driver("pi-driver", "spark-1")).await;
    status(&cluster, "pi-driver", terminated(0)).await;
    let faulty =
        Faulty::start(&cluster.client, |_, path| if path.contains("/log?") { Fault::Status(403) } else { Fault::None })
            .await;
    let mut watch = Running::start(&cluster, &["watch", "--follow", "--master", &faulty.master(), "pi-driver"]);
    assert_eq!(watch.ended().await, Some(0));
    watch.says("the driver's log is incomplete: it cannot be read: injected fault (403)").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn driver_that_loses_its_label_is_waited_for() {
    let cluster = Cluster::start().await;
    cluster.pod_by(&cluster.client, &driver("pi-driver", "spark-1")).await;
    let mut watch = Running::start(&cluster, &["watch", "pi-driver"]);
    watch.says("pending").await;
    let patch = json!({"metadata": {"labels": {"spark-role": null}}});
    cluster.pods().patch("pi-driver", &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
    status(&cluster, "pi-driver", terminated(137)).await;
    assert_eq!(watch.ended().await, Some(3), "{}", watch.all());
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_says_in_words_what_it_may_not_and_what_it_cannot_reach() {
    let cluster = Cluster::start().await;
    cluster.pod_by(&cluster.client, &driver("pi-driver", "spark-1")).await;
    let faulty =
        Faulty::start(
            &cluster.client,
            |_, path| {
                if path.contains("watch=true") { Fault::Status(403) } else { Fault::None }
            },
        )
        .await;
    let done = run(&cluster, &["watch", "--master", &faulty.master(), "pi-driver"]).await;
    assert!(done.0 == Some(1) && done.2.ends_with("cannot open the watch: injected fault (403)\n"), "{done:?}");
    let done = run(&cluster, &[&PI[..], &["--master", &faulty.master(), "local:///opt/x.jar"]].concat()).await;
    assert!(done.0 == Some(1) && done.2.contains("already exists"), "{done:?}");
    forget(&cluster).await;
    // It was submitted, and goes on: how to see and to stop it is said with the same API server.
    let done = run(&cluster, &[&PI[..], &["--master", &faulty.master(), "local:///opt/x.jar"]].concat()).await;
    let hint = format!("--master {} {}:pi-driver` stops it", faulty.master(), cluster.namespace);
    assert!(done.0 == Some(5) && done.2.contains("it cannot be watched") && done.2.contains(&hint), "{done:?}");
    let done = run(&cluster, &["status", "--master", "k8s://http://127.0.0.1:1"]).await;
    assert!(
        done.0 == Some(1) && done.2.contains("http://127.0.0.1:1: ") && done.2.contains("Connection refused"),
        "{done:?}"
    );
    let unreachable = ["--no-wait", "--master", "k8s://http://127.0.0.1:1", "local:///opt/x.jar"];
    let done = run(&cluster, &[&PI[..], &unreachable].concat()).await;
    assert!(
        done.0 == Some(1) && done.2.starts_with("error: the API server is k8s://http://127.0.0.1:1: cannot create"),
        "{done:?}"
    );
    let done = run(&cluster, &["status", "--master", "yarn"]).await;
    assert!(done.0 == Some(2) && done.2.contains("must start with k8s://"), "{done:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn tenants_text_forges_no_line() {
    let cluster = Cluster::start().await;
    cluster.pod_by(&cluster.client, &driver("pi-driver", "spark-1")).await;
    status(
        &cluster,
        "pi-driver",
        json!({"phase": "Failed", "reason": "Evicted", "message": "x\n2026-11-25T00:00:00Z  n:forged  succeeded"}),
    )
    .await;
    let id = format!("{}:pi-driver", cluster.namespace);
    let watched = run(&cluster, &["watch", &id]).await;
    assert!(watched.0 == Some(3) && watched.1.lines().count() == 1, "{watched:?}");
    let listed = run(&cluster, &["kill", "--dry-run", &id]).await;
    assert!(listed.0 == Some(0) && listed.1.lines().count() == 1, "{listed:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn five_hundred_drivers_in_twenty_namespaces() {
    let cluster = Cluster::start().await;
    let mut namespaces = vec![cluster.namespace.clone()];
    for number in 0..19 {
        let namespace = format!("{}-{number}", cluster.namespace);
        cluster.add_namespace(&namespace).await;
        namespaces.push(namespace);
    }
    let all = namespaces.iter().flat_map(|namespace| (0..25).map(move |number| (namespace.clone(), number)));
    futures::future::join_all(all.map(async |(namespace, number)| {
        let app = format!("spark-{number}");
        let driver = driver(&format!("job-{number}-driver"), &app).label("batch", "x");
        cluster.pod_in(&cluster.client, &namespace, &driver).await;
    }))
    .await;
    let everywhere = ["-A", "-l", "batch=x"];
    let names = run(&cluster, &[&["status", "-o", "name"], &everywhere[..]].concat()).await;
    assert_eq!((names.0, names.1.lines().count()), (Some(0), 500), "{}", names.2);
    let own = run(&cluster, &["status", "-o", "name", "job-1?-driver"]).await;
    assert_eq!(own.1.lines().count(), 10, "only the namespace that is named: {own:?}");
    let one = run(&cluster, &["status", "-A", "-o", "name", "job-7-driver"]).await;
    assert_eq!(one.1.lines().count(), 20, "{one:?}");
    // Two kills at the same time, while pods are deleted by another client.
    let kill = async || {
        run(
            &cluster,
            &[&["kill", "--yes", "--wait", "--timeout", "120", "--grace-period", "0"], &everywhere[..]].concat(),
        )
        .await
    };
    let deletes = async {
        for namespace in &namespaces {
            let pods: kube::Api<Pod> = kube::Api::namespaced(cluster.client.clone(), namespace);
            let _ = pods
                .delete("job-3-driver", &DeleteParams { grace_period_seconds: Some(0), ..Default::default() })
                .await;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let (first, second, ()) = tokio::join!(kill(), kill(), deletes);
    assert_eq!((first.0, second.0), (Some(0), Some(0)), "{first:?} {second:?}");
    let left = run(&cluster, &[&["status", "-o", "name"], &everywhere[..]].concat()).await;
    assert_eq!(left.1, "", "{left:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn driver_of_another_is_never_deleted() {
    let cluster = Cluster::start().await;
    cluster.pod_by(&cluster.client, &driver("pi-driver", "spark-other")).await;
    let answer = r#"{"kind":"Status","apiVersion":"v1","status":"Success","metadata":{}}"#.to_owned();
    let faulty = Faulty::start(&cluster.client, first(&Fault::Body(vec![answer], End::Clean), 1, is_creation)).await;
    let done = run(&cluster, &[&PI[..], &["--no-wait", "--master", &faulty.master(), "local:///x.jar"]].concat()).await;
    assert!(done.0 == Some(1) && done.2.contains("it is not a pod"), "{done:?}");
    assert_eq!((drivers(&cluster).await.len(), faulty.count("DELETE")), (1, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn deletion_that_is_refused_is_an_error() {
    let cluster = Cluster::start().await;
    cluster.pod_by(&cluster.client, &driver("pi-driver", "spark-1")).await;
    let faulty =
        Faulty::start(&cluster.client, |method, _| if method == "DELETE" { Fault::Status(409) } else { Fault::None })
            .await;
    for option in ["--yes", "--spark-compatible"] {
        let done = run(&cluster, &["kill", option, "--master", &faulty.master(), "pi-driver"]).await;
        assert!(done.0 == Some(1) && done.2.contains("injected fault (409)"), "{done:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_of_a_kubelet_in_a_log_are_no_progress() {
    let cluster = Cluster::start().await;
    cluster.pod_by(&cluster.client, &driver("pi-driver", "spark-1")).await;
    status(&cluster, "pi-driver", terminated(0)).await;
    let mut answers = vec![
        Fault::Status(404),
        Fault::Status(401),
        Fault::Body(vec!["2026-11-25T00:00:00Z one\n".to_owned(), "x".repeat(1 << 20)], End::Hangs),
    ]
    .into_iter();
    let last =
        ["2026-11-25T00:00:00Z one\n", "failed to create fsnotify watcher: too many open files"].map(str::to_owned);
    let faulty = Faulty::start(&cluster.client, move |_, path| {
        if path.contains("/log?") {
            answers.next().unwrap_or(Fault::Body(last.to_vec(), End::Clean))
        } else {
            Fault::None
        }
    })
    .await;
    let mut watch = Running::start(&cluster, &["watch", "--follow", "--master", &faulty.master(), "pi-driver"]);
    assert_eq!(watch.ended().await, Some(0), "{:.2000}", watch.all());
    let out = watch.out();
    let errors = out.iter().filter(|line| line.contains("fsnotify")).count();
    assert!(out[0] == "one" && errors == 1 && faulty.count("/log?") < 10, "{:.2000}", watch.all());
}

#[tokio::test(flavor = "multi_thread")]
async fn end_that_is_known_is_the_exit_code_of_an_interrupted_log() {
    let cluster = Cluster::start().await;
    cluster.pod_by(&cluster.client, &driver("pi-driver", "spark-1")).await;
    let faulty = Faulty::start(&cluster.client, |_, path| {
        if path.contains("/log?") {
            Fault::Body(vec!["2026-11-25T00:00:00Z one\n".to_owned()], End::Hangs)
        } else {
            Fault::None
        }
    })
    .await;
    // A lost node: the pod has failed, and its container is said to run.
    status(&cluster, "pi-driver", json!({"phase": "Failed", "containerStatuses": [{"name": "spark-kubernetes-driver", "image": "i",
        "imageID": "", "ready": true, "restartCount": 0, "state": {"running": {"startedAt": "2026-11-25T00:00:00Z"}}}]}))
    .await;
    let mut watch = Running::start(&cluster, &["watch", "--follow", "--master", &faulty.master(), "pi-driver"]);
    watch.says("one").await;
    watch.interrupt();
    assert_eq!(watch.ended().await, Some(3), "{}", watch.all());
}

#[tokio::test(flavor = "multi_thread")]
async fn driver_whose_deletion_was_answered_only_the_second_time_is_deleted() {
    let cluster = Cluster::start().await;
    cluster.pod_by(&cluster.client, &driver("pi-driver", "spark-1")).await;
    let is_deletion = |method: &str, _: &str| method == "DELETE";
    let faulty = Faulty::start(&cluster.client, first(&Fault::ClosedAfter, 1, is_deletion)).await;
    let done = run(&cluster, &["kill", "--grace-period", "0", "--master", &faulty.master(), "pi-driver"]).await;
    assert!(done.0 == Some(0) && done.1 == format!("{}:pi-driver deleted\n", cluster.namespace), "{done:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn characters_of_a_very_long_line_come_whole() {
    let cluster = Cluster::start().await;
    cluster.pod_by(&cluster.client, &driver("pi-driver", "spark-1")).await;
    status(&cluster, "pi-driver", terminated(0)).await;
    // The time and the blank before it have 21 bytes: the limit of 1 MiB is within a character.
    let text = "\u{e4}".repeat(1 << 20);
    let log = Fault::Body(vec![format!("2026-11-25T00:00:00Z {text}\n")], End::Clean);
    let faulty =
        Faulty::start(&cluster.client, move |_, path| if path.contains("/log?") { log.clone() } else { Fault::None })
            .await;
    let done = run(&cluster, &["watch", "-f", "-o", "json", "--master", &faulty.master(), "pi-driver"]).await;
    let events = done.1.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let parts: Vec<String> = events.filter_map(|event| event["line"].as_str().map(str::to_owned)).collect();
    assert!(parts.len() > 1 && parts.concat() == text, "{} parts, {:?}", parts.len(), done.2);
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_of_a_pattern_says_at_once_what_it_can_never_do() {
    let cluster = Cluster::start().await;
    let faulty = Faulty::start(&cluster.client, |_, _| Fault::Status(401)).await;
    for words in [&["watch", "-A"][..], &["watch", "pi-*"], &["status", "-w"]] {
        let done = run(&cluster, &[words, &["--master", &faulty.master()]].concat()).await;
        assert!(done.0 == Some(1) && done.2.contains("cannot read the drivers: injected fault (401)"), "{done:?}");
    }
    let done = run(&cluster, &["status", "team:pi"]).await;
    assert!(done.0 == Some(2) && done.2.contains("the id says team, --namespace says "), "{done:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn history_of_a_pod_needs_no_right_to_read_events() {
    let cluster = Cluster::start().await;
    cluster.pod_by(&cluster.client, &driver("pi-driver", "spark-1")).await;
    let faulty =
        Faulty::start(
            &cluster.client,
            |_, path| if path.contains("/events") { Fault::Status(403) } else { Fault::None },
        )
        .await;
    let mut why = Command::new(program());
    why.args(["why", &format!("{}:pi-driver", cluster.namespace), "--master", &faulty.master()]);
    why.env("KUBECONFIG", "/nonexistent").env_remove("KUBERNETES_SERVICE_HOST");
    let done = finished(why).await;
    assert!(done.0 == Some(0) && done.1.contains("pod: the pod was created"), "{done:?}");
    assert!(done.2.contains("the history is not complete: it lacks Events: injected fault (403)"), "{done:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn why_without_the_right_for_all_namespaces_says_what_needs_less() {
    let cluster = Cluster::start().await;
    let denied = |_: &str, path: &str| if path.starts_with("/api/v1/pods") { Fault::Status(403) } else { Fault::None };
    let faulty = Faulty::start(&cluster.client, denied).await;
    let mut why = Command::new(program());
    why.args(["why", "pi-driver", "-A", "--no-leader", "--master", &faulty.master()])
        .env("KUBECONFIG", "/nonexistent/config");
    let done = finished(why).await;
    let hint = "injected fault (403); --namespace NAMESPACE needs the right for one namespace only\n";
    assert!(done.0 == Some(1) && done.2.ends_with(hint), "{done:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_new_reason_of_an_interruption_is_said_once() {
    let cluster = Cluster::start().await;
    cluster.pod_by(&cluster.client, &driver("pi-driver", "spark-1")).await;
    let mut codes = [503, 503, 500].into_iter();
    let faulty = Faulty::start(&cluster.client, move |_, path| {
        if path.contains("watch=true") { codes.next().map_or(Fault::None, Fault::Status) } else { Fault::None }
    })
    .await;
    let watch = Running::start(&cluster, &["watch", "--master", &faulty.master(), "pi-driver"]);
    watch.says("injected fault (500)").await;
    let err = watch.err.lock().unwrap().join("\n");
    assert_eq!(err.matches("injected fault (503)").count(), 1, "{err}");
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_arguments_and_files_are_named() {
    let cluster = Cluster::start().await;
    let done = run(&cluster, &["kill", "--grace-period", "-1", "pi-driver"]).await;
    assert!(done.0 == Some(2) && done.2.contains("invalid value '-1' for '--grace-period <SECONDS>'"), "{done:?}");
    let mut status = Command::new(program());
    status.arg("status").env("KUBECONFIG", "/nonexistent/config").env_remove("KUBERNETES_SERVICE_HOST");
    let done = finished(status).await;
    assert!(done.0 == Some(1) && done.2.contains("(/nonexistent/config: No such file"), "{done:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_whose_reader_has_gone_ends_without_a_word() {
    let cluster = Cluster::start().await;
    cluster.pod_by(&cluster.client, &driver("pi-driver", "spark-1")).await;
    let mut child = command(&cluster, &["watch", "*"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let done = tokio::task::spawn_blocking(move || child.wait_with_output().unwrap()).await.unwrap();
    assert!(done.status.code() == Some(0) && done.stderr.is_empty(), "{done:?}");
}
