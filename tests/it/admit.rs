//! Mutation and validation in one call. `answer` of the support module compares it with the two calls for every creation; here
//! is what only this call decides.

use crate::support::*;
use serde_json::{Value, json};
use usher_core::admission;
use usher_core::policy::{Policies, Policy, Validate};
use usher_core::reason::Reason;
use usher_core::snapshot::Snapshot;
use usher_spark::wire_text::MAX_ITEMS;

fn enforcing() -> Policies {
    only(Policy { validate: Validate::Enforce, ..policy("volcano") })
}

/// The decision about a review: whether it is allowed, and its reason.
fn admit(review: &Value, policies: &Policies) -> (bool, Reason) {
    let body = serde_json::to_vec(review).unwrap();
    let pruned = admission::prune_for_validation(&body);
    let review = admission::parse(&pruned).unwrap();
    let snapshot = Snapshot::default();
    let decision = admission::admit(&review, policies, validation_context(&snapshot));
    (decision.is_allowed(), decision.reason)
}

#[test]
fn update_is_neither_mutated_nor_validated() {
    let old = executor(1).stored("e-1").owned_by("Pod", "nb-driver", DRIVER_UID);
    let new = old.clone().owned_by("Pod", "other", "9-9");
    let review = update(&old, &new, json!({"username": "eve", "groups": ["developers"]}));
    assert!(!validate_review(&review, &Snapshot::default(), &enforcing()).decision.allowed);
    assert_eq!(admit(&review, &enforcing()), (true, Reason::NotCreate));
}

#[test]
fn pod_is_too_large_if_mutations_exceed_the_limit_of_its_entries() {
    let added = |place: &str| {
        let outcome = by_driver(&executor(1), &Snapshot::default(), &enforcing());
        let count = |value: &Value| value.as_object().map_or(0, serde_json::Map::len);
        count(&outcome.object["metadata"][place]) - count(&executor(1).0["metadata"][place])
    };
    assert!(added("annotations") > 0 && added("labels") == 0);
    let with = |place: &str, total: usize| {
        let mut pod = executor(1);
        let present = pod.0["metadata"][place].as_object().map_or(0, serde_json::Map::len);
        for n in 0..total - added(place) - present {
            pod =
                if place == "labels" { pod.label(&format!("l{n}"), "") } else { pod.annotation(&format!("a{n}"), "") };
        }
        admit(&pod.created_by_pod("nb-driver", DRIVER_UID), &enforcing())
    };
    assert_eq!(with("labels", MAX_ITEMS), (true, Reason::SchedulingSet));
    assert_eq!(with("annotations", MAX_ITEMS), (true, Reason::SchedulingSet));
    assert_eq!(with("annotations", MAX_ITEMS + 1), (false, Reason::TooLarge));
}

#[test]
fn pod_is_too_large_if_its_driver_exceeds_the_limit_of_owners() {
    let with = |total: usize| {
        let mut pod = executor(1);
        let owner =
            |n: usize| json!({"apiVersion": "v1", "kind": "ConfigMap", "name": format!("c{n}"), "uid": format!("{n}")});
        pod.0["metadata"]["ownerReferences"] = (0..total - 1).map(owner).collect();
        admit(&pod.created_by_pod("nb-driver", DRIVER_UID), &enforcing())
    };
    assert_eq!(with(MAX_ITEMS), (true, Reason::SchedulingSet));
    assert_eq!(with(MAX_ITEMS + 1), (false, Reason::TooLarge));
}
