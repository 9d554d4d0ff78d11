//! The fallback policy and the webhook agree: on every recorded review, and on every attack.
//!
//! The `cel` crate evaluates the conditions and the owner. A real kube-apiserver, if `KUBEBUILDER_ASSETS` is set, checks what the
//! crate cannot: the JSONPatch literal, and that an API server accepts the policy.

use crate::support::admission_policy;
use crate::support::attackers::{self, attackers};
use crate::support::cluster::{Cluster, eventually};
use crate::support::*;
use cel::Context;
use kube::api::PostParams;
use serde_json::{Value, json};
use usher_core::annotations::{MetadataField, Override};
use usher_core::gang::{self, Shape};
use usher_core::manifests::fallback_policy::{Parameters, Refused, manifests};
use usher_core::policy::{Match, Pattern, Policies, Policy};
use usher_core::reason::Reason;
use usher_core::snapshot::Snapshot;

fn parameters(scheduler: bool) -> Parameters {
    let namespaces = json!([{"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system"]}]);
    let namespaces = namespaces.as_array().unwrap().clone();
    Parameters { name: "spark-usher".to_owned(), namespaces, scheduler }
}

/// The policies and bindings of a file for which they are possible.
fn objects(policies: &Policies, scheduler: bool) -> Vec<Value> {
    let (objects, refused) = manifests(policies, &parameters(scheduler));
    assert_eq!(refused, None);
    objects
}

fn volcano() -> Policies {
    only_never(policy("volcano"), &["system:serviceaccount:default:syncer", "system:serviceaccount:vc-*:*"])
}

fn context(review: &Value) -> Context<'static, 'static> {
    let request = &review["request"];
    admission_policy::context([("object", request["object"].clone()), ("request", request.clone())])
}

fn eval(expression: &str, context: &Context<'_, '_>) -> Result<Value, String> {
    let value = admission_policy::program(expression).execute(context).map_err(|error| error.to_string())?;
    Ok(value.json().unwrap())
}

/// Whether a policy's selector and conditions hold. If a condition cannot be evaluated, the policy does not apply (failurePolicy
/// Ignore).
fn holds(policy: &Value, review: &Value) -> bool {
    let selector = &policy["spec"]["matchConstraints"]["objectSelector"]["matchExpressions"][0];
    let role = &review["request"]["object"]["metadata"]["labels"]["spark-role"];
    if review["request"]["operation"] != "CREATE" || !selector["values"].as_array().unwrap().contains(role) {
        return false;
    }
    let conditions = policy["spec"]["matchConditions"].as_array().unwrap();
    let context = context(review);
    conditions.iter().all(|condition| eval(condition["expression"].as_str().unwrap(), &context) == Ok(json!(true)))
}

/// The owner that the fallback policy sets.
fn owner(policy: &Value, review: &Value) -> Option<Value> {
    let expression = policy["spec"]["variables"][0]["expression"].as_str().unwrap();
    holds(policy, review).then(|| eval(expression, &context(review)).unwrap())
}

/// The owner that the webhook adds without a snapshot, and its reasons.
fn webhooks_owner(review: &Value, policies: &Policies) -> (Option<Value>, Vec<Reason>) {
    let outcome = answer(review, &Snapshot::default(), policies);
    let owners = |object: &Value| object["metadata"]["ownerReferences"].as_array().cloned().unwrap_or_default();
    let (before, after) = (owners(&review["request"]["object"]), owners(&outcome.object));
    (after.get(before.len()).cloned(), outcome.decision.reasons)
}

/// Whether Volcano would group the pod by its owner, because it has no gang key, which only the webhook sets.
fn would_regroup(review: &Value) -> bool {
    let object = &review["request"]["object"];
    object["spec"]["schedulerName"] == "volcano"
        && object["metadata"]["annotations"].get("scheduling.k8s.io/group-name").is_none()
}

#[test]
fn fallback_and_webhook_agree_on_every_recorded_review() {
    for policies in [Policies::default(), volcano(), only(policy("yunikorn"))] {
        let policy = &objects(&policies, false)[0];
        let mut owned = 0;
        for (name, review) in all_recorded() {
            let fallback_owner = owner(policy, &review);
            owned += usize::from(fallback_owner.is_some());
            if review["request"]["operation"] == "CREATE" {
                assert_eq!(fallback_owner, webhooks_owner(&review, &policies).0, "{name}");
            } else {
                assert_eq!(fallback_owner, None, "{name}");
            }
        }
        assert_eq!(owned, 3, "the executors of client mode, which Spark creates without an owner");
    }
}

#[test]
fn fallback_and_webhook_agree_on_every_attack() {
    let mut cases = 0;
    for policies in [Policies::default(), volcano()] {
        let policy = &objects(&policies, false)[0];
        for (who, requester) in attackers() {
            for (what, object) in attackers::objects() {
                for object in [object.clone(), object.spec("schedulerName", "volcano")] {
                    let review = review(&object.0, requester.clone());
                    let fallback_owner = owner(policy, &review);
                    let (webhook_owner, reasons) = webhooks_owner(&review, &policies);
                    if would_regroup(&review) {
                        assert_eq!(fallback_owner, None, "{who}, {what}");
                    } else {
                        assert_eq!(fallback_owner, webhook_owner, "{who}, {what}: {reasons:?}");
                    }
                    cases += 1;
                }
            }
        }
    }
    println!("{cases} reviews");
}

#[test]
fn unsupported_policies_are_rejected_and_skipped_pods_get_no_owner() {
    let no_gang = || {
        let mut policy = policy("volcano");
        policy.gang.shape = Shape::Pods;
        policy
    };
    let refused = |policies: &Policies, scheduler| manifests(policies, &parameters(scheduler)).1;
    assert_eq!(refused(&only(no_gang()), false), Some(Refused::NoGang("batch".into())));
    assert_eq!(refused(&only(policy("kai")), false), Some(Refused::TopOwner("batch".into())));
    // By the name alone, and by an annotation of the driver.
    let named = |kind, name: &str| {
        let mut policy = policy(kind);
        policy.scheduler.name = Some(name.into());
        only(policy)
    };
    assert_eq!(refused(&named("kueue", "volcano"), false), Some(Refused::NoGang("batch".into())));
    assert_eq!(refused(&named("coscheduling", "kai-scheduler"), false), Some(Refused::TopOwner("batch".into())));
    let chosen = Policy { overrides: [Override::Scheduler].into(), ..policy("yunikorn") };
    assert_eq!(refused(&only(chosen), false), Some(Refused::TopOwner("batch".into())));
    assert!(manifests(&only(policy("kai")), &parameters(true)).0.is_empty());
    let accounts: Vec<String> =
        (0..1000).map(|number| format!("system:serviceaccount:{}:{number}", "n".repeat(80))).collect();
    let accounts: Vec<&str> = accounts.iter().map(String::as_str).collect();
    let text = refused(&only_never(policy("yunikorn"), &accounts), false).unwrap().to_string();
    assert!(
        text.contains("expression creators-never of spark-usher.fallback-owner.spark-usher.io would have"),
        "{text}"
    );

    // The policy of the owner goes on without that of the scheduler.
    let two =
        Policies::new(vec![policy("yunikorn"), Policy { name: "b".into(), ..policy("coscheduling") }], Vec::new());
    for (policies, reason) in [
        (&two, Refused::Policies(2)),
        (&Policies::default(), Refused::Policies(0)),
        (&only(policy("kueue")), Refused::NoScheduler("batch".into())),
        (&volcano(), Refused::Volcano("batch".into())),
    ] {
        let (owner, refused) = manifests(policies, &parameters(true));
        assert_eq!((refused, owner), (Some(reason), objects(policies, false)));
    }

    let skipping =
        Policies::new(vec![Policy { overrides: [Override::Skip].into(), ..policy("coscheduling") }], Vec::new());
    let policy = &objects(&skipping, false)[0];
    let sent = |pod: PodBuilder| pod.created_by_pod("nb-driver", DRIVER_UID);
    assert_eq!(owner(policy, &sent(executor(1).annotation("spark-usher.io/skip", "true"))), None);
    assert!(owner(policy, &sent(executor(1).annotation("other", "true"))).is_some());
}

/// Whatever scheduler, gang and workload an executor and its driver have: the owner that the fallback sets, the webhook sets.
#[test]
fn fallback_sets_no_owner_that_webhook_would_withhold() {
    let (mut cases, mut owned) = (0, 0);
    for row in gang::TABLE {
        let policies = only(policy(row.kind));
        let (fallback, _) = manifests(&policies, &parameters(false));
        let Some(fallback) = fallback.first() else { continue };
        for named in gang::TABLE.iter().map(|row| row.default_name) {
            let placed = |pod: PodBuilder| named.into_iter().fold(pod, |pod, name| pod.spec("schedulerName", name));
            let with_keys = || {
                gang::keys().map(|(place, key)| match place {
                    MetadataField::Label => executor(1).label(key, "mine"),
                    MetadataField::Annotation => executor(1).annotation(key, "mine"),
                })
            };
            let driver = || placed(driver());
            let drivers = [
                None,
                Some(driver()),
                Some(driver().owned_by("Job", "j", "j1")),
                Some(driver().spec("schedulerName", "x")),
            ];
            for (driver, pod) in drivers.iter().flat_map(|driver| with_keys().map(move |pod| (driver, placed(pod)))) {
                let snapshot = snapshot_with(driver.as_slice());
                let review = pod.created_by_pod("nb-driver", DRIVER_UID);
                let set = owner(fallback, &review);
                cases += 1;
                if set.is_some() {
                    let answered = answer(&review, &snapshot, &policies);
                    let owners = &answered.object["metadata"]["ownerReferences"];
                    assert_eq!(owners[0]["uid"], DRIVER_UID, "{} {named:?} {driver:?} {pod:?}", row.kind);
                    owned += 1;
                }
            }
        }
    }
    println!("{owned} of {cases} executors get an owner from the fallback");
    assert!(owned * 2 > cases, "{owned} of {cases}");
}

/// Applies the scheduler's policy, as the API server does.
fn with_scheduler_policy(policy: &Value, review: &Value) -> Value {
    let mut object = review["request"]["object"].clone();
    if holds(policy, review) {
        object["spec"]["schedulerName"] = "yunikorn".into();
        object["metadata"]["annotations"]["spark-usher.io/by"] = "fallback".into();
    }
    object
}

#[test]
fn webhook_result_is_same_with_and_without_scheduler_of_fallback() {
    let team = Match { namespaces: vec![Pattern::new("team-?*"), Pattern::new("default")], ..Match::everything() };
    let policies = only(Policy {
        queue: Some("root.a".into()),
        matches: team,
        overrides: [Override::Skip].into(),
        ..policy("yunikorn")
    });
    let all = objects(&policies, true);
    assert_eq!(all.len(), 4);
    let scheduler = &all[2];
    let text = scheduler.to_string();
    assert!(text.contains("yunikorn") && !text.contains("group"), "expected no gang: {text}");
    let sent = |pod: PodBuilder| pod.created_by_pod("nb-driver", DRIVER_UID);
    for pod in [
        executor(1),
        executor(1).spec("schedulerName", "mine"),
        executor(1).annotation("spark-usher.io/skip", "true"),
        executor(1).namespace("elsewhere"),
        pod("nb-driver").driver_of(APP),
    ] {
        let plain = sent(pod);
        let mut after = plain.clone();
        after["request"]["object"] = with_scheduler_policy(scheduler, &plain);
        let (without, with) = (
            answer(&plain, &Snapshot::default(), &policies).object,
            answer(&after, &Snapshot::default(), &policies).object,
        );
        let (mut without, mut with) = (without, with);
        for object in [&mut without, &mut with] {
            // An empty map equals a missing one.
            let metadata = object["metadata"].as_object_mut().unwrap();
            if metadata.get("annotations").is_some_and(|map| map.as_object().is_some_and(serde_json::Map::is_empty)) {
                metadata.remove("annotations");
            }
        }
        assert_eq!(with, without, "the same as without the fallback policy");
    }
    let review = sent(executor(1));
    assert_eq!(with_scheduler_policy(scheduler, &review)["spec"]["schedulerName"], "yunikorn");
    let elsewhere = sent(executor(1).namespace("elsewhere"));
    assert_eq!(with_scheduler_policy(scheduler, &elsewhere), elsewhere["request"]["object"]);
}

#[tokio::test]
async fn real_api_server_accepts_fallback_and_sets_owner_of_executors() {
    let Some(cluster) = Cluster::start_evaluating().await else { return };
    // It compiles what the crate evaluates in the other tests.
    for policies in [Policies::default(), volcano()] {
        for manifest in objects(&policies, false) {
            let (api, object) = cluster.admission_policy(&manifest);
            api.create(&PostParams { dry_run: true, ..PostParams::default() }, &object).await.unwrap();
        }
    }
    let team = Match { namespaces: vec![Pattern::new("t-*")], ..Match::everything() };
    let one = Policy { queue: Some("root.a".into()), matches: team, ..policy("yunikorn") };
    let policies = only_never(one, &["system:serviceaccount:*:syncer"]);
    for manifest in objects(&policies, true) {
        cluster.create_admission_policy(&manifest).await;
    }
    let driver = cluster.pod_by(&cluster.client, &pod("nb-driver").driver_of(APP)).await;
    let by_driver = cluster.client_of_pod(&driver).await;
    let try_it = async |client: &kube::Client, pod: &PodBuilder| cluster.dry_run(client, pod).await.unwrap();
    eventually("the policy is evaluated", async || {
        try_it(&by_driver, &executor(1)).await["metadata"].get("ownerReferences").is_some()
    })
    .await;
    let created = try_it(&by_driver, &executor(1)).await;
    let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": "nb-driver",
        "uid": driver.metadata.uid.clone().unwrap(), "controller": true});
    assert_eq!(created["metadata"]["ownerReferences"], json!([owner]));
    assert_eq!(created["spec"]["schedulerName"], "yunikorn");
    assert_eq!(created["metadata"]["annotations"]["spark-usher.io/by"], "fallback");
    // With another owner that is not a controller, and with annotations.
    let mut two = executor(2).annotation("note", "x");
    two.0["metadata"]["ownerReferences"] =
        json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": "c-1"}]);
    let created = try_it(&by_driver, &two).await;
    assert_eq!(created["metadata"]["ownerReferences"][1], owner);
    assert_eq!(created["metadata"]["annotations"], json!({"note": "x", "spark-usher.io/by": "fallback"}));
    // No effect with a controller, a creator without a pod, another scheduler, Volcano without a gang, or another kind of pod.
    let owned = executor(3).owned_by("StatefulSet", "s", "s-1");
    assert_eq!(try_it(&by_driver, &owned).await["metadata"]["ownerReferences"].as_array().unwrap().len(), 1);
    assert!(try_it(&cluster.client, &executor(4)).await["metadata"].get("ownerReferences").is_none());
    let elsewhere = try_it(&by_driver, &executor(5).spec("schedulerName", "mine")).await;
    assert_eq!(elsewhere["spec"]["schedulerName"], "mine");
    let volcano = try_it(&by_driver, &executor(6).spec("schedulerName", "volcano")).await;
    assert!(volcano["metadata"].get("ownerReferences").is_none());
    let other = try_it(&by_driver, &pod("web").label("app", "web")).await;
    assert_eq!(other["spec"]["schedulerName"], "default-scheduler");
}
