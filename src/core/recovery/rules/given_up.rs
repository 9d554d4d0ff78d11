//! `givenUp`: the driver has removed an executor, and its pod runs on: the driver's request to delete it failed, or the executor
//! was lost for the driver only. It holds resources and does no work.
//!
//! The first static allocation recovery checked up to ten times whether the pod shows why the executor was lost, and then
//! deleted it (`docs/spark.md#static-allocation-recovery`). Here each view of the driver is one check.

use std::time::{Duration, Instant};

use super::context::{RuleContext, SetContext, by_view};
use crate::drivers::{Registration, registration_in};
use crate::policy::RecoveryRule;
use crate::recovery::finding::{FindingVerdict, NoRemedy};
use crate::recovery::state::RecoveryState;
use crate::snapshot::Executor;
use usher_spark::exit::is_caused_by_app;

const RULE: RecoveryRule = RecoveryRule::GivenUp;

pub(super) fn decide(
    context: &RuleContext<'_>,
    set_context: &SetContext<'_>,
    executor: &Executor,
    since: Instant,
    state: &mut RecoveryState,
) -> FindingVerdict {
    let Some((view, _)) = set_context.view.as_ref().filter(|_| !context.is_off(RULE)) else {
        return FindingVerdict::Nothing;
    };
    let row = match registration_in(Some(view), executor, None) {
        Registration::Removed(row) => row,
        // Views that show it as removed count only one after another.
        Registration::Registered(_) => {
            state.forget_checks(&executor.uid);
            return FindingVerdict::Nothing;
        }
        Registration::NotRegistered | Registration::Unknown => return FindingVerdict::Nothing,
    };
    let checks = state.check(&executor.uid, view.at);
    if checks.count < context.recovery.given_up_views {
        return FindingVerdict::At(context.next_view(view));
    }
    let since = checks.since.max(since);
    context.waited(since, Duration::ZERO, || {
        let reason = row.remove_reason.as_deref();
        let why = reason.map_or_else(String::new, |line| format!(": {line}"));
        let message = format!("runs, although its driver removed it at least {} ago{why}", context.ago(since));
        let remedy = match reason.is_some_and(is_caused_by_app) {
            true => Err(NoRemedy::ForInspection),
            false => by_view(context, set_context, executor, "its resources are free again"),
        };
        context.about(RULE, executor, since, message, remedy)
    })
}
