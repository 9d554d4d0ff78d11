//! The commands of operators, as processes of their own.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};

use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use super::cluster::Cluster;
use super::process::program;
use super::{PodBuilder, pod};

pub fn driver(name: &str, app: &str) -> PodBuilder {
    let mut driver = pod(name).driver_of(app);
    driver.0["spec"]["containers"][0]["name"] = "spark-kubernetes-driver".into();
    driver
}

pub fn kubeconfig(cluster: &Cluster) -> String {
    let path = cluster.folder().join("operator.kubeconfig").display().to_string();
    // A command that runs may read it.
    if !std::path::Path::new(&path).exists() {
        std::fs::write(&path, cluster.kubeconfig()).unwrap();
    }
    path
}

pub fn command(cluster: &Cluster, arguments: &[&str]) -> Command {
    let mut command = Command::new(program());
    let (name, rest) = arguments.split_first().unwrap();
    command.args([*name, "--kubeconfig", &kubeconfig(cluster)]);
    if !rest.contains(&"-A") {
        command.args(["-n", &cluster.namespace]);
    }
    command.args(rest);
    command.env("SPARK_CONF_DIR", "/nonexistent").env_remove("SPARK_HOME").env_remove("MASTER").stdin(Stdio::null());
    command
}

pub async fn run(cluster: &Cluster, arguments: &[&str]) -> (Option<i32>, String, String) {
    finished(command(cluster, arguments)).await
}

/// Runs a command to its end: its exit code, output and errors.
pub async fn finished(mut command: Command) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } =
        tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (status.code(), text(stdout), text(stderr))
}

/// A command that goes on, and its output so far.
pub struct Running {
    pub child: Child,
    out: Arc<Mutex<Vec<String>>>,
    pub err: Arc<Mutex<Vec<String>>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Running {
    pub fn start(cluster: &Cluster, arguments: &[&str]) -> Running {
        Running::of(command(cluster, arguments))
    }

    /// With SIGHUP as this option of env sets it: the tests themselves may run under nohup.
    pub fn with_hangup(option: &str, cluster: &Cluster, arguments: &[&str]) -> Running {
        let inner = command(cluster, arguments);
        let mut outer = Command::new("env");
        outer.arg(option).arg(inner.get_program()).args(inner.get_args()).stdin(Stdio::null());
        for (name, value) in inner.get_envs() {
            match value {
                Some(value) => outer.env(name, value),
                None => outer.env_remove(name),
            };
        }
        Running::of(outer)
    }

    fn of(mut command: Command) -> Running {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let read = |from: Box<dyn std::io::Read + Send>| {
            let lines: Arc<Mutex<Vec<String>>> = Arc::default();
            let to = lines.clone();
            std::thread::spawn(move || {
                BufReader::new(from).lines().map_while(Result::ok).for_each(|line| to.lock().unwrap().push(line));
            });
            lines
        };
        let (out, err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        Running { out: read(Box::new(out)), err: read(Box::new(err)), child }
    }

    pub fn out(&self) -> Vec<String> {
        self.out.lock().unwrap().clone()
    }

    pub fn all(&self) -> String {
        format!("{:?} {:?}", self.out(), self.err.lock().unwrap())
    }

    pub async fn says(&self, words: &str) {
        let is_said = || self.out().iter().chain(self.err.lock().unwrap().iter()).any(|line| line.contains(words));
        for _ in 0..300 {
            if is_said() {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
        panic!("expected {words:?}: {}", self.all());
    }

    pub async fn ended(&mut self) -> Option<i32> {
        for _ in 0..300 {
            if let Some(status) = self.child.try_wait().unwrap() {
                // Its output is read to the end.
                tokio::time::sleep(std::time::Duration::from_millis(200)).await;
                return status.code();
            }
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
        panic!("it goes on: {}", self.all());
    }

    pub fn interrupt(&self) {
        self.signal("INT");
    }

    pub fn signal(&self, name: &str) {
        let kill = [&format!("-{name}"), &self.child.id().to_string()];
        assert!(Command::new("kill").args(kill).status().unwrap().success());
    }
}

pub async fn status(cluster: &Cluster, name: &str, status: Value) {
    let patch = json!({ "status": status });
    cluster.pods().patch_status(name, &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
}

pub fn terminated(code: i32) -> Value {
    json!({"phase": if code == 0 { "Succeeded" } else { "Failed" }, "containerStatuses": [{"name": "spark-kubernetes-driver", "image": "i",
        "imageID": "", "ready": false, "restartCount": 0, "state": {"terminated": {"exitCode": code, "reason": if code == 137 { "OOMKilled" }
        else { "Completed" }, "startedAt": "2026-11-25T00:00:00Z", "finishedAt": "2026-11-25T00:01:00Z"}}}]})
}
