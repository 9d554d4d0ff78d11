//! Exponential backoff: the delay grows with the failures in a row.

use std::time::Duration;

/// The first delay after a failure; each further one is twice as long, up to [`MAX_DELAY`].
pub(crate) const INITIAL_DELAY: Duration = Duration::from_millis(500);
/// The longest delay after a failure.
pub(crate) const MAX_DELAY: Duration = Duration::from_secs(60);
/// The delay before the next attempt, after this many failures in a row.
pub fn backoff_delay(failures: u32) -> Duration {
    INITIAL_DELAY.saturating_mul(1 << failures.saturating_sub(1).min(10)).min(MAX_DELAY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delay_doubles_up_to_maximum() {
        assert_eq!(backoff_delay(1), INITIAL_DELAY);
        assert_eq!(backoff_delay(3), INITIAL_DELAY * 4);
        assert_eq!(backoff_delay(u32::MAX), MAX_DELAY);
    }
}
