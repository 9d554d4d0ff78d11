//! Serves `/livez`, `/readyz` and `/metrics`, and nothing else, on a separate port.

use axum::Router;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use crate::runtime::ready::Readiness;
use crate::telemetry::registry::Registry;

#[derive(Clone)]
struct Admin {
    ready: Readiness,
    registry: Registry,
}

/// Routes of the plain HTTP port.
pub fn router(ready: Readiness, registry: Registry) -> Router {
    Router::new()
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics_page))
        .with_state(Admin { ready, registry })
}

async fn readyz(State(admin): State<Admin>) -> Response {
    let missing = admin.ready.missing();
    if missing.is_empty() {
        return "ok\n".into_response();
    }
    (StatusCode::SERVICE_UNAVAILABLE, format!("waiting for: {}\n", missing.join(", "))).into_response()
}

async fn metrics_page(State(admin): State<Admin>) -> Response {
    match admin.registry.render() {
        Ok(text) => {
            let mut response = text.into_response();
            response
                .headers_mut()
                .insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8"));
            response
        }
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}
