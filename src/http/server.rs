//! Listening: TLS for API servers, plain for probes, with deadlines on every connection and a drain at the end.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::http::HeaderValue;
use axum::http::header::CONNECTION;
use axum_server::Handle;
use axum_server::accept::Accept;
use hyper_util::rt::TokioTimer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tower::Service;

pub use super::conn::Deadlines;
use super::conn::{Busy, Timed};
use crate::telemetry::metrics::Metrics;

/// A bound listener.
#[derive(Debug)]
pub struct Listener {
    socket: std::net::TcpListener,
    address: SocketAddr,
}

impl Listener {
    /// Binds; port 0 takes a free one.
    pub fn bind(address: SocketAddr) -> io::Result<Listener> {
        let bound = || -> io::Result<Listener> {
            let socket = std::net::TcpListener::bind(address)?;
            socket.set_nonblocking(true)?;
            let address = socket.local_addr()?;
            Ok(Listener { socket, address })
        };
        bound().map_err(|error| io::Error::new(error.kind(), format!("cannot listen on {address}: {error}")))
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// How a listener ends: it stops accepting, lets requests finish for this long, and closes.
#[derive(Clone, Debug)]
pub struct Ending {
    /// When the end is near. From then on an HTTP/1 answer says that its connection ends with it: Go never sends a POST
    /// again when an idle connection was closed under it, so connections in use end by agreement, before the others are
    /// closed. (HTTP/2 has GOAWAY for that.)
    pub leaving: CancellationToken,
    /// When it ends.
    pub stop: CancellationToken,
    /// How long requests may take to finish.
    pub drain: Duration,
}

/// Serves HTTPS until told to stop.
pub async fn serve_tls(
    listener: Listener,
    config: Arc<rustls::ServerConfig>,
    routes: Router,
    deadlines: Deadlines,
    metrics: Arc<Metrics>,
    ending: Ending,
) -> io::Result<()> {
    let acceptor = Tls { acceptor: TlsAcceptor::from(config), deadlines, metrics, leaving: ending.leaving.clone() };
    serve(listener, acceptor, routes, ending).await
}

/// Serves HTTP until told to stop.
pub async fn serve_plain(listener: Listener, routes: Router, deadlines: Deadlines, ending: Ending) -> io::Result<()> {
    let acceptor = Plain { deadlines, leaving: ending.leaving.clone() };
    serve(listener, acceptor, routes, ending).await
}

async fn serve<A>(listener: Listener, acceptor: A, routes: Router, ending: Ending) -> io::Result<()>
where
    A: Accept<TcpStream, Router> + Clone + Send + Sync + 'static,
    A::Stream: AsyncRead + AsyncWrite + Unpin + Send,
    A::Service:
        Service<hyper::Request<hyper::body::Incoming>, Response = axum::response::Response> + Clone + Send + 'static,
    <A::Service as Service<hyper::Request<hyper::body::Incoming>>>::Error:
        Into<Box<dyn std::error::Error + Send + Sync>>,
    <A::Service as Service<hyper::Request<hyper::body::Incoming>>>::Future: Send + 'static,
    A::Future: Send,
{
    let handle = Handle::new();
    let mut server = axum_server::from_tcp(listener.socket)?.handle(handle.clone()).acceptor(acceptor);
    let builder = server.http_builder();
    // Deadlines of heads and of idleness are the connection's (see `conn`); hyper's own start too early.
    builder.http1().timer(TokioTimer::new()).header_read_timeout(None).max_buf_size(64 << 10);
    builder.http2().timer(TokioTimer::new()).max_concurrent_streams(250).max_header_list_size(64 << 10);
    let serving = server.serve(routes.into_make_service());
    tokio::pin!(serving);
    tokio::select! {
        ended = &mut serving => ended,
        () = ending.stop.cancelled() => {
            handle.graceful_shutdown(Some(ending.drain));
            serving.await
        }
    }
}

/// Takes connections over TLS.
#[derive(Clone)]
struct Tls {
    acceptor: TlsAcceptor,
    deadlines: Deadlines,
    metrics: Arc<Metrics>,
    leaving: CancellationToken,
}

type Accepting<S> = Pin<Box<dyn Future<Output = io::Result<(S, Counted<Router>)>> + Send>>;

impl Accept<TcpStream, Router> for Tls {
    type Stream = Pin<Box<Timed<tokio_rustls::server::TlsStream<TcpStream>>>>;
    type Service = Counted<Router>;
    type Future = Accepting<Self::Stream>;

    fn accept(&self, stream: TcpStream, service: Router) -> Self::Future {
        let Tls { acceptor, deadlines, metrics, leaving } = self.clone();
        Box::pin(async move {
            stream.set_nodelay(true)?;
            let handshake = tokio::time::timeout(deadlines.handshake, acceptor.accept(stream)).await;
            let stream = match handshake {
                Ok(Ok(stream)) => stream,
                failed => {
                    // API servers drop speculative connections now and then; a count tells whether it is more.
                    metrics.handshake_errors.inc();
                    let error =
                        failed.err().map_or_else(|| "it broke off".to_owned(), |_| "it took too long".to_owned());
                    tracing::debug!(error, "no TLS handshake");
                    return Err(io::ErrorKind::ConnectionAborted.into());
                }
            };
            let heads = stream.get_ref().1.alpn_protocol() != Some(b"h2");
            let busy = Busy::default();
            let leaving = heads.then_some(leaving);
            Ok((Box::pin(Timed::new(stream, deadlines, busy.clone(), heads)), Counted { service, busy, leaving }))
        })
    }
}

/// Takes plain connections.
#[derive(Clone)]
struct Plain {
    deadlines: Deadlines,
    leaving: CancellationToken,
}

impl Accept<TcpStream, Router> for Plain {
    type Stream = Pin<Box<Timed<TcpStream>>>;
    type Service = Counted<Router>;
    type Future = Accepting<Self::Stream>;

    fn accept(&self, stream: TcpStream, service: Router) -> Self::Future {
        let Plain { deadlines, leaving } = self.clone();
        Box::pin(async move {
            stream.set_nodelay(true)?;
            let busy = Busy::default();
            let leaving = Some(leaving);
            Ok((Box::pin(Timed::new(stream, deadlines, busy.clone(), true)), Counted { service, busy, leaving }))
        })
    }
}

/// Tells the connection while one of its requests is being answered, and the client when the connection is to end.
#[derive(Clone, Debug)]
pub(super) struct Counted<S> {
    service: S,
    busy: Busy,
    /// Where the protocol has a header for it.
    leaving: Option<CancellationToken>,
}

impl<S, R> Service<R> for Counted<S>
where
    S: Service<R, Response = axum::response::Response>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.service.poll_ready(cx)
    }

    fn call(&mut self, request: R) -> Self::Future {
        let guard = self.busy.begin();
        let leaving = self.leaving.clone();
        let answering = self.service.call(request);
        Box::pin(async move {
            let mut answer = answering.await?;
            if leaving.is_some_and(|leaving| leaving.is_cancelled()) {
                answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            drop(guard);
            Ok(answer)
        })
    }
}
