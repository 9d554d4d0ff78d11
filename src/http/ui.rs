//! Serves the web page ([`crate::ui`]) on the debug listener, with live updates by server-sent events.
//!
//! A browser may be made to send requests here by any site that its user opens. So the pages are read-only, nothing may embed or
//! read them, and the listener answers only to names that no foreign site can have ([`HostNames`]).

use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use axum::Router;
use axum::extract::{Query, Request, State};
use axum::http::header::{
    ACCEPT, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, HeaderName, REFERRER_POLICY, VARY,
    X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures::stream::{self, Stream};
use serde::Deserialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use crate::runtime::clock;
use crate::snapshot::Snapshot;
use crate::time::Now;
use crate::ui::{self, AppsQuery, Page, ReplicaReport};
use crate::views::{self, AppReport, History};

/// How often an open page is compared with what it should show.
const INTERVAL: Duration = Duration::from_secs(2);
/// An open page is sent at least this often, because it shows how long ago things were.
const REFRESH: Duration = Duration::from_secs(15);
/// Reports of all applications are shared by requests within this time.
const SHARED_FOR: Duration = Duration::from_secs(1);

/// Nothing is loaded from elsewhere, nothing is written into the page as a script or a style, and no other page may embed it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// What the pages show.
#[derive(Clone)]
pub struct UiState {
    /// The current snapshot.
    pub snapshot: Arc<ArcSwap<Snapshot>>,
    /// The latest exits, and what the recovery found and did.
    pub history: Arc<ArcSwap<History>>,
    /// This replica.
    pub replica: Arc<dyn Fn() -> ReplicaReport + Send + Sync>,
    /// Live updates end with it.
    pub stop: CancellationToken,
    /// How many pages may be open with live updates; a connection each.
    pub most_live: usize,
}

#[derive(Clone)]
struct Pages {
    state: UiState,
    live: Arc<Semaphore>,
    apps: Arc<Mutex<Option<SharedApps>>>,
}

/// Reports of all applications, and when they were made.
type SharedApps = (Instant, Arc<Vec<AppReport>>);

/// Routes of the pages.
pub fn router(state: UiState) -> Router {
    let live = Arc::new(Semaphore::new(state.most_live));
    let asset = |kind: &'static str, text: &'static str| get(move || async move { ([(CONTENT_TYPE, kind)], text) });
    Router::new()
        .route("/", get(apps))
        .route("/app", get(app))
        .route("/nodes", get(nodes))
        .route("/cost", get(cost))
        .route("/replica", get(replica))
        .route("/style.css", asset("text/css; charset=utf-8", ui::STYLE))
        .route("/live.js", asset("text/javascript; charset=utf-8", ui::SCRIPT))
        .route("/icon.svg", asset("image/svg+xml", ui::ICON))
        .layer(axum::middleware::map_response(protected))
        .with_state(Pages { state, live, apps: Arc::default() })
}

async fn protected(mut response: Response) -> Response {
    let headers = response.headers_mut();
    let all: [(HeaderName, &'static str); 7] = [
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        (CACHE_CONTROL, "no-store"),
        (VARY, "accept"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ];
    for (name, value) in all {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct AppQuery {
    namespace: String,
    name: String,
}

/// A page, by its address.
#[derive(Clone, Debug)]
enum Address {
    Apps(AppsQuery),
    App(AppQuery),
    Nodes,
    Cost,
    Replica,
}

async fn apps(State(pages): State<Pages>, headers: HeaderMap, Query(query): Query<AppsQuery>) -> Response {
    pages.answer(Address::Apps(query), &headers)
}

async fn app(State(pages): State<Pages>, headers: HeaderMap, Query(query): Query<AppQuery>) -> Response {
    pages.answer(Address::App(query), &headers)
}

async fn nodes(State(pages): State<Pages>, headers: HeaderMap) -> Response {
    pages.answer(Address::Nodes, &headers)
}

async fn cost(State(pages): State<Pages>, headers: HeaderMap) -> Response {
    pages.answer(Address::Cost, &headers)
}

async fn replica(State(pages): State<Pages>, headers: HeaderMap) -> Response {
    pages.answer(Address::Replica, &headers)
}

impl Pages {
    /// The document; its live part only; or live updates, by the type that the client accepts.
    fn answer(self, address: Address, headers: &HeaderMap) -> Response {
        let accept = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
        let html = [(CONTENT_TYPE, "text/html; charset=utf-8")];
        match accept {
            "text/event-stream" => match self.live.clone().try_acquire_owned() {
                Ok(permit) => Sse::new(self.updates(address, permit)).into_response(),
                Err(_) => {
                    (StatusCode::SERVICE_UNAVAILABLE, "too many pages are open: reload this one\n").into_response()
                }
            },
            "application/x-live" => self.with_page(&address, |page, replica, now| {
                (status(page), html, page.live(replica, now)).into_response()
            }),
            _ => self.with_page(&address, |page, replica, now| {
                (status(page), html, page.document(replica, now)).into_response()
            }),
        }
    }

    fn with_page<T>(&self, address: &Address, then: impl FnOnce(&Page<'_>, &ReplicaReport, jiff::Timestamp) -> T) -> T {
        let replica = (self.state.replica)();
        let now = Now { at: clock::instant(), wall: clock::now() };
        let (snapshot, history) = (self.state.snapshot.load(), self.state.history.load());
        match address {
            Address::Apps(query) => then(&Page::Apps(&self.apps(now), query), &replica, now.wall),
            Address::App(AppQuery { namespace, name }) => {
                let report = views::application(&snapshot, &history, namespace, name, now.wall);
                then(&Page::App(&report, namespace, name), &replica, now.wall)
            }
            Address::Nodes => then(&Page::Nodes(&views::nodes(&snapshot, &history, None, now)), &replica, now.wall),
            Address::Cost => then(&Page::Cost(&views::costs(&history, None)), &replica, now.wall),
            Address::Replica => then(&Page::Replica, &replica, now.wall),
        }
    }

    /// Reports of all applications, at most a second old.
    fn apps(&self, now: Now) -> Arc<Vec<AppReport>> {
        let mut shared = self.apps.lock().unwrap_or_else(PoisonError::into_inner);
        match &*shared {
            Some((at, apps)) if now.at.saturating_duration_since(*at) < SHARED_FOR => apps.clone(),
            _ => {
                let (snapshot, history) = (self.state.snapshot.load(), self.state.history.load());
                let apps = Arc::new(views::apps(&snapshot, &history, None, now.wall));
                *shared = Some((now.at, apps.clone()));
                apps
            }
        }
    }

    /// The live part of the page, again and again when it has changed.
    fn updates(self, address: Address, permit: OwnedSemaphorePermit) -> impl Stream<Item = Result<Event, Infallible>> {
        struct Updates {
            pages: Pages,
            address: Address,
            /// What was sent last, and when.
            last: Option<(u64, Instant)>,
            _permit: OwnedSemaphorePermit,
        }
        stream::unfold(Updates { pages: self, address, last: None, _permit: permit }, async |mut updates| {
            loop {
                if updates.last.is_some() {
                    tokio::select! {
                        () = updates.pages.state.stop.cancelled() => return None,
                        () = tokio::time::sleep(INTERVAL) => {}
                    }
                }
                let now = clock::instant();
                let last = updates.last;
                let (fingerprint, html) = updates.pages.with_page(&updates.address, |page, replica, wall| {
                    let fingerprint = page.fingerprint(replica);
                    let is_due = last
                        .is_none_or(|(sent, at)| sent != fingerprint || now.saturating_duration_since(at) >= REFRESH);
                    (fingerprint, is_due.then(|| page.live(replica, wall)))
                });
                if let Some(html) = html {
                    updates.last = Some((fingerprint, now));
                    // A JSON string is one line, as an event needs it.
                    let data = serde_json::to_string(&html).unwrap_or_default();
                    return Some((Ok(Event::default().event("page").data(data)), updates));
                }
            }
        })
    }
}

fn status(page: &Page<'_>) -> StatusCode {
    if page.is_found() { StatusCode::OK } else { StatusCode::NOT_FOUND }
}

/// The names in `Host` that are answered: addresses, `localhost`, and these. A site that lets its own name resolve to this
/// listener (DNS rebinding) sends its own name.
#[derive(Clone, Debug, Default)]
pub struct HostNames(pub Arc<[String]>);

impl HostNames {
    fn accept(&self, authority: &str) -> bool {
        let Ok(uri) = authority.parse::<Uri>() else { return false };
        let Some(host) = uri.host().filter(|_| uri.path_and_query().is_none()) else { return false };
        let host = host.trim_end_matches('.').to_ascii_lowercase();
        let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(&host);
        address.parse::<std::net::IpAddr>().is_ok()
            || host == "localhost"
            || host.ends_with(".localhost")
            || self.0.iter().any(|name| name.eq_ignore_ascii_case(&host))
    }
}

/// Refuses requests to another name.
pub async fn refuse_foreign(State(names): State<HostNames>, request: Request, next: Next) -> Response {
    let header = request.headers().get(HOST).and_then(|host| host.to_str().ok());
    let host = header.or_else(|| request.uri().authority().map(|authority| authority.as_str())).unwrap_or_default();
    if names.accept(host) {
        return next.run(request).await;
    }
    let text = "this name is not answered, because any web site could use it to read this page: \
                expected an address, localhost, or a name in --debug-hosts (the chart's debugHosts)\n";
    (StatusCode::FORBIDDEN, text).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_no_foreign_site_can_have_are_answered() {
        let names = HostNames(Arc::from(["usher.example.com".to_owned()]));
        for host in [
            "127.0.0.1:6060",
            "127.0.0.1",
            "[::1]:6060",
            "10.1.2.3",
            "localhost:6060",
            "LOCALHOST",
            "a.localhost",
            "usher.example.com",
            "USHER.example.com.:6060",
        ] {
            assert!(names.accept(host), "{host}");
        }
        for host in [
            "evil.example",
            "usher.example.com.evil.example",
            "",
            "127.0.0.1.nip.io",
            "localhost.evil",
            "a@127.0.0.1 x",
            "127.0.0.1/x",
        ] {
            assert!(!names.accept(host), "{host}");
        }
    }
}
