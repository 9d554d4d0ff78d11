//! The proxy for pods, for GET: `/api/v1/namespaces/NAMESPACE/pods/[SCHEME:]NAME[:PORT]/proxy/PATH`
//! (`pkg/registry/core/pod/strategy.go`, `ResourceLocation`). Pods have addresses of the loopback network, so that only processes
//! on this machine are reached.

use std::time::Duration;

use axum::body::Body;
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;

use super::error::{ApiError, Result};
use super::request::{Request, Verb};
use super::state::Api;
use usher_spark::json::{list, text};

/// The whole request must finish within this time.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The path behind the proxy, if the request is for it.
pub(super) fn path<'u>(request: &Request, uri: &'u Uri) -> Option<&'u str> {
    let is_proxy = request.sub.as_deref().is_some_and(|sub| sub == "proxy" || sub.starts_with("proxy/"));
    if !is_proxy || request.resource.plural != "pods" || !request.resource.group.is_empty() {
        return None;
    }
    let (_, path) = uri.path().split_once("/proxy")?;
    Some(if path.is_empty() { "/" } else { path })
}

/// Passes a request on to a pod, and its response back.
pub(super) async fn pass_on(api: &Api, request: &Request, path: &str) -> Result<Response> {
    if request.verb != Verb::Get {
        return Err(ApiError::method_not_allowed());
    }
    let (namespace, target) = request.key();
    let parts: Vec<&str> = target.split(':').collect();
    let (scheme, name, port) = match parts.as_slice() {
        [name] => ("http", *name, None),
        [name, port] => ("http", *name, Some(*port)),
        [scheme, name, port] => (*scheme, *name, Some(*port).filter(|port| !port.is_empty())),
        _ => return Err(ApiError::bad_request("invalid pod request")),
    };
    if !matches!(scheme, "http" | "") {
        return Err(ApiError::bad_request("the sandbox connects to pods by http only"));
    }
    let collection = request.resource.collection();
    let pod = api.store.get(&collection, &(namespace, name.to_owned()));
    let pod = pod.ok_or_else(|| ApiError::not_found("pods", name))?.value();
    let address = text(&pod, &["status", "podIP"]);
    if address.is_empty() {
        return Err(ApiError::bad_request("address not allowed"));
    }
    let declared = || {
        let containers = list(&pod, &["spec", "containers"]).iter();
        let mut ports = containers.flat_map(|container| list(container, &["ports"]));
        ports.find_map(|port| u16::try_from(port.get("containerPort")?.as_u64()?).ok())
    };
    let port = match port {
        Some(port) => port.parse().map_err(|_| ApiError::bad_request("invalid port"))?,
        None => declared().unwrap_or(80),
    };
    match tokio::time::timeout(TIMEOUT, exchange(address, port, path)).await {
        Ok(Ok(response)) => Ok(response),
        Ok(Err(error)) => {
            Err(ApiError::unavailable(&format!("error trying to reach service: dial tcp {address}:{port}: {error}")))
        }
        Err(_) => Err(ApiError::unavailable("error trying to reach service: timed out")),
    }
}

async fn exchange(address: &str, port: u16, path: &str) -> anyhow::Result<Response> {
    let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
    let (parts, body) = client.get(format!("http://{address}:{port}{path}").parse()?).await?.into_parts();
    let mut response = Response::new(Body::from(body.collect().await?.to_bytes()));
    *response.status_mut() = StatusCode::from_u16(parts.status.as_u16())?;
    if let Some(kind) = parts.headers.get(hyper::header::CONTENT_TYPE) {
        response.headers_mut().insert(hyper::header::CONTENT_TYPE, kind.clone());
    }
    Ok(response)
}
