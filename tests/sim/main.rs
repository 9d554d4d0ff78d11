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

use std::ops::Range;

use spark_usher::fault_injection::Bug;

mod controller;
mod nodes;
mod replicas;
#[path = "../support/mod.rs"]
mod support;

/// The histories that search for an injected bug: one that is known to find it, and then these. After a change of the code, another
/// one may find it.
fn seeds(known: &[(Bug, u64)], bug: Bug, others: Range<u64>) -> impl Iterator<Item = u64> {
    known.iter().find(|(found, _)| *found == bug).map(|(_, seed)| *seed).into_iter().chain(others)
}
