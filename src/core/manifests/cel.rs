//! CEL text that the admission policies share ([`creator_policy`](super::creator_policy),
//! [`fallback_policy`](super::fallback_policy), [`validating_policy`](super::validating_policy)).

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube_core::Selector;
use serde_json::{Value, json};

/// Names with `*` and `?` as one regular expression (RE2). As in [`Pattern`](crate::policy::Pattern), a wildcard also matches a
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

/// Whether texts are the name and the uid of a pod ([`resolve::creator`](crate::ownership::resolve::creator)).
pub(super) fn is_pod(name: &str, uid: &str) -> String {
    const PART: &str = "[a-z0-9]([a-z0-9-]*[a-z0-9])?";
    format!(
        r#"{name}.size() <= 253 && {name}.matches("^{PART}([.]{PART})*$") && {uid}.matches("^[A-Za-z0-9-]{{1,128}}$")"#
    )
}

/// The most links of a chain in one variable.
const MAX_LINKS: usize = 16;
/// The length of a variable's links, in bytes, after which the next variable begins.
const MAX_LENGTH: usize = 20_000;

/// Variables, each after those that it uses. The API server evaluates only those that are used.
pub(super) struct Variables(Vec<(String, String)>);

impl Variables {
    pub(super) fn add(&mut self, name: &str, expression: String) {
        self.0.push((name.to_owned(), expression));
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(known, _)| known == name)
    }

    pub(super) fn into_manifest(self) -> Vec<Value> {
        self.0.into_iter().map(|(name, expression)| json!({"name": name, "expression": expression})).collect()
    }

    /// Adds a chain of conditions with values, and returns an expression of the value of the first that holds, or the other one.
    ///
    /// A variable holds several links: each evaluation of a variable costs an API server about 0.1 ms. None holds all, because an
    /// expression has limits of length and depth.
    pub(super) fn add_chain(&mut self, name: &str, links: &[(String, String)], otherwise: String) -> String {
        let mut blocks: Vec<Vec<(usize, &(String, String))>> = Vec::new();
        for link in links.iter().enumerate() {
            let length = |block: &[(usize, &(String, String))]| -> usize {
                block.iter().map(|(_, (condition, value))| condition.len() + value.len()).sum()
            };
            match blocks.last_mut() {
                Some(block) if block.len() < MAX_LINKS && length(block) < MAX_LENGTH => block.push(link),
                _ => blocks.push(vec![link]),
            }
        }
        // A variable can use those before it: the chain begins with its end.
        blocks.iter().rev().fold(otherwise, |next, block| {
            let expression = block
                .iter()
                .rev()
                .fold(next, |next, (_, (condition, value))| format!("{condition} ? {value} : {next}"));
            let name = format!("{name}{}", block.first().map_or(0, |(number, _)| *number));
            self.add(&name, expression);
            format!("variables.{name}")
        })
    }

    /// Those that these validations or other variables use.
    pub(super) fn used_by(self, validations: &[Value]) -> Vec<Value> {
        let used = |name: &str| {
            let used = format!("variables.{name}");
            let later = self.0.iter().any(|(_, expression)| expression.contains(&used));
            later || validations.iter().any(|validation| validation.to_string().contains(&used))
        };
        let used = self.0.iter().filter(|(name, _)| used(name));
        used.map(|(name, expression)| json!({"name": name, "expression": expression})).collect()
    }

    /// Those of a request: metadata of the new and the old object, empty if there is none, and the requester.
    pub(super) fn of_request() -> Variables {
        let mut out = Variables(Vec::new());
        for (name, path) in [("labels", "labels"), ("annotations", "annotations")] {
            out.add(name, format!("has(object.metadata.{path}) ? object.metadata.{path} : {{}}"));
        }
        for (name, path) in [("oldLabels", "labels"), ("oldAnnotations", "annotations")] {
            out.add(
                name,
                format!(
                    r#"request.operation == "UPDATE" && has(oldObject.metadata.{path}) ? oldObject.metadata.{path} : {{}}"#
                ),
            );
        }
        out.add("username", r#"has(request.userInfo.username) ? request.userInfo.username : """#.to_owned());
        out.add("groups", "has(request.userInfo.groups) ? request.userInfo.groups : []".to_owned());
        for (name, key) in [("podNames", "pod-name"), ("podUids", "pod-uid")] {
            let key = format!("authentication.kubernetes.io/{key}");
            out.add(
                name,
                format!(
                    r#"has(request.userInfo.extra) && "{key}" in request.userInfo.extra ? request.userInfo.extra["{key}"] : []"#
                ),
            );
        }
        out
    }
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

/// The requirements of a selector on a map of labels, one condition each.
pub(super) fn selects(selector: &Option<Selector>, labels: &str) -> Vec<String> {
    let condition = |requirement: Value| {
        let text = |key: &str| requirement.get(key).and_then(Value::as_str).unwrap_or_default();
        let key = quote(text("key"));
        let exists = format!("{key} in {labels}");
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
        let regex = |pattern: &str| any_of(std::iter::once(pattern.to_owned()));
        assert_eq!(regex("system:serviceaccount:vcluster-*:*"), "(?s)^(?:system:serviceaccount:vcluster-.*:.*)$");
        assert_eq!(regex("a.b?c+"), r"(?s)^(?:a\.b.c\+)$");
        assert_eq!(regex(r"a^b\]"), r"(?s)^(?:a\^b\\\])$");
        assert_eq!(regex("é*"), "(?s)^(?:é.*)$");
        assert_eq!(any_of(["a*".to_owned(), "b.c".to_owned()].into_iter()), r"(?s)^(?:a.*|b\.c)$");
    }
}
