//! Rotation of certificates without an outage: decides the next step from what is stored, the names, and the time.
//!
//! An API server verifies us by the caBundle of a webhook configuration, which it applies some time after we wrote it; a
//! replica serves a new certificate some time after the leader created it. No step may need two of them to change at the same
//! moment. So a new CA is *announced* first (it is in the bundle and signs nothing), *takes over* once the bundle is published
//! and has settled, and the old one is *dropped* after every replica serves what the new one signed. When it takes over, the
//! old CA cross-signs it (a certificate in the chain), so that an API server that has only the old bundle also verifies what is
//! served. One step at a time: a crash between two steps does no harm.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use rcgen::KeyPair;
use rustls::RootCertStore;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::X509Certificate;

use super::ca::{Authority, Validity, public};
use super::load::load;

/// The lifetimes of certificates.
#[derive(Clone, Copy, Debug)]
pub struct Lifetimes {
    /// Of a CA. The next one is announced after two thirds of it.
    pub authority: Duration,
    /// Of a serving certificate. It is renewed after two thirds of it.
    pub leaf: Duration,
    /// How long an announced CA waits before it signs, and an old one stays after the new one signed.
    pub settle: Duration,
}

impl Default for Lifetimes {
    fn default() -> Self {
        const DAY: u64 = 24 * 3600;
        Lifetimes {
            authority: Duration::from_secs(365 * DAY),
            leaf: Duration::from_secs(30 * DAY),
            settle: Duration::from_secs(3600),
        }
    }
}

/// The stored certificates, all PEM; empty if there is nothing.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct StoredCertificates {
    /// The CAs to trust: a caBundle.
    pub bundle: String,
    /// The key of the CA that signs.
    pub key: String,
    /// The key of the announced CA.
    pub next_key: String,
    /// The serving certificate, and the cross-signed certificates of its CA.
    pub chain: String,
    /// The serving certificate's key.
    pub chain_key: String,
}

impl std::fmt::Debug for StoredCertificates {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoredCertificates").finish_non_exhaustive() // Keys must not be logged.
    }
}

/// A step of the rotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing was stored: a CA and a serving certificate were created.
    First,
    /// What was stored could not be used: everything was created again.
    Recreated,
    /// The next CA was created and is to be published.
    Announced,
    /// The announced CA signs now.
    TookOver,
    /// The serving certificate was renewed, or created for other names.
    Renewed,
    /// Old CAs are no longer trusted.
    Dropped,
}

impl Step {
    /// The description for the log.
    pub fn as_str(self) -> &'static str {
        match self {
            Step::First => "first CA and serving certificate created",
            Step::Recreated => "created again: the stored certificates could not be used",
            Step::Announced => "next CA announced",
            Step::TookOver => "next CA signs from now on",
            Step::Renewed => "serving certificate renewed",
            Step::Dropped => "old CA dropped",
        }
    }
}

/// The next step, if one is due. `published` is whether every configuration has the stored bundle; `name` is that of a new CA,
/// and must differ each time.
pub fn next(
    stored: &StoredCertificates,
    names: &[String],
    published: bool,
    name: &str,
    now: Timestamp,
    lifetimes: Lifetimes,
) -> Result<Option<(StoredCertificates, Step)>, rcgen::Error> {
    let roots = roots(&stored.bundle, now);
    let current = authority(&roots, &stored.key);
    let next = authority(&roots, &stored.next_key);
    let leaf = leaf(stored, names, &roots, now);
    let maker = Issuer { names, now, lifetimes };
    let step = match (current, next, leaf) {
        (None, None, None) => {
            let step = if *stored == StoredCertificates::default() { Step::First } else { Step::Recreated };
            let fresh = maker.authority(name)?;
            let pair = maker.leaf(&fresh)?;
            let bundle = fresh.pem().to_owned();
            let (chain, chain_key) = (pair.certificate, pair.key);
            (StoredCertificates { bundle, key: fresh.key_pem(), next_key: String::new(), chain, chain_key }, step)
        }
        // Nothing could be used before, or the announcement is published and settled: the announced CA signs.
        (current, Some(next), leaf)
            if (current.is_none() && leaf.is_none())
                || (published && has_passed(next.validity().made(), lifetimes.settle, now)) =>
        {
            let mut pair = maker.leaf(&next)?;
            if let Some(current) = &current {
                pair.certificate.push_str(&current.cross_sign(&common_name(next.pem()), &next)?);
            }
            let (bundle, key) = (stored.bundle.clone(), next.key_pem());
            let (chain, chain_key) = (pair.certificate, pair.key);
            (StoredCertificates { bundle, key, next_key: String::new(), chain, chain_key }, Step::TookOver)
        }
        (current, None, leaf) if leaf.is_some() && current.as_ref().is_none_or(|ca| ca.validity().is_due(now)) => {
            let next = maker.authority(name)?;
            let bundle = roots.iter().map(|root| root.pem.as_str()).chain([next.pem()]).collect();
            (StoredCertificates { bundle, next_key: next.key_pem(), ..stored.clone() }, Step::Announced)
        }
        (Some(current), _, leaf) if leaf.is_none_or(|leaf| maker.would_gain(leaf, &current)) => {
            let mut pair = maker.leaf(&current)?;
            for cross in certificates(&stored.chain).skip(1) {
                if validity(&cross).is_some_and(|validity| validity.holds(now)) {
                    pair.certificate.push_str(&to_pem(&cross));
                }
            }
            (StoredCertificates { chain: pair.certificate, chain_key: pair.key, ..stored.clone() }, Step::Renewed)
        }
        (Some(current), next, Some(leaf))
            if has_passed(leaf.made(), lifetimes.settle, now)
                && roots.len() > 1 + usize::from(next.is_some())
                && verifies(&stored.chain, names, &[current.pem()], now) =>
        {
            let bundle = [Some(&current), next.as_ref()].into_iter().flatten().map(Authority::pem).collect();
            let chain = certificates(&stored.chain).take(1).map(|leaf| to_pem(&leaf)).collect();
            (StoredCertificates { bundle, chain, ..stored.clone() }, Step::Dropped)
        }
        _ => return Ok(None),
    };
    Ok(Some(step))
}

/// Whether a serving certificate for these names and the key of its CA are stored.
pub fn is_whole(stored: &StoredCertificates, names: &[String], now: Timestamp) -> bool {
    let roots = roots(&stored.bundle, now);
    authority(&roots, &stored.key).is_some() && leaf(stored, names, &roots, now).is_some()
}

/// Whether a serving certificate for these names is stored, and the key of a CA that signs or is about to: the state of a
/// Secret in every step of a rotation.
pub fn is_sound(stored: &StoredCertificates, names: &[String], now: Timestamp) -> bool {
    let roots = roots(&stored.bundle, now);
    let signs = [&stored.key, &stored.next_key].into_iter().any(|key| authority(&roots, key).is_some());
    signs && leaf(stored, names, &roots, now).is_some()
}

/// A CA that may be trusted now.
struct Root {
    pem: String,
    key: Vec<u8>,
    validity: Validity,
}

struct Issuer<'m> {
    names: &'m [String],
    now: Timestamp,
    lifetimes: Lifetimes,
}

impl Issuer<'_> {
    fn authority(&self, name: &str) -> Result<Authority, rcgen::Error> {
        Authority::valid(name, Validity::of_lifetime(self.now, self.lifetimes.authority))
    }

    fn leaf(&self, signer: &Authority) -> Result<super::ca::Pair, rcgen::Error> {
        let (names, addresses) = split(self.names);
        signer.serve_until(&names, &addresses, self.leaf_validity(signer))
    }

    /// The validity of a new leaf, which is never longer than its CA's.
    fn leaf_validity(&self, signer: &Authority) -> Validity {
        let validity = Validity::of_lifetime(self.now, self.lifetimes.leaf);
        Validity { until: validity.until.min(signer.validity().until), ..validity }
    }

    /// Whether a leaf is due, and a new one would live longer: near the expiry of its CA it would not.
    fn would_gain(&self, leaf: Validity, signer: &Authority) -> bool {
        leaf.is_due(self.now) && self.leaf_validity(signer).until > leaf.until
    }
}

/// Names as they appear in a certificate: addresses in their usual form, DNS names without a trailing dot. A name that no API
/// server could call is an error.
pub fn checked_names(names: &[String]) -> Result<Vec<String>, String> {
    let mut out = Vec::new();
    for name in names {
        let plain = name.trim().trim_end_matches('.').to_ascii_lowercase();
        let name = match plain.parse::<IpAddr>() {
            Ok(address) => address.to_string(),
            Err(_) if plain.contains('*') || ServerName::try_from(plain.as_str()).is_err() => {
                return Err(format!(
                    "{name:?} is not the name of a server: expected DNS names or addresses, such as spark-usher.spark-usher.svc"
                ));
            }
            Err(_) => plain,
        };
        if !out.contains(&name) {
            out.push(name);
        }
    }
    if out.is_empty() {
        return Err("expected at least one name, such as spark-usher.spark-usher.svc".to_owned());
    }
    Ok(out)
}

/// Splits names into DNS names and addresses.
pub fn split(names: &[String]) -> (Vec<&str>, Vec<IpAddr>) {
    let dns = names.iter().map(String::as_str).filter(|name| name.parse::<IpAddr>().is_err()).collect();
    (dns, names.iter().filter_map(|name| name.parse().ok()).collect())
}

fn has_passed(since: Timestamp, wait: Duration, now: Timestamp) -> bool {
    SignedDuration::try_from(wait).is_ok_and(|wait| now.duration_since(since) >= wait)
}

/// The certificates in a text; anything else is skipped.
fn certificates(text: &str) -> impl Iterator<Item = CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(text.as_bytes()).filter_map(Result::ok).collect::<Vec<_>>().into_iter()
}

fn to_pem(certificate: &CertificateDer<'_>) -> String {
    let config = pem::EncodeConfig::new().set_line_ending(pem::LineEnding::LF);
    pem::encode_config(&pem::Pem::new("CERTIFICATE", certificate.to_vec()), config)
}

fn parse<'c>(certificate: &'c CertificateDer<'_>) -> Option<X509Certificate<'c>> {
    x509_parser::parse_x509_certificate(certificate).ok().map(|(_, parsed)| parsed)
}

fn validity(certificate: &CertificateDer<'_>) -> Option<Validity> {
    let parsed = parse(certificate)?;
    let at = |time: x509_parser::time::ASN1Time| Timestamp::from_second(time.timestamp()).ok();
    Some(Validity { from: at(parsed.validity().not_before)?, until: at(parsed.validity().not_after)? })
}

/// The CAs of a bundle that have not expired. A CA whose validity has not begun was created by a clock ahead of ours: that is
/// no reason to drop it.
fn roots(bundle: &str, now: Timestamp) -> Vec<Root> {
    let read = |certificate: CertificateDer<'_>| {
        let validity = validity(&certificate).filter(|validity| now < validity.until)?;
        let key = parse(&certificate)?.public_key().raw.to_vec();
        Some(Root { pem: to_pem(&certificate), key, validity })
    };
    certificates(bundle).filter_map(read).collect()
}

/// The CA that a key belongs to.
fn authority(roots: &[Root], key: &str) -> Option<Authority> {
    let key = KeyPair::from_pem(key).ok()?;
    let public = public(&key);
    let root = roots.iter().find(|root| root.key == public)?;
    Authority::read(&root.pem, key, root.validity).ok()
}

fn common_name(pem: &str) -> String {
    let name = |certificate: CertificateDer<'_>| {
        let parsed = parse(&certificate)?;
        let name = parsed.subject().iter_common_name().next()?.as_str().ok()?;
        Some(name.to_owned())
    };
    certificates(pem).next().and_then(name).unwrap_or_default()
}

/// The validity of the serving certificate, if it can be served now: for exactly these names, with its key, and verified by
/// the bundle.
fn leaf(stored: &StoredCertificates, names: &[String], roots: &[Root], now: Timestamp) -> Option<Validity> {
    load(stored.chain.as_bytes(), stored.chain_key.as_bytes(), now).ok()?;
    let leaf = certificates(&stored.chain).next()?;
    let roots: Vec<&str> = roots.iter().map(|root| root.pem.as_str()).collect();
    let fits = names_of(&leaf)? == sorted(names) && verifies(&stored.chain, names, &roots, now);
    fits.then(|| validity(&leaf)).flatten()
}

/// Whether a client that trusts only these CAs would accept this chain for these names.
pub fn verifies(chain: &str, names: &[String], roots: &[&str], now: Timestamp) -> bool {
    let mut store = RootCertStore::empty();
    store.add_parsable_certificates(roots.iter().flat_map(|root| certificates(root)));
    let chain: Vec<_> = certificates(chain).collect();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let Ok(verifier) = WebPkiServerVerifier::builder_with_provider(Arc::new(store), provider).build() else {
        return false;
    };
    let Some((leaf, above)) = chain.split_first() else { return false };
    let Ok(seconds) = u64::try_from(now.as_second()) else { return false };
    let now = UnixTime::since_unix_epoch(Duration::from_secs(seconds));
    names.iter().all(|name| {
        ServerName::try_from(name.as_str())
            .is_ok_and(|name| verifier.verify_server_cert(leaf, above, &name, &[], now).is_ok())
    })
}

fn names_of(leaf: &CertificateDer<'_>) -> Option<Vec<String>> {
    let parsed = parse(leaf)?;
    let names = parsed.subject_alternative_name().ok()??.value.general_names.iter();
    let text = |name: &GeneralName<'_>| match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(octets) => match octets.len() {
            4 => <[u8; 4]>::try_from(*octets).ok().map(|octets| IpAddr::from(octets).to_string()),
            _ => <[u8; 16]>::try_from(*octets).ok().map(|octets| IpAddr::from(octets).to_string()),
        },
        _ => None,
    };
    Some(sorted(&names.filter_map(text).collect::<Vec<_>>()))
}

fn sorted(names: &[String]) -> Vec<String> {
    let mut names = names.to_vec();
    names.sort();
    names
}
