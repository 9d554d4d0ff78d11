//! Watches: initial events, changes as a selector sees them, bookmarks, 410, over a chunked body or a WebSocket (which
//! fabric8, and so Spark's driver, uses).

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::FromRequestParts;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use futures::{Stream, StreamExt};
use serde_json::{Value, json};

use super::error::{ApiError, Result};
use super::request::{Request, Shape};
use super::selector::Filter;
use super::state::{Api, in_version, present, present_text};
use super::store::{Change, Happened, Stored};
use super::table;
use usher_runtime::clock;
use usher_spark::json::{set, text};

/// Timeout without `timeoutSeconds`: the minimum that API servers use.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30 * 60);
/// Bytes that are collected before they are sent.
const CHUNK: usize = 64 << 10;
/// Marks the bookmark that ends the initial events.
const INITIAL_END: &str = "k8s.io/initial-events-end";

/// The WebSocket upgrade, if the client requested one.
pub(super) async fn upgrade(parts: &mut axum::http::request::Parts) -> Option<WebSocketUpgrade> {
    let asked = parts.headers.get(header::UPGRADE).and_then(|value| value.to_str().ok());
    if !asked.is_some_and(|asked| asked.eq_ignore_ascii_case("websocket")) {
        return None;
    }
    WebSocketUpgrade::from_request_parts(parts, &()).await.ok()
}

/// Starts a watch.
pub(super) fn watch(api: &Arc<Api>, request: &Request, upgrade: Option<WebSocketUpgrade>) -> Result<Response> {
    let watcher = Watcher::new(api, request)?;
    if let Some(upgrade) = upgrade {
        let frames = futures::stream::unfold(watcher, |mut watcher| async move {
            let frame = watcher.next().await?;
            Some((frame, watcher))
        });
        return Ok(upgrade.on_upgrade(move |socket| pump(socket, frames)).into_response());
    }
    let lines = futures::stream::unfold(watcher, |mut watcher| async move {
        let mut lines = watcher.next().await? + "\n";
        // Initial events are sent together: a list of thousands would otherwise cause as many small writes.
        while lines.len() < CHUNK
            && let Some(frame) = watcher.waiting()
        {
            lines.extend([frame.as_str(), "\n"]);
        }
        Some((Ok::<_, std::convert::Infallible>(lines), watcher))
    });
    let mut response = Response::new(Body::from_stream(lines));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}

/// Sends one event per text frame, until either side closes.
async fn pump(mut socket: WebSocket, frames: impl Stream<Item = String>) {
    let mut frames = std::pin::pin!(frames);
    loop {
        tokio::select! {
            frame = frames.next() => match frame {
                Some(frame) => if socket.send(Message::Text(frame.into())).await.is_err() {
                    break;
                },
                None => break,
            },
            message = socket.recv() => match message {
                Some(Ok(Message::Close(_)) | Err(_)) | None => break,
                Some(Ok(_)) => {}
            },
        }
    }
    let _ = socket.send(Message::Close(None)).await;
}

/// An event in the queue.
enum Frame {
    Text(String),
    /// An object that existed when the watch started: serialized when it is sent.
    Initial(Arc<Stored>),
}

/// One client's watch of a collection.
struct Watcher {
    api: Arc<Api>,
    request: Request,
    filter: Filter,
    /// All changes up to this revision were sent.
    position: u64,
    queue: VecDeque<Frame>,
    end: Instant,
    bookmarks: bool,
    next_bookmark: Instant,
    over: bool,
}

impl Watcher {
    fn new(api: &Arc<Api>, request: &Request) -> Result<Watcher> {
        let resource = &request.resource;
        let mut filter_fields = request.param("fieldSelector").map(str::to_owned);
        if let Some(name) = &request.name {
            filter_fields = Some(format!("metadata.name={name}"));
        }
        let filter = Filter::parse(resource, request.param("labelSelector"), filter_fields.as_deref())?;
        let now = clock::instant();
        let timeout =
            request.param("timeoutSeconds").and_then(|s| s.parse().ok()).map_or(DEFAULT_TIMEOUT, Duration::from_secs);
        let mut watcher = Watcher {
            api: api.clone(),
            request: request.clone(),
            filter,
            position: 0,
            queue: VecDeque::new(),
            end: now + timeout,
            bookmarks: request.flag("allowWatchBookmarks"),
            next_bookmark: now + api.bookmarks,
            over: false,
        };
        let version = request.param("resourceVersion").filter(|version| *version != "0");
        let initial = request.flag("sendInitialEvents");
        match version.map(str::parse::<u64>) {
            Some(Err(_)) => {
                let why = format!("invalid resource version {:?}", version.unwrap_or_default());
                return Err(ApiError::bad_request(why));
            }
            Some(Ok(version)) if !initial => watcher.position = version,
            _ => watcher.begin(initial),
        }
        Ok(watcher)
    }

    /// Enqueues the existing objects as ADDED; for a streaming list, a bookmark after them.
    fn begin(&mut self, streaming_list: bool) {
        let (all, revision) =
            self.api.store.list(&self.request.resource.collection(), self.request.namespace.as_deref(), None);
        self.position = revision;
        let shown: Vec<Arc<Stored>> = all.into_iter().filter(|object| self.filter.matches(object)).collect();
        for object in shown {
            self.queue.push_back(Frame::Initial(object));
        }
        if streaming_list {
            let frame = self.bookmark(true);
            self.queue.push_back(Frame::Text(frame));
        }
    }

    /// The next event, if one is available.
    fn waiting(&mut self) -> Option<String> {
        Some(match self.queue.pop_front()? {
            Frame::Text(text) => text,
            Frame::Initial(object) if self.request.shape == Shape::Object => {
                format!(r#"{{"type":"ADDED","object":{}}}"#, present_text(&self.request.resource, &object))
            }
            Frame::Initial(object) => self.frame("ADDED", present(&self.request.resource, &object)),
        })
    }

    /// Waits for the next event.
    async fn next(&mut self) -> Option<String> {
        loop {
            if let Some(frame) = self.waiting() {
                return Some(frame);
            }
            if self.over {
                return None;
            }
            // Read the revision first, so that no change up to it can be missing from the list of changes.
            let revision = self.api.store.revision();
            match self.api.store.changes(&self.request.resource.collection(), self.position) {
                Err(error) => {
                    self.over = true;
                    return Some(event("ERROR", &error.status()));
                }
                Ok(changes) => {
                    self.position = self.position.max(revision);
                    for change in changes {
                        self.position = self.position.max(change.revision);
                        if let Some(frame) = self.see(&change) {
                            self.queue.push_back(Frame::Text(frame));
                        }
                    }
                }
            }
            if self.queue.is_empty() && !self.wait().await {
                return None;
            }
        }
    }

    /// Waits for a change, the next bookmark or the end.
    async fn wait(&mut self) -> bool {
        let until = if self.bookmarks { self.end.min(self.next_bookmark) } else { self.end };
        let left = until.saturating_duration_since(clock::instant());
        match tokio::time::timeout(left, self.api.store.newer_than(self.position)).await {
            Ok(()) => true,
            Err(_) if clock::instant() >= self.end => false,
            Err(_) => {
                self.next_bookmark = clock::instant() + self.api.bookmarks;
                let frame = self.bookmark(false);
                self.queue.push_back(Frame::Text(frame));
                true
            }
        }
    }

    /// A change as this client's selector sees it: an object that enters the view is added, one that leaves it is deleted.
    fn see(&self, change: &Change) -> Option<String> {
        if self.request.namespace.as_ref().is_some_and(|namespace| *namespace != change.object.key.0) {
            return None;
        }
        let was = change.before.as_ref().is_some_and(|before| self.filter.matches(before));
        let is = change.happened != Happened::Deleted && self.filter.matches(&change.object);
        let resource = &self.request.resource;
        match (was, is) {
            (false, false) => None,
            (false, true) => Some(self.frame("ADDED", present(resource, &change.object))),
            (true, true) => Some(self.frame("MODIFIED", present(resource, &change.object))),
            (true, false) => {
                // The last state in view, with the revision at which the object left it.
                let last =
                    if change.happened == Happened::Deleted { Some(&change.object) } else { change.before.as_ref() };
                let mut object = last?.value();
                set(&mut object, &["metadata", "resourceVersion"], change.revision.to_string());
                Some(self.frame("DELETED", in_version(resource, object)))
            }
        }
    }

    fn frame(&self, kind: &str, object: Value) -> String {
        let shown = match self.request.shape {
            Shape::Object => object,
            Shape::Metadata => table::partial(&object),
            Shape::Table => {
                let metadata = json!({"resourceVersion": text(&object, &["metadata", "resourceVersion"])});
                table::table(&self.request.resource, std::slice::from_ref(&object), metadata, clock::now())
            }
        };
        event(kind, &shown)
    }

    fn bookmark(&self, ends_initial: bool) -> String {
        let mut object = json!({
            "kind": self.request.resource.kind, "apiVersion": self.request.resource.api_version(),
            "metadata": {"resourceVersion": self.position.to_string(), "creationTimestamp": null},
        });
        if self.request.shape == Shape::Table {
            let metadata = json!({"resourceVersion": self.position.to_string()});
            object = table::table(&self.request.resource, &[], metadata, clock::now());
        }
        if ends_initial {
            set(&mut object, &["metadata", "annotations", INITIAL_END], "true");
        }
        event("BOOKMARK", &object)
    }
}

/// One line of a watch. The type comes first, as from an API server: clients decode it while they read.
fn event(kind: &str, object: &Value) -> String {
    format!(r#"{{"type":"{kind}","object":{object}}}"#)
}
