//! The only module that knows all components: builds them, starts them, and waits.

mod certificate;
pub mod metrics;
mod namespaces;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::{ArcSwap, ArcSwapOption};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use certificate::Context;
pub use certificate::{CertificateSource, ClientCa};
use metrics::{FileMetrics, Metrics};
use namespaces::NewNamespaces;

use crate::cluster::client::Cluster;
use crate::cluster::driver_api::DriverApi;
use crate::cluster::lease::{Election, LeadershipReceiver};
use crate::cluster::limit::Rate;
use crate::cluster::policies as cluster_policies;
use crate::cluster::replica::{Replica, ReplicaConfig};
use crate::cluster::signing::Signing;
use crate::cluster::{self, account};
use crate::config::{BadConfig, Config, Reloader, Removed};
use crate::http::capacity::Capacities;
use crate::http::handlers::{Handlers, ReviewState};
use crate::http::limits::Limits;
use crate::http::server::{self, Deadlines, Listener, Shutdown};
use crate::http::{admin, debug, ui, webhook};
use crate::policy::{Policies, deletions};
use crate::runtime::ready::Readiness;
use crate::runtime::supervise::Supervisor;
use crate::runtime::{clock, isolated};
use crate::snapshot::Snapshot;
use crate::time::whole_second;
use crate::tls::serving::Serving;
use crate::ui::{Links, ReplicaReport};

/// The source of the policies.
#[derive(Clone, Debug)]
pub enum ConfigSource {
    /// None: every executor gets its ownerReference, and finished executors that their driver leaves behind are labelled.
    Nothing,
    /// A file, which is polled.
    File(PathBuf),
    /// These policies, for the life of the process.
    Given(Box<Config>),
}

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
    /// The first part of the names of the ValidatingAdmissionPolicies to compare with the policy file, if there are any.
    pub validating_policies: Option<String>,
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

        let (config, reloader) = first_config(options.config, options.file_poll_interval).await?;
        let policies = Arc::new(ArcSwap::new(config.policies.clone()));
        metrics.files.poll_interval.set(config.policies.lifecycle.poll.as_secs_f64());
        let (dry_run, dry_run_seen) = watch::channel(config.settings.dry_run);
        let changed = Arc::new(ArcSwapOption::empty());
        if let Some(reloader) = reloader {
            // The other replicas may still have the previous file.
            changed.store(Some(Arc::new(clock::instant())));
            let (policies, seen) = (policies.clone(), changed.clone());
            let (metrics, stop) = (metrics.files.clone(), stop.clone());
            let shown = reloader.path();
            supervisor.run("policy file", async move {
                reloader
                    .run(stop, |outcome| apply_reload(outcome, &shown, (&policies, &seen), &dry_run, &metrics))
                    .await;
            });
        }

        let context = Context {
            client: options.cluster.client.clone(),
            leadership: replica.leadership(),
            every: options.file_poll_interval,
            metrics: &metrics,
            supervisor: &mut supervisor,
            certificate_ready,
        };
        let serving = certificate::serve(options.certificate, context).await?;
        let clients =
            certificate::clients(options.client_ca, options.file_poll_interval, &metrics.files, &mut supervisor)
                .await?;

        let draining = CancellationToken::new();
        let shutdown = Shutdown { draining: draining.clone(), stop: stop.clone(), drain: options.drain };
        let debug_ending = shutdown.clone();
        let Capacities { webhook: of_webhook, metrics: of_metrics, debug: of_debug } = options.capacities;
        let secure = Listener::bind(options.webhook)?.limited(of_webhook, metrics.http.listener("webhook"));
        let plain = Listener::bind(options.metrics)?.limited(of_metrics, metrics.http.listener("metrics"));
        let (webhook, metrics_address) = (secure.address(), plain.address());
        let own = Arc::new(ArcSwapOption::empty());
        let asking = account::run(options.cluster.client.clone(), own.clone(), stop.clone());
        supervisor.run("own account", asking);
        if let Some(name) = options.validating_policies {
            let (client, policies, own) = (options.cluster.client.clone(), policies.clone(), own.clone());
            let comparing = cluster_policies::run(client, name, policies, own, metrics.cluster.clone(), stop.clone());
            supervisor.run("validating policies", comparing);
        }
        let state = ReviewState {
            snapshot: snapshot.clone(),
            policies: policies.clone(),
            own: own.clone(),
            changed,
            settle: options.settle,
        };
        let namespaces = Arc::new(NewNamespaces::new(snapshot.clone(), options.cluster.client.clone()));
        let routes = webhook::router(Handlers::new(state, namespaces), Limits::default(), metrics.http.clone());
        let shown_certificate = serving.clone();
        let (tls, counted, end) = (Arc::new(serving.config_for(clients)), metrics.http.clone(), shutdown.clone());
        // Callers can occupy all threads of its runtime: probes, metrics, the Lease and the controller do not share them.
        let reviewing = server::serve_tls(secure, tls, routes, Deadlines::default(), counted, end);
        supervisor.spawn("webhook", async move { Ok(isolated::run("webhook", reviewing).await??) });
        listening.open();
        let routes = admin::router(ready.clone(), metrics.registry.clone());
        supervisor.spawn("metrics", async move {
            Ok(server::serve_plain(plain, routes, Deadlines::default(), shutdown).await?)
        });

        let mut debug_address = None;
        if let Some(debug) = options.debug {
            let listener = Listener::bind(debug)?.limited(of_debug, metrics.http.listener("debug"));
            debug_address = Some(listener.address());
            let address = listener.address();
            let of_cluster = metrics.cluster.clone();
            let shown = debug::DebugState {
                snapshot: snapshot.clone(),
                history: replica.history(),
                leader_state: replica.leader_state(),
                unseen: Arc::new(move || of_cluster.unseen.text(clock::now())),
                since: clock::now(),
            };
            let page = options.page.map(|links| ui::UiState {
                snapshot: snapshot.clone(),
                history: replica.history(),
                replica: this_replica(
                    &options.election,
                    &replica,
                    &policies,
                    (&shown_certificate, metrics.cluster.clone()),
                    (address, links),
                ),
                stop: debug_ending.stop.clone(),
                // A page that updates occupies a connection; the command line needs some, too.
                most_live: (of_debug.most / 2).max(1),
            });
            let routes = debug::router(shown, page, ui::HostNames(options.debug_hosts.into()));
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
            dry_run: dry_run_seen,
            signing,
            account: own,
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

    /// The metrics.
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

/// What the web page shows about this replica.
fn this_replica(
    election: &Election,
    replica: &Replica,
    policies: &Arc<ArcSwap<Policies>>,
    (serving, metrics): (&Arc<Serving>, Arc<cluster::metrics::Metrics>),
    (debug, links): (SocketAddr, Links),
) -> Arc<dyn Fn() -> ReplicaReport + Send + Sync> {
    let (state, leader, complete) = (replica.leader_state(), replica.leader(), replica.complete());
    let (election, serving, policies) = (election.clone(), serving.clone(), policies.clone());
    let since = whole_second(clock::now()).to_string();
    Arc::new(move || ReplicaReport {
        identity: election.identity.clone(),
        namespace: election.namespace.clone(),
        state: state().as_str(),
        leader: leader().map(|leader| leader.to_string()),
        is_complete: *complete.borrow(),
        unseen: metrics.unseen.text(clock::now()),
        withheld: metrics.withheld_text(),
        deletions: deletions(&policies.load()),
        certificate_until: serving.not_after().map(|time| time.to_string()),
        port: debug.port(),
        links: links.clone(),
        since: since.clone(),
    })
}

async fn first_config(source: ConfigSource, every: Duration) -> anyhow::Result<(Config, Option<Reloader>)> {
    let path = match source {
        ConfigSource::Nothing => {
            let config = Config::default();
            let deletions = deletions(&config.policies);
            tracing::info!(
                deletions,
                "no policy file: executors get their ownerReference, finished executors that their driver leaves behind are labelled"
            );
            return Ok((config, None));
        }
        ConfigSource::Given(config) => return Ok((*config, None)),
        ConfigSource::File(path) => path,
    };
    let shown = path.display().to_string();
    let mut reloader = Reloader::new(path, every);
    let config = reloader.first().await.map_err(|error| match error {
        BadConfig::Unreadable { .. } => anyhow::anyhow!("{error}"), // The error names the file itself.
        BadConfig::Wrong(_) => anyhow::anyhow!("{shown}: {error}"),
    })?;
    warn(&config);
    let deletions = deletions(&config.policies);
    tracing::info!(file = shown, policies = config.policies.listed().len(), deletions, "policy file loaded");
    Ok((config, Some(reloader)))
}

fn warn(config: &Config) {
    for warning in &config.warnings {
        tracing::warn!(warning, "the policy file has a warning");
    }
}

/// Warns if pods are no longer placed, or violations no longer denied: a file that lost its end has that effect, too.
fn warn_of_removed(removed: &Removed<'_>, metrics: &FileMetrics) {
    for (what, names) in [("policy", &removed.policies), ("enforce", &removed.enforce)] {
        let label = metrics.config_removed.with_label_values(&[what]);
        label.inc_by(u64::try_from(names.len()).unwrap_or(u64::MAX));
    }
    if !removed.policies.is_empty() {
        tracing::warn!(policies = removed.policies.join(", "), "the new policy file no longer has these policies");
    }
    if !removed.enforce.is_empty() {
        tracing::warn!(
            policies = removed.enforce.join(", "),
            "the new policy file no longer has validate: Enforce for these policies: violations are not denied"
        );
    }
}

/// Replaces the policies with those of the new file, or keeps the old ones.
fn apply_reload(
    outcome: Result<Config, BadConfig>,
    shown: &str,
    (policies, changed): (&ArcSwap<Policies>, &ArcSwapOption<Instant>),
    dry_run: &watch::Sender<bool>,
    metrics: &FileMetrics,
) {
    let result = match outcome {
        Ok(config) => {
            warn(&config);
            let deletions = deletions(&config.policies);
            tracing::info!(policies = config.policies.listed().len(), deletions, "policy file reloaded");
            metrics.poll_interval.set(config.policies.lifecycle.poll.as_secs_f64());
            warn_of_removed(&Removed::between(&policies.load(), &config.policies), metrics);
            policies.store(config.policies);
            changed.store(Some(Arc::new(clock::instant())));
            dry_run.send_replace(config.settings.dry_run);
            "ok"
        }
        Err(error) => {
            tracing::error!(file = shown, %error, "cannot load the policy file; the previous one stays in use");
            "refused"
        }
    };
    metrics.config_reloads.with_label_values(&[result]).inc();
}
