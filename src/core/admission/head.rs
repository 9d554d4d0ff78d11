//! Reviews of which only the head is read, because the object is larger than any object that a cluster stores, or has a
//! longer list than any pod.
//!
//! An API server writes the requester and the namespace before the object (`k8s.io/api/admission/v1`, the order of the
//! fields of `AdmissionRequest`). They suffice to decide as the strictest policy that could match: a pod must not evade a
//! policy by its size.

use std::fmt;

use serde::Deserializer;
use serde::de::{DeserializeSeed, Error, IgnoredAny, MapAccess, Visitor};

use super::decision::Decision;
use super::draft::Draft;
use super::request::{BadReview, GroupResource, Operation, Review, UserInfo, operation_of};
use super::validate::{ValidationContext, is_trusted};
use crate::ownership::resolve::Requester;
use crate::policy::Policies;
use crate::reason::Reason;
use usher_spark::wire_text::Text;

/// Bytes of a review that are kept to read its head: more than an API server allows a token and its groups.
pub const HEAD_LEN: usize = 256 << 10;

/// Parses a review's head: all fields but the objects, in its first [`HEAD_LEN`] bytes. The bytes may end anywhere after it.
pub fn parse(bytes: &[u8]) -> Result<Review<'_>, BadReview> {
    let mut head = Head::default();
    let mut deserializer = serde_json::Deserializer::from_slice(bytes.get(..HEAD_LEN).unwrap_or(bytes));
    let outcome = ReviewSeed(&mut head).deserialize(&mut deserializer);
    // If the bytes end after uid, operation and resource, the requester counts as unknown.
    let is_known = !head.uid.is_empty() && !head.operation.is_empty() && head.resource.is_some();
    if !head.complete && !is_known {
        outcome?;
    }
    if head.kind != "AdmissionReview" || head.version != "admission.k8s.io/v1" {
        let cut = |text: &str| text.chars().take(64).collect();
        return Err(BadReview::Kind { kind: cut(&head.kind), version: cut(&head.version) });
    }
    if head.uid.is_empty() {
        return Err(BadReview::NoRequest);
    }
    let of_pods = head.resource.is_some_and(|about| about.is_pods());
    Ok(Review {
        uid: head.uid,
        operation: operation_of(&head.operation),
        is_pod: of_pods && head.sub_resource.as_ref().is_none_or(|sub| sub.is_empty()),
        is_status: of_pods && head.sub_resource.is_some_and(|sub| sub == "status"),
        name: head.name.filter(|name| !name.is_empty()),
        namespace: head.namespace.unwrap_or_default(),
        found: None,
        requester: Requester::from(head.user_info),
        pod: None,
        old: None,
    })
}

/// The decision of a mutating webhook without the object: no mutation, and a strict policy rejects the pod.
pub fn mutate_head<'a>(review: &Review<'_>, policies: &'a Policies, context: ValidationContext<'_>) -> Decision<'a> {
    decide(review, policies, context, false)
}

/// The decision of a validating webhook without the object: a trusted requester passes; for all others, the strictest policy
/// that could match decides.
pub fn validate_head<'a>(review: &Review<'_>, policies: &'a Policies, context: ValidationContext<'_>) -> Decision<'a> {
    decide(review, policies, context, true)
}

fn decide<'a>(
    review: &Review<'_>,
    policies: &'a Policies,
    context: ValidationContext<'_>,
    validates: bool,
) -> Decision<'a> {
    let is_ours = review.is_pod || (validates && review.is_status);
    if !is_ours {
        return Decision::pass(Reason::NotAPod);
    }
    let is_decided = match review.operation {
        Operation::Create => true,
        Operation::Update => validates,
        Operation::Delete | Operation::Other => false,
    };
    if !is_decided {
        return Decision::pass(Reason::NotCreate);
    }
    if validates && is_trusted(&review.requester, policies, context.own_account) {
        return Decision::pass(Reason::TrustedWriter);
    }
    let possible = policies.possible(&review.namespace, review.known_namespace(context.snapshot));
    let sentence =
        "the review exceeds 20 MiB, 1,024 labels, annotations or owners, or 262,144 strings, lists, maps and elements: reduce the size of the pod"
            .to_owned();
    let mut draft = Draft::new(Reason::TooLarge);
    if validates {
        let policy = policies.strictest(possible, |policy| policy.validate);
        draft.policy = Some(&policy.name);
        draft.find(Reason::TooLarge, sentence);
        draft.decide_validation(policy.validate)
    } else {
        let policy = policies.strictest(possible, |policy| policy.strict);
        draft.policy = Some(&policy.name);
        draft.note(Reason::TooLarge, sentence);
        draft.decide(policy.strict)
    }
}

#[derive(Default)]
struct Head<'a> {
    kind: Text<'a>,
    version: Text<'a>,
    uid: Text<'a>,
    resource: Option<GroupResource<'a>>,
    sub_resource: Option<Text<'a>>,
    name: Option<Text<'a>>,
    namespace: Option<Text<'a>>,
    operation: Text<'a>,
    user_info: UserInfo<'a>,
    /// Whether the object was reached, after all fields of the head.
    complete: bool,
}

struct ReviewSeed<'h, 'a>(&'h mut Head<'a>);

impl<'de> DeserializeSeed<'de> for ReviewSeed<'_, 'de> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for ReviewSeed<'_, 'de> {
    type Value = ();
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an AdmissionReview")
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<Text<'de>>()? {
            match key.as_str() {
                "kind" => self.0.kind = map.next_value()?,
                "apiVersion" => self.0.version = map.next_value()?,
                "request" => map.next_value_seed(RequestSeed(self.0))?,
                _ => _ = map.next_value::<IgnoredAny>()?,
            }
        }
        Ok(())
    }
}

struct RequestSeed<'h, 'a>(&'h mut Head<'a>);

impl<'de> DeserializeSeed<'de> for RequestSeed<'_, 'de> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for RequestSeed<'_, 'de> {
    type Value = ();
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an AdmissionRequest")
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let head = self.0;
        while let Some(key) = map.next_key::<Text<'de>>()? {
            match key.as_str() {
                "uid" => head.uid = map.next_value()?,
                "resource" => head.resource = map.next_value()?,
                "subResource" => head.sub_resource = map.next_value()?,
                "name" => head.name = map.next_value()?,
                "namespace" => head.namespace = map.next_value()?,
                "operation" => head.operation = map.next_value()?,
                "userInfo" => head.user_info = map.next_value()?,
                // In another field order than an API server's, objects that come earlier are skipped.
                "object" | "oldObject" if !head.uid.is_empty() && !head.operation.is_empty() => {
                    head.complete = true;
                    return Err(A::Error::custom("the head ends here"));
                }
                _ => _ = map.next_value::<IgnoredAny>()?,
            }
        }
        head.complete = true;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Match, Pattern, Policy, Validate};
    use crate::snapshot::{Namespace, Snapshot};
    use serde_json::json;
    use std::sync::Arc;

    const HEAD: &str = r#"{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"u",
        "resource":{"group":"","version":"v1","resource":"pods"},"namespace":"team-a","operation":"CREATE",
        "userInfo":{"username":"eve","groups":["g"]},"object":{"metadata":{"labels":{"a":"#;

    #[test]
    fn head_is_parsed_from_truncated_review() {
        let review = parse(HEAD.as_bytes()).unwrap();
        assert_eq!((&*review.uid, &*review.namespace, &*review.requester.username), ("u", "team-a", "eve"));
        assert!(review.is_pod && review.operation == Operation::Create && review.pod.is_none());
        let enough = HEAD.find("\"userInfo").unwrap();
        for end in 0..HEAD.find("\"CREATE").unwrap() {
            assert!(parse(&HEAD.as_bytes()[..end]).is_err(), "cut at {end}");
        }
        for end in enough..HEAD.find("\"object").unwrap() {
            let review = parse(&HEAD.as_bytes()[..end]).unwrap();
            assert!(matches!(&*review.requester.username, "" | "eve"), "cut at {end}");
        }
        // The name of a requester in more groups than are stored is still read.
        let groups = vec!["\"g\""; 5000].join(",");
        let many = HEAD.replace("\"g\"", &groups);
        assert_eq!(&*parse(many.as_bytes()).unwrap().requester.username, "eve");
        let other = HEAD.replace("admission.k8s.io/v1", "admission.k8s.io/v1beta1");
        assert!(matches!(parse(other.as_bytes()), Err(BadReview::Kind { .. })));
        let whole = HEAD.replace("\"u\"", "\"\"") + "1}}}}}";
        assert!(matches!(parse(whole.as_bytes()), Err(BadReview::NoRequest)));
    }

    #[test]
    fn head_is_parsed_from_complete_review() {
        let whole = json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1",
            "request": {"uid": "u", "subResource": "status", "operation": "DELETE"}});
        let text = whole.to_string();
        let review = parse(text.as_bytes()).unwrap();
        assert!(!review.is_pod && review.operation == Operation::Delete);
    }

    /// The head of a review with these fields, in which an object follows.
    fn head_with(fields: &str) -> String {
        format!(
            r#"{{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{{"uid":"u","operation":"UPDATE",{fields},"object":{{"metadata":["#
        )
    }

    #[test]
    fn head_states_resource_subresource_and_name() {
        const PODS: &str = r#""resource":{"group":"","version":"v1","resource":"pods"}"#;
        const NODES: &str = r#""resource":{"group":"","version":"v1","resource":"nodes"}"#;
        for (fields, is_pod, is_status, name) in [
            (format!("{PODS},\"name\":\"e-1\""), true, false, Some("e-1")),
            (format!("{PODS},\"name\":\"\",\"subResource\":\"\""), true, false, None),
            (format!("{PODS},\"subResource\":\"status\""), false, true, None),
            (format!("{PODS},\"subResource\":\"resize\""), false, false, None),
            (NODES.to_owned(), false, false, None),
            (format!("{NODES},\"subResource\":\"status\""), false, false, None),
        ] {
            let text = head_with(&fields);
            let review = parse(text.as_bytes()).unwrap();
            assert_eq!(
                (review.is_pod, review.is_status, review.name.as_deref()),
                (is_pod, is_status, name),
                "{fields}"
            );
        }
    }

    #[test]
    fn object_before_the_head_is_skipped_and_object_after_it_ends_the_head() {
        let request = |fields: &str| {
            format!(r#"{{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{{{fields}}}}}"#)
        };
        for fields in [
            r#""object":{"a":1},"uid":"u","operation":"DELETE","namespace":"late""#,
            r#""uid":"u","oldObject":{"a":1},"operation":"DELETE","namespace":"late""#,
            r#""operation":"DELETE","object":{"a":1},"uid":"u","namespace":"late""#,
        ] {
            let text = request(fields);
            let review = parse(text.as_bytes()).unwrap();
            assert_eq!(
                (&*review.uid, review.operation, &*review.namespace),
                ("u", Operation::Delete, "late"),
                "{fields}"
            );
        }
        // Fields after the object are not read: the object may be larger than what is kept.
        let text = request(r#""uid":"u","operation":"DELETE","object":{"a":1},"namespace":"late""#);
        assert_eq!(&*parse(text.as_bytes()).unwrap().namespace, "");
    }

    #[test]
    fn wrong_type_is_rejected_with_expected_one() {
        let error = parse(b"[]").unwrap_err().to_string();
        assert!(error.contains("invalid type: sequence, expected an AdmissionReview at line 1"), "{error}");
        let error = parse(br#"{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":7}"#).unwrap_err();
        assert!(error.to_string().contains("invalid type: integer `7`, expected an AdmissionRequest"), "{error}");
    }

    #[test]
    fn status_is_validated_but_not_mutated() {
        let text = head_with(r#""resource":{"group":"","version":"v1","resource":"pods"},"subResource":"status""#);
        let review = parse(text.as_bytes()).unwrap();
        let (snapshot, policies) = (Snapshot::default(), Policies::default());
        let context = ValidationContext { snapshot: &snapshot, own_account: Some("us"), settled: true };
        assert_eq!(mutate_head(&review, &policies, context).reason, Reason::NotAPod);
        assert_eq!(validate_head(&review, &policies, context).reason, Reason::TooLarge);
        let text = text.replace("\"status\"", "\"binding\"");
        let review = parse(text.as_bytes()).unwrap();
        assert_eq!(validate_head(&review, &policies, context).reason, Reason::NotAPod);
    }

    #[test]
    fn decision_names_strictest_policy_that_may_match() {
        let review = parse(HEAD.as_bytes()).unwrap();
        let snapshot = Snapshot::default();
        let context = ValidationContext { snapshot: &snapshot, own_account: Some("us"), settled: true };
        let named = |policies: &[(&str, Validate, bool)]| {
            let policy = |(name, validate, strict): &(&str, Validate, bool)| Policy {
                name: (*name).into(),
                validate: *validate,
                strict: *strict,
                // Unknown without the object, so that later policies may match too.
                matches: Match {
                    pod_selector: Some([("tier".to_owned(), "gold".to_owned())].into_iter().collect()),
                    ..Match::everything()
                },
                ..Policy::fallback()
            };
            let policies = Policies::new(policies.iter().map(policy).collect(), Vec::new());
            [validate_head, mutate_head]
                .map(|decide| decide(&review, &policies, context).policy.unwrap_or_default().to_owned())
        };
        use Validate::{Audit, Enforce, Warn};
        assert_eq!(named(&[("a", Audit, false), ("b", Audit, false)]), ["a", "a"], "the first of equal ones");
        assert_eq!(named(&[("a", Warn, false), ("b", Warn, false), ("c", Audit, false)]), ["a", "a"]);
        assert_eq!(named(&[("a", Warn, false), ("b", Enforce, false)]), ["b", "a"], "each by what it denies");
        assert_eq!(named(&[("a", Audit, false), ("b", Audit, true)]), ["a", "b"]);
        assert_eq!(named(&[("a", Enforce, true), ("b", Enforce, true)]), ["a", "a"]);
    }

    #[test]
    fn labels_of_a_namespace_that_is_not_observed_may_match_until_it_is_found() {
        let labels = |team: &str| [("team".to_owned(), team.to_owned())].into_iter().collect();
        let matches = Match { namespace_selector: Some(labels("a")), ..Match::everything() };
        let policy = Policy { matches, validate: Validate::Enforce, strict: true, ..Policy::fallback() };
        let (policies, snapshot) = (Policies::new(vec![policy], Vec::new()), Snapshot::default());
        let context = ValidationContext { snapshot: &snapshot, own_account: Some("us"), settled: true };
        let found = |team: &str| {
            Some(Arc::new(Namespace { labels: [("team".to_owned(), team.to_owned())].into(), ..Namespace::default() }))
        };
        for (found, allowed) in [(None, false), (found("a"), false), (found("b"), true)] {
            let review = Review { found, ..parse(HEAD.as_bytes()).unwrap() };
            assert_eq!(validate_head(&review, &policies, context).is_allowed(), allowed, "{review:?}");
            assert_eq!(mutate_head(&review, &policies, context).is_allowed(), allowed, "{review:?}");
        }
    }

    #[test]
    fn strictest_policy_that_may_match_decides_head() {
        let review = parse(HEAD.as_bytes()).unwrap();
        let snapshot = Snapshot::default();
        let context = ValidationContext { snapshot: &snapshot, own_account: Some("us"), settled: true };
        let gold = Match {
            pod_selector: Some([("tier".to_owned(), "gold".to_owned())].into_iter().collect()),
            ..Match::everything()
        };
        let named = |name: &str| Match { namespaces: vec![Pattern::new(name)], ..Match::everything() };
        let policy = |matches, validate, strict| Policy { matches, validate, strict, ..Policy::fallback() };
        let allowed = |list: Vec<Policy>| {
            let policies = Policies::new(list, Vec::new());
            (
                validate_head(&review, &policies, context).is_allowed(),
                mutate_head(&review, &policies, context).is_allowed(),
            )
        };
        assert_eq!(allowed(vec![]), (true, true));
        assert_eq!(
            allowed(vec![policy(gold.clone(), Validate::Enforce, false)]),
            (false, true),
            "the pod may have tier=gold"
        );
        assert_eq!(allowed(vec![policy(gold.clone(), Validate::Audit, true)]), (true, false));
        assert_eq!(allowed(vec![policy(named("other"), Validate::Enforce, true)]), (true, true), "another namespace");
        let reached = vec![policy(named("team-*"), Validate::Warn, false), policy(gold, Validate::Enforce, true)];
        assert_eq!(allowed(reached), (true, true), "no policy after one that certainly matches");
        let trusted = Policies::new(vec![policy(named("team-*"), Validate::Enforce, false)], Vec::new())
            .with_trusted_writers(vec![Pattern::new("eve")]);
        assert!(validate_head(&review, &trusted, context).is_allowed());
    }
}
