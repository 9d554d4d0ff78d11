//! Which API server the commands of operators ask.

use std::path::PathBuf;
use std::time::Duration;

use jiff::SignedDuration;
use kube::{Client, Config};

use usher_kube::access::Access;
use usher_kube::client;

#[derive(Clone, Debug, Default, clap::Args)]
pub(super) struct ApiServer {
    /// kubeconfig; the default is $KUBECONFIG, ~/.kube/config, or the service account of the pod.
    #[arg(long, value_name = "FILE")]
    pub(super) kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig.
    #[arg(long)]
    pub(super) context: Option<String>,
    /// API server, as for spark-submit: k8s://URL. The default is that of the kubeconfig.
    #[arg(long, value_name = "URL", value_parser = master)]
    pub(super) master: Option<String>,
    /// How long each request to it may wait until its answer begins, such as 10s or 1m; 0 for no limit beside those of the command itself.
    #[arg(long, value_name = "DURATION", default_value = "0", value_parser = request_timeout)]
    pub(super) request_timeout: Duration,
    /// What a configuration of Spark says about the access to it.
    #[arg(skip)]
    pub(super) access: Access,
}

pub(super) struct Connection {
    pub(super) client: Client,
    /// The namespace of the context, or `default`.
    pub(super) namespace: String,
    /// As spark-submit names it.
    pub(super) master: String,
}

impl ApiServer {
    pub(super) async fn connect(&self) -> anyhow::Result<Connection> {
        let config = self.config().await?;
        let of_config = || format!("k8s://{}", config.cluster_url.to_string().trim_end_matches('/'));
        let master = self.master.clone().unwrap_or_else(of_config);
        let client::Cluster { client, namespace, .. } = client::of(config)?;
        Ok(Connection { client, namespace, master })
    }

    pub(super) async fn cluster(&self) -> anyhow::Result<client::Cluster> {
        client::of(self.config().await?)
    }

    async fn config(&self) -> anyhow::Result<Config> {
        let found = client::configure(self.kubeconfig.as_deref(), self.context()).await;
        let config = client::with_access(found, self.master.as_deref(), &self.access)?;
        Ok(within(config, self.request_timeout))
    }

    /// The namespace that the configuration names.
    pub(super) fn named_namespace(&self) -> Option<String> {
        client::named_namespace(self.kubeconfig.as_deref(), self.context())
    }

    fn context(&self) -> Option<&str> {
        self.context.as_deref().or(self.access.context.as_deref())
    }
}

/// A configuration whose requests have this timeout; none if it is zero.
pub(super) fn within(mut config: Config, timeout: Duration) -> Config {
    config.read_timeout = Some(timeout).filter(|timeout| !timeout.is_zero());
    config
}

/// As kubectl's: a number and a unit, or seconds.
pub(super) fn request_timeout(text: &str) -> Result<Duration, String> {
    if let Ok(seconds) = text.parse() {
        return Ok(Duration::from_secs(seconds));
    }
    let parsed = text.parse::<SignedDuration>().ok().and_then(|time| Duration::try_from(time).ok());
    parsed.ok_or_else(|| format!("expected a duration such as 10s or 1m, or 0 for none, not {text:?}"))
}

fn master(text: &str) -> Result<String, String> {
    // As it is given: spark-submit prints it so.
    usher_submit::master_url(text).map(|_| text.to_owned()).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeout_is_a_duration_or_seconds() {
        for (text, seconds) in [("0", 0), ("30", 30), ("10s", 10), ("1m", 60), ("1h 5s", 3605)] {
            assert_eq!(request_timeout(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for text in ["", "-5s", "soon", "10 apples"] {
            assert!(request_timeout(text).unwrap_err().starts_with("expected a duration such as 10s"), "{text}");
        }
    }
}
