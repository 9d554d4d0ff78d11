//! The listeners: the webhook for API servers, the plain HTTP port for probes and Prometheus, and the debug port for
//! people.

pub mod admin;
pub mod debug;
pub(crate) mod gate;
pub mod handlers;
pub mod limits;
pub mod metrics;
pub mod ui;
pub mod webhook;
