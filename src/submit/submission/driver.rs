//! The status of a driver's pod.

use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

use usher_core::recovery::waiting;
use usher_core::snapshot::{DriverPhase, DriverPod, SchedulingKeys, Snapshot};
use usher_spark::ids::AppKey;
use usher_spark::json::{at, list, text};
use usher_spark::labels;
use usher_spark::names::app_name_of_pod;
use usher_spark::pod::Pod;
use usher_spark::role::Role;
use usher_spark::time::age;

/// The status of a driver, as `spark-usher status -o json` prints it. Times are RFC 3339, as the API server wrote them.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DriverStatus {
    /// `namespace:name`.
    pub submission_id: String,
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub name: String,
    /// The pod's uid.
    pub uid: String,
    /// The label `spark-app-selector`.
    pub app_id: Option<String>,
    /// The label `spark-app-name`, since Spark 3.3.
    pub app_name: Option<String>,
    /// `pending`, `running`, `terminating`, `succeeded` or `failed`.
    pub state: &'static str,
    /// The pod's phase.
    pub phase: Option<String>,
    /// The node to which it is bound.
    pub node: Option<String>,
    /// When the pod was created.
    pub created: Option<String>,
    /// When the driver's container started.
    pub started: Option<String>,
    /// When it exited.
    pub finished: Option<String>,
    pub exit_code: Option<i32>,
    /// How often its container was restarted.
    pub restarts: u32,
    /// Why it is in this state.
    pub why: Option<String>,
    /// Whether it has exited.
    #[serde(skip)]
    pub is_over: bool,
    /// The pod's role by its labels.
    #[serde(skip)]
    pub role: Role,
    /// The container that runs the driver.
    #[serde(skip)]
    pub container: Option<String>,
    #[serde(skip)]
    pub pod: Value,
}

impl DriverStatus {
    /// Reads a pod; `None` if it cannot be read.
    pub fn read(json: &str) -> Option<DriverStatus> {
        let value: Value = serde_json::from_str(json).ok()?;
        let pod = match Pod::read_whole(json.as_bytes()) {
            Ok(pod) => pod,
            Err(error) => return DriverStatus::of_unreadable(value, &error),
        };
        let facts = DriverPod::of(&pod, &SchedulingKeys::default());
        let owned = |path: &[&str]| Some(text(&value, path)).filter(|text| !text.is_empty()).map(str::to_owned);
        let namespace = owned(&["metadata", "namespace"])?;
        let name = owned(&["metadata", "name"])?;
        let spark = pod.spark_container();
        let container =
            pod.container_names().find(|name| *name == spark).or(pod.container_names().next()).map(str::to_owned);
        let state = container.as_deref().and_then(|name| state_of(&value, name));
        let time = |condition: &str, key: &str| {
            let time = text(state?, &[condition, key]);
            (!time.is_empty()).then(|| time.to_owned())
        };
        let status = facts.diagnostics.as_ref().and_then(|diagnostics| diagnostics.spark());
        let exit_code = status.and_then(|container| Some(container.ended()?.code));
        let of_state = || state.and_then(|state| at(state, &["terminated", "exitCode"])?.as_i64()?.try_into().ok());
        // Only the pod is known.
        let app = AppKey::new(&namespace, facts.selector.as_deref().unwrap_or_default());
        let not_scheduled = waiting::not_scheduled(&Snapshot::default(), &app, (&facts).into());
        Some(DriverStatus {
            submission_id: format!("{namespace}:{name}"),
            uid: owned(&["metadata", "uid"])?,
            app_id: pod.app_selector().map(str::to_owned),
            app_name: pod.label(labels::APP_NAME).map(str::to_owned),
            state: facts.state(),
            phase: owned(&["status", "phase"]),
            node: facts.node.as_deref().map(str::to_owned),
            created: owned(&["metadata", "creationTimestamp"]),
            started: time("running", "startedAt").or_else(|| time("terminated", "startedAt")),
            finished: time("terminated", "finishedAt"),
            exit_code: exit_code.or_else(of_state),
            restarts: status.map_or(0, |container| container.restarts),
            why: facts.why(not_scheduled).or_else(|| {
                let is_starting = facts.phase == DriverPhase::Pending && !facts.deleting;
                is_starting.then(|| facts.scheduling.awaited(facts.node.as_deref()))
            }),
            is_over: facts.phase == DriverPhase::Ended,
            role: pod.role(),
            container,
            namespace,
            name,
            pod: value,
        })
    }

    /// A driver whose pod has something that cannot be read: it can be named, watched and deleted all the same.
    fn of_unreadable(value: Value, error: &dyn std::fmt::Display) -> Option<DriverStatus> {
        let owned = |path: &[&str]| Some(text(&value, path)).filter(|text| !text.is_empty()).map(str::to_owned);
        let (namespace, name) = (owned(&["metadata", "namespace"])?, owned(&["metadata", "name"])?);
        let (phase, role) = (owned(&["status", "phase"]), owned(&["metadata", "labels", labels::ROLE]));
        let state = match phase.as_deref() {
            Some("Succeeded") => "succeeded",
            Some("Failed") => "failed",
            _ if owned(&["metadata", "deletionTimestamp"]).is_some() => "terminating",
            Some("Running") => "running",
            _ => "pending",
        };
        Some(DriverStatus {
            submission_id: format!("{namespace}:{name}"),
            uid: owned(&["metadata", "uid"])?,
            app_id: owned(&["metadata", "labels", labels::APP_SELECTOR]),
            app_name: owned(&["metadata", "labels", labels::APP_NAME]),
            state,
            node: owned(&["spec", "nodeName"]),
            created: owned(&["metadata", "creationTimestamp"]),
            started: owned(&["status", "startTime"]).filter(|_| phase.as_deref() != Some("Pending")),
            finished: None,
            exit_code: None,
            restarts: 0,
            why: Some(format!("the pod cannot be read: {error}")),
            is_over: matches!(state, "succeeded" | "failed"),
            role: Role::from_label(role.as_deref()),
            container: container(&value),
            phase,
            namespace,
            name,
            pod: value,
        })
    }

    /// Without the whole pod, for a long list.
    #[must_use]
    pub fn without_pod(self) -> DriverStatus {
        DriverStatus { pod: Value::Null, ..self }
    }

    /// What people call its application: its label says so, else its pod's name without the unique part.
    pub fn shown_name(&self) -> &str {
        self.app_name.as_deref().unwrap_or_else(|| app_name_of_pod(&self.name))
    }

    /// What there is to know beside the state, for people.
    pub fn detail(&self) -> String {
        let ran = || {
            let (started, finished) = (self.started.as_deref()?, self.finished.as_deref()?);
            let (started, finished) = (started.parse::<Timestamp>().ok()?, finished.parse::<Timestamp>().ok()?);
            Some(format!("after {}", age(finished.duration_since(started).as_secs())))
        };
        let place = self.node.as_ref().filter(|_| !self.is_over).map(|node| format!("on {node}"));
        let parts = match self.state {
            // It says where.
            "pending" => [None, self.why.clone()],
            _ => [if self.is_over { ran() } else { place }, self.why.clone()],
        };
        parts.into_iter().flatten().collect::<Vec<_>>().join(": ")
    }

    /// Whether the driver ended well. `None` while it has not ended.
    pub fn has_succeeded(&self) -> Option<bool> {
        self.is_over.then_some(self.state == "succeeded")
    }
}

/// The same rule as [`Pod::spark_container`], for a pod that cannot be read.
fn container(pod: &Value) -> Option<String> {
    let containers = list(pod, &["spec", "containers"]);
    let is_named = |container: &&Value| text(container, &["name"]) == labels::DRIVER_CONTAINER;
    let drives = |container: &&Value| list(container, &["args"]).first().and_then(Value::as_str) == Some("driver");
    let found = containers.iter().find(is_named).or_else(|| containers.iter().find(drives)).or(containers.first())?;
    Some(text(found, &["name"]).to_owned())
}

fn state_of<'v>(pod: &'v Value, container: &str) -> Option<&'v Value> {
    let statuses = list(pod, &["status", "containerStatuses"]);
    at(statuses.iter().find(|status| text(status, &["name"]) == container)?, &["state"])
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(status: &Value) -> DriverStatus {
        let pod = json!({"metadata": {"namespace": "team", "name": "pi-driver", "uid": "u1", "creationTimestamp": "2026-11-25T00:00:00Z",
            "labels": {"spark-role": "driver", "spark-app-selector": "spark-1", "spark-app-name": "pi"}},
            "spec": {"restartPolicy": "Never", "schedulerName": "volcano", "nodeName": if status["phase"] == "Pending" { Value::Null } else { json!("node-1") },
                "containers": [{"name": "log-shipper"}, {"name": "spark-kubernetes-driver", "args": ["driver"]}]},
            "status": status});
        DriverStatus::read(&pod.to_string()).unwrap()
    }

    fn terminated(code: i32, phase: &str) -> Value {
        json!({"phase": phase, "containerStatuses": [{"name": "log-shipper", "state": {"running": {}}},
            {"name": "spark-kubernetes-driver", "state": {"terminated": {"exitCode": code, "reason": "OOMKilled",
            "startedAt": "2026-11-25T00:00:05Z", "finishedAt": "2026-11-25T00:01:00Z"}}}]})
    }

    #[test]
    fn driver_that_waits_says_for_what() {
        let status = pod(&json!({"phase": "Pending"}));
        assert_eq!((status.state, status.why.as_deref()), ("pending", Some("waits for volcano to assign a node")));
        let status = pod(&json!({"phase": "Pending", "conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes fit"}]}));
        assert_eq!(status.why.as_deref(), Some("is not scheduled: 0/3 nodes fit"));
        assert_eq!(status.has_succeeded(), None);
    }

    #[test]
    fn exit_is_that_of_the_drivers_own_container() {
        let status = pod(&terminated(137, "Failed"));
        assert_eq!((status.state, status.exit_code, status.has_succeeded()), ("failed", Some(137), Some(false)));
        assert_eq!(status.finished.as_deref(), Some("2026-11-25T00:01:00Z"));
        assert!(
            status.detail().starts_with("after 55s: container spark-kubernetes-driver exited"),
            "{}",
            status.detail()
        );
        assert!(
            status.why.as_deref().unwrap().contains("137(SIGKILL, possible container OOM), OOMKilled"),
            "{status:?}"
        );
        // The sidecar keeps the pod running.
        let status = pod(&terminated(0, "Running"));
        assert_eq!((status.state, status.exit_code, status.has_succeeded()), ("succeeded", Some(0), Some(true)));
        assert!(status.detail().starts_with("after 55s"), "{}", status.detail());
    }

    #[test]
    fn json_has_the_submission_id_and_no_internals() {
        let status = pod(&json!({"phase": "Running", "containerStatuses": [
            {"name": "spark-kubernetes-driver", "state": {"running": {"startedAt": "2026-11-25T00:00:05Z"}}}]}));
        assert_eq!(
            serde_json::to_value(&status).unwrap(),
            json!({
            "submissionId": "team:pi-driver", "namespace": "team", "name": "pi-driver", "uid": "u1", "appId": "spark-1",
            "appName": "pi", "state": "running", "phase": "Running", "node": "node-1", "created": "2026-11-25T00:00:00Z",
            "started": "2026-11-25T00:00:05Z", "finished": null, "exitCode": null, "restarts": 0, "why": null})
        );
    }

    #[test]
    fn pod_with_more_than_is_read_of_others_is_still_a_driver() {
        let containers: Vec<_> = (0..100).map(|n| json!({"name": format!("c{n}")})).collect();
        let pod = json!({"metadata": {"namespace": "n", "name": "d", "uid": "u", "labels": {"spark-role": "driver",
            "spark-app-selector": "spark-1"}}, "spec": {"containers": containers}, "status": {"phase": "Running"}});
        let status = DriverStatus::read(&pod.to_string()).unwrap();
        assert_eq!(
            (status.submission_id.as_str(), status.uid.as_str(), status.state, status.app_id.as_deref(), status.role),
            ("n:d", "u", "running", Some("spark-1"), Role::Driver)
        );
        assert!(status.detail().contains("cannot be read"), "{}", status.detail());
    }

    #[test]
    fn pod_that_cannot_be_read_is_none() {
        for bad in ["", "[]", "{}", r#"{"metadata": {"name": "x", "namespace": "y"}}"#] {
            assert_eq!(DriverStatus::read(bad), None, "{bad}");
        }
    }
}
