//! Serves `/debug/apps`, `/debug/why`, `/debug/cost`, `/debug/nodes` and the web page on a separate port, which listens on loopback
//! and is reached by port-forward: pod names and termination messages must not be visible to every client that may scrape metrics.

use std::sync::Arc;

use arc_swap::ArcSwap;
use axum::Router;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde::{Deserialize, Serialize};

use super::ui::{self, HostNames, UiState};
use crate::leader::LeaderState;
use crate::runtime::clock;
use crate::snapshot::Snapshot;
use crate::time::Now;
use crate::views::{self, History};

/// Response header with the state of the replica that answers: `leader`, `follower`, or `no-leader` when there is no
/// leader or the API server is unreachable, so that the data may be stale.
pub const LEADER_STATE_HEADER: &str = "spark-usher-leader-state";

/// State that the debug routes show.
#[derive(Clone)]
pub struct DebugState {
    /// The current snapshot.
    pub snapshot: Arc<ArcSwap<Snapshot>>,
    /// The latest exits, and what the recovery found and did.
    pub history: Arc<ArcSwap<History>>,
    /// Leader state of this replica.
    pub leader_state: Arc<dyn Fn() -> LeaderState + Send + Sync>,
}

/// Routes of the debug port, and those of the web page. Only requests to these names are answered.
pub fn router(shown: DebugState, page: Option<UiState>, names: HostNames) -> Router {
    let page = page.map_or_else(Router::new, ui::router);
    routes(shown).merge(page).layer(from_fn_with_state(names, ui::refuse_foreign))
}

fn routes(shown: DebugState) -> Router {
    Router::new()
        .route("/debug/apps", get(apps))
        .route("/debug/why", get(why))
        .route("/debug/cost", get(cost))
        .route("/debug/nodes", get(nodes))
        .with_state(shown)
}

#[derive(Deserialize)]
struct Apps {
    namespace: Option<String>,
}

async fn apps(State(shown): State<DebugState>, Query(query): Query<Apps>) -> Response {
    let (snapshot, history) = (shown.snapshot.load(), shown.history.load());
    json(&shown, &views::apps(&snapshot, &history, query.namespace.as_deref(), clock::now()))
}

async fn cost(State(shown): State<DebugState>, Query(query): Query<Apps>) -> Response {
    json(&shown, &views::costs(&shown.history.load(), query.namespace.as_deref()))
}

#[derive(Deserialize)]
struct Nodes {
    name: Option<String>,
}

async fn nodes(State(shown): State<DebugState>, Query(query): Query<Nodes>) -> Response {
    let (snapshot, history) = (shown.snapshot.load(), shown.history.load());
    let now = Now { at: clock::instant(), wall: clock::now() };
    json(&shown, &views::nodes(&snapshot, &history, query.name.as_deref(), now))
}

#[derive(Deserialize)]
struct Why {
    name: String,
    namespace: Option<String>,
}

async fn why(State(shown): State<DebugState>, query: Result<Query<Why>, QueryRejection>) -> Response {
    let Ok(Query(query)) = query else {
        return (StatusCode::BAD_REQUEST, "expected ?name=POD or ?name=APP, and optionally &namespace=NAMESPACE\n")
            .into_response();
    };
    let (snapshot, history) = (shown.snapshot.load(), shown.history.load());
    json(&shown, &views::why(&snapshot, &history, &query.name, query.namespace.as_deref(), clock::now()))
}

fn json(shown: &DebugState, value: &impl Serialize) -> Response {
    match serde_json::to_vec_pretty(value) {
        Ok(mut text) => {
            text.push(b'\n');
            let mut response = text.into_response();
            let leader_state = (shown.leader_state)().as_str();
            let headers = response.headers_mut();
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            headers.insert(LEADER_STATE_HEADER, HeaderValue::from_static(leader_state));
            response
        }
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}
