//! The only clocks. Everything below the edge takes the time as an argument.

use std::time::Instant;

use jiff::Timestamp;

/// Wall clock, for what others compare with theirs: certificates, leases' texts, Events.
#[expect(clippy::disallowed_methods, reason = "this is where the wall clock is read")]
pub fn now() -> Timestamp {
    Timestamp::now()
}

/// Monotonic clock, for how long something took or may take.
#[expect(clippy::disallowed_methods, reason = "this is where the monotonic clock is read")]
pub fn instant() -> Instant {
    Instant::now()
}
