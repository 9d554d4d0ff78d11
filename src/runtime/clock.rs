//! The only clocks. All code below the edge takes the time as an argument.

use std::cell::Cell;
use std::time::Instant;

use jiff::{SignedDuration, Timestamp};

thread_local! {
    /// In a simulation: a time of the wall clock, and of the monotonic clock at that moment.
    static SIMULATED: Cell<Option<(Timestamp, Instant)>> = const { Cell::new(None) };
}

/// The wall clock, for times that others compare with their own: certificates, the content of Leases, Events.
#[expect(clippy::disallowed_methods, reason = "this is where the wall clock is read")]
pub fn now() -> Timestamp {
    let Some((wall, at)) = SIMULATED.get() else { return Timestamp::now() };
    let since = SignedDuration::try_from(instant().saturating_duration_since(at)).unwrap_or(SignedDuration::MAX);
    wall.saturating_add(since).unwrap_or(Timestamp::MAX)
}

/// The monotonic clock, for durations and timeouts. It is tokio's, so that it stands still while that is paused.
#[expect(clippy::disallowed_methods, reason = "this is where the monotonic clock is read")]
pub fn instant() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// Sleeps until an instant, or for ever.
pub async fn until(wake: Option<Instant>) {
    match wake {
        Some(wake) => tokio::time::sleep_until(wake.into()).await,
        None => std::future::pending().await,
    }
}

/// For simulations: sets this thread's wall clock to this time, from which it advances with the monotonic clock.
pub fn simulate(wall: Timestamp) {
    SIMULATED.set(Some((wall, instant())));
}
