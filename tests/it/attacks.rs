//! Attacks on the identity of creators, and on policy by annotations: none gets another application's owner or gang.
//!
//! The victim is an application with a known driver and a gang, in a namespace that the attacker shares or not. Each case is an
//! attempt to create an executor; [`assert_victim_unaffected`] checks what must hold for all of them.

use crate::support::attackers::{MINE, MY_DRIVER, POD_NAME, POD_UID, attackers, evil, objects, own, victims_gang};
use crate::support::*;
use serde_json::{Value, json};
use usher_core::policy::{Policies, Policy, Validate};
use usher_core::reason::Reason;
use usher_core::snapshot::Snapshot;

/// The victim's driver and executor, and the attacker's driver and executor.
fn world() -> Snapshot {
    let victim = PodBuilder(by_driver(&executor(1), &Snapshot::default(), &policies()).object).stored("v-exec-1");
    let mine = pod("evil-driver").driver_of(MINE).stored(MY_DRIVER).phase("Running").spec("serviceAccountName", "evil");
    let my_executor = pod("evil-exec-1").executor_of(MINE, 1).stored("evil-exec-uid").phase("Running");
    snapshot_with(&[driver().ip("10.0.0.1"), victim, mine, my_executor])
}

fn policies() -> Policies {
    let policy = Policy { validate: Validate::Enforce, queue: Some("mine".into()), ..policy("volcano") };
    only_never(policy, &["system:serviceaccount:default:syncer"])
}

/// Checks what must hold for every attempt: the webhook does not set the victim's driver as owner, and the pod does not get into
/// the victim's gang, unless validation denies it. With a snapshot that contains the victim, and without.
fn assert_victim_unaffected(name: &str, object: &PodBuilder, who: &Value) {
    for (temperature, snapshot) in [("warm", world()), ("cold", Snapshot::default())] {
        let sent = review(&object.0, who.clone());
        let outcome = answer(&sent, &snapshot, &policies());
        let owners = |object: &Value| object["metadata"]["ownerReferences"].as_array().cloned().unwrap_or_default();
        // The garbage collector identifies owners by name and uid: with another name it deletes the attacker's own executor.
        let is_victim = |owner: &&Value| owner["uid"] == DRIVER_UID && owner["name"] == "nb-driver";
        let victims = |object: &Value| owners(object).iter().filter(is_victim).count();
        assert!(
            victims(&outcome.object) <= victims(&object.0),
            "{name} ({temperature}): the webhook set the victim as owner: {}",
            outcome.object["metadata"]
        );
        let added = owners(&outcome.object).len() - owners(&object.0).len();
        if added > 0 {
            let owner = owners(&outcome.object).pop().unwrap();
            let created =
                who["extra"][POD_UID] == json!([owner["uid"]]) && who["extra"][POD_NAME] == json!([owner["name"]]);
            assert!(created, "{name} ({temperature}): the webhook set an owner that is not the creator: {owner}");
        }
        let mut stored = sent.clone();
        stored["request"]["object"] = outcome.object.clone();
        let validated = validate_review(&stored, &snapshot, &policies());
        let gang = outcome.object["metadata"]["annotations"]["scheduling.k8s.io/group-name"].as_str();
        let brought = object.0["metadata"]["annotations"]["scheduling.k8s.io/group-name"].as_str();
        if gang == Some(&victims_gang()) && temperature == "warm" {
            // Names are unique: a pod that the API server authenticates under this name was created after the victim's deletion.
            let same_name = who["extra"][POD_NAME] == json!(["nb-driver"]) && who["username"] == evil()["username"];
            // An account in creators.never creates pods for others, and names their driver.
            let for_others = who["username"] == "system:serviceaccount:default:syncer";
            assert!(brought == gang || same_name || for_others, "{name}: in the victim's gang");
        }
        if victims(&outcome.object) > 0 {
            let denials = [Reason::OwnerNotCreator, Reason::ForeignCreator];
            let is_denied = validated.decision.reasons.iter().any(|reason| denials.contains(reason));
            // A creator without a pod, or one that creates pods for others, proves nothing, and a cold replica has no other
            // evidence.
            let is_empty = |key: &str| who["extra"][key].as_array().is_none_or(Vec::is_empty);
            let creator_has_no_pod =
                (is_empty(POD_NAME) && is_empty(POD_UID)) || who["username"] == "system:serviceaccount:default:syncer";
            let unknown = temperature == "cold" || who["username"] == "system:serviceaccount:default:syncer";
            // The victim's uid under another name identifies no known pod; the garbage collector deletes such an executor.
            let is_known = owners(&outcome.object).iter().any(|owner| is_victim(&owner));
            assert!(
                !is_known || is_denied || (unknown && creator_has_no_pod),
                "{name} ({temperature}): {:?}",
                validated.decision
            );
        }
        if let Some(queue) = outcome.object["metadata"]["annotations"]["scheduling.volcano.sh/queue-name"].as_str()
            && object.0["metadata"]["annotations"].get("scheduling.volcano.sh/queue-name").is_none()
        {
            assert_eq!(queue, "mine", "{name}: an annotation of a tenant chose the queue");
        }
    }
}

#[test]
fn attackers_get_no_owner_or_gang_of_another_application() {
    let (attackers, objects) = (attackers(), objects());
    assert!(attackers.len() + objects.len() >= 50);
    let mut cases = 0;
    for (who, requester) in &attackers {
        for (what, object) in &objects {
            assert_victim_unaffected(&format!("{who}, {what}"), object, requester);
            cases += 1;
        }
    }
    println!("{cases} attacks");
    assert!(cases >= 600);
}

/// The rightful creator, with the same claims, gets its owner and its gang.
#[test]
fn executor_gets_owner_and_gang_of_its_creator() {
    let outcome = by_driver(&executor(2), &world(), &policies());
    assert_eq!(outcome.object["metadata"]["ownerReferences"][0]["uid"], DRIVER_UID);
    assert_eq!(outcome.object["metadata"]["annotations"]["scheduling.k8s.io/group-name"], victims_gang());
    let mine = answer(&review(&own().0, evil()), &world(), &policies());
    assert_eq!(mine.object["metadata"]["ownerReferences"][0]["uid"], MY_DRIVER);
    assert_ne!(mine.object["metadata"]["annotations"]["scheduling.k8s.io/group-name"], victims_gang());
}

/// Annotations of tenants have no effect that the policy does not allow.
#[test]
fn annotations_not_allowed_by_policy_change_neither_scheduler_nor_queue() {
    for (what, object) in objects() {
        let outcome = answer(&review(&object.0, evil()), &world(), &policies());
        let annotations = &outcome.object["metadata"]["annotations"];
        let is_scheduled_by_volcano = outcome.object["spec"]["schedulerName"] == "volcano";
        if what.starts_with("an annotation") {
            assert!(is_scheduled_by_volcano, "{what}");
            assert_eq!(annotations["scheduling.volcano.sh/queue-name"], "mine", "{what}");
        }
    }
}
