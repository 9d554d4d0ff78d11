//! Executors that do not exist because a ResourceQuota of their namespace is used up.

use super::*;
use usher_core::controller::{Lookup, LookupResult};
use usher_core::snapshot::Quota;
use usher_report::views::{self, ShortageReport};

fn quotas_of(lookups: &[Lookup]) -> Vec<&Lookup> {
    lookups.iter().filter(|read| matches!(read, Lookup::Quotas(_))).collect()
}

fn shortage(scene: &Scene) -> Option<ShortageReport> {
    let now = scene.harness.now().wall;
    views::apps(scene.harness.controller.snapshot(), &scene.harness.history(), None, now).remove(0).shortage
}

/// Runs until the ResourceQuotas are listed, and answers with these.
fn list(scene: &mut Scene, answer: LookupResult) -> u64 {
    for second in 1..=200 {
        let lookups = scene.harness.step_after(1).lookups;
        if let [read] = &*quotas_of(&lookups) {
            let now = scene.harness.now();
            scene.harness.controller.lookup_answered(read, answer, now);
            return second;
        }
    }
    panic!("the ResourceQuotas were not listed");
}

fn used(cpu: &str) -> LookupResult {
    let object = json!({"metadata": {"name": "team"}, "spec": {"hard": {"requests.cpu": "4"}},
        "status": {"hard": {"requests.cpu": "4"}, "used": {"requests.cpu": cpu}}});
    LookupResult::Quotas(vec![Quota::read(&object.to_string()).unwrap()])
}

#[test]
fn shortage_names_the_quota_that_leaves_no_room() {
    let mut scene = Scene::with_conf(Recovery::default(), "spark.executor.instances=3\nspark.executor.cores=1");
    scene.harness.observe(&version(running(1), 4));
    assert_eq!(list(&mut scene, used("3500m")), 1);
    let causes = shortage(&scene).unwrap().causes;
    assert_eq!((causes.len(), &*causes[0].cause, causes[0].count), (1, "quota", 2));
    assert_eq!(causes[0].message, "ResourceQuota team: 3500m of 4 requests.cpu in use; an executor requests 1");
    // The quota is read again each minute.
    let again = list(&mut scene, used("2"));
    assert!((55..=65).contains(&again), "{again}");
    assert_eq!(shortage(&scene).unwrap().causes[0].cause, "not-requested");
    // It cannot be read any more.
    list(&mut scene, LookupResult::Failed);
    assert_eq!(shortage(&scene).unwrap().causes[0].cause, "not-requested");
}

#[test]
fn quotas_are_listed_only_while_executors_are_missing() {
    let mut scene = Scene::with_conf(Recovery::default(), "spark.executor.instances=2");
    scene.harness.observe(&version(running(1), 4));
    list(&mut scene, used("4"));
    assert_eq!(scene.harness.controller.snapshot().quotas.len(), 1);
    scene.harness.observe(&version(running(2), 5));
    let lookups: Vec<Lookup> = (0..130).flat_map(|_| scene.harness.step_after(1).lookups).collect();
    assert!(quotas_of(&lookups).is_empty(), "{lookups:?}");
    assert!(shortage(&scene).is_none() && scene.harness.controller.snapshot().quotas.is_empty());
    // An exited driver requests nothing.
    scene.harness.delete_pod("nb-exec-2", "e2");
    scene.harness.observe(&version(driver().conf_map("c").phase("Failed"), 9));
    let lookups: Vec<Lookup> = (0..130).flat_map(|_| scene.harness.step_after(1).lookups).collect();
    assert!(quotas_of(&lookups).is_empty(), "{lookups:?}");
}

#[test]
fn plans_do_not_wait_for_quotas() {
    let mut scene = Scene::with_conf(act(RecoveryRule::Unregistered), "spark.executor.instances=3");
    scene.harness.observe(&version(running(1), 4));
    // The lookup is never answered.
    scene.run(1000);
    assert_eq!(scene.only_finding().rule, RecoveryRule::Unregistered);
}
