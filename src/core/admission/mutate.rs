//! Mutating admission: the decision about one review.

use super::context::MutationContext;
use super::decision::Decision;
use super::draft::Draft;
use super::mutation::Mutation;
use super::request::{Operation, Review};
use super::{avoid, scheduling, sign};
use crate::annotations::{self, Overrides};
use crate::ownership::resolve::{self, DriverSource, FoundDriver, Ownership, Resolution};
use crate::policy::overrides::{self, Effective, Source};
use crate::policy::{DEFAULT_SCHEDULER, Policies, Policy};
use crate::reason::Reason;
use crate::snapshot::{DriverPod, Snapshot};
use usher_spark::labels;
use usher_spark::role::Role;

/// Decides about a created pod, with reasons. Never fails and never waits.
pub fn mutate<'a>(review: &Review<'a>, snapshot: &Snapshot, policies: &'a Policies) -> Decision<'a> {
    match drafted(review, snapshot, policies) {
        Ok((draft, policy)) => draft.decide(policy.strict),
        Err(not_ours) => Decision::pass(not_ours),
    }
}

/// The decision about a created pod without its verdict, and its policy; or why there is nothing to decide.
pub(super) fn drafted<'a>(
    review: &Review<'a>,
    snapshot: &Snapshot,
    policies: &'a Policies,
) -> Result<(Draft<'a>, &'a Policy), Reason> {
    if !review.is_pod {
        return Err(Reason::NotAPod);
    }
    let pod = match (&review.pod, review.operation) {
        (Some(pod), Operation::Create) => pod,
        _ => return Err(Reason::NotCreate),
    };
    let role = pod.role();
    if role == Role::Other {
        return Err(Reason::NotSpark);
    }
    let known = review.known_namespace(snapshot);
    let (policy, unknown) = match policies.choose(&review.namespace, known, pod) {
        Some(policy) => (policy, false),
        None => (policies.strictest(policies.candidates(&review.namespace, known, pod), |policy| policy.strict), true),
    };
    let context = MutationContext { review, pod, policy, snapshot };
    let mut draft = match (unknown, role) {
        (true, _) => namespace_unknown(&context),
        (false, Role::Driver) => driver(&context, policies),
        (false, _) => executor(&context, policies),
    };
    draft.policy = Some(&policy.name);
    if context.is_fallback() && !unknown {
        replace_fallback(&mut draft);
    }
    sign::complete(&context, &mut draft);
    draft.mutations.retain(|mutation| !mutation.is_done(pod));
    Ok((draft, policy))
}

/// The fallback policy's schedulerName is not the creator's choice: without another decision it is reverted. The fallback's
/// mark is always removed.
fn replace_fallback(draft: &mut Draft<'_>) {
    let placed = draft.mutations.iter().any(|mutation| matches!(mutation, Mutation::SchedulerName(_)));
    if !placed {
        draft.mutations.push(Mutation::SchedulerName(DEFAULT_SCHEDULER.to_owned()));
    }
    if !draft.changes(annotations::BY) {
        draft.mutations.push(Mutation::RemoveMetadata(annotations::BY));
    }
}

/// A policy that selects by namespace labels cannot be evaluated before the namespace is observed or found. The strictest policy that
/// may match decides.
fn namespace_unknown<'a>(context: &MutationContext<'_, 'a>) -> Draft<'a> {
    Draft::noted(
        Reason::NamespaceUnknown,
        format!(
            "namespace {} was neither observed nor found, and its labels select the policy: the pod was not changed",
            context.review.namespace
        ),
    )
}

/// Sets a driver's scheduling fields from the policy. A driver never joins the executors' gang, which would wait for
/// executors that only the driver can create.
fn driver<'a>(context: &MutationContext<'_, 'a>, policies: &Policies) -> Draft<'a> {
    let of_driver = Overrides::read(|key| context.pod.annotation(key));
    let effective = resolve_overrides(context, &Overrides::default(), &of_driver);
    if effective.skip {
        return Draft::new(Reason::Skipped);
    }
    let mut draft = Draft::new(Reason::DriverSchedulingSet);
    let requester = &context.review.requester;
    let creator = resolve::creator(requester, &context.review.namespace, policies);
    let creator = resolve::signing_creator(requester, &creator, context.pod);
    scheduling::driver(context, &effective, &creator, &mut draft);
    draft.signature = Some(creator);
    add_notes(&mut draft, effective);
    draft
}

fn executor<'a>(context: &MutationContext<'_, 'a>, policies: &Policies) -> Draft<'a> {
    let MutationContext { review, pod, snapshot, .. } = context;
    if pod.app_selector().is_none() {
        return Draft::noted(
            Reason::NoAppSelector,
            format!(
                "an executor without the label {} belongs to no application and was not changed",
                labels::APP_SELECTOR
            ),
        );
    }
    let resolution = resolve::resolve(&review.requester, &review.namespace, pod, snapshot, policies);
    let driver_pod = driver_pod(context, &resolution);
    let of_pod = Overrides::read(|key| pod.annotation(key));
    let none = Overrides::default();
    let effective = resolve_overrides(context, &of_pod, driver_pod.map_or(&none, |driver| &driver.overrides));
    if effective.skip {
        return Draft { driver: resolution.driver, ..Draft::new(Reason::Skipped) };
    }
    if resolution.foreign {
        return foreign_creator(context, resolution);
    }
    let mut draft = Draft::new(Reason::Owned);
    let scheduled = scheduling::executor(context, &effective, &resolution, driver_pod, &mut draft);
    own_executor(context, &resolution, scheduled, &mut draft);
    // Also with an owner: the garbage collector removes a reference to a driver that is gone if another owner is left.
    draft.signature = Some(resolution.creator.clone());
    note_driver(&resolution, &mut draft);
    draft.driver = resolution.driver;
    avoid::suspect_nodes(context, policies, driver_pod, scheduled.starts_with, &mut draft);
    add_notes(&mut draft, effective);
    draft
}

/// The driver's pod, if the snapshot has it: for our annotations and the application's size.
fn driver_pod<'s>(context: &MutationContext<'s, '_>, resolution: &Resolution<'_>) -> Option<&'s DriverPod> {
    let found = resolution.driver.as_ref()?;
    let known = context.snapshot.driver_pod(&context.review.namespace, &found.name);
    known.filter(|known| *known.uid == *found.uid).map(|driver| &**driver)
}

fn foreign_creator<'a>(context: &MutationContext<'_, '_>, resolution: Resolution<'a>) -> Draft<'a> {
    let mut draft = Draft::noted(
        Reason::ForeignCreator,
        format!(
            "{} created an executor whose owner is a driver of another account: the executor gets no scheduler and no gang",
            context.review.requester.username
        ),
    );
    draft.signature = Some(resolution.creator);
    // The controller sees the same labels as on any executor; this annotation shows that another account wrote them.
    draft.set_annotation(annotations::DRIVER, annotations::FOREIGN_CREATOR.to_owned());
    draft.driver = resolution.driver;
    draft
}

/// Sets the executor's owner, or notes why it gets none.
fn own_executor(
    context: &MutationContext<'_, '_>,
    resolution: &Resolution<'_>,
    scheduled: scheduling::Scheduled,
    draft: &mut Draft<'_>,
) {
    match (&resolution.ownership, &resolution.driver) {
        (Ownership::AsSent, _) => {}
        (Ownership::Creator, Some(driver)) if scheduled.owner_would_regroup => draft.note(
            Reason::OwnerWithheld,
            format!(
                "the executor gets no ownerReference to {}: its scheduler would then add it to the group of its driver",
                driver.name
            ),
        ),
        (Ownership::Creator, Some(driver)) => {
            draft.mutations.push(Mutation::Owner { name: driver.name.to_string(), uid: driver.uid.to_string() });
        }
        (Ownership::Creator, None) => {}
        (Ownership::Denied(reason), _) => draft.note(*reason, note_denied_owner(context, *reason)),
    }
}

/// Why an executor gets no owner, and how to change that.
fn note_denied_owner(context: &MutationContext<'_, '_>, reason: Reason) -> String {
    // Spark looks for that pod in the namespace of the executors, and fails if there is none.
    const FIX: &str = "if its driver runs in a pod of this namespace, set spark.kubernetes.driver.pod.name from the downward API \
                       (metadata.name), so that Spark sets the ownerReference";
    let username = &context.review.requester.username;
    match reason {
        Reason::NoCreator => {
            format!("no authenticated pod created this executor, so it gets no owner and may outlive its driver: {FIX}")
        }
        Reason::CreatorElsewhere => {
            let namespace = &context.review.namespace;
            format!(
                "{username} is not a service account of namespace {namespace}: no pod can own one of another namespace, so the executor \
                 may outlive its driver; run the driver in {namespace}"
            )
        }
        Reason::CreatorAmbiguous => {
            format!("the token of {username} does not name exactly one pod, so the executor gets no owner: {FIX}")
        }
        Reason::CreatorNever => {
            format!("{username} creates pods for others (creators.never), so the executor gets no owner: {FIX}")
        }
        Reason::CreatorIsExecutor => "an executor created this executor, which therefore gets no owner".to_owned(),
        Reason::CreatorOfOtherApplication => {
            "the pod that created this executor belongs to another application, so the executor gets no owner"
                .to_owned()
        }
        Reason::CreatorNotDriver => {
            "the pod that created this executor is not the driver of its application, so the executor gets no owner"
                .to_owned()
        }
        other => other.text().to_owned(),
    }
}

/// Notes weaker evidence for the controller, which adopts after a GET. A note that is not ours is removed.
fn note_driver(resolution: &Resolution<'_>, draft: &mut Draft<'_>) {
    let is_noted = |driver: &FoundDriver<'_>| match driver.source {
        DriverSource::AppSelector | DriverSource::DriverUrl => resolution.ownership != Ownership::AsSent,
        DriverSource::Creator | DriverSource::OwnerReference => false,
    };
    match &resolution.driver {
        Some(driver) if is_noted(driver) => {
            draft.set_annotation(annotations::DRIVER, resolve::write_evidence(driver));
        }
        _ => draft.mutations.push(Mutation::RemoveMetadata(annotations::DRIVER)),
    }
}

fn resolve_overrides(context: &MutationContext<'_, '_>, pod: &Overrides, driver: &Overrides) -> Effective {
    let none = Overrides::default();
    let namespace = context.review.known_namespace(context.snapshot);
    let namespace = namespace.map_or(&none, |namespace| &namespace.overrides);
    overrides::resolve(context.policy, [(Source::Pod, pod), (Source::Driver, driver), (Source::Namespace, namespace)])
}

fn add_notes(draft: &mut Draft<'_>, effective: Effective) {
    for (reason, sentence) in effective.notes {
        draft.note(reason, sentence);
    }
}
