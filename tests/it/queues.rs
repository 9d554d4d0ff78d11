//! The queue of a pod: what its user named, what its policy allows, and what its application has.

use crate::mutation::*;
use crate::support::*;
use serde_json::Value;
use spark_usher::gang::Shape;
use spark_usher::policy::{Pattern, Policy};
use spark_usher::reason::Reason;

const LABEL: &str = "kueue.x-k8s.io/queue-name";

fn kueue(queues: Option<&[&str]>) -> Policy {
    Policy {
        queue: Some("shared".into()),
        queues: queues.map(|all| all.iter().map(|text| Pattern::new(text)).collect()),
        ..policy("kueue")
    }
}

fn label<'o>(outcome: &'o Outcome, key: &str) -> &'o Value {
    &outcome.object["metadata"]["labels"][key]
}

#[test]
fn queue_that_the_user_named_is_kept_if_the_policy_allows_it() {
    for pod in [executor(1), driver()] {
        let named = pod.label(LABEL, "team-a");
        for queues in [None, Some(&["team-*"][..])] {
            let outcome = by_driver(&named, &cold(), &only(kueue(queues)));
            assert_eq!(label(&outcome, LABEL), "team-a");
            assert!(!outcome.decision.reasons.contains(&Reason::QueueReplaced), "{outcome:?}");
        }
    }
}

#[test]
fn queue_that_the_policy_does_not_allow_is_replaced_with_a_warning() {
    for (pod, queues) in [(executor(1), &[][..]), (driver(), &["team-b"][..])] {
        let outcome = by_driver(&pod.label(LABEL, "team-a"), &cold(), &only(kueue(Some(queues))));
        assert_eq!(label(&outcome, LABEL), "shared");
        let words = "queue team-a is replaced by shared: policy batch does not allow it";
        assert!(warnings(&outcome).contains(words), "{}", warnings(&outcome));
    }
    let own = by_driver(&executor(1).label(LABEL, "shared"), &cold(), &only(kueue(Some(&[]))));
    assert!(own.response.get("warnings").is_none(), "{:?}", own.response);
}

#[test]
fn every_own_key_of_a_scheduler_names_the_queue_and_gets_the_one_that_replaces_it() {
    for (kind, place, key) in [
        ("yunikorn", "annotations", "yunikorn.apache.org/queue"),
        ("yunikorn", "labels", "queue"),
        ("volcano", "annotations", "scheduling.volcano.sh/queue-name"),
        ("koordinator", "labels", "quota.scheduling.koordinator.sh/name"),
        ("kai", "labels", "runai/queue"),
    ] {
        let mut pod = executor(1);
        pod.0["metadata"][place][key] = "team-a".into();
        let mut of = policy(kind);
        (of.queue, of.gang.shape) = (Some("shared".into()), Shape::Pods);
        let own = |outcome: &Outcome| {
            let (at, key) = of.scheduler.queue_key.unwrap();
            outcome.object["metadata"][at.as_str()][key].clone()
        };
        let kept = by_driver(&pod, &cold(), &only(of.clone()));
        assert_eq!((own(&kept), &kept.object["metadata"][place][key]), ("team-a".into(), &"team-a".into()), "{kind}");
        let replaced = by_driver(&pod, &cold(), &only(Policy { queues: Some(vec![]), ..of.clone() }));
        // An older YuniKorn reads the annotation first.
        assert_eq!((own(&replaced), &replaced.object["metadata"][place][key]), ("shared".into(), &"shared".into()));
        assert!(replaced.decision.reasons.contains(&Reason::QueueReplaced), "{kind}");
    }
    // A common word names no queue that would be kept.
    let outcome = by_driver(
        &executor(1).label("project", "x"),
        &cold(),
        &only(Policy { queue: Some("shared".into()), ..policy("kai") }),
    );
    assert_eq!(label(&outcome, "kai.scheduler/queue"), "shared");
}

#[test]
fn executors_follow_the_queue_that_their_driver_named() {
    let policies = only(kueue(Some(&["team-*"])));
    let named = driver().label(LABEL, "team-a");
    let admitted = PodBuilder(by_driver(&named, &cold(), &policies).object);
    let with_driver = snapshot_with(std::slice::from_ref(&admitted));
    let outcome = by_driver(&executor(1), &with_driver, &policies);
    assert_eq!(label(&outcome, LABEL), "team-a");
    // The policy no longer allows it, or another policy admitted the driver.
    let other = only(Policy { name: "other".into(), ..kueue(Some(&["team-*"])) });
    for policies in [only(kueue(Some(&[]))), other] {
        let outcome = by_driver(&executor(1), &with_driver, &policies);
        assert_eq!(label(&outcome, LABEL), "shared");
    }
}

#[test]
fn executor_that_names_another_queue_than_its_application_has_gets_that_one_with_a_warning() {
    let policies = only(kueue(None));
    let mut snapshot = signing();
    let first = by_driver(&executor(1), &snapshot, &policies);
    observe(&mut snapshot, &PodBuilder(first.object).stored("e1"));
    let outcome = by_driver(&executor(2).label(LABEL, "team-a"), &snapshot, &policies);
    assert_eq!(label(&outcome, LABEL), "shared");
    assert!(warnings(&outcome).contains("its application runs in another one"), "{}", warnings(&outcome));
}

#[test]
fn queue_key_of_a_policy_is_one_that_its_scheduler_reads() {
    let load = |kind: &str, key: &str| {
        let text = format!("policies: [{{name: a, queue: q, scheduler: {{type: {kind}, queueKey: {key}}}}}]");
        spark_usher::config::from_text(&policy_file(&text))
            .map(|loaded| loaded.policies)
            .map_err(|error| error.to_string())
    };
    let runai = load("kai", "runai/queue").unwrap();
    let outcome = by_driver(&executor(1), &cold(), &runai);
    assert_eq!(label(&outcome, "runai/queue"), "q");
    assert!(label(&outcome, "kai.scheduler/queue").is_null());
    let wrong = load("kai", "queue").unwrap_err();
    assert!(wrong.contains("expected kai.scheduler/queue or runai/queue"), "{wrong}");
    assert!(load("coscheduling", "queue").unwrap_err().contains("reads no queue from pods: expected no key"));
}
