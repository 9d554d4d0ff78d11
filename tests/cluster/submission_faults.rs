//! `submit` where the API server, the connection or the reader of the output fails.

use std::process::{Command, Stdio};

use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams};
use serde_json::json;

use crate::support::cluster::{Cluster, eventually};
use crate::support::faulty::{End, Fault, Faulty};
use crate::support::operator::{Running, command, driver, finished, run, status};
use crate::support::process::program;

pub(crate) const PI: [&str; 6] = [
    "submit",
    "--name=pi",
    "--class=org.apache.spark.examples.SparkPi",
    "--conf=spark.kubernetes.container.image=reg.example/spark:4.3.0",
    "--conf=spark.kubernetes.driver.pod.name=pi-driver",
    "--num-executors=3",
];

pub(crate) async fn drivers(cluster: &Cluster) -> Vec<Pod> {
    let all = cluster.pods().list(&ListParams::default().labels("spark-role=driver")).await.unwrap().items;
    all.into_iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()).collect()
}

/// Deletes the driver immediately, if it exists.
pub(crate) async fn forget(cluster: &Cluster) {
    let immediately = DeleteParams { grace_period_seconds: Some(0), ..Default::default() };
    let _ = cluster.pods().delete("pi-driver", &immediately).await;
}

pub(crate) fn is_creation(method: &str, path: &str) -> bool {
    method == "POST" && path.contains("/pods")
}

/// A rule that fails the first requests of a kind.
pub(crate) fn first(
    fault: &Fault,
    times: usize,
    is_it: fn(&str, &str) -> bool,
) -> impl FnMut(&str, &str) -> Fault + Send + 'static {
    let (fault, mut left) = (fault.clone(), times);
    move |method: &str, path: &str| {
        if left == 0 || !is_it(method, path) {
            return Fault::None;
        }
        left -= 1;
        fault.clone()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn submission_survives_lost_answers_and_an_overloaded_api_server() {
    let cluster = Cluster::start().await;
    for (fault, times) in [
        (Fault::Closed, 1),
        (Fault::ClosedAfter, 1),
        (Fault::StatusAfter(500), 1),
        (Fault::Status(429), 2),
        (Fault::BodyAfter("<html>created</html>".to_owned()), 1),
        (Fault::Status(503), 3),
    ] {
        let faulty = Faulty::start(&cluster.client, first(&fault, times, is_creation)).await;
        let master = faulty.master();
        let done = run(&cluster, &[&PI[..], &["--no-wait", "--master", &master, "local:///opt/pi.jar"]].concat()).await;
        assert_eq!(done.0, Some(0), "{fault:?}: {done:?}");
        let all = drivers(&cluster).await;
        assert_eq!(all.len(), 1, "{fault:?}");
        let id = &all[0].metadata.labels.as_ref().unwrap()["spark-app-selector"];
        assert!(done.1.contains(id.as_str()), "{fault:?}: {done:?}");
        forget(&cluster).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn driver_of_another_application_with_that_name_is_an_error() {
    let cluster = Cluster::start().await;
    cluster.pod_by(&cluster.client, &driver("pi-driver", "spark-other")).await;
    let faulty = Faulty::start(&cluster.client, first(&Fault::Status(500), 1, is_creation)).await;
    let master = faulty.master();
    let done = run(&cluster, &[&PI[..], &["--no-wait", "--master", &master, "local:///opt/pi.jar"]].concat()).await;
    assert!(done.0 == Some(1) && done.2.contains("already exists"), "{done:?}");
    assert_eq!(drivers(&cluster).await[0].metadata.labels.as_ref().unwrap()["spark-app-selector"], "spark-other");
}

#[tokio::test(flavor = "multi_thread")]
async fn driver_is_deleted_again_even_if_that_has_to_be_tried_twice() {
    let cluster = Cluster::start().await;
    let mut deletions = 0;
    let faulty = Faulty::start(&cluster.client, move |method, path| match method {
        "PATCH" if path.contains("/services/") => Fault::Status(500),
        "DELETE" => {
            deletions += 1;
            if deletions == 1 { Fault::Closed } else { Fault::None }
        }
        _ => Fault::None,
    })
    .await;
    let done = run(&cluster, &[&PI[..], &["--master", &faulty.master(), "local:///opt/pi.jar"]].concat()).await;
    // The cause comes first.
    assert!(done.0 == Some(1) && done.2.starts_with("error: cannot patch Service "), "{done:?}");
    assert!(done.2.lines().nth(1).unwrap().ends_with("was deleted again"), "{done:?}");
    assert!(drivers(&cluster).await.is_empty());
    // It cannot be deleted: it is named.
    let faulty = Faulty::start(&cluster.client, |method, path| match method {
        "PATCH" if path.contains("/services/") => Fault::Status(403),
        "DELETE" => Fault::Status(403),
        _ => Fault::None,
    })
    .await;
    eventually("the name is free", async || cluster.pods().get_opt("pi-driver").await.unwrap().is_none()).await;
    let done = run(&cluster, &[&PI[..], &["--master", &faulty.master(), "local:///opt/pi.jar"]].concat()).await;
    let expected = format!("pod {}/pi-driver is left behind", cluster.namespace);
    assert!(done.0 == Some(1) && done.2.contains(&expected), "{done:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn interrupted_submission_takes_back_what_it_created_and_uploaded() {
    let cluster = Cluster::start().await;
    let faulty = Faulty::start(&cluster.client, |method, path| {
        if method == "PATCH" && path.contains("/services/") { Fault::Hangs } else { Fault::None }
    })
    .await;
    let (up, jar) = (cluster.folder().join("up"), cluster.folder().join("app.jar"));
    std::fs::write(&jar, "jar").unwrap();
    let up_conf = format!("--conf=spark.kubernetes.file.upload.path={}", up.display());
    let jar = jar.display().to_string();
    let mut submit = Running::start(&cluster, &[&PI[..], &["--master", &faulty.master(), &up_conf, &jar]].concat());
    eventually("the service is sent", async || faulty.count("/services/") > 0).await;
    assert!(up.exists());
    submit.interrupt();
    assert_eq!(submit.ended().await, Some(130), "{}", submit.all());
    submit.says("was deleted again").await;
    assert!(submit.err.lock().unwrap().iter().any(|line| line == "error: interrupted"), "{}", submit.all());
    assert!(drivers(&cluster).await.is_empty() && !up.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn submission_whose_output_cannot_be_written_names_the_driver() {
    let cluster = Cluster::start().await;
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut submit = command(&cluster, &[&PI[..], &["--no-wait", "local:///opt/pi.jar"]].concat());
    submit.stdout(full).stderr(Stdio::piped());
    let done = tokio::task::spawn_blocking(move || submit.output().unwrap()).await.unwrap();
    let said = String::from_utf8(done.stderr).unwrap();
    let id = format!("submission ID {}:pi-driver", cluster.namespace);
    assert!(done.status.code() == Some(5) && said.contains(&id), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn kill_and_status_of_spark_submit_find_the_api_server_as_a_submission_does() {
    let cluster = Cluster::start().await;
    let faulty = Faulty::start(&cluster.client, |_, _| Fault::None).await;
    let folder = cluster.folder().join("conf");
    std::fs::create_dir_all(&folder).unwrap();
    let conf = |text: &str| std::fs::write(folder.join("spark-defaults.conf"), text).unwrap();
    let id = format!("{}:pi-driver", cluster.namespace);
    let send = async |arguments: &[&str], master: Option<String>| {
        let mut command = std::process::Command::new(crate::support::process::program());
        command
            .arg("submit")
            .args(arguments)
            .env("SPARK_CONF_DIR", &folder)
            .env_remove("SPARK_HOME")
            .env_remove("MASTER");
        command.env("KUBECONFIG", "/nonexistent").env("HOME", "/nonexistent");
        command.envs(master.map(|master| ("MASTER", master)));
        let (code, _, err) = finished(command).await;
        (code, err)
    };
    for way in ["--master", "--conf", "file", "defaults", "variable", "script"] {
        cluster.pod_by(&cluster.client, &driver("pi-driver", "spark-1")).await;
        let (master, grace) = (faulty.master(), "spark.kubernetes.appKillPodDeletionGracePeriod");
        let setting = format!("spark.master={master}");
        let file = folder.join("p").display().to_string();
        std::fs::write(&file, format!("spark.master {master}\n{grace} 0\n")).unwrap();
        conf(&if way == "defaults" { format!("spark.master {master}\n{grace} 0\n") } else { format!("{grace} 0\n") });
        let script = if way == "script" { format!("MASTER={master}\n") } else { String::new() };
        std::fs::write(folder.join("spark-env.sh"), script).unwrap();
        let arguments: &[&str] = match way {
            "--master" => &["--master", &master],
            "--conf" => &["--conf", &setting],
            "file" => &["--properties-file", &file],
            _ => &[],
        };
        let of_env = (way == "variable").then(|| master.clone());
        let done = send(&[arguments, &["--status", &id]].concat(), of_env.clone()).await;
        assert!(done.0 == Some(0) && done.1.contains("pod name: pi-driver"), "{way}: {done:?}");
        let done = send(&[arguments, &["--kill", &id]].concat(), of_env).await;
        assert!(
            done.0 == Some(0) && done.1.contains(&format!("in {master}. Grace period in secs: 0")),
            "{way}: {done:?}"
        );
        eventually("it is deleted", async || cluster.pods().get_opt("pi-driver").await.unwrap().is_none()).await;
    }
    conf("");
    for (arguments, words) in [
        (&["--kill", "n:x", "--status", "n:x"][..], "only one of --kill and --status"),
        (&["--kill", "n:x", "--dry-run"], "none of --dry-run"),
        (&["--status", "n:x", "-n", "a/b"], "a namespace, not \"a/b\""),
        (&["--gang=false", "x.jar"], "--gang without a value"),
        (&["--dry-run", "server", "x.jar"], "its value follows a ="),
        (&["--kill", "n:x", "--master", "yarn"], "must start with k8s://"),
        (
            &[
                "--kill",
                "n:x",
                "--conf=spark.kubernetes.authenticate.submission.oauthToken=t",
                "--conf=spark.kubernetes.authenticate.submission.oauthTokenFile=/t",
            ],
            "Cannot specify OAuth token through both",
        ),
        (&["-n", "a", "--conf=spark.kubernetes.namespace=b", "--class=x.Y", "local:///x.jar"], "only one namespace"),
    ] {
        let done = send(arguments, None).await;
        assert!(done.0 == Some(2) && done.1.contains(words), "{arguments:?}: {done:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn credentials_of_the_configuration_are_used() {
    let cluster = Cluster::start().await;
    let token = cluster.folder().join("token");
    std::fs::write(&token, "not-a-token\n").unwrap();
    let conf = |key: &str, value: &str| format!("--conf=spark.kubernetes.authenticate.submission.{key}={value}");
    let file = conf("oauthTokenFile", &token.display().to_string());
    let done = run(&cluster, &[&PI[..], &["--no-wait", &file, "local:///opt/pi.jar"]].concat()).await;
    assert!(done.0 == Some(1) && done.2.contains("Unauthorized"), "{done:?}");
    let done =
        run(&cluster, &[&PI[..], &["--no-wait", &conf("caCertFile", "/nonexistent"), "local:///x.jar"]].concat()).await;
    assert!(done.0 == Some(1) && done.2.contains("caCertFile: /nonexistent: No such file"), "{done:?}");
    let context = "--conf=spark.kubernetes.context=nowhere";
    let done = run(&cluster, &[&PI[..], &["--no-wait", context, "local:///x.jar"]].concat()).await;
    assert!(done.0 == Some(2) && done.2.contains("nowhere"), "{done:?}");
    assert!(drivers(&cluster).await.is_empty());
    // On a host without a kubeconfig, they are all that there is.
    std::fs::write(&token, format!("{}\n", cluster.admin_token())).unwrap();
    let value = conf("oauthToken", cluster.admin_token());
    let trusted = match cluster.sandbox() {
        Some(sandbox) => {
            let ca = cluster.folder().join("ca.crt");
            std::fs::write(&ca, sandbox.ca_pem()).unwrap();
            conf("caCertFile", &ca.display().to_string())
        }
        None => "--conf=spark.kubernetes.trust.certificates=true".to_owned(),
    };
    for (credentials, trusted, words) in [
        (&value, "", "certificate"),
        (&conf("oauthToken", "not-a-token"), &trusted[..], "Unauthorized"),
        (&value, &trusted, ""),
        (&file, &trusted, ""),
        (&file, "--conf=spark.kubernetes.trust.certificates=true", ""),
    ] {
        let mut submit = Command::new(program());
        submit.args(PI).args(["--no-wait", "-n", &cluster.namespace, "--master", &format!("k8s://{}", cluster.url())]);
        submit.arg(credentials).args(Some(trusted).filter(|option| !option.is_empty())).arg("local:///opt/pi.jar");
        for name in ["KUBECONFIG", "MASTER", "SPARK_HOME", "KUBERNETES_SERVICE_HOST"] {
            submit.env_remove(name);
        }
        submit.envs([("HOME", "/nonexistent"), ("SPARK_CONF_DIR", "/nonexistent")]).stdin(Stdio::null());
        let (code, _, err) = finished(submit).await;
        assert!(
            (code == Some(0)) == words.is_empty() && err.contains(words),
            "{credentials} {trusted}: {code:?} {err}"
        );
        assert_eq!(drivers(&cluster).await.len(), usize::from(words.is_empty()), "{credentials} {trusted}");
        forget(&cluster).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn gang_that_never_fits_its_queue_is_not_submitted() {
    let cluster = Cluster::start().await;
    let policy = cluster.folder().join("policy.yaml");
    std::fs::write(&policy, "apiVersion: spark-usher.io/v1alpha1\nkind: PolicyFile\npolicies:\n- name: batch\n  scheduler: {type: volcano}\n  queue: etl\n").unwrap();
    let policy = policy.display().to_string();
    for (answer, code, words) in [
        (
            json!({"spec": {"capability": {"cpu": "2"}}}),
            1,
            "a gang of 3 executors will never fit queue etl: it requests 3 cpu",
        ),
        (
            json!({"spec": {"capability": {"cpu": "4"}}}),
            0,
            "note: policy batch: scheduler volcano, queue etl, a gang of 3 executors",
        ),
        (json!({"spec": {"weight": 1}}), 0, "a gang of 3 executors"),
    ] {
        let mut queue =
            json!({"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue", "metadata": {"name": "etl"}});
        queue["spec"] = answer["spec"].clone();
        let faulty = Faulty::start(&cluster.client, move |_, path| {
            if path.contains("/queues/etl") { Fault::Body(vec![queue.to_string()], End::Clean) } else { Fault::None }
        })
        .await;
        let master = faulty.master();
        let done = run(
            &cluster,
            &[&PI[..], &["--no-wait", "--master", &master, "--policy", &policy, "local:///opt/pi.jar"]].concat(),
        )
        .await;
        assert!(done.0 == Some(code) && done.2.contains(words), "{answer}: {done:?}");
        assert_eq!(drivers(&cluster).await.len(), usize::from(code == 0));
        forget(&cluster).await;
    }
    // The API of queues is missing: that is said, and the application is submitted.
    let done = run(&cluster, &[&PI[..], &["--no-wait", "--policy", &policy, "local:///opt/pi.jar"]].concat()).await;
    assert!(done.0 == Some(0) && done.2.contains("whether the gang fits queue etl is not known"), "{done:?}");
    let done = run(&cluster, &[&PI[..], &["--policy", "/nonexistent", "local:///opt/pi.jar"]].concat()).await;
    assert!(done.0 == Some(2) && done.2.contains("expected a policy file after --policy"), "{done:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn files_of_a_driver_that_may_exist_stay_and_are_named() {
    let cluster = Cluster::start().await;
    let faulty = Faulty::start(&cluster.client, |method, path| match method {
        "POST" if path.contains("/pods") => Fault::StatusAfter(500),
        "GET" if path.contains("/pods/pi-driver") => Fault::Status(403),
        _ => Fault::None,
    })
    .await;
    let (up, jar) = (cluster.folder().join("up"), cluster.folder().join("app.jar"));
    std::fs::write(&jar, "jar").unwrap();
    let up_conf = format!("--conf=spark.kubernetes.file.upload.path={}", up.display());
    let jar = jar.display().to_string();
    let done = run(&cluster, &[&PI[..], &["--master", &faulty.master(), &up_conf, &jar]].concat()).await;
    let name = "app.jar is left behind";
    assert!(done.0 == Some(1) && done.2.contains("it may exist all the same") && done.2.contains(name), "{done:?}");
    assert!(up.exists());
}

/// A gateway may answer anything.
#[tokio::test(flavor = "multi_thread")]
async fn submit_with_closed_stdout_exits_with_5() {
    let cluster = Cluster::start().await;
    for options in [&["--no-wait"][..], &["-o", "json"], &[]] {
        let mut submit = command(&cluster, &[&PI[..], options, &["local:///opt/pi.jar"]].concat());
        let mut child = submit.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        drop(child.stdout.take());
        let code = tokio::task::spawn_blocking(move || child.wait().unwrap().code()).await.unwrap();
        assert_eq!((code, drivers(&cluster).await.len()), (Some(5), 1), "{options:?}");
        forget(&cluster).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn arguments_in_the_wrong_place_and_none_at_all_are_said() {
    let cluster = Cluster::start().await;
    let late = ["submit", "local:///x.py", "--conf", "spark.kubernetes.container.image=i", "--name", "late"];
    let done = run(&cluster, &late).await;
    let words = "warning: what follows local:///x.py is passed to the application: --conf";
    assert!(done.0 == Some(2) && done.2.contains(words), "{done:?}");
    let none = tokio::task::spawn_blocking(|| {
        std::process::Command::new(crate::support::process::program()).arg("submit").output().unwrap()
    });
    let none = none.await.unwrap();
    assert!(
        none.status.code() == Some(2) && String::from_utf8(none.stderr).unwrap().contains("Usage: spark-usher submit")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn signal_while_the_api_server_does_not_answer_is_acknowledged() {
    let cluster = Cluster::start().await;
    let faulty = Faulty::start(
        &cluster.client,
        |method, path| {
            if is_creation(method, path) { Fault::Hangs } else { Fault::None }
        },
    )
    .await;
    let mut submit =
        Running::start(&cluster, &[&PI[..], &["--master", &faulty.master(), "local:///opt/x.jar"]].concat());
    eventually("the pod is sent", async || faulty.count("POST") > 0).await;
    submit.interrupt();
    submit.says("interrupted: waiting for the API server's answer").await;
    submit.interrupt();
    assert_eq!(submit.ended().await, Some(130), "{}", submit.all());
}

/// As for spark-submit, which fails with a kubeconfig that cannot be parsed, and ignores one without a current context.
#[tokio::test(flavor = "multi_thread")]
async fn kubeconfig_that_cannot_be_read_is_an_error_also_if_the_api_server_is_given() {
    let cluster = Cluster::start().await;
    let faulty = Faulty::start(&cluster.client, |_, _| Fault::None).await;
    let file = cluster.folder().join("other");
    for (text, code) in
        [("a: [b\nusers: [{user: {token: secret}}\n", 1), ("apiVersion: v1\nkind: Config\nclusters: []\n", 0), ("", 0)]
    {
        std::fs::write(&file, text).unwrap();
        let mut submit = Command::new(program());
        submit.args(PI).args([
            "--no-wait",
            "-n",
            &cluster.namespace,
            "--master",
            &faulty.master(),
            "local:///opt/pi.jar",
        ]);
        submit.env("KUBECONFIG", &file).env_remove("KUBERNETES_SERVICE_HOST").env("SPARK_CONF_DIR", "/nonexistent");
        let (ended, _, err) = finished(submit).await;
        assert_eq!(ended, Some(code), "{text}: {err}");
        assert_eq!(err.contains("kubeconfig of $KUBECONFIG or ~/.kube/config cannot be used: "), code == 1, "{err}");
        assert!(!err.contains("secret"), "{err}");
        forget(&cluster).await;
        for options in [&["--kubeconfig", file.to_str().unwrap()][..], &["--context", "x"]] {
            let mut status = Command::new(program());
            status.arg("status").args(options).env("KUBECONFIG", &file).env_remove("KUBERNETES_SERVICE_HOST");
            let done = finished(status).await;
            assert!(done.0 == Some(1) && !done.2.contains("secret"), "{options:?}: {done:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn closed_terminal_ends_a_submission_as_ctrl_c_does() {
    let cluster = Cluster::start().await;
    let faulty = Faulty::start(&cluster.client, |method, path| {
        if method == "PATCH" && path.contains("/services/") { Fault::Hangs } else { Fault::None }
    })
    .await;
    let master = faulty.master();
    let arguments = [&PI[..], &["--master", &master, "local:///x.jar"]].concat();
    let mut submit = Running::with_hangup("--default-signal=HUP", &cluster, &arguments);
    eventually("the service is sent", async || faulty.count("/services/") > 0).await;
    // By the shell, and by the kernel.
    submit.signal("HUP");
    submit.signal("HUP");
    assert_eq!(submit.ended().await, Some(130), "{}", submit.all());
    assert!(drivers(&cluster).await.is_empty());
    // While it waits, the application goes on.
    let arguments = [&PI[..], &["local:///x.jar"]].concat();
    let mut submit = Running::with_hangup("--default-signal=HUP", &cluster, &arguments);
    submit.says("pending").await;
    submit.signal("HUP");
    assert_eq!(submit.ended().await, Some(130), "{}", submit.all());
    submit.says("it goes on").await;
    assert_eq!(drivers(&cluster).await.len(), 1);
    forget(&cluster).await;
    // Under nohup, it waits.
    let mut submit = Running::with_hangup("--ignore-signal=HUP", &cluster, &arguments);
    submit.says("pending").await;
    submit.signal("HUP");
    status(&cluster, "pi-driver", json!({"phase": "Running"})).await;
    submit.says("running").await;
    assert!(submit.child.try_wait().unwrap().is_none(), "{}", submit.all());
}
