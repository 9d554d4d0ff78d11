//! `spark-usher serve`: runs the webhook and the controller until stopped.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, ensure};

use super::output::{OK, block_on, failed};
use super::policy::{Namespaces, requirements};
use usher_core::manifests::creator_policy;
use usher_core::manifests::installation::{Installation, Kind, except};
use usher_kube::client;
use usher_kube::limit::Rate;
use usher_net::listener::capacity::Capacities;
use usher_net::telemetry::log;
use usher_net::tls::ca::Authority;
use usher_net::tls::load::load;
use usher_net::tls::rotation::{self, Lifetimes};
use usher_report::ui::{LinkTemplate, Links};
use usher_runtime::shutdown::Signals;
use usher_runtime::{clock, descriptors, files};
use usher_server::app::{App, CertificateSource, ClientCa, ConfigSource, Options};
use usher_server::cluster::certificates::Managed;
use usher_server::cluster::lease::{self, Election};
use usher_server::cluster::policies::{AdmissionPolicies, Owner};
use usher_server::cluster::signing::Signing;
use usher_server::cluster::vouching::{self, Vouching};
use usher_server::http::handlers;

#[derive(Debug, clap::Args)]
#[command(args_override_self = true)] // Arguments that a user adds override those of the chart.
pub(super) struct Args {
    /// Policy file, polled every 10 s. Without one every executor gets its ownerReference, and finished executors that their
    /// driver leaves behind are labelled.
    #[arg(long, value_name = "FILE", env = "SPARK_USHER_CONFIG")]
    config: Option<PathBuf>,
    /// Address of the webhook, HTTPS.
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:8443")]
    webhook_listen: SocketAddr,
    /// Address of /livez, /readyz and /metrics, HTTP.
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:8080")]
    metrics_listen: SocketAddr,
    /// Address of /debug and of the web page, HTTP: for `spark-usher apps` and `why`, and for a browser, through kubectl
    /// port-forward.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:6060")]
    debug_listen: SocketAddr,
    /// Serve only /debug there, and no web page.
    #[arg(long)]
    no_web_page: bool,
    /// Names by which clients may call that address, beside addresses and localhost: a request to any other name is refused,
    /// because a web site can let its own name resolve to it.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    debug_hosts: Vec<String>,
    /// Where the web page links to the Spark UI of a running driver: a URL in which {namespace}, {id}, {name} and {driver} stand for the
    /// application's namespace, id (spark-app-selector), name and driver's pod.
    #[arg(long, value_name = "URL", conflicts_with = "no_web_page")]
    spark_ui_url: Option<LinkTemplate>,
    /// Where the web page links to an application in a history server, such as `https://history.example.com/history/{id}/jobs/`; with the
    /// same placeholders.
    #[arg(long, value_name = "URL", conflicts_with = "no_web_page")]
    history_server_url: Option<LinkTemplate>,
    /// Secret in spark-usher's namespace that stores the serving certificate. The leader creates and renews the certificate,
    /// and writes its CA into the webhook configurations.
    #[arg(long, value_name = "NAME", requires = "tls_names", conflicts_with_all = ["tls_cert", "self_signed_for"])]
    tls_secret: Option<String>,
    /// DNS names and addresses of that certificate, such as spark-usher.spark-usher.svc, the name of the Service.
    #[arg(long, value_name = "NAME", value_delimiter = ',', requires = "tls_secret")]
    tls_names: Vec<String>,
    /// MutatingWebhookConfiguration whose caBundle the leader maintains.
    #[arg(long, value_name = "NAME", requires = "tls_secret")]
    mutating_configuration: Option<String>,
    /// ValidatingWebhookConfiguration whose caBundle the leader maintains.
    #[arg(long, value_name = "NAME", requires = "tls_secret")]
    validating_configuration: Option<String>,
    /// File with the serving certificate, PEM, the leaf first, which another component renews. A changed file is reloaded
    /// within 10 s.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// File with the private key of --tls-cert, PEM.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Create a self-signed CA and a certificate for these names at every start: for a single replica, and for trials.
    #[arg(long, value_name = "NAME", value_delimiter = ',', conflicts_with = "tls_cert", requires = "ca_out")]
    self_signed_for: Vec<String>,
    /// File to which the CA of --self-signed-for is written, for the caBundle of the webhook configuration.
    #[arg(long, value_name = "FILE", requires = "self_signed_for")]
    ca_out: Option<PathBuf>,
    /// Secret in spark-usher's namespace with the key that signs the webhook's decisions. The first replica creates it, and a
    /// deleted or emptied Secret is restored with the same key. To replace the key, write 32 other bytes to its entry
    /// signing.key. Without this flag a changed policy file applies to running applications immediately.
    #[arg(long, value_name = "NAME")]
    signing_secret: Option<String>,
    /// First part of the names of the creator policy (`spark-usher policy --creator --name`, or the chart). Decisions are signed, and
    /// signatures are believed, only while it is installed, or with --client-ca.
    #[arg(long, value_name = "NAME", default_value = creator_policy::NAME, requires = "signing_secret")]
    creator_policy: String,
    /// CA bundle (PEM) for client certificates: the webhook accepts only clients with a certificate signed by it. A changed
    /// file is reloaded within 10 s. API servers send a certificate if their AdmissionConfiguration names one.
    #[arg(long, value_name = "FILE")]
    client_ca: Option<PathBuf>,
    /// Accepted client names: the certificate must contain one of them as common name or subject alternative name (DNS, URI,
    /// email).
    #[arg(long, value_name = "NAME", value_delimiter = ',', requires = "client_ca")]
    client_name: Vec<String>,
    /// Maximum number of connections to the webhook, further limited by the number of file descriptors. At the maximum,
    /// connections that completed no review are closed first.
    #[arg(long, value_name = "COUNT", default_value_t = Capacities::WEBHOOK, value_parser = connections)]
    max_connections: usize,
    /// Admission policies that API servers evaluate themselves, and that the leader applies as the policy file asks for: validating
    /// (deny what `validate: Enforce` denies; Kubernetes 1.30), fallback (set the owner of executors; 1.36), fallback-scheduler (set
    /// the owner and the scheduler).
    #[arg(long, value_name = "KIND", value_delimiter = ',', value_parser = kind)]
    admission_policies: Vec<Kind>,
    /// First part of the names of these policies.
    #[arg(long, value_name = "NAME", default_value = creator_policy::NAME, requires = "admission_policies")]
    admission_policy_names: String,
    /// Requirements on the labels of namespaces, a JSON list of matchExpressions: the policies judge the pods of those that meet all;
    /// the default is every namespace but kube-system.
    #[arg(long, value_name = "JSON", value_parser = requirements, requires = "admission_policies")]
    admission_policy_namespaces: Option<Namespaces>,
    /// The leader applies the validating policies, and the garbage collector deletes them with this object: ClusterRole/NAME,
    /// MutatingWebhookConfiguration/NAME or ValidatingWebhookConfiguration/NAME. Without it, an administrator applies the output of
    /// `spark-usher policy`, and a metric counts the differences between the policies of the cluster and those of the policy file.
    #[arg(long, value_name = "KIND/NAME", requires = "admission_policies")]
    validating_policy_owner: Option<Owner>,
    /// The same for the fallback policies.
    #[arg(long, value_name = "KIND/NAME", requires = "admission_policies")]
    fallback_policy_owner: Option<Owner>,
    /// kubeconfig; the default is $KUBECONFIG, ~/.kube/config, or the service account of the pod.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig.
    #[arg(long)]
    context: Option<String>,
    /// Namespace of the Lease and the Secrets; the default is that of the pod, or of the kubeconfig's context.
    #[arg(long, value_name = "NAMESPACE", env = "POD_NAMESPACE")]
    namespace: Option<String>,
    /// Name of the Lease for leader election: only the leader writes.
    #[arg(long, value_name = "NAME", default_value = "spark-usher")]
    lease: String,
    /// Seconds without a renewal of the Lease after which another replica takes over.
    #[arg(long, value_name = "SECONDS", default_value = "4", value_parser = clap::value_parser!(u64).range(2..=300))]
    lease_seconds: u64,
    /// Seconds after which a watch of pods without changes and bookmarks is restarted if a poll shows a change. API servers
    /// send a bookmark every minute.
    #[arg(long, value_name = "SECONDS", default_value = "130", value_parser = clap::value_parser!(u64).range(5..=3600))]
    watch_silence_seconds: u64,
    /// Maximum number of requests of the controller per second, the most urgent first. Watches and the Lease are not counted.
    #[arg(long, value_name = "COUNT", default_value = "50", value_parser = clap::value_parser!(u16).range(1..))]
    kube_api_qps: u16,
    /// Maximum burst of requests of the controller after an idle period.
    #[arg(long, value_name = "COUNT", default_value = "100", value_parser = clap::value_parser!(u32).range(1..))]
    kube_api_burst: u32,
    /// Identity of this replica, to which a random suffix is added.
    #[arg(long, value_name = "NAME", env = "POD_NAME", default_value = "spark-usher")]
    identity: String,
    /// Seconds to continue serving after SIGTERM, while the replica is removed from the Service's endpoints.
    #[arg(long, value_name = "SECONDS", default_value = "5")]
    shutdown_delay_seconds: u64,
    /// Seconds that requests may then take to finish.
    #[arg(long, value_name = "SECONDS", default_value = "10")]
    drain_seconds: u64,
    /// Log level, or directives such as info,spark_usher=debug.
    #[arg(long, default_value = "info", env = "SPARK_USHER_LOG")]
    log: String,
    /// Format of log lines.
    #[arg(long, value_enum, default_value = "text")]
    log_format: log::Format,
}

fn kind(text: &str) -> Result<Kind, String> {
    Kind::of(text).ok_or_else(|| format!("expected {}", Kind::ALL.map(Kind::as_str).join(", ")))
}

/// The admission policies that follow the policy file.
fn admission_policies(args: &Args) -> Vec<AdmissionPolicies> {
    let default = || except(&["kube-system".to_owned()]);
    let installation = Installation {
        name: args.admission_policy_names.clone(),
        namespaces: args.admission_policy_namespaces.as_ref().map_or_else(default, |namespaces| namespaces.0.clone()),
        kinds: args.admission_policies.clone(),
    };
    let parts = installation.parts().into_iter().map(|installation| AdmissionPolicies {
        owner: match installation.validates() {
            true => args.validating_policy_owner.clone(),
            false => args.fallback_policy_owner.clone(),
        },
        installation,
        settle: vouching::SETTLE,
    });
    parts.collect()
}

/// API servers keep 25 connections each per path.
const MIN_CONNECTIONS: usize = 64;

fn connections(text: &str) -> Result<usize, String> {
    text.parse()
        .ok()
        .filter(|count| *count >= MIN_CONNECTIONS)
        .ok_or_else(|| format!("expected a number of at least {MIN_CONNECTIONS}"))
}

const FILE_POLL_INTERVAL: Duration = Duration::from_secs(10);

pub(super) fn run(args: &Args, err: &mut dyn Write) -> io::Result<u8> {
    let outcome = log::init(&args.log, args.log_format).and_then(|()| block_on(serve(args)));
    match outcome {
        Ok(()) => Ok(OK),
        Err(error) => failed(err, &error),
    }
}

async fn serve(args: &Args) -> anyhow::Result<()> {
    let mut signals = Signals::listen()?;
    let cluster = client::connect(args.kubeconfig.as_deref(), args.context.as_deref()).await?;
    let namespace = args.namespace.clone().unwrap_or_else(|| cluster.namespace.clone());
    let duration = Duration::from_secs(args.lease_seconds);
    let election = Election {
        namespace: namespace.clone(),
        name: args.lease.clone(),
        identity: lease::identity(&args.identity),
        duration,
        period: duration / 4,
    };
    let descriptors = descriptors::raise();
    let capacities = Capacities::within(descriptors, args.max_connections);
    let options = Options {
        cluster,
        webhook: args.webhook_listen,
        metrics: args.metrics_listen,
        debug: Some(args.debug_listen),
        page: (!args.no_web_page)
            .then(|| Links { spark_ui: args.spark_ui_url.clone(), history_server: args.history_server_url.clone() }),
        debug_hosts: args.debug_hosts.clone(),
        certificate: certificate(args, &namespace)?,
        admission_policies: admission_policies(args),
        signing: args.signing_secret.clone().map(|secret| Signing {
            namespace: namespace.clone(),
            secret,
            vouching: Vouching {
                policy: args.creator_policy.clone(),
                settle: vouching::SETTLE,
                client_certificates: args.client_ca.is_some(),
            },
        }),
        client_ca: args.client_ca.clone().map(|file| ClientCa { file, names: args.client_name.clone() }),
        capacities,
        config: args.config.clone().map_or(ConfigSource::Nothing, ConfigSource::File),
        file_poll_interval: FILE_POLL_INTERVAL,
        election,
        watch_silence: Duration::from_secs(args.watch_silence_seconds),
        rate: Rate { qps: args.kube_api_qps.into(), burst: args.kube_api_burst },
        settle: handlers::SETTLE,
        drain: Duration::from_secs(args.drain_seconds),
    };
    tracing::info!(
        descriptors,
        webhook = capacities.webhook.max,
        metrics = capacities.metrics.max,
        debug = capacities.debug.max,
        "connection limits"
    );
    let mut app = App::start(options).await?;
    let debug_address = app.debug().map(tracing::field::display);
    tracing::info!(webhook = %app.webhook(), metrics = %app.metrics(), debug = debug_address, "serving");
    tokio::select! {
        error = app.failed() => return Err(error),
        signal = signals.next() => tracing::info!(signal, seconds = args.shutdown_delay_seconds, "shutting down; still serving"),
    }
    app.drain();
    tokio::select! {
        () = tokio::time::sleep(Duration::from_secs(args.shutdown_delay_seconds)) => {}
        signal = signals.next() => anyhow::bail!("aborted by a second {signal}"),
    }
    tokio::select! {
        stopped = app.stop() => stopped,
        signal = signals.next() => anyhow::bail!("aborted by a second {signal}"),
    }
}

fn certificate(args: &Args, namespace: &str) -> anyhow::Result<CertificateSource> {
    if let Some(secret) = &args.tls_secret {
        return Ok(CertificateSource::Managed(Managed {
            secret: (namespace.to_owned(), secret.clone()),
            names: rotation::checked_names(&args.tls_names).map_err(|error| anyhow::anyhow!("--tls-names: {error}"))?,
            mutating: args.mutating_configuration.clone(),
            validating: args.validating_configuration.clone(),
            lifetimes: Lifetimes::default(),
            interval: FILE_POLL_INTERVAL,
        }));
    }
    if let (Some(certificate), Some(key)) = (&args.tls_cert, &args.tls_key) {
        return Ok(CertificateSource::Files { certificate: certificate.clone(), key: key.clone() });
    }
    ensure!(
        !args.self_signed_for.is_empty(),
        "expected --tls-secret and --tls-names, --tls-cert and --tls-key, or --self-signed-for and --ca-out"
    );
    let authority = Authority::new("spark-usher", clock::now()).context("cannot create a CA")?;
    let names = rotation::checked_names(&args.self_signed_for)
        .map_err(|error| anyhow::anyhow!("--self-signed-for: {error}"))?;
    let (names, addresses) = rotation::split(&names);
    let pair = authority.serve(&names, &addresses).context("--self-signed-for")?;
    if let Some(path) = &args.ca_out {
        files::write(path, authority.pem(), 0o644).with_context(|| format!("--ca-out {}", path.display()))?;
    }
    Ok(CertificateSource::Given(load(pair.certificate.as_bytes(), pair.key.as_bytes(), clock::now())?))
}
