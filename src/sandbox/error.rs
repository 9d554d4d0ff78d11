//! Errors in the form of an API server: `metav1.Status`.

use serde_json::{Value, json};

/// An error response.
#[derive(Clone, Debug)]
pub(super) struct ApiError {
    pub(super) code: u16,
    pub(super) reason: &'static str,
    pub(super) message: String,
    pub(super) details: Value,
    pub(super) retry_after: Option<u32>,
}

pub(super) type Result<T> = std::result::Result<T, ApiError>;

impl ApiError {
    fn new(code: u16, reason: &'static str, message: impl Into<String>, details: Value) -> Self {
        ApiError { code, reason, message: message.into(), details, retry_after: None }
    }

    pub(super) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message, Value::Null)
    }

    pub(super) fn unauthorized() -> Self {
        Self::new(401, "Unauthorized", "Unauthorized", Value::Null)
    }

    pub(super) fn forbidden(kind: &str, name: &str, why: &str) -> Self {
        let named = if name.is_empty() { String::new() } else { format!(" {name:?}") };
        let message = format!("{kind}{named} is forbidden: {why}");
        Self::new(403, "Forbidden", message, json!({"name": name, "kind": kind}))
    }

    pub(super) fn no_such_resource() -> Self {
        Self::new(404, "NotFound", "the server could not find the requested resource", json!({}))
    }

    pub(super) fn not_found(kind: &str, name: &str) -> Self {
        Self::new(404, "NotFound", format!("{kind} {name:?} not found"), json!({"name": name, "kind": kind}))
    }

    pub(super) fn method_not_allowed() -> Self {
        let message = "the server does not allow this method on the requested resource";
        Self::new(405, "MethodNotAllowed", message, json!({}))
    }

    pub(super) fn already_exists(kind: &str, name: &str) -> Self {
        Self::new(409, "AlreadyExists", format!("{kind} {name:?} already exists"), json!({"name": name, "kind": kind}))
    }

    pub(super) fn conflict(kind: &str, name: &str, why: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on {kind} {name:?}: {why}");
        Self::new(409, "Conflict", message, json!({"name": name, "kind": kind}))
    }

    pub(super) fn modified(kind: &str, name: &str) -> Self {
        Self::conflict(
            kind,
            name,
            "the object has been modified; please apply your changes to the latest version and try again",
        )
    }

    pub(super) fn expired(asked: u64, oldest: u64) -> Self {
        Self::new(410, "Expired", format!("too old resource version: {asked} ({oldest})"), Value::Null)
    }

    pub(super) fn too_large(limit: usize) -> Self {
        let message = format!("Request entity too large: limit is {limit}");
        Self::new(413, "RequestEntityTooLarge", message, Value::Null)
    }

    pub(super) fn unsupported_media_type(found: &str) -> Self {
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: application/json, application/yaml (found {found})"
        );
        Self::new(415, "UnsupportedMediaType", message, Value::Null)
    }

    /// Field errors: `(field, reason, message)`.
    pub(super) fn invalid(kind: &str, name: &str, causes: Vec<Cause>) -> Self {
        let all: Vec<String> = causes.iter().map(|cause| format!("{}: {}", cause.field, cause.message)).collect();
        let text = if all.len() == 1 { all.concat() } else { format!("[{}]", all.join(", ")) };
        let causes: Vec<Value> = causes
            .iter()
            .map(|cause| json!({"reason": cause.reason, "message": cause.message, "field": cause.field}))
            .collect();
        let message = format!("{kind} {name:?} is invalid: {text}");
        Self::new(422, "Invalid", message, json!({"name": name, "kind": kind, "causes": causes}))
    }

    pub(super) fn unavailable(message: &str) -> Self {
        Self::new(503, "ServiceUnavailable", message.to_owned(), json!({}))
    }

    pub(super) fn internal(message: impl Into<String>) -> Self {
        let message = message.into();
        let details = json!({"causes": [{"message": message}]});
        Self::new(500, "InternalError", format!("Internal error occurred: {message}"), details)
    }

    /// The body: a `Status`.
    pub(super) fn status(&self) -> Value {
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "reason": self.reason, "code": self.code,
        });
        if !self.details.is_null() {
            usher_spark::json::set(&mut status, &["details"], self.details.clone());
        }
        status
    }
}

/// An error of one field.
#[derive(Clone, Debug)]
pub(super) struct Cause {
    pub(super) field: String,
    pub(super) reason: &'static str,
    pub(super) message: String,
}

impl Cause {
    pub(super) fn required(field: &str) -> Self {
        Cause { field: field.into(), reason: "FieldValueRequired", message: "Required value".into() }
    }

    pub(super) fn invalid(field: &str, value: &str, why: &str) -> Self {
        Cause { field: field.into(), reason: "FieldValueInvalid", message: format!("Invalid value: {value:?}: {why}") }
    }

    pub(super) fn forbidden(field: &str, why: &str) -> Self {
        Cause { field: field.into(), reason: "FieldValueForbidden", message: format!("Forbidden: {why}") }
    }
}
