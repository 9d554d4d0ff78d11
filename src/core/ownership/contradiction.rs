//! What speaks against the end of an executor's driver. A pod that an executor names as its owner may be a launcher or an anchor,
//! and its end says nothing about the driver: whatever else names a driver contradicts, and then nothing is deleted.
//!
//! Each destructive action asks twice: the plan asks its snapshot, and the edge asks the newest snapshot and what it has read
//! immediately before ([`of_end`]).

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use super::liveness::{self, ExecutorSet};
use super::resolve;
use super::workload::{self, OwningPod};
use crate::annotations;
use crate::signature::{Creator, StatedCreator};
use crate::snapshot::{Application, DriverPhase, DriverPod, DriverView, DriverViewKey, Executor, Snapshot, Template};
use usher_spark::ids::{AppKey, PodIdentity, PodKey};
use usher_spark::text::is_dns_subdomain;

/// What speaks against the end of an executor's driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Contradiction {
    /// An account that is bound to no pod created the executor.
    Account,
    /// The executor names a driver of another account than its creator's.
    ForeignCreator,
    /// This pod runs, and may be the driver.
    Pod(Arc<str>, Evidence),
    /// The driver that is known, this pod, is not known to be gone.
    NotGone(PodKey),
    /// A labelled driver of the application cannot be read.
    Unreadable,
    /// The snapshot no longer has the executor.
    Changed,
}

/// Why a pod may be an executor's driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// It created the executor.
    Creator,
    /// It owns the executor.
    Owner,
    /// It is labelled as the driver of the application.
    Label,
    /// `SPARK_DRIVER_URL` names its address, or its Service.
    Address,
    /// Its REST API says that the executor is registered.
    View,
}

impl fmt::Display for Contradiction {
    /// A clause, for people.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (pod, evidence) = match self {
            Contradiction::Account => {
                return f.write_str("an account created it, and no pod, so its driver may run outside the cluster");
            }
            Contradiction::ForeignCreator => return f.write_str("another account than its driver's created it"),
            Contradiction::NotGone(pod) => return write!(f, "its driver, pod {pod}, is not known to be gone"),
            Contradiction::Unreadable => return f.write_str("a labelled driver of its application cannot be read"),
            Contradiction::Changed => return f.write_str("it changed meanwhile"),
            Contradiction::Pod(pod, evidence) => (pod, evidence),
        };
        let why = match evidence {
            Evidence::Creator => "created it",
            Evidence::Owner => "owns it",
            Evidence::Label => "is labelled as its driver",
            Evidence::Address => "has the address of its driver",
            Evidence::View => "says that it is registered",
        };
        write!(f, "pod {pod} runs and {why}")
    }
}

/// The pods that may be the driver of an application's executors, collected once for all of them.
#[derive(Debug)]
pub struct Witnesses {
    /// The labelled drivers that run, the oldest first.
    labelled: Vec<Arc<DriverPod>>,
    /// The drivers that answer polls.
    views: Vec<(Arc<DriverPod>, Arc<DriverView>)>,
}

impl Witnesses {
    /// The pods that may be drivers of an application with these executor sets.
    pub fn of(snapshot: &Snapshot, key: &AppKey, app: &Application, sets: &[ExecutorSet<'_>]) -> Witnesses {
        let mut labelled: Vec<Arc<DriverPod>> = app.drivers.iter().filter(|driver| runs(driver)).cloned().collect();
        labelled.sort_by_key(|driver| driver.created);
        let mut polled: Vec<&Arc<DriverPod>> = sets.iter().filter_map(ExecutorSet::own_driver).collect();
        polled.sort_unstable_by_key(|driver| driver.creator);
        polled.dedup_by_key(|driver| driver.creator);
        let view = |driver: &Arc<DriverPod>| {
            let view = snapshot.driver_views.get(&DriverViewKey { app: key.clone(), driver: driver.creator })?;
            Some((driver.clone(), view.clone()))
        };
        let views = polled.into_iter().filter_map(view).collect();
        Witnesses { labelled, views }
    }

    /// What contradicts that the driver of an executor is gone.
    ///
    /// A pod contradicts only if it runs, is no executor, and is not younger than the executor: a later pod, which may have the
    /// address of the driver, cannot be its driver. If a pod is the proven creator, any other pod must have been created by it: a
    /// tenant labels pods, and would keep another's executors.
    pub fn of_end(&self, snapshot: &Snapshot, namespace: &str, executor: &Executor) -> Option<Contradiction> {
        if executor.creator().is_some_and(|creator| !creator.is_object()) {
            return Some(Contradiction::Account);
        }
        self.of_end_elsewhere(snapshot, namespace, executor)
    }

    /// The same if the driver is a pod of another namespace, which is known by more than its account ([`elsewhere`](super::elsewhere)).
    pub fn of_end_elsewhere(&self, snapshot: &Snapshot, namespace: &str, executor: &Executor) -> Option<Contradiction> {
        let template = &executor.template;
        if template.note.as_deref() == Some(annotations::FOREIGN_CREATOR) {
            return Some(Contradiction::ForeignCreator);
        }
        let pod = |driver: &Arc<DriverPod>, evidence| Contradiction::Pod(driver.name.clone(), evidence);
        // The others are younger than the executor.
        let older = self.labelled.iter().take_while(|driver| !is_younger(driver, executor));
        if let Some(driver) = older.into_iter().find(|driver| may_drive(driver, executor)) {
            return Some(pod(driver, Evidence::Label));
        }
        let named = named(snapshot, namespace, template, executor.is_proven).into_iter().find_map(|named| {
            let driver = named.pod.filter(|driver| may_drive(driver, executor))?;
            Some(pod(driver, named.evidence))
        });
        named.or_else(|| self.registered(executor))
    }

    /// The pod that says that an executor is registered with it, if it may be its driver.
    pub fn registered(&self, executor: &Executor) -> Option<Contradiction> {
        let id = executor.exec_id?.into();
        let counts = |view: &DriverView| view.executor(id).is_some_and(|row| row.is_active);
        let mut views = self.views.iter();
        let (driver, _) = views.find(|(driver, view)| may_drive(driver, executor) && counts(view))?;
        Some(Contradiction::Pod(driver.name.clone(), Evidence::View))
    }
}

/// Whether a pod runs and is no executor. One that is being deleted runs until it is gone.
fn runs(pod: &DriverPod) -> bool {
    pod.phase == DriverPhase::Running && !pod.is_executor
}

/// Whether a pod may be the driver of an executor; see [`Witnesses::of_end`].
pub fn may_drive(pod: &DriverPod, executor: &Executor) -> bool {
    runs(pod) && !is_younger(pod, executor) && is_related(pod, executor.creator())
}

/// A pod whose age is unknown is not.
fn is_younger(pod: &DriverPod, executor: &Executor) -> bool {
    pod.created.zip(executor.created).is_some_and(|(pod, executor)| pod > executor)
}

/// Whether a pod may be the driver of executors with this proven creator: it is that, or was created by it. An account proves no
/// driver.
pub fn is_related(pod: &DriverPod, creator: Option<Creator>) -> bool {
    let creator = creator.filter(|creator| creator.is_object());
    creator.is_none_or(|creator| pod.creator == creator || pod.creator_of() == Some(creator))
}

/// The known pods that executors name: their creator, their owners, and the pod behind their driver's address.
pub fn named_pods<'s>(
    snapshot: &'s Snapshot,
    key: &AppKey,
    template: &Template,
    is_proven: bool,
) -> impl Iterator<Item = &'s Arc<DriverPod>> {
    let creator = template.proven_creator(is_proven).map(StatedCreator::key);
    let named = named(snapshot, key.namespace(), template, is_proven).into_iter();
    named.filter_map(|named| named.pod).filter(move |pod| is_related(pod, creator))
}

/// A pod that executors name.
struct Named<'s> {
    name: Arc<str>,
    uid: Arc<str>,
    evidence: Evidence,
    /// The pod, if it is known by this name and uid.
    pod: Option<&'s Arc<DriverPod>>,
}

fn named<'s>(snapshot: &'s Snapshot, namespace: &str, template: &Template, is_proven: bool) -> Vec<Named<'s>> {
    let creator = template.proven_creator(is_proven).and_then(StatedCreator::pod);
    let creator = creator.map(|(name, uid)| (Arc::from(name), Arc::from(uid), Evidence::Creator));
    let controller = template.owner.as_ref().and_then(|owner| match workload::owning_pod(snapshot, namespace, owner) {
        OwningPod::Pod(pod) => Some(pod),
        OwningPod::Unread | OwningPod::None => None,
    });
    let owners = controller.into_iter().chain(&template.other_owners);
    let owners = owners.map(|owner| (owner.name.clone(), owner.uid.clone(), Evidence::Owner));
    let host = template.driver_host.as_deref().and_then(|host| resolve::from_driver_host(host, namespace, snapshot));
    let host = host.map(|found| (Arc::from(&*found.name), Arc::from(&*found.uid), Evidence::Address));
    // A pod that is read by its name has no proven creator: beside the proven creator of executors it says nothing.
    let others = owners.chain(host).filter(|_| creator.is_none());
    let all = creator.clone().into_iter().chain(others);
    // Tenants write names: one that no pod can have must not become part of a URL.
    let all = all.filter(|(name, ..): &(Arc<str>, Arc<str>, Evidence)| is_dns_subdomain(name));
    let known = |name: &str, uid: &str| snapshot.driver_pod(namespace, name).filter(|pod| *pod.uid == *uid);
    all.map(|(name, uid, evidence)| Named { pod: known(&name, &uid), name, uid, evidence }).collect()
}

/// What is to be read before an executor is deleted because its driver, the pod of this name, is gone.
#[derive(Clone, Debug)]
pub struct ToRead {
    /// Pods, by name.
    pub pods: Vec<PodKey>,
    /// All pods at this address.
    pub address: Option<Arc<str>>,
}

/// See [`ToRead`]. The labelled drivers of the application are read in any case.
pub fn to_read(snapshot: &Snapshot, app: &AppKey, executor: &Executor, driver: &PodKey) -> ToRead {
    let named = named(snapshot, app.namespace(), &executor.template, executor.is_proven);
    let named = named.iter().map(|named| PodKey::new(app.namespace(), &named.name));
    let mut pods: Vec<PodKey> = named.chain([driver.clone()]).collect();
    pods.sort_unstable();
    pods.dedup();
    let host = executor.template.driver_host.as_ref().filter(|host| host.parse::<IpAddr>().is_ok());
    let is_proven = executor.creator().is_some_and(Creator::is_object);
    ToRead { pods, address: host.filter(|_| !is_proven).cloned() }
}

/// What was read just now about one application.
#[derive(Debug, Default)]
pub struct Reads {
    /// Its labelled drivers that run ([`Snapshot::verified`]).
    pub labelled: Vec<Arc<DriverPod>>,
    /// Whether one of them cannot be read.
    pub is_unreadable: bool,
    /// Pods by name; `None` for those that do not exist.
    pub pods: HashMap<PodKey, Option<Arc<DriverPod>>>,
    pub at_address: HashMap<Arc<str>, Vec<Arc<DriverPod>>>,
}

/// What contradicts that this driver of an executor is gone: in the snapshot, or in what was read since. Either is enough.
pub fn of_end(
    snapshot: &Snapshot,
    app: &AppKey,
    (name, uid): (&str, &str),
    driver: &PodIdentity,
    reads: &Reads,
) -> Option<Contradiction> {
    let known = snapshot.executor(app.namespace(), name);
    let known = known.filter(|(key, executor)| *key == app && *executor.uid == *uid);
    let Some(((key, executor), application)) = known.zip(snapshot.apps.get(app)) else {
        return Some(Contradiction::Changed);
    };
    let read = |name: &str| reads.pods.get(&PodKey::new(app.namespace(), name));
    // A pod that was not read may exist.
    if reads.pods.get(&driver.key).is_none_or(|found| !liveness::is_gone(found.as_deref(), &driver.uid)) {
        return Some(Contradiction::NotGone(driver.key.clone()));
    }
    let sets = liveness::shown_sets(key, application, snapshot);
    let witnesses = Witnesses::of(snapshot, key, application, &sets);
    let in_snapshot = match driver.key.namespace() == app.namespace() {
        true => witnesses.of_end(snapshot, app.namespace(), executor),
        false => witnesses.of_end_elsewhere(snapshot, app.namespace(), executor),
    };
    if in_snapshot.is_some() {
        return in_snapshot;
    }
    let pod = |driver: &Arc<DriverPod>, evidence| Contradiction::Pod(driver.name.clone(), evidence);
    if let Some(driver) = reads.labelled.iter().find(|driver| may_drive(driver, executor)) {
        return Some(pod(driver, Evidence::Label));
    }
    let named = named(snapshot, app.namespace(), &executor.template, executor.is_proven);
    let named = named.iter().find_map(|named| {
        let driver = read(&named.name)?.as_ref()?;
        (driver.uid == named.uid && may_drive(driver, executor)).then(|| pod(driver, named.evidence))
    });
    let at_address = || {
        let pods = reads.at_address.get(executor.template.driver_host.as_ref()?)?;
        Some(pod(pods.iter().find(|driver| may_drive(driver, executor))?, Evidence::Address))
    };
    let unreadable = || {
        (reads.is_unreadable && !executor.creator().is_some_and(Creator::is_object))
            .then_some(Contradiction::Unreadable)
    };
    named.or_else(at_address).or_else(unreadable)
}
