//! Loads a certificate from PEM and validates it: a chain and its key, which match and are not expired.

use std::sync::Arc;

use jiff::Timestamp;
use rustls::crypto::ring::sign::any_supported_type;
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;

/// A certificate that can be served.
#[derive(Clone, Debug)]
pub struct Certificate {
    /// Chain and key.
    pub key: Arc<CertifiedKey>,
    /// When the leaf expires.
    pub not_after: Timestamp,
}

/// A pair that cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum BadCertificate {
    /// The certificate file is not valid PEM.
    #[error("expected a PEM certificate: {0}")]
    Certificate(rustls_pki_types::pem::Error),
    /// The certificate file contains no certificate.
    #[error("no certificate found: expected PEM blocks CERTIFICATE, the leaf first")]
    NoCertificate,
    /// The key file contains no key.
    #[error("expected a PEM private key: {0}")]
    Key(rustls_pki_types::pem::Error),
    /// The type of the key is not supported.
    #[error("unsupported private key: {0}")]
    Unsupported(rustls::Error),
    /// Certificate and key do not match.
    #[error("certificate and private key do not match")]
    Mismatch,
    /// The leaf cannot be read.
    #[error("cannot parse the certificate: {0}")]
    Leaf(String),
    /// The leaf names no host. API servers (Go) ignore the common name: every call of the webhook would fail.
    #[error("the certificate has no DNS name or IP address in subjectAltName: API servers do not read the common name")]
    NoName,
    /// The certificate has expired.
    #[error("the certificate expired at {0}")]
    Expired(Timestamp),
}

/// Loads and validates a pair.
pub fn load(certificate: &[u8], key: &[u8], now: Timestamp) -> Result<Certificate, BadCertificate> {
    let chain = CertificateDer::pem_slice_iter(certificate)
        .collect::<Result<Vec<_>, _>>()
        .map_err(BadCertificate::Certificate)?;
    let leaf = chain.first().ok_or(BadCertificate::NoCertificate)?;
    let (_, parsed) =
        x509_parser::parse_x509_certificate(leaf).map_err(|error| BadCertificate::Leaf(error.to_string()))?;
    let not_after = Timestamp::from_second(parsed.validity().not_after.timestamp())
        .map_err(|error| BadCertificate::Leaf(error.to_string()))?;
    if !has_name(&parsed)? {
        return Err(BadCertificate::NoName);
    }
    if not_after <= now {
        return Err(BadCertificate::Expired(not_after));
    }
    let key = PrivateKeyDer::from_pem_slice(key).map_err(BadCertificate::Key)?;
    let key = any_supported_type(&key).map_err(BadCertificate::Unsupported)?;
    let certified = CertifiedKey::new(chain, key);
    certified.keys_match().map_err(|_| BadCertificate::Mismatch)?;
    Ok(Certificate { key: Arc::new(certified), not_after })
}

fn has_name(leaf: &X509Certificate<'_>) -> Result<bool, BadCertificate> {
    let names = leaf.subject_alternative_name().map_err(|error| BadCertificate::Leaf(error.to_string()))?;
    let is_host = |name: &GeneralName<'_>| matches!(name, GeneralName::DNSName(_) | GeneralName::IPAddress(_));
    Ok(names.is_some_and(|names| names.value.general_names.iter().any(is_host)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::ca::Authority;

    const NOW: Timestamp = Timestamp::constant(1_790_000_000, 0);

    #[test]
    fn self_signed_chain_and_key_load() {
        let authority = Authority::new("test", NOW).unwrap();
        let pair = authority.serve(&["localhost"], &["127.0.0.1".parse().unwrap()]).unwrap();
        let chain = format!("{}{}", pair.certificate, authority.pem());
        let loaded = load(chain.as_bytes(), pair.key.as_bytes(), NOW).unwrap();
        assert_eq!(loaded.key.cert.len(), 2);
        assert!(loaded.not_after > NOW);
    }

    #[test]
    fn broken_mismatched_or_expired_pair_is_rejected() {
        let authority = Authority::new("test", NOW).unwrap();
        let (one, two) = (authority.serve(&["a"], &[]).unwrap(), authority.serve(&["a"], &[]).unwrap());
        let error =
            |certificate: &str, key: &str| load(certificate.as_bytes(), key.as_bytes(), NOW).unwrap_err().to_string();
        assert!(error("", &one.key).contains("no certificate found"));
        let mut params = rcgen::CertificateParams::default();
        params.distinguished_name.push(rcgen::DnType::CommonName, "spark-usher.spark-usher.svc");
        let nameless = rcgen::KeyPair::generate().unwrap();
        let signed = params.self_signed(&nameless).unwrap();
        assert!(
            error(&signed.pem(), &nameless.serialize_pem()).contains("no DNS name or IP address in subjectAltName")
        );
        assert!(error(&one.certificate[..200], &one.key).contains("expected a PEM certificate"), "truncated");
        assert!(error(&one.certificate, "").contains("expected a PEM private key"));
        assert_eq!(error(&one.certificate, &two.key), "certificate and private key do not match");
        let late = NOW + jiff::SignedDuration::from_hours(24 * 367);
        assert!(
            load(one.certificate.as_bytes(), one.key.as_bytes(), late).unwrap_err().to_string().contains("expired")
        );
    }
}
