//! Admission: in-tree plugins, then webhooks in the order of their configurations' names, with reinvocation where
//! requested (`pkg/admission/plugin/webhook/{mutating,validating}/dispatcher.go`, `reinvocation`).
//!
//! matchConditions are not evaluated: a webhook that has some is called as if they were true.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::error::{ApiError, Result};
use super::plugins;
use super::request::Request;
use super::resource::Collection;
use super::selector::object_matches;
use super::state::{Api, Warnings};
use usher_spark::json::{at, entries, list, text};

/// Operation, as webhook rules name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Create,
    Update,
    Delete,
}

impl Operation {
    fn as_str(self) -> &'static str {
        match self {
            Operation::Create => "CREATE",
            Operation::Update => "UPDATE",
            Operation::Delete => "DELETE",
        }
    }
}

/// Attributes of an admission request.
#[derive(Debug)]
pub(super) struct Attributes<'r> {
    pub(super) request: &'r Request,
    pub(super) name: String,
    pub(super) operation: Operation,
    pub(super) sub: Option<&'r str>,
}

/// Runs the mutating plugins and webhooks on an object.
pub(super) async fn mutate(
    api: &Arc<Api>,
    attributes: &Attributes<'_>,
    object: &mut Value,
    old: Option<&Value>,
    warnings: &mut Warnings,
) -> Result<()> {
    let new_pod = attributes.operation == Operation::Create && attributes.request.resource.is_pods();
    if new_pod {
        plugins::mutate_pod(api, object)?;
    }
    let hooks = webhooks(api, attributes, "mutatingwebhookconfigurations");
    let (mut invoked, mut again, mut changed) = (Vec::new(), BTreeSet::new(), false);
    for (at, hook) in hooks.iter().enumerate() {
        if !matches(api, attributes, hook, object, old)? {
            continue;
        }
        if call_mutating(api, attributes, hook, object, old, warnings).await? {
            changed = true;
            again.extend(invoked.iter().copied());
        }
        if text(hook, &["reinvocationPolicy"]) == "IfNeeded" {
            invoked.push(at);
        }
    }
    if !changed {
        return Ok(());
    }
    let after_webhooks = object.clone();
    if new_pod {
        plugins::mutate_pod(api, object)?;
    }
    if *object != after_webhooks {
        again.extend(invoked);
    }
    for at in again {
        if let Some(hook) = hooks.get(at)
            && matches(api, attributes, hook, object, old)?
        {
            call_mutating(api, attributes, hook, object, old, warnings).await?;
        }
    }
    Ok(())
}

/// Runs the validating webhooks on an object.
pub(super) async fn validate(
    api: &Arc<Api>,
    attributes: &Attributes<'_>,
    object: Option<&Value>,
    old: Option<&Value>,
    warnings: &mut Warnings,
) -> Result<()> {
    let object = object.unwrap_or(&Value::Null);
    for hook in webhooks(api, attributes, "validatingwebhookconfigurations") {
        if matches(api, attributes, &hook, object, old)? {
            call(api, attributes, &hook, object, old, warnings).await?;
        }
    }
    Ok(())
}

/// Returns all webhooks whose rules match, in order.
fn webhooks(api: &Api, attributes: &Attributes<'_>, plural: &str) -> Vec<Value> {
    // API servers never send webhook configurations or access reviews to webhooks.
    if attributes.request.resource.group == "admissionregistration.k8s.io" || attributes.request.resource.is_ephemeral()
    {
        return Vec::new();
    }
    let collection = Collection { group: "admissionregistration.k8s.io".to_owned(), plural: plural.to_owned() };
    let (configurations, _) = api.store.list(&collection, None, None);
    let all = configurations.iter().flat_map(|configuration| list(&configuration.value(), &["webhooks"]).to_vec());
    all.filter(|hook| list(hook, &["rules"]).iter().any(|rule| rule_matches(rule, attributes))).collect()
}

fn rule_matches(rule: &Value, attributes: &Attributes<'_>) -> bool {
    let resource = &attributes.request.resource;
    let any = |key: &str, wanted: &str| list(rule, &[key]).iter().any(|found| found == "*" || found == wanted);
    let sub = attributes.sub.unwrap_or_default();
    let resources = list(rule, &["resources"]).iter().filter_map(Value::as_str).any(|found| {
        let (plural, wanted_sub) = found.split_once('/').unwrap_or((found, ""));
        (plural == "*" || plural == resource.plural)
            && (wanted_sub == sub || (wanted_sub == "*" && found.contains('/')))
    });
    let scope = match text(rule, &["scope"]) {
        "Namespaced" => resource.namespaced,
        "Cluster" => !resource.namespaced,
        _ => true,
    };
    // Versions of one resource are equivalent (matchPolicy), so any version in a rule matches this one.
    any("operations", attributes.operation.as_str()) && any("apiGroups", &resource.group) && resources && scope
}

fn matches(api: &Api, attributes: &Attributes<'_>, hook: &Value, object: &Value, old: Option<&Value>) -> Result<bool> {
    let bad = |error: String| ApiError::internal(format!("webhook {:?}: {error}", text(hook, &["name"])));
    let labels = |object: &Value| -> BTreeMap<String, String> {
        entries(object, &["metadata", "labels"]).map(|(k, v)| (k.to_owned(), v.to_owned())).collect()
    };
    let resource = &attributes.request.resource;
    let namespace = if resource.is("", "namespaces") {
        Some(labels(if object.is_null() { old.unwrap_or(object) } else { object }))
    } else {
        let namespaces = Collection::core("namespaces");
        let name = attributes.request.namespace.clone().filter(|_| resource.namespaced);
        name.and_then(|name| api.store.get(&namespaces, &(String::new(), name))).map(|found| found.labels.clone())
    };
    if let Some(namespace) = namespace
        && !object_matches(at(hook, &["namespaceSelector"]), &namespace).map_err(bad)?
    {
        return Ok(false);
    }
    let selector = at(hook, &["objectSelector"]);
    let candidates = [Some(object), old].into_iter().flatten().filter(|object| !object.is_null());
    for candidate in candidates {
        if object_matches(selector, &labels(candidate)).map_err(bad)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Calls a mutating webhook and applies its patch. Returns whether the object changed.
async fn call_mutating(
    api: &Arc<Api>,
    attributes: &Attributes<'_>,
    hook: &Value,
    object: &mut Value,
    old: Option<&Value>,
    warnings: &mut Warnings,
) -> Result<bool> {
    let Some(patch) = call(api, attributes, hook, object, old, warnings).await? else { return Ok(false) };
    // From here on failurePolicy does not apply: a patch that cannot be applied denies the request.
    let broken = |error: &dyn std::fmt::Display| {
        ApiError::internal(format!(
            "admission webhook {:?}: the patch cannot be applied: {error}",
            text(hook, &["name"])
        ))
    };
    if object.is_null() {
        return Err(broken(&"there is no object to patch"));
    }
    let before = object.clone();
    let patch: json_patch::Patch = serde_json::from_value(patch).map_err(|error| broken(&error))?;
    json_patch::patch(object, &patch).map_err(|error| broken(&error))?;
    Ok(*object != before)
}

/// Calls a webhook. Returns its patch, if it sent one.
async fn call(
    api: &Arc<Api>,
    attributes: &Attributes<'_>,
    hook: &Value,
    object: &Value,
    old: Option<&Value>,
    warnings: &mut Warnings,
) -> Result<Option<Value>> {
    let name = text(hook, &["name"]);
    let uid = usher_runtime::random::uuid();
    let review = review(attributes, &uid, object, old);
    let timeout = Duration::from_secs(at(hook, &["timeoutSeconds"]).and_then(Value::as_u64).unwrap_or(10));
    let config = at(hook, &["clientConfig"]).cloned().unwrap_or_default();
    let answered = api.webhooks.call(&api.store, &config, review.to_string().into(), timeout).await;
    let response =
        answered.map_err(|error| format!("failed to call webhook: {error}")).and_then(|body| read(&body, &uid));
    let response = match response {
        Ok(response) => response,
        Err(error) if text(hook, &["failurePolicy"]) == "Ignore" => {
            tracing::warn!(webhook = name, error, "failed calling webhook, failing open");
            return Ok(None);
        }
        Err(error) => return Err(ApiError::internal(format!("failed calling webhook {name:?}: {error}"))),
    };
    warnings.extend(
        list(&response, &["warnings"])
            .iter()
            .filter_map(Value::as_str)
            .map(|warning| warning.chars().take(256).collect()),
    );
    if at(&response, &["allowed"]) != Some(&Value::Bool(true)) {
        return Err(denied(name, &response));
    }
    let Some(patch) = at(&response, &["patch"]).and_then(Value::as_str) else { return Ok(None) };
    let decoded = STANDARD.decode(patch).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
    match decoded {
        Some(patch) => Ok(Some(patch)),
        None if text(hook, &["failurePolicy"]) == "Ignore" => Ok(None),
        None => Err(ApiError::internal(format!("failed calling webhook {name:?}: the patch cannot be decoded"))),
    }
}

/// Reads the response of a review, with the strict checks for admission.k8s.io/v1.
fn read(body: &[u8], uid: &str) -> std::result::Result<Value, String> {
    let review: Value =
        serde_json::from_slice(body).map_err(|error| format!("received invalid webhook response: {error}"))?;
    let invalid = |why: String| Err(format!("received invalid webhook response: {why}"));
    if text(&review, &["kind"]) != "AdmissionReview" || text(&review, &["apiVersion"]) != "admission.k8s.io/v1" {
        return invalid("expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview".to_owned());
    }
    let Some(response) = at(&review, &["response"]) else { return invalid("webhook response was absent".to_owned()) };
    let found = text(response, &["uid"]);
    if found != uid {
        return invalid(format!("expected response.uid={uid:?}, got {found:?}"));
    }
    match (at(response, &["patch"]).is_some(), text(response, &["patchType"])) {
        (true, "JSONPatch") | (false, "") => Ok(response.clone()),
        (true, _) => invalid("webhook returned response.patch but not response.patchType JSONPatch".to_owned()),
        (false, _) => invalid("webhook returned response.patchType but not response.patch".to_owned()),
    }
}

fn denied(name: &str, response: &Value) -> ApiError {
    let message = text(response, &["status", "message"]);
    let message = if message.is_empty() { "without explanation".to_owned() } else { message.to_owned() };
    let mut error = ApiError::bad_request(format!("admission webhook {name:?} denied the request: {message}"));
    let code = at(response, &["status", "code"]).and_then(Value::as_u64).and_then(|code| u16::try_from(code).ok());
    error.code = code.filter(|code| *code >= 400).unwrap_or(400);
    if error.code == 403 {
        error.reason = "Forbidden";
    }
    error
}

/// Builds the review as API servers send it (`request/admissionreview.go`).
fn review(attributes: &Attributes<'_>, uid: &str, object: &Value, old: Option<&Value>) -> Value {
    let Attributes { request, name, operation, sub } = attributes;
    let resource = &request.resource;
    let kind = json!({"group": resource.group, "version": resource.version, "kind": resource.kind});
    let about = json!({"group": resource.group, "version": resource.version, "resource": resource.plural});
    let mut inner = json!({
        "uid": uid, "kind": kind, "resource": about, "requestKind": kind, "requestResource": about,
        "name": name, "operation": operation.as_str(), "userInfo": request.user.info(),
        "object": object, "oldObject": old, "dryRun": request.dry_run(), "options": options(*operation),
    });
    if let Some(namespace) = request.namespace.as_ref().filter(|_| resource.namespaced) {
        usher_spark::json::set(&mut inner, &["namespace"], namespace.clone());
    }
    if let Some(sub) = sub {
        usher_spark::json::set(&mut inner, &["subResource"], *sub);
        usher_spark::json::set(&mut inner, &["requestSubResource"], *sub);
    }
    json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": inner})
}

fn options(operation: Operation) -> Value {
    let kind = match operation {
        Operation::Create => "CreateOptions",
        Operation::Update => "UpdateOptions",
        Operation::Delete => "DeleteOptions",
    };
    json!({"kind": kind, "apiVersion": "meta.k8s.io/v1"})
}
