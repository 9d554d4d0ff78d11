//! What Spark on Kubernetes says: its labels, pods, states, configuration and sizes, and the one parser of pods. Beside it, what every
//! crate needs of text, time and JSON. Nothing here depends on gangs, policies or the network.
//!
//! | module | what it knows |
//! |---|---|
//! | [`labels`], [`names`], [`ids`] | the labels and annotations of Spark's pods, and what identifies a pod and an application |
//! | [`pod`], [`role`], [`state`], [`status`], [`diagnostics`], [`exit`], [`exit_code`] | a pod, what it is to Spark, and how it fares |
//! | [`conf`], [`properties`], [`lifecycle_conf`], [`resources`], [`quantity`], [`node_terms`] | what an application is configured to be |
//! | [`rest`], [`version`] | the REST API of a driver, and versions of Spark |
//! | [`json`], [`wire_text`] | JSON documents by path, list item by item, and as strings that borrow from the bytes of a review |
//! | [`text`] | text of tenants in messages: bounded, without control characters |
//! | [`time`] | the time as an argument: by the monotonic and by the wall clock |
//! | [`hash`] | hashes of what tenants write, by a key that only this process knows |

pub mod conf;
pub mod diagnostics;
pub mod exit;
pub mod exit_code;
pub mod hash;
pub mod ids;
pub mod json;
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
pub mod time;
pub mod version;
pub mod wire_text;
