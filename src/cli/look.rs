//! Where `apps` and `why` look: at a running spark-usher, or at the API server itself.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::Uri;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use imbl::Vector;
use serde::de::DeserializeOwned;

use crate::cluster::{client, picture};
use crate::lifecycle::Exit;
use crate::snapshot::Snapshot;

/// How long either may take.
const LIMIT: Duration = Duration::from_secs(60);
/// The longest answer.
const MAX_ANSWER: usize = 256 << 20;

#[derive(Debug, clap::Args)]
pub(super) struct Source {
    /// A running spark-usher's debug listener, such as http://127.0.0.1:6060 (kubectl port-forward). It knows the ends of
    /// executors whose pods are gone. Without it the API server is asked, which knows the pods that are there.
    #[arg(long, value_name = "URL", env = "SPARK_USHER_DEBUG")]
    pub(super) debug: Option<Uri>,
    /// kubeconfig; without it $KUBECONFIG, ~/.kube/config, or the pod that it runs in.
    #[arg(long, value_name = "FILE")]
    pub(super) kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig.
    #[arg(long)]
    pub(super) context: Option<String>,
    /// One namespace instead of all.
    #[arg(long, short, value_name = "NAMESPACE")]
    pub(super) namespace: Option<String>,
}

impl Source {
    /// What there is: the answer of a running spark-usher, or a picture of what the API server has.
    pub(super) async fn ask<T: DeserializeOwned>(
        &self,
        path_and_query: &str,
        own: impl FnOnce(&Snapshot, &Vector<Exit>) -> T,
    ) -> anyhow::Result<T> {
        let asking = async {
            if let Some(debug) = &self.debug {
                return get(debug, path_and_query).await.with_context(|| format!("--debug {debug}"));
            }
            let cluster = client::connect(self.kubeconfig.as_deref(), self.context.as_deref()).await?;
            let (snapshot, exits) = picture::take(&cluster.client, self.namespace.as_deref()).await?;
            Ok(own(&snapshot, &exits))
        };
        match tokio::time::timeout(LIMIT, asking).await {
            Ok(outcome) => outcome,
            Err(_) => bail!("no answer within {LIMIT:?}"),
        }
    }

    /// `&namespace=…`, or nothing.
    pub(super) fn namespace_query(&self) -> String {
        self.namespace.as_ref().map_or_else(String::new, |namespace| format!("&namespace={namespace}"))
    }
}

async fn get<T: DeserializeOwned>(base: &Uri, path_and_query: &str) -> anyhow::Result<T> {
    let (Some("http"), Some(authority)) = (base.scheme_str(), base.authority()) else {
        bail!("expected a URL such as http://127.0.0.1:6060");
    };
    let uri: Uri = format!("http://{authority}{path_and_query}").parse()?;
    let client = Client::builder(TokioExecutor::new()).build_http::<Empty<bytes::Bytes>>();
    let response = client.get(uri).await?;
    let status = response.status();
    let body =
        Limited::new(response.into_body(), MAX_ANSWER).collect().await.map_err(|error| anyhow::anyhow!(error))?;
    let body = body.to_bytes();
    if !status.is_success() {
        bail!("{status}: {}", String::from_utf8_lossy(&body).trim());
    }
    serde_json::from_slice(&body).context("expected the answer of spark-usher's debug listener")
}
