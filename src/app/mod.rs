//! The only place that knows everybody: builds the parts, starts them, and waits.

mod certificate;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::{ArcSwap, ArcSwapOption};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use certificate::Around;
pub use certificate::{CertificateSource, ClientCa};

use crate::cluster::account;
use crate::cluster::client::Cluster;
use crate::cluster::lease::{Election, Leadership};
use crate::cluster::limit::Rate;
use crate::cluster::policies as cluster_policies;
use crate::cluster::replica::{Replica, Work};
use crate::cluster::signing::SigningSecret;
use crate::config::{BadConfig, Config, Reloader};
use crate::http::capacity::Capacities;
use crate::http::limits::Limits;
use crate::http::server::{self, Deadlines, Ending, Listener};
use crate::http::webhook::{Admit, Answers, Mutate, Validate};
use crate::http::{admin, debug, webhook};
use crate::policy::Policies;
use crate::runtime::clock;
use crate::runtime::ready::Readiness;
use crate::runtime::supervise::Supervisor;
use crate::snapshot::Snapshot;
use crate::telemetry::metrics::Metrics;

/// Where the policies come from.
#[derive(Clone, Debug)]
pub enum ConfigSource {
    /// None: every executor gets its owner, and finished ones that their driver leaves are labelled.
    Nothing,
    /// A file, which is looked at again and again.
    File(PathBuf),
    /// These, for the life of the process.
    Given(Box<Config>),
}

/// How to start.
#[derive(Clone)]
pub struct Options {
    /// The cluster to look after.
    pub cluster: Cluster,
    /// Where API servers reach the webhook.
    pub webhook: SocketAddr,
    /// Where `/livez`, `/readyz` and `/metrics` are.
    pub metrics: SocketAddr,
    /// The serving certificate.
    pub certificate: CertificateSource,
    /// Who may call the webhook; everybody when there is none.
    pub client_ca: Option<ClientCa>,
    /// How many connections the listeners hold.
    pub capacities: Capacities,
    /// The policies.
    pub config: ConfigSource,
    /// The first part of the names of the ValidatingAdmissionPolicies to compare with the policy file, if there are any.
    pub validating_policies: Option<String>,
    /// Where the key is kept that placements are signed with; without one they are not.
    pub signing: Option<SigningSecret>,
    /// Where `/debug/` is; nowhere when there is none.
    pub debug: Option<SocketAddr>,
    /// How often the policy file and the certificate files are looked at.
    pub look_every: Duration,
    /// How the writing replica is chosen.
    pub election: Election,
    /// How many requests the loop may make.
    pub rate: Rate,
    /// After so long a silent watch of pods is dead, if a poll shows that something changed.
    pub silence: Duration,
    /// After so long a change of the policy file has reached every replica.
    pub settle: Duration,
    /// How long requests may take to finish at the end.
    pub drain: Duration,
}

/// A running spark-usher.
pub struct App {
    supervisor: Supervisor,
    ready: Readiness,
    leaving: CancellationToken,
    webhook: SocketAddr,
    metrics_address: SocketAddr,
    debug_address: Option<SocketAddr>,
    counters: Arc<Metrics>,
    snapshot: Arc<ArcSwap<Snapshot>>,
    leading: watch::Receiver<Option<Arc<Leadership>>>,
    complete: watch::Receiver<bool>,
}

impl App {
    /// Starts everything. When it returns the listeners are bound; a wrong policy file or certificate is an error here.
    pub async fn start(options: Options) -> anyhow::Result<App> {
        let mut supervisor = Supervisor::default();
        let stop = supervisor.token().clone();
        let metrics = Arc::new(Metrics::new()?);
        let mut ready = Readiness::default();
        let (certificate_there, listening) = (ready.needs("certificate"), ready.needs("listener"));
        let signing = options.signing.map(|secret| (secret, ready.needs("signing key")));

        let (config, reloader) = first_config(options.config, options.look_every).await?;
        let policies = Arc::new(ArcSwap::new(config.policies.clone()));
        metrics.poll_interval.set(config.policies.lifecycle.poll.as_secs_f64());
        let (dry_run, dry_run_seen) = watch::channel(config.settings.dry_run);
        let changed = Arc::new(ArcSwapOption::empty());
        if let Some(reloader) = reloader {
            // The others may still have the file before.
            changed.store(Some(Arc::new(clock::instant())));
            let (policies, seen) = (policies.clone(), changed.clone());
            let (metrics, stop) = (metrics.clone(), stop.clone());
            let shown = reloader.path();
            supervisor.spawn("policy file", async move {
                reloader.run(stop, |outcome| take_over(outcome, &shown, (&policies, &seen), &dry_run, &metrics)).await;
                Ok(())
            });
        }

        let replica = Replica::default();
        let snapshot = replica.snapshot();
        let around = Around {
            client: options.cluster.client.clone(),
            leading: replica.leading(),
            every: options.look_every,
            metrics: &metrics,
            supervisor: &mut supervisor,
            there: certificate_there,
        };
        let serving = certificate::serve(options.certificate, around).await?;
        let clients = certificate::clients(options.client_ca, options.look_every, &metrics, &mut supervisor).await?;

        let leaving = CancellationToken::new();
        let ending = Ending { leaving: leaving.clone(), stop: stop.clone(), drain: options.drain };
        let debug_ending = ending.clone();
        let Capacities { webhook: of_webhook, metrics: of_metrics, debug: of_debug } = options.capacities;
        let secure = Listener::bind(options.webhook)?.limited(of_webhook, metrics.listener("webhook"));
        let plain = Listener::bind(options.metrics)?.limited(of_metrics, metrics.listener("metrics"));
        let (webhook, metrics_address) = (secure.address(), plain.address());
        let mutate = Arc::new(Mutate { snapshot: snapshot.clone(), policies: policies.clone() });
        let own = Arc::new(ArcSwapOption::empty());
        let asking = account::run(options.cluster.client.clone(), own.clone(), stop.clone());
        supervisor.spawn("own account", async move {
            asking.await;
            Ok(())
        });
        if let Some(name) = options.validating_policies {
            let (client, policies, own) = (options.cluster.client.clone(), policies.clone(), own.clone());
            let comparing = cluster_policies::run(client, name, policies, own, metrics.clone(), stop.clone());
            supervisor.spawn("validating policies", async move {
                comparing.await;
                Ok(())
            });
        }
        let validate = Arc::new(Validate {
            snapshot: snapshot.clone(),
            policies: policies.clone(),
            own,
            changed,
            settle: options.settle,
            complete: replica.complete(),
        });
        let answers = Answers { mutate, admit: Arc::new(Admit(validate.clone())), validate };
        let routes = webhook::router(answers, Limits::default(), metrics.clone());
        let (tls, counted, end) = (Arc::new(serving.config_for(clients)), metrics.clone(), ending.clone());
        supervisor.spawn("webhook", async move {
            Ok(server::serve_tls(secure, tls, routes, Deadlines::default(), counted, end).await?)
        });
        listening.open();
        let routes = admin::router(ready.clone(), metrics.clone(), snapshot.clone());
        supervisor.spawn("metrics", async move {
            Ok(server::serve_plain(plain, routes, Deadlines::default(), ending).await?)
        });

        let mut debug_address = None;
        if let Some(debug) = options.debug {
            let listener = Listener::bind(debug)?.limited(of_debug, metrics.listener("debug"));
            debug_address = Some(listener.address());
            let routes = debug::router(debug::Shown {
                snapshot: snapshot.clone(),
                exits: replica.exits(),
                standing: replica.standing(),
            });
            supervisor.spawn("debug", async move {
                Ok(server::serve_plain(listener, routes, Deadlines::default(), debug_ending).await?)
            });
        }
        let (leading, complete) = (replica.leading(), replica.complete());
        let work = Work {
            cluster: options.cluster,
            election: options.election,
            policies,
            dry_run: dry_run_seen,
            signing,
            rate: options.rate,
            silence: options.silence,
            leaving: leaving.clone(),
            metrics: metrics.clone(),
        };
        replica.start(work, &mut supervisor);
        Ok(App {
            supervisor,
            ready,
            leaving,
            webhook,
            metrics_address,
            debug_address,
            counters: metrics,
            snapshot,
            leading,
            complete,
        })
    }

    /// Where the webhook listens.
    pub fn webhook(&self) -> SocketAddr {
        self.webhook
    }

    /// Where the metrics are.
    pub fn metrics(&self) -> SocketAddr {
        self.metrics_address
    }

    /// Where the debug listener is, if there is one.
    pub fn debug(&self) -> Option<SocketAddr> {
        self.debug_address
    }

    /// What was counted.
    pub fn counters(&self) -> &Metrics {
        &self.counters
    }

    /// The present picture.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.snapshot.load_full()
    }

    /// Waits until the first full picture of the cluster is there and this replica leads.
    pub async fn settled(&mut self) {
        // The senders live as long as their tasks; when those end, `failed` tells.
        let _ = self.complete.wait_for(|complete| *complete).await;
        let _ = self.leading.wait_for(Option::is_some).await;
    }

    /// Waits for a part of it to fail.
    pub async fn failed(&mut self) -> anyhow::Error {
        self.supervisor.first_failure().await
    }

    /// First phase of the end: not ready any more and no leader, while requests are still answered.
    pub fn leave(&self) {
        self.ready.drain();
        self.leaving.cancel();
    }

    /// Second phase: stops listening, lets requests finish, and ends.
    pub async fn stop(self) -> anyhow::Result<()> {
        self.leave();
        self.supervisor.stop().await
    }
}

async fn first_config(source: ConfigSource, every: Duration) -> anyhow::Result<(Config, Option<Reloader>)> {
    let path = match source {
        ConfigSource::Nothing => {
            tracing::info!(
                "no policy file: executors get their owner, finished ones that are left are labelled, nothing else changes"
            );
            return Ok((Config::default(), None));
        }
        ConfigSource::Given(config) => return Ok((*config, None)),
        ConfigSource::File(path) => path,
    };
    let shown = path.display().to_string();
    let mut reloader = Reloader::new(path, every);
    let config = reloader.first().await.map_err(|error| match error {
        BadConfig::Unreadable { .. } => anyhow::anyhow!("{error}"), // It names the file itself.
        BadConfig::Wrong(_) => anyhow::anyhow!("{shown}: {error}"),
    })?;
    warn(&config);
    tracing::info!(file = shown, policies = config.policies.listed().len(), "policy file read");
    Ok((config, Some(reloader)))
}

fn warn(config: &Config) {
    for warning in &config.warnings {
        tracing::warn!(warning, "policy file");
    }
}

/// Takes a new version of the policy file over, or keeps the old one.
fn take_over(
    outcome: Result<Config, BadConfig>,
    shown: &str,
    (policies, changed): (&ArcSwap<Policies>, &ArcSwapOption<Instant>),
    dry_run: &watch::Sender<bool>,
    metrics: &Metrics,
) {
    let result = match outcome {
        Ok(config) => {
            warn(&config);
            tracing::info!(policies = config.policies.listed().len(), "policy file taken over");
            metrics.poll_interval.set(config.policies.lifecycle.poll.as_secs_f64());
            policies.store(config.policies);
            changed.store(Some(Arc::new(clock::instant())));
            dry_run.send_replace(config.settings.dry_run);
            "ok"
        }
        Err(error) => {
            tracing::error!(file = shown, %error, "the policy file is refused; the old one stays");
            "refused"
        }
    };
    metrics.config_reloads.with_label_values(&[result]).inc();
}
