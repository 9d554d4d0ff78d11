//! The time as an argument of the core, by two clocks.

use std::time::Instant;

use jiff::{Timestamp, TimestampRound, Unit};

/// The second in which a time lies. Kubernetes' own times are such (`metav1.Time`): nothing may seem to be earlier than what came before it.
pub fn whole_second(time: Timestamp) -> Timestamp {
    time.round(TimestampRound::new().smallest(Unit::Second).mode(jiff::RoundMode::Floor)).unwrap_or(time)
}

/// The time by both clocks: the monotonic clock, and the wall clock, which other components compare with theirs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Monotonic: for durations and deadlines.
    pub at: Instant,
    /// Wall clock: for reports, and for times from the API server.
    pub wall: Timestamp,
}
