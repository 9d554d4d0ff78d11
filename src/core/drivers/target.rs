//! How many executors an application should have.

use crate::annotations::Override;
use crate::ownership::liveness::ExecutorSet;
use crate::snapshot::{DriverPod, DriverView, Snapshot};
use usher_spark::conf::Allocation;
use usher_spark::ids::AppKey;

/// How many executors a driver wants now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// How many.
    pub count: u32,
    /// How that is known.
    pub source: TargetSource,
}

/// How the number of executors that a driver wants is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetSource {
    /// Static allocation: `spark.executor.instances`.
    Instances,
    /// Dynamic allocation: the driver's metric `numberTargetExecutors`.
    Metric,
    /// `spec.replicas` of the StatefulSets or Deployments that the driver owns.
    Replicas,
    /// Dynamic allocation, and the driver's metrics are not known: at least `spark.dynamicAllocation.minExecutors`.
    MinExecutors,
    /// The configuration is not known: the annotation `spark-usher.io/min-member`.
    Annotation,
}

impl TargetSource {
    /// The source, for people.
    pub fn text(self) -> &'static str {
        match self {
            TargetSource::Instances => "spark.executor.instances",
            TargetSource::Metric => "the target of its dynamic allocation",
            TargetSource::Replicas => "spec.replicas of the workloads that its driver owns",
            TargetSource::MinExecutors => "spark.dynamicAllocation.minExecutors",
            TargetSource::Annotation => "annotation spark-usher.io/min-member",
        }
    }
}

/// How many executors the StatefulSets or Deployments that a driver owns have; `None` if it owns none.
pub fn replicas<'v>(
    snapshot: &Snapshot,
    key: &AppKey,
    driver: &DriverPod,
    sets: impl Iterator<Item = &'v ExecutorSet<'v>>,
) -> Option<u32> {
    let of_driver = sets.filter(|set| set.own_driver().is_some_and(|owner| owner.uid == driver.uid));
    of_driver.filter_map(|set| set.replicas(snapshot, key.namespace(), |_| true)).reduce(u32::saturating_add)
}

/// How many executors a driver wants; `None` if that is not known. `replicas` are those of its StatefulSets or Deployments.
pub fn target(
    snapshot: &Snapshot,
    key: &AppKey,
    driver: &DriverPod,
    view: Option<&DriverView>,
    replicas: Option<u32>,
) -> Option<Target> {
    // Only dynamic allocation has this metric.
    if let Some(count) = view.and_then(|view| view.metrics.target) {
        return Some(Target { count, source: TargetSource::Metric });
    }
    let by_workload = replicas.map(|count| Target { count, source: TargetSource::Replicas });
    match snapshot.conf(key, driver).and_then(|conf| conf.allocation.ok()) {
        Some(Allocation::Static { instances }) => Some(Target { count: instances, source: TargetSource::Instances }),
        // The driver changes it with its own target.
        _ if by_workload.is_some() => by_workload,
        Some(Allocation::Dynamic { min, .. }) => Some(Target { count: min, source: TargetSource::MinExecutors }),
        None => {
            let count = driver.overrides.get(Override::MinMember)?.parse().ok()?;
            Some(Target { count, source: TargetSource::Annotation })
        }
    }
}
