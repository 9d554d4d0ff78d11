//! Properties of the patch, over generated pods. An API server rejects the pod if a patch does not apply, whatever the
//! failurePolicy, so these are the hard invariants of the webhook.

use crate::support::*;
use proptest::prelude::*;
use serde_json::{Map, Value, json};
use usher_core::annotations::Override;
use usher_core::gang::{Membership, TABLE};
use usher_core::policy::{Policies, Replace};
use usher_core::reason::Reason;
use usher_core::snapshot::Snapshot;

/// Keys that need escaping in a JSON Pointer, and the relevant keys.
fn key() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("spark-role".to_owned()),
        Just("spark-app-selector".to_owned()),
        Just("spark-exec-resourceprofile-id".to_owned()),
        Just("scheduling.k8s.io/group-name".to_owned()),
        Just("scheduling.x-k8s.io/pod-group".to_owned()),
        Just("kueue.x-k8s.io/queue-name".to_owned()),
        Just("spark-usher.io/by".to_owned()),
        Just("spark-usher.io/driver".to_owned()),
        Just("spark-usher.io/queue".to_owned()),
        Just("spark-usher.io/min-member".to_owned()),
        "[a-z~/]{1,8}",
        "\\PC{0,12}",
    ]
}

fn value() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("executor".to_owned()),
        Just("driver".to_owned()),
        Just("spark-1".to_owned()),
        Just("true".to_owned()),
        Just("3".to_owned()),
        Just("batch/volcano".to_owned()),
        Just("fallback".to_owned()),
        "\\PC{0,20}",
        "[a-z0-9-]{60,70}",
    ]
}

/// A map, an empty one, null, or a missing one.
fn map() -> impl Strategy<Value = Option<Value>> {
    prop_oneof![
        Just(None),
        Just(Some(Value::Null)),
        Just(Some(json!({}))),
        proptest::collection::btree_map(key(), value(), 0..6).prop_map(|m| Some(json!(m))),
    ]
}

fn owners() -> impl Strategy<Value = Option<Value>> {
    let owner = (
        prop_oneof![Just("Pod"), Just("StatefulSet"), Just("ConfigMap")],
        "[a-z0-9-]{1,20}",
        "[a-f0-9-]{1,36}",
        proptest::option::of(any::<bool>()),
    )
        .prop_map(|(kind, name, uid, controller)| {
            let version = if kind == "Pod" { "v1" } else { "apps/v1" };
            let mut owner = json!({"apiVersion": version, "kind": kind, "name": name, "uid": uid});
            if let Some(controller) = controller {
                owner["controller"] = controller.into();
            }
            owner
        });
    prop_oneof![
        Just(None),
        Just(Some(Value::Null)),
        proptest::collection::vec(owner, 0..3).prop_map(|list| {
            // At most one controller, as the API server ensures.
            let mut seen = false;
            let keep: Vec<Value> =
                list.into_iter().filter(|o| o["controller"] != true || !std::mem::replace(&mut seen, true)).collect();
            Some(json!(keep))
        }),
    ]
}

prop_compose! {
    fn any_pod()(
        name in proptest::option::of("[a-z0-9]([a-z0-9.-]{0,250}[a-z0-9])?"),
        labels in map(), annotations in map(), owners in owners(), spark in any::<bool>(),
        is_driver in any::<bool>(), app in "[a-z0-9-]{1,63}",
        scheduler in proptest::option::of(prop_oneof![Just("default-scheduler"), Just("volcano"), Just("mine"), Just("")]),
        class in proptest::option::of(prop_oneof![Just("batch"), Just("other")]),
        priority in proptest::option::of(prop_oneof![Just(json!(0)), Just(Value::Null), Just(json!(1000))]),
        group in proptest::option::of(prop_oneof![Just(json!({"podGroupName": "g"})), Just(json!({})), Just(Value::Null)]),
        giant in 0u8..50,
    ) -> Value {
        let mut metadata = Map::new();
        metadata.insert("namespace".into(), "default".into());
        for (key, value) in [("name", name.map(Value::from)), ("labels", labels), ("annotations", annotations), ("ownerReferences", owners)] {
            if let Some(value) = value {
                metadata.insert(key.into(), value);
            }
        }
        if spark {
            let role = if is_driver { "driver" } else { "executor" };
            if !metadata.get("labels").is_some_and(Value::is_object) {
                metadata.insert("labels".into(), json!({}));
            }
            metadata["labels"]["spark-role"] = role.into();
            metadata["labels"]["spark-app-selector"] = app.into();
        }
        let mut spec = json!({"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]});
        for (key, value) in [("schedulerName", scheduler.map(Value::from)), ("priorityClassName", class.map(Value::from)),
                             ("priority", priority.clone()), ("preemptionPolicy", priority.map(|_| "Never".into())), ("schedulingGroup", group)] {
            if let Some(value) = value {
                spec[key] = value;
            }
        }
        if giant == 0 {
            spec["padding"] = "a megabyte that does not decide ".repeat(30_000).into();
        }
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": {}})
    }
}

fn any_policies() -> impl Strategy<Value = Policies> {
    (0..TABLE.len(), any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>()).prop_map(
        |(row, always, class, annotations, overrides, other_shape)| {
            let row = TABLE[row];
            let mut policy = policy(row.kind);
            policy.queue = Some("analytics".into());
            policy.scheduler.replace = if always { Replace::Always } else { Replace::Default };
            policy.executor_class = class.then(|| "batch".into());
            policy.driver_class = class.then(|| "high".into());
            policy.gang.membership = if annotations { Membership::Annotations } else { Membership::PodGroup };
            policy.gang.shape = *row.shapes.last().filter(|_| other_shape).unwrap_or(&row.default_shape());
            if overrides {
                policy.overrides = Override::ALL.into();
            }
            only(policy)
        },
    )
}

fn any_requester() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(by_pod("default", "spark", "nb-driver", DRIVER_UID)),
        Just(by_pod("other", "spark", "nb-driver", DRIVER_UID)),
        Just(json!({"username": "admin"})),
        Just(json!({})),
        "[a-z0-9]([a-z0-9.-]{0,250}[a-z0-9])?".prop_map(|name| by_pod("default", "spark", &name, "u-1")),
    ]
}

/// Checks the patched pod: at most one controlling owner, and no change outside the allowed fields.
fn check(before: &Value, after: &Value) {
    let mut untouched = (before.clone(), after.clone());
    for object in [&mut untouched.0, &mut untouched.1] {
        for key in ["labels", "annotations", "ownerReferences"] {
            object["metadata"].as_object_mut().unwrap().remove(key);
        }
        for key in ["schedulerName", "priorityClassName", "priority", "preemptionPolicy", "schedulingGroup"] {
            object["spec"].as_object_mut().unwrap().remove(key);
        }
    }
    assert_eq!(untouched.0, untouched.1, "no other field changes");
    let controllers = |object: &Value| {
        let owners = object["metadata"]["ownerReferences"].as_array().cloned().unwrap_or_default();
        owners.iter().filter(|owner| owner["controller"] == true).count()
    };
    assert!(controllers(after) <= 1.max(controllers(before)));
    let spec = &after["spec"];
    if spec["priorityClassName"] != before["spec"]["priorityClassName"] {
        assert!(spec.get("priority").is_none_or(Value::is_null), "{spec}");
        assert!(spec.get("preemptionPolicy").is_none_or(Value::is_null), "{spec}");
    }
    let entries = |map: &Value| map.as_object().cloned().unwrap_or_default();
    for (key, value) in entries(&after["metadata"]["labels"]) {
        if before["metadata"]["labels"].get(&key) != Some(&value) {
            assert!(usher_spark::text::is_label_value(value.as_str().unwrap()), "{key}: {value}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, max_shrink_iters: 5000, ..ProptestConfig::default() })]

    #[test]
    fn patch_applies_within_allowed_fields_and_is_idempotent(
        object in any_pod(), policies in any_policies(), requester in any_requester(), warm in any::<bool>(),
    ) {
        let snapshot = if warm { snapshot_with(&[driver(), executor(1).stored("e1")]) } else { Snapshot::default() };
        let first_review = review(&object, requester);
        // `answer` applies the patch to the object, and fails if it does not apply.
        let first = answer(&first_review, &snapshot, &policies);
        check(&object, &first.object);
        let mut again = first_review.clone();
        again["request"]["object"] = first.object.clone();
        let second = answer(&again, &snapshot, &policies);
        prop_assert_eq!(second.patch, json!([]));
        // Validation of the result finds no missing field.
        let reasons = validate_review(&again, &snapshot, &policies).decision.reasons;
        prop_assert!(!reasons.contains(&Reason::NotMutated), "{:?}", reasons);
        let is_spark = matches!(object["metadata"]["labels"]["spark-role"].as_str(), Some("driver" | "executor"));
        if !is_spark {
            prop_assert_eq!(first.object, object);
        }
    }

    #[test]
    fn malformed_review_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200), cut in 0usize..4000) {
        let (snapshot, policies) = (Snapshot::default(), only(policy("volcano")));
        let parse_and_validate = |bytes: &[u8]| {
            let pruned = usher_core::admission::prune_for_validation(bytes);
            if let Ok(review) = usher_core::admission::parse(&pruned) {
                let _ = usher_core::admission::validate(&review, &policies, usher_core::admission::ValidationContext { snapshot: &snapshot, own_account: None, settled: true });
            }
        };
        parse_and_validate(&bytes);
        let _ = usher_core::admission::answer(&usher_core::admission::prune(&bytes), &snapshot, &policies);
        let whole = serde_json::to_vec(&executor(1).created_by("admin")).unwrap();
        parse_and_validate(&whole[..cut.min(whole.len())]);
        let _ = usher_core::admission::answer(&usher_core::admission::prune(&whole[..cut.min(whole.len())]), &snapshot, &policies);
    }
}
