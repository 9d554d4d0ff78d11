//! Discovery: `/version`, `/api`, `/apis`, one resource list per group version, and the aggregated form of both.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;
use serde_json::{Value, json};

use super::resource::Resource;
use super::respond::respond;
use super::state::Api;

const VERBS: [&str; 8] = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];

/// Returns a discovery page if the path is one.
pub(super) fn page(api: &Api, path: &str, headers: &HeaderMap) -> Option<Response> {
    let all = api.registry.all();
    let aggregated = headers.get(header::ACCEPT).and_then(|v| v.to_str().ok()).is_some_and(|accept| {
        accept
            .split(',')
            .next()
            .is_some_and(|first| first.contains("as=APIGroupDiscoveryList") && first.contains("v=v2"))
    });
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    let document = match parts.as_slice() {
        [] => json!({"paths": ["/api", "/apis", "/healthz", "/livez", "/readyz", "/openapi/v3", "/version"]}),
        ["version"] => version(api.minor),
        ["api"] if aggregated => return Some(aggregate(&all, true)),
        ["apis"] if aggregated => return Some(aggregate(&all, false)),
        ["api"] => {
            json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": "127.0.0.1"}]})
        }
        ["apis"] => json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups(&all)}),
        ["apis", group] => {
            let mut group =
                groups(&all).into_iter().find(|known| known.get("name").is_some_and(|name| name == group))?;
            usher_spark::json::set(&mut group, &["kind"], "APIGroup");
            usher_spark::json::set(&mut group, &["apiVersion"], "v1");
            group
        }
        ["api", version] => list(&all, "", version)?,
        ["apis", group, version] => list(&all, group, version)?,
        _ => return None,
    };
    Some(respond(StatusCode::OK, &document))
}

fn version(minor: u32) -> Value {
    json!({"major": "1", "minor": minor.to_string(), "gitVersion": format!("v1.{minor}.0+spark-usher.sandbox"), "gitCommit": "", "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z", "goVersion": "", "compiler": "", "platform": "sandbox"})
}

/// Maps each group to its versions, in order of priority.
fn versions(all: &[Arc<Resource>]) -> BTreeMap<&str, Vec<&str>> {
    let mut groups: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for resource in all {
        let versions = groups.entry(&resource.group).or_default();
        if !versions.contains(&resource.version.as_str()) {
            versions.push(&resource.version);
        }
    }
    groups
}

fn groups(all: &[Arc<Resource>]) -> Vec<Value> {
    let groups = versions(all).into_iter().filter(|(group, _)| !group.is_empty());
    groups
        .map(|(group, versions)| {
            let versions: Vec<Value> = versions
                .iter()
                .map(|version| json!({"groupVersion": format!("{group}/{version}"), "version": version}))
                .collect();
            json!({"name": group, "versions": versions, "preferredVersion": versions.first()})
        })
        .collect()
}

/// Subresources other than `status`, by resource.
fn subresources(resource: &Resource) -> Vec<(&'static str, &'static str, &'static [&'static str])> {
    let mut all: Vec<(&str, &str, &[&str])> = Vec::new();
    if resource.status {
        all.push(("status", "", &["get", "patch", "update"]));
    }
    match (resource.group.as_str(), resource.plural.as_str()) {
        ("", "pods") => all.extend([
            ("binding", "Binding", &["create"][..]),
            ("eviction", "Eviction", &["create"]),
            ("log", "Pod", &["get"]),
            ("proxy", "PodProxyOptions", &["get"]),
        ]),
        ("", "serviceaccounts") => all.push(("token", "TokenRequest", &["create"])),
        ("", "namespaces") => all.push(("finalize", "Namespace", &["update"])),
        _ => {}
    }
    all
}

fn verbs(resource: &Resource) -> Vec<&'static str> {
    if resource.is_ephemeral() {
        return vec!["create"];
    }
    VERBS.iter().copied().filter(|verb| *verb != "deletecollection" || resource.plural != "namespaces").collect()
}

fn list(all: &[Arc<Resource>], group: &str, version: &str) -> Option<Value> {
    let mut resources = Vec::new();
    for resource in all.iter().filter(|r| r.group == group && r.version == version) {
        let mut entry = json!({
            "name": resource.plural, "singularName": resource.singular, "namespaced": resource.namespaced, "kind": resource.kind,
            "verbs": verbs(resource),
        });
        for (key, names) in [("shortNames", &resource.short_names), ("categories", &resource.categories)] {
            if !names.is_empty() {
                usher_spark::json::set(&mut entry, &[key], names.clone());
            }
        }
        resources.push(entry);
        for (sub, kind, verbs) in subresources(resource) {
            let kind = if kind.is_empty() { &resource.kind } else { kind };
            let name = format!("{}/{sub}", resource.plural);
            resources.push(json!({"name": name, "singularName": "", "namespaced": resource.namespaced, "kind": kind, "verbs": verbs}));
        }
    }
    if resources.is_empty() {
        return None;
    }
    let group_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    Some(json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": resources}))
}

/// `apidiscovery.k8s.io/v2`: all resources in one page.
fn aggregate(all: &[Arc<Resource>], core: bool) -> Response {
    let items: Vec<Value> = versions(all)
        .into_iter()
        .filter(|(group, _)| group.is_empty() == core)
        .map(|(group, versions)| {
            let versions: Vec<Value> = versions
                .iter()
                .map(|version| {
                    let resources = all.iter().filter(|r| r.group == group && r.version == *version);
                    json!({"version": version, "freshness": "Current", "resources": resources.map(|r| aggregated(r)).collect::<Vec<_>>()})
                })
                .collect();
            let metadata = if group.is_empty() { json!({}) } else { json!({"name": group}) };
            json!({"metadata": metadata, "versions": versions})
        })
        .collect();
    let document = json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items});
    let mut response = respond(StatusCode::OK, &document);
    let content_type = HeaderValue::from_static("application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList");
    response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    response
}

fn aggregated(resource: &Resource) -> Value {
    let kind = |kind: &str| json!({"group": resource.group, "version": resource.version, "kind": kind});
    let scope = if resource.namespaced { "Namespaced" } else { "Cluster" };
    let subs: Vec<Value> = subresources(resource)
        .into_iter()
        .map(|(sub, sub_kind, verbs)| {
            let sub_kind = if sub_kind.is_empty() { &resource.kind } else { sub_kind };
            json!({"subresource": sub, "responseKind": kind(sub_kind), "verbs": verbs})
        })
        .collect();
    json!({
        "resource": resource.plural, "responseKind": kind(&resource.kind), "scope": scope, "singularResource": resource.singular,
        "verbs": verbs(resource), "shortNames": resource.short_names, "categories": resource.categories, "subresources": subs,
    })
}
