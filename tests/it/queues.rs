//! The queue of a pod: what its user named, what its policy allows, and what its application has.

use crate::mutation::*;
use crate::support::*;
use serde_json::Value;
use usher_core::gang::Shape;
use usher_core::policy::{Pattern, Policy, Validate};
use usher_core::reason::Reason;

const LABEL: &str = "kueue.x-k8s.io/queue-name";

fn kueue(queues: Option<&[&str]>) -> Policy {
    Policy {
        queue: Some("shared".into()),
        queues: queues.map(|all| all.iter().map(|text| Pattern::new(text)).collect()),
        ..policy("kueue")
    }
}

fn label_of<'o>(outcome: &'o Outcome, key: &str) -> &'o Value {
    &outcome.object["metadata"]["labels"][key]
}

#[test]
fn queue_that_the_user_named_is_kept_if_the_policy_allows_it() {
    for pod in [executor(1), driver()] {
        let named = pod.label(LABEL, "team-a");
        for queues in [None, Some(&["team-*"][..])] {
            let outcome = by_driver(&named, &cold(), &only(kueue(queues)));
            assert_eq!(label_of(&outcome, LABEL), "team-a");
            assert!(!outcome.decision.reasons.contains(&Reason::QueueReplaced), "{outcome:?}");
        }
    }
}

#[test]
fn queue_that_the_policy_does_not_allow_is_replaced_with_a_warning() {
    for (pod, queues) in [(executor(1), &[][..]), (driver(), &["team-b"][..])] {
        let outcome = by_driver(&pod.label(LABEL, "team-a"), &cold(), &only(kueue(Some(queues))));
        assert_eq!(label_of(&outcome, LABEL), "shared");
        let words = "queue team-a is replaced by shared: policy batch does not allow it";
        assert!(warnings(&outcome).contains(words), "{}", warnings(&outcome));
        let is_queue = |op: &&Value| op["path"].as_str().is_some_and(|path| path.ends_with("queue-name"));
        assert_eq!(outcome.patch.as_array().unwrap().iter().filter(is_queue).count(), 1, "{}", outcome.patch);
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
    assert_eq!(label_of(&outcome, "kai.scheduler/queue"), "shared");
}

#[test]
fn pod_that_names_several_queues_gets_the_first_that_is_allowed_by_all_its_keys() {
    const KEY: &str = "yunikorn.apache.org/queue";
    let of = |queue: Option<&str>| {
        let queues = Some(vec![Pattern::new("team-*")]);
        only(Policy { queue: queue.map(Into::into), queues, ..policy("yunikorn") })
    };
    for (label, annotation, why) in [
        ("gold", "team-a", "queue gold is replaced by team-a: policy batch does not allow it"),
        ("team-a", "gold", "queue gold is replaced by team-a: policy batch does not allow it"),
        ("team-a", "team-b", "queue team-b is replaced by team-a: the pod names both"),
    ] {
        for policies in [of(None), of(Some("shared"))] {
            let pod = executor(1).label(KEY, label).annotation(KEY, annotation);
            let outcome = by_driver(&pod, &cold(), &policies);
            let named = (label_of(&outcome, KEY), &annotations(&outcome)[KEY]);
            assert_eq!(named, (&"team-a".into(), &"team-a".into()), "{label} {annotation}");
            assert!(warnings(&outcome).contains(why), "{}", warnings(&outcome));
        }
    }
}

#[test]
fn running_application_keeps_the_queue_of_a_key_that_the_policy_sets() {
    let runai = |queue: &str, validate| {
        let mut of = policy("kai");
        of.scheduler.queue_key = Some((usher_core::annotations::MetadataField::Label, "runai/queue"));
        only(Policy { queue: Some(queue.into()), queues: Some(vec![]), validate, ..of })
    };
    let mut snapshot = signing();
    let first = by_driver(&executor(1), &snapshot, &runai("old", Validate::Audit));
    observe(&mut snapshot, &PodBuilder(first.object).stored("e1"));
    let new = runai("new", Validate::Enforce);
    let next = by_driver(&executor(2), &snapshot, &new);
    assert_eq!(label_of(&next, "runai/queue"), "old");
    let created = PodBuilder(next.object).created_by_pod("nb-driver", DRIVER_UID);
    assert!(validate_review(&created, &snapshot, &new).decision.allowed);
}

#[test]
fn executor_that_names_another_queue_than_its_application_has_gets_that_one_with_a_warning() {
    let policies = only(kueue(None));
    let mut snapshot = signing();
    let first = by_driver(&executor(1), &snapshot, &policies);
    observe(&mut snapshot, &PodBuilder(first.object).stored("e1"));
    let outcome = by_driver(&executor(2).label(LABEL, "team-a"), &snapshot, &policies);
    assert_eq!(label_of(&outcome, LABEL), "shared");
    assert!(warnings(&outcome).contains("its application runs in that one"), "{}", warnings(&outcome));
}

#[test]
fn queue_key_of_a_policy_is_one_that_its_scheduler_reads() {
    let load = |kind: &str, key: &str| {
        let text = format!("policies: [{{name: a, queue: q, scheduler: {{type: {kind}, queueKey: {key}}}}}]");
        usher_config::from_text(&policy_file(&text)).map(|loaded| loaded.policies).map_err(|error| error.to_string())
    };
    let runai = load("kai", "runai/queue").unwrap();
    let outcome = by_driver(&executor(1), &cold(), &runai);
    assert_eq!(label_of(&outcome, "runai/queue"), "q");
    assert!(label_of(&outcome, "kai.scheduler/queue").is_null());
    let wrong = load("kai", "queue").unwrap_err();
    assert!(wrong.contains("expected kai.scheduler/queue or runai/queue"), "{wrong}");
    assert!(load("coscheduling", "queue").unwrap_err().contains("reads no queue from pods: expected no key"));
}
