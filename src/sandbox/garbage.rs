//! Garbage collection by ownerReference, and deletion of namespaces (`pkg/controller/garbagecollector`,
//! `pkg/controller/namespace`).
//!
//! An object is deleted when none of its owners exists. An owner with another uid, or in another namespace, does not count.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::delete::{self, DeleteOptions};
use super::request::{Verb, component_request};
use super::resource::{Collection, Resource};
use super::state::{Api, Warnings};
use super::store::{GarbageWork, Key, Stored};
use usher_spark::json::{at, list, list_mut, text};

/// A real collector has a delay, too.
const PAUSE: Duration = Duration::from_millis(10);
/// Objects that wait for their dependents are checked again after this time.
const AGAIN: Duration = Duration::from_millis(50);

/// Runs the collector until stopped.
pub(super) async fn run(api: Arc<Api>, stop: CancellationToken) {
    let mut seen = 0;
    let mut waiting: BTreeSet<(Collection, Key)> = BTreeSet::new();
    loop {
        let patience = if waiting.is_empty() { Duration::from_secs(3600) } else { AGAIN };
        let more = async {
            let _ = tokio::time::timeout(patience, api.store.newer_than(seen)).await;
            tokio::time::sleep(PAUSE).await;
        };
        if stop.run_until_cancelled(more).await.is_none() {
            return;
        }
        seen = api.store.revision();
        let mut checks: BTreeSet<(Collection, Key)> = std::mem::take(&mut waiting);
        for work in api.store.garbage_work() {
            match work {
                GarbageWork::Check(collection, key) => {
                    checks.insert((collection, key));
                }
                GarbageWork::OwnerDeleted(uid) => checks.extend(api.store.owned_by(&uid)),
            }
        }
        for (collection, key) in checks {
            if collect(&api, &collection, &key).await {
                waiting.insert((collection, key));
            }
        }
    }
}

/// Processes one object. Returns whether it must be processed again.
async fn collect(api: &Arc<Api>, collection: &Collection, key: &Key) -> bool {
    let Some(stored) = api.store.get(collection, key) else { return false };
    let Some(resource) = api.registry.all().into_iter().find(|r| r.collection() == *collection) else { return false };
    let object = stored.value();
    if at(&object, &["metadata", "deletionTimestamp"]).is_some() {
        if resource.is("", "namespaces") {
            return !empty_namespace(api, &resource, &stored, &object).await;
        }
        return !release(api, &resource, &stored, &object).await;
    }
    let owners = list(&object, &["metadata", "ownerReferences"]);
    let (solid, dangling): (Vec<&Value>, Vec<&Value>) = owners.iter().partition(|owner| exists(api, &key.0, owner));
    if dangling.is_empty() {
        return false;
    }
    if solid.is_empty() {
        let request = component_request("generic-garbage-collector", &resource, Verb::Delete, key);
        let deleted = delete::delete(api, &request, &stored, &DeleteOptions::of(&stored), &mut Warnings::new()).await;
        // Conflict: the object changed in between, so process it again.
        return deleted.is_err_and(|error| error.code == 409);
    }
    let solid: Vec<Value> = solid.into_iter().cloned().collect();
    let mut kept = object.clone();
    *list_mut(&mut kept, &["metadata", "ownerReferences"]) = solid;
    api.store.replace(&resource, &stored, kept).is_err()
}

/// Reports whether an owner exists, as seen from the dependent's namespace. An owner of an unserved kind counts as existing.
fn exists(api: &Api, namespace: &str, owner: &Value) -> bool {
    let Some(resource) = api.registry.of_kind(text(owner, &["apiVersion"]), text(owner, &["kind"])) else {
        return true;
    };
    let namespace = if resource.namespaced { namespace } else { "" };
    let key = (namespace.to_owned(), text(owner, &["name"]).to_owned());
    api.store.get(&resource.collection(), &key).is_some_and(|found| found.uid == text(owner, &["uid"]))
}

/// Removes the collector's finalizers once the dependents were orphaned or deleted. Returns whether it is done.
async fn release(api: &Arc<Api>, resource: &Arc<Resource>, stored: &Arc<Stored>, object: &Value) -> bool {
    let has = |finalizer: &str| list(object, &["metadata", "finalizers"]).iter().any(|found| found == finalizer);
    if !has("orphan") && !has("foregroundDeletion") {
        return true;
    }
    let dependents = api.store.owned_by(&stored.uid);
    for (collection, key) in &dependents {
        let (Some(found), Some(resource)) =
            (api.store.get(collection, key), api.registry.all().into_iter().find(|r| r.collection() == *collection))
        else {
            continue;
        };
        if has("orphan") {
            let mut free = found.value();
            list_mut(&mut free, &["metadata", "ownerReferences"]).retain(|owner| text(owner, &["uid"]) != stored.uid);
            let _ = api.store.replace(&resource, &found, free);
        } else {
            let request = component_request("generic-garbage-collector", &resource, Verb::Delete, key);
            let _ = delete::delete(api, &request, &found, &DeleteOptions::of(&found), &mut Warnings::new()).await;
        }
    }
    if !api.store.owned_by(&stored.uid).is_empty() {
        return false;
    }
    let mut free = object.clone();
    list_mut(&mut free, &["metadata", "finalizers"]).retain(|found| found != "orphan" && found != "foregroundDeletion");
    let held = !list(&free, &["metadata", "finalizers"]).is_empty()
        || at(&free, &["metadata", "deletionGracePeriodSeconds"]).and_then(Value::as_i64).unwrap_or(0) > 0;
    match api.store.replace(resource, stored, free) {
        Ok(freed) if !held => delete::finish(api, resource, &freed).is_ok(),
        Ok(_) => true,
        Err(_) => false,
    }
}

/// Deletes the objects in a namespace, then the namespace. Returns whether it is done.
async fn empty_namespace(api: &Arc<Api>, resource: &Arc<Resource>, stored: &Arc<Stored>, object: &Value) -> bool {
    let name = &stored.key.1;
    let mut left = false;
    for held in api.registry.all().into_iter().filter(|r| r.namespaced && r.group != "events.k8s.io") {
        for found in api.store.list(&held.collection(), Some(name), None).0 {
            left = true;
            let request = component_request("namespace-controller", &held, Verb::Delete, &found.key);
            let _ = delete::delete(api, &request, &found, &DeleteOptions::of(&found), &mut Warnings::new()).await;
        }
    }
    if left || !list(object, &["metadata", "finalizers"]).is_empty() {
        return false;
    }
    delete::finish(api, resource, stored).is_ok()
}
