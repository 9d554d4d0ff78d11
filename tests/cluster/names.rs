//! `status`, `watch` and `kill` by the name of an application, which several have, and by an executor.

use kube::api::DeleteParams;
use serde_json::json;

use crate::support::PodBuilder;
use crate::support::cluster::Cluster;
use crate::support::operator::{driver, run, status, terminated};
use crate::support::pod;

/// A driver of the application `etl`.
fn run_of_etl(pod: &str, app: &str) -> PodBuilder {
    driver(pod, app).label("spark-app-name", "etl")
}

/// Two runs of `etl` that work, `etl-a-driver` and `etl-b-driver`, and one that has ended.
async fn three_runs() -> Cluster {
    let cluster = Cluster::start().await;
    for (name, app) in [("etl-a-driver", "spark-1"), ("etl-b-driver", "spark-2"), ("etl-c-driver", "spark-3")] {
        cluster.pod_by(&cluster.client, &run_of_etl(name, app)).await;
    }
    // Its name says it, without a label.
    cluster.pod_by(&cluster.client, &driver("pi-0a0b0ca2100c0c00-driver", "spark-4")).await;
    status(&cluster, "etl-c-driver", terminated(1)).await;
    cluster
}

#[tokio::test(flavor = "multi_thread")]
async fn status_shows_every_run_of_a_name_and_the_application_of_an_executor() {
    let cluster = three_runs().await;
    cluster.pod_by(&cluster.client, &pod("b-exec-1").executor_of("spark-2", 1)).await;
    cluster.pod_by(&cluster.client, &pod("lost-exec-1").executor_of("spark-9", 1)).await;
    let id = |name: &&str| format!("{}:{name}\n", cluster.namespace);
    for (arguments, expected) in [
        (vec!["etl"], vec!["etl-a-driver", "etl-b-driver", "etl-c-driver"]),
        (vec!["pi"], vec!["pi-0a0b0ca2100c0c00-driver"]),
        (vec!["b-exec-1"], vec!["etl-b-driver"]),
        (vec!["-l", "spark-app-selector=spark-1"], vec!["etl-a-driver"]),
        // Each driver once.
        (vec!["etl", "spark-1", "b-exec-1"], vec!["etl-a-driver", "etl-b-driver", "etl-c-driver"]),
    ] {
        let (code, out, err) = run(&cluster, &[&["status", "-o", "name"], arguments.as_slice()].concat()).await;
        let expected: String = expected.iter().map(id).collect();
        assert_eq!((code, out.as_str(), err.as_str()), (Some(0), expected.as_str(), ""), "{arguments:?}");
    }
    // Also where the namespace of the executor is not known.
    let (code, out, err) = run(&cluster, &["status", "-A", "-o", "name", "b-exec-1"]).await;
    assert!(code == Some(0) && out.contains(&id(&"etl-b-driver")), "{out}{err}");
    // A table tells the runs apart.
    let (_, out, _) = run(&cluster, &["status", "etl"]).await;
    assert!(out.starts_with("ID  ") && out.contains("CREATED") && out.matches("  etl  ").count() == 3, "{out}");
    for (name, words) in [("lost-exec-1", "an executor in namespace"), ("nope", "no application that name")] {
        let (code, _, err) = run(&cluster, &["status", name]).await;
        assert!(code == Some(1) && err.contains(words), "{name}: {err}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kill_by_a_name_of_several_says_which_and_deletes_none_without_yes() {
    let cluster = three_runs().await;
    cluster.pod_by(&cluster.client, &pod("a-exec-1").executor_of("spark-1", 1)).await;
    let left = async || {
        let (_, out, _) = run(&cluster, &["status", "etl", "-o", "name"]).await;
        out.lines().map(|line| line.rsplit_once(':').unwrap().1.to_owned()).collect::<Vec<_>>()
    };
    let (code, out, err) = run(&cluster, &["kill", "etl"]).await;
    assert!(code == Some(2) && out.is_empty(), "{out}{err}");
    assert!(
        err.contains("etl is the name of 2 applications: ") && err.contains("etl-b-driver (pending, created "),
        "{err}"
    );
    assert!(err.contains("--yes") && !err.contains("etl-c-driver"), "{err}");
    // An executor is not deleted in place of its driver, nor its driver in its place.
    let (code, out, err) = run(&cluster, &["kill", "--yes", "a-exec-1"]).await;
    assert!(code == Some(1) && out.is_empty(), "{out}{err}");
    assert!(err.contains("a-exec-1 is an executor") && err.contains(":etl-a-driver (pending"), "{err}");
    assert_eq!(left().await.len(), 3);
    let (code, out, err) = run(&cluster, &["kill", "--yes", "etl", "etl-a-driver"]).await;
    assert_eq!(code, Some(0), "{out}{err}");
    assert_eq!(out.matches("etl-a-driver deleted").count(), 1, "{out}");
    assert!(out.contains("etl-b-driver deleted") && err.contains("1 driver that has ended is left out"), "{out}{err}");
    assert_eq!(left().await, ["etl-c-driver"]);
    // A pod that has the name, and is no driver, is not an application; and pod/ names pods only.
    cluster.pod_by(&cluster.client, &pod("report")).await;
    cluster.pod_by(&cluster.client, &driver("other-driver", "spark-7").label("spark-app-name", "report")).await;
    for name in ["report", "pod/report", "pod/etl"] {
        let (code, out, err) = run(&cluster, &["kill", "--yes", name]).await;
        assert!(code == Some(1) && out.is_empty() && err.contains("no driver"), "{name}: {out}{err}");
    }
    // One that is being deleted is not meant.
    let mut held = run_of_etl("etl-held-driver", "spark-8");
    held.0["metadata"]["finalizers"] = json!(["example.com/hold"]);
    cluster.pod_by(&cluster.client, &held).await;
    cluster.pods().delete("etl-held-driver", &DeleteParams::default().grace_period(0)).await.unwrap();
    // One that runs needs no question, and what has ended is deleted only on request.
    cluster.pod_by(&cluster.client, &run_of_etl("etl-d-driver", "spark-5")).await;
    let (code, out, _) = run(&cluster, &["kill", "etl"]).await;
    assert!(code == Some(0) && out.contains("etl-d-driver deleted\n"), "{out}");
    let (code, out, _) = run(&cluster, &["kill", "--include-ended", "etl"]).await;
    assert!(code == Some(0) && out.contains("etl-c-driver deleted\n"), "{out}");
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_by_a_name_waits_for_the_runs_that_have_not_ended() {
    let cluster = three_runs().await;
    let (code, _, err) = run(&cluster, &["watch", "--follow", "etl"]).await;
    assert!(
        code == Some(1) && err.contains("the name belongs to several: ") && err.contains(":etl-a-driver ("),
        "{err}"
    );
    for name in ["etl-a-driver", "etl-b-driver"] {
        status(&cluster, name, terminated(0)).await;
    }
    status(&cluster, "etl-c-driver", terminated(1)).await;
    // All have ended: the last one counts. They may have been created within one second.
    let (code, out, err) = run(&cluster, &["watch", "-o", "name", "etl"]).await;
    assert!(matches!(code, Some(0 | 3)) && out.lines().count() == 1, "{out}{err}");
    cluster.pod_by(&cluster.client, &run_of_etl("etl-e-driver", "spark-6")).await;
    status(&cluster, "etl-e-driver", json!({"phase": "Running"})).await;
    let waiting = run(&cluster, &["watch", "-o", "json", "etl"]);
    let ends = async {
        tokio::time::sleep(std::time::Duration::from_secs(2)).await;
        status(&cluster, "etl-e-driver", terminated(0)).await;
    };
    let ((code, out, err), ()) = tokio::join!(waiting, ends);
    assert_eq!(code, Some(0), "those that failed before do not count: {out}{err}");
    assert!(out.contains("etl-e-driver") && !out.contains("etl-c-driver"), "{out}");
}
