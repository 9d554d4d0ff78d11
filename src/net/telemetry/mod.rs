//! Logs, and the registry of metrics.

pub mod log;
pub mod registry;
