//! Preconditions, checked before any object is created: the namespace, the permissions, the policy, and an answer of the webhook.

use std::path::Path;

use kube::api::{Api, DynamicObject, ListParams};
use kube::{Client, ResourceExt};
use serde_json::Value;

use super::objects::{self, App};
use super::plan::Setup;
use super::stage::Stop;
use super::{access, observation};
use crate::cli::doctor::finding::{Finding, Grade};
use crate::cli::doctor::gather;
use crate::cli::doctor::gather::Policy as PolicyFile;
use usher_core::annotations::Overrides;
use usher_core::gang::{self, GangScheduler};
use usher_core::policy::overrides::{self, Effective, Source};
use usher_core::policy::{Policies, Policy};
use usher_core::snapshot::Namespace;
use usher_kube::client::Brief;
use usher_kube::view::resource;
use usher_spark::pod::Pod;

/// Findings of the preparation, and whether scenarios can run.
pub(super) struct Prepared {
    pub(super) findings: Vec<Finding>,
    /// `None` if no scenario can run: the policy creates no gangs, or a check failed.
    pub(super) setup: Option<Setup>,
}

pub(super) struct Asked<'a> {
    pub(super) client: &'a Client,
    pub(super) namespace: &'a str,
    /// Namespace where spark-usher is installed.
    pub(super) installed: &'a str,
    pub(super) config: Option<&'a Path>,
    pub(super) app: &'a App,
}

/// Runs the checks. `dry_run` creates a pod by dry run.
pub(super) async fn prepare(asked: &Asked<'_>, dry_run: impl AsyncFn(&Value) -> Result<Value, Stop>) -> Prepared {
    let mut findings = Vec::new();
    let setup = inspect(asked, dry_run, &mut findings).await.ok();
    Prepared { findings, setup }
}

/// Stops the preparation: the findings contain the reason.
struct Enough;

async fn inspect(
    asked: &Asked<'_>,
    dry_run: impl AsyncFn(&Value) -> Result<Value, Stop>,
    out: &mut Vec<Finding>,
) -> Result<Setup, Enough> {
    let Asked { client, namespace, .. } = asked;
    let known = namespace_of(asked, out).await?;
    let permissions = access::check(client, namespace, None).await;
    let lacks = permissions.iter().any(|finding| finding.grade == Grade::Failed);
    out.extend(permissions);
    if lacks {
        return Err(Enough);
    }
    leftovers(asked, out).await;
    let file = policies(asked, out).await?;
    let driver = asked.app.driver();
    let annotation =
        |key: &str| usher_spark::json::at(&driver, &["metadata", "annotations", key]).and_then(Value::as_str);
    let of_driver = Overrides::read(annotation);
    let chosen = file.as_ref().and_then(|policies| choose(policies, namespace, &known, &driver));
    let chosen = chosen.map(|policy| (policy, effective(policy, &of_driver, &known.overrides)));
    let pod = dry_run(&driver).await.map_err(|stop| out.push(dry_run_failed(stop, asked))).map_err(|()| Enough)?;
    let (policy, scheduler) = placed(&pod, chosen.as_ref(), asked, out)?;
    let served = match gather::served(client).await {
        Ok(served) => served,
        Err(error) => {
            out.push(Finding::failed(format!("cannot read the served APIs: {}", Brief(&error)), ""));
            return Err(Enough);
        }
    };
    let agrees = chosen.as_ref().filter(|(known, effective)| {
        *known.name == *policy && effective.scheduler.gang_scheduler.kind == scheduler.kind
    });
    let setup = Setup::of(&policy, scheduler, agrees.map(|(policy, effective)| (*policy, effective)), &served);
    if setup.has_group() && setup.api.is_none() {
        let what = format!(
            "policy {policy}: the cluster does not serve PodGroups of {}, so its gangs never start",
            scheduler.kind
        );
        out.push(Finding::failed(what, "install the scheduler with its CRDs, or set another scheduler.type"));
        return Err(Enough);
    }
    let permissions = access::check(client, namespace, Some((scheduler, &served))).await;
    let lacks = permissions.iter().any(|finding| finding.grade == Grade::Failed);
    out.extend(permissions);
    if lacks { Err(Enough) } else { Ok(setup) }
}

fn object(client: &Client, namespace: Option<&str>, kind: &str, plural: &str) -> Api<DynamicObject> {
    let resource = resource("", "v1", kind, plural);
    match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    }
}

/// The namespace as policies see it.
async fn namespace_of(asked: &Asked<'_>, out: &mut Vec<Finding>) -> Result<Namespace, Enough> {
    let Asked { client, namespace, app, .. } = asked;
    let known = match object(client, None, "Namespace", "namespaces").get_opt(namespace).await {
        Ok(Some(found)) => Namespace {
            labels: found.labels().clone(),
            overrides: Overrides::read(|key| found.annotations().get(key).map(String::as_str)),
        },
        Ok(None) => {
            out.push(Finding::failed(format!("namespace {namespace} does not exist"), "--gang NAMESPACE"));
            return Err(Enough);
        }
        Err(error) => {
            let what = format!("cannot read namespace {namespace}: {}; its labels are unknown", Brief(&error));
            out.push(Finding::warning(what, "grant the permission to get namespaces"));
            Namespace::default()
        }
    };
    // Without permission to read it, the creation of the driver reports a missing account.
    if let Ok(None) = object(client, Some(namespace), "ServiceAccount", "serviceaccounts").get_opt(&app.account).await {
        let what = format!("namespace {namespace} has no ServiceAccount {}", app.account);
        out.push(Finding::failed(
            what,
            "--service-account NAME: the service account of Spark's drivers in that namespace",
        ));
        return Err(Enough);
    }
    Ok(known)
}

/// Reports objects of an earlier run.
async fn leftovers(asked: &Asked<'_>, out: &mut Vec<Finding>) {
    let mut left = Vec::new();
    for (kind, plural) in [("Pod", "pods"), ("ConfigMap", "configmaps")] {
        let params = ListParams::default().labels(&objects::selector(None));
        if let Ok(all) = object(asked.client, Some(asked.namespace), kind, plural).list(&params).await {
            left.extend(all.items.iter().map(|one| format!("{}/{}", kind.to_lowercase(), one.name_any())));
        }
    }
    if !left.is_empty() {
        out.push(Finding::warning(
            format!("objects of an interrupted run, unless another run is in progress: {}", left.join(", ")),
            objects::removal(asked.namespace, None),
        ));
    }
}

/// Reads the policy file; `None` if it cannot be read: then the webhook's answer is used instead.
async fn policies(asked: &Asked<'_>, out: &mut Vec<Finding>) -> Result<Option<Policies>, Enough> {
    let read = match asked.config {
        Some(path) => crate::cli::input::policy_file(path).map_err(|error| format!("{}: {error}", path.display())),
        None => match gather::installed_policy(asked.client, asked.installed).await {
            Ok(Some(PolicyFile::Text(text))) => usher_config::from_text(&text).map_err(|error| error.to_string()),
            Ok(Some(PolicyFile::None)) => Ok(usher_config::Config::default()),
            other => {
                let why = match other {
                    Ok(Some(PolicyFile::Missing(what))) => format!("{what} does not exist"),
                    Err(error) => error,
                    _ => format!("no Deployment of spark-usher in namespace {}", asked.installed),
                };
                let what = format!(
                    "the policy file is unknown: {why}; policy and scheduler are those that the webhook applies"
                );
                out.push(Finding::warning(what, "--namespace RELEASE, or --config FILE"));
                return Ok(None);
            }
        },
    };
    match read {
        Ok(config) => Ok(Some((*config.policies).clone())),
        Err(error) => {
            out.push(Finding::failed(format!("cannot load the policy file: {error}"), "spark-usher config check FILE"));
            Err(Enough)
        }
    }
}

fn choose<'p>(policies: &'p Policies, namespace: &str, known: &Namespace, driver: &Value) -> Option<&'p Policy> {
    let text = driver.to_string();
    let pod = Pod::read_whole(text.as_bytes()).ok()?;
    policies.choose(namespace, Some(known), &pod)
}

fn effective(policy: &Policy, driver: &Overrides, namespace: &Overrides) -> Effective {
    let none = Overrides::default();
    overrides::resolve(policy, [(Source::Pod, &none), (Source::Driver, driver), (Source::Namespace, namespace)])
}

fn dry_run_failed(stop: Stop, asked: &Asked<'_>) -> Finding {
    let (why, fix) = match stop {
        Stop::Failed { why, fix } | Stop::NoDriver { why, fix } => (why, fix),
        Stop::Skipped(why) => (why, String::new()),
    };
    let fix = if fix.is_empty() {
        format!("allow the creation of pods in namespace {}, or use another with --gang", asked.namespace)
    } else {
        fix
    };
    Finding::failed(why, fix)
}

/// The policy and the scheduler that the webhook applied to the driver.
fn placed(
    pod: &Value,
    chosen: Option<&(&Policy, Effective)>,
    asked: &Asked<'_>,
    out: &mut Vec<Finding>,
) -> Result<(String, &'static GangScheduler), Enough> {
    const FIX: &str =
        "run spark-usher doctor --dry-run-namespace NAMESPACE: it checks whether the API server reaches the webhook";
    if let Some((policy, kind)) = observation::set_by(pod)
        && let Some(scheduler) = GangScheduler::of_kind(kind)
    {
        if let Some((known, effective)) = chosen
            && (*known.name != *policy || effective.scheduler.gang_scheduler.kind != kind)
        {
            let what = format!(
                "the webhook applied policy {policy} ({kind}) to a driver, and the policy file selects {} ({})",
                known.name, effective.scheduler.gang_scheduler.kind
            );
            out.push(Finding::warning(
                what,
                "check the logs: a replica may not have loaded the latest file; or use --config FILE",
            ));
        }
        out.push(Finding::ok(format!("the webhook applies policy {policy} ({kind}) to drivers")));
        return Ok((policy.to_owned(), scheduler));
    }
    out.push(match chosen {
        Some((policy, effective)) if effective.scheduler.gang_scheduler.kind == gang::NONE.kind => {
            Finding::ok(format!("policy {} creates no gangs: its scheduler.type is none", policy.name))
        }
        Some((policy, effective)) => Finding::failed(
            format!(
                "the webhook did not apply policy {} ({}) to a driver in namespace {}",
                policy.name, effective.scheduler.gang_scheduler.kind, asked.namespace
            ),
            FIX,
        ),
        None => Finding::failed(
            format!(
                "the webhook applied no policy to a driver in namespace {}: its policy has scheduler.type none, or the webhook did not answer",
                asked.namespace
            ),
            FIX,
        ),
    });
    Err(Enough)
}
