//! Whether the driver of executors is alive, by each kind of evidence.

use crate::support::*;
use usher_core::ownership::liveness::{self, DriverLiveness, KnownDriver};
use usher_core::signature::Creator;
use usher_core::snapshot::{
    Application, Change, ObservedPod, Owner, OwnerKind, ReferencedPod, RelatedChange, Snapshot, Workload, WorkloadKey,
};
use usher_spark::ids::{AppKey, PodIdentity, PodKey};

const ADDRESS: &str = "10.0.0.5";

fn key() -> AppKey {
    AppKey::new("default", APP)
}

/// The driver's name and whether that is certain, or Gone, or Unknown, for each set of executors.
fn drivers(snapshot: &Snapshot, learned: Option<&KnownDriver>) -> Vec<(Option<Creator>, String)> {
    let nothing = Application::default();
    let app = snapshot.app("default", APP).map_or(&nothing, |app| &**app);
    let sets = liveness::executor_sets(&key(), app, snapshot, std::iter::empty(), |_| learned.cloned());
    sets.into_iter().map(|set| (set.creator, shown(&set.driver, set.is_certain))).collect()
}

fn shown(driver: &DriverLiveness, is_certain: bool) -> String {
    match driver {
        DriverLiveness::Alive(pod) if is_certain => pod.name.to_string(),
        DriverLiveness::Alive(pod) => format!("{} by its label", pod.name),
        DriverLiveness::Gone => "Gone".to_owned(),
        DriverLiveness::Unknown => "Unknown".to_owned(),
    }
}

/// The only set's driver.
fn driver_of(snapshot: &Snapshot, learned: Option<&KnownDriver>) -> String {
    let [(_, driver)] = <[_; 1]>::try_from(drivers(snapshot, learned)).unwrap();
    driver
}

/// An executor that neither names an owner nor is signed.
fn unclaimed(id: u32, address: &str) -> PodBuilder {
    executor(id).stored(&format!("e{id}")).driver_url(address)
}

fn owned(id: u32, uid: &str) -> PodBuilder {
    unclaimed(id, ADDRESS).owned_by("Pod", "nb-driver", uid)
}

fn absent(snapshot: &mut Snapshot, name: &str) {
    let pod = PodKey::new("default", name);
    snapshot.apply(RelatedChange::Referenced(pod, ReferencedPod::Absent, vec![]));
}

/// A pod without Spark's labels, which was read by name.
fn referenced(snapshot: &mut Snapshot, pod: &PodBuilder) {
    let ObservedPod::Other(key, pod) = pod.observation() else { panic!("a labelled pod") };
    let pod = ReferencedPod::Present(pod.into());
    snapshot.apply(RelatedChange::Referenced(key, pod, vec![]));
}

fn notebook(ip: &str) -> PodBuilder {
    pod("notebook").stored("n1").phase("Running").ip(ip)
}

#[test]
fn address_identifies_driver_only_if_all_unclaimed_executors_have_it() {
    let mut snapshot = snapshot_with(&[unclaimed(1, ADDRESS), unclaimed(2, ADDRESS), driver().ip(ADDRESS)]);
    let of_unclaimed = |snapshot: &Snapshot| drivers(snapshot, None).swap_remove(0);
    assert_eq!(of_unclaimed(&snapshot), (None, "nb-driver".to_owned()));
    observe(&mut snapshot, &unclaimed(3, "10.0.0.6"));
    assert_eq!(of_unclaimed(&snapshot), (None, "nb-driver by its label".to_owned()));
}

#[test]
fn known_driver_that_is_gone_counts_only_for_unclaimed_executors_with_its_address() {
    let mut snapshot = snapshot_with(&[unclaimed(1, ADDRESS), unclaimed(2, ADDRESS)]);
    absent(&mut snapshot, "notebook");
    let known =
        |host: &str| KnownDriver { pod: PodIdentity::new("default", "notebook", "n0"), host: Some(host.into()) };
    assert_eq!(driver_of(&snapshot, Some(&known(ADDRESS))), "Gone");
    assert_eq!(driver_of(&snapshot, Some(&known("10.0.0.6"))), "Unknown");
    assert_eq!(driver_of(&snapshot, None), "Unknown");
    // Another pod took over its address, and with it its executors.
    referenced(&mut snapshot, &pod("next").stored("n2").phase("Running").ip(ADDRESS));
    assert_eq!(driver_of(&snapshot, Some(&known(ADDRESS))), "next");
    // While the pod of its name was not read, it may be alive.
    let snapshot = snapshot_with(&[unclaimed(1, ADDRESS)]);
    assert_eq!(driver_of(&snapshot, Some(&known(ADDRESS))), "Unknown");
}

#[test]
fn owner_that_is_gone_decides_whatever_has_the_driver_address_now() {
    let mut snapshot = snapshot_with(&[owned(1, "d0")]);
    referenced(&mut snapshot, &notebook(ADDRESS));
    assert_eq!(driver_of(&snapshot, None), "Unknown", "the owner was not read yet");
    absent(&mut snapshot, "nb-driver");
    assert_eq!(driver_of(&snapshot, None), "Gone");
}

#[test]
fn application_is_gone_only_if_the_driver_of_each_set_is() {
    let of = |snapshot: &Snapshot| {
        let nothing = Application::default();
        let app = snapshot.app("default", APP).map_or(&nothing, |app| &**app);
        shown(&liveness::of(&liveness::shown_sets(&key(), app, snapshot)), true)
    };
    assert_eq!(of(&Snapshot::default()), "Unknown", "nothing proves that a driver existed");
    let mut snapshot = snapshot_with(&[owned(1, "d0")]);
    absent(&mut snapshot, "nb-driver");
    assert_eq!(of(&snapshot), "Gone");
    observe(&mut snapshot, &unclaimed(2, "10.0.0.6"));
    assert_eq!(of(&snapshot), "Unknown");
    observe(&mut snapshot, &driver());
    assert_eq!(of(&snapshot), "nb-driver");
}

#[test]
fn creators_are_those_of_executors_and_labelled_drivers() {
    let snapshot = snapshot_with(&[owned(1, DRIVER_UID), driver()]);
    let app = snapshot.app("default", APP).unwrap();
    let nb = Some(Creator::of_pod("nb-driver", DRIVER_UID));
    assert_eq!(liveness::creators(app).collect::<Vec<_>>(), [nb, nb]);
    assert!(liveness::is_all_of(app, nb) && !liveness::is_all_of(app, None));
    let snapshot = snapshot_with(&[owned(1, DRIVER_UID), unclaimed(2, ADDRESS)]);
    let app = snapshot.app("default", APP).unwrap();
    assert!(!liveness::is_all_of(app, nb) && !liveness::is_all_of(app, None));
}

#[test]
fn driver_that_owns_the_stateful_set_of_executors_is_their_driver() {
    let executor = |id| executor(id).stored(&format!("e{id}")).owned_by("StatefulSet", "set", "s1");
    let mut snapshot = snapshot_with(&[executor(1), executor(2)]);
    assert_eq!(driver_of(&snapshot, None), "Unknown");
    let set = |uid: &str, owner: Option<Owner>| {
        let set = WorkloadKey { kind: OwnerKind::StatefulSet, object: PodKey::new("default", "set") };
        let workload = Workload { uid: uid.into(), owner, replicas: Some(2) };
        Change::Related(RelatedChange::Workload(set, Some(workload), vec![key()]))
    };
    let notebook_owns = || Some(Owner::of_pod("notebook".into(), "n1".into()));
    let enqueued = snapshot.apply(set("s1", notebook_owns())).touched;
    assert_eq!(enqueued.into_iter().collect::<Vec<_>>(), [key()], "the application is planned again");
    assert_eq!(driver_of(&snapshot, None), "Unknown", "the pod has not been read yet");
    referenced(&mut snapshot, &notebook("10.0.0.9"));
    assert_eq!(driver_of(&snapshot, None), "notebook");
    let app = snapshot.app("default", APP).unwrap().clone();
    let sets = liveness::shown_sets(&key(), &app, &snapshot);
    assert_eq!(sets[0].own_driver().map(|driver| driver.name.to_string()), Some("notebook".to_owned()));
    assert_eq!(sets[0].replicas(&snapshot, "default", |_| true), Some(2));
    // The StatefulSet was deleted and created again, or belongs to no pod: its pods prove nothing about the notebook.
    snapshot.apply(set("s2", notebook_owns()));
    assert_eq!(driver_of(&snapshot, None), "Unknown");
    snapshot.apply(set("s1", None));
    assert_eq!(driver_of(&snapshot, None), "Unknown");
    snapshot.apply(set("s1", notebook_owns()));
    absent(&mut snapshot, "notebook");
    assert_eq!(driver_of(&snapshot, None), "Gone");
}

#[test]
fn stateful_set_that_names_a_driver_is_not_its_own_if_the_driver_itself_has_created_executors() {
    let set = WorkloadKey { kind: OwnerKind::StatefulSet, object: PodKey::new("default", "forged") };
    let owner = Some(Owner::of_pod("nb-driver".into(), DRIVER_UID.into()));
    let workload = Workload { uid: "f1".into(), owner, replicas: Some(100_000) };
    let forged = executor(7).stored("e7").owned_by("StatefulSet", "forged", "f1");
    let mut snapshot = snapshot_with(&[driver(), forged]);
    snapshot.apply(RelatedChange::Workload(set, Some(workload), vec![]));
    let own = |snapshot: &Snapshot| {
        let app = snapshot.app("default", APP).unwrap().clone();
        let sets = liveness::shown_sets(&key(), &app, snapshot);
        sets.iter()
            .filter(|set| set.index.is_some() && set.own_driver().is_some())
            .map(|set| set.creator)
            .collect::<Vec<_>>()
    };
    assert_eq!(own(&snapshot), [Some(Creator::of_workload("forged", "f1"))]);
    observe(&mut snapshot, &owned(1, DRIVER_UID));
    assert_eq!(own(&snapshot), [Some(Creator::of_pod("nb-driver", DRIVER_UID))]);
}

#[test]
fn driver_with_the_label_of_an_executor_is_not_gone() {
    // As a GET returns the pod, which is no driver by its label any more.
    let mut snapshot = snapshot_with(&[owned(1, DRIVER_UID)]);
    let patched = driver().label("spark-role", "executor").without_label("spark-app-selector");
    referenced(&mut snapshot, &patched);
    assert_eq!(driver_of(&snapshot, None), "Unknown");
    referenced(&mut snapshot, &patched.clone().phase("Failed"));
    assert_eq!(driver_of(&snapshot, None), "Gone");
    // Another executor that has the name of the deleted driver.
    let squatted = driver().label("spark-role", "executor").stored("another");
    let mut snapshot = snapshot_with(&[owned(1, DRIVER_UID)]);
    observe(&mut snapshot, &squatted);
    let of_deleted = drivers(&snapshot, None).into_iter().find(|(creator, _)| creator.is_some());
    assert_eq!(of_deleted.unwrap().1, "Gone");
    // With the application's label, the snapshot counts it among the executors.
    let mut snapshot = snapshot_with(&[owned(1, DRIVER_UID)]);
    observe(&mut snapshot, &driver().label("spark-role", "executor"));
    assert!(drivers(&snapshot, None).iter().all(|(_, driver)| driver == "Unknown"), "{:?}", drivers(&snapshot, None));
}

#[test]
fn unsigned_executors_do_not_choose_the_driver_of_a_workloads_executors() {
    let policies = only(policy("volcano"));
    let set = || executor(1).named("set-0").owned_by("StatefulSet", "set", "s1");
    let controller = "system:serviceaccount:kube-system:statefulset-controller";
    let mut snapshot = signing();
    observe(&mut snapshot, &driver().ip(ADDRESS));
    observe(&mut snapshot, &pod("evil").driver_of("spark-evil").ip("10.0.0.66").stored("v1").phase("Running"));
    let forged = executor(0).stored("e0").driver_url("10.0.0.66").owned_by("StatefulSet", "set", "s1");
    observe(&mut snapshot, &forged);
    let of_set = |snapshot: &Snapshot| {
        let all = drivers(snapshot, None);
        all.into_iter().find(|(creator, _)| *creator == Some(Creator::of_workload("set", "s1"))).unwrap().1
    };
    assert_eq!(of_set(&snapshot), "Unknown");
    let signed = answer(&set().driver_url(ADDRESS).created_by(controller), &snapshot, &policies).object;
    observe(&mut snapshot, &PodBuilder(signed).stored("e1"));
    assert_eq!(of_set(&snapshot), "nb-driver");
}
