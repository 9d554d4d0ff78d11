//! Reviews that cost more than honest ones of the same size.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its part of it")]

use serde_json::{Value, json};

use super::*;

/// A review whose `@` is replaced by repetitions of this text, up to the size.
fn filled(size: usize, pod: &PodBuilder, fill: &str) -> Vec<u8> {
    let review = review(&pod.0, json!({"username": "eve", "groups": ["g"]})).to_string();
    let (before, after) = review.split_once("\"@\"").unwrap();
    let times = size.saturating_sub(review.len()) / (fill.len() + 1);
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

/// Reviews of about this size that cost more than honest ones: what each repeats, and its bytes.
pub fn crafted(size: usize) -> Vec<(&'static str, Vec<u8>)> {
    let filled = |pod: &PodBuilder, fill: &str| filled(size, pod, fill);
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
        let keys: serde_json::Map<String, Value> = (0..size / 14).map(|n| (format!("a{n}"), "".into())).collect();
        let at = path.iter().fold(&mut pod.0, |at, key| &mut at[*key]);
        match at {
            Value::Object(map) => map.extend(keys),
            other => *other = Value::Object(keys),
        }
        all.push((what, serde_json::to_vec(&pod.created_by("eve")).unwrap()));
    }
    let mut one = executor(1);
    one.0["metadata"]["annotations"]["a"] = "<".repeat((size / 6).saturating_sub(1000)).into();
    all.push((
        "one annotation",
        serde_json::to_vec(&one.created_by("eve"))
            .unwrap()
            .iter()
            .flat_map(|byte| if *byte == b'<' { b"\\u003c".to_vec() } else { vec![*byte] })
            .collect(),
    ));
    all.extend([
        ("items of an unknown list", filled(&with(&["metadata", "unknown"], list()), "0")),
        ("strings of an unknown list", filled(&with(&["metadata", "unknown"], list()), "\"\"")),
        ("lists of an unknown list", filled(&with(&["metadata", "unknown"], list()), "[]")),
        ("maps of an unknown list", filled(&with(&["metadata", "unknown"], list()), "{\"a\":0}")),
        ("pruned keys", filled(&with(&["metadata", "unknown"], list()), "{\"managedFields\":[]}")),
        ("names of pruned keys", filled(&with(&["metadata", "unknown"], list()), "{\"managedFields\":0}")),
        (
            "a wrong value at the end",
            filled(&with(&["metadata", "unknown"], list()), "0").into_iter().chain(*b"]]").collect(),
        ),
        ("groups", in_user(size, "groups", "\"\"")),
        ("names of pods", in_user(size, "extra", "\"\"")),
        ("positions in bulk", naming_bulk(size)),
        (
            "an endless list of bulk",
            filled(&with(&["metadata", "managedFields"], list()), "\"\"").into_iter().take(size / 2).collect(),
        ),
        ("quotes", vec![b'"'; size]),
        ("brackets", vec![b'['; size]),
        ("spaces", vec![b' '; size]),
        ("backslashes", filled(&with(&["metadata", "unknown"], list()), &format!("\"{}\"", "\\\\".repeat(1000)))),
    ]);
    all
}

/// A review of which a parser that replaces `[begin,end]` by that part of the text would read the managedFields as volumes, because
/// the key is written with an escape.
fn naming_bulk(size: usize) -> Vec<u8> {
    let filled = filled(size, &with(&["metadata", "managedFields"], json!(["@"])), "{}");
    let text = String::from_utf8(filled).unwrap();
    let (before, bulk) = text.split_once("\"managedFields\":").unwrap();
    let (bulk, after) = bulk.split_once(']').unwrap();
    let begin = before.len() + "\"managedFields\":".len();
    let end = begin + bulk.len() + 1;
    let after = after.replace("\"volumes\":", "\"unknown\":");
    let after = after.replace("\"spec\":{", &format!("\"spec\":{{\"\\u0076olumes\":[{begin},{end}],"));
    format!("{before}\"managedFields\":{bulk}]{after}").into_bytes()
}

/// A review whose requester has a list of this many.
fn in_user(size: usize, key: &str, item: &str) -> Vec<u8> {
    let list = if key == "groups" { json!(["@"]) } else { json!({attackers::POD_NAME: ["@"]}) };
    let review = review(&executor(1).0, json!({"username": "eve", key: list})).to_string();
    let many = vec![item; size.saturating_sub(review.len()) / (item.len() + 1)].join(",");
    review.replace("\"@\"", &many).into_bytes()
}
