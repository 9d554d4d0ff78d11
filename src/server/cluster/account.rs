//! Determines spark-usher's own account, whose changes validating admission allows.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use futures::TryFutureExt;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::api::{Api, PostParams};
use tokio_util::sync::CancellationToken;

use usher_kube::client::Brief;
use usher_kube::request::{Result, call};

const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// The delay between attempts.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);

/// Retries until the API server answers. The answer is final, because the account of a process does not change.
pub async fn run(client: kube::Client, own_account: Arc<ArcSwapOption<String>>, stop: CancellationToken) {
    let api: Api<SelfSubjectReview> = Api::all(client);
    let asking = async {
        let mut is_reported = false;
        let (params, asked) = (PostParams::default(), SelfSubjectReview::default());
        loop {
            let answer: Result<_> = call(REQUEST_TIMEOUT, api.create(&params, &asked).err_into()).await;
            match answer.map(|review| review.status.and_then(|status| status.user_info?.username)) {
                Ok(Some(account)) => {
                    tracing::debug!(account, "own account");
                    own_account.store(Some(Arc::new(account)));
                    return;
                }
                answer if !is_reported => {
                    is_reported = true;
                    let error = answer.err().map(|error| Brief(&error).to_string());
                    tracing::warn!(
                        error = error.as_deref().unwrap_or("the SelfSubjectReview names no user"),
                        "cannot determine the own account; until then validation may deny the controller's writes, and the leader applies no admission policies; retrying"
                    );
                }
                _ => {}
            }
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
    };
    stop.run_until_cancelled(asking).await;
    stop.cancelled().await;
}
