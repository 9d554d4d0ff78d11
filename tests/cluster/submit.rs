//! `spark-usher submit`: what it creates on an API server, and what is left if that fails.

use std::process::{Command, Output};

use crate::support::cluster::Cluster;
use crate::support::process::program;
use crate::support::s3::Storage;
use kube::api::{DynamicObject, ListParams};
use kube::core::ApiResource;
use kube::{Api, Client};
use serde_json::Value;

fn resource(group: &str, kind: &str, plural: &str) -> ApiResource {
    let api_version = if group.is_empty() { "v1".to_owned() } else { format!("{group}/v1") };
    ApiResource { group: group.into(), version: "v1".into(), api_version, kind: kind.into(), plural: plural.into() }
}

fn objects(client: &Client, namespace: &str, group: &str, kind: &str, plural: &str) -> Api<DynamicObject> {
    Api::namespaced_with(client.clone(), namespace, &resource(group, kind, plural))
}

/// Runs the command for this cluster. Its configuration folder does not exist.
async fn submit(cluster: &Cluster, arguments: &[&str]) -> Output {
    let kubeconfig = cluster.folder().join("submit.kubeconfig").display().to_string();
    std::fs::write(&kubeconfig, cluster.kubeconfig()).unwrap();
    let mut command = Command::new(program());
    command.arg("submit").args(["--no-wait", "--kubeconfig", &kubeconfig, "-n", &cluster.namespace]);
    command
        .args(arguments)
        .env("SPARK_CONF_DIR", "/nonexistent")
        .env_remove("HADOOP_CONF_DIR")
        .env_remove("SPARK_HOME")
        .env_remove("MASTER");
    tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

const PI: [&str; 8] = [
    "--name",
    "pi",
    "--class",
    "org.apache.spark.examples.SparkPi",
    "--conf",
    "spark.kubernetes.container.image=reg.example/spark:4.3.0",
    "--num-executors",
    "3",
];

#[tokio::test(flavor = "multi_thread")]
async fn submission_creates_the_driver_and_what_it_owns() {
    let cluster = Cluster::start().await;
    let done = submit(&cluster, &[&PI[..], &["local:///opt/pi.jar", "1000"]].concat()).await;
    assert!(done.status.success(), "{}", text(&done.stderr));
    let said = text(&done.stdout);
    assert!(said.starts_with("Deployed Spark application pi with application ID spark-"), "{said}");
    let pods = objects(&cluster.client, &cluster.namespace, "", "Pod", "pods");
    let driver = pods.list(&ListParams::default().labels("spark-role=driver")).await.unwrap().items.remove(0);
    let (name, uid) = (driver.metadata.name.clone().unwrap(), driver.metadata.uid.clone().unwrap());
    assert!(
        said.trim_end().ends_with(&format!("submission ID {}:{name} into Kubernetes", cluster.namespace)),
        "{said}"
    );
    for (group, kind, plural) in [
        ("", "Service", "services"),
        ("", "ConfigMap", "configmaps"),
        ("networking.k8s.io", "NetworkPolicy", "networkpolicies"),
    ] {
        let all = objects(&cluster.client, &cluster.namespace, group, kind, plural);
        let all = all.list(&ListParams::default()).await.unwrap().items;
        let owned =
            all.iter().filter(|object| object.metadata.owner_references.iter().flatten().any(|owner| owner.uid == uid));
        assert_eq!(owned.count(), 1, "{kind}");
    }
    let maps = objects(&cluster.client, &cluster.namespace, "", "ConfigMap", "configmaps")
        .list(&ListParams::default())
        .await
        .unwrap();
    let conf = maps.items.iter().find(|map| map.metadata.name.as_deref().unwrap().starts_with("spark-drv-")).unwrap();
    assert!(conf.data["data"]["spark.properties"].as_str().unwrap().contains("\nspark.executor.instances=3\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn dry_run_prints_a_list_and_creates_nothing() {
    let cluster = Cluster::start().await;
    for (format, parse) in [
        ("json", (|text| serde_json::from_str(text).unwrap()) as fn(&str) -> Value),
        ("yaml", |text| serde_saphyr::from_str(text).unwrap()),
    ] {
        let done = submit(&cluster, &[&["--dry-run", "-o", format], &PI[..], &["local:///opt/pi.jar"]].concat()).await;
        assert!(done.status.success(), "{}", text(&done.stderr));
        let list = parse(&text(&done.stdout));
        let kinds: Vec<&str> =
            list["items"].as_array().unwrap().iter().map(|item| item["kind"].as_str().unwrap()).collect();
        assert_eq!(
            (list["kind"].as_str(), kinds),
            (Some("List"), vec!["Pod", "Service", "NetworkPolicy", "ConfigMap"])
        );
    }
    // Behind the resource, they are the application's, as for spark-submit.
    let late = ["local:///opt/pi.jar", "--kubeconfig=x", "7", "--dry-run", "--conf"];
    let done = submit(&cluster, &[&["--dry-run"], &PI[..], &late].concat()).await;
    let warned = "warning: --kubeconfig, --dry-run after local:///opt/pi.jar is passed to the application: put options of spark-usher before local:///opt/pi.jar\n";
    assert!(done.status.success() && text(&done.stderr).contains(warned), "{}", text(&done.stderr));
    let pods = cluster.pods().list(&ListParams::default()).await.unwrap();
    assert!(pods.items.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn configured_master_precedes_the_kubeconfig_and_the_version_is_that_of_the_tag() {
    let cluster = Cluster::start().await;
    let file = cluster.folder().join("spark.conf");
    std::fs::write(&file, "spark.master k8s://https://other.example:6443\n").unwrap();
    let image =
        format!("--conf=spark.kubernetes.container.image=reg.example:5000/spark:4.1.2@sha256:{}", "0".repeat(64));
    let file = file.display().to_string();
    let arguments = ["--dry-run", "-o", "json", "--properties-file", &file, "--class", "a.B", &image, "local:///x.jar"];
    let done = submit(&cluster, &arguments).await;
    assert!(done.status.success(), "{}", text(&done.stderr));
    let list: Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!(list["items"][0]["metadata"]["labels"]["spark-version"], "4.1.2");
    let conf = list["items"].as_array().unwrap().iter().find_map(|item| item["data"]["spark.properties"].as_str());
    let conf = conf.unwrap();
    assert!(conf.contains("spark.master=k8s\\://https\\://other.example\\:6443"), "{conf}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_submitted_is_said_and_leaves_nothing() {
    let cluster = Cluster::start().await;
    let image = "--conf=spark.kubernetes.container.image=reg.example/spark:4.3.0";
    for (arguments, code, words) in [
        (&["--nope", "x"][..], 2, "Unrecognized option: --nope"),
        (&["--class", "a.B", "local:///x.jar"], 2, "Must specify the driver container image"),
        (
            &[image, "--class", "a.B", "--spark-version", "2.4", "local:///x.jar"],
            2,
            "expected --spark-version 3.5, 4.0",
        ),
        (
            &["--conf=spark.kubernetes.container.image=reg.example/spark:2.4.8", "--class", "a.B", "local:///x.jar"],
            2,
            "the tag says 2.4",
        ),
        (&[image, "--deploy-mode", "client", "--class", "a.B", "local:///x.jar"], 2, "expected --deploy-mode cluster"),
        (&[image, "--master", "yarn", "--class", "a.B", "local:///x.jar"], 2, "must start with k8s://"),
        // The API server refuses an object after the pod was created: the pod is deleted again.
        (
            &[
                image,
                "--class",
                "a.B",
                "--conf=spark.kubernetes.driver.service.ipFamilyPolicy=PreferDualStack",
                "--conf=spark.kubernetes.driver.service.label.a/b/c=d",
                "local:///x.jar",
            ],
            1,
            "was deleted again",
        ),
        (
            &[
                image,
                "--class",
                "a.B",
                "--conf=spark.kubernetes.namespace=no-such-namespace",
                "-n",
                "no-such-namespace",
                "local:///x.jar",
            ],
            1,
            "no-such-namespace",
        ),
        (
            &[image, "--class", "a.B", "--conf=spark.kubernetes.file.upload.path=hdfs://nn/up", "/etc/hostname"],
            1,
            "hdfs is not supported",
        ),
    ] {
        let done = submit(&cluster, arguments).await;
        let said = text(&done.stderr);
        assert_eq!(done.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(said.contains(words), "{arguments:?}: {said}");
        let left = cluster.pods().list(&ListParams::default()).await.unwrap().items;
        let left: Vec<_> = left.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()).collect();
        assert!(left.is_empty(), "{arguments:?}: {left:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn local_files_are_uploaded_to_s3_and_deleted_if_the_application_is_not_submitted() {
    let cluster = Cluster::start().await;
    let storage = Storage::start().await;
    let at = |name: &str| cluster.folder().join(name).display().to_string();
    // Names are those of the objects, whatever they have in them.
    let (jar, data) = (at("a b+ü%20~[1].jar"), at("data.bin"));
    std::fs::write(&jar, "jar").unwrap();
    // More than one part.
    std::fs::write(&data, vec![7; 12 << 20]).unwrap();
    let endpoint = format!("--conf=spark.hadoop.fs.s3a.endpoint={}", storage.endpoint);
    let settings = [
        endpoint.as_str(),
        "--conf=spark.hadoop.fs.s3a.path.style.access=true",
        "--conf=spark.hadoop.fs.s3a.access.key=own-key",
        "--conf=spark.hadoop.fs.s3a.secret.key=own-secret",
        "--conf=spark.hadoop.fs.s3a.endpoint.region=eu-west-3",
        "--conf=spark.kubernetes.file.upload.path=s3a://bucket/up",
        "--files",
        data.as_str(),
    ];
    let done = submit(&cluster, &[&PI[..], &settings, &[jar.as_str()]].concat()).await;
    assert!(done.status.success(), "{}", text(&done.stderr));
    let objects = storage.objects();
    let named = |end: &str| objects.iter().find(|(path, _)| path.ends_with(end)).unwrap().clone();
    assert_eq!((objects.len(), named("/data.bin").1, named(".jar").1), (2, 12 << 20, 3));
    assert!(named(".jar").0.ends_with("/a b+ü%20~[1].jar"), "{objects:?}");
    assert!(named(".jar").0.starts_with("/bucket/up/spark-upload-"), "{objects:?}");
    let credentials = storage.credentials();
    assert!(!credentials.is_empty());
    assert!(
        credentials.iter().all(|one| one.starts_with("own-key/") && one.contains("/eu-west-3/s3/")),
        "{credentials:?}"
    );
    let maps = objects_of_conf(&cluster).await;
    let uri = format!("spark.jars=s3a\\://bucket/up/{}", named(".jar").0.trim_start_matches("/bucket/up/"));
    assert!(maps.contains(&uri), "{maps}");
    // It is not submitted: nothing is left behind.
    let missing = ["--conf=spark.kubernetes.namespace=no-such-namespace", "-n", "no-such-namespace"];
    let done = submit(&cluster, &[&PI[..], &missing, &settings, &[jar.as_str()]].concat()).await;
    assert_eq!((done.status.code(), storage.objects()), (Some(1), objects), "{}", text(&done.stderr));
}

async fn objects_of_conf(cluster: &Cluster) -> String {
    let maps = objects(&cluster.client, &cluster.namespace, "", "ConfigMap", "configmaps");
    let maps = maps.list(&ListParams::default()).await.unwrap().items;
    maps.iter().filter_map(|map| map.data["data"]["spark.properties"].as_str()).collect()
}
