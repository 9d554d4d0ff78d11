//! Node selector terms of a pod's nodeAffinity (`NodeSelectorTerm` of `core/v1`, `nodeaffinity.go` of `component-helpers`).

use serde_json::Value;

/// The only field that `matchFields` supports.
pub const NAME: &str = "metadata.name";

/// Whether a term matches a node of this name, whose labels are read by `label`. An empty term matches none, and so does one that is not
/// understood.
pub fn matches<'n>(term: &Value, name: &'n str, label: impl Fn(&str) -> Option<&'n str>) -> bool {
    let list = |key: &str| term.get(key).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let (expressions, fields) = (list("matchExpressions"), list("matchFields"));
    let field = |key: &str| (key == NAME).then_some(name);
    !(expressions.is_empty() && fields.is_empty())
        && expressions.iter().all(|requirement| is_met(requirement, &label))
        && fields.iter().all(|requirement| is_met(requirement, field))
}

/// A requirement of a term (`labels.Requirement` of apimachinery).
fn is_met<'n>(requirement: &Value, of: impl Fn(&str) -> Option<&'n str>) -> bool {
    let text = |key: &str| requirement.get(key).and_then(Value::as_str).unwrap_or_default();
    let own = of(text("key"));
    let values = || requirement.get("values").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
    let number = |text: &str| text.parse::<i64>().ok();
    let compare = || Some((number(own?)?, number(values().next()?)?));
    match text("operator") {
        "In" => own.is_some_and(|own| values().any(|value| value == own)),
        "NotIn" => own.is_none_or(|own| values().all(|value| value != own)),
        "Exists" => own.is_some(),
        "DoesNotExist" => own.is_none(),
        "Gt" => compare().is_some_and(|(own, than)| own > than),
        "Lt" => compare().is_some_and(|(own, than)| own < than),
        _ => false,
    }
}
