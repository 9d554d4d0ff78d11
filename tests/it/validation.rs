//! Validating admission: final states and changes, for every reason, in every mode.

use crate::support::*;
use serde_json::{Value, json};
use spark_usher::policy::{Match, Pattern, Policies, Policy, Validate};
use spark_usher::reason::Reason;
use spark_usher::snapshot::Snapshot;

fn policies(validate: Validate) -> Policies {
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
fn mutated(id: u32) -> PodBuilder {
    let outcome = by_driver(&executor(id), &Snapshot::default(), &policies(Validate::Audit));
    PodBuilder(outcome.object)
}

/// The review of a creation by the driver's pod.
fn created(pod: &PodBuilder) -> Value {
    pod.created_by_pod("nb-driver", DRIVER_UID)
}

fn tenant() -> Value {
    by_pod("default", "spark", "nb-driver", DRIVER_UID)
}

fn person() -> Value {
    json!({"username": "eve", "groups": ["developers", "system:authenticated"]})
}

/// The violations.
fn violations(review: &Value, snapshot: &Snapshot) -> Vec<Reason> {
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
        let policies = spark_usher::config::from_text(&policy_file(&text)).unwrap().policies;
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
    app.gang.shape = spark_usher::gang::Shape::App;
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

#[test]
fn pod_of_other_scheduler_on_node_pool_is_a_violation() {
    let elsewhere = |pod: PodBuilder| violations(&review(&pod.0, person()), &Snapshot::default());
    let other = || {
        // With another scheduler, which the policy retains.
        executor(1).spec("schedulerName", "yunikorn")
    };
    assert_eq!(elsewhere(other()), [], "it may run anywhere");
    let on_pool = other().spec("nodeSelector", json!({"pool": "spark", "disk": "ssd"}));
    assert_eq!(elsewhere(on_pool), [Reason::OtherScheduler]);
    assert_eq!(elsewhere(other().spec("nodeSelector", json!({"pool": "web"}))), []);
    let affinity = |terms: Value| {
        other().spec(
            "affinity",
            json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}),
        )
    };
    let term = |values: Value| json!({"matchExpressions": [{"key": "pool", "operator": "In", "values": values}]});
    assert_eq!(elsewhere(affinity(json!([term(json!(["spark"]))]))), [Reason::OtherScheduler]);
    assert_eq!(elsewhere(affinity(json!([term(json!(["web", "spark"]))]))), [Reason::OtherScheduler], "among others");
    let exists = json!([{"matchExpressions": [{"key": "pool", "operator": "Exists"}]}]);
    assert_eq!(elsewhere(affinity(exists)), [Reason::OtherScheduler]);
    assert_eq!(elsewhere(affinity(json!([term(json!(["web"])), term(json!(["spark"]))]))), [Reason::OtherScheduler]);
    assert_eq!(elsewhere(affinity(json!([term(json!(["web"]))]))), []);
    // A pod with a scheduling gate may still get another node selector.
    let (old, new) = (other().stored("e-1"), other().stored("e-1").spec("nodeSelector", json!({"pool": "spark"})));
    assert_eq!(violations(&update(&old, &new, tenant()), &Snapshot::default()), [Reason::OtherScheduler]);
    assert_eq!(
        violations(&update(&new, &new.clone().label("a", "b"), tenant()), &Snapshot::default()),
        [],
        "the node selector is unchanged"
    );
    let on_own_pool = mutated(1).spec("nodeSelector", json!({"pool": "spark"}));
    assert_eq!(violations(&created(&on_own_pool), &Snapshot::default()), []);
    let message = validate_review(
        &review(&other().spec("nodeSelector", json!({"pool": "spark"})).0, person()),
        &Snapshot::default(),
        &policies(Validate::Warn),
    );
    let message = message.response["warnings"][0].as_str().unwrap().to_owned();
    assert!(message.contains("pool=spark") && message.contains("volcano") && message.contains("yunikorn"), "{message}");
    assert!(message.chars().count() <= 256);
}

/// Nodes s-0 to s-2 of the pool, which also have accelerators, w-0 and w-1 without them.
fn with_nodes() -> Snapshot {
    let node = |name: String, pool: &str| {
        let labels = vec![("pool", pool.to_owned()), ("kubernetes.io/hostname", format!("host-{name}"))];
        (name, labels)
    };
    let mut nodes: Vec<_> = (0..3).map(|n| node(format!("s-{n}"), "spark")).collect();
    nodes.iter_mut().for_each(|(_, labels)| labels.push(("gpu", "1".to_owned())));
    nodes.extend((0..2).map(|n| node(format!("w-{n}"), "web")));
    let mut snapshot = Snapshot::default();
    list_nodes(&mut snapshot, &nodes);
    snapshot
}

#[test]
fn pod_that_can_only_run_on_a_node_pool_is_a_violation_however_it_says_so() {
    let snapshot = with_nodes();
    let found = |pod: PodBuilder| violations(&review(&pod.0, person()), &snapshot);
    let other = || executor(1).spec("schedulerName", "yunikorn");
    let requires = |terms: Value| {
        other().spec(
            "affinity",
            json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}),
        )
    };
    let expression = |key: &str, operator: &str, values: &[&str]| json!([{"matchExpressions": [{"key": key, "operator": operator, "values": values}]}]);
    let field = |operator: &str, name: &str| json!([{"matchFields": [{"key": "metadata.name", "operator": operator, "values": [name]}]}]);
    for pod in [
        requires(expression("pool", "NotIn", &["web"])),
        requires(expression("gpu", "Exists", &[])),
        requires(expression("gpu", "Gt", &["0"])),
        requires(expression("kubernetes.io/hostname", "In", &["host-s-0", "host-s-1"])),
        requires(field("In", "s-2")),
        other().spec("nodeName", "s-0"),
        other().spec("nodeSelector", json!({"kubernetes.io/hostname": "host-s-1"})),
        other().spec("nodeSelector", json!({"gpu": "1"})),
        requires(json!([field("In", "s-2")[0], expression("gpu", "Exists", &[])[0]])),
    ] {
        assert_eq!(found(pod.clone()), [Reason::OtherScheduler], "{}", pod.0["spec"]);
    }
    for pod in [
        other(),
        other().spec("nodeName", "w-0"),
        other().spec("nodeName", "unknown"),
        requires(expression("pool", "In", &["web"])),
        requires(expression("gpu", "DoesNotExist", &[])),
        requires(expression("kubernetes.io/hostname", "Exists", &[])),
        requires(expression("kubernetes.io/hostname", "In", &["host-s-0", "host-w-0"])),
        requires(expression("kubernetes.io/hostname", "In", &["host-of-another-cluster"])),
        requires(field("NotIn", "s-2")),
        requires(json!([field("In", "s-2")[0], field("In", "w-0")[0]])),
    ] {
        assert_eq!(found(pod.clone()), [], "{}", pod.0["spec"]);
    }
    // With the scheduler of the pool, each of them is allowed.
    let own = mutated(1).spec("nodeSelector", json!({"gpu": "1"}));
    assert_eq!(violations(&created(&own), &snapshot), []);
    // A pod whose requirements are too many to be compared is one of the pool: nothing else could be enforced.
    let mut large = Snapshot::default();
    list_nodes(&mut large, &(0..500).map(|n| (format!("n-{n}"), Vec::new())).collect::<Vec<_>>());
    let many = requires(vec![expression("x", "Exists", &[])[0].clone(); 500].into());
    assert_eq!(violations(&review(&many.0, person()), &large), [Reason::OtherScheduler]);
    // Also where the comparison ends at a node outside of the pool.
    let names: Vec<String> = (0..1000).map(|n| format!("no-{n}")).chain(["s-0".to_owned()]).collect();
    let pool = vec![("pool", "spark".to_owned())];
    let nodes = (0..500).map(|n| (format!("n-{n}"), Vec::new())).chain([("s-0".to_owned(), pool)]);
    list_nodes(&mut large, &nodes.collect::<Vec<_>>());
    let only_there = requires(json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": names}]}]));
    assert_eq!(violations(&review(&only_there.0, person()), &large), [Reason::OtherScheduler]);
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
        scheduler: spark_usher::policy::SchedulerChoice {
            name: Some("yk-2".into()),
            ..spark_usher::policy::SchedulerChoice::of(spark_usher::gang::GangScheduler::of_kind("yunikorn").unwrap())
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
        matches: spark_usher::policy::Match {
            pod_selector: Some([("team".to_owned(), "a".to_owned())].into_iter().collect()),
            ..spark_usher::policy::Match::everything()
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
    let pruned = spark_usher::admission::prune_for_validation(&body);
    let review = spark_usher::admission::parse(&pruned).unwrap();
    let snapshot = Snapshot::default();
    let context = |settled| spark_usher::admission::ValidationContext { snapshot: &snapshot, own: None, settled };
    let new = spark_usher::admission::validate(&review, &policies, context(false));
    assert!(new.is_allowed() && new.warnings().count() == 1, "{new:?}");
    assert!(!spark_usher::admission::validate(&review, &policies, context(true)).is_allowed());
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
