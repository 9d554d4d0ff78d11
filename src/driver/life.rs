//! Does the driver of an application still live? (DESIGN "Driver life".)

use std::sync::Arc;

use crate::snapshot::{App, DriverPod, Executor, Followed, Life, Snapshot};
use crate::spark::ids::{AppKey, PodKey};

/// Three answers; on the third nothing is ever deleted.
#[derive(Clone, Debug, PartialEq)]
pub enum DriverLife {
    /// Its pod is there, with the uid that was learned, and has not ended.
    Alive(Arc<DriverPod>),
    /// A uid was learned once, and its pod is gone, is another one now, or has ended.
    Gone,
    /// No uid was ever learned, or nobody has looked yet.
    Unknown,
}

impl DriverLife {
    /// The pod of a driver that lives.
    pub fn pod(&self) -> Option<&Arc<DriverPod>> {
        match self {
            DriverLife::Alive(pod) => Some(pod),
            DriverLife::Gone | DriverLife::Unknown => None,
        }
    }
}

/// Answers for an application. A labelled driver tells by itself; one without labels is known by the executors that it
/// owns, and was read by name; `learned` is the name and uid that were known before.
pub fn of(key: &AppKey, app: &App, snapshot: &Snapshot, learned: Option<(&str, &str)>) -> DriverLife {
    if let Some(driver) = app.live_driver() {
        return DriverLife::Alive(driver.clone());
    }
    let (mut gone, mut unknown) = (!app.drivers.is_empty(), false);
    // Owners of what was dealt with are followed by nobody, and say nothing about the others.
    let counts = |executor: &&Arc<Executor>| executor.is_live() || executor.is_uncleared();
    let owners = app.executors.values().filter(counts).filter_map(|executor| executor.template.owner.as_ref());
    let owners = owners.filter(|owner| owner.is_pod);
    for (name, uid) in owners.map(|owner| (&*owner.name, &*owner.uid)).chain(learned) {
        match judge(key.namespace(), name, uid, snapshot) {
            alive @ DriverLife::Alive(_) => return alive,
            DriverLife::Gone => gone = true,
            DriverLife::Unknown => unknown = true,
        }
    }
    // One of whom nothing is known yet may be alive.
    if gone && !unknown { DriverLife::Gone } else { DriverLife::Unknown }
}

/// Answers for one pod by name and the uid that was learned.
pub fn judge(namespace: &str, name: &str, uid: &str, snapshot: &Snapshot) -> DriverLife {
    let known = snapshot.driver_pod(namespace, name);
    match known {
        Some(pod) if *pod.uid == *uid && pod.life != Life::Ended && !pod.is_executor => DriverLife::Alive(pod.clone()),
        Some(_) => DriverLife::Gone,
        None => match snapshot.followed.get(&PodKey::new(namespace, name)) {
            Some(Followed::Absent) => DriverLife::Gone,
            _ => DriverLife::Unknown,
        },
    }
}
