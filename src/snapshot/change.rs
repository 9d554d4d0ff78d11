//! What happened, and how it changes the picture.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use super::app::{App, ExecutorKey};
use super::facts::{DriverPod, Executor, Life, Namespace, ServiceOwner, Sighting};
use super::group::{Group, GroupKey, ServedApis};
use super::{Conf, Followed, Snapshot};
use crate::plant::{self, Bug};
use crate::spark::ids::{AppKey, PodKey, is_newer};

/// One thing that was learned about the cluster.
#[derive(Clone, Debug)]
pub enum Change {
    /// A labelled pod was added or modified.
    Pod(Sighting),
    /// A labelled pod is gone. With another uid than the one kept it is old news.
    PodGone(PodKey, Arc<str>),
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
    pub ended: Vec<(AppKey, Arc<Executor>)>,
    /// Executors whose pods are gone.
    pub departed: Vec<Departed>,
}

impl From<Vec<AppKey>> for Effect {
    fn from(touched: Vec<AppKey>) -> Effect {
        Effect { touched, ..Effect::default() }
    }
}

/// An executor whose pod is gone.
#[derive(Clone, Debug, PartialEq)]
pub struct Departed {
    /// Whose it was.
    pub app: AppKey,
    /// As it was seen last.
    pub executor: Arc<Executor>,
    /// Whether an event said so; otherwise a list did not have it.
    pub told: bool,
    /// For one that a poll did not have: when that was read, and how long an executor must be there to count as missing.
    pub missing: Option<(Timestamp, Duration)>,
}

impl Departed {
    fn of(app: &AppKey, executor: Arc<Executor>, told: bool) -> Departed {
        Departed { app: app.clone(), executor, told, missing: None }
    }
}

/// Where a labelled pod is kept: under which application, and under which key when it is an executor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) app: AppKey,
    pub(super) executor: Option<ExecutorKey>,
}

impl Snapshot {
    /// Applies a change, and tells what that did.
    pub fn apply(&mut self, change: Change) -> Effect {
        match change {
            Change::Pod(sighting) => self.see(sighting),
            Change::PodGone(key, uid) => self.lose(&key, &uid),
            Change::Replaced(Replaced::Pods(all)) => self.replace_pods(all),
            other => self.apply_beside(other).into(),
        }
    }

    /// Every executor that is in a final state.
    pub(super) fn finals(&self) -> impl Iterator<Item = (AppKey, Arc<Executor>)> + '_ {
        self.apps.iter().flat_map(|(key, app)| {
            let ended = app.executors.values().filter(|executor| executor.state.is_final());
            ended.map(|executor| (key.clone(), executor.clone()))
        })
    }

    /// Everything but labelled pods.
    fn apply_beside(&mut self, change: Change) -> Vec<AppKey> {
        match change {
            Change::Pod(_) | Change::PodGone(..) => Vec::new(), // Done above.
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
                let touched = group_app(&key, &group);
                self.groups.insert(key, Arc::new(group));
                touched
            }
            Change::GroupGone(key) => {
                let touched = self.groups.get(&key).map(|group| group_app(&key, group)).unwrap_or_default();
                self.groups.remove(&key);
                touched
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
            Change::Replaced(replaced) => self.replace(replaced),
        }
    }

    fn see(&mut self, sighting: Sighting) -> Effect {
        let key = sighting.key();
        let (app, executor) = match &sighting {
            Sighting::Driver(app, _) => (app.clone(), None),
            Sighting::Executor(app, executor) => (app.clone(), Some(ExecutorKey::of(executor))),
            // A label was taken off: the pod is none of ours any more.
            Sighting::Other(..) => return self.remove(&key).map_or_else(Effect::default, |(app, _)| vec![app].into()),
        };
        let mut effect = Effect::from(vec![app.clone()]);
        let place = Place { app: app.clone(), executor };
        let known = self.places.get(&key).and_then(|place| self.executor_at(place)).cloned();
        // Old news, also of another pod that had the name before: a read by name was quicker than the watch.
        if let (Some(known), Sighting::Executor(_, seen)) = (&known, &sighting)
            && is_newer(&known.version, &seen.version)
            && !plant::is(Bug::OldNewsBelieved)
        {
            return Effect::default();
        }
        let was_final = matches!((&known, &sighting), (Some(known), Sighting::Executor(_, seen))
            if known.uid == seen.uid && known.state.is_final());
        if let Some(old) = self.places.get(&key).cloned() {
            let anew =
                matches!((&known, &sighting), (Some(known), Sighting::Executor(_, seen)) if known.uid != seen.uid);
            if let (true, Some(known)) = (anew || place.executor.is_none(), known.clone()) {
                // Another pod of the same name: the one before is gone, whether anybody told or not.
                effect.departed.push(Departed::of(&old.app, known, true));
            }
            if old != place {
                effect.touched.extend(self.remove(&key).map(|(old, _)| old).filter(|old| *old != app));
            }
        }
        self.unfollow(&key);
        match sighting {
            Sighting::Driver(_, driver) => {
                let old = self.apps.get(&app).and_then(|app| app.driver(&driver.name)).cloned();
                self.forget(app.namespace(), old, Some(&driver.uid));
                self.keep_address(app.namespace(), &driver);
                let drivers = &mut self.app_mut(&app).drivers;
                drivers.retain(|known| known.name != driver.name);
                drivers.push(Arc::new(driver));
                drivers.sort_unstable_by(|a, b| a.name.cmp(&b.name));
            }
            Sighting::Executor(_, mut executor) => {
                if let Some(known) = known.filter(|known| known.uid == executor.uid) {
                    executor.first_seen = known.first_seen.or(executor.first_seen);
                }
                let in_app = self.app_mut(&app);
                share(in_app, &mut executor);
                let (at, executor) = (ExecutorKey::of(&executor), Arc::new(executor));
                if executor.state.is_final() && !was_final {
                    effect.ended.push((app, executor.clone()));
                }
                in_app.executors.insert(at, executor);
            }
            Sighting::Other(..) => {}
        }
        self.places.insert(key, place);
        effect
    }

    fn executor_at(&self, place: &Place) -> Option<&Arc<Executor>> {
        self.apps.get(&place.app)?.executors.get(place.executor.as_ref()?)
    }

    fn lose(&mut self, key: &PodKey, uid: &str) -> Effect {
        let known = self.places.get(key).and_then(|place| match &place.executor {
            Some(_) => self.executor_at(place).map(|executor| executor.uid.clone()),
            None => self.apps.get(&place.app)?.driver(key.name()).map(|driver| driver.uid.clone()),
        });
        if known.is_none_or(|known| *known != *uid && !plant::is(Bug::GoneByName)) {
            return Effect::default();
        }
        let Some((app, executor)) = self.remove(key) else { return Effect::default() };
        let departed = executor.map(|executor| Departed::of(&app, executor, true));
        Effect { touched: vec![app], ended: Vec::new(), departed: departed.into_iter().collect() }
    }

    /// Takes a labelled pod out, whatever its uid, and tells whose it was and, of an executor, what was known.
    fn remove(&mut self, key: &PodKey) -> Option<(AppKey, Option<Arc<Executor>>)> {
        let place = self.places.remove(key)?;
        let app = self.app_mut(&place.app);
        let executor = match &place.executor {
            Some(executor) => app.executors.remove(executor),
            None => {
                let gone = app.driver(key.name()).cloned();
                app.drivers.retain(|driver| &*driver.name != key.name());
                self.forget(key.namespace(), gone, None);
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
        if self.places.contains_key(&key) || self.followed.get(&key) == Some(&followed) {
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

    fn unfollow(&mut self, key: &PodKey) {
        if let Some(followed) = self.followed.remove(key) {
            self.forget(key.namespace(), present(&followed).cloned(), None);
        }
    }

    /// All labelled pods, listed anew. What was seen in a newer version meanwhile stays as it is.
    fn replace_pods(&mut self, sightings: Vec<Sighting>) -> Effect {
        let before = self.clone();
        let followed = std::mem::take(&mut self.followed);
        let confs = std::mem::take(&mut self.confs);
        self.apps = imbl::OrdMap::new();
        self.places = imbl::HashMap::new();
        self.addresses = imbl::HashMap::new();
        let mut effect = Effect::default();
        for sighting in sightings {
            let newer = match sighting {
                Sighting::Executor(app, mut seen) => {
                    let mut app = app;
                    match before.executor(app.namespace(), &seen.name) {
                        Some((of, known)) if is_newer(&known.version, &seen.version) => {
                            (app, seen) = (of.clone(), (**known).clone());
                        }
                        Some((_, known)) if known.uid == seen.uid => {
                            seen.first_seen = known.first_seen.or(seen.first_seen)
                        }
                        _ => {}
                    }
                    Sighting::Executor(app, seen)
                }
                Sighting::Driver(..) => sighting,
                Sighting::Other(..) => continue,
            };
            effect.ended.extend(self.see(newer).ended);
        }
        effect.ended.retain(|(app, executor)| {
            let known = before.executor(app.namespace(), &executor.name).map(|(_, known)| known);
            !known.is_some_and(|known| known.uid == executor.uid && known.state.is_final())
        });
        for (key, followed) in followed {
            self.follow(key, followed);
        }
        let labelled = self.apps.values().flat_map(|app| app.drivers.iter().map(|driver| driver.uid.clone()));
        let followed = self.followed.values().filter_map(present).map(|pod| pod.uid.clone());
        let uids: std::collections::HashSet<Arc<str>> = labelled.chain(followed).collect();
        self.confs = confs.into_iter().filter(|(uid, _)| uids.contains(uid)).collect();
        for (key, app) in &before.apps {
            for executor in app.executors.values() {
                let now = self.executor(key.namespace(), &executor.name).map(|(_, now)| &now.uid);
                if now != Some(&executor.uid) {
                    // Another uid under the name is proof enough.
                    effect.departed.push(Departed::of(key, executor.clone(), now.is_some()));
                }
            }
        }
        effect.touched = before.apps.keys().chain(self.apps.keys()).cloned().collect();
        effect.touched.sort_unstable();
        effect.touched.dedup();
        effect
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
                let mut touched: Vec<AppKey> = self
                    .groups
                    .iter()
                    .filter(|(key, _)| key.scheduler == scheduler)
                    .flat_map(|(key, group)| group_app(key, group))
                    .collect();
                let others = std::mem::take(&mut self.groups).into_iter().filter(|(key, _)| key.scheduler != scheduler);
                self.groups = others.collect();
                for (key, group) in all {
                    touched.extend(group_app(&key, &group));
                    self.groups.insert(key, Arc::new(group));
                }
                touched
            }
        }
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

/// Executors of one application are alike: they share their seat and their requests.
fn share(app: &App, executor: &mut super::Executor) {
    if let Some(sibling) = app.executors.values().next() {
        if *sibling.seat == *executor.seat {
            executor.seat = sibling.seat.clone();
        }
        if *sibling.requests == *executor.requests {
            executor.requests = sibling.requests.clone();
        }
    }
}

fn present(followed: &Followed) -> Option<&Arc<DriverPod>> {
    match followed {
        Followed::Present(pod) => Some(pod),
        Followed::Absent => None,
    }
}

fn group_app(key: &GroupKey, group: &Group) -> Vec<AppKey> {
    group.selector.iter().map(|selector| AppKey::new(&key.namespace, selector)).collect()
}
