//! Selects the installation to examine.

use std::path::PathBuf;

#[derive(Debug, clap::Args)]
pub(super) struct Target {
    /// kubeconfig; without it $KUBECONFIG, ~/.kube/config, or the pod that it runs in.
    #[arg(long, value_name = "FILE")]
    pub(super) kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig.
    #[arg(long)]
    pub(super) context: Option<String>,
    /// Where spark-usher is installed.
    #[arg(long, short, value_name = "NAMESPACE", default_value = "spark-usher")]
    pub(super) namespace: String,
}
