//! Metrics of the snapshot, computed when they are requested, not with every change.

use std::collections::HashMap;

use jiff::Timestamp;

use super::metrics::Metrics;
use crate::snapshot::{Application, DriverPhase, Snapshot};
use crate::spark::conf::Allocation;
use crate::spark::state::ExecutorPodState;
use crate::{annotations, gang};

impl Metrics {
    /// Updates the metrics of the snapshot.
    pub fn observe_snapshot(&self, snapshot: &Snapshot, now: Timestamp) {
        self.applications.set(to_gauge(snapshot.apps.len()));
        let mut counts = [0; ExecutorPodState::ALL.len()];
        let mut fallback = 0;
        for executor in snapshot.apps.values().flat_map(|app| app.executors().values()) {
            if let Some(count) = counts.get_mut(executor.shown_state() as usize) {
                *count += 1;
            }
            fallback += usize::from(executor.template.scheduling.by.as_deref() == Some(annotations::BY_FALLBACK));
        }
        for (state, count) in ExecutorPodState::ALL.iter().zip(counts) {
            self.executors.with_label_values(&[state.as_str()]).set(to_gauge(count));
        }
        self.fallback.set(to_gauge(fallback));
        let idle = snapshot.apps.values().filter(|app| wants_executors(app, snapshot) && app.live().next().is_none());
        self.idle_drivers.set(to_gauge(idle.count()));
        self.gangs(snapshot, now);
    }

    fn gangs(&self, snapshot: &Snapshot, now: Timestamp) {
        let mut kinds: HashMap<&str, usize> = HashMap::new();
        let (mut waiting, mut started, mut longest) = (0, 0, 0);
        for (key, group) in &snapshot.groups {
            *kinds.entry(key.scheduler).or_default() += 1;
            if group.started {
                started += 1;
            } else if !group.deleting {
                waiting += 1;
                longest = longest.max(group.created.map_or(0, |created| now.as_second().saturating_sub(created)));
            }
        }
        for row in gang::TABLE.iter().filter(|row| !row.apis.is_empty()) {
            let count = kinds.get(row.kind).copied().unwrap_or_default();
            self.groups.with_label_values(&[row.kind]).set(to_gauge(count));
        }
        self.gangs.with_label_values(&["waiting"]).set(to_gauge(waiting));
        self.gangs.with_label_values(&["started"]).set(to_gauge(started));
        #[expect(clippy::cast_precision_loss, reason = "an age in seconds fits a float's 53 bits")]
        self.gang_waiting.set(longest as f64);
    }
}

/// Whether a running driver should have executors. A driver that allocates dynamically may have none, and it is unknown for
/// a driver whose configuration is unknown; Spark's own default is static.
fn wants_executors(app: &Application, snapshot: &Snapshot) -> bool {
    let driver = app.live_driver().filter(|driver| driver.phase == DriverPhase::Running);
    let conf = driver.and_then(|driver| snapshot.conf(&driver.uid));
    conf.is_some_and(|conf| match conf.allocation {
        Allocation::Static { instances } => instances > 0,
        Allocation::Dynamic { min, .. } => min > 0,
    })
}

fn to_gauge(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_discriminants_equal_indexes_in_all() {
        assert!(ExecutorPodState::ALL.iter().enumerate().all(|(i, state)| *state as usize == i));
    }
}
