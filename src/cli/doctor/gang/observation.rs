//! A snapshot of an application: its pods and its PodGroup, and their state.

use serde_json::Value;

use super::plan::Setup;
use usher_core::annotations;
use usher_core::gang::{GroupKeyField, Membership, Shape};
use usher_core::snapshot::group_size;
use usher_spark::json::{at, entries, list, text};
use usher_spark::labels;

/// Pods and PodGroup of one poll.
#[derive(Clone, Debug, Default)]
pub(super) struct Observation {
    pub(super) pods: Vec<Value>,
    pub(super) group: Option<Value>,
}

/// Reports whether a pod is bound to a node.
pub(super) fn is_bound(pod: &Value) -> bool {
    !text(pod, &["spec", "nodeName"]).is_empty()
        || scheduled(pod).is_some_and(|condition| text(condition, &["status"]) == "True")
}

fn scheduled(pod: &Value) -> Option<&Value> {
    list(pod, &["status", "conditions"]).iter().find(|condition| text(condition, &["type"]) == "PodScheduled")
}

/// Reports whether an object is being deleted.
pub(super) fn is_deleting(object: &Value) -> bool {
    at(object, &["metadata", "deletionTimestamp"]).is_some()
}

pub(super) fn name(object: &Value) -> &str {
    text(object, &["metadata", "name"])
}

pub(super) fn uid(object: &Value) -> &str {
    text(object, &["metadata", "uid"])
}

fn is_running(pod: &Value) -> bool {
    text(pod, &["status", "phase"]) == "Running"
}

fn role(pod: &Value) -> &str {
    text(pod, &["metadata", "labels", labels::ROLE])
}

impl Observation {
    pub(super) fn driver(&self) -> Option<&Value> {
        self.pods.iter().find(|pod| role(pod) == labels::ROLE_DRIVER)
    }

    pub(super) fn executors(&self) -> impl Iterator<Item = &Value> {
        self.pods.iter().filter(|pod| role(pod) == labels::ROLE_EXECUTOR)
    }

    /// Number of bound executors.
    pub(super) fn bound(&self) -> usize {
        self.executors().filter(|pod| is_bound(pod)).count()
    }

    /// Number of running executors.
    pub(super) fn running(&self) -> usize {
        self.executors().filter(|pod| is_running(pod)).count()
    }

    /// Reports whether a kubelet runs pods here: the driver runs.
    pub(super) fn has_kubelet(&self) -> bool {
        self.driver().is_some_and(is_running)
    }

    /// Whether the PodGroup says that the whole gang has run; `None` without one.
    pub(super) fn has_started(&self) -> Option<bool> {
        let group = self.group.as_ref()?;
        Some(text(group, &["metadata", "annotations", annotations::STARTED]) == "true")
    }

    /// The count in the PodGroup.
    pub(super) fn count(&self) -> Option<u64> {
        group_size(at(self.group.as_ref()?, &["spec"])?)
    }

    /// The schedulers' messages about the pods that wait, without duplicates.
    pub(super) fn waits(&self) -> String {
        let mut messages: Vec<String> = Vec::new();
        for pod in self.pods.iter().filter(|pod| !is_bound(pod)) {
            let gates = list(pod, &["spec", "schedulingGates"]).iter().map(|gate| text(gate, &["name"]));
            let gates = gates.collect::<Vec<_>>().join(", ");
            let message = scheduled(pod).map(|condition| text(condition, &["message"])).unwrap_or_default();
            let line = match (gates.is_empty(), message.is_empty()) {
                (false, _) => format!("pods are held by the scheduling gate {gates}"),
                (true, false) => format!("{} reports: {message}", text(pod, &["spec", "schedulerName"])),
                (true, true) => {
                    format!("{} reports nothing about {}", text(pod, &["spec", "schedulerName"]), name(pod))
                }
            };
            if !messages.contains(&line) && messages.len() < 3 {
                messages.push(line);
            }
        }
        messages.join("; ")
    }
}

/// The policy and the scheduler type that the webhook applied to a pod.
pub(super) fn set_by(pod: &Value) -> Option<(&str, &str)> {
    text(pod, &["metadata", "annotations", annotations::BY]).split_once('/')
}

/// The gang that a pod names to its scheduler.
pub(super) fn group_of<'p>(setup: &Setup, pod: &'p Value) -> Option<&'p str> {
    let name = match setup.scheduler.group_key {
        GroupKeyField::None => "",
        GroupKeyField::Metadata(place, key) => text(pod, &["metadata", place.as_str(), key]),
        GroupKeyField::SchedulingGroup => text(pod, &["spec", "schedulingGroup", "podGroupName"]),
    };
    Some(name).filter(|name| !name.is_empty())
}

/// Checks that an executor was admitted as the policy states, and `joins` its gang; the error names what is missing.
pub(super) fn check_admitted(setup: &Setup, pod: &Value, joins: bool) -> Result<(), String> {
    match set_by(pod) {
        Some((policy, kind)) if policy == setup.policy && kind == setup.scheduler.kind => {}
        Some((policy, kind)) => {
            return Err(format!(
                "policy {policy} ({kind}) was applied to executor {}: expected that of its driver, {} ({})",
                name(pod),
                setup.policy,
                setup.scheduler.kind
            ));
        }
        None => {
            return Err(format!("the webhook applied no policy to executor {}", name(pod)));
        }
    }
    if !joins && group_of(setup, pod).is_some() {
        return Err(format!("executor {} joins a gang that has started, and whose count cannot change", name(pod)));
    }
    let names_group = joins && setup.shape == Shape::Executors && setup.membership == Membership::PodGroup;
    if names_group && setup.scheduler.group_key != GroupKeyField::None && group_of(setup, pod).is_none() {
        let native = setup.scheduler.group_key == GroupKeyField::SchedulingGroup;
        let hint = if native { " (the API server drops spec.schedulingGroup without its feature gates)" } else { "" };
        return Err(format!("executor {} names no gang{hint}", name(pod)));
    }
    Ok(())
}

/// Reports whether a pod carries its gang's size, if the scheduler reads that from pods.
pub(super) fn is_sized(setup: &Setup, pod: &Value) -> bool {
    match setup.membership {
        Membership::PodGroup => group_of(setup, pod).is_some(),
        Membership::Annotations => {
            let mut keys = setup.scheduler.more_keys.iter();
            keys.all(|(place, key)| at(pod, &["metadata", place.as_str(), key]).is_some())
        }
    }
}

/// Reports whether the driver with this uid is the controlling owner.
pub(super) fn is_owned_by(pod: &Value, driver: &str) -> bool {
    list(pod, &["metadata", "ownerReferences"]).iter().any(|owner| text(owner, &["uid"]) == driver)
}

/// Annotations that spark-usher wrote onto a pod, for a line of the report.
pub(super) fn notes(pod: &Value) -> String {
    let ours = entries(pod, &["metadata", "annotations"]).filter(|(key, _)| key.starts_with(annotations::PREFIX));
    ours.map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use usher_core::gang::GangScheduler;

    fn setup(kind: &str) -> Setup {
        let scheduler = GangScheduler::of_kind(kind).unwrap();
        Setup::of("p", scheduler, None, &scheduler.apis.iter().map(|api| api.api_version()).collect::<Vec<_>>())
    }

    fn executor(by: &str) -> Value {
        json!({"metadata": {"name": "e", "labels": {"spark-role": "executor"}, "annotations": {"spark-usher.io/by": by}},
            "spec": {"schedulerName": "volcano"}})
    }

    #[test]
    fn error_states_what_executor_lacks() {
        let mut pod = executor("p/volcano");
        let rejection = |pod: &Value| check_admitted(&setup("volcano"), pod, true).unwrap_err();
        assert_eq!(rejection(&pod), "executor e names no gang");
        pod["metadata"]["annotations"]["scheduling.k8s.io/group-name"] = "g".into();
        assert!(check_admitted(&setup("volcano"), &pod, true).is_ok());
        assert!(rejection(&executor("q/volcano")).contains("policy q (volcano) was applied to executor e"));
        assert!(rejection(&executor("")).contains("the webhook applied no policy"));
        assert!(check_admitted(&setup("native"), &executor("p/native"), true).unwrap_err().contains("feature gates"));
        assert!(check_admitted(&setup("kai"), &executor("p/kai"), true).is_ok());
        assert!(check_admitted(&setup("yunikorn"), &executor("p/yunikorn"), true).is_ok());
    }

    #[test]
    fn count_reads_min_member_or_min_count_and_waits_states_cause() {
        let mut observation =
            Observation { pods: vec![executor("p/volcano")], group: Some(json!({"spec": {"minMember": 3}})) };
        assert_eq!(observation.count(), Some(3));
        assert_eq!(observation.waits(), "volcano reports nothing about e");
        observation.group = Some(json!({"spec": {"schedulingPolicy": {"gang": {"minCount": 2}}}}));
        assert_eq!(observation.count(), Some(2));
        observation.pods[0]["status"]["conditions"] =
            json!([{"type": "PodScheduled", "status": "False", "message": "1 of 3"}]);
        assert_eq!(observation.waits(), "volcano reports: 1 of 3");
        observation.pods[0]["spec"]["schedulingGates"] = json!([{"name": "kueue.x-k8s.io/admission"}]);
        assert_eq!(observation.waits(), "pods are held by the scheduling gate kueue.x-k8s.io/admission");
        observation.pods[0]["spec"]["nodeName"] = "n".into();
        assert_eq!((observation.waits().as_str(), observation.bound()), ("", 1));
    }
}
