//! PodGroups: made for executors that name them, kept at a size that can start, deleted when nobody needs them.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::SignedDuration;
use serde_json::{Map, Value, json};

use super::action::{Action, DriverRef, Told};
use super::memory::Memory;
use super::plan::{Plan, View};
use super::reads::policy_of;
use crate::driver::life::{Crew, DriverLife};
use crate::driver::resolve;
use crate::gang::size::{self, SizeFacts, Sizes};
use crate::gang::{GangScheduler, GroupSpec, Shape, group};
use crate::plant::{self, Bug};
use crate::policy::overrides::{self, Effective, Source};
use crate::policy::{Policy, default_overrides};
use crate::reason::Reason;
use crate::snapshot::{Cohort, DriverPod, Group, GroupApi, GroupKey, Overrides, Owner, Seat};
use crate::spark::ids::PodKey;
use crate::spark::labels;
use crate::spark::resources::ResourceList;

/// How long a group without members stays when nothing is known of its driver: longer than Spark takes to replace one.
const IDLE: SignedDuration = SignedDuration::from_mins(10);

/// A group that pods name.
struct Named<'v> {
    row: &'static GangScheduler,
    /// The executors of one creator, and their driver: the group is made for those.
    crew: &'v Crew<'v>,
    /// Cohorts of the crew whose executors carry its key, and of which some live.
    members: Vec<&'v Cohort>,
    /// Whether the driver carries it too (Volcano's `app` shape).
    with_driver: bool,
    /// The seat that speaks for the group: queue, priority class, policy.
    seat: &'v Seat,
    /// Whether a signature proves that seat.
    is_proven: bool,
}

pub(super) fn plan(view: &View<'_>, memory: &mut Memory, plan: &mut Plan) {
    let present: BTreeMap<&GroupKey, &Arc<Group>> = view.groups().collect();
    let named = named(view, &present);
    memory.idle_since.retain(|key, _| present.contains_key(key) && !named.contains_key(key));
    for crew in view.crews {
        plan.add(crew.creator, refused_early(view, crew));
    }
    for (key, wanted) in &named {
        // Executors that outlive their driver for a moment start nothing together any more.
        if wanted.crew.driver != DriverLife::Gone {
            plan.add(wanted.crew.creator, keep(view, key, wanted, present.get(key).copied(), memory));
        }
    }
    for (key, group) in present {
        if !named.contains_key(key) && !group.deleting && !is_awaited(view, key) {
            plan.add(group.owner.as_ref().map(Owner::creator), release(view, key, group, memory));
        }
    }
}

/// Says on a driver that the scheduler's own webhook refuses its executors.
fn refused_early(view: &View<'_>, crew: &Crew<'_>) -> Option<Action> {
    let driver = crew.driver.pod().filter(|_| crew.is_certain)?;
    let (_, kind) = driver.seat.given_by()?;
    let row = GangScheduler::of_kind(kind)?;
    policy_of(&driver.seat, view.policies).filter(|policy| policy.gang.shape != Shape::Pods)?;
    let message = row.refuses_early_pods(view.snapshot.early_pods_refused_by.as_deref())?;
    let pod = PodKey::new(view.key.namespace(), &driver.name);
    Some(Action::Tell(Told { pod, uid: driver.uid.clone(), reason: Reason::EarlyPodsRefused, message }))
}

/// Whether a live executor of the application waits for this group, whoever placed it there.
fn is_awaited(view: &View<'_>, key: &GroupKey) -> bool {
    let Some(row) = GangScheduler::of_kind(key.scheduler) else { return false };
    let names = |cohort: &Cohort| row.group_key.of_seat(&cohort.template.seat) == Some(&*key.name);
    view.crews.iter().flat_map(|crew| &crew.cohorts).any(|cohort| cohort.live > 0 && names(cohort))
}

/// The groups that live pods of this application name and that are ours to make. Where executors of two creators name one,
/// it is for those whose driver is not gone, whose placement is proven, whose driver owns it, in this order.
fn named<'v>(view: &View<'v>, present: &BTreeMap<&GroupKey, &Arc<Group>>) -> BTreeMap<GroupKey, Named<'v>> {
    let mut all: BTreeMap<GroupKey, Named<'v>> = BTreeMap::new();
    for crew in view.crews {
        for (key, named) in named_by(view, crew) {
            let owner = present.get(&key).and_then(|group| group.owner.as_ref());
            if all.get(&key).is_none_or(|other| rank(&named, owner) > rank(other, owner)) {
                all.insert(key, named);
            }
        }
    }
    all
}

impl<'v> Named<'v> {
    /// The driver, where it is known by more than a label that anybody could write.
    fn driver(&self) -> Option<&'v Arc<DriverPod>> {
        self.crew.driver.pod().filter(|_| self.crew.is_certain)
    }
}

fn rank(named: &Named<'_>, owner: Option<&Owner>) -> (bool, bool, bool, bool) {
    let driver = named.driver();
    let owns = owner.is_some_and(|owner| driver.is_some_and(|driver| driver.uid == owner.uid));
    let is_ours = named.is_proven || named.with_driver;
    (named.crew.driver != DriverLife::Gone, is_ours, owns, named.crew.creator.is_some())
}

/// The groups that live pods of one crew name.
fn named_by<'v>(view: &View<'v>, crew: &'v Crew<'v>) -> BTreeMap<GroupKey, Named<'v>> {
    let mut all: BTreeMap<GroupKey, Named<'v>> = BTreeMap::new();
    for driver in crew.labelled.iter().filter(|driver| driver.is_live()) {
        // A scheduler's controllers write group keys onto drivers too: only the one that we would give counts.
        if let Some((key, row)) = group_of(view, &driver.seat)
            && is_of_driver(view, driver, &key.name)
        {
            let (members, seat) = (Vec::new(), &*driver.seat);
            all.insert(key, Named { row, crew, members, with_driver: true, seat, is_proven: false });
        }
    }
    for cohort in crew.cohorts.iter().filter(|cohort| cohort.live > 0) {
        if let Some((key, row)) = group_of(view, &cohort.template.seat) {
            let (seat, is_proven) = (&*cohort.template.seat, cohort.is_proven);
            let new = || Named { row, crew, members: Vec::new(), with_driver: false, seat, is_proven };
            let group = all.entry(key).or_insert_with(new);
            group.members.push(cohort);
            // What is proven speaks for the group before what only says so.
            if is_proven && !group.is_proven && !group.with_driver {
                (group.seat, group.is_proven) = (seat, true);
            }
        }
    }
    all
}

/// Whether a driver's group key is ours: we admitted the driver, or it is the one that its policy gives, as far as that is
/// still known.
fn is_of_driver(view: &View<'_>, driver: &DriverPod, name: &str) -> bool {
    let rendered = |called| is_rendered(view, &driver.seat, name, called);
    driver.is_proven
        || policy_of(&driver.seat, view.policies).is_none()
        || rendered(Some(&driver.name))
        || rendered(None)
}

/// Whether a group has the name that the policy of a seat gives.
fn is_rendered(view: &View<'_>, seat: &Seat, name: &str, driver: Option<&str>) -> bool {
    let policy = policy_of(seat, view.policies);
    policy.is_some_and(|policy| policy.gang.name.render(driver, view.key.selector()) == name)
}

/// The group that a marked seat names, where the scheduler has group objects. The signature may be missing where a replica did
/// not have the key yet; then the mark alone counts, and whoever is proven comes first.
fn group_of(view: &View<'_>, seat: &Seat) -> Option<(GroupKey, &'static GangScheduler)> {
    let (_, kind) = seat.given_by()?;
    let row = GangScheduler::of_kind(kind).filter(|row| !row.apis.is_empty())?;
    let name = row.group_key.of_seat(seat).filter(|name| resolve::is_label_name(name))?;
    Some((GroupKey { namespace: view.key.namespace().into(), name: name.into(), scheduler: row.kind }, row))
}

/// Whether a gang counts executors at all.
fn is_counted(cohort: &&Cohort) -> bool {
    cohort.template.default_profile && cohort.template.note.as_deref() != Some(labels::FOREIGN)
}

/// How many executors of a crew live that a gang counts.
fn living(crew: &Crew<'_>) -> usize {
    crew.cohorts.iter().copied().filter(is_counted).map(|cohort| cohort.live).sum()
}

/// What a group should say, and what that rests on.
struct Wish {
    spec: GroupSpec,
    sizes: Option<Sizes>,
    live: u32,
    seated: u32,
    started: bool,
    clamped: bool,
}

/// Makes or corrects a group that pods name.
fn keep(
    view: &View<'_>,
    key: &GroupKey,
    named: &Named<'_>,
    present: Option<&Arc<Group>>,
    memory: &mut Memory,
) -> Vec<Action> {
    let Some(apis) = &view.snapshot.apis else { return Vec::new() };
    let mut actions = Vec::new();
    let Some(api) = apis.get(named.row.kind) else {
        let wanted: Vec<String> = named.row.apis.iter().map(GroupApi::api_version).collect();
        let message = format!(
            "gang {}: the cluster serves no PodGroup of {}; is the scheduler installed?",
            key.name,
            wanted.join(" or ")
        );
        actions.extend(tell(view, named, Reason::GroupApiNotServed, message));
        return actions;
    };
    if !view.snapshot.listed.contains(key.scheduler) {
        return actions; // It may be there already.
    }
    let wish = wish(view, key, named, api, present, memory);
    if wish.started {
        memory.crews.entry(named.crew.creator).or_default().started = true;
    }
    if wish.sizes.is_none() {
        let message = format!(
            "gang {}: how many executors the application wants is not known, so they do not wait for each other; set {} on the driver",
            key.name,
            labels::MIN_MEMBER
        );
        actions.extend(tell(view, named, Reason::GangSizeUnknown, message));
    }
    if wish.clamped {
        let message = format!(
            "gang {}: {} is above what the application wants and was lowered to {}",
            key.name,
            labels::MIN_MEMBER,
            wish.spec.min_member
        );
        actions.extend(tell(view, named, Reason::MinMemberClamped, message));
    }
    let spec = (named.row.spec)(&wish.spec, api);
    let driver = named.driver();
    let owner = driver.map(|pod| DriverRef { name: pod.name.clone(), uid: pod.uid.clone() });
    match present {
        None => actions.push(Action::CreateGroup {
            key: key.clone(),
            api,
            app: view.key.clone(),
            spec,
            owner,
            started: wish.started,
        }),
        // Made anew once it is gone.
        Some(group) if group.deleting => {}
        Some(group) if group.owner.as_ref().is_some_and(|had| owner.as_ref().is_some_and(|now| had.uid != now.uid)) => {
            actions.push(Action::DeleteGroup {
                key: key.clone(),
                api,
                uid: group.uid.clone(),
                version: group.version.clone(),
                reason: Reason::GroupRemade,
            });
        }
        Some(group) => actions.extend(correct(view, key, named, api, group, &wish, spec, owner)),
    }
    actions
}

/// Corrects a group that is there: its spec, its owner, the mark that it ran.
#[expect(clippy::too_many_arguments, reason = "each is one fact about the same group; a struct would only rename them")]
fn correct(
    view: &View<'_>,
    key: &GroupKey,
    named: &Named<'_>,
    api: &'static GroupApi,
    group: &Group,
    wish: &Wish,
    spec: Value,
    owner: Option<DriverRef>,
) -> Vec<Action> {
    let mut actions = Vec::new();
    let have = count(&group.spec);
    let (mut patch, mut reason) = (Map::new(), None);
    if api.count_mutable || have.is_none() {
        if let Some(changed) = group::spec_patch(&group.spec, &spec) {
            patch.insert("spec".into(), changed);
        }
        let want = wish.spec.min_member;
        match have {
            Some(have) if want < have => {
                reason = Some(Reason::GangLowered);
                // Of a gang that runs it is no news; of one that waits it is why it can start now.
                if named.members.iter().any(|member| member.pending > 0) {
                    actions.extend(tell(view, named, Reason::GangLowered, lowered(key, have, wish)));
                }
            }
            Some(have) if want > have => reason = Some(Reason::GangRaised),
            _ => {}
        }
    } else if let Some(have) = have
        && wish.spec.min_member < have
        && named.members.iter().any(|member| member.pending > 0)
    {
        let message = format!(
            "gang {} waits for {have} executors and {} can be there; {} cannot change a group's count, so the pending ones cannot start",
            key.name,
            wish.spec.min_member,
            api.api_version()
        );
        actions.extend(tell(view, named, Reason::GangCannotStart, message));
    }
    let mut metadata = Map::new();
    if wish.started && !group.started {
        metadata.insert("annotations".into(), json!({ labels::STARTED: "true" }));
    }
    if let (None, Some(owner)) = (&group.owner, owner) {
        metadata.insert("ownerReferences".into(), json!([owner_reference(&owner)]));
    }
    if !metadata.is_empty() {
        patch.insert("metadata".into(), Value::Object(metadata));
    }
    if !patch.is_empty() {
        let (uid, version) = (group.uid.clone(), group.version.clone());
        actions.push(Action::PatchGroup { key: key.clone(), api, uid, version, patch: Value::Object(patch), reason });
    }
    actions
}

/// Lets go of a group that no live pod names: deleted when its driver is gone; kept for an application that may grow
/// again, but asking for no room.
fn release(view: &View<'_>, key: &GroupKey, group: &Group, memory: &mut Memory) -> Vec<Action> {
    let Some(api) = view.snapshot.apis.as_ref().and_then(|apis| apis.get(key.scheduler)) else { return Vec::new() };
    let owner = group.owner.as_ref().map(Owner::creator);
    let life = view.crews.iter().find(|crew| owner.is_some() && crew.creator == owner).map(|crew| &crew.driver);
    let idle = match life.unwrap_or(&DriverLife::Unknown) {
        DriverLife::Gone => true,
        DriverLife::Alive(_) => false,
        DriverLife::Unknown => {
            let since = memory.idle_since.entry(key.clone()).or_insert(view.now);
            view.now.duration_since(*since) >= IDLE
        }
    };
    let (uid, version) = (group.uid.clone(), group.version.clone());
    if idle && !plant::is(Bug::GroupsNeverDeleted) {
        return vec![Action::DeleteGroup { key: key.clone(), api, uid, version, reason: Reason::GroupDeleted }];
    }
    let Some(row) = GangScheduler::of_kind(key.scheduler).filter(|_| api.count_mutable) else { return Vec::new() };
    let empty = GroupSpec {
        name: key.name.clone(),
        min_member: 1,
        min_resources: ResourceList::default(),
        queue: None,
        priority_class: None,
    };
    group::spec_patch(&group.spec, &(row.spec)(&empty, api))
        .map(|spec| Action::PatchGroup {
            key: key.clone(),
            api,
            uid,
            version,
            patch: json!({ "spec": spec }),
            reason: None,
        })
        .into_iter()
        .collect()
}

fn wish(
    view: &View<'_>,
    key: &GroupKey,
    named: &Named<'_>,
    api: &GroupApi,
    present: Option<&Arc<Group>>,
    memory: &Memory,
) -> Wish {
    let effective = effective(view, named);
    // Who nobody speaks for may be anybody's, and who came while the webhook was away is signed by nobody: were such a one
    // not counted, the gang could wait for it for ever.
    let crew = named.crew;
    let claimed = crew.creator.is_some();
    let unclaimed = view.unclaimed().filter(|_| claimed);
    let others = view.with_driver_of(crew).filter(|other| !claimed || other.creator.is_some()).chain(unclaimed);
    let counted = || crew.cohorts.iter().copied().filter(is_counted);
    let live = living(crew) + others.map(living).sum::<usize>();
    let created = counted().map(|cohort| cohort.highest_id).max().unwrap_or_default();
    let ran: usize = counted().map(|cohort| cohort.ran).sum();
    // Where any member is proven, others give the group neither size nor room.
    let members: Vec<&&Cohort> = named
        .members
        .iter()
        .filter(|member| member.template.default_profile && (member.is_proven || !named.is_proven))
        .collect();
    let conf = named.driver().and_then(|driver| view.snapshot.conf(&driver.uid));
    let remembered = memory.crews.get(&named.crew.creator).is_some_and(|memory| memory.started);
    let facts = SizeFacts {
        conf,
        requested: effective.min_member,
        started: remembered || present.is_some_and(|group| group.started),
        waves_must_run: counted().any(|cohort| cohort.live > 0 && !cohort.template.knows_profiles),
        created: to_u32(created),
        live: to_u32(live as u64),
    };
    // As many executors as it started with have run: now, or since.
    let started = facts.started || facts.sizes().is_some_and(|sizes| to_u32(ran as u64) >= sizes.wanted);
    // A count that cannot be changed later must hold for a dynamic application at its smallest, unless somebody has asked
    // for one: then an Event says when it can no longer be met.
    let smallest = !api.count_mutable && effective.min_member.is_none();
    let facts = SizeFacts { started: started || smallest, ..facts };
    let sizes = facts.sizes();
    let seated: usize = members.iter().map(|member| member.live).sum();
    let (live, seated) = (facts.live, to_u32(seated as u64));
    let each = members.iter().fold(ResourceList::default(), |mut each, member| {
        each.raise(&member.template.requests);
        each
    });
    let (min_member, min_resources) = if named.with_driver {
        (1, with_driver(view, named, &effective, each, sizes))
    } else {
        let count = size::min_member(sizes, live, seated, expects_more(view, key, named));
        let count = if plant::is(Bug::GangOfOneMore) { count + 1 } else { count };
        let count = if plant::is(Bug::GangOfOneLess) { count.saturating_sub(1).max(1) } else { count };
        (count, each.times(count))
    };
    // What the webhook wrote counts when the group is made; later a tenant may have changed the pod.
    let given = present.and_then(|group| group.spec.get("queue")?.as_str()).map(Arc::from);
    let marked = || named.row.queue_key.and_then(|(place, key)| named.seat.mark(place, key)).map(Arc::from);
    let queue = given.or_else(|| if speaks(view, named) { marked() } else { None });
    let spec = GroupSpec {
        name: key.name.clone(),
        min_member,
        min_resources,
        queue: queue.or(effective.queue),
        priority_class: members
            .first()
            .map_or(&named.seat.priority_class, |member| &member.template.seat.priority_class)
            .clone(),
    };
    Wish { spec, sizes, live, seated, started, clamped: sizes.is_some_and(|sizes| sizes.clamped) }
}

/// Whether the queue on a group's pods is believed: our signature says so, or nothing is signed here. Of others the policy
/// decides.
fn speaks(view: &View<'_>, named: &Named<'_>) -> bool {
    named.is_proven || view.snapshot.signing_key().is_none()
}

/// The annotations of the driver and its namespace, under the policy that seated the group.
fn effective(view: &View<'_>, named: &Named<'_>) -> Effective {
    // A policy that is gone since steers nothing; facts about the application still count.
    let fallback = Policy { overrides: default_overrides(), ..Policy::fallback() };
    let policy = policy_of(named.seat, view.policies).unwrap_or(&fallback);
    let none = Overrides::default();
    let driver = named.driver().map_or(&none, |driver| &driver.overrides);
    let namespace = view.snapshot.namespace(view.key.namespace()).map_or(&none, |namespace| &namespace.overrides);
    overrides::hear(policy, [(Source::Pod, &none), (Source::Driver, driver), (Source::Namespace, namespace)])
}

/// Room for the driver and for as many executors as start together (Volcano's gate at the queue).
fn with_driver(
    view: &View<'_>,
    named: &Named<'_>,
    effective: &Effective,
    each: ResourceList,
    sizes: Option<Sizes>,
) -> ResourceList {
    let driver = named.driver();
    let mut total = driver.map(|driver| driver.requests.clone()).unwrap_or_default();
    let conf = driver.and_then(|driver| view.snapshot.conf(&driver.uid));
    let each = if each.is_empty() {
        effective.executor_resources.clone().or_else(|| conf.map(|conf| conf.executor.clone())).unwrap_or_default()
    } else {
        each
    };
    total.add(&each.times(sizes.map_or(0, |sizes| sizes.wanted)));
    total
}

/// Whether executors that are still to come will name this group: it is the one that the crew's first executor names.
fn expects_more(view: &View<'_>, key: &GroupKey, named: &Named<'_>) -> bool {
    let placed = |cohort: &&&Cohort| {
        cohort.template.default_profile && cohort.template.seat.by.is_some() && (cohort.is_proven || !named.is_proven)
    };
    let first = named.crew.cohorts.iter().find(placed).and_then(|cohort| group_of(view, &cohort.template.seat));
    first.is_none_or(|(first, _)| first == *key)
}

/// The count in a group's spec, in whichever scheduler's words.
fn count(spec: &Value) -> Option<u32> {
    let count = spec.get("minMember").or_else(|| spec.pointer("/schedulingPolicy/gang/minCount"))?;
    count.as_u64().map(to_u32)
}

fn lowered(key: &GroupKey, have: u32, wish: &Wish) -> String {
    let target = wish.sizes.map_or(1, |sizes| sizes.target);
    format!(
        "gang {}: lowered from {have} to {} so that it can start: the application wants {target}, {} are pending or running, {} of them sit in this gang",
        key.name, wish.spec.min_member, wish.live, wish.seated
    )
}

/// Says something about the gang: on its driver's pod, else on its first executor.
fn tell(view: &View<'_>, named: &Named<'_>, reason: Reason, message: String) -> Option<Action> {
    let driver = named.driver().map(|pod| (pod.name.clone(), pod.uid.clone()));
    let first = || view.app.one_of(named.members.first()?).map(|member| (member.name.clone(), member.uid.clone()));
    let (name, uid) = driver.or_else(first)?;
    let pod = PodKey::new(view.key.namespace(), &name);
    Some(Action::Tell(Told { pod, uid, reason, message }))
}

/// The owner of a group, as of an executor: never blockOwnerDeletion.
pub(crate) fn owner_reference(driver: &DriverRef) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "name": &*driver.name, "uid": &*driver.uid, "controller": true})
}

fn to_u32(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
