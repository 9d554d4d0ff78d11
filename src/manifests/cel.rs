//! CEL text that the admission policies share ([`creator_policy`](super::creator_policy),
//! [`fallback_policy`](super::fallback_policy), [`validating_policy`](super::validating_policy)). The chart's helpers generate the
//! same.

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

/// The variables of a request: metadata of the new and the old object, empty if there is none, and the requester.
pub(super) fn request() -> Vec<(String, String)> {
    let mut out = Vec::new();
    let mut add = |name: &str, expression: String| out.push((name.to_owned(), expression));
    for (name, path) in [("labels", "labels"), ("annotations", "annotations")] {
        add(name, format!("has(object.metadata.{path}) ? object.metadata.{path} : {{}}"));
    }
    for (name, path) in [("oldLabels", "labels"), ("oldAnnotations", "annotations")] {
        add(
            name,
            format!(
                r#"request.operation == "UPDATE" && has(oldObject.metadata.{path}) ? oldObject.metadata.{path} : {{}}"#
            ),
        );
    }
    add("username", r#"has(request.userInfo.username) ? request.userInfo.username : """#.to_owned());
    add("groups", "has(request.userInfo.groups) ? request.userInfo.groups : []".to_owned());
    for (name, key) in [("podNames", "pod-name"), ("podUids", "pod-uid")] {
        let key = format!("authentication.kubernetes.io/{key}");
        add(
            name,
            format!(
                r#"has(request.userInfo.extra) && "{key}" in request.userInfo.extra ? request.userInfo.extra["{key}"] : []"#
            ),
        );
    }
    out
}

/// A tenant's text if it is short and printable, otherwise a substitute for it, for messages.
pub(super) fn shown(text: &str, exists: &str, otherwise: &str) -> String {
    format!(r#"{exists} && {text}.size() <= 253 && {text}.matches("^[ -~]+$") ? string({text}) : {}"#, quote(otherwise))
}

/// The keys of a constant list whose entries differ between two maps.
pub(super) fn changed(keys: &[&str], new: &str, old: &str) -> String {
    let (new, old) = (format!("variables.{new}"), format!("variables.{old}"));
    format!("{}.filter(key, (key in {new}) != (key in {old}) || key in {new} && {new}[key] != {old}[key])", json!(keys))
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
