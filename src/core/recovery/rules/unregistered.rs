//! `unregistered`: an executor runs and has not registered with its driver: the driver's address is wrong or unreachable, or the
//! JVM hangs. Spark counts its pod as running forever.

use std::time::Instant;

use super::context::{AFTER_OUTAGE, RuleContext, SetContext, by_view};
use crate::drivers::{Registration, registration_in};
use crate::policy::RecoveryRule;
use crate::recovery::finding::FindingVerdict;
use crate::snapshot::Executor;

const RULE: RecoveryRule = RecoveryRule::Unregistered;

pub(super) fn decide(
    context: &RuleContext<'_>,
    set_context: &SetContext<'_>,
    executor: &Executor,
    since: Instant,
) -> FindingVerdict {
    let Some((view, _)) = set_context.view.as_ref().filter(|_| !context.is_off(RULE)) else {
        return FindingVerdict::Nothing;
    };
    if registration_in(Some(view), executor, Some(std::time::Duration::ZERO)) != Registration::NotRegistered {
        return FindingVerdict::Nothing;
    }
    // The view counts, and not the time since: the executor may have registered after it.
    let wait = context.recovery.rule(RULE).after;
    let due = context.exits.outages.due(since, wait, wait.min(AFTER_OUTAGE));
    let is_old = due.is_some_and(|at| at <= view.at);
    if !is_old {
        return due.map_or(FindingVerdict::Nothing, |due| FindingVerdict::At(context.next_view(view).max(due)));
    }
    context.after(RULE, since, || {
        let node = executor.node.as_ref().map_or_else(String::new, |node| format!(" on {node}"));
        let message = format!("has run{node} for {} without registering with its driver", context.ago(since));
        let remedy = by_view(context, set_context, executor, "its driver requests another executor");
        context.about(RULE, executor, since, message, remedy)
    })
}
