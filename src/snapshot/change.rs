//! What happened, and how it changes the picture.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use smol_str::SmolStr;

use super::app::{App, ExecutorKey};
use super::facts::{DriverPod, Executor, Life, Namespace, ServiceOwner, Sighting, Template};
use super::group::{Group, GroupKey, ServedApis};
use super::proof::{proves_driver, proves_executor};
use super::walk::{Cursor, Labelled, Listed};
use super::{Conf, Followed, Snapshot};
use crate::plant::{self, Bug};
use crate::signature::Key;
use crate::spark::ids::{AppKey, PodKey, is_newer};
use crate::spark::state::ExecutorPodState;

/// One thing that was learned about the cluster.
#[derive(Clone, Debug)]
pub enum Change {
    /// A labelled pod was added or modified.
    Pod(Sighting),
    /// A labelled pod is gone. With another uid than the one kept it is old news.
    PodGone(PodKey, Arc<str>),
    /// A labelled pod was deleted, and this is how it was last: what it says may never have been seen, nor the pod.
    PodDeleted(Sighting),
    /// A list of all labelled pods does not have this one of this uid.
    NotListed(PodKey, Arc<str>),
    /// The PodGroups of ours of this scheduler type were listed.
    GroupsListed(&'static str),
    /// A pod was read by name, for the applications that asked for it.
    Followed(PodKey, Followed, Vec<AppKey>),
    /// Nobody names this pod any more.
    Unfollowed(PodKey),
    /// A namespace was added or modified.
    Namespace(Arc<str>, Namespace),
    /// A namespace is gone.
    NamespaceGone(Arc<str>),
    /// A driver's Service was added or modified.
    Service(PodKey, ServiceOwner),
    /// A driver's Service is gone.
    ServiceGone(PodKey),
    /// A priority class was added.
    PriorityClass(Arc<str>),
    /// A priority class is gone.
    PriorityClassGone(Arc<str>),
    /// The configuration of the driver in the pod of this name and uid, for the applications that asked for it.
    Conf(PodKey, Arc<str>, Conf, Vec<AppKey>),
    /// A PodGroup of ours was added or modified.
    Group(GroupKey, Group),
    /// A PodGroup of ours is gone.
    GroupGone(GroupKey),
    /// Of the PodGroups of this scheduler type nothing is known any more.
    Unlisted(&'static str),
    /// Discovery answered.
    Apis(ServedApis),
    /// The version of the installed Volcano, where it refuses pods whose PodGroup does not exist yet.
    EarlyPods(Option<Arc<str>>),
    /// What our webhook's signatures are made and verified with.
    SigningKey(Key),
    /// A list was read anew and replaces what was known, at once.
    Replaced(Replaced),
}

/// A whole list.
#[derive(Clone, Debug)]
pub enum Replaced {
    /// All labelled pods.
    Pods(Vec<Sighting>),
    /// All namespaces.
    Namespaces(Vec<(Arc<str>, Namespace)>),
    /// All Services of drivers.
    Services(Vec<(PodKey, ServiceOwner)>),
    /// All priority classes.
    PriorityClasses(Vec<Arc<str>>),
    /// All PodGroups of ours of one scheduler type.
    Groups(&'static str, Vec<(GroupKey, Group)>),
}

/// What a change did to the picture.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Effect {
    /// Applications that changed, so that only those are planned again.
    pub touched: Vec<AppKey>,
    /// Executors that were seen in a final state for the first time.
    pub ended: Vec<Ended>,
    /// Executors that run again after a final state: their container was started anew.
    pub revived: Vec<(AppKey, Arc<Executor>)>,
    /// Executors whose pods are gone.
    pub departed: Vec<Departed>,
}

impl Effect {
    fn extend(&mut self, more: Effect) {
        self.touched.extend(more.touched);
        self.ended.extend(more.ended);
        self.revived.extend(more.revived);
        self.departed.extend(more.departed);
    }
}

impl From<Vec<AppKey>> for Effect {
    fn from(touched: Vec<AppKey>) -> Effect {
        Effect { touched, ..Effect::default() }
    }
}

/// An executor that was seen in a final state for the first time.
#[derive(Clone, Debug, PartialEq)]
pub struct Ended {
    /// Whose it is.
    pub app: AppKey,
    /// As it was seen in that state first.
    pub executor: Arc<Executor>,
    /// Whether it was seen in another state before.
    pub was_live: bool,
    /// The newest resourceVersion as of which it had not ended yet, as far as was seen.
    pub after: Option<SmolStr>,
}

/// What says that an executor's pod is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absence {
    /// The watch showed its deletion.
    Deleted,
    /// The watch showed that it left the watched pods, without a deletionTimestamp: its labels have changed. A read by name makes
    /// sure.
    Unselected,
    /// A list does not have it.
    NotListed,
    /// Another pod has its name, or its deletion cannot be read: it is gone for certain, and nobody knows as of which version.
    Unversioned,
}

impl Absence {
    /// Whether the pod is gone for certain.
    pub fn is_certain(self) -> bool {
        matches!(self, Absence::Deleted | Absence::Unversioned)
    }
}

/// An executor whose pod is gone.
#[derive(Clone, Debug, PartialEq)]
pub struct Departed {
    /// Whose it was.
    pub app: AppKey,
    /// As it was seen last.
    pub executor: Arc<Executor>,
    /// What says so.
    pub absence: Absence,
    /// For one that a poll did not have: when that was read, and how long an executor must be there to count as missing.
    pub missing: Option<(Timestamp, Duration)>,
    /// Since when it has been in question; the answer may be long in coming.
    pub asked: Option<Instant>,
}

impl Departed {
    fn of(app: &AppKey, executor: Arc<Executor>, absence: Absence) -> Departed {
        Departed { app: app.clone(), executor, absence, missing: None, asked: None }
    }
}

/// Where a labelled pod is kept: under which application, and under which number when it is an executor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) app: AppKey,
    /// One more than the number, and the largest for one without.
    executor: Option<NonZeroU64>,
}

impl Place {
    fn of(app: AppKey, executor: Option<u64>) -> Place {
        Place { app, executor: executor.and_then(|id| NonZeroU64::new(id.saturating_add(1))) }
    }

    pub(super) fn id(&self) -> Option<u64> {
        self.executor.map(|number| if number == NonZeroU64::MAX { u64::MAX } else { number.get() - 1 })
    }
}

/// The number under which a pod's place is kept. Two names of one number would hide one of the two pods from look-ups by
/// name until the next list; with a hash of 64 bits nobody will see that.
pub(super) fn place_of(namespace: &str, name: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    (namespace, name).hash(&mut hasher);
    hasher.finish()
}

impl Snapshot {
    /// Applies a change, and tells what that did.
    pub fn apply(&mut self, change: Change) -> Effect {
        match change {
            Change::Pod(sighting) => self.see(sighting),
            Change::PodGone(key, uid) => self.lose(&key, &uid, Absence::Unversioned),
            Change::PodDeleted(sighting) => {
                let (key, uid) = (sighting.key(), sighting.uid().clone());
                let Effect { touched, ended, revived, departed } = self.see(sighting);
                let mut effect = self.lose(&key, &uid, Absence::Deleted);
                for departed in effect.departed.iter_mut().filter(|departed| may_be_there(&departed.executor)) {
                    departed.absence = Absence::Unselected;
                }
                effect.touched.extend(touched);
                effect.departed.extend(departed);
                Effect { ended, revived, ..effect }
            }
            Change::Replaced(Replaced::Pods(all)) => self.replace_pods(all),
            Change::NotListed(key, uid) => self.not_listed(&key, &uid),
            other => self.apply_beside(other).into(),
        }
    }

    /// Every executor that is in a final state.
    pub(super) fn finals(&self) -> impl Iterator<Item = Ended> + '_ {
        self.apps.iter().flat_map(|(key, app)| {
            let ended = app.executors().values().filter(|executor| executor.state.is_final());
            ended.map(|executor| Ended { app: key.clone(), executor: executor.clone(), was_live: false, after: None })
        })
    }

    /// Everything but labelled pods.
    fn apply_beside(&mut self, change: Change) -> Vec<AppKey> {
        match change {
            // Done above.
            Change::Pod(_) | Change::PodGone(..) | Change::PodDeleted(_) | Change::NotListed(..) => Vec::new(),
            Change::GroupsListed(scheduler) => {
                self.listed.insert(scheduler);
                Vec::new()
            }
            Change::Followed(key, followed, askers) => {
                if self.follow(key, followed) {
                    askers
                } else {
                    Vec::new()
                }
            }
            Change::Unfollowed(key) => {
                self.unfollow(&key);
                Vec::new()
            }
            Change::Namespace(name, namespace) => {
                self.namespaces.insert(name, Arc::new(namespace));
                Vec::new()
            }
            Change::NamespaceGone(name) => {
                self.namespaces.remove(&name);
                Vec::new()
            }
            Change::Service(key, owner) => {
                self.services.insert(key, owner);
                Vec::new()
            }
            Change::ServiceGone(key) => {
                self.services.remove(&key);
                Vec::new()
            }
            Change::PriorityClass(name) => {
                self.priority_classes.get_or_insert_default().insert(name);
                Vec::new()
            }
            Change::PriorityClassGone(name) => {
                self.priority_classes.get_or_insert_default().remove(&name);
                Vec::new()
            }
            Change::Conf(driver, uid, conf, askers) => {
                let known = self.driver_pod(driver.namespace(), driver.name());
                if known.is_none_or(|pod| pod.uid != uid) {
                    return Vec::new(); // That driver is gone; keeping its configuration would keep it for ever.
                }
                self.confs.insert(uid, conf);
                askers
            }
            Change::Group(key, group) => {
                if self.groups.get(&key).is_some_and(|known| **known == group) {
                    return Vec::new();
                }
                let touched = group_app(&key, &group).into_iter().collect();
                self.keep_group(key, group);
                touched
            }
            Change::GroupGone(key) => {
                self.lose_group(&key).and_then(|group| group_app(&key, &group)).into_iter().collect()
            }
            Change::Unlisted(kind) => {
                let touched = self.replace(Replaced::Groups(kind, Vec::new()));
                self.listed.remove(kind);
                touched
            }
            Change::Apis(apis) => {
                let news = self.apis.as_deref() != Some(&apis);
                self.apis = Some(Arc::new(apis));
                if news { self.apps.keys().cloned().collect() } else { Vec::new() }
            }
            Change::EarlyPods(refused_by) => {
                let news = self.early_pods_refused_by != refused_by;
                self.early_pods_refused_by = refused_by;
                if news { self.apps.keys().cloned().collect() } else { Vec::new() }
            }
            Change::SigningKey(key) => self.rekey(key),
            Change::Replaced(replaced) => self.replace(replaced),
        }
    }

    /// Verifies every signature anew.
    fn rekey(&mut self, key: Key) -> Vec<AppKey> {
        self.signing_key = Some(key);
        let mut touched = Vec::new();
        for (app, before) in self.apps.clone() {
            let (mut now, mut changed) = (App::clone(&before), false);
            for driver in &mut now.drivers {
                let is_proven = self.is_proven_driver(&app, driver);
                if driver.is_proven != is_proven {
                    changed = true;
                    Arc::make_mut(driver).is_proven = is_proven;
                }
            }
            for executor in before.executors().values() {
                let is_proven = self.is_proven_executor(&app, executor);
                if executor.is_proven != is_proven {
                    changed = true;
                    let executor = Executor { is_proven, ..Executor::clone(executor) };
                    now.insert(ExecutorKey::of(&executor), Arc::new(executor));
                }
            }
            if changed {
                self.apps.insert(app.clone(), Arc::new(now));
                touched.push(app);
            }
        }
        touched
    }

    fn is_proven_driver(&self, app: &AppKey, driver: &DriverPod) -> bool {
        self.signing_key.as_ref().is_some_and(|key| proves_driver(key, app, driver))
    }

    fn is_proven_executor(&self, app: &AppKey, executor: &Executor) -> bool {
        self.signing_key.as_ref().is_some_and(|key| proves_executor(key, app, executor))
    }

    fn see(&mut self, sighting: Sighting) -> Effect {
        match sighting {
            Sighting::Driver(app, driver) => self.see_driver(app, driver),
            Sighting::Executor(app, executor) => self.see_executor(app, executor),
            Sighting::Other(key, pod) => self.see_other(&key, &pod),
        }
    }

    /// A pod is no driver or executor: a label was removed, or another pod has the name. Ignored if the watch has delivered a
    /// newer version, for example because the label was set again before a GET was answered.
    fn see_other(&mut self, key: &PodKey, pod: &DriverPod) -> Effect {
        let (namespace, name) = (key.namespace(), key.name());
        let Some((_, known)) = self.labelled(namespace, name) else { return Effect::default() };
        if is_newer(known.version(), &pod.version) {
            return Effect::default();
        }
        let is_another = **known.uid() != *pod.uid;
        let Some((app, executor)) = self.remove(namespace, name) else { return Effect::default() };
        let departed = executor.filter(|_| is_another).map(|gone| Departed::of(&app, gone, Absence::Unversioned));
        Effect { touched: vec![app], departed: departed.into_iter().collect(), ..Effect::default() }
    }

    fn see_driver(&mut self, app: AppKey, mut driver: DriverPod) -> Effect {
        driver.is_proven = self.is_proven_driver(&app, &driver);
        // Old news: a read by name was quicker than the watch.
        let known = self.labelled_driver(app.namespace(), &driver.name);
        if known.is_some_and(|(_, known)| is_newer(&known.version, &driver.version)) {
            return Effect::default();
        }
        let at = place_of(app.namespace(), &driver.name);
        let mut effect = Effect::from(vec![app.clone()]);
        let place = Place::of(app.clone(), None);
        if self.places.get(&at).is_some_and(|old| *old != place)
            && let Some((old, executor)) = self.remove(app.namespace(), &driver.name)
        {
            effect.departed.extend(executor.map(|executor| Departed::of(&old, executor, Absence::Unversioned)));
            effect.touched.extend(Some(old).filter(|old| *old != app));
        }
        self.unfollow_named(app.namespace(), &driver.name);
        let old = self.apps.get(&app).and_then(|app| app.driver(&driver.name)).cloned();
        self.forget(app.namespace(), old, Some(&driver.uid));
        self.keep_address(app.namespace(), &driver);
        let drivers = &mut self.app_mut(&app).drivers;
        match drivers.binary_search_by(|known| known.name.cmp(&driver.name)) {
            Ok(at) => drivers.splice(at..=at, [Arc::new(driver)]).for_each(drop),
            Err(at) => drivers.insert(at, Arc::new(driver)),
        }
        self.places.insert(at, place);
        effect
    }

    fn see_executor(&mut self, app: AppKey, mut executor: Executor) -> Effect {
        let key = ExecutorKey::of(&executor);
        // Nearly always it is where it says; who is not may be new, or elsewhere.
        let here = self.apps.get_key_value(&app).and_then(|(app, known)| Some((app, known.executors().get(&key)?)));
        let (old, known) = match here {
            Some((app, known)) => (Some(Place::of(app.clone(), Some(key.id))), Some(known.clone())),
            None => {
                let old = self.places.get(&place_of(app.namespace(), &executor.name)).cloned();
                let known = old.as_ref().and_then(|old| {
                    let at = ExecutorKey { id: old.id()?, name: key.name.clone() };
                    self.apps.get(&old.app)?.executors().get(&at).cloned()
                });
                (old, known)
            }
        };
        let moved = here.is_none() && old.as_ref().is_some_and(|old| old.app != app || old.id() != Some(key.id));
        // Old news, also of another pod that had the name before: a read by name was quicker than the watch.
        if known.as_ref().is_some_and(|known| is_newer(&known.version, &executor.version))
            && !plant::is(Bug::OldNewsBelieved)
        {
            return Effect::default();
        }
        // The one text of the application's name, if it is known.
        let app = old.as_ref().filter(|_| !moved).map_or(app, |old| old.app.clone());
        let mut effect = Effect::from(vec![app.clone()]);
        let (known, before) = match known {
            Some(known) if known.uid == executor.uid => (Some(known), None),
            other => (None, other),
        };
        // Another pod of the same name: the one before is gone, whether anybody told or not.
        effect
            .departed
            .extend(before.zip(old.as_ref()).map(|(gone, old)| Departed::of(&old.app, gone, Absence::Unversioned)));
        if moved {
            effect
                .touched
                .extend(self.remove(app.namespace(), &executor.name).map(|(old, _)| old).filter(|old| *old != app));
        }
        if old.is_none() {
            self.unfollow_named(app.namespace(), &executor.name);
        }
        executor.node = executor.node.take().map(|node| self.node(node));
        if let Some(known) = &known {
            executor.first_seen = known.first_seen.or(executor.first_seen);
            // Equal, and so kept once.
            (executor.name, executor.uid) = (known.name.clone(), known.uid.clone());
        }
        if let Some(alike) = alike(known.as_ref().filter(|_| !moved), self.apps.get(&app), &executor.template) {
            executor.template = alike;
        }
        // One that comes from another application was verified for that one.
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
            return Effect::default(); // Listed anew, and unchanged.
        }
        let in_app = self.app_mut(&app);
        let after = known.as_ref().filter(|known| !known.state.is_final()).map(|known| known.version.clone());
        let was_live = after.is_some();
        let ends = executor.state.is_final() && (known.is_none() || was_live);
        let executor = Arc::new(executor);
        if known.is_some_and(|known| revives(&known, &executor)) {
            effect.revived.push((app.clone(), executor.clone()));
        }
        in_app.insert(ExecutorKey { name: executor.name.clone(), ..key }, executor.clone());
        if old.is_none() || moved {
            let at = place_of(app.namespace(), &executor.name);
            self.places.insert(at, Place::of(app.clone(), Some(key.id)));
        }
        effect.ended.extend(ends.then_some(Ended { app, executor, was_live, after }));
        effect
    }

    /// The labelled driver of that name, and its application.
    pub(crate) fn labelled_driver(&self, namespace: &str, name: &str) -> Option<(&AppKey, &Arc<DriverPod>)> {
        let place = self.places.get(&place_of(namespace, name))?;
        Some((&place.app, self.apps.get(&place.app)?.driver(name)?))
    }

    /// The one text of a node's name.
    fn node(&mut self, name: Arc<str>) -> Arc<str> {
        match self.nodes.get_key_value(&name) {
            Some((known, ())) => known.clone(),
            None => {
                self.nodes.insert(name.clone(), ());
                name
            }
        }
    }

    fn lose(&mut self, key: &PodKey, uid: &str, absence: Absence) -> Effect {
        let (namespace, name) = (key.namespace(), key.name());
        let is_another = |(_, pod): (&AppKey, Labelled<'_>)| **pod.uid() != *uid;
        if self.labelled(namespace, name).is_none_or(is_another) {
            return Effect::default();
        }
        let Some((app, executor)) = self.remove(namespace, name) else { return Effect::default() };
        // A driver that was seen to go is gone for its executors, and not unknown until somebody looks.
        let is_driver = executor.is_none();
        if is_driver && self.apps.get(&app).is_some_and(|app| !app.executors().is_empty()) {
            self.followed.insert(key.clone(), Followed::Absent);
        }
        let departed = executor.map(|executor| Departed::of(&app, executor, absence));
        Effect { touched: vec![app], departed: departed.into_iter().collect(), ..Effect::default() }
    }

    /// Takes a labelled pod out, whatever its uid, and tells whose it was and, of an executor, what was known.
    fn remove(&mut self, namespace: &str, name: &str) -> Option<(AppKey, Option<Arc<Executor>>)> {
        let place = self.places.remove(&place_of(namespace, name))?;
        let app = self.app_mut(&place.app);
        let executor = match place.id() {
            Some(id) => app.remove(&ExecutorKey { id, name: name.into() }),
            None => {
                let gone = app.driver(name).cloned();
                app.drivers.retain(|driver| &*driver.name != name);
                self.forget(namespace, gone, None);
                None
            }
        };
        if self.apps.get(&place.app).is_some_and(|app| app.is_empty()) {
            self.apps.remove(&place.app);
        }
        Some((place.app, executor))
    }

    /// Keeps what a live read said. Returns whether that is news.
    fn follow(&mut self, key: PodKey, followed: Followed) -> bool {
        // Of a labelled pod the watch tells more, and sooner.
        if self.places.contains_key(&place_of(key.namespace(), key.name()))
            || self.followed.get(&key) == Some(&followed)
        {
            return false;
        }
        let old = self.followed.get(&key).and_then(present).cloned();
        let uid = present(&followed).map(|pod| pod.uid.clone());
        self.forget(key.namespace(), old, uid.as_deref());
        if let Some(pod) = present(&followed).cloned() {
            self.keep_address(key.namespace(), &pod);
        }
        self.followed.insert(key, followed);
        true
    }

    fn unfollow_named(&mut self, namespace: &str, name: &str) {
        if !self.followed.is_empty() {
            self.unfollow(&PodKey::new(namespace, name));
        }
    }

    fn unfollow(&mut self, key: &PodKey) {
        if let Some(followed) = self.followed.remove(key) {
            self.forget(key.namespace(), present(&followed).cloned(), None);
        }
    }

    /// All labelled pods, listed anew. What was seen in a newer version meanwhile stays as it is.
    fn replace_pods(&mut self, sightings: Vec<Sighting>) -> Effect {
        let mut effect = Effect::default();
        let mut listed = Listed::default();
        for sighting in sightings.into_iter().filter(|sighting| !matches!(sighting, Sighting::Other(..))) {
            listed.add(&sighting);
            effect.extend(self.see(sighting));
        }
        listed.seal();
        let mut missing = Vec::new();
        self.walk(&mut Cursor::default(), usize::MAX, |app, pod| {
            if !listed.has(app, &pod) {
                missing.push((PodKey::new(app.namespace(), pod.name()), pod.uid().clone()));
            }
        });
        for (pod, uid) in missing {
            effect.extend(self.not_listed(&pod, &uid));
        }
        effect.touched.sort_unstable();
        effect.touched.dedup();
        effect
    }

    /// A list does not have this pod.
    fn not_listed(&mut self, key: &PodKey, uid: &str) -> Effect {
        let (namespace, name) = (key.namespace(), key.name());
        if self.labelled(namespace, name).is_none_or(|(_, pod)| **pod.uid() != *uid) {
            return Effect::default();
        }
        let Some((app, executor)) = self.remove(namespace, name) else { return Effect::default() };
        let departed = executor.map(|executor| Departed::of(&app, executor, Absence::NotListed));
        Effect { touched: vec![app], departed: departed.into_iter().collect(), ..Effect::default() }
    }

    fn replace(&mut self, replaced: Replaced) -> Vec<AppKey> {
        match replaced {
            Replaced::Pods(_) => Vec::new(), // Done above.
            Replaced::Namespaces(all) => {
                self.namespaces = all.into_iter().map(|(name, namespace)| (name, Arc::new(namespace))).collect();
                Vec::new()
            }
            Replaced::Services(all) => {
                self.services = all.into_iter().collect();
                Vec::new()
            }
            Replaced::PriorityClasses(all) => {
                self.priority_classes = Some(all.into_iter().collect());
                Vec::new()
            }
            Replaced::Groups(scheduler, all) => {
                self.listed.insert(scheduler);
                let before = self.groups.keys().filter(|key| key.scheduler == scheduler).cloned();
                let mut touched = Vec::new();
                for key in before.collect::<Vec<_>>() {
                    touched.extend(self.lose_group(&key).and_then(|group| group_app(&key, &group)));
                }
                for (key, group) in all {
                    touched.extend(group_app(&key, &group));
                    self.keep_group(key, group);
                }
                touched
            }
        }
    }

    fn keep_group(&mut self, key: GroupKey, group: Group) {
        self.lose_group(&key); // Its label may be another now.
        if let Some(app) = group_app(&key, &group) {
            self.groups_of.insert((app, key.clone()));
        }
        self.groups.insert(key, Arc::new(group));
    }

    fn lose_group(&mut self, key: &GroupKey) -> Option<Arc<Group>> {
        let group = self.groups.remove(key)?;
        if let Some(app) = group_app(key, &group) {
            self.groups_of.remove(&(app, key.clone()));
        }
        Some(group)
    }

    fn app_mut(&mut self, key: &AppKey) -> &mut App {
        Arc::make_mut(self.apps.entry(key.clone()).or_default())
    }

    fn keep_address(&mut self, namespace: &str, driver: &DriverPod) {
        // The address of a driver that ended is soon another pod's.
        if let (Some(address), false) = (&driver.address, driver.is_executor || driver.life == Life::Ended) {
            self.addresses.insert(PodKey::new(namespace, address), driver.name.clone());
        }
    }

    /// Drops what was kept beside a driver's pod: its address, and its configuration unless the pod is still the same.
    fn forget(&mut self, namespace: &str, driver: Option<Arc<DriverPod>>, uid_now: Option<&str>) {
        let Some(driver) = driver else { return };
        if uid_now != Some(&*driver.uid) {
            self.confs.remove(&driver.uid);
        }
        let Some(address) = &driver.address else { return };
        let key = PodKey::new(namespace, address);
        if self.addresses.get(&key).is_some_and(|name| *name == driver.name) {
            self.addresses.remove(&key);
        }
    }
}

/// Whether a pod that left a watch by label may still exist, by its last state: the API server reports the removal of a label
/// as a deletion. One that is deleted has a deletionTimestamp, also if it goes at once (forced, ended, or without a node): the API
/// server writes it first (`Store.Delete` and `BeforeDelete` in `k8s.io/apiserver/pkg/registry`).
pub(crate) fn may_be_there(executor: &Executor) -> bool {
    executor.state.is_live() && !executor.deleting && !plant::is(Bug::UnlabelledIsDeleted)
}

/// Whether a container that had ended was started anew (`restartPolicy: Always`). A pod that is over, or was deleted, stays
/// so whatever it says next.
fn revives(known: &Executor, now: &Executor) -> bool {
    let ended = matches!(known.state, ExecutorPodState::Failed | ExecutorPodState::Succeeded);
    ended && !known.is_over && now.state.is_live() && !now.deleting
}

/// The template, kept already, that is equal to one just read.
fn alike(known: Option<&Arc<Executor>>, app: Option<&Arc<App>>, template: &Template) -> Option<Arc<Template>> {
    let known = known.map(|executor| &executor.template).filter(|kept| ***kept == *template);
    known.or_else(|| app?.alike(template)).cloned()
}

fn present(followed: &Followed) -> Option<&Arc<DriverPod>> {
    match followed {
        Followed::Present(pod) => Some(pod),
        Followed::Absent => None,
    }
}

fn group_app(key: &GroupKey, group: &Group) -> Option<AppKey> {
    group.selector.as_ref().map(|selector| AppKey::new(&key.namespace, selector))
}
