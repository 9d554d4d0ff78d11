//! A rolling restart under load. The binary has only this test: others would take time from it.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a test fails by panicking, and prints its results"
)]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use k8s_openapi::api::core::v1::Secret;
use kube::api::Api;
use support::caller::{Caller, Replicas};
use support::cluster::{Cluster, eventually};
use support::process::Process;
use support::*;
use tokio::sync::Semaphore;
use tokio::time::MissedTickBehavior;

/// An API server's default for `--max-mutating-requests-inflight`.
const MAX_MUTATING_REQUESTS_INFLIGHT: usize = 200;
/// How long an API server waits for the response, by default.
const REVIEW_LIMIT: Duration = Duration::from_secs(10);
const SECRET: &str = "spark-usher-tls";
const POLICY: &str = "policies: [{name: batch, scheduler: {type: volcano}}]";

#[tokio::test(flavor = "multi_thread")]
async fn rolling_restart_at_up_to_500_reviews_per_second_fails_no_review() {
    let cluster = Cluster::start().await;
    let kubeconfig = cluster.kubeconfig();
    // The default times: with shorter ones, a busy machine does not serve its requests before the exit.
    let times = ["--shutdown-delay-seconds", "5", "--drain-seconds", "10"];
    let certificate = ["--tls-secret", SECRET, "--tls-names", "localhost"];
    let certificate: Vec<&str> = certificate.into_iter().chain(times).collect();
    let start = |name: &str| Process::start_serving(&certificate, &[], &cluster, name, POLICY, &kubeconfig);
    let mut running = vec![start("r0"), start("r1")];
    for process in &running {
        eventually("the replica is ready", async || process.is_ready().await).await;
    }
    let secrets: Api<Secret> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let bundle = secrets.get(SECRET).await.unwrap().data.unwrap()["ca.crt"].0.clone();
    let bundle = String::from_utf8(bundle).unwrap();
    let replicas = Replicas::default();
    let serving = |running: &[Process]| running.iter().map(|process| process.webhook).collect::<Vec<_>>();
    replicas.set(serving(&running));

    let review = Bytes::from(serde_json::to_vec(&recorded("client-mode/exec-1.mutate.create")).unwrap());
    let caller = Caller::new(&bundle, "localhost", &replicas);
    let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let failed = Arc::new(std::sync::Mutex::new(Vec::new()));
    let offering = {
        let (stop, sent, failed) = (stop.clone(), sent.clone(), failed.clone());
        tokio::spawn(async move {
            // The next review does not wait for the previous one. But an API server has a limited number of requests in
            // progress, and so a replica that stops on a busy machine can finish those within its drain time.
            let in_progress = Arc::new(Semaphore::new(MAX_MUTATING_REQUESTS_INFLIGHT));
            let mut tick = tokio::time::interval(Duration::from_millis(2));
            tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
            let mut open = tokio::task::JoinSet::new();
            while !stop.load(Ordering::SeqCst) {
                tick.tick().await;
                let permit = in_progress.clone().acquire_owned().await.unwrap();
                let (caller, review, failed) = (caller.clone(), review.clone(), failed.clone());
                sent.fetch_add(1, Ordering::SeqCst);
                open.spawn(async move {
                    let review = tokio::time::timeout(REVIEW_LIMIT, caller.review_error(&review));
                    if let Some(error) = review.await.unwrap_or_else(|late| Some(late.to_string())) {
                        failed.lock().unwrap().push(error);
                    }
                    drop(permit);
                });
                while open.try_join_next().is_some() {}
            }
            while open.join_next().await.is_some() {}
        })
    };
    let begin = Instant::now();
    tokio::time::sleep(Duration::from_secs(1)).await;
    for n in 0..2 {
        // As a Deployment does: start a new replica, and stop an old one when the new one is ready.
        let new = start(&format!("new{n}"));
        eventually("the replica is ready", async || new.is_ready().await).await;
        running.push(new);
        replicas.set(serving(&running));
        let mut old = running.remove(0);
        old.terminate();
        // A kubelet informs the API server immediately, and the Services of all nodes follow a little later.
        tokio::time::sleep(Duration::from_millis(300)).await;
        replicas.set(serving(&running));
        assert!(old.wait(), "{}", old.log());
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    stop.store(true, Ordering::SeqCst);
    offering.await.unwrap();
    let (sent, took) = (sent.load(Ordering::SeqCst), begin.elapsed());
    let failed = failed.lock().unwrap();
    println!("a rolling restart of 2 replicas in {took:?}: {sent} reviews, {} failed", failed.len());
    assert!(
        sent > MAX_MUTATING_REQUESTS_INFLIGHT,
        "{sent} reviews: none followed those that were in progress at first"
    );
    assert!(failed.is_empty(), "{} of {sent}: {:?}", failed.len(), failed.iter().take(5).collect::<Vec<_>>());
}
