//! The listeners: the webhook for API servers, the plain HTTP port for probes and Prometheus, and the debug port for
//! people.

mod accepting;
pub mod admin;
pub mod capacity;
mod conn;
mod connections;
pub mod debug;
pub(crate) mod gate;
pub mod handlers;
pub mod limits;
pub mod listener_metrics;
pub mod metrics;
pub mod server;
pub mod ui;
pub mod webhook;
