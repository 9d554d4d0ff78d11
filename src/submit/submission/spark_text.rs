//! What spark-submit prints about a driver's pod, to the byte (`KubernetesUtils.formatPodState`, `LoggingPodStatusWatcher`).

use serde_json::Value;

use super::driver::DriverStatus;
use usher_spark::json::{at, entries, list, text};

/// What stands for a value that there is not.
const NOTHING: &str = "N/A";

/// `State changed, new state: ` and the pod.
pub fn long_status(driver: &DriverStatus) -> String {
    format!("State changed, new state: {}", pod_block(&driver.pod))
}

/// The line that is repeated at each interval.
pub fn short_status(app_id: &str, phase: Option<&str>) -> String {
    format!("Application status for {app_id} (phase: {})", phase.unwrap_or("unknown"))
}

/// Before waiting.
pub fn waiting(name: &str, app_id: &str, submission_id: &str) -> String {
    format!(
        "Waiting for application {name} with application ID {app_id} and submission ID {submission_id} to finish..."
    )
}

/// After waiting: the containers of the last pod that was seen, and that it has finished.
pub fn finished(name: &str, app_id: &str, submission_id: &str, driver: Option<&DriverStatus>) -> [String; 2] {
    let containers = driver.map(|driver| list(&driver.pod, &["status", "containerStatuses"])).unwrap_or_default();
    let last = if containers.is_empty() {
        "No containers were found in the driver pod.".to_owned()
    } else {
        format!(
            "Container final statuses:\n\n{}",
            containers.iter().map(|one| container_block(one, 1)).collect::<Vec<_>>().join("\n\n")
        )
    };
    let end = format!("Application {name} with application ID {app_id} and submission ID {submission_id} finished");
    [last, end]
}

/// The pod, each line after a line break, a tab and a space.
pub fn pod_block(pod: &Value) -> String {
    let labels: Vec<String> =
        entries(pod, &["metadata", "labels"]).map(|(key, value)| format!("{key} -> {value}")).collect();
    let volumes: Vec<&str> = list(pod, &["spec", "volumes"]).iter().map(|volume| text(volume, &["name"])).collect();
    let containers: Vec<String> =
        list(pod, &["status", "containerStatuses"]).iter().map(|status| container_block(status, 2)).collect();
    block(
        1,
        &[
            ("pod name", text(pod, &["metadata", "name"])),
            ("namespace", text(pod, &["metadata", "namespace"])),
            ("labels", &labels.join(", ")),
            ("pod uid", text(pod, &["metadata", "uid"])),
            ("creation time", text(pod, &["metadata", "creationTimestamp"])),
            ("service account name", text(pod, &["spec", "serviceAccountName"])),
            ("volumes", &volumes.join(", ")),
            ("node name", text(pod, &["spec", "nodeName"])),
            ("start time", text(pod, &["status", "startTime"])),
            ("phase", text(pod, &["status", "phase"])),
            ("container status", &containers.join("\n\n")),
        ],
    )
}

pub(super) fn container_block(status: &Value, indent: usize) -> String {
    let state = |kind: &str| at(status, &["state", kind]);
    let mut pairs = vec![("container name", text(status, &["name"])), ("container image", text(status, &["image"]))];
    let code;
    if let Some(running) = state("running") {
        pairs.push(("container state", "running"));
        pairs.push(("container started at", text(running, &["startedAt"])));
    } else if let Some(terminated) = state("terminated") {
        code = at(terminated, &["exitCode"]).map(Value::to_string).unwrap_or_default();
        pairs.push(("container state", "terminated"));
        pairs.push(("container started at", text(terminated, &["startedAt"])));
        pairs.push(("container finished at", text(terminated, &["finishedAt"])));
        pairs.push(("exit code", &code));
        pairs.push(("termination reason", text(terminated, &["reason"])));
    } else if let Some(waiting) = state("waiting") {
        pairs.push(("container state", "waiting"));
        pairs.push(("pending reason", text(waiting, &["reason"])));
    } else {
        pairs.push(("container state", NOTHING));
    }
    block(indent, &pairs)
}

fn block(indent: usize, pairs: &[(&str, &str)]) -> String {
    let line = |(key, value): &(&str, &str)| {
        let value = if value.is_empty() { NOTHING } else { value };
        format!("\n{} {key}: {value}", "\t".repeat(indent))
    };
    pairs.iter().map(line).collect()
}
