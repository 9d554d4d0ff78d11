//! Tables, as `kubectl get` requests them: columns by kind, rows with the object's metadata.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::columns;
use super::resource::Resource;

pub(super) fn table(resource: &Resource, objects: &[Value], metadata: Value, now: Timestamp) -> Value {
    let columns = columns::of(resource);
    let definitions: Vec<Value> = columns
        .iter()
        .map(|column| {
            let format = if column.name == "Name" { "name" } else { "" };
            json!({"name": column.name, "type": column.kind, "format": format, "description": "", "priority": column.priority})
        })
        .collect();
    let rows: Vec<Value> = objects
        .iter()
        .map(|object| {
            let cells: Vec<Value> = columns.iter().map(|column| (column.cell)(object, now)).collect();
            json!({"cells": cells, "object": partial(object)})
        })
        .collect();
    json!({"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata, "columnDefinitions": definitions, "rows": rows})
}

/// An object's metadata alone.
pub(super) fn partial(object: &Value) -> Value {
    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object.get("metadata")})
}
