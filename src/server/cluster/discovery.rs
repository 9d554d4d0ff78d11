//! Discovers which PodGroup APIs the cluster serves, and whether Volcano denies early pods. It is repeated: a scheduler may be
//! installed after us.

use std::collections::BTreeMap;
use std::time::Duration;

use kube::api::{Api, DynamicObject, ListParams};
use serde_json::Value;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::watch::WatchMessage;
use usher_core::controller::backoff::backoff_delay;
use usher_core::gang;
use usher_core::gang::early_pods::{self, Version};
use usher_core::snapshot::{Change, GroupApi, RelatedChange, ServedApis};
use usher_kube::client::Brief;
use usher_kube::view::pods;
use usher_spark::json;

/// How often the cluster is queried.
const POLL_INTERVAL: Duration = Duration::from_secs(30);
/// Volcano's version is queried every tenth time.
const ROUNDS_PER_VERSION_CHECK: u64 = 10;
/// Timeout of a query.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Passes each result to the snapshot's writer and the watches, until `stop` is cancelled.
pub(super) async fn run(
    client: kube::Client,
    changes: mpsc::Sender<WatchMessage>,
    apis: watch::Sender<Option<ServedApis>>,
    stop: CancellationToken,
) {
    let mut failures = 0u32;
    let mut count = 0u64;
    loop {
        let outcome = tokio::time::timeout(REQUEST_TIMEOUT, served(&client)).await;
        let wait = match outcome {
            Ok(Ok(found)) => {
                failures = 0;
                // The writer first: it forgets the groups of an API that is no longer served before a new watch lists.
                if changes
                    .send(WatchMessage::Change(Change::Related(RelatedChange::Apis(found.clone()))))
                    .await
                    .is_err()
                {
                    return;
                }
                if count.is_multiple_of(ROUNDS_PER_VERSION_CHECK) {
                    // Only a warning depends on it, so a failed query changes nothing.
                    let volcano = found.get("volcano").is_some();
                    match tokio::time::timeout(REQUEST_TIMEOUT, early_pods(&client, volcano)).await {
                        Ok(Ok(version))
                            if changes
                                .send(WatchMessage::Change(Change::Related(RelatedChange::EarlyPods(
                                    version.map(|version| version.to_string().into()),
                                ))))
                                .await
                                .is_err() =>
                        {
                            return;
                        }
                        _ => {}
                    }
                }
                count += 1;
                apis.send_if_modified(|known| {
                    let is_changed = known.as_ref() != Some(&found);
                    *known = Some(found);
                    is_changed
                });
                POLL_INTERVAL
            }
            failed => {
                failures += 1;
                if failures == 3 {
                    let error = match &failed {
                        Ok(Err(error)) => Brief(error).to_string(),
                        _ => "no answer in time".to_owned(),
                    };
                    tracing::warn!(error, "cannot read the served API groups; retrying");
                }
                backoff_delay(failures).min(POLL_INTERVAL)
            }
        };
        if stop.run_until_cancelled(tokio::time::sleep(wait)).await.is_none() {
            return;
        }
    }
}

/// The version of the installed Volcano, if its webhook denies pods whose PodGroup does not exist yet.
async fn early_pods(client: &kube::Client, volcano: bool) -> kube::Result<Option<Version>> {
    if !volcano {
        return Ok(None);
    }
    let pods = pods();
    let pods: Api<DynamicObject> = Api::namespaced_with(client.clone(), early_pods::NAMESPACE, &pods);
    let admission_pods = ListParams::default().labels(early_pods::SELECTOR).match_any();
    let found = pods.list(&admission_pods).await?.items;
    let mut containers = found.iter().flat_map(|pod| json::list(&pod.data, &["spec", "containers"]));
    Ok(containers.find_map(|container| {
        let args = ["command", "args"].into_iter().flat_map(|field| json::list(container, &[field]));
        early_pods::refuses(json::text(container, &["image"]), args.filter_map(Value::as_str))
    }))
}

/// The API of each scheduler type: the first of its row that the cluster serves.
async fn served(client: &kube::Client) -> kube::Result<ServedApis> {
    let groups = client.list_api_groups().await?.groups;
    let mut served = BTreeMap::new();
    for scheduler in gang::TABLE {
        for api in scheduler.apis {
            let group = groups.iter().find(|group| group.name == api.group);
            let version =
                group.is_some_and(|group| group.versions.iter().any(|version| version.version == api.version));
            // The version may be served without this resource: behind a feature gate, or by a scheduler that shares the group.
            if version && has_resource(client, api).await? {
                served.insert(scheduler.kind, api);
                break;
            }
        }
    }
    Ok(ServedApis(served))
}

async fn has_resource(client: &kube::Client, api: &GroupApi) -> kube::Result<bool> {
    match client.list_api_group_resources(&api.api_version()).await {
        Ok(list) => Ok(list.resources.iter().any(|resource| resource.name == api.plural && resource.kind == api.kind)),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
        Err(error) => Err(error),
    }
}
