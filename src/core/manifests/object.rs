//! What the admission policies that follow the policy file have in common: kinds, names, labels and annotations.

use ring::digest::{SHA256, digest};
use serde_json::{Value, json};

use crate::annotations::{self, MANAGED_BY, USHER};
use usher_spark::text::is_dns_part;

/// The API group of admission policies and webhook configurations.
pub const GROUP: &str = "admissionregistration.k8s.io";
/// The last part of the objects' names, by which alerts and the dashboard select them.
pub const SUFFIX: &str = ".spark-usher.io";
/// The kind of a validating policy.
pub const VALIDATING: &str = "ValidatingAdmissionPolicy";
/// The kind of its binding.
pub const VALIDATING_BINDING: &str = "ValidatingAdmissionPolicyBinding";
/// The kind of a mutating policy.
pub const MUTATING: &str = "MutatingAdmissionPolicy";
/// The kind of its binding.
pub const MUTATING_BINDING: &str = "MutatingAdmissionPolicyBinding";
/// Each kind and its plural name.
pub const KINDS: [(&str, &str); 4] = [
    (VALIDATING, "validatingadmissionpolicies"),
    (VALIDATING_BINDING, "validatingadmissionpolicybindings"),
    (MUTATING, "mutatingadmissionpolicies"),
    (MUTATING_BINDING, "mutatingadmissionpolicybindings"),
];

/// Whether a kind is that of a validating policy or of its binding.
pub fn is_validating(kind: &str) -> bool {
    [VALIDATING, VALIDATING_BINDING].contains(&kind)
}

/// Why no admission policies of a policy file are possible.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The name of an object would be invalid.
    #[error("{0:?} is not a valid object name: expected a-z, 0-9 and -, with a letter or digit at both ends")]
    Name(String),
    /// Not a user name.
    #[error(
        "invalid account {0:?}: expected a user name of the API server, such as system:serviceaccount:NAMESPACE:NAME"
    )]
    Account(String),
    /// An object would be larger than API servers accept.
    #[error(
        "{name} would have {size} bytes: expected at most {MAX_SIZE}, so fewer policies, or fewer and shorter names and selectors in them"
    )]
    Size {
        /// The object's name.
        name: String,
        /// Its size in bytes, as JSON.
        size: usize,
    },
    /// An expression would be longer than API servers compile.
    #[error(
        "expression {expression} of {name} would have {length} characters: expected at most {MAX_EXPRESSION}, so fewer and shorter names and selectors in the policy"
    )]
    Expression {
        /// The object's name.
        name: String,
        /// The name of the variable or condition.
        expression: String,
        /// Its length, in characters.
        length: usize,
    },
}

/// The largest object in bytes: etcd refuses requests of more than 1.5 MiB (`--max-request-bytes`), and what other clients add to
/// `managedFields` counts, too.
pub const MAX_SIZE: usize = 1_000_000;
/// The longest expression in characters: cel-go parses no more than 100,000 (`parser/options.go`, `ExpressionSizeCodePointLimit`).
pub(crate) const MAX_EXPRESSION: usize = 100_000;

/// An object of a set whose content has this hash. The label selects the objects to watch; only those of our names are ours.
pub(super) fn object(kind: &str, name: &str, hash: &str, spec: Value) -> Value {
    json!({
        "apiVersion": format!("{GROUP}/v1"), "kind": kind,
        "metadata": {
            "name": name, "labels": {MANAGED_BY: USHER},
            "annotations": {annotations::POLICY_HASH: hash, annotations::VERSION: env!("CARGO_PKG_VERSION")},
        },
        "spec": spec,
    })
}

/// The first 16 hex digits of the SHA-256 of a document.
pub(super) fn hash(document: &Value) -> String {
    digest(&SHA256, document.to_string().as_bytes()).as_ref().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// Checks the first part of the objects' names.
pub(super) fn check_name(name: &str) -> Result<(), Refused> {
    if name.len() <= 200 && is_dns_part(name) { Ok(()) } else { Err(Refused::Name(name.to_owned())) }
}

/// Checks that API servers accept a policy of this size.
pub(super) fn check_size(name: &str, spec: &Value) -> Result<(), Refused> {
    let size = spec.to_string().len();
    if size > MAX_SIZE {
        return Err(Refused::Size { name: name.to_owned(), size });
    }
    let lists = ["variables", "matchConditions"].into_iter().flat_map(|key| usher_spark::json::list(spec, &[key]));
    for named in lists {
        let text = |key: &str| usher_spark::json::text(named, &[key]);
        let length = text("expression").chars().count();
        if length > MAX_EXPRESSION {
            return Err(Refused::Expression { name: name.to_owned(), expression: text("name").to_owned(), length });
        }
    }
    Ok(())
}
