//! What has to be read by name: drivers without labels, and the configuration of drivers. Every replica reads for its
//! own snapshot; reading needs no leadership.

use std::net::IpAddr;
use std::sync::Arc;

use crate::driver::resolve;
use crate::plant::{self, Bug};
use crate::policy::{Policies, Policy};
use crate::snapshot::{App, Cohort, DriverPod, Followed, Seat, Snapshot, Template};
use crate::spark::ids::{AppKey, PodKey};

/// So many addresses of drivers are looked for for one application: its executors name one, or a few where a driver was
/// started anew.
const MOST_ADDRESSES: usize = 3;

/// One object to read.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Read {
    /// A pod that an executor names as its owner, or that our note names.
    Pod(PodKey),
    /// The pod of this address in this namespace.
    Address(Arc<str>, Arc<str>),
    /// The ConfigMap of the driver in this pod of this uid.
    Conf(PodKey, Arc<str>, Arc<str>),
    /// A labelled pod, of which the watch and a list say different things.
    Labelled(PodKey),
    /// All pods of a namespace, whatever their labels: very many executors are in no list any more.
    All(Arc<str>),
}

/// What an application's plan would like to know and the snapshot does not have. `learned` are the names of its drivers'
/// pods as they were last known.
pub fn reads(snapshot: &Snapshot, key: &AppKey, policies: &Policies, learned: &[&str]) -> Vec<Read> {
    let mut wanted = interests(snapshot, key, policies, learned);
    wanted.retain(|read| is_unknown(snapshot, read));
    wanted
}

/// Everything read by name that an application's plan rests on, known or not.
pub fn interests(snapshot: &Snapshot, key: &AppKey, policies: &Policies, learned: &[&str]) -> Vec<Read> {
    asked(snapshot, key, policies, learned, true).0
}

/// The interests, and followed pods that an application's executors know under another uid than the one that was read: the
/// pod may have been made anew since. Addresses are looked for
/// only by the leader: adoption is all that rests on them.
pub(super) fn asked(
    snapshot: &Snapshot,
    key: &AppKey,
    policies: &Policies,
    learned: &[&str],
    leads: bool,
) -> (Vec<Read>, Vec<(PodKey, Arc<str>)>) {
    let nothing = App::default();
    let app = snapshot.apps.get(key).map_or(&nothing, |app| &**app);
    // What the watch shows needs not be read.
    let unlabelled = learned.iter().filter(|name| app.driver(name).is_none());
    let mut wanted: Vec<Read> = unlabelled.map(|name| Read::Pod(PodKey::new(key.namespace(), name))).collect();
    // Nothing else may be left of an application that has let all its executors go.
    let owners = snapshot.groups_of(key).filter_map(|(_, group)| group.owner.as_ref());
    let owners = owners.filter(|owner| resolve::is_pod_name(&owner.name) && app.driver(&owner.name).is_none());
    wanted.extend(owners.map(|owner| Read::Pod(PodKey::new(key.namespace(), &owner.name))));
    let mut outdated = Vec::new();
    let mut addresses = 0;
    let cohorts = app.cohorts();
    for cohort in cohorts.iter().filter(|cohort| cohort.is_undecided()) {
        for (pod, uid) in named(key, &cohort.template) {
            let is_outdated = match snapshot.followed.get(&pod) {
                Some(Followed::Present(known)) => known.uid != uid,
                Some(Followed::Absent) => true,
                None => false,
            };
            if is_outdated {
                outdated.push((pod.clone(), uid));
            }
            wanted.push(Read::Pod(pod));
        }
        if cohort.live > 0
            && cohort.template.owner.is_none()
            && let Some(host) = cohort.template.driver_host.as_ref().filter(|host| host.parse::<IpAddr>().is_ok())
        {
            match snapshot.driver_at(key.namespace(), host) {
                Some(driver) => wanted.push(Read::Pod(PodKey::new(key.namespace(), &driver.name))),
                None if (leads && addresses < MOST_ADDRESSES) || plant::is(Bug::AddressesNeverRest) => {
                    addresses += 1;
                    wanted.push(Read::Address(key.namespace().into(), host.clone()));
                }
                None => {}
            }
        }
    }
    wanted.sort_unstable();
    wanted.dedup();
    if reads_conf(app, &cohorts, policies) {
        let followed = wanted.iter().filter_map(|read| match read {
            Read::Pod(pod) => followed(snapshot, pod),
            _ => None,
        });
        // Of one that has ended too, where executors are left: it says whether finished ones are kept.
        let is_left = cohorts.iter().any(|cohort| cohort.is_undecided());
        let drivers: Vec<Arc<DriverPod>> = app.drivers.iter().cloned().chain(followed).collect();
        let drivers = drivers.iter().filter(|driver| is_left || driver.is_live());
        wanted.extend(drivers.filter_map(|driver| conf_of(snapshot, key, driver)));
        wanted.sort_unstable();
        wanted.dedup();
    }
    outdated.sort_unstable();
    outdated.dedup();
    (wanted, outdated)
}

/// Pods that an executor names, with the uid under which it knows them: its owner, and our note.
fn named(key: &AppKey, template: &Template) -> impl Iterator<Item = (PodKey, Arc<str>)> {
    let namespace = key.namespace();
    let owner = template.owner.as_ref().filter(|owner| owner.is_pod);
    // A tenant writes owners; what is no name must not become part of a URL.
    let owner = owner.filter(|owner| resolve::is_pod_name(&owner.name));
    let owner = owner.map(|owner| (PodKey::new(namespace, &owner.name), owner.uid.clone()));
    let note = template.note.as_deref().filter(|_| template.owner.is_none()).and_then(resolve::read_note);
    owner.into_iter().chain(note.map(|found| (PodKey::new(namespace, &found.name), found.uid.as_str().into())))
}

/// Whether the snapshot does not have it. Addresses and configurations are interests only while they are not known.
pub(super) fn is_unknown(snapshot: &Snapshot, read: &Read) -> bool {
    let Read::Pod(pod) = read else { return true };
    !snapshot.followed.contains_key(pod) && snapshot.driver_pod(pod.namespace(), pod.name()).is_none()
}

fn followed(snapshot: &Snapshot, pod: &PodKey) -> Option<Arc<DriverPod>> {
    match snapshot.followed.get(pod)? {
        Followed::Present(driver) => Some(driver.clone()),
        Followed::Absent => None,
    }
}

fn conf_of(snapshot: &Snapshot, key: &AppKey, driver: &DriverPod) -> Option<Read> {
    let conf_map = driver.conf_map.clone().filter(|name| resolve::is_pod_name(name))?;
    let pod = PodKey::new(key.namespace(), &driver.name);
    (!snapshot.confs.contains_key(&driver.uid)).then(|| Read::Conf(pod, driver.uid.clone(), conf_map))
}

/// Configurations are read only for gangs, and only where the policy allows it.
fn reads_conf(app: &App, cohorts: &[&Cohort], policies: &Policies) -> bool {
    let placed = cohorts.iter().map(|cohort| &cohort.template.seat).find(|seat| seat.by.is_some());
    let seats = app.drivers.iter().map(|driver| &driver.seat).chain(placed);
    // What was never seated, because it was there before us, is no policy's: nothing forbids it.
    let mut known = seats.into_iter().filter_map(|seat| policy_of(seat, policies)).peekable();
    known.peek().is_none() || known.any(|policy| policy.gang.read_spark_conf)
}

/// The policy that gave a seat, if it still exists.
pub(super) fn policy_of<'p>(seat: &Seat, policies: &'p Policies) -> Option<&'p Policy> {
    policies.named(seat.given_by()?.0)
}
