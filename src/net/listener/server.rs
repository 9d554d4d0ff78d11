//! Serves TLS to API servers and plain HTTP to probes, with a limit on connections, deadlines on each of them, and a
//! drain at shutdown.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::http::header::CONNECTION;
use axum::http::{HeaderValue, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tower::Service;

use super::accepting::Accepting;
use super::capacity::Capacity;
pub use super::conn::Deadlines;
use super::conn::{MAX_HEAD, Timed};
use super::connections::{Connections, Link, Origin, Ticket};
use super::metrics::{HandshakeMetrics, ListenerMetrics};
use crate::tls::clients::is_about_the_client;

/// A bound listener.
#[derive(Debug)]
pub struct Listener {
    socket: std::net::TcpListener,
    address: SocketAddr,
    capacity: Capacity,
    metrics: Option<ListenerMetrics>,
}

impl Listener {
    /// Binds the address; port 0 takes a free port. The number of connections is unlimited.
    pub fn bind(address: SocketAddr) -> io::Result<Listener> {
        let bound = || -> io::Result<Listener> {
            let socket = std::net::TcpListener::bind(address)?;
            socket.set_nonblocking(true)?;
            let address = socket.local_addr()?;
            Ok(Listener { socket, address, capacity: Capacity::UNLIMITED, metrics: None })
        };
        bound().map_err(|error| io::Error::new(error.kind(), format!("cannot listen on {address}: {error}")))
    }

    /// Limits the number of connections, and counts them.
    pub fn limited(self, capacity: Capacity, metrics: ListenerMetrics) -> Listener {
        Listener { capacity, metrics: Some(metrics), ..self }
    }

    /// Address that the listener is bound to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// How a listener shuts down: it stops accepting, lets requests finish for the drain time, and closes.
#[derive(Clone, Debug)]
pub struct Shutdown {
    /// Shutdown is near. From then on HTTP/1 answers carry `Connection: close`: Go never resends a POST when an idle
    /// connection was closed under it, so connections in use close after an answer, before the others are closed.
    /// (HTTP/2 has GOAWAY for that.)
    pub draining: CancellationToken,
    /// Shutdown starts.
    pub stop: CancellationToken,
    /// How long requests may take to finish.
    pub drain: Duration,
}

/// Serves HTTPS until shutdown.
pub async fn serve_tls(
    listener: Listener,
    config: Arc<rustls::ServerConfig>,
    routes: Router,
    deadlines: Deadlines,
    handshakes: HandshakeMetrics,
    shutdown: Shutdown,
) -> io::Result<()> {
    serve(listener, Tls::new(config, deadlines, handshakes), routes, deadlines, shutdown).await
}

/// Serves HTTP until shutdown.
pub async fn serve_plain(
    listener: Listener,
    routes: Router,
    deadlines: Deadlines,
    shutdown: Shutdown,
) -> io::Result<()> {
    serve(listener, Plain, routes, deadlines, shutdown).await
}

async fn serve<T: Transport>(
    listener: Listener,
    transport: T,
    routes: Router,
    deadlines: Deadlines,
    shutdown: Shutdown,
) -> io::Result<()> {
    let Listener { socket, address, capacity, metrics } = listener;
    let socket = tokio::net::TcpListener::from_std(socket)?;
    let connections = Connections::new(capacity, metrics);
    // `conn` enforces the deadlines for heads and idle time; hyper's own timers start too early.
    let mut http1 = http1::Builder::new();
    http1.timer(TokioTimer::new()).header_read_timeout(None).max_buf_size(MAX_HEAD.into());
    let mut http2 = http2::Builder::new(TokioExecutor::new());
    http2.timer(TokioTimer::new()).max_concurrent_streams(250).max_header_list_size(MAX_HEAD.into());
    let parts =
        Arc::new(Server { transport, routes, deadlines, connections, http1, http2, shutdown: shutdown.clone() });
    let mut accepting = Accepting::new(address);
    let mut open = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            () = shutdown.stop.cancelled() => break,
            Some(ended) = open.join_next(), if !open.is_empty() => noted(ended),
            (stream, peer) = accepting.next(&parts.connections, || socket.accept()) => {
                let ticket = parts.connections.enter(peer.ip());
                open.spawn(parts.clone().connection(stream, ticket));
            }
        }
    }
    drop(socket);
    let finished = async {
        while let Some(ended) = open.join_next().await {
            noted(ended);
        }
    };
    if tokio::time::timeout(shutdown.drain, finished).await.is_err() {
        open.shutdown().await;
    }
    Ok(())
}

fn noted(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        tracing::error!(%error, "bug: the task of a connection panicked");
    }
}

/// State that the connections of a listener share.
struct Server<T> {
    transport: T,
    routes: Router,
    deadlines: Deadlines,
    connections: Connections,
    http1: http1::Builder,
    http2: http2::Builder<TokioExecutor>,
    shutdown: Shutdown,
}

impl<T: Transport> Server<T> {
    /// Serves a connection from its first byte to its last.
    async fn connection(self: Arc<Self>, stream: TcpStream, ticket: Ticket) {
        let link = ticket.link().clone();
        tokio::select! {
            biased;
            () = link.evicted.notified() => {}
            () = self.serve(stream, &link) => {}
        }
        // Only after its socket is closed.
        drop(ticket);
    }

    async fn serve(&self, stream: TcpStream, link: &Arc<Link>) {
        if stream.set_nodelay(true).is_err() {
            return;
        }
        let Some((stream, protocol)) = self.transport.open(stream, link.peer()).await else { return };
        let http1 = protocol == Protocol::Http1;
        let mut timed = Box::pin(Timed::new(stream, self.deadlines, link.busy.clone(), http1));
        if !self.wait_for_request(timed.as_mut(), http1).await {
            return;
        }
        let service = Counted {
            service: self.routes.clone(),
            connections: self.connections.clone(),
            link: link.clone(),
            leaving: self.shutdown.draining.clone(),
            http1,
        };
        let (stream, service) = (TokioIo::new(timed), TowerToHyperService::new(service));
        if http1 {
            // On the heap: as part of every connection it would use memory on connections without a request too.
            let serving = Box::pin(self.http1.serve_connection(stream, service).with_upgrades());
            self.serve_until_closed(serving, |serving| serving.get_mut().as_mut().graceful_shutdown()).await;
        } else {
            let serving = Box::pin(self.http2.serve_connection(stream, service));
            self.serve_until_closed(serving, |serving| serving.get_mut().as_mut().graceful_shutdown()).await;
        }
    }

    /// Waits for the first request. An idle connection closes immediately on shutdown.
    async fn wait_for_request<S: AsyncRead>(&self, mut timed: Pin<&mut Timed<S>>, http1: bool) -> bool {
        tokio::select! {
            biased;
            first = timed.as_mut().first_byte() => if first.is_err() { return false },
            () = self.shutdown.stop.cancelled() => return false,
        }
        !http1 || timed.first_head().await.is_ok()
    }

    /// Serves until the peer closes the connection, or until shutdown; requests in progress finish.
    async fn serve_until_closed<C: Future>(&self, serving: C, finish: fn(Pin<&mut C>)) {
        let mut serving = pin!(serving);
        tokio::select! {
            biased;
            // An early close is the peer's decision: there is no client to report it to.
            _ = serving.as_mut() => return,
            () = self.shutdown.stop.cancelled() => {}
        }
        finish(serving.as_mut());
        let _ = serving.await;
    }
}

/// Protocol of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    /// Heads have a deadline, and a header closes the connection.
    Http1,
    Http2,
}

/// Protocol below HTTP.
trait Transport: Send + Sync + 'static {
    type Stream: AsyncRead + AsyncWrite + Send + 'static;

    /// The stream and its protocol; `None` if the connection could not be established.
    fn open(&self, stream: TcpStream, peer: IpAddr) -> impl Future<Output = Option<(Self::Stream, Protocol)>> + Send;
}

struct Plain;

impl Transport for Plain {
    type Stream = TcpStream;

    async fn open(&self, stream: TcpStream, _: IpAddr) -> Option<(TcpStream, Protocol)> {
        Some((stream, Protocol::Http1))
    }
}

struct Tls {
    /// For peers on this machine.
    near: TlsAcceptor,
    /// For all other peers. API servers use HTTP/2 for webhooks on loopback only, and one HTTP/2 connection can hold
    /// the answers to 250 requests that the client does not read.
    far: TlsAcceptor,
    deadlines: Deadlines,
    handshakes: HandshakeMetrics,
}

impl Tls {
    fn new(config: Arc<rustls::ServerConfig>, deadlines: Deadlines, handshakes: HandshakeMetrics) -> Tls {
        let mut only_http1 = rustls::ServerConfig::clone(&config);
        only_http1.alpn_protocols.retain(|protocol| protocol == b"http/1.1");
        Tls { near: config.into(), far: Arc::new(only_http1).into(), deadlines, handshakes }
    }

    fn acceptor(&self, peer: IpAddr) -> &TlsAcceptor {
        if peer.is_loopback() { &self.near } else { &self.far }
    }
}

impl Transport for Tls {
    type Stream = tokio_rustls::server::TlsStream<TcpStream>;

    async fn open(&self, stream: TcpStream, peer: IpAddr) -> Option<(Self::Stream, Protocol)> {
        // On the heap: as part of every connection it would live as long as the connection.
        let handshake = Box::pin(self.acceptor(peer).accept(stream));
        let error = match tokio::time::timeout(self.deadlines.handshake, handshake).await {
            Ok(Ok(stream)) => {
                let http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                return Some((stream, if http2 { Protocol::Http2 } else { Protocol::Http1 }));
            }
            Ok(Err(error)) => error,
            Err(_) => io::Error::new(io::ErrorKind::TimedOut, "the handshake timed out"),
        };
        // API servers drop speculative connections now and then; the counter shows whether there are more.
        self.handshakes.errors.inc();
        if is_about_the_client(&error) {
            self.handshakes.client_certificates_refused.inc();
        }
        tracing::debug!(%error, "the TLS handshake failed");
        None
    }
}

/// Tracks the requests in progress of a connection, and announces to the client that the connection will close.
#[derive(Clone)]
struct Counted {
    service: Router,
    connections: Connections,
    link: Arc<Link>,
    leaving: CancellationToken,
    /// Whether the protocol has a header that closes a connection. HTTP/2 has GOAWAY.
    http1: bool,
}

impl Service<hyper::Request<Incoming>> for Counted {
    type Response = axum::response::Response;
    type Error = std::convert::Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Service::<hyper::Request<Incoming>>::poll_ready(&mut self.service, cx)
    }

    fn call(&mut self, mut request: hyper::Request<Incoming>) -> Self::Future {
        let guard = self.link.busy.begin();
        request.extensions_mut().insert(Origin(self.link.clone()));
        let Counted { connections, link, leaving, http1, .. } = self.clone();
        let answering = self.service.call(request);
        Box::pin(async move {
            let mut answer = answering.await?;
            if answer.status() == StatusCode::OK {
                connections.answered(&link);
            }
            if http1 && leaving.is_cancelled() {
                answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            drop(guard);
            Ok(answer)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::registry::Registry;
    use crate::tls::serving::Serving;

    #[test]
    fn http2_is_offered_to_loopback_peers_only() {
        crate::tls::install_provider();
        let config = Arc::new(Arc::new(Serving::default()).config());
        let tls = Tls::new(config, Deadlines::default(), HandshakeMetrics::register(&Registry::default()).unwrap());
        let offered = |peer: &str| tls.acceptor(peer.parse().unwrap()).config().alpn_protocols.clone();
        for near in ["127.0.0.1", "127.0.0.2", "::1"] {
            assert_eq!(offered(near), [b"h2".to_vec(), b"http/1.1".to_vec()], "{near}");
        }
        for far in ["10.0.0.1", "fd00::1", "169.254.0.1"] {
            assert_eq!(offered(far), [b"http/1.1".to_vec()], "{far}");
        }
    }
}
