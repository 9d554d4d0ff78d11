//! What a round of the recovery rules has to visit: most applications run as they should, and need none. What decides is counted
//! with each change of the snapshot, so that a plan visits no executor for it.

use super::rules::waits_again;
use super::waiting::waiting_group;
use crate::drivers::{target, view_of};
use crate::ownership::liveness::{DriverLiveness, ExecutorSet};
use crate::planning::PlanContext;
use crate::snapshot::{DriverPhase, DriverPod, DriverViewKey};

/// The pods of an application that a rule or a cost can concern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    /// None, whatever the time.
    Nothing,
    /// Drivers, PodGroups, and the executors that are not settled ([`crate::snapshot::Executor::is_settled`]).
    Unsettled,
    /// Any: the driver of some executors is gone or says something about them, or their PodGroup waits.
    All,
}

/// The pods of the application that a rule or a cost can concern.
pub(super) fn scope(context: &PlanContext<'_>) -> Scope {
    if context.sets.iter().any(|set| may_concern_all(context, set))
        || drivers(context).any(|driver| has_view(context, driver))
    {
        Scope::All
    } else if context.app.unsettled().is_empty()
        && context.groups().all(|(_, group)| !waits_again(group))
        && drivers(context).all(|driver| is_driver_settled(context, driver))
    {
        Scope::Nothing
    } else {
        Scope::Unsettled
    }
}

/// Whether a driver says something about its executors, or has closed its REST API.
fn has_view(context: &PlanContext<'_>, driver: &DriverPod) -> bool {
    let snapshot = context.snapshot;
    if snapshot.driver_views.is_empty() && snapshot.closed_drivers.is_empty() {
        return false;
    }
    let closed = DriverViewKey { app: context.key.clone(), driver: driver.creator };
    view_of(snapshot, context.key, driver.creator).is_some() || snapshot.closed_drivers.contains_key(&closed)
}

/// The labelled drivers of the application, and those of its executors, each of these once: many sets may have one driver.
fn drivers<'c>(context: &'c PlanContext<'_>) -> impl Iterator<Item = &'c DriverPod> {
    context.app.drivers.iter().chain(context.own_drivers()).map(|driver| &**driver)
}

/// Whether a rule or a cost may concern executors of the set that are settled.
fn may_concern_all(context: &PlanContext<'_>, set: &ExecutorSet<'_>) -> bool {
    let mut live = set.counts.iter().filter(|counts| counts.live > 0);
    live.any(|counts| {
        let scheduling = &counts.template.scheduling;
        set.driver == DriverLiveness::Gone || waiting_group(context.snapshot, context.key, scheduling).is_some()
    })
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
