//! What is read immediately before an action that rests on the state of a driver's pod. Each object is read once for a batch of
//! actions, and all reads count in the rate limit.

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use kube::api::{Api, ListParams};

use super::lease::Leadership;
use super::limit::{Limiter, Priority};
use super::lookups::{oldest_pod_at, pod_named};
use super::request::{Error, Result};
use super::view::{Viewed, resource};
use crate::ownership::contradiction::{self, Contradiction};
use crate::reconcile::DriverRef;
use crate::snapshot::{Change, DriverPod, ObservedPod, ReferencedPod, RelatedChange, Snapshot};
use crate::spark::ids::{AppKey, PodKey};
use crate::spark::labels;

/// Reads what contradicts an action.
#[derive(Clone)]
pub(super) struct EvidenceReader {
    pub(super) client: kube::Client,
    pub(super) limiter: Limiter,
    /// The newest snapshot.
    pub(super) snapshot: Arc<ArcSwap<Snapshot>>,
}

/// What was read for a batch of actions about one application.
#[derive(Default)]
pub(super) struct Reads {
    pods: HashMap<PodKey, Option<DriverPod>>,
    /// The labelled drivers of the application.
    labelled: Option<Vec<ObservedPod>>,
    /// The pods at drivers' addresses.
    addresses: HashMap<Arc<str>, Option<DriverPod>>,
}

impl EvidenceReader {
    /// A pod by name. An error if the leadership has ended meanwhile: the action must not be written then.
    pub(super) async fn pod(
        &self,
        (leadership, reads): (&Leadership, &mut Reads),
        pod: &PodKey,
    ) -> Result<Option<DriverPod>> {
        if let Some(found) = reads.pods.get(pod) {
            return Ok(found.clone());
        }
        self.limiter.acquire(Priority::Cleanup).await;
        let found = pod_named(&self.client, pod.namespace(), pod.name()).await?;
        if !leadership.holds() {
            return Err(Error::NotLeading);
        }
        reads.pods.insert(pod.clone(), found.clone());
        Ok(found)
    }

    /// What contradicts that the driver of an executor, given by name and uid, is gone; and the change that this is for the snapshot.
    pub(super) async fn contradiction(
        &self,
        (leadership, reads): (&Leadership, &mut Reads),
        app: &AppKey,
        executor: (&str, &str),
        driver: &DriverRef,
    ) -> Result<Option<(Contradiction, Option<Change>)>> {
        let snapshot = self.snapshot.load_full();
        let Some((_, known)) = snapshot.executor(app.namespace(), executor.0) else {
            return Ok(Some((Contradiction::Changed, None)));
        };
        let labelled = match &reads.labelled {
            Some(labelled) => labelled.clone(),
            None => {
                let labelled = self.labelled_drivers(app).await?;
                reads.labelled.insert(labelled).clone()
            }
        };
        let mut named = Vec::new();
        if let Some(address) = contradiction::address_to_read(&snapshot, app, known) {
            named.extend(self.pod_at(reads, app, &address).await?.map(|pod| (pod_key(app, &pod.name), Some(pod))));
        }
        for pod in contradiction::pods_to_read(&snapshot, app, known, &driver.name) {
            let found = self.pod((leadership, reads), &pod).await?;
            named.push((pod, found));
        }
        if !leadership.holds() {
            return Err(Error::NotLeading);
        }
        let live = contradiction::live(&snapshot, app, labelled, named);
        let found = contradiction::of_end(&live, app, executor, (&driver.name, &driver.uid));
        Ok(found.map(|contradiction| {
            let read = reads.pods.get(&pod_key(app, &driver.name)).cloned().flatten();
            let change = read.map(|pod| {
                let found = ReferencedPod::Present(Arc::new(pod));
                Change::Related(RelatedChange::Referenced(pod_key(app, &driver.name), found, Vec::new()))
            });
            (contradiction, change)
        }))
    }

    /// The labelled drivers of an application. One that cannot be read is an error: it may be the driver.
    async fn labelled_drivers(&self, app: &AppKey) -> Result<Vec<ObservedPod>> {
        let pods: Api<Viewed<ObservedPod>> =
            Api::namespaced_with(self.client.clone(), app.namespace(), &resource("", "v1", "Pod", "pods"));
        let labels = format!("{}={},{}={}", labels::ROLE, labels::ROLE_DRIVER, labels::APP_SELECTOR, app.selector());
        self.limiter.acquire(Priority::Cleanup).await;
        let found = pods.list(&ListParams::default().labels(&labels)).await?;
        let read = |pod: Viewed<ObservedPod>| {
            let name = pod.name().to_owned();
            pod.view.ok_or_else(|| Error::Malformed(format!("pod {name}")))
        };
        found.items.into_iter().map(read).collect()
    }

    async fn pod_at(&self, reads: &mut Reads, app: &AppKey, address: &Arc<str>) -> Result<Option<DriverPod>> {
        if let Some(found) = reads.addresses.get(address) {
            return Ok(found.clone());
        }
        self.limiter.acquire(Priority::Cleanup).await;
        let found = oldest_pod_at(&self.client, app.namespace(), address).await?;
        reads.addresses.insert(address.clone(), found.clone());
        Ok(found)
    }
}

fn pod_key(app: &AppKey, name: &str) -> PodKey {
    PodKey::new(app.namespace(), name)
}
