//! Finding the API server.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

/// How long a connection may take to be made.
const CONNECT: Duration = Duration::from_secs(5);

/// A client, and the namespace that its configuration names.
#[derive(Clone)]
pub struct Cluster {
    /// The client.
    pub client: Client,
    /// The pod's own namespace, or that of the kubeconfig's context.
    pub namespace: String,
}

/// Reads the kubeconfig at this path, else what the environment offers: the kubeconfig that `KUBECONFIG` or the home
/// folder holds, else the service account of the pod that we run in.
pub async fn connect(kubeconfig: Option<&Path>, context: Option<&str>) -> anyhow::Result<Cluster> {
    let options = KubeConfigOptions { context: context.map(str::to_owned), ..KubeConfigOptions::default() };
    let mut config = match kubeconfig {
        Some(path) => {
            let read = Kubeconfig::read_from(path).with_context(|| format!("--kubeconfig {}", path.display()))?;
            let config = Config::from_custom_kubeconfig(read, &options).await;
            config.with_context(|| format!("--kubeconfig {}", path.display()))?
        }
        None if context.is_some() => Config::from_kubeconfig(&options).await.context("--context")?,
        None => Config::infer().await.context(
            "no API server found: expected --kubeconfig FILE, $KUBECONFIG, ~/.kube/config, or to run in a pod",
        )?,
    };
    config.connect_timeout = Some(CONNECT);
    let namespace = config.default_namespace.clone();
    Ok(Cluster { client: Client::try_from(config)?, namespace })
}
