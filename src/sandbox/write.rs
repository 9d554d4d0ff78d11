//! Creates and updates objects.

use std::sync::Arc;

use serde_json::{Value, json};

use super::admission::{self, Attributes, Operation};
use super::auth::random_suffix;
use super::error::{ApiError, Cause, Result};
use super::patch::{self, PatchType};
use super::request::Request;
use super::resource::Resource;
use super::state::{Api, Warnings, in_version, present};
use super::store::{Stored, TRIES};
use super::{crd, defaults, events, plugins, validate};
use usher_runtime::clock;
use usher_runtime::random::uuid;
use usher_spark::json::{at, list, remove, set, text};
use usher_spark::time::whole_second;

/// Creates the object in the body.
pub(super) async fn create(api: &Arc<Api>, request: &Request, warnings: &mut Warnings) -> Result<Value> {
    let object = incoming(request, patch::parse_body(&request.body)?)?;
    create_object(api, request, object, warnings).await
}

/// Creates an object that was already read from the body.
pub(super) async fn create_object(
    api: &Arc<Api>,
    request: &Request,
    mut object: Value,
    warnings: &mut Warnings,
) -> Result<Value> {
    let resource = &request.resource;
    if !text(&object, &["metadata", "resourceVersion"]).is_empty() {
        return Err(ApiError::bad_request("resourceVersion should not be set on objects to be created"));
    }
    generate_name(&mut object);
    for key in [
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generation",
        "managedFields",
        "selfLink",
    ] {
        remove(&mut object, &["metadata", key]);
    }
    if resource.status {
        remove(&mut object, &["status"]);
    }
    if resource.is("", "secrets") {
        string_data(&mut object);
    }
    shape(resource, &mut object);
    plugins::namespace_lifecycle(api, resource, &object)?;
    let name = text(&object, &["metadata", "name"]).to_owned();
    let attributes = |name: String| Attributes { request, name, operation: Operation::Create, sub: None };
    admission::mutate(api, &attributes(name), &mut object, None, warnings).await?;
    shape(resource, &mut object);
    begin(resource, &mut object);
    type_check(resource, &mut object);
    validate::object(resource, &object)?;
    crd::validate(resource, &object)?;
    let definitions = definitions(resource, &mut object)?;
    let name = text(&object, &["metadata", "name"]).to_owned();
    plugins::owners(api, request, &name, None, &object)?;
    admission::validate(api, &attributes(name), Some(&object), None, warnings).await?;
    if request.dry_run() {
        return Ok(in_version(resource, object));
    }
    let stored = api.store.create(resource, object)?;
    if let Some(definitions) = definitions {
        api.registry.define(&stored.key.1, definitions);
    }
    if resource.is("", "namespaces") {
        add_namespace_defaults(api, &stored.key.1);
    }
    Ok(present(resource, &stored))
}

/// Replaces an object; a few kinds can be created this way. Returns whether it was created.
pub(super) async fn update(api: &Arc<Api>, request: &Request, warnings: &mut Warnings) -> Result<(Value, bool)> {
    let resource = &request.resource;
    let mut object = incoming(request, patch::parse_body(&request.body)?)?;
    let key = request.key();
    if text(&object, &["metadata", "name"]).is_empty() {
        set(&mut object, &["metadata", "name"], key.1.clone());
    }
    if text(&object, &["metadata", "name"]) != key.1 {
        let why = format!(
            "the name of the object ({}) does not match the name on the URL ({})",
            text(&object, &["metadata", "name"]),
            key.1
        );
        return Err(ApiError::bad_request(why));
    }
    let Some(present) = api.store.get(&resource.collection(), &key) else {
        let creates =
            request.sub.is_none() && ["leases", "endpoints", "events", "services"].contains(&resource.plural.as_str());
        if creates && text(&object, &["metadata", "resourceVersion"]).is_empty() {
            return Ok((create_object(api, request, object, warnings).await?, true));
        }
        return Err(ApiError::not_found(&resource.qualified(), &key.1));
    };
    check_preconditions(resource, &present, &object, false)?;
    let object = replace(api, request, &present, object, warnings).await?;
    Ok((object, false))
}

/// Patches an object; an apply patch creates a missing object. Returns whether it was created.
pub(super) async fn patch(api: &Arc<Api>, request: &Request, warnings: &mut Warnings) -> Result<(Value, bool)> {
    let resource = &request.resource;
    let kind = PatchType::of(request)?;
    let patch = patch::parse(request)?;
    let key = request.key();
    for attempt in 1..=TRIES {
        let Some(stored) = api.store.get(&resource.collection(), &key) else {
            if kind != PatchType::Apply || request.sub.is_some() {
                return Err(ApiError::not_found(&resource.qualified(), &key.1));
            }
            plugins::may_create(api, request)?;
            let mut object = incoming(request, patch)?;
            if text(&object, &["metadata", "name"]).is_empty() {
                set(&mut object, &["metadata", "name"], key.1.clone());
            }
            return Ok((create_object(api, request, object, warnings).await?, true));
        };
        let before = present(resource, &stored);
        let patched = patch::apply(request, kind, &patch, &before)?;
        let patched = incoming(request, patched)?;
        check_preconditions(resource, &stored, &patched, true)?;
        let mut attempt_warnings = Warnings::new();
        match replace(api, request, &stored, patched, &mut attempt_warnings).await {
            // Conflict: another write came between; retry unless the patch itself names a version.
            Err(error) if error.code == 409 && error.reason == "Conflict" && attempt < TRIES => {}
            outcome => {
                warnings.extend(attempt_warnings);
                return Ok((outcome?, false));
            }
        }
    }
    Err(ApiError::modified(&resource.qualified(), &key.1))
}

/// Checks that the resourceVersion and uid from the client are the current ones.
/// A patch with another uid would change it, which is invalid; whole objects are compared before.
fn check_preconditions(resource: &Resource, present: &Stored, object: &Value, is_patch: bool) -> Result<()> {
    let name = &present.key.1;
    let version = text(object, &["metadata", "resourceVersion"]);
    if !version.is_empty() && version != present.revision.to_string() {
        return Err(ApiError::modified(&resource.qualified(), name));
    }
    let uid = text(object, &["metadata", "uid"]);
    if !uid.is_empty() && uid != present.uid {
        if is_patch {
            let cause = Cause::invalid("metadata.uid", uid, "field is immutable");
            return Err(ApiError::invalid(&resource.kind, name, vec![cause]));
        }
        let why = format!("Precondition failed: UID in precondition: {uid}, UID in object meta: {}", present.uid);
        return Err(ApiError::conflict(&resource.qualified(), name, &why));
    }
    Ok(())
}

/// Runs admission on the new state of an object and stores it.
async fn replace(
    api: &Arc<Api>,
    request: &Request,
    read: &Arc<Stored>,
    mut object: Value,
    warnings: &mut Warnings,
) -> Result<Value> {
    let resource = &request.resource;
    let old = in_version(resource, read.value());
    let sub = request.sub.clone();
    if sub.as_deref() == Some("status") {
        // Only the status is taken from the client.
        let status = remove(&mut object, &["status"]);
        object = old.clone();
        match status {
            Some(status) => set(&mut object, &["status"], status),
            None => drop(remove(&mut object, &["status"])),
        }
    } else if resource.status {
        match at(&old, &["status"]).cloned() {
            Some(status) => set(&mut object, &["status"], status),
            None => drop(remove(&mut object, &["status"])),
        }
    }
    for key in [
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generation",
        "generateName",
        "resourceVersion",
    ] {
        match at(&old, &["metadata", key]).cloned() {
            Some(value) => set(&mut object, &["metadata", key], value),
            None => drop(remove(&mut object, &["metadata", key])),
        }
    }
    remove(&mut object, &["metadata", "managedFields"]);
    if resource.is("", "secrets") {
        string_data(&mut object);
    }
    shape(resource, &mut object);
    let attributes =
        Attributes { request, name: read.key.1.clone(), operation: Operation::Update, sub: sub.as_deref() };
    admission::mutate(api, &attributes, &mut object, Some(&old), warnings).await?;
    shape(resource, &mut object);
    if sub.is_none() {
        validate::change(resource, &old, &object)?;
        if at(&old, &["metadata", "generation"]).is_some() && at(&old, &["spec"]) != at(&object, &["spec"]) {
            let generation = at(&old, &["metadata", "generation"]).and_then(Value::as_i64).unwrap_or(0);
            set(&mut object, &["metadata", "generation"], generation + 1);
        }
    }
    type_check(resource, &mut object);
    validate::object(resource, &object)?;
    crd::validate(resource, &object)?;
    let definitions = definitions(resource, &mut object)?;
    plugins::owners(api, request, &read.key.1, Some(&old), &object)?;
    admission::validate(api, &attributes, Some(&object), Some(&old), warnings).await?;
    if request.dry_run() {
        return Ok(in_version(resource, object));
    }
    let stored = api.store.replace(resource, read, object)?;
    if let Some(definitions) = definitions {
        api.registry.define(&stored.key.1, definitions);
    }
    // The last finalizer of an object that is being deleted was removed.
    let value = stored.value();
    let finished = at(&value, &["metadata", "deletionTimestamp"]).is_some()
        && list(&value, &["metadata", "finalizers"]).is_empty()
        && at(&value, &["metadata", "deletionGracePeriodSeconds"]).and_then(Value::as_i64).unwrap_or(0) == 0;
    if finished && !resource.is("", "namespaces") {
        super::delete::finish(api, resource, &stored)?;
    }
    Ok(present(resource, &stored))
}

/// Validates kind, version and namespace of a body, and converts it to the stored form.
fn incoming(request: &Request, mut object: Value) -> Result<Value> {
    let resource = &request.resource;
    if !object.is_object() {
        return Err(ApiError::bad_request("expected an object"));
    }
    let (version, kind) = (text(&object, &["apiVersion"]), text(&object, &["kind"]));
    if !kind.is_empty() && kind != resource.kind {
        return Err(ApiError::bad_request(format!(
            "{} in version {:?} cannot be handled as a {}: no kind {kind:?} is registered for it",
            resource.kind, resource.version, resource.kind
        )));
    }
    if !version.is_empty() && version != resource.api_version() {
        return Err(ApiError::bad_request(format!(
            "the API version in the data ({version}) does not match the expected API version ({})",
            resource.api_version()
        )));
    }
    if resource.group == "events.k8s.io" {
        object = events::from_events_v1(object);
    } else {
        set(&mut object, &["apiVersion"], resource.api_version());
    }
    set(&mut object, &["kind"], resource.kind.clone());
    if resource.namespaced {
        let wanted = request.namespace.clone().unwrap_or_default();
        let found = text(&object, &["metadata", "namespace"]);
        if !found.is_empty() && found != wanted {
            return Err(ApiError::bad_request(
                "the namespace of the provided object does not match the namespace sent on the request",
            ));
        }
        set(&mut object, &["metadata", "namespace"], wanted);
    } else {
        remove(&mut object, &["metadata", "namespace"]);
    }
    Ok(object)
}

fn generate_name(object: &mut Value) {
    let prefix = text(object, &["metadata", "generateName"]);
    if text(object, &["metadata", "name"]).is_empty() && !prefix.is_empty() {
        let name = format!("{prefix}{}", random_suffix());
        set(object, &["metadata", "name"], name);
    }
}

/// Applies pruning and defaults.
fn shape(resource: &Resource, object: &mut Value) {
    if let Some(custom) = &resource.custom {
        crd::shape(custom, object);
    }
    defaults::fill(resource, object);
}

/// Writes the result of a type check that found nothing, as kube-controller-manager does (`pkg/controller/validatingadmissionpolicystatus`).
/// Expressions are not evaluated here.
fn type_check(resource: &Resource, object: &mut Value) {
    if resource.is("admissionregistration.k8s.io", "validatingadmissionpolicies") {
        let generation = at(object, &["metadata", "generation"]).cloned();
        set(object, &["status"], json!({"observedGeneration": generation, "typeChecking": {}}));
    }
}

/// Sets the fields that the server writes into a new object.
fn begin(resource: &Resource, object: &mut Value) {
    let now = whole_second(clock::now()).to_string();
    set(object, &["metadata", "uid"], uuid());
    set(object, &["metadata", "creationTimestamp"], now);
    if at(object, &["spec"]).is_some() && !resource.is("", "namespaces") && !resource.is("", "services") {
        set(object, &["metadata", "generation"], 1);
    }
    if resource.is_pods() {
        let best_effort = list(object, &["spec", "containers"]).iter().all(|container| {
            at(container, &["resources"]).and_then(Value::as_object).is_none_or(|resources| resources.is_empty())
        });
        let class = if best_effort { "BestEffort" } else { "Burstable" };
        set(object, &["status"], json!({"phase": "Pending", "qosClass": class}));
        // `pkg/registry/core/pod/strategy.go`, `applySchedulingGatedCondition`.
        if !list(object, &["spec", "schedulingGates"]).is_empty() {
            let gated = json!([{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated",
                "message": "Scheduling is blocked due to non-empty scheduling gates"}]);
            set(object, &["status", "conditions"], gated);
        }
    }
}

/// Moves `stringData` into `data`.
fn string_data(object: &mut Value) {
    use base64::Engine;
    if let Some(Value::Object(plain)) = remove(object, &["stringData"]) {
        for (key, value) in plain {
            let encoded = base64::engine::general_purpose::STANDARD.encode(value.as_str().unwrap_or_default());
            set(object, &["data", &key], encoded);
        }
    }
}

/// The resources that a definition serves after this write.
fn definitions(resource: &Resource, object: &mut Value) -> Result<Option<Vec<Resource>>> {
    if !resource.is("apiextensions.k8s.io", "customresourcedefinitions") {
        return Ok(None);
    }
    let resources = crd::resources(object)?;
    if resources.iter().any(|resource| !resource.group.contains('.')) {
        let causes = vec![Cause::invalid("spec.group", "", "should be a domain with at least one dot")];
        return Err(ApiError::invalid("CustomResourceDefinition", text(object, &["metadata", "name"]), causes));
    }
    crd::establish(object, &clock::now().to_string());
    Ok(Some(resources))
}

/// Creates what controllers put into every new namespace: its default account and the CA of the cluster.
pub(super) fn add_namespace_defaults(api: &Api, namespace: &str) {
    let make = |plural: &str, mut object: Value| {
        if let Some(resource) = api.registry.find("", "v1", plural) {
            set(&mut object, &["apiVersion"], "v1");
            set(&mut object, &["kind"], resource.kind.clone());
            set(&mut object, &["metadata", "namespace"], namespace);
            begin(&resource, &mut object);
            // It already exists if the namespace is created again.
            let _ = api.store.create(&resource, object);
        }
    };
    make("serviceaccounts", json!({"metadata": {"name": "default"}}));
    make("configmaps", json!({"metadata": {"name": "kube-root-ca.crt"}, "data": {"ca.crt": ""}}));
}

/// Creates an object of the control plane, without admission.
pub(super) fn install(api: &Api, group: &str, version: &str, plural: &str, mut object: Value) {
    let Some(resource) = api.registry.find(group, version, plural) else { return };
    set(&mut object, &["apiVersion"], resource.api_version());
    set(&mut object, &["kind"], resource.kind.clone());
    defaults::fill(&resource, &mut object);
    begin(&resource, &mut object);
    if let Ok(stored) = api.store.create(&resource, object)
        && resource.is("", "namespaces")
    {
        add_namespace_defaults(api, &stored.key.1);
    }
}
