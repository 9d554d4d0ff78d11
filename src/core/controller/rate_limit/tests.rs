//! When actions begin, for plans and batches one by one.

use std::collections::BTreeSet;

use super::*;
use crate::controller::backoff::INITIAL_DELAY;
use crate::planning::{Check, ObjectVersion, PodEvent, Recover};
use crate::policy::RecoveryRule;
use crate::reason::Reason;
use crate::recovery::round::RoundPart;
use crate::test_time::instant;
use usher_spark::ids::{PodIdentity, PodKey};

fn app(name: &str) -> AppKey {
    AppKey::new("default", name)
}

fn creator(n: usize) -> Option<Creator> {
    Some(Creator::of_pod("p", &n.to_string()))
}

/// A plan with one Event for each of this many creators.
fn plan_of_events(creators: usize) -> Plan {
    let mut plan = Plan::default();
    for n in 0..creators {
        let pod = PodKey::new("default", "p");
        let (reason, message) = (Reason::GangSizeUnknown, String::new());
        plan.add(creator(n), [Action::RecordEvent(PodEvent { pod, uid: "u".into(), reason, message })]);
    }
    plan
}

#[test]
fn sets_of_one_application_use_limited_slots_and_take_turns() {
    let now = instant();
    let mut rate_limit = RateLimit::default();
    rate_limit.submit(&app("a"), plan_of_events(100), now);
    let mut started = rate_limit.start_ready();
    assert_eq!(started.len(), MAX_PER_APP);
    rate_limit.submit(&app("z"), plan_of_events(1), now);
    let other = rate_limit.start_ready();
    assert!(other.len() == 1 && other[0].0.app == app("z"), "another application has a free slot");
    rate_limit.finished(&other[0].0, false, false, now);
    // Planned again before all sets ran: no set runs twice before every set ran once.
    rate_limit.submit(&app("a"), plan_of_events(100), now);
    let mut seen: BTreeSet<ExecutorSetKey> = started.iter().map(|(key, _)| key.clone()).collect();
    while let Some((key, _)) = started.pop() {
        assert_eq!(rate_limit.finished(&key, false, false, now), None);
        for (key, actions) in rate_limit.start_ready() {
            assert!(actions.len() == 1 && (seen.insert(key.clone()) || seen.len() == 100));
            started.push((key, actions));
        }
    }
    assert_eq!(seen.len(), 100);
    assert!(
        rate_limit.start_ready().is_empty()
            && rate_limit.others.round_robin.is_empty()
            && rate_limit.others.ready.is_empty()
    );
}

#[test]
fn partial_plan_without_actions_removes_no_planned_actions() {
    let now = instant();
    let mut rate_limit = RateLimit::default();
    rate_limit.submit(&app("a"), plan_of_events(1), now);
    let part = Plan { partial: BTreeSet::from([creator(0)]), ..Plan::default() };
    rate_limit.submit(&app("a"), part, now);
    assert_eq!(rate_limit.start_ready().len(), 1);
    rate_limit.submit(&app("b"), plan_of_events(1), now);
    rate_limit.submit(&app("b"), Plan::default(), now);
    assert!(rate_limit.start_ready().is_empty(), "a complete plan without actions removes them");
}

#[test]
fn namespace_with_many_applications_leaves_slots_for_others() {
    let now = instant();
    let mut rate_limit = RateLimit::default();
    for n in 0..20 {
        rate_limit.submit(&app(&format!("a{n}")), plan_of_events(1), now);
    }
    assert_eq!(rate_limit.start_ready().len(), OTHERS.of_one_namespace);
    rate_limit.submit(&AppKey::new("other", "z"), plan_of_events(1), now);
    assert_eq!(rate_limit.start_ready().len(), 1);
}

#[test]
fn identical_plan_runs_each_set_once_and_changed_plan_is_requeued() {
    let now = instant();
    let mut rate_limit = RateLimit::default();
    rate_limit.submit(&app("a"), plan_of_events(100), now);
    let (mut started, mut batches) = (rate_limit.start_ready(), 0);
    // Planned again while other batches are in flight, as long as any set waits.
    for _ in 0..1000 {
        let Some((key, _)) = started.pop() else { break };
        batches += 1;
        if rate_limit.finished(&key, false, false, now).is_some() {
            rate_limit.submit(&app("a"), plan_of_events(100), now);
        }
        started.extend(rate_limit.start_ready());
    }
    assert!(started.is_empty() && batches == 100, "{batches}");
    // Actions that differ from those in flight are planned again.
    rate_limit.submit(&app("a"), plan_of_events(1), now);
    let (key, _) = rate_limit.start_ready().pop().unwrap();
    let mut other = plan_of_events(1);
    other.add(creator(0), plan_of_events(1).into_actions());
    rate_limit.submit(&app("a"), other, now);
    assert_eq!(rate_limit.finished(&key, false, false, now), Some(now));
}

#[test]
fn deletions_of_a_round_begin_although_later_plans_have_none() {
    let now = instant();
    let deletions = |numbers: std::ops::Range<u32>| {
        let deletion = |number: u32| {
            let uid: Arc<str> = format!("u{number}").into();
            Action::Recover(Box::new(Recover {
                rule: RecoveryRule::Orphans,
                seen: ObjectVersion { uid: uid.clone(), resource_version: "1".into() },
                check: Check::DriverGone(PodIdentity::new("n", "driver", "d")),
                event: PodEvent {
                    pod: PodKey::new("default", &uid),
                    uid,
                    reason: Reason::ExecutorOrphaned,
                    message: String::new(),
                },
            }))
        };
        let mut plan = Plan::default();
        plan.add(creator(1), numbers.map(deletion));
        plan
    };
    let key = ExecutorSetKey { app: app("a"), creator: creator(1) };
    // How many deletions begin after a plan and this one.
    let begun = |later: Plan| {
        let mut rate_limit = RateLimit::default();
        rate_limit.submit(&app("a"), deletions(0..120), now);
        let mut begun: BTreeSet<Arc<str>> = BTreeSet::new();
        let mut later = Some(later);
        let mut at = now;
        for _ in 0..20 {
            for (_, batch) in rate_limit.start_ready() {
                for uid in batch.iter().filter_map(deleted_uid) {
                    assert!(begun.insert(uid.clone()), "{uid} twice");
                }
                if let Some(later) = later.take() {
                    rate_limit.submit(&app("a"), later, now);
                }
                rate_limit.finished(&key, false, true, at);
            }
            at += Duration::from_secs(60);
            rate_limit.prune(at, 100);
        }
        begun.len()
    };
    let between_rounds =
        |plan: Plan| Plan { recovery: RoundPart { continues_round: true, ..RoundPart::default() }, ..plan };
    assert_eq!(begun(between_rounds(Plan::default())), 120);
    assert_eq!(begun(between_rounds(deletions(120..200))), 200);
    // The next round decides again.
    assert_eq!(begun(Plan::default()), MAX_BATCH);
}

#[test]
fn actions_removed_from_plan_do_not_start() {
    let now = instant();
    let mut rate_limit = RateLimit::default();
    rate_limit.submit(&app("a"), plan_of_events(100), now);
    assert_eq!(rate_limit.start_ready().len(), MAX_PER_APP);
    rate_limit.submit(&app("a"), plan_of_events(0), now);
    for n in 0..MAX_PER_APP {
        rate_limit.finished(&ExecutorSetKey { app: app("a"), creator: creator(n) }, false, false, now);
    }
    assert!(rate_limit.start_ready().is_empty());
    rate_limit.submit(&app("a"), plan_of_events(1), now);
    rate_limit.clear_planned();
    assert!(rate_limit.start_ready().is_empty());
}

/// A plan of this many actions for one creator.
fn plan_of_actions(actions: usize) -> Plan {
    let mut plan = Plan::default();
    (0..actions).for_each(|_| plan.add(creator(0), plan_of_events(1).into_actions()));
    plan
}

#[test]
fn long_plan_yields_between_batches_and_counts_as_one_write() {
    let now = instant();
    let mut rate_limit = RateLimit::default();
    for n in 0..OTHERS.of_one_namespace {
        rate_limit.submit(&app(&format!("a{n}")), plan_of_actions(1500), now);
    }
    let mut started = rate_limit.start_ready();
    assert!(started.len() == OTHERS.of_one_namespace && started.iter().all(|(_, actions)| actions.len() == MAX_BATCH));
    rate_limit.submit(&app("z"), plan_of_events(1), now);
    assert!(rate_limit.start_ready().is_empty(), "the namespace uses all its slots");
    assert_eq!(rate_limit.finished(&started.pop().unwrap().0, false, true, now), None);
    let next = rate_limit.start_ready();
    assert_eq!((next.len(), &next[0].0.app), (1, &app("z")), "it has waited longer than the rest of the first plan");
    // Thirty batches are one plan, and are not throttled.
    let mut rate_limit = RateLimit::default();
    rate_limit.submit(&app("a"), plan_of_actions(1500), now);
    let mut count = 0;
    while let Some((key, actions)) = rate_limit.start_ready().pop() {
        count += actions.len();
        rate_limit.finished(&key, false, true, now);
    }
    assert_eq!(count, 1500);
    assert_eq!(rate_limit.hold(&app("a"), now, &Snapshot::default()), Hold::Free);
    assert_eq!(rate_limit.writes.values().map(|(count, _)| *count).collect::<Vec<_>>(), [1]);
}

#[test]
fn remaining_batches_of_removed_plan_do_not_start() {
    let now = instant();
    let mut rate_limit = RateLimit::default();
    rate_limit.submit(&app("a"), plan_of_actions(1500), now);
    let (key, _) = rate_limit.start_ready().pop().unwrap();
    rate_limit.submit(&app("a"), Plan::default(), now);
    rate_limit.finished(&key, false, true, now);
    assert!(rate_limit.start_ready().is_empty());
    // A set that is planned and dropped repeatedly is in the queue once.
    for n in 0..OTHERS.of_one_namespace {
        rate_limit.submit(&app(&format!("b{n}")), plan_of_events(1), now);
    }
    rate_limit.start_ready();
    for _ in 0..100 {
        rate_limit.submit(&app("a"), plan_of_events(1), now);
        rate_limit.submit(&app("a"), plan_of_events(0), now);
    }
    let waiting: usize =
        rate_limit.others.ready.values().flat_map(|ready| ready.sets.values()).map(VecDeque::len).sum();
    assert!(waiting <= 1, "{waiting}");
}

#[test]
fn failed_batch_stops_plan_until_backoff_expires() {
    let now = instant();
    let mut rate_limit = RateLimit::default();
    rate_limit.submit(&app("a"), plan_of_actions(100), now);
    let (key, _) = rate_limit.start_ready().pop().unwrap();
    assert_eq!(rate_limit.finished(&key, true, true, now), Some(now + INITIAL_DELAY));
    assert!(rate_limit.start_ready().is_empty());
    assert_eq!(rate_limit.submit(&app("a"), plan_of_actions(100), now), Some(now + INITIAL_DELAY));
    assert!(rate_limit.start_ready().is_empty());
    assert_eq!(rate_limit.submit(&app("a"), plan_of_actions(100), now + INITIAL_DELAY), None);
    assert_eq!(rate_limit.start_ready().len(), 1);
}

/// A plan that patches the PodGroup of one creator, and records this many Events.
fn plan_with_patch(events: usize) -> Plan {
    let mut plan = Plan::default();
    let api = &crate::gang::GangScheduler::of_kind("volcano").unwrap().apis[0];
    let key = crate::snapshot::GroupKey { namespace: "default".into(), name: "g".into(), scheduler: "volcano" };
    let patch = serde_json::json!({});
    let group = Action::PatchGroup {
        key,
        api,
        seen: ObjectVersion { uid: "g".into(), resource_version: "1".into() },
        patch,
        reason: Some(Reason::GangLowered),
    };
    plan.add(creator(0), [group]);
    for n in 0..events {
        let pod = PodKey::new("default", &format!("p-{n}"));
        let (reason, message) = (Reason::GangSizeUnknown, String::new());
        plan.add(creator(0), [Action::RecordEvent(PodEvent { pod, uid: "u".into(), reason, message })]);
    }
    plan
}

#[test]
fn podgroup_changes_do_not_wait_for_other_actions() {
    let now = instant();
    let mut rate_limit = RateLimit::default();
    for n in 0..1000 {
        rate_limit.submit(&AppKey::new(&format!("ns-{}", n % 4), &format!("old-{n}")), plan_of_events(1), now);
    }
    assert_eq!(rate_limit.start_ready().len(), OTHERS.at_once);
    rate_limit.submit(&app("new"), plan_with_patch(2), now);
    let started = rate_limit.start_ready();
    assert!(started.len() == 1 && started[0].0.app == app("new"), "{started:?}");
    assert!(started[0].1.len() == 1 && is_of_group(&started[0].1[0]), "the rest has no free slot in its lane");
    rate_limit.finished(&started[0].0, false, true, now);
    assert!(rate_limit.start_ready().is_empty());
    // The rest waits for a slot.
    rate_limit.submit(&app("new"), plan_with_patch(0), now);
    assert_eq!(rate_limit.start_ready().len(), 1, "another PodGroup change runs before the rest");
}
