//! The checks: each turns facts into lines of the report, with what to do.

use std::collections::{BTreeMap, BTreeSet};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::core::{Selector, SelectorExt};
use serde_json::Value;

use super::finding::{Finding, readable};
use super::gather::{Admission, Facts, Part, Policy as PolicyFile, argument, name_of, touches_pods, volcano_validates};
use usher_core::gang::early_pods::{self, Version};
use usher_core::policy::{Policies, Policy, deletions};
use usher_core::snapshot::Namespace;
use usher_core::{annotations, gang};
use usher_net::tls::load::load;
use usher_net::tls::rotation::verifies;
use usher_server::cluster::lease::{UNSEEN_ANNOTATION, WITHHELD_ANNOTATION};
use usher_spark::json::{at, controller, entries, list, text};
use usher_spark::labels;
use usher_spark::pod::Pod;
use usher_spark::text::shown;

const MUTATE: &str = "mutate.spark-usher.io";
const VALIDATE: &str = "validate.spark-usher.io";
/// Field managers of Spark's own client (`fabric8`), and of cluster components that write into pods.
const USUAL_MANAGERS: &[&str] = &[
    "fabric8-kubernetes-client",
    "okhttp",
    "java",
    "kubectl",
    "kube-controller-manager",
    "kube-scheduler",
    "kubelet",
    annotations::USHER,
    "spark-submit",
    "unknown",
    "Mozilla",
];

/// The findings of the parts that are examined, in the order of a diagnosis by hand.
#[derive(Debug, Default)]
pub(super) struct Examination {
    pub(super) findings: Vec<Finding>,
    /// The mutating webhook: the name of its configuration, and the webhook.
    ours: Option<(String, Value)>,
    policies: Option<Policies>,
}

impl Examination {
    /// Checks one part, of which the facts are read. Returns whether there is anything else to check.
    pub(super) fn examine(&mut self, part: Part, facts: &Facts) -> bool {
        let out = &mut self.findings;
        let webhook = self.ours.as_ref().map(|(_, webhook)| webhook);
        let policies = self.policies.as_ref();
        match part {
            Part::Installation => {
                out.push(version(facts));
                self.ours = configured(facts, out);
                if !deployment(facts, self.ours.as_ref().map(|(_, webhook)| webhook), out) {
                    return false;
                }
                if facts.deployments.is_err() && facts.mutating.is_err() {
                    let what = format!(
                        "the installation cannot be checked: neither Deployments in namespace {} nor webhook configurations can be read",
                        facts.namespace
                    );
                    let fix = "use a kubeconfig whose user may get and list them, such as a cluster administrator's";
                    out.push(Finding::failed(what, fix));
                }
            }
            Part::Configuration => {
                self.policies = policy(facts, out);
                if let Some(webhook) = webhook {
                    certificate(facts, "mutating", webhook, out);
                    endpoints(facts, webhook, out);
                    selectors(facts, webhook, out);
                }
                if let Some((_, webhook)) = facts.validating.as_ref().ok().and_then(|all| find(all, VALIDATE)) {
                    certificate(facts, "validating", &webhook, out);
                }
            }
            Part::Admission => {
                super::policies::creator_policy(facts, out);
                super::policies::examine(facts, policies, out);
                trial(facts, webhook, out);
            }
            Part::Permissions => permissions(facts, policies, out),
            Part::Surroundings => {
                schedulers(facts, policies, out);
                mesh(facts, out);
                if let Some((name, webhook)) = &self.ours {
                    others(facts, name, webhook, out);
                }
                volcano(facts, policies, out);
                koordinator(policies, out);
                kai(facts, policies, out);
                creators(facts, out);
            }
        }
        true
    }
}

fn version(facts: &Facts) -> Finding {
    let (major, minor) = facts.version;
    let what = format!("Kubernetes {major}.{minor}");
    if (major, minor) < (1, 30) {
        return Finding::warning(what, "upgrade to 1.30 or newer: matchConditions of webhooks are stable since 1.30");
    }
    Finding::ok(what)
}

fn policy(facts: &Facts, out: &mut Vec<Finding>) -> Option<Policies> {
    let text = match readable(&facts.policy, "the policy file's ConfigMap", out)? {
        PolicyFile::Text(text) => text,
        PolicyFile::None => {
            out.push(Finding::ok("no policy file: executors get their ownerReference, and no scheduling fields"));
            out.push(Finding::ok(deletions(&Policies::default())));
            return Some(Policies::default());
        }
        PolicyFile::Missing(what) => {
            let what = format!("the policy file is missing: {what} does not exist, and no replica can restart");
            out.push(Finding::failed(what, "run helm upgrade, or create existingConfigMap with the key policy.yaml"));
            return None;
        }
    };
    match usher_config::from_text(text) {
        Ok(config) => {
            for warning in &config.warnings {
                out.push(Finding::warning(format!("policy file: {warning}"), "spark-usher config check FILE"));
            }
            let count = config.policies.listed().len();
            out.push(Finding::ok(format!("the policy file is valid; policies: {count}")));
            out.push(Finding::ok(deletions(&config.policies)));
            Some((*config.policies).clone())
        }
        Err(error) => {
            let what = format!("the policy file is invalid; running replicas keep the previous one: {error}");
            out.push(Finding::failed(what, "correct it, and check it with spark-usher config check FILE"));
            None
        }
    }
}

/// Reports whether spark-usher is deployed.
fn deployment(facts: &Facts, webhook: Option<&Value>, out: &mut Vec<Finding>) -> bool {
    let Some(all) = readable(&facts.deployments, "the Deployment", out) else { return true };
    let Some(deployment) = all.first() else {
        let what = format!("no Deployment of spark-usher in namespace {}", facts.namespace);
        let elsewhere = webhook.map(|webhook| text(webhook, &["clientConfig", "service", "namespace"]));
        let fix = match elsewhere.filter(|elsewhere| !elsewhere.is_empty() && **elsewhere != facts.namespace) {
            Some(elsewhere) => format!("the webhook's Service is in {elsewhere}: --namespace {elsewhere}"),
            None => "run helm install, or select the namespace with --namespace".to_owned(),
        };
        out.push(Finding::failed(what, fix));
        return false;
    };
    let number = |path: &[&str]| at(deployment, path).and_then(Value::as_u64).unwrap_or_default();
    let (wanted, ready) = (number(&["spec", "replicas"]), number(&["status", "readyReplicas"]));
    let running = facts.pods.as_ref().map_or(0, |pods| pods.iter().filter(|pod| is_ready(pod)).count() as u64);
    // The Deployment's status comes from its controller; the pods' own status is more direct.
    let ready = ready.max(running);
    let what = format!("{ready} of {wanted} replicas are ready");
    out.push(match (wanted, ready) {
        (_, 0) if at(deployment, &["status"]).is_none() => {
            Finding::warning(what, "its status is not set yet: try again, or check kube-controller-manager")
        }
        (_, 0) => Finding::failed(what, "check kubectl describe pods and the logs; /readyz lists what is missing"),
        (1, _) => Finding::warning(
            what,
            "with one replica, executors created during a restart are not mutated: set replicas: 2",
        ),
        (wanted, ready) if ready < wanted => Finding::warning(what, "check kubectl describe pods and the logs"),
        _ => Finding::ok(what),
    });
    let Some(lease) = readable(&facts.lease, "the Lease", out) else { return true };
    let seconds = lease.as_ref().and_then(|lease| at(lease, &["spec", "leaseDurationSeconds"])?.as_i64()).unwrap_or(4);
    let renewed = lease.as_ref().and_then(|lease| text(lease, &["spec", "renewTime"]).parse::<Timestamp>().ok());
    let holder = lease.as_ref().map(|lease| text(lease, &["spec", "holderIdentity"])).unwrap_or_default();
    let leads =
        |renewed: &Timestamp| !holder.is_empty() && facts.now.duration_since(*renewed).as_secs() < 10 + 2 * seconds;
    if renewed.as_ref().is_none_or(|renewed| !leads(renewed)) {
        out.push(Finding::failed(
            "no replica leads: no PodGroup is created, and no exit is reported",
            "search the logs for \"cannot read or write the Lease\": a permission may be missing; or this machine's clock differs",
        ));
        return true;
    }
    out.push(Finding::ok(format!("{holder} is the leader")));
    let stated = |key: &str| {
        let value = lease.as_ref().map(|lease| text(lease, &["metadata", "annotations", key]));
        value.filter(|value| !value.is_empty())
    };
    if let Some(withheld) = stated(WITHHELD_ANNOTATION) {
        let withheld = shown(withheld);
        out.push(Finding::ok(format!(
            "pods that the leader would have deleted since it started, were deletions not off: {withheld}"
        )));
    }
    if let Some(unseen) = stated(UNSEEN_ANNOTATION) {
        out.push(Finding::failed(
            format!("the leader does not see {}: it decides without them", shown(unseen)),
            "search its log for \"does not complete the list\" and \"the watch failed\": a permission may be missing, or the API server cannot serve the watch",
        ));
    }
    true
}

fn is_ready(pod: &Value) -> bool {
    list(pod, &["status", "conditions"])
        .iter()
        .any(|condition| text(condition, &["type"]) == "Ready" && text(condition, &["status"]) == "True")
}

/// Finds the configuration by its webhook's name: the configuration's own name depends on the chart's values.
fn find(configurations: &[Value], webhook: &str) -> Option<(String, Value)> {
    configurations.iter().find_map(|configuration| {
        let found = list(configuration, &["webhooks"]).iter().find(|hook| text(hook, &["name"]) == webhook)?;
        Some((name_of(configuration), found.clone()))
    })
}

fn configured(facts: &Facts, out: &mut Vec<Finding>) -> Option<(String, Value)> {
    if let Some(validating) = readable(&facts.validating, "validating webhooks", out) {
        out.push(match find(validating, VALIDATE) {
            Some((name, _)) => Finding::ok(format!("the validating webhook is registered ({name})")),
            None => Finding::warning(
                "the validating webhook is not registered: pods that the mutating webhook missed are not detected",
                "set webhook.validating.enabled: true",
            ),
        });
    }
    let mutating = readable(&facts.mutating, "mutating webhooks", out)?;
    let Some((name, webhook)) = find(mutating, MUTATE) else {
        out.push(Finding::failed("the mutating webhook is not registered: no executor is mutated", "run helm install"));
        return None;
    };
    out.push(Finding::ok(format!("the mutating webhook is registered ({name})")));
    let seconds = at(&webhook, &["timeoutSeconds"]).and_then(Value::as_u64).unwrap_or(10);
    if seconds > 5 {
        out.push(Finding::warning(
            format!("the mutating webhook's timeout is {seconds} s: while it is unavailable, each creation of a Spark pod waits that long"),
            "set webhook.mutating.timeoutSeconds: 2",
        ));
    }
    if text(&webhook, &["failurePolicy"]) == "Fail" {
        out.push(Finding::warning(
            "the mutating webhook's failurePolicy is Fail: while it is unavailable, no Spark pod can be created",
            "set webhook.mutating.failurePolicy: Ignore, and validate: Enforce in policies that must not admit unmutated pods",
        ));
    }
    Some((name, webhook))
}

/// Checks that API servers trust the served certificate.
fn certificate(facts: &Facts, kind: &str, webhook: &Value, out: &mut Vec<Finding>) {
    let bundle = STANDARD.decode(text(webhook, &["clientConfig", "caBundle"])).unwrap_or_default();
    let bundle = String::from_utf8_lossy(&bundle).into_owned();
    if bundle.is_empty() {
        out.push(Finding::failed(
            format!("the {kind} webhook has no caBundle: API servers do not trust the serving certificate"),
            "the leader writes it within seconds if --mutating-configuration and --validating-configuration name the \
             configuration (check its log); with certManager, check the CA injector",
        ));
        return;
    }
    let secret = match &facts.secret {
        Ok(secret) => secret,
        // Few may read Secrets, `helm test` neither; whether API servers trust the certificate shows in the trial.
        Err(error) => {
            return out.push(Finding::warning(
                format!("cannot read the Secret of the serving certificate: {error}"),
                "run doctor as a user with the permission to read it",
            ));
        }
    };
    let Some(secret) = secret else {
        out.push(Finding::failed("the Secret of the serving certificate does not exist", "check the leader's log"));
        return;
    };
    let data = |key: &str| STANDARD.decode(text(secret, &["data", key])).unwrap_or_default();
    let (chain, key) = (data("tls.crt"), data("tls.key"));
    let loaded = match load(&chain, &key, facts.now) {
        Ok(loaded) => loaded,
        Err(error) => {
            out.push(Finding::failed(
                format!("the Secret's certificate cannot be served: {error}"),
                "see certs/README.md",
            ));
            return;
        }
    };
    let service = |key: &str| text(webhook, &["clientConfig", "service", key]);
    // API servers verify the certificate for the host of a URL, or for the name of a Service.
    let url: Option<hyper::Uri> = text(webhook, &["clientConfig", "url"]).parse().ok();
    let host = url.as_ref().and_then(hyper::Uri::host).map(|host| host.trim_matches(['[', ']']).to_owned());
    let name = host.unwrap_or_else(|| format!("{}.{}.svc", service("name"), service("namespace")));
    let chain = String::from_utf8_lossy(&chain);
    if !verifies(&chain, std::slice::from_ref(&name), &[&bundle], facts.now) {
        out.push(Finding::failed(
            format!(
                "the caBundle of the {kind} webhook does not verify the serving certificate for {name}: every call of the webhook fails"
            ),
            "the leader corrects it within seconds (check its log); with certificate files of your own, set certificates.caBundle",
        ));
        return;
    }
    let days = loaded.not_after.duration_since(facts.now).as_hours() / 24;
    out.push(if days < 5 {
        Finding::warning(
            format!("the serving certificate expires in {days} days"),
            "its renewal is overdue: check the log",
        )
    } else {
        Finding::ok(format!(
            "the caBundle of the {kind} webhook verifies the serving certificate, which expires in {days} days"
        ))
    });
}

fn endpoints(facts: &Facts, webhook: &Value, out: &mut Vec<Finding>) {
    let service = text(webhook, &["clientConfig", "service", "name"]);
    if service.is_empty() {
        out.push(Finding::ok(format!("API servers call {}", text(webhook, &["clientConfig", "url"]))));
        return;
    }
    let Some(slices) = readable(&facts.slices, "the Service's EndpointSlices", out) else { return };
    let of_service = slices.iter().filter(|slice| {
        entries(slice, &["metadata", "labels"])
            .any(|(key, value)| key == "kubernetes.io/service-name" && value == service)
    });
    let ready = of_service
        .flat_map(|slice| list(slice, &["endpoints"]))
        .filter(|endpoint| at(endpoint, &["conditions", "ready"]).and_then(Value::as_bool) != Some(false));
    match ready.count() {
        0 => out.push(Finding::failed(
            format!("Service {service} has no ready endpoint: every call of the webhook fails"),
            "check kubectl describe pods; /readyz lists what is missing",
        )),
        count => out.push(Finding::ok(format!("Service {service} has {count} ready endpoints"))),
    }
}

fn selector(value: Option<&Value>) -> Selector {
    let selector = value.and_then(|value| serde_json::from_value::<LabelSelector>(value.clone()).ok());
    selector.and_then(|selector| Selector::try_from(selector).ok()).unwrap_or_default()
}

fn labels_of(object: &Value) -> BTreeMap<String, String> {
    entries(object, &["metadata", "labels"]).map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

/// Checks that the webhook's selectors match Spark's pods.
fn selectors(facts: &Facts, webhook: &Value, out: &mut Vec<Finding>) {
    let objects = selector(webhook.get("objectSelector"));
    for role in [labels::ROLE_DRIVER, labels::ROLE_EXECUTOR] {
        let spark = [(labels::ROLE, role), (labels::APP_SELECTOR, "spark-0")];
        let spark: BTreeMap<String, String> = spark.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        if !objects.matches(&spark) {
            out.push(Finding::failed(
                format!("the webhook's objectSelector excludes pods with the labels that Spark sets on {role}s"),
                "expected spark-role in (driver, executor)",
            ));
        }
    }
    let (Some(pods), Some(all)) =
        (readable(&facts.spark_pods, "Spark pods", out), readable(&facts.namespaces, "namespaces", out))
    else {
        return;
    };
    let wanted = selector(webhook.get("namespaceSelector"));
    let seen: BTreeSet<&str> = pods.iter().map(|pod| text(pod, &["metadata", "namespace"])).collect();
    let left_out: Vec<&str> = all
        .iter()
        .filter(|namespace| !wanted.matches(&labels_of(namespace)))
        .map(|namespace| text(namespace, &["metadata", "name"]))
        .filter(|name| seen.contains(name))
        .collect();
    out.push(match (seen.len(), left_out.as_slice()) {
        (_, [_, ..]) => Finding::warning(
            format!("Spark pods exist in namespaces that the webhook excludes: {}", left_out.join(", ")),
            "check webhook.namespaces and webhook.namespaceSelector",
        ),
        (0, _) => Finding::ok("no Spark pod exists; the selectors match the labels of Spark's pods"),
        (count, _) => Finding::ok(format!("the selectors match the Spark pods of {count} namespaces")),
    });
}

/// Checks that the API server reaches the webhook.
fn trial(facts: &Facts, webhook: Option<&Value>, out: &mut Vec<Finding>) {
    let namespace = &facts.dry_run_namespace;
    let known = facts.namespaces.as_ref().ok().and_then(|all| all.iter().find(|one| name_of(one) == **namespace));
    if let (Some(known), Some(webhook)) = (known, webhook)
        && !selector(webhook.get("namespaceSelector")).matches(&labels_of(known))
    {
        let what = format!("the webhook excludes namespace {namespace}: a dry-run executor there does not test it");
        out.push(Finding::unchecked(what, "--dry-run-namespace NAMESPACE"));
        return;
    }
    match &facts.trial {
        Ok(trial) => {
            // No proof: the fallback policy's annotation, and the validating webhook's warning that the mutating one was not
            // called.
            let has_annotation = entries(&trial.pod, &["metadata", "annotations"])
                .any(|(key, value)| key.starts_with(annotations::PREFIX) && value != annotations::BY_FALLBACK);
            let has_warning = trial
                .warnings
                .iter()
                .any(|warning| warning.contains("spark-usher: ") && !warning.contains("the pod lacks"));
            let known = out.iter().any(|finding| finding.grade == super::finding::Grade::Failed);
            out.push(if has_annotation || has_warning {
                Finding::ok(format!("the webhook processed a dry-run executor in namespace {namespace}"))
            } else if known {
                let what = format!("the webhook did not process a dry-run executor in namespace {namespace}");
                Finding::failed(what, "fix the failures above first")
            } else {
                Finding::failed(
                    format!("the webhook did not process a dry-run executor in namespace {namespace}: the API server did not reach the webhook"),
                    "check for a firewall between API servers and nodes (private clusters must open the webhook's port), a \
                     NetworkPolicy, a pod network that API servers cannot reach (hostNetwork: true), and the annotation \
                     spark-usher.io/skip",
                )
            });
        }
        Err(error) => out.push(Finding::unchecked(
            format!("cannot create a dry-run executor in namespace {namespace}: {error}"),
            "--dry-run-namespace NAMESPACE: one in which you may create pods",
        )),
    }
}

fn permissions(facts: &Facts, policies: Option<&Policies>, out: &mut Vec<Finding>) {
    use usher_core::manifests::rbac::When;
    use usher_core::policy::{DriverAccess, Finished, RecoveryRule};
    let Some(all) = readable(&facts.permissions, "the permissions of spark-usher's account", out) else { return };
    let deployment = facts.deployments.as_ref().ok().and_then(|all| all.first());
    let pod = deployment.and_then(|deployment| at(deployment, &["spec", "template", "spec"]));
    let managed = pod.is_some_and(|pod| argument(pod, "--tls-secret").is_some());
    // OpenShift always enables OwnerReferencesPermissionEnforcement.
    let openshift = facts.served.as_ref().is_ok_and(|served| served.iter().any(|api| api == "config.openshift.io/v1"));
    let refused = facts.adoptions_refused.as_ref().is_ok_and(|refused| refused.is_some());
    let enforced = openshift || refused;
    let has = |is_meant: &dyn Fn(&Admission) -> bool| facts.admission.iter().any(is_meant);
    let lacking = all.iter().filter(|(permission, _, given)| {
        let needed = match permission.when {
            When::Always => true,
            When::Deleting => {
                enforced
                    || policies.is_some_and(|policies| {
                        policies.lifecycle.finished == Finished::Delete
                            || RecoveryRule::ALL.into_iter().any(|rule| policies.recovery.may_act(rule))
                    })
            }
            When::DeletingByForce => {
                policies.is_some_and(|policies| policies.recovery.may_act(RecoveryRule::Terminating))
            }
            When::Managed => managed,
            When::Validating => has(&|part| part.installation.validates()),
            When::ApplyingValidating => has(&|part| part.installation.validates() && part.owner.is_some()),
            When::FallingBack => has(&|part| !part.installation.validates()),
            When::ApplyingFallback => has(&|part| !part.installation.validates() && part.owner.is_some()),
            When::Proxying => {
                policies.is_some_and(|policies| policies.recovery.driver_view.access == DriverAccess::Proxy)
            }
            When::RecordingNodes => policies.is_none_or(|all| all.nodes.enabled),
            When::ReadingConf => policies.is_none_or(|all| all.iter().any(|policy| policy.gang.read_spark_conf)),
        };
        // A scheduler that is not installed needs no permissions.
        let served = facts.served.as_ref().map_or(true, |served| {
            permission.group.is_empty()
                || served.iter().any(|version| version.split('/').next() == Some(permission.group))
        });
        needed && served && !given
    });
    let lacking: Vec<String> = lacking
        .map(|(permission, verb, _)| {
            let dot = if permission.group.is_empty() { "" } else { "." };
            format!("{verb} {}{dot}{} ({})", permission.resource, permission.group, permission.why)
        })
        .collect();
    out.push(if lacking.is_empty() {
        Finding::ok("spark-usher's account has all permissions that it needs")
    } else {
        let what = format!("spark-usher's account lacks permissions: {}", lacking.join("; "));
        let cure = match enforced && lacking.iter().any(|permission| permission.starts_with("delete pods")) {
            true => "set rbac.ownerReferencesPermissionEnforcement: enabled, or create a role from spark-usher doctor --print-rbac",
            false => "set rbac.create: true, or create a role from spark-usher doctor --print-rbac",
        };
        Finding::failed(what, cure)
    });
    if let Ok(Some(message)) = &facts.adoptions_refused {
        out.push(Finding::warning(
            format!("the API server denied an adoption in the last hour: {message}"),
            "set rbac.ownerReferencesPermissionEnforcement: enabled",
        ));
    }
}

fn schedulers(facts: &Facts, policies: Option<&Policies>, out: &mut Vec<Finding>) {
    let (Some(policies), Some(served)) = (policies, readable(&facts.served, "the served APIs", out)) else {
        return;
    };
    for policy in policies.listed() {
        let scheduler = policy.scheduler.gang_scheduler;
        if scheduler.apis.is_empty() || policy.gang.shape == gang::Shape::Pods {
            continue;
        }
        let served_api = scheduler.apis.iter().find(|api| served.contains(&api.api_version()));
        out.push(match served_api {
            Some(api) => Finding::ok(format!(
                "policy {}: PodGroups of {} are served ({})",
                policy.name,
                scheduler.kind,
                api.api_version()
            )),
            None => Finding::failed(
                format!(
                    "policy {}: the cluster does not serve PodGroups of {}, so its gangs never start",
                    policy.name, scheduler.kind
                ),
                "install the scheduler with its CRDs, or set another scheduler.type",
            ),
        });
    }
}

fn mesh(facts: &Facts, out: &mut Vec<Finding>) {
    let Ok(pods) = &facts.pods else { return };
    let names = pods.iter().flat_map(|pod| {
        list(pod, &["spec", "containers"])
            .iter()
            .chain(list(pod, &["spec", "initContainers"]))
            .map(|one| text(one, &["name"]))
    });
    let found: BTreeSet<&str> =
        names.filter(|name| matches!(*name, "istio-proxy" | "linkerd-proxy" | "kuma-sidecar")).collect();
    out.push(if found.is_empty() {
        Finding::ok("spark-usher's pods have no sidecar of a service mesh")
    } else {
        let what = format!(
            "spark-usher's pods have a sidecar of a service mesh ({}), which may break TLS connections from API servers",
            Vec::from_iter(found).join(", ")
        );
        Finding::warning(what, "exclude spark-usher's namespace or pods from the mesh")
    });
}

/// Lists the other webhooks that change pods, before and after spark-usher.
fn others(facts: &Facts, ours: &str, webhook: &Value, out: &mut Vec<Finding>) {
    let Ok(all) = &facts.mutating else { return };
    let names = all.iter().filter(|one| list(one, &["webhooks"]).iter().any(touches_pods)).map(name_of);
    let (before, after): (Vec<String>, Vec<String>) =
        names.filter(|name| name != ours).partition(|name| name.as_str() < ours);
    let again = text(webhook, &["reinvocationPolicy"]) == "IfNeeded";
    if !before.is_empty() {
        out.push(Finding::ok(format!(
            "webhook configurations that mutate pods before spark-usher: {}",
            before.join(", ")
        )));
    }
    if after.is_empty() {
        return;
    }
    let what = format!("webhook configurations that mutate pods after spark-usher: {}", after.join(", "));
    out.push(if again {
        Finding::ok(format!("{what}; spark-usher is then called again"))
    } else {
        Finding::warning(
            format!("{what}; spark-usher is not called again"),
            "set webhook.mutating.reinvocationPolicy: IfNeeded",
        )
    });
}

/// Some versions of Volcano deny pods whose PodGroup does not exist yet, and spark-usher creates it after the first executor.
fn volcano(facts: &Facts, policies: Option<&Policies>, out: &mut Vec<Finding>) {
    let uses =
        policies.is_some_and(|all| all.listed().iter().any(|policy| policy.scheduler.gang_scheduler.kind == "volcano"));
    let Ok(validating) = &facts.validating else { return };
    let Some((name, _)) = volcano_validates(validating).filter(|_| uses) else { return };
    let images = facts.volcano_images.as_deref().unwrap_or_default();
    let versions: BTreeSet<Version> = images.iter().filter_map(|image| Version::of_image(image)).collect();
    out.push(match (versions.iter().find(|version| version.refuses()), versions.first()) {
        (Some(version), _) => Finding::failed(
            format!(
                "Volcano {version} validates new pods ({name}): it denies executors whose PodGroup does not exist yet, so no gang starts"
            ),
            early_pods::FIX,
        ),
        (None, Some(version)) => {
            Finding::ok(format!("Volcano {version} validates new pods ({name}), and admits them before their PodGroup exists"))
        }
        (None, None) => Finding::warning(
            format!(
                "Volcano validates new pods ({name}), and its version is unknown: up to {} it denies executors whose \
                 PodGroup does not exist yet",
                early_pods::LAST
            ),
            early_pods::FIX,
        ),
    });
}

/// States what Koordinator does with a PodGroup's minResources.
fn koordinator(policies: Option<&Policies>, out: &mut Vec<Finding>) {
    let all = policies.map(Policies::listed).unwrap_or_default();
    let gangs = |policy: &&Policy| {
        policy.scheduler.gang_scheduler.kind == "koordinator" && policy.gang.shape != gang::Shape::Pods
    };
    for policy in all.iter().filter(gangs) {
        out.push(Finding::ok(format!(
            "policy {}: Koordinator counts a gang's members and ignores minResources, which therefore reserves nothing",
            policy.name
        )));
    }
}

/// KAI groups pods by the topmost owner: if that is not a pod, Spark's labels have no effect.
fn kai(facts: &Facts, policies: Option<&Policies>, out: &mut Vec<Finding>) {
    let (Some(policies), Ok(pods)) = (policies, &facts.spark_pods) else { return };
    let mut found: BTreeMap<&str, (usize, String)> = BTreeMap::new();
    for pod in pods.iter().filter(|pod| text(pod, &["metadata", "labels", labels::ROLE]) == labels::ROLE_DRIVER) {
        let Some(owner) = controller(pod) else { continue };
        let namespace = text(pod, &["metadata", "namespace"]);
        let known = facts.namespaces.as_ref().ok().and_then(|all| all.iter().find(|one| name_of(one) == namespace));
        let known = known.map(|known| Namespace { labels: labels_of(known), ..Namespace::default() });
        let json = pod.to_string();
        let Ok(read) = Pod::read_whole(json.as_bytes()) else { continue };
        let Some(policy) = policies.choose(namespace, known.as_ref(), &read) else { continue };
        let harmless = policy.scheduler.gang_scheduler.harmless_owners;
        if harmless.is_some_and(|harmless| !harmless.contains(&text(owner, &["kind"]))) {
            let example = format!("{namespace}/{}", text(pod, &["metadata", "name"]));
            found.entry(text(owner, &["kind"])).or_insert((0, example)).0 += 1;
        }
    }
    for (kind, (count, example)) in found {
        out.push(Finding::warning(
            format!(
                "{count} drivers that KAI schedules are controlled by a {kind} (such as {example}): KAI groups by the topmost \
                 owner, so the {kind}, not the Spark application, determines the gang and the queue"
            ),
            format!("create drivers without such an owner, or set kai.scheduler/queue on the {kind}"),
        ));
    }
}

/// Finds creators of executors other than Spark: a pod that creates executors for others must not become their owner.
fn creators(facts: &Facts, out: &mut Vec<Finding>) {
    let Ok(pods) = &facts.spark_pods else { return };
    let mut strange: BTreeMap<&str, (usize, &str)> = BTreeMap::new();
    for pod in pods.iter().filter(|pod| text(pod, &["metadata", "labels", labels::ROLE]) == labels::ROLE_EXECUTOR) {
        let created = list(pod, &["metadata", "managedFields"]).iter().find(|entry| {
            at(entry, &["fieldsV1", "f:metadata", "f:labels"]).is_some() && text(entry, &["subresource"]).is_empty()
        });
        let Some(manager) = created.map(|entry| text(entry, &["manager"])).filter(|manager| !manager.is_empty()) else {
            continue;
        };
        if !USUAL_MANAGERS.iter().any(|usual| manager.starts_with(usual)) {
            let seen = strange.entry(manager).or_insert((0, text(pod, &["metadata", "name"])));
            seen.0 += 1;
        }
    }
    for (manager, (count, example)) in strange {
        out.push(Finding::warning(
            format!("{count} executors were written by {manager} (such as {example}), which is not a Spark driver"),
            "if it creates pods for other clients (vcluster, Liqo, an operator), add its account to creators.never",
        ));
    }
}
