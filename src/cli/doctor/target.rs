//! Selects the installation to examine.

use std::path::PathBuf;

#[derive(Debug, clap::Args)]
pub(super) struct Target {
    /// kubeconfig; the default is $KUBECONFIG, ~/.kube/config, or the service account of the pod.
    #[arg(long, value_name = "FILE")]
    pub(super) kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig.
    #[arg(long)]
    pub(super) context: Option<String>,
    /// Namespace in which spark-usher is installed.
    #[arg(long, short, value_name = "NAMESPACE", default_value = "spark-usher")]
    pub(super) namespace: String,
}
