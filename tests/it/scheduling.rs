//! The scheduling fields that the mutating decision sets, for each scheduler.

use crate::mutation::*;
use crate::support::*;
use serde_json::{Value, json};
use usher_core::annotations::Override;
use usher_core::gang::{Membership, Shape};
use usher_core::policy::{Gang, Policy, Replace};
use usher_core::reason::Reason;
use usher_core::snapshot::{Conf, RelatedChange, Snapshot, Watched};
use usher_spark::conf::AppConf;
use usher_spark::ids::PodKey;

#[test]
fn other_scheduler_name_stays_unless_policy_replaces_always() {
    let chosen = executor(1).spec("schedulerName", "my-scheduler");
    let outcome = by_driver(&chosen, &cold(), &volcano());
    assert_eq!(outcome.decision.reason, Reason::SchedulerKept);
    assert_eq!(outcome.object["spec"]["schedulerName"], "my-scheduler");
    assert!(has_owner(&outcome), "it gets its owner nevertheless");
    let mut policy = policy("volcano");
    policy.scheduler.replace = Replace::Always;
    assert_eq!(by_driver(&chosen, &cold(), &only(policy)).object["spec"]["schedulerName"], "volcano");
    let driver = driver().spec("schedulerName", "my-scheduler");
    assert_eq!(by_driver(&driver, &cold(), &volcano()).decision.reason, Reason::SchedulerKept);
}

#[test]
fn volcano_executor_without_group_name_gets_no_owner() {
    let chosen = executor(1).spec("schedulerName", "volcano");
    for policies in [none(), only(policy("kueue"))] {
        let outcome = by_driver(&chosen, &cold(), &policies);
        assert_eq!(outcome.object["spec"]["schedulerName"], "volcano");
        assert!(!has_owner(&outcome));
        assert_eq!(outcome.decision.reason, Reason::OwnerWithheld);
        let signed = by_driver(&chosen, &signing(), &policies);
        assert_eq!(annotations(&signed)["spark-usher.io/creator"], format!("pod/nb-driver/{DRIVER_UID}"));
        assert!(annotations(&signed)["spark-usher.io/signature"].is_string(), "else the creator proves nothing");
    }
    let mut off = policy("volcano");
    off.gang.shape = Shape::Pods;
    off.scheduler.name = Some("volcano-b".into());
    let outcome = by_driver(&executor(1), &cold(), &only(off));
    assert_eq!(outcome.object["spec"]["schedulerName"], "volcano-b");
    assert!(!has_owner(&outcome), "a Volcano of another name groups by owner as well");
    let keyed = chosen.annotation("scheduling.k8s.io/group-name", "mine");
    assert!(
        has_owner(&by_driver(&keyed, &cold(), &none())),
        "with its own gang key, an owner does not change the group"
    );
}

#[test]
fn existing_group_name_stays_and_forged_annotation_is_removed() {
    let in_group = executor(1)
        .annotation("scheduling.k8s.io/group-name", "mine")
        .annotation("spark-usher.io/by", "forged/volcano");
    let outcome = by_driver(&in_group, &cold(), &volcano());
    assert_eq!(outcome.decision.reason, Reason::GangKept);
    assert_eq!(annotations(&outcome)["scheduling.k8s.io/group-name"], "mine");
    assert!(annotations(&outcome).get("spark-usher.io/by").is_none());
    assert!(outcome.response.get("warnings").is_none(), "a note, not a warning");
}

#[test]
fn later_executors_get_scheduling_fields_of_first_executor() {
    let snapshot = signing();
    let mut old = policy("volcano");
    old.queue = Some("old".into());
    old.scheduler.name = Some("volcano-a".into());
    old.executor_class = Some("slow".into());
    let first = by_driver(&executor(1), &snapshot, &only(old));
    let mut snapshot = snapshot;
    observe(&mut snapshot, &PodBuilder(first.object.clone()).stored("e1"));
    let mut new = policy("coscheduling");
    new.executor_class = Some("fast".into());
    new.gang.name = "other-{app8}".parse().unwrap();
    let later = by_driver(&executor(2), &snapshot, &only(new.clone()));
    assert_eq!(later.object["spec"]["schedulerName"], "volcano-a");
    assert_eq!(later.object["spec"]["priorityClassName"], "slow");
    for key in ["scheduling.k8s.io/group-name", "scheduling.volcano.sh/queue-name"] {
        assert_eq!(annotations(&later)[key], annotations(&first)[key], "{key}");
    }
    let other = pod("o-exec-1").executor_of("spark-other", 1);
    assert_eq!(by_driver(&other, &snapshot, &only(new)).object["spec"]["schedulerName"], "scheduler-plugins-scheduler");
}

#[test]
fn later_executors_get_gang_size_of_first_executor() {
    let mut koordinator = policy("koordinator");
    koordinator.gang.membership = Membership::Annotations;
    let mut snapshot = signing();
    observe(&mut snapshot, &driver().annotation("spark-usher.io/min-member", "4"));
    let first = by_driver(&executor(1), &snapshot, &only(koordinator.clone()));
    assert_eq!(annotations(&first)["gang.scheduling.koordinator.sh/min-available"], "4");
    observe(&mut snapshot, &PodBuilder(first.object.clone()).stored("e1"));
    observe(&mut snapshot, &driver());
    let later = by_driver(&executor(2), &snapshot, &only(koordinator.clone()));
    assert_eq!(annotations(&later)["gang.scheduling.koordinator.sh/min-available"], "4");
    assert_eq!(later.decision.reason, Reason::SchedulingSet);
    // Also where the size is known again, and is another one.
    observe(&mut snapshot, &driver().annotation("spark-usher.io/min-member", "2"));
    let later = by_driver(&executor(3), &snapshot, &only(koordinator));
    for key in ["gang.scheduling.koordinator.sh/min-available", "gang.scheduling.koordinator.sh/name"] {
        assert_eq!(annotations(&later)[key], annotations(&first)[key], "{key}");
    }
}

#[test]
fn later_executors_get_scheduler_name_of_policies_with_their_scheduler_type() {
    let mut named = policy("kueue");
    named.scheduler.name = Some("my-scheduler".into());
    let mut snapshot = signing();
    let first = by_driver(&executor(1), &snapshot, &only(named.clone()));
    observe(&mut snapshot, &PodBuilder(first.object.clone()).stored("e1"));
    let name = |policy| by_driver(&executor(2), &snapshot, &only(policy)).object["spec"]["schedulerName"].clone();
    assert_eq!(name(named), "my-scheduler");
    // Kueue schedules no pods, so the pod keeps its scheduler.
    assert_eq!(name(policy("volcano")), "default-scheduler");
}

#[test]
fn later_executors_get_gang_shape_of_policies_with_their_scheduler_type() {
    let without_gang = |kind| {
        let mut policy = policy(kind);
        policy.gang.shape = Shape::Pods;
        policy
    };
    let mut snapshot = signing();
    let first = by_driver(&executor(1), &snapshot, &only(without_gang("volcano")));
    observe(&mut snapshot, &PodBuilder(first.object.clone()).stored("e1"));
    let has_gang = |policy| {
        let later = by_driver(&executor(2), &snapshot, &only(policy));
        assert_eq!(later.object["spec"]["schedulerName"], "volcano");
        annotations(&later).get("scheduling.k8s.io/group-name").is_some()
    };
    assert!(!has_gang(without_gang("volcano")));
    assert!(has_gang(without_gang("coscheduling")), "the shape of another scheduler's gangs does not apply");
}

#[test]
fn yunikorn_executor_states_task_groups_unless_its_driver_is_on_yunikorn() {
    let driver = driver()
        .annotation("spark-usher.io/min-member", "3")
        .annotation("spark-usher.io/executor-resources", r#"{"cpu":"1","memory":"1408Mi"}"#);
    let states = |driver: &PodBuilder| {
        let outcome = by_driver(&executor(1), &snapshot_with(std::slice::from_ref(driver)), &only(policy("yunikorn")));
        assert_eq!(outcome.decision.reason, Reason::SchedulingSet);
        annotations(&outcome).get("yunikorn.apache.org/task-groups").is_some()
    };
    assert!(states(&driver));
    // Admitted by another policy file: it is in the application that its app selector names.
    assert!(states(&driver.clone().spec("schedulerName", "yunikorn")));
    assert!(!states(&PodBuilder(by_driver(&driver, &cold(), &only(policy("yunikorn"))).object)));
}

#[test]
fn executor_with_the_keys_that_it_would_get_is_in_its_gang() {
    let has_key = executor(1).annotation("yunikorn.apache.org/task-group-name", "spark-executor");
    let snapshot = snapshot_with(&[PodBuilder(by_driver(&driver(), &cold(), &only(policy("yunikorn"))).object)]);
    assert_eq!(by_driver(&has_key, &snapshot, &only(policy("yunikorn"))).decision.reason, Reason::SchedulingSet);
    let other = executor(1).annotation("yunikorn.apache.org/task-group-name", "other");
    assert_eq!(by_driver(&other, &snapshot, &only(policy("yunikorn"))).decision.reason, Reason::GangKept);
}

/// As the API server reviews a pod again after another webhook changed it.
#[test]
fn reviewed_again_a_signed_executor_is_in_its_gang_under_a_changed_size_or_name() {
    let again = |outcome: Outcome, snapshot: &Snapshot, policy: Policy| {
        let outcome = by_driver(&PodBuilder(outcome.object), snapshot, &only(policy));
        (outcome.decision.reason, outcome.object)
    };
    let mut koordinator = policy("koordinator");
    koordinator.gang.membership = Membership::Annotations;
    let mut snapshot = signing();
    observe(&mut snapshot, &driver().annotation("spark-usher.io/min-member", "4"));
    let first = |policy: &Policy| by_driver(&executor(1), &snapshot, &only(policy.clone()));
    let of_four = first(&koordinator);
    let native = policy("native");
    let renamed =
        Policy { gang: Gang { name: "other-{app8}".parse().unwrap(), ..native.gang.clone() }, ..native.clone() };
    let (reason, object) = again(first(&native), &snapshot, renamed.clone());
    assert_eq!(reason, Reason::SchedulingSet);
    let group = object["spec"]["schedulingGroup"]["podGroupName"].as_str().unwrap();
    assert!(group.starts_with("other-"), "{group}");
    let mut forged = first(&native);
    forged.object["metadata"]["annotations"].as_object_mut().unwrap().remove("spark-usher.io/signature");
    assert_eq!(again(forged, &snapshot, renamed).0, Reason::GangKept);
    observe(&mut snapshot, &driver().annotation("spark-usher.io/min-member", "2"));
    assert_eq!(again(of_four, &snapshot, koordinator).0, Reason::SchedulingSet);
}

#[test]
fn later_executors_declare_their_gang_in_the_way_of_the_first() {
    let mut koordinator = policy("koordinator");
    koordinator.gang.membership = Membership::Annotations;
    let (label, name) = ("pod-group.scheduling.sigs.k8s.io", "gang.scheduling.koordinator.sh/name");
    for (before, after) in [(&koordinator, policy("volcano")), (&koordinator, policy("koordinator"))] {
        let mut snapshot = signing();
        observe(&mut snapshot, &driver().annotation("spark-usher.io/min-member", "4"));
        let first = by_driver(&executor(1), &snapshot, &only(before.clone()));
        observe(&mut snapshot, &PodBuilder(first.object.clone()).stored("e1"));
        let later = by_driver(&executor(2), &snapshot, &only(after));
        assert_eq!(annotations(&later)[name], annotations(&first)[name]);
        assert!(later.object["metadata"]["labels"].get(label).is_none(), "{}", later.object);
    }
}

#[test]
fn unknown_gang_size_omits_only_gang_annotations() {
    let mut policy = policy("koordinator");
    policy.gang.membership = Membership::Annotations;
    policy.queue = Some("q".into());
    let outcome = by_driver(&executor(1), &cold(), &only(policy));
    assert_eq!(outcome.decision.reason, Reason::GangSizeUnknown);
    assert_eq!(outcome.object["spec"]["schedulerName"], "koord-scheduler");
    assert_eq!(outcome.object["metadata"]["labels"]["quota.scheduling.koordinator.sh/name"], "q");
    assert!(annotations(&outcome).get("gang.scheduling.koordinator.sh/name").is_none());
    assert!(warnings(&outcome).contains("spark-usher.io/min-member"));
}

#[test]
fn driver_configuration_sets_gang_size_and_clamps_annotation() {
    let mut snapshot = snapshot_with(&[driver().conf_map("c")]);
    let conf = AppConf::parse("spark.executor.instances=5");
    snapshot.apply(RelatedChange::Conf(
        PodKey::new("default", "nb-driver"),
        DRIVER_UID.into(),
        Conf::Known(conf.into()),
        vec![],
    ));
    let mut koordinator = policy("koordinator");
    koordinator.gang.membership = Membership::Annotations;
    let outcome = by_driver(&executor(1), &snapshot, &only(koordinator.clone()));
    assert_eq!(annotations(&outcome)["gang.scheduling.koordinator.sh/min-available"], "5");
    observe(&mut snapshot, &driver().conf_map("c").annotation("spark-usher.io/min-member", "9"));
    let outcome = by_driver(&executor(1), &snapshot, &only(koordinator));
    assert_eq!(annotations(&outcome)["gang.scheduling.koordinator.sh/min-available"], "5");
    assert_eq!(outcome.decision.reason, Reason::MinMemberClamped);
    // Where the size is in a PodGroup, an Event of the driver reports it.
    let outcome = by_driver(&executor(1), &snapshot, &only(policy("volcano")));
    assert_eq!(outcome.decision.reason, Reason::SchedulingSet);
}

#[test]
fn dynamic_application_gets_no_fixed_size_kueue_group() {
    let mut snapshot = snapshot_with(&[driver()]);
    let conf = AppConf::parse("spark.dynamicAllocation.enabled=true\nspark.dynamicAllocation.initialExecutors=3");
    snapshot.apply(RelatedChange::Conf(
        PodKey::new("default", "nb-driver"),
        DRIVER_UID.into(),
        Conf::Known(conf.into()),
        vec![],
    ));
    let mut kueue = policy("kueue");
    kueue.gang.shape = Shape::Executors;
    let outcome = by_driver(&executor(1), &snapshot, &only(kueue));
    assert_eq!(outcome.decision.reason, Reason::GangNotFixed);
    assert!(outcome.object["metadata"]["labels"].get("kueue.x-k8s.io/pod-group-name").is_none());
    assert_eq!(outcome.object["metadata"]["labels"]["kueue.x-k8s.io/queue-name"], "lq");
}

#[test]
fn other_resource_profiles_join_volcano_gang_but_no_yunikorn_task_group() {
    let gpu = executor(7).label("spark-exec-resourceprofile-id", "2");
    let outcome = by_driver(&gpu, &cold(), &volcano());
    assert_eq!(outcome.decision.reason, Reason::OtherProfile);
    assert_eq!(annotations(&outcome)["scheduling.k8s.io/group-name"], format!("nb-driver-{APP8}"));
    let outcome = by_driver(&gpu, &cold(), &only(policy("yunikorn")));
    assert_eq!(outcome.object["spec"]["schedulerName"], "yunikorn");
    assert!(annotations(&outcome).get("yunikorn.apache.org/task-group-name").is_none());
}

#[test]
fn each_scheduler_gets_its_own_fields_on_an_executor() {
    let group = format!("nb-driver-{APP8}");
    let application = usher_core::gang::application_id("default", "nb-driver", APP);
    for (kind, name, expected) in [
        ("none", "default-scheduler", vec![]),
        ("kube-batch", "kube-batch", vec![("annotations/scheduling.k8s.io/group-name", &*group)]),
        (
            "volcano",
            "volcano",
            vec![
                ("annotations/scheduling.k8s.io/group-name", &*group),
                ("annotations/scheduling.volcano.sh/queue-name", "q"),
                ("annotations/volcano.sh/task-spec", "executor"),
            ],
        ),
        ("coscheduling", "scheduler-plugins-scheduler", vec![("labels/scheduling.x-k8s.io/pod-group", &*group)]),
        (
            "koordinator",
            "koord-scheduler",
            vec![
                ("labels/pod-group.scheduling.sigs.k8s.io", &*group),
                ("labels/quota.scheduling.koordinator.sh/name", "q"),
            ],
        ),
        (
            "yunikorn",
            "yunikorn",
            vec![
                ("annotations/yunikorn.apache.org/app-id", &*application),
                ("annotations/yunikorn.apache.org/task-group-name", "spark-executor"),
                ("labels/yunikorn.apache.org/app-id", &*application),
                ("labels/yunikorn.apache.org/queue", "q"),
            ],
        ),
        (
            "kueue",
            "default-scheduler",
            vec![
                ("annotations/kueue.x-k8s.io/pod-suspending-parent", "spark-driver"),
                ("labels/kueue.x-k8s.io/managed", "true"),
                ("labels/kueue.x-k8s.io/queue-name", "q"),
            ],
        ),
        ("kai", "kai-scheduler", vec![("labels/kai.scheduler/queue", "q")]),
        ("native", "default-scheduler", vec![]),
    ] {
        let outcome = by_driver(&executor(1), &cold(), &only(Policy { queue: Some("q".into()), ..policy(kind) }));
        let mut set = Vec::new();
        for place in ["annotations", "labels"] {
            for (key, value) in outcome.object["metadata"][place].as_object().into_iter().flatten() {
                if executor(1).0["metadata"][place].get(key) != Some(value) && !key.starts_with("spark-usher.io/") {
                    set.push((format!("{place}/{key}"), value.as_str().unwrap().to_owned()));
                }
            }
        }
        let expected: Vec<_> = expected.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        assert_eq!(set, expected, "{kind}");
        assert_eq!(outcome.object["spec"]["schedulerName"], name, "{kind}");
        let native = outcome.object["spec"].pointer("/schedulingGroup/podGroupName").and_then(Value::as_str);
        assert_eq!(native, (kind == "native").then_some(&*group), "{kind}");
    }
}

#[test]
fn invalid_label_value_is_omitted_with_warning() {
    let mut policy = policy("yunikorn");
    policy.overrides = [Override::Queue].into();
    let outcome = by_driver(&executor(1).annotation("spark-usher.io/queue", "root/team a"), &cold(), &only(policy));
    assert!(outcome.decision.reasons.contains(&Reason::ValueLeftOut));
    assert!(outcome.object["metadata"]["labels"].get("yunikorn.apache.org/queue").is_none());
    assert!(warnings(&outcome).contains("is not a valid label value"));
}

#[test]
fn missing_priority_class_is_omitted() {
    let mut policy = policy("volcano");
    policy.executor_class = Some("batch".into());
    let mut snapshot = cold();
    assert_eq!(by_driver(&executor(1), &snapshot, &only(policy.clone())).object["spec"]["priorityClassName"], "batch");
    snapshot.apply(RelatedChange::PriorityClasses(Watched::Upserted("other".into(), ())));
    let outcome = by_driver(&executor(1), &snapshot, &only(policy.clone()));
    assert_eq!(outcome.decision.reason, Reason::PriorityClassMissing);
    assert!(outcome.object["spec"].get("priorityClassName").is_none());
    assert_eq!(outcome.object["spec"]["priority"], 0);
    snapshot.apply(RelatedChange::PriorityClasses(Watched::Upserted("batch".into(), ())));
    assert_eq!(by_driver(&executor(1), &snapshot, &only(policy)).decision.reason, Reason::SchedulingSet);
}

// ---- drivers ----

#[test]
fn volcano_driver_joins_gang_only_with_app_shape() {
    let outcome = by_driver(&driver(), &cold(), &volcano());
    assert_eq!(outcome.decision.reason, Reason::DriverSchedulingSet);
    assert!(annotations(&outcome).get("scheduling.k8s.io/group-name").is_none());
    let mut app = policy("volcano");
    app.gang.shape = Shape::App;
    let policies = only(app);
    let driver = by_driver(&driver(), &cold(), &policies);
    let executor = by_driver(&executor(1), &cold(), &policies);
    assert_eq!(annotations(&driver)["scheduling.k8s.io/group-name"], format!("nb-driver-{APP8}"));
    assert_eq!(
        annotations(&driver)["scheduling.k8s.io/group-name"],
        annotations(&executor)["scheduling.k8s.io/group-name"]
    );
}

#[test]
fn driver_with_generate_name_and_its_executors_share_group_name() {
    let mut policy = policy("volcano");
    policy.gang.shape = Shape::App;
    let mut unnamed = pod("").driver_of(APP);
    unnamed.0["metadata"]["generateName"] = "job-".into();
    unnamed.0["metadata"].as_object_mut().unwrap().remove("name");
    let made = by_driver(&unnamed, &cold(), &only(policy.clone()));
    let group = annotations(&made)["scheduling.k8s.io/group-name"].clone();
    assert_eq!(group, APP8);
    let known = snapshot_with(&[PodBuilder(made.object).named("job-x7k2p").stored("j1").phase("Running")]);
    let outcome = answer(&executor(1).created_by_pod("job-x7k2p", "j1"), &known, &only(policy));
    assert_eq!(annotations(&outcome)["scheduling.k8s.io/group-name"], group);
}

#[test]
fn kai_executor_gets_no_owner_if_workload_owns_driver() {
    let kai = || driver().spec("schedulerName", "kai-scheduler");
    let owned = |kind| kai().owned_by(kind, "w", "w1");
    let outcome = |driver: &PodBuilder, kind| {
        by_driver(&executor(1), &snapshot_with(std::slice::from_ref(driver)), &only(policy(kind)))
    };
    let withheld = outcome(&owned("StatefulSet"), "kai");
    assert_eq!(withheld.decision.reason, Reason::OwnerWithheld);
    assert!(!has_owner(&withheld));
    assert!(has_owner(&outcome(&kai(), "kai")));
    assert!(has_owner(&outcome(&owned("SparkApplication"), "kai")), "KAI may not read it");
    assert!(!has_owner(&outcome(&driver(), "kai")), "KAI does not find a driver of another scheduler");
    // Also where the policy leaves the scheduler to the pod.
    let own = executor(1).spec("schedulerName", "kai-scheduler");
    for kind in ["none", "volcano"] {
        assert!(!has_owner(&by_driver(&own, &snapshot_with(&[owned("Job")]), &only(policy(kind)))), "{kind}");
        assert!(has_owner(&by_driver(&own, &snapshot_with(&[kai()]), &only(policy(kind)))), "{kind}");
    }
}

/// `scheduling.koordinator.sh/scheduler-name` replaces schedulerName inside koord-scheduler.
#[test]
fn label_that_replaces_the_scheduler_counts_as_its_name() {
    let key = "scheduling.koordinator.sh/scheduler-name";
    let mut keeps = policy("koordinator");
    for pod in [executor(1), driver()] {
        let named = pod.spec("schedulerName", "koord-scheduler").label(key, "other");
        let kept = by_driver(&named, &cold(), &only(keeps.clone()));
        assert_eq!(
            (kept.decision.reason, &kept.object["metadata"]["labels"][key]),
            (Reason::SchedulerKept, &json!("other"))
        );
        keeps.scheduler.replace = Replace::Always;
        let set = by_driver(&named, &cold(), &only(keeps.clone()));
        assert_eq!(set.object["metadata"]["labels"][key], "koord-scheduler");
        assert_eq!(set.object["spec"]["schedulerName"], "koord-scheduler");
        keeps.scheduler.replace = Replace::Default;
        let same = by_driver(&named.clone().label(key, "koord-scheduler"), &cold(), &only(keeps.clone()));
        assert_eq!(same.object["metadata"]["labels"][key], "koord-scheduler");
    }
    let without = by_driver(&executor(1), &cold(), &only(keeps));
    assert!(without.object["metadata"]["labels"].get(key).is_none());
}

/// The numbers of the first pod hold until the last member is deleted.
#[test]
fn dynamic_application_states_its_minimum_in_annotations() {
    let available = |conf: &str| {
        let mut koordinator = policy("koordinator");
        koordinator.gang.membership = Membership::Annotations;
        let mut cluster = crate::support::planned::GangCluster::new(koordinator);
        cluster.driver(conf);
        let object = by_driver(&executor(1), &cluster.snapshot, &cluster.policies).object;
        let annotations = &object["metadata"]["annotations"];
        assert_eq!(annotations["gang.scheduling.koordinator.sh/match-policy"], "once-satisfied");
        annotations["gang.scheduling.koordinator.sh/min-available"].clone()
    };
    let dynamic = "spark.dynamicAllocation.enabled=true\nspark.dynamicAllocation.initialExecutors=8";
    assert_eq!(available("spark.executor.instances=8"), "8");
    assert_eq!(available(dynamic), "1");
    assert_eq!(available(&format!("{dynamic}\nspark.dynamicAllocation.minExecutors=3")), "3");
}

#[test]
fn yunikorn_driver_declares_task_groups_if_gang_size_is_known() {
    let outcome = by_driver(&driver(), &cold(), &only(policy("yunikorn")));
    assert_eq!(outcome.decision.reason, Reason::GangSizeUnknown);
    assert_eq!(outcome.object["spec"]["schedulerName"], "yunikorn");
    let knows = driver()
        .annotation("spark-usher.io/min-member", "3")
        .annotation("spark-usher.io/executor-resources", r#"{"cpu":"1","memory":"1408Mi"}"#);
    let outcome = by_driver(&knows, &cold(), &only(policy("yunikorn")));
    assert_eq!(outcome.decision.reason, Reason::DriverSchedulingSet);
    let groups: Value =
        serde_json::from_str(annotations(&outcome)["yunikorn.apache.org/task-groups"].as_str().unwrap()).unwrap();
    assert_eq!(
        groups[0],
        json!({"name": "spark-driver", "minMember": 1, "minResource": {"cpu": "1", "memory": "1408Mi"}})
    );
    assert_eq!(groups[1]["minMember"], 3);
}

#[test]
fn yunikorns_task_group_equals_the_executor_also_after_another_webhook_changed_it() {
    let group = |outcome: &Outcome| {
        let text = annotations(outcome)["yunikorn.apache.org/task-groups"].as_str().unwrap().to_owned();
        serde_json::from_str::<Value>(&text).unwrap()[0].clone()
    };
    let mut policy = policy("yunikorn");
    policy.gang.min_member = Some(3);
    let policies = only(policy);
    let tolerations = json!([{"key": "spot", "operator": "Exists"}]);
    let affinity = json!({"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}});
    let mut pod = executor(1)
        .spec("nodeSelector", json!({"pool": "spark"}))
        .spec("tolerations", tolerations.clone())
        .spec("affinity", affinity.clone())
        .spec("overhead", json!({"cpu": "250m"}))
        .spec("initContainers", json!([{"name": "fetch", "resources": {"requests": {"memory": "4Gi"}}}]));
    pod.0["spec"]["containers"][0]["resources"]["requests"] =
        json!({"cpu": "1", "memory": "2Gi", "ephemeral-storage": "10Gi"});
    let snapshot = signing();
    let outcome = by_driver(&pod, &snapshot, &policies);
    let expected = json!({"name": "spark-executor", "minMember": 3,
        "minResource": {"cpu": "1250m", "memory": "4Gi", "ephemeral-storage": "10Gi"},
        "nodeSelector": {"pool": "spark"}, "tolerations": tolerations, "affinity": affinity});
    assert_eq!(group(&outcome), expected);
    // The API server calls the webhook again after another one has added a sidecar.
    let mut injected = outcome.object.clone();
    let sidecar = json!({"name": "istio-proxy", "resources": {"requests": {"cpu": "100m"}}});
    injected["spec"]["containers"].as_array_mut().unwrap().push(sidecar);
    let again = by_driver(&PodBuilder(injected), &snapshot, &policies);
    assert_eq!(group(&again)["minResource"]["cpu"], "1350m", "{:?}", again.decision.reasons);
}
