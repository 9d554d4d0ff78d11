//! The ValidatingAdmissionPolicies agree with the webhook's validation: on every recorded review, on every attack, and on every
//! change.
//!
//! The `cel` crate evaluates the expressions. A real kube-apiserver, if `KUBEBUILDER_ASSETS` is set, checks what the crate
//! cannot: types, cost and bindings.

use std::collections::BTreeSet;

use crate::support::admission_policy::{self, Compiled};
use crate::support::attackers::{attackers, objects};
use crate::support::cluster::{Cluster, eventually};
use crate::support::rng::Rng;
use crate::support::*;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use usher_core::manifests::differences;
use usher_core::manifests::object::{Refused, VALIDATING, VALIDATING_BINDING};
use usher_core::manifests::validating_policy::{self, Parameters, Slot};
use usher_core::policy::Policies;
use usher_core::snapshot::Snapshot;

/// The reasons of the webhook that the policies check, too.
const DECIDED: [&str; 5] =
    ["ApplicationChanged", "OwnerChanged", "OwnerNotCreator", "QueueNotAllowed", "SchedulingChanged"];

fn parameters() -> Parameters {
    Parameters {
        name: "spark-usher".to_owned(),
        namespaces: vec![json!({"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system"]})],
        account: OWN.to_owned(),
    }
}

fn manifests(policies: &Policies, parameters: &Parameters) -> Result<Vec<Value>, Refused> {
    validating_policy::manifests(policies, parameters).map(|[first, _]| first)
}

fn file(text: &str) -> Policies {
    (*usher_config::from_text(&policy_file(text)).unwrap().policies).clone()
}

fn compiled(policies: &Policies) -> Vec<Compiled> {
    let all = manifests(policies, &parameters()).unwrap();
    // As the webhook has no `namespaceSelector` here, neither has the policy.
    for policy in all.iter().step_by(2) {
        let namespaces = &policy["spec"]["matchConstraints"]["namespaceSelector"];
        assert_eq!(namespaces["matchExpressions"][0]["operator"], "NotIn");
    }
    admission_policy::compiled(&all)
}

/// The reasons for which a policy denies, warns or only audits, with their messages.
fn evaluate(policy: &Compiled, review: &Value, namespace_labels: &Value) -> Vec<(String, String)> {
    let found = policy.evaluate(review, namespace_labels).into_iter().map(|violation| {
        let reason = DECIDED.iter().find(|reason| violation.message.contains(&format!("({reason})"))).unwrap();
        ((*reason).to_owned(), violation.expression)
    });
    found.collect()
}

/// The reasons for which any policy denies, and the reasons that any policy finds.
fn by_policies(all: &[Compiled], review: &Value, labels: &Value) -> (BTreeSet<String>, BTreeSet<String>) {
    let (mut denied, mut found) = (BTreeSet::new(), BTreeSet::new());
    for policy in all {
        for (reason, _) in evaluate(policy, review, labels) {
            if policy.actions.contains(&"Deny".to_owned()) {
                denied.insert(reason.clone());
            }
            found.insert(reason);
        }
    }
    (denied, found)
}

/// The same by the webhook, with a snapshot that contains only the namespace.
fn by_webhook(policies: &Policies, review: &Value, labels: &Value) -> (BTreeSet<String>, BTreeSet<String>) {
    let mut snapshot = Snapshot::default();
    let labels: Vec<(&str, &str)> =
        labels.as_object().unwrap().iter().map(|(k, v)| (&**k, v.as_str().unwrap())).collect();
    observe_namespace(&mut snapshot, review["request"]["namespace"].as_str().unwrap(), &labels, &[]);
    let outcome = validate_review(review, &snapshot, policies);
    let reasons = outcome.decision.reasons.iter().map(|reason| format!("{reason:?}"));
    let found: BTreeSet<String> = reasons.filter(|reason| DECIDED.contains(&reason.as_str())).collect();
    let trusted = outcome.decision.reasons.contains(&usher_core::reason::Reason::TrustedWriter);
    let found = if trusted { BTreeSet::new() } else { found };
    // Whether it is denied for one of these reasons, and not for another one.
    let denied = outcome.response["status"]["message"].as_str().unwrap_or_default().to_owned();
    let denies = !outcome.decision.allowed && !denied.is_empty();
    (if denies { found.clone() } else { BTreeSet::new() }, found)
}

/// Checks that both agree on a review; returns the number of findings.
fn assert_agreement(policies: &Policies, all: &[Compiled], what: &str, review: &Value, labels: &Value) -> usize {
    let (by_policies, by_webhook) = (by_policies(all, review, labels), by_webhook(policies, review, labels));
    let (mut denied, mut found) = by_webhook;
    let username = review["request"]["userInfo"]["username"].as_str().unwrap_or_default();
    // Neither receives requests by nodes: see the match conditions of the chart's webhook.
    if username.starts_with("system:node:") {
        (denied, found) = Default::default();
    }
    assert_eq!(by_policies, (denied, found.clone()), "{what}: {review:#}");
    found.len()
}

const ENFORCED: &str = r#"
policies:
- {name: batch, scheduler: {type: volcano}, queue: analytics, queues: ["team-*"], validate: Enforce}
trustedWriters: ["system:serviceaccount:volcano-system:*", "kubeadm:cluster-admins"]
creators: {never: ["system:serviceaccount:default:syncer", "system:serviceaccount:vc-*:*"]}
"#;

const MANY: &str = r#"
policies:
- name: gold
  match: {namespaces: ["team-*", "default"], podSelector: {matchLabels: {tier: gold}}}
  scheduler: {type: volcano, name: mine}
  queue: gold
  queues: ["gold-*"]
  validate: Warn
- name: prod
  match:
    namespaceSelector: {matchLabels: {env: prod}, matchExpressions: [{key: a, operator: NotIn, values: ["y", x]}]}
    podSelector: {matchExpressions: [{key: tier, operator: In, values: [lead, silver]}]}
  scheduler: {type: yunikorn}
  queue: root.a
  queues: ["root.b?"]
  validate: Enforce
- {name: kept, match: {namespaces: [default], podSelector: {matchExpressions: [{key: tier, operator: Exists}]}}, scheduler: {type: kai}, queue: q, queues: [], validate: Enforce}
- {name: other, match: {namespaceSelector: {matchExpressions: [{key: env, operator: DoesNotExist}]}}, scheduler: {type: none}, validate: Enforce}
trustedWriters: ["oidc:*"]
"#;

fn files() -> Vec<Policies> {
    vec![Policies::default(), file(MANY), file(&ENFORCED.replace("Enforce", "Warn"))]
}

#[test]
fn policies_and_webhook_agree_on_every_recorded_review() {
    for policies in files() {
        let all = compiled(&policies);
        for (name, review) in all_recorded() {
            for labels in [json!({}), json!({"env": "prod"})] {
                assert_agreement(&policies, &all, &name, &review, &labels);
            }
        }
    }
}

#[test]
fn policies_and_webhook_agree_on_every_attack() {
    let (mut cases, mut findings) = (0, 0);
    let policies = file(ENFORCED);
    let all = compiled(&policies);
    for (who, requester) in attackers() {
        for (what, object) in objects() {
            let review = review(&object.0, requester.clone());
            findings += assert_agreement(&policies, &all, &format!("{who}, {what}"), &review, &json!({}));
            cases += 1;
        }
    }
    println!("{cases} reviews, {findings} findings");
    assert!(findings > 50, "{findings}");
}

/// Accounts that may change a pod.
fn writers() -> Vec<Value> {
    let named = |name: &str, group: &str| json!({"username": name, "groups": [group, "system:authenticated"]});
    vec![
        by_pod("default", "spark", "nb-driver", DRIVER_UID),
        named("eve", "developers"),
        named("root", "system:masters"),
        named("carol", "kubeadm:cluster-admins"),
        named("oidc:alice", "x"),
        named("system:kube-controller-manager", "x"),
        named("system:kube-scheduler", "x"),
        named("system:kube-schedulers", "x"),
        named("system:serviceaccount:kube-system:generic-garbage-collector", "x"),
        named("system:serviceaccount:kube-system-2:x", "x"),
        named("system:serviceaccount:volcano-system:volcano-controllers", "x"),
        named(OWN, "x"),
        json!({"username": "nobody"}),
    ]
}

/// Changes: a description, the old pod and the new one.
fn changes() -> Vec<(&'static str, PodBuilder, PodBuilder)> {
    let old = || {
        executor(1)
            .stored("e-1")
            .owned_by("Pod", "nb-driver", DRIVER_UID)
            .annotation("scheduling.k8s.io/group-name", "ours")
            .label("tier", "lead")
            .spec("schedulerName", "volcano")
    };
    let owner = |uid: &str| json!({"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": uid});
    let owned = |owners: Value| {
        let mut pod = old();
        pod.0["metadata"]["ownerReferences"] = owners;
        pod
    };
    let without = |map: &str| {
        let mut pod = old();
        pod.0["metadata"].as_object_mut().unwrap().remove(map);
        pod
    };
    let queue = |queue: &str| old().annotation("scheduling.volcano.sh/queue-name", queue);
    let controlled = |controller: bool| {
        let mut one = owner("1");
        one["controller"] = controller.into();
        owned(json!([one]))
    };
    let many = |n: u32| owned((0..n).map(|i| owner(&i.to_string())).collect());
    let mut all = vec![
        ("nothing", old(), old()),
        ("a label", old(), old().label("a", "b")),
        ("an annotation", old(), old().annotation("a", "b")),
        ("no owners", old(), without("ownerReferences")),
        ("owners where none were", without("ownerReferences"), old()),
        ("another owner", old(), old().owned_by("Pod", "other", "9-9")),
        ("an owner's name", old(), old().owned_by("Pod", "other", DRIVER_UID)),
        ("an owner's kind", old(), old().owned_by("Job", "nb-driver", DRIVER_UID)),
        ("the order of owners", owned(json!([owner("1"), owner("2")])), owned(json!([owner("2"), owner("1")]))),
        ("an additional owner", owned(json!([owner("1")])), owned(json!([owner("1"), owner("2")]))),
        ("an explicit controller", owned(json!([owner("1")])), controlled(false)),
        ("controller unset", controlled(true), controlled(false)),
        ("many owners", many(300), many(300)),
        ("one of many owners", many(300), many(301)),
        ("a gang", old(), old().annotation("scheduling.k8s.io/group-name", "theirs")),
        ("no annotations", old(), without("annotations")),
        ("an empty annotation by", old(), old().annotation("spark-usher.io/by", "")),
        ("the annotation by", old(), old().annotation("spark-usher.io/by", "batch/none")),
        ("the annotation driver", old(), old().annotation("spark-usher.io/driver", "app-selector/x/1-1")),
        ("the application", old(), old().label("spark-app-selector", "spark-other")),
        ("the role", old(), old().without_label("spark-role")),
        ("a new role", old().without_label("spark-role"), old()),
        ("driver for executor", old(), old().label("spark-role", "driver")),
        ("the group", old(), old().spec("schedulingGroup", json!({"podGroupName": "theirs"}))),
        ("an empty group", old(), old().spec("schedulingGroup", json!({}))),
        ("a queue", queue("team-a"), queue("gold")),
        ("an allowed queue", queue("team-a"), queue("team-b")),
        ("an unchanged queue", queue("gold"), queue("gold").annotation("a", "b")),
        ("no queue", queue("gold"), queue("")),
        ("Kueue's queue", old(), old().label("kueue.x-k8s.io/queue-name", "gold")),
        ("another scheduler's queue", old(), old().label("kai.scheduler/queue", "gold")),
    ];
    // From each tier to each other, with and without a finding.
    for from in ["gold", "silver", "lead", "-"] {
        for to in ["gold", "silver", "lead", "-"] {
            let tier = |pod: PodBuilder, tier: &str| {
                if tier == "-" { pod.without_label("tier") } else { pod.label("tier", tier) }
            };
            all.push(("a tier", tier(old(), from), tier(old(), to)));
            all.push(("a tier and an owner", tier(old(), from), tier(old().owned_by("Pod", "o", "9"), to)));
            all.push(("a tier and a queue", tier(queue("a"), from), tier(queue("root.bb"), to)));
            all.push(("a tier and the other queue", tier(queue("a"), from), tier(queue("gold-1"), to)));
        }
    }
    all
}

#[test]
fn policies_and_webhook_agree_on_every_change() {
    let (mut cases, mut findings) = (0, 0);
    let tenant = &writers()[0];
    let mut compare = |policies: &Policies, all: &[Compiled], who: &Value, labels: Value| {
        // The account and the policy are independent.
        for (what, old, new) in changes().into_iter().filter(|(what, ..)| who == tenant || !what.contains("tier")) {
            findings += assert_agreement(policies, all, what, &update(&old, &new, who.clone()), &labels);
            cases += 1;
        }
    };
    let (one, many) = (file(ENFORCED), file(MANY));
    let all = compiled(&one);
    for who in writers() {
        compare(&one, &all, &who, json!({}));
    }
    let all = compiled(&many);
    for labels in [json!({}), json!({"env": "prod"}), json!({"env": "prod", "a": "x"})] {
        compare(&many, &all, tenant, labels);
    }
    println!("{cases} reviews, {findings} findings");
    assert!(findings > 200, "{findings}");
}

#[test]
fn policies_and_webhook_agree_on_queues_of_new_pods() {
    let mut findings = 0;
    let queues = ["gold", "gold-1", "team-a", "analytics", "root.a", "root.bb", "root.bbb", "q", "", "team-\n"];
    for policies in [file(ENFORCED), file(MANY)] {
        let all = compiled(&policies);
        for (scheduler, key) in [
            ("volcano", "scheduling.volcano.sh/queue-name"),
            ("mine", "scheduling.volcano.sh/queue-name"),
            ("yunikorn", "queue"),
            ("yunikorn", "yunikorn.apache.org/queue"),
            ("default-scheduler", "kueue.x-k8s.io/queue-name"),
            ("kai-scheduler", "kai.scheduler/queue"),
            ("default-scheduler", "kai.scheduler/queue"),
        ] {
            for (queue, tier) in queues.iter().flat_map(|queue| [(queue, "gold"), (queue, "silver"), (queue, "-")]) {
                let pod = executor(1).label("tier", tier).spec("schedulerName", scheduler);
                // For every account: a trusted writer may change a pod, but not create one in another queue.
                let who = writers().remove(if tier == "gold" { 2 } else { 0 });
                for pod in [pod.clone().label(key, queue), pod.annotation(key, queue).namespace("team-x")] {
                    let review = review(&pod.0, who.clone());
                    findings += assert_agreement(&policies, &all, queue, &review, &json!({"env": "prod"}));
                }
            }
        }
        findings += compare_projects(&policies, &all);
    }
    println!("{findings} findings");
    assert!(findings > 100, "{findings}");
}

/// KAI's queue of a pod without its queue key: the project, and the node pool if there is one.
fn compare_projects(policies: &Policies, all: &[Compiled]) -> usize {
    let labels = ["project", "kai.scheduler/node-pool", "kai.scheduler/queue"];
    let values = [["gold", "-", "-"], ["gold", "1", "-"], ["team", "a", "-"], ["x", "-", "-"], ["x", "1", "gold"]];
    let pods = values.map(|values| {
        let pod = executor(1).label("tier", "gold").spec("schedulerName", "kai-scheduler");
        labels.iter().zip(values).filter(|(_, value)| *value != "-").fold(pod, |pod, (key, to)| pod.label(key, to))
    });
    let mut findings = 0;
    for (pod, who) in pods.iter().flat_map(|pod| writers().into_iter().map(move |who| (pod, who))) {
        let environment = json!({"env": "prod"});
        findings += assert_agreement(policies, all, "project", &review(&pod.0, who.clone()), &environment);
        for old in &pods {
            findings += assert_agreement(policies, all, "project", &update(old, pod, who.clone()), &environment);
        }
    }
    findings
}

/// A pod with random labels, owners, queues and gang keys.
fn random_pod(rng: &mut Rng) -> PodBuilder {
    let mut pod = executor(1).stored("e-1").namespace(rng.pick::<&str>(&["default", "team-1-x", "data-2", "other"]));
    for (key, values) in [
        ("tier", &["gold", "silver", "lead", "x"][..]),
        ("team", &["team-1", "team-2", "team-3"]),
        ("kai.scheduler/queue", &["q", "gold"]),
        ("kueue.x-k8s.io/queue-name", &["gold-1", "team-1-a"]),
        ("spark-app-selector", &["spark-other"]),
        ("spark-role", &["driver"]),
    ] {
        if rng.chance(if key.starts_with('t') { 60 } else { 15 }) {
            pod = pod.label(key, rng.pick::<&str>(values));
        }
    }
    for (key, values) in [
        ("scheduling.volcano.sh/queue-name", &["gold-1", "root.a", "team-1-a", "team-2-b", "q-3", "analytics"][..]),
        ("scheduling.k8s.io/group-name", &["a", "b"]),
        ("spark-usher.io/by", &["batch/none"]),
    ] {
        if rng.chance(30) {
            pod = pod.annotation(key, rng.pick::<&str>(values));
        }
    }
    if rng.chance(50) {
        let uid = if rng.chance(50) { DRIVER_UID } else { "9-9" };
        pod = pod.owned_by("Pod", "nb-driver", uid);
    }
    pod.spec(
        "schedulerName",
        rng.pick::<&str>(&["default-scheduler", "volcano", "mine", "yunikorn", "kai-scheduler"]).to_owned(),
    )
}

#[test]
fn policies_and_webhook_agree_on_random_reviews() {
    let mut rng = Rng::new(38);
    let (mut cases, mut findings) = (0, 0);
    for policies in [file(ENFORCED), file(MANY), many(5)] {
        let all = compiled(&policies);
        for _ in 0..120 {
            let (pod, who) = (random_pod(&mut rng), rng.pick(&writers()).clone());
            let labels = rng.pick(&[json!({}), json!({"env": "prod"}), json!({"env": "prod", "a": "x"})]).clone();
            let review = if rng.chance(40) {
                review(&pod.0, who)
            } else {
                // An update cannot change the namespace.
                let mut old = random_pod(&mut rng);
                old.0["metadata"]["namespace"] = pod.0["metadata"]["namespace"].clone();
                update(&old, &pod, who)
            };
            findings += assert_agreement(&policies, &all, "random", &review, &labels);
            cases += 1;
        }
    }
    println!("{cases} reviews, {findings} findings");
    assert!(findings > 150, "{findings}");
}

#[test]
fn status_updates_are_checked_and_requests_of_nodes_are_not() {
    let all = compiled(&file(ENFORCED));
    let (_, old, new) = changes().into_iter().find(|(what, ..)| *what == "a gang").unwrap();
    let denied = |who: Value, sub: &str| {
        let mut review = update(&old, &new, who);
        review["request"]["subResource"] = sub.into();
        by_policies(&all, &review, &json!({})).0
    };
    let eve = || json!({"username": "eve", "groups": []});
    assert!(denied(eve(), "").contains("SchedulingChanged") && denied(eve(), "status").contains("SchedulingChanged"));
    assert!(denied(json!({"username": "system:node:n1"}), "status").is_empty());
    assert!(denied(eve(), "resize").is_empty());
}

#[test]
fn messages_name_account_and_change_and_are_bounded() {
    let all = compiled(&file(ENFORCED));
    let finding = |review: &Value| evaluate(&all[0], review, &json!({})).remove(0);
    let taken = executor(1).owned_by("Pod", "other", "9-9").created_by_pod("nb-driver", DRIVER_UID);
    let (reason, message) = finding(&taken);
    assert_eq!(reason, "OwnerNotCreator");
    assert_eq!(
        message,
        "the executor names other as its driver, but another pod created it, with the account \
         system:serviceaccount:default:spark: let Spark or spark-usher set the ownerReference (OwnerNotCreator)"
    );
    let long = "n".repeat(300_000);
    let loud = executor(1).owned_by("Pod", &long, "9-9").created_by_pod("nb-driver", DRIVER_UID);
    assert!(finding(&loud).1.contains("names a pod as its driver"));
    let (_, old, new) = changes().into_iter().find(|(what, ..)| *what == "no annotations").unwrap();
    let (_, message) = finding(&update(&old, &new, json!({"username": "\u{1b}[2J"})));
    assert!(message.starts_with("this account changed scheduling.k8s.io/group-name, on which"), "{message}");
    let queue = executor(1).spec("schedulerName", "volcano").annotation("scheduling.volcano.sh/queue-name", "gold");
    let (_, message) = finding(&queue.created_by("eve"));
    assert!(message.starts_with("namespace default may not use gold: "), "{message}");
}

#[test]
fn each_mode_gets_one_object_and_invalid_names_are_rejected() {
    let names = |policies: &Policies, slot| {
        let [first, second] = validating_policy::manifests(policies, &parameters()).unwrap();
        let all = if slot == Slot::A { first } else { second };
        let all = all.iter().filter(|object| object["kind"] == VALIDATING);
        all.map(|object| object["metadata"]["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let named = |name: &str| format!("spark-usher.{name}.spark-usher.io");
    assert_eq!(names(&Policies::default(), Slot::A), [named("audit-a")]);
    assert_eq!(names(&file(ENFORCED), Slot::B), [named("enforce-b")], "policies after it are never reached");
    assert_eq!(names(&file(MANY), Slot::A), ["audit-a", "warn-a", "enforce-a"].map(named));
    let rejection = |change: &dyn Fn(&mut Parameters)| {
        let mut parameters = parameters();
        change(&mut parameters);
        manifests(&Policies::default(), &parameters).unwrap_err()
    };
    for bad in ["A", "a-", "", "a.b"] {
        assert_eq!(rejection(&|parameters| parameters.name = bad.into()), Refused::Name(bad.into()));
    }
    for bad in ["", "a b", "ns:name", "ns/name", "system:serviceaccount:a", "system:serviceaccounts:a", "a*"] {
        assert_eq!(rejection(&|parameters| parameters.account = bad.into()), Refused::Account(bad.into()));
    }
    for good in ["admin", "oidc:https://issuer/x", "CN=a:b", OWN] {
        let parameters = Parameters { account: good.into(), ..parameters() };
        assert!(manifests(&Policies::default(), &parameters).is_ok(), "{good}");
    }
}

/// A file with so many policies, each with a selector of pods, and modes and queues in turn.
fn many(count: usize) -> Policies {
    let policies: Vec<String> = (0..count)
        .map(|number| {
            let mode = ["Audit", "Warn", "Enforce"][number % 3];
            format!(
                "- {{name: team-{number}, match: {{namespaces: [\"team-{number}-*\", \"data-{number}\"], podSelector: {{matchLabels: {{team: team-{number}}}, \
                 matchExpressions: [{{key: tier, operator: NotIn, values: [gold, silver]}}]}}}}, scheduler: {{type: volcano}}, \
                 queue: q-{number}, queues: [\"team-{number}-*\"], validate: {mode}}}"
            )
        })
        .collect();
    file(&format!("policies:\n{}", policies.join("\n")))
}

#[test]
fn size_grows_with_the_policies_and_not_with_their_square() {
    let size = |count| {
        let all = manifests(&many(count), &parameters()).unwrap();
        all.iter().map(|object| object.to_string().len()).max().unwrap()
    };
    let (hundred, two) = (size(100), size(200));
    println!("the largest object: {hundred} bytes for 100 policies, {two} for 200");
    assert!(two < 300_000 && two < hundred * 21 / 10, "{hundred} {two}");
    let file = many(2000);
    let refused = manifests(&file, &parameters()).unwrap_err();
    assert!(matches!(refused, Refused::Size { .. }), "{refused}");
    assert!(refused.to_string().contains("expected at most"), "{refused}");
}

#[test]
fn policies_and_webhook_agree_about_pods_of_many_policies() {
    let policies = many(5);
    let all = compiled(&policies);
    let mut findings = 0;
    for (number, other) in (0..6).flat_map(|number| (0..6).map(move |other| (number, other))) {
        let pod = |number: usize, queue: &str| {
            let pod = executor(1).label("team", &format!("team-{number}")).namespace(&format!("data-{number}"));
            pod.stored("e-1").spec("schedulerName", "volcano").annotation("scheduling.volcano.sh/queue-name", queue)
        };
        let moved = pod(number, "a").label("team", &format!("team-{other}"));
        for new in [moved.clone(), moved.annotation("scheduling.volcano.sh/queue-name", &format!("team-{other}-x"))] {
            let review = update(&pod(number, "a"), &new, writers().remove(0));
            findings += assert_agreement(&policies, &all, "moved", &review, &json!({}));
            let mut created = review;
            created["request"]["operation"] = "CREATE".into();
            created["request"].as_object_mut().unwrap().remove("oldObject");
            findings += assert_agreement(&policies, &all, "created", &created, &json!({}));
        }
    }
    assert!(findings > 50, "{findings}");
}

#[test]
fn differences_from_policy_file_are_reported() {
    let all = manifests(&file(MANY), &parameters()).unwrap();
    assert!(differences(&all, &all).is_empty());
    // As the API server returns them.
    let mut stored = all.clone();
    for object in &mut stored {
        object["metadata"]["uid"] = "1".into();
        object["spec"]["status"] = json!({});
    }
    stored[1]["spec"]["matchResources"] =
        json!({"matchPolicy": "Equivalent", "namespaceSelector": {}, "objectSelector": {}});
    assert!(differences(&stored, &all).is_empty());
    let differs = |change: &dyn Fn(&mut Vec<Value>)| {
        let mut live = all.clone();
        change(&mut live);
        let found = differences(&live, &all);
        assert_eq!(found.len(), 1, "{found:#?}");
        found[0].clone()
    };
    let name = "spark-usher.audit-a.spark-usher.io";
    assert_eq!(differs(&|live| drop(live.remove(0))), format!("{VALIDATING} {name} is missing"));
    assert_eq!(
        differs(&|live| live[1]["spec"]["validationActions"] = json!(["Deny"])),
        format!("{VALIDATING_BINDING} {name} differs from the generated one")
    );
    assert!(differs(&|live| live[0]["spec"]["failurePolicy"] = "Ignore".into()).contains("differs from"));
    assert!(
        differs(&|live| drop(live[0]["spec"]["validations"].as_array_mut().unwrap().pop())).contains("differs from")
    );
    let nowhere = json!({"namespaceSelector": {"matchLabels": {"a": "b"}}});
    assert!(differs(&|live| live[1]["spec"]["matchResources"] = nowhere.clone()).contains("differs from"));
    assert!(
        differs(&|live| live[0]["spec"]["matchConstraints"]["excludeResourceRules"] = json!([{}]))
            .contains("differs from")
    );
    let hash = |live: &mut Vec<Value>| live[0]["metadata"]["annotations"]["spark-usher.io/policy-hash"] = "0".into();
    assert!(differs(&hash).contains("was generated from another policy file"));
    let mut more = all[0].clone();
    more["metadata"]["name"] = "spark-usher-gone.spark-usher.io".into();
    assert!(differs(&|live| live.push(more.clone())).contains("belongs to no policy of the policy file"));
    // Another file, another hash.
    let other = manifests(&file(&MANY.replace("gold-*", "gold-?")), &parameters()).unwrap();
    let found = differences(&all, &other);
    assert!(found.len() >= 2 && found.iter().all(|text| text.contains("another policy file")), "{found:#?}");
}

#[tokio::test]
async fn real_api_server_enforces_policies_without_webhook() {
    let Some(cluster) = Cluster::start_evaluating().await else { return };
    // It compiles what the crate evaluates in the other tests.
    for policies in files().into_iter().chain([file(ENFORCED), many(5)]) {
        for manifest in manifests(&policies, &parameters()).unwrap() {
            let (api, object) = cluster.admission_policy(&manifest);
            api.create(&PostParams { dry_run: true, ..PostParams::default() }, &object).await.unwrap();
        }
    }
    let text = format!(
        "policies: [{{name: batch, match: {{namespaces: [\"{}*\"]}}, scheduler: {{type: volcano}}, queue: analytics, queues: [\"team-*\"], validate: Enforce}}]",
        cluster.namespace
    );
    for manifest in manifests(&file(&text), &parameters()).unwrap() {
        let created = cluster.create_admission_policy(&manifest).await;
        assert!(differences(std::slice::from_ref(&created), std::slice::from_ref(&manifest)).is_empty(), "{created:#}");
    }
    let driver = cluster.pod_by(&cluster.client, &pod("nb-driver").driver_of(APP)).await;
    let by_driver = cluster.client_of_pod(&driver).await;
    let uid = driver.metadata.uid.clone().unwrap();
    let pods: Api<Pod> = Api::namespaced(by_driver.clone(), &cluster.namespace);
    // The API server's message if it denies the pod, otherwise `None`.
    let try_it = async |pod: &PodBuilder| cluster.dry_run(&by_driver, pod).await.err();
    let foreign = executor(1).owned_by("Pod", "other", "9-9");
    eventually("the policy is evaluated", async || try_it(&foreign).await.is_some()).await;
    let message = try_it(&foreign).await.unwrap();
    assert!(
        message.contains("denied request: the executor names other as its driver")
            && message.contains("(OwnerNotCreator)"),
        "{message}"
    );
    assert_eq!(try_it(&executor(1).owned_by("Pod", "nb-driver", &uid)).await, None);
    assert_eq!(try_it(&executor(1)).await, None, "a missing owner is never denied");
    let queue = |queue: &str| {
        executor(2).spec("schedulerName", "volcano").annotation("scheduling.volcano.sh/queue-name", queue)
    };
    assert!(try_it(&queue("gold")).await.unwrap().contains("may not use gold"));
    assert_eq!(try_it(&queue("team-a")).await, None);
    assert_eq!(try_it(&queue("analytics")).await, None);
    // Updates, also of the status.
    let created = cluster.pod_by(&by_driver, &executor(3).annotation("scheduling.k8s.io/group-name", "ours")).await;
    let name = created.metadata.name.unwrap();
    let other_gang = json!({"metadata": {"annotations": {"scheduling.k8s.io/group-name": "theirs"}}});
    let params = PatchParams::default();
    let rejection = pods.patch(&name, &params, &Patch::Merge(&other_gang)).await.unwrap_err().to_string();
    assert!(
        rejection.contains("changed scheduling.k8s.io/group-name") && rejection.contains("(SchedulingChanged)"),
        "{rejection}"
    );
    assert!(pods.patch_status(&name, &params, &Patch::Merge(&other_gang)).await.is_err());
    let harmless = json!({"metadata": {"labels": {"a": "b"}}, "status": {"phase": "Running"}});
    pods.patch(&name, &params, &Patch::Merge(&harmless)).await.unwrap();
    pods.patch_status(&name, &params, &Patch::Merge(&harmless)).await.unwrap();
    // The administrator is in system:masters.
    cluster.pods().patch(&name, &params, &Patch::Merge(&other_gang)).await.unwrap();
}

/// New pods with their requesters: every attack, every recorded creation, and random pods.
fn creations(namespace: &str) -> Vec<(String, Value, PodBuilder)> {
    let mut rng = Rng::new(39);
    let attacks = attackers().into_iter().flat_map(|(who, requester)| {
        objects().into_iter().map(move |(what, pod)| (format!("{who}, {what}"), requester.clone(), pod))
    });
    let recorded = all_recorded().into_iter().filter(|(_, review)| review["request"]["operation"] == "CREATE");
    let recorded = recorded.map(|(name, review)| {
        (name, review["request"]["userInfo"].clone(), PodBuilder(review["request"]["object"].clone()))
    });
    let random =
        (0..200).map(|number| (format!("random {number}"), rng.pick(&writers()).clone(), random_pod(&mut rng)));
    let all = attacks.chain(recorded).chain(random).map(|(what, requester, pod)| {
        // Their accounts are those of this namespace.
        let of = pod.0["metadata"]["namespace"].as_str().unwrap_or("default").to_owned();
        let account = |namespace: &str| format!("system:serviceaccount:{namespace}:");
        let text = requester.to_string().replace(&account("default"), &account(namespace));
        let requester = serde_json::from_str(&text.replace(&account(&of), &account(namespace))).unwrap();
        (what, requester, pod.namespace(namespace))
    });
    all.collect()
}

/// The verdicts of a real API server, by an enforcing policy alone, about what can be sent in headers.
#[tokio::test]
async fn real_api_server_and_webhook_agree_on_new_pods() {
    let Some(cluster) = Cluster::start_evaluating().await else { return };
    let namespace = &cluster.namespace;
    let policies = file(&ENFORCED.replace("scheduler:", &format!("match: {{namespaces: [{namespace}]}}, scheduler:")));
    for manifest in manifests(&policies, &Parameters { name: namespace.clone(), ..parameters() }).unwrap() {
        cluster.create_admission_policy(&manifest).await;
    }
    cluster
        .create(json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "all", "namespace": namespace},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"kind": "Group", "name": "system:authenticated", "apiGroup": "rbac.authorization.k8s.io"}],
        }))
        .await;
    let is_verdict = |message: &String| DECIDED.iter().any(|reason| message.contains(&format!("({reason})")));
    let foreign = executor(1).owned_by("Pod", "other", "9-9");
    eventually("the policy is evaluated", async || {
        let by_driver = by_pod(namespace, "spark", "nb-driver", DRIVER_UID);
        cluster.dry_run_as(&by_driver, &foreign).await.unwrap().is_err_and(|message| is_verdict(&message))
    })
    .await;
    let (mut requests, mut denied, mut refused) = (0, 0, Vec::new());
    for (what, requester, pod) in creations(namespace) {
        let Some(answer) = cluster.dry_run_as(&requester, &pod).await else { continue };
        let by_api_server = answer.as_ref().is_err_and(is_verdict);
        if let Some(message) = answer.err().filter(|_| !by_api_server) {
            // For another reason than these policies: what they decide is not known.
            refused.push(format!("{what}: {message}"));
            continue;
        }
        let found = by_webhook(&policies, &review(&pod.0, requester.clone()), &json!({})).0;
        let is_node = requester["username"].as_str().unwrap().starts_with("system:node:");
        assert_eq!(by_api_server, !found.is_empty() && !is_node, "{what}: {found:?} {pod:?}");
        requests += 1;
        denied += usize::from(by_api_server);
    }
    println!(
        "{denied} of {requests} requests were denied, as by the webhook; {} refused otherwise: {refused:#?}",
        refused.len()
    );
    assert!(requests > 800 && denied > 100 && refused.len() < 50, "{denied} of {requests}, {}", refused.len());
}
