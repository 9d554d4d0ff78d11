//! A replica of spark-usher: its own watches, election and controller, with its own connection to the API server.

use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use axum::Router;
use futures::FutureExt;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use usher_core::controller::{DriverAnswer, PollError, Settings};
use usher_core::drivers::DriverPoll;
use usher_core::policy::Policies;
use usher_core::snapshot::Snapshot;
use usher_kube::client::Cluster;
use usher_kube::limit::Rate;
use usher_net::telemetry::registry::Registry;
use usher_runtime::ready::Latch;
use usher_runtime::supervise::Supervisor;
use usher_server::cluster::driver_api::DriverApi;
use usher_server::cluster::lease::{Election, LeadershipReceiver};
use usher_server::cluster::metrics::Metrics;
use usher_server::cluster::replica::{self, ReplicaConfig};
use usher_server::cluster::signing::Signing;
use usher_server::cluster::vouching::{Account, Vouching};
use usher_spark::rest::DriverMetrics;

use super::connection::Connection;

pub struct Replica {
    pub connection: Arc<Connection>,
    pub snapshot: Arc<ArcSwap<Snapshot>>,
    complete: watch::Receiver<bool>,
    leadership: LeadershipReceiver,
    shutdown: CancellationToken,
    supervisor: Supervisor,
}

impl Replica {
    /// Starts a replica. All replicas read the same policies.
    pub fn start(
        number: usize,
        connection: Arc<Connection>,
        routes: &Router,
        policies: &Arc<ArcSwap<Policies>>,
        dry_run: watch::Receiver<bool>,
    ) -> Replica {
        let shutdown = CancellationToken::new();
        let signing = Signing {
            namespace: "default".into(),
            secret: "spark-usher-signing".into(),
            vouching: Vouching { policy: String::new(), settle: Duration::ZERO, client_certificates: true },
        };
        let work = ReplicaConfig {
            cluster: Cluster::by(connection.client(routes.clone()), "default"),
            election: Election {
                namespace: "default".into(),
                name: "spark-usher".into(),
                identity: format!("replica-{number}"),
                duration: Duration::from_secs(15),
                period: Duration::from_secs(2),
            },
            policies: policies.clone(),
            dry_run,
            signing: Some((signing, Latch::default())),
            account: Account::default(),
            rate: Rate::default(),
            driver_api: DriverApi::of(|poll| ready(driver_answer(&poll)).boxed()),
            watch_silence: Settings::default().watch_silence,
            shutdown: shutdown.clone(),
            metrics: Arc::new(Metrics::register(&Registry::default()).unwrap()),
        };
        let replica = replica::Replica::default();
        let (snapshot, complete, leadership) = (replica.snapshot(), replica.complete(), replica.leadership());
        let mut supervisor = Supervisor::default();
        replica.start(work, &mut supervisor);
        Replica { connection, snapshot, complete, leadership, shutdown, supervisor }
    }

    pub fn leads(&self) -> bool {
        self.leadership.holds()
    }

    /// Whether its first snapshot is complete: the API server does not call its webhook before.
    pub fn is_complete(&self) -> bool {
        *self.complete.borrow()
    }

    pub fn knows(&self, uid: &str) -> bool {
        self.snapshot.load().apps.values().any(|app| app.executors().values().any(|executor| &*executor.uid == uid))
    }

    /// Begins a graceful stop, as SIGTERM does: the replica has a few seconds.
    pub fn begin_shutdown(&self) {
        self.shutdown.cancel();
    }

    /// Stops it.
    pub async fn stop(self) {
        self.supervisor.stop().await.unwrap();
    }
}

/// What a driver answers to a poll: some a view, some that they are starting, and some nothing.
fn driver_answer(poll: &DriverPoll) -> DriverAnswer {
    let sum: usize = poll.pod.name().bytes().map(usize::from).sum();
    match sum % 3 {
        0 => DriverAnswer::Failed(PollError::Refused),
        1 => DriverAnswer::Starting,
        _ => DriverAnswer::View {
            port: 4040,
            conf: None,
            executors: Vec::new(),
            metrics: DriverMetrics { dropped_events: Some(0), queued_events: Some(0), target: None },
        },
    }
}
