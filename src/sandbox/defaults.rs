//! Defaults that the API server writes into objects when it stores them (`pkg/apis/*/v1/defaults.go`).

use serde_json::{Value, json};

use super::resource::Resource;
use usher_spark::json::{at, default, list_mut, set, text};

/// Applies defaults to fields that a client left unset.
pub(super) fn fill(resource: &Resource, object: &mut Value) {
    match (resource.group.as_str(), resource.plural.as_str()) {
        ("", "pods") => pod(object),
        ("", "services") => service(object),
        ("", "namespaces") => namespace(object),
        ("", "secrets") => default(object, &["type"], "Opaque"),
        ("apps", "deployments") => {
            default(object, &["spec", "replicas"], 1);
            default(object, &["spec", "revisionHistoryLimit"], 10);
            default(object, &["spec", "progressDeadlineSeconds"], 600);
            let strategy =
                json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}});
            default(object, &["spec", "strategy"], strategy);
            template(object);
        }
        ("apps", "replicasets" | "statefulsets") => {
            default(object, &["spec", "replicas"], 1);
            template(object);
        }
        ("apps", "daemonsets") | ("batch", "jobs") => template(object),
        ("scheduling.k8s.io", "priorityclasses") => default(object, &["preemptionPolicy"], "PreemptLowerPriority"),
        ("admissionregistration.k8s.io", "mutatingwebhookconfigurations" | "validatingwebhookconfigurations") => {
            let mutating = resource.plural.starts_with("mutating");
            for webhook in list_mut(object, &["webhooks"]) {
                default_webhook(webhook, mutating);
            }
        }
        ("admissionregistration.k8s.io", "mutatingadmissionpolicies" | "validatingadmissionpolicies") => {
            default(object, &["spec", "failurePolicy"], "Fail");
            let constraints = ["spec", "matchConstraints"];
            default(object, &[&constraints[..], &["matchPolicy"]].concat(), "Equivalent");
            default(object, &[&constraints[..], &["namespaceSelector"]].concat(), json!({}));
            default(object, &[&constraints[..], &["objectSelector"]].concat(), json!({}));
            for rule in list_mut(object, &[&constraints[..], &["resourceRules"]].concat()) {
                default(rule, &["scope"], "*");
            }
        }
        _ => {}
    }
}

fn default_webhook(webhook: &mut Value, mutating: bool) {
    default(webhook, &["failurePolicy"], "Fail");
    default(webhook, &["matchPolicy"], "Equivalent");
    default(webhook, &["timeoutSeconds"], 10);
    default(webhook, &["namespaceSelector"], json!({}));
    default(webhook, &["objectSelector"], json!({}));
    if mutating {
        default(webhook, &["reinvocationPolicy"], "Never");
    }
    if at(webhook, &["clientConfig", "service"]).is_some() {
        default(webhook, &["clientConfig", "service", "port"], 443);
    }
    for rule in list_mut(webhook, &["rules"]) {
        default(rule, &["scope"], "*");
    }
}

fn namespace(object: &mut Value) {
    let name = text(object, &["metadata", "name"]).to_owned();
    set(object, &["metadata", "labels", "kubernetes.io/metadata.name"], name);
    default(object, &["spec", "finalizers"], json!(["kubernetes"]));
    default(object, &["status", "phase"], "Active");
}

fn service(object: &mut Value) {
    default(object, &["spec", "type"], "ClusterIP");
    default(object, &["spec", "sessionAffinity"], "None");
    default(object, &["spec", "internalTrafficPolicy"], "Cluster");
    default(object, &["spec", "ipFamilies"], json!(["IPv4"]));
    default(object, &["spec", "ipFamilyPolicy"], "SingleStack");
    for port in list_mut(object, &["spec", "ports"]) {
        default(port, &["protocol"], "TCP");
        let number = at(port, &["port"]).cloned().unwrap_or_default();
        default(port, &["targetPort"], number);
    }
    // No proxy listens on it; the address only exists for clients that display one.
    if at(object, &["spec", "clusterIP"]).is_none() {
        let hash =
            text(object, &["metadata", "name"]).bytes().fold(7u16, |h, b| h.wrapping_mul(31).wrapping_add(b.into()));
        set(object, &["spec", "clusterIP"], format!("10.96.{}.{}", hash >> 8, (hash & 0xff).max(1)));
    }
    let ip = text(object, &["spec", "clusterIP"]).to_owned();
    default(object, &["spec", "clusterIPs"], json!([ip]));
    default(object, &["status", "loadBalancer"], json!({}));
}

fn template(object: &mut Value) {
    if let Some(template) = object.pointer_mut("/spec/template") {
        pod_spec(template);
    }
}

fn pod(object: &mut Value) {
    pod_spec(object);
    default(object, &["spec", "enableServiceLinks"], true);
    default(object, &["status"], json!({}));
}

fn pod_spec(pod: &mut Value) {
    default(pod, &["spec", "restartPolicy"], "Always");
    default(pod, &["spec", "terminationGracePeriodSeconds"], 30);
    default(pod, &["spec", "dnsPolicy"], "ClusterFirst");
    default(pod, &["spec", "securityContext"], json!({}));
    default(pod, &["spec", "schedulerName"], "default-scheduler");
    let account = text(pod, &["spec", "serviceAccountName"]).to_owned();
    if !account.is_empty() {
        default(pod, &["spec", "serviceAccount"], account);
    }
    for list in ["containers", "initContainers"] {
        if at(pod, &["spec", list]).is_some() {
            list_mut(pod, &["spec", list]).iter_mut().for_each(container);
        }
    }
    if at(pod, &["spec", "volumes"]).is_some() {
        list_mut(pod, &["spec", "volumes"]).iter_mut().for_each(volume);
    }
}

fn container(container: &mut Value) {
    default(container, &["terminationMessagePath"], "/dev/termination-log");
    default(container, &["terminationMessagePolicy"], "File");
    let latest = {
        let image = text(container, &["image"]);
        let tag = image.rsplit_once('/').map_or(image, |(_, last)| last).split_once(':').map(|(_, tag)| tag);
        tag.is_none_or(|tag| tag == "latest") && !image.contains('@')
    };
    default(container, &["imagePullPolicy"], if latest { "Always" } else { "IfNotPresent" });
    default(container, &["resources"], json!({}));
    for list in ["requests", "limits"] {
        // `cpu: 1` is a quantity too, and is stored as text.
        if let Some(Value::Object(amounts)) = at(container, &["resources", list]).cloned() {
            for (name, amount) in amounts.into_iter().filter(|(_, amount)| amount.is_number()) {
                set(container, &["resources", list, &name], amount.to_string());
            }
        }
    }
    if let Some(Value::Object(limits)) = at(container, &["resources", "limits"]).cloned() {
        for (name, amount) in limits {
            default(container, &["resources", "requests", &name], amount);
        }
    }
    if at(container, &["ports"]).is_some() {
        for port in list_mut(container, &["ports"]) {
            default(port, &["protocol"], "TCP");
        }
    }
    if at(container, &["env"]).is_some() {
        for variable in list_mut(container, &["env"]) {
            if at(variable, &["valueFrom", "fieldRef"]).is_some() {
                default(variable, &["valueFrom", "fieldRef", "apiVersion"], "v1");
            }
        }
    }
}

fn volume(volume: &mut Value) {
    for kind in ["configMap", "secret", "projected", "downwardAPI"] {
        if at(volume, &[kind]).is_some() {
            default(volume, &[kind, "defaultMode"], 420);
        }
    }
    if volume.as_object().is_some_and(|volume| volume.len() == 1) {
        set(volume, &["emptyDir"], json!({}));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pod as a real 1.36.2 API server stored it, without what its plugins added.
    #[test]
    fn pod_gets_defaults_of_real_api_server() {
        let mut pod = json!({"metadata": {"name": "p1"}, "spec": {
            "containers": [{"name": "c", "image": "busybox", "env": [{"name": "X", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
                "ports": [{"containerPort": 80}], "resources": {"limits": {"memory": "1Gi"}}}],
            "volumes": [{"name": "v", "configMap": {"name": "m"}}, {"name": "e"}]}});
        let resource = crate::resource::Registry::new("v1beta1").find("", "v1", "pods").unwrap();
        fill(&resource, &mut pod);
        assert_eq!(
            pod["spec"],
            json!({
            "volumes": [{"name": "v", "configMap": {"name": "m", "defaultMode": 420}}, {"name": "e", "emptyDir": {}}],
            "containers": [{"name": "c", "image": "busybox", "ports": [{"containerPort": 80, "protocol": "TCP"}],
                "env": [{"name": "X", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "status.podIP"}}}],
                "resources": {"limits": {"memory": "1Gi"}, "requests": {"memory": "1Gi"}},
                "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File", "imagePullPolicy": "Always"}],
            "restartPolicy": "Always", "terminationGracePeriodSeconds": 30, "dnsPolicy": "ClusterFirst", "securityContext": {},
            "schedulerName": "default-scheduler", "enableServiceLinks": true})
        );
        let once = pod.clone();
        fill(&resource, &mut pod);
        assert_eq!(pod, once);
    }
}
