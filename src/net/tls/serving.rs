//! The serving certificate, and its replacement while connections are open.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use jiff::Timestamp;
use rustls::ServerConfig;
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio_util::sync::CancellationToken;

use super::clients::Clients;
use super::load::{BadCertificate, Certificate, load};
use usher_runtime::clock;
use usher_runtime::files::Watched;

/// The current serving certificate; while there is none, handshakes fail. New handshakes use a new one immediately; open
/// connections keep theirs.
#[derive(Debug, Default)]
pub struct Serving(ArcSwapOption<Certificate>);

impl Serving {
    /// Serves this certificate first.
    pub fn new(certificate: Certificate) -> Arc<Serving> {
        Arc::new(Serving(ArcSwapOption::from_pointee(certificate)))
    }

    /// Serves this certificate from now on.
    pub fn replace(&self, certificate: Certificate) {
        self.0.store(Some(Arc::new(certificate)));
    }

    /// When the current certificate expires.
    pub fn not_after(&self) -> Option<Timestamp> {
        self.0.load().as_ref().map(|certificate| certificate.not_after)
    }

    /// A server configuration that always serves the current certificate: TLS 1.2 and 1.3, HTTP/1.1 for API servers (which use
    /// it for webhooks behind a Service) and HTTP/2 (which they use on loopback).
    pub fn config(self: &Arc<Self>) -> ServerConfig {
        self.config_for(None)
    }

    /// The same, for these clients only if some are given.
    pub fn config_for(self: &Arc<Self>, clients: Option<Arc<Clients>>) -> ServerConfig {
        let builder = ServerConfig::builder();
        let builder = match clients {
            Some(clients) => builder.with_client_cert_verifier(clients),
            None => builder.with_no_client_auth(),
        };
        let mut config = builder.with_cert_resolver(Arc::clone(self) as Arc<dyn ResolvesServerCert>);
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        // API servers resume no session, and the client's certificate is not requested again in a resumed session.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        config
    }
}

impl ResolvesServerCert for Serving {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.load().as_ref().map(|certificate| certificate.key.clone())
    }
}

/// Certificate and key in files that an administrator or a controller renews.
#[derive(Debug)]
pub struct Files {
    watched: Watched,
    every: Duration,
}

/// Files that cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum BadFiles {
    /// They cannot be read.
    #[error("cannot read the serving certificate: {0}")]
    Unreadable(#[from] std::io::Error),
    /// They are invalid.
    #[error("{0}")]
    Wrong(#[from] BadCertificate),
}

impl Files {
    /// These two files, polled at this interval.
    pub fn new(certificate: PathBuf, key: PathBuf, every: Duration) -> Files {
        Files { watched: Watched::new(vec![certificate, key]), every }
    }

    /// The current pair.
    pub async fn first(&mut self) -> Result<Certificate, BadFiles> {
        match self.read_if_changed().await? {
            Some(certificate) => Ok(certificate),
            None => Err(BadCertificate::NoCertificate.into()),
        }
    }

    /// Reports each change, until `stop` is cancelled: a new certificate, or why it cannot be served.
    pub async fn run(
        mut self,
        stop: CancellationToken,
        mut on_reload: impl FnMut(Result<Certificate, BadFiles>) + Send,
    ) {
        let mut unreadable = false;
        while stop.run_until_cancelled(tokio::time::sleep(self.every)).await.is_some() {
            match self.read_if_changed().await {
                Ok(None) => unreadable = false,
                Err(BadFiles::Unreadable(_)) if unreadable => {}
                Ok(Some(certificate)) => {
                    unreadable = false;
                    on_reload(Ok(certificate));
                }
                Err(error) => {
                    unreadable = matches!(error, BadFiles::Unreadable(_));
                    on_reload(Err(error));
                }
            }
        }
    }

    async fn read_if_changed(&mut self) -> Result<Option<Certificate>, BadFiles> {
        let Some(contents) = self.watched.read_if_changed().await? else { return Ok(None) };
        match contents.as_slice() {
            [certificate, key] => Ok(Some(load(certificate, key, clock::now())?)),
            _ => Ok(None),
        }
    }
}
