//! Road B: what the loop does about the picture. Pure: a plan per application out of the snapshot, the policies and a
//! little memory; the edge applies the actions and the watch shows what came of them.
//!
//! Level-triggered: a plan says what is missing now, never what happened. A crash between any two actions is healed by
//! the next plan.

pub mod action;
mod adopt;
pub mod cause;
pub mod desk;
mod groups;
pub mod memory;
mod plan;
mod reads;

pub use action::{Action, DriverRef, Told};
pub use desk::{Answer, Desk, Turn};
pub(crate) use groups::owner_reference;
pub use memory::Memory;
pub use plan::plan;
pub use reads::{Read, interests, reads};
