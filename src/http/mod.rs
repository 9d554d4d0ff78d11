//! The listeners: the webhook that API servers call, the plain port for probes and Prometheus, and the
//! debug port for people.

pub mod admin;
mod conn;
pub mod debug;
pub mod limits;
pub mod server;
pub mod webhook;
