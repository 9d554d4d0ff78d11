//! Generated certificates, ECDSA P-256: CAs, and what they sign.

use std::net::IpAddr;
use std::time::Duration;

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp, ToSpan};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PublicKeyData, SanType,
};

/// Certificates are valid from this long before their creation, because clocks differ.
pub(super) const BACKDATE: SignedDuration = SignedDuration::from_mins(5);

/// A validity period. X.509 has whole seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// The first moment.
    pub from: Timestamp,
    /// The last one.
    pub until: Timestamp,
}

impl Validity {
    /// From a little before `now` until `lifetime` after it, in whole seconds.
    pub(super) fn of_lifetime(now: Timestamp, lifetime: Duration) -> Validity {
        let end = SignedDuration::try_from(lifetime).ok().and_then(|lifetime| now.checked_add(lifetime).ok());
        let from = now.checked_sub(BACKDATE).unwrap_or(now);
        Validity { from: whole(from), until: whole(end.unwrap_or(Timestamp::MAX)) }
    }

    /// The time of creation: the period begins a little earlier.
    pub(super) fn made(&self) -> Timestamp {
        self.from.checked_add(BACKDATE).unwrap_or(self.from)
    }

    /// Whether two thirds of the lifetime have passed.
    pub(super) fn is_due(&self, now: Timestamp) -> bool {
        let lifetime = self.until.duration_since(self.made());
        now.duration_since(self.made()) * 3 >= lifetime * 2
    }

    /// Whether it holds at this time.
    pub(super) fn holds(&self, now: Timestamp) -> bool {
        self.from <= now && now < self.until
    }
}

fn whole(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}

/// A certificate authority with its key.
#[derive(Debug)]
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
    validity: Validity,
}

/// A certificate with its key, both PEM.
#[derive(Clone, Debug)]
pub struct Pair {
    pub certificate: String,
    /// Its private key.
    pub key: String,
}

impl Authority {
    /// A new CA. It and what it signs are valid from the day before `now` for a year.
    pub fn new(name: &str, now: Timestamp) -> Result<Authority, rcgen::Error> {
        let today = now.to_zoned(TimeZone::UTC).date();
        let midnight = |date: jiff::civil::Date| date.to_zoned(TimeZone::UTC).map_or(now, |zoned| zoned.timestamp());
        let (yesterday, next_year) = (today.saturating_sub(1.day()), today.saturating_add(1.year()));
        Authority::valid(name, Validity { from: midnight(yesterday), until: midnight(next_year) })
    }

    /// A new CA with this validity.
    pub fn valid(name: &str, validity: Validity) -> Result<Authority, rcgen::Error> {
        let key = KeyPair::generate()?;
        let params = authority_params(name, validity, 1);
        let pem = params.self_signed(&key)?.pem();
        Ok(Authority { issuer: Issuer::new(params, key), pem, validity })
    }

    /// A CA that was created before.
    pub(super) fn read(certificate: &str, key: KeyPair, validity: Validity) -> Result<Authority, rcgen::Error> {
        Ok(Authority { issuer: Issuer::from_ca_cert_pem(certificate, key)?, pem: certificate.to_owned(), validity })
    }

    /// The CA's certificate, PEM: a caBundle.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// Its private key, PEM.
    pub fn key_pem(&self) -> String {
        self.issuer.key().serialize_pem()
    }

    /// The CA's validity.
    pub(super) fn validity(&self) -> Validity {
        self.validity
    }

    /// A serving certificate for these DNS names and addresses, valid as long as the CA.
    pub fn serve(&self, names: &[&str], addresses: &[IpAddr]) -> Result<Pair, rcgen::Error> {
        self.serve_until(names, addresses, self.validity)
    }

    /// A serving certificate for these DNS names and addresses, with this validity.
    pub(super) fn serve_until(
        &self,
        names: &[&str],
        addresses: &[IpAddr],
        validity: Validity,
    ) -> Result<Pair, rcgen::Error> {
        // Not the CA's name: OpenSSL considers a certificate that names itself as issuer self-signed.
        let address = addresses.first().map(ToString::to_string);
        let mut params = params(names.first().copied().or(address.as_deref()).unwrap_or("webhook"), validity);
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

    /// Cross-signs another CA: a certificate for its name and key, signed by this CA, so that a client that trusts only this CA
    /// can verify what the other one signs. PEM.
    pub(super) fn cross_sign(&self, name: &str, other: &Authority) -> Result<String, rcgen::Error> {
        let mut params = authority_params(name, self.validity, 0);
        params.use_authority_key_identifier_extension = true;
        Ok(params.signed_by(other.issuer.key(), &self.issuer)?.pem())
    }
}

/// The public key of a pair, as in a certificate (SubjectPublicKeyInfo, DER).
pub(super) fn public(key: &KeyPair) -> Vec<u8> {
    key.subject_public_key_info()
}

fn authority_params(name: &str, validity: Validity, below: u8) -> CertificateParams {
    let mut params = params(name, validity);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(below));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
    params
}

fn params(name: &str, validity: Validity) -> CertificateParams {
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    let at = |moment: Timestamp| {
        let seconds = u64::try_from(moment.as_second()).unwrap_or_default();
        epoch + Duration::from_secs(seconds)
    };
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.not_before = at(validity.from);
    params.not_after = at(validity.until);
    params
}
