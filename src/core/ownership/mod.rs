//! Which driver owns an executor, and whether that driver is alive.

pub mod contradiction;
pub mod elsewhere;
pub mod liveness;
pub mod regroup;
pub mod resolve;
pub mod workload;
