//! Certificates as cert-manager issues them for the chart: root and serving certificate are renewed while the CA injector,
//! API servers and kubelets are late, and no handshake fails.
//!
//! `support/cert_manager.rs` simulates cert-manager; `tests/chart.py` checks that the chart requests exactly these certificates.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::caller::{Caller, Replicas};
use crate::support::cert_manager::{CertManager, Chart, LEAF, LONGEST, Lifetime, ROOT};
use crate::support::cluster::{Cluster, eventually};
use crate::support::mounted::{Mounted, served};
use crate::support::process::Process;
use crate::support::*;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use kube::api::{Api, Patch, PatchParams, PostParams};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use serde_json::json;
use usher_core::manifests::webhooks;
use usher_net::tls::rotation::verifies;
use usher_runtime::clock;
use usher_server::app::{App, CertificateSource};

/// The name by which API servers call the chart's Service.
const SERVICE: &str = "spark-usher.usher-system.svc";
/// The second name is for the API server of the tests, which resolves no Services.
const NAMES: [&str; 2] = [SERVICE, "localhost"];
const START: Timestamp = Timestamp::constant(1_790_000_000, 0);

#[test]
fn chart_certificates_match_simulated_cert_manager() {
    let chart = |file: &str| {
        let path = format!("{}/charts/spark-usher/{file}", env!("CARGO_MANIFEST_DIR"));
        std::fs::read_to_string(path).unwrap()
    };
    let template = chart("templates/certificate.yaml");
    let (root, leaf) = template.split_once("  isCA: true").unwrap().1.split_once("  ca:").unwrap();
    assert!(root.contains("rotationPolicy: Never") && root.contains("commonName:"), "{root}");
    assert!(leaf.contains("rotationPolicy: Always") && !leaf.contains("isCA"), "{leaf}");
    let lifetimes = format!("dict \"duration\" {} \"renewBefore\" {}", ROOT.duration, ROOT.renew_before);
    assert!(template.contains(&lifetimes), "{template}");
    assert_eq!(LONGEST.duration, ROOT.renew_before);
    let defaults = [format!("    duration: {}h", LEAF.duration), format!("    renewBefore: {}h", LEAF.renew_before)];
    let values = chart("values.yaml");
    assert!(defaults.iter().all(|line| values.lines().any(|found| found == line)), "{defaults:?}");
}

fn der(pem: &str) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()
}

fn is_valid(pem: &str, now: Timestamp) -> bool {
    let der = der(pem);
    let validity = x509_parser::parse_x509_certificate(&der).unwrap().1.validity().clone();
    validity.not_before.timestamp() <= now.as_second() && now.as_second() <= validity.not_after.timestamp()
}

/// Simulates `years` years. At each renewal, API servers may trust any `ca.crt` that was ever injected and any root, and replicas
/// may serve any leaf, as long as these are valid. Returns the number of such pairs, and how many did not verify.
fn simulate_renewals(chart: Chart, leaf: Lifetime, years: i64) -> (usize, usize) {
    let mut manager = CertManager::new(chart, NAMES, leaf, START);
    let (mut bundles, mut leaves) = (Vec::new(), Vec::new());
    let (mut pairs, mut rejected) = (0, 0);
    let mut now = START;
    while now < START + SignedDuration::from_hours(24 * 365 * years) {
        bundles.push(manager.leaf.ca.clone());
        if chart != Chart::SelfSigned {
            bundles.push(manager.root.certificate.clone());
        }
        bundles.dedup();
        leaves.push(manager.leaf.certificate.clone());
        leaves.dedup();
        bundles.retain(|bundle| is_valid(bundle, now));
        leaves.retain(|leaf| is_valid(leaf, now));
        for (bundle, leaf) in bundles.iter().flat_map(|bundle| leaves.iter().map(move |leaf| (bundle, leaf))) {
            pairs += 1;
            rejected += usize::from(!verifies(leaf, &[SERVICE.to_owned()], &[bundle], now));
        }
        let injected = manager.leaf.ca.clone();
        if chart != Chart::SelfSigned && manager.root.renewal < manager.leaf.renewal {
            now = manager.root.renewal;
            manager.renew_root(now);
        } else {
            now = manager.leaf.renewal;
            manager.renew_leaf(now);
        }
        assert!(is_valid(&injected, now), "{now}: the injected CA has expired");
    }
    (pairs, rejected)
}

#[test]
fn every_valid_root_verifies_every_valid_leaf_for_forty_years() {
    for leaf in [LEAF, LONGEST] {
        let (pairs, rejected) = simulate_renewals(Chart::Root, leaf, 40);
        println!("{leaf:?}: {pairs} pairs of bundle and leaf, {rejected} rejected");
        assert!(pairs > 40, "expected renewals of roots and leaves");
        assert_eq!(rejected, 0);
    }
}

#[test]
fn self_signed_leaf_is_verified_only_by_its_own_bundle() {
    let (pairs, rejected) = simulate_renewals(Chart::SelfSigned, LEAF, 10);
    println!("{pairs} pairs of bundle and leaf, {rejected} rejected");
    // First one of each, then two of each; a bundle verifies only its own leaf.
    assert_eq!((pairs - 1) % 4, 0);
    assert_eq!(rejected, (pairs - 1) / 2);
}

#[test]
fn root_renewed_with_new_key_fails_some_verifications() {
    let (_, rejected) = simulate_renewals(Chart::RootWithNewKeys, LEAF, 10);
    assert!(rejected > 0, "rotationPolicy: Never is required");
}

#[test]
fn renewed_root_keeps_subject_and_key_and_does_not_change_leaf() {
    let mut manager = CertManager::new(Chart::Root, NAMES, LEAF, START);
    let old = (der(&manager.root.certificate), manager.leaf.certificate.clone());
    manager.renew_root(manager.root.renewal);
    let new = der(&manager.root.certificate);
    let (_, before) = x509_parser::parse_x509_certificate(&old.0).unwrap();
    let (_, after) = x509_parser::parse_x509_certificate(&new).unwrap();
    assert_eq!(before.subject().as_raw(), after.subject().as_raw());
    assert_eq!(before.public_key().raw, after.public_key().raw);
    assert_ne!(before.raw_serial(), after.raw_serial());
    assert_ne!(before.validity(), after.validity());
    assert_eq!(manager.leaf.certificate, old.1, "the leaf does not change");
    let leaf = der(&manager.leaf.certificate);
    let (_, leaf) = x509_parser::parse_x509_certificate(&leaf).unwrap();
    assert_eq!(leaf.issuer().as_raw(), before.subject().as_raw());
    assert_eq!(leaf.subject().iter().count(), 0);
    assert!(leaf.subject_alternative_name().unwrap().unwrap().critical && !leaf.is_ca() && after.is_ca());
}

/// A cluster with one replica, which serves cert-manager's certificates from files, and an API server, which calls it.
struct Installation {
    cluster: Arc<Cluster>,
    manager: CertManager,
    mounted: Mounted,
    app: App,
    replicas: Replicas,
    review: Bytes,
}

impl Installation {
    async fn new(chart: Chart, failure_policy: &str) -> Installation {
        let cluster = Arc::new(Cluster::start().await);
        let manager = CertManager::new(chart, NAMES, LEAF, clock::now());
        let leaf = &manager.leaf;
        let mounted = Mounted::new(cluster.folder().join("mounted"), &leaf.certificate, &leaf.key);
        let policy = "policies: [{name: batch, scheduler: {type: volcano}}]";
        let app = cluster.usher_with(policy, "one", mounted.source()).await;
        let url = format!("https://localhost:{}/mutate", app.webhook().port());
        let mut object = webhooks::mutating(&url, &leaf.ca, &[&cluster.namespace]);
        object["webhooks"][0]["failurePolicy"] = failure_policy.into();
        object["webhooks"][0]["timeoutSeconds"] = 10.into();
        let api: Api<MutatingWebhookConfiguration> = Api::all(cluster.client.clone());
        api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
        eventually("the webhook is called", async || cluster.mutates_executors().await == Ok(true)).await;
        let replicas = Replicas::default();
        replicas.set(vec![app.webhook()]);
        let review = Bytes::from(serde_json::to_vec(&recorded("client-mode/exec-1.mutate.create")).unwrap());
        Installation { cluster, manager, mounted, app, replicas, review }
    }

    /// Updates the caBundle, as the CA injector does after a leaf was issued.
    async fn inject(&self) {
        let api: Api<MutatingWebhookConfiguration> = Api::all(self.cluster.client.clone());
        let bundle = STANDARD.encode(&self.manager.leaf.ca);
        let patch = json!([{"op": "replace", "path": "/webhooks/0/clientConfig/caBundle", "value": bundle}]);
        let patch: json_patch::Patch = serde_json::from_value(patch).unwrap();
        api.patch(webhooks::NAME, &PatchParams::default(), &Patch::<()>::Json(patch)).await.unwrap();
    }

    /// Updates the mounted files, as the kubelet does after a leaf was issued; returns when the replica serves the leaf.
    async fn mount(&mut self) {
        let leaf = self.manager.leaf.clone();
        self.mounted.update(&leaf.certificate, &leaf.key);
        let new = der(&leaf.certificate).to_vec();
        let presented = async || served(self.app.webhook(), &leaf.ca, SERVICE).await.ok();
        eventually("the new leaf is served", async || presented().await.as_ref() == Some(&new)).await;
    }

    /// Sends one review in a new handshake, as an API server that trusts this bundle. Returns the error, if any.
    async fn review(&self, bundle: &str) -> Option<String> {
        Caller::new(bundle, SERVICE, &self.replicas).review_error(&self.review).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn root_and_leaf_renewals_fail_no_handshake_and_no_pod_creation() {
    // With failurePolicy Fail, a failed handshake is a rejected pod.
    let mut installation = Installation::new(Chart::Root, "Fail").await;
    let stop = Arc::new(AtomicBool::new(false));
    // All roots so far: some API servers never apply a new root, others apply it first.
    let bundles = Arc::new(Mutex::new(vec![installation.manager.root.certificate.clone()]));
    let rounds = Arc::new(AtomicUsize::new(0));
    let handshakes = {
        let (stop, bundles, rounds) = (stop.clone(), bundles.clone(), rounds.clone());
        let (replicas, review) = (installation.replicas.clone(), installation.review.clone());
        tokio::spawn(async move {
            let mut handshakes = 0;
            while !stop.load(Ordering::SeqCst) {
                let trusted = bundles.lock().unwrap().clone();
                for (n, bundle) in trusted.iter().enumerate() {
                    let failed = Caller::new(bundle, SERVICE, &replicas).review_error(&review).await;
                    assert_eq!(failed, None, "with root {n} of {}, after {handshakes} handshakes", trusted.len());
                    handshakes += 1;
                }
                rounds.fetch_add(1, Ordering::SeqCst);
            }
            handshakes
        })
    };
    let connected = {
        let (stop, review) = (stop.clone(), installation.review.clone());
        let caller = Caller::new(&installation.manager.leaf.ca, SERVICE, &installation.replicas);
        tokio::spawn(async move {
            while !stop.load(Ordering::SeqCst) {
                assert_eq!(caller.review_error(&review).await, None, "on an open connection");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
    };
    let pods = {
        let (stop, cluster) = (stop.clone(), installation.cluster.clone());
        tokio::spawn(async move {
            let mut pods = 0;
            while !stop.load(Ordering::SeqCst) {
                assert_eq!(cluster.mutates_executors().await, Ok(true), "after {pods} pods");
                pods += 1;
            }
            pods
        })
    };
    let settled = async || {
        let begin = rounds.load(Ordering::SeqCst);
        let done = async || handshakes.is_finished() || rounds.load(Ordering::SeqCst) >= begin + 3;
        eventually("every API server has made handshakes", done).await;
    };

    settled().await;
    for (n, renewed) in ["leaf", "leaf", "root", "leaf", "leaf", "root", "root", "leaf", "leaf"].iter().enumerate() {
        if *renewed == "root" {
            installation.manager.renew_root(clock::now());
            bundles.lock().unwrap().push(installation.manager.root.certificate.clone());
        } else {
            installation.manager.renew_leaf(clock::now());
            // Either update may be late.
            if n % 2 == 0 {
                installation.inject().await;
                settled().await;
                installation.mount().await;
            } else {
                installation.mount().await;
                settled().await;
                installation.inject().await;
            }
        }
        settled().await;
    }
    assert_eq!(bundles.lock().unwrap().len(), 4);
    assert_eq!(
        installation.manager.leaf.ca, installation.manager.root.certificate,
        "the last root signed the leaf and is injected"
    );
    stop.store(true, Ordering::SeqCst);
    let (handshakes, pods) = (handshakes.await.unwrap(), pods.await.unwrap());
    connected.await.unwrap();
    println!("three roots after the first, six leaves: {handshakes} handshakes, {pods} pods, none failed");
    installation.app.stop().await.unwrap();
}

/// The same with the program and the chart's arguments: it reads the files every 10 seconds.
#[tokio::test(flavor = "multi_thread")]
async fn renewed_leaf_files_are_served_without_failed_handshake() {
    let cluster = Cluster::start().await;
    let mut manager = CertManager::new(Chart::Root, NAMES, LEAF, clock::now());
    let mut mounted = Mounted::new(cluster.folder().join("mounted"), &manager.leaf.certificate, &manager.leaf.key);
    let CertificateSource::Files { certificate, key } = mounted.source() else { panic!("files") };
    let arguments = [format!("--tls-cert={}", certificate.display()), format!("--tls-key={}", key.display())];
    let arguments = arguments.each_ref().map(String::as_str);
    let process = Process::start_serving(&arguments, &[], &cluster, "one", "policies: []", &cluster.kubeconfig());
    let old = manager.root.certificate.clone();
    manager.renew_root(clock::now());
    manager.renew_leaf(clock::now());
    mounted.update(&manager.leaf.certificate, &manager.leaf.key);
    let new = der(&manager.leaf.certificate).to_vec();
    eventually("the new leaf is served", async || {
        let by_old = served(process.webhook, &old, SERVICE).await.unwrap();
        let by_new = served(process.webhook, &manager.root.certificate, SERVICE).await.unwrap();
        by_old == new && by_new == new
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn self_signed_leaf_renewal_fails_open_until_leaf_and_bundle_match() {
    let mut installation = Installation::new(Chart::SelfSigned, "Ignore").await;
    let old = installation.manager.leaf.ca.clone();
    assert_eq!(installation.review(&old).await, None);
    installation.manager.renew_leaf(clock::now());
    let new = installation.manager.leaf.ca.clone();
    let assert_rejected = |failed: Option<String>| {
        let failed = failed.expect("the handshake fails");
        assert!(failed.contains("invalid peer certificate"), "{failed}");
    };

    // The kubelet is late, by up to a minute and a half.
    installation.inject().await;
    eventually("a pod is created without the webhook", async || {
        installation.cluster.mutates_executors().await == Ok(false)
    })
    .await;
    assert_rejected(installation.review(&new).await);
    // The API server is late.
    installation.mount().await;
    assert_rejected(installation.review(&old).await);
    // Both have the new certificate.
    assert_eq!(installation.review(&new).await, None);
    eventually("the webhook is called again", async || installation.cluster.mutates_executors().await == Ok(true))
        .await;
    installation.app.stop().await.unwrap();
}
