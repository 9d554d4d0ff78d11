//! Counts of an application's executors, updated with each change: an application may have a hundred thousand, and a plan must
//! not visit all of them.

use std::sync::Arc;

use imbl::OrdMap;

use super::facts::{Executor, ExecutorKey, Template};
use crate::annotations;
use crate::signature::{Creator, StatedCreator};
use usher_spark::state::ExecutorPodState;

/// The executors of one creator in an application.
#[derive(Clone, Debug)]
pub struct CreatorIndex {
    /// Their creator; `None` for executors without a proven signature and without an owner.
    pub creator: Option<Creator>,
    /// The same executors by template, in no order.
    by_template: Vec<TemplateCounts>,
    /// How many there are.
    pub total: usize,
    /// Those that exited and need cleanup.
    pub uncleared: OrdMap<ExecutorKey, Arc<Executor>>,
}

/// Executors of one creator with the same template and the same proof: mostly all of its executors of one profile.
#[derive(Clone, Debug)]
pub struct TemplateCounts {
    /// Their template.
    pub template: Arc<Template>,
    /// Whether our webhook's signature proves their creator and their placement.
    pub is_proven: bool,
    /// The first one ever observed.
    pub first: ExecutorKey,
    /// The highest `spark-exec-id` ever observed.
    pub highest_id: u64,
    /// How many there are.
    pub total: usize,
    /// How many are live ([`Executor::is_live`]).
    pub live: usize,
    /// How many are live and pending.
    pub pending: usize,
    /// How many are live and not being deleted.
    pub undeleted: usize,
    /// How many run or have run.
    pub ran: usize,
    /// How many exited and need cleanup.
    pub uncleared: usize,
    /// How many live ones have no owner although they should.
    pub orphans: usize,
    /// How many an actor other than spark-usher has labelled inactive.
    pub labelled: usize,
}

impl TemplateCounts {
    /// The creator of the executors, if that is proven.
    pub fn creator(&self) -> Option<Creator> {
        self.template.proven_creator(self.is_proven).map(StatedCreator::key)
    }

    /// Whether an executor is counted here.
    pub(crate) fn has(&self, executor: &Executor) -> bool {
        self.is_proven == executor.is_proven && Arc::ptr_eq(&self.template, &executor.template)
    }

    /// Whether the driver's liveness matters: some executors are live, or exited and need cleanup.
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
        count(&mut self.undeleted, is_undeleted(executor));
        count(&mut self.ran, has_run(executor));
        count(&mut self.uncleared, executor.needs_cleanup());
        count(&mut self.orphans, is_live && is_orphan(executor));
        count(&mut self.labelled, executor.inactive && !executor.inactive_by_usher);
    }
}

/// Whether an executor is live and not being deleted.
pub(crate) fn is_undeleted(executor: &Executor) -> bool {
    executor.is_live() && !executor.deleting
}

/// Whether an executor runs or has run.
fn has_run(executor: &Executor) -> bool {
    matches!(executor.state, ExecutorPodState::Running | ExecutorPodState::Succeeded | ExecutorPodState::Failed)
}

/// Whether an executor should have an owner and has none.
pub(crate) fn is_orphan(executor: &Executor) -> bool {
    let template = &executor.template;
    let is_foreign = template.note.as_deref() == Some(annotations::FOREIGN_CREATOR);
    template.owner.is_none() && !executor.deleting && !template.skip && !is_foreign
}

impl CreatorIndex {
    fn new(creator: Option<Creator>) -> CreatorIndex {
        CreatorIndex { creator, by_template: Vec::new(), total: 0, uncleared: OrdMap::new() }
    }

    /// The counts of all templates, in no order.
    pub fn unordered(&self) -> impl Iterator<Item = &TemplateCounts> {
        self.by_template.iter()
    }

    /// The counts of all templates, sorted by their first executors.
    pub fn counts(&self) -> Vec<&TemplateCounts> {
        let mut counts: Vec<&TemplateCounts> = self.by_template.iter().collect();
        counts.sort_unstable_by(|a, b| a.first.cmp(&b.first));
        counts
    }

    /// Counts an executor under this key, in place of `old` if there is one.
    fn put(&mut self, key: &ExecutorKey, executor: &Arc<Executor>, old: Option<&Executor>) {
        self.total += usize::from(old.is_none());
        if executor.needs_cleanup() {
            self.uncleared.insert(key.clone(), executor.clone());
        } else if old.is_some_and(Executor::needs_cleanup) {
            self.uncleared.remove(key);
        }
    }

    fn add(&mut self, key: &ExecutorKey, executor: &Arc<Executor>) {
        self.put(key, executor, None);
        let id = u64::from(executor.exec_id.unwrap_or_default());
        let counts = match self.by_template.iter_mut().find(|counts| counts.has(executor)) {
            Some(counts) => counts,
            None => self.by_template.push_mut(TemplateCounts {
                template: executor.template.clone(),
                is_proven: executor.is_proven,
                first: key.clone(),
                highest_id: id,
                total: 0,
                live: 0,
                pending: 0,
                undeleted: 0,
                ran: 0,
                uncleared: 0,
                orphans: 0,
                labelled: 0,
            }),
        };
        if *key < counts.first {
            counts.first = key.clone();
        }
        counts.highest_id = counts.highest_id.max(id);
        counts.count(executor, true);
    }

    /// Counts a newer state of an executor, if the template and proof are those of the older. Returns whether they are.
    fn renew(&mut self, key: &ExecutorKey, executor: &Arc<Executor>, old: &Executor) -> bool {
        let Some(counts) =
            self.by_template.iter_mut().find(|counts| counts.has(executor)).filter(|counts| counts.has(old))
        else {
            return false;
        };
        counts.count(old, false);
        counts.count(executor, true);
        self.put(key, executor, Some(old));
        true
    }

    fn remove(&mut self, key: &ExecutorKey, executor: &Executor) {
        self.total = self.total.saturating_sub(1);
        if executor.needs_cleanup() {
            self.uncleared.remove(key);
        }
        if let Some(at) = self.by_template.iter().position(|counts| counts.has(executor))
            && let Some(counts) = self.by_template.get_mut(at)
        {
            counts.count(executor, false);
            if counts.total == 0 {
                self.by_template.swap_remove(at);
            }
        }
    }
}

/// The executors of an application by their creators.
#[derive(Clone, Debug, Default)]
pub(super) struct CreatorIndexes(Vec<CreatorIndex>);

impl CreatorIndexes {
    /// All of them, in no order.
    pub(super) fn all(&self) -> &[CreatorIndex] {
        &self.0
    }

    pub(super) fn of(&self, creator: Option<Creator>) -> Option<&CreatorIndex> {
        self.0.iter().find(|index| index.creator == creator)
    }

    /// Counts a newer state of an executor.
    pub(super) fn renew(&mut self, key: &ExecutorKey, executor: &Arc<Executor>, old: &Executor) {
        let is_same = executor.creator() == old.creator();
        let index = self.position(old).filter(|_| is_same).and_then(|at| self.0.get_mut(at));
        if !index.is_some_and(|index| index.renew(key, executor, old)) {
            self.remove(key, old);
            self.add(key, executor);
        }
    }

    pub(super) fn add(&mut self, key: &ExecutorKey, executor: &Arc<Executor>) {
        let index = match self.position(executor) {
            Some(at) => self.0.get_mut(at),
            None => Some(self.0.push_mut(CreatorIndex::new(executor.counted_creator()))),
        };
        if let Some(index) = index {
            index.add(key, executor);
        }
    }

    pub(super) fn remove(&mut self, key: &ExecutorKey, executor: &Executor) {
        let Some(at) = self.position(executor) else { return };
        if let Some(index) = self.0.get_mut(at) {
            index.remove(key, executor);
            if index.total == 0 {
                self.0.swap_remove(at);
            }
        }
    }

    /// The position of an executor's index.
    fn position(&self, executor: &Executor) -> Option<usize> {
        let creator = executor.counted_creator();
        self.0.iter().position(|index| index.creator == creator)
    }
}
