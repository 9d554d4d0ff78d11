//! PodGroups: created for executors that name them, kept at a size that can start, deleted when no pod needs them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::SignedDuration;
use serde_json::{Map, Value, json};

use super::plan::Plan;
use super::state::{ApplicationState, Silence};
use crate::annotations::{self, Overrides};
use crate::drivers::view_of;
use crate::gang::size::{self, Members, SizeFacts, Sizes};
use crate::gang::{GangScheduler, GroupSpec, Shape, group};
use crate::ownership::liveness::{DriverLiveness, ExecutorSet};
use crate::planning::{Action, PlanContext, PodEvent};
use crate::policy::overrides::{self, Effective, Source};
use crate::policy::{Policy, default_overrides};
use crate::reason::Reason;
use crate::snapshot::{DriverPod, Group, GroupApi, GroupKey, Owner, SchedulingFields, TemplateCounts};
use usher_spark::conf::{AppConf, Setting};
use usher_spark::ids::{PodIdentity, PodKey};
use usher_spark::resources::ResourceList;
use usher_spark::text::is_dns_label;

/// How long a PodGroup without members is kept when nothing is known of its driver: longer than Spark takes to replace a member.
const IDLE_GRACE: SignedDuration = SignedDuration::from_mins(10);

/// A PodGroup that pods name.
struct GroupMembers<'v> {
    scheduler: &'static GangScheduler,
    /// The executors of one creator, and their driver, for which the PodGroup is created.
    set: &'v ExecutorSet<'v>,
    /// The set's templates whose executors carry its key, and of which some are live.
    members: Vec<&'v TemplateCounts>,
    /// Whether the driver carries the key too (Volcano's `app` shape).
    with_driver: bool,
    /// The scheduling fields that decide for the PodGroup: queue, priority class, policy.
    scheduling: &'v SchedulingFields,
    /// Whether a signature proves those fields.
    is_proven: bool,
}

/// A PodGroup whose size only the driver's web UI states is created this much later at the latest: it answers 4 to 5 seconds after
/// the driver has started, while its SparkContext waits for executors, and after 20 seconds on a busy machine. A driver without a web UI
/// refuses connections all the time.
fn conf_wait(silence: Silence) -> Duration {
    Duration::from_secs(match silence {
        Silence::None => 10,
        Silence::Refused => 30,
        Silence::Unpolled | Silence::Starting => 60,
    })
}

pub(super) fn plan(context: &PlanContext<'_>, state: &mut ApplicationState, plan: &mut Plan) {
    let present: BTreeMap<&GroupKey, &Arc<Group>> = context.groups().collect();
    let named = group_members(context, &present);
    state.idle_since.retain(|key, _| present.contains_key(key) && !named.contains_key(key));
    for set in context.sets {
        plan.add(set.creator, early_pods_refused(context, set));
        plan.add(set.creator, nodes_not_avoided(context, set));
    }
    for (key, wanted) in &named {
        // Executors that outlive their driver for a moment need no gang.
        if !context.is_certainly_gone(wanted.set) {
            let gang = GangPlan { context, key, named: wanted, present: present.get(key).map(|group| &***group) };
            match gang.conf_awaited_until(state, plan) {
                Some(until) => plan.requeue(until),
                None => plan.add(wanted.set.creator, gang.ensure(state)),
            }
        }
    }
    for (key, group) in present {
        if !named.contains_key(key) && !group.deleting && !is_awaited(context, key) {
            plan.add(group.owner.as_ref().map(Owner::creator), collect(context, key, group, state));
        }
    }
}

/// How many executors of the default profile the workloads have that create a driver's executors.
fn replicas(context: &PlanContext<'_>, set: &ExecutorSet<'_>) -> Option<u32> {
    set.own_driver()?;
    set.replicas(context.snapshot, context.key.namespace(), |template| template.default_profile)
}

/// Reports on a driver that the scheduler's own webhook denies its executors.
fn early_pods_refused(context: &PlanContext<'_>, set: &ExecutorSet<'_>) -> Option<Action> {
    let driver = set.driver.pod().filter(|_| set.is_certain)?;
    let (_, kind) = driver.scheduling.set_by()?;
    let scheduler = GangScheduler::of_kind(kind)?;
    context.policies.of_scheduling(&driver.scheduling).filter(|policy| policy.gang.shape != Shape::Pods)?;
    let message = scheduler.refuses_early_pods(context.snapshot.early_pods_refused_by.as_deref())?;
    let pod = PodKey::new(context.key.namespace(), &driver.name);
    Some(Action::RecordEvent(PodEvent { pod, uid: driver.uid.clone(), reason: Reason::EarlyPodsRefused, message }))
}

/// Reports on a driver that its executors do not avoid suspect nodes.
fn nodes_not_avoided(context: &PlanContext<'_>, set: &ExecutorSet<'_>) -> Option<Action> {
    let driver = set.driver.pod().filter(|_| set.is_certain)?;
    let needs = |counts: &&TemplateCounts| counts.pending > 0 && counts.template.needs_suspect_nodes;
    set.counts.iter().copied().find(needs)?;
    let message = "its executors do not avoid nodes on which executors fail, because the other nodes would not have room for its gang";
    let (pod, message) = (PodKey::new(context.key.namespace(), &driver.name), message.to_owned());
    Some(Action::RecordEvent(PodEvent { pod, uid: driver.uid.clone(), reason: Reason::NodesNotAvoided, message }))
}

/// Whether a live executor of the application names this PodGroup, whether we set its key or not.
fn is_awaited(context: &PlanContext<'_>, key: &GroupKey) -> bool {
    let Some(scheduler) = GangScheduler::of_kind(key.scheduler) else { return false };
    let names =
        |counts: &TemplateCounts| scheduler.group_key.of_fields(&counts.template.scheduling) == Some(&*key.name);
    context.sets.iter().flat_map(|set| &set.counts).any(|counts| counts.live > 0 && names(counts))
}

/// The PodGroups that live pods of this application name and that we manage. If executors of two creators name one, it is for
/// those whose driver still exists, whose placement is proven, whose driver owns it, in this order.
fn group_members<'v>(
    context: &PlanContext<'v>,
    present: &BTreeMap<&GroupKey, &Arc<Group>>,
) -> BTreeMap<GroupKey, GroupMembers<'v>> {
    let mut all: BTreeMap<GroupKey, GroupMembers<'v>> = BTreeMap::new();
    for set in context.sets {
        for (key, named) in members_naming(context, set) {
            let owner = present.get(&key).and_then(|group| group.owner.as_ref());
            if all.get(&key).is_none_or(|other| rank(&named, owner) > rank(other, owner)) {
                all.insert(key, named);
            }
        }
    }
    all
}

impl<'v> GroupMembers<'v> {
    /// The driver, if it is known by more than a label, which any tenant can write.
    fn driver(&self) -> Option<&'v Arc<DriverPod>> {
        self.set.driver.pod().filter(|_| self.set.is_certain)
    }
}

fn rank(named: &GroupMembers<'_>, owner: Option<&Owner>) -> (bool, bool, bool, bool, bool) {
    let driver = named.driver();
    let owns = owner.is_some_and(|owner| driver.is_some_and(|driver| driver.uid == owner.uid));
    let is_ours = named.is_proven || named.with_driver;
    // A tenant can write any owner into a StatefulSet: what the driver itself has created comes first.
    let is_created = driver.is_some_and(|driver| named.set.creator == Some(driver.creator));
    (named.set.driver != DriverLiveness::Gone, is_ours, owns, is_created, named.set.creator.is_some())
}

/// The PodGroups that live pods of one set of executors name.
fn members_naming<'v>(context: &PlanContext<'v>, set: &'v ExecutorSet<'v>) -> BTreeMap<GroupKey, GroupMembers<'v>> {
    let mut all: BTreeMap<GroupKey, GroupMembers<'v>> = BTreeMap::new();
    for driver in set.labelled.iter().filter(|driver| driver.is_live()) {
        // A scheduler's controllers write group keys onto drivers too: only the one that we would set counts.
        if let Some((key, scheduler)) = group_of(context, &driver.scheduling)
            && is_of_driver(context, driver, &key.name)
        {
            let (members, scheduling) = (Vec::new(), &*driver.scheduling);
            all.insert(key, GroupMembers { scheduler, set, members, with_driver: true, scheduling, is_proven: false });
        }
    }
    for counts in set.counts.iter().filter(|counts| counts.live > 0) {
        if let Some((key, scheduler)) = group_of(context, &counts.template.scheduling) {
            let (scheduling, is_proven) = (&*counts.template.scheduling, counts.is_proven);
            let new =
                || GroupMembers { scheduler, set, members: Vec::new(), with_driver: false, scheduling, is_proven };
            let group = all.entry(key).or_insert_with(new);
            group.members.push(counts);
            // Proven scheduling fields take precedence over unproven ones.
            if is_proven && !group.is_proven && !group.with_driver {
                (group.scheduling, group.is_proven) = (scheduling, true);
            }
        }
    }
    all
}

/// Whether a driver's group key is ours: our webhook admitted the driver, or its policy gives this key, or that policy no longer
/// exists.
fn is_of_driver(context: &PlanContext<'_>, driver: &DriverPod, name: &str) -> bool {
    let rendered = |called| is_rendered(context, &driver.scheduling, name, called);
    driver.is_proven
        || context.policies.of_scheduling(&driver.scheduling).is_none()
        || rendered(Some(&driver.name))
        || rendered(None)
}

/// Whether a PodGroup has the name that the policy of the scheduling fields gives.
fn is_rendered(context: &PlanContext<'_>, scheduling: &SchedulingFields, name: &str, driver: Option<&str>) -> bool {
    let policy = context.policies.of_scheduling(scheduling);
    policy.is_some_and(|policy| policy.gang.name.render(driver, context.key.selector()) == name)
}

/// The PodGroup that scheduling fields with our `set_by` value name, if the scheduler has PodGroups. The signature may be missing
/// if a replica did not have the key yet; then `set_by` alone counts, and proven executors take precedence.
fn group_of(context: &PlanContext<'_>, scheduling: &SchedulingFields) -> Option<(GroupKey, &'static GangScheduler)> {
    let (scheduler, name) = GangScheduler::named_by(scheduling)?;
    let is_valid = !scheduler.apis.is_empty() && is_dns_label(name);
    is_valid.then(|| (scheduler.group(context.key.namespace(), name), scheduler))
}

/// Whether a gang counts the executors of a template.
fn is_counted(counts: &&TemplateCounts) -> bool {
    counts.template.default_profile && counts.template.note.as_deref() != Some(annotations::FOREIGN_CREATOR)
}

/// How many live executors of a set a gang counts.
fn living(set: &ExecutorSet<'_>) -> usize {
    set.counts.iter().copied().filter(is_counted).map(|counts| counts.live).sum()
}

/// The desired state of a PodGroup, and the facts that it is based on.
struct DesiredGroup {
    spec: GroupSpec,
    sizes: Option<Sizes>,
    live: u32,
    live_members: u32,
    started: bool,
    clamped: bool,
    /// The sizes that settings state which cannot be read: the key, and the annotation that states the same.
    unreadable: Vec<(&'static str, &'static str)>,
}

/// The plan for one PodGroup that pods name.
struct GangPlan<'p, 'v> {
    context: &'p PlanContext<'v>,
    key: &'p GroupKey,
    named: &'p GroupMembers<'v>,
    /// The PodGroup, if it exists.
    present: Option<&'p Group>,
}

impl GangPlan<'_, '_> {
    /// Until when a PodGroup is not created, because its driver is about to state how many executors it wants: its count may never be
    /// changed later, and executors that it lets start need not wait for others.
    fn conf_awaited_until(&self, state: &mut ApplicationState, plan: &Plan) -> Option<Instant> {
        let (context, wanted) = (self.context, self.named);
        let driver = wanted.set.own_driver().filter(|_| self.present.is_none())?;
        let is_asked = plan.drivers.iter().any(|poll| poll.key.driver == driver.creator && poll.reads_conf);
        let silence = state.sets.get(&Some(driver.creator)).map(|set| set.silence).unwrap_or_default();
        let has_answered = view_of(context.snapshot, context.key, driver.creator).is_some();
        let is_known = self.effective().min_member.is_some() || replicas(context, wanted.set).is_some();
        if !is_asked || has_answered || is_known || wanted.with_driver {
            return None;
        }
        let now = context.now.at;
        let since = *state.sets.entry(wanted.set.creator).or_default().conf_awaited_since.get_or_insert(now);
        Some(since + conf_wait(silence)).filter(|until| *until > now)
    }

    /// Creates or corrects a PodGroup that pods name.
    fn ensure(&self, state: &mut ApplicationState) -> Vec<Action> {
        let GangPlan { context, key, named, present } = *self;
        let Some(apis) = &context.snapshot.apis else { return Vec::new() };
        let Some(api) = apis.get(named.scheduler.kind) else {
            let wanted: Vec<String> = named.scheduler.apis.iter().map(GroupApi::api_version).collect();
            let message = format!(
                "gang {}: the cluster does not serve PodGroups of {}: check that the scheduler is installed",
                key.name,
                wanted.join(" or ")
            );
            return self.event(Reason::GroupApiNotServed, message).into_iter().collect();
        };
        if !context.snapshot.listed.contains(key.scheduler) {
            return Vec::new(); // It may exist already.
        }
        let desired = self.desired(api, state);
        if desired.started {
            state.sets.entry(named.set.creator).or_default().started = true;
        }
        let mut actions = self.size_events(&desired);
        let owner = named.driver().map(|pod| pod.identity(&key.namespace));
        match present {
            None => actions.push(Action::CreateGroup {
                key: key.clone(),
                api,
                app: context.key.clone(),
                spec: (named.scheduler.spec)(&desired.spec, api),
                owner,
                started: desired.started,
            }),
            // Recreated once it is deleted.
            Some(group) if group.deleting => {}
            Some(group)
                if group.owner.as_ref().is_some_and(|had| owner.as_ref().is_some_and(|now| had.uid != now.uid)) =>
            {
                actions.push(Action::DeleteGroup {
                    key: key.clone(),
                    api,
                    seen: group.into(),
                    reason: Reason::GroupRemade,
                });
            }
            Some(group) => actions.extend(self.update(api, group, &desired, owner)),
        }
        actions
    }

    /// Reports that the size is unknown, or is another than the one requested.
    fn size_events(&self, desired: &DesiredGroup) -> Vec<Action> {
        let key = self.key;
        let mut actions = Vec::new();
        for (setting, annotation) in &desired.unreadable {
            let message = format!("gang {}: {}", key.name, size::unreadable(setting, annotation));
            actions.extend(self.event(Reason::GangSizeUnknown, message));
        }
        if desired.sizes.is_none() && desired.unreadable.is_empty() {
            let message = format!(
                "gang {}: the number of executors that the application requests is unknown, so they do not wait for each other: set {} on the driver",
                key.name,
                annotations::MIN_MEMBER
            );
            actions.extend(self.event(Reason::GangSizeUnknown, message));
        }
        if desired.clamped {
            let message = format!(
                "gang {}: {} exceeds the number of executors that the application requests and was lowered to {}",
                key.name,
                annotations::MIN_MEMBER,
                desired.spec.min_member
            );
            actions.extend(self.event(Reason::MinMemberClamped, message));
        }
        actions
    }

    /// Corrects an existing PodGroup: its spec, its owner, the annotation that it ran.
    fn update(
        &self,
        api: &'static GroupApi,
        group: &Group,
        desired: &DesiredGroup,
        owner: Option<PodIdentity>,
    ) -> Vec<Action> {
        let (key, named) = (self.key, self.named);
        let spec = (named.scheduler.spec)(&desired.spec, api);
        let mut actions = Vec::new();
        let have = group.size().map(to_u32);
        let (mut patch, mut reason) = (Map::new(), None);
        if api.count_mutable || have.is_none() {
            if let Some(changed) = group::spec_patch(&group.spec, &spec) {
                patch.insert("spec".into(), changed);
            }
            let want = desired.spec.min_member;
            match have {
                Some(have) if want < have => {
                    reason = Some(Reason::GangLowered);
                    // For a waiting gang an Event explains why it can start now.
                    if !desired.started && named.members.iter().any(|member| member.pending > 0) {
                        actions.extend(self.event(Reason::GangLowered, lowered(key, have, desired)));
                    }
                }
                Some(have) if want > have => reason = Some(Reason::GangRaised),
                _ => {}
            }
        } else if let Some(have) = have
            && desired.spec.min_member < have
            && named.members.iter().any(|member| member.pending > 0)
        {
            let message = match desired.started {
                true => format!(
                    "gang {} has started, and its pending executors wait until {have} can run together: {} cannot change the count of a \
                     PodGroup. Delete them: those that replace them do not join the gang",
                    key.name,
                    api.api_version()
                ),
                false => format!(
                    "gang {} waits for {have} executors, but only {} can exist; {} cannot change the count of a PodGroup, so the pending executors cannot start",
                    key.name,
                    desired.spec.min_member,
                    api.api_version()
                ),
            };
            actions.extend(self.event(Reason::GangCannotStart, message));
        }
        let mut metadata = Map::new();
        if desired.started && !group.started {
            metadata.insert("annotations".into(), json!({ annotations::STARTED: "true" }));
        }
        if let (None, Some(owner)) = (&group.owner, owner) {
            metadata.insert("ownerReferences".into(), json!([owner_reference(&owner)]));
        }
        if !metadata.is_empty() {
            patch.insert("metadata".into(), Value::Object(metadata));
        }
        if !patch.is_empty() {
            actions.push(Action::PatchGroup {
                key: key.clone(),
                api,
                seen: group.into(),
                patch: Value::Object(patch),
                reason,
            });
        }
        actions
    }

    /// Whether a PodGroup may belong to the current driver. An earlier driver of the same name may have left it.
    fn may_own(&self, group: &Group) -> bool {
        let driver = self.named.driver();
        group.owner.as_ref().is_none_or(|owner| driver.is_none_or(|driver| driver.uid == owner.uid))
    }

    fn desired(&self, api: &GroupApi, state: &ApplicationState) -> DesiredGroup {
        let GangPlan { context, key, named, .. } = *self;
        let effective = self.effective();
        // If any member is proven, unproven ones count neither for the size nor for the resources.
        let members: Vec<&&TemplateCounts> = named
            .members
            .iter()
            .filter(|member| member.template.default_profile && (member.is_proven || !named.is_proven))
            .collect();
        let conf = named.driver().and_then(|driver| context.snapshot.conf(context.key, driver));
        let facts = self.facts(conf, effective.min_member, state);
        let started = facts.started;
        // A count that cannot be changed later must hold for a dynamic application at its smallest, unless a count was requested:
        // then an Event reports when it can no longer be met.
        let smallest = !api.count_mutable && effective.min_member.is_none();
        let facts = SizeFacts { started: started || smallest, ..facts };
        let sizes = facts.sizes();
        let live_members: usize = members.iter().map(|member| member.live).sum();
        let (live, live_members) = (facts.live, to_u32(live_members as u64));
        let each = members.iter().fold(ResourceList::default(), |mut each, member| {
            each.raise(&member.template.requests);
            each
        });
        let count_key = conf.filter(|_| sizes.is_none()).and_then(|conf| conf.allocation.err());
        let mut size_key = None;
        let (min_member, min_resources) = if named.with_driver {
            let each = if each.is_empty() { requests_of(conf, &effective) } else { Ok(each) };
            size_key = each.as_ref().err().copied();
            (1, with_driver(named, &each.unwrap_or_default(), sizes))
        } else {
            let running: usize = members.iter().map(|member| member.undeleted.saturating_sub(member.pending)).sum();
            let members = Members {
                live: live_members,
                running: to_u32(running as u64),
                expects_more: self.expects_more(),
                has_started: started,
            };
            let count = size::min_member(sizes, live, members);
            (count, each.times(count))
        };
        let spec = GroupSpec {
            name: key.name.clone(),
            min_member,
            min_resources,
            queue: self.queue().or(effective.queue),
            priority_class: members
                .first()
                .map_or(&named.scheduling.priority_class, |member| &member.template.scheduling.priority_class)
                .clone(),
        };
        DesiredGroup {
            spec,
            sizes,
            live,
            live_members,
            started,
            clamped: sizes.is_some_and(|sizes| sizes.clamped),
            unreadable: [(count_key, annotations::MIN_MEMBER), (size_key, annotations::EXECUTOR_RESOURCES)]
                .into_iter()
                .filter_map(|(key, annotation)| Some((key?, annotation)))
                .collect(),
        }
    }

    /// What the gang's size depends on. It has started if it is known to have, or if as many executors as it started with have run, now
    /// or earlier.
    fn facts<'f>(&self, conf: Option<&'f AppConf>, requested: Option<u32>, state: &ApplicationState) -> SizeFacts<'f> {
        let GangPlan { context, named, present, .. } = *self;
        let set = named.set;
        // Executors without a known creator may be of any set, and those created while the webhook was down have no signature: if
        // they were not counted, the gang could wait for them forever.
        let claimed = set.creator.is_some();
        let unclaimed = context.unclaimed().filter(|_| claimed);
        let others = context.with_driver_of(set).filter(|other| !claimed || other.creator.is_some()).chain(unclaimed);
        let live = living(set) + others.map(living).sum::<usize>();
        let counted = || set.counts.iter().copied().filter(is_counted);
        let created = counted().map(|counts| counts.highest_id).max().unwrap_or_default();
        // A tenant's pod must not end the start of another's gang.
        let is_trusted = |counts: &&TemplateCounts| counts.is_proven || context.snapshot.signing_key().is_none();
        let ran: usize = counted().filter(is_trusted).map(|counts| counts.ran).sum();
        let remembered = state.sets.get(&set.creator).is_some_and(|set| set.started);
        let facts = SizeFacts {
            conf,
            requested,
            replicas: replicas(context, set),
            started: remembered || present.is_some_and(|group| group.started && self.may_own(group)),
            waves_must_run: counted().any(|counts| counts.live > 0 && !counts.template.knows_profiles),
            created: to_u32(created),
            live: to_u32(live as u64),
        };
        let started = facts.started || facts.sizes().is_some_and(|sizes| to_u32(ran as u64) >= sizes.wanted);
        SizeFacts { started, ..facts }
    }

    /// The queue of the PodGroup, or else of its pods if our signature proves it or there is no signing key; otherwise the policy decides.
    /// What the webhook wrote counts when the PodGroup is created; later a tenant may have changed the pod.
    fn queue(&self) -> Option<Arc<str>> {
        let named = self.named;
        let given = self.present.and_then(|group| group.spec.get("queue")?.as_str());
        let is_trusted = named.is_proven || self.context.snapshot.signing_key().is_none();
        let of_pods = || {
            let (place, key) = named.scheduler.queue_key.filter(|_| is_trusted)?;
            named.scheduling.entry(place, key)
        };
        given.or_else(of_pods).map(Arc::from)
    }

    /// The annotations of the driver and its namespace, under the policy that set the scheduling fields.
    fn effective(&self) -> Effective {
        let (context, named) = (self.context, self.named);
        // A policy that was deleted since has no effect; facts about the application still count.
        let fallback = Policy { overrides: default_overrides(), ..Policy::fallback() };
        let policy = context.policies.of_scheduling(named.scheduling).unwrap_or(&fallback);
        let none = Overrides::default();
        let driver = named.driver().map_or(&none, |driver| &driver.overrides);
        let namespace =
            context.snapshot.namespace(context.key.namespace()).map_or(&none, |namespace| &namespace.overrides);
        overrides::resolve(policy, [(Source::Pod, &none), (Source::Driver, driver), (Source::Namespace, namespace)])
    }

    /// Whether executors that are not created yet will name this PodGroup: it is the one that the set's first executor names.
    fn expects_more(&self) -> bool {
        let (context, named) = (self.context, self.named);
        let placed = |counts: &&&TemplateCounts| {
            counts.template.default_profile
                && counts.template.scheduling.by.is_some()
                && (counts.is_proven || !named.is_proven)
        };
        let first =
            named.set.counts.iter().find(placed).and_then(|counts| group_of(context, &counts.template.scheduling));
        first.is_none_or(|(first, _)| first == *self.key)
    }

    /// An Event about the gang: on its driver's pod, else on its first executor.
    fn event(&self, reason: Reason, message: String) -> Option<Action> {
        let (context, named) = (self.context, self.named);
        let driver = named.driver().map(|pod| (pod.name.clone(), pod.uid.clone()));
        let first =
            || context.app.one_of(named.members.first()?).map(|member| (member.name.clone(), member.uid.clone()));
        let (name, uid) = driver.or_else(first)?;
        let pod = PodKey::new(context.key.namespace(), &name);
        Some(Action::RecordEvent(PodEvent { pod, uid, reason, message }))
    }
}

/// Releases a PodGroup that no live pod names: deletes it if its driver exited or was deleted; keeps it for an application that
/// may grow again, but without requested capacity.
fn collect(context: &PlanContext<'_>, key: &GroupKey, group: &Group, state: &mut ApplicationState) -> Vec<Action> {
    let Some(api) = context.snapshot.apis.as_ref().and_then(|apis| apis.get(key.scheduler)) else { return Vec::new() };
    let owner = group.owner.as_ref().map(Owner::creator);
    let set = context.sets.iter().find(|set| owner.is_some() && set.creator == owner);
    let idle = match set.map_or(&DriverLiveness::Unknown, |set| &set.driver) {
        DriverLiveness::Gone if set.is_some_and(|set| context.is_certainly_gone(set)) => true,
        DriverLiveness::Alive(_) => false,
        DriverLiveness::Gone | DriverLiveness::Unknown => {
            let since = state.idle_since.entry(key.clone()).or_insert(context.now.wall);
            context.now.wall.duration_since(*since) >= IDLE_GRACE
        }
    };
    if idle {
        return vec![Action::DeleteGroup { key: key.clone(), api, seen: group.into(), reason: Reason::GroupDeleted }];
    }
    let Some(scheduler) = GangScheduler::of_kind(key.scheduler).filter(|_| api.count_mutable) else {
        return Vec::new();
    };
    let empty = GroupSpec {
        name: key.name.clone(),
        min_member: 1,
        min_resources: ResourceList::default(),
        queue: None,
        priority_class: None,
    };
    group::spec_patch(&group.spec, &(scheduler.spec)(&empty, api))
        .map(|spec| Action::PatchGroup {
            key: key.clone(),
            api,
            seen: group.into(),
            patch: json!({ "spec": spec }),
            reason: None,
        })
        .into_iter()
        .collect()
}

/// What one executor requests that is not created yet; empty if that is unknown.
fn requests_of(conf: Option<&AppConf>, effective: &Effective) -> Setting<ResourceList> {
    match &effective.executor_resources {
        Some(stated) => Ok(stated.clone()),
        None => conf.map_or(Ok(ResourceList::default()), |conf| conf.executor.clone()),
    }
}

/// The resources of the driver and of the executors that start together (Volcano's gate at the queue).
fn with_driver(named: &GroupMembers<'_>, each: &ResourceList, sizes: Option<Sizes>) -> ResourceList {
    let mut total = named.driver().map(|driver| driver.requests.clone()).unwrap_or_default();
    total.add(&each.times(sizes.map_or(0, |sizes| sizes.wanted)));
    total
}

fn lowered(key: &GroupKey, have: u32, desired: &DesiredGroup) -> String {
    let target = desired.sizes.map_or(1, |sizes| sizes.target);
    format!(
        "gang {}: lowered from {have} to {} so that it can start: the application requests {target} executors, {} are pending or running, {} of them in this gang",
        key.name, desired.spec.min_member, desired.live, desired.live_members
    )
}

/// The ownerReference of a PodGroup or an executor: never blockOwnerDeletion.
pub fn owner_reference(driver: &PodIdentity) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "name": driver.key.name(), "uid": &*driver.uid, "controller": true})
}

fn to_u32(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
