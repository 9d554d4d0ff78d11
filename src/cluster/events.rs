//! Kubernetes Events (`events.k8s.io/v1`): what people see in `kubectl describe pod`.
//!
//! The name of an Event is made of what it says, so that saying it again, also by the next leader, makes no second one.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::{Api, Patch, PatchParams, PostParams};
use ring::digest::{SHA256, digest};
use serde_json::json;

use super::lease::Leadership;
use super::recent::Recent;
use crate::lifecycle::Told;
use crate::lifecycle::tally::{Notice, Subject};
use crate::plant::{self, Bug};
use crate::reason::{Reason, Weight};
use crate::runtime::clock;
use crate::spark::ids::PodKey;
use crate::spark::labels::USHER;
use crate::telemetry::metrics::Metrics;

/// The longest note that the API takes.
const MAX_NOTE: usize = 1024;
/// So many Events at least are remembered as told; one that is forgotten costs a 409.
const REMEMBERED: usize = 10_000;
/// How long an Event may take. It is never worth more.
const LIMIT: Duration = Duration::from_secs(3);

/// Tells each thing once.
#[derive(Clone)]
pub(super) struct Events {
    client: kube::Client,
    instance: String,
    told: Arc<Mutex<Recent<String, ()>>>,
    /// What had been counted before us, by the name of the Event.
    bases: Arc<Mutex<Recent<String, u32>>>,
    /// The eventTime of each Event whose creation has not been answered yet.
    begun: Arc<Mutex<Recent<String, MicroTime>>>,
    metrics: Arc<Metrics>,
}

impl Events {
    pub(super) fn new(client: kube::Client, instance: &str, metrics: Arc<Metrics>) -> Events {
        let instance = instance.chars().take(128).collect();
        let told = Arc::new(Mutex::new(Recent::new(REMEMBERED)));
        let bases = Arc::new(Mutex::new(Recent::new(REMEMBERED)));
        let begun = Arc::new(Mutex::new(Recent::new(REMEMBERED)));
        Events { client, instance, told, bases, begun, metrics }
    }

    /// Says it, unless it was said before. An Event that cannot be written is only logged.
    pub(super) async fn tell(&self, _: &Leadership, told: &Told) {
        let name = name(told);
        if !self.remember(&name) {
            return;
        }
        let Told { pod, reason, message, .. } = told;
        if reason.weight() >= Weight::Warning {
            tracing::warn!(pod = %pod, %reason, message, "told");
        } else {
            tracing::info!(pod = %pod, %reason, message, "told");
        }
        let api: Api<Event> = Api::namespaced(self.client.clone(), pod.namespace());
        let event = self.event(name, told);
        match tokio::time::timeout(LIMIT, api.create(&PostParams::default(), &event)).await {
            Ok(Ok(_)) => self.metrics.events.with_label_values(&[reason.as_str()]).inc(),
            // An earlier leader said it, or the namespace is going.
            Ok(Err(kube::Error::Api(status))) if status.code == 409 || status.code == 403 => {}
            Ok(Err(error)) => tracing::debug!(%error, "an Event could not be written"),
            Err(_) => tracing::debug!("an Event could not be written in time"),
        }
    }

    /// Writes how many executors of one driver ended for one cause: an Event that counts. Whether it was written.
    ///
    /// An earlier leader may have begun to count: its count is added to ours. Of an Event that is there the API lets only
    /// the series change.
    pub(super) async fn notice(&self, leadership: &Leadership, notice: &Notice) -> bool {
        let Notice { subject, count, message } = notice;
        let name = counted_name(subject);
        let api: Api<Event> = Api::namespaced(self.client.clone(), subject.pod.namespace());
        let writing = async {
            let base = self.bases.lock().unwrap_or_else(PoisonError::into_inner).get(&name).copied();
            let base = match base {
                Some(base) => base,
                None => {
                    let told = Told {
                        pod: subject.pod.clone(),
                        uid: subject.uid.clone(),
                        reason: Reason::ExecutorEnded,
                        message: message.clone(),
                    };
                    let mut event = self.event(name.clone(), &told);
                    event.action = Some(subject.cause.as_str().to_owned());
                    // Retries keep the eventTime: if only the answer was lost, it identifies the Event as ours.
                    event.event_time = event.event_time.map(|now| self.begin(&name, now));
                    let base = match api.create(&PostParams::default(), &event).await {
                        Ok(_) => 0,
                        Err(kube::Error::Api(status)) if status.code == 409 => {
                            let there = api.get(&name).await?;
                            let is_ours = there.event_time == event.event_time
                                && there.reporting_instance == event.reporting_instance
                                && !plant::is(Bug::LostAnswerCounts);
                            there.series.map_or(u32::from(!is_ours), |series| u32::try_from(series.count).unwrap_or(1))
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
                return Ok(()); // The Event itself is the first.
            }
            if !leadership.holds() {
                return Err(kube::Error::Service("another replica may lead by now".into()));
            }
            let series = json!({"series": {"count": total, "lastObservedTime": now_as_kept()}});
            api.patch(&name, &PatchParams::default(), &Patch::Merge(series)).await.map(|_| ())
        };
        match tokio::time::timeout(LIMIT, writing).await {
            Ok(Ok(())) => {
                self.metrics.events.with_label_values(&[Reason::ExecutorEnded.as_str()]).inc();
                true
            }
            // The Event has gone meanwhile: made anew the next time.
            Ok(Err(kube::Error::Api(status))) if status.code == 404 => {
                self.bases.lock().unwrap_or_else(PoisonError::into_inner).remove(&name);
                false
            }
            // The namespace is going, or we may not: trying again and again would not help.
            Ok(Err(kube::Error::Api(status))) if status.code == 403 => {
                tracing::info!(message = status.message, "an Event may not be written");
                true
            }
            Ok(Err(error)) => {
                tracing::debug!(%error, "an Event could not be written");
                false
            }
            Err(_) => false,
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
        self.told.lock().unwrap_or_else(PoisonError::into_inner).is_news(name.to_owned())
    }

    fn event(&self, name: String, told: &Told) -> Event {
        let Told { pod, uid, reason, message } = told;
        let kind = if reason.weight() >= Weight::Warning { "Warning" } else { "Normal" };
        Event {
            metadata: ObjectMeta {
                name: Some(name),
                namespace: Some(pod.namespace().to_owned()),
                ..ObjectMeta::default()
            },
            event_time: Some(now_as_kept()),
            reporting_controller: Some(USHER.to_owned()),
            reporting_instance: Some(self.instance.clone()),
            action: Some(reason.as_str().to_owned()),
            reason: Some(reason.as_str().to_owned()),
            note: Some(cut(message, MAX_NOTE).to_owned()),
            type_: Some(kind.to_owned()),
            regarding: Some(ObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Pod".to_owned()),
                name: Some(pod.name().to_owned()),
                namespace: Some(pod.namespace().to_owned()),
                uid: Some(uid.to_string()),
                ..ObjectReference::default()
            }),
            ..Event::default()
        }
    }
}

/// Now, in microseconds, the precision of MicroTime: an Event that is read back has the time that was sent.
fn now_as_kept() -> MicroTime {
    let now = clock::now();
    MicroTime(Timestamp::from_microsecond(now.as_microsecond()).unwrap_or(now))
}

fn name(told: &Told) -> String {
    named(&told.pod, &format!("{}\0{}\0{}", told.uid, told.reason, told.message))
}

/// The same for every leader, so that they count in one Event.
fn counted_name(subject: &Subject) -> String {
    let perhaps = if subject.perhaps_told { "\0perhaps" } else { "" };
    named(&subject.pod, &format!("{}\0{}{perhaps}", subject.uid, subject.cause))
}

/// `POD.HASH`: at most 253 characters.
fn named(pod: &PodKey, said: &str) -> String {
    let hash: String =
        digest(&SHA256, said.as_bytes()).as_ref().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    format!("{}.{hash}", cut(pod.name(), 236).trim_end_matches(['-', '.']))
}

/// At most so many bytes, at a character's edge.
fn cut(text: &str, most: usize) -> &str {
    let end = (0..=most.min(text.len())).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    text.get(..end).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(name: &str, message: &str) -> Told {
        Told { pod: PodKey::new("ns", name), uid: "u".into(), reason: Reason::GangLowered, message: message.to_owned() }
    }

    #[test]
    fn names_say_what_is_said() {
        let one = name(&told("driver", "a"));
        assert_eq!(one, name(&told("driver", "a")));
        assert_ne!(one, name(&told("driver", "b")));
        assert!(one.starts_with("driver.") && one.len() == "driver.".len() + 16);
        assert_eq!(name(&told(&"x".repeat(253), "a")).len(), 253);
    }

    #[test]
    fn times_are_read_back_as_they_were_sent() {
        let sent = now_as_kept();
        let read: MicroTime = serde_json::from_str(&serde_json::to_string(&sent).unwrap()).unwrap();
        assert_eq!(read, sent);
    }

    #[test]
    fn cuts_at_characters() {
        assert_eq!(cut("aé", 2), "a");
        assert_eq!(cut("aé", 9), "aé");
    }
}
