//! Subresources with special semantics, and reviews, which are answered and never stored.

use std::sync::Arc;

use axum::http::StatusCode;
use serde_json::{Value, json};

use super::attributes::AccessAttributes;
use super::auth::User;
use super::error::{ApiError, Result};
use super::patch::parse_body;
use super::rbac;
use super::request::{Request, Verb};
use super::state::{Api, Warnings, present};
use usher_runtime::clock;
use usher_spark::json::{at, list, list_mut, set, text};

/// Answers a subresource. `None` if it is read or written as the object itself (`status`).
pub(super) async fn subresource(
    api: &Arc<Api>,
    request: &Request,
    warnings: &mut Warnings,
) -> Option<Result<(StatusCode, Value)>> {
    let sub = request.sub.as_deref()?;
    let resource = &request.resource;
    match (resource.plural.as_str(), sub, request.verb) {
        (_, "status", Verb::Get | Verb::Update | Verb::Patch) if resource.status => None,
        ("serviceaccounts", "token", Verb::Create) if resource.group.is_empty() => Some(token(api, request)),
        ("pods", "binding", Verb::Create) if resource.group.is_empty() => Some(binding(api, request)),
        ("pods", "eviction", Verb::Create) if resource.group.is_empty() => Some(eviction(api, request, warnings).await),
        ("namespaces", "finalize", Verb::Update) => Some(finalize(api, request)),
        _ => Some(Err(ApiError::no_such_resource())),
    }
}

/// TokenRequest: issues a token of a service account, bound to a pod if one is named.
fn token(api: &Api, request: &Request) -> Result<(StatusCode, Value)> {
    let (namespace, name) = request.key();
    let account = api.store.get(&request.resource.collection(), &(namespace.clone(), name.clone()));
    let account = account.ok_or_else(|| ApiError::not_found("serviceaccounts", &name))?;
    let mut body = parse_body(&request.body)?;
    let seconds = at(&body, &["spec", "expirationSeconds"]).and_then(Value::as_i64).unwrap_or(3600).clamp(600, 1 << 32);
    let bound = at(&body, &["spec", "boundObjectRef"]).cloned();
    let pod = match &bound {
        None => None,
        Some(bound) if text(bound, &["kind"]) == "Pod" => {
            let pod_name = text(bound, &["name"]);
            let pods = super::resource::Collection::core("pods");
            let pod = api.store.get(&pods, &(namespace.clone(), pod_name.to_owned()));
            let pod = pod.ok_or_else(|| ApiError::not_found("pods", pod_name))?;
            let uid = text(bound, &["uid"]);
            if !uid.is_empty() && uid != pod.uid {
                let why = format!(
                    "the UID in the bound object reference ({uid}) does not match the UID in record. The object might have been deleted and then recreated"
                );
                return Err(ApiError::conflict("pods", pod_name, &why));
            }
            let runs_as = text(&pod.value(), &["spec", "serviceAccountName"]).to_owned();
            if runs_as != name {
                let why = format!(
                    "cannot bind token for serviceaccount {name:?} to pod running with different serviceaccount name."
                );
                return Err(ApiError::bad_request(why));
            }
            Some(pod)
        }
        Some(other) => {
            return Err(ApiError::bad_request(format!(
                "cannot bind token to object of kind {}",
                text(other, &["kind"])
            )));
        }
    };
    let pod = pod.as_ref().map(|pod| (pod.key.1.as_str(), pod.uid.as_str()));
    let (token, expires) = api.tokens.issue(&namespace, (&name, &account.uid), pod, clock::now(), seconds);
    set(&mut body, &["status"], json!({"token": token, "expirationTimestamp": expires.to_string()}));
    set(&mut body, &["kind"], "TokenRequest");
    set(&mut body, &["apiVersion"], "authentication.k8s.io/v1");
    Ok((StatusCode::CREATED, body))
}

/// Binds a pod to a node, as schedulers do.
fn binding(api: &Api, request: &Request) -> Result<(StatusCode, Value)> {
    let body = parse_body(&request.body)?;
    bind(api, &request.key(), text(&body, &["target", "name"]))?;
    Ok((
        StatusCode::CREATED,
        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}),
    ))
}

/// Binds a pod to a node.
pub(super) fn bind(api: &Api, key: &super::store::Key, node: &str) -> Result<()> {
    let Some(pods) = api.registry.find("", "v1", "pods") else { return Err(ApiError::no_such_resource()) };
    let found = api.store.get(&pods.collection(), key).ok_or_else(|| ApiError::not_found("pods", &key.1))?;
    let mut pod = found.value();
    let present = text(&pod, &["spec", "nodeName"]);
    if !present.is_empty() {
        return Err(ApiError::conflict(
            "pods/binding",
            &key.1,
            &format!("pod {} is already assigned to node {present:?}", key.1),
        ));
    }
    set(&mut pod, &["spec", "nodeName"], node);
    let condition = json!({"type": "PodScheduled", "status": "True", "lastTransitionTime": clock::now().to_string()});
    let conditions = list_mut(&mut pod, &["status", "conditions"]);
    conditions.retain(|condition| text(condition, &["type"]) != "PodScheduled");
    conditions.push(condition);
    api.store.replace(&pods, &found, pod).map(|_| ())
}

async fn eviction(api: &Arc<Api>, request: &Request, warnings: &mut Warnings) -> Result<(StatusCode, Value)> {
    let body = parse_body(&request.body)?;
    disrupt(api, request)?;
    let options = at(&body, &["deleteOptions"]).cloned().unwrap_or_else(|| json!({}));
    let delete = Request { verb: Verb::Delete, sub: None, body: options.to_string().into(), ..request.clone() };
    super::delete::one(api, &delete, warnings).await?;
    Ok((
        StatusCode::CREATED,
        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}),
    ))
}

/// Adds the condition that states who evicted the pod.
fn disrupt(api: &Api, request: &Request) -> Result<()> {
    let Some(pods) = api.registry.find("", "v1", "pods") else { return Err(ApiError::no_such_resource()) };
    let key = request.key();
    let found = api.store.get(&pods.collection(), &key).ok_or_else(|| ApiError::not_found("pods", &key.1))?;
    let mut pod = found.value();
    let conditions = list_mut(&mut pod, &["status", "conditions"]);
    conditions.retain(|condition| text(condition, &["type"]) != "DisruptionTarget");
    conditions.push(json!({
        "type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI",
        "message": "Eviction API: evicting", "lastTransitionTime": clock::now().to_string(),
    }));
    api.store.replace(&pods, &found, pod).map(|_| ())
}

/// The last step of a namespace's deletion.
fn finalize(api: &Api, request: &Request) -> Result<(StatusCode, Value)> {
    let (_, name) = request.key();
    let key = (String::new(), name.clone());
    let found =
        api.store.get(&request.resource.collection(), &key).ok_or_else(|| ApiError::not_found("namespaces", &name))?;
    let body = parse_body(&request.body)?;
    let mut namespace = found.value();
    set(&mut namespace, &["spec", "finalizers"], list(&body, &["spec", "finalizers"]).to_vec());
    let stored = api.store.replace(&request.resource, &found, namespace)?;
    let value = present(&request.resource, &stored);
    if at(&value, &["metadata", "deletionTimestamp"]).is_some() && list(&value, &["spec", "finalizers"]).is_empty() {
        super::delete::finish(api, &request.resource, &stored)?;
    }
    Ok((StatusCode::OK, value))
}

/// Reviews of identity and access. Unless RBAC is enforced, an authenticated user may do anything.
pub(super) fn review(api: &Api, request: &Request) -> Result<Value> {
    if request.verb != Verb::Create {
        return Err(ApiError::method_not_allowed());
    }
    let mut body = parse_body(&request.body)?;
    let status = match request.resource.plural.as_str() {
        "selfsubjectreviews" => json!({"userInfo": request.user.info()}),
        "tokenreviews" => {
            let token = text(&body, &["spec", "token"]);
            match api.tokens.authenticate(token, &api.store, clock::now()) {
                Ok(User { username, uid, groups, extra }) => {
                    let user = json!({"username": username, "uid": uid, "groups": groups, "extra": extra});
                    json!({"authenticated": true, "user": user})
                }
                Err(_) => json!({"authenticated": false, "error": "invalid bearer token"}),
            }
        }
        "selfsubjectaccessreviews" | "subjectaccessreviews" | "localsubjectaccessreviews" if api.authorize => {
            let asked = |key: &str| text(&body, &["spec", "resourceAttributes", key]);
            let some = |key: &str| Some(asked(key)).filter(|value| !value.is_empty());
            let attributes = AccessAttributes {
                verb: asked("verb"),
                group: asked("group"),
                resource: asked("resource"),
                sub: some("subresource"),
                namespace: some("namespace"),
                name: some("name"),
            };
            let is_self = request.resource.plural.starts_with("self");
            let groups = list(&body, &["spec", "groups"]).iter().filter_map(Value::as_str).map(str::to_owned);
            let other = User {
                username: text(&body, &["spec", "user"]).to_owned(),
                uid: String::new(),
                groups: groups.collect(),
                extra: std::collections::BTreeMap::new(),
            };
            json!({"allowed": rbac::allows(api, if is_self { &request.user } else { &other }, &attributes)})
        }
        _ => json!({"allowed": true, "reason": "the sandbox does not enforce authorization (--rbac)"}),
    };
    set(&mut body, &["status"], status);
    set(&mut body, &["kind"], request.resource.kind.clone());
    set(&mut body, &["apiVersion"], request.resource.api_version());
    Ok(body)
}
