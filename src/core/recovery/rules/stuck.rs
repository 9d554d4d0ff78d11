//! `stuck`: an executor is bound to a node and does not start: its image is never pulled, its volume is never mounted, its node
//! does not work. Spark waits for it forever (`ExecutorPodsAllocator` counts it as pending). Init containers that work have a time of
//! their own: they may fetch much.
//!
//! A pod that no scheduler has bound is never deleted: the same pod would wait again.

use std::time::Instant;

use super::context::{RuleContext, SetContext, by_view};
use crate::drivers::{Registration, registration_in};
use crate::policy::RecoveryRule;
use crate::recovery::finding::FindingVerdict;
use crate::snapshot::Executor;

const RULE: RecoveryRule = RecoveryRule::Stuck;

pub(super) fn decide(
    context: &RuleContext<'_>,
    set_context: &SetContext<'_>,
    executor: &Executor,
    since: Instant,
) -> FindingVerdict {
    // It may have registered before the kubelet reported that it runs.
    let view = set_context.view.as_ref().map(|(view, _)| *view);
    if context.is_off(RULE) || matches!(registration_in(view, executor, None), Registration::Registered(_)) {
        return FindingVerdict::Nothing;
    }
    context.waited(since, context.recovery.starts_within(executor.stage()), || {
        let node = executor.node.as_deref().unwrap_or_default();
        let waits = executor.diagnostics.as_ref().and_then(|diagnostics| diagnostics.starting_message());
        let why = waits.unwrap_or_else(|| "its containers are being created".to_owned());
        let message = format!("has not started on {node} for {}: {why}", context.ago(since));
        let remedy = by_view(context, set_context, executor, "its driver requests another executor");
        context.about(RULE, executor, since, message, remedy)
    })
}
