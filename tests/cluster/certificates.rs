//! Certificates of running replicas: rotated, swapped in files, emptied and deleted. No review may fail meanwhile.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::support::caller::{Caller, Replicas};
use crate::support::cluster::{Cluster, eventually};
use crate::support::mounted::{Mounted, served};
use crate::support::*;
use bytes::Bytes;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;
use usher_core::manifests::webhooks;
use usher_net::tls::ca::Authority;
use usher_net::tls::rotation::{Lifetimes, verifies};
use usher_runtime::clock;
use usher_server::app::{App, CertificateSource};
use usher_server::cluster::certificates::Managed;

const SECRET: &str = "spark-usher-tls";

fn names() -> Vec<String> {
    vec!["localhost".to_owned(), "127.0.0.1".to_owned()]
}

fn managed(cluster: &Cluster, lifetimes: Lifetimes) -> CertificateSource {
    CertificateSource::Managed(Managed {
        secret: (cluster.namespace.clone(), SECRET.to_owned()),
        names: names(),
        mutating: Some(webhooks::NAME.to_owned()),
        validating: None,
        lifetimes,
        interval: Duration::from_millis(100),
    })
}

fn configurations(cluster: &Cluster) -> Api<MutatingWebhookConfiguration> {
    Api::all(cluster.client.clone())
}

/// Registers a replica without a caBundle, fail-closed, so that a failed review is a visible error.
async fn register(cluster: &Cluster, app: &App) {
    let url = format!("https://127.0.0.1:{}/mutate", app.webhook().port());
    let mut object = webhooks::mutating(&url, "", &[&cluster.namespace]);
    object["webhooks"][0]["failurePolicy"] = "Fail".into();
    object["webhooks"][0]["timeoutSeconds"] = 10.into();
    object["webhooks"][0]["clientConfig"].as_object_mut().unwrap().remove("caBundle");
    configurations(cluster).create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
}

async fn stored_data(cluster: &Cluster) -> BTreeMap<String, String> {
    let secrets: Api<Secret> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let data = secrets.get_opt(SECRET).await.unwrap().and_then(|secret| secret.data).unwrap_or_default();
    data.into_iter().map(|(key, bytes)| (key, String::from_utf8(bytes.0).unwrap())).collect()
}

async fn bundle(cluster: &Cluster) -> String {
    let configuration = configurations(cluster).get(webhooks::NAME).await.unwrap();
    let bytes = configuration.webhooks.unwrap()[0].client_config.ca_bundle.clone().unwrap_or_default().0;
    String::from_utf8(bytes).unwrap()
}

fn count(bundle: &str) -> usize {
    bundle.matches("BEGIN CERTIFICATE").count()
}

/// Creates pods without pause until `stop` is set; returns their number.
fn create_pods_until(cluster: &Arc<Cluster>, stop: &Arc<AtomicBool>) -> tokio::task::JoinHandle<usize> {
    let (cluster, stop) = (cluster.clone(), stop.clone());
    tokio::spawn(async move {
        let mut reviews = 0;
        while !stop.load(Ordering::SeqCst) {
            assert_eq!(cluster.mutates_executors().await, Ok(true), "after {reviews} reviews");
            reviews += 1;
        }
        reviews
    })
}

const POLICY: &str = "policies: [{name: batch, scheduler: {type: volcano}}]";

#[tokio::test(flavor = "multi_thread")]
async fn ca_rotation_under_constant_reviews_fails_no_review() {
    let cluster = Arc::new(Cluster::start().await);
    let lifetimes =
        Lifetimes { authority: Duration::from_secs(15), leaf: Duration::from_secs(9), settle: Duration::from_secs(2) };
    let one = cluster.usher_with(POLICY, "one", managed(&cluster, lifetimes)).await;
    let two = cluster.usher_with(POLICY, "two", managed(&cluster, lifetimes)).await;
    register(&cluster, &one).await;
    eventually("the webhook is called", async || cluster.mutates_executors().await == Ok(true)).await;

    let stop = Arc::new(AtomicBool::new(false));
    let creating = create_pods_until(&cluster, &stop);
    let review = Bytes::from(serde_json::to_vec(&recorded("client-mode/exec-1.mutate.create")).unwrap());
    let replicas = Replicas::default();
    replicas.set(vec![one.webhook(), two.webhook()]);
    let old = stored_data(&cluster).await["ca.crt"].clone();
    assert_eq!(count(&old), 1);
    eventually("the next CA is in the bundle", async || count(&bundle(&cluster).await) == 2).await;
    let both = bundle(&cluster).await;
    let new = both.replace(&old, "");
    // Before and after the new CA takes over, until the old one is dropped: with only the old bundle, with both, and with only
    // the new one as soon as an API server can have only that.
    let mut rounds = 0;
    while count(&stored_data(&cluster).await["ca.crt"]) == 2 {
        let took_over = count(&stored_data(&cluster).await["tls.crt"]) == 2;
        // Both replicas read the Secret every 100 ms.
        tokio::time::sleep(Duration::from_millis(400)).await;
        let trusted = if took_over { vec![&old, &both, &new] } else { vec![&old, &both] };
        for bundle in trusted {
            for _ in 0..2 {
                // A new client each time, and so a new handshake.
                let failed = Caller::new(bundle, "localhost", &replicas).review_error(&review).await;
                // Once the old CA is dropped, no API server has only the old bundle.
                let dropped = count(&stored_data(&cluster).await["ca.crt"]) == 1;
                assert!(failed.is_none() || (dropped && bundle == &old), "{failed:?}");
            }
        }
        rounds += usize::from(took_over);
    }
    assert!(rounds > 0, "expected reviews between the takeover and the drop");
    eventually("only the new CA is in the configuration", async || bundle(&cluster).await == new).await;
    stop.store(true, Ordering::SeqCst);
    println!("a complete rotation: {} pods created, none failed", creating.await.unwrap());
    let (chain, now) = (stored_data(&cluster).await["tls.crt"].clone(), clock::now());
    assert!(verifies(&chain, &names(), &[&new], now) && !verifies(&chain, &names(), &[&old], now));
    one.stop().await.unwrap();
    two.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn emptied_or_overwritten_secret_is_restored_and_deleted_secret_gets_new_ca() {
    let cluster = Arc::new(Cluster::start().await);
    let lifetimes = Lifetimes { settle: Duration::from_secs(2), ..Lifetimes::default() };
    let app = cluster.usher_with(POLICY, "one", managed(&cluster, lifetimes)).await;
    register(&cluster, &app).await;
    eventually("the webhook is called", async || cluster.mutates_executors().await == Ok(true)).await;
    let stop = Arc::new(AtomicBool::new(false));
    let creating = create_pods_until(&cluster, &stop);

    let secrets: Api<Secret> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let before = stored_data(&cluster).await;
    let secret = secrets.get(SECRET).await.unwrap();
    assert_eq!(secret.type_.as_deref(), Some("kubernetes.io/tls"));
    let empty = json!({"data": {"ca.crt": "", "ca.key": "", "tls.crt": "", "tls.key": ""}});
    secrets.patch(SECRET, &PatchParams::default(), &Patch::Merge(&empty)).await.unwrap();
    eventually("the Secret is restored", async || stored_data(&cluster).await == before).await;

    // As in an upgrade by a tool that renders the configuration again.
    let wiped = json!([{"op": "remove", "path": "/webhooks/0/clientConfig/caBundle"}]);
    let wiped: json_patch::Patch = serde_json::from_value(wiped).unwrap();
    stop.store(true, Ordering::SeqCst);
    println!("{} pods created, none failed", creating.await.unwrap());
    let patch = Patch::<()>::Json(wiped);
    configurations(&cluster).patch(webhooks::NAME, &PatchParams::default(), &patch).await.unwrap();
    eventually("the caBundle is restored", async || bundle(&cluster).await == before["ca.crt"]).await;
    eventually("the webhook is called", async || cluster.mutates_executors().await == Ok(true)).await;

    // No replica serves a foreign pair, and the leader replaces it by the previous one.
    let foreign =
        Authority::new("foreign", clock::now()).unwrap().serve(&["localhost"], &["127.0.0.1".parse().unwrap()]);
    let foreign = foreign.unwrap();
    let rejections = || app.counters().files.certificate_reloads.with_label_values(&["refused"]).get();
    let rejected_before = rejections();
    use base64::Engine;
    let encode = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
    let patch = json!({"data": {"tls.crt": encode(&foreign.certificate), "tls.key": encode(&foreign.key)}});
    let patched = secrets.patch(SECRET, &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
    eventually("the Secret is restored", async || {
        let now = secrets.get(SECRET).await.unwrap();
        now.metadata.resource_version != patched.metadata.resource_version && stored_data(&cluster).await == before
    })
    .await;
    println!("a foreign pair: rejected {} times", rejections() - rejected_before);
    assert_eq!(cluster.mutates_executors().await, Ok(true));

    stop.store(false, Ordering::SeqCst);
    let creating = create_pods_until(&cluster, &stop);
    secrets.delete(SECRET, &DeleteParams::default()).await.unwrap();
    eventually("only a new CA remains", async || {
        let data = stored_data(&cluster).await;
        data.get("ca.crt").is_some_and(|bundle| count(bundle) == 1 && *bundle != before["ca.crt"])
    })
    .await;
    stop.store(true, Ordering::SeqCst);
    println!("{} pods created, none failed", creating.await.unwrap());
    app.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn certificate_files_updated_under_load_fail_no_review() {
    use rustls_pki_types::CertificateDer;
    use rustls_pki_types::pem::PemObject;
    let cluster = Cluster::start().await;
    let authority = Authority::new("files", clock::now()).unwrap();
    let pair = || authority.serve(&["localhost"], &[]).unwrap();
    let expired = {
        let old = clock::now() - jiff::SignedDuration::from_hours(24 * 400);
        Authority::new("old", old).unwrap().serve(&["localhost"], &[]).unwrap()
    };
    let first = pair();
    let mut mounted = Mounted::new(cluster.folder().join("mounted"), &first.certificate, &first.key);
    let app = cluster.usher_with(POLICY, "one", mounted.source()).await;

    let review = Bytes::from(serde_json::to_vec(&recorded("client-mode/exec-1.mutate.create")).unwrap());
    let (stop, reviews) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let replicas = Replicas::default();
    replicas.set(vec![app.webhook()]);
    let load = |fresh: bool| {
        let (stop, reviews, review) = (stop.clone(), reviews.clone(), review.clone());
        let (bundle, replicas) = (authority.pem().to_owned(), replicas.clone());
        tokio::spawn(async move {
            let mut caller = Caller::new(&bundle, "localhost", &replicas);
            while !stop.load(Ordering::SeqCst) {
                if fresh {
                    caller = Caller::new(&bundle, "localhost", &replicas);
                }
                assert_eq!(caller.review_error(&review).await, None);
                reviews.fetch_add(1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
    };
    let loads = [load(false), load(false), load(true)];

    let mut last = first.certificate.clone();
    let mut slowest = Duration::ZERO;
    for n in 1..=200 {
        if n % 10 == 0 {
            let (good, other) = (pair(), pair());
            let torn = &good.certificate[..good.certificate.len() / 2];
            let (certificate, key) = match n / 10 % 4 {
                0 => (torn, good.key.as_str()),
                1 => (good.certificate.as_str(), &good.key[..good.key.len() / 2]),
                2 => (good.certificate.as_str(), other.key.as_str()),
                _ => (expired.certificate.as_str(), expired.key.as_str()),
            };
            let rejections = |app: &App| app.counters().files.certificate_reloads.with_label_values(&["refused"]).get();
            let before = rejections(&app);
            mounted.update(certificate, key);
            eventually("the pair is rejected", async || rejections(&app) > before).await;
        } else {
            let new = pair();
            mounted.update(&new.certificate, &new.key);
            last = new.certificate;
            let begin = Instant::now();
            let der = CertificateDer::from_pem_slice(last.as_bytes()).unwrap();
            while served(app.webhook(), authority.pem(), "localhost").await.unwrap() != der.to_vec() {
                assert!(begin.elapsed() < Duration::from_secs(60), "swap {n} is not served");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            slowest = slowest.max(begin.elapsed());
        }
        let der = CertificateDer::from_pem_slice(last.as_bytes()).unwrap();
        assert_eq!(
            served(app.webhook(), authority.pem(), "localhost").await.unwrap(),
            der.to_vec(),
            "the replica serves the last valid certificate"
        );
    }
    stop.store(true, Ordering::SeqCst);
    for load in loads {
        load.await.unwrap();
    }
    println!(
        "200 swaps, {} reviews, none failed; the slowest new certificate was served after {slowest:?} (read every 100 ms)",
        reviews.load(Ordering::SeqCst)
    );
    app.stop().await.unwrap();
}
