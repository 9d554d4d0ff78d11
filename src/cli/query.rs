//! Data source of `apps` and `why`: a running spark-usher, or the API server itself.

use std::time::Duration;

use anyhow::{Context, bail};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::Uri;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde::de::DeserializeOwned;

use super::api_server::ApiServer;
use crate::cluster::client::Brief;
use crate::cluster::{client, list};
use crate::http::debug;
use crate::snapshot::Snapshot;
use crate::text::{is_dns_label, shown};
use crate::views::History;

/// Timeout of a debug listener's response, or of an API server's first response.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout of the whole query.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(120);
/// Maximum size of an answer.
const MAX_ANSWER: usize = 256 << 20;

#[derive(Debug, clap::Args)]
pub(super) struct Source {
    /// URL of the debug listener of a running spark-usher, such as http://127.0.0.1:6060 (kubectl port-forward). It also
    /// reports exits of executors whose pods no longer exist. Without it the API server is queried, which has existing pods
    /// only.
    #[arg(long, value_name = "URL", env = "SPARK_USHER_DEBUG")]
    pub(super) debug: Option<Uri>,
    #[command(flatten)]
    server: ApiServer,
    /// Namespace; the default is all namespaces.
    #[arg(long, short, value_name = "NAMESPACE", value_parser = namespace)]
    pub(super) namespace: Option<String>,
    /// All namespaces; the default.
    #[arg(long, short = 'A', conflicts_with = "namespace")]
    all_namespaces: bool,
}

pub(super) fn namespace(text: &str) -> Result<String, String> {
    if is_dns_label(text) {
        return Ok(text.to_owned());
    }
    Err("expected a namespace: at most 63 lower-case letters, digits and '-', with a letter or digit at both ends"
        .to_owned())
}

/// Result of a query.
pub(super) struct Found<T> {
    /// The answer.
    pub(super) answer: T,
    /// A warning about the replica that answered.
    pub(super) caution: Option<String>,
}

const MAY_BE_OLD: &str = "this replica knows no leader: it may not reach the API server, and its data may be stale";

impl Source {
    /// Queries a running spark-usher, or computes the answer from a snapshot of the API server's objects.
    pub(super) async fn query<T: DeserializeOwned>(
        &self,
        path_and_query: &str,
        own: impl FnOnce(&Snapshot, &History) -> T,
    ) -> anyhow::Result<Found<T>> {
        if let Some(debug) = &self.debug {
            return match tokio::time::timeout(ANSWER_TIMEOUT, get(debug, path_and_query)).await {
                Ok(outcome) => outcome.with_context(|| format!("--debug {debug}")),
                Err(_) => bail!("--debug {debug}: no answer within {ANSWER_TIMEOUT:?}"),
            };
        }
        let cluster = self.reach().await?;
        match tokio::time::timeout(REQUEST_TIMEOUT, list::list(&cluster.client, self.namespace.as_deref())).await {
            Ok(Ok((snapshot, history))) => Ok(Found { answer: own(&snapshot, &history), caution: None }),
            Ok(Err(error)) => {
                let is_denied = matches!(&error, kube::Error::Api(status) if status.code == 403);
                let hint = if is_denied && self.namespace.is_none() {
                    "; --namespace NAMESPACE needs the right for one namespace only"
                } else {
                    ""
                };
                bail!("{}: {}{hint}", cluster.server, Brief(&error))
            }
            Err(_) => bail!("{}: the list of pods did not complete within {REQUEST_TIMEOUT:?}", cluster.server),
        }
    }

    /// Describes a pod of that name that belongs to no application: its namespace, and the labels that it lacks.
    pub(super) async fn unselected_pod(&self, name: &str) -> anyhow::Result<Option<String>> {
        let cluster = self.reach().await?;
        let unselected_pod = list::unselected_pod(&cluster.client, self.namespace.as_deref(), name).await;
        unselected_pod.map_err(|error| anyhow::anyhow!("{}: {}", cluster.server, Brief(&error)))
    }

    /// A client for an API server that answers.
    pub(super) async fn reach(&self) -> anyhow::Result<client::Cluster> {
        let cluster = self.server.cluster().await?;
        match tokio::time::timeout(ANSWER_TIMEOUT, cluster.client.apiserver_version()).await {
            Ok(Ok(_)) => Ok(cluster),
            Ok(Err(error)) => bail!("{}: {}", cluster.server, Brief(&error)),
            Err(_) => bail!("{}: no answer within {ANSWER_TIMEOUT:?}", cluster.server),
        }
    }

    /// ` in namespace …`, or empty.
    pub(super) fn place(&self) -> String {
        self.namespace.as_ref().map_or_else(String::new, |namespace| format!(" in namespace {namespace}"))
    }

    /// `&namespace=…`, or empty.
    pub(super) fn namespace_query(&self) -> String {
        self.namespace.as_ref().map_or_else(String::new, |namespace| format!("&namespace={namespace}"))
    }
}

async fn get<T: DeserializeOwned>(base: &Uri, path_and_query: &str) -> anyhow::Result<Found<T>> {
    let (Some("http"), Some(authority)) = (base.scheme_str(), base.authority()) else {
        bail!("expected a URL such as http://127.0.0.1:6060");
    };
    let uri: Uri = format!("http://{authority}{path_and_query}").parse()?;
    let client = Client::builder(TokioExecutor::new()).build_http::<Empty<bytes::Bytes>>();
    let response = client.get(uri).await.map_err(|error| {
        anyhow::anyhow!("{}; expected spark-usher's debug listener: is kubectl port-forward running?", Brief(&error))
    })?;
    let status = response.status();
    let header = |name| response.headers().get(name).cloned();
    let (leader_state, unseen) = (header(debug::LEADER_STATE_HEADER), header(debug::UNSEEN_HEADER));
    let body =
        Limited::new(response.into_body(), MAX_ANSWER).collect().await.map_err(|error| anyhow::anyhow!(error))?;
    let body = body.to_bytes();
    let Some(leader_state) = leader_state.filter(|_| status.is_success()) else {
        let body = String::from_utf8_lossy(&body);
        let body = body.trim().chars().take(200).collect::<String>();
        bail!("{status} {body}: expected spark-usher's debug listener (port 6060, or the one in --debug-listen)");
    };
    let answer = serde_json::from_slice(&body).context("expected a response of spark-usher's debug listener")?;
    let unseen = unseen.as_ref().and_then(|unseen| unseen.to_str().ok());
    let unseen =
        unseen.map(|unseen| format!("this replica does not see {}: its data is incomplete or stale", shown(unseen)));
    Ok(Found { answer, caution: unseen.or_else(|| (leader_state == "no-leader").then(|| MAY_BE_OLD.to_owned())) })
}
