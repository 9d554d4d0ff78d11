//! Verifies again what a recovery rule found, immediately before its pod is deleted.

use kube::Api;
use kube::core::DynamicObject;

use super::driver_api::DriverApi;
use super::request::Result;
use super::view::resource;
use crate::controller::DriverAnswer;
use crate::fault_injection::{self, Bug};
use crate::reconcile::Recover;
use crate::recovery::DriverPoll;
use crate::recovery::report::DeletedPod;
use crate::runtime::clock;
use crate::spark::ids::AppKey;

/// Whether the driver answers that the executor of this id is not registered. Without an answer nothing is deleted.
pub(super) async fn is_not_registered(drivers: &DriverApi, poll: &DriverPoll, id: u64) -> bool {
    if fault_injection::injected(Bug::NotPolledAgain) {
        return true;
    }
    match drivers.poll(poll.clone()).await {
        DriverAnswer::View { executors, metrics, .. } => {
            let row = executors.iter().find(|row| row.id == Some(id));
            row.map_or(metrics.dropped_events == Some(0), |row| !row.is_active)
        }
        DriverAnswer::Starting | DriverAnswer::Failed(_) => false,
    }
}

/// Whether a node no longer exists.
pub(super) async fn is_node_gone(client: &kube::Client, node: &str) -> Result<bool> {
    let nodes: Api<DynamicObject> = Api::all_with(client.clone(), &resource("", "v1", "Node", "nodes"));
    Ok(nodes.get_metadata_opt(node).await?.is_none())
}

/// What is remembered of a deletion.
pub(super) fn deleted(app: &AppKey, deletion: &Recover) -> DeletedPod {
    DeletedPod {
        app: app.clone(),
        rule: deletion.rule,
        pod: deletion.event.pod.clone(),
        uid: deletion.event.uid.clone(),
        at: clock::now(),
        message: deletion.event.message.clone(),
    }
}
