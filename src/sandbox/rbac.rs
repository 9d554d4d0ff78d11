//! RBAC (`plugin/pkg/auth/authorizer/rbac`): roles and bindings from the store, evaluated for every request.
//!
//! Enforced only on request: a sandbox is for trials. aggregationRule and a cluster's default roles are missing, except
//! `cluster-admin`; every user may query their own identity and access.

use serde_json::Value;

use super::attributes::AccessAttributes;
use super::auth::User;
use super::resource::Collection;
use super::state::Api;
use usher_spark::json::{at, list, text};

/// Reports whether RBAC allows the user this access.
pub(super) fn allows(api: &Api, user: &User, attributes: &AccessAttributes<'_>) -> bool {
    if user.groups.iter().any(|group| group == "system:masters")
        || matches!(attributes.group, "authentication.k8s.io") && attributes.resource == "selfsubjectreviews"
        || attributes.group == "authorization.k8s.io" && attributes.resource.starts_with("selfsubject")
    {
        return true;
    }
    let all = |plural: &str| {
        let collection = Collection { group: GROUP.to_owned(), plural: plural.to_owned() };
        api.store.list(&collection, None, None).0
    };
    let binds = |binding: &Value, namespace: &str| {
        list(binding, &["subjects"]).iter().any(|subject| is_subject(subject, user, namespace))
    };
    for binding in all("clusterrolebindings") {
        let binding = binding.value();
        if binds(&binding, "") && role_allows(api, &binding, "", attributes) {
            return true;
        }
    }
    let Some(namespace) = attributes.namespace else { return false };
    all("rolebindings").into_iter().filter(|binding| binding.key.0 == namespace).any(|binding| {
        let binding = binding.value();
        binds(&binding, namespace) && role_allows(api, &binding, namespace, attributes)
    })
}

const GROUP: &str = "rbac.authorization.k8s.io";

fn is_subject(subject: &Value, user: &User, namespace: &str) -> bool {
    let name = text(subject, &["name"]);
    match text(subject, &["kind"]) {
        "User" => name == user.username,
        "Group" => user.groups.iter().any(|group| group == name),
        "ServiceAccount" => {
            let named = text(subject, &["namespace"]);
            let namespace = if named.is_empty() { namespace } else { named };
            user.username == format!("system:serviceaccount:{namespace}:{name}")
        }
        _ => false,
    }
}

fn role_allows(api: &Api, binding: &Value, namespace: &str, attributes: &AccessAttributes<'_>) -> bool {
    let name = text(binding, &["roleRef", "name"]);
    let (plural, namespace) = match text(binding, &["roleRef", "kind"]) {
        "ClusterRole" if name == "cluster-admin" => return true,
        "ClusterRole" => ("clusterroles", ""),
        _ => ("roles", namespace),
    };
    let collection = Collection { group: GROUP.to_owned(), plural: plural.to_owned() };
    let Some(role) = api.store.get(&collection, &(namespace.to_owned(), name.to_owned())) else { return false };
    let role = role.value();
    list(&role, &["rules"]).iter().any(|rule| rule_allows(rule, attributes))
}

fn rule_allows(rule: &Value, attributes: &AccessAttributes<'_>) -> bool {
    let names = |key: &str| list(rule, &[key]).iter().filter_map(Value::as_str).collect::<Vec<_>>();
    let has = |key: &str, wanted: &str| names(key).iter().any(|name| *name == "*" || *name == wanted);
    let resource = match attributes.sub {
        Some(sub) => format!("{}/{sub}", attributes.resource),
        None => attributes.resource.to_owned(),
    };
    let listed = at(rule, &["resourceNames"]).and_then(Value::as_array).filter(|names| !names.is_empty());
    has("verbs", attributes.verb)
        && has("apiGroups", attributes.group)
        && has("resources", &resource)
        && listed.is_none_or(|names| attributes.name.is_some_and(|name| names.iter().any(|listed| listed == name)))
}
