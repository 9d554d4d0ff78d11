//! What the snapshot store costs: memory for each executor, time for each event, and the plan's share; beside Spark's own
//! store on the same trace where `SPARK_JARS` names the folder with its jars.
//!
//! ```text
//! cargo bench --bench store
//! SPARK_JARS=…/pyspark-4.3.0/deps/jars cargo bench --bench store
//! ```

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::disallowed_methods,
    clippy::cast_precision_loss,
    reason = "a benchmark prints its figures"
)]

use std::hint::black_box;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde_json::Value;
use spark_usher::gang;
use spark_usher::lifecycle::{Desk, Now, Settings, Standing};
use spark_usher::policy::Policies;
use spark_usher::snapshot::{Calls, Change, Replaced, ServedApis, Sighting, Store};
use spark_usher::spark::pod::Pod;

const EXECUTORS: usize = 100_000;

/// Bytes of memory that this process has.
fn rss() -> f64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').nth(1).unwrap().parse::<f64>().unwrap() * 4096.0
}

/// A recorded executor, as a text with places for what differs.
struct Recorded {
    text: String,
}

impl Recorded {
    fn read() -> Recorded {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/fixtures/reviews/spark-4.3.0/client-mode/exec-1.mutate.create.json"
        );
        let review: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        let mut pod = review["request"]["object"].clone();
        pod["metadata"]["name"] = "@name".into();
        pod["metadata"]["namespace"] = "default".into();
        pod["metadata"]["uid"] = "@uid".into();
        pod["metadata"]["resourceVersion"] = "@version".into();
        pod["metadata"]["labels"]["spark-app-selector"] = "@app".into();
        pod["metadata"]["labels"]["spark-exec-id"] = "@id".into();
        pod["metadata"]["labels"]["spark-version"] = "4.3.0".into();
        pod["spec"]["nodeName"] = "@node".into();
        pod["status"] = serde_json::json!({"phase": "@phase", "podIP": "10.1.2.3", "containerStatuses": [
            {"name": "spark-kubernetes-executor", "image": "spark:4.3.0", "state": "@state"}]});
        Recorded { text: pod.to_string() }
    }

    fn sighting(&self, number: usize, apps: usize, phase: &str, version: usize) -> Sighting {
        let state = match phase {
            "Failed" => r#"{"terminated":{"exitCode":137,"reason":"Error","finishedAt":"2026-11-21T00:00:00Z"}}"#,
            "Running" => r#"{"running":{"startedAt":"2026-11-21T00:00:00Z"}}"#,
            _ => r#"{"waiting":{"reason":"ContainerCreating"}}"#,
        };
        let app = number % apps;
        let text = self
            .text
            .replace("@name", &format!("application-{app:05}-0123456789abcdef-exec-{}", number / apps))
            .replace("@uid", &format!("97f9289d-6793-4b51-9af9-{number:012}"))
            .replace("@version", &(1_000_000 + version).to_string())
            .replace("@app", &format!("spark-5ce218ea51d24d51bcb1500360d{app:05}"))
            .replace("\"@id\"", &format!("\"{}\"", number / apps))
            .replace("@node", &format!("ip-10-1-{}-{}.ec2.internal", number % 200, number % 7))
            .replace("@phase", phase)
            .replace("\"@state\"", state);
        Sighting::of(&Pod::read_whole(text.as_bytes()).unwrap(), &gang::seat_keys()).unwrap()
    }
}

struct Rng(u64);

impl Rng {
    fn below(&mut self, most: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % most as u64) as usize
    }
}

const PHASES: [&str; 3] = ["Pending", "Running", "Failed"];

/// A trace of events that are ready to be applied.
fn trace(recorded: &Recorded, apps: usize, events: usize, begin: usize) -> Vec<Change> {
    let mut rng = Rng(0x9E37_79B9 + begin as u64);
    (0..events)
        .map(|event| {
            let number = rng.below(EXECUTORS);
            Change::Pod(recorded.sighting(number, apps, PHASES[event % 3], begin + event + 1))
        })
        .collect()
}

fn memory(recorded: &Recorded) {
    let size = recorded.text.len();
    let before = rss();
    let mut store = Store::default();
    for number in 0..EXECUTORS {
        store.apply(Change::Pod(recorded.sighting(number, 1000, "Running", 0)), Timestamp::UNIX_EPOCH);
    }
    let each = (rss() - before) / EXECUTORS as f64;
    println!(
        "memory: {each:.0} bytes an executor (limit 600) for {EXECUTORS} pods of {size} bytes in 1,000 applications"
    );
    black_box(&store);
}

fn events(recorded: &Recorded, apps: usize, stalled: bool) -> f64 {
    let mut store = Store::default();
    let all = (0..EXECUTORS).map(|number| recorded.sighting(number, apps, "Running", 0)).collect();
    store.apply(Change::Replaced(Replaced::Pods(all)), Timestamp::UNIX_EPOCH);
    let mut now = Instant::now();
    let id = store.subscribe(Duration::from_secs(1), Calls::WithNews, now);
    let first = store.take(id, now);
    if !stalled {
        drop(first);
        store.done(id, now);
    }
    let (mut took, mut done, before) = (Duration::ZERO, 0, rss());
    let mut grown = 0.0;
    for round in 0..10 {
        let changes = trace(recorded, apps, 50_000, round * 50_000);
        let begun = rss();
        let begin = Instant::now();
        for change in changes {
            store.apply(change, Timestamp::UNIX_EPOCH);
            done += 1;
        }
        // A second of the clock has gone by: whoever keeps up is called.
        now += Duration::from_secs(1);
        if let Some(batch) = store.take(id, now) {
            black_box(&batch);
            store.done(id, now);
        }
        took += begin.elapsed();
        grown = rss() - begun;
    }
    let each = took.as_nanos() as f64 / f64::from(done);
    let kind = if stalled { "stalls  " } else { "keeps up" };
    let _ = before;
    println!(
        "store: {apps:>6} applications, a subscriber that {kind}: {each:>5.0} ns an event, {:>9.0} events/s, {:>4.0} bytes an event in the last round",
        1e9 / each,
        grown.max(0.0) / 50_000.0
    );
    1e9 / each
}

/// The whole desk at a thousand events a second.
fn desk(recorded: &Recorded, apps: usize) {
    let began = Instant::now();
    let wall = Timestamp::UNIX_EPOCH;
    let mut desk = Desk::new(began, Settings::default());
    let at = |since: Duration| Now { at: began + since, wall };
    let policies = Policies::default();
    desk.apply(Change::Apis(ServedApis::default()), at(Duration::ZERO));
    desk.apply(Change::Replaced(Replaced::Namespaces(Vec::new())), at(Duration::ZERO));
    let all = (0..EXECUTORS).map(|number| recorded.sighting(number, apps, "Running", 0)).collect();
    desk.apply(Change::Replaced(Replaced::Pods(all)), at(Duration::ZERO));
    let mut since = Duration::ZERO;
    let turn = |desk: &mut Desk, since: Duration| {
        let turn = desk.turn(at(since), &policies, Standing::Leading);
        for read in turn.reads {
            desk.answered(&read, spark_usher::lifecycle::Answer::Absent, at(since));
        }
        for (app, _) in turn.actions {
            desk.done(&app, false, false, began + since);
        }
    };
    for _ in 0..200 {
        since += Duration::from_millis(50);
        turn(&mut desk, since);
    }
    let seconds = 10;
    let changes = trace(recorded, apps, seconds * 1000, 0);
    let begin = Instant::now();
    let mut worst = Duration::ZERO;
    for (count, change) in changes.into_iter().enumerate() {
        since += Duration::from_millis(1);
        desk.apply(change, at(since));
        if count % 10 == 9 {
            let begin = Instant::now();
            turn(&mut desk, since);
            worst = worst.max(begin.elapsed());
        }
    }
    let share = begin.elapsed().as_secs_f64() / seconds as f64;
    println!(
        "desk:  {apps:>6} applications, 1,000 events a second: {:>5.1} % of a core, the longest turn {worst:?}",
        share * 100.0
    );
}

fn peer(apps: usize, ours: f64) {
    let Ok(jars) = std::env::var("SPARK_JARS") else {
        println!("peer: SKIPPED: set SPARK_JARS to the folder with Spark's jars (pip download pyspark, deps/jars)");
        return;
    };
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/spark_store/spark_store.py");
    let out = std::process::Command::new("python3")
        .args([
            script,
            "--jars",
            &jars,
            "--executors",
            "100000",
            "--apps",
            &apps.to_string(),
            "--subscriber",
            "keeping-up",
        ])
        .output()
        .unwrap();
    for line in String::from_utf8_lossy(&out.stdout).lines() {
        let Ok(row) = serde_json::from_str::<Value>(line) else { continue };
        if let Some(theirs) = row["events_per_second"].as_f64() {
            println!(
                "peer:  {apps:>6} applications, {}: {theirs:>9.0} events/s; ours {:.1} times that",
                row["peer"],
                ours / theirs
            );
        }
    }
    if !out.status.success() {
        println!("peer: failed: {}", String::from_utf8_lossy(&out.stderr));
    }
}

fn main() {
    // `cargo test --benches` runs it too: nothing to test.
    if !std::env::args().any(|arg| arg == "--bench") {
        return;
    }
    let recorded = Recorded::read();
    memory(&recorded);
    for apps in [1, 1000, 10_000] {
        desk(&recorded, apps);
    }
    for apps in [1, 1000, 10_000] {
        let ours = events(&recorded, apps, false);
        events(&recorded, apps, true);
        if apps <= 1000 {
            peer(apps, ours);
        }
    }
}
