//! Reading an AdmissionReview (admission.k8s.io/v1).
//!
//! The recorded review of an executor is 10 kB; what decides is borrowed from it and the rest is skipped, which costs
//! little more than skipping all of it (`benches/admission.rs` prints both).

use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::driver::resolve::Requester;
use crate::json::Lean;
use crate::spark::pod::Pod;
use crate::spark::text::{Text, bounded, first_of, is_too_many};

/// What is no review that could be answered: the reply is a 400, not an answer.
#[derive(Debug, thiserror::Error)]
pub enum BadReview {
    /// No JSON, or not of the expected shape.
    #[error("expected an AdmissionReview as JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// Some other kind or version.
    #[error("expected kind AdmissionReview of apiVersion admission.k8s.io/v1, found kind {kind:?} of {version:?}")]
    Kind {
        /// The kind that was found.
        kind: String,
        /// The version that was found.
        version: String,
    },
    /// It has a list or a map that is longer than any pod's; its head can be read.
    #[error("the review has a list or a map that is longer than any pod's: {0}")]
    TooMany(serde_json::Error),
    /// Without these there is nothing to answer.
    #[error("expected an AdmissionReview with request.uid")]
    NoRequest,
}

/// What is done to the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// A creation.
    Create,
    /// An update.
    Update,
    /// A deletion.
    Delete,
    /// A connection (exec, attach …), or one that is not known yet.
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

/// A review, as far as it decides.
#[derive(Clone, Debug)]
pub struct Review<'a> {
    /// To be echoed in the answer.
    pub uid: Text<'a>,
    /// What is done.
    pub operation: Operation,
    /// Whether it is about pods themselves, not about another kind or a subresource.
    pub is_pod: bool,
    /// Whether it is about the subresource `status` of a pod, by which labels and annotations can be changed too.
    pub is_status: bool,
    /// The object's name; may be empty for a creation.
    pub name: Option<Text<'a>>,
    /// The object's namespace.
    pub namespace: Text<'a>,
    /// Who asks.
    pub requester: Requester<'a>,
    /// The object; absent in a deletion.
    pub pod: Option<Pod<'a>>,
    /// The object as it was, in an update that is to be validated.
    pub old: Option<Pod<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", bound(deserialize = "O: Deserialize<'de>"))]
struct ReviewWire<'a, O> {
    #[serde(borrow, default)]
    kind: Text<'a>,
    #[serde(default)]
    api_version: Text<'a>,
    request: Option<RequestWire<'a, O>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", bound(deserialize = "O: Deserialize<'de>"))]
struct RequestWire<'a, O> {
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
    object: Option<O>,
    #[serde(default)]
    old_object: Option<O>,
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
    #[serde(default, deserialize_with = "bounded")]
    groups: Option<Vec<Text<'a>>>,
    #[serde(default)]
    extra: Option<Extra<'a>>,
}

/// Other extras (credential-id, node-name) do not decide.
#[derive(Default, Deserialize)]
struct Extra<'a> {
    #[serde(borrow, default, rename = "authentication.kubernetes.io/pod-name", deserialize_with = "bounded")]
    pod_names: Option<Vec<Text<'a>>>,
    #[serde(default, rename = "authentication.kubernetes.io/pod-uid", deserialize_with = "bounded")]
    pod_uids: Option<Vec<Text<'a>>>,
}

/// The same of which lists are cut and not refused: for a head, in which nothing else tells who asks.
#[derive(Default, Deserialize)]
#[serde(from = "LenientWire<'a>", bound(deserialize = "'de: 'a"))]
pub(super) struct LenientUser<'a>(pub(super) UserInfo<'a>);

#[derive(Deserialize)]
struct LenientWire<'a> {
    #[serde(borrow, default)]
    username: Text<'a>,
    #[serde(default, deserialize_with = "first_of")]
    groups: Option<Vec<Text<'a>>>,
}

impl<'a> From<LenientWire<'a>> for LenientUser<'a> {
    fn from(wire: LenientWire<'a>) -> LenientUser<'a> {
        LenientUser(UserInfo { username: wire.username, groups: wire.groups, extra: None })
    }
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

/// What no decision looks at: four fifths of a review.
const DROPPED: &[&str] = &[
    "managedFields",
    "oldObject",
    "volumes",
    "status",
    "tolerations",
    "affinity",
    "requestKind",
    "requestResource",
    "options",
    "groups",
];
/// What no judgement of a final state or of a change looks at.
const DROPPED_JUDGING: &[&str] =
    &["managedFields", "volumes", "status", "tolerations", "requestKind", "requestResource", "options"];
/// What is looked at only now and then.
const KEPT: &[&str] = &["containers", "initContainers"];

/// A review's bytes without what no decision looks at.
pub fn lean(body: &[u8]) -> Lean<'_> {
    Lean::of(body, DROPPED, KEPT)
}

/// The same for [`judge`](super::judge): what an object was, who asks in which groups, and where the pod may run stay.
pub fn lean_for_judging(body: &[u8]) -> Lean<'_> {
    Lean::of(body, DROPPED_JUDGING, KEPT)
}

/// Reads a review.
pub fn parse<'a>(lean: &'a Lean<'a>) -> Result<Review<'a>, BadReview> {
    let body = lean.text();
    match serde_json::from_slice::<ReviewWire<'_, Pod<'_>>>(body) {
        Ok(wire) => review(wire, |pod| pod.map(|pod| pod.with_parts(|span| lean.part(span)))),
        // The object may be of another kind whose spec looks nothing like a pod's; then it is not ours to judge.
        Err(error) => {
            if is_too_many(&error) {
                return Err(BadReview::TooMany(error));
            }
            let wire = serde_json::from_slice::<ReviewWire<'_, IgnoredAny>>(body).map_err(|_| error)?;
            let other = review(wire, |_| None)?;
            if !other.is_pod {
                return Ok(other);
            }
            let error = serde_json::from_slice::<ReviewWire<'_, Pod<'_>>>(body).err();
            Err(error.map_or(BadReview::NoRequest, |error| {
                if is_too_many(&error) { BadReview::TooMany(error) } else { error.into() }
            }))
        }
    }
}

fn review<'a, O>(wire: ReviewWire<'a, O>, pod: impl Fn(Option<O>) -> Option<Pod<'a>>) -> Result<Review<'a>, BadReview> {
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
        parse(&lean(body.as_bytes())).unwrap_err().to_string()
    }

    #[test]
    fn what_is_no_review_is_told() {
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
    fn other_kinds_are_read_though_they_look_like_no_pod() {
        let body = with(
            r#""resource":{"group":"x","version":"v1","resource":"things"},"operation":"CREATE","object":{"metadata":{"labels":7},"spec":"s"}"#,
        );
        let lean = lean(body.as_bytes());
        let review = parse(&lean).unwrap();
        assert!(!review.is_pod && review.pod.is_none());
    }

    #[test]
    fn a_malformed_pod_is_a_bad_review() {
        let body = with(
            r#""resource":{"group":"","version":"v1","resource":"pods"},"operation":"CREATE","object":{"metadata":{"labels":7}}"#,
        );
        assert!(error(&body).contains("a map of strings"), "{}", error(&body));
    }

    #[test]
    fn subresources_and_operations() {
        let body = with(
            r#""resource":{"group":"","version":"v1","resource":"pods"},"subResource":"status","operation":"UPDATE","object":{}"#,
        );
        let lean = lean(body.as_bytes());
        let review = parse(&lean).unwrap();
        assert!(!review.is_pod);
        assert_eq!(review.operation, Operation::Update);
        let body = with(r#""resource":{"group":"","version":"v1","resource":"pods"},"operation":"CONNECT""#);
        assert_eq!(parse(&super::lean(body.as_bytes())).unwrap().operation, Operation::Other);
    }

    #[test]
    fn extras_of_any_count_are_kept() {
        let body = with(
            r#""userInfo":{"username":"u","extra":{"authentication.kubernetes.io/pod-name":["a","b"],"authentication.kubernetes.io/pod-uid":null,"x":["y"]}}"#,
        );
        let lean = lean(body.as_bytes());
        let review = parse(&lean).unwrap();
        assert_eq!(review.requester.pod_names, ["a", "b"].map(Text::from));
        assert!(review.requester.pod_uids.is_empty());
    }
}
