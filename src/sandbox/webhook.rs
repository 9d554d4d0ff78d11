//! Calls admission webhooks as an API server does: by URL or through a Service, over TLS that is verified with its caBundle,
//! with the deadline in the URL, and with a retry if the answer has a Retry-After (`pkg/util/webhook/client.go`).
//!
//! Only loopback addresses are called.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Mutex;
use std::time::Duration;

use axum::http::{Request, StatusCode, header};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::dns::Name;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use serde_json::Value;
use tower::util::BoxCloneSyncService;

use super::resource::Collection;
use super::store::Store;
use usher_spark::json::{at, entries, list, text};

type Resolver = BoxCloneSyncService<Name, std::iter::Once<SocketAddr>, std::io::Error>;
type HttpsClient = Client<HttpsConnector<HttpConnector<Resolver>>, Full<Bytes>>;

/// Maximum number of retries of a POST, within its deadline (`client-go rest/with_retry.go`).
const RETRIES: usize = 10;

/// Clients by trusted CA and target.
#[derive(Debug, Default)]
pub(super) struct Webhooks(Mutex<HashMap<(String, SocketAddr), HttpsClient>>);

/// Target of a webhook call.
#[derive(Debug)]
struct Target {
    host: String,
    address: SocketAddr,
    path: String,
}

impl Webhooks {
    /// Posts a review. The error is what the API server would write after `failed to call webhook: `.
    pub(super) async fn call(
        &self,
        store: &Store,
        client_config: &Value,
        review: Bytes,
        timeout: Duration,
    ) -> Result<Bytes, String> {
        let target = target(store, client_config)?;
        let client = self.client(text(client_config, &["caBundle"]), &target)?;
        let joint = if target.path.contains('?') { '&' } else { '?' };
        let url = format!(
            "https://{}:{}{}{joint}timeout={}s",
            target.host,
            target.address.port(),
            target.path,
            timeout.as_secs()
        );
        let calling = async {
            let mut tries = 0;
            loop {
                tries += 1;
                let request = Request::post(&url)
                    .header(header::CONTENT_TYPE, "application/json")
                    .header(header::ACCEPT, "application/json, */*")
                    .header(header::USER_AGENT, "kube-apiserver-admission")
                    .body(Full::new(review.clone()))
                    .map_err(|error| error.to_string())?;
                let response = client.request(request).await.map_err(|error| why(&error))?;
                let (parts, body) = response.into_parts();
                let body = body.collect().await.map_err(|error| error.to_string())?.to_bytes();
                let wait = parts.headers.get(header::RETRY_AFTER).and_then(|v| v.to_str().ok()?.parse::<u64>().ok());
                match (parts.status, wait) {
                    (StatusCode::OK, _) => return Ok(body),
                    (status, Some(seconds)) if tries <= RETRIES && (status == 429 || status.is_server_error()) => {
                        tokio::time::sleep(Duration::from_secs(seconds)).await;
                    }
                    (status, _) => {
                        let body: String = String::from_utf8_lossy(&body).chars().take(200).collect();
                        return Err(format!(
                            "an error on the server ({:?}) has prevented the request from succeeding: {status}",
                            body.trim()
                        ));
                    }
                }
            }
        };
        let answered = tokio::time::timeout(timeout, calling).await;
        answered.unwrap_or_else(|_| Err(format!("Post {url:?}: context deadline exceeded")))
    }

    fn client(&self, bundle: &str, target: &Target) -> Result<HttpsClient, String> {
        let mut clients = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let key = (format!("{bundle} {}", target.host), target.address);
        if let Some(client) = clients.get(&key) {
            return Ok(client.clone());
        }
        let pem = STANDARD
            .decode(bundle)
            .map_err(|_| "unable to load root certificates: caBundle is not base64".to_owned())?;
        let mut roots = rustls::RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(&pem) {
            let certificate = certificate.map_err(|error| format!("unable to load root certificates: {error}"))?;
            roots.add(certificate).map_err(|error| format!("unable to load root certificates: {error}"))?;
        }
        if roots.is_empty() {
            return Err(
                "tls: failed to verify certificate: x509: certificate signed by unknown authority (no caBundle)"
                    .to_owned(),
            );
        }
        let tls = rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        let address = target.address;
        let resolver =
            tower::service_fn(move |_: Name| async move { Ok::<_, std::io::Error>(std::iter::once(address)) });
        let mut http = HttpConnector::new_with_resolver(BoxCloneSyncService::new(resolver));
        http.enforce_http(false);
        http.set_nodelay(true);
        let https = HttpsConnectorBuilder::new().with_tls_config(tls).https_only().enable_http1().wrap_connector(http);
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(Duration::from_secs(90))
            .pool_max_idle_per_host(25)
            .build(https);
        // A rotated caBundle leaves old clients behind; the number of clients is small here.
        if clients.len() > 200 {
            clients.clear();
        }
        clients.insert(key, client.clone());
        Ok(client)
    }
}

/// The error and its causes.
fn why(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

fn target(store: &Store, config: &Value) -> Result<Target, String> {
    let found = if let Some(service) = at(config, &["service"]) {
        through_service(store, service)?
    } else {
        by_url(text(config, &["url"]))?
    };
    if found.address.ip().is_loopback() {
        return Ok(found);
    }
    Err(format!("the sandbox calls loopback addresses only, and this webhook is at {}", found.address))
}

fn by_url(url: &str) -> Result<Target, String> {
    let uri: axum::http::Uri = url.parse().map_err(|error| format!("{url:?}: {error}"))?;
    let host = uri
        .host()
        .filter(|_| uri.scheme_str() == Some("https"))
        .ok_or_else(|| format!("{url:?}: expected https://"))?;
    let plain = host.trim_matches(['[', ']']);
    let address: IpAddr = match plain {
        "localhost" => IpAddr::from([127, 0, 0, 1]),
        plain => plain
            .parse()
            .map_err(|_| format!("the sandbox calls loopback addresses only, and this webhook is at {plain}"))?,
    };
    let path = uri.path_and_query().map_or("/", axum::http::uri::PathAndQuery::as_str).to_owned();
    Ok(Target { host: host.to_owned(), address: SocketAddr::new(address, uri.port_u16().unwrap_or(443)), path })
}

/// Resolves a Service to an address of its EndpointSlices or Endpoints.
fn through_service(store: &Store, service: &Value) -> Result<Target, String> {
    let (namespace, name) = (text(service, &["namespace"]), text(service, &["name"]));
    let port = at(service, &["port"]).and_then(Value::as_u64).unwrap_or(443);
    let host = format!("{name}.{namespace}.svc");
    let collection = |group: &str, plural: &str| Collection { group: group.to_owned(), plural: plural.to_owned() };
    let key = (namespace.to_owned(), name.to_owned());
    let Some(found) = store.get(&collection("", "services"), &key) else {
        return Err(format!("service {name:?} not found"));
    };
    let found = found.value();
    let wanted = list(&found, &["spec", "ports"])
        .iter()
        .find(|candidate| at(candidate, &["port"]).and_then(Value::as_u64) == Some(port));
    let wanted = wanted.ok_or_else(|| format!("no service port {port} found for service {name:?}"))?;
    let target = at(wanted, &["targetPort"]).cloned().unwrap_or_default();
    let picks = |offered: &Value| {
        let (number, name) = (at(offered, &["port"]).and_then(Value::as_u64), text(offered, &["name"]));
        let by_number = target.as_u64().is_some_and(|target| number == Some(target));
        let by_name = !name.is_empty() && (Some(name) == target.as_str() || name == text(wanted, &["name"]));
        number.filter(|_| by_number || by_name || list(&found, &["spec", "ports"]).len() == 1)
    };
    let none = || format!("no endpoints available for service {name:?}");
    let (slices, _) = store.list(&collection("discovery.k8s.io", "endpointslices"), Some(namespace), None);
    for slice in slices {
        let slice = slice.value();
        if !entries(&slice, &["metadata", "labels"])
            .any(|(key, value)| key == "kubernetes.io/service-name" && value == name)
        {
            continue;
        }
        let address = list(&slice, &["endpoints"])
            .iter()
            .flat_map(|endpoint| list(endpoint, &["addresses"]))
            .find_map(Value::as_str);
        let number = list(&slice, &["ports"]).iter().find_map(picks);
        if let (Some(address), Some(number)) = (address, number) {
            return at_address(host, address, number, service).ok_or_else(none);
        }
    }
    let endpoints = store.get(&collection("", "endpoints"), &key).ok_or_else(none)?.value();
    for subset in list(&endpoints, &["subsets"]) {
        let address = list(subset, &["addresses"]).iter().map(|address| text(address, &["ip"])).next();
        let number = list(subset, &["ports"]).iter().find_map(picks);
        if let (Some(address), Some(number)) = (address, number) {
            return at_address(host, address, number, service).ok_or_else(none);
        }
    }
    Err(none())
}

fn at_address(host: String, address: &str, port: u64, service: &Value) -> Option<Target> {
    let path = text(service, &["path"]);
    let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
    Some(Target { host, address: SocketAddr::new(address.parse().ok()?, u16::try_from(port).ok()?), path })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_https_urls_on_loopback_are_called() {
        let store = Store::new();
        let by = |url: &str| target(&store, &json!({ "url": url }));
        assert_eq!(by("https://127.0.0.1:8443/mutate").unwrap().path, "/mutate");
        assert_eq!(by("https://localhost/x").unwrap().address.port(), 443);
        for bad in ["http://127.0.0.1/", "https://10.0.0.1/", "https://example.com/", "nonsense"] {
            assert!(by(bad).is_err(), "{bad}");
        }
        let error = target(&store, &json!({"service": {"name": "s", "namespace": "n"}})).unwrap_err();
        assert_eq!(error, "service \"s\" not found");
    }
}
