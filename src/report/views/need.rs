//! What an application needs: how many executors its driver wants, and which of them it lacks.

use jiff::Timestamp;

use usher_core::drivers::target::{self, Target};
use usher_core::drivers::view_of;
use usher_core::lifecycle::exit::Exit;
use usher_core::lifecycle::remembered::RememberedExits;
use usher_core::ownership::liveness::{self, ExecutorSet};
use usher_core::recovery::shortage::{Demand, Shortage, shortage};
use usher_core::snapshot::Snapshot;
use usher_spark::ids::AppKey;

/// What an application needs now.
#[derive(Debug, Default)]
pub(super) struct Need {
    /// How many executors its driver wants; `None` without a live driver, or if that is not known.
    pub target: Option<Target>,
    /// What it lacks.
    pub shortage: Option<Shortage>,
}

/// What an application with these executors needs; `exits` are those of `remembered` that are of it.
pub(super) fn need(
    snapshot: &Snapshot,
    remembered: &RememberedExits,
    key: &AppKey,
    sets: &[ExecutorSet<'_>],
    exits: &[&Exit],
    now: Timestamp,
) -> Need {
    let liveness = liveness::of(sets);
    let Some(driver) = liveness.pod() else { return Need::default() };
    let view = view_of(snapshot, key, driver.creator);
    let target = target::target(snapshot, key, driver, view, target::replicas(snapshot, key, driver, sets.iter()));
    // A driver that is being deleted needs no more executors.
    let shortage = target.filter(|_| !driver.deleting).and_then(|target| {
        let forgotten = remembered.forgotten(key) > 0;
        shortage(Demand { snapshot, key, driver, target, exits, forgotten, now })
    });
    Need { target, shortage }
}
