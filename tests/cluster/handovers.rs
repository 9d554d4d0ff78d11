//! Two replicas with graceful handovers and SIGKILLs while executors come and go: every exit is reported once, or is marked as
//! possibly reported.
//!
//! If `KUBEBUILDER_ASSETS` is set, the test runs ten handovers, five kills and 500 executors on a real API server, and then ten kills
//! in a row and a stall of the API server of 40 s: few exits are reported again. If
//! `SPARK_USHER_BEFORE` names the program of an earlier version, the first and the last replicas run that one, as in a rolling
//! upgrade that is rolled back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::support::cluster::{Cluster, eventually};
use crate::support::process::{Process, get};
use crate::support::*;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::events::v1::Event;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams};
use serde_json::json;

const CONFIG: &str = "lifecycle: {finished: report, poll: 5s}";

/// How the leader ends.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    Stopped,
    Killed,
    /// The API server does not respond for [`STALL`].
    Stalled,
}

const STALL: Duration = Duration::from_secs(40);

/// The exit of each executor as replicas report it: when, by which one, and whether it may be a repetition.
type Reports = BTreeMap<String, Vec<(String, usize, bool)>>;

/// The program of an earlier version, if set.
fn earlier_program() -> Option<String> {
    std::env::var("SPARK_USHER_BEFORE").ok()
}

fn start(cluster: &Cluster, number: usize, old: bool) -> Process {
    let name = format!("replica-{number}");
    let before = earlier_program().filter(|_| old).map(|program| format!("shift; exec {program} \"$@\""));
    let launcher: Vec<&str> = before.iter().flat_map(|script| ["sh", "-c", script, "sh"]).collect();
    Process::start_by(&launcher, cluster, &name, CONFIG, &cluster.kubeconfig())
}

fn reported_exits(replicas: &[Process]) -> Reports {
    let mut reports = Reports::new();
    for (number, replica) in replicas.iter().enumerate() {
        for line in replica.log_lines("executor exited") {
            let text = |key: &str| line[key].as_str().unwrap().to_owned();
            let pod = text("pod").rsplit('/').next().unwrap().to_owned();
            reports.entry(pod).or_default().push((text("timestamp"), number, line["possibly_reported"] == true));
        }
    }
    reports.values_mut().for_each(|lines| lines.sort());
    reports
}

/// Deletes a pod. An API server that was stalled may have executed a request that the client sends again.
async fn delete(cluster: &Cluster, name: &str) {
    match cluster.pods().delete(name, &DeleteParams::default().grace_period(0)).await {
        Err(kube::Error::Api(status)) if status.code == 404 => {}
        deleted => drop(deleted.unwrap()),
    }
}

/// One executor: it starts, runs for a while, and exits in one of three ways.
async fn run_executor(cluster: &Cluster, id: u32) {
    let name = format!("nb-exec-{id}");
    cluster.pod_by(&cluster.client, &executor(id)).await;
    cluster.phase(&name, "Running").await;
    tokio::time::sleep(Duration::from_millis(u64::from(id * 37 % 900))).await;
    let exit = json!({"status": {"phase": "Failed", "containerStatuses": [{"name": "main", "image": "spark",
        "imageID": "", "ready": false, "restartCount": 0,
        "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled", "finishedAt": whole_seconds()}}}]}});
    match id % 3 {
        // It is deleted, and only the watch shows that.
        0 => delete(cluster, &name).await,
        // It exits, and its pod stays.
        1 => drop(cluster.pods().patch_status(&name, &PatchParams::default(), &Patch::Strategic(&exit)).await.unwrap()),
        // It exits, and its driver deletes it a moment later.
        _ => {
            cluster.pods().patch_status(&name, &PatchParams::default(), &Patch::Strategic(&exit)).await.unwrap();
            tokio::time::sleep(Duration::from_millis(50)).await;
            delete(cluster, &name).await;
        }
    }
}

/// Executors come and go until `stop` is set, at least this many. Returns their number.
async fn run_executors(cluster: &Cluster, least: u32, stop: &AtomicBool) -> u32 {
    let mut id = 0;
    while id < least || !stop.load(Ordering::Relaxed) {
        let some = futures::future::join_all((id + 1..=id + 4).map(|id| run_executor(cluster, id)));
        some.await;
        id += 4;
        // More slowly after the minimum: the last ones are for the last handovers.
        if id >= least {
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }
    id
}

/// Sends a signal to the process of a real API server. While it is stopped, connections are accepted, and nothing is answered.
fn signal(cluster: &Cluster, signal: &str) {
    let api_server = cluster.api_server().unwrap().to_string();
    assert!(std::process::Command::new("kill").args([signal, &api_server]).status().unwrap().success());
}

/// The running replica that leads.
fn leader(replicas: &[Process], stopped: &BTreeSet<usize>) -> Option<usize> {
    replicas.iter().enumerate().position(|(at, replica)| !stopped.contains(&at) && replica.leads())
}

/// Waits until a replica has listed pods. What no replica has observed, none can report.
async fn observes(replica: &Process) {
    eventually("the replica has listed pods", async || {
        replica.debug("/debug/apps").await.as_array().is_some_and(|apps| !apps.is_empty())
    })
    .await;
}

async fn events(cluster: &Cluster) -> (i64, i64) {
    let events: Api<Event> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let (mut sure, mut possibly_reported) = (0, 0);
    for event in events.list(&ListParams::default()).await.unwrap().items {
        let count = event.series.as_ref().map_or(1, |series| i64::from(series.count));
        let is_exit =
            event.reason.as_deref().is_some_and(|reason| reason == "ExecutorEnded" || reason.contains("Executor"));
        if is_exit && event.note.as_deref().is_some_and(|note| note.contains("may have been")) {
            possibly_reported += count;
        } else if is_exit {
            sure += count;
        }
    }
    (sure, possibly_reported)
}

async fn run_scenario(cluster: &Cluster, steps: &[(Step, bool)], executors: u32) {
    cluster.pod_by(&cluster.client, &pod("nb-driver").driver_of(APP)).await;
    cluster.phase("nb-driver", "Running").await;
    let old = earlier_program().is_some();
    let mut replicas = vec![start(cluster, 0, old), start(cluster, 1, old)];
    let mut earlier_versions: Vec<bool> = vec![old, old];
    let mut stopped = BTreeSet::new();
    eventually("a replica leads", async || leader(&replicas, &stopped).is_some()).await;
    observes(&replicas[0]).await;
    observes(&replicas[1]).await;
    let stop = AtomicBool::new(false);
    let handovers = async {
        for (step, old) in steps {
            tokio::time::sleep(Duration::from_millis(1500)).await;
            if *step == Step::Stalled {
                signal(cluster, "-STOP");
                tokio::time::sleep(STALL).await;
                signal(cluster, "-CONT");
                eventually("a replica leads again", async || leader(&replicas, &stopped).is_some()).await;
                continue;
            }
            let first = leader(&replicas, &stopped).unwrap();
            // As in a rollout, the next replica starts before the old one stops.
            replicas.push(start(cluster, replicas.len(), *old));
            observes(&replicas[replicas.len() - 1]).await;
            earlier_versions.push(*old);
            if *step == Step::Stopped {
                replicas[first].terminate();
                assert!(replicas[first].wait());
            } else {
                replicas[first].kill();
            }
            stopped.insert(first);
            eventually("another replica leads", async || leader(&replicas, &stopped).is_some()).await;
            // At most two run for long.
            if replicas.len() - stopped.len() > 2 {
                let idle = replicas.iter().enumerate().find(|(at, other)| !stopped.contains(at) && !other.leads());
                let (idle, _) = idle.unwrap();
                replicas[idle].terminate();
                assert!(replicas[idle].wait());
                stopped.insert(idle);
            }
        }
        stop.store(true, Ordering::Relaxed);
    };
    let (count, ()) = tokio::join!(run_executors(cluster, executors, &stop), handovers);
    let all: BTreeSet<String> = (1..=count).map(|id| format!("nb-exec-{id}")).collect();
    let missing = |reports: &Reports| all.iter().filter(|pod| !reports.contains_key(*pod)).cloned().collect::<Vec<_>>();
    for _ in 0..40 {
        if missing(&reported_exits(&replicas)).is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    // Repeated reports come late.
    tokio::time::sleep(Duration::from_secs(8)).await;
    let reports = reported_exits(&replicas);
    let marked = reports.values().flatten().filter(|(.., possibly_reported)| *possibly_reported).count();
    let (sure, possibly_reported) = events(cluster).await;
    println!(
        "{count} executors, {} handovers: {} exits reported, {marked} of them as possibly reported; Events count {sure} and {possibly_reported}",
        steps.len(),
        reports.values().map(Vec::len).sum::<usize>()
    );
    assert_eq!(missing(&reports), Vec::<String>::new(), "never reported");
    // Repetitions by the earlier version alone do not count.
    let is_repeated = |lines: &[(String, usize, bool)]| {
        lines
            .iter()
            .enumerate()
            .any(|(at, (_, replica, possibly_reported))| at > 0 && !possibly_reported && !earlier_versions[*replica])
    };
    let twice: Vec<_> = reports.iter().filter(|(_, lines)| is_repeated(lines)).collect();
    assert!(
        twice.is_empty(),
        "reported twice without a checkpoint: {twice:?}; {earlier_versions:?} are reports of the earlier version"
    );
    assert!(reports.keys().all(|pod| all.contains(pod)));
    // Each kill repeats what its leader had reported since its last checkpoint, not what earlier kills have repeated.
    let repeated = reports.values().map(Vec::len).sum::<usize>() - reports.len();
    println!("{repeated} repetitions");
    assert!(!cluster.is_real() || earlier_program().is_some() || repeated <= all.len() / 4, "{repeated}: {reports:#?}");
    // Only a kill, or a version without checkpoints, causes possible repetitions.
    if steps.iter().all(|(step, _)| *step == Step::Stopped) && earlier_program().is_none() {
        assert_eq!(marked, 0);
    }
    for (_, replica) in replicas.iter().enumerate().filter(|(at, _)| !stopped.contains(at)) {
        let lines = replica.log_lines("executor exited");
        let metrics = get(replica.metrics, "/metrics").await;
        let sum = |name: &str| -> usize {
            let own = metrics.lines().filter(|line| line.starts_with(&format!("{name}{{")));
            own.map(|line| line.rsplit(' ').next().unwrap().parse::<usize>().unwrap()).sum()
        };
        let possibly_reported = lines.iter().filter(|line| line["possibly_reported"] == true).count();
        assert_eq!(
            sum("spark_usher_executor_exits_total"),
            lines.len() - possibly_reported,
            "the metric counts what the log reports"
        );
        if earlier_program().is_none() {
            assert_eq!(sum("spark_usher_executor_exits_possibly_repeated_total"), possibly_reported);
        }
    }
    let pods: Vec<Pod> = cluster.pods().list(&ListParams::default()).await.unwrap().items;
    assert!(pods.iter().any(|pod| pod.name_any() == "nb-driver"));
}

#[tokio::test(flavor = "multi_thread")]
async fn exits_are_reported_once_through_handovers_and_kills() {
    let cluster = Cluster::start().await;
    let (stops, kills, executors) = if cluster.is_real() { (10, 5, 500) } else { (3, 1, 80) };
    // With an earlier version: from that one to this one and back.
    let old = |at: usize| earlier_program().is_some() && (at < 2 || at % 5 == 4);
    let mut steps: Vec<(Step, bool)> = (0..stops + kills)
        .map(|at| (if at % 3 == 2 && at / 3 < kills { Step::Killed } else { Step::Stopped }, old(at)))
        .collect();
    if cluster.is_real() {
        steps.extend([(Step::Killed, false); 5]);
        steps.push((Step::Stalled, false));
        steps.extend([(Step::Killed, false); 5]);
    }
    run_scenario(&cluster, &steps, executors).await;
}
