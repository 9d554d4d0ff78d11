//! The cost of the snapshot store: memory per executor, time per event, and the controller's share; compared with Spark's own
//! store on the same trace if `SPARK_JARS` names the folder with its jars.
//!
//! ```text
//! cargo bench --bench store
//! SPARK_JARS=…/pyspark-4.3.0/deps/jars cargo bench --bench store
//! ```
//!
//! The exit code is 1 if an executor takes more memory than the limit.

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

#[path = "support/pods.rs"]
mod pods;
#[path = "support/mod.rs"]
mod recorded;

use std::hint::black_box;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use pods::Recorded;
use serde_json::Value;
use smol_str::format_smolstr;
use usher_core::controller::{Controller, Settings};
use usher_core::leader::LeaderState;
use usher_core::policy::Policies;
use usher_core::snapshot::{Change, Notify, ObservedPod, PodChange, RelatedChange, ServedApis, Store, Watched};
use usher_spark::time::Now;

const EXECUTORS: usize = 100_000;
/// How long events are fed, as fast as the store accepts them.
const FEED: Duration = Duration::from_secs(5);

/// Resident bytes of this process.
fn rss() -> f64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').nth(1).unwrap().parse::<f64>().unwrap() * 4096.0
}

/// The trace of `spark_store/SparkStore.java`: executors drawn uniformly, each Pending, then alternately Running and Failed
/// (or Running and Pending, so that none exits). As there, all pods are read beforehand.
struct Trace {
    pods: Vec<[ObservedPod; 3]>,
    now: Vec<u8>,
    ends: bool,
    random: u64,
    version: usize,
}

const PENDING: u8 = 0;
const RUNNING: u8 = 1;
const FAILED: u8 = 2;

impl Trace {
    fn new(recorded: &Recorded, apps: usize, ends: bool) -> Trace {
        let pod = |number| ["Pending", "Running", "Failed"].map(|phase| recorded.observation(number, apps, phase, 0));
        let pods = (0..EXECUTORS).map(pod).collect();
        Trace { pods, now: vec![PENDING; EXECUTORS], ends, random: 88_172_645_463_325_252, version: 0 }
    }

    fn beginning(&self) -> Change {
        Change::Pods(PodChange::Listed(self.pods.iter().map(|pod| pod[0].clone()).collect()))
    }

    fn next(&mut self) -> Change {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let number = (self.random % EXECUTORS as u64) as usize;
        let next = match self.now[number] {
            RUNNING if self.ends => FAILED,
            RUNNING => PENDING,
            _ => RUNNING,
        };
        self.now[number] = next;
        let mut observation = self.pods[number][usize::from(next)].clone();
        self.version += 1;
        if let ObservedPod::Executor(_, executor) = &mut observation {
            executor.version = format_smolstr!("{}", 1_000_000 + self.version);
        }
        Change::Pods(PodChange::Observed(observation))
    }
}

/// The limit of the resident bytes per executor.
const LIMIT: f64 = 600.0;

/// Returns whether the memory is within the limit.
fn memory(recorded: &Recorded) -> bool {
    let size = recorded.text.len();
    let before = rss();
    let mut store = Store::default();
    for number in 0..EXECUTORS {
        store.apply(PodChange::Observed(recorded.observation(number, 1000, "Running", 0)));
    }
    let each = (rss() - before) / EXECUTORS as f64;
    println!(
        "memory: {each:.0} bytes per executor (limit {LIMIT}) for {EXECUTORS} pods of {size} bytes in 1,000 applications{}",
        if each <= LIMIT { "" } else { "  ABOVE THE LIMIT" }
    );
    black_box(&store);
    each <= LIMIT
}

/// Feeds the store as fast as it accepts events, with a subscriber that has Spark's interval of a second.
fn events(recorded: &Recorded, apps: usize, stalled: bool) -> f64 {
    let mut trace = Trace::new(recorded, apps, true);
    let mut store = Store::default();
    store.apply(trace.beginning());
    let begin = Instant::now();
    let id = store.subscribe(Duration::from_secs(1), Notify::OnChange, begin);
    drop(store.take(id, begin));
    if !stalled {
        store.done(id, begin);
    }
    let (mut events, mut half) = (0, 0.0);
    let took = loop {
        for _ in 0..256 {
            store.apply(trace.next());
        }
        events += 256;
        let now = Instant::now();
        if let Some(batch) = store.take(id, now) {
            black_box(&batch);
            store.done(id, now);
        }
        if half == 0.0 && now > begin + FEED / 2 {
            half = rss();
        }
        if now > begin + FEED {
            break now - begin;
        }
    };
    let each = took.as_nanos() as f64 / f64::from(events);
    let kind = if stalled { "stalls  " } else { "keeps up" };
    println!(
        "store: {apps:>6} applications, a subscriber that {kind}: {each:>5.0} ns per event, {:>9.0} events/s, {:>4.1} bytes per event in the second half",
        1e9 / each,
        (rss() - half).max(0.0) / f64::from(events / 2)
    );
    1e9 / each
}

/// Feeds the whole controller as fast as it accepts events, with exits, plans and lookups, as `cluster::event_loop` drives it.
fn controller_throughput(recorded: &Recorded, apps: usize) -> f64 {
    let mut trace = Trace::new(recorded, apps, false);
    let mut harness = Harness::open(trace.beginning());
    let (begin, mut events, mut stepped) = (Instant::now(), 0, Instant::now());
    let took = loop {
        for _ in 0..256 {
            harness.controller.watch_event(trace.next(), harness.at(begin.elapsed()));
        }
        events += 256;
        if stepped.elapsed() > Duration::from_millis(50) {
            harness.step(begin.elapsed());
            stepped = Instant::now();
        }
        if begin.elapsed() > FEED {
            harness.step(begin.elapsed());
            break begin.elapsed();
        }
    };
    let rate = f64::from(events) / took.as_secs_f64();
    println!("controller: {apps:>6} applications, at full speed: {rate:>9.0} events/s");
    rate
}

/// A controller and its inputs.
struct Harness {
    controller: Controller,
    began: Instant,
    policies: Policies,
}

impl Harness {
    fn open(pods: Change) -> Harness {
        let began = Instant::now();
        let harness =
            Harness { controller: Controller::new(began, Settings::default()), began, policies: Policies::default() };
        let mut harness = harness;
        let now = harness.at(Duration::ZERO);
        harness.controller.watch_event(RelatedChange::Apis(ServedApis::default()), now);
        harness.controller.watch_event(RelatedChange::Namespaces(Watched::Listed(Vec::new())), now);
        harness.controller.watch_event(pods, now);
        harness
    }

    fn at(&self, since: Duration) -> Now {
        Now { at: self.began + since, wall: Timestamp::UNIX_EPOCH }
    }

    fn step(&mut self, since: Duration) {
        let effects = self.controller.step(self.at(since), &self.policies, LeaderState::Leader);
        for read in effects.lookups {
            self.controller.lookup_answered(&read, usher_core::controller::LookupResult::Absent, self.at(since));
        }
        for (set, _) in effects.actions {
            self.controller.actions_finished(&set, false, false, self.began + since);
        }
    }
}

/// The whole controller at a thousand events per second.
fn controller_latency(recorded: &Recorded, apps: usize) {
    let mut trace = Trace::new(recorded, apps, true);
    let mut harness = Harness::open(trace.beginning());
    let mut since = Duration::ZERO;
    for _ in 0..200 {
        since += Duration::from_millis(50);
        harness.step(since);
    }
    let seconds = 10;
    let (begin, mut worst) = (Instant::now(), Duration::ZERO);
    for count in 0..seconds * 1000 {
        since += Duration::from_millis(1);
        harness.controller.watch_event(trace.next(), harness.at(since));
        if count % 10 == 9 {
            let begin = Instant::now();
            harness.step(since);
            worst = worst.max(begin.elapsed());
        }
    }
    let share = begin.elapsed().as_secs_f64() / f64::from(seconds);
    println!(
        "controller: {apps:>6} applications, 1,000 events per second: {:>5.1} % of a core, the longest step {worst:?}",
        share * 100.0
    );
}

/// Spark's own store on the same trace.
fn peer(apps: usize, subscriber: &str, what: &str, ours: f64) {
    let Ok(jars) = std::env::var("SPARK_JARS") else {
        println!("peer: SKIPPED: requires SPARK_JARS, the folder with Spark's jars (pip download pyspark, deps/jars)");
        return;
    };
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/spark_store/spark_store.py");
    let (executors, apps_text) = (EXECUTORS.to_string(), apps.to_string());
    let out = std::process::Command::new("python3")
        .args([script, "--jars", &jars, "--executors", &executors, "--apps", &apps_text, "--subscriber", subscriber])
        .output()
        .unwrap();
    for line in String::from_utf8_lossy(&out.stdout).lines() {
        let Ok(row) = serde_json::from_str::<Value>(line) else { continue };
        if let Some(theirs) = row["events_per_second"].as_f64() {
            println!(
                "peer:  {apps:>6} applications, {}'s {what}: {theirs:>9.0} events/s, {:.0} bytes per event; spark-usher is {:.1} times as fast",
                row["peer"].as_str().unwrap(),
                row["bytes_per_event"].as_f64().unwrap(),
                ours / theirs
            );
        }
    }
    if !out.status.success() {
        println!("peer: failed: {}", String::from_utf8_lossy(&out.stderr));
    }
}

fn main() -> ExitCode {
    // `cargo test --benches` also runs this program, without a test.
    if !std::env::args().any(|arg| arg == "--bench") {
        return ExitCode::SUCCESS;
    }
    let recorded = Recorded::read();
    let is_within = memory(&recorded);
    for apps in [1, 1000, 10_000] {
        controller_latency(&recorded, apps);
    }
    for apps in [1, 1000, 10_000] {
        let keeps_up = events(&recorded, apps, false);
        let stalls = events(&recorded, apps, true);
        let controller_throughput = controller_throughput(&recorded, apps);
        if apps <= 1000 {
            peer(apps, "keeping-up", "store", keeps_up);
            peer(apps, "stalled", "store with a stalled subscriber", stalls);
            peer(apps, "manager", "store with its lifecycle manager", controller_throughput);
        }
    }
    if is_within { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
