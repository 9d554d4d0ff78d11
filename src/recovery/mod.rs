//! Recovery: which executors an application has by its driver's own view, how that differs from its pods and from what it
//! should have, and which rules apply to the difference.

pub mod budget;
pub mod cost;
pub mod drivers;
pub mod finding;
mod findings;
pub mod namespaces;
pub mod registration;
pub mod report;
pub mod rules;
pub mod shortage;
pub mod shortage_cause;
pub mod state;
pub mod target;
pub mod waiting;

pub use drivers::DriverPoll;
pub use findings::RecoveryFindings;
pub use registration::{Registration, is_excluded, registration, row_of, view_of, without_pod};
