//! The key of our signatures, in a Secret in our own namespace: the first replica creates it, every replica reads it.
//!
//! If the Secret is deleted, a replica creates it again with the key that it has; if it is damaged, the leader restores that key.
//! A new key that an administrator writes there is used: signatures of the old key are not valid from then on.

use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, PostParams};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::client::Brief;
use super::lease::{Leadership, LeadershipReceiver};
use super::request::{Result, call};
use super::watch::WatchMessage;
use crate::annotations;
use crate::runtime::ready::Latch;
use crate::runtime::{clock, random};
use crate::signature::{Key, SECRET_LEN};
use crate::snapshot::{Change, RelatedChange};

/// Timeout of a round.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// How soon the Secret is read again while there is no key; each time after twice this delay, up to [`POLL_INTERVAL`].
const RETRY_INTERVAL: Duration = Duration::from_millis(500);
/// How often the Secret is read once there is a key.
const POLL_INTERVAL: Duration = Duration::from_secs(10);
/// A replica without a key for this long is ready without it, and does not sign its decisions.
const READY_WITHOUT_KEY_AFTER: Duration = Duration::from_secs(30);
/// The Secret's entry: 32 random bytes.
const ENTRY: &str = "signing.key";

/// The Secret that contains the key.
#[derive(Clone, Debug)]
pub struct SigningSecret {
    /// The Secret's namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

type KeyBytes = [u8; SECRET_LEN];

/// Reads the key, and restores it in its Secret while this replica leads, until `stop` is cancelled. Opens `ready` once the key
/// was passed on.
pub(super) async fn run(
    client: kube::Client,
    secret: SigningSecret,
    mut leadership: LeadershipReceiver,
    changes: mpsc::Sender<WatchMessage>,
    ready: Latch,
    stop: CancellationToken,
) {
    let controller = SigningKeyController { api: Api::namespaced(client, &secret.namespace), name: secret.name };
    let begin = clock::instant();
    let (mut known, mut is_reported) = (None, false);
    let mut soon = RETRY_INTERVAL;
    loop {
        leadership.receive();
        let held = leadership.received().map(|held| &**held);
        match call(REQUEST_TIMEOUT, controller.reconcile(held, known)).await {
            Ok(found) => {
                is_reported = false;
                if let Some(found) = found.filter(|found| known.as_ref() != Some(found)) {
                    if known.replace(found).is_some() {
                        tracing::warn!(
                            secret = controller.name,
                            "the signing key changed: earlier signatures are not valid any more"
                        );
                    }
                    if changes
                        .send(WatchMessage::Change(Change::Related(RelatedChange::SigningKey(Key::new(&found)))))
                        .await
                        .is_err()
                    {
                        return stop.cancelled().await;
                    }
                    ready.open();
                }
            }
            Err(error) if !is_reported => {
                is_reported = true;
                tracing::warn!(error = %Brief(&error), secret = controller.name, "cannot read or write the signing key; retrying");
            }
            Err(_) => {}
        }
        if known.is_none() && !ready.is_open() && clock::instant().duration_since(begin) >= READY_WITHOUT_KEY_AFTER {
            tracing::error!(
                secret = controller.name,
                "no signing key: this replica does not sign its decisions, and a changed policy file applies to running applications"
            );
            ready.open();
        }
        let pause = if known.is_some() { POLL_INTERVAL } else { soon };
        soon = POLL_INTERVAL.min(soon * 2);
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
            true = leadership.changed() => {}
        }
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
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::watch;

    use super::super::lease::ElectionState;
    use super::*;

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
        let secret = SigningSecret { namespace: "n".into(), name: "s".into() };
        let ((_state, election), (changes, _receiver)) = (watch::channel(ElectionState::NoLeader), mpsc::channel(1));
        let leading = LeadershipReceiver::new(election);
        let run = run(client, secret, leading, changes, Latch::default(), CancellationToken::new());
        assert!(tokio::time::timeout(Duration::from_secs(3), run).await.is_err());
        assert_eq!(reads.load(Ordering::Relaxed), 3, "immediately, after 0.5 s and after 1 s more");
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
