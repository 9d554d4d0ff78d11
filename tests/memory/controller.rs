//! The work and the memory of the controller: what `benches/scale.rs` and `benches/store.rs` measure, of smaller clusters, in
//! counts.

use allocation_counter::measure;
use jiff::Timestamp;
use spark_usher::snapshot::{Change, PodChange, Store};

use crate::pods::Recorded;
use crate::simulated::{Figures, Scenario};

/// A phase of a scenario: its plans, lookups and actions, and at most so many allocations for each event or executor.
struct Expected {
    what: &'static str,
    plans: usize,
    lookups: usize,
    actions: usize,
    allocations: f64,
}

const fn expected(what: &'static str, counts: [usize; 3], allocations: f64) -> Expected {
    let [plans, lookups, actions] = counts;
    Expected { what, plans, lookups, actions, allocations }
}

fn compare(scenario: &Scenario, all: &[Expected]) {
    let mut all = all.iter();
    let mut differ = Vec::new();
    scenario.run(
        |work| measure(work).count_total,
        |what, Figures { allocations, plans, lookups, actions, .. }, each| {
            let allocations = allocations as f64 / each.unwrap_or(1) as f64;
            let line = format!("expected({what:?}, [{plans}, {lookups}, {actions}], {allocations:.1}),");
            println!("{line}");
            let is_expected = all.next().is_some_and(|expected| {
                expected.what == what
                    && (expected.plans, expected.lookups, expected.actions) == (plans, lookups, actions)
                    && allocations <= expected.allocations
            });
            if !is_expected {
                differ.push(line);
            }
        },
    );
    assert!(differ.is_empty() && all.next().is_none(), "{}:\n{}", scenario.name, differ.join("\n"));
}

#[test]
fn one_large_application() {
    compare(
        &Scenario::owned("1 × 2,000", 1, 2_000),
        &[
            expected("the first list and every plan", [3, 0, 0], 5.2),
            expected("1,000 events per second and their plans", [40, 0, 0], 2.6),
            expected("one event and its plan", [100, 0, 0], 14.7),
            expected("a minute without events", [1, 0, 0], 22.6),
            expected("a poll in which every pod is newer", [0, 0, 0], 1.7),
            expected("a relist of all pods", [2, 0, 0], 4.7),
            expected("every executor fails, then ten minutes", [32, 0, 2000], 26.1),
            expected("every executor is deleted, then ten minutes", [15, 0, 0], 14.3),
        ],
    );
}

#[test]
fn many_small_applications() {
    compare(
        &Scenario::owned("2,000 × 1", 2_000, 2_000),
        &[
            expected("the first list and every plan", [6000, 0, 0], 41.8),
            expected("1,000 events per second and their plans", [9760, 0, 0], 13.4),
            expected("one event and its plan", [340, 0, 0], 35.7),
            expected("a minute without events", [2000, 0, 0], 37554.8),
            expected("a poll in which every pod is newer", [0, 0, 0], 1.7),
            expected("a relist of all pods", [2256, 0, 0], 19.1),
            expected("every executor fails, then ten minutes", [23308, 0, 2000], 147.3),
            expected("every executor is deleted, then ten minutes", [25296, 0, 0], 100.9),
        ],
    );
}

#[test]
fn many_gangs() {
    compare(
        &Scenario::gangs("400 gangs", 400, 2_000),
        &[
            expected("the first list and every plan", [1200, 0, 1600], 55.5),
            expected("1,000 events per second and their plans", [3600, 0, 3600], 24.8),
            expected("one event and its plan", [467, 0, 462], 267.1),
            expected("a minute without events", [400, 0, 400], 30809.6),
            expected("a poll in which every pod is newer", [0, 0, 0], 1.7),
            expected("a relist of all pods", [656, 0, 656], 23.7),
            expected("every executor fails, then ten minutes", [6916, 0, 8192], 194.3),
            expected("every executor is deleted, then ten minutes", [5856, 0, 5636], 147.8),
        ],
    );
}

/// Allocated bytes of the snapshot for each executor, as the benchmark `store` fills it.
#[test]
fn bytes_per_executor() {
    const EXECUTORS: usize = 20_000;
    let recorded = Recorded::read();
    let mut store = Store::default();
    let measured = measure(|| {
        for number in 0..EXECUTORS {
            let observation = recorded.observation(number, EXECUTORS / 100, "Running", 0);
            store.apply(Change::Pods(PodChange::Observed(observation)), Timestamp::UNIX_EPOCH);
        }
    });
    let each = measured.bytes_current as f64 / EXECUTORS as f64;
    println!("{each:.0} bytes per executor");
    assert!(each <= 530.0, "{each} bytes per executor");
}
