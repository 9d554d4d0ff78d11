//! State that every request can access: the store, the registry of resources, and the sandbox's options.

use std::time::Duration;

use serde_json::Value;

use super::attributes::Used;
use super::auth::Tokens;
use super::events;
use super::resource::{Registry, Resource};
use super::store::{Store, Stored};
use super::webhook::Webhooks;
use usher_spark::json::set;

/// State that a request can access.
#[derive(Debug)]
pub(super) struct Api {
    pub(super) store: Store,
    pub(super) registry: Registry,
    pub(super) tokens: Tokens,
    pub(super) webhooks: Webhooks,
    /// Minor version in `/version`: of `1.36` or `1.37`.
    pub(super) minor: u32,
    /// Interval of bookmarks in watches.
    pub(super) bookmarks: Duration,
    /// Whether RBAC applies to service accounts.
    pub(super) authorize: bool,
    /// Whether changing an object's owners requires permission to delete it.
    pub(super) enforce_owners: bool,
    /// What service accounts have done.
    pub(super) used: Used,
}

/// Warnings of webhooks, for the `Warning` headers.
pub(super) type Warnings = Vec<String>;

/// An object in the version of the requested resource.
pub(super) fn present(resource: &Resource, stored: &Stored) -> Value {
    in_version(resource, stored.value())
}

/// The same as text: the stored text, if it was written in that version.
pub(super) fn present_text(resource: &Resource, stored: &Stored) -> String {
    if untyped_text(resource, stored).is_some() {
        return stored.text.to_string();
    }
    present(resource, stored).to_string()
}

/// An item of a list as text: items have a kind and an apiVersion in lists of custom resources only.
pub(super) fn item_text(resource: &Resource, stored: &Stored) -> String {
    if resource.custom.is_some() {
        return present_text(resource, stored);
    }
    if let Some(rest) = untyped_text(resource, stored) {
        return format!("{{{rest}");
    }
    let mut object = present(resource, stored);
    if let Some(map) = object.as_object_mut() {
        map.remove("apiVersion");
        map.remove("kind");
    }
    object.to_string()
}

/// The stored text after the apiVersion and the kind, if it was written in the resource's version.
fn untyped_text<'s>(resource: &Resource, stored: &'s Stored) -> Option<&'s str> {
    let types = format!(r#"{{"apiVersion":"{}","kind":"{}","#, resource.api_version(), resource.kind);
    stored.text.strip_prefix(&types).filter(|_| resource.group != "events.k8s.io")
}

pub(super) fn in_version(resource: &Resource, mut object: Value) -> Value {
    if resource.group == "events.k8s.io" {
        object = events::to_events_v1(object);
    }
    set(&mut object, &["apiVersion"], resource.api_version());
    set(&mut object, &["kind"], resource.kind.clone());
    object
}
