//! The HTTPS endpoint as API servers use it, and as attackers do: real sockets, real TLS.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    reason = "a test fails by panicking, and keeps its own time"
)]

#[path = "support/https.rs"]
mod https;
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use https::{Endpoint, Setup};
use serde_json::{Value, json};
use spark_usher::admission::Operation;
use spark_usher::http::limits::{Limits, MAX_BODY};
use spark_usher::http::server::Deadlines;
use spark_usher::http::webhook::{Answer, Answered};
use spark_usher::reason::Reason;
use spark_usher::snapshot::Snapshot;
use spark_usher::telemetry::metrics::Outcome;
use support::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

fn review() -> Vec<u8> {
    serde_json::to_vec(&recorded("client-mode/exec-1.mutate.create")).unwrap()
}

fn with_metrics(endpoint: &Endpoint, line: &str) {
    let text = String::from_utf8(endpoint.metrics.render().unwrap()).unwrap();
    assert!(text.contains(line), "{line} is not in\n{text}");
}

#[tokio::test]
async fn every_recorded_review_gets_over_https_what_the_core_decides() {
    let policies = only(policy("volcano"));
    let endpoint = Setup { policies: policies.clone(), ..Setup::default() }.start();
    for http2 in [false, true] {
        let client = endpoint.client(http2);
        for (name, review) in all_recorded() {
            let body = serde_json::to_vec(&review).unwrap();
            let response = endpoint.send(&client, "/mutate?timeout=2s", "application/json", body.clone()).await;
            assert_eq!(response.status(), StatusCode::OK, "{name}");
            assert_eq!(response.headers()["content-type"], "application/json");
            let expected =
                spark_usher::admission::answer(&spark_usher::admission::lean(&body), &Snapshot::default(), &policies)
                    .unwrap()
                    .1;
            assert_eq!(response.into_body(), expected, "{name}, http2: {http2}");
        }
    }
    with_metrics(&endpoint, "operation=\"create\",outcome=\"patched\",reason=\"Seated\"");
    with_metrics(&endpoint, "spark_usher_driver_found_total{how=\"creator\"}");
    with_metrics(&endpoint, "spark_usher_admission_in_flight 0");
}

#[tokio::test]
async fn what_is_no_review_is_a_400_that_says_what_was_expected() {
    let endpoint = Setup::default().start();
    for body in ["", "{", "[]", r#"{"kind":"Pod","apiVersion":"v1"}"#] {
        let (status, text) = endpoint.post(body).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{body}");
        assert!(text.starts_with(b"expected "), "{text:?}");
    }
    with_metrics(&endpoint, "reason=\"BadReview\",webhook=\"mutate\"} 4");
}

#[tokio::test]
async fn other_content_types_paths_and_methods() {
    let endpoint = Setup::default().start();
    let client = endpoint.client(false);
    let status = |path: &'static str, content_type: &'static str| {
        let (endpoint, client) = (&endpoint, &client);
        async move { endpoint.send(client, path, content_type, review()).await.status() }
    };
    assert_eq!(status("/mutate", "application/yaml").await, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    let counted = String::from_utf8(endpoint.metrics.render().unwrap()).unwrap();
    assert!(counted.contains(r#"outcome="failed",reason="WrongContentType",webhook="mutate"} 1"#), "{counted}");
    assert_eq!(status("/mutate", "application/json; charset=utf-8").await, StatusCode::OK);
    assert_eq!(status("/nothing", "application/json").await, StatusCode::NOT_FOUND);
    let mut stream = endpoint.connect().await;
    stream.write_all(b"GET /mutate HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer).await;
    assert!(answer.starts_with("HTTP/1.1 405"), "{answer}");
}

#[tokio::test]
async fn seven_mebibytes_are_read_and_more_is_a_413() {
    let endpoint = Setup::default().start();
    let mut large = recorded("client-mode/exec-1.mutate.create");
    large["request"]["object"]["spec"]["padding"] = "x".repeat(6 << 20).into();
    let large = serde_json::to_vec(&large).unwrap();
    assert!(large.len() < MAX_BODY);
    assert_eq!(endpoint.post(large).await.0, StatusCode::OK);
    assert_eq!(endpoint.post(vec![b' '; MAX_BODY + 1]).await.0, StatusCode::PAYLOAD_TOO_LARGE);
    // Without a length it is told while it is read.
    let mut stream = endpoint.connect().await;
    stream
        .write_all(
            b"POST /mutate HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n",
        )
        .await
        .unwrap();
    let chunk = [b"100000\r\n".as_slice(), &[b' '; 0x100000], b"\r\n"].concat();
    let mut answer = [0; 16];
    for _ in 0..9 {
        if stream.write_all(&chunk).await.is_err() {
            break;
        }
    }
    stream.read_exact(&mut answer).await.unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 413"), "{answer:?}");
    with_metrics(&endpoint, "reason=\"TooLarge\",webhook=\"mutate\"} 2");
}

#[tokio::test]
async fn overload_is_a_429_that_asks_to_try_again() {
    let endpoint = Setup { limits: Limits::new(64 << 10), ..Setup::default() }.start();
    // A large body that is announced and does not come takes no room.
    let mut silent = endpoint.connect().await;
    let head = "POST /mutate?timeout=30s HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 1000000\r\n\r\n";
    silent.write_all(head.as_bytes()).await.unwrap();
    assert_eq!(endpoint.post(review()).await.0, StatusCode::OK);
    // One that came nearly whole does.
    let mut slow = endpoint.connect().await;
    slow.write_all(head.as_bytes()).await.unwrap();
    slow.write_all(&[b' '; 60 << 10]).await.unwrap();
    let client = endpoint.client(false);
    let refused = loop {
        let response = endpoint.send(&client, "/mutate", "application/json", review()).await;
        if response.status() != StatusCode::OK {
            break response;
        }
    };
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(refused.headers()["retry-after"], "1");
    drop(slow);
    let start = Instant::now();
    while endpoint.send(&client, "/mutate", "application/json", review()).await.status() != StatusCode::OK {
        assert!(start.elapsed() < Duration::from_secs(30), "the place is free again");
    }
    with_metrics(&endpoint, "reason=\"Overloaded\"");
}

/// Panics when told to.
struct Panics(AtomicBool);

impl Answer for Panics {
    fn answer(&self, _: &[u8]) -> Answered {
        assert!(!self.0.swap(false, Ordering::SeqCst), "on purpose");
        Answered {
            body: Ok(b"{}".to_vec()),
            operation: Operation::Create,
            outcome: Outcome::Allowed,
            reason: Reason::Owned,
            how: None,
        }
    }
}

#[tokio::test]
async fn a_panic_is_a_500_for_that_review_alone() {
    let endpoint = Setup { answer: Some(Arc::new(Panics(AtomicBool::new(true)))), ..Setup::default() }.start();
    let client = endpoint.client(false);
    assert_eq!(
        endpoint.send(&client, "/mutate", "application/json", "{}").await.status(),
        StatusCode::INTERNAL_SERVER_ERROR
    );
    assert_eq!(endpoint.send(&client, "/mutate", "application/json", "{}").await.status(), StatusCode::OK);
    with_metrics(&endpoint, "reason=\"Panicked\",webhook=\"mutate\"} 1");
}

#[tokio::test]
async fn work_stops_at_the_deadline_of_the_url() {
    let endpoint = Setup::default().start();
    let mut stream = endpoint.connect().await;
    let start = Instant::now();
    stream.write_all(b"POST /mutate?timeout=1s HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 10\r\n\r\n{").await.unwrap();
    let mut answer = [0; 16];
    stream.read_exact(&mut answer).await.unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 504"), "{answer:?}");
    assert!((1..4).contains(&start.elapsed().as_secs()), "{:?}", start.elapsed());
    with_metrics(&endpoint, "reason=\"DeadlineExceeded\",webhook=\"mutate\"} 1");
}

const SHORT: Deadlines = Deadlines {
    handshake: Duration::from_millis(300),
    head: Duration::from_millis(300),
    idle: Duration::from_millis(3000),
    write: Duration::from_millis(3000),
};

async fn one_request(stream: &mut (impl AsyncReadExt + AsyncWriteExt + Unpin)) -> std::io::Result<()> {
    let body = review();
    let head = format!(
        "POST /mutate HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(&body).await?;
    let mut answer = vec![0; 65536];
    let read = stream.read(&mut answer).await?;
    if !answer[..read].starts_with(b"HTTP/1.1 200") {
        return Err(std::io::ErrorKind::ConnectionAborted.into());
    }
    Ok(())
}

#[tokio::test]
async fn an_idle_connection_is_kept_far_beyond_the_deadline_of_a_head() {
    let endpoint = Setup { deadlines: SHORT, ..Setup::default() }.start();
    let mut stream = endpoint.connect().await;
    for pause in [0, 1000, 1000] {
        tokio::time::sleep(Duration::from_millis(pause)).await;
        one_request(&mut stream).await.unwrap();
    }
    tokio::time::sleep(Duration::from_millis(4000)).await;
    assert!(one_request(&mut stream).await.is_err(), "and ends in the end");
}

#[tokio::test]
async fn a_head_or_a_handshake_that_drips_is_cut() {
    let endpoint = Setup { deadlines: SHORT, ..Setup::default() }.start();
    let mut stream = endpoint.connect().await;
    stream.write_all(b"POST /mutate HTTP/1.1\r\nhost: x\r\nx-slow: ").await.unwrap();
    let mut sent = 0;
    while sent < 600 && stream.write_all(b"a").await.is_ok() && stream.flush().await.is_ok() {
        sent += 1;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(sent < 600, "it was cut, although each byte came in time");
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest).await;
    assert!(!rest.starts_with(b"HTTP/1.1 200"));
    let mut silent = tokio::net::TcpStream::connect(endpoint.address).await.unwrap();
    let ended = tokio::time::timeout(Duration::from_secs(30), silent.read_to_end(&mut rest)).await;
    assert!(ended.is_ok(), "one that says nothing is cut too");
    with_metrics(&endpoint, "spark_usher_tls_handshake_errors_total 1");
}

#[tokio::test]
async fn a_new_certificate_is_served_while_old_connections_live() {
    let endpoint = Setup::default().start();
    let mut old = endpoint.connect().await;
    one_request(&mut old).await.unwrap();
    let pair = endpoint.authority.serve(&["localhost", "renewed"], &["127.0.0.1".parse().unwrap()]).unwrap();
    let now = spark_usher::runtime::clock::now();
    endpoint
        .serving
        .replace(spark_usher::tls::load::load(pair.certificate.as_bytes(), pair.key.as_bytes(), now).unwrap());
    one_request(&mut old).await.unwrap();
    let new = endpoint.connect().await;
    let served = new.get_ref().1.peer_certificates().unwrap()[0].to_vec();
    let before = old.get_ref().1.peer_certificates().unwrap()[0].to_vec();
    assert_ne!(served, before);
}

#[tokio::test]
async fn stopping_finishes_what_was_asked() {
    let endpoint = Setup::default().start();
    let mut stream = endpoint.connect().await;
    let body = review();
    let head = format!(
        "POST /mutate HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    endpoint.stop.cancel();
    tokio::time::sleep(Duration::from_millis(100)).await;
    stream.write_all(&body).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap_or_default();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    endpoint.served.await.unwrap().unwrap();
    assert!(tokio::net::TcpStream::connect(endpoint.address).await.is_err());
}

#[tokio::test]
async fn refusals_are_answers() {
    let mut strict = policy("volcano");
    strict.strict = true;
    let endpoint = Setup { policies: only(strict), ..Setup::default() }.start();
    let body = serde_json::to_vec(&recorded("by-an-administrator/exec.mutate.create")).unwrap();
    let (status, body) = endpoint.post(body).await;
    assert_eq!(status, StatusCode::OK);
    let answer: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(answer["response"]["allowed"], json!(false));
    with_metrics(&endpoint, "outcome=\"refused\",reason=\"NoCreator\",webhook=\"mutate\"} 1");
}
