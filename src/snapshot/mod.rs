//! Where the two roads meet: one immutable picture of every Spark application in the cluster.
//!
//! One writer applies [`Change`]s and publishes; readers hold an `Arc<Snapshot>` and never wait. The maps are
//! persistent (imbl), so publishing costs a few pointers and an event costs the same with ten pods as with a hundred
//! thousand. Memory is bounded by pods, never by events: nothing here remembers what is gone.
//!
//! Applications are keyed by namespace and app selector. Pods without Spark labels that drive an application (a
//! notebook, a worker) are *followed*: read by name because an executor names them, not because of a label.

mod app;
mod change;
mod facts;
mod group;
mod proof;
mod roster;
mod store;
mod walk;

use std::sync::Arc;

use imbl::{HashMap, OrdMap};

use crate::signature::Key;
use crate::spark::conf::AppConf;
use crate::spark::ids::{AppKey, PodKey};

pub use app::{App, ExecutorKey};
pub(crate) use change::may_be_there;
pub use change::{Absence, Change, Departed, Effect, Ended, Replaced};
pub use facts::{
    DriverPod, Executor, Life, Mark, MarkPlace, Namespace, Override, Overrides, Owner, Seat, SeatKeys, ServiceOwner,
    Sighting, Template, driver_host,
};
pub use group::{Group, GroupApi, GroupKey, ServedApis};
pub use proof::{Placed, sign_driver, signed_name};
pub(crate) use roster::is_orphan;
pub use roster::{Cohort, Roster};
pub use store::{Batch, Calls, Store, SubscriberId};
pub use walk::{Cursor, Labelled, Listed};

/// What a live GET of a driver's pod answered.
#[derive(Clone, Debug, PartialEq)]
pub enum Followed {
    /// It is there.
    Present(Arc<DriverPod>),
    /// The API server knows no pod of that name.
    Absent,
}

/// What the driver's configuration said, or that it cannot be read.
#[derive(Clone, Debug, PartialEq)]
pub enum Conf {
    /// `spark.properties` was read.
    Known(Arc<AppConf>),
    /// There is none to read: no such ConfigMap, no such key, no right to read it.
    Unreadable,
}

/// So few names of nodes are not worth forgetting.
const MANY_NODES: usize = 256;

/// The picture. Cloning it is cheap.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Every application that has a labelled driver or an executor.
    pub apps: OrdMap<AppKey, Arc<App>>,
    /// Drivers' pods read by name.
    pub followed: HashMap<PodKey, Followed>,
    /// Namespaces: labels for policies, annotations of ours.
    pub namespaces: HashMap<Arc<str>, Arc<Namespace>>,
    /// Services of drivers, by `namespace/name`.
    pub services: HashMap<PodKey, ServiceOwner>,
    /// Names of the cluster's priority classes; `None` until they were listed.
    pub priority_classes: Option<imbl::OrdSet<Arc<str>>>,
    /// Configurations by the uid of the driver's pod.
    pub confs: HashMap<Arc<str>, Conf>,
    /// PodGroups that carry our mark.
    pub groups: OrdMap<GroupKey, Arc<Group>>,
    /// Which of those were made for which application.
    groups_of: imbl::OrdSet<(AppKey, GroupKey)>,
    /// Scheduler types whose PodGroups were listed: of the others nothing is known.
    pub listed: imbl::OrdSet<&'static str>,
    /// PodGroup APIs that the cluster serves; `None` until discovery answered.
    pub apis: Option<Arc<ServedApis>>,
    /// The version of the installed Volcano, where its webhook refuses pods whose PodGroup does not exist yet.
    pub early_pods_refused_by: Option<Arc<str>>,
    /// What our webhook's signatures are made and verified with; `None` while it is not known.
    signing_key: Option<Key>,
    /// Where each labelled pod is kept, by [`change::place_of`]: a hundred thousand names are not kept twice.
    places: OrdMap<u64, change::Place>,
    /// Names of nodes, each once.
    nodes: HashMap<Arc<str>, ()>,
    /// Pods of drivers by `namespace/ip`; pods on the host's network are not in it.
    addresses: HashMap<PodKey, Arc<str>>,
}

impl Snapshot {
    /// What our webhook signs with, if it is known.
    pub fn signing_key(&self) -> Option<&Key> {
        self.signing_key.as_ref()
    }

    /// An application by namespace and app selector.
    pub fn app(&self, namespace: &str, selector: &str) -> Option<&Arc<App>> {
        let key = [namespace, "/", selector].concat();
        self.apps.get(key.as_str())
    }

    /// A pod that drives, or may drive, an application: labelled or followed. `None` when nothing is known of it.
    pub fn driver_pod(&self, namespace: &str, name: &str) -> Option<&Arc<DriverPod>> {
        if let Some(place) = self.places.get(&change::place_of(namespace, name)) {
            return self.apps.get(place.app.as_str())?.driver(name);
        }
        let key = [namespace, "/", name].concat();
        match self.followed.get(key.as_str()) {
            Some(Followed::Present(pod)) => Some(pod),
            Some(Followed::Absent) | None => None,
        }
    }

    /// The executor of that name, if that pod is one.
    pub fn executor(&self, namespace: &str, name: &str) -> Option<(&AppKey, &Arc<Executor>)> {
        let place = self.places.get(&change::place_of(namespace, name))?;
        let (key, app) = self.apps.get_key_value(place.app.as_str())?;
        let at = ExecutorKey { id: place.id()?, name: name.into() };
        Some((key, app.executors().get(&at)?))
    }

    /// The driver's pod that has this address in this namespace.
    pub fn driver_at(&self, namespace: &str, address: &str) -> Option<&Arc<DriverPod>> {
        let name = self.addresses.get([namespace, "/", address].concat().as_str())?;
        self.driver_pod(namespace, name)
    }

    /// Forgets the names of nodes that no executor is on any more, where there are many: nodes come and go with an
    /// autoscaler. Those that an older picture still names are forgotten the next time.
    pub fn forget_nodes(&mut self) {
        if self.nodes.len() > MANY_NODES {
            let unused: Vec<Arc<str>> =
                self.nodes.keys().filter(|name| Arc::strong_count(name) == 1).cloned().collect();
            for name in unused {
                self.nodes.remove(&name);
            }
        }
    }

    /// How many names of nodes are kept.
    pub fn nodes(&self) -> usize {
        self.nodes.len()
    }

    /// PodGroups of ours that were made for an application.
    pub fn groups_of<'s>(&'s self, app: &'s AppKey) -> impl Iterator<Item = (&'s GroupKey, &'s Arc<Group>)> + use<'s> {
        let first = GroupKey { namespace: "".into(), name: "".into(), scheduler: "" };
        let own = self.groups_of.range((app.clone(), first)..).take_while(move |(of, _)| of == app);
        own.filter_map(|(_, key)| self.groups.get_key_value(key))
    }

    /// A namespace's labels and annotations, if it was seen.
    pub fn namespace(&self, name: &str) -> Option<&Arc<Namespace>> {
        self.namespaces.get(name)
    }

    /// What is known of a driver's configuration, by the uid of its pod.
    pub fn conf(&self, driver_uid: &str) -> Option<&AppConf> {
        match self.confs.get(driver_uid)? {
            Conf::Known(conf) => Some(conf),
            Conf::Unreadable => None,
        }
    }
}
