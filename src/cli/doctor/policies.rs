//! Checks that the admission policies of the cluster are those of the policy file, and that the creator policy is installed.

use serde_json::Value;

use super::finding::{Finding, readable};
use super::gather::{Admission, Facts};
use usher_core::annotations::MANAGED_BY;
use usher_core::manifests::called;
use usher_core::manifests::converge::compare;
use usher_core::manifests::installation::{Installation, Kind};
use usher_core::manifests::object::{GROUP, is_validating};
use usher_core::manifests::validating_policy::Slot;
use usher_core::policy::{Policies, Validate};
use usher_server::cluster::policies::Live;
use usher_spark::json::{list, text};

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
                "run helm upgrade, or spark-usher policy --creator --name {} --account {} | kubectl apply -f -",
                vouching.policy, facts.account
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
    let release = facts.creator_policy();
    let unmanaged: Vec<&Value> =
        live.objects.iter().filter(|object| is_unmanaged(object, &release, &facts.admission)).collect();
    if !unmanaged.is_empty() {
        let names: Vec<String> = unmanaged.iter().map(|object| called(object)).collect();
        out.push(Finding::warning(
            format!("admission policies that no replica of this installation manages: {}", names.join(", ")),
            format!("{}, unless they belong to another installation", deletion(&unmanaged)),
        ));
    }
    if facts.admission.is_empty()
        && live.objects.is_empty()
        && policies.iter().any(|policy| policy.validate == Validate::Enforce)
    {
        out.push(Finding::ok(
            "validate: Enforce requires a running replica; with validatingPolicy.enabled the API server enforces it without one",
        ));
    }
    for part in &facts.admission {
        out.push(compared(part, live, policies, &facts.account));
    }
}

/// Compares the policies of a part of an installation with the policy file.
fn compared(part: &Admission, live: &Live, policies: &Policies, account: &str) -> Finding {
    let Admission { installation, owner } = part;
    let what = if installation.validates() { "ValidatingAdmissionPolicies" } else { "fallback policies" };
    if let Some(kind) = live.unserved.iter().find(|kind| is_validating(kind) == installation.validates()) {
        return Finding::warning(
            format!("there are no {what}: this cluster does not serve {kind} in {GROUP}/v1"),
            "upgrade the cluster, or disable them in the values of the chart",
        );
    }
    let (wanted, refused) = installation.wanted(policies, account);
    let (found, surplus) = compare(&live.objects, &wanted, owner.is_none().then_some(Slot::A));
    let problems = [refused.clone(), found].concat();
    if problems.is_empty() {
        return Finding::ok(format!("the {what} are those of the policy file"));
    }
    let remedy = match owner {
        Some(_) => "the leader applies them within a minute of a change; its log says what prevents it".to_owned(),
        None if !refused.is_empty() && wanted.is_empty() => {
            "change the policy file as expected, and run doctor again".to_owned()
        }
        None if surplus.is_empty() => command(installation, account),
        // Every API server must have seen the new ones.
        None => format!(
            "{} && sleep 10 && {}",
            command(installation, account),
            deletion(&surplus.iter().collect::<Vec<_>>())
        ),
    };
    Finding::warning(problems.join("; "), remedy)
}

/// Whether an object belongs to this installation, which does not manage it, or to none as far as is known: one that another leader
/// applied has an owner, with which it is deleted. `release` is the first part of this installation's names.
fn is_unmanaged(object: &Value, release: &str, parts: &[Admission]) -> bool {
    let name = text(object, &["metadata", "name"]);
    let is_ours = parts.iter().any(|part| part.installation.names().iter().any(|ours| ours == name));
    let owners = list(object, &["metadata", "ownerReferences"]);
    let of_part = |owner: &Value| {
        let owner = format!("{}/{}", text(owner, &["kind"]), text(owner, &["name"]));
        parts.iter().any(|part| part.owner.as_ref() == Some(&owner))
    };
    let of_helm = text(object, &["metadata", "labels", MANAGED_BY]) == "Helm";
    let is_named_so = name.strip_prefix(release).is_some_and(|rest| rest.starts_with('.'));
    !is_ours && !of_helm && (owners.is_empty() || is_named_so || owners.iter().any(of_part))
}

/// The command that deletes objects: bindings first.
fn deletion(objects: &[&Value]) -> String {
    let mut names: Vec<String> = objects
        .iter()
        .map(|object| format!("{}/{}", text(object, &["kind"]), text(object, &["metadata", "name"])))
        .collect();
    names.sort_by_key(|name| !name.contains("Binding/"));
    format!("kubectl delete {}", names.join(" "))
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
