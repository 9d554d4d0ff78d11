//! Verifies again what a recovery rule found, immediately before its pod is deleted.

use std::ops::ControlFlow;

use kube::api::Api;
use kube::core::DynamicObject;

use super::driver_api::DriverApi;
use super::evidence::visit_pods;
use usher_core::controller::DriverAnswer;
use usher_core::drivers::DriverPoll;
use usher_core::planning::Recover;
use usher_core::recovery::report::DeletedPod;
use usher_core::snapshot::ObservedPod;
use usher_kube::request::Result;
use usher_kube::view::resource;
use usher_runtime::clock;
use usher_spark::ids::AppKey;
use usher_spark::labels;

/// Whether the driver answers that the executor of this id is not registered. Without an answer nothing is deleted.
pub(super) async fn is_not_registered(drivers: &DriverApi, poll: &DriverPoll, id: u64) -> bool {
    match drivers.poll(poll.clone()).await {
        DriverAnswer::View { executors, metrics, .. } => {
            let row = executors.iter().find(|row| row.id == Some(id));
            row.map_or_else(|| metrics.is_complete(&executors, poll.ui.retained_dead), |row| !row.is_active)
        }
        DriverAnswer::Starting | DriverAnswer::Failed(_) => false,
    }
}

/// Whether the driver answers, so that its SparkContext lives, and no executor is registered with it.
pub(super) async fn has_none_registered(drivers: &DriverApi, poll: &DriverPoll) -> bool {
    match drivers.poll(poll.clone()).await {
        DriverAnswer::View { executors, .. } => !executors.iter().any(|row| row.id.is_some() && row.is_active),
        DriverAnswer::Starting | DriverAnswer::Failed(_) => false,
    }
}

/// Whether an application has an executor that has not exited: pending, running, or on a node that does not respond.
pub(super) async fn has_executors(client: &kube::Client, app: &AppKey) -> Result<bool> {
    let mut is_live = false;
    visit_pods(client, app, labels::ROLE_EXECUTOR, None, |pod| match pod {
        Some(ObservedPod::Executor(_, executor)) if executor.state.is_final() => ControlFlow::Continue(()),
        // One that cannot be read exists all the same.
        _ => {
            is_live = true;
            ControlFlow::Break(())
        }
    })
    .await?;
    Ok(is_live)
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
