//! `spark-usher doctor --gang`: the real binary against a cluster whose scheduler supports gangs, does not support them, or does
//! not run; and against a real cluster, if `SPARK_USHER_GANG_KUBECONFIG` and `SPARK_USHER_GANG_NAMESPACES` name one.

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::support::cluster::{Cluster, POD_GROUP_KINDS, eventually};
use crate::support::policy_file;
use futures::future::join_all;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::api::{Api, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::ApiResource;
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use usher_sandbox::{Options, Pods, Sandbox};

/// The label of all objects that the doctor creates.
const DOCTOR_LABEL: &str = "app.kubernetes.io/managed-by=spark-usher-doctor";

/// A finished run of the binary.
struct Done {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Done {
    fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {}{}", self.out, self.err))
    }

    /// The result of each scenario.
    fn results(&self) -> Vec<String> {
        let report = self.json();
        let rows = report["scenarios"].as_array().unwrap();
        rows.iter().map(|row| row["result"].as_str().unwrap().to_owned()).collect()
    }
}

fn kubeconfig(cluster: &Cluster) -> PathBuf {
    let path = cluster.folder().join("kubeconfig.yaml");
    std::fs::write(&path, cluster.kubeconfig()).unwrap();
    path
}

fn doctor(kubeconfig: &std::path::Path, namespace: &str, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_spark-usher"));
    command.arg("doctor").arg("--kubeconfig").arg(kubeconfig).args(["--gang", namespace]).args(args);
    command
}

async fn done(mut command: Command) -> Done {
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Done { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

/// Names of the doctor's pods and ConfigMaps, and of all PodGroups of this API.
async fn remaining_objects(client: &Client, namespace: &str, api: Option<(&str, &str)>) -> Vec<String> {
    let params = ListParams::default().labels(DOCTOR_LABEL);
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let mut remaining_objects: Vec<String> =
        pods.list(&params).await.unwrap().items.iter().map(ResourceExt::name_any).collect();
    remaining_objects.extend(maps.list(&params).await.unwrap().items.iter().map(ResourceExt::name_any));
    if let Some((group, version)) = api {
        let resource = ApiResource {
            group: group.into(),
            version: version.into(),
            api_version: format!("{group}/{version}"),
            kind: "PodGroup".into(),
            plural: "podgroups".into(),
        };
        let groups: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
        remaining_objects
            .extend(groups.list(&ListParams::default()).await.unwrap().items.iter().map(ResourceExt::name_any));
    }
    remaining_objects
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_scenarios_succeed_under_every_scheduler_with_pod_groups() {
    let Some(cluster) = Cluster::start_running().await else { return };
    let mut policies = String::from("policies:\n");
    for (kind, api) in POD_GROUP_KINDS {
        if let Some((group, version)) = api {
            cluster.serve_groups(group, version).await;
        }
        let namespace = format!("{}-{kind}", cluster.namespace);
        cluster.add_namespace(&namespace).await;
        policies += &format!(
            "- {{name: {kind}, match: {{namespaces: [{namespace}]}}, scheduler: {{type: {kind}}}, validate: Enforce, strict: true}}\n"
        );
    }
    policies += "- {name: rest, scheduler: {type: volcano}}\n";
    let mut app = cluster.usher(&policies).await;
    app.has_synced().await;
    let (path, file) = (kubeconfig(&cluster), cluster.folder().join("one.yaml"));
    let runs = POD_GROUP_KINDS.map(|(kind, api)| {
        let (cluster, path, file) = (&cluster, &path, file.to_str().unwrap());
        async move {
            let namespace = format!("{}-{kind}", cluster.namespace);
            let done = done(doctor(path, &namespace, &["--config", file, "--wait", "700ms", "-o", "json"])).await;
            let report = done.json();
            assert_eq!(done.code, Some(0), "{kind}: {report:#}");
            assert_eq!(done.results(), ["ok"; 6], "{kind}: {report:#}");
            assert_eq!(report["setup"]["scheduler"], kind);
            for row in report["scenarios"].as_array().unwrap().iter().filter(|row| row["result"] == "ok") {
                let seen = row["seen"].as_array().unwrap();
                assert!(seen.iter().any(|seen| seen["seconds"].as_f64().is_some_and(|s| s > 0.0)), "{kind}: {row}");
            }
            let seen = |row: usize| report["scenarios"][row]["seen"].to_string();
            assert!(
                seen(0).contains("2 executors wait") && seen(0).contains("all 3 executors run"),
                "{kind}: {}",
                seen(0)
            );
            assert!(seen(3).contains("3 executors wait"), "{kind}: {}", seen(3));
            assert!(seen(4).contains("after one of two lost executors was replaced"), "{kind}: {}", seen(4));
            assert!(seen(5).contains("the PodGroup is deleted"), "{kind}: {}", seen(5));
            assert_eq!(remaining_objects(&cluster.client, &namespace, api).await, [""; 0], "{kind}");
        }
    });
    join_all(runs).await;
    app.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn policy_without_pod_groups_runs_only_applicable_scenarios() {
    let Some(cluster) = Cluster::start_running().await else { return };
    let kinds = ["yunikorn", "kai", "none", "kueue", "annotations"];
    let names = kinds.map(|kind| format!("{}-{kind}", cluster.namespace));
    for name in &names {
        cluster.add_namespace(name).await;
    }
    let policies = format!(
        "policies:\n- {{name: yk, match: {{namespaces: [{}]}}, scheduler: {{type: yunikorn}}}}\n\
         - {{name: kai, match: {{namespaces: [{}]}}, scheduler: {{type: kai}}}}\n\
         - {{name: plain, match: {{namespaces: [{}]}}}}\n\
         - {{name: fixed, match: {{namespaces: [{}]}}, scheduler: {{type: kueue}}, queue: q, gang: {{shape: executors}}}}\n\
         - {{name: ko, match: {{namespaces: [{}]}}, scheduler: {{type: koordinator}}, gang: {{membership: annotations}}}}\n\
         - {{name: rest, scheduler: {{type: yunikorn}}}}\n",
        names[0], names[1], names[2], names[3], names[4]
    );
    let mut app = cluster.usher(&policies).await;
    app.has_synced().await;
    let (path, file) = (kubeconfig(&cluster), cluster.folder().join("one.yaml"));
    let file = file.to_str().unwrap();
    for name in &names[..2] {
        // Without the policy file: the mutated driver identifies the policy.
        let done = done(doctor(&path, name, &["-n", "nowhere", "-o", "json"])).await;
        assert_eq!(done.code, Some(0), "{}{}", done.out, done.err);
        assert_eq!(
            done.results(),
            ["not applicable", "not applicable", "not applicable", "not applicable", "not applicable", "ok"]
        );
        assert!(done.out.contains("no Deployment of spark-usher in namespace nowhere"), "{}", done.out);
        assert_eq!(remaining_objects(&cluster.client, name, None).await, [""; 0]);
    }
    let no = "not applicable";
    for (name, results) in [(&names[3], ["ok", no, no, no, "ok", "ok"]), (&names[4], ["ok", no, no, "ok", "ok", "ok"])]
    {
        let done = done(doctor(&path, name, &["--config", file, "--wait", "700ms", "-o", "json"])).await;
        assert_eq!(done.results(), results, "{}{}", done.out, done.err);
        assert!(done.code == Some(0) && done.out.contains("the webhook knows the gang's size"), "{}", done.out);
        assert_eq!(remaining_objects(&cluster.client, name, None).await, [""; 0]);
    }
    let plain = done(doctor(&path, &names[2], &["--config", file])).await;
    assert_eq!(plain.code, Some(0), "{}{}", plain.out, plain.err);
    assert!(plain.out.contains("policy plain creates no gangs"), "{}", plain.out);
    assert!(!plain.out.contains("RESULT"), "{}", plain.out);
    // The same with the policy file from an installation's ConfigMap.
    let pod = json!({
        "containers": [{"name": "c", "image": "i", "args": ["serve", "--webhook-listen=0.0.0.0:8443", "--config=/etc/p/policy.yaml"]}],
        "volumes": [{"name": "p", "configMap": {"name": "policy"}}],
    });
    let labels = json!({"app": "usher"});
    cluster
        .create(json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "u", "namespace": cluster.namespace},
            "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": pod}}}))
        .await;
    let installed = async || done(doctor(&path, &names[2], &["-n", &cluster.namespace])).await;
    let missing = installed().await;
    assert!(missing.code == Some(1) && missing.out.contains("ConfigMap policy does not exist"), "{}", missing.out);
    cluster
        .create(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "policy", "namespace": cluster.namespace},
            "data": {"policy.yaml": policy_file(&policies)}}))
        .await;
    let read = installed().await;
    assert!(read.code == Some(0) && read.out.contains("policy plain creates no gangs"), "{}{}", read.out, read.err);
    app.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_webhook_doctor_fails_and_leaves_only_objects_of_earlier_runs() {
    let cluster = Cluster::start().await;
    let path = kubeconfig(&cluster);
    let file = cluster.folder().join("policy.yaml");
    std::fs::write(
        &file,
        "apiVersion: spark-usher.io/v1alpha1\nkind: PolicyFile\npolicies: [{name: a, scheduler: {type: volcano}}]",
    )
    .unwrap();
    let earlier = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "earlier", "namespace": cluster.namespace,
        "labels": {"app.kubernetes.io/managed-by": "spark-usher-doctor", "app.kubernetes.io/instance": "0123"}}});
    cluster.create(earlier).await;
    let done = done(doctor(&path, &cluster.namespace, &["--config", file.to_str().unwrap()])).await;
    assert_eq!(done.code, Some(1), "{}{}", done.out, done.err);
    assert!(done.out.contains("the webhook did not apply policy a (volcano) to a driver"), "{}", done.out);
    assert!(done.out.contains("→ run spark-usher doctor --dry-run-namespace"), "{}", done.out);
    let removal = format!("kubectl -n {} delete pods,configmaps -l {DOCTOR_LABEL}", cluster.namespace);
    assert!(done.out.contains("configmap/earlier") && done.out.contains(&removal), "{}", done.out);
    assert_eq!(
        remaining_objects(&cluster.client, &cluster.namespace, None).await,
        ["earlier"],
        "an object of another run is not deleted"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn absent_scheduler_fails_the_first_scenario_and_skips_the_rest() {
    let cluster = Cluster::start().await;
    cluster.serve_groups("scheduling.volcano.sh", "v1beta1").await;
    let mut app = cluster.usher("policies: [{name: a, scheduler: {type: volcano}}]").await;
    app.has_synced().await;
    let path = kubeconfig(&cluster);
    let args = ["-n", "nowhere", "--timeout", "1s"];
    let done = done(doctor(&path, &cluster.namespace, &args)).await;
    assert_eq!(done.code, Some(1), "{}{}", done.out, done.err);
    assert!(
        done.out.contains("the driver was not scheduled within 1 s: volcano reports nothing about doctor-"),
        "{}",
        done.out
    );
    assert!(done.out.contains("→ check that the scheduler runs"), "{}", done.out);
    assert_eq!(done.out.lines().filter(|line| line.starts_with("skipped ")).count(), 5, "{}", done.out);
    assert!(done.out.contains("all created objects are deleted"), "{}", done.out);
    assert_eq!(remaining_objects(&cluster.client, &cluster.namespace, None).await, [""; 0]);
    app.stop().await.unwrap();
}

/// A scheduler without gangs: binds every pod of a namespace immediately.
async fn bind_every_pod(client: Client, namespace: String) {
    let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    loop {
        for pod in pods.list(&ListParams::default()).await.unwrap().items {
            if pod.spec.as_ref().unwrap().node_name.is_none() {
                let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod.name_any()},
                    "target": {"apiVersion": "v1", "kind": "Node", "name": "node-1"}});
                let params = PostParams::default();
                // The pod may be deleted meanwhile.
                let _: kube::Result<Value> =
                    pods.create_subresource("binding", &pod.name_any(), &params, &binding).await;
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scheduler_without_gang_support_fails_and_names_required_plugin() {
    let cluster = Cluster::start().await;
    cluster.serve_groups("scheduling.x-k8s.io", "v1alpha1").await;
    let mut app = cluster.usher("policies: [{name: a, scheduler: {type: coscheduling}}]").await;
    app.has_synced().await;
    let path = kubeconfig(&cluster);
    let scheduler = tokio::spawn(bind_every_pod(cluster.client.clone(), cluster.namespace.clone()));
    let args = ["-n", "nowhere", "--timeout", "10s", "--wait", "2s", "-o", "json"];
    let done = done(doctor(&path, &cluster.namespace, &args)).await;
    scheduler.abort();
    assert_eq!(done.code, Some(1), "{}{}", done.out, done.err);
    let report = done.json();
    let results = done.results();
    assert_eq!(results[0], "failed", "{report:#}");
    let first = &report["scenarios"][0];
    assert!(first["why"].as_str().unwrap().contains("executors were bound"), "{first:#}");
    assert!(first["fix"].as_str().unwrap().contains("the Coscheduling plugin"), "{first:#}");
    assert_eq!(remaining_objects(&cluster.client, &cluster.namespace, None).await, [""; 0]);
    app.stop().await.unwrap();
}

/// A run in the middle of its first scenario: its pods exist and are pending.
async fn start_first_scenario(cluster: &Cluster) -> Child {
    let args = ["-n", "nowhere", "--wait", "1h", "--timeout", "1h"];
    let mut command = doctor(&kubeconfig(cluster), &cluster.namespace, &args);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pods: Api<Pod> = cluster.pods();
    eventually("a driver and two executors exist", async || {
        pods.list(&ListParams::default().labels(DOCTOR_LABEL)).await.unwrap().items.len() == 3
    })
    .await;
    child
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn signal_or_closed_stdout_stops_doctor_and_all_objects_are_deleted() {
    let Some(cluster) = Cluster::start_running().await else { return };
    cluster.serve_groups("scheduling.volcano.sh", "v1beta1").await;
    let mut app = cluster.usher("policies: [{name: a, scheduler: {type: volcano}}]").await;
    app.has_synced().await;
    let volcano = Some(("scheduling.volcano.sh", "v1beta1"));
    for (signal, name) in [("-INT", "SIGINT"), ("-TERM", "SIGTERM")] {
        let mut child = start_first_scenario(&cluster).await;
        assert!(!remaining_objects(&cluster.client, &cluster.namespace, volcano).await.is_empty());
        assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success());
        let mut out = String::new();
        child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(1), "{out}");
        assert!(out.contains(&format!("interrupted by {name} during: two wait, the third starts all")), "{out}");
        assert!(out.contains("all created objects are deleted"), "{out}");
        assert_eq!(remaining_objects(&cluster.client, &cluster.namespace, volcano).await, [""; 0]);
    }
    // A reader that closes the pipe, as head does, is detected at the next row.
    let args = ["-n", "nowhere", "--wait", "300ms", "--timeout", "30s"];
    let mut command = doctor(&kubeconfig(&cluster), &cluster.namespace, &args);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut reader = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while !line.starts_with("RESULT") {
        line.clear();
        assert!(reader.read_line(&mut line).unwrap() > 0);
    }
    drop(reader);
    tokio::task::spawn_blocking(move || child.wait().unwrap()).await.unwrap();
    assert_eq!(remaining_objects(&cluster.client, &cluster.namespace, volcano).await, [""; 0]);
    app.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn undeletable_object_is_reported_with_kubectl_command() {
    let Some(cluster) = Cluster::start_running().await else { return };
    cluster.serve_groups("scheduling.volcano.sh", "v1beta1").await;
    let mut app = cluster.usher("policies: [{name: a, scheduler: {type: volcano}}]").await;
    app.has_synced().await;
    let mut child = start_first_scenario(&cluster).await;
    let maps: Api<ConfigMap> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let map = maps.list(&ListParams::default().labels(DOCTOR_LABEL)).await.unwrap().items.remove(0);
    let held = Patch::Merge(json!({"metadata": {"finalizers": ["example.com/held"]}}));
    maps.patch(&map.name_any(), &PatchParams::default(), &held).await.unwrap();
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let mut out = String::new();
    child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1), "{out}");
    let run = &map.labels()["app.kubernetes.io/instance"];
    let removal = format!(
        "→ kubectl -n {} delete pods,configmaps -l {DOCTOR_LABEL},app.kubernetes.io/instance={run}",
        cluster.namespace
    );
    assert!(
        out.contains(&format!("not deleted in namespace {}: configmap/{}", cluster.namespace, map.name_any())),
        "{out}"
    );
    assert!(out.contains(&removal), "{out}");
    assert_eq!(
        remaining_objects(&cluster.client, &cluster.namespace, None).await,
        [map.name_any()],
        "all other objects are deleted"
    );
    app.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn system_or_missing_namespace_and_invalid_options_are_rejected() {
    let missing = PathBuf::from("/nonexistent/kubeconfig");
    for (namespace, args, why) in [
        ("kube-system", vec![], "it is a system namespace"),
        ("spark-usher", vec![], "spark-usher itself runs there"),
        ("mine", vec!["-n", "mine"], "spark-usher itself runs there"),
    ] {
        let done = done(doctor(&missing, namespace, &args)).await;
        assert_eq!(done.code, Some(1));
        assert!(done.err.contains(why), "{}", done.err);
    }
    let bad = done(doctor(&missing, "a", &["--timeout", "soon"])).await;
    assert!(bad.err.contains("expected a duration such as 60s"), "{}", bad.err);
    let cluster = Cluster::start().await;
    let path = kubeconfig(&cluster);
    let nowhere = done(doctor(&path, "not-there", &[])).await;
    assert!(nowhere.code == Some(1) && nowhere.out.contains("namespace not-there does not exist"), "{}", nowhere.out);
    let account = done(doctor(&path, &cluster.namespace, &["--service-account", "flink"])).await;
    assert!(account.code == Some(1) && account.out.contains("has no ServiceAccount flink"), "{}", account.out);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_permissions_are_reported() {
    usher_net::tls::install_provider();
    let sandbox = Sandbox::start(&Options { authorize: true, pods: Pods::Left, ..Options::default() }).unwrap();
    let admin = sandbox.client(sandbox.admin_token()).unwrap();
    let accounts: Api<k8s_openapi::api::core::v1::ServiceAccount> = Api::namespaced(admin.clone(), "default");
    for name in ["spark", "person"] {
        let account = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
        accounts.create(&PostParams::default(), &account).await.unwrap();
    }
    let request = serde_json::from_value(json!({"spec": {"audiences": []}})).unwrap();
    let issued = accounts.create_token_request("person", &PostParams::default(), &request).await.unwrap();
    let token = issued.status.unwrap().token.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kubeconfig");
    std::fs::write(&path, sandbox.kubeconfig().replace(sandbox.admin_token(), &token)).unwrap();
    let done = done(doctor(&path, "default", &[])).await;
    assert_eq!(done.code, Some(1), "{}{}", done.out, done.err);
    for right in ["create pods", "delete pods", "create configmaps", "create serviceaccounts/token"] {
        assert!(done.out.contains(right), "{right}: {}", done.out);
    }
    sandbox.stop().await.unwrap();
}

/// The same on a real cluster: each named namespace has a policy, and the policy's scheduler must support gangs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn real_schedulers_pass_all_scenarios() {
    let (Ok(path), Ok(namespaces)) =
        (std::env::var("SPARK_USHER_GANG_KUBECONFIG"), std::env::var("SPARK_USHER_GANG_NAMESPACES"))
    else {
        #[expect(clippy::print_stderr, reason = "a skipped test prints this")]
        {
            eprintln!(
                "SKIPPED: requires SPARK_USHER_GANG_KUBECONFIG and SPARK_USHER_GANG_NAMESPACES, which name a cluster with real schedulers"
            );
        }
        return;
    };
    let mut failed = Vec::new();
    for namespace in namespaces.split(',') {
        let done = done(doctor(&PathBuf::from(&path), namespace, &[])).await;
        #[expect(clippy::print_stderr, reason = "the table is the result")]
        {
            eprintln!("{namespace}\n{}{}", done.out, done.err);
        }
        if done.code != Some(0) || !done.out.contains("RESULT") {
            failed.push(namespace);
        }
    }
    assert_eq!(failed, [""; 0]);
}
