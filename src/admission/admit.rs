//! Both at once: a creation is changed, and what becomes of it is judged, so that an API server calls once for a pod. What
//! webhooks behind this one make of the pod is then for the ValidatingAdmissionPolicies to judge.

use super::decide::decide;
use super::decision::Decision;
use super::head;
use super::request::{Operation, Review};
use super::validate::{Bench, judge};
use crate::policy::Policies;
use crate::spark::pod::Pod;
use crate::spark::text::MAX_ITEMS;

/// Decides, and judges the pod as the decision makes it. Refused is what either refuses.
pub fn admit<'a>(review: &Review<'a>, policies: &'a Policies, bench: Bench<'_>) -> Decision<'a> {
    let mut decision = decide(review, bench.snapshot, policies);
    if !decision.allowed || !review.is_pod || review.operation != Operation::Create {
        return decision;
    }
    let mut result = review.clone();
    if let Some(pod) = &mut result.pod {
        for mutation in &decision.mutations {
            mutation.apply(pod);
        }
    }
    let too_many = result.pod.as_ref().is_some_and(has_too_many);
    decision.join(if too_many { head::judge(review, policies, bench) } else { judge(&result, policies, bench) });
    decision
}

/// The same for a review of which only what is decided by could be read, and not all that is judged.
pub fn admit_in_part<'a>(review: &Review<'a>, policies: &'a Policies, bench: Bench<'_>) -> Decision<'a> {
    let mut decision = decide(review, bench.snapshot, policies);
    if decision.allowed && review.is_pod && review.operation == Operation::Create {
        decision.join(head::judge(review, policies, bench));
    }
    decision
}

/// Whether a pod has more of something than is read: by what we added, too.
fn has_too_many(pod: &Pod<'_>) -> bool {
    let metadata = &pod.metadata;
    [&metadata.labels, &metadata.annotations].into_iter().flatten().any(|entries| entries.len() > MAX_ITEMS)
        || metadata.owner_references.as_ref().is_some_and(|owners| owners.len() > MAX_ITEMS)
}
