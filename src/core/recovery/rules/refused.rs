//! `refused`: a kubelet rejected or evicted an executor (`OutOfcpu`, `UnexpectedAdmissionError`, `NodeShutdown`, `Evicted` …), and
//! its pod remains. Such pods pile up by the thousand: Kubernetes collects terminated pods only above 12,500 by default
//! (kubernetes/kubernetes#125579, #106884).
//!
//! Only executors: who submits a driver reads its status.

use std::time::Instant;

use super::context::{RuleContext, SetContext, is_driver_known, kept, not_of_workload};
use crate::lifecycle::cause::{Cause, Removal, cause};
use crate::lifecycle::cause_group::CauseGroup;
use crate::planning::Check;
use crate::policy::{Finished, RecoveryRule};
use crate::recovery::finding::{FindingVerdict, NoRemedy, Remedy};
use crate::snapshot::Executor;

const RULE: RecoveryRule = RecoveryRule::Refused;

pub(super) fn decide(
    context: &RuleContext<'_>,
    set_context: &SetContext<'_>,
    executor: &Executor,
    since: Instant,
) -> FindingVerdict {
    // With `lifecycle.finished: delete`, those that are not labelled inactive are deleted sooner.
    let is_deleted_anyway = context.lifecycle.finished == Finished::Delete && !executor.inactive;
    if context.is_off(RULE) || is_deleted_anyway || !executor.is_over {
        return FindingVerdict::Nothing;
    }
    let cause = cause(executor, Removal::Present);
    // An eviction leaves its pod behind, whatever it was for. A container that the runtime could not start is a failure like others.
    let is_left = cause.group() == CauseGroup::Cluster && cause != Cause::RuntimeError;
    if !is_left && cause != Cause::StorageExceeded {
        return FindingVerdict::Nothing;
    }
    // If its pod were deleted before the report, the next leader would treat the exit as reported.
    if context.exits.of(context.key, &executor.uid).is_some_and(|exit| exit.is_open) {
        return FindingVerdict::Nothing;
    }
    context.after(RULE, since, || {
        let node = executor.node.as_deref().unwrap_or("no node");
        let what = executor.diagnostics.as_ref().and_then(|diagnostics| diagnostics.reason.as_deref());
        let what = what.unwrap_or(cause.as_str());
        let message = format!("is left behind: {what} on {node}, {} ago", context.ago(since));
        context.about(RULE, executor, since, message, remedy(context, set_context, executor))
    })
}

fn remedy(context: &RuleContext<'_>, set_context: &SetContext<'_>, executor: &Executor) -> Result<Remedy, NoRemedy> {
    not_of_workload(executor.template.has_workload())?;
    if !is_driver_known(executor) {
        return Err(NoRemedy::UnknownDriver);
    }
    let check = match kept(context, set_context, executor)? {
        false => Check::Version,
        true => {
            let named = executor.template.named_driver(context.key.namespace(), executor.is_proven);
            Check::DriverGone(named.ok_or(NoRemedy::Unproven)?)
        }
    };
    Ok(Remedy { check, effect: "such pods do not pile up" })
}
