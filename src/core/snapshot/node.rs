//! Nodes of the cluster.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;

use super::owner::{MAX_UID, bounded};
use super::quota::amounts;
use usher_spark::quantity::Quantity;
use usher_spark::resources::ResourceList;
use usher_spark::wire_text::first_of;

/// The longest version that is kept.
const MAX_VERSION: usize = 63;

/// What is known of a Node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub uid: Arc<str>,
    /// The version of its kubelet.
    pub kubelet: Arc<str>,
    /// Whether its kubelet reports that it is ready.
    pub ready: bool,
    /// Whether it is cordoned (`spec.unschedulable`).
    pub cordoned: bool,
    /// What pods may request on it (`status.allocatable`).
    pub allocatable: ResourceList,
    /// Its labels, by which pods select it.
    pub labels: BTreeMap<Box<str>, Box<str>>,
}

impl Node {
    /// The value of a label.
    pub fn label(&self, key: &str) -> Option<&str> {
        self.labels.get(key).map(|value| &**value)
    }

    /// Reads what is kept of a Node.
    pub fn read(json: &str) -> Option<Node> {
        #[derive(Deserialize)]
        struct Whole {
            metadata: Metadata,
            #[serde(default)]
            spec: Spec,
            #[serde(default)]
            status: Status,
        }
        #[derive(Deserialize)]
        struct Metadata {
            uid: String,
            #[serde(default)]
            labels: Option<BTreeMap<Box<str>, Box<str>>>,
        }
        #[derive(Default, Deserialize)]
        struct Spec {
            #[serde(default)]
            unschedulable: Option<bool>,
        }
        #[derive(Default, Deserialize)]
        #[serde(default, rename_all = "camelCase")]
        struct Status {
            #[serde(deserialize_with = "first_of")]
            conditions: Option<Vec<Condition>>,
            allocatable: Option<BTreeMap<String, String>>,
            node_info: Option<Info>,
        }
        #[derive(Deserialize)]
        struct Condition {
            #[serde(rename = "type")]
            kind: String,
            status: String,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Info {
            #[serde(default)]
            kubelet_version: String,
        }
        let Whole { metadata, spec, status } = serde_json::from_str(json).ok()?;
        let conditions = status.conditions.unwrap_or_default();
        Some(Node {
            uid: bounded(&metadata.uid, MAX_UID),
            kubelet: bounded(&status.node_info.map(|info| info.kubelet_version).unwrap_or_default(), MAX_VERSION),
            ready: conditions.iter().any(|condition| condition.kind == "Ready" && condition.status == "True"),
            cordoned: spec.unschedulable == Some(true),
            allocatable: status.allocatable.as_ref().map(amounts).unwrap_or_default(),
            labels: metadata.labels.unwrap_or_default(),
        })
    }
}

/// How much of a node pods may get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// All of it, as if it were empty.
    Whole,
    /// Nine tenths of its CPU, memory and ephemeral storage, and all of its devices: the pods of DaemonSets run on it too.
    WithoutDaemons,
}

/// How many pods with these requests the nodes would have room for, were no others on them, counted up to `max`; `None` if a node does
/// not state what is allocatable.
pub fn room<'n>(nodes: impl Iterator<Item = &'n Node>, requests: &ResourceList, max: u64, share: Share) -> Option<u64> {
    let mut fit = 0_u64;
    for node in nodes {
        if node.allocatable.is_empty() {
            return None;
        }
        fit = fit.saturating_add(node.room_for(requests, max, share));
        if fit >= max {
            return Some(max);
        }
    }
    Some(fit)
}

impl Node {
    fn room_for(&self, requests: &ResourceList, max: u64, share: Share) -> u64 {
        let pods = self.allocatable.get("pods").map_or(max, |all| Quantity::units(1).times_in(all));
        let times = |tenths_of: fn(&str) -> u32| {
            let requested = requests.iter().filter(|(_, amount)| !amount.is_zero());
            let by_resource = requested.map(|(name, amount)| {
                let all = self.allocatable.get(name).unwrap_or(Quantity::ZERO);
                amount.times(10).times_in(all.times(tenths_of(name)))
            });
            by_resource.min().unwrap_or(max).min(pods)
        };
        let whole = times(|_| 10);
        match share {
            Share::Whole => whole,
            // One that fills a node is placed beside its daemons, or nowhere.
            Share::WithoutDaemons => times(tenths_without_daemons).max(whole.min(1)),
        }
    }
}

/// Daemons use no devices.
fn tenths_without_daemons(resource: &str) -> u32 {
    if matches!(resource, "cpu" | "memory" | "ephemeral-storage") { 9 } else { 10 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_is_read_with_its_kubelet_and_condition() {
        let json = r#"{"metadata":{"name":"n1","uid":"u1","labels":{"pool":"gpu"}},"spec":{"unschedulable":true},
            "status":{"conditions":[{"type":"MemoryPressure","status":"False"},{"type":"Ready","status":"True"}],
            "allocatable":{"cpu":"3800m","memory":"7Gi","pods":"110"},"nodeInfo":{"kubeletVersion":"v1.31.4"}}}"#;
        let node = Node::read(json).expect("a Node");
        let labels = [("pool".into(), "gpu".into())].into();
        let allocatable = ResourceList::from_json(r#"{"cpu":"3800m","memory":"7Gi","pods":"110"}"#).expect("amounts");
        let (uid, kubelet) = ("u1".into(), "v1.31.4".into());
        let expected = Node { uid, kubelet, ready: true, cordoned: true, allocatable, labels };
        assert_eq!(node, expected);
        let bare = Node::read(r#"{"metadata":{"name":"n1","uid":"u1"},"spec":{},"status":{}}"#).expect("a Node");
        assert!(!bare.ready && !bare.cordoned && bare.kubelet.is_empty());
        assert_eq!(Node::read(r#"{"metadata":{}}"#), None);
    }
}
