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
use serde_json::{Value, json};
use spark_usher::admission::{self, ValidationContext};
use spark_usher::policy::{Match, Policies, Policy, Validate};
use spark_usher::snapshot::Snapshot;
use support::*;

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

/// The allocations that do not depend on the review's size: the response, the texts of a decision, and lists of maximum length.
const CONSTANT: usize = 512 << 10;

/// Large enough that constant allocations are negligible.
const SIZE: usize = 4 << 20;

/// A review whose `@` is replaced by repetitions of this text, up to the size.
fn filled(pod: &PodBuilder, fill: &str) -> Vec<u8> {
    let review = review(&pod.0, json!({"username": "eve", "groups": ["g"]})).to_string();
    let (before, after) = review.split_once("\"@\"").unwrap();
    let times = (SIZE - review.len()) / (fill.len() + 1);
    let many = vec![fill; times].join(",");
    [before, &many, after].concat().into_bytes()
}

fn with(path: &[&str], value: Value) -> PodBuilder {
    let mut pod = executor(1);
    let mut at = &mut pod.0;
    for key in path {
        at = &mut at[*key];
    }
    *at = value;
    pod
}

fn crafted() -> Vec<(&'static str, Vec<u8>)> {
    let list = || json!(["@"]);
    let mut all = vec![
        ("owners", filled(&with(&["metadata", "ownerReferences"], list()), "{}")),
        ("finalizers", filled(&with(&["metadata", "finalizers"], list()), "\"\"")),
        ("containers", filled(&with(&["spec", "containers"], list()), "{}")),
        ("variables", filled(&with(&["spec", "containers"], json!([{"env": ["@"]}])), "{\"name\":\"a\"}")),
        (
            "affinity",
            filled(
                &with(
                    &[
                        "spec",
                        "affinity",
                        "nodeAffinity",
                        "requiredDuringSchedulingIgnoredDuringExecution",
                        "nodeSelectorTerms",
                    ],
                    list(),
                ),
                "{}",
            ),
        ),
        ("volumes", filled(&with(&["spec", "volumes"], list()), "{}")),
        ("managedFields", filled(&with(&["metadata", "managedFields"], list()), "{}")),
        (
            "escapes",
            filled(
                &with(&["spec", "containers"], json!([{"env": [{"name": "SPARK_DRIVER_URL", "value": "x"}, "@"]}])),
                &format!("{{\"name\":\"{}\"}}", "\\u003c".repeat(1000)),
            ),
        ),
    ];
    // Maps need distinct keys.
    for (what, path) in [
        ("labels", vec!["metadata", "labels"]),
        ("annotations", vec!["metadata", "annotations"]),
        ("node selector", vec!["spec", "nodeSelector"]),
    ] {
        let mut pod = executor(1);
        let keys: serde_json::Map<String, Value> = (0..300_000).map(|n| (format!("a{n}"), "".into())).collect();
        let at = path.iter().fold(&mut pod.0, |at, key| &mut at[*key]);
        match at {
            Value::Object(map) => map.extend(keys),
            other => *other = Value::Object(keys),
        }
        all.push((what, serde_json::to_vec(&pod.created_by("eve")).unwrap()));
    }
    let mut one = executor(1);
    one.0["metadata"]["annotations"]["a"] = "<".repeat(SIZE / 6 - 10_000).into();
    all.push((
        "one annotation",
        serde_json::to_vec(&one.created_by("eve"))
            .unwrap()
            .iter()
            .flat_map(|byte| if *byte == b'<' { b"\\u003c".to_vec() } else { vec![*byte] })
            .collect(),
    ));
    all
}

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
    let context = ValidationContext { snapshot: &snapshot, own: None, settled: true, listed: true };
    for (what, body) in crafted() {
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
                Err(error) => drop(error),
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
