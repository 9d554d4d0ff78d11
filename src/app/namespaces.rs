//! Finds the namespace of a review before the watch has shown it.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use futures::FutureExt;
use futures::future::BoxFuture;
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
/// Reviews that wait. Anybody who reaches the port can name namespaces: beyond it, the strictest policy decides immediately.
const MAX_WAITING: usize = 64;
/// The longest time of a request.
const REQUEST: Duration = Duration::from_secs(1);
/// Requests at the same time, and the pause after each: at most 80 per second.
const MAX_REQUESTS: usize = 4;
const PAUSE: Duration = Duration::from_millis(50);

/// Looks into the snapshot for a moment, then asks the API server.
#[derive(Debug)]
pub(super) struct NewNamespaces(Arc<Shared>);

struct Shared {
    snapshot: Arc<ArcSwap<Snapshot>>,
    client: Client,
    /// The connections of the client belong to this runtime: the webhook's own can be occupied.
    runtime: Handle,
    waiting: Semaphore,
    requests: Arc<Semaphore>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

impl NewNamespaces {
    /// Of the current runtime.
    pub(super) fn new(snapshot: Arc<ArcSwap<Snapshot>>, client: Client) -> NewNamespaces {
        let (waiting, requests) = (Semaphore::new(MAX_WAITING), Arc::new(Semaphore::new(MAX_REQUESTS)));
        NewNamespaces(Arc::new(Shared { snapshot, client, runtime: Handle::current(), waiting, requests }))
    }
}

impl Namespaces for NewNamespaces {
    fn find(&self, name: Arc<str>, within: Duration) -> BoxFuture<'static, Option<Arc<Namespace>>> {
        let shared = self.0.clone();
        async move {
            let _waiting = shared.waiting.try_acquire().ok()?;
            timeout(within, shared.find(&name)).await.ok()?
        }
        .boxed()
    }
}

impl Shared {
    async fn find(&self, name: &Arc<str>) -> Option<Arc<Namespace>> {
        let until = clock::instant() + WATCH;
        while clock::instant() < until {
            sleep(LOOK).await;
            if let Some(observed) = self.snapshot.load().namespace(name) {
                return Some(observed.clone());
            }
        }
        let permit = self.requests.clone().acquire_owned().await.ok()?;
        let (client, name, (done, found)) = (self.client.clone(), name.clone(), oneshot::channel());
        // It ends by itself, also when the review no longer waits.
        self.runtime.spawn(async move {
            let _ = done.send(timeout(REQUEST, namespace(client, name)).await.ok().flatten());
            sleep(PAUSE).await;
            drop(permit);
        });
        found.await.ok().flatten().map(Arc::new)
    }
}
