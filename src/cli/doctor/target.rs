//! Selects the installation to examine.

use std::path::PathBuf;
use std::time::Duration;

use kube::Config;

use crate::cli::api_server::{request_timeout, within};
use usher_kube::client;

#[derive(Debug, clap::Args)]
pub(super) struct Target {
    /// kubeconfig; the default is $KUBECONFIG, ~/.kube/config, or the service account of the pod.
    #[arg(long, value_name = "FILE")]
    pub(super) kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig.
    #[arg(long)]
    pub(super) context: Option<String>,
    /// How long each request to the API server may wait until its answer begins; 0 for no limit.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = request_timeout)]
    pub(super) request_timeout: Duration,
    /// Namespace in which spark-usher is installed.
    #[arg(long, short, value_name = "NAMESPACE", default_value = "spark-usher")]
    pub(super) namespace: String,
}

impl Target {
    pub(super) async fn config(&self) -> anyhow::Result<Config> {
        let config = client::configure(self.kubeconfig.as_deref(), self.context.as_deref()).await?;
        Ok(within(config, self.request_timeout))
    }
}
