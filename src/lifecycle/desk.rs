//! The loop's desk: what has come in, what is being looked up, what is being done, and what is due next.
//!
//! It holds the one mutable [`Snapshot`], takes the time as an argument and does nothing itself: the edge hands it
//! changes and answers, and asks for the next [`Turn`]. Everything in it can be lost at any moment; a restart lists,
//! reads and plans anew.
//!
//! * An application is planned when something about it changed, and all of them once a minute.
//! * It is planned only by the leader, once pods and namespaces were listed; groups of a scheduler wait until those were
//!   listed: an empty picture is no reason to act.
//! * What the watch brings is handed over by the [`Store`] in batches, and so are ends: every replica notes those
//!   ([`Exits`]), and the leader tells them.
//! * What a list does not have, or has in another version, is looked at by name before it is believed (`checks`).
//! * It is not planned while its earlier actions are on the way, nor before what its plan needs was read once (or could
//!   not be, three times): a gang is not lowered because we have just started.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use smol_str::SmolStr;

use super::Now;
use super::action::Action;
use super::checks::{Checks, Found, Polled};
use super::election::Standing;
use super::exits::{Exit, Exits};
use super::memory::Memory;
use super::pace::{CrewKey, Pace, pause};
use super::plan::plan;
use super::reads::{Read, asked, interests, is_unknown};
use crate::plant::{self, Bug};
use crate::policy::Policies;
use crate::snapshot::{
    Batch, Calls, Change, Conf, DriverPod, Followed, Life, Replaced, Sighting, Snapshot, Store, SubscriberId,
};
use crate::spark::habits::Habits;
use crate::spark::ids::{AppKey, PodKey, is_newer};

/// How soon what the watch brings is planned again after the last time: a burst of pods is one plan.
const PLANS: Duration = Duration::from_millis(250);
/// How often ends are looked at (`spark.kubernetes.executor.eventProcessingInterval`).
const ENDS: Duration = Duration::from_secs(1);
/// The first poll of a new leader comes within so long.
const FIRST_POLL: Duration = Duration::from_secs(30);
/// A poll that does not come back is given up after this.
const LONGEST_POLL: Duration = Duration::from_secs(300);
/// How often everything is planned again although nothing was heard.
const RESYNC: Duration = Duration::from_secs(60);
/// How often a pod that is followed by name is read again.
const REFRESH: Duration = Duration::from_secs(60);
/// How often what nobody needs any more is forgotten.
const SWEEP: Duration = Duration::from_secs(15);
/// How many reads are on the way at once.
const READS_AT_ONCE: usize = 16;
/// After so many failures a plan is made without what could not be read.
const PATIENCE: u32 = 3;
/// So often what is absent is awaited by growing pauses: about two minutes.
const SOON_GIVEN_UP: u32 = 9;
/// And from then on it is looked for this often.
const RARELY: Duration = Duration::from_secs(600);
/// So long a plan waits for what is read for it.
const LONGEST_HELD: Duration = Duration::from_secs(30);

/// What is fixed for the life of the process.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// For jitter, so that replicas do not march in step.
    pub seed: u64,
    /// Ends that a replica has noted for so long were told by whoever led.
    pub takeover: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { seed: 0, takeover: Duration::from_secs(15) }
    }
}

/// What a live read answered.
#[derive(Clone, Debug)]
pub enum Answer {
    /// The labelled pod of that name.
    Sighting(Sighting),
    /// The pod of that name or address.
    Pod(DriverPod),
    /// What the driver's ConfigMap says.
    Conf(Conf),
    /// The API server knows no such object.
    Absent,
    /// It could not be read; try again.
    Failed,
}

/// What is to be done now.
#[derive(Debug, Default)]
pub struct Turn {
    /// Objects to read.
    pub reads: Vec<Read>,
    /// Actions in their order, by whose executors they are for.
    pub actions: Vec<(CrewKey, Vec<Action>)>,
    /// Ends to tell. Only the leader gets any.
    pub exits: Vec<Exit>,
    /// Whether the full truth is to be read now: [`Desk::polled`] takes it.
    pub poll: bool,
    /// Whether the watch of pods has missed something and is to be started again.
    pub rewatch: bool,
    /// When to ask again even if nothing is heard.
    pub wake: Option<Instant>,
}

/// One object that is read by name.
#[derive(Debug)]
struct Reading {
    askers: BTreeSet<AppKey>,
    failures: u32,
    answered: bool,
    in_flight: bool,
    due: Instant,
    /// Uids that differed from the one that was read, and made it be read again at once.
    checked: BTreeSet<Arc<str>>,
}

impl Reading {
    /// Whether a plan may be made: it was read, or could not be.
    fn is_settled(&self) -> bool {
        self.answered || self.failures >= PATIENCE
    }
}

/// See the module's text.
#[derive(Debug)]
pub struct Desk {
    settings: Settings,
    store: Store,
    /// The store's subscribers: for plans, and for ends.
    plans: SubscriberId,
    ends: SubscriberId,
    exits: Exits,
    checks: Checks,
    /// When an application's next grace is over.
    graces: BTreeMap<AppKey, Instant>,
    /// When the next poll is due; while one is on the way, when it is given up.
    poll: Option<Instant>,
    polls: u64,
    rewatch: bool,
    newest: Option<SmolStr>,
    /// Applications whose reads are to be looked at.
    unread: BTreeSet<AppKey>,
    /// Applications to plan.
    unplanned: BTreeSet<AppKey>,
    reading: BTreeMap<Read, Reading>,
    memory: HashMap<AppKey, Memory>,
    pace: Pace,
    /// Since when an application's plan waits for what is read: whoever names ever new pods must not hold it for ever.
    held: HashMap<AppKey, Instant>,
    listed: BTreeSet<&'static str>,
    leading: bool,
    resync: Instant,
    sweep: Instant,
    /// Uids of pods and groups that went since the last sweep but one: an answer, or an event, may come after their end.
    gone: [HashSet<Arc<str>>; 2],
}

const PODS: &str = "pods";
const NAMESPACES: &str = "namespaces";

impl Desk {
    /// An empty desk.
    pub fn new(now: Instant, settings: Settings) -> Desk {
        let mut store = Store::default();
        let plans = store.subscribe(PLANS, Calls::WithNews, now);
        let ends = store.subscribe(ENDS, Calls::Always, now);
        Desk {
            settings,
            store,
            plans,
            ends,
            exits: Exits::default(),
            checks: Checks::default(),
            graces: BTreeMap::new(),
            poll: None,
            polls: 0,
            rewatch: false,
            newest: None,
            unread: BTreeSet::new(),
            unplanned: BTreeSet::new(),
            reading: BTreeMap::new(),
            memory: HashMap::new(),
            pace: Pace::default(),
            held: HashMap::new(),
            listed: BTreeSet::new(),
            leading: false,
            resync: now + RESYNC,
            sweep: now + SWEEP,
            gone: [HashSet::new(), HashSet::new()],
        }
    }

    /// The picture as it is now.
    pub fn snapshot(&self) -> &Snapshot {
        self.store.snapshot()
    }

    /// What was noted of ends.
    pub fn exits(&self) -> &Exits {
        &self.exits
    }

    /// The newest resourceVersion that was seen of any labelled pod: a list must not be older.
    pub fn newest(&self) -> Option<&str> {
        self.newest.as_deref()
    }

    fn note_version(&mut self, seen: &Sighting) {
        let version = seen.version();
        if self.newest.as_ref().is_none_or(|newest| is_newer(version, newest)) {
            self.newest = Some(version.clone());
        }
    }

    /// Takes a change in.
    pub fn apply(&mut self, mut change: Change, now: Now) {
        match &mut change {
            // News that was overtaken by the pod's end.
            Change::Pod(seen) if self.is_gone(seen.uid()) => return,
            Change::PodDeleted(seen) if self.is_gone(seen.uid()) && !plant::is(Bug::GoneByName) => return,
            Change::Pod(seen) => {
                seen.seen_at(now.at);
                self.note_version(seen);
            }
            Change::Replaced(Replaced::Pods(all)) => {
                // A list from the past brings nobody back.
                all.retain(|seen| !self.is_gone(seen.uid()));
                // After a restore of etcd versions begin anew.
                self.newest = None;
                self.listed.insert(PODS);
                for seen in all {
                    seen.seen_at(now.at);
                    self.note_version(seen);
                }
            }
            Change::Replaced(Replaced::Namespaces(_)) => _ = self.listed.insert(NAMESPACES),
            Change::PodGone(_, uid) => _ = self.gone[0].insert(uid.clone()),
            Change::PodDeleted(seen) => {
                seen.seen_at(now.at);
                self.note_version(seen);
                self.gone[0].insert(seen.uid().clone());
            }
            Change::GroupGone(key) => {
                self.gone[0].extend(self.snapshot().groups.get(key).map(|group| group.uid.clone()))
            }
            Change::Replaced(Replaced::Groups(kind, all)) => {
                let there: HashSet<&str> = all.iter().map(|(_, group)| &*group.uid).collect();
                let before = self.store.snapshot().groups.iter().filter(|(key, _)| key.scheduler == *kind);
                let left = before.filter(|(_, group)| !there.contains(&*group.uid));
                self.gone[0].extend(left.map(|(_, group)| group.uid.clone()));
                if !self.snapshot().listed.contains(kind) {
                    self.replan(); // Gangs have waited for this, and an empty list touches none of them.
                }
            }
            Change::Apis(apis) => {
                // Of an API that is served no more, or in another version, nothing is known.
                let changed = |kind: &&'static str| {
                    let had = self.store.snapshot().apis.as_ref().and_then(|had| had.get(kind));
                    had.is_some() && had != apis.get(kind)
                };
                let kinds: Vec<&'static str> = self.snapshot().listed.iter().copied().filter(changed).collect();
                for kind in kinds {
                    self.store.apply(Change::Unlisted(kind), now.wall);
                }
            }
            _ => {}
        }
        for departed in self.store.apply(change, now.wall) {
            // The end of one that had ended is no news; a live one may still be there.
            if departed.executor.state.is_final() || plant::is(Bug::AbsentIsGone) {
                self.store.gone(departed);
            } else {
                self.checks.absent(departed, now.at);
            }
        }
    }

    /// Whether what has this uid went a moment ago.
    fn is_gone(&self, uid: &str) -> bool {
        self.gone.iter().any(|gone| gone.contains(uid))
    }

    /// Takes in what the answer to a write told, so that the next plan needs not wait for the watch; unless the watch
    /// has shown something newer since. Versions of one object grow as numbers.
    pub fn written(&mut self, change: Change, now: Now) {
        let news = match &change {
            Change::Group(key, group) => match self.snapshot().groups.get(key) {
                Some(known) if known.uid == group.uid => is_newer(&group.version, &known.version),
                _ => !self.is_gone(&group.uid),
            },
            _ => true,
        };
        if news {
            self.apply(change, now);
        }
    }

    fn touch(&mut self, apps: impl IntoIterator<Item = AppKey>) {
        for app in apps {
            self.unread.insert(app.clone());
            self.unplanned.insert(app);
        }
    }

    /// Whether everything that plans rest on was listed.
    pub fn is_complete(&self) -> bool {
        self.listed.contains(PODS) && self.listed.contains(NAMESPACES) && self.snapshot().apis.is_some()
    }

    /// Policies changed: everything is planned again.
    pub fn replan(&mut self) {
        let all: Vec<AppKey> = self.known().collect();
        self.touch(all);
    }

    /// Every application, also those of which only groups are left.
    fn known(&self) -> impl Iterator<Item = AppKey> + '_ {
        let left =
            self.snapshot().groups.iter().filter_map(|(key, group)| {
                group.selector.as_ref().map(|selector| AppKey::new(&key.namespace, selector))
            });
        self.snapshot().apps.keys().cloned().chain(left)
    }

    /// What is due now.
    pub fn turn(&mut self, now: Now, policies: &Policies, standing: Standing) -> Turn {
        let leading = standing == Standing::Leading;
        if leading && !self.leading {
            self.replan();
            self.poll = Some(now.at + self.jitter(policies.lifecycle.poll.min(FIRST_POLL)));
        }
        self.leading = leading;
        if self.resync <= now.at {
            self.resync = now.at + RESYNC;
            if !plant::is(Bug::ActionNotRetried) {
                self.replan();
            }
        }
        let mut turn = Turn::default();
        if self.sweep <= now.at {
            self.sweep = now.at + SWEEP;
            self.gone = [HashSet::new(), std::mem::take(&mut self.gone[0])];
            self.forget_unwanted(policies, now);
            let apps = &self.store.snapshot().apps;
            self.held.retain(|key, _| apps.contains_key(key));
        }
        if let Some(batch) = self.store.take(self.plans, now.at) {
            self.touch(batch.touched);
            self.store.done(self.plans, now.at);
        }
        if let Some(batch) = self.store.take(self.ends, now.at) {
            self.ended(&batch, now);
            self.store.done(self.ends, now.at);
        }
        turn.exits = self.exits.to_tell(standing, self.settings.takeover, now.at);
        for key in std::mem::take(&mut self.unread) {
            self.ask(&key, now.at, policies);
        }
        self.due_reads(now.at, &mut turn);
        if !leading {
            self.unplanned.clear();
            self.pace.give_up();
            self.memory.clear();
            self.held.clear();
            self.graces.clear();
            self.poll = None;
        } else if self.is_complete() {
            let over: Vec<AppKey> =
                self.graces.iter().filter(|(_, at)| **at <= now.at).map(|(app, _)| app.clone()).collect();
            for app in over {
                self.graces.remove(&app);
                self.unplanned.insert(app);
            }
            self.unplanned.extend(self.pace.freed(now.at));
            self.plans(now, policies, &mut turn);
            if self.poll.is_some_and(|due| due <= now.at) {
                turn.poll = !plant::is(Bug::NeverPolls);
                self.poll = Some(now.at + LONGEST_POLL);
            }
        }
        turn.rewatch = std::mem::take(&mut self.rewatch);
        turn.wake = self.next_wake(now.at);
        turn
    }

    /// Notes ends, and forgets those that are long past.
    fn ended(&mut self, batch: &Batch, now: Now) {
        let apps = self.exits.note(batch, now);
        self.unplanned.extend(apps);
        self.exits.expire(self.store.snapshot(), now.at);
    }

    /// A tenth more or less. Not random: it need not be.
    fn jitter(&mut self, span: Duration) -> Duration {
        self.polls = self.polls.wrapping_add(1);
        let mixed = (self.settings.seed ^ self.polls).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        let share = u32::try_from(mixed % 200).unwrap_or_default();
        span.saturating_mul(900 + share) / 1000
    }

    /// Takes a poll in; `None` when it failed.
    pub fn polled(&mut self, polled: Option<&Polled>, now: Now, policies: &Policies) {
        let next = match polled {
            Some(_) => policies.lifecycle.poll,
            None => policies.lifecycle.poll.min(FIRST_POLL),
        };
        self.poll = Some(now.at + self.jitter(next));
        if let Some(polled) = polled.filter(|_| self.is_complete()) {
            let delta = Habits::default().missing_after.min(policies.lifecycle.poll);
            self.checks.judge(self.store.snapshot(), polled, delta, now);
            self.store.refreshed(now.wall);
        }
    }

    /// Takes the answer to a look at a labelled pod in.
    fn checked(&mut self, pod: &PodKey, answer: Answer, now: Now) {
        let seen = match answer {
            Answer::Sighting(seen) => Some(seen),
            Answer::Absent => None,
            _ => return self.checks.failed(pod, now.at),
        };
        // A pod without an application is none of ours.
        let ours = seen.as_ref().filter(|seen| !matches!(seen, Sighting::Other(..)));
        let uid = ours.map(|seen| seen.uid().clone());
        match self.checks.answered(self.store.snapshot(), pod, uid.as_deref()) {
            Found::Gone(departed) => {
                let uid = departed.executor.uid.clone();
                let known =
                    self.snapshot().executor(pod.namespace(), pod.name()).is_some_and(|(_, known)| known.uid == uid);
                if known {
                    self.rewatch = true; // The watch still shows it.
                    self.store.forget(pod, &uid);
                }
                self.gone[0].insert(uid);
                self.store.gone(departed);
            }
            Found::DriverGone(uid) => {
                self.rewatch = true;
                self.apply(Change::PodGone(pod.clone(), uid), now);
            }
            Found::Missed => self.rewatch = true,
            Found::Nothing => {}
        }
        if let Some(seen) = seen {
            self.written(Change::Pod(seen), now);
        }
    }

    /// Notes what an application wants to know.
    fn ask(&mut self, key: &AppKey, now: Instant, policies: &Policies) {
        let (wanted, outdated) = asked(self.store.snapshot(), key, policies, &self.learned(key));
        for read in wanted {
            if !self.reading.contains_key(&read) && !is_unknown(self.store.snapshot(), &read) {
                continue; // The watch shows it.
            }
            let reading = self.reading.entry(read).or_insert_with(|| Reading {
                askers: BTreeSet::new(),
                failures: 0,
                answered: false,
                in_flight: false,
                due: now,
                checked: BTreeSet::new(),
            });
            reading.askers.insert(key.clone());
        }
        for (pod, uid) in outdated {
            if let Some(reading) = self.reading.get_mut(&Read::Pod(pod)) {
                reading.askers.insert(key.clone());
                if reading.checked.insert(uid) {
                    (reading.answered, reading.due) = (false, now);
                }
            }
        }
    }

    fn learned(&self, key: &AppKey) -> Vec<&str> {
        let crews = self.memory.get(key).into_iter().flat_map(|memory| memory.crews.values());
        crews.filter_map(|crew| crew.driver.as_ref()).map(|driver| &*driver.name).collect()
    }

    /// Forgets what was read, or could not be, and what nothing rests on any more. One pass over all applications.
    fn forget_unwanted(&mut self, policies: &Policies, now: Now) {
        let known: BTreeSet<AppKey> = self.known().collect();
        let wanted: HashSet<Read> =
            known.iter().flat_map(|key| interests(self.store.snapshot(), key, policies, &self.learned(key))).collect();
        let mut unfollowed = Vec::new();
        self.reading.retain(|read, reading| {
            reading.askers.retain(|app| known.contains(app));
            reading.checked.clear();
            let keep = reading.in_flight || wanted.contains(read);
            if let (false, Read::Pod(pod)) = (keep, read) {
                unfollowed.push(pod.clone());
            }
            keep
        });
        for pod in unfollowed {
            self.apply(Change::Unfollowed(pod), now);
        }
    }

    /// The longest due first, so that nobody's many reads starve the others'.
    fn due_reads(&mut self, now: Instant, turn: &mut Turn) {
        let free = READS_AT_ONCE.saturating_sub(self.in_flight());
        if free == 0 {
            return;
        }
        let due = self.reading.iter_mut().filter(|(_, reading)| !reading.in_flight && reading.due <= now);
        let mut due: Vec<_> = due.collect();
        due.sort_by_key(|(_, reading)| reading.due);
        for (read, reading) in due.into_iter().take(free) {
            reading.in_flight = true;
            turn.reads.push(read.clone());
        }
        let checks = self.checks.due(self.store.snapshot(), now, free - turn.reads.len());
        turn.reads.extend(checks.into_iter().map(Read::Labelled));
    }

    fn in_flight(&self) -> usize {
        self.reading.values().filter(|reading| reading.in_flight).count() + self.checks.in_flight()
    }

    fn plans(&mut self, now: Now, policies: &Policies, turn: &mut Turn) {
        let unsettled: BTreeSet<&AppKey> =
            self.reading.values().filter(|reading| !reading.is_settled()).flat_map(|reading| &reading.askers).collect();
        for key in std::mem::take(&mut self.unplanned) {
            if self.pace.holds(&key, now.at, self.store.snapshot()) {
                continue; // Planned again when it may act.
            }
            if unsettled.contains(&key) {
                let since = *self.held.entry(key.clone()).or_insert(now.at);
                if now.at.saturating_duration_since(since) < LONGEST_HELD {
                    continue; // The answer touches it again.
                }
            }
            self.held.remove(&key);
            let memory = self.memory.entry(key.clone()).or_default();
            let plan = plan(self.store.snapshot(), &key, now, policies, memory, &self.exits);
            if let Some(later) = plan.later {
                self.graces.insert(key.clone(), later);
            }
            if memory.is_empty() {
                self.memory.remove(&key);
            }
            self.pace.plan(&key, plan, now.at);
        }
        turn.actions = self.pace.begin();
    }

    /// Takes the answer to a read in.
    pub fn answered(&mut self, read: &Read, answer: Answer, now: Now) {
        if let Read::Labelled(pod) = read {
            return self.checked(pod, answer, now);
        }
        let Some(reading) = self.reading.get_mut(read) else { return };
        reading.in_flight = false;
        let picture = self.store.snapshot();
        let askers: Vec<AppKey> = reading.askers.iter().cloned().collect();
        // A driver's ConfigMap is made after its pod, and may come after the driver runs. One that has ended gets none.
        let awaited = matches!(read, Read::Conf(pod, ..) if picture.driver_pod(pod.namespace(), pod.name())
            .is_some_and(|driver| driver.life != Life::Ended));
        let failed = matches!(answer, Answer::Failed) || (matches!(answer, Answer::Absent) && awaited);
        if failed {
            reading.failures = reading.failures.saturating_add(1);
            let long = matches!(answer, Answer::Absent) && reading.failures > SOON_GIVEN_UP;
            reading.due = now.at + if long { RARELY } else { pause(reading.failures) };
            if reading.failures == PATIENCE {
                self.touch(askers);
            }
            return;
        }
        reading.failures = 0;
        let first = !std::mem::replace(&mut reading.answered, true);
        reading.due = now.at + REFRESH;
        let change = match (read, answer) {
            (Read::Pod(pod), Answer::Absent) => Some(Change::Followed(pod.clone(), Followed::Absent, askers.clone())),
            (Read::Pod(pod), Answer::Pod(driver)) => {
                Some(Change::Followed(pod.clone(), Followed::Present(Arc::new(driver)), askers.clone()))
            }
            (Read::Address(namespace, _), Answer::Pod(driver)) => {
                let pod = PodKey::new(namespace, &driver.name);
                Some(Change::Followed(pod, Followed::Present(Arc::new(driver)), askers.clone()))
            }
            (Read::Conf(pod, uid, _), answer) => {
                let conf = if let Answer::Conf(conf) = answer { conf } else { Conf::Unreadable };
                Some(Change::Conf(pod.clone(), uid.clone(), conf, askers.clone()))
            }
            _ => None,
        };
        match (read, &change) {
            (Read::Conf(..), _) => _ = self.reading.remove(read),
            // From now on it is read by its name.
            (Read::Address(..), Some(Change::Followed(pod, ..))) => {
                let askers = askers.iter().cloned().collect();
                let due = now.at + REFRESH;
                let checked = BTreeSet::new();
                let reading = Reading { askers, failures: 0, answered: true, in_flight: false, due, checked };
                self.reading.entry(Read::Pod(pod.clone())).or_insert(reading);
            }
            _ => {}
        }
        if let Some(change) = change {
            self.apply(change, now);
        }
        if first {
            self.touch(askers);
        }
    }

    /// Actions for a creator's executors were done, or some of them failed. Either way the next plan tells what is missing.
    pub fn done(&mut self, crew: &CrewKey, failed: bool, wrote: bool, now: Instant) {
        self.pace.done(crew, failed, wrote, now);
    }

    fn next_wake(&self, now: Instant) -> Option<Instant> {
        let free = self.in_flight() < READS_AT_ONCE;
        let reads = self.reading.values().filter(|reading| free && !reading.in_flight).map(|reading| reading.due);
        let plans = self.leading && self.is_complete();
        let paused = self.pace.next().filter(|_| plans);
        let checks = self.checks.next().filter(|_| free);
        let poll = self.poll.filter(|_| plans);
        let graces = self.graces.values().copied().filter(|_| plans);
        let others = checks.into_iter().chain(poll).chain(graces).chain(self.store.next(now));
        reads.chain(paused).chain(others).chain([self.resync, self.sweep]).min()
    }
}
