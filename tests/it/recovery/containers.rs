//! Init containers, sidecars and restarts: what the rules, the costs and the reports make of them.

use super::*;
use usher_core::recovery::cost::WasteCause;
use usher_core::snapshot::Stage;
use usher_report::views::{self, ExecutorReport};

/// An executor on a node of which the init container `fetch` has this status, and the others wait.
fn initializing(id: u32, status: serde_json::Value) -> PodBuilder {
    let mut pod = running(id).phase("Pending").spec("nodeName", "node-1");
    pod.0["spec"]["initContainers"] = json!([{"name": "fetch", "image": "i"}]);
    pod.0["status"]["initContainerStatuses"] = json!([status]);
    pod.0["status"]["containerStatuses"] =
        json!([{"name": "main", "image": "i", "state": {"waiting": {"reason": "PodInitializing"}}}]);
    pod
}

fn fetches(restarts: u32) -> serde_json::Value {
    json!({"name": "fetch", "restartCount": restarts, "started": true, "state": {"running": {"startedAt": "2026-11-21T12:00:00Z"}}})
}

fn fetched() -> serde_json::Value {
    json!({"name": "fetch", "restartCount": 0, "started": false, "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}})
}

/// An executor whose container exited, and whose sidecar runs on.
fn lingering(id: u32, state: serde_json::Value) -> PodBuilder {
    let mut pod = running(id).spec("nodeName", "node-1").spec("restartPolicy", "Never");
    pod.0["status"]["containerStatuses"] = json!([
        {"name": "istio-proxy", "state": {"running": {"startedAt": "2026-11-21T12:00:00Z"}}},
        {"name": "main", "state": state}]);
    pod
}

fn why(scene: &Scene, pod: &str) -> ExecutorReport {
    let (snapshot, now) = (scene.harness.controller.snapshot(), scene.harness.now().wall);
    views::why(snapshot, &scene.harness.history(), pod, None, now).executors.remove(0).what
}

#[test]
fn init_container_that_works_has_a_time_of_its_own() {
    let mut scene = Scene::new(Recovery { init_within: Duration::from_secs(1800), ..act(RecoveryRule::Stuck) });
    scene.registered(&[]);
    scene.harness.observe(&initializing(1, fetches(0)));
    scene.run(1700);
    assert_eq!(scene.deletions(), [], "ten minutes are the limit of the Spark container");
    let words = why(&scene, "nb-exec-1").why.unwrap();
    assert_eq!(words, "init container fetch has been running since 2026-11-21T12:00:00Z");
    // It has done its work: the others have as long as they had had without it.
    scene.harness.observe(&version(initializing(1, fetched()), 2));
    scene.run(560);
    assert_eq!(scene.deletions(), []);
    scene.run(100);
    let deletions = scene.deletions();
    assert!((2300..2360).contains(&deletions[0].0), "{deletions:?}");
    let message = &deletions[0].1.event.message;
    assert!(message.contains("for 10m: its containers are being created"), "{message}");
}

#[test]
fn init_container_that_works_for_too_long_is_named() {
    let mut scene = Scene::new(act(RecoveryRule::Stuck));
    (scene.obeys, scene.answers) = (true, Answers::View(vec![], vec![], DriverMetrics::default()));
    scene.harness.observe(&initializing(1, fetches(0)));
    // One that was restarted is in trouble: the limit of the Spark container applies.
    scene.harness.observe(&initializing(2, fetches(1)));
    scene.run(3500);
    let deleted = |scene: &Scene| scene.deletions().iter().map(|(_, one)| one.seen.uid.to_string()).collect::<Vec<_>>();
    assert_eq!(deleted(&scene), ["e2"]);
    scene.run(200);
    assert_eq!(deleted(&scene), ["e2", "e1"]);
    let message = &scene.deletions()[1].1.event.message;
    assert!(message.contains("on node-1 for 1h: init container fetch has been running since 2026"), "{message}");
}

#[test]
fn executor_whose_sidecar_runs_on_holds_its_node_and_costs() {
    let ended = |code: i32| json!({"terminated": {"exitCode": code, "finishedAt": "2026-11-21T12:00:00Z"}});
    let mut scene = Scene::new(Recovery::default());
    scene.registered(&[]);
    scene.harness.observe(&lingering(1, ended(0)));
    // Its sidecar ends with it.
    let mut finished = lingering(2, ended(0)).phase("Succeeded");
    finished.0["status"]["containerStatuses"][0]["state"] = ended(0);
    scene.harness.observe(&finished);
    scene.run(600);
    let costs = scene.harness.controller.costs();
    let cores: f64 =
        costs.apps().filter(|(_, of, _)| *of == WasteCause::Lingering).map(|(.., of)| of.core_seconds).sum();
    assert!((480.0..=601.0).contains(&cores), "{cores}");
    let report = why(&scene, "nb-exec-1");
    let words = "holds what it requests on node-1, because container istio-proxy still runs";
    assert!(report.state == "succeeded" && report.why.as_deref() == Some(words), "{report:?}");
    assert_eq!(why(&scene, "nb-exec-2").why, None);
    let now = scene.harness.now().wall;
    let apps = views::apps(scene.harness.controller.snapshot(), &scene.harness.history(), None, now);
    assert_eq!(apps[0].troubled.iter().map(|one| &*one.pod).collect::<Vec<_>>(), ["nb-exec-1"]);
    // It is restarted: it has not ended.
    let restarted = lingering(3, ended(0)).spec("restartPolicy", "Always");
    scene.harness.observe(&restarted);
    scene.run(5);
    assert!(!why(&scene, "nb-exec-3").why.unwrap_or_default().contains("holds"));
}

#[test]
fn restarts_of_a_container_are_reported() {
    let mut pod = running(1).spec("nodeName", "node-1").spec("restartPolicy", "Always");
    pod.0["status"]["containerStatuses"] = json!([{"name": "main", "restartCount": 3,
        "state": {"running": {"startedAt": "2026-11-21T12:00:00Z"}},
        "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled", "finishedAt": "2026-11-21T11:59:00Z"}}}]);
    let mut scene = Scene::new(Recovery::default());
    scene.registered(&[1]);
    scene.harness.observe(&pod);
    scene.run(5);
    let words = why(&scene, "nb-exec-1").why.unwrap();
    let expected = "container main was restarted 3 times: it had exited with code 137\
                    (SIGKILL, possible container OOM), OOMKilled at 2026-11-21T11:59:00Z";
    assert_eq!(words, expected);
}

#[test]
fn each_init_container_has_its_own_time_and_at_least_that_of_the_others() {
    let two = |first: serde_json::Value, second: serde_json::Value| {
        let mut pod = initializing(1, first);
        pod.0["spec"]["initContainers"] = json!([{"name": "fetch"}, {"name": "unpack"}]);
        let statuses = pod.0["status"]["initContainerStatuses"].as_array_mut().unwrap();
        statuses.push(second);
        pod
    };
    let unpack = |state: serde_json::Value| json!({"name": "unpack", "restartCount": 0, "state": state});
    let waits = || unpack(json!({"waiting": {"reason": "PodInitializing"}}));
    let mut scene = Scene::new(Recovery { init_within: Duration::from_secs(1800), ..act(RecoveryRule::Stuck) });
    (scene.obeys, scene.answers) = (true, Answers::View(vec![], vec![], DriverMetrics::default()));
    scene.harness.observe(&two(fetches(0), waits()));
    scene.run(1700);
    // The state between them was missed.
    scene
        .harness
        .observe(&version(two(fetched(), unpack(json!({"running": {"startedAt": "2026-11-21T12:30:00Z"}}))), 2));
    scene.run(1700);
    assert_eq!(scene.deletions(), []);
    scene.run(200);
    assert_eq!(scene.deletions().len(), 1);
    // A longer time of the rule is that of init containers too.
    let rule = RuleSettings { after: Duration::from_secs(7200), ..RecoveryRule::Stuck.defaults() };
    let within = Recovery::default().with_rule(RecoveryRule::Stuck, rule).starts_within(Stage::Initializing);
    assert_eq!(within, Duration::from_secs(7200));
}

#[test]
fn container_that_waits_precedes_an_init_container_that_works() {
    let mut pod = initializing(1, fetches(0));
    pod.0["spec"]["initContainers"] = json!([{"name": "istio-proxy", "restartPolicy": "Always"}, {"name": "fetch"}]);
    let crashes = json!({"name": "istio-proxy", "restartCount": 4, "started": false,
        "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}}});
    pod.0["status"]["initContainerStatuses"].as_array_mut().unwrap().insert(0, crashes);
    let mut scene = Scene::new(act(RecoveryRule::Stuck));
    scene.registered(&[]);
    scene.harness.observe(&pod);
    scene.run(660);
    let deletions = scene.deletions();
    assert!(deletions[0].1.event.message.contains("container istio-proxy waits: CrashLoopBackOff"), "{deletions:?}");
    let now = scene.harness.now().wall;
    let apps = views::apps(scene.harness.controller.snapshot(), &scene.harness.history(), None, now);
    assert_eq!(apps[0].troubled.len(), 1);
}

#[test]
fn exited_pod_that_waits_for_a_finalizer_holds_nothing_and_a_restart_is_no_trouble() {
    let ended = json!({"terminated": {"exitCode": 0, "finishedAt": "2026-11-21T12:00:00Z"}});
    let mut gone = lingering(1, ended.clone()).phase("Succeeded").deleting();
    gone.0["status"]["containerStatuses"][0]["state"] = ended;
    gone.0["metadata"]["finalizers"] = json!(["a/b"]);
    let mut restarted = running(2).spec("nodeName", "node-1").spec("restartPolicy", "Always");
    restarted.0["status"]["containerStatuses"] =
        json!([{"name": "main", "restartCount": 1, "state": {"running": {"startedAt": "2026-11-21T12:00:00Z"}}}]);
    let mut scene = Scene::new(Recovery::default());
    scene.registered(&[2]);
    scene.harness.observe(&gone);
    scene.harness.observe(&restarted);
    scene.run(600);
    assert_eq!(scene.harness.controller.costs().apps().count(), 0);
    let now = scene.harness.now().wall;
    let apps = views::apps(scene.harness.controller.snapshot(), &scene.harness.history(), None, now);
    assert!(apps[0].troubled.iter().all(|one| one.pod != "nb-exec-2"), "{:?}", apps[0].troubled);
}
