//! The real HTTPS endpoint in this process, and a client that trusts it.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its part of it")]

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use axum::http::{Request, Response, StatusCode};
use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use http_body_util::{BodyExt, Full};
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::sync::CancellationToken;
use usher_core::policy::Policies;
use usher_core::snapshot::{Namespace, Snapshot};
use usher_net::listener::capacity::Capacity;
use usher_net::listener::metrics::ListenersMetrics;
use usher_net::listener::server::{self, Deadlines, Listener, Shutdown};
use usher_net::telemetry::registry::Registry;
use usher_net::tls::ca::{Authority, Pair};
use usher_net::tls::clients::Clients;
use usher_net::tls::load::load;
use usher_net::tls::serving::Serving;
use usher_runtime::clock;
use usher_server::http::handlers::{Handler, Handlers, Namespaces, ReviewState};
use usher_server::http::limits::Limits;
use usher_server::http::metrics::Metrics;
use usher_server::http::webhook;

pub type HttpClient = Client<hyper_rustls::HttpsConnector<HttpConnector>, Full<Bytes>>;

/// A running endpoint.
pub struct Endpoint {
    pub address: SocketAddr,
    pub authority: Authority,
    pub registry: Registry,
    pub serving: Arc<Serving>,
    pub snapshot: Arc<ArcSwap<Snapshot>>,
    pub stop: CancellationToken,
    pub served: tokio::task::JoinHandle<std::io::Result<()>>,
}

/// Namespaces that a request finds, and the number of requests.
#[derive(Debug, Default)]
pub struct NewNamespaces {
    pub found: BTreeMap<String, Arc<Namespace>>,
    pub asked: AtomicUsize,
    /// Whether the API server does not answer.
    pub hangs: bool,
}

impl Namespaces for NewNamespaces {
    fn find(&self, name: Arc<str>, _: std::net::IpAddr) -> BoxFuture<'static, Option<Arc<Namespace>>> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        if self.hangs {
            return std::future::pending().boxed();
        }
        std::future::ready(self.found.get(&*name).cloned()).boxed()
    }
}

/// Settings of an endpoint.
#[derive(Default)]
pub struct Setup {
    pub answer: Option<Arc<dyn Handler>>,
    pub namespaces: Arc<NewNamespaces>,
    pub policies: Policies,
    pub limits: Limits,
    pub deadlines: Deadlines,
    pub capacity: Option<Capacity>,
    pub clients: Option<Arc<Clients>>,
}

/// A client certificate of this authority.
pub fn client_certificate(authority: &Authority, name: &str) -> Pair {
    let key = rcgen::KeyPair::from_pem(&authority.key_pem()).unwrap();
    let issuer = rcgen::Issuer::from_ca_cert_pem(authority.pem(), key).unwrap();
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(rcgen::DnType::CommonName, name);
    params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
    let key = rcgen::KeyPair::generate().unwrap();
    Pair { certificate: params.signed_by(&key, &issuer).unwrap().pem(), key: key.serialize_pem() }
}

/// A raw connection from this address, after the handshake.
pub async fn connect(
    ca: &str,
    to: SocketAddr,
    from: IpAddr,
    certificate: Option<&Pair>,
) -> std::io::Result<TlsStream<TcpStream>> {
    connect_speaking(b"http/1.1", ca, to, from, certificate).await
}

/// The same with this ALPN protocol.
pub async fn connect_speaking(
    protocol: &[u8],
    ca: &str,
    to: SocketAddr,
    from: IpAddr,
    certificate: Option<&Pair>,
) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(ca.as_bytes()).unwrap()).unwrap();
    let config = rustls::ClientConfig::builder().with_root_certificates(roots);
    let mut config = match certificate {
        None => config.with_no_client_auth(),
        Some(pair) => {
            let chain = vec![CertificateDer::from_pem_slice(pair.certificate.as_bytes()).unwrap()];
            config.with_client_auth_cert(chain, PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).unwrap()).unwrap()
        }
    };
    config.alpn_protocols = vec![protocol.to_vec()];
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::new(from, 0))?;
    // A small buffer, so that unread responses block the server soon.
    socket.set_recv_buffer_size(4096)?;
    let stream = socket.connect(to).await?;
    TlsConnector::from(Arc::new(config)).connect("localhost".try_into().unwrap(), stream).await
}

impl Setup {
    pub fn start(self) -> Endpoint {
        usher_net::tls::install_provider();
        let authority = Authority::new("test", clock::now()).unwrap();
        let pair = authority.serve(&["localhost"], &["127.0.0.1".parse().unwrap()]).unwrap();
        let serving = Serving::new(load(pair.certificate.as_bytes(), pair.key.as_bytes(), clock::now()).unwrap());
        let registry = Registry::default();
        let metrics = Arc::new(Metrics::register(&registry).unwrap());
        let listeners = ListenersMetrics::register(&registry, &["webhook"]).unwrap();
        let snapshot = Arc::new(ArcSwap::from_pointee(Snapshot::default()));
        let policies = Arc::new(ArcSwap::from_pointee(self.policies));
        let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.address();
        let listener = match self.capacity {
            Some(capacity) => listener.limited(capacity, listeners.listener("webhook")),
            None => listener,
        };
        let stop = CancellationToken::new();
        let state = ReviewState {
            snapshot: snapshot.clone(),
            policies,
            changed: Arc::default(),
            settle: Duration::from_secs(300),
            own_account: Arc::new(ArcSwapOption::from_pointee(
                "system:serviceaccount:spark-usher:spark-usher".to_owned(),
            )),
        };
        let mut answers = Handlers::new(state, self.namespaces);
        if let Some(mutate) = self.answer {
            answers.mutate = mutate;
        }
        let routes = webhook::router(answers, self.limits, metrics.clone());
        let ending = Shutdown { draining: stop.clone(), stop: stop.clone(), drain: Duration::from_secs(5) };
        let config = Arc::new(serving.config_for(self.clients));
        let served =
            tokio::spawn(server::serve_tls(listener, config, routes, self.deadlines, listeners.handshakes, ending));
        Endpoint { address, authority, registry, serving, snapshot, stop, served }
    }
}

impl Endpoint {
    fn roots(&self) -> rustls::RootCertStore {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.authority.pem().as_bytes()).unwrap()).unwrap();
        roots
    }

    /// A pooling client, with HTTP/2 if requested and offered.
    pub fn client(&self, http2: bool) -> HttpClient {
        let tls = rustls::ClientConfig::builder().with_root_certificates(self.roots()).with_no_client_auth();
        let https = HttpsConnectorBuilder::new().with_tls_config(tls).https_only();
        let connector = if http2 { https.enable_http2().build() } else { https.enable_http1().build() };
        Client::builder(TokioExecutor::new()).build(connector)
    }

    pub fn url(&self, path: &str) -> String {
        format!("https://127.0.0.1:{}{path}", self.address.port())
    }

    /// Posts JSON to `/mutate` over HTTP/1.1.
    pub async fn post(&self, body: impl Into<Bytes>) -> (StatusCode, Bytes) {
        self.post_to("/mutate?timeout=10s", body).await
    }

    pub async fn post_to(&self, path: &str, body: impl Into<Bytes>) -> (StatusCode, Bytes) {
        let (parts, body) = self.send(&self.client(false), path, "application/json", body).await.into_parts();
        (parts.status, body)
    }

    pub async fn send(
        &self,
        client: &HttpClient,
        path: &str,
        content_type: &str,
        body: impl Into<Bytes>,
    ) -> Response<Bytes> {
        let request =
            Request::post(self.url(path)).header("content-type", content_type).body(Full::new(body.into())).unwrap();
        let (parts, body) = client.request(request).await.unwrap().into_parts();
        Response::from_parts(parts, body.collect().await.unwrap().to_bytes())
    }

    /// A raw connection, after the handshake.
    pub async fn connect(&self) -> TlsStream<TcpStream> {
        let mut config = rustls::ClientConfig::builder().with_root_certificates(self.roots()).with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let stream = TcpStream::connect(self.address).await.unwrap();
        TlsConnector::from(Arc::new(config)).connect("127.0.0.1".try_into().unwrap(), stream).await.unwrap()
    }
}
