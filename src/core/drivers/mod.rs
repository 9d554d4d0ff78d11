//! What drivers say about their executors: how they are polled, which executors registered, how many a driver wants, and whether it keeps
//! those that finished.

pub mod kept;
mod polled;
mod registration;
pub mod target;

pub use polled::{DriverPoll, may_read_conf, poll, to_poll};
pub use registration::{Registration, is_excluded, registration, registration_in, row_of, view_of, without_pod};
