//! What is asked of an application's executors again and again, counted as they change: an application may have a hundred
//! thousand, and a plan must not walk over all of them.

use std::sync::Arc;

use imbl::OrdMap;

use super::app::ExecutorKey;
use super::facts::{Executor, Template};
use crate::signature::Creator;
use crate::spark::labels;
use crate::spark::state::ExecutorPodState;

/// The executors of an application that count to one creator.
#[derive(Clone, Debug)]
pub struct Roster {
    /// Who made them; `None` for executors that nobody owns and no signature speaks for.
    pub creator: Option<Creator>,
    /// The same executors by what they have in common, in no order.
    cohorts: Vec<Cohort>,
    /// How many there are.
    pub total: usize,
    /// How many of them somebody else than us has labelled inactive.
    pub labelled: usize,
    /// Those that ended, and that nobody has dealt with.
    pub uncleared: OrdMap<ExecutorKey, Arc<Executor>>,
    /// Those that are to be gone at a time that is known.
    pub leaving: OrdMap<ExecutorKey, Arc<Executor>>,
}

/// Executors of one creator that share a template, and of which the same is proven: mostly all that it has of one profile.
#[derive(Clone, Debug)]
pub struct Cohort {
    /// What they have in common.
    pub template: Arc<Template>,
    /// Whether our webhook's signature proves their creator and their placement.
    pub is_proven: bool,
    /// The first that there was.
    pub first: ExecutorKey,
    /// The highest `spark-exec-id` that there was.
    pub highest_id: u64,
    /// How many there are,
    pub total: usize,
    /// and of those, how many are pending or running and not on their way out,
    pub live: usize,
    /// are pending and live,
    pub pending: usize,
    /// run, or did,
    pub ran: usize,
    /// ended and were dealt with by nobody,
    pub uncleared: usize,
    /// have no owner although they should.
    pub orphans: usize,
}

impl Cohort {
    /// Whether an executor belongs to it.
    pub(crate) fn has(&self, executor: &Executor) -> bool {
        self.is_proven == executor.is_proven && Arc::ptr_eq(&self.template, &executor.template)
    }

    /// Whether it matters whether their driver lives: some live, or ended and were dealt with by nobody.
    pub fn is_undecided(&self) -> bool {
        self.live + self.uncleared > 0
    }

    fn count(&mut self, executor: &Executor, add: bool) {
        let count = |number: &mut usize, counts: bool| {
            if counts {
                *number = if add { *number + 1 } else { number.saturating_sub(1) };
            }
        };
        let is_live = executor.is_live();
        count(&mut self.total, true);
        count(&mut self.live, is_live);
        count(&mut self.pending, is_live && executor.state == ExecutorPodState::Pending);
        count(&mut self.ran, has_run(executor));
        count(&mut self.uncleared, executor.is_uncleared());
        count(&mut self.orphans, is_live && is_orphan(executor));
    }
}

/// Whether an executor runs, or did.
fn has_run(executor: &Executor) -> bool {
    matches!(executor.state, ExecutorPodState::Running | ExecutorPodState::Succeeded | ExecutorPodState::Failed)
}

/// Whether an executor should have an owner and has none.
pub(crate) fn is_orphan(executor: &Executor) -> bool {
    let template = &executor.template;
    let is_foreign = template.note.as_deref() == Some(labels::FOREIGN);
    template.owner.is_none() && !executor.deleting && !template.skip && !is_foreign
}

impl Roster {
    fn new(creator: Option<Creator>) -> Roster {
        let (uncleared, leaving) = (OrdMap::new(), OrdMap::new());
        Roster { creator, cohorts: Vec::new(), total: 0, labelled: 0, uncleared, leaving }
    }

    /// The cohorts, in no order.
    pub fn unordered(&self) -> impl Iterator<Item = &Cohort> {
        self.cohorts.iter()
    }

    /// The cohorts, by their first executors.
    pub fn cohorts(&self) -> Vec<&Cohort> {
        let mut cohorts: Vec<&Cohort> = self.cohorts.iter().collect();
        cohorts.sort_unstable_by(|a, b| a.first.cmp(&b.first));
        cohorts
    }

    /// Counts an executor in this place that was another one, or none, before.
    fn put(&mut self, key: &ExecutorKey, executor: &Arc<Executor>, old: Option<&Executor>) {
        self.total += usize::from(old.is_none());
        self.labelled += usize::from(is_labelled(executor));
        self.labelled = self.labelled.saturating_sub(usize::from(old.is_some_and(is_labelled)));
        let sets = [(&mut self.uncleared, Executor::is_uncleared as Which), (&mut self.leaving, is_leaving)];
        for (set, is_in) in sets {
            if is_in(executor) {
                set.insert(key.clone(), executor.clone());
            } else if old.is_some_and(is_in) {
                set.remove(key);
            }
        }
    }

    fn add(&mut self, key: &ExecutorKey, executor: &Arc<Executor>) {
        self.put(key, executor, None);
        let id = executor.exec_id.unwrap_or_default();
        let cohort = match self.cohorts.iter_mut().find(|cohort| cohort.has(executor)) {
            Some(cohort) => cohort,
            None => self.cohorts.push_mut(Cohort {
                template: executor.template.clone(),
                is_proven: executor.is_proven,
                first: key.clone(),
                highest_id: id,
                total: 0,
                live: 0,
                pending: 0,
                ran: 0,
                uncleared: 0,
                orphans: 0,
            }),
        };
        if *key < cohort.first {
            cohort.first = key.clone();
        }
        cohort.highest_id = cohort.highest_id.max(id);
        cohort.count(executor, true);
    }

    /// Takes a newer sighting in, if it belongs where the older did. Returns whether it does.
    fn renew(&mut self, key: &ExecutorKey, executor: &Arc<Executor>, old: &Executor) -> bool {
        let Some(cohort) = self.cohorts.iter_mut().find(|cohort| cohort.has(executor)).filter(|its| its.has(old))
        else {
            return false;
        };
        cohort.count(old, false);
        cohort.count(executor, true);
        self.put(key, executor, Some(old));
        true
    }

    fn remove(&mut self, key: &ExecutorKey, executor: &Executor) {
        self.total = self.total.saturating_sub(1);
        self.labelled = self.labelled.saturating_sub(usize::from(is_labelled(executor)));
        if executor.is_uncleared() {
            self.uncleared.remove(key);
        }
        if is_leaving(executor) {
            self.leaving.remove(key);
        }
        if let Some(at) = self.cohorts.iter().position(|cohort| cohort.has(executor))
            && let Some(cohort) = self.cohorts.get_mut(at)
        {
            cohort.count(executor, false);
            if cohort.total == 0 {
                self.cohorts.swap_remove(at);
            }
        }
    }
}

/// Whether an executor is in a set.
type Which = fn(&Executor) -> bool;

fn is_labelled(executor: &Executor) -> bool {
    executor.inactive && !executor.inactive_by_us
}

fn is_leaving(executor: &Executor) -> bool {
    executor.evidence.as_ref().is_some_and(|evidence| evidence.deletion.is_some())
}

/// The executors of an application by their creators.
#[derive(Clone, Debug, Default)]
pub(super) struct Rosters(Vec<Roster>);

impl Rosters {
    /// All of them, in no order.
    pub(super) fn all(&self) -> &[Roster] {
        &self.0
    }

    /// That of one creator.
    pub(super) fn of(&self, creator: Option<Creator>) -> Option<&Roster> {
        self.0.iter().find(|roster| roster.creator == creator)
    }

    /// Takes a newer sighting of an executor in.
    pub(super) fn renew(&mut self, key: &ExecutorKey, executor: &Arc<Executor>, old: &Executor) {
        let is_same = executor.creator() == old.creator();
        let roster = self.position(old).filter(|_| is_same).and_then(|at| self.0.get_mut(at));
        if !roster.is_some_and(|roster| roster.renew(key, executor, old)) {
            self.remove(key, old);
            self.add(key, executor);
        }
    }

    pub(super) fn add(&mut self, key: &ExecutorKey, executor: &Arc<Executor>) {
        let roster = match self.position(executor) {
            Some(at) => self.0.get_mut(at),
            None => Some(self.0.push_mut(Roster::new(executor.counts_to()))),
        };
        if let Some(roster) = roster {
            roster.add(key, executor);
        }
    }

    pub(super) fn remove(&mut self, key: &ExecutorKey, executor: &Executor) {
        let Some(at) = self.position(executor) else { return };
        if let Some(roster) = self.0.get_mut(at) {
            roster.remove(key, executor);
            if roster.total == 0 {
                self.0.swap_remove(at);
            }
        }
    }

    /// Where an executor's roster is. The digest of an owner is only computed for one that no cohort has: what is proven
    /// names its creator, and what is not has its creator from its template.
    fn position(&self, executor: &Executor) -> Option<usize> {
        let proven = executor.creator();
        let same = |roster: &Roster| match proven {
            Some(_) => roster.creator == proven,
            None => roster.cohorts.iter().any(|cohort| cohort.has(executor)),
        };
        self.0.iter().position(same).or_else(|| {
            let creator = proven.is_none().then(|| executor.counts_to())?;
            self.0.iter().position(|roster| roster.creator == creator)
        })
    }
}
