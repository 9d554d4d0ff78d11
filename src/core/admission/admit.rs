//! Mutation and validation in one call: a created pod is mutated and the result is validated, so that an API server calls once
//! per pod. Changes by webhooks that run after this one are left to the ValidatingAdmissionPolicies.

use super::decision::{Decision, Verdict};
use super::head;
use super::mutate::mutate;
use super::mutation::Mutation;
use super::request::{Operation, Review};
use super::validate::{ValidationContext, validate};
use crate::policy::Policies;
use usher_spark::pod::Pod;
use usher_spark::wire_text::MAX_ITEMS;

/// Mutates, and validates the mutated pod. The pod is rejected if either rejects it.
pub fn admit<'a>(review: &Review<'a>, policies: &'a Policies, context: ValidationContext<'_>) -> Decision<'a> {
    validated(review, mutate(review, context.snapshot, policies), |mutations| {
        let mut result = review.clone();
        if let Some(pod) = &mut result.pod {
            for mutation in mutations {
                mutation.apply(pod);
            }
        }
        let too_many = result.pod.as_ref().is_some_and(has_too_many);
        if too_many { head::validate_head(review, policies, context) } else { validate(&result, policies, context) }
    })
}

/// The same for a review of which only the head could be read.
pub fn admit_head<'a>(review: &Review<'a>, policies: &'a Policies, context: ValidationContext<'_>) -> Decision<'a> {
    validated(review, head::mutate_head(review, policies, context), |_| head::validate_head(review, policies, context))
}

/// A decision about a creation, joined with the validation of the mutated pod.
fn validated<'a>(
    review: &Review<'_>,
    decision: Decision<'a>,
    validate: impl FnOnce(&[Mutation]) -> Decision<'a>,
) -> Decision<'a> {
    match &decision.verdict {
        Verdict::Allow { mutations } if review.is_pod && review.operation == Operation::Create => {
            let validation = validate(mutations);
            decision.join(validation)
        }
        _ => decision,
    }
}

/// Whether a pod has more labels, annotations or owners than are read; those that we added count.
fn has_too_many(pod: &Pod<'_>) -> bool {
    let metadata = &pod.metadata;
    [&metadata.labels, &metadata.annotations].into_iter().flatten().any(|entries| entries.len() > MAX_ITEMS)
        || metadata.owner_references.as_ref().is_some_and(|owners| owners.len() > MAX_ITEMS)
}
