//! Whether a round of the recovery rules is due at all: most applications run as they should, and need none. What decides is counted
//! with each change of the snapshot, so that a plan visits no executor for it.

use crate::ownership::liveness::{DriverLiveness, ExecutorSet};
use crate::recovery::registration::view_of;
use crate::recovery::rules::waits_again;
use crate::recovery::shortage::waiting_group;
use crate::recovery::target;
use crate::snapshot::{DriverPhase, DriverPod, DriverViewKey};

use super::context::PlanContext;

/// Whether no rule and no cost can concern a pod of the application, whatever the time. A driver's view may concern any executor: an
/// application with views is never settled.
pub(super) fn is_settled(context: &PlanContext<'_>) -> bool {
    let snapshot = context.snapshot;
    context.sets.iter().all(|set| is_set_settled(context, set))
        && context.groups().all(|(_, group)| !waits_again(group))
        && drivers(context).all(|driver| is_driver_settled(context, driver))
        && (snapshot.driver_views.is_empty() && snapshot.closed_drivers.is_empty()
            || drivers(context).all(|driver| {
                let closed = DriverViewKey { app: context.key.clone(), driver: driver.creator };
                view_of(snapshot, context.key, driver.creator).is_none()
                    && !snapshot.closed_drivers.contains_key(&closed)
            }))
}

/// The labelled drivers of the application, and those of its executors, each of these once: many sets may have one driver.
fn drivers<'c>(context: &'c PlanContext<'_>) -> impl Iterator<Item = &'c DriverPod> {
    let of_one = context.by_driver.chunk_by(|(a, _), (b, _)| a == b);
    let own = of_one.filter_map(|sets| sets.iter().find_map(|(_, set)| set.own_driver()));
    context.app.drivers.iter().chain(own).map(|driver| &**driver)
}

fn is_set_settled(context: &PlanContext<'_>, set: &ExecutorSet<'_>) -> bool {
    let live = || set.counts.iter().filter(|counts| counts.live > 0);
    let waits = || {
        let mut scheduling = live().map(|counts| &counts.template.scheduling);
        scheduling.any(|scheduling| waiting_group(context.snapshot, context.key, scheduling).is_some())
    };
    set.counts.iter().all(|counts| counts.unsettled == 0)
        && (set.driver != DriverLiveness::Gone || live().next().is_none())
        && !waits()
}

/// Whether a driver runs Spark, and has executors if it wants some.
fn is_driver_settled(context: &PlanContext<'_>, driver: &DriverPod) -> bool {
    let sets = || context.of_driver(&driver.uid);
    let has_executors = || sets().flat_map(|set| &set.counts).any(|counts| counts.undeleted > 0);
    let wants_some = || {
        let replicas = target::replicas(context.snapshot, context.key, driver, sets());
        let target = target::target(context.snapshot, context.key, driver, None, replicas);
        target.is_some_and(|target| target.count > 0)
    };
    !driver.lingers && (driver.phase != DriverPhase::Running || has_executors() || !wants_some())
}
