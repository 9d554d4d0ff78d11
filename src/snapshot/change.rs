//! What happened, and how it changes the picture.

use std::sync::Arc;

use super::app::{App, ExecutorKey};
use super::facts::{DriverPod, Life, Namespace, ServiceOwner, Sighting};
use super::group::{Group, GroupKey, ServedApis};
use super::{Conf, Followed, Snapshot};
use crate::spark::ids::{AppKey, PodKey};

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

/// Where a labelled pod is kept: under which application, and under which key when it is an executor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) app: AppKey,
    pub(super) executor: Option<ExecutorKey>,
}

impl Snapshot {
    /// Applies a change. Returns the applications it touched, so that only those are planned again.
    pub fn apply(&mut self, change: Change) -> Vec<AppKey> {
        match change {
            Change::Pod(sighting) => self.see(sighting),
            Change::PodGone(key, uid) => self.lose(&key, &uid),
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
            Change::Apis(apis) => {
                let news = self.apis.as_deref() != Some(&apis);
                self.apis = Some(Arc::new(apis));
                if news { self.apps.keys().cloned().collect() } else { Vec::new() }
            }
            Change::Replaced(replaced) => self.replace(replaced),
        }
    }

    fn see(&mut self, sighting: Sighting) -> Vec<AppKey> {
        let key = sighting.key();
        let (app, executor) = match &sighting {
            Sighting::Driver(app, _) => (app.clone(), None),
            Sighting::Executor(app, executor) => (app.clone(), Some(ExecutorKey::of(executor))),
            // A label was taken off: the pod is none of ours any more.
            Sighting::Other(..) => return self.remove(&key).into_iter().collect(),
        };
        let place = Place { app: app.clone(), executor };
        let mut touched = vec![app.clone()];
        if self.places.get(&key).is_some_and(|old| *old != place) {
            touched.extend(self.remove(&key).filter(|old| *old != app));
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
                let app = self.app_mut(&app);
                share(app, &mut executor);
                app.executors.insert(ExecutorKey::of(&executor), Arc::new(executor));
            }
            Sighting::Other(..) => {}
        }
        self.places.insert(key, place);
        touched
    }

    fn lose(&mut self, key: &PodKey, uid: &str) -> Vec<AppKey> {
        let known = self.places.get(key).and_then(|place| {
            let app = self.apps.get(&place.app)?;
            match &place.executor {
                Some(executor) => app.executors.get(executor).map(|executor| executor.uid.clone()),
                None => app.driver(key.name()).map(|driver| driver.uid.clone()),
            }
        });
        match known {
            Some(known) if *known == *uid => self.remove(key).into_iter().collect(),
            _ => Vec::new(),
        }
    }

    /// Takes a labelled pod out, whatever its uid.
    fn remove(&mut self, key: &PodKey) -> Option<AppKey> {
        let place = self.places.remove(key)?;
        let app = self.app_mut(&place.app);
        match &place.executor {
            Some(executor) => {
                app.executors.remove(executor);
            }
            None => {
                let gone = app.driver(key.name()).cloned();
                app.drivers.retain(|driver| &*driver.name != key.name());
                self.forget(key.namespace(), gone, None);
            }
        }
        if self.apps.get(&place.app).is_some_and(|app| app.is_empty()) {
            self.apps.remove(&place.app);
        }
        Some(place.app)
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

    fn replace(&mut self, replaced: Replaced) -> Vec<AppKey> {
        match replaced {
            Replaced::Pods(sightings) => {
                let mut touched: Vec<AppKey> = self.apps.keys().cloned().collect();
                let followed = std::mem::take(&mut self.followed);
                let confs = std::mem::take(&mut self.confs);
                self.apps = imbl::OrdMap::new();
                self.places = imbl::HashMap::new();
                self.addresses = imbl::HashMap::new();
                for sighting in sightings {
                    if !matches!(sighting, Sighting::Other(..)) {
                        self.see(sighting);
                    }
                }
                for (key, followed) in followed {
                    self.follow(key, followed);
                }
                let labelled = self.apps.values().flat_map(|app| app.drivers.iter().map(|driver| driver.uid.clone()));
                let followed = self.followed.values().filter_map(present).map(|pod| pod.uid.clone());
                let uids: std::collections::HashSet<Arc<str>> = labelled.chain(followed).collect();
                self.confs = confs.into_iter().filter(|(uid, _)| uids.contains(uid)).collect();
                touched.extend(self.apps.keys().cloned());
                touched.sort_unstable();
                touched.dedup();
                touched
            }
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
