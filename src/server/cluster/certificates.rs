//! Managed certificates: stored in a Secret, created by the leader, used by every replica.
//!
//! The leader writes the Secret and the caBundle of our webhook configurations, and restores both when other clients change
//! them. [`usher_net::tls::rotation`] decides what to write and when. The Secret is in our own namespace, so the CA's key never
//! leaves it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::core::DynamicObject;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::lease::{Leadership, LeadershipReceiver};
use super::metrics::Metrics;
use usher_core::annotations;
use usher_kube::client::Brief;
use usher_kube::request::{self, Error, call};
use usher_kube::view::resource;
use usher_net::tls::load::{BadCertificate, Certificate, load};
use usher_net::tls::rotation::{self, Lifetimes, Step, StoredCertificates};
use usher_runtime::{clock, random};

/// Timeout of a round.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// How soon a round is repeated while there is no certificate to serve.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// The limit of steps in one round: more than ever follow each other without a pause.
const MAX_STEPS: u32 = 4;

/// The Secret's keys. Those of the serving certificate are the ones that `kubernetes.io/tls` requires.
const BUNDLE: &str = "ca.crt";
const KEY: &str = "ca.key";
const NEXT_KEY: &str = "next.key";
const CHAIN: &str = "tls.crt";
const CHAIN_KEY: &str = "tls.key";

/// The managed certificate: where it is stored and published, and its names and lifetimes.
#[derive(Clone, Debug)]
pub struct Managed {
    /// The Secret's namespace and name.
    pub secret: (String, String),
    /// The names of the serving certificate: DNS names and addresses.
    pub names: Vec<String>,
    /// The MutatingWebhookConfiguration whose caBundle is maintained, if any.
    pub mutating: Option<String>,
    /// The ValidatingWebhookConfiguration whose caBundle is maintained, if any.
    pub validating: Option<String>,
    /// The lifetimes of the CA and the serving certificate.
    pub lifetimes: Lifetimes,
    /// How often the Secret and the configurations are read.
    pub interval: Duration,
}

/// Maintains the certificate until `stop` is cancelled. `taken` receives each new one, or why it cannot be served.
pub async fn run(
    client: kube::Client,
    managed: Managed,
    mut leadership: LeadershipReceiver,
    metrics: Arc<Metrics>,
    stop: CancellationToken,
    mut taken: impl FnMut(Result<Certificate, Unusable>) + Send,
) {
    if managed.mutating.is_none() && managed.validating.is_none() {
        tracing::warn!(
            "neither --mutating-configuration nor --validating-configuration is set: no caBundle is maintained"
        );
    }
    let mut controller = CertificateController::new(client, managed, metrics);
    let (mut seen, mut refused, mut serves, mut is_reported) = (None, None, false, false);
    loop {
        leadership.receive();
        let held = leadership.received().map(|held| &**held);
        match call(REQUEST_TIMEOUT, controller.reconcile(held)).await {
            Ok(stored) => {
                is_reported = false;
                if let Some(stored) = stored.filter(|stored| seen.as_ref() != Some(stored)) {
                    match servable(&stored, &controller.managed.names) {
                        Ok(certificate) => {
                            (seen, refused, serves) = (Some(stored), None, true);
                            taken(Ok(certificate));
                        }
                        // Reported once, and tried again: its validity may only not have begun yet.
                        Err(error) if refused.as_ref() != Some(&stored) => {
                            refused = Some(stored);
                            taken(Err(error));
                        }
                        Err(_) => {}
                    }
                }
            }
            Err(error) => {
                if !is_reported {
                    let (namespace, name) = &controller.managed.secret;
                    tracing::warn!(error = %Brief(&error), secret = format!("{namespace}/{name}"), "cannot reconcile the certificate; retrying");
                    is_reported = true;
                }
            }
        }
        let pause = if serves { controller.managed.interval } else { RETRY_INTERVAL.min(controller.managed.interval) };
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
            true = leadership.changed() => {}
        }
    }
}

/// The serving certificate, if API servers that trust the stored bundle accept it for our names. The leader replaces any other
/// certificate, and no replica serves it.
fn servable(stored: &StoredCertificates, names: &[String]) -> Result<Certificate, Unusable> {
    let now = clock::now();
    let certificate = load(stored.chain.as_bytes(), stored.chain_key.as_bytes(), now)?;
    if !rotation::verifies(&stored.chain, names, &[&stored.bundle], now) {
        return Err(Unusable::Untrusted(names.join(", ")));
    }
    Ok(certificate)
}

/// Why the Secret's certificate cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    /// The pair of certificate and key is invalid.
    #[error("{0}")]
    Bad(#[from] BadCertificate),
    /// It is not a certificate of our CA for our names.
    #[error("the Secret's ca.crt does not verify its tls.crt for {0}")]
    Untrusted(String),
}

/// Why the certificates could not be reconciled.
#[derive(Debug, thiserror::Error)]
enum Failed {
    /// A request failed.
    #[error(transparent)]
    Request(#[from] Error),
    /// A key or a certificate could not be created.
    #[error("cannot create a certificate: {0}")]
    Create(#[from] rcgen::Error),
    /// A new certificate would not be accepted.
    #[error("the new certificate for {0} does not verify with its own CA")]
    Unverified(String),
}

struct CertificateController {
    managed: Managed,
    secrets: Api<Secret>,
    client: kube::Client,
    metrics: Arc<Metrics>,
    /// Whether it was logged that a caBundle cannot be written.
    reported: bool,
    /// The configurations of which it was logged that they do not exist.
    missing: Missing,
    /// The stored certificates, when they were last whole.
    whole: Option<StoredCertificates>,
}

impl CertificateController {
    fn new(client: kube::Client, managed: Managed, metrics: Arc<Metrics>) -> CertificateController {
        let secrets = Api::namespaced(client.clone(), &managed.secret.0);
        CertificateController {
            managed,
            secrets,
            client,
            metrics,
            reported: false,
            missing: Missing::default(),
            whole: None,
        }
    }

    /// Reads the Secret, and writes what is due if this replica leads. Returns what the Secret contains then.
    async fn reconcile(&mut self, leadership: Option<&Leadership>) -> Result<Option<StoredCertificates>, Failed> {
        let mut secret = self.secrets.get_opt(&self.managed.secret.1).await.map_err(Error::from)?;
        if let Some(leadership) = leadership {
            for _ in 0..MAX_STEPS {
                let stored = secret.as_ref().map(read).unwrap_or_default();
                let published = !stored.bundle.is_empty() && self.publish(leadership, &stored.bundle).await;
                let next = self.next(&stored, published, secret.is_some())?;
                let Some((stored, what)) = next.filter(|_| leadership.holds()) else { break };
                // A certificate that does not verify would be replaced in every round.
                let names = &self.managed.names;
                if !rotation::verifies(&stored.chain, names, &[&stored.bundle], clock::now()) {
                    return Err(Failed::Unverified(names.join(", ")));
                }
                match self.write(leadership, secret.as_ref(), &stored).await {
                    Ok(written) => {
                        self.count("certificate", "ok");
                        tracing::info!(what, secret = self.managed.secret.1, "certificates written");
                        secret = Some(written);
                    }
                    // Another client wrote meanwhile: the next round reads the Secret again.
                    Err(error) if error.is_stale() => {
                        self.count("certificate", "stale");
                        return Ok(None);
                    }
                    Err(error) => {
                        self.count("certificate", "failed");
                        return Err(error.into());
                    }
                }
            }
        }
        let stored = secret.as_ref().map(read);
        if let Some(stored) =
            stored.as_ref().filter(|stored| rotation::is_sound(stored, &self.managed.names, clock::now()))
        {
            // A key that was deleted on purpose is not restored later, whichever replica leads then.
            self.whole = rotation::is_whole(stored, &self.managed.names, clock::now()).then(|| stored.clone());
        }
        Ok(stored)
    }

    /// What to store next, and why.
    ///
    /// A Secret that another client emptied or damaged (a GitOps tool that considers it its own) gets back what it contained. A
    /// deleted Secret is a request for new keys, which are rotated in without a gap.
    fn next(
        &self,
        stored: &StoredCertificates,
        published: bool,
        exists: bool,
    ) -> Result<Option<(StoredCertificates, &'static str)>, rcgen::Error> {
        let next = |stored: &StoredCertificates, published| {
            let name = format!("spark-usher {}", random::hex(4));
            rotation::next(stored, &self.managed.names, published, &name, clock::now(), self.managed.lifetimes)
        };
        let is_whole = |stored: &StoredCertificates| rotation::is_whole(stored, &self.managed.names, clock::now());
        let found = next(stored, published)?;
        if rotation::is_sound(stored, &self.managed.names, clock::now()) {
            return Ok(found.map(|(stored, step)| (stored, step.as_str())));
        }
        let whole = self.whole.as_ref().filter(|whole| is_whole(whole));
        if let Some(whole) = whole {
            if exists {
                return Ok(Some((whole.clone(), "restored: the Secret had lost its content")));
            }
            let forgotten = StoredCertificates { key: String::new(), next_key: String::new(), ..whole.clone() };
            if let Some((stored, Step::Announced)) = next(&forgotten, published)? {
                return Ok(Some((stored, "the Secret was deleted: next CA announced")));
            }
        }
        Ok(found.map(|(stored, step)| (stored, step.as_str())))
    }

    async fn write(
        &self,
        _: &Leadership,
        found: Option<&Secret>,
        stored: &StoredCertificates,
    ) -> request::Result<Secret> {
        let mut secret = found.cloned().unwrap_or_else(|| Secret {
            metadata: ObjectMeta {
                name: Some(self.managed.secret.1.clone()),
                namespace: Some(self.managed.secret.0.clone()),
                ..ObjectMeta::default()
            },
            type_: Some("kubernetes.io/tls".to_owned()),
            ..Secret::default()
        });
        // A write that contains managedFields would claim the fields of other managers.
        secret.metadata.managed_fields = None;
        let labels = secret.metadata.labels.get_or_insert_default();
        labels.insert("app.kubernetes.io/name".to_owned(), annotations::USHER.to_owned());
        labels.insert(annotations::MANAGED_BY.to_owned(), annotations::USHER.to_owned());
        let data = secret.data.get_or_insert_default();
        for (key, text) in fields(stored) {
            match text {
                "" => data.remove(key),
                text => data.insert(key.to_owned(), ByteString(text.as_bytes().to_vec())),
            };
        }
        let params = PostParams { field_manager: Some(annotations::USHER.to_owned()), ..PostParams::default() };
        Ok(match found {
            // The write carries the resourceVersion that was read.
            Some(_) => self.secrets.replace(&self.managed.secret.1, &params, &secret).await?,
            None => self.secrets.create(&params, &secret).await?,
        })
    }

    /// Writes the bundle into our configurations where it differs. Returns whether all of them have it now.
    async fn publish(&mut self, leadership: &Leadership, bundle: &str) -> bool {
        let mut all = true;
        for (kind, plural, name) in [
            ("MutatingWebhookConfiguration", "mutatingwebhookconfigurations", self.managed.mutating.clone()),
            ("ValidatingWebhookConfiguration", "validatingwebhookconfigurations", self.managed.validating.clone()),
        ] {
            let Some(name) = name else { continue };
            let api = resource("admissionregistration.k8s.io", "v1", kind, plural);
            let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &api);
            match self.publish_in(leadership, &api, &name, bundle).await {
                Ok(Some(result)) => {
                    self.count("ca-bundle", result);
                    tracing::info!(configuration = name, kind, result, "caBundle write finished");
                    all &= result == "ok";
                }
                Ok(None) => {}
                Err(error) => {
                    self.count("ca-bundle", "failed");
                    if !std::mem::replace(&mut self.reported, true) {
                        tracing::warn!(configuration = name, kind, error = %Brief(&error), "cannot write the caBundle; retrying");
                    }
                    return false;
                }
            }
        }
        self.reported &= !all;
        all
    }

    /// The result of a write; `None` if there was nothing to write.
    async fn publish_in(
        &mut self,
        leadership: &Leadership,
        api: &Api<DynamicObject>,
        name: &str,
        bundle: &str,
    ) -> request::Result<Option<&'static str>> {
        // A configuration that is not installed trusts no CA, and the rotation does not wait for it.
        let Some(found) = api.get_opt(name).await? else {
            if self.missing.is_new(name) {
                tracing::warn!(
                    configuration = name,
                    "the webhook configuration does not exist: its caBundle is not maintained"
                );
            }
            return Ok(None);
        };
        self.missing.found(name);
        let version = found.metadata.resource_version.clone().unwrap_or_default();
        let operations = bundle_patch(&found.data, &version, &STANDARD.encode(bundle));
        if operations.is_empty() {
            return Ok(None);
        }
        if !leadership.holds() {
            return Ok(Some("stale"));
        }
        let patch: json_patch::Patch =
            serde_json::from_value(Value::Array(operations)).map_err(kube::Error::SerdeError)?;
        let params = PatchParams { field_manager: Some(annotations::USHER.to_owned()), ..PatchParams::default() };
        match api.patch(name, &params, &Patch::<()>::Json(patch)).await.map_err(Error::from) {
            Ok(_) => Ok(Some("ok")),
            // Changed or deleted meanwhile.
            Err(error) if error.is_stale() => Ok(Some("stale")),
            // A failed `test` operation is a 422, and so is a denial by an admission policy.
            Err(error) => match api.get_opt(name).await? {
                Some(now) if now.metadata.resource_version.as_deref() == Some(&version) => Err(error),
                _ => Ok(Some("stale")),
            },
        }
    }

    fn count(&self, action: &str, result: &str) {
        self.metrics.actions.with_label_values(&[action, result]).inc();
    }
}

/// The operations (RFC 6902) that set this bundle in each webhook of a configuration; none if all have it.
fn bundle_patch(configuration: &Value, version: &str, bundle: &str) -> Vec<Value> {
    let webhooks = configuration.get("webhooks").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let mut operations = Vec::new();
    for (index, webhook) in webhooks.iter().enumerate() {
        if webhook.pointer("/clientConfig/caBundle").and_then(Value::as_str) == Some(bundle) {
            continue;
        }
        if operations.is_empty() {
            operations.push(json!({"op": "test", "path": "/metadata/resourceVersion", "value": version}));
        }
        let path = format!("/webhooks/{index}/clientConfig/caBundle");
        operations.push(json!({"op": "add", "path": path, "value": bundle}));
    }
    operations
}

fn fields(stored: &StoredCertificates) -> [(&'static str, &str); 5] {
    let StoredCertificates { bundle, key, next_key, chain, chain_key } = stored;
    [(BUNDLE, bundle), (KEY, key), (NEXT_KEY, next_key), (CHAIN, chain), (CHAIN_KEY, chain_key)]
}

/// Names that were not found, so that each absence is logged once and not in each round.
#[derive(Default)]
struct Missing(BTreeSet<String>);

impl Missing {
    /// Records that `name` does not exist. Returns whether it existed, or was not looked up, in the round before.
    fn is_new(&mut self, name: &str) -> bool {
        self.0.insert(name.to_owned())
    }

    /// Records that `name` exists: its next absence is new.
    fn found(&mut self, name: &str) {
        self.0.remove(name);
    }
}

/// The content of a Secret; entries that are missing or not UTF-8 are empty, and are created again.
fn read(secret: &Secret) -> StoredCertificates {
    let none = BTreeMap::new();
    let data = secret.data.as_ref().unwrap_or(&none);
    let text = |key: &str| data.get(key).and_then(|bytes| String::from_utf8(bytes.0.clone()).ok()).unwrap_or_default();
    StoredCertificates {
        bundle: text(BUNDLE),
        key: text(KEY),
        next_key: text(NEXT_KEY),
        chain: text(CHAIN),
        chain_key: text(CHAIN_KEY),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bundle_patch_replaces_differing_bundles_and_tests_resource_version() {
        let webhook = |bundle: &str| json!({"name": "m", "clientConfig": {"caBundle": bundle}});
        let configuration = json!({"webhooks": [webhook("new"), webhook("old"), {"name": "x", "clientConfig": {}}]});
        let operations = bundle_patch(&configuration, "7", "new");
        assert_eq!(operations[0], json!({"op": "test", "path": "/metadata/resourceVersion", "value": "7"}));
        let paths: Vec<_> = operations.iter().skip(1).map(|operation| operation["path"].as_str().unwrap()).collect();
        assert_eq!(paths, ["/webhooks/1/clientConfig/caBundle", "/webhooks/2/clientConfig/caBundle"]);
        assert!(bundle_patch(&json!({"webhooks": [webhook("new")]}), "7", "new").is_empty());
        assert!(bundle_patch(&json!({}), "7", "new").is_empty());
    }

    #[test]
    fn stored_certificates_round_trip_through_secret() {
        let stored = StoredCertificates {
            bundle: "b".into(),
            key: "k".into(),
            chain: "c".into(),
            ..StoredCertificates::default()
        };
        let data =
            fields(&stored).into_iter().map(|(key, text)| (key.to_owned(), ByteString(text.as_bytes().to_vec())));
        let secret = Secret { data: Some(data.collect()), ..Secret::default() };
        assert_eq!(read(&secret), stored);
        assert_eq!(read(&Secret::default()), StoredCertificates::default());
    }

    #[test]
    fn missing_configuration_is_new_once_until_it_is_found() {
        let mut missing = Missing::default();
        for round in 0..3 {
            assert_eq!(missing.is_new("mutating"), round == 0, "round {round}");
            missing.found("validating");
        }
        missing.found("mutating");
        assert!(missing.is_new("mutating"));
        assert!(missing.is_new("validating"));
    }
}
