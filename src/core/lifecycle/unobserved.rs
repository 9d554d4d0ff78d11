//! The changes that this replica did not observe, because its watch was interrupted.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::checkpoint::Gap;

/// At most this many interruptions are kept; the oldest is then joined with the next.
const MAX: usize = 8;

/// The latest interruptions: the resourceVersions between which nothing was observed, and when that was detected.
#[derive(Debug, Default)]
pub(super) struct Unobserved(VecDeque<(Instant, (u64, u64))>);

impl Unobserved {
    /// Adds an interruption, and forgets those that were detected this long ago.
    pub(super) fn add(&mut self, versions: (u64, u64), now: Instant, lasts: Duration) {
        self.0.retain(|(at, _)| now.saturating_duration_since(*at) < lasts);
        if self.0.len() >= MAX
            && let Some((_, (from, to))) = self.0.pop_front()
            && let Some((_, next)) = self.0.front_mut()
        {
            *next = (next.0.min(from), next.1.max(to)); // None is lost.
        }
        self.0.push_back((now, versions));
    }

    /// Whether a change with this resourceVersion was not observed.
    pub(super) fn has(&self, version: u64) -> bool {
        self.0.iter().any(|(_, (from, to))| *from < version && version <= *to)
    }

    /// Whether changes of a gap were not observed.
    pub(super) fn overlaps(&self, gap: &Gap) -> bool {
        self.0.iter().any(|(_, (from, to))| *from < gap.to && gap.from < *to)
    }

    /// The interruptions.
    pub(super) fn iter(&self) -> impl Iterator<Item = &(Instant, (u64, u64))> {
        self.0.iter()
    }
}
