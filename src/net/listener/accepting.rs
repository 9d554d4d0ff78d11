//! Accepts connections from the kernel, also while the process has no file descriptors left.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::connections::{Connections, now};

/// How long `next` waits after an error that does not belong to a single connection.
const RETRY_DELAY: Duration = Duration::from_millis(50);
/// Minimum interval between log lines for such errors.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Accepts the connections of one listener.
#[derive(Debug)]
pub(super) struct Accepting {
    address: SocketAddr,
    last_logged: Option<Instant>,
}

impl Accepting {
    pub(super) fn new(address: SocketAddr) -> Accepting {
        Accepting { address, last_logged: None }
    }

    /// Returns the next connection. Errors are counted and logged, and never stop the accept loop: when the process has
    /// no descriptors left, it closes some connections to free descriptors.
    pub(super) async fn next<S, F>(
        &mut self,
        connections: &Connections,
        mut accept: impl FnMut() -> F,
    ) -> (S, SocketAddr)
    where
        F: Future<Output = io::Result<(S, SocketAddr)>>,
    {
        loop {
            connections.settled().await;
            let error = match accept().await {
                Ok(accepted) => return accepted,
                Err(error) => error,
            };
            if let Some(metrics) = connections.metrics() {
                metrics.accept_errors.inc();
            }
            if is_of_one_connection(&error) {
                tracing::debug!(%error, listener = %self.address, "a connection was aborted before it was accepted");
                continue;
            }
            let now = now();
            if self.last_logged.is_none_or(|last_logged| now.saturating_duration_since(last_logged) >= LOG_INTERVAL) {
                self.last_logged = Some(now);
                tracing::error!(%error, listener = %self.address, "cannot accept connections; closing open ones");
            }
            connections.make_room();
            tokio::time::sleep(RETRY_DELAY).await;
        }
    }
}

/// Reports whether the error affects only that connection, so that the next one can be accepted immediately.
fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listener::capacity::Capacity;
    use crate::listener::metrics::ListenersMetrics;
    use crate::telemetry::registry::Registry;
    use futures::FutureExt;
    use std::collections::VecDeque;

    /// EMFILE.
    const NO_DESCRIPTORS: i32 = 24;

    #[tokio::test(start_paused = true)]
    async fn accept_errors_are_counted_and_retried_after_evicting_idle_connection() {
        let registry = Registry::default();
        let metrics = ListenersMetrics::register(&registry, &["webhook"]).unwrap();
        let connections = Connections::new(Capacity::of_reviews(100), Some(metrics.listener("webhook")));
        let peer: SocketAddr = "10.0.0.1:1".parse().unwrap();
        let idle = connections.enter(peer.ip());
        let mut kernel: VecDeque<io::Result<((), SocketAddr)>> = VecDeque::from([
            Err(io::ErrorKind::ConnectionAborted.into()),
            Err(io::Error::from_raw_os_error(NO_DESCRIPTORS)),
            Err(io::Error::from_raw_os_error(NO_DESCRIPTORS)),
            Ok(((), peer)),
        ]);
        let start = now();
        let mut accepting = Accepting::new("127.0.0.1:1".parse().unwrap());
        let ((), from) = accepting.next(&connections, || std::future::ready(kernel.pop_front().unwrap())).await;
        assert_eq!(from, peer);
        assert_eq!(now() - start, 2 * RETRY_DELAY, "no delay after the aborted connection");
        assert!(idle.link().evicted.notified().now_or_never().is_some());
        let text = registry.render().unwrap();
        assert!(text.contains("spark_usher_accept_errors_total{listener=\"webhook\"} 3"), "{text}");
        assert!(text.contains("spark_usher_connections_evicted_total{listener=\"webhook\"} 1"), "{text}");
    }
}
