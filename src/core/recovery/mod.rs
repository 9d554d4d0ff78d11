//! Recovery: which executors an application lacks and why, which are in trouble, what the rules do about those in rounds, and what they
//! cost.

pub mod budget;
pub mod cost;
pub mod finding;
mod findings;
pub mod namespaces;
pub mod report;
pub mod round;
pub mod rules;
mod settled;
pub mod shortage;
pub mod shortage_cause;
pub mod state;
pub mod waiting;

pub use findings::RecoveryFindings;
