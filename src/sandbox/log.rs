//! Logs of containers, which no container writes: those that a pod's annotation has, a line at a time from the container's start on.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::StatusCode;
use axum::response::Response;
use futures::stream::unfold;
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::error::{ApiError, Result};
use super::request::{Request, Verb};
use super::respond::plain;
use super::state::Api;
use super::store::Key;
use usher_runtime::clock;
use usher_spark::json::{at, list, text};

/// Annotation: what the pod's containers write, a line every 50 ms. A container that exits writes the rest immediately.
pub const LOG: &str = "sandbox.spark-usher.io/log";

const LINE_EVERY: Duration = Duration::from_millis(50);

/// Whether the request is for a log.
pub(super) fn is_for_log(request: &Request) -> bool {
    request.sub.as_deref() == Some("log") && request.resource.plural == "pods" && request.resource.group.is_empty()
}

/// Answers it (`pkg/registry/core/pod/strategy.go`, `LogLocation`).
pub(super) fn log(api: &Arc<Api>, request: &Request) -> Result<Response> {
    if request.verb != Verb::Get {
        return Err(ApiError::method_not_allowed());
    }
    let key = request.key();
    let pods = request.resource.collection();
    let pod = api.store.get(&pods, &key).ok_or_else(|| ApiError::not_found("pods", &key.1))?.value();
    let names: Vec<&str> = list(&pod, &["spec", "containers"]).iter().map(|one| text(one, &["name"])).collect();
    let container = match (request.param("container"), names.as_slice()) {
        (Some(wanted), names) if names.contains(&wanted) => wanted.to_owned(),
        (Some(wanted), _) => {
            return Err(ApiError::bad_request(format!("container {wanted} is not valid for pod {}", key.1)));
        }
        (None, [only]) => (*only).to_owned(),
        (None, names) => {
            let choose = format!("choose one of: [{}]", names.join(" "));
            return Err(ApiError::bad_request(format!(
                "a container name must be specified for pod {}, {choose}",
                key.1
            )));
        }
    };
    if at(&pod, &["metadata", "annotations", LOG]).is_none() {
        return Err(ApiError::bad_request(format!(
            "the sandbox runs no containers: only a pod with the annotation {LOG} has a log"
        )));
    }
    let since = match request.param("sinceTime") {
        None => None,
        Some(time) => {
            Some(time.parse::<Timestamp>().map_err(|error| ApiError::bad_request(format!("sinceTime: {error}")))?)
        }
    };
    let mut reader = Reader {
        api: api.clone(),
        key,
        collection: pods,
        container,
        since,
        timestamps: request.flag("timestamps"),
        next: 0,
    };
    if reader.state(&pod).is_none() {
        let why = format!(
            "container \"{}\" in pod \"{}\" is waiting to start: ContainerCreating",
            reader.container, reader.key.1
        );
        return Err(ApiError::bad_request(why));
    }
    if !request.flag("follow") {
        return Ok(plain(StatusCode::OK, reader.written(&pod).0, "text/plain"));
    }
    let lines = unfold((reader, false), |(mut reader, is_over)| async move {
        if is_over {
            return None;
        }
        loop {
            let pod = reader.api.store.get(&reader.collection, &reader.key)?.value();
            let (text, is_over) = reader.written(&pod);
            if !text.is_empty() || is_over {
                return Some((Ok::<_, std::convert::Infallible>(text), (reader, is_over)));
            }
            tokio::time::sleep(LINE_EVERY).await;
        }
    });
    Ok(plain(StatusCode::OK, Body::from_stream(lines), "text/plain"))
}

struct Reader {
    api: Arc<Api>,
    key: Key,
    collection: super::resource::Collection,
    container: String,
    since: Option<Timestamp>,
    timestamps: bool,
    /// The line that is read next.
    next: usize,
}

impl Reader {
    /// When the container started, and whether it has exited; `None` before it starts.
    fn state(&self, pod: &Value) -> Option<(Timestamp, bool)> {
        let statuses = list(pod, &["status", "containerStatuses"]);
        let state = at(statuses.iter().find(|status| text(status, &["name"]) == self.container)?, &["state"])?;
        let running = text(state, &["running", "startedAt"]).parse().ok().map(|started| (started, false));
        running.or_else(|| Some((text(state, &["terminated", "startedAt"]).parse().ok()?, true)))
    }

    /// The lines that were written since the last call, and whether there will be no more.
    fn written(&mut self, pod: &Value) -> (String, bool) {
        let Some((started, is_over)) = self.state(pod) else { return (String::new(), false) };
        let now = clock::now();
        let mut written = String::new();
        for line in text(pod, &["metadata", "annotations", LOG]).lines().skip(self.next) {
            let after =
                SignedDuration::try_from(LINE_EVERY).unwrap_or_default() * i32::try_from(self.next).unwrap_or(i32::MAX);
            let time = started + after;
            if time > now && !is_over {
                break;
            }
            self.next += 1;
            // Kubelets compare whole seconds.
            if self.since.is_none_or(|since| time >= since) {
                if self.timestamps {
                    written.extend([time.to_string().as_str(), " "]);
                }
                written.extend([line, "\n"]);
            }
        }
        (written, is_over)
    }
}
