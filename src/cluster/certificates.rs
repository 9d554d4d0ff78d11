//! Certificates that we manage ourselves: kept in a Secret, made by the leader, taken over by every replica.
//!
//! The leader writes the Secret and the caBundle of our webhook configurations, and puts both right again when somebody
//! changed them. What to write when is [`crate::tls::rotation`]'s. The Secret is in our own namespace, and so the
//! authority's key never leaves it.

use std::collections::BTreeMap;
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
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::client::Brief;
use super::lease::Leadership;
use super::view::resource;
use crate::runtime::{clock, random};
use crate::spark::labels;
use crate::telemetry::metrics::Metrics;
use crate::tls::load::{BadCertificate, Certificate, load};
use crate::tls::rotation::{self, Kept, Lives, Step};

/// How long a round may take.
const LIMIT: Duration = Duration::from_secs(10);
/// How soon a round is repeated while there is nothing to serve yet.
const SOON: Duration = Duration::from_secs(1);
/// More steps than ever follow each other without a pause.
const MOST_STEPS: u32 = 4;

/// The Secret's keys. Those of the serving certificate are what `kubernetes.io/tls` asks for.
const BUNDLE: &str = "ca.crt";
const KEY: &str = "ca.key";
const NEXT_KEY: &str = "next.key";
const CHAIN: &str = "tls.crt";
const CHAIN_KEY: &str = "tls.key";

/// What is managed.
#[derive(Clone, Debug)]
pub struct Managed {
    /// The Secret's namespace, and its name.
    pub secret: (String, String),
    /// What the serving certificate is for: DNS names and addresses.
    pub names: Vec<String>,
    /// The MutatingWebhookConfiguration whose caBundle is kept, if any.
    pub mutating: Option<String>,
    /// The ValidatingWebhookConfiguration whose caBundle is kept, if any.
    pub validating: Option<String>,
    /// How long things live.
    pub lives: Lives,
    /// How often Secret and configurations are looked at.
    pub every: Duration,
}

/// Keeps the certificate until told to stop. `taken` gets each new one, or why it cannot be served.
pub async fn run(
    client: kube::Client,
    managed: Managed,
    mut leading: watch::Receiver<Option<Arc<Leadership>>>,
    metrics: Arc<Metrics>,
    stop: CancellationToken,
    mut taken: impl FnMut(Result<Certificate, Unfit>) + Send,
) {
    if managed.mutating.is_none() && managed.validating.is_none() {
        tracing::warn!(
            "no configuration of webhooks is named (--mutating-configuration, --validating-configuration): nobody's caBundle is kept"
        );
    }
    let mut keeper = Keeper::new(client, managed, metrics);
    let (mut seen, mut refused, mut serves, mut complained) = (None, None, false, false);
    loop {
        let leadership = leading.borrow_and_update().clone();
        let round = tokio::time::timeout(LIMIT, keeper.round(leadership.as_deref()));
        let outcome = round.await.unwrap_or_else(|_| Err(kube::Error::Service("no answer in time".into())));
        match outcome {
            Ok(kept) => {
                complained = false;
                if let Some(kept) = kept.filter(|kept| seen.as_ref() != Some(kept)) {
                    match servable(&kept, &keeper.managed.names) {
                        Ok(certificate) => {
                            (seen, refused, serves) = (Some(kept), None, true);
                            taken(Ok(certificate));
                        }
                        // Told once, and tried again: it may only not have begun yet.
                        Err(error) if refused.as_ref() != Some(&kept) => {
                            refused = Some(kept);
                            taken(Err(error));
                        }
                        Err(_) => {}
                    }
                }
            }
            Err(error) => {
                if !complained {
                    let (namespace, name) = &keeper.managed.secret;
                    tracing::warn!(error = %Brief(&error), secret = format!("{namespace}/{name}"), "the certificate cannot be looked after; tried again");
                    complained = true;
                }
            }
        }
        let pause = if serves { keeper.managed.every } else { SOON.min(keeper.managed.every) };
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
            Ok(()) = leading.changed() => {}
        }
    }
}

/// The serving certificate, if API servers that trust the kept bundle accept it for our names: what somebody else put
/// there is the leader's to replace and nobody's to serve.
fn servable(kept: &Kept, names: &[String]) -> Result<Certificate, Unfit> {
    let now = clock::now();
    let certificate = load(kept.chain.as_bytes(), kept.chain_key.as_bytes(), now)?;
    if !rotation::verifies(&kept.chain, names, &[&kept.bundle], now) {
        return Err(Unfit::Untrusted(names.join(", ")));
    }
    Ok(certificate)
}

/// What cannot be served out of the Secret.
#[derive(Debug, thiserror::Error)]
pub enum Unfit {
    /// The pair is wrong.
    #[error("{0}")]
    Bad(#[from] BadCertificate),
    /// It is no certificate of our authority for our names.
    #[error("the secret's ca.crt does not vouch for its tls.crt for {0}")]
    Untrusted(String),
}

struct Keeper {
    managed: Managed,
    secrets: Api<Secret>,
    client: kube::Client,
    metrics: Arc<Metrics>,
    /// Whether it was told that a configuration cannot be kept.
    told: bool,
    /// Whether it was told that a configuration is not there.
    missed: bool,
    /// What was kept when it was last whole.
    whole: Option<Kept>,
}

impl Keeper {
    fn new(client: kube::Client, managed: Managed, metrics: Arc<Metrics>) -> Keeper {
        let secrets = Api::namespaced(client.clone(), &managed.secret.0);
        Keeper { managed, secrets, client, metrics, told: false, missed: false, whole: None }
    }

    /// One look, and the writes that are due if we lead. What the Secret has then.
    async fn round(&mut self, leadership: Option<&Leadership>) -> kube::Result<Option<Kept>> {
        let mut secret = self.secrets.get_opt(&self.managed.secret.1).await?;
        if let Some(leadership) = leadership {
            for _ in 0..MOST_STEPS {
                let kept = secret.as_ref().map(read).unwrap_or_default();
                let published = !kept.bundle.is_empty() && self.publish(leadership, &kept.bundle).await;
                let next = self.next(&kept, published, secret.is_some());
                let next = next
                    .map_err(|error| kube::Error::Service(format!("a certificate cannot be made: {error}").into()))?;
                let Some((kept, what)) = next.filter(|_| leadership.holds()) else { break };
                // Nothing is written that would have to be written again at once, for ever.
                let names = &self.managed.names;
                if !rotation::verifies(&kept.chain, names, &[&kept.bundle], clock::now()) {
                    let names = names.join(", ");
                    return Err(kube::Error::Service(format!("no certificate for {names} would be accepted").into()));
                }
                match self.write(leadership, secret.as_ref(), &kept).await {
                    Ok(written) => {
                        self.count("certificate", "ok");
                        tracing::info!(what, secret = self.managed.secret.1, "certificates written");
                        secret = Some(written);
                    }
                    // Somebody wrote in between: looked at again the next time.
                    Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {
                        self.count("certificate", "stale");
                        return Ok(None);
                    }
                    Err(error) => {
                        self.count("certificate", "failed");
                        return Err(error);
                    }
                }
            }
        }
        let kept = secret.as_ref().map(read);
        if let Some(kept) = kept.as_ref().filter(|kept| rotation::is_sound(kept, &self.managed.names, clock::now())) {
            // A key that was deleted on purpose is not put back later, by whomever leads then.
            self.whole = rotation::is_whole(kept, &self.managed.names, clock::now()).then(|| kept.clone());
        }
        Ok(kept)
    }

    /// What is to be kept next, and why.
    ///
    /// A Secret that somebody emptied or spoilt (a GitOps tool that thinks it is its own) gets back what it had. One that
    /// somebody deleted is taken for the wish to have new keys: there will be, without a gap.
    fn next(&self, kept: &Kept, published: bool, exists: bool) -> Result<Option<(Kept, &'static str)>, rcgen::Error> {
        let next = |kept: &Kept, published| {
            let name = format!("spark-usher {}", random::hex(4));
            rotation::next(kept, &self.managed.names, published, &name, clock::now(), self.managed.lives)
        };
        let is_whole = |kept: &Kept| rotation::is_whole(kept, &self.managed.names, clock::now());
        let found = next(kept, published)?;
        if rotation::is_sound(kept, &self.managed.names, clock::now()) {
            return Ok(found.map(|(kept, step)| (kept, step.as_str())));
        }
        let whole = self.whole.as_ref().filter(|whole| is_whole(whole));
        if let Some(whole) = whole {
            if exists {
                return Ok(Some((whole.clone(), "put back: the secret had lost what it kept")));
            }
            let forgotten = Kept { key: String::new(), next_key: String::new(), ..whole.clone() };
            if let Some((kept, Step::Announced)) = next(&forgotten, published)? {
                return Ok(Some((kept, "the secret was deleted: next CA announced")));
            }
        }
        Ok(found.map(|(kept, step)| (kept, step.as_str())))
    }

    async fn write(&self, _: &Leadership, found: Option<&Secret>, kept: &Kept) -> kube::Result<Secret> {
        let mut secret = found.cloned().unwrap_or_else(|| Secret {
            metadata: ObjectMeta {
                name: Some(self.managed.secret.1.clone()),
                namespace: Some(self.managed.secret.0.clone()),
                ..ObjectMeta::default()
            },
            type_: Some("kubernetes.io/tls".to_owned()),
            ..Secret::default()
        });
        // With managedFields in it the API server would take over what others own.
        secret.metadata.managed_fields = None;
        let marks = secret.metadata.labels.get_or_insert_default();
        marks.insert("app.kubernetes.io/name".to_owned(), labels::USHER.to_owned());
        marks.insert(labels::MANAGED_BY.to_owned(), labels::USHER.to_owned());
        let data = secret.data.get_or_insert_default();
        for (key, text) in fields(kept) {
            match text {
                "" => data.remove(key),
                text => data.insert(key.to_owned(), ByteString(text.as_bytes().to_vec())),
            };
        }
        let params = PostParams { field_manager: Some(labels::USHER.to_owned()), ..PostParams::default() };
        match found {
            // The resourceVersion that we read goes with it.
            Some(_) => self.secrets.replace(&self.managed.secret.1, &params, &secret).await,
            None => self.secrets.create(&params, &secret).await,
        }
    }

    /// Writes the bundle into our configurations where they have another. Whether all of them have it now.
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
                    tracing::info!(configuration = name, kind, result, "caBundle written");
                    all &= result == "ok";
                }
                Ok(None) => {}
                Err(error) => {
                    self.count("ca-bundle", "failed");
                    if !std::mem::replace(&mut self.told, true) {
                        tracing::warn!(configuration = name, kind, error = %Brief(&error), "its caBundle cannot be kept; tried again");
                    }
                    return false;
                }
            }
        }
        self.told &= !all;
        all
    }

    /// What came of a write; nothing where there was nothing to write.
    async fn publish_in(
        &mut self,
        leadership: &Leadership,
        api: &Api<DynamicObject>,
        name: &str,
        bundle: &str,
    ) -> kube::Result<Option<&'static str>> {
        // One that is not installed trusts nobody, and nobody waits for it.
        let Some(found) = api.get_opt(name).await? else {
            if !std::mem::replace(&mut self.missed, true) {
                tracing::warn!(
                    configuration = name,
                    "there is no such configuration of webhooks, and so no caBundle to keep"
                );
            }
            return Ok(None);
        };
        self.missed = false;
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
        let params = PatchParams { field_manager: Some(labels::USHER.to_owned()), ..PatchParams::default() };
        match api.patch(name, &params, &Patch::<()>::Json(patch)).await {
            Ok(_) => Ok(Some("ok")),
            // Changed or gone in between.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(Some("stale")),
            // A test that failed is 422, and so is what an admission policy denies.
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

/// The operations (RFC 6902) that give each webhook of a configuration this bundle; none where all have it.
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

fn fields(kept: &Kept) -> [(&'static str, &str); 5] {
    let Kept { bundle, key, next_key, chain, chain_key } = kept;
    [(BUNDLE, bundle), (KEY, key), (NEXT_KEY, next_key), (CHAIN, chain), (CHAIN_KEY, chain_key)]
}

/// What a Secret holds; what is missing or no text is empty, and made anew.
fn read(secret: &Secret) -> Kept {
    let none = BTreeMap::new();
    let data = secret.data.as_ref().unwrap_or(&none);
    let text = |key: &str| data.get(key).and_then(|bytes| String::from_utf8(bytes.0.clone()).ok()).unwrap_or_default();
    Kept {
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
    fn a_bundle_is_written_where_it_differs_and_only_onto_what_was_seen() {
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
    fn what_is_kept_is_read_again() {
        let kept = Kept { bundle: "b".into(), key: "k".into(), chain: "c".into(), ..Kept::default() };
        let data = fields(&kept).into_iter().map(|(key, text)| (key.to_owned(), ByteString(text.as_bytes().to_vec())));
        let secret = Secret { data: Some(data.collect()), ..Secret::default() };
        assert_eq!(read(&secret), kept);
        assert_eq!(read(&Secret::default()), Kept::default());
    }
}
