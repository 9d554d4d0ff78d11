//! The time as an argument of the core, by two clocks, and times as people read them.

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

/// A time for display, in whole seconds: RFC 3339, as Kubernetes writes it.
pub fn in_seconds(time: Timestamp) -> String {
    whole_second(time).to_string()
}

/// A duration in its largest unit of which it has at least 2: the number, and `s`, `m`, `h` or `d`.
pub fn in_unit(seconds: i64) -> (i64, &'static str) {
    match seconds.max(0) {
        seconds if seconds < 120 => (seconds, "s"),
        seconds if seconds < 7200 => (seconds / 60, "m"),
        seconds if seconds < 172_800 => (seconds / 3600, "h"),
        seconds => (seconds / 86_400, "d"),
    }
}

/// The same as text: `3m`.
pub fn age(seconds: i64) -> String {
    let (number, unit) = in_unit(seconds);
    format!("{number}{unit}")
}

/// Time since a timestamp of a report: `3m ago`. A text that is no timestamp stays as it is.
pub fn ago(time: &str, now: Timestamp) -> String {
    let parsed = time.parse::<Timestamp>();
    parsed.map_or_else(|_| time.to_owned(), |time| format!("{} ago", age(now.duration_since(time).as_secs())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn age_has_its_largest_unit_that_is_at_least_two() {
        for (seconds, expected) in [
            (-5, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (7199, "119m"),
            (7200, "2h"),
            (172_799, "47h"),
            (172_800, "2d"),
        ] {
            assert_eq!(age(seconds), expected);
        }
        let now = "2026-11-24T10:00:00Z".parse().unwrap();
        assert_eq!(ago("2026-11-24T09:57:00Z", now), "3m ago");
        assert_eq!(ago("at some time", now), "at some time");
    }
}
