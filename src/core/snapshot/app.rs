//! One application: its labelled drivers and its executors.

use std::sync::Arc;

use imbl::OrdMap;

use super::facts::{DriverPhase, DriverPod, Executor, ExecutorKey, SchedulingFields, Template};
use super::index::{CreatorIndex, CreatorIndexes, TemplateCounts};
use crate::signature::Creator;

/// At most this many templates of an application are compared with a new one.
const TEMPLATES: usize = 16;

#[derive(Clone, Debug, Default)]
pub struct Application {
    /// Pods labelled as its driver, sorted by name. Normally one; two while an application with the same selector is submitted
    /// again.
    pub drivers: Vec<Arc<DriverPod>>,
    /// Its executors; finished ones are included while their pods exist.
    executors: OrdMap<ExecutorKey, Arc<Executor>>,
    /// Those that are not settled ([`Executor::is_settled`]).
    unsettled: OrdMap<ExecutorKey, Arc<Executor>>,
    /// The same executors, counted by creator.
    creator_indexes: CreatorIndexes,
}

impl PartialEq for Application {
    fn eq(&self, other: &Application) -> bool {
        self.drivers == other.drivers && self.executors == other.executors
    }
}

impl Application {
    /// Its executors; finished ones are included while their pods exist.
    pub fn executors(&self) -> &OrdMap<ExecutorKey, Arc<Executor>> {
        &self.executors
    }

    /// Its executors that are not settled ([`Executor::is_settled`]): most recovery rules concern no other.
    pub fn unsettled(&self) -> &OrdMap<ExecutorKey, Arc<Executor>> {
        &self.unsettled
    }

    /// Adds an executor, or replaces its earlier state.
    pub(super) fn insert(&mut self, key: ExecutorKey, executor: Arc<Executor>) {
        let old = self.executors.insert(key.clone(), executor.clone());
        if !executor.is_settled() {
            self.unsettled.insert(key.clone(), executor.clone());
        } else if old.as_ref().is_some_and(|old| !old.is_settled()) {
            self.unsettled.remove(&key);
        }
        match old {
            Some(old) => self.creator_indexes.renew(&key, &executor, &old),
            None => self.creator_indexes.add(&key, &executor),
        }
    }

    pub(super) fn remove(&mut self, key: &ExecutorKey) -> Option<Arc<Executor>> {
        let executor = self.executors.remove(key)?;
        if !executor.is_settled() {
            self.unsettled.remove(key);
        }
        self.creator_indexes.remove(key, &executor);
        Some(executor)
    }

    /// The executors counted by creator, in no order.
    pub fn indexes(&self) -> &[CreatorIndex] {
        self.creator_indexes.all()
    }

    /// The executors of one creator.
    pub fn creator_index(&self, creator: Option<Creator>) -> Option<&CreatorIndex> {
        self.creator_indexes.of(creator)
    }

    /// The counts of all templates, in no order.
    pub fn counts(&self) -> impl Iterator<Item = &TemplateCounts> {
        self.indexes().iter().flat_map(CreatorIndex::unordered)
    }

    /// The same, sorted by their first executors.
    pub fn by_template(&self) -> Vec<&TemplateCounts> {
        let mut counts: Vec<&TemplateCounts> = self.counts().collect();
        counts.sort_by(|a, b| a.first.cmp(&b.first));
        counts
    }

    /// A live executor of one template.
    pub fn one_of(&self, counts: &TemplateCounts) -> Option<&Arc<Executor>> {
        let executors = self.executors.range(counts.first.clone()..).map(|(_, executor)| executor);
        executors.into_iter().find(|executor| executor.is_live() && counts.has(executor))
    }

    /// The stored template that equals a new one.
    pub(super) fn interned(&self, template: &Template) -> Option<&Arc<Template>> {
        self.counts().take(TEMPLATES).map(|counts| &counts.template).find(|kept| ***kept == *template)
    }

    /// Its name, as its pods' labels state it: the driver's, else its executors'. Spark 3.2 and older do not write it.
    pub fn name(&self) -> Option<&Arc<str>> {
        let of_executors = || self.counts().filter_map(|counts| counts.template.app_name.as_ref()).min();
        self.drivers.iter().find_map(|driver| driver.app_name.as_ref()).or_else(of_executors)
    }

    /// The labelled driver pod of that name.
    pub fn driver(&self, name: &str) -> Option<&Arc<DriverPod>> {
        let at = self.drivers.binary_search_by(|driver| (*driver.name).cmp(name)).ok()?;
        self.drivers.get(at)
    }

    /// The labelled driver that is live: not exited and not being deleted. A running one is preferred.
    pub fn live_driver(&self) -> Option<&Arc<DriverPod>> {
        let running = self.drivers.iter().find(|driver| driver.is_live() && driver.phase == DriverPhase::Running);
        running.or_else(|| self.drivers.iter().find(|driver| driver.is_live()))
    }

    /// The live labelled driver that this creator created, as our signature proves.
    pub fn driver_made_by(&self, creator: Creator) -> Option<&Arc<DriverPod>> {
        self.drivers.iter().find(|driver| driver.is_live() && driver.creator_of() == Some(creator))
    }

    /// Executors that are pending or running.
    pub fn live(&self) -> impl Iterator<Item = &Arc<Executor>> {
        self.executors.values().filter(|executor| executor.is_live())
    }

    /// The scheduling fields of this creator's first executor of the default profile that we placed; its later executors get
    /// the same. Only executors that our signature proves count, because any tenant can write labels and annotations.
    pub fn first_scheduling(&self, creator: Creator) -> Option<&Arc<SchedulingFields>> {
        let placed = |counts: &&TemplateCounts| {
            counts.is_proven && counts.template.default_profile && counts.template.scheduling.by.is_some()
        };
        let counts = self.creator_index(Some(creator))?.unordered().filter(placed);
        counts.min_by(|a, b| a.first.cmp(&b.first)).map(|counts| &counts.template.scheduling)
    }

    /// Whether creators other than this one have executors in a gang, and it has none there. Only executors that our signature proves
    /// count, and that we placed: one whose creator chose the gang does not belong to it.
    pub fn is_only_of_others(&self, creator: Creator, is_in: impl Fn(&SchedulingFields) -> bool) -> bool {
        let is_member = |scheduling: &SchedulingFields| scheduling.by.is_some() && is_in(scheduling);
        let has = |index: &CreatorIndex| {
            index.unordered().any(|counts| counts.is_proven && is_member(&counts.template.scheduling))
        };
        !self.creator_index(Some(creator)).is_some_and(has) && self.indexes().iter().any(has)
    }

    /// How many executors a plan visits, apart from a round of the recovery rules.
    pub(crate) fn visits_per_plan(&self) -> usize {
        let orphans = self.counts().any(|counts| counts.orphans > 0);
        let indexed = self.indexes().iter().map(|index| index.uncleared.len()).sum::<usize>();
        indexed + if orphans { self.executors.len() } else { 0 }
    }

    /// Whether it has no driver and no executor.
    pub fn is_empty(&self) -> bool {
        self.drivers.is_empty() && self.executors.is_empty()
    }
}
