//! One replica: the election, the watches and the controller, and the channels between them.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::client::Cluster;
use super::controller::{self, Inputs};
use super::driver_api::DriverApi;
use super::lease::{self, Channels, Election, ElectionState, LeadershipReceiver, Reported};
use super::limit::Rate;
use super::metrics::Metrics;
use super::signing::Signing;
use super::vouching::Account;
use crate::controller::Settings;
use crate::leader::LeaderState;
use crate::policy::Policies;
use crate::runtime::random;
use crate::runtime::ready::Latch;
use crate::runtime::supervise::Supervisor;
use crate::snapshot::Snapshot;
use crate::views::History;

/// The configuration of a replica.
pub struct ReplicaConfig {
    /// The cluster.
    pub cluster: Cluster,
    /// The leader election.
    pub election: Election,
    /// The policies.
    pub policies: Arc<ArcSwap<Policies>>,
    /// A new value whenever the policies change: whether nothing may be written.
    pub dry_run: watch::Receiver<bool>,
    /// How decisions are signed, and the latch that waits for the key; without it nothing is signed.
    pub signing: Option<(Signing, Latch)>,
    /// Our own user name, once it is known.
    pub account: Account,
    /// The rate limit of the controller's requests.
    pub rate: Rate,
    /// How drivers are polled.
    pub driver_api: DriverApi,
    /// A watch of pods that is silent for this long is dead, if a poll shows that something changed.
    pub watch_silence: Duration,
    /// Cancelled when the replica is about to stop: it reports pending exits before it releases the Lease.
    pub shutdown: CancellationToken,
    /// Counters.
    pub metrics: Arc<Metrics>,
}

/// A replica that is not started yet. Its outputs can be passed on before the start, and are empty until then.
#[derive(Debug)]
pub struct Replica {
    snapshot: Arc<ArcSwap<Snapshot>>,
    history: Arc<ArcSwap<History>>,
    election: watch::Sender<ElectionState>,
    completed: watch::Sender<bool>,
}

impl Default for Replica {
    fn default() -> Replica {
        Replica {
            snapshot: Arc::default(),
            history: Arc::default(),
            election: watch::Sender::default(),
            completed: watch::Sender::new(false),
        }
    }
}

impl Replica {
    /// The snapshot of the cluster.
    pub fn snapshot(&self) -> Arc<ArcSwap<Snapshot>> {
        self.snapshot.clone()
    }

    /// The last exits, and what the recovery found and did.
    pub fn history(&self) -> Arc<ArcSwap<History>> {
        self.history.clone()
    }

    /// The leadership, while this replica leads.
    pub fn leadership(&self) -> LeadershipReceiver {
        LeadershipReceiver::new(self.election.subscribe())
    }

    /// Whether the first list of every resource is complete.
    pub fn complete(&self) -> watch::Receiver<bool> {
        self.completed.subscribe()
    }

    /// Returns a function that returns whether this replica leads, follows, or knows of no leader.
    pub fn leader_state(&self) -> Arc<dyn Fn() -> LeaderState + Send + Sync> {
        let election = self.election.subscribe();
        Arc::new(move || LeaderState::from(&*election.borrow()))
    }

    /// Returns a function that returns the identity of the leader, if another replica leads.
    pub fn leader(&self) -> Arc<dyn Fn() -> Option<Arc<str>> + Send + Sync> {
        let election = self.election.subscribe();
        Arc::new(move || match &*election.borrow() {
            ElectionState::Follower(leader) => Some(leader.clone()),
            ElectionState::Leader(_) | ElectionState::NoLeader => None,
        })
    }

    /// Starts the tasks. They end when the supervisor stops; the Lease is released earlier, when `shutdown` is cancelled.
    pub fn start(self, work: ReplicaConfig, supervisor: &mut Supervisor) {
        let ReplicaConfig {
            cluster,
            election,
            policies,
            dry_run,
            signing,
            account,
            rate,
            driver_api,
            watch_silence,
            shutdown,
            metrics,
        } = work;
        let settings = Settings {
            seed: random::number(),
            // By then a new leader has reported pending exits.
            takeover: election.duration * 2 + Duration::from_secs(7),
            contact_timeout: Settings::default().contact_timeout.max(election.period * 3),
            watch_silence,
            ..Settings::default()
        };
        let (contact, contact_seen) = watch::channel(None);
        let (reported, reported_seen) = watch::channel(Reported::default());
        let (leadership, instance) = (self.leadership(), election.identity.clone());
        let channels = Channels { state: self.election, contact, reported: reported_seen };
        let electing = lease::run(cluster.client.clone(), election, channels, metrics.clone(), shutdown.clone());
        let (left, stop) = (shutdown.clone(), supervisor.token().clone());
        supervisor.run("lease", async move {
            // A supervisor that stops without a cancelled `shutdown` releases the Lease too.
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
        });
        let inputs = Inputs {
            client: cluster.client,
            lists: cluster.lists,
            instance,
            snapshot: self.snapshot,
            policies,
            dry_run,
            leadership,
            contact: contact_seen,
            reported,
            shutdown,
            rate,
            driver_api,
            complete: self.completed,
            history: self.history,
            signing,
            account,
            settings,
            metrics,
        };
        controller::spawn(inputs, supervisor);
    }
}
