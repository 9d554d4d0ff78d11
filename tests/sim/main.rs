//! Histories of simulated clusters, each determined by a seed.

#![allow(
    clippy::cast_possible_truncation,
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    dead_code,
    unreachable_pub,
    reason = "a test fails by panicking, uses the real clock, and prints its results"
)]

mod controller;
mod nodes;
mod replicas;
#[path = "../support/mod.rs"]
mod support;
