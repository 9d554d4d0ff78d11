//! Pods as kubelets report their faults, in the words of the threads that report them (`tests/fixtures/kubelet`).

use super::*;
use serde_json::Value;
use usher_core::lifecycle::cause::Cause;
use usher_core::recovery::report::ReportedFinding;
use usher_core::recovery::shortage_cause::ShortageCause;
use usher_report::views;

fn faults() -> Vec<Value> {
    serde_json::from_str(include_str!("../../fixtures/kubelet/faults.json")).unwrap()
}

fn pod_with(fault: &Value) -> PodBuilder {
    let mut pod = version(running(1), 5).spec("nodeName", "node-1");
    pod.0["status"] = fault["status"].clone();
    pod
}

#[test]
fn each_fault_is_found_by_its_rule_with_the_kubelets_own_words() {
    for fault in faults() {
        let text = |key: &str| fault[key].as_str().unwrap();
        let mut scene = Scene::with_conf(acting(), "spark.executor.instances=1");
        scene.harness.observe(&version(running(1), 4).phase("Pending").spec("nodeName", "node-1"));
        scene.run(2);
        scene.harness.observe(&pod_with(&fault));
        scene.run(3700);
        let findings: Vec<ReportedFinding> =
            scene.findings().into_iter().filter(|finding| finding.rule.as_str() == text("rule")).collect();
        assert_eq!(findings.len(), 1, "{fault}: {:?}", scene.findings());
        let now = scene.harness.now().wall;
        let history = scene.harness.history();
        let report = views::apps(scene.harness.controller.snapshot(), &history, None, now).remove(0);
        if text("rule") == "stuck" {
            let waiting = &fault["status"]["containerStatuses"][0]["state"]["waiting"];
            assert!(findings[0].message.contains(waiting["reason"].as_str().unwrap()), "{}", findings[0].message);
            let causes = report.shortage.unwrap().causes;
            assert_eq!(causes[0].cause, text("cause"), "{fault}");
            assert!(ShortageCause::ALL.iter().any(|cause| cause.as_str() == text("cause")));
            assert!(causes[0].message.contains(waiting["message"].as_str().unwrap()), "{causes:?}");
        } else {
            assert!(findings[0].message.contains(fault["status"]["reason"].as_str().unwrap()), "{findings:?}");
            assert_eq!(report.exits[0].cause, text("cause"), "{fault}");
            let cause = Cause::ALL.iter().find(|cause| cause.as_str() == text("cause")).unwrap();
            assert_eq!(report.exits[0].blame, cause.blame().as_str(), "{fault}");
            assert_eq!(scene.deletions().len(), 1, "{fault}");
        }
        assert!(text("source").starts_with("https://github.com/"));
    }
}
