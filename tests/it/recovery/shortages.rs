//! Since when an application lacks executors, and its PodGroups in the report.

use super::*;
use spark_usher::snapshot::{Change, Group, GroupKey, RelatedChange, Replaced};
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
    let group = |started| Group {
        uid: "g".into(),
        version: "7".into(),
        selector: Some(APP.into()),
        owner: Some(spark_usher::snapshot::Owner::of_pod("nb-driver".into(), DRIVER_UID.into())),
        started,
        created: Some(1_763_600_400),
        deleting: false,
        phase: Some("Inqueue".into()),
        spec: json!({"minMember": 3}),
    };
    let key = |name: &str| GroupKey { namespace: "default".into(), name: name.into(), scheduler: "volcano" };
    let all = vec![(key("g-0"), group(true)), (key("g-1"), group(false))];
    scene.harness.apply(Change::Related(RelatedChange::Replaced(Replaced::Groups("volcano", all))));
    for (id, name, node) in [(1, "g-0", Some("n")), (2, "g-0", Some("n")), (3, "g-1", Some("n")), (4, "g-1", None)] {
        let pod = running(id)
            .annotation("spark-usher.io/by", "batch/volcano")
            .annotation("scheduling.k8s.io/group-name", name);
        scene.harness.observe(&node.map_or(pod.clone(), |node| pod.spec("nodeName", node)));
    }
    let groups = report(&scene).groups;
    let shown: Vec<_> = groups.iter().map(|group| (&*group.name, group.size, group.started, group.bound)).collect();
    assert_eq!(shown, [("g-0", Some(3), true, 2), ("g-1", Some(3), false, 1)]);
    assert_eq!(
        (groups[0].phase.as_deref(), groups[0].since.as_deref()),
        (Some("Inqueue"), Some("2025-11-20T01:00:00Z"))
    );
}
