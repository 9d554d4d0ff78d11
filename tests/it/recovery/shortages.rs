//! Since when an application lacks executors, and its PodGroups in the report.

use super::*;
use usher_report::views::{self, AppReport};

fn report(scene: &Scene) -> AppReport {
    let now = scene.harness.now().wall;
    views::apps(scene.harness.controller.snapshot(), &scene.harness.history(), None, now).remove(0)
}

fn since(scene: &mut Scene) -> Option<String> {
    scene.harness.step_after(1); // Records exits.
    report(scene).shortage.unwrap().since
}

fn created(mut pod: PodBuilder, at: &str) -> PodBuilder {
    pod.0["metadata"]["creationTimestamp"] = at.into();
    pod
}

fn ended(id: u32, at: &str) -> PodBuilder {
    let mut pod = failed(id, 137);
    pod.0["status"]["containerStatuses"][0]["state"]["terminated"]["finishedAt"] = at.into();
    pod
}

/// Ran from one time to another.
fn ran(id: u32, from: &str, to: &str) -> PodBuilder {
    let mut pod = created(ended(id, to), from);
    pod.0["status"]["containerStatuses"][0]["state"]["terminated"]["startedAt"] = from.into();
    pod
}

#[test]
fn shortage_began_when_fewer_ran_than_the_application_wants() {
    let start =
        |instances: usize| Scene::with_conf(Recovery::default(), &format!("spark.executor.instances={instances}"));
    let pending = |id, at| created(running(id).phase("Pending"), at);
    // As many never ran: since the driver's pod exists; else since the first that is known.
    let mut scene = start(4);
    scene.harness.observe(&created(running(1), "2026-11-20T01:00:00Z"));
    scene.harness.observe(&pending(2, "2026-11-20T03:00:00Z"));
    assert_eq!(since(&mut scene).as_deref(), Some("2026-11-20T01:00:00Z"));
    let mut driver = version(driver().conf_map("c").ip("10.0.0.5"), 9);
    driver.0["metadata"]["creationTimestamp"] = "2026-11-19T01:00:00Z".into();
    scene.harness.observe(&driver);
    assert_eq!(since(&mut scene).as_deref(), Some("2026-11-19T01:00:00Z"));
    // One was lost, and is pending again: since it was lost.
    let mut scene = start(2);
    scene.harness.observe(&created(running(1), "2026-11-20T01:00:00Z"));
    scene.harness.observe(&ran(2, "2026-11-20T01:00:00Z", "2026-11-20T02:30:00Z"));
    scene.harness.observe(&pending(3, "2026-11-20T02:45:00Z"));
    assert_eq!(since(&mut scene).as_deref(), Some("2026-11-20T02:30:00Z"));
    // An exit that was made up for long ago does not count: both ran again until the last exit.
    let mut scene = start(2);
    scene.harness.observe(&created(running(1), "2026-11-20T01:00:00Z"));
    scene.harness.observe(&ran(2, "2026-11-20T01:00:00Z", "2026-11-20T02:00:00Z"));
    scene.harness.observe(&ran(3, "2026-11-20T02:00:00Z", "2026-11-20T07:00:00Z"));
    assert_eq!(since(&mut scene).as_deref(), Some("2026-11-20T07:00:00Z"));
    // Of two that are lost one after the other, since the first.
    let mut scene = start(2);
    scene.harness.observe(&ran(1, "2026-11-20T01:00:00Z", "2026-11-20T05:00:00Z"));
    scene.harness.observe(&ran(2, "2026-11-20T01:00:00Z", "2026-11-20T06:00:00Z"));
    assert_eq!(since(&mut scene).as_deref(), Some("2026-11-20T05:00:00Z"));
}

#[test]
fn each_pod_group_counts_its_own_executors_on_a_node() {
    let mut scene = Scene::new(Recovery::default());
    scene.harness.apply(listed(vec![(group_key("g-0"), group(true)), (group_key("g-1"), group(false))]));
    for (id, name, node) in [(1, "g-0", Some("n")), (2, "g-0", Some("n")), (3, "g-1", Some("n")), (4, "g-1", None)] {
        let pod = member(running(id), name);
        scene.harness.observe(&node.map_or(pod.clone(), |node| pod.spec("nodeName", node)));
    }
    // One that has failed does not count.
    scene.harness.observe(&member(failed(5, 1), "g-0").spec("nodeName", "n"));
    let groups = report(&scene).groups;
    let shown: Vec<_> = groups.iter().map(|group| (&*group.name, group.size, group.started, group.bound)).collect();
    assert_eq!(shown, [("g-0", Some(3), true, 2), ("g-1", Some(3), false, 1)]);
    assert_eq!(
        (groups[0].phase.as_deref(), groups[0].since.as_deref()),
        (Some("Inqueue"), Some("2025-11-20T01:00:00Z"))
    );
}

#[test]
fn executors_that_succeeded_are_not_lacking_before_their_exits_are_remembered() {
    let mut scene = Scene::with_conf(Recovery::default(), "spark.executor.instances=2");
    for id in [1, 2] {
        scene.harness.observe(&running(id));
        scene.harness.observe(&version(running(id).phase("Succeeded"), 9));
    }
    let ended = report(&scene);
    assert_eq!((&ended.shortage, ended.exits.len()), (&None, 0));
    assert_eq!(ended.status(), views::AppStatus::Ending);
    // One that failed is lacking.
    let mut scene = Scene::with_conf(Recovery::default(), "spark.executor.instances=2");
    scene.harness.observe(&version(running(1).phase("Succeeded"), 9));
    scene.harness.observe(&failed(2, 1));
    assert_eq!(report(&scene).shortage.unwrap().lacking(), 2);
}

/// What the application lacks after executors failed for each of these `status.reason`s; `None` is an exit with code 1.
fn causes_after(scene: &mut Scene, exits: &[Option<&str>]) -> Vec<(String, usize, String)> {
    for (reason, id) in exits.iter().zip(2..) {
        let mut pod = failed(id, 1);
        if let Some(reason) = reason {
            pod.0["status"]["reason"] = (*reason).into();
        }
        scene.harness.observe(&pod);
    }
    scene.harness.step_after(1);
    let shortage = report(scene).shortage;
    let causes = shortage.into_iter().flat_map(|shortage| shortage.causes);
    causes.map(|cause| (cause.cause, cause.count, cause.message)).collect()
}

#[test]
fn missing_executor_is_explained_by_the_last_exits() {
    let cause = |exits: &[Option<&str>]| {
        let mut scene = Scene::with_conf(Recovery::default(), "spark.executor.instances=2");
        scene.harness.observe(&running(1));
        let (cause, _, message) = causes_after(&mut scene, exits).remove(0);
        (cause, message)
    };
    assert_eq!(cause(&[]).0, "not-requested");
    for (reason, phrase) in [
        ("OutOfcpu", "rejected by a kubelet"),
        ("Evicted", "evicted"),
        ("NodeLost", "node lost"),
        ("Preempting", "preempted"),
    ] {
        assert_eq!(cause(&[Some(reason)]), ("node-fault".into(), format!("1 {phrase} within 10 minutes")));
    }
    // Fewer than three of its own making are no loop, and say more than that nothing was requested.
    assert_eq!(cause(&[None, None]), ("exited".into(), "2 failed with an error within 10 minutes".into()));
    let loops = cause(&[None, Some("Evicted"), None, None]);
    assert_eq!(loops, ("crash-loop".into(), "3 failed with an error within 10 minutes".into()));
}

#[test]
fn shortage_keeps_its_cause_until_its_driver_replaces_the_executors() {
    let lost = |id: u32, at: &str, reason: Option<&str>| {
        let mut pod = created(ended(id, at), "2026-11-20T01:00:00Z");
        if let Some(reason) = reason {
            pod.0["status"]["reason"] = reason.into();
        }
        pod
    };
    let cause = |pods: &[PodBuilder]| {
        let mut scene = Scene::with_conf(Recovery::default(), "spark.executor.instances=2");
        pods.iter().for_each(|pod| scene.harness.observe(pod));
        let (cause, count, message) = causes_after(&mut scene, &[]).remove(0);
        (cause, count, message)
    };
    let (one, two) = ("2026-11-20T02:00:00Z", "2026-11-20T02:30:00Z");
    // The scene's time is months later.
    let (kind, count, message) = cause(&[lost(1, one, None), lost(2, two, None)]);
    let expected = "2 killed, sender unknown, the last at 2026-11-20T02:30:00Z, and its driver has not replaced them: see the driver's log";
    assert_eq!((&*kind, count, &*message), ("exited", 2, expected));
    let evicted = cause(&[created(running(1), "2026-11-20T01:00:00Z"), lost(2, two, Some("Evicted"))]);
    assert!(evicted.0 == "node-fault" && evicted.2.starts_with("1 evicted, the last at"), "{evicted:?}");
    // What it has replaced explains nothing.
    let replaced = [lost(1, one, None), created(running(2), two), created(ran(3, two, "2026-11-20T02:40:00Z"), two)];
    let (kind, _, message) = cause(&replaced);
    assert!(
        kind == "exited" && message.starts_with("1 killed, sender unknown, the last at 2026-11-20T02:40:00Z"),
        "{kind} {message}"
    );
    assert_eq!(cause(&[lost(1, one, None), created(running(2), two)]).0, "not-requested");
}

#[test]
fn old_exits_explain_no_more_executors_than_exited() {
    let mut scene = Scene::with_conf(Recovery::default(), "spark.executor.instances=5");
    scene.harness.observe(&created(running(1), "2026-11-20T01:00:00Z"));
    scene.harness.observe(&created(ended(2, "2026-11-20T02:00:00Z"), "2026-11-20T01:00:00Z"));
    let causes = causes_after(&mut scene, &[]);
    let counts: Vec<(&str, usize)> = causes.iter().map(|(cause, count, _)| (&**cause, *count)).collect();
    assert_eq!(counts, [("not-requested", 3), ("exited", 1)]);
}

#[test]
fn companion_of_a_driver_explains_nothing() {
    let mut scene = Scene::with_conf(Recovery::default(), "spark.executor.instances=2");
    let mut driver = version(driver().conf_map("c"), 9).phase("Pending").spec("nodeName", "node-1");
    driver.0["spec"]["containers"].as_array_mut().unwrap().push(json!({"name": "logs", "image": "no/such"}));
    driver.0["spec"]["containers"][0]["args"] = json!(["driver"]);
    // The kubelet calls a pod pending of which one container has never started.
    driver.0["status"]["containerStatuses"] = json!([
        {"name": "main", "image": "i", "state": {"running": {"startedAt": "2026-11-20T01:00:00Z"}}},
        {"name": "logs", "image": "no/such", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}}]);
    scene.harness.observe(&driver);
    assert_eq!(causes_after(&mut scene, &[]).remove(0).0, "not-requested");
}

#[test]
fn driver_that_cannot_start_explains_the_shortage() {
    let mut scene = Scene::with_conf(Recovery::default(), "spark.executor.instances=2");
    let mut driver = version(driver().conf_map("c"), 9).phase("Pending").spec("nodeName", "node-1");
    driver.0["status"]["containerStatuses"] = json!([{"name": "main", "image": "no/such",
        "state": {"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}}]);
    scene.harness.observe(&driver);
    let (cause, count, message) = causes_after(&mut scene, &[]).remove(0);
    assert_eq!(
        (&*cause, count, &*message),
        ("image-pull", 2, "its driver nb-driver: ImagePullBackOff not found (no/such)")
    );
    assert!(report(&scene).trouble().contains("ImagePullBackOff"));
    // How many it wants is not known.
    let mut scene = Scene::new(Recovery::default());
    driver.0["spec"]["volumes"] = json!([]);
    scene.harness.observe(&driver);
    scene.harness.step_after(1);
    assert_eq!(report(&scene).trouble(), "driver: container main waits: ImagePullBackOff not found");
}

#[test]
fn application_that_ends_lacks_nothing_until_its_driver_had_the_time_to_end() {
    let mut scene = Scene::with_conf(Recovery::default(), "spark.executor.instances=2");
    for id in [1, 2] {
        let mut pod = failed(id, 0);
        pod.0["status"]["phase"] = "Succeeded".into();
        scene.harness.observe(&pod);
    }
    assert_eq!(causes_after(&mut scene, &[]), []);
    scene.harness.step_after(90);
    assert_eq!(causes_after(&mut scene, &[]).remove(0).0, "not-requested");
}

#[test]
fn executor_that_is_being_deleted_is_not_unrequested() {
    let mut scene = Scene::with_conf(Recovery::default(), "spark.executor.instances=2");
    scene.harness.observe(&running(1));
    scene.harness.observe(&running(2).deleting());
    let message = format!("{} is being deleted", running(2).0["metadata"]["name"].as_str().unwrap());
    assert_eq!(causes_after(&mut scene, &[]), [("terminating".to_owned(), 1, message)]);
}

#[test]
fn replacements_that_start_do_not_hide_why_others_exited() {
    let mut scene = Scene::with_conf(Recovery::default(), "spark.executor.instances=1");
    for id in 10..14 {
        scene.harness.observe(&failed(id, 52));
    }
    scene.harness.observe(&running(20).phase("Pending"));
    scene.harness.step_after(1);
    let shortage = report(&scene).shortage.unwrap();
    assert_eq!((&*shortage.causes[0].cause, &*shortage.exits), ("unscheduled", "4 out of memory (JVM)"));
}

#[test]
fn podgroup_that_was_well_between_two_rounds_has_waited_since_then() {
    for well in (100..160).step_by(4) {
        let mut scene = Scene::new(acting());
        let list = |phase: &str| listed(vec![(group_key("g"), Group { phase: Some(phase.into()), ..group(true) })]);
        scene.harness.observe(&member(running(1), "g"));
        scene.registered(&[1]);
        scene.harness.apply(list("Inqueue"));
        scene.run(well);
        scene.harness.apply(list("Running"));
        scene.run(10);
        scene.harness.apply(list("Inqueue"));
        scene.run(290);
        assert_eq!(scene.findings(), [], "{well}");
        scene.run(130);
        assert_eq!(scene.findings().len(), 1);
    }
}
