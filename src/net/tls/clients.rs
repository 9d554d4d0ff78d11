//! Client authentication: clients with a certificate of the client CA, which may change while the process serves.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, RootCertStore, SignatureScheme};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, UnixTime};
use tokio_util::sync::CancellationToken;
use x509_parser::extensions::GeneralName;

use usher_runtime::files::Watched;

/// A client CA that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BadClientCa {
    /// The file cannot be read.
    #[error("cannot read the client CA: {0}")]
    Unreadable(#[from] std::io::Error),
    /// It is not PEM.
    #[error("expected a PEM certificate in the client CA file: {0}")]
    Certificate(rustls_pki_types::pem::Error),
    /// It contains no certificate.
    #[error(
        "the client CA file contains no certificate: expected PEM blocks CERTIFICATE of the CAs that sign API servers' client certificates"
    )]
    NoCertificate,
    /// One of its certificates cannot be used.
    #[error("a certificate of the client CA cannot be used: {0}")]
    Unusable(rustls::Error),
    /// It cannot verify anything.
    #[error("the client CA cannot be used: {0}")]
    Verifier(#[from] rustls::server::VerifierBuilderError),
}

/// Verifies clients by the current CA, and by their names if names are given.
#[derive(Debug)]
pub struct Clients {
    verifier: ArcSwap<Verifier>,
    names: Vec<String>,
}

/// An `ArcSwap` requires a sized type.
#[derive(Debug)]
struct Verifier(Arc<dyn ClientCertVerifier>);

impl Clients {
    /// Accepts clients with a certificate of these CAs (PEM). If there are names, the certificate must contain one of them: as
    /// the common name of its subject, or among its alternative names.
    pub fn new(pem: &[u8], names: Vec<String>) -> Result<Arc<Clients>, BadClientCa> {
        Ok(Arc::new(Clients { verifier: ArcSwap::from_pointee(verifier(pem)?), names }))
    }

    /// Trusts these CAs from now on. Open connections stay.
    pub fn replace(&self, pem: &[u8]) -> Result<(), BadClientCa> {
        self.verifier.store(Arc::new(verifier(pem)?));
        Ok(())
    }

    fn is_named(&self, certificate: &CertificateDer<'_>) -> bool {
        self.names.is_empty() || names_of(certificate).iter().any(|name| self.names.contains(name))
    }
}

fn verifier(pem: &[u8]) -> Result<Verifier, BadClientCa> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        roots.add(certificate.map_err(BadClientCa::Certificate)?).map_err(BadClientCa::Unusable)?;
    }
    if roots.is_empty() {
        return Err(BadClientCa::NoCertificate);
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    Ok(Verifier(WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build()?))
}

/// The names in a certificate; none if it cannot be read.
fn names_of(certificate: &CertificateDer<'_>) -> Vec<String> {
    let Ok((_, certificate)) = x509_parser::parse_x509_certificate(certificate) else { return Vec::new() };
    let common = certificate.subject().iter_common_name().filter_map(|name| name.as_str().ok().map(str::to_owned));
    let alternative = certificate.subject_alternative_name().ok().flatten();
    let alternative = alternative.iter().flat_map(|names| &names.value.general_names).filter_map(|name| match name {
        GeneralName::DNSName(name) | GeneralName::URI(name) | GeneralName::RFC822Name(name) => Some((*name).to_owned()),
        _ => None,
    });
    common.chain(alternative).collect()
}

impl ClientCertVerifier for Clients {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        // The CAs may change, and a client with a single certificate sends it without a hint, as Go does.
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let verified = self.verifier.load().0.verify_client_cert(end_entity, intermediates, now)?;
        if self.is_named(end_entity) {
            Ok(verified)
        } else {
            Err(CertificateError::ApplicationVerificationFailure.into())
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.verifier.load().0.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.verifier.load().0.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.verifier.load().0.supported_verify_schemes()
    }
}

/// Whether a handshake failed because the client's certificate was invalid or missing.
pub(crate) fn is_about_the_client(error: &std::io::Error) -> bool {
    let error = error.get_ref().and_then(|error| error.downcast_ref::<rustls::Error>());
    matches!(error, Some(rustls::Error::NoCertificatesPresented | rustls::Error::InvalidCertificate(_)))
}

/// A client CA in a file that an administrator or a controller renews.
#[derive(Debug)]
pub struct ClientCaFile {
    watched: Watched,
    every: Duration,
}

impl ClientCaFile {
    /// This file, polled at this interval.
    pub fn new(path: PathBuf, every: Duration) -> ClientCaFile {
        ClientCaFile { watched: Watched::new(vec![path]), every }
    }

    /// The clients that the current file accepts.
    pub async fn first(&mut self, names: Vec<String>) -> Result<Arc<Clients>, BadClientCa> {
        let contents = self.watched.read_if_changed().await?.unwrap_or_default();
        Clients::new(contents.first().map(Vec::as_slice).unwrap_or_default(), names)
    }

    /// Applies and reports each change, until `stop` is cancelled: an invalid file is rejected, and the previous CA stays in use.
    pub async fn run(
        mut self,
        clients: Arc<Clients>,
        stop: CancellationToken,
        mut on_reload: impl FnMut(Result<(), BadClientCa>) + Send,
    ) {
        let mut unreadable = false;
        while stop.run_until_cancelled(tokio::time::sleep(self.every)).await.is_some() {
            match self.watched.read_if_changed().await {
                Ok(None) => unreadable = false,
                Ok(Some(contents)) => {
                    unreadable = false;
                    on_reload(clients.replace(contents.first().map(Vec::as_slice).unwrap_or_default()));
                }
                Err(_) if unreadable => {}
                Err(error) => {
                    unreadable = true;
                    on_reload(Err(error.into()));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::ca::Authority;
    use jiff::Timestamp;

    const NOW: Timestamp = Timestamp::constant(1_790_000_000, 0);

    /// A client's certificate, PEM.
    fn client(authority: &Authority, name: &str) -> String {
        let key = rcgen::KeyPair::from_pem(&authority.key_pem()).unwrap();
        let issuer = rcgen::Issuer::from_ca_cert_pem(authority.pem(), key).unwrap();
        let mut params = rcgen::CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
        params.signed_by(&rcgen::KeyPair::generate().unwrap(), &issuer).unwrap().pem()
    }

    fn verify(clients: &Clients, pem: &str) -> Result<(), rustls::Error> {
        let leaf = CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
        let now = UnixTime::since_unix_epoch(Duration::from_secs(1_790_000_000));
        clients.verify_client_cert(&leaf, &[], now).map(|_| ())
    }

    #[test]
    fn client_certificates_are_verified_against_current_ca() {
        let (one, two) = (Authority::new("one", NOW).unwrap(), Authority::new("two", NOW).unwrap());
        let (of_one, of_two) = (client(&one, "kube-apiserver"), client(&two, "kube-apiserver"));
        let clients = Clients::new(one.pem().as_bytes(), Vec::new()).unwrap();
        verify(&clients, &of_one).unwrap();
        verify(&clients, &of_two).unwrap_err();
        let serving = one.serve(&["a"], &[]).unwrap();
        verify(&clients, &serving.certificate).expect_err("a serving certificate is not a client certificate");
        clients.replace(two.pem().as_bytes()).unwrap();
        verify(&clients, &of_two).unwrap();
        verify(&clients, &of_one).unwrap_err();
        let both = format!("{}{}", one.pem(), two.pem());
        clients.replace(both.as_bytes()).unwrap();
        verify(&clients, &of_one).unwrap();
        verify(&clients, &of_two).unwrap();
    }

    #[test]
    fn client_name_must_be_listed_if_names_are_configured() {
        let authority = Authority::new("one", NOW).unwrap();
        let clients = Clients::new(authority.pem().as_bytes(), vec!["kube-apiserver".to_owned()]).unwrap();
        verify(&clients, &client(&authority, "kube-apiserver")).unwrap();
        let other = client(&authority, "kubelet");
        let error = verify(&clients, &other).unwrap_err();
        assert_eq!(error, CertificateError::ApplicationVerificationFailure.into());
        assert_eq!(names_of(&CertificateDer::from_pem_slice(other.as_bytes()).unwrap()), ["kubelet"]);
    }

    #[test]
    fn invalid_ca_is_rejected_and_previous_one_stays() {
        let error = |pem: &str| Clients::new(pem.as_bytes(), Vec::new()).unwrap_err().to_string();
        assert!(error("").contains("contains no certificate"));
        let authority = Authority::new("one", NOW).unwrap();
        assert!(error(&authority.pem()[..200]).contains("expected a PEM certificate"));
        let clients = Clients::new(authority.pem().as_bytes(), Vec::new()).unwrap();
        clients.replace(b"").unwrap_err();
        verify(&clients, &client(&authority, "a")).expect("the previous CA stays in use");
    }
}
