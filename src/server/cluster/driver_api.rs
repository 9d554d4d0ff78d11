//! Reads a running driver's view of its executors from Spark's REST API (`docs/spark.md#driver-rest-api`).
//!
//! A tenant's pod answers, so everything is bounded: the time, the bytes, the number of ports. No redirect is followed, and no
//! credential is sent.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{ACCEPT, HOST};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;

use usher_core::controller::{DriverAnswer, PollError};
use usher_core::drivers::DriverPoll;
use usher_core::policy::DriverAccess;
use usher_kube::request::{Error, call};
use usher_spark::conf::{AppConf, Ui};
use usher_spark::json::{BadList, Items};
use usher_spark::rest::{self, DriverMetrics, ExecutorSummary};

/// A poll must finish within this time, all ports and requests together,
const TIME_LIMIT: Duration = Duration::from_secs(3);
/// and the first one of a driver within this time more: Spark prepares its REST API with the first request, which takes seconds on
/// a busy driver, and writes a stack trace into the driver's log if the client has left by then.
const FIRST_ANSWER: Duration = Duration::from_secs(12);
/// The longest answer of Spark's version.
const MAX_VERSION: usize = 1 << 10;
/// The longest body of one response.
const MAX_BODY: usize = 16 << 20;
/// The longest body of metrics, which is kept whole while it is parsed.
const MAX_METRICS: usize = 1 << 20;
/// Maximum size of an error of the API server\'s proxy.
const MAX_PROXY_ERROR: usize = 16 << 10;
/// The configuration must be read within this time of it.
const CONF_LIMIT: Duration = Duration::from_secs(1);
/// The longest body of an environment: 105 kB with Spark's own class path.
const MAX_ENVIRONMENT: usize = 1 << 20;
/// Reasons of one response are kept up to this many bytes: each says little that the others do not.
const MAX_REASONS: usize = 256 << 10;
/// How many ports above the first one Spark tries if it is busy (`spark.port.maxRetries`).
const MAX_PORT_RETRIES: u16 = 16;

type Poll = dyn Fn(DriverPoll) -> BoxFuture<'static, DriverAnswer> + Send + Sync;

/// Polls drivers for their view.
#[derive(Clone)]
pub struct DriverApi(Arc<Poll>);

impl fmt::Debug for DriverApi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DriverApi")
    }
}

impl DriverApi {
    /// Over the network: at the drivers' pods, or by `client` through the API server's proxy.
    pub fn over_network(client: kube::Client) -> DriverApi {
        let network = Arc::new(Network { client, tls: any_certificate::config() });
        DriverApi::of(move |poll| {
            let network = network.clone();
            let is_longer = poll.is_first && poll.access == DriverAccess::Pod;
            let more = if is_longer { FIRST_ANSWER } else { Duration::ZERO };
            async move { network.poll(&poll, TIME_LIMIT + more).await }.boxed()
        })
    }

    /// Drivers that this function answers for.
    pub fn of(answer: impl Fn(DriverPoll) -> BoxFuture<'static, DriverAnswer> + Send + Sync + 'static) -> DriverApi {
        DriverApi(Arc::new(answer))
    }

    pub fn poll(&self, poll: DriverPoll) -> BoxFuture<'static, DriverAnswer> {
        (self.0)(poll)
    }
}

struct Network {
    client: kube::Client,
    tls: Arc<ClientConfig>,
}

type Body = UnsyncBoxBody<Bytes, anyhow::Error>;

impl Network {
    async fn poll(&self, poll: &DriverPoll, limit: Duration) -> DriverAnswer {
        match call(limit, async { Ok::<_, Error>(self.try_ports(poll).await) }).await {
            Ok(answer) => answer,
            Err(_) => DriverAnswer::Failed(PollError::Timeout),
        }
    }

    /// Tries the port on which the application was found last, and then the ports that Spark tries.
    async fn try_ports(&self, poll: &DriverPoll) -> DriverAnswer {
        let Ui { port, tls_port, .. } = poll.ui;
        let first = tls_port.unwrap_or(port);
        let others = (0..=MAX_PORT_RETRIES).filter_map(|offset| first.checked_add(offset));
        let mut error = PollError::Refused;
        for port in poll.port.into_iter().chain(others.filter(|port| Some(*port) != poll.port)) {
            match self.try_port(poll, port, tls_port.is_some()).await {
                Ok(answer) => return answer,
                // Another driver in the same pod, or none.
                Err(PollError::OtherApplication) => error = PollError::OtherApplication,
                Err(PollError::Refused) => {}
                Err(error) => return DriverAnswer::Failed(error),
            }
        }
        DriverAnswer::Failed(error)
    }

    async fn try_port(&self, poll: &DriverPoll, port: u16, has_tls: bool) -> Result<DriverAnswer, PollError> {
        match poll.access {
            DriverAccess::Proxy => {
                let scheme = if has_tls { "https" } else { "http" };
                let (namespace, name) = (poll.pod.namespace(), poll.pod.name());
                let base = format!("/api/v1/namespaces/{namespace}/pods/{scheme}:{name}:{port}/proxy");
                view(&mut Transport::Proxy(&self.client, base), poll, port).await
            }
            DriverAccess::Pod | DriverAccess::None => {
                let address: IpAddr = poll.address.parse().map_err(|_| PollError::Refused)?;
                let tls = has_tls.then(|| TlsConnector::from(self.tls.clone()));
                view(&mut Transport::Pod(Pod::connect((address, port), tls).await?), poll, port).await
            }
        }
    }
}

/// A driver's pod: one connection after the other, because a server may close each after its answer.
struct Pod {
    address: (IpAddr, u16),
    tls: Option<TlsConnector>,
    sender: SendRequest<Empty<Bytes>>,
    /// The connections, which end with this.
    connections: JoinSet<()>,
}

impl Pod {
    async fn connect(address: (IpAddr, u16), tls: Option<TlsConnector>) -> Result<Pod, PollError> {
        let mut connections = JoinSet::new();
        let sender = sender(address, tls.as_ref(), &mut connections).await?;
        Ok(Pod { address, tls, sender, connections })
    }

    /// A connection that is open.
    async fn ready(&mut self) -> Result<&mut SendRequest<Empty<Bytes>>, PollError> {
        if self.sender.ready().await.is_err() {
            return self.again().await;
        }
        Ok(&mut self.sender)
    }

    /// A new connection.
    async fn again(&mut self) -> Result<&mut SendRequest<Empty<Bytes>>, PollError> {
        self.sender = sender(self.address, self.tls.as_ref(), &mut self.connections).await?;
        Ok(&mut self.sender)
    }
}

async fn sender(
    address: (IpAddr, u16),
    tls: Option<&TlsConnector>,
    connections: &mut JoinSet<()>,
) -> Result<SendRequest<Empty<Bytes>>, PollError> {
    let connecting = async { TcpStream::connect(address).await.map_err(|error| self::connecting(&error)) };
    let within = async { Ok::<_, Error>(connecting.await) };
    let stream = call(TIME_LIMIT, within).await.map_err(|_| PollError::Timeout)??;
    let Some(tls) = tls else { return over(stream, connections).await };
    let stream = tls.connect(address.0.into(), stream).await;
    over(stream.map_err(|_| PollError::NotSpark)?, connections).await
}

async fn over<S>(stream: S, connections: &mut JoinSet<()>) -> Result<SendRequest<Empty<Bytes>>, PollError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|_| PollError::NotSpark)?;
    // It ends when the driver closes it; what was sent before can still be read.
    connections.spawn(connection.map(drop));
    Ok(sender)
}

/// Connections to a driver, or the API server's proxy.
enum Transport<'a> {
    Pod(Pod),
    Proxy(&'a kube::Client, String),
}

impl Transport<'_> {
    async fn get(&mut self, path: &str) -> Result<Response<Body>, PollError> {
        match self {
            Transport::Pod(pod) => {
                let host = SocketAddr::from(pod.address).to_string();
                let request = || {
                    let request = Request::get(path).header(HOST, &*host).header(ACCEPT, "application/json");
                    request.body(Empty::new()).map_err(|_| PollError::NotSpark)
                };
                let response = match pod.ready().await?.send_request(request()?).await {
                    Ok(response) => response,
                    // The driver closed the connection at the same time.
                    Err(_) => pod.again().await?.send_request(request()?).await.map_err(|_| PollError::NotSpark)?,
                };
                Ok(response.map(|body| body.map_err(anyhow::Error::new).boxed_unsync()))
            }
            Transport::Proxy(client, base) => {
                let request = Request::get([base.as_str(), path].concat()).body(kube::client::Body::empty());
                let response = client.send(request.map_err(|_| PollError::NotSpark)?).await;
                let response = response.map_err(|_| PollError::Unreachable)?;
                // The API server's own errors are statuses, not Spark's text.
                Ok(response.map(|body| body.map_err(anyhow::Error::new).boxed_unsync()))
            }
        }
    }
}

/// The view of the driver at the other end, if it runs this application.
async fn view(transport: &mut Transport<'_>, poll: &DriverPoll, port: u16) -> Result<DriverAnswer, PollError> {
    let app = poll.key.app.selector();
    if poll.is_first && matches!(transport, Transport::Pod(_)) {
        // The least that prepares the REST API. What it answers is decided by the next request.
        let response = transport.get("/api/v1/version").await?;
        _ = whole(response.into_body(), MAX_VERSION).await;
    }
    let response = transport.get(&format!("/api/v1/applications/{app}/allexecutors")).await?;
    let is_proxy = matches!(transport, Transport::Proxy(..));
    if is_proxy && matches!(response.status(), StatusCode::SERVICE_UNAVAILABLE | StatusCode::BAD_GATEWAY) {
        return Err(by_proxy(response.into_body()).await);
    }
    check(response.status())?;
    let Some(executors) = executors(response.into_body(), poll.max_rows).await? else {
        return Ok(DriverAnswer::Starting);
    };
    // After the executors: if no event was dropped until now, none was dropped before.
    let metrics = match transport.get("/metrics/json/").await {
        Ok(response) if response.status() == StatusCode::OK => {
            let body = whole(response.into_body(), MAX_METRICS).await.unwrap_or_default();
            rest::metrics(&body).unwrap_or_default()
        }
        // The servlet is disabled, or restricted: the view is incomplete.
        _ => DriverMetrics::default(),
    };
    // The rest of the answer does not wait for it.
    let reading = async { Ok::<_, Error>(conf(transport, app).await) };
    let conf = if poll.reads_conf { Box::pin(call(CONF_LIMIT, reading)).await.ok().flatten() } else { None };
    let conf = conf.map(Arc::new);
    Ok(DriverAnswer::View { port, executors, metrics, conf })
}

/// The configuration that the driver shows.
async fn conf(transport: &mut Transport<'_>, app: &str) -> Option<AppConf> {
    let response = transport.get(&format!("/api/v1/applications/{app}/environment")).await.ok()?;
    check(response.status()).ok()?;
    let body = whole(response.into_body(), MAX_ENVIRONMENT).await.ok()?;
    rest::environment(&body).ok()
}

/// Only a refused connection says that nothing listens.
fn connecting(error: &std::io::Error) -> PollError {
    if error.kind() == std::io::ErrorKind::ConnectionRefused { PollError::Refused } else { PollError::Unreachable }
}

/// What it means that the API server could not connect to the port. It states the error of its own connection (`dial tcp
/// 10.1.2.3:4040: connect: connection refused`); without a way to the pod it says something else, or its tunnel does.
async fn by_proxy(body: Body) -> PollError {
    let text = whole(body, MAX_PROXY_ERROR).await.unwrap_or_default();
    match String::from_utf8_lossy(&text).contains("connection refused") {
        true => PollError::Refused,
        false => PollError::Unreachable,
    }
}

fn check(status: StatusCode) -> Result<(), PollError> {
    match status {
        StatusCode::OK => Ok(()),
        StatusCode::NOT_FOUND => Err(PollError::OtherApplication),
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Err(PollError::Forbidden),
        status if status.is_redirection() => Err(PollError::Redirected),
        _ => Err(PollError::NotSpark),
    }
}

/// The rows of a response, at most `max_rows`; `None` if the driver is not ready.
async fn executors(mut body: Body, max_rows: usize) -> Result<Option<Vec<ExecutorSummary>>, PollError> {
    let (mut items, mut rows, mut length, mut reasons) = (Items::bare(), Vec::new(), 0, 0);
    // The beginning, to tell the text of a starting driver.
    let mut head: Vec<u8> = Vec::new();
    let mut is_list = true;
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|_| PollError::NotSpark)?.into_data() else { continue };
        length += data.len();
        if length > MAX_BODY {
            return Err(PollError::TooLarge);
        }
        let missing = (rest::STARTING.len() + 1).saturating_sub(head.len());
        head.extend_from_slice(data.get(..missing.min(data.len())).unwrap_or_default());
        let each = |mut row: ExecutorSummary| {
            reasons += row.remove_reason.as_deref().map_or(0, str::len);
            row.remove_reason = row.remove_reason.filter(|_| reasons <= MAX_REASONS);
            rows.push(row);
        };
        is_list = is_list
            && match items.feed(&data, each) {
                Err(BadList::TooLong(_)) => return Err(PollError::TooLarge),
                fed => fed.is_ok(),
            };
        if !is_list && !rest::STARTING.as_bytes().starts_with(&head) {
            return Err(PollError::NotSpark);
        }
        if rows.len() > max_rows {
            return Err(PollError::TooLarge);
        }
    }
    if head == rest::STARTING.as_bytes() {
        return Ok(None);
    }
    items.finish_bare().map_err(|_| PollError::NotSpark)?;
    Ok(Some(rows))
}

async fn whole(mut body: Body, max: usize) -> Result<Vec<u8>, PollError> {
    let mut whole = Vec::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|_| PollError::NotSpark)?.into_data() else { continue };
        if whole.len() + data.len() > max {
            return Err(PollError::TooLarge);
        }
        whole.extend_from_slice(&data);
    }
    Ok(whole)
}

/// TLS without authentication of the server: a driver's certificate is its tenant's own, and its view is trusted no more over
/// plain HTTP.
mod any_certificate {
    use std::sync::Arc;

    use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
    use rustls::crypto::ring::default_provider;
    use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
    use rustls::{ClientConfig, DigitallySignedStruct, Error, SignatureScheme};
    use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

    #[derive(Debug)]
    struct AnyCertificate(CryptoProvider);

    impl ServerCertVerifier for AnyCertificate {
        fn verify_server_cert(
            &self,
            _: &CertificateDer<'_>,
            _: &[CertificateDer<'_>],
            _: &ServerName<'_>,
            _: &[u8],
            _: UnixTime,
        ) -> Result<ServerCertVerified, Error> {
            Ok(ServerCertVerified::assertion())
        }

        fn verify_tls12_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            self.0.signature_verification_algorithms.supported_schemes()
        }
    }

    /// A configuration that accepts every certificate.
    pub(super) fn config() -> Arc<ClientConfig> {
        let verifier = Arc::new(AnyCertificate(default_provider()));
        let builder = ClientConfig::builder();
        Arc::new(builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth())
    }
}

#[cfg(test)]
mod tests;
