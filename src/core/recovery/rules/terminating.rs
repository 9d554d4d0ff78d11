//! `terminating`: an executor still exists although the grace period of its deletion is over: finalizers block the deletion, or
//! its node does not respond. Its driver has replaced it already.

use std::time::{Duration, Instant};

use super::context::{RuleContext, is_driver_known, not_of_workload, not_registered};
use crate::planning::Check;
use crate::policy::RecoveryRule;
use crate::recovery::finding::{FindingVerdict, NoRemedy, Remedy};
use crate::snapshot::Executor;

const RULE: RecoveryRule = RecoveryRule::Terminating;
/// Longer grace periods are cut to this.
const LONGEST_GRACE: Duration = Duration::from_secs(86_400);

pub(super) fn decide(context: &RuleContext<'_>, executor: &Executor, seen: Instant) -> FindingVerdict {
    let deletion = executor.diagnostics.as_ref().and_then(|diagnostics| diagnostics.deletion.as_ref());
    let Some(deletion) = deletion.filter(|_| !context.is_off(RULE)) else { return FindingVerdict::Nothing };
    // By our own clock, since the deletion was observed: the clock of the API server may differ.
    let since = seen + executor.termination_grace().min(LONGEST_GRACE);
    context.after(RULE, since, || {
        let node = executor.node.as_deref().unwrap_or("no node");
        let (held, remedy) = match (&*deletion.finalizers, &executor.node) {
            ([], Some(node)) => (
                format!("no finalizer blocks the deletion, so its node does ({node})"),
                Ok(Remedy { check: Check::NodeGone(node.clone()), effect: "its name and its volumes are free again" }),
            ),
            ([], None) => {
                ("no finalizer blocks the deletion, and it has no node".to_owned(), Err(NoRemedy::ReportOnly))
            }
            (all, _) => (format!("blocked by finalizers: {} (on {node})", all.join(", ")), Err(NoRemedy::Finalizers)),
        };
        let remedy = if is_driver_known(executor) { remedy } else { Err(NoRemedy::UnknownDriver) };
        let remedy =
            not_of_workload(executor.template.has_workload()).and(not_registered(context, executor)).and(remedy);
        let until = deletion.until.map_or_else(String::new, |until| format!(" at {until}"));
        let message = format!("still exists, although its grace period ended{until}; {held}");
        context.about(RULE, executor, since, message, remedy)
    })
}
