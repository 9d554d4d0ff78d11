//! Cleanup of finished executors: nothing, a label, or deletion (`docs/spark.md#lifecycle-manager`,
//! `docs/decisions.md#the-driver-goes-first`).
//!
//! * A live driver goes first: nothing is written before the grace is over. If spark-usher were quicker, the driver would
//!   never count the failure, and an application that should stop would run forever.
//! * When the driver is deleted or has exited, nothing else cleans up, and spark-usher does so immediately.
//! * When nothing is known of the driver, nothing is done.
//! * Only pods in a final state are ever written, by uid and resourceVersion.

use std::cell::LazyCell;
use std::time::{Duration, Instant};

use super::plan::Plan;
use super::state::{ApplicationState, Progress};
use crate::drivers::kept;
use crate::lifecycle::cause::never_ran;
use crate::lifecycle::exits::Exits;
use crate::ownership::contradiction::Witnesses;
use crate::ownership::liveness::{DriverLiveness, ExecutorSet};
use crate::planning::batch::{self, Position};
use crate::planning::{Action, Cleanup, PlanContext, PodEvent};
use crate::policy::{Finished, Keep, Lifecycle};
use crate::reason::Reason;
use crate::snapshot::{Application, Executor, Snapshot};
use usher_spark::ids::{AppKey, PodIdentity, PodKey};
use usher_spark::lifecycle_conf::LifecycleConf;
use usher_spark::state::ExecutorPodState;
use usher_spark::time::Now;

/// The delay before an executor whose exit is not reported yet is planned again.
const RECHECK_UNREPORTED: Duration = Duration::from_secs(1);

/// Plans the cleanup of one creator's finished executors.
pub(super) fn plan(
    plan_context: &PlanContext<'_>,
    set: &ExecutorSet<'_>,
    progress: &mut Progress,
    state: &ApplicationState,
    plan: &mut Plan,
) {
    let &PlanContext { snapshot, key, app, exits, now, .. } = plan_context;
    let last_driver = state.last_driver(set.creator).map(|learned| learned.pod).or_else(|| last_driver(key, set));
    let last_driver = last_driver.as_ref();
    let lifecycle = &plan_context.policies.lifecycle;
    let witnesses = (set.driver == DriverLiveness::Gone).then(|| plan_context.witnesses());
    let context = CleanupContext { snapshot, key, app, set, last_driver, witnesses, exits, lifecycle, now };
    let due = of_set(&context, &mut progress.uncleared);
    let is_whole = due.is_whole;
    due.requeue_at.into_iter().for_each(|at| plan.requeue(at));
    plan.add(set.creator, due.actions);
    plan.add(set.creator, too_many_failures(&context, plan_context));
    if !is_whole {
        plan.continue_later(set.creator, now.at);
    }
}

/// A driver's pod whose uid is known, although no driver was learned before.
fn last_driver(key: &AppKey, set: &ExecutorSet<'_>) -> Option<PodIdentity> {
    let namespace = key.namespace();
    let labelled = set.labelled.first().map(|driver| driver.identity(namespace));
    let named = || set.counts.iter().find_map(|counts| counts.template.named_driver(namespace, counts.is_proven));
    labelled.or_else(named)
}

/// Reports that more executors failed than Spark allows (`ExecutorFailureTracker`, exit code 11).
fn too_many_failures(context: &CleanupContext<'_>, plan_context: &PlanContext<'_>) -> Option<Action> {
    let driver = context.set.driver.pod()?;
    let lifecycle_conf = context.snapshot.conf(context.key, driver)?.lifecycle;
    // The driver does not count those of other creators.
    let unclaimed = plan_context.with_driver_of(context.set).filter(|other| other.creator.is_none());
    let sets = std::iter::once(context.set).chain(unclaimed);
    let failed = sets
        .map(|set| context.exits.failures(context.key, set.creator, lifecycle_conf.failures_expire, context.now.at))
        .sum();
    let limit = lifecycle_conf.failure_limit();
    if limit >= failed {
        return None;
    }
    Some(Action::RecordEvent(PodEvent {
        pod: PodKey::new(context.key.namespace(), &driver.name),
        uid: driver.uid.clone(),
        reason: Reason::ExecutorFailuresExceeded,
        message: format!("more than {limit} executors failed: Spark 3.5 and newer stop the application (exit code 11)"),
    }))
}

/// The input of the plan for one creator's executors.
struct CleanupContext<'v> {
    snapshot: &'v Snapshot,
    /// The application's key.
    key: &'v AppKey,
    app: &'v Application,
    /// The executors of one creator, and their driver.
    set: &'v ExecutorSet<'v>,
    /// The driver's pod as it was last known; it is read again before its exit or deletion causes a write.
    last_driver: Option<&'v PodIdentity>,
    /// If it is gone, the pods that may be the driver all the same.
    witnesses: Option<&'v Witnesses>,
    /// The exits that are tracked.
    exits: &'v Exits,
    /// Settings.
    lifecycle: &'v Lifecycle,
    /// The time.
    now: Now,
}

/// What is to be done now, and when to plan again.
#[derive(Default)]
struct Due {
    /// At most one for each executor.
    actions: Vec<Action>,
    /// When the next grace is over.
    requeue_at: Option<Instant>,
    /// Whether all executors were visited.
    is_whole: bool,
}

/// Plans for the executors of one creator.
fn of_set(context: &CleanupContext<'_>, last: &mut Position) -> Due {
    let mut due = Due { is_whole: true, ..Due::default() };
    if !context.set.is_certain {
        return due;
    }
    let grace = match &context.set.driver {
        DriverLiveness::Unknown => return due,
        DriverLiveness::Gone => Grace::default(),
        // It is planned again when the outage is over.
        DriverLiveness::Alive(_) if context.exits.outages.is_out(context.now.at) => return due,
        DriverLiveness::Alive(driver) => {
            let conf =
                context.snapshot.conf(context.key, driver).map_or_else(LifecycleConf::default, |conf| conf.lifecycle);
            let notices = conf.detection_time();
            let of_policy = context.lifecycle.grace;
            Grace { wait: of_policy.max(notices), after_outage: notices.min(of_policy) }
        }
    };
    let gone_driver = match (&context.set.driver, context.last_driver) {
        (DriverLiveness::Gone, None) => return due, // No pod to read before the write.
        (DriverLiveness::Gone, Some(driver)) => Some(driver.clone()),
        _ => None,
    };
    // Most plans find no finished executor.
    let keeps = LazyCell::new(|| {
        kept::driver_keeps(context.snapshot, context.key, context.app, context.set, context.last_driver)
    });
    let is_cleaned_up = context.lifecycle.finished != Finished::Report;
    let Some(index) = context.set.index.filter(|_| is_cleaned_up) else { return due };
    let (mut actions, mut later) = (Vec::new(), None);
    due.is_whole = batch::visit(&index.uncleared, last, |executor| {
        match of_executor(context, executor, *keeps, grace, gone_driver.as_ref()) {
            Next::Now(action) => actions.push(action),
            Next::At(at) => {
                later = Some(later.map_or(at, |later: Instant| later.min(at)));
                return false;
            }
            Next::Never => return false,
        }
        true
    });
    (due.actions, due.requeue_at) = (actions, later);
    due
}

/// What is done about one executor, and when.
enum Next {
    Now(Action),
    /// It is planned again at that time.
    At(Instant),
    /// Nothing, in its current state.
    Never,
}

/// How long a driver has to act.
#[derive(Clone, Copy, Default)]
struct Grace {
    /// Since the exit of an executor.
    wait: Duration,
    /// After an outage in which it could not.
    after_outage: Duration,
}

/// What is done about an executor. `gone_driver` is the driver if it exited or was deleted.
fn of_executor(
    context: &CleanupContext<'_>,
    executor: &Executor,
    keeps: bool,
    grace: Grace,
    gone_driver: Option<&PodIdentity>,
) -> Next {
    if executor.inactive || executor.template.skip || !is_finished(executor) {
        return Next::Never;
    }
    // Nothing is known of a driver whose end something contradicts.
    if context
        .witnesses
        .is_some_and(|witnesses| witnesses.of_end(context.snapshot, context.key.namespace(), executor).is_some())
    {
        return Next::Never;
    }
    let (since, cause) = match context.exits.of(context.key, &executor.uid) {
        // If its pod were written before the report, the next leader would treat the exit as reported.
        Some(note) if note.is_open => {
            return Next::At(context.now.at + RECHECK_UNREPORTED);
        }
        Some(note) => (note.since, note.cause),
        None => return Next::Never,
    };
    let (how, wait) = match context.lifecycle.finished {
        Finished::Report => return Next::Never,
        Finished::Delete if !(keeps && is_kept(context.lifecycle.keep, executor, gone_driver.is_some())) => {
            // So that users can inspect it.
            let kept = cause.by_app() && cause.is_abnormal();
            (Cleanup::Delete, if kept { grace.wait.max(context.lifecycle.keep_failed) } else { grace.wait })
        }
        Finished::Label | Finished::Delete => (Cleanup::Label, grace.wait),
    };
    match context.exits.outages.due(since, wait, grace.after_outage) {
        Some(at) if at <= context.now.at => Next::Now(Action::CleanUp {
            executor: PodKey::new(context.key.namespace(), &executor.name),
            seen: executor.into(),
            how,
            cause,
            gone_driver: gone_driver.map(|last| {
                let named = executor.template.named_driver(context.key.namespace(), executor.is_proven);
                named.unwrap_or_else(|| last.clone())
            }),
        }),
        Some(at) => Next::At(at),
        None => Next::Never,
    }
}

/// Whether an executor is kept for a driver that keeps its own.
fn is_kept(keep: Keep, executor: &Executor, is_driver_gone: bool) -> bool {
    match keep {
        Keep::Respect => true,
        Keep::UntilDriverEnds => !is_driver_gone,
        Keep::NeverRan => !never_ran(executor),
    }
}

/// Whether it failed or succeeded, finally, and still exists: a pod that is being deleted needs no cleanup.
fn is_finished(executor: &Executor) -> bool {
    let is_final = matches!(executor.state, ExecutorPodState::Failed | ExecutorPodState::Succeeded);
    executor.is_over && is_final && !executor.deleting
}
