//! What the rules of a plan share: their input, and the actions that they plan, for a part of the executors at a time.

mod action;
pub mod batch;
mod check;
mod context;

pub use action::{Action, Cleanup, ObjectVersion, PodEvent, Recover};
pub use check::Check;
pub use context::{PlanContext, PlanInput};
