//! Attacks on connections: clients that idle, stall or never read do not block API servers, and other clients can be rejected by
//! client certificates.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::support::cluster::{Cluster, eventually};
use crate::support::crafted::crafted;
use crate::support::https;
use crate::support::https::{Endpoint, Setup, client_certificate};
use crate::support::process::{Process, get};
use crate::support::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::client::TlsStream;
use tokio_util::sync::CancellationToken;
use usher_core::admission::Operation;
use usher_core::reason::Reason;
use usher_net::listener::capacity::Capacity;
use usher_net::listener::server::Deadlines;
use usher_net::tls::ca::{Authority, Pair};
use usher_net::tls::clients::{ClientCaFile, Clients};
use usher_runtime::clock;
use usher_server::http::handlers::{Find, Handler, ReviewResponse, Unobserved};
use usher_server::http::limits::Limits;
use usher_server::http::metrics::ReviewOutcome;

const API_SERVER: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const ATTACKER: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));

type Stream = TlsStream<TcpStream>;

async fn connect_from(endpoint: &Endpoint, address: IpAddr) -> io::Result<Stream> {
    https::connect(endpoint.authority.pem(), endpoint.address, address, None).await
}

fn request() -> Vec<u8> {
    request_of(&serde_json::to_vec(&recorded("client-mode/exec-1.mutate.create")).unwrap())
}

/// The same with an annotation of this length.
fn large_review(length: usize) -> Vec<u8> {
    let mut review = recorded("client-mode/exec-1.mutate.create");
    review["request"]["object"]["metadata"]["annotations"]["large"] = "x".repeat(length).into();
    request_of(&serde_json::to_vec(&review).unwrap())
}

fn request_of(body: &[u8]) -> Vec<u8> {
    let head = format!(
        "POST /mutate?timeout=10s HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

/// Sends a review and reads the response; returns its head.
async fn review(stream: &mut Stream) -> io::Result<String> {
    review_of(stream, &request()).await
}

async fn review_of(stream: &mut Stream, request: &[u8]) -> io::Result<String> {
    stream.write_all(request).await?;
    stream.flush().await?;
    let mut answer = Vec::new();
    loop {
        if stream.read_buf(&mut answer).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let text = String::from_utf8_lossy(&answer);
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
        if body.len() >= length.parse().unwrap() {
            return Ok(head.to_owned());
        }
    }
}

async fn assert_answered(stream: &mut Stream) {
    let head = review(stream).await.unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
}

/// The sum of a metric's samples that start with this text.
fn metric(endpoint: &Endpoint, line: &str) -> usize {
    let text = endpoint.registry.render().unwrap();
    let values = text.lines().filter(|found| found.starts_with(line));
    values.map(|found| found.rsplit_once(' ').unwrap().1.parse::<usize>().unwrap()).sum()
}

fn overloaded(endpoint: &Endpoint) -> usize {
    let text = endpoint.registry.render().unwrap();
    let found = text.lines().filter(|line| line.contains("reason=\"Overloaded\""));
    found.map(|line| line.rsplit_once(' ').unwrap().1.parse::<usize>().unwrap()).sum()
}

/// Sends bodies of this length that stop one byte before their end.
async fn stall(endpoint: &Endpoint, address: IpAddr, length: usize, count: usize) -> Vec<Stream> {
    let mut stalled = Vec::new();
    for _ in 0..count {
        let mut stream = connect_from(endpoint, address).await.unwrap();
        let head = format!(
            "POST /mutate?timeout=30s HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        // A large body waits unread, and may not fit into the buffers of the kernel.
        let body = vec![b' '; (length - 1).min(64 << 10)];
        stream.write_all(&body).await.unwrap();
        stream.flush().await.unwrap();
        stalled.push(stream);
    }
    stalled
}

const SMALL: usize = 32 << 10;
const LARGE: usize = SMALL + 1;

/// The statuses of the responses so far.
async fn statuses(streams: &mut [Stream]) -> Vec<String> {
    let mut statuses = Vec::new();
    for stream in streams {
        let mut answer = vec![0; 12];
        if tokio::time::timeout(Duration::from_millis(200), stream.read_exact(&mut answer)).await.is_ok() {
            statuses.push(String::from_utf8_lossy(&answer).into_owned());
        }
    }
    statuses
}

#[tokio::test]
async fn stalled_small_bodies_do_not_block_reviews() {
    let endpoint = Setup { limits: Limits::new(8, 1), ..Setup::default() }.start();
    let mut pooled = connect_from(&endpoint, ATTACKER).await.unwrap();
    assert_answered(&mut pooled).await;
    let mut stalled = stall(&endpoint, ATTACKER, SMALL, 20).await;
    eventually("the oldest have given way", async || overloaded(&endpoint) == 12).await;
    for _ in 0..10 {
        assert_answered(&mut connect_from(&endpoint, API_SERVER).await.unwrap()).await;
        assert_answered(&mut connect_from(&endpoint, ATTACKER).await.unwrap()).await;
    }
    // An API server behind the same address, as with a proxy or a NAT.
    assert_answered(&mut pooled).await;
    let mut slow = stall(&endpoint, API_SERVER, SMALL, 1).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    slow[0].write_all(b" ").await.unwrap();
    slow[0].flush().await.unwrap();
    let mut status = [0; 12];
    slow[0].read_exact(&mut status).await.unwrap();
    assert_eq!(&status, b"HTTP/1.1 400", "a slow body is read, too");
    assert_eq!(statuses(&mut stalled[..12]).await, vec!["HTTP/1.1 429"; 12]);
}

#[tokio::test]
async fn stalled_large_bodies_delay_large_reviews_of_others_by_one_turn() {
    let endpoint = Setup { limits: Limits::new(8, 1), ..Setup::default() }.start();
    let mut stalled = stall(&endpoint, ATTACKER, LARGE, 20).await;
    let begin = std::time::Instant::now();
    assert_answered(&mut connect_from(&endpoint, API_SERVER).await.unwrap()).await;
    let mut large = connect_from(&endpoint, API_SERVER).await.unwrap();
    let head = review_of(&mut large, &large_review(500 << 10)).await.unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    // The one that holds the permit is cut a quarter of a second after another waits. Without turns, twenty would be cut before.
    assert!(begin.elapsed() < Duration::from_secs(3), "{:?}", begin.elapsed());
    eventually("the oldest body gets a 429", async || overloaded(&endpoint) >= 1).await;
    assert!(statuses(&mut stalled).await.iter().all(|status| status == "HTTP/1.1 429"));
}

/// With one permit, each of them would hold it for as long as others may wait.
#[tokio::test]
async fn stalled_large_bodies_of_many_peers_delay_large_reviews_by_milliseconds() {
    for each in [1, 2] {
        let endpoint = Setup { limits: Limits::new(8, 1), ..Setup::default() }.start();
        let mut stalled = Vec::new();
        for n in 100..140 {
            stalled.push(stall(&endpoint, Ipv4Addr::new(127, 0, 0, n).into(), LARGE, each).await);
        }
        let mut large = connect_from(&endpoint, API_SERVER).await.unwrap();
        for _ in 0..3 {
            let begin = std::time::Instant::now();
            let head = review_of(&mut large, &large_review(500 << 10)).await.unwrap();
            assert!(head.starts_with("HTTP/1.1 200"), "{head}");
            assert!(begin.elapsed() < Duration::from_secs(2), "{:?}: the deadline of the chart", begin.elapsed());
        }
    }
}

/// A decision about more than 1 MiB fails when the test says so.
#[derive(Default)]
struct DecidesLater {
    began: AtomicBool,
    may_end: AtomicBool,
}

impl Handler for DecidesLater {
    fn answer(&self, body: &[u8], _: Find<'_>) -> Result<ReviewResponse, Unobserved> {
        if body.len() > 1 << 20 {
            self.began.store(true, Ordering::Relaxed);
            for _ in 0..3000 {
                if self.may_end.load(Ordering::Relaxed) {
                    break;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        Ok(ReviewResponse {
            body: Err("none".to_owned()),
            operation: Operation::Other,
            outcome: ReviewOutcome::Failed,
            reason: Reason::BadReview,
            how: None,
        })
    }
}

#[tokio::test]
async fn large_bodies_that_wait_are_not_read() {
    let request = large_review(18 << 20);
    let decides = Arc::new(DecidesLater::default());
    let endpoint = Setup { limits: Limits::new(8, 1), answer: Some(decides.clone()), ..Setup::default() }.start();
    let mut holder = connect_from(&endpoint, ATTACKER).await.unwrap();
    holder.write_all(&large_review(5 << 20)).await.unwrap();
    holder.flush().await.unwrap();
    eventually("it is decided about", async || decides.began.load(Ordering::Relaxed)).await;
    let mut waiting = connect_from(&endpoint, ATTACKER).await.unwrap();
    let sent = tokio::time::timeout(Duration::from_millis(300), waiting.write_all(&request)).await;
    assert!(sent.is_err(), "18 MB are not read while another body is decided about");
    let small =
        review_of(&mut connect_from(&endpoint, ATTACKER).await.unwrap(), &large_review(500 << 10)).await.unwrap();
    assert!(small.starts_with("HTTP/1.1 400"), "one of 0.5 MB has a turn of its own: {small}");
    decides.may_end.store(true, Ordering::Relaxed);
    let mut status = [0; 12];
    holder.read_exact(&mut status).await.unwrap();
    assert_eq!(&status, b"HTTP/1.1 400");
}

#[tokio::test]
async fn pipelining_client_that_reads_no_response_is_disconnected() {
    let deadlines = Deadlines { write: Duration::from_millis(300), ..Deadlines::default() };
    let endpoint = Setup { deadlines, ..Setup::default() }.start();
    let mut client = connect_from(&endpoint, ATTACKER).await.unwrap();
    let request = request();
    let disconnected = tokio::time::timeout(Duration::from_secs(60), async {
        while client.write_all(&request).await.is_ok() && client.flush().await.is_ok() {}
    });
    assert!(disconnected.await.is_ok(), "the connection is still open although its client reads no response");
}

#[tokio::test]
async fn idle_connections_are_evicted_and_those_of_api_servers_stay() {
    let endpoint = Setup { capacity: Some(Capacity::of_reviews(24)), ..Setup::default() }.start();
    let mut pool = Vec::new();
    for _ in 0..4 {
        let mut stream = connect_from(&endpoint, API_SERVER).await.unwrap();
        assert_answered(&mut stream).await;
        pool.push(stream);
    }
    let mut idle = Vec::new();
    for round in 0..60 {
        idle.push(connect_from(&endpoint, ATTACKER).await);
        if round % 10 == 0 {
            let mut new = connect_from(&endpoint, API_SERVER).await.unwrap();
            assert_answered(&mut new).await;
        }
    }
    for stream in &mut pool {
        assert_answered(stream).await;
    }
    let listener = "{listener=\"webhook\"}";
    assert!(metric(&endpoint, &format!("spark_usher_connections_evicted_total{listener}")) >= 30);
    assert!(metric(&endpoint, &format!("spark_usher_connections{listener}")) <= 24);
    let oldest = idle.remove(0).unwrap().read_u8().await;
    assert!(oldest.is_err(), "the oldest connection is closed");
}

#[tokio::test]
async fn client_with_review_on_each_connection_does_not_block_others() {
    let endpoint = Setup { capacity: Some(Capacity::of_reviews(24)), ..Setup::default() }.start();
    let mut api_server = Vec::new();
    for _ in 0..6 {
        let mut stream = connect_from(&endpoint, API_SERVER).await.unwrap();
        assert_answered(&mut stream).await;
        api_server.push(stream);
    }
    let mut held = Vec::new();
    for _ in 0..60 {
        let mut stream = connect_from(&endpoint, ATTACKER).await.unwrap();
        assert_answered(&mut stream).await;
        held.push(stream);
    }
    for stream in &mut api_server {
        assert_answered(stream).await;
    }
    for _ in 0..3 {
        assert_answered(&mut connect_from(&endpoint, API_SERVER).await.unwrap()).await;
    }
    assert!(held.remove(0).read_u8().await.is_err(), "beyond the share of its peer, the oldest is closed");
}

async fn review_with_certificate(endpoint: &Endpoint, certificate: Option<&Pair>) -> io::Result<String> {
    // With TLS 1.3, a client gets the rejection at its first read.
    let mut stream = https::connect(endpoint.authority.pem(), endpoint.address, API_SERVER, certificate).await?;
    review(&mut stream).await
}

#[tokio::test]
async fn missing_or_foreign_client_certificate_is_rejected_and_changed_ca_is_reloaded() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ca.pem");
    let (one, two) = (Authority::new("one", clock::now()).unwrap(), Authority::new("two", clock::now()).unwrap());
    std::fs::write(&path, one.pem()).unwrap();
    let mut file = ClientCaFile::new(path.clone(), Duration::from_millis(20));
    let clients = file.first(vec!["kube-apiserver".to_owned()]).await.unwrap();
    let (stop, outcomes) = (CancellationToken::new(), std::sync::Arc::new(std::sync::Mutex::new(Vec::new())));
    let (recorded_outcomes, until, followed) = (outcomes.clone(), stop.clone(), clients.clone());
    tokio::spawn(file.run(followed, until, move |outcome| recorded_outcomes.lock().unwrap().push(outcome.is_ok())));
    let endpoint = Setup { clients: Some(clients), ..Setup::default() }.start();

    let (of_one, of_two) = (client_certificate(&one, "kube-apiserver"), client_certificate(&two, "kube-apiserver"));
    let kubelet = client_certificate(&one, "kubelet");
    assert!(review_with_certificate(&endpoint, Some(&of_one)).await.unwrap().starts_with("HTTP/1.1 200"));
    review_with_certificate(&endpoint, None).await.expect_err("no certificate");
    review_with_certificate(&endpoint, Some(&of_two)).await.expect_err("another CA");
    review_with_certificate(&endpoint, Some(&kubelet)).await.expect_err("another name");
    assert_eq!(metric(&endpoint, "spark_usher_client_certificates_refused_total"), 3);
    assert_eq!(metric(&endpoint, "spark_usher_tls_handshake_errors_total"), 3);

    // In one step, as kubelets replace mounted files: a reader must not see an empty file in between.
    let replace = |content: &str| {
        let new = folder.path().join("new.pem");
        std::fs::write(&new, content).unwrap();
        std::fs::rename(new, &path).unwrap();
    };
    replace("nothing");
    eventually("the file is rejected", async || *outcomes.lock().unwrap() == [false]).await;
    assert!(review_with_certificate(&endpoint, Some(&of_one)).await.is_ok(), "the previous CA stays in use");
    replace(two.pem());
    eventually("the file is reloaded", async || *outcomes.lock().unwrap() == [false, true]).await;
    assert!(review_with_certificate(&endpoint, Some(&of_two)).await.is_ok());
    review_with_certificate(&endpoint, Some(&of_one)).await.expect_err("the previous CA");
    stop.cancel();
}

#[tokio::test]
async fn client_ca_without_names_accepts_any_name() {
    let authority = Authority::new("one", clock::now()).unwrap();
    let clients = Clients::new(authority.pem().as_bytes(), Vec::new()).unwrap();
    let endpoint = Setup { clients: Some(clients), ..Setup::default() }.start();
    let any = client_certificate(&authority, "any-client");
    assert!(review_with_certificate(&endpoint, Some(&any)).await.is_ok());
}

async fn idle(to: SocketAddr, count: usize) -> Vec<TcpStream> {
    let mut idle = Vec::new();
    for _ in 0..count {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::new(ATTACKER, 0)).unwrap();
        idle.push(socket.connect(to).await.unwrap());
    }
    idle
}

/// Sends a body again and again on connections of its own, until it is dropped.
fn attack(ca: &str, to: SocketAddr, path: &str, body: &[u8]) -> tokio::task::JoinSet<()> {
    let head = format!(
        "POST {path}?timeout=30s HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let request: std::sync::Arc<[u8]> = [head.as_bytes(), body].concat().into();
    let mut attackers = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let (ca, request) = (ca.to_owned(), request.clone());
        attackers.spawn(async move {
            while let Ok(mut stream) = https::connect(&ca, to, ATTACKER, None).await {
                while review_of(&mut stream, &request).await.is_ok() {}
            }
        });
    }
    attackers
}

/// The statements are about seconds, or multiples of what the same takes without an attack, so that they hold in a slow build, too; `benches/attack.rs` measures milliseconds.
#[tokio::test(flavor = "multi_thread")]
async fn bodies_that_cost_most_delay_neither_reviews_nor_probes_nor_lease() {
    let cluster = Cluster::start().await;
    let path = cluster.folder().join("serving.pem").display().to_string();
    let arguments = ["--self-signed-for", "localhost", "--ca-out", &path];
    let process = Process::start_serving(&arguments, &[], &cluster, "one", "policies: []", &cluster.kubeconfig());
    eventually("the replica leads", async || process.is_ready().await && process.leads()).await;
    let ca = std::fs::read_to_string(path).unwrap();
    let worst = ["finalizers", "quotes"];
    for (what, body) in crafted(3 << 20).into_iter().filter(|(what, _)| worst.contains(what)) {
        let asking = async || {
            for _ in 0..10 {
                assert_answered(&mut https::connect(&ca, process.webhook, API_SERVER, None).await.unwrap()).await;
                assert!(process.is_ready().await, "{what}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        // A machine with other work answers more slowly, also without an attack: then the same takes more than a second.
        let began = clock::instant();
        asking().await;
        let limit = Duration::from_secs(5).max(4 * began.elapsed());
        let attackers = attack(&ca, process.webhook, "/mutate-and-validate", &body);
        tokio::time::sleep(Duration::from_millis(500)).await;
        let in_time = tokio::time::timeout(limit, asking()).await;
        assert!(in_time.is_ok(), "{what}: ten reviews and probes take more than {limit:.1?}");
        drop(attackers);
    }
    assert!(process.log_lines("the Lease was renewed late: this leader wrote nothing meanwhile").is_empty());
    assert!(process.log_lines("stopped leading").is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn connection_floods_with_200_descriptors_block_neither_webhook_nor_probes() {
    let cluster = Cluster::start().await;
    let authority = Authority::new("callers", clock::now()).unwrap();
    let at = |name: &str| cluster.folder().join(name).display().to_string();
    std::fs::write(at("callers.pem"), authority.pem()).unwrap();
    let (ca, callers) = (at("serving.pem"), at("callers.pem"));
    let arguments = ["--self-signed-for", "localhost", "--ca-out", &ca, "--client-ca", &callers];
    // The soft and the hard limit, so that the program cannot raise it.
    let few = ["sh", "-c", "ulimit -n 200; exec \"$@\"", "sh"];
    let policy = "policies: []";
    let process = Process::start_serving(&arguments, &few, &cluster, "few", policy, &cluster.kubeconfig());
    eventually("the replica is ready", async || process.is_ready().await).await;
    let limits = process.log_lines("connection limits");
    assert_eq!(limits[0]["descriptors"], 200, "{limits:?}");

    let ca = std::fs::read_to_string(ca).unwrap();
    let certificate = client_certificate(&authority, "kube-apiserver");
    let open = async || https::connect(&ca, process.webhook, API_SERVER, Some(&certificate)).await;
    let mut pooled = open().await.unwrap();
    assert_answered(&mut pooled).await;
    let webhook = idle(process.webhook, 250).await;
    let probes = idle(process.metrics, 100).await;
    let debug = idle(process.debug, 100).await;
    for _ in 0..5 {
        assert_answered(&mut open().await.unwrap()).await;
        assert_answered(&mut pooled).await;
        assert!(process.is_ready().await, "{}", process.log());
    }
    let counted = get(process.metrics, "/metrics").await;
    for listener in ["webhook", "metrics", "debug"] {
        let line = format!("spark_usher_connections_evicted_total{{listener=\"{listener}\"}} ");
        let evicted = counted.lines().find_map(|found| found.strip_prefix(&line)).unwrap();
        assert_ne!(evicted, "0", "{listener}");
        assert!(
            counted.contains(&format!("spark_usher_accept_errors_total{{listener=\"{listener}\"}} 0")),
            "{counted}"
        );
    }
    let mut stranger = https::connect(&ca, process.webhook, API_SERVER, None).await.unwrap();
    assert!(review(&mut stranger).await.is_err(), "a client without a certificate may not call");
    drop((webhook, probes, debug));
}
