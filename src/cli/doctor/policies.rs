//! Checks that the admission policies of the cluster are those of the policy file, and that the creator policy is installed.

use serde_json::Value;

use super::finding::{Finding, readable};
use super::gather::{Admission, Facts};
use crate::json::text;
use crate::manifests::called;
use crate::manifests::converge::compare;
use crate::manifests::installation::{Installation, Kind};
use crate::manifests::object::is_validating;
use crate::manifests::validating_policy::Slot;
use crate::policy::{Policies, Validate};

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

/// Whether the admission policies of the cluster are those of the policy file.
pub(super) fn examine(facts: &Facts, policies: Option<&Policies>, out: &mut Vec<Finding>) {
    let (Some(policies), Some(live)) = (policies, readable(&facts.policy_objects, "the admission policies", out))
    else {
        return;
    };
    let parts = facts.admission.as_ref().map(|admission| admission.installation.parts()).unwrap_or_default();
    let is_managed =
        |object: &&Value| parts.iter().any(|part| part.validates() == is_validating(text(object, &["kind"])));
    let unmanaged: Vec<String> = live.iter().filter(|object| !is_managed(object)).map(called).collect();
    if !unmanaged.is_empty() {
        out.push(Finding::warning(
            format!("admission policies that no replica of this installation manages: {}", unmanaged.join(", ")),
            format!("kubectl delete {}, unless they belong to another installation", unmanaged.join(" ")),
        ));
    }
    let Some(Admission { applies, .. }) = &facts.admission else {
        if live.is_empty() && policies.iter().any(|policy| policy.validate == Validate::Enforce) {
            out.push(Finding::ok(
                "validate: Enforce requires a running replica; with validatingPolicy.enabled the API server enforces it without one",
            ));
        }
        return;
    };
    for part in &parts {
        let what = if part.validates() { "ValidatingAdmissionPolicies" } else { "fallback policies" };
        let (wanted, refused) = part.wanted(policies, &facts.account);
        let (found, surplus) = compare(live, &wanted, (!applies).then_some(Slot::A));
        let problems = [refused, found].concat();
        out.push(if problems.is_empty() {
            Finding::ok(format!("the {what} are those of the policy file"))
        } else if *applies {
            Finding::warning(
                problems.join("; "),
                "the leader applies them within a minute of a change; its log says what prevents it",
            )
        } else {
            let surplus = surplus.iter().map(|object| format!("kubectl delete {}", called(object)));
            let commands: Vec<String> = std::iter::once(command(part, &facts.account)).chain(surplus).collect();
            Finding::warning(problems.join("; "), commands.join("; "))
        });
    }
}

/// How to apply the policies of a part of an installation.
fn command(part: &Installation, account: &str) -> String {
    let (name, namespaces) = (&part.name, Value::from(part.namespaces.clone()));
    let flags = match part.kinds.as_slice() {
        [Kind::Validating] => format!(" --validating --account {account}"),
        kinds if kinds.contains(&Kind::FallbackScheduler) => " --scheduler".to_owned(),
        _ => String::new(),
    };
    format!(
        "spark-usher policy{flags} --name {name} --namespaces '{namespaces}' --config FILE | kubectl apply --server-side --force-conflicts -f -"
    )
}
