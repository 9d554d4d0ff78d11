//! Deletion: preconditions, grace period, finalizers, propagation.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::admission::{self, Attributes, Operation};
use super::error::{ApiError, Result};
use super::patch;
use super::request::Request;
use super::resource::Resource;
use super::selector::Filter;
use super::state::{Api, Warnings, in_version, present};
use super::store::{Stored, TRIES};
use usher_runtime::clock;
use usher_spark::json::{at, list, list_mut, set, text};
use usher_spark::time::whole_second;

/// The options that a client sends with a deletion.
#[derive(Clone, Debug, Default)]
pub(super) struct DeleteOptions {
    grace: Option<i64>,
    uid: Option<String>,
    version: Option<String>,
    propagation: String,
}

impl DeleteOptions {
    fn read(request: &Request) -> Result<DeleteOptions> {
        let body = if request.body.is_empty() { json!({}) } else { patch::parse_body(&request.body)? };
        let owned = |path: &[&str]| Some(text(&body, path).to_owned()).filter(|text| !text.is_empty());
        let orphans = at(&body, &["orphanDependents"]).and_then(Value::as_bool).unwrap_or(false);
        let propagation =
            owned(&["propagationPolicy"]).or_else(|| request.param("propagationPolicy").map(str::to_owned));
        let grace = at(&body, &["gracePeriodSeconds"]).and_then(Value::as_i64);
        Ok(DeleteOptions {
            grace: grace.or_else(|| request.param("gracePeriodSeconds").and_then(|grace| grace.parse().ok())),
            uid: owned(&["preconditions", "uid"]),
            version: owned(&["preconditions", "resourceVersion"]),
            propagation: propagation.unwrap_or_else(|| if orphans { "Orphan" } else { "Background" }.to_owned()),
        })
    }

    /// The garbage collector's options: delete this object (by uid) and no other.
    pub(super) fn of(stored: &Stored) -> DeleteOptions {
        DeleteOptions {
            uid: Some(stored.uid.clone()),
            propagation: "Background".to_owned(),
            ..DeleteOptions::default()
        }
    }
}

/// Deletes one object.
pub(super) async fn one(api: &Arc<Api>, request: &Request, warnings: &mut Warnings) -> Result<Value> {
    let key = request.key();
    let resource = &request.resource;
    let found = api.store.get(&resource.collection(), &key);
    let found = found.ok_or_else(|| ApiError::not_found(&resource.qualified(), &key.1))?;
    let options = DeleteOptions::read(request)?;
    match delete_newest(api, request, &found, &options, warnings).await? {
        // The response contains an object that still exists, and name and uid of one that was deleted.
        Some(still)
            if resource.is_pods()
                || at(&still, &["metadata", "finalizers"]).is_some()
                || resource.is("", "namespaces") =>
        {
            Ok(still)
        }
        _ => Ok(json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
            "details": {"name": key.1, "kind": resource.plural, "group": resource.group, "uid": found.uid},
        })),
    }
}

/// Deletes all objects that match a selector.
pub(super) async fn many(api: &Arc<Api>, request: &Request, warnings: &mut Warnings) -> Result<Value> {
    let resource = &request.resource;
    let filter = Filter::parse(resource, request.param("labelSelector"), request.param("fieldSelector"))?;
    let options = DeleteOptions::read(request)?;
    let (all, _) = api.store.list(&resource.collection(), request.namespace.as_deref(), None);
    let mut items = Vec::new();
    for object in all.iter().filter(|object| filter.matches(object)) {
        match delete_newest(api, request, object, &options, warnings).await {
            Ok(_) => items.push(present(resource, object)),
            Err(error) if error.code == 404 => {}
            Err(error) => return Err(error),
        }
    }
    Ok(
        json!({"kind": format!("{}List", resource.kind), "apiVersion": resource.api_version(), "metadata": {}, "items": items}),
    )
}

/// The same as [`delete`], again for the newest version of an object that another write changed meanwhile, unless the client names a
/// version.
async fn delete_newest(
    api: &Arc<Api>,
    request: &Request,
    found: &Arc<Stored>,
    options: &DeleteOptions,
    warnings: &mut Warnings,
) -> Result<Option<Value>> {
    let mut found = found.clone();
    for _ in 1..TRIES {
        let mut found_warnings = Warnings::new();
        let outcome = delete(api, request, &found, options, &mut found_warnings).await;
        let newest = api.store.get(&request.resource.collection(), &found.key);
        match newest.filter(|newest| newest.revision != found.revision && options.version.is_none()) {
            Some(newest) if outcome.as_ref().is_err_and(|error| error.code == 409) => found = newest,
            _ => {
                warnings.extend(found_warnings);
                return outcome;
            }
        }
    }
    delete(api, request, &found, options, warnings).await
}

/// Deletes an object, or sets its deletionTimestamp while finalizers or a grace period hold it. Returns the object as it is now.
pub(super) async fn delete(
    api: &Arc<Api>,
    request: &Request,
    found: &Arc<Stored>,
    options: &DeleteOptions,
    warnings: &mut Warnings,
) -> Result<Option<Value>> {
    let resource = &request.resource;
    let name = &found.key.1;
    if let Some(uid) = options.uid.as_ref().filter(|uid| **uid != found.uid) {
        let why = format!(
            "the UID in the precondition ({uid}) does not match the UID in record ({}). The object might have been deleted and then recreated",
            found.uid
        );
        return Err(ApiError::conflict(&resource.kind, name, &why));
    }
    if let Some(version) = options.version.as_ref().filter(|version| **version != found.revision.to_string()) {
        let why = format!(
            "the ResourceVersion in the precondition ({version}) does not match the ResourceVersion in record ({}). The object might have been modified",
            found.revision
        );
        return Err(ApiError::conflict(&resource.kind, name, &why));
    }
    let old = in_version(resource, found.value());
    let attributes = Attributes { request, name: name.clone(), operation: Operation::Delete, sub: None };
    let mut gone = Value::Null;
    admission::mutate(api, &attributes, &mut gone, Some(&old), warnings).await?;
    admission::validate(api, &attributes, None, Some(&old), warnings).await?;
    if request.dry_run() {
        return Ok(Some(old));
    }
    let mut marked = found.value();
    let grace = grace(resource, &marked, options);
    for (policy, finalizer) in [("Orphan", "orphan"), ("Foreground", "foregroundDeletion")] {
        if options.propagation == policy && !list(&marked, &["metadata", "finalizers"]).iter().any(|f| f == finalizer) {
            list_mut(&mut marked, &["metadata", "finalizers"]).push(finalizer.into());
        }
    }
    let waits = grace > 0
        || !list(&marked, &["metadata", "finalizers"]).is_empty()
        || (resource.is("", "namespaces") && !list(&marked, &["spec", "finalizers"]).is_empty());
    if !waits && !resource.is_pods() {
        finish(api, resource, found)?;
        return Ok(Some(old));
    }
    let known = at(&marked, &["metadata", "deletionGracePeriodSeconds"]).and_then(Value::as_i64);
    if at(&marked, &["metadata", "deletionTimestamp"]).is_none() || known.is_some_and(|known| grace < known) {
        let when = whole_second(clock::now());
        let when = when.checked_add(SignedDuration::from_secs(grace)).unwrap_or(Timestamp::MAX);
        set(&mut marked, &["metadata", "deletionTimestamp"], when.to_string());
        set(&mut marked, &["metadata", "deletionGracePeriodSeconds"], grace);
        if let Some(generation) = at(&marked, &["metadata", "generation"]).and_then(Value::as_i64) {
            set(&mut marked, &["metadata", "generation"], generation + 1);
        }
    }
    if !waits {
        // A pod that is deleted immediately gets a deletionTimestamp all the same, and a watch shows both writes.
        let stored = api.store.replace(resource, found, marked)?;
        finish(api, resource, &stored)?;
        return Ok(Some(present(resource, &stored)));
    }
    if resource.is("", "namespaces") {
        set(&mut marked, &["status", "phase"], "Terminating");
    }
    let stored = api.store.replace(resource, found, marked)?;
    Ok(Some(present(resource, &stored)))
}

/// A pod on a node gets its grace period; other objects are deleted immediately.
fn grace(resource: &Resource, object: &Value, options: &DeleteOptions) -> i64 {
    let ended = matches!(text(object, &["status", "phase"]), "Succeeded" | "Failed");
    if !resource.is_pods() || text(object, &["spec", "nodeName"]).is_empty() || ended {
        return 0;
    }
    let of_pod = at(object, &["spec", "terminationGracePeriodSeconds"]).and_then(Value::as_i64).unwrap_or(30);
    options.grace.unwrap_or(of_pod).max(0)
}

/// Removes an object that neither finalizers nor a grace period hold.
pub(super) fn finish(api: &Api, resource: &Resource, stored: &Stored) -> Result<()> {
    api.store.remove(resource, stored)?;
    if resource.is("apiextensions.k8s.io", "customresourcedefinitions") {
        let is_defined = |r: &Arc<Resource>| r.custom.as_ref().is_some_and(|custom| custom.definition == stored.key.1);
        for served in api.registry.all().into_iter().filter(is_defined) {
            for object in api.store.list(&served.collection(), None, None).0 {
                api.store.remove(&served, &object)?;
            }
        }
        api.registry.define(&stored.key.1, Vec::new());
    }
    Ok(())
}
