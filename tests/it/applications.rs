//! The keys by which a pod names its application, gang or queue to a scheduler, of whatever origin.

use crate::mutation::*;
use crate::support::*;
use serde_json::json;
use usher_core::policy::{Match, Pattern, Policies, Policy};
use usher_core::reason::Reason;
use usher_core::snapshot::{Group, GroupKey, Owner, RelatedChange, Snapshot, Watched};

/// YuniKorn has the applications of all namespaces under one id each.
#[test]
fn yunikorn_application_is_of_namespace_and_drivers_name_whatever_the_pod_states() {
    const KEYS: [(&str, &str); 2] =
        [("labels", "yunikorn.apache.org/app-id"), ("annotations", "yunikorn.apache.org/app-id")];
    let policies = only(policy("yunikorn"));
    let id = |outcome: &Outcome| {
        let ids = KEYS.map(|(place, key)| outcome.object["metadata"][place][key].as_str().unwrap().to_owned());
        assert_eq!(ids[0], ids[1]);
        let [id, _] = ids;
        id
    };
    let own = id(&by_driver(&driver(), &cold(), &policies));
    assert!(own.starts_with(&format!("{APP}-usher-")) && own.len() <= 63, "{own}");
    assert_eq!(
        id(&by_driver(&executor(1), &cold(), &policies)),
        own,
        "executors are in the application of their driver"
    );
    // A neighbour in the same namespace, and the same names in another.
    assert_ne!(id(&answer(&executor(1).created_by_pod("evil-driver", "u-2"), &cold(), &policies)), own);
    let elsewhere = executor(1).namespace("team-b");
    assert_ne!(id(&answer(&elsewhere.created_by_pod("nb-driver", DRIVER_UID), &cold(), &policies)), own);
    // What the pod states itself is replaced; a label that YuniKorn reads after ours stays.
    for (place, key) in KEYS {
        let mut forged = executor(1).label("applicationId", "mine");
        forged.0["metadata"][place][key] = "another".into();
        let outcome = by_driver(&forged, &cold(), &policies);
        assert_eq!((id(&outcome), outcome.decision.reason), (own.clone(), Reason::GangSizeUnknown), "{place}");
        assert_eq!(outcome.object["metadata"]["labels"]["applicationId"], "mine");
    }
    // Also of a pod whose task groups its creator manages.
    let managed = executor(1).annotation("yunikorn.apache.org/task-group-name", "mine");
    let outcome = by_driver(&managed, &cold(), &policies);
    assert_eq!((id(&outcome), outcome.decision.reason), (own, Reason::GangKept));
}

/// Its executors cannot know the id that it got: their application starts with the first of them.
#[test]
fn yunikorn_driver_without_a_name_is_in_no_application_of_executors() {
    let policies = only(policy("yunikorn"));
    let sized = driver()
        .annotation("spark-usher.io/min-member", "3")
        .annotation("spark-usher.io/executor-resources", r#"{"cpu":"1","memory":"1408Mi"}"#);
    let mut unnamed = sized.clone();
    unnamed.0["metadata"]["generateName"] = "nb-driver-".into();
    let outcome = by_driver(&unnamed, &cold(), &policies);
    assert!(annotations(&outcome).get("yunikorn.apache.org/task-groups").is_none(), "{}", outcome.object);
    let id = &outcome.object["metadata"]["labels"]["yunikorn.apache.org/app-id"];
    let snapshot = snapshot_with(&[PodBuilder(outcome.object.clone())]);
    let executor = by_driver(&executor(1), &snapshot, &policies);
    assert_ne!(&executor.object["metadata"]["labels"]["yunikorn.apache.org/app-id"], id);
    assert!(annotations(&executor).get("yunikorn.apache.org/task-groups").is_some());
}

/// A common word as a key: it counts only for a pod that has no other queue.
#[test]
fn kai_reads_the_queue_from_the_project_only_without_a_queue_key() {
    let queues = Some(vec![Pattern::new("team-*")]);
    let policies = only(Policy { queues, ..policy("kai") });
    let on_kai = || executor(1).spec("schedulerName", "kai-scheduler").label("project", "other");
    let reasons = |pod: PodBuilder| {
        let review = pod.created_by_pod("nb-driver", DRIVER_UID);
        validate_review(&review, &Snapshot::default(), &policies).decision.reasons
    };
    assert!(reasons(on_kai()).contains(&Reason::QueueNotAllowed));
    assert!(!reasons(on_kai().label("kai.scheduler/queue", "team-a")).contains(&Reason::QueueNotAllowed));
}

/// KAI appends the label of a node pool to a queue from the project.
#[test]
fn kai_queue_from_the_project_ends_with_the_node_pool() {
    let queues = Some(vec![Pattern::new("team"), Pattern::new("team-a100"), Pattern::new("other-t4")]);
    let policies = only(Policy { queues, ..policy("kai") });
    let is_allowed = |labels: &[(&str, &str)]| {
        let on_kai = executor(1).spec("schedulerName", "kai-scheduler");
        let pod = labels.iter().fold(on_kai, |pod, (key, value)| pod.label(key, value));
        let review = pod.created_by_pod("nb-driver", DRIVER_UID);
        let reasons = validate_review(&review, &Snapshot::default(), &policies).decision.reasons;
        !reasons.contains(&Reason::QueueNotAllowed)
    };
    let pool = "kai.scheduler/node-pool";
    assert!(is_allowed(&[("project", "team")]));
    assert!(is_allowed(&[("project", "team"), (pool, "a100")]));
    assert!(!is_allowed(&[("project", "team"), (pool, "h100")]));
    assert!(is_allowed(&[("project", "other"), (pool, "t4")]), "only the whole name counts");
    assert!(!is_allowed(&[("project", "other")]));
    assert!(is_allowed(&[("kai.scheduler/queue", "team"), (pool, "h100")]), "no suffix for another key");
}

/// Whatever places the pod: another policy's replica, no replica, or the scheduler that the pod names itself.
#[test]
fn application_of_another_driver_is_a_finding() {
    let id = |namespace, driver| usher_core::gang::application_id(namespace, driver, APP);
    for (policies, at_yunikorn) in
        [(only(policy("yunikorn")), false), (only(policy("volcano")), true), (only(policy("none")), true)]
    {
        let reasons = |place: &str, key: &str, id: &str| {
            let mut pod = by_driver(&executor(1), &Snapshot::default(), &policies).object;
            if at_yunikorn {
                pod["spec"]["schedulerName"] = "yunikorn".into();
            }
            pod["metadata"][place][key] = id.into();
            let review = PodBuilder(pod).created_by_pod("nb-driver", DRIVER_UID);
            validate_review(&review, &Snapshot::default(), &policies).decision.reasons
        };
        for (place, key) in [
            ("labels", "yunikorn.apache.org/app-id"),
            ("annotations", "yunikorn.apache.org/app-id"),
            ("labels", "applicationId"),
        ] {
            for other in [id("team-b", "nb-driver"), id("default", "evil-driver")] {
                assert!(reasons(place, key, &other).contains(&Reason::ForeignApplication), "{place} {key} {other}");
            }
            assert!(!reasons(place, key, &id("default", "nb-driver")).contains(&Reason::ForeignApplication));
        }
        assert!(!reasons("labels", "applicationId", "mine").contains(&Reason::ForeignApplication));
        // YuniKorn reads the selector of a pod without the other keys.
        assert!(
            reasons("labels", "spark-app-selector", &id("team-b", "nb-driver")).contains(&Reason::ForeignApplication)
        );
    }
    // YuniKorn reads the app selector of a pod that lost our id.
    let policies = only(policy("yunikorn"));
    let mut lost = by_driver(&executor(1), &Snapshot::default(), &policies).object;
    lost["metadata"]["labels"].as_object_mut().unwrap().remove("yunikorn.apache.org/app-id");
    let review = PodBuilder(lost).created_by_pod("nb-driver", DRIVER_UID);
    let decision = validate_review(&review, &Snapshot::default(), &policies).decision;
    assert!(decision.reasons.contains(&Reason::NotMutated), "{:?}", decision.reasons);
}

/// Keys of gangs and applications that spark-usher itself does not set decide as much.
#[test]
fn keys_that_only_others_set_are_protected_from_changes() {
    for (place, key) in [
        ("labels", "applicationId"),
        ("labels", "yunikorn.apache.org/app-id"),
        ("annotations", "yunikorn.apache.org/app-id"),
        ("annotations", "kueue.x-k8s.io/pod-group-name"),
        ("labels", "kueue.x-k8s.io/prebuilt-workload-name"),
        ("labels", "pod-group.scheduling.sigs.k8s.io/name"),
        ("annotations", "gang.scheduling.koordinator.sh/groups"),
    ] {
        let old = executor(1).stored("e1");
        let mut new = old.clone();
        new.0["metadata"][place][key] = "other".into();
        let review = update(&old, &new, json!({"username": "eve", "groups": ["system:authenticated"]}));
        let reasons = validate_review(&review, &Snapshot::default(), &only(policy("volcano"))).decision.reasons;
        assert!(reasons.contains(&Reason::SchedulingChanged), "{place} {key}: {reasons:?}");
    }
}

/// Three pods that name a gang of three start it without its members.
#[test]
fn pod_group_of_another_creator_is_a_finding() {
    let policies = only(policy("coscheduling"));
    let victim = by_driver(&executor(1), &signing(), &policies).object;
    let name = victim["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"].as_str().unwrap().to_owned();
    let key = GroupKey { namespace: "default".into(), name: name.as_str().into(), scheduler: "coscheduling" };
    let group = |owner| Group { owner, ..pod_group(3) };
    let driver = driver().spec("serviceAccountName", "spark");
    let owned = group(Some(Owner::of_pod("nb-driver".into(), DRIVER_UID.into())));
    for group in [owned, group(None)] {
        let mut snapshot = signing();
        observe(&mut snapshot, &driver);
        observe(&mut snapshot, &PodBuilder(victim.clone()).stored("e1"));
        snapshot.apply(RelatedChange::Groups(key.scheduler, Watched::Upserted(key.clone(), group.clone())));
        let reasons = |pod: &PodBuilder, by: serde_json::Value| {
            validate_review(&review(&pod.0, by), &snapshot, &policies).decision.reasons
        };
        let forged = executor(9)
            .label("spark-app-selector", "spark-of-mallory")
            .label("scheduling.x-k8s.io/pod-group", &name)
            .spec("schedulerName", "scheduler-plugins-scheduler");
        let mallory = || by_pod("default", "mallory", "evil-driver", "u-2");
        assert!(reasons(&forged, mallory()).contains(&Reason::ForeignGroup), "{group:?}");
        let person = json!({"username": "eve", "groups": ["system:authenticated"]});
        assert!(reasons(&forged, person).contains(&Reason::ForeignGroup), "{group:?}");
        // Its members, and a gang that is not ours.
        let second = by_driver(&executor(2), &snapshot, &policies).object;
        let by_driver = || by_pod("default", "spark", "nb-driver", DRIVER_UID);
        assert_eq!(reasons(&PodBuilder(second), by_driver()), [Reason::Valid], "{group:?}");
        let own = forged.clone().label("scheduling.x-k8s.io/pod-group", "mine");
        assert!(!reasons(&own, mallory()).contains(&Reason::ForeignGroup));
        // A user who may create Jobs lets a controller create such pods.
        let controller =
            || json!({"username": "system:serviceaccount:kube-system:statefulset-controller", "groups": []});
        let owned = |pod: &PodBuilder| pod.clone().owned_by("StatefulSet", "workers", "5-5");
        assert!(reasons(&owned(&forged), controller()).contains(&Reason::ForeignGroup), "{group:?}");
        assert!(reasons(&forged, controller()).contains(&Reason::ForeignGroup), "{group:?}");
        // The members of its own workload's gang.
        let by_controller = |pod: &PodBuilder, snapshot: &Snapshot| {
            PodBuilder(answer(&review(&owned(pod).0, controller()), snapshot, &policies).object)
        };
        let worker = by_controller(&executor(3), &snapshot);
        let theirs = worker.0["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"].as_str().unwrap().to_owned();
        assert_ne!(theirs, name);
        let key = GroupKey { name: theirs.as_str().into(), ..key.clone() };
        snapshot.apply(RelatedChange::Groups(key.scheduler, Watched::Upserted(key, group)));
        let found = |pod: &PodBuilder, by: serde_json::Value| {
            validate_review(&review(&pod.0, by), &snapshot, &policies).decision.reasons
        };
        assert!(!found(&worker, controller()).contains(&Reason::ForeignGroup));
        // Its own policy has another scheduler, which does not read the key; coscheduling reads it of any pod.
        let team = Match {
            pod_selector: Some([("team".to_owned(), "a".to_owned())].into_iter().collect()),
            ..Match::everything()
        };
        let both = Policies::new(
            vec![Policy { matches: team, name: "a".into(), ..policy("volcano") }, policy("coscheduling")],
            vec![],
        );
        let crossed = forged.clone().label("team", "a").spec("schedulerName", "volcano");
        let crossed = PodBuilder(answer(&review(&owned(&crossed).0, controller()), &snapshot, &both).object);
        assert!(crossed.0["metadata"]["annotations"]["spark-usher.io/by"].is_string());
        let reasons = validate_review(&review(&crossed.0, controller()), &snapshot, &both).decision.reasons;
        assert!(reasons.contains(&Reason::ForeignGroup), "{reasons:?}");
    }
}

/// A pod that named the gang before its PodGroup existed does not make its creator's later ones members.
#[test]
fn early_pod_of_another_creator_is_no_member_of_the_gang() {
    let policies = only(policy("coscheduling"));
    let mut snapshot = signing();
    let victim = by_driver(&executor(1), &snapshot, &policies).object;
    let name = victim["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"].as_str().unwrap().to_owned();
    let forged = |n| executor(n).label("scheduling.x-k8s.io/pod-group", &name);
    let mallory = || by_pod("default", "mallory", "evil-driver", "u-2");
    let early = answer(&review(&forged(8).0, mallory()), &snapshot, &policies).object;
    assert!(early["metadata"]["annotations"]["spark-usher.io/signature"].is_string(), "{early}");
    observe(&mut snapshot, &PodBuilder(early).stored("e8"));
    observe(&mut snapshot, &PodBuilder(victim).stored("e1"));
    let key = GroupKey { namespace: "default".into(), name: name.as_str().into(), scheduler: "coscheduling" };
    let group = pod_group(3);
    snapshot.apply(RelatedChange::Groups(key.scheduler, Watched::Upserted(key, group)));
    let later = answer(&review(&forged(9).0, mallory()), &snapshot, &policies).object;
    let reasons = validate_review(&review(&later, mallory()), &snapshot, &policies).decision.reasons;
    assert!(reasons.contains(&Reason::ForeignGroup), "{reasons:?}");
}

/// Without the feature gate, the API server drops the field, and the webhook was available.
#[test]
fn dropped_scheduling_group_is_named() {
    let policies = only(policy("native"));
    let mut pod = by_driver(&executor(1), &signing(), &policies).object;
    assert!(pod["spec"].as_object_mut().unwrap().remove("schedulingGroup").is_some());
    let message = |pod: PodBuilder| {
        let review = pod.created_by_pod("nb-driver", DRIVER_UID);
        let outcome = validate_review(&review, &signing(), &policies);
        assert_eq!(outcome.decision.reason, Reason::NotMutated);
        outcome.response["auditAnnotations"]["message"].as_str().unwrap().to_owned()
    };
    let dropped = message(PodBuilder(pod));
    assert!(dropped.contains("spec.schedulingGroup") && dropped.contains("GenericWorkload"), "{dropped}");
    let missed = message(executor(1));
    assert!(missed.contains("unavailable") && !missed.contains("GenericWorkload"), "{missed}");
}

/// Koordinator takes the gang from three keys.
#[test]
fn every_key_that_names_a_group_is_compared_with_its_creator() {
    let policies = only(policy("koordinator"));
    let mut snapshot = signing();
    observe(&mut snapshot, &driver().spec("serviceAccountName", "spark"));
    let key = GroupKey { namespace: "default".into(), name: "victims".into(), scheduler: "koordinator" };
    let group = Group { owner: Some(Owner::of_pod("nb-driver".into(), DRIVER_UID.into())), ..pod_group(3) };
    snapshot.apply(RelatedChange::Groups(key.scheduler, Watched::Upserted(key, group)));
    for (place, key) in [
        ("labels", "pod-group.scheduling.sigs.k8s.io"),
        ("labels", "pod-group.scheduling.sigs.k8s.io/name"),
        ("annotations", "gang.scheduling.koordinator.sh/name"),
    ] {
        let mut forged = executor(9).spec("schedulerName", "koord-scheduler");
        forged.0["metadata"][place][key] = "victims".into();
        let review = review(&forged.0, by_pod("default", "mallory", "evil-driver", "u-2"));
        let reasons = validate_review(&review, &snapshot, &policies).decision.reasons;
        assert!(reasons.contains(&Reason::ForeignGroup), "{key}: {reasons:?}");
    }
}

/// KAI's podgrouper writes them onto every pod of its scheduler, also where no policy has its type.
#[test]
fn keys_that_a_scheduler_writes_onto_every_pod_are_not_protected() {
    let old = executor(1).stored("e1");
    let new = old.clone().annotation("pod-group-name", "g").label("kai.scheduler/subgroup-name", "s");
    let grouper =
        json!({"username": "system:serviceaccount:kai-scheduler:pod-grouper", "groups": ["system:authenticated"]});
    let decision = validate_review(&update(&old, &new, grouper), &Snapshot::default(), &only(policy("none"))).decision;
    assert_eq!(decision.reasons, [Reason::Valid]);
}

#[test]
fn driver_without_an_application_gets_an_id_in_place_of_its_own() {
    let raw = driver().label("spark-app-selector", "").label("yunikorn.apache.org/app-id", "spark-of-victim");
    let outcome = by_driver(&raw, &Snapshot::default(), &only(policy("yunikorn")));
    let id = outcome.object["metadata"]["labels"]["yunikorn.apache.org/app-id"].as_str().unwrap();
    assert!(usher_core::gang::is_application_id(id), "{id}");
}
