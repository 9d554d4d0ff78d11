//! Does the driver of an application still live? (DESIGN "Driver life".)
//!
//! Executors of one application and one creator are a *crew*: anybody can claim another's application by a label, so what
//! is decided for executors of one creator never rests on pods of another. Mostly an application has one crew.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::resolve;
use crate::signature::Creator;
use crate::snapshot::{App, DriverPod, Executor, Followed, Life, Snapshot, Template};
use crate::spark::ids::{AppKey, PodKey};

/// Three answers; on the third nothing is ever deleted.
#[derive(Clone, Debug, PartialEq)]
pub enum DriverLife {
    /// Its pod is there, with the uid that was learned, and has not ended.
    Alive(Arc<DriverPod>),
    /// A uid was learned once, and its pod is gone, is another one now, or has ended.
    Gone,
    /// No uid was ever learned, or nobody has looked yet.
    Unknown,
}

impl DriverLife {
    /// The pod of a driver that lives.
    pub fn pod(&self) -> Option<&Arc<DriverPod>> {
        match self {
            DriverLife::Alive(pod) => Some(pod),
            DriverLife::Gone | DriverLife::Unknown => None,
        }
    }
}

/// Executors of an application that one creator made, and its driver.
#[derive(Debug)]
pub struct Crew<'s> {
    /// Who made them; `None` for executors that nobody owns and no signature speaks for.
    pub creator: Option<Creator>,
    /// The executors; none of a labelled driver that has not created any.
    pub executors: Vec<&'s Arc<Executor>>,
    /// Those that live.
    pub live: Vec<&'s Arc<Executor>>,
    /// Those that ended, and that nobody has dealt with.
    pub uncleared: Vec<&'s Arc<Executor>>,
    /// Those that are to be gone at a time that is known.
    pub leaving: Vec<&'s Arc<Executor>>,
    /// The templates of those that live or are uncleared, each once, or more often where they alternate.
    templates: Vec<&'s Arc<Template>>,
    /// Whether somebody else has labelled one of them inactive.
    pub is_labelled: bool,
    /// Whether their driver lives.
    pub driver: DriverLife,
    /// Whether that rests on more than a label: where not, nothing is deleted or labelled because of it.
    pub is_certain: bool,
}

impl<'s> Crew<'s> {
    fn new(creator: Option<Creator>) -> Crew<'s> {
        Crew {
            creator,
            executors: Vec::new(),
            live: Vec::new(),
            uncleared: Vec::new(),
            leaving: Vec::new(),
            templates: Vec::new(),
            is_labelled: false,
            driver: DriverLife::Unknown,
            is_certain: false,
        }
    }

    /// Takes an executor in. There may be a hundred thousand, all over the memory, so all that is asked later is asked here.
    fn add(&mut self, executor: &'s Arc<Executor>) {
        self.executors.push(executor);
        self.is_labelled |= executor.inactive && !executor.inactive_by_us;
        if executor.is_live() {
            self.live.push(executor);
        } else if executor.is_uncleared() {
            self.uncleared.push(executor);
        }
        if executor.evidence.as_ref().is_some_and(|evidence| evidence.deletion.is_some()) {
            self.leaving.push(executor);
        }
        // Owners of what was dealt with are followed by nobody, and say nothing about the others.
        if (executor.is_live() || executor.is_uncleared())
            && self.templates.last().is_none_or(|last| !Arc::ptr_eq(last, &executor.template))
        {
            self.templates.push(&executor.template);
        }
    }
}

/// The crews of an application, and those of `also`, of which nothing may be left but a PodGroup. `learned` is the name and
/// uid of a creator's driver as it was known before.
pub fn crews<'s>(
    key: &AppKey,
    app: &'s App,
    snapshot: &Snapshot,
    also: impl Iterator<Item = Creator>,
    learned: impl Fn(Option<Creator>) -> Option<(Arc<str>, Arc<str>)>,
) -> Vec<Crew<'s>> {
    let mut by_creator: BTreeMap<Option<Creator>, Crew<'s>> = BTreeMap::new();
    for (creator, executor) in with_creators(app) {
        by_creator.entry(creator).or_insert_with(|| Crew::new(creator)).add(executor);
    }
    let labelled = app.drivers.iter().map(|driver| driver.creator);
    for creator in labelled.chain(also).map(Some) {
        by_creator.entry(creator).or_insert_with(|| Crew::new(creator));
    }
    let mut crews: Vec<Crew<'s>> = by_creator.into_values().collect();
    for crew in &mut crews {
        (crew.driver, crew.is_certain) = life_of_crew(key, app, snapshot, crew, learned(crew.creator));
    }
    crews
}

/// The executors, and by which creator they count.
fn with_creators(app: &App) -> impl Iterator<Item = (Option<Creator>, &Arc<Executor>)> {
    // Executors that nothing is proven of share their owner with their template: its digest is computed once.
    let mut last: Option<(&Arc<Template>, Option<Creator>)> = None;
    app.executors.values().map(move |executor| {
        let same = last.filter(|(template, _)| !executor.is_proven && Arc::ptr_eq(template, &executor.template));
        let creator = same.map_or_else(|| executor.counts_to(), |(_, creator)| creator);
        if !executor.is_proven {
            last = Some((&executor.template, creator));
        }
        (creator, executor)
    })
}

/// The creators of an application's executors and drivers; each may come more than once.
pub fn creators(app: &App) -> impl Iterator<Item = Option<Creator>> {
    app.drivers.iter().map(|driver| Some(driver.creator)).chain(with_creators(app).map(|(creator, _)| creator))
}

/// Whether all executors of an application, and its drivers, are of one crew.
pub fn is_all_of(app: &App, creator: Option<Creator>) -> bool {
    creators(app).all(|other| other == creator)
}

/// Whether the driver of a creator's executors lives, and whether that is certain.
fn life_of_crew(
    key: &AppKey,
    app: &App,
    snapshot: &Snapshot,
    crew: &Crew<'_>,
    learned: Option<(Arc<str>, Arc<str>)>,
) -> (DriverLife, bool) {
    let creator = crew.creator;
    let (mut gone, mut unknown) = (false, false);
    let own = app.drivers.iter().filter(|driver| creator == Some(driver.creator));
    for driver in own {
        if driver.is_live() {
            return (DriverLife::Alive(driver.clone()), true);
        }
        gone = true;
    }
    let mut judged: Option<(&str, &str)> = None;
    let owners = crew.templates.iter().filter_map(|template| template.owner.as_ref());
    let owners = owners.filter(|owner| owner.is_pod).map(|owner| (&*owner.name, &*owner.uid));
    let owners = owners.map(|owner| (owner, true));
    let mut owned = false;
    for ((name, uid), owns) in owners.chain(learned.as_ref().map(|(name, uid)| ((&**name, &**uid), false))) {
        owned |= owns;
        if judged.replace((name, uid)) == Some((name, uid)) {
            continue;
        }
        match judge(key.namespace(), name, uid, snapshot) {
            alive @ DriverLife::Alive(_) => return (alive, true),
            DriverLife::Gone => gone = true,
            DriverLife::Unknown => unknown = true,
        }
    }
    // The driver that was known before may have been followed by another one of the same application.
    let next = || without_owner(key, app, snapshot, crew);
    if let Some((driver, is_certain)) = (gone && !unknown && !owned && !crew.executors.is_empty()).then(next).flatten()
    {
        return (DriverLife::Alive(driver), is_certain);
    }
    if gone {
        // One of whom nothing is known yet may be alive.
        return (if unknown { DriverLife::Unknown } else { DriverLife::Gone }, true);
    }
    match next().filter(|_| !unknown) {
        Some((driver, is_certain)) => (DriverLife::Alive(driver), is_certain),
        None => (DriverLife::Unknown, true),
    }
}

/// The driver of executors that no pod owns, if it lives, and whether that is certain: their own address of it, or a
/// labelled one of the same maker. That it ended proves nothing about them.
fn without_owner(key: &AppKey, app: &App, snapshot: &Snapshot, crew: &Crew<'_>) -> Option<(Arc<DriverPod>, bool)> {
    let host = crew.templates.iter().find_map(|template| template.driver_host.as_deref());
    let by_host = host.and_then(|host| resolve::from_driver_host(host, key.namespace(), snapshot));
    let by_host = by_host.map(|found| judge(key.namespace(), &found.name, &found.uid, snapshot));
    if let Some(DriverLife::Alive(driver)) = by_host {
        return Some((driver, true));
    }
    let Some(maker) = crew.creator else {
        // Of executors that nothing speaks for, the labelled driver is the likeliest, and no more than that.
        return app.live_driver().map(|driver| (driver.clone(), false));
    };
    app.driver_made_by(maker).map(|driver| (driver.clone(), true))
}

/// Answers for an application as a whole, for people: alive when the driver of any crew is.
pub fn of(key: &AppKey, app: &App, snapshot: &Snapshot) -> DriverLife {
    let mut lives: Vec<DriverLife> =
        crews(key, app, snapshot, std::iter::empty(), |_| None).into_iter().map(|crew| crew.driver).collect();
    if let Some(alive) = lives.iter().position(|life| matches!(life, DriverLife::Alive(_))) {
        return lives.swap_remove(alive);
    }
    let all_gone = !lives.is_empty() && lives.iter().all(|life| *life == DriverLife::Gone);
    if all_gone { DriverLife::Gone } else { DriverLife::Unknown }
}

/// Answers for one pod by name and the uid that was learned.
pub fn judge(namespace: &str, name: &str, uid: &str, snapshot: &Snapshot) -> DriverLife {
    let known = snapshot.driver_pod(namespace, name);
    match known {
        Some(pod) if *pod.uid == *uid && pod.life != Life::Ended && !pod.is_executor => DriverLife::Alive(pod.clone()),
        Some(_) => DriverLife::Gone,
        None => match snapshot.followed.get(&PodKey::new(namespace, name)) {
            Some(Followed::Absent) => DriverLife::Gone,
            _ => DriverLife::Unknown,
        },
    }
}
