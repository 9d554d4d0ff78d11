//! The drivers that the leader polls for their view.

use std::sync::Arc;

use crate::ownership::liveness::ExecutorSet;
use crate::policy::DriverAccess;
use crate::snapshot::{DriverPhase, DriverPod, DriverViewKey, Snapshot};
use crate::spark::conf::Ui;
use crate::spark::ids::{AppKey, PodKey};

/// A driver to poll.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverPoll {
    /// The application and the driver's pod.
    pub key: DriverViewKey,
    /// The driver's pod.
    pub pod: PodKey,
    /// Its address.
    pub address: Arc<str>,
    /// Where it serves its REST API, by its configuration.
    pub ui: Ui,
    /// The port on which the application was found last.
    pub port: Option<u16>,
    /// How it is reached.
    pub access: DriverAccess,
}

/// The running drivers of an application that created executors of it or have its label, and whose address is their pod's own:
/// on a node's address, another pod may answer.
pub fn to_poll(snapshot: &Snapshot, app: &AppKey, sets: &[ExecutorSet<'_>], access: DriverAccess) -> Vec<DriverPoll> {
    let mut drivers: Vec<&Arc<DriverPod>> = sets.iter().filter_map(ExecutorSet::own_driver).collect();
    // A driver owns one StatefulSet or Deployment for each resource profile.
    drivers.sort_unstable_by_key(|driver| driver.creator);
    drivers.dedup_by_key(|driver| driver.creator);
    drivers.into_iter().filter_map(|driver| poll(snapshot, app, driver, access)).collect()
}

/// How a driver is polled; `None` if it cannot be.
pub(super) fn poll(snapshot: &Snapshot, app: &AppKey, driver: &DriverPod, access: DriverAccess) -> Option<DriverPoll> {
    let address = driver.address.clone().filter(|_| driver.phase == DriverPhase::Running && !driver.deleting)?;
    let ui = snapshot.conf(&driver.uid).map_or_else(Ui::default, |conf| conf.ui);
    (ui.enabled && access != DriverAccess::None).then(|| DriverPoll {
        key: DriverViewKey { app: app.clone(), driver: driver.creator },
        pod: PodKey::new(app.namespace(), &driver.name),
        address,
        ui,
        port: None,
        access,
    })
}
