//! Adoption: executors without an owner get the driver that weaker evidence names, if the webhook was down or the creator's token
//! did not identify the driver. The edge reads the driver's pod live before it writes.

use std::sync::Arc;

use super::plan::Plan;
use super::state::Progress;
use crate::ownership::contradiction::may_drive;
use crate::ownership::liveness::{self, DriverLiveness, ExecutorSet};
use crate::ownership::regroup;
use crate::ownership::resolve::{self, DriverSource};
use crate::planning::{Action, PlanContext, PodEvent, batch};
use crate::reason::Reason;
use crate::snapshot::{DriverPhase, DriverPod, Executor, Template, TemplateCounts, is_orphan};
use usher_spark::ids::PodKey;

pub(super) fn plan(context: &PlanContext<'_>, set: &ExecutorSet<'_>, progress: &mut Progress, plan: &mut Plan) {
    // All evidence of a driver is in the template, so each template is decided once.
    let adopters: Vec<(&TemplateCounts, AdoptionVerdict)> = set
        .counts
        .iter()
        .filter(|counts| counts.orphans > 0)
        .filter_map(|counts| Some((*counts, decide(context, &counts.template)?)))
        .collect();
    if adopters.is_empty() {
        progress.orphans = None;
        return;
    }
    let mut actions = Vec::new();
    let is_whole = batch::visit(context.app.executors(), &mut progress.orphans, |executor| {
        let verdict = adopters.iter().find(|(counts, _)| counts.has(executor)).map(|(_, verdict)| verdict);
        let verdict = verdict.filter(|_| executor.is_live() && is_orphan(executor));
        actions.extend(
            verdict.map(|verdict| verdict.action(PodKey::new(context.key.namespace(), &executor.name), executor)),
        );
        verdict.is_some()
    });
    plan.add(set.creator, actions);
    if !is_whole {
        plan.continue_later(set.creator, context.now.at);
    }
}

/// The decision on executors without an owner.
enum AdoptionVerdict {
    /// They get this driver as owner, if it may be theirs.
    Adopt(Arc<DriverPod>, DriverSource),
    /// They get no owner, for this reason.
    Refuse(String),
}

impl AdoptionVerdict {
    fn action(&self, pod: PodKey, executor: &Executor) -> Action {
        let uid = executor.uid.clone();
        match self {
            // Another pod may have the address of a driver that was deleted.
            AdoptionVerdict::Adopt(driver, how) if !may_drive(driver, executor) => {
                let why = "that pod is younger than the executor, or its creator is another one";
                let message = refusal(&driver.name, *how, why);
                Action::RecordEvent(PodEvent { pod, uid, reason: Reason::AdoptionRefused, message })
            }
            AdoptionVerdict::Adopt(driver, how) => {
                let driver = driver.identity(pod.namespace());
                Action::Adopt { executor: pod, seen: executor.into(), driver, how: *how }
            }
            AdoptionVerdict::Refuse(message) => {
                Action::RecordEvent(PodEvent { pod, uid, reason: Reason::AdoptionRefused, message: message.clone() })
            }
        }
    }
}

fn decide(context: &PlanContext<'_>, template: &Template) -> Option<AdoptionVerdict> {
    if regroup::by_owner_of(&template.scheduling) {
        return None;
    }
    let namespace = context.key.namespace();
    let found = resolve::resolve_later(template, namespace, context.snapshot)?;
    let refuse = |why: &str| AdoptionVerdict::Refuse(refusal(&found.name, found.source, why));
    match liveness::liveness_of(namespace, &found.name, &found.uid, context.snapshot) {
        DriverLiveness::Unknown => None, // The pod is being read.
        DriverLiveness::Gone => Some(refuse("that pod no longer exists or has exited")),
        DriverLiveness::Alive(driver) if driver.phase != DriverPhase::Running || driver.deleting => None,
        DriverLiveness::Alive(driver)
            if driver.selector.as_deref().is_some_and(|other| other != context.key.selector()) =>
        {
            Some(refuse("that pod is the driver of another application"))
        }
        DriverLiveness::Alive(driver) if regroup::by_driver_of(&driver, &template.scheduling) => None,
        DriverLiveness::Alive(driver) => Some(AdoptionVerdict::Adopt(driver, found.source)),
    }
}

fn refusal(driver: &str, how: DriverSource, why: &str) -> String {
    format!("not adopted by {driver} ({how}): {why}")
}
