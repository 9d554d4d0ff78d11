//! Does the driver of an application still live? (DESIGN "Driver life".)
//!
//! Executors of one application and one creator are a *crew*: anybody can claim another's application by a label, so what
//! is decided for executors of one creator never rests on pods of another. Mostly an application has one crew.

use std::sync::Arc;

use super::resolve;
use crate::signature::Creator;
use crate::snapshot::{App, Cohort, DriverPod, Followed, Life, Roster, Snapshot, Template};
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
    /// The executors, counted; `None` where there are none, as of a labelled driver that has not created any.
    pub roster: Option<&'s Roster>,
    /// The same, by what they have in common, in the order of their first.
    pub cohorts: Vec<&'s Cohort>,
    /// The pods that are labelled as the application's driver and are this creator.
    pub labelled: Vec<&'s Arc<DriverPod>>,
    /// Whether their driver lives.
    pub driver: DriverLife,
    /// Whether that rests on more than a label: where not, nothing is deleted or labelled because of it.
    pub is_certain: bool,
}

/// The driver of a creator's executors as it was last known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Learned {
    /// Pod name.
    pub name: Arc<str>,
    /// Pod uid.
    pub uid: Arc<str>,
    /// Of executors that nothing speaks for: the address that all of them gave it ([`Crew::host`]).
    pub host: Option<Arc<str>>,
}

impl<'s> Crew<'s> {
    fn new(creator: Option<Creator>, roster: Option<&'s Roster>) -> Crew<'s> {
        let cohorts = roster.map(Roster::cohorts).unwrap_or_default();
        Crew { creator, roster, cohorts, labelled: Vec::new(), driver: DriverLife::Unknown, is_certain: false }
    }

    /// The templates of those that live or are uncleared: owners of what was dealt with are followed by nobody, and say
    /// nothing about the others.
    fn templates(&self) -> impl Iterator<Item = &'s Arc<Template>> {
        self.cohorts.iter().filter(|cohort| cohort.is_undecided()).map(|cohort| &cohort.template)
    }

    /// The driver's address (the host of `SPARK_DRIVER_URL`) on which executors agree that nothing speaks for. `None` where
    /// they do not, as where two drivers share an application id or a tenant claims another's: the driver of one of
    /// them proves nothing about the others. Also `None` of a known creator, whose executors need no address.
    pub fn host(&self) -> Option<&'s Arc<str>> {
        let mut hosts = self.templates().map(|template| template.driver_host.as_ref());
        let first = hosts.next().flatten().filter(|_| self.creator.is_none())?;
        hosts.all(|host| host == Some(first)).then_some(first)
    }
}

/// The crews of an application, sorted by their creators, and those of `also`, of which nothing may be left but a PodGroup.
/// `learned` is a creator's driver as it was known before.
pub fn crews<'s>(
    key: &AppKey,
    app: &'s App,
    snapshot: &Snapshot,
    also: impl Iterator<Item = Creator>,
    learned: impl Fn(Option<Creator>) -> Option<Learned>,
) -> Vec<Crew<'s>> {
    let labelled = app.drivers.iter().map(|driver| driver.creator);
    let rosters = app.rosters().iter().map(|roster| (roster.creator, Some(roster)));
    let others = labelled.chain(also).map(|creator| (Some(creator), None));
    // Of one creator the roster comes first, and counts.
    let mut all: Vec<(Option<Creator>, Option<&Roster>)> = rosters.chain(others).collect();
    all.sort_by_key(|(creator, _)| *creator);
    all.dedup_by_key(|(creator, _)| *creator);
    let mut crews: Vec<Crew<'s>> = all.into_iter().map(|(creator, roster)| Crew::new(creator, roster)).collect();
    // Anybody can label any number of pods: they are gone through once, and not for each crew.
    for driver in &app.drivers {
        if let Ok(at) = crews.binary_search_by_key(&Some(driver.creator), |crew| crew.creator)
            && let Some(crew) = crews.get_mut(at)
        {
            crew.labelled.push(driver);
        }
    }
    for crew in &mut crews {
        (crew.driver, crew.is_certain) = life_of_crew(key, app, snapshot, crew, learned(crew.creator));
    }
    crews
}

/// The creators of an application's executors and drivers; each may come more than once.
pub fn creators(app: &App) -> impl Iterator<Item = Option<Creator>> {
    app.drivers.iter().map(|driver| Some(driver.creator)).chain(app.rosters().iter().map(|roster| roster.creator))
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
    learned: Option<Learned>,
) -> (DriverLife, bool) {
    let creator = crew.creator;
    // Of executors that nothing speaks for, it is the driver of those alone that gave its address.
    let learned = learned.filter(|learned| creator.is_some() || learned.host.as_ref() == crew.host());
    let (mut gone, mut unknown) = (false, false);
    for driver in &crew.labelled {
        if driver.is_live() {
            return (DriverLife::Alive((*driver).clone()), true);
        }
        gone = true;
    }
    let mut judged: Option<(&str, &str)> = None;
    let owners = crew.templates().filter_map(|template| template.owner.as_ref());
    let owners = owners.filter(|owner| owner.is_pod).map(|owner| (&*owner.name, &*owner.uid));
    let owners = owners.map(|owner| (owner, true));
    let mut owned = false;
    for ((name, uid), owns) in owners.chain(learned.as_ref().map(|driver| ((&*driver.name, &*driver.uid), false))) {
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
    if let Some((driver, is_certain)) = (gone && !unknown && !owned && crew.roster.is_some()).then(next).flatten() {
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
    let host = match crew.creator {
        Some(_) => crew.templates().find_map(|template| template.driver_host.as_ref()),
        None => crew.host(),
    };
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
