//! `orphans`: an executor exists although its driver is gone, and the garbage collector does not delete it: it has no
//! ownerReference, or a second owner, or its driver's pod still exists in phase Failed or Succeeded.
//!
//! An executor without an owner whose driver is alive is adopted instead. If nothing is known of the driver, nothing is done: it
//! may run outside the cluster.

use std::sync::Arc;
use std::time::Duration;

use super::context::{RuleContext, SetContext, not_of_workload};
use crate::fault_injection::{self, Bug};
use crate::ownership::resolve;
use crate::policy::RecoveryRule;
use crate::recovery::finding::{Check, NoRemedy, Remedy, Verdict};
use crate::signature::Creator;
use crate::snapshot::Executor;

const RULE: RecoveryRule = RecoveryRule::Orphans;

pub(super) fn decide(context: &RuleContext<'_>, of: &SetContext<'_>, executor: &Executor) -> Verdict {
    let Some(gone) = of.gone_since.filter(|_| !context.is_off(RULE)) else { return Verdict::Nothing };
    let since = executor.first_seen.map_or(gone, |seen| seen.max(gone));
    let wait = context.recovery.rule(RULE).after;
    let wait = if fault_injection::injected(Bug::OrphansAtOnce) { Duration::ZERO } else { wait };
    context.waited(since, wait, || {
        let state = executor.shown_state().as_str();
        let message = format!("is {state}, although its driver has been gone for {}", context.ago(since));
        context.about(RULE, executor, since, message, remedy(of, executor))
    })
}

fn remedy(of: &SetContext<'_>, executor: &Executor) -> Result<Remedy, NoRemedy> {
    if !of.set.is_certain {
        return Err(NoRemedy::UnknownDriver);
    }
    not_of_workload(executor)?;
    if of.keeps && !fault_injection::injected(Bug::OrphansNotKept) {
        return Err(NoRemedy::Kept);
    }
    let Some((name, uid)) = proven_driver(of, executor) else { return Err(NoRemedy::Unproven) };
    Ok(Remedy { check: Check::DriverGone(name, uid), effect: "its resources are free again" })
}

/// The driver's pod by the executor's own ownerReference or authenticated creator: never a pod that only has the labels.
fn proven_driver(of: &SetContext<'_>, executor: &Executor) -> Option<(Arc<str>, Arc<str>)> {
    if let Some(owner) = &executor.template.owner {
        return owner.pod();
    }
    let creator = executor.creator()?;
    if let Some(noted) = resolve::noted_creator(&executor.template, creator) {
        return Some((Arc::from(&*noted.name), Arc::from(&*noted.uid)));
    }
    let labelled = of.set.labelled.iter().map(|driver| (driver.name.clone(), driver.uid.clone()));
    of.last_driver.iter().cloned().chain(labelled).find(|(name, uid)| Creator::of_pod(name, uid) == creator)
}
