//! The history of a pod, or of an application, in the order of time: from its own fields, from Events, and from what is reported about it.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde_json::Value;

use super::recovery_reports::DeletionReport;
use super::reports::{DriverRowReport, ExitReport, HistoryEntry, HistoryReport};
use usher_core::annotations;
use usher_core::gang;
use usher_spark::json::{at, entries, list, text};
use usher_spark::labels;
use usher_spark::text::{harmless, truncated};
use usher_spark::time::in_seconds;

/// At most this many Events of a pod are done, the newest.
const MAX_EVENTS: usize = 30;
/// The longest message of an Event.
const MAX_MESSAGE: usize = 600;

/// Entries that are not in order yet.
#[derive(Debug, Default)]
pub struct HistoryBuilder(Vec<(Timestamp, Step, HistoryEntry)>);

/// The order of what has the same time: the API server's times are whole seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Created,
    Scheduled,
    #[default]
    Other,
    Started,
    Ended,
    Deleted,
}

impl HistoryBuilder {
    fn add(&mut self, time: &str, by: &str, what: impl AsRef<str>) {
        self.step(Step::Other, time, by, what);
    }

    fn step(&mut self, step: Step, time: &str, by: &str, what: impl AsRef<str>) {
        let Ok(at) = time.parse::<Timestamp>() else { return };
        let entry = HistoryEntry { at: in_seconds(at), by: harmless(by), what: harmless(what.as_ref()) };
        self.push(at, step, entry);
    }

    fn push(&mut self, at: Timestamp, step: Step, entry: HistoryEntry) {
        if !self.0.iter().any(|(_, _, known)| *known == entry) {
            self.0.push((at, step, entry));
        }
    }

    /// What a pod's own fields say.
    pub fn pod(&mut self, pod: &Value) {
        let meta = |key: &str| text(pod, &["metadata", key]);
        let role = entries(pod, &["metadata", "labels"]).find(|(key, _)| *key == labels::ROLE).map(|(_, role)| role);
        let what = match role {
            Some(labels::ROLE_EXECUTOR) => "its driver created the pod",
            _ => "the pod was created",
        };
        self.step(Step::Created, meta("creationTimestamp"), "pod", format!("{what}; {}", admitted(pod)));
        for condition in list(pod, &["status", "conditions"]) {
            let field = |key: &str| text(condition, &[key]);
            let (is_true, since) = (field("status") == "True", field("lastTransitionTime"));
            let why = [field("reason"), field("message")]
                .iter()
                .filter(|text| !text.is_empty())
                .copied()
                .collect::<Vec<_>>()
                .join(": ");
            match (field("type"), is_true) {
                ("PodScheduled", true) => {
                    let node = text(pod, &["spec", "nodeName"]);
                    self.step(Step::Scheduled, since, "pod", format!("scheduled to node {node}"));
                }
                ("PodScheduled", false) => self.add(since, "pod", format!("not scheduled since then: {why}")),
                ("DisruptionTarget", true) => self.add(since, "pod", format!("disrupted: {why}")),
                _ => {}
            }
        }
        for statuses in ["initContainerStatuses", "containerStatuses"] {
            for status in list(pod, &["status", statuses]) {
                self.container(text(status, &["name"]), status);
            }
        }
        let grace = at(pod, &["metadata", "deletionGracePeriodSeconds"]).and_then(Value::as_i64).unwrap_or_default();
        if let Ok(until) = meta("deletionTimestamp").parse::<Timestamp>() {
            let asked = until - jiff::SignedDuration::from_secs(grace);
            let finalizers: Vec<&str> =
                list(pod, &["metadata", "finalizers"]).iter().filter_map(Value::as_str).collect();
            let blocked =
                if finalizers.is_empty() { String::new() } else { format!("; blocked by {}", finalizers.join(", ")) };
            self.step(
                Step::Deleted,
                &asked.to_string(),
                "pod",
                format!("its deletion was requested, with {grace} s to stop{blocked}"),
            );
        }
    }

    fn container(&mut self, name: &str, status: &Value) {
        let restarts = at(status, &["restartCount"]).and_then(Value::as_i64).filter(|count| *count > 0);
        let restarts = restarts.map_or_else(String::new, |count| format!(" again (restart {count})"));
        for (state, again) in [("lastState", ""), ("state", restarts.as_str())] {
            for kind in ["running", "terminated"] {
                let time = text(status, &[state, kind, "startedAt"]);
                self.step(Step::Started, time, "pod", format!("container {name} started{again}"));
            }
            let Some(terminated) = at(status, &[state, "terminated"]) else { continue };
            let code = at(terminated, &["exitCode"]).and_then(Value::as_i64).unwrap_or_default();
            let reason = [text(terminated, &["reason"]), text(terminated, &["message"])];
            let reason: Vec<&str> = reason.into_iter().filter(|text| !text.is_empty()).collect();
            let reason = if reason.is_empty() { String::new() } else { format!(" ({})", reason.join(": ")) };
            let what = format!("container {name} exited with code {code}{reason}");
            match text(terminated, &["finishedAt"]) {
                "" => {
                    let entry = HistoryEntry {
                        at: "at an unknown time".to_owned(),
                        by: "pod".to_owned(),
                        what: harmless(&what),
                    };
                    self.push(Timestamp::MAX, Step::Ended, entry);
                }
                time => self.step(Step::Ended, time, "pod", what),
            }
        }
    }

    /// What Events say; of either API.
    pub fn events(&mut self, events: &[Value]) {
        let mut all: Vec<(&str, String, String)> = events.iter().filter_map(event).collect();
        all.sort();
        let skipped = all.len().saturating_sub(MAX_EVENTS);
        for (time, by, what) in all.into_iter().skip(skipped) {
            self.add(time, &by, what);
        }
    }

    /// What the driver's REST API says.
    pub fn driver_row(&mut self, row: &DriverRowReport) {
        if let Some(time) = &row.registered {
            self.add(time, "driver", "it registered with its driver");
        }
        if let Some(time) = &row.removed {
            let why = row.reason.as_deref().map_or_else(String::new, |reason| format!(": {reason}"));
            self.add(time, "driver", format!("its driver removed it{why}"));
        }
    }

    /// How an executor exited. `pod` names it in the history of its application.
    pub fn exit(&mut self, exit: &ExitReport, is_of_app: bool) {
        let pod = if is_of_app { format!("{}: ", exit.pod) } else { String::new() };
        let detail = if exit.detail.is_empty() { String::new() } else { format!("; {}", exit.detail) };
        self.add(&exit.at, annotations::USHER, format!("{pod}exited, {}: {}{detail}", exit.cause, exit.text));
        if let Some(recovery) = &exit.recovery {
            self.add(&exit.at, annotations::USHER, format!("{pod}{recovery}"));
        }
    }

    /// That a recovery rule deleted a pod.
    pub fn deletion(&mut self, deletion: &DeletionReport) {
        let (pod, rule, message) = (&deletion.pod, &deletion.rule, &deletion.message);
        self.add(&deletion.at, annotations::USHER, format!("{pod}: deleted by the rule {rule}: {message}"));
    }

    /// The history, in order. What happened in the same second is in the order of a pod's life, and then in the order in which it was
    /// added.
    pub fn finish(mut self, subject: &str) -> HistoryReport {
        let second = |at: &Timestamp| at.as_second();
        self.0.sort_by_key(|(at, step, _)| (second(at), *step, *at));
        HistoryReport { of: subject.to_owned(), entries: self.0.into_iter().map(|(_, _, entry)| entry).collect() }
    }
}

/// What admission made of a pod: who decided, which scheduler, group and owner it has.
fn admitted(pod: &Value) -> String {
    let annotation = |key: &str| {
        let mut all = entries(pod, &["metadata", "annotations"]);
        all.find(|(name, _)| *name == key).map(|(_, value)| value)
    };
    let mut parts = Vec::new();
    match annotation(annotations::BY).map(|by| by.split_once('/').unwrap_or((by, ""))) {
        Some((annotations::BY_FALLBACK, _)) => parts.push("the fallback policy admitted it".to_owned()),
        Some((policy, kind)) => parts.push(format!("spark-usher admitted it by policy {policy} ({kind})")),
        None if annotation(annotations::SIGNATURE).is_some() => parts.push("spark-usher admitted it".to_owned()),
        None => parts.push("no policy of spark-usher set its scheduling".to_owned()),
    }
    let scheduler = text(pod, &["spec", "schedulerName"]);
    parts.push(format!("scheduler {}", if scheduler.is_empty() { "default-scheduler" } else { scheduler }));
    let keys: BTreeSet<String> = gang::keys()
        .filter_map(|(field, key)| {
            let mut all = entries(pod, &["metadata", field.as_str()]);
            all.find(|(name, _)| *name == key).map(|(_, value)| format!("{key}={value}"))
        })
        .collect();
    parts.extend((!keys.is_empty()).then(|| keys.into_iter().collect::<Vec<_>>().join(", ")));
    let group = text(pod, &["spec", "schedulingGroup", "podGroupName"]);
    parts.extend((!group.is_empty()).then(|| format!("PodGroup {group}")));
    parts.push(match usher_spark::json::controller(pod) {
        Some(owner) => format!("owned by {} {}", text(owner, &["kind"]), text(owner, &["name"])),
        None => "no owner".to_owned(),
    });
    parts.join("; ")
}

/// When an Event was seen last, by whom, and what it says.
fn event(event: &Value) -> Option<(&str, String, String)> {
    let first_of = |paths: &[&[&str]]| paths.iter().map(|path| text(event, path)).find(|text| !text.is_empty());
    let time = first_of(&[
        &["series", "lastObservedTime"],
        &["lastTimestamp"],
        &["deprecatedLastTimestamp"],
        &["eventTime"],
        &["firstTimestamp"],
        &["metadata", "creationTimestamp"],
    ])?;
    let by = first_of(&[
        &["reportingComponent"],
        &["reportingController"],
        &["source", "component"],
        &["deprecatedSource", "component"],
    ]);
    let count = [&["series", "count"][..], &["count"], &["deprecatedCount"]];
    let count = count.iter().find_map(|path| at(event, path)?.as_i64()).filter(|count| *count > 1);
    let times = count.map_or_else(String::new, |count| format!(" ({count} times)"));
    let message = first_of(&[&["message"], &["note"]]).unwrap_or_default();
    let reason = text(event, &["reason"]);
    Some((time, by.unwrap_or("Event").to_owned(), format!("{reason}: {}{times}", truncated(message, MAX_MESSAGE))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn whats(history: &HistoryReport) -> Vec<&str> {
        history.entries.iter().map(|entry| entry.what.as_str()).collect()
    }

    fn executor() -> Value {
        json!({"metadata": {"name": "e-1", "creationTimestamp": "2026-11-25T00:00:00Z", "labels": {"spark-role": "executor"},
                "deletionTimestamp": "2026-11-25T00:05:30Z", "deletionGracePeriodSeconds": 30, "finalizers": ["a/b"],
                "annotations": {"spark-usher.io/by": "batch/volcano", "scheduling.k8s.io/group-name": "g"},
                "ownerReferences": [{"kind": "Pod", "name": "d", "controller": true}]},
            "spec": {"schedulerName": "volcano", "nodeName": "node-1"},
            "status": {"conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-11-25T00:00:02Z"},
                    {"type": "DisruptionTarget", "status": "True", "lastTransitionTime": "2026-11-25T00:04:59Z", "reason": "PreemptionByScheduler"}],
                "containerStatuses": [{"name": "spark", "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled",
                    "startedAt": "2026-11-25T00:00:05Z", "finishedAt": "2026-11-25T00:04:00Z"}}}]}})
    }

    #[test]
    fn what_has_one_time_is_in_the_order_of_a_pods_life() {
        let at = "2026-11-25T00:00:00Z";
        let mut history = HistoryBuilder::default();
        history.events(&[
            json!({"reason": "Pulled", "message": "x", "lastTimestamp": at, "source": {"component": "kubelet"}}),
        ]);
        history.pod(&json!({"metadata": {"name": "d", "creationTimestamp": at},
            "spec": {"nodeName": "node-1"}, "status": {
                "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": at}],
                "containerStatuses": [{"name": "spark", "state": {"terminated": {"exitCode": 137, "startedAt": at}}}]}}));
        let history = history.finish("d");
        let whats = whats(&history);
        for (what, words) in whats.iter().zip(["was created", "scheduled", "Pulled", "started", "exited with code 137"])
        {
            assert!(what.contains(words), "{whats:?}");
        }
        assert_eq!(history.entries[4].at, "at an unknown time");
    }

    #[test]
    fn container_that_was_restarted_says_how_it_had_exited() {
        let mut history = HistoryBuilder::default();
        history.pod(&json!({"metadata": {"creationTimestamp": "2026-11-25T00:00:00Z"}, "status": {"containerStatuses": [
            {"name": "spark", "restartCount": 2, "state": {"running": {"startedAt": "2026-11-25T00:03:00Z"}},
                "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled", "startedAt": "2026-11-25T00:01:00Z",
                    "finishedAt": "2026-11-25T00:02:00Z"}}}]}}));
        let history = history.finish("d");
        let expected = [
            "container spark started",
            "container spark exited with code 137 (OOMKilled)",
            "container spark started again (restart 2)",
        ];
        assert_eq!(whats(&history)[1..], expected);
    }

    #[test]
    fn pod_and_events_are_one_history_in_order() {
        let mut history = HistoryBuilder::default();
        history.events(&[
            json!({"reason": "Pulled", "message": "image x", "lastTimestamp": "2026-11-25T00:00:04Z", "count": 3, "source": {"component": "kubelet"}}),
            json!({"reason": "BackOff", "note": "n", "eventTime": "2026-11-25T00:00:03.5Z", "reportingController": "kubelet\u{1b}"}),
            json!({"reason": "NoTime", "message": "x"}),
        ]);
        history.pod(&executor());
        history.driver_row(&DriverRowReport {
            registered: Some("2026-11-25T00:00:09Z".into()),
            removed: Some("2026-11-25T00:04:10Z".into()),
            reason: Some("heartbeat timed out".into()),
        });
        let history = history.finish("n/e-1");
        assert_eq!(
            whats(&history),
            [
                "its driver created the pod; spark-usher admitted it by policy batch (volcano); scheduler volcano; \
                 scheduling.k8s.io/group-name=g; owned by Pod d",
                "scheduled to node node-1",
                "BackOff: n",
                "Pulled: image x (3 times)",
                "container spark started",
                "it registered with its driver",
                "container spark exited with code 137 (OOMKilled)",
                "its driver removed it: heartbeat timed out",
                "disrupted: PreemptionByScheduler",
                "its deletion was requested, with 30 s to stop; blocked by a/b",
            ]
        );
        assert_eq!((history.entries[2].by.as_str(), history.entries[3].by.as_str()), ("kubelet\u{fffd}", "kubelet"));
        assert!(history.entries.is_sorted_by_key(|entry| &entry.at));
    }

    #[test]
    fn pod_that_never_started_says_since_when_and_why() {
        let mut history = HistoryBuilder::default();
        history.pod(&json!({"metadata": {"creationTimestamp": "2026-11-25T00:00:00Z", "labels": {"spark-role": "driver"}},
            "status": {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes",
                "lastTransitionTime": "2026-11-25T00:00:01Z"}]}}));
        let history = history.finish("n/d");
        assert_eq!(
            whats(&history),
            [
                "the pod was created; no policy of spark-usher set its scheduling; scheduler default-scheduler; no owner",
                "not scheduled since then: Unschedulable: 0/3 nodes"
            ]
        );
    }

    #[test]
    fn newest_events_are_kept_and_malformed_ones_skipped() {
        let mut history = HistoryBuilder::default();
        let events: Vec<Value> = (0..50)
            .map(|second| json!({"reason": "R", "message": second.to_string(), "lastTimestamp": format!("2026-11-25T00:00:{second:02}Z")}))
            .chain([json!([]), json!({"lastTimestamp": "soon", "reason": "R"})])
            .collect();
        history.events(&events);
        let history = history.finish("x");
        assert!(history.entries.len() >= MAX_EVENTS - 1 && history.entries.len() <= MAX_EVENTS);
        assert_eq!(history.entries.last().unwrap().what, "R: 49");
    }
}
