//! Memory and work, measured by a counting allocator: the figures do not depend on the clock.
//!
//! The allocator counts for the thread of the test.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a test fails by panicking, and prints its results"
)]

mod controller;
#[path = "../../benches/support/pods.rs"]
mod pods;
#[path = "../../benches/support/mod.rs"]
mod recorded;
mod reviews;
#[path = "../../benches/support/simulated.rs"]
mod simulated;
#[path = "../support/mod.rs"]
mod support;
