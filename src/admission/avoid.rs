//! A required nodeAffinity against nodes that break executors (`NodeSelectorTerm` of `core/v1`, `nodeaffinity.go` of
//! `component-helpers`).
//!
//! The requirement selects by the name of the Node, which is the only field that `matchFields` supports, with one value per
//! requirement. Terms are alternatives, so each gets the requirements; a term without requirements matches no node and stays so.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::context::MutationContext;
use super::draft::Draft;
use super::mutation::Mutation;
use crate::annotations::MetadataField;
use crate::gang;
use crate::reason::Reason;

/// At most this many nodes are avoided by one pod.
const MAX_AVOIDED: usize = 100;
/// A longer affinity is not read: no scheduler is given one.
const MAX_AFFINITY: usize = 64 << 10;
const NAME: &str = "metadata.name";
const HOSTNAME: &str = "kubernetes.io/hostname";
const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";

/// Lets an executor avoid the suspect nodes, unless that would separate it from its gang.
pub(super) fn suspect_nodes(context: &MutationContext<'_, '_>, draft: &mut Draft<'_>) {
    let avoided = &context.snapshot.avoided_nodes;
    let spec = &context.pod.spec;
    if avoided.is_empty() || spec.node_name.as_deref().is_some_and(|name| !name.is_empty()) {
        return;
    }
    if must_equal_others(context, draft) {
        return;
    }
    let pinned = spec.node_selector.as_ref().and_then(|labels| labels.get(HOSTNAME));
    if pinned.is_some_and(|name| avoided.contains(name)) {
        return;
    }
    let nodes: Vec<&Arc<str>> = avoided.iter().take(MAX_AVOIDED).collect();
    let Some(affinity) = merged(spec.affinity.as_deref(), &nodes) else { return };
    draft.mutations.push(Mutation::Affinity(affinity));
    let names = nodes.iter().take(3).map(|name| name.to_string()).collect::<Vec<_>>().join(", ");
    let more = if nodes.len() > 3 { format!(" and {} more", nodes.len() - 3) } else { String::new() };
    draft.note(Reason::NodesAvoided, format!("the executor avoids nodes on which executors fail: {names}{more}"));
}

/// Whether the executor's group requires pods of one shape: Kueue's role hash includes the affinity, and the placeholders of
/// YuniKorn copy that of the pod which declares the task groups.
fn must_equal_others(context: &MutationContext<'_, '_>, draft: &Draft<'_>) -> bool {
    let is_set = |place: MetadataField, key: &str| {
        let sets = |mutation: &Mutation| match mutation {
            Mutation::SetMetadata(at, set, _) => *at == place && *set == key,
            _ => false,
        };
        let own = place.of(&context.pod.metadata).as_ref().is_some_and(|entries| entries.get(key).is_some());
        own || draft.mutations.iter().any(sets)
    };
    let mut keys = gang::TABLE.iter().flat_map(|scheduler| scheduler.keeps_affinity);
    keys.any(|(place, key)| is_set(*place, key))
}

/// The affinity of a pod with these nodes avoided; `None` if it avoids them already, or cannot.
pub(super) fn merged(affinity: Option<&str>, nodes: &[&Arc<str>]) -> Option<String> {
    let mut affinity: Value = match affinity {
        Some(raw) if raw.len() > MAX_AFFINITY => return None,
        Some(raw) => serde_json::from_str(raw).ok()?,
        None => Value::Null,
    };
    let before = affinity.clone();
    let required = at_object(at_object(as_object(&mut affinity)?, "nodeAffinity")?, REQUIRED)?;
    let terms = required.entry("nodeSelectorTerms").or_insert_with(|| json!([{"matchFields": []}]));
    let is_new = before.pointer(&format!("/nodeAffinity/{REQUIRED}/nodeSelectorTerms")).is_none();
    for term in terms.as_array_mut()? {
        let term = as_object(term)?;
        let count = |key: &str| term.get(key).and_then(Value::as_array).map_or(0, Vec::len);
        if !is_new && count("matchExpressions") + count("matchFields") == 0 {
            continue;
        }
        let fields = term.entry("matchFields").or_insert(Value::Null);
        if fields.is_null() {
            *fields = json!([]);
        }
        let fields = fields.as_array_mut()?;
        // A term for one certain node stays as it is: avoiding that node would leave none.
        if fields.iter().any(|field| is_about(field, "In")) {
            continue;
        }
        for node in nodes {
            let avoids = json!({"key": NAME, "operator": "NotIn", "values": [&***node]});
            if !fields.contains(&avoids) {
                fields.push(avoids);
            }
        }
    }
    (affinity != before).then(|| affinity.to_string())
}

fn is_about(field: &Value, operator: &str) -> bool {
    field.get("key").and_then(Value::as_str) == Some(NAME)
        && field.get("operator").and_then(Value::as_str) == Some(operator)
}

/// An object, or one in place of null.
fn as_object(value: &mut Value) -> Option<&mut Map<String, Value>> {
    if value.is_null() {
        *value = Value::Object(Map::new());
    }
    value.as_object_mut()
}

fn at_object<'v>(object: &'v mut Map<String, Value>, key: &str) -> Option<&'v mut Map<String, Value>> {
    as_object(object.entry(key).or_insert(Value::Null))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(affinity: &Value, nodes: &[&str]) -> Option<Value> {
        let nodes: Vec<Arc<str>> = nodes.iter().map(|name| Arc::from(*name)).collect();
        let text = (!affinity.is_null()).then(|| affinity.to_string());
        let merged = merged(text.as_deref(), &nodes.iter().collect::<Vec<_>>())?;
        Some(serde_json::from_str(&merged).expect("JSON"))
    }

    fn not_in(name: &str) -> Value {
        json!({"key": NAME, "operator": "NotIn", "values": [name]})
    }

    fn required(terms: &Value) -> Value {
        json!({"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}})
    }

    #[test]
    fn pod_without_affinity_gets_one_term() {
        let expected = required(&json!([{"matchFields": [not_in("a"), not_in("b")]}]));
        assert_eq!(with(&Value::Null, &["a", "b"]), Some(expected.clone()));
        assert_eq!(with(&json!({}), &["a", "b"]), Some(expected.clone()));
        assert_eq!(with(&json!({"nodeAffinity": null}), &["a", "b"]), Some(expected.clone()));
        assert_eq!(with(&expected, &["a", "b"]), None, "a reinvocation changes nothing");
        assert_eq!(with(&expected, &["b"]), None);
    }

    #[test]
    fn each_term_gets_the_requirements_and_everything_else_stays() {
        let zone = json!({"key": "zone", "operator": "In", "values": ["x"]});
        let spread = json!([{"weight": 1, "podAffinityTerm": {"topologyKey": "h"}}]);
        let preferred = json!([{"weight": 5, "preference": {"matchExpressions": [zone]}}]);
        let before = json!({
            "podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": spread},
            "nodeAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": preferred,
                REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [zone]}, {"matchFields": [not_in("c")]}]},
            },
        });
        let after = with(&before, &["a"]).expect("a change");
        let mut expected = before.clone();
        expected["nodeAffinity"][REQUIRED]["nodeSelectorTerms"] = json!([
            {"matchExpressions": [zone], "matchFields": [not_in("a")]}, {"matchFields": [not_in("c"), not_in("a")]},
        ]);
        assert_eq!(after, expected);
    }

    #[test]
    fn empty_term_matches_nothing_and_stays_so() {
        for empty in [json!({}), json!({"matchExpressions": []}), json!({"matchExpressions": null, "matchFields": []})]
        {
            assert_eq!(with(&required(&json!([empty])), &["a"]), None, "{empty}");
            let zone = json!({"matchExpressions": [{"key": "zone", "operator": "Exists"}]});
            let after = with(&required(&json!([empty, zone])), &["a"]).expect("a change");
            let terms = &after["nodeAffinity"][REQUIRED]["nodeSelectorTerms"];
            assert_eq!((&terms[0], &terms[1]["matchFields"]), (&empty, &json!([not_in("a")])));
        }
        assert_eq!(with(&required(&json!([])), &["a"]), None);
    }

    #[test]
    fn term_for_one_node_stays_and_malformed_affinity_is_left_to_the_api_server() {
        let pinned = json!({"matchFields": [{"key": NAME, "operator": "In", "values": ["a"]}]});
        assert_eq!(with(&required(&json!([pinned])), &["a"]), None);
        for odd in [json!([]), json!("x"), json!({"nodeAffinity": 5}), required(&json!({})), required(&json!([5]))] {
            assert_eq!(with(&odd, &["a"]), None, "{odd}");
        }
    }
}
