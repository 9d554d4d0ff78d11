//! Self-made certificates, for the sandbox and for a webhook on loopback: a CA and a serving certificate, ECDSA P-256.

use std::net::IpAddr;

use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};

/// A certificate authority that exists only in this process.
#[derive(Debug)]
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
    now: Timestamp,
}

/// A certificate with its key, both PEM.
#[derive(Clone, Debug)]
pub struct Pair {
    /// The certificate.
    pub certificate: String,
    /// Its private key.
    pub key: String,
}

impl Authority {
    /// A new authority. What it makes is valid from the day before `now` for a year.
    pub fn new(name: &str, now: Timestamp) -> Result<Authority, rcgen::Error> {
        let key = KeyPair::generate()?;
        let mut params = valid_for_a_year(now);
        params.distinguished_name = common_name(name);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages =
            vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
        let pem = params.self_signed(&key)?.pem();
        Ok(Authority { issuer: Issuer::new(params, key), pem, now })
    }

    /// The authority's certificate, PEM: a caBundle.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// A serving certificate for these DNS names and addresses.
    pub fn serve(&self, names: &[&str], addresses: &[IpAddr]) -> Result<Pair, rcgen::Error> {
        let mut params = valid_for_a_year(self.now);
        // Another name than the authority's: OpenSSL takes a certificate that names itself as issuer for self-signed.
        let address = addresses.first().map(ToString::to_string);
        let name = names.first().copied().or(address.as_deref()).unwrap_or("webhook");
        params.distinguished_name = common_name(name);
        for name in names {
            params.subject_alt_names.push(SanType::DnsName((*name).try_into()?));
        }
        params.subject_alt_names.extend(addresses.iter().map(|address| SanType::IpAddress(*address)));
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        Ok(Pair { certificate: certificate.pem(), key: key.serialize_pem() })
    }
}

fn common_name(name: &str) -> DistinguishedName {
    let mut distinguished = DistinguishedName::new();
    distinguished.push(DnType::CommonName, name);
    distinguished
}

fn valid_for_a_year(now: Timestamp) -> CertificateParams {
    let today = now.to_zoned(TimeZone::UTC).date();
    let day = |date: jiff::civil::Date| {
        rcgen::date_time_ymd(i32::from(date.year()), date.month().unsigned_abs(), date.day().unsigned_abs())
    };
    let mut params = CertificateParams::default();
    params.not_before = day(today.saturating_sub(1.day()));
    params.not_after = day(today.saturating_add(1.year()));
    params
}
