//! Spark's lifecycle manager for a whole cluster: which executors exited, when and why, and which of these exits were reported.

pub mod cause;
pub mod cause_group;
pub mod checkpoint;
pub mod driver_at_exit;
pub mod exit;
pub mod exits;
pub mod outages;
pub mod remembered;
mod tracked;
mod unobserved;

pub use exit::Exit;
pub use exits::Exits;
