//! Executors whose owner is gone, and what contradicts that their driver is.

use super::drivers::{present, read, signed};
use super::*;
use crate::support::planned::*;
use usher_core::policy::{Finished, Lifecycle};
use usher_core::recovery::cost::WasteCause;
use usher_core::snapshot::{PodChange, ReferencedPod};

const BEFORE: &str = "2025-11-20T00:00:00Z";
const AFTER: &str = "2025-11-21T00:00:00Z";

fn created(mut pod: PodBuilder, at: &str) -> PodBuilder {
    pod.0["metadata"]["creationTimestamp"] = at.into();
    pod
}

/// An executor whose controlling owner is the pod that launched its driver.
fn launched() -> PodBuilder {
    let pod = without_owner(running(1)).spec("nodeName", "node-1").owned_by("Pod", "launcher", "l1");
    created(pod, "2025-11-20T12:00:00Z")
}

fn owned_too(mut pod: PodBuilder, name: &str, uid: &str) -> PodBuilder {
    let owners = pod.0["metadata"]["ownerReferences"].as_array_mut().unwrap();
    owners.push(json!({"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid}));
    pod
}

/// A scene without a labelled driver, in which the launcher has been deleted.
fn scene(executor: &PodBuilder) -> Scene {
    let mut scene = Scene::new(act(RecoveryRule::Orphans));
    scene.harness.delete_pod("nb-driver", DRIVER_UID);
    scene.harness.observe(executor);
    read(&mut scene, "launcher", ReferencedPod::Absent);
    scene
}

/// A driver that was never deleted.
fn labelled_driver() -> PodBuilder {
    driver().stored("d2")
}

fn notebook() -> PodBuilder {
    created(pod("notebook").stored("n1").phase("Running").ip("10.0.0.7"), BEFORE)
}

/// Asserts that this executor is kept, and which pod the finding names.
fn assert_kept(mut scene: Scene, says: &str) {
    scene.run(1000);
    let finding = scene.findings().into_iter().find(|finding| finding.rule == RecoveryRule::Orphans).expect(says);
    assert_eq!((scene.deletions(), finding.outcome), (vec![], FindingOutcome::Kept(NoRemedy::Contradicted)), "{says}");
    assert!(finding.message.ends_with(says), "{}", finding.message);
    let mut costs = scene.harness.controller.costs().apps();
    let is_counted = costs.any(|(_, cause, amount)| cause == WasteCause::Orphaned && amount.core_seconds > 0.0);
    assert!(is_counted, "it costs all the same: {says}");
}

fn assert_deleted(mut scene: Scene, what: &str) {
    scene.run(1000);
    assert_eq!(scene.deletions().len(), 1, "{what}: {:?}", scene.findings());
}

#[test]
fn executor_is_deleted_only_if_no_pod_that_may_be_its_driver_runs() {
    assert_deleted(scene(&launched()), "nothing contradicts");

    let label = || created(labelled_driver(), BEFORE);
    let mut labelled = scene(&launched());
    labelled.harness.observe(&label());
    assert_kept(labelled, "; pod nb-driver runs and is labelled as its driver");

    let mut owned = scene(&owned_too(launched(), "notebook", "n1"));
    read(&mut owned, "notebook", present(&notebook()));
    assert_kept(owned, "; pod notebook runs and owns it");

    let mut at_address = scene(&launched().driver_url("10.0.0.7"));
    read(&mut at_address, "notebook", present(&notebook()));
    assert_kept(at_address, "; pod notebook runs and has the address of its driver");

    for (pod, what) in [
        (created(labelled_driver(), AFTER), "it is younger than the executor"),
        (label().phase("Pending"), "it does not run"),
        (label().phase("Failed"), "it has exited"),
    ] {
        let mut scene = scene(&launched());
        scene.harness.observe(&pod);
        assert_deleted(scene, what);
    }
}

#[test]
fn executor_is_kept_if_another_driver_of_its_application_says_that_it_is_registered() {
    // A driver without labels, which owns another executor.
    let mut scene = scene(&launched());
    let second = created(without_owner(running(2)).owned_by("Pod", "notebook", "n1"), "2025-11-20T12:00:00Z");
    scene.harness.observe(&second);
    read(&mut scene, "notebook", present(&notebook()));
    scene.registered(&[1, 2]);
    assert_kept(scene, "; pod notebook runs and says that it is registered");
}

/// An executor that this pod created, by our signature, and that names the launcher as its owner.
fn signed_by(scene: &mut Scene, creator: (&str, &str)) -> PodBuilder {
    let review = executor(1).owned_by("Pod", "launcher", "l1").created_by_pod(creator.0, creator.1);
    created(signed(scene, &review).spec("nodeName", "node-1"), "2025-11-20T12:00:00Z")
}

#[test]
fn pod_contradicts_the_proven_creator_only_if_it_is_that_or_was_created_by_it() {
    let launched_driver = |by: (&str, &str)| {
        let review = driver().created_by_pod(by.0, by.1);
        let pod = answer(&review, &signing(), &only(policy("volcano"))).object.into_pod();
        created(pod.stored("d2").phase("Running"), BEFORE)
    };
    for (by, is_kept) in [(("launcher", "l1"), true), (("another", "a1"), false)] {
        let mut scene = Scene::new(act(RecoveryRule::Orphans));
        scene.harness.delete_pod("nb-driver", DRIVER_UID);
        let executor = signed_by(&mut scene, ("launcher", "l1"));
        scene.harness.observe(&executor);
        read(&mut scene, "launcher", ReferencedPod::Absent);
        scene.harness.observe(&launched_driver(by));
        match is_kept {
            true => assert_kept(scene, "; pod nb-driver runs and is labelled as its driver"),
            false => assert_deleted(scene, "a tenant labels a pod as the driver of another's application"),
        }
    }
}

#[test]
fn executor_that_no_pod_created_is_kept() {
    let mut scene = Scene::new(act(RecoveryRule::Orphans));
    scene.harness.delete_pod("nb-driver", DRIVER_UID);
    let outside = signed(&mut scene, &executor(1).owned_by("Pod", "anchor", "a1").created_by("jane"));
    scene.harness.observe(&outside.spec("nodeName", "node-1"));
    read(&mut scene, "anchor", ReferencedPod::Absent);
    assert_kept(scene, "; an account created it, and no pod, so its driver may run outside the cluster");

    let marked = launched().annotation("spark-usher.io/driver", "foreign-creator");
    assert_kept(self::scene(&marked), "; another account than its driver's created it");
}

#[test]
fn finished_executors_are_left_to_a_driver_whose_end_is_contradicted() {
    for (labels_driver, expected) in [(true, 0), (false, 1)] {
        let mut scene = Scene::new(acting());
        let lifecycle = Lifecycle { finished: Finished::Label, ..scene.harness.policies.lifecycle };
        scene.harness.policies = scene.harness.policies.clone().with_lifecycle(lifecycle);
        scene.harness.delete_pod("nb-driver", DRIVER_UID);
        read(&mut scene, "launcher", ReferencedPod::Absent);
        if labels_driver {
            scene.harness.observe(&created(labelled_driver(), BEFORE));
        }
        scene.harness.observe(&launched());
        scene.harness.observe(&version(launched().phase("Failed"), 9));
        scene.run(5);
        let cleanups = scene.actions.iter().filter(|(_, action)| matches!(action, Action::CleanUp { .. }));
        assert_eq!(cleanups.count().min(1), expected, "{:?}", scene.actions);
    }
}

#[test]
fn executor_whose_second_owner_is_left_is_deleted_when_its_driver_is_gone() {
    let mut scene = Scene::new(act(RecoveryRule::Orphans));
    let application =
        json!({"apiVersion": "spark.apache.org/v1", "kind": "SparkApplication", "name": "pi", "uid": "s1"});
    let mut review = executor(1).owned_by("Pod", "nb-driver", DRIVER_UID);
    review.0["metadata"]["ownerReferences"].as_array_mut().unwrap().push(application.clone());
    let mut pod = signed(&mut scene, &review.created_by_pod("nb-driver", DRIVER_UID));
    scene.harness.observe(&pod);
    scene.harness.delete_pod("nb-driver", DRIVER_UID);
    // The garbage collector removes the reference to the driver.
    pod.0["metadata"]["ownerReferences"] = json!([application]);
    scene.harness.observe(&version(pod, 9));
    // A replica that knows only what is left.
    scene.run(1000);
    let deletions = scene.deletions();
    assert!(
        matches!(&*deletions, [(_, of)] if of.check == Check::DriverGone(PodIdentity::new("default", "nb-driver", DRIVER_UID))),
        "{deletions:?} {:?}",
        scene.findings()
    );
}

#[test]
fn driver_that_loses_its_label_is_not_gone() {
    let mut scene = Scene::new(act(RecoveryRule::Orphans));
    scene.harness.observe(&running(1));
    scene.run(2);
    // The watch reports the pod as deleted, with its last labels.
    scene.harness.apply(PodChange::Deleted(version(driver(), 9).observation()));
    let snapshot = scene.harness.controller.snapshot();
    let key = usher_spark::ids::PodKey::new("default", "nb-driver");
    assert_eq!(snapshot.referenced.get(&key), None, "a GET decides");
}

#[test]
fn another_tenants_pods_do_not_decide_that_executors_are_kept() {
    let mut scene = Scene::new(act(RecoveryRule::Orphans));
    let own = signed(&mut scene, &executor(1).created_by_pod("nb-driver", DRIVER_UID));
    scene.harness.observe(&own.spec("nodeName", "node-1"));
    // An unsigned executor that names the same owner, one that is labelled inactive, and a driver whose configuration says nothing.
    let forged = |id: u32| without_owner(running(id)).named(&format!("forged-{id}")).stored(&format!("f{id}"));
    scene.harness.observe(&forged(7).owned_by("Pod", "nb-driver", DRIVER_UID));
    scene.harness.observe(&forged(8).owned_by("Pod", "nb-driver", DRIVER_UID).label("spark-exec-inactive", "true"));
    scene.harness.observe(&pod("decoy").driver_of(APP).stored("d9").phase("Running").conf_map("decoy"));
    scene.harness.delete_pod("nb-driver", DRIVER_UID);
    scene.run(1000);
    let deleted: Vec<&str> = scene.deletions().iter().map(|(_, of)| of.event.pod.name()).collect();
    assert_eq!(deleted, ["nb-exec-1"], "{:?}", scene.findings());
}
