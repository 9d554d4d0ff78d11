//! Validation: names, labels, owners, pods without containers, changes of immutable fields.

use serde_json::Value;

use super::error::{ApiError, Cause, Result};
use super::resource::Resource;
use usher_spark::json::{at, entries, list, remove, text};
use usher_spark::text::{is_dns_label, is_dns_subdomain, is_label_key, is_label_value};

const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const VALUE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
const KEY: &str = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";

/// Validates an object before it is stored.
pub(super) fn object(resource: &Resource, object: &Value) -> Result<()> {
    let mut causes = metadata(resource, object);
    if resource.is_pods() {
        causes.extend(pod(object));
    }
    if resource.plural == "priorityclasses" && at(object, &["value"]).is_none() {
        causes.push(Cause::required("value"));
    }
    if causes.is_empty() {
        return Ok(());
    }
    Err(ApiError::invalid(&resource.kind, text(object, &["metadata", "name"]), causes))
}

fn metadata(resource: &Resource, object: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    let name = text(object, &["metadata", "name"]);
    // RBAC names may contain colons; a namespace is a DNS label.
    let free = resource.group == "rbac.authorization.k8s.io";
    if name.is_empty() {
        causes.push(Cause::required("metadata.name"));
    } else if resource.plural == "namespaces" && !is_dns_label(name) {
        causes.push(Cause::invalid("metadata.name", name, LABEL));
    } else if !free && !is_dns_subdomain(name) {
        causes.push(Cause::invalid("metadata.name", name, SUBDOMAIN));
    }
    for (key, value) in entries(object, &["metadata", "labels"]) {
        if !is_label_key(key) {
            causes.push(Cause::invalid("metadata.labels", key, KEY));
        }
        if !is_label_value(value) {
            causes.push(Cause::invalid("metadata.labels", value, VALUE));
        }
    }
    for (key, _) in entries(object, &["metadata", "annotations"]) {
        if !is_label_key(&key.to_lowercase()) {
            causes.push(Cause::invalid("metadata.annotations", key, KEY));
        }
    }
    let mut controllers = 0;
    for owner in list(object, &["metadata", "ownerReferences"]) {
        for field in ["apiVersion", "kind", "name", "uid"] {
            if text(owner, &[field]).is_empty() {
                causes.push(Cause::invalid(&format!("metadata.ownerReferences.{field}"), "", "must not be empty"));
            }
        }
        controllers += usize::from(at(owner, &["controller"]) == Some(&Value::Bool(true)));
    }
    if controllers > 1 {
        let why = "Only one reference can have Controller set to true.";
        causes.push(Cause::invalid("metadata.ownerReferences", "", why));
    }
    causes
}

fn pod(object: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    if list(object, &["spec", "containers"]).is_empty() {
        causes.push(Cause::required("spec.containers"));
    }
    for (i, container) in list(object, &["spec", "containers"]).iter().enumerate() {
        for field in ["name", "image"] {
            if text(container, &[field]).is_empty() {
                causes.push(Cause::required(&format!("spec.containers[{i}].{field}")));
            }
        }
    }
    let names: Vec<&str> = list(object, &["spec", "volumes"]).iter().map(|volume| text(volume, &["name"])).collect();
    for (i, container) in list(object, &["spec", "containers"]).iter().enumerate() {
        for (j, mount) in list(container, &["volumeMounts"]).iter().enumerate() {
            let name = text(mount, &["name"]);
            if !names.contains(&name) {
                causes.push(Cause {
                    field: format!("spec.containers[{i}].volumeMounts[{j}].name"),
                    reason: "FieldValueNotFound",
                    message: format!("Not found: {name:?}"),
                });
            }
        }
    }
    for (key, field) in [("schedulerName", "spec.schedulerName"), ("priorityClassName", "spec.priorityClassName")] {
        let name = text(object, &["spec", key]);
        if !name.is_empty() && !is_dns_subdomain(name) {
            causes.push(Cause::invalid(field, name, SUBDOMAIN));
        }
    }
    causes
}

/// Validates an update: an object's identity is immutable, and nearly all of a pod's spec.
pub(super) fn change(resource: &Resource, old: &Value, new: &Value) -> Result<()> {
    let name = text(old, &["metadata", "name"]);
    let mut causes = Vec::new();
    if resource.is_pods() {
        let (mut before, mut after) = (old.clone(), new.clone());
        for pod in [&mut before, &mut after] {
            for key in
                ["activeDeadlineSeconds", "tolerations", "terminationGracePeriodSeconds", "schedulingGates", "nodeName"]
            {
                remove(pod, &["spec", key]);
            }
            for containers in ["containers", "initContainers"] {
                for container in
                    pod.pointer_mut(&format!("/spec/{containers}")).and_then(Value::as_array_mut).into_iter().flatten()
                {
                    remove(container, &["image"]);
                }
            }
        }
        if at(&before, &["spec"]) != at(&after, &["spec"])
            || at(old, &["spec", "nodeName"]) != at(new, &["spec", "nodeName"])
        {
            causes.push(Cause::forbidden("spec", "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"));
        }
    }
    let immutable = at(old, &["immutable"]) == Some(&Value::Bool(true));
    if immutable && ["data", "binaryData", "stringData"].iter().any(|key| at(old, &[key]) != at(new, &[key])) {
        causes.push(Cause::forbidden("data", "field is immutable when `immutable` is set"));
    }
    // Before 1.37 a native group's count is immutable.
    if resource.group == "scheduling.k8s.io"
        && resource.version == "v1alpha2"
        && at(old, &["spec", "schedulingPolicy"]) != at(new, &["spec", "schedulingPolicy"])
    {
        causes.push(Cause::forbidden("spec.schedulingPolicy", "field is immutable"));
    }
    if causes.is_empty() {
        return Ok(());
    }
    Err(ApiError::invalid(&resource.kind, name, causes))
}
