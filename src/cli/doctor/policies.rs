//! Checks that the ValidatingAdmissionPolicies in the cluster match the policy file, and that the creator policy is installed.

use std::collections::BTreeSet;

use serde_json::Value;

use super::finding::{Finding, readable};
use super::gather::Facts;
use crate::annotations;
use crate::json::text;
use crate::manifests::validating_policy::{KIND, Parameters, differences, manifests, namespaces_of};
use crate::policy::{Policies, Validate};

const UPDATE: &str = "run helm upgrade with validatingPolicy.enabled, or spark-usher policy --validating | kubectl apply -f -; then delete \
                      the objects of policies that are no longer in the file";

/// Whether replicas sign their decisions and believe signatures.
pub(super) fn creator_policy(facts: &Facts, out: &mut Vec<Finding>) {
    if facts.deployments.is_err() {
        return; // Its arguments are not known.
    }
    let Some(vouching) = &facts.vouching else {
        out.push(Finding::warning(
            "decisions are not signed: a changed policy file applies to running applications, and executors have no proven creator",
            "set --signing-secret, as the chart does",
        ));
        return;
    };
    if vouching.client_certificates {
        out.push(Finding::ok("signatures are believed: clients of the webhook need a certificate"));
        return;
    }
    let Some(live) = readable(&facts.creator_objects, "the creator policy", out) else { return };
    out.push(match vouching.voucher(live, &facts.account) {
        Ok(_) => Finding::ok("signatures are believed: the creator policy is installed"),
        Err(reason) => Finding::warning(
            format!("decisions are not signed, and no signature is believed: {reason}"),
            format!(
                "run helm upgrade, or spark-usher policy --creator --account {} | kubectl apply -f -",
                facts.account
            ),
        ),
    });
}

pub(super) fn examine(facts: &Facts, policies: Option<&Policies>, out: &mut Vec<Finding>) {
    let (Some(policies), Some(live)) = (policies, readable(&facts.policy_objects, "ValidatingAdmissionPolicies", out))
    else {
        return;
    };
    let set = |object: &Value| text(object, &["metadata", "annotations", annotations::POLICY_SET]).to_owned();
    let sets: BTreeSet<String> = live.iter().map(set).collect();
    if sets.is_empty() {
        if policies.iter().any(|policy| policy.validate == Validate::Enforce) {
            out.push(Finding::ok(
                "validate: Enforce requires a running replica; with validatingPolicy.enabled the API server enforces it without one",
            ));
        }
        return;
    }
    // Each of several installations may have its own set, which trusts its own account.
    let account = Value::from(facts.account.as_str()).to_string();
    let trusts = |object: &Value| {
        let variables = crate::json::list(object, &["spec", "variables"]).iter();
        variables
            .filter(|variable| text(variable, &["name"]) == "trusted")
            .any(|variable| text(variable, &["expression"]).contains(&account))
    };
    let ours: BTreeSet<String> = live.iter().filter(|object| trusts(object)).map(set).collect();
    if ours.is_empty() {
        let names = Vec::from_iter(sets).join(", ");
        out.push(Finding::warning(
            format!("ValidatingAdmissionPolicies ({names}) do not trust {}: they deny writes of the controller", facts.account),
            "spark-usher policy --validating --account USER with that user name, unless they belong to another installation",
        ));
    }
    for name in ours {
        let live: Vec<Value> = live.iter().filter(|object| set(object) == name).cloned().collect();
        let namespaces = live.iter().find(|object| text(object, &["kind"]) == KIND).map(namespaces_of);
        let parameters = Parameters {
            name: name.clone(),
            namespaces: namespaces.unwrap_or_default(),
            account: facts.account.clone(),
        };
        out.push(match manifests(policies, &parameters).map(|expected| differences(&live, &expected)) {
            Ok(differences) if differences.is_empty() => {
                Finding::ok(format!("the ValidatingAdmissionPolicies ({name}) match the policy file"))
            }
            Ok(differences) => Finding::warning(differences.join("; "), UPDATE),
            Err(refused) => Finding::warning(format!("ValidatingAdmissionPolicies ({name}): {refused}"), UPDATE),
        });
    }
}
