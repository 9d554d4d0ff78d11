//! CEL text that both kinds of admission policies use ([`fallback_policy`](super::fallback_policy),
//! [`validating_policy`](super::validating_policy)). The chart's helpers generate the same.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::core::Selector;
use serde_json::{Value, json};

/// A name with `*` and `?` as a regular expression (RE2).
pub(super) fn regex(pattern: &str) -> String {
    format!("^{}$", body(pattern))
}

/// Names with `*` and `?` as one regular expression. As in [`Pattern`](crate::policy::Pattern), a wildcard also matches a
/// line break.
pub(super) fn any_of(patterns: impl Iterator<Item = String>) -> String {
    let bodies: Vec<String> = patterns.map(|pattern| body(&pattern)).collect();
    format!("(?s)^(?:{})$", bodies.join("|"))
}

fn body(pattern: &str) -> String {
    let mut out = String::new();
    for c in pattern.chars() {
        match c {
            '*' => out.push_str(".*"),
            '?' => out.push('.'),
            // RE2 does not accept escapes of non-ASCII characters.
            c if c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | ':' | '/' | ' ') || !c.is_ascii() => out.push(c),
            c => out.extend(['\\', c]),
        }
    }
    out
}

/// A string literal.
pub(super) fn quote(text: &str) -> String {
    json!(text).to_string()
}

/// The requirements of a selector, as `matchExpressions`.
pub(super) fn requirements(selector: &Option<Selector>) -> Vec<Value> {
    let selector = selector.clone().map(LabelSelector::from).unwrap_or_default();
    let equal = selector.match_labels.unwrap_or_default().into_iter();
    let equal = equal.map(|(key, value)| json!({"key": key, "operator": "In", "values": [value]}));
    let more = selector.match_expressions.unwrap_or_default();
    let more = more.into_iter().filter_map(|requirement| serde_json::to_value(requirement).ok());
    equal.chain(more).collect()
}

/// The requirements of a selector on the labels at a path, one condition each. A missing map has no label.
pub(super) fn selects(selector: &Option<Selector>, labels: &str) -> Vec<String> {
    let condition = |requirement: Value| {
        let text = |key: &str| requirement.get(key).and_then(Value::as_str).unwrap_or_default();
        let key = quote(text("key"));
        let exists = format!("has({labels}) && {key} in {labels}");
        let values = requirement.get("values").cloned().unwrap_or_else(|| json!([]));
        match text("operator") {
            "In" => format!("({exists} && {labels}[{key}] in {values})"),
            "NotIn" => format!("!({exists} && {labels}[{key}] in {values})"),
            "Exists" => format!("({exists})"),
            _ => format!("!({exists})"),
        }
    };
    requirements(selector).into_iter().map(condition).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs_become_regular_expressions() {
        assert_eq!(regex("system:serviceaccount:vcluster-*:*"), "^system:serviceaccount:vcluster-.*:.*$");
        assert_eq!(regex("a.b?c+"), r"^a\.b.c\+$");
        assert_eq!(regex(r"a^b\]"), r"^a\^b\\\]$");
        assert_eq!(regex("é*"), "^é.*$");
        assert_eq!(any_of(["a*".to_owned(), "b.c".to_owned()].into_iter()), r"(?s)^(?:a.*|b\.c)$");
    }
}
