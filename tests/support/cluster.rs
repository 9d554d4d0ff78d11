//! A cluster for tests: the sandbox, or a real kube-apiserver if `KUBEBUILDER_ASSETS` names a folder with `etcd` and
//! `kube-apiserver` (and, for garbage collection, `kube-controller-manager`).
//!
//! The tests run pods through the status subresource, so that both clusters behave the same.

#![allow(dead_code, unreachable_pub, clippy::disallowed_methods, reason = "each test file uses its part of it")]

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use k8s_openapi::api::admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration};
use k8s_openapi::api::authentication::v1::{BoundObjectReference, SelfSubjectReview, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Namespace, Pod, ServiceAccount};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::ApiResource;
use kube::{Client, Config, ResourceExt};
use serde_json::{Value, json};
use usher_core::annotations;
use usher_core::manifests::{creator_policy, webhooks};
use usher_kube::client::Cluster as Connection;
use usher_net::listener::capacity::Capacities;
use usher_net::tls::ca::Authority;
use usher_net::tls::load::load;
use usher_runtime::clock;
use usher_sandbox::{Options, Pods, Sandbox};
use usher_server::app::{App, CertificateSource, ConfigSource, Options as AppOptions};
use usher_server::cluster::lease::Election;
use usher_server::cluster::policies::AdmissionPolicies;
use usher_server::cluster::signing::Signing;
use usher_server::cluster::vouching::Vouching;

use super::{PodBuilder, executor};

/// Scheduler types with PodGroups, and the API that must be installed for them.
pub const POD_GROUP_KINDS: [(&str, Option<(&str, &str)>); 5] = [
    ("volcano", Some(("scheduling.volcano.sh", "v1beta1"))),
    ("kube-batch", Some(("scheduling.incubator.k8s.io", "v1alpha1"))),
    ("coscheduling", Some(("scheduling.x-k8s.io", "v1alpha1"))),
    ("koordinator", Some(("scheduling.sigs.k8s.io", "v1alpha1"))),
    ("native", None),
];

/// The administrator's token of a real kube-apiserver.
const ADMIN_TOKEN: &str = "admin-token";

/// A cluster.
pub struct Cluster {
    kind: Kind,
    /// An administrator's client.
    pub client: Client,
    /// The namespace of this test.
    pub namespace: String,
    /// Whether the cluster has a garbage collector.
    pub has_garbage_collector: bool,
    folder: tempfile::TempDir,
}

enum Kind {
    Sandbox(Box<Sandbox>),
    Real(Real),
}

struct Real {
    processes: Vec<Child>,
    url: String,
}

impl Drop for Real {
    fn drop(&mut self) {
        for process in self.processes.iter_mut().rev() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

impl Cluster {
    /// Creates a pod of the tests by dry run. Returns the created pod, or the API server's error.
    pub async fn dry_run(&self, client: &Client, pod: &PodBuilder) -> Result<Value, String> {
        let pods: Api<Pod> = Api::namespaced(client.clone(), &self.namespace);
        let params = PostParams { dry_run: true, ..PostParams::default() };
        let created = pods.create(&params, &serde_json::from_value(self.sent(pod)).unwrap()).await;
        created.map(|pod| serde_json::to_value(pod).unwrap()).map_err(|error| error.to_string())
    }

    /// A pod of this namespace as a client sends it.
    pub fn sent(&self, pod: &PodBuilder) -> Value {
        let mut pod = pod.clone().namespace(&self.namespace).0;
        // The API server's own plugins set these.
        for key in ["priority", "preemptionPolicy"] {
            pod["spec"].as_object_mut().unwrap().remove(key);
        }
        pod.as_object_mut().unwrap().remove("status");
        pod
    }

    /// Whether the webhook mutates a new executor; otherwise the API server's error.
    pub async fn mutates_executors(&self) -> Result<bool, String> {
        let created = self.dry_run(&self.client, &executor(7)).await?;
        Ok(created["metadata"]["annotations"].get("spark-usher.io/by").is_some())
    }

    /// The user name of this client, which is that of the replicas.
    pub async fn account(&self) -> String {
        let reviews: Api<SelfSubjectReview> = Api::all(self.client.clone());
        let review = reviews.create(&PostParams::default(), &SelfSubjectReview::default()).await.unwrap();
        review.status.unwrap().user_info.unwrap().username.unwrap()
    }

    /// A cluster without a scheduler and kubelets.
    pub async fn start() -> Cluster {
        Cluster::start_with(Pods::Left).await
    }

    /// A cluster whose scheduler supports gangs. A real kube-apiserver has none here: returns `None` and prints why.
    pub async fn start_running() -> Option<Cluster> {
        if std::env::var_os("KUBEBUILDER_ASSETS").is_some() {
            #[expect(clippy::print_stderr, reason = "a skipped test prints this")]
            {
                eprintln!(
                    "SKIPPED: requires the sandbox: KUBEBUILDER_ASSETS has no scheduler that supports the gangs of all schedulers"
                );
            }
            return None;
        }
        Some(Cluster::start_with(Pods::Run).await)
    }

    /// A cluster whose scheduler honors nodeSelectors and nodeAffinities: the sandbox's, or kube-scheduler. Returns `None` and prints why
    /// if `KUBEBUILDER_ASSETS` has no kube-scheduler.
    pub async fn start_scheduling() -> Option<Cluster> {
        let Some(assets) = std::env::var_os("KUBEBUILDER_ASSETS").map(PathBuf::from) else {
            return Some(Cluster::start_with(Pods::Run).await);
        };
        if !assets.join("kube-scheduler").exists() {
            #[expect(clippy::print_stderr, reason = "a skipped test prints this")]
            {
                eprintln!("SKIPPED: requires kube-scheduler in KUBEBUILDER_ASSETS");
            }
            return None;
        }
        let mut cluster = Cluster::start().await;
        let kubeconfig = cluster.folder().join("scheduler.kubeconfig");
        std::fs::write(&kubeconfig, cluster.kubeconfig()).unwrap();
        let folder = cluster.folder().to_owned();
        if let Kind::Real(real) = &mut cluster.kind {
            let arguments = [
                format!("--kubeconfig={}", kubeconfig.display()),
                "--leader-elect=false".into(),
                "--secure-port=0".into(),
            ];
            real.run(&assets, "kube-scheduler", &folder, &arguments);
        }
        Some(cluster)
    }

    /// The sandbox's cluster, and the sandbox for stopping it. `None` with a real cluster.
    pub async fn start_with_sandbox() -> Option<(Cluster, Sandbox)> {
        if std::env::var_os("KUBEBUILDER_ASSETS").is_some() {
            return None;
        }
        let mut cluster = Cluster::start().await;
        let sandbox = Sandbox::start(&Options { pods: Pods::Left, ..Options::default() }).unwrap();
        cluster.client = sandbox.client(sandbox.admin_token()).unwrap();
        cluster.add_namespace(&cluster.namespace).await;
        Some((cluster, sandbox))
    }

    /// A cluster with `OwnerReferencesPermissionEnforcement`, in which accounts have only the permissions of their roles.
    pub async fn start_enforcing() -> Cluster {
        let options = Options { pods: Pods::Left, authorize: true, enforce_owners: true, ..Options::default() };
        Cluster::start_by(options, &["--enable-admission-plugins=OwnerReferencesPermissionEnforcement"]).await
    }

    async fn start_with(pods: Pods) -> Cluster {
        Cluster::start_by(Options { pods, ..Options::default() }, &[]).await
    }

    async fn start_by(options: Options, arguments: &[&str]) -> Cluster {
        let filter = std::env::var("SPARK_USHER_LOG").unwrap_or_else(|_| "off".to_owned());
        usher_net::telemetry::log::init(&filter, usher_net::telemetry::log::Format::Text).unwrap();
        usher_net::tls::install_provider();
        let folder = tempfile::tempdir().unwrap();
        let (kind, client, has_garbage_collector) = match std::env::var_os("KUBEBUILDER_ASSETS") {
            None => {
                let sandbox = Sandbox::start(&options).unwrap();
                let client = sandbox.client(sandbox.admin_token()).unwrap();
                (Kind::Sandbox(Box::new(sandbox)), client, true)
            }
            Some(assets) => {
                let (real, has_garbage_collector) = Real::start(&PathBuf::from(assets), folder.path(), arguments).await;
                let client = real.client(ADMIN_TOKEN);
                (Kind::Real(real), client, has_garbage_collector)
            }
        };
        let namespace = format!("t-{}", usher_runtime::random::hex(4));
        let cluster = Cluster { kind, client, namespace, has_garbage_collector, folder };
        let namespace = cluster.namespace.clone();
        cluster.add_namespace(&namespace).await;
        cluster
    }

    /// Adds a namespace in which the account `spark` has all permissions.
    pub async fn add_namespace(&self, name: &str) {
        self.create(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})).await;
        self.create(json!({"apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": {"name": "spark", "namespace": name}}))
            .await;
        self.allow_in(name, "spark").await;
    }

    /// Whether this is a real kube-apiserver.
    pub fn is_real(&self) -> bool {
        matches!(self.kind, Kind::Real(_))
    }

    /// The process id of a real API server: it starts after etcd.
    pub fn api_server(&self) -> Option<u32> {
        if let Kind::Real(real) = &self.kind { Some(real.processes[1].id()) } else { None }
    }

    /// A kubeconfig for an administrator.
    pub fn kubeconfig(&self) -> String {
        match &self.kind {
            Kind::Sandbox(sandbox) => sandbox.kubeconfig(),
            Kind::Real(real) => real.kubeconfig(),
        }
    }

    /// `https://…` of the API server.
    pub fn url(&self) -> String {
        match &self.kind {
            Kind::Sandbox(sandbox) => sandbox.https_url(),
            Kind::Real(real) => real.url.clone(),
        }
    }

    /// The administrator's token.
    pub fn admin_token(&self) -> &str {
        match &self.kind {
            Kind::Sandbox(sandbox) => sandbox.admin_token(),
            Kind::Real(_) => ADMIN_TOKEN,
        }
    }

    /// The folder of this test.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The sandbox, if the cluster is one.
    pub fn sandbox(&self) -> Option<&Sandbox> {
        match &self.kind {
            Kind::Sandbox(sandbox) => Some(sandbox),
            Kind::Real(_) => None,
        }
    }

    /// A client with this token.
    pub fn client_of(&self, token: &str) -> Client {
        match &self.kind {
            Kind::Sandbox(sandbox) => sandbox.client(token).unwrap(),
            Kind::Real(real) => real.client(token),
        }
    }

    /// A client with the token of this pod, which is bound to it.
    pub async fn client_of_pod(&self, pod: &Pod) -> Client {
        self.client_of_account("spark", pod).await
    }

    /// Gives a service account of this namespace all permissions in it.
    pub async fn allow(&self, account: &str) {
        self.allow_in(&self.namespace, account).await;
    }

    async fn allow_in(&self, namespace: &str, account: &str) {
        let rights = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
            "metadata": {"name": account, "namespace": namespace},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": namespace}],
        });
        self.create(rights).await;
    }

    /// A client with a token of this account, bound to this pod.
    pub async fn client_of_account(&self, account: &str, pod: &Pod) -> Client {
        self.client_bound(account, Some(pod)).await
    }

    /// A client with a token of this account, bound to this pod or unbound.
    pub async fn client_bound(&self, account: &str, pod: Option<&Pod>) -> Client {
        self.client_bound_in(&self.namespace, account, pod).await
    }

    /// A client with a token of an account of this namespace.
    pub async fn client_bound_in(&self, namespace: &str, account: &str, pod: Option<&Pod>) -> Client {
        self.client_of(&self.token(namespace, account, pod).await)
    }

    /// A token of an account.
    pub async fn token(&self, namespace: &str, account: &str, pod: Option<&Pod>) -> String {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), namespace);
        let request = TokenRequest {
            spec: Some(TokenRequestSpec {
                bound_object_ref: pod.map(|pod| BoundObjectReference {
                    api_version: Some("v1".into()),
                    kind: Some("Pod".into()),
                    name: pod.metadata.name.clone(),
                    uid: pod.metadata.uid.clone(),
                }),
                expiration_seconds: Some(3600),
                ..TokenRequestSpec::default()
            }),
            ..TokenRequest::default()
        };
        let issued = accounts.create_token_request(account, &PostParams::default(), &request).await.unwrap();
        issued.status.unwrap().token.unwrap()
    }

    /// Creates an object as the administrator.
    pub async fn create(&self, object: Value) -> DynamicObject {
        self.create_as(&self.client, object).await.unwrap()
    }

    /// Creates an object.
    pub async fn create_as(&self, client: &Client, object: Value) -> kube::Result<DynamicObject> {
        let object: DynamicObject = serde_json::from_value(object).unwrap();
        let types = object.types.clone().unwrap();
        let (group, version) = types.api_version.split_once('/').unwrap_or(("", &types.api_version));
        let plural = match types.kind.as_str() {
            "PriorityClass" => "priorityclasses".to_owned(),
            kind => format!("{}s", kind.to_lowercase()),
        };
        let resource = ApiResource {
            group: group.to_owned(),
            version: version.to_owned(),
            api_version: types.api_version.clone(),
            kind: types.kind.clone(),
            plural,
        };
        let api: Api<DynamicObject> = match &object.metadata.namespace {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
            None => Api::all_with(client.clone(), &resource),
        };
        api.create(&PostParams::default(), &object).await
    }

    /// The pods of this test's namespace.
    pub fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Objects of this test's namespace.
    pub fn objects(&self, group: &str, version: &str, kind: &str) -> Api<DynamicObject> {
        let api_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
        let plural = format!("{}s", kind.to_lowercase());
        let resource =
            ApiResource { group: group.into(), version: version.into(), api_version, kind: kind.into(), plural };
        Api::namespaced_with(self.client.clone(), &self.namespace, &resource)
    }

    /// Creates a pod with this client. It needs no image.
    pub async fn pod_by(&self, client: &Client, pod: &super::PodBuilder) -> Pod {
        self.pod_in(client, &self.namespace, pod).await
    }

    /// Creates a pod in this namespace with this client.
    pub async fn pod_in(&self, client: &Client, namespace: &str, pod: &super::PodBuilder) -> Pod {
        let pod = pod.clone().namespace(namespace).into_request();
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
        pods.create(&PostParams::default(), &pod).await.unwrap()
    }

    /// Sets the pod's phase, as a kubelet does.
    pub async fn phase(&self, pod: &str, phase: &str) {
        let status = json!({"status": {"phase": phase}});
        self.pods().patch_status(pod, &PatchParams::default(), &Patch::Merge(&status)).await.unwrap();
    }

    /// Sets a pod running, with this address.
    pub async fn run_at(&self, pod: &str, address: &str) {
        let status = json!({"status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}});
        self.pods().patch_status(pod, &PatchParams::default(), &Patch::Merge(&status)).await.unwrap();
    }

    /// Whether an Event of this reason is about this pod.
    pub async fn has_event(&self, pod: &str, reason: &str) -> bool {
        let events = self.objects("events.k8s.io", "v1", "Event").list(&Default::default()).await.unwrap();
        events.items.iter().any(|event| event.data["regarding"]["name"] == pod && event.data["reason"] == reason)
    }

    /// Deletes a pod immediately.
    pub async fn kill(&self, pod: &str) {
        self.pods().delete(pod, &DeleteParams::default().grace_period(0)).await.unwrap();
    }

    /// Serves PodGroups of an API group, as if its scheduler were installed.
    pub async fn serve_groups(&self, group: &str, version: &str) {
        let crd = json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("podgroups.{group}"),
                "annotations": {"api-approved.kubernetes.io": "unapproved, a test's"}},
            "spec": {
                "group": group, "scope": "Namespaced",
                "names": {"kind": "PodGroup", "plural": "podgroups", "singular": "podgroup", "listKind": "PodGroupList"},
                "versions": [{
                    "name": version, "served": true, "storage": true, "subresources": {"status": {}},
                    "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                        "spec": {"type": "object", "properties": {
                            "minMember": {"type": "integer", "format": "int32"},
                            "queue": {"type": "string"},
                            "priorityClassName": {"type": "string"},
                            "scheduleTimeoutSeconds": {"type": "integer"},
                            "minResources": {"type": "object", "additionalProperties": {
                                "anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": true}},
                        }},
                        "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
                    }}},
                }],
            },
        });
        let crds: Api<CustomResourceDefinition> = Api::all(self.client.clone());
        crds.create(&PostParams::default(), &serde_json::from_value(crd).unwrap()).await.unwrap();
        let groups = self.objects(group, version, "PodGroup");
        eventually("the CRD is served", async || groups.list(&Default::default()).await.is_ok()).await;
    }

    /// Starts spark-usher in this process with this policy file, and registers its webhook for this namespace.
    pub async fn usher(&self, config: &str) -> App {
        let app = self.usher_named(config, "one").await;
        self.register("one", &app).await;
        app
    }

    /// Registers a replica's webhook for all of this test's namespaces.
    pub async fn register(&self, name: &str, app: &App) {
        let url = format!("https://127.0.0.1:{}/mutate", app.webhook().port());
        let ca = self.ca(name);
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let names = namespaces.list(&Default::default()).await.unwrap().items;
        let names: Vec<String> = names.iter().map(ResourceExt::name_any).collect();
        let names: Vec<&str> =
            names.iter().map(String::as_str).filter(|name| name.starts_with(&self.namespace)).collect();
        let object = webhooks::mutating(&url, &ca, &names);
        let api: Api<MutatingWebhookConfiguration> = Api::all(self.client.clone());
        api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
        let object = webhooks::validating(&url.replace("/mutate", "/validate"), &ca, &names);
        let api: Api<ValidatingWebhookConfiguration> = Api::all(self.client.clone());
        // It stays when the mutating configuration is deleted.
        let _ = api.delete(webhooks::VALIDATING_NAME, &DeleteParams::default()).await;
        api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
        self.registered().await;
    }

    /// The CA (PEM) of a replica's certificate.
    pub fn ca(&self, name: &str) -> String {
        std::fs::read_to_string(self.folder.path().join(format!("{name}.ca"))).unwrap()
    }

    /// Deletes the MutatingWebhookConfiguration.
    pub async fn unregister(&self) {
        let api: Api<MutatingWebhookConfiguration> = Api::all(self.client.clone());
        api.delete(webhooks::NAME, &DeleteParams::default()).await.unwrap();
    }

    /// Starts another replica, without registering its webhook.
    pub async fn usher_named(&self, config: &str, name: &str) -> App {
        self.usher_by(&self.client, config, name).await
    }

    /// The same, which reaches the API server by this client.
    pub async fn usher_by(&self, client: &Client, config: &str, name: &str) -> App {
        self.start_usher(client, config, name, self.given(name), None).await
    }

    /// Starts another replica that manages admission policies.
    pub async fn usher_managing(&self, admission: AdmissionPolicies, config: &str, name: &str) -> App {
        self.start_usher(&self.client, config, name, self.given(name), Some(admission)).await
    }

    /// A new certificate for a replica.
    fn given(&self, name: &str) -> CertificateSource {
        let authority = Authority::new(name, clock::now()).unwrap();
        std::fs::write(self.folder.path().join(format!("{name}.ca")), authority.pem()).unwrap();
        let pair = authority.serve(&["localhost"], &[Ipv4Addr::LOCALHOST.into()]).unwrap();
        CertificateSource::Given(load(pair.certificate.as_bytes(), pair.key.as_bytes(), clock::now()).unwrap())
    }

    /// Starts another replica, with a certificate from this source.
    pub async fn usher_with(&self, config: &str, name: &str, certificate: CertificateSource) -> App {
        self.start_usher(&self.client, config, name, certificate, None).await
    }

    async fn start_usher(
        &self,
        client: &Client,
        config: &str,
        name: &str,
        certificate: CertificateSource,
        admission: Option<AdmissionPolicies>,
    ) -> App {
        self.install_creator_policy().await;
        let path = self.folder.path().join(format!("{name}.yaml"));
        std::fs::write(&path, super::policy_file(config)).unwrap();
        let free = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0);
        let duration = Duration::from_secs(3);
        App::start(AppOptions {
            cluster: Connection::by(client.clone(), &self.namespace),
            webhook: free,
            metrics: free,
            debug: Some(free),
            page: Some(usher_report::ui::Links::default()),
            debug_hosts: Vec::new(),
            certificate,
            client_ca: None,
            capacities: Capacities::default(),
            config: ConfigSource::File(path),
            admission_policies: admission.into_iter().collect(),
            signing: Some(Signing {
                namespace: self.namespace.clone(),
                secret: "spark-usher-signing".into(),
                vouching: Vouching {
                    policy: creator_policy::NAME.into(),
                    settle: Duration::ZERO,
                    client_certificates: false,
                },
            }),
            file_poll_interval: Duration::from_millis(100),
            election: Election {
                namespace: self.namespace.clone(),
                name: "spark-usher".into(),
                identity: name.to_owned(),
                duration,
                period: duration / 6,
            },
            watch_silence: usher_core::controller::Settings::default().watch_silence,
            rate: usher_kube::limit::Rate::default(),
            settle: Duration::ZERO,
            drain: Duration::from_secs(2),
        })
        .await
        .unwrap()
    }

    /// Rewrites a replica's policy file.
    pub fn reconfigure(&self, name: &str, config: &str) {
        std::fs::write(self.folder.path().join(format!("{name}.yaml")), super::policy_file(config)).unwrap();
    }

    /// A webhook configuration takes a moment to reach the API server's cache: waits until the webhook mutates a pod, and signs it.
    async fn registered(&self) {
        let params = PostParams { dry_run: true, ..PostParams::default() };
        let mut pod = super::executor(99999).label("spark-app-selector", "spark-probe").namespace(&self.namespace).0;
        pod["spec"].as_object_mut().unwrap().remove("priority");
        pod["spec"].as_object_mut().unwrap().remove("preemptionPolicy");
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let pods = self.pods();
        eventually("the webhook is called", async || {
            let seen = pods.create(&params, &pod).await.unwrap();
            [annotations::BY, annotations::SIGNATURE].iter().all(|key| seen.annotations().contains_key(*key))
        })
        .await;
    }
}

/// Waits until the condition holds; panics after a minute.
pub async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    for _ in 0..600 {
        if holds().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("timed out after a minute, waiting until {what}");
}

impl Real {
    async fn start(assets: &Path, folder: &Path, more: &[&str]) -> (Real, bool) {
        let (etcd, peer, secure) = (free_port(), free_port(), free_port());
        let mut real = Real { processes: Vec::new(), url: format!("https://127.0.0.1:{secure}") };
        let at = |name: &str| folder.join(name).display().to_string();
        real.run(
            assets,
            "etcd",
            folder,
            &[
                format!("--data-dir={}", at("etcd")),
                format!("--listen-client-urls=http://127.0.0.1:{etcd}"),
                format!("--advertise-client-urls=http://127.0.0.1:{etcd}"),
                format!("--listen-peer-urls=http://127.0.0.1:{peer}"),
            ],
        );
        // Signs service account tokens; the API server reads the public key from the certificate.
        let signer = Authority::new("tokens", clock::now()).unwrap().serve(&["tokens"], &[]).unwrap();
        std::fs::write(at("sa.key"), signer.key).unwrap();
        std::fs::write(at("sa.crt"), signer.certificate).unwrap();
        std::fs::write(at("tokens.csv"), format!("{ADMIN_TOKEN},admin,admin,\"system:masters\"\n")).unwrap();
        real.run(
            assets,
            "kube-apiserver",
            folder,
            &[
                vec![
                    format!("--etcd-servers=http://127.0.0.1:{etcd}"),
                    format!("--secure-port={secure}"),
                    "--bind-address=127.0.0.1".into(),
                    format!("--cert-dir={}", at("certs")),
                    "--service-account-issuer=https://kubernetes.default.svc".into(),
                    format!("--service-account-key-file={}", at("sa.crt")),
                    format!("--service-account-signing-key-file={}", at("sa.key")),
                    format!("--token-auth-file={}", at("tokens.csv")),
                    "--service-cluster-ip-range=10.0.0.0/24".into(),
                    "--authorization-mode=RBAC".into(),
                    "--disable-admission-plugins=ServiceAccount".into(),
                ],
                more.iter().map(|&argument| argument.to_owned()).collect(),
            ]
            .concat(),
        );
        for _ in 0..600 {
            if let Ok("ok") = real.client(ADMIN_TOKEN).request_text(request("/readyz")).await.as_deref() {
                break;
            }
            for process in &mut real.processes {
                if let Some(status) = process.try_wait().unwrap() {
                    let log = std::fs::read_to_string(folder.join("kube-apiserver.log")).unwrap_or_default();
                    let last: Vec<&str> = log.lines().rev().take(15).collect();
                    panic!("a program of KUBEBUILDER_ASSETS exited with {status}:\n{}", last.join("\n"));
                }
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let namespaces: Api<Namespace> = Api::all(real.client(ADMIN_TOKEN));
        eventually("the default namespace exists", async || namespaces.get("default").await.is_ok()).await;
        let has_garbage_collector = assets.join("kube-controller-manager").exists();
        if has_garbage_collector {
            std::fs::write(at("kubeconfig"), real.kubeconfig()).unwrap();
            real.run(
                assets,
                "kube-controller-manager",
                folder,
                &[
                    format!("--kubeconfig={}", at("kubeconfig")),
                    "--controllers=garbage-collector-controller,validatingadmissionpolicy-status-controller".into(),
                    "--leader-elect=false".into(),
                    "--secure-port=0".into(),
                ],
            );
        }
        (real, has_garbage_collector)
    }

    fn run(&mut self, assets: &Path, program: &str, folder: &Path, args: &[String]) {
        let log = std::fs::File::create(folder.join(format!("{program}.log"))).unwrap();
        let mut command = Command::new(assets.join(program));
        command.args(args).stdout(Stdio::null()).stderr(Stdio::from(log));
        self.processes.push(command.spawn().unwrap_or_else(|error| panic!("{program}: {error}")));
    }

    fn client(&self, token: &str) -> Client {
        let mut config = Config::new(self.url.parse().unwrap());
        // The API server creates a self-signed certificate at its start, and it listens on loopback.
        config.accept_invalid_certs = true;
        config.auth_info.token = Some(token.to_owned().into());
        Client::try_from(config).unwrap()
    }

    fn kubeconfig(&self) -> String {
        format!(
            "{{apiVersion: v1, kind: Config, current-context: c, \
             clusters: [{{name: c, cluster: {{server: \"{}\", insecure-skip-tls-verify: true}}}}], \
             users: [{{name: u, user: {{token: {ADMIN_TOKEN}}}}}], contexts: [{{name: c, context: {{cluster: c, user: u}}}}]}}",
            self.url
        )
    }
}

fn request(path: &str) -> axum::http::Request<Vec<u8>> {
    axum::http::Request::get(path).body(Vec::new()).unwrap()
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}
