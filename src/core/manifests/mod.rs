//! Objects that spark-usher prints or installs: the webhook configurations, the admission policies in CEL, and the RBAC
//! rules that the controller needs.

mod cel;
mod compare;
pub mod converge;
pub mod creator_policy;
pub mod fallback_policy;
pub mod installation;
pub mod object;
pub mod rbac;
pub mod validating_policy;
pub mod webhooks;

pub use compare::{called, differences, is_same};
