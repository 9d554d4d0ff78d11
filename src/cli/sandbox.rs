//! `spark-usher sandbox`: runs the in-memory Kubernetes API.

use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;

use super::output::{OK, block_on, failed};
use super::trial;
use usher_net::telemetry::log;
use usher_runtime::files;
use usher_runtime::shutdown::Signals;
use usher_sandbox::{Options, Pods, Sandbox, Version};
use usher_server::app::{App, ConfigSource};

/// What no container does.
const ANNOTATIONS: &str = "\
Annotations of pods, because no container runs:
  sandbox.spark-usher.io/exit  CODE@AFTER, such as 0@5s or 137@200ms: the containers exit with this
                               code so long after their start
  sandbox.spark-usher.io/log   what the containers write, a line every 50 ms
  sandbox.spark-usher.io/node  down: the pod neither starts nor terminates; starts-nothing: it does
                               not start; refuses: the node rejects it. On a Node, it holds for all
                               pods of the node

spark-submit and spark-usher submit set them by
--conf spark.kubernetes.driver.annotation.NAME=VALUE and, for executors,
spark.kubernetes.executor.annotation.NAME=VALUE";

#[derive(Debug, clap::Args)]
#[command(after_help = ANNOTATIONS)]
pub(super) struct Args {
    /// HTTP port on 127.0.0.1, where every client is an administrator; 0 selects a free port.
    #[arg(long, default_value = "8001")]
    http_port: u16,
    /// HTTPS port on 127.0.0.1, which requires a token; 0 selects a free port.
    #[arg(long, default_value = "6443")]
    https_port: u16,
    /// Kubernetes release to simulate.
    #[arg(long, value_enum, default_value = "1.37")]
    kubernetes: Version,
    /// Number of simulated nodes.
    #[arg(long, default_value = "3")]
    nodes: u32,
    /// Cores and gibibytes of each node.
    #[arg(long, value_name = "CORES,GIB", default_value = "16,64", value_parser = size)]
    node_size: (u32, u32),
    /// Leave pods pending: run neither the simulated scheduler, which supports gangs, nor the simulated kubelet.
    #[arg(long)]
    no_run: bool,
    /// Enforce RBAC for service accounts.
    #[arg(long)]
    rbac: bool,
    /// Require the permission to delete an object for changes of its owners, as the admission plugin
    /// OwnerReferencesPermissionEnforcement does.
    #[arg(long, requires = "rbac")]
    enforce_owners: bool,
    /// Run spark-usher beside it, with this policy file and as its leader: its webhooks are registered, and the API serves the PodGroups of
    /// the schedulers that the file names. A changed file is read again.
    #[arg(long, value_name = "POLICY")]
    with_usher: Option<PathBuf>,
    /// With --with-usher: port on 127.0.0.1 of /debug and of the web page; 0 selects a free port.
    #[arg(long, default_value = "6060", requires = "with_usher")]
    debug_port: u16,
    /// File to which the kubeconfig is written.
    #[arg(long, value_name = "FILE", default_value = "sandbox.kubeconfig")]
    kubeconfig: PathBuf,
    /// Log level, or directives such as info,spark_usher=debug (every request is logged at debug).
    #[arg(long, default_value = "warn", env = "SPARK_USHER_LOG")]
    log: String,
}

fn size(text: &str) -> Result<(u32, u32), String> {
    let parsed = text.split_once(',').and_then(|(cores, memory)| Some((cores.parse().ok()?, memory.parse().ok()?)));
    parsed.ok_or_else(|| "expected cores and gibibytes, such as 16,64".to_owned())
}

pub(super) fn run(args: &Args, out: &mut dyn Write, err: &mut dyn Write) -> io::Result<u8> {
    let outcome = log::init(&args.log, log::Format::Text).and_then(|()| block_on(serve(args, out)));
    match outcome {
        Ok(()) => Ok(OK),
        Err(error) => failed(err, &error),
    }
}

async fn serve(args: &Args, out: &mut dyn Write) -> anyhow::Result<()> {
    let at = |port| SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port);
    let mut signals = Signals::listen()?;
    let mut sandbox = Sandbox::start(&Options {
        http: at(args.http_port),
        https: at(args.https_port),
        version: args.kubernetes,
        nodes: args.nodes,
        node_size: args.node_size,
        pods: if args.no_run { Pods::Left } else { Pods::Run },
        authorize: args.rbac,
        enforce_owners: args.enforce_owners,
        ..Options::default()
    })?;
    let mut usher = match &args.with_usher {
        Some(policy) => Some(start_usher(&sandbox, policy, at(args.debug_port)).await?),
        None => None,
    };
    write_kubeconfig(&args.kubeconfig, &sandbox.kubeconfig())?;
    let path = args.kubeconfig.display();
    writeln!(out, "an in-memory Kubernetes API, not a cluster; its objects are lost when it stops")?;
    writeln!(out, "  http   {}  (no token required)", sandbox.http_url())?;
    writeln!(out, "  https  {}", sandbox.https_url())?;
    writeln!(out, "  kubectl --kubeconfig {path} get nodes")?;
    writeln!(out, "  spark-submit --master k8s://{} …", sandbox.http_url())?;
    if let Some(debug) = usher.as_ref().and_then(App::debug) {
        writeln!(out, "spark-usher runs beside it, and its webhooks are registered")?;
        writeln!(out, "  web page  http://{debug}/")?;
        writeln!(out, "  spark-usher apps --kubeconfig {path} -A")?;
    }
    out.flush()?;
    let usher_failed = async {
        match &mut usher {
            Some(usher) => usher.failed().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        error = sandbox.failed() => return Err(error),
        error = usher_failed => return Err(error),
        signal = signals.next() => tracing::info!(signal, "stopping"),
    }
    let _ = std::fs::remove_file(&args.kubeconfig);
    if let Some(usher) = usher {
        usher.stop().await?;
    }
    sandbox.stop().await
}

/// Starts spark-usher with this policy file; returns when it has read the cluster.
async fn start_usher(sandbox: &Sandbox, policy: &Path, debug: SocketAddr) -> anyhow::Result<App> {
    let text = std::fs::read_to_string(policy).with_context(|| format!("--with-usher {}", policy.display()))?;
    let config = usher_config::from_text(&text).with_context(|| format!("--with-usher {}", policy.display()))?;
    trial::serve_groups(&sandbox.client(sandbox.admin_token())?, &config.policies).await?;
    let mut usher = trial::start(sandbox, ConfigSource::File(policy.to_owned()), debug, &[]).await?;
    let synced = tokio::time::timeout(SYNC_TIMEOUT, usher.has_synced()).await;
    synced.context("spark-usher did not become ready")?;
    Ok(usher)
}

/// How long it may take to read the sandbox.
const SYNC_TIMEOUT: Duration = Duration::from_secs(20);

/// Writes a kubeconfig that only its owner can read: it contains a token.
pub(super) fn write_kubeconfig(path: &Path, text: &str) -> anyhow::Result<()> {
    files::write(path, text, 0o600).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use usher_sandbox::{EXIT_ANNOTATION, LOG_ANNOTATION, NODE_ANNOTATION};

    #[test]
    fn help_names_the_annotations_that_the_sandbox_reads() {
        for name in [EXIT_ANNOTATION, LOG_ANNOTATION, NODE_ANNOTATION] {
            assert!(ANNOTATIONS.contains(&format!("  {name} ")), "{name}");
        }
    }
}
