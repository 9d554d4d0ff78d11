//! CustomResourceDefinitions: served as soon as they are created, with pruning, defaults and validation by their schema.
//! CEL rules (`x-kubernetes-validations`) are not evaluated.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::error::{ApiError, Cause, Result};
use super::resource::{Custom, Resource};
use usher_spark::json::{at, list, set, text};

/// The resources of a definition, one per served version.
pub(super) fn resources(definition: &Value) -> Result<Vec<Resource>> {
    let name = text(definition, &["metadata", "name"]);
    let spec = |path: &[&str]| text(definition, &[&["spec"], path].concat()).to_owned();
    let (group, plural, kind) = (spec(&["group"]), spec(&["names", "plural"]), spec(&["names", "kind"]));
    let mut causes = Vec::new();
    for (field, value) in [
        ("spec.group", &group),
        ("spec.names.plural", &plural),
        ("spec.names.kind", &kind),
        ("spec.scope", &spec(&["scope"])),
    ] {
        if value.is_empty() {
            causes.push(Cause::required(field));
        }
    }
    if name != format!("{plural}.{group}") {
        causes.push(Cause::invalid("metadata.name", name, "must be spec.names.plural+\".\"+spec.group"));
    }
    let mut all = Vec::new();
    for (i, version) in list(definition, &["spec", "versions"]).iter().enumerate() {
        if at(version, &["served"]) != Some(&Value::Bool(true)) {
            continue;
        }
        let schema = at(version, &["schema", "openAPIV3Schema"]).cloned().unwrap_or_else(|| json!({}));
        let validator = jsonschema::validator_for(&to_json_schema(&schema));
        if let Err(error) = &validator {
            causes.push(Cause::invalid(&format!("spec.versions[{i}].schema"), "", &error.to_string()));
        }
        let names = |key: &str| {
            list(definition, &["spec", "names", key]).iter().filter_map(Value::as_str).map(str::to_owned).collect()
        };
        let singular = spec(&["names", "singular"]);
        all.push(Resource {
            group: group.clone(),
            version: text(version, &["name"]).to_owned(),
            kind: kind.clone(),
            plural: plural.clone(),
            singular: if singular.is_empty() { kind.to_lowercase() } else { singular },
            short_names: names("shortNames"),
            categories: names("categories"),
            namespaced: spec(&["scope"]) == "Namespaced",
            status: at(version, &["subresources", "status"]).is_some(),
            custom: Some(Arc::new(Custom {
                definition: name.to_owned(),
                schema,
                validator: validator.ok(),
                columns: list(version, &["additionalPrinterColumns"]).to_vec(),
            })),
        });
    }
    if all.is_empty() {
        causes.push(Cause::required("spec.versions"));
    }
    if causes.is_empty() { Ok(all) } else { Err(ApiError::invalid("CustomResourceDefinition", name, causes)) }
}

/// Adds what the API server's own controllers add to a definition.
pub(super) fn establish(definition: &mut Value, now: &str) {
    let kind = text(definition, &["spec", "names", "kind"]).to_owned();
    let names = &["spec", "names"];
    usher_spark::json::default(definition, &[names[0], names[1], "listKind"], format!("{kind}List"));
    usher_spark::json::default(definition, &[names[0], names[1], "singular"], kind.to_lowercase());
    usher_spark::json::default(definition, &["spec", "conversion"], json!({"strategy": "None"}));
    if at(definition, &["status", "conditions"]).is_some() {
        return;
    }
    let condition = |kind: &str, reason: &str, message: &str| json!({"type": kind, "status": "True", "lastTransitionTime": now, "reason": reason, "message": message});
    let accepted = at(definition, names).cloned().unwrap_or_default();
    let stored: Vec<Value> = list(definition, &["spec", "versions"])
        .iter()
        .filter(|version| at(version, &["storage"]) == Some(&Value::Bool(true)))
        .filter_map(|version| at(version, &["name"]).cloned())
        .collect();
    set(
        definition,
        &["status"],
        json!({
            "conditions": [
                condition("NamesAccepted", "NoConflicts", "no conflicts found"),
                condition("Established", "InitialNamesAccepted", "the initial names have been accepted"),
            ],
            "acceptedNames": accepted, "storedVersions": stored,
        }),
    );
}

/// Prunes fields that are not in the schema and applies defaults.
pub(super) fn shape(custom: &Custom, object: &mut Value) {
    let known = ["apiVersion", "kind", "metadata"];
    let kept: Vec<(String, Value)> =
        known.iter().filter_map(|key| Some(((*key).to_owned(), object.get(*key)?.clone()))).collect();
    prune(&custom.schema, object);
    default(&custom.schema, object);
    if let Some(map) = object.as_object_mut() {
        map.extend(kept);
    }
}

fn prune(schema: &Value, value: &mut Value) {
    let preserves = at(schema, &["x-kubernetes-preserve-unknown-fields"]) == Some(&Value::Bool(true));
    match value {
        Value::Object(map) => {
            let properties = at(schema, &["properties"]).and_then(Value::as_object);
            let additional = at(schema, &["additionalProperties"]);
            let open = preserves
                || additional.is_some_and(|additional| *additional != Value::Bool(false))
                || at(schema, &["x-kubernetes-embedded-resource"]).is_some();
            map.retain(|key, _| open || properties.is_some_and(|properties| properties.contains_key(key)));
            for (key, value) in map {
                if let Some(schema) = properties.and_then(|properties| properties.get(key)) {
                    prune(schema, value);
                } else if let Some(schema) = additional.filter(|additional| additional.is_object()) {
                    prune(schema, value);
                }
            }
        }
        Value::Array(items) => {
            if let Some(schema) = at(schema, &["items"]) {
                items.iter_mut().for_each(|item| prune(schema, item));
            }
        }
        _ => {}
    }
}

fn default(schema: &Value, value: &mut Value) {
    match value {
        Value::Object(map) => {
            for (key, schema) in at(schema, &["properties"]).and_then(Value::as_object).into_iter().flatten() {
                let nullable = at(schema, &["nullable"]) == Some(&Value::Bool(true));
                if map.get(key).is_some_and(|value| value.is_null() && !nullable) {
                    map.remove(key);
                }
                if let (None, Some(preset)) = (map.get(key), schema.get("default")) {
                    map.insert(key.clone(), preset.clone());
                }
                if let Some(value) = map.get_mut(key) {
                    default(schema, value);
                }
            }
            if let Some(schema) = at(schema, &["additionalProperties"]).filter(|schema| schema.is_object()) {
                map.values_mut().for_each(|value| default(schema, value));
            }
        }
        Value::Array(items) => {
            if let Some(schema) = at(schema, &["items"]) {
                items.iter_mut().for_each(|item| default(schema, item));
            }
        }
        _ => {}
    }
}

/// Validates a custom object.
pub(super) fn validate(resource: &Resource, object: &Value) -> Result<()> {
    let Some(validator) = resource.custom.as_ref().and_then(|custom| custom.validator.as_ref()) else { return Ok(()) };
    let causes: Vec<Cause> = validator
        .iter_errors(object)
        .map(|error| {
            let field = error.instance_path().to_string().trim_start_matches('/').replace('/', ".");
            let field = if field.is_empty() { "<root>".to_owned() } else { field };
            Cause { message: format!("Invalid value: {error}"), reason: "FieldValueInvalid", field }
        })
        .collect();
    if causes.is_empty() {
        Ok(())
    } else {
        Err(ApiError::invalid(&resource.kind, text(object, &["metadata", "name"]), causes))
    }
}

/// Converts OpenAPI v3, as definitions use it, to JSON Schema.
fn to_json_schema(schema: &Value) -> Value {
    let Some(map) = schema.as_object() else { return schema.clone() };
    let mut out = Map::new();
    let int_or_string = map.get("x-kubernetes-int-or-string") == Some(&Value::Bool(true));
    for (key, value) in map {
        let converted = match (key.as_str(), value) {
            ("properties" | "patternProperties" | "definitions", Value::Object(properties)) => {
                Value::Object(properties.iter().map(|(name, schema)| (name.clone(), to_json_schema(schema))).collect())
            }
            ("items" | "additionalProperties" | "not", schema) => to_json_schema(schema),
            ("allOf" | "anyOf" | "oneOf", Value::Array(schemas)) => schemas.iter().map(to_json_schema).collect(),
            // Formats known only to OpenAPI add nothing to the type; exclusive bounds are flags there.
            (
                "format" | "nullable" | "example" | "externalDocs" | "default" | "exclusiveMinimum"
                | "exclusiveMaximum",
                _,
            ) => continue,
            (key, _) if key.starts_with("x-kubernetes-") => continue,
            (_, value) => value.clone(),
        };
        out.insert(key.clone(), converted);
    }
    if int_or_string {
        out.insert("type".into(), json!(["integer", "string"]));
    }
    if map.get("nullable") == Some(&Value::Bool(true))
        && let Some(kind) = out.get("type").cloned()
    {
        let mut kinds = kind.as_array().cloned().unwrap_or_else(|| vec![kind]);
        kinds.push("null".into());
        out.insert("type".into(), Value::Array(kinds));
    }
    Value::Object(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn definition() -> Value {
        json!({"metadata": {"name": "things.x.io"}, "spec": {"group": "x.io", "scope": "Namespaced",
        "names": {"plural": "things", "kind": "Thing", "shortNames": ["th"]},
        "versions": [{"name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
            "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object", "required": ["size"], "properties": {
                "size": {"type": "integer", "minimum": 1},
                "mode": {"type": "string", "default": "soft", "nullable": true},
                "amount": {"x-kubernetes-int-or-string": true},
                "any": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
                "map": {"type": "object", "additionalProperties": {"type": "string"}},
            }}}}}}]}})
    }

    #[test]
    fn unknown_fields_are_pruned_defaults_set_and_invalid_values_rejected() {
        let resource = resources(&definition()).unwrap().pop().unwrap();
        assert!(resource.status && resource.namespaced && resource.singular == "thing");
        let custom = resource.custom.clone().unwrap();
        let mut thing = json!({"apiVersion": "x.io/v1", "kind": "Thing", "metadata": {"name": "a", "labels": {"k": "v"}},
            "spec": {"size": 1, "amount": "50%", "unknown": 1, "any": {"x": 1}, "map": {"a": "b"}}, "other": 1});
        shape(&custom, &mut thing);
        assert_eq!(
            thing["spec"],
            json!({"size": 1, "amount": "50%", "any": {"x": 1}, "map": {"a": "b"}, "mode": "soft"})
        );
        assert!(thing.get("other").is_none() && thing["metadata"]["labels"]["k"] == "v");
        validate(&resource, &thing).unwrap();
        for (pointer, bad) in [
            ("/spec/size", json!(0)),
            ("/spec/size", json!("1")),
            ("/spec/amount", json!(true)),
            ("/spec/map", json!({"a": 1})),
        ] {
            let mut thing = thing.clone();
            *thing.pointer_mut(pointer).unwrap() = bad;
            let error = validate(&resource, &thing).unwrap_err();
            assert_eq!(error.code, 422);
            assert!(error.message.contains(&pointer[1..].replace('/', ".")), "{}", error.message);
        }
    }

    #[test]
    fn invalid_definition_is_rejected() {
        let mut bad = definition();
        bad["metadata"]["name"] = "thing.x.io".into();
        assert!(resources(&bad).unwrap_err().message.contains("must be spec.names.plural"));
        let mut none = definition();
        none["spec"]["versions"] = json!([]);
        assert_eq!(resources(&none).unwrap_err().code, 422);
    }
}
