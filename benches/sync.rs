//! The cold start of `spark-usher serve` in a cluster of 100,000 executors: the time until all of them are in the snapshot,
//! on one core, listed from the sandbox over TLS; and the memory of the process afterwards.
//!
//!     cargo bench --bench sync
//!
//! The process is pinned to one core with `taskset`; the sandbox has the others.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::disallowed_methods,
    clippy::cast_precision_loss,
    reason = "a benchmark prints its results"
)]

#[path = "../tests/support/mod.rs"]
mod support;

use std::time::{Duration, Instant};

use futures::StreamExt;
use serde_json::Value;
use support::cluster::Cluster;
use support::process::{Process, get};
use support::*;

const EXECUTORS: usize = 100_000;
const APPS: usize = 1_000;
const LIMIT: f64 = 20.0;

/// Seconds of processor time that a process has used, and its resident bytes.
fn used(pid: u32) -> (f64, f64) {
    let read = |file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap();
    let stat = read("stat");
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    let ticks = fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap();
    let pages: f64 = read("statm").split(' ').nth(1).unwrap().parse().unwrap();
    (ticks / 100.0, pages * 4096.0)
}

/// The recorded executor with the names of this number.
fn recorded(pod: &Value, number: usize) -> PodBuilder {
    let (app, id) = (number % APPS, number / APPS + 1);
    let mut pod = pod.clone();
    pod["metadata"]["name"] = format!("application-{app:05}-0123456789abcdef-exec-{id}").into();
    pod["metadata"]["labels"]["spark-app-selector"] = format!("spark-5ce218ea51d24d51bcb1500360d{app:05}").into();
    pod["metadata"]["labels"]["spark-exec-id"] = id.to_string().into();
    pod["metadata"].as_object_mut().unwrap().remove("ownerReferences");
    pod["spec"]["nodeName"] = format!("ip-10-1-{}-{}.ec2.internal", number % 200, number % 7).into();
    // The sandbox does not store managedFields: this annotation has the same size.
    let fields = std::mem::take(&mut pod["metadata"]["managedFields"]).to_string();
    PodBuilder(pod).annotation("managed-fields", &fields)
}

async fn run() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/fixtures/reviews/spark-4.3.0/client-mode/exec-1.mutate.create.json"
    );
    let review: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let pod = &review["request"]["object"];
    let cluster = Cluster::start().await;
    let client = &cluster.client;
    let begin = Instant::now();
    let made = futures::stream::iter(0..EXECUTORS).for_each_concurrent(32, async |number| {
        cluster.pod_by(client, &recorded(pod, number)).await;
    });
    made.await;
    let size = serde_json::to_string(&cluster.pods().list(&kube::api::ListParams::default().limit(100)).await.unwrap());
    let size = size.unwrap().len() / 100;
    println!("sync: created {EXECUTORS} pods of about {size} bytes in {:?}", begin.elapsed());
    let begin = Instant::now();
    let config = "lifecycle: {finished: report}";
    let replica = Process::start_by(&["taskset", "-c", "0"], &cluster, "one", config, &cluster.kubeconfig());
    let wanted = format!("spark_usher_executors{{state=\"pending\"}} {EXECUTORS}");
    let ready = begin.elapsed();
    while !get(replica.metrics, "/metrics").await.contains(&wanted) {
        assert!(begin.elapsed() < Duration::from_secs(300), "{}", replica.log());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let took = begin.elapsed();
    let (cpu, rss) = used(replica.pid());
    println!(
        "sync: serving after {ready:?}; all {EXECUTORS} executors in the snapshot after {:.1} s on one core (limit {LIMIT} s), {cpu:.1} s of CPU time; {:.0} MiB resident",
        took.as_secs_f64(),
        rss / f64::from(1 << 20)
    );
    tokio::time::sleep(Duration::from_secs(20)).await;
    let (after, rss) = used(replica.pid());
    println!(
        "sync: 20 s later: {:.1} s of CPU time since then, {:.0} MiB resident",
        after - cpu,
        rss / f64::from(1 << 20)
    );
    let begin = Instant::now();
    let apps = replica.debug("/debug/apps").await;
    println!("sync: /debug/apps shows {} applications in {:?}", apps.as_array().unwrap().len(), begin.elapsed());
}

fn main() {
    // `cargo test --benches` also runs this program, without a test.
    if std::env::args().any(|arg| arg == "--bench") {
        tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(run());
    }
}
