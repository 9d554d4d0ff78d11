//! The decision about one review.

use super::decision::Decision;
use super::request::{Operation, Review};
use super::{seat, sign};
use crate::driver::resolve::{self, How, Ownership, Resolution};
use crate::gang;
use crate::policy::overrides::{self, Effective, Source};
use crate::policy::{Chosen, DEFAULT_SCHEDULER, Policies, Policy};
use crate::reason::Reason;
use crate::snapshot::{DriverPod, MarkPlace, Overrides, Snapshot};
use crate::spark::labels;
use crate::spark::pod::Pod;
use crate::spark::role::Role;

use super::mutation::Mutation;

/// Everything that a decision about one pod looks at.
pub(super) struct Question<'q, 'a> {
    pub(super) review: &'q Review<'a>,
    pub(super) pod: &'q Pod<'a>,
    pub(super) policy: &'a Policy,
    pub(super) snapshot: &'q Snapshot,
}

/// Decides. Never fails, never waits, and says why.
pub fn decide<'a>(review: &Review<'a>, snapshot: &Snapshot, policies: &'a Policies) -> Decision<'a> {
    if !review.is_pod {
        return Decision::pass(Reason::NotAPod);
    }
    let pod = match (&review.pod, review.operation) {
        (Some(pod), Operation::Create) => pod,
        _ => return Decision::pass(Reason::NotCreate),
    };
    let role = pod.role();
    if role == Role::Other {
        return Decision::pass(Reason::NotSpark);
    }
    let known = snapshot.namespace(&review.namespace).map(|namespace| &**namespace);
    let (policy, unknown) = match policies.choose(&review.namespace, known, pod) {
        Chosen::Policy(policy) => (policy, false),
        Chosen::NamespaceUnknown(policy) => (policy, true),
    };
    let question = Question { review, pod, policy, snapshot };
    let mut decision = match (unknown, role) {
        (true, _) => namespace_unknown(&question),
        (false, Role::Driver) => driver(&question, policies),
        (false, _) => executor(&question, policies),
    };
    decision.policy = Some(&policy.name);
    if question.is_fallback() && !unknown {
        redecide(&mut decision);
    }
    sign::complete(&question, &mut decision);
    decision.mutations.retain(|mutation| !mutation.is_done(pod));
    decision.close_if(policy.strict);
    decision
}

/// What the fallback policy did is not what the pod's creator wanted: where nothing else was decided it is undone, and the
/// mark goes in any case.
fn redecide(decision: &mut Decision<'_>) {
    let placed = decision.mutations.iter().any(|mutation| matches!(mutation, Mutation::SchedulerName(_)));
    if !placed {
        decision.mutations.push(Mutation::SchedulerName(DEFAULT_SCHEDULER.to_owned()));
    }
    let marked = decision.mutations.iter().any(|mutation| match mutation {
        Mutation::Unmark(key) | Mutation::Mark(_, key, _) => *key == labels::BY,
        _ => false,
    });
    if !marked {
        decision.mutations.push(Mutation::Unmark(labels::BY));
    }
}

impl Question<'_, '_> {
    /// Whether the fallback policy placed this pod.
    pub(super) fn is_fallback(&self) -> bool {
        self.pod.annotation(labels::BY) == Some(labels::BY_FALLBACK)
    }

    /// The scheduler that whoever made the pod named; the fallback policy sets it only where that was none.
    pub(super) fn scheduler_name(&self) -> Option<&str> {
        if self.is_fallback() { None } else { self.pod.spec.scheduler_name.as_deref() }
    }
}

/// A policy that selects by namespace labels cannot be judged before the namespace was seen; another one must not step
/// in for it.
fn namespace_unknown<'a>(question: &Question<'_, 'a>) -> Decision<'a> {
    let mut decision = Decision::pass(Reason::NotSpark);
    decision.note(
        Reason::NamespaceUnknown,
        format!(
            "namespace {} has not been seen yet and policy {} selects by namespace labels; the pod was left as it is",
            question.review.namespace, question.policy.name
        ),
    );
    decision
}

/// A driver is placed as the policy says. It never joins the executors' gang, which would wait for executors that only
/// the driver can create.
fn driver<'a>(question: &Question<'_, 'a>, policies: &Policies) -> Decision<'a> {
    let own = Overrides::read(|key| question.pod.annotation(key));
    let effective = hear(question, &Overrides::default(), &own);
    if effective.skip {
        return Decision::pass(Reason::Skipped);
    }
    let mut decision = Decision::pass(Reason::DriverPlaced);
    let requester = &question.review.requester;
    let creator = resolve::creator(requester, &question.review.namespace, policies).ok();
    let creator = resolve::signing_creator(requester, creator.as_ref(), question.pod, policies);
    decision.signs = Some(creator);
    seat::driver(question, &effective, creator, &mut decision);
    add_notes(&mut decision, effective);
    decision
}

fn executor<'a>(question: &Question<'_, 'a>, policies: &Policies) -> Decision<'a> {
    let Question { review, pod, snapshot, .. } = question;
    if pod.app_selector().is_none() {
        let mut decision = Decision::pass(Reason::NotSpark);
        decision.note(
            Reason::NoAppSelector,
            format!(
                "an executor without the label {} belongs to no application and was left as it is",
                labels::APP_SELECTOR
            ),
        );
        return decision;
    }
    let resolution = resolve::resolve(&review.requester, &review.namespace, pod, snapshot, policies);
    let driver_pod = driver_pod(question, &resolution);
    let own = Overrides::read(|key| pod.annotation(key));
    let none = Overrides::default();
    let effective = hear(question, &own, driver_pod.map_or(&none, |driver| &driver.overrides));
    if effective.skip {
        return Decision { driver: resolution.driver, ..Decision::pass(Reason::Skipped) };
    }
    if resolution.foreign {
        return foreign(question, resolution);
    }
    let mut decision = Decision::pass(Reason::Owned);
    let seated = seat::executor(question, &effective, &resolution, driver_pod, &mut decision);
    // Without a scheduler of ours nothing rests on who created it.
    let places = |mutation: &Mutation| matches!(mutation, Mutation::Mark(_, labels::BY, _));
    let signs = effective.scheduler.row.kind != gang::NONE.kind || decision.mutations.iter().any(places);
    decision.signs = Some(resolution.creator).filter(|_| signs);
    own_executor(question, &resolution, seated, &mut decision);
    note_driver(&resolution, &mut decision);
    decision.driver = resolution.driver;
    add_notes(&mut decision, effective);
    decision
}

/// The pod that drives, as far as the snapshot knows it: for annotations of ours and the application's size.
fn driver_pod<'s>(question: &Question<'s, '_>, resolution: &Resolution<'_>) -> Option<&'s DriverPod> {
    let found = resolution.driver.as_ref()?;
    let known = question.snapshot.driver_pod(&question.review.namespace, &found.name);
    known.filter(|known| *known.uid == *found.uid).map(|driver| &**driver)
}

fn foreign<'a>(question: &Question<'_, '_>, resolution: Resolution<'a>) -> Decision<'a> {
    let mut decision = Decision::pass(Reason::NotSpark);
    decision.note(
        Reason::ForeignCreator,
        format!(
            "{} created an executor that names a driver of another account as its owner; it gets no gang",
            question.review.requester.username
        ),
    );
    decision.signs = Some(resolution.creator);
    // The loop sees the same labels as for any executor; this tells it that they were a stranger's to write.
    decision.mutations.push(Mutation::Mark(MarkPlace::Annotation, labels::DRIVER, labels::FOREIGN.to_owned()));
    decision.driver = resolution.driver;
    decision
}

/// Who becomes the owner, or why nobody does.
fn own_executor(
    question: &Question<'_, '_>,
    resolution: &Resolution<'_>,
    seated: seat::Seated,
    decision: &mut Decision<'_>,
) {
    match (&resolution.ownership, &resolution.driver) {
        (Ownership::AsSent, _) => {}
        (Ownership::Creator, Some(driver)) if seated.owner_would_regroup => decision.note(
            Reason::OwnerWithheld,
            format!(
                "the executor gets no ownerReference to {}: its scheduler would count it to its driver's own group",
                driver.name
            ),
        ),
        (Ownership::Creator, Some(driver)) => {
            decision.mutations.push(Mutation::Owner { name: driver.name.to_string(), uid: driver.uid.to_string() });
        }
        (Ownership::Creator, None) => {}
        (Ownership::Withheld(reason), _) => decision.note(*reason, withheld(question, *reason)),
    }
}

/// Why there is no owner, and what would give it one.
fn withheld(question: &Question<'_, '_>, reason: Reason) -> String {
    const CURE: &str =
        "set spark.kubernetes.driver.pod.name from the downward API (metadata.name) so that Spark owns its executors";
    let username = &question.review.requester.username;
    match reason {
        Reason::NoCreator => {
            format!("no pod created this executor, so it gets no owner and may outlive its driver: {CURE}")
        }
        Reason::CreatorElsewhere => {
            format!(
                "{username} is no service account of namespace {}, so the executor gets no owner: {CURE}",
                question.review.namespace
            )
        }
        Reason::CreatorAmbiguous => {
            format!("the token of {username} names no single pod, so the executor gets no owner: {CURE}")
        }
        Reason::CreatorNever => {
            format!("{username} creates pods for others (creators.never), so the executor gets no owner: {CURE}")
        }
        Reason::CreatorIsExecutor => "an executor created this executor; it gets no owner".to_owned(),
        Reason::CreatorOfOtherApplication => {
            "the pod that created this executor belongs to another application; it gets no owner".to_owned()
        }
        Reason::CreatorNotDriver => {
            "the pod that created this executor is not its application's driver; it gets no owner".to_owned()
        }
        other => other.text().to_owned(),
    }
}

/// Weaker evidence is noted for the loop, which adopts after a live look. A note that is not ours is taken off.
fn note_driver(resolution: &Resolution<'_>, decision: &mut Decision<'_>) {
    match &resolution.driver {
        Some(driver)
            if resolution.ownership != Ownership::AsSent && matches!(driver.how, How::AppSelector | How::DriverUrl) =>
        {
            let note = resolve::write_note(driver);
            decision.mutations.push(Mutation::Mark(MarkPlace::Annotation, labels::DRIVER, note));
        }
        _ => decision.mutations.push(Mutation::Unmark(labels::DRIVER)),
    }
}

fn hear(question: &Question<'_, '_>, pod: &Overrides, driver: &Overrides) -> Effective {
    let none = Overrides::default();
    let namespace = question.snapshot.namespace(&question.review.namespace);
    let namespace = namespace.map_or(&none, |namespace| &namespace.overrides);
    overrides::hear(question.policy, [(Source::Pod, pod), (Source::Driver, driver), (Source::Namespace, namespace)])
}

fn add_notes(decision: &mut Decision<'_>, effective: Effective) {
    for (reason, sentence) in effective.notes {
        decision.note(reason, sentence);
    }
}
