//! A required nodeAffinity against nodes that break executors ([`node_terms`]).
//!
//! The requirement selects by the name of the Node, which is the only field that `matchFields` supports, with one value per
//! requirement. Terms are alternatives, so each gets the requirements; a term without requirements matches no node and stays so.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::context::MutationContext;
use super::draft::Draft;
use super::mutation::Mutation;
use crate::annotations::MetadataField;
use crate::gang;
use crate::reason::Reason;
use crate::snapshot::{Node, Snapshot};
use crate::spark::node_terms::{self, NAME};
use crate::spark::pod::Pod;
use crate::spark::text::{Entries, Text};

/// At most this many nodes are avoided by one pod.
const MAX_AVOIDED: usize = 100;
/// A longer affinity is not read: no scheduler is given one.
const MAX_AFFINITY: usize = 64 << 10;
const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";

/// Lets an executor avoid the suspect nodes, unless that would separate it from its gang or from its volume, and as long as at least as
/// many other nodes remain that it may use.
pub(super) fn suspect_nodes(context: &MutationContext<'_, '_>, draft: &mut Draft<'_>) {
    let avoided = &context.snapshot.avoided_nodes;
    let spec = &context.pod.spec;
    if avoided.is_empty() || spec.node_name.as_deref().is_some_and(|name| !name.is_empty()) {
        return;
    }
    if must_equal_others(context, draft) || mounts_other_claim(context.pod) {
        return;
    }
    let affinity = match spec.affinity.as_deref() {
        Some(raw) if raw.len() > MAX_AFFINITY => return,
        Some(raw) => match serde_json::from_str(raw) {
            Ok(affinity) => affinity,
            Err(_) => return,
        },
        None => Value::Null,
    };
    let nodes = avoidable(context.snapshot, spec.node_selector.as_ref(), &affinity);
    if nodes.is_empty() {
        return;
    }
    let Some(affinity) = merged(affinity, &nodes) else { return };
    draft.mutations.push(Mutation::Affinity(affinity));
    let names = nodes.iter().take(3).map(|name| name.to_string()).collect::<Vec<_>>().join(", ");
    let more = if nodes.len() > 3 { format!(" and {} more", nodes.len() - 3) } else { String::new() };
    draft.note(Reason::NodesAvoided, format!("the executor avoids nodes on which executors fail: {names}{more}"));
}

/// The suspect nodes that the pod can avoid. Where it may use few nodes only, such as those of a pool or the one that it names, at least
/// as many that are not suspect must remain: its affinity cannot be changed later.
fn avoidable<'s>(snapshot: &'s Snapshot, selector: Option<&Entries<'_>>, affinity: &Value) -> Vec<&'s Arc<str>> {
    let avoided = &snapshot.avoided_nodes;
    let terms = affinity.pointer(&format!("/nodeAffinity/{REQUIRED}/nodeSelectorTerms")).and_then(Value::as_array);
    if terms.is_none() && selector.is_none_or(Entries::is_empty) {
        return avoided.iter().take(MAX_AVOIDED).collect();
    }
    let may_use = |name: &str, node: &Node| {
        let is_selected = selector.is_none_or(|selector| {
            selector.iter().all(|(key, value)| node.labels.get(key).is_some_and(|own| **own == *value))
        });
        is_selected
            && terms.is_none_or(|terms| {
                terms
                    .iter()
                    .any(|term| node_terms::matches(term, name, |key| node.labels.get(key).map(|value| &**value)))
            })
    };
    let suspect = avoided.iter().filter(|name| snapshot.nodes.get(*name).is_some_and(|node| may_use(name, node)));
    let mut suspect: Vec<&Arc<str>> = suspect.take(MAX_AVOIDED).collect();
    let is_other =
        |(name, node): &(&Arc<str>, &Arc<Node>)| !avoided.contains(*name) && !node.cordoned && may_use(name, node);
    suspect.truncate(snapshot.nodes.iter().filter(is_other).take(suspect.len()).count());
    suspect
}

/// Whether the pod mounts a claim that was not made for it: its volume may exist on one node only. Spark names the claims that it creates
/// for an executor after the executor's pod, and lets a replacement mount the claim of its predecessor.
fn mounts_other_claim(pod: &Pod<'_>) -> bool {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Volume<'a> {
        #[serde(borrow, default)]
        persistent_volume_claim: Option<Claim<'a>>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Claim<'a> {
        #[serde(borrow, default)]
        claim_name: Text<'a>,
    }
    let Some(volumes) = pod.spec.volumes else { return false };
    let own = pod.metadata.name.as_deref().unwrap_or_default();
    let is_own = |claim: &Text<'_>| claim.strip_prefix(own).is_some_and(|rest| rest.starts_with("-pvc-"));
    match serde_json::from_str::<Option<Vec<Volume<'_>>>>(volumes) {
        Ok(volumes) => {
            let claims = volumes.into_iter().flatten().filter_map(|volume| volume.persistent_volume_claim);
            claims.into_iter().any(|claim| own.is_empty() || !is_own(&claim.claim_name))
        }
        Err(_) => true,
    }
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

/// This affinity with these nodes avoided; `None` if it avoids them already, or cannot.
fn merged(mut affinity: Value, nodes: &[&Arc<str>]) -> Option<String> {
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
        let merged = merged(affinity.clone(), &nodes.iter().collect::<Vec<_>>())?;
        Some(serde_json::from_str(&merged).expect("JSON"))
    }

    fn not_in(name: &str) -> Value {
        json!({"key": NAME, "operator": "NotIn", "values": [name]})
    }

    fn required(terms: &Value) -> Value {
        json!({"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}})
    }

    /// Nodes a to f; a and b are suspect. c and a are of the pool gpu, d is cordoned.
    fn snapshot() -> Snapshot {
        let node = |name: &str| {
            let mut labels =
                std::collections::BTreeMap::from([("kubernetes.io/hostname".into(), format!("host-{name}").into())]);
            if "ac".contains(name) {
                labels.insert("pool".into(), "gpu".into());
            }
            labels.insert("disks".into(), if name == "b" { "8".into() } else { "2".into() });
            Arc::new(Node { uid: name.into(), kubelet: "v1".into(), ready: true, cordoned: name == "d", labels })
        };
        let mut snapshot = Snapshot::default();
        snapshot.nodes = ["a", "b", "c", "d", "e", "f"].into_iter().map(|name| (Arc::from(name), node(name))).collect();
        snapshot.avoided_nodes = ["a", "b"].into_iter().map(Arc::from).collect();
        snapshot
    }

    fn avoided_with(selector: &Value, terms: Option<&Value>) -> Vec<String> {
        let (snapshot, text) = (snapshot(), selector.to_string());
        let selector: Option<Entries<'_>> = serde_json::from_str(&text).expect("labels");
        let affinity = terms.map_or(Value::Null, required);
        avoidable(&snapshot, selector.as_ref(), &affinity).into_iter().map(|name| name.to_string()).collect()
    }

    #[test]
    fn pod_avoids_a_node_only_if_as_many_others_remain_that_it_may_use() {
        let expression = |key: &str, operator: &str, values: &[&str]| json!([{"matchExpressions": [{"key": key, "operator": operator, "values": values}]}]);
        for (selector, terms, expected) in [
            (Value::Null, None, vec!["a", "b"]),
            (json!({}), None, vec!["a", "b"]),
            // A pool of a and c.
            (json!({"pool": "gpu"}), None, vec!["a"]),
            (Value::Null, Some(expression("pool", "Exists", &[])), vec!["a"]),
            (Value::Null, Some(expression("pool", "DoesNotExist", &[])), vec!["b"]),
            // One certain node, whose name may differ from its host's.
            (json!({"kubernetes.io/hostname": "host-a"}), None, vec![]),
            (Value::Null, Some(expression("kubernetes.io/hostname", "In", &["host-a"])), vec![]),
            (Value::Null, Some(expression("kubernetes.io/hostname", "In", &["host-a", "host-d"])), vec![]),
            (Value::Null, Some(expression("kubernetes.io/hostname", "In", &["host-a", "host-b", "host-e"])), vec!["a"]),
            (Value::Null, Some(expression("kubernetes.io/hostname", "NotIn", &["host-a"])), vec!["b"]),
            (Value::Null, Some(expression("disks", "Gt", &["4"])), vec![]),
            (Value::Null, Some(expression("disks", "Lt", &["4"])), vec!["a"]),
            (Value::Null, Some(json!([{"matchFields": [{"key": NAME, "operator": "In", "values": ["b"]}]}])), vec![]),
            // Not understood: nothing is certain.
            (Value::Null, Some(expression("disks", "Near", &["4"])), vec![]),
            (Value::Null, Some(json!([{}])), vec![]),
        ] {
            assert_eq!(avoided_with(&selector, terms.as_ref()), expected, "{selector} {terms:?}");
        }
    }

    #[test]
    fn pod_with_the_claim_of_another_executor_stays_where_its_volume_is() {
        let with = |volumes: &str| {
            let text = format!(r#"{{"metadata":{{"name":"p-exec-7"}},"spec":{{"volumes":{volumes}}}}}"#);
            mounts_other_claim(&serde_json::from_str::<Pod<'_>>(&text).expect("a pod"))
        };
        assert!(with(r#"[{"name":"v","persistentVolumeClaim":{"claimName":"p-exec-3-pvc-0"}}]"#));
        assert!(with(r#"[{"name":"w","emptyDir":{}},{"name":"v","persistentVolumeClaim":{"claimName":"shared"}}]"#));
        for volumes in [
            "null",
            "[]",
            r#"[{"name":"v","persistentVolumeClaim":{"claimName":"p-exec-7-pvc-0"}},{"name":"e","emptyDir":{}}]"#,
        ] {
            assert!(!with(volumes), "{volumes}");
        }
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
