//! spark-usher beside a sandbox in one process, for `demo` and `sandbox --with-usher`: it serves as `serve` does, and the sandbox calls
//! its webhooks.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::Context;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DynamicObject, PostParams};
use serde_json::{Value, json};

use usher_core::controller::Settings;
use usher_core::manifests::webhooks;
use usher_core::policy::Policies;
use usher_kube::client::Cluster;
use usher_kube::limit::Rate;
use usher_kube::view::{pods, resource};
use usher_net::listener::capacity::Capacities;
use usher_net::tls::ca::Authority;
use usher_net::tls::load::load;
use usher_report::ui::Links;
use usher_runtime::clock;
use usher_sandbox::Sandbox;
use usher_server::app::{App, CertificateSource, ConfigSource, Options};
use usher_server::cluster::lease::{self, Election};
use usher_server::cluster::signing::Signing;
use usher_server::cluster::vouching::Vouching;

/// Its namespace, that of its Lease and Secrets, and the name of its pod: so the command line finds it as in a cluster.
const NAMESPACE: &str = "spark-usher";
const POD: &str = "spark-usher-0";
/// How often a changed policy file is noticed.
const FILE_POLL: Duration = Duration::from_secs(2);

/// Starts spark-usher for this sandbox, and registers its webhooks for these namespaces; for all but kube-system if there are none.
pub(super) async fn start(
    sandbox: &Sandbox,
    config: ConfigSource,
    debug: SocketAddr,
    namespaces: &[&str],
) -> anyhow::Result<App> {
    let authority = Authority::new("spark-usher sandbox", clock::now()).context("cannot create a CA")?;
    let pair = authority.serve(&["localhost"], &[Ipv4Addr::LOCALHOST.into()])?;
    let certificate = load(pair.certificate.as_bytes(), pair.key.as_bytes(), clock::now())?;
    let free = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0);
    let duration = Duration::from_secs(4);
    let admin = sandbox.client(sandbox.admin_token())?;
    make(&admin, json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}), "namespaces")
        .await?;
    let app = App::start(Options {
        cluster: Cluster::by(sandbox.client(sandbox.admin_token())?, NAMESPACE),
        webhook: free,
        metrics: free,
        debug: Some(debug),
        page: Some(Links::default()),
        debug_hosts: Vec::new(),
        certificate: CertificateSource::Given(certificate),
        client_ca: None,
        capacities: Capacities::default(),
        config,
        admission_policies: Vec::new(),
        signing: Some(Signing {
            namespace: NAMESPACE.to_owned(),
            secret: "spark-usher-signing".to_owned(),
            // Only the sandbox, which authenticates its clients, calls this webhook.
            vouching: Vouching { policy: String::new(), settle: Duration::ZERO, client_certificates: true },
        }),
        file_poll_interval: FILE_POLL,
        election: Election {
            namespace: NAMESPACE.to_owned(),
            name: "spark-usher".to_owned(),
            identity: lease::identity(POD),
            duration,
            period: duration / 4,
        },
        watch_silence: Settings::default().watch_silence,
        rate: Rate::default(),
        settle: Duration::ZERO,
        drain: Duration::from_secs(1),
    })
    .await?;
    let debug = app.debug().map(|debug| format!("--debug-listen={debug}"));
    let container = json!({"name": "spark-usher", "image": "spark-usher", "args": ["serve", debug]});
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": POD, "namespace": NAMESPACE}, "spec": {"containers": [container]}});
    let pods: Api<DynamicObject> = Api::namespaced_with(admin.clone(), NAMESPACE, &pods());
    pods.create(&PostParams::default(), &serde_json::from_value(pod)?)
        .await
        .context("cannot create the pod of spark-usher")?;
    let url = |path: &str| format!("https://127.0.0.1:{}/{path}", app.webhook().port());
    make(&admin, webhooks::mutating(&url("mutate"), authority.pem(), namespaces), "mutatingwebhookconfigurations")
        .await?;
    let validating = webhooks::validating(&url("validate"), authority.pem(), namespaces);
    make(&admin, validating, "validatingwebhookconfigurations").await?;
    Ok(app)
}

/// Serves the PodGroups of the schedulers that these policies name, as if they were installed; the sandbox itself has those of Kubernetes.
pub(super) async fn serve_groups(admin: &kube::Client, policies: &Policies) -> anyhow::Result<()> {
    let apis = policies.iter().filter_map(|policy| policy.scheduler.gang_scheduler.apis.first());
    let apis: BTreeSet<(&str, &str)> = apis.map(|api| (api.group, api.version)).collect();
    for (group, version) in apis.into_iter().filter(|(group, _)| *group != NATIVE) {
        let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        let version = json!({"name": version, "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}, "additionalPrinterColumns": [
            {"name": "minMember", "type": "integer", "jsonPath": ".spec.minMember"},
            {"name": "queue", "type": "string", "jsonPath": ".spec.queue"}]});
        let names =
            json!({"kind": "PodGroup", "listKind": "PodGroupList", "plural": "podgroups", "singular": "podgroup"});
        let crd = json!({"metadata": {"name": format!("podgroups.{group}"), "annotations": {"api-approved.kubernetes.io": "unapproved, of the sandbox"}},
            "spec": {"group": group, "scope": "Namespaced", "names": names, "versions": [version]}});
        let crds: Api<CustomResourceDefinition> = Api::all(admin.clone());
        crds.create(&PostParams::default(), &serde_json::from_value(crd)?).await?;
    }
    Ok(())
}

/// The API group of Kubernetes' own PodGroups.
const NATIVE: &str = "scheduling.k8s.io";

/// Creates an object that has no namespace.
pub(super) async fn make(admin: &kube::Client, object: Value, plural: &str) -> anyhow::Result<()> {
    let object: DynamicObject = serde_json::from_value(object)?;
    let types = object.types.clone().unwrap_or_default();
    let (group, version) = types.api_version.split_once('/').unwrap_or(("", &types.api_version));
    let resource = resource(group, version, &types.kind, plural);
    Api::all_with(admin.clone(), &resource).create(&PostParams::default(), &object).await?;
    Ok(())
}
