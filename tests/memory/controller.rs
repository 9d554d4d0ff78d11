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
    compare(&Scenario::owned("1 × 2,000", 1, 2_000), &[]);
}

#[test]
fn many_small_applications() {
    compare(&Scenario::owned("2,000 × 1", 2_000, 2_000), &[]);
}

#[test]
fn many_gangs() {
    compare(&Scenario::gangs("400 gangs", 400, 2_000), &[]);
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
    assert!(each <= 560.0, "{each} bytes per executor");
}
