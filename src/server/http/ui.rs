//! Serves the web page ([`usher_report::ui`]) on the debug listener, with live updates by server-sent events.
//!
//! A browser may be made to send requests here by any site that its user opens. So the pages are read-only, nothing may embed or
//! read them, and the listener answers only to names that no foreign site can have ([`HostNames`]).

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use axum::Router;
use axum::extract::{Query, Request, State};
use axum::http::header::{
    ACCEPT, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, HeaderName, REFERRER_POLICY, VARY,
    X_CONTENT_TYPE_OPTIONS,
};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures::stream::{self, Stream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use usher_core::snapshot::Snapshot;
use usher_report::ui::{self, AppQuery, AppsQuery, Page, ReplicaReport};
use usher_report::views::{self, AppReport, History};
use usher_runtime::background::Background;
use usher_runtime::clock;
use usher_spark::time::Now;

/// How often an open page is compared with what it should show.
const INTERVAL: Duration = Duration::from_secs(2);
/// An open page is sent at least this often, because it shows how long ago things were.
const REFRESH: Duration = Duration::from_secs(15);
/// A page, and the reports of all applications, are shared by requests within this time.
const SHARED_FOR: Duration = Duration::from_secs(1);
/// At most this many pages are kept to be shared, the latest.
const SHARED_PAGES: usize = 16;

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
    pub max_live: usize,
}

#[derive(Clone)]
struct Pages {
    state: UiState,
    live: Arc<Semaphore>,
    background: Background,
    shared: Arc<Mutex<Shared>>,
}

/// What requests share, and when it was made.
#[derive(Default)]
struct Shared {
    apps: Option<(Instant, Arc<Vec<AppReport>>)>,
    pages: VecDeque<(Instant, Address, Arc<Rendered>)>,
}

/// A page, rendered.
struct Rendered {
    status: StatusCode,
    fingerprint: u64,
    document: String,
    live: String,
}

/// Routes of the pages, which are computed in the background.
pub fn router(state: UiState, background: Background) -> Router {
    let live = Arc::new(Semaphore::new(state.max_live));
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
        .with_state(Pages { state, live, background, shared: Arc::default() })
}

/// Nothing may embed, read, guess or store a response.
pub async fn protected(mut response: Response) -> Response {
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

/// A page, by its address.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Address {
    Apps(AppsQuery),
    App(AppQuery),
    Nodes,
    Cost,
    Replica,
}

async fn apps(State(pages): State<Pages>, headers: HeaderMap, Query(query): Query<AppsQuery>) -> Response {
    pages.answer(Address::Apps(query), &headers).await
}

async fn app(State(pages): State<Pages>, headers: HeaderMap, Query(query): Query<AppQuery>) -> Response {
    pages.answer(Address::App(query), &headers).await
}

async fn nodes(State(pages): State<Pages>, headers: HeaderMap) -> Response {
    pages.answer(Address::Nodes, &headers).await
}

async fn cost(State(pages): State<Pages>, headers: HeaderMap) -> Response {
    pages.answer(Address::Cost, &headers).await
}

async fn replica(State(pages): State<Pages>, headers: HeaderMap) -> Response {
    pages.answer(Address::Replica, &headers).await
}

impl Pages {
    /// The document; its live part only; or live updates, by the type that the client accepts.
    async fn answer(self, address: Address, headers: &HeaderMap) -> Response {
        let accept = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
        if accept == "text/event-stream" {
            return match self.live.clone().try_acquire_owned() {
                Ok(permit) => Sse::new(self.updates(address, permit)).into_response(),
                Err(_) => {
                    (StatusCode::SERVICE_UNAVAILABLE, "too many pages are open: reload this one\n").into_response()
                }
            };
        }
        let Some(page) = self.rendered(&address).await else {
            return StatusCode::INTERNAL_SERVER_ERROR.into_response();
        };
        let html = if accept == "application/x-live" { page.live.clone() } else { page.document.clone() };
        (page.status, [(CONTENT_TYPE, "text/html; charset=utf-8")], html).into_response()
    }

    /// A page, at most a second old; `None` if rendering it panics.
    async fn rendered(&self, address: &Address) -> Option<Arc<Rendered>> {
        if let Some(page) = self.shared_page(address) {
            return Some(page);
        }
        let (pages, address) = (self.clone(), address.clone());
        // Another request may have rendered it while this one waited.
        self.background.run(move || pages.shared_page(&address).unwrap_or_else(|| pages.render(address))).await
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn shared_page(&self, address: &Address) -> Option<Arc<Rendered>> {
        let now = clock::instant();
        let mut shared = self.shared();
        shared.pages.retain(|(at, ..)| now.saturating_duration_since(*at) < SHARED_FOR);
        shared.pages.iter().find(|(_, page_address, _)| page_address == address).map(|(.., page)| page.clone())
    }

    fn render(&self, address: Address) -> Arc<Rendered> {
        let now = Now { at: clock::instant(), wall: clock::now() };
        let replica = (self.state.replica)();
        let rendered = self.with_page(&address, now, |page| {
            let live = page.live(&replica, now.wall);
            Rendered {
                status: if page.is_found() { StatusCode::OK } else { StatusCode::NOT_FOUND },
                fingerprint: page.fingerprint(&replica),
                document: page.document(&live),
                live,
            }
        });
        let rendered = Arc::new(rendered);
        let mut shared = self.shared();
        shared.pages.truncate(SHARED_PAGES - 1);
        shared.pages.push_front((clock::instant(), address, rendered.clone()));
        rendered
    }

    /// Borrows the page of an address, from what it shows now.
    fn with_page<T>(&self, address: &Address, now: Now, then: impl FnOnce(&Page<'_>) -> T) -> T {
        let (snapshot, history) = (self.state.snapshot.load(), self.state.history.load());
        match address {
            Address::Apps(query) => then(&Page::Apps(&self.apps(now), query)),
            Address::App(query) => {
                let report = views::application(&snapshot, &history, &query.namespace, &query.name, now.wall);
                then(&Page::App(&report, query))
            }
            Address::Nodes => then(&Page::Nodes(&views::nodes(&snapshot, &history, None, now))),
            Address::Cost => then(&Page::Cost(&views::costs(&snapshot, &history, None))),
            Address::Replica => then(&Page::Replica),
        }
    }

    /// Reports of all applications, at most a second old.
    fn apps(&self, now: Now) -> Arc<Vec<AppReport>> {
        let shared = self.shared().apps.clone();
        if let Some((_, apps)) = shared.filter(|(at, _)| now.at.saturating_duration_since(*at) < SHARED_FOR) {
            return apps;
        }
        let (snapshot, history) = (self.state.snapshot.load(), self.state.history.load());
        let apps = Arc::new(views::apps(&snapshot, &history, None, now.wall));
        self.shared().apps = Some((clock::instant(), apps.clone()));
        apps
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
                let page = tokio::select! {
                    () = updates.pages.state.stop.cancelled() => return None,
                    page = updates.pages.rendered(&updates.address) => page?,
                };
                let now = clock::instant();
                let is_due = updates
                    .last
                    .is_none_or(|(sent, at)| sent != page.fingerprint || now.saturating_duration_since(at) >= REFRESH);
                if is_due {
                    updates.last = Some((page.fingerprint, now));
                    // A JSON string is one line, as an event needs it.
                    let data = serde_json::to_string(&page.live).unwrap_or_default();
                    return Some((Ok(Event::default().event("page").data(data)), updates));
                }
            }
        })
    }
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

/// Refuses requests to another name, and those that a page of another site makes, before anything is computed: it could not read
/// the response, but it could cause the work. A link on another site works.
pub(crate) async fn refuse_foreign(State(names): State<HostNames>, request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    let text = if !host(&parts).is_some_and(|host| names.accept(host)) {
        "this name is not answered, because any web site could use it to read this page: \
         expected an address, localhost, or a name in --debug-hosts (the chart's debugHosts)\n"
    } else if is_by_foreign_page(&parts.headers) {
        "requests by pages of other sites are not answered\n"
    } else {
        return next.run(Request::from_parts(parts, body)).await;
    };
    (StatusCode::FORBIDDEN, text).into_response()
}

/// The host that a request names: that of an absolute target, which HTTP/2 always has, otherwise `Host` (RFC 9112, section 3.2.2).
fn host(parts: &Parts) -> Option<&str> {
    let mut hosts = parts.headers.get_all(HOST).iter();
    match (parts.uri.authority(), hosts.next(), hosts.next()) {
        // One that is no text is an error in any case.
        (Some(authority), host, None) if host.is_none_or(|host| host.to_str().is_ok()) => Some(authority.as_str()),
        (None, Some(host), None) => host.to_str().ok(),
        _ => None,
    }
}

/// Whether a browser says that a page of another site makes the request (Fetch Metadata, <https://www.w3.org/TR/fetch-metadata/>).
fn is_by_foreign_page(headers: &HeaderMap) -> bool {
    let is = |name: &str, value: &str| headers.get(name).is_some_and(|header| header == value);
    let is_foreign = is("sec-fetch-site", "cross-site") || is("sec-fetch-site", "same-site");
    is_foreign && !(is("sec-fetch-mode", "navigate") && is("sec-fetch-dest", "document"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[tokio::test]
    async fn requests_share_a_page_of_the_same_address() {
        let rendered = Arc::new(AtomicUsize::new(0));
        let count = rendered.clone();
        let replica = move || {
            count.fetch_add(1, Ordering::SeqCst);
            ReplicaReport {
                identity: "usher-1_ab12".to_owned(),
                namespace: "usher".to_owned(),
                state: "leader",
                leader: None,
                is_complete: true,
                unseen: None,
                deletions: "no pods are deleted".to_owned(),
                withheld: None,
                policies_differ: None,
                certificate_until: None,
                port: 6060,
                links: ui::Links::default(),
                since: String::new(),
            }
        };
        let state = UiState {
            snapshot: Arc::default(),
            history: Arc::default(),
            replica: Arc::new(replica),
            stop: CancellationToken::new(),
            max_live: 1,
        };
        let live = Arc::new(Semaphore::new(1));
        let pages = Pages { state, live, background: Background::default(), shared: Arc::default() };
        let all: Vec<_> = futures::future::join_all((0..20).map(|_| pages.rendered(&Address::Cost)))
            .await
            .into_iter()
            .flatten()
            .collect();
        assert_eq!((all.len(), rendered.load(Ordering::SeqCst)), (20, 1));
        assert!(all.iter().all(|page| Arc::ptr_eq(page, &all[0]) && page.document.contains(&page.live)));
        // Another page, and the same page of another query, are not shared; the latest are kept.
        pages.rendered(&Address::Nodes).await.expect("a page");
        for number in 0..SHARED_PAGES + 3 {
            let query = AppsQuery { q: number.to_string(), ..AppsQuery::default() };
            pages.rendered(&Address::Apps(query)).await.expect("a page");
        }
        assert_eq!(rendered.load(Ordering::SeqCst), SHARED_PAGES + 5);
        assert!(pages.shared().pages.len() <= SHARED_PAGES);
        // A page that is a second old is rendered again.
        pages.shared().pages.iter_mut().for_each(|(at, ..)| *at = at.checked_sub(SHARED_FOR).expect("a time"));
        let again = pages.rendered(&Address::Cost).await.expect("a page");
        assert!(!Arc::ptr_eq(&again, &all[0]) && rendered.load(Ordering::SeqCst) == SHARED_PAGES + 6);
    }

    #[test]
    fn name_in_an_absolute_target_counts_and_not_the_header() {
        let stated = |target: &str, hosts: &[&str]| {
            let mut request = Request::get(target);
            for host in hosts {
                request = request.header(HOST, *host);
            }
            let (parts, _) = request.body(axum::body::Body::empty()).unwrap().into_parts();
            host(&parts).map(str::to_owned)
        };
        assert_eq!(stated("/", &["localhost"]).as_deref(), Some("localhost"));
        assert_eq!(stated("http://evil.example/", &["localhost"]).as_deref(), Some("evil.example"));
        assert_eq!(stated("http://localhost/", &[]).as_deref(), Some("localhost"));
        assert_eq!(stated("/", &[]), None);
        assert_eq!(stated("/", &["localhost", "localhost"]), None);
    }

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
