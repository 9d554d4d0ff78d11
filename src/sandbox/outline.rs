//! The part of a pod that the simulated scheduler and kubelet read on every pass, parsed once for each version of the pod.

use serde_json::{Value, json};

use usher_spark::json::{at, set};
use usher_spark::pod::{Body, Pod};
use usher_spark::quantity::Quantity;
use usher_spark::resources::{self, ResourceList};

/// The fields of a pod that they read. Its containers, which are most of it, are not among them.
const FIELDS: [&[&str]; 12] = [
    &["metadata", "namespace"],
    &["metadata", "labels"],
    &["metadata", "annotations"],
    &["metadata", "deletionTimestamp"],
    &["spec", "nodeName"],
    &["spec", "nodeSelector"],
    &["spec", "affinity", "nodeAffinity"],
    &["spec", "schedulingGates"],
    &["spec", "schedulingGroup"],
    &["spec", "volumes"],
    &["status", "phase"],
    &["status", "conditions"],
];

/// A pod without its containers.
#[derive(Debug)]
pub(super) struct Outline {
    /// The pod with the fields in [`FIELDS`].
    pub(super) pod: Value,
    /// Its requests, counted as kube-scheduler counts them, plus one of the resource `pods`.
    pub(super) requests: ResourceList,
}

impl Outline {
    pub(super) fn new(text: &str) -> Outline {
        let whole: Value = serde_json::from_str(text).unwrap_or_default();
        let mut pod = json!({});
        for path in FIELDS {
            if let Some(value) = at(&whole, path) {
                set(&mut pod, path, value.clone());
            }
        }
        Outline { pod, requests: requests(text) }
    }
}

fn requests(text: &str) -> ResourceList {
    let pod = Pod::read_whole(text.as_bytes()).unwrap_or_default();
    let mut list = match &pod.body {
        Body::Read(workload) => resources::of_pod(workload),
        Body::Raw(_) => ResourceList::default(),
    };
    list.set("pods", Quantity::units(1));
    list
}
