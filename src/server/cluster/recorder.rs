//! Kubernetes Events (`events.k8s.io/v1`), as `kubectl describe pod` shows them.
//!
//! The name of an Event contains a hash of its content, so that neither this replica nor the next leader creates it twice.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::TryFutureExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::{Api, Patch, PatchParams, PostParams};
use ring::digest::{SHA256, digest};
use serde_json::{Value, json};

use super::lease::Leadership;
use super::metrics::Metrics;
use usher_core::annotations::USHER;
use usher_core::controller::NodeReport;
use usher_core::event_aggregator::{AggregatedEvent, Subject};
use usher_core::planning::PodEvent;
use usher_core::reason::{Reason, Severity};
use usher_kube::recent::Recent;
use usher_kube::request::{Error, call};
use usher_runtime::clock;
use usher_spark::ids::PodKey;
use usher_spark::json::text;
use usher_spark::text::truncated;

/// The longest note that the API accepts.
const MAX_MESSAGE: usize = 1024;
/// At least this many Events are remembered as recorded; one that is forgotten costs a 409.
const MAX_REMEMBERED: usize = 10_000;
/// The namespace of Events about cluster-scoped objects.
const DEFAULT_NAMESPACE: &str = "default";
/// Timeout of an Event, which is never worth more.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(3);

/// Records each Event once.
#[derive(Clone)]
pub(super) struct EventRecorder {
    client: kube::Client,
    instance: String,
    reported: Arc<Mutex<Recent<String, ()>>>,
    /// The counts of earlier leaders, by the name of the Event.
    bases: Arc<Mutex<Recent<String, u32>>>,
    /// The eventTime of each Event whose creation has not been answered yet.
    begun: Arc<Mutex<Recent<String, MicroTime>>>,
    metrics: Arc<Metrics>,
}

impl EventRecorder {
    pub(super) fn new(client: kube::Client, instance: &str, metrics: Arc<Metrics>) -> EventRecorder {
        let instance = instance.chars().take(128).collect();
        let reported = Arc::new(Mutex::new(Recent::new(MAX_REMEMBERED)));
        let bases = Arc::new(Mutex::new(Recent::new(MAX_REMEMBERED)));
        let begun = Arc::new(Mutex::new(Recent::new(MAX_REMEMBERED)));
        EventRecorder { client, instance, reported, bases, begun, metrics }
    }

    /// Records an Event, unless it was recorded before. An Event that cannot be written is only logged.
    pub(super) async fn record(&self, _: &Leadership, pod_event: &PodEvent) {
        let name = name(pod_event);
        if !self.remember(&name) {
            return;
        }
        let PodEvent { pod, reason, message, .. } = pod_event;
        let subject = pod.to_string();
        let event = self.event(name, pod_event);
        self.write(&subject, *reason, message, event).await;
    }

    /// Records that a Node is suspect, at most once an hour, whichever replica leads.
    pub(super) async fn record_node(&self, _: &Leadership, report: &NodeReport) {
        let NodeReport { node, uid, message } = report;
        let reason = Reason::NodeSuspect;
        let hour = now_in_micros().0.as_second() / 3600;
        let name = hashed(node, &format!("{uid}\0{reason}\0{hour}"));
        // As the kubelet and the node controller do, in the namespace that cluster-scoped objects have for Events.
        let regarding = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Node".to_owned()),
            name: Some(node.to_string()),
            uid: Some(uid.to_string()),
            ..ObjectReference::default()
        };
        let event = self.event_about(name, DEFAULT_NAMESPACE, regarding, reason, message);
        self.write(node, reason, message, event).await;
    }

    /// Records that an admission policy, which another client deleted or changed, was restored.
    pub(super) async fn record_policy(&self, leadership: &Leadership, policy: &Value) {
        if !leadership.holds() {
            return;
        }
        let reason = Reason::AdmissionPolicyRestored;
        let [kind, name, uid, version] =
            [&["kind"][..], &["metadata", "name"], &["metadata", "uid"], &["metadata", "resourceVersion"]]
                .map(|path| text(policy, path));
        let regarding = ObjectReference {
            api_version: Some(text(policy, &["apiVersion"]).to_owned()),
            kind: Some(kind.to_owned()),
            name: Some(name.to_owned()),
            uid: Some(uid.to_owned()),
            ..ObjectReference::default()
        };
        let message = format!("another client deleted or changed {kind} {name}: restored as the policy file asks for");
        let event = self.event_about(hashed(name, version), DEFAULT_NAMESPACE, regarding, reason, &message);
        self.write(name, reason, &message, event).await;
    }

    async fn write(&self, subject: &str, reason: Reason, message: &str, event: Event) {
        if reason.severity() >= Severity::Warning {
            tracing::warn!(subject, %reason, note = message, "recording an Event");
        } else {
            tracing::info!(subject, %reason, note = message, "recording an Event");
        }
        let namespace = event.metadata.namespace.as_deref().unwrap_or(DEFAULT_NAMESPACE);
        let api: Api<Event> = Api::namespaced(self.client.clone(), namespace);
        match call(REQUEST_TIMEOUT, api.create(&PostParams::default(), &event).err_into()).await {
            Ok(_) => self.metrics.events.with_label_values(&[reason.as_str()]).inc(),
            // An earlier leader recorded it, or the namespace is being deleted.
            Err(Error::Conflict(_) | Error::Forbidden(_)) => {}
            Err(error) => tracing::debug!(%error, "cannot write an Event"),
        }
    }

    /// Writes how many executors of one driver exited for one cause, as an Event with a count. Returns whether it was written.
    ///
    /// If an earlier leader began to count, its count is added to ours. Of an existing Event the API lets only the series change.
    pub(super) async fn record_aggregated(&self, leadership: &Leadership, notice: &AggregatedEvent) -> bool {
        let AggregatedEvent { subject, count, message } = notice;
        let name = counted_name(subject);
        let api: Api<Event> = Api::namespaced(self.client.clone(), subject.pod.namespace());
        let writing = async {
            let base = self.bases.lock().unwrap_or_else(PoisonError::into_inner).get(&name).copied();
            let base = match base {
                Some(base) => base,
                None => {
                    let pod_event = PodEvent {
                        pod: subject.pod.clone(),
                        uid: subject.uid.clone(),
                        reason: Reason::ExecutorEnded,
                        message: message.clone(),
                    };
                    let mut event = self.event(name.clone(), &pod_event);
                    event.action = Some(subject.cause.as_str().to_owned());
                    // Retries keep the eventTime: if only the answer was lost, it identifies the Event as ours.
                    event.event_time = event.event_time.map(|now| self.begin(&name, now));
                    let base = match api.create(&PostParams::default(), &event).await.map_err(Error::from) {
                        Ok(_) => 0,
                        Err(Error::Conflict(_)) => {
                            let existing = api.get(&name).await?;
                            let is_ours = existing.event_time == event.event_time
                                && existing.reporting_instance == event.reporting_instance;
                            existing
                                .series
                                .map_or(u32::from(!is_ours), |series| u32::try_from(series.count).unwrap_or(1))
                        }
                        Err(error) => return Err(error),
                    };
                    self.begun.lock().unwrap_or_else(PoisonError::into_inner).remove(&name);
                    self.bases.lock().unwrap_or_else(PoisonError::into_inner).insert(name.clone(), base);
                    base
                }
            };
            let total = base.saturating_add(*count);
            if total < 2 {
                return Ok(()); // The Event itself counts the first exit.
            }
            leadership.require()?;
            let series = json!({"series": {"count": total, "lastObservedTime": now_in_micros()}});
            api.patch(&name, &PatchParams::default(), &Patch::Merge(series)).await?;
            Ok(())
        };
        match call(REQUEST_TIMEOUT, writing).await {
            Ok(()) => {
                self.metrics.events.with_label_values(&[Reason::ExecutorEnded.as_str()]).inc();
                true
            }
            // The Event was deleted meanwhile: it is created again the next time.
            Err(Error::NotFound(_)) => {
                self.bases.lock().unwrap_or_else(PoisonError::into_inner).remove(&name);
                false
            }
            // The namespace is being deleted, or the permission is missing: retries would not help.
            Err(Error::Forbidden(status)) => {
                tracing::info!(message = status.message, "the API server denied an Event");
                true
            }
            Err(error) => {
                tracing::debug!(%error, "cannot write an Event");
                false
            }
        }
    }

    /// The eventTime of an Event: that of the first attempt to create it.
    fn begin(&self, name: &str, now: MicroTime) -> MicroTime {
        let mut begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(first) = begun.get(&name.to_owned()) {
            return first.clone();
        }
        begun.insert(name.to_owned(), now.clone());
        now
    }

    fn remember(&self, name: &str) -> bool {
        self.reported.lock().unwrap_or_else(PoisonError::into_inner).insert_new(name.to_owned())
    }

    fn event(&self, name: String, pod_event: &PodEvent) -> Event {
        let PodEvent { pod, uid, reason, message } = pod_event;
        let regarding = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            name: Some(pod.name().to_owned()),
            namespace: Some(pod.namespace().to_owned()),
            uid: Some(uid.to_string()),
            ..ObjectReference::default()
        };
        self.event_about(name, pod.namespace(), regarding, *reason, message)
    }

    fn event_about(
        &self,
        name: String,
        namespace: &str,
        regarding: ObjectReference,
        reason: Reason,
        message: &str,
    ) -> Event {
        let kind = if reason.severity() >= Severity::Warning { "Warning" } else { "Normal" };
        Event {
            metadata: ObjectMeta { name: Some(name), namespace: Some(namespace.to_owned()), ..ObjectMeta::default() },
            event_time: Some(now_in_micros()),
            reporting_controller: Some(USHER.to_owned()),
            reporting_instance: Some(self.instance.clone()),
            action: Some(reason.as_str().to_owned()),
            reason: Some(reason.as_str().to_owned()),
            note: Some(truncated(message, MAX_MESSAGE).to_owned()),
            type_: Some(kind.to_owned()),
            regarding: Some(regarding),
            ..Event::default()
        }
    }
}

/// The current time in microseconds, the precision of MicroTime: an Event that is read back has the time that was sent.
fn now_in_micros() -> MicroTime {
    let now = clock::now();
    MicroTime(Timestamp::from_microsecond(now.as_microsecond()).unwrap_or(now))
}

fn name(pod_event: &PodEvent) -> String {
    named(&pod_event.pod, &format!("{}\0{}\0{}", pod_event.uid, pod_event.reason, pod_event.message))
}

/// The name of a counted Event: the same for every leader, so that all of them count in one Event.
fn counted_name(subject: &Subject) -> String {
    let perhaps = if subject.possibly_reported { "\0perhaps" } else { "" };
    named(&subject.pod, &format!("{}\0{}{perhaps}", subject.uid, subject.cause))
}

fn named(pod: &PodKey, message: &str) -> String {
    hashed(pod.name(), message)
}

/// `OBJECT.HASH`: at most 253 characters.
fn hashed(object: &str, message: &str) -> String {
    let hash: String =
        digest(&SHA256, message.as_bytes()).as_ref().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    format!("{}.{hash}", truncated(object, 236).trim_end_matches(['-', '.']))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod_event(name: &str, message: &str) -> PodEvent {
        PodEvent {
            pod: PodKey::new("ns", name),
            uid: "u".into(),
            reason: Reason::GangLowered,
            message: message.to_owned(),
        }
    }

    #[test]
    fn event_name_depends_on_content_and_has_at_most_253_characters() {
        let one = name(&pod_event("driver", "a"));
        assert_eq!(one, name(&pod_event("driver", "a")));
        assert_ne!(one, name(&pod_event("driver", "b")));
        assert!(one.starts_with("driver.") && one.len() == "driver.".len() + 16);
        assert_eq!(name(&pod_event(&"x".repeat(253), "a")).len(), 253);
    }

    #[test]
    fn event_time_round_trips_through_json() {
        let sent = now_in_micros();
        let read: MicroTime = serde_json::from_str(&serde_json::to_string(&sent).unwrap()).unwrap();
        assert_eq!(read, sent);
    }
}
