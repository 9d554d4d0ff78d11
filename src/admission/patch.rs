//! Mutations as an RFC 6902 patch.
//!
//! The API server rejects the pod, under either failurePolicy, when a patch does not apply (`mutating/dispatcher.go`).
//! So every operation is an `add` whose parent exists in the reviewed object, or a `remove` of an existing field.

use std::io::Write;

use serde_json::Value;

use super::mutation::Mutation;
use crate::annotations::MetadataField;
use crate::spark::pod::Pod;

/// Writes the patch: a JSON array of operations. The mutations must not include any that the pod already has.
pub fn write(pod: &Pod<'_>, mutations: &[Mutation], out: &mut Vec<u8>) {
    let mut ops = Ops { out, first: true };
    ops.out.push(b'[');
    for mutation in mutations {
        match mutation {
            Mutation::SchedulerName(name) => ops.add_text("/spec/schedulerName", name),
            Mutation::PriorityClass(class) => {
                ops.add_text("/spec/priorityClassName", class);
                if pod.spec.has_priority {
                    ops.remove("/spec/priority");
                }
                if pod.spec.has_preemption_policy {
                    ops.remove("/spec/preemptionPolicy");
                }
            }
            Mutation::SchedulingGroup(group) => {
                ops.open("add", "/spec/schedulingGroup");
                ops.raw(br#"{"podGroupName":"#);
                ops.text(group);
                ops.raw(b"}");
                ops.close();
            }
            Mutation::Affinity(affinity) => {
                ops.open("add", "/spec/affinity");
                ops.raw(affinity.as_bytes());
                ops.close();
            }
            Mutation::SetMetadata(place, key, value) if place.of(&pod.metadata).is_some() => {
                ops.begin("add");
                ops.raw(map_path(*place).as_bytes());
                ops.raw(b"/");
                ops.pointer(key);
                ops.raw(br#"","value":"#);
                ops.text(value);
                ops.close();
            }
            Mutation::SetMetadata(..) => {} // The whole map is added below.
            Mutation::RemoveMetadata(key) => {
                ops.begin("remove");
                ops.raw(map_path(MetadataField::Annotation).as_bytes());
                ops.raw(b"/");
                ops.pointer(key);
                ops.raw(b"\"");
                ops.close();
            }
            Mutation::Owner { name, uid } => ops.owner(pod.metadata.owner_references.is_some(), name, uid),
        }
    }
    for place in [MetadataField::Label, MetadataField::Annotation] {
        if place.of(&pod.metadata).is_none() {
            ops.add_map(place, mutations);
        }
    }
    ops.out.push(b']');
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

/// Writes operations one after another. The text is small and written once, so no document is built first.
struct Ops<'o> {
    out: &'o mut Vec<u8>,
    first: bool,
}

impl Ops<'_> {
    fn raw(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }

    /// A JSON string.
    fn text(&mut self, text: &str) {
        json_string(self.out, text);
    }

    /// A key within a JSON Pointer within a JSON string. Our keys are plain ASCII, but `/` and `~` are not literal.
    fn pointer(&mut self, key: &str) {
        for byte in key.bytes() {
            match byte {
                b'~' => self.raw(b"~0"),
                b'/' => self.raw(b"~1"),
                _ => self.out.push(byte),
            }
        }
    }

    fn begin(&mut self, op: &str) {
        if !self.first {
            self.out.push(b',');
        }
        self.first = false;
        self.raw(br#"{"op":""#);
        self.raw(op.as_bytes());
        self.raw(br#"","path":""#);
    }

    fn open(&mut self, op: &str, path: &str) {
        self.begin(op);
        self.raw(path.as_bytes());
        self.raw(br#"","value":"#);
    }

    fn close(&mut self) {
        self.out.push(b'}');
    }

    fn add_text(&mut self, path: &str, value: &str) {
        self.open("add", path);
        self.text(value);
        self.close();
    }

    fn remove(&mut self, path: &str) {
        self.begin("remove");
        self.raw(path.as_bytes());
        self.raw(b"\"");
        self.close();
    }

    /// A map that the object does not have, with all its entries.
    fn add_map(&mut self, place: MetadataField, mutations: &[Mutation]) {
        let mut opened = false;
        for mutation in mutations {
            if let Mutation::SetMetadata(at, key, value) = mutation
                && *at == place
            {
                if opened {
                    self.raw(b",");
                } else {
                    self.open("add", map_path(place));
                    self.raw(b"{");
                    opened = true;
                }
                self.text(key);
                self.raw(b":");
                self.text(value);
            }
        }
        if opened {
            self.raw(b"}");
            self.close();
        }
    }

    /// Never sets blockOwnerDeletion: a driver's account lacks its permission (OwnerReferencesPermissionEnforcement).
    fn owner(&mut self, has_list: bool, name: &str, uid: &str) {
        self.open("add", if has_list { "/metadata/ownerReferences/-" } else { "/metadata/ownerReferences" });
        let (before, after): (&[u8], &[u8]) = if has_list { (b"", b"") } else { (b"[", b"]") };
        self.raw(before);
        self.raw(br#"{"apiVersion":"v1","kind":"Pod","name":"#);
        self.text(name);
        self.raw(br#","uid":"#);
        self.text(uid);
        self.raw(br#","controller":true}"#);
        self.raw(after);
        self.close();
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
