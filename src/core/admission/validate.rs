//! Validating admission: is a new pod as the policy requires, and may the requester make this change to a pod?
//!
//! A created pod is validated in its final state, after every mutating webhook, ours included: if ours was unavailable (it
//! fails open) or another webhook reverted it, this is a finding. Of an update only the *change* is validated, and only of
//! the fields that our and the schedulers' decisions depend on: owners, gang keys, annotations, role and application.

use super::application;
use super::decision::Decision;
use super::draft::Draft;
use super::mutate::drafted;
use super::mutation::Mutation;
use super::request::{Operation, Review};
use crate::annotations::{self, MetadataField};
use crate::gang::{self, GangScheduler, GroupKeyField};
use crate::ownership::resolve::{self, FoundDriver, Requester};
use crate::policy::{DEFAULT_SCHEDULER, Policies, Policy, Validate};
use crate::reason::Reason;
use crate::snapshot::{GroupKey, SchedulingFields, Snapshot};
use usher_spark::labels;
use usher_spark::node_terms::{NodeRequirements, Work};
use usher_spark::pod::{OwnerReference, Pod};
use usher_spark::role::Role;
use usher_spark::text::shown;
use usher_spark::wire_text::is_too_many;

/// The input of a validation besides the review.
#[derive(Clone, Copy, Debug)]
pub struct ValidationContext<'b> {
    pub snapshot: &'b Snapshot,
    /// Our own account.
    pub own_account: Option<&'b str>,
    /// Whether the policies have been unchanged for a while. Replicas load a new policy file a minute or two apart: a replica
    /// with the new file must not reject a pod that another mutated by the old one.
    pub settled: bool,
}

/// Validates a creation or an update.
pub fn validate<'a>(review: &Review<'a>, policies: &'a Policies, context: ValidationContext<'_>) -> Decision<'a> {
    let ValidationContext { snapshot, own_account, settled } = context;
    let is_ours = review.is_pod || (review.is_status && review.operation == Operation::Update);
    if !is_ours {
        return Decision::pass(Reason::NotAPod);
    }
    let (pod, old) = match (&review.pod, &review.old, review.operation) {
        (Some(pod), _, Operation::Create) => (pod, None),
        (Some(pod), Some(old), Operation::Update) => (pod, Some(old)),
        _ => return Decision::pass(Reason::NotCreate),
    };
    // An update that removes the labels of a pod is validated too.
    let was = old.unwrap_or(pod);
    if pod.role() == Role::Other && was.role() == Role::Other {
        return Decision::pass(Reason::NotSpark);
    }
    let known = review.known_namespace(snapshot);
    // If the policy depends on the labels of a namespace that was neither observed nor found, the strictest one decides.
    let candidates = |pod| policies.candidates(&review.namespace, known, pod);
    let chosen = |pod| policies.strictest(candidates(pod), |policy| policy.validate);
    let (policy, next) = (chosen(was), chosen(pod));
    let mut draft = Draft::new(Reason::Valid);
    draft.policy = Some(&policy.name);
    // The queue must be one that each policy which may match allows.
    let queues = |pod: &Pod<'_>, old: Option<&Pod<'_>>, draft: &mut Draft<'_>| {
        let _ = candidates(was).any(|policy| {
            queue(review, pod, old, snapshot, policy, policies, draft);
            draft.findings.iter().any(|(reason, _)| *reason == Reason::QueueNotAllowed)
        });
    };
    let trusted = is_trusted(&review.requester, policies, own_account);
    match old {
        None => {
            created(review, pod, snapshot, policies, trusted, &mut draft);
            application(review, pod, policies, &mut draft);
            // The controllers of workloads create what tenants write into templates.
            if !trusted || resolve::is_workload_controller(&review.requester.username) {
                group(review, pod, snapshot, policies, &mut draft);
            }
            scheduler(pod, snapshot, policies, &mut draft);
            queues(pod, None, &mut draft);
        }
        Some(old) => {
            changed(review, old, pod, &mut draft);
            if trusted {
                draft.trust(Reason::TrustedWriter);
            } else {
                queues(pod, Some(old), &mut draft);
                if sets_scheduling(old) != sets_scheduling(pod) {
                    // The node constraints of a pod with a scheduling gate can still change.
                    scheduler(pod, snapshot, policies, &mut draft);
                }
            }
        }
    }
    // A change of the labels that choose the policy does not make the mode milder.
    let mode = policy.validate.max(next.validate);
    let only_not_mutated = draft.findings.iter().all(|(reason, _)| *reason == Reason::NotMutated);
    let warns_only = only_not_mutated && !settled;
    draft.decide_validation(if warns_only { mode.min(Validate::Warn) } else { mode })
}

/// A pod's node selector and affinity.
fn sets_scheduling<'p>(pod: &'p Pod<'_>) -> (Vec<(&'p str, &'p str)>, Option<&'p str>) {
    let selector = pod.spec.node_selector.as_ref().map(|selector| selector.iter().collect()).unwrap_or_default();
    (selector, pod.spec.affinity.as_deref())
}

/// Whether a requester may change everything: the cluster's controllers (the garbage collector removes owners itself),
/// its scheduler, system:masters, our own account, and the accounts that the policy file names.
pub(super) fn is_trusted(requester: &Requester<'_>, policies: &Policies, own_account: Option<&str>) -> bool {
    const CONTROL_PLANE: [&str; 3] = ["system:kube-controller-manager", "system:kube-scheduler", "system:apiserver"];
    let username = requester.username.as_str();
    CONTROL_PLANE.contains(&username)
        || username.starts_with("system:serviceaccount:kube-system:")
        || requester.groups.iter().any(|group| *group == "system:masters" || policies.is_trusted_writer(group))
        || own_account == Some(username)
        || policies.is_trusted_writer(username)
}

/// Validates a created pod in its final state.
fn created(
    review: &Review<'_>,
    pod: &Pod<'_>,
    snapshot: &Snapshot,
    policies: &Policies,
    trusted: bool,
    draft: &mut Draft<'_>,
) {
    let Ok((should, policy)) = drafted(review, snapshot, policies) else { return };
    if pod.role() == Role::Executor && !trusted {
        if let Some(owner) = resolve::from_owner_reference(pod)
            && let Some(but) = owner_violation(review, pod, &owner, snapshot, policies)
        {
            draft.find(
                Reason::OwnerNotCreator,
                format!(
                    "the executor names pod {} as its driver, but {but}: let Spark or spark-usher set the ownerReference",
                    shown(&owner.name)
                ),
            );
        }
        if let Some((_, sentence)) = should.notes.iter().find(|(reason, _)| *reason == Reason::ForeignCreator) {
            draft.find(Reason::ForeignCreator, sentence.clone());
        }
    }
    if policy.strict && should.is_undecided() && !draft.findings.iter().any(|(found, _)| *found == should.reason) {
        let why = should.notes.iter().find(|(reason, _)| *reason == should.reason);
        let why = why.map_or(should.reason.text(), |(_, sentence)| sentence);
        draft.find(
            Reason::NotMutated,
            format!("policy {} is strict, and spark-usher cannot decide about the pod: {why}", policy.name),
        );
    }
    // A replica cannot verify signatures without the signing key, nor before it observed the objects that they depend on.
    let undecided =
        should.reason == Reason::Skipped || should.notes.iter().any(|(reason, _)| *reason == Reason::NamespaceUnknown);
    if !undecided && snapshot.signing_key().is_some() {
        // Another creator's text is no less forged than one that should not be there.
        let forged = should.mutations.iter().filter_map(|mutation| match mutation {
            // Whether nodes are avoided depends on nodes, which change between two reviews.
            Mutation::RemoveMetadata(key) if ![annotations::DRIVER, annotations::AVOIDS_NODES].contains(key) => {
                Some(*key)
            }
            Mutation::SetMetadata(_, annotations::CREATOR, _) => Some(annotations::CREATOR),
            _ => None,
        });
        if let Some(keys) = listed(forged.filter(|key| pod.annotation(key).is_some())) {
            draft.find(
                Reason::NotMutated,
                format!("the pod has {keys}, which spark-usher did not set: remove it from the pod template"),
            );
        }
    }
    let mut lacks: Vec<&str> = should.mutations.iter().filter_map(missing_fields).collect();
    lacks.dedup();
    if !lacks.is_empty() {
        // The API server drops the field, and nothing else, if its feature is disabled.
        let is_dropped = pod.annotation(annotations::BY).is_some() && lacks == [SCHEDULING_GROUP];
        let why = match is_dropped {
            true => "the API server drops it without the feature gates GenericWorkload and GangScheduling",
            false => "spark-usher's mutating webhook was unavailable, or another webhook reverted its changes",
        };
        draft.find(Reason::NotMutated, format!("the pod lacks {}: {why}", lacks.join(", ")));
    }
}

/// Finds a pod that names an application of another driver or namespace to its scheduler. Of pods whose scheduler the policy keeps,
/// and of those that were created while the mutating webhook was unavailable: the others get their own.
fn application(review: &Review<'_>, pod: &Pod<'_>, policies: &Policies, draft: &mut Draft<'_>) {
    let keys = gang::TABLE.iter().flat_map(|scheduler| scheduler.app_keys.iter().chain(scheduler.more_app_keys));
    // Without the others, YuniKorn reads the app selector, which nothing here ever gives such a value.
    let selector = (MetadataField::Label, labels::APP_SELECTOR);
    let mut app_id = None;
    for (place, key) in keys.chain([&selector]) {
        let Some(present) = place.value(pod, key).filter(|value| gang::is_application_id(value)) else { continue };
        let app_id = app_id.get_or_insert_with(|| application::id_of_review(review, pod, policies));
        if app_id.as_deref() != Some(present) || *key == labels::APP_SELECTOR {
            let sentence = format!(
                "the pod names application {} ({key}), which is that of another driver: remove it",
                shown(present)
            );
            return draft.find(Reason::ForeignApplication, sentence);
        }
    }
}

/// Finds a pod that names a PodGroup of ours which belongs to a driver of another account, or whose members another creator created: a
/// few such pods reach its minMember, and the members start without each other.
fn group(review: &Review<'_>, pod: &Pod<'_>, snapshot: &Snapshot, policies: &Policies, draft: &mut Draft<'_>) {
    let named = gang::TABLE.iter().flat_map(|scheduler| {
        let more = scheduler.more_group_keys.iter().filter_map(|(place, key)| place.value(pod, key));
        scheduler.group_key.of_pod(pod).into_iter().chain(more).map(move |name| (*scheduler, name))
    });
    for (scheduler, name) in named {
        let key = GroupKey { namespace: (*review.namespace).into(), name: name.into(), scheduler: scheduler.kind };
        let Some(present) = snapshot.groups.get(&key) else { continue };
        let creator = resolve::creator(&review.requester, &review.namespace, policies);
        // A controller creates the pods of all accounts under one name.
        let owner = present.owner.as_ref().filter(|_| !resolve::is_workload_controller(&review.requester.username));
        let is_foreign = match owner {
            Some(owner) => {
                let is_creator = creator.as_ref().is_ok_and(|creator| *creator.uid == *owner.uid);
                !is_creator
                    && resolve::is_foreign(&owner.name, &review.requester, &review.namespace, snapshot, policies)
            }
            None => {
                let app = present.selector.as_deref().and_then(|selector| snapshot.app(&review.namespace, selector));
                let by = resolve::signing_creator(&review.requester, &creator, pod);
                let is_in = |fields: &SchedulingFields| scheduler.group_key.of_fields(fields) == Some(name);
                app.is_some_and(|app| app.is_only_of_others(by.key(), is_in))
            }
        };
        if is_foreign {
            let sentence =
                format!("the pod names PodGroup {}, whose members another creator creates: remove it", shown(name));
            return draft.find(Reason::ForeignGroup, sentence);
        }
    }
}

/// Evidence against a claimed driver. A requester that is not a pod proves nothing.
fn owner_violation(
    review: &Review<'_>,
    pod: &Pod<'_>,
    owner: &FoundDriver<'_>,
    snapshot: &Snapshot,
    policies: &Policies,
) -> Option<String> {
    match resolve::creator(&review.requester, &review.namespace, policies) {
        // Proven, regardless of its labels.
        Ok(creator) if creator.uid == owner.uid => return None,
        Ok(creator) => return Some(format!("pod {} created it", shown(&creator.name))),
        // A pod, but not of this namespace, or not a single one: in no case the claimed driver.
        Err(Reason::CreatorElsewhere | Reason::CreatorAmbiguous) => {
            return Some(format!("{} created it", shown(&review.requester.username)));
        }
        Err(_) => {}
    }
    let known = snapshot.driver_pod(&review.namespace, &owner.name).filter(|known| *known.uid == *owner.uid)?;
    let selector = known.selector.as_deref()?;
    (Some(selector) != pod.app_selector()).then(|| format!("that pod drives application {}", shown(selector)))
}

/// The native field by which a pod names its gang.
const SCHEDULING_GROUP: &str = "spec.schedulingGroup";

/// The name of a field that a pod must have, if the mutation sets one.
fn missing_fields(mutation: &Mutation) -> Option<&'static str> {
    match mutation {
        Mutation::SchedulerName(_) => Some("schedulerName"),
        Mutation::Owner { .. } => Some("the ownerReference to its driver"),
        Mutation::SchedulingGroup(_) => Some(SCHEDULING_GROUP),
        Mutation::SetMetadata(place, key, _) => {
            let is_key = |scheduler: &&GangScheduler| scheduler.group_key == GroupKeyField::Metadata(*place, key);
            let is_app_key = |scheduler: &&GangScheduler| scheduler.app_keys.contains(&(*place, *key));
            match gang::TABLE.iter().any(is_key) {
                true => Some("its gang"),
                false => gang::TABLE.iter().any(is_app_key).then_some("its application"),
            }
        }
        Mutation::PriorityClass(_) | Mutation::Affinity(_) | Mutation::RemoveMetadata(_) => None,
    }
}

/// Validates a change by a requester that is not trusted.
fn changed(review: &Review<'_>, old: &Pod<'_>, pod: &Pod<'_>, draft: &mut Draft<'_>) {
    let who = shown(&review.requester.username);
    let remedy = "to allow this, list the account in trustedWriters";
    let identity = [labels::ROLE, labels::APP_SELECTOR].into_iter().filter(|key| old.label(key) != pod.label(key));
    if let Some(keys) = listed(identity) {
        draft.find(
            Reason::ApplicationChanged,
            format!("{who} changed {keys} (the role and application of the pod): {remedy}"),
        );
    }
    if owners(old) != owners(pod) {
        draft.find(
            Reason::OwnerChanged,
            format!("{who} changed the ownerReferences, through which the pod is deleted with its driver: {remedy}"),
        );
    }
    let protected_keys = gang::keys().chain(annotations::PROTECTED.map(|key| (MetadataField::Annotation, key)));
    let group = (old.spec.scheduling_group != pod.spec.scheduling_group).then_some("schedulingGroup");
    let protected_keys =
        protected_keys.filter(|(place, key)| place.value(old, key) != place.value(pod, key)).map(|(_, key)| key);
    if let Some(keys) = listed(protected_keys.chain(group)) {
        draft.find(Reason::SchedulingChanged, format!("{who} changed {keys}, on which scheduling depends: {remedy}"));
    }
}

fn listed<'k>(keys: impl Iterator<Item = &'k str>) -> Option<String> {
    let mut keys: Vec<&str> = keys.collect();
    keys.sort_unstable();
    keys.dedup();
    (!keys.is_empty()).then(|| keys.join(", "))
}

/// The owners, regardless of their order.
fn owners<'p, 'a>(pod: &'p Pod<'a>) -> Vec<&'p OwnerReference<'a>> {
    let mut owners: Vec<_> = pod.metadata.owner_references.iter().flatten().collect();
    owners.sort_by(|a, b| a.uid.cmp(&b.uid));
    owners
}

/// Finds a pod that requests the nodes of a policy by another scheduler. (schedulerName cannot change later.)
fn scheduler(pod: &Pod<'_>, snapshot: &Snapshot, policies: &Policies, draft: &mut Draft<'_>) {
    let present = pod.spec.scheduler_name.as_deref().unwrap_or(DEFAULT_SCHEDULER);
    let reserved: Vec<&Policy> = policies.iter().filter(|policy| policy.reserved_for(present).is_some()).collect();
    if reserved.is_empty() {
        return;
    }
    let requirements = match NodeRequirements::of(&pod.spec) {
        // A pod that may use any node is not restricted to a pool: the taint of the pool's nodes excludes the pod.
        Ok(requirements) if requirements.is_empty() => return,
        Ok(requirements) => requirements,
        // The API server refuses an affinity that is no affinity.
        Err(error) if !is_too_many(&error) => return,
        Err(_) => {
            return draft.find(
                Reason::TooLarge,
                "the pod's node affinity is too long to validate: expected at most 1,024 items per list".to_owned(),
            );
        }
    };
    for (policy, requests) in restricted(&requirements, snapshot, &reserved) {
        let pool: Vec<String> = policy.node_pool.iter().map(|(key, value)| format!("{key}={value}")).collect();
        draft.find(
            Reason::OtherScheduler,
            format!(
                "the pod {requests} nodes with {}, which are reserved for scheduler {}, but names {}: two schedulers would allocate the same resources (OutOfcpu)",
                pool.join(","), policy.reserved_for(present).unwrap_or_default(), shown(present)
            ),
        );
    }
}

/// Steps of the comparison of a pod's requirements with labels and nodes: a millisecond. Of a pod that needs more, everything is assumed.
const MAX_STEPS: usize = 90_000;

/// The policies to whose node pools one of a pod's alternatives restricts it, by the labels that it names or because no other node meets
/// it, with what the pod does.
fn restricted<'p>(
    requirements: &NodeRequirements<'_>,
    snapshot: &Snapshot,
    reserved: &[&'p Policy],
) -> Vec<(&'p Policy, &'static str)> {
    let mut work = Work::new(MAX_STEPS);
    let mut found: Vec<(&Policy, &str)> = Vec::new();
    for alternative in requirements.alternatives() {
        let pool = |policy: &'p Policy| policy.node_pool.iter().map(|(key, value)| (key.as_str(), value.as_str()));
        let is_open = |policy: &&Policy| !found.iter().any(|(known, _)| known.name == policy.name);
        let open: Vec<&Policy> = reserved.iter().copied().filter(is_open).collect();
        // Each with whether the pod may use one of its nodes.
        let mut possible: Vec<(&Policy, bool)> = Vec::new();
        for policy in open {
            match alternative.names_all(pool(policy), &mut work) {
                true => found.push((policy, "requests")),
                false => possible.push((policy, false)),
            }
        }
        // A node that is cordoned does not keep a pod that names certain nodes from the pool.
        let names_nodes = alternative.names_nodes();
        for (name, node) in &snapshot.nodes {
            let is_allowed = alternative.allows(name, |key| node.label(key), &mut work);
            if possible.is_empty() || !work.spend(if is_allowed { possible.len() } else { 0 }) {
                break;
            }
            possible.retain_mut(|(policy, is_used)| {
                let is_in = is_allowed && policy.has_node(|key| node.label(key));
                *is_used |= is_in;
                is_in || !is_allowed || (names_nodes && node.cordoned)
            });
        }
        possible.retain(|(_, is_used)| *is_used || work.is_exceeded());
        found.extend(possible.into_iter().map(|(policy, _)| (policy, "can only run on")));
    }
    found
}

/// Finds a queue that the policy does not allow, if the pod's scheduler would use it.
fn queue(
    review: &Review<'_>,
    pod: &Pod<'_>,
    old: Option<&Pod<'_>>,
    snapshot: &Snapshot,
    policy: &Policy,
    policies: &Policies,
    draft: &mut Draft<'_>,
) {
    if policy.queues.is_none() {
        return;
    }
    // A running application keeps the queue that it got before the policy changed: Spark 4.2 and newer count rejected
    // creations as failures, and exit.
    let first = || {
        let app = pod.app_selector().and_then(|selector| snapshot.app(&review.namespace, selector))?;
        let creator = resolve::creator(&review.requester, &review.namespace, policies);
        app.first_scheduling(resolve::signing_creator(&review.requester, &creator, pod).key())
    };
    let present = pod.spec.scheduler_name.as_deref().unwrap_or(DEFAULT_SCHEDULER);
    for scheduler in gang::TABLE {
        // Any policy may give a scheduler of this type another name.
        let named = policies.iter().any(|policy| {
            policy.scheduler.gang_scheduler.kind == scheduler.kind && policy.scheduler.name.as_deref() == Some(present)
        });
        // Kueue reads the queue under any schedulerName.
        if !(named || scheduler.default_name.is_none_or(|name| name == present)) {
            continue;
        }
        for by @ (place, key, is_fallback) in scheduler.queue_keys() {
            let has = |(place, key): (MetadataField, &str)| place.value(pod, key).is_some();
            if is_fallback && policies.queue_key(scheduler).is_some_and(has) {
                continue;
            }
            let Some(queue) = scheduler.queue_by(pod, by) else { continue };
            let was_there = || {
                old.is_some_and(|old| scheduler.queue_by(old, by).as_ref() == Some(&queue))
                    || first().is_some_and(|scheduling| {
                        // The webhook sets every key that the pod has.
                        let mut queue_keys = scheduler.own_queue_keys();
                        scheduling.entry(place, key) == Some(&*queue)
                            || queue_keys.any(|(place, key)| scheduling.entry(place, key) == Some(&*queue))
                    })
            };
            if !policy.allows_queue(&queue) && !was_there() {
                draft.find(
                    Reason::QueueNotAllowed,
                    format!(
                        "queue {} ({key}) is not allowed by policy {} in namespace {}: use another queue, or add it to the policy's queues",
                        shown(&queue), policy.name, review.namespace
                    ),
                );
            }
        }
    }
}
