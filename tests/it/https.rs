//! The HTTPS endpoint with the requests of API servers and of attackers: real sockets, real TLS.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::support::https::{Endpoint, NewNamespaces, Setup};
use crate::support::*;
use axum::http::StatusCode;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use usher_core::admission::Operation;
use usher_core::policy::{Pattern, Policies, Policy, Validate};
use usher_core::reason::Reason;
use usher_core::snapshot::{Namespace, Snapshot};
use usher_net::listener::server::Deadlines;
use usher_server::http::handlers::{Find, Handler, Lookup, ReviewResponse, Unobserved};
use usher_server::http::limits::Limits;
use usher_server::http::metrics::ReviewOutcome;

fn review() -> Vec<u8> {
    serde_json::to_vec(&recorded("client-mode/exec-1.mutate.create")).unwrap()
}

fn assert_metric(endpoint: &Endpoint, line: &str) {
    let text = endpoint.registry.render().unwrap();
    assert!(text.contains(line), "{line} is not in\n{text}");
}

#[tokio::test]
async fn https_response_equals_core_decision_for_every_recorded_review() {
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
                usher_core::admission::answer(&usher_core::admission::prune(&body), &Snapshot::default(), &policies)
                    .unwrap()
                    .1;
            assert_eq!(response.into_body(), expected, "{name}, http2: {http2}");
        }
    }
    assert_metric(&endpoint, "operation=\"create\",outcome=\"patched\",reason=\"SchedulingSet\"");
    assert_metric(&endpoint, "spark_usher_driver_found_total{how=\"creator\"}");
    assert_metric(&endpoint, "spark_usher_admission_in_flight 0");
}

#[tokio::test]
async fn malformed_review_gets_400_that_states_expected_input() {
    let endpoint = Setup::default().start();
    for body in ["", "{", "[]", r#"{"kind":"Pod","apiVersion":"v1"}"#] {
        let (status, text) = endpoint.post(body).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{body}");
        assert!(text.starts_with(b"expected "), "{text:?}");
    }
    assert_metric(&endpoint, "reason=\"BadReview\",webhook=\"mutate\"} 4");
}

#[tokio::test]
async fn wrong_content_type_path_or_method_is_rejected() {
    let endpoint = Setup::default().start();
    let client = endpoint.client(false);
    let status = |path: &'static str, content_type: &'static str| {
        let (endpoint, client) = (&endpoint, &client);
        async move { endpoint.send(client, path, content_type, review()).await.status() }
    };
    assert_eq!(status("/mutate", "application/yaml").await, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    let counted = endpoint.registry.render().unwrap();
    assert!(counted.contains(r#"outcome="failed",reason="WrongContentType",webhook="mutate"} 1"#), "{counted}");
    assert_eq!(status("/mutate", "application/json; charset=utf-8").await, StatusCode::OK);
    assert_eq!(status("/nothing", "application/json").await, StatusCode::NOT_FOUND);
    let mut stream = endpoint.connect().await;
    stream.write_all(b"GET /mutate HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer).await;
    assert!(answer.starts_with("HTTP/1.1 405"), "{answer}");
}

/// An update of an executor whose object has this many bytes of JSON, with a change that an enforcing policy denies.
fn update_of(bytes: usize, username: &str) -> Vec<u8> {
    let old = executor(1).label("spark-app-selector", "spark-old");
    let user = json!({"username": username, "groups": ["developers"]});
    let mut review = update(&old, &executor(1), user);
    // In the encoding of Go: six bytes for one.
    review["request"]["object"]["spec"]["padding"] = "@".into();
    in_order(&review).replace('@', &"\\u003c".repeat(bytes / 6)).into_bytes()
}

/// A review with the field order of an API server: userInfo precedes the object.
fn in_order(review: &Value) -> String {
    let order = ["uid", "kind", "resource", "name", "namespace", "operation", "userInfo", "object", "oldObject"];
    let fields: Vec<String> = order.iter().map(|key| format!("\"{key}\":{}", review["request"][key])).collect();
    format!(
        "{{\"kind\":\"AdmissionReview\",\"apiVersion\":\"admission.k8s.io/v1\",\"request\":{{{}}}}}",
        fields.join(",")
    )
}

fn enforcing() -> Policies {
    let policy = Policy { validate: Validate::Enforce, ..policy("volcano") };
    only(policy).with_trusted_writers(vec![Pattern::new("system:serviceaccount:volcano-system:*")])
}

#[tokio::test]
async fn enforcing_policy_denies_untrusted_update_of_any_size() {
    let endpoint = Setup { policies: enforcing(), ..Setup::default() }.start();
    for bytes in [0, 3 << 20, 7 << 20, 12 << 20, 19 << 20, 21 << 20, 40 << 20] {
        let is_allowed = async |username: &str| {
            let (status, answer) = endpoint.post_to("/validate", update_of(bytes, username)).await;
            assert_eq!(status, StatusCode::OK, "{bytes} bytes");
            let answer: Value = serde_json::from_slice(&answer).unwrap();
            assert!(answer["response"]["uid"].is_string());
            answer["response"]["allowed"].as_bool().unwrap()
        };
        assert!(!is_allowed("eve").await, "{bytes} bytes");
        assert!(is_allowed("system:serviceaccount:volcano-system:scheduler").await, "{bytes} bytes: a trusted writer");
    }
    assert_metric(&endpoint, "reason=\"TooLarge\",webhook=\"validate\"} 2");
    // Also for a body without a content-length.
    let mut stream = endpoint.connect().await;
    let head =
        "POST /validate HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    for chunk in update_of(24 << 20, "eve").chunks(1 << 20) {
        stream.write_all(format!("{:x}\r\n", chunk.len()).as_bytes()).await.unwrap();
        stream.write_all(chunk).await.unwrap();
        stream.write_all(b"\r\n").await.unwrap();
    }
    stream.write_all(b"0\r\n\r\n").await.unwrap();
    // TLS may still buffer the last bytes if the socket was full.
    stream.flush().await.unwrap();
    let mut answer = vec![0; 2048];
    let read = stream.read(&mut answer).await.unwrap();
    let answer = String::from_utf8_lossy(&answer[..read]).into_owned();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[tokio::test]
async fn mutate_and_validate_patches_or_denies_in_one_review() {
    let endpoint = Setup { policies: enforcing(), ..Setup::default() }.start();
    let admit = async |review: Value| {
        let (status, answer) = endpoint.post_to("/mutate-and-validate", in_order(&review)).await;
        assert_eq!(status, StatusCode::OK);
        let answer: Value = serde_json::from_slice(&answer).unwrap();
        answer["response"].clone()
    };
    let mutated = admit(executor(1).created_by_pod("nb-driver", DRIVER_UID)).await;
    assert_eq!((&mutated["allowed"], mutated.get("patch").is_some()), (&true.into(), true));
    let forged = executor(1).owned_by("Pod", "victim", "9-9");
    let denied = admit(forged.created_by_pod("nb-driver", DRIVER_UID)).await;
    assert_eq!((&denied["allowed"], denied.get("patch")), (&false.into(), None));
    let message = denied["status"]["message"].as_str().unwrap();
    assert!(message.ends_with("(OwnerNotCreator; policy batch enforces)"), "{message}");
    let mut large = forged;
    large.0["spec"]["padding"] = "x".repeat(21 << 20).into();
    assert_eq!(admit(large.created_by("eve")).await["allowed"], false);
    assert_metric(&endpoint, r#"outcome="denied",reason="OwnerNotCreator",webhook="mutate-and-validate"} 1"#);
    // spark-usher's own annotations would exceed the limit, and the controller would not read such a pod.
    let mut full = executor(1);
    for n in 0..1024 {
        full = full.annotation(&format!("a{n}"), "");
    }
    let denied = admit(full.created_by_pod("nb-driver", DRIVER_UID)).await;
    assert!(denied["status"]["message"].as_str().unwrap().contains("(TooLarge; "), "{denied}");
    // More groups than are read: the first ones count.
    let mut crowded = executor(1).created_by_pod("nb-driver", DRIVER_UID);
    crowded["request"]["userInfo"]["groups"] = vec!["g"; 2000].into();
    let mutated = admit(crowded.clone()).await;
    assert_eq!((&mutated["allowed"], mutated.get("patch").is_some()), (&true.into(), true));
    crowded["request"]["object"] = full.0;
    crowded["request"]["userInfo"]["groups"][0] = "system:masters".into();
    assert_eq!(admit(crowded.clone()).await["allowed"], true, "a trusted group");
    crowded["request"]["userInfo"]["groups"].as_array_mut().unwrap().rotate_left(1);
    assert_eq!(admit(crowded).await["allowed"], false, "a trusted group that is not read");
}

#[tokio::test]
async fn enforcing_policy_denies_pods_with_excessive_labels_owners_or_selectors() {
    let endpoint = Setup { policies: enforcing(), ..Setup::default() }.start();
    let labels: serde_json::Map<_, _> = (0..560_000).map(|n| (format!("a{n}"), "".into())).collect();
    let mut many_labels = executor(1);
    many_labels.0["metadata"]["labels"].as_object_mut().unwrap().extend(labels);
    let mut many_owners = executor(1);
    many_owners.0["metadata"]["ownerReferences"] = vec![json!({}); 2_000_000].into();
    let mut many_choices = executor(1);
    many_choices.0["spec"]["nodeSelector"] = (0..2_000).map(|n| (format!("a{n}"), "".to_owned())).collect();
    for pod in [many_labels, many_owners, many_choices] {
        let body = in_order(&pod.created_by("eve"));
        let (status, answer) = endpoint.post_to("/validate", body.clone()).await;
        assert_eq!(status, StatusCode::OK);
        let answer: Value = serde_json::from_slice(&answer).unwrap();
        assert_eq!(answer["response"]["allowed"], false);
        // The pod is not mutated either; a policy that is not strict allows it here.
        let (status, answer) = endpoint.post_to("/mutate", body).await;
        let answer: Value = serde_json::from_slice(&answer).unwrap();
        assert_eq!((status, &answer["response"]["allowed"]), (StatusCode::OK, &true.into()));
        assert!(answer["response"].get("patch").is_none());
    }
}

#[tokio::test]
async fn overload_gets_429_with_retry_after() {
    let endpoint = Setup { limits: Limits::new(8, 1), ..Setup::default() }.start();
    // It takes the turn of the large reviews and sends nothing.
    let mut silent = endpoint.connect().await;
    let head = "POST /mutate?timeout=30s HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 1000000\r\n\r\n";
    silent.write_all(head.as_bytes()).await.unwrap();
    assert_eq!(endpoint.post(review()).await.0, StatusCode::OK, "a small review needs no turn");
    let mut large = executor(1);
    large.0["metadata"]["annotations"] = json!({"large": "x".repeat(500 << 10)});
    let large = in_order(&large.created_by("eve"));
    let client = endpoint.client(false);
    let rejected = endpoint.send(&client, "/mutate?timeout=10ms", "application/json", large.clone()).await;
    assert_eq!(rejected.status(), StatusCode::TOO_MANY_REQUESTS, "its turn did not come before its deadline");
    assert_eq!(rejected.headers()["retry-after"], "1");
    assert_eq!(endpoint.send(&client, "/mutate", "application/json", large).await.status(), StatusCode::OK);
    let mut answer = String::new();
    silent.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 429") && answer.contains("retry-after: 1\r\n"), "{answer}");
    assert_metric(&endpoint, "reason=\"Overloaded\",webhook=\"mutate\"} 2");
}

/// A handler that panics on its first call if set.
struct Panics(AtomicBool);

impl Handler for Panics {
    fn answer(&self, _: &[u8], _: Find<'_>) -> Result<ReviewResponse, Unobserved> {
        assert!(!self.0.swap(false, Ordering::SeqCst), "on purpose");
        Ok(ReviewResponse {
            body: Ok(b"{}".to_vec()),
            operation: Operation::Create,
            outcome: ReviewOutcome::Allowed,
            reason: Reason::Owned,
            how: None,
        })
    }
}

#[tokio::test]
async fn panic_gets_500_for_that_review_only() {
    let panics = Arc::new(Panics(AtomicBool::new(false)));
    let endpoint = Setup { answer: Some(panics.clone()), limits: Limits::new(8, 1), ..Setup::default() }.start();
    let client = endpoint.client(false);
    for large in ["{}".to_owned(), " ".repeat(100 << 10)] {
        panics.0.store(true, Ordering::SeqCst);
        let panicked = endpoint.send(&client, "/mutate", "application/json", large.clone()).await;
        assert_eq!(panicked.status(), StatusCode::INTERNAL_SERVER_ERROR);
        for _ in 0..5 {
            let next = endpoint.send(&client, "/mutate", "application/json", large.clone()).await;
            assert_eq!(next.status(), StatusCode::OK, "the turn of the large one was passed on");
        }
    }
    assert_metric(&endpoint, "reason=\"Panicked\",webhook=\"mutate\"} 2");
}

#[tokio::test]
async fn review_past_url_timeout_gets_504() {
    let endpoint = Setup::default().start();
    let mut stream = endpoint.connect().await;
    let start = Instant::now();
    stream.write_all(b"POST /mutate?timeout=1s HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 10\r\n\r\n{").await.unwrap();
    let mut answer = [0; 16];
    stream.read_exact(&mut answer).await.unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 504"), "{answer:?}");
    assert!((1..4).contains(&start.elapsed().as_secs()), "{:?}", start.elapsed());
    assert_metric(&endpoint, "reason=\"DeadlineExceeded\",webhook=\"mutate\"} 1");
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
    stream.flush().await?;
    let mut answer = vec![0; 65536];
    let read = stream.read(&mut answer).await?;
    if !answer[..read].starts_with(b"HTTP/1.1 200") {
        return Err(std::io::ErrorKind::ConnectionAborted.into());
    }
    Ok(())
}

#[tokio::test]
async fn idle_connection_outlives_head_deadline_and_closes_at_idle_timeout() {
    let endpoint = Setup { deadlines: SHORT, ..Setup::default() }.start();
    let mut stream = endpoint.connect().await;
    for pause in [0, 1000, 1000] {
        tokio::time::sleep(Duration::from_millis(pause)).await;
        one_request(&mut stream).await.unwrap();
    }
    tokio::time::sleep(Duration::from_millis(4000)).await;
    assert!(one_request(&mut stream).await.is_err(), "the idle timeout closes it");
}

#[tokio::test]
async fn slow_head_or_handshake_closes_connection() {
    let endpoint = Setup { deadlines: SHORT, ..Setup::default() }.start();
    let mut stream = endpoint.connect().await;
    stream.write_all(b"POST /mutate HTTP/1.1\r\nhost: x\r\nx-slow: ").await.unwrap();
    let mut sent = 0;
    while sent < 600 && stream.write_all(b"a").await.is_ok() && stream.flush().await.is_ok() {
        sent += 1;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(sent < 600, "the connection was not closed although its head exceeds the deadline");
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest).await;
    assert!(!rest.starts_with(b"HTTP/1.1 200"));
    let mut silent = tokio::net::TcpStream::connect(endpoint.address).await.unwrap();
    let closed = tokio::time::timeout(Duration::from_secs(30), silent.read_to_end(&mut rest)).await;
    assert!(closed.is_ok(), "a connection without a handshake is closed, too");
    assert_metric(&endpoint, "spark_usher_tls_handshake_errors_total 1");
}

#[tokio::test]
async fn new_certificate_is_served_while_old_connections_continue() {
    let endpoint = Setup::default().start();
    let mut old = endpoint.connect().await;
    one_request(&mut old).await.unwrap();
    let pair = endpoint.authority.serve(&["localhost", "renewed"], &["127.0.0.1".parse().unwrap()]).unwrap();
    let now = usher_runtime::clock::now();
    endpoint
        .serving
        .replace(usher_net::tls::load::load(pair.certificate.as_bytes(), pair.key.as_bytes(), now).unwrap());
    one_request(&mut old).await.unwrap();
    let new = endpoint.connect().await;
    let served = new.get_ref().1.peer_certificates().unwrap()[0].to_vec();
    let before = old.get_ref().1.peer_certificates().unwrap()[0].to_vec();
    assert_ne!(served, before);
}

#[tokio::test]
async fn shutdown_completes_request_in_flight() {
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
    stream.flush().await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap_or_default();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    endpoint.served.await.unwrap().unwrap();
    assert!(tokio::net::TcpStream::connect(endpoint.address).await.is_err());
}

#[tokio::test]
async fn denial_gets_200_with_allowed_false() {
    let mut strict = policy("volcano");
    strict.strict = true;
    let endpoint = Setup { policies: only(strict), ..Setup::default() }.start();
    let body = serde_json::to_vec(&recorded("by-an-administrator/exec.mutate.create")).unwrap();
    let (status, body) = endpoint.post(body).await;
    assert_eq!(status, StatusCode::OK);
    let answer: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(answer["response"]["allowed"], json!(false));
    assert_metric(&endpoint, "outcome=\"denied\",reason=\"NoCreator\",webhook=\"mutate\"} 1");
}

/// A namespace is often created a moment before its first pod, and the watch shows it later.
#[tokio::test]
async fn namespace_that_selects_the_policy_is_asked_for_before_the_strictest_policy_decides() {
    let prod = Policy { matches: namespaces_with("env", "prod"), ..policy("volcano") };
    let strict =
        Policy { strict: true, matches: namespaces_with("env", "dev"), name: "strict".into(), ..policy("none") };
    let labelled = Namespace { labels: [("env".to_owned(), "prod".to_owned())].into(), ..Namespace::default() };
    let namespaces =
        Arc::new(NewNamespaces { found: [("default".to_owned(), Arc::new(labelled))].into(), ..Default::default() });
    let policies = Policies::new(vec![prod, strict], vec![]);
    let endpoint = Setup { policies, namespaces: namespaces.clone(), ..Setup::default() }.start();
    let client = endpoint.client(false);
    let mut asked = 0;
    let mut answered = async |namespace: &str, large: bool, path: &str| {
        let mut pod = executor(1).namespace(namespace);
        if large {
            pod.0["metadata"]["annotations"] = json!({"large": "x".repeat(100_000)});
        }
        let review = crate::support::review(&pod.0, by_pod(namespace, "spark", "nb-driver", DRIVER_UID));
        let body = serde_json::to_vec(&review).unwrap();
        let answer = endpoint.send(&client, path, "application/json", body).await;
        assert_eq!(answer.status(), StatusCode::OK);
        let bytes = answer.into_body();
        let was = std::mem::replace(&mut asked, namespaces.asked.load(Ordering::SeqCst));
        (serde_json::from_slice::<Value>(&bytes).unwrap()["response"].clone(), asked - was)
    };
    for large in [false, true] {
        for path in ["/mutate", "/mutate-and-validate"] {
            let (found, asked) = answered("default", large, path).await;
            assert_eq!((&found["auditAnnotations"]["policy"], asked), (&json!("batch"), 1), "{found}");
            assert!(found["patch"].is_string(), "{found}");
            let (unknown, asked) = answered("other", large, path).await;
            assert_eq!((&unknown["auditAnnotations"]["policy"], asked), (&json!("strict"), 1), "{unknown}");
            assert_eq!(unknown["allowed"], false, "{unknown}");
        }
    }
    // The name becomes part of a request's path.
    for path in ["kube-system/secrets/x", "default/pods/x:4040/proxy/kill?id=1&", "..", "a b", "A", ""] {
        let (unknown, asked) = answered(path, false, "/mutate").await;
        assert_eq!((unknown["allowed"].clone(), asked), (json!(false), 0), "{path}");
    }
    // One that was observed is not asked for.
    let mut snapshot = Snapshot::default();
    observe_namespace(&mut snapshot, "default", &[("env", "prod")], &[]);
    endpoint.snapshot.store(Arc::new(snapshot));
    assert_eq!(answered("default", false, "/mutate").await.1, 0);
}

/// While the API server does not answer, a large review of a new namespace keeps no turn that others wait for.
#[tokio::test]
async fn large_review_that_waits_for_its_namespace_yields_to_others() {
    let policies = only(Policy { matches: namespaces_with("env", "prod"), ..policy("volcano") });
    let namespaces = Arc::new(NewNamespaces { hangs: true, ..Default::default() });
    let limits = Limits::new(8, 1);
    let endpoint = Setup { policies, limits, namespaces: namespaces.clone(), ..Setup::default() }.start();
    let mut snapshot = Snapshot::default();
    observe_namespace(&mut snapshot, "default", &[("env", "prod")], &[]);
    endpoint.snapshot.store(Arc::new(snapshot));
    let large = |namespace: &str| {
        let mut pod = executor(1).namespace(namespace);
        pod.0["metadata"]["annotations"] = json!({"large": "x".repeat(100_000)});
        serde_json::to_vec(&pod.created_by("eve")).unwrap()
    };
    let client = endpoint.client(false);
    let waiting = endpoint.send(&client, "/mutate", "application/json", large("new"));
    let other = async {
        while namespaces.asked.load(Ordering::SeqCst) == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        endpoint.send(&endpoint.client(false), "/mutate?timeout=700ms", "application/json", large("default")).await
    };
    let (waited, answered) = tokio::join!(waiting, other);
    assert_eq!((waited.status(), answered.status()), (StatusCode::OK, StatusCode::OK));
}

/// Parses nothing, and asks for a namespace.
#[derive(Default)]
struct Asks(AtomicUsize);

impl Handler for Asks {
    fn answer(&self, _: &[u8], find: Find<'_>) -> Result<ReviewResponse, Unobserved> {
        self.0.fetch_add(1, Ordering::SeqCst);
        let body = match find("new".into()) {
            Lookup::None => return Err(Unobserved("new".into())),
            Lookup::Failed => "failed",
            Lookup::Found(_) => "found",
        };
        Ok(ReviewResponse {
            body: Ok(body.into()),
            operation: Operation::Create,
            outcome: ReviewOutcome::Allowed,
            reason: Reason::Owned,
            how: None,
        })
    }
}

#[tokio::test]
async fn large_review_is_parsed_once_also_if_its_namespace_is_asked_for() {
    let asks = Arc::new(Asks::default());
    let found = [("new".to_owned(), Arc::default())].into();
    let namespaces = Arc::new(NewNamespaces { found, ..Default::default() });
    let endpoint = Setup { answer: Some(asks.clone()), namespaces, ..Setup::default() }.start();
    for (length, calls) in [(2, 2), (100 << 10, 1), (3 << 20, 1)] {
        let body = " ".repeat(length);
        let response = endpoint.send(&endpoint.client(false), "/mutate", "application/json", body).await;
        assert_eq!(response.body(), "found");
        assert_eq!(asks.0.swap(0, Ordering::SeqCst), calls, "{length}");
    }
}

/// An account that is denied must be found without a log level that logs every review.
#[tokio::test]
async fn denial_is_logged_at_level_info_with_policy_reason_and_user() {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::INFO)
        .with_ansi(false)
        .with_writer(move || Lines(writer.clone()))
        .finish();
    // The server's tasks run on this thread.
    let _guard = tracing::subscriber::set_default(subscriber);
    let strict = Policy { strict: true, ..policy("volcano") };
    let endpoint = Setup { policies: only(strict.clone()), ..Setup::default() }.start();
    let denied = serde_json::to_vec(&recorded("by-an-administrator/exec.mutate.create")).unwrap();
    endpoint.post(denied.clone()).await;
    // A test on another thread, which has no subscriber, may have been the first to log here: tracing stores that as "never".
    tracing::callsite::rebuild_interest_cache();
    lines.lock().unwrap().clear();
    endpoint.post(serde_json::to_vec(&recorded("client-mode/exec-1.mutate.create")).unwrap()).await;
    endpoint.post(denied).await;
    let text = String::from_utf8(lines.lock().unwrap().clone()).unwrap();
    let denied: Vec<&str> = text.lines().filter(|line| line.contains("pod denied")).collect();
    let [line] = denied[..] else { panic!("one pod is denied: {text}") };
    for part in ["INFO", "reason=NoCreator", &format!("policy=\"{}\"", strict.name), "user=\"", "is strict"] {
        assert!(line.contains(part), "{part}: {line}");
    }
}

/// Writes log lines to memory.
struct Lines(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
