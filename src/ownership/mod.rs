//! Which driver owns an executor, and whether that driver is alive.

pub mod contradiction;
pub mod liveness;
pub mod regroup;
pub mod resolve;
pub mod workload;
