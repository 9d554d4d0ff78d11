//! Creators that may try to get another application's owner or gang, and the pods that they may create.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its part of it")]

use serde_json::{Value, json};

use super::*;

pub const MINE: &str = "spark-attacker0000000000000000000000000";
pub const MY_DRIVER: &str = "aaaaaaaa-0000-0000-0000-000000000001";
pub const POD_NAME: &str = "authentication.kubernetes.io/pod-name";
pub const POD_UID: &str = "authentication.kubernetes.io/pod-uid";

/// An executor of the attacker's own application.
pub fn own() -> PodBuilder {
    pod("evil-exec-2").executor_of(MINE, 2)
}

/// An executor that claims the victim's application.
fn claiming_executor() -> PodBuilder {
    executor(9)
}

pub fn evil() -> Value {
    by_pod("default", "evil", "evil-driver", MY_DRIVER)
}

fn extras(names: &[&str], uids: &[&str]) -> Value {
    json!({POD_NAME: names, POD_UID: uids})
}

fn user(username: &str, extra: Value) -> Value {
    json!({"username": username, "groups": ["system:serviceaccounts", "system:authenticated"], "extra": extra})
}

/// The victim's gang, named by its first executor.
pub fn victims_gang() -> String {
    format!("nb-driver-{APP8}")
}

/// All attackers: a description, and their `userInfo`.
pub fn attackers() -> Vec<(&'static str, Value)> {
    let evil_user = "system:serviceaccount:default:evil";
    vec![
        ("another driver's pod", evil()),
        (
            "a pod of the same account that is not a driver",
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
        ("a name with two dots", user(evil_user, extras(&["nb..driver"], &[DRIVER_UID]))),
        ("a name with a hyphen before a dot", user(evil_user, extras(&["nb-.driver"], &[DRIVER_UID]))),
        ("a name with a newline", user(evil_user, extras(&["nb-driver\n"], &[DRIVER_UID]))),
        ("a uid with a quote", user(evil_user, extras(&["evil-driver"], &["x\",\"uid\":\"97f9289d"]))),
        ("a giant name", user(evil_user, extras(&[&"a".repeat(4096)], &[DRIVER_UID]))),
        ("a person with borrowed extras", user("eve", extras(&["nb-driver"], &[DRIVER_UID]))),
        ("a node with borrowed extras", user("system:node:n1", extras(&["nb-driver"], &[DRIVER_UID]))),
        ("an account of no name", user("system:serviceaccount:default:", extras(&["nb-driver"], &[DRIVER_UID]))),
        ("an account of no namespace", user("system:serviceaccount::spark", extras(&["nb-driver"], &[DRIVER_UID]))),
        ("no account but the prefix", user("system:serviceaccount:", extras(&["nb-driver"], &[DRIVER_UID]))),
        (
            "an account that creates pods for others",
            by_pod("default", "syncer", "syncer-0", "55555555-0000-0000-0000-000000000001"),
        ),
        ("a person", json!({"username": "eve", "groups": ["developers"]})),
        ("no user", json!({})),
    ]
}

fn with_owner(pod: PodBuilder, name: &str, uid: &str) -> PodBuilder {
    pod.owned_by("Pod", name, uid)
}

/// All pods that attackers may create.
pub fn objects() -> Vec<(&'static str, PodBuilder)> {
    let gang = victims_gang();
    vec![
        ("the victim's label", claiming_executor()),
        ("the victim's label and executor id", executor(1)),
        ("the victim's label and owner", with_owner(claiming_executor(), "nb-driver", DRIVER_UID)),
        ("its own label and the victim's owner", with_owner(own(), "nb-driver", DRIVER_UID)),
        ("the victim's name as owner with its own uid", with_owner(claiming_executor(), "nb-driver", MY_DRIVER)),
        ("the victim's uid under its own name", with_owner(own(), "evil-driver", DRIVER_UID)),
        ("the victim's gang", own().annotation("scheduling.k8s.io/group-name", &gang)),
        ("another task of a gang", own().annotation("volcano.sh/task-spec", "mine")),
        (
            "the victim's gang and another task",
            own().annotation("scheduling.k8s.io/group-name", &gang).annotation("volcano.sh/task-spec", "mine"),
        ),
        ("the victim's address", own().driver_url("10.0.0.1")),
        ("the victim's label and address", claiming_executor().driver_url("10.0.0.1")),
        (
            "spark-usher's note that names the victim",
            own().annotation("spark-usher.io/driver", &format!("creator/nb-driver/{DRIVER_UID}")),
        ),
        (
            "spark-usher's note of weaker evidence",
            claiming_executor().annotation("spark-usher.io/driver", &format!("app-selector/nb-driver/{DRIVER_UID}")),
        ),
        ("the annotation of a policy", claiming_executor().annotation("spark-usher.io/by", "batch/volcano")),
        ("the annotation of the fallback policy", claiming_executor().annotation("spark-usher.io/by", "fallback")),
        ("an annotation for the queue", own().annotation("spark-usher.io/queue", "gold")),
        ("an annotation for the scheduler", own().annotation("spark-usher.io/scheduler", "none")),
        ("an annotation to be skipped", claiming_executor().annotation("spark-usher.io/skip", "true")),
        ("an annotation for the size", own().annotation("spark-usher.io/min-member", "4000000000")),
        ("an annotation for resources", own().annotation("spark-usher.io/executor-resources", "{\"cpu\":\"1e9\"}")),
        ("no application", own().without_label("spark-app-selector")),
        ("an empty application", own().label("spark-app-selector", "")),
        ("another resource profile", claiming_executor().label("spark-exec-resourceprofile-id", "7")),
        ("a strange role", claiming_executor().label("spark-role", "Executor")),
    ]
}
