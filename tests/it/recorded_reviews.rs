//! The expected answers to recorded reviews (`docs/decisions.md#what-recorded-reviews-get`). A real API server sent these reviews
//! when real Spark created pods.

use crate::support::*;
use serde_json::{Value, json};
use usher_core::policy::Policies;
use usher_core::reason::Reason;
use usher_core::snapshot::Snapshot;

fn volcano() -> Policies {
    let mut policy = policy("volcano");
    policy.queue = Some("analytics".into());
    policy.executor_class = Some("batch".into());
    policy.driver_class = Some("high".into());
    only(policy)
}

fn outcome(name: &str) -> Outcome {
    answer(&recorded(name), &Snapshot::default(), &volcano())
}

fn group(outcome: &Outcome) -> &Value {
    &outcome.object["metadata"]["annotations"]["scheduling.k8s.io/group-name"]
}

/// With a priority class, the pod must not have the class's numbers: otherwise the API server would reject the pod.
fn assert_scheduled(outcome: &Outcome) {
    let spec = &outcome.object["spec"];
    assert_eq!(spec["schedulerName"], "volcano");
    assert_eq!(spec["priorityClassName"], "batch");
    assert!(spec.get("priority").is_none() && spec.get("preemptionPolicy").is_none());
    assert_eq!(outcome.object["metadata"]["annotations"]["spark-usher.io/by"], "batch/volcano");
}

#[test]
fn client_mode_executors_get_owner_and_scheduling_fields() {
    for name in ["client-mode/exec-1.mutate.create", "client-mode/exec-2.mutate.create"] {
        let outcome = outcome(name);
        assert_scheduled(&outcome);
        assert_eq!(
            outcome.object["metadata"]["ownerReferences"],
            json!([{"apiVersion": "v1", "kind": "Pod", "name": "notebook-driver", "controller": true,
                    "uid": "97f9289d-6793-4b51-9af9-6ecaba99803d"}])
        );
        assert_eq!(group(&outcome), "notebook-driver-f33e32ff");
        assert_eq!((outcome.decision.reason, outcome.decision.how), (Reason::SchedulingSet, Some("creator")));
    }
}

#[test]
fn executors_of_named_driver_pod_keep_owner_and_get_scheduling_fields() {
    for n in 1..=3 {
        let name = format!("client-mode-driver-pod-named/exec-{n}.mutate.create");
        let outcome = outcome(&name);
        assert_scheduled(&outcome);
        assert_eq!(
            outcome.object["metadata"]["ownerReferences"],
            recorded(&name)["request"]["object"]["metadata"]["ownerReferences"]
        );
        assert!(group(&outcome).as_str().unwrap().starts_with("notebook-driver-"));
        assert_eq!(outcome.decision.reason, Reason::SchedulingSet);
    }
}

#[test]
fn notebook_pod_gets_no_patch() {
    let outcome = outcome("client-mode-driver-pod-named/driver.mutate.create");
    assert_eq!(outcome.patch, json!([]));
    assert_eq!(outcome.decision.reason, Reason::NotSpark);
    assert!(outcome.response.get("warnings").is_none() && outcome.response.get("auditAnnotations").is_none());
}

#[test]
fn cluster_mode_driver_gets_scheduling_fields_and_no_gang() {
    let outcome = outcome("cluster-mode/driver.mutate.create");
    assert!(outcome.object["metadata"].get("ownerReferences").is_none());
    assert_eq!(outcome.object["spec"]["schedulerName"], "volcano");
    assert_eq!(outcome.object["spec"]["priorityClassName"], "high");
    assert!(outcome.object["spec"].get("priority").is_none());
    assert!(group(&outcome).is_null());
    assert_eq!(outcome.object["metadata"]["annotations"]["scheduling.volcano.sh/queue-name"], "analytics");
    assert_eq!(outcome.decision.reason, Reason::DriverSchedulingSet);
}

#[test]
fn statefulset_executors_keep_owner_and_get_scheduling_fields() {
    for name in ["statefulset-allocator/exec-a.mutate.create", "statefulset-allocator/exec-b.mutate.create"] {
        let outcome = outcome(name);
        assert_scheduled(&outcome);
        let owners = &outcome.object["metadata"]["ownerReferences"];
        assert_eq!(owners, &recorded(name)["request"]["object"]["metadata"]["ownerReferences"]);
        assert_eq!(owners[0]["kind"], "StatefulSet");
        assert_eq!(outcome.decision.reason, Reason::SchedulingSet);
    }
}

#[test]
fn administrators_executor_gets_warning_and_scheduling_fields_without_owner() {
    for name in ["by-an-administrator/exec.mutate.create", "by-an-administrator/exec-dry-run.mutate.create"] {
        let outcome = outcome(name);
        assert_scheduled(&outcome);
        assert!(outcome.object["metadata"].get("ownerReferences").is_none());
        let group = group(&outcome);
        let group = group.as_str().unwrap();
        assert!(group.len() == 16 && !group.starts_with("f33e32ff"), "{group}: by app selector and user");
        assert_eq!(outcome.decision.reason, Reason::NoCreator);
        let warning = outcome.response["warnings"][0].as_str().unwrap();
        assert!(warning.contains("spark.kubernetes.driver.pod.name"), "{warning}");
        assert!(warning.contains("downward API"), "{warning}");
    }
}

#[test]
fn updates_and_deletions_are_allowed_without_a_patch() {
    let mut count = 0;
    for (name, review) in all_recorded() {
        if review["request"]["operation"] == "CREATE" {
            continue;
        }
        count += 1;
        let body = serde_json::to_vec(&review).unwrap();
        let (snapshot, policies) = (Snapshot::default(), volcano());
        let pruned = usher_core::admission::prune(&body);
        let (decision, bytes) = usher_core::admission::answer(&pruned, &snapshot, &policies).unwrap();
        assert_eq!(decision.reason, Reason::NotCreate, "{name}");
        let answer: Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(answer["response"], json!({"uid": review["request"]["uid"], "allowed": true}), "{name}");
    }
    assert!(count >= 5);
}

/// Whether the webhook may change this path.
fn is_allowed_path(path: &str) -> bool {
    const EXACT: [&str; 6] = [
        "/metadata/ownerReferences",
        "/spec/schedulerName",
        "/spec/priorityClassName",
        "/spec/priority",
        "/spec/preemptionPolicy",
        "/spec/schedulingGroup",
    ];
    EXACT.contains(&path) || path.starts_with("/metadata/annotations") || path.starts_with("/metadata/labels/")
}

#[test]
fn patch_is_idempotent_and_within_allowed_paths_for_every_scheduler() {
    for row in usher_core::gang::TABLE {
        for shape in row.shapes {
            let mut policy = policy(row.kind);
            policy.gang.shape = *shape;
            policy.executor_class = Some("batch".into());
            policy.driver_class = Some("high".into());
            policy.queue = Some("analytics".into());
            let policies = only(policy);
            for (name, review) in all_recorded().into_iter().filter(|(_, r)| r["request"]["operation"] == "CREATE") {
                let first = answer(&review, &Snapshot::default(), &policies);
                for op in first.patch.as_array().unwrap() {
                    assert!(is_allowed_path(op["path"].as_str().unwrap()), "{} {name}: {op}", row.kind);
                }
                let mut again = review.clone();
                again["request"]["object"] = first.object;
                let second = answer(&again, &Snapshot::default(), &policies);
                assert_eq!(second.patch, json!([]), "{} {name} is idempotent", row.kind);
                assert_eq!(second.decision.reason, first.decision.reason, "{} {name}", row.kind);
            }
        }
    }
}

#[test]
fn priority_class_stays_on_reinvocation_after_priority_plugin() {
    let mut review = recorded("client-mode/exec-1.mutate.create");
    review["request"]["object"] = answer(&review, &Snapshot::default(), &volcano()).object;
    // The plugin resolves the class before the reinvocation.
    review["request"]["object"]["spec"]["priority"] = 1000.into();
    review["request"]["object"]["spec"]["preemptionPolicy"] = "Never".into();
    assert_eq!(answer(&review, &Snapshot::default(), &volcano()).patch, json!([]));
}

#[test]
fn dry_run_gets_same_patch() {
    let wet = outcome("by-an-administrator/exec.mutate.create");
    let dry = outcome("by-an-administrator/exec-dry-run.mutate.create");
    assert_eq!(wet.patch, dry.patch);
}
