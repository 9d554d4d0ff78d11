//! `orphans`: an executor exists although its driver is gone, and the garbage collector does not delete it: it has no
//! ownerReference, or a second owner, or its driver's pod still exists in phase Failed or Succeeded.
//!
//! An executor without an owner whose driver is alive is adopted instead. If nothing is known of the driver, or anything contradicts
//! that it is gone, nothing is done: it may run outside the cluster.

use std::time::Instant;

use super::context::{RuleContext, SetContext, kept, not_of_workload};
use crate::planning::Check;
use crate::policy::RecoveryRule;
use crate::recovery::finding::{FindingVerdict, NoRemedy, Remedy};
use crate::recovery::state::RecoveryState;
use crate::snapshot::Executor;

const RULE: RecoveryRule = RecoveryRule::Orphans;

pub(super) fn decide(
    context: &RuleContext<'_>,
    set_context: &SetContext<'_>,
    executor: &Executor,
    state: &mut RecoveryState,
) -> FindingVerdict {
    let Some(gone) = set_context.gone_since.filter(|_| !context.is_off(RULE)) else { return FindingVerdict::Nothing };
    let contradiction = context.witnesses.of_end(context.snapshot, context.key.namespace(), executor);
    let uncontradicted = state.uncontradicted_since(&executor.uid, contradiction.is_some(), context.now.at);
    let since = [executor.first_seen, uncontradicted].into_iter().flatten().fold(gone, Instant::max);
    context.after(RULE, since, || {
        let state = executor.shown_state().as_str();
        let mut message = format!("is {state}, although its driver has been gone for {}", context.ago(since));
        let remedy = match contradiction {
            None => remedy(context, set_context, executor),
            Some(contradiction) => {
                message = format!("{message}; {contradiction}");
                Err(NoRemedy::Contradicted)
            }
        };
        context.about(RULE, executor, since, message, remedy)
    })
}

fn remedy(context: &RuleContext<'_>, set_context: &SetContext<'_>, executor: &Executor) -> Result<Remedy, NoRemedy> {
    if !set_context.set.is_certain {
        return Err(NoRemedy::UnknownDriver);
    }
    not_of_workload(executor.template.has_workload())?;
    kept(context, set_context, executor)?;
    let driver = executor.template.named_driver(context.key.namespace(), executor.is_proven);
    Ok(Remedy { check: Check::DriverGone(driver.ok_or(NoRemedy::Unproven)?), effect: "its resources are free again" })
}
