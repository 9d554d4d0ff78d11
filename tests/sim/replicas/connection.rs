//! A replica's connection to the API server: slow, failing, silent, or cut, as the history requires. It records every request.

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

use crate::support::rng::Rng;

/// The state of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It works.
    Good,
    /// Every request gets this status code.
    Rejecting(u16),
    /// No request gets an answer.
    Silent,
    /// No connection can be made.
    Cut,
    /// The API server's storage is unavailable: it serves lists and watches from its cache, but neither GETs nor writes.
    NoStorage,
}

/// The state of watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// Each event arrives when it happens.
    Good,
    /// Each event arrives with this delay.
    Late(Duration),
    /// The connection is dead, but not closed.
    Hung,
    /// One of three events is lost, but no bookmark.
    Lossy,
}

/// How an API server answers that cannot stream lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unstreamed {
    /// With this status code.
    Status(u16),
    /// With 200 and an event of an error.
    Event,
    /// With 200 and nothing.
    Empty,
}

impl Unstreamed {
    fn answer(self) -> Response {
        match self {
            Unstreamed::Status(code) => error_response(code),
            Unstreamed::Event => {
                let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 500,
                    "reason": "InternalError", "message": "the storage cannot report its progress"});
                Response::new(Body::from(format!("{}\n", json!({"type": "ERROR", "object": status}))))
            }
            Unstreamed::Empty => Response::new(Body::empty()),
        }
    }
}

/// A writing request, with the object immediately before it was served.
#[derive(Clone, Debug)]
pub struct Write {
    pub replica: usize,
    pub method: Method,
    pub path: String,
    pub body: Value,
    /// The previous object; null if none existed.
    pub before: Value,
    pub status: u16,
    pub at: Instant,
}

/// The connection of one replica.
#[derive(Debug)]
pub struct Connection {
    replica: usize,
    seed: u64,
    state: Mutex<State>,
    /// Ends what is in flight: watches, and requests without an answer.
    cut: Mutex<CancellationToken>,
    /// The state of watches.
    flow: Mutex<Flow>,
    /// Without random faults.
    is_fault_free: bool,
    /// If the API server cannot stream lists: how it answers.
    unstreamed: Option<Unstreamed>,
    /// The last response to each list that may be served from a cache.
    cached_lists: Mutex<BTreeMap<String, CachedList>>,
    /// Requests of one kind that take long.
    slow: Mutex<Option<(&'static str, Duration)>>,
    /// A generator for each kind of request, so that the faults of one do not depend on the order in which tasks run.
    rng: Mutex<BTreeMap<String, Rng>>,
    /// Times of requests by kind (`GET pods`, `LIST pods`, …).
    pub requests: Mutex<BTreeMap<String, Vec<Instant>>>,
    /// ConfigMaps that were read, and the time of the first read.
    pub read: Mutex<BTreeMap<String, Instant>>,
    writes: Arc<Mutex<Vec<Write>>>,
}

/// The response to an earlier list.
#[derive(Clone, Debug)]
struct CachedList {
    version: u64,
    at: Instant,
    head: axum::http::HeaderMap,
    body: Bytes,
}

/// The maximum age of a list from an API server's cache.
const MAX_CACHE_AGE: Duration = Duration::from_secs(20);

/// The faults of a request.
struct RequestFaults {
    /// The delay before it reaches the server.
    pause: Duration,
    /// The delay in the server, which serves the request even if its client has disconnected.
    served_after: Duration,
    is_rejected: bool,
    loses_response: bool,
    /// A watch arrives slowly, line by line.
    trickles: bool,
    /// A list comes from a stale cache.
    is_stale: bool,
    /// A watch that is cut ends with an error.
    is_reset: bool,
    /// The seed for the faults of a watch's events.
    seed: u64,
}

impl Connection {
    pub fn new(
        replica: usize,
        seed: u64,
        is_fault_free: bool,
        unstreamed: Option<Unstreamed>,
        writes: Arc<Mutex<Vec<Write>>>,
    ) -> Arc<Connection> {
        Arc::new(Connection {
            replica,
            seed,
            state: Mutex::new(State::Good),
            cut: Mutex::default(),
            flow: Mutex::new(Flow::Good),
            is_fault_free,
            unstreamed,
            cached_lists: Mutex::default(),
            slow: Mutex::default(),
            rng: Mutex::default(),
            requests: Mutex::default(),
            read: Mutex::default(),
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

    /// Ends the watches, as a broken connection does.
    pub fn cut(&self) {
        std::mem::take(&mut *self.cut.lock().unwrap()).cancel();
    }

    /// Removes all faults.
    pub fn clear_faults(&self) {
        self.set_flow(Flow::Good);
        self.set(State::Good);
    }

    pub fn set_flow(&self, flow: Flow) {
        *self.flow.lock().unwrap() = flow;
    }

    fn flow(&self) -> Flow {
        *self.flow.lock().unwrap()
    }

    /// Delays requests of this kind (`GET pods`, `LIST pods`, …) from now on.
    pub fn set_slow(&self, what: &'static str, pause: Duration) {
        *self.slow.lock().unwrap() = Some((what, pause));
    }

    /// The number of requests of a kind.
    pub fn count_of(&self, what: &str) -> usize {
        self.requests.lock().unwrap().get(what).map_or(0, Vec::len)
    }

    /// A client with this connection.
    pub fn client(self: &Arc<Self>, routes: Router) -> Client {
        let connection = self.clone();
        let service = tower::service_fn(move |request: Request<kube::client::Body>| {
            let (connection, routes) = (connection.clone(), routes.clone());
            async move { connection.serve(routes, request).await }
        });
        Client::new(service, "default")
    }

    /// Counts a request; returns its kind (`GET pods`, `LIST pods`, …), and whether it is a watch.
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
        self.requests.lock().unwrap().entry(what.clone()).or_default().push(Instant::now());
        (what, is_watch)
    }

    fn faults(&self, what: &str) -> RequestFaults {
        let mut all = self.rng.lock().unwrap();
        let mut seed = DefaultHasher::new();
        (self.seed, what).hash(&mut seed);
        let rng = all.entry(what.to_owned()).or_insert_with(|| Rng::new(seed.finish()));
        let pause = if rng.once_in(50) { rng.below(3000) } else { rng.below(30) };
        let served_after = if rng.once_in(50) { rng.below(4000) } else { 0 };
        let (is_rejected, loses_response, trickles) = (rng.once_in(100), rng.once_in(200), rng.once_in(4));
        let (is_stale, is_reset, seed) = (rng.once_in(3), rng.once_in(2), rng.below(u64::MAX));
        let pause = Duration::from_millis(if self.is_fault_free { pause % 30 } else { pause });
        let served_after = Duration::from_millis(served_after);
        let faults =
            RequestFaults { pause, served_after, is_rejected, loses_response, trickles, is_stale, is_reset, seed };
        if !self.is_fault_free {
            return faults;
        }
        RequestFaults {
            served_after: Duration::ZERO,
            is_rejected: false,
            loses_response: false,
            trickles: false,
            ..faults
        }
    }

    async fn serve(self: Arc<Self>, routes: Router, request: Request<kube::client::Body>) -> std::io::Result<Response> {
        let (parts, body) = request.into_parts();
        let path = parts.uri.path().to_owned();
        let query = parts.uri.query().unwrap_or_default().to_owned();
        let (what, is_watch) = self.count(&parts.method, &path, &query);
        let faults = self.faults(&what);
        let slow = self.slow.lock().unwrap().filter(|(slow, _)| *slow == what).map(|(_, pause)| pause);
        tokio::time::sleep(faults.pause.max(slow.unwrap_or_default())).await;
        match self.state() {
            State::Good if faults.is_rejected => return Ok(error_response(500)),
            State::Good => {}
            State::NoStorage if !is_watch && !what.starts_with("LIST") => return Ok(error_response(500)),
            State::NoStorage => {}
            State::Rejecting(code) => return Ok(error_response(code)),
            State::Cut => return Err(std::io::ErrorKind::ConnectionRefused.into()),
            State::Silent => {
                let cut = self.cut.lock().unwrap().clone();
                cut.cancelled().await;
                return Err(std::io::ErrorKind::ConnectionReset.into());
            }
        }
        let lists = is_watch && query.contains("sendInitialEvents=true");
        if let Some(unstreamed) = self.unstreamed.filter(|_| lists) {
            return Ok(unstreamed.answer());
        }
        if let Some(stale) = self.cached_for(&parts, &what).filter(|_| faults.is_stale) {
            return Ok(stale);
        }
        let body = axum::body::to_bytes(Body::new(body), usize::MAX).await.unwrap_or_default();
        let (connection, was) = (self.clone(), parts.clone());
        // The server completes a request that has reached it, also if its client was killed or no longer waits.
        let served = tokio::spawn(async move {
            tokio::time::sleep(faults.served_after).await;
            connection.forward(routes, was, body, what).await
        });
        let response = served.await.unwrap();
        if faults.loses_response {
            return Err(std::io::ErrorKind::ConnectionReset.into()); // The request was served, and the response is lost.
        }
        if !is_watch {
            return Ok(self.cache_list(&parts, response).await);
        }
        let (parts, body) = response.into_parts();
        Ok(Response::from_parts(parts, self.watched(body, &faults, lists)))
    }

    async fn forward(&self, routes: Router, parts: axum::http::request::Parts, body: Bytes, what: String) -> Response {
        let path = parts.uri.path().to_owned();
        let changes = parts.method != Method::GET;
        let replaces = changes && parts.method != Method::POST;
        let before = if replaces { get(&routes, &path).await } else { Value::Null };
        let method = parts.method.clone();
        let mut forward = Request::from_parts(parts, Body::from(body.clone()));
        forward.headers_mut().insert(header::HOST, HeaderValue::from_static("localhost"));
        let Ok::<Response, Infallible>(response) = routes.oneshot(forward).await;
        let (replica, status) = (self.replica, response.status().as_u16());
        tracing::debug!(target: "usher_test::connection", replica, status, what, path, "answered");
        if what == "GET configmaps" && status == 200 {
            self.read.lock().unwrap().entry(path.clone()).or_insert_with(Instant::now);
        }
        if changes {
            let at = Instant::now();
            let body = serde_json::from_slice(&body).unwrap_or_default();
            self.writes.lock().unwrap().push(Write { replica, method, path, body, before, status, at });
        }
        response
    }

    /// An earlier response, if the request allows one: it names the oldest version that it accepts.
    fn cached_for(&self, parts: &axum::http::request::Parts, what: &str) -> Option<Response> {
        let query = parts.uri.query().unwrap_or_default();
        let at_least: u64 = query.split('&').find_map(|part| part.strip_prefix("resourceVersion="))?.parse().ok()?;
        if !what.starts_with("LIST pods") || query.contains("continue=") {
            return None;
        }
        let cached = self.cached_lists.lock().unwrap().get(&cached_as(parts)).cloned()?;
        let mut response = Response::new(Body::from(cached.body));
        *response.headers_mut() = cached.head;
        (cached.version >= at_least && cached.at.elapsed() < MAX_CACHE_AGE).then_some(response)
    }

    /// Stores the response to a complete list.
    async fn cache_list(&self, parts: &axum::http::request::Parts, response: Response) -> Response {
        if parts.method != Method::GET || !parts.uri.path().ends_with("/pods") || !response.status().is_success() {
            return response;
        }
        let (head, body) = response.into_parts();
        let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
        let list: Value = serde_json::from_slice(&body).unwrap_or_default();
        let version = list["metadata"]["resourceVersion"].as_str().and_then(|version| version.parse().ok());
        if let Some(version) = version.filter(|_| !list["metadata"]["continue"].is_string()) {
            let cached = CachedList { version, at: Instant::now(), head: head.headers.clone(), body: body.clone() };
            self.cached_lists.lock().unwrap().insert(cached_as(parts), cached);
        }
        Response::from_parts(head, Body::from(body))
    }

    /// The body of a watch with the faults of the history. `lists`: it begins with a list, of which no item is lost.
    fn watched(self: Arc<Self>, body: Body, faults: &RequestFaults, lists: bool) -> Body {
        let cut = self.cut.lock().unwrap().clone();
        let (mut rng, is_reset) = (Rng::new(faults.seed), faults.is_reset);
        let every = if faults.trickles { Duration::from_millis(200) } else { Duration::ZERO };
        let (events, mut arrived) = tokio::sync::mpsc::unbounded_channel();
        tokio::spawn(async move {
            let mut body = body.into_data_stream();
            loop {
                let chunk = tokio::select! {
                    biased;
                    () = events.closed() => return,
                    chunk = body.next() => chunk,
                };
                let Some(Ok(chunk)) = chunk else { return };
                for line in chunk.split_inclusive(|byte| *byte == b'\n') {
                    let _ = events.send((Instant::now(), Bytes::copy_from_slice(line)));
                }
            }
        });
        let (connection, mut is_listed) = (self, !lists);
        let next = async move || {
            loop {
                let (at, event) = arrived.recv().await?;
                let is_bookmark = event.starts_with(b"{\"type\":\"BOOKMARK\"");
                let was_listed = is_listed;
                is_listed |= is_bookmark;
                match connection.flow() {
                    Flow::Good => tokio::time::sleep(every).await,
                    Flow::Late(late) => tokio::time::sleep_until(at + late).await,
                    Flow::Hung => std::future::pending().await,
                    Flow::Lossy if was_listed && !is_bookmark && rng.once_in(3) => continue,
                    Flow::Lossy => {}
                }
                return Some(event);
            }
        };
        let stream = futures::stream::unfold(Some((next, cut)), move |watch| async move {
            let (mut next, cut) = watch?;
            match cut.run_until_cancelled(next()).await {
                Some(event) => Some((Ok(event?), Some((next, cut)))),
                None if is_reset => Some((Err(std::io::Error::from(std::io::ErrorKind::ConnectionReset)), None)),
                None => None,
            }
        });
        Body::from_stream(stream)
    }
}

/// The key of a cached list: everything that affects its content.
fn cached_as(parts: &axum::http::request::Parts) -> String {
    let query = parts.uri.query().unwrap_or_default();
    let selects: Vec<&str> = query.split('&').filter(|part| !part.starts_with("resourceVersion")).collect();
    format!("{} {} {:?}", parts.uri.path(), selects.join("&"), parts.headers.get(header::ACCEPT))
}

/// A client without faults.
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

/// The current object of the API server; null if none exists.
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

fn error_response(code: u16) -> Response {
    let reason = if code == 429 { "TooManyRequests" } else { "InternalError" };
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason,
        "message": "injected by the history"});
    let mut response = Response::new(Body::from(status.to_string()));
    *response.status_mut() = StatusCode::from_u16(code).unwrap();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
