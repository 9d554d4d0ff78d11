//! Reviews per second over TLS on one core, compared with an echo of the same bytes by the same server in the same run.
//!
//!     cargo bench --bench endpoint
//!
//! The server has a runtime with one thread. The clients are raw TLS connections on another thread, kept alive, which send the
//! same recorded review repeatedly. The result is the median of several rounds, which alternate between webhook and echo.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    reason = "a benchmark"
)]

mod support;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use axum::Router;
use axum::body::Bytes;
use axum::routing::post;
use futures::FutureExt;
use futures::future::BoxFuture;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;
use usher_core::snapshot::{Namespace, Snapshot};
use usher_net::listener::metrics::HandshakeMetrics;
use usher_net::listener::server::{self, Deadlines, Listener, Shutdown};
use usher_net::telemetry::registry::Registry;
use usher_net::tls::ca::Authority;
use usher_net::tls::load::load;
use usher_net::tls::serving::Serving;
use usher_runtime::clock;
use usher_server::http::handlers::{Handlers, Namespaces, ReviewState};
use usher_server::http::limits::Limits;
use usher_server::http::metrics::Metrics;
use usher_server::http::webhook;

const POLICY: &str = "apiVersion: spark-usher.io/v1alpha1\nkind: PolicyFile\npolicies: [{name: batch, scheduler: {type: volcano}, queue: analytics, priorityClass: {executor: batch}}]";
/// The minimum of the ratio webhook / echo.
const LIMIT: f64 = 0.62;
const CONNECTIONS: usize = 16;
const ROUNDS: usize = 7;
const ROUND: Duration = Duration::from_millis(1500);

/// Serves on a separate thread.
fn serve(
    name: &str,
    routes: Router,
    serving: &Arc<Serving>,
    handshakes: &HandshakeMetrics,
    stop: &CancellationToken,
) -> SocketAddr {
    let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.address();
    let (config, handshakes) = (Arc::new(serving.config()), handshakes.clone());
    let ending = Shutdown { draining: stop.clone(), stop: stop.clone(), drain: Duration::ZERO };
    let thread = std::thread::Builder::new().name(name.to_owned());
    let serving = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime
            .block_on(server::serve_tls(listener, config, routes, Deadlines::default(), handshakes, ending))
            .unwrap();
    };
    thread.spawn(serving).unwrap();
    address
}

/// Responses per second.
fn rate(address: SocketAddr, connector: &TlsConnector, request: &Arc<[u8]>, length: usize) -> f64 {
    let runtime = tokio::runtime::Builder::new_current_thread().event_interval(4).enable_all().build().unwrap();
    let answers = Arc::new(AtomicU64::new(0));
    runtime.block_on(async {
        let local = tokio::task::LocalSet::new();
        for _ in 0..CONNECTIONS {
            let (connector, request, answers) = (connector.clone(), request.clone(), answers.clone());
            local.spawn_local(async move {
                let stream = tokio::net::TcpStream::connect(address).await.unwrap();
                stream.set_nodelay(true).unwrap();
                let mut stream = connector.connect("127.0.0.1".try_into().unwrap(), stream).await.unwrap();
                let mut buffer = vec![0; length];
                loop {
                    stream.write_all(&request).await.unwrap();
                    stream.flush().await.unwrap();
                    // All responses to the same request have the same length, so they need not be parsed.
                    stream.read_exact(&mut buffer).await.unwrap();
                    answers.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        // The clients' thread never sleeps: otherwise the server would spend time to wake it, the more the slower it is.
        local.spawn_local(async {
            loop {
                tokio::task::yield_now().await;
            }
        });
        local
            .run_until(async {
                tokio::time::sleep(Duration::from_millis(300)).await; // Handshakes.
                let (start, before) = (Instant::now(), answers.load(Ordering::Relaxed));
                tokio::time::sleep(ROUND).await;
                (answers.load(Ordering::Relaxed) - before) as f64 / start.elapsed().as_secs_f64()
            })
            .await
    })
}

/// The length of the response to a request, head and body; and the response.
fn length(address: SocketAddr, connector: &TlsConnector, request: &[u8]) -> (usize, String) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let mut stream = connector.connect("127.0.0.1".try_into().unwrap(), stream).await.unwrap();
        stream.write_all(request).await.unwrap();
        let mut answer = Vec::new();
        loop {
            let mut chunk = [0; 4096];
            let read = tokio::time::timeout(Duration::from_secs(1), stream.read(&mut chunk)).await;
            match read {
                Ok(Ok(count)) if count > 0 => answer.extend_from_slice(&chunk[..count]),
                _ => break,
            }
            let text = String::from_utf8_lossy(&answer);
            if let Some((head, body)) = text.split_once("\r\n\r\n") {
                let wanted = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
                if body.len() == wanted.parse::<usize>().unwrap() {
                    break;
                }
            }
        }
        (answer.len(), String::from_utf8_lossy(&answer).into_owned())
    })
}

/// The snapshot has none either, and no policy depends on their labels.
struct NoNamespaces;

impl Namespaces for NoNamespaces {
    fn find(&self, _: Arc<str>, _: std::net::IpAddr) -> BoxFuture<'static, Option<Arc<Namespace>>> {
        std::future::ready(None).boxed()
    }
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

fn main() {
    usher_net::tls::install_provider();
    let authority = Authority::new("bench", clock::now()).unwrap();
    let pair = authority.serve(&["localhost"], &["127.0.0.1".parse().unwrap()]).unwrap();
    let serving = Serving::new(load(pair.certificate.as_bytes(), pair.key.as_bytes(), clock::now()).unwrap());
    let registry = Registry::default();
    let metrics = Arc::new(Metrics::register(&registry).unwrap());
    let handshakes = HandshakeMetrics::register(&registry).unwrap();
    let stop = CancellationToken::new();
    let state = ReviewState {
        snapshot: Arc::new(ArcSwap::from_pointee(Snapshot::default())),
        policies: Arc::new(ArcSwap::new(usher_config::from_text(POLICY).unwrap().policies)),
        own_account: Arc::default(),
        changed: Arc::default(),
        settle: Duration::ZERO,
    };
    let ours = serve(
        "webhook",
        webhook::router(Handlers::new(state, Arc::new(NoNamespaces)), Limits::default(), metrics.clone()),
        &serving,
        &handshakes,
        &stop,
    );
    let echo = Router::new().route("/mutate", post(async |body: Bytes| body));
    let echo = serve("echo", echo, &serving, &handshakes, &stop);

    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority.pem().as_bytes()).unwrap()).unwrap();
    let mut client = rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    client.alpn_protocols = vec![b"http/1.1".to_vec()];
    let connector = TlsConnector::from(Arc::new(client));
    let body = String::from_utf8(support::recorded()).unwrap();
    let request = format!(
        "POST /mutate?timeout=2s HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let request: Arc<[u8]> = request.into_bytes().into();

    let (our_length, answer) = length(ours, &connector, &request);
    assert!(answer.contains("\"patchType\":\"JSONPatch\""), "{answer}");
    let (echo_length, _) = length(echo, &connector, &request);
    let (mut our_rates, mut echo_rates) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        our_rates.push(rate(ours, &connector, &request, our_length));
        echo_rates.push(rate(echo, &connector, &request, echo_length));
    }
    let (ours, echo) = (median(our_rates), median(echo_rates));
    println!(
        "review                {:>8} bytes, over TLS 1.3 and HTTP/1.1, {CONNECTIONS} connections, one core",
        body.len()
    );
    println!("echo                  {echo:>8.0} responses/s");
    println!("webhook               {ours:>8.0} responses/s");
    println!("webhook / echo        {:>8.2}   (limit: at least {LIMIT})", ours / echo);
    stop.cancel();
}
