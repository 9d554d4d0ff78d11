//! The plan for one application.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::action::Action;
use super::exits::Exits;
use super::memory::Memory;
use super::{Now, adopt, finished, groups};
use crate::driver::life::{self, Crew};
use crate::policy::Policies;
use crate::signature::Creator;
use crate::snapshot::{App, Group, GroupKey, Owner, Snapshot};
use crate::spark::ids::AppKey;

/// What is to be done about an application now, and when to ask again.
#[derive(Debug, Default, PartialEq)]
pub struct Plan {
    /// The actions in their order, by whose executors they are for: nobody's wait for those of another.
    pub crews: BTreeMap<Option<Creator>, Vec<Action>>,
    /// When the next grace is over.
    pub later: Option<Instant>,
    /// Creators of so many executors that the plan holds only a part of what is to be done about them.
    pub partial: BTreeSet<Option<Creator>>,
}

/// When the next part is planned, where the last had actions,
const NEXT_PART: Duration = Duration::from_millis(250);
/// and where it had none.
const NEXT_IDLE_PART: Duration = Duration::from_secs(2);

impl Plan {
    /// There is more to plan for a creator's executors than this plan holds.
    pub(super) fn is_part(&mut self, creator: Option<Creator>, now: Instant) {
        self.partial.insert(creator);
        self.at(now + if self.crews.contains_key(&creator) { NEXT_PART } else { NEXT_IDLE_PART });
    }

    /// Asks to plan again at that time.
    pub(super) fn at(&mut self, at: Instant) {
        self.later = Some(self.later.map_or(at, |later| later.min(at)));
    }

    /// Adds actions for a creator's executors.
    pub(super) fn add(&mut self, creator: Option<Creator>, actions: impl IntoIterator<Item = Action>) {
        let mut actions = actions.into_iter().peekable();
        if actions.peek().is_some() {
            self.crews.entry(creator).or_default().extend(actions);
        }
    }

    /// All actions.
    pub fn into_actions(self) -> impl Iterator<Item = Action> {
        self.crews.into_values().flatten()
    }
}

/// What is to be done about an application now. An application that is not in the snapshot may have left groups behind.
pub fn plan(
    snapshot: &Snapshot,
    key: &AppKey,
    now: Now,
    policies: &Policies,
    memory: &mut Memory,
    exits: &Exits,
) -> Plan {
    let nothing = App::default();
    let app = snapshot.apps.get(key).map_or(&nothing, |app| &**app);
    let owners = snapshot.groups_of(key).filter_map(|(_, group)| group.owner.as_ref()).map(Owner::creator);
    let crews = life::crews(key, app, snapshot, owners, |creator| memory.learned(creator));
    memory.learn(&crews);
    let mut by_driver: HashMap<&str, Vec<&Crew<'_>>> = HashMap::new();
    for crew in &crews {
        if let Some(driver) = crew.driver.pod() {
            by_driver.entry(&driver.uid).or_default().push(crew);
        }
    }
    let view = View { snapshot, key, app, crews: &crews, by_driver, policies, now: now.wall };
    // Gangs first: they make pods start, and must not wait for a thousand adoptions.
    let mut plan = Plan::default();
    groups::plan(&view, memory, &mut plan);
    for crew in &crews {
        let mut progress = memory.progress(crew.creator);
        adopt::plan(&view, crew, now.at, &mut progress, &mut plan);
        finished::plan(&view, crew, now, &mut progress, memory, exits, &mut plan);
        memory.go_on(crew.creator, progress);
    }
    if app.is_empty() && view.groups().next().is_none() {
        *memory = Memory::default(); // Nothing is left to be remembered about.
    }
    plan
}

/// What every part of a plan looks at.
pub(super) struct View<'v> {
    pub(super) snapshot: &'v Snapshot,
    pub(super) key: &'v AppKey,
    pub(super) app: &'v App,
    /// Sorted by their creator.
    pub(super) crews: &'v [Crew<'v>],
    by_driver: HashMap<&'v str, Vec<&'v Crew<'v>>>,
    pub(super) policies: &'v Policies,
    pub(super) now: Timestamp,
}

impl<'v> View<'v> {
    /// Executors that nobody's signature or owner speaks for.
    pub(super) fn unclaimed(&self) -> Option<&'v Crew<'v>> {
        self.crews.first().filter(|crew| crew.creator.is_none())
    }

    /// The other crews with the same driver: executors that came while the webhook was away are signed by nobody.
    pub(super) fn with_driver_of(&self, crew: &'v Crew<'v>) -> impl Iterator<Item = &'v Crew<'v>> + Clone {
        let same = crew.driver.pod().and_then(|driver| self.by_driver.get(&*driver.uid));
        let same: Vec<&'v Crew<'v>> = same.into_iter().flatten().copied().collect();
        same.into_iter().filter(move |other| other.creator != crew.creator)
    }

    /// Groups of ours that were made for this application.
    pub(super) fn groups(&self) -> impl Iterator<Item = (&'v GroupKey, &'v Arc<Group>)> {
        self.snapshot.groups_of(self.key)
    }
}
