//! `spark-submit --deploy-mode cluster` for Kubernetes, without a JVM: from options and files to the objects that are created, and to
//! the properties that the driver reads.
//!
//! [`build`] is pure: files, the environment, the time and all that is random are its arguments. It follows Spark's own sources, which
//! its parts name, and `tests/it/submit.rs` compares it with what the real spark-submit sends, request by request
//! (`tests/submit_spark.py` records that). [spark-submit](https://spark.apache.org/docs/latest/running-on-kubernetes.html) documents the
//! options.

mod access;
pub mod api;
mod arguments;
mod conf;
mod conf_map;
mod draft;
mod error;
mod files;
mod gang;
mod java;
mod names;
mod objects;
mod options;
mod pod_template;
mod s3;
mod scala;
mod steps;
pub mod submission;
mod substitution;
mod wait;

pub use access::access;
pub use arguments::{Rest, SPARK_OPTIONS, SparkOption, parse, parse_with, passed_on};
pub use conf::SparkConf;
pub use error::{Result, SubmitError};
pub use files::{Files, Upload};
pub use names::Unique;
pub use objects::{Submission, build};
pub use options::{Application, Environment, Options, Resource, master_url, prepare, settings};
pub use s3::{S3Settings, s3_location};
pub use wait::{Waiting, kill_grace_period};
