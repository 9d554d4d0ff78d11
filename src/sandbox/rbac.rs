//! RBAC (`plugin/pkg/auth/authorizer/rbac`): roles and bindings as they stand in the store, asked at every request.
//!
//! Not enforced unless it was asked for: a sandbox is for trying things. aggregationRule and the roles that a cluster has
//! of itself are not there, but `cluster-admin` is, and everybody may ask who they are and what they may.

use std::collections::BTreeSet;
use std::sync::Mutex;

use serde_json::Value;

use super::api::Api;
use super::auth::User;
use super::resource::Collection;
use crate::json::{at, list, text};

/// What somebody wants to do.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wish<'w> {
    pub(super) verb: &'w str,
    pub(super) group: &'w str,
    pub(super) resource: &'w str,
    pub(super) sub: Option<&'w str>,
    pub(super) namespace: Option<&'w str>,
    pub(super) name: Option<&'w str>,
}

/// What service accounts have done, as `account verb resource.group/sub`.
#[derive(Debug, Default)]
pub(super) struct Used(Mutex<BTreeSet<String>>);

impl Used {
    pub(super) fn note(&self, user: &User, wish: &Wish<'_>) {
        if !user.username.starts_with("system:serviceaccount:") {
            return;
        }
        let line = format!("{} {} {}", user.username, wish.verb, wish.what());
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).insert(line);
    }

    pub(super) fn all(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).iter().cloned().collect()
    }
}

impl Wish<'_> {
    fn what(&self) -> String {
        let sub = self.sub.map(|sub| format!("/{sub}")).unwrap_or_default();
        let group = if self.group.is_empty() { String::new() } else { format!(".{}", self.group) };
        format!("{}{group}{sub}", self.resource)
    }

    /// As the API server says it.
    pub(super) fn refusal(&self, user: &User) -> String {
        let sub = self.sub.map(|sub| format!("/{sub}")).unwrap_or_default();
        let scope = match self.namespace {
            Some(namespace) => format!("in the namespace {namespace:?}"),
            None => "at the cluster scope".to_owned(),
        };
        format!(
            "User {:?} cannot {} resource \"{}{sub}\" in API group {:?} {scope}",
            user.username, self.verb, self.resource, self.group
        )
    }
}

/// Whether a user may.
pub(super) fn allows(api: &Api, user: &User, wish: &Wish<'_>) -> bool {
    if user.groups.iter().any(|group| group == "system:masters")
        || matches!(wish.group, "authentication.k8s.io") && wish.resource == "selfsubjectreviews"
        || wish.group == "authorization.k8s.io" && wish.resource.starts_with("selfsubject")
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
        if binds(&binding, "") && role_allows(api, &binding, "", wish) {
            return true;
        }
    }
    let Some(namespace) = wish.namespace else { return false };
    all("rolebindings").into_iter().filter(|binding| binding.key.0 == namespace).any(|binding| {
        let binding = binding.value();
        binds(&binding, namespace) && role_allows(api, &binding, namespace, wish)
    })
}

const GROUP: &str = "rbac.authorization.k8s.io";

fn is_subject(subject: &Value, user: &User, namespace: &str) -> bool {
    let name = text(subject, &["name"]);
    match text(subject, &["kind"]) {
        "User" => name == user.username,
        "Group" => user.groups.iter().any(|group| group == name),
        "ServiceAccount" => {
            let own = text(subject, &["namespace"]);
            let namespace = if own.is_empty() { namespace } else { own };
            user.username == format!("system:serviceaccount:{namespace}:{name}")
        }
        _ => false,
    }
}

fn role_allows(api: &Api, binding: &Value, namespace: &str, wish: &Wish<'_>) -> bool {
    let name = text(binding, &["roleRef", "name"]);
    let (plural, namespace) = match text(binding, &["roleRef", "kind"]) {
        "ClusterRole" if name == "cluster-admin" => return true,
        "ClusterRole" => ("clusterroles", ""),
        _ => ("roles", namespace),
    };
    let collection = Collection { group: GROUP.to_owned(), plural: plural.to_owned() };
    let Some(role) = api.store.get(&collection, &(namespace.to_owned(), name.to_owned())) else { return false };
    let role = role.value();
    list(&role, &["rules"]).iter().any(|rule| rule_allows(rule, wish))
}

fn rule_allows(rule: &Value, wish: &Wish<'_>) -> bool {
    let names = |key: &str| list(rule, &[key]).iter().filter_map(Value::as_str).collect::<Vec<_>>();
    let has = |key: &str, wanted: &str| names(key).iter().any(|name| *name == "*" || *name == wanted);
    let resource = match wish.sub {
        Some(sub) => format!("{}/{sub}", wish.resource),
        None => wish.resource.to_owned(),
    };
    let listed = at(rule, &["resourceNames"]).and_then(Value::as_array).filter(|names| !names.is_empty());
    has("verbs", wish.verb)
        && has("apiGroups", wish.group)
        && has("resources", &resource)
        && listed.is_none_or(|names| wish.name.is_some_and(|name| names.iter().any(|listed| listed == name)))
}
