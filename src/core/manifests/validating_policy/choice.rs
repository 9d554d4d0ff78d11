//! The choice of a pod's policy, the first that matches, as a chain of conditions. Its text grows with the number of policies, and
//! the API server evaluates it up to the first match.

use crate::manifests::cel::{self, Variables, any_of, quote};
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

/// Whether a change of a pod's labels can select another policy.
pub(super) fn depends_on_pod_labels(all: &[&Policy]) -> bool {
    all.iter().any(|policy| !cel::requirements(&policy.matches.selector_of_pods()).is_empty())
}

/// The variables `policy`, the index of the policy that the object selects, and `oldPolicy`, that of the policy that it selected
/// before an update.
pub(super) fn choose(all: &[&Policy], variables: &mut Variables) {
    let labels = "has(namespaceObject.metadata.labels) ? namespaceObject.metadata.labels : {}";
    variables.add("namespaceLabels", labels.to_owned());
    let mut add = |name: &str, labels: &str| {
        // The last of them selects every pod.
        let listed = all.iter().enumerate().take(all.len().saturating_sub(1));
        let links: Vec<(String, String)> =
            listed.map(|(number, policy)| (condition(&policy.matches, labels), number.to_string())).collect();
        variables.add_chain(name, &links, links.len().to_string())
    };
    let policy = add("new", "variables.labels");
    if depends_on_pod_labels(all) {
        let old = add("old", "variables.oldLabels");
        variables.add("policy", policy);
        variables.add("oldPolicy", format!(r#"request.operation == "UPDATE" ? {old} : variables.policy"#));
    } else {
        variables.add("policy", policy);
        variables.add("oldPolicy", "variables.policy".to_owned());
    }
}

/// Whether a policy selects the pod with these labels, in the namespace of the request.
fn condition(matches: &Match, labels: &str) -> String {
    let mut terms = Vec::new();
    if !matches.namespaces.is_empty() {
        let regex = any_of(matches.namespaces.iter().map(Pattern::text));
        terms.push(format!("request.namespace.matches({})", quote(&regex)));
    }
    terms.extend(cel::selects(&matches.namespace_selector, "variables.namespaceLabels"));
    terms.extend(cel::selects(&matches.selector_of_pods(), labels));
    terms.join(" && ")
}
