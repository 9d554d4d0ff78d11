//! Label and field selectors as they come in a URL (apimachinery `labels.Parse`, `fields.ParseSelector`).

use std::collections::{BTreeMap, BTreeSet};

use kube::core::{Expression, Selector, SelectorExt};
use serde_json::Value;

use super::error::{ApiError, Result};
use super::resource::Resource;
use super::store::Stored;
use usher_spark::json;

/// Filter of a list or a watch.
#[derive(Clone, Debug, Default)]
pub(super) struct Filter {
    labels: Selector,
    /// Path, value, and whether the comparison is `=` or `!=`.
    fields: Vec<(String, String, bool)>,
}

impl Filter {
    pub(super) fn parse(resource: &Resource, labels: Option<&str>, fields: Option<&str>) -> Result<Filter> {
        let labels = parse_labels(labels.unwrap_or_default()).map_err(ApiError::bad_request)?;
        let fields = parse_fields(fields.unwrap_or_default()).map_err(ApiError::bad_request)?;
        for (path, ..) in &fields {
            if !is_supported(resource, path) {
                return Err(ApiError::bad_request(format!("field label not supported: {path}")));
            }
        }
        Ok(Filter { labels, fields })
    }

    pub(super) fn matches(&self, object: &Stored) -> bool {
        if !self.labels.matches(&object.labels) {
            return false;
        }
        let mut parsed: Option<Value> = None;
        self.fields.iter().all(|(path, wanted, equal)| {
            let found = match path.as_str() {
                "metadata.name" => object.key.1.clone(),
                "metadata.namespace" => object.key.0.clone(),
                _ => field(parsed.get_or_insert_with(|| object.value()), path),
            };
            (found == *wanted) == *equal
        })
    }
}

/// Fields besides name and namespace; others are refused, as in kube-apiserver.
fn is_supported(resource: &Resource, path: &str) -> bool {
    const POD: [&str; 7] = [
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.serviceAccountName",
        "spec.hostNetwork",
        "status.phase",
        "status.podIP",
    ];
    const EVENT: [&str; 12] = [
        "involvedObject.kind",
        "involvedObject.namespace",
        "involvedObject.name",
        "involvedObject.uid",
        "involvedObject.apiVersion",
        "involvedObject.resourceVersion",
        "involvedObject.fieldPath",
        "reason",
        "reportingComponent",
        "source",
        "type",
        "regarding.name",
    ];
    path == "metadata.name"
        || (resource.namespaced && path == "metadata.namespace")
        || (resource.is_pods()
            && (POD.contains(&path) || path == "status.nominatedNodeName" || path == "status.podIPs"))
        || (resource.plural == "events" && EVENT.contains(&path))
        || (resource.is("", "secrets") && path == "type")
        || (resource.is("", "namespaces") && path == "status.phase")
        || (resource.is("", "nodes") && path == "spec.unschedulable")
}

fn field(object: &Value, path: &str) -> String {
    let path: Vec<&str> = match path {
        "source" => vec!["source", "component"],
        "status.podIPs" => vec!["status", "podIP"],
        _ => path.split('.').collect(),
    };
    match json::at(object, &path) {
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
        None => {
            if path == ["spec", "hostNetwork"] {
                "false".to_owned()
            } else {
                String::new()
            }
        }
    }
}

fn parse_fields(text: &str) -> std::result::Result<Vec<(String, String, bool)>, String> {
    let mut all = Vec::new();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (path, value, equal) = if let Some((path, value)) = part.split_once("!=") {
            (path, value, false)
        } else if let Some((path, value)) = part.split_once("==").or_else(|| part.split_once('=')) {
            (path, value, true)
        } else {
            return Err(format!("invalid selector: '{part}'; can't understand '{part}'"));
        };
        all.push((path.to_owned(), value.replace("\\,", ",").replace("\\=", "="), equal));
    }
    Ok(all)
}

/// `a=b,c!=d,e in (f,g),h notin (i),j,!k`.
pub(super) fn parse_labels(text: &str) -> std::result::Result<Selector, String> {
    let mut selector = Selector::default();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let (expression, after) = requirement(rest)?;
        selector.extend(expression);
        rest = after.trim_start();
        match rest.strip_prefix(',') {
            Some(more) => rest = more.trim_start(),
            None if rest.is_empty() => {}
            None => {
                return Err(format!("unable to parse requirement: found '{rest}', expected: ',' or 'end of string'"));
            }
        }
    }
    Ok(selector)
}

fn requirement(text: &str) -> std::result::Result<(Expression, &str), String> {
    if let Some(rest) = text.strip_prefix('!') {
        let (key, rest) = token(rest)?;
        return Ok((Expression::DoesNotExist(key), rest));
    }
    let (key, rest) = token(text)?;
    let rest = rest.trim_start();
    for (operator, equal) in [("!=", false), ("==", true), ("=", true)] {
        if let Some(rest) = rest.strip_prefix(operator) {
            let rest = rest.trim_start();
            let end = rest.find([',', ' ', '(', ')', '=', '!']).unwrap_or(rest.len());
            let (value, rest) = rest.split_at(end);
            if rest.starts_with(['(', ')', '=', '!']) {
                return Err(format!("unable to parse requirement: found '{}', expected: identifier", &rest[..1]));
            }
            let make = if equal { Expression::Equal } else { Expression::NotEqual };
            return Ok((make(key, value.to_owned()), rest));
        }
    }
    for (word, is_in) in [("notin", false), ("in", true)] {
        if let Some(rest) = rest.strip_prefix(word).filter(|rest| rest.starts_with([' ', '('])) {
            let inner = rest.trim_start().strip_prefix('(').ok_or("unable to parse requirement: expected '('")?;
            let (values, rest) = inner.split_once(')').ok_or("unable to parse requirement: expected ')'")?;
            let values: BTreeSet<String> = values.split(',').map(|value| value.trim().to_owned()).collect();
            let make = if is_in { Expression::In } else { Expression::NotIn };
            return Ok((make(key, values), rest));
        }
    }
    Ok((Expression::Exists(key), rest))
}

fn token(text: &str) -> std::result::Result<(String, &str), String> {
    let end = text.find(|c: char| !(c.is_ascii_alphanumeric() || "-_./".contains(c))).unwrap_or(text.len());
    let (key, rest) = text.split_at(end);
    if key.is_empty() {
        let found: String = text.chars().take(1).collect();
        return Err(format!("unable to parse requirement: found '{found}', expected: identifier"));
    }
    Ok((key.to_owned(), rest))
}

/// Matches a `LabelSelector` object against labels, as webhook configurations use it. A missing selector matches everything.
pub(super) fn object_matches(
    selector: Option<&Value>,
    labels: &BTreeMap<String, String>,
) -> std::result::Result<bool, String> {
    let Some(selector) = selector.filter(|selector| !selector.is_null()) else { return Ok(true) };
    let parsed: k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector =
        serde_json::from_value(selector.clone()).map_err(|error| error.to_string())?;
    let selector: Selector = parsed.try_into().map_err(|error: kube::core::ParseExpressionError| error.to_string())?;
    Ok(selector.matches(labels))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    #[test]
    fn label_selector_matches_as_in_kubernetes_and_malformed_one_is_rejected() {
        let pod = labels(&[("spark-app-selector", "s"), ("spark-role", "executor")]);
        for (selector, matches) in [
            ("", true),
            ("spark-app-selector=s,spark-role=executor,spark-exec-inactive!=true", true),
            ("spark-role==driver", false),
            ("spark-role in (driver,executor)", true),
            ("spark-role in (driver, executor), spark-exec-id", false),
            ("spark-role notin (driver)", true),
            ("!spark-exec-id", true),
            ("spark-role", true),
            ("x!=y", true),
            ("x=", false),
        ] {
            assert_eq!(parse_labels(selector).unwrap().matches(&pod), matches, "{selector}");
        }
        for bad in ["a=(", "=b", "a in b", "a in (b", ",", "a b"] {
            assert!(parse_labels(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn field_selector_parses_equality_and_inequality() {
        assert_eq!(
            parse_fields("metadata.name=a,status.phase!=Running").unwrap(),
            [("metadata.name".into(), "a".into(), true), ("status.phase".into(), "Running".into(), false)]
        );
        assert!(parse_fields("nonsense").is_err());
    }
}
