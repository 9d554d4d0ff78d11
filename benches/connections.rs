//! The latency of reviews and the memory of `spark-usher serve` while 10,000 clients open connections that idle or trickle (of
//! which the webhook holds its maximum), and while 2,300 clients send bodies that stall.
//!
//!     cargo bench --bench connections
//!     MAX_CONNECTIONS=11000 cargo bench --bench connections
//!
//! The server is a separate process. The attackers have another address than the API server, which sends reviews as a real one
//! does: an open loop over a pool of 25 connections, one review in twenty on a new connection.

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

#[path = "support/open_loop.rs"]
mod open_loop;
#[path = "support/mod.rs"]
mod recording;
#[path = "../tests/support/mod.rs"]
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures::StreamExt;
use open_loop::{ATTACKER, Dialer, Latencies, Stream, at, measure, review};
use support::cluster::{Cluster, eventually};
use support::process::{Process, get};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use usher_runtime::descriptors;

const IDLE: usize = 7_000;
const TRICKLING: usize = 3_000;
const STALLED: usize = 2_300;
const P99: f64 = 5.0;
const MEMORY: f64 = 128.0;

/// Resident MiB.
fn resident(pid: u32) -> f64 {
    let statm = std::fs::read_to_string(format!("/proc/{pid}/statm")).unwrap();
    statm.split(' ').nth(1).unwrap().parse::<f64>().unwrap() * 4096.0 / f64::from(1 << 20)
}

/// Prints the latencies of a round.
fn print(name: &str, Latencies { pooled, new, failed }: &Latencies) {
    println!(
        "{name:<32} {:>5} reviews, p50 {:.2} ms, p99 {:.2} ms (limit {P99} ms); {:>3} on new connections, p99 {:.2} ms; {failed} failed (limit 0)",
        pooled.len(),
        at(pooled, 0.5),
        at(pooled, 0.99),
        new.len(),
        at(new, 0.99),
    );
}

async fn run() {
    descriptors::raise();
    let cluster = Cluster::start().await;
    let ca = cluster.folder().join("serving.pem").display().to_string();
    let mut arguments = vec!["--self-signed-for", "localhost", "--ca-out", &ca, "--log", "info"];
    let max = std::env::var("MAX_CONNECTIONS").ok();
    if let Some(max) = &max {
        arguments.extend(["--max-connections", max]);
    }
    let config = "policies: [{name: batch, scheduler: {type: volcano}, queue: analytics}]";
    let server = Process::start_serving(&arguments, &[], &cluster, "one", config, &cluster.kubeconfig());
    eventually("the replica is ready", async || server.is_ready().await).await;
    let dialer = Dialer::new(server.webhook, &ca);
    let request = open_loop::request("/mutate", &recording::recorded());

    let measured = async |name: &'static str| {
        let (dialer, request) = (dialer.clone(), request.clone());
        tokio::task::spawn_blocking(move || print(name, &measure(&dialer, &request))).await.unwrap();
        println!("{:<32} {:.0} MiB resident (limit {MEMORY} MiB)", "", resident(server.pid()));
    };
    measured("no other clients").await;

    let (begin, stop, trickled) = (Instant::now(), Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let idle: Vec<Stream> = futures::stream::iter(0..IDLE)
        .map(|_| async { dialer.connect(ATTACKER).await.unwrap() })
        .buffer_unordered(64)
        .collect()
        .await;
    let mut trickling = tokio::task::JoinSet::new();
    for n in 0..TRICKLING {
        let (dialer, stop, trickled) = (dialer.clone(), stop.clone(), trickled.clone());
        trickling.spawn(async move {
            // Each request head takes as long as the webhook allows; when its connection is closed, the next one begins.
            tokio::time::sleep(Duration::from_millis(n as u64 * 3)).await;
            while !stop.load(Ordering::Relaxed) {
                let Ok(mut stream) = dialer.connect(ATTACKER).await else { continue };
                trickled.fetch_add(1, Ordering::Relaxed);
                while stream.write_all(b"P").await.is_ok() && stream.flush().await.is_ok() {
                    tokio::time::sleep(Duration::from_secs(2)).await;
                }
            }
        });
    }
    eventually("all clients trickle", async || trickled.load(Ordering::Relaxed) >= TRICKLING).await;
    let open = async || {
        let counted = get(server.metrics, "/metrics").await;
        let line = "spark_usher_connections{listener=\"webhook\"} ";
        counted.lines().find_map(|found| found.strip_prefix(line)).unwrap().to_owned()
    };
    println!("of 10,000 connections, {} are open after {:.1} s", open().await, begin.elapsed().as_secs_f64());
    measured("10,000 idle or trickling").await;
    stop.store(true, Ordering::Relaxed);
    trickling.shutdown().await;
    drop(idle);

    let answered: Vec<Option<Stream>> = futures::stream::iter(0..IDLE + TRICKLING)
        .map(|_| async {
            let mut stream = dialer.connect(ATTACKER).await.ok()?;
            review(&mut stream, &request).await.ok()?;
            Some(stream)
        })
        .buffer_unordered(64)
        .collect()
        .await;
    println!("of 10,000 connections that sent one review, {} are open", open().await);
    measured("10,000 idle after one review").await;
    drop(answered);

    // Up to this size, bodies are read as they arrive; larger ones wait their turn unread.
    for length in [(32 << 10) + 1, 32 << 10] {
        stall(
            &dialer,
            length,
            measured(if length > 32 << 10 {
                "2,300 stalled bodies above 32 KiB"
            } else {
                "2,300 stalled bodies of 32 KiB"
            }),
        )
        .await;
    }
}

/// Measures while clients send bodies that lack their last byte.
async fn stall(dialer: &Dialer, length: usize, measured: impl Future<Output = ()>) {
    let stalling = Arc::new(AtomicBool::new(true));
    let mut stalled = tokio::task::JoinSet::new();
    for n in 0..STALLED {
        let (dialer, stalling) = (dialer.clone(), stalling.clone());
        stalled.spawn(async move {
            tokio::time::sleep(Duration::from_millis(n as u64)).await;
            while stalling.load(Ordering::Relaxed) {
                let Ok(mut stream) = dialer.connect(ATTACKER).await else { continue };
                let head = format!(
                    "POST /mutate?timeout=30s HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
                );
                let sent = async {
                    stream.write_all(head.as_bytes()).await?;
                    stream.write_all(&vec![b' '; length - 1]).await?;
                    stream.flush().await
                };
                if sent.await.is_ok() {
                    let _ = stream.read_u8().await;
                    // The response was 429 or 504, and the connection was closed.
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
            }
        });
    }
    tokio::time::sleep(Duration::from_secs(4)).await;
    measured.await;
    stalling.store(false, Ordering::Relaxed);
    stalled.shutdown().await;
}

fn main() {
    // `cargo test --benches` also runs this program, without a test.
    if std::env::args().any(|arg| arg == "--bench") {
        usher_net::tls::install_provider();
        tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(run());
    }
}
