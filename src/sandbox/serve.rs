//! Starts and stops the sandbox.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use clap::ValueEnum;
use serde_json::json;

use super::api::{self, ListenerState};
use super::attributes::Used;
use super::auth::Tokens;
use super::resource::Registry;
use super::state::Api;
use super::store::Store;
use super::webhook::Webhooks;
use super::write::install;
use super::{garbage, kubelet, scheduler};
use usher_net::listener::metrics::HandshakeMetrics;
use usher_net::listener::server::{self, Deadlines, Listener, Shutdown};
use usher_net::telemetry::registry;
use usher_net::tls::ca::Authority;
use usher_net::tls::load::load;
use usher_net::tls::serving::Serving;
use usher_runtime::clock;
use usher_runtime::supervise::Supervisor;

/// The Kubernetes release to simulate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Version {
    /// 1.36: native PodGroups in v1alpha2, whose count cannot be changed.
    #[value(name = "1.36")]
    V1_36,
    /// 1.37: native PodGroups in v1beta1.
    #[default]
    #[value(name = "1.37")]
    V1_37,
}

/// Which simulated components process pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pods {
    /// Pods stay unchanged.
    Left,
    /// Pods are scheduled and do not start.
    Placed,
    /// Pods are scheduled and run.
    Run,
}

/// Options to start the sandbox.
#[derive(Clone, Debug)]
pub struct Options {
    /// Address for HTTP, where every client is an administrator; loopback only.
    pub http: SocketAddr,
    /// Address for HTTPS, with tokens.
    pub https: SocketAddr,
    /// The simulated release.
    pub version: Version,
    /// Number of nodes.
    pub nodes: u32,
    /// Size of each node: cores and gibibytes.
    pub node_size: (u32, u32),
    /// Which simulated components process pods.
    pub pods: Pods,
    /// Interval of bookmarks in watches.
    pub bookmarks: Duration,
    /// Whether RBAC applies to service accounts.
    pub authorize: bool,
    /// Whether changing an object's owners requires permission to delete it (`OwnerReferencesPermissionEnforcement`).
    pub enforce_owners: bool,
}

impl Default for Options {
    fn default() -> Self {
        let free = SocketAddr::new(IpAddr::from([127, 0, 0, 1]), 0);
        Options {
            http: free,
            https: free,
            version: Version::default(),
            nodes: 3,
            node_size: (16, 64),
            pods: Pods::Run,
            bookmarks: Duration::from_secs(60),
            authorize: false,
            enforce_owners: false,
        }
    }
}

/// A running sandbox.
#[derive(Debug)]
pub struct Sandbox {
    api: Arc<Api>,
    http: SocketAddr,
    https: SocketAddr,
    authority: Authority,
    supervisor: Supervisor,
}

/// Watches live long, and so do their connections.
const DEADLINES: Deadlines = Deadlines {
    handshake: Duration::from_secs(10),
    head: Duration::from_secs(10),
    idle: Duration::from_secs(24 * 3600),
    write: Duration::from_secs(60),
};

impl Sandbox {
    /// Starts listening. The sandbox answers as soon as this returns.
    pub fn start(options: &Options) -> anyhow::Result<Sandbox> {
        for address in [options.http, options.https] {
            anyhow::ensure!(address.ip().is_loopback(), "the sandbox listens on loopback only, not on {address}");
        }
        let api = Arc::new(new_api(options));
        let authority = Authority::new("spark-usher sandbox", clock::now()).context("cannot create a CA")?;
        let addresses = [IpAddr::from([127, 0, 0, 1]), options.https.ip()];
        let pair = authority.serve(&["localhost", "kubernetes", "kubernetes.default.svc"], &addresses)?;
        let certificate = load(pair.certificate.as_bytes(), pair.key.as_bytes(), clock::now())?;
        let (plain, secure) = (Listener::bind(options.http)?, Listener::bind(options.https)?);
        let (http, https) = (plain.address(), secure.address());
        let mut supervisor = Supervisor::default();
        let ending = Shutdown {
            draining: supervisor.token().clone(),
            stop: supervisor.token().clone(),
            drain: Duration::from_millis(100),
        };
        let (open, closed, also) = (routes(&api, true), routes(&api, false), ending.clone());
        supervisor.spawn("sandbox http", async move { Ok(server::serve_plain(plain, open, DEADLINES, also).await?) });
        let config = Arc::new(Serving::new(certificate).config());
        let handshakes = HandshakeMetrics::register(&registry::Registry::default())?;
        supervisor.spawn("sandbox https", async move {
            Ok(server::serve_tls(secure, config, closed, DEADLINES, handshakes, ending).await?)
        });
        run_controllers(&api, options, &mut supervisor);
        Ok(Sandbox { api, http, https, authority, supervisor })
    }

    /// `http://…`, where every client is an administrator.
    pub fn http_url(&self) -> String {
        format!("http://{}", self.http)
    }

    /// `https://…`, with tokens.
    pub fn https_url(&self) -> String {
        format!("https://{}", self.https)
    }

    /// The administrator's token.
    pub fn admin_token(&self) -> &str {
        self.api.tokens.admin()
    }

    /// The CA of the HTTPS listener, PEM.
    pub fn ca_pem(&self) -> &str {
        self.authority.pem()
    }

    /// A kubeconfig for the administrator.
    pub fn kubeconfig(&self) -> String {
        use base64::Engine;
        let ca = base64::engine::general_purpose::STANDARD.encode(self.ca_pem());
        let (url, token) = (self.https_url(), self.admin_token());
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: sandbox\n\
             clusters:\n- name: sandbox\n  cluster: {{server: \"{url}\", certificate-authority-data: \"{ca}\"}}\n\
             users:\n- name: admin\n  user: {{token: \"{token}\"}}\n\
             contexts:\n- name: sandbox\n  context: {{cluster: sandbox, user: admin, namespace: default}}\n"
        )
    }

    pub fn client(&self, token: &str) -> anyhow::Result<kube::Client> {
        self.client_with(token, None)
    }

    /// A client of the administrator that impersonates this user.
    pub fn client_as(&self, user: &str) -> anyhow::Result<kube::Client> {
        self.client_with(self.admin_token(), Some(user.to_owned()))
    }

    fn client_with(&self, token: &str, user: Option<String>) -> anyhow::Result<kube::Client> {
        use rustls_pki_types::pem::PemObject;
        let mut config = kube::Config::new(self.https_url().parse().context("the sandbox's own URL")?);
        let ca = rustls_pki_types::CertificateDer::from_pem_slice(self.ca_pem().as_bytes())
            .context("the sandbox's own CA")?;
        config.root_cert = Some(vec![ca.to_vec()]);
        config.auth_info.token = Some(token.to_owned().into());
        config.auth_info.impersonate = user;
        Ok(kube::Client::try_from(config)?)
    }

    /// What service accounts have done: `account verb resource.group/subresource`.
    pub fn used(&self) -> Vec<String> {
        self.api.used.all()
    }

    /// Discards the log of changes: watches of older revisions get a 410.
    pub fn compact(&self) {
        self.api.store.compact();
    }

    /// Waits until a task of the sandbox fails.
    pub async fn failed(&mut self) -> anyhow::Error {
        self.supervisor.first_failure().await
    }

    /// Stops the sandbox and discards its objects.
    pub async fn stop(self) -> anyhow::Result<()> {
        self.supervisor.stop().await
    }
}

/// A sandbox without listeners, for simulations: it runs on the caller's thread and on the caller's clock.
#[derive(Debug)]
pub struct InProcess {
    api: Arc<Api>,
    supervisor: Supervisor,
}

impl InProcess {
    /// Starts the sandbox.
    pub fn start(options: &Options) -> InProcess {
        let api = Arc::new(new_api(options));
        let mut supervisor = Supervisor::default();
        run_controllers(&api, options, &mut supervisor);
        InProcess { api, supervisor }
    }

    /// Routes that answer all requests as the administrator's.
    pub fn routes(&self) -> Router {
        routes(&self.api, true)
    }

    /// Discards the log of changes: watches of older revisions get a 410.
    pub fn compact(&self) {
        self.api.store.compact();
    }

    /// Stops the sandbox and discards its objects.
    pub async fn stop(self) -> anyhow::Result<()> {
        self.supervisor.stop().await
    }
}

fn new_api(options: &Options) -> Api {
    let (native, minor) = match options.version {
        Version::V1_36 => ("v1alpha2", 36),
        Version::V1_37 => ("v1beta1", 37),
    };
    let api = Api {
        store: Store::new(),
        registry: Registry::new(native),
        tokens: Tokens::new(),
        webhooks: Webhooks::default(),
        minor,
        bookmarks: options.bookmarks,
        authorize: options.authorize,
        enforce_owners: options.enforce_owners,
        used: Used::default(),
    };
    create_initial_objects(&api, options);
    api
}

/// Routes of a listener; `trusts`: a client without a token is the administrator.
fn routes(api: &Arc<Api>, trusts: bool) -> Router {
    Router::new().fallback(api::serve).with_state(ListenerState { api: api.clone(), trusts })
}

/// Starts the controllers.
fn run_controllers(api: &Arc<Api>, options: &Options, supervisor: &mut Supervisor) {
    let stop = supervisor.token().clone();
    let (collected, until) = (api.clone(), stop.clone());
    supervisor.run("garbage collector", garbage::run(collected, until));
    if options.pods != Pods::Left {
        let (scheduled, until) = (api.clone(), stop.clone());
        supervisor.run("simulated scheduler", scheduler::run(scheduled, until));
    }
    if options.pods == Pods::Run {
        let run = api.clone();
        supervisor.run("simulated kubelet", kubelet::run(run, stop));
    }
}

fn create_initial_objects(api: &Api, options: &Options) {
    for namespace in ["default", "kube-system", "kube-public", "kube-node-lease"] {
        install(api, "", "v1", "namespaces", json!({"metadata": {"name": namespace}}));
    }
    for (name, value) in [("system-cluster-critical", 2_000_000_000), ("system-node-critical", 2_000_001_000)] {
        install(api, "scheduling.k8s.io", "v1", "priorityclasses", json!({"metadata": {"name": name}, "value": value}));
    }
    let ports = json!([{"name": "https", "port": 443, "protocol": "TCP", "targetPort": 6443}]);
    let service = json!({"metadata": {"name": "kubernetes", "namespace": "default"}, "spec": {"clusterIP": "10.96.0.1", "ports": ports}});
    install(api, "", "v1", "services", service);
    let (cores, gibibytes) = options.node_size;
    for n in 1..=options.nodes {
        let capacity = json!({"cpu": cores.to_string(), "memory": format!("{gibibytes}Gi"), "pods": "110"});
        let conditions = json!([{"type": "Ready", "status": "True", "reason": "KubeletReady", "lastTransitionTime": clock::now().to_string()}]);
        let node = json!({"metadata": {"name": format!("node-{n}"), "labels": {"kubernetes.io/hostname": format!("node-{n}")}},
            "spec": {}, "status": {"capacity": capacity, "allocatable": capacity, "conditions": conditions}});
        install(api, "", "v1", "nodes", node);
    }
}
