//! One list of the cluster, for the command line: the snapshot that the controller would have just after its start.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, DynamicObject, ListParams};
use kube::core::PartialObjectMeta;
use serde_json::Value;

use super::view::{Viewed, resource};
use super::{lookups, watch};
use crate::controller::{Lookup, LookupResult, lookup};
use crate::lifecycle::Exits;
use crate::nodes::{NodeLedger, Running};
use crate::policy::{NodeSettings, Policies};
use crate::runtime::clock;
use crate::snapshot::{Change, Notify, ObservedPod, PodChange, ReferencedPod, RelatedChange, Snapshot, Store};
use crate::spark::labels;
use crate::time::Now;
use crate::views::History;

/// Pods per page.
const PAGE: u32 = 500;
/// At most this many drivers without labels are read by name.
const MAX_REFERENCED: usize = 200;
/// Of at most this many namespaces it is read what schedulers state about pods that wait, of this many at the same time.
const MAX_MESSAGES: usize = 64;
const MAX_CONCURRENT: usize = 8;
/// A Deployment, its ReplicaSet, and the driver.
const MAX_CHAIN: usize = 3;

/// Reads every Spark pod of the cluster, or of one namespace, and the exits that those pods still show.
pub async fn list(client: &kube::Client, namespace: Option<&str>) -> kube::Result<(Snapshot, History)> {
    let pods = resource("", "v1", "Pod", "pods");
    let api: Api<Viewed<ObservedPod>> = match namespace {
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
    store.apply(Change::Pods(PodChange::Listed(all)), now.wall);
    lookup_referenced(client, &mut store, now).await;
    lookup_messages(client, &mut store, now).await;
    let history = history(&mut store, now);
    Ok((store.snapshot().clone(), history))
}

/// Events per object that are read.
const MAX_EVENTS: u32 = 200;

/// A pod of this name, and the Events about it: about any object of this name if there is no pod, or about this uid. One can be read without
/// the other.
pub async fn pod_and_events(
    client: &kube::Client,
    (namespace, name): (&str, &str),
    uid: Option<&str>,
) -> (kube::Result<Option<Value>>, kube::Result<Vec<Value>>) {
    let objects = |kind: &str, plural: &str| -> Api<DynamicObject> {
        Api::namespaced_with(client.clone(), namespace, &resource("", "v1", kind, plural))
    };
    let pod = objects("Pod", "pods").get_opt(name).await;
    let pod = pod.map(|pod| pod.filter(|pod| uid.is_none_or(|uid| pod.metadata.uid.as_deref() == Some(uid))));
    let uid = uid.or_else(|| pod.as_ref().ok()?.as_ref()?.metadata.uid.as_deref());
    let of_it = ListParams::default().fields(&format!("involvedObject.name={name}")).limit(MAX_EVENTS);
    let is_its = |event: &Value| {
        let about = crate::json::text(event, &["involvedObject", "uid"]);
        about.is_empty() || uid.is_none_or(|uid| uid == about)
    };
    let events = objects("Event", "events").list(&of_it).await.map(|events| {
        let events = events.items.into_iter().filter_map(|event| serde_json::to_value(event).ok());
        events.filter(is_its).collect()
    });
    (pod.map(|pod| serde_json::to_value(pod?).ok()), events)
}

/// Describes a pod of this name that belongs to no application: its namespace, and what its labels lack.
pub async fn unselected_pod(
    client: &kube::Client,
    namespace: Option<&str>,
    name: &str,
) -> kube::Result<Option<String>> {
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
        format!("pod {namespace}/{name} exists, but {what}")
    }))
}

/// Reads the drivers without labels that own executors, and the workloads between them.
async fn lookup_referenced(client: &kube::Client, store: &mut Store, now: Now) {
    let policies = Policies::default();
    let keys: Vec<_> = store.snapshot().apps.keys().cloned().collect();
    let mut done: BTreeSet<Lookup> = BTreeSet::new();
    for _ in 0..MAX_CHAIN {
        let wanted = keys.iter().flat_map(|key| lookup::missing(store.snapshot(), key, &policies, &[]));
        let wanted = wanted.filter(|read| matches!(read, Lookup::Pod(_) | Lookup::Workload(_)));
        let wanted: BTreeSet<Lookup> = wanted.filter(|read| !done.contains(read)).collect();
        if wanted.is_empty() || done.len() >= MAX_REFERENCED {
            return;
        }
        for read in wanted.into_iter().take(MAX_REFERENCED - done.len()) {
            let change = match (&read, lookups::run(client.clone(), &read).await) {
                (Lookup::Pod(pod), LookupResult::Pod(driver)) => {
                    Some(RelatedChange::Referenced(pod.clone(), ReferencedPod::Present(driver.into()), Vec::new()))
                }
                (Lookup::Pod(pod), LookupResult::Absent) => {
                    Some(RelatedChange::Referenced(pod.clone(), ReferencedPod::Absent, Vec::new()))
                }
                (Lookup::Workload(key), LookupResult::Workload(workload)) => {
                    Some(RelatedChange::Workload(key.clone(), Some(workload), Vec::new()))
                }
                (Lookup::Workload(key), LookupResult::Absent) => {
                    Some(RelatedChange::Workload(key.clone(), None, Vec::new()))
                }
                _ => None,
            };
            if let Some(change) = change {
                store.apply(Change::Related(change), now.wall);
            }
            done.insert(read);
        }
    }
}

/// Reads what schedulers state about pods that wait.
async fn lookup_messages(client: &kube::Client, store: &mut Store, now: Now) {
    let policies = Policies::default();
    let keys = store.snapshot().apps.keys();
    let wanted = keys.flat_map(|key| lookup::missing(store.snapshot(), key, &policies, &[]));
    let wanted: BTreeSet<Lookup> = wanted.filter(|read| matches!(read, Lookup::Messages(..))).collect();
    let reads = futures::stream::iter(wanted.into_iter().take(MAX_MESSAGES)).map(async |read| {
        let answer = lookups::run(client.clone(), &read).await;
        (read, answer)
    });
    let answers: Vec<(Lookup, LookupResult)> = reads.buffer_unordered(MAX_CONCURRENT).collect().await;
    for (read, answer) in answers {
        if let (Lookup::Messages(namespace, scheduler), LookupResult::Messages(messages)) = (read, answer) {
            store.apply(Change::Related(RelatedChange::Messages(namespace, scheduler, messages)), now.wall);
        }
    }
}

fn history(store: &mut Store, now: Now) -> History {
    let all = store.subscribe(Duration::ZERO, Notify::OnChange, now.at);
    let mut exits = Exits::default();
    if let Some(batch) = store.take(all, now.at) {
        exits.record(batch, now);
    }
    let (snapshot, settings, mut nodes) = (store.snapshot(), NodeSettings::default(), NodeLedger::default());
    let mut running = Running::new(snapshot);
    for exit in exits.history().iter() {
        nodes.record(exit, &mut running, &settings, now);
    }
    for (key, app) in &snapshot.apps {
        nodes.observe(key, app.unsettled().values(), &mut running, &settings, now);
    }
    History { exits: exits.history().clone(), nodes, ..History::default() }
}
