//! Both at once: a creation is changed, and what becomes of it is judged, so that an API server calls once for a pod. What
//! webhooks behind this one make of the pod is then for the ValidatingAdmissionPolicies to judge.

use super::decide::decide;
use super::decision::Decision;
use super::request::{Operation, Review};
use super::validate::{Bench, judge};
use crate::policy::Policies;

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
    decision.join(judge(&result, policies, bench));
    decision
}
