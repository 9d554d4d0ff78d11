//! The sources of the serving certificate and the client CA, and their replacement while the process serves.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use super::metrics::{FileMetrics, Metrics};
use crate::cluster::certificates::{self, Managed};
use crate::cluster::lease::LeadershipReceiver;
use usher_net::tls::clients::{BadClientCa, ClientCaFile, Clients};
use usher_net::tls::load::Certificate;
use usher_net::tls::serving::{Files, Serving};
use usher_runtime::ready::Latch;
use usher_runtime::supervise::Supervisor;

/// The source of the serving certificate.
#[derive(Clone, Debug)]
pub enum CertificateSource {
    /// A Secret that the leader fills and renews.
    Managed(Managed),
    /// Files that an administrator or a controller renews.
    Files {
        /// Chain, PEM, the leaf first.
        certificate: PathBuf,
        /// Private key, PEM.
        key: PathBuf,
    },
    /// This certificate, for the life of the process.
    Given(Certificate),
}

/// The clients that may call the webhook.
#[derive(Clone, Debug)]
pub struct ClientCa {
    /// The CAs that sign API servers' client certificates, PEM, in a file that an administrator or a controller renews.
    pub file: PathBuf,
    /// The names of which a certificate must contain one; empty for any.
    pub names: Vec<String>,
}

/// Accepts only clients of this CA, and follows its file. The file must be valid from the start.
pub(super) async fn clients(
    source: Option<ClientCa>,
    every: Duration,
    metrics: &FileMetrics,
    supervisor: &mut Supervisor,
) -> anyhow::Result<Option<Arc<Clients>>> {
    let Some(ClientCa { file, names }) = source else { return Ok(None) };
    let shown = file.display().to_string();
    let mut file = ClientCaFile::new(file, every);
    let clients = file.first(names).await.map_err(|error| anyhow::anyhow!("--client-ca {shown}: {error}"))?;
    let (accepted, metrics, stop) = (clients.clone(), metrics.clone(), supervisor.token().clone());
    supervisor.run("client CA", async move {
        let reloaded = |outcome: Result<(), BadClientCa>| {
            let result = match outcome {
                Ok(()) => {
                    tracing::info!(from = shown, "client CA reloaded");
                    "ok"
                }
                Err(error) => {
                    tracing::error!(%error, from = shown, "cannot load the client CA; the previous one stays in use");
                    "refused"
                }
            };
            metrics.certificate_reloads.with_label_values(&[result]).inc();
        };
        file.run(accepted, stop, reloaded).await;
    });
    Ok(Some(clients))
}

/// What the certificate's tasks use.
pub(super) struct CertificateContext<'a> {
    pub(super) client: kube::Client,
    pub(super) leadership: LeadershipReceiver,
    /// How often files are polled.
    pub(super) every: Duration,
    pub(super) metrics: &'a Metrics,
    pub(super) supervisor: &'a mut Supervisor,
    /// Opened once there is a certificate to serve.
    pub(super) certificate_ready: Latch,
}

/// Starts to serve certificates of this source. Files must be valid from the start; a managed certificate may come later.
pub(super) async fn serve(source: CertificateSource, context: CertificateContext<'_>) -> anyhow::Result<Arc<Serving>> {
    let CertificateContext { client, leadership, every, metrics, supervisor, certificate_ready } = context;
    let (serving, files, stop) = (Arc::new(Serving::default()), metrics.files.clone(), supervisor.token().clone());
    let served = serving.clone();
    let take = move |certificate: Certificate| {
        #[expect(clippy::cast_precision_loss, reason = "seconds since 1970 fit a float's 53 bits")]
        files.not_after.set(certificate.not_after.as_second() as f64);
        served.replace(certificate);
        certificate_ready.open();
    };
    let counted = metrics.files.clone();
    match source {
        CertificateSource::Given(certificate) => take(certificate),
        CertificateSource::Files { certificate, key } => {
            let shown = format!("{} and {}", certificate.display(), key.display());
            let mut files = Files::new(certificate, key, every);
            take(files.first().await.map_err(|error| anyhow::anyhow!("{shown}: {error}"))?);
            supervisor.run("certificate files", async move {
                files.run(stop, |outcome| reloaded(outcome, &shown, &counted, &take)).await;
            });
        }
        CertificateSource::Managed(managed) => {
            let shown = format!("secret {}/{}", managed.secret.0, managed.secret.1);
            let kept = certificates::run(client, managed, leadership, metrics.cluster.clone(), stop, move |outcome| {
                reloaded(outcome, &shown, &counted, &take);
            });
            supervisor.run("certificates", kept);
        }
    }
    Ok(serving)
}

/// Replaces the certificate with the new one, or keeps the old one.
fn reloaded<E: std::fmt::Display>(
    outcome: Result<Certificate, E>,
    shown: &str,
    metrics: &FileMetrics,
    take: &impl Fn(Certificate),
) {
    let result = match outcome {
        Ok(certificate) => {
            let not_after: Timestamp = certificate.not_after;
            take(certificate);
            tracing::info!(%not_after, from = shown, "serving certificate loaded");
            "ok"
        }
        Err(error) => {
            tracing::error!(%error, from = shown, "cannot load the serving certificate; the previous one, if any, stays in use");
            "refused"
        }
    };
    metrics.certificate_reloads.with_label_values(&[result]).inc();
}
