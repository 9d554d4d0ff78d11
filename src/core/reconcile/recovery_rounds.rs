//! Recovery: the rounds of the rules ([`crate::recovery::round`]) are part of the plan.

use super::plan::Plan;
use super::state::ApplicationState;
use crate::drivers::kept;
use crate::ownership::liveness::ExecutorSet;
use crate::planning::PlanContext;
use crate::recovery::budget::DeletionBudget;
use crate::recovery::round;

pub(super) fn plan(
    context: &PlanContext<'_>,
    state: &mut ApplicationState,
    budget: &mut DeletionBudget,
    plan: &mut Plan,
) {
    let ApplicationState { sets, recovery, .. } = state;
    let keeps = |set: &ExecutorSet<'_>| {
        let known = sets.get(&set.creator);
        let last_driver = known.and_then(|known| known.driver.as_ref()).map(|driver| &driver.pod);
        kept::driver_keeps(context.snapshot, context.key, context.app, set, last_driver)
            || known.is_some_and(|known| known.keeps)
    };
    plan.recovery = round::next_part(context, keeps, recovery, budget);
    for (creator, action) in std::mem::take(&mut plan.recovery.actions) {
        plan.add(creator, [action]);
    }
    plan.recovery.next.into_iter().for_each(|at| plan.requeue(at));
}
