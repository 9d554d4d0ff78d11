//! Bodies in Kubernetes' protobuf (`application/vnd.kubernetes.protobuf`): the kinds in which helm stores its releases,
//! and those that kubectl's generators send. Other kinds get the answer of a server that does not support protobuf.
//!
//! Field numbers are those of `generated.proto` in k8s.io/api and k8s.io/apimachinery. Answers are always JSON, which
//! every Go client accepts as well.

use std::collections::HashMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use prost::Message;
use serde_json::{Map, Value, json};

use super::error::{ApiError, Result};

/// Prefix of every body.
const MAGIC: &[u8] = b"k8s\0";

/// `runtime.Unknown`: the envelope of every body.
#[derive(Clone, PartialEq, Message)]
struct Unknown {
    #[prost(message, optional, tag = "1")]
    types: Option<TypeMeta>,
    #[prost(bytes = "vec", tag = "2")]
    raw: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct TypeMeta {
    #[prost(string, tag = "1")]
    api_version: String,
    #[prost(string, tag = "2")]
    kind: String,
}

#[derive(Clone, PartialEq, Message)]
struct ObjectMeta {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    generate_name: String,
    #[prost(string, tag = "3")]
    namespace: String,
    #[prost(string, tag = "5")]
    uid: String,
    #[prost(string, tag = "6")]
    resource_version: String,
    #[prost(map = "string, string", tag = "11")]
    labels: HashMap<String, String>,
    #[prost(map = "string, string", tag = "12")]
    annotations: HashMap<String, String>,
    #[prost(string, repeated, tag = "14")]
    finalizers: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
struct Secret {
    #[prost(message, optional, tag = "1")]
    metadata: Option<ObjectMeta>,
    #[prost(map = "string, bytes", tag = "2")]
    data: HashMap<String, Vec<u8>>,
    #[prost(string, tag = "3")]
    kind: String,
    #[prost(map = "string, string", tag = "4")]
    string_data: HashMap<String, String>,
    #[prost(bool, optional, tag = "5")]
    immutable: Option<bool>,
}

#[derive(Clone, PartialEq, Message)]
struct ConfigMap {
    #[prost(message, optional, tag = "1")]
    metadata: Option<ObjectMeta>,
    #[prost(map = "string, string", tag = "2")]
    data: HashMap<String, String>,
    #[prost(map = "string, bytes", tag = "3")]
    binary_data: HashMap<String, Vec<u8>>,
    #[prost(bool, optional, tag = "4")]
    immutable: Option<bool>,
}

/// Any kind of which only the metadata matters here.
#[derive(Clone, PartialEq, Message)]
struct Bare {
    #[prost(message, optional, tag = "1")]
    metadata: Option<ObjectMeta>,
}

#[derive(Clone, PartialEq, Message)]
struct DeleteOptions {
    #[prost(int64, optional, tag = "1")]
    grace_period_seconds: Option<i64>,
    #[prost(message, optional, tag = "2")]
    preconditions: Option<Preconditions>,
    #[prost(string, optional, tag = "4")]
    propagation_policy: Option<String>,
    #[prost(string, repeated, tag = "5")]
    dry_run: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
struct Preconditions {
    #[prost(string, optional, tag = "1")]
    uid: Option<String>,
    #[prost(string, optional, tag = "2")]
    resource_version: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
struct TokenRequest {
    #[prost(message, optional, tag = "1")]
    metadata: Option<ObjectMeta>,
    #[prost(message, optional, tag = "2")]
    spec: Option<TokenRequestSpec>,
}

#[derive(Clone, PartialEq, Message)]
struct TokenRequestSpec {
    #[prost(string, repeated, tag = "1")]
    audiences: Vec<String>,
    #[prost(message, optional, tag = "3")]
    bound: Option<BoundObjectReference>,
    #[prost(int64, optional, tag = "4")]
    expiration_seconds: Option<i64>,
}

#[derive(Clone, PartialEq, Message)]
struct BoundObjectReference {
    #[prost(string, tag = "1")]
    kind: String,
    #[prost(string, tag = "2")]
    api_version: String,
    #[prost(string, tag = "3")]
    name: String,
    #[prost(string, tag = "4")]
    uid: String,
}

#[derive(Clone, PartialEq, Message)]
struct SelfSubjectAccessReview {
    #[prost(message, optional, tag = "2")]
    spec: Option<SelfSubjectAccessReviewSpec>,
}

#[derive(Clone, PartialEq, Message)]
struct SelfSubjectAccessReviewSpec {
    #[prost(message, optional, tag = "1")]
    resource_attributes: Option<ResourceAttributes>,
}

#[derive(Clone, PartialEq, Message)]
struct ResourceAttributes {
    #[prost(string, tag = "1")]
    namespace: String,
    #[prost(string, tag = "2")]
    verb: String,
    #[prost(string, tag = "3")]
    group: String,
    #[prost(string, tag = "4")]
    version: String,
    #[prost(string, tag = "5")]
    resource: String,
    #[prost(string, tag = "6")]
    subresource: String,
    #[prost(string, tag = "7")]
    name: String,
}

/// Converts the body to JSON.
pub(super) fn to_json(body: &[u8], content_type: &str) -> Result<Value> {
    if body.is_empty() {
        return Ok(Value::Null);
    }
    let bad = |error: prost::DecodeError| ApiError::bad_request(format!("error decoding the protobuf body: {error}"));
    let inner = body.strip_prefix(MAGIC).ok_or_else(|| ApiError::bad_request("the protobuf body lacks its prefix"))?;
    let Unknown { types, raw } = Unknown::decode(inner).map_err(bad)?;
    let TypeMeta { api_version, kind } = types.unwrap_or_default();
    let raw = raw.as_slice();
    let mut object = match kind.as_str() {
        "Secret" => {
            let Secret { metadata, data, kind, string_data, immutable } = Secret::decode(raw).map_err(bad)?;
            json!({"metadata": meta(metadata), "data": bytes(data), "stringData": string_data, "type": kind, "immutable": immutable})
        }
        "ConfigMap" => {
            let ConfigMap { metadata, data, binary_data, immutable } = ConfigMap::decode(raw).map_err(bad)?;
            json!({"metadata": meta(metadata), "data": data, "binaryData": bytes(binary_data), "immutable": immutable})
        }
        "Namespace" | "ServiceAccount" | "SelfSubjectReview" => {
            json!({"metadata": meta(Bare::decode(raw).map_err(bad)?.metadata)})
        }
        "DeleteOptions" => {
            let DeleteOptions { grace_period_seconds, preconditions, propagation_policy, dry_run } =
                DeleteOptions::decode(raw).map_err(bad)?;
            let preconditions =
                preconditions.map(|only| json!({"uid": only.uid, "resourceVersion": only.resource_version}));
            json!({"gracePeriodSeconds": grace_period_seconds, "preconditions": preconditions, "propagationPolicy": propagation_policy, "dryRun": dry_run})
        }
        "TokenRequest" => {
            let TokenRequest { metadata, spec } = TokenRequest::decode(raw).map_err(bad)?;
            let TokenRequestSpec { audiences, bound, expiration_seconds } = spec.unwrap_or_default();
            let bound =
                bound.map(|to| json!({"kind": to.kind, "apiVersion": to.api_version, "name": to.name, "uid": to.uid}));
            json!({"metadata": meta(metadata), "spec": {"audiences": audiences, "boundObjectRef": bound, "expirationSeconds": expiration_seconds}})
        }
        "SelfSubjectAccessReview" => {
            let review = SelfSubjectAccessReview::decode(raw).map_err(bad)?;
            let asked = review.spec.unwrap_or_default().resource_attributes.unwrap_or_default();
            json!({"spec": {"resourceAttributes": {
                "namespace": asked.namespace, "verb": asked.verb, "group": asked.group, "version": asked.version,
                "resource": asked.resource, "subresource": asked.subresource, "name": asked.name,
            }}})
        }
        _ => return Err(ApiError::unsupported_media_type(content_type)),
    };
    remove_unset(&mut object);
    usher_spark::json::set(&mut object, &["apiVersion"], api_version);
    usher_spark::json::set(&mut object, &["kind"], kind);
    Ok(object)
}

fn meta(metadata: Option<ObjectMeta>) -> Value {
    let ObjectMeta { name, generate_name, namespace, uid, resource_version, labels, annotations, finalizers } =
        metadata.unwrap_or_default();
    json!({
        "name": name, "generateName": generate_name, "namespace": namespace, "uid": uid,
        "resourceVersion": resource_version, "labels": labels, "annotations": annotations, "finalizers": finalizers,
    })
}

fn bytes(data: HashMap<String, Vec<u8>>) -> Map<String, Value> {
    data.into_iter().map(|(key, bytes)| (key, STANDARD.encode(bytes).into())).collect()
}

/// Removes fields that a client did not set: protobuf cannot express absent strings, lists and maps.
fn remove_unset(value: &mut Value) {
    let Some(map) = value.as_object_mut() else { return };
    map.values_mut().for_each(remove_unset);
    map.retain(|_, value| match value {
        Value::Null => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::Object(map) => !map.is_empty(),
        Value::Bool(_) | Value::Number(_) => true,
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(kind: &str, raw: Vec<u8>) -> Vec<u8> {
        let types = Some(TypeMeta { api_version: "v1".into(), kind: kind.into() });
        [MAGIC, &Unknown { types, raw }.encode_to_vec()].concat()
    }

    #[test]
    fn secret_is_decoded_without_unset_fields() {
        let metadata =
            ObjectMeta { name: "a".into(), labels: [("k".into(), "v".into())].into(), ..ObjectMeta::default() };
        let secret =
            Secret { metadata: Some(metadata), data: [("release".into(), b"x".to_vec())].into(), ..Secret::default() };
        assert_eq!(
            to_json(&body("Secret", secret.encode_to_vec()), "").unwrap(),
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a", "labels": {"k": "v"}}, "data": {"release": "eA=="}})
        );
    }

    #[test]
    fn unsupported_kind_and_malformed_body_are_rejected() {
        assert_eq!(to_json(&body("Pod", Vec::new()), "application/vnd.kubernetes.protobuf").unwrap_err().code, 415);
        assert_eq!(to_json(b"k8s\0\xff\xff", "").unwrap_err().code, 400);
        assert_eq!(to_json(b"{}", "").unwrap_err().code, 400);
        assert_eq!(to_json(b"", "").unwrap(), Value::Null);
    }
}
