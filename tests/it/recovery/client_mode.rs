//! The gang of an application whose size only its driver's web UI states.

use super::*;
use crate::support::planned::serving;

/// When the PodGroup of an executor is created, in seconds after the executor, if the driver's polls have this outcome.
fn created_after(answers: Answers) -> u64 {
    let mut scene = Scene::new(Recovery::default());
    scene.harness.policies = only(policy("volcano"));
    scene.answers = answers;
    scene.harness.apply(RelatedChange::Apis(serving(usher_core::gang::GangScheduler::of_kind("volcano").unwrap(), 0)));
    scene.harness.apply(listed(vec![]));
    scene.run(3);
    let first = scene.harness.since.as_secs();
    scene.harness.observe(&member(running(1).phase("Pending"), "g"));
    scene.run(90);
    let created = scene.actions.iter().find(|(_, action)| matches!(action, Action::CreateGroup { .. }));
    created.expect("a PodGroup").0 - first
}

#[test]
fn podgroup_waits_longer_while_the_driver_is_starting() {
    let refused = created_after(Answers::Refused);
    assert!((29..=32).contains(&refused), "{refused}");
    let busy = created_after(Answers::Nothing);
    assert!((59..=62).contains(&busy), "{busy}");
    // It answers without its configuration: nothing more can be learned.
    let answered = created_after(Answers::View(vec![], vec![], COMPLETE));
    assert!(answered <= 3, "{answered}");
}
