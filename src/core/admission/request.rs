//! Parses an AdmissionReview (admission.k8s.io/v1).
//!
//! The recorded review of an executor is 10 kB. The fields that decisions need are borrowed from it and the rest is skipped,
//! which costs little more than skipping all of it (`benches/admission.rs` prints both).

use std::sync::Arc;

use serde::Deserialize;

use crate::ownership::resolve::Requester;
use crate::snapshot::{Namespace, Snapshot};
use usher_spark::json::Pruned;
use usher_spark::pod::Pod;
use usher_spark::wire_text::{Text, first_of, is_too_many};

/// Why a body is not an answerable review: it gets a status 400 and no AdmissionReview.
#[derive(Debug, thiserror::Error)]
pub enum BadReview {
    /// Not JSON, or not of the expected shape.
    #[error("expected an AdmissionReview as JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// Another kind or version.
    #[error("expected kind AdmissionReview of apiVersion admission.k8s.io/v1, found kind {kind:?} of {version:?}")]
    Kind {
        /// The kind that was found.
        kind: String,
        /// The version that was found.
        version: String,
    },
    /// A list or a map is longer than any pod's, or there are more of them; the head can be read.
    #[error("the review has more strings, lists and maps, or a longer list, than any pod")]
    TooMany,
    /// The request or its uid is missing, so that no response is possible.
    #[error("expected an AdmissionReview with request.uid")]
    NoRequest,
}

/// The operation on the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    Create,
    Update,
    Delete,
    /// A connection (exec, attach …), or an unknown operation.
    Other,
}

impl Operation {
    /// All of them, for metrics.
    pub const ALL: [Operation; 4] = [Operation::Create, Operation::Update, Operation::Delete, Operation::Other];

    /// The metric label.
    pub fn as_str(self) -> &'static str {
        match self {
            Operation::Create => "create",
            Operation::Update => "update",
            Operation::Delete => "delete",
            Operation::Other => "other",
        }
    }
}

/// The fields of a review that decisions need.
#[derive(Clone, Debug)]
pub struct Review<'a> {
    /// Repeated in the response.
    pub uid: Text<'a>,
    pub operation: Operation,
    /// Whether the object is a pod itself, not another kind or a subresource.
    pub is_pod: bool,
    /// Whether it is the subresource `status` of a pod, which can change labels and annotations too.
    pub is_status: bool,
    /// The object's name; may be empty for a creation.
    pub name: Option<Text<'a>>,
    /// The object's namespace.
    pub namespace: Text<'a>,
    /// What a request for the namespace returned, of one that the snapshot does not have yet.
    pub found: Option<Arc<Namespace>>,
    pub requester: Requester<'a>,
    /// The object; absent in a deletion.
    pub pod: Option<Pod<'a>>,
    /// The old object, in an update that is validated.
    pub old: Option<Pod<'a>>,
}

impl Review<'_> {
    /// The namespace, if it was observed or found.
    pub fn known_namespace<'s>(&'s self, snapshot: &'s Snapshot) -> Option<&'s Namespace> {
        snapshot.namespace(&self.namespace).or(self.found.as_ref()).map(|namespace| &**namespace)
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ReviewWire<'a> {
    #[serde(borrow, default)]
    kind: Text<'a>,
    #[serde(default)]
    api_version: Text<'a>,
    request: Option<RequestWire<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RequestWire<'a> {
    #[serde(borrow, default)]
    uid: Text<'a>,
    resource: Option<GroupResource<'a>>,
    #[serde(default)]
    sub_resource: Option<Text<'a>>,
    #[serde(default)]
    name: Option<Text<'a>>,
    #[serde(default)]
    namespace: Option<Text<'a>>,
    #[serde(default)]
    operation: Text<'a>,
    #[serde(default)]
    user_info: UserInfo<'a>,
    object: Option<Pod<'a>>,
    #[serde(default)]
    old_object: Option<Pod<'a>>,
}

#[derive(Default, Deserialize)]
pub(super) struct GroupResource<'a> {
    #[serde(borrow, default)]
    group: Text<'a>,
    #[serde(default)]
    version: Text<'a>,
    #[serde(default)]
    resource: Text<'a>,
}

impl GroupResource<'_> {
    /// Whether these are pods.
    pub(super) fn is_pods(&self) -> bool {
        self.group.is_empty() && self.version == "v1" && self.resource == "pods"
    }
}

#[derive(Default, Deserialize)]
pub(super) struct UserInfo<'a> {
    #[serde(borrow, default)]
    username: Text<'a>,
    /// Truncated, not rejected: no pod depends on them, and an account is trusted for one that is missing no more.
    #[serde(default, deserialize_with = "first_of")]
    groups: Option<Vec<Text<'a>>>,
    #[serde(default)]
    extra: Option<Extra<'a>>,
}

/// No decision needs the other extras (credential-id, node-name).
#[derive(Default, Deserialize)]
struct Extra<'a> {
    #[serde(borrow, default, rename = "authentication.kubernetes.io/pod-name", deserialize_with = "first_of")]
    pod_names: Option<Vec<Text<'a>>>,
    #[serde(default, rename = "authentication.kubernetes.io/pod-uid", deserialize_with = "first_of")]
    pod_uids: Option<Vec<Text<'a>>>,
}

impl<'a> From<UserInfo<'a>> for Requester<'a> {
    fn from(user: UserInfo<'a>) -> Requester<'a> {
        let extra = user.extra.unwrap_or_default();
        Requester {
            username: user.username,
            groups: user.groups.unwrap_or_default(),
            pod_names: extra.pod_names.unwrap_or_default(),
            pod_uids: extra.pod_uids.unwrap_or_default(),
        }
    }
}

/// Fields that no mutation depends on: four fifths of a review.
const PRUNED: &[&str] =
    &["managedFields", "oldObject", "status", "requestKind", "requestResource", "options", "groups", "finalizers"];
/// Fields that no validation of a final state or of an update depends on.
const PRUNED_FOR_VALIDATION: &[&str] =
    &["managedFields", "status", "requestKind", "requestResource", "options", "finalizers"];
/// Fields that are read only in some cases.
const KEPT: &[&str] = &["containers", "initContainers", "tolerations", "volumes"];
/// At most this many strings, lists, maps and items of a review are read, without those that are pruned: ten thousand environment
/// variables are 70,000, and twice as many in an update. A parser needs a few milliseconds for them.
pub(crate) const MAX_TOKENS: usize = 1 << 18;

/// A review's bytes without the fields that no mutation depends on.
pub fn prune(body: &[u8]) -> Pruned<'_> {
    Pruned::of(body, PRUNED, KEPT, MAX_TOKENS)
}

/// The same for [`validate`](super::validate()): keeps the old object, the requester's groups, and the pod's node constraints.
pub fn prune_for_validation(body: &[u8]) -> Pruned<'_> {
    Pruned::of(body, PRUNED_FOR_VALIDATION, KEPT, MAX_TOKENS)
}

/// Parses a review of a pod.
pub(super) fn parse<'a>(pruned: &'a Pruned<'a>) -> Result<Review<'a>, BadReview> {
    if pruned.has_too_many() {
        return Err(BadReview::TooMany);
    }
    match serde_json::from_slice::<ReviewWire<'_>>(pruned.text()) {
        Ok(wire) => review(wire, |pod| pod.map(|pod| pod.with_parts(|span| pruned.part(span)))),
        Err(error) if is_too_many(&error) => Err(BadReview::TooMany),
        Err(error) => Err(error.into()),
    }
}

fn review<'a>(wire: ReviewWire<'a>, pod: impl Fn(Option<Pod<'a>>) -> Option<Pod<'a>>) -> Result<Review<'a>, BadReview> {
    if wire.kind != "AdmissionReview" || wire.api_version != "admission.k8s.io/v1" {
        let cut = |text: Text<'_>| text.chars().take(64).collect();
        return Err(BadReview::Kind { kind: cut(wire.kind), version: cut(wire.api_version) });
    }
    let request = wire.request.filter(|request| !request.uid.is_empty()).ok_or(BadReview::NoRequest)?;
    let of_pods = request.resource.is_some_and(|about| about.is_pods());
    let is_pod = of_pods && request.sub_resource.as_ref().is_none_or(|sub| sub.is_empty());
    let is_status = of_pods && request.sub_resource.is_some_and(|sub| sub == "status");
    Ok(Review {
        uid: request.uid,
        operation: operation_of(&request.operation),
        is_pod,
        is_status,
        name: request.name.filter(|name| !name.is_empty()),
        namespace: request.namespace.unwrap_or_default(),
        found: None,
        requester: request.user_info.into(),
        pod: pod(request.object),
        old: pod(request.old_object),
    })
}

pub(super) fn operation_of(text: &str) -> Operation {
    match text {
        "CREATE" => Operation::Create,
        "UPDATE" => Operation::Update,
        "DELETE" => Operation::Delete,
        _ => Operation::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(body: &str) -> String {
        parse(&prune(body.as_bytes())).unwrap_err().to_string()
    }

    #[test]
    fn invalid_review_error_states_expected_kind_or_uid() {
        assert!(error("").starts_with("expected an AdmissionReview as JSON"));
        assert!(error("[]").starts_with("expected an AdmissionReview as JSON"));
        assert_eq!(
            error(r#"{"kind":"Pod","apiVersion":"v1"}"#),
            r#"expected kind AdmissionReview of apiVersion admission.k8s.io/v1, found kind "Pod" of "v1""#
        );
        assert!(
            error(r#"{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1beta1","request":{"uid":"1"}}"#)
                .contains("v1beta1")
        );
        assert_eq!(
            error(r#"{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1"}"#),
            "expected an AdmissionReview with request.uid"
        );
        assert_eq!(
            error(r#"{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":""}}"#),
            "expected an AdmissionReview with request.uid"
        );
    }

    fn with(request: &str) -> String {
        format!(r#"{{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{{"uid":"u",{request}}}}}"#)
    }

    #[test]
    fn review_of_other_resource_parses_without_pod() {
        let body = with(
            r#""resource":{"group":"x","version":"v1","resource":"things"},"operation":"CREATE","object":{"metadata":{"labels":7},"spec":"s"}"#,
        );
        let pruned = prune(body.as_bytes());
        let review = crate::admission::parse(&pruned).unwrap();
        assert!(!review.is_pod && review.pod.is_none());
    }

    #[test]
    fn only_pods_of_core_v1_are_pods() {
        for (resource, is_pod) in [
            (r#"{"group":"","version":"v1","resource":"pods"}"#, true),
            (r#"{"group":"metrics.k8s.io","version":"v1","resource":"pods"}"#, false),
            (r#"{"group":"","version":"v2","resource":"pods"}"#, false),
            (r#"{"group":"","version":"v1","resource":"services"}"#, false),
        ] {
            let body = with(&format!(r#""resource":{resource},"operation":"CREATE","object":{{}}"#));
            assert_eq!(parse(&prune(body.as_bytes())).unwrap().is_pod, is_pod, "{resource}");
        }
    }

    #[test]
    fn empty_name_is_no_name() {
        for (name, expected) in [("e-1", Some("e-1")), ("", None)] {
            let body = with(&format!(
                r#""resource":{{"group":"","version":"v1","resource":"pods"}},"name":"{name}","operation":"CREATE","object":{{}}"#
            ));
            assert_eq!(parse(&prune(body.as_bytes())).unwrap().name.as_deref(), expected);
        }
    }

    #[test]
    fn review_with_malformed_pod_is_rejected() {
        let body = with(
            r#""resource":{"group":"","version":"v1","resource":"pods"},"operation":"CREATE","object":{"metadata":{"labels":7}}"#,
        );
        assert!(error(&body).contains("a map of strings"), "{}", error(&body));
    }

    #[test]
    fn subresource_is_not_pod_and_unknown_operation_is_other() {
        let body = with(
            r#""resource":{"group":"","version":"v1","resource":"pods"},"subResource":"status","operation":"UPDATE","object":{}"#,
        );
        let pruned = prune(body.as_bytes());
        let review = parse(&pruned).unwrap();
        assert!(!review.is_pod);
        assert_eq!(review.operation, Operation::Update);
        let body = with(r#""resource":{"group":"","version":"v1","resource":"pods"},"operation":"CONNECT""#);
        assert_eq!(parse(&super::prune(body.as_bytes())).unwrap().operation, Operation::Other);
    }

    #[test]
    fn extra_values_parse_as_lists_and_null_as_empty() {
        let body = with(
            r#""userInfo":{"username":"u","extra":{"authentication.kubernetes.io/pod-name":["a","b"],"authentication.kubernetes.io/pod-uid":null,"x":["y"]}}"#,
        );
        let pruned = prune(body.as_bytes());
        let review = parse(&pruned).unwrap();
        assert_eq!(review.requester.pod_names, ["a", "b"].map(Text::from));
        assert!(review.requester.pod_uids.is_empty());
    }
}
