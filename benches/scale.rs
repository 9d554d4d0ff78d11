//! The cost of the controller in a large cluster: one application of 100,000 executors, 100,000 applications of one, and 10,000
//! gangs in one namespace. The exit code is 1 if a step takes longer than the limit.
//!
//! ```text
//! cargo bench --bench scale
//! cargo bench --bench scale -- gangs    # the scenarios whose name contains this
//! ```
//!
//! `tests/memory` runs smaller ones and compares their plans, lookups and allocations, which do not depend on the clock.

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
#[path = "support/simulated.rs"]
mod simulated;

use std::process::ExitCode;
use std::time::Duration;

use mimalloc::MiMalloc;
use simulated::{Figures, Scenario};

/// The program's.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// The limit of the longest step.
const LIMIT: Duration = Duration::from_millis(10);

fn print(name: &str, what: &str, figures: Figures, each: Option<usize>) -> bool {
    let Figures { spent, longest, plans, lookups, actions, .. } = figures;
    let verdict = if longest <= LIMIT { "" } else { "  ABOVE THE LIMIT" };
    let each = each.map_or_else(
        || format!("{:>10.2?} in all", spent),
        |count| format!("{:>7.2} µs each", spent.as_secs_f64() * 1e6 / count as f64),
    );
    println!(
        "{name}: {what:<43} {each}, {plans:>7} plans, {lookups} lookups, {actions:>6} actions, longest step {longest:>8.2?} (limit {LIMIT:?}){verdict}"
    );
    longest <= LIMIT
}

fn main() -> ExitCode {
    // `cargo test --benches` also runs this program, without a test.
    if !std::env::args().any(|arg| arg == "--bench") {
        return ExitCode::SUCCESS;
    }
    let mut is_within = true;
    let wanted = std::env::args().skip(1).find(|arg| !arg.starts_with('-')).unwrap_or_default();
    let all = [
        Scenario::owned("1 × 100,000", 1, 100_000),
        Scenario::owned("100,000 × 1", 100_000, 100_000),
        Scenario::gangs("10,000 gangs", 10_000, 50_000),
    ];
    for scenario in all.into_iter().filter(|scenario| scenario.name.contains(&*wanted)) {
        let measure = |work: &mut dyn FnMut()| {
            work();
            0
        };
        scenario.run(measure, |what, figures, each| is_within &= print(scenario.name, what, figures, each));
        println!();
    }
    if is_within { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
