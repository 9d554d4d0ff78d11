//! Both at once: a creation is changed, and what becomes of it is judged, so that an API server calls once for a pod. What
//! the last webhook behind this one makes of the pod is then for the ValidatingAdmissionPolicies to judge.

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
    judged(review, decide(review, bench.snapshot, policies), |decision| {
        let mut result = review.clone();
        if let Some(pod) = &mut result.pod {
            for mutation in &decision.mutations {
                mutation.apply(pod);
            }
        }
        let too_many = result.pod.as_ref().is_some_and(has_too_many);
        if too_many { head::judge(review, policies, bench) } else { judge(&result, policies, bench) }
    })
}

/// The same for a review of which only what is decided by could be read, and not all that is judged.
pub fn admit_in_part<'a>(review: &Review<'a>, policies: &'a Policies, bench: Bench<'_>) -> Decision<'a> {
    judged(review, decide(review, bench.snapshot, policies), |_| head::judge(review, policies, bench))
}

/// The same for a review of which only the head could be read.
pub fn admit_head<'a>(review: &Review<'a>, policies: &'a Policies, bench: Bench<'_>) -> Decision<'a> {
    judged(review, head::mutate(review, policies, bench), |_| head::judge(review, policies, bench))
}

/// A decision about a creation, joined by the judgement of what it makes.
fn judged<'a>(
    review: &Review<'_>,
    mut decision: Decision<'a>,
    judge: impl FnOnce(&Decision<'a>) -> Decision<'a>,
) -> Decision<'a> {
    if decision.allowed && review.is_pod && review.operation == Operation::Create {
        let judgement = judge(&decision);
        decision.join(judgement);
    }
    decision
}

/// Whether a pod has more of something than is read: by what we added, too.
fn has_too_many(pod: &Pod<'_>) -> bool {
    let metadata = &pod.metadata;
    [&metadata.labels, &metadata.annotations].into_iter().flatten().any(|entries| entries.len() > MAX_ITEMS)
        || metadata.owner_references.as_ref().is_some_and(|owners| owners.len() > MAX_ITEMS)
}
