//! Joins an application's executor pods with its driver's view, by exec id.

use std::time::{Duration, Instant};

use crate::ownership::contradiction::may_drive;
use crate::ownership::workload::{self, OwningPod};
use crate::signature::Creator;
use crate::snapshot::{Application, DriverPod, DriverView, DriverViewKey, Executor, ExecutorKey, Snapshot, Stage};
use usher_spark::ids::AppKey;
use usher_spark::rest::ExecutorSummary;

/// What the driver knows about an executor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Registration<'v> {
    /// Its driver was not polled, did not answer, or is unknown; or its view lacks the executor and proves nothing: it is
    /// incomplete, or the executor was too young.
    Unknown,
    /// It had not registered within the given time since it was first observed running.
    NotRegistered,
    /// It has registered, and the driver has not removed it. It may be broken all the same.
    Registered(&'v ExecutorSummary),
    /// The driver has removed it, while its pod exists.
    Removed(&'v ExecutorSummary),
}

/// A driver's view of the executors that this pod created.
pub fn view_of<'v>(snapshot: &'v Snapshot, app: &AppKey, driver: Creator) -> Option<&'v DriverView> {
    snapshot.driver_views.get(&DriverViewKey { app: app.clone(), driver }).map(|view| &**view)
}

/// What an executor's driver knows about it. Only the view of the pod that is its proven creator or its owner counts. `within` is
/// the time in which an executor registers.
pub fn registration<'v>(
    snapshot: &'v Snapshot,
    app: &AppKey,
    executor: &Executor,
    within: Duration,
) -> Registration<'v> {
    let view = driver_of(snapshot, app, executor).and_then(|creator| view_of(snapshot, app, creator));
    registration_in(view, executor, Some(within))
}

/// The row of an executor in the view of its driver.
pub fn row_of<'v>(snapshot: &'v Snapshot, app: &AppKey, executor: &Executor) -> Option<&'v ExecutorSummary> {
    let view = driver_of(snapshot, app, executor).and_then(|creator| view_of(snapshot, app, creator))?;
    view.executor(executor.exec_id?.into())
}

/// Whether an executor's driver schedules no tasks on it (`spark.excludeOnFailure`).
pub fn is_excluded(snapshot: &Snapshot, app: &AppKey, executor: &Executor) -> bool {
    matches!(registration(snapshot, app, executor, Duration::MAX), Registration::Registered(row) if row.is_excluded)
}

/// The pod that is the executor's proven creator or its owner, directly or as the owner of its StatefulSet or Deployment.
fn driver_of(snapshot: &Snapshot, app: &AppKey, executor: &Executor) -> Option<Creator> {
    let owner = executor.template.owner.as_ref().filter(|owner| !owner.is_pod());
    match owner.map(|owner| workload::owning_pod(snapshot, app.namespace(), owner)) {
        Some(OwningPod::Pod(pod)) => Some(pod.creator()),
        Some(OwningPod::Unread | OwningPod::None) => None,
        None => executor.driver_creator(),
    }
}

/// The same by the view of the pod that is the executor's proven creator or its owner. Without `within`, an executor that is
/// missing proves nothing.
pub fn registration_in<'v>(
    view: Option<&'v DriverView>,
    executor: &Executor,
    within: Option<Duration>,
) -> Registration<'v> {
    let (Some(view), Some(id)) = (view, executor.exec_id.map(u64::from)) else { return Registration::Unknown };
    match view.executor(id) {
        Some(row) if row.is_active => Registration::Registered(row),
        Some(row) => Registration::Removed(row),
        None if view.is_complete() && within.is_some_and(|within| runs_for(executor, view.at) >= within) => {
            Registration::NotRegistered
        }
        None => Registration::Unknown,
    }
}

/// For how long an executor had run at that time, as far as it was observed.
fn runs_for(executor: &Executor, at: Instant) -> Duration {
    let since = executor.stage_seen().filter(|_| executor.stage() == Stage::Running);
    since.map_or(Duration::ZERO, |since| at.saturating_duration_since(since))
}

/// The rows of registered executors that have no live pod: the driver has not noticed that they vanished.
pub fn without_pod<'v>(
    rows: &'v [ExecutorSummary],
    snapshot: &'v Snapshot,
    key: &'v AppKey,
    app: &'v Application,
    driver: &'v DriverPod,
) -> impl Iterator<Item = &'v ExecutorSummary> {
    // The pod that controls an executor may not be its driver.
    let is_own =
        |executor: &Executor| driver_of(snapshot, key, executor) == Some(driver.creator) || may_drive(driver, executor);
    let has_pod = move |id: u64| {
        let from = ExecutorKey { id, name: "".into() };
        let same = app.executors().range(from..).take_while(|(key, _)| key.id == id);
        same.into_iter().any(|(_, executor)| executor.is_live() && is_own(executor))
    };
    rows.iter().filter(move |row| row.is_active && row.id.is_some_and(|id| !has_pod(id)))
}
