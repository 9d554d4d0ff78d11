//! The plan for one application.

use std::sync::Arc;

use jiff::Timestamp;

use super::action::{Action, DriverRef};
use super::memory::Memory;
use super::{adopt, groups};
use crate::driver::life;
use crate::policy::Policies;
use crate::snapshot::{App, Group, GroupKey, Snapshot};
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
    let driver = life::of(key, app, snapshot, memory.driver.as_ref().map(|driver| (&*driver.name, &*driver.uid)));
    if let Some(pod) = driver.pod() {
        memory.driver = Some(DriverRef { name: pod.name.clone(), uid: pod.uid.clone() });
    }
    let view = View { snapshot, key, app, driver: &driver, policies, now };
    // Gangs first: they make pods start, and must not wait for a thousand adoptions.
    let mut actions = groups::plan(&view, memory);
    actions.extend(adopt::plan(&view));
    if app.is_empty() && view.groups().next().is_none() {
        *memory = Memory::default(); // Nothing is left to be remembered about.
    }
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

impl<'v> View<'v> {
    /// Groups of ours that were made for this application.
    pub(super) fn groups(&self) -> impl Iterator<Item = (&'v GroupKey, &'v Arc<Group>)> + use<'v> {
        let (namespace, selector) = (self.key.namespace(), self.key.selector());
        let from = GroupKey { namespace: namespace.into(), name: "".into(), scheduler: "" };
        self.snapshot
            .groups
            .range(from..)
            .take_while(move |(key, _)| *key.namespace == *namespace)
            .filter(move |(_, group)| group.selector.as_deref() == Some(selector))
    }
}
