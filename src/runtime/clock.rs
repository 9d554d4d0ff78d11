//! The only clocks. Everything below the edge takes the time as an argument.

use std::cell::Cell;
use std::time::Instant;

use jiff::{SignedDuration, Timestamp};

thread_local! {
    /// Where a simulation runs: a time of the wall clock, and the monotonic clock's at that time.
    static SIMULATED: Cell<Option<(Timestamp, Instant)>> = const { Cell::new(None) };
}

/// Wall clock, for what others compare with theirs: certificates, leases' texts, Events.
#[expect(clippy::disallowed_methods, reason = "this is where the wall clock is read")]
pub fn now() -> Timestamp {
    let Some((wall, at)) = SIMULATED.get() else { return Timestamp::now() };
    let since = SignedDuration::try_from(instant().saturating_duration_since(at)).unwrap_or(SignedDuration::MAX);
    wall.saturating_add(since).unwrap_or(Timestamp::MAX)
}

/// Monotonic clock, for how long something took or may take. It is tokio's, so that it stands still where that is paused.
#[expect(clippy::disallowed_methods, reason = "this is where the monotonic clock is read")]
pub fn instant() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// For simulations: on this thread the wall clock has this time now, and goes with the monotonic one.
pub fn simulate(wall: Timestamp) {
    SIMULATED.set(Some((wall, instant())));
}
