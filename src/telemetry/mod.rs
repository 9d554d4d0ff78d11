//! Logs and metrics.

pub mod log;
pub mod metrics;
mod snapshot;
