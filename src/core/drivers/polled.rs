//! The drivers that the leader polls for their view.

use std::sync::Arc;

use crate::ownership::liveness::ExecutorSet;
use crate::policy::{DriverAccess, Policies};
use crate::snapshot::{Application, DriverPhase, DriverPod, DriverViewKey, Snapshot, TemplateCounts};
use usher_spark::conf::Ui;
use usher_spark::ids::{AppKey, PodKey};

/// Every driver may list this many executors,
const MIN_ROWS: usize = 2000;
/// and this many for each of its pods,
const ROWS_PER_POD: usize = 4;
/// and as many removed ones as it retains, but at most this many.
const MAX_RETAINED_DEAD: usize = 10_000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverPoll {
    /// The application and the driver's pod.
    pub key: DriverViewKey,
    /// The driver's pod.
    pub pod: PodKey,
    pub uid: Arc<str>,
    pub address: Arc<str>,
    /// Where it serves its REST API, by its configuration.
    pub ui: Ui,
    /// The port on which the application was found last.
    pub port: Option<u16>,
    /// Whether the driver has not answered yet: its first answer may take longer.
    pub is_first: bool,
    /// How it is reached.
    pub access: DriverAccess,
    /// An answer with more rows than this is refused: a tenant writes it.
    pub max_rows: usize,
    /// Whether its configuration is read too: it has no ConfigMap, as in client mode, and its configuration is not known yet.
    pub reads_conf: bool,
}

/// The running drivers of an application that created executors of it or have its label, and whose address is their pod's own:
/// on a node's address, another pod may answer. `may_read_conf` is whether policies let spark-usher read configurations.
pub fn to_poll(
    snapshot: &Snapshot,
    app: &AppKey,
    sets: &[ExecutorSet<'_>],
    access: DriverAccess,
    may_read_conf: bool,
) -> Vec<DriverPoll> {
    let mut drivers: Vec<&Arc<DriverPod>> = sets.iter().filter_map(ExecutorSet::own_driver).collect();
    // A driver owns one StatefulSet or Deployment for each resource profile.
    drivers.sort_unstable_by_key(|driver| driver.creator);
    drivers.dedup_by_key(|driver| driver.creator);
    let with_conf = |driver: &Arc<DriverPod>| {
        let reads_conf = may_read_conf && driver.conf_map.is_none() && snapshot.conf(app, driver).is_none();
        Some(DriverPoll { reads_conf, ..poll(snapshot, app, driver, access)? })
    };
    drivers.into_iter().filter_map(with_conf).collect()
}

/// How a driver is polled; `None` if it cannot be.
pub fn poll(snapshot: &Snapshot, app: &AppKey, driver: &DriverPod, access: DriverAccess) -> Option<DriverPoll> {
    let address = driver.address.clone().filter(|_| driver.phase == DriverPhase::Running && !driver.deleting)?;
    let ui = snapshot.conf(app, driver).map_or_else(Ui::default, |conf| conf.ui);
    (ui.enabled && access != DriverAccess::None).then(|| DriverPoll {
        key: DriverViewKey { app: app.clone(), driver: driver.creator },
        pod: PodKey::new(app.namespace(), &driver.name),
        uid: driver.uid.clone(),
        address,
        ui,
        port: None,
        is_first: false,
        access,
        max_rows: max_rows(snapshot, app, ui.retained_dead),
        reads_conf: false,
    })
}

/// How many executors a driver may list: several times those that exist, and the removed ones that Spark retains. Otherwise 16 MiB of
/// made-up rows would be kept of each driver.
fn max_rows(snapshot: &Snapshot, app: &AppKey, retained_dead: u32) -> usize {
    let pods = snapshot.apps.get(app).map_or(0, |app| app.executors().len());
    let dead = usize::try_from(retained_dead).unwrap_or(usize::MAX).min(MAX_RETAINED_DEAD);
    MIN_ROWS + dead + pods.saturating_mul(ROWS_PER_POD)
}

/// Whether the policies of an application let spark-usher read its configuration.
pub fn may_read_conf<'v>(
    app: &Application,
    counts: impl IntoIterator<Item = &'v TemplateCounts>,
    policies: &Policies,
) -> bool {
    let scheduling = counts.into_iter().map(|counts| &counts.template.scheduling);
    let placed = scheduling.into_iter().find(|scheduling| scheduling.by.is_some());
    let all_scheduling = app.drivers.iter().map(|driver| &driver.scheduling).chain(placed);
    // Pods without our scheduling fields, created before spark-usher ran, have no policy: nothing forbids it.
    let mut known = all_scheduling.into_iter().filter_map(|scheduling| policies.of_scheduling(scheduling)).peekable();
    known.peek().is_none() || known.any(|policy| policy.gang.read_spark_conf)
}
