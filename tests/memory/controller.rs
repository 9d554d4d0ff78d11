//! The work and the memory of the controller: what `benches/scale.rs` and `benches/store.rs` measure, of smaller clusters, in
//! counts.

use allocation_counter::measure;
use usher_core::snapshot::{PodChange, Store};

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
        &Scenario::owned("1 × 1,000", 1, 1_000),
        &[
            expected("the first list and every plan", [3, 0, 0], 5.3),
            expected("1,000 events per second and their plans", [40, 0, 0], 2.6),
            expected("one event and its plan", [100, 0, 0], 13.6),
            expected("a minute without events", [1, 0, 0], 8.9),
            expected("a poll in which every pod is newer", [0, 0, 0], 1.8),
            expected("a relist of all pods", [2, 0, 0], 4.8),
            expected("every executor fails, then ten minutes", [20, 0, 1000], 24.8),
            expected("every executor is deleted, then ten minutes", [14, 0, 0], 15.2),
        ],
    );
}

#[test]
fn many_small_applications() {
    compare(
        &Scenario::owned("1,000 × 1", 1_000, 1_000),
        &[
            expected("the first list and every plan", [3000, 0, 0], 41.9),
            expected("1,000 events per second and their plans", [9760, 0, 0], 12.3),
            expected("one event and its plan", [340, 0, 0], 35.3),
            expected("a minute without events", [1000, 0, 0], 8723.9),
            expected("a poll in which every pod is newer", [0, 0, 0], 1.8),
            expected("a relist of all pods", [1256, 0, 0], 20.2),
            expected("every executor fails, then ten minutes", [12000, 0, 1000], 152.0),
            expected("every executor is deleted, then ten minutes", [12128, 0, 0], 96.5),
        ],
    );
}

#[test]
fn many_gangs() {
    compare(
        &Scenario::gangs("200 gangs", 200, 1_000),
        &[
            expected("the first list and every plan", [600, 0, 800], 55.3),
            expected("1,000 events per second and their plans", [1800, 0, 1800], 16.2),
            expected("one event and its plan", [271, 1, 268], 166.4),
            expected("a minute without events", [200, 0, 200], 15833.5),
            expected("a poll in which every pod is newer", [0, 0, 0], 1.8),
            expected("a relist of all pods", [400, 0, 400], 28.1),
            expected("every executor fails, then ten minutes", [2916, 0, 3527], 164.3),
            expected("every executor is deleted, then ten minutes", [2728, 0, 2728], 140.5),
        ],
    );
}

/// Allocated bytes of the snapshot for each executor, as the benchmark `store` fills it.
#[test]
fn bytes_per_executor() {
    const EXECUTORS: usize = 10_000;
    let recorded = Recorded::read();
    let mut store = Store::default();
    let measured = measure(|| {
        for number in 0..EXECUTORS {
            let observation = recorded.observation(number, EXECUTORS / 100, "Running", 0);
            store.apply(PodChange::Observed(observation));
        }
    });
    let each = measured.bytes_current as f64 / EXECUTORS as f64;
    println!("{each:.0} bytes per executor");
    assert!(each <= 545.0, "{each} bytes per executor");
}
