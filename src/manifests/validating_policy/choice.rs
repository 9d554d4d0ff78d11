//! The choice of a pod's policy, the first that matches, as conditions.

use crate::manifests::cel::{self, any_of, quote};
use crate::policy::{Match, Pattern, Policies, Policy};

/// The policies up to the first that matches every pod.
pub(super) fn reachable(policies: &Policies) -> Vec<&Policy> {
    let mut all: Vec<&Policy> = Vec::new();
    for policy in policies.iter() {
        all.push(policy);
        if policy.matches.is_everything() {
            break;
        }
    }
    all
}

/// The policies whose `queues` the object of this policy enforces: its own, and those of policies that a pod leaves for this
/// stricter one. The pod's old policy decides which queues are allowed, the stricter of both the validation actions.
pub(super) fn restricting<'p>(all: &[&'p Policy], index: usize) -> Vec<(usize, &'p Policy)> {
    let Some(own) = all.get(index) else { return Vec::new() };
    let moves = all.iter().any(|policy| by_pod_labels(&policy.matches));
    let numbered = all.iter().enumerate().map(|(number, policy)| (number, *policy));
    numbered
        .filter(|(number, policy)| {
            policy.queues.is_some() && (*number == index || moves && policy.validate < own.validate)
        })
        .collect()
}

fn by_pod_labels(matches: &Match) -> bool {
    !cel::requirements(&matches.selector_of_pods()).is_empty()
}

/// Whether the choice of this policy depends on labels of the namespace.
pub(super) fn by_namespace_labels(all: &[&Policy], index: usize) -> bool {
    all.iter().take(index + 1).any(|policy| !cel::requirements(&policy.matches.namespace_selector).is_empty())
}

/// The conditions under which this policy is a pod's: its own, and not all of those of an earlier one. Without
/// `namespaces`, only those that do not depend on the namespace's labels.
pub(super) fn first(all: &[&Policy], index: usize, pod: &str, namespaces: bool) -> Vec<String> {
    let mut out = Vec::new();
    for (number, policy) in all.iter().enumerate().take(index + 1) {
        let terms = conditions(&policy.matches, pod, namespaces);
        if number == index {
            out.extend(terms);
        } else if namespaces || cel::requirements(&policy.matches.namespace_selector).is_empty() {
            out.push(format!("!({})", terms.join(" && ")));
        }
    }
    out
}

fn conditions(matches: &Match, pod: &str, namespaces: bool) -> Vec<String> {
    let mut out = Vec::new();
    if !matches.namespaces.is_empty() {
        let regex = any_of(matches.namespaces.iter().map(Pattern::text));
        out.push(format!("request.namespace.matches({})", quote(&regex)));
    }
    out.extend(cel::selects(&matches.selector_of_pods(), &format!("{pod}.metadata.labels")));
    if namespaces {
        out.extend(cel::selects(&matches.namespace_selector, "namespaceObject.metadata.labels"));
    }
    out
}

pub(super) fn conjunction(terms: &[String]) -> String {
    if terms.is_empty() { "true".to_owned() } else { terms.join(" && ") }
}

/// The same for the new object or, in an update, the old one: changed labels do not choose a milder policy.
pub(super) fn either(terms: &dyn Fn(&str) -> Vec<String>) -> String {
    let (new, old) = (conjunction(&terms("object")), conjunction(&terms("oldObject")));
    if new == old { new } else { format!(r#"{new} || request.operation == "UPDATE" && {old}"#) }
}
