//! What a running driver says about its executors, by Spark's REST API.

use std::time::Instant;

use jiff::Timestamp;

use crate::signature::Creator;
use usher_spark::ids::AppKey;
use usher_spark::rest::{DriverMetrics, ExecutorSummary};
use usher_spark::time::Now;

/// The key of a view. A driver's pod may run several applications, and several pods may claim one: a view says nothing about
/// executors of another pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DriverViewKey {
    /// The application.
    pub app: AppKey,
    /// The driver's pod, by name and uid, as the creator of its executors.
    pub driver: Creator,
}

/// A driver's view of one application's executors, as its status store has it. A tenant can answer anything.
#[derive(Clone, Debug, PartialEq)]
pub struct DriverView {
    /// When the request was sent: what happened later may be missing.
    pub at: Instant,
    /// The same by the wall clock, for display.
    pub wall: Timestamp,
    /// Its executors, by exec id: registered ones, and the latest removed ones (`spark.ui.retainedDeadExecutors`, 100).
    executors: Box<[ExecutorSummary]>,
    /// What its metrics say; read after the executors.
    pub metrics: DriverMetrics,
    is_complete: bool,
}

impl DriverView {
    /// A view from the rows of a response, in any order, of a driver that shows this number of removed executors.
    pub fn new(at: Now, mut executors: Vec<ExecutorSummary>, metrics: DriverMetrics, retained_dead: u32) -> DriverView {
        let is_complete = metrics.is_complete(&executors, retained_dead);
        executors.retain(|row| row.id.is_some());
        executors.sort_by_key(|row| row.id);
        executors.dedup_by_key(|row| row.id);
        DriverView { at: at.at, wall: at.wall, executors: executors.into(), metrics, is_complete }
    }

    /// Its executors, by exec id.
    pub fn executors(&self) -> &[ExecutorSummary] {
        &self.executors
    }

    /// The executor of this id.
    pub fn executor(&self, id: u64) -> Option<&ExecutorSummary> {
        let at = self.executors.binary_search_by_key(&Some(id), |row| row.id).ok()?;
        self.executors.get(at)
    }

    /// Whether every executor that registered is in it ([`DriverMetrics::is_complete`]).
    pub fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Whether it says the same as an earlier view, at another time.
    pub fn says_same(&self, other: &DriverView) -> bool {
        // The length of its queue is never the same.
        let shown = |view: &DriverView| DriverMetrics { queued_events: None, ..view.metrics };
        shown(self) == shown(other) && self.is_complete == other.is_complete && self.executors == other.executors
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_time::instant;

    fn now() -> Now {
        Now { at: instant(), wall: Timestamp::UNIX_EPOCH }
    }

    fn row(id: Option<u64>, is_active: bool) -> ExecutorSummary {
        ExecutorSummary { id, is_active, is_excluded: false, registered: None, removed: None, remove_reason: None }
    }

    #[test]
    fn executors_are_found_by_id_in_any_order_without_the_driver() {
        let rows = vec![row(Some(7), true), row(None, true), row(Some(2), false), row(Some(7), false)];
        let view = DriverView::new(now(), rows, DriverMetrics::default(), 100);
        assert_eq!(view.executors().iter().map(|row| row.id).collect::<Vec<_>>(), [Some(2), Some(7)]);
        assert!(view.executor(7).unwrap().is_active && view.executor(3).is_none());
    }

    #[test]
    fn view_is_complete_only_if_nothing_can_be_missing() {
        let is_complete = |dropped_events, queued_events, rows: Vec<ExecutorSummary>, retained_dead| {
            let metrics = DriverMetrics { dropped_events, queued_events, target: None };
            DriverView::new(now(), rows, metrics, retained_dead).is_complete()
        };
        assert!(
            is_complete(Some(0), Some(0), vec![], 100)
                && !is_complete(Some(1), Some(0), vec![], 100)
                && !is_complete(None, Some(0), vec![], 100)
        );
        // Its status store lags behind.
        assert!(is_complete(Some(0), Some(1000), vec![], 100) && !is_complete(Some(0), Some(1001), vec![], 100));
        assert!(!is_complete(Some(0), None, vec![], 100));
        // Rows of removed executors may have been deleted: when there are 101, ten are.
        let removed = |count: u64| (1..=count).map(|id| row(Some(id), false)).chain([row(Some(1000), true)]).collect();
        assert!(is_complete(Some(0), Some(0), removed(89), 100) && !is_complete(Some(0), Some(0), removed(90), 100));
        assert!(is_complete(Some(0), Some(0), removed(8), 10) && !is_complete(Some(0), Some(0), removed(9), 10));
        assert!(!is_complete(Some(0), Some(0), vec![], 0));
    }

    #[test]
    fn time_alone_is_no_change_of_a_view() {
        let now = now();
        let view = |at, rows| DriverView::new(at, rows, DriverMetrics::default(), 100);
        let before = view(now, vec![row(Some(1), true)]);
        assert!(
            view(Now { at: now.at + std::time::Duration::from_secs(30), ..now }, vec![row(Some(1), true)])
                .says_same(&before)
        );
        assert!(!view(now, vec![row(Some(1), false)]).says_same(&before));
        assert!(!view(now, vec![]).says_same(&before));
    }
}
