//! Finds the namespace of a review before the watch has shown it.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use kube::Client;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use crate::cluster::lookup_reads::namespace;
use crate::http::gate::Gate;
use crate::http::handlers::Namespaces;
use usher_core::snapshot::{Namespace, Snapshot};

/// The pauses before each read of the snapshot: the watch has 50 ms to deliver the namespace, as in the admission plugin
/// NamespaceLifecycle of the API server.
const LOOKS: [Duration; 4] =
    [Duration::from_millis(5), Duration::from_millis(10), Duration::from_millis(15), Duration::from_millis(20)];
/// The longest time of a request.
const REQUEST: Duration = Duration::from_secs(1);
/// Requests at the same time, and the pause after each: at most 80 per second. Any client of the port can name namespaces, so
/// peers take turns.
const MAX_REQUESTS: usize = 4;
const PAUSE: Duration = Duration::from_millis(50);

/// Looks into the snapshot for a moment, then asks the API server.
#[derive(Debug)]
pub(super) struct NewNamespaces(Arc<Finder>);

struct Finder {
    snapshot: Arc<ArcSwap<Snapshot>>,
    client: Client,
    /// The connections of the client belong to this runtime: the webhook's own can be occupied.
    runtime: Handle,
    gate: Gate,
    /// Reviews of one namespace share a request, unless they are of different peers: a peer whose turn comes late does not delay others.
    requested: Mutex<HashMap<(IpAddr, Arc<str>), Request>>,
}

type Request = Shared<BoxFuture<'static, Option<Arc<Namespace>>>>;

impl std::fmt::Debug for Finder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Finder").finish_non_exhaustive()
    }
}

impl NewNamespaces {
    /// Of the current runtime.
    pub(super) fn new(snapshot: Arc<ArcSwap<Snapshot>>, client: Client) -> NewNamespaces {
        NewNamespaces(Arc::new(Finder {
            snapshot,
            client,
            runtime: Handle::current(),
            gate: Gate::new(MAX_REQUESTS),
            requested: Mutex::default(),
        }))
    }
}

impl Namespaces for NewNamespaces {
    fn find(&self, name: Arc<str>, peer: IpAddr) -> BoxFuture<'static, Option<Arc<Namespace>>> {
        let finder = self.0.clone();
        async move { finder.find(name, peer).await }.boxed()
    }
}

impl Finder {
    async fn find(self: &Arc<Self>, name: Arc<str>, peer: IpAddr) -> Option<Arc<Namespace>> {
        for look in LOOKS {
            sleep(look).await;
            if let Some(observed) = self.snapshot.load().namespace(&name) {
                return Some(observed.clone());
            }
        }
        self.request((peer, name)).await
    }

    fn requested(&self) -> MutexGuard<'_, HashMap<(IpAddr, Arc<str>), Request>> {
        self.requested.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The request for a namespace; without a result if too many wait for their turn.
    fn request(self: &Arc<Self>, key: (IpAddr, Arc<str>)) -> Request {
        let mut requested = self.requested();
        if let Some(request) = requested.get(&key) {
            return request.clone();
        }
        let (done, found) = oneshot::channel();
        let request = found.map(|found: Result<Option<Arc<Namespace>>, _>| found.ok().flatten()).boxed().shared();
        requested.insert(key.clone(), request.clone());
        let entry = Entry { finder: self.clone(), key };
        // The task is not joined: its time is limited, and other reviews of the namespace may still wait for it.
        self.runtime.spawn(async move {
            let (finder, (peer, name)) = (entry.finder.clone(), entry.key.clone());
            let Some(_permit) = finder.gate.enter(peer).await else { return };
            let found = timeout(REQUEST, namespace(finder.client.clone(), name)).await.ok().flatten();
            drop(entry);
            let _ = done.send(found.map(Arc::new));
            sleep(PAUSE).await;
        });
        request
    }
}

/// An entry of [`Finder::requested`], removed on drop.
struct Entry {
    finder: Arc<Finder>,
    key: (IpAddr, Arc<str>),
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.finder.requested().remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use bytes::Bytes;
    use futures::future::join_all;
    use http_body_util::Full;
    use hyper::{Request, Response};
    use kube::client::Body;

    use super::*;
    use usher_runtime::clock;

    /// The requests that were sent, those that wait for their response, and the most of these at the same time.
    #[derive(Default)]
    struct Requests {
        sent: AtomicUsize,
        open: AtomicUsize,
        max: AtomicUsize,
    }

    /// An API server that has every namespace but `missing`, and responds after 10 ms.
    fn finder(requests: Arc<Requests>) -> NewNamespaces {
        let service = tower::service_fn(move |request: Request<Body>| {
            let requests = requests.clone();
            async move {
                requests.sent.fetch_add(1, SeqCst);
                requests.max.fetch_max(requests.open.fetch_add(1, SeqCst) + 1, SeqCst);
                sleep(Duration::from_millis(10)).await;
                requests.open.fetch_sub(1, SeqCst);
                let name = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
                let metadata = format!(r#"{{"name":"{name}","uid":"u","labels":{{"team":"{name}"}}}}"#);
                let text = format!(r#"{{"apiVersion":"v1","kind":"Namespace","metadata":{metadata}}}"#);
                let status = if name == "missing" { 404 } else { 200 };
                Response::builder().status(status).body(Full::new(Bytes::from(text)))
            }
        });
        NewNamespaces::new(Arc::default(), Client::new(service, "default"))
    }

    fn peer(n: u8) -> IpAddr {
        [10, 0, 0, n].into()
    }

    #[tokio::test(start_paused = true)]
    async fn reviews_of_one_namespace_share_a_request() {
        let requests = Arc::<Requests>::default();
        let namespaces = finder(requests.clone());
        let found = join_all((0..100).map(|_| namespaces.find("team-a".into(), peer(1)))).await;
        assert!(found.iter().all(|found| found.as_ref().is_some_and(|found| found.labels["team"] == *"team-a")));
        assert_eq!(requests.sent.load(SeqCst), 1);
        assert!(namespaces.find("missing".into(), peer(1)).await.is_none());
        assert!(namespaces.find("not/a/name".into(), peer(1)).await.is_none());
        assert_eq!(requests.sent.load(SeqCst), 2, "only valid names are requested");
    }

    #[tokio::test(start_paused = true)]
    async fn few_requests_are_sent_at_the_same_time_and_peers_take_turns() {
        let requests = Arc::<Requests>::default();
        let namespaces = finder(requests.clone());
        // Three peers name random namespaces, as many as they can.
        let flood = (0..3000u16).map(|n| namespaces.find(format!("random-{n}").into(), peer((n % 3) as u8 + 10)));
        let mut flooding = tokio::task::JoinSet::new();
        flooding.spawn(join_all(flood));
        sleep(Duration::from_millis(200)).await;
        let begin = clock::instant();
        assert!(namespaces.find("team-a".into(), peer(1)).await.is_some());
        let took = clock::instant().saturating_duration_since(begin);
        assert!(took < Duration::from_millis(150), "{took:?}");
        assert_eq!(requests.max.load(SeqCst), MAX_REQUESTS);
        let found = flooding.join_all().await.into_iter().flatten().flatten().count();
        assert!((200..300).contains(&found), "{found}: too many waited for the others");
        sleep(Duration::from_secs(1)).await;
        assert!(namespaces.0.requested().is_empty());
    }
}
