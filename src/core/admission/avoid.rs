//! A required nodeAffinity against nodes that break executors (`usher_spark::node_terms`).
//!
//! The requirement selects by the name of the Node, which is the only field that `matchFields` supports, with one value per
//! requirement. Terms are alternatives, so each gets the requirements; a term without requirements matches no node and stays so.

use std::collections::HashSet;
use std::sync::Arc;

use imbl::OrdSet;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::context::MutationContext;
use super::draft::Draft;
use super::mutation::Mutation;
use crate::annotations::{self, MetadataField};
use crate::gang;
use crate::policy::{DEFAULT_SCHEDULER, Policies, Policy};
use crate::reason::Reason;
use crate::snapshot::{DriverPod, Node, Share, Snapshot, room};
use usher_spark::node_terms::{NAME, NodeRequirements, Work};
use usher_spark::pod::Pod;
use usher_spark::resources;
use usher_spark::wire_text::Text;

/// At most this many bytes of an affinity avoid nodes, of which each of its terms names each: two hundred nodes in one term, or ten in
/// twenty.
const MAX_ADDED: usize = 16 << 10;
/// A longer affinity is not read: no scheduler is given one.
const MAX_AFFINITY: usize = 64 << 10;
/// Steps of the comparison of a pod's requirements with nodes: a third of a millisecond.
const MAX_STEPS: usize = 30_000;
const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const TERMS: &str = "/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms";

/// Lets an executor avoid the suspect nodes, unless that would separate it from its gang or from its volume, and as long as at least as
/// many other nodes remain that it may use. A member of a gang that has not started avoids them only if the others would have room for as
/// many executors as start together: the affinity of pods that wait cannot be changed.
pub(super) fn suspect_nodes(
    context: &MutationContext<'_, '_>,
    policies: &Policies,
    driver: Option<&DriverPod>,
    starts_with: Option<u64>,
    draft: &mut Draft<'_>,
) {
    avoid(context, policies, driver, starts_with, draft);
    if !draft.changes(annotations::AVOIDS_NODES) {
        draft.mutations.push(Mutation::RemoveMetadata(annotations::AVOIDS_NODES));
    }
}

fn avoid(
    context: &MutationContext<'_, '_>,
    policies: &Policies,
    driver: Option<&DriverPod>,
    starts_with: Option<u64>,
    draft: &mut Draft<'_>,
) {
    let avoided = &context.snapshot.avoided_nodes;
    let spec = &context.pod.spec;
    if avoided.is_empty() || spec.node_name.as_deref().is_some_and(|name| !name.is_empty()) {
        return;
    }
    if must_equal_others(context, driver, draft) || mounts_other_claim(context.pod) {
        return;
    }
    let raw = spec.affinity.as_deref();
    if raw.is_some_and(|raw| raw.len() > MAX_AFFINITY) {
        return note_not_avoided(draft);
    }
    let (Ok(requirements), Ok(affinity)) =
        (NodeRequirements::of(spec), raw.map_or(Ok(Value::Null), serde_json::from_str))
    else {
        // The API server refuses the pod, or has a field that we do not know.
        return;
    };
    let set = draft.mutations.iter().find_map(|mutation| match mutation {
        Mutation::SchedulerName(name) => Some(name.as_str()),
        _ => None,
    });
    let scheduler = set.or(context.scheduler_name()).unwrap_or(DEFAULT_SCHEDULER);
    let present = present(&affinity, avoided);
    let reserving: Vec<&Policy> = policies.iter().filter(|policy| policy.reserved_for(scheduler).is_some()).collect();
    let is_reserved = |node: &Node| reserving.iter().any(|policy| policy.has_node(|key| node.label(key)));
    let nodes = avoidable(context.snapshot, &requirements, &present, is_reserved);
    if nodes.as_ref().is_some_and(Vec::is_empty) {
        return;
    }
    let mut nodes = nodes.unwrap_or_default();
    nodes.truncate(fitting(&affinity, &nodes, &present));
    if nodes.is_empty() {
        // Unless it avoids some already, as on a second call.
        if present.is_empty() {
            note_not_avoided(draft);
        }
        return;
    }
    if let Some(members) = starts_with {
        let all: HashSet<&str> = nodes.iter().map(|name| &***name).chain(present.iter().copied()).collect();
        let others = context.snapshot.nodes.iter().filter(|(name, node)| !all.contains(&***name) && !is_reserved(node));
        let room = match fits(context.pod, others, &requirements, members) {
            Room::Enough => None,
            Room::For(fit) => {
                Some(format!("the others would have room for {fit} of the {members} that start together"))
            }
            Room::NotCounted => {
                Some(format!("its requirements are too many to tell whether the others have room for {members}"))
            }
        };
        if let Some(why) = room {
            draft.set_annotation(annotations::AVOIDS_NODES, "false".to_owned());
            let sentence = format!("the executor does not avoid nodes on which executors fail: {why}");
            return draft.note(Reason::NodesNotAvoided, sentence);
        }
    }
    let Some(affinity) = merged(affinity, &nodes) else { return };
    draft.mutations.push(Mutation::Affinity(affinity));
    let names = nodes.iter().take(3).map(|name| name.to_string()).collect::<Vec<_>>().join(", ");
    let more = if nodes.len() > 3 { format!(" and {} more", nodes.len() - 3) } else { String::new() };
    draft.note(Reason::NodesAvoided, format!("the executor avoids nodes on which executors fail: {names}{more}"));
}

/// For how many pods like one there is room.
enum Room {
    /// For as many as start together; or the nodes do not state what is allocatable.
    Enough,
    /// For so many only.
    For(u64),
    /// The pod's requirements are too many.
    NotCounted,
}

/// Whether these nodes would have room for `members` pods like this one, were no other pods on them.
fn fits<'n>(
    pod: &Pod<'_>,
    nodes: impl Iterator<Item = (&'n Arc<str>, &'n Arc<Node>)>,
    requirements: &NodeRequirements<'_>,
    members: u64,
) -> Room {
    let Some(body) = pod.body.read() else { return Room::Enough };
    let (requests, mut work) = (resources::of_pod(&body), Work::new(MAX_STEPS));
    let nodes = nodes.filter(|(_, node)| node.ready && !node.cordoned);
    let usable = nodes.filter(|(name, node)| requirements.allow(name, |key| node.label(key), &mut work));
    match room(usable.map(|(_, node)| &**node), &requests, members, Share::WithoutDaemons) {
        Some(fit) if fit < members && work.is_exceeded() => Room::NotCounted,
        Some(fit) if fit < members => Room::For(fit),
        Some(_) | None => Room::Enough,
    }
}

fn note_not_avoided(draft: &mut Draft<'_>) {
    let sentence =
        "executors fail on some nodes, which the executor cannot avoid: its affinity is too long or has too many terms";
    draft.note(Reason::NodesNotAvoided, sentence.to_owned());
}

/// The terms that get the requirements; `None` if the affinity has no list of terms.
fn extensible(affinity: &Value) -> Option<impl Iterator<Item = &Value>> {
    let terms = affinity.pointer(TERMS)?;
    Some(terms.as_array().into_iter().flatten().filter(|term| is_extensible(term)))
}

/// The suspect nodes that an affinity avoids already, each as often as a term names it. A second call neither adds what the first left
/// out, nor takes what the first added for a restriction of the pod's own.
fn present<'v>(affinity: &'v Value, avoided: &OrdSet<Arc<str>>) -> Vec<&'v str> {
    let terms = extensible(affinity).into_iter().flatten();
    terms.flat_map(avoided_by).filter(|name| avoided.contains(*name)).collect()
}

/// How many of the nodes fit into an affinity, of whose room those that are `present` take a part.
fn fitting(affinity: &Value, nodes: &[&Arc<str>], present: &[&str]) -> usize {
    let length = |name: &str| avoids(name).to_string().len() + 1;
    let terms: Option<Vec<HashSet<&str>>> = extensible(affinity).map(|terms| terms.map(avoided_by).collect());
    let mut taken: usize = present.iter().map(|name| length(name)).sum();
    let fits = |name: &&&Arc<str>| {
        let lack = terms.as_ref().map_or(1, |terms| terms.iter().filter(|term| !term.contains(&****name)).count());
        taken += lack * length(name);
        taken <= MAX_ADDED
    };
    nodes.iter().take_while(fits).count()
}

/// The nodes that a term avoids.
fn avoided_by(term: &Value) -> HashSet<&str> {
    let fields = term.get("matchFields").and_then(Value::as_array);
    fields.into_iter().flatten().filter_map(|field| value_of(field, "NotIn")).collect()
}

/// Whether a term gets the requirements. One without requirements matches no node. One for one certain node stays as it is: avoiding that
/// node would leave none.
fn is_extensible(term: &Value) -> bool {
    let requirements = |key: &str| term.get(key).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let (expressions, fields) = (requirements("matchExpressions"), requirements("matchFields"));
    expressions.len() + fields.len() > 0 && !fields.iter().any(|field| value_of(field, "In").is_some())
}

/// The requirement that avoids a node.
fn avoids(name: &str) -> Value {
    json!({"key": NAME, "operator": "NotIn", "values": [name]})
}

/// The suspect nodes that the pod can avoid besides those that it avoids already. At least as many that are not suspect must remain that
/// it may use, and that are not reserved for another scheduler: its affinity cannot be changed later. `None` if its requirements are
/// too many to tell.
fn avoidable<'s>(
    snapshot: &'s Snapshot,
    requirements: &NodeRequirements<'_>,
    present: &[&str],
    is_reserved: impl Fn(&Node) -> bool,
) -> Option<Vec<&'s Arc<str>>> {
    let avoided = &snapshot.avoided_nodes;
    let mut work = Work::new(MAX_STEPS);
    let mut may_use = |name: &str, node: &Node| requirements.allow(name, |key| node.label(key), &mut work);
    let (mut suspect, mut before) = (Vec::new(), 0);
    let present: HashSet<&str> = present.iter().copied().collect();
    for name in avoided {
        if snapshot.nodes.get(name).is_some_and(|node| may_use(name, node)) {
            suspect.push(name);
        } else {
            before += usize::from(present.contains(&**name));
        }
    }
    let mut others = 0;
    for (name, node) in &snapshot.nodes {
        if others == before + suspect.len() {
            break;
        }
        let is_other = !avoided.contains(name) && !node.cordoned && !is_reserved(node);
        others += usize::from(is_other && may_use(name, node));
    }
    suspect.truncate(others.saturating_sub(before));
    (!work.is_exceeded()).then_some(suspect)
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
    let pod_name = pod.metadata.name.as_deref().unwrap_or_default();
    let is_of_pod = |claim: &Text<'_>| claim.strip_prefix(pod_name).is_some_and(|rest| rest.starts_with("-pvc-"));
    match serde_json::from_str::<Option<Vec<Volume<'_>>>>(volumes) {
        Ok(volumes) => {
            let claims = volumes.into_iter().flatten().filter_map(|volume| volume.persistent_volume_claim);
            claims.into_iter().any(|claim| pod_name.is_empty() || !is_of_pod(&claim.claim_name))
        }
        Err(_) => true,
    }
}

/// Whether the executor's group requires pods of one shape: Kueue's role hash includes the affinity, and the placeholders of
/// YuniKorn copy that of the pod which declares the task groups.
fn must_equal_others(context: &MutationContext<'_, '_>, driver: Option<&DriverPod>, draft: &Draft<'_>) -> bool {
    let is_set = |place: MetadataField, key: &str| {
        let sets = |mutation: &Mutation| match mutation {
            Mutation::SetMetadata(at, set, _) => *at == place && *set == key,
            _ => false,
        };
        let of_pod = place.of(&context.pod.metadata).as_ref().is_some_and(|entries| entries.get(key).is_some());
        // A driver states the task groups of its executors, and their placeholders exist before them.
        let of_driver = driver.is_some_and(|driver| driver.scheduling.entry(place, key).is_some());
        of_pod || of_driver || draft.mutations.iter().any(sets)
    };
    let mut keys = gang::TABLE.iter().flat_map(|scheduler| scheduler.keeps_affinity);
    keys.any(|(place, key)| is_set(*place, key))
}

/// This affinity with these nodes avoided; `None` if it avoids them already, or cannot.
fn merged(mut affinity: Value, nodes: &[&Arc<str>]) -> Option<String> {
    let required = at_object(at_object(as_object(&mut affinity)?, "nodeAffinity")?, REQUIRED)?;
    let Some(terms) = required.get_mut("nodeSelectorTerms") else {
        let all: Vec<Value> = nodes.iter().map(|name| avoids(name)).collect();
        required.insert("nodeSelectorTerms".to_owned(), json!([{"matchFields": all}]));
        return Some(affinity.to_string());
    };
    let mut is_changed = false;
    for term in terms.as_array_mut()?.iter_mut().filter(|term| is_extensible(term)) {
        let fields = as_object(term)?.entry("matchFields").or_insert(Value::Null);
        if fields.is_null() {
            *fields = json!([]);
        }
        let fields = fields.as_array_mut()?;
        let known: HashSet<&str> = fields.iter().filter_map(|field| value_of(field, "NotIn")).collect();
        let new: Vec<Value> = nodes.iter().filter(|name| !known.contains(&****name)).map(|name| avoids(name)).collect();
        is_changed |= !new.is_empty();
        fields.extend(new);
    }
    is_changed.then(|| affinity.to_string())
}

/// The name of the node in a requirement with this operator.
fn value_of<'v>(field: &'v Value, operator: &str) -> Option<&'v str> {
    let is_about = field.get("key").and_then(Value::as_str) == Some(NAME)
        && field.get("operator").and_then(Value::as_str) == Some(operator);
    is_about.then(|| field.pointer("/values/0").and_then(Value::as_str).unwrap_or_default())
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
            Arc::new(Node {
                uid: name.into(),
                kubelet: "v1".into(),
                ready: true,
                cordoned: name == "d",
                labels,
                allocatable: Default::default(),
            })
        };
        let mut snapshot = Snapshot::default();
        snapshot.nodes = ["a", "b", "c", "d", "e", "f"].into_iter().map(|name| (Arc::from(name), node(name))).collect();
        snapshot.avoided_nodes = ["a", "b"].into_iter().map(Arc::from).collect();
        snapshot
    }

    fn avoided_with(selector: &Value, terms: Option<&Value>) -> Vec<String> {
        let mut spec = json!({"nodeSelector": selector});
        if let Some(terms) = terms {
            spec["affinity"] = required(terms);
        }
        let text = json!({"spec": spec}).to_string();
        let (snapshot, pod) = (snapshot(), serde_json::from_str::<Pod<'_>>(&text).expect("a pod"));
        let requirements = NodeRequirements::of(&pod.spec).expect("an affinity");
        avoidable(&snapshot, &requirements, &[], |_| false)
            .expect("few")
            .into_iter()
            .map(|name| name.to_string())
            .collect()
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
        // Of c, e and f, which are not suspect, one is left to the pod.
        let requirements = NodeRequirements::default();
        let snapshot = snapshot();
        let nodes = avoidable(&snapshot, &requirements, &[], |node| &*node.uid != "e").expect("few");
        assert_eq!(nodes.iter().map(|name| &***name).collect::<Vec<_>>(), ["a"]);
    }

    /// Of its alternatives, some have no requirements, or name one node.
    #[test]
    fn second_call_avoids_no_further_node() {
        for length in [1, 20, 40, 63, 100, 245] {
            let mut snapshot = snapshot();
            let node = snapshot.nodes["e"].clone();
            let suspect: Vec<Arc<str>> =
                (0..200).map(|number| format!("{number}-{}", "n".repeat(length)).as_str().into()).collect();
            snapshot.avoided_nodes.extend(suspect.iter().cloned());
            snapshot.nodes.extend(suspect.iter().map(|name| (name.clone(), node.clone())));
            snapshot.nodes.extend((0..200).map(|number| (Arc::from(format!("other-{number}")), node.clone())));
            let exists = json!({"matchExpressions": [{"key": "disks", "operator": "Exists"}]});
            let pinned = json!({"matchFields": [{"key": NAME, "operator": "In", "values": ["e"]}]});
            let hosts = json!({"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In",
                "values": ["host-a", "host-b", "host-f"]}]});
            let first = json!({"matchExpressions": exists["matchExpressions"], "matchFields": [not_in(&suspect[0])]});
            for terms in [
                json!([exists]),
                json!([exists, {}]),
                json!([exists, pinned]),
                json!([exists, exists, {"matchFields": []}, pinned]),
                json!([first, exists]),
                json!([hosts]),
            ] {
                let mut affinity = required(&terms);
                let mut calls = 0;
                loop {
                    let text = json!({"spec": {"affinity": affinity}}).to_string();
                    let pod: Pod<'_> = serde_json::from_str(&text).expect("a pod");
                    let requirements = NodeRequirements::of(&pod.spec).expect("an affinity");
                    let present = present(&affinity, &snapshot.avoided_nodes);
                    let Some(mut nodes) = avoidable(&snapshot, &requirements, &present, |_| false) else { break };
                    nodes.truncate(fitting(&affinity, &nodes, &present));
                    let Some(merged) = merged(affinity.clone(), &nodes) else { break };
                    affinity = serde_json::from_str(&merged).expect("JSON");
                    calls += 1;
                }
                assert_eq!(calls, 1, "{length} {terms}");
            }
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
