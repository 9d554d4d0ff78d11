//! The key of our signatures, in a Secret in our own namespace: the first replica creates it, every replica reads it.
//!
//! If the Secret is deleted, a replica creates it again with the key that it has; if it is damaged, the leader restores that key.
//! A new key that an administrator writes there is used: signatures of the old key are not valid from then on.
//!
//! While nothing vouches for signatures ([`vouching`](super::vouching)), nothing is signed and no signature is believed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, PostParams};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::lease::{Leadership, LeadershipReceiver};
use super::metrics::Metrics;
use super::vouching::{Account, Belief, Vouched, Vouching};
use super::watch::WatchMessage;
use usher_core::annotations;
use usher_core::signature::{Key, SECRET_LEN};
use usher_core::snapshot::{Change, RelatedChange};
use usher_kube::client::Brief;
use usher_kube::request::{Result, call};
use usher_runtime::ready::Latch;
use usher_runtime::{clock, random};
use usher_spark::time::Now;

/// Timeout of a round.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// How soon the Secret is read again while there is no key; each time after twice this delay, up to [`POLL_INTERVAL`].
const RETRY_INTERVAL: Duration = Duration::from_millis(500);
/// How often the Secret is read once there is a key.
const POLL_INTERVAL: Duration = Duration::from_secs(10);
/// A replica without a key for this long is ready without it, and does not sign its decisions.
const READY_WITHOUT_KEY_AFTER: Duration = Duration::from_secs(30);
/// How long what was read is believed while it cannot be read again: the policy may have been deleted.
const BELIEVED_FOR: Duration = Duration::from_secs(120);
/// How long the first round waits for our own user name, without which nothing vouches.
const ACCOUNT_WAIT: Duration = Duration::from_secs(2);
/// The Secret's entry: 32 random bytes.
const ENTRY: &str = "signing.key";

/// How decisions are signed.
#[derive(Clone, Debug)]
pub struct Signing {
    /// The namespace of the Secret that contains the key.
    pub namespace: String,
    /// Its name.
    pub secret: String,
    /// What may vouch for signatures.
    pub vouching: Vouching,
}

type KeyBytes = [u8; SECRET_LEN];

/// Where the key is passed on, and what is shown about it.
pub(super) struct Outputs {
    /// The snapshot's changes.
    pub(super) changes: mpsc::Sender<WatchMessage>,
    /// Opened once it is known whether this replica signs.
    pub(super) ready: Latch,
    /// Whether something vouches for signatures.
    pub(super) metrics: Arc<Metrics>,
}

/// Reads the key and what vouches for signatures, and restores the key in its Secret while this replica leads, until `stop` is
/// cancelled.
pub(super) async fn run(
    client: kube::Client,
    signing: Signing,
    account: Account,
    mut leadership: LeadershipReceiver,
    outputs: Outputs,
    stop: CancellationToken,
) {
    let Signing { namespace, secret, vouching } = signing;
    let controller = SigningKeyController { api: Api::namespaced(client.clone(), &namespace), name: secret };
    let begin = clock::instant();
    let _ = tokio::time::timeout(ACCOUNT_WAIT, vouching.account_known(&account)).await;
    let (mut known, mut vouched): (Option<KeyBytes>, Option<Vouched>) = (None, None);
    let (mut key_reads, mut policy_reads) = (Reads::new(), Reads::new());
    let (mut belief, mut passed_on) = (Belief::default(), None);
    let mut soon = RETRY_INTERVAL;
    loop {
        leadership.receive();
        let held = leadership.received().map(|held| &**held);
        // Each for itself: what vouches is known also where the Secret cannot be read.
        let key = call(REQUEST_TIMEOUT, controller.reconcile(held, known));
        let policy = call(REQUEST_TIMEOUT, vouching.read(&client, &account));
        let (key, policy) = tokio::join!(key, policy);
        let failed = format!("cannot read or write Secret {} of the signing key; retrying", controller.name);
        if let Some(found) = key_reads.ended(key, &failed).flatten() {
            if known.is_some_and(|known| known != found) {
                tracing::warn!(
                    secret = controller.name,
                    "the signing key changed: earlier signatures are no longer valid"
                );
            }
            known = Some(found);
        }
        let read = policy_reads.ended(policy, "cannot read the creator policy; retrying").flatten();
        let at = Now { at: clock::instant(), wall: clock::now() };
        let mut now = read.map(|read| belief.judge(read, vouching.settle, at));
        if vouched.is_some() && clock::instant().duration_since(policy_reads.last) >= BELIEVED_FOR {
            now = Some(Vouched::Nothing(format!(
                "the creator policy could not be read for {} s",
                BELIEVED_FOR.as_secs()
            )));
        }
        if let Some(now) = now.filter(|now| vouched.as_ref() != Some(now)) {
            report(&now, &outputs.metrics);
            vouched = Some(now);
        }
        let by = known.zip(vouched.as_ref()).and_then(|(key, vouched)| match vouched {
            Vouched::By(by) => Some((key, by.clone())),
            Vouched::Soon(_) | Vouched::Nothing(_) => None,
        });
        if passed_on != by {
            let key = by.as_ref().map(|(key, by)| Key::vouched_by(key, by));
            let change = WatchMessage::Change(Change::Related(RelatedChange::SigningKey(key)));
            if outputs.changes.send(change).await.is_err() {
                return stop.cancelled().await;
            }
            passed_on = by;
        }
        // Also if nothing vouches: that may stay so.
        if known.is_some() && matches!(vouched, Some(Vouched::By(_) | Vouched::Nothing(_))) {
            outputs.ready.open();
        }
        if !outputs.ready.is_open() && clock::instant().duration_since(begin) >= READY_WITHOUT_KEY_AFTER {
            let lacks = match known {
                None => "the signing key",
                Some(_) => "what vouches for signatures: our own user name or the creator policy",
            };
            tracing::error!(
                secret = controller.name,
                "this replica could not read {lacks}: it does not sign its decisions, and a changed policy file applies to running applications"
            );
            outputs.ready.open();
        }
        let pause = match &vouched {
            Some(Vouched::Soon(rest)) if known.is_some() => *rest,
            Some(Vouched::By(_)) if known.is_some() => POLL_INTERVAL,
            _ => soon,
        };
        soon = POLL_INTERVAL.min(soon * 2);
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
            true = leadership.changed() => {}
        }
    }
}

/// The reads of one kind of object.
struct Reads {
    last: Instant,
    is_reported: bool,
}

impl Reads {
    fn new() -> Reads {
        Reads { last: clock::instant(), is_reported: false }
    }

    /// What was read. The first of several errors in a row is logged.
    fn ended<T>(&mut self, result: Result<T>, failed: &str) -> Option<T> {
        match result {
            Ok(read) => {
                *self = Reads::new();
                Some(read)
            }
            Err(error) => {
                if !std::mem::replace(&mut self.is_reported, true) {
                    tracing::warn!(error = %Brief(&error), "{failed}");
                }
                None
            }
        }
    }
}

fn report(vouched: &Vouched, metrics: &Metrics) {
    metrics.signatures_believed.set(i64::from(matches!(vouched, Vouched::By(_))));
    match vouched {
        Vouched::By(_) => {
            tracing::info!("signatures are believed: the creator policy, or client certificates, vouch for them")
        }
        Vouched::Soon(rest) => {
            tracing::info!(
                seconds = rest.as_secs(),
                "signatures are believed soon: the creator policy is new or changed"
            )
        }
        Vouched::Nothing(reason) => tracing::warn!(
            reason,
            "decisions are not signed, and no signature is believed: install the creator policy (the chart does; or spark-usher policy --creator)"
        ),
    }
}

struct SigningKeyController {
    api: Api<Secret>,
    name: String,
}

impl SigningKeyController {
    /// Returns the key in the Secret, which this replica may have written just now.
    async fn reconcile(&self, leadership: Option<&Leadership>, known: Option<KeyBytes>) -> Result<Option<KeyBytes>> {
        let found = self.api.get_opt(&self.name).await?;
        if let Some(secret) = found.as_ref().and_then(read) {
            return Ok(Some(secret));
        }
        let key = known.unwrap_or_else(random::bytes);
        let written = match (found, leadership.filter(|leadership| leadership.holds())) {
            // In any replica: of two creates the API server accepts one, and the other replica reads that key.
            (None, _) => self.create(key).await,
            (Some(found), Some(leadership)) => self.restore(leadership, found, key).await,
            (Some(_), None) => return Ok(None),
        };
        match written {
            Ok(written) => {
                tracing::info!(secret = self.name, "signing key written");
                Ok(read(&written))
            }
            // Another replica wrote meanwhile: the next round reads the Secret again.
            Err(error) if error.is_stale() => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn create(&self, key: KeyBytes) -> Result<Secret> {
        let name = ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() };
        Ok(self.api.create(&params(), &filled(Secret { metadata: name, ..Secret::default() }, key)).await?)
    }

    /// Restores the key. The write carries the resourceVersion that was read.
    async fn restore(&self, _: &Leadership, mut found: Secret, key: KeyBytes) -> Result<Secret> {
        found.metadata.managed_fields = None;
        Ok(self.api.replace(&self.name, &params(), &filled(found, key)).await?)
    }
}

fn params() -> PostParams {
    PostParams { field_manager: Some(annotations::USHER.to_owned()), ..PostParams::default() }
}

fn filled(mut secret: Secret, key: KeyBytes) -> Secret {
    let labels = secret.metadata.labels.get_or_insert_default();
    labels.insert(annotations::MANAGED_BY.to_owned(), annotations::USHER.to_owned());
    secret.data.get_or_insert_default().insert(ENTRY.to_owned(), ByteString(key.to_vec()));
    secret
}

/// The key in a Secret; `None` if there is none, or something else.
fn read(secret: &Secret) -> Option<KeyBytes> {
    let bytes = &secret.data.as_ref()?.get(ENTRY)?.0;
    bytes.as_slice().try_into().ok()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use arc_swap::ArcSwapOption;

    use tokio::sync::watch;

    use super::super::lease::ElectionState;
    use super::*;
    use usher_core::manifests::creator_policy;
    use usher_net::telemetry::registry::Registry;

    /// The Secret cannot be created either, as in a namespace that is being deleted.
    #[tokio::test(start_paused = true)]
    async fn absent_secret_is_read_with_backoff() {
        let reads = Arc::new(AtomicUsize::new(0));
        let counted = reads.clone();
        let service = tower::service_fn(move |request: hyper::Request<kube::client::Body>| {
            counted.fetch_add(usize::from(request.method() == "GET"), Ordering::Relaxed);
            let status = r#"{"kind":"Status","status":"Failure","reason":"NotFound","code":404}"#;
            let body = http_body_util::Full::new(bytes::Bytes::from(status));
            async { Ok::<_, std::convert::Infallible>(hyper::Response::builder().status(404).body(body).unwrap()) }
        });
        let client = kube::Client::new(service, "n");
        let signing = Signing {
            namespace: "n".into(),
            secret: "s".into(),
            vouching: Vouching { policy: "p".into(), settle: Duration::ZERO, client_certificates: true },
        };
        let ((_state, election), (changes, _receiver)) = (watch::channel(ElectionState::NoLeader), mpsc::channel(1));
        let leading = LeadershipReceiver::new(election);
        let metrics = Arc::new(Metrics::register(&Registry::default()).unwrap());
        let outputs = Outputs { changes, ready: Latch::default(), metrics };
        let run = run(client, signing, Account::default(), leading, outputs, CancellationToken::new());
        assert!(tokio::time::timeout(Duration::from_secs(3), run).await.is_err());
        assert_eq!(reads.load(Ordering::Relaxed), 3, "immediately, after 0.5 s and after 1 s more");
    }

    /// The policy is read even if the Secret cannot be read. If neither can be read, the last state counts for two minutes.
    #[tokio::test(start_paused = true)]
    async fn policy_is_believed_for_two_minutes_without_being_read_and_whatever_becomes_of_the_secret() {
        const ACCOUNT: &str = "system:serviceaccount:n:usher";
        let is_down = Arc::new(AtomicBool::new(false));
        let down = is_down.clone();
        let service = tower::service_fn(move |request: hyper::Request<kube::client::Body>| {
            let path = request.uri().path().to_owned();
            let (kind, name) =
                (path.contains("policybindings"), path.rsplit('/').next().unwrap_or_default().to_owned());
            let all = creator_policy::manifests("p", ACCOUNT).unwrap();
            let mut found = all.into_iter().find(|object| {
                object["kind"].as_str().unwrap().ends_with("Binding") == kind && object["metadata"]["name"] == *name
            });
            if let Some(object) = &mut found {
                object["metadata"]["creationTimestamp"] = "2020-01-01T00:00:00Z".into();
            }
            let found = found.filter(|_| !down.load(Ordering::Relaxed));
            let status = r#"{"kind":"Status","status":"Failure","reason":"InternalError","code":500}"#;
            let code = if found.is_some() { 200 } else { 500 };
            let body =
                http_body_util::Full::new(bytes::Bytes::from(found.map_or(status.into(), |found| found.to_string())));
            async move { Ok::<_, std::convert::Infallible>(hyper::Response::builder().status(code).body(body).unwrap()) }
        });
        let client = kube::Client::new(service, "n");
        let vouching = Vouching { policy: "p".into(), settle: Duration::ZERO, client_certificates: false };
        let signing = Signing { namespace: "n".into(), secret: "s".into(), vouching };
        let ((_state, election), (changes, _receiver)) = (watch::channel(ElectionState::NoLeader), mpsc::channel(1));
        let metrics = Arc::new(Metrics::register(&Registry::default()).unwrap());
        let outputs = Outputs { changes, ready: Latch::default(), metrics: metrics.clone() };
        let account: Account = Arc::new(ArcSwapOption::from_pointee(ACCOUNT.to_owned()));
        let leading = LeadershipReceiver::new(election);
        let mut running = Box::pin(run(client, signing, account, leading, outputs, CancellationToken::new()));
        let mut believed_after = async |seconds| {
            assert!(tokio::time::timeout(Duration::from_secs(seconds), &mut running).await.is_err());
            metrics.signatures_believed.get() == 1
        };
        assert!(believed_after(5).await);
        is_down.store(true, Ordering::Relaxed);
        assert!(believed_after(110).await);
        assert!(!believed_after(25).await);
        is_down.store(false, Ordering::Relaxed);
        assert!(believed_after(11).await);
    }

    #[test]
    fn signing_key_of_wrong_length_is_ignored() {
        let with = |bytes: &[u8]| Secret {
            data: Some([(ENTRY.to_owned(), ByteString(bytes.to_vec()))].into()),
            ..Secret::default()
        };
        assert_eq!(read(&with(&[7; SECRET_LEN])), Some([7; SECRET_LEN]));
        for secret in [Secret::default(), with(&[]), with(&[7; 31]), with(&[7; 33])] {
            assert_eq!(read(&secret), None);
        }
    }
}
