//! `terminating`: an executor still exists although the grace period of its deletion is over: finalizers block the deletion, or
//! its node does not respond. Its driver has replaced it already.

use jiff::SignedDuration;

use super::context::RuleContext;
use crate::policy::RecoveryRule;
use crate::recovery::finding::{Check, NoRemedy, Remedy, Verdict};
use crate::snapshot::Executor;

const RULE: RecoveryRule = RecoveryRule::Terminating;

pub(super) fn decide(context: &RuleContext<'_>, executor: &Executor) -> Verdict {
    let deletion = executor.diagnostics.as_ref().and_then(|diagnostics| diagnostics.deletion.as_ref());
    let Some((deletion, until)) = deletion.and_then(|deletion| Some((deletion, deletion.until?))) else {
        return Verdict::Nothing;
    };
    let settings = context.recovery.rule(RULE);
    let after = SignedDuration::try_from(settings.after).unwrap_or(SignedDuration::MAX);
    let late = context.now.wall.duration_since(until);
    if context.is_off(RULE) {
        return Verdict::Nothing;
    }
    let missing = SignedDuration::abs(after.saturating_sub(late));
    if late < after {
        return Verdict::At(context.now.at + missing.unsigned_abs());
    }
    let node = executor.node.as_deref().unwrap_or("no node");
    let (held, remedy) = match (&*deletion.finalizers, &executor.node) {
        ([], Some(node)) => (
            format!("no finalizer blocks the deletion, so its node does ({node})"),
            Ok(Remedy { check: Check::NodeGone(node.clone()), effect: "its node no longer exists" }),
        ),
        ([], None) => ("no finalizer blocks the deletion, and it has no node".to_owned(), Err(NoRemedy::ReportOnly)),
        (all, _) => (format!("blocked by finalizers: {} (on {node})", all.join(", ")), Err(NoRemedy::Finalizers)),
    };
    let message = format!("still exists, although its grace period ended at {until}; {held}");
    let since = context.now.at.checked_sub(late.unsigned_abs()).unwrap_or(context.now.at);
    context.about(RULE, executor, since, message, remedy).into()
}
