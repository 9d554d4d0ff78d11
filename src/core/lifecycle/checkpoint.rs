//! Which exits were reported: a checkpoint in the Lease, so that the next leader reports each exit once.
//!
//! With each renewal, a leader writes up to which resourceVersion of pods it has reported every exit that its watch showed. The
//! next leader reports newer exits. After a graceful stop that is exact, because the last checkpoint is written when the Lease is
//! released. After a crash, exits between the last checkpoint and the crash may have been reported, and are reported as such.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use jiff::Timestamp;

/// Every exit that the leader's watch had shown up to this version is reported, but not all of those in a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// The resourceVersion.
    pub through: u64,
    /// When the checkpoint was written, but not before the end of an executor that the leader has reported.
    pub at: Timestamp,
    /// The changes that the leader did not observe.
    pub gaps: Gaps,
}

impl Checkpoint {
    /// Whether an exit is reported; `None` if that is unknown.
    pub fn covers(&self, version: u64) -> Option<bool> {
        self.gaps.of(version).is_none().then_some(version <= self.through)
    }

    /// Whether a replica that has observed every exit since this version knows all exits that are not reported.
    pub fn is_continued_since(&self, observed: u64) -> bool {
        observed <= self.gaps.iter().map(|gap| gap.from).fold(self.through, u64::min)
    }
}

/// Changes that a leader did not observe, because it did not run yet or its watch was interrupted: of exits in a gap it knows only
/// executors that still existed when it ended. Other replicas may have observed more, for as long as they keep exits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// It begins after this resourceVersion,
    pub from: u64,
    /// and ends with this one.
    pub to: u64,
    /// How long ago it ended, in whole seconds, when the checkpoint was written. No wall clock counts, and the time in which there
    /// is no leader does not: a gap is rather kept for too long.
    pub age: Duration,
}

impl Gap {
    /// Whether an exit with this resourceVersion is in it.
    pub fn has(&self, version: u64) -> bool {
        self.from < version && version <= self.to
    }

    /// One gap that contains both, and what lies between them; as old as the younger one.
    fn joined(self, other: Gap) -> Gap {
        Gap { from: self.from.min(other.from), to: self.to.max(other.to), age: self.age.min(other.age) }
    }
}

/// A checkpoint has at most this many gaps.
const MAX_GAPS: usize = 8;

/// Gaps in the order of their versions, apart from each other. If there are too many, the two nearest are joined: none is ever
/// dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gaps([Option<Gap>; MAX_GAPS]);

impl Gaps {
    pub fn iter(&self) -> impl Iterator<Item = &Gap> {
        self.0.iter().flatten()
    }

    /// The gap that contains an exit with this resourceVersion.
    pub fn of(&self, version: u64) -> Option<&Gap> {
        self.iter().find(|gap| gap.has(version))
    }

    /// Whether both have the same versions, whatever their age.
    pub fn cover_same(&self, other: &Gaps) -> bool {
        let versions = |gaps: &Gaps| gaps.0.map(|gap| gap.map(|gap| (gap.from, gap.to)));
        versions(self) == versions(other)
    }
}

impl FromIterator<Gap> for Gaps {
    fn from_iter<I: IntoIterator<Item = Gap>>(gaps: I) -> Gaps {
        let mut all: Vec<Gap> = gaps.into_iter().filter(|gap| gap.from < gap.to).collect();
        all.sort_unstable_by_key(|gap| gap.from);
        let mut apart: Vec<Gap> = Vec::new();
        for gap in all {
            match apart.last_mut().filter(|last| gap.from <= last.to) {
                Some(last) => *last = last.joined(gap),
                None => apart.push(gap),
            }
        }
        while apart.len() > MAX_GAPS {
            let distances = apart.iter().zip(apart.iter().skip(1)).map(|(gap, next)| next.from - gap.to);
            let Some((at, _)) = distances.enumerate().min_by_key(|(_, distance)| *distance) else { break };
            let next = apart.remove(at + 1);
            if let Some(gap) = apart.get_mut(at) {
                *gap = gap.joined(next);
            }
        }
        let mut gaps = Gaps::default();
        gaps.0.iter_mut().zip(apart).for_each(|(slot, gap)| *slot = Some(gap));
        gaps
    }
}

impl fmt::Display for Checkpoint {
    /// The text in the Lease: `THROUGH TIME`, and for each gap ` FROM-TO@SECONDS`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.through, self.at)?;
        self.gaps.iter().try_for_each(|gap| write!(f, " {}-{}@{}", gap.from, gap.to, gap.age.as_secs()))
    }
}

/// A checkpoint that cannot be parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a resourceVersion, a time and gaps such as 7-9@30, with their age in seconds")]
pub struct BadCheckpoint;

impl FromStr for Checkpoint {
    type Err = BadCheckpoint;

    fn from_str(text: &str) -> Result<Checkpoint, BadCheckpoint> {
        let number = |text: &str| text.parse::<u64>().map_err(|_| BadCheckpoint);
        let gap = |text: &str| {
            let (versions, age) = text.split_once('@').unwrap_or((text, "0"));
            let (from, to) = versions.split_once('-').ok_or(BadCheckpoint)?;
            Ok(Gap { from: number(from)?, to: number(to)?, age: Duration::from_secs(number(age)?) })
        };
        let mut parts = text.split(' ');
        let (through, at) = (parts.next().ok_or(BadCheckpoint)?, parts.next().ok_or(BadCheckpoint)?);
        let gaps = parts.map(gap).collect::<Result<Gaps, BadCheckpoint>>()?;
        Ok(Checkpoint { through: number(through)?, at: at.parse().map_err(|_| BadCheckpoint)?, gaps })
    }
}

/// What a new leader found when it took the Lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FoundCheckpoint {
    /// The last checkpoint; `None` in a new Lease, and in a Lease of a version that wrote no checkpoints.
    pub checkpoint: Option<Checkpoint>,
    /// Whether there was a leader before.
    pub was_held: bool,
    /// Whether the previous leader released the Lease: then the checkpoint is final.
    pub is_released: bool,
    /// The resourceVersion with which the Lease was taken: no replica has reported later exits before.
    pub taken: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gap(from: u64, to: u64, age: u64) -> Gap {
        Gap { from, to, age: Duration::from_secs(age) }
    }

    #[test]
    fn checkpoint_round_trips_through_text() {
        let at = Timestamp::from_second(1_800_000_000).unwrap();
        let checkpoint = Checkpoint { through: 1234, at, gaps: Gaps::default() };
        assert_eq!(checkpoint.to_string(), "1234 2027-01-15T08:00:00Z");
        assert_eq!(checkpoint.to_string().parse(), Ok(checkpoint));
        let checkpoint = Checkpoint { gaps: [gap(20, 30, 0), gap(7, 9, 65)].into_iter().collect(), ..checkpoint };
        assert_eq!(checkpoint.to_string(), "1234 2027-01-15T08:00:00Z 7-9@65 20-30@0");
        assert_eq!(checkpoint.to_string().parse(), Ok(checkpoint));
        let observed = [7, 8, 1234].map(|since| checkpoint.is_continued_since(since));
        assert_eq!(observed, [true, false, false], "the first gap begins after 7");
        let whole = Checkpoint { gaps: Gaps::default(), ..checkpoint };
        assert_eq!([1234, 1235].map(|since| whole.is_continued_since(since)), [true, false]);
        let found = [7, 8, 9, 10, 30, 31].map(|version| checkpoint.gaps.of(version).map(|gap| gap.to));
        assert_eq!(found, [None, Some(9), Some(9), None, Some(30), None]);
        for bad in [
            "",
            "1",
            "x 2027-01-15T08:00:00Z",
            "1 yesterday",
            "-1 2027-01-15T08:00:00Z",
            "1 2027-01-15T08:00:00Z 7",
            "1 2027-01-15T08:00:00Z 7-9@",
        ] {
            assert_eq!(bad.parse::<Checkpoint>(), Err(BadCheckpoint), "{bad}");
        }
    }

    #[test]
    fn gaps_that_overlap_are_one_and_of_too_many_the_two_nearest_are_joined() {
        let joined = |all: &[Gap]| all.iter().copied().collect::<Gaps>().iter().copied().collect::<Vec<Gap>>();
        assert_eq!(joined(&[gap(7, 9, 5), gap(9, 12, 3), gap(1, 2, 9), gap(5, 5, 0)]), [gap(1, 2, 9), gap(7, 12, 3)]);
        assert_eq!(joined(&[gap(1, 100, 7), gap(5, 6, 9)]), [gap(1, 100, 7)]);
        let nine: Vec<Gap> = (0..9).map(|at| gap(at * 100, at * 100 + if at == 4 { 80 } else { 10 }, at)).collect();
        let all = joined(&nine);
        assert_eq!((all.len(), all[4]), (8, gap(400, 510, 4)));
        assert!(
            nine.iter().all(|gap| all.iter().any(|kept| kept.from <= gap.from && gap.to <= kept.to)),
            "none is lost"
        );
    }
}
