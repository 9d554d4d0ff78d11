//! Rotation of self-managed certificates, simulated over years in memory: no review fails, however late API servers and replicas
//! are.

use std::collections::VecDeque;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use usher_net::tls::load::load;
use usher_net::tls::rotation::{
    Lifetimes, Step, StoredCertificates, checked_names, is_sound, is_whole, next, verifies,
};

const START: Timestamp = Timestamp::constant(1_790_000_000, 0);
const HOUR: u64 = 3600;

fn names() -> Vec<String> {
    vec!["spark-usher.ns.svc".to_owned(), "spark-usher.ns.svc.cluster.local".to_owned(), "127.0.0.1".to_owned()]
}

fn lifetimes() -> Lifetimes {
    Lifetimes {
        authority: Duration::from_secs(90 * 24 * HOUR),
        leaf: Duration::from_secs(12 * 24 * HOUR),
        settle: Duration::from_secs(6 * HOUR),
    }
}

/// The Secret, the configurations and the clock.
struct Rotation {
    stored: StoredCertificates,
    now: Timestamp,
    attempts: u32,
}

impl Rotation {
    fn new() -> Rotation {
        let mut rotation = Rotation { stored: StoredCertificates::default(), now: START, attempts: 0 };
        assert_eq!(rotation.step(false), Some(Step::First));
        assert_eq!(rotation.step(true), None, "nothing is due");
        rotation
    }

    fn step_for(&mut self, names: &[String], published: bool) -> Option<Step> {
        self.attempts += 1;
        let name = format!("spark-usher {}", self.attempts);
        let (stored, step) = next(&self.stored, names, published, &name, self.now, lifetimes()).unwrap()?;
        self.stored = stored;
        Some(step)
    }

    fn step(&mut self, published: bool) -> Option<Step> {
        self.step_for(&names(), published)
    }

    fn wait(&mut self, hours: u64) {
        self.now += SignedDuration::from_hours(i64::try_from(hours).unwrap());
    }

    fn is_served(&self) -> bool {
        load(self.stored.chain.as_bytes(), self.stored.chain_key.as_bytes(), self.now).is_ok()
            && verifies(&self.stored.chain, &names(), &[&self.stored.bundle], self.now)
    }

    /// A rotation up to the announcement of the next authority.
    fn announced() -> Rotation {
        let mut rotation = Rotation::new();
        while rotation.step(true) != Some(Step::Announced) {
            rotation.wait(24);
        }
        rotation
    }
}

fn count(bundle: &str) -> usize {
    bundle.matches("BEGIN CERTIFICATE").count()
}

#[test]
fn first_certificate_is_valid_for_its_names_only() {
    let rotation = Rotation::new();
    assert!(rotation.is_served());
    assert_eq!(count(&rotation.stored.bundle), 1);
    assert!(!verifies(&rotation.stored.chain, &["other.ns.svc".to_owned()], &[&rotation.stored.bundle], START));
    assert!(!format!("{:?}", rotation.stored).contains("PRIVATE"), "keys must not be logged");
}

/// Three years in steps of two hours. API servers may have a bundle, and replicas may serve a chain, that is up to four hours
/// old: every combination always verifies.
#[test]
fn every_combination_of_late_bundles_and_chains_verifies() {
    let mut rotation = Rotation::new();
    let (mut bundles, mut chains) = (VecDeque::new(), VecDeque::new());
    let (mut steps, mut verified) = (Vec::new(), Vec::new());
    for interval in 0..3 * 365 * 12 {
        // A pair that verified once is not tried again on the same day.
        if interval % 12 == 0 {
            verified.clear();
        }
        while let Some(step) = rotation.step(true) {
            steps.push(step);
        }
        bundles.push_front(rotation.stored.bundle.clone());
        chains.push_front(rotation.stored.chain.clone());
        bundles.truncate(3);
        chains.truncate(3);
        for (bundle, chain) in bundles.iter().flat_map(|bundle| chains.iter().map(move |chain| (bundle, chain))) {
            let pair = (bundle.clone(), chain.clone());
            if !verified.contains(&pair) {
                assert!(verifies(chain, &names(), &[bundle], rotation.now), "at {} after {steps:?}", rotation.now);
                verified.push(pair);
            }
        }
        rotation.wait(2);
    }
    let took_over = steps.iter().filter(|step| **step == Step::TookOver).count();
    let renewed = steps.iter().filter(|step| **step == Step::Renewed).count();
    assert!((17..=19).contains(&took_over), "{took_over}: one in 60 days");
    assert!((100..=140).contains(&renewed), "{renewed}: one in 8 days");
    assert!(!steps.contains(&Step::Recreated) && steps.contains(&Step::Dropped));
    assert!(count(&rotation.stored.bundle) <= 2, "bundles do not grow");
}

#[test]
fn cross_signed_chain_verifies_with_old_or_new_authority_only() {
    let mut rotation = Rotation::announced();
    let both = rotation.stored.bundle.clone();
    let (old, new) = both.split_at(both.find("-----END CERTIFICATE-----\n").unwrap() + 26);
    rotation.wait(7);
    assert_eq!(rotation.step(true), Some(Step::TookOver));
    assert_eq!(count(&rotation.stored.chain), 2, "the old authority cross-signs the new one");
    for trusted in [old, new, &both] {
        assert!(verifies(&rotation.stored.chain, &names(), &[trusted], rotation.now));
    }
    rotation.wait(7);
    assert_eq!(rotation.step(true), Some(Step::Dropped));
    assert_eq!((rotation.stored.bundle.as_str(), count(&rotation.stored.chain)), (new, 1));
    assert!(rotation.is_served());
    assert!(!verifies(&rotation.stored.chain, &names(), &[old], rotation.now));
}

#[test]
fn new_authority_signs_only_after_publication_and_settle_time() {
    let mut rotation = Rotation::announced();
    assert_eq!(rotation.step(true), None, "not settled");
    rotation.wait(48);
    while let Some(step) = rotation.step(false) {
        assert_eq!(step, Step::Renewed, "not published");
    }
    assert_eq!(rotation.step(true), Some(Step::TookOver));
}

#[test]
fn unpublished_authority_takes_over_once_before_expiry() {
    let mut rotation = Rotation::announced();
    let mut steps = Vec::new();
    for _ in 0..40 * 24 {
        rotation.wait(1);
        steps.extend(rotation.step(false));
        assert!(rotation.is_served(), "{steps:?}");
    }
    assert_eq!(
        steps.iter().filter(|step| **step == Step::TookOver).count(),
        1,
        "an unpublished certificate is better than an expired one"
    );
    assert!(steps.len() < 12, "{steps:?}");
}

#[test]
fn changed_names_and_broken_pairs_are_reissued_by_same_authority() {
    let mut rotation = Rotation::new();
    let bundle = rotation.stored.bundle.clone();
    let renamed = vec!["renamed.ns.svc".to_owned()];
    assert_eq!(rotation.step_for(&renamed, true), Some(Step::Renewed));
    assert!(verifies(&rotation.stored.chain, &renamed, &[&bundle], rotation.now));
    assert_eq!(rotation.step(true), Some(Step::Renewed));

    rotation.stored.chain_key = Rotation::new().stored.chain_key;
    assert_eq!(rotation.step(true), Some(Step::Renewed), "key and certificate do not match");
    rotation.stored.chain.truncate(100);
    assert_eq!(rotation.step(true), Some(Step::Renewed), "an incomplete certificate");
    rotation.stored.chain = Rotation::new().stored.chain;
    rotation.stored.chain_key.clear();
    assert_eq!(rotation.step(true), Some(Step::Renewed), "a foreign certificate");
    assert_eq!(rotation.stored.bundle, bundle);
    assert!(rotation.is_served());
}

#[test]
fn lost_authority_key_is_replaced_without_outage() {
    let mut rotation = Rotation::new();
    let before = rotation.stored.chain.clone();
    rotation.stored.key.clear();
    assert_eq!(rotation.step(true), Some(Step::Announced));
    assert_eq!(rotation.stored.chain, before, "the old certificate is served until the new authority has settled");
    rotation.wait(7);
    assert_eq!(rotation.step(true), Some(Step::TookOver));
    assert!(rotation.is_served());
    rotation.wait(7);
    assert_eq!(rotation.step(true), Some(Step::Dropped));

    let mut rotation = Rotation::announced();
    rotation.stored.next_key.clear();
    assert_eq!(rotation.step(true), Some(Step::Announced), "another authority is announced");
    assert!(rotation.is_served());
}

#[test]
fn unusable_or_expired_certificates_are_recreated() {
    for spoil in [
        |stored: &mut StoredCertificates| {
            *stored = StoredCertificates { bundle: "junk".to_owned(), ..StoredCertificates::default() }
        },
        |stored: &mut StoredCertificates| stored.bundle.clear(),
        |stored: &mut StoredCertificates| {
            stored.key.clear();
            stored.chain.clear();
        },
    ] {
        let mut rotation = Rotation::new();
        spoil(&mut rotation.stored);
        assert_eq!(rotation.step(false), Some(Step::Recreated));
        assert!(rotation.is_served());
    }
    let mut rotation = Rotation::new();
    rotation.wait(91 * 24);
    assert_eq!(rotation.step(true), Some(Step::Recreated), "everything expired meanwhile");
    assert!(rotation.is_served());
}

#[test]
fn clock_that_is_behind_keeps_authority() {
    let mut rotation = Rotation::new();
    let bundle = rotation.stored.bundle.clone();
    rotation.now -= SignedDuration::from_hours(2);
    // By this clock the leaf is not valid yet; the authority remains usable.
    assert_eq!(rotation.step(true), Some(Step::Renewed));
    assert_eq!(rotation.stored.bundle, bundle);
    assert!(rotation.is_served());
}

#[test]
fn announced_replacement_of_lost_key_is_sound_but_not_whole() {
    let mut rotation = Rotation::new();
    assert!(is_whole(&rotation.stored, &names(), rotation.now) && is_sound(&rotation.stored, &names(), rotation.now));
    rotation.stored.key.clear();
    assert!(!is_sound(&rotation.stored, &names(), rotation.now), "no authority could sign");
    assert_eq!(rotation.step(true), Some(Step::Announced));
    assert!(is_sound(&rotation.stored, &names(), rotation.now) && !is_whole(&rotation.stored, &names(), rotation.now));
    assert!(!is_sound(&rotation.stored, &["other.ns.svc".to_owned()], rotation.now));
}

#[test]
fn server_names_are_normalized_or_rejected() {
    let checked = |names: &[&str]| checked_names(&names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
    let plain = checked(&["A.ns.svc", "a.ns.svc.cluster.local.", "0:0:0:0:0:0:0:1", "::1"]).unwrap();
    assert_eq!(plain, ["a.ns.svc", "a.ns.svc.cluster.local", "::1"]);
    for bad in [&["*.ns.svc"][..], &["a b"], &[""], &[], &["a..b"], &[&"x".repeat(64)]] {
        assert!(checked(bad).unwrap_err().contains("spark-usher.spark-usher.svc"), "{bad:?}");
    }
    // Every accepted name can be served, and its certificate is not renewed immediately.
    for name in ["::1", "10.0.0.1", "a.ns.svc.cluster.local."] {
        let names = checked(&[name]).unwrap();
        let (stored, _) =
            next(&StoredCertificates::default(), &names, false, "a", START, lifetimes()).unwrap().unwrap();
        assert!(next(&stored, &names, true, "b", START, lifetimes()).unwrap().is_none(), "{name}");
    }
}
