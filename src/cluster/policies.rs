//! Compares the cluster's ValidatingAdmissionPolicies with those of the policy file. They do not follow the file
//! automatically: a gauge shows when an administrator has to install them again.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use kube::ResourceExt;
use kube::api::{Api, DynamicObject, ListParams};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::client::Brief;
use super::metrics::Metrics;
use super::request::{Error, Result, call};
use super::view::resource;
use crate::annotations;
use crate::json::text;
use crate::manifests::validating_policy::{BINDING, KIND, Parameters, differences, manifests, namespaces_of};
use crate::policy::Policies;
use crate::telemetry::registry::to_gauge;

/// Timeout of a read.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// How often the objects are read.
const POLL_INTERVAL: Duration = Duration::from_secs(60);

/// All objects that `spark-usher policy --validating` and the chart create, of any name. Clusters before 1.30 do not serve these
/// kinds.
pub async fn live(client: &kube::Client) -> Result<Vec<Value>> {
    let mut out = Vec::new();
    for (kind, plural) in [(KIND, "validatingadmissionpolicies"), (BINDING, "validatingadmissionpolicybindings")] {
        let api: Api<DynamicObject> =
            Api::all_with(client.clone(), &resource("admissionregistration.k8s.io", "v1", kind, plural));
        let found = match api.list(&ListParams::default()).await.map_err(Error::from) {
            Ok(found) => found.items,
            Err(Error::NotFound(_)) => Vec::new(),
            Err(error) => return Err(error),
        };
        let ours = found.into_iter().filter(|object| object.annotations().contains_key(annotations::POLICY_SET));
        out.extend(ours.filter_map(|object| {
            let mut object = serde_json::to_value(object).ok()?;
            // Objects of a list have no kind.
            crate::json::set(&mut object, &["kind"], kind);
            Some(object)
        }));
    }
    Ok(out)
}

/// Updates the gauge until `stop` is cancelled. `name` is the first part of the objects' names.
pub async fn run(
    client: kube::Client,
    name: String,
    policies: Arc<ArcSwap<Policies>>,
    own: Arc<ArcSwapOption<String>>,
    metrics: Arc<Metrics>,
    stop: CancellationToken,
) {
    let mut is_reported = false;
    loop {
        // The expected objects depend on our own account.
        if let Some(account) = own.load_full() {
            match call(REQUEST_TIMEOUT, live(&client)).await {
                Ok(live) => {
                    is_reported = false;
                    let found = differing(&live, &name, &account, &policies.load());
                    metrics.policies_differ.set(to_gauge(found.len()));
                    for difference in found {
                        tracing::debug!(difference, "the ValidatingAdmissionPolicies differ from the policy file");
                    }
                }
                Err(error) if !is_reported => {
                    is_reported = true;
                    tracing::warn!(error = %Brief(&error), "cannot read the ValidatingAdmissionPolicies; retrying");
                }
                Err(_) => {}
            }
        }
        let pause = if own.load().is_some() { POLL_INTERVAL } else { Duration::from_secs(1) };
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// The differences between the objects of this name and those of the file, a sentence each.
fn differing(live: &[Value], name: &str, account: &str, policies: &Policies) -> Vec<String> {
    let set = |object: &&Value| text(object, &["metadata", "annotations", annotations::POLICY_SET]) == name;
    let live: Vec<Value> = live.iter().filter(set).cloned().collect();
    let namespaces = live.iter().find(|object| text(object, &["kind"]) == KIND).map(namespaces_of);
    let parameters =
        Parameters { name: name.to_owned(), namespaces: namespaces.unwrap_or_default(), account: account.to_owned() };
    match manifests(policies, &parameters) {
        Ok(expected) => differences(&live, &expected),
        Err(refused) => vec![refused.to_string()],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn policies_of_other_names_are_ignored_and_differences_reported() {
        let policies = crate::config::from_text(
            "apiVersion: spark-usher.io/v1alpha1\nkind: PolicyFile\npolicies: [{name: a, validate: Enforce}]",
        )
        .unwrap()
        .policies;
        let account = "system:serviceaccount:spark-usher:spark-usher";
        let generated = |name: &str| {
            let parameters = Parameters { name: name.into(), namespaces: Vec::new(), account: account.into() };
            manifests(&policies, &parameters).unwrap()
        };
        let objects = generated("spark-usher");
        assert_eq!(differing(&objects, "spark-usher", account, &policies), Vec::<String>::new());
        let both = [objects.clone(), generated("other")].concat();
        assert_eq!(differing(&both, "spark-usher", account, &policies), Vec::<String>::new());
        assert_eq!(differing(&objects[1..], "spark-usher", account, &policies).len(), 1, "one is missing");
        assert_eq!(differing(&[], "spark-usher", account, &policies).len(), objects.len());
        let mut changed = objects;
        changed[1]["spec"]["validationActions"] = json!(["Audit"]);
        assert_eq!(differing(&changed, "spark-usher", account, &policies).len(), 1);
        let next = crate::config::from_text(
            "apiVersion: spark-usher.io/v1alpha1\nkind: PolicyFile\npolicies: [{name: a, validate: Warn}]",
        )
        .unwrap()
        .policies;
        assert!(!differing(&generated("spark-usher"), "spark-usher", account, &next).is_empty(), "another file");
    }
}
