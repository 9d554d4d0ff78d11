//! An in-memory Kubernetes API on loopback: for `demo`, for trials with real tools, and for tests.
//!
//! It is not a cluster. It behaves as a kube-apiserver does, as far as spark-submit and Spark's drivers, kubectl, helm, kube-rs
//! and Prometheus can detect a difference. RBAC is enforced only on request (otherwise authenticated users may do
//! anything); field ownership (apply patches are merged) and quota are missing, and the only controller is the garbage collector.
//! Optionally, a simulated scheduler, which supports gangs, and a simulated kubelet process pods.

mod admission;
mod api;
mod attributes;
mod auth;
mod cells;
mod columns;
mod crd;
mod defaults;
mod delete;
mod discovery;
mod error;
mod events;
mod garbage;
mod kubelet;
mod log;
mod openapi;
mod outline;
mod patch;
mod plugins;
mod portforward;
mod protobuf;
mod proxy;
mod rbac;
mod request;
mod resource;
mod respond;
mod scheduler;
mod selector;
mod serve;
mod special;
mod state;
mod store;
mod strategic;
mod table;
mod validate;
mod watch;
mod webhook;
mod write;

pub use kubelet::{EXIT as EXIT_ANNOTATION, NODE as NODE_ANNOTATION};
pub use log::LOG as LOG_ANNOTATION;

pub use serve::{InProcess, Options, Pods, Sandbox, Version};
