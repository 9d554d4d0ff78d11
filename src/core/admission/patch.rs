//! Mutations as an RFC 6902 patch.
//!
//! The API server rejects the pod, under either failurePolicy, when a patch does not apply (`mutating/dispatcher.go`).
//! So every operation is an `add` whose parent exists in the reviewed object, or a `remove` of an existing field.

use std::borrow::Cow;
use std::io::Write;

use serde::{Serialize, Serializer};
use serde_json::Value;
use serde_json::value::RawValue;

use super::mutation::Mutation;
use crate::annotations::MetadataField;
use usher_spark::pod::Pod;

/// Writes the patch: a JSON array of operations. The mutations must not include any that the pod already has.
pub fn write(pod: &Pod<'_>, mutations: &[Mutation], out: &mut Vec<u8>) {
    // Writing to a Vec never fails.
    let _ = serde_json::to_writer(out, &operations(pod, mutations));
}

fn operations<'m>(pod: &Pod<'_>, mutations: &'m [Mutation]) -> Vec<Operation<'m>> {
    let mut all = Vec::with_capacity(mutations.len());
    for mutation in mutations {
        match mutation {
            Mutation::SchedulerName(name) => all.push(Operation::add("/spec/schedulerName", Added::Text(name))),
            Mutation::PriorityClass(class) => {
                all.push(Operation::add("/spec/priorityClassName", Added::Text(class)));
                all.extend(pod.spec.has_priority.then(|| Operation::remove("/spec/priority")));
                all.extend(pod.spec.has_preemption_policy.then(|| Operation::remove("/spec/preemptionPolicy")));
            }
            Mutation::SchedulingGroup(group) => {
                all.push(Operation::add("/spec/schedulingGroup", Added::SchedulingGroup { pod_group_name: group }));
            }
            // It is JSON: `avoid` has written it.
            Mutation::Affinity(affinity) => {
                all.extend(
                    serde_json::from_str(affinity).map(|json| Operation::add("/spec/affinity", Added::Json(json))),
                );
            }
            Mutation::SetMetadata(place, key, value) if place.of(&pod.metadata).is_some() => {
                all.push(Operation::add(entry_path(*place, key), Added::Text(value)));
            }
            Mutation::SetMetadata(..) => {} // The whole map is added below.
            Mutation::RemoveMetadata(key) => all.push(Operation::remove(entry_path(MetadataField::Annotation, key))),
            Mutation::Owner { name, uid } => all.push(match pod.metadata.owner_references.is_some() {
                true => Operation::add("/metadata/ownerReferences/-", Added::Owner(Owner::pod(name, uid))),
                false => Operation::add("/metadata/ownerReferences", Added::Owners([Owner::pod(name, uid)])),
            }),
        }
    }
    for place in [MetadataField::Label, MetadataField::Annotation] {
        let added = |mutation: &&Mutation| matches!(mutation, Mutation::SetMetadata(at, ..) if *at == place);
        if place.of(&pod.metadata).is_none() && mutations.iter().any(|mutation| added(&mutation)) {
            all.push(Operation::add(map_path(place), Added::Entries(Entries(place, mutations))));
        }
    }
    all
}

/// The patch as a document, and the object that it makes of `object`, from which `pod` was read; without a pod there are no operations.
///
/// An error is a bug of [`write()`].
pub fn apply(
    pod: Option<&Pod<'_>>,
    mutations: &[Mutation],
    object: &Value,
) -> Result<(json_patch::Patch, Value), String> {
    let bug = |error: &dyn std::fmt::Display| format!("bug in spark-usher: the patch does not apply: {error}");
    let mut operations = Vec::new();
    match pod {
        Some(pod) => write(pod, mutations, &mut operations),
        None => operations.extend_from_slice(b"[]"),
    }
    let patch: json_patch::Patch = serde_json::from_slice(&operations).map_err(|error| bug(&error))?;
    let mut patched = object.clone();
    json_patch::patch(&mut patched, &patch).map_err(|error| bug(&error))?;
    Ok((patch, patched))
}

fn map_path(place: MetadataField) -> &'static str {
    match place {
        MetadataField::Label => "/metadata/labels",
        MetadataField::Annotation => "/metadata/annotations",
    }
}

/// The path of an entry of a map, whose key may contain `/` and `~`.
fn entry_path(place: MetadataField, key: &str) -> String {
    format!("{}/{}", map_path(place), key.replace('~', "~0").replace('/', "~1"))
}

/// An operation of a patch. `json_patch`'s own needs a document for each value, which costs as much as the rest of a decision.
#[derive(Serialize)]
#[serde(tag = "op", rename_all = "lowercase")]
enum Operation<'m> {
    Add { path: Cow<'static, str>, value: Added<'m> },
    Remove { path: Cow<'static, str> },
}

impl<'m> Operation<'m> {
    fn add(path: impl Into<Cow<'static, str>>, value: Added<'m>) -> Operation<'m> {
        Operation::Add { path: path.into(), value }
    }

    fn remove(path: impl Into<Cow<'static, str>>) -> Operation<'m> {
        Operation::Remove { path: path.into() }
    }
}

#[derive(Serialize)]
#[serde(untagged)]
enum Added<'m> {
    Text(&'m str),
    #[serde(rename_all = "camelCase")]
    SchedulingGroup {
        pod_group_name: &'m str,
    },
    Json(&'m RawValue),
    Owner(Owner<'m>),
    Owners([Owner<'m>; 1]),
    Entries(Entries<'m>),
}

/// Never sets blockOwnerDeletion: a driver's account lacks its permission (OwnerReferencesPermissionEnforcement).
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Owner<'m> {
    api_version: &'static str,
    kind: &'static str,
    name: &'m str,
    uid: &'m str,
    controller: bool,
}

impl<'m> Owner<'m> {
    fn pod(name: &'m str, uid: &'m str) -> Owner<'m> {
        Owner { api_version: "v1", kind: "Pod", name, uid, controller: true }
    }
}

/// A map that the object does not have, with all its entries.
struct Entries<'m>(MetadataField, &'m [Mutation]);

impl Serialize for Entries<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.1.iter().filter_map(|mutation| match mutation {
            Mutation::SetMetadata(place, key, value) if *place == self.0 => Some((key, value)),
            _ => None,
        }))
    }
}

/// Appends a JSON string.
pub(super) fn json_string(out: &mut Vec<u8>, text: &str) {
    // Writing a string into a Vec cannot fail.
    let _ = serde_json::to_writer(&mut *out, text);
    let _ = out.flush();
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn apply(object: Value, mutations: &[Mutation]) -> Value {
        let text = object.to_string();
        let pod: Pod<'_> = serde_json::from_str(&text).unwrap();
        super::apply(Some(&pod), mutations, &object).unwrap().1
    }

    fn set_metadata(place: MetadataField, key: &'static str, value: &str) -> Mutation {
        Mutation::SetMetadata(place, key, value.to_owned())
    }

    #[test]
    fn missing_metadata_maps_are_added_and_existing_ones_extended() {
        let mutations = [
            set_metadata(MetadataField::Annotation, "a/b~c", "x\"y"),
            set_metadata(MetadataField::Label, "l", "1"),
            set_metadata(MetadataField::Annotation, "d", "2"),
        ];
        assert_eq!(
            apply(json!({"metadata": {}, "spec": {}}), &mutations),
            json!({"metadata": {"labels": {"l": "1"}, "annotations": {"a/b~c": "x\"y", "d": "2"}}, "spec": {}})
        );
        assert_eq!(
            apply(json!({"metadata": {"labels": {"k": "v"}, "annotations": {"a/b~c": "old"}}, "spec": {}}), &mutations),
            json!({"metadata": {"labels": {"k": "v", "l": "1"}, "annotations": {"a/b~c": "x\"y", "d": "2"}}, "spec": {}})
        );
        assert_eq!(
            apply(json!({"metadata": {"annotations": null}, "spec": {}}), &mutations[..1]),
            json!({"metadata": {"annotations": {"a/b~c": "x\"y"}}, "spec": {}})
        );
    }

    #[test]
    fn owner_is_appended_to_existing_or_new_owner_references() {
        let owner = [Mutation::Owner { name: "d".into(), uid: "u".into() }];
        let reference = json!({"apiVersion": "v1", "kind": "Pod", "name": "d", "uid": "u", "controller": true});
        assert_eq!(apply(json!({"metadata": {}}), &owner), json!({"metadata": {"ownerReferences": [reference]}}));
        let other = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": "v"});
        assert_eq!(
            apply(json!({"metadata": {"ownerReferences": [other]}}), &owner),
            json!({"metadata": {"ownerReferences": [other, reference]}})
        );
    }

    #[test]
    fn setting_priority_class_removes_priority_and_preemption_policy() {
        let class = [Mutation::PriorityClass("batch".into())];
        assert_eq!(
            apply(json!({"spec": {"priority": 0, "preemptionPolicy": "PreemptLowerPriority"}}), &class),
            json!({"spec": {"priorityClassName": "batch"}})
        );
        assert_eq!(apply(json!({"spec": {}}), &class), json!({"spec": {"priorityClassName": "batch"}}));
    }

    #[test]
    fn scheduler_name_and_group_are_set_and_annotation_is_removed() {
        let mutations = [
            Mutation::SchedulerName("volcano".into()),
            Mutation::SchedulingGroup("g".into()),
            Mutation::RemoveMetadata("spark-usher.io/by"),
        ];
        assert_eq!(
            apply(
                json!({"metadata": {"annotations": {"spark-usher.io/by": "x"}}, "spec": {"schedulerName": "default-scheduler"}}),
                &mutations
            ),
            json!({"metadata": {"annotations": {}}, "spec": {"schedulerName": "volcano", "schedulingGroup": {"podGroupName": "g"}}})
        );
        assert_eq!(apply(json!({"spec": {}}), &[]), json!({"spec": {}}));
    }
}
