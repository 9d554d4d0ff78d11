//! Serves `/livez`, `/readyz` and `/metrics`, and nothing else, on a separate port.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use bytes::Bytes;

use usher_net::telemetry::registry::Registry;
use usher_runtime::background::Background;
use usher_runtime::clock;
use usher_runtime::ready::Readiness;

#[derive(Clone)]
struct Admin {
    ready: Readiness,
    registry: Registry,
    background: Background,
    page: Arc<Mutex<Option<MetricsPage>>>,
}

/// The metrics as they were rendered last.
#[derive(Clone, Debug)]
struct MetricsPage {
    text: Bytes,
    at: Instant,
    /// How long it is served.
    fresh_for: Duration,
}

/// A page is served for this many times as long as its rendering took: any number of scrapes takes at most a twentieth of one core, or
/// one rendering a second.
const SERVED: u32 = 20;
/// The longest time for which a page is served.
const MAX_SERVED: Duration = Duration::from_secs(1);

impl Admin {
    fn fresh(&self) -> Option<Bytes> {
        let page = self.page.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = page.as_ref().filter(|page| clock::instant().saturating_duration_since(page.at) < page.fresh_for);
        fresh.map(|page| page.text.clone())
    }

    fn render(&self) -> prometheus::Result<Bytes> {
        let began = clock::instant();
        let text = Bytes::from(self.registry.render()?);
        let at = clock::instant();
        let fresh_for = (at.saturating_duration_since(began) * SERVED).min(MAX_SERVED);
        let page = MetricsPage { text: text.clone(), at, fresh_for };
        *self.page.lock().unwrap_or_else(PoisonError::into_inner) = Some(page);
        Ok(text)
    }
}

/// Routes of the plain HTTP port.
pub fn router(ready: Readiness, registry: Registry) -> Router {
    Router::new()
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics_page))
        .with_state(Admin { ready, registry, background: Background::default(), page: Arc::default() })
}

async fn readyz(State(admin): State<Admin>) -> Response {
    let missing = admin.ready.missing();
    if missing.is_empty() {
        return "ok\n".into_response();
    }
    (StatusCode::SERVICE_UNAVAILABLE, format!("waiting for: {}\n", missing.join(", "))).into_response()
}

async fn metrics_page(State(admin): State<Admin>) -> Response {
    let rendered = match admin.fresh() {
        Some(text) => Some(Ok(text)),
        // Those that wait meanwhile get the same.
        None => {
            let rendering = admin.clone();
            admin.background.run(move || rendering.fresh().map_or_else(|| rendering.render(), Ok)).await
        }
    };
    match rendered.unwrap_or_else(|| Err(prometheus::Error::Msg("the metrics cannot be rendered".to_owned()))) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::{Body, to_bytes};
    use axum::http::Request;
    use prometheus::core::{Collector, Desc};
    use prometheus::proto::MetricFamily;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tower::ServiceExt;

    /// A collector that takes long, and counts.
    struct Slow(Desc, Arc<AtomicUsize>);

    impl Collector for Slow {
        fn desc(&self) -> Vec<&Desc> {
            vec![&self.0]
        }

        fn collect(&self) -> Vec<MetricFamily> {
            self.1.fetch_add(1, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(100));
            Vec::new()
        }
    }

    #[tokio::test]
    async fn metrics_are_rendered_once_for_all_that_ask_meanwhile() {
        let registry = Registry::default();
        registry.counter("runs_total", "Runs.").unwrap().inc();
        let rendered = Arc::new(AtomicUsize::new(0));
        let desc = Desc::new("slow".into(), "Slow.".into(), Vec::new(), Default::default()).unwrap();
        registry.register(Slow(desc, rendered.clone())).unwrap();
        let router = router(Readiness::default(), registry);
        let scrape = || async {
            let request = Request::get("/metrics").body(Body::empty()).unwrap();
            let response = router.clone().oneshot(request).await.unwrap();
            String::from_utf8(to_bytes(response.into_body(), 1 << 20).await.unwrap().to_vec()).unwrap()
        };
        let all = futures::future::join_all((0..64).map(|_| scrape())).await;
        assert!(all.iter().all(|text| text.contains("runs_total 1")));
        assert_eq!(rendered.load(Ordering::SeqCst), 1);
    }
}
