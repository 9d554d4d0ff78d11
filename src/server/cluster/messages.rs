//! Reads the objects on which a scheduler states why the pods of a namespace wait ([`usher_core::gang::messages`]).

use kube::api::{Api, DynamicObject, ListParams};
use serde_json::Value;

use usher_core::gang::{GangScheduler, MessagesOn, messages};
use usher_core::snapshot::SchedulerMessages;
use usher_kube::request::{Result, pages};
use usher_kube::view::resource;
use usher_runtime::clock;
use usher_spark::labels;

/// At most this many pages are read, each with this many objects; what is beyond them stays unsaid.
const PAGES: usize = 4;
const PAGE: u32 = 500;
/// The versions of Kueue's API with Workloads, the newest first.
const KUEUE_VERSIONS: [&str; 2] = ["v1beta2", "v1beta1"];

/// What a scheduler of this type states about pods of a namespace; `None` if the cluster does not serve its objects.
pub(super) async fn read(client: &kube::Client, namespace: &str, kind: &str) -> Result<Option<SchedulerMessages>> {
    let Some(scheduler) = GangScheduler::of_kind(kind) else { return Ok(None) };
    let list = async |(group, version, kind, plural): (&str, &str, &str, &str), params: ListParams| {
        let api: Api<DynamicObject> =
            Api::namespaced_with(client.clone(), namespace, &resource(group, version, kind, plural));
        pages(params.limit(PAGE), PAGES, |page| {
            let api = &api;
            async move { api.list(&page).await }
        })
        .await
    };
    let found = match scheduler.messages_on {
        MessagesOn::Pods => return Ok(None),
        MessagesOn::GroupEvents => {
            let about = ListParams::default().fields("involvedObject.kind=PodGroup");
            list(("", "v1", "Event", "events"), about).await?
        }
        MessagesOn::Placeholders => {
            // Pods of Spark are no placeholders.
            let pending = ListParams::default().fields("status.phase=Pending");
            list(("", "v1", "Pod", "pods"), pending.labels(&format!("!{}", labels::ROLE))).await?
        }
        MessagesOn::Workloads => {
            let mut found = None;
            for version in KUEUE_VERSIONS {
                match list(("kueue.x-k8s.io", version, "Workload", "workloads"), ListParams::default()).await {
                    Ok(items) => {
                        found = Some(items);
                        break;
                    }
                    Err(kube::Error::Api(status)) if status.code == 404 => {}
                    Err(error) => return Err(error.into()),
                }
            }
            let Some(found) = found else { return Ok(None) };
            found
        }
    };
    let objects: serde_json::Result<Vec<Value>> = found.into_iter().map(serde_json::to_value).collect();
    let objects = objects.map_err(kube::Error::SerdeError)?;
    Ok(Some(messages::read(scheduler, objects.iter(), clock::now())))
}
