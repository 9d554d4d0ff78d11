//! One replica: the election, the watches and the controller, and the channels between them.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::watch;

pub use super::event_loop::ReplicaConfig;
use super::event_loop::{self, Inputs, Published};
use super::lease::{self, Channels, ElectionState, LeadershipReceiver, Reported};
use usher_core::controller::Settings;
use usher_core::leader::LeaderState;
use usher_core::snapshot::Snapshot;
use usher_report::views::History;
use usher_runtime::random;
use usher_runtime::supervise::Supervisor;

/// A replica that is not started yet. Its outputs can be passed on before the start, and are empty until then.
#[derive(Debug)]
pub struct Replica {
    published: Published,
    election: watch::Sender<ElectionState>,
}

impl Default for Replica {
    fn default() -> Replica {
        let complete = watch::Sender::new(false);
        let published = Published { snapshot: Arc::default(), history: Arc::default(), complete };
        Replica { published, election: watch::Sender::default() }
    }
}

impl Replica {
    /// The snapshot of the cluster.
    pub fn snapshot(&self) -> Arc<ArcSwap<Snapshot>> {
        self.published.snapshot.clone()
    }

    /// The last exits, and what the recovery found and did.
    pub fn history(&self) -> Arc<ArcSwap<History>> {
        self.published.history.clone()
    }

    /// The leadership, while this replica leads.
    pub fn leadership(&self) -> LeadershipReceiver {
        LeadershipReceiver::new(self.election.subscribe())
    }

    /// Whether the first list of every resource is complete.
    pub fn complete(&self) -> watch::Receiver<bool> {
        self.published.complete.subscribe()
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
    pub fn start(self, config: ReplicaConfig, supervisor: &mut Supervisor) {
        let election = config.election.clone();
        let settings = Settings {
            seed: random::number(),
            // By then a new leader has reported pending exits.
            takeover: election.duration * 2 + Duration::from_secs(7),
            contact_timeout: Settings::default().contact_timeout.max(election.period * 3),
            watch_silence: config.watch_silence,
            ..Settings::default()
        };
        let (contact, contact_seen) = watch::channel(None);
        let (reported, reported_seen) = watch::channel(Reported::default());
        let leadership = self.leadership();
        let channels = Channels { state: self.election, contact, reported: reported_seen };
        let (client, metrics, left) = (config.cluster.client.clone(), config.metrics.clone(), config.shutdown.clone());
        let electing = lease::run(client, election, channels, metrics, left.clone());
        let stop = supervisor.token().clone();
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
        let published = self.published;
        let inputs = Inputs { config, published, leadership, contact: contact_seen, reported, settings };
        event_loop::spawn(inputs, supervisor);
    }
}
