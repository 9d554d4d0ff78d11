//! The only module that knows all components: builds them, starts them, and waits.

mod certificate;
pub mod metrics;
mod namespaces;
mod policy_file;
mod reload;
mod shown;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use certificate::CertificateContext;
pub use certificate::{CertificateSource, ClientCa};
use metrics::Metrics;
use namespaces::NewNamespaces;
pub use policy_file::ConfigSource;
use shown::Shown;

use crate::cluster::account;
use crate::cluster::driver_api::DriverApi;
use crate::cluster::lease::{Election, LeadershipReceiver};
use crate::cluster::policies::{self as cluster_policies, AdmissionPolicies};
use crate::cluster::replica::{Replica, ReplicaConfig};
use crate::cluster::signing::Signing;
use crate::http::handlers::{Handlers, ReviewState};
use crate::http::limits::Limits;
use crate::http::{admin, debug, ui, webhook};
use usher_core::snapshot::Snapshot;
use usher_kube::client::Cluster;
use usher_kube::limit::Rate;
use usher_net::listener::capacity::Capacities;
use usher_net::listener::server::{self, Deadlines, Listener, Shutdown};
use usher_report::ui::Links;
use usher_runtime::isolated;
use usher_runtime::ready::Readiness;
use usher_runtime::supervise::Supervisor;

/// The options of the process.
#[derive(Clone)]
pub struct Options {
    /// The cluster to manage.
    pub cluster: Cluster,
    /// The address at which API servers reach the webhook.
    pub webhook: SocketAddr,
    /// The address of `/livez`, `/readyz` and `/metrics`.
    pub metrics: SocketAddr,
    /// The source of the serving certificate.
    pub certificate: CertificateSource,
    /// The clients that may call the webhook; all clients if `None`.
    pub client_ca: Option<ClientCa>,
    /// The capacities of the listeners, in connections.
    pub capacities: Capacities,
    /// The source of the policies.
    pub config: ConfigSource,
    /// The admission policies that follow the policy file, each part with its owner.
    pub admission_policies: Vec<AdmissionPolicies>,
    /// How the webhook's decisions are signed; `None` if they are not.
    pub signing: Option<Signing>,
    /// The address of `/debug/`; not served if `None`.
    pub debug: Option<SocketAddr>,
    /// Where the web page links to, if it serves one.
    pub page: Option<Links>,
    /// The names by which clients may call it, beside addresses and localhost.
    pub debug_hosts: Vec<String>,
    /// How often the policy file and the certificate files are polled.
    pub file_poll_interval: Duration,
    /// The leader election.
    pub election: Election,
    /// The rate limit of the controller's requests.
    pub rate: Rate,
    /// A watch of pods that is silent for this long is dead, if a poll shows that something changed.
    pub watch_silence: Duration,
    /// After this long, a change of the policy file has reached every replica.
    pub settle: Duration,
    /// How long requests may take to finish at the shutdown.
    pub drain: Duration,
}

/// A running spark-usher.
pub struct App {
    supervisor: Supervisor,
    ready: Readiness,
    draining: CancellationToken,
    webhook: SocketAddr,
    metrics_address: SocketAddr,
    debug_address: Option<SocketAddr>,
    metrics: Metrics,
    snapshot: Arc<ArcSwap<Snapshot>>,
    leadership: LeadershipReceiver,
    complete: watch::Receiver<bool>,
}

impl App {
    /// Starts all components. On return the listeners are bound; an invalid policy file or certificate is an error here.
    pub async fn start(options: Options) -> anyhow::Result<App> {
        let mut supervisor = Supervisor::default();
        let stop = supervisor.token().clone();
        let replica = Replica::default();
        let snapshot = replica.snapshot();
        let metrics = Metrics::new(&replica)?;
        let mut ready = Readiness::default();
        let (certificate_ready, listening) = (ready.needs("certificate"), ready.needs("listener"));
        let signing = options.signing.map(|signing| (signing, ready.needs("signing key")));

        let every = options.file_poll_interval;
        let in_use = policy_file::start(options.config, every, &metrics.files, &mut supervisor).await?;
        let policies = in_use.policies;

        let context = CertificateContext {
            client: options.cluster.client.clone(),
            leadership: replica.leadership(),
            every,
            metrics: &metrics,
            supervisor: &mut supervisor,
            certificate_ready,
        };
        let serving = certificate::serve(options.certificate, context).await?;
        let clients = certificate::clients(options.client_ca, every, &metrics.files, &mut supervisor).await?;

        let draining = CancellationToken::new();
        let shutdown = Shutdown { draining: draining.clone(), stop: stop.clone(), drain: options.drain };
        let debug_ending = shutdown.clone();
        let Capacities { webhook: of_webhook, metrics: of_metrics, debug: of_debug } = options.capacities;
        let secure = Listener::bind(options.webhook)?.limited(of_webhook, metrics.listeners.listener("webhook"));
        let plain = Listener::bind(options.metrics)?.limited(of_metrics, metrics.listeners.listener("metrics"));
        let (webhook, metrics_address) = (secure.address(), plain.address());
        let own_account = Arc::new(ArcSwapOption::empty());
        let asking = account::run(options.cluster.client.clone(), own_account.clone(), stop.clone());
        supervisor.run("own account", asking);
        for settings in options.admission_policies {
            let inputs = cluster_policies::Inputs {
                client: options.cluster.client.clone(),
                policies: policies.clone(),
                account: own_account.clone(),
                leadership: replica.leadership(),
                identity: options.election.identity.clone(),
                metrics: metrics.cluster.clone(),
            };
            supervisor.run("admission policies", cluster_policies::run(settings, inputs, stop.clone()));
        }
        let state = ReviewState {
            snapshot: snapshot.clone(),
            policies: policies.clone(),
            own_account: own_account.clone(),
            changed: in_use.changed,
            settle: options.settle,
        };
        let namespaces = Arc::new(NewNamespaces::new(snapshot.clone(), options.cluster.client.clone()));
        let routes = webhook::router(Handlers::new(state, namespaces), Limits::default(), metrics.http.clone());
        let (tls, handshakes) = (Arc::new(serving.config_for(clients)), metrics.listeners.handshakes.clone());
        let end = shutdown.clone();
        // Callers can occupy all threads of its runtime: probes, metrics, the Lease and the controller do not share them.
        let reviewing = server::serve_tls(secure, tls, routes, Deadlines::default(), handshakes, end);
        supervisor.spawn("webhook", async move { Ok(isolated::run("webhook", reviewing).await??) });
        listening.open();
        let routes = admin::router(ready.clone(), metrics.registry.clone());
        supervisor.spawn("metrics", async move {
            Ok(server::serve_plain(plain, routes, Deadlines::default(), shutdown).await?)
        });

        let mut debug_address = None;
        if let Some(address) = options.debug {
            let listener = Listener::bind(address)?.limited(of_debug, metrics.listeners.listener("debug"));
            let address = listener.address();
            debug_address = Some(address);
            let shown = Shown {
                replica: &replica,
                election: &options.election,
                policies: &policies,
                serving: &serving,
                metrics: &metrics.cluster,
            };
            // A page that updates occupies a connection; the command line needs some, too.
            let max_live = (of_debug.max / 2).max(1);
            let page = options.page.map(|links| shown.page(links, address.port(), stop, max_live));
            let routes = debug::router(shown.state(), page, ui::HostNames(options.debug_hosts.into()));
            supervisor.spawn("debug", async move {
                Ok(server::serve_plain(listener, routes, Deadlines::default(), debug_ending).await?)
            });
        }
        let (leadership, complete) = (replica.leadership(), replica.complete());
        let driver_api = DriverApi::over_network(options.cluster.client.clone());
        let work = ReplicaConfig {
            cluster: options.cluster,
            election: options.election,
            policies,
            dry_run: in_use.dry_run,
            signing,
            account: own_account,
            rate: options.rate,
            driver_api,
            watch_silence: options.watch_silence,
            shutdown: draining.clone(),
            metrics: metrics.cluster.clone(),
        };
        replica.start(work, &mut supervisor);
        Ok(App {
            supervisor,
            ready,
            draining,
            webhook,
            metrics_address,
            debug_address,
            metrics,
            snapshot,
            leadership,
            complete,
        })
    }

    /// The address of the webhook.
    pub fn webhook(&self) -> SocketAddr {
        self.webhook
    }

    /// The address of the metrics.
    pub fn metrics(&self) -> SocketAddr {
        self.metrics_address
    }

    /// The address of the debug listener, if there is one.
    pub fn debug(&self) -> Option<SocketAddr> {
        self.debug_address
    }

    pub fn counters(&self) -> &Metrics {
        &self.metrics
    }

    /// The current snapshot.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.snapshot.load_full()
    }

    /// Waits until the first full snapshot of the cluster is complete and this replica leads.
    pub async fn has_synced(&mut self) {
        // The senders exist as long as their tasks; when a task ends, `failed` returns why.
        let _ = self.complete.wait_for(|complete| *complete).await;
        self.leadership.receive();
        while self.leadership.received().is_none() && self.leadership.changed().await {}
    }

    /// Waits for a component to fail.
    pub async fn failed(&mut self) -> anyhow::Error {
        self.supervisor.first_failure().await
    }

    /// The first phase of the shutdown: neither ready nor leader, while requests are still answered.
    pub fn drain(&self) {
        self.ready.drain();
        self.draining.cancel();
    }

    /// The second phase: stops listening, lets requests finish, and stops all tasks.
    pub async fn stop(self) -> anyhow::Result<()> {
        self.drain();
        self.supervisor.stop().await
    }
}
