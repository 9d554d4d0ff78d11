//! One replica writes: leader election by a Lease (`coordination.k8s.io/v1`), as client-go's `leaderelection` does it.
//!
//! * Every write carries the resourceVersion that was read: of two candidates one gets a 409.
//! * Time is what we observed ourselves: a lease is over when it has not changed for its duration by our own monotonic
//!   clock, whatever its `renewTime` says.
//! * A leader stops acting well before others may take over, by its own clock ([`Leadership::holds`]).
//! * On a graceful stop the lease is released, and the next leader needs not wait.
//! * Each renewal carries the [`Mark`] of what the leader has reported, in an annotation.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::stream::BoxStream;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::{Api, PostParams, WatchEvent, WatchParams};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::client::Brief;
use crate::lifecycle::election::{Held, Observed, Step, may_act_until, step};
use crate::lifecycle::mark::{Found, Mark};
use crate::plant::{self, Bug};
use crate::runtime::{clock, random};
use crate::spark::labels::USHER;
use crate::telemetry::metrics::Metrics;

/// How the election is run.
#[derive(Clone, Debug)]
pub struct Election {
    /// Namespace of the Lease.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Who we are: unique among replicas, and over restarts.
    pub identity: String,
    /// After so long without a renewal others take over.
    pub duration: Duration,
    /// How often the leader renews and the others look.
    pub period: Duration,
}

/// The right to write. Only the lease task makes it; losing the lease ends it.
#[derive(Debug)]
pub struct Leadership {
    /// When it ends unless it is renewed.
    until: watch::Receiver<Option<Instant>>,
    /// What was found when the Lease was taken; `None` when it was ours and we only had lost it for a moment.
    found: Option<Found>,
}

impl Leadership {
    /// Whether it still holds, by our own clock.
    pub fn holds(&self) -> bool {
        self.until.borrow().is_some_and(|until| clock::instant() < until)
    }

    /// One that ends so long from now.
    #[cfg(test)]
    pub(super) fn of(lasts: Duration) -> Leadership {
        Leadership { until: watch::channel(Some(clock::instant() + lasts)).1, found: None }
    }

    /// What was found when it was taken from another replica, or from nobody.
    pub fn found(&self) -> Option<Found> {
        self.found
    }
}

/// What a leader has reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reported {
    /// Up to here.
    pub mark: Option<Mark>,
    /// Whether nothing more will be reported.
    pub is_final: bool,
}

/// How the election and the rest of the process hear of each other.
#[derive(Debug)]
pub struct Ties {
    /// Whether we lead.
    pub leading: watch::Sender<Option<Arc<Leadership>>>,
    /// Whether another replica leads.
    pub led: watch::Sender<bool>,
    /// When the API server last answered.
    pub contact: watch::Sender<Option<Instant>>,
    /// What was reported: written with each renewal. The last word is waited for when we stop.
    pub reported: watch::Receiver<Reported>,
}

/// The annotation of the Lease that holds the [`Mark`].
pub const REPORTED: &str = "spark-usher.io/reported";

/// The annotation of the Lease that says to which of its `leaseTransitions` the mark belongs. A version without marks leaves
/// the mark of an earlier leader as it is.
pub const REPORTED_TERM: &str = "spark-usher.io/reported-term";

/// How long the last report is waited for before the Lease is released.
const LAST_REPORT: Duration = Duration::from_secs(2);

/// Takes part in the election until told to stop.
pub async fn run(client: kube::Client, election: Election, ties: Ties, metrics: Arc<Metrics>, stop: CancellationToken) {
    let Ties { leading, led, contact, mut reported } = ties;
    let api: Api<Lease> = Api::namespaced(client, &election.namespace);
    let mut news = News { api: api.clone(), name: election.name.clone(), events: None };
    let mut candidate = Candidate { api, election, seen: None, ours: None, found: None, mark: None };
    let (until, until_seen) = watch::channel(None);
    let mut complained = false;
    loop {
        let began = clock::instant();
        candidate.mark = reported.borrow_and_update().mark;
        let outcome = candidate.round().await;
        if outcome.is_ok() {
            contact.send_replace(Some(clock::instant()));
        }
        match outcome {
            Ok(true) => {
                // Others count from when they see the write, which is after it began.
                until.send_replace(Some(may_act_until(began, candidate.election.duration)));
                if leading.borrow().is_none() {
                    tracing::info!(identity = candidate.election.identity, "leading");
                    let found = candidate.found.take();
                    leading.send_replace(Some(Arc::new(Leadership { until: until_seen.clone(), found })));
                }
                complained = false;
            }
            Ok(false) => {
                lose(&leading, &until, "another replica holds the lease");
                complained = false;
            }
            Err(error) => {
                if !complained {
                    let (namespace, name) = (&candidate.election.namespace, &candidate.election.name);
                    tracing::warn!(error = %Brief(&error), lease = format!("{namespace}/{name}"), "the lease cannot be read or written");
                    complained = true;
                }
            }
        }
        if until.borrow().is_some_and(|until| until <= clock::instant()) {
            lose(&leading, &until, "the lease could not be renewed in time");
        }
        let leads = leading.borrow().is_some();
        metrics.leader.set(i64::from(leads));
        led.send_replace(!leads && candidate.is_led());
        let pause = tokio::time::sleep(candidate.pause(leads));
        let heard = async {
            if leads {
                std::future::pending::<()>().await; // We hear ourselves.
            }
            news.changed().await;
        };
        tokio::select! {
            biased;
            () = stop.cancelled() => break,
            () = pause => {}
            () = heard => {}
        }
    }
    let leads = leading.borrow().is_some();
    if leads {
        // We still lead meanwhile, if not for long.
        let last = reported.wait_for(|reported| reported.is_final);
        let _ = tokio::time::timeout(LAST_REPORT.min(candidate.election.period), last).await.is_ok();
        let reported = reported.borrow();
        candidate.mark = reported.mark.filter(|_| reported.is_final);
    }
    lose(&leading, &until, "stopping");
    metrics.leader.set(0);
    if leads && let Err(error) = candidate.release().await {
        tracing::warn!(error = %Brief(&error), "the lease could not be released; others take over when it is over");
    }
}

fn lose(leading: &watch::Sender<Option<Arc<Leadership>>>, until: &watch::Sender<Option<Instant>>, why: &str) {
    until.send_replace(None);
    // Only news wakes who follows it: a replica that does not lead comes here with every round.
    if leading.send_if_modified(|leading| leading.take().is_some()) {
        tracing::warn!(why, "not leading any more");
    }
}

/// Changes of the lease as they happen, so that nobody waits for the next look when a leader has let go.
struct News {
    api: Api<Lease>,
    name: String,
    events: Option<BoxStream<'static, kube::Result<WatchEvent<Lease>>>>,
}

impl News {
    /// Waits for a change; for ever where the lease cannot be watched: a look comes soon anyway.
    async fn changed(&mut self) {
        loop {
            if self.events.is_none() {
                let params = WatchParams::default().fields(&format!("metadata.name={}", self.name));
                self.events = self.api.watch(&params, "0").await.ok().map(StreamExt::boxed);
                if self.events.is_none() {
                    return std::future::pending().await;
                }
            }
            match self.events.as_mut().map(StreamExt::next) {
                Some(event) => match event.await {
                    Some(Ok(WatchEvent::Added(_) | WatchEvent::Modified(_) | WatchEvent::Deleted(_))) => return,
                    Some(Ok(WatchEvent::Bookmark(_))) => {}
                    Some(Ok(WatchEvent::Error(_)) | Err(_)) | None => {
                        self.events = None;
                        // The next look opens it again.
                        return std::future::pending().await;
                    }
                },
                None => return std::future::pending().await,
            }
        }
    }
}

struct Candidate {
    api: Api<Lease>,
    election: Election,
    seen: Option<Observed>,
    /// The lease as we wrote it last. Unless somebody writes in between, one request renews it: its resourceVersion is
    /// looked at by the API server.
    ours: Option<Lease>,
    /// What was found when the Lease was taken.
    found: Option<Found>,
    /// What is written with the next renewal.
    mark: Option<Mark>,
}

impl Candidate {
    /// One look, and a write if it is ours to make. Whether we hold the lease.
    async fn round(&mut self) -> kube::Result<bool> {
        let limit = self.election.duration / 2;
        let attempts = async {
            // A conflict means that somebody wrote in between, or deleted what was ours: look again at once.
            let renews = self.ours.is_some();
            match self.attempt().await {
                Err(error) if is(&error, 409) || (renews && is(&error, 404)) => self.attempt().await,
                outcome => outcome,
            }
        };
        match tokio::time::timeout(limit, attempts).await {
            Ok(Err(error)) if is(&error, 409) => Ok(false),
            Ok(Err(_)) | Err(_) if plant::is(Bug::LeaseErrorsIgnored) => Ok(true),
            Ok(outcome) => outcome,
            Err(_) => Err(kube::Error::Service(format!("no answer within {limit:?}").into())),
        }
    }

    async fn attempt(&mut self) -> kube::Result<bool> {
        let found = match self.ours.take() {
            Some(lease) => Some(lease),
            None => self.api.get_opt(&self.election.name).await?,
        };
        self.observe(found.as_ref(), clock::instant());
        match step(self.seen.as_ref(), &self.election.identity, clock::instant()) {
            Step::Wait => Ok(false),
            Step::Create => {
                let lease = self.lease(None, 0, true);
                // Before the answer, which may never come: the next round then finds a Lease that is ours.
                self.found = Some(Found::default());
                self.written(self.api.create(&PostParams::default(), &lease).await)
            }
            Step::Take { transitions, ours } => {
                let mut lease = self.lease(found.as_ref(), transitions, !ours);
                if ours && let Some(spec) = &mut lease.spec {
                    spec.acquire_time = found.and_then(|lease| lease.spec?.acquire_time);
                } else if !ours {
                    let holder = self.seen.as_ref().and_then(|seen| seen.held.holder.as_ref());
                    // Only the mark of whoever led last is its last word.
                    let term = found.as_ref().and_then(|lease| lease.spec.as_ref()?.lease_transitions);
                    let is_released = holder.is_none() && term_of(&lease) == term;
                    self.found = Some(Found { mark: mark_of(&lease), was_held: true, is_released, taken: None });
                }
                if ours {
                    self.write_mark(&mut lease);
                }
                if plant::is(Bug::LeaseUnguarded) {
                    lease.metadata.resource_version = None;
                }
                self.written(self.api.replace(&self.election.name, &PostParams::default(), &lease).await)
            }
        }
    }

    fn written(&mut self, outcome: kube::Result<Lease>) -> kube::Result<bool> {
        let lease = outcome?;
        if let Some(found) = &mut self.found {
            found.taken = lease.metadata.resource_version.as_ref().and_then(|version| version.parse().ok());
        }
        self.observe(Some(&lease), clock::instant());
        self.ours = Some(lease);
        Ok(true)
    }

    fn observe(&mut self, lease: Option<&Lease>, now: Instant) {
        let Some(lease) = lease else {
            self.seen = None;
            return;
        };
        let version = lease.metadata.resource_version.clone().unwrap_or_default();
        let spec = lease.spec.clone().unwrap_or_default();
        let seconds = spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
        let held = Held {
            version,
            holder: spec.holder_identity.filter(|holder| !holder.is_empty()),
            duration: seconds.map_or(self.election.duration, Duration::from_secs),
            transitions: spec.lease_transitions.unwrap_or_default(),
        };
        self.seen = Some(Observed::again(self.seen.take(), held, now));
    }

    fn lease(&self, found: Option<&Lease>, transitions: i32, acquired: bool) -> Lease {
        let now = Some(MicroTime(clock::now()));
        let mut metadata = found.map(|lease| lease.metadata.clone()).unwrap_or_default();
        metadata = ObjectMeta {
            name: Some(self.election.name.clone()),
            namespace: Some(self.election.namespace.clone()),
            labels: metadata.labels,
            annotations: metadata.annotations,
            resource_version: metadata.resource_version,
            ..ObjectMeta::default()
        };
        metadata.labels.get_or_insert_default().insert("app.kubernetes.io/name".to_owned(), USHER.to_owned());
        Lease {
            metadata,
            spec: Some(LeaseSpec {
                holder_identity: Some(self.election.identity.clone()),
                lease_duration_seconds: Some(
                    i32::try_from(self.election.duration.as_secs().max(1)).unwrap_or(i32::MAX),
                ),
                acquire_time: acquired.then(|| now.clone()).flatten(),
                renew_time: now,
                lease_transitions: Some(transitions),
                ..LeaseSpec::default()
            }),
        }
    }

    /// Writes what we have reported, for the next leader.
    fn write_mark(&self, lease: &mut Lease) {
        if let Some(mark) = self.mark {
            let term = lease.spec.as_ref().and_then(|spec| spec.lease_transitions).unwrap_or_default();
            let annotations = lease.metadata.annotations.get_or_insert_default();
            annotations.insert(REPORTED.to_owned(), mark.to_string());
            annotations.insert(REPORTED_TERM.to_owned(), term.to_string());
        }
    }

    /// Releases the Lease so that the next leader does not wait for its end. Without a final mark the Lease does not say that
    /// its mark is final either: after a loss of the Lease, its mark may be older than the last reports of this replica.
    async fn release(&mut self) -> kube::Result<()> {
        let limit = self.election.duration / 2;
        let released = async {
            let Some(mut lease) = self.api.get_opt(&self.election.name).await? else { return Ok(()) };
            let Some(spec) = &mut lease.spec else { return Ok(()) };
            if spec.holder_identity.as_deref() != Some(&self.election.identity) {
                return Ok(());
            }
            spec.holder_identity = None;
            spec.acquire_time = None;
            spec.lease_duration_seconds = Some(1);
            spec.renew_time = Some(MicroTime(clock::now()));
            if self.mark.is_none()
                && let Some(annotations) = &mut lease.metadata.annotations
            {
                annotations.remove(REPORTED_TERM);
            }
            if !plant::is(Bug::LastWordNotWritten) {
                self.write_mark(&mut lease);
            }
            self.api.replace(&self.election.name, &PostParams::default(), &lease).await.map(|_| ())
        };
        match tokio::time::timeout(limit, released).await {
            Ok(outcome) => outcome,
            Err(_) => Err(kube::Error::Service("no answer".into())),
        }
    }

    /// Whether somebody else leads.
    fn is_led(&self) -> bool {
        let other = self.seen.as_ref().filter(|seen| !seen.is_over(clock::instant()));
        other.and_then(|seen| seen.held.holder.as_ref()).is_some_and(|holder| *holder != self.election.identity)
    }

    /// Until the next round, a fifth more or less so that replicas do not march in step; and not past the end of
    /// somebody else's lease.
    fn pause(&self, leads: bool) -> Duration {
        let spread = random::fraction();
        let pause = self.election.period.mul_f64(0.8 + 0.4 * spread);
        let others = self.seen.as_ref().filter(|seen| !leads && seen.held.holder.is_some());
        let left = others.map(|seen| (seen.since + seen.held.duration).saturating_duration_since(clock::instant()));
        // Once it is over: a moment apart, so that not all of them try at once. Where that was tried in vain, the API server is
        // in trouble, or another replica was sooner.
        left.filter(|left| !left.is_zero() || plant::is(Bug::LeaseHammered)).map_or(pause, |left| {
            let over = Duration::from_millis(20).mul_f64(1.0 + 4.0 * spread);
            pause.min(left + over)
        })
    }
}

/// What the replica that wrote a Lease had reported.
fn mark_of(lease: &Lease) -> Option<Mark> {
    lease.metadata.annotations.as_ref()?.get(REPORTED)?.parse().ok()
}

/// To which of the Lease's transitions the mark belongs; `None` where no mark says that.
fn term_of(lease: &Lease) -> Option<i32> {
    lease.metadata.annotations.as_ref()?.get(REPORTED_TERM)?.parse().ok()
}

fn is(error: &kube::Error, code: u16) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == code)
}

/// An identity that is unique over restarts: the pod's name and a random end.
pub fn identity(name: &str) -> String {
    format!("{name}_{}", random::hex(4))
}

#[cfg(test)]
mod tests;
