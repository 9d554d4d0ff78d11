//! What a person learns without a port-forward of their own: from the leader, which the command line finds and reaches through the API
//! server, or, without the rights to do that, from what their account may read in one namespace.

use std::collections::BTreeSet;
use std::path::Path;

use kube::api::DeleteParams;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::support::cluster::{Cluster, eventually};
use crate::support::operator::{finished, kubeconfig};
use crate::support::process::program;
use crate::support::{executor, pod};

/// A command with this kubeconfig, whose context names no namespace.
async fn ask(kubeconfig: &str, arguments: &[&str]) -> (Option<i32>, String, String) {
    let mut command = std::process::Command::new(program());
    command.args(arguments).args(["--kubeconfig", kubeconfig]);
    finished(command).await
}

/// A kubeconfig with this token and this namespace in its context.
fn kubeconfig_of(cluster: &Cluster, name: &str, token: &str, namespace: &str) -> String {
    let mut config: Value = serde_saphyr::from_str(&cluster.kubeconfig()).unwrap();
    config["users"][0]["user"] = json!({"token": token});
    config["contexts"][0]["context"]["namespace"] = json!(namespace);
    let path = cluster.folder().join(format!("{name}.kubeconfig")).display().to_string();
    std::fs::write(&path, serde_json::to_string(&config).unwrap()).unwrap();
    path
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_find_the_leader_and_ask_it_through_the_api_server() {
    let cluster = Cluster::start().await;
    if cluster.is_real() {
        return println!("skipped: there is no kubelet that forwards connections");
    }
    let mut leader = cluster.usher_named("", "usher-0_1a2b").await;
    leader.has_synced().await;
    let port = leader.debug().unwrap().port();
    let arguments = json!([{"name": "c", "image": "i", "args": ["serve", format!("--debug-listen=127.0.0.1:{port}")]}]);
    cluster.pod_by(&cluster.client, &pod("usher-0").spec("containers", arguments)).await;
    cluster.run_at("usher-0", "127.0.0.1").await;
    // Its Lease names it.
    cluster.pod_by(&cluster.client, &executor(1)).await;
    cluster.phase("nb-exec-1", "Running").await;
    let path = kubeconfig(&cluster);
    let namespace = cluster.namespace.as_str();
    let asked = async |arguments: &[&str]| {
        ask(&path, &[arguments, &["-n", namespace, "--usher-namespace", namespace]].concat()).await
    };
    eventually("the leader answers", async || {
        let (_, out, err) = asked(&["apps", "-o", "name"]).await;
        err.is_empty() && out.contains(namespace)
    })
    .await;
    // A replica that is named may be one of another cluster than the context's: its namespaces do not follow the context.
    let elsewhere = kubeconfig_of(&cluster, "elsewhere", "a-token", "elsewhere");
    let (_, out, err) =
        ask(&elsewhere, &["apps", "-o", "name", "--replica", &format!("http://127.0.0.1:{port}")]).await;
    assert!(out.contains(namespace), "{out}{err}");
    // Only a replica that watched it knows an executor that is gone.
    cluster.pods().delete("nb-exec-1", &DeleteParams::default().grace_period(0)).await.unwrap();
    eventually("the exit is known", async || {
        let (code, out, _) = asked(&["why", "nb-exec-1"]).await;
        code == Some(0) && out.contains("cause     deleted")
    })
    .await;
    let (code, out, err) = asked(&["why", "nb-exec-1", "--no-leader"]).await;
    assert!(code == Some(1) && err.contains("no Spark pod and no application"), "{out}{err}");
    let (code, out, err) = asked(&["cost"]).await;
    assert!(code == Some(0) && out.contains("nothing measured"), "{out}{err}");
    let (code, out, err) = asked(&["nodes"]).await;
    assert!(code == Some(0) && !err.contains("the leader knows more"), "{out}{err}");
    assert!(out.contains("no executor failed by the fault of a node") && !out.contains("in namespace"), "{out}");
    let (_, _, err) = asked(&["why", "no-such-pod"]).await;
    assert!(err.contains("since when this replica remembers exits"), "{err}");
    // The port that its pod states is not open.
    let closed = json!([{"name": "c", "image": "i", "args": ["serve", "--debug-listen=127.0.0.1:9"]}]);
    cluster.pods().delete("usher-0", &DeleteParams::default().grace_period(0)).await.unwrap();
    cluster.pod_by(&cluster.client, &pod("usher-0").spec("containers", closed)).await;
    cluster.run_at("usher-0", "127.0.0.1").await;
    let (code, _, err) = asked(&["apps"]).await;
    assert!(code == Some(0) && err.contains("the leader of spark-usher was not asked"), "{err}");
    assert!(err.contains("failed to connect to localhost:9") && err.contains("--no-leader"), "{err}");
    let (code, _, err) = asked(&["cost"]).await;
    assert!(code == Some(1) && err.contains("only the leader of a running spark-usher knows this"), "{err}");
    leader.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn team_with_a_role_in_one_namespace_sees_what_its_application_lacks_and_why() {
    let cluster = Cluster::start_enforcing().await;
    let namespace = cluster.namespace.as_str();
    let path = account(&cluster, "team", &["pods", "configmaps", "events", "resourcequotas"]).await;
    let driver = pod("etl-driver").driver_of("spark-0123").label("spark-app-name", "nightly").conf_map("etl-conf");
    cluster
        .create(
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "etl-conf", "namespace": namespace},
        "data": {"spark.properties": "spark.executor.instances=3\n"}}),
        )
        .await;
    cluster.pod_by(&cluster.client, &driver).await;
    cluster.phase("etl-driver", "Running").await;
    cluster.pod_by(&cluster.client, &pod("etl-exec-1").executor_of("spark-0123", 1)).await;
    cluster.phase("etl-exec-1", "Running").await;
    let (code, out, err) = ask(&path, &["apps", "-o", "wide"]).await;
    assert_eq!(code, Some(0), "{err}");
    let row: Vec<&str> = out.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(row[..6], [namespace, "nightly", "lacks", "1", "3", "2"], "{out}");
    assert!(err.contains("the leader of spark-usher was not asked") && err.contains("forbidden"), "{err}");
    let (code, out, err) = ask(&path, &["why", "nightly"]).await;
    assert!(code == Some(0) && out.contains("lacks     2 of 3 executors (spark.executor.instances)"), "{out}{err}");
    let (code, out, err) = ask(&path, &["nodes"]).await;
    assert!(code == Some(0), "{out}{err}");
    let (code, _, err) = ask(&path, &["cost"]).await;
    assert!(code == Some(1) && err.contains("pods/portforward"), "{err}");
    // Without the right to read ConfigMaps, how many executors it wants is not known, and the reason is said.
    let blind = account(&cluster, "blind", &["pods", "events", "resourcequotas"]).await;
    let (code, out, err) = ask(&blind, &["why", "nightly", "--no-leader"]).await;
    assert!(code == Some(0) && out.contains("target    not known"), "{out}");
    assert!(err.contains("warning: ConfigMaps of drivers cannot be read"), "{err}");
    let (_, _, err) = ask(&path, &["why", "nightly", "--no-leader"]).await;
    assert!(!err.contains("cannot be read"), "{err}");
    // All namespaces are not theirs.
    let (code, _, err) = ask(&path, &["apps", "-A", "--no-leader"]).await;
    assert!(code == Some(1) && err.contains("--namespace NAMESPACE needs the right for one namespace only"), "{err}");
    // What they may not read is not known, and no error.
    let (code, out, _) = ask(&path, &["status", "nightly"]).await;
    assert!(code == Some(0) && out.contains("etl-driver"), "{out}");
    let own: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    let context = own["contexts"][0]["name"].as_str().unwrap();
    for (words, expected) in [
        ("sub", "submit"),
        (
            "submit --dr",
            "--driver-memory --driver-cores --driver-java-options --driver-library-path --driver-class-path --dry-run",
        ),
        ("submit --conf a=b --kub", "--kubeconfig"),
        ("status -o y", "yaml"),
        ("kill --include", "--include-ended"),
        ("config ch", "check"),
        // Of the namespace of the context, and of another one, whose pods they may not list.
        ("why n", "nightly"),
        ("why etl-", "etl-driver etl-exec-1"),
        ("kill etl-", "etl-driver"),
        ("status spark-", "spark-0123"),
        ("why -n elsewhere n", ""),
        (&format!("why -n elsewhere {namespace} : n"), "nightly"),
        ("why elsewhere : n", ""),
        ("apps --output = y", "yaml"),
        ("doctor --gang ", namespace),
        // They may not list namespaces: those of the contexts.
        ("apps -n ", namespace),
        ("apps --context ", context),
        ("nodes n", ""),
    ] {
        let found = completed(&path, words).await;
        assert_eq!(found, expected.split_whitespace().map(str::to_owned).collect::<BTreeSet<_>>(), "{words}");
    }
}

/// An account that may read objects of these kinds in the cluster's namespace. Returns its kubeconfig.
async fn account(cluster: &Cluster, name: &str, resources: &[&str]) -> String {
    let (group, namespace) = ("rbac.authorization.k8s.io", cluster.namespace.as_str());
    let metadata = json!({"name": name, "namespace": namespace});
    let rules = json!([{"apiGroups": [""], "resources": resources, "verbs": ["get", "list"]}]);
    let role = json!({"apiGroup": group, "kind": "Role", "name": name});
    let subjects = json!([{"kind": "ServiceAccount", "name": name, "namespace": namespace}]);
    for object in [
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}),
        json!({"apiVersion": format!("{group}/v1"), "kind": "Role", "metadata": metadata, "rules": rules}),
        json!({"apiVersion": format!("{group}/v1"), "kind": "RoleBinding", "metadata": metadata, "roleRef": role,
            "subjects": subjects}),
    ] {
        cluster.create(object).await;
    }
    kubeconfig_of(cluster, name, &cluster.token(namespace, name, None).await, namespace)
}

/// What bash offers for the last of these words.
async fn completed(kubeconfig: &str, words: &str) -> BTreeSet<String> {
    let all: Vec<&str> = words.split(' ').collect();
    let (last, count) = (all.last().unwrap(), all.len());
    // As readline calls it.
    let text = format!(
        "source <(spark-usher completion bash); COMP_WORDS=(spark-usher {words}); COMP_CWORD={count}; \
         _clap_complete_spark_usher spark-usher '{last}'; IFS=' '; echo \"${{COMPREPLY[*]}}\""
    );
    let path = std::env::join_paths(
        Path::new(&program())
            .parent()
            .map(Path::to_owned)
            .into_iter()
            .chain(std::env::split_paths(&std::env::var("PATH").unwrap())),
    );
    let mut command = std::process::Command::new("bash");
    command.args(["-c", &text]).env("PATH", path.unwrap()).env("KUBECONFIG", kubeconfig);
    let (code, out, err) = finished(command).await;
    assert!(code == Some(0) && err.is_empty(), "{words}: {err}");
    out.split_whitespace().map(str::to_owned).collect()
}

/// Writes a kubeconfig for this API server into the folder. Returns its path.
fn anonymous_kubeconfig(folder: &Path, url: &str) -> String {
    let path = folder.join("kubeconfig").display().to_string();
    let config = json!({"apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}], "users": [{"name": "u", "user": {}}]});
    std::fs::write(&path, config.to_string()).unwrap();
    path
}

/// An API server with a version, which forbids all else, and says nothing about EndpointSlices.
#[tokio::test(flavor = "multi_thread")]
async fn doctor_prints_what_it_knows_while_it_waits_for_the_api_server() {
    use axum::http::{StatusCode, Uri};
    let answer = async |uri: Uri| {
        if uri.path().contains("endpointslices") {
            std::future::pending::<()>().await;
        }
        let version = json!({"major": "1", "minor": "37", "gitVersion": "v1.37.0", "gitCommit": "", "gitTreeState": "",
            "buildDate": "", "goVersion": "", "compiler": "", "platform": ""});
        let forbidden = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden",
            "message": "forbidden", "code": 403});
        match uri.path() {
            "/version" => (StatusCode::OK, version.to_string()),
            _ => (StatusCode::FORBIDDEN, forbidden.to_string()),
        }
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let server = tokio::spawn(axum::serve(listener, axum::Router::new().fallback(answer)).into_future());
    let folder = tempfile::tempdir().unwrap();
    let path = anonymous_kubeconfig(folder.path(), &url);
    let mut command = tokio::process::Command::new(program());
    command.args(["doctor", "--request-timeout", "0", "--kubeconfig", &path]).stdout(std::process::Stdio::piped());
    let mut doctor = command.kill_on_drop(true).spawn().unwrap();
    let mut lines = BufReader::new(doctor.stdout.take().unwrap()).lines();
    let mut printed = Vec::new();
    while !printed.iter().any(|line: &String| line.contains("Kubernetes 1.37")) {
        let line = tokio::time::timeout(std::time::Duration::from_secs(20), lines.next_line()).await;
        printed.push(line.unwrap_or_else(|_| panic!("only {printed:?}")).unwrap().expect("a line"));
    }
    assert_eq!(
        printed[0],
        "failed   the installation cannot be checked: neither Deployments in namespace spark-usher nor webhook configurations can be read"
    );
    assert!(doctor.try_wait().unwrap().is_none(), "it waits for the rest");
    // A reader that has seen enough is no error.
    let line = format!("{} doctor --request-timeout 1s --kubeconfig {path} | head -1", program());
    let mut piped = std::process::Command::new("bash");
    piped.args(["-o", "pipefail", "-c", &line]);
    let (code, out, err) = finished(piped).await;
    assert_eq!((code, out.lines().count(), err.as_str()), (Some(0), 1, ""), "{out}");
    // Nothing is concluded from a Deployment that could not be read.
    let mut whole = std::process::Command::new(program());
    whole.args(["doctor", "--request-timeout", "1s", "--kubeconfig", &path]);
    let (code, out, _) = finished(whole).await;
    assert!(code == Some(1) && out.ends_with("nor webhook configurations can be read\n"), "{out}");
    assert!(
        out.contains("cannot read the permissions of spark-usher's account: the Deployment that names it"),
        "{out}"
    );
    server.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn api_server_that_does_not_answer_is_not_waited_for_longer_than_the_timeout() {
    // It accepts connections, and says nothing.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let path = anonymous_kubeconfig(folder.path(), &url);
    // Completions give up after five seconds.
    let offered = tokio::time::timeout(std::time::Duration::from_secs(15), completed(&path, "why nightly"));
    assert_eq!(offered.await.expect("a shell that waits is unusable"), BTreeSet::new());
    let of_kubeconfig = ["--kubeconfig", &path];
    let master = format!("k8s://{url}");
    let of_master = ["--master", &master];
    for (arguments, server) in [
        (["doctor", "--request-timeout", "1s"], of_kubeconfig),
        (["status", "--request-timeout", "1s"], of_kubeconfig),
        (["status", "--request-timeout", "1s"], of_master),
        (["apps", "--request-timeout", "1s"], of_kubeconfig),
    ] {
        let mut command = std::process::Command::new(program());
        command.args(arguments).args(server).env("KUBECONFIG", "/nonexistent/config");
        // Without the option it is 10 s, and 30 s for each of several attempts.
        let done = tokio::time::timeout(std::time::Duration::from_secs(8), finished(command)).await;
        let (code, _, err) = done.unwrap_or_else(|_| panic!("{arguments:?} {server:?} waits"));
        assert!(code == Some(1) && err.contains("timed out"), "{arguments:?} {server:?}: {err}");
    }
}
