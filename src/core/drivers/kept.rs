//! Whether a driver keeps its finished executors, so that users can inspect them.

use crate::ownership::contradiction::{self, is_related};
use crate::ownership::liveness::ExecutorSet;
use crate::ownership::workload::{self, OwningPod};
use crate::snapshot::{Application, DriverPod, Owner, Snapshot, TemplateCounts};
use usher_spark::ids::{AppKey, PodIdentity, PodKey};

/// Whether the driver keeps its finished executors (`deleteOnTermination=false`): its configuration states so, or exists and
/// cannot be read.
pub fn keeps(snapshot: &Snapshot, key: &AppKey, driver: &DriverPod) -> bool {
    match snapshot.conf(key, driver) {
        Some(conf) => !conf.lifecycle.delete_on_termination,
        None => driver.conf_map.is_some(),
    }
}

/// Whether the driver of these executors keeps them, or has labelled one. `last_driver` is the driver as it was last
/// known.
pub fn driver_keeps(
    snapshot: &Snapshot,
    key: &AppKey,
    app: &Application,
    set: &ExecutorSet<'_>,
    last_driver: Option<&PodIdentity>,
) -> bool {
    // The set of executors without an owner does not contain the labelled driver that their address named before it exited.
    let last = || {
        let PodIdentity { key, uid } = last_driver?;
        let (_, driver) = snapshot.labelled_driver(key.namespace(), key.name())?;
        Some(driver).filter(|driver| driver.uid == *uid)
    };
    // A restart forgets the last driver. An owner that has not been read may keep them.
    let is_unread = |owner: &Owner| match workload::owning_pod(snapshot, key.namespace(), owner) {
        OwningPod::Pod(pod) => {
            snapshot.driver_pod(key.namespace(), &pod.name).is_none()
                && !snapshot.referenced.contains_key(&PodKey::new(key.namespace(), &pod.name))
                && snapshot.executor(key.namespace(), &pod.name).is_none_or(|(_, another)| another.uid == pod.uid)
        }
        OwningPod::Unread | OwningPod::None => false,
    };
    // Any tenant can name the owner, and so the creator, of executors without a signature.
    let is_proven = set.counts.iter().any(|counts| counts.is_proven);
    let counts = || set.counts.iter().filter(|counts| counts.total > 0 && counts.is_proven == is_proven);
    let mut owners = counts().filter_map(|counts| counts.template.owner.as_ref());
    set.driver.pod().or_else(last).is_some_and(|driver| keeps(snapshot, key, driver))
        || owners.any(is_unread)
        || counts().any(|counts| named_keeps(snapshot, key, app, counts))
        || counts().any(|counts| counts.labelled > 0)
}

/// Whether a pod that may be the driver of executors keeps them.
fn named_keeps(snapshot: &Snapshot, key: &AppKey, app: &Application, counts: &TemplateCounts) -> bool {
    let creator = counts.creator();
    let labelled = app.drivers.iter().filter(|driver| is_related(driver, creator));
    let named = contradiction::named_pods(snapshot, key, &counts.template, counts.is_proven);
    labelled.chain(named).any(|driver| keeps(snapshot, key, driver))
}
