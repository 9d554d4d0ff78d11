//! Which exits were reported: a checkpoint in the Lease, so that the next leader reports each exit once.
//!
//! With each renewal, a leader writes up to which resourceVersion of pods it has reported every exit that its watch showed. The
//! next leader reports newer exits. After a graceful stop that is exact, because the last checkpoint is written when the Lease is
//! released. After a crash, exits between the last checkpoint and the crash may have been reported, and are reported as such.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;

/// Every exit that the leader's watch had shown up to this version is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// The resourceVersion.
    pub through: u64,
    /// When the checkpoint was written.
    pub at: Timestamp,
    /// Except exits after the first and up to the second version, when this leader did not run yet and there was no leader: of
    /// these it knows only executors that still existed. Other replicas may have observed more.
    pub gap: Option<(u64, u64)>,
}

impl Checkpoint {
    /// Whether an exit is reported; `None` if that is unknown.
    pub fn covers(&self, version: u64) -> Option<bool> {
        match self.gap {
            Some((from, to)) if from < version && version <= to => None,
            _ => Some(version <= self.through),
        }
    }
}

impl fmt::Display for Checkpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.through, self.at)?;
        match self.gap {
            Some((from, to)) => write!(f, " {from}-{to}"),
            None => Ok(()),
        }
    }
}

/// A checkpoint that cannot be parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a resourceVersion, a time and, optionally, a gap such as 7-9")]
pub struct BadCheckpoint;

impl FromStr for Checkpoint {
    type Err = BadCheckpoint;

    fn from_str(text: &str) -> Result<Checkpoint, BadCheckpoint> {
        let number = |text: &str| text.parse::<u64>().map_err(|_| BadCheckpoint);
        let mut parts = text.split(' ');
        let (through, at) = (parts.next().ok_or(BadCheckpoint)?, parts.next().ok_or(BadCheckpoint)?);
        let gap = match parts.next().map(|gap| gap.split_once('-').ok_or(BadCheckpoint)).transpose()? {
            Some((from, to)) => Some((number(from)?, number(to)?)),
            None => None,
        };
        Ok(Checkpoint { through: number(through)?, at: at.parse().map_err(|_| BadCheckpoint)?, gap })
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

    #[test]
    fn checkpoint_round_trips_through_text_and_gap_is_uncertain() {
        let checkpoint = Checkpoint { through: 1234, at: Timestamp::from_second(1_800_000_000).unwrap(), gap: None };
        assert_eq!(checkpoint.to_string(), "1234 2027-01-15T08:00:00Z");
        assert_eq!(checkpoint.to_string().parse(), Ok(checkpoint));
        let checkpoint = Checkpoint { gap: Some((7, 9)), ..checkpoint };
        assert_eq!(checkpoint.to_string(), "1234 2027-01-15T08:00:00Z 7-9");
        assert_eq!(checkpoint.to_string().parse(), Ok(checkpoint));
        let covered = [7, 8, 9, 10, 1234, 1235].map(|version| checkpoint.covers(version));
        assert_eq!(covered, [Some(true), None, None, Some(true), Some(true), Some(false)]);
        for bad in
            ["", "1", "x 2027-01-15T08:00:00Z", "1 yesterday", "-1 2027-01-15T08:00:00Z", "1 2027-01-15T08:00:00Z 7"]
        {
            assert_eq!(bad.parse::<Checkpoint>(), Err(BadCheckpoint), "{bad}");
        }
    }
}
