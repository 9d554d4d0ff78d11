//! An in-memory Kubernetes API on loopback: for `demo`, for trying real tools on, and for tests.
//!
//! It is no cluster and says so. What it does, it does as a kube-apiserver does, as far as spark-submit and Spark's
//! drivers, kubectl, helm, kube-rs and Prometheus would notice a difference. It knows no authorization (whoever is
//! authenticated may do anything), no field ownership (apply patches are merged), no quota, and runs no controllers but
//! the garbage collector. Optionally a pretend scheduler, which honours gangs, and a pretend kubelet move pods along.

mod admission;
mod api;
mod auth;
mod columns;
mod crd;
mod defaults;
mod delete;
mod discovery;
mod error;
mod events;
mod garbage;
mod kubelet;
mod openapi;
mod patch;
mod plugins;
mod protobuf;
mod rbac;
mod request;
mod resource;
mod scheduler;
mod selector;
mod serve;
mod special;
mod store;
mod strategic;
mod table;
mod validate;
mod watch;
mod webhook;
mod write;

pub use serve::{InProcess, Options, Pods, Sandbox, Version};
