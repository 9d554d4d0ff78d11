//! One list of the cluster, for the command line: the snapshot that the controller would have just after its start.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, DynamicObject, ListParams};
use kube::core::PartialObjectMeta;
use serde_json::Value;

use super::{lookup_reads, watch};
use usher_core::controller::{Lookup, LookupResult, lookup};
use usher_core::lifecycle::Exits;
use usher_core::nodes::{NodeLedger, Running};
use usher_core::policy::{NodeSettings, Policies};
use usher_core::snapshot::{Notify, ObservedPod, PodChange, Snapshot, Store};
use usher_kube::request::pages;
use usher_kube::view::{Viewed, pods, resource};
use usher_report::views::History;
use usher_runtime::clock;
use usher_spark::labels;
use usher_spark::time::Now;

/// Pods per page.
const PAGE: u32 = 500;
/// Objects that are read by name at the same time, and after how many it is considered whether more of their kind are read.
const MAX_CONCURRENT: usize = 16;
const CHUNK: usize = 64;
/// A Deployment, its ReplicaSet, the driver, its configuration, and the quotas for what it lacks.
const MAX_CHAIN: usize = 5;

/// What one list shows.
#[derive(Debug)]
pub struct Listing {
    pub snapshot: Snapshot,
    /// The exits that pods still show.
    pub history: History,
    /// What was not read by name because there is too much of it,
    pub left_out: BTreeSet<&'static str>,
    /// and what could not be read.
    pub unread: BTreeSet<&'static str>,
}

/// Reads every Spark pod of the cluster, or of one namespace, and the exits that those pods still show.
pub async fn list(client: &kube::Client, namespace: Option<&str>) -> kube::Result<Listing> {
    let pods = pods();
    let api: Api<Viewed<ObservedPod>> = match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &pods),
        None => Api::all_with(client.clone(), &pods),
    };
    let page = ListParams::default().labels(&watch::spark_pods()).limit(PAGE);
    let all = pages(page, usize::MAX, |page| {
        let api = &api;
        async move { api.list(&page).await }
    })
    .await?;
    let all = all.into_iter().filter_map(|seen| seen.view).collect();
    let now = Now { at: clock::instant(), wall: clock::now() };
    let mut store = Store::default();
    store.apply(PodChange::Listed(all));
    let (left_out, unread) = look_up(client, &mut store).await;
    let history = history(&mut store, now);
    Ok(Listing { snapshot: store.snapshot().clone(), history, left_out, unread })
}

/// Events per object that are read.
const MAX_EVENTS: u32 = 200;

/// A pod of this name, and the Events about it: about any object of this name if no pod has it, or about this uid. One can be read without
/// the other.
pub async fn pod_and_events(
    client: &kube::Client,
    namespace: &str,
    name: &str,
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
        let about = usher_spark::json::text(event, &["involvedObject", "uid"]);
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

/// Reads by name what the labelled pods do not say, as the controller does: the drivers without labels that own executors, the workloads
/// between them, the drivers' configurations, quotas, and what schedulers state about pods that wait. What may not be read is not known.
/// Returns what was left out because there is too much of it, and what could not be read.
async fn look_up(client: &kube::Client, store: &mut Store) -> (BTreeSet<&'static str>, BTreeSet<&'static str>) {
    let policies = Policies::default();
    let keys: Vec<_> = store.snapshot().apps.keys().cloned().collect();
    let mut done: BTreeSet<Lookup> = BTreeSet::new();
    let mut left: BTreeMap<&'static str, usize> = BTreeMap::new();
    let (mut left_out, mut unread) = (BTreeSet::new(), BTreeSet::new());
    // Each answer may name more.
    for _ in 0..MAX_CHAIN {
        let wanted = keys.iter().flat_map(|key| lookup::missing(store.snapshot(), key, &policies, &[]));
        let mut wanted: BTreeSet<Lookup> = wanted.filter(|read| !done.contains(read)).collect();
        wanted.retain(|read| {
            let Some((kind, max)) = budget(read) else { return false };
            let left = left.entry(kind).or_insert(max);
            let is_read = *left > 0;
            *left = left.saturating_sub(1);
            if !is_read {
                left_out.insert(kind);
            }
            is_read
        });
        if wanted.is_empty() {
            break;
        }
        done.extend(wanted.iter().cloned());
        // A kind that may not be read is not asked for again and again.
        let mut refused: BTreeSet<&'static str> = BTreeSet::new();
        let wanted: Vec<Lookup> = wanted.into_iter().collect();
        for chunk in wanted.chunks(CHUNK) {
            let chunk = chunk.iter().filter(|read| budget(read).is_some_and(|(kind, _)| !refused.contains(kind)));
            let reads =
                futures::stream::iter(chunk).map(async |read| (read, lookup_reads::run(client.clone(), read).await));
            let answers: Vec<(&Lookup, LookupResult)> = reads.buffer_unordered(MAX_CONCURRENT).collect().await;
            let kinds = |is_failed: bool| {
                let matching =
                    answers.iter().filter(move |(_, answer)| matches!(answer, LookupResult::Failed) == is_failed);
                matching.filter_map(|(read, _)| Some(budget(read)?.0)).collect::<BTreeSet<_>>()
            };
            refused.extend(kinds(true).difference(&kinds(false)));
            for (read, answer) in answers {
                let change =
                    if matches!(answer, LookupResult::Failed) { None } else { answer.learned(read, Vec::new()) };
                if let Some(change) = change {
                    store.apply(change);
                }
            }
        }
        unread.append(&mut refused);
    }
    (left_out, unread)
}

/// What a lookup reads, and at most how many of them are read for the command line: none of what only adoption needs, or what a watch
/// contradicts.
fn budget(read: &Lookup) -> Option<(&'static str, usize)> {
    match read {
        Lookup::Pod(_) => Some(("drivers without labels", 200)),
        Lookup::Workload(_) => Some(("workloads", 200)),
        Lookup::Conf(..) => Some(("ConfigMaps of drivers", 1000)),
        Lookup::Quotas(_) => Some(("quotas", 64)),
        Lookup::Messages(..) => Some(("messages of schedulers", 64)),
        Lookup::Address(..) | Lookup::NodePods(_) | Lookup::Labelled(_) | Lookup::All(_) => None,
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
