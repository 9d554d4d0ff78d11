//! `groups`: a PodGroup whose gang had started waits again, although no executor of it is pending. Volcano reserves the group's
//! minResources in its queue then, without need (volcano-sh/volcano#4195).

use serde_json::Value;

use crate::gang::is_named;
use crate::policy::RecoveryRule;
use crate::recovery::finding::{FindingVerdict, NoRemedy};
use crate::recovery::state::RecoveryState;
use crate::snapshot::{DriverPod, Group, GroupKey};
use usher_spark::quantity::Quantity;

use super::context::{RuleContext, SetContext};

const RULE: RecoveryRule = RecoveryRule::Groups;

/// The phases in which a PodGroup waits for its members or for its queue (Volcano, kube-batch, scheduler-plugins).
const WAITING: &[&str] = &["Pending", "Inqueue", "PreScheduling"];

/// Whether a PodGroup that had started waits again.
pub(crate) fn waits_again(group: &Group) -> bool {
    waits_in(group).is_some() && group.started
}

/// The phase in which a PodGroup waits.
fn waits_in(group: &Group) -> Option<&str> {
    group.phase.as_deref().filter(|phase| WAITING.contains(phase))
}

/// Whether the scheduler reserves anything for a PodGroup.
fn reserves(group: &Group) -> bool {
    let resources = group.spec.get("minResources").and_then(Value::as_object);
    let amount = |value: &Value| value.as_str().and_then(|text| text.parse::<Quantity>().ok());
    resources.is_some_and(|all| all.values().any(|value| amount(value) != Some(Quantity::ZERO)))
}

/// The rule about one of our PodGroups. The finding is about the driver's pod. A PodGroup without members for which nothing is reserved
/// waits for nothing.
pub fn of_group(
    context: &RuleContext<'_>,
    set_context: &SetContext<'_>,
    key: &GroupKey,
    group: &Group,
    driver: &DriverPod,
    state: &mut RecoveryState,
) -> FindingVerdict {
    let sets = set_context.all(context.input);
    let members_of =
        || sets.clone().flat_map(|set| &set.counts).filter(|counts| is_named(key, &counts.template.scheduling));
    let members: usize = members_of().map(|counts| counts.undeleted).sum();
    let pending: usize = members_of().map(|counts| counts.pending).sum();
    let is_used = members > 0 || reserves(group);
    let applies = is_used && waits_again(group) && pending == 0 && !context.is_off(RULE);
    let Some(phase) = waits_in(group).filter(|_| applies) else {
        state.clear_group(key);
        return FindingVerdict::Nothing;
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
