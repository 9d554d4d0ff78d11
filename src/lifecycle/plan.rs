//! The plan for one application.

use jiff::Timestamp;

use super::action::Action;
use super::memory::Memory;
use super::{adopt, groups};
use crate::driver::life;
use crate::policy::Policies;
use crate::snapshot::{App, Snapshot};
use crate::spark::ids::AppKey;

/// What is to be done about an application now. An application that is not in the snapshot may have left groups behind.
pub fn plan(
    snapshot: &Snapshot,
    key: &AppKey,
    now: Timestamp,
    policies: &Policies,
    memory: &mut Memory,
) -> Vec<Action> {
    let nothing = App::default();
    let app = snapshot.apps.get(key).map_or(&nothing, |app| &**app);
    let driver = life::of(key, app, snapshot);
    let view = View { snapshot, key, app, driver: &driver, policies, now };
    let mut actions = adopt::plan(&view);
    actions.extend(groups::plan(&view, memory));
    actions
}

/// What every part of a plan looks at.
pub(super) struct View<'v> {
    pub(super) snapshot: &'v Snapshot,
    pub(super) key: &'v AppKey,
    pub(super) app: &'v App,
    pub(super) driver: &'v life::DriverLife,
    pub(super) policies: &'v Policies,
    pub(super) now: Timestamp,
}
