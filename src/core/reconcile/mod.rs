//! Plans what is to be done about one application, from the snapshot, the policies and a little state. Pure; the edge carries out
//! the actions, and the watch shows their results.
//!
//! Level-triggered: a plan contains what is missing now, regardless of what happened. After a crash between any two actions the
//! next plan completes them.
//!
//! A part of a plan is one file: `podgroups`, `adopt`, `cleanup`, `recover`. To add one: write the file, and call it in [`plan`](fn@plan).
//! The rules about executors and drivers in trouble are in `recovery::rules`.

mod adopt;
mod cleanup;
mod plan;
mod podgroups;
mod recovery_rounds;
mod state;

use crate::drivers;
use crate::ownership::liveness;
use crate::planning::{PlanContext, PlanInput};
use crate::recovery::budget::DeletionBudget;
use crate::snapshot::{Application, Owner};

pub use plan::Plan;
pub use podgroups::owner_reference;
pub use state::{ApplicationState, Silence};

/// What is to be done about an application now. An application that is not in the snapshot may have left PodGroups behind.
pub fn plan(input: PlanInput<'_>, state: &mut ApplicationState, budget: &mut DeletionBudget) -> Plan {
    let PlanInput { snapshot, key, policies, .. } = input;
    let nothing = Application::default();
    let app = snapshot.apps.get(key).map_or(&nothing, |app| &**app);
    let owners = snapshot.groups_of(key).filter_map(|(_, group)| group.owner.as_ref()).map(Owner::creator);
    let sets = liveness::executor_sets(key, app, snapshot, owners, |creator| state.last_driver(creator));
    state.observe_drivers(&sets, snapshot, key);
    let context = PlanContext::new(input, app, &sets);
    let access = policies.recovery.driver_view.access;
    let may_read_conf = drivers::may_read_conf(app, sets.iter().flat_map(|set| set.counts.iter().copied()), policies);
    let drivers = drivers::to_poll(snapshot, key, &sets, access, may_read_conf);
    let mut plan = Plan { drivers, ..Plan::default() };
    // PodGroups first: pods need them to start, and must not wait for a thousand adoptions.
    podgroups::plan(&context, state, &mut plan);
    for set in &sets {
        let mut progress = state.progress(set.creator);
        adopt::plan(&context, set, &mut progress, &mut plan);
        cleanup::plan(&context, set, &mut progress, state, &mut plan);
        state.set_progress(set.creator, progress);
    }
    recovery_rounds::plan(&context, state, budget, &mut plan);
    if app.is_empty() && context.groups().next().is_none() {
        *state = ApplicationState::default(); // Nothing is left that needs state.
    }
    plan
}
