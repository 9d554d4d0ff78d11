//! Changes of the objects beside the labelled pods: what decisions and plans depend on.

use std::sync::Arc;
use std::time::Instant;

use super::app::Application;
use super::driver_view::{DriverView, DriverViewKey};
use super::facts::{Executor, ExecutorKey, Namespace, ServiceOwner};
use super::group::{Group, GroupKey, ServedApis};
use super::node::Node;
use super::owner::{Workload, WorkloadKey};
use super::quota::Quota;
use super::state::{Conf, ReferencedPod, SchedulerMessages, Snapshot};
use crate::signature::Key;
use crate::spark::conf::AppConf;
use crate::spark::ids::{AppKey, PodKey};

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
    /// A namespace was added or modified.
    Namespace(Arc<str>, Namespace),
    /// A namespace was deleted.
    NamespaceGone(Arc<str>),
    /// A Node was added or modified.
    Node(Arc<str>, Node),
    /// A Node was deleted.
    NodeGone(Arc<str>),
    /// New executors avoid these nodes from now on, and no others.
    AvoidedNodes(Vec<Arc<str>>),
    /// A driver's Service was added or modified.
    Service(PodKey, ServiceOwner),
    /// A driver's Service was deleted.
    ServiceGone(PodKey),
    /// A priority class was added.
    PriorityClass(Arc<str>),
    /// A priority class was deleted.
    PriorityClassGone(Arc<str>),
    /// The configuration of the driver in the pod of this name and uid, for the applications that requested it.
    Conf(PodKey, Arc<str>, Conf, Vec<AppKey>),
    /// What the driver in this pod, of this uid, states about the configuration of an application.
    StatedConf(PodKey, Arc<str>, AppKey, Arc<AppConf>),
    /// One of our PodGroups was added or modified.
    Group(GroupKey, Group),
    /// One of our PodGroups was deleted.
    GroupGone(GroupKey),
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
    /// A whole list was read again and replaces the stored objects at once.
    Replaced(Replaced),
}

/// A whole list.
#[derive(Clone, Debug)]
pub enum Replaced {
    /// All namespaces.
    Namespaces(Vec<(Arc<str>, Namespace)>),
    /// All Nodes.
    Nodes(Vec<(Arc<str>, Node)>),
    /// All Services of drivers.
    Services(Vec<(PodKey, ServiceOwner)>),
    /// All priority classes.
    PriorityClasses(Vec<Arc<str>>),
    /// All our PodGroups of one scheduler type.
    Groups(&'static str, Vec<(GroupKey, Group)>),
}

impl Snapshot {
    /// Applies a change of anything but labelled pods.
    pub(super) fn apply_related(&mut self, change: RelatedChange) -> Vec<AppKey> {
        match change {
            RelatedChange::GroupsListed(scheduler) => {
                self.listed.insert(scheduler);
                Vec::new()
            }
            RelatedChange::Referenced(key, followed, waiters) => {
                if self.set_referenced(key, followed) {
                    waiters
                } else {
                    Vec::new()
                }
            }
            RelatedChange::Unreferenced(key) => {
                self.unfollow(&key);
                Vec::new()
            }
            RelatedChange::Workload(key, workload, waiters) => {
                let workload = workload.map(Arc::new);
                let is_changed = self.workloads.get(&key) != Some(&workload);
                self.workloads.insert(key, workload);
                if is_changed { waiters } else { Vec::new() }
            }
            RelatedChange::WorkloadUnreferenced(key) => {
                self.workloads.remove(&key);
                Vec::new()
            }
            // Only reports depend on them.
            RelatedChange::Quotas(namespace, quotas) => {
                self.quotas.insert(namespace, quotas.into());
                Vec::new()
            }
            RelatedChange::QuotasUnreferenced(namespace) => {
                self.quotas.remove(&namespace);
                Vec::new()
            }
            RelatedChange::Messages(namespace, scheduler, messages) => {
                self.messages.insert((namespace, scheduler), Arc::new(messages));
                Vec::new()
            }
            RelatedChange::MessagesUnreferenced(namespace, scheduler) => {
                self.messages.remove(&(namespace, scheduler));
                Vec::new()
            }
            RelatedChange::GroupRefused(key, app, why) => {
                self.refused_groups.insert(key, (app, why));
                Vec::new()
            }
            RelatedChange::Namespace(name, namespace) => {
                self.namespaces.insert(name, Arc::new(namespace));
                Vec::new()
            }
            RelatedChange::NamespaceGone(name) => {
                self.namespaces.remove(&name);
                Vec::new()
            }
            RelatedChange::Node(name, node) => {
                // Most changes of a Node change nothing that is kept.
                if self.nodes.get(&name).is_none_or(|known| **known != node) {
                    self.nodes.insert(name, Arc::new(node));
                }
                Vec::new()
            }
            RelatedChange::NodeGone(name) => {
                self.nodes.remove(&name);
                Vec::new()
            }
            RelatedChange::AvoidedNodes(names) => {
                self.avoided_nodes = names.into_iter().collect();
                Vec::new()
            }
            RelatedChange::Service(key, owner) => {
                self.services.insert(key, owner);
                Vec::new()
            }
            RelatedChange::ServiceGone(key) => {
                self.services.remove(&key);
                Vec::new()
            }
            RelatedChange::PriorityClass(name) => {
                self.priority_classes.get_or_insert_default().insert(name);
                Vec::new()
            }
            RelatedChange::PriorityClassGone(name) => {
                self.priority_classes.get_or_insert_default().remove(&name);
                Vec::new()
            }
            RelatedChange::Conf(driver, uid, conf, waiters) => {
                let known = self.driver_pod(driver.namespace(), driver.name());
                if known.is_none_or(|pod| pod.uid != uid) {
                    return Vec::new(); // That driver was deleted; its configuration would be kept forever.
                }
                self.confs.insert(uid, conf);
                waiters
            }
            RelatedChange::StatedConf(driver, uid, app, conf) => {
                let known = self.driver_pod(driver.namespace(), driver.name());
                if known.is_none_or(|pod| pod.uid != uid) {
                    return Vec::new();
                }
                self.keep_stated_conf(uid, app.clone(), conf);
                vec![app]
            }
            RelatedChange::Group(key, group) => {
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
            RelatedChange::GroupGone(key) => {
                self.remove_group(&key).and_then(|group| group_app(&key, &group)).into_iter().collect()
            }
            RelatedChange::Unlisted(kind) => {
                let touched = self.replace(Replaced::Groups(kind, Vec::new()));
                self.listed.remove(kind);
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
                self.closed_drivers.remove(&key);
                Vec::new()
            }
            RelatedChange::DriverClosed(key, since) => {
                self.driver_views.remove(&key);
                self.closed_drivers.insert(key, since);
                Vec::new()
            }
            RelatedChange::SigningKey(key) => self.rekey(key),
            RelatedChange::Replaced(replaced) => self.replace(replaced),
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

    fn replace(&mut self, replaced: Replaced) -> Vec<AppKey> {
        match replaced {
            Replaced::Namespaces(all) => {
                self.namespaces = all.into_iter().map(|(name, namespace)| (name, Arc::new(namespace))).collect();
                Vec::new()
            }
            Replaced::Nodes(all) => {
                self.nodes = all.into_iter().map(|(name, node)| (name, Arc::new(node))).collect();
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
                    touched.extend(self.remove_group(&key).and_then(|group| group_app(&key, &group)));
                }
                for (key, group) in all {
                    touched.extend(group_app(&key, &group));
                    self.upsert_group(key, group);
                }
                touched
            }
        }
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
