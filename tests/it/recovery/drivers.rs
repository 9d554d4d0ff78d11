//! Whose executors a rule may delete: the driver is the pod that created them, and only what proves its exit counts.

use super::*;
use crate::support::planned::*;
use usher_core::reconcile::ApplicationState;
use usher_core::snapshot::{ObservedPod, ReferencedPod};

/// A replica that signs, and this pod as its webhook lets this creator create it, running.
pub(super) fn signed(scene: &mut Scene, review: &serde_json::Value) -> PodBuilder {
    scene.harness.apply(RelatedChange::SigningKey(Some(signing_key())));
    let admitted = answer(review, &signing(), &only(policy("volcano"))).object.into_pod();
    let name = admitted.0["metadata"]["name"].as_str().unwrap().to_owned();
    admitted.stored(&format!("uid-{name}")).phase("Running")
}

fn evicted(pod: PodBuilder) -> PodBuilder {
    let mut pod = version(pod, 5).phase("Failed");
    pod.0["status"]["reason"] = "Evicted".into();
    pod
}

pub(super) fn read(scene: &mut Scene, name: &str, found: ReferencedPod) {
    let pod = usher_spark::ids::PodKey::new("default", name);
    scene.harness.apply(RelatedChange::Referenced(pod, found, vec![AppKey::new("default", APP)]));
}

pub(super) fn present(pod: &PodBuilder) -> ReferencedPod {
    let ObservedPod::Other(_, pod) = pod.observation() else { panic!("a labelled pod") };
    ReferencedPod::Present(pod.into())
}

#[test]
fn executors_are_no_orphans_because_an_owner_that_did_not_create_them_ended() {
    let mut scene = Scene::new(act(RecoveryRule::Orphans));
    // A notebook creates executors, and names the pod that launched it as their owner.
    let owned = executor(1).owned_by("Pod", "launcher", "l1");
    let by_notebook = signed(&mut scene, &owned.created_by_pod("notebook", "n1"));
    let by_launcher =
        signed(&mut scene, &executor(2).owned_by("Pod", "launcher", "l1").created_by_pod("launcher", "l1"));
    scene.harness.observe(&by_notebook);
    scene.harness.observe(&by_launcher);
    read(&mut scene, "launcher", ReferencedPod::Absent);
    read(&mut scene, "notebook", present(&pod("notebook").stored("n1").phase("Running")));
    scene.run(1000);
    let names: Vec<String> = scene.deletions().iter().map(|(_, of)| of.event.pod.name().to_owned()).collect();
    assert_eq!(names, ["nb-exec-2"], "{:?}", scene.findings());
}

#[test]
fn executors_whose_owner_was_withheld_are_orphans_when_their_creator_is_gone() {
    // Volcano would add them to the group of their driver.
    let review = |id: u32, creator: (&str, &str), note: &str| {
        let pod = executor(id).spec("schedulerName", "volcano").annotation("spark-usher.io/driver", note);
        pod.created_by_pod(creator.0, creator.1)
    };
    let admitted = |review: &serde_json::Value, policies: &usher_core::policy::Policies| {
        let pod = answer(review, &signing(), policies).object.into_pod();
        let name = pod.0["metadata"]["name"].as_str().unwrap().to_owned();
        pod.stored(&format!("uid-{name}")).phase("Running")
    };
    // This replica has never seen the driver.
    let mut scene = Scene::new(act(RecoveryRule::Orphans));
    scene.harness.apply(RelatedChange::SigningKey(Some(signing_key())));
    let withheld = admitted(&review(1, ("notebook", "n1"), "creator/other/o1"), &only(policy("none")));
    // A tenant replaces the note after admission, or writes one where the webhook does not run.
    let replaced = admitted(&review(2, ("living", "l1"), ""), &only(policy("none")))
        .annotation("spark-usher.io/driver", "creator/notebook/n1");
    let unsigned = review_less(3).annotation("spark-usher.io/driver", "creator/notebook/n1");
    for pod in [&withheld, &replaced, &unsigned] {
        scene.harness.observe(pod);
    }
    scene.run(1000);
    let names: Vec<String> = scene.deletions().iter().map(|(_, of)| of.event.pod.name().to_owned()).collect();
    assert_eq!(names, ["nb-exec-1"], "{:?}", scene.findings());
    assert!(scene.deletions().iter().all(|(_, deletion)| {
        matches!(&deletion.check, Check::DriverGone(driver) if (driver.key.name(), &*driver.uid) == ("notebook", "n1"))
    }));
}

/// An executor that no webhook has seen.
fn review_less(id: u32) -> PodBuilder {
    without_owner(running(id)).spec("schedulerName", "volcano")
}

#[test]
fn refused_executors_of_an_account_that_is_bound_to_no_pod_are_only_reported() {
    let mut scene = Scene::new(acting());
    // A driver outside the cluster: its account signs, and no pod is known.
    let outside = signed(&mut scene, &executor(1).created_by("jane"));
    scene.harness.observe(&evicted(outside));
    scene.run(4000);
    assert_eq!(
        (scene.deletions(), scene.only_finding().outcome),
        (vec![], FindingOutcome::Kept(NoRemedy::UnknownDriver))
    );
}

#[test]
fn driver_that_ended_before_a_restart_still_keeps_its_executors() {
    check_owner_keeps();
}

pub(crate) fn check_owner_keeps() {
    // The one that runs may have a driver outside the cluster.
    for (keeps, expected) in [("false", 0), ("true", 1)] {
        let conf = format!("spark.kubernetes.executor.deleteOnTermination={keeps}");
        let mut scene = Scene::with_conf(acting(), &conf);
        scene.harness.observe(&version(driver().conf_map("c").ip("10.0.0.5"), 9).phase("Failed"));
        // The driver's token is bound to no pod.
        let owned = |id| executor(id).owned_by("Pod", "nb-driver", DRIVER_UID);
        let review = |id| owned(id).created_by("system:serviceaccount:default:spark");
        let (first, second) = (signed(&mut scene, &review(1)), signed(&mut scene, &review(2)));
        scene.harness.observe(&first);
        scene.harness.observe(&evicted(second));
        scene.run(4000);
        assert_eq!(scene.deletions().len(), expected, "deleteOnTermination={keeps}: {:?}", scene.findings());
    }
}

#[test]
fn hopeless_driver_is_deleted_only_while_its_view_answers() {
    let conf = "spark.executor.instances=2\nspark.kubernetes.submitInDriver=true";
    for (answers, outcome) in [
        (Answers::View(vec![], vec![], COMPLETE), FindingOutcome::Deleting),
        // It prepares its data before it creates its SparkContext, or works on after it stopped it.
        (Answers::Nothing, FindingOutcome::Kept(NoRemedy::NoView)),
        (Answers::Refused, FindingOutcome::Kept(NoRemedy::NoView)),
    ] {
        let mut scene = Scene::with_conf(act(RecoveryRule::Hopeless), conf);
        scene.answers = answers;
        scene.run(1900);
        assert_eq!(scene.only_finding().outcome, outcome);
        let asks = |deletion: &Recover| matches!(deletion.check, Check::NoExecutors(_));
        assert!(scene.deletions().iter().all(|(_, deletion)| asks(deletion)));
        assert_eq!(scene.deletions().len(), usize::from(outcome == FindingOutcome::Deleting));
    }
}

#[test]
fn driver_whose_executors_live_for_less_than_a_minute_is_not_hopeless() {
    for changes in (1400..1430).step_by(6) {
        let conf = "spark.executor.instances=1\nspark.kubernetes.submitInDriver=true";
        let mut scene = Scene::with_conf(act(RecoveryRule::Hopeless), conf);
        scene.run(changes);
        scene.harness.observe(&version(driver().conf_map("c").ip("10.0.0.5"), 9));
        // A round sees no executor, and the next one again: the first plan in which one is due is that of the exit.
        scene.run(62);
        scene.harness.observe(&running(1).phase("Pending"));
        scene.run(4);
        scene.harness.observe(&version(running(1), 3));
        scene.run(31);
        scene.harness.delete_pod("nb-exec-1", "e1");
        scene.run(1790);
        assert_eq!((scene.deletions(), scene.findings()), (vec![], vec![]), "{changes}");
        scene.run(120);
        assert_eq!(scene.deletions().len(), 1);
    }
}

#[test]
fn step_visits_a_bounded_number_of_executors_of_applications_with_views() {
    let mut scene = Scene::new(acting());
    let all: Vec<u64> = (1..=1000).collect();
    scene.registered(&all);
    for n in 0..6u32 {
        let (app, name, uid) = (format!("spark-{n}"), format!("d{n}"), format!("u{n}"));
        scene.harness.observe(&pod(&name).driver_of(&app).stored(&uid).phase("Running").ip(&format!("10.0.1.{n}")));
        for id in 1..=1000 {
            let executor = pod(&format!("{name}-exec-{id}")).executor_of(&app, id).stored(&format!("{name}-{id}"));
            scene.harness.observe(&executor.phase("Running").owned_by("Pod", &name, &uid));
        }
    }
    scene.run(180);
    scene.max_plans = 0;
    // Wherever the times of views and rounds are.
    for _ in 0..12 {
        scene.harness.controller.requeue_all();
        scene.run(35);
        // Rounds of three of them are more than a step may visit; one plan more has no round.
        assert!(scene.max_plans <= 4, "{}", scene.max_plans);
    }
    assert!(scene.max_plans >= 3, "the bound has ended a step");
}

#[test]
fn round_visits_only_executors_that_a_rule_can_concern() {
    let mut cluster = GangCluster::new(policy("none"));
    cluster.driver("spark.executor.instances=9");
    (1..=9).for_each(|id| _ = cluster.executor(id, "Running"));
    let visits = |cluster: &mut GangCluster| {
        (cluster.visited, cluster.memory) = (0, ApplicationState::default());
        cluster.settle().visited
    };
    assert_eq!(visits(&mut cluster), 0);
    let bound = executor(4).owned_by("Pod", "nb-driver", DRIVER_UID).spec("nodeName", "node-1");
    cluster.observe(&bound.stored("e4").phase("Pending"));
    assert_eq!(visits(&mut cluster), 1);
    // All are orphans.
    cluster.observe(&driver().conf_map("c").stored(DRIVER_UID).phase("Succeeded"));
    assert_eq!(visits(&mut cluster), 9);
    // The one that was starting runs.
    cluster.driver("spark.executor.instances=9").executor(4, "Running");
    assert_eq!(visits(&mut cluster), 0);
}

/// A driver whose Spark container exited while a sidecar runs.
fn lingering(at: u32) -> PodBuilder {
    let mut pod = version(driver().conf_map("c").ip("10.0.0.5"), at).phase("Running");
    pod.0["status"]["containerStatuses"] = json!([
        {"name": "spark-kubernetes-driver", "state": {"terminated": {"exitCode": 0}}},
        {"name": "sidecar", "state": {"running": {}}},
    ]);
    pod.0["spec"]["containers"] = json!([{"name": "spark-kubernetes-driver"}, {"name": "sidecar"}]);
    pod
}

#[test]
fn driver_that_restarts_is_no_zombie_and_one_of_a_workload_is_never_deleted() {
    check_lingering();
    check_workloads_driver();
}

pub(crate) fn check_lingering() {
    let mut scene = Scene::new(act(RecoveryRule::ZombieDriver));
    scene.harness.observe(&lingering(10));
    scene.run(300);
    // Its container runs again, and exits much later once more.
    scene.harness.observe(&version(driver().conf_map("c").ip("10.0.0.5"), 11));
    scene.run(3600);
    scene.harness.observe(&lingering(12));
    scene.run(300);
    assert_eq!((scene.deletions(), scene.findings()), (vec![], vec![]));
    scene.run(400);
    assert_eq!(scene.deletions().len(), 1);
}

pub(crate) fn check_workloads_driver() {
    let mut scene = Scene::new(act(RecoveryRule::ZombieDriver));
    scene.harness.observe(&lingering(10).owned_by("StatefulSet", "drivers", "s1"));
    scene.run(700);
    assert_eq!((scene.deletions(), scene.only_finding().outcome), (vec![], FindingOutcome::Kept(NoRemedy::Workload)));
}

#[test]
fn executor_that_is_missing_in_a_view_that_forgets_or_lags_is_not_found() {
    let removed: Vec<(u64, &'static str)> = (100..190).map(|id| (id, "lost")).collect();
    let lags = DriverMetrics { queued_events: Some(5000), ..COMPLETE };
    for answers in [Answers::View(vec![], removed, COMPLETE), Answers::View(vec![], vec![], lags)] {
        let mut scene = Scene::new(act(RecoveryRule::Unregistered));
        scene.harness.observe(&running(1));
        scene.answers = answers;
        scene.run(1000);
        assert_eq!((scene.deletions(), scene.findings()), (vec![], vec![]));
    }
}

#[test]
fn address_of_a_driver_that_is_gone_names_no_other_driver() {
    let mut scene = Scene::new(acting());
    let review = executor(1).driver_url("10.0.0.9").created_by_pod("notebook", "n1");
    let mut pod = signed(&mut scene, &review);
    pod.0["metadata"].as_object_mut().unwrap().remove("ownerReferences");
    scene.harness.observe(&pod);
    let other = support_driver("other-driver", "o1", "10.0.0.9");
    scene.harness.observe(&other);
    scene.run(30);
    let app = scene.harness.controller.snapshot().app("default", APP).unwrap().clone();
    let key = AppKey::new("default", APP);
    let sets = usher_core::ownership::liveness::shown_sets(&key, &app, scene.harness.controller.snapshot());
    let own = sets.iter().find(|set| set.index.is_some()).unwrap();
    assert!(own.driver.pod().is_none_or(|driver| &*driver.name != "other-driver"), "{:?}", own.driver);
}

/// A driver of another application.
fn support_driver(name: &str, uid: &str, address: &str) -> PodBuilder {
    pod(name).driver_of("spark-other").stored(uid).phase("Running").ip(address)
}

#[test]
fn change_shortly_after_a_round_causes_another_round() {
    let mut scene = Scene::new(acting());
    scene.harness.observe(&running(1));
    scene.run(30);
    // This change causes a round, and so it is too early for the next one.
    scene.harness.observe(&running(2));
    scene.run(1);
    scene.harness.observe(&version(driver().ip("10.0.0.5"), 9).phase("Failed"));
    scene.run(400);
    let times: Vec<u64> = scene.deletions().iter().map(|(at, _)| *at).collect();
    assert!(times.len() == 2 && times.iter().all(|at| (331..=338).contains(at)), "{times:?}");
}

#[test]
fn driver_whose_token_is_bound_to_no_pod_is_asked_about_the_executors_that_it_owns() {
    let mut scene = Scene::new(act(RecoveryRule::Unregistered));
    let review = executor(1).owned_by("Pod", "nb-driver", DRIVER_UID).created_by("system:serviceaccount:default:spark");
    let own = signed(&mut scene, &review);
    scene.harness.observe(&own.spec("nodeName", "node-1"));
    scene.registered(&[1]);
    scene.run(500);
    assert_eq!((scene.deletions(), scene.findings()), (vec![], vec![]));
    scene.registered(&[]);
    scene.run(500);
    assert_eq!(scene.deletions().len(), 1, "{:?}", scene.findings());
}
