//! The listeners: the webhook that API servers call, and the plain port for probes and Prometheus.

pub mod admin;
mod conn;
pub mod limits;
pub mod server;
pub mod webhook;
