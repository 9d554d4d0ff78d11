//! Every branch of the mutating decision about a pod, identified by its reason.

use crate::support::*;
use serde_json::{Value, json};
use usher_core::admission;
use usher_core::annotations::Override;
use usher_core::policy::{Policies, Policy};
use usher_core::reason::Reason;
use usher_core::snapshot::{RelatedChange, Snapshot, Watched};
use usher_spark::ids::PodKey;

pub(crate) fn none() -> Policies {
    only(policy("none"))
}

pub(crate) fn volcano() -> Policies {
    only(policy("volcano"))
}

pub(crate) fn cold() -> Snapshot {
    Snapshot::default()
}

pub(crate) fn annotations(outcome: &Outcome) -> &Value {
    &outcome.object["metadata"]["annotations"]
}

pub(crate) fn has_owner(outcome: &Outcome) -> bool {
    outcome.object["metadata"].get("ownerReferences").is_some()
}

pub(crate) fn warnings(outcome: &Outcome) -> String {
    outcome.response["warnings"].to_string()
}

// ---- reviews without effect ----

#[test]
fn other_kinds_and_subresources_are_not_pods() {
    let mut review = executor(1).created_by("admin");
    review["request"]["subResource"] = "status".into();
    assert_eq!(answer(&review, &cold(), &none()).decision.reason, Reason::NotAPod);
    let mut review = executor(1).created_by("admin");
    review["request"]["resource"] = json!({"group": "apps", "version": "v1", "resource": "deployments"});
    let outcome = answer(&review, &cold(), &none());
    assert_eq!((outcome.decision.reason, outcome.patch), (Reason::NotAPod, json!([])));
}

#[test]
fn only_creations_are_mutated() {
    let mut review = executor(1).created_by("admin");
    review["request"]["operation"] = "UPDATE".into();
    assert_eq!(answer(&review, &cold(), &volcano()).decision.reason, Reason::NotCreate);
    review["request"]["operation"] = "CREATE".into();
    review["request"]["object"] = Value::Null;
    let body = serde_json::to_vec(&review).unwrap();
    let (snapshot, policies) = (cold(), volcano());
    assert_eq!(admission::answer(&admission::prune(&body), &snapshot, &policies).unwrap().0.reason, Reason::NotCreate);
}

#[test]
fn pod_without_spark_role_is_not_spark() {
    assert_eq!(by_driver(&pod("x"), &cold(), &volcano()).decision.reason, Reason::NotSpark);
    assert_eq!(by_driver(&pod("x").label("spark-role", "exec"), &cold(), &volcano()).decision.reason, Reason::NotSpark);
}

#[test]
fn executor_without_app_selector_gets_warning_and_no_patch() {
    let stray = pod("x").label("spark-role", "executor").label("spark-app-selector", "");
    let outcome = by_driver(&stray, &cold(), &volcano());
    assert_eq!((outcome.decision.reason, &outcome.patch), (Reason::NoAppSelector, &json!([])));
    assert!(warnings(&outcome).contains("spark-app-selector"));
}

// ---- policies ----

#[test]
fn scheduler_type_none_patches_owner_only() {
    let outcome = by_driver(&executor(1), &cold(), &none());
    assert_eq!(outcome.decision.reason, Reason::Owned);
    assert_eq!(
        outcome.patch,
        json!([{"op": "add", "path": "/metadata/ownerReferences",
                "value": [{"apiVersion": "v1", "kind": "Pod", "name": "nb-driver", "uid": DRIVER_UID, "controller": true}]}])
    );
}

#[test]
fn unobserved_namespace_with_namespace_selector_gets_warning_and_no_patch() {
    let mut policy = policy("volcano");
    policy.matches = namespaces_with("env", "prod");
    let outcome = by_driver(&executor(1), &cold(), &only(policy.clone()));
    assert_eq!((outcome.decision.reason, &outcome.patch), (Reason::NamespaceUnknown, &json!([])));
    assert!(warnings(&outcome).contains("namespace default was neither observed nor found"));
    let mut warm = cold();
    observe_namespace(&mut warm, "default", &[("env", "prod")], &[]);
    assert_eq!(by_driver(&executor(1), &warm, &only(policy)).decision.reason, Reason::SchedulingSet);
}

#[test]
fn strict_policy_denies_undecidable_pod_with_remedy() {
    let mut policy = policy("volcano");
    policy.strict = true;
    let outcome = answer(&executor(1).created_by("admin"), &cold(), &only(policy.clone()));
    assert!(!outcome.decision.allowed);
    assert_eq!(outcome.patch, json!([]));
    let status = &outcome.response["status"];
    assert_eq!((&status["code"], &status["reason"]), (&json!(403), &json!("Forbidden")));
    let message = status["message"].as_str().unwrap();
    assert!(message.contains("NoCreator; policy batch is strict"), "{message}");
    assert!(message.contains("spark.kubernetes.driver.pod.name"), "{message}");
    assert!(by_driver(&executor(1), &cold(), &only(policy)).decision.allowed);
}

#[test]
fn skip_annotation_applies_only_if_policy_allows_it() {
    let asks = executor(1).annotation("spark-usher.io/skip", "true");
    let outcome = by_driver(&asks, &cold(), &volcano());
    assert_eq!(outcome.decision.reason, Reason::OverrideNotAllowed);
    assert_eq!(outcome.object["spec"]["schedulerName"], "volcano");
    let mut policy = policy("volcano");
    policy.overrides = [Override::Skip].into();
    let outcome = by_driver(&asks, &cold(), &only(policy.clone()));
    assert_eq!((outcome.decision.reason, outcome.patch), (Reason::Skipped, json!([])));
    let driver = driver().annotation("spark-usher.io/skip", "true");
    assert_eq!(by_driver(&driver, &cold(), &only(policy.clone())).decision.reason, Reason::Skipped);
    let bad = executor(1).annotation("spark-usher.io/skip", "please");
    let outcome = by_driver(&bad, &cold(), &only(policy));
    assert_eq!(outcome.decision.reason, Reason::OverrideInvalid);
    assert!(warnings(&outcome).contains("expected true or false"));
}

#[test]
fn skipped_executor_is_counted_by_evidence_for_its_driver() {
    let policy = Policy { overrides: [Override::Skip].into(), ..policy("volcano") };
    let outcome = by_driver(&executor(1).annotation("spark-usher.io/skip", "true"), &cold(), &only(policy));
    assert_eq!(outcome.decision.driver, Some(("nb-driver".to_owned(), DRIVER_UID.to_owned())));
}

/// An executor as the fallback policy leaves it.
fn fallen_back(scheduler: &str) -> PodBuilder {
    executor(1).spec("schedulerName", scheduler).annotation("spark-usher.io/by", "fallback")
}

#[test]
fn scheduler_of_fallback_is_replaced_as_if_creator_had_set_none() {
    for (kind, expected) in [("volcano", "volcano"), ("yunikorn", "yunikorn"), ("none", "default-scheduler")] {
        let outcome = by_driver(&fallen_back("volcano"), &cold(), &only(policy(kind)));
        let plain = by_driver(&executor(1), &cold(), &only(policy(kind)));
        assert_eq!(outcome.object["spec"]["schedulerName"], expected, "{kind}");
        assert_eq!(outcome.decision.reason, plain.decision.reason, "{kind}");
        let by = |outcome: &Outcome| outcome.object["metadata"]["annotations"].get("spark-usher.io/by").cloned();
        assert_eq!(by(&outcome), by(&plain), "{kind}");
    }
}

#[test]
fn annotation_of_fallback_is_removed_where_no_scheduler_is_set() {
    let policy = Policy { overrides: [Override::Skip].into(), ..policy("volcano") };
    let skipped = fallen_back("volcano").annotation("spark-usher.io/skip", "true");
    // An executor that another account creates for a driver gets an annotation of its own.
    let foreign = fallen_back("volcano").owned_by("Pod", "nb-driver", DRIVER_UID);
    let snapshot = snapshot_with(&[driver()]);
    for (outcome, reason) in [
        (by_driver(&skipped, &cold(), &only(policy.clone())), Reason::Skipped),
        (answer(&foreign.created_by("admin"), &snapshot, &only(policy)), Reason::ForeignCreator),
    ] {
        assert_eq!(outcome.decision.reason, reason);
        assert_eq!(outcome.object["spec"]["schedulerName"], "default-scheduler", "{reason}");
        assert!(annotations(&outcome).get("spark-usher.io/by").is_none(), "{reason}");
    }
}

#[test]
fn every_executor_is_signed_whether_it_is_scheduled_and_whoever_owns_it() {
    let signature = |pod: &PodBuilder, kind: &str| {
        let outcome = by_driver(pod, &signing(), &only(policy(kind)));
        outcome.object["metadata"]["annotations"].get(usher_core::annotations::SIGNATURE).is_some()
    };
    for kind in ["none", "volcano"] {
        assert!(
            signature(&executor(1), kind) && signature(&executor(1).owned_by("Pod", "nb-driver", DRIVER_UID), kind)
        );
    }
    // Its creator chose another scheduler: the pod has no gang of ours, and the signature proves that we saw it.
    assert!(signature(&executor(1).spec("schedulerName", "mine"), "volcano"));
}

#[test]
fn driver_annotation_overrides_namespace_annotation_and_policy() {
    let mut policy = policy("volcano");
    policy.overrides = [Override::Queue].into();
    policy.queue = Some("shared".into());
    let policies = only(policy);
    let queue = |snapshot: &Snapshot| {
        let outcome = by_driver(&executor(1), snapshot, &policies);
        annotations(&outcome)["scheduling.volcano.sh/queue-name"].as_str().unwrap().to_owned()
    };
    let mut snapshot = cold();
    assert_eq!(queue(&snapshot), "shared");
    observe_namespace(&mut snapshot, "default", &[], &[("spark-usher.io/queue", "team")]);
    assert_eq!(queue(&snapshot), "team");
    observe(&mut snapshot, &driver().annotation("spark-usher.io/queue", "mine"));
    assert_eq!(queue(&snapshot), "mine");
}

// ---- whose executor ----

#[test]
fn creator_must_be_one_allowed_pod_of_same_namespace() {
    let reason = |user_info: Value, policies: &Policies| {
        answer(&review(&executor(1).0, user_info), &cold(), policies).decision.reason
    };
    let driver_user = || by_pod("default", "spark", "nb-driver", DRIVER_UID);
    assert_eq!(reason(driver_user(), &none()), Reason::Owned);
    assert_eq!(reason(json!({"username": "admin"}), &none()), Reason::NoCreator);
    assert_eq!(
        reason(json!({"username": "system:serviceaccount:default:spark"}), &none()),
        Reason::NoCreator,
        "a legacy token"
    );
    assert_eq!(reason(by_pod("other", "spark", "nb-driver", DRIVER_UID), &none()), Reason::CreatorElsewhere);
    assert_eq!(reason(by_pod("default-2", "spark", "nb-driver", DRIVER_UID), &none()), Reason::CreatorElsewhere);
    let mut user = driver_user();
    user["username"] = "system:serviceaccount:default:".into();
    assert_eq!(reason(user, &none()), Reason::CreatorElsewhere);
    let mut user = driver_user();
    user["username"] = "eve".into();
    assert_eq!(reason(user, &none()), Reason::CreatorElsewhere);
    for (key, value) in [
        ("pod-uid", json!([])),
        ("pod-name", json!([])),
        ("pod-uid", json!(["a", "b"])),
        ("pod-name", json!(["a", "b"])),
        ("pod-uid", json!([""])),
        ("pod-name", json!([""])),
        ("pod-name", json!(["Not/A Name"])),
        ("pod-uid", json!(["a b"])),
    ] {
        let mut user = driver_user();
        user["extra"][format!("authentication.kubernetes.io/{key}")] = value.clone();
        assert_eq!(reason(user, &none()), Reason::CreatorAmbiguous, "{key} {value}");
    }
    let never = only_never(policy("none"), &["system:serviceaccount:*:spark"]);
    assert_eq!(reason(driver_user(), &never), Reason::CreatorNever);
}

#[test]
fn creator_known_as_executor_other_driver_or_operator_is_not_the_driver() {
    let by =
        |name: &str, uid: &str, snapshot: &Snapshot| answer(&executor(9).created_by_pod(name, uid), snapshot, &none());
    let mut siblings = signing();
    let first = by_driver(&executor(1), &siblings, &volcano()).object;
    observe(&mut siblings, &PodBuilder(first).stored("e1"));
    let outcome = by("nb-exec-1", "e1", &siblings);
    assert_eq!(outcome.decision.reason, Reason::CreatorIsExecutor);
    assert!(!has_owner(&outcome));
    assert_eq!(by("nb-exec-1", "e2", &siblings).decision.reason, Reason::Owned, "a new pod with the same name");
    let mut other = signing();
    let made = answer(&pod("other").driver_of("spark-other").created_by("airflow"), &other, &none());
    observe(&mut other, &PodBuilder(made.object).stored("o1").phase("Running"));
    assert_eq!(by("other", "o1", &other).decision.reason, Reason::CreatorOfOtherApplication);
    // A creator of both the driver and its executors is a syncer or an operator: its exit does not end the application.
    let mut known = signing();
    let made = answer(&pod("nb-driver").driver_of(APP).created_by_pod("operator", "o1"), &known, &none());
    observe(&mut known, &PodBuilder(made.object).stored(DRIVER_UID).phase("Running"));
    let outcome = by("operator", "o1", &known);
    assert_eq!(outcome.decision.reason, Reason::CreatorNotDriver);
    assert_eq!(outcome.decision.how, Some("app-selector"));
    assert!(!has_owner(&outcome));
    assert_eq!(by("nb-driver", DRIVER_UID, &known).decision.reason, Reason::Owned);
    let claimed = snapshot_with(&[driver()]);
    assert_eq!(by("notebook", "n1", &claimed).decision.reason, Reason::Owned, "any client can label a pod as a driver");
}

#[test]
fn labels_patched_onto_a_driver_take_no_owner_from_its_executors() {
    // As the webhook signed it, and as a pod without labels (a notebook).
    let made = answer(&pod("nb-driver").driver_of(APP).created_by("airflow"), &signing(), &none()).object;
    for before in [PodBuilder(made), pod("nb-driver")] {
        for (key, value) in
            [("spark-role", "executor"), ("spark-app-selector", "spark-other"), ("spark-role", "driver")]
        {
            let mut known = signing();
            let patched = before.clone().label("spark-app-selector", APP).label(key, value);
            observe(&mut known, &patched.stored(DRIVER_UID).phase("Running"));
            let outcome = by_driver(&executor(1), &known, &none());
            assert_eq!(outcome.decision.reason, Reason::Owned, "{key}={value}");
            assert!(has_owner(&outcome));
        }
    }
}

#[test]
fn foreign_creator_joins_no_gang_of_claimed_driver() {
    let known = snapshot_with(&[driver()]);
    let claims = executor(1).owned_by("Pod", "nb-driver", DRIVER_UID);
    let outcome = answer(&claims.created_by("admin"), &known, &volcano());
    assert_eq!(outcome.decision.reason, Reason::ForeignCreator);
    assert_eq!(outcome.object["spec"], claims.0["spec"]);
    // Only a note for the controller, which sees the same labels later.
    assert_eq!(outcome.object["metadata"]["annotations"], json!({"spark-usher.io/driver": "foreign-creator"}));
    // With the label only, it is a separate application.
    let outcome = answer(&executor(1).created_by("admin"), &known, &volcano());
    assert_eq!(outcome.decision.reason, Reason::NoCreator);
    assert!(!has_owner(&outcome));
    let theirs = format!("nb-driver-{APP8}");
    assert_ne!(annotations(&outcome)["scheduling.k8s.io/group-name"], theirs);
    assert_ne!(annotations(&outcome)["scheduling.k8s.io/group-name"], APP8, "nor the gang of another user");
    let outcome = answer(&review(&executor(1).0, by_pod("default", "eve", "eves", "e-1")), &known, &volcano());
    assert_eq!(outcome.object["metadata"]["ownerReferences"][0]["uid"], "e-1");
    assert_eq!(annotations(&outcome)["scheduling.k8s.io/group-name"], format!("eves-{APP8}"));
    let statefulset = claims.created_by("system:serviceaccount:kube-system:statefulset-controller");
    let outcome = answer(&statefulset, &known, &volcano());
    assert_eq!(outcome.decision.reason, Reason::SchedulingSet, "a workload controller is not a foreign creator");
    let syncer = only_never(policy("volcano"), &["admin"]);
    let outcome = answer(&claims.created_by("admin"), &known, &syncer);
    assert_eq!(outcome.decision.reason, Reason::SchedulingSet, "nor is an account that creates pods for others");
}

#[test]
fn executors_of_workload_controller_get_scheduling_fields() {
    let known = snapshot_with(&[driver()]);
    let statefulset = answer(
        &executor(1)
            .owned_by("StatefulSet", "s", "su")
            .created_by("system:serviceaccount:kube-system:statefulset-controller"),
        &known,
        &volcano(),
    );
    assert_eq!(statefulset.decision.reason, Reason::SchedulingSet, "a workload controller is not a foreign creator");
}

#[test]
fn weaker_evidence_sets_driver_annotation_without_owner() {
    let note = |outcome: &Outcome| annotations(outcome)["spark-usher.io/driver"].as_str().map(str::to_owned);
    let legacy = json!({"username": "system:serviceaccount:default:spark"});
    let known = snapshot_with(&[driver().ip("10.0.0.7")]);
    let outcome = answer(&review(&executor(1).0, legacy.clone()), &known, &volcano());
    assert_eq!(note(&outcome), None, "any client can label a pod as a driver");
    let mut made = signing();
    let by_same = answer(&review(&pod("nb-driver").driver_of(APP).0, legacy.clone()), &made, &volcano());
    observe(&mut made, &PodBuilder(by_same.object).stored(DRIVER_UID).phase("Running"));
    let outcome = answer(&review(&executor(1).0, legacy.clone()), &made, &volcano());
    assert_eq!(note(&outcome), Some(format!("app-selector/nb-driver/{DRIVER_UID}")), "created by the same user");
    assert_eq!(outcome.decision.how, Some("app-selector"));
    assert!(!has_owner(&outcome));
    let elsewhere = pod("x-exec-1").executor_of("spark-x", 1).driver_url("10.0.0.7");
    let outcome = answer(&review(&elsewhere.0, legacy.clone()), &known, &volcano());
    assert_eq!(note(&outcome), Some(format!("driver-url/nb-driver/{DRIVER_UID}")));
    let host_network = snapshot_with(&[driver().ip("10.0.0.7").spec("hostNetwork", true)]);
    let outcome = answer(&review(&elsewhere.0, legacy.clone()), &host_network, &volcano());
    assert_eq!(note(&outcome), None, "the address of a node identifies no driver");
    let mut by_service = known;
    let owner = usher_core::snapshot::ServiceOwner { name: "nb-driver".into(), uid: DRIVER_UID.into() };
    let service = Watched::Upserted(PodKey::new("default", "nb-svc"), owner);
    by_service.apply(RelatedChange::Services(service));
    let named = pod("x-exec-1").executor_of("spark-x", 1).driver_url("nb-svc.default.svc");
    let outcome = answer(&review(&named.0, legacy.clone()), &by_service, &volcano());
    assert_eq!(note(&outcome), Some(format!("driver-url/nb-driver/{DRIVER_UID}")));
    let across = pod("x-exec-1").executor_of("spark-x", 1).driver_url("nb-svc.other.svc");
    assert_eq!(note(&answer(&review(&across.0, legacy), &by_service, &volcano())), None, "never across namespaces");
}

#[test]
fn forged_driver_annotation_is_removed() {
    let forged = executor(1).annotation("spark-usher.io/driver", "app-selector/victim/uid");
    let outcome = by_driver(&forged, &cold(), &volcano());
    assert!(annotations(&outcome).get("spark-usher.io/driver").is_none());
}

#[test]
fn existing_owner_references_stay() {
    let owned = executor(1).owned_by("Pod", "nb-driver", DRIVER_UID);
    let outcome = answer(&owned.created_by("admin"), &cold(), &volcano());
    assert_eq!(outcome.decision.reason, Reason::SchedulingSet);
    assert_eq!(outcome.decision.how, Some("owner-reference"));
    assert_eq!(outcome.object["metadata"]["ownerReferences"], owned.0["metadata"]["ownerReferences"]);
    let listed = {
        let mut pod = executor(1);
        pod.0["metadata"]["ownerReferences"] =
            json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": "cu"}]);
        by_driver(&pod, &cold(), &volcano())
    };
    assert_eq!(listed.object["metadata"]["ownerReferences"].as_array().unwrap().len(), 2, "other owners stay");
}

#[test]
fn group_name_is_independent_of_snapshot() {
    let warm = snapshot_with(&[driver(), pod("other").driver_of("spark-o").stored("o").phase("Running")]);
    for review in [
        executor(1).created_by_pod("nb-driver", DRIVER_UID),
        executor(1).owned_by("Pod", "nb-driver", DRIVER_UID).created_by("system:serviceaccount:default:spark"),
    ] {
        let name = |snapshot: &Snapshot| {
            let outcome = answer(&review, snapshot, &volcano());
            annotations(&outcome)["scheduling.k8s.io/group-name"].as_str().unwrap().to_owned()
        };
        assert_eq!(name(&cold()), name(&warm));
        assert_eq!(name(&cold()), format!("nb-driver-{APP8}"));
    }
}
