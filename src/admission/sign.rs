//! Signs what was decided about a pod, and takes marks off that are not ours.

use super::decide::Question;
use super::decision::Decision;
use super::mutation::Mutation;
use crate::gang;
use crate::signature::{Creator, Signature, Signer};
use crate::snapshot::{MarkPlace, Placed, sign_driver, signed_name};
use crate::spark::labels;
use crate::spark::role::Role;

/// Completes a decision: what we placed is signed, and where we placed nothing no mark of ours stays.
pub(super) fn complete(question: &Question<'_, '_>, decision: &mut Decision<'_>) {
    let marks_placement = decision.mutations.iter().any(|mutation| is_of(mutation, labels::BY));
    // What the fallback policy placed stays marked until a replica that knows the namespace decides.
    if !marks_placement && !question.is_fallback() {
        decision.mutations.push(Mutation::Unmark(labels::BY));
    }
    if !decision.mutations.iter().any(|mutation| is_of(mutation, labels::DRIVER)) {
        decision.mutations.push(Mutation::Unmark(labels::DRIVER));
    }
    decision.mutations.push(match signature(question, decision) {
        Some(signature) => Mutation::Mark(MarkPlace::Annotation, labels::SIGNATURE, signature.to_string()),
        None => Mutation::Unmark(labels::SIGNATURE),
    });
}

fn is_of(mutation: &Mutation, annotation: &str) -> bool {
    match mutation {
        Mutation::Unmark(key) | Mutation::Mark(MarkPlace::Annotation, key, _) => *key == annotation,
        _ => false,
    }
}

fn signature(question: &Question<'_, '_>, decision: &Decision<'_>) -> Option<Signature> {
    let (key, creator) = (question.snapshot.signing_key()?, decision.signs?);
    let (namespace, selector) = (&*question.review.namespace, question.pod.app_selector()?);
    match question.pod.role() {
        Role::Driver => Some(sign_driver(Signer::new(key, namespace, selector, creator), name(question))),
        Role::Executor => {
            let signer = Signer::new(key, namespace, selector, creator);
            Some(sign_executor(signer, question, &decision.mutations))
        }
        Role::Other => None,
    }
}

/// Whether a pod under review carries our signature over its placement as it stands: we decided about it before, and
/// are asked again because another webhook changed something else. `by` is the mark that this decision gives.
pub(super) fn is_signed(question: &Question<'_, '_>, creator: Creator, by: &str) -> bool {
    if question.pod.annotation(labels::BY) != Some(by) {
        return false;
    }
    let present = question.pod.annotation(labels::SIGNATURE).and_then(Signature::parse);
    let (Some(present), Some(key), Some(selector)) =
        (present, question.snapshot.signing_key(), question.pod.app_selector())
    else {
        return false;
    };
    let signer = Signer::new(key, &question.review.namespace, selector, creator);
    present.verifies(&match question.pod.role() {
        Role::Driver => sign_driver(signer, name(question)),
        Role::Executor | Role::Other => sign_executor(signer, question, &[]),
    })
}

/// The name that is signed: what the pod was made from, where it was made from something.
fn name<'q>(question: &'q Question<'_, '_>) -> &'q str {
    let name = question.pod.metadata.name.as_deref().or(question.review.name.as_deref());
    signed_name(question.pod, name).or(name).unwrap_or_default()
}

/// Signs the placement that a pod has after these mutations.
fn sign_executor<'p>(signer: Signer<'_>, question: &'p Question<'_, '_>, mutations: &'p [Mutation]) -> Signature {
    let pod = question.pod;
    // A later mutation of a key wins, as it does in the patch.
    let annotation = |annotation: &str| {
        let last = mutations.iter().rev().find(|mutation| is_of(mutation, annotation));
        match last {
            Some(Mutation::Mark(_, _, value)) => Some(value.as_str()),
            Some(_) => None,
            None => pod.annotation(annotation),
        }
    };
    let group = pod.spec.scheduling_group.as_deref().filter(|name| !name.is_empty());
    let mut placed = Placed {
        name: name(question),
        default_profile: pod.default_profile(),
        note: annotation(labels::DRIVER),
        by: annotation(labels::BY),
        scheduler_name: pod.spec.scheduler_name.as_deref().unwrap_or_default(),
        priority_class: pod.spec.priority_class_name.as_deref(),
        scheduling_group: group,
    };
    for mutation in mutations {
        match mutation {
            Mutation::SchedulerName(name) => placed.scheduler_name = name,
            Mutation::PriorityClass(class) => placed.priority_class = Some(class),
            Mutation::SchedulingGroup(group) => placed.scheduling_group = Some(group),
            Mutation::Mark(..) | Mutation::Unmark(_) | Mutation::Owner { .. } => {}
        }
    }
    gang::seat_keys().sign_executor(signer, pod, &placed, |place, key| {
        let set = mutations.iter().rev().find_map(|mutation| match mutation {
            Mutation::Mark(at, set, value) if *at == place && *set == key => Some(value.as_str()),
            _ => None,
        });
        set.or_else(|| place.value(pod, key))
    })
}
