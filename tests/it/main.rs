//! What needs no API server: decisions, plans, views, the HTTPS endpoint, the documentation.

#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a test fails by panicking, uses the real clock, and prints its results"
)]

mod admit;
mod applications;
mod architecture;
mod attacks;
mod batches;
mod cleanup;
mod controller;
mod documentation;
mod driver_api;
mod driver_views;
mod example_policies;
mod executor_sets;
mod exits;
mod explain;
mod forged_metadata;
mod gangs;
mod gangs_on_nodes;
mod generated_reviews;
mod https;
mod liveness;
mod mutation;
mod node_pools;
mod nodes;
mod patches;
mod polls;
mod queues;
mod reasons;
mod recorded_reviews;
mod recovery;
mod reference;
mod rotation;
mod scheduling;
mod slow_readers;
mod snapshot;
mod snapshot_metrics;
mod started_gangs;
mod store;
mod submit;
#[path = "../support/mod.rs"]
mod support;
mod validation;
mod views;
mod words;
