//! Parses a request: verb, resource, name, subresource, options.

use std::sync::Arc;

use axum::extract::Query;
use axum::http::{HeaderMap, Method, Uri, header};
use bytes::Bytes;

use super::attributes::AccessAttributes;
use super::auth::User;
use super::error::{ApiError, Result};
use super::resource::{Registry, Resource};
use super::store::Key;

/// Verb, as RBAC and discovery name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Get,
    List,
    Watch,
    Create,
    Update,
    Patch,
    Delete,
    DeleteCollection,
}

/// Requested form of the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    Object,
    /// `as=Table`, which `kubectl get` requests.
    Table,
    /// `as=PartialObjectMetadata` or its list.
    Metadata,
}

/// A request for a resource.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) verb: Verb,
    pub(super) resource: Arc<Resource>,
    pub(super) namespace: Option<String>,
    pub(super) name: Option<String>,
    pub(super) sub: Option<String>,
    pub(super) user: User,
    pub(super) shape: Shape,
    pub(super) content_type: String,
    pub(super) body: Bytes,
    pub(super) query: Vec<(String, String)>,
}

impl Verb {
    /// The verb in a role's rules.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Verb::Get => "get",
            Verb::List => "list",
            Verb::Watch => "watch",
            Verb::Create => "create",
            Verb::Update => "update",
            Verb::Patch => "patch",
            Verb::Delete => "delete",
            Verb::DeleteCollection => "deletecollection",
        }
    }
}

impl Request {
    /// Attributes for RBAC. A watch of one object by `metadata.name` counts as a watch of that name.
    pub(super) fn attributes(&self) -> AccessAttributes<'_> {
        let by_field = self.param("fieldSelector").and_then(|fields| fields.strip_prefix("metadata.name="));
        AccessAttributes {
            verb: self.verb.as_str(),
            group: &self.resource.group,
            resource: &self.resource.plural,
            // What follows the subresource is its path.
            sub: self.sub.as_deref().and_then(|sub| sub.split('/').next()),
            namespace: self.namespace.as_deref(),
            name: self.name.as_deref().or(by_field.filter(|name| !name.contains(','))),
        }
    }

    pub(super) fn parse(
        registry: &Registry,
        method: &Method,
        uri: &Uri,
        headers: &HeaderMap,
        user: User,
        body: Bytes,
    ) -> Result<Request> {
        let Query(query) = Query::<Vec<(String, String)>>::try_from_uri(uri).unwrap_or(Query(Vec::new()));
        let decoded: Vec<String> = uri.path().trim_matches('/').split('/').map(decode).collect();
        // `/api//v1/pods` is no path of an API server.
        if decoded.iter().any(String::is_empty) {
            return Err(ApiError::no_such_resource());
        }
        let parts: Vec<&str> = decoded.iter().map(String::as_str).collect();
        let (group, version, rest) = match parts.as_slice() {
            ["api", version, rest @ ..] => ("", *version, rest),
            ["apis", group, version, rest @ ..] => (*group, *version, rest),
            _ => return Err(ApiError::no_such_resource()),
        };
        let (namespace, plural, name, sub) = match rest {
            ["namespaces", namespace, plural, rest @ ..] if !is_subresource_of_namespaces(plural, rest) => {
                (Some(*namespace), *plural, rest.first().copied(), rest.get(1..).unwrap_or_default())
            }
            [plural, rest @ ..] => (None, *plural, rest.first().copied(), rest.get(1..).unwrap_or_default()),
            [] => return Err(ApiError::no_such_resource()),
        };
        let resource = registry.find(group, version, plural).ok_or_else(ApiError::no_such_resource)?;
        if namespace.is_some() && !resource.namespaced {
            return Err(ApiError::no_such_resource());
        }
        let watches = query.iter().any(|(key, value)| key == "watch" && matches!(value.as_str(), "1" | "true"));
        let verb = match (method.as_str(), name) {
            ("GET" | "HEAD", Some(_)) => Verb::Get,
            ("GET" | "HEAD", None) if watches => Verb::Watch,
            ("GET" | "HEAD", None) => Verb::List,
            ("POST", None) => Verb::Create,
            ("POST", Some(_)) if !sub.is_empty() => Verb::Create,
            ("PUT", Some(_)) => Verb::Update,
            ("PATCH", Some(_)) => Verb::Patch,
            ("DELETE", Some(_)) => Verb::Delete,
            ("DELETE", None) => Verb::DeleteCollection,
            _ => return Err(ApiError::method_not_allowed()),
        };
        let header =
            |name: header::HeaderName| headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or_default().to_owned();
        let mut content_type = header(header::CONTENT_TYPE).split(';').next().unwrap_or_default().trim().to_owned();
        let mut body = body;
        if content_type.contains("protobuf") {
            let object = super::protobuf::to_json(&body, &content_type)?;
            body = if object.is_null() { Bytes::new() } else { object.to_string().into() };
            content_type = "application/json".to_owned();
        } else if content_type.contains("cbor") {
            return Err(ApiError::unsupported_media_type(&content_type));
        }
        Ok(Request {
            verb,
            resource,
            namespace: namespace.map(str::to_owned),
            name: name.map(str::to_owned),
            sub: (!sub.is_empty()).then(|| sub.join("/")),
            user,
            shape: shape(&header(header::ACCEPT)),
            content_type,
            body,
            query,
        })
    }

    /// A query parameter.
    pub(super) fn param(&self, key: &str) -> Option<&str> {
        self.query.iter().find(|(k, _)| k == key).map(|(_, value)| value.as_str()).filter(|value| !value.is_empty())
    }

    pub(super) fn flag(&self, key: &str) -> bool {
        matches!(self.param(key), Some("true" | "1"))
    }

    pub(super) fn dry_run(&self) -> bool {
        self.param("dryRun") == Some("All")
    }

    pub(super) fn key(&self) -> Key {
        (self.namespace.clone().unwrap_or_default(), self.name.clone().unwrap_or_default())
    }
}

/// Reports whether the path is a subresource of a namespace: `/api/v1/namespaces/NAME/status`.
fn is_subresource_of_namespaces(plural: &str, rest: &[&str]) -> bool {
    rest.is_empty() && matches!(plural, "status" | "finalize")
}

fn decode(part: &str) -> String {
    let mut bytes = Vec::with_capacity(part.len());
    let mut rest = part.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digit = |b: Option<u8>| b.and_then(|b| char::from(b).to_digit(16));
        if let (Some(high), Some(low)) = (digit(rest.next()), digit(rest.next())) {
            bytes.push((high * 16 + low) as u8);
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn shape(accept: &str) -> Shape {
    // The client's first choice that is served, as in content negotiation.
    for choice in accept.split(',') {
        let parameter = |key: &str| {
            choice.split(';').skip(1).find_map(|p| p.trim().strip_prefix(key).and_then(|p| p.strip_prefix('=')))
        };
        match (choice.split(';').next().map(str::trim), parameter("as")) {
            (Some("application/json" | "*/*" | ""), None) => return Shape::Object,
            (Some("application/json"), Some("Table")) => return Shape::Table,
            (Some("application/json"), Some("PartialObjectMetadata" | "PartialObjectMetadataList")) => {
                return Shape::Metadata;
            }
            _ => {}
        }
    }
    Shape::Object
}

/// A request by a component of the control plane.
pub(super) fn component_request(account: &str, resource: &Arc<Resource>, verb: Verb, key: &Key) -> Request {
    Request {
        verb,
        resource: resource.clone(),
        namespace: (!key.0.is_empty()).then(|| key.0.clone()),
        name: (!key.1.is_empty()).then(|| key.1.clone()),
        sub: None,
        user: User::component(account),
        shape: Shape::Object,
        content_type: "application/json".to_owned(),
        body: Bytes::new(),
        query: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(method: Method, uri: &str) -> Result<Request> {
        let registry = Registry::new("v1beta1");
        Request::parse(&registry, &method, &uri.parse().unwrap(), &HeaderMap::new(), User::admin(), Bytes::new())
    }

    #[test]
    fn method_and_url_determine_verb_resource_and_name() {
        let what = |method: Method, uri: &str| {
            let r = parse(method, uri).unwrap();
            (r.verb, r.resource.plural.clone(), r.namespace, r.name, r.sub)
        };
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(what(Method::GET, "/api/v1/pods"), (Verb::List, "pods".into(), None, None, None));
        assert_eq!(
            what(Method::GET, "/api/v1/namespaces/a/pods?watch=true"),
            (Verb::Watch, "pods".into(), text("a"), None, None)
        );
        assert_eq!(
            what(Method::PUT, "/api/v1/namespaces/a/pods/b/status"),
            (Verb::Update, "pods".into(), text("a"), text("b"), text("status"))
        );
        assert_eq!(what(Method::GET, "/api/v1/namespaces/a"), (Verb::Get, "namespaces".into(), None, text("a"), None));
        assert_eq!(
            what(Method::PUT, "/api/v1/namespaces/a/finalize"),
            (Verb::Update, "namespaces".into(), None, text("a"), text("finalize"))
        );
        assert_eq!(
            what(Method::POST, "/apis/coordination.k8s.io/v1/namespaces/a/leases"),
            (Verb::Create, "leases".into(), text("a"), None, None)
        );
        assert_eq!(
            what(Method::DELETE, "/api/v1/namespaces/a/pods"),
            (Verb::DeleteCollection, "pods".into(), text("a"), None, None)
        );
        assert_eq!(parse(Method::GET, "/api/v1/foos").unwrap_err().code, 404);
        assert_eq!(parse(Method::GET, "/api/v1/namespaces/a/nodes").unwrap_err().code, 404);
        assert_eq!(parse(Method::PUT, "/api/v1/pods").unwrap_err().code, 405);
    }

    #[test]
    fn accept_header_determines_shape() {
        assert_eq!(shape("application/json;as=Table;v=v1;g=meta.k8s.io,application/json"), Shape::Table);
        assert_eq!(shape("application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"), Shape::Metadata);
        assert_eq!(shape("application/vnd.kubernetes.protobuf,application/json"), Shape::Object);
        assert_eq!(shape(""), Shape::Object);
        assert_eq!(decode("a%2Fb%20c"), "a/b c");
    }
}
