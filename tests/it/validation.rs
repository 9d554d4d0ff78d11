//! Validating admission: final states and changes, for every reason, in every mode.

use crate::support::*;
use serde_json::{Value, json};
use usher_core::policy::{Match, Pattern, Policies, Policy, Validate};
use usher_core::reason::Reason;
use usher_core::snapshot::Snapshot;

pub(crate) fn policies(validate: Validate) -> Policies {
    let policy = Policy {
        validate,
        queue: Some("analytics".into()),
        queues: Some(vec![Pattern::new("team-*")]),
        node_pool: [("pool".to_owned(), "spark".to_owned())].into(),
        ..policy("volcano")
    };
    only(policy).with_trusted_writers(vec![Pattern::new("system:serviceaccount:volcano-system:*")])
}

/// An executor after the mutating webhook: with owner and scheduling fields.
pub(crate) fn mutated(id: u32) -> PodBuilder {
    let outcome = by_driver(&executor(id), &Snapshot::default(), &policies(Validate::Audit));
    PodBuilder(outcome.object)
}

/// The review of a creation by the driver's pod.
pub(crate) fn created(pod: &PodBuilder) -> Value {
    pod.created_by_pod("nb-driver", DRIVER_UID)
}

pub(crate) fn tenant() -> Value {
    by_pod("default", "spark", "nb-driver", DRIVER_UID)
}

pub(crate) fn person() -> Value {
    json!({"username": "eve", "groups": ["developers", "system:authenticated"]})
}

/// The violations.
pub(crate) fn violations(review: &Value, snapshot: &Snapshot) -> Vec<Reason> {
    let mut reasons = validate_review(review, snapshot, &policies(Validate::Audit)).decision.reasons;
    reasons.pop();
    reasons
}

#[test]
fn pods_mutated_by_webhook_are_valid() {
    let outcome = validate_review(&created(&mutated(1)), &Snapshot::default(), &policies(Validate::Enforce));
    assert_eq!((outcome.decision.allowed, outcome.decision.reason), (true, Reason::Valid));
    assert!(outcome.response.get("auditAnnotations").is_none() && outcome.response.get("warnings").is_none());
    let driver = by_driver(&pod("nb-driver").driver_of(APP), &Snapshot::default(), &policies(Validate::Audit)).object;
    assert_eq!(violations(&review(&driver, person()), &Snapshot::default()), []);
}

#[test]
fn every_recorded_review_is_valid_after_mutation() {
    let policies = policies(Validate::Enforce);
    for (name, mut review) in all_recorded() {
        let operation = review["request"]["operation"].as_str().unwrap().to_owned();
        if operation == "CREATE" {
            review["request"]["object"] = answer(&review, &Snapshot::default(), &policies).object;
        }
        let outcome = validate_review(&review, &Snapshot::default(), &policies);
        let expected = match operation.as_str() {
            // The administrator set annotations and labels of spark-usher.
            "UPDATE" if outcome.decision.reason == Reason::TrustedWriter => Reason::TrustedWriter,
            "CREATE" | "UPDATE" if name != "client-mode-driver-pod-named/driver.mutate.create" => Reason::Valid,
            "CREATE" => Reason::NotSpark, // A notebook.
            _ => Reason::NotCreate,
        };
        assert_eq!((outcome.decision.reason, outcome.decision.allowed), (expected, true), "{name}: {outcome:?}");
    }
}

#[test]
fn violation_is_audited_warned_or_denied_by_mode() {
    let bare = created(&executor(1));
    let audit = validate_review(&bare, &Snapshot::default(), &policies(Validate::Audit));
    assert!(audit.decision.allowed && audit.response.get("warnings").is_none());
    let annotations = &audit.response["auditAnnotations"];
    assert_eq!(annotations["reason"], "NotMutated");
    assert_eq!(annotations["violations"], "NotMutated");
    assert_eq!(annotations["policy"], "batch");
    assert!(annotations["message"].as_str().unwrap().contains("the pod lacks schedulerName"), "{annotations}");

    let warn = validate_review(&bare, &Snapshot::default(), &policies(Validate::Warn));
    let warnings = warn.response["warnings"].as_array().unwrap();
    assert!(warn.decision.allowed && warnings.len() == 1);
    assert!(warnings[0].as_str().unwrap().starts_with("spark-usher: the pod lacks"), "{warnings:?}");

    let enforce = validate_review(&bare, &Snapshot::default(), &policies(Validate::Enforce));
    let message = enforce.response["status"]["message"].as_str().unwrap();
    assert_eq!((enforce.decision.allowed, &enforce.response["status"]["code"]), (false, &json!(403)));
    assert!(
        message.starts_with("spark-usher: the pod lacks") && message.ends_with("(NotMutated; policy batch enforces)")
    );
}

#[test]
fn missing_scheduler_owner_or_gang_is_a_violation() {
    let lacks = |pod: &PodBuilder| {
        let outcome = validate_review(&created(pod), &Snapshot::default(), &policies(Validate::Audit));
        assert_eq!(outcome.decision.reason, Reason::NotMutated, "{outcome:?}");
        outcome.response["auditAnnotations"]["message"].as_str().unwrap().to_owned()
    };
    let nothing = lacks(&executor(1));
    for what in ["schedulerName", "the ownerReference to its driver", "its gang"] {
        assert!(nothing.contains(what), "{nothing}");
    }
    // A later webhook reverted it.
    let undone = lacks(&mutated(1).spec("schedulerName", "default-scheduler"));
    assert!(undone.contains("schedulerName") && !undone.contains("owner"), "{undone}");
    let mut orphan = mutated(1);
    orphan.0["metadata"].as_object_mut().unwrap().remove("ownerReferences");
    assert!(lacks(&orphan).contains("owner"));
    // A field that the webhook could not decide is not missing.
    let by_hand = answer(&executor(1).created_by("eve"), &Snapshot::default(), &policies(Validate::Audit)).object;
    assert_eq!(violations(&review(&by_hand, person()), &Snapshot::default()), []);
    assert_eq!(violations(&created(&executor(1).label("spark-role", "other")), &Snapshot::default()), []);
}

#[test]
fn owner_that_is_not_creator_is_a_violation() {
    let claims = mutated(1).owned_by("Pod", "other-driver", "11111111-2222-3333-4444-555555555555");
    assert_eq!(violations(&created(&claims), &Snapshot::default()), [Reason::OwnerNotCreator]);
    let same_name = mutated(1).owned_by("Pod", "nb-driver", "11111111-2222-3333-4444-555555555555");
    assert_eq!(violations(&created(&same_name), &Snapshot::default()), [Reason::OwnerNotCreator]);
    let template = mutated(1).owned_by("StatefulSet", "set", "11111111-2222-3333-4444-555555555555");
    assert_eq!(violations(&created(&template), &Snapshot::default()), [], "a workload controller is not a driver");
    // Without a pod's token, nothing contradicts the claim.
    assert_eq!(violations(&review(&claims.0, person()), &Snapshot::default()), []);
    let never = only_never(policy("none"), &["system:serviceaccount:default:spark"]);
    let outcome = validate_review(&created(&executor(1).owned_by("Pod", "x", "1-1")), &Snapshot::default(), &never);
    assert_eq!(outcome.decision.reason, Reason::Valid, "accounts in creators.never create pods for others");
}

#[test]
fn foreign_creator_of_known_drivers_executor_is_a_violation() {
    let snapshot = snapshot_with(&[driver()]);
    let claims = mutated(1).owned_by("Pod", "nb-driver", DRIVER_UID);
    assert_eq!(violations(&review(&claims.0, person()), &snapshot), [Reason::ForeignCreator]);
    assert_eq!(violations(&created(&mutated(1)), &snapshot), []);
}

#[test]
fn only_trusted_accounts_may_change_owners_and_scheduling_fields() {
    let old = mutated(1).stored("e-1");
    let mut stripped = old.clone();
    stripped.0["metadata"].as_object_mut().unwrap().remove("ownerReferences");
    let taken = old.clone().owned_by("Pod", "other", "9-9");
    let regrouped = old.clone().annotation("scheduling.k8s.io/group-name", "theirs");
    let unmarked = old.clone().annotation("spark-usher.io/by", "batch/none");
    let noted = old.clone().annotation("spark-usher.io/driver", "app-selector/x/1-1");
    let renamed = old.clone().label("spark-app-selector", "spark-other");
    let hidden = old.clone().without_label("spark-role");
    let gated = old.clone().spec("schedulingGroup", json!({"podGroupName": "theirs"}));
    let cases = [
        (&stripped, Reason::OwnerChanged),
        (&taken, Reason::OwnerChanged),
        (&regrouped, Reason::SchedulingChanged),
        (&unmarked, Reason::SchedulingChanged),
        (&noted, Reason::SchedulingChanged),
        (&gated, Reason::SchedulingChanged),
        (&renamed, Reason::ApplicationChanged),
        (&hidden, Reason::ApplicationChanged),
    ];
    for (new, reason) in cases {
        for who in [tenant(), person()] {
            assert_eq!(violations(&update(&old, new, who), &Snapshot::default()), [reason]);
        }
        for who in [
            "system:serviceaccount:kube-system:generic-garbage-collector",
            "system:kube-controller-manager",
            "system:kube-scheduler",
            "system:serviceaccount:volcano-system:volcano-controllers",
            OWN,
        ] {
            let who = json!({"username": who, "groups": ["system:authenticated"]});
            assert_eq!(violations(&update(&old, new, who), &Snapshot::default()), [], "{reason}");
        }
        let master = json!({"username": "root", "groups": ["system:masters", "system:authenticated"]});
        assert_eq!(violations(&update(&old, new, master), &Snapshot::default()), []);
    }
    let outcome =
        validate_review(&update(&old, &regrouped, person()), &Snapshot::default(), &policies(Validate::Enforce));
    let message = outcome.response["status"]["message"].as_str().unwrap();
    assert!(message.contains("eve changed scheduling.k8s.io/group-name"), "{message}");
    assert!(message.contains("trustedWriters"), "the message contains the fix: {message}");
}

#[test]
fn default_accounts_of_each_scheduler_are_trusted() {
    let old = mutated(1).stored("e-1");
    let new = old.clone().annotation("scheduling.k8s.io/group-name", "theirs");
    for (kind, account) in [
        ("volcano", "system:serviceaccount:volcano-system:volcano-controllers"),
        ("coscheduling", "system:serviceaccount:scheduler-plugins:scheduler-plugins-controller"),
        ("koordinator", "system:serviceaccount:koordinator-system:koord-manager"),
        ("yunikorn", "system:serviceaccount:yunikorn:yunikorn-admin"),
        ("kueue", "system:serviceaccount:kueue-system:kueue-controller-manager"),
        ("kai", "system:serviceaccount:kai-scheduler:binder"),
    ] {
        let queue = if kind == "kueue" { ", queue: lq" } else { "" };
        let text = format!("policies: [{{name: a, validate: Enforce, scheduler: {{type: {kind}}}{queue}}}]");
        let policies = usher_config::from_text(&policy_file(&text)).unwrap().policies;
        let changed_by = |username: &str| {
            let review = update(&old, &new, json!({"username": username, "groups": ["system:authenticated"]}));
            validate_review(&review, &Snapshot::default(), &policies).decision.allowed
        };
        assert!(changed_by(account), "{kind}");
        assert!(!changed_by("system:serviceaccount:default:spark"), "{kind}");
    }
}

#[test]
fn every_key_from_which_a_scheduler_reads_the_queue_is_validated() {
    for (kind, keys) in [
        ("volcano", &["annotations/scheduling.volcano.sh/queue-name"][..]),
        ("kueue", &["labels/kueue.x-k8s.io/queue-name", "annotations/kueue.x-k8s.io/queue-name"]),
        ("kai", &["labels/kai.scheduler/queue", "labels/runai/queue"]),
        ("yunikorn", &["labels/yunikorn.apache.org/queue", "annotations/yunikorn.apache.org/queue", "labels/queue"]),
    ] {
        let queues = Some(vec![Pattern::new("team-*")]);
        let policies = only(Policy { queues, queue: Some("team-a".into()), ..policy(kind) });
        for key in keys {
            let (place, key) = key.split_once('/').unwrap();
            let with = |queue: &str| {
                let mut pod = by_driver(&executor(1), &Snapshot::default(), &policies).object;
                pod["metadata"][place][key] = queue.into();
                let review = PodBuilder(pod).created_by_pod("nb-driver", DRIVER_UID);
                validate_review(&review, &Snapshot::default(), &policies).decision.reasons
            };
            assert!(with("other").contains(&Reason::QueueNotAllowed), "{kind} {key}");
            assert!(!with("team-b").contains(&Reason::QueueNotAllowed), "{kind} {key}");
        }
    }
}

#[test]
fn person_may_not_create_executor_for_driver_of_another_application() {
    let snapshot = snapshot_with(&[driver()]);
    let of = |app: &str, uid: &str| {
        let pod = mutated(1).label("spark-app-selector", app).owned_by("Pod", "nb-driver", uid);
        violations(&review(&pod.0, person()), &snapshot).contains(&Reason::OwnerNotCreator)
    };
    assert!(of("spark-other", DRIVER_UID));
    assert!(!of(APP, DRIVER_UID));
    assert!(!of("spark-other", "0-0"), "a driver that is not observed proves nothing");
}

#[test]
fn node_affinity_that_is_too_long_is_too_large_and_malformed_one_is_not() {
    let with = |nodes: Value| {
        let pod = executor(1).spec("schedulerName", "other").spec("affinity", json!({"nodeAffinity": nodes}));
        violations(&created(&pod), &Snapshot::default())
    };
    let terms = |count: usize| {
        let terms: Vec<Value> = (0..count).map(|_| json!({})).collect();
        json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}})
    };
    assert!(!with(terms(1024)).contains(&Reason::TooLarge));
    assert!(with(terms(1025)).contains(&Reason::TooLarge));
    // An API server refuses it.
    assert!(!with(json!(7)).contains(&Reason::TooLarge));
}

#[test]
fn running_application_keeps_queue_removed_from_policy() {
    let old = Policy { queue: Some("analytics".into()), queues: Some(vec![]), ..policy("volcano") };
    let new = Policy { queue: Some("other".into()), validate: Validate::Enforce, ..old.clone() };
    let mut snapshot = signing();
    let first = by_driver(&executor(1), &snapshot, &only(old));
    observe(&mut snapshot, &PodBuilder(first.object).stored("e1"));
    let next = by_driver(&executor(2), &snapshot, &only(new.clone())).object;
    assert_eq!(next["metadata"]["annotations"]["scheduling.volcano.sh/queue-name"], "analytics");
    let outcome = validate_review(&created(&PodBuilder(next.clone())), &snapshot, &only(new.clone()));
    assert_eq!(outcome.decision.reason, Reason::Valid, "{:?}", outcome.response);
    // Another application of the same account does not keep it.
    let other = PodBuilder(next).label("spark-app-selector", "spark-other");
    assert!(!validate_review(&created(&other), &snapshot, &only(new)).decision.allowed);
}

#[test]
fn replica_without_namespace_accepts_mutated_pod() {
    let selects = Policy { validate: Validate::Enforce, matches: namespaces_with("env", "prod"), ..policy("volcano") };
    let mut ahead = signing();
    observe_namespace(&mut ahead, "default", &[("env", "prod")], &[]);
    let placed = PodBuilder(by_driver(&executor(1), &ahead, &only(selects.clone())).object);
    assert!(validate_review(&created(&placed), &ahead, &only(selects.clone())).decision.allowed);
    assert!(
        validate_review(&created(&placed), &signing(), &only(selects)).decision.allowed,
        "its snapshot does not contain the namespace"
    );
}

#[test]
fn driver_named_after_mutation_is_valid() {
    let mut app = Policy { validate: Validate::Enforce, ..policy("volcano") };
    app.gang.shape = usher_core::gang::Shape::App;
    let mut unnamed = pod("").driver_of(APP);
    unnamed.0["metadata"]["generateName"] = "job-".into();
    unnamed.0["metadata"].as_object_mut().unwrap().remove("name");
    for snapshot in [signing(), Snapshot::default()] {
        let made = answer(&unnamed.created_by("job"), &snapshot, &only(app.clone())).object;
        assert!(made["metadata"]["annotations"]["scheduling.k8s.io/group-name"].is_string());
        // The API server sets the name between the two webhooks.
        let named = PodBuilder(made).named("job-x7k2p");
        let outcome = validate_review(&named.created_by("job"), &snapshot, &only(app.clone()));
        assert!(outcome.decision.allowed, "{:?}", outcome.response);
    }
}

#[test]
fn forged_annotation_is_a_violation_only_with_signing_key() {
    let marked = executor(1).annotation("spark-usher.io/by", "x/volcano");
    let policies = only(Policy { validate: Validate::Enforce, ..policy("none") });
    let owned =
        PodBuilder(by_driver(&marked, &signing(), &policies).object).annotation("spark-usher.io/by", "x/volcano");
    assert_eq!(validate_review(&created(&owned), &signing(), &policies).decision.reason, Reason::NotMutated);
    assert!(
        validate_review(&created(&owned), &Snapshot::default(), &policies).decision.allowed,
        "it cannot be decided without the key"
    );
}

#[test]
fn change_through_status_subresource_is_validated() {
    let old = mutated(1);
    let new = old.clone().annotation("scheduling.k8s.io/group-name", "mine");
    let mut review = update(&old, &new, person());
    review["request"]["subResource"] = "status".into();
    assert_eq!(violations(&review, &Snapshot::default()), [Reason::SchedulingChanged]);
    let unchanged = {
        let mut review = update(&old, &old.clone().phase("Running"), person());
        review["request"]["subResource"] = "status".into();
        review
    };
    assert_eq!(violations(&unchanged, &Snapshot::default()), []);
    review["request"]["subResource"] = "binding".into();
    assert_eq!(
        validate_review(&review, &Snapshot::default(), &policies(Validate::Enforce)).decision.reason,
        Reason::NotAPod
    );
}

#[test]
fn update_is_validated_for_changed_fields_only() {
    // Not mutated at creation: its missing fields do not affect a later change of its labels.
    let old = executor(1).stored("e-1");
    assert_eq!(
        violations(&update(&old, &old.clone().label("spark-exec-inactive", "true"), tenant()), &Snapshot::default()),
        []
    );
    let old = mutated(1).stored("e-1");
    assert_eq!(violations(&update(&old, &old.clone().annotation("note", "x"), tenant()), &Snapshot::default()), []);
    // The order of owners is irrelevant.
    let owner = |uid: &str| json!({"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": uid});
    let (mut one, mut two) = (old.clone(), old);
    one.0["metadata"]["ownerReferences"] = json!([owner("1"), owner("2")]);
    two.0["metadata"]["ownerReferences"] = json!([owner("2"), owner("1")]);
    assert_eq!(violations(&update(&one, &two, tenant()), &Snapshot::default()), []);
    let mut deletion = created(&mutated(1));
    deletion["request"]["operation"] = "DELETE".into();
    assert_eq!(
        validate_review(&deletion, &Snapshot::default(), &policies(Validate::Enforce)).decision.reason,
        Reason::NotCreate
    );
}

/// Where the mutating webhook was skipped, a strict policy is no milder than another one.
#[test]
fn pod_that_a_strict_policy_denies_is_a_violation() {
    let strict = Policy { strict: true, validate: Validate::Enforce, ..policy("volcano") };
    let milder = Policy { strict: false, ..strict.clone() };
    let found = |pod: &PodBuilder, by: Value, policy: &Policy| {
        validate_review(&review(&pod.0, by), &Snapshot::default(), &only(policy.clone())).decision
    };
    for policy in [&strict, &milder] {
        let decision = found(&executor(1), person(), policy);
        assert!(!decision.allowed && decision.reasons.contains(&Reason::NotMutated), "{decision:?}");
    }
    // A pod that has everything else.
    let complete =
        PodBuilder(answer(&review(&executor(1).0, person()), &Snapshot::default(), &only(milder.clone())).object);
    assert!(found(&complete, person(), &milder).allowed);
    let denied = found(&complete, person(), &strict);
    assert!(!denied.allowed && denied.reasons.contains(&Reason::NotMutated), "{denied:?}");
    // In a namespace whose labels are not known, too.
    let unknown = Policy { matches: namespaces_with("env", "prod"), ..strict };
    let denied = found(&complete, person(), &unknown);
    assert!(!denied.allowed && denied.reasons.contains(&Reason::NotMutated), "{denied:?}");
}

/// The time of a match is a product of the lengths.
#[test]
fn queue_that_is_no_name_is_not_matched() {
    let in_queue = |queue: &str| mutated(1).annotation("scheduling.volcano.sh/queue-name", queue);
    let long = "team-".to_owned() + &"a".repeat(5000);
    assert_eq!(violations(&created(&in_queue(&long)), &Snapshot::default()), [Reason::QueueNotAllowed]);
    assert_eq!(violations(&created(&in_queue(&long[..4000])), &Snapshot::default()), []);
}

#[test]
fn disallowed_queue_is_a_violation() {
    let in_queue = |queue: &str| mutated(1).annotation("scheduling.volcano.sh/queue-name", queue);
    assert_eq!(violations(&created(&in_queue("team-a")), &Snapshot::default()), []);
    assert_eq!(violations(&created(&in_queue("analytics")), &Snapshot::default()), [], "the policy's own queue");
    assert_eq!(violations(&created(&in_queue("gold")), &Snapshot::default()), [Reason::QueueNotAllowed]);
    // A pod that bypasses its policy's scheduler for another one with queues.
    let kueue = mutated(1).label("kueue.x-k8s.io/queue-name", "gold");
    assert_eq!(violations(&created(&kueue), &Snapshot::default()), [Reason::QueueNotAllowed]);
    let yunikorn = only(Policy {
        queues: Some(vec![Pattern::new("root.a")]),
        queue: Some("root.a".into()),
        scheduler: usher_core::policy::SchedulerChoice {
            name: Some("yk-2".into()),
            ..usher_core::policy::SchedulerChoice::of(usher_core::gang::GangScheduler::of_kind("yunikorn").unwrap())
        },
        ..policy("yunikorn")
    });
    // For all keys that the scheduler reads, and with any scheduler name.
    for pod in
        [executor(1).label("queue", "root.gold"), executor(1).annotation("yunikorn.apache.org/queue", "root.gold")]
    {
        let pod = pod.spec("schedulerName", "yk-2");
        let reasons = validate_review(&review(&pod.0, person()), &Snapshot::default(), &yunikorn).decision.reasons;
        assert!(reasons.contains(&Reason::QueueNotAllowed), "{reasons:?}");
    }
    let unread_label = mutated(1).label("queue", "gold");
    assert_eq!(
        violations(&created(&unread_label), &Snapshot::default()),
        [],
        "a label that its scheduler does not read"
    );
    let (old, new) = (in_queue("team-a").stored("e-1"), in_queue("gold").stored("e-1"));
    assert_eq!(
        violations(&update(&old, &new, tenant()), &Snapshot::default()),
        [Reason::SchedulingChanged, Reason::QueueNotAllowed]
    );
    let unchanged = new.clone().annotation("note", "x");
    assert_eq!(violations(&update(&new, &unchanged, tenant()), &Snapshot::default()), [], "the queue is unchanged");
    let open = only(Policy { queues: None, ..policy("volcano") });
    assert_eq!(
        validate_review(&created(&in_queue("gold")), &Snapshot::default(), &open).decision.reason,
        Reason::Valid
    );
}

#[test]
fn changed_policy_label_does_not_bypass_enforcement() {
    let strict = Policy {
        validate: Validate::Enforce,
        matches: usher_core::policy::Match {
            pod_selector: Some([("team".to_owned(), "a".to_owned())].into_iter().collect()),
            ..usher_core::policy::Match::everything()
        },
        ..policy("volcano")
    };
    let policies = only(strict);
    let old = executor(1).label("team", "a").stored("e-1");
    let taken = |pod: &PodBuilder| pod.clone().owned_by("Pod", "other", "9-9");
    for (old, new) in [
        (old.clone(), taken(&old).label("team", "b")),
        (old.clone().label("team", "b"), taken(&old)),
        (old.clone(), taken(&old)),
    ] {
        assert!(!validate_review(&update(&old, &new, tenant()), &Snapshot::default(), &policies).decision.allowed);
    }
}

#[test]
fn trusted_writer_is_audited_and_may_create_for_others() {
    let old = mutated(1).stored("e-1");
    let moved = old.clone().annotation("scheduling.k8s.io/group-name", "theirs");
    let who = json!({"username": "carol", "groups": ["kubeadm:cluster-admins", "system:authenticated"]});
    let trusting = only(Policy { validate: Validate::Enforce, ..policy("volcano") })
        .with_trusted_writers(vec![Pattern::new("kubeadm:cluster-admins"), Pattern::new("oidc:*")]);
    let outcome = validate_review(&update(&old, &moved, who), &Snapshot::default(), &trusting);
    assert_eq!((outcome.decision.allowed, outcome.decision.reason), (true, Reason::TrustedWriter));
    assert_eq!(outcome.response["auditAnnotations"]["reason"], "TrustedWriter");
    // A driver with its own credentials.
    let by_alice = review(&mutated(2).0, json!({"username": "oidc:alice", "groups": ["system:authenticated"]}));
    assert!(validate_review(&by_alice, &snapshot_with(&[driver()]), &trusting).decision.allowed);
    let by_bob = review(&mutated(2).0, json!({"username": "bob", "groups": ["system:authenticated"]}));
    assert_eq!(
        validate_review(&by_bob, &snapshot_with(&[driver()]), &trusting).decision.reason,
        Reason::ForeignCreator
    );
}

#[test]
fn driver_label_does_not_contradict_authenticated_creator() {
    // A client has labelled a pod as the driver of an application that is not its own.
    let squatter = pod("squatter").driver_of(APP).stored("55555555-0000-0000-0000-000000000001").phase("Running");
    let snapshot = snapshot_with(&[squatter.spec("serviceAccountName", "default")]);
    let owned = executor(1).owned_by("Pod", "nb-driver", DRIVER_UID);
    let not_mutated = [Reason::NotMutated];
    assert_eq!(violations(&created(&owned), &snapshot), not_mutated, "its authenticated creator is its owner");
    assert_eq!(violations(&created(&executor(1)), &snapshot), not_mutated, "its creator drives no other application");
    assert_eq!(violations(&created(&mutated(1)), &snapshot), []);
    // A configured application id: the executors have another selector than the driver.
    let other = executor(1).executor_of("spark-mine", 1).owned_by("Pod", "nb-driver", DRIVER_UID);
    let reasons = violations(&created(&other), &snapshot_with(&[driver()]));
    assert!(!reasons.contains(&Reason::OwnerNotCreator), "{reasons:?}");
}

#[test]
fn unsettled_policies_warn_instead_of_denying() {
    let policies = policies(Validate::Enforce);
    let body = serde_json::to_vec(&created(&executor(1))).unwrap();
    let pruned = usher_core::admission::prune_for_validation(&body);
    let review = usher_core::admission::parse(&pruned).unwrap();
    let snapshot = Snapshot::default();
    let context =
        |settled| usher_core::admission::ValidationContext { snapshot: &snapshot, own_account: None, settled };
    let new = usher_core::admission::validate(&review, &policies, context(false));
    assert!(new.is_allowed() && new.warnings().count() == 1, "{new:?}");
    assert!(!usher_core::admission::validate(&review, &policies, context(true)).is_allowed());
}

#[test]
fn messages_truncate_values_and_omit_control_characters() {
    let long_queue =
        mutated(1).annotation("scheduling.volcano.sh/queue-name", &format!("\u{1b}[2J\n{}", "q".repeat(250_000)));
    let outcome = validate_review(&created(&long_queue), &Snapshot::default(), &policies(Validate::Enforce));
    for text in [&outcome.response["status"]["message"], &outcome.response["auditAnnotations"]["message"]] {
        let text = text.as_str().unwrap();
        assert!(text.len() < 1200 && !text.contains(|c: char| c.is_control()), "{text:?}");
    }
}

/// Which policy applies is not known: its own queue does not make a pod evade the other's.
#[test]
fn queue_in_unobserved_namespace_must_be_allowed_by_each_policy_that_may_match() {
    let of = |team: &str| Policy {
        name: team.into(),
        validate: Validate::Enforce,
        matches: namespaces_with("team", team),
        queues: Some(vec![Pattern::new(team), Pattern::new("shared")]),
        ..policy("volcano")
    };
    let policies = Policies::new(vec![of("a"), of("b")], vec![]);
    for (queue, allowed) in [("a", false), ("b", false), ("shared", true)] {
        let pod = mutated(1).annotation("scheduling.volcano.sh/queue-name", queue);
        let decision = validate_review(&created(&pod), &Snapshot::default(), &policies).decision;
        assert_eq!(!decision.reasons.contains(&Reason::QueueNotAllowed), allowed, "{queue}: {decision:?}");
    }
}

/// A namespace that is created a moment before its pods does not evade the policy.
#[test]
fn strictest_policy_that_may_match_decides_in_unobserved_namespace() {
    let prod = Policy {
        validate: Validate::Enforce,
        strict: true,
        matches: namespaces_with("env", "prod"),
        queues: Some(vec![]),
        ..policy("volcano")
    };
    let mild = Policy { name: "mild".into(), matches: namespaces_with("env", "dev"), ..policy("volcano") };
    let vip = mutated(1).annotation("scheduling.volcano.sh/queue-name", "vip");
    // In either order: the first that may match is not the one that decides.
    for list in [vec![prod.clone(), mild.clone()], vec![mild, prod]] {
        let policies = Policies::new(list, vec![]);
        let unknown = validate_review(&created(&vip), &Snapshot::default(), &policies).decision;
        assert!(!unknown.allowed && unknown.reasons.contains(&Reason::QueueNotAllowed), "{unknown:?}");
        let mutation = answer(&created(&vip), &Snapshot::default(), &policies).decision;
        assert!(!mutation.allowed && mutation.reasons.contains(&Reason::NamespaceUnknown), "{mutation:?}");
        for (env, allowed) in [("prod", false), ("dev", true)] {
            let mut snapshot = Snapshot::default();
            observe_namespace(&mut snapshot, "default", &[("env", env)], &[]);
            assert_eq!(validate_review(&created(&vip), &snapshot, &policies).decision.allowed, allowed, "{env}");
        }
    }
}

#[test]
fn strictest_policy_before_or_after_an_update_decides() {
    let tier = Some([("tier".to_owned(), "gold".to_owned())].into_iter().collect());
    let gold = Policy {
        validate: Validate::Enforce,
        matches: Match { pod_selector: tier, ..namespaces_with("env", "prod") },
        ..policy("volcano")
    };
    let every = Policy { validate: Validate::Warn, name: "every".into(), ..policy("volcano") };
    let policies = Policies::new(vec![gold, every], vec![]);
    let plain = mutated(1).stored("e1");
    let regrouped = plain.clone().annotation("scheduling.k8s.io/group-name", "other");
    let golden = |pod: &PodBuilder| pod.clone().label("tier", "gold");
    let allowed = |old: &PodBuilder, new: &PodBuilder| {
        let decision = validate_review(&update(old, new, person()), &Snapshot::default(), &policies).decision;
        assert_eq!(decision.reason, Reason::SchedulingChanged);
        decision.allowed
    };
    assert!(allowed(&plain, &regrouped), "a policy without namespace selector is certain");
    for (old, new) in [(plain.clone(), golden(&regrouped)), (golden(&plain), regrouped)] {
        assert!(!allowed(&old, &new));
    }
}
