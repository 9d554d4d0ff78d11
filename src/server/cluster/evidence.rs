//! What is read immediately before an action that rests on the state of a driver's pod. Each object is read once for a batch of
//! actions.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use kube::api::{Api, ListParams};

use super::lease::Leadership;
use super::lookup_reads::{pod_named, pods_at};
use usher_core::ownership::contradiction::{self, Contradiction, Reads, ToRead};
use usher_core::snapshot::{Change, DriverPhase, DriverPod, ObservedPod, ReferencedPod, RelatedChange, Snapshot};
use usher_kube::limit::{Limiter, Priority};
use usher_kube::request::{Error, Result, call};
use usher_kube::view::{Viewed, pods};
use usher_spark::ids::{AppKey, PodIdentity, PodKey};
use usher_spark::labels;

/// Timeout of a read.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Pods per page of a list.
const PAGE: u32 = 500;

/// Reads what contradicts an action.
#[derive(Clone)]
pub(super) struct EvidenceReader {
    pub(super) client: kube::Client,
    pub(super) limiter: Limiter,
    /// The newest snapshot.
    pub(super) snapshot: Arc<ArcSwap<Snapshot>>,
}

/// What was read for a batch of actions about one application.
pub(super) struct BatchReads<'l> {
    leadership: &'l Leadership,
    found: Reads,
    is_listed: bool,
}

impl BatchReads<'_> {
    /// Nothing yet; a read fails if the leadership has ended meanwhile: the action must not be written then.
    pub(super) fn new(leadership: &Leadership) -> BatchReads<'_> {
        BatchReads { leadership, found: Reads::default(), is_listed: false }
    }
}

impl EvidenceReader {
    /// A pod by name.
    pub(super) async fn pod(&self, reads: &mut BatchReads<'_>, pod: &PodKey) -> Result<Option<Arc<DriverPod>>> {
        if let Some(found) = reads.found.pods.get(pod) {
            return Ok(found.clone());
        }
        let found = pod_named(&self.client, pod.namespace(), pod.name()).await?.map(Arc::new);
        reads.leadership.require()?;
        reads.found.pods.insert(pod.clone(), found.clone());
        Ok(found)
    }

    /// What contradicts that the driver of an executor, given by name and uid, is gone; and what the snapshot does not know of it.
    /// Every read counts in the rate limit, and has its own timeout.
    pub(super) async fn contradiction(
        &self,
        reads: &mut BatchReads<'_>,
        app: &AppKey,
        executor: (&str, &str),
        driver: &PodIdentity,
    ) -> Result<Option<(Contradiction, Option<Change>)>> {
        let snapshot = self.snapshot.load_full();
        let Some((_, known)) = snapshot.executor(app.namespace(), executor.0) else {
            return Ok(Some((Contradiction::Changed, None)));
        };
        if !reads.is_listed {
            self.list_labelled(&snapshot, app, &mut reads.found).await?;
            reads.is_listed = true;
        }
        let ToRead { pods, address } = contradiction::to_read(&snapshot, app, known, &driver.key);
        for pod in pods {
            if !reads.found.pods.contains_key(&pod) {
                self.limiter.acquire(Priority::Cleanup).await;
                call(REQUEST_TIMEOUT, self.pod(reads, &pod)).await?;
            }
        }
        if let Some(address) = address.filter(|address| !reads.found.at_address.contains_key(address)) {
            self.limiter.acquire(Priority::Cleanup).await;
            let found = call(REQUEST_TIMEOUT, pods_at(&self.client, app.namespace(), &address)).await?;
            reads.found.at_address.insert(address, found.into_iter().map(Arc::new).collect());
        }
        reads.leadership.require()?;
        // Reads take a while: the newest snapshot counts.
        let snapshot = self.snapshot.load_full();
        let found = contradiction::of_end(&snapshot, app, executor, driver, &reads.found);
        Ok(found.map(|contradiction| {
            let change = change(&contradiction, app, &reads.found);
            (contradiction, change)
        }))
    }

    /// Reads the labelled drivers of an application that run.
    async fn list_labelled(&self, snapshot: &Snapshot, app: &AppKey, reads: &mut Reads) -> Result<()> {
        visit_pods(&self.client, app, labels::ROLE_DRIVER, Some(&self.limiter), |pod| {
            match pod {
                Some(ObservedPod::Driver(_, driver)) if driver.phase == DriverPhase::Running => {
                    reads.labelled.push(Arc::new(snapshot.verified(app, driver)));
                }
                Some(_) => {}
                None => reads.is_unreadable = true,
            }
            ControlFlow::Continue(())
        })
        .await
    }
}

/// Visits the pods of an application with this role, until `visit` breaks; `None` is a pod that cannot be read. Any tenant can label
/// any number of pods: page by page.
pub(super) async fn visit_pods(
    client: &kube::Client,
    app: &AppKey,
    role: &str,
    limiter: Option<&Limiter>,
    mut visit: impl FnMut(Option<ObservedPod>) -> ControlFlow<()>,
) -> Result<()> {
    let pods: Api<Viewed<ObservedPod>> = Api::namespaced_with(client.clone(), app.namespace(), &pods());
    let labels = format!("{}={role},{}={}", labels::ROLE, labels::APP_SELECTOR, app.selector());
    let mut page = ListParams::default().labels(&labels).limit(PAGE);
    loop {
        if let Some(limiter) = limiter {
            limiter.acquire(Priority::Cleanup).await;
        }
        let found = call(REQUEST_TIMEOUT, async { pods.list(&page).await.map_err(Error::from) }).await?;
        if found.items.into_iter().any(|pod| visit(pod.view).is_break()) {
            return Ok(());
        }
        match found.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => return Ok(()),
        }
    }
}

/// The pod that contradicts, for the snapshot.
fn change(contradiction: &Contradiction, app: &AppKey, reads: &Reads) -> Option<Change> {
    let key = match contradiction {
        Contradiction::Pod(name, _) => PodKey::new(app.namespace(), name),
        Contradiction::NotGone(pod) => pod.clone(),
        _ => return None,
    };
    let at_address = || reads.at_address.values().flatten().find(|pod| *pod.name == *key.name());
    let pod = reads.pods.get(&key).and_then(Option::as_ref).or_else(at_address)?;
    Some(Change::Related(RelatedChange::Referenced(key, ReferencedPod::Present(pod.clone()), Vec::new())))
}
