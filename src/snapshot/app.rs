//! One application: its labelled drivers and its executors.

use std::sync::Arc;

use imbl::OrdMap;

use super::facts::{DriverPod, Executor, Life, Seat};
use crate::signature::Creator;

/// Executors in the order in which Spark made them: by number, then by name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExecutorKey {
    /// `spark-exec-id`, or the largest number where it is none.
    pub id: u64,
    /// The pod's name.
    pub name: Arc<str>,
}

impl ExecutorKey {
    /// The key of an executor.
    pub fn of(executor: &Executor) -> Self {
        Self { id: executor.exec_id.unwrap_or(u64::MAX), name: executor.name.clone() }
    }
}

/// An application.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct App {
    /// Pods labelled as its driver. Normally one; two while an application of the same selector is submitted again.
    pub drivers: Vec<Arc<DriverPod>>,
    /// Its executors, finished ones too as long as their pods exist.
    pub executors: OrdMap<ExecutorKey, Arc<Executor>>,
}

impl App {
    /// The labelled driver pod of that name.
    pub fn driver(&self, name: &str) -> Option<&Arc<DriverPod>> {
        self.drivers.iter().find(|driver| &*driver.name == name)
    }

    /// The labelled driver that still drives: not ended, not on its way out, the running one first.
    pub fn live_driver(&self) -> Option<&Arc<DriverPod>> {
        let running = self.drivers.iter().find(|driver| driver.is_live() && driver.life == Life::Running);
        running.or_else(|| self.drivers.iter().find(|driver| driver.is_live()))
    }

    /// The labelled driver that still drives and that, as our signature proves, this creator made.
    pub fn driver_made_by(&self, creator: Creator) -> Option<&Arc<DriverPod>> {
        self.drivers.iter().find(|driver| driver.is_live() && driver.maker() == Some(creator))
    }

    /// Executors that are pending or running.
    pub fn live(&self) -> impl Iterator<Item = &Arc<Executor>> {
        self.executors.values().filter(|executor| executor.is_live())
    }

    /// What the first executor of the default profile that this creator made, and that we placed, got; its later ones get
    /// the same. Only what our signature proves counts: labels and annotations are anybody's to write.
    pub fn first_seat(&self, creator: Creator) -> Option<&Arc<Seat>> {
        let placed = |executor: &&Arc<Executor>| {
            executor.creator() == Some(creator)
                && executor.template.default_profile
                && executor.template.seat.by.is_some()
        };
        self.executors.values().find(placed).map(|executor| &executor.template.seat)
    }

    /// Whether nothing is left of it.
    pub fn is_empty(&self) -> bool {
        self.drivers.is_empty() && self.executors.is_empty()
    }
}
