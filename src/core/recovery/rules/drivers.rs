//! `hopeless` and `zombieDriver`: drivers that run on without executors, or without running Spark.

use std::sync::Arc;

use super::context::{RuleContext, SetContext, not_of_workload};
use crate::drivers::target::{self, Target, TargetSource};
use crate::ownership::contradiction::{is_related, may_drive};
use crate::ownership::liveness::ExecutorSet;
use crate::planning::Check;
use crate::policy::RecoveryRule;
use crate::recovery::finding::{FindingVerdict, NoRemedy, Remedy};
use crate::recovery::state::RecoveryState;
use crate::snapshot::{DriverPhase, DriverPod, DriverViewKey, Executor, TemplateCounts, is_undeleted};

/// The rules about one driver's pod; at most one of them applies.
pub fn of_driver(
    context: &RuleContext<'_>,
    set_context: &SetContext<'_>,
    driver: &Arc<DriverPod>,
    state: &mut RecoveryState,
) -> FindingVerdict {
    if driver.skip || driver.deleting {
        return FindingVerdict::Nothing;
    }
    match zombie(context, driver, state) {
        FindingVerdict::Nothing => hopeless(context, set_context, driver, state),
        verdict => verdict,
    }
}

/// A driver whose Spark container exited while a sidecar runs on, and one that closed its REST API (`SparkContext.stop`) while
/// its process runs on.
fn zombie(context: &RuleContext<'_>, driver: &DriverPod, state: &mut RecoveryState) -> FindingVerdict {
    const RULE: RecoveryRule = RecoveryRule::ZombieDriver;
    if context.is_off(RULE) {
        return FindingVerdict::Nothing;
    }
    if driver.lingers {
        let since = state.lingering_since(&driver.uid, context.now.at);
        return context.after(RULE, since, || {
            let message = format!(
                "its Spark container exited at least {} ago, and another container keeps the pod running",
                context.ago(since)
            );
            let remedy = Remedy { check: Check::Version, effect: "its pod ends" };
            context.about_driver(RULE, driver, since, message, not_of_workload(driver.has_workload).map(|()| remedy))
        });
    }
    state.does_not_linger(&driver.uid);
    let key = DriverViewKey { app: context.key.clone(), driver: driver.creator };
    let Some(since) = context.snapshot.closed_drivers.get(&key).copied() else { return FindingVerdict::Nothing };
    if driver.phase != DriverPhase::Running {
        return FindingVerdict::Nothing;
    }
    context.after(RULE, since, || {
        let message = format!(
            "its REST API answered, and has refused connections for {}: its SparkContext was stopped, and its process runs on",
            context.ago(since)
        );
        context.about_driver(RULE, driver, since, message, Err(NoRemedy::ReportOnly))
    })
}

/// A driver that wants executors and has none.
fn hopeless(
    context: &RuleContext<'_>,
    set_context: &SetContext<'_>,
    driver: &Arc<DriverPod>,
    state: &mut RecoveryState,
) -> FindingVerdict {
    const RULE: RecoveryRule = RecoveryRule::Hopeless;
    let lacks_all = |target: &Target| target.count > 0 && !has_executors(context, set_context, driver);
    let Some(target) = target(context, set_context, driver).filter(lacks_all).filter(|_| !context.is_off(RULE)) else {
        state.has_executors(&driver.uid);
        return FindingVerdict::Nothing;
    };
    if driver.phase != DriverPhase::Running || !set_context.set.is_certain {
        return FindingVerdict::Nothing;
    }
    let since = state.empty_since(&driver.uid, context.now.at);
    context.after(RULE, since, || {
        let message = format!(
            "wants {} executors ({}), and has had none, not even a pending one, for {}",
            target.count,
            target.source.text(),
            context.ago(since)
        );
        // A tenant can write any owner into a workload.
        let remedy = match target.source {
            TargetSource::Replicas => Err(NoRemedy::ReportOnly),
            _ => give_up(context, set_context, driver),
        };
        context.about_driver(RULE, driver, since, message, remedy)
    })
}

/// How many executors a driver wants, if that is known.
fn target(context: &RuleContext<'_>, set_context: &SetContext<'_>, driver: &Arc<DriverPod>) -> Option<Target> {
    let view = set_context.view.as_ref().map(|(view, _)| *view);
    let replicas = target::replicas(context.snapshot, context.key, driver, context.input.of_driver(&driver.uid));
    target::target(context.snapshot, context.key, driver, view, replicas)
}

/// Whether one of a driver's executors is pending or running. One that is being deleted does not count, however long that takes. The
/// pod that controls one may not be its driver.
fn has_executors(context: &RuleContext<'_>, set_context: &SetContext<'_>, driver: &Arc<DriverPod>) -> bool {
    if driver.phase != DriverPhase::Running {
        return false;
    }
    // Any tenant can label any number of pods as the driver: executors are read only for one that may have some.
    let may_have = |set: &ExecutorSet<'_>| {
        let is_related = |counts: &TemplateCounts| counts.undeleted > 0 && is_related(driver, counts.creator());
        set.counts.iter().any(|counts| is_related(counts))
    };
    let may_be_own = |executor: &Arc<Executor>| is_undeleted(executor) && may_drive(driver, executor);
    set_context.all(context.input).any(|set| set.undeleted() > 0)
        || context.input.sets.iter().any(may_have) && context.input.app.executors().values().any(may_be_own)
}

/// The deletion of a driver without executors. Its view must be answered: a driver that has not created its SparkContext yet, or has
/// stopped it and continues, needs no executors.
fn give_up(context: &RuleContext<'_>, set_context: &SetContext<'_>, driver: &DriverPod) -> Result<Remedy, NoRemedy> {
    let in_cluster = context.snapshot.conf(context.key, driver).is_some_and(|conf| conf.in_driver_pod);
    if !in_cluster {
        return Err(NoRemedy::NotInCluster);
    }
    not_of_workload(driver.has_workload)?;
    let Some((view, poll)) = &set_context.view else { return Err(context.no_view()) };
    if view.executors().iter().any(|row| row.is_active) {
        return Err(NoRemedy::Registered);
    }
    let check = Check::NoExecutors(Box::new(poll.clone()));
    Ok(Remedy { check, effect: "its application fails and can be submitted again" })
}
