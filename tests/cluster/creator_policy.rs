//! The creator policy: the API server stores no pod whose stated creator it did not authenticate, and lets nobody but spark-usher
//! change that. So a signature that the webhook wrote for whoever asked is of no use.
//!
//! The `cel` crate evaluates the expressions; a real kube-apiserver does if `KUBEBUILDER_ASSETS` is set.

use crate::support::admission_policy::{Compiled, compiled};
use crate::support::attackers::{MY_DRIVER, attackers, evil, objects};
use crate::support::caller::{Caller, Replicas};
use crate::support::cluster::{Cluster, eventually};
use crate::support::rng::Rng;
use crate::support::*;
use axum::http::StatusCode;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use usher_core::annotations::PROTECTED;
use usher_core::manifests::creator_policy::{self, manifests};
use usher_core::ownership::resolve::WORKLOAD_CONTROLLERS;
use usher_core::policy::{Policies, Policy, Validate};
use usher_core::reason::Reason;
use usher_core::snapshot::Snapshot;
use usher_server::app::App;

const CREATOR: &str = "spark-usher.io/creator";
const SIGNATURE: &str = "spark-usher.io/signature";

/// A client of a replica's webhook.
fn caller(cluster: &Cluster, name: &str, app: &App) -> Caller {
    let replicas = Replicas::default();
    replicas.set(vec![app.webhook()]);
    Caller::new(&cluster.ca(name), "localhost", &replicas)
}

/// The pod as the webhook returns it to whoever posts this review.
async fn posted(caller: &Caller, pod: PodBuilder, claimed: Value) -> PodBuilder {
    let body = serde_json::to_vec(&review(&pod.0, claimed)).unwrap();
    let (status, answer) = caller.review(&body.into()).await.unwrap();
    assert_eq!(status, StatusCode::OK);
    let answer: Value = serde_json::from_slice(&answer).unwrap();
    let mut object = pod.0;
    let patch: json_patch::Patch = serde_json::from_value(decode_patch(&answer["response"])).unwrap();
    json_patch::patch(&mut object, &patch).unwrap();
    PodBuilder(object)
}

fn policy_objects() -> Vec<Compiled> {
    compiled(&manifests(creator_policy::NAME, OWN).unwrap())
}

/// Why the policies deny a request.
fn denied(policies: &[Compiled], review: &Value) -> Option<String> {
    let violations = policies.iter().flat_map(|policy| {
        assert_eq!(policy.actions, ["Deny", "Audit"]);
        policy.evaluate(review, &json!({}))
    });
    violations.map(|violation| violation.expression).reduce(|all, one| format!("{all}; {one}"))
}

fn volcano() -> Policies {
    only(Policy { validate: Validate::Enforce, ..policy("volcano") })
}

/// The pod as the webhook returns it to whoever posts this review.
fn ordered(pod: &PodBuilder, claimed: Value) -> PodBuilder {
    PodBuilder(answer(&review(&pod.0, claimed), &signing(), &volcano()).object)
}

fn victim() -> Value {
    by_pod("default", "spark", "nb-driver", DRIVER_UID)
}

fn eve() -> Value {
    json!({"username": "eve", "groups": ["developers", "system:authenticated"]})
}

/// The neighbour's way to the victim's executors: a signature that names the victim's driver, on a pod of his own.
#[test]
fn signature_ordered_in_the_name_of_another_is_not_stored() {
    let policies = policy_objects();
    let evil_driver = pod("evil-driver").driver_of(APP);
    let signed = ordered(&evil_driver, victim());
    let stated = &signed.0["metadata"]["annotations"];
    assert_eq!(stated[CREATOR], format!("pod/nb-driver/{DRIVER_UID}"), "the webhook signs what it is told");
    let message = denied(&policies, &review(&signed.0, evil())).unwrap();
    assert_eq!(
        message,
        format!(
            "the pod has {CREATOR}, {SIGNATURE}, and system:serviceaccount:default:evil is not the creator that it states: remove it from the pod template"
        )
    );
    let plain = evil_driver.stored(MY_DRIVER);
    let patched = signed.clone().stored(MY_DRIVER);
    for sub in ["", "status"] {
        let mut change = update(&plain, &patched, evil());
        change["request"]["subResource"] = sub.into();
        let message = denied(&policies, &change).unwrap();
        assert!(message.starts_with("system:serviceaccount:default:evil changed spark-usher.io/by, "), "{message}");
        assert!(message.contains(CREATOR) && message.ends_with("which only spark-usher may change: leave it as it is"));
    }
    // A pod that is none of Spark's when it is created, or while its annotations are changed.
    let unlabelled =
        |pod: &PodBuilder| [pod.clone().without_label("spark-role"), pod.clone().label("spark-role", "other")];
    for (plain, patched) in unlabelled(&plain).iter().zip(unlabelled(&patched)) {
        assert!(denied(&policies, &review(&patched.0, evil())).unwrap().contains("is not the creator"));
        assert!(
            denied(&policies, &update(plain, &patched, evil())).unwrap().contains("evil changed spark-usher.io/by")
        );
        assert!(
            denied(&policies, &update(&patched, plain, evil())).unwrap().contains("evil changed spark-usher.io/by")
        );
    }
    // An executor that names another policy's scheduler, ordered in the same way.
    let executor = ordered(&executor(7), victim());
    assert!(denied(&policies, &review(&executor.0, evil())).is_some());
    assert_eq!(denied(&policies, &review(&executor.0, victim())), None, "the victim itself");
}

#[test]
fn every_attacker_with_every_ordered_signature_is_denied_and_what_the_webhook_makes_of_it_is_not() {
    let policies = policy_objects();
    let claims = [
        victim(),
        by_pod("default", "spark", "evil-driver", DRIVER_UID),
        eve(),
        json!({"username": WORKLOAD_CONTROLLERS[6]}),
    ];
    let (mut cases, mut refused) = (0, 0);
    for (who, requester) in attackers() {
        for (what, object) in objects() {
            for claimed in &claims {
                let forged = ordered(&object, claimed.clone());
                let sent = review(&forged.0, requester.clone());
                let stated = forged.0["metadata"]["annotations"][CREATOR].as_str().map(str::to_owned);
                let role = forged.0["metadata"]["labels"]["spark-role"].as_str();
                let is_judged = stated.is_some() && matches!(role, Some("driver" | "executor"));
                let honest = answer(&sent, &signing(), &volcano());
                let own = honest.object["metadata"]["annotations"][CREATOR].as_str().map(str::to_owned);
                let is_forged = is_judged && stated != own;
                // The text of an account is the same for a person and for a pod of that account.
                let account = format!("account/{}", requester["username"].as_str().unwrap_or_default());
                let message = denied(&policies, &sent);
                if message.is_some() {
                    assert!(is_forged && stated != Some(account), "{who}, {what}: {message:?}");
                    // The webhook, where it validates what no mutating webhook corrected, says the same.
                    let found = validate_review(&sent, &signing(), &volcano());
                    assert!(
                        found.decision.reasons.contains(&Reason::NotMutated),
                        "{who}, {what}: {:?}",
                        found.decision
                    );
                    refused += 1;
                } else {
                    assert!(!is_forged || stated.as_ref() == Some(&account), "{who}, {what}: {stated:?} for {own:?}");
                }
                let mut mutated = sent.clone();
                mutated["request"]["object"] = honest.object;
                assert_eq!(denied(&policies, &mutated), None, "{who}, {what}: as the webhook mutates it");
                cases += 1;
            }
        }
    }
    println!("{cases} creations, {refused} denied");
    assert!(cases > 2000 && refused > 1000);
}

/// A requester, and whether the policies exempt it.
fn requesters() -> Vec<(Value, bool)> {
    let named = |name: &str, group: &str| json!({"username": name, "groups": [group, "system:authenticated"]});
    let mut all: Vec<(Value, bool)> = attackers().into_iter().map(|(_, who)| (who, false)).collect();
    all.extend(WORKLOAD_CONTROLLERS.map(|name| (named(name, "x"), false)));
    all.extend([
        (named(OWN, "x"), true),
        (named("root", "system:masters"), true),
        (named("carol", "kubeadm:cluster-admins"), false),
        (named("system:kube-scheduler", "x"), false),
        (named("system:serviceaccount:kube-system:generic-garbage-collector", "x"), false),
        (named("system:serviceaccount:volcano-system:volcano-scheduler", "x"), false),
        (named("system:node:n1", "system:nodes"), false),
        (victim(), false),
    ]);
    all
}

/// What the policies say about some hundred random reviews, beside the rule in Rust: a second implementation.
#[test]
fn policies_agree_with_the_rule_on_random_reviews() {
    let policies = policy_objects();
    let (mut rng, requesters) = (Rng::new(33), requesters());
    let (mut denials, mut agreed) = (0, 0);
    for number in 0..1500 {
        let (who, exempt) = rng.pick(&requesters).clone();
        let (pod, old) = (random_pod(&mut rng, &who), random_pod(&mut rng, &who));
        let sent = if rng.chance(50) {
            review(&pod.0, who.clone())
        } else {
            // Changes of few keys, or of none.
            let mut new = pod.clone();
            new.0["metadata"]["labels"] =
                if rng.chance(70) { old.0["metadata"]["labels"].clone() } else { pod.0["metadata"]["labels"].clone() };
            if rng.chance(60) {
                new.0["metadata"]["annotations"] = old.0["metadata"]["annotations"].clone();
                if rng.chance(50) {
                    new = new.annotation("other", "x");
                }
            }
            // An API server omits what is empty.
            new.0["metadata"].as_object_mut().unwrap().retain(|_, value| !value.is_null());
            update(&old.stored("u-1"), &new.stored("u-1"), who.clone())
        };
        let expected = !exempt && violates(&sent);
        let message = denied(&policies, &sent);
        assert_eq!(message.is_some(), expected, "{number}: {message:?} {sent:#}");
        denials += usize::from(expected);
        agreed += 1;
        // The webhook denies whatever the policies deny about Spark's pods; it trusts more accounts, which the policies do not.
        let trusted = validate_review(&sent, &signing(), &volcano()).decision;
        if expected && ![Reason::TrustedWriter, Reason::NotSpark].contains(&trusted.reason) {
            let reasons = [Reason::NotMutated, Reason::SchedulingChanged, Reason::ApplicationChanged];
            assert!(trusted.reasons.iter().any(|reason| reasons.contains(reason)), "{number}: {trusted:?} {sent:#}");
        }
    }
    println!("{agreed} reviews, {denials} denied");
    assert!(denials > 300 && denials < 1200, "{denials}");
}

fn random_pod(rng: &mut Rng, who: &Value) -> PodBuilder {
    let mut pod = match rng.below(4) {
        0 => pod("nb-driver").driver_of(APP),
        1 => executor(1).label("spark-role", rng.pick::<&str>(&["other", "Executor", ""])),
        _ => executor(1),
    };
    if rng.chance(10) {
        pod = pod.without_label("spark-role");
    }
    if rng.chance(40) {
        pod = pod.owned_by("StatefulSet", "set", "s-1");
    }
    let name = who["username"].as_str().unwrap_or_default();
    let extra = |key: &str| {
        who["extra"][format!("authentication.kubernetes.io/{key}")][0].as_str().unwrap_or("none").to_owned()
    };
    let own_pod = format!("pod/{}/{}", extra("pod-name"), extra("pod-uid"));
    let creators = [
        format!("elsewhere/{}/{}/{name}", extra("pod-name"), extra("pod-uid")),
        format!("elsewhere/nb-driver/{DRIVER_UID}/{name}"),
        format!("elsewhere/{}/{}/system:serviceaccount:hub:eve", extra("pod-name"), extra("pod-uid")),
        own_pod,
        format!("account/{name}"),
        "workload/set/s-1".into(),
        "workload/set/s-2".into(),
        format!("pod/nb-driver/{DRIVER_UID}"),
        "account/eve".into(),
        String::new(),
        "x".into(),
    ];
    for key in PROTECTED {
        if rng.chance(if key == CREATOR { 60 } else { 25 }) {
            let value = if key == CREATOR {
                rng.pick(&creators).clone()
            } else {
                (*rng.pick(&["", "fallback", "v2.00"])).to_owned()
            };
            pod = pod.annotation(key, &value);
        }
    }
    pod
}

/// The rule of the policies for pods, without exemptions.
fn violates(review: &Value) -> bool {
    let request = &review["request"];
    let (object, old, who) = (&request["object"], &request["oldObject"], &request["userInfo"]);
    let is_update = request["operation"] == "UPDATE";
    let key = |object: &Value, key: &str| object["metadata"]["annotations"][key].as_str().map(str::to_owned);
    let changed = is_update && PROTECTED.iter().any(|name| key(object, name) != key(old, name));
    let states = key(object, CREATOR).is_some() || key(object, SIGNATURE).is_some();
    let username = who["username"].as_str().unwrap_or_default();
    let list = |name: &str| {
        who["extra"][format!("authentication.kubernetes.io/{name}")].as_array().cloned().unwrap_or_default()
    };
    let by_pod = match (list("pod-name").as_slice(), list("pod-uid").as_slice()) {
        ([name], [uid]) => {
            let pod = format!("{}/{}", name.as_str().unwrap(), uid.as_str().unwrap());
            match username.strip_prefix("system:serviceaccount:").and_then(|rest| rest.split_once(':')) {
                Some((_, "")) | Some(("", _)) | None => None,
                Some(("default", _)) => Some(format!("pod/{pod}")),
                Some(_) => Some(format!("elsewhere/{pod}/{username}")),
            }
        }
        _ => None,
    };
    let owner = &object["metadata"]["ownerReferences"][0];
    let by_workload = (WORKLOAD_CONTROLLERS.contains(&username) && owner["controller"] == true)
        .then(|| format!("workload/{}/{}", owner["name"].as_str().unwrap(), owner["uid"].as_str().unwrap()));
    let own = [by_pod, by_workload, Some(format!("account/{username}"))];
    let stated = key(object, CREATOR).unwrap_or_default();
    changed || (!is_update && states && !own.iter().flatten().any(|own| *own == stated))
}

/// What kubelets, the garbage collector, schedulers, Spark and kubectl do to honest pods.
#[test]
fn honest_changes_of_honest_pods_are_not_denied() {
    let policies = policy_objects();
    let honest = ordered(&executor(1), victim()).stored("e-1");
    let owner =
        json!([{"apiVersion": "v1", "kind": "Pod", "name": "nb-driver", "uid": DRIVER_UID, "controller": true}]);
    let mut collected = honest.clone();
    collected.0["metadata"].as_object_mut().unwrap().remove("ownerReferences");
    let mut adopted = honest.clone();
    adopted.0["metadata"]["ownerReferences"] = owner;
    let changes = [
        ("Spark marks it inactive", honest.clone().label("spark-exec-inactive", "true")),
        ("the collector removes an owner", collected),
        ("somebody sets an owner", adopted),
        (
            "Volcano's controller writes its group",
            honest.clone().annotation("scheduling.k8s.io/group-name", "podgroup-1"),
        ),
        ("kubectl annotate", honest.clone().annotation("kubectl.kubernetes.io/last-applied-configuration", "{}")),
        ("a CNI plugin", honest.clone().annotation("cni.projectcalico.org/podIP", "10.0.0.1")),
        (
            "a finalizer",
            PodBuilder({
                let mut pod = honest.0.clone();
                pod["metadata"]["finalizers"] = json!(["x"]);
                pod
            }),
        ),
        ("the kubelet reports its phase", honest.clone().phase("Running")),
    ];
    for (who, _) in requesters() {
        for (what, new) in &changes {
            for sub in ["", "status"] {
                let mut change = update(&honest, new, who.clone());
                change["request"]["subResource"] = sub.into();
                assert_eq!(denied(&policies, &change), None, "{what} as {who}");
            }
        }
        // A pod that has none of our keys, and one that the fallback policy marked.
        for pod in [executor(2), executor(2).annotation("spark-usher.io/by", "fallback")] {
            assert_eq!(denied(&policies, &review(&pod.0, who.clone())), None, "{who}");
        }
    }
    // Only spark-usher adopts and labels.
    let labelled = honest.clone().annotation("spark-usher.io/ended", "error").label("spark-exec-inactive", "true");
    assert!(denied(&policies, &update(&honest, &labelled, victim())).unwrap().contains("spark-usher.io/ended"));
    assert_eq!(denied(&policies, &update(&honest, &labelled, json!({"username": OWN}))), None);
}

fn binding(annotations: &Value, labels: &Value, who: &Value, resource: &str) -> Value {
    let object = json!({"apiVersion": "v1", "kind": "Binding", "target": {"kind": "Node", "name": "n1"},
        "metadata": {"name": "evil-driver", "namespace": "default", "annotations": annotations, "labels": labels}});
    let mut review = review(&object, who.clone());
    for key in ["annotations", "labels"] {
        if object["metadata"][key].is_null() {
            review["request"]["object"]["metadata"].as_object_mut().unwrap().remove(key);
        }
    }
    review["request"]["resource"]["resource"] = resource.into();
    review["request"]["subResource"] = if resource == "pods" { "binding".into() } else { Value::Null };
    review
}

#[test]
fn binding_carries_our_keys_only_from_schedulers() {
    let policies = policy_objects();
    let ours = ordered(&pod("evil-driver").driver_of(APP), victim()).0["metadata"]["annotations"].clone();
    let service = |name: &str| json!({"username": format!("system:serviceaccount:{name}"), "groups": []});
    let schedulers = [
        service("volcano-system:volcano-scheduler"),
        service("kube-system:scheduler"),
        json!({"username": "system:kube-scheduler"}),
    ];
    for resource in ["pods", "bindings"] {
        for who in &schedulers {
            let by =
                |annotations: &Value, labels: &Value| denied(&policies, &binding(annotations, labels, who, resource));
            // Volcano sends the pod's annotations.
            assert_eq!(by(&ours, &Value::Null), None);
            assert_eq!(by(&Value::Null, &Value::Null), None);
            assert_eq!(by(&Value::Null, &json!({"topology.kubernetes.io/zone": "a"})), None);
            assert!(by(&Value::Null, &json!({"spark-role": "driver"})).unwrap().contains("with the label spark-role"));
        }
        for who in [evil(), eve(), victim(), json!({"username": "system:serviceaccount:default:x"}), json!({})] {
            let by = |annotations: &Value| denied(&policies, &binding(annotations, &Value::Null, &who, resource));
            assert_eq!(by(&json!({"a": "b"})), None);
            for key in PROTECTED {
                assert!(by(&json!({key: ""})).unwrap().contains(&format!("binds a pod with {key}")), "{key}");
            }
        }
    }
    let masters = json!({"username": "root", "groups": ["system:masters"]});
    assert_eq!(denied(&policies, &binding(&ours, &json!({"spark-role": "driver"}), &masters, "pods")), None);
}

#[test]
fn invalid_name_or_account_is_rejected() {
    assert!(manifests("A", OWN).unwrap_err().to_string().contains("valid object name"));
    assert!(manifests("a", "ns:name").unwrap_err().to_string().contains("invalid account"));
    let names: Vec<Value> =
        manifests("a", OWN).unwrap().iter().map(|object| object["metadata"]["name"].clone()).collect();
    assert_eq!(names[0], "a.creator.spark-usher.io");
    assert_eq!(names[3], "a.creator-binding.spark-usher.io");
}

/// Signatures count only while the policy is installed, and those of an earlier one never again.
#[tokio::test]
async fn replica_signs_and_believes_only_while_the_policy_is_installed() {
    let cluster = Cluster::start().await;
    let mut app = cluster.usher_named("policies: [{name: batch, scheduler: {type: volcano}}]", "one").await;
    app.has_synced().await;
    let caller = caller(&cluster, "one", &app);
    let signature = async || {
        let annotations = posted(&caller, executor(1), victim()).await.0["metadata"]["annotations"].clone();
        assert_eq!(annotations[CREATOR].is_string(), annotations[SIGNATURE].is_string());
        annotations[SIGNATURE].as_str().map(str::to_owned)
    };
    let believed = || app.counters().cluster.signatures_believed.get();
    eventually("the policy is seen", async || signature().await.is_some()).await;
    assert_eq!(believed(), 1);
    let first = signature().await;
    let driver = cluster.pod_by(&cluster.client, &pod("nb-driver").driver_of(APP)).await;
    let by_driver = cluster.client_of_pod(&driver).await;
    cluster.register("one", &app).await;
    let created = cluster.pod_by(&by_driver, &executor(1)).await;
    assert!(created.metadata.annotations.unwrap().contains_key(SIGNATURE));
    let proven = || {
        let snapshot = app.snapshot();
        snapshot.executor(&cluster.namespace, "nb-exec-1").is_some_and(|(_, executor)| executor.is_proven)
    };
    eventually("the executor is proven", async || proven()).await;
    let all = manifests(creator_policy::NAME, &cluster.account().await).unwrap();
    // The binding alone is not enough.
    let (api, object) = cluster.admission_policy(&all[0]);
    api.delete(object.metadata.name.as_deref().unwrap(), &DeleteParams::default()).await.unwrap();
    eventually("the missing policy is noticed", async || believed() == 0).await;
    eventually("nothing is signed", async || signature().await.is_none()).await;
    eventually("nothing is believed", async || !proven()).await;
    cluster.install_creator_policy().await;
    eventually("the new policy is seen", async || signature().await.is_some()).await;
    assert_ne!(signature().await, first, "what was signed under the earlier policy proves nothing");
    assert!(!proven());
    app.stop().await.unwrap();
}

/// The attack of a neighbour on a real API server: he reaches the webhook's port, orders signatures, and has the rights of a driver.
#[tokio::test]
async fn real_api_server_stores_no_ordered_signature() {
    let Some(cluster) = Cluster::start_evaluating().await else { return };
    let mut app = cluster.usher_named("policies: [{name: batch, scheduler: {type: volcano}}]", "one").await;
    app.has_synced().await;
    let caller = caller(&cluster, "one", &app);
    let victim = cluster.pod_by(&cluster.client, &pod("nb-driver").driver_of(APP)).await;
    let victims_uid = victim.metadata.uid.clone().unwrap();
    let mine = pod("mine").driver_of("spark-mine").spec("serviceAccountName", "evil");
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "evil", "namespace": cluster.namespace}});
    cluster.create(account).await;
    cluster.allow("evil").await;
    let mine = cluster.pod_by(&cluster.client, &mine).await;
    let by_me = cluster.client_of_account("evil", &mine).await;
    let claimed = by_pod(&cluster.namespace, "spark", "nb-driver", &victims_uid);
    let evil_driver = posted(&caller, pod("evil-driver").driver_of(APP).namespace(&cluster.namespace), claimed).await;
    assert_eq!(evil_driver.0["metadata"]["annotations"][CREATOR], format!("pod/nb-driver/{victims_uid}"));
    let pods: Api<Pod> = Api::namespaced(by_me.clone(), &cluster.namespace);
    let create = async |pod: &PodBuilder| {
        let pod = pod.clone().namespace(&cluster.namespace).into_request();
        pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await
    };
    eventually("the policy is evaluated", async || cluster.dry_run(&by_me, &evil_driver).await.is_err()).await;
    // The webhook is not called: as if it did not answer in time.
    let message = create(&evil_driver).await.unwrap_err().to_string();
    assert!(message.contains(CREATOR) && message.contains("is not the creator that it states"), "{message}");
    let plain = create(&pod("evil-driver").driver_of(APP)).await.unwrap();
    let annotations = &evil_driver.0["metadata"]["annotations"];
    let patch = Patch::Merge(json!({"metadata": {"annotations": annotations}}));
    let name = plain.metadata.name.as_deref().unwrap();
    for result in [
        pods.patch(name, &PatchParams::default(), &patch).await,
        pods.patch_status(name, &PatchParams::default(), &patch).await,
    ] {
        let message = result.unwrap_err().to_string();
        assert!(message.contains("changed") && message.contains(CREATOR), "{message}");
    }
    let try_to_bind = async |client: &kube::Client, name: &str, annotations: &Value, dry_run: bool| {
        let object = json!({"apiVersion": "v1", "kind": "Binding", "target": {"apiVersion": "v1", "kind": "Node", "name": "n1"},
            "metadata": {"name": name, "namespace": cluster.namespace, "annotations": annotations}});
        let pods: Api<Pod> = Api::namespaced(client.clone(), &cluster.namespace);
        let params = PostParams { dry_run, ..PostParams::default() };
        pods.create_subresource::<Value, Value>("binding", name, &params, &object).await
    };
    let bind = async |client: &kube::Client, name: &str, annotations: &Value| {
        try_to_bind(client, name, annotations, false).await
    };
    // An API server sees each policy for itself.
    eventually("the policy of bindings is evaluated", async || {
        try_to_bind(&by_me, name, annotations, true).await.is_err()
    })
    .await;
    let message = bind(&by_me, name, annotations).await.unwrap_err().to_string();
    assert!(message.contains("binds a pod with") && message.contains(CREATOR), "{message}");
    // The controller manager's type check has no objection.
    for manifest in manifests(creator_policy::NAME, &cluster.account().await).unwrap().iter().step_by(2) {
        let (api, object) = cluster.admission_policy(manifest);
        let name = object.metadata.name.unwrap();
        let status = async || api.get(&name).await.unwrap().data["status"].clone();
        eventually("the types are checked", async || status().await["observedGeneration"] == 1).await;
        assert_eq!(status().await["typeChecking"], json!({}), "{name}");
    }
    // With the webhook: the victim's executors get their owner, and nothing that spark-usher, the driver or others do is denied.
    cluster.register("one", &app).await;
    let by_victim = cluster.client_of_pod(&victim).await;
    let first = cluster.pod_by(&by_victim, &executor(1)).await;
    assert_eq!(first.metadata.owner_references.unwrap()[0].uid, victims_uid);
    let stated = first.metadata.annotations.unwrap();
    assert_eq!(stated[CREATOR], format!("pod/nb-driver/{victims_uid}"));
    let harmless = Patch::Merge(json!({"metadata": {"labels": {"spark-exec-inactive": "true"}}}));
    let of_victim: Api<Pod> = Api::namespaced(by_victim, &cluster.namespace);
    of_victim.patch("nb-exec-1", &PatchParams::default(), &harmless).await.unwrap();
    let running = Patch::Merge(json!({"status": {"phase": "Running"}}));
    of_victim.patch_status("nb-exec-1", &PatchParams::default(), &running).await.unwrap();
    // Volcano binds with the pod's annotations; the administrator may repair.
    for (kind, name) in [("Namespace", "volcano-system"), ("ServiceAccount", "volcano-scheduler")] {
        let namespace = if kind == "Namespace" { Value::Null } else { "volcano-system".into() };
        cluster
            .create(json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": namespace}}))
            .await;
    }
    let subject = json!({"kind": "ServiceAccount", "name": "volcano-scheduler", "namespace": "volcano-system"});
    cluster
        .create(json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "subjects": [subject],
            "metadata": {"name": "volcano", "namespace": cluster.namespace},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}}))
        .await;
    let volcano = cluster.client_bound_in("volcano-system", "volcano-scheduler", None).await;
    bind(&volcano, "nb-exec-1", &json!(stated)).await.unwrap();
    let repaired = Patch::Merge(json!({"metadata": {"annotations": {CREATOR: null, SIGNATURE: null}}}));
    cluster.pods().patch("nb-exec-1", &PatchParams::default(), &repaired).await.unwrap();
    app.stop().await.unwrap();
}

/// The verdict about the victim's executors does not depend on the neighbour's pod, also where its signature is believed.
#[test]
fn neighbours_driver_takes_no_owner_from_the_victims_executors() {
    for snapshot in [Snapshot::default(), signing()] {
        let mut snapshot = snapshot;
        let stored = ordered(&pod("evil-driver").driver_of(APP), evil()).stored(MY_DRIVER).phase("Running");
        observe(&mut snapshot, &stored);
        let outcome = answer(&executor(1).created_by_pod("nb-driver", DRIVER_UID), &snapshot, &volcano());
        assert_eq!(outcome.object["metadata"]["ownerReferences"][0]["uid"], DRIVER_UID);
    }
    // A replica for which nothing vouches, and a pod that carries the ordered signature: it has no key to verify it with.
    let mut snapshot = Snapshot::default();
    observe(&mut snapshot, &ordered(&pod("evil-driver").driver_of(APP), victim()).stored(MY_DRIVER).phase("Running"));
    let outcome = answer(&executor(1).created_by_pod("nb-driver", DRIVER_UID), &snapshot, &volcano());
    assert_eq!(outcome.object["metadata"]["ownerReferences"][0]["uid"], DRIVER_UID);
}
