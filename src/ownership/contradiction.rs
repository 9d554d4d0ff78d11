//! What speaks against the end of an executor's driver. A pod that an executor names as its owner may be a launcher or an anchor,
//! and its end says nothing about the driver: whatever else names a driver contradicts, and then nothing is deleted.
//!
//! Each destructive action asks twice: the plan asks its snapshot, and the edge asks a snapshot with what it has read immediately
//! before ([`live`], [`of_end`]).

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use super::liveness::{self, DriverLiveness, ExecutorSet};
use super::resolve;
use super::workload::{self, OwningPod};
use crate::annotations;
use crate::fault_injection::{self, Bug};
use crate::signature::{Creator, StatedCreator};
use crate::snapshot::{
    Application, Change, DriverPhase, DriverPod, DriverView, DriverViewKey, Executor, ObservedPod, PodChange,
    ReferencedPod, RelatedChange, Snapshot, Template,
};
use crate::spark::ids::{AppKey, PodKey};
use crate::text::is_dns_subdomain;

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
    NotGone(Arc<str>),
    /// The executor is not known any more.
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
pub struct Witnesses<'s> {
    snapshot: &'s Snapshot,
    namespace: &'s str,
    /// The labelled drivers that run, the oldest first.
    labelled: Vec<&'s Arc<DriverPod>>,
    /// The drivers that answer polls.
    views: Vec<(&'s Arc<DriverPod>, &'s DriverView)>,
}

impl<'s> Witnesses<'s> {
    /// The pods that may be drivers of an application with these executor sets.
    pub fn of(snapshot: &'s Snapshot, key: &'s AppKey, app: &'s Application, sets: &'s [ExecutorSet<'s>]) -> Self {
        let mut labelled: Vec<&Arc<DriverPod>> = app.drivers.iter().filter(|driver| runs(driver)).collect();
        labelled.sort_by_key(|driver| driver.created);
        let mut polled: Vec<&Arc<DriverPod>> = sets.iter().filter_map(ExecutorSet::own_driver).collect();
        polled.sort_unstable_by_key(|driver| driver.creator);
        polled.dedup_by_key(|driver| driver.creator);
        let view = |driver: &'s Arc<DriverPod>| {
            let view = snapshot.driver_views.get(&DriverViewKey { app: key.clone(), driver: driver.creator })?;
            Some((driver, &**view))
        };
        let views = polled.into_iter().filter_map(view).collect();
        Witnesses { snapshot, namespace: key.namespace(), labelled, views }
    }

    /// What contradicts that the driver of an executor is gone.
    ///
    /// A pod contradicts only if it runs, is no executor, and is not younger than the executor: a later pod, which may have the
    /// address of the driver, cannot be its driver. If a pod is the proven creator, any other pod must have been created by it: a
    /// tenant labels pods, and would keep another's executors.
    pub fn of_end(&self, executor: &Executor) -> Option<Contradiction> {
        if fault_injection::injected(Bug::ContradictionIgnored) {
            return None;
        }
        let template = &executor.template;
        if executor.creator().is_some_and(|creator| !creator.is_object()) {
            return Some(Contradiction::Account);
        }
        if template.note.as_deref() == Some(annotations::FOREIGN_CREATOR) {
            return Some(Contradiction::ForeignCreator);
        }
        let pod = |driver: &Arc<DriverPod>, evidence| Contradiction::Pod(driver.name.clone(), evidence);
        if let Some(driver) = self.labelled.iter().find(|driver| may_drive(driver, executor)) {
            return Some(pod(driver, Evidence::Label));
        }
        let named = named(self.snapshot, self.namespace, template, executor.is_proven).into_iter().find_map(|named| {
            let driver = named.pod.filter(|driver| may_drive(driver, executor))?;
            Some(pod(driver, named.evidence))
        });
        named.or_else(|| self.registered(executor))
    }

    /// The pod that says that an executor is registered with it, if it may be its driver.
    pub fn registered(&self, executor: &Executor) -> Option<Contradiction> {
        let id = executor.exec_id?;
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
    let is_younger = pod.created.zip(executor.created).is_some_and(|(pod, executor)| pod > executor);
    runs(pod) && !is_younger && is_related(pod, executor.creator())
}

/// Whether a pod may be the driver of executors with this proven creator: it is that, or was created by it.
pub fn is_related(pod: &DriverPod, creator: Option<Creator>) -> bool {
    creator.is_none_or(|creator| pod.creator == creator || pod.creator_of() == Some(creator))
}

/// The known pods that executors name: their creator, their owners, and the pod behind their driver's address.
pub fn named_pods<'s>(
    snapshot: &'s Snapshot,
    key: &AppKey,
    template: &Template,
    is_proven: bool,
) -> impl Iterator<Item = &'s Arc<DriverPod>> {
    let creator = template.creator.as_ref().filter(|_| is_proven).map(StatedCreator::key);
    let named = named(snapshot, key.namespace(), template, is_proven).into_iter();
    named.filter_map(|named| named.pod).filter(move |pod| is_related(pod, creator))
}

/// A pod that executors name.
struct Named<'s> {
    name: Arc<str>,
    evidence: Evidence,
    /// The pod, if it is known by this name and uid.
    pod: Option<&'s Arc<DriverPod>>,
}

fn named<'s>(snapshot: &'s Snapshot, namespace: &str, template: &Template, is_proven: bool) -> Vec<Named<'s>> {
    let creator = template.creator.as_ref().filter(|_| is_proven).and_then(StatedCreator::pod);
    let creator = creator.map(|(name, uid)| (Arc::from(name), Arc::from(uid), Evidence::Creator));
    let controller = template.owner.as_ref().and_then(|owner| match workload::owning_pod(snapshot, namespace, owner) {
        OwningPod::Pod(pod) => Some(pod),
        OwningPod::Unread | OwningPod::None => None,
    });
    let owners = controller.into_iter().chain(&template.other_owners);
    let owners = owners.map(|owner| (owner.name.clone(), owner.uid.clone(), Evidence::Owner));
    let host = template.driver_host.as_deref().and_then(|host| resolve::from_driver_host(host, namespace, snapshot));
    let host = host.map(|found| (Arc::from(&*found.name), Arc::from(&*found.uid), Evidence::Address));
    let all = creator.into_iter().chain(owners).chain(host);
    // Tenants write names: one that no pod can have must not become part of a URL.
    let all = all.filter(|(name, ..): &(Arc<str>, Arc<str>, Evidence)| is_dns_subdomain(name));
    let known = |name: &str, uid: &str| snapshot.driver_pod(namespace, name).filter(|pod| *pod.uid == *uid);
    all.map(|(name, uid, evidence)| Named { pod: known(&name, &uid), name, evidence }).collect()
}

/// The names of the pods that are read before an executor is deleted because its driver, the pod of this name, is gone.
pub fn pods_to_read(snapshot: &Snapshot, app: &AppKey, executor: &Executor, driver: &str) -> Vec<PodKey> {
    let named = named(snapshot, app.namespace(), &executor.template, executor.is_proven);
    let mut names: Vec<&str> = named.iter().map(|named| &*named.name).chain([driver]).collect();
    names.sort_unstable();
    names.dedup();
    names.into_iter().map(|name| PodKey::new(app.namespace(), name)).collect()
}

/// The address at which no pod is known, but may be: that of the driver of an executor.
pub fn address_to_read(snapshot: &Snapshot, app: &AppKey, executor: &Executor) -> Option<Arc<str>> {
    let host = executor.template.driver_host.as_ref().filter(|host| host.parse::<IpAddr>().is_ok())?;
    snapshot.driver_at(app.namespace(), host).is_none().then(|| host.clone())
}

/// The snapshot with what was read just now: the labelled drivers of an application, and pods by name.
pub fn live(
    snapshot: &Snapshot,
    app: &AppKey,
    labelled: Vec<ObservedPod>,
    named: impl IntoIterator<Item = (PodKey, Option<DriverPod>)>,
) -> Snapshot {
    let mut live = snapshot.clone();
    let known = snapshot.apps.get(app).map(|app| app.drivers.as_slice()).unwrap_or_default();
    let is_listed = |driver: &DriverPod| labelled.iter().any(|pod| *pod.uid() == driver.uid);
    for driver in known.iter().filter(|driver| !is_listed(driver)) {
        let key = PodKey::new(app.namespace(), &driver.name);
        live.apply(Change::Pods(PodChange::Gone(key, driver.uid.clone())));
    }
    for pod in labelled {
        live.apply(Change::Pods(PodChange::Observed(pod)));
    }
    for (key, found) in named {
        let found = found.map_or(ReferencedPod::Absent, |pod| ReferencedPod::Present(Arc::new(pod)));
        live.apply(Change::Related(RelatedChange::Referenced(key, found, Vec::new())));
    }
    live
}

/// What contradicts that the driver of this executor, the pod of this name and uid, is gone.
pub fn of_end(
    snapshot: &Snapshot,
    app: &AppKey,
    (name, uid): (&str, &str),
    driver: (&str, &str),
) -> Option<Contradiction> {
    let known = snapshot.executor(app.namespace(), name);
    let known = known.filter(|(key, executor)| *key == app && *executor.uid == *uid);
    let Some(((key, executor), application)) = known.zip(snapshot.apps.get(app)) else {
        return Some(Contradiction::Changed);
    };
    if liveness::liveness_of(app.namespace(), driver.0, driver.1, snapshot) != DriverLiveness::Gone {
        return Some(Contradiction::NotGone(driver.0.into()));
    }
    let sets = liveness::shown_sets(key, application, snapshot);
    Witnesses::of(snapshot, key, application, &sets).of_end(executor)
}
