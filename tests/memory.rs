//! The memory of a crafted review, measured by a counting allocator: at most three times the review's size.
//!
//! The binary has only this test, because the allocator counts for the whole process.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test fails by panicking, and prints its results"
)]

mod support;

use peak_alloc::PeakAlloc;
use spark_usher::admission::{self, ValidationContext};
use spark_usher::policy::{Match, Policies, Policy, Validate};
use spark_usher::snapshot::Snapshot;
use support::crafted::crafted;
use support::*;

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

/// The allocations that do not depend on the review's size: the response, the texts of a decision, and lists of maximum length.
const CONSTANT: usize = 512 << 10;

/// Large enough that constant allocations are negligible; and with fewer strings and elements than are read.
const SIZES: [usize; 2] = [4 << 20, 500 << 10];

/// Policies that read everything: labels in twenty selectors, nodes, queues.
fn policies() -> Policies {
    let gold = |n: usize| Match {
        pod_selector: Some([(format!("a{n}"), "gold".to_owned())].into_iter().collect()),
        ..Match::everything()
    };
    let policy = |n| Policy {
        name: format!("p{n}").as_str().into(),
        matches: gold(n),
        validate: Validate::Enforce,
        queues: Some(Vec::new()),
        node_pool: [("pool".to_owned(), "spark".to_owned())].into(),
        ..policy("yunikorn")
    };
    Policies::new((0..20).map(policy).collect(), Vec::new())
}

#[test]
fn review_memory_is_at_most_three_times_its_size() {
    let (policies, snapshot) = (policies(), Snapshot::default());
    let context = ValidationContext { snapshot: &snapshot, own: None, settled: true };
    for (what, body) in SIZES.into_iter().flat_map(crafted) {
        for validates in [false, true] {
            // The body is already allocated, as in the webhook.
            let before = ALLOCATOR.current_usage();
            ALLOCATOR.reset_peak_usage();
            let pruned = if validates { admission::prune_for_validation(&body) } else { admission::prune(&body) };
            match admission::parse(&pruned) {
                Ok(review) if validates => drop(admission::validate(&review, &policies, context)),
                Ok(review) => {
                    let decision = admission::mutate(&review, &snapshot, &policies);
                    drop(admission::response::write(&review, &decision));
                }
                Err(error) => drop((error, admission::head::parse(&body))),
            }
            let peak = ALLOCATOR.peak_usage() - before + body.len();
            println!(
                "{what}, validated {validates}: {} bytes, peak {peak}: {:.2}",
                body.len(),
                peak as f64 / body.len() as f64
            );
            assert!(peak <= 3 * body.len() + CONSTANT, "{what}: {peak} bytes for a review of {}", body.len());
        }
    }
}
