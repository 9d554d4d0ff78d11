//! Prints a patch: the old and the new value of each field.

use serde_json::Value;

/// One line per change.
pub(super) fn changes(before: &Value, patch: &Value) -> Vec<String> {
    patch.as_array().into_iter().flatten().flat_map(|op| change(before, op)).collect()
}

fn change(before: &Value, op: &Value) -> Vec<String> {
    let path = op["path"].as_str().unwrap_or_default();
    let shown = path.strip_prefix('/').unwrap_or(path).replace('/', ".").replace("~1", "/").replace("~0", "~");
    let was = before.pointer(path).map(short);
    match (op["op"].as_str(), op.get("value")) {
        (Some("remove"), _) => vec![format!("{shown}: {} -> (removed)", was.unwrap_or_default())],
        // A whole map is easier to read entry by entry.
        (_, Some(Value::Object(entries))) if path.ends_with("annotations") || path.ends_with("labels") => {
            entries.iter().map(|(key, value)| format!("{shown}.{key}: {}", short(value))).collect()
        }
        (_, Some(value)) => vec![match was {
            Some(was) => format!("{shown}: {was} -> {}", short(value)),
            None => format!("{shown}: {}", short(value)),
        }],
        (_, None) => Vec::new(),
    }
}

/// A value on one line.
fn short(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(list) => list.iter().map(short).collect::<Vec<_>>().join(", "),
        Value::Object(map) => {
            match (map.get("kind").and_then(Value::as_str), map.get("name").and_then(Value::as_str)) {
                (Some(kind), Some(name)) => {
                    let uid = map.get("uid").and_then(Value::as_str).unwrap_or_default();
                    format!("{kind} {name} (uid {uid}, controller)")
                }
                _ => map.iter().map(|(key, value)| format!("{key}={}", short(value))).collect::<Vec<_>>().join(" "),
            }
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn changes_show_old_and_new_value_of_each_path() {
        let before = json!({"metadata": {"annotations": {"a/b": "1"}}, "spec": {"schedulerName": "default-scheduler", "priority": 0}});
        let patch = json!([
            {"op": "add", "path": "/spec/schedulerName", "value": "volcano"},
            {"op": "remove", "path": "/spec/priority"},
            {"op": "add", "path": "/metadata/annotations/a~1b", "value": "2"},
            {"op": "add", "path": "/metadata/labels", "value": {"x": "y"}},
            {"op": "add", "path": "/metadata/ownerReferences", "value": [{"kind": "Pod", "name": "d", "uid": "u", "controller": true}]},
        ]);
        assert_eq!(
            changes(&before, &patch),
            [
                "spec.schedulerName: default-scheduler -> volcano",
                "spec.priority: 0 -> (removed)",
                "metadata.annotations.a/b: 1 -> 2",
                "metadata.labels.x: y",
                "metadata.ownerReferences: Pod d (uid u, controller)",
            ]
        );
    }
}
