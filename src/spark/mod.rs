//! Spark's vocabulary on Kubernetes: the words that Spark itself uses, and the one door through which a pod enters.
//!
//! Everything else in the crate speaks in these terms; nothing here knows about gangs, policies or the network.

pub mod conf;
pub mod evidence;
pub mod exit;
pub mod habits;
pub mod ids;
pub mod labels;
pub mod pod;
pub mod properties;
pub mod quantity;
pub mod resources;
pub mod role;
pub mod state;
pub mod status;
pub mod text;
pub mod version;
