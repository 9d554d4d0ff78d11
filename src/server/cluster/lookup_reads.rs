//! Lookups: pods that confirm a difference or drive an application, drivers' ConfigMaps, and all pods of a namespace.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use kube::api::{Api, ListParams};
use serde::Deserialize;

use super::messages;
use super::metrics::Metrics;
use super::pod_poll;
use usher_core::controller::{Lookup, LookupResult};
use usher_core::snapshot::{Conf, DriverPhase, DriverPod, MAX_QUOTAS, Namespace, ObservedPod, Quota, Workload};
use usher_kube::limit::Priority;
use usher_kube::request::{Error, Result, call};
use usher_kube::view::{View, Viewed, pods, resource};
use usher_spark::conf::AppConf;
use usher_spark::labels;
use usher_spark::pod::Pod;
use usher_spark::text::{is_dns_label, truncated};

/// The longest name of a scheduler that is kept.
const MAX_SCHEDULER: usize = 253;
/// Timeout of the lookup of one object.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// A pod that may be an application's driver, with or without labels.
#[derive(Clone, Debug)]
pub(super) struct AnyPod(pub(super) DriverPod);

impl View for AnyPod {
    fn read(json: &str) -> Option<Self> {
        let pod = Pod::read_whole(json.as_bytes()).ok()?;
        ObservedPod::read(json)?; // Requires a name, a namespace and a uid.
        Some(AnyPod(DriverPod::of(&pod, usher_core::gang::scheduling_keys())))
    }
}

/// The labels and annotations of a namespace, by one request; `None` if it does not exist or the request fails.
pub async fn namespace(client: Client, name: Arc<str>) -> Option<Namespace> {
    // A client writes the name: it must not become another path.
    if !is_dns_label(&name) {
        return None;
    }
    let namespaces: Api<Viewed<Namespace>> = Api::all_with(client, &resource("", "v1", "Namespace", "namespaces"));
    namespaces.get(&name).await.ok()?.view
}

/// The configuration in a driver's ConfigMap. Only the keys of [`AppConf`] are kept, because the text contains credentials.
#[derive(Clone, Debug)]
struct ConfView(Conf);

impl View for ConfView {
    fn read(json: &str) -> Option<Self> {
        #[derive(Deserialize)]
        struct ConfigMap {
            data: Option<std::collections::BTreeMap<String, String>>,
        }
        let data = serde_json::from_str::<ConfigMap>(json).ok()?.data.unwrap_or_default();
        let properties = data.get(labels::PROPERTIES_KEY);
        Some(ConfView(
            properties.map_or(Conf::Unreadable, |text| Conf::Known(std::sync::Arc::new(AppConf::parse(text)))),
        ))
    }
}

/// A workload that creates executors.
#[derive(Clone, Debug)]
struct WorkloadView(Workload);

impl View for WorkloadView {
    fn read(json: &str) -> Option<Self> {
        Workload::read(json).map(WorkloadView)
    }
}

/// A pod on a node: the scheduler that placed it; `None` if it has finished, or if it belongs to its node: the pods of DaemonSets
/// and static pods are on every node, whichever scheduler places the others.
#[derive(Clone, Debug)]
struct PlacedPod(Option<Arc<str>>);

impl View for PlacedPod {
    fn read(json: &str) -> Option<Self> {
        let pod = Pod::read_whole(json.as_bytes()).ok()?;
        let owners = pod.metadata.owner_references.iter().flatten();
        let is_of_node = owners.into_iter().any(|owner| matches!(owner.kind.as_str(), "DaemonSet" | "Node"));
        let is_over = matches!(pod.status.phase.as_deref(), Some("Succeeded" | "Failed"));
        let scheduler = pod.spec.scheduler_name.as_deref().filter(|_| !is_of_node && !is_over);
        Some(PlacedPod(scheduler.map(|name| truncated(name, MAX_SCHEDULER).into())))
    }
}

/// The priority of a lookup in the rate limit.
pub(super) fn priority(read: &Lookup) -> Priority {
    match read {
        Lookup::Labelled(_) | Lookup::All(_) => Priority::Confirmation,
        Lookup::Pod(_) | Lookup::Workload(_) | Lookup::Address(..) | Lookup::Conf(..) => Priority::Group,
        Lookup::Quotas(_) | Lookup::Messages(..) | Lookup::NodePods(_) => Priority::Cleanup,
    }
}

/// Lists all pods of a namespace, regardless of labels.
pub(super) async fn list_namespace(client: &kube::Client, namespace: &str, metrics: &Metrics) -> LookupResult {
    match pod_poll::namespace(client, namespace, metrics).await {
        Ok(all) => LookupResult::All(all),
        Err(error) => {
            tracing::debug!(namespace, %error, "cannot list the pods of a namespace; retrying");
            LookupResult::Failed
        }
    }
}

/// Runs the lookup of one object.
pub(super) async fn run(client: kube::Client, read: &Lookup) -> LookupResult {
    let reading = async {
        match read {
            Lookup::All(_) => Ok(None), // Not one object: see `list_namespace`.
            Lookup::Pod(pod) => Ok(pod_named(&client, pod.namespace(), pod.name()).await?.map(LookupResult::Pod)),
            Lookup::Workload(key) => {
                let Some((kind, plural)) = key.kind.resource() else { return Ok(None) };
                let api: Api<Viewed<WorkloadView>> =
                    Api::namespaced_with(client, key.object.namespace(), &resource("apps", "v1", kind, plural));
                let found = api.get_opt(key.object.name()).await?;
                // One that cannot be read exists all the same.
                Ok(found.map(|seen| seen.view.map_or(LookupResult::Failed, |view| LookupResult::Workload(view.0))))
            }
            Lookup::Address(namespace, address) => {
                Ok(pod_at(&client, namespace, address).await?.map(LookupResult::Pod))
            }
            Lookup::Quotas(namespace) => {
                let quotas = resource("", "v1", "ResourceQuota", "resourcequotas");
                let api: Api<Viewed<Quota>> = Api::namespaced_with(client, namespace, &quotas);
                // From the API server's cache: people see them, and nothing acts on them.
                let found = api.list(&ListParams::default().match_any()).await?;
                let quotas = found.items.into_iter().filter_map(|seen| seen.view).take(MAX_QUOTAS);
                Ok(Some(LookupResult::Quotas(quotas.collect())))
            }
            Lookup::Messages(namespace, scheduler) => {
                Ok(messages::read(&client, namespace, scheduler).await?.map(LookupResult::Messages))
            }
            Lookup::NodePods(node) => {
                let api: Api<Viewed<PlacedPod>> = Api::all_with(client, &pods());
                // From the API server's cache, which has an index of this field.
                let here = ListParams::default().fields(&format!("spec.nodeName={node}")).match_any();
                let mut schedulers: BTreeMap<Arc<str>, usize> = BTreeMap::new();
                for PlacedPod(scheduler) in api.list(&here).await?.items.into_iter().filter_map(|seen| seen.view) {
                    if let Some(scheduler) = scheduler {
                        *schedulers.entry(scheduler).or_default() += 1;
                    }
                }
                Ok(Some(LookupResult::NodePods(schedulers)))
            }
            Lookup::Conf(pod, _, conf_map) => {
                let api: Api<Viewed<ConfView>> =
                    Api::namespaced_with(client, pod.namespace(), &resource("", "v1", "ConfigMap", "configmaps"));
                let found = api.get_opt(conf_map).await?;
                Ok(found.map(|seen| LookupResult::Conf(seen.view.map_or(Conf::Unreadable, |view| view.0))))
            }
            Lookup::Labelled(pod) => {
                let pods = pods();
                let api: Api<Viewed<ObservedPod>> = Api::namespaced_with(client, pod.namespace(), &pods);
                let found = api.get_opt(pod.name()).await?;
                // A pod that cannot be read exists all the same; the watch counts it.
                Ok(found.map(|seen| seen.view.map_or(LookupResult::Failed, LookupResult::Labelled)))
            }
        }
    };
    match call(REQUEST_TIMEOUT, reading).await {
        Ok(Some(answer)) => answer,
        Ok(None) => LookupResult::Absent,
        Err(Error::Timeout(_)) => LookupResult::Failed,
        Err(error) => {
            tracing::debug!(?read, %error, "lookup failed; retrying");
            LookupResult::Failed
        }
    }
}

/// Reads a pod by name from the API server.
pub(super) async fn pod_named(client: &kube::Client, namespace: &str, name: &str) -> Result<Option<DriverPod>> {
    let api: Api<Viewed<AnyPod>> = Api::namespaced_with(client.clone(), namespace, &pods());
    match api.get_opt(name).await? {
        None => Ok(None),
        // A pod that cannot be read exists all the same.
        Some(seen) => match seen.view {
            Some(view) => Ok(Some(view.0)),
            None => Err(Error::Malformed(format!("pod {name}"))),
        },
    }
}

/// Finds the pod with this address. Two pods may have it while one of them terminates, and then neither is returned.
async fn pod_at(client: &kube::Client, namespace: &str, address: &str) -> Result<Option<DriverPod>> {
    let pods = match pods_at(client, namespace, address).await {
        Err(Error::Malformed(_)) => return Ok(None), // It may be another one.
        pods => pods?,
    };
    match <[DriverPod; 1]>::try_from(pods) {
        Ok([driver]) if driver.address.is_some() => Ok(Some(driver)),
        _ => Ok(None),
    }
}

/// The pods with this address that have not exited. On a node's address, all pods on the host network have it.
pub(super) async fn pods_at(client: &kube::Client, namespace: &str, address: &str) -> Result<Vec<DriverPod>> {
    let api: Api<Viewed<AnyPod>> = Api::namespaced_with(client.clone(), namespace, &pods());
    // From the API server's cache, which knows a pod that is older than executors that the watch has shown.
    let found = api.list(&ListParams::default().fields(&format!("status.podIP={address}")).match_any()).await?;
    // One that cannot be read may be the driver.
    let read = |seen: Viewed<AnyPod>| {
        let name = seen.name().to_owned();
        seen.view.map(|view| view.0).ok_or_else(|| Error::Malformed(format!("pod {name}")))
    };
    let pods: Vec<DriverPod> = found.items.into_iter().map(read).collect::<Result<_>>()?;
    Ok(pods.into_iter().filter(|pod| pod.phase != DriverPhase::Ended).collect())
}
