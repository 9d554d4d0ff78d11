//! A fake driver on loopback answers, or does not.

use std::convert::Infallible;

use futures::FutureExt;
use http_body_util::{Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use super::*;
use usher_core::signature::Creator;
use usher_core::snapshot::DriverViewKey;
use usher_net::tls::ca::Authority;
use usher_net::tls::load::load;
use usher_net::tls::serving::Serving;
use usher_runtime::clock;
use usher_spark::ids::{AppKey, PodKey};

const ROWS: &str =
    r#"[{"id":"driver","isActive":true},{"id":"1","isActive":true,"addTime":"2026-11-21T02:13:42.022GMT"}]"#;
const METRICS: &str =
    r#"{"counters":{"x.driver.LiveListenerBus.queue.appStatus.numDroppedEvents":{"count":0}},"gauges":{}}"#;

type Answer = Response<UnsyncBoxBody<Bytes, Infallible>>;

fn answer(status: u16, body: &str) -> Answer {
    let body = Full::new(Bytes::copy_from_slice(body.as_bytes())).boxed_unsync();
    Response::builder().status(status).body(body).unwrap()
}

/// A driver that answers by the path; returns its port. It runs until the set is dropped.
async fn driver(tasks: &mut JoinSet<()>, respond: impl Fn(&str) -> Answer + Clone + Send + 'static) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            let respond = respond.clone();
            connections.spawn(async move {
                let service = service_fn(move |request: Request<Incoming>| {
                    let answer = respond(request.uri().path());
                    async move { Ok::<_, Infallible>(answer) }
                });
                let serving = hyper::server::conn::http1::Builder::new();
                _ = serving.serve_connection(TokioIo::new(stream), service).await;
            });
        }
    });
    port
}

fn poll_at(port: u16) -> DriverPoll {
    DriverPoll {
        key: DriverViewKey { app: AppKey::new("default", "spark-1"), driver: Creator::of_pod("d", "u") },
        pod: PodKey::new("default", "d"),
        uid: "u".into(),
        max_rows: 1_000_000,
        reads_conf: false,
        address: "127.0.0.1".into(),
        ui: Ui { port, ..Ui::default() },
        port: None,
        is_first: true,
        access: DriverAccess::Pod,
    }
}

async fn asked(port: u16) -> DriverAnswer {
    polled(&poll_at(port), Duration::from_secs(10)).await
}

async fn polled(poll: &DriverPoll, limit: Duration) -> DriverAnswer {
    usher_net::tls::install_provider();
    let config = kube::Config::new("http://127.0.0.1:9".parse().unwrap());
    let network = Network { client: kube::Client::try_from(config).unwrap(), tls: any_certificate::config() };
    Box::pin(network.poll(poll, limit)).await
}

fn failed(error: PollError) -> DriverAnswer {
    DriverAnswer::Failed(error)
}

#[tokio::test]
async fn view_has_rows_and_metrics() {
    let mut tasks = JoinSet::new();
    let port = driver(&mut tasks, |path| match path {
        "/api/v1/applications/spark-1/allexecutors" => answer(200, ROWS),
        "/metrics/json/" => answer(200, METRICS),
        "/api/v1/version" => answer(200, r#"{"spark":"4.3.0"}"#),
        other => panic!("{other}"),
    })
    .await;
    let DriverAnswer::View { port: found, executors, metrics, .. } = asked(port).await else { panic!("no view") };
    assert_eq!((found, executors.len(), metrics.dropped_events), (port, 2, Some(0)));
}

/// A server that closes each connection after its answer, as those of HTTP/1.0 do; returns its port.
async fn closing_driver(tasks: &mut JoinSet<()>, version: &'static str) -> u16 {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tasks.spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = [0; 2048];
            let length = stream.read(&mut request).await.unwrap();
            let request = String::from_utf8_lossy(&request[..length]).into_owned();
            let body = match request.split(' ').nth(1).unwrap() {
                "/metrics/json/" => METRICS,
                "/api/v1/version" => "{}",
                _ => ROWS,
            };
            let close = if version == "HTTP/1.1" { "Connection: close\r\n" } else { "" };
            let answer = format!("{version} 200 OK\r\n{close}Content-Type: application/json\r\n\r\n{body}");
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    });
    port
}

#[tokio::test]
async fn driver_that_closes_the_connection_after_each_answer_has_a_view() {
    for version in ["HTTP/1.0", "HTTP/1.1"] {
        let mut tasks = JoinSet::new();
        let port = closing_driver(&mut tasks, version).await;
        let DriverAnswer::View { executors, metrics, .. } = asked(port).await else { panic!("{version}: no view") };
        assert_eq!((executors.len(), metrics.dropped_events), (2, Some(0)), "{version}");
    }
}

#[tokio::test]
async fn only_a_driver_that_has_not_answered_yet_is_asked_for_the_least_first() {
    let mut tasks = JoinSet::new();
    let asked = Arc::new(std::sync::Mutex::new(Vec::new()));
    let paths = asked.clone();
    let port = driver(&mut tasks, move |path| {
        paths.lock().unwrap().push(path.to_owned());
        answer(200, if path.ends_with("allexecutors") { ROWS } else { METRICS })
    })
    .await;
    for is_first in [true, false] {
        let poll = DriverPoll { is_first, ..poll_at(port) };
        assert!(matches!(polled(&poll, Duration::from_secs(10)).await, DriverAnswer::View { .. }));
    }
    let (rows, metrics) = ("/api/v1/applications/spark-1/allexecutors", "/metrics/json/");
    assert_eq!(*asked.lock().unwrap(), ["/api/v1/version", rows, metrics, rows, metrics]);
}

#[tokio::test]
async fn view_without_metrics_is_incomplete() {
    let mut tasks = JoinSet::new();
    let port = driver(&mut tasks, |path| if path.starts_with("/api") { answer(200, ROWS) } else { answer(404, "") });
    let DriverAnswer::View { metrics, .. } = asked(port.await).await else { panic!("no view") };
    assert_eq!(metrics, DriverMetrics::default());
}

#[tokio::test]
async fn each_other_answer_has_its_outcome() {
    for (status, body, expected) in [
        (200, rest::STARTING, DriverAnswer::Starting),
        (200, "Spark is starting up.", failed(PollError::NotSpark)),
        (200, "Spark is starting up. Please wait a while until it's ready. Or not.", failed(PollError::NotSpark)),
        (200, "<html>login</html>", failed(PollError::NotSpark)),
        (200, "{}", failed(PollError::NotSpark)),
        (200, r#"[{"id":"1"}]"#, failed(PollError::NotSpark)),
        (200, "[", failed(PollError::NotSpark)),
        (200, "", failed(PollError::NotSpark)),
        (404, "no such app: spark-1", failed(PollError::OtherApplication)),
        (401, "", failed(PollError::Forbidden)),
        (403, "", failed(PollError::Forbidden)),
        (302, "", failed(PollError::Redirected)),
        (500, "", failed(PollError::NotSpark)),
        (503, "", failed(PollError::NotSpark)),
    ] {
        let mut tasks = JoinSet::new();
        let port = driver(&mut tasks, move |_| answer(status, body)).await;
        // Only this port: the next ones may belong to other processes.
        assert_eq!(only(port).await, expected, "{status} {body}");
    }
}

/// Polls a port above which there is no other.
async fn only(port: u16) -> DriverAnswer {
    let poll = DriverPoll { ui: Ui { port: u16::MAX, ..Ui::default() }, port: Some(port), ..poll_at(port) };
    polled(&poll, Duration::from_secs(10)).await
}

#[tokio::test]
async fn port_above_a_busy_one_is_found_and_remembered_port_comes_first() {
    let mut tasks = JoinSet::new();
    let first = driver(&mut tasks, |_| answer(404, "no such app")).await;
    let right =
        driver(&mut tasks, |path| if path.starts_with("/api") { answer(200, ROWS) } else { answer(200, METRICS) });
    let right = right.await;
    let poll = DriverPoll { port: Some(first), ..poll_at(right) };
    let DriverAnswer::View { port, .. } = polled(&poll, Duration::from_secs(10)).await else { panic!("no view") };
    assert_eq!(port, right);
}

#[tokio::test]
async fn closed_ports_are_refused_and_silence_times_out() {
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    assert_eq!(only(closed).await, failed(PollError::Refused));
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let poll = poll_at(silent.local_addr().unwrap().port());
    assert_eq!(polled(&poll, Duration::from_millis(200)).await, failed(PollError::Timeout));
}

#[tokio::test]
async fn endless_body_is_cut_off() {
    let mut tasks = JoinSet::new();
    let row = Bytes::from([r#"{"id":"1","isActive":true,"hostPort":""#, &"x".repeat(1 << 15), r#""},"#].concat());
    let port = driver(&mut tasks, move |_| {
        let rows = std::iter::once(Bytes::from_static(b"[")).chain(std::iter::repeat(row.clone()));
        let body = StreamBody::new(futures::stream::iter(rows.map(|bytes| Ok::<_, Infallible>(Frame::data(bytes)))));
        Response::new(BodyExt::boxed_unsync(body))
    });
    assert_eq!(only(port.await).await, failed(PollError::TooLarge));
}

#[tokio::test]
async fn large_row_is_refused_and_of_reasons_little_is_kept() {
    let asked = |body: String| async move {
        let mut tasks = JoinSet::new();
        let body: &'static str = body.leak();
        let answers = move |path: &str| if path.starts_with("/api") { answer(200, body) } else { answer(200, METRICS) };
        only(driver(&mut tasks, answers).await).await
    };
    let large = format!(r#"[{{"id":"1","isActive":true,"hostPort":"{}"}}"#, "x".repeat(1 << 20));
    assert_eq!(asked(large).await, failed(PollError::TooLarge));
    let reason = "x".repeat(1000);
    let row = |id| format!(r#"{{"id":"{id}","isActive":false,"removeReason":"{reason}"}}"#);
    let rows: Vec<String> = (1..=10_000).map(row).collect();
    let answer = asked(format!("[{}]", rows.join(","))).await;
    let DriverAnswer::View { executors, .. } = answer else { panic!("no view") };
    let memory: usize = executors.iter().map(ExecutorSummary::memory).sum();
    assert!(executors.len() == 10_000 && memory < 1_500_000, "{memory}");
    assert!(executors[0].remove_reason.is_some());
}

#[tokio::test]
async fn answer_with_more_rows_than_the_application_can_have_is_refused() {
    let rows = |count: usize| {
        let all: Vec<String> = (1..=count).map(|id| format!(r#"{{"id":"{id}","isActive":true}}"#)).collect();
        format!("[{}]", all.join(","))
    };
    for (count, is_refused) in [(50, false), (100_000, true)] {
        let mut tasks = JoinSet::new();
        let body: &'static str = rows(count).leak();
        let port = driver(
            &mut tasks,
            move |path| if path.starts_with("/api") { answer(200, body) } else { answer(200, METRICS) },
        );
        let poll = poll_at(port.await);
        let limited = DriverPoll { max_rows: 50, port: Some(poll.ui.port), ..poll };
        let answer = polled(&limited, Duration::from_secs(10)).await;
        assert_eq!(answer == failed(PollError::TooLarge), is_refused, "{count}");
        assert_eq!(matches!(answer, DriverAnswer::View { .. }), !is_refused, "{count}");
    }
}

#[tokio::test]
async fn driver_with_tls_is_polled_without_verifying_its_certificate() {
    usher_net::tls::install_provider();
    let authority = Authority::new("tenant", clock::now()).unwrap();
    let pair = authority.serve(&["somewhere.else"], &[]).unwrap();
    let certificate = load(pair.certificate.as_bytes(), pair.key.as_bytes(), clock::now()).unwrap();
    let serving = Arc::new(Serving::default());
    serving.replace(certificate);
    let acceptor = TlsAcceptor::from(Arc::new(serving.config()));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(stream) = acceptor.accept(stream).await else { continue };
            let service = service_fn(|request: Request<Incoming>| async move {
                let body = if request.uri().path().starts_with("/api") { ROWS } else { METRICS };
                Ok::<_, Infallible>(answer(200, body))
            });
            let serving = hyper::server::conn::http1::Builder::new();
            _ = serving.serve_connection(TokioIo::new(stream), service).await;
        }
    });
    let ui = Ui { tls_port: Some(port), ..Ui::default() };
    let poll = DriverPoll { ui, ..poll_at(port) };
    let DriverAnswer::View { port: found, .. } = polled(&poll, Duration::from_secs(10)).await else {
        panic!("no view")
    };
    assert_eq!(found, port);
    // Plain HTTP behind a port that should speak TLS is not Spark.
    let plain = driver(&mut tasks, |_| answer(200, ROWS)).await;
    let ui = Ui { tls_port: Some(u16::MAX), ..Ui::default() };
    let poll = DriverPoll { ui, port: Some(plain), ..poll_at(plain) };
    assert_eq!(polled(&poll, Duration::from_secs(10)).await, failed(PollError::NotSpark));
}

#[tokio::test]
async fn address_that_is_no_ip_is_not_resolved() {
    let poll = DriverPoll { address: "localhost".into(), ..poll_at(1) };
    let answer = polled(&poll, Duration::from_secs(1)).now_or_never();
    assert_eq!(answer, Some(failed(PollError::Refused)));
}

#[tokio::test]
async fn only_a_refused_connection_says_that_nothing_listens() {
    let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
    let unreachable = std::io::Error::from(std::io::ErrorKind::HostUnreachable);
    assert_eq!((connecting(&refused), connecting(&unreachable)), (PollError::Refused, PollError::Unreachable));
    // The API server states its own error; without a way to the pod it says something else.
    for (text, expected) in [
        ("error trying to reach service: dial tcp 10.1.2.3:4040: connect: connection refused", PollError::Refused),
        ("error trying to reach service: No agent available", PollError::Unreachable),
        ("", PollError::Unreachable),
    ] {
        let body = http_body_util::Full::new(bytes::Bytes::from(text)).map_err(|never| match never {}).boxed_unsync();
        assert_eq!(by_proxy(body).await, expected, "{text}");
    }
}
