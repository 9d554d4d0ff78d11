//! The latency of reviews, of `/livez` and of the Lease's renewals while 20 connections of one client do their worst to `spark-usher
//! serve`: bodies that cost most, at the sizes that are decided at once, with the usual and with low priority, and handshakes.
//!
//!     cargo bench --bench attack
//!
//! The server is a separate process. The attackers stand for another machine: they have another address than the API server, and
//! use only the processor time that nothing else needs.

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

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use open_loop::{ATTACKER, Dialer, at, measure, review};
use support::cluster::{Cluster, eventually};
use support::crafted::crafted;
use support::process::{Process, get};
use usher_core::admission::{self, BadReview, ValidationContext};
use usher_core::policy::Policies;
use usher_core::snapshot::Snapshot;

const CONNECTIONS: usize = 20;
/// Reviews may take this many times what they take without an attack.
const RATIO: f64 = 2.0;
const LIVEZ_MS: f64 = 50.0;

/// The two bodies of this size that take the longest in this process, with the time in milliseconds.
fn worst(size: usize) -> Vec<(&'static str, Vec<u8>, f64)> {
    let (snapshot, policies) = (Snapshot::default(), Policies::default());
    let context = ValidationContext { snapshot: &snapshot, own_account: None, settled: true };
    let mut all: Vec<(&'static str, Vec<u8>, f64)> = crafted(size)
        .into_iter()
        .map(|(what, body)| {
            let begin = Instant::now();
            let pruned = admission::prune_for_validation(&body);
            match admission::parse(&pruned) {
                Ok(review) => drop(admission::admit(&review, &policies, context)),
                Err(BadReview::TooMany) => drop(admission::head::parse(&body)),
                Err(_) => {}
            }
            (what, body, begin.elapsed().as_secs_f64() * 1000.0)
        })
        .collect();
    all.sort_by(|one, other| other.2.total_cmp(&one.2));
    all.truncate(2);
    all
}

/// Sends this request on each connection again and again, or opens connections only; counts them.
async fn attack(dialer: Dialer, request: Option<Arc<[u8]>>, count: Arc<AtomicUsize>) {
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..CONNECTIONS {
        let (dialer, request, count) = (dialer.clone(), request.clone(), count.clone());
        tasks.spawn(async move {
            loop {
                let Ok(mut stream) = dialer.connect(ATTACKER).await else { continue };
                count.fetch_add(1, Ordering::Relaxed);
                while let Some(request) = &request
                    && review(&mut stream, request).await.is_ok()
                {
                    count.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
    }
    while tasks.join_next().await.is_some() {}
}

/// An attacking process.
struct Attacker(Child);

impl Attacker {
    /// Starts this program as an attacker that sends these bytes, or only opens connections.
    fn start(to: SocketAddr, ca: &str, request: Option<&[u8]>) -> Attacker {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .env("ATTACK", to.to_string())
            .env("ATTACK_CA", ca)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let request = request.unwrap_or_default();
        let stdin = child.stdin.as_mut().unwrap();
        stdin.write_all(&(request.len() as u64).to_le_bytes()).unwrap();
        stdin.write_all(request).unwrap();
        stdin.flush().unwrap();
        Attacker(child)
    }

    /// Ends it; returns how many requests it sent, or connections it opened.
    fn stop(mut self) -> usize {
        drop(self.0.stdin.take());
        let output = self.0.wait_with_output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().parse().unwrap()
    }

    /// What an attacking process does.
    fn run(to: &str) {
        let (mut length, mut input) = ([0; 8], std::io::stdin().lock());
        input.read_exact(&mut length).unwrap();
        let mut request = vec![0; u64::from_le_bytes(length) as usize];
        input.read_exact(&mut request).unwrap();
        let dialer = Dialer::new(to.parse().unwrap(), &std::env::var("ATTACK_CA").unwrap());
        let (request, count) = ((!request.is_empty()).then(|| request.into()), Arc::new(AtomicUsize::new(0)));
        let counted = count.clone();
        std::thread::spawn(move || {
            usher_runtime::background::lower_priority();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(attack(dialer, request, counted));
        });
        input.read_to_end(&mut Vec::new()).unwrap();
        println!("{}", count.load(Ordering::Relaxed));
    }
}

async fn run() {
    let cluster = Cluster::start().await;
    let ca = cluster.folder().join("serving.pem").display().to_string();
    let arguments = ["--self-signed-for", "localhost", "--ca-out", &ca, "--log", "info"];
    let config = "policies: [{name: batch, scheduler: {type: volcano}, queue: analytics}]";
    let server = Process::start_serving(&arguments, &[], &cluster, "one", config, &cluster.kubeconfig());
    eventually("the replica leads", async || server.is_ready().await && server.leads()).await;
    let dialer = Dialer::new(server.webhook, &ca);
    let request = open_loop::request("/mutate", &recording::recorded());
    let leases: Api<Lease> = Api::namespaced(cluster.client.clone(), &cluster.namespace);

    let mut rounds = Vec::new();
    for (size, path) in [
        (18 << 20, "/mutate-and-validate"),
        (1_000 << 10, "/mutate-and-validate"),
        (31 << 10, "/mutate-and-validate"),
        (18 << 20, "/mutate"),
    ] {
        for (what, body, took) in worst(size) {
            let name = format!("{what}, {} kB to {path} ({took:.2} ms)", body.len() >> 10);
            rounds.push((name, Some(open_loop::request(path, &body))));
        }
    }
    rounds.push(("handshakes".to_owned(), None));
    let mut alone = f64::NAN;
    for round in std::iter::once(None).chain(rounds.into_iter().map(Some)) {
        let stop = AtomicBool::new(false);
        let name = round.as_ref().map_or("no attack", |(name, _)| name).to_owned();
        let attacker = round.map(|(_, request)| Attacker::start(server.webhook, &ca, request.as_deref()));
        tokio::time::sleep(Duration::from_millis(500)).await;
        let probing = async {
            let (mut slowest, mut renewals) = (0f64, Vec::new());
            while !stop.load(Ordering::Relaxed) {
                let begin = Instant::now();
                get(server.metrics, "/livez").await;
                slowest = slowest.max(begin.elapsed().as_secs_f64() * 1000.0);
                let lease = leases.get("spark-usher").await.unwrap().spec.unwrap();
                let renewed = lease.renew_time.unwrap().0;
                if renewals.last() != Some(&renewed) {
                    renewals.push(renewed);
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            let gaps = renewals.windows(2).map(|two| (two[1] - two[0]).total(jiff::Unit::Second).unwrap());
            (slowest, gaps.fold(0f64, f64::max))
        };
        let measuring = async {
            let (dialer, request) = (dialer.clone(), request.clone());
            let latencies = tokio::task::spawn_blocking(move || measure(&dialer, &request)).await.unwrap();
            stop.store(true, Ordering::Relaxed);
            latencies
        };
        let (latencies, (livez, gap)) = tokio::join!(measuring, probing);
        let sent = attacker.map_or(0, Attacker::stop);
        let (p99, new) = (at(&latencies.pooled, 0.99), at(&latencies.new, 0.99));
        if alone.is_nan() {
            alone = p99;
        }
        println!(
            "{name:<75} {sent:>6} sent; p50 {:.2} ms, p99 {p99:.2} ms, {:.1} times (limit {RATIO}); new connections {new:.2} ms; {} failed (limit 0); /livez at most {livez:.1} ms (limit {LIVEZ_MS}); Lease renewed every {gap:.2} s at most",
            at(&latencies.pooled, 0.5),
            p99 / alone,
            latencies.failed
        );
    }
    println!(
        "late renewals of the Lease: {} (limit 0)",
        server.log_lines("the Lease was renewed late: this leader wrote nothing meanwhile").len()
    );
}

fn main() {
    // `cargo test --benches` also runs this program, without a test.
    usher_net::tls::install_provider();
    if let Ok(to) = std::env::var("ATTACK") {
        Attacker::run(&to);
    } else if std::env::args().any(|arg| arg == "--bench") {
        tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(run());
    }
}
