//! A client that calls webhooks as an API server does (client-go's transport): HTTP/1.1, at most 25 idle connections per host, no
//! TLS resumption, and a POST is not repeated after its connection broke. Its host name stands for a Service: each new connection
//! goes to a ready replica.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its part of it")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use axum::http::{Request, StatusCode, Uri};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use tokio::net::TcpStream;
use tower::Service;

/// The replicas to which new connections go, in turn.
#[derive(Clone, Default)]
pub struct Replicas(Arc<(ArcSwap<Vec<SocketAddr>>, AtomicUsize)>);

impl Replicas {
    pub fn set(&self, addresses: Vec<SocketAddr>) {
        self.0.0.store(Arc::new(addresses));
    }

    fn pick(&self) -> std::io::Result<SocketAddr> {
        let all = self.0.0.load();
        let index = self.0.1.fetch_add(1, Ordering::Relaxed);
        all.get(index % all.len().max(1)).copied().ok_or_else(|| std::io::Error::other("no replica is ready"))
    }
}

impl Service<Uri> for Replicas {
    type Response = TokioIo<TcpStream>;
    type Error = std::io::Error;
    type Future =
        std::pin::Pin<Box<dyn std::future::Future<Output = Result<Self::Response, Self::Error>> + Send + 'static>>;

    fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), Self::Error>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let address = self.pick();
        Box::pin(async move {
            let stream = TcpStream::connect(address?).await?;
            stream.set_nodelay(true)?;
            Ok(TokioIo::new(stream))
        })
    }
}

/// The client.
#[derive(Clone)]
pub struct Caller {
    client: Client<hyper_rustls::HttpsConnector<Replicas>, Full<Bytes>>,
    url: String,
}

impl Caller {
    /// A client that trusts this bundle (PEM) and calls this name.
    pub fn new(bundle: &str, name: &str, replicas: &Replicas) -> Caller {
        let mut roots = rustls::RootCertStore::empty();
        roots.add_parsable_certificates(CertificateDer::pem_slice_iter(bundle.as_bytes()).map(Result::unwrap));
        let mut tls = rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        tls.resumption = rustls::client::Resumption::disabled();
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(tls)
            .https_only()
            .enable_http1()
            .wrap_connector(replicas.clone());
        let client = Client::builder(TokioExecutor::new())
            .pool_max_idle_per_host(25)
            .pool_idle_timeout(Duration::from_secs(90))
            .pool_timer(TokioTimer::new())
            .retry_canceled_requests(false)
            .build(connector);
        Caller { client, url: format!("https://{name}/mutate?timeout=10s") }
    }

    /// Sends a review; returns the response, or the error.
    pub async fn review(&self, body: &Bytes) -> Result<(StatusCode, Bytes), String> {
        let request = Request::post(&self.url).header("content-type", "application/json");
        let request = request.body(Full::new(body.clone())).unwrap();
        let chain = |error: &dyn std::error::Error| {
            let mut text = error.to_string();
            let mut source = error.source();
            while let Some(error) = source {
                text = format!("{text}: {error}");
                source = error.source();
            }
            text
        };
        let response = self.client.request(request).await.map_err(|error| chain(&error))?;
        let (parts, body) = response.into_parts();
        let body = body.collect().await.map_err(|error| chain(&error))?.to_bytes();
        Ok((parts.status, body))
    }

    /// Sends a review that must be answered with 200; otherwise returns the error.
    pub async fn review_error(&self, body: &Bytes) -> Option<String> {
        match self.review(body).await {
            Ok((StatusCode::OK, answer)) if answer.windows(14).any(|bytes| bytes == b"\"allowed\":true") => None,
            Ok((status, answer)) => Some(format!("{status} {}", String::from_utf8_lossy(&answer))),
            Err(error) => Some(error),
        }
    }
}
