//! Compares the objects in the cluster with those that the policy file generates.

use serde_json::Value;

use crate::annotations;
use crate::json::{at, text};

/// The differences between the objects in the cluster and those of the file, a sentence each; none if they are the same.
pub fn differences(live: &[Value], expected: &[Value]) -> Vec<String> {
    let same = |a: &Value, b: &Value| {
        text(a, &["kind"]) == text(b, &["kind"]) && text(a, &["metadata", "name"]) == text(b, &["metadata", "name"])
    };
    let called = |object: &Value| format!("{} {}", text(object, &["kind"]), text(object, &["metadata", "name"]));
    let mut out = Vec::new();
    for object in expected {
        let Some(found) = live.iter().find(|found| same(found, object)) else {
            out.push(format!("{} is missing", called(object)));
            continue;
        };
        let hash = ["metadata", "annotations", annotations::POLICY_HASH];
        let contained = match (at(found, &["spec"]), at(object, &["spec"])) {
            (Some(found), Some(expected)) => contains(found, expected) && !narrows(found, expected),
            _ => false,
        };
        if text(found, &hash) != text(object, &hash) {
            out.push(format!("{} was generated from another policy file", called(object)));
        } else if !contained {
            out.push(format!("{} differs from the generated one", called(object)));
        }
    }
    let extra = live.iter().filter(|found| !expected.iter().any(|object| same(found, object)));
    out.extend(extra.map(|found| format!("{} belongs to no policy of the policy file", called(found))));
    out
}

/// Whether a document contains the expected one. The API server adds defaults to maps, never to lists, nor to the maps in them.
fn contains(found: &Value, expected: &Value) -> bool {
    match (found, expected) {
        (Value::Object(found), Value::Object(expected)) => {
            expected.iter().all(|(key, expected)| found.get(key).is_some_and(|found| contains(found, expected)))
        }
        _ => found == expected,
    }
}

/// Whether a spec has a field that narrows the object's scope compared to ours: a binding's matchResources and paramRef, a
/// policy's paramKind, excludeResourceRules, and selectors that are not ours.
fn narrows(spec: &Value, expected: &Value) -> bool {
    let has = |spec: &Value, path: &[&str]| match at(spec, path) {
        None => false,
        Some(Value::Object(map)) => !map.is_empty(),
        Some(Value::Array(list)) => !list.is_empty(),
        Some(_) => true,
    };
    [
        &["paramKind"][..],
        &["paramRef"],
        &["matchConstraints", "excludeResourceRules"],
        &["matchConstraints", "namespaceSelector"],
        &["matchConstraints", "objectSelector"],
        &["matchResources", "namespaceSelector"],
        &["matchResources", "objectSelector"],
        &["matchResources", "resourceRules"],
        &["matchResources", "excludeResourceRules"],
    ]
    .into_iter()
    .any(|path| has(spec, path) && at(spec, path) != at(expected, path))
}
