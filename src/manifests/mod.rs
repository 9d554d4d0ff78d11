//! Objects that spark-usher prints or installs: the webhook configurations, the admission policies in CEL, and the RBAC
//! rules that the controller needs.

mod cel;
pub mod creator_policy;
pub mod fallback_policy;
pub mod rbac;
pub mod validating_policy;
pub mod webhooks;
