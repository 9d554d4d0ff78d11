//! Metrics of the snapshot, computed when they are requested, not with every change.

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntGauge, IntGaugeVec, Opts};

use usher_core::snapshot::Snapshot;
use usher_core::{annotations, gang};
use usher_net::telemetry::registry::{Registry, to_gauge};
use usher_spark::state::ExecutorPodState;

#[derive(Debug)]
pub struct SnapshotMetrics {
    applications: IntGauge,
    executors: IntGaugeVec,
    groups: IntGaugeVec,
    gangs: IntGaugeVec,
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
            fallback: IntGauge::new(
                "spark_usher_fallback_pods",
                "Executors that only the fallback policy mutated, because the webhook did not answer when they were created.",
            )?,
        })
    }

    /// Registers the metrics of the snapshot that is current when they are requested.
    pub fn register(registry: &Registry, snapshot: Arc<ArcSwap<Snapshot>>) -> prometheus::Result<()> {
        registry.register(Current { metrics: SnapshotMetrics::new()?, snapshot })
    }

    fn collectors(&self) -> [&dyn Collector; 5] {
        let SnapshotMetrics { applications, executors, groups, gangs, fallback } = self;
        [applications, executors, groups, gangs, fallback]
    }

    /// Sets the metrics to the state of this snapshot.
    pub fn observe(&self, snapshot: &Snapshot) {
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
        self.observe_gangs(snapshot);
    }

    fn observe_gangs(&self, snapshot: &Snapshot) {
        let mut kinds: HashMap<&str, usize> = HashMap::new();
        let (mut waiting, mut started) = (0, 0);
        for (key, group) in &snapshot.groups {
            *kinds.entry(key.scheduler).or_default() += 1;
            if group.started {
                started += 1;
            } else if !group.deleting {
                waiting += 1;
            }
        }
        for scheduler in gang::TABLE.iter().filter(|scheduler| !scheduler.apis.is_empty()) {
            let count = kinds.get(scheduler.kind).copied().unwrap_or_default();
            self.groups.with_label_values(&[scheduler.kind]).set(to_gauge(count));
        }
        self.gangs.with_label_values(&["waiting"]).set(to_gauge(waiting));
        self.gangs.with_label_values(&["started"]).set(to_gauge(started));
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
        self.metrics.observe(&self.snapshot.load());
        self.metrics.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_discriminants_equal_indexes_in_all() {
        assert!(ExecutorPodState::ALL.iter().enumerate().all(|(i, state)| *state as usize == i));
    }
}
