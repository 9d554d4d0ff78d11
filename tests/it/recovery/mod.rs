//! The recovery rules in the controller: what each finds, after how long, and what it deletes.

mod client_mode;
mod containers;
mod contradictions;
pub(crate) mod cost;
pub(crate) mod drivers;
mod elsewhere;
mod kubelet;
mod quota;
mod scene;
mod shortages;
mod waiting;

use std::time::Duration;

use scene::*;

use crate::support::controller_harness::*;
use crate::support::*;
use serde_json::json;
use usher_core::leader::LeaderState;
use usher_core::lifecycle::cause::Cause;
use usher_core::planning::{Action, Check, Recover};
use usher_core::policy::{
    Budget, DriverAccess, DriverViews, Keep, Lifecycle, Mode, Recovery, RecoveryRule, RuleSettings,
};
use usher_core::reason::Reason;
use usher_core::recovery::finding::NoRemedy;
use usher_core::recovery::report::FindingOutcome;
use usher_core::snapshot::{Change, Group, GroupKey, PodChange, RelatedChange, Watched};
use usher_spark::ids::{AppKey, PodIdentity, PodKey};
use usher_spark::rest::DriverMetrics;

#[test]
fn stuck_executor_is_deleted_if_its_driver_answers_and_waits_for_the_rules_time() {
    let mut scene = Scene::new(act(RecoveryRule::Stuck));
    scene.harness.observe(&starting(1));
    scene.harness.observe(&running(2).phase("Pending"));
    scene.run(599);
    assert_eq!(scene.deletions(), []);
    scene.run(40);
    let deletions = scene.deletions();
    assert_eq!(deletions.len(), 1, "never the one that no scheduler has bound: {deletions:?}");
    let (at, deletion) = deletions[0];
    assert!((600..=640).contains(&at), "{at}");
    assert!(deletion.event.pod.name() == "nb-exec-1" && not_registered(deletion, 1), "{deletion:?}");
    assert_eq!((&*deletion.seen.uid, deletion.rule), ("e1", RecoveryRule::Stuck));
    let message = &deletion.event.message;
    assert!(message.contains("has not started on node-1 for 10m") && message.contains("ImagePullBackOff"), "{message}");
}

#[test]
fn time_before_the_executor_was_bound_does_not_count() {
    let mut scene = Scene::new(act(RecoveryRule::Stuck));
    scene.harness.observe(&running(1).phase("Pending"));
    scene.run(500);
    scene.harness.observe(&version(starting(1), 2));
    scene.run(590);
    assert_eq!(scene.deletions(), []);
    scene.run(60);
    assert_eq!(scene.deletions().len(), 1);
}

#[test]
fn nothing_of_a_living_driver_is_deleted_without_its_view() {
    // No answer.
    let mut scene = Scene::new(act(RecoveryRule::Stuck));
    scene.harness.observe(&starting(1));
    scene.answers = Answers::Nothing;
    scene.run(900);
    assert_eq!((scene.deletions(), scene.only_finding().outcome), (vec![], FindingOutcome::Kept(NoRemedy::NoView)));
    // The answers begin: the pod is deleted at once, because its time is over.
    scene.registered(&[]);
    scene.run(700);
    assert_eq!(scene.deletions().len(), 1);

    // The answers end before the time is over, and are forgotten after two polls.
    let mut scene = Scene::new(act(RecoveryRule::Stuck));
    scene.harness.observe(&starting(1));
    scene.run(480);
    scene.answers = Answers::Nothing;
    scene.run(600);
    assert_eq!((scene.deletions(), scene.only_finding().outcome), (vec![], FindingOutcome::Kept(NoRemedy::NoView)));

    // Drivers are not polled.
    let driver_view = DriverViews { access: DriverAccess::None, ..DriverViews::default() };
    let mut scene = Scene::new(Recovery { driver_view, ..act(RecoveryRule::Stuck) });
    scene.harness.observe(&starting(1));
    scene.run(1000);
    assert_eq!((scene.deletions(), scene.only_finding().outcome), (vec![], FindingOutcome::Kept(NoRemedy::NotPolled)));

    // The driver has dropped listener events.
    let dropped = DriverMetrics { dropped_events: Some(1), queued_events: Some(0), target: None };
    let mut scene = Scene::new(act(RecoveryRule::Unregistered));
    scene.harness.observe(&running(1));
    scene.answers = Answers::View(vec![], vec![], dropped);
    scene.run(1000);
    assert_eq!((scene.deletions(), scene.findings()), (vec![], vec![]));

    let mut scene = Scene::new(act(RecoveryRule::Stuck));
    scene.harness.observe(&without_owner(starting(1)));
    scene.harness.observe(&without_owner(starting(2)).label("spark-app-selector", "other"));
    scene.harness.observe(&starting(3).owned_by("StatefulSet", "set", "s"));
    scene.run(1000);
    assert_eq!(scene.deletions(), []);
    let outcomes: Vec<FindingOutcome> = scene.findings().iter().map(|finding| finding.outcome).collect();
    assert_eq!(outcomes, [FindingOutcome::Kept(NoRemedy::UnknownDriver), FindingOutcome::Kept(NoRemedy::Workload)]);
    let report = scene.harness.controller.recovery().of(&AppKey::new("default", "other")).unwrap();
    assert_eq!(report.findings[0].outcome, FindingOutcome::Kept(NoRemedy::UnknownDriver));
}

#[test]
fn registered_executors_are_never_found() {
    let all = RecoveryRule::ALL
        .into_iter()
        .filter(|rule| rule.can_act())
        .fold(acting(), |all, rule| all.with_rule(rule, act(rule).rule(rule)));
    let mut scene = Scene::new(all);
    scene.harness.observe(&running(1));
    // Its status is late.
    scene.harness.observe(&starting(2));
    scene.registered(&[1, 2]);
    scene.run(4000);
    assert_eq!((scene.deletions(), scene.findings()), (vec![], vec![]));
}

#[test]
fn unregistered_executor_is_deleted_only_by_a_view_that_is_old_enough() {
    let mut scene = Scene::new(act(RecoveryRule::Unregistered));
    scene.harness.observe(&running(1));
    scene.run(299);
    assert_eq!(scene.findings(), []);
    scene.run(70);
    let deletions = scene.deletions();
    assert_eq!(deletions.len(), 1);
    assert!(deletions[0].0 >= 301 && not_registered(deletions[0].1, 1), "{deletions:?}");
    assert!(deletions[0].1.event.message.contains("without registering with its driver"));
    assert_eq!(deletions[0].1.event.reason, Reason::ExecutorNotRegistered);
    // It registers late: no longer found.
    let mut scene = Scene::new(act(RecoveryRule::Unregistered));
    scene.harness.observe(&running(1));
    scene.run(280);
    scene.registered(&[1]);
    scene.run(1000);
    assert_eq!((scene.deletions(), scene.findings()), (vec![], vec![]));
}

#[test]
fn views_that_show_an_executor_as_removed_count_only_one_after_another() {
    let removed = || Answers::View(vec![], vec![(1, "Executor heartbeat timed out after 130000 ms")], COMPLETE);
    let mut scene = Scene::new(act(RecoveryRule::GivenUp));
    scene.harness.observe(&running(1));
    scene.registered(&[1]);
    scene.run(120);
    for _ in 0..3 {
        scene.answers = removed();
        scene.run(240);
        scene.registered(&[1]);
        scene.run(120);
    }
    assert_eq!((scene.deletions(), scene.findings()), (vec![], vec![]));
}

#[test]
fn executor_that_was_given_up_is_deleted_after_ten_views_unless_the_application_caused_its_failure() {
    for (reason, is_deleted) in [
        ("Executor heartbeat timed out after 130000 ms", true),
        ("\nThe executor with id 1 exited with exit code 52(JVM OOM).", false),
    ] {
        let mut scene = Scene::new(act(RecoveryRule::GivenUp));
        scene.harness.observe(&running(1));
        scene.registered(&[1]);
        scene.run(120);
        scene.answers = Answers::View(vec![], vec![(1, reason)], COMPLETE);
        scene.run(240);
        assert_eq!((scene.deletions(), scene.findings()), (vec![], vec![]), "nine views at most");
        scene.run(200);
        assert_eq!(scene.deletions().len(), usize::from(is_deleted), "{reason}");
        assert!(scene.first(Reason::ExecutorGivenUp).is_some());
        let outcome = scene.only_finding().outcome;
        assert_eq!(
            outcome,
            if is_deleted { FindingOutcome::Deleting } else { FindingOutcome::Kept(NoRemedy::ForInspection) }
        );
    }
}

#[test]
fn executors_that_vanished_are_reported_on_their_driver() {
    let mut scene = Scene::new(acting());
    scene.harness.observe(&running(1));
    scene.registered(&[1, 2, 3]);
    scene.run(100);
    assert_eq!(scene.findings(), []);
    scene.run(120);
    let finding = scene.only_finding();
    assert_eq!((finding.rule, finding.pod.name()), (RecoveryRule::Vanished, "nb-driver"));
    assert!(finding.message.contains("counts on executors 2, 3, which have no live pod"), "{}", finding.message);
    assert!(scene.first(Reason::ExecutorVanished).is_some());
    scene.registered(&[1]);
    scene.run(70);
    assert_eq!(scene.findings(), [], "the driver has noticed it");
}

#[test]
fn driver_without_executors_is_hopeless_only_if_it_wants_some() {
    let cluster_mode = "spark.kubernetes.submitInDriver=true\nspark.executor.instances=3";
    let client_mode = "spark.executor.instances=3";
    let dynamic = "spark.kubernetes.submitInDriver=true\nspark.dynamicAllocation.enabled=true";
    let wants = |target| {
        Answers::View(vec![], vec![], DriverMetrics { dropped_events: Some(0), queued_events: Some(0), target })
    };
    for (conf, answers, expected) in [
        (cluster_mode, wants(None), Some(FindingOutcome::Deleting)),
        (client_mode, wants(None), Some(FindingOutcome::Kept(NoRemedy::NotInCluster))),
        (dynamic, wants(Some(0)), None),
        (dynamic, wants(Some(2)), Some(FindingOutcome::Deleting)),
        (dynamic, Answers::Nothing, None),
    ] {
        let mut scene = Scene::with_conf(act(RecoveryRule::Hopeless), conf);
        scene.answers = answers.clone();
        scene.run(1795);
        assert_eq!(scene.findings(), [], "{conf} {answers:?}");
        scene.run(70);
        let found = scene.findings().first().map(|finding| finding.outcome);
        assert_eq!(found, expected, "{conf} {answers:?}");
        let names: Vec<&str> = scene.deletions().iter().map(|(_, deletion)| deletion.event.pod.name()).collect();
        assert!(names.iter().all(|name| *name == "nb-driver"), "{names:?}");
        assert_eq!(!names.is_empty(), expected == Some(FindingOutcome::Deleting));
        assert_eq!(scene.first(Reason::NoExecutors).is_some(), expected.is_some());
    }
    // A pending executor is hope, and one that was there meanwhile starts the time anew.
    let mut scene = Scene::with_conf(act(RecoveryRule::Hopeless), cluster_mode);
    scene.run(1000);
    scene.harness.observe(&running(1).phase("Pending"));
    scene.run(2000);
    assert_eq!(scene.findings(), []);
    scene.harness.delete_pod("nb-exec-1", "e1");
    scene.run(1700);
    assert_eq!(scene.findings(), []);
    scene.run(200);
    assert_eq!(scene.only_finding().rule, RecoveryRule::Hopeless);
}

#[test]
fn driver_pod_that_outlives_spark_is_deleted_and_one_with_a_stopped_context_is_reported() {
    let exited = json!([
        {"name": "spark-kubernetes-driver", "state": {"terminated": {"exitCode": 0}}},
        {"name": "istio-proxy", "state": {"running": {}}},
    ]);
    let mut scene = Scene::new(act(RecoveryRule::ZombieDriver));
    let mut pod = version(driver(), 2).phase("Running");
    pod.0["spec"]["containers"] = json!([{"name": "spark-kubernetes-driver"}, {"name": "istio-proxy"}]);
    pod.0["status"]["containerStatuses"] = exited;
    scene.harness.observe(&pod);
    scene.run(595);
    assert_eq!(scene.findings(), []);
    scene.run(60);
    let deletions = scene.deletions();
    assert!(matches!(deletions[..], [(_, deletion)] if deletion.check == Check::Version), "{deletions:?}");

    check_stopped();

    // A driver that never answered has no UI, and that is no trouble.
    let mut scene = Scene::new(act(RecoveryRule::ZombieDriver));
    scene.answers = Answers::Refused;
    scene.run(2000);
    assert_eq!(scene.findings(), []);
}

pub(crate) fn check_stopped() {
    let mut scene = Scene::new(act(RecoveryRule::ZombieDriver));
    scene.run(100);
    scene.answers = Answers::Refused;
    scene.run(600);
    assert_eq!(scene.findings(), []);
    scene.run(300);
    let finding = scene.only_finding();
    assert_eq!(finding.outcome, FindingOutcome::Kept(NoRemedy::ReportOnly));
    assert!(finding.message.contains("SparkContext was stopped"), "{}", finding.message);
    assert!(scene.first(Reason::DriverLingers).is_some());
    assert_eq!(scene.deletions(), []);
    scene.registered(&[]);
    scene.run(700);
    assert_eq!(scene.findings(), [], "it answers again");
}

#[test]
fn orphans_are_deleted_if_their_own_owner_is_gone() {
    let mut scene = Scene::new(acting());
    scene.harness.observe(&running(1));
    scene.harness.observe(&running(2).phase("Pending"));
    scene.harness.observe(&without_owner(running(3)));
    scene.harness.observe(&running(4).annotation("spark-usher.io/skip", "true"));
    scene.run(10);
    scene.harness.observe(&version(driver(), 9).phase("Failed"));
    scene.run(295);
    assert_eq!(scene.deletions(), []);
    scene.run(60);
    let deletions = scene.deletions();
    let names: Vec<&str> = deletions.iter().map(|(_, deletion)| deletion.event.pod.name()).collect();
    assert_eq!(names, ["nb-exec-1", "nb-exec-2"], "a label proves nothing");
    let gone = |deletion: &Recover| matches!(&deletion.check, Check::DriverGone(driver) if driver.key.name() == "nb-driver" && &*driver.uid == DRIVER_UID);
    assert!(deletions.iter().all(|(_, deletion)| gone(deletion)), "{deletions:?}");
}

#[test]
fn exit_of_an_executor_that_a_rule_deleted_names_the_rule() {
    let mut scene = Scene::new(act(RecoveryRule::Stuck));
    scene.harness.observe(&starting(1));
    scene.harness.observe(&starting(2));
    scene.run(599);
    // A client deletes the second one before the rule's time is over.
    scene.harness.apply(PodChange::Deleted(version(starting(2), 8).deleting().observation()));
    scene.run(41);
    assert_eq!(scene.deletions().len(), 1);
    scene.harness.apply(PodChange::Deleted(version(starting(1), 9).deleting().observation()));
    scene.run(30);
    let history = scene.harness.controller.exits().history().clone();
    let said: Vec<(Cause, String)> = history.iter().map(|exit| (exit.cause, exit.detail())).collect();
    assert_eq!(said.iter().map(|(cause, _)| *cause).collect::<Vec<_>>(), [Cause::ImageNeverPulled; 2]);
    assert!(!said[0].1.contains("recovery rule") && said[1].1.contains("by the recovery rule stuck"), "{said:?}");

    let mut scene = Scene::new(act(RecoveryRule::Unregistered));
    scene.harness.observe(&running(1));
    scene.run(400);
    assert_eq!(scene.deletions().len(), 1);
    scene.harness.apply(PodChange::Deleted(version(running(1), 9).deleting().observation()));
    scene.run(30);
    let exit = scene.harness.controller.exits().history().iter().next().unwrap().clone();
    assert_eq!((exit.cause, &*exit.detail()), (Cause::DeletedByRule, "by the recovery rule unregistered"));
}

#[test]
fn orphans_of_a_driver_that_keeps_its_executors_are_reported() {
    let mut scene = Scene::with_conf(acting(), "spark.kubernetes.executor.deleteOnTermination=false");
    scene.harness.observe(&running(1));
    scene.run(10);
    scene.harness.delete_pod("nb-driver", DRIVER_UID);
    scene.run(400);
    assert_eq!((scene.deletions(), scene.only_finding().outcome), (vec![], FindingOutcome::Kept(NoRemedy::Kept)));
    assert!(scene.first(Reason::ExecutorOrphaned).is_some());
}

#[test]
fn executors_of_a_driver_that_keeps_them_are_kept_as_far_as_the_policy_says() {
    let refused = |id: u32, reason: &str| {
        let mut pod = version(running(id), 5).phase("Failed");
        pod.0["status"]["reason"] = reason.into();
        pod
    };
    let names = |scene: &Scene| -> Vec<String> {
        let mut all: Vec<String> = scene.deletions().iter().map(|(_, of)| of.event.pod.name().to_owned()).collect();
        all.sort();
        all
    };
    for (keep, alive, over) in [
        (Keep::Respect, &[][..], &[][..]),
        (Keep::UntilDriverEnds, &[], &["nb-exec-1", "nb-exec-2", "nb-exec-3"]),
        // One that ran before its kubelet, which has restarted, rejected it, is kept.
        (Keep::NeverRan, &["nb-exec-2"], &["nb-exec-2"]),
    ] {
        let mut scene = Scene::with_conf(acting(), "spark.kubernetes.executor.deleteOnTermination=false");
        let lifecycle = Lifecycle { keep, ..scene.harness.policies.lifecycle };
        scene.harness.policies = scene.harness.policies.clone().with_lifecycle(lifecycle);
        scene.harness.observe(&running(1));
        scene.harness.observe(&refused(2, "OutOfcpu"));
        let mut ran = refused(3, "OutOfcpu");
        ran.0["status"]["containerStatuses"] = json!([{"name": "main",
            "state": {"terminated": {"exitCode": 143, "startedAt": "2026-11-21T08:01:00Z"}}}]);
        scene.harness.observe(&ran);
        scene.registered(&[1]);
        scene.run(4000);
        assert_eq!(names(&scene), alive, "{keep:?} while the driver runs: {:?}", scene.findings());
        scene.harness.observe(&version(driver().conf_map("c").ip("10.0.0.5"), 9).phase("Failed"));
        scene.run(4000);
        assert_eq!(names(&scene), over, "{keep:?} after the driver's end: {:?}", scene.findings());
        // What rests on the driver's end is verified again.
        let ends = |of: &Recover| matches!(&of.check, Check::DriverGone(driver) if driver.key.name() == "nb-driver");
        assert!(keep != Keep::UntilDriverEnds || scene.deletions().iter().all(|(_, of)| ends(of)));
    }
}

#[test]
fn pods_that_a_kubelet_refused_are_deleted_after_an_hour() {
    for (reason, is_deleted) in
        [("OutOfcpu", true), ("UnexpectedAdmissionError", true), ("Evicted", true), ("Error", false)]
    {
        let mut scene = Scene::new(acting());
        let mut pod = version(running(1), 5).phase("Failed");
        pod.0["status"]["reason"] = reason.into();
        scene.harness.observe(&pod);
        scene.run(3590);
        assert_eq!(scene.deletions(), []);
        scene.run(60);
        assert_eq!(scene.deletions().len(), usize::from(is_deleted), "{reason}");
        assert_eq!(scene.first(Reason::ExecutorLeftBehind).is_some(), is_deleted);
        assert!(scene.deletions().iter().all(|(_, deletion)| deletion.check == Check::Version));
    }
    // Nothing is known of its driver.
    let mut scene = Scene::new(acting());
    let mut pod = without_owner(version(running(1), 5)).phase("Failed").label("spark-app-selector", "other");
    pod.0["status"]["reason"] = "OutOfcpu".into();
    scene.harness.observe(&pod);
    scene.run(4000);
    assert_eq!(scene.deletions(), []);
    let report = scene.harness.controller.recovery().of(&AppKey::new("default", "other")).unwrap();
    assert_eq!(report.findings[0].outcome, FindingOutcome::Kept(NoRemedy::UnknownDriver));
}

#[test]
fn executors_of_a_workload_are_never_deleted() {
    let all = RecoveryRule::ALL.into_iter().filter(|rule| rule.can_act());
    let mut scene = Scene::new(all.fold(acting(), |all, rule| all.with_rule(rule, act(rule).rule(rule))));
    let owned = |pod: PodBuilder| without_owner(pod).owned_by("StatefulSet", "set", "s").spec("nodeName", "node-1");
    let mut refused = owned(version(running(1), 5)).phase("Failed");
    refused.0["status"]["reason"] = "OutOfcpu".into();
    let mut terminating = owned(version(running(2), 5));
    terminating.0["metadata"]["deletionTimestamp"] = scene.harness.now().wall.to_string().into();
    scene.harness.observe(&refused);
    scene.harness.observe(&terminating);
    scene.harness.observe(&owned(starting(3)));
    scene.run(4000);
    assert_eq!(scene.deletions(), []);
    let findings = scene.findings();
    let rules: Vec<RecoveryRule> = findings.iter().map(|finding| finding.rule).collect();
    assert_eq!(rules, [RecoveryRule::Refused, RecoveryRule::Terminating, RecoveryRule::Stuck]);
    assert!(findings.iter().all(|finding| finding.outcome == FindingOutcome::Kept(NoRemedy::Workload)), "{findings:?}");
}

#[test]
fn terminating_executor_is_deleted_by_force_only_in_mode_act_and_without_finalizers() {
    let deleting = |scene: &Scene, finalizers: &[&str]| {
        let mut pod = version(running(1), 5).spec("nodeName", "node-1");
        pod.0["metadata"]["deletionTimestamp"] = scene.harness.now().wall.to_string().into();
        pod.0["metadata"]["finalizers"] = json!(finalizers);
        pod
    };
    // Only mode act reads the node.
    let condition = " if its node no longer exists";
    for (recovery, finalizers, outcome) in [
        (act(RecoveryRule::Terminating), &[][..], FindingOutcome::Deleting),
        (act(RecoveryRule::Terminating), &["a/b"], FindingOutcome::Kept(NoRemedy::Finalizers)),
        (acting(), &[], FindingOutcome::Warned(condition)),
        (Recovery { acts: false, ..act(RecoveryRule::Terminating) }, &[], FindingOutcome::NotActing(condition)),
        (Recovery { dry_run: true, ..act(RecoveryRule::Terminating) }, &[], FindingOutcome::DryRun(condition)),
    ] {
        let mut scene = Scene::new(recovery);
        let pod = deleting(&scene, finalizers);
        scene.harness.observe(&pod);
        scene.run(59);
        assert_eq!(scene.findings(), []);
        scene.run(40);
        assert_eq!(scene.only_finding().outcome, outcome);
        let checks: Vec<&Check> = scene.deletions().iter().map(|(_, deletion)| &deletion.check).collect();
        let expected = Check::NodeGone("node-1".into());
        assert_eq!(checks.first().copied(), (outcome == FindingOutcome::Deleting).then_some(&expected));
        assert!(scene.first(Reason::TerminationHangs).is_some());
    }
}

/// The findings about a PodGroup in these phases, 350 seconds each; with an executor in this phase.
fn group_findings(phases: &[&str], started: bool, executor: &str) -> Vec<usize> {
    let mut scene = Scene::new(acting());
    let key = GroupKey { namespace: "default".into(), name: "g".into(), scheduler: "volcano" };
    let group = |phase: &str| Group {
        version: "7".into(),
        owner: Some(usher_core::snapshot::Owner::of_pod("nb-driver".into(), DRIVER_UID.into())),
        started,
        phase: Some(phase.into()),
        ..pod_group(1)
    };
    let list = |phase: &str| {
        Change::Related(RelatedChange::Groups("volcano", Watched::Listed(vec![(key.clone(), group(phase))])))
    };
    scene.harness.observe(&member(running(1).phase(executor), "g"));
    scene.registered(if executor == "Succeeded" { &[] } else { &[1] });
    let mut findings = Vec::new();
    for phase in phases {
        scene.harness.apply(list(phase));
        scene.run(290);
        assert!(!scene.findings().iter().any(|finding| finding.message.contains(phase)), "too early");
        scene.run(60);
        findings.push(scene.findings().len());
        let events = scene.actions.iter().filter(|(_, action)| action.reason() == Some(Reason::GroupWaitsAgain));
        assert_eq!(events.count(), findings.iter().sum::<usize>().min(1));
        assert!(scene.findings().iter().all(|finding| finding.message.contains(&format!("has been {phase} again"))));
    }
    findings
}

pub(crate) fn check_groups() {
    assert_eq!(group_findings(&["Running", "Inqueue", "Running"], true, "Running"), [0, 1, 0]);
    assert_eq!(group_findings(&["Pending"], true, "Pending"), [0], "it waits for that executor");
    assert_eq!(group_findings(&["Pending"], false, "Running"), [0], "it has not started yet");
    assert_eq!(
        group_findings(&["Pending"], true, "Succeeded"),
        [0],
        "it has no members, and nothing is reserved for it"
    );
}

#[test]
fn podgroup_that_had_started_and_waits_without_pending_executors_is_reported() {
    check_groups();
}

#[test]
fn mode_off_finds_nothing_and_one_setting_stops_all_deletions() {
    let rules = |mode| {
        RecoveryRule::ALL
            .into_iter()
            .fold(acting(), |all, rule| all.with_rule(rule, RuleSettings { mode, ..act(rule).rule(rule) }))
    };
    let story = |scene: &mut Scene| {
        scene.harness.observe(&starting(1));
        scene.harness.observe(&running(2));
        let mut refused = version(running(3), 5).phase("Failed");
        refused.0["status"]["reason"] = "OutOfcpu".into();
        scene.harness.observe(&refused);
        scene.run(4000);
        scene.harness.observe(&version(driver(), 9).phase("Failed"));
        scene.run(1000);
    };
    let mut off = Scene::new(rules(Mode::Off));
    story(&mut off);
    assert_eq!((off.deletions(), off.findings()), (vec![], vec![]));
    let mut stopped = Scene::new(Recovery { acts: false, ..rules(Mode::Act) });
    story(&mut stopped);
    assert_eq!(stopped.deletions(), []);
    let outcomes: Vec<FindingOutcome> = stopped.findings().iter().map(|finding| finding.outcome).collect();
    assert_eq!(outcomes, [FindingOutcome::NotActing(""); 3]);
    // Each pod is counted once. The driver that ended made the stuck one an orphan.
    let counts: Vec<(RecoveryRule, u32)> = stopped.withheld.iter().map(|(rule, count)| (*rule, *count)).collect();
    let expected = [(RecoveryRule::Stuck, 1), (RecoveryRule::Unregistered, 1), (RecoveryRule::Orphans, 2)];
    assert_eq!(counts, [&expected[..], &[(RecoveryRule::Refused, 1)]].concat());
    let mut dry = Scene::new(Recovery { dry_run: true, ..rules(Mode::Act) });
    story(&mut dry);
    assert_eq!(dry.deletions(), []);
    assert!(dry.findings().iter().all(|finding| finding.outcome == FindingOutcome::DryRun("")));
    assert_eq!((dry.findings().len(), &dry.withheld), (3, &stopped.withheld));
    let mut acting = Scene::new(rules(Mode::Act));
    story(&mut acting);
    assert!(acting.deletions().len() >= 3 && acting.withheld.is_empty());
}

#[test]
fn budget_bounds_deletions_and_the_finding_states_when_it_is_available() {
    let rule = RecoveryRule::Stuck;
    let settings = RuleSettings { mode: Mode::Act, ..rule.defaults() };
    let mut scene = Scene::new(acting().with_rule(rule, settings));
    scene.obeys = true;
    for id in 1..=20 {
        scene.harness.observe(&starting(id));
    }
    scene.run(4 * 3600);
    let times: Vec<u64> = scene.deletions().iter().map(|(at, _)| *at).collect();
    for at in &times {
        let within = times.iter().filter(|other| **other >= *at && **other < at + 3600).count();
        assert!(within <= 5, "{within} within an hour of {at}");
    }
    assert!(times.len() >= 4, "{times:?}");
    assert!(scene.findings().iter().any(|finding| matches!(finding.outcome, FindingOutcome::Later(..))));
}

#[test]
fn new_leader_begins_with_an_empty_budget() {
    let rule = RecoveryRule::Orphans;
    let budget = Budget { count: 60, per: Duration::from_secs(3600) };
    let mut scene = Scene::new(acting().with_rule(rule, RuleSettings { budget, ..rule.defaults() }));
    for id in 1..=100 {
        scene.harness.observe(&running(id));
    }
    scene.harness.observe(&version(driver(), 9).phase("Failed"));
    // Leadership is lost and acquired every ten minutes, in which a sixtieth of the hour's budget is earned each minute; the rule
    // itself waits for five minutes each time.
    for _ in 0..6 {
        scene.run(590);
        scene.harness.leader_state = LeaderState::Follower;
        scene.run(10);
        scene.harness.leader_state = LeaderState::Leader;
    }
    let deleted = scene.deletions().len();
    assert!((5..=10).contains(&deleted), "{deleted}");
}

#[test]
fn deletion_that_its_last_check_forbids_is_tried_again_after_a_minute_and_is_not_charged() {
    check_attempts();
}

pub(crate) fn check_attempts() {
    const UIDS: [&str; 6] = ["uid-exec-1", "uid-exec-2", "uid-exec-3", "uid-exec-4", "uid-exec-5", "uid-exec-6"];
    let rule = RecoveryRule::Terminating;
    let settings = RuleSettings { mode: Mode::Act, ..rule.defaults() };
    let mut scene = Scene::new(acting().with_rule(rule, settings));
    scene.run(3600);
    // The nodes of five exist, that of the sixth does not.
    scene.not_confirmed = UIDS[..5].to_vec();
    for id in 1..=6 {
        let mut pod = version(running(id), 5).spec("nodeName", "node-1");
        pod.0["metadata"]["uid"] = UIDS[id as usize - 1].into();
        pod.0["metadata"]["deletionTimestamp"] = scene.harness.now().wall.to_string().into();
        scene.harness.observe(&pod);
        // They are found one after the other: each of the first five takes the whole budget if attempts count.
        scene.run(120);
    }
    scene.run(600);
    assert!(scene.deletions().iter().any(|(_, deletion)| &*deletion.seen.uid == UIDS[5]), "{:?}", scene.findings());
    let attempts: Vec<u64> = scene
        .actions
        .iter()
        .filter(|(_, action)| matches!(action, Action::Recover(deletion) if &*deletion.seen.uid == UIDS[0]))
        .map(|(at, _)| *at)
        .collect();
    assert!(attempts.len() > 5 && attempts.windows(2).all(|pair| pair[1] - pair[0] >= 60), "{attempts:?}");
    let find = |scene: &Scene| scene.findings().into_iter().find(|finding| &*finding.uid == UIDS[0]).unwrap();
    // Its attempt ends in the step that plans it: it is never shown as being deleted.
    for _ in 0..200 {
        scene.run(1);
        assert_ne!(find(&scene).outcome, FindingOutcome::Deleting);
    }
    let first = find(&scene);
    assert!(matches!(first.outcome, FindingOutcome::NotDeleted("its node exists", _)), "{:?}", first.outcome);
    assert!(first.outcome.text().starts_with("was not deleted, because its node exists; checked again after "));
}

#[test]
fn live_executors_of_a_driver_that_keeps_its_executors_are_only_reported() {
    check_live_kept();
}

pub(crate) fn check_live_kept() {
    let all = [RecoveryRule::Stuck, RecoveryRule::Unregistered, RecoveryRule::GivenUp];
    let recovery = all.into_iter().fold(acting(), |all, rule| all.with_rule(rule, act(rule).rule(rule)));
    let mut scene = Scene::with_conf(recovery, "spark.kubernetes.executor.deleteOnTermination=false");
    scene.harness.observe(&starting(1));
    scene.harness.observe(&running(2));
    scene.harness.observe(&running(3));
    scene.answers = Answers::View(vec![], vec![(3, "lost")], COMPLETE);
    scene.run(1200);
    let outcomes: Vec<(RecoveryRule, FindingOutcome)> =
        scene.findings().iter().map(|finding| (finding.rule, finding.outcome)).collect();
    assert_eq!(outcomes, all.map(|rule| (rule, FindingOutcome::Kept(NoRemedy::Kept))));
    assert_eq!(scene.deletions(), []);
}

#[test]
fn finding_that_persists_is_reported_once_an_hour() {
    let mut scene = Scene::new(acting());
    scene.harness.observe(&starting(1));
    scene.run(600 + 2 * 3600 + 120);
    let events = scene.actions.iter().filter(|(_, action)| action.reason() == Some(Reason::ExecutorStuck)).count();
    assert_eq!(events, 3);
    assert_eq!(scene.only_finding().outcome, FindingOutcome::Warned(""));
}

#[test]
fn outage_of_the_watch_does_not_count() {
    let mut scene = Scene::new(act(RecoveryRule::Stuck));
    scene.harness.observe(&starting(1));
    let mut refused = version(running(2), 5).phase("Failed");
    refused.0["status"]["reason"] = "OutOfcpu".into();
    scene.harness.observe(&refused);
    let after = Duration::from_secs(60);
    let warn = RuleSettings { mode: Mode::Warn, after, ..RecoveryRule::Refused.defaults() };
    let recovery = scene.harness.policies.recovery.clone().with_rule(RecoveryRule::Refused, warn);
    scene.harness.policies = scene.harness.policies.clone().with_recovery(recovery);
    scene.run(300);
    let now = scene.harness.now();
    scene.harness.controller.watch_interrupted(now.at);
    scene.run(1000);
    assert_eq!(scene.deletions(), []);
    assert_eq!(scene.only_finding().pod.name(), "nb-exec-2", "what was found before stays");
    scene.harness.observe(&version(driver().ip("10.0.0.5"), 50));
    scene.run(290);
    assert_eq!(scene.deletions(), []);
    scene.run(80);
    assert_eq!(scene.deletions().len(), 1);
}
