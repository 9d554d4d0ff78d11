//! The time as an argument of the core, by two clocks.

use std::time::Instant;

use jiff::Timestamp;

/// The time by both clocks: the monotonic clock, and the wall clock, which other components compare with theirs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Monotonic: for durations and deadlines.
    pub at: Instant,
    /// Wall clock: for reports, and for times from the API server.
    pub wall: Timestamp,
}
