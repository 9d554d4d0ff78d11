//! Objects that have to be read by name: drivers without labels, and the configuration of drivers. Every replica reads for its
//! own snapshot; reads need no leadership.

use std::net::IpAddr;
use std::sync::Arc;

use crate::drivers::target::target;
use crate::drivers::{may_read_conf, view_of};
use crate::gang::messages;
use crate::ownership::liveness::{self, DriverLiveness};
use crate::ownership::resolve;
use crate::ownership::workload::{self, OwningPod};
use crate::policy::{Policies, RecoveryRule};
use crate::signature::StatedCreator;
use crate::snapshot::{
    Application, DriverPhase, DriverPod, Owner, ReferencedPod, Snapshot, Template, TemplateCounts, WorkloadKey,
};
use usher_spark::ids::{AppKey, PodIdentity, PodKey};
use usher_spark::text::is_dns_subdomain;

/// At most this many driver addresses are looked up for one application: its executors name one, or a few if a driver was
/// restarted.
const MAX_ADDRESSES: usize = 3;

/// One object to read.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Lookup {
    /// A pod that an executor names as its owner, or that our `spark-usher.io/driver` annotation names.
    Pod(PodKey),
    /// A workload that creates executors, and the one that owns it.
    Workload(WorkloadKey),
    /// The pod of this address in this namespace.
    Address(Arc<str>, Arc<str>),
    /// The ConfigMap of the driver in this pod of this uid.
    Conf(PodKey, Arc<str>, Arc<str>),
    /// The ResourceQuotas of a namespace in which an application lacks executors.
    Quotas(Arc<str>),
    /// What a scheduler states on other objects about pods of a namespace that wait.
    Messages(Arc<str>, &'static str),
    /// The schedulers of the pods on a suspect node.
    NodePods(Arc<str>),
    /// A labelled pod for which the watch and a list differ.
    Labelled(PodKey),
    /// All pods of a namespace, regardless of labels: a list lacks very many of its executors.
    All(Arc<str>),
}

/// Objects that an application's plan requires and the snapshot lacks. `learned` are its drivers' pods as they were last known.
pub fn missing(snapshot: &Snapshot, key: &AppKey, policies: &Policies, learned: &[PodKey]) -> Vec<Lookup> {
    let mut wanted = required(snapshot, key, policies, learned);
    wanted.retain(|read| is_unknown(snapshot, read));
    wanted
}

/// All objects read by name that an application's plan requires, known or not.
pub fn required(snapshot: &Snapshot, key: &AppKey, policies: &Policies, learned: &[PodKey]) -> Vec<Lookup> {
    let known = snapshot.apps.get(key).map(|app| &**app);
    required_by(snapshot, key, known, policies, learned, true).0
}

/// The required lookups, and followed pods that an application's executors name with another uid than the one that was read: the
/// pod may have been recreated since. Only the leader looks up addresses: only adoption needs them.
pub(super) fn required_by(
    snapshot: &Snapshot,
    key: &AppKey,
    app: Option<&Application>,
    policies: &Policies,
    learned: &[PodKey],
    leads: bool,
) -> (Vec<Lookup>, Vec<(PodKey, Arc<str>)>) {
    let nothing = Application::default();
    let app = app.unwrap_or(&nothing);
    // Pods that the watch shows need not be read.
    let unlabelled = learned.iter().filter(|pod| app.driver(pod.name()).is_none());
    let mut wanted: Vec<Lookup> = unlabelled.cloned().map(Lookup::Pod).collect();
    // Of an application without executors only PodGroups may be left.
    let owners = snapshot.groups_of(key).filter_map(|(_, group)| group.owner.as_ref());
    let owners = owners.filter(|owner| is_dns_subdomain(&owner.name) && app.driver(&owner.name).is_none());
    wanted.extend(owners.map(|owner| Lookup::Pod(PodKey::new(key.namespace(), &owner.name))));
    let mut outdated = Vec::new();
    let mut addresses = Vec::new();
    let counts = app.by_template();
    // Pods that a kubelet refused stay after cleanup, and their driver decides whether they are kept.
    let refused_act = policies.recovery.may_act(RecoveryRule::Refused);
    let is_left = |counts: &&&TemplateCounts| counts.is_undecided() || (refused_act && counts.total > 0);
    for counts in counts.iter().filter(is_left) {
        // The watch shows labelled drivers.
        let here = named_pods(snapshot, key, counts).filter(|(name, _)| app.driver(name).is_none());
        let here = here.map(|(name, uid)| PodIdentity { key: PodKey::new(key.namespace(), &name), uid });
        for PodIdentity { key: pod, uid } in here.chain(counts.template.pod_elsewhere(counts.is_proven)) {
            wanted.push(Lookup::Pod(pod.clone()));
            let is_of_uid = |read: &_| matches!(read, ReferencedPod::Present(known) if known.uid == uid);
            if snapshot.referenced.get(&pod).is_some_and(|read| !is_of_uid(read)) {
                outdated.push((pod, uid));
            }
        }
        if let Some(owner) = &counts.template.owner {
            let workloads = workload::workloads_of(snapshot, key.namespace(), owner);
            wanted.extend(workloads.into_iter().map(Lookup::Workload));
        }
        match at_address(snapshot, key, counts) {
            Some(read @ Lookup::Address(..)) => addresses.push(read),
            read => wanted.extend(read),
        }
    }
    wanted.sort_unstable();
    wanted.dedup();
    let found_pods = wanted.iter().filter_map(|read| match read {
        // One of another namespace has its configuration and quotas there.
        Lookup::Pod(pod) if pod.namespace() == key.namespace() => found_pod(snapshot, pod),
        _ => None,
    });
    let found_pods: Vec<Arc<DriverPod>> = found_pods.collect();
    let drivers = || app.drivers.iter().chain(&found_pods);
    let live: usize = counts.iter().map(|counts| counts.live).sum();
    if drivers().any(|driver| lacks_executors(snapshot, key, driver, live)) {
        wanted.push(Lookup::Quotas(key.namespace().into()));
    }
    if leads {
        wanted.extend(addresses.into_iter().take(MAX_ADDRESSES));
        // Without executors, a driver that waits.
        let drivers = drivers().filter(|driver| driver.phase == DriverPhase::Pending && driver.node.is_none());
        let executors = counts.iter().filter(|counts| counts.pending > 0).map(|counts| &counts.template.scheduling);
        let speakers =
            executors.chain(drivers.map(|driver| &driver.scheduling)).flat_map(|fields| messages::speakers(fields));
        wanted.extend(speakers.map(|scheduler| Lookup::Messages(key.namespace().into(), scheduler.kind)));
    }
    if may_read_conf(app, counts.iter().copied(), policies) {
        // Also of an exited driver, if executors are left: its configuration states whether finished ones are kept.
        let is_left = counts.iter().any(|counts| is_left(&counts));
        let drivers = drivers().filter(|driver| is_left || driver.is_live());
        wanted.extend(drivers.filter_map(|driver| conf_of(snapshot, key, driver)));
    }
    wanted.sort_unstable();
    wanted.dedup();
    outdated.sort_unstable();
    outdated.dedup();
    (wanted, outdated)
}

/// Whether a running driver wants more executors than there are: a ResourceQuota may be the cause.
fn lacks_executors(snapshot: &Snapshot, key: &AppKey, driver: &DriverPod, live: usize) -> bool {
    let target = || target(snapshot, key, driver, view_of(snapshot, key, driver.creator), None);
    driver.phase == DriverPhase::Running
        && !driver.deleting
        && target().is_some_and(|target| usize::try_from(target.count).is_ok_and(|count| count > live))
}

/// Pods of their namespace that executors name, with the uid that they state: their owners, or the owner of their workload, their
/// proven creator, and the driver in our annotation.
fn named_pods(
    snapshot: &Snapshot,
    key: &AppKey,
    counts: &TemplateCounts,
) -> impl Iterator<Item = (Arc<str>, Arc<str>)> {
    let (namespace, template) = (key.namespace(), &counts.template);
    let owner = template.owner.as_ref().and_then(|owner| match workload::owning_pod(snapshot, namespace, owner) {
        OwningPod::Pod(owner) => owner.pod(),
        OwningPod::Unread | OwningPod::None => None,
    });
    // Beside a proven creator they say nothing.
    let others = template.other_owners.iter().filter(|_| counts.creator().is_none()).filter_map(Owner::pod);
    let creator_pod = template.proven_creator(counts.is_proven).and_then(StatedCreator::pod);
    let is_owner = |owner: &Owner| creator_pod.is_some_and(|(_, uid)| *uid == *owner.uid);
    let is_owned = template.owner.as_ref().is_some_and(is_owner);
    let creator = creator_pod.filter(|_| !is_owned).map(|(name, uid)| (name.into(), uid.into()));
    let note = template.note.as_deref().filter(|_| template.owner.is_none()).and_then(resolve::read_evidence);
    let note = note.map(|found| (found.name.as_str().into(), found.uid.as_str().into()));
    owner.into_iter().chain(others).chain(creator).chain(note)
}

/// What to read for the driver at the address that live executors were given, if it may be known by its address only.
fn at_address(snapshot: &Snapshot, key: &AppKey, counts: &TemplateCounts) -> Option<Lookup> {
    let host = counts.template.driver_host.as_ref().filter(|host| host.parse::<IpAddr>().is_ok())?;
    if counts.live == 0 || !is_found_by_address(snapshot, key, &counts.template) {
        return None;
    }
    Some(match snapshot.driver_at(key.namespace(), host) {
        Some(driver) => Lookup::Pod(PodKey::new(key.namespace(), &driver.name)),
        None => Lookup::Address(key.namespace().into(), host.clone()),
    })
}

/// Whether a driver may be known by its address only: nothing controls its executors, or a pod that is gone.
fn is_found_by_address(snapshot: &Snapshot, key: &AppKey, template: &Template) -> bool {
    let Some(owner) = &template.owner else { return true };
    owner.pod().is_some_and(|(name, uid)| {
        liveness::liveness_of(key.namespace(), &name, &uid, snapshot) == DriverLiveness::Gone
    })
}

/// Whether the snapshot lacks the object. Addresses and configurations are required only while they are unknown.
pub(super) fn is_unknown(snapshot: &Snapshot, read: &Lookup) -> bool {
    let pod = match read {
        Lookup::Pod(pod) => pod,
        Lookup::Workload(key) => return !snapshot.workloads.contains_key(key),
        Lookup::Quotas(namespace) => return !snapshot.quotas.contains_key(namespace),
        Lookup::Messages(namespace, kind) => return !snapshot.messages.contains_key(&(namespace.clone(), *kind)),
        _ => return true,
    };
    !snapshot.referenced.contains_key(pod) && snapshot.driver_pod(pod.namespace(), pod.name()).is_none()
}

/// A pod that was read by its name.
fn found_pod(snapshot: &Snapshot, pod: &PodKey) -> Option<Arc<DriverPod>> {
    match snapshot.referenced.get(pod)? {
        ReferencedPod::Present(driver) => Some(driver.clone()),
        ReferencedPod::Absent => None,
    }
}

fn conf_of(snapshot: &Snapshot, key: &AppKey, driver: &DriverPod) -> Option<Lookup> {
    let conf_map = driver.conf_map.clone().filter(|name| is_dns_subdomain(name))?;
    let pod = PodKey::new(key.namespace(), &driver.name);
    (!snapshot.confs.contains_key(&driver.uid)).then(|| Lookup::Conf(pod, driver.uid.clone(), conf_map))
}
