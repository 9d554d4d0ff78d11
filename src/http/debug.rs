//! `/debug/apps` and `/debug/why`, on a port of their own that listens on loopback and is reached by port-forward: names of
//! pods and what they said are not for everybody who may scrape metrics.

use std::sync::Arc;

use arc_swap::ArcSwap;
use axum::Router;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use imbl::Vector;
use serde::{Deserialize, Serialize};

use crate::lifecycle::{Exit, Standing, report};
use crate::runtime::clock;
use crate::snapshot::Snapshot;

/// Tells how the replica that answers stands: `leading`, `led`, or `leaderless`, when nobody leads or the API server is out
/// of its reach, and what it shows may be old.
pub const STANDING: &str = "spark-usher-standing";

/// What is shown.
#[derive(Clone)]
pub struct Shown {
    /// The present picture.
    pub snapshot: Arc<ArcSwap<Snapshot>>,
    /// The last ends.
    pub exits: Arc<ArcSwap<Vector<Exit>>>,
    /// How this replica stands.
    pub standing: Arc<dyn Fn() -> Standing + Send + Sync>,
}

/// The routes of the debug port.
pub fn router(shown: Shown) -> Router {
    Router::new().route("/debug/apps", get(apps)).route("/debug/why", get(why)).with_state(shown)
}

#[derive(Deserialize)]
struct Apps {
    namespace: Option<String>,
}

async fn apps(State(shown): State<Shown>, Query(query): Query<Apps>) -> Response {
    let (snapshot, exits) = (shown.snapshot.load(), shown.exits.load());
    json(&shown, &report::apps(&snapshot, &exits, query.namespace.as_deref(), clock::now()))
}

#[derive(Deserialize)]
struct Why {
    name: String,
    namespace: Option<String>,
}

async fn why(State(shown): State<Shown>, query: Result<Query<Why>, QueryRejection>) -> Response {
    let Ok(Query(query)) = query else {
        return (StatusCode::BAD_REQUEST, "expected ?name=POD or ?name=APP, and perhaps &namespace=NAMESPACE\n")
            .into_response();
    };
    let (snapshot, exits) = (shown.snapshot.load(), shown.exits.load());
    json(&shown, &report::why(&snapshot, &exits, &query.name, query.namespace.as_deref(), clock::now()))
}

fn json(shown: &Shown, value: &impl Serialize) -> Response {
    match serde_json::to_vec_pretty(value) {
        Ok(mut text) => {
            text.push(b'\n');
            let mut response = text.into_response();
            let standing = match (shown.standing)() {
                Standing::Leading => "leading",
                Standing::Led => "led",
                Standing::Leaderless => "leaderless",
            };
            let headers = response.headers_mut();
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            headers.insert(STANDING, HeaderValue::from_static(standing));
            response
        }
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}
