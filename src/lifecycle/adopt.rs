//! Executors without an owner get the driver that weaker evidence names: the webhook was down, or its token told
//! nothing. Before anything is written the edge reads the driver's pod live.

use std::time::Instant;

use super::action::{Action, DriverRef, Told};
use super::part::{self, Progress};
use super::plan::{Plan, View};
use crate::driver::life::{self, Crew, DriverLife};
use crate::driver::resolve::{self, How};
use crate::gang;
use crate::plant::{self, Bug};
use crate::reason::Reason;
use crate::snapshot::{Cohort, Executor, Life, Seat, Template, is_orphan};
use crate::spark::ids::PodKey;

pub(super) fn plan(view: &View<'_>, crew: &Crew<'_>, now: Instant, progress: &mut Progress, plan: &mut Plan) {
    // What is known of a driver stands in what executors have in common.
    let adopters: Vec<(&Cohort, Verdict)> = crew
        .cohorts
        .iter()
        .filter(|cohort| cohort.orphans > 0)
        .filter_map(|cohort| Some((*cohort, judge(view, &cohort.template)?)))
        .collect();
    if adopters.is_empty() || plant::is(Bug::NeverAdopted) {
        progress.orphans = None;
        return;
    }
    let mut actions = Vec::new();
    let is_whole = part::go_through(view.app.executors(), &mut progress.orphans, |executor| {
        let verdict = adopters.iter().find(|(cohort, _)| cohort.has(executor)).map(|(_, verdict)| verdict);
        let verdict = verdict.filter(|_| executor.is_live() && is_orphan(executor));
        actions
            .extend(verdict.map(|verdict| verdict.action(PodKey::new(view.key.namespace(), &executor.name), executor)));
        verdict.is_some()
    });
    plan.add(crew.creator, actions);
    if !is_whole {
        plan.is_part(crew.creator, now);
    }
}

/// What becomes of executors without an owner.
enum Verdict {
    /// They get this one.
    Adopt(DriverRef, How),
    /// They get none, for this reason.
    Refuse(String),
}

impl Verdict {
    fn action(&self, pod: PodKey, executor: &Executor) -> Action {
        let uid = executor.uid.clone();
        match self {
            Verdict::Adopt(driver, how) => Action::Adopt {
                executor: pod,
                uid,
                version: executor.version.as_str().into(),
                driver: driver.clone(),
                how: *how,
            },
            Verdict::Refuse(message) => {
                Action::Tell(Told { pod, uid, reason: Reason::AdoptionRefused, message: message.clone() })
            }
        }
    }
}

fn judge(view: &View<'_>, template: &Template) -> Option<Verdict> {
    if owner_would_regroup(&template.seat) {
        return None;
    }
    let namespace = view.key.namespace();
    let found = resolve::resolve_later(template, namespace, view.snapshot)?;
    let refuse = |why: &str| Verdict::Refuse(format!("not adopted by {} ({}): {why}", found.name, found.how));
    match life::judge(namespace, &found.name, &found.uid, view.snapshot) {
        DriverLife::Unknown => None, // It is being read.
        DriverLife::Gone => Some(refuse("that pod is gone, or has ended")),
        DriverLife::Alive(driver) if driver.life != Life::Running || driver.deleting => None,
        DriverLife::Alive(driver) if driver.selector.as_deref().is_some_and(|other| other != view.key.selector()) => {
            Some(refuse("that pod drives another application"))
        }
        DriverLife::Alive(driver) if driver.has_workload && groups_by_top_owner(&template.seat) => None,
        DriverLife::Alive(driver) => {
            Some(Verdict::Adopt(DriverRef { name: driver.name.clone(), uid: driver.uid.clone() }, found.how))
        }
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
