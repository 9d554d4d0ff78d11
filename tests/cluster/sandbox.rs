//! The in-memory API, compared with a kube-apiserver as far as clients can observe it: over HTTPS, by a real client. Tests that
//! do not depend on the sandbox also run on a real kube-apiserver (`KUBEBUILDER_ASSETS`), which defines the expected behaviour.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::cluster::{Cluster, eventually};
use crate::support::https::{Endpoint, Setup};
use crate::support::*;
use base64::Engine;
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Event, Pod};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use usher_core::admission::Operation;
use usher_core::reason::Reason;
use usher_server::http::handlers::{Find, Handler, ReviewResponse, Unobserved};
use usher_server::http::metrics::ReviewOutcome;

fn map(name: &str, labels: Value, data: Value) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name, "labels": labels}, "data": data})).unwrap()
}

fn maps(cluster: &Cluster) -> Api<ConfigMap> {
    Api::namespaced(cluster.client.clone(), &cluster.namespace)
}

fn code(error: &kube::Error) -> u16 {
    match error {
        kube::Error::Api(status) => status.code,
        other => panic!("{other}"),
    }
}

async fn error_of<T: std::fmt::Debug>(outcome: impl Future<Output = kube::Result<T>>) -> (u16, String) {
    match outcome.await.unwrap_err() {
        kube::Error::Api(status) => (status.code, status.reason.clone()),
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn objects_are_created_read_updated_and_deleted_with_optimistic_concurrency() {
    let cluster = Cluster::start().await;
    let maps = maps(&cluster);
    let created = maps.create(&PostParams::default(), &map("a", json!({}), json!({"k": "1"}))).await.unwrap();
    assert!(created.uid().is_some() && created.resource_version().is_some() && created.creation_timestamp().is_some());
    let again = error_of(maps.create(&PostParams::default(), &map("a", json!({}), json!({})))).await;
    assert_eq!(again, (409, "AlreadyExists".into()));

    let mut changed = created.clone();
    changed.data = Some([("k".to_owned(), "2".to_owned())].into());
    let now = maps.replace("a", &PostParams::default(), &changed).await.unwrap();
    assert_ne!(now.resource_version(), created.resource_version());
    let stale = error_of(maps.replace("a", &PostParams::default(), &changed)).await;
    assert_eq!(stale, (409, "Conflict".into()), "the resourceVersion is outdated");
    let same = maps.replace("a", &PostParams::default(), &now).await.unwrap();
    assert_eq!(same.resource_version(), now.resource_version(), "no change, no new version");

    let dry = PostParams { dry_run: true, ..PostParams::default() };
    maps.create(&dry, &map("never", json!({}), json!({}))).await.unwrap();
    assert_eq!(error_of(maps.get("never")).await, (404, "NotFound".into()));

    let wrong = DeleteParams {
        preconditions: Some(kube::api::Preconditions { uid: Some("other".into()), resource_version: None }),
        ..DeleteParams::default()
    };
    assert_eq!(error_of(maps.delete("a", &wrong)).await.0, 409);
    maps.delete("a", &DeleteParams::default()).await.unwrap();
    assert_eq!(error_of(maps.get("a")).await.0, 404);
    let bad = error_of(maps.create(&PostParams::default(), &map("Not_A_Name", json!({}), json!({})))).await;
    assert_eq!(bad, (422, "Invalid".into()));
}

#[tokio::test]
async fn lists_select_by_labels_and_fields_and_paginate() {
    let cluster = Cluster::start().await;
    let maps = maps(&cluster);
    for (name, tier) in [("a", "x"), ("b", "y"), ("c", "x"), ("d", "z")] {
        maps.create(&PostParams::default(), &map(name, json!({"tier": tier}), json!({}))).await.unwrap();
    }
    let names = async |params: ListParams| {
        let found = maps.list(&params).await.unwrap().items;
        found.iter().map(ResourceExt::name_any).filter(|name| name.len() == 1).collect::<Vec<_>>()
    };
    assert_eq!(names(ListParams::default().labels("tier=x")).await, ["a", "c"]);
    assert_eq!(names(ListParams::default().labels("tier in (y, z)")).await, ["b", "d"]);
    assert_eq!(names(ListParams::default().labels("tier,tier!=x")).await, ["b", "d"]);
    assert_eq!(names(ListParams::default().labels("tier notin (x),tier")).await, ["b", "d"]);
    assert_eq!(names(ListParams::default().fields("metadata.name=c")).await, ["c"]);
    assert_eq!(error_of(maps.list(&ListParams::default().labels("a b"))).await.0, 400);
    assert_eq!(error_of(maps.list(&ListParams::default().fields("data.k=1"))).await.0, 400);

    let first = maps.list(&ListParams::default().labels("tier").limit(3)).await.unwrap();
    assert_eq!(first.items.len(), 3);
    let token = first.metadata.continue_.unwrap();
    let rest = maps.list(&ListParams::default().labels("tier").limit(3).continue_token(&token)).await.unwrap();
    assert_eq!(rest.items.iter().map(ResourceExt::name_any).collect::<Vec<_>>(), ["d"]);
    assert_eq!(rest.metadata.continue_.unwrap_or_default(), "");
}

#[tokio::test]
async fn watch_sends_each_change_after_listed_version_once() {
    let cluster = Cluster::start().await;
    let maps = maps(&cluster);
    maps.create(&PostParams::default(), &map("old", json!({"w": "1"}), json!({}))).await.unwrap();
    let version = maps.list(&ListParams::default()).await.unwrap().metadata.resource_version.unwrap();
    let params = WatchParams::default().labels("w").timeout(20);
    let mut events = maps.watch(&params, &version).await.unwrap().boxed();
    maps.create(&PostParams::default(), &map("new", json!({"w": "1"}), json!({}))).await.unwrap();
    maps.create(&PostParams::default(), &map("other", json!({}), json!({}))).await.unwrap();
    let relabel = |labels: Value| Patch::Merge(json!({"metadata": {"labels": labels}}));
    maps.patch("other", &PatchParams::default(), &relabel(json!({"w": "2"}))).await.unwrap();
    maps.patch("new", &PatchParams::default(), &relabel(json!({"x": "1"}))).await.unwrap();
    maps.patch("new", &PatchParams::default(), &relabel(json!({"w": null}))).await.unwrap();
    maps.delete("old", &DeleteParams::default()).await.unwrap();
    let mut observed = Vec::new();
    while observed.len() < 5 {
        observed.push(match events.try_next().await.unwrap().unwrap() {
            WatchEvent::Added(map) => format!("added {}", map.name_any()),
            WatchEvent::Modified(map) => format!("modified {}", map.name_any()),
            WatchEvent::Deleted(map) => format!("deleted {}", map.name_any()),
            WatchEvent::Bookmark(_) => continue,
            WatchEvent::Error(status) => panic!("{status:?}"),
        });
    }
    // For a watch with a selector, an object that begins to match is added, and one that ceases to match is deleted.
    assert_eq!(observed, ["added new", "added other", "modified new", "deleted new", "deleted old"]);
}

#[tokio::test]
async fn watch_from_compacted_version_gets_410() {
    let cluster = Cluster::start().await;
    let Some(sandbox) = cluster.sandbox() else { return };
    let maps = maps(&cluster);
    let version = maps.list(&ListParams::default()).await.unwrap().metadata.resource_version.unwrap();
    maps.create(&PostParams::default(), &map("a", json!({}), json!({}))).await.unwrap();
    sandbox.compact();
    let status_code = match maps.watch(&WatchParams::default(), &version).await {
        Err(error) => code(&error),
        Ok(events) => match events.boxed().try_next().await {
            Ok(Some(WatchEvent::Error(status))) => status.code,
            other => panic!("{other:?}"),
        },
    };
    assert_eq!(status_code, 410);
}

#[tokio::test]
async fn json_merge_strategic_and_apply_patches_are_applied() {
    let cluster = Cluster::start().await;
    let pods = cluster.pods();
    cluster.pod_by(&cluster.client, &pod("p").label("a", "1").owned_by("ConfigMap", "none", "gone")).await;
    let params = PatchParams::default();
    let json_patch: json_patch::Patch =
        serde_json::from_value(json!([{"op": "test", "path": "/metadata/labels/a", "value": "1"},
            {"op": "replace", "path": "/metadata/labels/a", "value": "2"}]))
        .unwrap();
    let patched = pods.patch("p", &params, &Patch::Json::<()>(json_patch.clone())).await.unwrap();
    assert_eq!(patched.labels()["a"], "2");
    assert_eq!(
        error_of(pods.patch("p", &params, &Patch::Json::<()>(json_patch))).await.0,
        422,
        "the test operation fails now"
    );
    let patched =
        pods.patch("p", &params, &Patch::Merge(json!({"metadata": {"labels": {"a": null, "b": "1"}}}))).await.unwrap();
    assert_eq!(patched.labels().get("a"), None);
    // Strategic: containers are merged by name, owners by uid.
    let strategic = json!({"spec": {"containers": [{"name": "main", "image": "other"}]},
        "metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "q", "uid": "two"}]}});
    let patched = pods.patch("p", &params, &Patch::Strategic(strategic)).await.unwrap();
    let spec = patched.spec.as_ref().unwrap();
    assert_eq!((spec.containers.len(), spec.containers[0].image.as_deref()), (1, Some("other")));
    assert!(spec.containers[0].resources.is_some(), "the other fields stay");
    assert_eq!(patched.owner_references().len(), 2);
    let stale = json!({"metadata": {"resourceVersion": "1", "labels": {"c": "1"}}});
    assert_eq!(error_of(pods.patch("p", &params, &Patch::Merge(stale))).await.0, 409);
    let foreign = json!({"metadata": {"uid": "other", "labels": {"c": "1"}}});
    assert_eq!(error_of(pods.patch("p", &params, &Patch::Merge(foreign))).await.0, 422, "a uid is immutable");
    let immutable = json!({"spec": {"schedulerName": "another"}});
    assert_eq!(error_of(pods.patch("p", &params, &Patch::Merge(immutable))).await, (422, "Invalid".into()));
    let applied = maps(&cluster)
        .patch(
            "m",
            &PatchParams::apply("test"),
            &Patch::Apply(
                json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": {"a": "1"}}),
            ),
        )
        .await
        .unwrap();
    assert_eq!(applied.data.unwrap()["a"], "1");
}

#[tokio::test]
async fn status_is_written_only_by_status_subresource() {
    let cluster = Cluster::start().await;
    let created = cluster.pod_by(&cluster.client, &pod("p").phase("Running")).await;
    assert_eq!(created.status.as_ref().unwrap().phase.as_deref(), Some("Pending"), "the creator cannot set the status");
    let pods = cluster.pods();
    let sent = json!({"metadata": {"labels": {"a": "1"}}, "status": {"phase": "Running", "podIP": "10.0.0.9"}});
    pods.patch("p", &PatchParams::default(), &Patch::Merge(&sent)).await.unwrap();
    assert_eq!(pods.get("p").await.unwrap().status.unwrap().phase.as_deref(), Some("Pending"));
    let by_status = pods.patch_status("p", &PatchParams::default(), &Patch::Merge(&sent)).await.unwrap();
    assert_eq!(by_status.status.unwrap().phase.as_deref(), Some("Running"));
    let found = pods.list(&ListParams::default().fields("status.podIP=10.0.0.9,status.phase=Running")).await.unwrap();
    assert_eq!(found.items.len(), 1);
}

#[tokio::test]
async fn second_lease_update_from_same_version_conflicts() {
    let cluster = Cluster::start().await;
    let leases: Api<Lease> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let lease: Lease = serde_json::from_value(json!({"metadata": {"name": "l"}, "spec": {"holderIdentity": "a",
        "renewTime": "2026-11-21T00:00:00.000001Z", "leaseDurationSeconds": 15}}))
    .unwrap();
    let created = leases.create(&PostParams::default(), &lease).await.unwrap();
    let write = async |holder: &str| {
        let mut next = created.clone();
        next.spec.as_mut().unwrap().holder_identity = Some(holder.to_owned());
        leases.replace("l", &PostParams::default(), &next).await
    };
    write("b").await.unwrap();
    assert_eq!(error_of(write("c")).await, (409, "Conflict".into()));
    assert_eq!(leases.get("l").await.unwrap().spec.unwrap().holder_identity.as_deref(), Some("b"));
}

#[tokio::test]
async fn event_of_events_api_is_served_by_core_api() {
    let cluster = Cluster::start().await;
    let event = json!({"apiVersion": "events.k8s.io/v1", "kind": "Event",
        "metadata": {"name": "p.1", "namespace": cluster.namespace}, "eventTime": "2026-11-21T00:00:00.000000Z",
        "reportingController": "spark-usher", "reportingInstance": "one", "action": "Reported", "reason": "GangLowered",
        "note": "what happened", "type": "Normal",
        "regarding": {"apiVersion": "v1", "kind": "Pod", "name": "p", "namespace": cluster.namespace, "uid": "u"}});
    cluster.create(event).await;
    let events: Api<Event> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let found = events.list(&ListParams::default().fields("involvedObject.name=p")).await.unwrap().items;
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].message.as_deref(), Some("what happened"));
    assert_eq!(found[0].involved_object.uid.as_deref(), Some("u"));
    assert_eq!(found[0].reporting_component.as_deref(), Some("spark-usher"));
}

#[tokio::test]
async fn custom_resources_are_validated_and_pruned() {
    let cluster = Cluster::start().await;
    cluster.serve_groups("scheduling.volcano.sh", "v1beta1").await;
    let group = |spec: Value| {
        json!({"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup",
        "metadata": {"name": "g", "namespace": cluster.namespace}, "spec": spec})
    };
    let wrong = error_of(cluster.create_as(&cluster.client, group(json!({"minMember": "three"})))).await;
    assert_eq!(wrong, (422, "Invalid".into()));
    let created = cluster.create(group(json!({"minMember": 3, "unknownField": 1}))).await;
    assert_eq!(created.data["spec"], json!({"minMember": 3}), "fields that are not in the schema are dropped");
}

#[tokio::test]
async fn pod_token_identifies_pod_and_is_rejected_after_its_deletion() {
    let cluster = Cluster::start().await;
    let driver = cluster.pod_by(&cluster.client, &pod("driver")).await;
    let client = cluster.client_of_pod(&driver).await;
    let who = async |client: &Client| {
        let api: Api<SelfSubjectReview> = Api::all(client.clone());
        api.create(&PostParams::default(), &SelfSubjectReview::default()).await
    };
    let info = who(&client).await.unwrap().status.unwrap().user_info.unwrap();
    assert_eq!(info.username, Some(format!("system:serviceaccount:{}:spark", cluster.namespace)));
    let extra = info.extra.unwrap();
    assert_eq!(extra["authentication.kubernetes.io/pod-name"], ["driver"]);
    assert_eq!(extra["authentication.kubernetes.io/pod-uid"], [driver.uid().unwrap()]);
    if cluster.sandbox().is_some() {
        cluster.kill("driver").await;
        assert_eq!(who(&client).await.map_err(|error| code(&error)).unwrap_err(), 401);
    }
    let unauthenticated = cluster.client_of("no such token");
    assert_eq!(who(&unauthenticated).await.map_err(|error| code(&error)).unwrap_err(), 401);
}

#[tokio::test]
async fn object_is_deleted_after_its_last_owner() {
    let cluster = Cluster::start().await;
    if !cluster.has_garbage_collector {
        eprintln!("SKIPPED: requires kube-controller-manager in KUBEBUILDER_ASSETS: it runs the garbage collector");
        return;
    }
    let (a, b) = (cluster.pod_by(&cluster.client, &pod("a")).await, cluster.pod_by(&cluster.client, &pod("b")).await);
    let owner =
        |pod: &Pod| json!({"apiVersion": "v1", "kind": "Pod", "name": pod.name_any(), "uid": pod.uid().unwrap()});
    let mut both = map("both", json!({}), json!({}));
    both.metadata.owner_references = Some(serde_json::from_value(json!([owner(&a), owner(&b)])).unwrap());
    let mut one = map("one", json!({}), json!({}));
    one.metadata.owner_references = Some(serde_json::from_value(json!([owner(&a)])).unwrap());
    let mut wrong = map("wrong-uid", json!({}), json!({}));
    wrong.metadata.owner_references = Some(
        serde_json::from_value(json!([{"apiVersion": "v1", "kind": "Pod", "name": "b", "uid": "other"}])).unwrap(),
    );
    let maps = maps(&cluster);
    for created in [&both, &one, &wrong] {
        maps.create(&PostParams::default(), created).await.unwrap();
    }
    let is_there = async |name: &str| maps.get_opt(name).await.unwrap().is_some();
    eventually("the object with a wrong owner uid is deleted", async || !is_there("wrong-uid").await).await;
    cluster.kill("a").await;
    eventually("the object without a remaining owner is deleted", async || !is_there("one").await).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(is_there("both").await, "one owner remains");
    cluster.kill("b").await;
    eventually("the object is deleted after its last owner", async || !is_there("both").await).await;
}

/// A webhook that responds with this patch and records its reviews.
struct Scripted {
    patch: Value,
    allowed: bool,
    slow: Duration,
    reviews: Arc<Mutex<Vec<Value>>>,
}

impl Handler for Scripted {
    fn answer(&self, body: &[u8], _: Find<'_>) -> Result<ReviewResponse, Unobserved> {
        let review: Value = serde_json::from_slice(body).unwrap();
        std::thread::sleep(self.slow);
        let mut response =
            json!({"uid": review["request"]["uid"], "allowed": self.allowed, "warnings": ["be careful"]});
        if !self.allowed {
            response["status"] = json!({"message": "not today", "code": 403});
        } else if self.patch != json!([]) {
            let patch = base64::engine::general_purpose::STANDARD.encode(self.patch.to_string());
            response["patchType"] = "JSONPatch".into();
            response["patch"] = patch.into();
        }
        self.reviews.lock().unwrap().push(review);
        let answer = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response});
        Ok(ReviewResponse {
            body: Ok(answer.to_string().into_bytes()),
            operation: Operation::Create,
            outcome: ReviewOutcome::Allowed,
            reason: Reason::NotSpark,
            how: None,
        })
    }
}

struct Hook {
    endpoint: Endpoint,
    reviews: Arc<Mutex<Vec<Value>>>,
}

fn hook(patch: Value, allowed: bool, slow: Duration) -> Hook {
    let reviews = Arc::<Mutex<Vec<Value>>>::default();
    let answer: Arc<dyn Handler> = Arc::new(Scripted { patch, allowed, slow, reviews: reviews.clone() });
    Hook { endpoint: Setup { answer: Some(answer), ..Setup::default() }.start(), reviews }
}

impl Hook {
    fn entry(&self, cluster: &Cluster, name: &str) -> Value {
        let ca = base64::engine::general_purpose::STANDARD.encode(self.endpoint.authority.pem());
        json!({"name": name, "admissionReviewVersions": ["v1"], "sideEffects": "None", "failurePolicy": "Fail",
            "timeoutSeconds": 1, "clientConfig": {"url": self.endpoint.url("/mutate"), "caBundle": ca},
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": cluster.namespace}},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"], "operations": ["CREATE"]}]})
    }

    fn calls(&self) -> usize {
        self.reviews.lock().unwrap().len()
    }
}

async fn register(cluster: &Cluster, name: &str, hooks: Vec<Value>) {
    let name = format!("{name}-{}", cluster.namespace);
    let object = json!({"metadata": {"name": name}, "webhooks": hooks});
    let api: Api<MutatingWebhookConfiguration> = Api::all(cluster.client.clone());
    api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
    if cluster.is_real() {
        // The API server's own cache is a moment late.
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
}

fn add(key: &str, value: &str) -> Value {
    json!([{"op": "add", "path": format!("/data/{key}"), "value": value}])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn webhooks_are_called_in_name_order_and_reinvoked_if_needed() {
    let cluster = Cluster::start().await;
    let (first, second) =
        (hook(add("first", "1"), true, Duration::ZERO), hook(add("second", "1"), true, Duration::ZERO));
    let mut early = first.entry(&cluster, "first.test.io");
    early["reinvocationPolicy"] = "IfNeeded".into();
    register(&cluster, "b-later", vec![second.entry(&cluster, "second.test.io")]).await;
    register(&cluster, "a-early", vec![early]).await;
    let created = maps(&cluster).create(&PostParams::default(), &map("m", json!({}), json!({"k": "v"}))).await.unwrap();
    let data = created.data.unwrap();
    assert_eq!((data["first"].as_str(), data["second"].as_str()), ("1", "1"));
    assert_eq!(
        (first.calls(), second.calls()),
        (2, 1),
        "the first webhook is called again, because the second one changed the object"
    );
    let reviews = first.reviews.lock().unwrap().clone();
    assert_eq!(reviews[0]["request"]["object"]["data"], json!({"k": "v"}));
    assert_eq!(reviews[1]["request"]["object"]["data"]["second"], "1");
    assert_eq!(reviews[0]["request"]["operation"], "CREATE");
    assert_eq!(reviews[0]["request"]["resource"], json!({"group": "", "version": "v1", "resource": "configmaps"}));
    assert_ne!(reviews[0]["request"]["uid"], reviews[1]["request"]["uid"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn webhooks_are_called_for_matching_rules_and_selectors_only() {
    let cluster = Cluster::start().await;
    let seen = hook(json!([]), true, Duration::ZERO);
    let mut entry = seen.entry(&cluster, "seen.test.io");
    entry["objectSelector"] =
        json!({"matchExpressions": [{"key": "spark-role", "operator": "In", "values": ["executor"]}]});
    register(&cluster, "seen", vec![entry]).await;
    let maps = maps(&cluster);
    maps.create(&PostParams::default(), &map("a", json!({}), json!({}))).await.unwrap();
    assert_eq!(seen.calls(), 0, "the label does not match");
    maps.create(&PostParams::default(), &map("b", json!({"spark-role": "executor"}), json!({}))).await.unwrap();
    assert_eq!(seen.calls(), 1);
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    maps.create(&dry, &map("c", json!({"spark-role": "executor"}), json!({}))).await.unwrap();
    assert_eq!(seen.reviews.lock().unwrap()[1]["request"]["dryRun"], true);
    maps.delete("b", &DeleteParams::default()).await.unwrap();
    assert_eq!(seen.calls(), 2, "no rule for DELETE");
    let elsewhere: Api<ConfigMap> = Api::namespaced(cluster.client.clone(), "default");
    let other = map(&format!("m-{}", cluster.namespace), json!({"spark-role": "executor"}), json!({}));
    elsewhere.create(&PostParams::default(), &other).await.unwrap();
    assert_eq!(seen.calls(), 2, "another namespace");
    elsewhere.delete(&other.name_any(), &DeleteParams::default()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_webhook_call_follows_failure_policy_and_denial_rejects() {
    let cluster = Cluster::start().await;
    let maps = maps(&cluster);
    let broken = hook(json!([{"op": "remove", "path": "/data/none"}]), true, Duration::ZERO);
    let slow = hook(json!([]), true, Duration::from_millis(1500));
    let strict = hook(json!([]), false, Duration::ZERO);
    let with = |entry: &mut Value, label: &str, policy: &str| {
        entry["objectSelector"] = json!({"matchLabels": {"for": label}});
        entry["failurePolicy"] = policy.into();
    };
    let mut entries = Vec::new();
    for (hook, label, policy) in [
        (&broken, "broken", "Ignore"),
        (&slow, "slow-ignored", "Ignore"),
        (&slow, "slow", "Fail"),
        (&strict, "strict", "Ignore"),
    ] {
        let mut entry = hook.entry(&cluster, &format!("{label}.test.io"));
        with(&mut entry, label, policy);
        entries.push(entry);
    }
    let mut unavailable = strict.entry(&cluster, "unavailable.test.io");
    unavailable["clientConfig"]["url"] = "https://127.0.0.1:1/mutate".into();
    with(&mut unavailable, "unavailable", "Fail");
    entries.push(unavailable.clone());
    unavailable["name"] = "unavailable-ignored.test.io".into();
    with(&mut unavailable, "unavailable-ignored", "Ignore");
    entries.push(unavailable);
    register(&cluster, "all", entries).await;
    let create = async |label: &str| {
        maps.create(&PostParams::default(), &map(label, json!({"for": label}), json!({"k": "v"}))).await
    };
    // With either failurePolicy, the API server rejects the object if a patch does not apply.
    assert_eq!(error_of(create("broken")).await.0, 500);
    create("slow-ignored").await.unwrap();
    assert_eq!(error_of(create("slow")).await.0, 500);
    assert_eq!(error_of(create("unavailable")).await.0, 500);
    create("unavailable-ignored").await.unwrap();
    let error = create("strict").await.unwrap_err();
    assert_eq!(code(&error), 403);
    assert!(error.to_string().contains("not today"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn webhook_of_service_is_called_through_endpoints_by_service_name() {
    let cluster = Cluster::start().await;
    if cluster.is_real() {
        eprintln!("SKIPPED: a kube-apiserver rejects endpoints on loopback");
        return;
    }
    let hook = hook(add("through", "service"), true, Duration::ZERO);
    let port = hook.endpoint.address.port();
    let namespace = &cluster.namespace;
    let mut entry = hook.entry(&cluster, "hook.test.io");
    let service = json!({"namespace": namespace, "name": "hook", "path": "/mutate", "port": 443});
    entry["clientConfig"].as_object_mut().unwrap().remove("url");
    entry["clientConfig"]["service"] = service;
    register(&cluster, "hook", vec![entry]).await;
    let create = async |name: &str| {
        maps(&cluster).create(&PostParams::default(), &map(name, json!({}), json!({"k": "v"}))).await
    };
    let error = create("a").await.unwrap_err().to_string();
    assert!(error.contains("service \"hook\" not found"), "{error}");
    cluster
        .create(json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "hook", "namespace": namespace},
            "spec": {"ports": [{"port": 443, "targetPort": port}]}}))
        .await;
    cluster
        .create(json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"name": "hook-1", "namespace": namespace, "labels": {"kubernetes.io/service-name": "hook"}},
            "endpoints": [{"addresses": ["127.0.0.1"]}], "ports": [{"port": port}]}))
        .await;
    let error = create("b").await.unwrap_err().to_string();
    assert!(error.contains("certificate"), "its certificate is for localhost: {error}");
    let pair = hook.endpoint.authority.serve(&[&format!("hook.{namespace}.svc")], &[]).unwrap();
    let now = usher_runtime::clock::now();
    let fitting = usher_net::tls::load::load(pair.certificate.as_bytes(), pair.key.as_bytes(), now).unwrap();
    hook.endpoint.serving.replace(fitting);
    assert_eq!(create("c").await.unwrap().data.unwrap()["through"], "service");
}

#[tokio::test(flavor = "multi_thread")]
async fn collection_is_deleted_while_its_objects_change() {
    let cluster = Cluster::start().await;
    let all = maps(&cluster);
    for name in ["a", "b", "c"] {
        let mut map = map(name, json!({"set": "s"}), json!({}));
        // They stay, and can be deleted again.
        map.metadata.finalizers = Some(vec!["example.com/wait".into()]);
        all.create(&PostParams::default(), &map).await.unwrap();
    }
    let changes = async {
        for number in 0..100 {
            let patch = json!({"data": {"number": number.to_string()}});
            for name in ["a", "b", "c"] {
                all.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
            }
        }
    };
    let deletions = async {
        for _ in 0..60 {
            all.delete_collection(&DeleteParams::default(), &ListParams::default().labels("set=s")).await.unwrap();
        }
    };
    futures::join!(changes, deletions);
    let patch = json!({"metadata": {"finalizers": null}});
    for name in ["a", "b", "c"] {
        all.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unusual_requests_are_answered_as_by_an_api_server() {
    let cluster = Cluster::start().await;
    let path = format!("/api//v1/namespaces/{}/pods", cluster.namespace);
    let request = axum::http::Request::get(path).body(Vec::new()).unwrap();
    assert!(cluster.client.request_text(request).await.is_err(), "the path has an empty part");
    if cluster.sandbox().is_some() {
        // A real API server's own arithmetic overflows.
        cluster.pod_by(&cluster.client, &pod("p").spec("nodeName", "node-1")).await;
        let path = format!("/api/v1/namespaces/{}/pods/p", cluster.namespace);
        let body = json!({"gracePeriodSeconds": i64::MAX}).to_string().into_bytes();
        let request = axum::http::Request::delete(path).header("content-type", "application/json").body(body).unwrap();
        cluster.client.request_text(request).await.unwrap();
    }
}
