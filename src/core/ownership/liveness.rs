//! Whether the driver of an application is alive (`docs/decisions.md#driver-liveness`).
//!
//! The executors of one application and one creator are an [`ExecutorSet`]: any tenant can claim another's application by a
//! label, so decisions about one creator's executors never rest on pods of another. Most applications have one set.

use std::sync::Arc;

use super::resolve;
use super::workload::{self, OwningPod};
use crate::signature::Creator;
use crate::snapshot::{
    Application, CreatorIndex, DriverPhase, DriverPod, Owner, ReferencedPod, Snapshot, Template, TemplateCounts,
};
use usher_spark::ids::{AppKey, PodIdentity, PodKey};

/// Whether a driver is alive; on `Unknown` nothing is ever deleted.
#[derive(Clone, Debug, PartialEq)]
pub enum DriverLiveness {
    /// Its pod exists with the uid that was learned, and has not exited.
    Alive(Arc<DriverPod>),
    /// A uid was learned once, and its pod was deleted, was replaced by another one, or has exited.
    Gone,
    /// No uid was ever learned, or the pod has not been read yet.
    Unknown,
}

impl DriverLiveness {
    /// The pod of a live driver.
    pub fn pod(&self) -> Option<&Arc<DriverPod>> {
        match self {
            DriverLiveness::Alive(pod) => Some(pod),
            DriverLiveness::Gone | DriverLiveness::Unknown => None,
        }
    }
}

/// The executors of an application that one creator created, and their driver.
#[derive(Debug)]
pub struct ExecutorSet<'s> {
    /// Their creator; `None` for executors that have neither an owner nor a proven signature.
    pub creator: Option<Creator>,
    /// The executors, counted; `None` if there are none, as for a labelled driver that has not created any.
    pub index: Option<&'s CreatorIndex>,
    /// The same, by template, in the order of each template's first executor.
    pub counts: Vec<&'s TemplateCounts>,
    /// The pods that are labelled as the application's driver and are this creator.
    pub labelled: Vec<&'s Arc<DriverPod>>,
    /// Whether their driver is alive.
    pub driver: DriverLiveness,
    /// Whether that rests on more than a label: if not, nothing is deleted or labelled because of it.
    pub is_certain: bool,
    /// Whether the driver is their creator, or owns the workload that creates them.
    is_own: bool,
}

/// The driver of a creator's executors as it was last known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownDriver {
    /// Its pod, of the application's namespace.
    pub pod: PodIdentity,
    /// For executors without a known creator: the driver's address on which all of them agree ([`ExecutorSet::host`]).
    pub host: Option<Arc<str>>,
}

impl<'s> ExecutorSet<'s> {
    fn new(creator: Option<Creator>, index: Option<&'s CreatorIndex>) -> ExecutorSet<'s> {
        let counts = index.map(CreatorIndex::counts).unwrap_or_default();
        ExecutorSet {
            creator,
            index,
            counts,
            labelled: Vec::new(),
            driver: DriverLiveness::Unknown,
            is_certain: false,
            is_own: false,
        }
    }

    /// The templates of executors that are live or not cleaned up: owners of cleaned-up executors are not tracked, and prove
    /// nothing about the others.
    fn templates(&self) -> impl Iterator<Item = &'s Arc<Template>> {
        self.counts.iter().filter(|counts| counts.is_undecided()).map(|counts| &counts.template)
    }

    /// The same of executors whose creator our signature proves.
    fn proven_templates(&self) -> impl Iterator<Item = &'s Arc<Template>> {
        let proven = self.counts.iter().filter(|counts| counts.is_undecided() && counts.is_proven);
        proven.map(|counts| &counts.template)
    }

    /// How many of them are live and not being deleted.
    pub fn undeleted(&self) -> usize {
        self.counts.iter().map(|counts| counts.undeleted).sum()
    }

    /// Their live driver, if it is their creator, or owns the workload that creates them.
    pub fn own_driver(&self) -> Option<&Arc<DriverPod>> {
        self.driver.pod().filter(|_| self.is_own)
    }

    /// The owners of the executors.
    fn owners(&self) -> impl Iterator<Item = &'s Owner> {
        self.templates().filter_map(|template| template.owner.as_ref())
    }

    /// How many executors the workloads have that create these.
    pub fn replicas(&self, snapshot: &Snapshot, namespace: &str, counts: impl Fn(&Template) -> bool) -> Option<u32> {
        let templates = self.templates().filter(|template| counts(template));
        let owners = templates.filter_map(|template| template.owner.as_ref());
        // Several ReplicaSets of one Deployment exist while it is updated.
        let mut workloads: Vec<(Arc<str>, u32)> =
            owners.filter_map(|owner| workload::replicas(snapshot, namespace, owner)).collect();
        workloads.sort_unstable();
        workloads.dedup();
        let all = workloads.iter().map(|(_, replicas)| *replicas);
        all.reduce(u32::saturating_add)
    }

    /// The driver's address (the host of `SPARK_DRIVER_URL`) on which executors without a known creator agree. `None` if they
    /// disagree, as when two drivers share an application id or a tenant claims another's: the driver of one of them proves
    /// nothing about the others. Also `None` for a known creator, whose executors need no address.
    pub fn host(&self) -> Option<&'s Arc<str>> {
        let mut hosts = self.templates().map(|template| template.driver_host.as_ref());
        let first = hosts.next().flatten().filter(|_| self.creator.is_none())?;
        hosts.all(|host| host == Some(first)).then_some(first)
    }
}

/// The executor sets of an application, sorted by creator, and those of `also`, of which only a PodGroup may be left. `learned`
/// is a creator's driver as it was known before.
pub fn executor_sets<'s>(
    key: &AppKey,
    app: &'s Application,
    snapshot: &Snapshot,
    also: impl Iterator<Item = Creator>,
    learned: impl Fn(Option<Creator>) -> Option<KnownDriver>,
) -> Vec<ExecutorSet<'s>> {
    let labelled = app.drivers.iter().map(|driver| driver.creator);
    let indexes = app.indexes().iter().map(|index| (index.creator, Some(index)));
    let others = labelled.chain(also).map(|creator| (Some(creator), None));
    // For one creator, the CreatorIndex comes first and is kept.
    let mut all: Vec<(Option<Creator>, Option<&CreatorIndex>)> = indexes.chain(others).collect();
    all.sort_by_key(|(creator, _)| *creator);
    all.dedup_by_key(|(creator, _)| *creator);
    let mut sets: Vec<ExecutorSet<'s>> =
        all.into_iter().map(|(creator, index)| ExecutorSet::new(creator, index)).collect();
    // Any tenant can label any number of pods: iterate over them once, not once per set.
    for driver in &app.drivers {
        if let Ok(at) = sets.binary_search_by_key(&Some(driver.creator), |set| set.creator)
            && let Some(set) = sets.get_mut(at)
        {
            set.labelled.push(driver);
        }
    }
    for set in &mut sets {
        (set.driver, set.is_certain) = liveness_of_set(key, app, snapshot, set, learned(set.creator));
        set.is_own = set.driver.pod().is_some_and(|driver| {
            let is_it = |pod: &Owner| pod.name == driver.name && pod.uid == driver.uid;
            let owns = |owner: &Owner| match workload::owning_pod(snapshot, key.namespace(), owner) {
                OwningPod::Pod(pod) => !owner.is_pod() && is_it(pod),
                OwningPod::Unread | OwningPod::None => false,
            };
            // The token of a driver may be bound to no pod: then its executors name it as their owner, all of them.
            let by_account = set.creator.is_some_and(|creator| !creator.is_object());
            let owns_all = || set.owners().next().is_some() && set.owners().all(is_it);
            set.creator == Some(driver.creator) || set.owners().any(owns) || (by_account && owns_all())
        });
    }
    // A tenant can write any owner into a workload: it is not the driver's if the driver itself has created executors.
    if sets.len() > 1 {
        let creates: Vec<Creator> =
            sets.iter().filter(|set| set.index.is_some()).filter_map(|set| set.creator).collect();
        for set in &mut sets {
            let by_itself = set.driver.pod().is_some_and(|driver| creates.binary_search(&driver.creator).is_ok());
            let is_creator = set.driver.pod().is_some_and(|driver| set.creator == Some(driver.creator));
            set.is_own &= is_creator || !by_itself;
        }
    }
    sets
}

/// The creators of an application's executors and drivers; each may occur more than once.
pub fn creators(app: &Application) -> impl Iterator<Item = Option<Creator>> {
    app.drivers.iter().map(|driver| Some(driver.creator)).chain(app.indexes().iter().map(|index| index.creator))
}

/// Whether all executors of an application, and its drivers, have one creator.
pub fn is_all_of(app: &Application, creator: Option<Creator>) -> bool {
    creators(app).all(|other| other == creator)
}

/// Whether the driver of a creator's executors is alive, and whether that is certain.
fn liveness_of_set(
    key: &AppKey,
    app: &Application,
    snapshot: &Snapshot,
    set: &ExecutorSet<'_>,
    learned: Option<KnownDriver>,
) -> (DriverLiveness, bool) {
    let creator = set.creator;
    // Without a known creator, a learned driver counts only for executors that agree on its address.
    let learned = learned.filter(|learned| creator.is_some() || learned.host.as_ref() == set.host());
    let (mut gone, mut unknown) = (false, false);
    for driver in &set.labelled {
        if driver.is_live() {
            return (DriverLiveness::Alive((*driver).clone()), true);
        }
        gone = true;
    }
    let mut last: Option<(&str, &str)> = None;
    let owners = set.owners().filter_map(|owner| match workload::owning_pod(snapshot, key.namespace(), owner) {
        OwningPod::Pod(pod) => Some(((&*pod.name, &*pod.uid), true)),
        OwningPod::Unread | OwningPod::None => None,
    });
    // The pod that created them may not be their owner: while it may be alive, the exit of another one proves nothing.
    let stated = set.proven_templates().find_map(|template| template.creator.as_ref()?.pod());
    let stated = stated.map(|driver| (driver, true));
    let learned = learned.as_ref().map(|driver| ((driver.pod.key.name(), &*driver.pod.uid), false));
    let mut owned = false;
    for ((name, uid), owns) in owners.chain(stated).chain(learned) {
        owned |= owns;
        if last.replace((name, uid)) == Some((name, uid)) {
            continue;
        }
        match liveness_of(key.namespace(), name, uid, snapshot) {
            alive @ DriverLiveness::Alive(_) => return (alive, true),
            DriverLiveness::Gone => gone = true,
            DriverLiveness::Unknown => unknown = true,
        }
    }
    // The driver that was known before may have been replaced by another one of the same application.
    let next = || without_owner(key, app, snapshot, set);
    if let Some((driver, is_certain)) = (gone && !unknown && !owned && set.index.is_some()).then(next).flatten() {
        return (DriverLiveness::Alive(driver), is_certain);
    }
    if gone {
        // A driver whose state is unknown may be alive.
        return (if unknown { DriverLiveness::Unknown } else { DriverLiveness::Gone }, true);
    }
    match next().filter(|_| !unknown) {
        Some((driver, is_certain)) => (DriverLiveness::Alive(driver), is_certain),
        None => (DriverLiveness::Unknown, true),
    }
}

/// The live driver of executors that no pod owns, and whether that is certain: by the driver's address that they have, or by the
/// label, with the same creator. A driver's exit proves nothing about them.
fn without_owner(
    key: &AppKey,
    app: &Application,
    snapshot: &Snapshot,
    set: &ExecutorSet<'_>,
) -> Option<(Arc<DriverPod>, bool)> {
    let host = match set.creator {
        // Any tenant can name the owner, and so the creator, of executors without a signature.
        Some(_) => set.proven_templates().find_map(|template| template.driver_host.as_ref()),
        None => set.host(),
    };
    let by_host = host.and_then(|host| resolve::from_driver_host(host, key.namespace(), snapshot));
    let by_host = by_host.map(|found| liveness_of(key.namespace(), &found.name, &found.uid, snapshot));
    // Another pod may have the address of a driver that was deleted.
    let is_possible = |driver: &DriverPod| match set.creator.filter(|creator| creator.is_pod()) {
        Some(creator) => driver.creator == creator || driver.creator_of() == Some(creator),
        None => true,
    };
    if let Some(DriverLiveness::Alive(driver)) =
        by_host.filter(|by_host| by_host.pod().is_some_and(|pod| is_possible(pod)))
    {
        return Some((driver, true));
    }
    let Some(maker) = set.creator else {
        // Without a known creator, the labelled driver is only the likeliest.
        return app.live_driver().map(|driver| (driver.clone(), false));
    };
    app.driver_made_by(maker).map(|driver| (driver.clone(), true))
}

/// The executor sets of an application, for display.
pub fn shown_sets<'s>(key: &AppKey, app: &'s Application, snapshot: &Snapshot) -> Vec<ExecutorSet<'s>> {
    executor_sets(key, app, snapshot, std::iter::empty(), |_| None)
}

/// Liveness for a whole application, for display: alive if the driver of any set is alive.
pub fn of(sets: &[ExecutorSet<'_>]) -> DriverLiveness {
    if let Some(alive) = sets.iter().find(|set| set.driver.pod().is_some()) {
        return alive.driver.clone();
    }
    let all_gone = !sets.is_empty() && sets.iter().all(|set| set.driver == DriverLiveness::Gone);
    if all_gone { DriverLiveness::Gone } else { DriverLiveness::Unknown }
}

/// Liveness of one pod by its name and the uid that was learned.
pub fn liveness_of(namespace: &str, name: &str, uid: &str, snapshot: &Snapshot) -> DriverLiveness {
    let known = snapshot.driver_pod(namespace, name);
    match known {
        Some(pod) if is_gone(Some(pod), uid) => DriverLiveness::Gone,
        // Any account that may change the pod may have written that label: it proves no exit.
        Some(pod) if pod.is_executor => DriverLiveness::Unknown,
        Some(pod) => DriverLiveness::Alive(pod.clone()),
        None => match (snapshot.executor(namespace, name), snapshot.referenced.get(&PodKey::new(namespace, name))) {
            (Some((_, executor)), _) if *executor.uid != *uid || executor.is_over => DriverLiveness::Gone,
            (None, Some(ReferencedPod::Absent)) => DriverLiveness::Gone,
            _ => DriverLiveness::Unknown,
        },
    }
}

/// Whether the pod of this uid is gone, by the pod that has its name.
pub(super) fn is_gone(found: Option<&DriverPod>, uid: &str) -> bool {
    found.is_none_or(|pod| *pod.uid != *uid || pod.phase == DriverPhase::Ended)
}
