//! `orphans` for an executor that a pod of another namespace created and that has never run: that pod is its driver, and is gone.

use super::context::{RuleContext, not_of_workload};
use crate::lifecycle::cause::never_ran;
use crate::ownership::elsewhere::CreatorElsewhere;
use crate::planning::Check;
use crate::policy::RecoveryRule;
use crate::recovery::finding::{FindingVerdict, Remedy};
use crate::recovery::state::RecoveryState;
use crate::snapshot::Executor;

const RULE: RecoveryRule = RecoveryRule::Orphans;

pub(super) fn decide(context: &RuleContext<'_>, executor: &Executor, state: &mut RecoveryState) -> FindingVerdict {
    let creator = CreatorElsewhere::of(&executor.template, executor.is_proven, context.snapshot);
    let Some(creator) = creator else { return FindingVerdict::Nothing };
    let contradiction = || context.witnesses.of_end_elsewhere(context.snapshot, context.key.namespace(), executor);
    let is_gone = creator.is_gone && contradiction().is_none();
    let Some(gone) = state.gone_elsewhere(&executor.uid, creator.has_address, is_gone, context.now.at) else {
        return FindingVerdict::Nothing;
    };
    let is_driver = creator.is_named || gone.had_address;
    if context.is_off(RULE) || !is_driver || !never_ran(executor) {
        return FindingVerdict::Nothing;
    }
    context.after(RULE, gone.since, || {
        let (state, pod) = (executor.shown_state().as_str(), &creator.pod.key);
        let ago = context.ago(gone.since);
        let message = format!("is {state}, although its driver, pod {pod}, which created it, has been gone for {ago}");
        let remedy = Remedy { check: Check::DriverGone(creator.pod), effect: "its resources are free again" };
        context.about(
            RULE,
            executor,
            gone.since,
            message,
            not_of_workload(executor.template.has_workload()).map(|()| remedy),
        )
    })
}
