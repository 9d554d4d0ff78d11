//! The cost of the drivers' views and of the recovery rules: 10,000 applications with 100,000 executors, and a view of each driver
//! every 30 seconds. First the controller alone, in simulated time; then the polls over HTTP, against a server on loopback that
//! answers what a driver of ten executors answers. The exit code is 1 if a step of the controller takes longer than the limit.
//!
//! ```text
//! cargo bench --bench recovery
//! ```

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::disallowed_methods,
    clippy::cast_precision_loss,
    reason = "a benchmark prints its results"
)]

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::Path;
use axum::routing::get;
use futures::StreamExt;
use jiff::Timestamp;
use serde_json::{Value, json};
use usher_core::controller::{Controller, DriverAnswer, LookupResult, Settings};
use usher_core::drivers::DriverPoll;
use usher_core::gang;
use usher_core::leader::LeaderState;
use usher_core::policy::{DriverAccess, Policies};
use usher_core::signature::Creator;
use usher_core::snapshot::{DriverViewKey, ObservedPod, RelatedChange, ServedApis, Watched};
use usher_server::cluster::driver_api::DriverApi;
use usher_spark::conf::Ui;
use usher_spark::ids::{AppKey, PodKey};
use usher_spark::pod::Pod;
use usher_spark::rest::{DriverMetrics, ExecutorSummary};
use usher_spark::time::Now;

const APPS: usize = 10_000;
const EXECUTORS: usize = 10;
/// The limit of the longest step.
const LIMIT: Duration = Duration::from_millis(10);
/// The simulated time that is measured.
const MEASURED: Duration = Duration::from_secs(120);
/// Polls over HTTP, and how many at a time, as the controller limits them.
const POLLS: usize = 20_000;
const IN_FLIGHT: usize = 64;

fn main() -> ExitCode {
    // `cargo test --benches` also runs this program, without a test.
    if !std::env::args().any(|arg| arg == "--bench") {
        return ExitCode::SUCCESS;
    }
    let is_within = controller();
    polls();
    if is_within { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn observed(pod: &Value) -> ObservedPod {
    ObservedPod::of(&Pod::read_whole(pod.to_string().as_bytes()).unwrap(), gang::scheduling_keys()).unwrap()
}

fn app(number: usize) -> String {
    format!("spark-5ce218ea51d24d51bcb1500360d{number:05}")
}

/// The driver of an application, and its executors.
fn pods(number: usize) -> impl Iterator<Item = ObservedPod> {
    let (name, uid) = (format!("driver-{number}"), format!("uid-driver-{number}"));
    let driver = observed(&json!({
        "metadata": {"name": name, "namespace": "default", "uid": uid, "resourceVersion": "1000",
            "labels": {"spark-role": "driver", "spark-app-selector": app(number)}},
        "spec": {"containers": [{"name": "spark-kubernetes-driver"}]},
        "status": {"phase": "Running", "podIP": format!("10.{}.{}.1", number / 250, number % 250)}}));
    let executor = move |id: usize| {
        observed(&json!({
            "metadata": {"name": format!("exec-{number}-{id}"), "namespace": "default", "uid": format!("uid-{number}-{id}"),
                "resourceVersion": "1000", "labels": {"spark-role": "executor", "spark-app-selector": app(number),
                    "spark-exec-id": id.to_string(), "spark-version": "4.3.0", "spark-exec-resourceprofile-id": "0"},
                "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid, "controller": true}]},
            "spec": {"nodeName": format!("node-{}", id % 200), "containers": [{"name": "spark-kubernetes-executor"}]},
            "status": {"phase": "Running"}}))
    };
    std::iter::once(driver).chain((1..=EXECUTORS).map(executor))
}

/// A driver's view in which all executors are registered.
fn view() -> DriverAnswer {
    let row = |id: usize| ExecutorSummary {
        id: Some(id as u64),
        is_active: true,
        is_excluded: false,
        registered: Some(Timestamp::UNIX_EPOCH),
        removed: None,
        remove_reason: None,
    };
    let metrics = DriverMetrics { dropped_events: Some(0), queued_events: Some(0), target: None };
    DriverAnswer::View { port: 4040, executors: (1..=EXECUTORS).map(row).collect(), metrics, conf: None }
}

/// Bytes of this process in memory.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    status.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).unwrap_or_default() * 4096
}

struct Measured {
    spent: Duration,
    longest: Duration,
    polls: usize,
    steps: usize,
}

/// Returns whether every step was within the limit.
fn controller() -> bool {
    let before = resident();
    let mut is_within = true;
    for with_views in [true, false] {
        let began = Instant::now();
        let mut policies = Policies::default();
        if !with_views {
            let mut recovery = policies.recovery.clone();
            recovery.driver_view.access = DriverAccess::None;
            policies = policies.with_recovery(recovery);
        }
        let mut controller = Controller::new(began, Settings::default());
        let mut since = Duration::ZERO;
        let now = |since: Duration| Now { at: began + since, wall: Timestamp::UNIX_EPOCH + since };
        for change in
            [RelatedChange::Apis(ServedApis::default()), RelatedChange::Namespaces(Watched::Listed(Vec::new()))]
        {
            controller.watch_event(change, now(since));
        }
        controller.list_started(now(since));
        for number in 0..APPS {
            controller.list_page(pods(number).collect(), now(since));
            controller.step(now(since), &policies, LeaderState::Leader);
            since += Duration::from_millis(1);
        }
        controller.list_finished(now(since));
        controller.bookmark("2000", now(since));
        let mut run = |time: Duration| {
            let mut measured = Measured { spent: Duration::ZERO, longest: Duration::ZERO, polls: 0, steps: 0 };
            let until = since + time;
            let mut polls: Vec<DriverPoll> = Vec::new();
            while since < until {
                let begin = Instant::now();
                for poll in polls.drain(..) {
                    let kept = controller.driver_answered(&poll.key, view(), now(since), &policies);
                    assert!(kept.is_ok(), "{kept:?}");
                }
                let effects = controller.step(now(since), &policies, LeaderState::Leader);
                let took = begin.elapsed();
                measured.spent += took;
                measured.longest = measured.longest.max(took);
                measured.polls += effects.driver_polls.len();
                measured.steps += 1;
                polls = effects.driver_polls;
                for (set, _) in effects.actions {
                    controller.actions_finished(&set, false, false, now(since).at);
                }
                for read in effects.lookups {
                    controller.lookup_answered(&read, LookupResult::Absent, now(since));
                }
                // A poll takes some milliseconds.
                let wake = effects.wake_at.map_or(time, |wake| wake.saturating_duration_since(now(since).at));
                let wait = if polls.is_empty() { wake } else { Duration::from_millis(5) };
                since = (since + wait.max(Duration::from_millis(1))).min(until);
            }
            measured
        };
        run(Duration::from_secs(90)); // Until every driver was polled, and every application was planned.
        let Measured { spent, longest, polls, steps } = run(MEASURED);
        let seconds = MEASURED.as_secs_f64();
        let what = if with_views { "with views" } else { "without views" };
        is_within &= longest <= LIMIT;
        let verdict = if longest <= LIMIT { "" } else { "  ABOVE THE LIMIT" };
        println!(
            "controller {what}: {:.2} % of a core, {:.0} polls per second, {steps} steps, longest step {longest:.2?} \
             (limit {LIMIT:?}){verdict}",
            spent.as_secs_f64() / seconds * 100.0,
            polls as f64 / seconds,
        );
        if with_views {
            let memory = resident() - before;
            println!("memory: {} MiB for {APPS} applications of {EXECUTORS} executors, with their views", memory >> 20);
        }
    }
    is_within
}

/// The body of a driver of ten executors: the recorded row, ten times.
fn body() -> String {
    let recorded: Value =
        serde_json::from_str(include_str!("../tests/fixtures/driver-api/4.3.0/allexecutors.json")).unwrap();
    let row = recorded.as_array().unwrap().iter().find(|row| row["id"] != "driver").unwrap();
    let rows = (1..=EXECUTORS).map(|id| {
        let mut row = row.clone();
        row["id"] = id.to_string().into();
        row["isActive"] = true.into();
        row
    });
    Value::Array(rows.collect()).to_string()
}

fn polls() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (address, bytes, served) = serve();
    let client = runtime.block_on(async {
        let url = format!("http://{address}").parse().unwrap();
        kube::Client::try_from(kube::Config::new(url)).unwrap()
    });
    let api = DriverApi::over_network(client);
    let poll = |number: usize| DriverPoll {
        key: DriverViewKey { app: AppKey::new("default", &app(number)), driver: Creator::of_pod("d", "u") },
        pod: PodKey::new("default", "d"),
        uid: "u".into(),
        max_rows: 1_000_000,
        reads_conf: false,
        address: address.ip().to_string().into(),
        ui: Ui { port: address.port(), ..Ui::default() },
        port: Some(address.port()),
        is_first: false,
        access: DriverAccess::Pod,
    };
    let (begin, cpu) = (Instant::now(), cpu_time());
    let answered = runtime.block_on(
        futures::stream::iter((0..POLLS).map(|number| api.poll(poll(number % APPS))))
            .buffer_unordered(IN_FLIGHT)
            .filter(|answer| std::future::ready(matches!(answer, DriverAnswer::View { .. })))
            .count(),
    );
    let (took, cpu) = (begin.elapsed(), cpu_time() - cpu);
    assert_eq!(answered, POLLS);
    let wanted = APPS as f64 / 30.0;
    let rate = POLLS as f64 / took.as_secs_f64();
    println!(
        "polls over HTTP, {IN_FLIGHT} at a time: {rate:.0} per second ({wanted:.0} are needed), {:.0} µs of CPU each: {:.1} % of a \
         core; {:.1} requests and {:.1} kB for each poll, from each driver every 30 seconds; the API server sees none",
        cpu.as_secs_f64() * 1e6 / POLLS as f64,
        cpu.as_secs_f64() / POLLS as f64 * wanted * 100.0,
        served.load(Ordering::Relaxed) as f64 / POLLS as f64,
        bytes.load(Ordering::Relaxed) as f64 / POLLS as f64 / 1e3,
    );
}

/// CPU time of this thread: the server runs on another one.
fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(stat.split(' ').next().unwrap().parse().unwrap())
}

/// A server that answers for every application; the bytes and the requests that it served.
fn serve() -> (SocketAddr, Arc<AtomicUsize>, Arc<AtomicUsize>) {
    let (bytes, served) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
    let (counted, requests) = (bytes.clone(), served.clone());
    let (sent, received) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            sent.send(listener.local_addr().unwrap()).unwrap();
            let metrics = include_str!("../tests/fixtures/driver-api/4.3.0/metrics.json");
            let answer = move |body: String| {
                counted.fetch_add(body.len(), Ordering::Relaxed);
                requests.fetch_add(1, Ordering::Relaxed);
                body
            };
            let (rows, of_metrics) = (body(), answer.clone());
            let routes = Router::new()
                .route(
                    "/api/v1/applications/{app}/allexecutors",
                    get(move |Path(_): Path<String>| std::future::ready(answer(rows.clone()))),
                )
                .route("/metrics/json/", get(move || std::future::ready(of_metrics(metrics.to_owned()))));
            axum::serve(listener, routes).await.unwrap();
        });
    });
    (received.recv().unwrap(), bytes, served)
}
