//! Changes in the cluster, and how they change the snapshot.

use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use smol_str::SmolStr;

use super::app::Application;
use super::facts::{DriverPhase, DriverPod, Executor, ExecutorKey, ObservedPod, Template};
use super::pod_index::{PodEntry, pod_hash};
use super::proof::{proves_driver, proves_executor};
use super::related::RelatedChange;
use super::state::{ReferencedPod, Snapshot};
use super::walk::{Cursor, Labelled, Listed};
use usher_spark::ids::{AppKey, PodKey, is_newer};
use usher_spark::state::ExecutorPodState;

/// One change in the cluster, or the result of one read.
#[derive(Clone, Debug)]
pub enum Change {
    /// A change of the labelled pods: of drivers and executors.
    Pods(PodChange),
    /// A change of another object that decisions and plans depend on.
    Related(RelatedChange),
}

impl From<PodChange> for Change {
    fn from(change: PodChange) -> Change {
        Change::Pods(change)
    }
}

impl From<RelatedChange> for Change {
    fn from(change: RelatedChange) -> Change {
        Change::Related(change)
    }
}

/// A change of the labelled pods.
#[derive(Clone, Debug)]
pub enum PodChange {
    /// A labelled pod was added or modified.
    Observed(ObservedPod),
    /// A labelled pod was deleted. Ignored if the stored pod has another uid.
    Gone(PodKey, Arc<str>),
    /// A labelled pod was deleted, with its last state. That state, or the pod itself, may not have been observed before.
    Deleted(ObservedPod),
    /// A list of all labelled pods does not contain the pod with this uid.
    NotListed(PodKey, Arc<str>),
    /// All labelled pods were listed, and replace the stored ones in one step.
    Listed(Vec<ObservedPod>),
}

/// The effect of a change on the snapshot.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Delta {
    /// Applications that changed, so that only those are planned again.
    pub touched: Vec<AppKey>,
    /// Executors that were observed in a final state for the first time.
    pub ended: Vec<Ended>,
    /// Executors that run again after a final state: their container was restarted.
    pub revived: Vec<(AppKey, Arc<Executor>)>,
    /// Executors whose pods were deleted or are missing.
    pub removed: Vec<RemovedExecutor>,
}

impl Delta {
    fn extend(&mut self, more: Delta) {
        self.touched.extend(more.touched);
        self.ended.extend(more.ended);
        self.revived.extend(more.revived);
        self.removed.extend(more.removed);
    }
}

impl From<Vec<AppKey>> for Delta {
    fn from(touched: Vec<AppKey>) -> Delta {
        Delta { touched, ..Delta::default() }
    }
}

/// An executor that was observed in a final state for the first time.
#[derive(Clone, Debug, PartialEq)]
pub struct Ended {
    /// Its application.
    pub app: AppKey,
    /// The executor as it was first observed in that state.
    pub executor: Arc<Executor>,
    /// Whether it was observed in another state before.
    pub was_live: bool,
    /// The newest observed resourceVersion at which it had not exited yet.
    pub after: Option<SmolStr>,
}

/// The evidence that an executor's pod was deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absence {
    /// The watch reported its deletion.
    Deleted,
    /// The watch reported that it left the watched pods, without a deletionTimestamp: its labels have changed. A GET confirms
    /// whether it still exists.
    Unselected,
    /// A list does not contain it.
    NotListed,
    /// Another pod has its name, or its deletion event cannot be parsed: it was certainly deleted, at an unknown version.
    Unversioned,
}

impl Absence {
    /// Whether the pod was certainly deleted.
    pub fn is_certain(self) -> bool {
        matches!(self, Absence::Deleted | Absence::Unversioned)
    }
}

/// An executor whose pod was deleted or is missing.
#[derive(Clone, Debug, PartialEq)]
pub struct RemovedExecutor {
    /// Its application.
    pub app: AppKey,
    /// Its last observed state.
    pub executor: Arc<Executor>,
    /// The evidence.
    pub absence: Absence,
    /// For one that a poll did not contain: when the poll was read, and how long an executor must exist to count as missing.
    pub missing: Option<(Timestamp, Duration)>,
    /// When its confirmation was first requested; the answer may take long.
    pub asked: Option<Instant>,
}

impl RemovedExecutor {
    fn of(app: &AppKey, executor: Arc<Executor>, absence: Absence) -> RemovedExecutor {
        RemovedExecutor { app: app.clone(), executor, absence, missing: None, asked: None }
    }
}

impl Snapshot {
    /// Applies a change, and returns its effect.
    pub fn apply(&mut self, change: impl Into<Change>) -> Delta {
        match change.into() {
            Change::Pods(change) => self.apply_to_pods(change),
            Change::Related(change) => self.apply_related(change).into(),
        }
    }

    fn apply_to_pods(&mut self, change: PodChange) -> Delta {
        match change {
            PodChange::Observed(pod) => self.upsert(pod),
            PodChange::Gone(key, uid) => self.remove_pod(&key, &uid, Absence::Unversioned),
            PodChange::Deleted(pod) => {
                let (key, uid) = (pod.key(), pod.uid().clone());
                let Delta { touched, ended, revived, removed } = self.upsert(pod);
                let mut delta = self.remove_pod(&key, &uid, Absence::Deleted);
                for removed in delta.removed.iter_mut().filter(|removed| may_exist(&removed.executor)) {
                    removed.absence = Absence::Unselected;
                }
                delta.touched.extend(touched);
                delta.removed.extend(removed);
                Delta { ended, revived, ..delta }
            }
            PodChange::Listed(all) => self.replace_pods(all),
            PodChange::NotListed(key, uid) => self.not_listed(&key, &uid),
        }
    }

    /// Every executor that is in a final state.
    pub(super) fn finals(&self) -> impl Iterator<Item = Ended> + '_ {
        self.apps.iter().flat_map(|(key, app)| {
            let ended = app.executors().values().filter(|executor| executor.state.is_final());
            ended.map(|executor| Ended { app: key.clone(), executor: executor.clone(), was_live: false, after: None })
        })
    }

    pub(super) fn is_proven_driver(&self, app: &AppKey, driver: &DriverPod) -> bool {
        self.signing_key.as_ref().is_some_and(|key| proves_driver(key, app, driver))
    }

    pub(super) fn is_proven_executor(&self, app: &AppKey, executor: &Executor) -> bool {
        self.signing_key.as_ref().is_some_and(|key| proves_executor(key, app, executor))
    }

    /// A labelled driver that was read, with what our key says about its signature.
    pub fn verified(&self, app: &AppKey, driver: DriverPod) -> DriverPod {
        DriverPod { is_proven: self.is_proven_driver(app, &driver), ..driver }
    }

    fn upsert(&mut self, pod: ObservedPod) -> Delta {
        match pod {
            ObservedPod::Driver(app, driver) => self.upsert_driver(app, driver),
            ObservedPod::Executor(app, executor) => self.upsert_executor(app, executor),
            ObservedPod::Other(key, pod) => self.upsert_other(&key, &pod),
        }
    }

    /// A pod is not a driver or an executor: a label was removed, or another pod has the name. Ignored if the watch delivered a
    /// newer version, for example because the label was set again before a GET was answered.
    fn upsert_other(&mut self, key: &PodKey, pod: &DriverPod) -> Delta {
        let (namespace, name) = (key.namespace(), key.name());
        let Some((_, known)) = self.labelled(namespace, name) else { return Delta::default() };
        if is_newer(known.version(), &pod.version) {
            return Delta::default();
        }
        let is_another = **known.uid() != *pod.uid;
        let Some((app, executor)) = self.remove(namespace, name) else { return Delta::default() };
        let removed = executor.filter(|_| is_another).map(|gone| RemovedExecutor::of(&app, gone, Absence::Unversioned));
        Delta { touched: vec![app], removed: removed.into_iter().collect(), ..Delta::default() }
    }

    fn upsert_driver(&mut self, app: AppKey, mut driver: DriverPod) -> Delta {
        driver.is_proven = self.is_proven_driver(&app, &driver);
        // Stale: a GET was faster than the watch.
        let known = self.labelled_driver(app.namespace(), &driver.name);
        if known.is_some_and(|(_, known)| is_newer(&known.version, &driver.version)) {
            return Delta::default();
        }
        let at = pod_hash(app.namespace(), &driver.name);
        let mut delta = Delta::from(vec![app.clone()]);
        let place = PodEntry::of(app.hash(), None);
        if self.pod_index.get(&at).is_some_and(|old| *old != place)
            && let Some((old, executor)) = self.remove(app.namespace(), &driver.name)
        {
            delta.removed.extend(executor.map(|executor| RemovedExecutor::of(&old, executor, Absence::Unversioned)));
            delta.touched.extend(Some(old).filter(|old| *old != app));
        }
        self.forget_referenced_name(app.namespace(), &driver.name);
        let old = self.apps.get(&app).and_then(|app| app.driver(&driver.name)).cloned();
        self.forget(app.namespace(), old, Some(&driver.uid));
        self.index_address(app.namespace(), &driver);
        let drivers = &mut self.app_mut(&app).drivers;
        match drivers.binary_search_by(|known| known.name.cmp(&driver.name)) {
            Ok(at) => drivers.splice(at..=at, [Arc::new(driver)]).for_each(drop),
            Err(at) => drivers.insert(at, Arc::new(driver)),
        }
        self.pod_index.insert(at, place);
        delta
    }

    fn upsert_executor(&mut self, app: AppKey, mut executor: Executor) -> Delta {
        let key = ExecutorKey::of(&executor);
        // Nearly always it is stored under its own key; otherwise it is new, or stored under another key.
        let here = self.apps.get_key_value(&app).and_then(|(app, known)| Some((app, known.executors().get(&key)?)));
        let (old, known) = match here {
            Some((stored, known)) => (Some((stored.clone(), Some(key.id))), Some(known.clone())),
            None => {
                let old = self.place(app.namespace(), &executor.name);
                let known = old.and_then(|(_, app, id)| {
                    app.executors().get(&ExecutorKey { id: id?, name: key.name.clone() }).cloned()
                });
                (old.map(|(stored, _, id)| (stored.clone(), id)), known)
            }
        };
        let moved = here.is_none() && old.as_ref().is_some_and(|(stored, id)| *stored != app || *id != Some(key.id));
        // Stale, also if it is an earlier pod of the same name: a GET was faster than the watch.
        if known.as_ref().is_some_and(|known| is_newer(&known.version, &executor.version)) {
            return Delta::default();
        }
        // The shared text of the application's key, if it is stored.
        let app = old.as_ref().filter(|_| !moved).map_or(app, |(stored, _)| stored.clone());
        let mut delta = Delta::from(vec![app.clone()]);
        let (known, before) = match known {
            Some(known) if known.uid == executor.uid => (Some(known), None),
            other => (None, other),
        };
        // Another pod of the same name: the earlier one was deleted, whether that was reported or not.
        delta.removed.extend(
            before
                .zip(old.as_ref())
                .map(|(gone, (old_app, _))| RemovedExecutor::of(old_app, gone, Absence::Unversioned)),
        );
        if moved {
            delta
                .touched
                .extend(self.remove(app.namespace(), &executor.name).map(|(old, _)| old).filter(|old| *old != app));
        }
        if old.is_none() {
            self.forget_referenced_name(app.namespace(), &executor.name);
        }
        executor.node = executor.node.take().map(|node| self.node(node));
        if let Some(known) = &known {
            executor.continues(known);
            // They are equal, so the texts are stored once.
            (executor.name, executor.uid) = (known.name.clone(), known.uid.clone());
        }
        let in_app = || self.apps.get(&app).map(|app| &**app);
        if let Some(alike) = interned(known.as_ref().filter(|_| !moved), in_app, &executor.template) {
            executor.template = alike;
        }
        // An executor that moved was verified for its former application.
        let same = known.as_ref().filter(|known| {
            !moved
                && known.signature == executor.signature
                && known.signed_name == executor.signed_name
                && Arc::ptr_eq(&known.template, &executor.template)
        });
        executor.is_proven = match same {
            Some(known) => known.is_proven,
            None => self.is_proven_executor(&app, &executor),
        };
        if !moved && known.as_ref().is_some_and(|known| **known == executor) {
            return Delta::default(); // Listed again, and unchanged.
        }
        let in_app = self.app_mut(&app);
        let after = known.as_ref().filter(|known| !known.state.is_final()).map(|known| known.version.clone());
        let was_live = after.is_some();
        let has_ended = executor.state.is_final() && (known.is_none() || was_live);
        let executor = Arc::new(executor);
        if known.is_some_and(|known| is_revived(&known, &executor)) {
            delta.revived.push((app.clone(), executor.clone()));
        }
        in_app.insert(ExecutorKey { name: executor.name.clone(), ..key }, executor.clone());
        if old.is_none() || moved {
            let at = pod_hash(app.namespace(), &executor.name);
            self.pod_index.insert(at, PodEntry::of(app.hash(), Some(key.id)));
        }
        delta.ended.extend(has_ended.then_some(Ended { app, executor, was_live, after }));
        delta
    }

    /// The labelled driver of that name, and its application.
    pub(crate) fn labelled_driver(&self, namespace: &str, name: &str) -> Option<(&AppKey, &Arc<DriverPod>)> {
        let (key, app, _) = self.place(namespace, name)?;
        Some((key, app.driver(name)?))
    }

    /// The shared text of a node's name.
    fn node(&mut self, name: Arc<str>) -> Arc<str> {
        match self.node_names.get_key_value(&name) {
            Some((known, ())) => known.clone(),
            None => {
                self.node_names.insert(name.clone(), ());
                name
            }
        }
    }

    fn remove_pod(&mut self, key: &PodKey, uid: &str, absence: Absence) -> Delta {
        let (namespace, name) = (key.namespace(), key.name());
        let is_another = |(_, pod): (&AppKey, Labelled<'_>)| **pod.uid() != *uid;
        if self.labelled(namespace, name).is_none_or(is_another) {
            return Delta::default();
        }
        // A watch by label reports a pod that has lost the label as deleted.
        let driver = self.labelled_driver(namespace, name).map(|(_, driver)| driver);
        let is_gone = driver.is_some_and(|driver| absence != Absence::Deleted || !driver.is_live());
        let Some((app, executor)) = self.remove(namespace, name) else { return Delta::default() };
        // A driver whose deletion was observed is absent for its executors, not unknown until the next GET.
        if is_gone && self.apps.get(&app).is_some_and(|app| !app.executors().is_empty()) {
            self.referenced.insert(key.clone(), ReferencedPod::Absent);
        }
        let removed = executor.map(|executor| RemovedExecutor::of(&app, executor, absence));
        Delta { touched: vec![app], removed: removed.into_iter().collect(), ..Delta::default() }
    }

    /// Removes a labelled pod, whatever its uid. Returns its application and, for an executor, its last state.
    fn remove(&mut self, namespace: &str, name: &str) -> Option<(AppKey, Option<Arc<Executor>>)> {
        let (key, _, id) = self.place(namespace, name)?;
        let key = key.clone();
        self.pod_index.remove(&pod_hash(namespace, name));
        let app = self.app_mut(&key);
        let executor = match id {
            Some(id) => app.remove(&ExecutorKey { id, name: name.into() }),
            None => {
                let gone = app.driver(name).cloned();
                app.drivers.retain(|driver| &*driver.name != name);
                self.forget(namespace, gone, None);
                None
            }
        };
        if self.apps.get(&key).is_some_and(|app| app.is_empty()) {
            self.apps.remove(&key);
            if !self.refused_groups.is_empty() {
                self.refused_groups.retain(|_, (app, _)| *app != key);
            }
        }
        Some((key, executor))
    }

    /// Stores the result of a live GET. Returns whether it changed anything.
    pub(super) fn set_referenced(&mut self, key: PodKey, current: ReferencedPod) -> bool {
        // For a labelled pod the watch reports more, and sooner.
        if self.pod_index.contains_key(&pod_hash(key.namespace(), key.name()))
            || self.referenced.get(&key) == Some(&current)
        {
            return false;
        }
        let old = self.referenced.get(&key).and_then(present).cloned();
        let uid = present(&current).map(|pod| pod.uid.clone());
        self.forget(key.namespace(), old, uid.as_deref());
        if let Some(pod) = present(&current).cloned() {
            self.index_address(key.namespace(), &pod);
        }
        self.referenced.insert(key, current);
        true
    }

    fn forget_referenced_name(&mut self, namespace: &str, name: &str) {
        if !self.referenced.is_empty() {
            self.forget_referenced(&PodKey::new(namespace, name));
        }
    }

    pub(super) fn forget_referenced(&mut self, key: &PodKey) {
        if let Some(old) = self.referenced.remove(key) {
            self.forget(key.namespace(), present(&old).cloned(), None);
        }
    }

    /// Replaces all labelled pods with a new list. Pods that were observed in a newer version meanwhile stay unchanged.
    fn replace_pods(&mut self, pods: Vec<ObservedPod>) -> Delta {
        let mut delta = Delta::default();
        let mut listed = Listed::default();
        for pod in pods.into_iter().filter(|pod| !matches!(pod, ObservedPod::Other(..))) {
            listed.add(&pod);
            delta.extend(self.upsert(pod));
        }
        listed.seal();
        let mut missing = Vec::new();
        self.walk(&mut Cursor::default(), usize::MAX, |app, pod| {
            if !listed.has(app, &pod) {
                missing.push((PodKey::new(app.namespace(), pod.name()), pod.uid().clone()));
            }
        });
        for (pod, uid) in missing {
            delta.extend(self.not_listed(&pod, &uid));
        }
        delta.touched.sort_unstable();
        delta.touched.dedup();
        delta
    }

    /// Removes a pod that a list does not contain.
    fn not_listed(&mut self, key: &PodKey, uid: &str) -> Delta {
        let (namespace, name) = (key.namespace(), key.name());
        if self.labelled(namespace, name).is_none_or(|(_, pod)| **pod.uid() != *uid) {
            return Delta::default();
        }
        let Some((app, executor)) = self.remove(namespace, name) else { return Delta::default() };
        let removed = executor.map(|executor| RemovedExecutor::of(&app, executor, Absence::NotListed));
        Delta { touched: vec![app], removed: removed.into_iter().collect(), ..Delta::default() }
    }

    fn app_mut(&mut self, key: &AppKey) -> &mut Application {
        Arc::make_mut(self.apps.entry(key.clone()).or_default())
    }

    fn index_address(&mut self, namespace: &str, driver: &DriverPod) {
        // The address of a driver that exited is soon assigned to another pod.
        if let (Some(address), false) = (&driver.address, driver.is_executor || driver.phase == DriverPhase::Ended) {
            self.addresses.insert(PodKey::new(namespace, address), driver.name.clone());
        }
    }

    /// Drops what is stored beside a driver's pod: its address, and its configuration unless the pod is still the same.
    fn forget(&mut self, namespace: &str, driver: Option<Arc<DriverPod>>, uid_now: Option<&str>) {
        let Some(driver) = driver else { return };
        if uid_now != Some(&*driver.uid) {
            self.forget_confs(&driver.uid);
        }
        let Some(address) = &driver.address else { return };
        let key = PodKey::new(namespace, address);
        if self.addresses.get(&key).is_some_and(|name| *name == driver.name) {
            self.addresses.remove(&key);
        }
    }
}

/// Whether a pod that left a watch by label may still exist, by its last state: the API server reports the removal of a label
/// as a deletion. A deleted pod has a deletionTimestamp, even if removed immediately (forced, exited, or without a node): the API
/// server writes it first (`Store.Delete` and `BeforeDelete` in `k8s.io/apiserver/pkg/registry`).
pub(crate) fn may_exist(executor: &Executor) -> bool {
    executor.state.is_live() && !executor.deleting
}

/// Whether a container that had exited was restarted (`restartPolicy: Always`). A pod that is over, or was deleted, stays so
/// whatever it reports next.
fn is_revived(known: &Executor, now: &Executor) -> bool {
    let ended = matches!(known.state, ExecutorPodState::Failed | ExecutorPodState::Succeeded);
    ended && !known.is_over && now.state.is_live() && !now.deleting
}

/// The stored template that equals a new one.
fn interned<'s>(
    known: Option<&'s Arc<Executor>>,
    app: impl FnOnce() -> Option<&'s Application>,
    template: &Template,
) -> Option<Arc<Template>> {
    let known = known.map(|executor| &executor.template).filter(|kept| ***kept == *template);
    known.or_else(|| app()?.interned(template)).cloned()
}

fn present(referenced: &ReferencedPod) -> Option<&Arc<DriverPod>> {
    match referenced {
        ReferencedPod::Present(pod) => Some(pod),
        ReferencedPod::Absent => None,
    }
}
