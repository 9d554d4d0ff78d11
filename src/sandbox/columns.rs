//! The columns that `kubectl get` shows for each kind (`pkg/printers/internalversion/printers.go`).

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::cells::{age, cell, json_path, object_age};
use super::resource::Resource;
use usher_spark::json::{at, list, text};

/// Computes a cell of an object at a time.
type Cell = Arc<dyn Fn(&Value, Timestamp) -> Value + Send + Sync>;

pub(super) struct Column {
    pub(super) name: String,
    pub(super) kind: &'static str,
    /// 0 is always shown, 1 with `-o wide`.
    pub(super) priority: i64,
    pub(super) cell: Cell,
}

fn column(name: &str, priority: i64, cell: impl Fn(&Value, Timestamp) -> Value + Send + Sync + 'static) -> Column {
    Column { name: name.to_owned(), kind: "string", priority, cell: Arc::new(cell) }
}

/// A column that shows one field.
fn field(name: &str, priority: i64, path: &'static [&'static str]) -> Column {
    column(name, priority, move |object, _| cell(at(object, path)))
}

fn name() -> Column {
    field("Name", 0, &["metadata", "name"])
}

fn created() -> Column {
    column("Age", 0, |object, now| json!(object_age(object, now)))
}

pub(super) fn of(resource: &Resource) -> Vec<Column> {
    if let Some(custom) = &resource.custom {
        return custom_columns(&custom.columns);
    }
    let middle = match (resource.group.as_str(), resource.plural.as_str()) {
        ("", "pods") => return pods(),
        ("" | "events.k8s.io", "events") => return events(),
        ("", "namespaces") => vec![field("Status", 0, &["status", "phase"])],
        ("", "configmaps") => {
            vec![column("Data", 0, |object, _| json!(count(object, "data") + count(object, "binaryData")))]
        }
        ("", "secrets") => {
            vec![field("Type", 0, &["type"]), column("Data", 0, |object, _| json!(count(object, "data")))]
        }
        ("", "serviceaccounts") => vec![column("Secrets", 0, |object, _| json!(list(object, &["secrets"]).len()))],
        ("", "services") => vec![
            field("Type", 0, &["spec", "type"]),
            field("Cluster-IP", 0, &["spec", "clusterIP"]),
            column("External-IP", 0, |_, _| json!("<none>")),
            column("Port(s)", 0, |object, _| json!(ports(object))),
        ],
        ("", "nodes") => vec![
            column("Status", 0, |object, _| {
                json!(if condition(object, "Ready") == "True" { "Ready" } else { "NotReady" })
            }),
            column("Roles", 0, |_, _| json!("<none>")),
        ],
        ("apps", "deployments") => vec![
            column("Ready", 0, |object, _| json!(of_wanted(object, "readyReplicas"))),
            column("Up-to-date", 0, |object, _| number(object, &["status", "updatedReplicas"])),
            column("Available", 0, |object, _| number(object, &["status", "availableReplicas"])),
        ],
        ("apps", "statefulsets") => vec![column("Ready", 0, |object, _| json!(of_wanted(object, "readyReplicas")))],
        ("coordination.k8s.io", "leases") => vec![field("Holder", 0, &["spec", "holderIdentity"])],
        ("scheduling.k8s.io", "priorityclasses") => vec![
            field("Value", 0, &["value"]),
            column("Global-Default", 0, |object, _| {
                json!(at(object, &["globalDefault"]).and_then(Value::as_bool).unwrap_or(false))
            }),
        ],
        ("apiextensions.k8s.io", _) => {
            return vec![name(), field("Created At", 0, &["metadata", "creationTimestamp"])];
        }
        ("admissionregistration.k8s.io", plural) if plural.ends_with("webhookconfigurations") => {
            vec![column("Webhooks", 0, |object, _| json!(list(object, &["webhooks"]).len()))]
        }
        ("networking.k8s.io", "networkpolicies") => vec![column("Pod-Selector", 0, |object, _| {
            let labels: Vec<String> = usher_spark::json::entries(object, &["spec", "podSelector", "matchLabels"])
                .map(|(k, v)| format!("{k}={v}"))
                .collect();
            json!(if labels.is_empty() { "<none>".to_owned() } else { labels.join(",") })
        })],
        _ => Vec::new(),
    };
    [name()].into_iter().chain(middle).chain([created()]).collect()
}

fn custom_columns(extra: &[Value]) -> Vec<Column> {
    let mut all = vec![name()];
    for definition in extra {
        let path = text(definition, &["jsonPath"]).to_owned();
        let date = text(definition, &["type"]) == "date";
        let priority = at(definition, &["priority"]).and_then(Value::as_i64).unwrap_or(0);
        all.push(column(text(definition, &["name"]), priority, move |object, now| match json_path(object, &path) {
            Some(Value::String(since)) if date => json!(age(since, now)),
            None => json!(""),
            value => cell(value),
        }));
    }
    if extra.is_empty() {
        all.push(created());
    }
    all
}

fn pods() -> Vec<Column> {
    vec![
        name(),
        column("Ready", 0, |object, _| {
            let statuses = list(object, &["status", "containerStatuses"]);
            let ready = statuses.iter().filter(|status| at(status, &["ready"]) == Some(&Value::Bool(true))).count();
            json!(format!("{ready}/{}", list(object, &["spec", "containers"]).len()))
        }),
        column("Status", 0, |object, _| json!(pod_status(object))),
        column("Restarts", 0, |object, _| {
            let statuses = list(object, &["status", "containerStatuses"]).iter();
            let restarts: i64 =
                statuses.filter_map(|status| at(status, &["restartCount"]).and_then(Value::as_i64)).sum();
            json!(restarts.to_string())
        }),
        created(),
        field("IP", 1, &["status", "podIP"]),
        field("Node", 1, &["spec", "nodeName"]),
        field("Nominated Node", 1, &["status", "nominatedNodeName"]),
        column("Readiness Gates", 1, |_, _| json!("<none>")),
    ]
}

/// The pod's status in one word.
fn pod_status(pod: &Value) -> String {
    let mut status = text(pod, &["status", "phase"]).to_owned();
    let reason = text(pod, &["status", "reason"]);
    if !reason.is_empty() {
        status = reason.to_owned();
    }
    for container in list(pod, &["status", "containerStatuses"]) {
        for state in ["waiting", "terminated"] {
            let reason = text(container, &["state", state, "reason"]);
            if !reason.is_empty() {
                status = reason.to_owned();
            }
        }
    }
    if at(pod, &["metadata", "deletionTimestamp"]).is_some() {
        status = "Terminating".to_owned();
    }
    status
}

fn events() -> Vec<Column> {
    let object = |event: &Value, key: &str| {
        let core = text(event, &["involvedObject", key]);
        if core.is_empty() { text(event, &["regarding", key]) } else { core }.to_owned()
    };
    vec![
        column("Last Seen", 0, |event, now| {
            let seen = [
                &["series", "lastObservedTime"][..],
                &["lastTimestamp"],
                &["deprecatedLastTimestamp"],
                &["eventTime"],
                &["metadata", "creationTimestamp"],
            ];
            let last = seen.iter().map(|path| text(event, path)).find(|text| !text.is_empty()).unwrap_or_default();
            json!(age(last, now))
        }),
        field("Type", 0, &["type"]),
        field("Reason", 0, &["reason"]),
        column("Object", 0, move |event, _| {
            json!(format!("{}/{}", object(event, "kind").to_lowercase(), object(event, "name")))
        }),
        column("Message", 0, |event, _| {
            let message = text(event, &["message"]);
            json!(if message.is_empty() { text(event, &["note"]) } else { message }.trim())
        }),
    ]
}

fn count(object: &Value, key: &str) -> usize {
    at(object, &[key]).and_then(Value::as_object).map_or(0, serde_json::Map::len)
}

fn number(object: &Value, path: &[&str]) -> Value {
    at(object, path).cloned().unwrap_or_else(|| json!(0))
}

fn of_wanted(object: &Value, ready: &str) -> String {
    let (ready, wanted) = (number(object, &["status", ready]), number(object, &["spec", "replicas"]));
    format!("{ready}/{wanted}")
}

fn condition<'v>(object: &'v Value, kind: &str) -> &'v str {
    let conditions = list(object, &["status", "conditions"]);
    conditions.iter().find(|condition| text(condition, &["type"]) == kind).map_or("", |found| text(found, &["status"]))
}

fn ports(service: &Value) -> String {
    let ports = list(service, &["spec", "ports"]).iter();
    let all: Vec<String> =
        ports.map(|port| format!("{}/{}", number(port, &["port"]), text(port, &["protocol"]))).collect();
    if all.is_empty() { "<none>".to_owned() } else { all.join(",") }
}
