//! One look at the cluster, for the command line: the picture that the loop would have just after its start.

use std::time::Duration;

use imbl::Vector;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, ListParams};
use kube::core::PartialObjectMeta;

use super::view::{Seen, resource};
use super::{reads, watch};
use crate::lifecycle::{self, Answer, Exit, Exits, Now, Read};
use crate::policy::Policies;
use crate::runtime::clock;
use crate::snapshot::{Calls, Change, Followed, Replaced, Sighting, Snapshot, Store};
use crate::spark::labels;

/// Pods on a page.
const PAGE: u32 = 500;
/// Most drivers without labels that are looked at by name.
const FOLLOWED: usize = 200;

/// Reads every Spark pod of the cluster, or of one namespace, and the ends that those pods still tell.
pub async fn take(client: &kube::Client, namespace: Option<&str>) -> kube::Result<(Snapshot, Vector<Exit>)> {
    let pods = resource("", "v1", "Pod", "pods");
    let api: Api<Seen<Sighting>> = match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &pods),
        None => Api::all_with(client.clone(), &pods),
    };
    let mut all = Vec::new();
    let mut page = ListParams::default().labels(&watch::spark_pods()).limit(PAGE);
    loop {
        let list = api.list(&page).await?;
        all.extend(list.items.into_iter().filter_map(|seen| seen.view));
        match list.metadata.continue_.filter(|more| !more.is_empty()) {
            Some(more) => page = page.continue_token(&more),
            None => break,
        }
    }
    let now = Now { at: clock::instant(), wall: clock::now() };
    let mut store = Store::default();
    store.apply(Change::Replaced(Replaced::Pods(all)), now.wall);
    follow(client, &mut store, now).await;
    let exits = ends(&mut store, now);
    Ok((store.snapshot().clone(), exits))
}

/// A pod of that name that is none of an application's: where it is, and what it lacks.
pub async fn stray(client: &kube::Client, namespace: Option<&str>, name: &str) -> kube::Result<Option<String>> {
    let api: Api<PartialObjectMeta<Pod>> = match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    };
    let found = api.list_metadata(&ListParams::default().fields(&format!("metadata.name={name}")).limit(1)).await?;
    Ok(found.items.first().map(|pod| {
        let lacks: Vec<&str> =
            [labels::ROLE, labels::APP_SELECTOR].into_iter().filter(|key| !pod.labels().contains_key(*key)).collect();
        let namespace = pod.namespace().unwrap_or_default();
        let what = match &*lacks {
            [] => {
                format!("its label {} is neither {} nor {}", labels::ROLE, labels::ROLE_DRIVER, labels::ROLE_EXECUTOR)
            }
            lacks => format!("it has no label {}", lacks.join(" and no label ")),
        };
        format!("pod {namespace}/{name} is there, but {what}")
    }))
}

/// Drivers without labels, as the executors name them.
async fn follow(client: &kube::Client, store: &mut Store, now: Now) {
    let policies = Policies::default();
    let keys: Vec<_> = store.snapshot().apps.keys().cloned().collect();
    let wanted = keys.iter().flat_map(|key| lifecycle::reads(store.snapshot(), key, &policies, &[]));
    let mut wanted: Vec<Read> = wanted.filter(|read| matches!(read, Read::Pod(_))).collect();
    wanted.sort_unstable();
    wanted.dedup();
    for read in wanted.into_iter().take(FOLLOWED) {
        let Read::Pod(pod) = &read else { continue };
        let followed = match reads::read(client.clone(), &read).await {
            Answer::Pod(driver) => Followed::Present(driver.into()),
            Answer::Absent => Followed::Absent,
            _ => continue,
        };
        store.apply(Change::Followed(pod.clone(), followed, Vec::new()), now.wall);
    }
}

fn ends(store: &mut Store, now: Now) -> Vector<Exit> {
    let all = store.subscribe(Duration::ZERO, Calls::WithNews, now.at);
    let mut exits = Exits::default();
    if let Some(batch) = store.take(all, now.at) {
        exits.note(batch, now);
    }
    exits.history().clone()
}
