//! What follows from an answer that refuses an action.

use kube::core::Status;

use usher_core::planning::{Action, PodEvent};
use usher_core::reason::Reason;
use usher_core::snapshot::{Change, RelatedChange};
use usher_spark::ids::AppKey;
use usher_spark::text::{harmless, truncated};

/// Longest answer about a PodGroup that is kept.
const MAX_REFUSAL: usize = 800;

/// What follows if the API server refuses to create or change a PodGroup: the executors wait for it, and only this answer says why. A
/// conflict means that the plan was outdated; it is not a refusal.
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
