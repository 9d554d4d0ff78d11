//! Patch types.

use serde_json::Value;

use super::error::{ApiError, Result};
use super::request::Request;
use super::strategic;

/// Patch type by content type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PatchType {
    Json,
    Merge,
    Strategic,
    /// Merged without field ownership; creates missing objects.
    Apply,
}

impl PatchType {
    pub(super) fn of(request: &Request) -> Result<PatchType> {
        match request.content_type.as_str() {
            "application/json-patch+json" => Ok(PatchType::Json),
            "application/merge-patch+json" => Ok(PatchType::Merge),
            // Custom resources do not support strategic merge.
            "application/strategic-merge-patch+json" if request.resource.custom.is_some() => {
                Err(ApiError::unsupported_media_type(&request.content_type))
            }
            "application/strategic-merge-patch+json" => Ok(PatchType::Strategic),
            "application/apply-patch+yaml" | "application/apply-patch+json" => Ok(PatchType::Apply),
            other => Err(ApiError::unsupported_media_type(other)),
        }
    }
}

/// Parses the patch of a request.
pub(super) fn parse(request: &Request) -> Result<Value> {
    parse_body(&request.body)
}

/// Parses a body as JSON or YAML.
pub(super) fn parse_body(body: &[u8]) -> Result<Value> {
    match serde_json::from_slice(body) {
        Ok(value) => Ok(value),
        Err(error) => {
            let text = std::str::from_utf8(body).ok().filter(|text| !text.trim_start().starts_with('{'));
            text.and_then(|text| serde_saphyr::from_str(text).ok())
                .filter(Value::is_object)
                .ok_or_else(|| ApiError::bad_request(format!("error decoding the body: {error}")))
        }
    }
}

/// Returns the object after the patch.
pub(super) fn apply(request: &Request, kind: PatchType, patch: &Value, object: &Value) -> Result<Value> {
    let mut patched = object.clone();
    match kind {
        PatchType::Json => {
            let operations: json_patch::Patch = serde_json::from_value(patch.clone())
                .map_err(|error| ApiError::bad_request(format!("error decoding patch: {error}")))?;
            json_patch::patch(&mut patched, &operations).map_err(|error| {
                let name = request.name.as_deref().unwrap_or_default();
                let mut refused = ApiError::invalid(&request.resource.kind, name, Vec::new());
                refused.message = format!("the server rejected our request due to an error in our request: {error}");
                refused
            })?;
        }
        PatchType::Merge => json_patch::merge(&mut patched, patch),
        PatchType::Strategic | PatchType::Apply => strategic::merge(&mut patched, patch),
    }
    if !patched.is_object() {
        return Err(ApiError::bad_request("the patched object is not an object"));
    }
    Ok(patched)
}
