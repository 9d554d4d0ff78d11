//! Actions in words, for the log.

use serde_json::{Map, Value};

use crate::reconcile::Action;

/// The longest description of an action in the log.
const MAX_DESCRIPTION: usize = 1024;

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
            out.insert("driver".into(), (*driver.name).into());
            out.insert("how".into(), how.as_str().into());
        }
        Action::CleanUp { executor, cause, gone_driver, .. } => {
            out.insert("executor".into(), executor.name().into());
            out.insert("cause".into(), cause.as_str().into());
            if let Some(driver) = gone_driver {
                out.insert("driverGone".into(), (*driver.name).into());
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
