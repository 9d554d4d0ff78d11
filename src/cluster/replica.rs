//! One replica: the election, the watches and the reconcile loop, and the channels between them.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use imbl::Vector;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::client::Cluster;
use super::lease::{self, Election, Leadership, Reported, Ties};
use super::limit::Rate;
use super::reconcile::{self, Inputs};
use super::signing::SigningSecret;
use crate::lifecycle::{Exit, Settings, Standing};
use crate::policy::Policies;
use crate::runtime::random;
use crate::runtime::ready::Latch;
use crate::runtime::supervise::Supervisor;
use crate::snapshot::Snapshot;
use crate::telemetry::metrics::Metrics;

/// What a replica needs.
pub struct Work {
    /// The cluster.
    pub cluster: Cluster,
    /// How the writing replica is chosen.
    pub election: Election,
    /// The policies.
    pub policies: Arc<ArcSwap<Policies>>,
    /// A new value whenever the policies changed; the value is whether nothing may be written.
    pub dry_run: watch::Receiver<bool>,
    /// Where the key of our signatures is kept, and what waits for it; nothing is signed without.
    pub signing: Option<(SigningSecret, Latch)>,
    /// How many requests the loop may make.
    pub rate: Rate,
    /// After so long a silent watch of pods is dead, if a poll shows that something changed.
    pub silence: Duration,
    /// Cancelled when the replica is about to stop: it reports pending exits before it releases the Lease.
    pub leaving: CancellationToken,
    /// Counters.
    pub metrics: Arc<Metrics>,
}

/// A replica that is not started yet. What it publishes can be handed out before the start, and is empty until then.
#[derive(Debug)]
pub struct Replica {
    snapshot: Arc<ArcSwap<Snapshot>>,
    exits: Arc<ArcSwap<Vector<Exit>>>,
    elected: watch::Sender<Option<Arc<Leadership>>>,
    led: watch::Sender<bool>,
    completed: watch::Sender<bool>,
}

impl Default for Replica {
    fn default() -> Replica {
        Replica {
            snapshot: Arc::default(),
            exits: Arc::default(),
            elected: watch::Sender::new(None),
            led: watch::Sender::new(false),
            completed: watch::Sender::new(false),
        }
    }
}

impl Replica {
    /// The snapshot of the cluster.
    pub fn snapshot(&self) -> Arc<ArcSwap<Snapshot>> {
        self.snapshot.clone()
    }

    /// The last exits.
    pub fn exits(&self) -> Arc<ArcSwap<Vector<Exit>>> {
        self.exits.clone()
    }

    /// The leadership, while this replica leads.
    pub fn leading(&self) -> watch::Receiver<Option<Arc<Leadership>>> {
        self.elected.subscribe()
    }

    /// Whether the first list of every resource is complete.
    pub fn complete(&self) -> watch::Receiver<bool> {
        self.completed.subscribe()
    }

    /// Returns a function that says whether this replica leads, follows, or knows of no leader.
    pub fn standing(&self) -> Arc<dyn Fn() -> Standing + Send + Sync> {
        let (leading, led) = (self.elected.subscribe(), self.led.subscribe());
        Arc::new(move || Standing::of(leading.borrow().is_some(), *led.borrow()))
    }

    /// Starts its tasks. They end when the supervisor stops. The Lease is released earlier, when `leaving` is cancelled.
    pub fn start(self, work: Work, supervisor: &mut Supervisor) {
        let Work { cluster, election, policies, dry_run, signing, rate, silence, leaving, metrics } = work;
        let settings = Settings {
            seed: random::number(),
            // By then a new leader has reported pending exits.
            takeover: election.duration * 2 + Duration::from_secs(7),
            quiet: Settings::default().quiet.max(election.period * 3),
            silence,
            ..Settings::default()
        };
        let (contact, contact_seen) = watch::channel(None);
        let (reported, reported_seen) = watch::channel(Reported::default());
        let (leading, led, instance) = (self.leading(), self.led.subscribe(), election.identity.clone());
        let ties = Ties { leading: self.elected, led: self.led, contact, reported: reported_seen };
        let electing = lease::run(cluster.client.clone(), election, ties, metrics.clone(), leaving.clone());
        let (left, stop) = (leaving.clone(), supervisor.token().clone());
        supervisor.spawn("lease", async move {
            // A supervisor that stops without `leaving` releases the Lease too.
            let stopped = async {
                stop.cancelled().await;
                left.cancel();
                std::future::pending::<()>().await;
            };
            tokio::select! {
                biased;
                () = electing => {}
                () = stopped => {}
            }
            stop.cancelled().await;
            Ok(())
        });
        let inputs = Inputs {
            client: cluster.client,
            lists: cluster.lists,
            instance,
            snapshot: self.snapshot,
            policies,
            dry_run,
            leading,
            led,
            contact: contact_seen,
            reported,
            leaving,
            rate,
            complete: self.completed,
            exits: self.exits,
            signing,
            settings,
            metrics,
        };
        reconcile::spawn(inputs, supervisor);
    }
}
