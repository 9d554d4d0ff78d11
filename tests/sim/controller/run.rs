//! The controller with faults: thousands of histories of a simulated cluster, each determined by a seed (`sim`).
//!
//! ```text
//! cargo test --test sim controller                                    2,000 histories
//! SEEDS=100000 cargo test --release --test sim controller::run::histories   a hundred thousand; FROM=50000: the second half
//! SEED=1234 cargo test --test sim controller::run::one_history -- --nocapture    one history, line by line
//! ```

use std::sync::atomic::{AtomicU64, Ordering};

use super::{Sim, Violation};

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn describe(seed: u64, violation: &Violation) -> String {
    let Violation { rule, at, what } = violation;
    format!(
        "seed {seed}: {rule}, after {at:?}: {what}\nreplay: SEED={seed} cargo test --test sim controller::run::one_history -- --nocapture"
    )
}

#[test]
fn histories_hold() {
    let seeds = number("SEEDS").unwrap_or(2000);
    let from = number("FROM").unwrap_or_default();
    let (next, failed) = (AtomicU64::new(from), std::sync::Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(2, usize::from) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds || failed.lock().unwrap().len() >= 5 {
                        return;
                    }
                    if let (Some(violation), _) = Sim::new(seed, false).run() {
                        failed.lock().unwrap().push(describe(seed, &violation));
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    println!("{} histories hold", seeds.saturating_sub(from));
}

/// The rule that a history violates.
pub fn violation(seed: u64) -> Option<String> {
    Some(Sim::new(seed, false).run().0?.rule.to_owned())
}

#[test]
fn one_history() {
    let Some(seed) = number("SEED") else { return };
    let (violation, trace) = Sim::new(seed, true).run();
    println!("{}", trace.join("\n"));
    assert!(violation.is_none(), "{}", describe(seed, &violation.unwrap()));
}
