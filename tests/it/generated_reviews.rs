//! What must hold for every review, over some thousands from seeds: `tests/support/generated.rs`.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use serde_json::{Value, json};
use usher_core::annotations::{self, MetadataField};
use usher_core::gang::TABLE;
use usher_server::http::handlers::{Handler, Handlers, Lookup, ReviewState};

use crate::support::attackers::{POD_NAME, POD_UID};
use crate::support::generated::{damaged, retyped, review_of, world};
use crate::support::https::NewNamespaces;
use crate::support::rng::Rng;
use crate::support::*;

const REVIEWS: u64 = 4_000;
const DAMAGED: u64 = 8_000;
/// So many reviews are of one cluster.
const PER_WORLD: u64 = 20;
/// Bytes of an answer beside those of the review: the patch, its texts in base64, and the sentences about it.
const ANSWER: usize = 48 << 10;

/// The keys of a map that differ.
fn changed<'v>(before: &'v Value, after: &'v Value) -> Vec<&'v str> {
    let keys = |value: &'v Value| value.as_object().into_iter().flat_map(|map| map.keys()).map(String::as_str);
    let mut all: Vec<&str> = keys(before).chain(keys(after)).filter(|key| before.get(key) != after.get(key)).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// Only our fields change, and of owners only the creator is added.
fn check_changes(seed: u64, before: &Value, after: &Value, user_info: &Value) {
    for key in changed(before, after) {
        assert!(["metadata", "spec"].contains(&key), "{seed}: {key}");
    }
    for key in changed(&before["spec"], &after["spec"]) {
        // The API server computes the two of the priority class.
        let ours =
            ["schedulerName", "priorityClassName", "priority", "preemptionPolicy", "schedulingGroup", "affinity"];
        assert!(ours.contains(&key), "{seed}: spec.{key}");
    }
    for key in changed(&before["metadata"], &after["metadata"]) {
        let place = match key {
            "labels" => MetadataField::Label,
            "annotations" => MetadataField::Annotation,
            "ownerReferences" => continue,
            _ => panic!("{seed}: metadata.{key}"),
        };
        for entry in changed(&before["metadata"][key], &after["metadata"][key]) {
            let is_written =
                TABLE.iter().flat_map(|row| row.keys()).any(|(at, written)| (at, written) == (place, entry));
            let is_ours = place == MetadataField::Annotation && entry.starts_with(annotations::PREFIX);
            assert!(is_written || is_ours, "{seed}: metadata.{key}.{entry}");
        }
    }
    let owners = |object: &Value| object["metadata"]["ownerReferences"].as_array().cloned().unwrap_or_default();
    let (before, after) = (owners(before), owners(after));
    assert_eq!(after.get(..before.len()), Some(&*before), "{seed}: owners stay");
    for added in after.iter().skip(before.len()) {
        let is_creator = user_info["extra"][POD_UID] == json!([added["uid"]])
            && user_info["extra"][POD_NAME] == json!([added["name"]]);
        assert!(is_creator, "{seed}: {added}");
    }
}

#[test]
fn generated_reviews_are_patched_in_our_fields_once_and_by_what_is_authenticated() {
    let mut patched = 0;
    let mut now = world(&mut Rng::new(0));
    for seed in 0..REVIEWS {
        if seed % PER_WORLD == 0 {
            now = world(&mut Rng::new(seed));
        }
        let (snapshot, policies) = &now;
        let rng = &mut Rng::new(REVIEWS + seed);
        let review = review_of(rng);
        let length = review.to_string().len();
        if review["request"]["operation"] != "CREATE" {
            let outcome = validate_review(&review, snapshot, policies);
            assert!(outcome.response.to_string().len() <= length + ANSWER, "{seed}");
            continue;
        }
        // It also compares mutation and validation with both in one call.
        let outcome = answer(&review, snapshot, policies);
        assert!(outcome.response.to_string().len() <= length + ANSWER, "{seed}");
        check_changes(seed, &review["request"]["object"], &outcome.object, &review["request"]["userInfo"]);
        patched += u32::from(outcome.object != review["request"]["object"]);
        // As if another webhook had changed something else.
        let mut again = review.clone();
        again["request"]["object"] = outcome.object.clone();
        let second = answer(&again, snapshot, policies);
        assert_eq!(second.patch, json!([]), "{seed}: {review}");
    }
    assert!(u64::from(patched) > REVIEWS / 4, "{patched}");
}

fn handlers_of(seed: u64) -> [Arc<dyn Handler>; 3] {
    let (snapshot, policies) = world(&mut Rng::new(seed));
    let (snapshot, policies) = (Arc::new(ArcSwap::from_pointee(snapshot)), Arc::new(ArcSwap::from_pointee(policies)));
    let state = ReviewState {
        snapshot,
        policies,
        own_account: Arc::default(),
        changed: Arc::default(),
        settle: Duration::ZERO,
    };
    let Handlers { mutate, admit, validate, .. } = Handlers::new(state, Arc::new(NewNamespaces::default()));
    [mutate, admit, validate]
}

#[test]
fn damaged_reviews_get_an_answer_or_400() {
    let (mut answered, mut refused) = (0, 0);
    let mut handlers = handlers_of(0);
    for seed in 0..DAMAGED {
        if seed % PER_WORLD == 0 {
            handlers = handlers_of(seed);
        }
        let rng = &mut Rng::new(DAMAGED + seed);
        let review = review_of(rng);
        let body = match rng.below(3) {
            0 => damaged(rng, review.to_string().into_bytes()),
            _ => (0..=rng.below(2)).fold(review, |review, _| retyped(rng, review)).to_string().into_bytes(),
        };
        for handler in &handlers {
            // A panic ends the test; an error becomes 400.
            match handler.answer(&body, &mut |_| Lookup::Failed).unwrap().body {
                Ok(answer) => {
                    answered += 1;
                    assert!(answer.len() <= body.len() + ANSWER, "{seed}");
                    let answer: Value = serde_json::from_slice(&answer).unwrap();
                    // What no decision needs is skipped, not parsed.
                    let Ok(sent) = serde_json::from_slice::<Value>(&body) else { continue };
                    assert_eq!(answer["response"]["uid"], sent["request"]["uid"], "{seed}");
                    let object = &sent["request"]["object"];
                    if ["metadata", "spec"].iter().any(|key| !object[key].is_object()) {
                        continue; // An API server sends both, and as maps.
                    }
                    let patch = decode_patch(&answer["response"]);
                    let mut object = sent["request"]["object"].clone();
                    let patch: json_patch::Patch = serde_json::from_value(patch).unwrap();
                    json_patch::patch(&mut object, &patch).unwrap_or_else(|error| {
                        panic!("{seed}: {error}\n{}\n{}", String::from_utf8_lossy(&body), answer["response"])
                    });
                }
                Err(message) => {
                    refused += 1;
                    assert!(message.contains("expected") || message.contains("uid"), "{seed}: {message}");
                }
            }
        }
    }
    println!("{answered} answers, {refused} times 400");
    assert!(answered > 1_000 && refused > 1_000, "{answered} {refused}");
}
