//! Executors without an owner get the driver that weaker evidence names: the webhook was down, or its token told
//! nothing. Before anything is written the edge reads the driver's pod live.

use super::action::{Action, DriverRef, Told};
use super::plan::{Plan, View};
use crate::driver::life::{self, DriverLife};
use crate::driver::resolve;
use crate::gang;
use crate::reason::Reason;
use crate::snapshot::{Executor, Life, Seat};
use crate::spark::ids::PodKey;
use crate::spark::labels;

pub(super) fn plan(view: &View<'_>, plan: &mut Plan) {
    let foreign = |executor: &Executor| executor.template.note.as_deref() == Some(labels::FOREIGN);
    let is_orphan = |executor: &Executor| {
        executor.template.owner.is_none() && !executor.deleting && !executor.template.skip && !foreign(executor)
    };
    for crew in view.crews {
        let orphans = crew.live.iter().filter(|executor| is_orphan(executor));
        plan.add(crew.creator, orphans.filter_map(|executor| adopt(view, executor)));
    }
}

fn adopt(view: &View<'_>, executor: &Executor) -> Option<Action> {
    if owner_would_regroup(&executor.template.seat) {
        return None;
    }
    let namespace = view.key.namespace();
    let found = resolve::resolve_later(executor, namespace, view.snapshot)?;
    let pod = PodKey::new(namespace, &executor.name);
    let refuse = |why: &str| {
        let message = format!("not adopted by {} ({}): {why}", found.name, found.how);
        Action::Tell(Told { pod: pod.clone(), uid: executor.uid.clone(), reason: Reason::AdoptionRefused, message })
    };
    match life::judge(namespace, &found.name, &found.uid, view.snapshot) {
        DriverLife::Unknown => None, // It is being read.
        DriverLife::Gone => Some(refuse("that pod is gone, or has ended")),
        DriverLife::Alive(driver) if driver.life != Life::Running || driver.deleting => None,
        DriverLife::Alive(driver) if driver.selector.as_deref().is_some_and(|other| other != view.key.selector()) => {
            Some(refuse("that pod drives another application"))
        }
        DriverLife::Alive(driver) if driver.has_workload && groups_by_top_owner(&executor.template.seat) => None,
        DriverLife::Alive(driver) => Some(Action::Adopt {
            executor: pod.clone(),
            uid: executor.uid.clone(),
            version: executor.version.as_str().into(),
            driver: DriverRef { name: driver.name.clone(), uid: driver.uid.clone() },
            how: found.how,
        }),
    }
}

/// On KAI the workload that owns a driver would become the group of its executors too.
fn groups_by_top_owner(seat: &Seat) -> bool {
    let kind = seat.given_by().map(|(_, kind)| kind);
    gang::TABLE.iter().any(|row| {
        row.groups_by_top_owner && (row.default_name == Some(&*seat.scheduler_name) || kind == Some(row.kind))
    })
}

/// On Volcano an owner without a gang key would move the executor into its driver's own group.
fn owner_would_regroup(seat: &Seat) -> bool {
    let kind = seat.given_by().map(|(_, kind)| kind);
    gang::TABLE.iter().any(|row| {
        let its = row.default_name == Some(&*seat.scheduler_name) || kind == Some(row.kind);
        row.groups_by_owner && its && row.group_key.of_seat(seat).is_none()
    })
}
