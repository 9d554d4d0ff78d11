//! The memory and the work of a review, in proportion to its size.

use crate::support::crafted::crafted;
use crate::support::generated::{damaged, review_of, world};
use crate::support::rng::Rng;
use crate::support::*;
use allocation_counter::{AllocationInfo, measure};
use usher_core::admission::{self, ValidationContext};
use usher_core::policy::{Match, Policies, Policy, Validate};
use usher_core::snapshot::{RelatedChange, Snapshot};

/// The allocations that do not depend on the review's size: the response, the texts of a decision, and lists of maximum length.
const CONSTANT: u64 = 512 << 10;
/// Allocations of a review: so many, and one more for each so many bytes. A string with escapes, a list or a map takes one.
const ALLOCATIONS: u64 = 500;
const BYTES_PER_ALLOCATION: u64 = 64;

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

/// Decides about a review, of which only the head is read if it is too much.
fn decide(body: &[u8], validates: bool, snapshot: &Snapshot, policies: &Policies) {
    let context = ValidationContext { snapshot, own_account: None, settled: true };
    let pruned = if validates { admission::prune_for_validation(body) } else { admission::prune(body) };
    match admission::parse(&pruned) {
        Ok(review) => {
            let decision = match validates {
                true => admission::admit(&review, policies, context),
                false => admission::mutate(&review, snapshot, policies),
            };
            drop(admission::response::write(&review, &decision));
        }
        Err(error) => drop((error, admission::head::parse(body))),
    }
}

/// Each allocated byte is written, so that the bytes count work, too.
fn assert_in_proportion(what: &str, length: usize, measured: &AllocationInfo) {
    let length = u64::try_from(length).unwrap();
    let peak = measured.bytes_max + length;
    assert!(peak <= 3 * length + CONSTANT, "{what}: {peak} bytes for a review of {length}");
    let bytes = measured.bytes_total;
    assert!(bytes <= 3 * length + CONSTANT, "{what}: {bytes} bytes in all for a review of {length}");
    let count = measured.count_total;
    assert!(
        count <= ALLOCATIONS + length / BYTES_PER_ALLOCATION,
        "{what}: {count} allocations for a review of {length}"
    );
}

#[test]
fn memory_and_work_of_a_crafted_review_are_in_proportion_to_its_size() {
    let (policies, mut snapshot) = (policies(), Snapshot::default());
    // Volumes are read only to avoid a node.
    snapshot.apply(RelatedChange::AvoidedNodes(["n-1".into()].into_iter().collect()));
    for (what, body) in SIZES.into_iter().flat_map(crafted) {
        for validates in [false, true] {
            // The body is already allocated, as in the webhook.
            let measured = measure(|| decide(&body, validates, &snapshot, &policies));
            let of = |bytes: u64| bytes as f64 / body.len() as f64;
            println!(
                "{what}, validated {validates}: {} bytes, peak {:.2}, in all {:.2}, {} allocations",
                body.len(),
                1.0 + of(measured.bytes_max),
                of(measured.bytes_total),
                measured.count_total
            );
            assert_in_proportion(what, body.len(), &measured);
        }
    }
}

#[test]
fn memory_and_work_of_generated_reviews_are_in_proportion_to_their_size() {
    let mut max = (0, 0);
    for seed in 0..2_000 {
        let rng = &mut Rng::new(seed);
        let (snapshot, policies) = world(rng);
        let mut body = review_of(rng).to_string().into_bytes();
        if rng.once_in(3) {
            body = damaged(rng, body);
        }
        for validates in [false, true] {
            let measured = measure(|| decide(&body, validates, &snapshot, &policies));
            max = (max.0.max(measured.bytes_total), max.1.max(measured.count_total));
            assert_in_proportion(&format!("seed {seed}"), body.len(), &measured);
        }
    }
    println!("at most {} bytes and {} allocations", max.0, max.1);
}
