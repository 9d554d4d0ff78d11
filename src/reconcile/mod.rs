//! Plans what is to be done about one application, from the snapshot, the policies and a little state. Pure; the edge carries out
//! the actions, and the watch shows their results.
//!
//! Level-triggered: a plan contains what is missing now, regardless of what happened. After a crash between any two actions the
//! next plan completes them.
//!
//! A rule is one file: `podgroups`, `adopt`, `cleanup`, `recover`. To add one: write the file, and call it in [`plan`](fn@plan).

pub mod action;
mod adopt;
mod batch;
pub mod cleanup;
mod context;
mod kept;
mod plan;
mod podgroups;
mod recover;
mod settled;
pub mod state;

use std::cell::{OnceCell, RefCell};

use crate::lifecycle::exits::Exits;
use crate::ownership::liveness::{self, ExecutorSet};
use crate::policy::Policies;
use crate::recovery::budget::DeletionBudget;
use crate::recovery::drivers;
use crate::snapshot::{Application, Owner, Snapshot};
use crate::spark::ids::AppKey;
use crate::time::Now;
use context::PlanContext;

pub use action::{Action, Cleanup, ObjectVersion, PodEvent, Recover};
pub use plan::Plan;
pub(crate) use podgroups::owner_reference;
pub use state::{ApplicationState, Silence};

/// What is to be done about an application now. An application that is not in the snapshot may have left PodGroups behind.
pub fn plan(
    snapshot: &Snapshot,
    key: &AppKey,
    now: Now,
    policies: &Policies,
    state: &mut ApplicationState,
    exits: &Exits,
    budget: &mut DeletionBudget,
) -> Plan {
    let nothing = Application::default();
    let app = snapshot.apps.get(key).map_or(&nothing, |app| &**app);
    let owners = snapshot.groups_of(key).filter_map(|(_, group)| group.owner.as_ref()).map(Owner::creator);
    let sets = liveness::executor_sets(key, app, snapshot, owners, |creator| state.last_driver(creator));
    state.observe_drivers(&sets, snapshot, key);
    let driven = sets.iter().filter_map(|set| Some((&*set.driver.pod()?.uid, set)));
    let mut by_driver: Vec<(&str, &ExecutorSet<'_>)> = driven.collect();
    by_driver.sort_by_key(|(driver, _)| *driver);
    let context = PlanContext {
        snapshot,
        key,
        app,
        sets: &sets,
        by_driver,
        policies,
        now: now.wall,
        witnesses: OnceCell::new(),
        certainly_gone: RefCell::default(),
    };
    let access = policies.recovery.driver_view.access;
    // PodGroups first: pods need them to start, and must not wait for a thousand adoptions.
    let may_read_conf = drivers::may_read_conf(app, sets.iter().flat_map(|set| set.counts.iter().copied()), policies);
    let drivers = drivers::to_poll(snapshot, key, &sets, access, may_read_conf);
    let mut plan = Plan { drivers, ..Plan::default() };
    podgroups::plan(&context, now.at, state, &mut plan);
    for set in &sets {
        let mut progress = state.progress(set.creator);
        adopt::plan(&context, set, now.at, &mut progress, &mut plan);
        cleanup::plan(&context, set, now, &mut progress, state, exits, &mut plan);
        state.set_progress(set.creator, progress);
    }
    recover::plan(&context, now, state, exits, budget, &mut plan);
    if app.is_empty() && context.groups().next().is_none() {
        *state = ApplicationState::default(); // Nothing is left that needs state.
    }
    plan
}
