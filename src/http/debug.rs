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

use crate::lifecycle::Exit;
use crate::lifecycle::report;
use crate::snapshot::Snapshot;

#[derive(Clone)]
struct Debug {
    snapshot: Arc<ArcSwap<Snapshot>>,
    exits: Arc<ArcSwap<Vector<Exit>>>,
}

/// The routes of the debug port.
pub fn router(snapshot: Arc<ArcSwap<Snapshot>>, exits: Arc<ArcSwap<Vector<Exit>>>) -> Router {
    Router::new().route("/debug/apps", get(apps)).route("/debug/why", get(why)).with_state(Debug { snapshot, exits })
}

#[derive(Deserialize)]
struct Apps {
    namespace: Option<String>,
}

async fn apps(State(debug): State<Debug>, Query(query): Query<Apps>) -> Response {
    json(&report::apps(&debug.snapshot.load(), &debug.exits.load(), query.namespace.as_deref()))
}

#[derive(Deserialize)]
struct Why {
    name: String,
    namespace: Option<String>,
}

async fn why(State(debug): State<Debug>, query: Result<Query<Why>, QueryRejection>) -> Response {
    let Ok(Query(query)) = query else {
        return (StatusCode::BAD_REQUEST, "expected ?name=POD or ?name=APP, and perhaps &namespace=NAMESPACE\n")
            .into_response();
    };
    let snapshot = debug.snapshot.load();
    json(&report::why(&snapshot, &debug.exits.load(), &query.name, query.namespace.as_deref()))
}

fn json(value: &impl Serialize) -> Response {
    match serde_json::to_vec_pretty(value) {
        Ok(mut text) => {
            text.push(b'\n');
            let mut response = text.into_response();
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            response
        }
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}
