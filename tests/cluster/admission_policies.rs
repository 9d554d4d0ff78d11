//! The leader applies the admission policies of the policy file, follows it, restores what others change, and leaves what a newer
//! version wrote.

use std::time::Duration;

use crate::support::cluster::{Cluster, eventually};
use crate::support::*;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::api::rbac::v1::ClusterRole;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use serde_json::{Value, json};
use usher_core::manifests::installation::{Installation, Kind};
use usher_core::manifests::object::{VALIDATING, VALIDATING_BINDING};
use usher_server::app::App;
use usher_server::cluster::policies::{AdmissionPolicies, live};
use usher_spark::json::text;

/// Which policies a test's replicas manage. The names are the test's own: policies belong to the whole cluster. They belong to a
/// ClusterRole that [`create_owner`] creates.
fn managed(cluster: &Cluster, kinds: &[Kind]) -> AdmissionPolicies {
    AdmissionPolicies {
        installation: Installation {
            name: cluster.namespace.clone(),
            namespaces: vec![
                json!({"key": "kubernetes.io/metadata.name", "operator": "In", "values": [cluster.namespace]}),
            ],
            kinds: kinds.to_vec(),
        },
        owner: Some(format!("ClusterRole/{}", cluster.namespace).parse().unwrap()),
        settle: Duration::from_secs(2),
    }
}

/// Creates the owner of a test's policies. Returns its uid.
async fn create_owner(cluster: &Cluster) -> String {
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": cluster.namespace}, "rules": [],
    });
    cluster.create(role).await.uid().unwrap()
}

/// The objects of this test, by kind and name.
async fn objects(cluster: &Cluster) -> Vec<Value> {
    let prefix = format!("{}.", cluster.namespace);
    let all = live(&cluster.client).await.unwrap().objects;
    all.into_iter().filter(|object| text(object, &["metadata", "name"]).starts_with(&prefix)).collect()
}

/// The names of the policies, without what they have in common; `=` stands before that of a binding.
async fn names(cluster: &Cluster) -> Vec<String> {
    let short = |object: &Value| {
        let name = text(object, &["metadata", "name"]).trim_end_matches(".spark-usher.io");
        let name = name.trim_start_matches(&format!("{}.", cluster.namespace));
        let binding = text(object, &["kind"]).ends_with("Binding");
        format!("{}{name}", if binding { "=" } else { "" })
    };
    let mut names: Vec<String> = objects(cluster).await.iter().map(short).collect();
    names.sort_unstable();
    names
}

async fn assert_become(cluster: &Cluster, expected: &[&str]) {
    eventually(&format!("the policies are {expected:?}"), async || names(cluster).await == expected).await;
}

fn differences(app: &App) -> i64 {
    app.counters().cluster.policies_that_differ()
}

const ENFORCE: &str = "policies: [{name: a, validate: Enforce, queues: [q]}]";

/// A replica that has applied the validating policies of [`ENFORCE`].
async fn enforcing(cluster: &Cluster) -> App {
    create_owner(cluster).await;
    let app = cluster.usher_managing(managed(cluster, &[Kind::Validating]), ENFORCE, "one").await;
    assert_become(cluster, &["=enforce-a", "enforce-a"]).await;
    eventually("nothing differs", async || differences(&app) == 0).await;
    app
}

#[tokio::test]
async fn policies_follow_the_policy_file() {
    let cluster = Cluster::start().await;
    let app = enforcing(&cluster).await;
    cluster.reconfigure("one", "policies: [{name: a, match: {namespaces: [x]}, validate: Warn}]");
    assert_become(&cluster, &["=audit-b", "=warn-b", "audit-b", "warn-b"]).await;
    eventually("nothing differs", async || differences(&app) == 0).await;
    // A file that is refused changes nothing.
    let before = objects(&cluster).await;
    cluster.reconfigure("one", "policies: [{name: a, validate: Sometimes}]");
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(objects(&cluster).await, before);
    cluster.reconfigure("one", ENFORCE);
    assert_become(&cluster, &["=enforce-a", "enforce-a"]).await;
    // With the leader gone they stay.
    app.stop().await.unwrap();
    assert_eq!(names(&cluster).await, ["=enforce-a", "enforce-a"]);
}

fn api(cluster: &Cluster, kind: &str) -> Api<DynamicObject> {
    cluster.admission_policy(&json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {}})).0
}

#[tokio::test]
async fn what_another_client_deletes_or_changes_is_restored_with_an_event() {
    let cluster = Cluster::start().await;
    let app = enforcing(&cluster).await;
    let name = format!("{}.enforce-a.spark-usher.io", cluster.namespace);
    let bindings = api(&cluster, VALIDATING_BINDING);
    let uid = bindings.get(&name).await.unwrap().uid();
    bindings.delete(&name, &DeleteParams::default()).await.unwrap();
    eventually("the binding is restored", async || {
        bindings.get_opt(&name).await.unwrap().is_some_and(|found| found.uid() != uid)
    })
    .await;
    // A condition that excludes everything, by another field manager.
    let policies = api(&cluster, VALIDATING);
    let excluded =
        json!([{"op": "add", "path": "/spec/matchConditions/-", "value": {"name": "never", "expression": "false"}}]);
    let patch = Patch::<()>::Json(serde_json::from_value(excluded).unwrap());
    let params = PatchParams { field_manager: Some("someone".into()), ..PatchParams::default() };
    policies.patch(&name, &params, &patch).await.unwrap();
    eventually("the policy is restored", async || {
        let found = serde_json::to_value(policies.get(&name).await.unwrap()).unwrap();
        found["spec"]["matchConditions"].as_array().unwrap().len() == 1
    })
    .await;
    eventually("Events tell it", async || {
        let events: Api<Event> = Api::namespaced(cluster.client.clone(), "default");
        let found = events.list(&ListParams::default()).await.unwrap().items;
        let of_ours = found.iter().filter(|event| {
            let about = event.regarding.as_ref().and_then(|object| object.name.as_deref());
            event.reason.as_deref() == Some("AdmissionPolicyRestored") && about == Some(&name)
        });
        of_ours.count() == 2
    })
    .await;
    app.stop().await.unwrap();
}

#[tokio::test]
async fn older_replica_leaves_what_a_newer_one_wrote_and_reports_it() {
    let cluster = Cluster::start().await;
    let app = enforcing(&cluster).await;
    let name = format!("{}.enforce-a.spark-usher.io", cluster.namespace);
    let newer = json!({"metadata": {"annotations": {"spark-usher.io/version": "99.0.0"}}});
    api(&cluster, VALIDATING).patch(&name, &PatchParams::default(), &Patch::Merge(&newer)).await.unwrap();
    cluster.reconfigure("one", "policies: [{name: a, validate: Warn}]");
    eventually("the difference is reported", async || differences(&app) == 1).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(names(&cluster).await, ["=enforce-a", "enforce-a"]);
    // An administrator who wants the older version deletes them.
    for kind in [VALIDATING_BINDING, VALIDATING] {
        api(&cluster, kind).delete(&name, &DeleteParams::default()).await.unwrap();
    }
    assert_become(&cluster, &["=warn-a", "warn-a"]).await;
}

#[tokio::test]
async fn replicas_that_only_compare_write_nothing_and_count_differences() {
    let cluster = Cluster::start().await;
    let settings = AdmissionPolicies { owner: None, ..managed(&cluster, &[Kind::Validating]) };
    let app = cluster.usher_managing(settings.clone(), ENFORCE, "one").await;
    eventually("both objects are missing", async || differences(&app) == 2).await;
    assert!(names(&cluster).await.is_empty());
    let policies = usher_config::from_text(&policy_file(ENFORCE)).unwrap().policies;
    let (wanted, refused) = settings.installation.wanted(&policies, &cluster.account().await);
    assert!(refused.is_empty(), "{refused:?}");
    let [first, _] = wanted.validating.unwrap();
    for manifest in &first {
        cluster.create_admission_policy(manifest).await;
    }
    app.stop().await.unwrap();
    let app = cluster.usher_managing(settings, "policies: [{name: a, validate: Warn}]", "two").await;
    eventually("another file differs", async || differences(&app) == 4).await;
    cluster.reconfigure("two", ENFORCE);
    eventually("nothing differs", async || differences(&app) == 0).await;
    assert_eq!(names(&cluster).await, ["=enforce-a", "enforce-a"]);
}

#[tokio::test]
async fn objects_belong_to_their_owner_also_when_it_is_created_anew() {
    let cluster = Cluster::start().await;
    let created = create_owner(&cluster).await;
    let app = cluster.usher_managing(managed(&cluster, &[Kind::Validating]), ENFORCE, "one").await;
    let owned_by = async |uid: &str| {
        let all = objects(&cluster).await;
        all.len() == 2 && all.iter().all(|object| object["metadata"]["ownerReferences"][0]["uid"] == uid)
    };
    eventually("both objects have an owner", async || owned_by(&created).await).await;
    // As `helm upgrade --force` may do. Where a garbage collector runs, it deletes the policies, and the leader writes them again.
    let roles: Api<ClusterRole> = Api::all(cluster.client.clone());
    roles.delete(&cluster.namespace, &DeleteParams::default()).await.unwrap();
    let again = create_owner(&cluster).await;
    // Unless a garbage collector deletes them, the leader sees it with its next poll.
    cluster.reconfigure("one", "policies: [{name: b, validate: Enforce, queues: [q]}]");
    eventually("both have the new owner", async || owned_by(&again).await).await;
    app.stop().await.unwrap();
}

/// As with `rbac.create: false`.
#[tokio::test]
async fn policies_belong_to_a_webhook_configuration_where_the_chart_creates_no_roles() {
    let cluster = Cluster::start().await;
    let configuration = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration", "metadata": {"name": cluster.namespace},
    });
    let uid = cluster.create(configuration).await.uid().unwrap();
    let owner = format!("MutatingWebhookConfiguration/{}", cluster.namespace).parse().unwrap();
    let settings = AdmissionPolicies { owner: Some(owner), ..managed(&cluster, &[Kind::Validating]) };
    let app = cluster.usher_managing(settings, ENFORCE, "one").await;
    eventually("both objects belong to it", async || {
        let all = objects(&cluster).await;
        all.len() == 2 && all.iter().all(|object| object["metadata"]["ownerReferences"][0]["uid"] == *uid)
    })
    .await;
    app.stop().await.unwrap();
}

#[tokio::test]
async fn fallback_follows_the_policy_file_and_nothing_is_written_without_its_owner() {
    let cluster = Cluster::start().await;
    let settings = managed(&cluster, &[Kind::FallbackScheduler]);
    let yunikorn = "policies: [{name: y, scheduler: {type: yunikorn}, queue: root.a}]";
    let app = cluster.usher_managing(settings, yunikorn, "one").await;
    eventually("the missing owner is reported", async || differences(&app) == 5).await;
    assert!(names(&cluster).await.is_empty());
    create_owner(&cluster).await;
    cluster.reconfigure("one", &yunikorn.replace("root.a", "root.b"));
    let both = ["=fallback-owner", "=fallback-scheduler", "fallback-owner", "fallback-scheduler"];
    assert_become(&cluster, &both).await;
    // The API server stores what was applied: nothing is written again.
    eventually("nothing differs", async || differences(&app) == 0).await;
    let before = objects(&cluster).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(objects(&cluster).await, before);
    // No fallback agrees with the webhook.
    cluster.reconfigure("one", "policies: [{name: k, scheduler: {type: kai}, queue: q}]");
    assert_become(&cluster, &[]).await;
    eventually("the reason is reported", async || differences(&app) == 1).await;
}

/// While the policy file changes from one that enforces to another, no request of a kind that both deny is admitted.
#[tokio::test]
async fn no_request_is_unjudged_while_the_policy_file_changes() {
    let Some(cluster) = Cluster::start_evaluating().await else { return };
    create_owner(&cluster).await;
    let settings = AdmissionPolicies { settle: Duration::from_secs(10), ..managed(&cluster, &[Kind::Validating]) };
    let app = cluster.usher_managing(settings, ENFORCE, "one").await;
    assert_become(&cluster, &["=enforce-a", "enforce-a"]).await;
    let driver = cluster.pod_by(&cluster.client, &pod("nb-driver").driver_of(APP)).await;
    let by_driver = cluster.client_of_pod(&driver).await;
    let foreign = executor(1).owned_by("Pod", "other", "9-9");
    let is_denied = async || {
        cluster.dry_run(&by_driver, &foreign).await.is_err_and(|message| message.contains("(OwnerNotCreator)"))
    };
    eventually("the policy is evaluated", async || is_denied().await).await;
    let mut requests = 0;
    for (file, expected) in [
        (
            "policies: [{name: b, match: {namespaces: [x]}, validate: Warn}, {name: c, validate: Enforce, queues: [q]}]",
            &["=enforce-b", "=warn-b", "enforce-b", "warn-b"][..],
        ),
        ("policies: [{name: d, validate: Enforce}]", &["=enforce-a", "enforce-a"]),
    ] {
        cluster.reconfigure("one", file);
        eventually("the new set is in force, alone", async || {
            assert!(is_denied().await, "request {requests} was admitted");
            requests += 1;
            requests % 20 == 19 && names(&cluster).await == expected
        })
        .await;
    }
    app.stop().await.unwrap();
    println!("{requests} requests were denied while the file changed");
}

/// The leader applies the policies of 200 teams, each with a selector of pods: their size, and on a real API server the verdicts about the
/// last teams while no replica runs. Prints how long it takes to apply the objects and to judge a pod.
#[tokio::test]
async fn policies_of_two_hundred_teams_are_applied() {
    let cluster = Cluster::start().await;
    let namespace = &cluster.namespace;
    let policies: Vec<String> = (0..200)
        .map(|number| {
            let mode = ["Audit", "Warn", "Enforce"][number % 3];
            format!(
                "{{name: team-{number}, match: {{namespaces: [\"team-{number}-*\", {namespace}], podSelector: {{matchLabels: {{team: team-{number}}}}}}}, \
                 scheduler: {{type: volcano}}, queues: [\"team-{number}-*\"], validate: {mode}}}"
            )
        })
        .collect();
    let file = format!("policies: [{}]", policies.join(", "));
    let driver = cluster.pod_by(&cluster.client, &pod("nb-driver").driver_of(APP)).await;
    let by_driver = cluster.client_of_pod(&driver).await;
    let of_team = |number: u32, queue: &str| {
        let pod = executor(number).label("team", &format!("team-{number}")).spec("schedulerName", "volcano");
        pod.annotation("scheduling.volcano.sh/queue-name", queue)
    };
    let fifty = async || {
        let begun = std::time::Instant::now();
        for _ in 0..50 {
            cluster.dry_run(&by_driver, &of_team(197, "team-197-a")).await.unwrap();
        }
        begun.elapsed() / 50
    };
    let before = fifty().await;
    create_owner(&cluster).await;
    let begun = std::time::Instant::now();
    let app = cluster.usher_managing(managed(&cluster, &[Kind::Validating]), &file, "one").await;
    assert_become(&cluster, &["=audit-a", "=enforce-a", "=warn-a", "audit-a", "enforce-a", "warn-a"]).await;
    eventually("nothing differs", async || differences(&app) == 0).await;
    println!("the replica started and the set was complete after {:?}", begun.elapsed());
    app.stop().await.unwrap();
    for object in objects(&cluster).await.iter().filter(|object| object["kind"] == VALIDATING) {
        let size = object["spec"].to_string().len();
        println!("{}: {size} bytes", text(object, &["metadata", "name"]));
        assert!(size <= 300_000, "{size}");
    }
    if !cluster.is_real() {
        eprintln!(
            "SKIPPED in part: the sandbox does not evaluate policies: requires KUBEBUILDER_ASSETS, a kube-apiserver"
        );
        return;
    }
    eventually("the policies are evaluated", async || {
        let refused = cluster.dry_run(&by_driver, &of_team(197, "gold")).await.err();
        refused.is_some_and(|message| message.contains("(QueueNotAllowed)"))
    })
    .await;
    // Team 198 has Audit, and team 196 Warn.
    for number in [196, 198] {
        cluster.dry_run(&by_driver, &of_team(number, "gold")).await.unwrap();
    }
    println!("a dry-run creation of an executor takes {before:?}, and with the policies {:?}", fifty().await);
}
