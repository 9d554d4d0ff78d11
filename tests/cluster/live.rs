//! `spark-usher apps --watch`, in a pipe.

use std::process::Stdio;
use std::time::Duration;

use crate::support::cluster::Cluster;
use crate::support::process::program;
use crate::support::*;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader};

#[tokio::test(flavor = "multi_thread")]
async fn applications_are_printed_again_when_something_has_changed() {
    let cluster = Cluster::start().await;
    let mut app = cluster.usher_named("", "usher").await;
    app.has_synced().await;
    cluster.pod_by(&cluster.client, &pod("one").executor_of("spark-one", 1)).await;
    let debug = format!("http://{}", app.debug().unwrap());
    let mut command = tokio::process::Command::new(program());
    command.args(["apps", "--watch", "-o", "json", "-n", &cluster.namespace, "--replica", &debug]);
    let mut child = command.stdout(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = async || -> Vec<String> {
        let line = tokio::time::timeout(Duration::from_secs(30), lines.next_line()).await.expect("a line in 30 s");
        let apps: Vec<Value> = serde_json::from_str(&line.unwrap().unwrap()).unwrap();
        apps.iter().map(|app| app["app"].as_str().unwrap().to_owned()).collect()
    };
    while next().await != ["spark-one"] {}
    cluster.pod_by(&cluster.client, &pod("two").executor_of("spark-two", 1)).await;
    while next().await != ["spark-one", "spark-two"] {}
    app.stop().await.unwrap();
}

#[test]
fn first_read_that_fails_is_an_error() {
    let done = std::process::Command::new(program())
        .args(["apps", "--watch", "--replica", "http://127.0.0.1:9"])
        .output()
        .unwrap();
    assert_eq!(done.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&done.stderr).starts_with("error: "), "{done:?}");
}
