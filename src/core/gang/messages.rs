//! Why pods wait, as schedulers say it on other objects than the pods.
//!
//! * Volcano refuses a gang at its queue by an Event on the PodGroup (`pkg/scheduler/framework/session.go`, `RecordPodGroupEvent`; the
//!   plugins overcommit, proportion, capacity and resourcequota). Its pods state at most that the group is not ready.
//! * Kueue gates pods, and the condition `QuotaReserved` of their Workload states why (`pkg/scheduler/scheduler.go`,
//!   `apis/kueue/v1beta1/workload_types.go`).
//! * YuniKorn's placeholders wait for room, and the pods wait for the placeholders (`pkg/cache/placeholder.go`).

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::TABLE;
use super::scheduler::{GangScheduler, MessagesOn};
use crate::annotations;
use crate::snapshot::{SchedulerMessages, SchedulingFields};
use usher_spark::json::{at, entries, list, text};
use usher_spark::text::{harmless, truncated};

/// Longest message that is kept: the API server's own bound on Events.
const MAX_MESSAGE: usize = 1024;
/// At most this many messages of one namespace are kept.
const MAX_MESSAGES: usize = 4096;
/// An Event that was recorded longer ago no longer holds: of an object with many Events, the recorder writes one in five minutes
/// (client-go, `tools/record/events_cache.go`), of whichever comes next.
const OUTDATED_AFTER: SignedDuration = SignedDuration::from_mins(15);
/// An Event of a later time than this was not written by a scheduler.
const MAX_SKEW: SignedDuration = SignedDuration::from_mins(1);
/// The annotation of a placeholder (`pkg/common/constants/constants.go`).
const PLACEHOLDER: &str = "yunikorn.apache.org/placeholder";

/// The schedulers that state on other objects why a pod waits: its scheduler, by our policy or by its `schedulerName`, and Kueue if
/// it names a queue of Kueue.
pub fn speakers(scheduling: &SchedulingFields) -> impl Iterator<Item = &'static GangScheduler> {
    let by = scheduling.set_by().map(|(_, kind)| kind);
    TABLE.iter().copied().filter(move |scheduler| {
        let names_queue = || scheduler.queue_key.is_some_and(|(place, key)| scheduling.entry(place, key).is_some());
        let places = || by == Some(scheduler.kind) || scheduler.default_name == Some(&*scheduling.scheduler_name);
        scheduler.messages_on != MessagesOn::Pods && (places() || names_queue())
    })
}

/// The subject in [`SchedulerMessages`] of what this scheduler says about a pod.
pub fn subject<'p>(scheduler: &GangScheduler, uid: &'p str, scheduling: &'p SchedulingFields) -> Option<&'p str> {
    match scheduler.messages_on {
        MessagesOn::Pods => None,
        MessagesOn::GroupEvents => scheduler.group_key.of_fields(scheduling),
        MessagesOn::Workloads => Some(uid),
        MessagesOn::Placeholders => scheduler.app_keys.iter().find_map(|(place, key)| scheduling.entry(*place, key)),
    }
}

/// What a scheduler says in the objects of one namespace.
pub fn read<'o>(
    scheduler: &GangScheduler,
    objects: impl Iterator<Item = &'o Value>,
    now: Timestamp,
) -> SchedulerMessages {
    let mut found: BTreeMap<&str, String> = BTreeMap::new();
    let mut add = |subject: &'o str, message: String| {
        let is_better = |known: &String| !names_resource(known) && names_resource(&message);
        if !subject.is_empty() && (found.get(subject).is_none_or(is_better)) && found.len() < MAX_MESSAGES {
            found.insert(subject, message);
        }
    };
    match scheduler.messages_on {
        MessagesOn::Pods => {}
        MessagesOn::GroupEvents => of_events(objects, now, add),
        MessagesOn::Workloads => objects.for_each(|workload| {
            if let Some(message) = of_workload(workload) {
                let owners = list(workload, &["metadata", "ownerReferences"]).iter();
                owners
                    .filter(|owner| text(owner, &["kind"]) == "Pod")
                    .for_each(|owner| add(text(owner, &["uid"]), message.clone()));
            }
        }),
        MessagesOn::Placeholders => objects.for_each(|pod| {
            if let Some(message) = of_placeholder(pod) {
                let keys = scheduler.app_keys.iter().chain(scheduler.more_app_keys);
                let id = keys.map(|(place, key)| text(pod, &["metadata", place.as_str(), key]));
                add(id.into_iter().find(|id| !id.is_empty()).unwrap_or_default(), message);
            }
        }),
    }
    found.into_iter().map(|(subject, message)| (subject.into(), bounded(message))).collect()
}

fn bounded(message: String) -> Arc<str> {
    truncated(&harmless(truncated(&message, MAX_MESSAGE)), MAX_MESSAGE).into()
}

/// The newest Events about each PodGroup, those that name a resource first; none of a PodGroup that was scheduled since.
fn of_events<'o>(events: impl Iterator<Item = &'o Value>, now: Timestamp, mut add: impl FnMut(&'o str, String)) {
    let mut by_group: BTreeMap<&str, Vec<(Timestamp, bool, &Value)>> = BTreeMap::new();
    let holds = |time: Timestamp| now.duration_since(time) <= OUTDATED_AFTER && time.duration_since(now) <= MAX_SKEW;
    for event in events {
        let about = |key| text(event, &["involvedObject", key]);
        let by = [text(event, &["source", "component"]), text(event, &["reportingComponent"])];
        if about("kind") == "PodGroup"
            && !by.contains(&annotations::USHER)
            && let Some(time) = time_of(event).filter(|time| holds(*time))
        {
            let waits = text(event, &["reason"]) != "Scheduled";
            by_group.entry(about("name")).or_default().push((time, waits, event));
        }
    }
    for (group, mut events) in by_group {
        // Within a second, that it waits is the last word.
        events.sort_by_key(|(time, waits, _)| std::cmp::Reverse((*time, *waits)));
        let waits = events.iter().take_while(|(_, waits, _)| *waits).map(|(.., event)| words(event));
        // That the members wait for each other explains less than what the queue or the cluster lacks.
        let (own_reasons, mutual): (Vec<String>, Vec<String>) =
            waits.partition(|words| !words.contains("tasks in gang unschedulable"));
        own_reasons.iter().chain(&mutual).for_each(|words| add(group, format!("PodGroup {group}: {words}")));
    }
}

/// When an Event was recorded last.
fn time_of(event: &Value) -> Option<Timestamp> {
    let paths: [&[&str]; 4] =
        [&["series", "lastObservedTime"], &["lastTimestamp"], &["eventTime"], &["metadata", "creationTimestamp"]];
    paths.iter().find_map(|path| text(event, path).parse().ok())
}

/// Why a PodGroup has not started, as the conditions of its status say: Volcano's `Unschedulable`, the native `PodGroupScheduled`.
pub fn of_group(conditions: &[Value]) -> Option<Arc<str>> {
    let changed = |condition: &&Value| text(condition, &["lastTransitionTime"]).parse::<Timestamp>().ok();
    let latest = conditions.iter().rev().max_by_key(changed)?;
    let is = |kind: bool, status: &str| kind && text(latest, &["status"]) == status;
    let kind = text(latest, &["type"]);
    let waits = is(kind == "Unschedulable", "True") || is(kind.ends_with("Scheduled"), "False");
    waits.then(|| bounded(words(latest)))
}

/// Why a Workload is not admitted; `None` if it is, or has ended.
fn of_workload(workload: &Value) -> Option<String> {
    let condition = |kind: &str| {
        list(workload, &["status", "conditions"]).iter().find(|condition| text(condition, &["type"]) == kind)
    };
    let is_true = |kind: &str| condition(kind).is_some_and(|condition| text(condition, &["status"]) == "True");
    if is_true("Admitted") || is_true("Finished") {
        return None;
    }
    let why = if at(workload, &["spec", "active"]) == Some(&Value::Bool(false)) {
        "it is deactivated (spec.active)".to_owned()
    } else if is_true("QuotaReserved") {
        let checks = list(workload, &["status", "admissionChecks"]).iter();
        let waits = checks.filter(|check| text(check, &["state"]) != "Ready");
        let waits: Vec<String> =
            waits.map(|check| [text(check, &["name"]), ": ", text(check, &["message"])].concat()).collect();
        format!("its quota is reserved, and it waits for admission checks: {}", waits.join(", "))
    } else {
        condition("QuotaReserved").map_or_else(|| "Kueue has not considered it yet".to_owned(), words)
    };
    Some(format!("Workload {}: {why}", text(workload, &["metadata", "name"])))
}

/// Why a placeholder waits; `None` of another pod, and of one that has a node.
fn of_placeholder(pod: &Value) -> Option<String> {
    let is_placeholder = entries(pod, &["metadata", "annotations"]).any(|entry| entry == (PLACEHOLDER, "true"));
    if !is_placeholder || !text(pod, &["spec", "nodeName"]).is_empty() {
        return None;
    }
    let conditions = list(pod, &["status", "conditions"]).iter();
    let mut unscheduled =
        conditions.filter(|one| text(one, &["type"]) == "PodScheduled" && text(one, &["status"]) == "False");
    let why = unscheduled.next().map_or_else(|| "it waits for room".to_owned(), words);
    Some(format!("placeholder {}: {why}", text(pod, &["metadata", "name"])))
}

/// The reason and the message of an Event or a condition. `Pending`, `Unschedulable` and `Inadmissible` say nothing.
fn words(event: &Value) -> String {
    let (reason, message) = (text(event, &["reason"]), text(event, &["message"]));
    match reason {
        "" | "Pending" | "Unschedulable" | "Inadmissible" if !message.is_empty() => message.to_owned(),
        _ if message.is_empty() => reason.to_owned(),
        _ => format!("{reason}: {message}"),
    }
}

/// The resources of which a scheduler's message says that there are too few, in alphabetical order: kube-scheduler's and Volcano's
/// `Insufficient cpu`, Volcano's `overused cpu`, Kueue's `insufficient quota for cpu`, coscheduling's `resource gap: cpu 2100m`.
pub fn lacking(message: &str) -> Vec<&str> {
    let words = message.split([' ', ',', ';', ':', '(', ')', '[', ']', '\'', '"']).filter(|word| !word.is_empty());
    let words = words.map(|word| word.trim_end_matches('.'));
    let mut all = Vec::new();
    let mut before = ["", ""];
    for word in words {
        let [second, first] = before;
        let is_lacking = matches!(first, "Insufficient" | "insufficient" | "overused" | "gap")
            || (first == "for" && second == "quota")
            // kube-scheduler's `Too many pods`.
            || (first == "many" && second == "Too");
        if is_lacking && is_resource(word) {
            all.push(word);
        }
        before = [first, word];
    }
    all.sort_unstable();
    all.dedup();
    all
}

fn is_resource(word: &str) -> bool {
    matches!(word, "cpu" | "memory" | "ephemeral-storage" | "storage" | "pods")
        || word.contains('/')
        || ["hugepages-", "attachable-volumes-"].iter().any(|prefix| word.starts_with(prefix))
}

/// Whether a scheduler's message names a resource that is lacking: it decides more than one that only says that others wait.
pub fn names_resource(message: &str) -> bool {
    !lacking(message).is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read_by(kind: &str, objects: &[Value]) -> BTreeMap<String, String> {
        let now = "2026-11-28T10:10:00Z".parse().unwrap();
        let found = read(GangScheduler::of_kind(kind).unwrap(), objects.iter(), now);
        found.iter().map(|(subject, message)| (subject.to_string(), message.to_string())).collect()
    }

    #[test]
    fn messages_name_the_resources_that_are_lacking() {
        let message = "0/5 nodes are available: 1 node(s) had untolerated taint {a: b}, 2 Insufficient memory, 4 Insufficient cpu. \
            preemption: 0/5 nodes are available: 5 No preemption victims found, 2 Insufficient nvidia.com/gpu.";
        assert_eq!(lacking(message), ["cpu", "memory", "nvidia.com/gpu"]);
        assert_eq!(lacking("3/2 tasks in gang unschedulable: pod group is not ready"), [""; 0]);
        assert_eq!(lacking("resource in cluster is overused: overused cpu, overused memory"), ["cpu", "memory"]);
        assert_eq!(lacking("queue resource quota insufficient: insufficient cpu"), ["cpu"]);
        assert_eq!(
            lacking(
                "couldn't assign flavors to pod set main: insufficient quota for cpu in flavor default, previously considered podsets requests (0) + current podset request (200) > maximum capacity (6)"
            ),
            ["cpu"]
        );
        assert_eq!(lacking("insufficient unused quota for memory in flavor default, 4Gi more needed"), ["memory"]);
        assert_eq!(lacking("resource gap: cpu 2100m"), ["cpu"]);
        assert_eq!(lacking("0/2 nodes are available: 2 Too many pods."), ["pods"]);
        assert_eq!(lacking("pod is insufficient for this"), [""; 0]);
    }

    fn event(group: &str, at: &str, reason: &str, message: &str) -> Value {
        json!({"involvedObject": {"kind": "PodGroup", "name": group}, "lastTimestamp": at, "reason": reason, "message": message})
    }

    #[test]
    fn newest_events_of_a_pod_group_decide_and_one_that_names_a_resource_precedes() {
        let waits = "3/3 tasks in gang unschedulable: pod group is not ready, 3 Pending, 3 minAvailable";
        let events = [
            event(
                "g",
                "2026-11-28T10:00:00Z",
                "Unschedulable",
                "queue resource quota insufficient: insufficient memory",
            ),
            event("g", "2026-11-28T10:09:58Z", "Unschedulable", "resource in cluster is overused: overused cpu"),
            event("g", "2026-11-28T10:09:59Z", "Unschedulable", waits),
            event("started", "2026-11-28T10:00:00Z", "Unschedulable", "overused cpu"),
            event("started", "2026-11-28T10:00:01Z", "Scheduled", "pod group is ready"),
            event("lost", "2026-11-28T10:00:01Z", "Scheduled", "pod group is ready"),
            event("lost", "2026-11-28T10:00:01Z", "Unschedulable", waits),
        ];
        let found = read_by("volcano", &events);
        assert_eq!(found["g"], "PodGroup g: resource in cluster is overused: overused cpu");
        assert_eq!(found["lost"], format!("PodGroup lost: {waits}"));
        assert_eq!(found.len(), 2, "one was scheduled since: {found:?}");
        let ours = json!({"involvedObject": {"kind": "PodGroup", "name": "h"}, "lastTimestamp": "2026-11-28T10:00:00Z",
            "reason": "A", "message": "b", "source": {"component": "spark-usher"}});
        assert!(read_by("volcano", &[ours]).is_empty());
    }

    #[test]
    fn event_of_another_time_says_nothing_and_that_members_wait_for_each_other_says_least() {
        let queue = "queue resource quota insufficient";
        let mutual = "3/3 tasks in gang unschedulable: pod group is not ready, 3 Pending, 3 minAvailable";
        let events = [
            event("old", "2026-11-28T09:50:00Z", "Unschedulable", "overused cpu"),
            event("forged", "2099-01-01T00:00:00Z", "Unschedulable", "all is well"),
            event("forged", "2026-11-28T10:09:00Z", "Unschedulable", "overused cpu"),
            event("g", "2026-11-28T10:09:59Z", "Unschedulable", mutual),
            event("g", "2026-11-28T10:03:00Z", "Unschedulable", queue),
        ];
        let found = read_by("volcano", &events);
        assert_eq!(found.get("old"), None);
        assert_eq!(found["forged"], "PodGroup forged: overused cpu");
        assert_eq!(found["g"], format!("PodGroup g: {queue}"));
    }

    #[test]
    fn latest_condition_of_a_pod_group_says_why_it_waits() {
        let condition = |kind: &str, status: &str, reason: &str, at: &str| json!({"type": kind, "status": status, "reason": reason, "message": "m", "lastTransitionTime": at});
        let (early, late) = ("2026-11-28T10:00:00Z", "2026-11-28T10:00:09Z");
        let message_of = |conditions: &[Value]| of_group(conditions).map(|message| message.to_string());
        let native = |status| condition("PodGroupScheduled", status, "Unschedulable", early);
        assert_eq!((message_of(&[native("False")]), message_of(&[native("True")])), (Some("m".into()), None));
        // Volcano keeps both conditions.
        let waits = |at| condition("Unschedulable", "True", "NotEnoughResources", at);
        let scheduled = |at| condition("Scheduled", "True", "tasks in gang are ready to be scheduled", at);
        assert_eq!(message_of(&[waits(late), scheduled(early)]), Some("NotEnoughResources: m".into()));
        assert_eq!(message_of(&[waits(early), scheduled(late)]), None);
        assert_eq!(message_of(&[]), None);
    }

    #[test]
    fn workload_says_why_it_is_not_admitted() {
        let workload = |status: Value| json!({"metadata": {"name": "pod-x", "ownerReferences": [{"kind": "Pod", "uid": "u1"}, {"kind": "Pod", "uid": "u2"}]}, "status": status});
        let quota = |status, reason, message| json!({"type": "QuotaReserved", "status": status, "reason": reason, "message": message});
        let reported = |status| read_by("kueue", &[workload(status)]).remove("u2");
        let message = "couldn't assign flavors to pod set main: insufficient quota for cpu in flavor default, previously considered podsets requests (0) + current podset request (200) > maximum capacity (6)";
        assert_eq!(
            reported(json!({"conditions": [quota("False", "ExceedsMaxQuota", message)]})),
            Some(format!("Workload pod-x: ExceedsMaxQuota: {message}"))
        );
        assert_eq!(
            reported(json!({"conditions": [quota("False", "Inadmissible", "LocalQueue a doesn't exist")]})).unwrap(),
            "Workload pod-x: LocalQueue a doesn't exist"
        );
        assert_eq!(reported(json!({})).unwrap(), "Workload pod-x: Kueue has not considered it yet");
        let reserved = quota("True", "QuotaReserved", "");
        let checks =
            json!([{"name": "a", "state": "Ready"}, {"name": "prov", "state": "Pending", "message": "no nodes yet"}]);
        assert_eq!(
            reported(json!({"conditions": [reserved.clone()], "admissionChecks": checks})).unwrap(),
            "Workload pod-x: its quota is reserved, and it waits for admission checks: prov: no nodes yet"
        );
        assert_eq!(reported(json!({"conditions": [reserved, {"type": "Admitted", "status": "True"}]})), None);
        let mut inactive = workload(json!({}));
        inactive["spec"] = json!({"active": false});
        assert!(read_by("kueue", &[inactive])["u1"].contains("deactivated"));
    }

    #[test]
    fn placeholder_that_names_a_resource_speaks_for_its_application() {
        let pod = |name: &str, message: &str| {
            json!({"metadata": {"name": name, "annotations": {"yunikorn.apache.org/placeholder": "true"},
                "labels": {"applicationId": "app-1"}}, "spec": {},
                "status": {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}]}})
        };
        let mut bound = pod("tg-0", "Insufficient memory");
        bound["spec"]["nodeName"] = "n".into();
        let mut other = pod("executor", "Insufficient memory");
        other["metadata"]["annotations"] = json!({});
        let found = read_by(
            "yunikorn",
            &[bound, other, pod("tg-1", "waits"), pod("tg-2", "2 Insufficient cpu"), pod("tg-3", "waits")],
        );
        assert_eq!(found["app-1"], "placeholder tg-2: 2 Insufficient cpu");
        assert_eq!(found.len(), 1);
    }

    #[test]
    fn kueue_speaks_about_every_pod_that_names_its_queue() {
        let pod = |labels: Value, by: Option<&str>| {
            let annotations = by.map_or(json!({}), |by| json!({annotations::BY: by}));
            let pod = json!({"metadata": {"name": "p", "namespace": "n", "uid": "u", "labels": labels, "annotations": annotations}});
            let pod = pod.to_string();
            let pod = usher_spark::pod::Pod::read_whole(pod.as_bytes()).unwrap();
            let fields = super::super::scheduling_keys().fields_of(&pod);
            speakers(&fields).map(|scheduler| scheduler.kind).collect::<Vec<_>>()
        };
        assert_eq!(pod(json!({"kueue.x-k8s.io/queue-name": "q"}), Some("p/volcano")), ["volcano", "kueue"]);
        assert_eq!(pod(json!({}), Some("p/native")), [""; 0]);
        assert_eq!(pod(json!({}), None), [""; 0]);
    }
}
