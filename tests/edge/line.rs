//! A replica's way to the API server: slow, failing, silent, or cut, as the history says. It sees every request.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderValue, Method, Request, StatusCode, header};
use axum::response::Response;
use bytes::Bytes;
use futures::StreamExt;
use kube::Client;
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use super::rng::Rng;

/// How the way is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It works.
    Good,
    /// Every request is answered so.
    Refusing(u16),
    /// No request is answered.
    Silent,
    /// No connection can be made.
    Cut,
    /// The API server's storage is away: lists and watches are answered from its cache, reads by name and writes are not.
    NoStorage,
}

/// What a request that changes something found, the moment before it was served.
#[derive(Clone, Debug)]
pub struct Write {
    pub replica: usize,
    pub method: Method,
    pub path: String,
    pub body: Value,
    /// The object as it was; null where there was none.
    pub before: Value,
    pub status: u16,
    pub at: Instant,
}

/// What goes over the way.
#[derive(Debug)]
pub struct Line {
    replica: usize,
    seed: u64,
    state: Mutex<State>,
    /// Ends what goes over the way now: watches, and requests that nobody answers.
    cut: Mutex<CancellationToken>,
    /// How late watches are.
    late: Mutex<Duration>,
    /// Requests of one sort that take long.
    slow: Mutex<Option<(&'static str, Duration)>>,
    /// A generator for each sort of request, so that what befalls one does not depend on the order in which tasks run.
    rng: Mutex<BTreeMap<String, Rng>>,
    /// Requests by what they are: `GET pods`, `LIST pods`, …
    pub requests: Mutex<BTreeMap<String, usize>>,
    writes: Arc<Mutex<Vec<Write>>>,
}

impl Line {
    pub fn new(replica: usize, seed: u64, writes: Arc<Mutex<Vec<Write>>>) -> Arc<Line> {
        Arc::new(Line {
            replica,
            seed,
            state: Mutex::new(State::Good),
            cut: Mutex::default(),
            late: Mutex::new(Duration::ZERO),
            slow: Mutex::default(),
            rng: Mutex::default(),
            requests: Mutex::default(),
            writes,
        })
    }

    pub fn set(&self, state: State) {
        *self.state.lock().unwrap() = state;
        self.cut();
    }

    fn state(&self) -> State {
        *self.state.lock().unwrap()
    }

    /// Watches end as they do when a connection breaks.
    pub fn cut(&self) {
        std::mem::take(&mut *self.cut.lock().unwrap()).cancel();
    }

    /// All is well again.
    pub fn mend(&self) {
        self.set_late(Duration::ZERO);
        self.set(State::Good);
    }

    pub fn set_late(&self, late: Duration) {
        *self.late.lock().unwrap() = late;
    }

    /// Requests of this sort (`GET pods`, `LIST pods`, …) take so long from now on.
    pub fn set_slow(&self, what: &'static str, pause: Duration) {
        *self.slow.lock().unwrap() = Some((what, pause));
    }

    /// How many requests of a sort there were.
    pub fn count_of(&self, what: &str) -> usize {
        self.requests.lock().unwrap().get(what).copied().unwrap_or_default()
    }

    /// A client that goes this way.
    pub fn client(self: &Arc<Self>, routes: Router) -> Client {
        let line = self.clone();
        let service = tower::service_fn(move |request: Request<kube::client::Body>| {
            let (line, routes) = (line.clone(), routes.clone());
            async move { line.serve(routes, request).await }
        });
        Client::new(service, "default")
    }

    /// What a request is (`GET pods`, `LIST pods`, …), and whether it is a watch.
    fn count(&self, method: &Method, path: &str, query: &str) -> (String, bool) {
        let is_watch = query.contains("watch=1") || query.contains("watch=true");
        let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        let at = parts.iter().position(|part| *part == "namespaces").map_or(0, |at| at + 2);
        let kind = if at > 0 && parts.len() > at { parts[at] } else { parts.last().unwrap_or(&"") };
        let is_list = *method == Method::GET && parts.last() == Some(&kind);
        let verb = match (is_watch, is_list) {
            (true, _) => "WATCH",
            (_, true) => "LIST",
            _ => method.as_str(),
        };
        let of = if verb == "LIST" && at > 0 { " of a namespace" } else { "" };
        let what = format!("{verb} {kind}{of}");
        *self.requests.lock().unwrap().entry(what.clone()).or_default() += 1;
        (what, is_watch)
    }

    async fn serve(&self, routes: Router, request: Request<kube::client::Body>) -> std::io::Result<Response> {
        let (parts, body) = request.into_parts();
        let path = parts.uri.path().to_owned();
        let (what, is_watch) = self.count(&parts.method, &path, parts.uri.query().unwrap_or_default());
        let (pause, refuses, loses, trickles) = {
            let mut all = self.rng.lock().unwrap();
            let mut seed = DefaultHasher::new();
            (self.seed, &what).hash(&mut seed);
            let rng = all.entry(what.clone()).or_insert_with(|| Rng::new(seed.finish()));
            let pause = if rng.once_in(50) { rng.below(3000) } else { rng.below(30) };
            (Duration::from_millis(pause), rng.once_in(100), rng.once_in(200), rng.once_in(4))
        };
        let slow = self.slow.lock().unwrap().filter(|(slow, _)| *slow == what).map(|(_, pause)| pause);
        tokio::time::sleep(pause.max(slow.unwrap_or_default())).await;
        match self.state() {
            State::Good if refuses => return Ok(refused(500)),
            State::Good => {}
            State::NoStorage if !is_watch && !what.starts_with("LIST") => return Ok(refused(500)),
            State::NoStorage => {}
            State::Refusing(code) => return Ok(refused(code)),
            State::Cut => return Err(std::io::ErrorKind::ConnectionRefused.into()),
            State::Silent => {
                let cut = self.cut.lock().unwrap().clone();
                cut.cancelled().await;
                return Err(std::io::ErrorKind::ConnectionReset.into());
            }
        }
        let body = axum::body::to_bytes(Body::new(body), usize::MAX).await.unwrap_or_default();
        let changes = parts.method != Method::GET;
        let replaces = changes && parts.method != Method::POST;
        let before = if replaces { get(&routes, &path).await } else { Value::Null };
        let mut forward = Request::from_parts(parts.clone(), Body::from(body.clone()));
        forward.headers_mut().insert(header::HOST, HeaderValue::from_static("localhost"));
        let Ok::<Response, Infallible>(response) = routes.oneshot(forward).await;
        let (replica, status) = (self.replica, response.status().as_u16());
        tracing::debug!(target: "spark_usher::line", replica, status, what, path, "answered");
        if changes {
            let (method, at) = (parts.method, Instant::now());
            let body = serde_json::from_slice(&body).unwrap_or_default();
            self.writes.lock().unwrap().push(Write { replica, method, path, body, before, status, at });
        }
        if loses {
            return Err(std::io::ErrorKind::ConnectionReset.into()); // It was done, and the answer is lost.
        }
        if !is_watch {
            return Ok(response);
        }
        let (parts, body) = response.into_parts();
        Ok(Response::from_parts(parts, self.watched(body, trickles)))
    }

    /// The body of a watch: late, and cut where the history says so.
    fn watched(&self, body: Body, trickles: bool) -> Body {
        let cut = self.cut.lock().unwrap().clone();
        let late = *self.late.lock().unwrap();
        if trickles {
            // A line at a time, so that a list may be cut off in its midst.
            let lines = body.into_data_stream().flat_map(|chunk| {
                let lines: Vec<Bytes> =
                    chunk.unwrap().split_inclusive(|byte| *byte == b'\n').map(Bytes::copy_from_slice).collect();
                futures::stream::iter(lines)
            });
            let lines = lines.then(|line| async {
                tokio::time::sleep(Duration::from_millis(200)).await;
                Ok::<_, std::io::Error>(line)
            });
            return Body::from_stream(lines.take_until(cut.cancelled_owned()));
        }
        let stream = futures::stream::unfold((body.into_data_stream(), cut), move |(mut body, cut)| async move {
            let chunk: Option<Bytes> = cut.run_until_cancelled(body.next()).await??.ok();
            if !late.is_zero() {
                tokio::time::sleep(late).await;
            }
            Some((Ok::<_, std::io::Error>(chunk?), (body, cut)))
        });
        Body::from_stream(stream)
    }
}

/// A client without a way to go.
pub fn direct(routes: Router) -> Client {
    let service = tower::service_fn(move |request: Request<kube::client::Body>| {
        let routes = routes.clone();
        async move {
            let (parts, body) = request.into_parts();
            let mut forward = Request::from_parts(parts, Body::new(body));
            forward.headers_mut().insert(header::HOST, HeaderValue::from_static("localhost"));
            routes.oneshot(forward).await
        }
    });
    Client::new(service, "default")
}

/// An object as the API server has it now; null where it has none.
pub async fn get(routes: &Router, path: &str) -> Value {
    let path = path.trim_end_matches("/status");
    let request = Request::get(path).header(header::HOST, "localhost").body(Body::empty()).unwrap();
    let Ok::<Response, Infallible>(response) = routes.clone().oneshot(request).await;
    if !response.status().is_success() {
        return Value::Null;
    }
    let body = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
    serde_json::from_slice(&body).unwrap_or_default()
}

fn refused(code: u16) -> Response {
    let reason = if code == 429 { "TooManyRequests" } else { "InternalError" };
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason,
        "message": "the history says so"});
    let mut response = Response::new(Body::from(status.to_string()));
    *response.status_mut() = StatusCode::from_u16(code).unwrap();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
