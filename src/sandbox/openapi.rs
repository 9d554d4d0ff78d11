//! The part of `/openapi/v3` from which kubectl learns that it can leave the validation of fields to the server: the
//! paths and the parameters of their patches. It contains no schemas, so `kubectl explain` does not work.

use serde_json::{Map, Value, json};

use super::state::Api;
use usher_spark::json::set;

/// Returns an OpenAPI page if the path is one.
pub(super) fn page(api: &Api, path: &str) -> Option<Value> {
    let rest = path.strip_prefix("/openapi/v3")?.trim_start_matches('/');
    if rest.is_empty() {
        let mut paths = Map::new();
        for resource in api.registry.all() {
            let at = root(&resource.group, &resource.version);
            paths.insert(at.clone(), json!({"serverRelativeURL": format!("/openapi/v3/{at}")}));
        }
        return Some(json!({ "paths": paths }));
    }
    let mut document = json!({"openapi": "3.0.0", "info": {"title": "spark-usher sandbox", "version": "v1"}, "paths": {}, "components": {"schemas": {}}});
    let mut found = false;
    for resource in api.registry.all().iter().filter(|r| root(&r.group, &r.version) == rest) {
        found = true;
        let scope = if resource.namespaced { "namespaces/{namespace}/" } else { "" };
        let path = format!("/{rest}/{scope}{}/{{name}}", resource.plural);
        let kind = json!({"group": resource.group, "version": resource.version, "kind": resource.kind});
        let parameter =
            |name: &str| json!({"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": true}});
        let parameters = ["dryRun", "fieldManager", "fieldValidation", "force"].map(parameter);
        let patch = json!({
            "parameters": parameters,
            "x-kubernetes-action": "patch", "x-kubernetes-group-version-kind": kind, "responses": {},
        });
        set(&mut document, &["paths", &path, "patch"], patch);
    }
    found.then_some(document)
}

fn root(group: &str, version: &str) -> String {
    if group.is_empty() { format!("api/{version}") } else { format!("apis/{group}/{version}") }
}
