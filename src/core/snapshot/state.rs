//! The snapshot of every application, and its queries.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use imbl::{HashMap, OrdMap};

use super::app::Application;
use super::driver_view::{DriverView, DriverViewKey};
use super::facts::{DriverPod, Executor, ExecutorKey, Namespace, ServiceOwner};
use super::group::{Group, GroupKey, ServedApis};
use super::node::Node;
use super::owner::{Workload, WorkloadKey};
use super::pod_index::{PodEntry, pod_hash};
use super::quota::Quota;
use crate::signature::Key;
use usher_spark::conf::AppConf;
use usher_spark::ids::{AppHash, AppKey, PodKey};

/// The result of a live GET of a driver's pod.
#[derive(Clone, Debug, PartialEq)]
pub enum ReferencedPod {
    /// The pod exists.
    Present(Arc<DriverPod>),
    /// The API server has no pod of that name.
    Absent,
}

/// The driver's configuration, or that it cannot be read.
#[derive(Clone, Debug, PartialEq)]
pub enum Conf {
    /// `spark.properties` was read.
    Known(Arc<AppConf>),
    /// It cannot be read: no such ConfigMap, no such key, or no RBAC permission.
    Unreadable,
}

/// Why pods wait, for people, by what the scheduler speaks about: the name of a PodGroup, the uid of a pod, or the id of an application
/// ([`crate::gang::messages`]).
pub type SchedulerMessages = BTreeMap<Arc<str>, Arc<str>>;

/// Unused names of nodes are pruned only above this number of names.
const PRUNE_NODES_ABOVE: usize = 256;

/// Of how many applications without executors a driver's statements are kept.
const MAX_STATED_CONFS: usize = 8;

/// What a driver states, by application, and in which order: a pod such as a notebook's runs several, one after the other.
type StatedConfs = OrdMap<AppKey, (u64, Arc<AppConf>)>;

/// The snapshot. Cloning it is cheap.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Every application that has a labelled driver or an executor.
    pub apps: OrdMap<AppKey, Arc<Application>>,
    /// Drivers' pods read by name.
    pub referenced: HashMap<PodKey, ReferencedPod>,
    /// Workloads that create executors, read by name; `None` if there is none of that name.
    pub workloads: HashMap<WorkloadKey, Option<Arc<Workload>>>,
    /// ResourceQuotas of the namespaces of applications that lack executors.
    pub quotas: HashMap<Arc<str>, Arc<[Quota]>>,
    /// What schedulers state on other objects about pods that wait, by namespace and scheduler type.
    pub messages: HashMap<(Arc<str>, &'static str), Arc<SchedulerMessages>>,
    /// PodGroups that could not be created or changed, their application, and what the API server said.
    pub refused_groups: HashMap<GroupKey, (AppKey, Arc<str>)>,
    /// Nodes by name; empty until they are listed, and if they are not watched.
    pub nodes: OrdMap<Arc<str>, Arc<Node>>,
    /// Names of the nodes that new executors avoid.
    pub avoided_nodes: imbl::OrdSet<Arc<str>>,
    /// Namespaces: labels for policies, and our annotations.
    pub namespaces: HashMap<Arc<str>, Arc<Namespace>>,
    /// Services of drivers, by `namespace/name`.
    pub services: HashMap<PodKey, ServiceOwner>,
    /// Names of the cluster's priority classes; `None` until they are listed.
    pub priority_classes: Option<imbl::OrdSet<Arc<str>>>,
    /// Configurations in ConfigMaps, by the uid of the driver's pod.
    pub confs: HashMap<Arc<str>, Conf>,
    /// Configurations that drivers without a ConfigMap state themselves, by the uid of the driver's pod.
    pub stated_confs: HashMap<Arc<str>, StatedConfs>,
    /// What running drivers say about their executors; only the leader has it.
    pub driver_views: HashMap<DriverViewKey, Arc<DriverView>>,
    /// Drivers that returned a view and refuse connections now, and since when; only the leader has them.
    pub closed_drivers: HashMap<DriverViewKey, Instant>,
    /// Our PodGroups.
    pub groups: OrdMap<GroupKey, Arc<Group>>,
    /// The same by the application for which they were created.
    pub(super) groups_of: imbl::OrdSet<(AppKey, GroupKey)>,
    /// Scheduler types whose PodGroups were listed; those of the other types are unknown.
    pub listed: imbl::OrdSet<&'static str>,
    /// PodGroup APIs that the cluster serves; `None` until discovery has answered.
    pub apis: Option<Arc<ServedApis>>,
    /// The version of the installed Volcano, if its webhook rejects pods whose PodGroup does not exist yet.
    pub early_pods_refused_by: Option<Arc<str>>,
    /// The key that signs and verifies our webhook's signatures; `None` while it is unknown, or nothing vouches for signatures.
    pub(super) signing_key: Option<Key>,
    /// The location of each labelled pod by [`pod_hash`], so that a hundred thousand names are not stored twice.
    pub(super) pod_index: OrdMap<u64, PodEntry>,
    /// Names of nodes, each stored once.
    pub(super) node_names: HashMap<Arc<str>, ()>,
    /// Drivers' pods by `namespace/ip`, without pods on the host network.
    pub(super) addresses: HashMap<PodKey, Arc<str>>,
}

impl Snapshot {
    /// The key of our webhook's signatures, if it is known and something vouches for signatures.
    pub fn signing_key(&self) -> Option<&Key> {
        self.signing_key.as_ref()
    }

    pub fn app(&self, namespace: &str, selector: &str) -> Option<&Arc<Application>> {
        let found = self.apps.get_key_value(&AppHash::of(namespace, selector));
        Some(found.filter(|(key, _)| key.is(namespace, selector))?.1)
    }

    /// A pod that drives, or may drive, an application: labelled or referenced. `None` if it is unknown or absent.
    pub fn driver_pod(&self, namespace: &str, name: &str) -> Option<&Arc<DriverPod>> {
        if let Some((_, app, _)) = self.place(namespace, name) {
            return app.driver(name);
        }
        let key = [namespace, "/", name].concat();
        match self.referenced.get(key.as_str()) {
            Some(ReferencedPod::Present(pod)) => Some(pod),
            Some(ReferencedPod::Absent) | None => None,
        }
    }

    /// The executor of that name and its application, if the pod is an executor.
    pub fn executor(&self, namespace: &str, name: &str) -> Option<(&AppKey, &Arc<Executor>)> {
        let (key, app, id) = self.place(namespace, name)?;
        Some((key, app.executors().get(&ExecutorKey { id: id?, name: name.into() })?))
    }

    /// The application of the labelled pod of that name and, for an executor, its number.
    pub(super) fn place(&self, namespace: &str, name: &str) -> Option<(&AppKey, &Arc<Application>, Option<u64>)> {
        let entry = self.pod_index.get(&pod_hash(namespace, name))?;
        let (key, app) = self.apps.get_key_value(&entry.app)?;
        Some((key, app, entry.id()))
    }

    /// The driver's pod that has this address in this namespace.
    pub fn driver_at(&self, namespace: &str, address: &str) -> Option<&Arc<DriverPod>> {
        let name = self.addresses.get([namespace, "/", address].concat().as_str())?;
        self.driver_pod(namespace, name)
    }

    /// Prunes unused names of nodes once there are many names, because an autoscaler adds and removes nodes. Names that an older
    /// snapshot still uses are pruned the next time.
    pub fn forget_nodes(&mut self) {
        if self.node_names.len() > PRUNE_NODES_ABOVE {
            let unused: Vec<Arc<str>> =
                self.node_names.keys().filter(|name| Arc::strong_count(name) == 1).cloned().collect();
            for name in unused {
                self.node_names.remove(&name);
            }
        }
    }

    /// How many names of nodes are stored.
    pub fn node_names(&self) -> usize {
        self.node_names.len()
    }

    /// Our PodGroups that were created for an application.
    pub fn groups_of<'s>(&'s self, app: &'s AppKey) -> impl Iterator<Item = (&'s GroupKey, &'s Arc<Group>)> + use<'s> {
        let first = GroupKey { namespace: Arc::default(), name: Arc::default(), scheduler: "" };
        let of_app = self.groups_of.range((app.clone(), first)..).take_while(move |(group_app, _)| group_app == app);
        of_app.filter_map(|(_, key)| self.groups.get_key_value(key))
    }

    /// A namespace's labels and annotations, if it was observed.
    pub fn namespace(&self, name: &str) -> Option<&Arc<Namespace>> {
        self.namespaces.get(name)
    }

    /// The configuration of an application with this driver, if it is known.
    pub fn conf(&self, app: &AppKey, driver: &DriverPod) -> Option<&AppConf> {
        match self.confs.get(&driver.uid) {
            Some(Conf::Known(conf)) => Some(conf),
            Some(Conf::Unreadable) => None,
            None if driver.conf_map.is_some() => None,
            None => {
                let (_, conf) = self.stated_confs.get(&driver.uid)?.get(app)?;
                Some(conf)
            }
        }
    }

    /// Keeps what a driver states about an application, and forgets what it first stated about others that are over.
    pub(super) fn keep_stated_conf(&mut self, driver: Arc<str>, app: AppKey, conf: Arc<AppConf>) {
        let stated = self.stated_confs.entry(driver).or_default();
        let over = stated.iter().filter(|(other, _)| **other != app && !self.apps.contains_key(*other));
        let mut over: Vec<(u64, AppKey)> = over.map(|(app, (order, _))| (*order, app.clone())).collect();
        over.sort_unstable();
        // An application without executors may have some again.
        let forgotten = over.len().saturating_sub(MAX_STATED_CONFS);
        for (_, forgotten) in over.iter().take(forgotten) {
            stated.remove(forgotten);
        }
        let order = stated.values().map(|(order, _)| order + 1).max().unwrap_or_default();
        stated.insert(app, (order, conf));
    }

    pub(super) fn forget_confs(&mut self, driver: &Arc<str>) {
        self.confs.remove(driver);
        self.stated_confs.remove(driver);
    }
}
