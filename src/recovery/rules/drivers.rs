//! `hopeless` and `zombieDriver`: drivers that run on without executors, or without running Spark.

use std::sync::Arc;
use std::time::Duration;

use super::context::{RuleContext, SetContext};
use crate::fault_injection::{self, Bug};
use crate::policy::RecoveryRule;
use crate::recovery::finding::{Check, NoRemedy, Remedy, Verdict};
use crate::recovery::state::RecoveryState;
use crate::recovery::target::Target;
use crate::snapshot::{DriverPhase, DriverPod, DriverViewKey};

/// The rules about one driver's pod; at most one of them applies. `has_executors` is whether one of its executors is pending or
/// running, `target` how many it wants, if that is known.
pub fn of_driver(
    context: &RuleContext<'_>,
    of: &SetContext<'_>,
    driver: &Arc<DriverPod>,
    (has_executors, target): (bool, Option<Target>),
    state: &mut RecoveryState,
) -> Verdict {
    if driver.skip || driver.deleting {
        return Verdict::Nothing;
    }
    match zombie(context, driver, state) {
        Verdict::Nothing => hopeless(context, of, driver, (has_executors, target), state),
        verdict => verdict,
    }
}

/// A driver whose Spark container exited while a sidecar runs on, and one that closed its REST API (`SparkContext.stop`) while
/// its process runs on.
fn zombie(context: &RuleContext<'_>, driver: &DriverPod, state: &mut RecoveryState) -> Verdict {
    const RULE: RecoveryRule = RecoveryRule::ZombieDriver;
    if context.is_off(RULE) {
        return Verdict::Nothing;
    }
    if driver.lingers {
        let since = state.lingering_since(&driver.uid, context.now.at);
        let wait = context.recovery.rule(RULE).after;
        let wait = if fault_injection::injected(Bug::ZombieAtOnce) { Duration::ZERO } else { wait };
        return context.waited(since, wait, || {
            let message = format!(
                "its Spark container exited at least {} ago, and another container keeps the pod running",
                context.ago(since)
            );
            let remedy = Remedy { check: Check::Version, effect: "its pod ends" };
            context.about_driver(RULE, driver, since, message, Ok(remedy))
        });
    }
    let key = DriverViewKey { app: context.key.clone(), driver: driver.creator };
    let Some(since) = context.snapshot.closed_drivers.get(&key).copied() else { return Verdict::Nothing };
    if driver.phase != DriverPhase::Running {
        return Verdict::Nothing;
    }
    context.after(RULE, since, || {
        let message = format!(
            "its REST API answered, and has refused connections for {}: its SparkContext was stopped, and its process runs on",
            context.ago(since)
        );
        let deleted = Remedy { check: Check::Version, effect: "its pod ends" };
        let remedy = fault_injection::injected(Bug::StoppedIsDeleted).then_some(deleted).ok_or(NoRemedy::ReportOnly);
        context.about_driver(RULE, driver, since, message, remedy)
    })
}

/// A driver that wants executors and has none.
fn hopeless(
    context: &RuleContext<'_>,
    of: &SetContext<'_>,
    driver: &DriverPod,
    (has_executors, target): (bool, Option<Target>),
    state: &mut RecoveryState,
) -> Verdict {
    const RULE: RecoveryRule = RecoveryRule::Hopeless;
    let Some(target) = target.filter(|target| target.count > 0 && !has_executors && !context.is_off(RULE)) else {
        state.has_executors(&driver.uid);
        return Verdict::Nothing;
    };
    if driver.phase != DriverPhase::Running || !of.set.is_certain {
        return Verdict::Nothing;
    }
    let since = state.empty_since(&driver.uid, context.now.at);
    context.after(RULE, since, || {
        let message = format!(
            "wants {} executors ({}), and has had none, not even a pending one, for {}",
            target.count,
            target.source.text(),
            context.ago(since)
        );
        let in_cluster = context.snapshot.conf(&driver.uid).is_some_and(|conf| conf.in_driver_pod);
        let remedy = match in_cluster || fault_injection::injected(Bug::HopelessInClientMode) {
            true => {
                Ok(Remedy { check: Check::NoExecutors, effect: "its application fails and can be submitted again" })
            }
            false => Err(NoRemedy::NotInCluster),
        };
        context.about_driver(RULE, driver, since, message, remedy)
    })
}
