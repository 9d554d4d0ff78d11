//! A simulation of cert-manager, after its sources: a CA Issuer writes only the leaf into `tls.crt` and the root that signed it
//! into `ca.crt`; a renewed root changes no leaf; `rotationPolicy: Never` retains the key.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its part of it")]

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod,
    KeyPair, KeyUsagePurpose, SanType, SerialNumber,
};

/// The Certificates that a chart requests from cert-manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chart {
    /// A root that retains its key signs the leaf.
    Root,
    /// A root with a new key at each renewal, which is cert-manager's default since 1.18.
    RootWithNewKeys,
    /// A self-signed leaf with a new key at each renewal, as in an earlier version of this chart.
    SelfSigned,
}

/// `duration` and `renewBefore` of a Certificate, in hours.
#[derive(Clone, Copy, Debug)]
pub struct Lifetime {
    pub duration: i64,
    pub renew_before: i64,
}

pub const ROOT: Lifetime = Lifetime { duration: 87_600, renew_before: 29_200 };
pub const LEAF: Lifetime = Lifetime { duration: 2160, renew_before: 720 };
/// The longest lifetime that the chart accepts, with the latest possible renewal.
pub const LONGEST: Lifetime = Lifetime { duration: 29_200, renew_before: 1 };

/// The Secret of a Certificate: `tls.crt`, `tls.key`, `ca.crt`.
#[derive(Clone, Debug)]
pub struct Issued {
    pub certificate: String,
    pub key: String,
    pub ca: String,
    pub renewal: Timestamp,
}

/// cert-manager with the Certificates of the chart.
pub struct CertManager {
    chart: Chart,
    names: [&'static str; 2],
    leaf_lifetime: Lifetime,
    serial: u64,
    pub root: Issued,
    pub leaf: Issued,
}

impl CertManager {
    pub fn new(chart: Chart, names: [&'static str; 2], leaf_lifetime: Lifetime, now: Timestamp) -> CertManager {
        let nothing = Issued { certificate: String::new(), key: String::new(), ca: String::new(), renewal: now };
        let (root, leaf) = (nothing.clone(), nothing);
        let mut manager = CertManager { chart, names, leaf_lifetime, serial: 0, root, leaf };
        manager.renew_root(now);
        manager.renew_leaf(now);
        manager
    }

    /// The parameters of every certificate; the subject is empty without a `commonName`.
    fn params(&mut self, lifetime: Lifetime, now: Timestamp) -> (CertificateParams, Timestamp) {
        self.serial += 1;
        let begin = rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(now.as_second().unsigned_abs());
        let mut params = CertificateParams::default();
        params.serial_number = Some(SerialNumber::from(self.serial));
        params.distinguished_name = DistinguishedName::new();
        params.not_before = begin;
        params.not_after = begin + Duration::from_secs(lifetime.duration.unsigned_abs() * 3600);
        (params, now + SignedDuration::from_hours(lifetime.duration - lifetime.renew_before))
    }

    fn root_params(&mut self, now: Timestamp) -> (CertificateParams, Timestamp) {
        let (mut params, renewal) = self.params(ROOT, now);
        params.distinguished_name.push(DnType::CommonName, "spark-usher-ca");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        // A newer cert-manager may derive the key identifier in another way, as Go 1.25 does; leaves contain the old one.
        let odd = self.serial % 2 == 1;
        params.key_identifier_method = if odd { KeyIdMethod::Sha256 } else { KeyIdMethod::Sha384 };
        (params, renewal)
    }

    pub fn renew_root(&mut self, now: Timestamp) {
        let (params, renewal) = self.root_params(now);
        let reuses_key = self.chart == Chart::Root && !self.root.key.is_empty();
        let key = if reuses_key { KeyPair::from_pem(&self.root.key).unwrap() } else { KeyPair::generate().unwrap() };
        let certificate = params.self_signed(&key).unwrap().pem();
        self.root = Issued { ca: certificate.clone(), certificate, key: key.serialize_pem(), renewal };
    }

    pub fn renew_leaf(&mut self, now: Timestamp) {
        let (mut params, renewal) = self.params(self.leaf_lifetime, now);
        params.subject_alt_names = self.names.map(|name| SanType::DnsName(name.try_into().unwrap())).to_vec();
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let key = KeyPair::generate().unwrap();
        let (certificate, ca) = if self.chart == Chart::SelfSigned {
            let certificate = params.self_signed(&key).unwrap().pem();
            (certificate.clone(), certificate)
        } else {
            let root_key = KeyPair::from_pem(&self.root.key).unwrap();
            params.use_authority_key_identifier_extension = true;
            let issuer = Issuer::from_ca_cert_pem(&self.root.certificate, root_key).unwrap();
            (params.signed_by(&key, &issuer).unwrap().pem(), self.root.certificate.clone())
        };
        self.leaf = Issued { certificate, key: key.serialize_pem(), ca, renewal };
    }
}
