//! `groups`: a PodGroup whose gang had started waits again, although no executor of it is pending. Volcano reserves the group's
//! minResources in its queue then, without need (volcano-sh/volcano#4195).

use crate::fault_injection::{self, Bug};
use crate::policy::RecoveryRule;
use crate::recovery::finding::{NoRemedy, Verdict};
use crate::recovery::state::RecoveryState;
use crate::snapshot::{DriverPod, Group, GroupKey};

use super::context::RuleContext;

const RULE: RecoveryRule = RecoveryRule::Groups;

/// The phases in which a PodGroup waits for its members or for its queue (Volcano, kube-batch, scheduler-plugins).
const WAITING: &[&str] = &["Pending", "Inqueue", "PreScheduling"];

/// Whether a PodGroup that had started waits again.
pub fn waits_again(group: &Group) -> bool {
    waits_in(group).is_some() && (group.started || fault_injection::injected(Bug::StartIgnored))
}

/// The phase in which a PodGroup waits.
fn waits_in(group: &Group) -> Option<&str> {
    group.phase.as_deref().filter(|phase| WAITING.contains(phase))
}

/// The rule about one of our PodGroups, of which `pending` executors are pending. The finding is about the driver's pod.
pub fn of_group(
    context: &RuleContext<'_>,
    (key, group): (&GroupKey, &Group),
    pending: usize,
    driver: &DriverPod,
    state: &mut RecoveryState,
) -> Verdict {
    let applies =
        waits_again(group) && (pending == 0 || fault_injection::injected(Bug::PendingIgnored)) && !context.is_off(RULE);
    let Some(phase) = waits_in(group).filter(|_| applies) else {
        state.group_is_well(key);
        return Verdict::Nothing;
    };
    let since = state.group_waits_since(key, context.now.at);
    context.after(RULE, since, || {
        let message = format!(
            "its PodGroup {} had started, and has been {phase} again for {} although none of its executors is pending",
            key.name,
            context.ago(since)
        );
        context.about_driver(RULE, driver, since, message, Err(NoRemedy::ReportOnly))
    })
}
