//! Which account do we write with? Validating admission lets its changes pass.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::api::{Api, PostParams};
use tokio_util::sync::CancellationToken;

use super::client::Brief;

/// How long an answer may take.
const LIMIT: Duration = Duration::from_secs(10);
/// How soon it is asked again.
const AGAIN: Duration = Duration::from_secs(10);

/// Asks until it is answered, which it is once and for all: another account is another process.
pub async fn run(client: kube::Client, own: Arc<ArcSwapOption<String>>, stop: CancellationToken) {
    let api: Api<SelfSubjectReview> = Api::all(client);
    let asking = async {
        let mut complained = false;
        let (params, asked) = (PostParams::default(), SelfSubjectReview::default());
        loop {
            let answer = tokio::time::timeout(LIMIT, api.create(&params, &asked)).await;
            let answer = answer.unwrap_or_else(|_| Err(kube::Error::Service("no answer in time".into())));
            match answer.map(|review| review.status.and_then(|status| status.user_info?.username)) {
                Ok(Some(account)) => {
                    tracing::debug!(account, "the account that we write with");
                    own.store(Some(Arc::new(account)));
                    return;
                }
                Ok(None) => {}
                Err(error) if !complained => {
                    complained = true;
                    tracing::warn!(error = %Brief(&error), "our own account is not known yet; validation may object to our writes");
                }
                Err(_) => {}
            }
            tokio::time::sleep(AGAIN).await;
        }
    };
    stop.run_until_cancelled(asking).await;
    stop.cancelled().await;
}
