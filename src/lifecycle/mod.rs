//! Road B: what the loop does about the picture. Pure: a plan per application out of the snapshot, the policies and a
//! little memory; the edge applies the actions and the watch shows what came of them.
//!
//! Level-triggered: a plan says what is missing now, never what happened. A crash between any two actions is healed by
//! the next plan.

pub mod action;
mod adopt;
pub mod cause;
mod checks;
pub mod desk;
pub mod driver_at_end;
pub mod election;
pub mod exit;
pub mod exits;
pub mod finished;
mod groups;
mod lookups;
pub mod mark;
pub mod memory;
pub mod outages;
pub mod pace;
pub mod part;
mod plan;
pub mod queue;
mod reads;
pub mod report;
pub mod tally;
mod tombstones;
pub mod turn;
mod walk;

use std::time::Instant;

use jiff::Timestamp;

/// The time by both clocks: our own, which only ever goes on, and that of the day, which others compare with theirs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// For how long something took or may take.
    pub at: Instant,
    /// For what is said, and for what the API server said.
    pub wall: Timestamp,
}

pub use action::{Action, DriverRef, Finish, Told};
pub use checks::Polled;
pub use desk::Desk;
pub use election::Standing;
pub use exit::Exit;
pub use exits::Exits;
pub(crate) use groups::owner_reference;
pub use memory::Memory;
pub use pace::CrewKey;
pub use plan::{Plan, plan};
pub use reads::{Read, interests, reads};
pub use turn::{Answer, Settings, Turn};
