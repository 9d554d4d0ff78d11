//! Spark's terms on Kubernetes: the names that Spark itself uses, and the one parser of pods.
//!
//! The rest of the crate uses these terms; nothing here depends on gangs, policies or the network.

pub mod conf;
pub mod diagnostics;
pub mod exit;
pub mod exit_code;
pub mod ids;
pub mod labels;
pub mod lifecycle_conf;
pub mod names;
pub mod node_terms;
pub mod pod;
pub mod properties;
pub mod quantity;
pub mod resources;
pub mod rest;
pub mod role;
pub mod state;
pub mod status;
pub mod text;
pub mod version;
