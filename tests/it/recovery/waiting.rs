//! Why executors wait: of all that is said, the message that decides.

use super::*;
use usher_core::controller::{Lookup, LookupResult};
use usher_core::gang::{GangScheduler, messages};
use usher_core::snapshot::{Node, Watched};
use usher_report::views::{self, AppReport};

fn report(scene: &Scene) -> AppReport {
    let now = scene.harness.now().wall;
    views::apps(scene.harness.controller.snapshot(), &scene.harness.history(), None, now).remove(0)
}

/// The causes: word, count, message.
fn causes(scene: &Scene) -> Vec<(String, usize, String)> {
    let causes = report(scene).shortage.unwrap().causes;
    causes.into_iter().map(|cause| (cause.cause, cause.count, cause.message)).collect()
}

fn unscheduled(id: u32, reason: &str, message: &str) -> PodBuilder {
    let mut pod = running(id).phase("Pending");
    pod.0["spec"].as_object_mut().unwrap().remove("nodeName");
    pod.0["status"]["conditions"] =
        json!([{"type": "PodScheduled", "status": "False", "reason": reason, "message": message}]);
    pod
}

const NOT_READY: &str = "pod group is not ready, 2 Pending, 2 minAvailable";

/// Runs until what a scheduler says is read, answers with this, and returns after how many seconds.
fn answer(scene: &mut Scene, objects: &[serde_json::Value]) -> u64 {
    for second in 1..=200 {
        for read in scene.harness.step_after(1).lookups {
            if let Lookup::Messages(_, kind) = read {
                let at = "2026-11-28T10:01:00Z".parse().unwrap();
                let said = messages::read(GangScheduler::of_kind(kind).unwrap(), objects.iter(), at);
                let now = scene.harness.now();
                scene.harness.controller.lookup_answered(&read, LookupResult::Messages(said), now);
                return second;
            }
        }
    }
    panic!("nothing was read")
}

fn event(message: &str) -> serde_json::Value {
    json!({"involvedObject": {"kind": "PodGroup", "name": "g"}, "lastTimestamp": "2026-11-28T10:00:00Z", "reason": "Unschedulable",
        "message": message})
}

#[test]
fn of_several_pods_the_message_that_names_a_resource_is_shown() {
    let mut scene = Scene::with_conf(Recovery::default(), "spark.executor.instances=3");
    let affinity = "0/2 nodes are available: 2 node(s) didn't match pod anti-affinity rules.";
    scene.harness.observe(&unscheduled(1, "Unschedulable", affinity));
    scene.harness.observe(&unscheduled(2, "Unschedulable", "0/2 nodes are available: 2 Insufficient cpu."));
    scene.harness.observe(&unscheduled(3, "Unschedulable", affinity));
    assert_eq!(
        causes(&scene),
        [("unschedulable".into(), 3, "lacks cpu: 0/2 nodes are available: 2 Insufficient cpu.".into())]
    );
}

#[test]
fn gate_is_no_lack_of_room_and_names_itself() {
    let mut scene = Scene::with_conf(Recovery::default(), "spark.executor.instances=1");
    let blocked = "Scheduling is blocked due to non-empty scheduling gates";
    let gates = json!([{"name": "example.com/approval"}]);
    scene.harness.observe(&unscheduled(1, "SchedulingGated", blocked).spec("schedulingGates", gates));
    assert_eq!(causes(&scene), [("gated".into(), 1, format!("{blocked} (example.com/approval)"))]);
    let why = report(&scene).troubled[0].why.clone().unwrap();
    assert_eq!(why, format!("is held by a scheduling gate: {blocked} (example.com/approval)"));
}

#[test]
fn what_the_scheduler_says_about_a_gang_is_read_after_ten_seconds_and_each_minute_while_it_waits() {
    let mut scene = Scene::with_conf(Recovery::default(), "spark.executor.instances=2");
    scene.harness.apply(listed(vec![(group_key("g"), Group { spec: json!({"minMember": 2}), ..group(false) })]));
    for id in [1, 2] {
        scene.harness.observe(&member(unscheduled(id, "Unschedulable", NOT_READY), "g"));
    }
    assert_eq!(causes(&scene), [("gang".into(), 2, NOT_READY.to_owned())]);
    assert!((9..=12).contains(&answer(&mut scene, &[event("resource in cluster is overused: overused cpu")])));
    let decides = "PodGroup g: resource in cluster is overused: overused cpu";
    assert_eq!(causes(&scene), [("gang".into(), 2, decides.into())]);
    assert!(report(&scene).troubled.iter().all(|pod| pod.why.as_ref().unwrap().contains("overused cpu")));
    // What no longer holds is replaced.
    assert!((50..=70).contains(&answer(&mut scene, &[])));
    assert_eq!(causes(&scene)[0].2, NOT_READY.to_owned());
    // The condition of the PodGroup counts as well.
    let waits = Some("2 Insufficient memory".into());
    scene.harness.apply(listed(vec![(group_key("g"), Group { spec: json!({"minMember": 2}), waits, ..group(false) })]));
    assert_eq!(causes(&scene)[0].2, "2 Insufficient memory");
    // Both run.
    for id in [1, 2] {
        scene.harness.observe(&version(member(running(id).spec("nodeName", "n"), "g"), 9));
    }
    let reads: Vec<Lookup> = (0..130).flat_map(|_| scene.harness.step_after(1).lookups).collect();
    assert!(!reads.iter().any(|read| matches!(read, Lookup::Messages(..))), "{reads:?}");
    assert!(scene.harness.controller.snapshot().messages.is_empty());
}

#[test]
fn pods_of_the_default_scheduler_need_no_other_objects() {
    let mut scene = Scene::with_conf(Recovery::default(), "spark.executor.instances=1");
    scene.harness.observe(&unscheduled(1, "Unschedulable", "0/1 nodes are available: 1 Insufficient cpu."));
    let reads: Vec<Lookup> = (0..30).flat_map(|_| scene.harness.step_after(1).lookups).collect();
    assert!(!reads.iter().any(|read| matches!(read, Lookup::Messages(..))), "{reads:?}");
}

#[test]
fn gang_that_is_larger_than_the_cluster_never_fits_and_the_report_says_so() {
    let node = |cpu: &str| {
        let json = json!({"metadata": {"uid": "n"}, "status": {"allocatable": {"cpu": cpu, "memory": "64Gi", "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True"}]}});
        Node::read(&json.to_string()).unwrap()
    };
    let message = |sizes: &[&str]| {
        let mut scene = Scene::with_conf(Recovery::default(), "spark.executor.instances=4");
        scene.harness.apply(listed(vec![(group_key("g"), Group { spec: json!({"minMember": 4}), ..group(false) })]));
        let nodes = sizes.iter().enumerate().map(|(i, cpu)| (format!("n{i}").into(), node(cpu))).collect();
        scene.harness.apply(RelatedChange::Nodes(Watched::Listed(nodes)));
        let mut pod = member(unscheduled(1, "Unschedulable", NOT_READY), "g");
        pod.0["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "2", "memory": "1Gi"}});
        scene.harness.observe(&pod);
        causes(&scene).into_iter().find(|(kind, ..)| kind == "gang").unwrap().2
    };
    assert_eq!(
        message(&["3", "5500m"]),
        format!(
            "1 of 4 executors exist; the nodes would have room for 3 of its executors only, even if they were empty"
        )
    );
    assert_eq!(message(&["3", "6"]), "1 of 4 executors exist");
    assert_eq!(message(&[]), "1 of 4 executors exist", "the nodes are not known");
}

#[test]
fn gang_says_how_many_of_its_executors_exist_and_what_its_scheduler_says_beyond_that() {
    let mut scene = Scene::with_conf(Recovery::default(), "spark.executor.instances=2");
    scene.harness.apply(listed(vec![(group_key("g"), Group { spec: json!({"minMember": 2}), ..group(false) })]));
    for (at, (said, expected)) in [
        (NOT_READY, "1 of 2 executors exist"),
        ("Gang \"g\" not collect enough childMember", "1 of 2 executors exist"),
        // That the gang is not complete is not all.
        ("queue etl is closed", "1 of 2 executors exist; queue etl is closed"),
    ]
    .into_iter()
    .enumerate()
    {
        scene.harness.observe(&version(member(unscheduled(1, "Unschedulable", said), "g"), 5 + at as u32));
        assert_eq!(causes(&scene)[0].2, expected, "{said}");
    }
    // All exist, and nothing is known.
    let mut scene = Scene::with_conf(Recovery::default(), "spark.executor.instances=2");
    scene.harness.apply(listed(vec![(group_key("g"), Group { spec: json!({"minMember": 2}), ..group(false) })]));
    for id in [1, 2] {
        let mut silent = member(unscheduled(id, "", ""), "g");
        silent.0["status"].as_object_mut().unwrap().remove("conditions");
        scene.harness.observe(&silent);
    }
    assert_eq!(
        causes(&scene),
        [("gang".into(), 2, "all 2 executors exist, and default-scheduler has not reported".into())]
    );
}

#[test]
fn gang_whose_pod_group_is_not_known_waits_all_the_same() {
    let mut scene = Scene::with_conf(Recovery::default(), "spark.executor.instances=1");
    for (at, (said, kind)) in [
        (NOT_READY, "gang"),
        ("PodGroup default/g does not exist", "gang"),
        ("0/3 nodes are available: 3 Insufficient cpu.", "unschedulable"),
    ]
    .into_iter()
    .enumerate()
    {
        scene.harness.observe(&version(member(unscheduled(1, "Unschedulable", said), "g"), 5 + at as u32));
        assert_eq!(causes(&scene)[0].0, kind, "{said}");
    }
    // A pod without a gang waits for room, whatever the words are.
    scene.harness.observe(&version(unscheduled(1, "Unschedulable", "the pod group of nodes is not ready"), 20));
    assert_eq!(causes(&scene)[0].0, "unschedulable");
}

#[test]
fn refused_pod_group_is_the_reason_until_it_exists() {
    let mut scene = Scene::with_conf(Recovery::default(), "spark.executor.instances=1");
    scene.harness.observe(&member(unscheduled(1, "Unschedulable", "pod group g not found"), "g"));
    let app = AppKey::new("default", APP);
    let refused = RelatedChange::GroupRefused(group_key("g"), app, "queue team does not exist".into());
    scene.harness.apply(refused);
    let why = "the API server refused PodGroup g: queue team does not exist";
    assert_eq!(causes(&scene), [("gang".into(), 1, why.into())]);
    assert!(
        report(&scene).troubled[0].why.as_ref().unwrap().contains("refused its PodGroup g: queue team does not exist")
    );
    scene.harness.apply(RelatedChange::Groups("volcano", Watched::Upserted(group_key("g"), group(false))));
    assert!(scene.harness.controller.snapshot().refused_groups.is_empty());
    assert_eq!(causes(&scene)[0].2, "1 of 3 executors exist; pod group g not found");
}

#[test]
fn workload_explains_a_pod_only_while_its_gate_holds_it() {
    let mut scene = Scene::with_conf(Recovery::default(), "spark.executor.instances=1");
    let gated = unscheduled(1, "SchedulingGated", "blocked").label("kueue.x-k8s.io/queue-name", "q");
    scene.harness.observe(&gated.spec("schedulingGates", json!([{"name": "kueue.x-k8s.io/admission"}])));
    let workload = json!({"metadata": {"name": "w", "ownerReferences": [{"kind": "Pod", "uid": "e1"}]}, "status": {"conditions": [
        {"type": "QuotaReserved", "status": "False", "reason": "Pending", "message": "insufficient quota for cpu in flavor f"}]}});
    answer(&mut scene, &[workload]);
    assert_eq!(causes(&scene), [("gated".into(), 1, "Workload w: insufficient quota for cpu in flavor f".into())]);
    // Kueue admits it: what was read before no longer explains it.
    let gpu = "0/5 nodes are available: 5 Insufficient nvidia.com/gpu.";
    let admitted = version(unscheduled(1, "Unschedulable", gpu), 9).label("kueue.x-k8s.io/queue-name", "q");
    scene.harness.observe(&admitted);
    assert_eq!(causes(&scene), [("unschedulable".into(), 1, format!("lacks nvidia.com/gpu: {gpu}"))]);
}

#[test]
fn what_was_said_before_the_gang_started_does_not_explain_a_replacement() {
    let mut scene = Scene::with_conf(Recovery::default(), "spark.executor.instances=1");
    scene.harness.apply(listed(vec![(group_key("g"), group(false))]));
    let affinity = "0/2 nodes are available: 2 node(s) didn't match pod anti-affinity rules.";
    scene.harness.observe(&member(unscheduled(1, "Unschedulable", affinity), "g"));
    answer(&mut scene, &[event("resource in cluster is overused: overused cpu")]);
    assert!(causes(&scene)[0].2.contains("overused cpu"));
    scene.harness.apply(listed(vec![(group_key("g"), group(true))]));
    assert_eq!(causes(&scene), [("unschedulable".into(), 1, affinity.into())]);
}

/// Of a scheduler that a user chose without spark-usher, too; and none of the slots of other reads are taken.
#[test]
fn slow_messages_delay_no_other_read() {
    let mut scene = Scene::with_conf(Recovery::default(), "spark.executor.instances=1");
    for number in 0..40 {
        let namespace = format!("team-{number}");
        let mut pod = executor(1).spec("schedulerName", "volcano").namespace(&namespace).stored(&format!("u{number}"));
        pod.0["status"] = json!({"phase": "Pending"});
        scene.harness.observe(&pod);
    }
    let reads: Vec<Lookup> = (0..30).flat_map(|_| scene.harness.step_after(1).lookups).collect();
    assert_eq!(
        reads.iter().filter(|read| matches!(read, Lookup::Messages(..) | Lookup::Quotas(_))).count(),
        4,
        "{reads:?}"
    );
}

#[test]
fn refused_change_of_a_pod_group_is_said_until_its_spec_changes() {
    let mut scene = Scene::with_conf(Recovery::default(), "spark.executor.instances=1");
    let of =
        |phase: &str, size: u32| Group { phase: Some(phase.into()), spec: json!({"minMember": size}), ..group(false) };
    let changed = |group| Change::Related(RelatedChange::Groups("volcano", Watched::Upserted(group_key("g"), group)));
    scene.harness.apply(changed(of("Pending", 4)));
    scene.harness.observe(&member(unscheduled(1, "Unschedulable", NOT_READY), "g"));
    let refused = RelatedChange::GroupRefused(group_key("g"), AppKey::new("default", APP), "is immutable".into());
    scene.harness.apply(refused);
    let why = format!("1 of 4 executors exist; the API server refused its change: is immutable; {NOT_READY}");
    assert_eq!(causes(&scene)[0].2, why);
    // Volcano writes its status each second.
    scene.harness.apply(changed(of("Inqueue", 4)));
    assert_eq!(causes(&scene)[0].2, why);
    scene.harness.apply(changed(of("Inqueue", 1)));
    assert_eq!(causes(&scene)[0].2, NOT_READY);
    // Nothing is kept of an application that is gone.
    let refused = RelatedChange::GroupRefused(group_key("g"), AppKey::new("default", APP), "is immutable".into());
    scene.harness.apply(refused);
    scene.harness.delete_pod("nb-exec-1", "e1");
    scene.harness.delete_pod("nb-driver", DRIVER_UID);
    assert!(scene.harness.controller.snapshot().refused_groups.is_empty());
}

#[test]
fn message_about_node_affinity_names_the_nodes_that_are_avoided() {
    let mut scene = Scene::with_conf(Recovery::default(), "spark.executor.instances=1");
    let message = "0/2 nodes are available: 1 node(s) didn't match Pod's node affinity/selector.";
    scene.harness.observe(&unscheduled(1, "Unschedulable", message));
    assert_eq!(causes(&scene)[0].2, message);
    let mut snapshot = scene.harness.controller.snapshot().clone();
    snapshot.apply(RelatedChange::AvoidedNodes(vec!["n1".into()]));
    let now = scene.harness.now().wall;
    let apps = views::apps(&snapshot, &scene.harness.history(), None, now);
    let cause = apps[0].shortage.as_ref().unwrap().causes[0].message.clone();
    assert_eq!(cause, format!("{message} (executors may avoid n1, on which executors fail)"));
}
