//! Attacks on the identity of creators, and on policy by annotations: none gets another application's owner or gang.
//!
//! The victim is an application with a known driver and a seated gang, in a namespace that the attacker shares or not.
//! Each case is the creation of an executor as somebody would try it; what must hold of all of them is in [`safe`].

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says how many there were"
)]

mod support;

use serde_json::{Value, json};
use spark_usher::policy::{Policies, Policy, Validate};
use spark_usher::reason::Reason;
use spark_usher::snapshot::Snapshot;
use support::*;

const MINE: &str = "spark-attacker0000000000000000000000000";
const MY_DRIVER: &str = "aaaaaaaa-0000-0000-0000-000000000001";
const POD_NAME: &str = "authentication.kubernetes.io/pod-name";
const POD_UID: &str = "authentication.kubernetes.io/pod-uid";

/// The victim's gang, as its first executor names it.
fn victims_gang() -> String {
    format!("nb-driver-{APP8}")
}

/// The victim's driver and executor, and the attacker's driver and executor.
fn world() -> Snapshot {
    let victim = PodBuilder(by_driver(&executor(1), &Snapshot::default(), &policies()).object).stored("v-exec-1");
    let mine = pod("evil-driver").driver_of(MINE).stored(MY_DRIVER).phase("Running").spec("serviceAccountName", "evil");
    let my_executor = pod("evil-exec-1").executor_of(MINE, 1).stored("evil-exec-uid").phase("Running");
    seen(&[driver().ip("10.0.0.1"), victim, mine, my_executor])
}

fn policies() -> Policies {
    let policy = Policy { validate: Validate::Enforce, queue: Some("mine".into()), ..policy("volcano") };
    only_never(policy, &["system:serviceaccount:default:syncer"])
}

fn user(username: &str, extra: Value) -> Value {
    json!({"username": username, "groups": ["system:serviceaccounts", "system:authenticated"], "extra": extra})
}

fn extras(names: &[&str], uids: &[&str]) -> Value {
    json!({POD_NAME: names, POD_UID: uids})
}

fn evil() -> Value {
    by_pod("default", "evil", "evil-driver", MY_DRIVER)
}

/// An executor that claims the victim's application.
fn claims() -> PodBuilder {
    executor(9)
}

/// An executor of the attacker's own application.
fn own() -> PodBuilder {
    pod("evil-exec-2").executor_of(MINE, 2)
}

/// What must hold whatever was tried: the victim's driver is not made the owner by us, and the pod does not end up in the
/// victim's gang, unless validation refuses it. With a snapshot that knows the victim, and without.
fn safe(name: &str, object: &PodBuilder, who: &Value) {
    for (temperature, snapshot) in [("warm", world()), ("cold", Snapshot::default())] {
        let sent = review(&object.0, who.clone());
        let outcome = answer(&sent, &snapshot, &policies());
        let owners = |object: &Value| object["metadata"]["ownerReferences"].as_array().cloned().unwrap_or_default();
        // The garbage collector goes by name and uid: with another name it deletes the attacker's own executor.
        let is_victim = |owner: &&Value| owner["uid"] == DRIVER_UID && owner["name"] == "nb-driver";
        let victims = |object: &Value| owners(object).iter().filter(is_victim).count();
        assert!(
            victims(&outcome.object) <= victims(&object.0),
            "{name} ({temperature}): the victim became the owner: {}",
            outcome.object["metadata"]
        );
        let given = owners(&outcome.object).len() - owners(&object.0).len();
        if given > 0 {
            let owner = owners(&outcome.object).pop().unwrap();
            let created =
                who["extra"][POD_UID] == json!([owner["uid"]]) && who["extra"][POD_NAME] == json!([owner["name"]]);
            assert!(created, "{name} ({temperature}): an owner that did not create it: {owner}");
        }
        let mut stored = sent.clone();
        stored["request"]["object"] = outcome.object.clone();
        let judged = judge(&stored, &snapshot, &policies());
        let gang = outcome.object["metadata"]["annotations"]["scheduling.k8s.io/group-name"].as_str();
        let brought = object.0["metadata"]["annotations"]["scheduling.k8s.io/group-name"].as_str();
        if gang == Some(&victims_gang()) && temperature == "warm" {
            assert!(
                brought == gang || !judged.decision.allowed || who["extra"][POD_UID] == json!([DRIVER_UID]),
                "{name}: in the victim's gang"
            );
            assert!(
                judged.decision.reasons.contains(&Reason::ForeignCreator) || brought == gang,
                "{name}: {:?}",
                judged.decision
            );
        }
        if victims(&outcome.object) > 0 {
            let refused = [Reason::OwnerNotCreator, Reason::ForeignCreator];
            let told = judged.decision.reasons.iter().any(|reason| refused.contains(reason));
            // Who is no pod, or makes pods for others, proves nothing, and a cold replica has nothing else.
            let is_empty = |key: &str| who["extra"][key].as_array().is_none_or(Vec::is_empty);
            let by_nobodys_pod =
                (is_empty(POD_NAME) && is_empty(POD_UID)) || who["username"] == "system:serviceaccount:default:syncer";
            assert!(told || (temperature == "cold" && by_nobodys_pod), "{name} ({temperature}): {:?}", judged.decision);
        }
        if let Some(queue) = outcome.object["metadata"]["annotations"]["scheduling.volcano.sh/queue-name"].as_str()
            && object.0["metadata"]["annotations"].get("scheduling.volcano.sh/queue-name").is_none()
        {
            assert_eq!(queue, "mine", "{name}: an annotation of a tenant chose the queue");
        }
    }
}

/// Everybody who might try: name, and what the API server says of them.
fn attackers() -> Vec<(&'static str, Value)> {
    let evil_user = "system:serviceaccount:default:evil";
    vec![
        ("another driver's pod", evil()),
        (
            "a pod of the same account as no driver",
            by_pod("default", "evil", "cron-1", "cccccccc-0000-0000-0000-000000000001"),
        ),
        ("its own executor", by_pod("default", "evil", "evil-exec-1", "evil-exec-uid")),
        ("the victim's executor", by_pod("default", "evil", "nb-exec-1", "v-exec-1")),
        ("the victim's name with another uid", by_pod("default", "evil", "nb-driver", MY_DRIVER)),
        ("a pod of that name in another namespace", by_pod("other", "spark", "nb-driver", DRIVER_UID)),
        ("a namespace whose name begins alike", by_pod("default-2", "spark", "nb-driver", DRIVER_UID)),
        ("a legacy token, bound to no pod", user(evil_user, json!({}))),
        ("a token without extras at all", json!({"username": evil_user})),
        ("two names", user(evil_user, extras(&["evil-driver", "nb-driver"], &[MY_DRIVER]))),
        ("two uids", user(evil_user, extras(&["evil-driver"], &[MY_DRIVER, DRIVER_UID]))),
        ("two of both", user(evil_user, extras(&["evil-driver", "nb-driver"], &[MY_DRIVER, DRIVER_UID]))),
        ("a name and no uid", user(evil_user, json!({POD_NAME: ["nb-driver"]}))),
        ("a uid and no name", user(evil_user, json!({POD_UID: [DRIVER_UID]}))),
        ("an empty name", user(evil_user, extras(&[""], &[DRIVER_UID]))),
        ("an empty uid", user(evil_user, extras(&["nb-driver"], &[""]))),
        ("empty lists", user(evil_user, extras(&[], &[]))),
        ("a name with a slash", user(evil_user, extras(&["../nb-driver"], &[DRIVER_UID]))),
        ("a name with a newline", user(evil_user, extras(&["nb-driver\n"], &[DRIVER_UID]))),
        ("a uid with a quote", user(evil_user, extras(&["evil-driver"], &["x\",\"uid\":\"97f9289d"]))),
        ("a giant name", user(evil_user, extras(&[&"a".repeat(4096)], &[DRIVER_UID]))),
        ("a person with borrowed extras", user("eve", extras(&["nb-driver"], &[DRIVER_UID]))),
        ("a node with borrowed extras", user("system:node:n1", extras(&["nb-driver"], &[DRIVER_UID]))),
        ("an account of no name", user("system:serviceaccount:default:", extras(&["nb-driver"], &[DRIVER_UID]))),
        ("an account of no namespace", user("system:serviceaccount::spark", extras(&["nb-driver"], &[DRIVER_UID]))),
        ("no account but the prefix", user("system:serviceaccount:", extras(&["nb-driver"], &[DRIVER_UID]))),
        (
            "one who makes pods for others",
            by_pod("default", "syncer", "syncer-0", "55555555-0000-0000-0000-000000000001"),
        ),
        ("a person", json!({"username": "eve", "groups": ["developers"]})),
        ("nobody", json!({})),
    ]
}

fn with_owner(pod: PodBuilder, name: &str, uid: &str) -> PodBuilder {
    pod.owned_by("Pod", name, uid)
}

/// Everything that might be tried.
fn objects() -> Vec<(&'static str, PodBuilder)> {
    let gang = victims_gang();
    vec![
        ("the victim's label", claims()),
        ("the victim's label and executor id", executor(1)),
        ("the victim's label and owner", with_owner(claims(), "nb-driver", DRIVER_UID)),
        ("its own label and the victim's owner", with_owner(own(), "nb-driver", DRIVER_UID)),
        ("the victim's name as owner with its own uid", with_owner(claims(), "nb-driver", MY_DRIVER)),
        ("the victim's uid under its own name", with_owner(own(), "evil-driver", DRIVER_UID)),
        ("the victim's gang", own().annotation("scheduling.k8s.io/group-name", &gang)),
        ("the victim's address", own().driver_url("10.0.0.1")),
        ("the victim's label and address", claims().driver_url("10.0.0.1")),
        (
            "our note of the victim",
            own().annotation("spark-usher.io/driver", &format!("creator/nb-driver/{DRIVER_UID}")),
        ),
        (
            "our note of weaker evidence",
            claims().annotation("spark-usher.io/driver", &format!("app-selector/nb-driver/{DRIVER_UID}")),
        ),
        ("our mark", claims().annotation("spark-usher.io/by", "batch/volcano")),
        ("the mark of the fallback", claims().annotation("spark-usher.io/by", "fallback")),
        ("an annotation for the queue", own().annotation("spark-usher.io/queue", "gold")),
        ("an annotation for the scheduler", own().annotation("spark-usher.io/scheduler", "none")),
        ("an annotation to be skipped", claims().annotation("spark-usher.io/skip", "true")),
        ("an annotation for the size", own().annotation("spark-usher.io/min-member", "4000000000")),
        ("an annotation for resources", own().annotation("spark-usher.io/executor-resources", "{\"cpu\":\"1e9\"}")),
        ("no application", own().without_label("spark-app-selector")),
        ("an empty application", own().label("spark-app-selector", "")),
        ("another resource profile", claims().label("spark-exec-resourceprofile-id", "7")),
        ("a strange role", claims().label("spark-role", "Executor")),
    ]
}

#[test]
fn no_creator_gets_another_applications_owner_or_gang() {
    let (attackers, objects) = (attackers(), objects());
    assert!(attackers.len() + objects.len() >= 50);
    let mut cases = 0;
    for (who, requester) in &attackers {
        for (what, object) in &objects {
            safe(&format!("{who}, {what}"), object, requester);
            cases += 1;
        }
    }
    println!("{cases} attacks");
    assert!(cases >= 600);
}

/// The same words have to be right for whom they are meant.
#[test]
fn the_rightful_creator_gets_all_of_it() {
    let outcome = by_driver(&executor(2), &world(), &policies());
    assert_eq!(outcome.object["metadata"]["ownerReferences"][0]["uid"], DRIVER_UID);
    assert_eq!(outcome.object["metadata"]["annotations"]["scheduling.k8s.io/group-name"], victims_gang());
    let mine = answer(&review(&own().0, evil()), &world(), &policies());
    assert_eq!(mine.object["metadata"]["ownerReferences"][0]["uid"], MY_DRIVER);
    assert_ne!(mine.object["metadata"]["annotations"]["scheduling.k8s.io/group-name"], victims_gang());
}

/// What a tenant may write decides nothing that its policy does not let it.
#[test]
fn annotations_of_tenants_steer_no_policy() {
    for (what, object) in objects() {
        let outcome = answer(&review(&object.0, evil()), &world(), &policies());
        let annotations = &outcome.object["metadata"]["annotations"];
        let seated = outcome.object["spec"]["schedulerName"] == "volcano";
        if what.starts_with("an annotation") {
            let own = object.0["metadata"]["labels"]["spark-app-selector"] == MINE;
            assert_eq!(seated, own, "{what}");
            if own {
                assert_eq!(annotations["scheduling.volcano.sh/queue-name"], "mine", "{what}");
            }
        }
    }
}
