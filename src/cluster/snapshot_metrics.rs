//! Metrics of the snapshot, computed when they are requested, not with every change.

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use jiff::Timestamp;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Gauge, IntGauge, IntGaugeVec, Opts};

use crate::runtime::clock;
use crate::snapshot::{Application, DriverPhase, Snapshot};
use crate::spark::conf::Allocation;
use crate::spark::ids::AppKey;
use crate::spark::state::ExecutorPodState;
use crate::telemetry::registry::Registry;
use crate::{annotations, gang};

/// The metrics of a snapshot.
#[derive(Debug)]
pub struct SnapshotMetrics {
    applications: IntGauge,
    executors: IntGaugeVec,
    groups: IntGaugeVec,
    gangs: IntGaugeVec,
    gang_waiting: Gauge,
    idle_drivers: IntGauge,
    fallback: IntGauge,
}

impl SnapshotMetrics {
    /// The metrics, none of them set.
    pub fn new() -> prometheus::Result<SnapshotMetrics> {
        let gauges = |name: &str, labels: &[&str], help: &str| IntGaugeVec::new(Opts::new(name, help), labels);
        Ok(SnapshotMetrics {
            applications: IntGauge::new("spark_usher_applications", "Applications in the snapshot.")?,
            executors: gauges("spark_usher_executors", &["state"], "Executors in the snapshot, by state.")?,
            groups: gauges(
                "spark_usher_groups",
                &["scheduler"],
                "PodGroups in the snapshot that spark-usher manages.",
            )?,
            gangs: gauges(
                "spark_usher_gangs",
                &["state"],
                "PodGroups that spark-usher manages, by whether their executors wait or have started.",
            )?,
            gang_waiting: Gauge::new(
                "spark_usher_gang_waiting_seconds",
                "Waiting time of the gang that has waited longest; 0 if none waits.",
            )?,
            idle_drivers: IntGauge::new(
                "spark_usher_drivers_without_executors",
                "Running drivers whose known configuration requests executors and that have none pending or running.",
            )?,
            fallback: IntGauge::new(
                "spark_usher_fallback_pods",
                "Executors mutated by the fallback policy only: the webhook did not answer when they were created.",
            )?,
        })
    }

    /// Registers the metrics of the snapshot that is current when they are requested.
    pub fn register(registry: &Registry, snapshot: Arc<ArcSwap<Snapshot>>) -> prometheus::Result<()> {
        registry.register(Current { metrics: SnapshotMetrics::new()?, snapshot })
    }

    fn collectors(&self) -> [&dyn Collector; 7] {
        let SnapshotMetrics { applications, executors, groups, gangs, gang_waiting, idle_drivers, fallback } = self;
        [applications, executors, groups, gangs, gang_waiting, idle_drivers, fallback]
    }

    /// Sets the metrics to the state of this snapshot at `now`.
    pub fn observe(&self, snapshot: &Snapshot, now: Timestamp) {
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
        let idle = snapshot
            .apps
            .iter()
            .filter(|(key, app)| wants_executors(key, app, snapshot) && app.live().next().is_none());
        self.idle_drivers.set(to_gauge(idle.count()));
        self.observe_gangs(snapshot, now);
    }

    fn observe_gangs(&self, snapshot: &Snapshot, now: Timestamp) {
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
        for scheduler in gang::TABLE.iter().filter(|scheduler| !scheduler.apis.is_empty()) {
            let count = kinds.get(scheduler.kind).copied().unwrap_or_default();
            self.groups.with_label_values(&[scheduler.kind]).set(to_gauge(count));
        }
        self.gangs.with_label_values(&["waiting"]).set(to_gauge(waiting));
        self.gangs.with_label_values(&["started"]).set(to_gauge(started));
        #[expect(clippy::cast_precision_loss, reason = "an age in seconds fits a float's 53 bits")]
        self.gang_waiting.set(longest as f64);
    }
}

impl Collector for SnapshotMetrics {
    fn desc(&self) -> Vec<&Desc> {
        self.collectors().into_iter().flat_map(Collector::desc).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.collectors().into_iter().flat_map(Collector::collect).collect()
    }
}

/// The metrics of the current snapshot.
struct Current {
    metrics: SnapshotMetrics,
    snapshot: Arc<ArcSwap<Snapshot>>,
}

impl Collector for Current {
    fn desc(&self) -> Vec<&Desc> {
        self.metrics.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.metrics.observe(&self.snapshot.load(), clock::now());
        self.metrics.collect()
    }
}

/// Whether a running driver should have executors. A driver that allocates dynamically may have none, and it is unknown for
/// a driver whose configuration is unknown; Spark's own default is static.
fn wants_executors(key: &AppKey, app: &Application, snapshot: &Snapshot) -> bool {
    let driver = app.live_driver().filter(|driver| driver.phase == DriverPhase::Running);
    let conf = driver.and_then(|driver| snapshot.conf(key, driver));
    conf.is_some_and(|conf| match conf.allocation {
        Ok(Allocation::Static { instances }) => instances > 0,
        Ok(Allocation::Dynamic { min, .. }) => min > 0,
        Err(_) => false,
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
