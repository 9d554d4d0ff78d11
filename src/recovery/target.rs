//! How many executors an application should have.

use crate::annotations::Override;
use crate::snapshot::{DriverPod, DriverView, Snapshot};
use crate::spark::conf::Allocation;

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
            TargetSource::MinExecutors => "spark.dynamicAllocation.minExecutors",
            TargetSource::Annotation => "annotation spark-usher.io/min-member",
        }
    }
}

/// How many executors a driver wants; `None` if that is not known.
pub fn target(snapshot: &Snapshot, driver: &DriverPod, view: Option<&DriverView>) -> Option<Target> {
    // Only dynamic allocation has this metric.
    if let Some(count) = view.and_then(|view| view.metrics.target) {
        return Some(Target { count, source: TargetSource::Metric });
    }
    match snapshot.conf(&driver.uid).map(|conf| conf.allocation) {
        Some(Allocation::Static { instances }) => Some(Target { count: instances, source: TargetSource::Instances }),
        Some(Allocation::Dynamic { min, .. }) => Some(Target { count: min, source: TargetSource::MinExecutors }),
        None => {
            let count = driver.overrides.get(Override::MinMember)?.parse().ok()?;
            Some(Target { count, source: TargetSource::Annotation })
        }
    }
}
