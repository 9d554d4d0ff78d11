//! spark-usher as a separate process, which tests can kill; and a relay to the API server that can fall silent.

#![allow(dead_code, unreachable_pub, clippy::disallowed_methods, reason = "each test file uses its part of it")]

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::cluster::Cluster;

/// A replica.
pub struct Process {
    child: Child,
    lines: Arc<Mutex<Vec<Value>>>,
    pub debug: SocketAddr,
    pub metrics: SocketAddr,
    pub webhook: SocketAddr,
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Process {
    /// Starts `spark-usher serve` with this policy file, for this kubeconfig; returns when it serves.
    pub fn start(cluster: &Cluster, name: &str, config: &str, kubeconfig: &str) -> Process {
        Process::start_by(&[], cluster, name, config, kubeconfig)
    }

    /// The same, started by another program that executes it, such as `taskset`.
    pub fn start_by(launcher: &[&str], cluster: &Cluster, name: &str, config: &str, kubeconfig: &str) -> Process {
        let ca = cluster.folder().join(format!("{name}.ca")).display().to_string();
        let certificate = ["--self-signed-for", "localhost", "--ca-out", &ca];
        Process::start_serving(&certificate, launcher, cluster, name, config, kubeconfig)
    }

    /// The same, with the certificate of these arguments.
    pub fn start_serving(
        certificate: &[&str],
        launcher: &[&str],
        cluster: &Cluster,
        name: &str,
        config: &str,
        kubeconfig: &str,
    ) -> Process {
        let at = |file: &str| cluster.folder().join(format!("{name}.{file}")).display().to_string();
        std::fs::write(at("yaml"), super::policy_file(config)).unwrap();
        std::fs::write(at("kubeconfig"), kubeconfig).unwrap();
        let any = "127.0.0.1:0";
        let program = program();
        let words: Vec<&str> = launcher.iter().copied().chain([&*program]).collect();
        let mut child = Command::new(words[0])
            .args(&words[1..])
            .args(["serve", "--config", &at("yaml"), "--kubeconfig", &at("kubeconfig"), "--identity", name])
            .args(["--namespace", &cluster.namespace, "--signing-secret", "spark-usher-signing"])
            .args(["--webhook-listen", any, "--metrics-listen", any, "--debug-listen", any])
            .args([
                "--log-format",
                "json",
                "--log",
                "info,spark_usher=debug",
                "--shutdown-delay-seconds",
                "1",
                "--drain-seconds",
                "1",
            ])
            // Later arguments take precedence.
            .args(certificate)
            .stderr(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let lines = Arc::new(Mutex::new(Vec::new()));
        let (collected, stderr) = (lines.clone(), child.stderr.take().unwrap());
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                let line = serde_json::from_str(&line).unwrap_or(Value::String(line));
                collected.lock().unwrap().push(line);
            }
        });
        let begin = Instant::now();
        let serving = loop {
            let line = lines.lock().unwrap().iter().find(|line: &&Value| line["message"] == "serving").cloned();
            match line {
                Some(line) => break line,
                None if begin.elapsed() > Duration::from_secs(20) => {
                    panic!("the process does not serve: {:?}", lines.lock().unwrap())
                }
                None => std::thread::sleep(Duration::from_millis(10)),
            }
        };
        let address = |key: &str| serving[key].as_str().unwrap().parse().unwrap();
        let (debug, metrics, webhook) = (address("debug"), address("metrics"), address("webhook"));
        Process { debug, metrics, webhook, child, lines }
    }

    /// The lines of its log with this message.
    pub fn log_lines(&self, message: &str) -> Vec<Value> {
        self.lines.lock().unwrap().iter().filter(|line| line["message"] == message).cloned().collect()
    }

    /// Its complete log, for messages of failed assertions.
    pub fn log(&self) -> String {
        self.lines.lock().unwrap().iter().map(|line| format!("{line}\n")).collect()
    }

    pub fn leads(&self) -> bool {
        let lines = self.lines.lock().unwrap();
        let last =
            lines.iter().rev().find(|line| line["message"] == "became leader" || line["message"] == "stopped leading");
        last.is_some_and(|line| line["message"] == "became leader")
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends SIGKILL.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits for its exit; returns whether it succeeded.
    pub fn wait(&mut self) -> bool {
        self.child.wait().unwrap().success()
    }

    /// Whether its /readyz succeeds.
    pub async fn is_ready(&self) -> bool {
        let Ok(mut stream) = TcpStream::connect(self.metrics).await else { return false };
        let mut answer = String::new();
        let written = stream.write_all(b"GET /readyz HTTP/1.0\r\nhost: localhost\r\n\r\n").await;
        let read = stream.read_to_string(&mut answer).await;
        written.is_ok() && read.is_ok() && answer.starts_with("HTTP/1.0 200")
    }

    /// Sends SIGTERM.
    pub fn terminate(&self) {
        let done = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status().unwrap();
        assert!(done.success());
    }

    /// A GET on the debug listener.
    pub async fn debug(&self, path: &str) -> Value {
        serde_json::from_str(&get(self.debug, path).await).unwrap()
    }
}

/// Sends a GET; returns the body of the response.
pub async fn get(address: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.0\r\nhost: localhost\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer.split_once("\r\n\r\n").unwrap().1.to_owned()
}

/// A relay in front of the API server's plain HTTP port, which can swallow the events of pod watches without closing these.
pub struct Relay {
    pub address: SocketAddr,
    /// Watches opened before this one are silent.
    silent_before: Arc<AtomicU64>,
    opened: Arc<AtomicU64>,
    swallow: Arc<AtomicBool>,
    pub swallowed: Arc<AtomicBool>,
}

impl Relay {
    pub async fn start(to: SocketAddr) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let relay = Relay {
            address: listener.local_addr().unwrap(),
            silent_before: Arc::default(),
            opened: Arc::new(AtomicU64::new(1)),
            swallow: Arc::default(),
            swallowed: Arc::default(),
        };
        let (silent, opened) = (relay.silent_before.clone(), relay.opened.clone());
        let (swallow, swallowed) = (relay.swallow.clone(), relay.swallowed.clone());
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (silent, opened) = (silent.clone(), opened.clone());
                let (swallow, swallowed) = (swallow.clone(), swallowed.clone());
                tokio::spawn(async move {
                    let Ok(server) = TcpStream::connect(to).await else { return };
                    let (mut from_client, mut to_client) = client.into_split();
                    let (mut from_server, mut to_server) = server.into_split();
                    // The number of the pod watch that uses this connection now, 0 for other requests: a client may use one
                    // connection for several watches, one after another.
                    let watch = Arc::new(AtomicU64::new(0));
                    let carried = watch.clone();
                    tokio::spawn(async move {
                        let mut buffer = vec![0; 64 << 10];
                        while let Ok(count @ 1..) = from_client.read(&mut buffer).await {
                            let text = String::from_utf8_lossy(&buffer[..count]);
                            let of_pods = text.contains("/api/v1/pods?") && text.contains("watch=true");
                            let number = if of_pods { opened.fetch_add(1, Ordering::SeqCst) } else { 0 };
                            carried.store(number, Ordering::SeqCst);
                            if to_server.write_all(&buffer[..count]).await.is_err() {
                                return;
                            }
                        }
                    });
                    let mut buffer = vec![0; 1 << 20];
                    while let Ok(count @ 1..) = from_server.read(&mut buffer).await {
                        let watch = watch.load(Ordering::SeqCst);
                        let pods = watch > 0;
                        let deleted = || buffer[..count].windows(9).any(|bytes| bytes == b"\"DELETED\"");
                        if pods && watch < silent.load(Ordering::SeqCst) {
                            // The connection stays silent: later bytes would not continue the swallowed ones.
                            std::future::pending::<()>().await;
                        }
                        if pods && swallow.load(Ordering::SeqCst) && deleted() {
                            swallowed.store(true, Ordering::SeqCst);
                            continue;
                        }
                        if to_client.write_all(&buffer[..count]).await.is_err() {
                            return;
                        }
                    }
                });
            }
        });
        relay
    }

    /// Silences the open watches of pods, without closing them.
    pub fn silence(&self) {
        self.silent_before.store(self.opened.load(Ordering::SeqCst), Ordering::SeqCst);
    }

    /// Whether to swallow deletions.
    pub fn swallow(&self, swallow: bool) {
        self.swallow.store(swallow, Ordering::SeqCst);
    }

    /// A kubeconfig for this relay.
    pub fn kubeconfig(&self) -> String {
        let server = format!("http://{}", self.address);
        serde_json::json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": server}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "default"}}],
            "users": [{"name": "u", "user": {}}],
        })
        .to_string()
    }
}

/// The program under test: `SPARK_USHER_PROGRAM`, such as one with the features of the image, or the one that cargo built with
/// the test.
pub fn program() -> String {
    std::env::var("SPARK_USHER_PROGRAM").unwrap_or_else(|_| env!("CARGO_BIN_EXE_spark-usher").to_owned())
}
