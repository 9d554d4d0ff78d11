//! Submissions and drivers on the API server: created, found, watched, deleted, and their logs.

mod create;
pub mod driver_log;
pub mod drivers;

pub use create::{Failure, Interrupted, MayExist, create, dry_run, namespace, queue};
