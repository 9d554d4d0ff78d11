//! Finds the namespace of a review before the watch has shown it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use kube::Client;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::{sleep, timeout};

use crate::cluster::lookups::namespace;
use crate::http::handlers::Namespaces;
use crate::runtime::clock;
use crate::snapshot::{Namespace, Snapshot};

/// The watch is given this long, as Kubernetes' own NamespaceLifecycle does.
const WATCH: Duration = Duration::from_millis(50);
const LOOK: Duration = Duration::from_millis(5);
/// Reviews that wait, and namespaces that are requested. Anybody who reaches the port can name namespaces: beyond it, the strictest
/// policy decides immediately.
const MAX_WAITING: usize = 1_024;
const MAX_REQUESTED: usize = 64;
/// The longest time of a request.
const REQUEST: Duration = Duration::from_secs(1);
/// Requests at the same time, and the pause after each: at most 80 per second.
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
    waiting: Semaphore,
    requests: Semaphore,
    /// Reviews of one namespace share a request.
    requested: Mutex<HashMap<Arc<str>, Request>>,
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
            waiting: Semaphore::new(MAX_WAITING),
            requests: Semaphore::new(MAX_REQUESTS),
            requested: Mutex::default(),
        }))
    }
}

impl Namespaces for NewNamespaces {
    fn find(&self, name: Arc<str>) -> BoxFuture<'static, Option<Arc<Namespace>>> {
        let finder = self.0.clone();
        async move {
            let _waiting = finder.waiting.try_acquire().ok()?;
            finder.find(&name).await
        }
        .boxed()
    }
}

impl Finder {
    async fn find(self: &Arc<Self>, name: &Arc<str>) -> Option<Arc<Namespace>> {
        let until = clock::instant() + WATCH;
        while clock::instant() < until {
            sleep(LOOK).await;
            if let Some(observed) = self.snapshot.load().namespace(name) {
                return Some(observed.clone());
            }
        }
        self.request(name)?.await
    }

    /// The request for a namespace; `None` if there are too many.
    fn request(self: &Arc<Self>, name: &Arc<str>) -> Option<Request> {
        let mut requested = self.requested.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(request) = requested.get(name) {
            return Some(request.clone());
        }
        if requested.len() >= MAX_REQUESTED {
            return None;
        }
        let (done, found) = oneshot::channel();
        let request = found.map(|found: Result<Option<Arc<Namespace>>, _>| found.ok().flatten()).boxed().shared();
        requested.insert(name.clone(), request.clone());
        let (finder, name) = (self.clone(), name.clone());
        // The task is not joined: its time is limited, and other reviews of the namespace may still wait for it.
        self.runtime.spawn(async move {
            let _permit = finder.requests.acquire().await;
            let found = timeout(REQUEST, namespace(finder.client.clone(), name.clone())).await.ok().flatten();
            finder.requested.lock().unwrap_or_else(PoisonError::into_inner).remove(&name);
            let _ = done.send(found.map(Arc::new));
            sleep(PAUSE).await;
        });
        Some(request)
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

    /// The requests that were sent, those that wait for their response, and the most of these at the same time.
    #[derive(Default)]
    struct Requests {
        sent: AtomicUsize,
        open: AtomicUsize,
        most: AtomicUsize,
    }

    /// An API server that has every namespace but `missing`, and responds after 10 ms.
    fn finder(requests: Arc<Requests>) -> NewNamespaces {
        let service = tower::service_fn(move |request: Request<Body>| {
            let requests = requests.clone();
            async move {
                requests.sent.fetch_add(1, SeqCst);
                requests.most.fetch_max(requests.open.fetch_add(1, SeqCst) + 1, SeqCst);
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

    fn names(count: usize) -> impl Iterator<Item = Arc<str>> {
        (0..count).map(|number| format!("team-{number}").into())
    }

    #[tokio::test(start_paused = true)]
    async fn reviews_of_one_namespace_share_a_request() {
        let requests = Arc::<Requests>::default();
        let namespaces = finder(requests.clone());
        let found = join_all((0..100).map(|_| namespaces.find("team-a".into()))).await;
        assert!(found.iter().all(|found| found.as_ref().is_some_and(|found| found.labels["team"] == *"team-a")));
        assert_eq!(requests.sent.load(SeqCst), 1);
        assert!(namespaces.find("missing".into()).await.is_none());
        assert!(namespaces.find("not/a/name".into()).await.is_none());
        assert_eq!(requests.sent.load(SeqCst), 2, "only valid names are requested");
    }

    #[tokio::test(start_paused = true)]
    async fn few_requests_are_sent_at_the_same_time_and_names_beyond_the_limit_are_not_requested() {
        let requests = Arc::<Requests>::default();
        let namespaces = finder(requests.clone());
        let found = join_all(names(MAX_REQUESTED + 10).map(|name| namespaces.find(name))).await;
        assert_eq!(found.iter().flatten().count(), MAX_REQUESTED);
        assert_eq!(requests.sent.load(SeqCst), MAX_REQUESTED);
        assert_eq!(requests.most.load(SeqCst), MAX_REQUESTS);
        let found = join_all(names(MAX_REQUESTED + 10).skip(MAX_REQUESTED).map(|name| namespaces.find(name))).await;
        assert_eq!(found.iter().flatten().count(), 10, "the others are requested once there is room");
    }

    #[tokio::test(start_paused = true)]
    async fn reviews_beyond_the_limit_do_not_wait() {
        let namespaces = finder(Arc::default());
        let found = join_all((0..MAX_WAITING + 10).map(|_| namespaces.find("team-a".into()))).await;
        assert_eq!(found.iter().flatten().count(), MAX_WAITING);
    }
}
