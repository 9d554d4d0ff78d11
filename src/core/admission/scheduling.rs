//! The scheduling fields of a pod: scheduler, queue, priority class, gang.

use serde_json::Value;

use super::application;
use super::context::MutationContext;
use super::draft::Draft;
use super::mutation::Mutation;
use super::sign;
use crate::annotations::{self, MetadataField};
use crate::gang::size::SizeFacts;
use crate::gang::{self, GangScheduler, GroupKeyField, MemberMetadata, MemberPod, MemberRequest, Numbers, Shape};
use crate::ownership::regroup;
use crate::ownership::resolve::Resolution;
use crate::policy::overrides::Effective;
use crate::policy::{DEFAULT_SCHEDULER, SchedulerChoice};
use crate::reason::Reason;
use crate::signature::StatedCreator;
use crate::snapshot::{DriverPod, Group, GroupKey, Owner, SchedulingFields};
use usher_spark::conf::AppConf;
use usher_spark::ids::AppKey;
use usher_spark::pod::Pod;
use usher_spark::resources;
use usher_spark::text::{is_label_value, shown};

/// What the decision about an executor's owner needs of its scheduling fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Scheduled {
    /// Whether an owner would put the executor into its driver's group.
    pub(super) owner_would_regroup: bool,
    /// How many executors of its gang, which has not started, start together.
    pub(super) starts_with: Option<u64>,
}

/// Which scheduler places an executor, and how.
struct Placement<'f> {
    choice: SchedulerChoice,
    shape: Shape,
    /// The scheduling fields of its creator's first executor, which count before the policy's.
    first: Option<&'f SchedulingFields>,
}

impl<'f> Placement<'f> {
    /// As the creator's first executor, if we set its scheduling fields.
    fn of_first_executor(first: &'f SchedulingFields, effective: &Effective) -> Option<Placement<'f>> {
        let (_, kind) = first.set_by()?;
        let scheduler = GangScheduler::of_kind(kind)?;
        let SchedulerChoice { gang_scheduler, name, replace, queue_key } = &effective.scheduler;
        // If the scheduler has no name of its own, pods keep theirs; the name of another policy's scheduler does not apply.
        let same_kind = gang_scheduler.kind == scheduler.kind;
        let name = match scheduler.default_name {
            Some(_) => Some(first.scheduler_name.clone()),
            None => name.clone().filter(|_| same_kind),
        };
        let queue_key = if same_kind { *queue_key } else { scheduler.queue_key };
        let choice = SchedulerChoice { gang_scheduler: scheduler, name, replace: *replace, queue_key };
        let shape = if same_kind { effective.shape } else { scheduler.default_shape() };
        Some(Placement { choice, shape, first: Some(first) })
    }

    /// As the policy and the overrides of the driver and its namespace say.
    fn of_policy(effective: &Effective) -> Placement<'f> {
        Placement { choice: effective.scheduler.clone(), shape: effective.shape, first: None }
    }
}

/// Sets the scheduling fields of an executor.
pub(super) fn executor(
    context: &MutationContext<'_, '_>,
    effective: &Effective,
    resolution: &Resolution<'_>,
    driver: Option<&DriverPod>,
    draft: &mut Draft<'_>,
) -> Scheduled {
    let MutationContext { pod, policy, snapshot, review, .. } = context;
    let selector = pod.app_selector().unwrap_or_default();
    let app = snapshot.app(&review.namespace, selector);
    // Later executors get the same fields as their creator's first one, also after a change of the policy.
    let first = app.and_then(|app| app.first_scheduling(resolution.creator.key()));
    let placement = first.and_then(|first| Placement::of_first_executor(first, effective));
    let Placement { choice, shape, first } = placement.unwrap_or_else(|| Placement::of_policy(effective));
    let scheduler = choice.gang_scheduler;
    let counted = pod.default_profile();
    if scheduler.kind == gang::NONE.kind {
        draft.mutations.push(Mutation::RemoveMetadata(annotations::BY));
        priority(context, policy.executor_class.as_deref(), draft);
        return Scheduled { owner_would_regroup: regroups(context, None, driver, draft), starts_with: None };
    }
    if !choice.takes(named_scheduler(context, scheduler)) {
        return keep_scheduler(context, driver, draft);
    }
    draft.reason = Reason::SchedulingSet;
    let group = first
        .and_then(|first| scheduler.group_key.of_fields(first).map(str::to_owned))
        .or_else(|| drivers_group(context, scheduler, shape, driver, selector))
        .unwrap_or_else(|| group_name(context, resolution, selector));
    let numbers = numbers(context, effective, scheduler, shape, driver, draft);
    let application = application_id(context, scheduler, resolution.name_from_review.as_deref());
    let with_driver = driver
        .filter(|driver| driver.selector.as_deref() == Some(selector))
        .is_some_and(|driver| is_placed_with(driver, &choice, application.as_deref()));
    let member = member_pod(context, scheduler);
    let request = MemberRequest {
        shape,
        membership: policy.gang.membership,
        group: &group,
        numbers: numbers.as_ref(),
        counted,
        with_driver,
        pod: member.as_ref(),
    };
    let mut metadata = MemberMetadata::default();
    (scheduler.executor)(&request, &mut metadata);
    if let Some(first) = first.filter(|_| counted) {
        keep_numbers(first, scheduler, &mut metadata);
    }
    set_scheduler(context, &choice, draft);
    let queue = first.zip(choice.queue_key).and_then(|(first, (place, key))| first.entry(place, key));
    set_queue(context, &choice, queue, effective.queue.as_deref(), draft);
    set_application(scheduler, application, draft);
    early_pods(context, scheduler, shape, draft);
    let present = present_group(context, scheduler, &group, driver);
    let has_started = gang_has_started(context, scheduler, present);
    if has_started && counted {
        let sentence =
            format!("gang {group} has started, and its count cannot change: the executor is scheduled alone");
        draft.note(Reason::GangStarted, sentence);
    }
    let joins = shape != Shape::Pods && !metadata.no_group_key && !has_started;
    let ours = join(context, scheduler, Some(&*group).filter(|_| joins), &mut metadata, &resolution.creator, draft);
    note_unknown(context, scheduler, metadata.unknown, driver, draft);
    note_placement(&metadata, draft);
    if metadata.not_fixed {
        draft.note(
            Reason::GangNotFixed,
            format!("a {} group has a fixed size, but this application allocates executors dynamically: each executor is scheduled alone", scheduler.kind),
        );
    }
    if !counted && shape != Shape::Pods {
        draft.note(
            Reason::OtherProfile,
            "the executor does not have the default resource profile: its gang does not count it".to_owned(),
        );
    }
    let by_number = metadata.set.iter().any(|(place, key, _)| scheduler.more_group_keys.contains(&(*place, *key)));
    let starts_with = match ours && counted && shape == Shape::Executors {
        true if by_number => {
            let ran: u64 = app.map_or(0, |app| app.by_template().iter().map(|counts| counts.ran as u64).sum());
            numbers.as_ref().map(|numbers| u64::from(numbers.least)).filter(|least| ran < *least)
        }
        true if joins => starts_with(context, effective, present, driver),
        _ => None,
    };
    for (place, key, value) in metadata.set {
        draft.mutations.push(Mutation::SetMetadata(place, key, value));
    }
    annotate(context, scheduler, ours, draft);
    let class = first.and_then(|first| first.priority_class.as_deref().filter(|_| policy.executor_class.is_some()));
    priority(context, class.or(policy.executor_class.as_deref()), draft);
    // With an owner, the driver's workload would become the group of its executors too.
    let owner_would_regroup = regroups(context, Some(&choice), driver, draft);
    Scheduled { owner_would_regroup, starts_with }
}

/// The scheduler that a pod names: by a label that replaces `schedulerName` inside that scheduler, else by `schedulerName`.
fn named_scheduler<'c>(context: &'c MutationContext<'_, '_>, scheduler: &GangScheduler) -> Option<&'c str> {
    let by_label = scheduler.scheduler_label.and_then(|key| context.pod.label(key)).filter(|name| !name.is_empty());
    by_label.or(context.scheduler_name())
}

/// Sets the scheduler's name, and a label that would replace it.
fn set_scheduler(context: &MutationContext<'_, '_>, choice: &SchedulerChoice, draft: &mut Draft<'_>) {
    let Some(name) = &choice.name else { return };
    draft.mutations.push(Mutation::SchedulerName(name.to_string()));
    let label = choice.gang_scheduler.scheduler_label;
    if let Some(key) = label.filter(|key| context.pod.label(key).is_some()) {
        draft.mutations.push(Mutation::SetMetadata(MetadataField::Label, key, name.to_string()));
    }
}

/// Whether the executor's scheduler places the driver too, and counts it to the same application.
fn is_placed_with(driver: &DriverPod, choice: &SchedulerChoice, application: Option<&str>) -> bool {
    let scheduler = choice.gang_scheduler;
    let fields = &driver.scheduling;
    scheduler.app_keys.iter().all(|(place, key)| fields.entry(*place, key) == application)
        && (Some(&*fields.scheduler_name) == choice.name.as_deref() || scheduler.default_name.is_none())
}

/// The PodGroup of the gang. An earlier application of that name may have left its own.
fn present_group<'c>(
    context: &MutationContext<'c, '_>,
    scheduler: &GangScheduler,
    group: &str,
    driver: Option<&DriverPod>,
) -> Option<&'c Group> {
    let namespace = (&*context.review.namespace).into();
    let key = GroupKey { namespace, name: group.into(), scheduler: scheduler.kind };
    let is_its = |owner: &Owner| driver.is_some_and(|driver| driver.uid == owner.uid);
    let present = context.snapshot.groups.get(&key)?;
    (!present.deleting && present.owner.as_ref().is_none_or(is_its)).then_some(&**present)
}

/// Whether the driver's gang has started and has a count that can never change: a new member would wait until as many can run together
/// as started.
fn gang_has_started(context: &MutationContext<'_, '_>, scheduler: &GangScheduler, group: Option<&Group>) -> bool {
    let api = context.snapshot.apis.as_ref().and_then(|apis| apis.get(scheduler.kind));
    api.is_some_and(|api| !api.count_mutable) && group.is_some_and(|group| group.started)
}

/// How many executors of a gang start together: as its PodGroup says, else as the application's configuration does. `None` if that is not
/// known, or the gang has started.
fn starts_with(
    context: &MutationContext<'_, '_>,
    effective: &Effective,
    group: Option<&Group>,
    driver: Option<&DriverPod>,
) -> Option<u64> {
    match group {
        Some(group) if group.started => None,
        Some(group) => group.size(),
        None => {
            let facts =
                SizeFacts { conf: conf_of(context, driver), requested: effective.min_member, ..SizeFacts::default() };
            facts.numbers(None).map(|numbers| numbers.members.into())
        }
    }
}

/// Notes that the scheduler's own webhook will deny the pod, or its executors.
fn early_pods(context: &MutationContext<'_, '_>, scheduler: &GangScheduler, shape: Shape, draft: &mut Draft<'_>) {
    let refusing = context.snapshot.early_pods_refused_by.as_deref().filter(|_| shape != Shape::Pods);
    if let Some(sentence) = scheduler.refuses_early_pods(refusing) {
        draft.note(Reason::EarlyPodsRefused, sentence);
    }
}

/// Sets a driver's scheduler, queue and priority class, and what its scheduler needs on the first pod.
pub(super) fn driver(
    context: &MutationContext<'_, '_>,
    effective: &Effective,
    creator: &StatedCreator,
    draft: &mut Draft<'_>,
) {
    let MutationContext { pod, policy, .. } = context;
    let scheduler = effective.scheduler.gang_scheduler;
    if scheduler.kind == gang::NONE.kind {
        draft.mutations.push(Mutation::RemoveMetadata(annotations::BY));
        priority(context, policy.driver_class.as_deref(), draft);
        return;
    }
    if !effective.scheduler.takes(named_scheduler(context, scheduler)) {
        keep_scheduler(context, None, draft);
        return;
    }
    set_scheduler(context, &effective.scheduler, draft);
    set_queue(context, &effective.scheduler, None, effective.queue.as_deref(), draft);
    early_pods(context, scheduler, effective.shape, draft);
    let name = application::driver_name(context.review, pod);
    set_application(scheduler, application_id(context, scheduler, name), draft);
    let member = member_pod(context, scheduler);
    let numbers = numbers(context, effective, scheduler, effective.shape, None, draft);
    let request = MemberRequest {
        shape: effective.shape,
        membership: policy.gang.membership,
        group: "",
        numbers: numbers.as_ref(),
        counted: true,
        with_driver: name.is_some(),
        pod: member.as_ref(),
    };
    let mut metadata = MemberMetadata::default();
    (scheduler.driver)(&request, &mut metadata);
    let group = pod
        .app_selector()
        .filter(|_| effective.shape == Shape::App)
        .map(|selector| policy.gang.name.render(name, selector));
    let ours = join(context, scheduler, group.as_deref(), &mut metadata, creator, draft);
    note_unknown(context, scheduler, metadata.unknown, None, draft);
    note_placement(&metadata, draft);
    for (place, key, value) in metadata.set {
        draft.mutations.push(Mutation::SetMetadata(place, key, value));
    }
    annotate(context, scheduler, ours, draft);
    priority(context, policy.driver_class.as_deref(), draft);
}

/// The pod names another scheduler and the policy keeps it: no scheduling field changes.
fn keep_scheduler(context: &MutationContext<'_, '_>, driver: Option<&DriverPod>, draft: &mut Draft<'_>) -> Scheduled {
    let present = context.scheduler_name().unwrap_or_default();
    draft.note(
        Reason::SchedulerKept,
        format!("the pod names scheduler {present}, which policy {} keeps (replace: default)", context.policy.name),
    );
    draft.mutations.push(Mutation::RemoveMetadata(annotations::BY));
    Scheduled { owner_would_regroup: regroups(context, None, driver, draft), starts_with: None }
}

/// Whether an owner would change the pod's group: on a scheduler that groups by owner, without a gang key, or by this driver's owner.
/// `choice` is the scheduler that the pod gets; with `None` it keeps its own.
fn regroups(
    context: &MutationContext<'_, '_>,
    choice: Option<&SchedulerChoice>,
    driver: Option<&DriverPod>,
    draft: &Draft<'_>,
) -> bool {
    let name =
        choice.and_then(|choice| choice.name.as_deref()).or(context.scheduler_name()).unwrap_or(DEFAULT_SCHEDULER);
    let by_policy = Some(&context.policy.scheduler).filter(|policy| policy.name.as_deref() == Some(name));
    let kind = choice.or(by_policy).map(|choice| choice.gang_scheduler.kind);
    let has_key = |key: GroupKeyField| {
        let given = draft.mutations.iter().any(|mutation| is_group_key(mutation, key));
        given || key.of_pod(context.pod).is_some()
    };
    regroup::by_owner(name, kind, has_key) || driver.is_some_and(|driver| regroup::by_driver(driver, name, kind))
}

/// The gang's name. A requester that is not an authenticated pod and names no driver gets a separate gang: another
/// requester that claims the same application must not join it.
fn group_name(context: &MutationContext<'_, '_>, resolution: &Resolution<'_>, selector: &str) -> String {
    let template = &context.policy.gang.name;
    let salt = match (&resolution.name_from_review, context.pod.controller()) {
        (Some(driver), _) => return template.render(Some(driver), selector),
        (None, Some(owner)) => &*owner.uid,
        (None, None) => "",
    };
    template.render_for(&[&context.review.requester.username, "\n", salt].concat(), selector)
}

/// The group that the driver got before it had a name (`generateName`); its executors share it.
fn drivers_group(
    context: &MutationContext<'_, '_>,
    scheduler: &GangScheduler,
    shape: Shape,
    driver: Option<&DriverPod>,
    selector: &str,
) -> Option<String> {
    let present = scheduler.group_key.of_fields(&driver.filter(|_| shape == Shape::App)?.scheduling)?;
    let unnamed = context.policy.gang.name.render(None, selector);
    (present == unnamed).then_some(unnamed)
}

/// Sets all gang keys or none: if the pod already has a gang key or a number other than ours, its creator manages the
/// gang, and no key changes. Returns whether the gang is ours.
fn join(
    context: &MutationContext<'_, '_>,
    scheduler: &GangScheduler,
    group: Option<&str>,
    metadata: &mut MemberMetadata,
    creator: &StatedCreator,
    draft: &mut Draft<'_>,
) -> bool {
    if let Some(sentence) = foreign_key(context, scheduler, group, metadata)
        && !sign::is_signed(context, creator, &by(context, scheduler))
    {
        draft.note(Reason::GangKept, sentence);
        metadata.set.retain(|(place, key, _)| !scheduler.gang_keys.contains(&(*place, *key)));
        (metadata.unknown, metadata.not_fixed) = (&[], false);
        return false;
    }
    if let Some(group) = group {
        match scheduler.group_key {
            GroupKeyField::None => {}
            GroupKeyField::Metadata(place, key) => {
                draft.mutations.push(Mutation::SetMetadata(place, key, group.to_owned()))
            }
            GroupKeyField::SchedulingGroup => draft.mutations.push(Mutation::SchedulingGroup(group.to_owned())),
        }
    }
    true
}

/// A sentence about the pod's key of a gang that is not ours, if it has one.
fn foreign_key(
    context: &MutationContext<'_, '_>,
    scheduler: &GangScheduler,
    group: Option<&str>,
    metadata: &MemberMetadata,
) -> Option<String> {
    if let Some(present) = scheduler.group_key.of_pod(context.pod).filter(|present| Some(*present) != group) {
        return Some(format!(
            "the pod already names gang {}: spark-usher keeps it and does not manage its PodGroup",
            shown(present)
        ));
    }
    let ours =
        |place, key| metadata.set.iter().find(|(p, k, _)| (*p, *k) == (place, key)).map(|(_, _, value)| &**value);
    let mut keys = scheduler.gang_keys.iter().copied();
    let (_, key) = keys.find(|(place, key)| {
        let present = place.value(context.pod, key).filter(|value| !value.is_empty());
        present.is_some() && present != ours(*place, *key)
    })?;
    Some(format!("the pod already has {key}: spark-usher keeps it and does not manage that gang"))
}

fn is_group_key(mutation: &Mutation, place: GroupKeyField) -> bool {
    match (mutation, place) {
        (Mutation::SchedulingGroup(_), GroupKeyField::SchedulingGroup) => true,
        (Mutation::SetMetadata(at, key, _), GroupKeyField::Metadata(place, wanted)) => *at == place && *key == wanted,
        _ => false,
    }
}

/// Keeps the numbers on the pod (counts, task groups) that the first executor got.
fn keep_numbers(scheduling: &SchedulingFields, scheduler: &GangScheduler, metadata: &mut MemberMetadata) {
    for (place, key) in scheduler.more_keys {
        if let Some(value) = scheduling.entry(*place, key) {
            metadata.set.retain(|(p, k, _)| (p, k) != (place, key));
            metadata.set.push((*place, key, value.to_owned()));
            metadata.unknown = &[];
        }
    }
    if scheduler.group_key.of_fields(scheduling).is_some() {
        metadata.no_group_key = false;
        metadata.not_fixed = false;
    } else if scheduler.more_group_keys.iter().any(|(place, key)| scheduling.entry(*place, key).is_some()) {
        metadata.no_group_key = true;
    }
}

/// The keys that are the scheduler's own by which a pod names queues, and the queues. Other keys are common words.
fn named_queues<'p>(choice: &SchedulerChoice, pod: &'p Pod<'_>) -> Vec<(MetadataField, &'static str, &'p str)> {
    let others = choice.gang_scheduler.own_queue_keys().filter(|key| Some(*key) != choice.queue_key);
    let all = choice.queue_key.into_iter().chain(others);
    let named = all.filter_map(|(place, key)| {
        let queue = place.value(pod, key).filter(|queue| !queue.is_empty())?;
        Some((place, key, queue))
    });
    named.collect()
}

/// Sets the queue by every key that the pod has, because each version of a scheduler reads its keys in another order: that of its
/// application's first executor, `of_app`; else the first that the pod names itself, if its policy allows it; else `of_policy`, that of an
/// annotation or of the policy.
fn set_queue(
    context: &MutationContext<'_, '_>,
    choice: &SchedulerChoice,
    of_app: Option<&str>,
    of_policy: Option<&str>,
    draft: &mut Draft<'_>,
) {
    let Some((place, key)) = choice.queue_key else { return };
    let policy = context.policy;
    let named = named_queues(choice, context.pod);
    let kept = named.iter().map(|(.., queue)| *queue).find(|queue| policy.allows_queue(queue));
    let Some(queue) = of_app.or(kept).or(of_policy) else { return };
    if place == MetadataField::Label && !is_label_value(queue) {
        draft.note(
            Reason::ValueLeftOut,
            format!(
                "queue {queue:?} is not a valid label value (at most 63 of a-z, A-Z, 0-9, -, _ and .) and was not set"
            ),
        );
        return;
    }
    if let Some((.., other)) = named.iter().find(|(.., named)| *named != queue) {
        let why = match of_app {
            Some(_) => "its application runs in that one".to_owned(),
            None if policy.allows_queue(other) => "the pod names both".to_owned(),
            None => format!("policy {} does not allow it", policy.name),
        };
        draft.note(Reason::QueueReplaced, format!("queue {} is replaced by {}: {why}", shown(other), shown(queue)));
    }
    let others = named.iter().map(|(place, key, _)| (*place, *key)).filter(|other| *other != (place, key));
    let all = std::iter::once((place, key)).chain(others);
    draft.mutations.extend(all.map(|(place, key)| Mutation::SetMetadata(place, key, queue.to_owned())));
}

/// The pod as the scheduler reserves room for it, if it does: after other webhooks changed it too, as the API server asks again then.
fn member_pod(context: &MutationContext<'_, '_>, scheduler: &GangScheduler) -> Option<MemberPod> {
    let (pod, spec) = (context.pod, &context.pod.spec);
    if !scheduler.has_placeholders {
        return None;
    }
    let selector = spec.node_selector.as_ref().filter(|selector| !selector.is_empty());
    let selector = selector.map(|all| all.iter().map(|(key, value)| (key.to_owned(), value.into())).collect());
    let read = |json: &str| serde_json::from_str(json).ok().filter(|value| *value != Value::Null);
    let fields = [
        ("nodeSelector", selector.map(Value::Object)),
        ("tolerations", spec.tolerations.and_then(read)),
        ("affinity", spec.affinity.as_deref().and_then(read)),
    ];
    let placement = fields.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect();
    Some(MemberPod { requests: resources::of_pod(&pod.body.read().unwrap_or_default()), placement })
}

/// The application's id, if the scheduler reads one from the pod.
fn application_id(
    context: &MutationContext<'_, '_>,
    scheduler: &GangScheduler,
    driver: Option<&str>,
) -> Option<String> {
    let reads = !scheduler.app_keys.is_empty();
    reads.then(|| application::id(context.review, context.pod, driver)).flatten()
}

/// Sets the application's id, whatever id the pod has.
fn set_application(scheduler: &GangScheduler, id: Option<String>, draft: &mut Draft<'_>) {
    let Some(id) = id else { return };
    draft
        .mutations
        .extend(scheduler.app_keys.iter().map(|(place, key)| Mutation::SetMetadata(*place, key, id.clone())));
}

fn by(context: &MutationContext<'_, '_>, scheduler: &GangScheduler) -> String {
    [&context.policy.name, "/", scheduler.kind].concat()
}

/// Sets `policy/scheduler-type` if the scheduling fields are ours; otherwise removes the annotation.
fn annotate(context: &MutationContext<'_, '_>, scheduler: &GangScheduler, ours: bool, draft: &mut Draft<'_>) {
    if ours {
        draft.set_annotation(annotations::BY, by(context, scheduler));
    } else {
        draft.mutations.push(Mutation::RemoveMetadata(annotations::BY));
    }
}

/// Sets the policy's class, unless the cluster is known to lack it: then the API server would reject the pod.
fn priority(context: &MutationContext<'_, '_>, class: Option<&str>, draft: &mut Draft<'_>) {
    let Some(class) = class else { return };
    if context.snapshot.priority_classes.as_ref().is_some_and(|known| !known.contains(class)) {
        draft.note(
            Reason::PriorityClassMissing,
            format!("priority class {class} of policy {} does not exist and was not set", context.policy.name),
        );
        return;
    }
    draft.mutations.push(Mutation::PriorityClass(class.to_owned()));
}

/// Numbers for schedulers that need them on the pod: from annotations first, then from the driver's configuration.
fn numbers(
    context: &MutationContext<'_, '_>,
    effective: &Effective,
    scheduler: &GangScheduler,
    shape: Shape,
    driver: Option<&DriverPod>,
    draft: &mut Draft<'_>,
) -> Option<Numbers> {
    let on_pod = scheduler.apis.is_empty() || context.policy.gang.membership == gang::Membership::Annotations;
    if shape == Shape::Pods || !on_pod {
        return None;
    }
    let conf = conf_of(context, driver);
    let facts = SizeFacts { conf, requested: effective.min_member, ..SizeFacts::default() };
    if facts.sizes().is_some_and(|sizes| sizes.clamped) {
        let key = annotations::MIN_MEMBER;
        let sentence =
            format!("{key} exceeds the number of executors that the application requests and was lowered to it");
        draft.note(Reason::MinMemberClamped, sentence);
    }
    let resources = effective.executor_resources.clone().or_else(|| conf.and_then(|conf| conf.executor.clone().ok()));
    facts.numbers(resources)
}

/// The configuration of the pod's application, if it is known.
fn conf_of<'c>(context: &MutationContext<'c, '_>, driver: Option<&DriverPod>) -> Option<&'c AppConf> {
    let app = AppKey::new(&context.review.namespace, context.pod.app_selector()?);
    context.snapshot.conf(&app, driver?)
}

fn note_placement(metadata: &MemberMetadata, draft: &mut Draft<'_>) {
    if metadata.no_placement {
        let sentence = "the placeholders of its gang lack its affinity, or its nodeSelector and tolerations too, which are too long";
        draft.note(Reason::ValueLeftOut, sentence.to_owned());
    }
}

fn note_unknown(
    context: &MutationContext<'_, '_>,
    scheduler: &GangScheduler,
    unknown: &[&str],
    driver: Option<&DriverPod>,
    draft: &mut Draft<'_>,
) {
    if !unknown.is_empty() {
        let set = unknown.join(" and ");
        let conf = conf_of(context, driver);
        let unreadable = conf.and_then(|conf| conf.allocation.err().or_else(|| conf.executor.as_ref().err().copied()));
        let why = unreadable.map(|key| format!(" ({key} in its configuration cannot be read)")).unwrap_or_default();
        let sentence = format!(
            "{} requires the gang's size on the pod, and it is unknown{why}: set {set} on the driver",
            scheduler.kind
        );
        draft.note(Reason::GangSizeUnknown, sentence);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn group_key_is_recognized_among_mutations() {
        let label = GroupKeyField::Metadata(MetadataField::Label, "group");
        let is_key = |field, key| is_group_key(&Mutation::SetMetadata(field, key, "g".into()), label);
        assert!(is_key(MetadataField::Label, "group"));
        assert!(!is_key(MetadataField::Annotation, "group") && !is_key(MetadataField::Label, "queue"));
        let native = Mutation::SchedulingGroup("g".into());
        assert!(is_group_key(&native, GroupKeyField::SchedulingGroup) && !is_group_key(&native, label));
    }
}
