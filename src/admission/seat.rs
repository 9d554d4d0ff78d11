//! Where a pod sits: scheduler, queue, priority class, gang.

use super::decide::Question;
use super::decision::Decision;
use super::mutation::Mutation;
use super::sign;
use super::validate::shown;
use crate::driver::resolve::Resolution;
use crate::gang::size::SizeFacts;
use crate::gang::{self, Ask, GangScheduler, GroupKeyPlace, Marks, Numbers, Shape};
use crate::policy::overrides::Effective;
use crate::policy::{DEFAULT_SCHEDULER, SchedulerChoice};
use crate::reason::Reason;
use crate::signature::Creator;
use crate::snapshot::{DriverPod, MarkPlace, Seat};
use crate::spark::labels;
use crate::spark::resources;

/// What the ownership of an executor has to know of its seat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seated {
    /// An owner would put the executor into its driver's group.
    pub(super) owner_would_regroup: bool,
}

/// Seats an executor.
pub(super) fn executor(
    question: &Question<'_, '_>,
    effective: &Effective,
    resolution: &Resolution<'_>,
    driver: Option<&DriverPod>,
    decision: &mut Decision<'_>,
) -> Seated {
    let Question { pod, policy, snapshot, review, .. } = question;
    let selector = pod.app_selector().unwrap_or_default();
    let app = snapshot.app(&review.namespace, selector);
    // What its creator's first executor got, the later ones get too, also after the policy has changed.
    let first = app.and_then(|app| app.first_seat(resolution.creator)).and_then(|seat| {
        let (_, kind) = seat.given_by()?;
        Some((&**seat, GangScheduler::of_kind(kind)?))
    });
    let (choice, shape, queue) = match first {
        Some((seat, row)) => {
            // Where the scheduler has no name of its own, pods keep theirs; that of another policy's scheduler is not meant.
            let same_kind = effective.scheduler.row.kind == row.kind;
            let name = match row.default_name {
                Some(_) => Some(seat.scheduler_name.clone()),
                None => effective.scheduler.name.clone().filter(|_| same_kind),
            };
            let choice = SchedulerChoice { row, name, replace: effective.scheduler.replace };
            let queue = row.queue_key.and_then(|(place, key)| seat.mark(place, key));
            let shape = if effective.scheduler.row.kind == row.kind { effective.shape } else { row.default_shape() };
            (choice, shape, queue.map(str::to_owned).or_else(|| effective.queue.as_deref().map(str::to_owned)))
        }
        None => (effective.scheduler.clone(), effective.shape, effective.queue.as_deref().map(str::to_owned)),
    };
    let row = choice.row;
    let counted = pod.default_profile();
    if row.kind == gang::NONE.kind {
        decision.mutations.push(Mutation::Unmark(labels::BY));
        priority(question, policy.executor_class.as_deref(), decision);
        return Seated { owner_would_regroup: regroups(question, None, decision) };
    }
    if !choice.takes(question.scheduler_name()) {
        return keep_scheduler(question, decision);
    }
    decision.reason = Reason::Seated;
    let group = first
        .and_then(|(seat, row)| row.group_key.of_seat(seat).map(str::to_owned))
        .or_else(|| drivers_group(question, row, shape, driver, selector))
        .unwrap_or_else(|| group_name(question, resolution, selector));
    let numbers = numbers(question, effective, row, shape, driver, decision);
    let with_driver = driver.filter(|driver| driver.selector.as_deref() == Some(selector)).is_some_and(|driver| {
        Some(&*driver.seat.scheduler_name) == choice.name.as_deref() || row.default_name.is_none()
    });
    let ask = Ask {
        shape,
        membership: policy.gang.membership,
        group: &group,
        numbers: numbers.as_ref(),
        counted,
        with_driver,
        driver_requests: None,
    };
    let mut marks = Marks::default();
    (row.executor)(&ask, &mut marks);
    if let Some((seat, row)) = first.filter(|_| counted) {
        keep_numbers(seat, row, &mut marks);
    }
    if let Some(name) = &choice.name {
        decision.mutations.push(Mutation::SchedulerName(name.to_string()));
    }
    set_queue(row, queue.as_deref(), decision);
    early_pods(question, row, shape, decision);
    let joins = shape != Shape::Pods && !marks.no_group_key && (counted || row.extra_member_harmless);
    let ours = join(question, row, Some(&*group).filter(|_| joins), &mut marks, resolution.creator, decision);
    if marks.size_unknown {
        decision.note(Reason::GangSizeUnknown, size_unknown(row));
    }
    if marks.not_fixed {
        decision.note(
            Reason::GangNotFixed,
            format!("a {} group has a fixed size, but this application allocates dynamically: each executor waits for itself", row.kind),
        );
    }
    if !counted && shape != Shape::Pods {
        decision.note(
            Reason::OtherProfile,
            "the executor runs another resource profile; its gang does not count it".to_owned(),
        );
    }
    for (place, key, value) in marks.set {
        decision.mutations.push(Mutation::Mark(place, key, value));
    }
    mark_ours(question, row, ours, decision);
    let class = first.and_then(|(seat, _)| seat.priority_class.as_deref().filter(|_| policy.executor_class.is_some()));
    priority(question, class.or(policy.executor_class.as_deref()), decision);
    // The driver's workload would become the group of its executors too.
    let by_top_owner = row.groups_by_top_owner && driver.is_some_and(|driver| driver.has_workload);
    Seated { owner_would_regroup: by_top_owner || regroups(question, choice.name.as_deref(), decision) }
}

/// Says that the scheduler's own webhook is about to refuse the pod, or its executors.
fn early_pods(question: &Question<'_, '_>, row: &GangScheduler, shape: Shape, decision: &mut Decision<'_>) {
    let refusing = question.snapshot.early_pods_refused_by.as_deref().filter(|_| shape != Shape::Pods);
    if let Some(sentence) = row.refuses_early_pods(refusing) {
        decision.note(Reason::EarlyPodsRefused, sentence);
    }
}

/// Places a driver: scheduler, queue, priority class, and what its scheduler wants of the first pod.
pub(super) fn driver(
    question: &Question<'_, '_>,
    effective: &Effective,
    creator: Creator,
    decision: &mut Decision<'_>,
) {
    let Question { pod, policy, .. } = question;
    let row = effective.scheduler.row;
    if row.kind == gang::NONE.kind {
        decision.mutations.push(Mutation::Unmark(labels::BY));
        priority(question, policy.driver_class.as_deref(), decision);
        return;
    }
    if !effective.scheduler.takes(question.scheduler_name()) {
        keep_scheduler(question, decision);
        return;
    }
    if let Some(name) = &effective.scheduler.name {
        decision.mutations.push(Mutation::SchedulerName(name.to_string()));
    }
    set_queue(row, effective.queue.as_deref(), decision);
    early_pods(question, row, effective.shape, decision);
    let requests = resources::of_pod(&pod.body.read().unwrap_or_default());
    let numbers = numbers(question, effective, row, effective.shape, None, decision);
    let ask = Ask {
        shape: effective.shape,
        membership: policy.gang.membership,
        group: "",
        numbers: numbers.as_ref(),
        counted: true,
        with_driver: true,
        driver_requests: Some(&requests),
    };
    let mut marks = Marks::default();
    (row.driver)(&ask, &mut marks);
    let group = pod.app_selector().filter(|_| effective.shape == Shape::App).map(|selector| {
        // It has no name yet when it is placed, and one when that is judged.
        let named = pod.metadata.generate_name.is_none();
        let name = pod.metadata.name.as_deref().or(question.review.name.as_deref()).filter(|_| named);
        policy.gang.name.render(name, selector)
    });
    let ours = join(question, row, group.as_deref(), &mut marks, creator, decision);
    if marks.size_unknown {
        decision.note(Reason::GangSizeUnknown, size_unknown(row));
    }
    for (place, key, value) in marks.set {
        decision.mutations.push(Mutation::Mark(place, key, value));
    }
    mark_ours(question, row, ours, decision);
    priority(question, policy.driver_class.as_deref(), decision);
}

/// Another scheduler was chosen for this pod and the policy respects that: nothing of its seat is touched.
fn keep_scheduler(question: &Question<'_, '_>, decision: &mut Decision<'_>) -> Seated {
    let present = question.scheduler_name().unwrap_or_default();
    decision.note(
        Reason::SchedulerKept,
        format!("the pod names scheduler {present}, which policy {} keeps (replace: default)", question.policy.name),
    );
    decision.mutations.push(Mutation::Unmark(labels::BY));
    Seated { owner_would_regroup: regroups(question, None, decision) }
}

/// Whether an owner would change the group that the pod falls into: on a scheduler that groups by owner, without a key.
/// `name` is the scheduler that the pod is given; otherwise it keeps its own.
fn regroups(question: &Question<'_, '_>, name: Option<&str>, decision: &Decision<'_>) -> bool {
    let name = name.or(question.scheduler_name()).unwrap_or(DEFAULT_SCHEDULER);
    let choice = &question.policy.scheduler;
    let by_owner = gang::TABLE.iter().find(|row| {
        row.groups_by_owner
            && (row.default_name == Some(name) || (choice.row.kind == row.kind && choice.name.as_deref() == Some(name)))
    });
    by_owner.is_some_and(|row| {
        let given = decision.mutations.iter().any(|mutation| is_group_key(mutation, row.group_key));
        !given && row.group_key.of_pod(question.pod).is_none()
    })
}

/// The gang's name. Who is no authenticated pod and names no driver gets a name of its own: another one that claims the
/// same application must not come into its gang.
fn group_name(question: &Question<'_, '_>, resolution: &Resolution<'_>, selector: &str) -> String {
    let template = &question.policy.gang.name;
    let salt = match (&resolution.name_from_review, question.pod.controller()) {
        (Some(driver), _) => return template.render(Some(driver), selector),
        (None, Some(owner)) => &*owner.uid,
        (None, None) => "",
    };
    template.render_for(&[&question.review.requester.username, "\n", salt].concat(), selector)
}

/// The group that the driver was given before it had a name (`generateName`), which its executors share.
fn drivers_group(
    question: &Question<'_, '_>,
    row: &GangScheduler,
    shape: Shape,
    driver: Option<&DriverPod>,
    selector: &str,
) -> Option<String> {
    let present = row.group_key.of_seat(&driver.filter(|_| shape == Shape::App)?.seat)?;
    let unnamed = question.policy.gang.name.render(None, selector);
    (present == unnamed).then_some(unnamed)
}

/// Names the gang, all of it or nothing: where the pod already carries a gang key or a number that is not what we would
/// set, it is its owner's gang, and nothing of it is touched. Returns whether the gang is ours.
fn join(
    question: &Question<'_, '_>,
    row: &GangScheduler,
    group: Option<&str>,
    marks: &mut Marks,
    creator: Creator,
    decision: &mut Decision<'_>,
) -> bool {
    if let Some(sentence) = theirs(question, row, group, marks)
        && !sign::is_signed(question, creator, &by(question, row))
    {
        decision.note(Reason::AlreadySeated, sentence);
        marks.set.retain(|(place, key, _)| !row.gang_keys.contains(&(*place, *key)));
        (marks.size_unknown, marks.not_fixed) = (false, false);
        return false;
    }
    if let Some(group) = group {
        match row.group_key {
            GroupKeyPlace::None => {}
            GroupKeyPlace::Mark(place, key) => decision.mutations.push(Mutation::Mark(place, key, group.to_owned())),
            GroupKeyPlace::SchedulingGroup => decision.mutations.push(Mutation::SchedulingGroup(group.to_owned())),
        }
    }
    true
}

/// What the pod carries of a gang that is not ours, in words.
fn theirs(question: &Question<'_, '_>, row: &GangScheduler, group: Option<&str>, marks: &Marks) -> Option<String> {
    if let Some(present) = row.group_key.of_pod(question.pod).filter(|present| Some(*present) != group) {
        return Some(format!(
            "the pod already names gang {}, which stays; spark-usher does not manage that group",
            shown(present)
        ));
    }
    let ours = |place, key| marks.set.iter().find(|(p, k, _)| (*p, *k) == (place, key)).map(|(_, _, value)| &**value);
    let mut keys = row.gang_keys.iter().copied();
    let (_, key) = keys.find(|(place, key)| {
        let present = place.value(question.pod, key).filter(|value| !value.is_empty());
        present.is_some() && present != ours(*place, *key)
    })?;
    Some(format!("the pod already carries {key}, which stays; spark-usher does not manage that gang"))
}

fn is_group_key(mutation: &Mutation, place: GroupKeyPlace) -> bool {
    match (mutation, place) {
        (Mutation::SchedulingGroup(_), GroupKeyPlace::SchedulingGroup) => true,
        (Mutation::Mark(at, key, _), GroupKeyPlace::Mark(place, wanted)) => *at == place && *key == wanted,
        _ => false,
    }
}

/// Numbers on the pod (counts, task groups) stay what the first executor got.
fn keep_numbers(seat: &Seat, row: &GangScheduler, marks: &mut Marks) {
    for (place, key) in row.more_keys {
        if let Some(value) = seat.mark(*place, key) {
            marks.set.retain(|(p, k, _)| (p, k) != (place, key));
            marks.set.push((*place, key, value.to_owned()));
            marks.size_unknown = false;
        }
    }
    if row.group_key.of_seat(seat).is_some() {
        marks.no_group_key = false;
        marks.not_fixed = false;
    }
}

fn set_queue(row: &GangScheduler, queue: Option<&str>, decision: &mut Decision<'_>) {
    let (Some((place, key)), Some(queue)) = (row.queue_key, queue) else { return };
    if place == MarkPlace::Label && !gang::is_label_value(queue) {
        decision.note(
            Reason::ValueLeftOut,
            format!(
                "queue {queue:?} cannot be a label's value (at most 63 of a-z, A-Z, 0-9, -, _ and .) and was left out"
            ),
        );
        return;
    }
    decision.mutations.push(Mutation::Mark(place, key, queue.to_owned()));
}

fn by(question: &Question<'_, '_>, row: &GangScheduler) -> String {
    [&question.policy.name, "/", row.kind].concat()
}

/// `policy/scheduler-type` on what we seated; anything else there is not ours and goes.
fn mark_ours(question: &Question<'_, '_>, row: &GangScheduler, ours: bool, decision: &mut Decision<'_>) {
    decision.mutations.push(if ours {
        Mutation::Mark(MarkPlace::Annotation, labels::BY, by(question, row))
    } else {
        Mutation::Unmark(labels::BY)
    });
}

/// The policy's class, unless the cluster is known not to have it: then the API server would refuse the pod.
fn priority(question: &Question<'_, '_>, class: Option<&str>, decision: &mut Decision<'_>) {
    let Some(class) = class else { return };
    if question.snapshot.priority_classes.as_ref().is_some_and(|known| !known.contains(class)) {
        decision.note(
            Reason::PriorityClassMissing,
            format!("priority class {class} of policy {} does not exist and was left out", question.policy.name),
        );
        return;
    }
    decision.mutations.push(Mutation::PriorityClass(class.to_owned()));
}

/// Numbers for schedulers that want them on the pod: annotations first, then the driver's configuration.
fn numbers(
    question: &Question<'_, '_>,
    effective: &Effective,
    row: &GangScheduler,
    shape: Shape,
    driver: Option<&DriverPod>,
    decision: &mut Decision<'_>,
) -> Option<Numbers> {
    let on_pod = row.apis.is_empty() || question.policy.gang.membership == gang::Membership::Annotations;
    if shape == Shape::Pods || !on_pod {
        return None;
    }
    let conf = driver.and_then(|driver| question.snapshot.conf(&driver.uid));
    let facts = SizeFacts { conf, requested: effective.min_member, ..SizeFacts::default() };
    if facts.sizes().is_some_and(|sizes| sizes.clamped) {
        decision.note(Reason::MinMemberClamped, min_member_clamped());
    }
    let resources = effective.executor_resources.clone().or_else(|| conf.map(|conf| conf.executor.clone()));
    facts.numbers(resources)
}

fn min_member_clamped() -> String {
    format!("{} asks for more executors than the application wants and was lowered to that", labels::MIN_MEMBER)
}

fn size_unknown(row: &GangScheduler) -> String {
    format!(
        "{} wants the gang's size on the pod and it is not known: set {} and {} on the driver",
        row.kind,
        labels::MIN_MEMBER,
        labels::EXECUTOR_RESOURCES
    )
}
