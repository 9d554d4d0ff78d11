//! Metrics of what the applications of each namespace need, computed when they are requested. A namespace that needs nothing has no
//! series: with [`MAX_NAMESPACES`](usher_core::recovery::namespaces::MAX_NAMESPACES) named ones, their number is bounded.

use std::sync::Arc;

use arc_swap::ArcSwap;
use jiff::Timestamp;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntGaugeVec, Opts};

use super::replica::Replica;
use usher_core::leader::LeaderState;
use usher_core::snapshot::Snapshot;
use usher_net::telemetry::registry::{Registry, to_gauge};
use usher_report::views::{self, History, NamespaceNeeds};
use usher_runtime::clock;

/// The metrics, with the values of one moment: two scrapes at a time do not see each other's.
struct Gauges {
    lacking: IntGaugeVec,
    lacking_seconds: IntGaugeVec,
    gang_seconds: IntGaugeVec,
    idle_drivers: IntGaugeVec,
}

impl Gauges {
    fn new() -> prometheus::Result<Gauges> {
        let gauges = |name: &str, labels: &[&str], help: &str| IntGaugeVec::new(Opts::new(name, help), labels);
        Ok(Gauges {
            lacking: gauges(
                "spark_usher_executors_lacking",
                &["namespace", "cause"],
                "Executors that applications lack, by cause; only the leader has values.",
            )?,
            lacking_seconds: gauges(
                "spark_usher_shortage_seconds",
                &["namespace"],
                "Seconds for which an application has lacked executors: the longest current shortage; only the leader has values.",
            )?,
            gang_seconds: gauges(
                "spark_usher_gang_waiting_seconds",
                &["namespace"],
                "Waiting time of the gang that has waited longest.",
            )?,
            idle_drivers: gauges(
                "spark_usher_drivers_without_executors",
                &["namespace"],
                "Running drivers whose known configuration requests executors, but which have no pending or running executors.",
            )?,
        })
    }

    fn set(&self, snapshot: &Snapshot, history: Option<&History>, now: Timestamp) {
        let all = views::namespace_needs(snapshot, history, now);
        for (namespace, needs) in views::largest(&all, NamespaceNeeds::lacks) {
            for (cause, count) in &needs.lacking {
                self.lacking.with_label_values(&[namespace, cause.as_str()]).set(to_gauge(*count));
            }
        }
        let one = |gauge: &IntGaugeVec, value: fn(&NamespaceNeeds) -> Option<i64>| {
            for (namespace, needs) in views::largest(&all, value) {
                gauge.with_label_values(&[namespace]).set(value(&needs).unwrap_or_default());
            }
        };
        one(&self.lacking_seconds, |needs| needs.lacking_seconds);
        one(&self.gang_seconds, |needs| needs.gang_seconds);
        one(&self.idle_drivers, |needs| Some(to_gauge(needs.idle_drivers)).filter(|count| *count > 0));
    }

    fn all(&self) -> [&dyn Collector; 4] {
        let Gauges { lacking, lacking_seconds, gang_seconds, idle_drivers } = self;
        [lacking, lacking_seconds, gang_seconds, idle_drivers]
    }
}

/// The metrics of what namespaces need.
pub struct NamespaceMetrics {
    described: Gauges,
    snapshot: Arc<ArcSwap<Snapshot>>,
    history: Arc<ArcSwap<History>>,
    leader_state: Arc<dyn Fn() -> LeaderState + Send + Sync>,
}

impl NamespaceMetrics {
    /// Registers the metrics of what this replica knows when they are requested.
    ///
    /// # Errors
    ///
    /// One of them is registered already.
    pub fn register(registry: &Registry, replica: &Replica) -> prometheus::Result<()> {
        registry.register(NamespaceMetrics {
            described: Gauges::new()?,
            snapshot: replica.snapshot(),
            history: replica.history(),
            leader_state: replica.leader_state(),
        })
    }

    /// The metrics of this snapshot at `now`; without a history, those that every replica has.
    pub fn observe(snapshot: &Snapshot, history: Option<&History>, now: Timestamp) -> Vec<MetricFamily> {
        let Ok(gauges) = Gauges::new() else { return Vec::new() };
        gauges.set(snapshot, history, now);
        let families = gauges.all().into_iter().flat_map(Collector::collect);
        families.filter(|family| !family.get_metric().is_empty()).collect()
    }
}

impl Collector for NamespaceMetrics {
    fn desc(&self) -> Vec<&Desc> {
        self.described.all().into_iter().flat_map(Collector::desc).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let history = (self.leader_state)().eq(&LeaderState::Leader).then(|| self.history.load());
        NamespaceMetrics::observe(&self.snapshot.load(), history.as_deref().map(|history| &**history), clock::now())
    }
}
