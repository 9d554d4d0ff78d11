//! Reviews from a seed: pods as tenants may write them, by requesters of every kind, and the same with damage.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its part of it")]

use serde_json::{Map, Value, json};
use usher_core::annotations;
use usher_core::gang::{self, Membership, TABLE};
use usher_core::policy::{Replace, Validate};

use super::attackers::{attackers, victims_gang};
use super::rng::Rng;
use super::*;

const NAMESPACES: [&str; 4] = ["default", "team-b", "unseen", "y"];
const TEXTS: [&str; 16] = [
    "",
    "executor",
    "driver",
    "true",
    "false",
    "3",
    "-1",
    "batch/volcano",
    "fallback/volcano",
    "nb-driver",
    "\u{0}\u{1b}[2J",
    "é/~0~1",
    "queue-a",
    "default-scheduler",
    "{}",
    "[{\"name\":\"spark-executor\",\"minMember\":99}]",
];

/// A label or annotation: one that we or a scheduler read, or any.
fn key(rng: &mut Rng) -> String {
    let known: Vec<&str> = gang::keys().map(|(_, key)| key).collect();
    let ours =
        ["by", "driver", "creator", "signature", "skip", "queue", "scheduler", "min-member", "executor-resources"];
    match rng.below(4) {
        0 => (*rng.pick(&known)).to_owned(),
        1 => format!("{}{}", annotations::PREFIX, rng.pick(&ours)),
        2 => (*rng.pick(&["spark-role", "spark-app-selector", "spark-exec-id", "spark-exec-resourceprofile-id"]))
            .to_owned(),
        _ => format!("a~/{}", rng.below(5)),
    }
}

fn text(rng: &mut Rng) -> String {
    match rng.below(8) {
        0 => "x".repeat(usize::try_from(rng.below(300)).unwrap()),
        1 => gang::application_id(rng.pick::<&str>(&NAMESPACES), "nb-driver", APP),
        2 => victims_gang(),
        _ => (*rng.pick(&TEXTS)).to_owned(),
    }
}

/// A pod that the driver, or its executor, resembles more or less.
pub fn object(rng: &mut Rng) -> Value {
    let mut pod = match rng.below(5) {
        0 => driver(),
        1 => pod("other-9").executor_of("spark-other", 9),
        _ => executor(u32::try_from(rng.below(5)).unwrap()),
    };
    pod = pod.namespace(rng.pick::<&str>(&NAMESPACES));
    for place in ["labels", "annotations"] {
        for _ in 0..rng.below(4) {
            pod.0["metadata"][place][key(rng)] = text(rng).into();
        }
        if rng.once_in(12) {
            pod.0["metadata"][place] = rng.pick(&[Value::Null, json!({}), json!({"spark-role": "executor"})]).clone();
        }
    }
    if rng.chance(30) {
        let kind = *rng.pick(&["Pod", "StatefulSet", "Job"]);
        let uid = *rng.pick(&[DRIVER_UID, "u-2"]);
        pod = pod.owned_by(kind, rng.pick::<&str>(&["nb-driver", "evil-driver", "a b"]), uid);
    }
    for field in ["schedulerName", "priorityClassName", "nodeName", "serviceAccountName"] {
        if rng.once_in(4) {
            let named = TABLE.iter().filter_map(|scheduler| scheduler.default_name).collect::<Vec<_>>();
            let value = if rng.chance(60) { (*rng.pick(&named)).to_owned() } else { text(rng) };
            pod = pod.spec(field, value);
        }
    }
    if rng.once_in(5) {
        let operator = *rng.pick(&["In", "NotIn", "Exists", "DoesNotExist", "Gt"]);
        let expression = json!({"key": "pool", "operator": operator, "values": ["spark", "other"]});
        let terms: Vec<Value> = (0..rng.below(6)).map(|_| json!({"matchExpressions": [expression.clone()]})).collect();
        let required =
            json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}});
        pod = pod.spec("affinity", required);
    }
    if rng.once_in(6) {
        pod = pod.spec("schedulingGroup", json!({"podGroupName": text(rng)}));
    }
    if rng.once_in(6) {
        pod = pod.driver_url(rng.pick::<&str>(&["nb-svc.default.svc", "10.0.0.1", "::1", ""]));
    }
    pod.0
}

/// The review of its creation, or of an update.
pub fn review_of(rng: &mut Rng) -> Value {
    let object = object(rng);
    let who = match rng.below(3) {
        0 => by_pod(object["metadata"]["namespace"].as_str().unwrap(), "spark", "nb-driver", DRIVER_UID),
        _ => rng.pick(&attackers()).1.clone(),
    };
    if rng.chance(80) {
        return review(&object, who);
    }
    let mut new = object.clone();
    new["metadata"]["labels"][key(rng)] = text(rng).into();
    new["metadata"]["annotations"][key(rng)] = text(rng).into();
    update(&PodBuilder(object), &PodBuilder(new), who)
}

/// The same bytes with some damage.
pub fn damaged(rng: &mut Rng, mut bytes: Vec<u8>) -> Vec<u8> {
    const PIECES: [&str; 14] =
        ["null", "{}", "[]", "\"\"", "\"", "}", ",", "1e999", "\\u0000", "[[[[", "{\"\":", "\u{feff}", "true", "-"];
    for _ in 0..=rng.below(4) {
        let at = |rng: &mut Rng, len: usize| usize::try_from(rng.below(len as u64 + 1)).unwrap();
        let (from, to) = (at(rng, bytes.len()), at(rng, bytes.len()));
        match rng.below(6) {
            0 => bytes.truncate(from),
            1 if from < to => drop(bytes.drain(from..to.min(from + 40))),
            2 if from < bytes.len() => bytes[from] = u8::try_from(rng.below(256)).unwrap(),
            3 if from < to => {
                let copy = bytes[from..to.min(from + 200)].to_vec();
                bytes.splice(from..from, copy);
            }
            _ => drop(bytes.splice(from..from, rng.pick(&PIECES).bytes())),
        }
    }
    bytes
}

/// The same review with one value of another type, or with one member more or less.
pub fn retyped(rng: &mut Rng, mut review: Value) -> Value {
    let mut at = &mut review;
    loop {
        let children = at.as_object().map_or(0, Map::len) + at.as_array().map_or(0, Vec::len);
        if children == 0 || rng.once_in(9) {
            break;
        }
        let child = usize::try_from(rng.below(children as u64)).unwrap();
        at = match at {
            Value::Object(members) => members.values_mut().nth(child).unwrap(),
            Value::Array(items) => &mut items[child],
            _ => break,
        };
    }
    let values = [
        Value::Null,
        json!(true),
        json!(-1.5),
        json!(""),
        json!([]),
        json!({}),
        json!([{"name": null}]),
        json!({"a": {"b": []}}),
    ];
    *at = rng.pick(&values).clone();
    review
}

/// A cluster and policies of some scheduler.
pub fn world(rng: &mut Rng) -> (Snapshot, Policies) {
    let scheduler = rng.pick(TABLE);
    let mut policy = Policy {
        strict: rng.once_in(4),
        validate: *rng.pick(&[Validate::Audit, Validate::Warn, Validate::Enforce]),
        ..policy(scheduler.kind)
    };
    policy.queue = Some("queue-a".into());
    policy.executor_class = rng.once_in(2).then(|| "batch".into());
    policy.gang.shape = *rng.pick(scheduler.shapes);
    if scheduler.kind == "koordinator" && rng.once_in(2) {
        policy.gang.membership = Membership::Annotations;
    }
    if rng.once_in(3) {
        policy.queues = Some(vec![Pattern::new("queue-*")]);
    }
    if rng.once_in(3) {
        policy.node_pool = [("pool".to_owned(), "spark".to_owned())].into();
    }
    if rng.once_in(3) {
        policy.scheduler.replace = Replace::Always;
    }
    let list = match rng.below(3) {
        0 => vec![policy],
        1 => vec![Policy { matches: namespaces_with("env", "prod"), ..policy }],
        _ => vec![
            Policy { matches: namespaces_with("env", "prod"), strict: true, name: "first".into(), ..policy.clone() },
            policy,
        ],
    };
    let policies = Policies::new(list, vec![Pattern::new("system:serviceaccount:default:syncer")]);
    let mut snapshot = if rng.chance(70) { signing() } else { Snapshot::default() };
    for namespace in &NAMESPACES[..2] {
        let env = *rng.pick(&["prod", "dev"]);
        observe_namespace(&mut snapshot, namespace, &[("env", env)], &[]);
    }
    if rng.chance(70) {
        for (created, uid) in [(driver(), DRIVER_UID), (executor(1), "v-exec-1")] {
            let admitted = PodBuilder(by_driver(&created, &snapshot, &policies).object);
            observe(&mut snapshot, &admitted.stored(uid));
        }
    }
    if rng.once_in(2) {
        let nodes: Vec<(String, Vec<(&str, String)>)> = (0..rng.below(20))
            .map(|n| (format!("n{n}"), vec![("pool", ["spark", "other"][usize::from(n % 2 == 0)].to_owned())]))
            .collect();
        list_nodes(&mut snapshot, &nodes);
    }
    (snapshot, policies)
}
