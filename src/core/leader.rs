//! Leader election by a Lease, as client-go's `leaderelection` does it: the pure half.
//!
//! Time is measured locally: a Lease is expired when it has not changed for its duration by our own monotonic clock, regardless
//! of its `renewTime`. The clocks of two machines are never compared.

use std::time::{Duration, Instant};

use usher_spark::text::vocabulary;

/// The content of a Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseRecord {
    /// Its resourceVersion.
    pub version: String,
    pub holder: Option<String>,
    /// How long it is valid, unless it is renewed.
    pub duration: Duration,
    /// How often its holder changed.
    pub transitions: i32,
}

/// The observed Lease, and when it was first observed in this version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observed {
    /// Its content.
    pub record: LeaseRecord,
    /// When that was first observed, by our own clock.
    pub since: Instant,
}

impl Observed {
    /// Processes another read: only a Lease that changed counts as renewed. A Lease without a holder keeps its `since` when another
    /// client changes it.
    pub fn observe(before: Option<Observed>, record: LeaseRecord, now: Instant) -> Observed {
        match before {
            Some(before) if before.record.version == record.version => before,
            Some(before) if before.record.holder.is_none() && record.holder.is_none() => {
                Observed { record, since: before.since }
            }
            _ => Observed { record, since: now },
        }
    }

    /// Whether it is expired: not renewed in time.
    pub fn is_over(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.since) >= self.record.duration
    }

    /// How long it is still another replica's to hold, or to take: until it expires, unless it is released, and then for
    /// `deference`.
    pub fn wait(&self, deference: Duration, now: Instant) -> Duration {
        let held = if self.record.holder.is_some() { self.record.duration } else { Duration::ZERO };
        (self.since + held + deference).saturating_duration_since(now)
    }
}

/// How long a replica that would lose exits as the leader leaves a free Lease to others, which learn within milliseconds that it is free.
pub const DEFERENCE: Duration = Duration::from_millis(1500);

/// What to do after a read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// It does not exist yet: create it.
    Create,
    /// This replica holds it, or it is free or expired: write our identity.
    AcquireOrRenew {
        /// How often its holder changed, this time included.
        transitions: i32,
        /// Whether this replica already held it.
        is_renewal: bool,
    },
    /// Another replica holds it, or should take it.
    Wait,
}

/// Decides what to do about the observed Lease. A replica leaves a Lease that is free to others for `deference`.
pub fn step(seen: Option<&Observed>, identity: &str, deference: Duration, now: Instant) -> Step {
    let Some(seen) = seen else { return Step::Create };
    match &seen.record.holder {
        Some(holder) if holder == identity => {
            Step::AcquireOrRenew { transitions: seen.record.transitions, is_renewal: true }
        }
        Some(_) if !seen.is_over(now) => Step::Wait,
        _ if !deference.is_zero() && !seen.wait(deference, now).is_zero() => Step::Wait,
        _ => Step::AcquireOrRenew { transitions: seen.record.transitions.saturating_add(1), is_renewal: false },
    }
}

/// Until when a leader may act after a renewal that began at `began`: well before other replicas may take over, which count from
/// when they observe the write.
pub fn may_act_until(began: Instant, duration: Duration) -> Instant {
    began + duration * 2 / 3
}

vocabulary! {
    /// The leader, as one replica knows it.
    LeaderState
    /// This replica leads.
    Leader = "leader";
    /// Another replica holds a Lease that is not expired.
    Follower = "follower";
    /// No leader is known.
    NoLeader = "no-leader";
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_time::instant;

    fn record(version: &str, holder: Option<&str>) -> LeaseRecord {
        let duration = Duration::from_secs(4);
        LeaseRecord { version: version.into(), holder: holder.map(str::to_owned), duration, transitions: 2 }
    }

    #[test]
    fn lease_is_taken_if_released_expired_or_own() {
        let start = instant();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let seen = |holder| Observed { record: record("7", holder), since: start };
        let step = |seen: Option<&Observed>, deference: u64, now: Instant| {
            super::step(seen, "me", Duration::from_secs(deference), now)
        };
        let acquired = Step::AcquireOrRenew { transitions: 3, is_renewal: false };
        let renewed = Step::AcquireOrRenew { transitions: 2, is_renewal: true };
        assert_eq!(step(None, 0, at(0)), Step::Create);
        assert_eq!(step(Some(&seen(Some("me"))), 0, at(9)), renewed);
        assert_eq!(step(Some(&seen(Some("you"))), 0, at(3)), Step::Wait);
        assert_eq!(step(Some(&seen(Some("you"))), 0, at(4)), acquired);
        assert_eq!(step(Some(&seen(None)), 0, at(0)), acquired);
        // A replica that defers takes it a moment later; its own, and one that never existed, immediately.
        assert_eq!(step(None, 2, at(0)), Step::Create);
        assert_eq!(step(Some(&seen(Some("me"))), 2, at(0)), renewed);
        assert_eq!([4, 5].map(|now| step(Some(&seen(Some("you"))), 2, at(now))), [Step::Wait, Step::Wait]);
        assert_eq!(step(Some(&seen(Some("you"))), 2, at(6)), acquired);
        assert_eq!(step(Some(&seen(None)), 2, at(1)), Step::Wait);
        assert_eq!(step(Some(&seen(None)), 2, at(2)), acquired);
        assert!(may_act_until(start, Duration::from_secs(4)) < at(4));
    }

    #[test]
    fn only_changed_record_extends_lease() {
        let start = instant();
        let later = start + Duration::from_secs(3);
        let first = Observed::observe(None, record("7", Some("you")), start);
        assert_eq!(Observed::observe(Some(first.clone()), record("7", Some("you")), later).since, start);
        assert_eq!(Observed::observe(Some(first), record("8", Some("you")), later).since, later);
        let free = Observed::observe(None, record("9", None), start);
        let noted = Observed::observe(Some(free), record("10", None), later);
        assert_eq!((noted.since, &*noted.record.version), (start, "10"));
        assert_eq!(Observed::observe(Some(noted), record("11", Some("you")), later).since, later);
    }
}
