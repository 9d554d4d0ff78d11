//! spark-usher: an admission webhook, a controller and a command line for the executor pods of Apache Spark on Kubernetes.
//!
//! This is the command line. docs/architecture.md is the map of the crates that it consists of.

pub mod cli;
