//! Executors that a pod of another namespace created: a notebook whose session runs executors in the namespace of a team.

use super::drivers::{present, signed};
use super::*;
use usher_core::controller::{Lookup, missing, required};
use usher_core::policy::{Finished, Lifecycle};
use usher_core::snapshot::ReferencedPod;
use usher_report::views;

const ADDRESS: &str = "10.8.0.7";
/// Seconds until a plan has seen a pod: it waits for the lookup of the address, which nothing answers here.
const SEEN: u64 = 40;
const SERVICE: &str = "nb-0.hub.svc.cluster.local";

/// Without a driver in the namespace.
fn scene(recovery: Recovery) -> Scene {
    let mut scene = Scene::new(recovery);
    scene.harness.delete_pod("nb-driver", DRIVER_UID);
    scene
}

fn notebook(uid: &str, address: &str) -> PodBuilder {
    pod("nb-0").namespace("hub").stored(uid).phase("Running").ip(address)
}

/// An executor that the notebook created, pending, with this address of its driver.
fn created(scene: &mut Scene, id: u32, host: &str) -> PodBuilder {
    let executor = without_owner(executor(id)).driver_url(host);
    signed(scene, &review(&executor.0, by_pod("hub", "jupyter", "nb-0", "n1"))).phase("Pending")
}

/// The answer to a GET of the notebook's pod.
fn found(scene: &mut Scene, found: ReferencedPod) {
    let (pod, waiters) = (PodKey::new("hub", "nb-0"), vec![AppKey::new("default", APP)]);
    scene.harness.apply(RelatedChange::Referenced(pod, found, waiters));
}

/// A pending executor with this address of its driver, whose notebook had another, or the same, until it was deleted.
fn left(host: &str, address: &str) -> Scene {
    let mut scene = scene(act(RecoveryRule::Orphans));
    let pod = created(&mut scene, 1, host);
    scene.harness.observe(&pod);
    found(&mut scene, present(&notebook("n1", address)));
    scene.run(SEEN);
    assert_eq!((scene.deletions(), scene.findings()), (vec![], vec![]), "it runs");
    found(&mut scene, ReferencedPod::Absent);
    scene
}

/// What `why` says of the only executor, and of its driver.
fn shown(scene: &Scene) -> (String, String) {
    let now = scene.harness.now().wall;
    let snapshot = scene.harness.controller.snapshot();
    let report = views::why(snapshot, &scene.harness.history(), "nb-exec-1", None, now);
    let executors: Vec<String> = report.executors.iter().filter_map(|executor| executor.what.why.clone()).collect();
    let apps = views::apps(snapshot, &scene.harness.history(), None, now);
    (apps[0].driver.pod.clone().unwrap_or_default(), executors.join("\n"))
}

#[test]
fn pending_executor_is_deleted_once_the_pod_of_its_driver_in_another_namespace_is_gone() {
    let mut scene = left(ADDRESS, ADDRESS);
    scene.run(1000);
    let deletions = scene.deletions();
    let [(_, deletion)] = &*deletions else { panic!("{deletions:?} {:?}", scene.findings()) };
    assert_eq!(deletion.check, Check::DriverGone(PodIdentity::new("hub", "nb-0", "n1")), "and that pod is read again");
    let message = &deletion.event.message;
    assert!(
        message.contains("is pending, although its driver, pod hub/nb-0, which created it, has been gone for"),
        "{message}"
    );
    let (_, why) = shown(&scene);
    assert!(why.contains("pod hub/nb-0, which exited or was deleted, created it, and no pod can own one of"), "{why}");
}

#[test]
fn executors_that_run_are_left_to_their_connection() {
    let mut scene = scene(act(RecoveryRule::Orphans));
    for (id, phase) in [(1, "Running"), (2, "Failed")] {
        let pod = created(&mut scene, id, SERVICE).phase(phase);
        scene.harness.observe(&pod);
    }
    // Executors of a driver that is gone, in the same application: a round visits all.
    let launched = executor(3).owned_by("Pod", "launcher", "l1").created_by_pod("launcher", "l1");
    let launched = signed(&mut scene, &launched);
    scene.harness.observe(&launched);
    scene.run(1000);
    let names: Vec<String> = scene.deletions().iter().map(|(_, of)| of.event.pod.name().to_owned()).collect();
    assert_eq!(names, ["nb-exec-3"], "{:?}", scene.findings());
}

#[test]
fn notebook_that_was_started_again_is_another_driver() {
    // JupyterHub creates the pod again under the same name.
    let mut scene = left(ADDRESS, ADDRESS);
    found(&mut scene, present(&notebook("n2", "10.8.0.9")));
    scene.run(1000);
    assert_eq!(scene.deletions().len(), 1, "{:?}", scene.findings());
}

#[test]
fn name_in_the_namespace_of_the_creator_is_evidence_that_needs_no_memory() {
    // This replica has never seen the notebook.
    let mut scene = scene(act(RecoveryRule::Orphans));
    let pod = created(&mut scene, 1, SERVICE);
    scene.harness.observe(&pod);
    scene.run(1000);
    assert_eq!(scene.deletions().len(), 1, "{:?}", scene.findings());
}

#[test]
fn end_of_a_creator_that_did_not_have_the_address_of_the_driver_proves_nothing() {
    // A gateway creates executors for the drivers in its namespace, or copies the pods of another cluster; it restarts, and they run.
    for host in [ADDRESS, "nb-1.hub.svc", "nb-0.hub.svc.clusterset.local", "driver.team.svc", "driver.example.org"] {
        let mut scene = left(host, "10.8.0.1");
        scene.run(1000);
        assert_eq!((scene.deletions(), scene.findings()), (vec![], vec![]), "{host}");
        assert_eq!(shown(&scene).0, "", "{host}: nor is it shown as the driver");
    }
}

#[test]
fn driver_that_runs_in_the_namespace_of_the_executors_keeps_them() {
    let witnesses: [fn() -> PodBuilder; 2] = [
        // By its label, and by its address.
        || driver().stored("d9").phase("Running").ip("10.0.0.99"),
        || pod("session").stored("s1").phase("Running").ip(ADDRESS),
    ];
    for witness in witnesses {
        let mut scene = left(ADDRESS, ADDRESS);
        let witness = witness();
        for _ in 0..20 {
            match witness.0["metadata"]["labels"]["spark-role"].is_string() {
                true => scene.harness.observe(&witness),
                // Each periodic read of it finds nothing here.
                false => super::drivers::read(&mut scene, "session", present(&witness)),
            }
            scene.run(50);
        }
        assert_eq!(scene.deletions(), vec![], "{:?}", scene.findings());
    }
}

#[test]
fn executors_are_not_gone_while_the_pod_that_created_them_was_not_read() {
    let mut scene = scene(act(RecoveryRule::Orphans));
    let pod = created(&mut scene, 1, SERVICE);
    scene.harness.observe(&pod);
    let snapshot = scene.harness.controller.snapshot();
    let lookups = missing(snapshot, &AppKey::new("default", APP), &scene.harness.policies, &[]);
    assert!(lookups.contains(&Lookup::Pod(PodKey::new("hub", "nb-0"))), "{lookups:?}");
    let (driver, why) = shown(&scene);
    assert_eq!(driver, "hub/nb-0");
    assert!(why.contains("pod hub/nb-0 created it, and no pod can own one of another namespace"), "{why}");
}

#[test]
fn finished_executor_of_a_notebook_that_is_gone_is_not_cleaned_up() {
    // Whether its driver keeps its executors was never known.
    let mut scene = scene(acting());
    let lifecycle = Lifecycle { finished: Finished::Delete, ..Lifecycle::default() };
    scene.harness.policies = scene.harness.policies.clone().with_lifecycle(lifecycle);
    let pod = created(&mut scene, 1, SERVICE);
    scene.harness.observe(&pod);
    scene.harness.observe(&version(pod, 9).phase("Failed"));
    let actions = scene.harness.actions_within(4000);
    assert!(!actions.iter().any(|(_, action)| matches!(action, Action::CleanUp { .. })), "{actions:?}");
}

#[test]
fn nothing_of_a_creator_in_another_namespace_is_read_but_its_pod() {
    let mut scene = scene(act(RecoveryRule::Orphans));
    let pod = created(&mut scene, 1, SERVICE);
    scene.harness.observe(&pod);
    // It has a volume as Spark's drivers have: its ConfigMap is in its own namespace.
    found(&mut scene, present(&notebook("n1", ADDRESS).conf_map("conf").phase("Pending")));
    let (snapshot, key) = (scene.harness.controller.snapshot(), AppKey::new("default", APP));
    let lookups = required(snapshot, &key, &scene.harness.policies, &[]);
    let others = lookups.iter().filter(|lookup| !matches!(lookup, Lookup::Messages(..)));
    assert!(others.eq([&Lookup::Pod(PodKey::new("hub", "nb-0"))]), "{lookups:?}");
}

#[test]
fn creator_of_another_namespace_neither_adopts_nor_is_polled() {
    let mut scene = scene(acting());
    let pod = created(&mut scene, 1, ADDRESS).phase("Running");
    scene.harness.observe(&pod);
    found(&mut scene, present(&notebook("n1", ADDRESS)));
    for _ in 0..50 {
        let effects = scene.harness.step_after(1);
        let actions = effects.actions.into_iter().flat_map(|(_, all)| all);
        let adopts = actions.filter(|action| matches!(action, Action::Adopt { .. })).count();
        assert_eq!((effects.driver_polls.len(), adopts), (0, 0));
    }
}
