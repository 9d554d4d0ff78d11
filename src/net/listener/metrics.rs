//! The metrics of listeners: connections, and TLS handshakes.

use prometheus::{IntCounter, IntCounterVec, IntGauge, IntGaugeVec};

use crate::telemetry::registry::Registry;

#[derive(Clone, Debug)]
pub struct ListenerMetrics {
    /// Open connections.
    pub open: IntGauge,
    /// Connections closed to free capacity.
    pub evicted: IntCounter,
    pub accept_errors: IntCounter,
}

/// The metrics of TLS handshakes.
#[derive(Clone, Debug)]
pub struct HandshakeMetrics {
    /// Failed handshakes.
    pub errors: IntCounter,
    /// Handshakes without an accepted client certificate.
    pub client_certificates_refused: IntCounter,
}

impl HandshakeMetrics {
    pub fn register(registry: &Registry) -> prometheus::Result<HandshakeMetrics> {
        Ok(HandshakeMetrics {
            errors: registry.counter(
                "spark_usher_tls_handshake_errors_total",
                "Failed TLS handshakes; API servers drop speculative connections, so some are normal.",
            )?,
            client_certificates_refused: registry.counter(
                "spark_usher_client_certificates_refused_total",
                "TLS handshakes without an accepted client certificate (`--client-ca`, `--client-name`).",
            )?,
        })
    }
}

/// The metrics of all listeners of a process.
#[derive(Clone, Debug)]
pub struct ListenersMetrics {
    /// Handshakes of the listener that serves TLS.
    pub handshakes: HandshakeMetrics,
    connections: IntGaugeVec,
    evicted: IntCounterVec,
    accept_errors: IntCounterVec,
}

impl ListenersMetrics {
    /// Registers the metrics of listeners of these names. Each has its series from the start: alerts depend on the counters, and
    /// Prometheus sees no increase in a series that begins with 1.
    pub fn register(registry: &Registry, names: &[&str]) -> prometheus::Result<ListenersMetrics> {
        let metrics = ListenersMetrics {
            handshakes: HandshakeMetrics::register(registry)?,
            connections: registry.gauges("spark_usher_connections", &["listener"], "Open connections.")?,
            evicted: registry.counters(
                "spark_usher_connections_evicted_total",
                &["listener"],
                "Connections closed to free capacity for new ones.",
            )?,
            accept_errors: registry.counters(
                "spark_usher_accept_errors_total",
                &["listener"],
                "Errors while accepting connections, such as too many open files.",
            )?,
        };
        for name in names {
            metrics.listener(name);
        }
        Ok(metrics)
    }

    /// The metrics of the listener of this name.
    pub fn listener(&self, name: &str) -> ListenerMetrics {
        ListenerMetrics {
            open: self.connections.with_label_values(&[name]),
            evicted: self.evicted.with_label_values(&[name]),
            accept_errors: self.accept_errors.with_label_values(&[name]),
        }
    }
}
