//! Leader election by a Lease (`coordination.k8s.io/v1`), as client-go's `leaderelection` does it: only the leader writes.
//!
//! * Every write carries the resourceVersion that was read: of two candidates, one gets a 409.
//! * Time is measured locally: a Lease is expired when it has not changed for its duration by our own monotonic clock,
//!   regardless of its `renewTime`.
//! * A leader stops acting well before other replicas may take over, by its own clock ([`Leadership::holds`]).
//! * A graceful stop releases the Lease, so that the next leader does not wait for it to expire.
//! * A replica that has not observed every exit since the checkpoint leaves a free Lease to others for [`DEFERENCE`].
//! * Each renewal carries the [`Checkpoint`] of what the leader has reported, in an annotation.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::stream::BoxStream;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::{Api, PostParams, WatchEvent, WatchParams};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::metrics::Metrics;
use usher_core::annotations::USHER;
use usher_core::leader::{DEFERENCE, LeaderState, LeaseRecord, Observed, Step, may_act_until, step};
use usher_core::lifecycle::checkpoint::{Checkpoint, FoundCheckpoint};
use usher_kube::client::Brief;
use usher_kube::request::{Error, Result, call};
use usher_runtime::{clock, random};

/// The configuration of the election.
#[derive(Clone, Debug)]
pub struct Election {
    /// Namespace of the Lease.
    pub namespace: String,
    /// Name of the Lease.
    pub name: String,
    /// Our identity: unique among replicas, and across restarts.
    pub identity: String,
    /// Without a renewal for this long, another replica takes over.
    pub duration: Duration,
    /// How often the leader renews the Lease, and the other replicas read it.
    pub period: Duration,
}

/// The leadership, which writes require. Only the lease task creates it; it ends when the Lease is lost.
#[derive(Debug)]
pub struct Leadership {
    /// When it ends, unless it is renewed.
    until: watch::Receiver<Option<Instant>>,
    /// What the Lease contained when this replica took it; `None` if the Lease was still ours after a short loss.
    found: Option<FoundCheckpoint>,
}

impl Leadership {
    /// Whether it still holds, by our own clock.
    pub fn holds(&self) -> bool {
        self.until.borrow().is_some_and(|until| clock::instant() < until)
    }

    /// Returns [`Error::NotLeading`] if it has ended.
    pub(super) fn require(&self) -> Result<()> {
        if self.holds() { Ok(()) } else { Err(Error::NotLeading) }
    }

    /// A leadership that ends after this long.
    #[cfg(test)]
    pub(super) fn of(lasts: Duration) -> Leadership {
        Leadership { until: watch::channel(Some(clock::instant() + lasts)).1, found: None }
    }

    /// A leadership that ends by this channel.
    #[cfg(test)]
    pub(super) fn until(until: watch::Receiver<Option<Instant>>) -> Leadership {
        Leadership { until, found: None }
    }

    /// What the Lease contained when this replica took it from another replica, or found it free.
    pub fn found(&self) -> Option<FoundCheckpoint> {
        self.found
    }
}

/// The state of the election, as this replica knows it.
#[derive(Clone, Debug, Default)]
pub enum ElectionState {
    /// This replica leads.
    Leader(Arc<Leadership>),
    /// Another replica, of this identity, holds a Lease that is not expired.
    Follower(Arc<str>),
    /// No leader is known.
    #[default]
    NoLeader,
}

impl ElectionState {
    /// The leadership, if this replica leads.
    pub fn leadership(&self) -> Option<&Arc<Leadership>> {
        match self {
            ElectionState::Leader(leadership) => Some(leadership),
            ElectionState::Follower(_) | ElectionState::NoLeader => None,
        }
    }
}

impl From<&ElectionState> for LeaderState {
    fn from(state: &ElectionState) -> LeaderState {
        match state {
            ElectionState::Leader(_) => LeaderState::Leader,
            ElectionState::Follower(_) => LeaderState::Follower,
            ElectionState::NoLeader => LeaderState::NoLeader,
        }
    }
}

/// What a task that writes follows of the election: its own replica's leadership.
#[derive(Clone, Debug)]
pub struct LeadershipReceiver {
    election: watch::Receiver<ElectionState>,
    /// The leadership as of the last change that was received.
    received: Option<Arc<Leadership>>,
}

impl LeadershipReceiver {
    /// Follows this election. A leadership that has begun already is a change.
    pub fn new(election: watch::Receiver<ElectionState>) -> LeadershipReceiver {
        LeadershipReceiver { election, received: None }
    }

    /// The leadership as of the last [`LeadershipReceiver::receive`].
    pub fn received(&self) -> Option<&Arc<Leadership>> {
        self.received.as_ref()
    }

    /// Whether this replica leads now, by its own clock.
    pub fn holds(&self) -> bool {
        self.election.borrow().leadership().is_some_and(|leadership| leadership.holds())
    }

    /// Receives the leadership as it is now. Returns whether it has begun or ended since the last call.
    pub fn receive(&mut self) -> bool {
        let now = self.election.borrow_and_update().leadership().cloned();
        let same = match (&self.received, &now) {
            (Some(before), Some(now)) => Arc::ptr_eq(before, now),
            (before, now) => before.is_none() && now.is_none(),
        };
        self.received = now;
        !same
    }

    /// Receives the next leadership, or the end of this one. Returns false if the election has stopped. A change between two
    /// other leaders is none here.
    pub async fn changed(&mut self) -> bool {
        while !self.receive() {
            if self.election.changed().await.is_err() {
                return false;
            }
        }
        true
    }

    /// The leader state for a leadership that was read once: it may end, or be renewed, between two reads.
    pub fn leader_state(&self, leadership: Option<&Arc<Leadership>>) -> LeaderState {
        match (leadership, &*self.election.borrow()) {
            (Some(_), _) => LeaderState::Leader,
            (None, ElectionState::Follower(_)) => LeaderState::Follower,
            (None, ElectionState::Leader(_) | ElectionState::NoLeader) => LeaderState::NoLeader,
        }
    }
}

/// What a leader has reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reported {
    /// Every exit up to this checkpoint is reported.
    pub checkpoint: Option<Checkpoint>,
    /// Whether nothing more will be reported.
    pub is_final: bool,
    /// Since which resourceVersion this replica has observed every exit; `None` before pods were listed.
    pub observed_since: Option<u64>,
}

/// The channels between the election and the rest of the process.
#[derive(Debug)]
pub struct Channels {
    pub state: watch::Sender<ElectionState>,
    /// When the API server last answered.
    pub contact: watch::Sender<Option<Instant>>,
    /// What was reported: written with each renewal. A stop waits for the final value.
    pub reported: watch::Receiver<Reported>,
}

/// The annotation of the Lease that holds the [`Checkpoint`].
pub(crate) const CHECKPOINT_ANNOTATION: &str = "spark-usher.io/reported";

/// The annotation of the Lease that states to which of its `leaseTransitions` the checkpoint belongs. A version without
/// checkpoints leaves the checkpoint of an earlier leader as it is.
pub(crate) const CHECKPOINT_TERM_ANNOTATION: &str = "spark-usher.io/reported-term";

/// The annotation of the Lease that names the resources which the leader does not see ([`Unseen`](super::progress::Unseen)), for
/// `spark-usher doctor`.
pub const UNSEEN_ANNOTATION: &str = "spark-usher.io/unseen";
/// Annotation of the Lease: which pods the leader would have deleted since it started, were deletions not off.
pub const WITHHELD_ANNOTATION: &str = "spark-usher.io/withheld";

/// How long the release of the Lease waits for the final checkpoint.
const FINAL_CHECKPOINT_TIMEOUT: Duration = Duration::from_secs(2);

/// Participates in the election until `stop` is cancelled.
pub async fn run(
    client: kube::Client,
    election: Election,
    channels: Channels,
    metrics: Arc<Metrics>,
    stop: CancellationToken,
) {
    let Channels { state, contact, mut reported } = channels;
    let api: Api<Lease> = Api::namespaced(client, &election.namespace);
    let mut lease_watch = LeaseWatch { api: api.clone(), name: election.name.clone(), events: None };
    let mut elector = Elector::new(api, election);
    let (mut until, _) = watch::channel(None);
    let mut is_reported = false;
    loop {
        let began = clock::instant();
        Reported { checkpoint: elector.checkpoint, observed_since: elector.observed_since, .. } =
            *reported.borrow_and_update();
        elector.unseen = metrics.unseen.text(clock::now());
        elector.withheld = metrics.withheld_text();
        let outcome = elector.try_acquire_or_renew().await;
        let mut lost = None;
        if outcome.is_ok() {
            contact.send_replace(Some(clock::instant()));
        }
        match outcome {
            Ok(true) => {
                if let Some(late) = until.borrow().and_then(|until| clock::instant().checked_duration_since(until)) {
                    tracing::warn!(?late, "the Lease was renewed late: this leader wrote nothing meanwhile");
                }
                // Other replicas count from when they observe the write, which is after it began.
                let renewed = Some(may_act_until(began, elector.election.duration));
                if leads(&state) {
                    until.send_replace(renewed);
                } else {
                    tracing::info!(identity = elector.election.identity, "became leader");
                    let found = elector.found.take();
                    // A channel of its own: a leadership that has ended never holds again.
                    let (sender, receiver) = watch::channel(renewed);
                    until = sender;
                    state.send_replace(ElectionState::Leader(Arc::new(Leadership { until: receiver, found })));
                }
                is_reported = false;
            }
            Ok(false) => {
                lost = Some("another replica holds the Lease");
                is_reported = false;
            }
            Err(error) => {
                if !is_reported {
                    let (namespace, name) = (&elector.election.namespace, &elector.election.name);
                    tracing::warn!(error = %Brief(&error), lease = format!("{namespace}/{name}"), "cannot read or write the Lease; retrying");
                    is_reported = true;
                }
            }
        }
        if until.borrow().is_some_and(|until| until <= clock::instant()) {
            lost = lost.or(Some("the Lease was not renewed in time"));
        }
        if let Some(why) = lost.filter(|_| leads(&state)) {
            tracing::warn!(why, "stopped leading");
        }
        if lost.is_some() || !leads(&state) {
            until.send_replace(None);
            follow(&state, elector.leader());
        }
        let leads = leads(&state);
        metrics.leader.set(i64::from(leads));
        let pause = tokio::time::sleep(elector.delay(leads));
        let changed = async {
            if leads {
                std::future::pending::<()>().await; // The leader knows its own renewals.
            }
            lease_watch.changed().await;
        };
        tokio::select! {
            biased;
            () = stop.cancelled() => break,
            () = pause => {}
            () = changed => {}
        }
    }
    let leads = leads(&state);
    if leads {
        // This replica still leads while it waits, if not for long.
        let last = reported.wait_for(|reported| reported.is_final);
        let _ = tokio::time::timeout(FINAL_CHECKPOINT_TIMEOUT.min(elector.election.period), last).await.is_ok();
        let reported = reported.borrow();
        elector.checkpoint = reported.checkpoint.filter(|_| reported.is_final);
    }
    until.send_replace(None);
    if leads {
        tracing::warn!(why = "stopping", "stopped leading");
        follow(&state, None);
    }
    metrics.leader.set(0);
    if leads && let Err(error) = elector.release().await {
        tracing::warn!(error = %Brief(&error), "cannot release the Lease; another replica takes over when it expires");
    }
}

fn leads(state: &watch::Sender<ElectionState>) -> bool {
    state.borrow().leadership().is_some()
}

/// This replica does not lead. Only a change wakes the receivers: a follower calls this in every round.
fn follow(state: &watch::Sender<ElectionState>, leader: Option<&str>) {
    let next = leader.map_or(ElectionState::NoLeader, |leader| ElectionState::Follower(leader.into()));
    state.send_if_modified(|state| {
        let modified = std::mem::discriminant(state) != std::mem::discriminant(&next);
        *state = next;
        modified
    });
}

/// Watches the Lease, so that a replica takes over when the leader releases it, not only with its next read.
struct LeaseWatch {
    api: Api<Lease>,
    name: String,
    events: Option<BoxStream<'static, kube::Result<WatchEvent<Lease>>>>,
}

impl LeaseWatch {
    /// Waits for a change; forever if the Lease cannot be watched, because the next read comes soon anyway.
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
                        // The next round opens it again.
                        return std::future::pending().await;
                    }
                },
                None => return std::future::pending().await,
            }
        }
    }
}

struct Elector {
    api: Api<Lease>,
    election: Election,
    observed: Option<Observed>,
    /// The Lease as we last wrote it. Unless another client writes meanwhile, one request renews it: the API server checks its
    /// resourceVersion.
    last_written: Option<Lease>,
    /// What the Lease contained when this replica took it.
    found: Option<FoundCheckpoint>,
    /// The checkpoint to write with the next renewal.
    checkpoint: Option<Checkpoint>,
    /// See [`Reported::observed_since`].
    observed_since: Option<u64>,
    /// How long this replica waits for another one to take a free Lease.
    deference: Duration,
    /// What this replica does not see, to write with it.
    unseen: Option<String>,
    withheld: Option<String>,
}

impl Elector {
    fn new(api: Api<Lease>, election: Election) -> Elector {
        Elector {
            api,
            election,
            observed: None,
            last_written: None,
            found: None,
            checkpoint: None,
            observed_since: None,
            deference: Duration::ZERO,
            unseen: None,
            withheld: None,
        }
    }

    /// Acquires or renews the Lease, if it is ours to write. Returns whether we hold it.
    async fn try_acquire_or_renew(&mut self) -> Result<bool> {
        let limit = self.election.duration / 2;
        let attempts = async {
            // A conflict means that another client wrote meanwhile, or deleted our Lease: read it again immediately.
            let renews = self.last_written.is_some();
            match self.attempt().await {
                Err(Error::Conflict(_)) => self.attempt().await,
                Err(Error::NotFound(_)) if renews => self.attempt().await,
                outcome => outcome,
            }
        };
        match call(limit, attempts).await {
            Err(Error::Conflict(_)) => Ok(false),
            outcome => outcome,
        }
    }

    async fn attempt(&mut self) -> Result<bool> {
        let found = match self.last_written.take() {
            Some(lease) => Some(lease),
            None => self.api.get_opt(&self.election.name).await?,
        };
        self.observe(found.as_ref(), clock::instant());
        let is_continued = |last: Checkpoint| self.observed_since.is_some_and(|since| last.is_continued_since(since));
        let loses_exits = found.as_ref().and_then(checkpoint_of).is_some_and(|last| !is_continued(last));
        self.deference = if loses_exits { DEFERENCE } else { Duration::ZERO };
        match step(self.observed.as_ref(), &self.election.identity, self.deference, clock::instant()) {
            Step::Wait => Ok(false),
            Step::Create => {
                let lease = self.lease(None, 0, true);
                // Set before the answer, which may be lost: the next round then finds a Lease that is ours already.
                self.found = Some(FoundCheckpoint::default());
                self.written(self.api.create(&PostParams::default(), &lease).await)
            }
            Step::AcquireOrRenew { transitions, is_renewal } => {
                let mut lease = self.lease(found.as_ref(), transitions, !is_renewal);
                if is_renewal && let Some(spec) = &mut lease.spec {
                    spec.acquire_time = found.and_then(|lease| lease.spec?.acquire_time);
                } else if !is_renewal {
                    let holder = self.observed.as_ref().and_then(|seen| seen.record.holder.as_ref());
                    // The checkpoint is final only if the last leader wrote it.
                    let term = found.as_ref().and_then(|lease| lease.spec.as_ref()?.lease_transitions);
                    let is_released = holder.is_none() && term_of(&lease) == term;
                    self.found = Some(FoundCheckpoint {
                        checkpoint: checkpoint_of(&lease),
                        was_held: true,
                        is_released,
                        taken: None,
                    });
                }
                if is_renewal {
                    self.write_checkpoint(&mut lease);
                }
                self.written(self.api.replace(&self.election.name, &PostParams::default(), &lease).await)
            }
        }
    }

    fn written(&mut self, outcome: kube::Result<Lease>) -> Result<bool> {
        let lease = outcome?;
        if let Some(found) = &mut self.found {
            found.taken = lease.metadata.resource_version.as_ref().and_then(|version| version.parse().ok());
        }
        self.observe(Some(&lease), clock::instant());
        self.last_written = Some(lease);
        Ok(true)
    }

    fn observe(&mut self, lease: Option<&Lease>, now: Instant) {
        let Some(lease) = lease else {
            self.observed = None;
            return;
        };
        let version = lease.metadata.resource_version.clone().unwrap_or_default();
        let spec = lease.spec.clone().unwrap_or_default();
        let seconds = spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
        let held = LeaseRecord {
            version,
            holder: spec.holder_identity.filter(|holder| !holder.is_empty()),
            duration: seconds.map_or(self.election.duration, Duration::from_secs),
            transitions: spec.lease_transitions.unwrap_or_default(),
        };
        self.observed = Some(Observed::observe(self.observed.take(), held, now));
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
        let annotations = metadata.annotations.get_or_insert_default();
        for (key, value) in [(UNSEEN_ANNOTATION, &self.unseen), (WITHHELD_ANNOTATION, &self.withheld)] {
            match value {
                Some(value) => annotations.insert(key.to_owned(), value.clone()),
                None => annotations.remove(key),
            };
        }
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
    fn write_checkpoint(&self, lease: &mut Lease) {
        if let Some(checkpoint) = self.checkpoint {
            let term = lease.spec.as_ref().and_then(|spec| spec.lease_transitions).unwrap_or_default();
            let annotations = lease.metadata.annotations.get_or_insert_default();
            annotations.insert(CHECKPOINT_ANNOTATION.to_owned(), checkpoint.to_string());
            annotations.insert(CHECKPOINT_TERM_ANNOTATION.to_owned(), term.to_string());
        }
    }

    /// Releases the Lease, so that the next leader does not wait for it to expire. Without a final checkpoint, the checkpoint's
    /// term is removed: after a loss of the Lease, the checkpoint may be older than the last reports of this replica.
    async fn release(&mut self) -> Result<()> {
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
            if let Some(annotations) = &mut lease.metadata.annotations {
                annotations.remove(UNSEEN_ANNOTATION);
                annotations.remove(WITHHELD_ANNOTATION);
                if self.checkpoint.is_none() {
                    annotations.remove(CHECKPOINT_TERM_ANNOTATION);
                }
            }
            self.write_checkpoint(&mut lease);
            self.api.replace(&self.election.name, &PostParams::default(), &lease).await?;
            Ok(())
        };
        call(limit, released).await
    }

    /// The identity of another replica that leads.
    fn leader(&self) -> Option<&str> {
        let other = self.observed.as_ref().filter(|seen| !seen.is_over(clock::instant()))?;
        other.record.holder.as_deref().filter(|holder| *holder != self.election.identity)
    }

    /// The delay until the next round: the period, up to a fifth shorter or longer so that replicas do not act in lockstep,
    /// but not past the time at which another replica's Lease is ours to take.
    fn delay(&self, leads: bool) -> Duration {
        let spread = random::fraction();
        let pause = self.election.period.mul_f64(0.8 + 0.4 * spread);
        let others = self.observed.as_ref().filter(|_| !leads);
        let left = others.map(|seen| seen.wait(self.deference, clock::instant()));
        // Replicas try 20 to 100 ms after the expiry, not all at the same time. If it has passed already, that attempt failed (the API
        // server is in trouble, or another replica was faster), and the period applies.
        left.filter(|left| !left.is_zero()).map_or(pause, |left| {
            let over = Duration::from_millis(20).mul_f64(1.0 + 4.0 * spread);
            pause.min(left + over)
        })
    }
}

/// The checkpoint in a Lease: what the replica that wrote it had reported.
fn checkpoint_of(lease: &Lease) -> Option<Checkpoint> {
    lease.metadata.annotations.as_ref()?.get(CHECKPOINT_ANNOTATION)?.parse().ok()
}

/// To which of the Lease's transitions the checkpoint belongs; `None` if that is not stated.
fn term_of(lease: &Lease) -> Option<i32> {
    lease.metadata.annotations.as_ref()?.get(CHECKPOINT_TERM_ANNOTATION)?.parse().ok()
}

/// An identity that is unique across restarts: the pod's name and a random suffix.
pub fn identity(name: &str) -> String {
    format!("{name}_{}", random::hex(4))
}

#[cfg(test)]
mod tests;
