//! The API: turns a request into a response.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request as HttpRequest, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::Response;
use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use serde_json::{Value, json};

use super::auth::{self};
use super::error::{ApiError, Result};
use super::request::{Request, Shape, Verb};
use super::respond::{plain, refuse, respond};
use super::selector::Filter;
use super::state::{Api, Warnings, item_text, present};
use super::store::Stored;
use super::{discovery, log, openapi, portforward, proxy, rbac, special, table, watch};
use usher_runtime::clock;
use usher_spark::json::{set, text};

/// Maximum size of a body, as in kube-apiserver.
const MAX_BODY: usize = 3 << 20;

/// State of one listener: whether it trusts clients without a token.
#[derive(Clone, Debug)]
pub(super) struct ListenerState {
    pub(super) api: Arc<Api>,
    pub(super) trusts: bool,
}

/// Answers any request.
pub(super) async fn serve(State(listener): State<ListenerState>, request: HttpRequest) -> Response {
    match answer(&listener, request).await {
        Ok(response) => response,
        Err(error) => refuse(&error),
    }
}

async fn answer(listener: &ListenerState, request: HttpRequest) -> Result<Response> {
    let api = &listener.api;
    let (mut parts, body) = request.into_parts();
    if listener.trusts && !is_loopback(parts.headers.get(header::HOST)) {
        // DNS rebinding: a web page could otherwise reach us under its own name that resolves to this address.
        return Err(ApiError::forbidden("host", "", "requests without a token must address a loopback host name"));
    }
    match parts.uri.path() {
        "/healthz" | "/livez" | "/readyz" => return Ok(plain(StatusCode::OK, "ok", "text/plain")),
        // Not part of Kubernetes: lists what service accounts have done, which shows the permissions that a role needs.
        "/sandbox/used" if listener.trusts => return Ok(respond(StatusCode::OK, &json!(api.used.all()))),
        _ => {}
    }
    let user = auth::user(&parts.headers, &api.tokens, &api.store, listener.trusts, clock::now())?;
    if parts.method == Method::GET {
        if let Some(page) = discovery::page(api, parts.uri.path(), &parts.headers) {
            return Ok(page);
        }
        if let Some(document) = openapi::page(api, parts.uri.path()) {
            return Ok(respond(StatusCode::OK, &document));
        }
    }
    let body = read(body).await?;
    let upgrade = watch::upgrade(&mut parts).await;
    let request = Request::parse(&api.registry, &parts.method, &parts.uri, &parts.headers, user, body)?;
    tracing::debug!(
        verb = ?request.verb, resource = request.resource.plural, namespace = request.namespace.as_deref().unwrap_or_default(),
        name = request.name.as_deref().unwrap_or_default(), sub = request.sub.as_deref().unwrap_or_default(), user = request.user.username,
        "request"
    );
    let attributes = request.attributes();
    if api.authorize && !rbac::allows(api, &request.user, &attributes) {
        let why = attributes.refusal(&request.user);
        return Err(ApiError::forbidden(&request.resource.qualified(), attributes.name.unwrap_or_default(), &why));
    }
    api.used.note(&request.user, &attributes);
    if let Some(path) = proxy::path(&request, &parts.uri) {
        return proxy::pass_on(api, &request, path).await;
    }
    if log::is_for_log(&request) {
        return log::log(api, &request);
    }
    if portforward::is_for_port(&request) {
        return portforward::forward(api, &request, upgrade);
    }
    if request.verb == Verb::Watch {
        return watch::watch(api, &request, upgrade);
    }
    let mut warnings = Warnings::new();
    let (status, text) = dispatch(api, &request, &mut warnings).await?;
    let mut response = plain(status, text, "application/json");
    for warning in warnings {
        let quoted = warning.replace('\\', "\\\\").replace('"', "\\\"");
        if let Ok(value) = HeaderValue::try_from(format!("299 - \"{quoted}\"")) {
            response.headers_mut().append(header::WARNING, value);
        }
    }
    Ok(response)
}

/// Dispatches a request by verb and subresource; returns the answer's JSON.
async fn dispatch(api: &Arc<Api>, request: &Request, warnings: &mut Warnings) -> Result<(StatusCode, String)> {
    let answer = |(status, value): (StatusCode, Value)| (status, value.to_string());
    if request.resource.is_ephemeral() {
        return special::review(api, request).map(|value| answer((StatusCode::CREATED, value)));
    }
    if let Some(outcome) = special::subresource(api, request, warnings).await {
        return outcome.map(answer);
    }
    let ok = |value: Value| answer((StatusCode::OK, value));
    match request.verb {
        Verb::Get => get(api, request).map(ok),
        Verb::List => list(api, request).map(|text| (StatusCode::OK, text)),
        Verb::Create => {
            let object = super::write::create(api, request, warnings).await?;
            Ok(answer((StatusCode::CREATED, shown(api, request, object))))
        }
        Verb::Update => {
            let (object, created) = super::write::update(api, request, warnings).await?;
            let status = if created { StatusCode::CREATED } else { StatusCode::OK };
            Ok(answer((status, shown(api, request, object))))
        }
        Verb::Patch => {
            let (object, created) = super::write::patch(api, request, warnings).await?;
            let status = if created { StatusCode::CREATED } else { StatusCode::OK };
            Ok(answer((status, shown(api, request, object))))
        }
        Verb::Delete => super::delete::one(api, request, warnings).await.map(ok),
        Verb::DeleteCollection => super::delete::many(api, request, warnings).await.map(ok),
        Verb::Watch => Err(ApiError::method_not_allowed()),
    }
}

fn get(api: &Api, request: &Request) -> Result<Value> {
    let key = request.key();
    let found = api.store.get(&request.resource.collection(), &key);
    let found = found.ok_or_else(|| ApiError::not_found(&request.resource.qualified(), &key.1))?;
    Ok(shown(api, request, present(&request.resource, &found)))
}

fn list(api: &Api, request: &Request) -> Result<String> {
    let resource = &request.resource;
    let filter = Filter::parse(resource, request.param("labelSelector"), request.param("fieldSelector"))?;
    let limit: usize =
        request.param("limit").and_then(|limit| limit.parse().ok()).filter(|limit| *limit > 0).unwrap_or(usize::MAX);
    let from = request.param("continue").map(read_continue).transpose()?;
    let (after, at) = from.map_or((None, None), |(key, revision)| (Some(key), Some(revision)));
    let (all, revision) = api.store.list(&resource.collection(), request.namespace.as_deref(), after.as_ref());
    if request.param("resourceVersionMatch") == Some("Exact")
        && let Some(asked) = request.param("resourceVersion").and_then(|v| v.parse::<u64>().ok())
        && asked != revision
    {
        return Err(ApiError::expired(asked, revision));
    }
    let mut matching = all.iter().filter(|object| filter.matches(object)).peekable();
    let mut items: Vec<&Arc<Stored>> = Vec::new();
    while items.len() < limit
        && let Some(object) = matching.next()
    {
        items.push(object);
    }
    let revision = at.unwrap_or(revision);
    let mut metadata = json!({"resourceVersion": revision.to_string()});
    if let (Some(last), Some(_)) = (items.last(), matching.peek()) {
        set(&mut metadata, &["continue"], write_continue(&last.key, revision));
        set(&mut metadata, &["remainingItemCount"], matching.count());
    }
    let objects = || items.iter().map(|object| present(resource, object)).collect::<Vec<_>>();
    Ok(match request.shape {
        Shape::Object => {
            let texts = items.iter().map(|object| item_text(resource, object));
            list_text(&format!("{}List", resource.kind), &resource.api_version(), &metadata, texts)
        }
        Shape::Table => table::table(resource, &objects(), metadata, clock::now()).to_string(),
        Shape::Metadata => {
            let texts = objects().into_iter().map(|object| table::partial(&object).to_string());
            list_text("PartialObjectMetadataList", "meta.k8s.io/v1", &metadata, texts)
        }
    })
}

/// A list's JSON. The items are texts, which are not parsed for it: lists of pods are large.
fn list_text(kind: &str, api_version: &str, metadata: &Value, items: impl Iterator<Item = String>) -> String {
    let (kind, api_version) = (json!(kind), json!(api_version));
    let mut text = format!(r#"{{"kind":{kind},"apiVersion":{api_version},"metadata":{metadata},"items":["#);
    for (index, item) in items.enumerate() {
        if index > 0 {
            text.push(',');
        }
        text.push_str(&item);
    }
    text.push_str("]}");
    text
}

fn write_continue(key: &super::store::Key, revision: u64) -> String {
    use base64::Engine;
    base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(json!([key.0, key.1, revision]).to_string())
}

fn read_continue(token: &str) -> Result<(super::store::Key, u64)> {
    use base64::Engine;
    let bytes = base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(token).ok();
    let read: Option<(String, String, u64)> = bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok());
    let (namespace, name, revision) = read.ok_or_else(|| ApiError::bad_request("continue key is not valid"))?;
    Ok(((namespace, name), revision))
}

/// Converts an object to the requested shape.
fn shown(_: &Api, request: &Request, object: Value) -> Value {
    match request.shape {
        Shape::Object => object,
        Shape::Table => {
            let metadata = json!({"resourceVersion": text(&object, &["metadata", "resourceVersion"])});
            table::table(&request.resource, std::slice::from_ref(&object), metadata, clock::now())
        }
        Shape::Metadata => table::partial(&object),
    }
}

async fn read(body: Body) -> Result<Bytes> {
    match Limited::new(body, MAX_BODY).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<http_body_util::LengthLimitError>() => Err(ApiError::too_large(MAX_BODY)),
        Err(error) => Err(ApiError::bad_request(format!("the body is incomplete: {error}"))),
    }
}

/// Reports whether a request was addressed to a loopback name.
fn is_loopback(host: Option<&HeaderValue>) -> bool {
    let host = host.and_then(|host| host.to_str().ok()).unwrap_or("localhost");
    let name = match host.strip_prefix('[') {
        Some(v6) => v6.split(']').next().unwrap_or_default(),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    name == "localhost" || name.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_hosts_are_accepted() {
        for (host, yes) in [
            ("127.0.0.1:80", true),
            ("localhost", true),
            ("[::1]:80", true),
            ("evil.example", false),
            ("127.0.0.1.evil.example:80", false),
            ("10.0.0.1", false),
        ] {
            assert_eq!(is_loopback(Some(&HeaderValue::from_static(host))), yes, "{host}");
        }
    }

    #[test]
    fn continue_token_round_trips_and_malformed_one_is_rejected() {
        let key = ("ns".to_owned(), "name".to_owned());
        assert_eq!(read_continue(&write_continue(&key, 7)).unwrap(), (key, 7));
        assert_eq!(read_continue("nonsense").unwrap_err().code, 400);
    }
}
