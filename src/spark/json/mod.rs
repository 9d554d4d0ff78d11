//! Total functions that read and write JSON documents by path: a missing value reads as empty, and a write creates the path.

mod items;
mod pruned;

pub use items::{BadList, Items};
pub use pruned::Pruned;

use serde_json::{Map, Value};

/// The text at a path of keys; empty when there is none.
pub fn text<'v>(value: &'v Value, path: &[&str]) -> &'v str {
    at(value, path).and_then(Value::as_str).unwrap_or_default()
}

/// The value at a path of keys.
pub fn at<'v>(value: &'v Value, path: &[&str]) -> Option<&'v Value> {
    path.iter().try_fold(value, |value, key| value.get(key)).filter(|value| !value.is_null())
}

/// The list at a path of keys; empty when there is none.
pub fn list<'v>(value: &'v Value, path: &[&str]) -> &'v [Value] {
    at(value, path).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// The controlling owner of a Kubernetes object.
pub fn controller(object: &Value) -> Option<&Value> {
    let mut owners = list(object, &["metadata", "ownerReferences"]).iter();
    owners.find(|owner| owner.get("controller") == Some(&Value::Bool(true)))
}

/// The entries at a path of keys whose values are text: labels, annotations.
pub fn entries<'v>(value: &'v Value, path: &[&str]) -> impl Iterator<Item = (&'v str, &'v str)> + use<'v> {
    let map = at(value, path).and_then(Value::as_object);
    map.into_iter().flatten().filter_map(|(key, value)| Some((key.as_str(), value.as_str()?)))
}

/// The map at a path of keys, created if it is missing. Other values on the path are replaced by maps.
pub fn map_mut<'v>(value: &'v mut Value, path: &[&str]) -> &'v mut Map<String, Value> {
    let mut here = value;
    for key in path {
        here = object(here).entry(*key).or_insert(Value::Null);
    }
    object(here)
}

/// Writes a value at a path of keys.
pub fn set(value: &mut Value, path: &[&str], new: impl Into<Value>) {
    if let Some((last, way)) = path.split_last() {
        map_mut(value, way).insert((*last).to_owned(), new.into());
    }
}

/// Writes a value at a path of keys unless there is one.
pub fn default(value: &mut Value, path: &[&str], new: impl Into<Value>) {
    if at(value, path).is_none() {
        set(value, path, new);
    }
}

/// Removes the value at a path of keys.
pub fn remove(value: &mut Value, path: &[&str]) -> Option<Value> {
    let (last, way) = path.split_last()?;
    let mut here = value;
    for key in way {
        here = here.get_mut(key)?;
    }
    here.as_object_mut()?.remove(*last)
}

/// The list at a path of keys, created if it is missing.
pub fn list_mut<'v>(value: &'v mut Value, path: &[&str]) -> &'v mut Vec<Value> {
    let Some((last, way)) = path.split_last() else { return array(value) };
    array(map_mut(value, way).entry((*last).to_owned()).or_insert(Value::Null))
}

fn object(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    match value {
        Value::Object(map) => map,
        _ => unreachable!("any other value was replaced by an object"),
    }
}

fn array(value: &mut Value) -> &mut Vec<Value> {
    if !value.is_array() {
        *value = Value::Array(Vec::new());
    }
    match value {
        Value::Array(list) => list,
        _ => unreachable!("any other value was replaced by a list"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn missing_paths_read_as_empty() {
        let value = json!({"a": {"b": "c", "n": null, "l": [1]}});
        assert_eq!(text(&value, &["a", "b"]), "c");
        assert_eq!(text(&value, &["a", "b", "c"]), "");
        assert_eq!(text(&json!("x"), &["a"]), "");
        assert_eq!(at(&value, &["a", "n"]), None);
        assert_eq!(list(&value, &["a", "l"]).len(), 1);
        assert!(list(&value, &["a"]).is_empty());
        assert_eq!(entries(&value, &["a"]).collect::<Vec<_>>(), [("b", "c")]);
    }

    #[test]
    fn writing_creates_missing_parents() {
        let mut value = json!("not even a map");
        set(&mut value, &["a", "b"], 1);
        default(&mut value, &["a", "b"], 2);
        default(&mut value, &["a", "c"], 3);
        list_mut(&mut value, &["l"]).push(json!(4));
        assert_eq!(value, json!({"a": {"b": 1, "c": 3}, "l": [4]}));
        assert_eq!(remove(&mut value, &["a", "b"]), Some(json!(1)));
        assert_eq!(remove(&mut value, &["x", "y"]), None);
        set(&mut value, &[], 1);
        assert_eq!(value, json!({"a": {"c": 3}, "l": [4]}));
    }
}
