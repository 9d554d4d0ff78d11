//! Pods of other clients do not affect an application, whatever their labels and annotations: properties over arbitrary
//! snapshots, and known attacks.

use crate::support::*;
use proptest::prelude::*;
use serde_json::{Value, json};
use usher_core::annotations::Override;
use usher_core::gang::{Membership, Shape, TABLE};
use usher_core::policy::{Pattern, Policies, Policy, Replace, Validate};
use usher_core::reason::Reason;
use usher_core::snapshot::{PodChange, RelatedChange, Snapshot};

/// A policy for this scheduler that enforces, with all settings that a forger may try to change.
fn policies(kind: &str, queue: &str) -> Policies {
    let mut policy = Policy {
        validate: Validate::Enforce,
        queue: Some(queue.into()),
        queues: Some(vec![Pattern::new("team-*")]),
        executor_class: Some("batch".into()),
        ..policy(kind)
    };
    policy.scheduler.replace = Replace::Always;
    if kind == "koordinator" {
        policy.gang.membership = Membership::Annotations;
    }
    if kind == "kueue" {
        policy.gang.shape = Shape::Executors;
    }
    only(policy)
}

/// An executor after the mutating webhook.
fn admitted(id: u32, snapshot: &Snapshot, policies: &Policies) -> PodBuilder {
    PodBuilder(by_driver(&executor(id), snapshot, policies).object).stored(&format!("e{id}"))
}

/// The victim: a driver, labelled or not, and its first executors, of which one runs another resource profile.
fn victim(labelled: bool, executors: u32, policies: &Policies) -> Snapshot {
    let mut snapshot = signing();
    if labelled {
        observe(&mut snapshot, &driver().ip("10.0.0.1").annotation("spark-usher.io/min-member", "3"));
    }
    for id in 1..=executors {
        let pod = admitted(id, &snapshot, policies);
        observe(&mut snapshot, &pod);
    }
    let other = executor(50).label("spark-exec-resourceprofile-id", "3");
    let other = PodBuilder(by_driver(&other, &snapshot, policies).object).stored("e50");
    if executors > 0 {
        observe(&mut snapshot, &other);
    }
    snapshot
}

fn value() -> impl Strategy<Value = String> {
    const FIXED: &[&str] =
        &["vip", "evil-group", "x/volcano", "batch/none", "batch/yunikorn", "fallback", "7", "true", "team-a"];
    prop_oneof![
        proptest::sample::select(FIXED).prop_map(|text: &str| text.to_owned()),
        Just(format!("app-selector/evil/{DRIVER_UID}")),
        Just(format!("nb-driver-{APP8}")),
        "[a-z0-9]{1,9}",
    ]
}

fn key() -> impl Strategy<Value = (&'static str, String)> {
    let annotations = [
        "spark-usher.io/by",
        "spark-usher.io/driver",
        "spark-usher.io/signature",
        "spark-usher.io/queue",
        "spark-usher.io/scheduler",
        "spark-usher.io/min-member",
        "spark-usher.io/skip",
    ];
    let known: Vec<(&str, String)> = TABLE
        .iter()
        .flat_map(|row| row.keys())
        .flat_map(|(_, key)| [("labels", key.to_owned()), ("annotations", key.to_owned())])
        .chain(annotations.map(|key| ("annotations", key.to_owned())))
        .chain(["scheduling.k8s.io/group-name".to_owned()].map(|key| ("annotations", key)))
        .collect();
    proptest::sample::select(known)
}

/// A pod of another client that claims the victim's application, or copies annotations of its pods.
fn forged() -> impl Strategy<Value = PodBuilder> {
    let entries = proptest::collection::vec((key(), value()), 0..6);
    let scheduler = prop_oneof![Just("nowhere"), Just("volcano"), Just("yunikorn"), Just("default-scheduler")];
    let phase = prop_oneof![Just("Pending"), Just("Running"), Just("Succeeded"), Just("Failed")];
    let what = (0u32..4, 0u32..60, any::<[bool; 5]>(), scheduler, phase, entries);
    what.prop_map(|(role, id, [owned, url, profile, other, copies], scheduler, phase, entries)| {
        let name = format!("evil-{role}-{id}");
        let mut pod = pod(&name).label("spark-app-selector", if other { "spark-evil" } else { APP });
        pod = pod.label("spark-role", if role == 0 { "driver" } else { "executor" });
        pod = pod.label("spark-exec-id", &id.to_string()).spec("schedulerName", scheduler);
        pod = pod.spec("priorityClassName", "gold").spec("serviceAccountName", if url { "spark" } else { "evil" });
        if profile {
            pod = pod.label("spark-exec-resourceprofile-id", "0");
        }
        if owned {
            pod = pod.owned_by("Pod", "nb-driver", DRIVER_UID);
        }
        if url {
            pod = pod.driver_url("10.0.0.1").ip("10.0.0.9");
        }
        for ((place, key), value) in entries {
            pod.0["metadata"][place][key] = value.into();
        }
        // A placeholder: the test replaces it by a copied signature.
        if copies {
            pod.0["metadata"]["annotations"]["copies"] = "true".into();
        }
        pod.stored(&format!("evil-{name}")).phase(phase)
    })
}

/// The same pods; those that copy have the signature and the annotation `by` of the victim's executor.
fn with_copies(forged: Vec<PodBuilder>, victim: &Value) -> Vec<PodBuilder> {
    let copy = |mut pod: PodBuilder| {
        if pod.0["metadata"]["annotations"]["copies"] == "true" {
            for key in ["spark-usher.io/signature", "spark-usher.io/by"] {
                pod.0["metadata"]["annotations"][key] = victim["metadata"]["annotations"][key].clone();
            }
        }
        pod
    };
    forged.into_iter().map(copy).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Whatever other pods claim, the victim's next executor gets the same patch as without them, and validation allows it.
    #[test]
    fn foreign_pods_change_neither_patch_nor_validation_of_executor(
        kind in proptest::sample::select(TABLE.iter().map(|row| row.kind).collect::<Vec<_>>()),
        labelled: bool, executors in 0u32..3, reloaded: bool, forged in proptest::collection::vec(forged(), 1..8),
    ) {
        let before = policies(kind, "lq");
        let alone = victim(labelled, executors, &before);
        let copied = admitted(9, &alone, &before).0;
        let mut among = alone.clone();
        for pod in with_copies(forged, &copied) {
            observe(&mut among, &pod);
        }
        let after = if reloaded { policies("volcano", "team-b") } else { before };
        let (baseline, attacked) = (by_driver(&executor(9), &alone, &after), by_driver(&executor(9), &among, &after));
        prop_assert_eq!(&baseline.object, &attacked.object);
        prop_assert_eq!(baseline.decision.reasons, attacked.decision.reasons);
        let stored = PodBuilder(baseline.object).created_by_pod("nb-driver", DRIVER_UID);
        let (baseline, attacked) = (validate_review(&stored, &alone, &after), validate_review(&stored, &among, &after));
        prop_assert_eq!(baseline.decision.allowed, attacked.decision.allowed);
        prop_assert_eq!(baseline.decision.reasons, attacked.decision.reasons);
    }

    /// Whatever an executor's annotations claim, it gets only a scheduler, queue, class and gang that its policy allows.
    #[test]
    fn forged_metadata_does_not_change_scheduling_fields_set_by_webhook(
        kind in proptest::sample::select(TABLE.iter().map(|row| row.kind).collect::<Vec<_>>()),
        entries in proptest::collection::vec((key(), value()), 0..8), executors in 0u32..2,
    ) {
        let policies = policies(kind, "lq");
        let snapshot = victim(true, executors, &policies);
        let mut pod = executor(9);
        // The application may set its gang size: the policy allows it.
        for ((place, key), value) in entries.into_iter().filter(|((_, key), _)| key != "spark-usher.io/min-member") {
            pod.0["metadata"][place][key] = value.into();
        }
        let plain = by_driver(&executor(9), &snapshot, &policies).object;
        let outcome = by_driver(&pod, &snapshot, &policies);
        let (got, sent) = (&outcome.object, &pod.0);
        prop_assert_eq!(&got["spec"]["schedulerName"], &plain["spec"]["schedulerName"]);
        prop_assert_eq!(&got["spec"]["priorityClassName"], &plain["spec"]["priorityClassName"]);
        let by = &got["metadata"]["annotations"]["spark-usher.io/by"];
        prop_assert!(by.is_null() || *by == format!("batch/{kind}"), "{}", by);
        for row in TABLE {
            let group = match row.group_key {
                usher_core::gang::GroupKeyField::Metadata(place, key) => Some((place, key)),
                _ => None,
            };
            for (place, key) in group.into_iter().chain(row.queue_key).chain(row.gang_keys.iter().copied()) {
                let map = if place == usher_core::annotations::MetadataField::Label { "labels" } else { "annotations" };
                let value = |pod: &Value| pod["metadata"][map][key].clone();
                // The policy allows any queue: what another key of the scheduler names is kept too.
                let named = row.own_queue_keys().map(|(place, key)| sent["metadata"][place.as_str()][key].clone());
                let is_named = row.queue_key == Some((place, key)) && named.into_iter().any(|named| named == value(got));
                let is_known = is_named || value(got) == value(&plain) || value(got) == value(sent);
                prop_assert!(is_known, "{} {}", key, got["metadata"]);
            }
        }
    }
}

/// A known attack: one pod changed the scheduling fields of all later executors of the victim.
#[test]
fn forged_first_executor_does_not_change_scheduling_fields_of_later_ones() {
    let policies = policies("volcano", "lq");
    let mut snapshot = victim(false, 1, &policies);
    let forged = executor(0)
        .named("evil")
        .annotation("spark-usher.io/by", "x/volcano")
        .annotation("scheduling.k8s.io/group-name", "evil-group")
        .annotation("scheduling.volcano.sh/queue-name", "vip")
        .spec("schedulerName", "nowhere");
    observe(&mut snapshot, &forged.stored("evil"));
    let outcome = by_driver(&executor(2), &snapshot, &policies);
    assert_eq!(outcome.object["spec"]["schedulerName"], "volcano");
    let annotations = &outcome.object["metadata"]["annotations"];
    assert_eq!(annotations["scheduling.volcano.sh/queue-name"], "lq");
    assert_eq!(annotations["scheduling.k8s.io/group-name"], format!("nb-driver-{APP8}"));
}

#[test]
fn forged_by_annotation_does_not_bypass_replace_always() {
    let policies = policies("volcano", "lq");
    let own = executor(1).annotation("spark-usher.io/by", "x/none").spec("schedulerName", "mine").stored("own");
    let mut snapshot = signing();
    observe(&mut snapshot, &own);
    let next = executor(2).annotation("spark-usher.io/by", "x/none").spec("schedulerName", "mine");
    let outcome = by_driver(&next, &snapshot, &policies);
    assert_eq!(outcome.object["spec"]["schedulerName"], "volcano");
    assert_eq!(outcome.object["metadata"]["annotations"]["spark-usher.io/by"], "batch/volcano");
}

#[test]
fn forged_by_and_signature_are_removed_if_webhook_sets_no_scheduling_fields() {
    let with_annotations = |pod: PodBuilder| {
        pod.annotation("spark-usher.io/by", "batch/volcano").annotation("spark-usher.io/signature", "v1.o.00.00")
    };
    let mut skips = policy("volcano");
    skips.overrides = [Override::Skip].into();
    let mut keeps = policy("volcano");
    keeps.scheduler.replace = Replace::Default;
    let unobserved = Policy { matches: namespaces_with("env", "prod"), ..policy("volcano") };
    for (what, pod, policies) in [
        ("skipped", executor(1).annotation("spark-usher.io/skip", "true"), only(skips)),
        ("another scheduler", executor(1).spec("schedulerName", "mine"), only(keeps)),
        ("no application", executor(1).label("spark-app-selector", ""), only(policy("volcano"))),
        ("a namespace that was not seen", executor(1), only(unobserved)),
        ("owners only", executor(1), only(policy("none"))),
        ("a driver", pod("d").driver_of(APP), only(policy("none"))),
        ("its own gang", executor(1).annotation("scheduling.k8s.io/group-name", "mine"), only(policy("volcano"))),
    ] {
        let outcome = by_driver(&with_annotations(pod), &Snapshot::default(), &policies);
        let annotations = &outcome.object["metadata"]["annotations"];
        assert_eq!(annotations.get("spark-usher.io/by"), None, "{what}");
        assert_eq!(annotations.get("spark-usher.io/signature"), None, "{what}: nothing is signed without a key");
    }
}

#[test]
fn policy_changed_to_none_still_signs_executors_of_running_application() {
    let before = policies("volcano", "lq");
    let mut snapshot = victim(true, 1, &before);
    let after = policies("none", "lq");
    for id in 2..5 {
        let next = admitted(id, &snapshot, &after);
        assert_eq!(next.0["spec"]["schedulerName"], "volcano");
        observe(&mut snapshot, &next);
        let name = format!("nb-exec-{id}");
        assert!(snapshot.executor("default", &name).unwrap().1.is_proven, "{name}");
        // The previous executor is deleted; the application's scheduling fields are still known.
        let deleted = format!("nb-exec-{}", id - 1);
        let uid = snapshot.executor("default", &deleted).unwrap().1.uid.clone();
        snapshot.apply(PodChange::Gone(usher_spark::ids::PodKey::new("default", &deleted), uid));
    }
}

#[test]
fn signature_over_generate_name_does_not_cover_unrelated_name() {
    let policies = policies("volcano", "lq");
    let snapshot = signing();
    let first = admitted(1, &snapshot, &policies);
    let signature = first.0["metadata"]["annotations"]["spark-usher.io/signature"].clone();
    // A copy of all annotations, with the victim's name as generateName.
    let mut copy = first.clone().named("evil");
    copy.0["metadata"]["generateName"] = "nb-exec-1".into();
    copy.0["metadata"]["annotations"]["spark-usher.io/signature"] = signature;
    let observed = observed_with_key(&[first, copy]);
    assert!(observed.executor("default", "nb-exec-1").unwrap().1.is_proven);
    assert!(!observed.executor("default", "evil").unwrap().1.is_proven);
    // A StatefulSet's pods have both name and generateName, which agree.
    let mut set = executor(2).named("set-0");
    set.0["metadata"]["generateName"] = "set-".into();
    let admitted = PodBuilder(by_driver(&set, &snapshot, &policies).object).stored("s0");
    assert!(observed_with_key(&[admitted]).executor("default", "set-0").unwrap().1.is_proven);
}

#[test]
fn reloaded_policy_does_not_change_running_application_for_any_scheduler() {
    for row in TABLE.iter().filter(|row| row.kind != "none") {
        let before = policies(row.kind, "lq");
        let snapshot = victim(true, 1, &before);
        let first = by_driver(&executor(2), &snapshot, &before).object;
        let reloaded = policies(if row.kind == "volcano" { "yunikorn" } else { "volcano" }, "team-b");
        let later = by_driver(&executor(2), &snapshot, &reloaded).object;
        assert_eq!(later["spec"], first["spec"], "{}", row.kind);
        let others = [row.more_queue_keys, row.app_keys, row.gang_keys].into_iter().flatten();
        for (place, key) in row.queue_key.iter().chain(others).copied() {
            let map = if place == usher_core::annotations::MetadataField::Label { "labels" } else { "annotations" };
            assert_eq!(later["metadata"][map][key], first["metadata"][map][key], "{} {key}", row.kind);
        }
    }
}

#[test]
fn signing_key_that_arrives_later_verifies_observed_executors() {
    let policies = policies("volcano", "lq");
    let first = admitted(1, &signing(), &policies);
    let mut late = snapshot_with(&[driver(), first.clone()]);
    assert!(!late.executor("default", "nb-exec-1").unwrap().1.is_proven);
    late.apply(RelatedChange::SigningKey(Some(signing_key())));
    assert!(late.executor("default", "nb-exec-1").unwrap().1.is_proven);
    late.apply(RelatedChange::SigningKey(Some(usher_core::signature::Key::new(&[8; 32]))));
    assert!(!late.executor("default", "nb-exec-1").unwrap().1.is_proven);
    // For another application, the same signature proves nothing.
    let other_app = observed_with_key(&[first.label("spark-app-selector", "spark-other")]);
    assert!(!other_app.executor("default", "nb-exec-1").unwrap().1.is_proven);
}

fn observed_with_key(pods: &[PodBuilder]) -> Snapshot {
    let mut snapshot = signing();
    pods.iter().for_each(|pod| observe(&mut snapshot, pod));
    snapshot
}

#[test]
fn gang_keys_set_by_user_or_earlier_invocation_are_kept() {
    let own: [(&str, PodBuilder); 6] = [
        (
            "kueue",
            executor(1)
                .label("kueue.x-k8s.io/pod-group-name", "mine")
                .annotation("kueue.x-k8s.io/pod-group-total-count", "7"),
        ),
        ("kueue", executor(1).annotation("kueue.x-k8s.io/pod-group-total-count", "7")),
        ("yunikorn", executor(1).annotation("yunikorn.apache.org/task-groups", "[{\"name\":\"mine\"}]")),
        (
            "koordinator",
            executor(1)
                .annotation("gang.scheduling.koordinator.sh/name", "mine")
                .annotation("gang.scheduling.koordinator.sh/min-available", "9"),
        ),
        ("koordinator", executor(1).annotation("gang.scheduling.koordinator.sh/total-number", "9")),
        ("volcano", executor(1).annotation("volcano.sh/task-spec", "mine")),
    ];
    for (kind, pod) in own {
        let policies = policies(kind, "lq");
        let snapshot = {
            let mut snapshot = signing();
            observe(
                &mut snapshot,
                &driver()
                    .annotation("spark-usher.io/min-member", "3")
                    .annotation("spark-usher.io/executor-resources", "{\"cpu\":\"1\"}"),
            );
            snapshot
        };
        let outcome = by_driver(&pod, &snapshot, &policies);
        assert!(outcome.decision.reasons.contains(&Reason::GangKept), "{kind} {:?}", outcome.decision);
        let row = TABLE.iter().find(|row| row.kind == kind).unwrap();
        for (place, key) in row.gang_keys {
            let map = if *place == usher_core::annotations::MetadataField::Label { "labels" } else { "annotations" };
            assert_eq!(outcome.object["metadata"][map].get(key), pod.0["metadata"][map].get(key), "{kind} {key}");
        }
        assert_eq!(outcome.object["metadata"]["annotations"].get("spark-usher.io/by"), None, "{kind}");
        // A reinvocation after another webhook's change does not change spark-usher's own fields.
        let mutated = by_driver(&executor(2), &snapshot, &policies).object;
        let again = by_driver(&PodBuilder(mutated.clone()), &Snapshot::clone(&snapshot), &policies);
        assert_eq!(again.patch, json!([]), "{kind}");
        let mut elsewhere = signing();
        observe(&mut elsewhere, &driver());
        let other_replica = by_driver(&PodBuilder(mutated.clone()), &elsewhere, &policies);
        for (place, key) in row.gang_keys {
            let map = if *place == usher_core::annotations::MetadataField::Label { "labels" } else { "annotations" };
            assert_eq!(
                other_replica.object["metadata"][map].get(key),
                mutated["metadata"][map].get(key),
                "{kind} {key}"
            );
        }
    }
}

/// A group that Volcano names after the owner, on a pod that gets this owner by the same call: before and after, it is not signed.
#[test]
fn group_named_after_the_owner_to_come_changes_no_signature() {
    for shape in [Shape::Pods, Shape::Executors] {
        let mut policy = policy("volcano");
        policy.gang.shape = shape;
        let policies = only(policy);
        let automatic = format!("podgroup-{DRIVER_UID}");
        let forged = executor(1).annotation("scheduling.k8s.io/group-name", &automatic);
        let first = by_driver(&forged, &signing(), &policies);
        assert!(first.object["metadata"]["annotations"]["spark-usher.io/signature"].is_string(), "{}", first.object);
        assert_eq!(by_driver(&PodBuilder(first.object), &signing(), &policies).patch, json!([]), "{shape:?}");
    }
}
