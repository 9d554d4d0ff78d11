//! Serves `/debug/apps`, `/debug/why`, `/debug/cost`, `/debug/nodes` and the web page on a separate port, which listens on loopback
//! and is reached by port-forward: pod names and termination messages must not be visible to every client that may scrape metrics.

use std::sync::Arc;

use arc_swap::ArcSwap;
use axum::Router;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::{from_fn_with_state, map_response};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::ui::{self, HostNames, UiState};
use usher_core::leader::LeaderState;
use usher_core::snapshot::Snapshot;
use usher_report::views::{self, History};
use usher_runtime::background::Background;
use usher_runtime::clock;
use usher_spark::time::{Now, whole_second};

/// Response header with the state of the replica that answers: `leader`, `follower`, or `no-leader` when there is no
/// leader or the API server is unreachable, so that the data may be stale.
pub const LEADER_STATE_HEADER: &str = "spark-usher-leader-state";

/// Response header with the resources that the replica does not see, and since when, if there are any.
pub const UNSEEN_HEADER: &str = "spark-usher-unseen";

/// Response header with the time since when the replica remembers what has exited, RFC 3339.
pub const SINCE_HEADER: &str = "spark-usher-since";

/// State that the debug routes show.
#[derive(Clone)]
pub struct DebugState {
    /// The current snapshot.
    pub snapshot: Arc<ArcSwap<Snapshot>>,
    /// The latest exits, and what the recovery found and did.
    pub history: Arc<ArcSwap<History>>,
    /// Leader state of this replica.
    pub leader_state: Arc<dyn Fn() -> LeaderState + Send + Sync>,
    /// The resources that this replica does not see.
    pub unseen: Arc<dyn Fn() -> Option<String> + Send + Sync>,
    /// When this replica started.
    pub since: Timestamp,
}

/// Routes of the debug port, and those of the web page. Only requests to these names are answered.
pub fn router(shown: DebugState, page: Option<UiState>, names: HostNames) -> Router {
    let background = Background::default();
    let page = page.map_or_else(Router::new, |page| ui::router(page, background.clone()));
    let all = routes(Debug { shown, background }).merge(page).layer(from_fn_with_state(names, ui::refuse_foreign));
    all.layer(map_response(ui::protected))
}

#[derive(Clone)]
struct Debug {
    shown: DebugState,
    background: Background,
}

fn routes(debug: Debug) -> Router {
    Router::new()
        .route("/debug/apps", get(apps))
        .route("/debug/why", get(why))
        .route("/debug/cost", get(cost))
        .route("/debug/nodes", get(nodes))
        .with_state(debug)
}

#[derive(Deserialize)]
struct Apps {
    namespace: Option<String>,
}

async fn apps(State(debug): State<Debug>, Query(query): Query<Apps>) -> Response {
    let report = move |snapshot: &Snapshot, history: &History| {
        json(&views::apps(snapshot, history, query.namespace.as_deref(), clock::now()))
    };
    debug.answer(report).await
}

async fn cost(State(debug): State<Debug>, Query(query): Query<Apps>) -> Response {
    debug.answer(move |snapshot, history| json(&views::costs(snapshot, history, query.namespace.as_deref()))).await
}

#[derive(Deserialize)]
struct Nodes {
    name: Option<String>,
}

async fn nodes(State(debug): State<Debug>, Query(query): Query<Nodes>) -> Response {
    let report = move |snapshot: &Snapshot, history: &History| {
        let now = Now { at: clock::instant(), wall: clock::now() };
        json(&views::nodes(snapshot, history, query.name.as_deref(), now))
    };
    debug.answer(report).await
}

#[derive(Deserialize)]
struct Why {
    name: String,
    namespace: Option<String>,
}

async fn why(State(debug): State<Debug>, query: Result<Query<Why>, QueryRejection>) -> Response {
    let Ok(Query(query)) = query else {
        return (StatusCode::BAD_REQUEST, "expected ?name=POD or ?name=APP, and optionally &namespace=NAMESPACE\n")
            .into_response();
    };
    let report = move |snapshot: &Snapshot, history: &History| {
        json(&views::why(snapshot, history, &query.name, query.namespace.as_deref(), clock::now()))
    };
    debug.answer(report).await
}

impl Debug {
    /// Answers with a report, which is computed in the background.
    async fn answer(
        self,
        report: impl FnOnce(&Snapshot, &History) -> serde_json::Result<Vec<u8>> + Send + 'static,
    ) -> Response {
        let DebugState { snapshot, history, leader_state, unseen, since } = self.shown;
        match self.background.run(move || report(&snapshot.load(), &history.load())).await {
            Some(Ok(text)) => {
                let mut response = text.into_response();
                let headers = response.headers_mut();
                headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
                headers.insert(LEADER_STATE_HEADER, HeaderValue::from_static((leader_state)().as_str()));
                if let Ok(since) = HeaderValue::try_from(whole_second(since).to_string()) {
                    headers.insert(SINCE_HEADER, since);
                }
                if let Some(unseen) = (unseen)().and_then(|text| HeaderValue::try_from(text).ok()) {
                    headers.insert(UNSEEN_HEADER, unseen);
                }
                response
            }
            Some(Err(error)) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
            None => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        }
    }
}

fn json(value: &impl Serialize) -> serde_json::Result<Vec<u8>> {
    let mut text = serde_json::to_vec_pretty(value)?;
    text.push(b'\n');
    Ok(text)
}
