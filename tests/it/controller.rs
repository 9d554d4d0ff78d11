//! The controller: when it looks up objects, plans and retries. Time is an argument, so each test is a history.

use std::sync::Arc;
use std::time::Duration;

use crate::support::controller_harness::ControllerHarness;
use crate::support::*;
use usher_core::controller::{Effects, ExecutorSetKey, Lookup, LookupResult};
use usher_core::gang::GangScheduler;
use usher_core::leader::LeaderState;
use usher_core::planning::Action;
use usher_core::snapshot::{
    Change, Conf, DriverPhase, DriverPod, Group, GroupKey, ObservedPod, PodChange, RelatedChange, ServedApis, Watched,
};
use usher_spark::conf::AppConf;
use usher_spark::ids::PodKey;

fn served(kinds: &[&str]) -> ServedApis {
    let rows = kinds.iter().map(|kind| GangScheduler::of_kind(kind).unwrap());
    ServedApis(rows.map(|row| (row.kind, &row.apis[0])).collect())
}

/// Volcano's PodGroups were listed: there are none.
fn no_groups() -> Change {
    RelatedChange::Groups("volcano", Watched::Listed(Vec::new())).into()
}

impl ControllerHarness {
    /// A controller that received all lists, with Volcano.
    fn with_volcano() -> ControllerHarness {
        let mut harness = ControllerHarness::before_podgroup_list();
        harness.apply(no_groups());
        harness
    }

    /// The same before the PodGroups were listed.
    fn before_podgroup_list() -> ControllerHarness {
        ControllerHarness::with_empty_lists(only(policy("volcano")), served(&["volcano", "native"]))
    }

    fn written(&mut self, change: impl Into<Change>) {
        let now = self.now();
        self.controller.apply_written(change, now);
    }

    fn answered(&mut self, lookup: &Lookup, result: LookupResult) {
        let now = self.now();
        self.controller.lookup_answered(lookup, result, now);
    }

    /// An executor that a pod with this name and uid created, mutated by the webhook.
    fn executor(&mut self, id: u32, creator: &str, uid: &str) {
        let review = executor(id).created_by_pod(creator, uid);
        let admitted = answer(&review, self.controller.snapshot(), &self.policies).object;
        self.observe(&PodBuilder(admitted).stored(&format!("e{id}")).phase("Pending"));
    }

    fn step(&mut self) -> Effects {
        self.step_in(0)
    }

    fn step_in(&mut self, seconds: u64) -> Effects {
        // Plans for changes from the watch come in batches.
        self.step_unanswered(Duration::from_secs(seconds) + Duration::from_millis(250))
    }

    /// An executor that a running pod created, and the effects of the step after that pod was read.
    fn created(&mut self, id: u32, creator: &str, uid: &str) -> Effects {
        self.executor(id, creator, uid);
        self.step();
        let driver = match pod(creator).stored(uid).phase("Running").observation() {
            ObservedPod::Other(_, pod) => pod,
            other => panic!("{other:?}"),
        };
        self.answered(&Lookup::Pod(PodKey::new("default", creator)), LookupResult::Pod(driver));
        self.step()
    }
}

fn notebook(uid: &str) -> DriverPod {
    match pod("notebook").stored(uid).phase("Running").observation() {
        ObservedPod::Other(_, pod) => pod,
        other => panic!("{other:?}"),
    }
}

fn notebook_lookup() -> Lookup {
    Lookup::Pod(PodKey::new("default", "notebook"))
}

/// The executor set whose actions a step begins.
fn set_of_first_action(effects: &Effects) -> ExecutorSetKey {
    effects.actions[0].0.clone()
}

fn created_groups(effects: &Effects) -> usize {
    effects.actions.iter().flat_map(|(_, actions)| actions).filter(|a| matches!(a, Action::CreateGroup { .. })).count()
}

#[test]
fn plan_waits_for_driver_lookup_and_proceeds_after_three_failures() {
    let mut harness = ControllerHarness::with_volcano();
    harness.executor(1, "notebook", "u1");
    let effects = harness.step();
    assert_eq!(effects.lookups, [notebook_lookup()]);
    assert!(effects.actions.is_empty(), "the driver is not read yet");
    harness.answered(&notebook_lookup(), LookupResult::Pod(notebook("u1")));
    assert_eq!(created_groups(&harness.step()), 1);

    let mut harness = ControllerHarness::with_volcano();
    harness.executor(1, "notebook", "u1");
    for _ in 0..3 {
        assert!(harness.step_in(5).actions.is_empty());
        harness.answered(&notebook_lookup(), LookupResult::Failed);
    }
    assert_eq!(created_groups(&harness.step()), 1, "after three failures the PodGroup is created without the driver");
}

#[test]
fn absent_configuration_is_read_again_with_backoff_while_driver_runs() {
    let mut harness = ControllerHarness::with_volcano();
    harness.observe(&driver().conf_map("conf"));
    harness.executor(1, "nb-driver", DRIVER_UID);
    let lookup = Lookup::Conf(PodKey::new("default", "nb-driver"), DRIVER_UID.into(), "conf".into());
    let mut lookups = 0;
    for _ in 0..120 {
        if harness.step_in(1).lookups.contains(&lookup) {
            lookups += 1;
            harness.answered(&lookup, LookupResult::Absent);
        }
    }
    assert!((5..=12).contains(&lookups), "with growing pauses: {lookups} times in two minutes");
    // Later rarely, but it is still read.
    let late = (0..40).map(|_| harness.step_in(30)).filter(|effects| effects.lookups.contains(&lookup)).count();
    assert!(late >= 1, "{late}");
    // The ConfigMap of a finished driver is not read again.
    let mut harness = ControllerHarness::with_volcano();
    harness.observe(&driver().conf_map("conf").phase("Failed"));
    harness.executor(1, "nb-driver", DRIVER_UID);
    let first = (0..5).any(|_| harness.step_in(1).lookups.contains(&lookup));
    harness.answered(&lookup, LookupResult::Absent);
    assert!(first && !(0..60).any(|_| harness.step_in(10).lookups.contains(&lookup)));
}

#[test]
fn forged_owners_do_not_delay_plan_of_application() {
    let mut harness = ControllerHarness::with_volcano();
    harness.executor(1, "notebook", "u1");
    let effects = harness.step();
    assert_eq!(effects.lookups, [notebook_lookup()]);
    harness.answered(&notebook_lookup(), LookupResult::Pod(notebook("u1")));
    let mut created = 0;
    for n in 0..40 {
        let forged = pod(&format!("evil-{n}")).executor_of(APP, 100 + n).owned_by("Pod", &format!("absent-{n}"), "x");
        harness.observe(&forged.stored(&format!("x{n}")).phase("Running"));
        created += created_groups(&harness.step_in(1));
    }
    assert_eq!(created, 1, "the PodGroup is created although a lookup is always in flight");
}

#[test]
fn nothing_is_planned_before_podgroup_list_or_by_follower() {
    let mut harness = ControllerHarness::before_podgroup_list();
    harness.executor(1, "notebook", "u1");
    harness.step();
    harness.answered(&notebook_lookup(), LookupResult::Pod(notebook("u1")));
    assert_eq!(created_groups(&harness.step()), 0, "the PodGroup may exist already");
    harness.apply(no_groups());
    harness.leader_state = LeaderState::Follower;
    assert!(harness.step().actions.is_empty());
    harness.leader_state = LeaderState::Leader;
    assert_eq!(created_groups(&harness.step()), 1, "a new leader plans everything");

    // Native PodGroups are never listed (for example without permission): Volcano's do not wait for them, nor for the next
    // resync.
    let mut harness = ControllerHarness::before_podgroup_list();
    harness.executor(1, "notebook", "u1");
    harness.step();
    harness.answered(&notebook_lookup(), LookupResult::Pod(notebook("u1")));
    assert_eq!(created_groups(&harness.step()), 0);
    harness.apply(no_groups());
    assert_eq!(created_groups(&harness.step()), 1, "as soon as they are listed");
}

#[test]
fn invalid_names_are_not_looked_up_and_failed_lookups_starve_no_new_one() {
    let mut harness = ControllerHarness::with_volcano();
    for id in 1..=40 {
        let odd = pod(&format!("odd-{id}")).executor_of("odd", id).stored(&format!("o{id}")).phase("Pending");
        harness.observe(&odd.owned_by("Pod", &format!("?watch=1&n={id}"), "u"));
        let many = pod(&format!("many-{id}")).executor_of("many", id).stored(&format!("m{id}")).phase("Pending");
        harness.observe(&many.owned_by("Pod", &format!("many-driver-{id}"), "u"));
    }
    let first = harness.step().lookups;
    assert_eq!(first.len(), 16, "the maximum number of lookups in flight");
    assert!(first.iter().all(|lookup| matches!(lookup, Lookup::Pod(pod) if pod.name().starts_with("many-driver-"))));
    harness.executor(1, "notebook", "u1");
    // Failed lookups wait, and the most recent one starts nevertheless.
    let mut lookups = Vec::new();
    let mut in_flight = first;
    for _ in 0..10 {
        for lookup in &in_flight {
            harness.answered(lookup, LookupResult::Failed);
        }
        in_flight = harness.step_in(1).lookups;
        lookups.extend(in_flight.clone());
    }
    assert!(lookups.contains(&notebook_lookup()));
}

#[test]
fn failed_lookup_is_dropped_with_its_last_waiter() {
    let mut harness = ControllerHarness::with_volcano();
    harness.executor(1, "notebook", "u1");
    harness.step();
    harness.answered(&notebook_lookup(), LookupResult::Failed);
    harness.apply(PodChange::Gone(PodKey::new("default", "nb-exec-1"), "e1".into()));
    assert!(harness.step_in(20).lookups.is_empty());
    assert!(harness.step_in(600).lookups.is_empty());
}

#[test]
fn recreated_pod_of_same_name_is_looked_up_again_immediately() {
    let mut harness = ControllerHarness::with_volcano();
    harness.executor(1, "notebook", "u1");
    harness.step();
    let now = harness.now().at;
    harness.answered(&notebook_lookup(), LookupResult::Pod(notebook("u1")));
    let set = set_of_first_action(&harness.step());
    harness.controller.actions_finished(&set, false, true, now);
    // The notebook is deleted and started again, and its next session creates executors.
    harness.apply(PodChange::Gone(PodKey::new("default", "nb-exec-1"), "e1".into()));
    harness.executor(2, "notebook", "u2");
    assert_eq!(harness.step().lookups, [notebook_lookup()]);
    harness.answered(&notebook_lookup(), LookupResult::Pod(notebook("u2")));
    assert_eq!(harness.controller.snapshot().driver_pod("default", "notebook").unwrap().uid, Arc::from("u2"));
    assert!(harness.step().lookups.is_empty(), "the pod is read once");
}

#[test]
fn failed_action_backs_off_and_no_step_is_due_while_actions_are_in_flight() {
    let mut harness = ControllerHarness::with_volcano();
    harness.executor(1, "notebook", "u1");
    harness.step();
    harness.answered(&notebook_lookup(), LookupResult::Pod(notebook("u1")));
    let effects = harness.step();
    assert_eq!(created_groups(&effects), 1);
    let now = harness.now().at;
    harness.controller.actions_finished(&set_of_first_action(&effects), true, false, now);
    let wake = harness.step().wake_at.unwrap();
    assert!(wake > harness.now().at, "a failed write is retried after a pause");
    let again = harness.step_in(1);
    assert_eq!(created_groups(&again), 1);
    harness.executor(2, "notebook", "u1");
    let waiting = harness.step_in(1);
    assert!(waiting.actions.is_empty(), "earlier actions are in flight");
    assert!(waiting.wake_at.unwrap() > harness.now().at, "and no step is due until they finish");
}

#[test]
fn repeated_creation_of_deleted_podgroup_backs_off() {
    let mut harness = ControllerHarness::with_volcano();
    harness.executor(1, "notebook", "u1");
    harness.step();
    harness.answered(&notebook_lookup(), LookupResult::Pod(notebook("u1")));
    // Another client deletes the PodGroup as soon as it is created.
    let mut created = 0;
    for _ in 0..240 {
        let effects = harness.step();
        if created_groups(&effects) > 0 {
            created += 1;
            let now = harness.now().at;
            harness.controller.actions_finished(&set_of_first_action(&effects), false, true, now);
        }
        harness.apply(no_groups());
        harness.controller.requeue_all();
    }
    assert!((6..=16).contains(&created), "{created} times in a minute");
}

#[test]
fn actions_of_one_creator_do_not_block_those_of_another() {
    for (failed, wrote) in [(true, false), (false, true)] {
        let mut harness = ControllerHarness::with_volcano();
        let effects = harness.created(1, "eve", "u9");
        assert_eq!(created_groups(&effects), 1);
        let eve = set_of_first_action(&effects);
        // While actions for the stranger's executors are in flight, actions for others begin.
        let effects = harness.created(2, "notebook", "u1");
        assert_eq!(created_groups(&effects), 1);
        let victim = set_of_first_action(&effects);
        assert_ne!(victim, eve);
        let now = harness.now().at;
        harness.controller.actions_finished(&victim, false, true, now);
        // Also when the stranger's actions fail repeatedly, or are reverted.
        for _ in 0..20 {
            let now = harness.now().at;
            harness.controller.actions_finished(&eve, failed, wrote, now);
            harness.controller.requeue_all();
            let effects = harness.step();
            assert!(effects.actions.iter().any(|(set, _)| *set == victim), "the PodGroup does not exist yet");
            let now = harness.now().at;
            harness.controller.actions_finished(&victim, false, false, now);
        }
        let wake = harness.step().wake_at.unwrap();
        assert!(wake > harness.now().at);
    }
}

#[test]
fn backoff_of_removed_creator_does_not_delay_others() {
    let mut harness = ControllerHarness::with_volcano();
    let effects = harness.created(1, "eve", "u9");
    let (eve, now) = (set_of_first_action(&effects), harness.now().at);
    // The stranger's actions fail, and then only executors of another creator remain.
    for _ in 0..10 {
        harness.controller.actions_finished(&eve, true, false, now);
    }
    harness.apply(PodChange::Gone(PodKey::new("default", "nb-exec-1"), "e1".into()));
    assert_eq!(created_groups(&harness.created(2, "notebook", "u1")), 1);
}

#[test]
fn missing_configuration_of_pending_driver_is_looked_up_until_it_exists() {
    let mut harness = ControllerHarness::with_volcano();
    let admitted =
        answer(&driver().conf_map("conf").created_by("admin"), harness.controller.snapshot(), &harness.policies);
    let driver = PodBuilder(admitted.object).stored(DRIVER_UID);
    harness.observe(&driver.clone().phase("Pending"));
    let lookup = harness.step().lookups.remove(0);
    assert!(matches!(&lookup, Lookup::Conf(_, _, name) if &**name == "conf"));
    harness.answered(&lookup, LookupResult::Absent);
    assert_eq!(harness.step_in(1).lookups, std::slice::from_ref(&lookup), "Spark creates it after the pod");
    let known = Conf::Known(Arc::new(AppConf::parse("spark.executor.instances=4")));
    harness.answered(&lookup, LookupResult::Conf(known));
    assert!(harness.controller.snapshot().confs.contains_key(DRIVER_UID));
    harness.observe(&driver.phase("Running"));
    let quotas = Lookup::Quotas("default".into());
    assert_eq!(harness.step_in(1).lookups, [quotas], "it has no executors yet");
    assert_eq!(harness.controller.snapshot().driver_pod("default", "nb-driver").unwrap().phase, DriverPhase::Running);
}

#[test]
fn write_response_neither_overrides_newer_event_nor_restores_deleted_podgroup() {
    let mut harness = ControllerHarness::with_volcano();
    let key = GroupKey { namespace: "default".into(), name: "g".into(), scheduler: "volcano" };
    let group = |uid: &str, version: &str| Group { uid: uid.into(), version: version.into(), ..pod_group(2) };
    let version = |harness: &ControllerHarness| {
        harness.controller.snapshot().groups.get(&key).map(|group| group.version.to_string())
    };
    harness.written(RelatedChange::Groups(key.scheduler, Watched::Upserted(key.clone(), group("u1", "9"))));
    assert_eq!(version(&harness), Some("9".into()), "the watch has not shown the write yet");
    harness.apply(RelatedChange::Groups(key.scheduler, Watched::Upserted(key.clone(), group("u1", "11"))));
    harness.written(RelatedChange::Groups(key.scheduler, Watched::Upserted(key.clone(), group("u1", "10"))));
    assert_eq!(version(&harness), Some("11".into()), "the watch was faster");
    harness.apply(RelatedChange::Groups(key.scheduler, Watched::Removed(key.clone())));
    harness.written(RelatedChange::Groups(key.scheduler, Watched::Upserted(key.clone(), group("u1", "12"))));
    assert_eq!(version(&harness), None);
    harness.written(RelatedChange::Groups(key.scheduler, Watched::Upserted(key.clone(), group("u2", "13"))));
    assert_eq!(version(&harness), Some("13".into()), "made anew");
    harness.apply(no_groups());
    harness.written(RelatedChange::Groups(key.scheduler, Watched::Upserted(key.clone(), group("u2", "14"))));
    assert_eq!(version(&harness), None);
}
