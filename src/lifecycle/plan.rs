//! The plan for one application.

use std::sync::Arc;

use jiff::Timestamp;

use super::exits::Exits;
use super::finished::Due;
use super::memory::Memory;
use super::{Now, adopt, finished, groups};
use crate::driver::life::{self, Crew};
use crate::policy::Policies;
use crate::snapshot::{App, Group, GroupKey, Owner, Snapshot};
use crate::spark::ids::AppKey;

/// What is to be done about an application now. An application that is not in the snapshot may have left groups behind.
pub fn plan(
    snapshot: &Snapshot,
    key: &AppKey,
    now: Now,
    policies: &Policies,
    memory: &mut Memory,
    exits: &Exits,
) -> Due {
    let nothing = App::default();
    let app = snapshot.apps.get(key).map_or(&nothing, |app| &**app);
    let owners = groups_of(snapshot, key).filter_map(|(_, group)| group.owner.as_ref()).map(Owner::creator);
    let crews = life::crews(key, app, snapshot, owners, |creator| memory.learned(creator));
    memory.learn(&crews);
    let view = View { snapshot, key, app, crews: &crews, policies, now: now.wall };
    // Gangs first: they make pods start, and must not wait for a thousand adoptions.
    let mut actions = groups::plan(&view, memory);
    actions.extend(adopt::plan(&view));
    let finished = finished::of(&view, now, memory, exits);
    actions.extend(finished.actions);
    if app.is_empty() && view.groups().next().is_none() {
        *memory = Memory::default(); // Nothing is left to be remembered about.
    }
    Due { actions, later: finished.later }
}

/// What every part of a plan looks at.
pub(super) struct View<'v> {
    pub(super) snapshot: &'v Snapshot,
    pub(super) key: &'v AppKey,
    pub(super) app: &'v App,
    pub(super) crews: &'v [Crew<'v>],
    pub(super) policies: &'v Policies,
    pub(super) now: Timestamp,
}

impl<'v> View<'v> {
    /// Groups of ours that were made for this application.
    pub(super) fn groups(&self) -> impl Iterator<Item = (&'v GroupKey, &'v Arc<Group>)> + use<'v> {
        groups_of(self.snapshot, self.key)
    }
}

/// Groups of ours that were made for an application.
pub(super) fn groups_of<'v>(
    snapshot: &'v Snapshot,
    key: &'v AppKey,
) -> impl Iterator<Item = (&'v GroupKey, &'v Arc<Group>)> {
    let (namespace, selector) = (key.namespace(), key.selector());
    let from = GroupKey { namespace: namespace.into(), name: "".into(), scheduler: "" };
    snapshot
        .groups
        .range(from..)
        .take_while(move |(key, _)| *key.namespace == *namespace)
        .filter(move |(_, group)| group.selector.as_deref() == Some(selector))
}
