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
