//! The variables of the validations.

use serde_json::{Value, json};

use super::choice::{choose, depends_on_pod_labels};
use crate::annotations::{self, MetadataField};
use crate::gang::{self, GangScheduler};
use crate::manifests::cel::{Variables, any_of, changed, is_pod, quote, shown};
use crate::policy::{DEFAULT_SCHEDULER, Pattern, Policies, Policy, Validate};
use usher_spark::labels;

/// The most that a match of one queue may cost: a pod names some ten queues, and an expression may cost 1,000,000
/// (`apiserver/pkg/apis/cel/config.go`, `PerCallLimit`).
const MAX_MATCH_COST: usize = 80_000;
/// At most this many owners are compared regardless of their order; longer lists are compared in order, which costs little.
const MAX_OWNERS: usize = 256;

/// The variables of the policy object of this mode.
pub(super) fn variables(policies: &Policies, all: &[&Policy], mode: Validate, account: &str) -> Variables {
    let mut out = Variables::of_request();
    add_evidence(policies, account, &mut out);
    choose(all, &mut out);
    out.add("applies", applies(all, mode));
    // An audit annotation's own expression is limited to 5 KiB.
    let names: Vec<&str> = all.iter().map(|policy| &*policy.name).collect();
    out.add("policyName", format!("{}[variables.policy]", json!(names)));
    add_queues(policies, all, mode, &mut out);
    out.add("who", shown("variables.username", "true", "this account"));
    out.add("driver", shown("variables.controllers[0].name", "variables.controllers.size() > 0", "a pod"));
    out
}

/// Whether the object of this mode judges a pod: the stricter mode of the policies that it has and had is this one.
fn applies(all: &[&Policy], mode: Validate) -> String {
    let indices = |is_wanted: &dyn Fn(Validate) -> bool| -> Vec<usize> {
        all.iter().enumerate().filter(|(_, policy)| is_wanted(policy.validate)).map(|(number, _)| number).collect()
    };
    let (of_mode, stricter) = (indices(&|other| other == mode), indices(&|other| other > mode));
    if of_mode.len() == all.len() {
        return "true".to_owned();
    }
    if !depends_on_pod_labels(all) {
        return format!("variables.policy in {of_mode:?}");
    }
    let any = format!("(variables.policy in {of_mode:?} || variables.oldPolicy in {of_mode:?})");
    if stricter.is_empty() {
        return any;
    }
    format!("{any} && !(variables.policy in {stricter:?}) && !(variables.oldPolicy in {stricter:?})")
}

/// What the request proves: who sends it, and what it changes.
fn add_evidence(policies: &Policies, account: &str, out: &mut Variables) {
    let mut add = |name: &str, expression: String| out.add(name, expression);
    add("trusted", trusted(policies, account));
    let never = any_of(policies.creators_never());
    let has_never = policies.creators_never().next().is_some();
    add("never", if has_never { format!("variables.username.matches({})", quote(&never)) } else { "false".to_owned() });
    // If a pod created the executor: the claimed driver, and whether it is that pod.
    add(
        "controllers",
        "has(object.metadata.ownerReferences) ? object.metadata.ownerReferences.filter(owner, has(owner.controller) && owner.controller) : []".to_owned(),
    );
    add(
        "namesDriver",
        format!(
            r#""{0}" in variables.labels && variables.labels["{0}"] == "{1}" && variables.podNames.size() + variables.podUids.size() > 0 && variables.controllers.size() > 0 && variables.controllers[0].kind == "Pod" && variables.controllers[0].apiVersion == "v1""#,
            labels::ROLE,
            labels::ROLE_EXECUTOR
        ),
    );
    add(
        "createdByOwner",
        format!(
            r#"variables.podNames.size() == 1 && variables.podUids.size() == 1 && variables.controllers.size() > 0 && variables.username.startsWith("system:serviceaccount:" + request.namespace + ":") && variables.username != "system:serviceaccount:" + request.namespace + ":" && {} && variables.podUids[0] == variables.controllers[0].uid"#,
            is_pod("variables.podNames[0]", "variables.podUids[0]")
        ),
    );
    // The changes of an update.
    add("changedIdentity", changed(&[labels::APP_SELECTOR, labels::ROLE], "labels", "oldLabels"));
    for (name, object) in [("owners", "object"), ("oldOwners", "oldObject")] {
        add(
            name,
            format!(
                r#"request.operation == "UPDATE" && has({object}.metadata.ownerReferences) ? {object}.metadata.ownerReferences : []"#
            ),
        );
    }
    for (name, owners) in [("ownerFields", "variables.owners"), ("oldOwnerFields", "variables.oldOwners")] {
        add(
            name,
            format!(
                r#"{owners}.size() <= {MAX_OWNERS} ? {owners}.map(owner, [owner.apiVersion, owner.kind, owner.name, owner.uid, dyn(has(owner.controller) ? (owner.controller ? "true" : "false") : "")]) : []"#
            ),
        );
    }
    add(
        "sameOwners",
        format!(
            "variables.owners == variables.oldOwners || variables.owners.size() == variables.oldOwners.size() && variables.owners.size() <= {MAX_OWNERS} && variables.ownerFields.all(owner, owner in variables.oldOwnerFields) && variables.oldOwnerFields.all(owner, owner in variables.ownerFields)"
        ),
    );
    for (name, object) in [("group", "object"), ("oldGroup", "oldObject")] {
        add(
            name,
            format!(
                r#"request.operation == "UPDATE" && has({object}.spec.schedulingGroup) ? [has({object}.spec.schedulingGroup.podGroupName) ? {object}.spec.schedulingGroup.podGroupName : ""] : []"#
            ),
        );
    }
    let protected_keys = gang::keys().chain(annotations::PROTECTED.map(|key| (MetadataField::Annotation, key)));
    let (label_keys, annotation_keys): (Vec<_>, Vec<_>) =
        protected_keys.partition(|(place, _)| *place == MetadataField::Label);
    let sorted = |keys: Vec<(MetadataField, &'static str)>| {
        let mut keys: Vec<&str> = keys.into_iter().map(|(_, key)| key).collect();
        keys.sort_unstable();
        keys.dedup();
        keys
    };
    add(
        "changedKeys",
        format!(
            r#"{} + {} + (variables.group != variables.oldGroup ? ["schedulingGroup"] : [])"#,
            changed(&sorted(label_keys), "labels", "oldLabels"),
            changed(&sorted(annotation_keys), "annotations", "oldAnnotations"),
        ),
    );
}

/// Whether the requester may change everything, as in [`validate`](crate::admission::validate()).
fn trusted(policies: &Policies, account: &str) -> String {
    let names = json!(["system:kube-controller-manager", "system:kube-scheduler", "system:apiserver", account]);
    let mut any = vec![
        format!("variables.username in {names}"),
        r#"variables.username.startsWith("system:serviceaccount:kube-system:")"#.to_owned(),
        r#""system:masters" in variables.groups"#.to_owned(),
    ];
    if policies.trusted_writers().next().is_some() {
        let regex = quote(&any_of(policies.trusted_writers()));
        any.push(format!("variables.username.matches({regex})"));
        any.push(format!("variables.groups.exists(group, group.matches({regex}))"));
    }
    any.join(" || ")
}

/// The policies whose `queues` the object of this mode enforces: those of the mode, and those of milder modes that a pod can leave
/// for one of it. The pod's old policy decides which queues are allowed, the stricter of both the validation actions.
fn restricting<'p>(all: &[&'p Policy], mode: Validate) -> Vec<(usize, &'p Policy)> {
    let moves = depends_on_pod_labels(all);
    let judged = |policy: &Policy| policy.validate == mode || moves && policy.validate < mode;
    let numbered = all.iter().enumerate().map(|(number, policy)| (number, *policy));
    numbered.filter(|(_, policy)| policy.queues.is_some() && judged(policy)).collect()
}

/// The queues that a pod newly names to its scheduler, and those that its policy does not allow.
fn add_queues(policies: &Policies, all: &[&Policy], mode: Validate, out: &mut Variables) {
    let mut add = |name: &str, expression: String| out.add(name, expression);
    let restricting = restricting(all, mode);
    if restricting.is_empty() {
        return;
    }
    add("scheduler", format!(r#"has(object.spec.schedulerName) ? object.spec.schedulerName : "{DEFAULT_SCHEDULER}""#));
    let named = |place: MetadataField, new: &str, old: &str| {
        let keys = gang::TABLE.iter().flat_map(|scheduler| [false, true].map(|is_fallback| (scheduler, is_fallback)));
        let keys = keys.filter_map(|(scheduler, is_fallback)| {
            let here = |(at, _, fallback): &(MetadataField, _, bool)| *at == place && *fallback == is_fallback;
            let keys: Vec<&str> = scheduler.queue_keys().filter(here).map(|(_, key, _)| key).collect();
            let first = policies.queue_key(scheduler).filter(|_| is_fallback);
            let unless = first.map(|(at, key)| format!(r#"!("{key}" in variables.{})"#, at.as_str()));
            (!keys.is_empty()).then(|| read_by(scheduler, policies, &json!(keys), unless.as_deref()))
        });
        let keys = keys.collect::<Vec<_>>().join(" + ");
        let suffixes = |map: &str| -> String {
            let suffix_of = |scheduler: &&GangScheduler| {
                let suffix = scheduler.queue_suffix.filter(|_| place == MetadataField::Label)?;
                let keys: Vec<&str> = scheduler.fallback_queue_keys.iter().map(|(_, key)| *key).collect();
                Some(format!(r#" + (key in {} && "{suffix}" in {map} ? "-" + {map}["{suffix}"] : "")"#, json!(keys)))
            };
            gang::TABLE.iter().filter_map(suffix_of).collect()
        };
        let (new, old) = (format!("variables.{new}"), format!("variables.{old}"));
        let (queue, was) = (format!("{new}[key]{}", suffixes(&new)), format!("{old}[key]{}", suffixes(&old)));
        format!(
            r#"({keys}).filter(key, key in {new} && {new}[key] != "" && !(key in {old} && {was} == {queue})).map(key, {queue})"#
        )
    };
    let labels = named(MetadataField::Label, "labels", "oldLabels");
    let annotations = named(MetadataField::Annotation, "annotations", "oldAnnotations");
    add("newQueues", format!("{labels} + {annotations}"));
    let links: Vec<(String, String)> = restricting
        .into_iter()
        .map(|(number, policy)| {
            let foreign = format!("variables.newQueues.filter(queue, !({}))", allowed(policy));
            (format!("variables.oldPolicy == {number}"), foreign)
        })
        .collect();
    let foreign = out.add_chain("foreign", &links, "[]".to_owned());
    out.add("foreignQueues", foreign);
    out.add("queue", shown("variables.foreignQueues[0]", "variables.foreignQueues.size() > 0", "this queue"));
}

fn allowed(policy: &Policy) -> String {
    let mut any: Vec<String> = policy.queue.iter().map(|queue| format!("queue == {}", quote(queue))).collect();
    let patterns = policy.queues.as_deref().unwrap_or_default();
    if !patterns.is_empty() {
        let regex = any_of(patterns.iter().map(Pattern::text));
        any.push(format!("queue.size() <= {} && queue.matches({})", longest_queue(regex.len()), quote(&regex)));
    }
    if any.is_empty() { "false".to_owned() } else { any.join(" || ") }
}

/// The longest queue that is compared with patterns of this length. The cost of a match (cel-go, `checker/cost.go`): a tenth of the
/// text's length times a quarter of the expression's.
fn longest_queue(regex: usize) -> usize {
    let max = MAX_MATCH_COST / regex.div_ceil(4).max(1) * 10;
    max.clamp(63, Pattern::MAX_MATCHED)
}

/// Keys that a scheduler reads from the pods that name it, under a further condition; any policy may give it another name.
fn read_by(scheduler: &GangScheduler, policies: &Policies, keys: &Value, only: Option<&str>) -> String {
    if scheduler.default_name.is_none() {
        return keys.to_string();
    }
    let names = policies.scheduler_names(scheduler);
    let only = only.map(|only| [" && ", only].concat()).unwrap_or_default();
    format!("(variables.scheduler in {}{only} ? {keys} : [])", json!(names))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn match_of_queues_costs_no_more_than_an_expression_may() {
        assert_eq!(longest_queue(100), Pattern::MAX_MATCHED, "whatever the webhook compares");
        for regex in [1, 1_000, 5_000, 20_000, 40_000] {
            let cost = longest_queue(regex).div_ceil(10) * regex.div_ceil(4);
            assert!(cost <= MAX_MATCH_COST, "{regex}: {cost}");
        }
        // A label's value is at most so long, whatever it costs.
        assert_eq!(longest_queue(90_000), 63);
    }
}
