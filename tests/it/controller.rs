//! The controller: when it looks up objects, plans and retries. Time is an argument, so each test is a history.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::*;
use jiff::Timestamp;
use spark_usher::controller::{Controller, Effects, ExecutorSetKey, Lookup, LookupResult, Settings};
use spark_usher::gang::GangScheduler;
use spark_usher::leader::LeaderState;
use spark_usher::policy::Policies;
use spark_usher::reconcile::Action;
use spark_usher::snapshot::{
    Change, Conf, DriverPhase, DriverPod, Group, GroupKey, ObservedPod, PodChange, RelatedChange, Replaced, ServedApis,
};
use spark_usher::spark::conf::AppConf;
use spark_usher::spark::ids::PodKey;
use spark_usher::time::Now;

struct ControllerHarness {
    controller: Controller,
    now: Instant,
    policies: Policies,
}

fn served(kinds: &[&str]) -> ServedApis {
    let rows = kinds.iter().map(|kind| GangScheduler::of_kind(kind).unwrap());
    ServedApis(rows.map(|row| (row.kind, &row.apis[0])).collect())
}

fn nothing(change: Replaced) -> Change {
    Change::Related(RelatedChange::Replaced(change))
}

impl ControllerHarness {
    /// A controller that received all lists, with Volcano.
    fn new() -> ControllerHarness {
        let mut harness = ControllerHarness::closed();
        harness.apply(nothing(Replaced::Groups("volcano", Vec::new())));
        harness
    }

    /// The same before the PodGroups were listed.
    fn closed() -> ControllerHarness {
        let now = Instant::now();
        let mut controller = Controller::new(now, Settings::default());
        let at = Now { at: now, wall: Timestamp::UNIX_EPOCH };
        controller.watch_event(Change::Related(RelatedChange::Apis(served(&["volcano", "native"]))), at);
        controller.watch_event(Change::Pods(PodChange::Listed(Vec::new())), at);
        controller.watch_event(nothing(Replaced::Namespaces(Vec::new())), at);
        ControllerHarness { controller, now, policies: only(policy("volcano")) }
    }

    fn moment(&self) -> Now {
        Now { at: self.now, wall: Timestamp::UNIX_EPOCH }
    }

    fn apply(&mut self, change: Change) {
        let now = self.moment();
        self.controller.watch_event(change, now);
    }

    fn written(&mut self, change: Change) {
        let now = self.moment();
        self.controller.apply_written(change, now);
    }

    fn answered(&mut self, read: &Lookup, answer: LookupResult) {
        let now = self.moment();
        self.controller.lookup_answered(read, answer, now);
    }

    fn observe(&mut self, pod: &PodBuilder) {
        self.apply(Change::Pods(PodChange::Observed(pod.observation())));
    }

    /// An executor that a pod with this name and uid created, mutated by the webhook.
    fn executor(&mut self, id: u32, creator: &str, uid: &str) {
        let review = executor(id).created_by_pod(creator, uid);
        let admitted = answer(&review, self.controller.snapshot(), &self.policies).object;
        self.observe(&PodBuilder(admitted).stored(&format!("e{id}")).phase("Pending"));
    }

    fn turn(&mut self) -> Effects {
        // Plans for changes from the watch come in batches.
        self.now += Duration::from_millis(250);
        let now = self.moment();
        self.controller.step(now, &self.policies, LeaderState::Leader)
    }

    fn step_after(&mut self, seconds: u64) -> Effects {
        self.now += Duration::from_secs(seconds);
        self.turn()
    }

    /// An executor that a running pod created, and the effects of the step after that pod was read.
    fn created(&mut self, id: u32, creator: &str, uid: &str) -> Effects {
        self.executor(id, creator, uid);
        self.turn();
        let driver = match pod(creator).stored(uid).phase("Running").observation() {
            ObservedPod::Other(_, pod) => pod,
            other => panic!("{other:?}"),
        };
        self.answered(&Lookup::Pod(PodKey::new("default", creator)), LookupResult::Pod(driver));
        self.turn()
    }
}

fn notebook(uid: &str) -> DriverPod {
    match pod("notebook").stored(uid).phase("Running").observation() {
        ObservedPod::Other(_, pod) => pod,
        other => panic!("{other:?}"),
    }
}

fn read_notebook() -> Lookup {
    Lookup::Pod(PodKey::new("default", "notebook"))
}

/// The executor set whose actions a step begins.
fn acting(effects: &Effects) -> ExecutorSetKey {
    effects.actions[0].0.clone()
}

fn creates(effects: &Effects) -> usize {
    effects.actions.iter().flat_map(|(_, actions)| actions).filter(|a| matches!(a, Action::CreateGroup { .. })).count()
}

#[test]
fn a_plan_waits_for_what_it_rests_on_and_not_for_ever() {
    let mut harness = ControllerHarness::new();
    harness.executor(1, "notebook", "u1");
    let effects = harness.turn();
    assert_eq!(effects.lookups, [read_notebook()]);
    assert!(effects.actions.is_empty(), "the driver is not read yet");
    harness.answered(&read_notebook(), LookupResult::Pod(notebook("u1")));
    assert_eq!(creates(&harness.turn()), 1);

    let mut harness = ControllerHarness::new();
    harness.executor(1, "notebook", "u1");
    for _ in 0..3 {
        assert!(harness.step_after(5).actions.is_empty());
        harness.answered(&read_notebook(), LookupResult::Failed);
    }
    assert_eq!(creates(&harness.turn()), 1, "after three failures the PodGroup is created without the driver");
}

#[test]
fn a_configuration_that_comes_after_its_driver_runs_is_read_again() {
    let mut harness = ControllerHarness::new();
    harness.observe(&driver().conf_map("conf"));
    harness.executor(1, "nb-driver", DRIVER_UID);
    let read = Lookup::Conf(PodKey::new("default", "nb-driver"), DRIVER_UID.into(), "conf".into());
    let mut asked = 0;
    for _ in 0..120 {
        if harness.step_after(1).lookups.contains(&read) {
            asked += 1;
            harness.answered(&read, LookupResult::Absent);
        }
    }
    assert!((5..=12).contains(&asked), "with growing pauses: {asked} times in two minutes");
    // Later rarely, but it is still read.
    let late = (0..40).map(|_| harness.step_after(30)).filter(|effects| effects.lookups.contains(&read)).count();
    assert!(late >= 1, "{late}");
    // The ConfigMap of a finished driver is not read again.
    let mut harness = ControllerHarness::new();
    harness.observe(&driver().conf_map("conf").phase("Failed"));
    harness.executor(1, "nb-driver", DRIVER_UID);
    let first = (0..5).any(|_| harness.step_after(1).lookups.contains(&read));
    harness.answered(&read, LookupResult::Absent);
    assert!(first && !(0..60).any(|_| harness.step_after(10).lookups.contains(&read)));
}

#[test]
fn who_names_ever_new_pods_does_not_hold_an_applications_plan_for_ever() {
    let mut harness = ControllerHarness::new();
    harness.executor(1, "notebook", "u1");
    let effects = harness.turn();
    assert_eq!(effects.lookups, [read_notebook()]);
    harness.answered(&read_notebook(), LookupResult::Pod(notebook("u1")));
    let mut made = 0;
    for n in 0..40 {
        let forged = pod(&format!("evil-{n}")).executor_of(APP, 100 + n).owned_by("Pod", &format!("nobody-{n}"), "x");
        harness.observe(&forged.stored(&format!("x{n}")).phase("Running"));
        made += creates(&harness.step_after(1));
    }
    assert_eq!(made, 1, "the PodGroup is created although a lookup is always in flight");
}

#[test]
fn nothing_is_planned_before_the_lists_are_there_nor_by_a_follower() {
    let mut harness = ControllerHarness::closed();
    harness.executor(1, "notebook", "u1");
    harness.turn();
    harness.answered(&read_notebook(), LookupResult::Pod(notebook("u1")));
    assert_eq!(creates(&harness.turn()), 0, "the PodGroup may exist already");
    harness.apply(nothing(Replaced::Groups("volcano", Vec::new())));
    let follower = {
        let now = harness.moment();
        harness.controller.step(now, &harness.policies, LeaderState::Follower)
    };
    assert!(follower.actions.is_empty());
    assert_eq!(creates(&harness.turn()), 1, "a new leader plans everything");

    // Native PodGroups are never listed (for example without permission): Volcano's do not wait for them, nor for the next resync.
    let mut harness = ControllerHarness::closed();
    harness.executor(1, "notebook", "u1");
    harness.turn();
    harness.answered(&read_notebook(), LookupResult::Pod(notebook("u1")));
    assert_eq!(creates(&harness.turn()), 0);
    harness.apply(nothing(Replaced::Groups("volcano", Vec::new())));
    assert_eq!(creates(&harness.turn()), 1, "as soon as they are listed");
}

#[test]
fn names_that_are_no_names_are_never_read_and_nobody_is_starved() {
    let mut harness = ControllerHarness::new();
    for id in 1..=40 {
        let odd = pod(&format!("odd-{id}")).executor_of("odd", id).stored(&format!("o{id}")).phase("Pending");
        harness.observe(&odd.owned_by("Pod", &format!("?watch=1&n={id}"), "u"));
        let many = pod(&format!("many-{id}")).executor_of("many", id).stored(&format!("m{id}")).phase("Pending");
        harness.observe(&many.owned_by("Pod", &format!("many-driver-{id}"), "u"));
    }
    let first = harness.turn().lookups;
    assert_eq!(first.len(), 16, "the maximum number of lookups in flight");
    assert!(first.iter().all(|read| matches!(read, Lookup::Pod(pod) if pod.name().starts_with("many-driver-"))));
    harness.executor(1, "notebook", "u1");
    // Failed lookups wait, and the most recent one starts nevertheless.
    let mut asked = Vec::new();
    let mut flying = first;
    for _ in 0..10 {
        for read in &flying {
            harness.answered(read, LookupResult::Failed);
        }
        flying = harness.step_after(1).lookups;
        asked.extend(flying.clone());
    }
    assert!(asked.contains(&read_notebook()));
}

#[test]
fn a_read_that_fails_is_forgotten_with_its_asker() {
    let mut harness = ControllerHarness::new();
    harness.executor(1, "notebook", "u1");
    harness.turn();
    harness.answered(&read_notebook(), LookupResult::Failed);
    harness.apply(Change::Pods(PodChange::Gone(PodKey::new("default", "nb-exec-1"), "e1".into())));
    assert!(harness.step_after(20).lookups.is_empty());
    assert!(harness.step_after(600).lookups.is_empty());
}

#[test]
fn a_pod_made_anew_under_the_same_name_is_read_again_at_once() {
    let mut harness = ControllerHarness::new();
    harness.executor(1, "notebook", "u1");
    harness.turn();
    let now = harness.now;
    harness.answered(&read_notebook(), LookupResult::Pod(notebook("u1")));
    let set = acting(&harness.turn());
    harness.controller.actions_finished(&set, false, true, now);
    // The notebook is deleted and started again, and its next session creates executors.
    harness.apply(Change::Pods(PodChange::Gone(PodKey::new("default", "nb-exec-1"), "e1".into())));
    harness.executor(2, "notebook", "u2");
    assert_eq!(harness.turn().lookups, [read_notebook()]);
    harness.answered(&read_notebook(), LookupResult::Pod(notebook("u2")));
    assert_eq!(harness.controller.snapshot().driver_pod("default", "notebook").unwrap().uid, Arc::from("u2"));
    assert!(harness.turn().lookups.is_empty(), "the pod is read once");
}

#[test]
fn nobody_is_woken_while_actions_are_on_the_way() {
    let mut harness = ControllerHarness::new();
    harness.executor(1, "notebook", "u1");
    harness.turn();
    harness.answered(&read_notebook(), LookupResult::Pod(notebook("u1")));
    let effects = harness.turn();
    assert_eq!(creates(&effects), 1);
    let now = harness.now;
    harness.controller.actions_finished(&acting(&effects), true, false, now);
    let wake = harness.turn().wake_at.unwrap();
    assert!(wake > harness.now, "a failed write is retried after a pause");
    let again = harness.step_after(1);
    assert_eq!(creates(&again), 1);
    harness.executor(2, "notebook", "u1");
    let waiting = harness.step_after(1);
    assert!(waiting.actions.is_empty(), "earlier actions are in flight");
    assert!(waiting.wake_at.unwrap() > harness.now, "and no step is due until they finish");
}

#[test]
fn who_acts_again_and_again_does_so_ever_more_slowly() {
    let mut harness = ControllerHarness::new();
    harness.executor(1, "notebook", "u1");
    harness.turn();
    harness.answered(&read_notebook(), LookupResult::Pod(notebook("u1")));
    // Another client deletes the PodGroup as soon as it is created.
    let mut made = 0;
    for _ in 0..240 {
        let effects = harness.turn();
        if creates(&effects) > 0 {
            made += 1;
            let now = harness.now;
            harness.controller.actions_finished(&acting(&effects), false, true, now);
        }
        harness.apply(nothing(Replaced::Groups("volcano", Vec::new())));
        harness.controller.requeue_all();
    }
    assert!((6..=16).contains(&made), "{made} times in a minute");
}

#[test]
fn whoever_else_creates_executors_of_an_application_holds_up_nobody() {
    for (failed, wrote) in [(true, false), (false, true)] {
        let mut harness = ControllerHarness::new();
        let effects = harness.created(1, "eve", "u9");
        assert_eq!(creates(&effects), 1);
        let eve = acting(&effects);
        // While actions for the stranger's executors are in flight, actions for others begin.
        let effects = harness.created(2, "notebook", "u1");
        assert_eq!(creates(&effects), 1);
        let victim = acting(&effects);
        assert_ne!(victim, eve);
        let now = harness.now;
        harness.controller.actions_finished(&victim, false, true, now);
        // Also when the stranger's actions fail repeatedly, or are reverted.
        for _ in 0..20 {
            let now = harness.now;
            harness.controller.actions_finished(&eve, failed, wrote, now);
            harness.controller.requeue_all();
            let effects = harness.turn();
            assert!(effects.actions.iter().any(|(set, _)| *set == victim), "the PodGroup does not exist yet");
            let now = harness.now;
            harness.controller.actions_finished(&victim, false, false, now);
        }
        let wake = harness.turn().wake_at.unwrap();
        assert!(wake > harness.now);
    }
}

#[test]
fn who_has_gone_holds_up_nobody() {
    let mut harness = ControllerHarness::new();
    let effects = harness.created(1, "eve", "u9");
    let (eve, now) = (acting(&effects), harness.now);
    // The stranger's actions fail, and then only executors of another creator remain.
    for _ in 0..10 {
        harness.controller.actions_finished(&eve, true, false, now);
    }
    harness.apply(Change::Pods(PodChange::Gone(PodKey::new("default", "nb-exec-1"), "e1".into())));
    assert_eq!(creates(&harness.created(2, "notebook", "u1")), 1);
}

#[test]
fn a_configuration_that_does_not_exist_yet_is_waited_for() {
    let mut harness = ControllerHarness::new();
    let admitted =
        answer(&driver().conf_map("conf").created_by("admin"), harness.controller.snapshot(), &harness.policies);
    let driver = PodBuilder(admitted.object).stored(DRIVER_UID);
    harness.observe(&driver.clone().phase("Pending"));
    let conf = harness.turn().lookups.remove(0);
    assert!(matches!(&conf, Lookup::Conf(_, _, name) if &**name == "conf"));
    harness.answered(&conf, LookupResult::Absent);
    assert_eq!(harness.step_after(1).lookups, std::slice::from_ref(&conf), "Spark creates it after the pod");
    let known = Conf::Known(Arc::new(AppConf::parse("spark.executor.instances=4")));
    harness.answered(&conf, LookupResult::Conf(known));
    assert!(harness.controller.snapshot().conf(DRIVER_UID).is_some());
    harness.observe(&driver.phase("Running"));
    assert!(harness.step_after(1).lookups.is_empty());
    assert_eq!(harness.controller.snapshot().driver_pod("default", "nb-driver").unwrap().phase, DriverPhase::Running);
}

#[test]
fn an_answer_that_comes_after_the_end_of_what_it_tells_raises_no_dead() {
    let mut harness = ControllerHarness::new();
    let key = GroupKey { namespace: "default".into(), name: "g".into(), scheduler: "volcano" };
    let group = |uid: &str, version: &str| Group {
        uid: uid.into(),
        version: version.into(),
        selector: Some(APP.into()),
        owner: None,
        started: false,
        created: None,
        deleting: false,
        spec: serde_json::json!({"minMember": 2}),
    };
    let version = |harness: &ControllerHarness| {
        harness.controller.snapshot().groups.get(&key).map(|group| group.version.to_string())
    };
    harness.written(Change::Related(RelatedChange::Group(key.clone(), group("u1", "9"))));
    assert_eq!(version(&harness), Some("9".into()), "the watch has not shown the write yet");
    harness.apply(Change::Related(RelatedChange::Group(key.clone(), group("u1", "11"))));
    harness.written(Change::Related(RelatedChange::Group(key.clone(), group("u1", "10"))));
    assert_eq!(version(&harness), Some("11".into()), "the watch was faster");
    harness.apply(Change::Related(RelatedChange::GroupGone(key.clone())));
    harness.written(Change::Related(RelatedChange::Group(key.clone(), group("u1", "12"))));
    assert_eq!(version(&harness), None);
    harness.written(Change::Related(RelatedChange::Group(key.clone(), group("u2", "13"))));
    assert_eq!(version(&harness), Some("13".into()), "made anew");
    harness.apply(nothing(Replaced::Groups("volcano", Vec::new())));
    harness.written(Change::Related(RelatedChange::Group(key.clone(), group("u2", "14"))));
    assert_eq!(version(&harness), None);
}
