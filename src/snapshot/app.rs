//! One application: its labelled drivers and its executors.

use std::sync::Arc;

use imbl::OrdMap;

use super::facts::{DriverPod, Executor, Life, Seat, Template};
use super::roster::{Cohort, Roster, Rosters};
use crate::signature::Creator;

/// Executors in the order in which Spark made them: by number, then by name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExecutorKey {
    /// `spark-exec-id`, or the largest number where it is none.
    pub id: u64,
    /// The pod's name.
    pub name: Arc<str>,
}

impl ExecutorKey {
    /// The key of an executor.
    pub fn of(executor: &Executor) -> Self {
        Self { id: executor.exec_id.unwrap_or(u64::MAX), name: executor.name.clone() }
    }
}

/// So many templates of an application are compared with one just read.
const TEMPLATES: usize = 16;

/// An application.
#[derive(Clone, Debug, Default)]
pub struct App {
    /// Pods labelled as its driver, by their names. Normally one; two while an application of the same selector is submitted
    /// again.
    pub drivers: Vec<Arc<DriverPod>>,
    /// Its executors, finished ones too as long as their pods exist.
    executors: OrdMap<ExecutorKey, Arc<Executor>>,
    /// The same, counted.
    rosters: Rosters,
}

impl PartialEq for App {
    fn eq(&self, other: &App) -> bool {
        self.drivers == other.drivers && self.executors == other.executors
    }
}

impl App {
    /// Its executors, finished ones too as long as their pods exist.
    pub fn executors(&self) -> &OrdMap<ExecutorKey, Arc<Executor>> {
        &self.executors
    }

    /// Adds an executor, or replaces what was known of it.
    pub(super) fn insert(&mut self, key: ExecutorKey, executor: Arc<Executor>) {
        match self.executors.insert(key.clone(), executor.clone()) {
            Some(old) => self.rosters.renew(&key, &executor, &old),
            None => self.rosters.add(&key, &executor),
        }
    }

    /// Takes an executor out.
    pub(super) fn remove(&mut self, key: &ExecutorKey) -> Option<Arc<Executor>> {
        let executor = self.executors.remove(key)?;
        self.rosters.remove(key, &executor);
        Some(executor)
    }

    /// The executors by their creators, counted; in no order.
    pub fn rosters(&self) -> &[Roster] {
        self.rosters.all()
    }

    /// The executors of one creator.
    pub fn roster(&self, creator: Option<Creator>) -> Option<&Roster> {
        self.rosters.of(creator)
    }

    /// All cohorts, by their first executors.
    pub fn cohorts(&self) -> Vec<&Cohort> {
        let mut cohorts: Vec<&Cohort> = self.rosters().iter().flat_map(Roster::cohorts).collect();
        cohorts.sort_by(|a, b| a.first.cmp(&b.first));
        cohorts
    }

    /// A live executor of a cohort.
    pub fn one_of(&self, cohort: &Cohort) -> Option<&Arc<Executor>> {
        let executors = self.executors.range(cohort.first.clone()..).map(|(_, executor)| executor);
        executors.into_iter().find(|executor| executor.is_live() && cohort.has(executor))
    }

    /// The template, kept already, that is equal to one just read.
    pub(super) fn alike(&self, template: &Template) -> Option<&Arc<Template>> {
        let cohorts = self.rosters().iter().flat_map(Roster::unordered).take(TEMPLATES);
        cohorts.map(|cohort| &cohort.template).find(|kept| ***kept == *template)
    }

    /// The labelled driver pod of that name.
    pub fn driver(&self, name: &str) -> Option<&Arc<DriverPod>> {
        let at = self.drivers.binary_search_by(|driver| (*driver.name).cmp(name)).ok()?;
        self.drivers.get(at)
    }

    /// The labelled driver that still drives: not ended, not on its way out, the running one first.
    pub fn live_driver(&self) -> Option<&Arc<DriverPod>> {
        let running = self.drivers.iter().find(|driver| driver.is_live() && driver.life == Life::Running);
        running.or_else(|| self.drivers.iter().find(|driver| driver.is_live()))
    }

    /// The labelled driver that still drives and that, as our signature proves, this creator made.
    pub fn driver_made_by(&self, creator: Creator) -> Option<&Arc<DriverPod>> {
        self.drivers.iter().find(|driver| driver.is_live() && driver.maker() == Some(creator))
    }

    /// Executors that are pending or running.
    pub fn live(&self) -> impl Iterator<Item = &Arc<Executor>> {
        self.executors.values().filter(|executor| executor.is_live())
    }

    /// What the first executor of the default profile that this creator made, and that we placed, got; its later ones get
    /// the same. Only what our signature proves counts: labels and annotations are anybody's to write.
    pub fn first_seat(&self, creator: Creator) -> Option<&Arc<Seat>> {
        let placed =
            |cohort: &&Cohort| cohort.is_proven && cohort.template.default_profile && cohort.template.seat.by.is_some();
        let cohorts = self.roster(Some(creator))?.unordered().filter(placed);
        cohorts.min_by(|a, b| a.first.cmp(&b.first)).map(|cohort| &cohort.template.seat)
    }

    /// How many executors a plan goes through.
    pub fn unsettled(&self) -> usize {
        let orphans = self.rosters().iter().flat_map(Roster::unordered).any(|cohort| cohort.orphans > 0);
        let own = self.rosters().iter().map(|roster| roster.uncleared.len() + roster.leaving.len()).sum::<usize>();
        own + if orphans { self.executors.len() } else { 0 }
    }

    /// Whether nothing is left of it.
    pub fn is_empty(&self) -> bool {
        self.drivers.is_empty() && self.executors.is_empty()
    }
}
