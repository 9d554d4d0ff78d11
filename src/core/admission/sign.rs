//! Signs the decision about a pod, and removes our annotations where it does not set them.

use super::context::MutationContext;
use super::draft::Draft;
use super::mutation::Mutation;
use crate::annotations::{self, MetadataField};
use crate::gang;
use crate::signature::{Signature, Signer, StatedCreator};
use crate::snapshot::{SignedExecutor, sign_driver, signed_name};
use usher_spark::role::Role;

/// Completes a decision: states the creator of a pod whose scheduling fields we set, and signs it; removes `by`, `driver`, `creator`
/// and `signature` where it does not set them.
pub(super) fn complete(context: &MutationContext<'_, '_>, draft: &mut Draft<'_>) {
    // A pod that the fallback policy placed keeps `by` until a replica that knows the namespace decides.
    let kept = context.is_fallback().then_some(annotations::BY);
    for annotation in [annotations::BY, annotations::DRIVER] {
        if kept != Some(annotation) && !draft.mutations.iter().any(|mutation| is_of(mutation, annotation)) {
            draft.mutations.push(Mutation::RemoveMetadata(annotation));
        }
    }
    match signature(context, draft) {
        Some((creator, signature)) => {
            draft.set_annotation(annotations::CREATOR, creator);
            draft.set_annotation(annotations::SIGNATURE, signature.to_string());
        }
        None => draft.mutations.extend([annotations::CREATOR, annotations::SIGNATURE].map(Mutation::RemoveMetadata)),
    }
}

fn is_of(mutation: &Mutation, annotation: &str) -> bool {
    match mutation {
        Mutation::RemoveMetadata(key) | Mutation::SetMetadata(MetadataField::Annotation, key, _) => *key == annotation,
        _ => false,
    }
}

/// The creator as the pod will state it, and the signature; `None` for a pod that is not signed.
fn signature(context: &MutationContext<'_, '_>, draft: &Draft<'_>) -> Option<(String, Signature)> {
    let creator = draft.signature.as_ref().filter(|creator| creator.is_signable())?;
    let (key, namespace, selector) =
        (context.snapshot.signing_key()?, &*context.review.namespace, context.pod.app_selector()?);
    let signer = || Signer::new(key, namespace, selector, creator);
    let signature = match context.pod.role() {
        Role::Driver => sign_driver(signer(), name(context)),
        Role::Executor => sign_executor(signer(), context, &draft.mutations),
        Role::Other => return None,
    };
    Some((creator.text().to_owned(), signature))
}

/// Whether a pod under review has our signature over its current placement: we decided about it before, and are
/// reinvoked because another webhook changed something else. `by` is the annotation that this decision sets.
pub(super) fn is_signed(context: &MutationContext<'_, '_>, creator: &StatedCreator, by: &str) -> bool {
    let stated = |annotation: &str| context.pod.annotation(annotation);
    if stated(annotations::BY) != Some(by) || stated(annotations::CREATOR) != Some(creator.text()) {
        return false;
    }
    let present = stated(annotations::SIGNATURE).and_then(Signature::parse);
    let (Some(present), Some(key), Some(selector)) =
        (present, context.snapshot.signing_key(), context.pod.app_selector())
    else {
        return false;
    };
    let signer = Signer::new(key, &context.review.namespace, selector, creator);
    present.verifies(&match context.pod.role() {
        Role::Driver => sign_driver(signer, name(context)),
        Role::Executor | Role::Other => sign_executor(signer, context, &[]),
    })
}

/// The name that is signed: the pod's generateName if its name begins with that, otherwise its name.
fn name<'q>(context: &'q MutationContext<'_, '_>) -> &'q str {
    let name = context.pod.metadata.name.as_deref().or(context.review.name.as_deref());
    signed_name(context.pod, name).or(name).unwrap_or_default()
}

/// Signs a pod's placement after these mutations.
fn sign_executor<'p>(signer: Signer<'_>, context: &'p MutationContext<'_, '_>, mutations: &'p [Mutation]) -> Signature {
    let pod = context.pod;
    // A later mutation of a key wins, as it does in the patch.
    let annotation = |annotation: &str| {
        let last = mutations.iter().rev().find(|mutation| is_of(mutation, annotation));
        match last {
            Some(Mutation::SetMetadata(_, _, value)) => Some(value.as_str()),
            Some(_) => None,
            None => pod.annotation(annotation),
        }
    };
    let group = pod.spec.scheduling_group.as_deref().filter(|name| !name.is_empty());
    let mut placed = SignedExecutor {
        name: name(context),
        default_profile: pod.default_profile(),
        note: annotation(annotations::DRIVER),
        by: annotation(annotations::BY),
        scheduler_name: pod.spec.scheduler_name.as_deref().unwrap_or_default(),
        priority_class: pod.spec.priority_class_name.as_deref(),
        scheduling_group: group,
        owner: pod.controller().map(|owner| owner.uid.as_str()),
    };
    for mutation in mutations {
        match mutation {
            Mutation::SchedulerName(name) => placed.scheduler_name = name,
            Mutation::PriorityClass(class) => placed.priority_class = Some(class),
            Mutation::SchedulingGroup(group) => placed.scheduling_group = Some(group),
            Mutation::Owner { uid, .. } => placed.owner = Some(uid),
            Mutation::SetMetadata(..) | Mutation::RemoveMetadata(_) | Mutation::Affinity(_) => {}
        }
    }
    gang::scheduling_keys().sign_executor(signer, pod, &placed, |place, key| {
        let set = mutations.iter().rev().find_map(|mutation| match mutation {
            Mutation::SetMetadata(at, set, value) if *at == place && *set == key => Some(value.as_str()),
            _ => None,
        });
        set.or_else(|| place.value(pod, key))
    })
}
