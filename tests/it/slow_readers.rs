//! Clients that request large pages of the plain ports and do not read them, again and again.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio_util::sync::CancellationToken;
use usher_net::listener::capacity::{Capacities, Capacity};
use usher_net::listener::metrics::ListenersMetrics;
use usher_net::listener::server::{Deadlines, Listener, Shutdown, serve_plain};
use usher_net::telemetry::registry::Registry;
use usher_runtime::ready::Readiness;
use usher_server::http::admin;

/// The metrics port with a page of this many series. It runs until the token is cancelled.
fn start(capacity: Capacity, series: usize) -> (SocketAddr, CancellationToken) {
    let (registry, stop) = (Registry::default(), CancellationToken::new());
    let metrics = ListenersMetrics::register(&registry, &["metrics"]).unwrap();
    let large = registry.counters("large_total", &["number"], "A large page.").unwrap();
    (0..series).for_each(|number| large.with_label_values(&[&format!("{number:0100}")]).inc());
    let listener = Listener::bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let listener = listener.limited(capacity, metrics.listener("metrics"));
    let address = listener.address();
    let shutdown = Shutdown { draining: CancellationToken::new(), stop: stop.clone(), drain: Duration::ZERO };
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let routes = admin::router(Readiness::default(), registry);
        runtime.block_on(serve_plain(listener, routes, Deadlines::default(), shutdown)).unwrap();
    });
    (address, stop)
}

async fn connect(from: u8, to: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((IpAddr::from([127, 0, 0, from]), 0).into())?;
    socket.connect(to).await
}

/// Requests a path and reads the status line, as a probe with a timeout of one second.
async fn probe(from: u8, to: SocketAddr) -> bool {
    let asked = async {
        let mut stream = connect(from, to).await?;
        stream.write_all(b"GET /livez HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        std::io::Result::Ok(answer.starts_with("HTTP/1.1 200"))
    };
    tokio::time::timeout(Duration::from_secs(1), asked).await.is_ok_and(|answer| answer.unwrap_or(false))
}

/// The most of 30 probes that fail in a row, from the address of the slow readers and from another one in turn: the chart's probes
/// have a failureThreshold of 3.
async fn longest_failure(capacity: Capacity, readers: usize) -> usize {
    let (address, stop) = start(capacity, 20_000);
    let (is_over, requests) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let mut attack = tokio::task::JoinSet::new();
    for _ in 0..readers {
        let (is_over, requests) = (is_over.clone(), requests.clone());
        attack.spawn(async move {
            while !is_over.load(Ordering::Relaxed) {
                let Ok(mut stream) = connect(1, address).await else { continue };
                if stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n").await.is_ok() {
                    requests.fetch_add(1, Ordering::Relaxed);
                }
                // Until the server closes it.
                let mut byte = [0];
                while !is_over.load(Ordering::Relaxed) && stream.read(&mut byte).await.is_ok_and(|read| read > 0) {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        });
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    let (mut failed, mut in_row, mut longest) = (0, 0, 0);
    for number in 0..30 {
        let has_failed = !probe(1 + number % 2, address).await;
        failed += usize::from(has_failed);
        in_row = if has_failed { in_row + 1 } else { 0 };
        longest = longest.max(in_row);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    is_over.store(true, Ordering::Relaxed);
    stop.cancel();
    attack.shutdown().await;
    let requests = requests.load(Ordering::Relaxed);
    println!("{readers} slow readers sent {requests} requests, and {failed} of 30 probes failed");
    assert!(requests >= readers, "{requests}");
    longest
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_readers_of_metrics_fail_no_probe() {
    assert!(longest_failure(Capacities::default().metrics, 800).await < 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_readers_do_not_block_the_debug_port() {
    assert!(longest_failure(Capacities::default().debug, 64).await < 3);
}
