//! Which resources a replica does not see: their first list, or a later one, is not complete, or their watch does not open again.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use prometheus::IntGaugeVec;

use usher_kube::stream::STEADY;
use usher_runtime::clock;
use usher_spark::time::whole_second;

/// After this time it is said, and again as often: an API server sends the first list in seconds.
const OVERDUE: Duration = Duration::from_secs(60);

/// The resources that this replica does not see, and since when. Shared by all watches, the metrics, the page and the debug port.
#[derive(Clone, Debug)]
pub struct Unseen {
    /// By resource and watch: a scheduler's PodGroups have a watch of their own.
    since: Arc<Mutex<BTreeMap<(&'static str, u64), Timestamp>>>,
    watches: Arc<AtomicU64>,
    gauge: IntGaugeVec,
}

impl Unseen {
    /// Nothing is watched yet.
    pub(super) fn new(gauge: IntGaugeVec) -> Unseen {
        Unseen { since: Arc::default(), watches: Arc::default(), gauge }
    }

    /// The resources that were not seen for a minute.
    fn overdue(&self, now: Timestamp) -> Vec<(&'static str, Timestamp)> {
        let is_overdue = |since: &Timestamp| Duration::try_from(now.duration_since(*since)).is_ok_and(|d| d >= OVERDUE);
        let since = self.since();
        let mut found: Vec<_> =
            since.iter().filter(|(_, since)| is_overdue(since)).map(|((name, _), since)| (*name, *since)).collect();
        found.sort_unstable();
        found.dedup_by_key(|(name, _)| *name);
        found
    }

    /// The same for a reader, such as `nodes since 2026-11-26T09:00:00Z, pods since 2026-11-26T09:00:05Z`; `None` if there are none.
    pub fn text(&self, now: Timestamp) -> Option<String> {
        let all = self.overdue(now).into_iter().map(|(name, since)| format!("{name} since {}", whole_second(since)));
        Some(all.collect::<Vec<_>>().join(", ")).filter(|text| !text.is_empty())
    }

    fn since(&self) -> MutexGuard<'_, BTreeMap<(&'static str, u64), Timestamp>> {
        self.since.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, key: (&'static str, u64), since: Option<Timestamp>) {
        let mut all = self.since();
        match since {
            Some(since) => all.insert(key, since),
            None => all.remove(&key),
        };
        let of_resource = all.iter().filter(|((name, _), _)| *name == key.0);
        let first = of_resource.map(|(_, since)| since.as_second()).min();
        self.gauge.with_label_values(&[key.0]).set(first.unwrap_or_default());
    }

    /// Follows one watch of this resource. It is not seen yet.
    pub(super) fn follow(&self, name: &'static str) -> Progress {
        let key = (name, self.watches.fetch_add(1, Ordering::Relaxed));
        let mut progress = Progress { unseen: self.clone(), key, since: None, opened: None, next: clock::instant() };
        progress.lost();
        progress
    }
}

/// The progress of one watch.
#[derive(Debug)]
pub(super) struct Progress {
    unseen: Unseen,
    key: (&'static str, u64),
    since: Option<Timestamp>,
    opened: Option<Instant>,
    /// When it is said that the resource is not seen.
    next: Instant,
}

impl Progress {
    /// The list is not complete, or the watch was interrupted.
    pub(super) fn lost(&mut self) {
        self.opened = None;
        if self.since.is_none() {
            let now = clock::now();
            (self.since, self.next) = (Some(now), clock::instant() + OVERDUE);
            self.unseen.set(self.key, self.since);
        }
    }

    /// The list is complete, or the watch delivered something after it.
    pub(super) fn made(&mut self) {
        self.opened = None;
        if self.since.take().is_some() {
            self.unseen.set(self.key, None);
        }
    }

    /// The watch is open. That alone is no progress: some servers end it immediately.
    pub(super) fn opened(&mut self) {
        self.opened = Some(clock::instant());
    }

    /// When to call [`Progress::look`].
    pub(super) fn next(&self) -> Option<Instant> {
        let steady = self.opened.map(|opened| opened + STEADY);
        self.since.map(|_| steady.map_or(self.next, |steady| steady.min(self.next)))
    }

    /// Says that the resource is not seen if that is so for a minute, or two, and so on. Returns whether it is seen: its watch stays open.
    pub(super) fn look(&mut self) -> bool {
        let now = clock::instant();
        if self.opened.is_some_and(|opened| now.saturating_duration_since(opened) >= STEADY) {
            self.made();
            return true;
        }
        if let Some(since) = self.since.filter(|_| now >= self.next) {
            self.next = now + OVERDUE;
            tracing::warn!(
                resource = self.key.0, since = %whole_second(since),
                "the API server does not complete the list of a resource, or does not open its watch: decisions are made without what is not seen"
            );
        }
        false
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.made();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus::Opts;

    fn unseen() -> Unseen {
        Unseen::new(IntGaugeVec::new(Opts::new("unseen", "help"), &["resource"]).unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn resource_is_unseen_until_its_list_is_complete_or_its_watch_stays_open() {
        let unseen = unseen();
        let begin = clock::now();
        let later = |seconds| begin + Duration::from_secs(seconds);
        let gauge = || unseen.gauge.with_label_values(&["pods"]).get();
        let mut pods = unseen.follow("pods");
        let names = |seconds| unseen.overdue(later(seconds)).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        assert!(names(58).is_empty() && gauge() >= begin.as_second());
        assert_eq!(names(62), ["pods"]);
        assert_eq!(unseen.text(later(62)), Some(format!("pods since {}", whole_second(begin))));
        pods.made();
        assert!(names(62).is_empty() && gauge() == 0 && pods.next().is_none());
        // An interruption, after which the watch opens and is ended immediately.
        pods.lost();
        pods.opened();
        pods.lost();
        assert_eq!(names(62), ["pods"]);
        pods.opened();
        tokio::time::advance(STEADY).await;
        assert!(pods.look());
        assert!(names(62).is_empty());
        // Two watches of one resource, of which the second one begins later, and ends.
        let mut one = unseen.follow("podgroups");
        one.made();
        let mut two = unseen.follow("podgroups");
        one.lost();
        two.made();
        assert_eq!(names(62), ["podgroups"]);
        one.made();
        two.lost();
        assert_eq!(names(62), ["podgroups"]);
        drop(two);
        assert!(names(62).is_empty());
    }
}
