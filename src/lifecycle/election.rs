//! Who leads: the pure half of leader election by a Lease, as client-go's `leaderelection` does it.
//!
//! Time is what we observed ourselves: a lease is over when it has not changed for its duration by our own monotonic
//! clock, whatever its `renewTime` says. The clocks of two machines never meet.

use std::time::{Duration, Instant};

use crate::plant::{self, Bug};

/// What a lease says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Its resourceVersion.
    pub version: String,
    /// Who holds it.
    pub holder: Option<String>,
    /// For how long, unless it is renewed.
    pub duration: Duration,
    /// How often it changed hands.
    pub transitions: i32,
}

/// What was seen of the lease, and when it was first seen like that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observed {
    /// What it says.
    pub held: Held,
    /// Since when, by our own clock.
    pub since: Instant,
}

impl Observed {
    /// Another look: only a lease that changed counts as renewed.
    pub fn again(before: Option<Observed>, held: Held, now: Instant) -> Observed {
        match before {
            Some(before) if before.held.version == held.version => before,
            _ => Observed { held, since: now },
        }
    }

    /// Whether it has not been renewed in time.
    pub fn is_over(&self, now: Instant) -> bool {
        let early = if plant::is(Bug::LeaseTakenEarly) { self.held.duration * 3 / 4 } else { Duration::ZERO };
        now.saturating_duration_since(self.since) + early >= self.held.duration
    }
}

/// What to do after a look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nobody has made it yet: make it.
    Create,
    /// It is ours, or it is over: write our name.
    Take {
        /// How often it changed hands, this time included.
        transitions: i32,
        /// Whether it was ours already.
        ours: bool,
    },
    /// Somebody else holds it.
    Wait,
}

/// What to do about what was seen.
pub fn step(seen: Option<&Observed>, identity: &str, now: Instant) -> Step {
    let Some(seen) = seen else { return Step::Create };
    match &seen.held.holder {
        Some(holder) if holder == identity => Step::Take { transitions: seen.held.transitions, ours: true },
        Some(_) if !seen.is_over(now) => Step::Wait,
        _ => Step::Take { transitions: seen.held.transitions.saturating_add(1), ours: false },
    }
}

/// Until when a leader may act after a renewal that began then: well before others may take over, who count from when
/// they see the write.
pub fn may_act_until(began: Instant, duration: Duration) -> Instant {
    if plant::is(Bug::LeaderActsTooLong) {
        return began + duration * 3 / 2;
    }
    began + duration * 2 / 3
}

/// Who leads, as one replica knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// We do.
    Leading,
    /// Another replica holds a lease that is not over.
    Led,
    /// Nobody, as far as we know.
    Leaderless,
}

impl Standing {
    /// Whether we lead, and whether another replica is seen to.
    pub fn of(leads: bool, is_led: bool) -> Standing {
        match (leads, is_led) {
            (true, _) => Standing::Leading,
            (false, true) => Standing::Led,
            (false, false) => Standing::Leaderless,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(clippy::disallowed_methods, reason = "any instant will do")]
    fn start() -> Instant {
        Instant::now()
    }

    fn held(version: &str, holder: Option<&str>) -> Held {
        let duration = Duration::from_secs(4);
        Held { version: version.into(), holder: holder.map(str::to_owned), duration, transitions: 2 }
    }

    #[test]
    fn a_lease_is_taken_when_free_over_or_ours() {
        let start = start();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let seen = |holder| Observed { held: held("7", holder), since: start };
        assert_eq!(step(None, "me", at(0)), Step::Create);
        assert_eq!(step(Some(&seen(Some("me"))), "me", at(9)), Step::Take { transitions: 2, ours: true });
        assert_eq!(step(Some(&seen(Some("you"))), "me", at(3)), Step::Wait);
        assert_eq!(step(Some(&seen(Some("you"))), "me", at(4)), Step::Take { transitions: 3, ours: false });
        assert_eq!(step(Some(&seen(None)), "me", at(0)), Step::Take { transitions: 3, ours: false });
        assert!(may_act_until(start, Duration::from_secs(4)) < at(4));
    }

    #[test]
    fn only_a_change_renews() {
        let start = start();
        let later = start + Duration::from_secs(3);
        let first = Observed::again(None, held("7", Some("you")), start);
        assert_eq!(Observed::again(Some(first.clone()), held("7", Some("you")), later).since, start);
        assert_eq!(Observed::again(Some(first), held("8", Some("you")), later).since, later);
    }
}
