//! What a running driver says about its executors, by Spark's REST API.

use std::time::Instant;

use jiff::Timestamp;

use crate::signature::Creator;
use crate::spark::ids::AppKey;
use crate::spark::rest::{DriverMetrics, ExecutorSummary};
use crate::time::Now;

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
}

impl DriverView {
    /// A view from the rows of a response, in any order.
    pub fn new(at: Now, mut executors: Vec<ExecutorSummary>, metrics: DriverMetrics) -> DriverView {
        executors.retain(|row| row.id.is_some());
        executors.sort_by_key(|row| row.id);
        executors.dedup_by_key(|row| row.id);
        DriverView { at: at.at, wall: at.wall, executors: executors.into(), metrics }
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

    /// Whether every executor that registered is in it: only then does a missing one prove anything. After the driver has
    /// dropped events once, its view is not complete again.
    pub fn is_complete(&self) -> bool {
        self.metrics.dropped_events == Some(0)
    }

    /// Whether it says the same as an earlier view, at another time.
    pub fn says_same(&self, other: &DriverView) -> bool {
        self.metrics == other.metrics && self.executors == other.executors
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::clock;

    fn now() -> Now {
        Now { at: clock::instant(), wall: Timestamp::UNIX_EPOCH }
    }

    fn row(id: Option<u64>, is_active: bool) -> ExecutorSummary {
        ExecutorSummary { id, is_active, registered: None, removed: None, remove_reason: None }
    }

    #[test]
    fn executors_are_found_by_id_in_any_order_without_the_driver() {
        let rows = vec![row(Some(7), true), row(None, true), row(Some(2), false), row(Some(7), false)];
        let view = DriverView::new(now(), rows, DriverMetrics::default());
        assert_eq!(view.executors().iter().map(|row| row.id).collect::<Vec<_>>(), [Some(2), Some(7)]);
        assert!(view.executor(7).unwrap().is_active && view.executor(3).is_none());
    }

    #[test]
    fn view_is_complete_only_if_no_events_were_dropped() {
        let of = |dropped_events| {
            DriverView::new(now(), Vec::new(), DriverMetrics { dropped_events, target: None }).is_complete()
        };
        assert!(of(Some(0)) && !of(Some(1)) && !of(None));
    }

    #[test]
    fn time_alone_is_no_change_of_a_view() {
        let now = now();
        let view = |at, rows| DriverView::new(at, rows, DriverMetrics::default());
        let before = view(now, vec![row(Some(1), true)]);
        assert!(
            view(Now { at: now.at + std::time::Duration::from_secs(30), ..now }, vec![row(Some(1), true)])
                .says_same(&before)
        );
        assert!(!view(now, vec![row(Some(1), false)]).says_same(&before));
        assert!(!view(now, vec![]).says_same(&before));
    }
}
