//! What talks to an API server: the sandbox's, or a real one where `KUBEBUILDER_ASSETS` names a folder with `etcd` and
//! `kube-apiserver`.

#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a test fails by panicking, uses the real clock, and prints its results"
)]

mod admission_policies;
mod cert_manager;
mod certificates;
mod connections;
mod creator_policy;
mod doctor_gang;
mod driver_view;
mod e2e;
mod elsewhere;
mod fallback;
mod gang_scenarios;
mod handovers;
mod lifecycle;
mod live;
mod names;
mod nodes;
mod operator_faults;
mod owners;
mod proxies;
mod recovery;
mod sandbox;
mod self_service;
mod submission_faults;
mod submissions;
mod submit;
#[path = "../support/mod.rs"]
mod support;
mod trial;
mod validating_policy;
mod waiting;
mod watches;
mod web_page;
mod workloads;
