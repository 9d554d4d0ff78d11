//! The key of our signatures, kept in a Secret of our own namespace: made by the first replica, read by every one.
//!
//! A Secret that is deleted or spoilt gets the key back that a replica has. A new key that somebody puts there on purpose
//! is taken over: what was signed with the old one proves nothing from then on.

use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, PostParams};
use std::sync::Arc;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::client::Brief;
use super::lease::Leadership;
use super::watch::News;
use crate::runtime::ready::Latch;
use crate::runtime::{clock, random};
use crate::signature::{Key, SECRET_LEN};
use crate::snapshot::Change;
use crate::spark::labels;

/// How long one look may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// How soon it is tried again while there is no key; each time after a pause twice as long, up to [`POLL_INTERVAL`].
const SOON: Duration = Duration::from_millis(500);
/// How often the Secret is read once there is one.
const POLL_INTERVAL: Duration = Duration::from_secs(10);
/// A replica that cannot read the Secret for so long is ready without it: what it places is not signed.
const PATIENCE: Duration = Duration::from_secs(30);
/// The Secret's entry: 32 random bytes.
const ENTRY: &str = "signing.key";

/// Where the key is kept.
#[derive(Clone, Debug)]
pub struct SigningSecret {
    /// The Secret's namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

type Secretly = [u8; SECRET_LEN];

/// Reads the key, and keeps it in its Secret while this replica leads, until told to stop. `ready` is opened once the key
/// was handed over.
pub(super) async fn run(
    client: kube::Client,
    secret: SigningSecret,
    mut leading: watch::Receiver<Option<Arc<Leadership>>>,
    changes: mpsc::Sender<News>,
    ready: Latch,
    stop: CancellationToken,
) {
    let keeper = Keeper { api: Api::namespaced(client, &secret.namespace), name: secret.name };
    let begin = clock::instant();
    let (mut known, mut complained) = (None, false);
    let mut soon = SOON;
    loop {
        let leadership = leading.borrow_and_update().clone();
        let round = tokio::time::timeout(REQUEST_TIMEOUT, keeper.round(leadership.as_deref(), known)).await;
        match round.unwrap_or_else(|_| Err(kube::Error::Service("no answer in time".into()))) {
            Ok(found) => {
                complained = false;
                if let Some(found) = found.filter(|found| known.as_ref() != Some(found)) {
                    if known.replace(found).is_some() {
                        tracing::warn!(
                            secret = keeper.name,
                            "the signing key has changed: earlier signatures prove nothing"
                        );
                    }
                    if changes.send(News::Change(Change::SigningKey(Key::new(&found)))).await.is_err() {
                        return stop.cancelled().await;
                    }
                    ready.open();
                }
            }
            Err(error) if !complained => {
                complained = true;
                tracing::warn!(error = %Brief(&error), secret = keeper.name, "the signing key cannot be read or written; tried again");
            }
            Err(_) => {}
        }
        if known.is_none() && !ready.is_open() && clock::instant().duration_since(begin) >= PATIENCE {
            tracing::error!(
                secret = keeper.name,
                "no signing key: what this replica places is not signed, and a policy that changes moves running applications"
            );
            ready.open();
        }
        let pause = if known.is_some() { POLL_INTERVAL } else { soon };
        soon = POLL_INTERVAL.min(soon * 2);
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
            Ok(()) = leading.changed() => {}
        }
    }
}

struct Keeper {
    api: Api<Secret>,
    name: String,
}

impl Keeper {
    /// The key that the Secret has, or has now because we lead and wrote it.
    async fn round(&self, leadership: Option<&Leadership>, known: Option<Secretly>) -> kube::Result<Option<Secretly>> {
        let found = self.api.get_opt(&self.name).await?;
        if let Some(secret) = found.as_ref().and_then(read) {
            return Ok(Some(secret));
        }
        let key = known.unwrap_or_else(random::bytes);
        let written = match (found, leadership.filter(|leadership| leadership.holds())) {
            // Whoever is first: of two the API server takes one, and the other reads that one's.
            (None, _) => self.create(key).await,
            (Some(found), Some(leadership)) => self.restore(leadership, found, key).await,
            (Some(_), None) => return Ok(None),
        };
        match written {
            Ok(written) => {
                tracing::info!(secret = self.name, "signing key written");
                Ok(read(&written))
            }
            // Somebody wrote in between: read again the next time.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn create(&self, key: Secretly) -> kube::Result<Secret> {
        let name = ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() };
        self.api.create(&params(), &filled(Secret { metadata: name, ..Secret::default() }, key)).await
    }

    /// Puts the key back. The resourceVersion that was read goes with it.
    async fn restore(&self, _: &Leadership, mut found: Secret, key: Secretly) -> kube::Result<Secret> {
        found.metadata.managed_fields = None;
        self.api.replace(&self.name, &params(), &filled(found, key)).await
    }
}

fn params() -> PostParams {
    PostParams { field_manager: Some(labels::USHER.to_owned()), ..PostParams::default() }
}

fn filled(mut secret: Secret, key: Secretly) -> Secret {
    let marks = secret.metadata.labels.get_or_insert_default();
    marks.insert(labels::MANAGED_BY.to_owned(), labels::USHER.to_owned());
    secret.data.get_or_insert_default().insert(ENTRY.to_owned(), ByteString(key.to_vec()));
    secret
}

/// The key in a Secret; `None` where there is none, or something else.
fn read(secret: &Secret) -> Option<Secretly> {
    let bytes = &secret.data.as_ref()?.get(ENTRY)?.0;
    bytes.as_slice().try_into().ok()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Neither can it be created, as in a namespace that is being deleted.
    #[tokio::test(start_paused = true)]
    async fn a_secret_that_is_absent_is_read_ever_more_rarely() {
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
        let ((_leads, leading), (changes, _news)) = (watch::channel(None), mpsc::channel(1));
        let run = run(client, secret, leading, changes, Latch::default(), CancellationToken::new());
        assert!(tokio::time::timeout(Duration::from_secs(3), run).await.is_err());
        assert_eq!(reads.load(Ordering::Relaxed), 3, "at once, after 0.5 s and after 1 s more");
    }

    #[test]
    fn only_a_key_of_the_right_length_is_one() {
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
