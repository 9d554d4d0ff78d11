//! Actions in words, for the log, and what follows from an answer that refuses one.

use kube::core::Status;
use serde_json::{Map, Value};

use crate::reason::Reason;
use crate::reconcile::{Action, PodEvent};
use crate::snapshot::{Change, RelatedChange};
use crate::spark::ids::AppKey;
use crate::text::{harmless, truncated};

/// The longest description of an action in the log.
const MAX_DESCRIPTION: usize = 1024;
/// Longest answer about a PodGroup that is kept.
const MAX_REFUSAL: usize = 800;

/// The object that an action is about.
pub(super) fn object(action: &Action) -> String {
    match action {
        Action::CreateGroup { key, .. } | Action::PatchGroup { key, .. } | Action::DeleteGroup { key, .. } => {
            format!("{}/{}", key.namespace, key.name)
        }
        Action::Adopt { executor, .. } | Action::CleanUp { executor, .. } => executor.to_string(),
        Action::Recover(deletion) => deletion.event.pod.to_string(),
        Action::RecordEvent(pod_event) => pod_event.pod.to_string(),
    }
}

/// An action in one line, for the log.
pub(super) fn describe(action: &Action) -> String {
    let mut out = Map::new();
    match action {
        Action::CreateGroup { key, spec, .. } => {
            out.insert("group".into(), (*key.name).into());
            out.insert("spec".into(), spec.clone());
        }
        Action::PatchGroup { key, patch, .. } => {
            out.insert("group".into(), (*key.name).into());
            out.insert("patch".into(), patch.clone());
        }
        Action::DeleteGroup { key, .. } => {
            out.insert("group".into(), (*key.name).into());
        }
        Action::Adopt { executor, driver, how, .. } => {
            out.insert("executor".into(), executor.name().into());
            out.insert("driver".into(), driver.key.name().into());
            out.insert("how".into(), how.as_str().into());
        }
        Action::CleanUp { executor, cause, gone_driver, .. } => {
            out.insert("executor".into(), executor.name().into());
            out.insert("cause".into(), cause.as_str().into());
            if let Some(driver) = gone_driver {
                out.insert("driverGone".into(), driver.key.name().into());
            }
        }
        Action::Recover(deletion) => {
            out.insert("rule".into(), deletion.rule.as_str().into());
            out.insert("pod".into(), deletion.event.pod.name().into());
            out.insert("message".into(), deletion.event.message.clone().into());
        }
        Action::RecordEvent(pod_event) => {
            out.insert("pod".into(), pod_event.pod.name().into());
            out.insert("message".into(), pod_event.message.clone().into());
        }
    }
    let text = Value::Object(out).to_string();
    text.chars().take(MAX_DESCRIPTION).collect()
}

/// What follows if the API server refuses to create or change a PodGroup: the executors wait for it, and only this answer says why. An
/// answer that the plan is outdated is none.
pub(super) fn group_refused(app: &AppKey, action: &Action, status: &Status) -> (Option<Change>, Option<PodEvent>) {
    let (key, owner) = match action {
        Action::CreateGroup { key, owner, .. } => (key, owner.as_ref()),
        Action::PatchGroup { key, .. } => (key, None),
        _ => return (None, None),
    };
    // Stale, or the API server is overloaded or fails; but a webhook that does not answer is an error of its own.
    let is_refused = match status.code {
        404 | 408 | 409 | 429 => false,
        500.. => status.message.contains("webhook"),
        _ => true,
    };
    if !is_refused {
        return (None, None);
    }
    let why = truncated(&harmless(&status.message), MAX_REFUSAL).to_owned();
    let event = owner.map(|owner| PodEvent {
        pod: owner.key.clone(),
        uid: owner.uid.clone(),
        reason: Reason::GroupRefused,
        message: format!("gang {}: the API server refused its PodGroup: {why}", key.name),
    });
    (Some(Change::Related(RelatedChange::GroupRefused(key.clone(), app.clone(), why.into()))), event)
}
