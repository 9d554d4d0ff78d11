//! Finds the API server, and builds clients for it.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use anyhow::anyhow;
use hyper::rt::{Read, Write};
use hyper_util::client::legacy::connect::proxy::{SocksV5, Tunnel};
use hyper_util::client::legacy::connect::{Connection, HttpConnector};
use hyper_util::rt::TokioExecutor;
use kube::client::{ClientBuilder, ConfigExt};
use kube::config::{AuthInfo, Context, KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use tower::Service;
use tower::timeout::TimeoutLayer;
use tower_http::decompression::DecompressionLayer;

use super::access::{Access, is_header};
use super::proxy;
use usher_spark::text::first_line;

/// Timeout of a new connection.
const CONNECT: Duration = Duration::from_secs(5);

/// A connection that is silent for this long is probed,
const PROBE_AFTER: Duration = Duration::from_secs(4);
/// at this interval,
const PROBE_EVERY: Duration = Duration::from_secs(2);
/// and closed after this many probes without an answer: after eight seconds in all.
const PROBES: u32 = 2;

/// An error in one line: the API server's message, or the root cause.
#[derive(Debug)]
pub struct Brief<'e>(pub &'e (dyn std::error::Error + 'static));

impl fmt::Display for Brief<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut error = self.0;
        loop {
            if let Some(kube::Error::Api(status)) = error.downcast_ref() {
                return write!(f, "{} ({})", status.message, status.code);
            }
            match error.source() {
                Some(source) => error = source,
                None => return write!(f, "{error}"),
            }
        }
    }
}

/// The clients of one API server, and the namespace of their configuration.
#[derive(Clone)]
pub struct Cluster {
    pub client: Client,
    /// A client for large lists, with compressed answers: an API server compresses answers above 128 KiB for clients that accept
    /// it. Watches are never compressed.
    pub lists: Client,
    /// The pod's own namespace, or that of the kubeconfig's context.
    pub namespace: String,
    /// The API server's address, for messages.
    pub server: String,
}

impl Cluster {
    /// A cluster with this client, which reads large lists too.
    pub fn by(client: Client, namespace: &str) -> Cluster {
        Cluster { lists: client.clone(), client, namespace: namespace.to_owned(), server: String::new() }
    }
}

/// Reads the kubeconfig at this path; without one, what the environment provides: the kubeconfig that `KUBECONFIG` or the home
/// folder contains, else the service account of the pod that we run in.
pub async fn configure(kubeconfig: Option<&Path>, context: Option<&str>) -> anyhow::Result<Config> {
    let mut config = match kubeconfig {
        Some(path) => {
            let of_file = |error| anyhow!("--kubeconfig {}: {}", path.display(), of_kubeconfig(&error));
            loaded(Kubeconfig::read_from(path).map_err(of_file)?, context).await?.map_err(of_file)?
        }
        None => {
            let found = match Kubeconfig::read() {
                Ok(file) => loaded(file, context).await?,
                Err(error) => Err(error),
            };
            match (found, context) {
                (Ok(config), _) => config,
                (Err(error), Some(_)) => return Err(anyhow!("--context: {}", of_kubeconfig(&error))),
                (Err(error), None) if is_unusable(&error) => return Err(Unusable(of_kubeconfig(&error)).into()),
                (Err(error), None) => Config::incluster().map_err(|_| {
                    NotConfigured(match &error {
                        KubeconfigError::ReadConfig(error, path) => format!("{}: {error}", path.display()),
                        error => Brief(error).to_string(),
                    })
                })?,
            }
        }
    };
    config.connect_timeout = Some(CONNECT);
    Ok(config)
}

/// The configuration of a kubeconfig, with the proxy that it names itself: kube reads HTTPS_PROXY too, whatever NO_PROXY says, and fails
/// if it cannot read it.
async fn loaded(mut file: Kubeconfig, context: Option<&str>) -> anyhow::Result<Result<Config, KubeconfigError>> {
    let used = used_context(&file, context).map(|context| context.cluster.clone());
    let named = file.clusters.iter().find(|named| Some(&named.name) == used.as_ref());
    let proxy_url = named.and_then(|named| named.cluster.as_ref()?.proxy_url.clone()).filter(|proxy| !proxy.is_empty());
    let proxy_url = proxy_url.map(|proxy_url| proxy::configured(&proxy_url)).transpose()?;
    for cluster in file.clusters.iter_mut().filter_map(|named| named.cluster.as_mut()) {
        cluster.proxy_url = Some("http://proxy.invalid".to_owned());
    }
    let options = KubeConfigOptions { context: context.map(str::to_owned), ..KubeConfigOptions::default() };
    let config = Config::from_custom_kubeconfig(file, &options).await;
    Ok(config.map(|mut config| {
        config.proxy_url = proxy_url;
        config
    }))
}

/// The context of a kubeconfig that is used; `None` if it has none.
fn used_context<'f>(file: &'f Kubeconfig, context: Option<&str>) -> Option<&'f Context> {
    let wanted = context.or(file.current_context.as_deref())?;
    file.contexts.iter().find(|named| named.name == wanted)?.context.as_ref()
}

/// Nothing names an API server, for this reason.
#[derive(Debug, thiserror::Error)]
#[error(
    "no API server is configured: expected --kubeconfig FILE, $KUBECONFIG, ~/.kube/config, or a pod's service account ({0})"
)]
struct NotConfigured(String);

/// There is a kubeconfig, but it cannot be used: as for spark-submit, another API server and other credentials do not replace it.
#[derive(Debug, thiserror::Error)]
#[error("the kubeconfig of $KUBECONFIG or ~/.kube/config cannot be used: {0}")]
struct Unusable(String);

/// Why a kubeconfig cannot be used. The parser shows the lines around an error, which may be credentials: only its first line is said.
fn of_kubeconfig(error: &KubeconfigError) -> String {
    first_line(&Brief(error).to_string(), MAX_REASON)
}

/// The longest reason, in characters.
const MAX_REASON: usize = 1000;

/// Whether there is a kubeconfig that names a cluster.
fn is_unusable(error: &KubeconfigError) -> bool {
    use KubeconfigError::{CurrentContextNotSet, FindPath, LoadClusterOfContext, LoadContext, ReadConfig};
    match error {
        CurrentContextNotSet | FindPath | LoadClusterOfContext(_) | LoadContext(_) => false,
        ReadConfig(error, _) => error.kind() != std::io::ErrorKind::NotFound,
        _ => true,
    }
}

/// What was found, with the API server of spark-submit's `--master` (`k8s://` and a URL), and with what a configuration of Spark says
/// about the access to it.
pub fn with_access(found: anyhow::Result<Config>, master: Option<&str>, access: &Access) -> anyhow::Result<Config> {
    let mut config = match master {
        Some(master) => with_master(found, master, access.has_credentials())?,
        None => found?,
    };
    let read = |key: &str, path: &String| {
        let key = format!("spark.kubernetes.authenticate.submission.{key}");
        std::fs::File::open(path).map(|_| path.clone()).map_err(|error| anyhow!("{key}: {path}: {error}"))
    };
    if let Some(token) = &access.token {
        config.auth_info = AuthInfo { token: Some(token.clone().into()), ..without_bearer(config.auth_info) };
    }
    if let Some(file) = &access.token_file {
        let path = read("oauthTokenFile", file)?;
        let token = std::fs::read_to_string(&path).ok().filter(|token| is_header(token.trim()));
        let token = token.ok_or_else(|| {
            anyhow!("spark.kubernetes.authenticate.submission.oauthTokenFile: {path}: expected a token of visible ASCII characters")
        })?;
        let auth = without_bearer(config.auth_info);
        // kube reads the file again and again, but sends a line break at its end, which no header can have.
        config.auth_info = if token.trim() == token {
            AuthInfo { token_file: Some(path), ..auth }
        } else {
            AuthInfo { token: Some(token.trim().to_owned().into()), ..auth }
        };
    }
    if let Some(file) = &access.certificate_file {
        config.auth_info.client_certificate = Some(read("clientCertFile", file)?);
        config.auth_info.client_certificate_data = None;
    }
    if let Some(file) = &access.key_file {
        config.auth_info.client_key = Some(read("clientKeyFile", file)?);
        config.auth_info.client_key_data = None;
    }
    if let Some(file) = &access.ca_file {
        config.root_cert_file = Some(read("caCertFile", file)?.into());
    }
    config.accept_invalid_certs |= access.trusts_all;
    config.connect_timeout = access.connect_timeout.or(config.connect_timeout);
    Ok(config)
}

fn without_bearer(auth: AuthInfo) -> AuthInfo {
    let AuthInfo { client_certificate, client_certificate_data, client_key, client_key_data, .. } = auth;
    AuthInfo { client_certificate, client_certificate_data, client_key, client_key_data, ..AuthInfo::default() }
}

fn with_master(found: anyhow::Result<Config>, master: &str, has_credentials: bool) -> anyhow::Result<Config> {
    let url = master.strip_prefix("k8s://").unwrap_or(master);
    let url = if url.contains("://") { url.to_owned() } else { format!("https://{url}") };
    let url: hyper::Uri = url.parse().map_err(|error| anyhow!("--master {master}: {error}"))?;
    match found {
        Ok(mut config) => {
            config.cluster_url = url;
            Ok(config)
        }
        // An API server that needs no credentials, such as kubectl proxy, or one for which there are some.
        Err(error) if error.is::<NotConfigured>() && (has_credentials || url.scheme_str() == Some("http")) => {
            let mut config = Config::new(url);
            config.connect_timeout = Some(CONNECT);
            Ok(config)
        }
        Err(error) if !error.is::<NotConfigured>() => Err(error),
        Err(_) => Err(anyhow!(
            "--master {master}: no credentials for it: expected a kubeconfig ($KUBECONFIG or ~/.kube/config), or \
             spark.kubernetes.authenticate.submission.oauthToken, oauthTokenFile, or clientCertFile and clientKeyFile"
        )),
    }
}

/// The namespace that the context of the kubeconfig names, or that of the pod in which this process runs; `None` if there is none. The
/// namespace of [`Cluster`] is `default` then.
pub fn named_namespace(kubeconfig: Option<&Path>, context: Option<&str>) -> Option<String> {
    const OF_POD: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";
    let Ok(file) = kubeconfig.map_or_else(Kubeconfig::read, Kubeconfig::read_from) else {
        let namespace = std::fs::read_to_string(OF_POD).ok()?;
        return Some(namespace.trim().to_owned()).filter(|namespace| !namespace.is_empty());
    };
    used_context(&file, context)?.namespace.clone()
}

/// The contexts of the kubeconfig, each with the namespace that it names.
pub fn contexts(kubeconfig: Option<&Path>) -> Vec<(String, Option<String>)> {
    let file = kubeconfig.map_or_else(Kubeconfig::read, Kubeconfig::read_from).unwrap_or_default();
    file.contexts.into_iter().map(|named| (named.name, named.context.and_then(|context| context.namespace))).collect()
}

/// A client for what [`configure`] finds.
pub async fn connect(kubeconfig: Option<&Path>, context: Option<&str>) -> anyhow::Result<Cluster> {
    of(configure(kubeconfig, context).await?)
}

/// The clients for a configuration.
pub fn of(config: Config) -> anyhow::Result<Cluster> {
    let (namespace, server) = (config.default_namespace.clone(), config.cluster_url.to_string());
    Ok(Cluster { client: client(config.clone(), false)?, lists: client(config, true)?, namespace, server })
}

/// A client of the same API server that authenticates only with this token.
pub fn by_token(config: &Config, token: String) -> anyhow::Result<Client> {
    let mut config = config.clone();
    config.auth_info = AuthInfo { token: Some(token.into()), ..AuthInfo::default() };
    client(config, false)
}

/// The layer that accepts compressed answers, or none.
pub fn decompression(compressed: bool) -> DecompressionLayer {
    DecompressionLayer::new().gzip(compressed)
}

/// kube's own client, but with a connector that detects a silently dead peer: a watch on such a connection would be silent
/// forever. Behind a proxy only the proxy is probed.
fn client(mut config: Config, compressed: bool) -> anyhow::Result<Client> {
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector.set_connect_timeout(config.connect_timeout);
    connector.set_keepalive(Some(PROBE_AFTER));
    connector.set_keepalive_interval(Some(PROBE_EVERY));
    connector.set_keepalive_retries(Some(PROBES));
    let Some(proxy) = proxy::of(&config.cluster_url, config.proxy_url.as_ref(), proxy::variable)? else {
        return through(connector, config, compressed);
    };
    config.cluster_url = proxy::with_port(&config.cluster_url)?;
    let to_proxy = proxy.uri().clone();
    if to_proxy.scheme_str() == Some("http") {
        let tunnel = Tunnel::new(to_proxy, connector);
        return match proxy.basic_auth() {
            Some(auth) => through(tunnel.with_auth(auth.clone()), config, compressed),
            None => through(tunnel, config, compressed),
        };
    }
    // As for Go, the proxy looks up names for both schemes.
    let socks = SocksV5::new(to_proxy, connector);
    match proxy.raw_auth() {
        Some((user, password)) => through(socks.with_auth(user.to_owned(), password.to_owned()), config, compressed),
        None => through(socks, config, compressed),
    }
}

/// A client whose connections this connector opens.
fn through<C>(connector: C, config: Config, compressed: bool) -> anyhow::Result<Client>
where
    C: Service<hyper::Uri> + Clone + Send + Sync + 'static,
    C::Response: Connection + Read + Write + Send + Unpin + 'static,
    C::Future: Send + 'static,
    C::Error: Into<tower::BoxError>,
{
    let connector = config.rustls_https_connector_with_connector(connector)?;
    let http = hyper_util::client::legacy::Builder::new(TokioExecutor::new()).build(connector);
    let service = tower::ServiceBuilder::new()
        // Until the headers of the answer: a watch may last longer.
        .option_layer(config.read_timeout.map(TimeoutLayer::new))
        .layer(config.base_uri_layer())
        .layer(decompression(compressed))
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(tower::BoxError::from)
        .service(http);
    Ok(ClientBuilder::new(service, config.default_namespace.clone()).build())
}
