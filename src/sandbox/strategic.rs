//! Strategic merge patches, and apply patches, which differ only in how directives are treated.
//!
//! Lists of objects merge by a key where Kubernetes defines one (`patchMergeKey` in the types,
//! `x-kubernetes-list-map-keys` in the schemas); other lists are replaced.

use serde_json::{Map, Value};

/// Field name of a list and the keys by which its items merge. Field names are unambiguous among the built-in kinds
/// that clients patch here.
const MERGE_KEYS: &[(&str, &[&str])] = &[
    ("containers", &["name"]),
    ("initContainers", &["name"]),
    ("ephemeralContainers", &["name"]),
    ("env", &["name"]),
    ("volumes", &["name"]),
    ("volumeMounts", &["mountPath"]),
    ("volumeDevices", &["devicePath"]),
    ("imagePullSecrets", &["name"]),
    ("hostAliases", &["ip"]),
    ("topologySpreadConstraints", &["topologyKey"]),
    ("resourceClaims", &["name"]),
    ("schedulingGates", &["name"]),
    ("ownerReferences", &["uid"]),
    ("conditions", &["type"]),
    ("secrets", &["name"]),
    ("webhooks", &["name"]),
    ("addresses", &["type"]),
    ("taints", &["key"]),
    ("podIPs", &["ip"]),
];

/// Lists of scalars that merge as sets.
const SETS: &[&str] = &["finalizers"];

/// The merge keys of a list field. Ports of containers and of services have different ones.
fn merge_keys(field: &str, items: &[Value]) -> Option<&'static [&'static str]> {
    if field == "ports" {
        let container = items.iter().any(|item| item.get("containerPort").is_some());
        return Some(if container { &["containerPort", "protocol"] } else { &["port", "protocol"] });
    }
    MERGE_KEYS.iter().find(|(name, _)| *name == field).map(|(_, keys)| *keys)
}

/// Merges a patch into an object.
pub(super) fn merge(object: &mut Value, patch: &Value) {
    let Some(patch) = patch.as_object() else {
        *object = patch.clone();
        return;
    };
    match patch.get("$patch").and_then(Value::as_str) {
        Some("replace") => {
            *object = without_directives(patch);
            return;
        }
        Some("delete") => {
            *object = Value::Null;
            return;
        }
        _ => {}
    }
    if !object.is_object() {
        *object = Value::Object(Map::new());
    }
    let Some(fields) = object.as_object_mut() else { return };
    if let Some(retained) = patch.get("$retainKeys").and_then(Value::as_array) {
        fields.retain(|key, _| retained.iter().any(|retained| retained == key));
    }
    for (key, value) in patch {
        if let Some(field) = key.strip_prefix("$deleteFromPrimitiveList/") {
            if let (Some(list), Some(gone)) = (fields.get_mut(field).and_then(Value::as_array_mut), value.as_array()) {
                list.retain(|item| !gone.contains(item));
            }
            continue;
        }
        if key.starts_with('$') {
            continue;
        }
        match value {
            Value::Null => {
                fields.remove(key);
            }
            Value::Array(items) => {
                let order = patch.get(&format!("$setElementOrder/{key}")).and_then(Value::as_array);
                let present = fields.entry(key.clone()).or_insert(Value::Null);
                merge_list(key, present, items, order);
            }
            Value::Object(_) => {
                let present = fields.entry(key.clone()).or_insert(Value::Null);
                merge(present, value);
                if present.is_null() {
                    fields.remove(key);
                }
            }
            scalar => {
                fields.insert(key.clone(), scalar.clone());
            }
        }
    }
}

fn merge_list(field: &str, present: &mut Value, patch: &[Value], order: Option<&Vec<Value>>) {
    let mut list: Vec<Value> = present.as_array().cloned().unwrap_or_default();
    let all: Vec<Value> = list.iter().chain(patch).cloned().collect();
    if let Some(keys) = merge_keys(field, &all).filter(|_| all.iter().all(Value::is_object)) {
        if patch.iter().any(|item| directive(item) == Some("replace")) {
            list = patch.iter().filter(|item| directive(item).is_none()).cloned().collect();
        } else {
            for item in patch {
                let at = list.iter().position(|known| same(known, item, keys));
                match (at, directive(item)) {
                    (Some(at), Some("delete")) => {
                        list.remove(at);
                    }
                    (None, Some("delete")) => {}
                    (Some(at), _) => {
                        if let Some(known) = list.get_mut(at) {
                            merge(known, item);
                        }
                    }
                    (None, _) => {
                        let mut fresh = Value::Object(Map::new());
                        merge(&mut fresh, item);
                        list.push(fresh);
                    }
                }
            }
            if let Some(order) = order {
                reorder(&mut list, order, |item, wanted| same(item, wanted, keys));
            }
        }
    } else if SETS.contains(&field) {
        for item in patch {
            if !list.contains(item) {
                list.push(item.clone());
            }
        }
        if let Some(order) = order {
            reorder(&mut list, order, |item, wanted| item == wanted);
        }
    } else {
        list = patch.to_vec();
    }
    *present = Value::Array(list);
}

/// Sorts the items in `order` into that order; the other items keep their places before them.
fn reorder(list: &mut [Value], order: &[Value], is: impl Fn(&Value, &Value) -> bool) {
    list.sort_by_key(|item| order.iter().position(|wanted| is(item, wanted)).map_or(0, |at| at + 1));
}

fn directive(item: &Value) -> Option<&str> {
    item.get("$patch").and_then(Value::as_str)
}

fn same(a: &Value, b: &Value, keys: &[&str]) -> bool {
    keys.iter().all(|key| {
        let default = |value: &Value| match (*key, value.get(*key)) {
            ("protocol", None) => Value::from("TCP"),
            (_, found) => found.cloned().unwrap_or_default(),
        };
        default(a) == default(b)
    })
}

fn without_directives(map: &Map<String, Value>) -> Value {
    Value::Object(map.iter().filter(|(key, _)| !key.starts_with('$')).map(|(k, v)| (k.clone(), v.clone())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn merged(mut object: Value, patch: Value) -> Value {
        merge(&mut object, &patch);
        object
    }

    #[test]
    fn lists_with_merge_key_are_merged_and_others_replaced() {
        let object = json!({"spec": {"containers": [{"name": "a", "image": "1", "args": ["x"]}, {"name": "b"}], "tolerations": [{"key": "k"}]}});
        let patch = json!({"spec": {"containers": [{"name": "a", "image": "2", "args": ["y"]}, {"name": "c"}], "tolerations": []}});
        assert_eq!(
            merged(object, patch),
            json!({"spec": {"containers": [{"name": "a", "image": "2", "args": ["y"]}, {"name": "b"}, {"name": "c"}], "tolerations": []}})
        );
    }

    #[test]
    fn patch_directives_delete_replace_retain_and_order() {
        let object = json!({"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}], "finalizers": ["x", "y"], "strategy": {"type": "R", "r": {}}});
        assert_eq!(
            merged(object.clone(), json!({"env": [{"$patch": "delete", "name": "A"}]}))["env"],
            json!([{"name": "B", "value": "2"}])
        );
        assert_eq!(
            merged(object.clone(), json!({"env": [{"$patch": "replace"}, {"name": "C"}]}))["env"],
            json!([{"name": "C"}])
        );
        assert_eq!(
            merged(object.clone(), json!({"$deleteFromPrimitiveList/finalizers": ["x"]}))["finalizers"],
            json!(["y"])
        );
        assert_eq!(
            merged(object.clone(), json!({"strategy": {"$retainKeys": ["type"], "type": "S"}}))["strategy"],
            json!({"type": "S"})
        );
        assert_eq!(
            merged(
                object.clone(),
                json!({"$setElementOrder/env": [{"name": "B"}, {"name": "A"}], "env": [{"name": "A", "value": "3"}]})
            )["env"],
            json!([{"name": "B", "value": "2"}, {"name": "A", "value": "3"}])
        );
        assert_eq!(
            merged(object, json!({"strategy": null, "env": null, "finalizers": ["z"]})),
            json!({"finalizers": ["x", "y", "z"]})
        );
    }

    #[test]
    fn container_ports_merge_by_container_port_and_service_ports_by_port() {
        let container = json!({"ports": [{"containerPort": 80, "protocol": "TCP"}]});
        assert_eq!(
            merged(container, json!({"ports": [{"containerPort": 80, "name": "http"}]}))["ports"]
                .as_array()
                .unwrap()
                .len(),
            1
        );
        let service = json!({"ports": [{"port": 80, "protocol": "TCP"}]});
        assert_eq!(merged(service, json!({"ports": [{"port": 81}]}))["ports"].as_array().unwrap().len(), 2);
    }
}
