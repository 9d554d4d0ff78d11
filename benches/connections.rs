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

#[path = "support/mod.rs"]
mod recording;
#[path = "../tests/support/mod.rs"]
mod support;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures::StreamExt;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use spark_usher::runtime::descriptors;
use support::cluster::{Cluster, eventually};
use support::process::{Process, get};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

const API_SERVER: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const ATTACKER: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));
const IDLE: usize = 7_000;
const TRICKLING: usize = 3_000;
const STALLED: usize = 2_300;
const POOL: usize = 25;
const RATE: u64 = 200;
const ROUND: Duration = Duration::from_secs(12);
const P99: f64 = 5.0;
const MEMORY: f64 = 128.0;

type Stream = TlsStream<TcpStream>;

#[derive(Clone)]
struct Dialer {
    connector: TlsConnector,
    to: SocketAddr,
}

impl Dialer {
    async fn connect(&self, from: IpAddr) -> std::io::Result<Stream> {
        let socket = TcpSocket::new_v4()?;
        socket.bind(SocketAddr::new(from, 0))?;
        let stream = socket.connect(self.to).await?;
        stream.set_nodelay(true)?;
        self.connector.connect("localhost".try_into().unwrap(), stream).await
    }
}

/// Sends a review and reads the response; returns its status.
async fn review(stream: &mut Stream, request: &[u8]) -> std::io::Result<u16> {
    stream.write_all(request).await?;
    stream.flush().await?;
    let mut answer = Vec::with_capacity(4096);
    loop {
        if stream.read_buf(&mut answer).await? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        let text = String::from_utf8_lossy(&answer);
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
        if body.len() >= length.parse().unwrap() {
            return Ok(head.get(9..12).and_then(|code| code.parse().ok()).unwrap_or_default());
        }
    }
}

/// Resident MiB.
fn resident(pid: u32) -> f64 {
    let statm = std::fs::read_to_string(format!("/proc/{pid}/statm")).unwrap();
    statm.split(' ').nth(1).unwrap().parse::<f64>().unwrap() * 4096.0 / f64::from(1 << 20)
}

/// Sends reviews at a steady rate for one round, on a separate thread. Prints the latencies, measured from the time when each
/// review was due.
fn measure(name: &str, dialer: &Dialer, request: &Arc<[u8]>) {
    let (dialer, request) = (dialer.clone(), request.clone());
    let (mut pooled, mut new, failed) = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let mut pool = Vec::new();
            for _ in 0..POOL {
                let mut stream = dialer.connect(API_SERVER).await.unwrap();
                review(&mut stream, &request).await.unwrap();
                pool.push(stream);
            }
            let (mut open, mut pooled, mut new, mut failed) = (tokio::task::JoinSet::new(), vec![], vec![], 0);
            let mut tick = tokio::time::interval(Duration::from_micros(1_000_000 / RATE));
            let (begin, mut sent) = (Instant::now(), 0);
            while begin.elapsed() < ROUND {
                let due = tick.tick().await;
                sent += 1;
                let known = if sent % 20 == 0 { None } else { pool.pop() };
                let (dialer, request) = (dialer.clone(), request.clone());
                open.spawn(async move {
                    let is_new = known.is_none();
                    let answered = async {
                        let mut stream = match known {
                            Some(stream) => stream,
                            None => dialer.connect(API_SERVER).await?,
                        };
                        let status = review(&mut stream, &request).await?;
                        std::io::Result::Ok((stream, status))
                    };
                    let answered = answered.await;
                    (is_new, answered, due.elapsed())
                });
                while let Some(ended) = open.try_join_next() {
                    let (is_new, answered, took) = ended.unwrap();
                    match answered {
                        Ok((stream, 200)) => {
                            if is_new { &mut new } else { &mut pooled }.push(took.as_secs_f64() * 1000.0);
                            if pool.len() < POOL {
                                pool.push(stream);
                            }
                        }
                        _ => failed += 1,
                    }
                }
            }
            (pooled, new, failed)
        })
    })
    .join()
    .unwrap();
    let at = |sorted: &mut Vec<f64>, part: f64| {
        sorted.sort_by(f64::total_cmp);
        sorted.get((sorted.len() as f64 * part) as usize).copied().unwrap_or(f64::NAN)
    };
    println!(
        "{name:<32} {:>5} reviews, p50 {:.2} ms, p99 {:.2} ms (limit {P99} ms); {:>3} on new connections, p99 {:.2} ms; {failed} failed (limit 0)",
        pooled.len(),
        at(&mut pooled, 0.5),
        at(&mut pooled, 0.99),
        new.len(),
        at(&mut new, 0.99),
    );
}

async fn run() {
    descriptors::raise();
    let cluster = Cluster::start().await;
    let ca = cluster.folder().join("serving.pem").display().to_string();
    let mut arguments = vec!["--self-signed-for", "localhost", "--ca-out", &ca, "--log", "info"];
    let most = std::env::var("MAX_CONNECTIONS").ok();
    if let Some(most) = &most {
        arguments.extend(["--max-connections", most]);
    }
    let config = "policies: [{name: batch, scheduler: {type: volcano}, queue: analytics}]";
    let server = Process::start_serving(&arguments, &[], &cluster, "one", config, &cluster.kubeconfig());
    eventually("the replica is ready", async || server.is_ready().await).await;
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(&std::fs::read(ca).unwrap()).unwrap()).unwrap();
    let mut client = rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    client.alpn_protocols = vec![b"http/1.1".to_vec()];
    client.resumption = rustls::client::Resumption::disabled();
    let dialer = Dialer { connector: TlsConnector::from(Arc::new(client)), to: server.webhook };
    let body = String::from_utf8(recording::recorded()).unwrap();
    let request: Arc<[u8]> = format!(
        "POST /mutate?timeout=2s HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
    .into();

    let measured = async |name: &'static str| {
        let (dialer, request) = (dialer.clone(), request.clone());
        tokio::task::spawn_blocking(move || measure(name, &dialer, &request)).await.unwrap();
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

    let head = "POST /mutate?timeout=30s HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 32769\r\n\r\n";
    let stalling = Arc::new(AtomicBool::new(true));
    let mut stalled = tokio::task::JoinSet::new();
    for n in 0..STALLED {
        let (dialer, stalling) = (dialer.clone(), stalling.clone());
        stalled.spawn(async move {
            tokio::time::sleep(Duration::from_millis(n as u64)).await;
            while stalling.load(Ordering::Relaxed) {
                let Ok(mut stream) = dialer.connect(ATTACKER).await else { continue };
                let sent = async {
                    stream.write_all(head.as_bytes()).await?;
                    stream.write_all(&[b' '; 32768]).await?;
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
    measured("2,300 stalled bodies of 32 kB").await;
    stalling.store(false, Ordering::Relaxed);
    stalled.shutdown().await;
}

fn main() {
    // `cargo test --benches` also runs this program, without a test.
    if std::env::args().any(|arg| arg == "--bench") {
        spark_usher::tls::install_provider();
        tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(run());
    }
}
