//! Since when an application lacks executors, and its PodGroups in the report.

use super::*;
use spark_usher::views::{self, AppReport};

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

#[test]
fn shortage_began_when_the_first_pending_executor_was_created_or_the_first_missing_one_exited() {
    let start =
        |instances: usize| Scene::with_conf(Recovery::default(), &format!("spark.executor.instances={instances}"));
    let pending = |id, at| created(running(id).phase("Pending"), at);
    let mut scene = start(4);
    scene.harness.observe(&created(running(1), "2026-11-20T01:00:00Z"));
    // The others were never requested: since when is not known.
    assert_eq!(since(&mut scene), None);
    scene.harness.observe(&pending(2, "2026-11-20T03:00:00Z"));
    scene.harness.observe(&pending(3, "2026-11-20T02:00:00Z"));
    assert_eq!(since(&mut scene).as_deref(), Some("2026-11-20T02:00:00Z"));
    // One exit explains the fourth.
    scene.harness.observe(&ended(4, "2026-11-20T01:30:00Z"));
    assert_eq!(since(&mut scene).as_deref(), Some("2026-11-20T01:30:00Z"));
    // Of two that are missing, the earlier of the last two exits; older ones were replaced.
    let mut scene = start(3);
    scene.harness.observe(&created(running(1), "2026-11-20T01:00:00Z"));
    for (id, at) in [(2, "2026-11-20T05:00:00Z"), (3, "2026-11-20T04:00:00Z"), (4, "2026-11-20T06:00:00Z")] {
        scene.harness.observe(&ended(id, at));
    }
    assert_eq!(since(&mut scene).as_deref(), Some("2026-11-20T05:00:00Z"));
    // More are missing than exits are remembered.
    let mut scene = start(9);
    scene.harness.observe(&ended(2, "2026-11-20T05:00:00Z"));
    assert_eq!(since(&mut scene), None);
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

/// An application of two executors that has lost one for each of these `status.reason`s; `None` is an exit with code 1.
fn cause_after(exits: &[Option<&str>]) -> (String, String) {
    let mut scene = Scene::with_conf(Recovery::default(), "spark.executor.instances=2");
    scene.harness.observe(&running(1));
    for (reason, id) in exits.iter().zip(2..) {
        let mut pod = failed(id, 1);
        if let Some(reason) = reason {
            pod.0["status"]["reason"] = (*reason).into();
        }
        scene.harness.observe(&pod);
    }
    scene.harness.step_after(1);
    let cause = report(&scene).shortage.unwrap().causes.remove(0);
    (cause.cause, cause.message)
}

#[test]
fn missing_executor_is_explained_by_the_last_exits() {
    assert_eq!(cause_after(&[]).0, "not-requested");
    for (reason, cause) in [
        ("OutOfcpu", "admission-refused"),
        ("Evicted", "evicted"),
        ("NodeLost", "node-lost"),
        ("Preempting", "preempted"),
    ] {
        assert_eq!(cause_after(&[Some(reason)]), ("node-fault".into(), format!("exits within 10 minutes: 1 {cause}")));
    }
    // One exit of its own explains nothing: Spark replaces it.
    assert_eq!(cause_after(&[None]).0, "not-requested");
    let loops = cause_after(&[None, Some("Evicted"), None, None]);
    assert_eq!(loops, ("crash-loop".into(), "exits within 10 minutes: 3 error".into()));
}
