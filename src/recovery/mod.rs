//! Recovery: which executors an application has by its driver's own view, and how that differs from its pods.

pub mod drivers;
pub mod registration;

pub use drivers::DriverPoll;
pub use registration::{Registration, registration, vanished, view_of};
