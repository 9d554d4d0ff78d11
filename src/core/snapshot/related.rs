//! Changes of the objects beside the labelled pods: what decisions and plans depend on.

use std::hash::Hash;
use std::sync::Arc;
use std::time::Instant;

use imbl::HashMap;

use super::app::Application;
use super::driver_view::{DriverView, DriverViewKey};
use super::facts::{Executor, ExecutorKey, Namespace, ServiceOwner};
use super::group::{Group, GroupKey, ServedApis};
use super::node::Node;
use super::owner::{Workload, WorkloadKey};
use super::quota::Quota;
use super::state::{Conf, ReferencedPod, SchedulerMessages, Snapshot};
use crate::signature::Key;
use usher_spark::conf::AppConf;
use usher_spark::ids::{AppKey, PodKey};

/// A change of an object that is not a labelled pod, or the result of one read of such an object.
#[derive(Clone, Debug)]
pub enum RelatedChange {
    /// Our PodGroups of this scheduler type were listed.
    GroupsListed(&'static str),
    /// A pod was read by name, for the applications that requested it.
    Referenced(PodKey, ReferencedPod, Vec<AppKey>),
    /// A workload was read by name, for the applications that requested it; `None` if it does not exist.
    Workload(WorkloadKey, Option<Workload>, Vec<AppKey>),
    /// No application references this workload any more.
    WorkloadUnreferenced(WorkloadKey),
    /// The ResourceQuotas of a namespace were listed.
    Quotas(Arc<str>, Vec<Quota>),
    /// No application of this namespace lacks executors any more.
    QuotasUnreferenced(Arc<str>),
    /// What a scheduler states about pods of a namespace that wait.
    Messages(Arc<str>, &'static str, SchedulerMessages),
    /// No pod of this namespace waits for this scheduler now.
    MessagesUnreferenced(Arc<str>, &'static str),
    /// A PodGroup of this application could not be created or changed, and why.
    GroupRefused(GroupKey, AppKey, Arc<str>),
    /// No application references this pod any more.
    Unreferenced(PodKey),
    Namespaces(Watched<Arc<str>, Namespace>),
    Nodes(Watched<Arc<str>, Node>),
    /// New executors avoid these nodes from now on, and no others.
    AvoidedNodes(Vec<Arc<str>>),
    /// Services of drivers.
    Services(Watched<PodKey, ServiceOwner>),
    PriorityClasses(Watched<Arc<str>, ()>),
    /// The configuration of the driver in the pod of this name and uid, for the applications that requested it.
    Conf(PodKey, Arc<str>, Conf, Vec<AppKey>),
    /// What the driver in this pod, of this uid, states about the configuration of an application.
    StatedConf(PodKey, Arc<str>, AppKey, Arc<AppConf>),
    /// Our PodGroups of a scheduler type.
    Groups(&'static str, Watched<GroupKey, Group>),
    /// The PodGroups of this scheduler type are unknown again.
    Unlisted(&'static str),
    /// Discovery returned the served PodGroup APIs.
    Apis(ServedApis),
    /// The version of the installed Volcano, if it rejects pods whose PodGroup does not exist yet.
    EarlyPods(Option<Arc<str>>),
    /// The key that signs and verifies our webhook's signatures; `None` while nothing vouches for signatures.
    SigningKey(Option<Key>),
    /// A driver returned its view.
    DriverView(DriverViewKey, Arc<DriverView>),
    /// A driver is no longer polled, or its view no longer counts.
    DriverViewGone(DriverViewKey),
    /// A driver that returned a view refuses connections since this time.
    DriverClosed(DriverViewKey, Instant),
}

/// What a watch of one resource observed.
#[derive(Clone, Debug)]
pub enum Watched<K, V> {
    /// An object was added or modified.
    Upserted(K, V),
    /// An object was deleted.
    Removed(K),
    /// All objects were listed, and replace the stored ones in one step.
    Listed(Vec<(K, V)>),
}

impl<K, V> Watched<K, V> {
    /// The same of what is kept of each object.
    pub fn map<W>(self, kept: impl Fn(V) -> W) -> Watched<K, W> {
        self.filter_map(|object| Some(kept(object)))
    }

    /// The same; an object of which nothing is kept counts as deleted.
    pub fn filter_map<W>(self, kept: impl Fn(V) -> Option<W>) -> Watched<K, W> {
        match self {
            Watched::Upserted(key, object) => match kept(object) {
                Some(object) => Watched::Upserted(key, object),
                None => Watched::Removed(key),
            },
            Watched::Removed(key) => Watched::Removed(key),
            Watched::Listed(all) => {
                Watched::Listed(all.into_iter().filter_map(|(key, object)| Some((key, kept(object)?))).collect())
            }
        }
    }
}

impl<K: Hash + Eq + Clone, V: Clone> Watched<K, V> {
    fn store(self, stored: &mut HashMap<K, V>) {
        match self {
            Watched::Upserted(key, object) => {
                stored.insert(key, object);
            }
            Watched::Removed(key) => {
                stored.remove(&key);
            }
            Watched::Listed(all) => *stored = all.into_iter().collect(),
        }
    }
}

/// No application is planned again because of what was stored.
fn untouched<T>(_stored: T) -> Vec<AppKey> {
    Vec::new()
}

impl Snapshot {
    /// Applies a change of anything but labelled pods.
    pub(super) fn apply_related(&mut self, change: RelatedChange) -> Vec<AppKey> {
        match change {
            RelatedChange::GroupsListed(scheduler) => untouched(self.listed.insert(scheduler)),
            RelatedChange::Referenced(key, current, waiters) => {
                if self.set_referenced(key, current) {
                    waiters
                } else {
                    Vec::new()
                }
            }
            RelatedChange::Unreferenced(key) => {
                self.forget_referenced(&key);
                Vec::new()
            }
            RelatedChange::Workload(key, workload, waiters) => {
                let workload = workload.map(Arc::new);
                let is_changed = self.workloads.get(&key) != Some(&workload);
                self.workloads.insert(key, workload);
                if is_changed { waiters } else { Vec::new() }
            }
            RelatedChange::WorkloadUnreferenced(key) => untouched(self.workloads.remove(&key)),
            // Only reports depend on them.
            RelatedChange::Quotas(namespace, quotas) => untouched(self.quotas.insert(namespace, quotas.into())),
            RelatedChange::QuotasUnreferenced(namespace) => untouched(self.quotas.remove(&namespace)),
            RelatedChange::Messages(namespace, scheduler, messages) => {
                untouched(self.messages.insert((namespace, scheduler), Arc::new(messages)))
            }
            RelatedChange::MessagesUnreferenced(namespace, scheduler) => {
                untouched(self.messages.remove(&(namespace, scheduler)))
            }
            RelatedChange::GroupRefused(key, app, why) => untouched(self.refused_groups.insert(key, (app, why))),
            RelatedChange::Namespaces(seen) => {
                seen.map(Arc::new).store(&mut self.namespaces);
                Vec::new()
            }
            RelatedChange::Nodes(seen) => {
                self.store_nodes(seen);
                Vec::new()
            }
            RelatedChange::AvoidedNodes(names) => {
                self.avoided_nodes = names.into_iter().collect();
                Vec::new()
            }
            RelatedChange::Services(seen) => {
                seen.store(&mut self.services);
                Vec::new()
            }
            RelatedChange::PriorityClasses(seen) => {
                self.store_priority_classes(seen);
                Vec::new()
            }
            RelatedChange::Conf(driver, uid, conf, waiters) => {
                if !self.is_driver(&driver, &uid) {
                    return Vec::new(); // That driver was deleted; its configuration would be kept forever.
                }
                self.confs.insert(uid, conf);
                waiters
            }
            RelatedChange::StatedConf(driver, uid, app, conf) => {
                if !self.is_driver(&driver, &uid) {
                    return Vec::new();
                }
                self.keep_stated_conf(uid, app.clone(), conf);
                vec![app]
            }
            RelatedChange::Groups(_, Watched::Upserted(key, group)) => self.store_group(key, group),
            RelatedChange::Groups(_, Watched::Removed(key)) => {
                self.remove_group(&key).and_then(|group| group_app(&key, &group)).into_iter().collect()
            }
            RelatedChange::Groups(scheduler, Watched::Listed(all)) => self.replace_groups(scheduler, all),
            RelatedChange::Unlisted(scheduler) => {
                let touched = self.replace_groups(scheduler, Vec::new());
                self.listed.remove(scheduler);
                touched
            }
            RelatedChange::Apis(apis) => {
                let is_changed = self.apis.as_deref() != Some(&apis);
                self.apis = Some(Arc::new(apis));
                if is_changed { self.apps.keys().cloned().collect() } else { Vec::new() }
            }
            RelatedChange::EarlyPods(refused_by) => {
                let is_changed = self.early_pods_refused_by != refused_by;
                self.early_pods_refused_by = refused_by;
                if is_changed { self.apps.keys().cloned().collect() } else { Vec::new() }
            }
            RelatedChange::DriverView(key, view) => {
                let is_same = self.driver_views.get(&key).is_some_and(|known| known.says_same(&view));
                let touched = (!is_same).then(|| key.app.clone());
                self.closed_drivers.remove(&key);
                self.driver_views.insert(key, view);
                touched.into_iter().collect()
            }
            RelatedChange::DriverViewGone(key) => {
                self.driver_views.remove(&key);
                untouched(self.closed_drivers.remove(&key))
            }
            RelatedChange::DriverClosed(key, since) => {
                self.driver_views.remove(&key);
                untouched(self.closed_drivers.insert(key, since))
            }
            RelatedChange::SigningKey(key) => self.rekey(key),
        }
    }

    /// Verifies every signature again, with a new key or none.
    fn rekey(&mut self, key: Option<Key>) -> Vec<AppKey> {
        self.signing_key = key;
        let mut touched = Vec::new();
        for (app, before) in self.apps.clone() {
            let (mut now, mut changed) = (Application::clone(&before), false);
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

    /// Whether the driver's pod of this name has this uid.
    fn is_driver(&self, driver: &PodKey, uid: &str) -> bool {
        self.driver_pod(driver.namespace(), driver.name()).is_some_and(|pod| *pod.uid == *uid)
    }

    fn store_nodes(&mut self, seen: Watched<Arc<str>, Node>) {
        match seen {
            // Most changes of a Node change nothing that is kept.
            Watched::Upserted(name, node) if self.nodes.get(&name).is_some_and(|known| **known == node) => {}
            Watched::Upserted(name, node) => {
                self.nodes.insert(name, Arc::new(node));
            }
            Watched::Removed(name) => {
                self.nodes.remove(&name);
            }
            Watched::Listed(all) => self.nodes = all.into_iter().map(|(name, node)| (name, Arc::new(node))).collect(),
        }
    }

    fn store_priority_classes(&mut self, seen: Watched<Arc<str>, ()>) {
        let known = self.priority_classes.get_or_insert_default();
        match seen {
            Watched::Upserted(name, ()) => {
                known.insert(name);
            }
            Watched::Removed(name) => {
                known.remove(&name);
            }
            Watched::Listed(all) => *known = all.into_iter().map(|(name, ())| name).collect(),
        }
    }

    fn store_group(&mut self, key: GroupKey, group: Group) -> Vec<AppKey> {
        // A change of its status says nothing about what was refused.
        if self.groups.get(&key).is_none_or(|known| known.spec != group.spec) {
            self.refused_groups.remove(&key);
        }
        if self.groups.get(&key).is_some_and(|known| **known == group) {
            return Vec::new();
        }
        let touched = group_app(&key, &group).into_iter().collect();
        self.upsert_group(key, group);
        touched
    }

    fn replace_groups(&mut self, scheduler: &'static str, all: Vec<(GroupKey, Group)>) -> Vec<AppKey> {
        self.listed.insert(scheduler);
        let before = self.groups.keys().filter(|key| key.scheduler == scheduler).cloned();
        let mut touched = Vec::new();
        for key in before.collect::<Vec<_>>() {
            touched.extend(self.remove_group(&key).and_then(|group| group_app(&key, &group)));
        }
        for (key, group) in all {
            touched.extend(group_app(&key, &group));
            self.upsert_group(key, group);
        }
        touched
    }

    fn upsert_group(&mut self, key: GroupKey, group: Group) {
        self.remove_group(&key); // Its label may have changed.
        if let Some(app) = group_app(&key, &group) {
            self.groups_of.insert((app, key.clone()));
        }
        self.groups.insert(key, Arc::new(group));
    }

    fn remove_group(&mut self, key: &GroupKey) -> Option<Arc<Group>> {
        let group = self.groups.remove(key)?;
        if let Some(app) = group_app(key, &group) {
            self.groups_of.remove(&(app, key.clone()));
        }
        Some(group)
    }
}

fn group_app(key: &GroupKey, group: &Group) -> Option<AppKey> {
    group.selector.as_ref().map(|selector| AppKey::new(&key.namespace, selector))
}
