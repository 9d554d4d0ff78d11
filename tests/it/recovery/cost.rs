//! What executors cost that do no work.

use super::*;
use usher_core::recovery::cost::WasteCause;

const UNIT: f64 = 1408.0 * 1_048_576.0;

/// The core-seconds of a cause. Each executor of these tests requests one core.
fn cores(scene: &Scene, cause: WasteCause) -> f64 {
    let costs = scene.harness.controller.costs();
    let rows = || costs.namespaces().filter(|(_, of, _)| *of == cause);
    let by_app: f64 = costs.apps().filter(|(_, of, _)| *of == cause).map(|(.., amount)| amount.core_seconds).sum();
    let sum: f64 = rows().map(|(.., amount)| amount.core_seconds).sum();
    let bytes: f64 = rows().map(|(.., amount)| amount.byte_seconds).sum();
    assert!((sum - by_app).abs() < 0.001 && (bytes - sum * UNIT).abs() < 1.0, "{sum} {by_app} {bytes}");
    sum
}

/// Asserts that a cost is what it should be, except for the time since the last round: a minute of two executors.
fn assert_costs(scene: &Scene, cause: WasteCause, expected: f64) {
    let cost = cores(scene, cause);
    assert!((expected - 121.0..=expected + 1.0).contains(&cost), "{cause:?}: {cost} instead of {expected}");
}

fn on_node(pod: PodBuilder) -> PodBuilder {
    pod.spec("nodeName", "node-1")
}

fn warn_only() -> Recovery {
    Recovery { acts: false, ..acting() }
}

#[test]
fn orphans_cost_from_the_exit_of_their_driver_and_are_counted_once() {
    check_counted_once();
}

pub(crate) fn check_counted_once() {
    let mut scene = Scene::new(warn_only());
    scene.registered(&[1, 2]);
    scene.harness.observe(&on_node(running(1)));
    scene.harness.observe(&on_node(running(2)));
    // It has no node, and so costs nothing.
    scene.harness.observe(&running(3).phase("Pending"));
    scene.run(1000);
    assert_eq!(cores(&scene, WasteCause::Orphaned), 0.0);
    scene.harness.observe(&version(driver(), 9).phase("Failed"));
    scene.run(600);
    assert_costs(&scene, WasteCause::Orphaned, 2.0 * 600.0);
    // The next leader counts what happens while it leads.
    scene.harness.leader_state = LeaderState::Follower;
    scene.run(300);
    scene.harness.leader_state = LeaderState::Leader;
    scene.run(600);
    assert_costs(&scene, WasteCause::Orphaned, 2.0 * 600.0);
    assert_eq!(WasteCause::ALL.iter().filter(|cause| cores(&scene, **cause) > 0.0).count(), 1);
}

#[test]
fn leader_that_paused_goes_on_counting_unless_another_one_led() {
    let mut scene = Scene::new(warn_only());
    scene.harness.observe(&on_node(running(1)));
    scene.harness.observe(&version(driver(), 9).phase("Failed"));
    scene.run(600);
    let before = cores(&scene, WasteCause::Orphaned);
    assert!(before > 400.0, "{before}");
    // It could not renew its Lease in time for a while.
    scene.harness.leader_state = LeaderState::NoLeader;
    scene.run(5);
    scene.harness.leader_state = LeaderState::Leader;
    scene.run(5);
    assert!(cores(&scene, WasteCause::Orphaned) >= before);
    scene.harness.leader_state = LeaderState::Follower;
    scene.run(5);
    scene.harness.leader_state = LeaderState::NoLeader;
    scene.run(5);
    scene.harness.leader_state = LeaderState::Leader;
    scene.run(2);
    assert!(cores(&scene, WasteCause::Orphaned) < 100.0);
}

#[test]
fn executors_that_do_no_work_cost_from_the_beginning_once_that_is_known() {
    let mut scene = Scene::new(warn_only());
    scene.harness.observe(&starting(1));
    scene.harness.observe(&on_node(running(2)));
    scene.harness.observe(&on_node(running(3)));
    scene.harness.observe(&on_node(running(4)));
    scene.answers = Answers::View(vec![4], vec![(3, "lost")], COMPLETE);
    // It is not known yet whether they will register, or start.
    scene.run(240);
    assert_eq!((cores(&scene, WasteCause::Stuck), cores(&scene, WasteCause::Unregistered)), (0.0, 0.0));
    scene.run(960);
    assert_costs(&scene, WasteCause::Stuck, 1200.0);
    assert_costs(&scene, WasteCause::Unregistered, 1200.0);
    assert_costs(&scene, WasteCause::GivenUp, 1200.0);
    // One of them registers: what it has cost until now was without work.
    scene.answers = Answers::View(vec![2, 4], vec![(3, "lost")], COMPLETE);
    scene.run(600);
    assert_costs(&scene, WasteCause::Unregistered, 1200.0);
    assert_costs(&scene, WasteCause::GivenUp, 1800.0);
}

#[test]
fn executors_cost_from_the_beginning_also_if_the_first_view_comes_late() {
    let mut scene = Scene::new(warn_only());
    scene.answers = Answers::Refused;
    scene.harness.observe(&on_node(running(1)));
    scene.run(1200);
    scene.answers = Answers::View(vec![], vec![], COMPLETE);
    scene.run(600);
    assert_costs(&scene, WasteCause::Unregistered, 1800.0);
    // While every rule is off, nothing is measured.
    scene.harness.policies = scene.harness.policies.clone().with_recovery(
        RecoveryRule::ALL.into_iter().fold(warn_only(), |recovery, rule| {
            recovery.with_rule(rule, RuleSettings { mode: Mode::Off, ..rule.defaults() })
        }),
    );
    scene.run(600);
    scene.harness.policies = scene.harness.policies.clone().with_recovery(warn_only());
    scene.run(600);
    assert_costs(&scene, WasteCause::Unregistered, 2400.0);
}

#[test]
fn executors_on_nodes_wait_for_their_gang_or_for_their_node() {
    let mut scene = Scene::new(warn_only());
    scene.answers = Answers::Nothing;
    let member = |id| member(on_node(running(id)).spec("schedulerName", "volcano"), "g");
    let list = |started| listed(vec![(group_key("g"), group(started))]);
    scene.harness.apply(list(false));
    scene.harness.observe(&member(1));
    scene.harness.observe(&member(2));
    scene.run(600);
    assert_costs(&scene, WasteCause::Gang, 1200.0);
    scene.harness.apply(list(true));
    scene.run(600);
    assert_costs(&scene, WasteCause::Gang, 1200.0);
    // A node does not terminate one of them.
    let mut terminating = version(member(2), 9);
    terminating.0["metadata"]["deletionTimestamp"] = scene.harness.now().wall.to_string().into();
    terminating.0["metadata"]["deletionGracePeriodSeconds"] = 30.into();
    scene.harness.observe(&terminating);
    scene.run(400);
    let cost = cores(&scene, WasteCause::Node);
    assert!((300.0..=400.0).contains(&cost), "{cost}");
}

#[test]
fn rejected_executors_cost_from_their_creation_and_deleted_ones_give_back() {
    let mut scene = Scene::new(acting());
    let created = (scene.harness.now().wall - std::time::Duration::from_secs(20)).to_string();
    let mut pod = on_node(version(running(1), 5)).phase("Failed");
    pod.0["status"]["reason"] = "OutOfcpu".into();
    pod.0["metadata"]["creationTimestamp"] = created.into();
    scene.harness.observe(&on_node(running(1)));
    scene.run(2);
    scene.harness.observe(&pod);
    scene.run(30);
    let cost = cores(&scene, WasteCause::Refused);
    assert!((20.0..=25.0).contains(&cost), "{cost}");
    scene.run(4000);
    assert_eq!(cores(&scene, WasteCause::Refused), cost, "each exit once");
    assert_eq!(given_back(&mut scene, 0), [0.0; 0], "a pod that has failed holds nothing");
    let mut scene = Scene::new(act(RecoveryRule::Orphans));
    scene.harness.observe(&on_node(running(1)));
    scene.harness.observe(&version(driver(), 9).phase("Failed"));
    scene.run(400);
    let back = given_back(&mut scene, 0);
    assert!(back.len() == 1 && (back[0] - 3600.0).abs() < 0.001, "an hour at most: {back:?}");
}

/// What the deletion of this number gave back, two hours later.
fn given_back(scene: &mut Scene, number: usize) -> Vec<f64> {
    let (_, deletion) = scene.deletions()[number];
    let deleted = usher_core::recovery::report::DeletedPod {
        app: AppKey::new("default", APP),
        rule: deletion.rule,
        pod: deletion.event.pod.clone(),
        uid: deletion.seen.uid.clone(),
        at: scene.harness.now().wall,
        message: String::new(),
    };
    let now = scene.harness.now().at;
    scene.harness.controller.recovered(deleted, now);
    scene.run(7200);
    scene.harness.controller.costs().given_back().map(|(.., amount)| amount.core_seconds).collect()
}

#[test]
fn cost_is_counted_once_although_its_cause_pauses() {
    check_pauses(&[]);
    // Rounds go on in the pauses, because of an executor that starts.
    check_pauses(&[on_node(starting(2))]);
}

fn check_pauses(others: &[PodBuilder]) {
    let mut scene = Scene::new(warn_only());
    scene.harness.observe(&on_node(running(1)));
    others.iter().for_each(|other| scene.harness.observe(other));
    scene.answers = Answers::View(vec![], vec![], COMPLETE);
    scene.run(1000);
    assert_costs(&scene, WasteCause::Unregistered, 1000.0);
    // Nothing is known for a while, again and again.
    for _ in 0..3 {
        scene.answers = Answers::Nothing;
        scene.run(500);
        scene.answers = Answers::View(vec![], vec![], COMPLETE);
        scene.run(700);
    }
    assert!(
        cores(&scene, WasteCause::Unregistered) <= 1000.0 + 3.0 * 1200.0,
        "{}",
        cores(&scene, WasteCause::Unregistered)
    );
    assert!(cores(&scene, WasteCause::Unregistered) >= 1000.0 + 3.0 * 500.0);
}
